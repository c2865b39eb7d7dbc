//! Which receivers hand on what they have.
//!
//! Decided with the first plan and kept: receivers find by themselves what others have, and original holders serve what they do not, so
//! no round of the balancer moves work of such a transfer. A receiver that joins fetches from those that do, and becomes one of them. A later plan
//! of another one, for a sender that is lost, is one of original holders.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ropewalk_model::{Range, RangeSet};

use super::{Coordinator, Mapping, Relay};
use crate::control::{self, Run, Verify, range, to_agent};
use crate::mix::mix;

mod deal;
#[cfg(test)]
mod tests;

use deal::{SOURCES_MAX, Source, are_alike, deal};

/// With more receivers than that no relays are planned: plans of mixed wants take seconds beyond it.
const RECEIVERS_MAX: usize = 256;

/// Pieces of what all receivers that hand on want, in equal parts, which a receiver that joins is dealt. Each piece may cut its runs
/// twice, so that its plan grows by some MB at most.
const PIECES_MAX: usize = 1 << 16;

impl Coordinator {
    /// What a receiver can hand on with, bytes per second; `None` where it hands nothing on.
    ///
    /// * `down`: what it can receive, which stands for what is not known: most links are symmetrical.
    pub(super) fn relay_up(&self, node: u32, down: u64) -> Option<u64> {
        if !self.may_relay() || !self.may_hand_on(node) {
            return None;
        }
        Some(self.uplink(node, down))
    }

    fn uplink(&self, node: u32, down: u64) -> u64 {
        let known = self.nodes[node as usize].setup.told_up();
        known.map_or(down, |rate| rate.0)
    }

    /// Whether this transfer is one in which receivers may hand on: units have hashes, streams have frames for it, and work may move.
    pub(super) fn may_relay(&self) -> bool {
        let options = &self.setup.options;
        self.setup.relay == Relay::Auto
            && options.verify() >= Verify::Tree
            && !options.lane().is_of_datagrams()
            && !options.fixed
            && !options.dry_run
            && self.setup.links.iter().all(|link| link.trunk.is_some())
            && self
                .receivers()
                .filter(|node| !self.is_gone(*node))
                .take(RECEIVERS_MAX + 1)
                .count()
                <= RECEIVERS_MAX
    }

    /// It does not take part any more: nothing is sent over its uplink.
    fn is_gone(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        !state.alive() || state.life().is_closing()
    }

    /// Whether a receiver has all that it writes by itself, can read it again, and has an uplink that no other node that takes part
    /// sends over: nodes on one host have one. A host that died may return as another node.
    pub(super) fn may_hand_on(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        let address = |node: &super::Node| {
            let first = node.opened.as_deref()?.addresses.first()?;
            let (host, _) = first.rsplit_once(':')?;
            Some(host.to_owned())
        };
        let Some(own) = address(state) else {
            return false;
        };
        let is_alone = || {
            let others = (0u32..)
                .zip(&self.nodes)
                .filter(|(other, _)| *other != node && !self.is_gone(*other));
            others
                .map(|(_, other)| other)
                .all(|other| address(other).as_ref() != Some(&own))
        };
        state.group.is_none()
            && !state.is_sender()
            && state
                .opened
                .as_deref()
                .is_some_and(|opened| opened.hands_on)
            && is_alone()
    }

    /// Notes which receivers the first plan has hand on, and has each fetch first what it is to hand on.
    pub(super) fn note_relays(&mut self, runs: &mut [(u32, Vec<Run>)]) {
        let all = runs.iter().flat_map(|(_, runs)| runs);
        let relayed = all.filter_map(|run| Some((run.relay?, range(run.start, run.length))));
        let mut handed_on: Vec<(u32, Range)> = relayed.collect();
        if handed_on.is_empty() {
            return;
        }
        self.relays = handed_on
            .iter()
            .map(|(relay, _)| *relay)
            .collect::<BTreeSet<u32>>();
        handed_on.sort_unstable();
        for (node, runs) in runs {
            let from = handed_on.partition_point(|(relay, _)| relay < node);
            let own = handed_on[from..]
                .iter()
                .take_while(|(relay, _)| relay == node);
            let own = RangeSet::from_ranges(own.map(|(_, range)| *range));
            for run in runs {
                let is_awaited = !own.clipped(range(run.start, run.length)).is_empty();
                run.choices = u32::from(!is_awaited);
            }
        }
    }

