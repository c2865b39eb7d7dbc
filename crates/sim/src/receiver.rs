//! A receiver: the machine that the agents drive, `ropewalk_proto::node`, with connections over a simulated network and a
//! disk that takes a while for the last sync and none for those before.

use std::collections::BTreeMap;

use ropewalk_model::layout::Layout;
use ropewalk_model::{Instant, Nanos, Range, RangeSet};
use ropewalk_proto::control::{self, Plan, Verify};
use ropewalk_proto::coordinator::{Relay, compare};
use ropewalk_proto::ledger::LaneId;
use ropewalk_proto::node::fetch::{Compare, Receiving};
use ropewalk_proto::node::{
    Announcer, Break, Duties, Event, Link, Node, Phase, Step, StreamId, Streams, Syncs, Wish,
    gives_names_early,
};
use ropewalk_proto::route::Way;

use crate::agent::Around;
use crate::copy::{Found, Sink};
use crate::ended::Mended;
use crate::lane::Lane;
use crate::network::Network;
use crate::scenario::Scenario;

mod relayed;
mod safe;

use relayed::Asked;
use safe::Syncing;

/// A receiver looks at its plan this often when nothing else wakes it, as the agents' threads do.
const LOOK_TIME: Nanos = Nanos::from_millis(100);

/// A unit is whole when all but this part of a byte has been received: rates are floats.
const BYTE_PART: f64 = 0.01;

/// What crossed to a receiver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carried {
    /// All bytes, by the node that sent them.
    pub bytes: BTreeMap<u32, f64>,
    /// Those of units that were received a second time.
    pub duplicate_bytes: u64,
    /// Those that fellow receivers handed on, of units that were not received before.
    pub handed_on_bytes: u64,
}

impl Carried {
    fn add(&mut self, sender: u32, bytes: f64) {
        *self.bytes.entry(sender).or_default() += bytes;
    }
}

pub(crate) struct Receiver {
    node: u32,
    pub machine: Node,
    layout: Layout,
    unit_len: u64,
    streams: BTreeMap<StreamId, Lane>,
    // Numbers of rails by lane.
    rails: BTreeMap<LaneId, u32>,
    // Streams by the number that the network knows them by.
    owners: Vec<StreamId>,
    pub delivered: RangeSet,
    // A sync is under way.
    syncing: Option<Syncing>,
    // What it writes to, where that is a disk; its plan until that is made.
    pub sink: Option<Sink>,
    preparing: Option<Box<Plan>>,
    pub carried: Carried,
    pub mended: Mended,
    // Hashes that holders were asked for.
    asked: Asked,
}

impl Receiver {
    /// * `sink`: what it writes to, where that is a disk.
    pub fn new(
        node: u32,
        plan: &Plan,
        sink: Option<Sink>,
        scenario: &Scenario,
        now: Instant,
    ) -> Self {
        let options = &scenario.options;
        let mut fetch = Receiving::new(options.prefetch, 1, now);
        fetch.set_number(node);
        if options.fixed {
            fetch.fix_plan();
        }
        let no_disk = Syncs {
            every: Nanos::ZERO,
            bytes: 1,
        };
        if scenario.relay == Relay::Auto {
            fetch.compare(compare(options.verify()), node.into());
        }
        let reads_back = sink.is_some() && options.verify() == Verify::Sink;
        let names_early = sink.as_ref().is_some_and(Sink::names_early)
            && gives_names_early(plan, Compare::Nothing, reads_back);
        let duties = Duties {
            renames: plan.commit,
            names_early,
            reads_back,
            syncs: sink.as_ref().map_or(no_disk, |_| scenario.syncs),
        };
        let streams = Streams::new(&Wish {
            given: Some(options.streams.max(1)),
            ..Wish::default()
        });
        let mut machine = Node::new(fetch, streams, plan, duties, now);
        let whole = || Layout::single(Range::new(0, plan.length));
        let layout = sink.as_ref().map_or_else(whole, |sink| sink.layout.clone());
        let unit_len = plan.unit_len();
        if sink.is_none() {
            machine.handle_prepared(plan, now, &|offset| layout.unit_at(offset, unit_len));
        }
        Self {
            preparing: sink.as_ref().map(|_| Box::new(plan.clone())),
            sink,
            node,
            machine,
            layout,
            unit_len,
            streams: BTreeMap::new(),
            rails: BTreeMap::new(),
            owners: Vec::new(),
            delivered: RangeSet::new(),
            syncing: None,
            carried: Carried::default(),
            mended: Mended::default(),
            asked: Asked::default(),
        }
    }

