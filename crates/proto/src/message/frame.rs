//! Frames of a link, byte by byte.
//!
//! Every frame starts with the same 48 bytes, little endian:
//!
//! ```text
//!  0      1       2     4        8         16             24         28               32           40       48
//!  +------+-------+-----+--------+---------+--------------+----------+----------------+------------+--------+
//!  | kind | flags | 0 0 | length | message | message len. | fragment | fragment len.  | done below | credit |
//!  +------+-------+-----+--------+---------+--------------+----------+----------------+------------+--------+
//! ```
//!
//! then the low half of CRC-64/NVME of these (4 bytes), `length` bytes, and CRC-64/NVME of both without the check of the
//! header (8 bytes); checks are zero where nothing is checked. The header has its own, since it decides where bytes land
//! and what a message looks like before the trailer is there. A trailer of all ones says that the sender took the bytes
//! back after it had announced them.
//!
//! `done below` and `credit` ride on every frame, so that an answer acknowledges the question without
//! a packet of its own: all messages of the peer with a lower number have arrived whole, and the
//! peer may send up to that position in the sequence of all its bytes.

use ropewalk_model::Range;

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;
/// Bytes of a header and its check.
pub const HEAD_LEN: usize = HEADER_LEN + 4;
/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 8;
/// Trailer of a frame whose bytes mean nothing.
pub const TAKEN_BACK: u64 = u64::MAX;
/// Longest fragment: equal parts of a long message need it; balanced ones are shorter.
pub const FRAGMENT_MAX: u32 = 64 << 20;
/// Bytes of an entry of an acknowledgement.
pub const ENTRY_LEN: usize = 16;
/// Entries of an acknowledgement at most; more wait for the next.
pub const ENTRIES_MAX: usize = 128;
/// Fragment number that CANCEL and END are acknowledged under.
pub const WHOLE: u32 = u32::MAX;

/// Flag of DATA: the message measures the path and is never delivered.
pub const DISCARD: u8 = 1;
/// Flag of DATA: acknowledge the message at once, not with an answer, since its round trip is measured.
pub const PROMPT: u8 = 2;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A fragment.
    Data = 16,
    /// Fragments that arrived, 16 bytes each: message, first fragment, count. `fragment_len` is the number of
    /// DATA, CANCEL and END frames received over the link of this frame, modulo 2^32.
    Ack = 17,
    /// The message will not be completed; those behind it may be delivered.
    Cancel = 18,
    /// The number after the last message.
    End = 19,
    /// Shows that the rail lives; nothing else.
    Alive = 20,
    /// `message` is the cut-off, `fragment` the best rail, as the connecting end found them.
    CutOff = 21,
    /// The peer has closed its socket.
    Bye = 22,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            16 => Self::Data,
            17 => Self::Ack,
            18 => Self::Cancel,
            19 => Self::End,
            20 => Self::Alive,
            21 => Self::CutOff,
            22 => Self::Bye,
            _ => return None,
        })
    }
}

/// The fixed part of a frame. Fields that a kind does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// [`DISCARD`], [`PROMPT`].
    pub flags: u8,
    /// Bytes that follow the header, trailer apart.
    pub length: u32,
    /// Number of the message, from 0.
    pub message: u64,
    /// Bytes of the whole message.
    pub message_len: u64,
    /// Number of the fragment in the message.
    pub fragment: u32,
    /// Bytes of every fragment of the message but the last.
    pub fragment_len: u32,
    /// All messages of the peer below this number have arrived.
    pub done_below: u64,
    /// The peer may send up to this position in the sequence of all its bytes.
    pub credit: u64,
}

/// Why a header was refused. The link that carried it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The first byte names no kind.
    #[error("message frame of unknown kind {0}")]
    UnknownKind(u8),
    /// Fragment number, fragment length, message length and length do not go together.
    #[error("fragment {fragment} of {length} bytes does not fit a message of {message_len} bytes")]
    Fragment {
        /// Announced number.
        fragment: u32,
        /// Announced length.
        length: u32,
        /// Announced length of the message.
        message_len: u64,
    },
    /// A frame without payload announced one, or an acknowledgement is too long.
    #[error("message frame of kind {kind} announces {length} bytes")]
    Length {
        /// First byte of the frame.
        kind: u8,
        /// Announced length.
        length: u32,
    },
}

/// Fragments of a message; an empty message has one, which is empty.
#[must_use]
pub fn fragments(message_len: u64, fragment_len: u32) -> u64 {
    message_len.div_ceil(u64::from(fragment_len.max(1))).max(1)
}

/// Bytes of the message that a fragment holds.
#[must_use]
pub fn fragment_range(message_len: u64, fragment_len: u32, fragment: u32) -> Range {
    let start = u64::from(fragment) * u64::from(fragment_len);
    Range::new(
        start.min(message_len),
        (start + u64::from(fragment_len)).min(message_len),
    )
}

