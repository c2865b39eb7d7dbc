//! The least time of a side, by Newton's method on minimum cuts, and a flow in whole bytes that meets it.
//!
//! Guess T as the quotient of some set, let every node carry ceil(speed × T) bytes, and send as much as can be
//! sent. Where atoms stay short, they are a set with a larger quotient: take that. Capacities only rise, so
//! the flow so far stays. When nothing is short, the flow is a plan, at most a byte a node over T, and T is
//! the quotient of a set, so not above the optimum. Whether it is the optimum to the last digit takes one
//! more flow, scaled by the fraction's denominator.

use std::cmp::Ordering;

use crate::side::{Side, Tightest, ceil_share};
use crate::span_flow::SpanFlow;
use crate::sweep::fill;
use crate::wide::{Amount, Wide, compare_fractions, reduced};

/// Nodes outside the tightest set are planned again on their own at most this often; see [`levelled`].
const LEVELS_MAX: usize = 16;

/// Atoms and runs that these further plans may look at altogether.
///
/// A tenth of a second or so on one core.
const LEVELS_WORK_MAX: usize = 1_000_000;

/// Who carries how many bytes of each atom: (member, bytes), as many lists as atoms.
pub(crate) type Amounts = Vec<Vec<(u32, u128)>>;

/// The set of atoms with the largest bytes / speed, exactly. Every atom has a member that can carry it.
pub(crate) fn tightest(side: &Side) -> Tightest {
    let mut guess = vec![true; side.atoms.len()];
    loop {
        let (best, short) = match fits_in_64_bits(side) {
            true => step::<u64>(side, guess),
            false => step::<u128>(side, guess),
        };
        match short {
            None => return best,
            Some(short) => guess = short,
        }
    }
}

/// A flow in whole bytes within [`tightest`], at most a byte a member over it, and even where that is cheap:
/// members outside the tightest set carry the rest in its own least time, and so on for a few rounds.
///
/// Also returns the time in seconds of a set found: no shares take less, and these hardly more.
pub(crate) fn levelled(side: &Side) -> (Amounts, f64) {
    levelled_within(side, LEVELS_WORK_MAX)
}

/// The same, where atoms and runs looked at altogether end the rounds at `work_max`.
pub(crate) fn levelled_within(side: &Side, work_max: usize) -> (Amounts, f64) {
    let mut amounts: Amounts = vec![Vec::new(); side.atoms.len()];
    let mut rest = side.clone();
    // For each atom of the rest, its place in the whole.
    let mut places: Vec<u32> = (0..side.atoms.len() as u32).collect();
    let (mut work, mut seconds) = (0, 0.0);
    for level in 1.. {
        work += rest.atoms.len() + rest.spans_len();
        let is_last = level >= LEVELS_MAX || work > work_max;
        let (flows, tight, time) = match fits_in_64_bits(&rest) {
            true => one_level::<u64>(&rest, is_last),
            false => one_level::<u128>(&rest, is_last),
        };
        if level == 1 {
            seconds = time;
        }
        let busy = rest.touching(&tight);
        for (atom, flows) in flows.into_iter().enumerate() {
            if tight[atom] {
                amounts[places[atom] as usize] = flows;
            }
        }
        if tight.iter().all(|is_tight| *is_tight) {
            break;
        }
        let (smaller, kept) = rest.without(&tight, &busy);
        places = kept.iter().map(|&atom| places[atom as usize]).collect();
        rest = smaller;
    }
    (amounts, seconds)
}

/// A flow for all atoms, those whose amounts stand (the tightest, or all when this level `is_last`), and the
/// tightest set's seconds.
fn one_level<A: Amount>(side: &Side, is_last: bool) -> (Amounts, Vec<bool>, f64) {
    let all = vec![true; side.atoms.len()];
    let (best, mut tight, flow) = newton::<A>(side, all.clone());
    if is_last {
        tight = all;
    }
    let flows = (0..side.atoms.len()).map(|atom| {
        let mut list: Vec<(u32, u128)> = Vec::new();
        if tight[atom] {
            list.extend(
                flow.flows(atom)
                    .map(|(m, bytes)| (m as u32, bytes.to_u128())),
            );
        }
        list
    });
    // Positions in the side become positions in the problem.
    let flows = flows.map(|list| {
        let named = list.into_iter();
        let named = named.map(|(m, bytes)| (side.members[m as usize].index as u32, bytes));
        named.collect()
    });
    (flows.collect(), tight, best.seconds())
}

