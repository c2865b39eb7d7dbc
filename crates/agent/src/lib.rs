//! The daemon on a node: serves what it holds, fetches what its masters ask for, for many transfers at once.
//!
//! ```text
//!  master ──TLS + token──▶ session ── Open, Plan, Finish ──▶ Transfer ─┬─ Sending   (threads: one per stream)
//!  peer   ──TLS, pair────▶ pairs   ── exported key ────────▶           └─ Receiving (threads: one per stream,
//!  peer   ──join─────────▶ streams                                        one that syncs)
//! ```
//!
//! Sockets that carry bulk data never meet the asynchronous runtime: it accepts, reads the fixed-size
//! preface, and hands the descriptor to a thread of its own. What to fetch from which node next, over which streams, is decided
//! in [`ropewalk_proto::node`]; this crate only drives it.
//!
//! Nothing but the preface is read from a connection whose preface is not authentic.

#![forbid(unsafe_code)]

mod ahead;
mod awaited;
mod beside;
mod bridge;
mod commands;
mod comparing;
mod connect;
mod counts;
mod dial;
mod door;
mod error;
mod examine;
mod find;
mod forward;
mod handing;
mod hashed;
mod hashes;
mod holdings;
mod host;
mod hung;
mod incoming;
mod joined;
mod landing;
mod launched;
mod listen;
mod lists;
mod log;
mod masters;
mod member;
mod meter;
mod open;
mod origins;
mod peers;
mod piped;
mod pool;
mod rails;
mod rank;
mod receiving;
mod reversed;
mod running;
mod sending;
mod session;
mod shared;
mod stages;
mod streams;
mod transfer;
mod trips;
mod tunnel;
mod usage;
mod waits;

use ropewalk_lane::{interfaces, links};

pub use commands::{Answers, CommandListener};
pub use counts::Moved;
pub use error::AgentError;
pub use hung::open_calls;
pub use launched::host_addresses;
pub use listen::{Agent, AgentConfig, Expanded};
pub use log::{Entry, Level, LogSink};
pub use meter::{Meter, Reading};
pub use rank::{Rank, Seat};
pub use shared::Around;
pub use stages::StageConfig;
