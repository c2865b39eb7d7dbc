//! The master's logic for one transfer: open, plan, move, finish; which nodes are lost and which take over.
//!
//! A state machine without I/O (CEP section 3, life cycle). The driver reports messages, lost
//! connections and the passing of time, and drains [`Coordinator::poll_action`]. Planning itself is
//! an action too, answered by [`Coordinator::handle_planned`], so that the driver may plan on
//! another thread and a simulator in virtual time.
//!
//! ```text
//!  Opening --differ--> Comparing
//!     |                    |
//!     +--------odd---------+--> Probing
//!     |                    |       |
//!     +-----laid out-------+-------+--> Planning --planned--> Moving --all done, or stopped--> Finishing --> Ended
//! ```
//!
//! A refusal, or a cancellation before anything moved, leads from each phase to Ended, and so does a plan that
//! fails while bytes move. `phase` has the table, `life` the one of a node.
//!
//! | concern | file |
//! |---|---|
//! | layout of the data, replicas, what is odd | `layout`, `left_out`, `grown`, `source_lists`, `probe`, `places`, `overlaps`, `replicas` |
//! | what destinations have, dry runs, `--delete` | `looking`, `shared_rows`, `listing`, `removal` |
//! | plans, and what each node is sent of them; receivers that hand on | `plan`, `groups`; `relay` |
//! | moving work while bytes flow | `balancer` decides, `rounds` carries out |
//! | nodes that fail, join and leave | `recover`, `membership` |
//! | streams, rate limit, connections | `streams`, `limit`, `routing` |
//! | the end and the report | `finish`, `outcome`, `summary`, `bounds` |
//!
//! State per node is a few hundred bytes; nothing here grows with bytes moved.

use std::collections::BTreeSet;

use ropewalk_model::{CHUNK_LEN, Instant, RangeSet};

use crate::control::{self, FromAgent, OpenedSource, from_agent, to_agent};
use crate::report::{CheckReport, DryRunReport, ErrorKind, Outcome};

mod action;
mod arrivals;
mod balancer;
#[cfg(test)]
mod balancer_tests;
mod bottleneck;
mod bounds;
mod check;
mod clock;

mod finish;
mod gone;
mod groups;
mod grown;
#[cfg(test)]
mod hostile_tests;
mod layout;
mod left_out;
mod life;
mod limit;
mod listing;
#[cfg(test)]
mod listing_tests;
mod looking;
#[cfg(test)]
mod looking_tests;
mod membership;
#[cfg(test)]
mod membership_tests;
mod node;
mod origins;
mod outcome;
#[cfg(test)]
mod outcome_tests;
mod overlaps;
mod own_sources;
mod phase;
mod places;
#[cfg(test)]
mod places_tests;
mod plan;
mod probe;
mod progress;
mod recover;
mod relay;
mod removal;
mod replicas;
mod rounds;
mod routing;
mod setup;
mod shared_rows;
#[cfg(test)]
mod silence_tests;
mod sites;
mod source_lists;
mod streams;
mod summary;
#[cfg(test)]
mod tests;
mod timeline;
mod view;

pub use action::{Action, Basis, Planned, PlannedRun, Purpose};
pub use bottleneck::Cause;
pub(crate) use bottleneck::is_near;
pub use clock::{FAREWELL_TIME_MAX, FINISH_TIME_MAX, OPEN_TIME_MAX, SILENCE_TIME_MAX};
pub use gone::{Complete, Earlier, Gone};
pub use layout::Found;
use life::Event;
pub use limit::shares as limit_shares;
pub use listing::change;
pub use membership::{JoinError, LeaveError};
use node::Node;
use phase::{Phase, Step};
pub use places::{mark_text, parse_mark};
pub use progress::Busy;
pub use replicas::compare;
pub use ropewalk_tuner::Others;
pub use setup::{
    Destinations, Incomplete, Mapping, NodeSetup, Rails, Relay, Setup, SinkSetup, SourceSetup,
    Sources,
};
pub use shared_rows::with_all_files;
pub use streams::{Ends, Tuned};
pub use summary::NodeSummary;
pub use timeline::{NODES_MAX as TIMELINE_NODES_MAX, Point};
use view::View;

/// Speed assumed for a node when none is known (1 Gbit/s): only ratios matter to the plan.
pub const SPEED_UNKNOWN: u64 = 125_000_000;

/// One transfer as its master sees it. See the module documentation.
#[derive(Debug)]
pub struct Coordinator {
    // Its nodes are in `nodes`.
    setup: Setup,
    nodes: Vec<Node>,
    phase: Phase,
    out: action::Outbox,
    clock: clock::Clock,
    space: layout::Space,
    comparing: source_lists::Comparing,
    probing: probe::Probing,
    sites: sites::Sites,
    groups: groups::Groups,
    looking: looking::Looking,
    listed: DryRunReport,
    has_listed: bool,
    differing: CheckReport,
    // The first plan, the speeds it was made with, and how many came after it.
    planned: Planned,
    basis: Basis,
    replans: u32,
    // Receivers that hand on what they have: by the first plan, and of those that joined since.
    relays: BTreeSet<u32>,
    unit_len: u64,
    balancer: balancer::Balancer,
    streams: streams::Streams,
    bottleneck: bottleneck::Bottleneck,
    timeline: timeline::Timeline,
    lease: limit::Lease,
    ending: finish::Ending,
    earlier: Earlier,
    // A node that keeps the present phase from ending, looked at first.
    awaited: u32,
}

