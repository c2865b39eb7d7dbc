//! What receivers showed: rates of pairs, from what their statuses report while bytes move.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Nanos};

use super::{Balancer, View};
use crate::control::Status;

/// Bounds of the smoothing's time constant, which is the time observed so far: at first every status
/// counts alike, since bytes come in units and single ones say little; later old ones fade.
const SMOOTHING_SECONDS: (f64, f64) = (1.0, 10.0);

/// Time constant of the short memory that the long one is compared with.
const RECENT_SECONDS: f64 = 1.0;

/// The speed has changed, and the long memory is dropped, when the short one differs by this part ...
const CHANGE: f64 = 0.4;

/// ... for so many statuses in a row.
const CHANGE_STATUSES: u32 = 3;

/// A pair that carries less than this part of what its receiver gets does not matter to it.
const PAIR_PART: f64 = 0.1;

/// Relative error of an observed speed: this for ever, and [`ERROR_SECONDS`] over the time observed.
const ERROR_MIN: f64 = 0.03;

/// See [`ERROR_MIN`]: after one second, a third.
const ERROR_SECONDS: f64 = 0.3;

/// Statuses closer together than this are taken as one.
const SAMPLE_TIME_MIN: Nanos = Nanos(100_000_000);

/// Where nobody told speeds all holders take part by then (see `node::fetch::spares`).
const UNTIL_ALL_TAKE_TIME: Nanos = Nanos(500_000_000);

/// A node that brought nothing for so long can be expected to bring nothing.
const MUTE_TIME: Nanos = Nanos(2_000_000_000);

/// What a receiver has from one sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    // When the receiver began to be observed, and at the last status.
    first: u64,
    bytes: u64,
    busy: Nanos,
    // Bytes per second, long and short memory.
    pub rate: f64,
    pub recent: f64,
    // Part of the time in which something was on its way.
    pub at_work: f64,
    // Statuses in a row at which the memories differed.
    changed: u32,
}

impl Pair {
    /// Whether the speed has become another one. The long memory is dropped then.
    fn is_changed(&mut self) -> bool {
        let most = self.rate.max(self.recent);
        let differs = (self.recent - self.rate).abs() > CHANGE * most;
        self.changed = if differs { self.changed + 1 } else { 0 };
        if self.changed < CHANGE_STATUSES {
            return false;
        }
        (self.rate, self.changed) = (self.recent, 0);
        true
    }
}

/// What a receiver has shown.
#[derive(Clone, Debug, Default)]
pub(in crate::coordinator) struct Observed {
    // When its lanes were last made others, and the first status after that.
    anew_at: Instant,
    began_at: Option<Instant>,
    // Time of the status that the next one is compared with; `None` while it had nothing to do.
    since: Option<Instant>,
    come: u64,
    // Time observed.
    seconds: f64,
    // Bytes per second while it had work, long and short memory.
    rate: Option<f64>,
    recent: f64,
    changed: u32,
    pairs: BTreeMap<u32, Pair>,
}

/// Bytes that came over all lanes.
fn come(status: &Status) -> u64 {
    let pairs = status.pairs.iter().map(|pair| pair.come);
    pairs.fold(0, u64::saturating_add)
}

impl Observed {
    /// A status while the node has work.
    pub fn working(&mut self, status: &Status, now: Instant) {
        let Some(since) = self.since else {
            // Connecting is over when the first byte is there.
            if come(status) > self.come || self.rate.is_some() {
                self.start(status, now);
            }
            return;
        };
        let passed = now.since(since);
        if passed < SAMPLE_TIME_MIN {
            return;
        }
        let seconds = passed.as_seconds();
        self.seconds += seconds;
        let constant = self.seconds.clamp(SMOOTHING_SECONDS.0, SMOOTHING_SECONDS.1);
        let keep = (-seconds / constant).exp();
        let keep_recent = (-seconds / RECENT_SECONDS).exp();
        let first = self.rate.is_none();
        let smooth = |old: f64, rate: f64, keep: f64| match first {
            true => rate,
            false => old * keep + rate * (1.0 - keep),
        };
        let come = come(status);
        let fresh = come.saturating_sub(self.come) as f64 / seconds;
        let rate = smooth(self.rate.unwrap_or(fresh), fresh, keep);
        self.rate = Some(rate);
        self.recent = smooth(self.recent, fresh, keep_recent);
        for pair in &status.pairs {
            let known = self.pairs.entry(pair.sender).or_default();
            let fresh = pair.come.saturating_sub(known.bytes) as f64 / seconds;
            let busy = Nanos(pair.busy.saturating_sub(known.busy.0)).as_seconds() / seconds;
            *known = Pair {
                first: known.first,
                bytes: pair.come,
                busy: Nanos(pair.busy),
                rate: smooth(known.rate, fresh, keep),
                recent: smooth(known.recent, fresh, keep_recent),
                at_work: busy.min(1.0),
                changed: known.changed,
            };
            // A pair that matters to the whole takes the whole with it.
            if known.is_changed() && known.rate.max(known.recent) > rate * PAIR_PART {
                self.rate = Some(self.recent);
            }
        }
        let differs = (self.recent - rate).abs() > CHANGE * rate;
        self.changed = if differs { self.changed + 1 } else { 0 };
        if self.changed >= CHANGE_STATUSES {
            self.forget_old();
        }
        self.since = Some(now);
        self.come = come;
    }

