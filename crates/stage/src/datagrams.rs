//! Edges whose blocks go as datagrams: the socket that all edges of a process share, keys and buffers around
//! [`ropewalk_proto::stage::datagrams`].
//!
//! Blocks, each with its header behind it, leave as datagrams and arrive in their buffers; everything else goes over each edge's connection
//! ([`crate::outbound`], [`crate::inbound`]), which also shows at once when a peer is gone.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ropewalk_lane::udp::shared::{Carrier, SEND_MAX};
use ropewalk_lane::udp::{BATCH, Direction, FIRST_RATE, Inbox, Opener, Sealer, Times, trailer_len};
use ropewalk_lane::{Protection, TcpInfo};
use ropewalk_model::{ByteRate, Nanos, time};
use ropewalk_proto::rapid::monitor::{Kind, Monitor, POLL_TIME, Sample};
use ropewalk_proto::rapid::{
    DATAGRAM_HEADER_LEN, Datagram, DatagramKind, Feedback, Order, Requests, Stray, first_rate,
};
use ropewalk_proto::stage::datagrams::{Flow, Pace, Receiving, Sending};
use ropewalk_proto::stage::frame::{Frame, HEADER_LEN, Header, Socket};
use ropewalk_proto::stage::process::{Held, Violation};
use rustix::event::PollFlags;

use crate::error::StageError;
use crate::inbound::Inbound;
use crate::outbound::Outbound;
use crate::pool::{Buffer, Pool};

mod leaving;

use self::leaving::{Round, Run};

/// Batches of datagrams that are received before others have their turn.
const RECEIVED_MAX: usize = 4;

/// A full queue of the interface is tried again after this.
const FULL_TIME: Nanos = Nanos::from_millis(1);

/// One edge before its first frame.
pub(crate) struct Edge {
    pub protection: Protection,
    /// The other end of its connection.
    pub peer: SocketAddr,
    /// Longest datagram that the interface takes.
    pub longest: u32,
    /// Bytes around a datagram in a packet.
    pub packet: u32,
}

/// How datagrams are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// A monitor steers the rate.
    pub is_watched: bool,
    /// Of all edges of the process together.
    pub rate: Option<ByteRate>,
    pub flow: Flow,
    /// Longest block.
    pub block: u32,
}

struct Out {
    sending: Sending,
    sealer: Sealer,
    trailer: usize,
    to: SocketAddr,
    longest: u32,
    lane: u32,
    // Until they are whole at the receiver.
    units: BTreeMap<u32, Held<Buffer>>,
    rtt: Nanos,
}

struct In {
    receiving: Receiving,
    opener: Opener,
    knocker: Sealer,
    trailer: usize,
    // Its address; the port is known from its first frame.
    from: SocketAddr,
    longest: u32,
    // Of units that are not whole.
    buffers: BTreeMap<u32, Buffer>,
}

/// The monitor of the process, and what it sees.
struct Watch {
    monitor: Box<dyn Monitor>,
    requests: Requests,
    times: Times,
    polled_at: time::Instant,
    has_received: bool,
    bytes: u64,
    datagrams: u64,
    rtt: Nanos,
}

