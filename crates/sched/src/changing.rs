//! The least possible time on a network that changes.

use ropewalk_model::Problem;

use crate::bound::Bound;
use crate::relay_bound;

/// Relative width at which the search for the least time stops.
const PRECISION: f64 = 1e-6;

/// A longer time is taken for never, seconds (thirty years).
const NEVER: f64 = 1e9;

/// Least time in seconds that any mover needs, and what sets it; `None` when some byte can never arrive.
///
/// `carried` gives the transfer as a planner would see it whose unit of time is the first so many seconds: for speeds it has
/// the bytes that each node can carry in them. The answer is the least T such that the transfer fits into T seconds on a
/// network whose nodes have, all the time, the mean speed they have over [0, T]. It is a **lower bound**: what a node could
/// do only after the bytes it needs were gone, or before it had any, counts all the same.
///
/// Cost: about 40 bounds, each the cost of [`relay_bound`].
#[must_use]
pub fn changing_bound(carried: impl Fn(f64) -> Problem) -> Option<(f64, Bound)> {
    // A plan that cannot reach all bytes with what there is so far does not fit.
    let fit = |seconds: f64| {
        let bound = relay_bound(&carried(seconds)).ok();
        bound.filter(|bound| bound.seconds <= 1.0)
    };
    let mut long = 1.0;
    let mut found = loop {
        match fit(long) {
            Some(bound) => break bound,
            None => long *= 2.0,
        }
        if long > NEVER {
            return None;
        }
    };
    let mut short = 0.0;
    while long - short > long * PRECISION {
        let middle = (long + short) / 2.0;
        match fit(middle) {
            Some(bound) => (long, found) = (middle, bound),
            None => short = middle,
        }
        // Nothing wanted takes no time.
        if long < 1e-12 {
            return Some((0.0, found));
        }
    }
    Some((long, found))
}
