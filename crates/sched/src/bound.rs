//! The least possible time of a transfer, and what sets it.
//!
//! Where only node speeds count, senders and receivers part: a rate from each sender into a class and a rate
//! out of it to each receiver join to rates of pairs, so the least time is the larger of the two sides'.
//! Each side is a flow from nodes to the bytes they can carry, and its least time is the largest bytes(A) /
//! speed(nodes that can carry any of A) over all sets A. Newton's method on minimum cuts finds it: guess T, fill
//! the network at capacities speed × T; where it falls short, the minimum cut is a set with a larger quotient.
//! The flow itself is in `span_flow`. Pair caps and trunks join the sides; see `linear`.

use std::cmp::Ordering;

use ropewalk_model::class::uncovered;
use ropewalk_model::problem::{Destination, Problem};

use crate::linear;
use crate::links::{Kind, Limits};
use crate::newton::tightest;
use crate::pairs;
use crate::shares::checked_table;
use crate::side::Tightest;
use crate::sides::{Takers, sender_side, takers};
use crate::wide::{compare_fractions, reduced};
use crate::{Fast, Greedy, PlanError, Scheduler as _};

/// The least possible time of a transfer without relay.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Least time in seconds; a lower bound only, when `is_exact` is false.
    pub seconds: f64,
    /// The same as (numerator, denominator) in lowest terms; `None` with pair caps or trunks.
    pub exact: Option<(u128, u128)>,
    /// Whether a plan of this time exists, to 1e-6. False only for pair caps and trunks in a problem too
    /// large for the linear program; no plan takes less all the same.
    pub is_exact: bool,
    /// Names of what sets the bound: as long as none of these gets faster, it stays. Senders before
    /// receivers, pairs as "w0 -> r0", trunks as "trunk wan", or "trunk 0" without a name; empty when nothing is wanted, and where
    /// `is_exact` is false possibly not all of them.
    pub binding: Vec<String>,
    /// Least time in seconds if only sending speeds counted.
    pub sender_seconds: f64,
    /// Least time in seconds if only receiving speeds counted.
    pub receiver_seconds: f64,
}

/// Computes the bound.
///
/// Cost 1 to about 15 maximum flows over rows and stretches; a receiver with a destination of its own costs
/// one division. Pair caps without shared destinations are flows again, a trunk that every pair crosses is
/// a division; any other mixture takes two linear programs of up to 20,000 ways.
///
/// # Errors
/// [`PlanError::Uncovered`], as planning would.
pub fn bound(problem: &Problem) -> Result<Bound, PlanError> {
    let missing = uncovered(problem);
    if !missing.is_empty() {
        return Err(PlanError::Uncovered { missing });
    }
    let destinations = problem.destinations();
    let senders = tightest(&sender_side(problem, &destinations));
    let receivers = receiver_side(problem, &destinations);
    let limits = Limits::new(problem);
    let mut parts = vec![
        (senders.time(), senders.members.clone()),
        (receivers.time(), {
            let members = receivers.members.iter();
            members.map(|&r| problem.senders.len() + r).collect()
        }),
    ];
    let kind = Kind::of(problem);
    let mut solved = matches!(kind, Kind::Sides { .. });
    if kind == Kind::Pairs
        && let Some(flow) = pairs::solve(problem, &checked_table(problem)?, &senders)
    {
        parts[0] = (flow.time, flow.binding);
        solved = true;
    }
    if let Kind::Sides { trunk: Some(trunk) } = kind {
        let position = limits.speeds.len() - problem.trunks.len() + trunk;
        // A cap of 0 that everything crosses leaves nothing to want, or the problem is refused.
        let time = (
            problem.wanted_bytes(),
            problem.trunks[trunk].cap.max(1).into(),
        );
        parts.push((time, vec![position]));
    }
    let mut largest = ((0, 1), Vec::new());
    for (time, members) in parts {
        match compare_fractions(time, largest.0) {
            Ordering::Greater => largest = (time, members),
            Ordering::Equal if time.0 > 0 => largest.1.extend(members),
            _ => {}
        }
    }
    let (time, members) = largest;
    let named = |members: &[usize]| -> Vec<String> {
        let names = members.iter();
        names.map(|&limit| limits.name(problem, limit)).collect()
    };
    let mut bound = Bound {
        seconds: time.0 as f64 / time.1 as f64,
        exact: (!problem.has_links()).then(|| reduced(time)),
        is_exact: true,
        binding: named(&members),
        sender_seconds: senders.seconds(),
        receiver_seconds: receivers.seconds(),
    };
    if !solved {
        let linked = with_links(problem)?;
        bound.is_exact = linked.is_exact;
        // Equal but for digits: the program names all that binds, the sides only their part.
        if linked.seconds >= bound.seconds * (1.0 - SAME) && !linked.binding.is_empty() {
            bound.binding = named(&linked.binding);
        }
        bound.seconds = bound.seconds.max(linked.seconds);
    }
    Ok(bound)
}

/// Times that differ by less, relatively, are the same.
const SAME: f64 = 1e-7;

/// What the linear program proves, or the certificate of the fast scheduler.
struct Linked {
    seconds: f64,
    is_exact: bool,
    /// Positions in [`Limits::speeds`].
    binding: Vec<usize>,
}

fn with_links(problem: &Problem) -> Result<Linked, PlanError> {
    let table = checked_table(problem)?;
    let solved = linear::solve(problem, &table, Greedy.fluid_seconds(problem)?);
    if solved.as_ref().is_some_and(|solved| solved.ways.is_empty()) {
        return Ok(Linked {
            seconds: 0.0,
            is_exact: true,
            binding: Vec::new(),
        });
    }
    if let Some(solved) = solved
        && let Some((binding, proved)) = linear::prices(&table, &solved)
    {
        return Ok(Linked {
            seconds: proved.min(solved.seconds),
            is_exact: proved >= solved.seconds * (1.0 - 1e-6),
            binding,
        });
    }
    Ok(Linked {
        seconds: Fast.plan_certified(problem)?.bound_seconds,
        is_exact: false,
        binding: Vec::new(),
    })
}

/// The tightest set of receivers.
pub(crate) fn receiver_side(problem: &Problem, destinations: &[Destination]) -> Tightest {
    let mut worst = Tightest::NOTHING;
    for destination in destinations {
        let tightest = match takers(problem, destination) {
            Takers::One(None) => continue,
            Takers::One(Some(only)) => Tightest {
                bytes: u128::from(destination.wanted.len_bytes()),
                speed: u128::from(problem.receivers[only].down),
                members: vec![only],
            },
            Takers::Shared(side) => tightest(&side),
        };
        match compare_fractions(tightest.time(), worst.time()) {
            Ordering::Greater => worst = tightest,
            // Destinations that take equally long bind together, as their nodes must all get faster.
            Ordering::Equal if worst.bytes > 0 => worst.members.extend(tightest.members),
            _ => {}
        }
    }
    worst
}
