//! Streams in virtual time: the shipping processes and the master's run, over links that delay frames at random.
//!
//! A process handles one block after the other, each in the time that the scenario gives it; edges keep the order of frames. A
//! process can be killed: its peers notice after the delay of a link, its agent at once. Left out on purpose: how many bytes a
//! link carries, and what a system call costs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use ropewalk_model::{Instant, Nanos};
use ropewalk_proto::mix::mix;
use ropewalk_proto::stage::account::Account;
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::frame::{Frame, Header};
use ropewalk_proto::stage::process::{Held, Process, Role, Settings};
use ropewalk_proto::stage::run::{Action, Cause, Failure, Progress, Run};

use crate::Chance;

/// Longer than any simulated stream.
const STALL: Nanos = Nanos::from_secs(3600);

/// Time from a node to its master.
const TO_MASTER: Nanos = Nanos::from_millis(1);

/// A stream to be simulated.
#[derive(Clone, Debug)]
pub struct StageScenario {
    /// Nodes, each with a process of each group.
    pub nodes: u32,
    /// Groups, 2 at least.
    pub groups: u32,
    /// Blocks that each first process makes.
    pub blocks: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Buffers of a process.
    pub buffers: usize,
    /// Time that every process takes for a block ...
    pub work: Nanos,
    /// ... and those that take another time, by group and node.
    pub slow: BTreeMap<(u32, u32), Nanos>,
    /// Shortest and longest delay of a frame.
    pub delay: (Nanos, Nanos),
    /// Killed at a time: group, node.
    pub kill: Option<(Nanos, u32, u32)>,
    /// How blocks are dealt; the key of a block is its number.
    pub deal: Deal,
    /// Of deals and delays.
    pub seed: u64,
}

/// How a simulated stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagesEnded {
    /// When the last process had ended, or the failure was known.
    pub time: Nanos,
    /// What the master reports.
    pub failure: Option<Failure>,
    /// Most buffers that any process held.
    pub held_max: usize,
    /// What each process received or made, by group, then node.
    pub accounts: Vec<Account>,
    /// The same in the middle of the run's blocks: when the last group had half of them.
    pub halfway: Option<(Nanos, Vec<Account>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Forward(usize),
    Back(usize),
    Worked(usize),
    Killed(usize),
    Lost(usize),
    Reported(usize),
    Died(usize),
}

struct Edge {
    from: usize,
    output: usize,
    to: usize,
    input: usize,
    forward: VecDeque<Frame>,
    back: VecDeque<(u64, bool)>,
    // Frames keep their order.
    forward_at: Instant,
    back_at: Instant,
}

struct Place {
    machine: Process<()>,
    // It works on a block until then.
    busy: bool,
    taken: Option<Held<()>>,
    made: u64,
    is_dead: bool,
    is_reported: bool,
}

struct World<'s> {
    scenario: &'s StageScenario,
    places: Vec<Place>,
    edges: Vec<Edge>,
    queue: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    count: u64,
    now: Instant,
    chance: Chance,
    run: Run,
    ended: StagesEnded,
}

fn fingerprint(header: &Header) -> u128 {
    let identity = header.identity;
    let place = u64::from(identity.node) << 16 | u64::from(identity.group);
    u128::from(mix(identity.number ^ mix(place))) << 64 | u128::from(header.length)
}

/// Runs a stream to its end. The same scenario gives the same result.
///
/// # Panics
/// When the stream stops, which is an error of the machine.
#[must_use]
pub fn run_stages(scenario: &StageScenario) -> StagesEnded {
    let mut world = World::new(scenario);
    world.begin();
    world.drive();
    let accounts = world.accounts();
    StagesEnded {
        failure: world.run.failure().cloned(),
        accounts,
        ..world.ended
    }
}

