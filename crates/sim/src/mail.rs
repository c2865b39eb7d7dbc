//! Control messages under way, and their account.

use std::collections::BTreeMap;

use prost::Message;
use ropewalk_model::{Instant, Nanos};
use ropewalk_proto::control::{FromAgent, LENGTH_LEN, ToAgent, from_agent, to_agent};

use crate::Chance;
use crate::ended::Second;

/// Control messages of a node in one direction; bytes are those before encryption, length prefixes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages that a plan takes: open, opened, plan, revision, done, finish and so on.
    pub plan_messages: u64,
    /// Their bytes.
    pub plan_bytes: u64,
    /// Periodic ones: status of agents, shares of a limit, permits.
    pub status_messages: u64,
    /// Their bytes.
    pub status_bytes: u64,
}

impl Tally {
    fn count(&mut self, is_periodic: bool, bytes: u64) {
        let (messages, sum) = if is_periodic {
            (&mut self.status_messages, &mut self.status_bytes)
        } else {
            (&mut self.plan_messages, &mut self.plan_bytes)
        };
        *messages += 1;
        *sum += bytes;
    }

    fn add(&mut self, other: &Self) {
        self.plan_messages += other.plan_messages;
        self.plan_bytes += other.plan_bytes;
        self.status_messages += other.status_messages;
        self.status_bytes += other.status_bytes;
    }
}

/// Control messages of a node, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the master to the node.
    pub sent: Tally,
    /// From the node to the master.
    pub received: Tally,
}

impl Traffic {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent.add(&other.sent);
        self.received.add(&other.received);
    }
}

/// Messages by the time they arrive, those of one time in the order they were sent.
pub(crate) struct Mail {
    latencies: Vec<Nanos>,
    jitter: Nanos,
    chance: Chance,
    // When the last message of each connection arrives: to the node, and from it.
    last_at: BTreeMap<(u32, bool), Instant>,
    to_agents: BTreeMap<Instant, Vec<(u32, ToAgent)>>,
    to_master: BTreeMap<Instant, Vec<(u32, FromAgent)>>,
    pub traffic: Vec<Traffic>,
    pub timeline: Vec<Second>,
}

impl Mail {
    pub fn new(latencies: Vec<Nanos>, jitter: Nanos, chance: Chance) -> Self {
        Self {
            jitter,
            chance,
            last_at: BTreeMap::new(),
            traffic: vec![Traffic::default(); latencies.len()],
            latencies,
            to_agents: BTreeMap::new(),
            to_master: BTreeMap::new(),
            timeline: Vec::new(),
        }
    }

    fn second(&mut self, at: Instant) -> &mut Second {
        let at = at.since(Instant::ZERO).whole_seconds() as usize;
        if self.timeline.len() <= at {
            self.timeline.resize(at + 1, Second::default());
        }
        &mut self.timeline[at]
    }

    pub fn send_to_agent(&mut self, node: u32, message: ToAgent, now: Instant) {
        let bytes = (LENGTH_LEN + message.encoded_len()) as u64;
        let is_periodic = matches!(
            message.body,
            Some(to_agent::Body::Limit(_) | to_agent::Body::Permit(_))
        );
        self.traffic[node as usize].sent.count(is_periodic, bytes);
        self.second(now).sent_bytes += bytes;
        let at = self.arrival(node, true, now);
        self.to_agents.entry(at).or_default().push((node, message));
    }

    pub fn send_to_master(&mut self, node: u32, body: from_agent::Body, now: Instant) {
        let message = FromAgent { body: Some(body) };
        let at = self.arrival(node, false, now);
        self.to_master.entry(at).or_default().push((node, message));
    }

    fn arrival(&mut self, node: u32, is_to_node: bool, now: Instant) -> Instant {
        let mut at = now + self.latencies[node as usize];
        if self.jitter > Nanos::ZERO {
            at += Nanos(self.chance.below(self.jitter.0));
            let last = self.last_at.entry((node, is_to_node)).or_default();
            at = at.max(*last);
            *last = at;
        }
        at
    }

    /// Whether a message to an agent is under way.
    pub fn has_for_agents(&self) -> bool {
        !self.to_agents.is_empty()
    }

    /// How many messages are under way.
    pub fn len(&self) -> usize {
        let to_agents = self.to_agents.values().map(Vec::len).sum::<usize>();
        to_agents + self.to_master.values().map(Vec::len).sum::<usize>()
    }

    /// What has arrived at agents.
    pub fn for_agents(&mut self, now: Instant) -> Vec<(u32, ToAgent)> {
        due(&mut self.to_agents, now)
    }

    /// What has arrived at the master.
    pub fn for_master(&mut self, now: Instant) -> Vec<(u32, FromAgent)> {
        due(&mut self.to_master, now)
    }

    /// Puts a message that the master reads on its account.
    pub fn count_received(&mut self, node: u32, message: &FromAgent, now: Instant) {
        let bytes = (LENGTH_LEN + message.encoded_len()) as u64;
        let is_periodic = matches!(
            message.body,
            Some(from_agent::Body::Status(_) | from_agent::Body::SenderStatus(_))
        );
        self.traffic[node as usize]
            .received
            .count(is_periodic, bytes);
        self.second(now).received_bytes += bytes;
    }
}

fn due<M>(queue: &mut BTreeMap<Instant, Vec<(u32, M)>>, now: Instant) -> Vec<(u32, M)> {
    let mut out = Vec::new();
    while let Some(first) = queue.first_entry().filter(|first| *first.key() <= now) {
        out.extend(first.remove());
    }
    out
}
