//! The sides of a problem in which only node speeds count.
//!
//! Rates from each sender into a stretch and out of it to each receiver join to rates of pairs, so the two
//! sides part; and receivers part by destination.

use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::Range;
use ropewalk_model::schedule::{Assignment, Schedule};

use crate::layout::{Piece, Scratch, lay, overlay, whole};
use crate::newton::Amounts;
use crate::side::Side;

/// All senders that live, with the bytes wanted from them.
pub(crate) fn sender_side(problem: &Problem, destinations: &[Destination]) -> Side {
    let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
    let nodes = alive.map(|(index, sender)| (index, sender.up, &sender.ranges));
    Side::new(nodes, &copies_wanted(destinations))
}

/// The receivers that can take a destination's bytes.
pub(crate) enum Takers {
    /// One receiver takes all; `None` when none lives.
    One(Option<usize>),
    /// They share it.
    Shared(Side),
}

pub(crate) fn takers(problem: &Problem, destination: &Destination) -> Takers {
    let all = destination.receivers.iter().copied();
    let alive: Vec<usize> = all.filter(|&r| problem.receivers[r].down > 0).collect();
    if let [] | [_] = alive.as_slice() {
        return Takers::One(alive.first().copied());
    }
    let nodes = alive.iter().map(|&index| {
        let receiver = &problem.receivers[index];
        (index, receiver.down, &receiver.ranges)
    });
    let wanted = destination.wanted.iter().map(|range| (range, 1));
    Takers::Shared(Side::new(nodes, &wanted.collect::<Vec<_>>()))
}

/// A plan in which each side carries what `split` says of it, and a bound in seconds.
///
/// * `trunk`: one that every pair crosses.
/// * `split`: who carries how much of each atom, and seconds that no shares of this side can beat.
///
/// Everything wanted can be had, and no pair is closed.
pub(crate) fn plan_sides(
    problem: &Problem,
    trunk: Option<usize>,
    mut split: impl FnMut(&Side) -> (Amounts, f64),
) -> (Schedule, f64) {
    let destinations = problem.destinations();
    let nodes = problem.senders.len().max(problem.receivers.len());
    let mut scratch = Scratch::new(nodes);
    let side = sender_side(problem, &destinations);
    let all = side.bytes();
    let wanted: Vec<_> = destinations.iter().map(|d| &d.wanted).collect();
    let (amounts, mut bound) = split(&side);
    let senders = lay(&side, amounts, &wanted, &mut scratch);
    drop(side);
    if let Some(trunk) = trunk.filter(|_| all > 0) {
        bound = bound.max(all as f64 / problem.trunks[trunk].cap as f64);
    }
    let mut assignments: Vec<Assignment> = Vec::new();
    for (destination, senders) in destinations.iter().zip(senders) {
        let receivers: Vec<Piece> = match takers(problem, destination) {
            Takers::One(None) => continue,
            Takers::One(Some(receiver)) => {
                let bytes = destination.wanted.len_bytes() as f64;
                bound = bound.max(bytes / problem.receivers[receiver].down as f64);
                whole(destination, receiver)
            }
            Takers::Shared(side) => {
                let (amounts, least) = split(&side);
                bound = bound.max(least);
                lay(&side, amounts, &[&destination.wanted], &mut scratch).swap_remove(0)
            }
        };
        overlay(&senders, &receivers, &mut assignments);
    }
    (Schedule::from_assignments(assignments), bound)
}

/// How many destinations want each byte, as ordered ranges with a count above 0.
pub(crate) fn copies_wanted(destinations: &[Destination]) -> Vec<(Range, u64)> {
    let mut events: Vec<(u64, i64)> = Vec::new();
    for run in destinations.iter().flat_map(|d| &d.wanted) {
        events.extend([(run.start, 1), (run.end, -1)]);
    }
    events.sort_unstable();
    let mut copies = 0_i64;
    let mut ranges: Vec<(Range, u64)> = Vec::new();
    let mut start = 0;
    for (offset, change) in events {
        if copies > 0 && start < offset {
            ranges.push((Range::new(start, offset), copies.unsigned_abs()));
        }
        copies += change;
        start = offset;
    }
    ranges
}
