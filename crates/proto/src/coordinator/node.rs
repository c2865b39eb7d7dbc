//! One node as its master sees it: where it is in its life, what it reported, and what the plan asks of it.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Range, RangeSet};

use super::NodeSetup;
use super::arrivals::Arrivals;
use super::life::{Event, NodeLife};
use super::progress::Busy;
use crate::control::{self, Done, Finished, Opened, Present, Run, Wrong, parts_of};

/// Files with wrong bytes that are remembered of one node.
const WRONG_MAX: usize = 100;

#[derive(Debug)]
pub(super) struct Node {
    pub setup: NodeSetup,
    life: NodeLife,
    pub opened: Option<Box<Opened>>,
    // What it opened, while whether it may join is being found out.
    pub pending: Option<Box<Opened>>,
    // Why it is lost; `None` while it is not.
    pub lost: Option<String>,
    // It said itself that it takes no part any more.
    pub is_cancelled: bool,
    pub heard_at: Instant,
    pub holds: RangeSet,
    pub wants: RangeSet,
    pub runs: Vec<Run>,
    // Of a copy of its own: what no plan brings any more, since it stopped or is gone.
    pub forfeited: RangeSet,
    // Of a copy of its own: bytes of files that it had from the start, and of files that an earlier transfer began. It does not
    // want them.
    pub present_bytes: u64,
    pub adopted_bytes: u64,
    // Where it hands on: the adopted ones, which others may have from it.
    pub kept: RangeSet,
    /// Of the adopted ones, those of chunks that its files had.
    pub taken_bytes: u64,
    pub present_files: u64,
    /// Of what its copy had, what stays though it is not the same: files, and their bytes.
    pub passed_files: u64,
    pub passed_bytes: u64,
    /// Bytes of files that its file system cannot hold.
    pub refused_bytes: u64,
    /// What it found wrong of what an earlier transfer left, and how many more files.
    pub wrong: Vec<Wrong>,
    pub wrong_more: u64,
    pub delivered: u64,
    pub checked: u64,
    pub sent_by_pair: BTreeMap<u32, u64>,
    // What it has still to get from each sender: as it last reported, and as changed since.
    pub left_by_pair: BTreeMap<u32, u64>,
    // How its part ended; `None` before, and again when it is given more work.
    pub done: Option<Box<Done>>,
    pub finished: Option<Box<Finished>>,
    // Where it has said that its temporary files are.
    pub temporary: Vec<String>,
    // What others refused it, and their words.
    pub refusals: Vec<(RangeSet, String)>,
    // What it could not get from whom.
    pub failed_from: BTreeMap<u32, RangeSet>,
    // Revisions with runs sent so far; an older Done speaks of less than is now asked.
    pub revision: u32,
    // Names in its trees that it has looked at before it had opened them, and when it was asked, or last looked at more.
    pub scanned: u64,
    pub scanned_at: Instant,
    // What it does meanwhile, by its newest status.
    pub busy: Option<Busy>,
    // Names that it has removed, by the status that said most.
    pub removed_most: u64,
    // When its newest status came.
    pub seen_at: Instant,
    // What came to it, and what others had from it, of late; and all of the latter.
    pub received: Arrivals,
    pub sent: Arrivals,
    pub sent_bytes: u64,
    // When it joined, and when it was gone; `None`: it was there from the start, or to the end.
    pub came_at: Option<Instant>,
    pub gone_at: Option<Instant>,
    // The destination it shares with others, a position in `groups`.
    pub group: Option<u32>,
    // When it was last given work.
    pub given_at: Instant,
    // It came while bytes moved.
    pub joined: bool,
    // When it gave nothing though asked, for the last time.
    pub gave_nothing_at: Option<Instant>,
}

/// An agent opened another number of sources than it was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "it opened {answered} sources where {asked} were asked for; install the same Ropewalk on all hosts"
)]
pub(super) struct WrongCount {
    asked: usize,
    answered: usize,
}

impl Node {
    pub fn new(setup: NodeSetup, now: Instant) -> Self {
        Self {
            setup,
            life: NodeLife::Opening,
            opened: None,
            pending: None,
            lost: None,
            is_cancelled: false,
            heard_at: now,
            holds: RangeSet::new(),
            wants: RangeSet::new(),
            runs: Vec::new(),
            forfeited: RangeSet::new(),
            present_bytes: 0,
            adopted_bytes: 0,
            kept: RangeSet::new(),
            taken_bytes: 0,
            present_files: 0,
            passed_files: 0,
            passed_bytes: 0,
            refused_bytes: 0,
            wrong: Vec::new(),
            wrong_more: 0,
            delivered: 0,
            checked: 0,
            sent_by_pair: BTreeMap::new(),
            left_by_pair: BTreeMap::new(),
            done: None,
            finished: None,
            temporary: Vec::new(),
            refusals: Vec::new(),
            failed_from: BTreeMap::new(),
            revision: 0,
            scanned: 0,
            scanned_at: now,
            busy: None,
            removed_most: 0,
            seen_at: Instant::ZERO,
            received: Arrivals::default(),
            sent: Arrivals::default(),
            sent_bytes: 0,
            came_at: None,
            gone_at: None,
            group: None,
            given_at: Instant::ZERO,
            joined: false,
            gave_nothing_at: None,
        }
    }

    pub fn life(&self) -> NodeLife {
        self.life
    }