    /// The speed is another one now.
    fn forget_old(&mut self) {
        self.changed = 0;
        self.seconds = RECENT_SECONDS;
        self.rate = Some(self.recent);
        for pair in self.pairs.values_mut() {
            pair.rate = pair.recent;
        }
    }

    fn start(&mut self, status: &Status, now: Instant) {
        self.since = Some(now);
        self.come = come(status);
        let begins = self.began_at.is_none();
        self.began_at.get_or_insert(now);
        for pair in &status.pairs {
            let known = self.pairs.entry(pair.sender).or_default();
            (known.bytes, known.busy) = (pair.come, Nanos(pair.busy));
            if begins {
                known.first = pair.come;
            }
        }
    }

    /// Asserts that rates are rates and parts are parts. Cost O(pairs).
    pub fn check(&self, name: &str) {
        let is_rate = |rate: f64| rate >= 0.0 && rate.is_finite();
        debug_assert!(is_rate(self.recent), "{name}: recently {}", self.recent);
        debug_assert!(
            self.rate.is_none_or(is_rate),
            "{name}: observed {:?}",
            self.rate
        );
        debug_assert!(is_rate(self.seconds), "{name}: {} s", self.seconds);
        debug_assert!(
            self.changed < CHANGE_STATUSES,
            "{name}: a change of speed is not noticed"
        );
        for (sender, pair) in &self.pairs {
            debug_assert!(
                is_rate(pair.rate) && is_rate(pair.recent),
                "{name} from {sender}: {} and {}",
                pair.rate,
                pair.recent
            );
            debug_assert!(
                (0.0..=1.0).contains(&pair.at_work),
                "{name} from {sender}: at work {}",
                pair.at_work
            );
        }
    }

    /// It works over other lanes from now on: its speed is to be seen again.
    pub fn start_anew(&mut self, now: Instant) {
        self.anew_at = now;
        self.began_at = None;
        self.seconds = 0.0;
        self.rate = None;
        self.pairs.clear();
        self.since = None;
        self.changed = 0;
    }

    /// It has nothing to do: time does not count against it until it has again.
    pub fn resting(&mut self) {
        self.since = None;
    }

    /// It has all it was to have, `moving_for` after the start: its mean speed, if nothing better is known.
    pub fn finished(&mut self, bytes: u64, moving_for: Nanos) {
        if self.rate.is_none() {
            self.seconds = moving_for.max(Nanos(1)).as_seconds();
            self.rate = Some(bytes as f64 / self.seconds);
        }
        self.resting();
    }

    /// The senders it has had bytes from, and the bytes per second of each.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.pairs.iter().map(|(&sender, pair)| (sender, pair.rate))
    }

    /// The same with all that is known of each pair.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (&u32, &Pair)> {
        self.pairs.iter()
    }

    /// The same by the short memory.
    pub fn recent_pairs(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.pairs
            .iter()
            .map(|(&sender, pair)| (sender, pair.recent))
    }

    /// Bytes per second that a pair carried since the receiver began to be observed: units come in bursts,
    /// which short memories take for speed.
    pub(super) fn mean(&self, pair: &Pair) -> f64 {
        let (Some(since), Some(began)) = (self.since, self.began_at) else {
            return pair.rate;
        };
        let seconds = since.since(began).as_seconds();
        match seconds < 0.5 {
            true => pair.rate,
            false => pair.bytes.saturating_sub(pair.first) as f64 / seconds,
        }
    }

    /// How far the observed speed may be from the truth, relatively.
    pub fn error(&self) -> f64 {
        ERROR_MIN + ERROR_SECONDS / self.seconds.max(0.1)
    }

    /// Bytes per second while it had work; `None` until that is known.
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// The same by the short memory.
    pub fn recent(&self) -> f64 {
        self.recent
    }

    /// Seconds in which it had work and reported.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    pub(super) fn is_working(&self) -> bool {
        self.since.is_some() && self.rate.is_some()
    }
}

impl Balancer {
    /// Takes a receiver's status into account. False where it does not count yet. Cost O(its pairs).
    pub(in crate::coordinator) fn observe(
        &mut self,
        view: View<'_>,
        node: u32,
        status: &Status,
        now: Instant,
    ) -> bool {
        if view.is_fixed {
            return false;
        }
        // Until other holders are called the planned lanes are alone; that says little of what comes after.
        if self.exploring && view.moving_for(now) < UNTIL_ALL_TAKE_TIME {
            return false;
        }
        let mut status = status.clone();
        status
            .pairs
            .retain(|pair| (pair.sender as usize) < view.nodes.len());
        let state = view.node(node);
        let observed = &mut self.tracks[node as usize].observed;
        // What it still does when everything has come (syncing, reading back) says nothing of its speed.
        if state.done.is_some() || status.checked >= state.assigned_bytes() {
            observed.resting();
        } else {
            observed.working(&status, now);
        }
        true
    }

    /// Bytes per second a receiver has had of late while it had work: 0 when nothing came for so long that
    /// nothing can be expected of it.
    pub(super) fn receiving_rate(&self, view: View<'_>, node: u32, now: Instant) -> Option<f64> {
        let observed = self.observed(node);
        let since = view.moving_at.unwrap_or(now).max(observed.anew_at);
        let moving = now.since(since);
        observed.rate().or((moving > MUTE_TIME).then_some(0.0))
    }
}