    /// Takes over what earlier transfers left, a step at a time; what the master is to know, once that is done.
    ///
    /// * `there`: what another node of a shared copy has found.
    pub fn prepare(&mut self, there: &RangeSet, around: &mut Around<'_>) -> Option<Found> {
        let (sink, plan) = (self.sink.as_mut()?, self.preparing.as_ref()?);
        if sink.prepare(around.disk()) {
            return None;
        }
        let found = sink.found_there();
        let present = found.unchanged.union(&found.adopted).union(there);
        let plan = plan.clone();
        self.preparing = None;
        self.machine.fetch_mut().handle_present(present);
        if plan.hands_on {
            self.machine.fetch_mut().handle_kept(found.adopted.clone());
        }
        let (layout, unit_len) = (&self.layout, self.unit_len);
        let unit_at = |offset| layout.unit_at(offset, unit_len);
        self.machine.handle_prepared(&plan, around.now, &unit_at);
        Some(found)
    }

    /// Its sink is not made yet.
    pub fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    /// A message of the master; returns the answer.
    pub fn hear(
        &mut self,
        message: &control::to_agent::Body,
        now: Instant,
    ) -> Option<control::from_agent::Body> {
        let (layout, unit_len) = (&self.layout, self.unit_len);
        let unit_at = |offset| layout.unit_at(offset, unit_len);
        self.machine.handle_message(message, now, &unit_at)
    }

    /// Closes all connections for good.
    pub fn hang_up(&mut self, network: &mut Network) {
        for mut lane in std::mem::take(&mut self.streams).into_values() {
            self.carried.add(lane.sender, lane.torn());
            lane.stop(network);
        }
    }

    /// Connections from a sender break, over one rail or all.
    pub fn break_streams(&mut self, sender: u32, rail: Option<u32>, around: &mut Around<'_>) {
        let is_hit = |(id, lane): &(&StreamId, &Lane)| {
            let own = self.rails.get(&id.lane).copied();
            lane.sender == sender && (rail.is_none() || rail == own)
        };
        let hit: Vec<StreamId> = self
            .streams
            .iter()
            .filter(is_hit)
            .map(|(id, _)| *id)
            .collect();
        for id in hit {
            if self.machine.phase(id).is_open() {
                self.close(id, Break::Broken("connection reset".into()), around);
            }
        }
    }

    /// The rate of a connection is another one now. Returns when the agent has to be woken for it.
    pub fn set_rate(&mut self, owner: u32, rate: f64, now: Instant) -> Option<Instant> {
        let id = self.owners.get(owner as usize)?;
        let lane = self.streams.get_mut(id)?;
        lane.advance(now);
        lane.rate = rate;
        lane.next_at()
    }

