//! The copies that are wanted, stretch by stretch, and which receivers can make more of them.

use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::Range;

use crate::side::Carrier;
use crate::sides::copies_wanted;

/// Whether a receiver hands on what it has.
pub(crate) fn hands_on(problem: &Problem, receiver: usize) -> bool {
    let receiver = &problem.receivers[receiver];
    receiver.down > 0 && receiver.relay_up.unwrap_or(0) > 0
}

/// For each destination the receiver that takes all of it and hands it on; `None` where several share it, as
/// each of them has a part only.
pub(crate) fn own_relays(problem: &Problem, destinations: &[Destination]) -> Vec<Option<usize>> {
    let of = |destination: &Destination| {
        let nodes = destination.receivers.iter().copied();
        let mut alive = nodes.filter(|&r| problem.receivers[r].down > 0);
        let only = alive.next()?;
        (alive.next().is_none() && hands_on(problem, only)).then_some(only)
    };
    destinations.iter().map(of).collect()
}

/// The senders that live.
pub(crate) fn senders(problem: &Problem) -> Vec<Carrier<'_>> {
    let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
    let nodes = alive.map(|(index, sender)| (index, sender.up, &sender.ranges));
    nodes.collect()
}

/// A receiver as a carrier of copies; its position is after those of all senders.
pub(crate) fn relay(problem: &Problem, receiver: usize) -> Carrier<'_> {
    let node = &problem.receivers[receiver];
    let index = problem.senders.len() + receiver;
    (index, node.relay_up.unwrap_or(0), &node.ranges)
}

/// Stretches over which neither wanters nor holders change, with the number of copies wanted, above 0.
///
/// Cost O(rows × log).
pub(crate) fn stretches(problem: &Problem, destinations: &[Destination]) -> Vec<(Range, u64)> {
    let held = problem.senders.iter().filter(|sender| sender.up > 0);
    let held = held.flat_map(|sender| &sender.ranges);
    // What the receivers of one destination list differs from what the destination wants.
    let listed = problem.receivers.iter().filter(|r| r.destination.is_some());
    let listed = listed.flat_map(|receiver| &receiver.ranges);
    let mut cuts: Vec<u64> = held
        .chain(listed)
        .flat_map(|run| [run.start, run.end])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut stretches = Vec::new();
    for (range, copies) in copies_wanted(destinations) {
        let inside = cuts.partition_point(|&cut| cut <= range.start);
        let mut start = range.start;
        for &cut in cuts[inside..].iter().take_while(|&&cut| cut < range.end) {
            stretches.push((Range::new(start, cut), copies));
            start = cut;
        }
        stretches.push((Range::new(start, range.end), copies));
    }
    stretches
}
