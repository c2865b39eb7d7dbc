//! A plan that is nearly optimal, with a proof of how near, in time that hardly grows faster than the input.

use ropewalk_model::class::{DemandTable, uncovered};
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

use crate::align::prefer_whole_chunks;
use crate::links::{Kind, Limits, Way, ways};
use crate::reweight::{GAP_WANTED, reweighted};
use crate::round::whole_ways;
use crate::shares::{checked_table, fluid_of};
use crate::sides::plan_sides;
use crate::{Certified, Greedy, PlanError, Scheduler};

/// Shares proportional to weights that are corrected by load, round after round.
///
/// Both sides are planned so, and each proves a bound by the bytes that only its most loaded nodes can carry.
/// Rounds stop when the plan is proved to be within 1 % of the least time, or at a limit: on long chains of
/// overlapping holders the rounds converge slowly. With pair caps or trunks the weights are those of
/// all limits, and the proof is a price for each. Cost O(rows × log) a round there, O(ways) here; more than
/// about 2 million ways are left to [`Greedy`].
///
/// Source: the proportional rule of CEP section 3.2, repeated with feedback; the weights are those of
/// multiplicative updates (Arora, Hazan, Kale 2012). No proof of convergence:
/// with pair caps and speeds that differ a millionfold a plan can stay at twice the least time, and the
/// certificate says so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fast;

/// Ways up to which limits are weighted way by way; some 100 bytes each.
const WAYS_MAX: usize = 2_000_000;

/// Rounds over the ways, at most, where they cost something.
const ROUNDS_MAX: usize = 200;

/// Small problems may go on, as far as rounds × ways stay below this: some 0.2 CPU seconds.
const WORK_MAX: usize = 4_000_000;

/// And never longer than this.
const ROUNDS_SMALL_MAX: usize = 2_000;

impl Fast {
    /// Plans and proves a bound.
    ///
    /// # Errors
    /// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
    pub fn plan_certified(&self, problem: &Problem) -> Result<Certified, PlanError> {
        let missing = uncovered(problem);
        if !missing.is_empty() {
            return Err(PlanError::Uncovered { missing });
        }
        let (schedule, bound_seconds) = match Kind::of(problem) {
            Kind::Sides { trunk } => plan_sides(problem, trunk, reweighted),
            Kind::Pairs | Kind::General => over_ways(problem, &checked_table(problem)?)?,
        };
        let schedule = prefer_whole_chunks(problem, schedule);
        Ok(Certified::new(problem, schedule, bound_seconds))
    }
}

impl Scheduler for Fast {
    fn name(&self) -> &'static str {
        "fast"
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
        Ok(self.plan_certified(problem)?.seconds)
    }
}

