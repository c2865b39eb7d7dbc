//! Which receivers exchange bytes: all that want the same, or groups of them where that would be too many lanes.

use std::cmp::Reverse;
use std::sync::Arc;

use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::Range;

/// Fellow receivers that a receiver exchanges bytes with at most; in groups more, where its uplink is many times those of others.
///
/// A lane has a thread and a window on both nodes; at 64 of 1 Gbit/s altogether a unit of 1 MiB takes half a second.
pub const LANES_PER_NODE_MAX: usize = 64;

/// Members of a group where groups are needed; the lanes left go to other groups.
const GROUP_MAX: usize = 48;

/// Wanted bytes, and the destinations that want them.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    pub range: Range,
    /// Positions of destinations, ascending. Shared between stretches with equal sets.
    pub wanters: Arc<[usize]>,
}

/// Who exchanges bytes with whom.
#[derive(Debug)]
pub(crate) struct Clusters {
    /// For each destination, its cluster; bytes pass from receiver to receiver within one.
    pub of: Vec<u32>,
    /// For each cluster its groups of destinations. Members of several groups want the same bytes, are in the order
    /// of their uplinks, and those of one place are about equally fast in all groups.
    pub groups: Vec<Vec<Vec<usize>>>,
}

impl Clusters {
    /// All of a site in one group.
    ///
    /// * `sites`: for each destination its site.
    pub(crate) fn one(sites: &[usize]) -> Self {
        let mut clusters = Self {
            of: vec![0; sites.len()],
            groups: Vec::new(),
        };
        let last = sites.iter().copied().max().unwrap_or(0);
        for site in 0..=last {
            let own = (0..sites.len()).filter(|&destination| sites[destination] == site);
            clusters.add(vec![own.collect()]);
        }
        clusters
    }

    /// Groups.
    ///
    /// * `relays`: for each destination the receiver that hands on, if any.
    /// * `sites`: for each destination its site; no group has members of two.
    ///
    /// Receivers that want the same bytes stay together, in groups of about [`GROUP_MAX`]; others are joined in
    /// order of what they want, as far as one group holds them. Cost O(destinations × log).
    pub(crate) fn new(
        problem: &Problem,
        destinations: &[Destination],
        relays: &[Option<usize>],
        sites: &[usize],
    ) -> Self {
        let uplink = |destination: usize| {
            let speed = relays[destination].map(|r| problem.receivers[r].relay_up.unwrap_or(0));
            speed.unwrap_or(0)
        };
        let wanted = |destination: usize| destinations[destination].wanted.as_slice();
        let mut order: Vec<usize> = (0..destinations.len()).collect();
        order.sort_by(|&a, &b| {
            let key = |d: usize| (Reverse(uplink(d)), d);
            let family = |d: usize| (sites[d], wanted(d));
            family(a).cmp(&family(b)).then(key(a).cmp(&key(b)))
        });
        let mut clusters = Self {
            of: vec![0; destinations.len()],
            groups: Vec::new(),
        };
        let mut mixed: Vec<usize> = Vec::new();
        for family in order.chunk_by(|&a, &b| sites[a] == sites[b] && wanted(a) == wanted(b)) {
            if mixed
                .first()
                .is_some_and(|&other| sites[other] != sites[family[0]])
            {
                clusters.add(vec![std::mem::take(&mut mixed)]);
            }
            if family.len() > GROUP_MAX {
                clusters.add(dealt(family));
                continue;
            }
            if mixed.len() + family.len() > GROUP_MAX {
                clusters.add(vec![std::mem::take(&mut mixed)]);
            }
            mixed.extend(family);
        }
        clusters.add(vec![mixed]);
        clusters
    }

    fn add(&mut self, groups: Vec<Vec<usize>>) {
        for &destination in groups.iter().flatten() {
            self.of[destination] = self.groups.len() as u32;
        }
        self.groups.push(groups);
    }

    /// The wanters of a stretch, cluster by cluster.
    pub(crate) fn split(&self, wanters: &[usize]) -> Vec<(u32, Vec<usize>)> {
        let mut sorted: Vec<usize> = wanters.to_vec();
        sorted.sort_by_key(|&destination| (self.of[destination], destination));
        let of = |destination: usize| self.of[destination];
        let parts = sorted.chunk_by(|&a, &b| of(a) == of(b));
        parts.map(|part| (of(part[0]), part.to_vec())).collect()
    }
}

/// Deals destinations, fastest uplinks first, to groups of nearly equal size.
fn dealt(family: &[usize]) -> Vec<Vec<usize>> {
    let count = family.len().div_ceil(GROUP_MAX);
    let mut groups = vec![Vec::new(); count];
    for (rank, &destination) in family.iter().enumerate() {
        groups[rank % count].push(destination);
    }
    groups
}
