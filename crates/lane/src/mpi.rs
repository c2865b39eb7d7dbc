//! Streams whose bytes are messages of MPI, between two ranks of one `mpirun`.
//!
//! ```text
//!   sender                                      receiver
//!   buffers ── data, messages of one tag ─────▶ buffers that are posted ahead
//!   buffers ◀─ requests, of another tag ─────── buffers
//!   socket: which rank and tags; "I sleep", "wake"; its end is the stream's end
//! ```
//!
//! A stream begins on a connected Unix socket, as one of shared memory does, so that it is authenticated in the same way and a peer
//! that dies is noticed at once: MPI says nothing of that. Each side names its rank and the tag of its messages there.
//!
//! MPI has nothing to wait for with `poll`: messages move while MPI is called. A side that waits yields the processor a few times,
//! then says over the socket how many messages it has seen and sleeps until the other side, which has more for it, wakes it. The
//! first of its sleeps are short ones, since a long message takes several calls at both ends. So none spins.
//!
//! Messages are neither sealed nor checked here: the frames in them are, as on every other lane.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::half::Handle;
use crate::receive::Receiver;
use crate::send::Sender;
use crate::socket::Socket;
use crate::wire::{Interest, Wire};
use crate::{LaneError, Protection, ReceiveHalf, SendHalf};

mod installation;
pub mod join;
pub mod launch;
mod library;

pub use installation::{Implementation, Installation, find, found};
pub use library::start;

use library::{Library, Request, library};

/// Bytes of a message of data, and how many of these may be on their way: two sides that work at the same time.
const DATA: Shape = Shape {
    len: 128 << 10,
    depth: 2,
};
/// The same of requests. Together they hold all grants that may be outstanding and the cancellation of each, as in shared
/// memory: neither end reads while it waits for space to write.
const REQUESTS: Shape = Shape {
    len: 16 << 10,
    depth: 12,
};

/// Times that a side which waits yields the processor before it sleeps.
const YIELDS: u32 = 4;
/// Its first sleeps; each is as long as all before it, so that MPI goes on while messages are on their way.
const NAP_FIRST: Duration = Duration::from_micros(50);
const NAPS: u32 = 6;

/// Calls that find messages before the socket is looked at, too.
const UNHEARD_MAX: u32 = 64;

/// What is said over the socket, each with two numbers.
mod note {
    /// The first: rank, and tag of messages to it.
    pub const HELLO: u8 = 1;
    /// Sleeps, with so many messages received and so many of its own sent.
    pub const SLEEPS: u8 = 2;
    /// Wake: there is more.
    pub const WAKE: u8 = 3;
    /// The last: so many messages were begun to be sent.
    pub const END: u8 = 4;
}

/// Bytes of a note.
const NOTE_LEN: usize = 9;

/// Notes that are read at once; a peer that says more is not waited for.
const NOTES_MAX: usize = 64;

/// How long messages are waited for that a peer sent before it ended.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Why there is no MPI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// Left out of this program.
    #[error(
        "this program was built without its feature mpi; build it with that, or use another lane"
    )]
    NotBuilt,
    /// This program opens no libraries.
    #[error(
        "this program is static, and a static program opens no MPI; use one that is built with `cargo build --release`, or another lane"
    )]
    Static,
    /// Nothing starts ranks on this host.
    #[error(
        "no mpirun is on this host; install openmpi-bin and libopenmpi-dev, or mpich and libmpich-dev, or put the bin folder of another Open MPI or MPICH into PATH"
    )]
    NoMpirun,
    /// A program of that name is there, of something else.
    #[error("mpirun on this host is neither that of Open MPI nor that of MPICH: it says `{0}`")]
    Unknown(String),
    /// Nothing compiles for the MPI that is there.
    #[error(
        "mpirun is that of {mpi}, and no mpicc of it works on this host; install {packages}, and a C compiler: {reason}"
    )]
    NoCompiler {
        /// Name of the implementation.
        mpi: &'static str,
        /// What has its compiler in Debian and Ubuntu.
        packages: &'static str,
        /// What was tried.
        reason: String,
    },
    /// No folder for files of MPI.
    #[error("cannot make a folder for files of MPI: {0}")]
    Folder(String),
    /// The library that was compiled for the MPI of this host cannot be opened.
    #[error("{} cannot be opened: {reason}", path.display())]
    Library {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A call of MPI failed.
    #[error("MPI failed: {0}")]
    Failed(String),
}

