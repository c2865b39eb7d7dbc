//! A wire over a connected stream socket of any family. Never blocks except in `poll`, so that
//! deadlines are exact and time spent waiting can be distinguished from time spent copying.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ropewalk_sockopt::set_receive_low_water;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, send, sendmsg,
};

use crate::half::Handle;
use crate::tcp_info::TcpInfo;
use crate::wire::{Interest, Wire};

/// Most bytes a wait for reading asks for. Half of it fits any receive window that lets a lane run
/// at speed; on loopback it takes a fifth off the sender's processor time, which went into waking
/// the receiver for every 64 KiB.
const LOW_WATER_MAX: usize = 128 << 10;

pub(crate) struct Socket {
    fd: OwnedFd,
    /// What the kernel has as low-water mark.
    low_water: usize,
    local: bool,
}

impl Socket {
    /// Takes over a connected stream socket; `local` says that the peer runs on this host.
    pub(crate) fn new(fd: OwnedFd, local: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self {
            fd,
            low_water: 1,
            local,
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wire for Socket {
    fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let [only] = slices {
            return Ok(recv(&self.fd, &mut **only, RecvFlags::empty())?.0);
        }
        let mut none = RecvAncillaryBuffer::default();
        Ok(recvmsg(&self.fd, slices, &mut none, RecvFlags::CMSG_CLOEXEC)?.bytes)
    }

    fn send(&mut self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let flags = if more {
            SendFlags::NOSIGNAL | SendFlags::MORE
        } else {
            SendFlags::NOSIGNAL
        };
        if let [only] = slices {
            return Ok(send(&self.fd, only, flags)?);
        }
        Ok(sendmsg(
            &self.fd,
            slices,
            &mut SendAncillaryBuffer::default(),
            flags,
        )?)
    }

    fn send_file(&mut self, file: &File, offset: u64, length: usize) -> io::Result<usize> {
        let mut at = offset;
        Ok(rustix::fs::sendfile(&self.fd, file, Some(&mut at), length)?)
    }

    fn sends_files(&self) -> bool {
        !self.local
    }

    fn wait(&mut self, interest: Interest, deadline: Instant) -> io::Result<()> {
        if interest.read > 0 {
            let low_water = interest.read.min(LOW_WATER_MAX);
            if low_water != self.low_water {
                set_receive_low_water(&self.fd, low_water as i32)?;
                self.low_water = low_water;
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        });
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read > 0);
        flags.set(PollFlags::OUT, interest.write);
        match poll(&mut [PollFd::new(&self.fd, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn handle(&self) -> io::Result<Arc<dyn Handle>> {
        let copy = self.fd.as_fd().try_clone_to_owned()?;
        Ok(Arc::new(Copy(socket2::Socket::from(copy))))
    }
}

/// Another descriptor of the same connection.
struct Copy(socket2::Socket);

impl Handle for Copy {
    fn close(&self) {
        // A peer that is gone already makes this fail; the stream is over either way.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    fn received(&self) -> Option<u64> {
        TcpInfo::of(&self.0).map(|info| info.bytes_received)
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        TcpInfo::of(&self.0)
    }
}
