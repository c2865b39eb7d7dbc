//! The scheduler for everybody: exact where that costs little, else fast.

use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::greedy::spread_plan;
use crate::links::{Kind, ways_len_up_to};
use crate::reweight::GAP_WANTED;
use crate::{AUTO, Certified, Fast, Optimal, PlanError, Scheduler};

/// Runs of all nodes together up to which the exact plan is made at once: some 0.1 CPU seconds.
///
/// Measured with 10 blocks of 3 replicas a sender, the hardest family: 150,000 runs take 0.12 s, 1.5 million
/// 5 s. Windows and nested ranges of 100,000 nodes take 0.1 and 0.3 s.
const EXACT_RUNS_MAX: usize = 250_000;

/// Ways up to which a linear program, or a flow over pairs, is solved at once: some 0.05 CPU seconds.
const EXACT_WAYS_MAX: usize = 5_000;

/// Where a fast plan is not proved to be within 1 %, the exact one is made up to this many times those sizes.
const PATIENCE: usize = 10;

/// Every receiver talks to all senders in a spread plan: no more than this many.
const SPREAD_SENDERS_MAX: usize = 8;

/// And every sender to all receivers.
const SPREAD_RECEIVERS_MAX: usize = 64;

/// Receivers whose speeds differ by less than this factor are about equally fast.
const ALIKE: f64 = 1.2;

/// A spread plan may take this factor longer than the bound: less than it gains.
const SPREAD_COST: f64 = 1.005;

/// Exact while that is cheap, by counted runs, not by a clock; else fast, and exact after all where the fast
/// plan is not proved to be within 1 % and the cost is still moderate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Auto;

/// How good a plan is, and which scheduler made it.
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
        let optimal = Optimal.plan_certified(problem)?;
        let bound_seconds = optimal.bound_seconds;
        if let Some(greedy) = spread(problem, &optimal)? {
            return Ok(judged(
                "greedy",
                Certified::new(problem, greedy, bound_seconds),
            ));
        }
        return Ok(judged("optimal", optimal));
    }
    let fast = Fast.plan_certified(problem)?;
    if fast.gap() > GAP_WANTED && exact_costs(problem, PATIENCE) {
        let optimal = Optimal.plan_certified(problem)?;
        return Ok(judged("optimal", optimal));
    }
    Ok(judged("fast", fast))
}

/// The proportional plan, where each receiver wants a copy of its own or all are about equally fast, some have bytes
/// from several of a few senders, and it takes no longer.
///
/// It lets every sender serve every receiver alike. Networks share a link equally among streams, so these are the
/// rates that come about by themselves; the optimal plan has fewer lanes but unequal ones, and ran 10 %
/// longer (four senders of 50 to 200 Mbit/s to four receivers of 125).
fn spread(problem: &Problem, optimal: &Certified) -> Result<Option<Schedule>, PlanError> {
    let downs = || problem.receivers.iter().map(|r| r.down as f64);
    let alike = downs().fold(0.0, f64::max) <= downs().fold(f64::MAX, f64::min) * ALIKE;
    let own = alike || problem.receivers.iter().all(|r| r.destination.is_none());
    let few = (2..=SPREAD_SENDERS_MAX).contains(&problem.senders.len());
    if !own || !few || problem.receivers.len() > SPREAD_RECEIVERS_MAX || problem.has_links() {
        return Ok(None);
    }
    // Pairs that have each other alone share nothing.
    let pairs = pairs(&optimal.schedule);
    if pairs.windows(2).all(|two| two[0].0 != two[1].0) {
        return Ok(None);
    }
    let greedy = spread_plan(problem)?;
    let seconds = greedy.predicted_seconds(problem);
    let differs = self::pairs(&greedy) != pairs;
    Ok((differs && seconds <= optimal.bound_seconds * SPREAD_COST).then_some(greedy))
}

/// Who has anything from whom: (receiver, sender), each once, in order.
fn pairs(schedule: &Schedule) -> Vec<(usize, usize)> {
    let assignments = schedule.assignments.iter();
    let mut pairs: Vec<(usize, usize)> = assignments.map(|a| (a.receiver, a.sender)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
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
        AUTO
    }

    fn is_near_bound(&self) -> bool {
        true
    }

    fn heeds_links(&self) -> bool {
        true
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
