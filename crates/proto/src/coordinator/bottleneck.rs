//! What held the transfer back while bytes moved.
//!
//! Nodes report how their threads spend their time ([`Waits`]). A receiver that mostly waits for bytes is held back by the senders that it
//! gets them from; one that does not, by itself. The time between two of its reports is dealt to causes in these shares:
//!
//! ```text
//!  receiver: processor, disk, space, opening   -> the receiver
//!            waits for bytes -> its senders, by bytes -> processor, disk    -> the sender
//!                                                        connection is full -> path; its window, its losses, or a known speed
//!                                                        waits for requests -> round trips
//!  all receivers together near the limit       -> the limit
//! ```
//!
//! Of several receivers at once, the time is dealt by the bytes that each still lacks: the last one decides when the transfer ends.

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Instant, Link, Nanos};

use super::arrivals::WINDOW_TIME;
use super::{Coordinator, Node};
use crate::control::{Status, TcpStatus, Waits};

/// A share of a known speed or limit from which on that is what held the bytes back; headers and pauses take the rest.
const NEAR: f64 = 0.88;

/// Segments sent again, of all, from which on losses are the cause: windows of TCP are short then.
const LOSS: f64 = 0.003;

/// Threads of a sender that wait for requests are idle ones of other receivers, unless nearly all do.
const BUSY: f64 = 0.1;

/// Something that can hold bytes back. Nodes are numbers; of pairs, the sender is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Reading at a sender.
    SourceDisk(u32),
    /// Hashing, encrypting and copying at a sender.
    SenderProcessor(u32),
    /// The sender's declared or measured speed.
    SenderRate(u32),
    /// What lies between two nodes.
    Path(u32, u32),
    /// Buffers or windows of the two hosts, too small for the path.
    Window(u32, u32),
    /// Losses between two nodes.
    Loss(u32, u32),
    /// A declared trunk, by name.
    Trunk(String),
    /// A sender was not asked for enough ahead.
    Requests(u32, u32),
    /// The receiver's declared or measured speed.
    ReceiverRate(u32),
    /// Checking, decrypting, hashing and copying at a receiver.
    ReceiverProcessor(u32),
    /// Writing at a receiver.
    SinkDisk(u32),
    /// A full disk of a receiver.
    Space(u32),
    /// Finding peers and opening streams.
    Opening(u32),
    /// Comparing contents at a receiver.
    Comparing(u32),
    /// The transfer's limit.
    Limit,
}

/// What one node last reported.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    sending: Waits,
    receiving: Waits,
    // What was added by the last report.
    sent_of_late: Waits,
    segments: u64,
    repeated: u64,
    // Of the segments of the last report, those that were sent again.
    loss: f64,
    // Windows or buffers limit most streams.
    is_windowed: bool,
    at: Option<Instant>,
    // Bytes that it lacked then.
    lacked: u64,
}

/// Time that was dealt to causes so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Bottleneck {
    nodes: BTreeMap<u32, Reported>,
    // Bytes that all who reported lacked then.
    lacked: u64,
    // In nanoseconds, scaled by the share of the bytes that were lacking.
    causes: BTreeMap<Cause, f64>,
    // Of causes beyond those.
    others: f64,
    full: Full,
}

/// What all nodes together fill, as it was a moment ago: with many of them it is too much to find out for each report.
#[derive(Clone, Debug, Default)]
struct Full {
    found_at: Option<Instant>,
    limit: bool,
    // By the number of the declared link.
    links: Vec<bool>,
}

/// Causes that are told apart: many thousand pairs of nodes may each be one, and none of them is worth a name then.
const CAUSES_MAX: usize = 4096;

/// How long that stands.
const FULL_TIME: Nanos = Nanos(200_000_000);

impl Bottleneck {
    fn count(&mut self, cause: Cause, time: f64) {
        let is_kept = self.causes.len() < CAUSES_MAX || self.causes.contains_key(&cause);
        match is_kept {
            true => *self.causes.entry(cause).or_default() += time,
            false => self.others += time,
        }
    }
}

