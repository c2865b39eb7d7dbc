//! The receiving end: grants out, datagrams in, each into the memory of its unit; bitmaps back.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

use ropewalk_model::{Nanos, digest, time};
use ropewalk_proto::rapid::monitor::{Kind, Monitor};
use ropewalk_proto::rapid::{
    Collect, DATAGRAM_HEADER_LEN, Datagram, DatagramKind, Overflow, Stray,
};
use ropewalk_proto::wire::{FrameHeader, FrameKind, HASH_LEN, PAYLOAD_MAX, flags};

use super::frames::{Frames, frame};
use super::monitor::{Monitoring, Seen};
use super::protect::{Direction, Opener, Sealer, trailer_len};
use super::{Options, handshake, sys};
use crate::frame_io::Guard;
use crate::half::{
    BlastSeen, Grant, Handle, Landing, OUTSTANDING_MAX, Observation, ReceiveHalf, Received,
    Stopper, missing,
};
use crate::{LaneError, Protection};

/// The monitor's state also goes over the stream this often, for paths that lose its datagrams.
const PACE_EVERY: Duration = Duration::from_millis(100);
/// Rounds go by and no datagram comes for so long: a firewall, or a path, has closed.
const BLOCKED_AFTER: Duration = Duration::from_secs(5);
/// Time slice asked for, so that the thread waits less for its turn.
const SLICE_TIME: Nanos = Nanos::from_micros(100);
/// Buffers of finished units that are kept for the next ones.
const SPARE_MAX: usize = 8;

struct Unit {
    grant: Grant,
    /// Empty until the first datagram comes.
    bytes: Vec<u8>,
    /// The sender's hash, once told.
    hash: Option<[u8; HASH_LEN]>,
}

/// The datagram side, once both ends have met.
struct Open {
    socket: UdpSocket,
    lane: u32,
    far: SocketAddr,
    collect: Collect,
    monitoring: Option<Monitoring>,
}

pub(super) struct Receiver {
    frames: Frames,
    options: Options,
    // Until its thread begins.
    monitor: Option<Box<dyn Monitor>>,
    opener: Opener,
    knocker: Option<Sealer>,
    trailer: usize,
    open: Option<Open>,
    inbox: sys::Inbox,
    // By numbers of this lane, none of which is used twice: a late datagram must not fit a later unit.
    units: HashMap<u32, Unit>,
    order: VecDeque<u32>,
    next_number: u32,
    // Those of the outstanding grants, by the caller's.
    numbers: HashMap<u32, u32>,
    done: VecDeque<Received>,
    spare: Vec<Vec<u8>>,
    scratch: Box<[u8]>,
    began: Instant,
    left: Instant,
    // When the socket was last found empty, on the clock of `began`.
    empty_at: Option<time::Instant>,
    // When a datagram of ours last came; rounds that were answered since.
    came: Instant,
    rounds_since: u32,
    told: Instant,
    thread: i32,
    echoed: u32,
    seen: Arc<Seen>,
    // Datagrams that came and were the peer's, needed or not; gaps between them, and between units.
    arrived: u64,
    // The first one's number: those before it found the way.
    first_sequence: Option<u64>,
    // When the last one, and the last unit, came while more was due.
    arrived_at: Option<time::Instant>,
    delivered_at: Option<time::Instant>,
    blast: BlastSeen,
    overflow: Overflow,
}

impl Receiver {
    pub fn new(
        stream: TcpStream,
        protection: Protection,
        options: Options,
        monitor: Option<Box<dyn Monitor>>,
    ) -> Result<Self, LaneError> {
        let now = Instant::now();
        Ok(Self {
            frames: Frames::new(stream, Guard::for_receiver(&protection))?,
            options,
            monitor,
            opener: Opener::new(&protection, Direction::TowardReceiver),
            knocker: Some(Sealer::new(&protection, Direction::TowardSender)),
            trailer: trailer_len(&protection),
            open: None,
            inbox: sys::Inbox::new(),
            units: HashMap::new(),
            order: VecDeque::new(),
            next_number: 0,
            numbers: HashMap::new(),
            done: VecDeque::new(),
            spare: Vec::new(),
            scratch: vec![0; sys::MESSAGE_LEN].into(),
            began: now,
            left: now,
            empty_at: None,
            came: now,
            rounds_since: 0,
            told: now,
            thread: 0,
            echoed: 0,
            seen: Arc::new(Seen::default()),
            arrived: 0,
            first_sequence: None,
            arrived_at: None,
            delivered_at: None,
            blast: BlastSeen::default(),
            overflow: Overflow::default(),
        })
    }

    fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    /// Meets the sender, the first time.
    fn meet(&mut self) -> Result<(), LaneError> {
        let Some(mut knocker) = self.knocker.take() else {
            return Err(LaneError::Misuse(
                "the lane could not be opened before; open another one".into(),
            ));
        };
        let met = handshake::as_receiver(
            &mut self.frames,
            &mut self.opener,
            &mut knocker,
            self.trailer,
            &self.options,
        )?;
        let set_up = |source| LaneError::Socket {
            doing: "setting up the socket for datagrams",
            source,
        };
        sys::merge_received(&met.socket);
        let by_rule = match self.options.monitor {
            Some(Kind::Native) => Some(super::monitor::buffer(&self.options, self.frames.rtt())),
            _ => None,
        };
        if let Some(buffer) = self.options.receive_buffer.or(by_rule) {
            sys::set_receive_buffer(&met.socket, buffer).map_err(set_up)?;
        }
        let payload = met.datagram - DATAGRAM_HEADER_LEN as u32 - self.trailer as u32;
        let mut collect = Collect::new(payload);
        // What was granted before.
        for number in &self.order {
            if let Some(unit) = self.units.get(number) {
                collect.expect(*number, unit.grant.range);
                let header = Self::frame_for(FrameKind::Grant, &unit.grant, *number)?;
                self.frames.push(&header, &[])?;
            }
        }
        self.seen.set_rtt(self.frames.rtt());
        let monitoring = match self.monitor.take() {
            Some(monitor) => {
                let socket = met.socket.try_clone().map_err(set_up)?;
                let start = Monitoring::start(
                    monitor,
                    socket,
                    met.lane,
                    knocker,
                    self.trailer,
                    self.began,
                    self.seen.clone(),
                );
                Some(start.map_err(|source| LaneError::Socket {
                    doing: "starting the monitor's thread",
                    source,
                })?)
            }
            None => None,
        };
        self.came = Instant::now();
        self.open = Some(Open {
            socket: met.socket,
            lane: met.lane,
            far: met.far,
            collect,
            monitoring,
        });
        Ok(())
    }

    /// The thread that drives the stream is the one that the monitor watches.
    fn be_watched(&mut self) {
        if self.options.monitor.is_none() {
            return;
        }
        let thread = sys::thread_id();
        if std::mem::replace(&mut self.thread, thread) != thread {
            self.seen.thread.store(thread, Release);
            if self.options.monitor == Some(Kind::Native) {
                // Where the kernel has no such thing, it is as it was.
                sys::short_slices(SLICE_TIME);
            }
        }
    }

