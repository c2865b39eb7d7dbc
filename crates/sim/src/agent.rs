//! One agent: what it does on each control message, and the lanes its receiver pulls bytes over.
//!
//! Messages go to the same machine that the agents drive, `ropewalk_proto::node`; here are its network, which brings bytes
//! over lanes, and its disk, which takes a while for the last sync and none for those before.

use ropewalk_model::layout::Layout;
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::control::{
    self, Opened, OpenedSource, Plan, Revision, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::node::{Duties, End, Failure, Life, Node, Promise, Syncs, Task};
use ropewalk_proto::participant::{Event, Receiving, Take};

use crate::MS;
use crate::lane::Lane;
use crate::mail::Mail;
use crate::network::Network;
use crate::scenario::Scenario;

/// A receiver looks at its plan this often when nothing else wakes it, as the agents' threads do.
const LOOK_NS: u64 = 100 * MS;

/// A unit is whole when all but this part of a byte has come: rates are floats.
const BYTE_PART: f64 = 0.01;

/// What an agent acts upon.
pub(crate) struct Around<'a> {
    pub now_ns: u64,
    pub scenario: &'a Scenario,
    pub network: &'a mut Network,
    pub mail: &'a mut Mail,
    pub dead: &'a [bool],
}

struct Receiver {
    machine: Node,
    layout: Layout,
    unit_len: u64,
    // By the machine's lane number; `None` when it never connected or is down.
    lanes: Vec<Option<Lane>>,
    delivered: RangeSet,
    // The last sync is under way: when it ends.
    syncing: Option<(Promise, u64)>,
}

/// One agent. See the module documentation.
pub(crate) struct Agent {
    node: u32,
    receiver: Option<Box<Receiver>>,
    disk_full: bool,
    // It had its last message: no status any more.
    over: bool,
    /// Time between its statuses, when it is not what all were told.
    pub beat_ns: Option<u64>,
    /// When it last said that it was done without error.
    pub done_ns: Option<u64>,
    /// Bytes that crossed to it.
    pub carried_bytes: f64,
    /// Bytes that came whole a second time.
    pub duplicate_bytes: u64,
}

impl Agent {
    pub fn new(node: u32) -> Self {
        Self {
            node,
            receiver: None,
            disk_full: false,
            over: false,
            beat_ns: None,
            done_ns: None,
            carried_bytes: 0.0,
            duplicate_bytes: 0,
        }
    }

    /// Asserts what must be true between two steps.
    pub fn check(&self) {
        if let Some(receiver) = &self.receiver {
            receiver.machine.fetch().ledger().check();
        }
    }

    fn tell(&self, body: from_agent::Body, around: &mut Around<'_>) {
        around.mail.send_to_master(self.node, body, around.now_ns);
    }

    /// Takes a message of the master. Call [`Agent::progress`] after it.
    pub fn hear(&mut self, message: ToAgent, around: &mut Around<'_>) {
        let Some(body) = message.body else { return };
        match body {
            to_agent::Body::Open(_) => {
                let opened = self.opened(around.scenario);
                self.tell(from_agent::Body::Opened(opened), around);
            }
            to_agent::Body::Plan(plan) => self.take_plan(&plan, around),
            to_agent::Body::Revision(revision) => self.take_revision(&revision, around),
            to_agent::Body::Release(release) => {
                let Some(receiver) = self.receiver.as_deref_mut() else {
                    return;
                };
                let (layout, unit_len) = (&receiver.layout, receiver.unit_len);
                let unit_at = |offset| layout.unit_at(offset, unit_len);
                let released = receiver
                    .machine
                    .fetch_mut()
                    .release(release.bytes, &unit_at);
                let ranges = control::stretches(&released);
                self.tell(
                    from_agent::Body::Released(control::Released { ranges }),
                    around,
                );
            }
            to_agent::Body::Limit(limit) => {
                if let Some(receiver) = self.receiver.as_deref_mut() {
                    let fetch = receiver.machine.fetch_mut();
                    fetch.set_limit(limit.rate, around.now_ns);
                }
            }
            to_agent::Body::Finish(finish) => {
                self.over = true;
                if let Some(receiver) = self.receiver.as_deref_mut() {
                    receiver.machine.handle_end(End {
                        discards: finish.discard,
                        discards_shared: finish.discard,
                    });
                }
                self.hang_up(around.network);
                let finished = control::Finished {
                    committed: finish.commit,
                    usage: Some(usage()),
                    ..control::Finished::default()
                };
                self.tell(from_agent::Body::Finished(finished), around);
            }
            // Manifests and queries are not simulated; a newer master may say more than is known here.
            _ => {}
        }
    }