/// What was added since `before`.
fn since(now: &Waits, before: &Waits) -> Waits {
    Waits {
        processor: now.processor.saturating_sub(before.processor),
        disk: now.disk.saturating_sub(before.disk),
        peer: now.peer.saturating_sub(before.peer),
        path: now.path.saturating_sub(before.path),
        space: now.space.saturating_sub(before.space),
        idle: now.idle.saturating_sub(before.idle),
        connect: now.connect.saturating_sub(before.connect),
        sync: now.sync.saturating_sub(before.sync),
        name: now.name.saturating_sub(before.name),
    }
}

impl Reported {
    fn note_sending(&mut self, sending: Option<&Waits>, tcp: Option<&TcpStatus>) {
        if let Some(sending) = sending {
            self.sent_of_late = since(sending, &self.sending);
            self.sending = *sending;
        }
        if let Some(tcp) = tcp {
            let segments = tcp.segments.saturating_sub(self.segments);
            let repeated = tcp.repeated.saturating_sub(self.repeated);
            if segments > 0 {
                self.loss = repeated as f64 / segments as f64;
            }
            (self.segments, self.repeated) = (tcp.segments, tcp.repeated);
            self.is_windowed = tcp.window > 0;
        }
    }
}

/// What holds the bytes of one receiver back, in shares of 1; empty where nothing is known.
fn shares_of_receiver(
    waits: &Waits,
    node: u32,
    of_senders: impl FnOnce() -> Vec<(Cause, f64)>,
) -> Vec<(Cause, f64)> {
    let own = [
        (Cause::ReceiverProcessor(node), waits.processor),
        (Cause::SinkDisk(node), waits.disk),
        (Cause::Space(node), waits.space),
        (Cause::Opening(node), waits.connect),
    ];
    // Requests that cannot leave wait for the sender, too.
    let peer = waits.peer + waits.path;
    let all = own.iter().map(|(_, time)| time).sum::<u64>() + peer;
    if all == 0 {
        return Vec::new();
    }
    let share = |time: u64| time as f64 / all as f64;
    let mut shares: Vec<(Cause, f64)> = own
        .into_iter()
        .map(|(cause, time)| (cause, share(time)))
        .collect();
    if peer > 0 {
        let waits = of_senders().into_iter();
        shares.extend(waits.map(|(cause, part)| (cause, part * share(peer))));
    }
    shares
}

/// The same of a sender that a receiver waits for. `path`: what the path between them is called.
fn shares_of_sender(waits: &Waits, pair: (u32, u32), path: Cause) -> Vec<(Cause, f64)> {
    let own = [
        (Cause::SenderProcessor(pair.0), waits.processor),
        (Cause::SourceDisk(pair.0), waits.disk),
        (path, waits.path),
    ];
    let busy = own.iter().map(|(_, time)| time).sum::<u64>();
    let all = busy + waits.peer;
    if all == 0 {
        let [_, _, (path, _)] = own;
        return vec![(path, 1.0)];
    }
    if (busy as f64) < BUSY * all as f64 {
        return vec![(Cause::Requests(pair.0, pair.1), 1.0)];
    }
    let share = |(cause, time): (Cause, u64)| (cause, time as f64 / busy as f64);
    own.into_iter().map(share).collect()
}

impl Coordinator {
    /// A sender's report.
    pub(super) fn observe_sending(
        &mut self,
        node: u32,
        sending: Option<&Waits>,
        tcp: Option<&TcpStatus>,
    ) {
        let reported = self.bottleneck.nodes.entry(node).or_default();
        reported.note_sending(sending, tcp);
    }

