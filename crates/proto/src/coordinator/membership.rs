//! Nodes that join and leave while bytes move.
//!
//! A node that joins opens what it has, as all did at the start; what it holds must be what the transfer moves.
//! From then on it is one of the nodes: the next round gives it work. A node that leaves is given nothing new, and
//! is released as soon as nothing depends on it.

use ropewalk_model::{Instant, Range, RangeSet};

use super::balancer::EMPTY_TIME;
use super::life::{Event, NodeLife};
use super::phase::Phase;
use super::shared_rows::destination_of;
use super::{
    Coordinator, Destinations, Mapping, Node, NodeSetup, OpenedSource, SourceSetup, describe,
    layout, setup,
};
use crate::control::{self, source, to_agent};
use crate::report::ErrorKind;

/// Nodes that an error names.
const NAMES_SHOWN: usize = 16;

/// Why a node does not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No bytes move, yet or any more.
    #[error("nodes can join while bytes move only; try again in a moment")]
    NotMoving,
    /// A node of that name takes part.
    #[error("the transfer has a node {0} already")]
    Present(String),
    /// It was rejected or lost, for this reason.
    #[error("{0}")]
    Rejected(String),
    /// It was released before it had opened what it has.
    #[error("it left before it was ready")]
    Left,
    /// The transfer ended before it had opened what it has.
    #[error("the transfer ended before it was ready")]
    Ended,
}

/// Why a node cannot be released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// No bytes move, yet or any more.
    #[error("nodes can leave while bytes move only")]
    NotMoving,
    /// No node of that name takes part.
    #[error("the transfer has no node {name}; it has {present}")]
    Unknown {
        /// As it was called.
        name: String,
        /// The nodes that take part, the first of many.
        present: String,
    },
    /// Others want bytes that it alone holds.
    #[error("only {node} holds bytes {ranges}; let another holder join first")]
    Holder {
        /// Its name.
        node: String,
        /// The bytes.
        ranges: String,
    },
    /// Its copy is not complete.
    #[error(
        "{node} does not have all of its copy, and no other node can fetch the rest; cancel the transfer instead"
    )]
    Incomplete {
        /// Its name.
        node: String,
    },
    /// It alone can write a part of its destination.
    #[error("only {node} can write bytes {ranges}; let another reader join first")]
    Writer {
        /// Its name.
        node: String,
        /// The bytes.
        ranges: String,
    },
}

/// Why a node that has opened what it has does not match the transfer.
#[derive(Debug, thiserror::Error)]
enum Mismatch {
    #[error("{0}")]
    Rows(String),
    #[error("its files are others")]
    Files,
    #[error("it holds other files than the transfer moves")]
    Source,
    #[error("it wants bytes up to {wanted}, and the transfer ends at {length}")]
    Beyond { wanted: u64, length: u64 },
    #[error("no node holds bytes {0} that it wants")]
    Unheld(String),
}

/// It leaves, or has left while the others go on.
fn has_left(node: &Node) -> bool {
    node.life().is_leaving() || node.life().is_closing()
}

impl Coordinator {
    /// Takes one more node into a transfer that moves bytes and gives its number. The driver has reached it;
    /// whether it fits shows when it has opened what it has, and is reported in a note.
    ///
    /// # Errors
    /// [`JoinError::NotMoving`], or [`JoinError::Present`] when the name is taken.
    pub fn handle_join(&mut self, setup: NodeSetup, now: Instant) -> Result<u32, JoinError> {
        self.clock.now = now;
        if self.phase != Phase::Moving {
            return Err(JoinError::NotMoving);
        }
        if let Some(node) = self.nodes.iter().find(|node| node.setup.name == setup.name) {
            return Err(JoinError::Present(node.setup.name.clone()));
        }
        let number = self.nodes.len() as u32;
        let open = setup::open_message(&self.setup, &setup, number);
        self.balancer.add_node(setup.told_up(), setup.told_down());
        let mut node = Node::new(setup, now);
        node.joined = true;
        self.nodes.push(node);
        self.send(number, to_agent::Body::Open(open));
        self.check_call();
        Ok(number)
    }

