//! When a rail counts as failed, and when it is tried again: of transfers and of message sockets.
//!
//! ```text
//!          silent, or broken                pause over
//!    up ---------------------> down ------------------> probing
//!     ^                         ^                          |
//!     |                         +------ refused -----------+
//!     +------------------ connected ------------------------+
//! ```
//!
//! A kernel reports most failures late or never: an own interface that goes down is silence, too. So
//! a rail is taken for dead when bytes are unacknowledged and nothing moved for a while; the time is
//! shorter when the kernel has already sent them again twice. A process that is stopped is silent, too,
//! while its kernel acknowledges: what is received from a peer is watched for itself. A false alarm costs a few bytes
//! sent twice and a connection.
//!
//! A receiving stream of a transfer sends nothing that could be acknowledged: what it has asked for and not received
//! counts in its place.

use ropewalk_model::{Instant, Nanos};

/// Silence that fails a rail when the kernel has retransmitted twice: second timeouts fire 0.65 to 0.8 s after a
/// failure, on paths of 20 ms.
const SILENCE_RETRANSMITTED_TIME: Nanos = Nanos::from_millis(300);
/// Silence that fails a rail in any case. Longer than a lost last packet and its repeats take.
const SILENCE_TIME: Nanos = Nanos::from_millis(1500);
/// Least time without a byte from the peer that fails a rail: it says something at least every second.
const DEAF_TIME_MIN: Nanos = Nanos::from_secs(3);
/// Retransmissions in a row that make silence suspicious.
const RETRANSMITS: u8 = 2;
/// First pause before a failed rail is tried again.
const PAUSE_TIME_MIN: Nanos = Nanos::from_millis(100);
/// Longest pause: a rail that flaps is tried twelve times a minute, and within the time a peer may be without any.
const PAUSE_TIME_MAX: Nanos = Nanos::from_secs(5);
/// Longest pause while no other rail works either.
const PAUSE_TIME_ALONE: Nanos = Nanos::from_secs(1);
/// A rail that stayed up so long does not flap.
const STEADY_TIME: Nanos = Nanos::from_secs(10);

/// What is seen of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes received, plus own bytes that the other kernel has acknowledged: grows while the path works.
    pub moved: u64,
    /// Bytes received, of those.
    pub received: u64,
    /// Whether own bytes are unacknowledged, or the peer owes something.
    pub unacknowledged: bool,
    /// Retransmissions of the oldest of them.
    pub retransmits: u8,
}

/// How long nothing has moved on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    moved_at: Instant,
    moved: u64,
    heard_at: Instant,
    heard: u64,
}

impl Silence {
    /// Nothing was due before `now`.
    #[must_use]
    pub fn since(now: Instant) -> Self {
        Self {
            moved_at: now,
            moved: 0,
            heard_at: now,
            heard: 0,
        }
    }

    /// Nothing was due before `now`, whatever was seen.
    pub fn restart(&mut self, now: Instant) {
        (self.moved_at, self.heard_at) = (now, now);
    }

    /// Whether the connection has to be given up. A kernel acknowledges for a process that is stopped: a peer from which
    /// nothing is received for `peer_timeout`, and 3 s at least, is silent, too.
    pub fn is_too_long(&mut self, seen: Seen, peer_timeout: Nanos, now: Instant) -> bool {
        if seen.received != self.heard {
            (self.heard, self.heard_at) = (seen.received, now);
        } else if now.since(self.heard_at) >= peer_timeout.max(DEAF_TIME_MIN) {
            return true;
        }
        if seen.moved != self.moved || !seen.unacknowledged {
            (self.moved, self.moved_at) = (seen.moved, now);
            return false;
        }
        let silence = now.since(self.moved_at);
        silence >= SILENCE_TIME
            || (seen.retransmits >= RETRANSMITS && silence >= SILENCE_RETRANSMITTED_TIME)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up { since: Instant, silence: Silence },
    // `was_tried`: an attempt since it was last up has failed.
    Down { until: Instant, was_tried: bool },
    // `is_changed`: links have changed since the attempt began.
    Probing { is_changed: bool },
}

/// The health of one rail, timed by the caller's clock.
#[derive(Clone, Debug)]
pub struct RailHealth {
    state: State,
    pause: Nanos,
}

impl Default for RailHealth {
    fn default() -> Self {
        Self {
            state: State::Down {
                until: Instant::ZERO,
                was_tried: false,
            },
            pause: PAUSE_TIME_MIN,
        }
    }
}

impl RailHealth {
    /// The rail has a working link. From any state.
    pub fn connected(&mut self, now: Instant) {
        self.state = State::Up {
            since: now,
            silence: Silence::since(now),
        };
    }

