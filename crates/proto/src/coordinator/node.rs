//! One node as its master sees it.

use std::collections::BTreeMap;

use ropewalk_model::{Range, RangeSet};

use super::arrivals::Arrivals;
use super::{NodeSetup, observe};
use crate::control::{self, Done, Finished, Opened, Run};

#[derive(Debug)]
pub(super) struct Node {
    pub setup: NodeSetup,
    pub opened: Option<Box<Opened>>,
    // What it opened, while it is asked whether it may join.
    pub pending: Option<Box<Opened>>,
    pub lost: Option<String>,
    pub heard_ns: u64,
    pub holds: RangeSet,
    pub wants: RangeSet,
    pub runs: Vec<Run>,
    pub delivered: u64,
    pub checked: u64,
    pub sent_by_pair: BTreeMap<u32, u64>,
    // What it has still to get from each sender: as it last told, and as changed since.
    pub left_by_pair: BTreeMap<u32, u64>,
    pub done: Option<Box<Done>>,
    pub finished: Option<Box<Finished>>,
    pub finish_sent: bool,
    // It was told to give the files of its destination their names, maybe after another one began to.
    pub told_commit: bool,
    pub names_again: bool,
    // It was told to remove what it has written, which may take long.
    pub told_discard: bool,
    // Where it has said that its temporary files are.
    pub temporary: Vec<String>,
    // What others refused it, and their words.
    pub refusals: Vec<(RangeSet, String)>,
    // What it could not get from whom.
    pub failed_from: BTreeMap<u32, RangeSet>,
    // Revisions with runs sent so far; an older Done speaks of less than is now asked.
    pub revision: u32,
    // Checked bytes, and when, at the first status while moving and at the newest one.
    pub first_seen: Option<(u64, u64)>,
    pub last_seen: (u64, u64),
    pub observed: observe::Observed,
    // What came to it, and what others had from it, of late; and all of the latter.
    pub received: Arrivals,
    pub sent: Arrivals,
    pub sent_bytes: u64,
    // When it joined, and when it was gone; `None`: it was there from the start, or to the end.
    pub came_ns: Option<u64>,
    pub gone_ns: Option<u64>,
    // What it can send and receive at most.
    pub up: observe::Estimate,
    pub down: observe::Estimate,
    // The destination it shares with others, a position in `groups`.
    pub group: Option<u32>,
    // When it was last given work.
    pub given_ns: u64,
    // Bytes per second it is held back to, 0 = it is not.
    pub held: f64,
    // It came while bytes moved.
    pub joined: bool,
    // It joined and its plan comes with its first runs.
    pub awaits_plan: bool,
    // It is to do nothing new.
    pub leaving: bool,
    // It was asked to give up ranges and has not answered.
    pub releasing: bool,
    // When it gave nothing though asked, for the last time.
    pub gave_nothing_ns: Option<u64>,
}

impl Node {
    /// What it said when it gave files their names: by itself, or on the master's word.
    pub fn landed(&self) -> Option<&control::Landed> {
        let finished = self
            .finished
            .as_ref()
            .and_then(|finished| finished.landed.as_ref());
        finished.or(self.done.as_deref().and_then(|done| done.landed.as_ref()))
    }

    pub fn new(setup: NodeSetup, now_ns: u64) -> Self {
        Self {
            setup,
            opened: None,
            pending: None,
            lost: None,
            heard_ns: now_ns,
            holds: RangeSet::new(),
            wants: RangeSet::new(),
            runs: Vec::new(),
            delivered: 0,
            checked: 0,
            sent_by_pair: BTreeMap::new(),
            left_by_pair: BTreeMap::new(),
            done: None,
            finished: None,
            finish_sent: false,
            told_commit: false,
            names_again: false,
            told_discard: false,
            temporary: Vec::new(),
            refusals: Vec::new(),
            failed_from: BTreeMap::new(),
            revision: 0,
            first_seen: None,
            last_seen: (0, now_ns),
            observed: observe::Observed::default(),
            received: Arrivals::default(),
            sent: Arrivals::default(),
            sent_bytes: 0,
            came_ns: None,
            gone_ns: None,
            up: observe::Estimate::default(),
            down: observe::Estimate::default(),
            group: None,
            given_ns: 0,
            held: 0.0,
            joined: false,
            awaits_plan: false,
            leaving: false,
            releasing: false,
            gave_nothing_ns: None,
        }
    }
    pub fn is_sender(&self) -> bool {
        !self.setup.sources.is_empty()
    }
    pub fn is_receiver(&self) -> bool {
        !self.setup.sinks.is_empty()
    }
    pub fn alive(&self) -> bool {
        self.lost.is_none()
    }
    /// Whether the agent opened what it was asked to, source by source; in words when it did not.
    pub fn check_opened(&self, opened: &Opened) -> Result<(), String> {
        let (asked, answered) = (self.setup.sources.len(), opened.sources.len());
        match asked == answered {
            true => Ok(()),
            false => Err(format!(
                "it opened {answered} sources where {asked} were asked for; install the same Ropewalk on all hosts"
            )),
        }
    }
    /// Whether it may be asked for bytes.
    pub fn can_send(&self) -> bool {
        self.is_sender() && self.alive() && !self.leaving && self.opened.is_some()
    }
    /// Asks it for runs, beside what it has.
    pub fn give(&mut self, runs: Vec<Run>) {
        for run in &runs {
            let left = self.left_by_pair.entry(run.sender).or_default();
            *left = left.saturating_add(run.length);
        }
        self.runs.extend(runs);
    }
    /// Bytes that the plan asks of it.
    pub fn assigned_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.length).sum()
    }
    /// What the plan asks of it, run by run.
    pub fn asked(&self) -> impl Iterator<Item = Range> + '_ {
        self.runs
            .iter()
            .map(|run| control::range(run.start, run.length))
    }
    /// What the plan asks of it.
    pub fn assigned(&self) -> RangeSet {
        RangeSet::from_ranges(self.asked())
    }
}
