//! When the next bytes may leave: a rate, kept on average without bursts.
//!
//! Lateness of the sending thread is made up for a few milliseconds only; what a pause, an empty queue or a suspension left
//! unsent is not sent as a burst afterwards.

/// Lateness that is made up: a thread that was off its core for one time slice (4 ms) falls behind no further.
const CATCH_UP_NS: u64 = 4_000_000;

/// Datagrams leave together for this much time of the rate: short against the 4 ms that a receiver may be off its core,
/// long against a system call and a wake-up.
const BATCH_NS: u64 = 250_000;

/// Most bytes of one batch: one segmented send.
const BATCH_MAX: u64 = 60_000;

/// Paces one lane.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    // Bytes per second.
    rate: u64,
    // When the next byte is due.
    next_ns: u64,
}

impl Pacer {
    /// A pacer for `rate` bytes per second.
    #[must_use]
    pub fn new(rate: u64, now_ns: u64) -> Self {
        Self {
            rate: rate.max(1),
            next_ns: now_ns,
        }
    }

    /// Bytes per second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(1);
    }

    /// Begins again after a time in which nothing was to be sent, so that nothing of it is made up for.
    pub fn restart(&mut self, now_ns: u64) {
        self.next_ns = self.next_ns.max(now_ns);
    }

    /// Bytes that may leave now, in datagrams of `datagram` bytes; less than one when it is not time yet.
    #[must_use]
    pub fn allowance(&mut self, now_ns: u64, datagram: u64) -> u64 {
        // At low rates one datagram alone takes longer, and would never be due.
        let late_ns = CATCH_UP_NS.max(self.batch_ns(datagram).saturating_mul(2));
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(late_ns));
        let due_ns = now_ns.saturating_sub(self.next_ns);
        (u128::from(due_ns) * u128::from(self.rate) / 1_000_000_000) as u64
    }

    /// Records bytes that left.
    pub fn spend(&mut self, bytes: u64) {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        self.next_ns = self
            .next_ns
            .saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
    }

    /// Bytes worth waking up for, at least one datagram of `datagram` bytes.
    #[must_use]
    pub fn batch(&self, datagram: u64) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(BATCH_NS) / 1_000_000_000;
        (bytes as u64).clamp(datagram, BATCH_MAX.max(datagram))
    }

    /// When a batch may leave.
    #[must_use]
    pub fn wake_at(&self, datagram: u64) -> u64 {
        self.next_ns.saturating_add(self.batch_ns(datagram))
    }

    fn batch_ns(&self, datagram: u64) -> u64 {
        let ns = u128::from(self.batch(datagram)) * 1_000_000_000 / u128::from(self.rate);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// Sends as a driver does that wakes up `late` after the time; gives bytes sent and the largest burst.
    fn drive(pacer: &mut Pacer, from: u64, to: u64, late: impl Fn(u64) -> u64) -> (u64, u64) {
        let (mut sent, mut burst, mut now) = (0, 0, from);
        while now < to {
            let mut batch = 0;
            while pacer.allowance(now, 1500) >= 1500 {
                pacer.spend(1500);
                batch += 1500;
            }
            sent += batch;
            burst = burst.max(batch);
            now = pacer.wake_at(1500).max(now + 1);
            now += late(now);
        }
        (sent, burst)
    }

    proptest! {
        /// The rate is kept, whatever it is, while wake-ups are at most 2 ms late.
        #[test]
        fn keeps_its_rate(rate in 1_000_000u64..1_500_000_000, late in 0u64..2_000_000) {
            let mut pacer = Pacer::new(rate, 0);
            let (sent, burst) = drive(&mut pacer, 0, SECOND, |now| if now % 7 == 0 { late } else { 50_000 });
            let slack = rate / 100 + 4500;
            prop_assert!(sent.abs_diff(rate) <= slack, "{} instead of {}", sent, rate);
            prop_assert!(burst <= rate / 250 + BATCH_MAX + 3000, "a burst of {} at {}", burst, rate);
        }
    }

    /// A pause of a second is not made up for: the first burst after it is as short as any.
    #[test]
    fn a_pause_leaves_no_burst() {
        let rate = 100_000_000;
        let mut pacer = Pacer::new(rate, 0);
        drive(&mut pacer, 0, SECOND, |_| 0);
        pacer.restart(2 * SECOND);
        let (sent, burst) = drive(&mut pacer, 2 * SECOND, 3 * SECOND, |_| 0);
        assert!(burst <= BATCH_MAX, "{burst}");
        assert!(sent.abs_diff(rate) < rate / 100);
        // Without anybody saying so, a few milliseconds at most.
        assert!(pacer.allowance(9 * SECOND, 1500) <= rate / 250);
    }

    /// The lowest ceiling of a monitor and long datagrams: one of them takes longer than what is made up for.
    #[test]
    fn low_rates_go_on() {
        const DATAGRAM: u64 = 8952;
        for rate in [10_000, 125_000, 2_000_000] {
            let mut pacer = Pacer::new(rate, 0);
            let (mut sent, mut now) = (0, 0);
            for _ in 0..100_000 {
                if now >= 10 * SECOND {
                    break;
                }
                if pacer.allowance(now, DATAGRAM) >= pacer.batch(DATAGRAM) {
                    pacer.spend(DATAGRAM);
                    sent += DATAGRAM;
                }
                now = pacer.wake_at(DATAGRAM).max(now + 1000);
            }
            assert!(sent.abs_diff(10 * rate) <= 2 * DATAGRAM, "{sent} at {rate}");
        }
    }
}
