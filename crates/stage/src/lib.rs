//! One process of a stream: sockets, buffers, files and programs around [`ropewalk_proto::stage::process`].
//!
//! An agent starts a process of each group on its node and passes it its setup, its incoming connections and the addresses of
//! the other nodes' agents over a socket of packets (standard input); standard output is the file that it reads or writes. One thread
//! does everything: it polls sockets that do not block, reads blocks into buffers of the pool, and writes them from there. It
//! sleeps when there is nothing to do.
//!
//! ```text
//!  agent ══ packets ══ drive ── inbound (an edge) ──▶ machine ──▶ outbound (an edge)
//!                        │                               ▲
//!                        └──── source, sink, program ────┘
//! ```
//!
//! [`each_block`] is for programs that are a stage.

#![forbid(unsafe_code)]

#[cfg(test)]
mod conformance;
mod datagrams;
mod dial;
mod drive;
mod ends;
mod error;
mod inbound;
mod link;
mod meter;
mod outbound;
mod parts;
mod passing;
mod pool;
mod program;
mod rank;
mod records;
mod setup;
mod shell;
mod sort;
#[cfg(test)]
mod tests;
mod version;

pub use error::StageError;
pub use program::{each_block, each_block_of};
pub use rank::join;
pub use ropewalk_proto::stage::datagrams::Flow;
pub use setup::{run, run_with};
