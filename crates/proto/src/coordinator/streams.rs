//! One budget of streams for all nodes of the transfer (coordinated striping, section 3).
//!
//! Senders report what the kernel says of their streams, since losses show only there. The tuner chooses how many there
//! should be in all; receivers, which open streams, get their shares. So nodes cannot each try to take the trunk for
//! themselves, and when it loses packets all step back together.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Nanos};
use ropewalk_tuner::{Answer, Limits, NodeCounters, Others, PolicyName, Setting, Tuner};

use super::{Action, Coordinator};
use crate::control::{self, TcpStatus, to_agent};

#[cfg(test)]
mod tests;

/// Most streams that the receivers may hold open to one sender, together: each is a thread there.
pub const STREAMS_PER_SENDER_MAX: u32 = 256;

/// Most streams of one receiver.
const STREAMS_PER_RECEIVER_MAX: u32 = 64;

/// Time between two comparisons of what the receivers have left.
const COMPARE_TIME: Nanos = Nanos(1_000_000_000);

/// A receiver's streams are at most so many times the mean, or that part of it ...
const UNEVEN_MAX: f64 = 3.0;

/// ... and are left alone while they are within this factor of what they should be.
const UNEVEN_MIN: f64 = 1.3;

/// Time between two looks.
const LOOK_TIME: Nanos = Nanos(100_000_000);

/// The tuner and what it goes by.
#[derive(Debug, Default)]
pub(super) struct Streams {
    // Made when the first sender has reported.
    tuner: Option<Tuner>,
    // By node.
    counters: Vec<NodeCounters>,
    looked_at: Instant,
    // What each receiver had when the first sender told of its streams.
    first: u32,
    // What each receiver was told (0: that the path is short), and when they were last compared.
    told: BTreeMap<u32, u32>,
    compared_at: Instant,
    // The share of all, as it was last noted.
    noted: Option<u32>,
    // Settings that were sent, for the report.
    changes: u32,
    others: Others,
    noted_others: u32,
    noted_unanswered: bool,
    lanes: Lanes,
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
            window_max: f64::from(seen.window) / f64::from(seen.segment.max(1)),
            segment_bytes: f64::from(seen.segment),
        };
    }

    /// A node sends nothing any more: what it told last is not of now.
    pub(super) fn forget(&mut self, node: u32) {
        if let Some(counters) = self.counters.get_mut(node as usize) {
            *counters = NodeCounters::default();
        }
    }
}

/// What became of the number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// What decided.
    pub policy: PolicyName,
    /// How often receivers got another number.
    pub changes: u32,
    /// The newest.
    pub setting: Setting,
    /// Other transfers that shared the path at the end.
    pub others: u32,
}

/// Lanes that the first plan opens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes {
    all: u32,
    of_busiest_sender: u32,
}

/// What nodes reported of their addresses: those of the senders, and those of the receivers.
pub type Ends = [Vec<IpAddr>; 2];

impl Coordinator {
    /// Receivers that share the path, 0 where the number of streams is not tuned, and other transfers that do.
    ///
    /// They know the round trip when they have connected, seconds before the first look at what senders tell, and open
    /// their part at once.
    pub(super) fn sharers(&self) -> (u32, u32) {
        match self.setup.tune {
            Some(_) => {
                let receivers = self.receivers().count() as u32;
                (receivers, self.streams.others.transfers)
            }
            None => (0, 0),
        }
    }

    /// Sources and destinations of the bytes, as far as nodes have opened.
    pub fn ends(&self) -> Ends {
        let addresses = |is_end: fn(&super::Node) -> bool| {
            let nodes = self
                .nodes
                .iter()
                .filter(|node| node.alive() && is_end(node));
            let told = nodes.filter_map(|node| node.opened.as_deref());
            let texts = told.flat_map(|opened| &opened.addresses);
            texts
                .filter_map(|text| Some(text.parse::<SocketAddr>().ok()?.ip()))
                .collect()
        };
        [
            addresses(super::Node::is_sender),
            addresses(super::Node::is_receiver),
        ]
    }

    /// Other transfers whose masters tune streams over the same path: each takes its part of them.
    pub fn handle_others(&mut self, others: Others) {
        self.streams.others = others;
    }

    // Says how many share the path, once it is known to be long.
    fn note_others(&mut self) {
        let others = self.streams.others.transfers;
        if std::mem::replace(&mut self.streams.noted_others, others) != others {
            let text = match others {
                0 => "no other transfer shares the path any more".to_owned(),
                _ => format!(
                    "streams are shared by {} transfers over the same path from now on",
                    1 + others
                ),
            };
            self.out.push(Action::Note(text));
        }
    }

