//! Who could do something for receivers that would be late.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::{Coordinator, Member};
use crate::control::{self, Run};

/// A node that is busy for less than this part of the time left can help.
const HELPS: f64 = 0.95;

/// What nodes with room hold, and want by destination; and who could take more than it gets.
pub(super) struct Help {
    holds: RangeSet,
    wants: BTreeMap<u32, RangeSet>,
    hungry: BTreeSet<u32>,
}

impl Coordinator {
    /// Who has room, when all should be done after so many seconds.
    pub(super) fn help(&self, members: &[Member], seconds: f64) -> Help {
        let room = self.whole_room();
        let mut load = vec![0.0; self.nodes.len()];
        let mut wants: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
        let mut hungry = BTreeSet::new();
        for member in members {
            let node = &self.nodes[member.node as usize];
            for (sender, left) in self.left_by_sender(member) {
                if let Some(load) = load.get_mut(sender as usize) {
                    *load += left;
                }
            }
            let down = room.down[member.node as usize] * HELPS;
            if member.speed() < down {
                hungry.insert(member.node);
            }
            if let Some(group) = node.group.filter(|_| member.left < down * seconds) {
                wants.entry(group).or_default().extend(node.wants.iter());
            }
        }
        let helps = |node: &u32| {
            let at = *node as usize;
            self.nodes[at].can_send() && load[at] < room.up[at] * HELPS * seconds
        };
        let holds = self.senders().filter(helps);
        let holds = holds.flat_map(|node| self.nodes[node as usize].holds.iter());
        let to_set = |(group, ranges)| (group, RangeSet::from_ranges(ranges));
        Help {
            hungry,
            holds: RangeSet::from_ranges(holds),
            wants: wants.into_iter().map(to_set).collect(),
        }
    }

    /// What a receiver has still to get from each sender, at most: its part of what is left as planned, and what is
    /// planned less what has come. Lanes without work take some of others', so neither is exact.
    fn left_by_sender(&self, member: &Member) -> BTreeMap<u32, f64> {
        let node = &self.nodes[member.node as usize];
        let mut left: BTreeMap<u32, f64> = BTreeMap::new();
        for run in &node.runs {
            *left.entry(run.sender).or_default() += run.length as f64;
        }
        let part = member.left / (node.assigned_bytes().max(1) as f64);
        let planned: Vec<f64> = left.values().map(|left| left * part).collect();
        for (sender, come) in node.observed.come_by_pair() {
            if let Some(left) = left.get_mut(&sender) {
                *left = (*left - come as f64).max(0.0);
            }
        }
        // What has come is safe a while later.
        let factor = member.left / left.values().sum::<f64>().max(1.0);
        for (left, planned) in left.values_mut().zip(planned) {
            *left = (*left * factor).min(planned);
        }
        left
    }

    /// About how much of a receiver's work others could do.
    pub(super) fn takeable(&self, member: &Member, help: &Help) -> u64 {
        let node = &self.nodes[member.node as usize];
        let shared = node.group.filter(|_| !help.hungry.contains(&member.node));
        let wants = shared.map(|group| help.wants.get(&group));
        let takeable = |run: &Run| {
            let held = help.holds.clipped(control::range(run.start, run.length));
            match wants {
                None => held.len_bytes(),
                Some(None) => 0,
                Some(Some(wants)) => held
                    .iter()
                    .map(|part| wants.clipped(part).len_bytes())
                    .sum(),
            }
        };
        let bytes: u128 = node.runs.iter().map(|run| u128::from(takeable(run))).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
