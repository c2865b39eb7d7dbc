//! Which nodes take over when a node, or a node's holding, is gone.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Nanos, RangeSet};

use super::Coordinator;
use super::life::NodeLife;
use super::phase::Phase;
use crate::control::{self, Need, to_agent};
use crate::report::ErrorKind;

/// Different refusals of a node that are remembered, each with its reason.
const REFUSALS_MAX: usize = 64;

/// The reason of all further ones.
const OTHER_REASONS: &str = "other reasons";

impl Coordinator {
    pub(super) fn handle_need(&mut self, node: u32, need: &Need) {
        if !self.is_able(node) {
            return;
        }
        // The receiver could not reach these; others may. Nobody is declared dead on one word,
        // but this receiver is not sent to them again.
        let count = self.nodes.len() as u32;
        let lost = need.lost.iter().copied().filter(|lost| *lost < count);
        let excluded: BTreeSet<u32> = lost.collect();
        let wanted = control::range_set(&need.ranges);
        let wanted = wanted.intersection(&self.nodes[node as usize].assigned());
        for &sender in &excluded {
            let failed = wanted.intersection(&self.nodes[sender as usize].holds);
            if !failed.is_empty() {
                let known = &mut self.nodes[node as usize].failed_from;
                let known = known.entry(sender).or_default();
                *known = known.union(&failed);
            }
        }
        if !need.reason.is_empty() {
            let known = &mut self.nodes[node as usize].refusals;
            let is_known = known.iter().any(|(_, said)| *said == need.reason);
            let reason = match is_known || known.len() < REFUSALS_MAX {
                true => need.reason.as_str(),
                false => OTHER_REASONS,
            };
            match known.iter_mut().find(|(_, said)| said == reason) {
                Some((ranges, _)) => *ranges = ranges.union(&wanted),
                None => known.push((wanted.clone(), reason.to_owned())),
            }
        }
        self.nodes[node as usize].gave_nothing_at = None;
        let wanted = wanted.difference(&self.pass_on(node, &wanted));
        self.ask_plan(false, vec![(node, wanted)], &excluded, None);
    }

    /// What only senders hold that this node could not get it from goes to others of its destination, who may be able to.
    /// Returns what went to them.
    fn pass_on(&mut self, node: u32, ranges: &RangeSet) -> RangeSet {
        let stuck = self.view().barred(node).intersection(ranges);
        let Some(group) = self.nodes[node as usize].group else {
            return RangeSet::new();
        };
        if stuck.is_empty() {
            return stuck;
        }
        // Those who cannot be sent to the same senders get one plan together.
        let mut heirs: BTreeMap<BTreeSet<u32>, Vec<u32>> = BTreeMap::new();
        for other in self.receivers() {
            let state = &self.nodes[other as usize];
            let is_able = state.is_able() && !state.life().is_leaving();
            if other != node && state.group == Some(group) && is_able {
                let excluded = self.view().failed_senders(other, &stuck);
                heirs.entry(excluded).or_default().push(other);
            }
        }
        let mut open = stuck.clone();
        for (excluded, others) in heirs {
            let able = open.intersection(&self.view().held_without(&excluded));
            let shares = others.into_iter().map(|other| {
                let wants = &self.nodes[other as usize].wants;
                (other, wants.intersection(&able))
            });
            let shares: Vec<(u32, RangeSet)> =
                shares.filter(|(_, share)| !share.is_empty()).collect();
            for (_, share) in &shares {
                open = open.difference(share);
            }
            self.ask_plan(false, shares, &excluded, None);
        }
        let passed = stuck.difference(&open);
        if !passed.is_empty() {
            let unreached = self.names(&self.view().failed_senders(node, &passed));
            let name = self.name(node).to_owned();
            let told = self.refused_words(node, &passed);
            if told.is_empty() {
                self.note_once(format!(
                    "{name} cannot reach {unreached}: others of its destination fetch what it was to get there"
                ));
            }
            for reason in told {
                self.note_once(format!(
                    "{name} was refused by {unreached}: {reason}; others of its destination try"
                ));
            }
            self.nodes[node as usize].forget(&passed);
            self.tell_unavailable(node, &passed);
        }
        passed
    }

    /// What holders said that refused a node some of these ranges.
    fn refused_words(&self, node: u32, ranges: &RangeSet) -> Vec<String> {
        let known = self.nodes[node as usize].refusals.iter();
        let known = known.filter(|(refused, _)| !refused.intersection(ranges).is_empty());
        known.map(|(_, reason)| reason.clone()).collect()
    }