    /// Streams assigned to all receivers together; 0 before senders have reported any.
    pub fn tuned_streams(&self) -> u32 {
        let tuner = self.streams.tuner.as_ref();
        tuner.map_or(0, |tuner| tuner.setting().total())
    }

    /// Takes what a sender says of its streams.
    pub(super) fn observe_streams(&mut self, node: u32, seen: Option<&TcpStatus>) {
        let state = &self.nodes[node as usize];
        // One that was let go may have said it before it heard of that.
        let counts = self.setup.tune.is_some() && state.alive() && !state.life().is_closing();
        if let Some(seen) = seen.filter(|_| counts) {
            self.streams.take(node as usize, seen);
        }
    }

    // Receivers that have something to fetch, and senders that somebody can ask.
    fn at_work(&self) -> (Vec<u32>, u32) {
        let receivers = self.receivers().filter(|&n| {
            let node = &self.nodes[n as usize];
            node.life().is_unfinished()
        });
        let senders = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        (receivers.collect(), senders.count() as u32)
    }

    /// Streams that one lane may have so that no sender has too many, whoever asks it.
    pub(super) fn lane_streams_max(&self) -> u32 {
        let busiest = self.streams.lanes.of_busiest_sender.max(1);
        (STREAMS_PER_SENDER_MAX / busiest).clamp(1, STREAMS_PER_RECEIVER_MAX)
    }

    /// Counts the lanes that the runs open; while speeds are found out, those to spare holders, too.
    pub(super) fn count_lanes(&mut self) {
        let mut asking = vec![0_u32; self.nodes.len()];
        let mut lanes = 0;
        for node in &self.nodes {
            let mut senders: BTreeSet<u32> = node.runs.iter().map(control::Run::source).collect();
            if self.balancer.is_exploring() {
                senders.extend(node.runs.iter().map(|run| run.sender));
                senders.extend(node.runs.iter().flat_map(|run| &run.spares));
            }
            lanes += senders.len() as u32;
            for sender in senders {
                asking[sender as usize] += 1;
            }
        }
        self.streams.lanes = Lanes {
            all: lanes,
            of_busiest_sender: asking.into_iter().max().unwrap_or(0),
        };
    }

    fn limits(&self, receivers: u32, senders: u32) -> Limits {
        let receivers = receivers.max(1);
        let by_senders = STREAMS_PER_SENDER_MAX * senders / receivers;
        let all_receivers = self.receivers().count().max(1) as u32;
        let lanes = self.streams.lanes.all.div_ceil(all_receivers);
        let by_lanes = self.lane_streams_max() * lanes.max(1);
        // What users told of speeds bounds what the receivers can take, and what there is for them.
        let told = |is_end: fn(&super::Node) -> bool, rate: fn(&super::Node) -> Option<u64>| {
            let ends = self.nodes.iter().filter(|node| is_end(node));
            let rates: Option<Vec<u64>> = ends.map(rate).collect();
            rates.map(|rates| rates.iter().map(|rate| *rate as f64).sum::<f64>())
        };
        let down = told(super::Node::is_receiver, |node| {
            node.setup.down.map(|rate| rate.0)
        });
        let up = told(super::Node::is_sender, |node| {
            node.setup.up.map(|rate| rate.0)
        });
        let least = [down, up].into_iter().flatten().reduce(f64::min);
        Limits {
            nodes: receivers,
            streams: by_senders.min(by_lanes).clamp(1, STREAMS_PER_RECEIVER_MAX),
            trunk: self.setup.limit.map(|limit| limit.0 as f64),
            access: least.map(|all| all / f64::from(all_receivers)),
        }
    }

    /// Looks at the streams, and tells receivers when there should be more or fewer.
    pub(super) fn tune(&mut self, now: Instant) {
        let Some(policy) = self.setup.tune else {
            return;
        };
        // Where nothing is to be tuned, large clusters must not cost the master time.
        let is_near = |tuner: &Tuner| !tuner.is_far();
        let pause = match self.streams.tuner.as_ref().is_some_and(is_near) {
            true => COMPARE_TIME,
            false => LOOK_TIME,
        };
        if now.since(self.streams.looked_at) < pause
            || self.streams.counters.iter().all(|node| node.streams == 0)
        {
            return;
        }
        self.streams.looked_at = now;
        let (receivers, senders) = self.at_work();
        if receivers.is_empty() {
            return;
        }
        let limits = self.limits(receivers.len() as u32, senders);
        let streams = &mut self.streams;
        let open = streams.counters.iter().map(|node| node.streams);
        let open = open.fold(0, u32::saturating_add);
        if streams.tuner.is_none() {
            streams.first = (open / limits.nodes).max(1);
        }
        let first = streams.first;
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
        tuner.set_others(streams.others);
        let chosen = tuner.observe(&streams.counters, now.0);
        let question = tuner.poll_question();
        if let Some(question) = question {
            self.out.push(Action::Simulate(question));
        }
        let is_far = tuner.is_far();
        let setting = tuner.setting();
        if !is_far {
            if tuner.seemed_far() {
                self.tell_near(&receivers);
            }
            return;
        }
        self.note_others();
        if let Some(setting) = chosen {
            self.note_streams(setting);
        }
        let is_due = now.since(self.streams.compared_at) >= COMPARE_TIME;
        if chosen.is_some() || is_due {
            self.streams.compared_at = now;
            self.tell_streams(setting, chosen.is_some(), &receivers);
        }
    }

