//! Transfers in which receivers hand on what they have: the bound, and a plan.
//!
//! Six copies of the same bytes take six times these bytes out of the senders, while the uplinks of the receivers
//! idle. Here each byte leaves its holders once, if they have no capacity to spare, and spreads among those that
//! want it. Left out on purpose: what happens while bytes move, and links from receiver to receiver, of which a
//! [`Problem`] knows nothing.

use ropewalk_model::RangeSet;
use ropewalk_model::problem::{Problem, Receiver, Site, Trunk};
use ropewalk_model::schedule::RelaySchedule;

use crate::{Bound, PlanError, plan_auto};

mod bound;
mod copies;
mod groups;
mod layout;
mod links;
mod plan;
mod sites;

use plan::Spread;

pub use bound::{relay_bound, relays};
pub use groups::LANES_PER_NODE_MAX;

/// Relays are planned where they gain at least this, relatively: they cost lanes, and bytes read twice.
const GAIN_MIN: f64 = 0.005;

/// Transfers have relays where these gain at least this, relatively: what a receiver hands on waits until a unit of it is there and
/// announced, which takes 2 to 8 % of the time, and holders read and hash it once more.
pub const TRANSFER_GAIN_MIN: f64 = 0.1;

/// A receiver's uplink is narrow where it carries less than this part of what the receiver gets: the acknowledgements of that share it with what is
/// handed on, wait in its queue, and hold back what the receiver gets itself.
const NARROW_PART: f64 = 0.25;

/// Receivers with narrow uplinks hand nothing on where the bound without them is longer by no more than this, relatively.
const NARROW_COST_MAX: f64 = 0.02;

/// A plan in which what is wanted at a site gets there once may take so much longer than another one, relatively, for nodes: what the paths
/// between sites carry is not known, and is mostly less than what their nodes do.
const SITES_COST_MAX: f64 = 0.25;

/// Such plans are tried with senders that give less and less, down to a quarter of their speeds.
const SITES_SLOWER_MAX: u32 = 2;

/// With caps and trunks, plans are tried in which senders give less and less, down to a 64th of their speeds.
const SLOWER_MAX: u32 = 6;

/// A plan with relays, and how good it is.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayPlan {
    /// The plan in whole bytes; it passes [`verify_relays`](crate::verify_relays).
    pub schedule: RelaySchedule,
    /// Time of the plan's loads, in seconds.
    pub seconds: f64,
    /// No plan takes less, in seconds: [`relay_bound`].
    pub bound_seconds: f64,
}

impl RelayPlan {
    /// How much longer than the bound the plan takes, relatively; 0 when nothing is wanted.
    #[must_use]
    pub fn gap(&self) -> f64 {
        match self.bound_seconds > 0.0 {
            true => (self.seconds / self.bound_seconds - 1.0).max(0.0),
            false => 0.0,
        }
    }
}

/// Plans with relays where these gain time; else as [`plan_auto`] does, so the plan is never slower than that.
///
/// Two hops, and the bound but for whole bytes (as many of a stretch as it has wanters, for a node), while no receiver
/// exchanges bytes with more than [`LANES_PER_NODE_MAX`] others and none of one destination would have to hand on.
/// Beyond that receivers form groups of 48: those that want the same stay together, and groups of one kind feed one
/// another in a tree, three from each, which takes 4 to 8 % more of the members' uplinks and a hop for each
/// level; a group of mixed wants fetches all that it wants from senders once. With caps and trunks the best of a few plans
/// in which receivers hand on more and more, among them some in which what is wanted behind a trunk crosses it once and spreads there;
/// none where a pair is closed. A plan of more than 6 million runs
/// is not made. Cost: that of the flow, and O(runs × log); at 10,000 receivers with full copies half a million
/// runs. Deterministic.
///
/// # Errors
/// [`PlanError::Uncovered`] when some wanted byte cannot reach its destination.
pub fn plan_relays(problem: &Problem) -> Result<RelayPlan, PlanError> {
    plan_to_bound(problem, &relay_bound(problem)?)
}

/// A plan with relays for a transfer, and the bound with them, where they gain at least [`TRANSFER_GAIN_MIN`].
///
/// * `seconds`: what the plan without relays takes.
/// * `is_guess`: speeds are not known. They gain then where they would if senders had half of their speeds, and are planned so:
///   receivers that need not hand on cost a few percent, senders that are slower than was guessed cost the factor by which they are.
/// * `sites`: what is wanted at one gets there once, where the plan is about as fast for the nodes; not regarded where links are declared.
///
/// # Errors
/// As [`plan_relays`].
pub fn gaining_relays(
    problem: &Problem,
    seconds: f64,
    is_guess: bool,
    sites: &[Site],
) -> Result<Option<(RelayPlan, Bound)>, PlanError> {
    if !is_guess || !relays(problem) {
        return gaining(problem, seconds, sites);
    }
    let mut slower = problem.clone();
    for sender in &mut slower.senders {
        sender.up = (sender.up / 2).max(1);
    }
    let (_, quality) = plan_auto(&slower)?;
    let Some((plan, _)) = gaining(&slower, quality.predicted_seconds, sites)? else {
        return Ok(None);
    };
    let bound = relay_bound(problem)?;
    let plan = RelayPlan {
        seconds: plan.schedule.predicted_seconds(problem),
        bound_seconds: bound.seconds,
        ..plan
    };
    Ok(Some((plan, bound)))
}

