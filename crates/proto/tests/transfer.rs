//! Whole transfers in virtual time: one coordinator, many receivers, real plans, lanes that share the
//! nodes' speeds, and nodes that die or fall silent. Whatever happens, it ends, and says the truth.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::layout::Layout;
use ropewalk_model::{Range, RangeSet, receiver_runs};
use ropewalk_proto::control::{
    self, FromAgent, Opened, OpenedSource, Row, Sink, Source, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::coordinator::{
    Action, Coordinator, Mapping, NodeSetup, Planned, PlannedRun, Setup, SinkSetup, SourceSetup,
};
use ropewalk_proto::participant::{Event, Receiving, Take};
use ropewalk_proto::report::Outcome;
use ropewalk_sched::Scheduler as _;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Virtual time goes on in steps of this length.
const STEP: u64 = 10 * MS;

/// From a call to the first grant on a lane.
const CONNECT: u64 = 20 * MS;

/// A transfer that takes longer hangs: the slowest, half a gigabyte at 1 MB/s, needs half of it.
const END: u64 = 2000 * SECOND;

/// A small generator, so that a failing seed can be replayed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

struct Lane {
    sender: u32,
    ready_ns: u64,
    queue: VecDeque<Range>,
    // Bytes of the first unit that have come.
    come: f64,
}

struct Receiver {
    machine: Receiving,
    layout: Layout,
    unit_len: u64,
    lanes: BTreeMap<usize, Lane>,
    delivered: RangeSet,
    revision: u32,
    done_sent: bool,
    stopped: bool,
    safe_ns: Option<u64>,
    status_ns: u64,
}

impl Receiver {
    fn unit_at(&self) -> impl Fn(u64) -> Range + use<> {
        let (layout, length) = (self.layout.clone(), self.unit_len);
        move |offset| layout.unit_at(offset, length)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Dies,
    /// Sends no data until then.
    SilentUntil(u64),
    /// Its disk is full: it stops and says so.
    Stops,
}

#[derive(Clone, Copy)]
struct Fault {
    node: u32,
    at_ns: u64,
    kind: Kind,
}

struct World {
    now: u64,
    coordinator: Coordinator,
    setups: Vec<NodeSetup>,
    speeds: Vec<f64>,
    receivers: BTreeMap<u32, Receiver>,
    to_agents: VecDeque<(u64, u32, ToAgent)>,
    to_master: VecDeque<(u64, u32, FromAgent)>,
    dead: Vec<bool>,
    faults: Vec<Fault>,
    left_behind: RangeSet,
    seed: u64,
    // One way for a control message, by node.
    latency_ns: Vec<u64>,
    // What a receiver takes to make everything safe at its end.
    sync_ns: u64,
    outcome: Option<Outcome>,
}

fn node(name: String, holds: Option<Range>, wants: Option<(Range, Option<&str>)>) -> NodeSetup {
    let row = |range: Range| Row {
        object: b"/f".to_vec(),
        object_offset: range.start,
        start: range.start,
        length: range.len(),
    };
    let source = holds.map(|range| SourceSetup {
        source: Source {
            kind: None,
            rows: vec![row(range)],
        },
        base: 0,
    });
    let sink = wants.map(|(range, destination)| SinkSetup {
        sink: Sink {
            kind: None,
            rows: vec![row(range)],
            shared: destination.is_some(),
        },
        destination: destination.map(str::to_owned),
    });
    NodeSetup {
        name,
        sources: source.into_iter().collect(),
        sinks: sink.into_iter().collect(),
        up: None,
        down: None,
        remembered_up: None,
        remembered_down: None,
    }
}

impl World {
    fn new(setups: Vec<NodeSetup>, speeds: Vec<f64>, declared: bool, faults: Vec<Fault>) -> Self {
        let mut setups = setups;
        if declared {
            for (setup, speed) in setups.iter_mut().zip(&speeds) {
                (setup.up, setup.down) = (Some(*speed as u64), Some(*speed as u64));
            }
        }
        let count = setups.len();
        let setup = Setup {
            transfer: vec![1; 16],
            nodes: setups.clone(),
            mapping: Mapping::Rows,
            limit: None,
            options: control::Options::default(),
        };
        Self {
            now: 0,
            coordinator: Coordinator::new(setup, 0),
            dead: vec![false; setups.len()],
            setups,
            speeds,
            receivers: BTreeMap::new(),
            to_agents: VecDeque::new(),
            to_master: VecDeque::new(),
            faults,
            left_behind: RangeSet::new(),
            seed: 0,
            latency_ns: vec![5 * MS; count],
            sync_ns: 30 * MS,
            outcome: None,
        }
    }

    fn tell_master(&mut self, node: u32, body: from_agent::Body) {
        let message = FromAgent { body: Some(body) };
        let at = self.now + self.latency_ns[node as usize];
        self.to_master.push_back((at, node, message));
    }

    fn is_silent(&self, node: u32) -> bool {
        let silent = |fault: &Fault| {
            fault.node == node
                && fault.at_ns <= self.now
                && matches!(fault.kind, Kind::SilentUntil(until) if self.now < until)
        };
        self.faults.iter().any(silent)
    }

    /// Carries out what the coordinator wants.
    fn act(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Send(node, message) => {
                    let at = self.now + self.latency_ns[node as usize];
                    self.to_agents.push_back((at, node, message));
                }
                Action::Plan(purpose, problem) => {
                    let schedule = ropewalk_sched::Greedy.plan(&problem).unwrap();
                    ropewalk_model::verify(&problem, &schedule).unwrap();
                    let to_run = |run: ropewalk_model::ReceiverRun| PlannedRun {
                        range: run.range,
                        sender: run.sender,
                        spares: run.spares,
                    };
                    let runs = receiver_runs(&problem, &schedule, 2).into_iter();
                    let planned = Planned {
                        runs: runs
                            .map(|runs| runs.into_iter().map(to_run).collect())
                            .collect(),
                        predicted_seconds: schedule.predicted_seconds(&problem),
                        ..Planned::default()
                    };
                    self.coordinator
                        .handle_planned(&purpose, Ok(planned), self.now);
                }
                Action::End(outcome, _) => self.outcome = Some(outcome),
                _ => {}
            }
        }
    }

    fn agent_hears(&mut self, node: u32, message: ToAgent) {
        let Some(body) = message.body else { return };
        match body {
            to_agent::Body::Open(_) => {
                let identity = control::Identity {
                    length: 1 << 40,
                    ..control::Identity::default()
                };
                let sources = self.setups[node as usize].sources.iter();
                let opened = Opened {
                    sources: sources
                        .map(|_| OpenedSource {
                            identities: vec![identity],
                            ..OpenedSource::default()
                        })
                        .collect(),
                    ..Opened::default()
                };
                self.tell_master(node, from_agent::Body::Opened(opened));
            }
            to_agent::Body::Plan(plan) => {
                if self.setups[node as usize].sinks.is_empty() {
                    return;
                }
                let layout = Layout::single(Range::new(0, plan.length));
                let mut receiver = Receiver {
                    machine: Receiving::new(4 << 20, 1, self.now),
                    layout,
                    unit_len: plan.unit,
                    lanes: BTreeMap::new(),
                    delivered: RangeSet::new(),
                    revision: 0,
                    done_sent: false,
                    stopped: false,
                    safe_ns: None,
                    status_ns: self.now,
                };
                let unit_at = receiver.unit_at();
                receiver.machine.handle_plan(&plan, self.now, &unit_at);
                self.receivers.insert(node, receiver);
                self.drain(node);
            }
            to_agent::Body::Revision(revision) => {
                let now = self.now;
                let Some(receiver) = self.receivers.get_mut(&node) else {
                    return;
                };
                receiver.revision = receiver.revision.max(revision.number);
                if !revision.runs.is_empty() {
                    receiver.done_sent = false;
                }
                receiver.machine.handle_revision(&revision, now);
                self.drain(node);
            }
            to_agent::Body::Release(release) => {
                let Some(receiver) = self.receivers.get_mut(&node) else {
                    return;
                };
                let unit_at = receiver.unit_at();
                let released = receiver.machine.release(release.bytes, &unit_at);
                let ranges = control::stretches(&released);
                self.tell_master(
                    node,
                    from_agent::Body::Released(control::Released { ranges }),
                );
                self.drain(node);
            }
            to_agent::Body::Finish(_) => {
                self.tell_master(
                    node,
                    from_agent::Body::Finished(control::Finished::default()),
                );
            }
            _ => {}
        }
    }

    fn drain(&mut self, node: u32) {
        let (now, sync_ns) = (self.now, self.sync_ns);
        let mut out = Vec::new();
        if let Some(receiver) = self.receivers.get_mut(&node) {
            while let Some(event) = receiver.machine.poll_event() {
                match event {
                    Event::Connect(lane, peer) => {
                        let lane_state = Lane {
                            sender: peer.node,
                            ready_ns: now + CONNECT,
                            queue: VecDeque::new(),
                            come: 0.0,
                        };
                        assert!(receiver.lanes.insert(lane, lane_state).is_none());
                    }
                    Event::Cancel(lane, range) => {
                        if let Some(lane_state) = receiver.lanes.get_mut(&lane) {
                            let before = lane_state.queue.len();
                            if lane_state.queue.front() == Some(&range) {
                                lane_state.come = 0.0;
                            }
                            lane_state.queue.retain(|unit| *unit != range);
                            if lane_state.queue.len() < before {
                                receiver.machine.handle_returned(lane, range, now);
                            }
                        }
                    }
                    Event::Need(ranges, lost, reason) => {
                        out.push(from_agent::Body::Need(control::Need {
                            ranges: control::stretches(&ranges),
                            lost,
                            reason,
                        }));
                    }
                    Event::Failed(text) => panic!("{text}"),
                    Event::Note(_) | Event::Complete => {}
                }
            }
            // Making bytes safe takes some time; more may be asked for meanwhile.
            if !receiver.machine.is_finished() {
                receiver.safe_ns = None;
            } else if !receiver.done_sent && *receiver.safe_ns.get_or_insert(now + sync_ns) <= now {
                receiver.done_sent = true;
                let ledger = receiver.machine.ledger();
                out.push(from_agent::Body::Done(control::Done {
                    delivered: ledger.delivered_bytes(),
                    missing: control::stretches(&ledger.missing()),
                    revision: receiver.revision,
                    ..control::Done::default()
                }));
            }
        }
        for body in out {
            self.tell_master(node, body);
        }
    }

    fn send_statuses(&mut self) {
        let now = self.now;
        let mut out = Vec::new();
        for (node, setup) in self.setups.iter().enumerate() {
            let node = node as u32;
            if self.dead[node as usize] {
                continue;
            }
            let body = match self.receivers.get_mut(&node) {
                Some(receiver) if now >= receiver.status_ns => {
                    receiver.status_ns = now + 500 * MS;
                    let ledger = receiver.machine.ledger();
                    let pairs = receiver
                        .machine
                        .pairs()
                        .iter()
                        .map(|pair| control::PairStatus {
                            sender: pair.sender,
                            delivered: pair.delivered,
                        });
                    from_agent::Body::Status(control::Status {
                        delivered: ledger.delivered_bytes(),
                        checked: ledger.delivered_bytes(),
                        pairs: pairs.collect(),
                    })
                }
                None if !setup.sources.is_empty() && now.is_multiple_of(SECOND) => {
                    from_agent::Body::SenderStatus(control::SenderStatus { sent: 0 })
                }
                _ => continue,
            };
            out.push((node, body));
        }
        for (node, body) in out {
            self.tell_master(node, body);
        }
    }

    /// Nodes whose disk is full say so, once, and fetch nothing more.
    fn stop_nodes(&mut self) {
        let stops = |fault: &&Fault| fault.kind == Kind::Stops && fault.at_ns <= self.now;
        let nodes: Vec<u32> = self.faults.iter().filter(stops).map(|f| f.node).collect();
        for node in nodes {
            let Some(receiver) = self.receivers.get_mut(&node).filter(|r| !r.stopped) else {
                continue;
            };
            receiver.stopped = true;
            if std::mem::replace(&mut receiver.done_sent, true) {
                continue;
            }
            let ledger = receiver.machine.ledger();
            let done = control::Done {
                delivered: ledger.delivered_bytes(),
                missing: control::stretches(&ledger.missing()),
                revision: receiver.revision,
                error: "no space is left".into(),
                ..control::Done::default()
            };
            self.tell_master(node, from_agent::Body::Done(done));
        }
    }

    /// Grants, then moves bytes for one step.
    fn carry(&mut self) {
        let now = self.now;
        let mut busy: Vec<(u32, u32, usize)> = Vec::new();
        let nodes: Vec<u32> = self.receivers.keys().copied().collect();
        let silent: Vec<bool> = (0..self.setups.len() as u32)
            .map(|node| self.is_silent(node))
            .collect();
        for &node in &nodes {
            let Some(receiver) = self.receivers.get_mut(&node).filter(|r| !r.stopped) else {
                continue;
            };
            receiver.machine.handle_timer(now);
            let unit_at = receiver.unit_at();
            let mut down = Vec::new();
            for (&lane, state) in &mut receiver.lanes {
                if now < state.ready_ns {
                    continue;
                }
                if self.dead[state.sender as usize] {
                    down.push(lane);
                    continue;
                }
                let outstanding = state.queue.iter().map(|unit| unit.len()).sum();
                if let Take::Units(units) = receiver.machine.take(lane, outstanding, now, &unit_at)
                {
                    state.queue.extend(units.iter().map(|unit| unit.range));
                }
                if !state.queue.is_empty() && !silent[state.sender as usize] {
                    busy.push((state.sender, node, lane));
                }
            }
            for lane in down {
                receiver.lanes.remove(&lane);
                receiver.machine.handle_lane_down(lane, "killed");
            }
        }
        let rates = fair_rates(&self.speeds, &busy);
        for &node in &nodes {
            if let Some(receiver) = self.receivers.get_mut(&node) {
                for (&lane, state) in &mut receiver.lanes {
                    let Some(rate) = rates.get(&(state.sender, node, lane)) else {
                        continue;
                    };
                    state.come += rate * STEP as f64 / SECOND as f64;
                    while let Some(unit) = state.queue.front().copied() {
                        if state.come < unit.len() as f64 {
                            break;
                        }
                        state.come -= unit.len() as f64;
                        state.queue.pop_front();
                        if receiver.machine.handle_unit(lane, unit, None, now) {
                            assert!(receiver.delivered.clipped(unit).is_empty(), "twice: {unit}");
                            receiver.delivered.insert(unit);
                        }
                    }
                    if state.queue.is_empty() {
                        state.come = 0.0;
                    }
                }
            }
            self.drain(node);
        }
    }

    /// Runs to the end and gives the outcome and the time it took, in seconds.
    fn run(&mut self) -> (Outcome, f64) {
        self.coordinator.start(0);
        self.act();
        while self.outcome.is_none() {
            let (seed, summary) = (self.seed, || self.coordinator.summary());
            assert!(self.now < END, "seed {seed} hangs: {:#?}", summary());
            self.now += STEP;
            let dying: Vec<u32> = self
                .faults
                .iter()
                .filter(|fault| fault.kind == Kind::Dies && fault.at_ns <= self.now)
                .map(|fault| fault.node)
                .filter(|&node| !self.dead[node as usize])
                .collect();
            for node in dying {
                self.dead[node as usize] = true;
                // What it told the master is safe stays safe; the rest of its files is nobody's.
                if let Some(receiver) = self.receivers.remove(&node).filter(|r| r.done_sent) {
                    self.left_behind = self.left_behind.union(&receiver.delivered);
                }
                self.coordinator.handle_lost(node, "killed", self.now);
                self.act();
            }
            for (node, message) in due(&mut self.to_agents, self.now) {
                if !self.dead[node as usize] {
                    self.agent_hears(node, message);
                }
            }
            self.stop_nodes();
            self.carry();
            self.send_statuses();
            for (node, message) in due(&mut self.to_master, self.now) {
                if !self.dead[node as usize] {
                    self.coordinator.handle_message(node, message, self.now);
                    self.act();
                }
            }
            self.coordinator.handle_timer(self.now);
            self.act();
        }
        (
            self.outcome.unwrap_or(Outcome::Failed),
            self.now as f64 / SECOND as f64,
        )
    }

    fn delivered(&self) -> RangeSet {
        let sets = self.receivers.values().map(|receiver| &receiver.delivered);
        sets.fold(self.left_behind.clone(), |all, set| all.union(set))
    }
}

