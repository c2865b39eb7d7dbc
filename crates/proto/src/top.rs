//! `top`: what transfers do now, from what commands and agents say of themselves again and again.
//!
//! ```text
//!  a command knows the whole transfer: all nodes, their rates, what holds it back
//!  an agent knows its own part: bytes since the beginning, and what its threads have waited for
//!
//!  samples of all places ─▶ Watch ─▶ rates and causes of the last seconds ─▶ one row for each transfer
//! ```
//!
//! A transfer that several processes know of is one row: what its command says counts, and without that what its agents say together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{Instant, Nanos};
use serde::{Deserialize, Serialize};

use crate::control::Waits;
use crate::coordinator::is_near;
use crate::report::{BottleneckCause, BottleneckReport};

/// Rates and causes are those of so long: as long as progress lines take.
const WINDOW: Nanos = Nanos::from_secs(3);

/// Transfers that are shown; a host carries out a few.
pub const TRANSFERS_MAX: usize = 1000;

/// Nodes of a transfer that are shown.
pub const NODES_MAX: usize = 64;

/// A sender's threads that wait for requests, unless others of it are busy for this part of the time, wait for other nodes.
const BUSY: f64 = 0.1;

/// Smaller shares are not shown.
const SHARE_MIN: f64 = 0.01;

/// What speaks of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The command that carries it out.
    #[default]
    Command,
    /// An agent that takes part in it.
    Agent,
}

/// How the threads of a side of a node have spent their time, in nanoseconds summed up over them. As [`Waits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// On a processor.
    pub processor: u64,
    /// Reading a source, writing a sink.
    pub disk: u64,
    /// For what the peer sends.
    pub peer: u64,
    /// Until a connection took more bytes.
    pub path: u64,
    /// For space in a sink.
    pub space: u64,
    /// Opening streams.
    pub connect: u64,
    /// Making bytes safe, giving files their names.
    pub sync: u64,
}

impl From<&Waits> for Spent {
    fn from(waits: &Waits) -> Self {
        Self {
            processor: waits.processor,
            disk: waits.disk,
            peer: waits.peer,
            path: waits.path,
            space: waits.space,
            connect: waits.connect,
            sync: waits.sync.saturating_add(waits.name),
        }
    }
}

impl Spent {
    fn since(&self, before: &Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            disk: self.disk.saturating_sub(before.disk),
            peer: self.peer.saturating_sub(before.peer),
            path: self.path.saturating_sub(before.path),
            space: self.space.saturating_sub(before.space),
            connect: self.connect.saturating_sub(before.connect),
            sync: self.sync.saturating_sub(before.sync),
        }
    }
}

/// What one process says of one transfer, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Which of the two it is.
    pub speaker: Speaker,
    /// Its process on its host; 0 where that is not known.
    pub process: u32,
    /// Of an agent, the random name of its run: it may be reached in several ways, and is one node.
    pub agent: Option<String>,
    /// Id of the transfer, once it is known.
    pub transfer: Option<String>,
    /// `copy`, `check`, `transfer`, `stream`, `shuffle` or `tunnel`.
    pub kind: String,
    /// Label, or as given.
    pub label: Option<String>,
    /// Sources; of an agent, its master.
    pub from: Vec<String>,
    /// Destinations; of a tunnel, its targets.
    pub to: Vec<String>,
    /// Age.
    pub seconds: f64,
    /// What it does where it moves nothing; absent while bytes move.
    pub state: Option<String>,
    /// Bytes sent so far, by this node or into a stream or tunnel.
    pub sent: u64,
    /// Bytes received so far.
    pub received: u64,
    /// Of these, the safe ones.
    pub safe: u64,
    /// Bytes that are wanted; absent where that is not known.
    pub total: Option<u64>,
    /// Of an agent that receives: its share of the transfer's limit, bytes per second.
    pub limit: Option<u64>,
    /// Rate, where its process knows it.
    pub bits_per_second: Option<f64>,
    /// Expected time left.
    pub eta_seconds: Option<f64>,
    /// What held it back in the last seconds, where its process knows it.
    pub bottlenecks: Vec<BottleneckReport>,
    /// Nodes, where its process knows them.
    pub nodes: Vec<NodeRow>,
    /// Nodes that are not among these.
    pub nodes_more: usize,
    /// Of a stream.
    pub blocks: Option<u64>,
    /// Of a tunnel.
    pub connections: Option<u64>,
    /// Of these, open now.
    pub open_connections: Option<u64>,
    /// Of an agent that sends.
    pub sending: Option<Spent>,
    /// Of an agent that receives.
    pub receiving: Option<Spent>,
}