/// The receiving end of a stream over MPI; `stream` is connected to the peer. This process is a rank, as the peer's is ([`start`]).
///
/// # Errors
/// [`LaneError::Socket`] when this process is no rank or the socket cannot be set up.
pub fn receive_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    let wire = Messages::receiving(stream).map_err(not_set_up)?;
    Ok(Box::new(Receiver::new(wire, protection)?))
}

/// The sending end of a stream over MPI.
///
/// # Errors
/// As [`receive_half`].
pub fn send_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn SendHalf>, LaneError> {
    let wire = Messages::sending(stream).map_err(not_set_up)?;
    Ok(Box::new(Sender::new(wire, protection)?))
}

fn not_set_up(source: io::Error) -> LaneError {
    LaneError::Socket {
        doing: "setting up messages of MPI",
        source,
    }
}

/// Messages of one direction.
#[derive(Clone, Copy, Debug)]
struct Shape {
    len: usize,
    depth: usize,
}

/// A buffer, and what MPI does with it.
#[derive(Debug)]
struct Slot {
    // MPI reads or writes it while there is a request.
    buffer: Box<[u8]>,
    request: Option<Request>,
    // Of a message that was received: its bytes, and those that were read.
    len: usize,
    read: usize,
}

/// Bytes both ways between two ranks of this host.
///
/// For loops that wait for many at once: no call waits. [`arm`](Self::arm) before a `poll` of the socket of at most
/// [`rest`](Self::rest), [`wake`](Self::wake) after it.
#[derive(Debug)]
pub struct Messages {
    library: &'static Library,
    bell: UnixStream,
    // Of messages to this process.
    tag: i32,
    // Rank and tag of the peer, once it has named them.
    peer: Option<(i32, i32)>,
    incoming: Shape,
    outgoing: Shape,
    // In the order of posting; all have requests but those that have arrived.
    inbound: VecDeque<Slot>,
    // In the order of sending.
    outbound: VecDeque<Slot>,
    // Buffers of messages that were sent.
    spare: Vec<Box<[u8]>>,
    // Messages so far: received, begun to be sent, sent. They wrap.
    received: u32,
    begun: u32,
    sent: u32,
    // Part of a note.
    heard: Vec<u8>,
    // The peer sleeps until it is woken.
    peer_sleeps: bool,
    // This side has said so, with these numbers.
    sleeps: bool,
    said: (u32, u32),
    // Waits in a row without a message.
    idle: u32,
    // Bytes or room are waited for, or messages are on their way.
    waits: bool,
    has_ended: bool,
    // Messages that the peer had begun to send at its end.
    last: Option<u32>,
    ended_at: Option<Instant>,
    unheard: u32,
}

impl Messages {
    /// The end that receives data.
    ///
    /// # Errors
    /// When this process is no rank, or the socket does not take a few bytes.
    pub fn receiving(bell: UnixStream) -> io::Result<Self> {
        Self::new(bell, DATA, REQUESTS)
    }

    /// The end that sends data.
    ///
    /// # Errors
    /// As [`receiving`](Self::receiving).
    pub fn sending(bell: UnixStream) -> io::Result<Self> {
        Self::new(bell, REQUESTS, DATA)
    }

