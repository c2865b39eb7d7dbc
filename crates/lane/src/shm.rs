//! Streams through rings in shared memory, for two processes of one host.
//!
//! ```text
//!             ring of data (sender writes)          ring of requests (receiver writes)
//!  memory:  head tail wants | bytes ...            head tail wants | bytes ...
//!  socket:  one byte rings the bell of a peer that waits; its end is the stream's end
//! ```
//!
//! Bytes can also be used where they lie, and go from one ring to another with one copy ([`Rings::copy_to`]).
//!
//! The receiver makes the memory and passes it over the connected Unix socket; nothing has a name, so that nothing is left
//! when both processes are killed. Its size is sealed: a peer cannot cut it. Bytes are copied once in and once out. A side
//! that has nothing to do says in the ring what it waits for and sleeps in `poll` on the socket, without spinning.
//!
//! The peer is another process and may write anything into the memory: positions that do not fit end the stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

use crate::half::Handle;
use crate::receive::Receiver;
use crate::send::Sender;
use crate::socket::Socket;
use crate::wire::{Interest, Wire};
use crate::{LaneError, Protection, ReceiveHalf, SendHalf};
use memory::{BESIDE_LEN, DATA_LEN, DATA_MAX, Mapped, Memory, Ring};

/// Calls that find the ring ready before the socket is looked at, too: a system call for each would cost more than the copies.
const UNHEARD_MAX: u32 = 64;

/// Rings of the bell that are taken off the socket at once. One is enough to wake; a peer that rings more is not waited for.
const RINGS_MAX: usize = 256;

/// The seals that a peer may rely on: whoever maps the memory keeps all of it.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The receiving end of a stream over shared memory; `stream` is connected to the peer and becomes the bell.
///
/// # Errors
/// [`LaneError::Socket`] when the memory cannot be made or passed on.
pub fn receive_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    let wire = Rings::offer(stream).map_err(|source| LaneError::Socket {
        doing: "making shared memory for the stream",
        source,
    })?;
    Ok(Box::new(Receiver::new(wire, protection)?))
}

/// The sending end of a stream over shared memory, which the peer makes.
///
/// # Errors
/// [`LaneError::Socket`] when the socket cannot be set up. That the peer's memory does not fit shows in
/// [`SendHalf::serve`].
pub fn send_half(
    stream: UnixStream,
    protection: Protection,
) -> Result<Box<dyn SendHalf>, LaneError> {
    let wire = Rings::accept(stream).map_err(|source| LaneError::Socket {
        doing: "taking over the Unix socket",
        source,
    })?;
    Ok(Box::new(Sender::new(wire, protection)?))
}

/// Bytes both ways between two processes of one host, through two rings; the socket wakes the one that waits.
///
/// For loops that wait for many at once: no call waits. [`arm`](Self::arm) before a `poll` of the socket,
/// [`wake`](Self::wake) after it.
#[derive(Debug)]
pub struct Rings {
    bell: UnixStream,
    /// Before the peer's memory has arrived there is none.
    mapped: Option<Mapped>,
    /// The peer has closed; what it wrote before may still lie in the ring.
    has_ended: bool,
    /// Calls since the socket was looked at.
    unheard: u32,
}

/// What a side waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes to read; 0: none.
    pub bytes: usize,
    /// Where there are no bytes at all, this side is woken for so many, or as soon as a peer that [arms](Rings::arm_for) sleeps.
    pub batch: usize,
    /// Bytes of space to write; 0: as much as is worth waking for.
    pub room: Option<usize>,
}

impl Wanted {
    /// Only that the peer ends.
    pub const NONE: Self = Self {
        bytes: 0,
        batch: 0,
        room: None,
    };
    /// Space, as much as is worth waking for.
    pub const ROOM: Self = Self {
        bytes: 0,
        batch: 0,
        room: Some(0),
    };
}

impl Rings {
    /// Makes the memory and passes it to the peer: the end that receives data.
    ///
    /// # Errors
    /// When the memory cannot be made, or the socket does not take it.
    pub fn offer(bell: UnixStream) -> io::Result<Self> {
        Self::offer_for(bell, 0)
    }

    /// As [`offer`](Self::offer), with a ring of data that holds a piece of so many bytes, up to 4 MiB, and part of the next.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub fn offer_for(bell: UnixStream, piece: usize) -> io::Result<Self> {
        let data_len = (piece + piece / 3).next_power_of_two();
        let data_len = data_len.clamp(DATA_LEN, DATA_MAX);
        let file = memfd_create(
            "ropewalk-lane",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, (BESIDE_LEN + data_len) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let memory = Memory::map(&file, data_len)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        let fits = rights.push(SendAncillaryMessage::ScmRights(&files));
        debug_assert!(fits, "the space is for one descriptor");
        sendmsg(
            &bell,
            &[IoSlice::new(&[0])],
            &mut rights,
            SendFlags::NOSIGNAL,
        )?;
        bell.set_nonblocking(true)?;
        Ok(Self {
            bell,
            mapped: Some(Mapped::new(memory, true)),
            has_ended: false,
            unheard: 0,
        })
    }

