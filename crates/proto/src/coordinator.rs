//! The master's logic for one transfer: open, plan, move, finish; who is lost and who takes over.
//!
//! A state machine without I/O (CEP section 3, life cycle). The driver reports messages, lost
//! connections and the passing of time, and drains [`Coordinator::poll_action`]. Planning itself is
//! an action too, answered by [`Coordinator::handle_planned`], so that the driver may plan on
//! another thread and a simulator in virtual time.
//!
//! ```text
//!  Opening --all opened--> Comparing --same or disjoint--> Planning --planned--> Moving
//!     |                        |                              |                    | all done or lost
//!     +------ refused ---------+------------------------------+--> Ended <-- Finishing
//! ```
//!
//! State per node is a few hundred bytes; nothing here grows with bytes moved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::layout::{UNITS_PER_NODE, unit_len};
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::{CHUNK_LEN, Range, RangeSet};

use crate::control::{self, Done, Finished, FromAgent, Opened, Run, ToAgent, from_agent, to_agent};
use crate::report::Outcome;

mod balance;
mod finish;
mod layout;
mod limit;
mod observe;
mod recover;
mod setup;
mod summary;
#[cfg(test)]
mod tests;

pub use setup::{Destinations, Mapping, NodeSetup, Setup, SinkSetup, SourceSetup, Sources};
pub use summary::NodeSummary;

/// A node that says nothing for this long is lost (agents send a status at least each second).
pub const SILENCE_NS_MAX: u64 = 15_000_000_000;

/// Longest time for all nodes to open what they hold (large trees are walked in it).
pub const OPEN_NS_MAX: u64 = 300_000_000_000;

/// Longest time for nodes to rename and report at the end.
/// A tree of a million files takes minutes; a dead node shows by its connection.
pub const FINISH_NS_MAX: u64 = 600_000_000_000;

/// Longest wait for the last word of senders once every receiver is finished: it holds figures only.
pub const FAREWELL_NS_MAX: u64 = 2_000_000_000;

/// Speed assumed for a node when nobody knows better (1 Gbit/s): only ratios matter to the plan.
pub const SPEED_UNKNOWN: u64 = 125_000_000;

/// Holders a receiver is told of for each manifest: enough to survive two that fail.
const MANIFEST_HOLDERS: usize = 3;

/// How often the shares of a `--limit` are dealt anew.
const LEASE_NS: u64 = 1_000_000_000;

/// Smallest share of a limit that a working receiver keeps, so that it can show it wants more.
const LEASE_SHARE_MIN: f64 = 0.02;

/// Where the speeds of the plan come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The user said.
    Declared,
    /// The interfaces say.
    Interface,
    /// Nobody knows: equal guesses; the bound comes from observation afterwards.
    None,
}

/// Why planning is asked for, and which nodes stand behind the positions of the problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Purpose {
    /// The first plan of the transfer; otherwise new owners for some ranges.
    pub first: bool,
    /// Time from now in which the receivers should be done; 0 when nobody knows.
    pub expected_ns: u64,
    /// Node number of each sender of the problem.
    pub senders: Vec<u32>,
    /// Node number of each receiver of the problem.
    pub receivers: Vec<u32>,
}

/// What the driver must do.
#[derive(Debug)]
pub enum Action {
    /// Send a message to a node.
    Send(u32, ToAgent),
    /// Make a schedule for the problem and answer with [`Coordinator::handle_planned`].
    Plan(Purpose, Problem),
    /// Say whether these manifests (node number, bytes) are replicas or parts, in the answer
    /// [`Coordinator::handle_compared`].
    Compare(Vec<(u32, Vec<u8>)>),
    /// Tell the user.
    Note(String),
    /// Bytes start to flow.
    Moving,
    /// Progress changed.
    Progress,
    /// It is over; collect the summary and close the connections.
    End(Outcome, Option<String>),
}

/// How sources with different manifests relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// No path is in two of them.
    Parts,
    /// The same paths, sizes and times; they differ in modes or times of folders only.
    Replicas,
}

