//! What an edge's bytes cross: a socket, or rings in shared memory or messages of MPI, whose bell is a socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ropewalk_lane::mpi::Messages;
use ropewalk_lane::shm::{Rings, Wanted};
use ropewalk_proto::control::LaneKind;
use rustix::event::PollFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recvmsg, sendmsg,
    shutdown,
};

/// Bytes both ways; no call waits.
pub(crate) enum Link {
    Socket(OwnedFd),
    // Boxed: larger than a descriptor by far.
    Rings(Box<Rings>),
    Messages(Box<Messages>),
}

impl Link {
    /// The end of an edge that receives frames of so many bytes at most; it makes the memory where that is shared.
    pub fn receiving(socket: OwnedFd, lane: LaneKind, longest: usize) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(match lane {
            LaneKind::Shm => Self::Rings(Box::new(Rings::offer_for(socket.into(), longest)?)),
            LaneKind::Mpi => Self::Messages(Box::new(Messages::receiving(socket.into())?)),
            _ => Self::Socket(socket),
        })
    }

    /// The end of an edge that sends blocks.
    pub fn sending(socket: OwnedFd, lane: LaneKind) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(match lane {
            LaneKind::Shm => Self::Rings(Box::new(Rings::accept(socket.into())?)),
            LaneKind::Mpi => Self::Messages(Box::new(Messages::sending(socket.into())?)),
            _ => Self::Socket(socket),
        })
    }

    /// Fills the slices in order as far as bytes are there; 0 once the peer has closed.
    pub fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => {
                let mut none = RecvAncillaryBuffer::default();
                Ok(recvmsg(&*socket, slices, &mut none, RecvFlags::CMSG_CLOEXEC)?.bytes)
            }
            Self::Rings(rings) => rings.take(slices),
            Self::Messages(messages) => messages.take(slices),
        }
    }

    /// Writes a prefix of the slices.
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => {
                let mut none = SendAncillaryBuffer::default();
                Ok(sendmsg(&*socket, slices, &mut none, SendFlags::NOSIGNAL)?)
            }
            Self::Rings(rings) => rings.put(slices),
            Self::Messages(messages) => messages.put(slices),
        }
    }

    /// Nothing more is sent.
    pub fn shut(&mut self) {
        if let Self::Socket(socket) = self {
            // The receiver reads to the end, then closes.
            let _ = shutdown(socket, Shutdown::Write);
        }
    }

    /// What to wait for with `poll`.
    pub fn flags(&self, reads: bool, writes: bool) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads || !self.is_socket());
        flags.set(PollFlags::OUT, writes && self.is_socket());
        flags
    }

    /// Whether readiness shows in `poll` only.
    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    /// Whether bytes lie in memory that both ends map.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Rings(_))
    }

    /// The rings, where there are some.
    pub fn rings(&mut self) -> Option<&mut Rings> {
        match self {
            Self::Socket(_) | Self::Messages(_) => None,
            Self::Rings(rings) => Some(rings),
        }
    }

    /// Whether bytes are there, or the peer's end, where that shows without a system call.
    pub fn has_bytes(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Messages(_) => false,
            Self::Rings(rings) => rings.has_bytes(),
        }
    }

    /// Whether the peer has ended, as far as that shows here.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Rings(rings) => rings.has_ended(),
            Self::Messages(messages) => messages.has_ended(),
        }
    }

    /// Whether there is something to do without waiting; else the descriptor becomes ready when there is.
    pub fn arm(&mut self, wanted: Wanted) -> io::Result<bool> {
        match self {
            Self::Socket(_) => Ok(false),
            Self::Rings(rings) => rings.arm_for(wanted),
            Self::Messages(messages) => messages.arm(wanted.bytes > 0, wanted.room.is_some()),
        }
    }

    /// How long to wait for the descriptor at most, where nothing is ready; `None`: any time.
    pub fn rest(&mut self) -> io::Result<Option<Duration>> {
        match self {
            Self::Socket(_) | Self::Rings(_) => Ok(None),
            Self::Messages(messages) => messages.rest(),
        }
    }

    /// The descriptor is ready.
    pub fn wake(&mut self) -> io::Result<()> {
        match self {
            Self::Socket(_) => Ok(()),
            Self::Rings(rings) => rings.wake(),
            Self::Messages(messages) => messages.wake(),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(socket) => socket.as_fd(),
            Self::Rings(rings) => rings.as_fd(),
            Self::Messages(messages) => messages.as_fd(),
        }
    }
}