/// All edges of a process.
pub(crate) struct Datagrams {
    carrier: Box<dyn Carrier>,
    flow: Flow,
    inbox: Inbox,
    outs: Vec<Out>,
    // `None` once it has ended.
    ins: Vec<Option<In>>,
    // Of the first input; the others follow.
    lane: u32,
    all: Option<Pace>,
    began: Instant,
    empty_at: Option<time::Instant>,
    // Datagrams that wait for the socket, and rounds that end with them or with those before.
    out: Vec<u8>,
    left: usize,
    runs: VecDeque<Run>,
    after: VecDeque<Round>,
    is_full: bool,
    wait_until: Option<time::Instant>,
    turn: usize,
    scratch: Box<[u8]>,
    watch: Option<Watch>,
    /// Bytes of blocks that were sent more than once, each time but the first.
    pub again: u64,
    /// What the socket has, as far as known.
    pub is_readable: bool,
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> StageError {
    move |source| StageError::System { doing, source }
}

impl Datagrams {
    pub fn new(
        carrier: Box<dyn Carrier>,
        settings: Settings,
        outs: Vec<Edge>,
        ins: Vec<Edge>,
    ) -> Self {
        let began = Instant::now();
        let now = time::Instant::ZERO;
        let edges = outs.len().max(1) as u64;
        let out = |edge: Edge| {
            let trailer = trailer_len(&edge.protection);
            let pace = settings.is_watched.then(|| {
                let first = first_rate(FIRST_RATE, Nanos::ZERO);
                Pace::followed(ByteRate(first.0 / edges), now)
            });
            let order = match settings.is_watched {
                true => Order::RepairsFirst,
                false => Order::BlastFirst,
            };
            Out {
                sending: Sending::new(edge.longest, edge.packet, trailer as u32, order, pace),
                sealer: Sealer::new(&edge.protection, Direction::TowardReceiver),
                trailer,
                to: edge.peer,
                longest: edge.longest,
                lane: 0,
                units: BTreeMap::new(),
                rtt: Nanos::ZERO,
            }
        };
        let input = |edge: Edge| {
            let trailer = trailer_len(&edge.protection);
            let flow = settings.flow;
            Some(In {
                receiving: Receiving::new(edge.longest, settings.block, trailer as u32, flow),
                opener: Opener::new(&edge.protection, Direction::TowardReceiver),
                knocker: Sealer::new(&edge.protection, Direction::TowardSender),
                trailer,
                from: edge.peer,
                longest: edge.longest,
                buffers: BTreeMap::new(),
            })
        };
        let watch = || Watch {
            monitor: Kind::Native.monitor(),
            requests: Requests::default(),
            times: Times::default(),
            polled_at: now,
            has_received: false,
            bytes: 0,
            datagrams: 0,
            rtt: Nanos::ZERO,
        };
        Self {
            carrier,
            flow: settings.flow,
            inbox: Inbox::new(),
            watch: (settings.is_watched && !ins.is_empty()).then(watch),
            outs: outs.into_iter().map(out).collect(),
            ins: ins.into_iter().map(input).collect(),
            lane: u32::from_le_bytes(ropewalk_lane::preface::random_bytes()),
            all: settings.rate.map(|rate| Pace::fixed(rate, now)),
            began,
            empty_at: None,
            out: Vec::with_capacity(2 * SEND_MAX),
            left: 0,
            runs: VecDeque::new(),
            after: VecDeque::new(),
            is_full: false,
            wait_until: None,
            turn: 0,
            scratch: vec![0; 1 << 16].into(),
            again: 0,
            is_readable: true,
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    /// Both ends of each edge name their sockets.
    pub fn greet(&self, inputs: &mut [Option<Inbound>], outputs: &mut [Outbound]) {
        let port = self.carrier.port();
        for (output, out) in outputs.iter_mut().zip(&self.outs) {
            let longest = out.longest;
            output.push_frame(&Frame::Hello(Socket { port, longest }));
        }
        for (number, (input, one)) in inputs.iter_mut().zip(&self.ins).enumerate() {
            if let (Some(input), Some(one)) = (input, one) {
                let longest = one.longest;
                let ready = Frame::Ready {
                    lane: self.lane.wrapping_add(number as u32),
                    socket: Socket { port, longest },
                };
                input.push(&ready, &[]);
            }
        }
    }

    /// Whether credit bounds what is sent.
    pub fn is_credited(&self) -> bool {
        self.flow == Flow::Credit
    }

    /// Whether an edge takes blocks.
    pub fn is_open(&self, output: usize) -> bool {
        self.outs[output].sending.is_open()
    }

    /// Takes a block to be sent.
    pub fn push(&mut self, output: usize, mut held: Held<Buffer>) {
        let out = &mut self.outs[output];
        let len = held.header.length as usize;
        held.body[len..len + HEADER_LEN].copy_from_slice(&held.header.encode());
        let unit = out.sending.push(held.header.length);
        out.units.insert(unit, held);
    }

    /// Buffers that were ever granted to an edge.
    pub fn grant(&mut self, input: usize, buffers: u64) {
        if let Some(one) = &mut self.ins[input] {
            one.receiving.grant(buffers);
        }
    }

    /// What the receiver of an edge says; gives a block that it has whole.
    pub fn hear(
        &mut self,
        number: usize,
        frame: Frame,
        body: &[u8],
    ) -> Result<Option<Held<Buffer>>, Violation> {
        let now = self.now();
        let out = &mut self.outs[number];
        match frame {
            Frame::Ready { lane, socket } => {
                out.to.set_port(socket.port);
                out.lane = lane;
                out.sending.ready(socket.longest, now);
            }
            Frame::Probed { datagram } if !out.sending.probed(datagram) => {
                return Err(Violation::Datagrams);
            }
            Frame::Lacking { unit, round, .. } => {
                let is_whole = out.sending.lacking(unit, round, body);
                if is_whole.map_err(|_| Violation::Datagrams)? {
                    return Ok(out.units.remove(&unit));
                }
            }
            Frame::Pace => {
                if let Some(feedback) = Feedback::decode(body) {
                    out.sending.follow(&feedback, now);
                }
            }
            // Nothing else has a sense in this direction.
            _ => {}
        }
        Ok(None)
    }

    /// What the sender of an edge says.
    pub fn told(&mut self, number: usize, frame: Frame) -> Result<(), Violation> {
        let now = self.now();
        let Some(one) = &mut self.ins[number] else {
            return Ok(());
        };
        match frame {
            Frame::Round {
                unit,
                round,
                length,
                sequence,
            } => one
                .receiving
                .round_ended(unit, round, length, sequence, now),
            Frame::Hello(socket) => {
                one.from.set_port(socket.port);
                one.receiving.hello(socket.longest);
                self.knock(number);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Opens firewalls that let answers in.
    fn knock(&mut self, number: usize) {
        let Some(one) = &mut self.ins[number] else {
            return;
        };
        let head = Datagram {
            kind: DatagramKind::Knock,
            round: 0,
            length: 0,
            lane: self.lane.wrapping_add(number as u32),
            sequence: one.knocker.next_sequence(),
            offset: 0,
            grant: 0,
            echo: 0,
        };
        let mut bytes = head.encode().to_vec();
        bytes.resize(DATAGRAM_HEADER_LEN + one.trailer, 0);
        one.knocker.seal(&mut bytes);
        // Whether it comes through does not matter; probes show what does.
        let _ = self.carrier.send(&one.from, &bytes, bytes.len() as u16);
    }

    /// An input has ended.
    pub fn end(&mut self, input: usize) {
        self.ins[input] = None;
    }

    /// Takes what has arrived, up to a bound, and answers rounds; `deliver` gets each block that is whole. False where nothing was there.
    pub fn receive(
        &mut self,
        inputs: &mut [Option<Inbound>],
        pool: &mut Pool,
        mut deliver: impl FnMut(usize, Header, Buffer) -> Result<(), Violation>,
    ) -> Result<bool, StageError> {
        let mut has_come = false;
        // Rounds are answered once the socket is found empty.
        let (now, edges) = (self.now(), self.ins.iter().flatten());
        let mut due = edges.filter_map(|one| one.receiving.due_at());
        self.is_readable |= due.any(|due| due <= now);
        for _ in 0..RECEIVED_MAX {
            if !self.is_readable {
                break;
            }
            let mut inbox = std::mem::replace(&mut self.inbox, Inbox::empty());
            let received = self.carrier.receive(&mut inbox);
            let count = received.map_err(system("receiving datagrams"))?;
            has_come |= count > 0;
            for message in 0..count {
                for datagram in inbox.datagrams(message) {
                    self.take(datagram, pool);
                }
            }
            self.inbox = inbox;
            if count < BATCH {
                self.is_readable = false;
                self.empty_at = Some(self.now());
            }
        }
        let now = self.now();
        for (number, place) in self.ins.iter_mut().enumerate() {
            let (Some(one), Some(input)) = (place, &mut inputs[number]) else {
                continue;
            };
            if let Some(datagram) = one.receiving.poll_probed(now) {
                input.push(&Frame::Probed { datagram }, &[]);
            }
            while let Some(reported) = one.receiving.report(self.empty_at, now) {
                let frame = Frame::Lacking {
                    unit: reported.unit,
                    round: reported.round,
                    length: reported.lacking.len() as u32,
                };
                input.push(&frame, &reported.lacking);
                if let Some(length) = reported.whole
                    && let Some(buffer) = one.buffers.remove(&reported.unit)
                {
                    let header = header(&buffer, length as usize)
                        .ok_or_else(|| input.violation(Violation::Datagrams))?;
                    input.verify(&header, &buffer)?;
                    deliver(number, header, buffer)
                        .map_err(|violation| input.violation(violation))?;
                    has_come = true;
                }
            }
            if one.receiving.is_blocked(now) {
                return Err(StageError::Blocked {
                    peer: input.peer.clone(),
                    address: one.from,
                });
            }
        }
        self.watch(inputs, now);
        Ok(has_come)
    }

    /// Checks a datagram into its place.
    fn take(&mut self, bytes: &[u8], pool: &mut Pool) {
        if let Some(watch) = &mut self.watch {
            watch.has_received = true;
            watch.bytes += bytes.len() as u64;
            watch.datagrams += 1;
        }
        let now = time::Instant::after(self.began.elapsed());
        let Some(lane) = bytes.get(4..8) else { return };
        let lane = u32::from_le_bytes(std::array::from_fn(|at| lane[at]));
        let number = lane.wrapping_sub(self.lane) as usize;
        let Some(Some(one)) = self.ins.get_mut(number) else {
            return;
        };
        let Ok(head) = Datagram::decode(bytes, one.trailer) else {
            return;
        };
        let scratch = &mut self.scratch[..head.length.into()];
        match head.kind {
            DatagramKind::Probe
                if head.grant as usize == bytes.len()
                    && one.opener.open(head.sequence, bytes, scratch) =>
            {
                one.receiving.probe(head.grant, now);
            }
            DatagramKind::Data => match one.receiving.place(&head) {
                Ok(place) => {
                    let is_begun = one.receiving.is_begun(place.id);
                    let buffer = one.buffers.entry(place.id).or_insert_with(|| pool.take());
                    let content = &mut buffer[place.at..place.at + place.length];
                    if one.opener.open(head.sequence, bytes, content) {
                        one.receiving.seen(head.sequence);
                        one.receiving.placed(&head, &place);
                    } else if !is_begun && let Some(buffer) = one.buffers.remove(&place.id) {
                        pool.give(buffer);
                    }
                }
                // It has no place, but what it tells of the path counts, if it is the peer's.
                Err(stray) => {
                    let is_ours = stray != Stray::Misplaced;
                    if is_ours && one.opener.open(head.sequence, bytes, scratch) {
                        one.receiving.seen(head.sequence);
                    }
                }
            },
            _ => {}
        }
    }

    /// The monitor looks, and senders get its word.
    fn watch(&mut self, inputs: &mut [Option<Inbound>], now: time::Instant) {
        let Some(watch) = &mut self.watch else { return };
        if now.since(watch.polled_at) < POLL_TIME {
            return;
        }
        watch.polled_at = now;
        let Some((run, wait)) = watch.times.own() else {
            return;
        };
        let queued = self.carrier.queued();
        let open = self.ins.iter().flatten();
        let received = std::mem::take(&mut watch.has_received);
        let sample = Sample {
            now,
            run,
            wait,
            received,
            bytes: watch.bytes,
            datagrams: watch.datagrams,
            sent: open.clone().map(|one| one.receiving.next_sequence()).sum(),
            queued: queued.bytes,
            buffer: queued.size,
            drops: queued.drops,
            // Senders send what they have: what comes is part of one blast, though rounds end in between.
            blasting: received || open.clone().any(|one| one.receiving.is_open()),
            rtt: watch.rtt,
        };
        let advice = watch.monitor.poll(&sample);
        if let Some(ceiling) = advice.ceiling {
            watch.requests.set_ceiling(ceiling);
        }
        if let Some(interval) = advice.suspend {
            watch.requests.suspend(interval, now);
        }
        if advice.ceiling.is_some() || advice.suspend.is_some() {
            self.tell(inputs, now);
        }
    }

    /// Each sender gets an equal part of what the monitor permits.
    fn tell(&mut self, inputs: &mut [Option<Inbound>], now: time::Instant) {
        let Some(watch) = &mut self.watch else { return };
        let count = self.ins.iter().flatten().count().max(1) as u64;
        let mut message = watch.requests.message(now);
        message.ceiling = message
            .ceiling
            .map(|ceiling| ByteRate((ceiling.0 / count).max(1)));
        for (input, one) in inputs.iter_mut().zip(&self.ins) {
            if let (Some(input), Some(_)) = (input, one) {
                input.push(&Frame::Pace, &message.encode());
            }
        }
    }

    /// From time to time: what may have been lost is said again, round trips are looked at.
    pub fn tick(&mut self, inputs: &mut [Option<Inbound>], outputs: &[Outbound]) {
        let now = self.now();
        let rtt = |fd: BorrowedFd<'_>| {
            let info = TcpInfo::of(fd);
            Nanos::from_micros(info.map_or(0, |info| info.rtt_microseconds).into())
        };
        for (out, output) in self.outs.iter_mut().zip(outputs) {
            out.rtt = rtt(output.link.as_fd());
        }
        let open = inputs.iter().flatten();
        let longest = open.map(|input| rtt(input.link.as_fd())).max();
        if let Some(watch) = &mut self.watch {
            watch.rtt = longest.unwrap_or_default();
        }
        self.tell(inputs, now);
        for number in 0..self.ins.len() {
            let is_met = |one: &In| one.from.port() == 0 || one.receiving.is_met();
            if !self.ins[number].as_ref().is_none_or(is_met) {
                self.knock(number);
            }
        }
    }

    /// What to wait for with `poll`.
    pub fn waited_for(&self) -> (BorrowedFd<'_>, PollFlags) {
        let flags = match !self.runs.is_empty() && !self.is_full {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        (self.carrier.as_fd(), flags)
    }

    /// How long nothing is to be done unless something arrives; `None`: as long as nothing arrives.
    pub fn patience(&self) -> Option<Duration> {
        let now = self.now();
        let probes = self.outs.iter().filter_map(|out| out.sending.probe_at());
        let inputs = self.ins.iter().flatten();
        let rounds = inputs.filter_map(|one| one.receiving.due_at());
        let full = self.is_full.then(|| now + FULL_TIME);
        let notice = self.after.front().and_then(|round| round.due);
        let due = probes.chain(rounds).chain(full).chain(notice);
        let due = due.chain(self.wait_until);
        due.min().map(|due| Duration::from_nanos(due.since(now).0))
    }
}

/// The header at the end of a unit; `None` where it is not that of the content before.
fn header(buffer: &Buffer, length: usize) -> Option<Header> {
    let at = length.checked_sub(HEADER_LEN)?;
    match Frame::decode(buffer[at..length].first_chunk()?) {
        Ok(Frame::Block(header)) if header.length as usize == at => Some(header),
        _ => None,
    }
}