    // A queue may have made a short path look long, to those who opened streams or to the tuner: as many as over a long
    // one would take more than this transfer's part.
    fn tell_near(&mut self, receivers: &[u32]) {
        if self.streams.noted.take().is_some() {
            let text =
                "the path is short, its queue is long: streams as over a short path from now on";
            self.out.push(Action::Note(text.into()));
        }
        for &node in receivers {
            let near = control::Streams { count: 0 };
            if self.streams.told.insert(node, near.count) != Some(near.count) {
                self.send(node, to_agent::Body::Streams(near));
            }
        }
    }

    fn note_streams(&mut self, setting: Setting) {
        let count = setting.streams;
        if self.streams.noted.replace(count) == Some(count) {
            return;
        }
        self.streams.changes += 1;
        let policy = self.setup.tune.map_or("", PolicyName::name);
        let text = format!("{count} streams a receiver from now on ({policy})");
        self.out.push(Action::Note(text));
    }

    // The mean is the tuner's. Who has more left than others gets more streams, so that all end together: streams that
    // share a trunk carry about the same each, and the last node alone would be left with its few. A receiver with work
    // keeps one: it alone can fetch what it wants.
    fn tell_streams(&mut self, setting: Setting, is_step: bool, receivers: &[u32]) {
        let left = |&node: &u32| {
            let node = &self.nodes[node as usize];
            node.assigned_bytes().saturating_sub(node.checked) as f64
        };
        let mean = receivers.iter().map(left).sum::<f64>() / receivers.len().max(1) as f64;
        let most = self
            .limits(receivers.len() as u32, self.at_work().1)
            .streams;
        let counts: Vec<(u32, u32)> = receivers
            .iter()
            .map(|node| {
                let part = (left(node) / mean.max(1.0)).clamp(1.0 / UNEVEN_MAX, UNEVEN_MAX);
                let count = (f64::from(setting.streams) * part).round() as u32;
                (*node, count.clamp(1, most))
            })
            .collect();
        for (node, count) in counts {
            let told = self.streams.told.get(&node).copied();
            let is_near = |told: u32| {
                let ratio = f64::from(count) / f64::from(told);
                (1.0 / UNEVEN_MIN..=UNEVEN_MIN).contains(&ratio)
            };
            // Before the first step they have what they began with.
            let known = told.or((!is_step).then_some(self.streams.first));
            if known.is_some_and(is_near) {
                continue;
            }
            self.streams.told.insert(node, count);
            self.send(node, to_agent::Body::Streams(control::Streams { count }));
        }
    }

    /// Answer to [`Action::Simulate`].
    pub fn handle_simulated(&mut self, answer: &Answer) {
        if let Some(tuner) = &mut self.streams.tuner {
            tuner.handle_answer(answer);
        }
    }

    /// The question of an [`Action::Simulate`] cannot be answered.
    pub fn handle_not_simulated(&mut self, why: &str) {
        if !std::mem::replace(&mut self.streams.noted_unanswered, true) {
            let text = format!(
                "streams cannot be simulated: {why}; they grow while more of them carry more, without advice"
            );
            self.out.push(Action::Note(text));
        }
    }

    /// What this transfer teaches later ones about streams; `None` where there was nothing to learn.
    pub fn lessons(&self) -> Option<Vec<String>> {
        let lessons = self.streams.tuner.as_ref()?.lessons();
        (!lessons.is_empty()).then_some(lessons)
    }

    /// What became of the number of streams; `None` where it is not tuned, or the path is short.
    pub fn tuned(&self) -> Option<Tuned> {
        let tuner = self.streams.tuner.as_ref().filter(|tuner| tuner.is_far())?;
        Some(Tuned {
            policy: self.setup.tune?,
            changes: self.streams.changes,
            setting: tuner.setting(),
            others: self.streams.others.transfers,
        })
    }
}
