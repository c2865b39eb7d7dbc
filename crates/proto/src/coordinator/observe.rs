//! How fast nodes turned out to be, from what receivers report while bytes move.

use std::collections::BTreeMap;

use super::{Basis, Coordinator};
use crate::control::{self, Status, to_agent};

/// Bounds of the smoothing's time constant, which is the time observed so far: at first every status
/// counts alike, since bytes come in units and single ones say little; later old ones fade.
const SMOOTHING_SECONDS: (f64, f64) = (1.0, 10.0);

/// Relative error of an observed speed: this for ever, and [`ERROR_SECONDS`] over the time observed.
const ERROR_MIN: f64 = 0.03;

/// See [`ERROR_MIN`]: after one second, a third.
const ERROR_SECONDS: f64 = 0.3;

/// Statuses closer together than this are taken as one.
const SAMPLE_NS_MIN: u64 = 100_000_000;

/// A receiver slower than the fastest by this factor may be held up by its senders.
const UNEVEN: f64 = 1.5;

/// Nobody is judged before it was observed for this long.
const EXPLORE_SECONDS: f64 = 0.9;

/// Receivers try their spare holders in turn, this far apart: all at once could not tell who gains.
const TURN_NS: u64 = 1_000_000_000;

/// In so many turns.
const TURNS: u64 = 4;

/// What a receiver has shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    // Time of the status that the next one is compared with; `None` while it had nothing to do.
    since_ns: Option<u64>,
    checked: u64,
    // Time observed.
    seconds: f64,
    // Bytes per second, smoothed, while it had work.
    rate: Option<f64>,
    // By sender: bytes at `since_ns`, and bytes per second.
    pairs: BTreeMap<u32, (u64, f64)>,
}

impl Observed {
    /// A status while the node has work.
    pub fn working(&mut self, status: &Status, now_ns: u64) {
        let Some(since) = self.since_ns else {
            // Connecting is over when the first byte is there.
            if status.checked > self.checked || self.rate.is_some() {
                self.start(status, now_ns);
            }
            return;
        };
        let passed = now_ns.saturating_sub(since);
        if passed < SAMPLE_NS_MIN {
            return;
        }
        let seconds = passed as f64 / 1e9;
        self.seconds += seconds;
        let constant = self.seconds.clamp(SMOOTHING_SECONDS.0, SMOOTHING_SECONDS.1);
        let keep = (-seconds / constant).exp();
        let smooth = |old: Option<f64>, bytes: u64| {
            let rate = bytes as f64 / seconds;
            old.map_or(rate, |old| old * keep + rate * (1.0 - keep))
        };
        let bytes = status.checked.saturating_sub(self.checked);
        let first = self.rate.is_none();
        self.rate = Some(smooth(self.rate, bytes));
        for pair in &status.pairs {
            let (before, rate) = self.pairs.get(&pair.sender).copied().unwrap_or_default();
            let old = (!first).then_some(rate);
            let rate = smooth(old, pair.delivered.saturating_sub(before));
            self.pairs.insert(pair.sender, (pair.delivered, rate));
        }
        self.since_ns = Some(now_ns);
        self.checked = status.checked;
    }

    fn start(&mut self, status: &Status, now_ns: u64) {
        self.since_ns = Some(now_ns);
        self.checked = status.checked;
        for pair in &status.pairs {
            self.pairs.entry(pair.sender).or_default().0 = pair.delivered;
        }
    }

    /// It has nothing to do: time does not count against it until it has again.
    pub fn resting(&mut self) {
        self.since_ns = None;
    }

    /// It has all it was to have, `moving_ns` after the start: its mean speed, if nothing better is known.
    pub fn finished(&mut self, bytes: u64, moving_ns: u64) {
        if self.rate.is_none() {
            self.seconds = moving_ns.max(1) as f64 / 1e9;
            self.rate = Some(bytes as f64 / self.seconds);
        }
        self.resting();
    }

    /// How far the observed speed may be from the truth, relatively.
    pub fn error(&self) -> f64 {
        ERROR_MIN + ERROR_SECONDS / self.seconds.max(0.1)
    }

    /// Bytes per second while it had work; `None` until that is known.
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }
}