impl Coordinator {
    /// A coordinator that has sent nothing yet.
    pub fn new(mut setup: Setup, now: Instant) -> Self {
        let nodes: Vec<Node> = std::mem::take(&mut setup.nodes)
            .into_iter()
            .map(|node| Node::new(node, now))
            .collect();
        Self {
            setup,
            phase: Phase::Opening,
            out: action::Outbox::default(),
            clock: clock::Clock::new(now),
            space: layout::Space::default(),
            comparing: source_lists::Comparing::default(),
            probing: probe::Probing::default(),
            sites: sites::Sites::default(),
            groups: groups::Groups::default(),
            looking: looking::Looking::default(),
            listed: DryRunReport::default(),
            has_listed: false,
            differing: CheckReport::default(),
            planned: Planned::default(),
            basis: Basis::None,
            replans: 0,
            relays: BTreeSet::new(),
            unit_len: CHUNK_LEN,
            balancer: balancer::Balancer::new(nodes.len(), now),
            streams: streams::Streams::default(),
            bottleneck: bottleneck::Bottleneck::default(),
            timeline: timeline::Timeline::default(),
            lease: limit::Lease::default(),
            ending: finish::Ending::default(),
            earlier: Earlier::default(),
            awaited: 0,
            nodes,
        }
    }

    /// All nodes are connected: ask each to open its part. Next states: Comparing, Probing, Planning, Ended.
    pub fn start(&mut self, now: Instant) {
        self.clock.start_at = now;
        for index in 0..self.nodes.len() {
            self.nodes[index].heard_at = now;
            self.nodes[index].scanned_at = now;
            let open = setup::open_message(&self.setup, &self.nodes[index].setup, index as u32);
            self.send(index as u32, to_agent::Body::Open(open));
        }
    }

    fn enter(&mut self, step: Step) {
        if let Some(next) = self.phase.after(step) {
            self.phase = next;
        }
    }