/// What a place answered: samples, or why there are none and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its name, as people gave it.
    pub place: String,
    /// What its processes say.
    pub answer: Result<Vec<Sample>, String>,
}

/// All transfers at one moment: what `top` shows and `--json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopReport {
    /// Format of this object; fields may be added without a change of it.
    pub version: u32,
    /// When, in seconds since 1970.
    pub at_seconds: u64,
    /// What was asked, in the order given.
    pub places: Vec<PlaceRow>,
    /// The transfers, the oldest first.
    pub transfers: Vec<TransferRow>,
    /// Further ones.
    pub transfers_more: usize,
}

/// A host or agent that was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlaceRow {
    /// Its name.
    pub place: String,
    /// Why it does not answer, and what to do; absent where it does.
    pub error: Option<String>,
}

/// A transfer, stream, shuffle or tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TransferRow {
    /// Id, once it is known.
    pub transfer: Option<String>,
    /// What it does.
    pub kind: String,
    /// Label, or as given.
    pub label: Option<String>,
    /// Where it was seen.
    pub places: Vec<String>,
    /// Process of its command, where that was seen.
    pub process: Option<u32>,
    /// Sources.
    pub from: Vec<String>,
    /// Destinations.
    pub to: Vec<String>,
    /// Age.
    pub seconds: f64,
    /// What it does where it moves nothing.
    pub state: Option<String>,
    /// Bytes received so far by the nodes that were seen; where only senders were, those that they sent.
    pub received_bytes: u64,
    /// Of these, the safe ones.
    pub delivered_bytes: u64,
    /// Bytes that are wanted.
    pub total_bytes: Option<u64>,
    /// Over the last seconds.
    pub bits_per_second: f64,
    /// Expected time left.
    pub eta_seconds: Option<f64>,
    /// What held it back in the last seconds, the largest share first.
    pub bottlenecks: Vec<BottleneckReport>,
    /// Nodes that were seen, receivers first.
    pub nodes: Vec<NodeRow>,
    /// Further ones.
    pub nodes_more: usize,
    /// Of a stream.
    pub blocks: Option<u64>,
    /// Of a tunnel.
    pub connections: Option<u64>,
    /// Of these, open now.
    pub open_connections: Option<u64>,
}

/// A node of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// Whether these are the bytes that it sends, or those that it receives.
    pub sends: bool,
    /// So far.
    pub bytes: u64,
    /// Of those that it received, the safe ones.
    pub safe_bytes: u64,
    /// All of them, where that is known.
    pub total_bytes: Option<u64>,
    /// Over the last seconds.
    pub bits_per_second: f64,
}

/// Counters of a process at one moment.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Instant,
    sent: u64,
    received: u64,
    sending: Spent,
    receiving: Spent,
}

/// What a process said in the last seconds, the oldest first.
#[derive(Clone, Debug, Default)]
struct History(VecDeque<Point>);

/// Points of one transfer that are kept: answers follow one another once a second.
const POINTS_MAX: usize = 64;

/// What was added in the last seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    sent_bits_per_second: f64,
    received_bits_per_second: f64,
    sending: Spent,
    receiving: Spent,
}

impl History {
    fn add(&mut self, point: Point) {
        let last = self.0.back();
        // The same answer was seen before.
        if last.is_some_and(|last| last.at == point.at) {
            return;
        }
        // Another transfer under the same id, after the agent was started again.
        if last.is_some_and(|last| {
            last.at > point.at || last.sent > point.sent || last.received > point.received
        }) {
            self.0.clear();
        }
        self.0.push_back(point);
        // The last one before the window is where it begins.
        while self.0.len() > POINTS_MAX
            || self.0.len() > 2 && point.at.since(self.0[1].at) >= WINDOW
        {
            self.0.pop_front();
        }
    }

