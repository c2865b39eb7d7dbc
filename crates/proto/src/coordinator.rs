//! The master's logic for one transfer: open, plan, move, finish; who is lost and who takes over.
//!
//! A state machine without I/O (CEP section 3, life cycle). The driver reports messages, lost
//! connections and the passing of time, and drains [`Coordinator::poll_action`]. Planning itself is
//! an action too, answered by [`Coordinator::handle_planned`], so that the driver may plan on
//! another thread and a simulator in virtual time.
//!
//! ```text
//!  Opening --all opened--> Comparing --same or disjoint--> Probing --nothing odd--> Planning --planned--> Moving
//!     |                        |                              |                      |                    | all done or lost
//!     +------ refused ---------+------------------------------+----------------------+--> Ended <-- Finishing
//! ```
//!
//! State per node is a few hundred bytes; nothing here grows with bytes moved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{CHUNK_LEN, Problem, Range, RangeSet};

use crate::control::{self, Done, FromAgent, OpenedSource, ToAgent, from_agent, to_agent};
use crate::report::{ErrorKind, Outcome};

mod arrivals;
mod bounds;
mod deal;
mod finish;
mod groups;
mod layout;
mod limit;
mod links;
mod membership;
#[cfg(test)]
mod membership_tests;
mod node;
mod observe;
mod outcome;
#[cfg(test)]
mod outcome_tests;
mod overlaps;
mod places;
#[cfg(test)]
mod places_tests;
mod plan;
mod probe;
mod recover;
mod replan;
#[cfg(test)]
mod replan_tests;
mod replicas;
mod routing;
mod setup;
#[cfg(test)]
mod silence_tests;
mod streams;
mod summary;
#[cfg(test)]
mod tests;

pub use layout::Found;
use node::Node;
pub use places::{mark_text, parse_mark};
pub use replicas::compare;
pub use ropewalk_tuner::Others;
pub use setup::{Destinations, Mapping, NodeSetup, Rails, Setup, SinkSetup, SourceSetup, Sources};
pub use streams::{Ends, Tuned};
pub use summary::NodeSummary;

/// A node that says nothing for this long is lost (agents send a status at least each second).
pub const SILENCE_NS_MAX: u64 = 15_000_000_000;

/// A driver that comes so long after it came last was stopped, or its host was: nobody is silent for that.
const ABSENCE_NS_MIN: u64 = 2_000_000_000;

/// Longest time for all nodes to open what they hold (large trees are walked in it).
pub const OPEN_NS_MAX: u64 = 300_000_000_000;

/// Longest time for the nodes that give files their names to do so and report.
/// A tree of a million files takes minutes; a dead node shows by its connection.
pub const FINISH_NS_MAX: u64 = 600_000_000_000;

/// Longest wait for the next last word of the others once all files have their names: it holds figures only.
pub const FAREWELL_NS_MAX: u64 = 2_000_000_000;

/// Speed assumed for a node when nobody knows better (1 Gbit/s): only ratios matter to the plan.
pub const SPEED_UNKNOWN: u64 = 125_000_000;

/// Actions for which room is kept while there are none.
const ACTIONS_KEPT: usize = 16;

/// Temporary names of a node that are remembered.
const TEMPORARY_MAX: usize = 8;

/// Holders a receiver is told of for each manifest: enough to survive two that fail.
const MANIFEST_HOLDERS: usize = 3;

/// A receiver that is done is given work of others after this time at most.
const IDLE_LOOK_NS: u64 = 50_000_000;

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
    /// It plans work that receivers gave up, over the speed that what they kept leaves free.
    pub in_round: bool,
    /// Other holders to name for each run.
    pub spares: usize,
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
    /// Say which of these manifests (node, its source, bytes) are replicas of each other, in the answer
    /// [`Coordinator::handle_compared`].
    Compare(Vec<(u32, u32, Vec<u8>)>),
    /// Connect to both nodes and pass on what they say; [`Coordinator::handle_uncarried`] when that fails.
    Carry {
        /// It waits for a connection at its port.
        receiver: u32,
        /// It takes one as from any peer.
        sender: u32,
    },
    /// Tell the user.
    Note(String),
    /// Simulate this beside the transfer and answer with [`Coordinator::handle_simulated`]; a wish, not a need.
    Simulate(ropewalk_tuner::Question),
    /// Bytes start to flow.
    Moving,
    /// Progress changed.
    Progress,
    /// It is over; collect the summary and close the connections.
    End(Outcome, Option<String>),
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
    /// No plan takes much less.
    pub is_near_bound: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Comparing,
    Probing,
    Planning,
    Moving,
    Finishing,
    Ended,
}