/// A schedule turned into runs, as the driver hands it back.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// Per receiver of the problem: its runs; senders and spares are positions in the problem.
    pub runs: Vec<Vec<PlannedRun>>,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Predicted time.
    pub predicted_seconds: f64,
    /// Least time and the nodes that set it.
    pub bound: Option<(f64, Vec<String>, bool)>,
}

/// One stretch for one receiver.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    /// The bytes.
    pub range: Range,
    /// Position of the sender in the problem.
    pub sender: usize,
    /// Positions of other holders.
    pub spares: Vec<usize>,
}

/// What observation says about work that is planned anew.
#[derive(Debug)]
struct Forecast {
    // Bytes per second that each node can still send.
    up: Vec<f64>,
    // Until all is done.
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Comparing,
    Planning,
    Moving,
    Finishing,
    Ended,
}

#[derive(Debug)]
struct Node {
    setup: NodeSetup,
    opened: Option<Opened>,
    lost: Option<String>,
    heard_ns: u64,
    holds: RangeSet,
    wants: RangeSet,
    runs: Vec<Run>,
    delivered: u64,
    checked: u64,
    sent_by_pair: BTreeMap<u32, u64>,
    done: Option<Done>,
    finished: Option<Finished>,
    finish_sent: bool,
    // Revisions with runs sent so far; an older Done speaks of less than is now asked.
    revision: u32,
    // Checked bytes, and when, at the first status while moving and at the newest one.
    first_seen: Option<(u64, u64)>,
    last_seen: (u64, u64),
    observed: observe::Observed,
    // Most bytes per second its receivers had from it together.
    best_sending: f64,
    // It was asked to give up ranges and has not answered.
    releasing: bool,
    // It gave nothing when last asked: it is not asked again until it has more.
    has_nothing_to_give: bool,
}

impl Node {
    fn is_sender(&self) -> bool {
        !self.setup.sources.is_empty()
    }
    fn is_receiver(&self) -> bool {
        !self.setup.sinks.is_empty()
    }
    fn alive(&self) -> bool {
        self.lost.is_none()
    }
    /// What the plan asks of it.
    fn assigned(&self) -> RangeSet {
        RangeSet::from_ranges(self.runs.iter().map(|r| control::range(r.start, r.length)))
    }
}

/// One transfer as its master sees it. See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    setup: Setup,
    nodes: Vec<Node>,
    phase: Phase,
    actions: VecDeque<Action>,
    basis: Basis,
    relation: Option<Relation>,
    parts: Vec<control::Part>,
    // Awaited manifests by node and source; empty until they come.
    manifests: BTreeMap<(u32, u32), Vec<u8>>,
    planned: Planned,
    files: u64,
    data_length: u64,
    start_ns: u64,
    moving_ns: Option<u64>,
    last_done_ns: Option<u64>,
    finish_ns: Option<u64>,
    farewell_ns: Option<u64>,
    lease_ns: u64,
    lease_delivered: BTreeMap<u32, u64>,
    unit_len: u64,
    // When each shared destination is looked at next.
    next_balance_ns: BTreeMap<String, u64>,
    // Bytes per second that each sender gives all receivers together.
    sending: Vec<f64>,
    // What a round of balancing released so far, by giver.
    released: Vec<(u32, RangeSet)>,
    unavailable: BTreeMap<u32, RangeSet>,
    notes: Vec<String>,
    failure: Option<String>,
}