    fn lately(&self) -> Lately {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return Lately::default();
        };
        let seconds = last.at.since(first.at).as_seconds();
        let rate = |last: u64, first: u64| match seconds > 0.0 {
            true => last.saturating_sub(first) as f64 * 8.0 / seconds,
            false => 0.0,
        };
        Lately {
            sent_bits_per_second: rate(last.sent, first.sent),
            received_bits_per_second: rate(last.received, first.received),
            sending: last.sending.since(&first.sending),
            receiving: last.receiving.since(&first.receiving),
        }
    }
}

/// A process of a place, and its transfer.
type Key = (String, u32, Speaker, String);

/// Observes transfers over time.
#[derive(Debug, Default)]
pub struct Watch(BTreeMap<Key, History>);

impl Watch {
    /// What transfers do, by what was seen now and before.
    ///
    /// * `unix_seconds`: the time of day, for the report.
    ///
    /// Cost O(samples x log samples).
    pub fn observe(&mut self, now: Instant, seen: &[Seen], unix_seconds: u64) -> TopReport {
        let mut histories = BTreeMap::new();
        let mut parts: Vec<Part> = Vec::new();
        for place in seen {
            for sample in place.answer.iter().flatten() {
                let of = sample.transfer.clone().unwrap_or_default();
                let key = (place.place.clone(), sample.process, sample.speaker, of);
                let mut history = self.0.remove(&key).unwrap_or_default();
                history.add(Point {
                    // When an agent was asked is not when it is looked at; it says its age then.
                    at: match sample.speaker {
                        Speaker::Agent => Instant((sample.seconds.max(0.0) * 1e9) as u64),
                        Speaker::Command => now,
                    },
                    sent: sample.sent,
                    received: sample.received,
                    sending: sample.sending.unwrap_or_default(),
                    receiving: sample.receiving.unwrap_or_default(),
                });
                parts.push(Part {
                    place: &place.place,
                    sample,
                    lately: history.lately(),
                });
                histories.insert(key, history);
            }
        }
        // What ended is forgotten.
        self.0 = histories;
        let mut transfers = rows(parts);
        transfers.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let transfers_more = transfers.len().saturating_sub(TRANSFERS_MAX);
        transfers.truncate(TRANSFERS_MAX);
        let place = |seen: &Seen| PlaceRow {
            place: seen.place.clone(),
            error: seen.answer.as_ref().err().cloned(),
        };
        TopReport {
            version: crate::report::FORMAT_VERSION,
            at_seconds: unix_seconds,
            places: seen.iter().map(place).collect(),
            transfers,
            transfers_more,
        }
    }

    /// Whether a rate is not known before another look: an agent has said its counters once.
    #[must_use]
    pub fn needs_more(&self) -> bool {
        self.0.values().any(|history| history.0.len() < 2)
    }
}

/// What one process says of a transfer, now and over the last seconds.
struct Part<'s> {
    place: &'s str,
    sample: &'s Sample,
    lately: Lately,
}

/// One row for each transfer.
fn rows(parts: Vec<Part>) -> Vec<TransferRow> {
    let mut named: BTreeMap<String, Vec<Part>> = BTreeMap::new();
    let mut out = Vec::new();
    for part in parts {
        match &part.sample.transfer {
            Some(id) => named.entry(id.clone()).or_default().push(part),
            None => out.push(row(&[part])),
        }
    }
    out.extend(named.values().map(|parts| row(parts)));
    out
}

/// * `parts`: what processes say of one transfer; at least one.
fn row(parts: &[Part]) -> TransferRow {
    let command = parts
        .iter()
        .find(|part| part.sample.speaker == Speaker::Command);
    let mut row = match command {
        Some(part) => of_command(part),
        None => of_agents(parts),
    };
    let mut places: Vec<String> = parts.iter().map(|part| part.place.to_owned()).collect();
    places.sort();
    places.dedup();
    row.places = places;
    row.bottlenecks.retain(|one| one.share >= SHARE_MIN);
    let more = row.nodes.len().saturating_sub(NODES_MAX);
    row.nodes_more = row.nodes_more.saturating_add(more);
    row.nodes.truncate(NODES_MAX);
    row
}

