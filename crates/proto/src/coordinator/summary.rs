//! What the coordinator knows, for progress and the final report.

use ropewalk_model::{Instant, Nanos};

use super::arrivals::{SECOND_TIME, WINDOW_TIME};
use super::{Basis, Coordinator, Planned};
use crate::control::{Done, Finished, Landed, TcpStatus};

/// One node as the coordinator sees it.
#[derive(Clone, Debug)]
pub struct NodeSummary<'a> {
    /// Name.
    pub name: &'a str,
    /// It holds something.
    pub is_sender: bool,
    /// It wants something.
    pub is_receiver: bool,
    /// Bytes it wants by the present plan.
    pub wanted: u64,
    /// Safe bytes.
    pub delivered: u64,
    /// Bytes received and checked, safe or not yet.
    pub received: u64,
    /// Bytes per second that it received, and that others received from it, lately.
    pub receiving_rate: f64,
    /// See `receiving_rate`.
    pub sending_rate: f64,
    /// Bytes it is planned to send.
    pub planned: u64,
    /// Bytes others have from it.
    pub sent: u64,
    /// Its end, as receiver.
    pub done: Option<&'a Done>,
    /// Its final report.
    pub finished: Option<&'a Finished>,
    /// What it last said of the streams that it sends on.
    pub tcp: Option<TcpStatus>,
    /// Why it is lost.
    pub lost: Option<&'a str>,
    /// What it found where it gave files their names.
    pub landed: Option<&'a Landed>,
    /// Temporary names of transfers that its sources leave out.
    pub skipped: u64,
    /// Sockets, pipes and devices in its sources, left out.
    pub special: u64,
    /// Extended attributes that were to be kept and could not be read.
    pub attributes_unread: u64,
    /// Bytes that its own copy had from the start, which it does not want.
    pub present: u64,
    /// Bytes of files to be written that were safe before the first was received, which it does not want either.
    pub adopted: u64,
    /// Of these, bytes of chunks that files of its copy had.
    pub taken: u64,
    /// Files and links that its own copy had from the start.
    pub present_files: u64,
    /// Files and links that its own copy had, not the same, and that stay; `present` has their bytes.
    pub passed_files: u64,
    /// These bytes.
    pub passed_bytes: u64,
    /// Bytes of files that its file system cannot hold; `present` has them.
    pub refused_bytes: u64,
}

