//! Rate-based UDP that watches the receiver: RBUDP and RAPID, pure.
//!
//! The sender blasts the units it was asked for as datagrams at a set rate. Over the lane's reliable stream it reports when
//! a round of a unit is out, and the receiver answers with a bitmap of what it lacks, until nothing is
//! (RBUDP, section 1). RAPID adds a monitor at the receiver that asks the sender to slow down or to pause *before* the
//! receiver's processor is taken away (section 3).
//!
//! ```text
//!   receiver                                           sender
//!   Collect ── GRANT ───────────── stream ──────────▶ Blast
//!      ▲    ◀─────── datagrams ═══ UDP ══════════════  Pacer
//!      │    ◀─ ROUND(unit, round) ─ stream ───────────
//!      └─── LACKING(bitmap) ────── stream ──────────▶ Blast: the next round
//!   Monitor ── Feedback ═════════ UDP, stream ══════▶ Follow: ceiling, suspension
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `datagram` | the header of every datagram |
//! | `bitmap` | which datagrams of a unit are there |
//! | `blast` | what the sender sends next |
//! | `collect` | what the receiver has and reports |
//! | `pacer` | when the next bytes may leave |
//! | `feedback` | what a monitor sends to the sender, and how it follows |
//! | `gaps` | times between deliveries, counted by length |
//! | `overflow` | datagrams that a socket dropped, distinguished from those that the path lost |
//! | `monitor` | what a monitor sees and says; `linux26`, `ule`, `native` |
//!
//! Left out on purpose: sockets, keys, threads (the `lane` crate), and which unit to ask for (the ledger).

mod bitmap;
mod blast;
mod collect;
mod datagram;
mod feedback;
mod gaps;
pub mod monitor;
mod overflow;
mod pacer;

pub use bitmap::{Bitmap, BitmapError};
pub use blast::{Blast, Order, Piece, Wanted};
pub use collect::{Collect, Place, Report, Stray};
pub use datagram::{
    DATAGRAM_HEADER_LEN, Datagram, DatagramError, DatagramKind, PAYLOAD_MIN, datagrams,
};
pub use feedback::{FEEDBACK_LEN, Feedback, Follow, Requests, first_rate};
pub use gaps::Gaps;
pub use overflow::Overflow;
pub use pacer::Pacer;

#[cfg(test)]
mod tests;
