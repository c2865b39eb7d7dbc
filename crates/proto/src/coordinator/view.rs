//! The transfer as decisions see it: nothing here changes anything.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::groups::Groups;
use super::{Node, Setup};

/// What the balancer decides by, and what follows from it. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub setup: &'a Setup,
    pub nodes: &'a [Node],
    pub groups: &'a Groups,
    pub unit_len: u64,
    /// When bytes started to flow.
    pub moving_at: Option<Instant>,
    /// The master moves no work while bytes flow, unless a node is gone: the user wants that, or receivers hand on and move it
    /// themselves.
    pub is_fixed: bool,
}

impl<'a> View<'a> {
    pub fn node(self, node: u32) -> &'a Node {
        &self.nodes[node as usize]
    }

    pub fn name(self, node: u32) -> &'a str {
        let node = self.nodes.get(node as usize);
        node.map_or("?", |node| node.setup.name.as_str())
    }

    fn numbers(self) -> impl Iterator<Item = u32> + 'a {
        0..self.nodes.len() as u32
    }

    pub fn receivers(self) -> impl Iterator<Item = u32> + 'a {
        self.numbers().filter(move |&n| self.node(n).is_receiver())
    }

    pub fn senders(self) -> impl Iterator<Item = u32> + 'a {
        self.numbers().filter(move |&n| self.node(n).is_sender())
    }

    /// Senders that may be asked for bytes.
    pub fn able_senders(self) -> impl Iterator<Item = u32> + 'a {
        self.numbers().filter(move |&n| self.node(n).can_send())
    }

    /// Whether a node is there and has not stopped with an error.
    pub fn is_able(self, node: u32) -> bool {
        self.node(node).is_able()
    }

    /// Time since bytes started to flow; 0 before.
    pub fn moving_for(self, now: Instant) -> Nanos {
        now.since(self.moving_at.unwrap_or(now))
    }

    /// Bytes that receivers have checked, each by itself.
    pub fn checked_bytes(self) -> u64 {
        let checked = self.nodes.iter().map(|node| node.checked);
        checked.fold(0, u64::saturating_add)
    }

    /// What living senders hold, but for some of them.
    pub fn held_without(self, excluded: &BTreeSet<u32>) -> RangeSet {
        let holders = self.able_senders().filter(|n| !excluded.contains(n));
        RangeSet::from_ranges(holders.flat_map(|n| self.node(n).holds.iter()))
    }

    /// What two senders or more could send. Cost O(ranges held × log).
    pub fn held_twice(self) -> RangeSet {
        let ranges = self
            .able_senders()
            .flat_map(|node| self.node(node).holds.iter());
        let mut ends: Vec<(u64, bool)> = ranges
            .flat_map(|range| [(range.start, true), (range.end, false)])
            .collect();
        // Where one ends and the next begins nothing is held twice.
        ends.sort_unstable();
        let (mut holders, mut start, mut twice) = (0_u32, 0, Vec::new());
        for (offset, begins) in ends {
            match begins {
                true => holders += 1,
                false => holders -= 1,
            }
            match (begins, holders) {
                (true, 2) => start = offset,
                (false, 1) => twice.push(Range { start, end: offset }),
                _ => {}
            }
        }
        RangeSet::from_ranges(twice)
    }

    /// Whether a plan could give the node's work to another receiver, or take it from another sender. What spares
    /// its runs name does not matter: holders join.
    pub fn has_choice(self, node: u32, held_twice: &RangeSet) -> bool {
        let state = self.node(node);
        let is_held_twice = |range: Range| !held_twice.clipped(range).is_empty();
        state
            .group
            .is_some_and(|group| self.groups.receivers_of(group) > 1)
            || state.asked().any(is_held_twice)
    }

    /// Living senders that a node could not get some of these ranges from.
    pub fn failed_senders(self, node: u32, ranges: &RangeSet) -> BTreeSet<u32> {
        let failed = self.node(node).failed_from.iter();
        let concerns = |failed: &RangeSet| !failed.intersection(ranges).is_empty();
        let failed =
            failed.filter(|(sender, failed)| self.node(**sender).can_send() && concerns(failed));
        failed.map(|(sender, _)| *sender).collect()
    }

    /// What a node cannot get although another node holds it. Empty, and cheap, where all can reach all.
    pub fn barred(self, node: u32) -> RangeSet {
        let failed = &self.node(node).failed_from;
        let living = failed
            .iter()
            .filter(|(sender, _)| self.node(**sender).can_send());
        let barred = RangeSet::from_ranges(living.flat_map(|(_, ranges)| ranges.iter()));
        if barred.is_empty() {
            return barred;
        }
        let mut held = self.held_without(&failed.keys().copied().collect());
        for (&sender, ranges) in failed {
            let state = self.node(sender);
            if state.can_send() {
                held = held.union(&state.holds.difference(ranges));
            }
        }
        barred.difference(&held)
    }
}
