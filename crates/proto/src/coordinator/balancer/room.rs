//! What nodes, caps and trunks can carry, as far as is known, and the least time that follows from it.

use std::collections::BTreeMap;

use ropewalk_model::{Problem, add_links};

use super::{Balancer, Member, View};
use crate::coordinator::{Node, SPEED_UNKNOWN};

/// Which speeds, in order, are taken for the same: neighbours that differ by less than one factor, when all of
/// them differ by less than another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike {
    neighbours: f64,
    together: f64,
}

/// Observed speeds.
const ALIKE: Alike = Alike {
    neighbours: 1.15,
    together: 1.4,
};

/// What is left of them, of which much is noise.
pub(super) const ALIKE_ROOM: Alike = Alike {
    neighbours: 1.5,
    together: 3.0,
};

/// What nodes can still carry, for work that is planned anew.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Room {
    /// Bytes per second that each node can still send.
    pub up: Vec<f64>,
    /// And receive.
    pub down: Vec<f64>,
    /// What work that is kept takes of pairs, bytes per second by sender and receiver: not free on their links.
    pub kept: Vec<(u32, u32, f64)>,
}

impl Room {
    /// Adds what caps and trunks have left beside the work that is kept.
    ///
    /// * `senders`, `receivers`: the nodes of the problem, in its order.
    pub fn add_links_left(
        &self,
        view: View<'_>,
        problem: &mut Problem,
        senders: &[u32],
        receivers: &[u32],
    ) {
        add_links(problem, &view.setup.links, |link, pair| {
            let takes = |(sender, receiver, _): &&(u32, u32, f64)| match pair {
                Some((s, r)) => (*sender, *receiver) == (senders[s], receivers[r]),
                None => link.limits(view.name(*sender), view.name(*receiver)),
            };
            let kept: f64 = self.kept.iter().filter(takes).map(|(.., rate)| rate).sum();
            (link.rate.0 as f64 - kept).max(0.0) as u64
        });
    }
}

/// Bytes per second to plan with, for each node: `known`, else the interface's, else as the others of its side.
fn speeds(view: View<'_>, known: impl Fn(usize, &Node) -> Option<f64>) -> Vec<f64> {
    let nodes = || view.nodes.iter().enumerate();
    let (mut sum, mut count) = (0.0, 0);
    for rate in nodes().filter_map(|(at, node)| known(at, node)) {
        sum += rate;
        count += 1;
    }
    let others = match count {
        0 => SPEED_UNKNOWN as f64,
        _ => sum / f64::from(count),
    };
    let speed = |(at, node): (usize, &Node)| {
        let interface = node.opened.as_deref().map_or(0, |o| o.interface_rate);
        known(at, node).unwrap_or(match interface {
            0 => others,
            rate => rate as f64,
        })
    };
    nodes().map(speed).collect()
}

/// Makes speeds of living nodes that cannot be told apart the same, by `alike` factors.
pub(super) fn make_even(view: View<'_>, room: &mut Room, alike: Alike) {
    let up = room.up.iter_mut().zip(view.nodes);
    let down = room.down.iter_mut().zip(view.nodes);
    let up = up.filter(|(_, node)| node.can_send()).map(|(rate, _)| rate);
    let down = down
        .filter(|(_, node)| node.is_receiver())
        .map(|(rate, _)| rate);
    let mut rates: Vec<&mut f64> = up.chain(down).filter(|rate| **rate > 0.0).collect();
    rates.sort_by(|a, b| a.total_cmp(b));
    let mut rest = &mut rates[..];
    while let [first, ..] = rest {
        let most = **first * alike.together;
        let next = |pair: &[&mut f64]| *pair[1] > *pair[0] * alike.neighbours || *pair[1] > most;
        let count = rest
            .windows(2)
            .position(next)
            .map_or(rest.len(), |at| at + 1);
        let (same, others) = rest.split_at_mut(count);
        let mean = same.iter().map(|rate| **rate).sum::<f64>() / count as f64;
        same.iter_mut().for_each(|rate| **rate = mean);
        rest = others;
    }
}

/// Seconds that trunks need for what has to cross them: what is wanted behind one that all senders are before.
fn least_over_trunks(view: View<'_>, members: &[Member]) -> f64 {
    let trunks = view.setup.links.iter().filter(|link| link.trunk.is_some());
    let seconds = trunks.map(|link| {
        if !view.able_senders().all(|n| link.from.holds(view.name(n))) {
            return 0.0;
        }
        let behind = |member: &&Member| {
            link.to.holds(view.name(member.node)) && !view.node(member.node).is_sender()
        };
        let crosses: f64 = members.iter().filter(behind).map(|m| m.left).sum();
        crosses / link.rate.0.max(1) as f64
    });
    seconds.fold(0.0, f64::max)
}

impl Balancer {
    /// All that nodes can carry, as far as is known.
    pub(in crate::coordinator) fn whole_room(&self, view: View<'_>) -> Room {
        let up = |at: usize, node: &Node| self.tracks[at].up.rate().filter(|_| node.is_sender());
        let down = |at: usize, node: &Node| {
            let rate = self.tracks[at].down.rate();
            rate.filter(|_| node.is_receiver())
        };
        Room {
            up: speeds(view, up),
            down: speeds(view, down),
            kept: Vec::new(),
        }
    }

    /// The same with speeds that are equal but for what cannot be told apart made equal: equal nodes make
    /// pairs, where slightly different ones make chains of lanes over all nodes.
    pub(super) fn even_room(&self, view: View<'_>) -> Room {
        let mut room = self.whole_room(view);
        make_even(view, &mut room, ALIKE);
        room
    }

    /// The least time in which what is left could come, if any holder had it all: never more than the truth.
    pub(super) fn least_seconds(&self, view: View<'_>, members: &[Member]) -> f64 {
        let room = self.whole_room(view);
        let up: f64 = view.able_senders().map(|n| room.up[n as usize]).sum();
        let left: f64 = members.iter().map(|member| member.left).sum();
        let limit = view.setup.limit.map_or(f64::MAX, |limit| limit.0 as f64);
        let mut groups: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        let mut least = least_over_trunks(view, members);
        least = least.max(left / up.min(limit).max(1.0));
        for member in members {
            let down = room.down[member.node as usize].max(1.0);
            match view.node(member.node).group {
                Some(group) => {
                    let sums = groups.entry(group).or_default();
                    *sums = (sums.0 + member.left, sums.1 + down);
                }
                None => least = least.max(member.left / down),
            }
        }
        let shared = groups.into_values().map(|(left, down)| left / down);
        shared.fold(least, f64::max)
    }
}