impl Header {
    /// A frame of this kind with nothing in it.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            length: 0,
            message: 0,
            message_len: 0,
            fragment: 0,
            fragment_len: 0,
            done_below: 0,
            credit: 0,
        }
    }

    /// Bytes of the message that a DATA frame has.
    #[must_use]
    pub fn range(&self) -> Range {
        fragment_range(self.message_len, self.fragment_len, self.fragment)
    }

    /// Writes the 48 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = self.kind as u8;
        out[1] = self.flags;
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.message.to_le_bytes());
        out[16..24].copy_from_slice(&self.message_len.to_le_bytes());
        out[24..28].copy_from_slice(&self.fragment.to_le_bytes());
        out[28..32].copy_from_slice(&self.fragment_len.to_le_bytes());
        out[32..40].copy_from_slice(&self.done_below.to_le_bytes());
        out[40..48].copy_from_slice(&self.credit.to_le_bytes());
        out
    }

    /// Reads and checks the 48 bytes. Never allocates.
    ///
    /// # Errors
    /// [`HeaderError`] when the kind is unknown or the lengths do not go together.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        let kind = Kind::from_u8(bytes[0]).ok_or(HeaderError::UnknownKind(bytes[0]))?;
        let header = Self {
            kind,
            flags: bytes[1],
            length: word(bytes, 4),
            message: long(bytes, 8),
            message_len: long(bytes, 16),
            fragment: word(bytes, 24),
            fragment_len: word(bytes, 28),
            done_below: long(bytes, 32),
            credit: long(bytes, 40),
        };
        let fits = match kind {
            Kind::Data => {
                let count = fragments(header.message_len, header.fragment_len);
                let fits = (1..=FRAGMENT_MAX).contains(&header.fragment_len)
                    && count < u64::from(WHOLE)
                    && u64::from(header.fragment) < count
                    && header.range().len() == u64::from(header.length);
                if !fits {
                    return Err(HeaderError::Fragment {
                        fragment: header.fragment,
                        length: header.length,
                        message_len: header.message_len,
                    });
                }
                true
            }
            Kind::Ack => {
                let length = header.length as usize;
                length.is_multiple_of(ENTRY_LEN) && length <= ENTRIES_MAX * ENTRY_LEN
            }
            Kind::Cancel | Kind::End | Kind::Alive | Kind::CutOff | Kind::Bye => header.length == 0,
        };
        if !fits {
            return Err(HeaderError::Length {
                kind: bytes[0],
                length: header.length,
            });
        }
        Ok(header)
    }
}

fn word(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Fragments of one message, as an acknowledgement lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the message.
    pub message: u64,
    /// First fragment.
    pub first: u32,
    /// Fragments from the first on.
    pub count: u32,
}

impl Entry {
    /// Writes the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut out = [0; ENTRY_LEN];
        out[..8].copy_from_slice(&self.message.to_le_bytes());
        out[8..12].copy_from_slice(&self.first.to_le_bytes());
        out[12..].copy_from_slice(&self.count.to_le_bytes());
        out
    }

    /// Reads the entries of an acknowledgement; bytes left over are ignored.
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks::<ENTRY_LEN>().0.iter().map(|entry| Self {
            message: u64::from_le_bytes(std::array::from_fn(|at| entry[at])),
            first: u32::from_le_bytes(std::array::from_fn(|at| entry[8 + at])),
            count: u32::from_le_bytes(std::array::from_fn(|at| entry[12 + at])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A fragment's header reads back; fragments cover the message without gap or overlap.
        #[test]
        fn data_headers_round_trip(message: u64, message_len in 0u64..10_000_000, fragment_len in 1u32..100_000, pick: u32, done_below: u64, credit: u64) {
            let count = fragments(message_len, fragment_len);
            let fragment = (u64::from(pick) % count) as u32;
            let range = fragment_range(message_len, fragment_len, fragment);
            let header = Header { length: range.len() as u32, message, message_len, fragment, fragment_len, done_below, credit, flags: DISCARD, ..Header::new(Kind::Data) };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            let next = fragment_range(message_len, fragment_len, fragment + 1);
            prop_assert_eq!(range.end, next.start);
        }

        /// Bytes from a stranger never panic and never announce more than a fragment.
        #[test]
        fn any_bytes_are_read_safely(mut bytes: [u8; HEADER_LEN], kind in 14u8..24) {
            bytes[0] = kind;
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.length <= FRAGMENT_MAX);
                prop_assert!(header.kind != Kind::Data || header.range().end <= header.message_len);
            }
        }
    }

    /// Entries read back.
    #[test]
    fn entries_round_trip() {
        let entries = [
            Entry {
                message: 1 << 40,
                first: 7,
                count: 3,
            },
            Entry {
                message: 0,
                first: WHOLE,
                count: 1,
            },
        ];
        let bytes: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
        assert_eq!(Entry::decode_all(&bytes).collect::<Vec<_>>(), entries);
    }
}
