//! Whether this node may still change what other nodes write, too.
//!
//! A node that is not heard of for [`SILENCE_TIME_MAX`](crate::coordinator::SILENCE_TIME_MAX) is lost: others write its part of a shared copy, give it its name, and the
//! transfer ends. One that was stopped, or cut off, meanwhile goes on when it wakes, with units that were on their way. So
//! the master says every few seconds how long it will count the node at least, and the node writes until then.
//!
//! A clock that stood still (a virtual machine that was paused) changes the difference. Two messages in a row that are as far apart when
//! received as they were when sent, later by far than the difference says, give a new one: a burst out of a buffer never looks so.
//!
//! The master's clock is another one. What a message was late at least, in the last minute of that clock, is the difference of both. A message
//! that was long under way, or lay in a buffer while the node was stopped, extends nothing.

use ropewalk_model::{Instant, Nanos};

use crate::control;

/// How long a node may write after the master has heard of it. Well below the time after which it is lost.
pub const PERMIT_TIME: Nanos = Nanos::from_secs(10);

/// Time between two messages to a node. Some may be late.
pub const PERMIT_EVERY: Nanos = Nanos::from_secs(3);

/// The difference of the clocks is that of messages of this time and of as long before: clocks drift.
const WINDOW_TIME: Nanos = Nanos::from_secs(60);

/// So much later than the difference of the clocks says messages are rarely.
const LATE_TIME: Nanos = Nanos::from_secs(5);

/// So many of them in a row that are regular are not late: the clocks have another difference.
const REGULAR: u32 = 3;

/// What the master has said last.
#[derive(Clone, Copy, Debug)]
pub struct Permit {
    // Number of the window, the least difference in it, and in the one before.
    window: u64,
    least: i128,
    before: Option<i128>,
    until: Instant,
    // The last message, when it was received, and how many in a row were regular and late.
    last: (u64, Instant),
    late: u32,
}

impl Permit {
    /// As the plan says.
    #[must_use]
    pub fn new(said: &control::Permit, now: Instant) -> Self {
        let mut permit = Self {
            window: said.at / WINDOW_TIME.0,
            least: difference(said, now),
            before: None,
            until: Instant::ZERO,
            last: (said.at, now),
            late: 0,
        };
        permit.extend(said, now);
        permit
    }

    /// A further message.
    pub fn extend(&mut self, said: &control::Permit, now: Instant) {
        let found = difference(said, now);
        let window = said.at / WINDOW_TIME.0;
        if window > self.window {
            self.before = Some(self.least);
            (self.window, self.least) = (window, found);
        }
        let (sent_before, received_before) = std::mem::replace(&mut self.last, (said.at, now));
        let apart = said.at.saturating_sub(sent_before);
        let is_regular = apart > 0 && now.since(received_before).0 >= apart / 2;
        let known = self
            .before
            .map_or(self.least, |before| before.min(self.least));
        let is_late = found > known + i128::from(LATE_TIME.0);
        self.late = if is_regular && is_late {
            self.late + 1
        } else {
            0
        };
        if self.late >= REGULAR {
            (self.least, self.before, self.late) = (found, None, 0);
        }
        self.least = self.least.min(found);
        let difference = self
            .before
            .map_or(self.least, |before| before.min(self.least));
        let end = i128::from(said.at.saturating_add(said.left)) + difference;
        let end = u64::try_from(end.max(0)).unwrap_or(u64::MAX);
        self.until = self.until.max(Instant(end));
    }

    /// Whether the node may write now.
    #[must_use]
    pub fn holds(&self, now: Instant) -> bool {
        now <= self.until
    }
}

fn difference(said: &control::Permit, now: Instant) -> i128 {
    i128::from(now.0) - i128::from(said.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Seconds of the master's clock.
    fn said(at: u64) -> control::Permit {
        control::Permit {
            at: at * SECOND,
            left: PERMIT_TIME.0,
        }
    }

    fn at(second: u64) -> Instant {
        Instant(second * SECOND)
    }

    /// Messages that come in time extend it; without further ones it ends, on whichever clock.
    #[test]
    fn it_ends_without_messages() {
        for ahead in [0, 1000] {
            let mut permit = Permit::new(&said(5), at(5 + ahead));
            for second in (8..=200).step_by(3) {
                permit.extend(&said(second), at(second + ahead));
                assert!(permit.holds(at(second + 3 + ahead)));
            }
            assert!(permit.holds(at(200 + 9 + ahead)));
            assert!(!permit.holds(at(200 + 13 + ahead)));
        }
    }

    /// What lay in a buffer while the node was stopped, for however long, extends nothing.
    #[test]
    fn late_messages_extend_nothing() {
        for stopped in [15, 59, 61, 1000] {
            let mut permit = Permit::new(&said(1), at(101));
            for second in (4..=100).step_by(3) {
                permit.extend(&said(second), at(second + 100));
            }
            // The master does not hear of it meanwhile, and says so.
            let woken = at(200 + stopped);
            for second in (103..=109).step_by(3) {
                let left = PERMIT_TIME.0 - (second - 100) * SECOND;
                let said = control::Permit {
                    left,
                    ..said(second)
                };
                permit.extend(&said, woken);
                assert!(!permit.holds(woken), "{stopped} {second}");
            }
        }
    }

    /// A clock that runs faster than the master's does not end it in time.
    #[test]
    fn clocks_may_drift() {
        let mut permit = Permit::new(&said(0), Instant::ZERO);
        for second in (3..=200_000).step_by(3) {
            // 200 in a million.
            let now = Instant(second * SECOND + second * (SECOND / 5000));
            assert!(permit.holds(now), "{second}");
            permit.extend(&said(second), now);
        }
    }

    /// The master's clock stood still for a minute: after a few messages there are permits again.
    #[test]
    fn clocks_may_stand_still() {
        let mut permit = Permit::new(&said(0), Instant::ZERO);
        for second in (3..=60).step_by(3) {
            permit.extend(&said(second), at(second));
        }
        let mut held = Vec::new();
        for second in (63..=90).step_by(3) {
            permit.extend(&said(second), at(second + 60));
            held.push(permit.holds(at(second + 60)));
        }
        assert!(
            !held[0] && held[REGULAR as usize..].iter().all(|held| *held),
            "{held:?}"
        );
    }

    /// Any numbers are read.
    #[test]
    fn any_numbers_are_read() {
        for (sent_at, left) in [(u64::MAX, u64::MAX), (0, 0), (u64::MAX, 0), (0, u64::MAX)] {
            let said = control::Permit { at: sent_at, left };
            let mut permit = Permit::new(&said, at(3));
            permit.extend(&said, at(1));
            let _ = permit.holds(at(9));
        }
    }
}
