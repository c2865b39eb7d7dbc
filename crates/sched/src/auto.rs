//! The scheduler for everybody: exact where that costs little, else fast.

use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::links::{Kind, ways_len_up_to};
use crate::reweight::GAP_WANTED;
use crate::{Certified, Fast, Optimal, PlanError, Scheduler};

/// Runs of all nodes together up to which the exact plan is made at once: some 0.1 CPU seconds.
///
/// Measured with 10 blocks of 3 replicas a sender, the hardest family: 150,000 runs take 0.12 s, 1.5 million
/// 5 s. Windows and nested ranges of 100,000 nodes take 0.1 and 0.3 s.
const EXACT_RUNS_MAX: usize = 250_000;

/// Ways up to which a linear program, or a flow over pairs, is solved at once: some 0.05 CPU seconds.
const EXACT_WAYS_MAX: usize = 5_000;

/// Where a fast plan is not proved to be within 1 %, the exact one is made up to this many times those sizes.
const PATIENCE: usize = 10;

/// Exact while that is cheap, by counted runs, not by a clock; else fast, and exact after all where the fast
/// plan is not proved to be within 1 % and the cost is still moderate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Auto;

/// How good a plan is, and who made it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Name of the scheduler that made the plan: "optimal" or "fast".
    pub scheduler: &'static str,
    /// Time of the plan's loads, in seconds.
    pub predicted_seconds: f64,
    /// No plan takes less, in seconds.
    pub bound_seconds: f64,
    /// How much longer than the bound the plan takes, relatively; 0 when nothing is wanted.
    pub gap: f64,
}

/// Plans as [`Auto`] does and says how good the plan is.
///
/// Pure, so a driver may start with this plan and make the exact one beside: worth it where
/// [`Quality::scheduler`] is "fast", by [`Optimal::plan_certified`], and where what is gained, at most
/// `gap`, outweighs a new plan.
///
/// # Errors
/// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
pub fn plan_auto(problem: &Problem) -> Result<(Schedule, Quality), PlanError> {
    if exact_costs(problem, 1) {
        return Ok(judged("optimal", Optimal.plan_certified(problem)?));
    }
    let fast = Fast.plan_certified(problem)?;
    if fast.gap() > GAP_WANTED && exact_costs(problem, PATIENCE) {
        let optimal = Optimal.plan_certified(problem)?;
        return Ok(judged("optimal", optimal));
    }
    Ok(judged("fast", fast))
}

fn judged(scheduler: &'static str, certified: Certified) -> (Schedule, Quality) {
    let quality = Quality {
        scheduler,
        predicted_seconds: certified.seconds,
        bound_seconds: certified.bound_seconds,
        gap: certified.gap(),
    };
    (certified.schedule, quality)
}

/// Whether an exact plan costs at most so many times what is spent without asking.
fn exact_costs(problem: &Problem, times: usize) -> bool {
    match Kind::of(problem) {
        Kind::Sides { .. } => {
            let held = problem.senders.iter().map(|s| s.ranges.as_slice().len());
            let listed = problem.receivers.iter().map(|r| r.ranges.as_slice().len());
            held.chain(listed).sum::<usize>() <= times * EXACT_RUNS_MAX
        }
        Kind::Pairs | Kind::General => {
            let limit = times * EXACT_WAYS_MAX;
            ways_len_up_to(problem, limit) <= limit
        }
    }
}

impl Scheduler for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn plan(&self, problem: &Problem) -> Result<Schedule, PlanError> {
        Ok(plan_auto(problem)?.0)
    }

    fn plan_named(&self, problem: &Problem) -> Result<(Schedule, &'static str), PlanError> {
        let (schedule, quality) = plan_auto(problem)?;
        Ok((schedule, quality.scheduler))
    }

    fn fluid_seconds(&self, problem: &Problem) -> Result<f64, PlanError> {
        match plan_auto(problem)?.1 {
            Quality {
                scheduler: "optimal",
                ..
            } => Optimal.fluid_seconds(problem),
            fast => Ok(fast.predicted_seconds),
        }
    }
}
