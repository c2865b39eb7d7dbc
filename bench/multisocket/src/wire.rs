//! What connections carry besides blocks. Numbers are little-endian.
//!
//! ```text
//!  header: sender, first on each connection      answer: receiver, three times on each connection
//!   0  8  "RopeMSok"                              0  4  "RMSa"
//!   8  4  version                                 4  4  kind
//!  12  4  index of the connection, from 0         8  8  bytes received (Done), version (Version), else 0
//!  16  8  run: equal for all of one sender       16 24  the receiver's shape
//!  24 24  the sender's shape
//!
//!  shape: connections a port (4), ports (4), block length (8), blocks (8)
//! ```
//!
//! Magic, version and length of the header stay where they are in all versions.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::options::Shape;

pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 48;
pub(crate) const ANSWER_LEN: usize = 40;
pub(crate) const HEADER_MAGIC: &[u8] = b"RopeMSok";
pub(crate) const ANSWER_MAGIC: &[u8] = b"RMSa";

/// What a sender says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) index: u32,
    pub(crate) run: u64,
    pub(crate) shape: Shape,
}

/// What a receiver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection belongs to the test.
    Welcome,
    /// All connections are there.
    Go,
    /// This many bytes were received.
    Done(u64),
    /// The numbers of the sides differ.
    Differs,
    /// Another sender was first.
    Busy,
    /// The receiver speaks this version only.
    Version(u32),
}

/// Numbers read from the front of some bytes. Callers have checked the length.
struct Numbers<'b>(&'b [u8]);

impl Numbers<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (front, rest) = self.0.split_at(N);
        bytes.copy_from_slice(front);
        self.0 = rest;
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.next())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.next())
    }

    fn shape(&mut self) -> Shape {
        Shape {
            connections_per_port: self.u32(),
            ports: self.u32(),
            block_len: self.u64(),
            blocks: self.u64(),
        }
    }
}

fn put_shape(bytes: &mut Vec<u8>, shape: Shape) {
    bytes.extend(shape.connections_per_port.to_le_bytes());
    bytes.extend(shape.ports.to_le_bytes());
    bytes.extend(shape.block_len.to_le_bytes());
    bytes.extend(shape.blocks.to_le_bytes());
}

impl Header {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = HEADER_MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.run.to_le_bytes());
        put_shape(&mut bytes, self.shape);
        bytes
    }

    /// The header after the magic that [`Partial::read`] has compared; `None` when another version made it.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let mut numbers = Numbers(&bytes[HEADER_MAGIC.len()..]);
        (numbers.u32() == VERSION).then(|| Self {
            index: numbers.u32(),
            run: numbers.u64(),
            shape: numbers.shape(),
        })
    }
}

impl Answer {
    pub(crate) fn encode(self, shape: Shape) -> Vec<u8> {
        let (kind, value) = match self {
            Self::Welcome => (1_u32, 0),
            Self::Go => (2, 0),
            Self::Done(bytes) => (3, bytes),
            Self::Differs => (4, 0),
            Self::Busy => (5, 0),
            Self::Version(version) => (6, version.into()),
        };
        let mut bytes = ANSWER_MAGIC.to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        put_shape(&mut bytes, shape);
        bytes
    }

    /// The answer and the receiver's shape; `None` when it is none of this version.
    pub(crate) fn decode(bytes: &[u8; ANSWER_LEN]) -> Option<(Self, Shape)> {
        let mut numbers = Numbers(&bytes[ANSWER_MAGIC.len()..]);
        let (kind, value) = (numbers.u32(), numbers.u64());
        let answer = match kind {
            1 => Self::Welcome,
            2 => Self::Go,
            3 => Self::Done(value),
            4 => Self::Differs,
            5 => Self::Busy,
            6 => Self::Version(value.try_into().ok()?),
            _ => return None,
        };
        Some((answer, numbers.shape()))
    }
}

/// A message of fixed length that may come in pieces.
#[derive(Debug)]
pub(crate) struct Partial<const N: usize> {
    magic: &'static [u8],
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Partial<N> {
    /// Expects a message that begins with `magic`.
    pub(crate) fn new(magic: &'static [u8]) -> Self {
        Self {
            magic,
            bytes: [0; N],
            filled: 0,
        }
    }

    /// Reads what has come on a socket that does not block; `None` while the message is not whole.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer has closed, `InvalidData` as soon as the magic is another, or the system's.
    pub(crate) fn read(&mut self, socket: impl AsFd) -> io::Result<Option<[u8; N]>> {
        while self.filled < N {
            match recv(&socket, &mut self.bytes[self.filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(closed()),
                Ok((count, _)) => self.filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let seen = self.filled.min(self.magic.len());
            if self.bytes[..seen] != self.magic[..seen] {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        self.filled = 0;
        Ok(Some(self.bytes))
    }
}

/// What an early end of a connection is to us.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed it")
}

/// Writes a message that is small enough to fit into the socket's empty buffer.
///
/// # Errors
/// The system's, and `WriteZero` when it does not fit, which means that the peer reads nothing at all.
pub(crate) fn write(socket: impl AsFd, message: &[u8]) -> io::Result<()> {
    loop {
        match send(&socket, message, SendFlags::NOSIGNAL) {
            Ok(count) if count == message.len() => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::WriteZero.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    const SHAPE: Shape = Shape {
        connections_per_port: 250,
        ports: 4,
        block_len: 65536,
        blocks: 1 << 40,
    };

    /// Headers and answers come out as they went in, and have the documented length.
    #[test]
    fn messages_survive() {
        let header = Header {
            index: 999,
            run: u64::MAX - 1,
            shape: SHAPE,
        };
        let mut bytes: [u8; HEADER_LEN] = header.encode().try_into().unwrap();
        assert_eq!(Header::decode(&bytes), Some(header));
        bytes[8] ^= 2;
        assert_eq!(Header::decode(&bytes), None, "another version");
        for answer in [
            Answer::Welcome,
            Answer::Go,
            Answer::Done(1 << 50),
            Answer::Differs,
            Answer::Busy,
            Answer::Version(7),
        ] {
            let mut bytes: [u8; ANSWER_LEN] = answer.encode(SHAPE).try_into().unwrap();
            assert_eq!(Answer::decode(&bytes), Some((answer, SHAPE)));
            bytes[4] = 99;
            assert_eq!(Answer::decode(&bytes), None);
        }
    }

    /// Pieces are put together; what follows a message is left for the next; strangers are known by their first byte.
    #[test]
    fn pieces() {
        let (mut near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut partial = Partial::<ANSWER_LEN>::new(ANSWER_MAGIC);
        let message = Answer::Done(5).encode(SHAPE);
        near.write_all(&message[..7]).unwrap();
        assert_eq!(partial.read(&far).unwrap(), None);
        near.write_all(&message[7..]).unwrap();
        near.write_all(&Answer::Go.encode(SHAPE)).unwrap();
        assert_eq!(partial.read(&far).unwrap().unwrap().to_vec(), message);
        let second = partial.read(&far).unwrap().unwrap();
        assert_eq!(Answer::decode(&second), Some((Answer::Go, SHAPE)));
        near.write_all(b"G").unwrap();
        let error = partial.read(&far).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(near);
        let error = Partial::<ANSWER_LEN>::new(ANSWER_MAGIC)
            .read(&far)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
