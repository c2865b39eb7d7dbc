//! Speeds seen in earlier transfers: hints for the first plan where none are declared.
//!
//! A node is known by how it is reached (`host:port`, what ssh takes, `local`), and each direction for itself.
//! What is remembered is the best second of a node, which is a lower bound of what it can do. So:
//!
//! * a higher speed replaces a lower one at once;
//! * a lower one replaces a higher one when the node set the bound of its transfer: it showed all it had;
//! * otherwise the node may just have had little to do: the old speed goes an eighth of the way down, and keeps
//!   its date.
//!
//! Short and small transfers, and those under `--limit`, say nothing. What is used fades with age: the older, the
//! nearer to the middle speed of its side, which is what a plan without hints assumes of all; after
//! [`AGE_SECONDS_MAX`] it is not used. Dates are Unix time from the caller; one from the future counts as now.
//!
//! Left out on purpose: shares of pairs. They are remembered for people, but a plan knows nodes only
//! (no matrix of pairs in the master).

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_proto::coordinator::Coordinator;
use serde::{Deserialize, Serialize};

use crate::report::seconds_moved;
use crate::request::{NodeRequest, Reach, Request};

mod around;
mod file;

pub use around::remembered_speeds;
pub(crate) use around::{Recalled, recall, remember};

/// Format of the file; a file of a higher one is left alone.
const VERSION: u32 = 1;

/// First words of the file, for whoever finds it.
const ABOUT: &str = "speeds that ropewalk saw in earlier transfers, in bytes per second; hints for plans, may be deleted";

/// Nodes, and pairs, that are remembered; those not seen for longest go first. About 1 MB of text.
const ENTRIES_MAX: usize = 4096;

/// A transfer must have moved for this long: shorter ones are ruled by connecting and by caches.
const MOVED_SECONDS_MIN: f64 = 2.0;

/// A transfer must have moved this much.
const MOVED_BYTES_MIN: u64 = 64 << 20;

/// A node must have moved this much itself: a few units in a burst are no speed.
const NODE_BYTES_MIN: u64 = 8 << 20;

/// Speeds older than 30 days are not used: networks change.
pub(crate) const AGE_SECONDS_MAX: u64 = 30 * 86_400;

/// Age at which a speed counts half, on the logarithmic scale between itself and the middle one.
const HALF_LIFE_SECONDS: f64 = 10.0 * 86_400.0;

/// Part of the way that an unconfirmed speed goes down with each transfer.
const DECAY: f64 = 1.0 / 8.0;

/// Everything that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    #[serde(default)]
    about: String,
    version: u32,
    /// By how the node is reached.
    #[serde(default)]
    nodes: BTreeMap<String, NodeMemory>,
    /// By `SENDER -> RECEIVER`; means over whole transfers.
    #[serde(default)]
    pairs: BTreeMap<String, Remembered>,
}

/// What a node has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct NodeMemory {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sending: Option<Remembered>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    receiving: Option<Remembered>,
}

/// One speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    bytes_per_second: u64,
    /// When it was last seen to be so, in seconds of Unix time.
    seen_unix_seconds: u64,
    /// Transfers that had a say in it.
    transfers: u64,
}

/// A speed of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes_per_second: u64,
    /// The node set the bound: it cannot do more.
    is_all: bool,
}

/// What one transfer has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observations {
    sending: BTreeMap<String, Seen>,
    receiving: BTreeMap<String, Seen>,
    pairs: BTreeMap<String, Seen>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            about: ABOUT.to_owned(),
            version: VERSION,
            nodes: BTreeMap::new(),
            pairs: BTreeMap::new(),
        }
    }
}

