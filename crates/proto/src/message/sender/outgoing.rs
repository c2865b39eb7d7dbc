//! One message on its way, and the fragments that rails take of it.

use ropewalk_model::{Range, RangeSet};

use crate::message::RailId;

/// How a message uses the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The best rail alone (below the cut-off).
    Single,
    /// Only this rail while it lives (to measure it).
    On(RailId),
    /// One equal part for each rail (MuniSocket section 2.1).
    Equal,
    /// Small fragments that rails pull (MuniSocket section 4).
    Balanced,
}

/// What a number in the sequence of messages means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A message.
    Bytes,
    /// A message that was given up; the peer goes on with the next.
    Cancelled,
    /// The end of the sequence.
    End,
}

/// What a rail is to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Number of the message.
    pub message: u64,
    /// What the message is.
    pub body: Body,
    /// Bytes of the message.
    pub message_len: u64,
    /// Number of the fragment; [`WHOLE`](crate::message::frame::WHOLE) where the body has none.
    pub fragment: u32,
    /// Bytes of all fragments but the last.
    pub fragment_len: u32,
    /// Bytes of the message to send.
    pub range: Range,
    /// Flags of its DATA frames.
    pub flags: u8,
    /// Whether another rail carries the fragment, too.
    pub duplicate: bool,
}

/// One message: which of its fragments are in which state.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub body: Body,
    /// Position of the first byte in the sequence of all bytes, each message's cost included; credit counts in it.
    pub base: u64,
    pub length: u64,
    pub fragment_len: u32,
    pub spread: Spread,
    /// Rails that [`Spread::Equal`] gives the parts to, in turn.
    pub owners: Vec<RailId>,
    pub flags: u8,
    /// Fragments in no other state; disjoint from `acknowledged`.
    pub ready: RangeSet,
    pub acknowledged: RangeSet,
    /// Nothing of it is ready any more, and what is in transit means nothing.
    pub finished: bool,
}

impl Outgoing {
    pub fn bytes(&self, fragments: Range) -> u64 {
        let at = |fragment: u64| (fragment * u64::from(self.fragment_len)).min(self.length);
        at(fragments.end) - at(fragments.start)
    }

    pub fn ready_bytes(&self) -> u64 {
        self.ready.iter().map(|run| self.bytes(run)).sum()
    }
}
