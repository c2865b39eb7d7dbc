//! Messages over several rails: what is sent where, what arrived, and which size is worth spreading.
//!
//! A **rail** is a pair of addresses with one connection at a time; a connection of a rail is a
//! **link**. Messages are numbered and delivered in order; each is cut into fragments 0 to
//! ceil(M/F)-1, and the sender keeps every fragment in one of three states (MuniSocket section 4):
//!
//! ```text
//!            take                    arrived
//!   ready ---------> in transit ---------------> acknowledged
//!     ^                  |
//!     +------------------+  link failed, or the peer could not use the copy
//! ```
//!
//! * [`Sender`]: rails pull the next fragment when they have space, so a faster one takes more.
//! * [`Receiver`]: duplicates are dropped, order is kept, credit bounds what the application has not asked for.
//! * [`cutoff`]: from which size on several rails are faster than one (section 3).
//! * [`RailHealth`](crate::node::RailHealth): when a rail counts as failed and when it is tried again.
//! * [`frame`]: what crosses a link. Not those of [`wire`](crate::wire): the sender pushes and the receiver acknowledges;
//!   its header has what a message needs and a data space does not.
//!
//! Left out on purpose: sockets, threads, memory of messages and clocks; the `message` crate has them.

pub mod cutoff;
pub mod frame;
mod pace;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{Ack, Arrival, Broken, Front, Landing, Receiver};
pub use sender::{Body, CANCELLED_MAX, Fate, Fragment, Sender, Spread};

/// Position of a rail in the list that both ends share.
pub type RailId = usize;

/// Rails of one socket at most; each has two threads at either end.
pub const RAILS_MAX: usize = 64;

/// Shortest fragment of a message that is cut finer than into one part for each rail: bounds the status vector. Shorter ones are refused.
const FRAGMENT_MIN: u32 = 4 << 10;

/// Messages that a sender may have on their way at once: bounds its status vectors where messages are tiny.
pub const MESSAGES_MAX: usize = 1024;

/// What a message counts for in the credit beside its bytes: its place in the status vectors, and an
/// allocation. Bounds how many empty messages may wait for a receiver.
pub const MESSAGE_COST: u64 = 512;

/// Longest message: 256 TiB. Keeps every sum of lengths within 64 bits.
pub const MESSAGE_MAX: u64 = 1 << 48;
