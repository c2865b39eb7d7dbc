//! From shares to whole bytes: floats choose, integers account.

use std::cmp::Reverse;

use ropewalk_model::class::{Class, DemandTable};
use ropewalk_model::range::Range;
use ropewalk_model::schedule::{Assignment, Schedule};

use crate::layout::size_step;
use crate::shares::{ClassShares, Weights};

/// Rounds the shares to whole bytes and lays them out in contiguous runs.
///
/// Each class is cut first over its receivers, then over the senders of each, by largest remainder. What
/// rounding gave or took is carried to the node's next class, so that a node's total stays within a few
/// bytes of its fluid share however many classes it is in. Cost O(sum of senders × receivers × log).
///
/// Receivers that share a class need not each talk to every sender: where only nodes have speeds
/// (`pairs_count` false), both sides are laid along the class's bytes and each stretch goes from the
/// sender to the receiver it falls to. The loads are the same and at most senders + receivers pairs
/// move anything, where the product of shares would spread thin streams over all of them.
pub(crate) fn whole_bytes(table: &DemandTable, weights: &Weights, pairs_count: bool) -> Schedule {
    let mut sender_carry = vec![0.0; weights.senders.len()];
    let mut receiver_carry = vec![0.0; weights.receivers.len()];
    let mut assignments = Vec::new();
    for class in &table.classes {
        let shares = ClassShares::new(table, class, weights);
        let fluid = class.bytes as f64;
        let wanted: Vec<f64> = shares.receivers.iter().map(|share| share * fluid).collect();
        let totals = split(
            class.bytes.into(),
            &wanted,
            &class.receivers,
            &mut receiver_carry,
        );
        let mut cursor = Cursor::new(class);
        if class.receivers.len() > 1 && !pairs_count {
            let width = class.senders.len();
            let column =
                |at: usize| shares.pairs.iter().skip(at).step_by(width).sum::<f64>() * fluid;
            let wanted: Vec<f64> = (0..width).map(column).collect();
            let pieces = split(
                class.bytes.into(),
                &wanted,
                &class.senders,
                &mut sender_carry,
            );
            join(
                &class.senders,
                &pieces,
                &class.receivers,
                &totals,
                |sender, receiver, bytes| {
                    cursor.take(bytes as u64, |range| {
                        assignments.push(Assignment {
                            range,
                            sender,
                            receiver,
                        })
                    });
                },
            );
            continue;
        }
        let rows = shares.pairs.chunks(class.senders.len());
        for ((&receiver, total), row) in class.receivers.iter().zip(totals).zip(rows) {
            let wanted: Vec<f64> = row.iter().map(|share| share * fluid).collect();
            let pieces = split(total, &wanted, &class.senders, &mut sender_carry);
            for (&sender, bytes) in class.senders.iter().zip(pieces) {
                cursor.take(bytes as u64, |range| {
                    assignments.push(Assignment {
                        range,
                        sender,
                        receiver,
                    });
                });
            }
        }
    }
    Schedule::from_assignments(assignments)
}

/// Walks both sides along the same bytes, those with most first, and calls `give` for each overlap.
///
/// Fast nodes meet fast ones and slow ones slow ones, so that equal sides make pairs.
fn join(
    senders: &[usize],
    pieces: &[u128],
    receivers: &[usize],
    totals: &[u128],
    mut give: impl FnMut(usize, usize, u128),
) {
    let most_first = |parts: &[u128]| {
        let most = parts.iter().copied().max().unwrap_or(0);
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|&at| (Reverse(size_step(parts[at], most)), at));
        order
    };
    let mut sending = most_first(pieces)
        .into_iter()
        .map(|at| (senders[at], pieces[at]));
    let mut current = sending.next();
    for at in most_first(totals) {
        let mut open = totals[at];
        while let Some((sender, left)) = current.filter(|_| open > 0) {
            let bytes = open.min(left);
            if bytes > 0 {
                give(sender, receivers[at], bytes);
            }
            open -= bytes;
            current = match left - bytes {
                0 => sending.next(),
                rest => Some((sender, rest)),
            };
        }
    }
}

