//! Moves work while bytes flow, when the transfer then ends earlier.
//!
//! The first plan follows the speeds known then, which may be guesses, and nodes slow down, join and leave. While
//! bytes flow receivers show what they get (`observe`), from which follows what nodes can carry (`estimate`). Now and
//! then the balancer compares when the last receiver would be done as things go (`foresee`) with the least time that
//! the estimated speeds allow (`room`). Receivers that are ahead of those that lag at the same sender are held back
//! (`hold`). When the difference is worth it, a **round** runs:
//!
//! ```text
//!  Balancer::look --Round: releases--> Coordinator sends Release, nodes answer with Released
//!      ^                                   |
//!      |                                   v  all have answered, or ANSWER_TIME_MAX passed
//!      |                               Balancer::share --Work--> Coordinator asks for a plan
//!      |                                                             |
//!      +------ Balancer::end_round <-- Coordinator sends Revisions <-+
//! ```
//!
//! 1. *recall*: receivers that would be late give up bytes they have not asked for yet;
//! 2. *plan*: what was returned is planned as one problem, over the rates that the work kept leaves every node (`deal`);
//! 3. *revise*: every receiver learns what is new for it, and when to be done.
//!
//! In the meantime all go on with what they kept or have under way, so a round costs messages and no time. Where
//! much could be saved everything is recalled and planned again. Where no speeds were declared, receivers first
//! take what they can from several holders; the first round then settles on few lanes (weights are soft,
//! CEP section 3.2).
//!
//! No flapping: a gain must exceed the error of what is observed; the time between rounds is a part of the time
//! left; and a round that gained hardly anything doubles it until one does, or a node joins or leaves, or
//! much more could be saved than before.
//!
//! Nothing here sends a message or changes a node: the balancer sees the transfer through a [`View`] and has a state
//! of its own.

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::Planned;
use super::view::View;

mod deal;
mod estimate;
mod foresee;
mod help;
mod hold;
mod observe;
mod recall;
mod room;

pub(super) use deal::Work;
use estimate::Estimate;
use observe::Observed;
pub(super) use recall::{Settled, Shared};
pub(super) use room::Room;

use recall::Recall;

/// A round must bring the end this much nearer, in seconds, and by more than the error of the estimates.
const GAIN_SECONDS_MIN: f64 = 0.1;

/// A round waits for this part of the time left after the one before.
const ROUND_PART: f64 = 0.2;

/// Time between two looks, at least, so that the effect of a round can be seen.
const LOOK_TIME: Nanos = Nanos(200_000_000);

/// And this much for each node: a look costs time in proportion.
const LOOK_TIME_PER_NODE: Nanos = Nanos(10_000);

/// A node that had nothing to give (its sinks may not be there yet) is not asked again for so long.
pub(super) const EMPTY_TIME: Nanos = Nanos(2_000_000_000);

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
const NEWS_TIME_MIN: Nanos = Nanos(2_000_000_000);

/// When this part of the time left could be saved, all is planned anew ...
const REBUILD: f64 = 0.2;

/// ... if at least this would still be left: lanes that become others cost some time.
const REBUILD_SECONDS_MIN: f64 = 3.0;

/// Receivers show what they can for so long before a plan without told speeds is settled ...
const EXPLORE_SECONDS: f64 = 0.55;

/// ... but the others do not wait longer than this for one that shows nothing.
const EXPLORE_TIME_MAX: Nanos = Nanos(4_000_000_000);

/// A settled plan is not judged for so long: lanes must come to rest.
const SETTLE_TIME_MAX: Nanos = Nanos(3_500_000_000);

/// With less left than this the plan is not worth settling.
const SETTLE_SECONDS_MIN: f64 = 1.5;

/// A node that has not been heard of for so long is not asked, nor given anything: agents report twice a second.
const QUIET_TIME: Nanos = Nanos(1_300_000_000);

/// A node is taken to be as fast as it can be until it had this time to begin with what it was given.
const FRESH_TIME: Nanos = Nanos(1_000_000_000);

/// Rounds that bring nothing double the pause up to this factor.
const PATIENCE_MAX: f64 = 64.0;

/// A round that brings less than this part of what it might have brought was not worth it.
const WORTH_IT: f64 = 0.25;

/// What a look decides, for the coordinator to carry out in this order.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Receivers that may not have more than so many bytes per second; `None`: no limit any more.
    pub limits: Vec<(u32, Option<u64>)>,
    /// Receivers that are asked to give up so many bytes.
    pub releases: Vec<(u32, u64)>,
    /// What an earlier round released, when it is due.
    pub shared: Shared,
}