    /// Takes in what was received, and asks for more. Returns when it has to be called again, if nothing else happens, and
    /// what the master is to know.
    pub fn progress(&mut self, around: &mut Around<'_>) -> (Option<Instant>, Vec<control::Need>) {
        self.land(around);
        self.end_waits(around);
        let told_at = self.listen(around);
        let mut needs = self.drain(around);
        let mut next_at = self.ask(around);
        needs.extend(self.drain(around));
        next_at = next_at
            .into_iter()
            .chain(told_at)
            .chain(self.asked.next_at())
            .min();
        for (id, lane) in &mut self.streams {
            let rail = (
                self.node,
                lane.sender,
                self.rails.get(&id.lane).copied().unwrap_or(0),
            );
            let failed_until = around.ways.failed_until(rail, around.now);
            if lane.queue.is_empty() || lane.is_stuck != failed_until.is_some() {
                lane.stop(around.network);
                lane.is_stuck = failed_until.is_some();
            }
            if !lane.queue.is_empty() && lane.flow.is_none() {
                let pair = (lane.sender, self.node);
                let cap = match lane.is_stuck {
                    true => 0.0,
                    false => around
                        .scenario
                        .pair_caps
                        .get(&pair)
                        .copied()
                        .unwrap_or(f64::INFINITY),
                };
                let owner = (self.node, lane.owner);
                lane.flow = Some(around.network.start(pair.0, pair.1, cap, owner));
                (lane.advanced_at, lane.rate) = (around.now, 0.0);
            }
            let connecting = lane.ready_at.filter(|ready| *ready > around.now);
            let times = [lane.next_at(), connecting, failed_until]
                .into_iter()
                .flatten();
            next_at = next_at.into_iter().chain(times).min();
        }
        (next_at, needs)
    }

    /// Hands whole units to the machine.
    fn land(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let hashes = around.scenario.options.verify() >= Verify::Tree;
        for (id, lane) in &mut self.streams {
            lane.advance(now);
            while let Some((grant, unit)) = lane.queue.front().copied() {
                if lane.come + BYTE_PART < unit.len() as f64 {
                    break;
                }
                lane.come = (lane.come - unit.len() as f64).max(0.0);
                lane.queue.pop_front();
                lane.landed += unit.len();
                self.carried.add(lane.sender, unit.len() as f64);
                let sink = self.sink.as_ref();
                let mark = sink.map(|sink| around.sent_mark(sink, lane.sender, unit));
                let sent = mark.filter(|_| hashes);
                let hash = sent.zip(sink).map(|(mark, sink)| sink.digest(unit, mark));
                let hash = hash.or_else(|| self.asked.sent(lane.sender, unit, around));
                if !self.machine.fetch().is_true(id.lane, unit, hash) {
                    self.carried.duplicate_bytes += unit.len();
                    self.machine.handle_untrue(*id, grant, now);
                    continue;
                }
                if let Some((sink, mark)) = sink.zip(mark) {
                    let (fetch, writer) = (self.machine.fetch_mut(), Node::writer(*id));
                    if fetch.begin_write(writer, unit) {
                        sink.write(around.disk(), unit, mark);
                        fetch.end_write(writer, unit);
                    }
                }
                let arrival = self.machine.handle_unit(*id, grant, hash, now);
                if let (Some((mark, sink)), true) = (sent.zip(sink), arrival.rereads) {
                    let is_right = sink.has_mark(around.disk(), unit, mark);
                    self.machine.fetch_mut().handle_reread(unit, is_right);
                }
                if arrival.is_first {
                    let again = self.delivered.clipped(unit);
                    assert!(again.is_empty(), "node {} has {unit} twice", self.node);
                    self.delivered.insert(unit);
                    let is_relayed = self.machine.fetch().is_relayed(id.lane);
                    self.carried.handed_on_bytes += if is_relayed { unit.len() } else { 0 };
                } else {
                    self.carried.duplicate_bytes += unit.len();
                }
            }
            if lane.queue.is_empty() {
                lane.come = 0.0;
            }
            let received = lane.landed + lane.torn() as u64;
            self.machine.handle_idle(*id, received, now);
            let fetch = self.machine.fetch_mut();
            fetch.handle_bytes(id.lane, lane.take_fresh());
        }
    }

    /// Searches and probes that end now.
    fn end_waits(&mut self, around: &Around<'_>) {
        let now = around.now;
        let is_ready = |lane: &Lane| {
            let is_dead = around.dead[lane.sender as usize];
            lane.ready_at.is_some_and(|ready| ready <= now) && !is_dead
        };
        let ready = self.streams.iter().filter(|(_, lane)| is_ready(lane));
        let ready: Vec<(StreamId, u32)> = ready.map(|(id, lane)| (*id, lane.sender)).collect();
        for (id, sender) in ready {
            if let Some(lane) = self.streams.get_mut(&id) {
                lane.ready_at = None;
            }
            match self.machine.phase(id) {
                Phase::Finding => self.end_search(id, sender, around),
                Phase::Probing => {
                    let rail = self.rails.get(&id.lane).copied().unwrap_or(0);
                    let answers = around.ways.connects((self.node, sender, rail), now);
                    self.mended.regained += u64::from(answers);
                    self.machine.handle_probed(id, answers, now);
                }
                _ => {}
            }
        }
        self.find_better(around);
    }

