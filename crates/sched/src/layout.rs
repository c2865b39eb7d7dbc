//! From bytes a node carries of each atom to the very bytes: a cut of each destination among the nodes.
//!
//! Each side cuts a destination's bytes for itself. Laid over each other the two cuts are a plan: every stretch
//! has one sender that holds it and one receiver that lists it, loads are those of the two flows, and
//! there are at most as many pieces as both sides have.

use std::collections::BTreeSet;

use ropewalk_model::problem::Destination;
use ropewalk_model::range::{Range, RangeSet};
use ropewalk_model::schedule::Assignment;

use crate::newton::Amounts;
use crate::side::Side;

/// Consecutive bytes of one destination that one node carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub range: Range,
    /// Position among the problem's senders or receivers.
    pub node: u32,
}

/// Bytes that nodes have left to give, by node; all 0 between uses.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    left: Vec<u128>,
    goes_on: Vec<bool>,
}

impl Scratch {
    /// For nodes `0..nodes`.
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            left: vec![0; nodes],
            goes_on: vec![false; nodes],
        }
    }
}

/// Cuts the wanted bytes of each destination among the nodes: as many lists as `wanted`, in offset order.
///
/// * `amounts`: for each atom of the side, nodes with the bytes they carry; the sum is what is wanted in it.
///
/// A node that carried the bytes before goes on where it can, and one that carries bytes of the next
/// atom comes last, so runs are long. Within an atom, nodes and destinations are joined in order: at most
/// nodes + 2 × destinations pieces. Cost O(atoms × destinations that want any of the atom + amounts × log).
pub(crate) fn lay(
    side: &Side,
    mut amounts: Amounts,
    wanted: &[&RangeSet],
    scratch: &mut Scratch,
) -> Vec<Vec<Piece>> {
    let mut runs: Vec<(u64, u64, usize)> = Vec::new();
    for (destination, ranges) in wanted.iter().enumerate() {
        runs.extend(ranges.iter().map(|run| (run.start, run.end, destination)));
    }
    runs.sort_unstable();
    let mut runs = runs.into_iter().peekable();
    // (destination, start, end) of the runs that reach into the atom.
    let mut active: BTreeSet<(usize, u64, u64)> = BTreeSet::new();
    let mut laid: Vec<Vec<Piece>> = vec![Vec::new(); wanted.len()];
    let mut open: Vec<(usize, Range)> = Vec::new();
    for (at, atom) in side.atoms.iter().enumerate() {
        while let Some((start, end, destination)) = runs.next_if(|run| run.0 < atom.range.end) {
            active.insert((destination, start, end));
        }
        open.clear();
        active.retain(|&(destination, start, end)| {
            let both = Range::new(start, end).intersect(atom.range);
            open.extend(both.map(|range| (destination, range)));
            end > atom.range.end
        });
        let mut list = std::mem::take(&mut amounts[at]);
        let next: &[(u32, u128)] = amounts.get(at + 1).map_or(&[], Vec::as_slice);
        for &(node, _) in next {
            scratch.goes_on[node as usize] = true;
        }
        list.sort_unstable_by_key(|&(node, _)| (scratch.goes_on[node as usize], node));
        for &(node, _) in next {
            scratch.goes_on[node as usize] = false;
        }
        for &(node, bytes) in &list {
            scratch.left[node as usize] += bytes;
        }
        for (destination, range) in &mut open {
            let own = &mut laid[*destination];
            if let Some(last) = own.last().filter(|last| last.range.end == range.start) {
                let left = &mut scratch.left[last.node as usize];
                let bytes = u128::from(range.len()).min(*left) as u64;
                *left -= u128::from(bytes);
                range.start += bytes;
                let end = range.start;
                if let Some(last) = own.last_mut() {
                    last.range.end = end;
                }
            }
        }
        let mut nodes = list.iter().map(|&(node, _)| node).peekable();
        for &(destination, mut range) in &open {
            while !range.is_empty() {
                let Some(&node) = nodes.peek() else {
                    debug_assert!(false, "less carried than wanted");
                    break;
                };
                let left = &mut scratch.left[node as usize];
                let bytes = u128::from(range.len()).min(*left) as u64;
                if bytes == 0 {
                    nodes.next();
                    continue;
                }
                *left -= u128::from(bytes);
                let end = range.start + bytes;
                push(&mut laid[destination], Range::new(range.start, end), node);
                range.start = end;
            }
        }
        for (node, _) in list {
            debug_assert_eq!(scratch.left[node as usize], 0, "more carried than wanted");
            scratch.left[node as usize] = 0;
        }
    }
    laid
}

fn push(pieces: &mut Vec<Piece>, range: Range, node: u32) {
    match pieces.last_mut() {
        Some(last) if last.node == node && last.range.end == range.start => {
            last.range.end = range.end;
        }
        _ => pieces.push(Piece { range, node }),
    }
}

/// The cut of a destination that one receiver takes whole.
pub(crate) fn whole(destination: &Destination, receiver: usize) -> Vec<Piece> {
    let runs = destination.wanted.iter();
    let node = receiver as u32;
    runs.map(|range| Piece { range, node }).collect()
}

/// Lays the senders' cut of a destination over the receivers'.
pub(crate) fn overlay(senders: &[Piece], receivers: &[Piece], plan: &mut Vec<Assignment>) {
    let (mut from, mut to) = (0, 0);
    while let (Some(sender), Some(receiver)) = (senders.get(from), receivers.get(to)) {
        if let Some(range) = sender.range.intersect(receiver.range) {
            plan.push(Assignment {
                range,
                sender: sender.node as usize,
                receiver: receiver.node as usize,
            });
        }
        if sender.range.end < receiver.range.end {
            from += 1;
        } else {
            to += 1;
        }
    }
}
