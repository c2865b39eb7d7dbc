//! Receivers that are far ahead wait for those that are behind.
//!
//! TCP may divide a busy sender among its lanes as it likes, for many seconds. A receiver that gets more than its
//! part is done early, one that gets less is left with more than it can take in the end, and then senders are idle. So while a
//! lane lags behind what its receiver needs of it, those that share its busy sender and are ahead of what they need
//! are limited to that. It costs nothing while the sender stays busy; when it does not, the one that lags is held up by
//! itself or by its path, which shows now, and the limits end.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Nanos};

use super::foresee::Foresight;
use super::{Balancer, FRESH_TIME, Member, Round, View};

/// A lane, or a receiver, with less than this part of the speed that is needed lags.
const LAGS: f64 = 0.8;

/// One with so many times the speed it needs is ahead.
const AHEAD: f64 = 1.2;

/// What those that are held back may have of what they need.
const HELD: f64 = 1.05;

/// With less time left than this nobody is held back.
const SECONDS_MIN: f64 = 1.5;

/// A limit is told anew when it changes by this part.
const CHANGE: f64 = 0.1;

/// Who has so few units left is not worth a limit, and none is below [`UNITS_PER_SECOND_MIN`].
const UNITS_MIN: u64 = 8;

/// See [`UNITS_MIN`]: grants are whole units.
const UNITS_PER_SECOND_MIN: u64 = 4;

/// At a sender that went idle while receivers waited nobody waits for so long.
const IN_VAIN_TIME: Nanos = Nanos(5_000_000_000);

/// Where receivers wait, and where they waited in vain, until when.
#[derive(Debug, Default)]
pub(super) struct Waits {
    at: BTreeSet<u32>,
    not_before: BTreeMap<u32, Instant>,
}

impl Balancer {
    /// Holds back who is ahead; all should be done after so many seconds. Cost O(pairs with something left).
    pub(super) fn hold_back(
        &mut self,
        view: View<'_>,
        (members, foresight): (&[Member], &Foresight),
        seconds: f64,
        now: Instant,
        round: &mut Round,
    ) {
        if view.setup.limit.is_some() {
            return;
        }
        if seconds < SECONDS_MIN {
            return self.lift_holds(round);
        }
        let lacking = self.lacking_senders(view, (members, foresight), seconds, now);
        let least = (UNITS_PER_SECOND_MIN * view.unit_len) as f64;
        let limit = |(at, member): (usize, &Member)| {
            let node = self.track(member.node);
            let (needed, speed) = (member.left / seconds, node.observed.recent());
            let shares = || {
                foresight
                    .senders(at)
                    .any(|sender| lacking.contains(&sender))
            };
            // Of one that nobody told the speed of, less that comes would be taken for less that it can.
            let may = node.down.is_told() && member.left > (UNITS_MIN * view.unit_len) as f64;
            let is_ahead = speed > AHEAD * needed || (node.held.is_some() && speed > LAGS * needed);
            match may && is_ahead && shares() {
                true => Some((needed * HELD).max(least)),
                false => None,
            }
        };
        let limits: Vec<Option<f64>> = members.iter().enumerate().map(limit).collect();
        for (member, limit) in members.iter().zip(limits) {
            let held = self.track(member.node).held;
            let is_other = match (held, limit) {
                (Some(held), Some(limit)) => (limit - held).abs() > CHANGE * held.max(limit),
                (held, limit) => held.is_some() != limit.is_some(),
            };
            if is_other {
                self.set_hold(member.node, limit, round);
            }
        }
    }

    /// Busy senders of told speed with a lane that lags.
    fn lacking_senders(
        &mut self,
        view: View<'_>,
        (members, foresight): (&[Member], &Foresight),
        seconds: f64,
        now: Instant,
    ) -> BTreeSet<u32> {
        let mut lacking = BTreeSet::new();
        for (at, member) in members.iter().enumerate() {
            let node = self.track(member.node);
            // One that has just been given work has had no time to begin.
            if now.since(view.node(member.node).given_at) < FRESH_TIME
                || node.observed.recent() > LAGS * member.left / seconds
            {
                continue;
            }
            let rates: BTreeMap<u32, f64> = node.observed.recent_pairs().collect();
            let lags = |(sender, left): (&u32, &f64)| {
                let rate = rates.get(sender).copied().unwrap_or(0.0);
                (rate < LAGS * left / seconds).then_some(*sender)
            };
            lacking.extend(foresight.parts(at).filter_map(lags));
        }
        let (waits, tracks) = (&mut self.waits, &self.tracks);
        for sender in &waits.at {
            if lacking.contains(sender) && !foresight.is_busy(*sender) {
                waits.not_before.insert(*sender, now + IN_VAIN_TIME);
            }
        }
        waits.not_before.retain(|_, until| *until > now);
        lacking.retain(|sender| {
            foresight.is_busy(*sender)
                && tracks[*sender as usize].up.is_told()
                && !waits.not_before.contains_key(sender)
        });
        waits.at.clone_from(&lacking);
        lacking
    }

    /// No receiver is held back any more.
    pub(super) fn lift_holds(&mut self, round: &mut Round) {
        self.waits.at.clear();
        for node in 0..self.tracks.len() as u32 {
            if self.track(node).held.is_some() {
                self.set_hold(node, None, round);
            }
        }
    }

    /// The limits that holds set are replaced.
    pub fn forget_holds(&mut self) {
        for track in &mut self.tracks {
            track.held = None;
        }
    }

    fn set_hold(&mut self, node: u32, limit: Option<f64>, round: &mut Round) {
        self.tracks[node as usize].held = limit;
        round.limits.push((node, limit.map(|limit| limit as u64)));
    }
}