impl Coordinator {
    /// Every node, in order.
    pub fn summary(&self) -> Vec<NodeSummary<'_>> {
        let mut sent = vec![0u64; self.nodes.len()];
        let mut planned = vec![0u64; self.nodes.len()];
        for node in &self.nodes {
            for (&sender, &bytes) in &node.sent_by_pair {
                if let Some(total) = sent.get_mut(sender as usize) {
                    *total = total.saturating_add(bytes);
                }
            }
            for run in &node.runs {
                let total = &mut planned[run.source() as usize];
                *total = total.saturating_add(run.length);
            }
        }
        self.nodes
            .iter()
            .enumerate()
            .map(|(at, node)| NodeSummary {
                name: &node.setup.name,
                is_sender: node.is_sender(),
                is_receiver: node.is_receiver(),
                wanted: node.assigned_bytes(),
                delivered: node.delivered,
                received: node.checked.max(node.delivered),
                receiving_rate: {
                    let is_done = node.done.is_some() || !node.alive();
                    self.within_limit(node.received.rate(WINDOW_TIME, is_done, self.clock.now))
                },
                sending_rate: self.within_limit(node.sent.rate(
                    WINDOW_TIME,
                    !node.alive(),
                    self.clock.now,
                )),
                planned: planned[at],
                sent: sent[at],
                done: node.done.as_deref(),
                finished: node.finished.as_deref(),
                tcp: self.last_tcp(at as u32),
                lost: node.lost.as_deref(),
                landed: node.landed(),
                skipped: node.of_sources(|source| source.skipped),
                attributes_unread: node.of_sources(|source| source.attributes_unread),
                special: node.of_sources(|source| source.special),
                present: node.present_bytes,
                adopted: node.adopted_bytes,
                taken: node.taken_bytes.min(node.adopted_bytes),
                present_files: node.present_files,
                passed_files: node.passed_files,
                passed_bytes: node.passed_bytes,
                refused_bytes: node.refused_bytes,
            })
            .collect()
    }

    /// Bytes a second that all together may have; `None` without a limit.
    pub fn limit(&self) -> Option<f64> {
        self.setup.limit.map(|rate| rate.0.max(1) as f64)
    }

    /// Whether some bytes were there already, so that the first plan was made for more than had to cross.
    pub fn is_update(&self) -> bool {
        let has = |node: &super::Node| node.present_bytes.max(node.adopted_bytes) > 0;
        self.nodes.iter().any(has)
    }

    /// Bytes that arrived as zeros, which are not sent.
    pub fn zero_bytes(&self) -> u64 {
        let done = self.nodes.iter().filter_map(|node| node.done.as_deref());
        let zeros = done.fold(0, |sum: u64, done| sum.saturating_add(done.zeros));
        zeros.min(self.delivered_bytes())
    }

    /// Whether what arrived was sent, but for a hundredth: else its times say nothing of nodes and paths.
    pub fn is_sent(&self) -> bool {
        self.zero_bytes() <= self.delivered_bytes() / 100
    }

    /// Bytes that have to cross, each destination counted.
    pub fn wanted_bytes(&self) -> u64 {
        let mut shared = std::collections::BTreeMap::new();
        let mut total = 0_u64;
        for node in self.nodes.iter().filter(|n| n.is_receiver()) {
            match node.setup.sinks.first().and_then(|s| s.destination.clone()) {
                Some(name) => {
                    let entry: &mut ropewalk_model::RangeSet = shared.entry(name).or_default();
                    *entry = entry.union(&node.wants);
                }
                None => total = total.saturating_add(node.wants.len_bytes()),
            }
        }
        let shared = shared.values().map(ropewalk_model::RangeSet::len_bytes);
        shared.fold(total, u64::saturating_add)
    }

    /// Safe bytes. Of a shared destination, what was written again after a failure counts once.
    pub fn delivered_bytes(&self) -> u64 {
        self.bytes_at(|node| node.delivered)
    }

    /// The same of bytes received and checked, safe or not yet.
    pub fn received_bytes(&self) -> u64 {
        self.bytes_at(|node| node.checked.max(node.delivered))
    }

    fn bytes_at(&self, bytes: impl Fn(&super::Node) -> u64) -> u64 {
        let mut shared = std::collections::BTreeMap::new();
        let mut total = 0;
        for node in self.nodes.iter().filter(|n| n.is_receiver()) {
            match node
                .setup
                .sinks
                .first()
                .and_then(|s| s.destination.as_deref())
            {
                Some(name) => {
                    // A node whose share went to others keeps no runs.
                    let counts = !node.runs.is_empty();
                    let sum = shared.entry(name).or_insert(0u64);
                    *sum = sum.saturating_add(if counts { bytes(node) } else { 0 });
                }
                None => total = u64::saturating_add(total, bytes(node)),
            }
        }
        let capped = shared
            .into_iter()
            .map(|(name, bytes)| bytes.min(self.destination_wants(name).len_bytes()));
        capped.fold(total, u64::saturating_add)
    }

    /// Bytes per second of all receivers together: a mean over about a second; never above the limit.
    pub fn second_rate(&self) -> f64 {
        let rates = self.nodes.iter().map(|node| {
            let is_done = node.done.is_some() || !node.alive();
            node.received.rate(SECOND_TIME, is_done, self.clock.now)
        });
        self.within_limit(rates.sum())
    }

    /// A rate in bytes per second, or the limit: the bytes of a unit that began before a window does not make it exceed that.
    pub fn within_limit(&self, rate: f64) -> f64 {
        rate.min(self.limit().unwrap_or(f64::MAX))
    }

    /// The first plan.
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// The source of the plan's speeds.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Files, when the sources are trees.
    pub fn files(&self) -> u64 {
        self.space.files
    }

    /// When bytes started to flow.
    pub fn moving_at(&self) -> Option<Instant> {
        self.clock.moving_at
    }

    /// When the last receiver was done.
    pub fn last_done_at(&self) -> Option<Instant> {
        self.clock.last_done_at
    }

    /// How long it took from the last byte of all receivers to the last one's end, and which one that is: it syncs, and gives files their names.
    /// What others sync before is beside what moves.
    pub fn finishing(&self) -> (Nanos, Option<u32>) {
        let times = self.clock.last_done_at.zip(self.clock.received_at);
        let time = times.map_or(Nanos::ZERO, |(done, received)| done.since(received));
        (time, self.clock.last_done)
    }

    /// Whether a receiver hands on what it has, or did.
    pub fn hands_on(&self, node: u32) -> bool {
        self.relays.contains(&node)
    }

    /// How often work was planned again.
    pub fn replans(&self) -> u32 {
        self.replans
    }

    /// What happened on the way.
    pub fn notes(&self) -> &[String] {
        self.out.notes()
    }

    /// Of these, what was lost.
    pub fn losses(&self) -> &[String] {
        self.out.losses()
    }

    /// And what holders refused.
    pub fn refusals(&self) -> &[String] {
        self.out.refusals()
    }

    /// The problem of the first plan with other speeds (node number to bytes per second), to compute
    /// a bound from observation.
    pub fn observed_problem(&self) -> ropewalk_model::Problem {
        use ropewalk_model::problem::{Problem, Receiver, Sender};
        let moving = match (self.clock.moving_at, self.clock.last_done_at) {
            (Some(start), Some(end)) => end.since(start).as_seconds().max(1e-9),
            _ => f64::MAX,
        };
        let mean = |bytes: u64| (bytes as f64 / moving) as u64;
        let summary = self.summary();
        let best = |at: usize, node: &super::Node, sending: bool| {
            let (seen, mean, declared) = if sending {
                let seen = node.finished.as_deref().map_or(0, |f| f.best_second);
                (seen, mean(summary[at].sent), node.setup.up)
            } else {
                let seen = node.done.as_deref().map_or(0, |d| d.best_second);
                (seen, mean(node.delivered), node.setup.down)
            };
            // A node that was lost never told its best second.
            declared.map_or(seen.max(mean).max(1), |rate| rate.0)
        };
        let nodes = || self.nodes.iter().enumerate();
        Problem {
            senders: nodes()
                .filter(|(_, n)| n.is_sender())
                .map(|(at, n)| Sender {
                    name: n.setup.name.clone(),
                    up: best(at, n, true),
                    ranges: n.holds.clone(),
                })
                .collect(),
            receivers: nodes()
                .filter(|(_, n)| n.is_receiver())
                .map(|(at, n)| Receiver {
                    name: n.setup.name.clone(),
                    down: best(at, n, false),
                    ranges: n.wants.clone(),
                    destination: n.setup.sinks.first().and_then(|s| s.destination.clone()),
                    relay_up: None,
                })
                .collect(),
            ..Problem::default()
        }
    }
}
