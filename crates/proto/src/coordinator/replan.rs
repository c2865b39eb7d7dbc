//! Plans anew while bytes move, when that brings the end nearer.
//!
//! The first plan follows the speeds known then, which may be guesses, and nodes slow down, join and leave. While
//! bytes flow receivers show what they get (`observe`). Now and then the master compares when the last
//! receiver would be done as things go (`foresee`) with the least time that the estimated speeds allow. Who is
//! ahead of those that lag at the same sender waits for them (`hold`). When the difference is worth it, a
//! **round** runs:
//!
//! 1. *recall*: receivers that would be late give up bytes they have not asked for yet;
//! 2. *plan*: what came back is planned as one problem, over the room that the work kept leaves every node;
//! 3. *deal*: everybody learns what is new for him, and when to be done.
//!
//! In the meantime all go on with what they kept or have under way, so a round costs messages and no time. Where
//! much could be saved everything is recalled and planned anew. Where nobody knew any speeds, receivers first
//! take what they can from several holders; the first round then settles on few lanes (weights are soft,
//! CEP section 3.2).
//!
//! No flapping: a gain must exceed the error of what is observed; the time between rounds is a part of the time
//! left; and a round that brought hardly anything doubles it until one does, or a node comes or goes, or
//! much more could be saved than before.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::plan::Room;
use super::{Coordinator, Phase, Planned};
use crate::control::{self, Run, to_agent};

mod foresee;
mod help;
mod hold;

pub(super) use hold::Waits;

/// A round must bring the end this much nearer, in seconds, and by more than the error of the estimates.
const GAIN_SECONDS_MIN: f64 = 0.1;

/// A round waits for this part of the time left after the one before.
const ROUND_PART: f64 = 0.2;

/// Time between two looks, at least, so that the effect of a round can be seen.
const LOOK_NS: u64 = 200_000_000;

/// And this much for each node: a look costs time in proportion.
const LOOK_NS_PER_NODE: u64 = 10_000;

/// A node that had nothing to give (its sinks may not be there yet) is not asked again for so long.
pub(super) const EMPTY_NS: u64 = 2_000_000_000;

/// A node gives at least this many units, or nothing.
const RECALL_UNITS_MIN: u64 = 2;

/// Planning may take this long without a receiver that gave up all running dry: so much is under way.
const UNDER_WAY_SECONDS: f64 = 0.1;

/// A receiver that has to give up more than this part of what it has left gives up all: its lanes are the wrong
/// ones.
const MISPLACED: f64 = 0.3;

/// A node that turns out to be faster than that makes a plan's time too long; less is noise.
const FASTER: f64 = 1.2;

/// A round does not wait for its turn when it could save this part of the time more than the newest one ...
const NEWS: f64 = 0.15;

/// ... which has had this long.
const NEWS_NS_MIN: u64 = 2_000_000_000;

/// When this part of the time left could be saved, all is planned anew ...
const REBUILD: f64 = 0.2;

/// ... if at least this would still be left: lanes that become others cost some time.
const REBUILD_SECONDS_MIN: f64 = 3.0;

/// Receivers show what they can for so long before a plan without told speeds is settled ...
const EXPLORE_SECONDS: f64 = 0.55;

/// ... but the others do not wait longer than this for one that shows nothing.
const EXPLORE_NS_MAX: u64 = 4_000_000_000;

/// A settled plan is not judged for so long: lanes must come to rest.
const SETTLE_NS_MAX: u64 = 3_500_000_000;

/// With less left than this the plan is not worth settling.
const SETTLE_SECONDS_MIN: f64 = 1.5;

/// A node that has not been heard of for so long is not asked, nor given anything: agents speak twice a second.
const QUIET_NS: u64 = 1_300_000_000;

/// A node is taken to be as fast as it can be until it had this time to begin with what it was given.
const FRESH_NS: u64 = 1_000_000_000;

/// A round does not wait longer for an answer.
const ANSWER_NS_MAX: u64 = 1_500_000_000;

/// Rounds that bring nothing double the pause up to this factor.
const PATIENCE_MAX: f64 = 64.0;

/// A round that brings less than this part of what it might have brought was not worth it.
const WORTH_IT: f64 = 0.25;

/// What the newest round was to bring.
#[derive(Debug, Default)]
pub(super) struct Newest {
    at_ns: u64,
    // Seconds from then until the last receiver would be done, and how many of them it could save.
    last: f64,
    gain: f64,
}

