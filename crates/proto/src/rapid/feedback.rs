//! What a monitor reports to the sender, and how the sender follows.
//!
//! Every message holds the whole state, so that any may be lost; the newest counts. The same state goes by datagram and, less
//! often, over the reliable stream, so that a path that loses datagrams delays it only.

use ropewalk_model::{ByteRate, Instant, Nanos};

/// Bytes of a message.
pub const FEEDBACK_LEN: usize = 32;

/// Without a word for this long, and two round trips, the sender begins to slow down: nobody knows what the receiver is doing.
const SILENCE_TIME: Nanos = Nanos::from_secs(1);

/// While nothing is heard the rate halves each time this passes ...
const HALVING_TIME: Nanos = Nanos::from_secs(1);

/// ... to this part of the last one: a path that carries no feedback at all still ends its transfer.
const SILENT_PART_MIN: u64 = 8;

/// Longest suspension that a sender obeys: a receiver that needs longer asks again.
const SUSPEND_TIME_MAX: Nanos = Nanos::from_secs(2);

/// Bytes that may be on their way before the monitor has spoken, where nobody set a rate.
const FIRST_BYTES: u64 = 8 << 20;

/// The rate to begin with where none is set: `most`, but less on long paths, which would lose too much of the first round trip.
#[must_use]
pub fn first_rate(most: ByteRate, rtt: Nanos) -> ByteRate {
    let by_path = u128::from(FIRST_BYTES) * 1_000_000_000 / u128::from(rtt.0.max(1));
    u64::try_from(by_path).map_or(most, |rate| most.min(ByteRate(rate)))
}

/// A ceiling in a message that stands for none.
const NO_CEILING: u64 = 0;

/// The state of a monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Counts messages; older ones than the newest seen are ignored.
    pub number: u64,
    /// When it was sent, on the receiver's clock, in microseconds; wraps. Datagrams echo it.
    pub stamp_us: u32,
    /// Rate at most, once one is known.
    pub ceiling: Option<ByteRate>,
    /// Counts requests to suspend.
    pub suspension: u32,
    /// How long the newest of them is to last, in microseconds.
    pub suspend_us: u32,
    /// How long ago it was made when the message left, in microseconds.
    pub age_us: u32,
}

impl Feedback {
    /// Writes the message.
    #[must_use]
    pub fn encode(&self) -> [u8; FEEDBACK_LEN] {
        let mut out = [0; FEEDBACK_LEN];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        let ceiling = self.ceiling.map_or(NO_CEILING, |ceiling| ceiling.0);
        out[8..16].copy_from_slice(&ceiling.to_le_bytes());
        let words = [self.stamp_us, self.suspension, self.suspend_us, self.age_us];
        for (place, word) in out[16..].chunks_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a message; `None` when it has another length.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FEEDBACK_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Some(Self {
            number: long(0),
            ceiling: Some(ByteRate(long(8))).filter(|ceiling| ceiling.0 != NO_CEILING),
            stamp_us: word(16),
            suspension: word(20),
            suspend_us: word(24),
            age_us: word(28),
        })
    }
}

/// The receiver's side: what the monitor wants, as messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    state: Feedback,
    asked_at: Instant,
}

impl Requests {
    /// A new ceiling.
    pub fn set_ceiling(&mut self, ceiling: ByteRate) {
        self.state.ceiling = Some(ceiling);
    }

    /// The newest ceiling.
    #[must_use]
    pub fn ceiling(&self) -> Option<ByteRate> {
        self.state.ceiling
    }

    /// Asks to suspend for a time.
    pub fn suspend(&mut self, interval: Nanos, now: Instant) {
        self.state.suspension = self.state.suspension.wrapping_add(1);
        self.state.suspend_us = u32::try_from(interval.0 / 1000).unwrap_or(u32::MAX);
        self.asked_at = now;
    }

    /// How often it asked to suspend.
    #[must_use]
    pub fn suspensions(&self) -> u32 {
        self.state.suspension
    }

    /// The message to send now.
    pub fn message(&mut self, now: Instant) -> Feedback {
        self.state.number += 1;
        self.state.stamp_us = (now.0 / 1000) as u32;
        let age = now.since(self.asked_at) / 1000;
        self.state.age_us = u32::try_from(age.0).unwrap_or(u32::MAX);
        self.state
    }
}

/// The sender's side: what it may do now.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    // The rate the user set.
    rate: Option<ByteRate>,
    // Before the first word.
    first_rate: ByteRate,
    newest: Option<Feedback>,
    heard_at: Instant,
    suspended_until: Instant,
    suspended: Nanos,
    // Whether silence means anything: without a monitor there are no messages.
    expects: bool,
}

impl Follow {
    /// Keeps below `rate` (`None`: no bound but what the receiver says; `first_rate` until it does). With `expects`, messages are to
    /// arrive; otherwise the rate is kept.
    #[must_use]
    pub fn new(rate: Option<ByteRate>, first_rate: ByteRate, expects: bool, now: Instant) -> Self {
        Self {
            rate,
            first_rate,
            newest: None,
            heard_at: now,
            suspended_until: Instant::ZERO,
            suspended: Nanos::ZERO,
            expects,
        }
    }

