//! How long a node goes on whose master is gone without an order to end.
//!
//! Such a node finishes what it was granted, at most for [`GRACE_TIME`], and ends before where nothing moves any more: its peers are gone,
//! or have what they wanted. A node that writes a copy together with others ends at once: its master may live, and have others finish its
//! part and give the copy its name. So does one that the next transfer to its destination would not see, and so not wait for: it could
//! give older files their names after that one is complete.

use ropewalk_model::{Instant, Nanos};

use super::{Life, Node};

/// Longest time without a master: what is left of a short transfer is done by then, and nothing stays for long after a command that was
/// killed.
pub const GRACE_TIME: Nanos = Nanos::from_secs(30);

/// Longest time in which nothing moves: streams that break are open again before, and a unit of a slow path is through.
pub const STILL_TIME: Nanos = Nanos::from_secs(5);

/// A node without a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    since: Instant,
    moved_at: Instant,
}

impl Grace {
    /// The master is gone.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            moved_at: now,
        }
    }

    /// Bytes were received or sent.
    pub fn handle_moved(&mut self, at: Instant) {
        self.moved_at = self.moved_at.max(at);
    }

    /// When the node ends, unless something moves before; never after the grace.
    #[must_use]
    pub fn over_at(&self) -> Instant {
        (self.since + GRACE_TIME).min(self.moved_at + STILL_TIME)
    }
}

impl Node {
    /// The master is gone, and has not said how the transfer ends. The first call counts.
    pub fn handle_master_gone(&mut self, now: Instant) {
        self.grace.get_or_insert(Grace::new(now));
    }

    /// Another transfer to its destination would not see that this node goes on.
    pub fn handle_unseen(&mut self) {
        self.is_unseen = true;
    }

    /// When what this node receives ends, where its master is gone: at once where it has all that it can get, has failed, writes
    /// together with others, or is not seen by other transfers.
    #[must_use]
    pub fn grace_over_at(&self) -> Option<Instant> {
        let mut grace = self.grace?;
        let is_at_work = match self.life {
            Life::Fetching | Life::Settling | Life::Checking | Life::Renaming => {
                self.duties.renames && self.failure.is_none() && !self.is_unseen
            }
            Life::Preparing | Life::Concluded | Life::Done | Life::Failed | Life::Ended => false,
        };
        if !is_at_work {
            return Some(grace.since);
        }
        // Its disk may be slow where all was received.
        if self.life != Life::Fetching {
            return Some(grace.since + GRACE_TIME);
        }
        grace.handle_moved(self.fetch.watch().last_at());
        Some(grace.over_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(seconds: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(seconds)
    }

    /// As long as something moves a node goes on, and not longer than the grace.
    #[test]
    fn grace_has_an_end() {
        let mut grace = Grace::new(second(100));
        assert_eq!(grace.over_at(), second(105));
        // From before the master was gone.
        grace.handle_moved(second(99));
        assert_eq!(grace.over_at(), second(105));
        for at in [103, 107, 112, 124] {
            grace.handle_moved(second(at));
            assert_eq!(grace.over_at(), second(at + 5));
        }
        grace.handle_moved(second(129));
        assert_eq!(grace.over_at(), second(130));
    }
}
