//! Who sends which bytes to whom: the schedulers, and the bound that no schedule can beat.
//!
//! Pure: a [`Problem`] goes in, a [`Schedule`] in whole bytes comes out. Shares are chosen in floating
//! point and accounted in integers, and every plan passes [`verify`]. Source: CEP section 3.2.
//! Left out on purpose: what happens while bytes move. Weights are soft there; see the ledger.

use ropewalk_model::Problem;
use ropewalk_model::plan_output::{PlanOutput, PlannedTransfer};

mod align;
mod bound;
mod error;
mod fast;
mod flow;
mod greedy;
mod layout;
mod linear;
mod links;
mod newton;
mod optimal;
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

pub use bound::{Bound, bound};
pub use error::{PlanError, UnknownScheduler};
pub use fast::{Certified, Fast};
pub use greedy::Greedy;
pub use optimal::Optimal;
pub use ropewalk_model::{ReceiverRun, Schedule, receiver_runs, verify};
pub use uniform::Uniform;

/// A rule that decides who sends which bytes to whom.
pub trait Scheduler: std::fmt::Debug + Send + Sync {
    /// The name by which people choose it.
    fn name(&self) -> &'static str;

    /// Plans all wanted bytes; the plan passes [`verify`]. Deterministic.
    ///
    /// # Errors
    /// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
    fn plan(&self, problem: &Problem) -> Result<Schedule, PlanError>;

    /// Time in seconds of the rule's shares before they are rounded to whole bytes, pair caps and
    /// trunks counted.
    ///
    /// # Errors
    /// As [`Scheduler::plan`].
    fn fluid_seconds(&self, problem: &Problem) -> Result<f64, PlanError>;
}

/// The scheduler of this name; `auto` is the best that is built.
///
/// # Errors
/// [`UnknownScheduler`] for names that are unknown or not built.
pub fn by_name(name: &str) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    match name {
        "uniform" => Ok(Box::new(Uniform)),
        "greedy" | "auto" => Ok(Box::new(Greedy)),
        "fast" => Ok(Box::new(Fast)),
        "optimal" => Ok(Box::new(Optimal)),
        _ => Err(UnknownScheduler::Unknown(name.to_owned())),
    }
}

/// Plans, predicts and bounds: all that `plan --json` prints.
///
/// # Errors
/// As [`Scheduler::plan`]; [`PlanError::refusal`] gives the form to print.
pub fn plan_output(problem: &Problem, scheduler: &dyn Scheduler) -> Result<PlanOutput, PlanError> {
    let schedule = scheduler.plan(problem)?;
    let bound = bound(problem)?;
    Ok(PlanOutput {
        scheduler: scheduler.name().to_owned(),
        transfers: PlannedTransfer::list(problem, &schedule),
        predicted_seconds: schedule.predicted_seconds(problem),
        bound_seconds: bound.seconds,
        bound_is_exact: bound.is_exact,
        binding: bound.binding,
    })
}
