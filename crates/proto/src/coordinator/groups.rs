//! Receivers that share a destination: which nodes, what they want together, what of it is safe.

use std::collections::BTreeMap;

use ropewalk_model::RangeSet;

use super::{Coordinator, Node};
use crate::control::{self, Run};

/// How fast those are that hold a byte is told apart by so many steps.
const HOLDER_LEVELS: u32 = 16;

/// The least count within a run, of counts from an offset on.
fn least_within(counts: &[(u64, u32)], run: &Run) -> Option<u32> {
    let first = counts.partition_point(|(offset, _)| *offset <= run.start);
    let end = run.start.saturating_add(run.length);
    let inside = counts[first.saturating_sub(1)..].iter();
    inside
        .take_while(|(offset, _)| *offset < end)
        .map(|(_, count)| *count)
        .min()
}

/// Shared destinations.
#[derive(Debug, Default)]
pub(super) struct Groups {
    // The name of each and how many receivers it has.
    all: Vec<(String, u32)>,
    // For each of them, from which offset on how many receivers can take a byte.
    takers: Vec<Vec<(u64, u32)>>,
    // How fast holders are together, in levels, from an offset on.
    holders: Vec<(u64, u32)>,
}

impl Groups {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| name.as_str())
    }

    pub fn name(&self, group: u32) -> &str {
        &self.all[group as usize].0
    }

    /// How many receivers it has, or had.
    pub fn receivers_of(&self, group: u32) -> u32 {
        self.all[group as usize].1
    }

    /// Asserts that receivers are counted. Cost O(nodes + ranges).
    pub fn check(&self, nodes: &[Node]) {
        let mut counts = vec![0; self.all.len()];
        for node in nodes {
            if let Some(group) = node.group {
                debug_assert!(
                    (group as usize) < counts.len(),
                    "group {group} is not known"
                );
                counts[group as usize] += 1;
            }
        }
        for ((name, count), counted) in self.all.iter().zip(counts) {
            debug_assert_eq!(*count, counted, "receivers of {name}");
        }
        let is_sorted = |counts: &[(u64, u32)]| counts.is_sorted_by(|a, b| a.0 < b.0);
        debug_assert!(is_sorted(&self.holders), "holders by offset");
        debug_assert!(
            self.takers.iter().all(|takers| is_sorted(takers)),
            "takers by offset"
        );
        // The last range of a destination has an end.
        let mut ends = self.takers.iter().filter_map(|takers| takers.last());
        debug_assert!(ends.all(|end| end.1 == 0), "takers after the end");
    }

    /// One more receiver of a destination of this name. Returns its number.
    pub fn enter(&mut self, name: String) -> u32 {
        let known = self.all.iter().position(|(group, _)| *group == name);
        let group = known.unwrap_or(self.all.len());
        if known.is_none() {
            self.all.push((name, 0));
        }
        self.all[group].1 += 1;
        group as u32
    }

    /// Finds out which receivers share a destination.
    pub fn form(&mut self, nodes: &mut [Node]) {
        let mut known: BTreeMap<String, u32> = BTreeMap::new();
        self.all.clear();
        for node in nodes.iter_mut() {
            let sink = node.setup.sinks.first();
            node.group = sink.and_then(|sink| sink.destination.clone()).map(|name| {
                let next = self.all.len() as u32;
                let group = *known.entry(name.clone()).or_insert(next);
                if group == next {
                    self.all.push((name, 0));
                }
                self.all[group as usize].1 += 1;
                group
            });
        }
        self.count_takers(nodes);
    }

    /// Counts the receivers that can take each byte of shared destinations. Cost O(ranges wanted × log).
    pub fn count_takers(&mut self, nodes: &[Node]) {
        let mut events: Vec<Vec<(u64, i64)>> = vec![Vec::new(); self.all.len()];
        for node in nodes {
            let Some(group) = node.group.filter(|_| node.alive()) else {
                continue;
            };
            for range in node.wants.iter() {
                events[group as usize].extend([(range.start, 1), (range.end, -1)]);
            }
        }
        let counted = events.into_iter().map(|mut events| {
            events.sort_unstable();
            let mut counts: Vec<(u64, u32)> = Vec::new();
            let mut count = 0_i64;
            for (offset, change) in events {
                count += change;
                let able = u32::try_from(count).unwrap_or(0);
                match counts.last_mut().filter(|last| last.0 == offset) {
                    Some(last) => last.1 = able,
                    None => counts.push((offset, able)),
                }
            }
            counts
        });
        self.takers = counted.collect();
    }

    /// Sums up how fast each byte could be sent if nothing else had to be. Cost O(ranges held × log).
    ///
    /// * `up`: what each node can send, bytes per second.
    pub fn count_holders(&mut self, nodes: &[Node], up: Vec<f64>) {
        let mut events: Vec<(u64, f64)> = Vec::new();
        for (node, up) in nodes.iter().zip(up) {
            if node.can_send() {
                let ranges = node.holds.iter();
                events.extend(ranges.flat_map(|range| [(range.start, up), (range.end, -up)]));
            }
        }
        events.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut speeds: Vec<(u64, f64)> = Vec::new();
        let mut speed = 0.0;
        for (offset, change) in events {
            speed += change;
            match speeds.last_mut().filter(|last| last.0 == offset) {
                Some(last) => last.1 = speed,
                None => speeds.push((offset, speed)),
            }
        }
        let most = speeds.iter().map(|(_, speed)| *speed).fold(1.0, f64::max);
        let level = |speed: f64| (speed / most * f64::from(HOLDER_LEVELS)).round() as u32;
        let level = |(offset, speed)| (offset, level(speed).min(HOLDER_LEVELS - 1));
        self.holders = speeds.into_iter().map(level).collect();
    }

    /// How freely a run of a node in `group` could be given to others later: what has few takers and slow holders is
    /// fetched first, so that what is left at the end is what can still move.
    pub fn choices(&self, group: Option<u32>, run: &Run) -> u32 {
        let holders = least_within(&self.holders, run).unwrap_or(0);
        let Some(counts) = group.and_then(|group| self.takers.get(group as usize)) else {
            return holders;
        };
        least_within(counts, run)
            .unwrap_or(1)
            .saturating_mul(HOLDER_LEVELS)
            .saturating_add(holders)
    }
}