/// What the newest round was to bring.
#[derive(Debug, Default)]
struct Newest {
    // `None` before the first round, and after news.
    when: Option<Instant>,
    // Seconds from then until the last receiver would be done, and how many of them it could save.
    last: f64,
    gain: f64,
}

/// The newest plan of everything: when it ends, and by which speeds.
#[derive(Debug, Default)]
struct WholePlan {
    end_at: Instant,
    room: Room,
}

/// What is known of one node's speed.
#[derive(Debug, Default)]
struct Track {
    observed: Observed,
    // What it can send and receive at most.
    up: Estimate,
    down: Estimate,
    // Bytes per second it is held back to.
    held: Option<f64>,
}

/// When rounds may run, and what came of them.
#[derive(Debug)]
struct Pauses {
    next_look_at: Instant,
    next_round_at: Instant,
    // Before, not even news start a round; and what part of the time the newest one could save.
    next_news_at: Instant,
    newest_part: f64,
    newest: Newest,
    // Rounds that brought nothing make the next one wait longer by this factor.
    patience: f64,
    // Bytes that had come before the newest round, and bytes that it recalled.
    last_round: (u64, u64),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Balancer {
    // One for each node.
    tracks: Vec<Track>,
    // Receivers that are held back, and senders at which that was in vain.
    waits: hold::Waits,
    // Speeds were not declared for all: receivers take what they can until a plan is settled.
    exploring: bool,
    recall: Option<Recall>,
    pauses: Pauses,
    whole_plan: WholePlan,
    // When the newest plan was asked for, and how long the one before took.
    plan_asked_at: Instant,
    planning: Nanos,
}

/// A receiver that can work.
struct Member {
    node: u32,
    // Bytes per second at present; `None` while that is not known.
    rate: Option<f64>,
    // Bytes it has still to fetch, 0 when it is done.
    left: f64,
    // Relative error of the rate: what is within it is noise.
    error: f64,
}

impl Member {
    fn speed(&self) -> f64 {
        self.rate.unwrap_or(0.0)
    }

    /// Whether anything comes to it.
    fn works(&self) -> bool {
        self.speed() > 0.0
    }

    fn seconds(&self) -> f64 {
        match self.left < 1.0 {
            true => 0.0,
            false => self.left / self.speed().max(1.0),
        }
    }

    /// What it has still to get from each sender.
    fn left_by_sender(&self, view: View<'_>) -> BTreeMap<u32, f64> {
        let able = |sender: u32| {
            let sender = view.nodes.get(sender as usize);
            sender.is_some_and(|node| node.can_send())
        };
        let left = view.node(self.node).left_by_pair.iter();
        let left = left.filter(|(sender, left)| **left > 0 && able(**sender));
        let mut left: BTreeMap<u32, f64> =
            left.map(|(&sender, &left)| (sender, left as f64)).collect();
        // It reported a while ago, and what has come is safe a while later.
        let factor = self.left / left.values().sum::<f64>().max(1.0);
        left.values_mut().for_each(|left| *left *= factor);
        left
    }
}

impl Balancer {
    /// For so many nodes.
    pub fn new(nodes: usize, now: Instant) -> Self {
        Self {
            tracks: std::iter::repeat_with(Track::default).take(nodes).collect(),
            waits: hold::Waits::default(),
            exploring: false,
            recall: None,
            pauses: Pauses {
                next_look_at: Instant::ZERO,
                next_round_at: Instant::ZERO,
                next_news_at: Instant::ZERO,
                newest_part: 0.0,
                newest: Newest::default(),
                patience: 1.0,
                last_round: (0, 0),
            },
            whole_plan: WholePlan::default(),
            plan_asked_at: now,
            planning: Nanos::ZERO,
        }
    }

    /// The first plan is about to be made; what is known of speeds is in the set-up of each node.
    pub fn begin(&mut self, view: View<'_>) {
        let mut all_known = true;
        for (track, node) in self.tracks.iter_mut().zip(view.nodes) {
            let (up, down) = (node.setup.told_up(), node.setup.told_down());
            all_known &= up.is_some() || !node.is_sender();
            all_known &= down.is_some() || !node.is_receiver();
            (track.up, track.down) = (Estimate::told(up), Estimate::told(down));
        }
        self.exploring = !all_known && !view.setup.options.fixed;
    }

    /// One more node, which may join.
    pub fn add_node(&mut self, up: Option<ByteRate>, down: Option<ByteRate>) {
        self.tracks.push(Track {
            up: Estimate::told(up),
            down: Estimate::told(down),
            ..Track::default()
        });
    }

