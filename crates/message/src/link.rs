//! One connection of a rail: whole frames out, whole frames in, never waiting but in `poll`.
//!
//! The holder of [`Link::writer`] may send, the holder of [`Link::reader`] may receive: a rail's own threads, or
//! callers, which saves the hand-over between threads. Neither lock is waited for by a thread that holds the
//! session's state.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use parking_lot::Mutex;
use ropewalk_lane::TcpInfo;
use ropewalk_lane::seal::Records;
use ropewalk_model::time;
use ropewalk_proto::message::frame::{HEAD_LEN, HEADER_LEN, Header, HeaderError};
use ropewalk_proto::message::{Broken, RailId};
use ropewalk_proto::node::Seen;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::handshake::LinkKeys;
use crate::memory::{Kept, Place};
use crate::records::Incoming;

mod reader;
mod writer;

#[cfg(test)]
pub(crate) use reader::Current;
pub(crate) use reader::{Reader, Step};
pub(crate) use writer::Writer;

/// Bytes summed and given to the kernel at once: they are still in the cache when it copies them.
const CHUNK: usize = 256 << 10;
/// Bytes the kernel may hold unsent. They are lost to other rails when this one slows down.
const NOTSENT_MAX: u32 = 256 << 10;
/// The kernel's own limit for unacknowledged bytes; the health of the rail is judged sooner.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);
/// Longest wait in one piece, so that a thread sees what is asked of it.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Why a link carries nothing more. Its rail is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("a frame was damaged on the way")]
    Damaged,
    #[error("a sealed record was forged, or damaged on the way")]
    Forged,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("nothing has moved for a while, though the peer owes acknowledgements")]
    Silent,
    #[error("this host has lost the address {0}, or its interface the link")]
    Interface(IpAddr),
    #[error("a thread of the connection panicked")]
    Panicked,
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// What a link gives the session: called by whoever reads.
pub(crate) trait Frames {
    /// A fragment begins.
    fn begin(&self, link: &Link, header: &Header) -> Result<Landing, LinkError>;
    /// A fragment has come; `good` unless the sender took it back.
    fn end(
        &self,
        link: &Link,
        header: &Header,
        landing: Landing,
        good: bool,
    ) -> Result<(), LinkError>;
    /// Any other frame.
    fn control(&self, link: &Link, header: &Header, payload: &[u8]) -> Result<(), LinkError>;
}

/// Where the bytes of a fragment go.
pub(crate) enum Landing {
    /// The memory of a waiting caller.
    Place(Arc<Place>),
    /// Kept until a caller asks for the message.
    Kept(Kept),
    /// There is no space: it has to be sent again.
    Refused,
    /// Thrown away.
    Nowhere,
}

pub(crate) struct Link {
    pub(crate) rail: RailId,
    /// Never used again within the session, at this end.
    pub(crate) number: u64,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) reader: Mutex<Reader>,
    /// Addresses of both ends.
    pub(crate) ends: (IpAddr, IpAddr),
    socket: TcpStream,
    check: bool,
    dead: AtomicBool,
    /// The sending thread has to flush, or to acknowledge.
    nudged: AtomicBool,
    /// Acknowledgements came: the rail may take more.
    room: AtomicBool,
    /// When something was last sent, on the session's clock.
    sent_ns: AtomicU64,
}

impl Link {
    /// Takes over a connection whose preface was exchanged.
    pub(crate) fn new(
        socket: TcpStream,
        rail: RailId,
        number: u64,
        check: bool,
        keys: Option<LinkKeys>,
    ) -> io::Result<Self> {
        let (out, incoming) = match keys {
            Some(keys) => (
                Some(Records::new(&keys.out.0)),
                Some(Incoming::new(&keys.incoming.0)),
            ),
            None => (None, None),
        };
        let options = SockRef::from(&socket);
        options.set_tcp_nodelay(true)?;
        options.set_tcp_notsent_lowat(NOTSENT_MAX)?;
        options.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            rail,
            number,
            writer: Mutex::new(Writer::new(out)),
            reader: Mutex::new(Reader::new(incoming)),
            // A listener of both families gives IPv4 addresses as IPv6 ones; those of interfaces are as they are.
            ends: (
                socket.local_addr()?.ip().to_canonical(),
                socket.peer_addr()?.ip().to_canonical(),
            ),
            socket,
            check,
            dead: AtomicBool::new(false),
            nudged: AtomicBool::new(false),
            room: AtomicBool::new(false),
            sent_ns: AtomicU64::new(0),
        })
    }

    /// Ends the link; `false` when it was over already.
    pub(crate) fn kill(&self) -> bool {
        let first = !self.dead.swap(true, Ordering::AcqRel);
        if first {
            // A peer that is gone already makes this fail; the link is over either way.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
        first
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn nudge(&self) {
        self.nudged.store(true, Ordering::Release);
    }

    pub(crate) fn is_nudged(&self) -> bool {
        self.nudged.load(Ordering::Relaxed)
    }

    pub(crate) fn take_nudge(&self) -> bool {
        self.nudged.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn found_room(&self) {
        self.room.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) && self.room.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn seen(&self) -> Option<Seen> {
        let info = TcpInfo::of(&self.socket)?;
        Some(Seen {
            moved: info.bytes_acknowledged.wrapping_add(info.bytes_received),
            received: info.bytes_received,
            unacknowledged: info.unacknowledged > 0,
            retransmits: info.retransmits,
        })
    }

    /// Whether bytes were sent that the peer's host may not have yet; not of a link that is over.
    pub(crate) fn has_unheard(&self) -> bool {
        let waits = |info: TcpInfo| info.unacknowledged > 0 || info.unsent_bytes > 0;
        !self.is_dead() && TcpInfo::of(&self.socket).is_some_and(waits)
    }

    pub(crate) fn sent_at(&self) -> time::Instant {
        time::Instant(self.sent_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn mark_sent(&self, now: time::Instant) {
        self.sent_ns.store(now.0, Ordering::Relaxed);
    }

    fn digest(&self) -> Option<Digest> {
        self.check.then(|| Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// Waits until bytes can be read, or `other` can, or the time is over.
    pub(crate) fn wait_readable(
        &self,
        other: Option<BorrowedFd<'_>>,
        wait: Duration,
    ) -> io::Result<()> {
        let own = PollFd::new(&self.socket, PollFlags::IN);
        let Some(other) = other else {
            return poll_for(&mut [own], wait);
        };
        let mut both = [own, PollFd::from_borrowed_fd(other, PollFlags::IN)];
        poll_for(&mut both, wait)
    }
}

/// The low half of the sum of a header alone.
fn header_check(sum: &Digest) -> [u8; HEAD_LEN - HEADER_LEN] {
    (sum.finalize() as u32).to_le_bytes()
}

/// A header as it is sent, and the sum to go on with.
fn head_of(header: &Header, mut sum: Option<Digest>) -> ([u8; HEAD_LEN], Option<Digest>) {
    let mut head = [0; HEAD_LEN];
    let (bytes, check) = head.split_at_mut(HEADER_LEN);
    bytes.copy_from_slice(&header.encode());
    if let Some(sum) = &mut sum {
        sum.update(bytes);
        check.copy_from_slice(&header_check(sum));
    }
    (head, sum)
}

fn harmless(error: io::Error) -> io::Result<Option<usize>> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

fn poll_for(fds: &mut [PollFd<'_>], wait: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(wait).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
