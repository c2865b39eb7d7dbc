//! The first 128 bytes each way of a link's connection: the preface of every Ropewalk connection.
//!
//! ```text
//!   connecting end                              listening end
//!   preface: session, rail, number, nonce ────▶ MAC right? session known, or a new one
//!   MAC right? same nonce                 ◀──── answer: the same nonce
//! ```
//!
//! The MAC proves the token at both ends. Bytes 72 to 88 of the preface hold: rail, rails, two zeros, the
//! number of the link (4 bytes), the window of whoever wrote it (8 bytes), little endian. A number that is not above
//! all earlier ones of its rail is refused, so that nothing can be replayed into a session.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_proto::message::RAILS_MAX;
use socket2::{Domain, Protocol, Socket, Type};

use crate::link::Link;

/// Flag: this is the listening end's answer.
const ANSWER: u8 = 1;
/// Flag: frames are not checked.
const UNCHECKED: u8 = 2;
/// Flag: begins a session; else the connection joins one.
const HELLO: u8 = 4;
/// Flag of an answer: there is no such session any more.
const GONE: u8 = 8;

/// A connection that is not made, or answered, in this time has failed; the rail is tried again later.
const PATIENCE: Duration = Duration::from_secs(2);

/// What proves that a peer knows the token.
pub(crate) struct Proof {
    key: MacKey,
    key_id: [u8; 16],
}

impl Proof {
    pub(crate) fn new(token: Option<&[u8; 32]>) -> Self {
        match token {
            Some(token) => Self {
                key: MacKey::new(token),
                key_id: preface::key_id(token),
            },
            // Keeps strangers apart by chance only, which is what no token means.
            None => Self {
                key: MacKey::new(b"ropewalk message socket without a token"),
                key_id: [0; 16],
            },
        }
    }
}

/// What a connecting end says of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction {
    pub session: [u8; 16],
    pub hello: bool,
    pub check: bool,
    pub rail: usize,
    pub rails: usize,
    pub number: u32,
    pub window: u64,
    nonce: [u8; 32],
}

impl Introduction {
    /// Reads and verifies the preface of a connecting end; `None` from a stranger.
    pub(crate) fn read(bytes: &[u8; PREFACE_LEN], proof: &Proof) -> Option<Self> {
        let head = Preface::parse(bytes).ok()?;
        let known = HELLO | UNCHECKED;
        let ours =
            head.kind == Kind::Message && head.key_id == proof.key_id && head.flags & !known == 0;
        if !ours || !Preface::verify(bytes, &proof.key) {
            return None;
        }
        let own = Self {
            session: head.transfer_id,
            hello: head.flags & HELLO != 0,
            check: head.flags & UNCHECKED == 0,
            rail: usize::from(head.extra[0]),
            rails: usize::from(head.extra[1]),
            number: u32::from_le_bytes(std::array::from_fn(|at| head.extra[4 + at])),
            window: u64::from_le_bytes(std::array::from_fn(|at| head.extra[8 + at])),
            nonce: head.nonce,
        };
        (own.rail < own.rails && own.rails <= RAILS_MAX).then_some(own)
    }

    fn encode(&self, flags: u8, window: u64, proof: &Proof) -> [u8; PREFACE_LEN] {
        let mut extra = [0; 16];
        // Both are at most RAILS_MAX.
        (extra[0], extra[1]) = (self.rail as u8, self.rails as u8);
        extra[4..8].copy_from_slice(&self.number.to_le_bytes());
        extra[8..].copy_from_slice(&window.to_le_bytes());
        let head = Preface {
            kind: Kind::Message,
            flags,
            key_id: proof.key_id,
            transfer_id: self.session,
            nonce: self.nonce,
            extra,
        };
        head.encode(&proof.key)
    }

    /// The listening end's answer: its window, or that the session is gone.
    pub(crate) fn answer(&self, window: Option<u64>, proof: &Proof) -> [u8; PREFACE_LEN] {
        let flags = if window.is_some() {
            ANSWER
        } else {
            ANSWER | GONE
        };
        self.encode(flags, window.unwrap_or(0), proof)
    }
}

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("the peer has closed its socket")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Makes the links of a connecting end.
pub(crate) struct Dialer {
    pub session: [u8; 16],
    /// Local and peer address of each rail.
    pub rails: Vec<(Option<IpAddr>, SocketAddr)>,
    pub proof: Proof,
    pub check: bool,
    pub window: u64,
    pub dialled: AtomicU32,
}

impl Dialer {
    /// Connects a rail; gives the link and the peer's window.
    pub(crate) fn dial(&self, rail: usize, hello: bool) -> Result<(Link, u64), DialError> {
        let (local, peer) = self.rails[rail];
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        socket.connect_timeout(&peer.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        let own = stream.local_addr()?;
        if own == peer {
            // A free port of this host may be given to the connecting end itself.
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let said = Introduction {
            session: self.session,
            hello,
            check: self.check,
            rail,
            rails: self.rails.len(),
            number: self.dialled.fetch_add(1, Ordering::Relaxed) + 1,
            window: self.window,
            nonce: preface::random_bytes(),
        };
        let mut flags = if hello { HELLO } else { 0 };
        flags |= if self.check { 0 } else { UNCHECKED };
        stream.write_all(&said.encode(flags, self.window, &self.proof))?;
        let mut bytes = [0; PREFACE_LEN];
        stream
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the peer closed the connection; is it a message socket with the same token?",
                ),
                _ => error,
            })?;
        let unproven = || {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the peer did not prove that it knows the token",
            )
        };
        let head = Preface::parse(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let right =
            head.kind == Kind::Message && head.flags & ANSWER != 0 && head.nonce == said.nonce;
        if !right || !Preface::verify(&bytes, &self.proof.key) {
            return Err(unproven().into());
        }
        if head.flags & GONE != 0 {
            return Err(DialError::Gone);
        }
        let window = u64::from_le_bytes(std::array::from_fn(|at| head.extra[8 + at]));
        let link = Link::new(stream, rail, u64::from(said.number), self.check)?;
        Ok((link, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Introduction {
        Introduction {
            session: [3; 16],
            hello: true,
            check: false,
            rail: 1,
            rails: 2,
            number: 77,
            window: 1 << 40,
            nonce: [5; 32],
        }
    }

    /// What one end says the other reads, under the same token only; an answer is no introduction.
    #[test]
    fn introductions_need_the_token() {
        let (own, other) = (Proof::new(Some(&[1; 32])), Proof::new(Some(&[2; 32])));
        let bytes = said().encode(HELLO | UNCHECKED, 1 << 40, &own);
        let read = Introduction::read(&bytes, &own).unwrap();
        assert_eq!(
            (read.rail, read.rails, read.number, read.window),
            (1, 2, 77, 1 << 40)
        );
        assert!(read.hello && !read.check && read.session == [3; 16]);
        assert!(Introduction::read(&bytes, &other).is_none());
        assert!(Introduction::read(&bytes, &Proof::new(None)).is_none());
        assert!(Introduction::read(&read.answer(Some(1), &own), &own).is_none());
        let far = Introduction { rail: 2, ..said() };
        assert!(Introduction::read(&far.encode(HELLO, 0, &own), &own).is_none());
    }
}