    fn new(bell: UnixStream, incoming: Shape, outgoing: Shape) -> io::Result<Self> {
        let library = library()?;
        bell.set_nonblocking(true)?;
        let tag = library.new_tag()?;
        let own = Self {
            library,
            bell,
            tag,
            peer: None,
            incoming,
            outgoing,
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            spare: Vec::new(),
            received: 0,
            begun: 0,
            sent: 0,
            heard: Vec::new(),
            peer_sleeps: false,
            sleeps: false,
            said: (0, 0),
            idle: 0,
            waits: false,
            has_ended: false,
            last: None,
            ended_at: None,
            unheard: 0,
        };
        // Ranks and tags are positive.
        own.say(note::HELLO, library.rank as u32, tag as u32)?;
        Ok(own)
    }

    /// Fills the slices in order, as far as bytes are there; `Ok(0)` once the peer has closed and all is read.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing is there; others where MPI fails.
    pub fn take(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Wire::receive(self, slices)
    }

    /// Takes a prefix of the slices to be sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no space, [`io::ErrorKind::BrokenPipe`] where the peer has closed; others
    /// where MPI fails.
    pub fn put(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Wire::send(self, slices, false)
    }

    /// Whether, with `reads`, bytes are there, or the peer's end, or, with `writes`, space.
    ///
    /// # Errors
    /// Where MPI fails.
    pub fn arm(&mut self, reads: bool, writes: bool) -> io::Result<bool> {
        self.is_ready(Interest {
            read: reads.into(),
            write: writes,
        })
    }

    /// Whether the peer has ended, as far as that shows here; messages of it may be left.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// How long to wait at most where nothing is ready: before messages may be found of which there is no notice. `None`: the
    /// peer makes the socket readable when there is more. Yields the processor where the time is zero.
    ///
    /// # Errors
    /// Where the socket fails.
    pub fn rest(&mut self) -> io::Result<Option<Duration>> {
        if !self.waits {
            return Ok(None);
        }
        self.idle = self.idle.saturating_add(1);
        if self.idle <= YIELDS {
            std::thread::yield_now();
            return Ok(Some(Duration::ZERO));
        }
        let naps = self.idle - YIELDS - 1;
        let seen = (self.received, self.sent);
        let is_known = self.peer.is_some() && !self.has_ended;
        // Woken for what has not arrived, it looks for that by itself first.
        if is_known && !self.sleeps && (self.said != seen || naps >= NAPS) {
            (self.sleeps, self.said) = (true, seen);
            self.say(note::SLEEPS, seen.0, seen.1)?;
        }
        Ok((naps < NAPS).then(|| NAP_FIRST * (1 << naps)))
    }

    /// Takes note of what made the socket readable.
    ///
    /// # Errors
    /// Where the socket fails, or the peer says what makes no sense.
    pub fn wake(&mut self) -> io::Result<()> {
        self.hear()
    }