impl Coordinator {
    /// The shared destination it writes.
    pub(super) fn destination(&self, node: u32) -> Option<&str> {
        let group = self.nodes[node as usize].group?;
        Some(self.groups.name(group))
    }

    /// Bytes of a shared destination that are safe in it.
    pub(super) fn covered(&self, name: &str) -> RangeSet {
        let mut covered = RangeSet::new();
        for node in &self.nodes {
            let same = node
                .setup
                .sinks
                .first()
                .is_some_and(|s| s.destination.as_deref() == Some(name));
            if let Some(done) = node.done.as_deref().filter(|d| same && d.error.is_empty()) {
                covered = covered.union(
                    &node
                        .assigned()
                        .difference(&control::range_set(&done.missing)),
                );
            }
        }
        covered
    }

    pub(super) fn destination_wants(&self, name: &str) -> RangeSet {
        let members = self.nodes.iter().filter(|n| {
            n.setup
                .sinks
                .first()
                .is_some_and(|s| s.destination.as_deref() == Some(name))
        });
        members.fold(RangeSet::new(), |all, node| all.union(&node.wants))
    }

    pub(super) fn destination_wants_of_others(&self, name: &str, node: u32) -> RangeSet {
        let group = |n: &Node| n.group.map(|group| self.groups.name(group));
        let others = self.nodes.iter().enumerate();
        let others =
            others.filter(|(at, n)| *at != node as usize && group(n).is_some_and(|g| g == name));
        others.fold(RangeSet::new(), |all, (_, n)| all.union(&n.wants))
    }

    pub(super) fn destination_complete(&self, name: &str) -> bool {
        let missing = self.destination_wants(name).difference(&self.covered(name));
        missing.is_empty() && !self.lacks_read_back(name)
    }
}