    /// Takes an event into account. False, and nothing changes, where it cannot happen in this state.
    pub fn live(&mut self, event: Event) -> bool {
        let Some(next) = self.life.after(event) else {
            return false;
        };
        self.life = next;
        true
    }

    /// It is gone, and why.
    pub fn lose(&mut self, reason: String) {
        if self.live(Event::Lose) {
            self.lost = Some(reason);
            self.pending = None;
        }
    }

    /// It was asked to give files their names, and has.
    pub fn has_named(&self) -> bool {
        let finished = self.finished.as_deref();
        self.life.commits() && finished.is_some_and(|finished| finished.committed)
    }

    /// What it reported of the files that it renamed into place: by itself, or as ordered.
    pub fn landed(&self) -> Option<&control::Landed> {
        let finished = self
            .finished
            .as_ref()
            .and_then(|finished| finished.landed.as_ref());
        finished.or(self.done.as_deref().and_then(|done| done.landed.as_ref()))
    }

    /// A count that it reported of each of its sources, summed up.
    pub fn of_sources(&self, count: impl Fn(&control::OpenedSource) -> u64) -> u64 {
        let sources = self.opened.iter().flat_map(|opened| &opened.sources);
        sources.map(count).fold(0, u64::saturating_add)
    }

    pub fn is_sender(&self) -> bool {
        !self.setup.sources.is_empty()
    }

    pub fn is_receiver(&self) -> bool {
        !self.setup.sinks.is_empty()
    }

    pub fn alive(&self) -> bool {
        self.life.is_alive()
    }

    /// Whether the agent opened what it was asked to, source by source.
    pub fn check_opened(&self, opened: &Opened) -> Result<(), WrongCount> {
        let (asked, answered) = (self.setup.sources.len(), opened.sources.len());
        match asked == answered {
            true => Ok(()),
            false => Err(WrongCount { asked, answered }),
        }
    }

    /// It takes part, and its part has not ended with an error.
    pub fn is_able(&self) -> bool {
        let is_well = |done: &Done| done.error.is_empty();
        self.life.takes_part() && self.done.as_deref().is_none_or(is_well)
    }

    /// Whether it may be asked for bytes.
    pub fn can_send(&self) -> bool {
        self.is_sender() && self.life.takes_part() && !self.life.is_leaving()
    }

    /// Asks it for runs, beside what it has.
    pub fn give(&mut self, runs: Vec<Run>) {
        for run in &runs {
            let left = self.left_by_pair.entry(run.source()).or_default();
            *left = left.saturating_add(run.length);
        }
        self.runs.extend(runs);
    }

    /// Takes ranges out of what the plan asks of it. Returns what it asked of them.
    pub fn forget(&mut self, ranges: &RangeSet) -> Vec<Run> {
        let mut forgotten = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            let own = RangeSet::from(control::range(run.start, run.length));
            let gone = ranges.clipped(control::range(run.start, run.length));
            let kept = own.difference(&gone);
            if let Some(left) = self.left_by_pair.get_mut(&run.source()) {
                *left = left.saturating_sub(gone.len_bytes());
            }
            forgotten.extend(parts_of(&run, &gone));
            self.runs.extend(parts_of(&run, &kept));
        }
        forgotten
    }

    /// Its own copy has had these bytes from the start: it wants them no more. Returns how many it did want.
    pub fn have(&mut self, ranges: &RangeSet) -> u64 {
        let ranges = ranges.intersection(&self.wants);
        self.wants = self.wants.difference(&ranges);
        self.forfeited = self.forfeited.difference(&ranges);
        self.forget(&ranges);
        ranges.len_bytes()
    }

    /// Counts what a node says of its own copy.
    pub fn count_present(&mut self, present: &Present) {
        let add = |count: &mut u64, more: u64| *count = count.saturating_add(more);
        add(&mut self.present_files, present.files);
        add(&mut self.passed_files, present.passed_files);
        add(&mut self.passed_bytes, present.passed_bytes);
        let refused = control::range_set(&present.refused).len_bytes();
        add(&mut self.refused_bytes, refused);
        add(&mut self.taken_bytes, present.taken_bytes);
        self.note_wrong(present);
    }

    /// Notes files that a node has found wrong.
    pub fn note_wrong(&mut self, present: &Present) {
        let space = WRONG_MAX.saturating_sub(self.wrong.len());
        let more = present.wrong.len().saturating_sub(space) as u64;
        let noted = present.wrong.iter().take(space).cloned();
        self.wrong.extend(noted);
        let more = more.saturating_add(present.wrong_more);
        self.wrong_more = self.wrong_more.saturating_add(more);
    }

    /// No plan has these ranges any more.
    pub fn forfeit(&mut self, ranges: &RangeSet) {
        let asked = RangeSet::from_ranges(self.asked());
        self.forfeited = self.forfeited.union(&ranges.difference(&asked));
    }

    /// Bytes that the plan asks of it, and those that it never gets.
    pub fn assigned_bytes(&self) -> u64 {
        let runs = self.runs.iter().map(|run| run.length);
        runs.fold(self.forfeited.len_bytes(), u64::saturating_add)
    }

    /// What the plan asks of it, run by run.
    pub fn asked(&self) -> impl Iterator<Item = Range> + '_ {
        self.runs
            .iter()
            .map(|run| control::range(run.start, run.length))
    }

    /// What the plan asks of it, and what it never gets.
    pub fn assigned(&self) -> RangeSet {
        RangeSet::from_ranges(self.asked().chain(self.forfeited.iter()))
    }
}