impl Coordinator {
    /// A coordinator that has sent nothing yet.
    pub fn new(setup: Setup, now_ns: u64) -> Self {
        let nodes = setup
            .nodes
            .iter()
            .map(|node| Node {
                setup: node.clone(),
                opened: None,
                lost: None,
                heard_ns: now_ns,
                holds: RangeSet::new(),
                wants: RangeSet::new(),
                runs: Vec::new(),
                delivered: 0,
                checked: 0,
                sent_by_pair: BTreeMap::new(),
                done: None,
                finished: None,
                finish_sent: false,
                revision: 0,
                first_seen: None,
                last_seen: (0, now_ns),
                observed: observe::Observed::default(),
                best_sending: 0.0,
                releasing: false,
                has_nothing_to_give: false,
            })
            .collect();
        let sending = vec![0.0; setup.nodes.len()];
        Self {
            setup,
            nodes,
            phase: Phase::Opening,
            actions: VecDeque::new(),
            basis: Basis::None,
            relation: None,
            parts: Vec::new(),
            manifests: BTreeMap::new(),
            planned: Planned::default(),
            files: 0,
            data_length: 0,
            start_ns: now_ns,
            moving_ns: None,
            last_done_ns: None,
            finish_ns: None,
            farewell_ns: None,
            lease_ns: now_ns,
            lease_delivered: BTreeMap::new(),
            unit_len: CHUNK_LEN,
            next_balance_ns: BTreeMap::new(),
            sending,
            released: Vec::new(),
            unavailable: BTreeMap::new(),
            notes: Vec::new(),
            failure: None,
        }
    }