impl<'s> World<'s> {
    fn new(scenario: &'s StageScenario) -> Self {
        let (nodes, groups) = (scenario.nodes as usize, scenario.groups);
        let mut places = Vec::new();
        for group in 0..groups {
            for node in 0..scenario.nodes {
                let is_last = group + 1 == groups;
                let machine = Process::new(Settings {
                    role: match group {
                        0 => Role::Source,
                        _ if is_last => Role::Sink,
                        _ => Role::Relay,
                    },
                    node,
                    group,
                    inputs: if group == 0 { 0 } else { nodes },
                    outputs: if is_last { 0 } else { nodes },
                    block: scenario.block as usize,
                    buffers: scenario.buffers,
                    deal: scenario.deal,
                    seed: scenario.seed,
                });
                places.push(Place {
                    machine,
                    busy: false,
                    taken: None,
                    made: 0,
                    is_dead: false,
                    is_reported: false,
                });
            }
        }
        let mut edges = Vec::new();
        for group in 0..groups as usize - 1 {
            for from in 0..nodes {
                for to in 0..nodes {
                    edges.push(Edge {
                        from: group * nodes + from,
                        output: to,
                        to: (group + 1) * nodes + to,
                        input: from,
                        forward: VecDeque::new(),
                        back: VecDeque::new(),
                        forward_at: Instant::ZERO,
                        back_at: Instant::ZERO,
                    });
                }
            }
        }
        Self {
            places,
            edges,
            queue: BinaryHeap::new(),
            count: 0,
            now: Instant::ZERO,
            chance: Chance::new(scenario.seed),
            run: Run::new(scenario.nodes, groups, Vec::new(), STALL, Instant::ZERO),
            ended: StagesEnded {
                time: Nanos::ZERO,
                failure: None,
                held_max: 0,
                accounts: Vec::new(),
                halfway: None,
            },
            scenario,
        }
    }

