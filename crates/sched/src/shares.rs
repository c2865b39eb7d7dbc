//! Shares of a class: from weights of nodes to fluid bytes of pairs, and the time they take.

use ropewalk_model::class::{Class, DemandTable};
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::{PairIndex, TrunkIndex};

use crate::PlanError;
use crate::links::Way;

/// A weight above 0 for each node; within a class, shares are proportional to them.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub senders: Vec<f64>,
    pub receivers: Vec<f64>,
}

/// The classes of a problem, or the error that names what nobody can send.
pub(crate) fn checked_table(problem: &Problem) -> Result<DemandTable, PlanError> {
    let table = DemandTable::new(problem);
    if table.missing.is_empty() {
        return Ok(table);
    }
    Err(PlanError::Uncovered {
        missing: table.missing,
    })
}

/// The shares of one class: a matrix with a row a receiver and a column a sender, in the class's order.
///
/// A pair's share is the product of its nodes' shares; closed pairs get 0 and the rest is scaled up.
pub(crate) struct ClassShares {
    /// Row by row; sums to 1.
    pub pairs: Vec<f64>,
    /// Sum of each row.
    pub receivers: Vec<f64>,
}

impl ClassShares {
    pub(crate) fn new(table: &DemandTable, class: &Class, weights: &Weights) -> Self {
        let sender_total: f64 = class.senders.iter().map(|&s| weights.senders[s]).sum();
        let receiver_total: f64 = class.receivers.iter().map(|&r| weights.receivers[r]).sum();
        let mut pairs = Vec::with_capacity(class.senders.len() * class.receivers.len());
        for &receiver in class.receivers.iter() {
            let row = weights.receivers[receiver] / receiver_total;
            pairs.extend(class.senders.iter().map(|&sender| {
                let open = table.open.all_open() || table.open.is_open(sender, receiver);
                let share = row * (weights.senders[sender] / sender_total);
                if open { share } else { 0.0 }
            }));
        }
        let total: f64 = pairs.iter().sum();
        for share in &mut pairs {
            *share /= total;
        }
        let rows = pairs.chunks(class.senders.len());
        let receivers = rows.map(|row| row.iter().sum()).collect();
        Self { pairs, receivers }
    }
}

/// Fluid bytes over each of `limits` limits.
pub(crate) fn fluid_of(ways: &[Way], bytes: &[f64], limits: usize) -> Vec<f64> {
    let mut loads = vec![0.0; limits];
    for (way, bytes) in ways.iter().zip(bytes) {
        for &limit in &way.limits {
            loads[limit as usize] += bytes;
        }
    }
    loads
}

/// Time in seconds of the shares taken as final: the largest load over capacity of any node, pair or trunk.
pub(crate) fn fluid_seconds(problem: &Problem, table: &DemandTable, weights: &Weights) -> f64 {
    let links = problem
        .has_links()
        .then(|| (PairIndex::new(problem), TrunkIndex::new(problem)));
    let mut senders = vec![0.0; problem.senders.len()];
    let mut receivers = vec![0.0; problem.receivers.len()];
    let mut pairs = vec![0.0; problem.pair_caps.len()];
    let mut trunks = vec![0.0; problem.trunks.len()];
    for class in &table.classes {
        let shares = ClassShares::new(table, class, weights);
        let rows = shares.pairs.chunks(class.senders.len());
        for (&receiver, row) in class.receivers.iter().zip(rows) {
            for (&sender, share) in class.senders.iter().zip(row) {
                let bytes = share * class.bytes as f64;
                senders[sender] += bytes;
                receivers[receiver] += bytes;
                let Some((pair_index, trunk_index)) = links.as_ref().filter(|_| bytes > 0.0) else {
                    continue;
                };
                for &pair in pair_index.of(sender, receiver) {
                    pairs[pair] += bytes;
                }
                for trunk in trunk_index.of(sender, receiver) {
                    trunks[trunk] += bytes;
                }
            }
        }
    }
    let loads = senders.iter().zip(problem.senders.iter().map(|s| s.up));
    let loads = loads.chain(
        receivers
            .iter()
            .zip(problem.receivers.iter().map(|r| r.down)),
    );
    let loads = loads.chain(pairs.iter().zip(problem.pair_caps.iter().map(|p| p.cap)));
    let loads = loads.chain(trunks.iter().zip(problem.trunks.iter().map(|t| t.cap)));
    loads
        .filter(|(bytes, _)| **bytes > 0.0)
        .map(|(bytes, speed)| bytes / speed as f64)
        .fold(0.0, f64::max)
}