/// The key of each node; `None` where it would not tell nodes apart.
///
/// * `takes_part`: whether the node sends, or receives.
fn keys(nodes: &[NodeRequest], takes_part: impl Fn(&NodeRequest) -> bool) -> Vec<Option<String>> {
    // Processes of one host only: nothing crosses a network.
    if nodes.iter().all(|node| node.reach == Reach::Local) {
        return vec![None; nodes.len()];
    }
    let key = |node: &NodeRequest| match &node.reach {
        Reach::Local => "local".to_owned(),
        Reach::Ssh(host) | Reach::Launched(host) => host.clone(),
        Reach::Attached { host, port } => format!("{host}:{port}"),
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes.iter().filter(|node| takes_part(node)) {
        *counts.entry(key(node)).or_default() += 1;
    }
    let keys = nodes.iter().map(|node| {
        let alone = takes_part(node) && counts.get(&key(node)) == Some(&1);
        alone.then(|| key(node))
    });
    keys.collect()
}

fn sends(node: &NodeRequest) -> bool {
    !node.sources.is_empty()
}

fn receives(node: &NodeRequest) -> bool {
    !node.sinks.is_empty()
}

/// What a transfer that ended done or partial has shown; empty when it was too small to show anything.
pub(crate) fn observe(request: &Request, coordinator: &Coordinator) -> Observations {
    let mut observations = Observations::default();
    let seconds = seconds_moved(coordinator);
    let bytes = coordinator.delivered_bytes();
    // Under a limit, nodes go as fast as they may, not as they can.
    let is_limited = request.options.limit.is_some();
    // Nor do they where most of the time is spent on what need not be sent.
    let is_short = seconds < MOVED_SECONDS_MIN || bytes < MOVED_BYTES_MIN;
    if is_limited || is_short || coordinator.is_update() || !coordinator.is_sent() {
        return observations;
    }
    let binding = binding(coordinator);
    let (senders, receivers) = (keys(&request.nodes, sends), keys(&request.nodes, receives));
    let summary = coordinator.summary();
    // Who was lost on the way had no time to show what it can do.
    for (at, node) in summary.iter().enumerate().filter(|(_, n)| n.lost.is_none()) {
        let seen = |best: u64, bytes: u64, side: &BTreeSet<String>| {
            let speed = best.max((bytes as f64 / seconds) as u64);
            (bytes >= NODE_BYTES_MIN && speed > 0).then(|| Seen {
                bytes_per_second: speed,
                is_all: side.contains(node.name),
            })
        };
        let best = node.finished.map_or(0, |finished| finished.best_second);
        let sent = seen(best, node.sent, &binding.0);
        if let (Some(key), Some(seen)) = (senders.get(at).cloned().flatten(), sent) {
            observations.sending.insert(key, seen);
        }
        let best = node.done.map_or(0, |done| done.best_second);
        let received = seen(best, node.delivered, &binding.1);
        let Some(receiver) = receivers.get(at).cloned().flatten() else {
            continue;
        };
        for pair in node.done.map_or(&[][..], |done| &done.pairs) {
            let sender = senders.get(pair.sender as usize).cloned().flatten();
            let speed = (pair.delivered as f64 / seconds) as u64;
            if let (Some(sender), true) = (sender, pair.delivered >= NODE_BYTES_MIN) {
                let seen = Seen {
                    bytes_per_second: speed,
                    is_all: false,
                };
                let key = format!("{sender} -> {receiver}");
                observations.pairs.insert(key, seen);
            }
        }
        if let Some(seen) = received {
            observations.receiving.insert(receiver, seen);
        }
    }
    observations
}

/// Names of the senders and of the receivers that set the bound, by the speeds that were seen.
fn binding(coordinator: &Coordinator) -> (BTreeSet<String>, BTreeSet<String>) {
    let Ok(bound) = ropewalk_sched::bound(&coordinator.observed_problem()) else {
        return Default::default();
    };
    let names: BTreeSet<String> = bound.binding.into_iter().collect();
    // A node may be on both sides; only the slower one binds.
    let side = |binds: bool| match binds {
        true => names.clone(),
        false => BTreeSet::new(),
    };
    (
        side(bound.sender_seconds >= bound.receiver_seconds),
        side(bound.receiver_seconds >= bound.sender_seconds),
    )
}

impl Observations {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.sending.is_empty() && self.receiving.is_empty() && self.pairs.is_empty()
    }
}

impl Remembered {
    fn age_seconds(&self, now_unix: u64) -> u64 {
        now_unix.saturating_sub(self.seen_unix_seconds)
    }

    /// The rule at the top of this file.
    fn update(old: Option<Self>, seen: Seen, now_unix: u64) -> Self {
        let fresh = Self {
            bytes_per_second: seen.bytes_per_second,
            seen_unix_seconds: now_unix,
            transfers: old.map_or(0, |old| old.transfers).saturating_add(1),
        };
        match old {
            Some(old) if !seen.is_all && old.bytes_per_second > seen.bytes_per_second => {
                let excess = old.bytes_per_second - seen.bytes_per_second;
                let down = (excess as f64 * DECAY) as u64;
                Self {
                    bytes_per_second: old.bytes_per_second - down,
                    seen_unix_seconds: old.seen_unix_seconds.min(now_unix),
                    ..fresh
                }
            }
            _ => fresh,
        }
    }
}

impl Memory {
    /// Takes in what a transfer has shown.
    pub fn learn(&mut self, observations: &Observations, now_unix: u64) {
        self.about = ABOUT.to_owned();
        for (key, &seen) in &observations.sending {
            let node = self.nodes.entry(key.clone()).or_default();
            node.sending = Some(Remembered::update(node.sending, seen, now_unix));
        }
        for (key, &seen) in &observations.receiving {
            let node = self.nodes.entry(key.clone()).or_default();
            node.receiving = Some(Remembered::update(node.receiving, seen, now_unix));
        }
        for (key, &seen) in &observations.pairs {
            let pair = Remembered::update(self.pairs.get(key).copied(), seen, now_unix);
            self.pairs.insert(key.clone(), pair);
        }
        // A clock that was ahead must not keep its entries young for ever.
        let nodes = self.nodes.values_mut();
        let speeds = nodes.flat_map(|node| node.sending.iter_mut().chain(&mut node.receiving));
        for speed in speeds.chain(self.pairs.values_mut()) {
            speed.seen_unix_seconds = speed.seen_unix_seconds.min(now_unix);
        }
        let seen = |speed: Option<Remembered>| speed.map_or(0, |speed| speed.seen_unix_seconds);
        keep_newest(&mut self.nodes, |node| {
            seen(node.sending).max(seen(node.receiving))
        });
        keep_newest(&mut self.pairs, |pair| pair.seen_unix_seconds);
    }