    /// A receiver's report while bytes move.
    pub(super) fn observe_waits(&mut self, node: u32, status: &Status, now: Instant) {
        self.observe_sending(node, status.sending.as_ref(), status.tcp.as_ref());
        let Some(receiving) = &status.receiving else {
            return;
        };
        let compares = status.comparing.as_ref();
        let compares = compares.is_some_and(|comparing| comparing.done < comparing.total);
        self.deal(node, receiving, status.checked, compares, now);
    }

    /// Deals the time since the last report of a receiver to causes.
    fn deal(&mut self, node: u32, receiving: &Waits, bytes: u64, compares: bool, now: Instant) {
        let Some(moving_at) = self.clock.moving_at else {
            return;
        };
        let reported = self.bottleneck.nodes.entry(node).or_default();
        let of_late = since(receiving, &reported.receiving);
        let passed = now.since(reported.at.unwrap_or(moving_at));
        let lacked = reported.lacked;
        let lacks = self.nodes[node as usize].assigned_bytes();
        reported.lacked = lacks.saturating_sub(bytes);
        reported.receiving = *receiving;
        let is_first = reported.at.replace(now).is_none();
        let own = if is_first { lacks } else { lacked };
        self.bottleneck.lacked += if is_first { lacks } else { 0 };
        let weight = own as f64 / self.bottleneck.lacked.max(1) as f64;
        self.bottleneck.lacked =
            (self.bottleneck.lacked + lacks.saturating_sub(bytes)).saturating_sub(own);
        self.find_full(now);
        let shares = match self.bottleneck.full.limit {
            _ if compares => vec![(Cause::Comparing(node), 1.0)],
            true => vec![(Cause::Limit, 1.0)],
            false => shares_of_receiver(&of_late, node, || self.shares_of_senders(node)),
        };
        for (cause, share) in shares {
            let time = share * weight * passed.0 as f64;
            if time > 0.0 {
                self.bottleneck.count(cause, time);
            }
        }
    }

    /// Finds out whether the limit and the declared links are full, unless that is known.
    fn find_full(&mut self, now: Instant) {
        let found_at = self.bottleneck.full.found_at;
        let is_known = found_at.is_some_and(|at| now.since(at) < FULL_TIME);
        if is_known || (self.setup.limit.is_none() && self.setup.links.is_empty()) {
            return;
        }
        let rate = |node: &Node| {
            let is_done = node.done.is_some() || !node.alive();
            node.received.rate(WINDOW_TIME, is_done, now)
        };
        let all = self.nodes.iter().map(rate).sum::<f64>();
        let limit = self.setup.limit;
        self.bottleneck.full = Full {
            found_at: Some(now),
            limit: limit.is_some_and(|limit| all >= NEAR * limit.0 as f64),
            links: self
                .setup
                .links
                .iter()
                .map(|link| self.is_full(link, rate))
                .collect(),
        };
    }

    /// Whether receivers behind a declared link get as much as it carries.
    fn is_full(&self, link: &Link, rate: impl Fn(&Node) -> f64) -> bool {
        let gets_over = |node: &&Node| {
            let mut senders = node.sent_by_pair.keys();
            senders.any(|&at| link.limits(&self.nodes[at as usize].setup.name, &node.setup.name))
        };
        let over = self.nodes.iter().filter(|node| node.is_receiver());
        over.filter(gets_over).map(rate).sum::<f64>() >= NEAR * link.rate.0 as f64
    }

    /// What holds back the senders that a receiver waits for: by the bytes that it still has to get from each.
    fn shares_of_senders(&self, receiver: u32) -> Vec<(Cause, f64)> {
        let node = &self.nodes[receiver as usize];
        let left = &node.left_by_pair;
        let by = match left.values().any(|&bytes| bytes > 0) {
            true => left,
            false => &node.sent_by_pair,
        };
        let all = by.values().sum::<u64>().max(1) as f64;
        let mut shares = Vec::new();
        for (&sender, &bytes) in by.iter().filter(|(_, bytes)| **bytes > 0) {
            let reported = self.bottleneck.nodes.get(&sender).copied();
            let reported = reported.unwrap_or_default();
            let pair = (sender, receiver);
            let path = self.path(pair, &reported);
            let of_it = shares_of_sender(&reported.sent_of_late, pair, path);
            shares.extend(
                of_it
                    .into_iter()
                    .map(|(cause, share)| (cause, share * bytes as f64 / all)),
            );
        }
        shares
    }

