//! Regions: a named data space `[0, size)` whose ranges are held by nodes, read and written from any process.
//!
//! The process that reads and writes is the **origin**, a node that holds ranges is a **target** (MPI's terms). Requests and answers are messages of
//! message sockets, one socket from an origin to each target:
//!
//! ```text
//!   begin ──▶ operation ──▶ pieces (at most 256 KiB, one target each) ──▶ requests, 64 in flight a target
//!                  ▲             ▲ a target is lost: its gets go to another holder             │
//!                  └─────────────┴──────────────────── answers ◀──────────────────────────────┘
//! ```
//!
//! * [`Map`]: which node holds which range, and which one serves a get.
//! * [`Origin`]: operations, pieces and requests of one origin; fences, flushes, and what the loss of a node changes.
//! * [`Served`]: what a target answers to a range that it does not hold.
//! * [`Signals`]: notifications of ranges and those that wait for them.
//! * [`frame`]: what the messages are.
//!
//! Left out on purpose: sockets, threads, memory, files and clocks; the crate `region` has them. Nodes do not send each other bytes:
//! a put to several holders leaves the origin once for each.

mod failure;
pub mod frame;
mod map;
mod origin;
mod rule;
mod served;
mod signals;
#[cfg(test)]
mod tests;

pub use failure::Failure;
pub use map::{Map, MapError, REQUESTS_MAX, View};
pub use origin::{Answered, Kind, OPERATIONS_MAX, Origin, Request, Slice, What};
pub use rule::{HolderId, Rule};
pub use served::Served;
pub use signals::{SIGNALS_MAX, Signals, WAITERS_MAX};