/// Bytes of each sender; there may be several lanes to one, over rails or with parts of their own.
fn by_sender(lanes: impl Iterator<Item = (u32, u64)>) -> BTreeMap<u32, u64> {
    let mut all = BTreeMap::new();
    for (sender, bytes) in lanes {
        *all.entry(sender).or_default() += bytes;
    }
    all
}

/// One transfer as its master sees it. See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    // Its nodes are in `nodes`.
    setup: Setup,
    nodes: Vec<Node>,
    phase: Phase,
    actions: VecDeque<Action>,
    basis: Basis,
    // Of sources with different manifests: which are one thing, once that is known.
    things: Option<BTreeMap<(u32, u32), u32>>,
    // How sources were found to relate.
    found: Option<Found>,
    // Nodes that were not reached, and left out.
    absent: Vec<String>,
    parts: Vec<control::Part>,
    // Awaited manifests by node and source; empty until they come.
    manifests: BTreeMap<(u32, u32), Vec<u8>>,
    planned: Planned,
    files: u64,
    data_length: u64,
    start_ns: u64,
    // When differing sources began to be compared; the driver is at it.
    comparing_ns: u64,
    comparing: bool,
    probing: probe::Probing,
    moving_ns: Option<u64>,
    last_done_ns: Option<u64>,
    finish_ns: Option<u64>,
    is_cancelled: bool,
    farewell_ns: Option<u64>,
    lease_ns: u64,
    lease_delivered: BTreeMap<u32, u64>,
    unit_len: u64,
    // Shared destinations and how many receivers each has.
    groups: Vec<(String, u32)>,
    // For each of them, from which offset on how many receivers can take a byte.
    takers: Vec<Vec<(u64, u32)>>,
    // Senders that somebody waits for another's sake at, and until when nobody does: they were idle then.
    waits: replan::Waits,
    // How fast holders are together, in levels, from an offset on.
    holders: Vec<(u64, u32)>,
    streams: streams::Streams,
    // Nobody told all speeds: receivers take what they can until a plan is settled.
    exploring: bool,
    round: Option<replan::Round>,
    next_look_ns: u64,
    next_round_ns: u64,
    // Before, not even news start a round; and what part of the time the newest one could save.
    next_news_ns: u64,
    newest_part: f64,
    newest: replan::Newest,
    whole_plan: replan::WholePlan,
    // Rounds that brought nothing make the next one wait longer by this factor.
    patience: f64,
    // Bytes that had come before the newest round, and bytes that it recalled.
    last_round: (u64, u64),
    // When the driver last came, and when it last came to see time pass.
    now_ns: u64,
    timer_ns: u64,
    // When the newest plan was asked for, and how long the one before took.
    plan_asked_ns: u64,
    planning_ns: u64,
    // Plans after the first.
    replans: u32,
    // A node that keeps the present phase from ending, looked at first.
    awaited: u32,
    notes: Vec<String>,
    // Which bytes come from rows of files with these permissions.
    row_modes: BTreeMap<u32, RangeSet>,
    failure: Option<outcome::Failure>,
}

impl Coordinator {
    /// A coordinator that has sent nothing yet.
    pub fn new(mut setup: Setup, now_ns: u64) -> Self {
        let nodes = std::mem::take(&mut setup.nodes)
            .into_iter()
            .map(|node| Node::new(node, now_ns))
            .collect();
        Self {
            setup,
            nodes,
            phase: Phase::Opening,
            actions: VecDeque::new(),
            basis: Basis::None,
            things: None,
            found: None,
            absent: Vec::new(),
            parts: Vec::new(),
            manifests: BTreeMap::new(),
            planned: Planned::default(),
            files: 0,
            data_length: 0,
            start_ns: now_ns,
            comparing_ns: now_ns,
            comparing: false,
            probing: probe::Probing::default(),
            moving_ns: None,
            last_done_ns: None,
            finish_ns: None,
            is_cancelled: false,
            farewell_ns: None,
            lease_ns: now_ns,
            lease_delivered: BTreeMap::new(),
            unit_len: CHUNK_LEN,
            groups: Vec::new(),
            takers: Vec::new(),
            waits: replan::Waits::default(),
            holders: Vec::new(),
            streams: streams::Streams::default(),
            exploring: false,
            round: None,
            next_look_ns: 0,
            next_round_ns: 0,
            next_news_ns: 0,
            newest_part: 0.0,
            newest: replan::Newest::default(),
            whole_plan: replan::WholePlan::default(),
            patience: 1.0,
            last_round: (0, 0),
            now_ns,
            timer_ns: now_ns,
            plan_asked_ns: now_ns,
            planning_ns: 0,
            replans: 0,
            awaited: 0,
            notes: Vec::new(),
            row_modes: BTreeMap::new(),
            failure: None,
        }
    }