    /// What a connection that is full is held back by.
    fn path(&self, (sender, receiver): (u32, u32), reported: &Reported) -> Cause {
        let (from, to) = (&self.nodes[sender as usize], &self.nodes[receiver as usize]);
        let speed = |declared: Option<ByteRate>, node: &Node| {
            let measured = node
                .opened
                .as_deref()
                .map_or(0, |opened| opened.interface_rate);
            let measured = Some(measured).filter(|rate| *rate > 0);
            declared.map(|rate| rate.0).or(measured)
        };
        let is_near =
            |rate: f64, speed: Option<u64>| speed.is_some_and(|speed| rate >= NEAR * speed as f64);
        let now = self.clock.now;
        let (sent, received) = (
            from.sent.rate(WINDOW_TIME, false, now),
            to.received.rate(WINDOW_TIME, false, now),
        );
        if let Some(trunk) = self.full_trunk(&from.setup.name, &to.setup.name) {
            return trunk;
        }
        if is_near(sent, speed(from.setup.up, from)) {
            return Cause::SenderRate(sender);
        }
        if is_near(received, speed(to.setup.down, to)) {
            return Cause::ReceiverRate(receiver);
        }
        if reported.loss > LOSS {
            return Cause::Loss(sender, receiver);
        }
        if reported.is_windowed {
            return Cause::Window(sender, receiver);
        }
        Cause::Path(sender, receiver)
    }

    /// A declared trunk, or cap of the pair, that lies between two nodes and carries what it can.
    fn full_trunk(&self, from: &str, to: &str) -> Option<Cause> {
        let links = self.setup.links.iter().zip(&self.bottleneck.full.links);
        let mut full = links.filter(|(link, is_full)| **is_full && link.limits(from, to));
        let name = full.next()?.0.trunk.clone();
        Some(Cause::Trunk(
            name.unwrap_or_else(|| format!("{from} to {to}")),
        ))
    }

    /// What held the bytes back while they moved, in shares of that time, the largest first. They add up to 1 at most; empty where nothing
    /// was seen, as in the shortest transfers.
    pub fn causes(&self) -> Vec<(Cause, f64)> {
        let all = self.bottleneck.causes.values().sum::<f64>() + self.bottleneck.others;
        let causes = self.bottleneck.causes.iter();
        let mut causes: Vec<(Cause, f64)> = causes
            .map(|(cause, time)| (cause.clone(), time / all.max(1.0)))
            .collect();
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        causes
    }

