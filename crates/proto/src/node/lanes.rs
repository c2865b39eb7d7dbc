//! The lanes of a node: which streams each has, and what becomes of those that break.
//!
//! A lane is one way to one peer, and has some streams. A further rail to the same peer is a lane of its own, and so is the
//! way that takes another's place; they do each other's work. What is connected over a rail that had a lane before gets that
//! one: there are no more lanes than rails. A lane fails when no stream of it works and none can be opened. Then
//!
//! * where another rail to its peer is there, that one does the work, and the rail is tried again from time to time, unless
//!   it connects and does not carry;
//! * where it was the only way, and has worked, another way is looked for, which may be the same: the peer is there;
//! * else the peer is given up, and the master is asked for other holders.
//!
//! One thread of the driver, or one place of the simulator, belongs to each stream: it asks [`Node::next_step`] what to do,
//! does it, and hands in what happened.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::{Instant, Nanos, Range, Table};

use super::rail_health::{RailHealth, Seen};
use super::stream::{Break, Phase, Step, Stream, StreamId};
use super::{Event, Life, Node, Streams};
use crate::control::Peer;
use crate::ledger::LaneId;
use crate::node::fetch::{Take, UNITS_PER_TAKE_MAX, Writer};
use crate::route::Way;

mod rails;
#[cfg(test)]
mod tests;

/// A search for a way that takes longer has waited for answers: it is not made again at once.
const SEARCH_TIME_MAX: Nanos = Nanos::from_secs(3);

/// A stream sends nothing but what it was asked for: silence of the peer alone fails no stream.
const NEVER: Nanos = Nanos(u64::MAX);

/// Units asked for on one stream and not received, whatever their bytes: a small file is a unit. The grants have to fit into
/// the buffers of the connection (40 bytes each), as neither end reads while it waits for space to write ...
pub const UNITS_OUTSTANDING_MAX: usize = 2048;

/// ... but beside datagrams, where both do. No more than this is received in a round trip.
pub const UNITS_OUTSTANDING_DATAGRAMS: usize = 8192;

/// Streams that ended while others of their lane went on are opened again after this, twice as late each time ...
const RESTORE_AFTER: Nanos = Nanos(5_000_000_000);

/// ... so often.
const RESTORE_DOUBLED_MAX: u32 = 4;

/// How a lane was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Which of the two dialled, or neither.
    pub way: Way,
    /// Which rail, as the driver numbers them: the same one is found again under the same number.
    pub rail: u32,
    /// Least round trip.
    pub trip: Nanos,
    /// The peer is another process of this host, and its threads run on the same processors.
    pub shares_processors: bool,
}

/// A unit was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// It is the first copy.
    pub is_first: bool,
    /// The sink has to be read again, which [`fetch::Receiving::handle_reread`](super::fetch::Receiving::handle_reread)
    /// answers.
    pub rereads: bool,
}

/// A way to a peer, and its streams.
#[derive(Debug, Default)]
struct Lane {
    way: Way,
    rail: u32,
    is_connected: bool,
    // Another way takes its place.
    is_superseded: bool,
    // It has brought a unit since it was connected.
    has_worked: bool,
    // It connects and does not carry: nothing was received over a stream of it.
    is_blocked: bool,
    // It had failed and is connected again, and has brought nothing since.
    is_retaken: bool,
    streams: BTreeMap<u32, Stream>,
    // Numbers of streams given so far.
    numbered: u32,
    // Most streams that were open at once.
    open_max: u32,
    // When streams that ended, while others go on, are opened again, and how often that was so.
    restores_at: Option<Instant>,
    restored: u32,
    health: RailHealth,
}

impl Lane {
    fn count(&self, counts: impl Fn(Phase) -> bool) -> u32 {
        let phases = self.streams.values().map(Stream::phase);
        phases.filter(|phase| counts(*phase)).count() as u32
    }

    /// Streams that are there or on their way, without those that fewer are wanted than.
    fn live(&self) -> u32 {
        self.count(Phase::counts)
    }

    /// Whether its number may be given to its rail again: nothing is connected over it, or being connected.
    fn is_free(&self) -> bool {
        let mut phases = self.streams.values().map(Stream::phase);
        phases.all(|phase| matches!(phase, Phase::Down | Phase::Probing))
    }

