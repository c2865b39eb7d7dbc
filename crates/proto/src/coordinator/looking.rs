//! What of a shared copy is there already: found out before the plan.
//!
//! Two nodes may see different attributes of one file (caches of network file systems), and a file that one of them leaves as it
//! is and another one writes in part would be damaged. So one node looks, and what it finds holds for all:
//!
//! ```text
//!  Look: serve lists of files --> all senders
//!  Look: and decide ------------> the first receiver; it is lost, or cannot look: the next one
//!  There <----------- Present --- what it found, to all receivers
//!  Plan ------------------------> of the rest; receivers make files from now on
//! ```
//!
//! No plan exists before the decision, and no receiver makes a file without a plan. The decision holds when the node that made it
//! is lost afterwards. Where no receiver can look, nothing is there.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, RangeSet};

use super::phase::{Phase, Step};
use super::{Coordinator, Destinations, Mapping, Node, OPEN_TIME_MAX};
use crate::control::{self, Comparing, Look, Present, There, Verify, sink, to_agent};

/// Ranges of one message: some hundred kilobytes.
const STRETCHES_MAX: usize = 20_000;

/// What was found, and which node is asked for it.
#[derive(Debug, Default)]
pub(super) struct Looking {
    // When the present one was asked.
    began_at: Instant,
    asked: BTreeSet<u32>,
    // Of those the one that has not answered.
    pub(super) awaited: Option<u32>,
    // What it has reported so far; what was decided, once no node is awaited.
    unchanged: RangeSet,
    adopted: RangeSet,
    files: u64,
    passed: (u64, u64),
    taken: u64,
    // Bytes whose contents it has compared, as it last reported; it may compare some again.
    compared: u64,
    pub(super) decided_by: Option<u32>,
}

impl Looking {
    /// A node that has looked for too long.
    pub fn late(&self, now: Instant) -> Option<u32> {
        self.awaited
            .filter(|_| now.since(self.began_at) > OPEN_TIME_MAX)
    }

    /// No answer is awaited any more: the transfer is over.
    pub fn end(&mut self) {
        self.awaited = None;
    }

    /// The node whose decision holds for all.
    pub fn decided_by(&self) -> Option<u32> {
        self.decided_by
    }

    /// A node compares contents: as long as it gets on it is not late.
    pub fn handle_comparing(&mut self, node: u32, comparing: &Comparing, now: Instant) {
        if self.awaited == Some(node) && comparing.done != self.compared {
            self.compared = comparing.done;
            self.began_at = now;
        }
    }

    /// What was decided to be there; nothing before.
    pub fn there(&self) -> RangeSet {
        match self.decided_by {
            Some(_) => self.unchanged.union(&self.adopted),
            None => RangeSet::new(),
        }
    }

    /// Asserts that a node is awaited while there is something to be found out.
    pub fn check(&self, phase: Phase) {
        debug_assert!(
            phase == Phase::Ended || self.awaited.is_some() == (phase == Phase::Looking),
            "{phase:?}: a node that looks"
        );
    }
}

impl Coordinator {
    /// Everything is laid out: where receivers write a tree together, one looks what is there, else all is planned. Next states:
    /// Looking, Planning.
    pub(super) fn look(&mut self) {
        if self.is_dry_run() {
            return self.list();
        }
        if !self.has_shared_tree() {
            return self.plan_first();
        }
        let Some(first) = self.next_to_look() else {
            return self.plan_first();
        };
        self.begin_looking(first);
    }

    /// Has senders serve their lists of files, and a first node look.
    pub(super) fn begin_looking(&mut self, first: u32) {
        self.enter(Step::Look);
        for sender in self.senders().filter(|&n| n != first).collect::<Vec<_>>() {
            let look = self.look_message(sender, false);
            self.send(sender, to_agent::Body::Look(look));
        }
        self.ask_to_look(first);
    }

    /// Whether all receivers write one copy of trees, and what is there is to stay.
    fn has_shared_tree(&self) -> bool {
        let is_shared = matches!(
            self.setup.mapping,
            Mapping::Trees {
                destinations: Destinations::Shared,
                ..
            }
        );
        let is_tree = |node: &Node| {
            let [sink] = node.setup.sinks.as_slice() else {
                return false;
            };
            matches!(sink.sink.kind, Some(sink::Kind::Tree(_)))
        };
        let mut receivers = self.nodes.iter().filter(|node| node.is_receiver());
        is_shared
            && self.setup.options.same().keeps()
            && !self.space.parts.is_empty()
            && receivers.all(is_tree)
    }

    pub(super) fn next_to_look(&self) -> Option<u32> {
        let is_next = |node: &u32| self.is_able(*node) && !self.looking.asked.contains(node);
        self.receivers().find(is_next)
    }