    fn at(&mut self, time: Instant, what: Happening) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count, what)));
    }

    fn delay(&mut self) -> Nanos {
        let (least, most) = self.scenario.delay;
        Nanos(least.0 + self.chance.below(most.0 - least.0 + 1))
    }

    fn place_of(&self, place: usize) -> (u32, u32) {
        let nodes = self.scenario.nodes as usize;
        ((place / nodes) as u32, (place % nodes) as u32)
    }

    fn begin(&mut self) {
        let length = self.scenario.blocks * u64::from(self.scenario.block);
        for node in 0..self.scenario.nodes {
            self.run.handle_opened(self.now, node, length);
        }
        if let Some((after, group, node)) = self.scenario.kill {
            let place = (group * self.scenario.nodes + node) as usize;
            self.at(Instant::ZERO + after, Happening::Killed(place));
        }
        for place in 0..self.places.len() {
            self.settle(place);
        }
    }

    fn drive(&mut self) {
        loop {
            while let Some(action) = self.run.poll(self.now) {
                if let Action::Finish { .. } = action {
                    self.ended.time = self.now.since(Instant::ZERO);
                    return;
                }
            }
            let due = self.run.deadline();
            let next = self.queue.peek().map(|Reverse((time, ..))| *time);
            match (next, due) {
                (None, None) => panic!("nothing happens any more, and the stream is not over"),
                (Some(next), due) if due.is_none_or(|due| next <= due) => {
                    if let Some(Reverse((time, _, what))) = self.queue.pop() {
                        self.now = time;
                        self.happen(what);
                    }
                }
                (_, due) => self.now = due.unwrap_or(self.now),
            }
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Forward(edge) => {
                let frame = self.edges[edge].forward.pop_front();
                let (to, input) = (self.edges[edge].to, self.edges[edge].input);
                let machine = &mut self.places[to].machine;
                match frame {
                    Some(Frame::Block(header)) => {
                        let (mark, key) = (fingerprint(&header), header.identity.number);
                        let accepted = machine.arrive(input, header, mark, key, ());
                        accepted.expect("a simulated sender keeps to its credit");
                    }
                    Some(Frame::Want) => machine.want(input),
                    Some(Frame::End { blocks, bytes }) => {
                        machine
                            .end(input, blocks, bytes)
                            .expect("counts of a simulated edge are right");
                    }
                    _ => {}
                }
                self.settle(to);
            }
            Happening::Back(edge) => {
                let (from, output) = (self.edges[edge].from, self.edges[edge].output);
                if let Some((granted, on_demand)) = self.edges[edge].back.pop_front() {
                    let credit = self.places[from].machine.credit(output, granted, on_demand);
                    credit.expect("a simulated receiver takes nothing back");
                }
                self.settle(from);
            }
            Happening::Worked(place) => {
                let one = &mut self.places[place];
                one.busy = false;
                if let Some(held) = one.taken.take() {
                    one.machine.release(held);
                } else if one.machine.role() == Role::Source {
                    self.make(place);
                } else {
                    one.machine.relay_one();
                }
                self.settle(place);
            }
            Happening::Killed(place) => self.kill(place),
            Happening::Lost(place) => self.fail(place, Cause::Peer),
            Happening::Died(place) => self.fail(place, Cause::Process),
            Happening::Reported(place) => {
                let (group, node) = self.place_of(place);
                let machine = &self.places[place].machine;
                let progress = Progress {
                    received: machine.received(),
                    dealt: machine.dealt(),
                    has_ended: true,
                    ..Progress::default()
                };
                self.run.handle_progress(self.now, node, group, progress);
            }
        }
    }

    /// Its agent knows at once, its peers when their connections to it end.
    fn kill(&mut self, place: usize) {
        self.places[place].is_dead = true;
        self.at(self.now + TO_MASTER, Happening::Died(place));
        let around: Vec<usize> = self
            .edges
            .iter()
            .filter_map(|edge| match (edge.from, edge.to) {
                (from, to) if from == place => Some(to),
                (from, to) if to == place => Some(from),
                _ => None,
            })
            .collect();
        for peer in around {
            let at = self.now + self.delay() + TO_MASTER;
            self.at(at, Happening::Lost(peer));
        }
    }

    fn fail(&mut self, place: usize, cause: Cause) {
        let (group, node) = self.place_of(place);
        let failure = Failure {
            cause,
            node: Some(node),
            group: Some(group),
            message: String::new(),
        };
        self.run.handle_failure(self.now, failure);
    }

    fn make(&mut self, place: usize) {
        let one = &mut self.places[place];
        let header = Header {
            identity: one.machine.next_identity(),
            length: self.scenario.block,
            check: 0,
        };
        let key = header.identity.number;
        one.machine.make(header, fingerprint(&header), key, ());
        one.made += 1;
        if one.made == self.scenario.blocks {
            one.machine.close();
        }
    }

    /// A process does what it can at once, and begins to work on a block if it has one.
    fn settle(&mut self, place: usize) {
        if self.places[place].is_dead {
            return;
        }
        self.ended.held_max = self.ended.held_max.max(self.places[place].machine.held());
        // What is sent frees buffers, and room for what is merged next.
        let edges = 0..self.edges.len();
        for edge in edges
            .clone()
            .filter(|&edge| self.edges[edge].from == place)
            .collect::<Vec<_>>()
        {
            self.send(edge);
        }
        for edge in edges
            .filter(|&edge| self.edges[edge].to == place)
            .collect::<Vec<_>>()
        {
            self.grant(edge);
        }
        let (group, node) = self.place_of(place);
        let slow = self.scenario.slow.get(&(group, node));
        let work = *slow.unwrap_or(&self.scenario.work);
        let one = &mut self.places[place];
        if !one.busy {
            one.busy = match one.machine.role() {
                Role::Source => one.made < self.scenario.blocks && one.machine.may_make(),
                Role::Sink => {
                    one.taken = one.machine.take();
                    one.taken.is_some()
                }
                // A relay's time passes before it merges.
                Role::Relay | Role::Program => one.machine.can_relay(),
            };
            if one.busy {
                self.at(self.now + work, Happening::Worked(place));
            }
        }
        let one = &mut self.places[place];
        if one.machine.is_done() && !one.is_reported {
            one.is_reported = true;
            self.at(self.now + TO_MASTER, Happening::Reported(place));
        }
        self.note_half();
    }

    fn send(&mut self, at: usize) {
        let (from, output) = (self.edges[at].from, self.edges[at].output);
        let mut frames = Vec::new();
        let machine = &mut self.places[from].machine;
        while let Some(held) = machine.next_send(output) {
            frames.push(Frame::Block(held.header));
            machine.sent(output, held);
        }
        if machine.poll_want(output, false) {
            frames.push(Frame::Want);
        }
        if let Some((blocks, bytes)) = machine.poll_end(output) {
            frames.push(Frame::End { blocks, bytes });
        }
        for frame in frames {
            let time = (self.now + self.delay()).max(self.edges[at].forward_at);
            self.edges[at].forward_at = time;
            self.edges[at].forward.push_back(frame);
            self.at(time, Happening::Forward(at));
        }
    }

    fn grant(&mut self, at: usize) {
        let (to, input) = (self.edges[at].to, self.edges[at].input);
        if let Some(credit) = self.places[to].machine.poll_credit(input) {
            let time = (self.now + self.delay()).max(self.edges[at].back_at);
            self.edges[at].back_at = time;
            self.edges[at].back.push_back(credit);
            self.at(time, Happening::Back(at));
        }
    }

    fn accounts(&self) -> Vec<Account> {
        let of = |place: &Place| match place.machine.role() {
            Role::Source => place.machine.dealt(),
            _ => place.machine.received(),
        };
        self.places.iter().map(of).collect()
    }

    fn note_half(&mut self) {
        if self.ended.halfway.is_some() {
            return;
        }
        let nodes = self.scenario.nodes as usize;
        let last = &self.places[self.places.len() - nodes..];
        let arrived: u64 = last
            .iter()
            .map(|place| place.machine.received().blocks)
            .sum();
        if arrived * 2 >= self.scenario.blocks * u64::from(self.scenario.nodes) {
            self.ended.halfway = Some((self.now.since(Instant::ZERO), self.accounts()));
        }
    }
}