    /// Takes the peer's memory whenever it is first needed: the end that sends data.
    ///
    /// # Errors
    /// When the socket cannot be set up.
    pub fn accept(bell: UnixStream) -> io::Result<Self> {
        bell.set_nonblocking(true)?;
        Ok(Self {
            bell,
            mapped: None,
            has_ended: false,
            unheard: 0,
        })
    }

    /// Fills the slices in order, as far as bytes are there; `Ok(0)` once the peer has closed and all is read.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing is there; others where the peer's memory does not fit.
    pub fn take(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Wire::receive(self, slices)
    }

    /// Writes a prefix of the slices.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no space, [`io::ErrorKind::BrokenPipe`] where the peer has closed; others
    /// where the peer's memory does not fit.
    pub fn put(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Wire::send(self, slices, false)
    }

    /// Whether bytes are there, or the peer's end, or, with `writes`, space. Where nothing is, the peer makes the socket
    /// readable as soon as something is.
    ///
    /// # Errors
    /// Where the peer's memory does not fit.
    pub fn arm(&mut self, writes: bool) -> io::Result<bool> {
        let wants = if writes { Wanted::ROOM } else { Wanted::NONE };
        self.arm_for(Wanted { bytes: 1, ..wants })
    }

    /// As [`arm`](Self::arm), for as many bytes to read and as much space as are wanted. Before this side sleeps it rings for what
    /// it wrote, however little that is.
    ///
    /// # Errors
    /// Where the peer's memory does not fit.
    pub fn arm_for(&mut self, wanted: Wanted) -> io::Result<bool> {
        if self.has_ended {
            return Ok(true);
        }
        match self.is_armed(wanted) {
            // The peer's memory has not arrived; the socket is readable when it has.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            ready => ready,
        }
    }

    fn is_armed(&mut self, wanted: Wanted) -> io::Result<bool> {
        let (bell, mapped) = self.parts()?;
        let Mapped {
            inbound, outbound, ..
        } = mapped;
        let bytes = wanted.bytes.min(inbound.len);
        let room = match wanted.room {
            Some(0) => outbound.worth(outbound.len),
            Some(room) => room.min(outbound.len) as u32,
            None => 0,
        };
        let is_ready = || -> io::Result<bool> {
            Ok(bytes > 0 && inbound.filled()? >= bytes
                || room > 0 && outbound.room()? >= room as usize)
        };
        if is_ready()? {
            return Ok(true);
        }
        // What this side wrote is not followed by more for now.
        if outbound.filled()? > 0 {
            let _ = ring_bell(bell, &outbound.wants().bytes, usize::MAX);
        }
        // A part of what is wanted is followed by the rest; nothing may be followed by little, for which the peer rings when it sleeps.
        let least = match bytes > 0 && inbound.filled()? == 0 {
            true => bytes.max(wanted.batch).min(inbound.len / 2),
            false => bytes,
        };
        let least = least as u32;
        inbound.wants().bytes.store(least, Ordering::Relaxed);
        outbound.wants().room.store(room, Ordering::Relaxed);
        // As in `ring_bell`, the other way round.
        fence(Ordering::SeqCst);
        let is_ready = is_ready()?;
        if is_ready {
            inbound.wants().bytes.store(0, Ordering::Relaxed);
            outbound.wants().room.store(0, Ordering::Relaxed);
        }
        Ok(is_ready)
    }

