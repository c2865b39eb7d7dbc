//! One side of a transfer: its nodes, and the stretches of bytes they can carry.
//!
//! The bytes that are wanted fall into atoms: stretches over which the nodes able to carry them do not
//! change. A node then carries runs of atoms, so nested ranges need one entry a row, not one for each pair
//! of node and atom.

use ropewalk_model::range::{Range, RangeSet};

/// The set of bytes that takes its nodes longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tightest {
    pub bytes: u128,
    /// Speed of all nodes that can carry any of these bytes; above 0 when `bytes` is.
    pub speed: u128,
    /// The nodes, by their position in the problem.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// Position among the problem's senders or receivers.
    pub index: usize,
    /// Bytes per second, above 0.
    pub speed: u64,
}

/// Bytes that the same members can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Atom {
    /// The stretch of the data space; not all of it need be wanted.
    pub range: Range,
    /// Bytes wanted in it, copies counted; above 0.
    pub bytes: u128,
}

/// A node as a side takes it: position, speed above 0, and what it can carry.
pub(crate) type Carrier<'p> = (usize, u64, &'p RangeSet);

/// Copies of bytes that some nodes can carry besides those that can carry any copy.
#[derive(Debug, Default)]
pub(crate) struct Layer<'p> {
    /// Nodes of this layer alone.
    pub nodes: Vec<Carrier<'p>>,
    /// Ordered stretches with the number of copies, above 0; no range of any node begins or ends inside one.
    pub demand: Vec<(Range, u64)>,
}

/// One side: nodes, atoms of demand, and which runs of atoms each node can carry.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub members: Vec<Member>,
    /// Ordered by offset.
    pub atoms: Vec<Atom>,
    /// Runs `[from, to)` of atoms, member after member; in order and apart within a member.
    spans: Vec<(u32, u32)>,
    /// Where each member's runs begin in `spans`, and their end.
    first_span: Vec<u32>,
    /// Where each layer begins in `atoms`, and their end; empty where there is one layer only.
    layers: Vec<u32>,
}