    fn end_search(&mut self, id: StreamId, sender: u32, around: &Around<'_>) {
        let (ways, now) = (around.ways, around.now);
        let connects = |rail: &u32| ways.connects((self.node, sender, *rail), now);
        let mut works = ways
            .direct()
            .filter(connects)
            .collect::<Vec<_>>()
            .into_iter();
        let tunnel = ways.tunnel().filter(connects);
        let Some(rail) = works.next().or(tunnel) else {
            return self.machine.handle_not_found(id, "refused", now);
        };
        let (layout, unit_len) = (&self.layout, self.unit_len);
        let unit_at = |offset| layout.unit_at(offset, unit_len);
        let found = self
            .machine
            .handle_found(id, link(ways.tunnel(), rail), now, &unit_at);
        let Some(stream) = found else { return };
        self.rails.insert(stream.lane, rail);
        if stream != id {
            self.mended.replaced += 1;
            self.streams.remove(&id);
            self.add(stream, sender, now);
        }
        if Some(rail) == tunnel {
            return;
        }
        for rail in works {
            let link = link(ways.tunnel(), rail);
            if let Some(lane) = self.machine.handle_rail(stream.lane, link, now) {
                self.rails.insert(lane, rail);
            }
        }
    }

    /// Goes on looking for a direct way while data goes through the command's host.
    fn find_better(&mut self, around: &Around<'_>) {
        let Some(tunnel) = around.ways.tunnel() else {
            return;
        };
        let carried = self.rails.iter().filter(|(_, rail)| **rail == tunnel);
        let carried: Vec<LaneId> = carried.map(|(lane, _)| *lane).collect();
        for lane in carried {
            let sender = self.machine.peer(lane).node;
            let connects = |rail: &u32| {
                let rail = (self.node, sender, *rail);
                around.ways.connects(rail, around.now) && !around.dead[sender as usize]
            };
            let Some(rail) = around.ways.direct().find(connects) else {
                continue;
            };
            let link = link(Some(tunnel), rail);
            if let Some(new) = self.machine.handle_better_way(lane, link, around.now) {
                self.mended.moved += 1;
                self.rails.insert(new, rail);
            }
        }
    }

    fn add(&mut self, id: StreamId, sender: u32, now: Instant) {
        let owner = self.owners.len() as u32;
        self.owners.push(id);
        self.streams.insert(id, Lane::new(sender, owner, now));
    }