/// What all kinds of processes say.
fn common(sample: &Sample) -> TransferRow {
    TransferRow {
        transfer: sample.transfer.clone(),
        kind: sample.kind.clone(),
        label: sample.label.clone(),
        from: sample.from.clone(),
        to: sample.to.clone(),
        seconds: sample.seconds,
        state: sample.state.clone(),
        received_bytes: sample.received,
        delivered_bytes: sample.safe,
        total_bytes: sample.total,
        eta_seconds: sample.eta_seconds,
        blocks: sample.blocks,
        connections: sample.connections,
        open_connections: sample.open_connections,
        ..TransferRow::default()
    }
}

fn of_command(part: &Part) -> TransferRow {
    let sample = part.sample;
    let counted = match sample.connections {
        // Both ways of a tunnel count.
        Some(_) => part.lately.sent_bits_per_second + part.lately.received_bits_per_second,
        None => part.lately.received_bits_per_second,
    };
    TransferRow {
        process: Some(sample.process),
        bits_per_second: sample.bits_per_second.unwrap_or(counted),
        bottlenecks: sample.bottlenecks.clone(),
        nodes: sample.nodes.clone(),
        nodes_more: sample.nodes_more,
        ..common(sample)
    }
}

/// Each agent once, however often it was asked.
fn distinct<'p, 's>(parts: &'p [Part<'s>]) -> Vec<&'p Part<'s>> {
    let mut known = BTreeSet::new();
    let parts = parts.iter();
    parts
        .filter(|part| match &part.sample.agent {
            Some(agent) => known.insert(agent),
            None => true,
        })
        .collect()
}

/// What the node of each part is called: by its place, and where several agents of one place take part by their processes, too.
fn node_names(parts: &[&Part]) -> Vec<String> {
    let mut of_place: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        *of_place.entry(part.place).or_default() += 1;
    }
    let name = |part: &&Part| match of_place.get(part.place).copied().unwrap_or(1) {
        1 => part.place.to_owned(),
        _ => format!("{}, process {}", part.place, part.sample.process),
    };
    parts.iter().map(name).collect()
}

fn of_agents(parts: &[Part]) -> TransferRow {
    let parts = distinct(parts);
    let names = node_names(&parts);
    let Some(first) = parts.first() else {
        return TransferRow::default();
    };
    let mut row = common(first.sample);
    let receives = |part: &Part| part.sample.total.is_some_and(|total| total > 0);
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for (part, name) in parts.iter().zip(&names) {
        let (sample, lately) = (part.sample, &part.lately);
        row.seconds = row.seconds.max(sample.seconds);
        if receives(part) || sample.total.is_none() {
            receivers.push(NodeRow {
                node: name.clone(),
                sends: false,
                bytes: sample.received,
                safe_bytes: sample.safe,
                total_bytes: sample.total,
                bits_per_second: lately.received_bits_per_second,
            });
        }
        if sample.sent > 0 || !receives(part) {
            senders.push(NodeRow {
                node: name.clone(),
                sends: true,
                bytes: sample.sent,
                safe_bytes: 0,
                total_bytes: None,
                bits_per_second: lately.sent_bits_per_second,
            });
        }
    }
    let counting = match receivers.is_empty() {
        true => &senders,
        false => &receivers,
    };
    let sum = |of: fn(&NodeRow) -> u64| counting.iter().map(of).fold(0, u64::saturating_add);
    row.received_bytes = sum(|node| node.bytes);
    row.delivered_bytes = sum(|node| node.safe_bytes);
    let totals = counting.iter().map(|node| node.total_bytes);
    row.total_bytes = totals
        .into_iter()
        .try_fold(0_u64, |sum, one| Some(sum.saturating_add(one?)));
    row.bits_per_second = counting.iter().map(|node| node.bits_per_second).sum();
    let left = row
        .total_bytes
        .map(|total| total.saturating_sub(row.received_bytes));
    row.eta_seconds = left
        .filter(|_| row.bits_per_second > 0.0)
        .map(|left| left as f64 * 8.0 / row.bits_per_second);
    row.bottlenecks = causes(&parts, &names);
    row.nodes = receivers;
    row.nodes.extend(senders);
    row
}

/// A cause of a node alone.
fn cause(cause: BottleneckCause, node: &str, share: f64) -> BottleneckReport {
    BottleneckReport {
        cause,
        node: Some(node.to_owned()),
        peer: None,
        rail: None,
        share,
    }
}