fn gaining(
    problem: &Problem,
    seconds: f64,
    sites: &[Site],
) -> Result<Option<(RelayPlan, Bound)>, PlanError> {
    let gains = |with: f64| with < seconds * (1.0 - TRANSFER_GAIN_MIN);
    if !relays(problem) {
        return Ok(None);
    }
    let bound = relay_bound(problem)?;
    if !gains(bound.seconds) {
        return Ok(None);
    }
    let wide = without_narrow(problem, &bound)?;
    let problem = wide.as_ref().unwrap_or(problem);
    let mut plan = plan_to_bound(problem, &bound)?;
    let once = once_to_sites(problem, &bound, sites);
    let is_cheap = |once: &RelayPlan| {
        gains(once.seconds) && once.seconds <= plan.seconds * (1.0 + SITES_COST_MAX)
    };
    if let Some(once) = once.filter(is_cheap) {
        plan = once;
    }
    let is_worth_it = gains(plan.seconds) && !plan.schedule.relayed.is_empty();
    Ok(is_worth_it.then_some((plan, bound)))
}

/// The same where receivers with narrow uplinks hand nothing on; `None` where there are none, or they are needed.
fn without_narrow(problem: &Problem, bound: &Bound) -> Result<Option<Problem>, PlanError> {
    let is_narrow = |receiver: &Receiver| {
        let rate = receiver.ranges.len_bytes() as f64 / bound.seconds;
        receiver
            .relay_up
            .is_some_and(|up| (up as f64) < rate * NARROW_PART)
    };
    if !problem.receivers.iter().any(is_narrow) {
        return Ok(None);
    }
    let mut wide = problem.clone();
    for receiver in wide.receivers.iter_mut().filter(|r| is_narrow(r)) {
        receiver.relay_up = None;
    }
    let without = relay_bound(&wide)?.seconds;
    Ok((without <= bound.seconds * (1.0 + NARROW_COST_MAX)).then_some(wide))
}

/// A plan for paths to the sites that carry what is wanted there once in the bound's time; `None` where there are none, or receivers hand nothing
/// on then.
fn once_to_sites(problem: &Problem, bound: &Bound, sites: &[Site]) -> Option<RelayPlan> {
    if problem.has_links() || bound.seconds <= 0.0 {
        return None;
    }
    let others = |count: usize, own: &[usize]| -> Vec<usize> {
        (0..count)
            .filter(|at| own.binary_search(at).is_err())
            .collect()
    };
    let mut narrow = problem.clone();
    for site in sites.iter().filter(|site| site.receivers.len() > 1) {
        let wants = site
            .receivers
            .iter()
            .map(|at| &problem.receivers[*at].ranges);
        let wanted = wants.fold(RangeSet::new(), |all, wants| all.union(wants));
        let trunk = Trunk {
            name: String::new(),
            senders: others(problem.senders.len(), &site.senders),
            relays: others(problem.receivers.len(), &site.receivers),
            receivers: site.receivers.clone(),
            cap: ((wanted.len_bytes() as f64 / bound.seconds).ceil() as u64).max(1),
        };
        if !trunk.senders.is_empty() || !trunk.relays.is_empty() {
            narrow.trunks.push(trunk);
        }
    }
    if narrow.trunks.is_empty() {
        return None;
    }
    let plans = (0..=SITES_SLOWER_MAX)
        .filter_map(|slower| plan::with_relays(&narrow, slower, Spread::OnceOverTrunks))
        .filter(|schedule| !schedule.relayed.is_empty())
        .map(|schedule| (schedule.predicted_seconds(&narrow), schedule));
    let (_, schedule) = plans.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(RelayPlan {
        seconds: schedule.predicted_seconds(problem),
        bound_seconds: bound.seconds,
        schedule,
    })
}

/// As [`plan_relays`], where the bound is known: it costs about as much as the plan.
///
/// * `bound`: [`relay_bound`] of the same problem, or of one that needs no more.
///
/// # Errors
/// As [`plan_relays`].
pub fn plan_to_bound(problem: &Problem, bound: &Bound) -> Result<RelayPlan, PlanError> {
    let bound_seconds = bound.seconds;
    let (direct, quality) = plan_auto(problem)?;
    let plain = RelayPlan {
        schedule: RelaySchedule {
            direct,
            relayed: Vec::new(),
        },
        seconds: quality.predicted_seconds,
        bound_seconds,
    };
    let gains = |seconds: f64| seconds < plain.seconds * (1.0 - GAIN_MIN);
    if !relays(problem) || !gains(bound_seconds) {
        return Ok(plain);
    }
    let slower_max = match problem.has_links() {
        true => SLOWER_MAX,
        false => 0,
    };
    let spreads: &[Spread] = match problem.trunks.is_empty() {
        true => &[Spread::Everywhere],
        false => &[Spread::OnceOverTrunks, Spread::Everywhere, Spread::Sites],
    };
    let mut best: Option<RelayPlan> = None;
    let ways =
        (0..=slower_max).flat_map(|slower| spreads.iter().map(move |spread| (slower, *spread)));
    for (slower, spread) in ways {
        let Some(schedule) = plan::with_relays(problem, slower, spread) else {
            continue;
        };
        let seconds = schedule.predicted_seconds(problem);
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            best = Some(RelayPlan {
                schedule,
                seconds,
                bound_seconds,
            });
        }
        // A further plan, of up to half a minute, would gain too little.
        if seconds * (1.0 - GAIN_MIN) <= bound_seconds {
            break;
        }
    }
    Ok(best.filter(|best| gains(best.seconds)).unwrap_or(plain))
}