    /// A node that joined has opened what it has, and its files are in nobody's way.
    pub(super) fn take_in(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        let Some(opened) = state.pending.take() else {
            return;
        };
        state.opened = Some(opened);
        if let Err(mismatch) = self.fit(node) {
            return self.reject(node, &mismatch.to_string());
        }
        let name = self.name(node).to_owned();
        self.note(format!("{name} joins"));
        self.replace_lost(node);
        let now = self.clock.now;
        let state = &mut self.nodes[node as usize];
        state.came_at = Some(now);
        state.received.start(now);
        state.sent.start(now);
        self.enter_parts(node);
        self.tell_holding(node);
        let new = self.enter_group(node);
        self.join_relays(node);
        self.lease.expire();
        // A copy of its own without runs would be complete, and renamed, before a byte is there.
        let state = &mut self.nodes[node as usize];
        let waits = state.is_receiver() && state.group.is_none() && !new.is_empty();
        state.live(Event::Admit { waits });
        if !waits {
            // Its share of a limit is dealt at the next look; nobody knows yet when it should be done.
            let mut plan = self.plan_message(node, self.setup.limit.map(|_| 1));
            plan.expected = 0;
            if self.nodes[node as usize].is_receiver() {
                self.tell_there(node);
            }
            self.send(node, to_agent::Body::Plan(plan));
        }
        if !new.is_empty() {
            self.ask_plan(false, vec![(node, new)], &Default::default(), None);
        }
        let (view, balancer) = self.split();
        balancer.hope_for_room(view, node, now);
        balancer.look_soon();
    }

    /// A receiver of a copy of its own that joins where the same agent was lost with the same copy replaces that one: its copy is neither
    /// missing nor made twice.
    fn replace_lost(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        let at = state.setup.reached_at.filter(|(_, port)| port.is_some());
        let sinks = |node: &Node| -> Vec<control::Sink> {
            let sinks = node.setup.sinks.iter();
            sinks.map(|sink| sink.sink.clone()).collect()
        };
        let own = sinks(state);
        let is_shared = |node: &Node| destination_of(node).is_some();
        if at.is_none() || own.is_empty() || is_shared(state) {
            return;
        }
        let loss = |node: &Node| {
            let reason = node.lost.as_ref()?;
            Some(format!("{}: {reason}", node.setup.name))
        };
        for other in 0..node as usize {
            let state = &mut self.nodes[other];
            let is_same = state.setup.reached_at == at && !is_shared(state) && sinks(state) == own;
            let Some(text) = loss(state).filter(|_| is_same && state.done.is_none()) else {
                continue;
            };
            state.setup.sinks.clear();
            state.wants = RangeSet::new();
            state.runs.clear();
            state.forfeited = RangeSet::new();
            let failure = self.ending.failure.take_if(|failure| failure.text == text);
            if failure.is_some() {
                let mut lost = self.nodes.iter().filter(|node| {
                    node.is_receiver() && node.done.is_none() && !node.assigned().is_empty()
                });
                if let Some(text) = lost.find_map(loss) {
                    self.fail(ErrorKind::Lost, text);
                }
            }
        }
    }

    /// Others may fetch the lists of files that it holds from it.
    fn enter_parts(&mut self, node: u32) {
        let opened = self.nodes[node as usize].opened.iter();
        for source in opened.flat_map(|opened| &opened.sources) {
            let same = |part: &&mut control::Part| part.manifest_root == source.manifest_root;
            for part in self.space.parts.iter_mut().filter(same) {
                if !part.holders.contains(&node) {
                    part.holders.push(node);
                }
            }
        }
    }

