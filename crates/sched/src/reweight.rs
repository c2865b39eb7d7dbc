//! Nearly even shares of a side without a flow, and a proof of how near.
//!
//! A member takes a share of each atom proportional to its weight; one that is loaded above its speed
//! loses weight, one below gains, and again. Sums over members of an atom and over atoms of a member go through a
//! binary tree over the atoms, so a round costs O(runs × log) whatever the number of pairs. The proof is Hall's
//! condition: the atoms that only the most loaded members can carry need at least bytes / speed.

use crate::newton::Amounts;
use crate::side::{Side, Tightest};
use crate::whole::split;

/// Largest distance from the proved bound, relatively, at which the rounds stop.
pub(crate) const GAP_WANTED: f64 = 0.01;

/// Rounds stop here at the latest where they cost something. Ordinary families need 10 to 80; adversarial chains
/// gain little from more.
const ROUNDS_MAX: usize = 120;

/// Small sides may go on, as far as rounds × (runs + atoms) stay below this: some 0.05 CPU seconds.
const WORK_MAX: usize = 2_000_000;

/// And never longer than this.
const ROUNDS_SMALL_MAX: usize = 1_000;

/// A proof costs as much as a round or two, so it is tried after every so many.
const ROUNDS_A_PROOF: usize = 4;

/// Weights do not fall below this share of the largest, so that sums and quotients of them stay finite.
const WEIGHT_MIN: f64 = 1e-120;

/// The rounds aim a little below the wanted gap, as rounding to whole bytes comes after.
const GAP_AIMED: f64 = 0.99 * GAP_WANTED;

struct Tree<'s> {
    side: &'s Side,
    /// Leaves are `leaves..leaves + atoms`, node 1 the root.
    leaves: usize,
    /// Tree nodes that make up each member's runs, member after member.
    covers: Vec<u32>,
    first_cover: Vec<u32>,
}

/// Who carries how many bytes of each atom, and a bound in seconds that holds for any shares.
pub(crate) fn reweighted(side: &Side) -> (Amounts, f64) {
    if side.atoms.is_empty() {
        return (Vec::new(), 0.0);
    }
    let tree = Tree::new(side);
    let speeds: Vec<f64> = side.members.iter().map(|m| m.speed as f64).collect();
    let mut weights = speeds.clone();
    let mut best = weights.clone();
    let mut best_seconds = f64::INFINITY;
    let mut bound = side.of_atoms(&vec![true; side.atoms.len()]).seconds();
    let rounds = WORK_MAX / (side.spans_len() + side.atoms.len());
    let rounds = rounds.clamp(ROUNDS_MAX, ROUNDS_SMALL_MAX);
    for round in 0..rounds {
        let ratios = tree.ratios(&weights, &speeds);
        let seconds = ratios.iter().copied().fold(0.0, f64::max);
        if seconds < best_seconds {
            best_seconds = seconds;
            best.clone_from(&weights);
        }
        let aim = |bound: f64| best_seconds <= bound * (1.0 + GAP_AIMED);
        if !aim(bound) && (round % ROUNDS_A_PROOF == 0 || round + 1 == rounds) {
            let scarce: Vec<f64> = speeds.iter().zip(&weights).map(|(s, w)| s / w).collect();
            for key in [&ratios, &scarce] {
                bound = bound.max(tree.proof(key).seconds());
            }
        }
        if aim(bound) {
            break;
        }
        for (weight, ratio) in weights.iter_mut().zip(&ratios) {
            if *ratio > 0.0 {
                *weight *= seconds / ratio;
            }
        }
        let largest = weights.iter().copied().fold(0.0, f64::max);
        for weight in &mut weights {
            *weight = (*weight / largest).max(WEIGHT_MIN);
        }
    }
    (tree.amounts(&best), bound)
}

impl<'s> Tree<'s> {
    fn new(side: &'s Side) -> Self {
        let leaves = side.atoms.len().next_power_of_two();
        let mut tree = Self {
            side,
            leaves,
            covers: Vec::with_capacity(side.spans_len()),
            first_cover: vec![0],
        };
        for member in 0..side.members.len() {
            for &(from, to) in side.spans_of(member) {
                let (mut low, mut high) = (from + leaves as u32, to + leaves as u32);
                while low < high {
                    if low % 2 == 1 {
                        tree.covers.push(low);
                        low += 1;
                    }
                    if high % 2 == 1 {
                        high -= 1;
                        tree.covers.push(high);
                    }
                    low /= 2;
                    high /= 2;
                }
            }
            tree.first_cover.push(tree.covers.len() as u32);
        }
        tree
    }

    fn covers_of(&self, member: usize) -> &[u32] {
        let (from, to) = (self.first_cover[member], self.first_cover[member + 1]);
        &self.covers[from as usize..to as usize]
    }