    /// Takes a message; `true` when something changed at once.
    pub fn handle(&mut self, feedback: &Feedback, now: Instant) -> bool {
        let before = self.newest.map_or((0, 0, None), |newest| {
            (newest.number, newest.suspension, newest.ceiling)
        });
        if feedback.number <= before.0 {
            return false;
        }
        self.heard_at = now;
        self.newest = Some(*feedback);
        if feedback.suspension == before.1 {
            return feedback.ceiling != before.2;
        }
        // A request that was long on its way has in part, or in whole, been overtaken by time.
        let left_us = feedback.suspend_us.saturating_sub(feedback.age_us);
        let asked = Nanos::from_micros(left_us.into());
        let until = now + asked.min(SUSPEND_TIME_MAX);
        let from = self.suspended_until.max(now);
        self.suspended += until.since(from);
        self.suspended_until = self.suspended_until.max(until);
        true
    }

    /// The stamp to echo; 0 before the first message.
    #[must_use]
    pub fn echo(&self) -> u32 {
        self.newest.map_or(0, |newest| newest.stamp_us)
    }

    /// Until when nothing may be sent, if that is not past.
    #[must_use]
    pub fn suspended_until(&self, now: Instant) -> Option<Instant> {
        (self.suspended_until > now).then_some(self.suspended_until)
    }

    /// Time for which it was suspended in all.
    #[must_use]
    pub fn suspended(&self) -> Nanos {
        self.suspended
    }

    /// The rate to send with now.
    #[must_use]
    pub fn rate(&self, rtt: Nanos, now: Instant) -> ByteRate {
        let ceiling = self.newest.and_then(|newest| newest.ceiling);
        let bounds = [self.rate, ceiling].into_iter().flatten();
        let rate = bounds.min().unwrap_or(self.first_rate);
        let silence = now.since(self.heard_at);
        let patience = SILENCE_TIME + rtt * 2;
        if !self.expects || silence < patience {
            return rate;
        }
        let halvings = 1 + (silence - patience).0 / HALVING_TIME.0;
        ByteRate((rate.0 >> halvings.min(63)).max(rate.0 / SILENT_PART_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn follow(rate: Option<u64>, first_rate: u64, expects: bool) -> Follow {
        let rate = rate.map(ByteRate);
        Follow::new(rate, ByteRate(first_rate), expects, Instant::ZERO)
    }

    /// What was said reads back.
    #[test]
    fn messages_round_trip() {
        let mut requests = Requests::default();
        requests.set_ceiling(ByteRate(77));
        requests.suspend(MS * 20, at(5));
        let message = requests.message(at(9));
        assert_eq!(Feedback::decode(&message.encode()), Some(message));
        assert_eq!((message.suspend_us, message.age_us), (20_000, 4_000));
        assert_eq!(Feedback::decode(&[0; 31]), None);
    }

    /// A suspension repeated in later messages is one suspension; an old message changes nothing; a late one is shortened.
    #[test]
    fn messages_may_be_lost_and_reordered() {
        let mut requests = Requests::default();
        let mut sender = follow(Some(1000), 0, true);
        let first = requests.message(at(0));
        requests.suspend(MS * 20, at(1));
        let lost = requests.message(at(1));
        let repeated = requests.message(at(6));
        let later = requests.message(at(40));
        assert!(sender.handle(&repeated, at(7)), "15 of 20 ms are left");
        assert!(!sender.handle(&lost, at(8)));
        assert!(!sender.handle(&first, at(8)));
        assert_eq!(sender.suspended_until(at(8)), Some(at(22)));
        assert!(!sender.handle(&later, at(41)));
        assert_eq!(sender.suspended_until(at(41)), None);
        assert_eq!(sender.suspended(), MS * 15);
        // Asked for long ago: the time is over.
        requests.suspend(MS * 20, at(50));
        let late = requests.message(at(900));
        assert!(sender.handle(&late, at(901)));
        assert_eq!(sender.suspended_until(at(901)), None);
    }

    /// The ceiling bounds the user's rate; two seconds of silence slow the sender down and do not stop it; a word ends that.
    #[test]
    fn silence_slows_down() {
        let mut sender = follow(Some(800), 100, true);
        assert_eq!(sender.rate(Nanos::ZERO, at(0)), ByteRate(800));
        let mut requests = Requests::default();
        requests.set_ceiling(ByteRate(640));
        sender.handle(&requests.message(at(0)), at(0));
        assert_eq!(sender.rate(Nanos::ZERO, at(900)), ByteRate(640));
        assert_eq!(
            sender.rate(MS * 100, at(1100)),
            ByteRate(640),
            "two round trips more"
        );
        assert_eq!(sender.rate(Nanos::ZERO, at(1100)), ByteRate(320));
        assert_eq!(sender.rate(Nanos::ZERO, at(2100)), ByteRate(160));
        assert_eq!(sender.rate(Nanos::ZERO, at(60_000)), ByteRate(80));
        sender.handle(&requests.message(at(60_000)), at(60_000));
        assert_eq!(sender.rate(Nanos::ZERO, at(60_001)), ByteRate(640));
        assert_eq!(
            follow(None, 100, true).rate(Nanos::ZERO, at(0)),
            ByteRate(100)
        );
        assert_eq!(
            follow(Some(5), 100, false).rate(Nanos::ZERO, at(60_000)),
            ByteRate(5)
        );
    }
}
