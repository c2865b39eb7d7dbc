//! What a monitor reports to the sender, and how the sender follows.
//!
//! Every message holds the whole state, so that any may be lost; the newest counts. The same state goes by datagram and, less
//! often, over the reliable stream, so that a path that loses datagrams delays it only.

/// Bytes of a message.
pub const FEEDBACK_LEN: usize = 32;

/// Without a word for this long, and two round trips, the sender begins to slow down: nobody knows what the receiver is doing.
const SILENCE_NS: u64 = 1_000_000_000;

/// While nothing is heard the rate halves each time this passes ...
const HALVING_NS: u64 = 1_000_000_000;

/// ... to this part of the last one: a path that carries no feedback at all still ends its transfer.
const SILENT_PART_MIN: u64 = 8;

/// Longest suspension that a sender obeys: a receiver that needs longer asks again.
const SUSPEND_MAX_NS: u64 = 2_000_000_000;

/// Bytes that may be on their way before the monitor has spoken, where nobody set a rate.
const FIRST_BYTES: u64 = 8 << 20;

/// The rate to begin with where none is set: `most`, but less on long paths, which would lose too much of the first round trip.
#[must_use]
pub fn first_rate(most: u64, rtt_ns: u64) -> u64 {
    let by_path = u128::from(FIRST_BYTES) * 1_000_000_000 / u128::from(rtt_ns.max(1));
    u64::try_from(by_path).map_or(most, |rate| rate.min(most))
}

/// The state of a monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Counts messages; older ones than the newest seen are ignored.
    pub number: u64,
    /// When it was sent, on the receiver's clock, in microseconds; wraps. Datagrams echo it.
    pub stamp_us: u32,
    /// Rate at most, bytes per second; 0 = none is known.
    pub ceiling: u64,
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
        out[8..16].copy_from_slice(&self.ceiling.to_le_bytes());
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
            ceiling: long(8),
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
    asked_ns: u64,
}

impl Requests {
    /// A new ceiling.
    pub fn set_ceiling(&mut self, ceiling: u64) {
        self.state.ceiling = ceiling;
    }

    /// The newest ceiling, 0 for none.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.state.ceiling
    }

    /// Asks to suspend for a time.
    pub fn suspend(&mut self, interval_ns: u64, now_ns: u64) {
        self.state.suspension = self.state.suspension.wrapping_add(1);
        self.state.suspend_us = u32::try_from(interval_ns / 1000).unwrap_or(u32::MAX);
        self.asked_ns = now_ns;
    }

    /// How often it asked to suspend.
    #[must_use]
    pub fn suspensions(&self) -> u32 {
        self.state.suspension
    }

    /// The message to send now.
    pub fn message(&mut self, now_ns: u64) -> Feedback {
        self.state.number += 1;
        self.state.stamp_us = (now_ns / 1000) as u32;
        let age = now_ns.saturating_sub(self.asked_ns) / 1000;
        self.state.age_us = u32::try_from(age).unwrap_or(u32::MAX);
        self.state
    }
}

/// The sender's side: what it may do now.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    // The rate the user set, bytes per second; 0 = none.
    rate: u64,
    // Before the first word.
    first_rate: u64,
    newest: Option<Feedback>,
    heard_ns: u64,
    suspended_until_ns: u64,
    suspended_ns: u64,
    // Whether silence means anything: without a monitor there are no messages.
    expects: bool,
}

impl Follow {
    /// Keeps below `rate` (0: no bound but what the receiver says; `first_rate` until it does). With `expects`, messages are to
    /// come; otherwise the rate is kept.
    #[must_use]
    pub fn new(rate: u64, first_rate: u64, expects: bool, now_ns: u64) -> Self {
        Self {
            rate,
            first_rate,
            newest: None,
            heard_ns: now_ns,
            suspended_until_ns: 0,
            suspended_ns: 0,
            expects,
        }
    }

    /// Takes a message; `true` when something changed at once.
    pub fn handle(&mut self, feedback: &Feedback, now_ns: u64) -> bool {
        let before = self.newest.map_or((0, 0, 0), |newest| {
            (newest.number, newest.suspension, newest.ceiling)
        });
        if feedback.number <= before.0 {
            return false;
        }
        self.heard_ns = now_ns;
        self.newest = Some(*feedback);
        if feedback.suspension == before.1 {
            return feedback.ceiling != before.2;
        }
        // A request that was long on its way has in part, or in whole, been overtaken by time.
        let asked = u64::from(feedback.suspend_us).saturating_sub(feedback.age_us.into()) * 1000;
        let until = now_ns + asked.min(SUSPEND_MAX_NS);
        let from = self.suspended_until_ns.max(now_ns);
        self.suspended_ns += until.saturating_sub(from);
        self.suspended_until_ns = self.suspended_until_ns.max(until);
        true
    }

