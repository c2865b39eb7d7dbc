//! Equal shares: the baseline that the paper compares with.

use ropewalk_model::class::DemandTable;
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::align::prefer_whole_chunks;
use crate::shares::{Weights, checked_table, fluid_seconds};
use crate::whole::whole_bytes;
use crate::{PlanError, Scheduler};

/// Splits each class evenly over all senders that hold it, and over all receivers of the destination that
/// list it, whatever their speeds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uniform;

impl Scheduler for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
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

fn weights(problem: &Problem, _: &DemandTable) -> Weights {
    Weights {
        senders: vec![1.0; problem.senders.len()],
        receivers: vec![1.0; problem.receivers.len()],
    }
}