    fn names(&self, nodes: &BTreeSet<u32>) -> String {
        let names: Vec<&str> = nodes.iter().map(|node| self.name(*node)).collect();
        names.join(", ")
    }

    /// A receiver does not wait for these ranges any more.
    fn tell_unavailable(&mut self, node: u32, ranges: &RangeSet) {
        let revision = control::Revision {
            unavailable: control::stretches(ranges),
            lost: self.lost_nodes(),
            ..Default::default()
        };
        self.send(node, to_agent::Body::Revision(revision));
    }

    /// Takes out of `wanted` what none of the senders holds, and tells the receivers to go on without.
    pub(super) fn drop_unheld(&mut self, wanted: &mut Vec<(u32, RangeSet)>, senders: &[u32]) {
        let held = senders
            .iter()
            .flat_map(|&n| self.nodes[n as usize].holds.iter());
        let held = RangeSet::from_ranges(held);
        for (node, ranges) in wanted.iter_mut() {
            let gone = ranges.difference(&held);
            if gone.is_empty() {
                continue;
            }
            *ranges = ranges.difference(&gone);
            let name = self.name(*node).to_owned();
            let unreached = self.names(&self.view().failed_senders(*node, &gone));
            let told = self.refused_words(*node, &gone);
            if told.is_empty() {
                let text = match unreached.is_empty() {
                    true => format!("{name}: no remaining node holds the missing data"),
                    false => format!(
                        "{name} cannot reach {unreached}, and no other node holds what it was to get there"
                    ),
                };
                if !self.out.losses().contains(&text) {
                    self.note_loss(text);
                }
            }
            for reason in told {
                self.note_refusal_once(format!(
                    "{name} was refused by {unreached}, and no other node holds it: {reason}"
                ));
            }
            self.tell_unavailable(*node, &gone);
        }
        wanted.retain(|(_, ranges)| !ranges.is_empty());
    }

    /// Gives the share of a receiver that cannot go on to the others of its destination. False when
    /// there is nobody who could take all of it.
    pub(super) fn hand_over(&mut self, node: u32) -> bool {
        let Some(group) = self.nodes[node as usize].group else {
            return false;
        };
        // No other one can read back what it took over.
        let name = self.groups.name(group);
        if self.looking.decided_by(name) == Some(node) && self.lacks_read_back(name) {
            return false;
        }
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
            if state.group == Some(group) && state.is_able() && !state.life().is_leaving() {
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
            if state.life().is_unfinished() {
                self.send(other, to_agent::Body::Revision(revision.clone()));
            }
        }
    }

    /// A node's connection is gone.
    pub fn handle_lost(&mut self, node: u32, reason: &str, now: Instant) {
        let Some(state) = self.nodes.get_mut(node as usize) else {
            return;
        };
        // After its final report an agent closes the connection.
        let has_ended = matches!(state.life(), NodeLife::Closed(_) | NodeLife::Lost);
        if has_ended || self.phase == Phase::Ended {
            return;
        }
        if state.life().is_opening() && self.phase == Phase::Moving {
            return self.reject(node, reason);
        }
        let commits = state.life().commits() && state.group.is_some();
        state.lose(reason.to_owned());
        state.gone_at.get_or_insert(now);
        let sends = state.is_sender() || self.relays.contains(&node);
        let receiver = state.is_receiver();
        self.streams.forget(node);
        let name = self.name(node).to_owned();
        match self.phase {
            Phase::Looking => match self.looks_without(node) {
                true => self.note_loss(format!("{name} is lost: {reason}")),
                false => self.refuse(format!("{name}: {reason}")),
            },
            Phase::Opening | Phase::Comparing | Phase::Probing | Phase::Planning => {
                self.refuse(format!("{name}: {reason}"));
            }
            Phase::Moving => {
                self.note_loss(format!("{name} is lost: {reason}"));
                if sends {
                    self.tell_gone(node);
                }
                if receiver && self.nodes[node as usize].done.is_none() {
                    self.clock.note_done(node, Nanos::ZERO, now);
                    if !self.hand_over(node) {
                        self.fail(ErrorKind::Lost, format!("{name}: {reason}"));
                    }
                }
                self.balancer.look_soon();
                self.share_released(now);
                self.check_done();
            }
            Phase::Finishing | Phase::Ended => {
                // Whether it renamed its files is not known: the next one sees. Of the others only statistics are lost.
                match commits {
                    true => self.handle_named(node, reason),
                    false => self.note(format!(
                        "{name} disconnected before its final report: {reason}"
                    )),
                }
                self.check_finished();
            }
        }
    }
}