    /// The last reports of all nodes: what they did since those before.
    pub(super) fn observe_last_waits(&mut self) {
        let Some(ended_at) = self.clock.last_done_at else {
            return;
        };
        let finished: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                let finished = node.finished.as_deref();
                finished.map(|finished| (finished.sending, finished.receiving))
            })
            .collect();
        for (node, finished) in finished.iter().enumerate() {
            if let Some((Some(sending), _)) = finished {
                self.observe_sending(node as u32, Some(sending), None);
            }
        }
        for (node, finished) in finished.iter().enumerate() {
            let Some((_, Some(receiving))) = finished else {
                continue;
            };
            let node = node as u32;
            let reported = self.bottleneck.nodes.get(&node).and_then(|node| node.at);
            if self.nodes[node as usize].is_receiver() && reported.is_none_or(|at| at < ended_at) {
                let bytes = self.nodes[node as usize].checked;
                self.deal(node, receiving, bytes, false, ended_at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::ByteRate;

    use super::super::tests::{actions, begun_over, from, node, opened, started, started_with};
    use super::*;
    use crate::control::{PairStatus, SenderStatus, from_agent};

    const SECOND: u64 = 1_000_000_000;

    /// One of the sums.
    type Sum = fn(&mut Waits) -> &mut u64;

    fn waits(of: impl Fn(&mut Waits) -> &mut u64) -> Waits {
        let mut waits = Waits::default();
        *of(&mut waits) = SECOND;
        waits
    }

    /// A sender says what it did, and a receiver that it waits for bytes of it.
    fn waiting(c: &mut Coordinator, sending: Waits, tcp: TcpStatus, at: u64, checked: u64) {
        let status = SenderStatus {
            sending: Some(sending),
            tcp: Some(tcp),
            ..SenderStatus::default()
        };
        let moving_at = c.clock.moving_at.unwrap_or_default();
        let now = Instant(moving_at.0 + at * SECOND);
        c.handle_message(0, from(from_agent::Body::SenderStatus(status)), now);
        let status = Status {
            checked,
            receiving: Some(waits(|waits| &mut waits.peer)),
            pairs: vec![PairStatus {
                delivered: checked,
                left: 1000,
                ..PairStatus::default()
            }],
            ..Status::default()
        };
        c.handle_message(1, from(from_agent::Body::Status(status)), now);
        actions(c);
    }

    fn pair() -> Coordinator {
        let nodes = vec![
            node("a", &[(0, 1_000_000)], &[], None),
            node("b", &[], &[(0, 1_000_000)], None),
        ];
        let (mut c, _) = started(nodes);
        actions(&mut c);
        c
    }

    /// What a receiver does itself is its own cause; where it waits for bytes, it is what their sender does.
    #[test]
    fn each_cause_is_found() {
        let own: [(Sum, Cause); 4] = [
            (|waits| &mut waits.processor, Cause::ReceiverProcessor(1)),
            (|waits| &mut waits.disk, Cause::SinkDisk(1)),
            (|waits| &mut waits.space, Cause::Space(1)),
            (|waits| &mut waits.connect, Cause::Opening(1)),
        ];
        for (of, cause) in own {
            let mut c = pair();
            let status = Status {
                receiving: Some(waits(of)),
                ..Status::default()
            };
            c.handle_message(1, from(from_agent::Body::Status(status)), Instant(SECOND));
            assert_eq!(c.causes(), [(cause, 1.0)]);
        }
        let of_sender: [(Sum, Cause); 4] = [
            (|waits| &mut waits.processor, Cause::SenderProcessor(0)),
            (|waits| &mut waits.disk, Cause::SourceDisk(0)),
            (|waits| &mut waits.path, Cause::Path(0, 1)),
            (|waits| &mut waits.peer, Cause::Requests(0, 1)),
        ];
        for (of, cause) in of_sender {
            let mut c = pair();
            waiting(&mut c, waits(of), TcpStatus::default(), 1, 1000);
            assert_eq!(c.causes(), [(cause, 1.0)]);
        }
    }

    /// A full connection is one of small windows, or losses, where the kernel says so.
    #[test]
    fn a_full_connection_has_a_reason() {
        let path = || waits(|waits| &mut waits.path);
        let windowed = TcpStatus {
            window: 65536,
            segments: 1000,
            ..TcpStatus::default()
        };
        let mut c = pair();
        waiting(&mut c, path(), windowed, 1, 1000);
        assert_eq!(c.causes(), [(Cause::Window(0, 1), 1.0)]);
        let lossy = TcpStatus {
            segments: 1000,
            repeated: 10,
            ..TcpStatus::default()
        };
        let mut c = pair();
        waiting(&mut c, path(), lossy, 1, 1000);
        assert_eq!(c.causes(), [(Cause::Loss(0, 1), 1.0)]);
    }

    /// A limit that all reach is the cause, whatever threads wait for.
    #[test]
    fn a_limit_is_found() {
        let nodes = vec![
            node("a", &[(0, 1_000_000)], &[], None),
            node("b", &[], &[(0, 1_000_000)], None),
        ];
        let (mut c, _) = started_with(nodes, Some(1000));
        actions(&mut c);
        for second in 1..4 {
            let status = TcpStatus::default();
            waiting(
                &mut c,
                waits(|waits| &mut waits.peer),
                status,
                second,
                1000 * second,
            );
        }
        let causes = c.causes();
        assert_eq!(causes[0].0, Cause::Limit);
        assert!(causes[0].1 > 0.6, "{causes:?}");
    }

    /// Speeds that are known name the node, or the trunk, that carries what it can.
    #[test]
    fn known_speeds_are_reached() {
        let path = waits(|waits| &mut waits.path);
        let nodes = |up: Option<u64>, down: Option<u64>| {
            let mut a = node("a", &[(0, 1_000_000)], &[], None);
            let mut b = node("b", &[], &[(0, 1_000_000)], None);
            (a.up, b.down) = (up.map(ByteRate), down.map(ByteRate));
            vec![a, b]
        };
        for (up, down, cause) in [
            (Some(1000), None, Cause::SenderRate(0)),
            (None, Some(1000), Cause::ReceiverRate(1)),
            (Some(5000), Some(5000), Cause::Path(0, 1)),
        ] {
            let (mut c, _) = started(nodes(up, down));
            actions(&mut c);
            let mut sum = Waits::default();
            for second in 1..5 {
                sum.path += path.path;
                waiting(&mut c, sum, TcpStatus::default(), second, 1000 * second);
            }
            assert_eq!(c.causes()[0].0, cause, "{:?}", c.causes());
        }
        let of = |name: &str| ropewalk_model::NodeSet {
            nodes: [name.to_owned()].into(),
            ..Default::default()
        };
        let link = Link {
            trunk: Some("wide".into()),
            rate: ByteRate(1000),
            from: of("a"),
            to: of("b"),
        };
        let nodes = nodes(None, None);
        let mut c = begun_over(nodes.clone(), None, vec![link]);
        for (at, node) in nodes.iter().enumerate() {
            c.handle_message(at as u32, opened(node, 7), Instant(1));
        }
        let first = actions(&mut c);
        super::super::tests::answer(&mut c, first);
        let mut sum = Waits::default();
        for second in 1..5 {
            sum.path += path.path;
            waiting(&mut c, sum, TcpStatus::default(), second, 1000 * second);
        }
        assert_eq!(c.causes()[0].0, Cause::Trunk("wide".into()));
    }

    /// Of several receivers, the one that lacks most counts most; threads without work say nothing.
    #[test]
    fn the_straggler_counts() {
        let nodes = vec![
            node("a", &[(0, 1_000_000)], &[], None),
            node("b", &[], &[(0, 1_000_000)], None),
            node("c", &[], &[(0, 1_000_000)], None),
        ];
        let (mut c, _) = started(nodes);
        actions(&mut c);
        let status = |checked, receiving| Status {
            checked,
            receiving: Some(receiving),
            ..Status::default()
        };
        let mut tell = |node, checked, receiving: Waits, at: u64| {
            let body = from_agent::Body::Status(status(checked, receiving));
            c.handle_message(node, from(body), Instant(at * SECOND));
        };
        let fast = Waits {
            processor: SECOND,
            ..Waits::default()
        };
        tell(1, 900_000, fast, 1);
        let slow = |seconds: u64| Waits {
            disk: SECOND * seconds,
            idle: 9 * SECOND * seconds,
            ..Waits::default()
        };
        for second in 1..10 {
            tell(2, 10_000 * second, slow(second), second);
        }
        let causes = c.causes();
        assert_eq!(causes[0].0, Cause::SinkDisk(2));
        assert!(causes[0].1 > 0.8, "{causes:?}");
    }
}