/// Takes the messages that have arrived, those of each node in the order they were sent.
fn due<M>(queue: &mut VecDeque<(u64, u32, M)>, now: u64) -> Vec<(u32, M)> {
    let (arrived, rest) = std::mem::take(queue)
        .into_iter()
        .partition::<Vec<_>, _>(|(at, ..)| *at <= now);
    queue.extend(rest);
    arrived.into_iter().map(|(_, node, m)| (node, m)).collect()
}

/// What each busy lane (sender, receiver, its number there) carries when the nodes' speeds are shared fairly:
/// the scarcest node gives equal parts, then the next one gives what is left.
fn fair_rates(speeds: &[f64], busy: &[(u32, u32, usize)]) -> BTreeMap<(u32, u32, usize), f64> {
    let mut left = speeds.to_vec();
    let mut open = busy.to_vec();
    let mut rates = BTreeMap::new();
    while !open.is_empty() {
        let mut lanes = vec![0.0f64; speeds.len()];
        for &(sender, receiver, _) in &open {
            lanes[sender as usize] += 1.0;
            lanes[receiver as usize] += 1.0;
        }
        let share = |node: usize| left[node].max(0.0) / lanes[node];
        let scarce = (0..speeds.len())
            .filter(|&node| lanes[node] > 0.0)
            .min_by(|&a, &b| share(a).total_cmp(&share(b)));
        let Some(scarce) = scarce else { break };
        let rate = share(scarce);
        open.retain(|&lane| {
            let (sender, receiver, _) = lane;
            let frozen = sender as usize == scarce || receiver as usize == scarce;
            if frozen {
                rates.insert(lane, rate);
                left[sender as usize] -= rate;
                left[receiver as usize] -= rate;
            }
            !frozen
        });
    }
    rates
}