    fn advance(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError> {
        if self.open.is_none() {
            self.meet()?;
        }
        self.be_watched();
        loop {
            self.frames()?;
            let come = self.datagrams()?;
            if come {
                self.frames.link.moved = Instant::now();
            }
            self.reports(landing)?;
            self.pace()?;
            self.frames.flush()?;
            if let Some(received) = self.done.pop_front() {
                return Ok(received);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(Received::Idle);
            }
            if come {
                continue;
            }
            self.wait(now, deadline)?;
        }
    }

    fn wait(&mut self, now: Instant, deadline: Instant) -> Result<(), LaneError> {
        let mut until = deadline;
        if !self.units.is_empty() {
            let patient_until = self.frames.link.moved + self.frames.link.patience;
            if now >= patient_until {
                return Err(self.frames.link.silent("units were owed"));
            }
            until = until.min(patient_until);
        }
        let Some(open) = &self.open else {
            return Ok(());
        };
        if let Some(due) = open.collect.due_at() {
            until = until.min(self.began + Duration::from_nanos(due.0));
        }
        if open.monitoring.is_some() {
            until = until.min(now + PACE_EVERY);
        }
        self.frames.wait(&open.socket, false, until)
    }

    /// Takes the sender's frames.
    fn frames(&mut self) -> Result<(), LaneError> {
        while let Some((header, body)) = self.frames.pull()? {
            let now = self.now();
            let Some(open) = &mut self.open else {
                return Ok(());
            };
            match header.kind {
                FrameKind::Round => {
                    if let Some(unit) = self.units.get_mut(&header.grant) {
                        if let Ok(hash) = <[u8; HASH_LEN]>::try_from(body.as_slice()) {
                            unit.hash = Some(hash);
                        }
                        open.collect
                            .round_ended(header.grant, header.code, header.offset, now);
                        self.seen.expect(open.collect.open() > 0);
                    }
                }
                FrameKind::Missing => {
                    // It may have become whole while the word was on its way.
                    if let Some(unit) = self.units.remove(&header.grant) {
                        self.order.retain(|number| *number != header.grant);
                        self.numbers.remove(&unit.grant.id);
                        open.collect.forget(header.grant);
                        self.seen.expect(open.collect.open() > 0);
                        self.done.push_back(Received::Missing {
                            grant: unit.grant,
                            code: header.code,
                            reason: String::from_utf8_lossy(&body).into_owned(),
                        });
                    }
                }
                other => {
                    let text = format!("{other:?} frame where rounds were due");
                    return Err(LaneError::Unexpected(text));
                }
            }
        }
        Ok(())
    }

    /// Takes a batch of datagrams; whether there were any.
    fn datagrams(&mut self) -> Result<bool, LaneError> {
        let Some(open) = &self.open else {
            return Ok(false);
        };
        let count = self
            .inbox
            .receive(&open.socket)
            .map_err(|source| LaneError::Socket {
                doing: "receiving datagrams",
                source,
            })?;
        if count == 0 {
            self.empty_at = Some(self.now());
            self.count_dropped(true);
            return Ok(false);
        }
        let mut inbox = std::mem::replace(&mut self.inbox, sys::Inbox::empty());
        let (mut taken, mut bytes) = (0, 0);
        for message in 0..count {
            for datagram in inbox.datagrams(message) {
                taken += 1;
                bytes += datagram.len() as u64;
                if !self.take(datagram) {
                    self.frames.link.seen.strays += 1;
                }
            }
        }
        std::mem::swap(&mut self.inbox, &mut inbox);
        self.frames.link.seen.bytes_in += bytes;
        let now = self.now();
        if let Some(before) = self.arrived_at.replace(now) {
            self.blast.arrivals.add(now.since(before));
        }
        let next_sequence = self
            .open
            .as_ref()
            .map_or(0, |open| open.collect.next_sequence());
        self.seen.took(taken, bytes, next_sequence);
        self.count_dropped(false);
        Ok(true)
    }

    /// Datagrams that were sent and have not been seen, as their sequence numbers show.
    fn lost(&self) -> u64 {
        let first = self.first_sequence.unwrap_or(0);
        let next = self.open.as_ref().map(|open| open.collect.next_sequence());
        let sent = next.unwrap_or(0).saturating_sub(first);
        sent.saturating_sub(self.arrived)
    }

    /// Asks the socket for its drops when more datagrams are missing than before, and when it is empty.
    fn count_dropped(&mut self, is_drained: bool) {
        let lost = self.lost();
        if !is_drained && !self.overflow.is_due(lost) {
            return;
        }
        if let Some(open) = &self.open
            && let Ok(queue) = sys::queue(&open.socket)
        {
            let next = open.collect.next_sequence();
            self.overflow.observe(lost, next, queue.drops, is_drained);
        }
    }

    /// Checks a datagram into its place; `false` when it has none.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let Ok(head) = Datagram::decode(bytes, self.trailer) else {
            return false;
        };
        if head.kind != DatagramKind::Data || head.lane != open.lane {
            return false;
        }
        let place = open.collect.place(&head);
        let unit = place
            .ok()
            .and_then(|place| Some((place, self.units.get_mut(&place.id)?)));
        let Some((place, unit)) = unit else {
            // Where it would go matters no more, but what it tells of the path does, if it is the peer's.
            let out = &mut self.scratch[..head.length.into()];
            if place != Err(Stray::Misplaced) && self.opener.open(head.sequence, bytes, out) {
                open.collect.seen(head.sequence);
                self.arrived += 1;
                self.first_sequence.get_or_insert(head.sequence);
            }
            return false;
        };
        if unit.bytes.is_empty() {
            unit.bytes = self.spare.pop().unwrap_or_default();
            unit.bytes.resize(unit.grant.range.len() as usize, 0);
        }
        let out = &mut unit.bytes[place.at..place.at + place.length];
        if !self.opener.open(head.sequence, bytes, out) {
            return false;
        }
        open.collect.seen(head.sequence);
        self.arrived += 1;
        self.first_sequence.get_or_insert(head.sequence);
        open.collect.placed(&place);
        self.frames.link.seen.frames += 1;
        self.frames.link.seen.payload += place.length as u64;
        self.rounds_since = 0;
        self.came = Instant::now();
        self.seen.blasting.store(true, Release);
        if head.echo != self.echoed && head.echo != 0 {
            self.echoed = head.echo;
            let now_us = (self.began.elapsed().as_nanos() / 1000) as u32;
            self.seen.trip(now_us.wrapping_sub(head.echo));
        }
        true
    }

    /// Answers rounds that are out, and finishes units that are whole.
    fn reports(&mut self, landing: &mut dyn Landing) -> Result<(), LaneError> {
        loop {
            let Some(open) = &mut self.open else {
                return Ok(());
            };
            let Some(report) = open.collect.report(self.empty_at) else {
                return Ok(());
            };
            let mut header = frame(FrameKind::Lacking, report.id, report.round);
            header.length = report.lacking.len() as u32;
            self.frames.push(&header, &report.lacking)?;
            self.seen.expect(open.collect.open() > 0);
            if report.missing == 0 {
                self.finish(report.id, landing)?;
                continue;
            }
            self.frames.link.seen.again += u64::from(report.missing);
            self.rounds_since += 1;
            if self.rounds_since >= 3 && self.came.elapsed() > BLOCKED_AFTER {
                let near = open.socket.local_addr().unwrap_or(open.far);
                return Err(LaneError::Blocked {
                    from: open.far,
                    to: near,
                    seconds: BLOCKED_AFTER.as_secs(),
                });
            }
        }
    }

    /// A unit is whole: it is hashed and landed.
    fn finish(&mut self, number: u32, landing: &mut dyn Landing) -> Result<(), LaneError> {
        let Some(unit) = self.units.remove(&number) else {
            return Ok(());
        };
        self.order.retain(|other| *other != number);
        self.numbers.remove(&unit.grant.id);
        let now = self.now();
        if let Some(before) = self.delivered_at.replace(now) {
            self.blast.deliveries.add(now.since(before));
        }
        if self.units.is_empty() {
            // What is not asked for yet is not late.
            (self.arrived_at, self.delivered_at) = (None, None);
        }
        let digest = unit.grant.hash.then(|| digest(&unit.bytes));
        self.frames.link.seen.units += 1;
        let grant = unit.grant;
        if digest != unit.hash.filter(|_| grant.hash) {
            self.frames.link.seen.corrupt += 1;
            self.done.push_back(Received::Corrupt {
                grant,
                reason: "the unit's hash differs from the sender's".into(),
            });
        } else {
            if !unit.bytes.is_empty() {
                landing
                    .write(grant.space, grant.range.start, &unit.bytes)
                    .map_err(|source| LaneError::Landing {
                        space: grant.space,
                        range: grant.range,
                        source,
                    })?;
            }
            self.done.push_back(Received::Unit {
                grant,
                digest,
                zeros: 0,
            });
        }
        if self.spare.len() < SPARE_MAX {
            self.spare.push(unit.bytes);
        }
        Ok(())
    }

    /// The monitor's word, over the stream.
    fn pace(&mut self) -> Result<(), LaneError> {
        let Some(monitoring) = self.open.as_ref().and_then(|open| open.monitoring.as_ref()) else {
            return Ok(());
        };
        if self.told.elapsed() < PACE_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        let now = self.now();
        let body = monitoring.message(now).encode();
        let mut header = frame(FrameKind::Pace, 0, 0);
        header.length = body.len() as u32;
        self.frames.push(&header, &body)
    }

    fn frame_for(kind: FrameKind, grant: &Grant, number: u32) -> Result<FrameHeader, LaneError> {
        if grant.digest {
            return Err(LaneError::Misuse(
                "a hash alone is asked for over a stream, not over a lane of datagrams".into(),
            ));
        }
        let length = u32::try_from(grant.range.len())
            .ok()
            .filter(|length| *length <= PAYLOAD_MAX)
            .ok_or_else(|| {
                LaneError::Misuse(format!(
                    "a unit of {} bytes was granted, the longest is {PAYLOAD_MAX}",
                    grant.range.len()
                ))
            })?;
        Ok(FrameHeader {
            kind,
            flags: if grant.hash { flags::HASH } else { 0 },
            space: grant.space,
            length,
            offset: grant.range.start,
            grant: number,
            code: 0,
        })
    }
}

