//! Which nodes could do something for receivers that would be late.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::foresee::Foresight;
use super::{Balancer, Member, View};
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

impl Balancer {
    /// Which nodes have room, when all should be done after so many seconds.
    pub(super) fn help(
        &self,
        view: View<'_>,
        members: &[Member],
        foresight: &Foresight,
        seconds: f64,
    ) -> Help {
        let room = self.whole_room(view);
        let mut wants: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
        let mut overloaded = BTreeSet::new();
        for member in members {
            let node = view.node(member.node);
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
            view.nodes[at].can_send()
                && room.up[at] > 0.0
                && foresight.load_seconds(*node) < HELPS * seconds
        };
        let holds = view.senders().filter(helps);
        let holds = holds.flat_map(|node| view.node(node).holds.iter());
        let to_set = |(group, ranges)| (group, RangeSet::from_ranges(ranges));
        Help {
            overloaded,
            holds: RangeSet::from_ranges(holds),
            wants: wants.into_iter().map(to_set).collect(),
        }
    }
}

impl Help {
    /// About how much of a receiver's work others could do: other senders; and where it has more than it can take other
    /// receivers of its destination, over whatever lanes.
    pub(super) fn takeable(&self, view: View<'_>, member: &Member) -> u64 {
        let node = view.node(member.node);
        let group = node
            .group
            .filter(|_| self.overloaded.contains(&member.node));
        let wants = group.and_then(|group| self.wants.get(&group));
        let takeable = |run: &Run| {
            let own = control::range(run.start, run.length);
            let held = self.holds.clipped(own);
            match wants {
                Some(wants) => held.union(&wants.clipped(own)).len_bytes(),
                None => held.len_bytes(),
            }
        };
        let bytes: u128 = node.runs.iter().map(|run| u128::from(takeable(run))).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
