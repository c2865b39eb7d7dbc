//! The bound with relays where pair caps and trunks count: a linear program.
//!
//! Unknown are the share x of each stretch that each receiver gets from each sender, the share z that it gets from
//! fellow receivers of each site, the copies y that each relay makes, and the time t. A site is all receivers that the same trunks
//! lie before and behind. For each stretch and destination, x and z
//! sum to 1; all x of a stretch to at least 1, the first copy; z from a site to at most y of its relays. No receiver gets from itself.
//! Where all that could take a destination's bytes are behind a trunk, each byte gets behind it once: from a sender, or from a site that
//! is not behind it. Limits have bytes <= speed × t. Every plan satisfies this, so the least t is a bound; whether a plan reaches
//! it is not known, since caps can keep a set of receivers apart from all others.

use std::collections::HashMap;

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem as Program, Variable};
use ropewalk_model::class::OpenPairs;
use ropewalk_model::problem::{Destination, Problem};
use ropewalk_model::range::Range;

use super::copies::{hands_on, stretches};
use super::sites::Sites;
use crate::Bound;
use crate::links::Limits;

/// Variables up to which the program is solved; see the measurements in `linear`.
const VARIABLES_MAX: usize = 20_000;

/// A limit used to this share of the time counts as setting it.
const TIGHT: f64 = 1.0 - 1e-7;

/// The bound with caps and trunks: never below `nodes`, the one without them, and never above `plain`, the one
/// without relays. Where the program is too large, `nodes`.
pub(super) fn with_links(problem: &Problem, plain: &Bound, nodes: Bound) -> Bound {
    let solved = solve(problem, plain.seconds);
    let (seconds, binding) = solved.unwrap_or((0.0, Vec::new()));
    let is_same = |time: f64| (time - plain.seconds).abs() <= 1e-6 * plain.seconds;
    let mut bound = Bound {
        exact: None,
        is_exact: false,
        ..nodes
    };
    if seconds >= bound.seconds {
        (bound.seconds, bound.binding) = (seconds.min(plain.seconds), binding);
    }
    if is_same(bound.seconds) && plain.is_exact {
        // Without any relay it is reached.
        bound.is_exact = true;
        bound.seconds = plain.seconds;
    }
    bound
}

/// The variables of one stretch.
#[derive(Default)]
struct Of {
    /// From senders: sender, receiver, share.
    direct: Vec<(usize, usize, Variable)>,
    /// From fellow receivers: their site, receiver, share.
    relayed: Vec<(usize, usize, Variable)>,
    /// Copies made: receiver, shares of all its peers together.
    made: Vec<(usize, Variable)>,
}

/// Seconds and the names of what is fully used in them; `None` when the program is too large or not solved.
fn solve(problem: &Problem, plain_seconds: f64) -> Option<(f64, Vec<String>)> {
    let destinations = problem.destinations();
    let stretches = stretches(problem, &destinations);
    if stretches.is_empty() || plain_seconds <= 0.0 {
        return None;
    }
    let limits = Limits::new(problem);
    let open = OpenPairs::new(problem);
    let sites = Sites::new(problem);
    let mut program = Program::new(OptimizationDirection::Minimize);
    let time = program.add_var(1.0, (0.0, f64::INFINITY));
    // By limit, those of relays after all others: (share, bytes that it stands for).
    let uplinks_from = limits.speeds.len();
    let mut rows: HashMap<usize, Vec<(Variable, f64)>> = HashMap::new();
    let mut variables = 0;
    for &(range, copies) in &stretches {
        let takers = takers(problem, &destinations, range);
        let holders = problem
            .senders
            .iter()
            .filter(|s| s.ranges.contains_range(range));
        // Before any is made: 10,000 nodes of each side are 100 million pairs.
        variables += takers
            .len()
            .saturating_mul(holders.count() + 1 + sites.count());
        if variables > VARIABLES_MAX {
            return None;
        }
        let of = stretch(
            problem,
            &takers,
            (&open, &sites),
            &mut program,
            range,
            copies,
        );
        let bytes = range.len() as f64;
        for &(sender, receiver, share) in &of.direct {
            for limit in limits.of(sender, receiver) {
                let row = rows.entry(limit as usize).or_default();
                row.push((share, bytes));
            }
        }
        for &(site, receiver, share) in &of.relayed {
            let limit = problem.senders.len() + receiver;
            rows.entry(limit).or_default().push((share, bytes));
            for trunk in sites.crossed(site, receiver) {
                let limit = uplinks_from - problem.trunks.len() + trunk;
                rows.entry(limit).or_default().push((share, bytes));
            }
        }
        for &(receiver, share) in &of.made {
            let row = rows.entry(uplinks_from + receiver).or_default();
            row.push((share, bytes));
        }
    }
    let speed = |limit: usize| match limit.checked_sub(uplinks_from) {
        None => limits.speeds[limit],
        Some(receiver) => problem.receivers[receiver].relay_up.unwrap_or(0),
    };
    let mut rows: Vec<(usize, Vec<(Variable, f64)>)> = rows.into_iter().collect();
    rows.sort_by_key(|row| row.0);
    for (limit, terms) in &rows {
        // Scaled to a largest coefficient of 1, as the solver's tolerance is absolute.
        let scaled = |bytes: f64| bytes / speed(*limit) as f64 / plain_seconds;
        let largest = terms.iter().map(|term| scaled(term.1)).fold(1.0, f64::max);
        let mut row: LinearExpr = LinearExpr::empty();
        for &(share, bytes) in terms {
            row.add(share, scaled(bytes) / largest);
        }
        row.add(time, -1.0 / largest);
        program.add_constraint(row, ComparisonOp::Le, 0.0);
    }
    let solution = program.solve().ok()?.into_solution().ok()?;
    let seconds = solution.var_value(time) * plain_seconds;
    let is_tight = |(limit, terms): &&(usize, Vec<(Variable, f64)>)| {
        let load: f64 = terms
            .iter()
            .map(|&(s, bytes)| solution.var_value(s) * bytes)
            .sum();
        load > 0.0 && load >= TIGHT * seconds * speed(*limit) as f64
    };
    let name = |limit: usize| match limit.checked_sub(uplinks_from) {
        None => limits.name(problem, limit),
        Some(receiver) => super::bound::uplink_name(problem, problem.senders.len() + receiver),
    };
    let binding = rows
        .iter()
        .filter(is_tight)
        .map(|row| name(row.0))
        .collect();
    Some((seconds, binding))
}

