//! The plan that takes the least possible time.

use ropewalk_model::class::uncovered;
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::align::prefer_whole_chunks;
use crate::bound::receiver_side;
use crate::linear;
use crate::links::Kind;
use crate::newton::{levelled, tightest};
use crate::pairs;
use crate::round::whole_ways;
use crate::shares::checked_table;
use crate::sides::{plan_sides, sender_side};
use crate::{Certified, Fast, Greedy, PlanError, Scheduler, bound};

/// Shares so that the last byte arrives as early as it can, in whole bytes.
///
/// No node's load is more than 4 bytes over its speed × the least time. Where only node speeds count,
/// each side is a maximum flow in whole bytes, and what sets one side's time leaves rate on the other: each side,
/// and within it whatever lies outside the tightest set, is planned for its own least time as far as that
/// costs little. Pieces are few and runs long: replicas of equal speed and receivers of equal speed that share
/// a destination are paired one to one. Cost: 1 to about 15 maximum flows over rows and stretches.
///
/// Source: the linear programming algorithm of CEP section 3.2. Differs: flows and cuts instead of a linear
/// program where they suffice, which is almost always.
#[derive(Debug, Clone, Copy, Default)]
pub struct Optimal;

impl Optimal {
    /// Plans, and proves a bound on the way: that of the plan but for whole bytes, except where pair caps and
    /// trunks made the problem too large for the linear program and [`Fast`] planned it.
    ///
    /// [`bound`] finds the exact fraction and what sets it; this is cheaper when the plan is wanted.
    ///
    /// # Errors
    /// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
    pub fn plan_certified(&self, problem: &Problem) -> Result<Certified, PlanError> {
        let missing = uncovered(problem);
        if !missing.is_empty() {
            return Err(PlanError::Uncovered { missing });
        }
        let kind = Kind::of(problem);
        if let Kind::Sides { trunk } = kind {
            let (plan, bound) = plan_sides(problem, trunk, levelled);
            let plan = prefer_whole_chunks(problem, plan);
            return Ok(Certified::new(problem, plan, bound));
        }
        let table = checked_table(problem)?;
        if kind == Kind::Pairs {
            let destinations = problem.destinations();
            let senders = tightest(&sender_side(problem, &destinations));
            if let Some(solved) = pairs::solve(problem, &table, &senders) {
                let receivers = receiver_side(problem, &destinations).seconds();
                let seconds = solved.time.0 as f64 / solved.time.1 as f64;
                let plan = solved.plan(problem, &table);
                return Ok(Certified::new(problem, plan, seconds.max(receivers)));
            }
        }
        let Some(solved) = linear::solve(problem, &table, Greedy.fluid_seconds(problem)?) else {
            return Fast.plan_certified(problem);
        };
        let speeds = &solved.limits.speeds;
        let plan = whole_ways(&table, &solved.ways, &solved.bytes, speeds, solved.seconds);
        let mut certified = Certified::new(problem, plan, solved.seconds);
        // The program's last digits are those of floats, and whole bytes may come out below them.
        certified.bound_seconds = certified.bound_seconds.min(certified.seconds);
        Ok(certified)
    }
}

impl Scheduler for Optimal {
    fn name(&self) -> &'static str {
        "optimal"
    }

    fn is_near_bound(&self) -> bool {
        true
    }

    fn heeds_links(&self) -> bool {
        true
    }

    fn plan(&self, problem: &Problem) -> Result<Schedule, PlanError> {
        Ok(self.plan_certified(problem)?.schedule)
    }

    fn fluid_seconds(&self, problem: &Problem) -> Result<f64, PlanError> {
        Ok(bound(problem)?.seconds)
    }
}
