//! The header of a datagram, laid out byte by byte.
//!
//! Little endian; all of it is authenticated: associated data of the cipher, or under the checksum of a plain lane.
//!
//! ```text
//!  0      1      2        4        8                16               24       28       32
//!  +------+------+--------+--------+----------------+----------------+--------+--------+
//!  | kind | round| length | lane   | sequence       | offset         | grant  | echo   |
//!  +------+------+--------+--------+----------------+----------------+--------+--------+
//! ```
//!
//! `length` bytes follow, then 16 bytes of the cipher's tag, or 8 of CRC-64/NVME. The sequence number is the
//! nonce: it counts datagrams of one direction and never repeats, not even for bytes that are sent again.

/// Bytes of the header.
pub const DATAGRAM_HEADER_LEN: usize = 32;

/// Shortest payload that a lane cuts units into: with it, 1 MiB is 2048 datagrams and a bitmap 256 bytes.
pub const PAYLOAD_MIN: u32 = 512;

/// What a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DatagramKind {
    /// Bytes of a unit.
    Data = 1,
    /// Finds out which length the path carries; `grant` is its length.
    Probe = 2,
    /// Opens the path for the other direction.
    Knock = 3,
    /// A monitor's message; see [`Feedback`](super::Feedback).
    Feedback = 4,
}

/// The fixed part of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// What it is for.
    pub kind: DatagramKind,
    /// Round of its unit, for traces; wraps.
    pub round: u8,
    /// Bytes of payload.
    pub length: u16,
    /// Which lane it belongs to; datagrams of others that use the same address are dropped by it.
    pub lane: u32,
    /// Number on its direction of the lane.
    pub sequence: u64,
    /// First byte of the payload in its space.
    pub offset: u64,
    /// The grant it answers.
    pub grant: u32,
    /// Newest [`Feedback::stamp_us`](super::Feedback::stamp_us) that its sender has seen.
    pub echo: u32,
}

/// Why bytes are no datagram of ours. They are dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// Shorter than a header.
    #[error("a datagram of {0} bytes is shorter than its header")]
    Short(usize),
    /// The first byte names no kind.
    #[error("a datagram of unknown kind {0}")]
    UnknownKind(u8),
    /// It was cut, or something was added.
    #[error("a datagram announces {announced} bytes of payload and has {found}")]
    Length {
        /// What the header says.
        announced: usize,
        /// What came.
        found: usize,
    },
    /// Offset plus length does not fit 64 bits.
    #[error("a datagram at offset {0} ends beyond the data space")]
    Overflow(u64),
}

impl Datagram {
    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; DATAGRAM_HEADER_LEN] {
        let mut out = [0; DATAGRAM_HEADER_LEN];
        out[0] = self.kind as u8;
        out[1] = self.round;
        out[2..4].copy_from_slice(&self.length.to_le_bytes());
        out[4..8].copy_from_slice(&self.lane.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..28].copy_from_slice(&self.grant.to_le_bytes());
        out[28..].copy_from_slice(&self.echo.to_le_bytes());
        out
    }

    /// Reads the header of a datagram that ends with `trailer` bytes of tag or checksum. Nothing is authentic yet.
    ///
    /// # Errors
    /// [`DatagramError`] when the bytes cannot be what their header says.
    pub fn decode(bytes: &[u8], trailer: usize) -> Result<Self, DatagramError> {
        let short = DatagramError::Short(bytes.len());
        let (head, rest) = bytes
            .split_first_chunk::<DATAGRAM_HEADER_LEN>()
            .ok_or(short)?;
        let found = rest.len().checked_sub(trailer).ok_or(short)?;
        let kind = match head[0] {
            1 => DatagramKind::Data,
            2 => DatagramKind::Probe,
            3 => DatagramKind::Knock,
            4 => DatagramKind::Feedback,
            other => return Err(DatagramError::UnknownKind(other)),
        };
        let length = u16::from_le_bytes([head[2], head[3]]);
        if usize::from(length) != found {
            return Err(DatagramError::Length {
                announced: length.into(),
                found,
            });
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let offset = long(16);
        if offset.checked_add(u64::from(length)).is_none() {
            return Err(DatagramError::Overflow(offset));
        }
        Ok(Self {
            kind,
            round: head[1],
            length,
            lane: word(4),
            sequence: long(8),
            offset,
            grant: word(24),
            echo: word(28),
        })
    }
}

/// How many datagrams with up to `payload` bytes a unit of `length` bytes takes.
#[must_use]
pub fn datagrams(length: u64, payload: u32) -> u32 {
    u32::try_from(length.div_ceil(u64::from(payload.max(1)))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What was encoded reads back, with any trailer and payload.
        #[test]
        fn header_round_trips(kind in 1u8..=4, round: u8, length in 0u16..2000, lane: u32, sequence: u64, offset in 0..u64::MAX / 2, grant: u32, echo: u32, sealed: bool) {
            let kind = [DatagramKind::Data, DatagramKind::Probe, DatagramKind::Knock, DatagramKind::Feedback][usize::from(kind) - 1];
            let head = Datagram { kind, round, length, lane, sequence, offset, grant, echo };
            let trailer = if sealed { 16 } else { 8 };
            let mut bytes = head.encode().to_vec();
            bytes.resize(DATAGRAM_HEADER_LEN + usize::from(length) + trailer, 7);
            prop_assert_eq!(Datagram::decode(&bytes, trailer), Ok(head));
            // One byte more or less is not the same datagram.
            bytes.push(0);
            prop_assert!(Datagram::decode(&bytes, trailer).is_err());
            bytes.truncate(bytes.len() - 2);
            prop_assert!(Datagram::decode(&bytes, trailer).is_err());
        }

        /// Bytes from a stranger never panic and never announce more than came.
        #[test]
        fn any_bytes_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(head) = Datagram::decode(&bytes, 16) {
                prop_assert!(usize::from(head.length) + DATAGRAM_HEADER_LEN + 16 == bytes.len());
                prop_assert!(head.offset.checked_add(u64::from(head.length)).is_some());
            }
        }
    }

    /// The last datagram of a unit may be short; an empty unit has none.
    #[test]
    fn units_are_cut() {
        assert_eq!(datagrams(0, 1000), 0);
        assert_eq!(datagrams(1, 1000), 1);
        assert_eq!(datagrams(1000, 1000), 1);
        assert_eq!(datagrams(1001, 1000), 2);
    }
}