/// The receivers that live and can take bytes of a stretch, each with the position of its destination; destination by
/// destination.
fn takers(problem: &Problem, destinations: &[Destination], range: Range) -> Vec<(usize, usize)> {
    let takes = |r: usize| {
        let receiver = &problem.receivers[r];
        receiver.down > 0 && receiver.ranges.contains_range(range)
    };
    let wanted = destinations.iter().enumerate();
    let wanted = wanted.filter(|(_, destination)| destination.wanted.contains_range(range));
    let all = wanted.flat_map(|(at, destination)| {
        let receivers = destination.receivers.iter().copied();
        receivers.map(move |receiver| (at, receiver))
    });
    all.filter(|&(_, receiver)| takes(receiver)).collect()
}

/// Adds the variables of a stretch, and the rows that concern it alone.
///
/// * `takers`: as [`takers`] gives them.
fn stretch(
    problem: &Problem,
    takers: &[(usize, usize)],
    (open, sites): (&OpenPairs, &Sites),
    program: &mut Program,
    range: Range,
    copies: u64,
) -> Of {
    let share = |program: &mut Program| program.add_var(0.0, (0.0, f64::INFINITY));
    let holds = |s: &usize| problem.senders[*s].ranges.contains_range(range);
    let holders: Vec<usize> = (0..problem.senders.len()).filter(holds).collect();
    let mut of = Of::default();
    // What a receiver gets from others of its site, and the copies that it makes itself.
    let mut own: Vec<(usize, [Variable; 2])> = Vec::new();
    // Sites of relays.
    let relays = takers.iter().filter(|taker| hands_on(problem, taker.1));
    let mut from: Vec<usize> = relays.map(|taker| sites.of[taker.1]).collect();
    from.sort_unstable();
    from.dedup();
    for takers in takers.chunk_by(|a, b| a.0 == b.0) {
        let mut all: Vec<(Variable, f64)> = Vec::new();
        for &(_, receiver) in takers {
            for &sender in holders.iter().filter(|&&s| open.is_open(s, receiver)) {
                let direct = share(program);
                of.direct.push((sender, receiver, direct));
                all.push((direct, 1.0));
            }
            if copies == 1 {
                continue;
            }
            let site = sites.of[receiver];
            let mut within = None;
            for &other in &from {
                let mut trunks = sites.crossed(other, receiver);
                if trunks.any(|trunk| problem.trunks[trunk].cap == 0) {
                    continue;
                }
                let relayed = share(program);
                of.relayed.push((other, receiver, relayed));
                all.push((relayed, 1.0));
                within = within.or((other == site).then_some(relayed));
            }
            if hands_on(problem, receiver) {
                let made = share(program);
                of.made.push((receiver, made));
                own.extend(within.map(|relayed| (site, [relayed, made])));
            }
        }
        program.add_constraint(all, ComparisonOp::Eq, 1.0);
    }
    let first = of.direct.iter().map(|x| (x.2, 1.0));
    program.add_constraint(first.collect::<Vec<_>>(), ComparisonOp::Ge, 1.0);
    for site in from.into_iter().filter(|_| copies > 1) {
        // All copies that a site makes, as a variable: rows of all for each receiver would be as many entries as pairs of them.
        let copied = share(program);
        let made = of.made.iter().filter(|y| sites.of[y.0] == site);
        let made = made.map(|y| (y.1, 1.0));
        let made = made.chain(std::iter::once((copied, -1.0)));
        program.add_constraint(made.collect::<Vec<_>>(), ComparisonOp::Eq, 0.0);
        let got = of.relayed.iter().filter(|z| z.0 == site);
        let got = got.map(|z| (z.2, 1.0));
        let got = got.chain(std::iter::once((copied, -1.0)));
        program.add_constraint(got.collect::<Vec<_>>(), ComparisonOp::Le, 0.0);
        for (_, [relayed, made]) in own.iter().filter(|own| own.0 == site) {
            let others = [(*relayed, 1.0), (*made, 1.0), (copied, -1.0)];
            program.add_constraint(others, ComparisonOp::Le, 0.0);
        }
    }
    for trunk in 0..problem.trunks.len() {
        let is_behind = |receiver: usize| sites.is_behind(trunk, sites.of[receiver]);
        let mut destinations = takers.chunk_by(|a, b| a.0 == b.0);
        if !destinations.any(|takers| takers.iter().all(|taker| is_behind(taker.1))) {
            continue;
        }
        let direct = of.direct.iter().filter(|x| is_behind(x.1));
        let direct = direct.map(|x| (x.2, 1.0));
        let relayed = of.relayed.iter();
        let relayed = relayed.filter(|z| is_behind(z.1) && !sites.is_behind(trunk, z.0));
        let relayed = relayed.map(|z| (z.2, 1.0));
        let into: Vec<(Variable, f64)> = direct.chain(relayed).collect();
        program.add_constraint(into, ComparisonOp::Ge, 1.0);
    }
    of
}