/// What a round that has its plan means for the nodes.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// When receivers should be done, nanoseconds from now; 0 = as before.
    pub expected_ns: u64,
    /// Lanes without work stand by from now on.
    pub settle: bool,
    /// Those who gave something up.
    pub givers: BTreeSet<u32>,
    /// What goes to receivers over lanes they have.
    pub kept_lanes: Vec<(u32, Vec<Run>)>,
}

impl Round {
    /// What has been given up so far.
    pub fn released(&self) -> impl Iterator<Item = &RangeSet> {
        self.released.iter().map(|(_, ranges)| ranges)
    }

    /// All that nodes gave but for these ranges goes back to them.
    pub fn give_back(&mut self, except: &RangeSet) {
        for (node, runs) in std::mem::take(&mut self.dealt) {
            let back = runs.iter().flat_map(|run| {
                let own = RangeSet::from(control::range(run.start, run.length));
                parts_of(run, &own.difference(except))
            });
            self.kept_lanes.push((node, back.collect()));
        }
    }

    /// Of what a node gave, these ranges go back to it.
    pub fn give_back_to(&mut self, node: u32, ranges: &RangeSet) {
        let own = self.dealt.iter().filter(|(giver, _)| *giver == node);
        let back = own.flat_map(|(_, runs)| runs).flat_map(|run| {
            let own = RangeSet::from(control::range(run.start, run.length));
            parts_of(run, &own.intersection(ranges))
        });
        let back = back.collect();
        self.kept_lanes.push((node, back));
    }
}

impl Settled {
    /// Whether a node has to know although it gets nothing.
    pub fn tells(&self, node: u32) -> bool {
        self.settle || self.givers.contains(&node)
    }
}

/// The newest plan of everything: when it ends, and by which speeds.
#[derive(Debug, Default)]
pub(super) struct WholePlan {
    end_ns: u64,
    room: Room,
}

/// A recall under way.
#[derive(Debug, Default)]
pub(super) struct Round {
    asked_ns: u64,
    // Seconds from then: until the last would be done without, and least time.
    last: f64,
    pub(super) seconds: f64,
    // Lanes without work stand by afterwards.
    pub(super) settle: bool,
    released: Vec<(u32, RangeSet)>,
    // The same with its senders; and of what is being planned.
    gave: Vec<(u32, Vec<Run>)>,
    dealt: Vec<(u32, Vec<Run>)>,
    givers: BTreeSet<u32>,
    // What goes to receivers over lanes they have, beside what is planned.
    pub(super) kept_lanes: Vec<(u32, Vec<Run>)>,
    // Being planned.
    is_planned: bool,
}

/// A receiver that can work.
pub(super) struct Member {
    pub node: u32,
    // Bytes per second at present; `None` while nobody can say.
    rate: Option<f64>,
    // Bytes it has still to fetch, 0 when it is done.
    pub left: f64,
    // Relative error of the rate: what is within it is noise.
    error: f64,
}

impl Member {
    fn speed(&self) -> f64 {
        self.rate.unwrap_or(0.0)
    }

    /// Whether anything comes to it.
    pub fn works(&self) -> bool {
        self.speed() > 0.0
    }

    fn seconds(&self) -> f64 {
        match self.left < 1.0 {
            true => 0.0,
            false => self.left / self.speed().max(1.0),
        }
    }
}