    /// Receivers take what they can: speeds are being found out.
    pub fn is_exploring(&self) -> bool {
        self.exploring
    }

    /// Whether a round is under way.
    pub fn is_in_round(&self) -> bool {
        self.recall.is_some()
    }

    fn track(&self, node: u32) -> &Track {
        &self.tracks[node as usize]
    }

    fn observed(&self, node: u32) -> &Observed {
        &self.track(node).observed
    }

    /// The senders that a receiver has had bytes from, and the bytes per second of each.
    pub fn pairs(&self, receiver: u32) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.observed(receiver).pairs()
    }

    /// A receiver has all it was to have, `moving_for` after the start.
    pub fn finished(&mut self, node: u32, bytes: u64, moving_for: Nanos) {
        self.tracks[node as usize]
            .observed
            .finished(bytes, moving_for);
    }

    /// A plan is asked for.
    pub fn note_asked(&mut self, now: Instant) {
        self.plan_asked_at = now;
    }

    /// It is there.
    pub fn note_planned(&mut self, now: Instant) {
        self.planning = now.since(self.plan_asked_at);
    }

    /// Something changed that no pause should wait for: a node joined, left or was done.
    pub fn look_soon(&mut self) {
        self.pauses.next_look_at = Instant::ZERO;
        self.pauses.next_round_at = Instant::ZERO;
        self.pauses.newest = Newest::default();
        self.pauses.patience = 1.0;
        self.whole_plan = WholePlan::default();
    }

    /// A receiver is idle: the next look is not later than this.
    pub fn look_by(&mut self, when: Instant) {
        self.pauses.next_look_at = self.pauses.next_look_at.min(when);
        self.pauses.next_round_at = self.pauses.next_look_at;
    }

    /// Asserts what must be true between two calls. Cost O(nodes).
    pub fn check(&self, view: View<'_>) {
        debug_assert_eq!(
            self.tracks.len(),
            view.nodes.len(),
            "one track for each node"
        );
        debug_assert!(
            (1.0..=PATIENCE_MAX).contains(&self.pauses.patience),
            "patience {}",
            self.pauses.patience
        );
        debug_assert!(
            !self.exploring || self.recall.as_ref().is_none_or(|recall| !recall.settle),
            "a plan is settled while speeds are being found out"
        );
        for (track, node) in self.tracks.iter().zip(view.nodes) {
            let name = &node.setup.name;
            debug_assert!(
                track.held.is_none_or(|held| held > 0.0 && held.is_finite()),
                "{name} is held back to {:?}",
                track.held
            );
            track.up.check(name);
            track.down.check(name);
            track.observed.check(name);
        }
        if let Some(recall) = &self.recall {
            recall.check(view);
        }
    }

    /// Looks whether anything is to be done; see the module documentation. Call as time passes while bytes flow.
    /// Cost O(nodes + pairs), at most once in [`LOOK_TIME`].
    pub fn look(&mut self, view: View<'_>, now: Instant) -> Option<Round> {
        if view.is_fixed {
            return None;
        }
        let mut round = Round::default();
        if let Some(recall) = &self.recall {
            if !recall.is_overdue(now) {
                return None;
            }
            round.shared = self.share(view, now, true);
            return Some(round);
        }
        if now < self.pauses.next_look_at {
            return None;
        }
        let pause = LOOK_TIME.max(LOOK_TIME_PER_NODE * view.nodes.len() as u64);
        self.pauses.next_look_at = now + pause;
        self.estimate(view, now);
        let members = self.members(view, now);
        if members.iter().all(|member| member.left < 1.0) {
            return None;
        }
        let seconds = self.least_seconds(view, &members);
        match self.exploring {
            true => self.settle(view, &members, seconds, now, &mut round),
            false => self.improve(view, &members, seconds, now, &mut round),
        }
        Some(round)
    }

