//! Contents of replicas: who is told to compare them, and what becomes of the transfer where they differ.

use ropewalk_model::RangeSet;

use super::Coordinator;
use crate::control::{self, to_agent};
use crate::participant::Compare;
use crate::report::{Outcome, ReplicasReport};

/// What is compared at a level of verification, as agents are told it.
#[must_use]
pub fn compare(verify: u32) -> Compare {
    match verify {
        // There are no hashes of units.
        0 | 1 => Compare::Nothing,
        4 => Compare::Whole,
        _ => Compare::Sample,
    }
}

impl Coordinator {
    fn is_compared_whole(&self) -> bool {
        compare(self.setup.options.verify) == Compare::Whole
    }

    /// Who holds what of all that a receiver wants, where every holder is to be asked.
    pub(super) fn holdings_for(&self, receiver: u32) -> Vec<control::Holding> {
        if !self.is_compared_whole() {
            return Vec::new();
        }
        let wants = &self.nodes[receiver as usize].wants;
        let able = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        able.filter_map(|node| self.holding(node, wants)).collect()
    }

    fn holding(&self, node: u32, wants: &RangeSet) -> Option<control::Holding> {
        let ranges = self.nodes[node as usize].holds.intersection(wants);
        (!ranges.is_empty()).then(|| control::Holding {
            node,
            ranges: control::stretches(&ranges),
        })
    }

    /// A holder joined: receivers that are at work compare it, too.
    pub(super) fn tell_holding(&mut self, node: u32) {
        if !self.is_compared_whole() || !self.nodes[node as usize].is_sender() {
            return;
        }
        for receiver in self.receivers().collect::<Vec<_>>() {
            let state = &self.nodes[receiver as usize];
            let at_work = receiver != node && state.alive() && state.done.is_none();
            let Some(holding) = self.holding(node, &state.wants).filter(|_| at_work) else {
                continue;
            };
            let revision = control::Revision {
                peers: vec![self.peer(node)],
                holdings: vec![holding],
                ..control::Revision::default()
            };
            self.send(receiver, to_agent::Body::Revision(revision));
        }
    }

    /// A receiver found that replicas differ: nobody knows which bytes are right, so the whole transfer ends, and what has no
    /// name yet gets none.
    pub(super) fn end_differing(&mut self, error: &str) {
        let has_names = |node: u32| {
            let done = self.nodes[node as usize].done.as_ref();
            done.is_some_and(|done| done.committed)
        };
        let named: Vec<&str> = self
            .receivers()
            .filter(|&node| has_names(node))
            .map(|node| self.name(node))
            .collect();
        let text = match named.is_empty() {
            true => error.to_owned(),
            false => format!(
                "{error}. The copies of {} were complete before and have their names: check them, too",
                named.join(", ")
            ),
        };
        self.end(Outcome::Failed, Some(text));
    }

    /// What was compared; `None` where no byte that anybody wants has two holders.
    #[must_use]
    pub fn replicas(&self) -> Option<ReplicasReport> {
        let wants = self.receivers().map(|n| &self.nodes[n as usize].wants);
        let wants = RangeSet::from_ranges(wants.flat_map(RangeSet::iter));
        let mut all = RangeSet::new();
        let mut is_held_twice = false;
        for node in self.senders() {
            let held = self.nodes[node as usize].holds.intersection(&wants);
            is_held_twice |= !held.intersection(&all).is_empty();
            all = all.union(&held);
            if is_held_twice {
                break;
            }
        }
        if !is_held_twice {
            return None;
        }
        let mut report = ReplicasReport {
            compared: match compare(self.setup.options.verify) {
                Compare::Nothing => "no",
                Compare::Sample => "sample",
                Compare::Whole => "whole",
            }
            .into(),
            ..ReplicasReport::default()
        };
        for done in self.nodes.iter().filter_map(|node| node.done.as_ref()) {
            report.units += done.units;
            report.compared_units += done.compared_units;
            report.compared_bytes += done.compared_bytes;
        }
        Some(report)
    }
}