impl Coordinator {
    /// Looks whether a round is due; see the module documentation.
    pub(super) fn replan(&mut self, now_ns: u64) {
        if self.setup.options.fixed || self.phase != Phase::Moving {
            return;
        }
        if let Some(round) = &self.round {
            if !round.is_planned && now_ns.saturating_sub(round.asked_ns) > ANSWER_NS_MAX {
                self.share_released(now_ns, true);
            }
            return;
        }
        if now_ns < self.next_look_ns {
            return;
        }
        let pause = LOOK_NS.max(self.nodes.len() as u64 * LOOK_NS_PER_NODE);
        self.next_look_ns = now_ns + pause;
        self.estimate(now_ns);
        let members = self.members(now_ns);
        let working = || members.iter().filter(|member| member.left >= 1.0);
        if working().count() == 0 {
            return;
        }
        let seconds = self.least_seconds(&members);
        if self.exploring {
            self.settle(&members, seconds, now_ns);
            return;
        }
        // One that joined and has no work yet has no speed to show.
        if working().any(|member| member.rate.is_none()) {
            return self.lift_holds();
        }
        let seconds = seconds.max(self.planned_seconds(now_ns));
        let foresight = self.foresee(&members);
        let help = self.help(&members, &foresight, seconds);
        let held_twice = self.held_twice();
        self.hold_back(&members, &foresight, seconds, now_ns);
        let late = members.iter().enumerate().filter(|(_, member)| {
            let has_choice = || self.has_choice(member.node, &held_twice);
            member.left >= 1.0 && has_choice() && self.takeable(member, &help) > 0
        });
        let last = late
            .map(|(at, member)| foresight.seconds(at, member))
            .fold(0.0, f64::max);
        // Of those who are done it does not matter how well they are known.
        let error = working().map(|member| member.error).fold(0.0, f64::max);
        let gain = last - seconds;
        if gain.is_nan() || gain < GAIN_SECONDS_MIN.max(seconds * error) {
            return;
        }
        let bytes = |at: usize, member: &Member| {
            let over = foresight.over(at, member, seconds);
            match over > MISPLACED * member.left {
                true => self.all_to_spare(member),
                // What is within the noise stays.
                false if over < member.left * error / 2.0 => 0,
                false => over as u64,
            }
        };
        let asked = members.iter().enumerate().map(|(at, member)| {
            let most = self.takeable(member, &help);
            (member.node, bytes(at, member).min(most))
        });
        let asked: Vec<(u32, u64)> = asked.collect();
        let rebuilds = gain > last * REBUILD && seconds > REBUILD_SECONDS_MIN;
        let least = RECALL_UNITS_MIN * self.unit_len;
        if !rebuilds && asked.iter().all(|(_, bytes)| *bytes < least) {
            return;
        }
        // Something new has happened when much more could be saved than the newest round set out to save.
        let part = gain / last;
        let is_news = part > self.newest_part + NEWS && now_ns >= self.next_news_ns;
        if now_ns < self.next_round_ns && !is_news {
            return;
        }
        if is_news {
            self.patience = 1.0;
        }
        self.newest_part = part;
        self.next_news_ns = now_ns + NEWS_NS_MIN;
        if !is_news {
            self.patience = self.patience_after(last, now_ns);
        }
        self.newest = Newest {
            at_ns: now_ns,
            last,
            gain,
        };
        let pause = (seconds.min(60.0) * ROUND_PART * 1e9) as u64;
        // However little came of it: the end is not waited for.
        let pause = (LOOK_NS.max(pause) as f64 * self.patience).min(last * 0.5e9);
        self.next_round_ns = now_ns + pause as u64;
        if rebuilds {
            return self.rebuild(&members, (last, seconds), now_ns);
        }
        self.recall(asked, (last, seconds), false, now_ns);
    }

    /// How much longer rounds wait, by what came of the newest one, when the last receiver would now be done
    /// after so many seconds.
    fn patience_after(&self, last: f64, now_ns: u64) -> f64 {
        let newest = &self.newest;
        if newest.at_ns == 0 {
            return 1.0;
        }
        let passed = now_ns.saturating_sub(newest.at_ns) as f64 / 1e9;
        let came = newest.last - (last + passed);
        // Work that is passed on before anybody has come to do it would never be done.
        let come = self.checked_bytes();
        let (before, moved) = self.last_round;
        let idle = come.saturating_sub(before) < moved / 2;
        match idle || came < newest.gain * WORTH_IT {
            true => (self.patience * 2.0).min(PATIENCE_MAX),
            false => 1.0,
        }
    }

    /// Ends the time in which everybody takes what he can, when enough has been seen.
    fn settle(&mut self, members: &[Member], seconds: f64, now_ns: u64) {
        let moving = now_ns.saturating_sub(self.moving_ns.unwrap_or(now_ns));
        let shown = |member: &Member| {
            let observed = &self.nodes[member.node as usize].observed;
            member.left < 1.0 || observed.seconds() >= EXPLORE_SECONDS
        };
        if !members.iter().all(shown) && moving < EXPLORE_NS_MAX {
            return;
        }
        self.exploring = false;
        let held_twice = self.held_twice();
        let mut nodes = members.iter().map(|member| member.node);
        let has_choice = nodes.any(|node| self.has_choice(node, &held_twice));
        if seconds < SETTLE_SECONDS_MIN || !has_choice {
            return;
        }
        let last = members.iter().map(Member::seconds).fold(seconds, f64::max);
        self.hope(now_ns);
        // Those who joined in the meantime had nothing to show yet.
        for node in 0..self.nodes.len() as u32 {
            if self.nodes[node as usize].joined {
                self.hope_for_room(node, now_ns);
            }
        }
        self.rebuild(members, (last, seconds), now_ns);
    }

