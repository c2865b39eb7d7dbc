//! One budget of streams for all nodes of the transfer (coordinated striping, section 3).
//!
//! Senders report what the kernel says of their streams, since losses show only there. The tuner chooses how many there
//! should be in all; receivers, who open streams, are told their shares. So nodes cannot each try to take the trunk for
//! themselves, and when it loses packets all step back together.

use ropewalk_tuner::{Answer, Limits, NodeCounters, PolicyName, Setting, Tuner, far_streams};

use super::{Action, Coordinator, Setup};
use crate::control::{self, TcpStatus, to_agent};

#[cfg(test)]
mod tests;

/// Most streams that the receivers may hold open to one sender, together: each is a thread there.
pub const STREAMS_PER_SENDER_MAX: u32 = 256;

/// Most streams of one receiver.
const STREAMS_PER_RECEIVER_MAX: u32 = 64;

/// Time between two looks.
const LOOK_NS: u64 = 100_000_000;

/// The tuner and what it goes by.
#[derive(Debug, Default)]
pub(super) struct Streams {
    // Made when the first sender has reported.
    tuner: Option<Tuner>,
    // By node.
    counters: Vec<NodeCounters>,
    looked_ns: u64,
    // Share that receivers were told.
    told: Option<u32>,
    // Settings that were sent, for the report.
    changes: u32,
}

/// Streams that receivers whose round trips are long open at once; 0 where the number is not tuned.
///
/// They know the round trip when they have connected, seconds before the first look at what senders tell.
pub(super) fn at_first(setup: &Setup) -> u32 {
    let receivers = setup.nodes.iter().filter(|node| !node.sinks.is_empty());
    match setup.tune {
        Some(_) => far_streams(receivers.count() as u32).min(STREAMS_PER_RECEIVER_MAX),
        None => 0,
    }
}

impl Streams {
    fn take(&mut self, node: usize, seen: &TcpStatus) {
        if self.counters.len() <= node {
            self.counters.resize(node + 1, NodeCounters::default());
        }
        let seconds = |microseconds: u32| f64::from(microseconds) / 1e6;
        self.counters[node] = NodeCounters {
            streams: seen.streams,
            bytes: seen.acknowledged,
            segments: seen.segments,
            repeated: seen.repeated,
            rtt_seconds: seconds(seen.rtt_microseconds),
            rtt_seconds_min: seconds(seen.rtt_microseconds_min),
            window_max: 0.0,
            segment_bytes: f64::from(seen.segment),
        };
    }
}

impl Coordinator {
    /// Takes what a sender says of its streams.
    pub(super) fn observe_streams(&mut self, node: u32, seen: Option<&TcpStatus>) {
        if let Some(seen) = seen.filter(|_| self.setup.tune.is_some()) {
            self.streams.take(node as usize, seen);
        }
    }

    // Receivers that have something to fetch, and senders that somebody can ask.
    fn at_work(&self) -> (Vec<u32>, u32) {
        let receivers = self.receivers().filter(|&n| {
            let node = &self.nodes[n as usize];
            node.alive() && node.done.is_none()
        });
        let senders = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        (receivers.collect(), senders.count() as u32)
    }

    fn limits(&self, receivers: u32, senders: u32) -> Limits {
        let receivers = receivers.max(1);
        let by_senders = STREAMS_PER_SENDER_MAX * senders / receivers;
        // What users told of speeds bounds what the receivers can take.
        let told = |node: &super::Node| node.setup.down.map(|rate| rate as f64);
        let access = self.nodes.iter().filter(|node| node.is_receiver());
        let access: Option<Vec<f64>> = access.map(told).collect();
        let mean = |all: Vec<f64>| all.iter().sum::<f64>() / all.len().max(1) as f64;
        Limits {
            nodes: receivers,
            streams: by_senders.clamp(1, STREAMS_PER_RECEIVER_MAX),
            trunk: self.setup.limit.map(|limit| limit as f64),
            access: access.map(mean),
        }
    }

    /// Looks at the streams, and tells receivers when there should be more or fewer.
    pub(super) fn tune(&mut self, now_ns: u64) {
        let Some(policy) = self.setup.tune else {
            return;
        };
        if now_ns.saturating_sub(self.streams.looked_ns) < LOOK_NS
            || self.streams.counters.iter().all(|node| node.streams == 0)
        {
            return;
        }
        self.streams.looked_ns = now_ns;
        let (receivers, senders) = self.at_work();
        if receivers.is_empty() {
            return;
        }
        let limits = self.limits(receivers.len() as u32, senders);
        let streams = &mut self.streams;
        let open: u32 = streams.counters.iter().map(|node| node.streams).sum();
        let first = (open / limits.nodes).max(1);
        let lessons = &self.setup.lessons;
        let tuner = streams.tuner.get_or_insert_with(|| {
            let mut policy = policy.make();
            // Lines that a newer version wrote are none of this one.
            lessons.iter().for_each(|line| {
                policy.recall(line);
            });
            Tuner::from(policy, limits, first)
        });
        tuner.set_nodes(limits.nodes);
        let chosen = tuner.observe(&streams.counters, now_ns);
        let question = tuner.poll_question();
        if let Some(question) = question {
            self.actions.push_back(Action::Simulate(question));
        }
        if let Some(setting) = chosen {
            self.tell_streams(setting, &receivers);
        }
    }

    // A receiver with work keeps one stream at least: it alone can fetch what it wants.
    fn tell_streams(&mut self, setting: Setting, receivers: &[u32]) {
        let count = setting.streams;
        if self.streams.told.replace(count) == Some(count) {
            return;
        }
        self.streams.changes += 1;
        let policy = self.setup.tune.map_or("", PolicyName::name);
        let text = format!("{count} streams a receiver from now on ({policy})");
        self.actions.push_back(Action::Note(text));
        for &node in receivers {
            self.send(node, to_agent::Body::Streams(control::Streams { count }));
        }
    }

    /// Answer to [`Action::Simulate`].
    pub fn handle_simulated(&mut self, answer: &Answer) {
        if let Some(tuner) = &mut self.streams.tuner {
            tuner.handle_answer(answer);
        }
    }

    /// What the policy has learned, earlier transfers included; `None` where it learns nothing or had nothing to.
    pub fn lessons(&self) -> Option<Vec<String>> {
        let lessons = self.streams.tuner.as_ref()?.policy().lessons();
        (!lessons.is_empty()).then_some(lessons)
    }

    /// How often the number of streams was changed, and who decided; `None` where it is not tuned.
    pub fn tuned(&self) -> Option<(PolicyName, u32, Option<Setting>)> {
        let policy = self.setup.tune?;
        let setting = self.streams.tuner.as_ref().map(Tuner::setting);
        Some((policy, self.streams.changes, setting))
    }
}
