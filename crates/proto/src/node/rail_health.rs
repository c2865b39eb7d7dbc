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
//! shorter when the kernel has already sent them again twice. A process that stands still is silent, too,
//! while its kernel acknowledges: what comes from a peer is watched for itself. A false alarm costs a few bytes
//! sent twice and a connection.
//!
//! A receiving stream of a transfer sends nothing that could be acknowledged: what it has asked for and not received
//! counts in its place.

/// Silence that fails a rail when the kernel has retransmitted twice: second timeouts fire 0.65 to 0.8 s after a
/// failure, on paths of 20 ms.
const SILENCE_RETRANSMITTED_NS: u64 = 300_000_000;
/// Silence that fails a rail in any case. Longer than a lost last packet and its repeats take.
const SILENCE_NS: u64 = 1_500_000_000;
/// Least time without a byte from the peer that fails a rail: it says something at least every second.
const DEAF_MIN_NS: u64 = 3_000_000_000;
/// Retransmissions in a row that make silence suspicious.
const RETRANSMITS: u8 = 2;
/// First pause before a failed rail is tried again.
const PAUSE_MIN_NS: u64 = 100_000_000;
/// Longest pause: a rail that flaps is tried twelve times a minute, and within the time a peer may be without any.
const PAUSE_MAX_NS: u64 = 5_000_000_000;
/// A rail that stayed up so long does not flap.
const STEADY_NS: u64 = 10_000_000_000;

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
    moved_ns: u64,
    moved: u64,
    heard_ns: u64,
    heard: u64,
}

impl Silence {
    /// Nothing was due before `now_ns`.
    #[must_use]
    pub fn since(now_ns: u64) -> Self {
        Self {
            moved_ns: now_ns,
            moved: 0,
            heard_ns: now_ns,
            heard: 0,
        }
    }

    /// Nothing was due before `now_ns`, whatever was seen.
    pub fn restart(&mut self, now_ns: u64) {
        (self.moved_ns, self.heard_ns) = (now_ns, now_ns);
    }

    /// Whether the connection has to be given up. A kernel acknowledges for a process that stands still: a peer from which
    /// nothing is received for `peer_timeout_ns`, and 3 s at least, is silent, too.
    pub fn is_too_long(&mut self, seen: Seen, peer_timeout_ns: u64, now_ns: u64) -> bool {
        if seen.received != self.heard {
            (self.heard, self.heard_ns) = (seen.received, now_ns);
        } else if now_ns.saturating_sub(self.heard_ns) >= peer_timeout_ns.max(DEAF_MIN_NS) {
            return true;
        }
        if seen.moved != self.moved || !seen.unacknowledged {
            (self.moved, self.moved_ns) = (seen.moved, now_ns);
            return false;
        }
        let silence = now_ns.saturating_sub(self.moved_ns);
        silence >= SILENCE_NS
            || (seen.retransmits >= RETRANSMITS && silence >= SILENCE_RETRANSMITTED_NS)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up { since_ns: u64, silence: Silence },
    // `was_tried`: an attempt since it was last up has failed.
    Down { until_ns: u64, was_tried: bool },
    // `is_changed`: links have changed since the attempt began.
    Probing { is_changed: bool },
}

/// The health of one rail. Timed by the caller's clock, in nanoseconds from any zero.
#[derive(Clone, Debug)]
pub struct RailHealth {
    state: State,
    pause_ns: u64,
}

impl Default for RailHealth {
    fn default() -> Self {
        Self {
            state: State::Down {
                until_ns: 0,
                was_tried: false,
            },
            pause_ns: PAUSE_MIN_NS,
        }
    }
}

impl RailHealth {
    /// The rail has a working link. From any state.
    pub fn connected(&mut self, now_ns: u64) {
        self.state = State::Up {
            since_ns: now_ns,
            silence: Silence::since(now_ns),
        };
    }

    /// Judges a rail that is up by its connection: `true` when it has to be given up. See [`Silence::is_too_long`].
    pub fn is_silent(&mut self, seen: Seen, peer_timeout_ns: u64, now_ns: u64) -> bool {
        match &mut self.state {
            State::Up { silence, .. } => silence.is_too_long(seen, peer_timeout_ns, now_ns),
            State::Down { .. } | State::Probing { .. } => false,
        }
    }

