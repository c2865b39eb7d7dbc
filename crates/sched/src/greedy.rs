//! The proportional rule of CEP section 3.2.

use ropewalk_model::class::DemandTable;
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::align::prefer_whole_chunks;
use crate::shares::{Weights, checked_table, fluid_seconds};
use crate::whole::whole_bytes;
use crate::{PlanError, Scheduler};

/// Splits each class over its holders in proportion to speed over demand.
///
/// A sender spreads its speed over what it holds in proportion to the demand for it, and a receiver asks the
/// senders in proportion to these weighted speeds; together, sender w gets a share proportional to
/// `up(w) / D(w)`, where `D(w)` is the wanted bytes it holds, once for each destination it can reach.
/// Receivers of one destination share by `down(r) / D(r)`, where `D(r)` is the bytes r lists. Cost O(sum over
/// classes of senders × receivers).
///
/// Source: CEP section 3.2, greedy algorithm. Differs: the paper's claims of optimality when sender limited
/// and of a factor of at most k do not hold for static shares; a slow replica can cost any factor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Scheduler for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn plan(&self, problem: &Problem) -> Result<Schedule, PlanError> {
        let table = checked_table(problem)?;
        let plan = whole_bytes(&table, &weights(problem, &table), problem.has_links());
        Ok(prefer_whole_chunks(problem, plan))
    }

    fn fluid_seconds(&self, problem: &Problem) -> Result<f64, PlanError> {
        let table = checked_table(problem)?;
        Ok(fluid_seconds(problem, &table, &weights(problem, &table)))
    }
}

/// The proportional plan in which every receiver has its part of every class from all senders alike, also where
/// receivers share a destination and fewer lanes would do. Cost as [`Greedy`].
pub(crate) fn spread_plan(problem: &Problem) -> Result<Schedule, PlanError> {
    let table = checked_table(problem)?;
    let plan = whole_bytes(&table, &weights(problem, &table), true);
    Ok(prefer_whole_chunks(problem, plan))
}

fn weights(problem: &Problem, table: &DemandTable) -> Weights {
    let mut demand = vec![0_u128; problem.senders.len()];
    for class in &table.classes {
        for &sender in class.senders.iter() {
            demand[sender] += u128::from(class.bytes);
        }
    }
    // A node without demand is in no class; 1 only keeps its unused weight finite.
    let senders = problem.senders.iter().zip(demand);
    let senders = senders.map(|(sender, demand)| sender.up as f64 / demand.max(1) as f64);
    let receivers = problem.receivers.iter().map(|receiver| {
        let listed = receiver.ranges.len_bytes();
        receiver.down as f64 / listed.max(1) as f64
    });
    Weights {
        senders: senders.collect(),
        receivers: receivers.collect(),
    }
}
