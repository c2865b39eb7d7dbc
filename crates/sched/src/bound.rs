//! The least possible time of a transfer, and what sets it.
//!
//! Where only node speeds count, senders and receivers part: a rate from each sender into a class and a rate
//! out of it to each receiver join to rates of pairs, so the least time is the larger of the two sides'.
//! Each side is a flow from nodes to the bytes they can carry, and its least time is the largest bytes(A) /
//! speed(nodes that can carry any of A) over all sets A. Newton's method on minimum cuts finds it: guess T, fill
//! the network at capacities speed × T; where it falls short, the minimum cut is a set with a larger quotient.
//! The flow itself is in `side`.

use std::cmp::Ordering;

use ropewalk_model::class::uncovered;
use ropewalk_model::problem::{Destination, Problem};

use crate::PlanError;
use crate::newton::tightest;
use crate::side::Tightest;
use crate::sides::{Takers, sender_side, takers};
use crate::wide::{compare_fractions, reduced};

/// The least possible time of a transfer without relay.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Least time in seconds; a lower bound only, when `is_exact` is false.
    pub seconds: f64,
    /// The same as (numerator, denominator) in lowest terms; `None` when `is_exact` is false.
    pub exact: Option<(u128, u128)>,
    /// False when pair caps or trunks exist: node speeds alone are counted then.
    pub is_exact: bool,
    /// Names of the nodes that together set the bound: as long as none of them gets faster, it stays.
    /// Senders before receivers, both only when the sides take equally long; empty when nothing is wanted.
    pub binding: Vec<String>,
    /// Least time in seconds if only sending speeds counted.
    pub sender_seconds: f64,
    /// Least time in seconds if only receiving speeds counted.
    pub receiver_seconds: f64,
}

/// Computes the bound.
///
/// Cost O(rows × log) edges and 1 to about 15 maximum flows over them; a receiver with a destination of its own
/// costs one division.
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
    let order = compare_fractions(senders.time(), receivers.time());
    let larger = if order == Ordering::Less {
        &receivers
    } else {
        &senders
    };
    let is_exact = !problem.has_links();
    let exact = reduced(larger.time());
    let mut binding: Vec<String> = Vec::new();
    if larger.bytes > 0 {
        if order != Ordering::Less {
            binding.extend(
                senders
                    .members
                    .iter()
                    .map(|&s| problem.senders[s].name.clone()),
            );
        }
        if order != Ordering::Greater {
            binding.extend(
                receivers
                    .members
                    .iter()
                    .map(|&r| problem.receivers[r].name.clone()),
            );
        }
    }
    Ok(Bound {
        seconds: larger.seconds(),
        exact: is_exact.then_some(exact),
        is_exact,
        binding,
        sender_seconds: senders.seconds(),
        receiver_seconds: receivers.seconds(),
    })
}

fn receiver_side(problem: &Problem, destinations: &[Destination]) -> Tightest {
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
