//! One socket of datagrams for all edges of a process: it is not connected, and the lane in each header names the edge.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, SockAddr, Type};

use super::sys::{self, Inbox};

/// Bytes of one call at most: below what an IP packet may announce.
pub const SEND_MAX: usize = 60_000;

/// Datagrams of one call at most.
pub const SEGMENTS_MAX: usize = sys::SEGMENTS_MAX;

/// Longest datagram there can be, as the header counts it.
const DATAGRAM_MAX: u32 = 65_000;

/// What one call sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All, or the path is gone for now and it is lost.
    All,
    /// So many bytes; the socket has space for no more, and becomes writable.
    Part(usize),
    /// Nothing; the interface's queue is full, whose end is not reported.
    Full,
}

/// The queue of a socket of datagrams, in the kernel's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Bytes in it.
    pub bytes: u64,
    /// Its size.
    pub size: u64,
    /// Packets that found no space.
    pub drops: u64,
}

/// What carries datagrams: a socket, or in tests one that loses some.
pub trait Carrier: Send {
    /// What to wait for with `poll`.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Sends `bytes` as datagrams of `segment` bytes each, of which the last may be shorter. Never waits.
    ///
    /// # Errors
    /// As the system says; a long message where `segment` is longer than the interface takes.
    fn send(&mut self, to: &SocketAddr, bytes: &[u8], segment: u16) -> io::Result<Sent>;

    /// Takes what is there, up to a batch; gives the number of messages. Never waits.
    ///
    /// # Errors
    /// As the system says.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize>;

    /// The state of the queue.
    fn queued(&self) -> Queued;

    /// Its port.
    fn port(&self) -> u16;
}

/// The socket.
#[derive(Debug)]
pub struct Shared {
    socket: UdpSocket,
    is_v6: bool,
    port: u16,
    // The kernel cuts what is sent in one call.
    cuts: bool,
}

impl Shared {
    /// A socket at all addresses of this host, at a port that the system chooses.
    ///
    /// * `buffer`: of received datagrams, in the kernel's count, as far as it is permitted; `None`: what the system gives.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(buffer: Option<u64>) -> io::Result<Self> {
        let v6 = || -> io::Result<UdpSocket> {
            let socket = socket2::Socket::new(Domain::IPV6, Type::DGRAM, None)?;
            socket.set_only_v6(false)?;
            socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())?;
            Ok(socket.into())
        };
        // A kernel without IPv6.
        let (socket, is_v6) = match v6() {
            Ok(socket) => (socket, true),
            Err(_) => (UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?, false),
        };
        socket.set_nonblocking(true)?;
        sys::never_fragment(&socket, false)?;
        if is_v6 {
            sys::never_fragment(&socket, true)?;
        }
        sys::merge_received(&socket);
        if let Some(buffer) = buffer {
            sys::set_receive_buffer(&socket, buffer)?;
        }
        let port = socket.local_addr()?.port();
        Ok(Self {
            socket,
            is_v6,
            port,
            cuts: true,
        })
    }
}

/// Longest datagram on the way of a connected stream that its interface takes, with packets of at most `mtu` bytes.
///
/// # Errors
/// As the system says.
pub fn longest(stream: impl AsFd, peer: &SocketAddr, mtu: u32) -> io::Result<u32> {
    let found = sys::mtu(stream, peer.is_ipv6())?;
    let mtu = found.min(mtu);
    Ok(mtu.saturating_sub(overhead(peer)).min(DATAGRAM_MAX))
}

/// Bytes around a datagram in a packet to this address.
#[must_use]
pub fn overhead(peer: &SocketAddr) -> u32 {
    let ip = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    sys::overhead(&ip)
}

impl Carrier for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&mut self, to: &SocketAddr, bytes: &[u8], segment: u16) -> io::Result<Sent> {
        let to = match to {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            other => *other,
        };
        let to = SockAddr::from(to);
        let mut left = bytes;
        loop {
            let sent = match self.cuts {
                true => {
                    sys::send_segmented(&self.socket, Some(&to), left, segment).map(|()| left.len())
                }
                false => sys::send_many(&self.socket, Some(&to), left, segment),
            };
            match sent {
                Ok(count) => left = &left[count..],
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (_, Some(libc::ENOBUFS)) if left.len() == bytes.len() => {
                        return Ok(Sent::Full);
                    }
                    (io::ErrorKind::WouldBlock, _) | (_, Some(libc::ENOBUFS)) => {
                        return Ok(Sent::Part(bytes.len() - left.len()));
                    }
                    (io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused, _) => {}
                    // Interfaces without checksum offload, and old kernels, cannot cut.
                    (_, Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOPROTOOPT))
                        if self.cuts =>
                    {
                        self.cuts = false
                    }
                    // The way is gone for now, or a firewall of this host is in it; rounds repair what did not leave.
                    (
                        _,
                        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EPERM),
                    ) => return Ok(Sent::All),
                    _ => return Err(error),
                },
            }
            if left.is_empty() {
                return Ok(Sent::All);
            }
        }
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.receive(&self.socket)
    }

    fn queued(&self) -> Queued {
        let queue = sys::queue(&self.socket).unwrap_or_default();
        Queued {
            bytes: queue.queued,
            size: queue.size,
            drops: queue.drops,
        }
    }

    fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams cross between sockets for both families, over IPv4 and, where there is one, IPv6; each message is cut again.
    #[test]
    fn datagrams_cross() {
        let mut one = Shared::open(None).unwrap();
        let mut other = Shared::open(Some(1 << 20)).unwrap();
        assert!(other.queued().size > 0);
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, other.port()));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, other.port()));
        let mut inbox = Inbox::new();
        for to in [v4, v6] {
            if to.is_ipv6() && UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
                continue;
            }
            assert_eq!(one.send(&to, &[7; 2500], 1000).unwrap(), Sent::All);
            let mut lens = Vec::new();
            while lens.len() < 3 {
                let count = other.receive(&mut inbox).unwrap();
                for message in 0..count {
                    lens.extend(inbox.datagrams(message).map(<[u8]>::len));
                }
            }
            assert_eq!(lens, [1000, 1000, 500]);
        }
    }
}
