//! Flows to start from, so that augmenting paths have little left to do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::layout::size_step;
use crate::side::Side;
use crate::span_flow::SpanFlow;
use crate::wide::Amount;

/// Members an atom may have on average for [`by_room`] to look at all of them.
const HOLDERS_MEAN_MAX: usize = 8;

/// Fills an empty flow: layer by layer within each stretch, by sweep, or by room where members have many runs and atoms few members.
pub(crate) fn fill<A: Amount>(side: &Side, flow: &mut SpanFlow<'_, A>) {
    if side.is_convex_by_layer() {
        return by_layers(side, flow);
    }
    let limit = HOLDERS_MEAN_MAX * (side.atoms.len() + side.members.len());
    if !side.is_convex() && pairs_up_to(side, limit) <= limit {
        by_room(side, flow);
    } else {
        by_end(side, flow);
    }
}

/// Pairs of a member and an atom it can carry; counting ends above the limit.
fn pairs_up_to(side: &Side, limit: usize) -> usize {
    let mut pairs = 0;
    for member in 0..side.members.len() {
        let spans = side.spans_of(member).iter();
        pairs += spans.map(|(from, to)| (to - from) as usize).sum::<usize>();
        if pairs > limit {
            break;
        }
    }
    pairs
}

/// Last atom of a member in any run, end of this run, slowness, member: who comes first, the smallest.
type Turn = (u32, u32, Reverse<u128>, u32);

/// Atoms in order, each filled by the members that can least wait: those that end soonest.
///
/// Where every member has one run this is a maximum flow (Glover 1967, matching in convex graphs) with
/// contiguous pieces. Without it, chains of overlapping windows need thousands of levels. Cost
/// O(runs × log).
fn by_end<A: Amount>(side: &Side, flow: &mut SpanFlow<'_, A>) {
    let mut opening: Vec<(u32, u32, u32)> = Vec::with_capacity(side.spans_len());
    for member in 0..side.members.len() {
        let spans = side.spans_of(member).iter();
        opening.extend(spans.map(|&(from, to)| (from, to, member as u32)));
    }
    opening.sort_unstable();
    let mut opening = opening.into_iter().peekable();
    // Of those that end together the fastest go first, on both sides: fast nodes meet fast ones.
    let most = side.members.iter().map(|member| member.speed).max();
    let most = u128::from(most.unwrap_or(0));
    let slowness = |member: u32| {
        let speed = u128::from(side.members[member as usize].speed);
        Reverse(size_step(speed, most))
    };
    let mut ready: BinaryHeap<Reverse<Turn>> = BinaryHeap::new();
    for atom in 0..side.atoms.len() {
        while let Some((_, to, member)) = opening.next_if(|run| run.0 as usize <= atom) {
            let last = side.spans_of(member as usize).last();
            let last = last.map_or(to, |span| span.1);
            ready.push(Reverse((last, to, slowness(member), member)));
        }
        while flow.open(atom) > A::default() {
            let Some(&Reverse((_, to, _, member))) = ready.peek() else {
                break;
            };
            let left = flow.left(member as usize);
            if to as usize <= atom || left == A::default() {
                ready.pop();
                continue;
            }
            flow.send(member as usize, atom, left.min(flow.open(atom)));
        }
    }
}

/// A stretch of one layer, with its place among all in offset order.
type Placed = (u64, u32, u32);

/// End of a member's run of bytes, whether it serves other layers too, member: the smallest is first.
type Ending = (u64, bool, u32);

/// Stretches in offset order, of each the first layer first, filled by the members that can least wait: those whose
/// bytes end soonest; of those that end together, members of this layer alone are first.
///
/// Nearly a maximum flow where members have windows: what serves several layers would be worth more. Cost
/// O(atoms × log + runs × log).
fn by_layers<A: Amount>(side: &Side, flow: &mut SpanFlow<'_, A>) {
    let layers = side.layers();
    let mut atoms: Vec<Placed> = Vec::with_capacity(side.atoms.len());
    for (layer, bounds) in layers.windows(2).enumerate() {
        let inside = bounds[0]..bounds[1];
        atoms
            .extend(inside.map(|atom| (side.atoms[atom as usize].range.start, layer as u32, atom)));
    }
    atoms.sort_unstable();
    // First and last byte of each run, whether the member serves other layers, too, and both.
    let mut opening: Vec<(u64, u64, bool, u32, u32)> = Vec::with_capacity(side.spans_len());
    for member in 0..side.members.len() {
        let before = opening.len();
        for &(from, to) in side.spans_of(member) {
            let first = layers.partition_point(|&begin| begin <= from) - 1;
            for (layer, bounds) in layers.windows(2).enumerate().skip(first) {
                let (from, to) = (from.max(bounds[0]), to.min(bounds[1]));
                if from >= to {
                    break;
                }
                let start = side.atoms[from as usize].range.start;
                let end = side.atoms[to as usize - 1].range.end;
                opening.push((start, end, false, layer as u32, member as u32));
            }
        }
        let serves_more = opening.len() > before + 1;
        opening[before..]
            .iter_mut()
            .for_each(|run| run.2 = serves_more);
    }
    opening.sort_unstable();
    let mut opening = opening.into_iter().peekable();
    let mut ready: Vec<BinaryHeap<Reverse<Ending>>> = vec![BinaryHeap::new(); layers.len()];
    for (start, layer, atom) in atoms {
        let atom = atom as usize;
        while let Some((_, end, serves_more, of, member)) = opening.next_if(|run| run.0 <= start) {
            ready[of as usize].push(Reverse((end, serves_more, member)));
        }
        let ready = &mut ready[layer as usize];
        while flow.open(atom) > A::default() {
            let Some(&Reverse((end, _, member))) = ready.peek() else {
                break;
            };
            let left = flow.left(member as usize);
            if end <= start || left == A::default() {
                ready.pop();
                continue;
            }
            flow.send(member as usize, atom, left.min(flow.open(atom)));
        }
    }
}

/// Atoms with the fewest members first, each filled by the members with the most room left.
///
/// Blocks with a few replicas each come out nearly balanced and mostly whole. Cost O(pairs of member and
/// atom × log).
fn by_room<A: Amount>(side: &Side, flow: &mut SpanFlow<'_, A>) {
    let mut first = vec![0_u32; side.atoms.len() + 1];
    for member in 0..side.members.len() {
        for &(from, to) in side.spans_of(member) {
            for atom in from..to {
                first[atom as usize + 1] += 1;
            }
        }
    }
    let mut order: Vec<u32> = (0..side.atoms.len() as u32).collect();
    order.sort_by_key(|&atom| first[atom as usize + 1]);
    for atom in 0..side.atoms.len() {
        first[atom + 1] += first[atom];
    }
    let mut next = first.clone();
    let mut holders = vec![0_u32; first.last().map_or(0, |&pairs| pairs as usize)];
    for member in 0..side.members.len() {
        for &(from, to) in side.spans_of(member) {
            for atom in from..to {
                let at = &mut next[atom as usize];
                holders[*at as usize] = member as u32;
                *at += 1;
            }
        }
    }
    for atom in order {
        let atom = atom as usize;
        let own = &mut holders[first[atom] as usize..first[atom + 1] as usize];
        own.sort_by_key(|&member| (Reverse(flow.left(member as usize)), member));
        for &member in own.iter() {
            let amount = flow.left(member as usize).min(flow.open(atom));
            if amount > A::default() {
                flow.send(member as usize, atom, amount);
            }
        }
    }
}
