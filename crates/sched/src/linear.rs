//! The linear program: pair caps and trunks in any mixture with shared destinations.
//!
//! Unknown are the shares x of each class that go over each way (sender to receiver), and the time t. Minimise t
//! where shares of a class sum to 1 and every limit has bytes <= speed × t. A second, smaller program names
//! the limits that set the time: prices y on the limits that are fully used, z on the classes; maximise
//! bytes × z where no way is cheaper than its class's z and speed × y sums to 1. Any such prices prove a bound,
//! whatever the digits of the solver. Sizes and times are scaled to about 1 inside.

use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, Variable};
use ropewalk_model::class::DemandTable;
use ropewalk_model::problem::Problem;

use crate::links::{Limits, Way, ways};
use crate::shares::fluid_of;

/// Ways up to which the program is solved. Measured: 5,900 ways 0.03 to 0.08 s, 19,600 ways 0.3 s, 45,000 ways
/// 1.7 s; the prices take twice as long again.
const WAYS_MAX: usize = 20_000;

/// A limit used to this share of the time counts as setting it.
const TIGHT: f64 = 1.0 - 1e-7;

/// A way whose limits let through less than this share of its class is left out where others exist:
/// it could not change the time by more, and such coefficients cost the solver its digits.
const SHARE_MIN: f64 = 1e-8;

/// The least time and shares that reach it.
#[derive(Debug)]
pub(crate) struct Solved {
    pub seconds: f64,
    pub limits: Limits,
    pub ways: Vec<Way>,
    /// Bytes over each way, fluid.
    pub bytes: Vec<f64>,
}

/// Solves the program; `None` when it is too large or the solver gives up.
///
/// * `upper_seconds`: time of some plan.
pub(crate) fn solve(problem: &Problem, table: &DemandTable, upper_seconds: f64) -> Option<Solved> {
    let limits = Limits::new(problem);
    let ways = ways(table, &limits, WAYS_MAX)?;
    if ways.is_empty() {
        return Some(Solved {
            seconds: 0.0,
            limits,
            ways,
            bytes: Vec::new(),
        });
    }
    let demand = |way: &Way| table.classes[way.class].bytes as f64;
    let scale = upper_seconds;
    let kept = useful(table, &ways, &limits, scale);
    let mut program = Program::new(OptimizationDirection::Minimize);
    let time = program.add_var(1.0, (0.0, f64::INFINITY));
    let shares: Vec<Option<Variable>> = kept
        .iter()
        .map(|&is_kept| is_kept.then(|| program.add_var(0.0, (0.0, f64::INFINITY))))
        .collect();
    let mut of_class: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); table.classes.len()];
    let mut of_limit: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); limits.speeds.len()];
    for (way, share) in ways.iter().zip(&shares) {
        let Some(share) = *share else { continue };
        of_class[way.class].push((share, 1.0));
        for &limit in &way.limits {
            let speed = limits.speeds[limit as usize] as f64;
            of_limit[limit as usize].push((share, demand(way) / speed / scale));
        }
    }
    for terms in of_class {
        program.add_constraint(terms, ComparisonOp::Eq, 1.0);
    }
    for mut terms in of_limit {
        if terms.is_empty() {
            continue;
        }
        // Rows are scaled to a largest coefficient of 1, as the tolerance is absolute.
        let largest = terms.iter().map(|(_, value)| *value).fold(1.0, f64::max);
        terms.push((time, -1.0));
        for (_, value) in &mut terms {
            *value /= largest;
        }
        program.add_constraint(terms, ComparisonOp::Le, 0.0);
    }
    let solution = program.solve().ok()?.into_solution().ok()?;
    let mut bytes: Vec<f64> = vec![0.0; ways.len()];
    let mut sums = vec![0.0; table.classes.len()];
    for (at, (way, share)) in ways.iter().zip(&shares).enumerate() {
        let value = share.map_or(0.0, |share| solution.var_value(share));
        // What rounding in the solver leaves behind is not a stream.
        bytes[at] = if value < 1e-9 { 0.0 } else { value };
        sums[way.class] += bytes[at];
    }
    for (bytes, way) in bytes.iter_mut().zip(&ways) {
        *bytes *= demand(way) / sums[way.class];
    }
    let loads = fluid_of(&ways, &bytes, limits.speeds.len());
    Some(Solved {
        seconds: seconds(&loads, &limits.speeds),
        limits,
        ways,
        bytes,
    })
}