    /// A node that joined cannot take part; the others go on.
    pub(super) fn reject(&mut self, node: u32, reason: &str) {
        let name = self.name(node).to_owned();
        self.note(format!("{name} cannot join: {reason}"));
        self.dismiss(node, true);
        let state = &mut self.nodes[node as usize];
        state.lose(format!("cannot join: {reason}"));
        // What it offers and wants counts for nothing: not as bytes that are missing, nor as a replica that
        // the next one to join would have to equal.
        state.setup.sources.clear();
        state.setup.sinks.clear();
        state.opened = None;
        state.holds = RangeSet::new();
        state.wants = RangeSet::new();
    }

    /// What became of a node that was to join: nothing yet, admitted, or not, and why: rejected, or released before it was
    /// ready.
    pub fn join_outcome(&self, node: u32) -> Option<Result<(), JoinError>> {
        let state = self.nodes.get(node as usize)?;
        match (&state.lost, self.phase) {
            (Some(reason), _) => {
                let reason = reason.strip_prefix("cannot join: ").unwrap_or(reason);
                Some(Err(JoinError::Rejected(reason.to_owned())))
            }
            (None, _) if state.opened.is_some() => Some(Ok(())),
            (None, _) if has_left(state) => Some(Err(JoinError::Left)),
            (None, Phase::Moving) => None,
            (None, _) => Some(Err(JoinError::Ended)),
        }
    }

    /// Who leaves and had nothing to give is asked again: its sinks may not have been there yet.
    pub(super) fn ask_leaving(&mut self, now: Instant) {
        if self.phase != Phase::Moving || self.balancer.is_in_round() {
            return;
        }
        let is_due = |node: &Node| {
            let gave_nothing = node.gave_nothing_at;
            gave_nothing.is_none_or(|then| now.since(then) >= EMPTY_TIME)
        };
        let has_more = |node: &Node| {
            matches!(node.life(), NodeLife::Working(duty) if duty.leaving && !duty.recalled)
                && is_due(node)
        };
        let asked: Vec<u32> = self
            .receivers()
            .filter(|&n| has_more(&self.nodes[n as usize]))
            .collect();
        for node in asked {
            self.recall_all(node, now);
        }
    }

    fn dismiss(&mut self, node: u32, discard: bool) {
        let now = self.clock.now;
        self.nodes[node as usize].gone_at.get_or_insert(now);
        self.streams.forget(node);
        self.tell_finish(node, discard);
    }

    /// Finds out what it holds and wants, and whether that fits.
    fn fit(&mut self, node: u32) -> Result<(), Mismatch> {
        let at = node as usize;
        match self.setup.mapping {
            Mapping::Rows => {
                self.nodes[at].lay_out_rows();
                if let Some(text) = self.two_places(node) {
                    return Err(Mismatch::Rows(text));
                }
                self.check_replicas().map_err(|problem| match problem {
                    layout::LayoutProblem::Refused(text) => Mismatch::Rows(text),
                    layout::LayoutProblem::Compare(_) => Mismatch::Files,
                })?;
            }
            Mapping::Trees { destinations, .. } => {
                let sources = self.nodes[at].opened.clone().unwrap_or_default().sources;
                for (number, opened) in sources.iter().enumerate() {
                    let Some((base, length)) = self.same_source(node, number, opened) else {
                        return Err(Mismatch::Source);
                    };
                    let state = &mut self.nodes[at];
                    if let Some(source) = state.setup.sources.get_mut(number) {
                        source.base = base;
                    }
                    let tree = Range {
                        start: base,
                        end: base + length,
                    };
                    state.hold(tree, opened);
                }
                let all = self.space.readable();
                let state = &mut self.nodes[at];
                if state.is_receiver() {
                    state.wants = all;
                }
                if destinations == Destinations::Shared {
                    for sink in &mut state.setup.sinks {
                        sink.destination.get_or_insert_with(|| "shared".into());
                    }
                }
            }
        }
        if let Some(name) = destination_of(&self.nodes[at]) {
            let there = self.looking.there(name);
            let state = &mut self.nodes[at];
            state.wants = state.wants.difference(&there);
        }
        let end = self.nodes[at].wants.last().map_or(0, |range| range.end);
        if end > self.space.length {
            return Err(Mismatch::Beyond {
                wanted: end,
                length: self.space.length,
            });
        }
        let others = self.nodes.iter().filter(|other| other.can_send());
        let own = self.nodes[at].holds.iter();
        let held = RangeSet::from_ranges(others.flat_map(|other| other.holds.iter()).chain(own));
        let unheld = self.nodes[at].wants.difference(&held);
        if !unheld.is_empty() {
            return Err(Mismatch::Unheld(describe(&unheld)));
        }
        Ok(())
    }

