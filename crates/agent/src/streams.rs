//! A connected data socket and what guards it.

use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ropewalk_lane::seal::{self, PairSecret};
use ropewalk_lane::udp::Order;
use ropewalk_lane::{
    Check, LaneError, Protection, ReceiveHalf, SendHalf, mpi, shm, tcp, udp, unix,
};
use ropewalk_proto::control::{self, LaneKind, Options, Verify};

use crate::sending::OverRail;

/// Stack of a data thread: its buffers are on the heap, hashing needs a few KiB.
pub(crate) const STACK_LEN: usize = 256 << 10;

/// Longest wait before it is looked whether the transfer has ended.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Number of the stream that fetches a manifest: reliable whatever lanes the transfer has, since it is short and comes first.
pub(crate) const MANIFEST_STREAM: u32 = u32::MAX;

/// Number of the stream over which a holder is asked for hashes of units; reliable, too.
pub(crate) const HASH_STREAM: u32 = u32::MAX - 1;

/// Such streams that a node opens, over all parts; of many parts each line has one to each.
pub(crate) const HASH_STREAMS_MAX: usize = 8;

/// What a lane of datagrams is granted ahead, at least and at most: it has a set rate, so what is on its way need not
/// show how fast it is first. With RBUDP this is the blast; what is lost of it is held until the next round, so a node
/// that fetches from several divides it.
const BLAST_MIN: u64 = 16 << 20;
const BLAST_MAX: u64 = 256 << 20;

/// Time of the rate that a RAPID lane is granted ahead: two of the longest round trips on earth, and a pause.
const AHEAD_MILLISECONDS: u64 = 800;

/// Bytes to grant ahead on each of so many lanes of datagrams; `None` on others.
pub(crate) fn blast(options: &Options, lanes: usize) -> Option<u64> {
    let ahead = match options.lane() {
        LaneKind::Rbudp => BLAST_MAX,
        LaneKind::Rapid if options.rate == 0 => BLAST_MAX / 4,
        LaneKind::Rapid => options.rate / 1000 * AHEAD_MILLISECONDS,
        _ => return None,
    };
    let most = (BLAST_MAX / lanes.max(1) as u64).max(BLAST_MIN);
    Some(ahead.clamp(BLAST_MIN, most).max(options.prefetch))
}

/// The options as they hold for one stream of the transfer.
pub(crate) fn of_stream(options: &Options, index: u32) -> Options {
    let mut options = *options;
    if index >= HASH_STREAM && options.lane().is_of_datagrams() {
        options.set_lane(LaneKind::Tcp);
    }
    options
}

/// How datagrams go beside a TCP stream; `None` where they do not.
fn datagrams(options: &Options) -> Option<udp::Options> {
    let (order, monitor) = match options.lane() {
        LaneKind::Rbudp => (Order::BlastFirst, None),
        LaneKind::Rapid => (Order::RepairsFirst, Some(options.monitor().kind())),
        _ => return None,
    };
    Some(udp::Options {
        rate: control::limit(options.rate),
        mtu: control::given(options.mtu),
        order,
        monitor,
        receive_buffer: control::given(options.receive_buffer),
    })
}

/// A connection that carries frames.
#[derive(Debug)]
pub(crate) enum DataSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What guards a stream, by the transfer's options: both ends see the same ones.
fn protection(options: &Options, secret: &PairSecret, nonce: [u8; 32]) -> Protection {
    match (options.plain, options.verify()) {
        (false, _) => Protection::Sealed(seal::stream_keys(secret, nonce)),
        (true, Verify::None) => Protection::Plain(Check::None),
        (true, _) => Protection::Plain(Check::Fragment),
    }
}

impl From<DataSocket> for OwnedFd {
    fn from(socket: DataSocket) -> Self {
        match socket {
            DataSocket::Tcp(stream) => stream.into(),
            DataSocket::Unix(stream) => stream.into(),
        }
    }
}

impl DataSocket {
    /// The rail to this receiver that it belongs to, where it has addresses.
    pub fn over(&self, receiver: u32) -> Option<OverRail> {
        let Self::Tcp(stream) = self else {
            return None;
        };
        // A listener of both families gives IPv4 addresses as IPv6 ones.
        Some(OverRail {
            receiver,
            local: stream.local_addr().ok()?.ip().to_canonical(),
            remote: stream.peer_addr().ok()?.ip().to_canonical(),
        })
    }

    pub fn receive_half(
        self,
        options: &Options,
        secret: &PairSecret,
        nonce: [u8; 32],
    ) -> Result<Box<dyn ReceiveHalf>, LaneError> {
        let protection = protection(options, secret, nonce);
        match self {
            Self::Tcp(stream) => match datagrams(options) {
                Some(datagrams) => udp::receive_half(stream, protection, datagrams),
                None => tcp::receive_half(stream, protection),
            },
            Self::Unix(stream) => match options.lane() {
                LaneKind::Shm => shm::receive_half(stream, protection),
                LaneKind::Mpi => mpi::receive_half(stream, protection),
                _ => unix::receive_half(stream, protection),
            },
        }
    }

    pub fn send_half(
        self,
        options: &Options,
        secret: &PairSecret,
        nonce: [u8; 32],
    ) -> Result<Box<dyn SendHalf>, LaneError> {
        let protection = protection(options, secret, nonce);
        match self {
            Self::Tcp(stream) => match datagrams(options) {
                Some(datagrams) => udp::send_half(stream, protection, datagrams),
                None => tcp::send_half(stream, protection),
            },
            Self::Unix(stream) => match options.lane() {
                LaneKind::Shm => shm::send_half(stream, protection),
                LaneKind::Mpi => mpi::send_half(stream, protection),
                _ => unix::send_half(stream, protection),
            },
        }
    }

    /// For reports.
    pub fn kind(&self, options: &Options) -> &'static str {
        match self {
            Self::Tcp(_) if options.lane().is_of_datagrams() => options.lane().name(),
            Self::Tcp(_) => LaneKind::Tcp.name(),
            Self::Unix(_) => match options.lane() {
                kind @ (LaneKind::Shm | LaneKind::Mpi) => kind.name(),
                _ => LaneKind::Unix.name(),
            },
        }
    }
}

/// The addresses of a connection between hosts: this host's, and the peer's.
pub(crate) fn ends_of(stream: &TcpStream) -> Option<(IpAddr, IpAddr)> {
    let (near, far) = stream.local_addr().ok().zip(stream.peer_addr().ok())?;
    Some((near.ip().to_canonical(), far.ip().to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer over MPI has no lane in a process that is no rank, and takes no other kind instead.
    #[test]
    fn lanes_of_mpi_need_ranks() {
        let mut options = Options::default();
        options.set_lane(LaneKind::Mpi);
        let secret = PairSecret([1; 32]);
        let ends = UnixStream::pair().unwrap();
        let receives = DataSocket::Unix(ends.0).receive_half(&options, &secret, [2; 32]);
        let sends = DataSocket::Unix(ends.1).send_half(&options, &secret, [2; 32]);
        for error in [receives.err(), sends.err()] {
            let text = error.expect("an error").to_string();
            assert!(text.contains("this process is no rank of mpirun"), "{text}");
        }
    }
}
