//! An edge whose blocks go as datagrams: the rounds of RBUDP and RAPID ([`crate::rapid`]), with the sender's delivery and the receiver's
//! credit on top.
//!
//! A block is a unit: its content, then its header. The receiver does not ask for it: the sender numbers its units and begins one as soon as it has credit for it; so the receiver
//! knows which numbers may arrive and has a buffer for each. The edge's connection carries everything but contents:
//!
//! ```text
//!   sender                                            receiver
//!   Sending ◀── READY, CREDIT ──── connection ─────── Receiving
//!      │    ═══ probes ═══════════ UDP ═════════════▶ longest length that passes
//!      │    ◀── PROBED ─────────── connection ───────
//!      │    ═══ datagrams ════════ UDP ═════════════▶ into the unit's buffer
//!      │    ◀── LACKING(none) ──── connection ─────── whole: the sender's buffer is free
//!      │    ─── ROUND ──────────── connection ──────▶ what was not reported so a moment later
//!      │    ◀── LACKING(bitmap) ── connection ─────── the next round
//!      └─   ◀── PACE ───────────── connection ─────── a monitor's ceiling
//! ```
//!
//! In the edge's space a unit of length `L` lies at `L << 32`, so that the offset of each datagram says how long its unit is:
//! the first one to arrive, whichever it is, finds its place.
//!
//! Left out on purpose: sockets, keys and buffers (the `stage` and `lane` crates), and what a block is for ([`super::process`]).

mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use ropewalk_model::{Nanos, Range};

pub use receiving::{Receiving, Reported};
pub use sending::{Next, Pace, Probing, Sending};

use super::frame::HEADER_LEN;
use crate::rapid::{DATAGRAM_HEADER_LEN, PAYLOAD_MIN};

/// No datagram at all for so long while they are sent: they do not pass.
pub const BLOCKED_TIME: Nanos = Nanos::from_secs(5);

/// Longest packets that are looked for. On loopback longer ones would fill a default receive buffer with a handful.
pub const MTU_MAX: u32 = 9000;

/// What keeps a sender from sending more than the receiver has buffers for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Credit.
    #[default]
    Credit,
    /// Nothing: what finds no buffer is dropped, and sent again. For measurements.
    None,
}

/// Time from the last datagram of a round to the notice that it is out: units that are reported whole by then need none.
pub const ROUND_TIME: Nanos = Nanos::from_millis(1);

/// Bytes of the unit of a block with so many bytes.
#[must_use]
pub const fn unit_length(block: u32) -> u32 {
    block + HEADER_LEN as u32
}

/// Where a unit of this length lies in the space of its edge.
#[must_use]
pub fn range_of(length: u32) -> Range {
    let start = u64::from(length) << 32;
    Range::new(start, start + u64::from(length))
}

/// The length of the unit of a datagram with this offset.
#[must_use]
pub fn length_at(offset: u64) -> u32 {
    (offset >> 32) as u32
}

/// Shortest datagram that an edge uses, with a trailer of so many bytes.
#[must_use]
pub fn shortest(trailer: u32) -> u32 {
    DATAGRAM_HEADER_LEN as u32 + trailer + PAYLOAD_MIN
}