    /// All nodes are connected: ask each to open its part. Next states: Comparing, Planning, Ended.
    pub fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns;
        for index in 0..self.nodes.len() {
            self.nodes[index].heard_ns = now_ns;
            let open = setup::open_message(&self.setup, index as u32);
            self.send(index as u32, to_agent::Body::Open(open));
        }
    }

    fn send(&mut self, node: u32, body: to_agent::Body) {
        self.actions
            .push_back(Action::Send(node, ToAgent { body: Some(body) }));
    }

    fn name(&self, node: u32) -> &str {
        self.nodes
            .get(node as usize)
            .map_or("?", |n| n.setup.name.as_str())
    }

    fn note(&mut self, text: String) {
        self.notes.push(text.clone());
        self.actions.push_back(Action::Note(text));
    }

    /// Next thing for the driver to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes a message of a node. A message that does not fit the state is ignored.
    pub fn handle_message(&mut self, node: u32, message: FromAgent, now_ns: u64) {
        let Some(state) = self.nodes.get_mut(node as usize) else {
            return;
        };
        state.heard_ns = now_ns;
        match message.body {
            Some(from_agent::Body::Opened(opened)) if self.phase == Phase::Opening => {
                state.opened = Some(opened);
                if self.nodes.iter().all(|n| n.opened.is_some()) {
                    self.all_opened();
                }
            }
            Some(from_agent::Body::Refused(refused)) => {
                let text = format!("{}: {}", self.name(node), refused.message);
                self.refuse(text);
            }
            Some(from_agent::Body::ManifestReply(reply)) if self.phase == Phase::Comparing => {
                if let Some(awaited) = self.manifests.get_mut(&(node, reply.source)) {
                    *awaited = reply.manifest;
                }
                if self.manifests.values().all(|m| !m.is_empty()) {
                    let manifests = std::mem::take(&mut self.manifests);
                    let manifests = manifests
                        .into_iter()
                        .map(|((node, _), m)| (node, m))
                        .collect();
                    self.actions.push_back(Action::Compare(manifests));
                }
            }
            Some(from_agent::Body::Status(status)) => {
                state.delivered = status.delivered;
                state.checked = status.checked;
                state.first_seen.get_or_insert((now_ns, status.checked));
                state.last_seen = (now_ns, status.checked);
                state.sent_by_pair = status
                    .pairs
                    .iter()
                    .map(|p| (p.sender, p.delivered))
                    .collect();
                self.actions.push_back(Action::Progress);
                if self.phase == Phase::Moving {
                    self.observe(node, &status, now_ns);
                }
            }
            Some(from_agent::Body::Need(need)) if matches!(self.phase, Phase::Moving) => {
                self.handle_need(node, &need)
            }
            Some(from_agent::Body::Done(done)) if self.phase == Phase::Moving => {
                self.handle_done(node, done, now_ns)
            }
            Some(from_agent::Body::Released(released)) if self.phase == Phase::Moving => {
                self.handle_released(node, &control::range_set(&released.ranges), now_ns);
            }
            Some(from_agent::Body::Finished(finished)) => {
                if !finished.error.is_empty() {
                    let text = format!("{}: {}", self.name(node), finished.error);
                    self.failure.get_or_insert(text);
                }
                self.nodes[node as usize].finished = Some(finished);
                self.check_finished();
            }
            _ => {}
        }
    }

    fn refuse(&mut self, text: String) {
        if matches!(
            self.phase,
            Phase::Opening | Phase::Comparing | Phase::Planning
        ) {
            self.end(Outcome::Refused, Some(text));
        }
    }

    /// Ends a transfer that has not moved anything, for a reason the driver found (a node that
    /// cannot be reached, a scheduler that does not exist).
    pub fn handle_refusal(&mut self, text: String) {
        self.refuse(text);
    }

    fn end(&mut self, outcome: Outcome, error: Option<String>) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        // Whoever is still there drops what is temporary.
        for node in 0..self.nodes.len() as u32 {
            if self.nodes[node as usize].alive() && !self.nodes[node as usize].finish_sent {
                self.nodes[node as usize].finish_sent = true;
                self.send(
                    node,
                    to_agent::Body::Finish(control::Finish {
                        commit: false,
                        discard: true,
                        samples: Vec::new(),
                    }),
                );
            }
        }
        self.actions.push_back(Action::End(outcome, error));
    }

    /// The user wants it to stop.
    pub fn handle_cancel(&mut self) {
        self.end(Outcome::Cancelled, Some("interrupted".into()));
    }

    fn all_opened(&mut self) {
        match self.lay_out() {
            Ok(()) => self.plan_first(),
            Err(layout::LayoutProblem::Refused(text)) => self.refuse(text),
            Err(layout::LayoutProblem::Compare(nodes)) => {
                self.phase = Phase::Comparing;
                for &(node, source) in &nodes {
                    self.manifests.insert((node, source), Vec::new());
                    self.send(
                        node,
                        to_agent::Body::ManifestQuery(control::ManifestQuery { source }),
                    );
                }
            }
        }
    }

    /// Answer to [`Action::Compare`]: how the differing manifests relate, or the first conflict in words.
    pub fn handle_compared(&mut self, result: Result<Relation, String>) {
        if self.phase != Phase::Comparing {
            return;
        }
        match result {
            Ok(relation) => {
                self.relation = Some(relation);
                self.phase = Phase::Opening;
                self.all_opened();
            }
            Err(text) => self.refuse(text),
        }
    }

    fn plan_first(&mut self) {
        self.phase = Phase::Planning;
        let declared = self.nodes.iter().all(|n| {
            (!n.is_sender() || n.setup.up.is_some()) && (!n.is_receiver() || n.setup.down.is_some())
        });
        // What is remembered makes a better plan, but a bound would have to name it as its base.
        let remembered = self.nodes.iter().any(|n| {
            let (setup, sends, receives) = (&n.setup, n.is_sender(), n.is_receiver());
            (sends && setup.up.is_none() && setup.remembered_up.is_some())
                || (receives && setup.down.is_none() && setup.remembered_down.is_some())
        });
        let interface = !remembered
            && self
                .nodes
                .iter()
                .all(|n| n.opened.as_ref().is_some_and(|o| o.interface_rate > 0));
        self.basis = if declared {
            Basis::Declared
        } else if interface {
            Basis::Interface
        } else {
            Basis::None
        };
        let receivers: Vec<(u32, RangeSet)> = self
            .receivers()
            .map(|n| (n, self.nodes[n as usize].wants.clone()))
            .collect();
        self.ask_plan(true, receivers, &BTreeSet::new(), None);
    }

    fn receivers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|&n| self.nodes[n as usize].is_receiver())
    }

    fn senders(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|&n| self.nodes[n as usize].is_sender())
    }

    /// Bytes per second to plan with: as declared, else as remembered, else the interface's.
    fn speed(&self, node: u32, declared: Option<u64>, remembered: Option<u64>) -> u64 {
        let interface = self.nodes[node as usize]
            .opened
            .as_ref()
            .map_or(0, |o| o.interface_rate);
        let known = declared.or(remembered.filter(|&speed| speed > 0));
        known.unwrap_or(if interface > 0 {
            interface
        } else {
            SPEED_UNKNOWN
        })
    }

    /// Asks for a plan that brings each receiver its ranges, by what was `observed` or, without, by
    /// what was told before the start.
    fn ask_plan(
        &mut self,
        first: bool,
        receivers: Vec<(u32, RangeSet)>,
        excluded: &BTreeSet<u32>,
        observed: Option<Forecast>,
    ) {
        let mut receivers = receivers;
        let senders: Vec<u32> = self
            .senders()
            .filter(|n| self.nodes[*n as usize].alive() && !excluded.contains(n))
            .filter(|n| observed.as_ref().is_none_or(|o| o.up[*n as usize] > 0.0))
            .collect();
        if !first {
            self.drop_unheld(&mut receivers, &senders);
            if receivers.is_empty() {
                return;
            }
        }
        let problem = Problem {
            senders: senders
                .iter()
                .map(|&n| Sender {
                    name: self.name(n).into(),
                    up: match &observed {
                        Some(forecast) => (forecast.up[n as usize] as u64).max(1),
                        None => {
                            let setup = &self.nodes[n as usize].setup;
                            self.speed(n, setup.up, setup.remembered_up)
                        }
                    },
                    ranges: self.nodes[n as usize].holds.clone(),
                })
                .collect(),
            receivers: receivers
                .iter()
                .map(|(n, wants)| {
                    let setup = &self.nodes[*n as usize].setup;
                    Receiver {
                        name: self.name(*n).into(),
                        down: self.speed(*n, setup.down, setup.remembered_down),
                        ranges: wants.clone(),
                        destination: setup.sinks.first().and_then(|s| s.destination.clone()),
                        relay_up: None,
                    }
                })
                .collect(),
            ..Problem::default()
        };
        let purpose = Purpose {
            first,
            expected_ns: observed.map_or(0, |forecast| (forecast.seconds * 1e9) as u64),
            senders,
            receivers: receivers.into_iter().map(|(n, _)| n).collect(),
        };
        self.actions.push_back(Action::Plan(purpose, problem));
    }

    /// Answer to [`Action::Plan`]. An error refuses the transfer when nothing has moved, and ends
    /// it otherwise.
    pub fn handle_planned(
        &mut self,
        purpose: &Purpose,
        result: Result<Planned, String>,
        now_ns: u64,
    ) {
        let planned = match result {
            Ok(planned) => planned,
            Err(text) if self.phase == Phase::Planning => return self.refuse(text),
            Err(text) => return self.end(Outcome::Failed, Some(text)),
        };
        let runs: Vec<(u32, Vec<Run>)> = purpose
            .receivers
            .iter()
            .zip(&planned.runs)
            .map(|(&node, runs)| {
                let to_run = |run: &PlannedRun| Run {
                    start: run.range.start,
                    length: run.range.len(),
                    sender: purpose.senders[run.sender],
                    spares: run.spares.iter().map(|&s| purpose.senders[s]).collect(),
                };
                (node, runs.iter().map(to_run).collect())
            })
            .collect();
        match self.phase {
            Phase::Planning if purpose.first => {
                self.planned = planned;
                self.phase = Phase::Moving;
                self.moving_ns = Some(now_ns);
                self.lease_ns = now_ns;
                let share = self
                    .setup
                    .limit
                    .map(|limit| limit / (runs.len() as u64).max(1));
                for (node, runs) in runs {
                    self.nodes[node as usize].runs = runs;
                }
                self.unit_len = self.choose_unit_len();
                for node in 0..self.nodes.len() as u32 {
                    self.nodes[node as usize].heard_ns = now_ns;
                    let plan = self.plan_message(node, share);
                    self.send(node, to_agent::Body::Plan(plan));
                }
                self.actions.push_back(Action::Moving);
            }
            Phase::Moving if !purpose.first => {
                for (node, _) in &runs {
                    self.nodes[*node as usize].done = None;
                }
                // Who works again has to have its share of a limit taken from the others first.
                self.lease_ns = 0;
                self.deal_limit(now_ns);
                for (node, mut runs) in runs {
                    self.add_spares(node, &mut runs);
                    let peers = self.peers_of(&runs);
                    let lost = self.lost_nodes();
                    self.nodes[node as usize].runs.extend(runs.iter().cloned());
                    let state = &mut self.nodes[node as usize];
                    state.done = None;
                    state.revision += 1;
                    let number = state.revision;
                    self.send(
                        node,
                        to_agent::Body::Revision(control::Revision {
                            peers,
                            runs,
                            lost,
                            unavailable: Vec::new(),
                            number,
                            expected: purpose.expected_ns,
                        }),
                    );
                }
            }
            _ => {}
        }
    }

    /// The same for all nodes: replicas of a unit are compared by its hash.
    fn choose_unit_len(&self) -> u64 {
        let bytes = |node: &Node| {
            node.runs
                .iter()
                .map(|run| u128::from(run.length))
                .sum::<u128>()
        };
        let busy: Vec<u128> = self.nodes.iter().map(bytes).filter(|b| *b > 0).collect();
        let count = busy.len().max(1) as u128;
        let mean = busy.iter().sum::<u128>() / count;
        // A limit is kept to within a unit: no more than 50 ms of a node's share.
        let limited = self.setup.limit.map_or(u128::MAX, |limit| {
            u128::from(limit) / count * u128::from(UNITS_PER_NODE) / 20
        });
        unit_len(u64::try_from(mean.min(limited)).unwrap_or(u64::MAX))
    }

    /// When receivers should be done if the speeds are as declared; 0 when nobody declared any.
    fn expected_ns(&self) -> u64 {
        if self.basis != Basis::Declared {
            return 0;
        }
        let limited = self.setup.limit.map_or(0.0, |limit| {
            self.wanted_bytes() as f64 / limit.max(1) as f64
        });
        (self.planned.predicted_seconds.max(limited) * 1e9) as u64
    }

    fn lost_nodes(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32)
            .filter(|&n| !self.nodes[n as usize].alive())
            .collect()
    }

    fn peers_of(&self, runs: &[Run]) -> Vec<control::Peer> {
        let mut wanted = BTreeSet::new();
        for run in runs {
            wanted.insert(run.sender);
            wanted.extend(run.spares.iter().copied());
        }
        wanted.into_iter().map(|node| self.peer(node)).collect()
    }

    fn peer(&self, node: u32) -> control::Peer {
        let opened = self.nodes[node as usize].opened.as_ref();
        control::Peer {
            node,
            name: self.name(node).into(),
            instance: opened.map(|o| o.instance.clone()).unwrap_or_default(),
            addresses: opened.map(|o| o.addresses.clone()).unwrap_or_default(),
        }
    }

    fn plan_message(&self, node: u32, limit: Option<u64>) -> control::Plan {
        let state = &self.nodes[node as usize];
        let mut plan = control::Plan {
            source_bases: state.setup.sources.iter().map(|s| s.base).collect(),
            parts: self.parts.clone(),
            ..control::Plan::default()
        };
        if !state.is_receiver() {
            return plan;
        }
        plan.runs.clone_from(&state.runs);
        plan.limit = limit.map_or(0, |l| l.max(1));
        plan.unit = self.unit_len;
        plan.length = self.data_length;
        plan.expected = self.expected_ns();
        plan.commit = state.setup.sinks.iter().all(|s| s.destination.is_none());
        let mut wanted: BTreeSet<u32> = state
            .runs
            .iter()
            .flat_map(|r| std::iter::once(r.sender).chain(r.spares.iter().copied()))
            .collect();
        wanted.extend(
            self.parts
                .iter()
                .flat_map(|p| p.holders.iter().copied().take(MANIFEST_HOLDERS)),
        );
        plan.peers = wanted.into_iter().map(|n| self.peer(n)).collect();
        plan
    }

    fn handle_done(&mut self, node: u32, done: Done, now_ns: u64) {
        // It crossed a revision on the way: the node goes on and will say so again.
        if done.error.is_empty() && done.revision < self.nodes[node as usize].revision {
            return;
        }
        self.last_done_ns = Some(now_ns);
        let moving_ns = now_ns.saturating_sub(self.moving_ns.unwrap_or(now_ns));
        let state = &mut self.nodes[node as usize];
        state.delivered = done.delivered;
        state.checked = done.delivered;
        state.last_seen = (now_ns, done.delivered);
        state.observed.finished(done.delivered, moving_ns);
        self.count_sending(node, false);
        self.nodes[node as usize].sent_by_pair =
            done.pairs.iter().map(|p| (p.sender, p.delivered)).collect();
        let name = self.name(node).to_owned();
        for text in &done.notes {
            self.note(format!("{name}: {text}"));
        }
        let error = done.error.clone();
        self.nodes[node as usize].done = Some(done);
        if !error.is_empty() {
            self.note(format!("{name} stopped: {error}"));
            if !self.hand_over(node) {
                self.failure
                    .get_or_insert_with(|| format!("{name}: {error}"));
            }
        }
        self.actions.push_back(Action::Progress);
        // An idle receiver does not wait for the next look.
        self.next_balance_ns.clear();
        self.balance(now_ns);
        self.check_done();
    }

    /// Whether a node is there and has not stopped with an error.
    fn is_able(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        state.alive() && state.done.as_ref().is_none_or(|d| d.error.is_empty())
    }

    fn destination(&self, node: u32) -> Option<String> {
        self.nodes[node as usize]
            .setup
            .sinks
            .first()
            .and_then(|s| s.destination.clone())
    }

    /// Time passes. Call at least once a second; work moves between nodes at these calls.
    pub fn handle_timer(&mut self, now_ns: u64) {
        match self.phase {
            Phase::Opening | Phase::Comparing => {
                if now_ns.saturating_sub(self.start_ns) > OPEN_NS_MAX {
                    let late: Vec<&str> = self
                        .nodes
                        .iter()
                        .filter(|n| n.opened.is_none())
                        .map(|n| n.setup.name.as_str())
                        .collect();
                    let text = format!(
                        "no answer within {} s from {}",
                        OPEN_NS_MAX / 1_000_000_000,
                        late.join(", ")
                    );
                    self.refuse(text);
                }
            }
            Phase::Moving => {
                for node in 0..self.nodes.len() as u32 {
                    let state = &self.nodes[node as usize];
                    if state.alive() && now_ns.saturating_sub(state.heard_ns) > SILENCE_NS_MAX {
                        self.handle_lost(
                            node,
                            &format!("silent for {} s", SILENCE_NS_MAX / 1_000_000_000),
                            now_ns,
                        );
                    }
                }
                self.deal_limit(now_ns);
                self.balance(now_ns);
            }
            Phase::Finishing => {
                let since = *self.finish_ns.get_or_insert(now_ns);
                let receiving = self
                    .nodes
                    .iter()
                    .any(|n| n.is_receiver() && n.alive() && n.finished.is_none());
                let over = if receiving {
                    self.farewell_ns = None;
                    now_ns.saturating_sub(since) > FINISH_NS_MAX
                } else {
                    let since = *self.farewell_ns.get_or_insert(now_ns);
                    now_ns.saturating_sub(since) > FAREWELL_NS_MAX
                };
                if over {
                    for node in 0..self.nodes.len() as u32 {
                        let state = &self.nodes[node as usize];
                        if state.alive() && state.finished.is_none() {
                            self.handle_lost(node, "did not finish in time", now_ns);
                        }
                    }
                }
            }
            Phase::Planning | Phase::Ended => {}
        }
    }
}

/// A few ranges in words.
pub fn describe(set: &RangeSet) -> String {
    const SHOWN: usize = 4;
    let mut out: Vec<String> = set
        .iter()
        .take(SHOWN)
        .map(|r| format!("[{}, {})", r.start, r.end))
        .collect();
    let more = set.iter().count().saturating_sub(SHOWN);
    if more > 0 {
        out.push(format!("and {more} more ranges"));
    }
    out.join(", ")
}