    /// Whether bytes are there; true as well where reading would fail.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        let is_filled = |ring: &Ring| ring.filled().map_or(true, |filled| filled > 0);
        let mapped = self.mapped.as_ref();
        mapped.is_some_and(|mapped| is_filled(&mapped.inbound))
    }

    /// Whether the peer has closed; what it wrote before may still lie in the ring.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes note of what made the socket readable.
    ///
    /// # Errors
    /// Where the socket fails.
    pub fn wake(&mut self) -> io::Result<()> {
        match self.parts() {
            Ok(_) => self.hear(),
            // The peer closed before it passed its memory.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.has_ended = true;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The bell and the rings; [`io::ErrorKind::WouldBlock`] before the peer's memory has arrived.
    fn parts(&mut self) -> io::Result<(&UnixStream, &Mapped)> {
        let mapped = match &mut self.mapped {
            Some(mapped) => mapped,
            none => none.insert(Mapped::new(take_memory(&self.bell)?, false)),
        };
        Ok((&self.bell, mapped))
    }

    /// Whether what is waited for is there; otherwise the peer is asked to ring once it is.
    fn is_ready(&mut self, interest: Interest) -> io::Result<bool> {
        let (
            _,
            Mapped {
                inbound, outbound, ..
            },
        ) = self.parts()?;
        let bytes = inbound.worth(interest.read);
        let room = outbound.worth(outbound.len);
        let wants = |waits: bool, least: u32| if waits { least } else { 0 };
        let reads = interest.read > 0;
        inbound
            .wants()
            .bytes
            .store(wants(reads, bytes), Ordering::Relaxed);
        outbound
            .wants()
            .room
            .store(wants(interest.write, room), Ordering::Relaxed);
        // As in `ring_bell`, the other way round.
        fence(Ordering::SeqCst);
        let is_ready = reads && inbound.filled()? >= bytes as usize
            || interest.write && outbound.room()? >= room as usize;
        if is_ready {
            inbound.wants().bytes.store(0, Ordering::Relaxed);
            outbound.wants().room.store(0, Ordering::Relaxed);
        }
        Ok(is_ready)
    }

    /// Takes rings of the bell off the socket; notes the end, the peer's or that of this side's stopper.
    fn hear(&mut self) -> io::Result<()> {
        self.unheard = 0;
        let mut bytes = [0; RINGS_MAX];
        loop {
            match recv(&self.bell, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                    self.has_ended = true;
                    return Ok(());
                }
                Ok(_) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Now and then hears, while the ring leaves no time to wait. Only once the memory is here: it comes over the socket.
    fn hear_sometimes(&mut self) -> io::Result<()> {
        self.unheard += 1;
        match self.unheard >= UNHEARD_MAX {
            true => self.hear(),
            false => Ok(()),
        }
    }

    fn poll(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
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

/// Wakes the peer if it waits for no more than `has`. Must follow the change of the ring's position.
fn ring_bell(bell: &UnixStream, wants: &AtomicU32, has: usize) -> io::Result<()> {
    // The position must be visible before `wants` is read: the peer writes `wants` and then reads the position.
    fence(Ordering::SeqCst);
    let wanted = wants.load(Ordering::Relaxed) as usize;
    if wanted == 0 || has < wanted || wants.swap(0, Ordering::Relaxed) == 0 {
        return Ok(());
    }
    match send(bell, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        // A full socket is a bell that rings already.
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes the memory that the peer passes as its first byte.
fn take_memory(bell: &UnixStream) -> io::Result<Memory> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(bell, &mut [IoSliceMut::new(&mut byte)], &mut rights, flags)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let files = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = files
        .flatten()
        .next()
        .ok_or_else(|| wrong("the peer passed no shared memory"))?;
    // Without the seals the peer could cut the memory under this process.
    let seals = fcntl_get_seals(&file)?;
    let len = rustix::fs::fstat(&file)?.st_size;
    let data_len = usize::try_from(len).unwrap_or(0).saturating_sub(BESIDE_LEN);
    let is_length = (DATA_LEN..=DATA_MAX).contains(&data_len) && data_len.is_power_of_two();
    if !seals.contains(SEALS) || !is_length {
        return Err(wrong(
            "the peer's shared memory has another size, or is not sealed",
        ));
    }
    Memory::map(&file, data_len)
}

impl AsFd for Rings {
    /// The socket to wait for: readable when there may be something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Wire for Rings {
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.has_ended && self.mapped.is_none() {
            return Ok(0);
        }
        self.parts()?;
        self.hear_sometimes()?;
        let has_ended = self.has_ended;
        let (bell, Mapped { inbound, .. }) = self.parts()?;
        let taken = inbound.read(slices)?;
        if taken == 0 {
            // All that the peer wrote before its end has been read.
            return if has_ended {
                Ok(0)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        // A peer that has ended needs no bell, and its bytes count.
        let _ = ring_bell(bell, &inbound.wants().room, inbound.room()?);
        Ok(taken)
    }

    fn send(&mut self, slices: &[IoSlice<'_>], _more: bool) -> io::Result<usize> {
        self.parts()?;
        self.hear_sometimes()?;
        if self.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let (bell, Mapped { outbound, .. }) = self.parts()?;
        let written = outbound.write(slices)?;
        if written == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // What is written counts; that the peer has ended shows next, where anything is left to say to it.
        let _ = ring_bell(bell, &outbound.wants().bytes, outbound.filled()?);
        Ok(written)
    }

    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()> {
        if self.mapped.is_none() {
            return self.poll(deadline);
        }
        loop {
            if self.has_ended || self.is_ready(interest)? || Instant::now() >= deadline {
                return Ok(());
            }
            self.poll(deadline)?;
            self.hear()?;
        }
    }

    fn handle(&self) -> io::Result<Arc<dyn Handle>> {
        Socket::new(OwnedFd::from(self.bell.try_clone()?), true)?.handle()
    }
}

mod in_place;
mod memory;
#[cfg(test)]
mod tests;
