//! Which node sends which bytes to which: the schedulers, and the bound that no schedule can beat.
//!
//! Pure: makes a [`Schedule`] in whole bytes of a [`Problem`]. Shares are chosen in floating
//! point and accounted in integers, and every plan passes [`verify`]. Source: CEP section 3.2.
//! Left out on purpose: what happens while bytes move. Weights are soft there; see the ledger.

#![forbid(unsafe_code)]

use ropewalk_model::Problem;
use ropewalk_model::plan_output::{PlanOutput, PlannedTransfer};

mod align;
mod auto;
mod bound;
mod certified;
mod changing;
mod error;
mod fast;
mod flow;
mod greedy;
mod layout;
mod linear;
mod links;
mod newton;
mod optimal;
mod pairs;
mod relay;
mod reweight;
mod round;
mod shares;
mod side;
mod sides;
mod span_flow;
mod sweep;
mod uniform;
mod whole;
mod wide;

pub use auto::{Auto, Quality, plan_auto};
pub use bound::{Bound, bound};
pub use certified::Certified;
pub use changing::changing_bound;
pub use error::{PlanError, UnknownScheduler};
pub use fast::Fast;
pub use greedy::Greedy;
pub use optimal::Optimal;
pub use relay::{
    LANES_PER_NODE_MAX, RelayPlan, TRANSFER_GAIN_MIN, gaining_relays, plan_relays, plan_to_bound,
    relay_bound, relays,
};
pub use ropewalk_model::{
    ReceiverRun, RelaySchedule, Schedule, receiver_runs, relay_runs, verify, verify_relays,
};
pub use uniform::Uniform;

/// A rule that decides which node sends which bytes to which.
pub trait Scheduler: std::fmt::Debug + Send + Sync {
    /// The name by which people choose it.
    fn name(&self) -> &'static str;

    /// Plans all wanted bytes; the plan passes [`verify`]. Deterministic.
    ///
    /// # Errors
    /// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
    fn plan(&self, problem: &Problem) -> Result<Schedule, PlanError>;

    /// The plan, and the name of the scheduler that made it: another's where this one only chooses.
    ///
    /// # Errors
    /// As [`Scheduler::plan`].
    fn plan_named(&self, problem: &Problem) -> Result<(Schedule, &'static str), PlanError> {
        Ok((self.plan(problem)?, self.name()))
    }

    /// Whether its plans take about the least time that there is, so that nothing else could end much earlier.
    fn is_near_bound(&self) -> bool {
        false
    }

    /// Whether its plans follow pair caps and trunks; one that does not only leaves closed pairs out.
    fn heeds_links(&self) -> bool {
        false
    }

    /// Time in seconds of the rule's shares before they are rounded to whole bytes, pair caps and
    /// trunks counted.
    ///
    /// # Errors
    /// As [`Scheduler::plan`].
    fn fluid_seconds(&self, problem: &Problem) -> Result<f64, PlanError>;
}

/// The name of the one that chooses, and the only one that plans with relays.
pub const AUTO: &str = "auto";

/// The names that [`by_name`] knows, best first.
pub const NAMES: [&str; 5] = [AUTO, "optimal", "fast", "greedy", "uniform"];

/// The scheduler of this name.
///
/// # Errors
/// [`UnknownScheduler`] for a name that is not in [`NAMES`].
pub fn by_name(name: &str) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    match name {
        AUTO => Ok(Box::new(Auto)),
        "optimal" => Ok(Box::new(Optimal)),
        "fast" => Ok(Box::new(Fast)),
        "greedy" => Ok(Box::new(Greedy)),
        "uniform" => Ok(Box::new(Uniform)),
        _ => Err(UnknownScheduler::Unknown(name.to_owned())),
    }
}

/// Plans, predicts and bounds: all that `plan --json` prints.
///
/// # Errors
/// As [`Scheduler::plan`]; [`PlanError::refusal`] gives the form to print.
pub fn plan_output(problem: &Problem, scheduler: &dyn Scheduler) -> Result<PlanOutput, PlanError> {
    let (schedule, name) = scheduler.plan_named(problem)?;
    let bound = bound(problem)?;
    Ok(PlanOutput {
        scheduler: name.to_owned(),
        transfers: PlannedTransfer::list(problem, &schedule),
        predicted_seconds: schedule.predicted_seconds(problem),
        bound_seconds: bound.seconds,
        bound_is_exact: bound.is_exact,
        binding: bound.binding,
    })
}
