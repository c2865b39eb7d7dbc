//! When the next bytes may leave: a rate, kept on average without bursts.
//!
//! Lateness of the sending thread is made up for a few milliseconds only; what a pause, an empty queue or a suspension left
//! unsent is not sent as a burst afterwards.

use ropewalk_model::{ByteRate, Instant, Nanos};

/// Lateness that is made up: a thread that was off its core for one time slice (4 ms) falls behind no further.
const CATCH_UP_TIME: Nanos = Nanos::from_millis(4);

/// Datagrams leave together for this much time of the rate: short against the 4 ms that a receiver may be off its core,
/// long against a system call and a wake-up.
const BATCH_TIME: Nanos = Nanos::from_micros(250);

/// Most bytes of one batch: one segmented send.
const BATCH_MAX: u64 = 60_000;

/// Paces one lane.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: ByteRate,
    // When the next byte is due.
    next_at: Instant,
}

impl Pacer {
    /// A pacer for this rate, which is 1 byte per second at least.
    #[must_use]
    pub fn new(rate: ByteRate, now: Instant) -> Self {
        Self {
            rate: rate.max(ByteRate(1)),
            next_at: now,
        }
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> ByteRate {
        self.rate
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, rate: ByteRate) {
        self.rate = rate.max(ByteRate(1));
    }

    /// Begins again after a time in which nothing was to be sent, so that nothing of it is made up for.
    pub fn restart(&mut self, now: Instant) {
        self.next_at = self.next_at.max(now);
    }

    /// Nothing is to be sent now. Of the time until something is, a batch's is made up for, so that short bursts leave at once.
    pub fn rest(&mut self, now: Instant) {
        self.next_at = self.next_at.max(now.before(BATCH_TIME));
    }

    /// Bytes that may leave now, in datagrams of `datagram` bytes; less than one when it is not time yet.
    #[must_use]
    pub fn allowance(&mut self, now: Instant, datagram: u64) -> u64 {
        // At low rates one datagram alone takes longer, and would never be due.
        let late = CATCH_UP_TIME.max(self.batch_time(datagram) * 2);
        self.next_at = self.next_at.max(now.before(late));
        let due = now.since(self.next_at);
        (u128::from(due.0) * u128::from(self.rate.0) / 1_000_000_000) as u64
    }

    /// Records bytes that left.
    pub fn spend(&mut self, bytes: u64) {
        self.next_at += self.time_of(bytes);
    }

    /// Bytes worth waking up for, at least one datagram of `datagram` bytes.
    #[must_use]
    pub fn batch(&self, datagram: u64) -> u64 {
        let bytes = u128::from(self.rate.0) * u128::from(BATCH_TIME.0) / 1_000_000_000;
        (bytes as u64).clamp(datagram, BATCH_MAX.max(datagram))
    }

    /// When a batch may leave.
    #[must_use]
    pub fn wake_at(&self, datagram: u64) -> Instant {
        self.next_at + self.batch_time(datagram)
    }

    fn batch_time(&self, datagram: u64) -> Nanos {
        self.time_of(self.batch(datagram))
    }

    fn time_of(&self, bytes: u64) -> Nanos {
        let time = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.0);
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Instant = Instant::ZERO;
    const SECOND: Nanos = Nanos::from_secs(1);

    /// Sends as a driver does that wakes up `late` after the time; gives bytes sent and the largest burst.
    fn drive(
        pacer: &mut Pacer,
        from: Instant,
        to: Instant,
        late: impl Fn(Instant) -> Nanos,
    ) -> (u64, u64) {
        let (mut sent, mut burst, mut now) = (0, 0, from);
        while now < to {
            let mut batch = 0;
            while pacer.allowance(now, 1500) >= 1500 {
                pacer.spend(1500);
                batch += 1500;
            }
            sent += batch;
            burst = burst.max(batch);
            now = pacer.wake_at(1500).max(now + Nanos(1));
            now += late(now);
        }
        (sent, burst)
    }

    proptest! {
        /// The rate is kept, whatever it is, while wake-ups are at most 2 ms late.
        #[test]
        fn keeps_its_rate(rate in 1_000_000u64..1_500_000_000, late in 0u64..2_000_000) {
            let mut pacer = Pacer::new(ByteRate(rate), START);
            let is_late = |now: Instant| now.0.is_multiple_of(7);
            let lateness = |now| Nanos(if is_late(now) { late } else { 50_000 });
            let (sent, burst) = drive(&mut pacer, START, START + SECOND, lateness);
            let slack = rate / 100 + 4500;
            prop_assert!(sent.abs_diff(rate) <= slack, "{} instead of {}", sent, rate);
            prop_assert!(burst <= rate / 250 + BATCH_MAX + 3000, "a burst of {} at {}", burst, rate);
        }
    }

    /// A pause of a second is not made up for: the first burst after it is as short as any.
    #[test]
    fn a_pause_leaves_no_burst() {
        let rate = 100_000_000;
        let mut pacer = Pacer::new(ByteRate(rate), START);
        let at = |seconds: u64| START + SECOND * seconds;
        drive(&mut pacer, START, at(1), |_| Nanos::ZERO);
        pacer.restart(at(2));
        let (sent, burst) = drive(&mut pacer, at(2), at(3), |_| Nanos::ZERO);
        assert!(burst <= BATCH_MAX, "{burst}");
        assert!(sent.abs_diff(rate) < rate / 100);
        // Without anybody saying so, a few milliseconds at most.
        assert!(pacer.allowance(at(9), 1500) <= rate / 250);
    }

    /// After a rest a burst of a batch's time leaves at once, and no more.
    #[test]
    fn a_rest_leaves_a_batch() {
        for rate in [10_000_000, 5_000_000_000] {
            let mut pacer = Pacer::new(ByteRate(rate), START);
            let now = START + SECOND;
            pacer.rest(now);
            assert_eq!(pacer.allowance(now, 1500), rate / 4000);
            pacer.spend(rate / 4000);
            pacer.rest(now);
            assert_eq!(pacer.allowance(now, 1500), 0);
        }
    }

    /// The lowest ceiling of a monitor and long datagrams: one of them takes longer than what is made up for.
    #[test]
    fn low_rates_go_on() {
        const DATAGRAM: u64 = 8952;
        for rate in [10_000, 125_000, 2_000_000] {
            let mut pacer = Pacer::new(ByteRate(rate), START);
            let (mut sent, mut now) = (0, START);
            for _ in 0..100_000 {
                if now >= START + SECOND * 10 {
                    break;
                }
                if pacer.allowance(now, DATAGRAM) >= pacer.batch(DATAGRAM) {
                    pacer.spend(DATAGRAM);
                    sent += DATAGRAM;
                }
                now = pacer.wake_at(DATAGRAM).max(now + Nanos(1000));
            }
            assert!(sent.abs_diff(10 * rate) <= 2 * DATAGRAM, "{sent} at {rate}");
        }
    }
}