    /// Those of them that are open.
    fn open(&self) -> u32 {
        self.count(|phase| phase.counts() && phase.is_open())
    }

    fn add(&mut self, phase: Phase, now: Instant) -> u32 {
        let number = self.numbered;
        self.numbered += 1;
        self.streams.insert(number, Stream::new(phase, now));
        number
    }
}

/// All lanes of a node, by number, and how many streams each has.
#[derive(Debug)]
pub(super) struct Lanes {
    list: Table<LaneId, Lane>,
    streams: Streams,
    pub events: VecDeque<Event>,
}

impl Lanes {
    pub fn new(streams: Streams) -> Self {
        Self {
            list: Table::new(),
            streams,
            events: VecDeque::new(),
        }
    }

    fn lane(&mut self, lane: LaneId) -> &mut Lane {
        self.list.grown(lane)
    }

    pub fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.list.get_mut(id.lane)?.streams.get_mut(&id.number)
    }

    fn is_carried(&self, lane: LaneId) -> bool {
        self.list.get(lane).is_some_and(|l| l.way == Way::Through)
    }

    fn has_open(&self, lane: LaneId) -> bool {
        self.list.get(lane).is_some_and(|lane| lane.open() > 0)
    }

    fn start(&mut self, lane: LaneId, phase: Phase, now: Instant) {
        let number = self.lane(lane).add(phase, now);
        self.events
            .push_back(Event::Start(StreamId { lane, number }));
    }

    /// A lane is to be connected.
    pub fn connect(&mut self, lane: LaneId, now: Instant) {
        self.start(lane, Phase::Finding, now);
    }

    /// A copy that the lane carries is useless.
    pub fn cancel(&mut self, lane: LaneId, range: Range) {
        if let Some(lane) = self.list.get_mut(lane) {
            // One stream of them.
            let _ = lane.streams.values_mut().any(|s| s.cancel(range));
        }
    }

    /// Lanes that have, or open, streams.
    fn at_work(&self) -> u32 {
        self.list.rows().filter(|lane| lane.live() > 0).count() as u32
    }

    /// Whether each stream that is to receive something is one of these.
    pub fn wait_all(&self, waiting: &[Writer]) -> bool {
        self.list.iter().all(|(lane, row)| {
            row.streams.iter().all(|(&number, stream)| {
                let writer = Node::writer(StreamId { lane, number });
                stream.granted() == 0 || waiting.contains(&writer)
            })
        })
    }

    /// Most streams that the lane had open at once, and how it is connected.
    pub fn seen(&self, lane: LaneId) -> (u32, Way) {
        let lane = self.list.get(lane);
        lane.map_or((0, Way::Direct), |lane| (lane.open_max, lane.way))
    }
}

impl Node {
    /// The peer that a lane leads to.
    #[must_use]
    pub fn peer(&self, lane: LaneId) -> &Peer {
        self.fetch.peer(lane)
    }

    /// Where a stream is in its life.
    #[must_use]
    pub fn phase(&self, id: StreamId) -> Phase {
        let lane = self.lanes.list.get(id.lane);
        let stream = lane.and_then(|lane| lane.streams.get(&id.number));
        stream.map_or(Phase::Ended, Stream::phase)
    }

    /// How many streams lanes have.
    #[must_use]
    pub fn streams(&self) -> &Streams {
        &self.lanes.streams
    }

    /// Whether a lane has, or opens, streams.
    #[must_use]
    pub fn is_at_work(&self, lane: LaneId) -> bool {
        self.lanes.list.get(lane).is_some_and(|l| l.live() > 0)
    }