    /// As a real agent's answer in length.
    fn opened(&self, scenario: &Scenario) -> Opened {
        let [_, a, b, c] = self.node.to_be_bytes();
        let identity = control::Identity {
            length: 1 << 40,
            ..control::Identity::default()
        };
        let sources = scenario.nodes[self.node as usize].sources.iter();
        Opened {
            instance: format!("{:016x}", self.node),
            addresses: vec![format!("10.{a}.{b}.{c}:7420")],
            sources: sources
                .map(|source| OpenedSource {
                    identities: vec![identity; source.source.rows.len()],
                    ..OpenedSource::default()
                })
                .collect(),
            ..Opened::default()
        }
    }

    fn take_plan(&mut self, plan: &Plan, around: &mut Around<'_>) {
        let scenario = around.scenario;
        if scenario.nodes[self.node as usize].sinks.is_empty() {
            return;
        }
        let options = &scenario.options;
        let mut fetch = Receiving::new(options.prefetch, options.streams.max(1), around.now_ns);
        if options.fixed {
            fetch.fix_plan();
        }
        let duties = Duties {
            renames: plan.commit,
            reads_back: false,
            syncs: Syncs {
                every_ns: 0,
                bytes: 1,
            },
        };
        let mut machine = Node::new(fetch, plan.revision, duties, around.now_ns);
        let layout = Layout::single(Range::new(0, plan.length));
        let unit_len = plan.unit_len();
        machine.handle_prepared(plan, around.now_ns, &|offset| {
            layout.unit_at(offset, unit_len)
        });
        let beat = u64::from(plan.beat_milliseconds) * MS;
        self.beat_ns = Some(beat).filter(|beat| *beat > 0);
        self.receiver = Some(Box::new(Receiver {
            machine,
            layout,
            unit_len,
            lanes: Vec::new(),
            delivered: RangeSet::new(),
            syncing: None,
        }));
        if self.disk_full {
            self.fail(around);
        }
    }

    fn take_revision(&mut self, revision: &Revision, around: &mut Around<'_>) {
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        if revision.settle {
            self.beat_ns = None;
        }
        receiver.machine.handle_revision(revision, around.now_ns);
        if receiver.machine.life() == Life::Fetching {
            self.done_ns = None;
        }
        if self.disk_full {
            self.fail(around);
        }
    }

    /// The disk is full: the node says so, unless it was done, and fetches nothing more.
    pub fn stop(&mut self, around: &mut Around<'_>) {
        self.disk_full = true;
        self.fail(around);
    }

    fn fail(&mut self, around: &mut Around<'_>) {
        self.hang_up(around.network);
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        let text = "no space is left".to_owned();
        receiver.machine.handle_failed(Failure::Other(text));
        self.report(around);
    }

    /// Sends the report, if there is one to send.
    fn report(&mut self, around: &mut Around<'_>) {
        let machine = self.receiver.as_deref_mut().map(|r| &mut r.machine);
        if let Some(done) = machine.and_then(|machine| machine.take_done(around.now_ns)) {
            if done.error.is_empty() {
                self.done_ns = Some(around.now_ns);
            }
            let done = with_details(done);
            self.tell(from_agent::Body::Done(done), around);
        }
    }

    /// Closes all lanes for good.
    pub fn hang_up(&mut self, network: &mut Network) {
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        for mut lane in receiver.lanes.drain(..).flatten() {
            self.carried_bytes += lane.torn();
            lane.stop(network);
        }
    }

    /// The periodic message; `None` when it is past that.
    pub fn status(&mut self, now_ns: u64) -> Option<from_agent::Body> {
        if self.over {
            return None;
        }
        let Some(receiver) = self.receiver.as_deref_mut() else {
            let status = control::SenderStatus::default();
            return Some(from_agent::Body::SenderStatus(status));
        };
        Some(from_agent::Body::Status(receiver.machine.status(now_ns)))
    }