    /// All nodes are connected: ask each to open its part. Next states: Comparing, Planning, Ended.
    pub fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns;
        for index in 0..self.nodes.len() {
            self.nodes[index].heard_ns = now_ns;
            let open = setup::open_message(&self.setup, &self.nodes[index].setup, index as u32);
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

    /// Whether something is true for all nodes. Asks first the one that it was not true for last time: when
    /// all answer once, that is two looks a node, not one for each pair.
    fn is_true_for_all(&mut self, test: impl Fn(&Node) -> bool) -> bool {
        let count = self.nodes.len();
        let from = self.awaited as usize % count.max(1);
        let order = (from..count).chain(0..from);
        let open = order.into_iter().find(|&at| !test(&self.nodes[at]));
        self.awaited = open.unwrap_or(0) as u32;
        open.is_none()
    }

    /// Next thing for the driver to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        // Of thousands of nodes there are that many at the start only.
        if action.is_none() {
            self.actions.shrink_to(ACTIONS_KEPT);
        }
        action
    }

    /// Takes a message of a node. A message that does not fit the state is ignored, and so is all that a node says which
    /// was lost or turned away: its part went to others.
    pub fn handle_message(&mut self, node: u32, message: FromAgent, now_ns: u64) {
        self.now_ns = now_ns;
        let Some(state) = self.nodes.get_mut(node as usize) else {
            return;
        };
        if !state.alive() {
            return;
        }
        state.heard_ns = now_ns;
        match message.body {
            Some(from_agent::Body::Opened(opened)) if self.phase == Phase::Opening => {
                if let Err(text) = state.check_opened(&opened) {
                    let text = format!("{}: {text}", self.name(node));
                    return self.refuse(text);
                }
                state.opened = Some(Box::new(opened));
                if self.is_true_for_all(|n| n.opened.is_some()) {
                    self.all_opened();
                }
            }
            Some(from_agent::Body::Opened(opened))
                if self.phase == Phase::Moving && state.opened.is_none() =>
            {
                if let Err(text) = state.check_opened(&opened) {
                    return self.turn_away(node, &text);
                }
                state.pending = Some(Box::new(opened));
                if !self.ask_joined(node) {
                    self.take_in(node);
                }
            }
            Some(from_agent::Body::Probed(probed)) if self.phase == Phase::Probing => {
                self.handle_probed(node, probed);
            }
            Some(from_agent::Body::Probed(probed)) if self.phase == Phase::Moving => {
                match self.joined_clash(node, &probed) {
                    Some(text) => self.turn_away(node, &text),
                    None => self.take_in(node),
                }
            }
            // It was cancelled there: it may be done and sends or fetches nothing any more, and nobody else would say so.
            Some(from_agent::Body::Refused(refused))
                if matches!(self.phase, Phase::Moving | Phase::Finishing) =>
            {
                self.handle_lost(node, &refused.message, now_ns);
            }
            Some(from_agent::Body::Refused(refused)) => {
                let text = format!("{}: {}", self.name(node), refused.message);
                self.refuse(text);
            }
            Some(from_agent::Body::ManifestReply(reply))
                if self.phase == Phase::Comparing && !self.comparing =>
            {
                if let Some(awaited) = self.manifests.get_mut(&(node, reply.source)) {
                    *awaited = reply.manifest;
                }
                if self.manifests.values().all(|m| !m.is_empty()) {
                    // They are big and go to the driver; whose they are is for its answer.
                    let manifests = self.manifests.iter_mut();
                    let manifests = manifests
                        .map(|((node, source), bytes)| (*node, *source, std::mem::take(bytes)))
                        .collect();
                    self.comparing = true;
                    self.actions.push_back(Action::Compare(manifests));
                }
            }
            Some(from_agent::Body::Status(status)) => {
                state.delivered = status.delivered;
                state.checked = status.checked;
                if state.temporary.is_empty() {
                    state
                        .temporary
                        .extend(status.temporary.iter().take(TEMPORARY_MAX).cloned());
                }
                state.first_seen.get_or_insert((now_ns, status.checked));
                state.last_seen = (now_ns, status.checked);
                state.received.note(status.checked, now_ns);
                let sent = by_sender(status.pairs.iter().map(|p| (p.sender, p.delivered)));
                let before = std::mem::replace(&mut state.sent_by_pair, sent.clone());
                // Where a trunk loses much, a sender's own word may be repeated for long: its bytes are its word, too.
                for (sender, bytes) in sent {
                    let more = bytes.saturating_sub(before.get(&sender).copied().unwrap_or(0));
                    if let Some(sender) = self.nodes.get_mut(sender as usize) {
                        if more > 0 {
                            sender.heard_ns = now_ns;
                        }
                        sender.sent_bytes += more;
                        sender.sent.note(sender.sent_bytes, now_ns);
                    }
                }
                self.actions.push_back(Action::Progress);
                self.observe_streams(node, status.tcp.as_ref());
                if self.phase == Phase::Moving {
                    self.observe(node, &status, now_ns);
                }
            }
            Some(from_agent::Body::SenderStatus(status)) => {
                self.observe_streams(node, status.tcp.as_ref());
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
            Some(from_agent::Body::Route(route)) if self.phase == Phase::Moving => {
                self.handle_route(node, route);
            }
            Some(from_agent::Body::Finished(finished)) => {
                let is_unnamed = state.told_commit && !finished.committed;
                let error = match finished.error.is_empty() {
                    true if is_unnamed => {
                        "it was to give the files their names and did not; run the command again"
                    }
                    _ => finished.error.as_str(),
                };
                let error = error.to_owned();
                let told_commit = state.told_commit;
                state.finished = Some(Box::new(finished));
                if told_commit {
                    self.handle_named(node, &error);
                } else if !error.is_empty() {
                    let text = format!("{}: {error}", self.name(node));
                    self.fail(ErrorKind::Node, text);
                }
                // Of a large cluster the words come one after the other.
                self.farewell_ns = None;
                self.check_finished();
            }
            _ => {}
        }
    }

    fn refuse(&mut self, text: String) {
        if matches!(
            self.phase,
            Phase::Opening | Phase::Comparing | Phase::Probing | Phase::Planning
        ) {
            self.end(Outcome::Refused, Some(text));
        }
    }

    fn refuse_late(&mut self, what: &str, nodes: &str) {
        let seconds = OPEN_NS_MAX / 1_000_000_000;
        self.refuse(format!("no {what} within {seconds} s from {nodes}"));
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
                        ..control::Finish::default()
                    }),
                );
            }
        }
        self.actions.push_back(Action::End(outcome, error));
    }

    /// The user wants it to stop: it ends once the nodes have removed, or kept, what is temporary. Further calls change
    /// nothing.
    pub fn handle_cancel(&mut self) {
        if std::mem::replace(&mut self.is_cancelled, true) {
            return;
        }
        match self.phase {
            Phase::Moving | Phase::Finishing => {
                let discard = !self.setup.keep_partial;
                self.finish_all(discard, "the transfer was cancelled");
            }
            // Nothing was made yet.
            Phase::Opening | Phase::Comparing | Phase::Probing | Phase::Planning | Phase::Ended => {
                self.end_cancelled();
            }
        }
    }

    fn end_cancelled(&mut self) {
        self.end(Outcome::Cancelled, Some("interrupted".into()));
    }

    fn all_opened(&mut self) {
        match self.lay_out() {
            Ok(()) => self.probe(),
            Err(layout::LayoutProblem::Refused(text)) => self.refuse(text),
            Err(layout::LayoutProblem::Compare(nodes)) => {
                self.phase = Phase::Comparing;
                self.comparing_ns = self.now_ns;
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

    /// Answer to [`Action::Compare`]: for each manifest, in the order asked, the number of the thing that it describes;
    /// those with one number are replicas, the others disjoint parts. Or the first conflict in words.
    pub fn handle_compared(&mut self, result: Result<Vec<u32>, String>) {
        if self.phase != Phase::Comparing {
            return;
        }
        match result {
            Ok(numbers) => {
                let sources = std::mem::take(&mut self.manifests).into_keys();
                self.things = Some(sources.zip(numbers).collect());
                self.phase = Phase::Opening;
                self.all_opened();
            }
            Err(text) => self.refuse(text),
        }
    }

    fn receivers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|&n| self.nodes[n as usize].is_receiver())
    }

    fn senders(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|&n| self.nodes[n as usize].is_sender())
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
        state.received.note(done.delivered, now_ns);
        state.observed.finished(done.delivered, moving_ns);
        self.nodes[node as usize].sent_by_pair =
            by_sender(done.pairs.iter().map(|p| (p.sender, p.delivered)));
        let name = self.name(node).to_owned();
        for text in &done.notes {
            self.note(format!("{name}: {text}"));
        }
        let error = done.error.clone();
        let differs = done.differs;
        self.nodes[node as usize].done = Some(Box::new(done));
        if differs {
            return self.end_differing(&error);
        }
        if !error.is_empty() {
            self.note(format!("{name} stopped: {error}"));
            if !self.hand_over(node) {
                self.fail(ErrorKind::Node, format!("{name}: {error}"));
            }
        }
        self.actions.push_back(Action::Progress);
        self.let_go(node);
        // An idle receiver does not wait for its turn.
        if self.nodes[node as usize].group.is_some() {
            self.next_look_ns = self.next_look_ns.min(now_ns + IDLE_LOOK_NS);
            self.next_round_ns = self.next_look_ns;
        }
        self.check_done();
    }

    /// Whether a node is there and has not stopped with an error.
    fn is_able(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        state.alive()
            && state.opened.is_some()
            && state.done.as_deref().is_none_or(|d| d.error.is_empty())
    }

    /// What nodes said while the driver was stopped lies in its connections: their silence begins after that.
    fn excuse_absence(&mut self, now_ns: u64) {
        let absence = now_ns.saturating_sub(self.timer_ns);
        self.timer_ns = now_ns;
        if absence >= ABSENCE_NS_MIN {
            for node in &mut self.nodes {
                node.heard_ns = (node.heard_ns + absence).min(now_ns);
            }
        }
    }

    /// Time passes. Call at least once a second; work moves between nodes at these calls.
    pub fn handle_timer(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.excuse_absence(now_ns);
        match self.phase {
            Phase::Opening if now_ns.saturating_sub(self.start_ns) > OPEN_NS_MAX => {
                let late = self.nodes.iter().filter(|n| n.opened.is_none());
                let late: Vec<&str> = late.map(|n| n.setup.name.as_str()).collect();
                let late = late.join(", ");
                self.refuse_late("answer", &late);
            }
            Phase::Comparing if now_ns.saturating_sub(self.comparing_ns) > OPEN_NS_MAX => {
                let late = self.manifests.iter().filter(|(_, bytes)| bytes.is_empty());
                let late: BTreeSet<&str> = late.map(|((node, _), _)| self.name(*node)).collect();
                let late = late.into_iter().collect::<Vec<_>>().join(", ");
                // Once all have come, the driver is at work.
                if !late.is_empty() && !self.comparing {
                    self.refuse_late("list of files", &late);
                }
            }
            Phase::Probing if self.probing.is_late(now_ns) => {
                let late = self.unprobed();
                self.refuse_late("look at its files", &late);
            }
            Phase::Moving => {
                for node in 0..self.nodes.len() as u32 {
                    let state = &self.nodes[node as usize];
                    // One that joins says nothing while it opens what it has.
                    let (most, what) = match state.opened {
                        Some(_) => (SILENCE_NS_MAX, "silent for"),
                        None => (OPEN_NS_MAX, "it did not open what it has within"),
                    };
                    if state.alive() && now_ns.saturating_sub(state.heard_ns) > most {
                        let reason = format!("{what} {} s", most / 1_000_000_000);
                        self.handle_lost(node, &reason, now_ns);
                    }
                }
                self.deal_limit(now_ns);
                self.tune(now_ns);
                self.replan(now_ns);
                self.ask_leaving(now_ns);
            }
            Phase::Finishing => {
                let since = *self.finish_ns.get_or_insert(now_ns);
                let is_naming = |n: &Node| {
                    (n.told_commit || n.told_discard) && n.alive() && n.finished.is_none()
                };
                let over = if self.nodes.iter().any(is_naming) {
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
            Phase::Opening | Phase::Comparing | Phase::Probing | Phase::Planning | Phase::Ended => {
            }
        }
    }
}

/// A few ranges in words, each with its last byte.
pub fn describe(set: &RangeSet) -> String {
    const SHOWN: usize = 4;
    let mut out: Vec<String> = set
        .iter()
        .take(SHOWN)
        .map(|r| format!("{}-{}", r.start, r.end.saturating_sub(1)))
        .collect();
    let more = set.iter().count().saturating_sub(SHOWN);
    if more > 0 {
        out.push(format!("and {more} more ranges"));
    }
    out.join(", ")
}