    /// What to do with a stream now. Asked by one thread, which does it before it asks again.
    ///
    /// * `unit_at`: the unit of the sinks' layout around an offset.
    pub fn next_step(
        &mut self,
        id: StreamId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Step {
        if self.life == Life::Ended {
            return match self.phase(id).is_open() {
                true => Step::Close,
                false => Step::End,
            };
        }
        self.share_streams(now);
        self.restore_streams(id.lane, now);
        let Some(stream) = self.lanes.stream(id) else {
            return Step::End;
        };
        match stream.phase() {
            Phase::FindingLater | Phase::OpeningLater if now < stream.until => {
                Step::Wait(Some(stream.until))
            }
            Phase::Finding | Phase::FindingLater => self.find(id, now),
            Phase::Opening | Phase::OpeningLater => self.open(id, now),
            Phase::Open | Phase::Leaving | Phase::Moving => self.carry(id, now, unit_at),
            Phase::Down => self.probe(id, now),
            Phase::Probing => Step::Probe,
            Phase::Ended => Step::End,
        }
    }

    fn enter_phase(&mut self, id: StreamId, phase: Phase) {
        if let Some(stream) = self.lanes.stream(id)
            && stream.phase() != phase
        {
            stream.enter(phase);
        }
        if phase == Phase::Ended
            && let Some(lane) = self.lanes.list.get_mut(id.lane)
        {
            lane.streams.remove(&id.number);
        }
    }

    fn end_stream(&mut self, id: StreamId) -> Step {
        self.enter_phase(id, Phase::Ended);
        Step::End
    }

    fn find(&mut self, id: StreamId, now: Instant) -> Step {
        if !self.fetch.ledger().is_alive(id.lane) {
            return self.end_stream(id);
        }
        // The master may bring more that is to be fetched there.
        if self.fetch.is_finished() {
            return Step::Wait(None);
        }
        self.enter_phase(id, Phase::Finding);
        if let Some(stream) = self.lanes.stream(id) {
            stream.began_at = now;
        }
        Step::Find
    }

    fn open(&mut self, id: StreamId, now: Instant) -> Step {
        let each = self.each(id.lane);
        if !self.fetch.ledger().is_alive(id.lane) || self.lanes.lane(id.lane).live() > each {
            return self.end_stream(id);
        }
        if self.is_left(id.lane, now) {
            return self.leave(id);
        }
        // Nothing is missed that a fellow receiver announces, and one that leaves at the end is not lost.
        let is_idle = self.fetch.is_finished() && self.fetch.is_relayed(id.lane);
        if is_idle && self.phase(id) == Phase::OpeningLater {
            return Step::Wait(None);
        }
        self.enter_phase(id, Phase::Opening);
        Step::Open
    }

    /// What is to be done with a stream that is open before anything is granted on it: [`Step::Close`] where its lane was given
    /// up, or it is to be closed for another reason; [`Step::Cancel`].
    pub fn next_end(&mut self, id: StreamId) -> Option<Step> {
        let is_alive = self.fetch.ledger().is_alive(id.lane);
        let stream = self.lanes.stream(id).filter(|s| s.phase().is_open())?;
        if !is_alive || stream.verdict.is_some() {
            return Some(Step::Close);
        }
        let cancels = std::mem::take(&mut stream.cancels);
        (!cancels.is_empty()).then_some(Step::Cancel(cancels))
    }

    fn carry(&mut self, id: StreamId, now: Instant, unit_at: &dyn Fn(u64) -> Range) -> Step {
        if let Some(step) = self.next_end(id) {
            return step;
        }
        let is_left = self.is_left(id.lane, now);
        let open = self.lanes.lane(id.lane).open();
        let each = self.each(id.lane);
        let listens = self.fetch.listens(id.lane);
        let units_max = match self.lanes.streams.of_datagrams() {
            true => UNITS_OUTSTANDING_DATAGRAMS,
            false => UNITS_OUTSTANDING_MAX,
        };
        let Some(stream) = self.lanes.stream(id) else {
            return Step::End;
        };
        match stream.phase() {
            Phase::Moving if !is_left => stream.enter(Phase::Open),
            Phase::Open if is_left => stream.enter(Phase::Moving),
            // Those that only try to connect leave by themselves.
            Phase::Open if open > each => stream.enter(Phase::Leaving),
            _ => {}
        }
        // With so many units it is as full as with all its bytes.
        let outstanding = match stream.granted() + UNITS_PER_TAKE_MAX > units_max {
            true => u64::MAX,
            false => stream.outstanding(),
        };
        let take = match stream.phase() {
            Phase::Open => self.fetch.take(id.lane, outstanding, now, unit_at),
            _ => Take::Closed,
        };
        match take {
            Take::Units(units) => {
                let ranges = units.iter().map(|unit| unit.range);
                Step::Grant(stream.grant(ranges, now))
            }
            Take::Wait(until) if listens || stream.granted() > 0 => Step::Receive(until),
            Take::Closed if stream.granted() > 0 => Step::Receive(None),
            Take::Wait(until) => Step::Wait(until),
            Take::Closed => Step::Close,
        }
    }

    /// A way to the peer of a lane was found. Returns the stream that the caller goes on with, if any: where the lane had
    /// another way before, it is on another lane.
    ///
    /// * `unit_at`: the unit of the sinks' layout around an offset.
    pub fn handle_found(
        &mut self,
        id: StreamId,
        link: Link,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<StreamId> {
        if self.phase(id) != Phase::Finding {
            return None;
        }
        if !self.fetch.ledger().is_alive(id.lane) {
            self.end_stream(id);
            return None;
        }
        let id = match self.lanes.lane(id.lane).is_connected {
            false => {
                self.enter_phase(id, Phase::Opening);
                id
            }
            true => {
                self.end_stream(id);
                let lane = self.lane_over(id.lane, link, now);
                let number = self.lanes.lane(lane).add(Phase::Opening, now);
                if lane != id.lane {
                    self.fetch.handle_lane_left(id.lane);
                }
                StreamId { lane, number }
            }
        };
        self.connected(id.lane, link, now);
        self.apply_link(link, now);
        if self.lanes.streams.stripes() > 1 {
            self.deal(id.lane, link, now, unit_at);
        }
        self.add_streams(id.lane, now);
        Some(id)
    }

    fn connected(&mut self, lane: LaneId, link: Link, now: Instant) {
        let lane = self.lanes.lane(lane);
        (lane.way, lane.rail, lane.is_connected) = (link.way, link.rail, true);
        (lane.is_superseded, lane.has_worked, lane.is_blocked) = (false, false, false);
        lane.health.connected(now);
    }

    /// No way to the peer was found, for this reason.
    pub fn handle_not_found(&mut self, id: StreamId, reason: &str, now: Instant) {
        let Some(stream) = self.lanes.stream(id) else {
            return;
        };
        if stream.phase() != Phase::Finding {
            return;
        }
        // Silence is not tried again: every way has been waited for.
        if now.since(stream.began_at) > SEARCH_TIME_MAX {
            stream.end_series();
        }
        if !stream.retries(Phase::FindingLater, now) {
            self.end_stream(id);
            self.fetch.handle_lane_down(id.lane, reason);
        }
    }

    /// Deals the lane's work out to as many lanes over the same way as there are stripes, this one among them.
    fn deal(&mut self, lane: LaneId, link: Link, now: Instant, unit_at: &dyn Fn(u64) -> Range) {
        let more = self.lanes.streams.stripes() - 1;
        for stripe in self.fetch.deal(lane, more, now, unit_at) {
            self.connected(stripe, link, now);
            self.lanes.events.push_back(Event::SameWay(stripe, lane));
            self.lanes.start(stripe, Phase::Opening, now);
        }
    }

    /// A stream is connected.
    pub fn handle_opened(&mut self, id: StreamId, now: Instant) {
        if let Some(stream) = self.lanes.stream(id)
            && stream.phase() == Phase::Opening
        {
            stream.opened(now);
            let lane = self.lanes.lane(id.lane);
            lane.open_max = lane.open_max.max(lane.open());
        }
    }

    /// A stream did not connect, for this reason.
    pub fn handle_not_opened(&mut self, id: StreamId, reason: &str, now: Instant) {
        if self.phase(id) == Phase::Opening {
            self.try_again(id, reason, now);
        }
    }

    /// Nothing was received for a moment.
    ///
    /// * `received`: bytes received on the connection so far.
    pub fn handle_idle(&mut self, id: StreamId, received: u64, now: Instant) {
        let Some(stream) = self.lanes.stream(id) else {
            return;
        };
        let seen = Seen {
            moved: received,
            received,
            unacknowledged: stream.granted() > 0,
            retransmits: 0,
        };
        let is_silent = stream.silence.is_too_long(seen, NEVER, now);
        // A node that stands still is silent on all rails, and is waited for.
        if is_silent && self.fetch.other_rail_moves(id.lane, now) {
            let reason = "silent while another rail to the same host moves";
            if let Some(stream) = self.lanes.stream(id) {
                stream.verdict = Some(Break::RailLost(reason.into()));
            }
        }
    }

    /// The number that a stream is known by where it writes.
    #[must_use]
    pub fn writer(id: StreamId) -> Writer {
        Writer {
            lane: id.lane,
            stream: id.number.into(),
        }
    }

    /// As [`Receiving::handle_zeros`](super::fetch::Receiving::handle_zeros).
    pub fn handle_zeros(&mut self, bytes: u64) {
        self.fetch.handle_zeros(bytes);
    }

    /// A unit was received whole and was checked.
    pub fn handle_unit(
        &mut self,
        id: StreamId,
        grant: u32,
        digest: Option<[u8; 32]>,
        now: Instant,
    ) -> Arrival {
        let Some(stream) = self.lanes.stream(id) else {
            return Arrival::default();
        };
        let Some(range) = stream.ended(grant) else {
            return Arrival::default();
        };
        stream.units += 1;
        let lane = self.lanes.lane(id.lane);
        (lane.has_worked, lane.is_blocked) = (true, false);
        if std::mem::take(&mut lane.is_retaken) {
            self.fetch.note_retaken(id.lane);
        }
        let writer = Self::writer(id);
        let (is_first, rereads) = self.fetch.handle_written_unit(writer, range, digest, now);
        Arrival { is_first, rereads }
    }

    /// A unit was received damaged.
    pub fn handle_corrupt(&mut self, id: StreamId, grant: u32, reason: &str, now: Instant) {
        if let Some(range) = self.lanes.stream(id).and_then(|s| s.ended(grant)) {
            self.fetch.handle_corrupt(id.lane, range, reason, now);
        }
    }

    /// A unit will not be received: it was cancelled.
    pub fn handle_cancelled(&mut self, id: StreamId, grant: u32, now: Instant) {
        if let Some(range) = self.lanes.stream(id).and_then(|s| s.ended(grant)) {
            self.fetch.handle_returned(id.lane, range, now);
        }
    }

    /// The peer cannot serve a unit, for this reason.
    pub fn handle_refused(&mut self, id: StreamId, grant: u32, reason: &str, now: Instant) {
        if let Some(range) = self.lanes.stream(id).and_then(|s| s.ended(grant)) {
            self.fetch.handle_refused(id.lane, range, reason, now);
        }
    }

    /// A connection is closed; before this, so that no late byte of it can reach the sink after another copy.
    pub fn handle_closed(&mut self, id: StreamId, cause: Break, now: Instant) {
        let Some(stream) = self.lanes.stream(id) else {
            return;
        };
        let phase = stream.phase();
        if !phase.is_open() {
            return;
        }
        let cause = stream.verdict.take().unwrap_or(cause);
        if stream.units > 0 {
            // It worked for a while.
            stream.begin_series();
        } else if matches!(cause, Break::Blocked(_)) {
            stream.end_series();
            self.lanes.lane(id.lane).is_blocked = true;
        }
        let ranges = self.lanes.stream(id).map(Stream::closed);
        let ranges = ranges.unwrap_or_default();
        self.fetch.handle_closed(id.lane, &ranges, now);
        self.check();
        match (phase, cause) {
            _ if !self.fetch.ledger().is_alive(id.lane) => drop(self.end_stream(id)),
            (Phase::Moving, _) => drop(self.leave(id)),
            (Phase::Leaving, _) | (_, Break::Asked) => drop(self.end_stream(id)),
            (_, Break::RailLost(reason)) => {
                // While another rail does the work this one is tried again at leisure. The last one goes on trying.
                let gives_up = self.fetch.has_other_rail(id.lane);
                if let Some(stream) = self.lanes.stream(id).filter(|_| gives_up) {
                    stream.end_series();
                }
                self.try_again(id, &reason, now);
            }
            (_, Break::Broken(reason) | Break::Blocked(reason)) => {
                self.try_again(id, &reason, now);
            }
        }
    }

    fn try_again(&mut self, id: StreamId, reason: &str, now: Instant) {
        let Some(stream) = self.lanes.stream(id) else {
            return;
        };
        if stream.retries(Phase::OpeningLater, now) {
            return;
        }
        let lane = self.lanes.lane(id.lane);
        if lane.live() > 1 {
            let pause = RESTORE_AFTER * (1_u64 << lane.restored.min(RESTORE_DOUBLED_MAX));
            lane.restores_at.get_or_insert(now + pause);
            self.end_stream(id);
            return;
        }
        let lane = self.lanes.lane(id.lane);
        lane.health.failed(now);
        let (has_worked, is_blocked) = (lane.has_worked, lane.is_blocked);
        let has_worked = has_worked && self.lanes.streams.stripes() == 1;
        if self.fetch.has_other_rail(id.lane) {
            match is_blocked {
                true => drop(self.end_stream(id)),
                false => self.enter_phase(id, Phase::Down),
            }
            self.fetch.handle_lane_down(id.lane, reason);
        } else if has_worked && self.fetch.ledger().is_alive(id.lane) {
            self.search(id, reason);
        } else {
            self.end_stream(id);
            self.fetch.handle_lane_down(id.lane, reason);
        }
    }

    /// The only way to a peer, which has worked, does not any more: another one is looked for, or the same.
    fn search(&mut self, id: StreamId, reason: &str) {
        self.fetch.note_search(id.lane, reason);
        self.enter_phase(id, Phase::Finding);
        if let Some(stream) = self.lanes.stream(id) {
            stream.begin_series();
        }
    }

    fn apply_link(&mut self, link: Link, now: Instant) {
        let lanes = self.lanes.at_work();
        let streams = &mut self.lanes.streams;
        streams.handle_link(link.trip, link.shares_processors, lanes);
        self.apply_streams(now);
    }

    /// The master wants so many streams; see [`Streams::set`]. Those that are too many deliver what they were asked for first.
    pub fn set_streams(&mut self, count: Option<u32>, now: Instant) {
        let lanes = self.lanes.at_work();
        self.lanes.streams.set(count, lanes);
        self.apply_streams(now);
    }

    /// Streams that a lane keeps.
    fn each(&self, lane: LaneId) -> u32 {
        match self.fetch.has_joined(lane) {
            true => self.lanes.streams.each_to_joined(),
            false => self.lanes.streams.each(),
        }
    }

    /// Shares streams with receivers that joined and hand on, as long as they are connected: lanes end in many ways.
    fn share_streams(&mut self, now: Instant) {
        let is_connected = |lane: &LaneId| self.lanes.lane(*lane).is_connected;
        let joined = self.fetch.joined().filter(is_connected).count();
        if joined == self.lanes.streams.joined() || self.fetch.is_finished() {
            return;
        }
        let lanes = self.lanes.at_work();
        self.lanes.streams.set_joined(joined, lanes);
        self.apply_streams(now);
    }

    fn apply_streams(&mut self, now: Instant) {
        let streams = &self.lanes.streams;
        self.fetch.set_streams(streams.each());
        self.fetch.set_streams_to_joined(streams.each_to_joined());
        for lane in self.lanes.list.numbers() {
            self.add_streams(lane, now);
        }
    }

    /// Opens streams again that ended while others of their lane went on.
    fn restore_streams(&mut self, lane: LaneId, now: Instant) {
        let Some(row) = self.lanes.list.get_mut(lane) else {
            return;
        };
        if row.restores_at.is_none_or(|at| now < at) {
            return;
        }
        row.restores_at = None;
        row.restored += 1;
        if !self.fetch.is_finished() {
            self.add_streams(lane, now);
        }
    }

    /// Opens streams of a lane until it has as many as are wanted.
    fn add_streams(&mut self, lane: LaneId, now: Instant) {
        let wanted = self.each(lane);
        let l = self.lanes.lane(lane);
        let live = l.live();
        // One without a stream is down; one that is being found has no way yet.
        let is_found =
            |stream: &Stream| !matches!(stream.phase(), Phase::Finding | Phase::FindingLater);
        if !l.is_connected || live == 0 || !l.streams.values().all(is_found) {
            return;
        }
        for _ in live..wanted {
            self.lanes.start(lane, Phase::Opening, now);
        }
    }

    /// Asserts, in debug builds, that no byte is to be granted, or asked of the master, while a connection is open over which it
    /// was asked for; and what [`Ledger::check`](crate::ledger::Ledger::check) asserts.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.fetch.ledger().check();
        let open = self.fetch.ledger().open();
        for (number, lane) in self.lanes.list.iter() {
            for range in lane.streams.values().flat_map(Stream::ranges) {
                debug_assert!(
                    open.clipped(range).is_empty(),
                    "{range} is open, and a stream of lane {number} was asked for it"
                );
            }
        }
    }
}