fn fits_in_64_bits(side: &Side) -> bool {
    bits(side.bytes()) < 63
}

/// One run of Newton in whole bytes, then the exact check: the best set, and atoms that are still short.
fn step<A: Amount>(side: &Side, guess: Vec<bool>) -> (Tightest, Option<Vec<bool>>) {
    let (best, _, flow) = newton::<A>(side, guess);
    if best.bytes == 0 {
        return (Tightest::NOTHING, None);
    }
    let (bytes, speed) = reduced(best.time());
    // Sums of capacities and of demand, with room for what the flow adds on its way.
    let speeds: u128 = side.members.iter().map(|m| u128::from(m.speed)).sum();
    let narrow = bits(speeds) + bits(bytes) < 126 && bits(side.bytes()) + bits(speed) < 126;
    let short = match narrow {
        true => short_exactly::<A, u128>(side, &flow, (bytes, speed)),
        false => short_exactly::<A, Wide>(side, &flow, (bytes, speed)),
    };
    (best, short)
}

/// The best set found, as numbers and as atoms, and a flow that carries everything within its time.
fn newton<A: Amount>(side: &Side, guess: Vec<bool>) -> (Tightest, Vec<bool>, SpanFlow<'_, A>) {
    let total = side.bytes();
    let mut tight = guess;
    let mut best = side.of_atoms(&tight);
    let wanted: Vec<A> = amounts_of(side);
    let convex = side.is_convex() || side.is_convex_by_layer();
    let share = |member: usize, time: (u128, u128)| {
        let share = ceil_share(side.members[member].speed, time);
        // Nobody carries more than all, and sums of what is left stay in range.
        A::product(share.min(total), 1)
    };
    let capacities = |best: &Tightest| -> Vec<A> {
        let members = 0..side.members.len();
        members.map(|m| share(m, reduced(best.time()))).collect()
    };
    if best.bytes == 0 || best.speed == 0 {
        let none = vec![A::default(); side.members.len()];
        return (Tightest::NOTHING, tight, SpanFlow::new(side, none, wanted));
    }
    let mut capacity = capacities(&best);
    let mut flow = SpanFlow::new(side, capacity.clone(), wanted.clone());
    fill(side, &mut flow);
    // Each round's quotient is larger than the last and belongs to some set, so this ends.
    while !flow.maximise() {
        tight = flow.short_atoms();
        let next = side.of_atoms(&tight);
        debug_assert_eq!(
            compare_fractions(next.time(), best.time()),
            Ordering::Greater
        );
        best = next;
        let raised = capacities(&best);
        if convex {
            // A new sweep is a maximum flow at once, or nearly; paths along a chain would be long.
            flow = SpanFlow::new(side, raised.clone(), wanted.clone());
            fill(side, &mut flow);
        } else {
            for member in 0..capacity.len() {
                flow.raise(member, raised[member].minus(capacity[member]));
            }
        }
        capacity = raised;
    }
    (best, tight, flow)
}

fn amounts_of<A: Amount>(side: &Side) -> Vec<A> {
    let atoms = side.atoms.iter();
    atoms.map(|atom| A::product(atom.bytes, 1)).collect()
}

/// The atoms that cannot all be carried in exactly `bytes / speed` seconds; `None` when all can.
///
/// Starts from a flow in whole bytes that is at most a byte a member over.
fn short_exactly<A: Amount, S: Amount>(
    side: &Side,
    whole: &SpanFlow<'_, A>,
    (bytes, speed): (u128, u128),
) -> Option<Vec<bool>> {
    let members = side.members.iter();
    let capacity = members.map(|m| S::product(u128::from(m.speed), bytes));
    let wanted = side.atoms.iter().map(|a| S::product(a.bytes, speed));
    let mut flow = SpanFlow::new(side, capacity.collect::<Vec<S>>(), wanted.collect());
    if side.is_convex() {
        fill(side, &mut flow);
    } else {
        for atom in 0..side.atoms.len() {
            for (member, amount) in whole.flows(atom) {
                let amount = S::product(amount.to_u128(), speed);
                let amount = amount.min(flow.left(member));
                if amount > S::default() {
                    flow.send(member, atom, amount);
                }
            }
        }
    }
    match flow.maximise() {
        true => None,
        false => Some(flow.short_atoms()),
    }
}

fn bits(value: u128) -> u32 {
    u128::BITS - value.leading_zeros()
}
