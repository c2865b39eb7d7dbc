//! What crosses an edge: frames with a header of 32 bytes, little endian; only blocks have a body.
//!
//! ```text
//!   0      1      2       4      8        12       16       24      32
//!   +------+------+-------+------+--------+--------+--------+-------+---------+------------------+
//!   | kind | flag | group | node | length | 0      | number | check | content | tag where sealed |
//!   +------+------+-------+------+--------+--------+--------+-------+---------+------------------+
//! ```
//!
//! Block, Want and End go to the receiver, Credit to the sender. The check of a block is a checksum of the first 24 bytes of its header
//! and of its content, made where the block is made; every process verifies it before it passes the block on, and it is not made
//! again on the way. In an End, `number` and `check` are the edge's blocks and bytes; in a Credit, `number` is all that was ever
//! granted on the edge, in bytes, and the flag says that more is granted on request only.

/// Bytes of a header.
pub const HEADER_LEN: usize = 32;

/// The part of a header that a block's check covers.
pub const CHECKED_LEN: usize = 24;

const BLOCK: u8 = 1;
const WANT: u8 = 2;
const END: u8 = 3;
const CREDIT: u8 = 4;

/// Which block: unique in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The node where it was made.
    pub node: u32,
    /// The group of the process that made it.
    pub group: u16,
    /// Its number there, from 0.
    pub number: u64,
}

/// A block without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which block.
    pub identity: Identity,
    /// Bytes of its content.
    pub length: u32,
    /// Checksum of identity, length and content.
    pub check: u64,
}

/// One frame; a block's content follows its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A block.
    Block(Header),
    /// The sender has a block for this edge, and no credit.
    Want,
    /// No block follows.
    End {
        /// Blocks of the edge.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// What the receiver has granted.
    Credit {
        /// Bytes, from the edge's beginning.
        granted: u64,
        /// More is granted when the sender asks.
        on_demand: bool,
    },
}

/// Why 32 bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of unknown kind {kind}")]
pub struct FrameError {
    /// Its first byte.
    pub kind: u8,
}

impl Header {
    /// The header as it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = BLOCK;
        out[2..4].copy_from_slice(&self.identity.group.to_le_bytes());
        out[4..8].copy_from_slice(&self.identity.node.to_le_bytes());
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[16..24].copy_from_slice(&self.identity.number.to_le_bytes());
        out[24..].copy_from_slice(&self.check.to_le_bytes());
        out
    }
}

impl Frame {
    /// The header as it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (kind, flag, number, check) = match *self {
            Self::Block(header) => return header.encode(),
            Self::Want => (WANT, false, 0, 0),
            Self::End { blocks, bytes } => (END, false, blocks, bytes),
            Self::Credit { granted, on_demand } => (CREDIT, on_demand, granted, 0),
        };
        let mut out = [0; HEADER_LEN];
        (out[0], out[1]) = (kind, u8::from(flag));
        out[16..24].copy_from_slice(&number.to_le_bytes());
        out[24..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`] when its kind is unknown.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (number, check) = (eight(16), eight(24));
        Ok(match bytes[0] {
            BLOCK => Self::Block(Header {
                identity: Identity {
                    node: four(4),
                    group: u16::from_le_bytes([bytes[2], bytes[3]]),
                    number,
                },
                length: four(8),
                check,
            }),
            WANT => Self::Want,
            END => Self::End {
                blocks: number,
                bytes: check,
            },
            CREDIT => Self::Credit {
                granted: number,
                on_demand: bytes[1] != 0,
            },
            kind => return Err(FrameError { kind }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was encoded reads back; other kinds are refused.
    #[test]
    fn frames_round_trip() {
        let identity = Identity {
            node: 0x0102_0304,
            group: 63,
            number: u64::MAX - 1,
        };
        let block = Frame::Block(Header {
            identity,
            length: 1 << 20,
            check: 77,
        });
        let end = Frame::End {
            blocks: 3,
            bytes: 300,
        };
        let credit = |on_demand| Frame::Credit {
            granted: 1 << 40,
            on_demand,
        };
        for frame in [block, Frame::Want, end, credit(true), credit(false)] {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        assert_eq!(Frame::decode(&[9; HEADER_LEN]), Err(FrameError { kind: 9 }));
        assert_eq!(&block.encode()[..4], [1, 0, 63, 0]);
    }
}
