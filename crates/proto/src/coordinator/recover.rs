//! Who takes over when a node, or a node's holding, is gone.

use std::collections::BTreeSet;

use ropewalk_model::RangeSet;

use super::{Coordinator, Phase, describe};
use crate::control::{self, Need, to_agent};

impl Coordinator {
    pub(super) fn handle_need(&mut self, node: u32, need: &Need) {
        if !self.is_able(node) {
            return;
        }
        // The receiver could not reach these; others may. Nobody is declared dead on one word,
        // but this receiver is not sent to them again.
        let excluded: BTreeSet<u32> = need.lost.iter().copied().collect();
        self.nodes[node as usize].gave_nothing_ns = None;
        let wanted = vec![(node, control::range_set(&need.ranges))];
        self.ask_plan(false, wanted, &excluded, None);
    }

    /// Takes out of `wanted` what none of the senders holds, and tells the receivers to go on without.
    pub(super) fn drop_unheld(&mut self, wanted: &mut Vec<(u32, RangeSet)>, senders: &[u32]) {
        let mut held = RangeSet::new();
        for sender in senders {
            held = held.union(&self.nodes[*sender as usize].holds);
        }
        for (node, ranges) in wanted.iter_mut() {
            let gone = ranges.difference(&held);
            if gone.is_empty() {
                continue;
            }
            *ranges = ranges.difference(&gone);
            let name = self.name(*node).to_owned();
            self.note(format!(
                "{name}: no holder is left for {} bytes ({})",
                gone.len_bytes(),
                describe(&gone)
            ));
            let all = self.unavailable.entry(*node).or_default();
            *all = all.union(&gone);
            let revision = control::Revision {
                unavailable: control::stretches(&gone),
                lost: self.lost_nodes(),
                ..Default::default()
            };
            self.send(*node, to_agent::Body::Revision(revision));
        }
        wanted.retain(|(_, ranges)| !ranges.is_empty());
    }

    /// Gives the share of a receiver that cannot go on to the others of its destination. False when
    /// there is nobody who could take all of it.
    pub(super) fn hand_over(&mut self, node: u32) -> bool {
        let Some(group) = self.nodes[node as usize].group else {
            return false;
        };
        let assigned = self.nodes[node as usize].assigned();
        if assigned.is_empty() {
            return true;
        }
        // What it wrote is written again: nobody knows how much of it is whole.
        let runs = std::mem::take(&mut self.nodes[node as usize].runs);
        let is_taken = self.give_to_others(group, &assigned);
        if !is_taken {
            self.nodes[node as usize].runs = runs;
        }
        is_taken
    }

    /// Asks for a plan that brings bytes of a shared destination by way of those who can still work. False, and
    /// nothing is asked, when they cannot take all of it.
    pub(super) fn give_to_others(&mut self, group: u32, ranges: &RangeSet) -> bool {
        let mut inherited = RangeSet::new();
        let mut heirs: Vec<(u32, RangeSet)> = Vec::new();
        for other in self.receivers().collect::<Vec<_>>() {
            let state = &self.nodes[other as usize];
            if state.group == Some(group) && self.is_able(other) && !state.leaving {
                let share = state.wants.intersection(ranges);
                if !share.is_empty() {
                    inherited = inherited.union(&share);
                    heirs.push((other, share));
                }
            }
        }
        if heirs.is_empty() || !ranges.difference(&inherited).is_empty() {
            return false;
        }
        self.ask_plan(false, heirs, &BTreeSet::new(), None);
        true
    }

    /// Tells the receivers that are at work that a sender is not to be asked any more.
    pub(super) fn tell_gone(&mut self, sender: u32) {
        let revision = control::Revision {
            lost: vec![sender],
            ..Default::default()
        };
        for other in self.receivers().collect::<Vec<_>>() {
            let state = &self.nodes[other as usize];
            if state.alive() && state.done.is_none() {
                self.send(other, to_agent::Body::Revision(revision.clone()));
            }
        }
    }

    /// A node's connection is gone.
    pub fn handle_lost(&mut self, node: u32, reason: &str, now_ns: u64) {
        let Some(state) = self.nodes.get_mut(node as usize) else {
            return;
        };
        // An agent that said its last word closes the connection.
        if state.lost.is_some() || state.finished.is_some() || self.phase == Phase::Ended {
            return;
        }
        if state.opened.is_none() && self.phase == Phase::Moving {
            return self.turn_away(node, reason);
        }
        state.lost = Some(reason.to_owned());
        let (sender, receiver) = (state.is_sender(), state.is_receiver());
        let had_finished = state.finished.is_some();
        let name = self.name(node).to_owned();
        match self.phase {
            Phase::Opening | Phase::Comparing | Phase::Planning => {
                self.refuse(format!("{name}: {reason}"));
            }
            Phase::Moving => {
                self.note(format!("{name} is lost: {reason}"));
                if sender {
                    self.tell_gone(node);
                }
                if receiver && self.nodes[node as usize].done.is_none() {
                    self.last_done_ns = Some(now_ns);
                    if !self.hand_over(node) {
                        self.failure
                            .get_or_insert_with(|| format!("{name}: {reason}"));
                    }
                }
                self.look_soon();
                self.share_released(now_ns, false);
                self.check_done();
            }
            Phase::Finishing => {
                if !had_finished && receiver {
                    self.failure
                        .get_or_insert_with(|| format!("{name}: {reason}"));
                }
                self.check_finished();
            }
            Phase::Ended => {}
        }
    }
}