fn seconds(loads: &[f64], speeds: &[u64]) -> f64 {
    let used = loads.iter().zip(speeds).filter(|(load, _)| **load > 0.0);
    used.map(|(load, &speed)| load / speed as f64)
        .fold(0.0, f64::max)
}

/// Which ways take part: see [`SHARE_MIN`]. The widest way of each class always does.
fn useful(table: &DemandTable, ways: &[Way], limits: &Limits, upper_seconds: f64) -> Vec<bool> {
    let width = |way: &Way| {
        let speeds = way.limits.iter().map(|&l| limits.speeds[l as usize]);
        speeds.min().unwrap_or(0) as f64
    };
    let mut widest: Vec<Option<(usize, f64)>> = vec![None; table.classes.len()];
    for (at, way) in ways.iter().enumerate() {
        let best = &mut widest[way.class];
        if best.is_none_or(|(_, known)| width(way) > known) {
            *best = Some((at, width(way)));
        }
    }
    let is_useful = |(at, way): (usize, &Way)| {
        let enough = SHARE_MIN * table.classes[way.class].bytes as f64;
        let is_widest = widest[way.class].is_some_and(|(best, _)| best == at);
        is_widest || width(way) * upper_seconds >= enough
    };
    ways.iter().enumerate().map(is_useful).collect()
}

/// The limits that together set the time, and a bound in seconds that they prove.
///
/// `None` when the solver gives up or prices do not explain the time.
pub(crate) fn prices(table: &DemandTable, solved: &Solved) -> Option<(Vec<usize>, f64)> {
    let (ways, limits) = (&solved.ways, &solved.limits);
    let loads = fluid_of(ways, &solved.bytes, limits.speeds.len());
    let mut program = Program::new(OptimizationDirection::Maximize);
    let is_tight = |limit: usize| {
        let full = limits.speeds[limit] as f64 * solved.seconds;
        loads[limit] > 0.0 && loads[limit] >= TIGHT * full
    };
    // A price is the weight of a limit: its share of all speed × price.
    let priced: Vec<Option<Variable>> = (0..loads.len())
        .map(|limit| is_tight(limit).then(|| program.add_var(0.0, (0.0, 1.0))))
        .collect();
    let weight = |limit: u32, class: usize| {
        let bytes = table.classes[class].bytes as f64;
        bytes / limits.speeds[limit as usize] as f64 / solved.seconds
    };
    // Classes with a way that costs nothing have no worth.
    let mut free = vec![false; table.classes.len()];
    for way in ways {
        free[way.class] |= way.limits.iter().all(|&l| priced[l as usize].is_none());
    }
    let worth: Vec<Option<Variable>> = free
        .iter()
        .map(|&is_free| (!is_free).then(|| program.add_var(1.0, (0.0, f64::INFINITY))))
        .collect();
    let all: Vec<(Variable, f64)> = priced.iter().flatten().map(|&price| (price, 1.0)).collect();
    program.add_constraint(all, ComparisonOp::Le, 1.0);
    for way in ways {
        let Some(worth) = worth[way.class] else {
            continue;
        };
        let mut terms: Vec<(Variable, f64)> = vec![(worth, 1.0)];
        for &limit in &way.limits {
            let price = priced[limit as usize];
            terms.extend(price.map(|price| (price, -weight(limit, way.class))));
        }
        let largest = terms
            .iter()
            .map(|(_, value)| value.abs())
            .fold(1.0, f64::max);
        for (_, value) in &mut terms {
            *value /= largest;
        }
        program.add_constraint(terms, ComparisonOp::Le, 0.0);
    }
    let solution = program.solve().ok()?.into_solution().ok()?;
    let price = |limit: usize| {
        let price = priced[limit].map_or(0.0, |price| solution.var_value(price));
        if price > 1e-9 { price } else { 0.0 }
    };
    // The proof: with these prices, each class pays at least for its cheapest way.
    let mut cheapest = vec![f64::INFINITY; table.classes.len()];
    for way in ways {
        let costs = way.limits.iter();
        let cost: f64 = costs
            .map(|&limit| price(limit as usize) * weight(limit, way.class))
            .sum();
        cheapest[way.class] = cost.min(cheapest[way.class]);
    }
    let paid: f64 = (0..loads.len()).map(price).sum();
    let proved = cheapest.iter().sum::<f64>() / paid * solved.seconds;
    let binding = (0..loads.len()).filter(|&limit| price(limit) > 0.0);
    proved.is_finite().then(|| (binding.collect(), proved))
}
