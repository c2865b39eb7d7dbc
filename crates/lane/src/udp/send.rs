//! The sending end: blasts what it was asked for at its rate, reports ends of rounds, repairs what is missing, follows the monitor.

use std::collections::HashMap;
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use ropewalk_model::{Nanos, digest, time};
use ropewalk_proto::rapid::{
    Blast, DATAGRAM_HEADER_LEN, Datagram, DatagramKind, FEEDBACK_LEN, Feedback, Follow, Pacer,
    Piece, Wanted, first_rate,
};
use ropewalk_proto::wire::{FrameKind, HASH_LEN, flags};

use super::frames::{Frames, frame};
use super::protect::{Direction, Opener, Sealer, trailer_len};
use super::{FIRST_RATE, Options, handshake, sys};
use crate::frame_io::{Guard, REASON_MAX};
use crate::half::{
    Absent, OUTSTANDING_MAX, Observation, Provider, SendHalf, Served, Stopper, missing,
};
use crate::{LaneError, Protection};

/// Bytes of one segmented send: below what an IP packet may announce.
const SEND_MAX: usize = 60_000;

/// How datagrams leave, best first; what the kernel refuses is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One call, cut by the kernel or the interface.
    Segmented,
    /// One call, cut here.
    Many,
}

struct Open {
    socket: UdpSocket,
    lane: u32,
    datagram: u32,
    blast: Blast,
    pacer: Pacer,
    follow: Follow,
    rtt: Nanos,
    way: Way,
}

pub(super) struct Sender {
    frames: Frames,
    options: Options,
    sealer: Sealer,
    opener: Opener,
    trailer: usize,
    open: Option<Open>,
    failed: bool,
    began: Instant,
    out: Vec<u8>,
    /// The unit whose first round is under way: its bytes, read and hashed in one go.
    current: Option<(u32, Vec<u8>)>,
    hashes: HashMap<u32, [u8; HASH_LEN]>,
    inbox: sys::Inbox,
}

impl Sender {
    pub fn new(
        stream: TcpStream,
        protection: Protection,
        options: Options,
    ) -> Result<Self, LaneError> {
        Ok(Self {
            frames: Frames::new(stream, Guard::for_sender(&protection))?,
            options,
            sealer: Sealer::new(&protection, Direction::TowardReceiver),
            opener: Opener::new(&protection, Direction::TowardSender),
            trailer: trailer_len(&protection),
            open: None,
            failed: false,
            began: Instant::now(),
            out: Vec::with_capacity(SEND_MAX),
            current: None,
            hashes: HashMap::new(),
            inbox: sys::Inbox::new(),
        })
    }

    fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    fn meet(&mut self) -> Result<(), LaneError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(LaneError::Misuse(
                "the lane could not be opened before; open another one".into(),
            ));
        }
        sys::wake_on_time();
        let met = handshake::as_sender(
            &mut self.frames,
            &mut self.sealer,
            self.trailer,
            &self.options,
        )?;
        let payload = met.datagram - DATAGRAM_HEADER_LEN as u32 - self.trailer as u32;
        let now = self.now();
        let follow = Follow::new(
            self.options.rate,
            first_rate(FIRST_RATE, self.frames.rtt()),
            self.options.monitor.is_some(),
            now,
        );
        self.open = Some(Open {
            socket: met.socket,
            lane: met.lane,
            datagram: met.datagram,
            blast: Blast::new(payload, self.options.order),
            pacer: Pacer::new(follow.rate(Nanos::ZERO, now), now),
            follow,
            rtt: self.frames.rtt(),
            way: Way::Segmented,
        });
        Ok(())
    }

    fn drive(&mut self, provider: &dyn Provider, idle: Duration) -> Result<Served, LaneError> {
        if self.open.is_none() {
            self.meet()?;
        }
        let mut idle_until = Instant::now() + idle;
        loop {
            self.listen()?;
            self.frames.flush()?;
            let now = self.now();
            let Some(open) = &mut self.open else {
                return Ok(Served::Closed);
            };
            if !open.blast.has_work() {
                // What is not to be sent now is not made up for later.
                open.pacer.restart(now);
                if open.blast.outstanding() > 0 {
                    idle_until = Instant::now() + idle;
                } else if Instant::now() >= idle_until {
                    return Ok(Served::Idle);
                }
                self.frames.wait(&open.socket, false, idle_until)?;
                continue;
            }
            idle_until = Instant::now() + idle;
            if let Some(until) = open.follow.suspended_until(now) {
                open.pacer.restart(until);
                let until = self.began + Duration::from_nanos(until.0);
                self.frames.wait(&open.socket, false, until)?;
                continue;
            }
            open.pacer.set_rate(open.follow.rate(open.rtt, now));
            let datagram = u64::from(open.datagram);
            let allowance = open.pacer.allowance(now, datagram);
            if allowance < open.pacer.batch(datagram) {
                let until = self.began + Duration::from_nanos(open.pacer.wake_at(datagram).0);
                self.frames.wait(&open.socket, false, until)?;
                continue;
            }
            let at_most = (SEND_MAX as u64 / datagram).clamp(1, sys::SEGMENTS_MAX as u64);
            let count = (allowance / datagram).clamp(1, at_most) as u32;
            if let Some(piece) = open.blast.next(count) {
                self.send(provider, &piece)?;
            }
        }
    }

    /// Takes what the receiver says, by stream and by datagram.
    fn listen(&mut self) -> Result<(), LaneError> {
        while let Some((header, body)) = self.frames.pull()? {
            let now = self.now();
            let Some(open) = &mut self.open else {
                return Ok(());
            };
            match header.kind {
                FrameKind::Grant => {
                    if open.blast.outstanding() >= OUTSTANDING_MAX {
                        return Err(LaneError::Unexpected(format!(
                            "more than {OUTSTANDING_MAX} grants outstanding"
                        )));
                    }
                    let unit = Wanted {
                        id: header.grant,
                        space: header.space,
                        range: header.range(),
                        hash: header.flags & flags::HASH != 0,
                    };
                    if !open.blast.grant(unit) {
                        let text = format!("grant {} is outstanding already", header.grant);
                        return Err(LaneError::Unexpected(text));
                    }
                }
                FrameKind::Cancel => {
                    if open.blast.forget(header.grant) {
                        let absent = Absent {
                            code: missing::CANCELLED,
                            reason: "cancelled by the receiver".into(),
                        };
                        self.missing(header.grant, header.space, &absent)?;
                    }
                }
                FrameKind::Lacking => {
                    let before = open.blast.outstanding();
                    open.blast
                        .lacking(header.grant, header.code, &body)
                        .map_err(|error| LaneError::Unexpected(error.to_string()))?;
                    self.frames.link.seen.units +=
                        (before - open.blast.outstanding()).min(1) as u64;
                    self.frames.link.seen.again = open.blast.repeated();
                }
                FrameKind::Pace => {
                    if let Some(feedback) = Feedback::decode(&body) {
                        open.follow.handle(&feedback, now);
                    }
                }
                other => {
                    let text = format!("{other:?} frame where grants were due");
                    return Err(LaneError::Unexpected(text));
                }
            }
        }
        self.feedback()
    }

    fn feedback(&mut self) -> Result<(), LaneError> {
        loop {
            let now = self.now();
            let Some(open) = &mut self.open else {
                return Ok(());
            };
            let count = self
                .inbox
                .receive(&open.socket)
                .map_err(|source| LaneError::Socket {
                    doing: "receiving feedback",
                    source,
                })?;
            for message in 0..count {
                for bytes in self.inbox.datagrams(message) {
                    let mut out = [0; FEEDBACK_LEN];
                    let head = Datagram::decode(bytes, self.trailer).ok().filter(|head| {
                        head.kind == DatagramKind::Feedback
                            && head.lane == open.lane
                            && usize::from(head.length) == FEEDBACK_LEN
                    });
                    let Some(head) = head else { continue };
                    if !self.opener.open(head.sequence, bytes, &mut out) {
                        self.frames.link.seen.strays += 1;
                    } else if let Some(feedback) = Feedback::decode(&out) {
                        open.follow.handle(&feedback, now);
                    }
                }
            }
            if count < sys::BATCH {
                return Ok(());
            }
        }
    }

    fn missing(&mut self, id: u32, space: u16, absent: &Absent) -> Result<(), LaneError> {
        self.hashes.remove(&id);
        if self.current.as_ref().is_some_and(|(of, _)| *of == id) {
            self.current = None;
        }
        let reason = &absent.reason.as_bytes()[..absent.reason.floor_char_boundary(REASON_MAX)];
        let mut header = frame(FrameKind::Missing, id, absent.code);
        header.space = space;
        header.length = reason.len() as u32;
        self.frames.push(&header, reason)
    }

    /// Sends one piece, and the end of its round.
    fn send(&mut self, provider: &dyn Provider, piece: &Piece) -> Result<(), LaneError> {
        let unit = &piece.unit;
        if let Err(absent) = self.build(provider, piece) {
            if let Some(open) = &mut self.open {
                open.blast.forget(unit.id);
            }
            return self.missing(unit.id, unit.space, &absent);
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        open.pacer.spend(self.out.len() as u64);
        leave(&mut self.frames, open, &self.out)?;
        self.frames.link.seen.bytes_out += self.out.len() as u64;
        self.frames.link.seen.frames += u64::from(piece.count);
        if !piece.ends_round {
            return Ok(());
        }
        let mut header = frame(FrameKind::Round, unit.id, piece.round);
        header.offset = self.sealer.next_sequence();
        header.space = unit.space;
        let hash = self.hashes.remove(&unit.id);
        let body = hash.as_ref().map_or(&[][..], |hash| &hash[..]);
        header.length = body.len() as u32;
        self.frames.push(&header, body)?;
        self.frames.flush()
    }

    /// Puts the datagrams of a piece together in `out`.
    fn build(&mut self, provider: &dyn Provider, piece: &Piece) -> Result<(), Absent> {
        self.out.clear();
        let unit = &piece.unit;
        let length = unit.range.len() as usize;
        if piece.round == 0 && self.current.as_ref().is_none_or(|(of, _)| *of != unit.id) {
            let mut bytes = self
                .current
                .take()
                .map_or_else(Vec::new, |(_, bytes)| bytes);
            bytes.resize(length, 0);
            if length > 0 {
                provider.read(unit.space, unit.range.start, &mut bytes)?;
            }
            if unit.hash {
                self.hashes.insert(unit.id, digest(&bytes));
            }
            self.current = Some((unit.id, bytes));
        }
        let Some(open) = &self.open else {
            return Ok(());
        };
        let payload = open.datagram as usize - DATAGRAM_HEADER_LEN - self.trailer;
        let held = self
            .current
            .as_ref()
            .filter(|(of, bytes)| *of == unit.id && bytes.len() == length);
        for index in piece.first..piece.first + piece.count {
            let at = index as usize * payload;
            let part = payload.min(length - at);
            let head = Datagram {
                kind: DatagramKind::Data,
                round: piece.round as u8,
                length: part as u16,
                lane: open.lane,
                sequence: self.sealer.next_sequence(),
                offset: unit.range.start + at as u64,
                grant: unit.id,
                echo: open.follow.echo(),
            };
            let from = self.out.len();
            self.out.extend_from_slice(&head.encode());
            match held {
                Some((_, bytes)) => self.out.extend_from_slice(&bytes[at..at + part]),
                None => {
                    let body = self.out.len();
                    self.out.resize(body + part, 0);
                    provider.read(unit.space, head.offset, &mut self.out[body..])?;
                }
            }
            self.out.resize(self.out.len() + self.trailer, 0);
            self.sealer.seal(&mut self.out[from..]);
            self.frames.link.seen.payload += part as u64;
        }
        Ok(())
    }
}