    /// Sends a note. The socket holds more of them than are ever on their way; a peer that has closed hears none.
    fn say(&self, kind: u8, one: u32, other: u32) -> io::Result<()> {
        let mut bytes = [kind; NOTE_LEN];
        bytes[1..5].copy_from_slice(&one.to_le_bytes());
        bytes[5..].copy_from_slice(&other.to_le_bytes());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match send(&self.bell, &bytes, flags) {
                Ok(NOTE_LEN) => return Ok(()),
                Ok(_) => return Err(io::Error::other("the socket took part of a note")),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Ok(()),
                // What the socket is full of wakes it, too.
                Err(rustix::io::Errno::AGAIN) if kind == note::WAKE => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads notes; notes the end, the peer's or that of this side's stopper.
    fn hear(&mut self) -> io::Result<()> {
        self.unheard = 0;
        let mut bytes = [0; NOTES_MAX * NOTE_LEN];
        match recv(&self.bell, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                self.has_ended = true;
                self.ended_at.get_or_insert_with(Instant::now);
            }
            Ok((count, _)) => self.heard.extend_from_slice(&bytes[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let whole = self.heard.len() / NOTE_LEN * NOTE_LEN;
        let notes: Vec<u8> = self.heard.drain(..whole).collect();
        for bytes in notes.chunks_exact(NOTE_LEN) {
            let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
            self.heed(bytes[0], number(1), number(5))?;
        }
        Ok(())
    }

    fn heed(&mut self, kind: u8, one: u32, other: u32) -> io::Result<()> {
        match (kind, self.peer) {
            (note::HELLO, None) => {
                let named = (i32::try_from(one), i32::try_from(other));
                let (Ok(rank), Ok(tag)) = named else {
                    return Err(no_sense());
                };
                if !self.library.has(rank, tag) {
                    return Err(no_sense());
                }
                self.peer = Some((rank, tag));
                self.idle = 0;
                // Ahead of the first message.
                for _ in 0..self.incoming.depth.min(DATA.depth) {
                    let buffer = vec![0; self.incoming.len].into_boxed_slice();
                    self.post(buffer)?;
                }
                Ok(())
            }
            (note::SLEEPS, Some(_)) => {
                self.peer_sleeps = true;
                // What happened since it looked last.
                let is_behind = self.received.wrapping_sub(other) as i32 > 0;
                match one != self.begun || is_behind {
                    true => self.wake_peer(),
                    false => Ok(()),
                }
            }
            (note::WAKE, Some(_)) => {
                (self.sleeps, self.idle) = (false, 0);
                Ok(())
            }
            (note::END, Some(_)) => {
                self.last = Some(one);
                Ok(())
            }
            _ => Err(no_sense()),
        }
    }

    /// After a message was sent or received.
    fn wake_peer(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.peer_sleeps) {
            true => self.say(note::WAKE, 0, 0),
            false => Ok(()),
        }
    }

    /// Now and then hears, while messages leave no time to wait; at first, always.
    fn hear_sometimes(&mut self) -> io::Result<()> {
        self.unheard += 1;
        match self.unheard >= UNHEARD_MAX || self.peer.is_none() {
            true => self.hear(),
            false => Ok(()),
        }
    }

    /// Has MPI fill a buffer with the next message.
    fn post(&mut self, mut buffer: Box<[u8]>) -> io::Result<()> {
        let (rank, _) = self.peer.ok_or_else(no_sense)?;
        // SAFETY: the buffer stays with its request in its slot until it is done or abandoned; moving the box moves no bytes.
        let request = unsafe { self.library.receive(&mut buffer, rank, self.tag) }?;
        self.inbound.push_back(Slot {
            buffer,
            request: Some(request),
            len: 0,
            read: 0,
        });
        Ok(())
    }

    /// Whether the next message has arrived.
    fn has_arrived(&mut self) -> io::Result<bool> {
        let Some(slot) = self.inbound.front_mut() else {
            return Ok(false);
        };
        let Some(request) = &mut slot.request else {
            return Ok(true);
        };
        let Some(len) = self.library.test(request)? else {
            return Ok(false);
        };
        (slot.request, slot.len, slot.read) = (None, len.min(slot.buffer.len()), 0);
        self.received = self.received.wrapping_add(1);
        self.idle = 0;
        self.wake_peer()?;
        Ok(true)
    }

    /// Takes back the buffers of messages that are sent.
    fn reap(&mut self) -> io::Result<()> {
        while let Some(Slot {
            request: Some(request),
            ..
        }) = self.outbound.front_mut()
            && self.library.test(request)?.is_some()
        {
            let sent = self.outbound.pop_front();
            self.spare.extend(sent.map(|slot| slot.buffer));
            self.sent = self.sent.wrapping_add(1);
            self.idle = 0;
        }
        Ok(())
    }

    /// A buffer for the next message; `None` while as many as may be are on their way.
    fn free(&mut self) -> io::Result<Option<Box<[u8]>>> {
        if self.peer.is_none() {
            return Ok(None);
        }
        self.reap()?;
        let has_room = self.outbound.len() < self.outgoing.depth;
        let new = || vec![0; self.outgoing.len].into_boxed_slice();
        Ok(self.spare.pop().or_else(|| has_room.then(new)))
    }

    /// Whether what is waited for is there.
    fn is_ready(&mut self, interest: Interest) -> io::Result<bool> {
        if interest.read > 0 && (self.has_arrived()? || self.is_over()?) {
            return Ok(true);
        }
        // Also where nothing is to be written: messages on their way go on while MPI is called.
        self.reap()?;
        self.waits = interest.read > 0 || interest.write || !self.outbound.is_empty();
        let has_room = self.peer.is_some() && self.outbound.len() < self.outgoing.depth;
        Ok(interest.write && (has_room || self.has_ended))
    }

    /// Whether the peer has ended and no message of it is to be expected.
    fn is_over(&self) -> io::Result<bool> {
        let Some(at) = self.ended_at else {
            return Ok(false);
        };
        let is_whole = self.last.is_none_or(|last| last == self.received);
        Ok(is_whole || at.elapsed() > LAST_WAIT)
    }

    fn poll(&self, patience: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(patience).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        });
        match poll(
            &mut [PollFd::new(&self.bell, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn no_sense() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the peer's note about its messages has no sense",
    )
}

impl Drop for Messages {
    fn drop(&mut self) {
        let _ = self.say(note::END, self.begun, 0);
        let inbound = self.inbound.drain(..).map(|slot| (slot, true));
        let outbound = self.outbound.drain(..).map(|slot| (slot, false));
        for (slot, is_received) in inbound.chain(outbound) {
            if let Some(request) = slot.request {
                self.library.abandon(request, slot.buffer, is_received);
            }
        }
    }
}

impl AsFd for Messages {
    /// The socket to wait for: readable when there may be something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Wire for Messages {
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.hear_sometimes()?;
        let mut taken = 0;
        'slices: for slice in slices {
            let mut slice = &mut slice[..];
            while !slice.is_empty() {
                if !self.has_arrived()? {
                    break 'slices;
                }
                let Some(slot) = self.inbound.front_mut() else {
                    break 'slices;
                };
                let part = slice.len().min(slot.len - slot.read);
                slice[..part].copy_from_slice(&slot.buffer[slot.read..slot.read + part]);
                slice = &mut slice[part..];
                slot.read += part;
                taken += part;
                if slot.read == slot.len
                    && let Some(slot) = self.inbound.pop_front()
                {
                    self.post(slot.buffer)?;
                }
            }
        }
        match taken {
            0 if self.is_over()? => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>], _more: bool) -> io::Result<usize> {
        self.hear_sometimes()?;
        if self.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut slices = slices.iter().map(|slice| &slice[..]);
        let mut rest = slices.next().unwrap_or_default();
        let mut taken = 0;
        loop {
            while rest.is_empty() {
                match slices.next() {
                    Some(next) => rest = next,
                    None => return Ok(taken),
                }
            }
            let Some((mut buffer, (rank, tag))) = self.free()?.zip(self.peer) else {
                break;
            };
            let mut len = 0;
            while len < buffer.len() {
                let part = rest.len().min(buffer.len() - len);
                buffer[len..len + part].copy_from_slice(&rest[..part]);
                (rest, len) = (&rest[part..], len + part);
                if rest.is_empty() {
                    match slices.next() {
                        Some(next) => rest = next,
                        None => break,
                    }
                }
            }
            // SAFETY: the buffer stays with its request in its slot until it is done or abandoned; moving the box moves no bytes.
            let request = unsafe { self.library.send(&buffer, len, rank, tag) }?;
            self.outbound.push_back(Slot {
                buffer,
                request: Some(request),
                len,
                read: 0,
            });
            self.begun = self.begun.wrapping_add(1);
            taken += len;
            self.wake_peer()?;
        }
        match taken {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.is_ready(interest)? || left.is_zero() {
                return Ok(());
            }
            if self.has_ended {
                // The socket is readable all the time.
                std::thread::sleep(NAP_FIRST);
                continue;
            }
            let rest = self.rest()?;
            self.poll(rest.map_or(left, |rest| rest.min(left)))?;
            self.hear()?;
        }
    }

    fn handle(&self) -> io::Result<Arc<dyn Handle>> {
        Socket::new(OwnedFd::from(self.bell.try_clone()?), true)?.handle()
    }
}