/// Splits `total` into whole parts near `wanted`; parts with `wanted` of 0 get nothing.
///
/// * `nodes`: whose parts these are; `carry` is indexed by them and holds fluid less whole bytes so far.
pub(crate) fn split(total: u128, wanted: &[f64], nodes: &[usize], carry: &mut [f64]) -> Vec<u128> {
    let aims: Vec<f64> = wanted
        .iter()
        .zip(nodes)
        .map(|(bytes, &node)| bytes + carry[node])
        .collect();
    // Conversion saturates: a negative aim becomes 0.
    let mut parts: Vec<u128> = aims.iter().map(|aim| aim.floor() as u128).collect();
    let mut order: Vec<usize> = (0..parts.len())
        .filter(|&part| wanted[part] > 0.0)
        .collect();
    for (part, bytes) in parts.iter_mut().zip(wanted) {
        if *bytes <= 0.0 {
            *part = 0;
        }
    }
    let remainder = |part: usize, parts: &[u128]| aims[part] - parts[part] as f64;
    order.sort_by(|&a, &b| {
        remainder(b, &parts)
            .total_cmp(&remainder(a, &parts))
            .then(a.cmp(&b))
    });
    let mut given: u128 = parts.iter().sum();
    // Mostly one round of single bytes. Larger steps occur only where floats run out of digits.
    while given < total && !order.is_empty() {
        let step = ((total - given) / order.len() as u128).max(1);
        for &part in &order {
            let add = step.min(total - given);
            parts[part] += add;
            given += add;
        }
    }
    while given > total {
        let step = ((given - total) / order.len() as u128).max(1);
        for &part in order.iter().rev() {
            let take = step.min(given - total).min(parts[part]);
            parts[part] -= take;
            given -= take;
        }
    }
    for ((part, aim), &node) in parts.iter().zip(&aims).zip(nodes) {
        carry[node] = aim - *part as f64;
    }
    parts
}

/// Hands out a class's bytes in order.
pub(crate) struct Cursor<'c> {
    runs: &'c [Range],
    start: u64,
}

impl<'c> Cursor<'c> {
    pub(crate) fn new(class: &'c Class) -> Self {
        let runs = class.ranges.as_slice();
        Self {
            runs,
            start: runs.first().map_or(0, |run| run.start),
        }
    }

    pub(crate) fn take(&mut self, mut bytes: u64, mut piece: impl FnMut(Range)) {
        while bytes > 0 {
            let Some(run) = self.runs.first() else {
                return;
            };
            let end = run.end.min(self.start.saturating_add(bytes));
            if self.start < end {
                piece(Range::new(self.start, end));
            }
            bytes -= end - self.start;
            self.start = end;
            if end == run.end {
                self.runs = &self.runs[1..];
                self.start = self.runs.first().map_or(end, |run| run.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parts sum to the total, and over many splits a node stays within two bytes of its fluid share.
        #[test]
        fn parts_sum_and_carry_stays_small(
            totals in proptest::collection::vec(0..2000u64, 1..60),
            weights in proptest::collection::vec(1..1000u32, 1..6),
        ) {
            let nodes: Vec<usize> = (0..weights.len()).collect();
            let mut carry = vec![0.0; weights.len()];
            let sum: u32 = weights.iter().sum();
            for total in totals {
                let wanted: Vec<f64> = weights.iter().map(|w| f64::from(*w) / f64::from(sum) * total as f64).collect();
                let parts = split(total.into(), &wanted, &nodes, &mut carry);
                prop_assert_eq!(parts.iter().sum::<u128>(), u128::from(total));
                prop_assert!(carry.iter().all(|c| c.abs() < 2.0), "{:?}", carry);
            }
        }
    }

    /// Sizes beyond the digits of a float still sum exactly, and a part of 0 stays empty.
    #[test]
    fn huge_totals_sum_exactly() {
        let total = u64::MAX - 12_345;
        let fluid = total as f64;
        let wanted = [
            fluid / 3.0,
            0.0,
            fluid / 7.0,
            fluid * (1.0 - 1.0 / 3.0 - 1.0 / 7.0),
        ];
        let parts = split(total.into(), &wanted, &[0, 1, 2, 3], &mut [0.0; 4]);
        assert_eq!(parts.iter().sum::<u128>(), u128::from(total));
        assert_eq!(parts[1], 0);
    }
}