/// Hands datagrams to the kernel, waiting while it has no room.
fn leave(frames: &mut Frames, open: &mut Open, out: &[u8]) -> Result<(), LaneError> {
    let mut left = out;
    let patient_until = Instant::now() + frames.link.patience;
    while !left.is_empty() {
        let segment = open.datagram as u16;
        let result = match open.way {
            Way::Segmented => {
                sys::send_segmented(&open.socket, None, left, segment).map(|()| left.len())
            }
            Way::Many => sys::send_many(&open.socket, None, left, segment),
        };
        match result {
            Ok(count) => left = &left[count..],
            Err(error) => match (error.kind(), error.raw_os_error()) {
                (io::ErrorKind::WouldBlock, _) | (_, Some(libc::ENOBUFS)) => {
                    if Instant::now() >= patient_until {
                        return Err(frames.link.silent("its network was to take datagrams"));
                    }
                    let full = error.raw_os_error() == Some(libc::ENOBUFS);
                    // A full interface queue does not wake anybody.
                    let until = match full {
                        true => Instant::now() + Duration::from_millis(1),
                        false => patient_until,
                    };
                    frames.wait(&open.socket, !full, until)?;
                }
                (io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused, _) => {}
                // Interfaces without checksum offload, and old kernels, cannot segment.
                (_, Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOPROTOOPT))
                    if open.way == Way::Segmented =>
                {
                    open.way = Way::Many;
                }
                // The way is gone for now; rounds repair what did not leave.
                (
                    _,
                    Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EPERM),
                ) => {
                    return Ok(());
                }
                _ => {
                    return Err(LaneError::Socket {
                        doing: "sending datagrams",
                        source: error,
                    });
                }
            },
        }
    }
    Ok(())
}

impl SendHalf for Sender {
    fn serve(&mut self, provider: &dyn Provider, idle: Duration) -> Result<Served, LaneError> {
        let end = self.drive(provider, idle);
        let open = self.open.as_ref();
        let outstanding = open.map_or(0, |open| open.blast.outstanding());
        let at_rest = outstanding == 0 && self.frames.is_at_rest();
        Served::at_the_end(end, at_rest, outstanding)
    }

    fn observe(&self) -> Observation {
        self.frames.link.seen
    }

    fn stopper(&self) -> Stopper {
        self.frames.link.stopper()
    }

    fn set_patience(&mut self, patience: Duration) {
        self.frames.link.patience = patience;
    }

    /// Without effect: a fragment is a datagram here.
    fn set_fragment_max(&mut self, _bytes: usize) {}
}
