//! Messages that were given up: what their callers may still ask about.

use ropewalk_model::{Range, RangeSet};

use crate::message::MESSAGES_MAX;

/// Runs of numbers that are remembered: all that can be on their way, and three times as many for callers that ask late. 64 KiB.
pub const CANCELLED_MAX: usize = 4 * MESSAGES_MAX;

/// The last runs of numbers.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    numbers: RangeSet,
    /// Of what is below nothing is known any more. Never on its way: that many runs are above.
    forgotten_below: u64,
}

impl Cancelled {
    pub fn insert(&mut self, message: u64) {
        self.numbers.insert(Range::new(message, message + 1));
        if self.numbers.as_slice().len() > CANCELLED_MAX
            && let Some(oldest) = self.numbers.first()
        {
            self.numbers.remove(oldest);
            self.forgotten_below = oldest.end;
        }
    }

    pub fn contains(&self, message: u64) -> bool {
        self.numbers.contains(message)
    }

    pub fn is_forgotten(&self, message: u64) -> bool {
        message < self.forgotten_below
    }

    #[cfg(test)]
    pub fn runs(&self) -> usize {
        self.numbers.as_slice().len()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Instant;

    use super::*;
    use crate::message::{Fate, Sender, Spread};

    /// However many are given up, a bounded number is remembered: those on their way, and the last that were. Of the rest
    /// nobody is told that they arrived.
    #[test]
    fn what_was_given_up_is_forgotten_in_time() {
        let mut sender = Sender::new(1, u64::MAX);
        sender.rail_up(0);
        let many = 3 * CANCELLED_MAX as u64;
        for message in 0..many {
            assert_eq!(sender.start(1, Spread::Single, 0), Some(message));
            if message % 2 == 0 {
                sender.cancel(message);
                assert_eq!(sender.fate(message), Fate::Cancelled);
            } else {
                assert_eq!(sender.fate(message), Fate::OnItsWay);
            }
            // Half of what may be on its way is.
            let behind = (MESSAGES_MAX / 2) as u64;
            assert!(sender.done_below(message.saturating_sub(behind), Instant::ZERO));
            assert!(sender.cancelled.runs() <= CANCELLED_MAX);
        }
        assert!(sender.done_below(many, Instant::ZERO));
        let fates = [Fate::Cancelled, Fate::Arrived];
        let first_known = many - 2 * CANCELLED_MAX as u64;
        for message in first_known..many {
            let fate = sender.fate(message);
            assert_eq!(fate, fates[(message % 2) as usize], "{message}");
        }
        assert_eq!(sender.fate(0), Fate::Forgotten);
        assert_eq!(sender.fate(first_known - 2), Fate::Forgotten);
    }

    /// Messages given up in a row take no more than one, and nothing is forgotten for them.
    #[test]
    fn rows_are_remembered_whole() {
        let mut sender = Sender::new(1, u64::MAX);
        sender.rail_up(0);
        for message in 0..3 * CANCELLED_MAX as u64 {
            assert_eq!(sender.start(1, Spread::Single, 0), Some(message));
            if message > 0 {
                sender.cancel(message);
            }
            assert!(sender.done_below(message, Instant::ZERO));
        }
        assert_eq!(sender.cancelled.runs(), 1);
        assert_eq!(sender.fate(0), Fate::Arrived);
        assert_eq!(sender.fate(1), Fate::Cancelled);
    }
}
