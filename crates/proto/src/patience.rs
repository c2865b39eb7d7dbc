//! How long a transfer waits for nodes that it cannot go on without, and when it tries to reach them. Pure.
//!
//! ```text
//!  a round ends, nodes are gone ─▶ waits ──pause over──▶ the driver tries to reach them ──all are back──▶ the next round
//!                                    ▲                                │
//!                                    └────── longer pause ────────────┘ not reached, or the next round lost them again
//! ```
//!
//! The time counts from the last progress: a round that made further bytes safe begins it again, and so a transfer over a host that
//! goes away each hour ends some day. One whose node returns and is lost again before it has moved anything does not go on for ever.
//! A transfer that has moved nothing yet waits only where its user asks for it: most often a name is wrong.

use ropewalk_model::{Instant, Nanos};

/// Pause before the first attempt; each further one is twice as long. A started agent is back at once.
pub const PAUSE_MIN: Nanos = Nanos::from_secs(1);

/// Longest pause: a host that is back is not left alone for long.
pub const PAUSE_MAX: Nanos = Nanos::from_secs(15);

/// What the user allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest time without progress; `None`: no end.
    pub most: Option<Nanos>,
    /// Whether it also waits before anything has moved.
    pub at_start: bool,
}

/// The patience of one transfer.
#[derive(Clone, Debug)]
pub struct Patience {
    settings: Settings,
    has_begun: bool,
    // Most bytes that were safe at the end of a round.
    safe_bytes: u64,
    // When nodes were missed first, after the last progress.
    since: Option<Instant>,
    pause: Nanos,
}

impl Patience {
    /// The patience of a transfer that is about to begin.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            has_begun: false,
            safe_bytes: 0,
            since: None,
            pause: PAUSE_MIN,
        }
    }

    /// A round has ended because nodes are gone, or they were not reached. When to try to reach them; `None`: no more.
    ///
    /// * `has_moved`: bytes have begun to move in that round.
    /// * `safe_bytes`: at destinations then, those of earlier rounds included; 0 where that is not known.
    pub fn handle_gone(
        &mut self,
        has_moved: bool,
        safe_bytes: u64,
        now: Instant,
    ) -> Option<Instant> {
        self.has_begun |= has_moved;
        if !self.has_begun && !self.settings.at_start {
            return None;
        }
        if safe_bytes > self.safe_bytes {
            self.safe_bytes = safe_bytes;
            self.since = None;
            self.pause = PAUSE_MIN;
        }
        self.since.get_or_insert(now);
        let next = now + self.pause;
        let next = match self.over_at() {
            Some(over) if now >= over => return None,
            // The last attempt is at the end.
            Some(over) => next.min(over),
            None => next,
        };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Some(next)
    }

    /// When it waits no longer; `None` where it does not wait, or without end.
    #[must_use]
    pub fn over_at(&self) -> Option<Instant> {
        Some(self.since? + self.settings.most?)
    }

    /// Longest time without progress; `None`: no end.
    #[must_use]
    pub fn most(&self) -> Option<Nanos> {
        self.settings.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience(most: Option<u64>, at_start: bool) -> Patience {
        Patience::new(Settings {
            most: most.map(Nanos::from_secs),
            at_start,
        })
    }

    fn second(seconds: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(seconds)
    }

    /// Attempts of a transfer whose nodes are never reached again, each of which takes no time, in seconds.
    fn attempts(patience: &mut Patience, has_moved: bool, first: u64) -> Vec<u64> {
        let mut now = second(first);
        let mut found = Vec::new();
        let mut safe_bytes = 10;
        while let Some(next) = patience.handle_gone(has_moved, safe_bytes, now) {
            assert!(next > now, "time passes");
            found.push(next.since(Instant::ZERO).whole_seconds());
            now = next;
            safe_bytes = 0;
            if found.len() > 99 {
                break;
            }
        }
        found
    }

    /// Pauses grow, the last attempt is at the end, and then it is over.
    #[test]
    fn pauses_grow_to_the_end() {
        let mut minute = patience(Some(60), false);
        assert_eq!(
            attempts(&mut minute, true, 100),
            [101, 103, 107, 115, 130, 145, 160]
        );
        let mut short = patience(Some(2), false);
        assert_eq!(attempts(&mut short, true, 0), [1, 2]);
        assert_eq!(attempts(&mut patience(Some(0), false), true, 5), [0; 0]);
        assert_eq!(attempts(&mut patience(Some(0), true), false, 5), [0; 0]);
        assert_eq!(attempts(&mut patience(None, false), true, 5).len(), 100);
    }

    /// Before anything has moved it waits where that is asked for, and after that in any case.
    #[test]
    fn the_beginning_is_not_waited_for() {
        let mut usual = patience(Some(60), false);
        assert_eq!(usual.handle_gone(false, 0, second(1)), None);
        assert_eq!(usual.handle_gone(true, 0, second(2)), Some(second(3)));
        // A later round may end before anything has moved.
        assert_eq!(usual.handle_gone(false, 0, second(4)), Some(second(6)));
        let mut asked = patience(Some(60), true);
        assert_eq!(asked.handle_gone(false, 0, second(1)), Some(second(2)));
    }

    /// A round that makes further bytes safe begins the time again; one that only finds them does not.
    #[test]
    fn progress_begins_it_again() {
        let mut patience = patience(Some(20), false);
        let mut now = 0;
        for round in 1..=10 {
            let next = patience.handle_gone(true, round * 100, second(now));
            assert_eq!(next, Some(second(now + 1)));
            assert_eq!(patience.over_at(), Some(second(now + 20)));
            now += 1000;
        }
        let last = now - 1000;
        assert_eq!(
            patience.handle_gone(true, 1000, second(last + 10)),
            Some(second(last + 12))
        );
        assert_eq!(patience.handle_gone(true, 1000, second(last + 20)), None);
    }
}
