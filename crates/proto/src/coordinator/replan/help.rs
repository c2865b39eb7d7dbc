//! Who could do something for receivers that would be late.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::foresee::Foresight;
use super::{Coordinator, Member};
use crate::control::{self, Run};

/// A node that is busy for less than this part of the time left can help.
const HELPS: f64 = 0.95;

/// What nodes with room hold, and want by destination; and who could take more than it gets.
pub(super) struct Help {
    holds: RangeSet,
    wants: BTreeMap<u32, RangeSet>,
    // Who would not be done in time however much it got.
    overloaded: BTreeSet<u32>,
}

impl Coordinator {
    /// Who has room, when all should be done after so many seconds.
    pub(super) fn help(&self, members: &[Member], foresight: &Foresight, seconds: f64) -> Help {
        let room = self.whole_room();
        let mut wants: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
        let mut overloaded = BTreeSet::new();
        for member in members {
            let node = &self.nodes[member.node as usize];
            let down = room.down[member.node as usize] * HELPS;
            if member.left * HELPS > room.down[member.node as usize] * seconds {
                overloaded.insert(member.node);
            }
            if let Some(group) = node.group.filter(|_| member.left < down * seconds) {
                wants.entry(group).or_default().extend(node.wants.iter());
            }
        }
        let helps = |node: &u32| {
            let at = *node as usize;
            self.nodes[at].can_send()
                && room.up[at] > 0.0
                && foresight.load_seconds(*node) < HELPS * seconds
        };
        let holds = self.senders().filter(helps);
        let holds = holds.flat_map(|node| self.nodes[node as usize].holds.iter());
        let to_set = |(group, ranges)| (group, RangeSet::from_ranges(ranges));
        Help {
            overloaded,
            holds: RangeSet::from_ranges(holds),
            wants: wants.into_iter().map(to_set).collect(),
        }
    }

    /// What two senders or more could send. Cost O(ranges held × log).
    pub(in crate::coordinator) fn held_twice(&self) -> RangeSet {
        let senders = self.senders().map(|node| &self.nodes[node as usize]);
        let ranges = senders
            .filter(|node| node.can_send())
            .flat_map(|node| node.holds.iter());
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

    /// What a receiver has still to get from each sender.
    pub(in crate::coordinator) fn left_by_sender(&self, member: &Member) -> BTreeMap<u32, f64> {
        let able = |sender: u32| {
            self.nodes
                .get(sender as usize)
                .is_some_and(|node| node.can_send())
        };
        let left = self.nodes[member.node as usize].left_by_pair.iter();
        let left = left.filter(|(sender, left)| **left > 0 && able(**sender));
        let mut left: BTreeMap<u32, f64> =
            left.map(|(&sender, &left)| (sender, left as f64)).collect();
        // It told a while ago, and what has come is safe a while later.
        let factor = member.left / left.values().sum::<f64>().max(1.0);
        left.values_mut().for_each(|left| *left *= factor);
        left
    }

    /// About how much of a receiver's work others could do: other senders; and where it has more than it can take other
    /// receivers of its destination, over whatever lanes.
    pub(super) fn takeable(&self, member: &Member, help: &Help) -> u64 {
        let node = &self.nodes[member.node as usize];
        let group = node
            .group
            .filter(|_| help.overloaded.contains(&member.node));
        let wants = group.and_then(|group| help.wants.get(&group));
        let takeable = |run: &Run| {
            let own = control::range(run.start, run.length);
            let held = help.holds.clipped(own);
            match wants {
                Some(wants) => held.union(&wants.clipped(own)).len_bytes(),
                None => held.len_bytes(),
            }
        };
        let bytes: u128 = node.runs.iter().map(|run| u128::from(takeable(run))).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