fn senders_and_receivers(speeds: &[f64], bytes: u64, destination: Option<&str>) -> World {
    let all = Range::new(0, bytes);
    let mut setups = Vec::new();
    for at in 0..speeds.len() {
        setups.push(node(format!("s{at}"), Some(all), None));
    }
    for at in 0..speeds.len() {
        setups.push(node(format!("r{at}"), None, Some((all, destination))));
    }
    let both = speeds.iter().chain(speeds).copied().collect();
    World::new(setups, both, false, Vec::new())
}

/// CEP Figure 6 without hints: slow and fast pairs, nobody told the speeds. Work follows what is seen.
#[test]
fn unequal_pairs_without_hints_come_close_to_the_bound() {
    for (slow, fast) in [(5, 0), (5, 1), (5, 2), (5, 3), (1, 1), (2, 2)] {
        let mut speeds = vec![2.39e6; slow];
        speeds.resize(slow + fast, 23.9e6);
        let bound = 20.0;
        let bytes = (speeds.iter().sum::<f64>() * bound) as u64;
        let mut world = senders_and_receivers(&speeds, bytes, Some("out"));
        let (outcome, seconds) = world.run();
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(world.delivered(), RangeSet::from(Range::new(0, bytes)));
        assert!(bound > seconds * 0.95, "{slow}+{fast}: {seconds} s");
    }
}