    /// Judges a rail that is up by its connection: `true` when it has to be given up. See [`Silence::is_too_long`].
    pub fn is_silent(&mut self, seen: Seen, peer_timeout: Nanos, now: Instant) -> bool {
        match &mut self.state {
            State::Up { silence, .. } => silence.is_too_long(seen, peer_timeout, now),
            State::Down { .. } | State::Probing { .. } => false,
        }
    }

    /// The link broke, or an attempt to make one failed. The pause doubles unless the rail was steady.
    pub fn failed(&mut self, now: Instant) {
        match self.state {
            State::Up { since, .. } if now.since(since) >= STEADY_TIME => {
                self.pause = PAUSE_TIME_MIN;
            }
            State::Probing { is_changed: true } => {
                // What failed may have begun before the change.
                self.state = State::Down {
                    until: now + PAUSE_TIME_MIN,
                    was_tried: true,
                };
                return;
            }
            State::Up { .. } | State::Probing { .. } => {}
            State::Down { .. } => return,
        }
        self.state = State::Down {
            until: now + self.pause,
            was_tried: matches!(self.state, State::Probing { .. }),
        };
        self.pause = (self.pause * 2).min(PAUSE_TIME_MAX);
    }

    /// Whether a failed rail is to be tried now; then it is being tried until [`connected`](Self::connected) or
    /// [`failed`](Self::failed).
    #[must_use]
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        let due = self.due_at().is_some_and(|due| now >= due);
        if due {
            self.state = State::Probing { is_changed: false };
        }
        due
    }