/// The same with every limit weighted, and a bound proved by prices.
fn over_ways(problem: &Problem, table: &DemandTable) -> Result<(Schedule, f64), PlanError> {
    let limits = Limits::new(problem);
    let Some(ways) = ways(table, &limits, WAYS_MAX) else {
        return Ok((Greedy.plan(problem)?, node_bound(problem)));
    };
    let speeds: Vec<f64> = limits.speeds.iter().map(|&s| s as f64).collect();
    // Weights are kept as logarithms: products of several limits would leave the range of floats.
    let nodes = problem.senders.len() + problem.receivers.len();
    let mut weights: Vec<f64> = (0..speeds.len())
        .map(|limit| {
            if limit < nodes {
                speeds[limit].max(1.0).ln()
            } else {
                0.0
            }
        })
        .collect();
    let mut best: (f64, Vec<f64>) = (f64::INFINITY, Vec::new());
    let mut bound = node_bound(problem);
    let rounds = (WORK_MAX / ways.len().max(1)).clamp(ROUNDS_MAX, ROUNDS_SMALL_MAX);
    for round in 0..rounds {
        let bytes = shares(table, &ways, &weights);
        let loads = fluid_of(&ways, &bytes, speeds.len());
        let ratios: Vec<f64> = loads
            .iter()
            .zip(&speeds)
            .map(|(load, speed)| if *load > 0.0 { load / speed } else { 0.0 })
            .collect();
        let seconds = ratios.iter().copied().fold(0.0, f64::max);
        if seconds == 0.0 {
            break;
        }
        if seconds < best.0 {
            best = (seconds, bytes);
        }
        if round % 8 == 0 || round + 1 == rounds {
            bound = bound.max(proved(table, &ways, &speeds, &ratios, seconds));
            if best.0 <= bound * (1.0 + GAP_WANTED) {
                break;
            }
        }
        for (limit, weight) in weights.iter_mut().enumerate() {
            // A limit whose shares have vanished must come back, so no ratio counts as 0.
            let ratio = ratios[limit].max(bound * 1e-6);
            if ratio > 0.0 {
                // Half a step, as the sender and the receiver of a way both take theirs.
                *weight += 0.5 * (bound / ratio).ln();
                if limit >= nodes {
                    // Links hold back; they do not attract.
                    *weight = weight.min(0.0);
                }
            }
        }
    }
    let plan = whole_ways(table, &ways, &best.1, &limits.speeds, best.0.min(f64::MAX));
    Ok((plan, bound.min(best.0)))
}

/// What the nodes alone need.
fn node_bound(problem: &Problem) -> f64 {
    plan_sides(problem, None, reweighted).1
}

/// Bytes over each way: the class's demand in proportion to the weights of the way's limits.
fn shares(table: &DemandTable, ways: &[Way], weights: &[f64]) -> Vec<f64> {
    let mut bytes: Vec<f64> = ways
        .iter()
        .map(|way| way.limits.iter().map(|&l| weights[l as usize]).sum())
        .collect();
    for of_class in class_slices(ways, &mut bytes) {
        let (class, bytes) = of_class;
        let largest = bytes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        bytes.iter_mut().for_each(|b| *b = (*b - largest).exp());
        let sum: f64 = bytes.iter().sum();
        let demand = table.classes[class].bytes as f64;
        bytes.iter_mut().for_each(|b| *b *= demand / sum);
    }
    bytes
}

/// The parts of `values` that belong to one class each; ways are ordered by class.
fn class_slices<'v>(ways: &[Way], mut values: &'v mut [f64]) -> Vec<(usize, &'v mut [f64])> {
    let groups = ways.chunk_by(|a, b| a.class == b.class);
    let slices = groups.map(|group| {
        let (own, rest) = std::mem::take(&mut values).split_at_mut(group.len());
        values = rest;
        (group[0].class, own)
    });
    slices.collect()
}

/// A bound in seconds: with any prices on limits, every class pays at least for its cheapest way.
///
/// Prices grow with how full a limit is, gently and steeply; the best of a few counts.
fn proved(table: &DemandTable, ways: &[Way], speeds: &[f64], ratios: &[f64], seconds: f64) -> f64 {
    let mut best: f64 = 0.0;
    for steepness in [8.0, 32.0, 128.0, 512.0] {
        let full = |limit: usize| (steepness * (ratios[limit] / seconds - 1.0)).exp();
        let paid: f64 = (0..speeds.len())
            .filter(|&limit| ratios[limit] > 0.0)
            .map(full)
            .sum();
        let mut worth = 0.0;
        for group in ways.chunk_by(|a, b| a.class == b.class) {
            let cost = |way: &Way| -> f64 {
                let used = way.limits.iter().map(|&l| l as usize);
                let used = used.filter(|&limit| ratios[limit] > 0.0);
                used.map(|limit| full(limit) / speeds[limit]).sum()
            };
            let cheapest = group.iter().map(cost).fold(f64::INFINITY, f64::min);
            worth += cheapest * table.classes[group[0].class].bytes as f64;
        }
        best = best.max(worth / paid);
    }
    best
}
