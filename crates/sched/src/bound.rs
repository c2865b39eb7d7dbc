//! The least possible time of a transfer, and what sets it.
//!
//! Where only node speeds count, senders and receivers part: a rate from each sender into a class and a rate
//! out of it to each receiver join to rates of pairs, so the least time is the larger of the two sides'.
//! Each side is a flow from nodes to the bytes they can carry, and its least time is the largest bytes(A) /
//! speed(nodes that can carry any of A) over all sets A. Newton's method on minimum cuts finds it: guess T, fill
//! the network at capacities speed × T; where it falls short, the minimum cut is a set with a larger quotient.
//! Everything is in integers, scaled by the denominator of T.
//!
//! A node is joined to its bytes through a segment tree over the cut points, so edges are O(rows × log) where
//! direct edges would be O(rows²) for nested ranges.

use std::cmp::Ordering;

use ropewalk_model::class::uncovered;
use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::{Range, RangeSet};

use crate::PlanError;
use crate::flow::{Network, SINK, SOURCE};
use crate::wide::{Amount, Wide, compare_fractions, reduced};

/// The least possible time of a transfer without relay.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Least time in seconds; a lower bound only, when `is_exact` is false.
    pub seconds: f64,
    /// The same as (numerator, denominator) in lowest terms; `None` when `is_exact` is false.
    pub exact: Option<(u128, u128)>,
    /// False when pair caps or trunks exist: node speeds alone are counted then.
    pub is_exact: bool,
    /// Names of the nodes that together set the bound: making none of them faster leaves it as it is.
    /// Senders before receivers, both only when the sides take equally long; empty when nothing is wanted.
    pub binding: Vec<String>,
    /// Least time in seconds if only sending speeds counted.
    pub sender_seconds: f64,
    /// Least time in seconds if only receiving speeds counted.
    pub receiver_seconds: f64,
}

/// Computes the bound.
///
/// Cost O(rows × log) edges and 1 to about 15 maximum flows over them; a receiver with a destination of its own
/// costs one division.
///
/// # Errors
/// [`PlanError::Uncovered`], as planning would.
pub fn bound(problem: &Problem) -> Result<Bound, PlanError> {
    let missing = uncovered(problem);
    if !missing.is_empty() {
        return Err(PlanError::Uncovered { missing });
    }
    let destinations = problem.destinations();
    let senders = sender_side(problem, &destinations);
    let receivers = receiver_side(problem, &destinations);
    let order = compare_fractions(senders.time(), receivers.time());
    let larger = if order == Ordering::Less {
        &receivers
    } else {
        &senders
    };
    let is_exact = !problem.has_links();
    let exact = reduced(larger.time());
    let mut binding: Vec<String> = Vec::new();
    if larger.bytes > 0 {
        if order != Ordering::Less {
            binding.extend(
                senders
                    .members
                    .iter()
                    .map(|&s| problem.senders[s].name.clone()),
            );
        }
        if order != Ordering::Greater {
            binding.extend(
                receivers
                    .members
                    .iter()
                    .map(|&r| problem.receivers[r].name.clone()),
            );
        }
    }
    Ok(Bound {
        seconds: larger.seconds(),
        exact: is_exact.then_some(exact),
        is_exact,
        binding,
        sender_seconds: senders.seconds(),
        receiver_seconds: receivers.seconds(),
    })
}

/// The set of bytes that takes its nodes longest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tightest {
    bytes: u128,
    /// Speed of all nodes that can carry any of these bytes; above 0 when `bytes` is.
    speed: u128,
    members: Vec<usize>,
}

impl Tightest {
    const NOTHING: Self = Self {
        bytes: 0,
        speed: 1,
        members: Vec::new(),
    };

    fn time(&self) -> (u128, u128) {
        (self.bytes, self.speed)
    }

    fn seconds(&self) -> f64 {
        self.bytes as f64 / self.speed as f64
    }
}

fn sender_side(problem: &Problem, destinations: &[Destination]) -> Tightest {
    let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
    let members = alive.map(|(index, sender)| Member {
        index,
        speed: sender.up,
        ranges: &sender.ranges,
    });
    let members: Vec<Member<'_>> = members.collect();
    Side::new(&members, &copies_wanted(destinations)).tightest()
}

fn receiver_side(problem: &Problem, destinations: &[Destination]) -> Tightest {
    let mut worst = Tightest::NOTHING;
    for destination in destinations {
        let alive = destination
            .receivers
            .iter()
            .filter(|&&r| problem.receivers[r].down > 0);
        let members = alive.map(|&index| Member {
            index,
            speed: problem.receivers[index].down,
            ranges: &problem.receivers[index].ranges,
        });
        let members: Vec<Member<'_>> = members.collect();
        let tightest = match members.as_slice() {
            [] => continue,
            [only] => Tightest {
                bytes: u128::from(destination.wanted.len_bytes()),
                speed: u128::from(only.speed),
                members: vec![only.index],
            },
            _ => {
                let wanted = destination.wanted.iter().map(|range| (range, 1));
                Side::new(&members, &wanted.collect::<Vec<_>>()).tightest()
            }
        };
        match compare_fractions(tightest.time(), worst.time()) {
            Ordering::Greater => worst = tightest,
            // Destinations that take equally long bind together, as their nodes must all get faster.
            Ordering::Equal if worst.bytes > 0 => worst.members.extend(tightest.members),
            _ => {}
        }
    }
    worst
}

/// How many destinations want each byte, as ordered ranges with a count above 0.
fn copies_wanted(destinations: &[Destination]) -> Vec<(Range, u64)> {
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

/// A node of one side.
struct Member<'p> {
    index: usize,
    /// Bytes per second, above 0.
    speed: u64,
    ranges: &'p RangeSet,
}