/// Shares of 1 of the times of causes; empty where there are none.
fn shares(times: Vec<(BottleneckCause, u64)>, node: &str) -> Vec<BottleneckReport> {
    let all = times.iter().map(|(_, time)| *time as f64).sum::<f64>();
    let some = times.into_iter().filter(|(_, time)| *time > 0);
    some.map(|(of, time)| cause(of, node, time as f64 / all))
        .collect()
}

/// What held a receiver back: its limit, where it reached that, else what its threads did.
fn of_limited(part: &Part, node: &str) -> Option<Vec<BottleneckReport>> {
    part.sample.receiving?;
    let rate = part.lately.received_bits_per_second / 8.0;
    let is_at_limit = part.sample.limit.is_some_and(|limit| is_near(rate, limit));
    Some(match is_at_limit {
        true => vec![BottleneckReport {
            node: None,
            ..cause(BottleneckCause::Limit, node, 1.0)
        }],
        false => of_receiver(&part.lately.receiving, node),
    })
}

/// What held a receiver's threads back. Where they do nothing any more, it is making bytes safe.
fn of_receiver(spent: &Spent, node: &str) -> Vec<BottleneckReport> {
    use BottleneckCause as Of;
    let times = vec![
        (Of::ReceiverProcessor, spent.processor),
        (Of::SinkDisk, spent.disk),
        (Of::Space, spent.space),
        (Of::Opening, spent.connect),
        (Of::Peers, spent.peer.saturating_add(spent.path)),
    ];
    match times.iter().all(|(_, time)| *time == 0) {
        true => shares(vec![(Of::Syncing, spent.sync)], node),
        false => shares(times, node),
    }
}

/// What held a sender's threads back.
fn of_sender(spent: &Spent, node: &str) -> Vec<BottleneckReport> {
    use BottleneckCause as Of;
    let times = vec![
        (Of::SenderProcessor, spent.processor),
        (Of::SourceDisk, spent.disk),
        (Of::Path, spent.path),
    ];
    let busy = times.iter().map(|(_, time)| *time as f64).sum::<f64>();
    match busy < BUSY * (busy + spent.peer as f64) {
        true => shares(vec![(Of::Peers, spent.peer)], node),
        false => shares(times, node),
    }
}

/// What held the nodes that were seen back: receivers, and in the part of the time in which these waited for bytes, senders.
fn causes(parts: &[&Part], names: &[String]) -> Vec<BottleneckReport> {
    let side = |of: fn(&Part, &str) -> Option<Vec<BottleneckReport>>| {
        let found = parts.iter().zip(names);
        let found: Vec<_> = found
            .filter_map(|(part, name)| of(part, name))
            .filter(|shares| !shares.is_empty())
            .collect();
        let nodes = found.len().max(1) as f64;
        let each = found.into_iter().flatten();
        each.map(|one| BottleneckReport {
            share: one.share / nodes,
            ..one
        })
        .collect::<Vec<_>>()
    };
    let receivers = side(of_limited);
    let senders = side(|part, name| {
        part.sample.sending?;
        Some(of_sender(&part.lately.sending, name))
    });
    let out = match (receivers.is_empty(), senders.is_empty()) {
        (true, _) => senders,
        (_, true) => receivers,
        (false, false) => {
            let (waits, own): (Vec<_>, Vec<_>) = receivers
                .into_iter()
                .partition(|one| one.cause == BottleneckCause::Peers);
            let part: f64 = waits.iter().map(|one| one.share).sum();
            let senders = senders.into_iter().map(|one| BottleneckReport {
                share: one.share * part,
                ..one
            });
            own.into_iter().chain(senders).collect()
        }
    };
    // That of all receivers is one.
    let (limits, mut out): (Vec<_>, Vec<_>) = out
        .into_iter()
        .partition(|one| one.cause == BottleneckCause::Limit);
    let share = limits.iter().map(|one| one.share).sum();
    let limit = limits.into_iter().next();
    out.extend(limit.map(|one| BottleneckReport { share, ..one }));
    out.sort_by(|a, b| b.share.total_cmp(&a.share));
    out
}

#[cfg(test)]
mod tests;