    /// The stamp to echo; 0 before the first message.
    #[must_use]
    pub fn echo(&self) -> u32 {
        self.newest.map_or(0, |newest| newest.stamp_us)
    }

    /// Until when nothing may be sent, if that is not past.
    #[must_use]
    pub fn suspended_until(&self, now_ns: u64) -> Option<u64> {
        (self.suspended_until_ns > now_ns).then_some(self.suspended_until_ns)
    }

    /// Time for which it was suspended in all.
    #[must_use]
    pub fn suspended_ns(&self) -> u64 {
        self.suspended_ns
    }

    /// Bytes per second to send with now.
    #[must_use]
    pub fn rate(&self, rtt_ns: u64, now_ns: u64) -> u64 {
        let ceiling = self.newest.map_or(0, |newest| newest.ceiling);
        let rate = match (self.rate, ceiling) {
            (0, 0) => self.first_rate,
            (0, ceiling) => ceiling,
            (rate, 0) => rate,
            (rate, ceiling) => rate.min(ceiling),
        };
        let silence = now_ns.saturating_sub(self.heard_ns);
        let patience = SILENCE_NS + 2 * rtt_ns;
        if !self.expects || silence < patience {
            return rate;
        }
        let halvings = 1 + (silence - patience) / HALVING_NS;
        (rate >> halvings.min(63)).max(rate / SILENT_PART_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What was said reads back.
    #[test]
    fn messages_round_trip() {
        let mut requests = Requests::default();
        requests.set_ceiling(77);
        requests.suspend(20 * MS, 5 * MS);
        let message = requests.message(9 * MS);
        assert_eq!(Feedback::decode(&message.encode()), Some(message));
        assert_eq!((message.suspend_us, message.age_us), (20_000, 4_000));
        assert_eq!(Feedback::decode(&[0; 31]), None);
    }

    /// A suspension repeated in later messages is one suspension; an old message changes nothing; a late one is shortened.
    #[test]
    fn messages_may_be_lost_and_reordered() {
        let mut requests = Requests::default();
        let mut follow = Follow::new(1000, 0, true, 0);
        let first = requests.message(0);
        requests.suspend(20 * MS, MS);
        let lost = requests.message(MS);
        let repeated = requests.message(6 * MS);
        let later = requests.message(40 * MS);
        assert!(follow.handle(&repeated, 7 * MS), "15 of 20 ms are left");
        assert!(!follow.handle(&lost, 8 * MS));
        assert!(!follow.handle(&first, 8 * MS));
        assert_eq!(follow.suspended_until(8 * MS), Some(22 * MS));
        assert!(!follow.handle(&later, 41 * MS));
        assert_eq!(follow.suspended_until(41 * MS), None);
        assert_eq!(follow.suspended_ns(), 15 * MS);
        // Asked for long ago: the time is over.
        requests.suspend(20 * MS, 50 * MS);
        let late = requests.message(900 * MS);
        assert!(follow.handle(&late, 901 * MS));
        assert_eq!(follow.suspended_until(901 * MS), None);
    }

    /// The ceiling bounds the user's rate; two seconds of silence slow the sender down and do not stop it; a word ends that.
    #[test]
    fn silence_slows_down() {
        let mut follow = Follow::new(800, 100, true, 0);
        assert_eq!(follow.rate(0, 0), 800);
        let mut requests = Requests::default();
        requests.set_ceiling(640);
        follow.handle(&requests.message(0), 0);
        assert_eq!(follow.rate(0, 900 * MS), 640);
        assert_eq!(
            follow.rate(100 * MS, 1100 * MS),
            640,
            "two round trips more"
        );
        assert_eq!(follow.rate(0, 1100 * MS), 320);
        assert_eq!(follow.rate(0, 2100 * MS), 160);
        assert_eq!(follow.rate(0, 60_000 * MS), 80);
        follow.handle(&requests.message(60_000 * MS), 60_000 * MS);
        assert_eq!(follow.rate(0, 60_001 * MS), 640);
        assert_eq!(Follow::new(0, 100, true, 0).rate(0, 0), 100);
        assert_eq!(Follow::new(5, 100, false, 0).rate(0, 60_000 * MS), 5);
    }
}