    /// What it has that others can rely on: nothing after it failed.
    pub fn delivered(&self) -> RangeSet {
        let receiver = self.receiver.as_deref();
        let is_done = self.is_done();
        let receiver = receiver.filter(|r| is_done || r.machine.failure().is_none());
        receiver.map_or_else(RangeSet::new, |r| r.delivered.clone())
    }

    /// The rate of a lane is another one now. Returns when the agent has to be woken for it.
    pub fn set_rate(&mut self, lane: u32, rate: f64, now_ns: u64) -> Option<u64> {
        let receiver = self.receiver.as_deref_mut()?;
        let lane = receiver.lanes.get_mut(lane as usize)?.as_mut()?;
        lane.advance(now_ns);
        lane.rate = rate;
        lane.next_ns()
    }

    /// Takes in what has come, asks for more, and says what there is to say. Returns when it has to be called
    /// again, if nothing else happens.
    pub fn progress(&mut self, around: &mut Around<'_>) -> Option<u64> {
        if self.over || self.disk_full {
            return None;
        }
        self.receiver.as_deref()?;
        self.land(around.now_ns);
        self.drain(around);
        let mut next_ns = self.ask(around);
        self.drain(around);
        let receiver = self.receiver.as_deref_mut()?;
        for (number, lane) in receiver.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            if lane.queue.is_empty() {
                lane.stop(around.network);
            } else if lane.flow.is_none() {
                let pair = (lane.sender, self.node);
                let cap = around.scenario.pair_caps.get(&pair).copied();
                let cap = cap.unwrap_or(f64::INFINITY);
                let owner = (self.node, number as u32);
                lane.flow = Some(around.network.start(pair.0, pair.1, cap, owner));
                (lane.at_ns, lane.rate) = (around.now_ns, 0.0);
            }
            let connecting = Some(lane.ready_ns).filter(|ready| *ready > around.now_ns);
            next_ns = next_ns
                .into_iter()
                .chain(lane.next_ns())
                .chain(connecting)
                .min();
        }
        let task_ns = self.keep_safe(around);
        next_ns.into_iter().chain(task_ns).min()
    }

    /// Hands whole units to the machine.
    fn land(&mut self, now_ns: u64) {
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        for (number, lane) in receiver.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            lane.advance(now_ns);
            while let Some(unit) = lane.queue.front().copied() {
                if lane.come + BYTE_PART < unit.len() as f64 {
                    break;
                }
                lane.come = (lane.come - unit.len() as f64).max(0.0);
                lane.queue.pop_front();
                lane.outstanding -= unit.len();
                lane.landed += unit.len();
                self.carried_bytes += unit.len() as f64;
                let fetch = receiver.machine.fetch_mut();
                if fetch.handle_unit(number, unit, None, now_ns) {
                    let again = receiver.delivered.clipped(unit);
                    assert!(again.is_empty(), "node {} has {unit} twice", self.node);
                    receiver.delivered.insert(unit);
                } else {
                    self.duplicate_bytes += unit.len();
                }
            }
            if lane.queue.is_empty() {
                lane.come = 0.0;
            }
            let fetch = receiver.machine.fetch_mut();
            fetch.handle_bytes(number, lane.take_fresh());
        }
    }

    /// Asks for units on every lane that can take some. Returns when to ask again.
    fn ask(&mut self, around: &Around<'_>) -> Option<u64> {
        let now_ns = around.now_ns;
        let receiver = self.receiver.as_deref_mut()?;
        receiver.machine.handle_timer(now_ns);
        let (layout, unit_len) = (&receiver.layout, receiver.unit_len);
        let unit_at = |offset| layout.unit_at(offset, unit_len);
        let is_finished = receiver.machine.fetch().is_finished();
        let mut next_ns = (!is_finished).then_some(now_ns + LOOK_NS);
        let mut down = Vec::new();
        for (number, lane) in receiver.lanes.iter_mut().enumerate() {
            let Some(lane) = lane.as_mut().filter(|lane| lane.ready_ns <= now_ns) else {
                continue;
            };
            if around.dead[lane.sender as usize] {
                down.push(number);
                continue;
            }
            let fetch = receiver.machine.fetch_mut();
            let taken = fetch.take(number, lane.outstanding, now_ns, &unit_at);
            match taken {
                Take::Units(units) => {
                    lane.outstanding += units.iter().map(|unit| unit.range.len()).sum::<u64>();
                    lane.queue.extend(units.iter().map(|unit| unit.range));
                }
                Take::Wait(until) => next_ns = next_ns.into_iter().chain(until).min(),
                Take::Closed => {}
            }
        }
        for number in down {
            // Its flow stops when the lane is drained.
            let fetch = receiver.machine.fetch_mut();
            fetch.handle_lane_down(number, "killed");
        }
        next_ns
    }

    /// Carries out what the machine wants.
    fn drain(&mut self, around: &mut Around<'_>) {
        let now_ns = around.now_ns;
        let mut needs = Vec::new();
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        while let Some(event) = receiver.machine.poll_event(now_ns) {
            match event {
                Event::Connect(number, peer) => {
                    if receiver.lanes.len() <= number {
                        receiver.lanes.resize_with(number + 1, || None);
                    }
                    let ready_ns = now_ns + around.scenario.connect_ns;
                    let lane = Lane::new(peer.node, ready_ns, now_ns);
                    let before = receiver.lanes[number].replace(lane);
                    assert!(before.is_none(), "lane {number} is connected twice");
                }
                Event::Cancel(number, range) => {
                    let Some(Some(lane)) = receiver.lanes.get_mut(number) else {
                        continue;
                    };
                    let Some(place) = lane.queue.iter().position(|unit| *unit == range) else {
                        continue;
                    };
                    if place == 0 {
                        lane.advance(now_ns);
                        self.carried_bytes += lane.torn();
                        lane.come = 0.0;
                    }
                    lane.queue.remove(place);
                    lane.outstanding -= range.len();
                    let fetch = receiver.machine.fetch_mut();
                    fetch.handle_returned(number, range, now_ns);
                }
                Event::Need(ranges, lost, reason) => needs.push(control::Need {
                    ranges: control::stretches(&ranges),
                    lost,
                    reason,
                }),
                _ => {}
            }
        }
        // What the machine has given up on, for whatever reason, is not waited for.
        for (number, lane) in receiver.lanes.iter_mut().enumerate() {
            if receiver.machine.fetch().ledger().is_alive(number) {
                continue;
            }
            if let Some(mut lane) = lane.take() {
                self.carried_bytes += lane.torn();
                lane.stop(around.network);
            }
        }
        for need in needs {
            self.tell(from_agent::Body::Need(need), around);
        }
    }

    /// Does what the machine wants done with the disk. Returns when the last sync ends.
    fn keep_safe(&mut self, around: &mut Around<'_>) -> Option<u64> {
        let now_ns = around.now_ns;
        loop {
            let receiver = self.receiver.as_deref_mut()?;
            if let Some((promise, until_ns)) = receiver.syncing {
                if until_ns > now_ns {
                    return Some(until_ns);
                }
                receiver.syncing = None;
                receiver.machine.handle_synced(promise, Ok(()), now_ns);
            }
            match receiver.machine.next_task(now_ns) {
                Task::Sync(promise) if receiver.machine.life() == Life::Settling => {
                    receiver.syncing = Some((promise, now_ns + around.scenario.sync_ns));
                }
                Task::Sync(promise) => receiver.machine.handle_synced(promise, Ok(()), now_ns),
                Task::ReadBack => receiver.machine.handle_read_back(Ok(())),
                Task::Rename => receiver.machine.handle_renamed(Ok(())),
                Task::Report => self.report(around),
                Task::Wait(_) | Task::End => return None,
            }
        }
    }

    /// Whether it has reported that it is done, without error.
    pub fn is_done(&self) -> bool {
        self.done_ns.is_some()
    }
}

/// As a real agent's report in length.
fn with_details(done: control::Done) -> control::Done {
    let pairs = done.pairs.into_iter().filter(|pair| pair.delivered > 0);
    control::Done {
        pairs: pairs
            .map(|pair| control::PairDone {
                streams: 1,
                lane: "tcp".into(),
                waiting: 1_000_000_000,
                ..pair
            })
            .collect(),
        root: vec![0; 32],
        usage: Some(usage()),
        ..done
    }
}

/// As long as a real one.
fn usage() -> control::Usage {
    control::Usage {
        processor: 1_000_000_000,
        resident_max: 32 << 20,
    }
}