    /// Hints for a request.
    pub fn hints(&self, nodes: &[NodeRequest], now_unix: u64) -> Hints {
        let recall = |key: &Option<String>, sending: bool| {
            let node = self.nodes.get(key.as_deref()?)?;
            let speed = if sending {
                node.sending
            } else {
                node.receiving
            }?;
            let young = speed.age_seconds(now_unix) <= AGE_SECONDS_MAX;
            (young && speed.bytes_per_second > 0).then_some(speed)
        };
        let side = |takes_part: fn(&NodeRequest) -> bool, sending: bool| {
            let keys = keys(nodes, takes_part);
            let wanted = nodes.iter().map(|node| {
                let declared = if sending { node.up } else { node.down };
                takes_part(node) && declared.is_none()
            });
            let wanted: Vec<bool> = wanted.collect();
            let known = keys.iter().zip(&wanted);
            let known = known.map(|(key, &wanted)| recall(key, sending).filter(|_| wanted));
            let known: Vec<Option<Remembered>> = known.collect();
            (faded(&known, &wanted, now_unix), known, wanted)
        };
        let (up, sending, wants_up) = side(sends, true);
        let (down, receiving, wants_down) = side(receives, false);
        let ages = sending.iter().chain(&receiving).flatten();
        let ages: Vec<u64> = ages.map(|speed| speed.age_seconds(now_unix)).collect();
        let count = |some: &dyn Fn(usize) -> bool| (0..nodes.len()).filter(|&at| some(at)).count();
        Hints {
            known: count(&|at| sending[at].is_some() || receiving[at].is_some()),
            silent: count(&|at| wants_up[at] || wants_down[at]),
            youngest_seconds: ages.iter().copied().min().unwrap_or(0),
            oldest_seconds: ages.iter().copied().max().unwrap_or(0),
            up,
            down,
        }
    }
}

/// Speeds of one side for the plan: each remembered one nearer to the middle one the older it is, and the middle
/// one for nodes of which nothing is known. Empty of hints when nothing is remembered.
fn faded(known: &[Option<Remembered>], wanted: &[bool], now_unix: u64) -> Vec<Option<u64>> {
    let mut speeds: Vec<u64> = known.iter().flatten().map(|s| s.bytes_per_second).collect();
    speeds.sort_unstable();
    let Some(&middle) = speeds.get(speeds.len() / 2) else {
        return vec![None; known.len()];
    };
    let fade = |speed: Remembered| {
        let weight = 0.5_f64.powf(speed.age_seconds(now_unix) as f64 / HALF_LIFE_SECONDS);
        let logarithm =
            (speed.bytes_per_second as f64).ln() * weight + (middle as f64).ln() * (1.0 - weight);
        (logarithm.exp().round() as u64).max(1)
    };
    let speeds = known.iter().zip(wanted);
    speeds
        .map(|(known, &wanted)| wanted.then(|| known.map_or(middle, fade)))
        .collect()
}

fn keep_newest<V>(entries: &mut BTreeMap<String, V>, seen: impl Fn(&V) -> u64) {
    let Some(surplus) = entries.len().checked_sub(ENTRIES_MAX).filter(|&n| n > 0) else {
        return;
    };
    let mut ages: Vec<(u64, String)> = entries
        .iter()
        .map(|(key, value)| (seen(value), key.clone()))
        .collect();
    ages.sort_unstable();
    for (_, key) in ages.into_iter().take(surplus) {
        entries.remove(&key);
    }
}

/// What earlier transfers have shown of the nodes of a request, by position; `None` where a speed is declared,
/// or nothing of that side is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Sending, bytes per second.
    pub up: Vec<Option<u64>>,
    /// Receiving, bytes per second.
    pub down: Vec<Option<u64>>,
    // Nodes of which something is remembered, and nodes that do not declare all they should.
    known: usize,
    silent: usize,
    youngest_seconds: u64,
    oldest_seconds: u64,
}

impl Hints {
    /// How old they are and for which nodes, as `speeds remembered from 3 h ago for 5 of 6 nodes`; `None` when nothing is
    /// remembered.
    pub fn describe(&self) -> Option<String> {
        if self.known == 0 {
            return None;
        }
        let (young, old) = (
            age_text(self.youngest_seconds),
            age_text(self.oldest_seconds),
        );
        let when = match young == old {
            true => format!("{old} ago"),
            false => format!("{young} to {old} ago"),
        };
        let whom = match self.known == self.silent {
            true => String::new(),
            false => format!(" for {} of {} nodes", self.known, self.silent),
        };
        Some(format!("speeds remembered from {when}{whom}"))
    }

    fn note(&self) -> Option<String> {
        let what = self.describe()?;
        Some(format!(
            "planned by {what}; --node-rate declares them, --speeds off plans without"
        ))
    }
}

/// An age in its largest unit: `40 s`, `5 min`, `3 h`, `12 d`.
fn age_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