    /// Sum of the weights of the members that reach each tree node from above or at it.
    fn weights_above(&self, weights: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; 2 * self.leaves];
        for (member, weight) in weights.iter().enumerate() {
            for &node in self.covers_of(member) {
                sums[node as usize] += weight;
            }
        }
        for node in 2..sums.len() {
            sums[node] += sums[node / 2];
        }
        sums
    }

    /// Bytes for each unit of weight, summed over the atoms below each tree node.
    fn bytes_a_weight(&self, above: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; 2 * self.leaves];
        for (at, atom) in self.side.atoms.iter().enumerate() {
            sums[self.leaves + at] = atom.bytes as f64 / above[self.leaves + at];
        }
        for node in (1..self.leaves).rev() {
            sums[node] = sums[2 * node] + sums[2 * node + 1];
        }
        sums
    }

    /// Each member's load over its speed, in seconds.
    fn ratios(&self, weights: &[f64], speeds: &[f64]) -> Vec<f64> {
        let sums = self.bytes_a_weight(&self.weights_above(weights));
        let load = |member: usize| {
            let covers = self.covers_of(member).iter();
            let share: f64 = covers.map(|&node| sums[node as usize]).sum();
            share * weights[member] / speeds[member]
        };
        (0..weights.len()).map(load).collect()
    }

    /// The best of the sets "atoms that only members with at least this key can carry".
    fn proof(&self, key: &[f64]) -> Tightest {
        let mut least = vec![f64::INFINITY; 2 * self.leaves];
        for (member, &key) in key.iter().enumerate() {
            for &node in self.covers_of(member) {
                let least = &mut least[node as usize];
                *least = least.min(key);
            }
        }
        for node in 2..least.len() {
            least[node] = least[node].min(least[node / 2]);
        }
        let least = &least[self.leaves..self.leaves + self.side.atoms.len()];
        let mut atoms: Vec<u32> = (0..least.len() as u32).collect();
        atoms.sort_by(|&a, &b| least[b as usize].total_cmp(&least[a as usize]));
        let mut members: Vec<u32> = (0..key.len() as u32).collect();
        members.sort_by(|&a, &b| key[b as usize].total_cmp(&key[a as usize]));
        let (mut speed, mut bytes, mut next) = (0.0, 0.0, 0);
        let (mut best, mut limit) = (0.0, f64::NEG_INFINITY);
        for (at, &member) in members.iter().enumerate() {
            let own = key[member as usize];
            speed += self.side.members[member as usize].speed as f64;
            if members.get(at + 1).is_some_and(|&m| key[m as usize] == own) {
                continue;
            }
            while atoms.get(next).is_some_and(|&a| least[a as usize] >= own) {
                bytes += self.side.atoms[atoms[next] as usize].bytes as f64;
                next += 1;
            }
            if bytes / speed > best {
                (best, limit) = (bytes / speed, own);
            }
        }
        let chosen: Vec<bool> = least.iter().map(|&least| least >= limit).collect();
        match best > 0.0 {
            true => self.side.of_atoms(&chosen),
            false => Tightest::NOTHING,
        }
    }

    /// The shares in whole bytes, in few pieces: what reaches a tree node is split in order between its halves,
    /// which keeps every member's sum and leaves about as many pieces as tree nodes in use.
    fn amounts(&self, weights: &[f64]) -> Amounts {
        let above = self.weights_above(weights);
        let sums = self.bytes_a_weight(&above);
        let mut lists: Vec<Vec<(u32, f64)>> = vec![Vec::new(); 2 * self.leaves];
        for (member, weight) in weights.iter().enumerate() {
            for &node in self.covers_of(member) {
                let bytes = weight * sums[node as usize];
                lists[node as usize].push((member as u32, bytes));
            }
        }
        for node in 1..self.leaves {
            let list = std::mem::take(&mut lists[node]);
            let mut room = above[node] * sums[2 * node];
            let right_is_empty = sums[2 * node + 1] == 0.0;
            for (member, bytes) in list {
                let left = match right_is_empty {
                    true => bytes,
                    false => bytes.min(room.max(0.0)),
                };
                room -= left;
                if left > 0.0 {
                    lists[2 * node].push((member, left));
                }
                if bytes > left {
                    lists[2 * node + 1].push((member, bytes - left));
                }
            }
        }
        let mut carry = vec![0.0; weights.len()];
        let atoms = self.side.atoms.iter().enumerate().map(|(at, atom)| {
            let list = std::mem::take(&mut lists[self.leaves + at]);
            let members: Vec<usize> = list.iter().map(|&(member, _)| member as usize).collect();
            let wanted: Vec<f64> = list.iter().map(|&(_, bytes)| bytes).collect();
            let parts = split(atom.bytes, &wanted, &members, &mut carry);
            let named = members.into_iter().zip(parts).filter(|(_, part)| *part > 0);
            named
                .map(|(member, part)| (self.side.members[member].index as u32, part))
                .collect()
        });
        atoms.collect()
    }
}