    pub(super) fn ask_to_look(&mut self, node: u32) {
        let looking = &mut self.looking;
        looking.began_at = self.clock.now;
        looking.asked.insert(node);
        looking.awaited = Some(node);
        // What another one has begun to report counts for nothing.
        (looking.unchanged, looking.adopted) = (RangeSet::new(), RangeSet::new());
        looking.files = 0;
        looking.passed = (0, 0);
        (looking.taken, looking.compared) = (0, 0);
        let look = self.look_message(node, true);
        self.send(node, to_agent::Body::Look(look));
    }

    fn look_message(&self, node: u32, decides: bool) -> Look {
        let sources = self.nodes[node as usize].setup.sources.iter();
        let holders = self.manifest_holders().filter(|_| decides);
        let holders: BTreeSet<u32> = holders.collect();
        Look {
            peers: holders.into_iter().map(|n| self.peer(n)).collect(),
            parts: self.space.parts.clone(),
            source_bases: sources.map(|source| source.base).collect(),
            decides,
            delete: self.deletes(),
        }
    }

    /// A receiver has looked what is there, or cannot.
    pub(super) fn handle_looked(&mut self, node: u32, present: &Present) {
        if self.looking.awaited != Some(node) {
            return;
        }
        if self.is_dry_run() {
            return self.handle_list_end(node, present);
        }
        if !present.failed.is_empty() {
            return self.look_on();
        }
        let looking = &mut self.looking;
        let found = control::range_set(&present.ranges);
        looking.unchanged = looking.unchanged.union(&found);
        let found = control::range_set(&present.adopted);
        looking.adopted = looking.adopted.union(&found);
        looking.files = looking.files.saturating_add(present.files);
        looking.passed.0 = looking.passed.0.saturating_add(present.passed_files);
        looking.passed.1 = looking.passed.1.saturating_add(present.passed_bytes);
        looking.taken = looking.taken.saturating_add(present.taken_bytes);
        // That holds also where another one looks then.
        self.nodes[node as usize].note_wrong(present);
        if present.last {
            self.decide(node);
        }
    }

    /// The node that was asked does not answer: the next one looks.
    pub(super) fn look_on(&mut self) {
        match self.next_to_look() {
            Some(next) => self.ask_to_look(next),
            None => {
                self.looking = Looking::default();
                self.plan_first();
            }
        }
    }

    fn decide(&mut self, by: u32) {
        self.looking.awaited = None;
        self.looking.decided_by = Some(by);
        let wanted = &self.nodes[by as usize].wants;
        self.looking.unchanged = self.looking.unchanged.intersection(wanted);
        let adopted = self.looking.adopted.intersection(wanted);
        self.looking.adopted = adopted.difference(&self.looking.unchanged);
        let there = self.looking.there();
        for receiver in self.receivers().collect::<Vec<_>>() {
            self.nodes[receiver as usize].have(&there);
            if self.is_able(receiver) {
                self.tell_there(receiver);
            }
        }
        // Counted once.
        let state = &mut self.nodes[by as usize];
        state.present_bytes = self.looking.unchanged.len_bytes();
        state.adopted_bytes = self.looking.adopted.len_bytes();
        state.taken_bytes = self.looking.taken.min(state.adopted_bytes);
        state.present_files = self.looking.files;
        (state.passed_files, state.passed_bytes) = self.looking.passed;
        self.plan_first();
    }

    /// Reports to a receiver what is there, before its plan.
    pub(super) fn tell_there(&mut self, node: u32) {
        if self.looking.decided_by.is_none() {
            return;
        }
        let mut told = Vec::new();
        for ranges in control::stretches(&self.looking.unchanged).chunks(STRETCHES_MAX) {
            told.push(There {
                ranges: ranges.to_vec(),
                ..There::default()
            });
        }
        for adopted in control::stretches(&self.looking.adopted).chunks(STRETCHES_MAX) {
            told.push(There {
                adopted: adopted.to_vec(),
                ..There::default()
            });
        }
        if told.is_empty() {
            told.push(There::default());
        }
        for there in told {
            let there = There {
                is_made: true,
                ..there
            };
            self.send(node, to_agent::Body::There(there));
        }
    }

    /// Whether what an earlier transfer left is to be read back, and the node that took it over, which alone has its hashes, has not
    /// said that it did.
    pub(super) fn lacks_read_back(&self) -> bool {
        let Some(by) = self.looking.decided_by else {
            return false;
        };
        let is_asked = self.setup.options.verify() == Verify::Sink;
        let done = self.nodes[by as usize].done.as_deref();
        let is_done = done.is_some_and(|done| done.error.is_empty());
        is_asked && !self.looking.adopted.is_empty() && !is_done
    }

    /// A node is lost before there is a plan. Whether the others go on: the rest of a shared copy's receivers do.
    pub(super) fn looks_without(&mut self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        let is_left = self.receivers().any(|other| self.is_able(other));
        if self.phase != Phase::Looking || state.is_sender() || !is_left {
            return false;
        }
        if self.is_dry_run() {
            return self.lists_without(node);
        }
        if self.looking.awaited == Some(node) {
            self.look_on();
        }
        true
    }
}