    /// Plans all that is left anew: the lanes at work are not the right ones.
    fn rebuild(&mut self, members: &[Member], (last, seconds): (f64, f64), now_ns: u64) {
        self.lift_holds();
        let gain = (last - seconds).max(0.0);
        self.newest_part = gain / last.max(1e-9);
        self.next_news_ns = now_ns + NEWS_NS_MIN;
        self.newest = Newest {
            at_ns: now_ns,
            last,
            gain,
        };
        let asked: Vec<(u32, u64)> = members
            .iter()
            .map(|member| (member.node, self.all_to_spare(member)))
            .collect();
        let pause = ((seconds * ROUND_PART * 1e9) as u64).clamp(LOOK_NS, SETTLE_NS_MAX);
        let look_ns = now_ns + (pause as f64 * self.patience) as u64;
        self.next_round_ns = look_ns.max(self.next_round_ns);
        // Lanes will be others: what they carried says nothing of what they will.
        for member in members {
            self.nodes[member.node as usize].observed.start_anew(now_ns);
        }
        self.recall(asked, (last, seconds), true, now_ns);
    }

    /// Asks receivers to give up so many bytes each.
    fn recall(
        &mut self,
        asked: Vec<(u32, u64)>,
        (last, seconds): (f64, f64),
        settle: bool,
        now_ns: u64,
    ) {
        let come = self.checked_bytes();
        self.last_round = (come, asked.iter().map(|(_, bytes)| bytes).sum());
        for (node, bytes) in asked {
            let state = &mut self.nodes[node as usize];
            let quiet = now_ns.saturating_sub(state.heard_ns) > QUIET_NS;
            // One question at a time: its answer would be taken for the other's.
            let open = quiet || state.releasing;
            let worth = bytes >= RECALL_UNITS_MIN * self.unit_len && !open;
            let empty = state.gave_nothing_ns;
            let empty = empty.is_some_and(|then| now_ns.saturating_sub(then) < EMPTY_NS);
            if worth && !empty && state.done.is_none() {
                state.releasing = true;
                let release = control::Release { bytes };
                self.send(node, to_agent::Body::Release(release));
            }
        }
        if self.nodes.iter().any(|node| node.releasing) {
            self.round = Some(Round {
                asked_ns: now_ns,
                last,
                seconds,
                settle,
                ..Round::default()
            });
        }
    }

    /// Asks a receiver for all it has not begun.
    pub(super) fn recall_all(&mut self, node: u32, now_ns: u64) {
        let state = &mut self.nodes[node as usize];
        if !std::mem::replace(&mut state.releasing, true) {
            let release = control::Release { bytes: u64::MAX };
            self.send(node, to_agent::Body::Release(release));
            self.round.get_or_insert_with(|| Round {
                asked_ns: now_ns,
                ..Round::default()
            });
        }
    }

    /// Bytes that receivers have checked, each by itself.
    fn checked_bytes(&self) -> u64 {
        let checked = self.nodes.iter().map(|node| node.checked);
        checked.fold(0, u64::saturating_add)
    }

    /// Receivers that can work and speak.
    pub(super) fn members(&self, now_ns: u64) -> Vec<Member> {
        let able = |node: &u32| {
            let state = &self.nodes[*node as usize];
            let quiet = now_ns.saturating_sub(state.heard_ns) > QUIET_NS;
            self.is_able(*node) && !state.leaving && !quiet
        };
        let member = |node: u32| {
            let state = &self.nodes[node as usize];
            let mut rate = self.receiving_rate(node, now_ns);
            if now_ns.saturating_sub(state.given_ns) < FRESH_NS {
                rate = rate.map(|rate| rate.max(state.down.rate().unwrap_or(0.0)));
            }
            // The status is some time old.
            let since = now_ns.saturating_sub(state.last_seen.0) as f64 / 1e9;
            let checked = state.checked as f64 + rate.unwrap_or(0.0) * since;
            let left = match state.done {
                Some(_) => 0.0,
                None => (state.assigned_bytes() as f64 - checked).max(0.0),
            };
            Member {
                node,
                rate,
                left,
                error: state.observed.error(),
            }
        };
        self.receivers().filter(able).map(member).collect()
    }

