//! Frames of byte streams: one is one message of the message socket.
//!
//! Each starts with the same 16 bytes, little endian:
//!
//! ```text
//!  0      1         2       3   4        8       16
//!  +------+---------+-------+---+--------+-------+---------
//!  | kind | version | flags | 0 | stream | value | payload
//!  +------+---------+-------+---+--------+-------+---------
//! ```
//!
//! | kind | value | payload |
//! | --- | --- | --- |
//! | OPEN 1 | 0 | the greeting, up to 1 KiB |
//! | DATA 2 | position of the first byte | 1 byte to 256 KiB |
//! | END 3 | bytes of the whole | none |
//! | CREDIT 4 | position up to which the peer may send | none |
//! | STOP 5 | 0 | none |
//! | RESET 6 | code | text, up to 512 bytes |
//!
//! Flag 1 of DATA: these bytes use up the credit. Length and integrity are the message's.

/// Version of the format: both ends must have the same.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a greeting at most: a name of something, not the thing itself.
pub const GREETING_MAX: usize = 1 << 10;
/// Bytes of a DATA frame at most: so many that rails share them well, so few that a credit of the first window is used.
pub const DATA_MAX: usize = 256 << 10;
/// Bytes of the text of a RESET at most.
pub const TEXT_MAX: usize = 512;
/// Bytes of a frame at most.
pub const FRAME_MAX: usize = HEADER_LEN + DATA_MAX;

/// Flag of DATA: with it the credit is used up, so that its sender may have to wait.
const USES_UP: u8 = 1;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A new stream.
    Open = 1,
    /// Bytes of it.
    Data = 2,
    /// Its sender sends nothing more.
    End = 3,
    /// Its sender may send more.
    Credit = 4,
    /// Its receiver reads nothing more.
    Stop = 5,
    /// It is over, both ways.
    Reset = 6,
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Number of the stream.
    pub stream: u32,
    /// Its meaning depends on the kind.
    pub value: u64,
    /// Of DATA: these bytes use up the credit.
    pub uses_up: bool,
}

/// Why a message is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It is shorter than a header.
    #[error("a message of {0} bytes is no frame of a byte stream")]
    Short(usize),
    /// It has another version.
    #[error("byte streams of version {0}; install the same Ropewalk at both ends")]
    Version(u8),
    /// It has an unknown kind, or fields that must be 0 are not.
    #[error("unknown frame of byte streams: kind {0}")]
    Kind(u8),
    /// Its payload has a length that its kind does not allow.
    #[error("frame of byte streams of kind {kind} with {length} bytes")]
    Length {
        /// First byte.
        kind: u8,
        /// Bytes of the payload.
        length: usize,
    },
}

impl Kind {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Open,
            2 => Self::Data,
            3 => Self::End,
            4 => Self::Credit,
            5 => Self::Stop,
            6 => Self::Reset,
            _ => return None,
        })
    }

    /// Whether its payload may have so many bytes.
    fn takes(self, length: usize) -> bool {
        match self {
            Self::Open => length <= GREETING_MAX,
            Self::Data => (1..=DATA_MAX).contains(&length),
            Self::Reset => length <= TEXT_MAX,
            Self::End | Self::Credit | Self::Stop => length == 0,
        }
    }
}

impl Header {
    /// A header.
    #[must_use]
    pub fn new(kind: Kind, stream: u32, value: u64) -> Self {
        Self {
            kind,
            stream,
            value,
            uses_up: false,
        }
    }

    /// Writes the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        (out[0], out[1]) = (self.kind as u8, VERSION);
        out[2] = if self.uses_up { USES_UP } else { 0 };
        out[4..8].copy_from_slice(&self.stream.to_le_bytes());
        out[8..].copy_from_slice(&self.value.to_le_bytes());
        out
    }

    /// A whole frame. The payload has to be of a length that the kind allows.
    #[must_use]
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        debug_assert!(self.kind.takes(payload.len()), "{self:?}");
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.extend_from_slice(&self.encode());
        out.extend_from_slice(payload);
        out
    }

    /// Reads the header of a message, and checks the length of what follows.
    ///
    /// # Errors
    /// [`FrameError`]. Never allocates.
    pub fn decode(message: &[u8]) -> Result<Self, FrameError> {
        let Some(head) = message.first_chunk::<HEADER_LEN>() else {
            return Err(FrameError::Short(message.len()));
        };
        if head[1] != VERSION {
            return Err(FrameError::Version(head[1]));
        }
        let uses_up = head[2] == USES_UP;
        let is_known = |kind: &Kind| match kind {
            Kind::Data => head[2] <= USES_UP && head[3] == 0,
            _ => head[2..4] == [0, 0],
        };
        let kind = Kind::from_u8(head[0]).filter(is_known);
        let kind = kind.ok_or(FrameError::Kind(head[0]))?;
        let length = message.len() - HEADER_LEN;
        if !kind.takes(length) {
            return Err(FrameError::Length {
                kind: head[0],
                length,
            });
        }
        Ok(Self {
            kind,
            stream: u32::from_le_bytes(std::array::from_fn(|at| head[4 + at])),
            value: u64::from_le_bytes(std::array::from_fn(|at| head[8 + at])),
            uses_up,
        })
    }
}

/// The text of a RESET, cut at its bound between two letters.
#[must_use]
pub fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of version 1 stay what they are.
    #[test]
    fn version_1_is_golden() {
        let data = Header::new(Kind::Data, 0x0102_0304, 0x1122_3344_5566_7788).frame(b"ab");
        assert_eq!(
            data,
            [
                2, 1, 0, 0, 4, 3, 2, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, b'a', b'b'
            ]
        );
        let last = Header {
            uses_up: true,
            ..Header::new(Kind::Data, 9, 7)
        };
        assert_eq!(last.encode()[..4], [2, 1, 1, 0]);
        assert_eq!(Header::decode(&last.frame(b"x")), Ok(last));
        let kinds = [
            (Kind::Open, 1),
            (Kind::Data, 2),
            (Kind::End, 3),
            (Kind::Credit, 4),
            (Kind::Stop, 5),
            (Kind::Reset, 6),
        ];
        for (kind, number) in kinds {
            let mut expected = [0; HEADER_LEN];
            (expected[0], expected[1], expected[4], expected[8]) = (number, 1, 9, 7);
            assert_eq!(Header::new(kind, 9, 7).encode(), expected);
        }
    }

    /// What is no frame of this version says why.
    #[test]
    fn other_messages_are_refused() {
        let good = Header::new(Kind::Credit, 2, 9).frame(&[]);
        assert_eq!(Header::decode(&good), Ok(Header::new(Kind::Credit, 2, 9)));
        assert_eq!(Header::decode(&good[..15]), Err(FrameError::Short(15)));
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Header::decode(&bytes)
        };
        assert_eq!(with(1, 2), Err(FrameError::Version(2)));
        assert_eq!(with(0, 7), Err(FrameError::Kind(7)));
        assert_eq!(with(2, 1), Err(FrameError::Kind(4)));
        assert_eq!(
            with(0, 2),
            Err(FrameError::Length { kind: 2, length: 0 }),
            "data of no bytes"
        );
    }

    /// Texts are cut between letters.
    #[test]
    fn texts_are_cut() {
        assert_eq!(cut("short"), "short");
        let long = format!("a{}", "é".repeat(TEXT_MAX));
        assert_eq!(cut(&long).len(), TEXT_MAX - 1);
    }
}