    /// The link broke, or an attempt to make one failed. The pause doubles unless the rail was steady.
    pub fn failed(&mut self, now_ns: u64) {
        match self.state {
            State::Up { since_ns, .. } if now_ns.saturating_sub(since_ns) >= STEADY_NS => {
                self.pause_ns = PAUSE_MIN_NS;
            }
            State::Probing { is_changed: true } => {
                // What failed may have begun before the change.
                self.state = State::Down {
                    until_ns: now_ns.saturating_add(PAUSE_MIN_NS),
                    was_tried: true,
                };
                return;
            }
            State::Up { .. } | State::Probing { .. } => {}
            State::Down { .. } => return,
        }
        self.state = State::Down {
            until_ns: now_ns.saturating_add(self.pause_ns),
            was_tried: matches!(self.state, State::Probing { .. }),
        };
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_MAX_NS);
    }

    /// Whether a failed rail is to be tried now; then it is being tried until [`connected`](Self::connected) or
    /// [`failed`](Self::failed).
    #[must_use]
    pub fn begin_probe(&mut self, now_ns: u64) -> bool {
        let due = self.due_ns().is_some_and(|due_ns| now_ns >= due_ns);
        if due {
            self.state = State::Probing { is_changed: false };
        }
        due
    }

    /// When a failed rail is to be tried; `None` while it is up or is being tried.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        match self.state {
            State::Down { until_ns, .. } => Some(until_ns),
            State::Up { .. } | State::Probing { .. } => None,
        }
    }

    /// Links of this host have changed: what did not answer before may do so now. The first pause after a failure stays,
    /// however much the links change.
    pub fn path_changed(&mut self, now_ns: u64) {
        match &mut self.state {
            State::Down {
                until_ns,
                was_tried: true,
            } => *until_ns = now_ns.min(*until_ns),
            State::Probing { is_changed } => *is_changed = true,
            State::Up { .. } | State::Down { .. } => {}
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

    const MS: u64 = 1_000_000;
    const TIMEOUT: u64 = 10_000 * MS;

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
        health.connected(0);
        let mut is_silent = |seen, ms: u64| health.is_silent(seen, TIMEOUT, ms * MS);
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
        for (timeout, silence) in [(TIMEOUT, TIMEOUT), (0, DEAF_MIN_NS)] {
            let mut health = RailHealth::default();
            health.connected(0);
            assert!(!health.is_silent(seen(1, 1), timeout, 100 * MS));
            assert!(!health.is_silent(seen(2, 1), timeout, 99 * MS + silence));
            assert!(!health.is_silent(seen(3, 2), timeout, 100 * MS + silence));
            assert!(health.is_silent(seen(4, 2), timeout, 100 * MS + 2 * silence));
        }
    }

    /// Each failure doubles the pause up to a limit; a steady rail starts anew.
    #[test]
    fn a_rail_that_flaps_waits_longer() {
        let mut health = RailHealth::default();
        assert!(health.begin_probe(0), "a new rail is tried at once");
        assert!(!health.begin_probe(0), "but once");
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            health.failed(now);
            health.failed(now);
            let from = now;
            while !health.begin_probe(now) {
                now += 10 * MS;
            }
            pauses.push((now - from) / MS);
            health.connected(now);
            assert!(health.is_up());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        now += 11_000 * MS;
        health.failed(now);
        assert!(!health.begin_probe(now + 99 * MS));
        assert!(health.begin_probe(now + 100 * MS), "it was steady before");
    }

    /// What was due only lately is no silence yet.
    #[test]
    fn silence_counts_from_what_is_due() {
        let mut silence = Silence::since(0);
        assert!(!silence.is_too_long(seen(5, 0), u64::MAX, 1_000 * MS));
        silence.restart(9_000 * MS);
        assert!(!silence.is_too_long(seen(5, 0), u64::MAX, 10_000 * MS));
        assert!(silence.is_too_long(seen(5, 0), u64::MAX, 10_500 * MS));
    }

    /// A change of links hurries what did not answer, and not what has just failed.
    #[test]
    fn changed_links_hurry_a_rail_that_was_tried() {
        let mut health = RailHealth::default();
        health.connected(0);
        health.failed(0);
        assert_eq!(health.due_ns(), Some(100 * MS));
        health.path_changed(MS);
        assert_eq!(health.due_ns(), Some(100 * MS));
        assert!(health.begin_probe(100 * MS));
        health.failed(100 * MS);
        assert_eq!(health.due_ns(), Some(300 * MS));
        health.path_changed(110 * MS);
        assert!(health.begin_probe(110 * MS));
        // The attempt may have begun before the link was of use: it is made again soon.
        health.path_changed(120 * MS);
        health.failed(1110 * MS);
        assert_eq!(health.due_ns(), Some(1210 * MS));
    }
}