    /// Work of a receiver that joined, which the plan has original holders send, as work of the receivers that hand on and want it, too.
    pub(super) fn deal_to_relays(&self, node: u32, runs: Vec<Run>) -> Vec<Run> {
        let state = &self.nodes[node as usize];
        if !state.joined || state.group.is_some() || !self.may_relay() {
            return runs;
        }
        let mut sources = self.sources_of(node);
        // Those that joined have little before they are done.
        sources.retain(|source| {
            let state = &self.nodes[source.node as usize];
            !state.joined || state.is_complete()
        });
        if sources.is_empty() {
            return runs;
        }
        // Units of trees begin and end with what was wanted of them.
        let units = (self.unit_len, self.setup.mapping == Mapping::Rows);
        let dealt = deal(&runs, &sources, units, node);
        // The plan was verified before.
        let is_sound = are_alike(&runs, &dealt);
        debug_assert!(is_sound, "{runs:?} are dealt as {dealt:?}");
        if is_sound { dealt } else { runs }
    }

    /// A receiver that joined hands on what it has where others do: those that still lack some of it are notified, the first of many, as
    /// each has lanes to it.
    pub(super) fn join_relays(&mut self, node: u32) {
        // Lanes to those that are gone have ended.
        let staying = self.relays.iter().filter(|relay| self.stays(**relay));
        let is_enough = self.relays.is_empty() || staying.count() >= SOURCES_MAX;
        let wants = &self.nodes[node as usize].wants;
        if is_enough || wants.is_empty() || self.relay_up(node, 1).is_none() {
            return;
        }
        self.relays.insert(node);
        let lacks = |other: &u32| {
            let state = &self.nodes[*other as usize];
            // Those that have no plan yet get to know it with that.
            let works = state.life().is_unfinished() && !state.life().is_before_plan();
            works && *other != node && !state.wants.intersection(wants).is_empty()
        };
        let others = self.receivers().filter(lacks);
        let others: Vec<u32> = others.take(SOURCES_MAX).collect();
        for other in others {
            let revision = control::Revision {
                peers: vec![self.peer_of(other, node)],
                ..control::Revision::default()
            };
            self.send(other, to_agent::Body::Revision(revision));
        }
    }

    /// Receivers that hand on, which one that joined has lanes to.
    pub(super) fn relays_for(&self, node: u32) -> Vec<u32> {
        let state = &self.nodes[node as usize];
        if !state.joined || state.group.is_some() || !self.may_relay() {
            return Vec::new();
        }
        self.sources_of(node)
            .iter()
            .map(|source| source.node)
            .collect()
    }

    /// A receiver that hands on may be fetched from.
    fn stays(&self, relay: u32) -> bool {
        let state = &self.nodes[relay as usize];
        state.is_able() && !state.life().is_leaving()
    }

    /// Receivers that hand on, which one that joined may fetch from: of too many those with the largest uplinks.
    fn sources_of(&self, node: u32) -> Vec<Source> {
        let down = self.balancer.whole_room(self.view()).down;
        let wants = &self.nodes[node as usize].wants;
        let relays = self.relays.iter().copied().filter(|relay| *relay != node);
        let sources = relays.filter_map(|relay| {
            let state = &self.nodes[relay as usize];
            let common = state.wants.union(&state.kept).intersection(wants);
            (self.stays(relay) && !common.is_empty()).then(|| Source {
                node: relay,
                up: self.uplink(relay, down[relay as usize] as u64),
                wants: common,
            })
        });
        let mut sources: Vec<Source> = sources.collect();
        sources.sort_by_key(|source| (Reverse(source.up), source.node));
        sources.truncate(SOURCES_MAX);
        sources.sort_by_key(|source| source.node);
        let pieces_max = PIECES_MAX / sources.len().max(1);
        for source in &mut sources {
            keep_longest(&mut source.wants, pieces_max, node);
        }
        sources
    }
}

/// Keeps so many pieces, those with most bytes; of equal ones each node has others.
fn keep_longest(ranges: &mut RangeSet, pieces_max: usize, node: u32) {
    if ranges.as_slice().len() <= pieces_max {
        return;
    }
    let mut longest = ranges.as_slice().to_vec();
    longest.sort_by_key(|range| (Reverse(range.len()), mix(range.start ^ mix(node.into()))));
    longest.truncate(pieces_max);
    *ranges = RangeSet::from_ranges(longest);
}