impl Coordinator {
    /// Takes a receiver's status into account.
    pub(super) fn observe(&mut self, node: u32, status: &Status, now_ns: u64) {
        let state = &mut self.nodes[node as usize];
        if state.done.is_some() {
            state.observed.resting();
            return;
        }
        state.observed.working(status, now_ns);
        let mut sending: BTreeMap<u32, f64> = BTreeMap::new();
        for receiver in &self.nodes {
            if receiver.done.is_none() && receiver.alive() {
                for (&sender, &(_, rate)) in &receiver.observed.pairs {
                    *sending.entry(sender).or_default() += rate;
                }
            }
        }
        for (sender, rate) in sending {
            if let Some(state) = self.nodes.get_mut(sender as usize) {
                state.best_sending = state.best_sending.max(rate);
            }
        }
    }

    /// Where nobody declared speeds: asks receivers that are slower than others, once each and in turn,
    /// to try whether other holders make them faster. Equal speeds say that no sender is idle.
    pub(super) fn explore(&mut self, now_ns: u64) {
        if self.basis == Basis::Declared || self.setup.options.fixed {
            return;
        }
        let moving = now_ns.saturating_sub(self.moving_ns.unwrap_or(now_ns));
        let receivers: Vec<u32> = self.receivers().collect();
        let rate = |node: &u32| self.nodes[*node as usize].observed.rate().unwrap_or(0.0);
        let fastest = receivers.iter().map(rate).fold(0.0, f64::max);
        for (at, &node) in receivers.iter().enumerate() {
            let turn_ns = TURN_NS * (at as u64 % TURNS);
            let state = &mut self.nodes[node as usize];
            let known = state.observed.seconds >= EXPLORE_SECONDS && moving >= TURN_NS + turn_ns;
            let slow = state.observed.rate().unwrap_or(0.0) * UNEVEN < fastest;
            if known && slow && !state.explored && state.alive() && state.done.is_none() {
                state.explored = true;
                let revision = control::Revision {
                    explore: true,
                    ..Default::default()
                };
                self.send(node, to_agent::Body::Revision(revision));
            }
        }
    }

    /// Bytes per second a receiver has had of late while it had work: 0 when nothing came for so long that
    /// nothing can be expected of it.
    pub(super) fn receiving_rate(&self, node: u32, now_ns: u64) -> Option<f64> {
        const MUTE_NS: u64 = 2_000_000_000;
        let rate = self.nodes[node as usize].observed.rate();
        let moving = now_ns.saturating_sub(self.moving_ns.unwrap_or(now_ns));
        rate.or((moving > MUTE_NS).then_some(0.0))
    }

    /// For each sender, the bytes per second it has left over in the next `seconds` when the receivers
    /// go on with `left` bytes each from the senders they use now.
    ///
    /// A sender nobody has used yet counts as an average one: how fast it is can only be found out.
    pub(super) fn spare_sending(&self, left: &BTreeMap<u32, f64>, seconds: f64) -> Vec<f64> {
        let mut load = vec![0.0; self.nodes.len()];
        for (&receiver, bytes) in left {
            let pairs = &self.nodes[receiver as usize].observed.pairs;
            let total: f64 = pairs.values().map(|(_, rate)| rate).sum();
            for (&sender, (_, rate)) in pairs {
                if let Some(load) = load.get_mut(sender as usize).filter(|_| total > 0.0) {
                    *load += bytes * rate / total;
                }
            }
        }
        let known: Vec<f64> = self
            .nodes
            .iter()
            .map(|n| n.best_sending)
            .filter(|rate| *rate > 0.0)
            .collect();
        let average = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let spare = self.nodes.iter().zip(load).map(|(node, load)| {
            let speed = match node.best_sending {
                0.0 => average,
                best => best,
            };
            (speed - load / seconds.max(0.1)).max(0.0)
        });
        let mut spare: Vec<f64> = spare.collect();
        // Who has next to nothing left is asked only for what nobody else holds.
        let most = spare.iter().copied().fold(0.0, f64::max);
        for rate in &mut spare {
            if *rate < most * 0.05 {
                *rate = 1.0;
            }
        }
        spare
    }
}
