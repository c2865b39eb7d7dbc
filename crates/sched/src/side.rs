//! One side of a transfer: which bytes its nodes can carry, and the set of bytes that takes them longest.
//!
//! Everything is in integers, scaled by the denominator of the time. A node is joined to its bytes
//! through a segment tree over the cut points, so edges are O(rows × log) where direct edges would be
//! O(rows²) for nested ranges. Each flow starts from a sweep over the bytes in order, which is already
//! maximal where every node has one range.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use ropewalk_model::range::{Range, RangeSet};

use crate::flow::{Network, SINK, SOURCE};
use crate::wide::{Amount, Wide, compare_fractions, reduced};

/// The set of bytes that takes its nodes longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tightest {
    pub bytes: u128,
    /// Speed of all nodes that can carry any of these bytes; above 0 when `bytes` is.
    pub speed: u128,
    pub members: Vec<usize>,
}

impl Tightest {
    pub(crate) const NOTHING: Self = Self {
        bytes: 0,
        speed: 1,
        members: Vec::new(),
    };

    pub(crate) fn time(&self) -> (u128, u128) {
        (self.bytes, self.speed)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.bytes as f64 / self.speed as f64
    }
}

/// A node of one side.
pub(crate) struct Member<'p> {
    pub index: usize,
    /// Bytes per second, above 0.
    pub speed: u64,
    pub ranges: &'p RangeSet,
}

/// One side: nodes, atoms of demand, and which runs of atoms each node can carry.
pub(crate) struct Side<'m, 'p> {
    members: &'m [Member<'p>],
    /// Bytes of each atom, copies counted, ordered by offset; every atom lies wholly inside or outside of
    /// each member's ranges.
    atoms: Vec<u128>,
    /// For each member, runs `[from, to)` of atoms.
    spans: Vec<Vec<(usize, usize)>>,
}

impl<'m, 'p> Side<'m, 'p> {
    pub(crate) fn new(members: &'m [Member<'p>], demand: &[(Range, u64)]) -> Self {
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
    pub(crate) fn tightest(&self) -> Tightest {
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
        // Edges in three groups, so that `Paths` finds them again.
        let mut paths = Paths::default();
        for (at, (member, spans)) in self.members.iter().zip(&self.spans).enumerate() {
            let capacity = A::product(u128::from(member.speed), bytes);
            paths.sources.push(network.edge(SOURCE, 2 + at, capacity));
            for &(from, to) in spans {
                let (mut low, mut high) = (from + atoms, to + atoms);
                while low < high {
                    if low % 2 == 1 {
                        let edge = network.edge(2 + at, tree + low, all);
                        paths.covers.insert((at, low), edge);
                        low += 1;
                    }
                    if high % 2 == 1 {
                        high -= 1;
                        let edge = network.edge(2 + at, tree + high, all);
                        paths.covers.insert((at, high), edge);
                    }
                    low /= 2;
                    high /= 2;
                }
            }
        }
        paths.children = vec![0; 2 * atoms];
        for child in 2..2 * atoms {
            paths.children[child] = network.edge(tree + child / 2, tree + child, all);
        }
        for (atom, &demand) in self.atoms.iter().enumerate() {
            let edge = network.edge(tree + atoms + atom, SINK, A::product(demand, speed));
            paths.sinks.push(edge);
        }
        let first = self.sweep(bytes, speed, |member, atom, amount| {
            paths.push(&mut network, member, atoms + atom, amount);
        });
        if first.plus(network.maximum_flow()) == all {
            return None;
        }
        let reached = (0..atoms).map(|atom| !network.reached(tree + atoms + atom));
        Some(reached.collect())
    }

    /// A flow to start from: atoms in order, each filled by the members that can least wait.
    ///
    /// Returns the sum of what it sends, each part by way of `send(member, atom, amount)`. Where every
    /// member has one span this is already a maximum flow (Glover 1967, matching in convex graphs);
    /// elsewhere augmenting paths do the rest. Without it, chains of overlapping windows need thousands of
    /// levels. Cost O(spans × log).
    fn sweep<A: Amount>(
        &self,
        bytes: u128,
        speed: u128,
        mut send: impl FnMut(usize, usize, A),
    ) -> A {
        let mut left: Vec<A> = self
            .members
            .iter()
            .map(|m| A::product(u128::from(m.speed), bytes))
            .collect();
        let mut opening: Vec<(usize, usize, usize)> = Vec::new();
        for (member, spans) in self.spans.iter().enumerate() {
            opening.extend(spans.iter().map(|&(from, to)| (from, to, member)));
        }
        opening.sort_unstable();
        let mut opening = opening.into_iter().peekable();
        // (last atom of the member in any span, end of this span, member), soonest first.
        let mut open: BinaryHeap<Reverse<(usize, usize, usize)>> = BinaryHeap::new();
        let mut total = A::default();
        for (atom, &demand) in self.atoms.iter().enumerate() {
            while let Some((_, to, member)) = opening.next_if(|span| span.0 <= atom) {
                let last = self.spans[member].last().map_or(to, |span| span.1);
                open.push(Reverse((last, to, member)));
            }
            let mut wanted = A::product(demand, speed);
            while wanted > A::default() {
                let Some(&Reverse((_, to, member))) = open.peek() else {
                    break;
                };
                if to <= atom || left[member] == A::default() {
                    open.pop();
                    continue;
                }
                let amount = wanted.min(left[member]);
                left[member] = left[member].minus(amount);
                wanted = wanted.minus(amount);
                total = total.plus(amount);
                send(member, atom, amount);
            }
        }
        total
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

/// The numbers of the edges along which a member's bytes reach an atom.
#[derive(Default)]
struct Paths {
    /// From the source, by member.
    sources: Vec<usize>,
    /// Into the tree, by member and tree node.
    covers: HashMap<(usize, usize), usize>,
    /// From its parent, by tree node.
    children: Vec<usize>,
    /// Into the sink, by atom.
    sinks: Vec<usize>,
}

impl Paths {
    /// Sends along the one path through the tree; `leaf` must lie in a span of the member.
    fn push<A: Amount>(&self, network: &mut Network<A>, member: usize, leaf: usize, amount: A) {
        network.push(self.sources[member], amount);
        let mut node = leaf;
        let cover = loop {
            if let Some(&cover) = self.covers.get(&(member, node)) {
                break cover;
            }
            network.push(self.children[node], amount);
            node /= 2;
        };
        network.push(cover, amount);
        network.push(self.sinks[leaf - self.sinks.len()], amount);
    }
}

fn bits(value: u128) -> u32 {
    u128::BITS - value.leading_zeros()
}
