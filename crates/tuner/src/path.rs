//! What the path between the clusters is like, from what the streams show.

use std::collections::VecDeque;

use crate::{Limits, NodeCounters};

/// The path is full when round trips are longer than the least one by this part and ...
const QUEUE_PART: f64 = 0.2;

/// ... by this many seconds: less is the jitter of hosts.
const QUEUE_SECONDS: f64 = 0.003;

/// Half as many streams again that bring less than this part more show that the path is full.
const GAIN_MIN: f64 = 0.08;

/// Rates that are remembered: the best of them is the trunk's. Fewer would take a bad moment for a smaller trunk, more
/// would go on believing in a trunk that was made smaller.
const RATES: usize = 6;

/// Segment where nobody said: that of Ethernet with time stamps.
const SEGMENT_BYTES: f64 = 1448.0;

/// Window where nobody said, in segments: 3 MB, a third less than Linux lets a sender buffer by default.
const WINDOW: f64 = 2048.0;

/// One stretch of time with one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    /// Bytes a second over all nodes.
    pub rate: f64,
    /// Bytes a second of the node that had most.
    pub rate_of_node_max: f64,
    /// Part of the segments that were sent again.
    pub loss: f64,
    pub rtt_seconds: f64,
    /// Streams open at its end.
    pub streams: f64,
}

impl Interval {
    /// What happened between two looks at the same nodes.
    pub fn between(before: &[NodeCounters], after: &[NodeCounters], seconds: f64) -> Self {
        let mut of = Self::default();
        let (mut segments, mut repeated, mut timed) = (0.0, 0.0, 0.0);
        for (at, now) in after.iter().enumerate() {
            let then = before.get(at).copied().unwrap_or_default();
            let rate = now.bytes.saturating_sub(then.bytes) as f64 / seconds;
            of.rate += rate;
            of.rate_of_node_max = of.rate_of_node_max.max(rate);
            segments += now.segments.saturating_sub(then.segments) as f64;
            repeated += now.repeated.saturating_sub(then.repeated) as f64;
            of.streams += f64::from(now.streams);
            if now.rtt_seconds > 0.0 && now.streams > 0 {
                of.rtt_seconds += now.rtt_seconds * f64::from(now.streams);
                timed += f64::from(now.streams);
            }
        }
        of.loss = repeated / f64::max(segments, 1.0);
        of.rtt_seconds /= f64::max(timed, 1.0);
        of
    }
}

/// What a policy is asked about: a path, and what shares it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Nodes that have something to move.
    pub nodes: u32,
    /// Payload that the path carries, bytes a second: min(trunk, nodes × access) as far as it is known.
    pub rate: f64,
    /// Rate of a node's access, where it is known.
    pub access: Option<f64>,
    /// Round trip without a queue.
    pub rtt_seconds: f64,
    /// Segments that the queue before the bottleneck was seen to hold.
    pub queue: f64,
    /// Part of the segments that is lost whatever the streams do.
    pub loss: f64,
    /// Greatest window of a stream, in segments.
    pub window: f64,
    /// Payload of a segment.
    pub segment_bytes: f64,
}

impl Situation {
    /// Segments that fill the path without any queue.
    #[must_use]
    pub fn pipe(&self) -> f64 {
        (self.rate * self.rtt_seconds / self.segment_bytes).max(1.0)
    }
}

/// What is known of the path.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    rates: VecDeque<f64>,
    rtt_seconds_min: f64,
    rtt_seconds_max: f64,
    // Least part of segments lost in an interval; the first intervals have slow start's burst in them.
    loss_min: Option<f64>,
    rate_of_node_max: f64,
    window: f64,
    segment_bytes: f64,
    // Before the newest growth: its streams and rate.
    last: Option<Interval>,
    is_full: bool,
    // Streams and rate of each interval since the trunk was last another one, the newest of a number of streams.
    tried: Vec<(f64, f64)>,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            rates: VecDeque::new(),
            rtt_seconds_min: f64::INFINITY,
            rtt_seconds_max: 0.0,
            loss_min: None,
            rate_of_node_max: 0.0,
            window: WINDOW,
            segment_bytes: SEGMENT_BYTES,
            last: None,
            is_full: false,
            tried: Vec::new(),
        }
    }
}