    /// Does for each stream what the machine wants. Returns when to ask again.
    fn ask(&mut self, around: &mut Around<'_>) -> Option<Instant> {
        let now = around.now;
        self.machine.handle_timer(now);
        let is_finished = self.machine.fetch().is_finished();
        let mut next_at = (!is_finished).then_some(now + LOOK_TIME);
        let mut down = Vec::new();
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let Some(lane) = self.streams.get(&id) else {
                continue;
            };
            if lane.ready_at.is_some_and(|ready| ready > now) {
                continue;
            }
            if around.dead[lane.sender as usize] {
                down.push(id.lane);
                continue;
            }
            next_at = next_at.into_iter().chain(self.step(id, around)).min();
        }
        for lane in down {
            // Its connections are closed when it is drained.
            self.machine.handle_peer_gone(lane, "killed");
        }
        next_at
    }

    /// Does for a stream what the machine wants now. Returns when to ask again.
    fn step(&mut self, id: StreamId, around: &mut Around<'_>) -> Option<Instant> {
        let now = around.now;
        loop {
            let (layout, unit_len) = (&self.layout, self.unit_len);
            let unit_at = |offset| layout.unit_at(offset, unit_len);
            let step = self.machine.next_step(id, now, &unit_at);
            let lane = self.streams.get_mut(&id)?;
            match step {
                Step::Find | Step::Probe => {
                    lane.ready_at = Some(now + around.scenario.connect_time);
                    return None;
                }
                Step::Open => {
                    let rail = self.rails.get(&id.lane).copied().unwrap_or(0);
                    let rail = (self.node, lane.sender, rail);
                    match around.ways.connects(rail, now) {
                        true => {
                            let is_relayed = self.machine.fetch().is_relayed(id.lane);
                            lane.announcer = is_relayed.then(|| Announcer::new(now));
                            self.machine.handle_opened(id, now);
                        }
                        false => {
                            self.mended.refused += 1;
                            self.machine.handle_not_opened(id, "refused", now);
                        }
                    }
                }
                Step::Cancel(grants) => self.cancel(id, &grants, now),
                Step::Grant(grants) => {
                    lane.queue.extend(grants);
                    return None;
                }
                Step::Wait(until) | Step::Receive(until) => return until,
                Step::Close => self.close(id, Break::Asked, around),
                Step::End => {
                    self.streams.remove(&id);
                    return None;
                }
            }
        }
    }

    fn cancel(&mut self, id: StreamId, grants: &[u32], now: Instant) {
        let Some(lane) = self.streams.get_mut(&id) else {
            return;
        };
        for grant in grants {
            let Some(place) = lane.queue.iter().position(|(own, _)| own == grant) else {
                continue;
            };
            if place == 0 {
                lane.advance(now);
                self.carried.add(lane.sender, lane.torn());
                lane.come = 0.0;
            }
            lane.queue.remove(place);
            self.machine.handle_cancelled(id, *grant, now);
        }
    }

    fn close(&mut self, id: StreamId, cause: Break, around: &mut Around<'_>) {
        if let Some(lane) = self.streams.get_mut(&id) {
            lane.advance(around.now);
            self.carried.add(lane.sender, lane.torn());
            lane.stop(around.network);
            lane.queue.clear();
        }
        self.machine.handle_closed(id, cause, around.now);
    }

    /// Carries out what the machine wants; what the master is to know.
    fn drain(&mut self, around: &mut Around<'_>) -> Vec<control::Need> {
        let now = around.now;
        let mut needs = Vec::new();
        loop {
            while let Some(event) = self.machine.poll_event(now) {
                match event {
                    Event::Start(id) => {
                        let sender = self.machine.peer(id.lane).node;
                        self.add(id, sender, now);
                        if self.machine.phase(id) == Phase::Finding {
                            self.step(id, around);
                        }
                    }
                    Event::SameWay(lane, like) => {
                        let rail = self.rails.get(&like).copied().unwrap_or(0);
                        self.rails.insert(lane, rail);
                    }
                    Event::Need(ranges, lost, reason) => needs.push(control::Need {
                        ranges: control::stretches(&ranges),
                        lost,
                        reason,
                    }),
                    Event::Compare(_, peer) => self.asked.open(peer.node),
                    Event::Differ(difference) => panic!("holders differ: {difference:?}"),
                    Event::Wake => {}
                }
            }
            let ids: Vec<StreamId> = self.streams.keys().copied().collect();
            for id in ids {
                while let Some(step) = self.machine.next_end(id) {
                    match step {
                        Step::Cancel(grants) => self.cancel(id, &grants, now),
                        _ => self.close(id, Break::Asked, around),
                    }
                }
                if self.machine.phase(id) == Phase::Ended {
                    self.streams.remove(&id);
                }
            }
            if !self.machine.has_events() {
                return needs;
            }
        }
    }
}

fn link(tunnel: Option<u32>, rail: u32) -> Link {
    let way = match Some(rail) == tunnel {
        true => Way::Through,
        false => Way::Direct,
    };
    Link {
        way,
        rail,
        trip: Nanos::ZERO,
        shares_processors: false,
    }
}
