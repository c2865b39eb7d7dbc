//! What crosses an edge: frames with a header of 32 bytes, little endian; few have a body.
//!
//! ```text
//!   0      1      2       4      8        12       16       24      32
//!   +------+------+-------+------+--------+--------+--------+-------+---------+------------------+
//!   | kind | flag | group | node | length | round  | number | check | content | tag where sealed |
//!   +------+------+-------+------+--------+--------+--------+-------+---------+------------------+
//! ```
//!
//! Block, Want and End go to the receiver, Credit to the sender. The check of a block is a checksum of the first 24 bytes of its header
//! and of its content, made where the block is made and not made again on the way. A process verifies it before it uses the block or passes it on, unless
//! it only passes on what the kernel copied from a process of its host. In an End, `number` and `check` are the edge's blocks and bytes; in a Credit, `number` is all that was ever
//! granted on the edge, in bytes, and the flag says that more is granted on request only.
//!
//! Where blocks go as datagrams ([`super::datagrams`]) there are no Block frames. Hello and Ready are about the sockets: port, longest datagram and, of
//! a Ready, in `node` the lane's number; Probed has the length that passed. A Round says that a unit (`node`) of `length` bytes is out, with the number
//! behind that of its last datagram; a Lacking has a bitmap of `length` bytes, none when the unit is whole; a Pace has a monitor's message.

use super::BLOCK_MAX;
use crate::rapid::{FEEDBACK_LEN, PAYLOAD_MIN};

/// Bytes of a header.
pub const HEADER_LEN: usize = 32;

/// Bytes behind the header of an answer at most: a bitmap of the longest block in the shortest datagrams.
pub const ANSWER_MAX: usize = (BLOCK_MAX / PAYLOAD_MIN as u64 / 8) as usize + 1;

/// The part of a header that a block's check covers.
pub const CHECKED_LEN: usize = 24;

const BLOCK: u8 = 1;
const WANT: u8 = 2;
const END: u8 = 3;
const CREDIT: u8 = 4;
const HELLO: u8 = 5;
const READY: u8 = 6;
const PROBED: u8 = 7;
const ROUND: u8 = 8;
const LACKING: u8 = 9;
const PACE: u8 = 10;

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
    /// The sender's socket of datagrams.
    Hello(Socket),
    /// The receiver's.
    Ready {
        /// The edge's number in its datagrams.
        lane: u32,
        /// The socket.
        socket: Socket,
    },
    /// The longest datagram that passed; 0 where none did.
    Probed {
        /// Its length with header and trailer.
        datagram: u32,
    },
    /// A round of a unit is out.
    Round {
        /// Which unit: its block's number on the edge, which wraps.
        unit: u32,
        /// 0 at first.
        round: u32,
        /// Its bytes.
        length: u32,
        /// One more than its last datagram's number.
        sequence: u64,
    },
    /// What the receiver lacks of a unit after a round.
    Lacking {
        /// Which unit.
        unit: u32,
        /// After which round.
        round: u32,
        /// Bytes of the bitmap that follows; 0 when the unit is whole.
        length: u32,
    },
    /// A monitor's message follows.
    Pace,
}

/// Where datagrams are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// At the address of the connection.
    pub port: u16,
    /// Longest datagram that its interface takes.
    pub longest: u32,
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
            Self::Hello(Socket { port, longest }) => (HELLO, false, port.into(), longest.into()),
            Self::Ready {
                socket: Socket { port, longest },
                ..
            } => (READY, false, port.into(), longest.into()),
            Self::Probed { datagram } => (PROBED, false, datagram.into(), 0),
            Self::Round { sequence, .. } => (ROUND, false, sequence, 0),
            Self::Lacking { .. } => (LACKING, false, 0, 0),
            Self::Pace => (PACE, false, 0, 0),
        };
        let (node, length, turn) = match *self {
            Self::Ready { lane, .. } => (lane, 0, 0),
            Self::Round {
                unit,
                round,
                length,
                ..
            }
            | Self::Lacking {
                unit,
                round,
                length,
            } => (unit, length, round),
            _ => (0, 0, 0),
        };
        let mut out = [0; HEADER_LEN];
        (out[0], out[1]) = (kind, u8::from(flag));
        out[4..8].copy_from_slice(&node.to_le_bytes());
        out[8..12].copy_from_slice(&length.to_le_bytes());
        out[12..16].copy_from_slice(&turn.to_le_bytes());
        out[16..24].copy_from_slice(&number.to_le_bytes());
        out[24..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Bytes behind the header of a frame that goes to a sender; `None` where they are more than [`ANSWER_MAX`].
    #[must_use]
    pub fn answer_len(&self) -> Option<usize> {
        match *self {
            Self::Lacking { length, .. } => Some(length as usize).filter(|len| *len <= ANSWER_MAX),
            Self::Pace => Some(FEEDBACK_LEN),
            _ => Some(0),
        }
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
            HELLO => Self::Hello(Socket {
                port: number as u16,
                longest: check as u32,
            }),
            READY => Self::Ready {
                lane: four(4),
                socket: Socket {
                    port: number as u16,
                    longest: check as u32,
                },
            },
            PROBED => Self::Probed {
                datagram: number as u32,
            },
            ROUND => Self::Round {
                unit: four(4),
                round: four(12),
                length: four(8),
                sequence: number,
            },
            LACKING => Self::Lacking {
                unit: four(4),
                round: four(12),
                length: four(8),
            },
            PACE => Self::Pace,
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
        let socket = Socket {
            port: 50_000,
            longest: 8972,
        };
        let round = Frame::Round {
            unit: u32::MAX,
            round: 3,
            length: 70_000,
            sequence: 1 << 50,
        };
        let lacking = Frame::Lacking {
            unit: 7,
            round: u32::MAX,
            length: 256,
        };
        let ready = Frame::Ready { lane: 77, socket };
        let probed = Frame::Probed { datagram: 1472 };
        for frame in [
            Frame::Hello(socket),
            ready,
            probed,
            round,
            lacking,
            Frame::Pace,
        ] {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
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
        assert_eq!(
            Frame::decode(&[99; HEADER_LEN]),
            Err(FrameError { kind: 99 })
        );
        assert_eq!(&block.encode()[..4], [1, 0, 63, 0]);
    }
}