    /// As in a specification file: at a shared destination each byte has one place, and each place one byte.
    fn two_places(&self, node: u32) -> Option<String> {
        let own = &self.nodes[node as usize];
        let name = destination_of(own)?;
        let is_member = |other: &&Node| destination_of(other) == Some(name);
        let others = self.nodes.iter().filter(is_member);
        let others = others.filter(|other| !std::ptr::eq(*other, own));
        fn rows(node: &Node) -> impl Iterator<Item = &control::Row> + Clone {
            node.setup.sinks.iter().flat_map(|sink| &sink.sink.rows)
        }
        let data = |row: &control::Row| control::range(row.start, row.length);
        let file = |row: &control::Row| control::range(row.object_offset, row.length);
        let differ = |one: &control::Row, other: &control::Row| {
            let is_one_file = one.object == other.object;
            let shift = |row: &control::Row| i128::from(row.object_offset) - i128::from(row.start);
            let is_alike = is_one_file && shift(one) == shift(other);
            let meets = |a: Range, b: Range| a.start < b.end && b.start < a.end;
            !is_alike
                && (meets(data(one), data(other)) || is_one_file && meets(file(one), file(other)))
        };
        others.flat_map(rows).find_map(|other| {
            let row = rows(own).find(|row| differ(row, other))?;
            Some(format!(
                "its bytes {}-{} of {} are not those of {} at that place; a shared destination has one place for each byte",
                row.start,
                (row.start + row.length).saturating_sub(1),
                row.object.escape_ascii(),
                other.object.escape_ascii(),
            ))
        })
    }