/// Four thousand seeds: random speeds, layouts, hints, delays, deaths, silences and full disks. A transfer always ends; one that
/// says it is done has every byte in a receiver that lives, and one without faults is done.
#[test]
fn transfers_end_and_tell_the_truth() {
    for seed in 0..4000 {
        let mut chance = Chance(seed);
        let (senders, receivers) = (1 + chance.below(5) as u32, 1 + chance.below(5) as u32);
        let magnitude = 16 + chance.below(14);
        let bytes = 1 + chance.below(1 << magnitude);
        let all = Range::new(0, bytes);
        let destination = (chance.below(4) > 0).then_some("out");
        let mut setups = Vec::new();
        // The first holds, and wants, all; others may hold or want a part.
        let start = |at: u32, chance: &mut Chance| match at {
            0 => 0,
            _ => chance.below(bytes) * chance.below(2),
        };
        for at in 0..senders {
            let holds = Range::new(start(at, &mut chance), bytes);
            setups.push(node(format!("s{at}"), Some(holds), None));
        }
        for at in 0..receivers {
            let wants = Range::new(start(at, &mut chance), bytes);
            setups.push(node(format!("r{at}"), None, Some((wants, destination))));
        }
        let nodes = senders + receivers;
        let speeds: Vec<f64> = (0..nodes)
            .map(|_| (1 + chance.below(40)) as f64 * 1e6)
            .collect();
        let mut faults = Vec::new();
        for _ in 0..chance.below(4) {
            let at_ns = chance.below(12_000) * MS;
            faults.push(Fault {
                node: chance.below(u64::from(nodes)) as u32,
                at_ns,
                kind: match chance.below(3) {
                    0 => Kind::Dies,
                    1 => Kind::SilentUntil(at_ns + chance.below(10) * SECOND),
                    _ => Kind::Stops,
                },
            });
        }
        let harmless = |fault: &Fault| {
            matches!(fault.kind, Kind::SilentUntil(_))
                || (fault.kind == Kind::Stops && fault.node < senders)
        };
        let unharmed = faults.iter().all(harmless);
        let mut world = World::new(setups.clone(), speeds, chance.below(2) > 0, faults);
        world.seed = seed;
        world.latency_ns = (0..nodes).map(|_| chance.below(300) * MS).collect();
        world.sync_ns = chance.below(3) * chance.below(1000) * MS;
        let (outcome, _) = world.run();
        let whole = match destination {
            Some(_) => world.delivered() == RangeSet::from(all),
            None => world.receivers.iter().all(|(&node, receiver)| {
                let row = &setups[node as usize].sinks[0].sink.rows[0];
                receiver.delivered == RangeSet::from(control::range(row.start, row.length))
            }),
        };
        if outcome == Outcome::Done {
            assert!(whole, "seed {seed}: done without all bytes");
        }
        if unharmed {
            assert_eq!(outcome, Outcome::Done, "seed {seed}");
        }
    }
}
