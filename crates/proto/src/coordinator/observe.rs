//! How fast nodes turned out to be, from what receivers report while bytes move.

use std::collections::BTreeMap;

use ropewalk_model::RangeSet;

use super::Coordinator;
use crate::control::Status;

/// Bounds of the smoothing's time constant, which is the time observed so far: at first every status
/// counts alike, since bytes come in units and single ones say little; later old ones fade.
const SMOOTHING_SECONDS: (f64, f64) = (1.0, 10.0);

/// Relative error of an observed speed: this for ever, and [`ERROR_SECONDS`] over the time observed.
const ERROR_MIN: f64 = 0.03;

/// See [`ERROR_MIN`]: after one second, a third.
const ERROR_SECONDS: f64 = 0.3;

/// Statuses closer together than this are taken as one.
const SAMPLE_NS_MIN: u64 = 100_000_000;

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
    // Whether they are in the senders' sums.
    counts: bool,
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

    /// Bytes per second it has had from a sender.
    pub fn pair_rate(&self, sender: u32) -> f64 {
        self.pairs.get(&sender).map_or(0.0, |&(_, rate)| rate)
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
    /// Takes a receiver's status into account. Cost O(its pairs).
    pub(super) fn observe(&mut self, node: u32, status: &Status, now_ns: u64) {
        let state = &self.nodes[node as usize];
        if self.setup.options.fixed {
            return;
        }
        // What it still does when everything has come (syncing, reading back) says nothing of its speed.
        let resting = state.done.is_some() || status.checked >= state.assigned().len_bytes();
        self.count_sending(node, false);
        let state = &mut self.nodes[node as usize];
        if resting {
            state.observed.resting();
            return;
        }
        state.observed.working(status, now_ns);
        self.count_sending(node, true);
    }

    /// Takes what a receiver has from each sender into the senders' sums, or out of them.
    pub(super) fn count_sending(&mut self, node: u32, counts: bool) {
        let observed = &mut self.nodes[node as usize].observed;
        if std::mem::replace(&mut observed.counts, counts) == counts {
            return;
        }
        let sign = if counts { 1.0 } else { -1.0 };
        let rates: Vec<(u32, f64)> = observed
            .pairs
            .iter()
            .map(|(&sender, &(_, rate))| (sender, rate))
            .collect();
        for (sender, rate) in rates {
            if let Some(sum) = self.sending.get_mut(sender as usize) {
                *sum += sign * rate;
                let best = &mut self.nodes[sender as usize].best_sending;
                *best = best.max(*sum);
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

    /// For each sender, the bytes per second it has left over for `wanted` in the next `seconds` when the
    /// receivers go on with `left` bytes each from the senders they use now; 0 when it is not needed.
    ///
    /// A sender nobody has used yet counts as an average one: how fast it is can only be found out.
    pub(super) fn spare_sending(
        &self,
        left: &BTreeMap<u32, f64>,
        seconds: f64,
        wanted: &RangeSet,
    ) -> Vec<f64> {
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
        let poor = |rate: f64| rate < most * 0.1;
        let rich = (0..spare.len()).filter(|&node| !poor(spare[node]) && self.nodes[node].alive());
        let held = rich.fold(RangeSet::new(), |held, node| {
            held.union(&self.nodes[node].holds)
        });
        let least = if wanted.difference(&held).is_empty() {
            0.0
        } else {
            1.0
        };
        for rate in &mut spare {
            *rate = if poor(*rate) { least } else { rate.max(1.0) };
        }
        spare
    }
}