    /// Where a source with the same content lies in the data space.
    fn same_source(&self, node: u32, number: usize, opened: &OpenedSource) -> Option<(u64, u64)> {
        let memory = |setup: &SourceSetup| match setup.source.kind {
            Some(source::Kind::Memory(size)) => Some(size),
            _ => None,
        };
        let own = self.nodes[node as usize].setup.sources.get(number);
        let own = own.and_then(memory);
        let others = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != node as usize);
        for (_, other) in others {
            let known = other.opened.iter().flat_map(|opened| &opened.sources);
            for (setup, source) in other.setup.sources.iter().zip(known) {
                let same = match own {
                    Some(size) => memory(setup) == Some(size),
                    None => {
                        !opened.manifest_root.is_empty()
                            && source.manifest_root == opened.manifest_root
                    }
                };
                if same {
                    return Some((setup.base, source.data_length));
                }
            }
        }
        None
    }

    /// Makes it one of its destination's receivers; gives what nobody there wanted so far.
    fn enter_group(&mut self, node: u32) -> RangeSet {
        let at = node as usize;
        let wants = self.nodes[at].wants.clone();
        let Some(name) = self.nodes[at]
            .setup
            .sinks
            .first()
            .and_then(|sink| sink.destination.clone())
        else {
            return wants;
        };
        let wanted = self.destination_wants_of_others(&name, node);
        self.nodes[at].group = Some(self.groups.enter(name));
        self.groups.count_takers(&self.nodes);
        wants.difference(&wanted)
    }

    /// Releases a node while the others continue: what it had to send or fetch goes to others, what it wrote of a
    /// shared destination stays.
    ///
    /// # Errors
    /// [`LeaveError::Unknown`] when the node is not there; another one when the others could not do without it.
    pub fn handle_leave(&mut self, name: &str, now: Instant) -> Result<(), LeaveError> {
        self.clock.now = now;
        if self.phase != Phase::Moving {
            return Err(LeaveError::NotMoving);
        }
        let named = |node: &Node| node.setup.name == name && node.alive() && !has_left(node);
        let Some(at) = self.nodes.iter().position(named) else {
            return Err(LeaveError::Unknown {
                name: name.to_owned(),
                present: self.present(),
            });
        };
        let node = at as u32;
        self.may_leave(node)?;
        let has_plan = self.nodes[at].live(Event::Leave);
        self.note(format!("{name} leaves"));
        if self.nodes[at].is_sender() || self.relays.contains(&node) {
            self.tell_gone(node);
        }
        if self.nodes[at].is_receiver() && self.nodes[at].done.is_none() {
            self.recall_all(node, now);
        }
        match has_plan {
            true => self.let_go(node),
            false => self.dismiss(node, false),
        }
        self.balancer.look_soon();
        self.check_call();
        Ok(())
    }

    /// The names of the nodes that take part, for an error: the first of many.
    fn present(&self) -> String {
        let present = self
            .nodes
            .iter()
            .filter(|node| node.alive() && !has_left(node));
        let names: Vec<&str> = present.map(|node| node.setup.name.as_str()).collect();
        match names.len().saturating_sub(NAMES_SHOWN) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names[..NAMES_SHOWN].join(", ")),
        }
    }

    /// A node that leaves goes when it has nothing left to do.
    pub(super) fn let_go(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        let is_idle = match state.life() {
            NodeLife::Working(_) => !state.is_receiver(),
            NodeLife::Done(duty) => !duty.recalled || !state.is_receiver(),
            _ => false,
        };
        if state.life().is_leaving() && is_idle {
            self.dismiss(node, false);
        }
    }

    fn may_leave(&self, node: u32) -> Result<(), LeaveError> {
        let state = &self.nodes[node as usize];
        let name = || state.setup.name.clone();
        let others = || {
            let nodes = self.nodes.iter().enumerate();
            nodes
                .filter(|(at, _)| *at != node as usize)
                .map(|(_, other)| other)
        };
        let fetching = others().filter(|other| other.life().is_unfinished());
        let released = || self.balancer.released().flat_map(RangeSet::iter);
        let needed = RangeSet::from_ranges(released().chain(fetching.flat_map(Node::asked)));
        let holding = others().filter(|other| other.can_send());
        let held = RangeSet::from_ranges(holding.flat_map(|other| other.holds.iter()));
        let alone = state.holds.intersection(&needed).difference(&held);
        if !alone.is_empty() {
            return Err(LeaveError::Holder {
                node: name(),
                ranges: describe(&alone),
            });
        }
        if !state.is_receiver() {
            return Ok(());
        }
        let Some(group) = state.group else {
            return match state.done {
                Some(_) => Ok(()),
                None => Err(LeaveError::Incomplete { node: name() }),
            };
        };
        let in_group = |other: &&Node| other.group == Some(group) && other.alive();
        let stays = |other: &&Node| {
            let stopped = other
                .done
                .as_ref()
                .is_some_and(|done| !done.error.is_empty());
            !has_left(other) && !stopped
        };
        let able = others().filter(in_group).filter(stays);
        let taken = RangeSet::from_ranges(able.flat_map(|other| other.wants.iter()));
        // What those who leave give up has to go somewhere, too.
        let leaving = others()
            .filter(in_group)
            .filter(|other| other.life().is_leaving() && other.done.is_none());
        let given_up = RangeSet::from_ranges(released().chain(leaving.flat_map(Node::asked)));
        let own = match state.done {
            Some(_) => RangeSet::new(),
            None => state.assigned(),
        };
        let alone = own
            .union(&given_up.intersection(&state.wants))
            .difference(&taken);
        match alone.is_empty() {
            true => Ok(()),
            false => Err(LeaveError::Writer {
                node: name(),
                ranges: describe(&alone),
            }),
        }
    }
}
