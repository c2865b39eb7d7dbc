//! The reliable stream of a datagram lane: short frames over TCP, never waiting by themselves.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use ropewalk_model::Nanos;
use ropewalk_proto::wire::{FrameHeader, FrameKind, HEADER_LEN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::LaneError;
use crate::doing::{Doing, during};
use crate::frame_io::{Ahead, Guard, body_len};
use crate::socket::Socket;
use crate::tcp;
use crate::tcp_info::TcpInfo;
use crate::wire::Link;

/// Longest body of a frame here: a bitmap of 2048 bits, or a reason, with room to spare.
const BODY_MAX: usize = 1024;
/// Bytes read ahead.
const AHEAD_LEN: usize = 32 << 10;
/// Unsent bytes at which the peer is taken for dead: more than all frames that can be owed at once.
const UNSENT_MAX: usize = 8 << 20;

/// The stream, with addresses of both ends.
pub(super) struct Frames {
    pub link: Link<Socket>,
    pub near: SocketAddr,
    pub far: SocketAddr,
    /// The interface that the stream is bound to.
    pub device: Option<Vec<u8>>,
    guard: Guard,
    ahead: Ahead,
    out: Vec<u8>,
    sent: usize,
}

/// IPv4 as such: one that listens for IPv6 too is told of it as of an IPv6 address, and both ends have to reckon with the
/// headers that packets have.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // With its scope.
        IpAddr::V6(_) => address,
    }
}

/// A frame without payload.
pub(super) fn frame(kind: FrameKind, grant: u32, code: u32) -> FrameHeader {
    FrameHeader {
        kind,
        flags: 0,
        space: 0,
        length: 0,
        offset: 0,
        grant,
        code,
    }
}

impl Frames {
    pub fn new(stream: TcpStream, guard: Guard) -> Result<Self, LaneError> {
        let address = |result: std::io::Result<SocketAddr>| {
            result.map_err(|source| LaneError::Socket {
                doing: "reading the stream's address",
                source,
            })
        };
        let near = canonical(address(stream.local_addr())?);
        let far = canonical(address(stream.peer_addr())?);
        let device = SockRef::from(&stream).device().ok().flatten();
        Ok(Self {
            link: Link::new(tcp::prepare(stream)?)?,
            near,
            far,
            device,
            guard,
            ahead: Ahead::new(AHEAD_LEN),
            out: Vec::new(),
            sent: 0,
        })
    }

    /// Round trip as TCP measured it; none where it did not.
    pub fn rtt(&self) -> Nanos {
        let microseconds = TcpInfo::of(&self.link.wire).map_or(0, |info| info.rtt_microseconds);
        Nanos::from_micros(microseconds.into())
    }

    /// Puts a frame behind the others; `body` is as long as its header says.
    pub fn push(&mut self, header: &FrameHeader, body: &[u8]) -> Result<(), LaneError> {
        if self.out.len() - self.sent > UNSENT_MAX {
            return Err(self.link.silent("it was to take frames"));
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        let from = self.out.len();
        self.out.extend_from_slice(&header.encode());
        self.out.extend_from_slice(body);
        self.out
            .resize(self.out.len() + self.guard.trailer_len(), 0);
        self.guard.close(&mut self.out[from..]);
        Ok(())
    }

    /// Sends as much as the connection takes now.
    pub fn flush(&mut self) -> Result<(), LaneError> {
        while self.sent < self.out.len() {
            let left = [IoSlice::new(&self.out[self.sent..])];
            match self.link.send_some(&left, false)? {
                Some(count) => self.sent += count,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether all frames have left.
    pub fn is_flushed(&self) -> bool {
        self.sent == self.out.len()
    }

    /// The next frame, if it is there.
    pub fn pull(&mut self) -> Result<Option<(FrameHeader, Vec<u8>)>, LaneError> {
        loop {
            let mut wanted = HEADER_LEN;
            if let Some(raw) = self.ahead.header() {
                let header = FrameHeader::decode(&raw)?;
                let body = body_len(&header);
                if body > BODY_MAX {
                    let text = format!("a {:?} frame with {body} bytes", header.kind);
                    return Err(LaneError::Unexpected(text));
                }
                wanted = HEADER_LEN + body + self.guard.trailer_len();
                if self.ahead.held().len() >= wanted {
                    let body = self.guard.open(self.ahead.take(wanted))?.to_vec();
                    return Ok(Some((header, body)));
                }
            }
            if self
                .ahead
                .pull(&mut self.link, wanted, AHEAD_LEN)?
                .is_none()
            {
                return Ok(None);
            }
        }
    }

    /// Whether more of a frame has arrived, so that [`Frames::pull`] is worth a call.
    pub fn has_come(&mut self) -> Result<bool, LaneError> {
        let got = self.ahead.pull(&mut self.link, HEADER_LEN, AHEAD_LEN)?;
        Ok(got.is_some())
    }

    /// Whether nothing of a frame is held.
    pub fn is_at_rest(&self) -> bool {
        self.ahead.held().is_empty()
    }

    /// Waits for frames, for datagrams, with `room` for space for datagrams, and for space for frames that wait.
    pub fn wait(&mut self, udp: impl AsFd, room: bool, until: Instant) -> Result<(), LaneError> {
        let mut of_stream = PollFlags::IN;
        of_stream.set(PollFlags::OUT, !self.is_flushed());
        let mut of_datagrams = PollFlags::IN;
        of_datagrams.set(PollFlags::OUT, room);
        let begun = Instant::now();
        let timeout = Timespec::try_from(until.saturating_duration_since(begun));
        let timeout = timeout.unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let mut both = [
            PollFd::new(&self.link.wire, of_stream),
            PollFd::new(&udp, of_datagrams),
        ];
        let doing = if room { Doing::Path } else { Doing::Peer };
        let result = during(doing, || poll(&mut both, Some(&timeout)));
        self.link.seen.waited += begun.elapsed();
        if self.link.stopped() {
            return Err(LaneError::Stopped);
        }
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(LaneError::Socket {
                doing: "waiting for the peer",
                source: error.into(),
            }),
        }
    }
}
