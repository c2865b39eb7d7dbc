//! A sender, a path and a receiver whose processor is shared with loops: what RBUDP and RAPID meet (papers' Figures 1, 2 and 8).
//!
//! Today's kernels have none of the schedulers that the paper watched, so they are here: the active and expired arrays of
//! Linux 2.6, the current and next queues of ULE, and the fair shares of EEVDF to compare with. The monitors and the
//! sender's way of following them are the shipping ones.
//!
//! ```text
//!  sender ──rate, suspensions──▶ path (round trip / 2, rate) ──▶ buffer ──▶ receiver on a shared processor
//!     ▲                                                                        │
//!     └─────────────── Follow ◀── round trip / 2 ◀── Requests ◀── Monitor ◀────┘ every 2 ms
//! ```
//!
//! **Fluid**, in steps of 100 microseconds: bytes have no borders. What does not fit the buffer is lost and sent again in the
//! next round, a round trip after the end of the last. Deterministic.

#![forbid(unsafe_code)]

mod processor;
#[cfg(test)]
mod tests;
mod transfer;

pub use processor::{Fair, Linux26Arrays, Processor, Task, UleQueues};
pub use transfer::{Outcome, Transfer};

/// A millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// A second in nanoseconds.
const SECOND: u64 = 1000 * MS;
