//! What of a shared copy is there already: found out before the plan.
//!
//! Two nodes may see different attributes of one file (caches of network file systems), and a file that one of them leaves as it
//! is and another one writes in part would be damaged. So one node looks, and what it finds holds for all:
//!
//! ```text
//!  Look: serve lists of files --> all senders, of trees
//!  Look: and decide ------------> the first receiver; it is lost, or cannot look: the next one
//!  There <----------- Present --- what it found, to all receivers
//!  Plan ------------------------> of the rest; receivers make files from now on
//! ```
//!
//! Of rows each shared destination has a look of its own, and those that can look are the nodes that write all of its files
//! (`shared_rows`); all destinations are looked at at the same time.
//!
//! No plan exists before the decision, and no receiver makes a file without a plan. The decision holds when the node that made it
//! is lost afterwards. Where no receiver can look, nothing is there.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, RangeSet};

use super::phase::{Phase, Step};
use super::shared_rows::destination_of;
use super::{Coordinator, Destinations, Mapping, Node, OPEN_TIME_MAX};
use crate::control::{self, Comparing, Look, Present, There, Verify, sink, to_agent};

/// Ranges of one message: some hundred kilobytes.
const STRETCHES_MAX: usize = 20_000;

/// What was found, and which nodes are asked for it.
#[derive(Debug, Default)]
pub(super) struct Looking {
    all: Vec<Search>,
}

/// What was found of one copy, and which node is asked for it.
#[derive(Debug, Default)]
struct Search {
    // Of rows: the shared destination. `None`: the one copy of trees, or all of a dry run.
    destination: Option<String>,
    // In the order in which they are asked.
    able: Vec<u32>,
    // When the present one was asked.
    began_at: Instant,
    asked: BTreeSet<u32>,
    // Of those the one that has not answered.
    awaited: Option<u32>,
    // What it has reported so far; what was decided, once no node is awaited.
    unchanged: RangeSet,
    adopted: RangeSet,
    files: u64,
    passed: (u64, u64),
    refused: RangeSet,
    taken: u64,
    // Bytes whose contents it has compared, as it last reported; it may compare some again.
    compared: u64,
    decided_by: Option<u32>,
}

impl Search {
    fn is_late(&self, now: Instant) -> bool {
        now.since(self.began_at) > OPEN_TIME_MAX
    }

    /// What another node has begun to report counts for nothing.
    fn forget(&mut self) {
        (self.unchanged, self.adopted) = (RangeSet::new(), RangeSet::new());
        self.files = 0;
        self.passed = (0, 0);
        self.refused = RangeSet::new();
        (self.taken, self.compared) = (0, 0);
    }

    fn add(&mut self, present: &Present) {
        let found = control::range_set(&present.ranges);
        self.unchanged = self.unchanged.union(&found);
        let found = control::range_set(&present.adopted);
        self.adopted = self.adopted.union(&found);
        self.files = self.files.saturating_add(present.files);
        self.passed.0 = self.passed.0.saturating_add(present.passed_files);
        self.passed.1 = self.passed.1.saturating_add(present.passed_bytes);
        self.taken = self.taken.saturating_add(present.taken_bytes);
        let refused = control::range_set(&present.refused);
        self.refused = self.refused.union(&refused);
    }

    fn is_of(&self, node: &Node) -> bool {
        match &self.destination {
            Some(name) => destination_of(node) == Some(name),
            None => node.is_receiver(),
        }
    }
}

impl Looking {
    /// When each of them was asked last.
    pub fn began_at(&mut self) -> impl Iterator<Item = &mut Instant> {
        self.all.iter_mut().map(|one| &mut one.began_at)
    }

    /// Nodes that have looked for too long.
    pub fn late(&self, now: Instant) -> Vec<u32> {
        let late = self.all.iter().filter(|one| one.is_late(now));
        late.filter_map(|one| one.awaited).collect()
    }

