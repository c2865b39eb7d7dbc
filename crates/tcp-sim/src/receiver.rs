//! The receiving end of a connection: cumulative acknowledgements, at once or delayed.

use super::events::Moment;

/// What has arrived.
#[derive(Debug)]
pub(super) struct Receiver {
    /// The first number that is missing.
    pub next: u32,
    // One bit for each number.
    arrived: Vec<u64>,
    /// When a delayed acknowledgement is due.
    pub due: Option<Moment>,
}

impl Receiver {
    /// For numbers 0 (the SYN) to `last`.
    pub fn new(last: u32) -> Self {
        Self {
            next: 0,
            arrived: vec![0; last as usize / 64 + 1],
            due: None,
        }
    }

    /// Notes a packet; says whether it was the one that was missing first and is now the last of an unbroken row.
    pub fn take(&mut self, seq: u32) -> bool {
        let is_next = seq == self.next;
        self.arrived[seq as usize / 64] |= 1 << (seq % 64);
        while self
            .arrived
            .get(self.next as usize / 64)
            .is_some_and(|word| word >> (self.next % 64) & 1 == 1)
        {
            self.next += 1;
        }
        is_next && self.next == seq + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gap holds the acknowledgement back until it is filled, then everything counts.
    #[test]
    fn gaps() {
        let mut receiver = Receiver::new(200);
        assert!(receiver.take(0));
        assert!(!receiver.take(2));
        assert!(!receiver.take(2));
        assert_eq!(receiver.next, 1);
        assert!(!receiver.take(1));
        assert_eq!(receiver.next, 3);
        for seq in 3..=200 {
            assert!(receiver.take(seq));
        }
        assert_eq!(receiver.next, 201);
        assert!(!receiver.take(17));
    }
}