/// One side: nodes, atoms of demand, and which runs of atoms each node can carry.
struct Side<'m, 'p> {
    members: &'m [Member<'p>],
    /// Bytes of each atom, copies counted, ordered by offset; every atom lies wholly inside or outside of
    /// each member's ranges.
    atoms: Vec<u128>,
    /// For each member, runs `[from, to)` of atoms.
    spans: Vec<Vec<(usize, usize)>>,
}

impl<'m, 'p> Side<'m, 'p> {
    fn new(members: &'m [Member<'p>], demand: &[(Range, u64)]) -> Self {
        let runs = members.iter().flat_map(|member| member.ranges);
        let mut cuts: Vec<u64> = runs.flat_map(|run| [run.start, run.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut starts: Vec<u64> = Vec::new();
        let mut atoms: Vec<u128> = Vec::new();
        for &(range, copies) in demand {
            let first = cuts.partition_point(|&cut| cut <= range.start);
            let inner = cuts[first..]
                .iter()
                .copied()
                .take_while(|&cut| cut < range.end);
            let mut start = range.start;
            for end in inner.chain([range.end]) {
                starts.push(start);
                atoms.push(u128::from(end - start) * u128::from(copies));
                start = end;
            }
        }
        let spans = members.iter().map(|member| {
            let mut spans: Vec<(usize, usize)> = Vec::new();
            for run in member.ranges {
                let from = starts.partition_point(|&start| start < run.start);
                let to = starts.partition_point(|&start| start < run.end);
                match spans.last_mut() {
                    Some(last) if last.1 == from => last.1 = to,
                    _ if from < to => spans.push((from, to)),
                    _ => {}
                }
            }
            spans
        });
        let spans = spans.collect();
        Self {
            members,
            atoms,
            spans,
        }
    }

    /// The set of atoms with the largest bytes / speed. Every atom has a member that can carry it.
    fn tightest(&self) -> Tightest {
        let mut best = self.of_atoms(&vec![true; self.atoms.len()]);
        if best.bytes == 0 || best.speed == 0 {
            return Tightest::NOTHING;
        }
        let total = best.bytes;
        // Each round's quotient is larger than the last and belongs to some set, so this ends.
        loop {
            let (bytes, speed) = reduced(best.time());
            // Sums of capacities and of demand, with room for what back edges add.
            let speeds: u128 = self.members.iter().map(|m| u128::from(m.speed)).sum();
            let narrow = bits(speeds) + bits(bytes) < 126 && bits(total) + bits(speed) < 126;
            let short = if narrow {
                self.short_atoms::<u128>(bytes, speed, total)
            } else {
                self.short_atoms::<Wide>(bytes, speed, total)
            };
            let Some(short) = short else {
                return best;
            };
            let next = self.of_atoms(&short);
            debug_assert_eq!(
                compare_fractions(next.time(), best.time()),
                Ordering::Greater
            );
            best = next;
        }
    }

    /// The atoms that cannot all be carried in `bytes / speed` seconds; `None` when all can.
    fn short_atoms<A: Amount>(&self, bytes: u128, speed: u128, total: u128) -> Option<Vec<bool>> {
        let (members, atoms) = (self.members.len(), self.atoms.len());
        // Node 1 of the tree is its root, leaves are atoms.len() and up; entry 0 is not used.
        let tree = 2 + members;
        let mut network: Network<A> = Network::new(tree + 2 * atoms);
        let all = A::product(total, speed);
        for (at, (member, spans)) in self.members.iter().zip(&self.spans).enumerate() {
            network.edge(SOURCE, 2 + at, A::product(u128::from(member.speed), bytes));
            for &(from, to) in spans {
                let (mut low, mut high) = (from + atoms, to + atoms);
                while low < high {
                    if low % 2 == 1 {
                        network.edge(2 + at, tree + low, all);
                        low += 1;
                    }
                    if high % 2 == 1 {
                        high -= 1;
                        network.edge(2 + at, tree + high, all);
                    }
                    low /= 2;
                    high /= 2;
                }
            }
        }
        for parent in 1..atoms {
            network.edge(tree + parent, tree + 2 * parent, all);
            network.edge(tree + parent, tree + 2 * parent + 1, all);
        }
        for (atom, &demand) in self.atoms.iter().enumerate() {
            network.edge(tree + atoms + atom, SINK, A::product(demand, speed));
        }
        if network.maximum_flow() == all {
            return None;
        }
        let reached = (0..atoms).map(|atom| !network.reached(tree + atoms + atom));
        Some(reached.collect())
    }

    /// Bytes of a set of atoms, and the members that can carry any of them.
    fn of_atoms(&self, chosen: &[bool]) -> Tightest {
        let mut before = vec![0_usize; chosen.len() + 1];
        for (atom, &is_in) in chosen.iter().enumerate() {
            before[atom + 1] = before[atom] + usize::from(is_in);
        }
        let bytes = self.atoms.iter().zip(chosen).filter(|(_, is_in)| **is_in);
        let touched =
            |spans: &[(usize, usize)]| spans.iter().any(|&(from, to)| before[from] < before[to]);
        let members = self
            .members
            .iter()
            .zip(&self.spans)
            .filter(|(_, spans)| touched(spans));
        let (mut speed, mut indices) = (0, Vec::new());
        for (member, _) in members {
            speed += u128::from(member.speed);
            indices.push(member.index);
        }
        Tightest {
            bytes: bytes.map(|(bytes, _)| bytes).sum(),
            speed,
            members: indices,
        }
    }
}

fn bits(value: u128) -> u32 {
    u128::BITS - value.leading_zeros()
}
