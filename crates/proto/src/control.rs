//! Control messages and their framing. The schema is `schema/control.proto`.

use prost::Message;
use ropewalk_model::{CHUNK_LEN, Range, RangeSet, UNIT_LEN_MIN};

/// The generated messages.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated from the schema, which documents each field"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/ropewalk.control.v1.rs"));
}

pub use generated::*;

/// Longest control message a peer may announce (64 MiB: the plan of a receiver with a million runs).
/// Only authenticated peers are read at all.
pub const MESSAGE_MAX: usize = 64 << 20;

/// Bytes of the length that precedes each message.
pub const LENGTH_LEN: usize = 4;

/// Why a control message was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The announced length is above [`MESSAGE_MAX`].
    #[error("the peer announces a control message of {0} bytes, more than {MESSAGE_MAX}")]
    TooLong(usize),
    /// The bytes are not a message of this protocol.
    #[error("a control message cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The message has no body known to this version.
    #[error("a control message has no body that this version knows; is the other side newer?")]
    Empty,
}

/// Length prefix and message, ready to be written.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(&mut out, message);
    out
}

/// Adds length prefix and message to what is to be written.
pub fn encode_into<M: Message>(out: &mut Vec<u8>, message: &M) {
    let length = message.encoded_len();
    out.reserve_exact(LENGTH_LEN + length);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode_raw(out);
}

/// Checks an announced length.
///
/// # Errors
/// [`ControlError::TooLong`].
pub fn decode_length(bytes: [u8; LENGTH_LEN]) -> Result<usize, ControlError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > MESSAGE_MAX {
        Err(ControlError::TooLong(length))
    } else {
        Ok(length)
    }
}

/// Reads a message.
///
/// # Errors
/// [`ControlError::Malformed`].
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, ControlError> {
    Ok(M::decode(bytes)?)
}

impl From<Range> for Stretch {
    fn from(range: Range) -> Self {
        Self {
            start: range.start,
            length: range.len(),
        }
    }
}

impl Plan {
    /// Length of a unit of integrity. Whatever the master says, no unit outgrows a buffer or is nothing.
    pub fn unit_len(&self) -> u64 {
        match self.unit {
            0 => CHUNK_LEN,
            length => length.clamp(UNIT_LEN_MIN, CHUNK_LEN),
        }
    }
}

/// The half-open range from a start and a length that came off the wire; clipped at 2^64.
pub fn range(start: u64, length: u64) -> Range {
    Range {
        start,
        end: start.saturating_add(length),
    }
}

/// A set from stretches that came off the wire.
pub fn range_set(stretches: &[Stretch]) -> RangeSet {
    RangeSet::from_ranges(stretches.iter().map(|s| range(s.start, s.length)))
}

/// Stretches of a set.
pub fn stretches(set: &RangeSet) -> Vec<Stretch> {
    set.iter().map(Stretch::from).collect()
}