    /// No answer is awaited any more: the transfer is over.
    pub fn end(&mut self) {
        self.all.iter_mut().for_each(|one| one.awaited = None);
    }

    /// Whether a node is to answer.
    pub fn awaits(&self, node: u32) -> bool {
        self.of_awaited(node).is_some()
    }

    fn of_awaited(&self, node: u32) -> Option<usize> {
        self.all.iter().position(|one| one.awaited == Some(node))
    }

    /// Of a shared destination.
    fn of(&self, destination: &str) -> Option<&Search> {
        let is_of = |one: &&Search| {
            one.destination
                .as_deref()
                .is_none_or(|of| of == destination)
        };
        self.all.iter().find(is_of)
    }

    /// The node whose decision holds for all of a destination.
    pub fn decided_by(&self, destination: &str) -> Option<u32> {
        self.of(destination)?.decided_by
    }

    /// Whether a node has made what the nodes of a destination write.
    pub fn is_made(&self, destination: &str) -> bool {
        self.decided_by(destination).is_some()
    }

    /// A node compares contents: as long as it gets on it is not late.
    pub fn handle_comparing(&mut self, node: u32, comparing: &Comparing, now: Instant) {
        let Some(at) = self.of_awaited(node) else {
            return;
        };
        let one = &mut self.all[at];
        if comparing.done != one.compared {
            one.compared = comparing.done;
            one.began_at = now;
        }
    }

    /// A node waits for something that ends by itself: it is not late meanwhile.
    pub fn handle_busy(&mut self, node: u32, now: Instant) {
        if let Some(at) = self.of_awaited(node) {
            self.all[at].began_at = now;
        }
    }

    /// What was decided to be there of a destination; nothing before.
    pub fn there(&self, destination: &str) -> RangeSet {
        match self.of(destination) {
            Some(one) if one.decided_by.is_some() => one.unchanged.union(&one.adopted),
            _ => RangeSet::new(),
        }
    }

    /// Asserts that a node is awaited while there is something to be found out.
    pub fn check(&self, phase: Phase) {
        let is_awaited = self.all.iter().any(|one| one.awaited.is_some());
        debug_assert!(
            phase == Phase::Ended || is_awaited == (phase == Phase::Looking),
            "{phase:?}: a node that looks"
        );
    }
}

impl Coordinator {
    /// Everything is laid out: where receivers write a tree, or files of rows, together, one looks what is there, else all is planned.
    /// Next states: Looking, Planning.
    pub(super) fn look(&mut self) {
        if self.is_dry_run() {
            return self.list();
        }
        if self.is_listing() && self.begin_listing() {
            return;
        }
        let searches = match self.setup.mapping {
            Mapping::Trees { .. } if self.has_shared_tree() => vec![self.search_of_all()],
            Mapping::Trees { .. } => Vec::new(),
            Mapping::Rows => self.searches_of_rows(),
        };
        self.begin_looking(searches);
    }

    /// Of the copy of trees, or of all destinations, in turn, in a dry run.
    fn search_of_all(&self) -> Search {
        Search {
            able: self.receivers().collect(),
            ..Search::default()
        }
    }

    fn searches_of_rows(&self) -> Vec<Search> {
        let shared = self.shared_rows().into_iter();
        let search = |(name, able)| Search {
            destination: Some(name),
            able,
            ..Search::default()
        };
        shared.map(search).collect()
    }

    /// As [`Coordinator::look`], for a list of what the copy does. Whether a receiver looks.
    pub(super) fn begin_listing(&mut self) -> bool {
        let search = self.search_of_all();
        self.ask_first(vec![search])
    }

    fn begin_looking(&mut self, searches: Vec<Search>) {
        if !self.ask_first(searches) {
            self.plan_first();
        }
    }

