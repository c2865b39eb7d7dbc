//! Frames of a data stream, laid out byte by byte.
//!
//! One vocabulary serves every lane kind of a transfer: GRANT, DATA, MISSING, CANCEL, DIGEST, and what lanes of datagrams
//! need beside them. Messages, which their sender pushes, have frames of their own
//! ([`message::frame`](crate::message::frame)). Every frame starts with the same 24 bytes, little endian:
//!
//! ```text
//!  0      1      2        4          8                16         20         24
//!  +------+------+--------+----------+----------------+----------+----------+
//!  | kind | flags| space  | length   | offset         | grant    | code     |
//!  +------+------+--------+----------+----------------+----------+----------+
//! ```
//!
//! and is followed by `length` bytes of payload (none where [`flags::ZEROS`] is set), then 32 bytes of BLAKE3 when [`flags::HASH`] is
//! set, then the trailer: CRC-64/NVME of all before it on a plain lane (8 bytes), the cipher's tag on
//! a sealed one (16 bytes; header is associated data, payload and hash are encrypted in place).
//! The trailer is last so that a plain payload can leave by `sendfile`.
//!
//! What is left out on purpose: the transfer's id (a stream joins exactly one transfer) and
//! anything that would need parsing before its length is known.

pub use ropewalk_model::CHUNK_LEN;
use ropewalk_model::Range;

/// Of the frames: changes with them, so that two builds of one version under development are distinguished.
pub const FORMAT: u8 = 3;
/// Bytes of a frame header.
pub const HEADER_LEN: usize = 24;
/// Bytes of the unit hash that may follow a payload.
pub const HASH_LEN: usize = 32;
/// Bytes of the checksum trailer of a plain frame.
pub const CHECKSUM_LEN: usize = 8;
/// Bytes of the cipher's tag that ends a sealed frame.
pub const TAG_LEN: usize = 16;
/// Longest payload a peer may announce: one chunk. Anything longer is refused unread.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Bytes of a range in a HELD frame.
pub const HELD_RANGE_LEN: usize = 20;
/// Most ranges in a HELD frame: what there is beyond them goes with the next one.
pub const HELD_RANGES_MAX: usize = 1024;
/// Space number of the transfer's data; higher numbers are manifests of its parts.
pub const SPACE_DATA: u16 = 0;

/// Bits of the header's second byte.
pub mod flags {
    /// The last frame of its grant.
    pub const LAST: u8 = 1;
    /// A BLAKE3 hash of the whole unit follows the payload (DATA) or is asked for (GRANT).
    pub const HASH: u8 = 2;
    /// Only the BLAKE3 of the unit is asked for (GRANT); the answer is DIGEST.
    pub const DIGEST: u8 = 4;
    /// The payload is zeros, and does not follow (DATA).
    pub const ZEROS: u8 = 8;
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Credit with an offset: "send me this unit". `length` counts wanted bytes, no payload follows.
    Grant = 1,
    /// Bytes of a granted unit.
    Data = 2,
    /// The sender cannot serve the grant; `code` says why, the payload is a short UTF-8 reason.
    Missing = 4,
    /// The named grant is no longer wanted. No payload.
    Cancel = 5,
    /// Datagram lanes, from the sender: its socket's port in `code`, the lane's number in `grant`.
    Hello = 6,
    /// Datagram lanes, from the receiver: its socket's port in `code`, the longest datagram in `offset`.
    Ready = 7,
    /// Datagram lanes, from the receiver: `code` is the longest datagram that was received.
    Probed = 8,
    /// Datagram lanes, from the sender: round `code` of a unit is out, `offset` is the next sequence number, the payload
    /// the unit's hash with the first round.
    Round = 9,
    /// Datagram lanes, from the receiver: what round `code` left lacking, as a bitmap; no payload: nothing.
    Lacking = 10,
    /// Datagram lanes, from the receiver: its monitor's message.
    Pace = 11,
    /// The BLAKE3 of a granted unit, as the payload, in place of its bytes.
    Digest = 12,
    /// From a receiver that hands on: ranges that it can serve from now on, as the payload, 20 bytes each ([`HeldRange`]: start, end, origin).
    Held = 13,
}

impl FrameKind {
    /// Reads the first byte of a header.
    pub fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Grant,
            2 => Self::Data,
            4 => Self::Missing,
            5 => Self::Cancel,
            6 => Self::Hello,
            7 => Self::Ready,
            8 => Self::Probed,
            9 => Self::Round,
            10 => Self::Lacking,
            11 => Self::Pace,
            12 => Self::Digest,
            13 => Self::Held,
            _ => return None,
        })
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Which space `offset` counts in; see [`SPACE_DATA`].
    pub space: u16,
    /// Payload bytes that follow (all but GRANT and CANCEL), or bytes wanted (GRANT). At most [`PAYLOAD_MAX`].
    pub length: u32,
    /// First byte of the payload, or of the wanted unit, in the space.
    pub offset: u64,
    /// The grant this frame belongs to; chosen by the side that grants, unique on its stream.
    pub grant: u32,
    /// Reason of a MISSING frame, otherwise 0.
    pub code: u32,
}