impl Path {
    /// Looks at round trips; often, since queues come and go.
    pub(crate) fn glance(&mut self, nodes: &[NodeCounters]) {
        let open = || nodes.iter().filter(|node| node.streams > 0);
        // One node with small windows says nothing of the others.
        let is_known = open().count() > 0 && open().all(|node| node.window_max > 0.0);
        let known = open().map(|node| node.window_max).fold(0.0, f64::max);
        self.window = if is_known { known } else { WINDOW };
        for node in open() {
            for rtt in [node.rtt_seconds, node.rtt_seconds_min] {
                if rtt > 0.0 {
                    self.rtt_seconds_min = self.rtt_seconds_min.min(rtt);
                    self.rtt_seconds_max = self.rtt_seconds_max.max(rtt);
                }
            }
            if node.segment_bytes > 0.0 {
                self.segment_bytes = node.segment_bytes;
            }
        }
    }

    /// Takes an interval in; says whether the path turned out to be full.
    pub(crate) fn take(&mut self, interval: Interval, limits: &Limits) -> bool {
        if self.rates.len() == RATES {
            self.rates.pop_front();
        }
        self.rates.push_back(interval.rate);
        self.rate_of_node_max = self.rate_of_node_max.max(interval.rate_of_node_max);
        self.tried
            .retain(|(streams, _)| *streams != interval.streams);
        self.tried.push((interval.streams, interval.rate));
        let least = self.loss_min.unwrap_or(1.0);
        self.loss_min = Some(least.min(interval.loss));
        let queued = interval.rtt_seconds - self.rtt_seconds_min;
        let has_queue = queued > (QUEUE_PART * self.rtt_seconds_min).max(QUEUE_SECONDS);
        let known = limits.trunk.unwrap_or(f64::INFINITY);
        let known = known.min(limits.access.unwrap_or(f64::INFINITY) * f64::from(limits.nodes));
        let gained_nothing = self.last.is_some_and(|last| {
            interval.streams >= 1.5 * last.streams && interval.rate < (1.0 + GAIN_MIN) * last.rate
        });
        self.is_full = has_queue
            || gained_nothing
            || interval.rate > known * (1.0 - GAIN_MIN)
            // Full once is full still, until it carries clearly more.
            || (self.is_full && self.last.is_some_and(|last| interval.rate < 1.5 * last.rate));
        self.last = Some(interval);
        self.is_full
    }

    /// Most streams that turned out to be too few: they brought clearly less than more of them did.
    pub(crate) fn too_few(&self) -> f64 {
        let best = self.tried.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some(&(streams, rate)) = best else {
            return 0.0;
        };
        let worse = self
            .tried
            .iter()
            .filter(|one| one.0 < streams && one.1 < rate * (1.0 - GAIN_MIN));
        worse.map(|one| one.0).fold(0.0, f64::max)
    }

    /// Whether more streams cannot gain much.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Least round trip seen; infinite before the first.
    #[must_use]
    pub fn rtt_seconds_min(&self) -> f64 {
        self.rtt_seconds_min
    }

    /// Greatest round trip seen.
    #[must_use]
    pub fn rtt_seconds_max(&self) -> f64 {
        self.rtt_seconds_max
    }

    /// The rate of the newest interval.
    fn newest(&self) -> f64 {
        self.rates.back().copied().unwrap_or(0.0)
    }

    /// The situation as far as it is known; `None` before anything was seen.
    pub(crate) fn situation(&self, limits: &Limits) -> Option<Situation> {
        let seen = self.rates.iter().copied().fold(0.0, f64::max);
        if seen <= 0.0 || !self.rtt_seconds_min.is_finite() {
            return None;
        }
        let access = limits.access.map_or(f64::INFINITY, |access| {
            access.max(self.rate_of_node_max) * f64::from(limits.nodes)
        });
        let bound = limits.trunk.unwrap_or(f64::INFINITY).min(access);
        let rate = match bound.is_finite() && !self.is_full {
            true => bound.max(seen),
            false => seen,
        };
        let queued = self.rtt_seconds_max - self.rtt_seconds_min;
        Some(Situation {
            nodes: limits.nodes.max(1),
            rate,
            access: limits.access,
            rtt_seconds: self.rtt_seconds_min.max(1e-5),
            queue: (queued * seen / self.segment_bytes).max(1.0),
            loss: self.loss_min.unwrap_or(0.0),
            window: self.window,
            segment_bytes: self.segment_bytes,
        })
    }

    /// The trunk is another one now: what it carried before says nothing.
    pub(crate) fn forget(&mut self) {
        let newest = self.newest();
        self.rates.clear();
        self.rates.push_back(newest);
        (self.is_full, self.last) = (false, None);
        self.tried.clear();
    }
}
