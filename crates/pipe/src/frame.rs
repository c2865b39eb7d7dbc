//! What crosses the pipe. Pure: bytes in, frames out.
//!
//! ```text
//!  0      1           5           9
//!  | kind | stream u32 | length u32 | payload of `length` bytes |      little endian
//!
//!  Open    header of the stream, at most WORDS_MAX     the opener's numbers are odd at one end, even at the other
//!  Accept  -                                           data may flow both ways now
//!  Data    at most DATA_MAX, within the credit
//!  Credit  u32: so many bytes more may be sent
//!  End     -                                           no more data this way
//!  Reset   reason in words, at most WORDS_MAX          the stream is gone, both ways
//! ```

/// Length of a frame's header.
pub const HEADER_LEN: usize = 9;

/// Most bytes of one data frame: what another stream waits behind at least.
pub const DATA_MAX: usize = 64 << 10;

/// Most bytes that are on their way in one stream and one direction without being taken at the other end. ssh itself
/// has 2 MiB a session on its way, which two streams fill.
pub const WINDOW: u32 = 1 << 20;

/// Longest header of a stream, and longest reason.
pub const WORDS_MAX: usize = 512;

/// Streams that one end may have open at once: with [`WINDOW`] what a pipe holds at most.
pub const STREAMS_MAX: usize = 128;

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wants a new stream.
    Open,
    /// Takes it.
    Accept,
    /// Bytes of a stream.
    Data,
    /// More may be sent.
    Credit,
    /// No more bytes this way.
    End,
    /// The stream is gone.
    Reset,
}

/// A frame's first bytes, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Which stream it belongs to.
    pub stream: u32,
    /// Bytes that follow; within what the kind allows.
    pub len: usize,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Accept => 2,
            Self::Data => 3,
            Self::Credit => 4,
            Self::End => 5,
            Self::Reset => 6,
        }
    }

    fn allows(self, len: usize) -> bool {
        match self {
            Self::Open | Self::Reset => len <= WORDS_MAX,
            Self::Data => (1..=DATA_MAX).contains(&len),
            Self::Credit => len == 4,
            Self::Accept | Self::End => len == 0,
        }
    }
}

impl Header {
    /// Reads a header; `None` when it is none, which a pipe does not survive.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => Kind::Open,
            2 => Kind::Accept,
            3 => Kind::Data,
            4 => Kind::Credit,
            5 => Kind::End,
            6 => Kind::Reset,
            _ => return None,
        };
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let len = number(5) as usize;
        kind.allows(len).then_some(Self {
            kind,
            stream: number(1),
            len,
        })
    }
}

/// A whole frame; words that are too long are cut.
#[must_use]
pub fn encode(kind: Kind, stream: u32, payload: &[u8]) -> Vec<u8> {
    let most = match kind {
        Kind::Data => DATA_MAX,
        _ => WORDS_MAX,
    };
    let payload = &payload[..payload.len().min(most)];
    let mut frame = Vec::with_capacity(HEADER_LEN + payload.len());
    frame.extend([0; HEADER_LEN]);
    frame.extend(payload);
    put_header(&mut frame, kind, stream);
    frame
}

/// Makes a frame of bytes that leave space for its header in front.
///
/// # Panics
/// Without that space.
pub fn put_header(frame: &mut [u8], kind: Kind, stream: u32) {
    let len = (frame.len() - HEADER_LEN) as u32;
    frame[0] = kind.number();
    frame[1..5].copy_from_slice(&stream.to_le_bytes());
    frame[5..HEADER_LEN].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames are read as they were written.
    #[test]
    fn frames_are_read_as_written() {
        for (kind, payload) in [
            (Kind::Open, &b"to 3"[..]),
            (Kind::Accept, b""),
            (Kind::Data, b"x"),
            (Kind::Credit, &[1, 2, 3, 4]),
            (Kind::End, b""),
            (Kind::Reset, b"nobody"),
        ] {
            let frame = encode(kind, 7, payload);
            let header = Header::decode(frame[..HEADER_LEN].try_into().unwrap()).unwrap();
            let len = payload.len();
            let stream = 7;
            assert_eq!(header, Header { kind, stream, len });
            assert_eq!(&frame[HEADER_LEN..], payload);
        }
    }

    /// What no end writes is refused before anything is allocated for it.
    #[test]
    fn frames_are_bounded() {
        let header = |kind: u8, len: u32| {
            let mut bytes = [0; HEADER_LEN];
            bytes[0] = kind;
            bytes[5..].copy_from_slice(&len.to_le_bytes());
            Header::decode(&bytes)
        };
        for (kind, len) in [
            (0, 0),
            (7, 0),
            (1, WORDS_MAX as u32 + 1),
            (2, 1),
            (3, 0),
            (3, DATA_MAX as u32 + 1),
            (4, 3),
            (5, 1),
            (6, u32::MAX),
        ] {
            assert_eq!(header(kind, len), None, "{kind} {len}");
        }
        assert!(header(3, DATA_MAX as u32).is_some());
        assert_eq!(
            encode(Kind::Reset, 1, &[b'x'; 2000]).len(),
            HEADER_LEN + WORDS_MAX
        );
    }
}