    /// The least time in which what is left could come, if any holder had it all: never more than the truth.
    pub(super) fn least_seconds(&self, members: &[Member]) -> f64 {
        let room = self.whole_room();
        let senders = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        let up: f64 = senders.map(|n| room.up[n as usize]).sum();
        let left: f64 = members.iter().map(|member| member.left).sum();
        let limit = self.setup.limit.map_or(f64::MAX, |limit| limit as f64);
        let mut groups: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        let mut least = self.least_over_trunks(members);
        least = least.max(left / up.min(limit).max(1.0));
        for member in members {
            let down = room.down[member.node as usize].max(1.0);
            match self.nodes[member.node as usize].group {
                Some(group) => {
                    let sums = groups.entry(group).or_default();
                    *sums = (sums.0 + member.left, sums.1 + down);
                }
                None => least = least.max(member.left / down),
            }
        }
        let shared = groups.into_values().map(|(left, down)| left / down);
        shared.fold(least, f64::max)
    }

    /// The newest plan of everything is this long before its end, and knew who holds what. Nodes that turn out to be
    /// faster than it took them for could end it earlier by as much as the one that is so most. 0 without such a plan.
    fn planned_seconds(&self, now_ns: u64) -> f64 {
        let room = self.whole_room();
        let faster = |now: &[f64], then: &[f64]| {
            let ratios = now.iter().zip(then).filter(|(_, then)| **then > 0.0);
            ratios.map(|(now, then)| now / then).fold(1.0, f64::max)
        };
        let then = &self.whole_plan.room;
        let most = faster(&room.up, &then.up).max(faster(&room.down, &then.down));
        let left = self.whole_plan.end_ns.saturating_sub(now_ns) as f64 / 1e9;
        match most < FASTER {
            true => left,
            false => left / most,
        }
    }

    /// A plan of everything that is left is carried out from now on.
    pub(super) fn note_whole_plan(&mut self, planned: &Planned, now_ns: u64) {
        let seconds = match planned.is_near_bound {
            true => planned.predicted_seconds.min(1e9),
            false => 0.0,
        };
        self.whole_plan = WholePlan {
            end_ns: now_ns.saturating_add((seconds * 1e9) as u64),
            room: self.whole_room(),
        };
    }

    /// Whether a plan could give the node's work to another receiver, or take it from another sender. What spares
    /// its runs name does not matter: holders join.
    pub(super) fn has_choice(&self, node: u32, held_twice: &RangeSet) -> bool {
        let state = &self.nodes[node as usize];
        let is_held_twice = |range: Range| !held_twice.clipped(range).is_empty();
        state
            .group
            .is_some_and(|group| self.groups[group as usize].1 > 1)
            || state.asked().any(is_held_twice)
    }

    pub(super) fn handle_released(&mut self, node: u32, released: &RangeSet, now_ns: u64) {
        if !std::mem::take(&mut self.nodes[node as usize].releasing) {
            return;
        }
        let state = &mut self.nodes[node as usize];
        state.gave_nothing_ns = released.is_empty().then_some(now_ns);
        // It may have been asked for a part only.
        if state.leaving && !released.is_empty() && state.done.is_none() {
            self.recall_all(node, now_ns);
        }
        self.let_go(node);
        // What a node had that stopped went to others already.
        if !released.is_empty() && self.is_able(node) {
            let gave = self.forget(node, released);
            // An answer that comes late makes a round of its own.
            let round = self.round.get_or_insert_with(|| Round {
                asked_ns: now_ns,
                ..Round::default()
            });
            round.released.push((node, released.clone()));
            round.gave.push((node, gave));
            round.givers.insert(node);
        }
        self.share_released(now_ns, false);
        self.check_done();
    }

    /// Plans what a round released, once every giver has answered or is gone, or when it is `due` all the same.
    pub(super) fn share_released(&mut self, now_ns: u64, due: bool) {
        let open = |node: &super::Node| node.releasing && node.alive();
        let waits = !due && self.nodes.iter().any(open);
        let Some(round) = self
            .round
            .as_mut()
            .filter(|round| !round.is_planned && !waits)
        else {
            return;
        };
        let released = std::mem::take(&mut round.released);
        round.dealt = std::mem::take(&mut round.gave);
        round.is_planned = true;
        if released.is_empty() {
            self.round = None;
            self.check_done();
            return;
        }
        self.deal(released, now_ns);
    }