    /// Holds back receivers that are ahead, and recalls work when it could be done earlier.
    fn improve(
        &mut self,
        view: View<'_>,
        members: &[Member],
        seconds: f64,
        now: Instant,
        round: &mut Round,
    ) {
        let working = || members.iter().filter(|member| member.left >= 1.0);
        // One that joined and has no work yet has no speed to show.
        if working().any(|member| member.rate.is_none()) {
            return self.lift_holds(round);
        }
        let seconds = seconds.max(self.planned_seconds(view, now));
        let foresight = self.foresee(view, members);
        let help = self.help(view, members, &foresight, seconds);
        let held_twice = view.held_twice();
        self.hold_back(view, (members, &foresight), seconds, now, round);
        let late = members.iter().enumerate().filter(|(_, member)| {
            let has_choice = || view.has_choice(member.node, &held_twice);
            member.left >= 1.0 && has_choice() && help.takeable(view, member) > 0
        });
        let last = late
            .map(|(at, member)| foresight.seconds(at, member))
            .fold(0.0, f64::max);
        // Of those that are done it does not matter how well they are known.
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
            let most = help.takeable(view, member);
            (member.node, bytes(at, member).min(most))
        });
        let asked: Vec<(u32, u64)> = asked.collect();
        let rebuilds = gain > last * REBUILD && seconds > REBUILD_SECONDS_MIN;
        let least = RECALL_UNITS_MIN * view.unit_len;
        if !rebuilds && asked.iter().all(|(_, bytes)| *bytes < least) {
            return;
        }
        let checked = view.checked_bytes();
        if !self.pauses.allow((last, seconds), checked, now) {
            return;
        }
        match rebuilds {
            true => self.rebuild(view, members, (last, seconds), now, round),
            false => self.recall(view, asked, (last, seconds), false, now, round),
        }
    }

    /// Ends the time in which every receiver takes what it can, when enough has been seen.
    fn settle(
        &mut self,
        view: View<'_>,
        members: &[Member],
        seconds: f64,
        now: Instant,
        round: &mut Round,
    ) {
        let shown = |member: &Member| {
            member.left < 1.0 || self.observed(member.node).seconds() >= EXPLORE_SECONDS
        };
        if !members.iter().all(shown) && view.moving_for(now) < EXPLORE_TIME_MAX {
            return;
        }
        self.exploring = false;
        let held_twice = view.held_twice();
        let mut nodes = members.iter().map(|member| member.node);
        let has_choice = nodes.any(|node| view.has_choice(node, &held_twice));
        if seconds < SETTLE_SECONDS_MIN || !has_choice {
            return;
        }
        let last = members.iter().map(Member::seconds).fold(seconds, f64::max);
        self.hope(now);
        // Those that joined in the meantime had nothing to show yet.
        for (node, _) in (0..).zip(view.nodes).filter(|(_, node)| node.joined) {
            self.hope_for_room(view, node, now);
        }
        self.rebuild(view, members, (last, seconds), now, round);
    }

    /// Recalls all that is left, to be planned again: the lanes at work are not the right ones.
    fn rebuild(
        &mut self,
        view: View<'_>,
        members: &[Member],
        (last, seconds): (f64, f64),
        now: Instant,
        round: &mut Round,
    ) {
        self.lift_holds(round);
        let gain = (last - seconds).max(0.0);
        let pauses = &mut self.pauses;
        pauses.newest_part = gain / last.max(1e-9);
        pauses.next_news_at = now + NEWS_TIME_MIN;
        pauses.newest = Newest {
            when: Some(now),
            last,
            gain,
        };
        let pause = Nanos::from_seconds(seconds * ROUND_PART).clamp(LOOK_TIME, SETTLE_TIME_MAX);
        let look_at = now + pause.times(pauses.patience);
        pauses.next_round_at = look_at.max(pauses.next_round_at);
        let asked: Vec<(u32, u64)> = members
            .iter()
            .map(|member| (member.node, self.all_to_spare(member)))
            .collect();
        // Lanes will be others: what they carried says nothing of what they will.
        for member in members {
            let track = &mut self.tracks[member.node as usize];
            track.observed.start_anew(now);
        }
        self.recall(view, asked, (last, seconds), true, now, round);
    }

    /// Asks receivers to give up so many bytes each.
    fn recall(
        &mut self,
        view: View<'_>,
        asked: Vec<(u32, u64)>,
        (last, seconds): (f64, f64),
        settle: bool,
        now: Instant,
        round: &mut Round,
    ) {
        let bytes = asked.iter().map(|(_, bytes)| *bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        self.pauses.last_round = (view.checked_bytes(), bytes);
        for (node, bytes) in asked {
            let state = view.node(node);
            let quiet = now.since(state.heard_at) > QUIET_TIME;
            // One question at a time: its answer would be taken for the other's.
            let open = quiet || state.life().is_recalled();
            let worth = bytes >= RECALL_UNITS_MIN * view.unit_len && !open;
            let empty = state.gave_nothing_at;
            let empty = empty.is_some_and(|then| now.since(then) < EMPTY_TIME);
            if worth && !empty && state.done.is_none() {
                round.releases.push((node, bytes));
            }
        }
        let mut nodes = view.nodes.iter();
        if !round.releases.is_empty() || nodes.any(|node| node.life().is_recalled()) {
            self.recall = Some(Recall::new(now, (last, seconds), settle));
        }
    }

    /// Receivers that can work and report.
    fn members(&self, view: View<'_>, now: Instant) -> Vec<Member> {
        let able = |node: &u32| {
            let state = view.node(*node);
            let quiet = now.since(state.heard_at) > QUIET_TIME;
            state.is_able() && !state.life().is_leaving() && !quiet
        };
        let member = |node: u32| {
            let state = view.node(node);
            let mut rate = self.receiving_rate(view, node, now);
            if now.since(state.given_at) < FRESH_TIME {
                let most = self.track(node).down.rate().unwrap_or(0.0);
                rate = rate.map(|rate| rate.max(most));
            }
            // The status is some time old.
            let since = now.since(state.seen_at).as_seconds();
            let checked = state.checked as f64 + rate.unwrap_or(0.0) * since;
            let left = match state.done {
                Some(_) => 0.0,
                None => (state.assigned_bytes() as f64 - checked).max(0.0),
            };
            Member {
                node,
                rate,
                left,
                error: self.observed(node).error(),
            }
        };
        view.receivers().filter(able).map(member).collect()
    }

    /// The newest plan of everything is this long before its end, and knew which nodes hold what. Nodes that turn out to
    /// be faster than it took them for could end it earlier by as much as the one that is so most. 0 without such a plan.
    fn planned_seconds(&self, view: View<'_>, now: Instant) -> f64 {
        let room = self.whole_room(view);
        let faster = |present: &[f64], then: &[f64]| {
            let ratios = present.iter().zip(then).filter(|(_, then)| **then > 0.0);
            ratios
                .map(|(present, then)| present / then)
                .fold(1.0, f64::max)
        };
        let then = &self.whole_plan.room;
        let most = faster(&room.up, &then.up).max(faster(&room.down, &then.down));
        let left = self.whole_plan.end_at.since(now).as_seconds();
        match most < FASTER {
            true => left,
            false => left / most,
        }
    }

    /// A plan of everything that is left is carried out from now on.
    pub fn note_whole_plan(&mut self, view: View<'_>, planned: &Planned, now: Instant) {
        let seconds = match planned.is_near_bound {
            true => planned.predicted_seconds.min(1e9),
            false => 0.0,
        };
        self.whole_plan = WholePlan {
            end_at: now + Nanos::from_seconds(seconds),
            room: self.whole_room(view),
        };
    }

    /// What a receiver can give up without running dry before its revision comes.
    fn all_to_spare(&self, member: &Member) -> u64 {
        let planning = self.planning.as_seconds();
        let keep = if planning < UNDER_WAY_SECONDS {
            0.0
        } else {
            2.0 * planning
        };
        (member.left - member.speed() * keep).max(0.0) as u64
    }
}