/// Why a header was refused. The stream that carried it cannot be trusted any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first byte names no frame kind.
    #[error("frame of unknown kind {0}")]
    UnknownKind(u8),
    /// The announced length is above [`PAYLOAD_MAX`].
    #[error("frame announces {0} bytes, more than the {PAYLOAD_MAX} a frame may carry")]
    TooLong(u32),
    /// Offset plus length does not fit 64 bits.
    #[error("frame at offset {offset} with {length} bytes ends beyond the data space")]
    Overflow {
        /// Announced offset.
        offset: u64,
        /// Announced length.
        length: u32,
    },
}

impl FrameHeader {
    /// The half-open range the frame speaks of.
    pub fn range(&self) -> Range {
        Range {
            start: self.offset,
            end: self.offset + u64::from(self.length),
        }
    }

    /// Writes the 24 bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = self.kind as u8;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.space.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.grant.to_le_bytes());
        out[20..24].copy_from_slice(&self.code.to_le_bytes());
        out
    }

    /// Reads and checks the 24 bytes. Never allocates.
    ///
    /// # Errors
    /// [`FrameError`] when the kind is unknown, the length above [`PAYLOAD_MAX`] or the range beyond 2^64.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kind = FrameKind::from_u8(bytes[0]).ok_or(FrameError::UnknownKind(bytes[0]))?;
        let length = word(4);
        let offset = u64::from(word(8)) | u64::from(word(12)) << 32;
        if length > PAYLOAD_MAX {
            return Err(FrameError::TooLong(length));
        }
        if offset.checked_add(u64::from(length)).is_none() {
            return Err(FrameError::Overflow { offset, length });
        }
        Ok(Self {
            kind,
            flags: bytes[1],
            space: u16::from_le_bytes([bytes[2], bytes[3]]),
            length,
            offset,
            grant: word(16),
            code: word(20),
        })
    }
}

/// A range of a HELD frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// What the sender of the frame has.
    pub range: Range,
    /// The original holder that it has this from, where it says so: that one has read these bytes, so that their hashes are best asked of it.
    pub origin: Option<u32>,
}

/// No node has this number.
const NO_ORIGIN: u32 = u32::MAX;

/// The payload of a HELD frame: of each range start, end and origin. At most [`HELD_RANGES_MAX`] of the ranges.
#[must_use]
pub fn encode_held(ranges: &[HeldRange]) -> Vec<u8> {
    let ranges = &ranges[..ranges.len().min(HELD_RANGES_MAX)];
    let mut payload = Vec::with_capacity(ranges.len() * HELD_RANGE_LEN);
    for held in ranges {
        payload.extend_from_slice(&held.range.start.to_le_bytes());
        payload.extend_from_slice(&held.range.end.to_le_bytes());
        payload.extend_from_slice(&held.origin.unwrap_or(NO_ORIGIN).to_le_bytes());
    }
    payload
}

/// The ranges of a HELD frame; `None` when it is not whole ranges, or one of them ends before it begins or is empty.
#[must_use]
pub fn decode_held(payload: &[u8]) -> Option<Vec<HeldRange>> {
    let (ranges, rest) = payload.as_chunks::<HELD_RANGE_LEN>();
    if !rest.is_empty() || ranges.len() > HELD_RANGES_MAX {
        return None;
    }
    let range = |bytes: &[u8; HELD_RANGE_LEN]| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (start, end) = (word(0), word(8));
        let origin = u32::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]));
        (start < end).then_some(HeldRange {
            range: Range { start, end },
            origin: (origin != NO_ORIGIN).then_some(origin),
        })
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a header holds, its 24 bytes read back to it.
        #[test]
        fn header_round_trips(kind in (1u8..=13).prop_filter_map("3 is no kind", FrameKind::from_u8), flags: u8, space: u16, length in 0..=PAYLOAD_MAX, offset in 0..u64::MAX - u64::from(PAYLOAD_MAX), grant: u32, code: u32) {
            let header = FrameHeader { kind, flags, space, length, offset, grant, code };
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }

        /// What is told of ranges is read back, and any other bytes are refused or are ranges.
        #[test]
        fn held_ranges_round_trip(pieces in proptest::collection::vec((any::<u32>(), 1u64..1 << 40, proptest::option::of(0..NO_ORIGIN)), 0..40), bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let held = |(start, length, origin): (u32, u64, Option<u32>)| HeldRange {
                range: Range::new(start.into(), u64::from(start) + length),
                origin,
            };
            let ranges: Vec<HeldRange> = pieces.into_iter().map(held).collect();
            prop_assert_eq!(decode_held(&encode_held(&ranges)), Some(ranges));
            if let Some(ranges) = decode_held(&bytes) {
                prop_assert_eq!(ranges.len() * HELD_RANGE_LEN, bytes.len());
                prop_assert!(ranges.iter().all(|held| held.range.start < held.range.end));
            }
        }

        /// Bytes from a stranger never panic and never announce more than a chunk.
        #[test]
        fn any_bytes_are_read_safely(bytes: [u8; HEADER_LEN]) {
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert!(header.length <= PAYLOAD_MAX);
                prop_assert!(header.range().end >= header.offset);
            }
        }
    }
}