    /// What a round recalled, and where its plan would take longer than without it, goes back to those who gave it, over
    /// the lanes that they have. True then.
    pub(super) fn is_in_vain(&mut self, planned: &Planned) -> bool {
        let Some(round) = &self.round else {
            return false;
        };
        let is_gone = |(node, _): &(u32, Vec<Run>)| {
            !self.is_able(*node) || self.nodes[*node as usize].leaving
        };
        if round.settle
            || !planned.is_near_bound
            || round.last == 0.0
            || planned.predicted_seconds <= round.last
            || round.dealt.iter().any(is_gone)
        {
            return false;
        }
        let kept = round.kept_lanes.iter().flat_map(|(_, runs)| runs);
        let kept: Vec<Range> = kept
            .map(|run| control::range(run.start, run.length))
            .collect();
        if let Some(round) = &mut self.round {
            round.give_back(&RangeSet::from_ranges(kept));
        }
        true
    }

    /// A round has its plan, which takes so many seconds.
    pub(super) fn end_round(&mut self, predicted: f64) -> Settled {
        let Some(mut round) = self.round.take() else {
            return Settled::default();
        };
        // Of the room that is left little is known, and of what takes longer than without a round nothing.
        let expected = predicted
            .max(round.seconds)
            .min(round.last.max(round.seconds));
        let settled = Settled {
            // Nothing planned: all is as before.
            expected_ns: if predicted > 0.0 {
                (expected * 1e9) as u64
            } else {
                0
            },
            settle: round.settle,
            givers: std::mem::take(&mut round.givers),
            kept_lanes: std::mem::take(&mut round.kept_lanes),
        };
        // Answers that came while it was planned make the next round.
        if !round.released.is_empty() {
            self.round = Some(Round {
                settle: false,
                is_planned: false,
                dealt: Vec::new(),
                ..round
            });
        }
        settled
    }

    /// Tells the receivers that the plan was not about that lanes without work stand by from now on.
    pub(super) fn settle_others(&mut self, told: &[u32], round: &Settled) {
        let told: BTreeSet<u32> = told.iter().copied().collect();
        let others = self.receivers().filter(|node| {
            let state = &self.nodes[*node as usize];
            !told.contains(node) && state.alive() && state.done.is_none()
        });
        for node in others.collect::<Vec<_>>() {
            let revision = control::Revision {
                expected: round.expected_ns,
                settle: true,
                ..Default::default()
            };
            self.send(node, to_agent::Body::Revision(revision));
        }
    }

    /// What a receiver can give up without running dry before it is told anew.
    fn all_to_spare(&self, member: &Member) -> u64 {
        let planning = self.planning_ns as f64 / 1e9;
        let keep = if planning < UNDER_WAY_SECONDS {
            0.0
        } else {
            2.0 * planning
        };
        (member.left - member.speed() * keep).max(0.0) as u64
    }

    /// Something changed that no pause should wait for: a node came, went or was done.
    pub(super) fn look_soon(&mut self) {
        self.next_look_ns = 0;
        self.next_round_ns = 0;
        self.newest = Newest::default();
        self.whole_plan = WholePlan::default();
        self.patience = 1.0;
    }

    /// Takes ranges out of what the plan asks of a node. Returns what it asked of them.
    pub(super) fn forget(&mut self, node: u32, ranges: &RangeSet) -> Vec<Run> {
        let runs = std::mem::take(&mut self.nodes[node as usize].runs);
        let mut forgotten = Vec::new();
        for run in runs {
            let own = RangeSet::from(control::range(run.start, run.length));
            let kept = own.difference(ranges);
            let gone = own.difference(&kept);
            let state = &mut self.nodes[node as usize];
            if let Some(left) = state.left_by_pair.get_mut(&run.sender) {
                *left = left.saturating_sub(gone.len_bytes());
            }
            forgotten.extend(parts_of(&run, &gone));
            state.runs.extend(parts_of(&run, &kept));
        }
        forgotten
    }
}

/// A run for each of the ranges, with the senders of `run`.
fn parts_of(run: &Run, ranges: &RangeSet) -> Vec<Run> {
    let part = |range: Range| Run {
        start: range.start,
        length: range.len(),
        ..run.clone()
    };
    ranges.iter().map(part).collect()
}