    fn view(&self) -> View<'_> {
        View {
            setup: &self.setup,
            nodes: &self.nodes,
            groups: &self.groups,
            unit_len: self.unit_len,
            moving_at: self.clock.moving_at,
            is_fixed: self.setup.options.fixed || !self.relays.is_empty(),
        }
    }

    /// The transfer as the balancer sees it, and the balancer.
    fn split(&mut self) -> (View<'_>, &mut balancer::Balancer) {
        let view = View {
            setup: &self.setup,
            nodes: &self.nodes,
            groups: &self.groups,
            unit_len: self.unit_len,
            moving_at: self.clock.moving_at,
            is_fixed: self.setup.options.fixed || !self.relays.is_empty(),
        };
        (view, &mut self.balancer)
    }

    fn name(&self, node: u32) -> &str {
        self.view().name(node)
    }

    fn receivers(&self) -> impl Iterator<Item = u32> + '_ {
        self.view().receivers()
    }

    fn senders(&self) -> impl Iterator<Item = u32> + '_ {
        self.view().senders()
    }

    fn is_able(&self, node: u32) -> bool {
        self.view().is_able(node)
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

    /// Takes a message of a node. A message that does not fit the state is ignored, and so are all messages of lost or
    /// rejected nodes: their work was reassigned.
    pub fn handle_message(&mut self, node: u32, message: FromAgent, now: Instant) {
        self.clock.now = now;
        let Some(state) = self.nodes.get_mut(node as usize) else {
            return;
        };
        let Some(body) = message.body.filter(|_| state.alive()) else {
            return;
        };
        state.heard_at = now;
        let is_moving = self.phase == Phase::Moving;
        // The node that looks fetches lists of files.
        let is_looking = self.phase == Phase::Looking;
        match body {
            from_agent::Body::Opened(opened) => self.handle_opened(node, opened),
            from_agent::Body::Probed(probed) if is_moving => self.handle_probed_late(node, &probed),
            from_agent::Body::Probed(probed) => self.handle_probed(node, probed),
            from_agent::Body::Refused(refused) => self.handle_refused(node, &refused, now),
            from_agent::Body::ManifestReply(reply) => self.handle_manifest(node, reply),
            from_agent::Body::Status(status) => self.handle_status(node, &status, now),
            from_agent::Body::SenderStatus(status) => {
                self.handle_sender_status(node, &status, now);
            }
            from_agent::Body::Need(need) if is_moving => self.handle_need(node, &need),
            from_agent::Body::Present(present) if is_moving => {
                self.handle_present(node, &present);
            }
            from_agent::Body::Present(present) => self.handle_looked(node, &present),
            from_agent::Body::Listing(listing) => self.handle_listing(node, listing),
            from_agent::Body::Done(done) if is_moving => self.handle_done(node, done, now),
            from_agent::Body::Done(done) => self.handle_late_done(node, done),
            from_agent::Body::Released(released) if is_moving => {
                self.handle_released(node, &control::range_set(&released.ranges), now);
            }
            from_agent::Body::Route(route) if is_moving || is_looking => {
                self.handle_route(node, route)
            }
            from_agent::Body::Finished(finished) => self.handle_finished(node, finished),
            _ => {}
        }
        self.check_call();
    }

    /// A node has opened what it was asked for.
    fn handle_opened(&mut self, node: u32, opened: control::Opened) {
        let is_first = self.phase == Phase::Opening;
        if let Some(reason) = self.is_not_ready(node, &opened).filter(|_| is_first) {
            return self.handle_lost(node, &reason, self.clock.now);
        }
        let state = &mut self.nodes[node as usize];
        let problem = state.check_opened(&opened).err();
        match (self.phase, problem) {
            (Phase::Opening, Some(problem)) => {
                let text = format!("{}: {problem}", self.name(node));
                self.refuse(text);
            }
            (Phase::Opening, None) => {
                if state.live(Event::Opened) {
                    state.busy = None;
                    state.opened = Some(Box::new(opened));
                }
                if self.is_true_for_all(|node| node.opened.is_some()) {
                    self.all_opened();
                }
            }
            (Phase::Moving, problem) if state.live(Event::OpenedLate) => {
                state.busy = None;
                state.pending = Some(Box::new(opened));
                match problem {
                    Some(problem) => self.reject(node, &problem.to_string()),
                    None if self.ask_joined(node) => {}
                    None => self.take_in(node),
                }
            }
            _ => {}
        }
    }

    /// A node's own copy has had these bytes from the start. What a shared one has is known before the plan.
    fn handle_present(&mut self, node: u32, present: &control::Present) {
        let hands_on = self.relays.contains(&node);
        let state = &mut self.nodes[node as usize];
        if state.is_receiver() && state.group.is_none() {
            state.present_bytes += state.have(&control::range_set(&present.ranges));
            let adopted = control::range_set(&present.adopted).intersection(&state.wants);
            state.adopted_bytes += state.have(&adopted);
            if hands_on {
                state.kept = state.kept.union(&adopted);
            }
            state.count_present(present);
            // The plan's end was that of all bytes.
            self.balancer.look_soon();
        }
    }

    /// A node cannot go on: its user may have cancelled the transfer there.
    fn handle_refused(&mut self, node: u32, refused: &control::Refused, now: Instant) {
        if self.phase.is_before_moving() {
            let kind = ErrorKind::from_wire(refused.code);
            self.ending.refusal = Some(kind);
            // It is there again, and what it has is not yet.
            if self.has_returned(node) && kind != ErrorKind::Interrupted {
                return self.handle_lost(node, &refused.message, now);
            }
            let text = format!("{}: {}", self.name(node), refused.message);
            return self.refuse(text);
        }
        if let Some(state) = self.nodes.get_mut(node as usize) {
            state.is_cancelled = true;
        }
        self.handle_lost(node, &refused.message, now);
    }

    fn refuse(&mut self, text: String) {
        if self.phase.is_before_moving() {
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
        self.enter(Step::End);
        self.looking.end();
        // Nodes that are still there remove what is temporary.
        for node in 0..self.nodes.len() as u32 {
            self.tell_finish(node, true);
        }
        self.out.push(Action::End(outcome, error));
    }

    /// The user wants it to stop: it ends once the nodes have removed, or kept, what is temporary. Further calls change
    /// nothing.
    pub fn handle_cancel(&mut self) {
        if std::mem::replace(&mut self.ending.is_cancelled, true) {
            return;
        }
        match self.phase {
            Phase::Moving | Phase::Finishing => {
                let incomplete = self.setup.incomplete;
                self.finish_all(incomplete, "the transfer was cancelled");
            }
            // Nothing was made yet.
            Phase::Opening
            | Phase::Comparing
            | Phase::Probing
            | Phase::Looking
            | Phase::Planning
            | Phase::Ended => self.end_cancelled(),
        }
    }

    /// As [`handle_cancel`](Self::handle_cancel), of a transfer that will be asked for again: nodes keep as much as where one has failed.
    pub fn handle_put_off(&mut self) {
        self.ending.is_put_off |= !self.ending.is_cancelled;
        self.handle_cancel();
    }

    fn end_cancelled(&mut self) {
        self.end(Outcome::Cancelled, Some("interrupted".into()));
    }

    fn all_opened(&mut self) {
        match self.lay_out() {
            Ok(()) if self.refuses_left_out() => {}
            Ok(()) => {
                for text in [self.left_out_note(), self.delete_note()]
                    .into_iter()
                    .flatten()
                {
                    self.note(text);
                }
                self.probe();
            }
            Err(layout::LayoutProblem::Refused(text)) => self.refuse(text),
            Err(layout::LayoutProblem::Compare(sources)) => self.compare_sources(&sources),
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