/// The stream as other threads may touch it, with the datagrams that came beside it.
struct Counted {
    stream: Arc<dyn Handle>,
    seen: Arc<Seen>,
}

impl Handle for Counted {
    fn close(&self) {
        self.stream.close();
    }

    fn received(&self) -> Option<u64> {
        Some(self.seen.bytes())
    }
}

impl ReceiveHalf for Receiver {
    fn grant(&mut self, grants: &[Grant]) -> Result<(), LaneError> {
        if self.units.len() + grants.len() > OUTSTANDING_MAX {
            return Err(LaneError::Misuse(format!(
                "more than {OUTSTANDING_MAX} units would be outstanding on one stream"
            )));
        }
        for grant in grants {
            Self::frame_for(FrameKind::Grant, grant, self.next_number)?;
            if self.numbers.contains_key(&grant.id) {
                return Err(LaneError::Misuse(format!(
                    "grant {} is outstanding already",
                    grant.id
                )));
            }
        }
        if self.units.is_empty() {
            self.frames.link.moved = Instant::now();
            self.came = Instant::now();
        }
        for grant in grants {
            let number = self.next_number;
            self.next_number = number.wrapping_add(1);
            self.numbers.insert(grant.id, number);
            self.order.push_back(number);
            // Frames of the handshake come first; what is granted before them waits.
            if let Some(open) = &mut self.open {
                open.collect.expect(number, grant.range);
                let header = Self::frame_for(FrameKind::Grant, grant, number)?;
                self.frames.push(&header, &[])?;
            }
            let unit = Unit {
                grant: *grant,
                bytes: Vec::new(),
                hash: None,
            };
            self.units.insert(number, unit);
        }
        match self.open {
            Some(_) => self.frames.flush(),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, ids: &[u32]) -> Result<(), LaneError> {
        for id in ids {
            let Some(&number) = self.numbers.get(id) else {
                continue;
            };
            let Some(unit) = self.units.get(&number) else {
                continue;
            };
            let grant = unit.grant;
            if self.open.is_some() {
                let header = Self::frame_for(FrameKind::Cancel, &grant, number)?;
                self.frames.push(&header, &[])?;
                continue;
            }
            self.units.remove(&number);
            self.order.retain(|other| *other != number);
            self.numbers.remove(id);
            self.done.push_back(Received::Missing {
                grant,
                code: missing::CANCELLED,
                reason: "cancelled before it was asked for".into(),
            });
        }
        match self.open {
            Some(_) => self.frames.flush(),
            None => Ok(()),
        }
    }

    fn receive(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError> {
        // Time the caller spent elsewhere is not the peer's silence.
        let elsewhere = self.left.elapsed();
        let now = Instant::now();
        self.frames.link.moved = (self.frames.link.moved + elsewhere).min(now);
        self.came = (self.came + elsewhere).min(now);
        let result = match self.done.pop_front() {
            Some(received) => Ok(received),
            None => self.advance(landing, deadline),
        };
        self.left = Instant::now();
        result.map_err(|error| error.owing(self.units.len()))
    }

    fn outstanding(&self) -> Vec<Grant> {
        let grants = self.order.iter().filter_map(|id| self.units.get(id));
        grants.map(|unit| unit.grant).collect()
    }

    fn is_idle(&self) -> bool {
        self.units.is_empty()
    }

    fn observe(&self) -> Observation {
        let mut seen = self.frames.link.seen;
        seen.blast = self.blast;
        if let Some(open) = &self.open {
            seen.blast.lost = self.lost();
            seen.blast.dropped = self.overflow.dropped();
            if let Some(monitoring) = &open.monitoring {
                seen.blast.suspensions = monitoring.suspensions();
                seen.blast.monitor = self.seen.monitor();
            }
        }
        seen
    }

    fn stopper(&self) -> Stopper {
        let of_stream = self.frames.link.stopper();
        Stopper {
            stopped: of_stream.stopped,
            handle: Arc::new(Counted {
                stream: of_stream.handle,
                seen: self.seen.clone(),
            }),
        }
    }

    fn set_patience(&mut self, patience: Duration) {
        self.frames.link.patience = patience;
    }

    /// Without effect: a fragment is a datagram here.
    fn set_fragment_max(&mut self, _bytes: usize) {}
}