impl Side {
    /// * `nodes`: position, speed above 0 and ranges of each node.
    /// * `demand`: ordered ranges that do not overlap, with the number of copies wanted.
    ///
    /// Every wanted byte is in some node's ranges. Cost O(rows × log).
    pub(crate) fn new<'p>(
        nodes: impl IntoIterator<Item = (usize, u64, &'p RangeSet)>,
        demand: &[(Range, u64)],
    ) -> Self {
        let nodes: Vec<(usize, u64, &RangeSet)> = nodes.into_iter().collect();
        let mut cuts: Vec<u64> = Vec::new();
        for run in nodes.iter().flat_map(|(_, _, ranges)| *ranges) {
            cuts.extend([run.start, run.end]);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut side = Self {
            members: Vec::with_capacity(nodes.len()),
            atoms: atoms(&cuts, demand),
            spans: Vec::with_capacity(nodes.len()),
            first_span: vec![0],
            layers: Vec::new(),
        };
        for (index, speed, ranges) in nodes {
            side.members.push(Member { index, speed });
            let before = side.spans.len();
            for run in ranges {
                let at = |offset| side.atoms.partition_point(|atom| atom.range.start < offset);
                side.push_span(before, at(run.start) as u32, at(run.end) as u32);
            }
            side.first_span.push(side.spans.len() as u32);
        }
        side
    }

    /// A side whose bytes lie in layers, one after the other: `everywhere` are nodes that can carry bytes of
    /// their ranges in each. An atom is a stretch of a layer, in the order given.
    ///
    /// Every stretch of every layer has a node. Cost O(rows × layers × log).
    pub(crate) fn layered(everywhere: &[Carrier<'_>], layers: &[Layer<'_>]) -> Self {
        let (mut side, begins) = Self::of_layers(layers);
        for &node in everywhere {
            side.add_member(node, begins.windows(2));
        }
        for (layer, begins) in layers.iter().zip(begins.windows(2)) {
            for &node in &layer.nodes {
                side.add_member(node, std::iter::once(begins));
            }
        }
        side
    }

    /// The same, where each node can carry bytes of the layers that stand beside it, in ascending order. Nodes of a layer are not regarded.
    pub(crate) fn placed(carriers: &[(Carrier<'_>, Vec<usize>)], layers: &[Layer<'_>]) -> Self {
        let (mut side, begins) = Self::of_layers(layers);
        for (node, own) in carriers {
            side.add_member(*node, own.iter().map(|&layer| &begins[layer..layer + 2]));
        }
        side
    }

    /// A side without nodes, and where each layer begins in its atoms, and their end.
    fn of_layers(layers: &[Layer<'_>]) -> (Self, Vec<usize>) {
        let mut atoms = Vec::new();
        let mut begins = vec![0];
        for layer in layers {
            atoms.extend(layer.demand.iter().map(|&(range, copies)| Atom {
                range,
                bytes: u128::from(range.len()) * u128::from(copies),
            }));
            begins.push(atoms.len());
        }
        let side = Self {
            members: Vec::new(),
            atoms,
            spans: Vec::new(),
            first_span: vec![0],
            layers: begins.iter().map(|&begin| begin as u32).collect(),
        };
        (side, begins)
    }

    /// Adds a node with its runs in some layers, each `[begin, end]` in the atoms.
    fn add_member<'b>(
        &mut self,
        (index, speed, ranges): Carrier<'_>,
        layers: impl Iterator<Item = &'b [usize]>,
    ) {
        self.members.push(Member { index, speed });
        let before = self.spans.len();
        for layer in layers {
            let (begin, end) = (layer[0], layer[1]);
            for run in ranges {
                let atoms = &self.atoms[begin..end];
                let at = |offset| begin + atoms.partition_point(|atom| atom.range.start < offset);
                let (from, to) = (at(run.start) as u32, at(run.end) as u32);
                self.push_span(before, from, to);
            }
        }
        self.first_span.push(self.spans.len() as u32);
    }

    /// The side without some atoms and members, and for each atom left its place in this one.
    ///
    /// Every atom left has a member left that can carry it.
    pub(crate) fn without(&self, gone: &[bool], gone_members: &[bool]) -> (Self, Vec<u32>) {
        let mut kept_before = vec![0_u32; self.atoms.len() + 1];
        for (atom, &is_gone) in gone.iter().enumerate() {
            kept_before[atom + 1] = kept_before[atom] + u32::from(!is_gone);
        }
        let kept: Vec<u32> = (0..self.atoms.len() as u32)
            .filter(|&atom| !gone[atom as usize])
            .collect();
        let mut rest = Self {
            members: Vec::new(),
            atoms: kept.iter().map(|&atom| self.atoms[atom as usize]).collect(),
            spans: Vec::new(),
            first_span: vec![0],
            layers: self
                .layers
                .iter()
                .map(|&begin| kept_before[begin as usize])
                .collect(),
        };
        for (at, member) in self.members.iter().enumerate() {
            if gone_members[at] {
                continue;
            }
            let before = rest.spans.len();
            for &(from, to) in self.spans_of(at) {
                let (from, to) = (kept_before[from as usize], kept_before[to as usize]);
                rest.push_span(before, from, to);
            }
            rest.members.push(*member);
            rest.first_span.push(rest.spans.len() as u32);
        }
        (rest, kept)
    }

    /// Adds a run of atoms to the member whose runs begin at `before`.
    fn push_span(&mut self, before: usize, from: u32, to: u32) {
        let own = before < self.spans.len();
        match self.spans.last_mut() {
            Some(last) if own && last.1 == from => last.1 = to,
            _ if from < to => self.spans.push((from, to)),
            _ => {}
        }
    }

    /// The runs of atoms that a member can carry.
    pub(crate) fn spans_of(&self, member: usize) -> &[(u32, u32)] {
        let (from, to) = (self.first_span[member], self.first_span[member + 1]);
        &self.spans[from as usize..to as usize]
    }

    /// Runs of all members together: what the cost of a flow follows, with the atoms.
    pub(crate) fn spans_len(&self) -> usize {
        self.spans.len()
    }

    /// Whether every member carries one run of atoms. A sweep then finds a maximum flow.
    pub(crate) fn is_convex(&self) -> bool {
        self.first_span
            .windows(2)
            .all(|pair| pair[1] - pair[0] <= 1)
    }

    /// Where each layer begins in the atoms, and their end; empty where there is one layer only.
    pub(crate) fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// Whether there are layers, and every member carries at most one run of atoms in each.
    pub(crate) fn is_convex_by_layer(&self) -> bool {
        let is_convex = |member: usize| {
            // A run may go on into the next layer; one that begins in a layer where another ended is a second one.
            let layer = |atom: u32| self.layers.partition_point(|&begin| begin <= atom);
            let spans = self.spans_of(member).windows(2);
            spans
                .into_iter()
                .all(|pair| layer(pair[0].1 - 1) < layer(pair[1].0))
        };
        self.layers.len() > 2 && (0..self.members.len()).all(is_convex)
    }

    /// Bytes of all atoms.
    pub(crate) fn bytes(&self) -> u128 {
        self.atoms.iter().map(|atom| atom.bytes).sum()
    }

    /// For each member, whether it can carry any of the chosen atoms.
    pub(crate) fn touching(&self, chosen: &[bool]) -> Vec<bool> {
        let mut before = vec![0_u32; chosen.len() + 1];
        for (atom, &is_in) in chosen.iter().enumerate() {
            before[atom + 1] = before[atom] + u32::from(is_in);
        }
        let touches = |&(from, to): &(u32, u32)| before[from as usize] < before[to as usize];
        (0..self.members.len())
            .map(|member| self.spans_of(member).iter().any(touches))
            .collect()
    }

    /// Bytes of a set of atoms, and the members that can carry any of them.
    pub(crate) fn of_atoms(&self, chosen: &[bool]) -> Tightest {
        let atoms = self.atoms.iter().zip(chosen);
        let bytes = atoms
            .filter(|(_, is_in)| **is_in)
            .map(|(atom, _)| atom.bytes);
        let (mut speed, mut members) = (0, Vec::new());
        for (member, touches) in self.members.iter().zip(self.touching(chosen)) {
            if touches {
                speed += u128::from(member.speed);
                members.push(member.index);
            }
        }
        Tightest {
            bytes: bytes.sum(),
            speed,
            members,
        }
    }
}

/// The stretches between cuts in which anything is wanted.
fn atoms(cuts: &[u64], demand: &[(Range, u64)]) -> Vec<Atom> {
    let mut atoms = Vec::new();
    let mut first = 0;
    for pair in cuts.windows(2) {
        let range = Range::new(pair[0], pair[1]);
        while demand
            .get(first)
            .is_some_and(|(run, _)| run.end <= range.start)
        {
            first += 1;
        }
        let inside = demand[first..]
            .iter()
            .take_while(|(run, _)| run.start < range.end);
        let bytes = inside.filter_map(|&(run, copies)| {
            let both = run.intersect(range)?;
            Some(u128::from(both.len()) * u128::from(copies))
        });
        let bytes = bytes.sum();
        if bytes > 0 {
            atoms.push(Atom { range, bytes });
        }
    }
    atoms
}

/// Bytes that a node of this speed carries in `bytes / total` seconds, rounded up.
///
/// `total` is above 0 and has at most 100 bits: a sum of speeds.
pub(crate) fn ceil_share(speed: u64, (bytes, total): (u128, u128)) -> u128 {
    let speed = u128::from(speed);
    if let Some(product) = speed.checked_mul(bytes) {
        return product.div_ceil(total);
    }
    let (whole, rest) = (bytes / total, bytes % total);
    // Bit by bit from the top: (quotient, remainder) of the leading bits of speed times rest.
    let (mut quotient, mut remainder) = (0_u128, 0_u128);
    for bit in (0..u64::BITS).rev() {
        quotient *= 2;
        remainder *= 2;
        if speed >> bit & 1 == 1 {
            remainder += rest;
        }
        // At most 2 (total - 1) + total - 1, so at most two steps.
        while remainder >= total {
            remainder -= total;
            quotient += 1;
        }
    }
    let up = quotient + u128::from(remainder > 0);
    speed.saturating_mul(whole).saturating_add(up)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wide::{Amount as _, Wide};

    proptest! {
        /// The share is the least whole number that is not below the fraction, within and beyond 128 bits.
        #[test]
        fn shares_are_rounded_up(speed in 1..u64::MAX, bytes in 1..1_u128 << 84, total in 1..1_u128 << 84, shift in 0..60_u32) {
            let (speed, bytes) = (speed >> shift, bytes >> shift);
            let share = ceil_share(speed, (bytes, total));
            // share - 1 < speed × bytes / total <= share, where nothing saturates.
            prop_assume!(share < u128::MAX >> 1);
            let needed = Wide::product(u128::from(speed), bytes);
            prop_assert!(Wide::product(share, total) >= needed);
            prop_assert!(share == 0 || Wide::product(share - 1, total) < needed);
        }
    }
}