    /// Has senders serve their lists of files, and the first node of each destination look. False, and nothing is asked, where none can.
    fn ask_first(&mut self, searches: Vec<Search>) -> bool {
        let mut searches = searches;
        searches.retain(|one| self.next_of(one).is_some());
        if searches.is_empty() {
            return false;
        }
        self.looking.all = searches;
        self.enter(Step::Look);
        let firsts: Vec<u32> = (0..self.looking.all.len())
            .filter_map(|at| self.next_of(&self.looking.all[at]))
            .collect();
        if !self.space.parts.is_empty() {
            let senders: Vec<u32> = self.senders().collect();
            for sender in senders.into_iter().filter(|node| !firsts.contains(node)) {
                let look = self.look_message(sender, None);
                self.send(sender, to_agent::Body::Look(look));
            }
        }
        for (at, first) in firsts.into_iter().enumerate() {
            self.ask_to_look(at, first);
        }
        true
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

    fn next_of(&self, search: &Search) -> Option<u32> {
        let is_next = |node: &&u32| self.is_able(**node) && !search.asked.contains(node);
        search.able.iter().find(is_next).copied()
    }

    /// Has the node look next that can instead of one that was asked. False, and nothing is asked, where none can.
    ///
    /// * `node`: is awaited.
    pub(super) fn ask_next(&mut self, node: u32) -> bool {
        let Some(at) = self.looking.of_awaited(node) else {
            return false;
        };
        let next = self.next_of(&self.looking.all[at]);
        match next {
            Some(next) => self.ask_to_look(at, next),
            None => self.looking.all[at].awaited = None,
        }
        next.is_some()
    }

    fn ask_to_look(&mut self, at: usize, node: u32) {
        let search = &mut self.looking.all[at];
        search.began_at = self.clock.now;
        search.asked.insert(node);
        search.awaited = Some(node);
        search.forget();
        let look = self.look_message(node, Some(at));
        self.send(node, to_agent::Body::Look(look));
    }

    /// * `decides`: the search in which the node is to decide; `None`: it serves lists of files.
    fn look_message(&self, node: u32, decides: Option<usize>) -> Look {
        let sources = self.nodes[node as usize].setup.sources.iter();
        let holders = self.manifest_holders().filter(|_| decides.is_some());
        let holders: BTreeSet<u32> = holders.collect();
        let mut look = Look {
            peers: holders.into_iter().map(|n| self.peer(n)).collect(),
            parts: self.parts_for(decides.is_some()),
            source_bases: sources.map(|source| source.base).collect(),
            decides: decides.is_some(),
            lists: decides.is_some() && self.is_listing(),
            delete: self.deletes(),
            ..Look::default()
        };
        let search = decides.map(|at| &self.looking.all[at]);
        if let Some(name) = search.and_then(|search| search.destination.as_deref()) {
            look.files = self.shared_files(name, node);
            look.origins = self.origins_in(&self.destination_wants(name));
        }
        look
    }

    /// A receiver has looked what is there, or cannot.
    pub(super) fn handle_looked(&mut self, node: u32, present: &Present) {
        let Some(at) = self.looking.of_awaited(node) else {
            return;
        };
        if self.is_listing() {
            return self.handle_list_end(node, present);
        }
        if !present.failed.is_empty() {
            return self.look_on(node);
        }
        self.looking.all[at].add(present);
        // That holds also where another one looks then.
        self.nodes[node as usize].note_wrong(present);
        if present.last {
            self.decide(at, node);
        }
    }

    /// The node that was asked does not answer: the next one looks.
    fn look_on(&mut self, node: u32) {
        if !self.ask_next(node) {
            self.end_looking();
        }
    }

    /// Nothing is awaited of a destination any more: when nothing is of any, all is planned.
    fn end_looking(&mut self) {
        if self.looking.all.iter().all(|one| one.awaited.is_none()) {
            self.plan_first();
        }
    }

    fn decide(&mut self, at: usize, by: u32) {
        let of: Vec<u32> = {
            let search = &self.looking.all[at];
            let own = self.receivers();
            own.filter(|node| search.is_of(&self.nodes[*node as usize]))
                .collect()
        };
        let wanted = of.iter().map(|node| &self.nodes[*node as usize].wants);
        let wanted = wanted.fold(RangeSet::new(), |all, wants| all.union(wants));
        let search = &mut self.looking.all[at];
        search.awaited = None;
        search.decided_by = Some(by);
        search.unchanged = search.unchanged.intersection(&wanted);
        let adopted = search.adopted.intersection(&wanted);
        search.adopted = adopted.difference(&search.unchanged);
        search.refused = search.refused.intersection(&search.unchanged);
        let there = search.unchanged.union(&search.adopted);
        for receiver in of {
            self.nodes[receiver as usize].have(&there);
            if self.is_able(receiver) {
                self.tell_there(receiver);
            }
        }
        // Counted once.
        let search = &self.looking.all[at];
        let state = &mut self.nodes[by as usize];
        state.present_bytes = search.unchanged.len_bytes();
        state.adopted_bytes = search.adopted.len_bytes();
        state.taken_bytes = search.taken.min(state.adopted_bytes);
        state.present_files = search.files;
        (state.passed_files, state.passed_bytes) = search.passed;
        state.refused_bytes = search.refused.len_bytes();
        self.end_looking();
    }

    /// Reports to a receiver what is there, before its plan.
    pub(super) fn tell_there(&mut self, node: u32) {
        let Some(at) = self.search_of(node) else {
            return;
        };
        let search = &self.looking.all[at];
        let Some(by) = search.decided_by else {
            return;
        };
        let sinks = match &search.destination {
            Some(_) => self.sinks_made_by(by, node),
            None => Vec::new(),
        };
        let mut told = Vec::new();
        for ranges in control::stretches(&search.unchanged).chunks(STRETCHES_MAX) {
            told.push(There {
                ranges: ranges.to_vec(),
                ..There::default()
            });
        }
        for adopted in control::stretches(&search.adopted).chunks(STRETCHES_MAX) {
            told.push(There {
                adopted: adopted.to_vec(),
                ..There::default()
            });
        }
        for refused in control::stretches(&search.refused).chunks(STRETCHES_MAX) {
            told.push(There {
                refused: refused.to_vec(),
                ..There::default()
            });
        }
        if told.is_empty() {
            told.push(There::default());
        }
        let is_made = search.destination.is_none();
        for there in told {
            let there = There {
                is_made,
                sinks: sinks.clone(),
                ..there
            };
            self.send(node, to_agent::Body::There(there));
        }
    }

    /// The search for what a receiver writes.
    fn search_of(&self, node: u32) -> Option<usize> {
        let state = &self.nodes[node as usize];
        let mut all = self.looking.all.iter();
        all.position(|search| search.is_of(state))
    }

    /// Whether what an earlier transfer left of a destination is to be read back, and the node that took it over, which alone has its
    /// hashes, has not said that it did.
    pub(super) fn lacks_read_back(&self, destination: &str) -> bool {
        let search = self.looking.of(destination);
        let Some((search, by)) = search.and_then(|search| Some((search, search.decided_by?)))
        else {
            return false;
        };
        let is_asked = self.setup.options.verify() == Verify::Sink;
        let done = self.nodes[by as usize].done.as_deref();
        let is_done = done.is_some_and(|done| done.error.is_empty());
        is_asked && !search.adopted.is_empty() && !is_done
    }

    /// A node is lost before there is a plan. Whether the others go on: the rest of a shared copy's receivers do. Of rows each receiver
    /// may have some that no other one writes.
    pub(super) fn looks_without(&mut self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        let is_left = self.receivers().any(|other| self.is_able(other));
        let is_of_rows = self.setup.mapping == Mapping::Rows;
        if self.phase != Phase::Looking || state.is_sender() || !is_left || is_of_rows {
            return false;
        }
        if self.is_listing() {
            return self.lists_without(node);
        }
        if self.looking.awaits(node) {
            self.look_on(node);
        }
        true
    }
}
