//! How a simulated transfer went.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, RangeSet};
use ropewalk_proto::report::Outcome;

use crate::mail::Traffic;

/// Control bytes through the master in one second of virtual time, length prefixes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// To agents.
    pub sent_bytes: u64,
    /// From agents.
    pub received_bytes: u64,
}

/// What became of ways that failed, all receivers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Attempts to open a stream again that failed.
    pub refused: u64,
    /// Only ways to a sender that were lost and replaced.
    pub replaced: u64,
    /// Rails that failed and returned.
    pub regained: u64,
    /// Times that data left the way through the command's host for a direct one.
    pub moved: u64,
}

impl Mended {
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.refused += other.refused;
        self.replaced += other.replaced;
        self.regained += other.regained;
        self.moved += other.moved;
        self
    }
}

/// How a simulated transfer went. Times are virtual, from the first message of the master.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// How it ended; `None` when it had not by [`crate::Scenario::time_max`].
    pub outcome: Option<Outcome>,
    /// The coordinator's words for why it did not end well.
    pub error: Option<String>,
    /// Until the coordinator ended it, opening and last words included, seconds.
    pub seconds: f64,
    /// From the plan to the last receiver done, seconds; `None` when nothing moved.
    pub moving_seconds: Option<f64>,
    /// Bytes that have to cross, each destination counted.
    pub wanted_bytes: u64,
    /// Bytes that receivers have which live or were done before they died, each once for each destination.
    pub delivered_bytes: u64,
    /// Bytes received whole a second time.
    pub duplicate_bytes: u64,
    /// Of what was received first, bytes that fellow receivers handed on.
    pub handed_on_bytes: u64,
    /// All bytes that crossed, those of cancelled and repeated units included.
    pub carried_bytes: f64,
    /// The same by sender and receiver.
    pub carried_between: BTreeMap<(u32, u32), f64>,
    /// What the receivers have together.
    pub delivered: RangeSet,
    /// What each node has; empty for those that died before they were done.
    pub delivered_by_node: Vec<RangeSet>,
    /// When each node last said that it was done without error.
    pub done_at: Vec<Option<Instant>>,
    /// Plans asked for after the first one.
    pub replans: u64,
    /// Control messages of each node.
    pub traffic: Vec<Traffic>,
    /// Control bytes through the master, by second.
    pub timeline: Vec<Second>,
    /// What became of ways that failed.
    pub mended: Mended,
    /// Of trees: what each node received, by path.
    pub received: Vec<BTreeMap<String, RangeSet>>,
    /// The master was lost: [`Ended::outcome`] is `None`.
    pub is_master_dead: bool,
    /// What the coordinator reported to the user.
    pub notes: Vec<String>,
    /// Lines of the script that the coordinator has no input for.
    pub ignored: u64,
}

impl Ended {
    /// Share of useless bytes that crossed the network, of those wanted.
    #[must_use]
    pub fn waste(&self) -> f64 {
        let surplus = self.carried_bytes - self.delivered_bytes as f64;
        surplus.max(0.0) / self.wanted_bytes.max(1) as f64
    }

    /// Bytes that crossed from some nodes to others.
    ///
    /// * `is_between`: whether those from the first node to the second one count.
    #[must_use]
    pub fn carried_where(&self, is_between: impl Fn(u32, u32) -> bool) -> f64 {
        let pairs = self.carried_between.iter();
        let pairs = pairs.filter(|((from, to), _)| is_between(*from, *to));
        pairs.map(|(_, bytes)| bytes).sum()
    }

    /// All control messages together.
    #[must_use]
    pub fn traffic_sum(&self) -> Traffic {
        let mut sum = Traffic::default();
        for traffic in &self.traffic {
            sum.add(traffic);
        }
        sum
    }

    /// Control bytes per node, both ways, periodic status included or not.
    #[must_use]
    pub fn control_bytes_per_node(&self, with_status: bool) -> f64 {
        let sum = self.traffic_sum();
        let mut bytes = sum.sent.plan_bytes + sum.received.plan_bytes;
        if with_status {
            bytes += sum.sent.status_bytes + sum.received.status_bytes;
        }
        bytes as f64 / self.traffic.len().max(1) as f64
    }
}
