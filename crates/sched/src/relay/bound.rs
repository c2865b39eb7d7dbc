//! The least possible time where receivers hand on what they have.
//!
//! Every byte leaves an original holder at least once; each further copy is sent by any node that has the byte in
//! the end: a holder, or one of its receivers. So the uplinks carry two layers of bytes, the first copy of each
//! and the further ones, and the least time of that side is a flow as it is without relays. The receiving side
//! does not change. No plan takes less, and one of two hops takes no more: a receiver that is to hand on y bytes of
//! a stretch that M want fetches y / (M - 1) of its bytes first and passes each on to the M - 1 others.
//! For data that all M want this is max(L / slowest downlink, L / uplinks of senders, M L / all uplinks).
//! Source: Kumar and Ross 2006; Mundinger, Weber and Weiss 2008. Ours: any holdings and wants.

use std::cmp::Ordering;

use ropewalk_model::problem::{Destination, Problem};

use super::copies::{hands_on, own_relays, relay, senders, stretches};
use super::links;
use crate::bound::receiver_side;
use crate::newton::tightest;
use crate::side::{Layer, Side, Tightest};
use crate::wide::{compare_fractions, reduced};
use crate::{Bound, PlanError, bound};

/// Whether any receiver hands on bytes that another one wants, too.
#[must_use]
pub fn relays(problem: &Problem) -> bool {
    let any = (0..problem.receivers.len()).any(|r| hands_on(problem, r));
    let is_copied = || {
        let stretches = stretches(problem, &problem.destinations());
        stretches.iter().any(|(_, copies)| *copies > 1)
    };
    any && is_copied()
}

/// Computes the bound with relays; that of [`bound`] where [`relays`] is false.
///
/// `sender_seconds` are those of all uplinks, of receivers too, which `binding` calls "r0's uplink". Not
/// exact with pair caps and trunks, which are left to a linear program and where `binding` names all that one of its
/// solutions uses fully, nor where receivers of one destination
/// would have to hand on, as each has a part only. Cost as [`bound`], with twice the stretches.
///
/// # Errors
/// [`PlanError::Uncovered`], as planning would.
pub fn relay_bound(problem: &Problem) -> Result<Bound, PlanError> {
    let plain = bound(problem)?;
    if !relays(problem) {
        return Ok(plain);
    }
    let nodes = of_nodes(problem);
    if !problem.has_links() {
        return Ok(nodes);
    }
    Ok(links::with_links(problem, &plain, nodes))
}

/// Where only the speeds of nodes count.
fn of_nodes(problem: &Problem) -> Bound {
    let destinations = problem.destinations();
    let all = (0..problem.receivers.len()).filter(|&r| hands_on(problem, r));
    let uplinks = uplinks(problem, &destinations, all);
    let own = own_relays(problem, &destinations);
    let own: Vec<usize> = own.into_iter().flatten().collect();
    let receivers = receiver_side(problem, &destinations);
    let later = compare_fractions(uplinks.time(), receivers.time());
    let mut largest = match later {
        Ordering::Less => receivers.time(),
        _ => uplinks.time(),
    };
    if largest.0 == 0 {
        largest = (0, 1);
    }
    // What is needed of receivers that share a destination may be more than they have.
    let all = (0..problem.receivers.len()).filter(|&r| hands_on(problem, r));
    let is_exact = all.count() == own.len() || {
        let without = self::uplinks(problem, &destinations, own.into_iter());
        compare_fractions(without.time(), largest) != Ordering::Greater
    };
    let mut binding = Vec::new();
    if later != Ordering::Less && uplinks.bytes > 0 {
        binding.extend(
            uplinks
                .members
                .iter()
                .map(|&node| uplink_name(problem, node)),
        );
    }
    if later != Ordering::Greater && receivers.bytes > 0 {
        let names = receivers.members.iter();
        binding.extend(names.map(|&r| problem.receivers[r].name.clone()));
    }
    Bound {
        seconds: largest.0 as f64 / largest.1 as f64,
        exact: Some(reduced(largest)),
        is_exact,
        binding,
        sender_seconds: uplinks.seconds(),
        receiver_seconds: receivers.seconds(),
    }
}

/// The tightest set of uplinks.
fn uplinks(
    problem: &Problem,
    destinations: &[Destination],
    relays: impl Iterator<Item = usize>,
) -> Tightest {
    let wanted = stretches(problem, destinations);
    let first = wanted.iter().map(|&(range, _)| (range, 1));
    let further = wanted.iter().filter(|(_, copies)| *copies > 1);
    let layers = [
        Layer {
            nodes: Vec::new(),
            demand: first.collect(),
        },
        Layer {
            nodes: relays.map(|r| relay(problem, r)).collect(),
            demand: further
                .map(|&(range, copies)| (range, copies - 1))
                .collect(),
        },
    ];
    tightest(&Side::layered(&senders(problem), &layers))
}

/// The name of a sender, or "r0's uplink" of a receiver, whose positions are after those of all senders.
pub(super) fn uplink_name(problem: &Problem, node: usize) -> String {
    match node.checked_sub(problem.senders.len()) {
        None => problem.senders[node].name.clone(),
        Some(receiver) => format!("{}'s uplink", problem.receivers[receiver].name),
    }
}