impl Pauses {
    /// Whether a round may run that could end the transfer in `seconds` instead of `last`; it is taken to run then.
    ///
    /// * `checked`: bytes that receivers have checked so far.
    fn allow(&mut self, (last, seconds): (f64, f64), checked: u64, now: Instant) -> bool {
        let gain = last - seconds;
        // Something new has happened when much more could be saved than the newest round set out to save.
        let part = gain / last;
        let is_news = part > self.newest_part + NEWS && now >= self.next_news_at;
        if now < self.next_round_at && !is_news {
            return false;
        }
        self.patience = match is_news {
            true => 1.0,
            false => self.patience_after(last, checked, now),
        };
        self.newest_part = part;
        self.next_news_at = now + NEWS_TIME_MIN;
        self.newest = Newest {
            when: Some(now),
            last,
            gain,
        };
        let pause = Nanos::from_seconds(seconds.min(60.0) * ROUND_PART);
        // However little came of it: the end is not waited for.
        let pause = LOOK_TIME.max(pause).times(self.patience);
        self.next_round_at = now + pause.min(Nanos::from_seconds(last * 0.5));
        true
    }

    /// How much longer rounds wait, by what came of the newest one, when the last receiver would now be done
    /// after so many seconds.
    fn patience_after(&self, last: f64, checked: u64, now: Instant) -> f64 {
        let newest = &self.newest;
        let Some(when) = newest.when else {
            return 1.0;
        };
        let passed = now.since(when).as_seconds();
        let came = newest.last - (last + passed);
        // Work that is passed on before a node has come to do it would never be done.
        let (before, moved) = self.last_round;
        let idle = checked.saturating_sub(before) < moved / 2;
        match idle || came < newest.gain * WORTH_IT {
            true => (self.patience * 2.0).min(PATIENCE_MAX),
            false => 1.0,
        }
    }
}
