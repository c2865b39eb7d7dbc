//! What happens next: a heap of pending events in order of time, then of scheduling.
//!
//! A link delivers in order, so it has one pending delivery at most, whatever is on its way; a connection has one pending
//! timer. The heap's size is links + connections, not packets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// When something happens, and its place among what happens at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    // Bits of a time that is not negative: their order is that of the times.
    bits: u64,
    number: u64,
}

impl Moment {
    pub const START: Self = Self { bits: 0, number: 0 };

    pub fn seconds(self) -> f64 {
        f64::from_bits(self.bits)
    }
}

/// What can be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The first packet on its way over this link is at the other end.
    Deliver(u32),
    /// This link has sent a packet and others wait.
    TransmissionEnds(u32),
    /// This connection begins.
    Start(u32),
    /// This connection's retransmission timer may be due.
    Retransmit(u32),
    /// This receiver's delayed acknowledgement may be due.
    Acknowledge(u32),
    /// Traces take a sample.
    Sample,
}

/// The pending events and the numbering.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Moment, What)>>,
    numbers: u64,
}

impl Events {
    /// The moment `seconds`, after everything that was numbered before for the same time.
    pub fn moment(&mut self, seconds: f64) -> Moment {
        debug_assert!(seconds >= 0.0, "time {seconds} before the start");
        self.numbers += 1;
        Moment {
            bits: seconds.to_bits(),
            number: self.numbers,
        }
    }

    pub fn push(&mut self, at: Moment, what: What) {
        self.heap.push(Reverse((at, what)));
    }

    /// The next event, left in its place.
    pub fn next(&self) -> Option<(Moment, What)> {
        self.heap.peek().map(|Reverse(event)| *event)
    }

    /// Puts the next event off to a later moment: cheaper than taking it out and pushing another.
    pub fn put_off(&mut self, until: Moment) {
        if let Some(mut next) = self.heap.peek_mut() {
            next.0.0 = until;
        }
    }

    /// Takes the next event out.
    pub fn drop_next(&mut self) {
        if let Some(next) = self.heap.peek_mut() {
            PeekMut::pop(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time first, then the order of numbering, also where an event was put off.
    #[test]
    fn order_of_equal_times() {
        let mut events = Events::default();
        let early = events.moment(1.0);
        let first = events.moment(2.0);
        let second = events.moment(2.0);
        events.push(second, What::Deliver(2));
        events.push(early, What::Deliver(1));
        events.put_off(first);
        assert_eq!(events.next().map(|e| e.1), Some(What::Deliver(1)));
        events.drop_next();
        assert_eq!(events.next().map(|e| e.1), Some(What::Deliver(2)));
        events.drop_next();
        assert!(events.next().is_none());
    }
}