    /// When a failed rail is to be tried; `None` while it is up or is being tried.
    #[must_use]
    pub fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::Down { until, .. } => Some(until),
            State::Up { .. } | State::Probing { .. } => None,
        }
    }

    /// Links of this host have changed: what did not answer before may do so now. The first pause after a failure stays,
    /// however much the links change.
    pub fn path_changed(&mut self, now: Instant) {
        match &mut self.state {
            State::Down {
                until,
                was_tried: true,
            } => *until = now.min(*until),
            State::Probing { is_changed } => *is_changed = true,
            State::Up { .. } | State::Down { .. } => {}
        }
    }

    /// No rail works: this one is tried within a second, however long its pause is.
    pub fn hurry(&mut self, now: Instant) {
        if let State::Down { until, .. } = &mut self.state {
            *until = (*until).min(now + PAUSE_TIME_ALONE);
        }
    }

    /// Whether the rail has a working link.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Nanos = Nanos::from_secs(10);
    const MS: Nanos = Nanos::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn seen(moved: u64, retransmits: u8) -> Seen {
        Seen {
            moved,
            received: moved,
            unacknowledged: true,
            retransmits,
        }
    }

    /// Silence counts only while bytes are unacknowledged, and sooner after retransmissions.
    #[test]
    fn silence_fails_a_rail() {
        let mut health = RailHealth::default();
        health.connected(Instant::ZERO);
        let mut is_silent = |seen, ms: u64| health.is_silent(seen, TIMEOUT, at(ms));
        let idle = Seen {
            unacknowledged: false,
            ..seen(5, 0)
        };
        assert!(!is_silent(idle, 9_000), "idle is not silent");
        assert!(!is_silent(seen(6, 0), 9_001));
        assert!(!is_silent(seen(6, 2), 9_200));
        assert!(is_silent(seen(6, 2), 9_301));
        assert!(!is_silent(seen(7, 2), 9_302), "it moved after all");
        assert!(!is_silent(seen(7, 1), 10_000));
        assert!(is_silent(seen(7, 1), 10_802));
    }

    /// A peer from which nothing comes is silent, however much its kernel acknowledges.
    #[test]
    fn a_peer_that_stands_still_is_silent() {
        let seen = |moved, received| Seen {
            moved,
            received,
            unacknowledged: false,
            retransmits: 0,
        };
        for (timeout, silence) in [(TIMEOUT, TIMEOUT), (Nanos::ZERO, DEAF_TIME_MIN)] {
            let mut health = RailHealth::default();
            health.connected(Instant::ZERO);
            assert!(!health.is_silent(seen(1, 1), timeout, at(100)));
            assert!(!health.is_silent(seen(2, 1), timeout, at(99) + silence));
            assert!(!health.is_silent(seen(3, 2), timeout, at(100) + silence));
            assert!(health.is_silent(seen(4, 2), timeout, at(100) + silence * 2));
        }
    }

    /// Each failure doubles the pause up to a limit; a steady rail starts anew.
    #[test]
    fn a_rail_that_flaps_waits_longer() {
        let mut health = RailHealth::default();
        assert!(
            health.begin_probe(Instant::ZERO),
            "a new rail is tried at once"
        );
        assert!(!health.begin_probe(Instant::ZERO), "but once");
        let mut now = Instant::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            health.failed(now);
            health.failed(now);
            let from = now;
            while !health.begin_probe(now) {
                now += MS * 10;
            }
            pauses.push(now.since(from));
            health.connected(now);
            assert!(health.is_up());
        }
        let expected = [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000];
        assert_eq!(pauses, expected.map(Nanos::from_millis));
        now += MS * 11_000;
        health.failed(now);
        assert!(!health.begin_probe(now + MS * 99));
        assert!(health.begin_probe(now + MS * 100), "it was steady before");
    }

    /// A rail that flaps is tried sooner while there is no other.
    #[test]
    fn a_rail_that_is_alone_is_hurried() {
        let mut health = RailHealth::default();
        let mut now = Instant::ZERO;
        for _ in 0..9 {
            health.connected(now);
            health.failed(now);
            now += PAUSE_TIME_MAX;
            assert!(health.begin_probe(now));
        }
        health.failed(now);
        assert_eq!(health.due_at(), Some(now + PAUSE_TIME_MAX));
        health.hurry(now);
        assert_eq!(health.due_at(), Some(now + PAUSE_TIME_ALONE));
        health.hurry(now + MS);
        assert_eq!(health.due_at(), Some(now + PAUSE_TIME_ALONE), "not put off");
    }

    /// What was due only lately is no silence yet.
    #[test]
    fn silence_counts_from_what_is_due() {
        let mut silence = Silence::since(Instant::ZERO);
        assert!(!silence.is_too_long(seen(5, 0), Nanos(u64::MAX), at(1_000)));
        silence.restart(at(9_000));
        assert!(!silence.is_too_long(seen(5, 0), Nanos(u64::MAX), at(10_000)));
        assert!(silence.is_too_long(seen(5, 0), Nanos(u64::MAX), at(10_500)));
    }

    /// A change of links hurries what did not answer, and not what has just failed.
    #[test]
    fn changed_links_hurry_a_rail_that_was_tried() {
        let mut health = RailHealth::default();
        health.connected(Instant::ZERO);
        health.failed(Instant::ZERO);
        assert_eq!(health.due_at(), Some(at(100)));
        health.path_changed(at(1));
        assert_eq!(health.due_at(), Some(at(100)));
        assert!(health.begin_probe(at(100)));
        health.failed(at(100));
        assert_eq!(health.due_at(), Some(at(300)));
        health.path_changed(at(110));
        assert!(health.begin_probe(at(110)));
        // The attempt may have begun before the link was of use: it is made again soon.
        health.path_changed(at(120));
        health.failed(at(1110));
        assert_eq!(health.due_at(), Some(at(1210)));
    }
}
