//! What held the transfer back while bytes moved.
//!
//! Nodes report how their threads spend their time ([`Waits`]). A receiver that mostly waits for bytes is held back by the senders that it
//! gets them from; one that does not, by itself. The time between two of its reports is dealt to causes in these shares:
//!
//! ```text
//!  receiver: processor, disk, space, opening   -> the receiver
//!            waits for bytes -> its senders, by bytes -> processor, disk    -> the sender
//!                                                        connection is full -> path; its window, its losses, or a known speed
//!                                                        waits for requests -> round trips; of one that hands on, what it waits for
//!  receives nearly its share of the limit       -> the limit
//!  has received nothing, and does nothing       -> an earlier transfer that it waits for, or opening
//!  a node that has not answered for 2 s        -> its silence, whatever it said last
//! ```
//!
//! Of several receivers at once, the time is dealt by when each will have all, as it has received so far: the last one decides when the
//! transfer ends ([`decides`]).

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Instant, Link, Nanos};

use super::arrivals::WINDOW_TIME;
use super::phase::Phase;
use super::progress::Busy;
use super::{Coordinator, Node};
use crate::control::{RailStatus, Status, TcpStatus, Waits};

mod rails;

use rails::Rails;

/// A share of a known speed or limit from which on that is what held the bytes back; headers and pauses take the rest.
const NEAR: f64 = 0.88;

/// Segments sent again, of all, from which on losses are the cause: windows of TCP are short then.
const LOSS: f64 = 0.003;

/// Causes that are kept with their nodes: many thousand pairs may each be one, and those beyond are one of all nodes for each kind.
const CAUSES_MAX: usize = 4096;

/// Stands for any node: there are never so many.
const ANY: u32 = u32::MAX;

/// What concerns all nodes is found out at most once in this time, not at each report: 10^4 receivers report twice a second.
const LOOK_TIME: Nanos = Nanos::from_millis(250);

/// Threads of a sender that wait for requests are idle ones of other receivers, unless nearly all do. Those of receivers that are done
/// stay until the end, and do not count.
const BUSY: f64 = 0.1;

/// Less time since its first byte than between two reports says nothing of a receiver's rate.
const REPORT_SECONDS: f64 = 0.5;

/// Nodes report twice a second and more: what one did that has been silent for so long is not known.
const SILENCE_TIME: Nanos = Nanos::from_secs(2);

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
    /// Losses between two nodes; where they have several rails, over which.
    Loss(u32, u32, Option<String>),
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
    /// An earlier transfer to a destination of a receiver had to end first.
    EarlierTransfer(u32),
    /// Comparing contents at a receiver.
    Comparing(u32),
    /// The transfer's limit.
    Limit,
    /// A node that did not answer.
    Silence(u32),
    /// The process of the master did not run.
    Absence,
}

impl Cause {
    /// The same at any node.
    fn anywhere(self) -> Self {
        match self {
            Self::SourceDisk(_) => Self::SourceDisk(ANY),
            Self::SenderProcessor(_) => Self::SenderProcessor(ANY),
            Self::SenderRate(_) => Self::SenderRate(ANY),
            Self::Path(..) => Self::Path(ANY, ANY),
            Self::Window(..) => Self::Window(ANY, ANY),
            Self::Loss(..) => Self::Loss(ANY, ANY, None),
            Self::Requests(..) => Self::Requests(ANY, ANY),
            Self::ReceiverRate(_) => Self::ReceiverRate(ANY),
            Self::ReceiverProcessor(_) => Self::ReceiverProcessor(ANY),
            Self::SinkDisk(_) => Self::SinkDisk(ANY),
            Self::Space(_) => Self::Space(ANY),
            Self::Opening(_) => Self::Opening(ANY),
            Self::EarlierTransfer(_) => Self::EarlierTransfer(ANY),
            Self::Comparing(_) => Self::Comparing(ANY),
            Self::Silence(_) => Self::Silence(ANY),
            Self::Trunk(_) | Self::Limit | Self::Absence => self,
        }
    }
}

/// Segments over one rail, or over all.
#[derive(Clone, Copy, Debug, Default)]
struct Segments {
    all: u64,
    repeated: u64,
    // Of those of the last report, the part that was sent again.
    loss: f64,
}

impl Segments {
    /// Takes what a node says of them.
    ///
    /// * `trip`: round trips in microseconds, as they are and the least ones; 0 where they are not known.
    fn note(&mut self, all: u64, repeated: u64, trip: (u32, u32)) {
        let (more, again) = (
            all.saturating_sub(self.all),
            repeated.saturating_sub(self.repeated),
        );
        if more > 0 {
            self.loss = again as f64 / more as f64;
        }
        // Where round trips are longer than they could be there is a queue, which is full at times: the path carries what it can. Where
        // they are not known there may be one.
        let is_known = trip.0 > 0 && trip.1 > 0;
        if !is_known || u64::from(trip.0) * 2 > u64::from(trip.1) * 3 {
            self.loss = 0.0;
        }
        (self.all, self.repeated) = (all, repeated);
    }
}

/// What one node last reported.
#[derive(Clone, Debug, Default)]
struct Reported {
    sending: Waits,
    receiving: Waits,
    // What was added by the last report.
    sent_of_late: Waits,
    received_of_late: Waits,
    tcp: Option<TcpStatus>,
    segments: Segments,
    rails: Rails,
    // Windows or buffers limit most streams.
    is_windowed: bool,
    // Sockets hold bytes that were not sent yet: what its threads gave away waits for the path.
    is_queued: bool,
    at: Option<Instant>,
    // The last report before its first byte.
    began_at: Option<Instant>,
    bytes: u64,
    // What it still has to get from each sender, as a receiver.
    left: BTreeMap<u32, u64>,
}

/// What concerns all nodes, as it was of late.
#[derive(Clone, Debug, Default)]
struct Together {
    at: Option<Instant>,
    // Of the receiver that will be the last: how far it is from its end.
    furthest: f64,
    // By how much all receivers decide when that is.
    weights: f64,
    // Of all receivers, those that lack any.
    unfinished: f64,
    is_at_the_limit: bool,
    // Of the declared links, in their order: which carry what they can.
    full: Vec<bool>,
}

/// Time that was dealt to causes so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Bottleneck {
    nodes: BTreeMap<u32, Reported>,
    together: Together,
    // In nanoseconds, scaled by the share of the bytes that were lacking.
    causes: BTreeMap<Cause, f64>,
}

impl Bottleneck {
    /// Time that was dealt to each cause so far.
    pub(super) fn times(&self) -> &BTreeMap<Cause, f64> {
        &self.causes
    }

    fn count(&mut self, cause: Cause, time: f64) {
        let is_kept = self.causes.len() < CAUSES_MAX || self.causes.contains_key(&cause);
        let cause = match is_kept {
            true => cause,
            false => cause.anywhere(),
        };
        *self.causes.entry(cause).or_default() += time;
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

/// By how much a receiver decides when the transfer ends that is so far from its end, as a part of the furthest: one that needs four fifths
/// of the longest time for a sixth.
fn decides(part: f64) -> f64 {
    part.clamp(0.0, 1.0).powi(8)
}

/// Whether a rate is that of a known speed or limit, both in bytes per second.
pub(crate) fn is_near(rate: f64, speed: u64) -> bool {
    rate >= NEAR * speed as f64
}

impl Reported {
    fn note_sending(&mut self, sending: Option<&Waits>, tcp: Option<&TcpStatus>) {
        if let Some(sending) = sending {
            self.sent_of_late = since(sending, &self.sending);
            self.sending = *sending;
        }
        if let Some(tcp) = tcp {
            let trip = (tcp.rtt_microseconds, tcp.rtt_microseconds_min);
            self.segments.note(tcp.segments, tcp.repeated, trip);
            self.tcp = Some(*tcp);
            self.is_windowed = tcp.window > 0;
            self.is_queued = tcp.queued > 0;
        }
    }

    /// Losses that are the cause where a path to this receiver is full: those over the worst of its rails, or without such of all streams.
    fn losses(&self, pair: (u32, u32)) -> Option<Cause> {
        if let Some(name) = self.rails.lossy(pair.1) {
            return Some(Cause::Loss(pair.0, pair.1, Some(name.to_owned())));
        }
        (self.segments.loss > LOSS).then_some(Cause::Loss(pair.0, pair.1, None))
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
    // Requests that cannot leave wait for the sender, too. What nodes say may be any numbers.
    let peer = waits.peer as f64 + waits.path as f64;
    let all = own.iter().map(|(_, time)| *time as f64).sum::<f64>() + peer;
    if all <= 0.0 {
        return Vec::new();
    }
    let share = |time: f64| time / all;
    let mut shares: Vec<(Cause, f64)> = own
        .into_iter()
        .map(|(cause, time)| (cause, share(time as f64)))
        .collect();
    if peer > 0.0 {
        let waits = of_senders().into_iter();
        shares.extend(waits.map(|(cause, part)| (cause, part * share(peer))));
    }
    shares
}

/// The same of a sender that a receiver waits for.
///
/// * `path`: what the path between them is called.
/// * `unfinished`: the share of receivers that still lack bytes.
fn shares_of_sender(
    reported: &Reported,
    pair: (u32, u32),
    path: Cause,
    unfinished: f64,
) -> Vec<(Cause, f64)> {
    let waits = &reported.sent_of_late;
    // What was asked for is in the sockets, and the threads wait for more: the sockets wait for the path.
    let (queued, idle) = match reported.is_queued {
        true => (waits.peer, 0),
        false => (0, waits.peer),
    };
    let own = [
        (Cause::SenderProcessor(pair.0), waits.processor),
        (Cause::SourceDisk(pair.0), waits.disk),
        (path, waits.path.saturating_add(queued)),
    ];
    let busy = own.iter().map(|(_, time)| *time as f64).sum::<f64>();
    let all = busy + idle as f64;
    if all <= 0.0 {
        let [_, _, (path, _)] = own;
        return vec![(path, 1.0)];
    }
    if busy < BUSY * unfinished * all {
        return vec![(Cause::Requests(pair.0, pair.1), 1.0)];
    }
    let share = |(cause, time): (Cause, u64)| (cause, time as f64 / busy);
    own.into_iter().map(share).collect()
}

impl Coordinator {
    /// What a node last said of the streams that it sends on.
    pub(super) fn last_tcp(&self, node: u32) -> Option<TcpStatus> {
        self.bottleneck.nodes.get(&node)?.tcp
    }

    /// A sender's report.
    pub(super) fn observe_sending(
        &mut self,
        node: u32,
        sending: Option<&Waits>,
        tcp: Option<&TcpStatus>,
        rails: &[RailStatus],
    ) {
        let reported = self.bottleneck.nodes.entry(node).or_default();
        reported.note_sending(sending, tcp);
        if tcp.is_some() {
            reported.rails.note(rails);
        }
    }

    /// A receiver's report while bytes move.
    pub(super) fn observe_waits(&mut self, node: u32, status: &Status, now: Instant) {
        let (sending, tcp) = (status.sending.as_ref(), status.tcp.as_ref());
        self.observe_sending(node, sending, tcp, &status.rails);
        let Some(receiving) = &status.receiving else {
            return;
        };
        let compares = status.comparing.as_ref();
        let compares = compares.is_some_and(|comparing| comparing.done < comparing.total);
        let left = status.pairs.iter().map(|pair| (pair.sender, pair.left));
        let left: BTreeMap<u32, u64> = left.filter(|(_, left)| *left > 0).collect();
        if let Some(reported) = self.bottleneck.nodes.get_mut(&node) {
            reported.left = left;
        }
        self.deal(node, receiving, status.checked, compares, now);
    }

    /// The time in which receivers were silent is that of their silence.
    pub(super) fn deal_silence(&mut self, now: Instant) {
        let Some(moving_at) = self.clock.moving_at else {
            return;
        };
        for number in 0..self.nodes.len() as u32 {
            let node = &self.nodes[number as usize];
            if !node.is_receiver() || node.done.is_some() || !self.is_silent(number, now) {
                continue;
            }
            let (bytes, heard_at) = (node.checked, node.heard_at.max(moving_at));
            let reported = self.bottleneck.nodes.entry(number).or_default();
            let at = reported.at.replace(now).unwrap_or(heard_at);
            self.look_at_all(now);
            let weight = self.weight(number, (bytes, bytes), now);
            let time = weight * now.since(at).0 as f64;
            self.bottleneck.count(Cause::Silence(number), time);
        }
    }

    /// The master did not run for so long: nothing is known of that time.
    pub(super) fn deal_absence(&mut self, now: Instant) {
        let Some(moving_at) = self.clock.moving_at.filter(|_| self.phase == Phase::Moving) else {
            return;
        };
        let absence = self.absence(now).min(now.since(moving_at));
        if absence == Nanos::ZERO {
            return;
        }
        for reported in self.bottleneck.nodes.values_mut() {
            if let Some(at) = &mut reported.at {
                *at = (*at + absence).min(now);
            }
        }
        self.bottleneck.count(Cause::Absence, absence.0 as f64);
    }

    /// Messages that arrived while the driver did not run may be handled before its timer.
    fn is_silent(&self, node: u32, now: Instant) -> bool {
        let node = self.nodes.get(node as usize);
        let since = |node: &Node| node.heard_at + self.absence(now);
        node.is_some_and(|node| node.alive() && now.since(since(node)) >= SILENCE_TIME)
    }

    /// How far a receiver is from its end: the seconds that it needs at its mean rate so far.
    ///
    /// * `has`: bytes that it has.
    fn distance(&self, node: u32, has: u64, now: Instant) -> f64 {
        let assigned = self.nodes[node as usize].assigned_bytes();
        let lacks = assigned.saturating_sub(has) as f64;
        let reported = self.bottleneck.nodes.get(&node);
        let began_at = reported.and_then(|reported| reported.began_at);
        let began_at = began_at.or(self.clock.moving_at).unwrap_or(now);
        let seconds = now.since(began_at).as_seconds().max(REPORT_SECONDS);
        // One that has nothing yet is not infinitely far.
        seconds * lacks / (has.max(assigned / 1000).max(1) as f64)
    }

    /// The part of a receiver in when the transfer ends.
    ///
    /// * `had`, `has`: its bytes before this time and now.
    fn weight(&self, node: u32, (had, has): (u64, u64), at: Instant) -> f64 {
        let (before, now) = (self.distance(node, had, at), self.distance(node, has, at));
        let together = &self.bottleneck.together;
        let furthest = together.furthest.max(now);
        if before <= 0.0 || furthest <= 0.0 {
            return f64::from(before > 0.0);
        }
        let own = decides(before / furthest);
        let of_others = together.weights - decides(now / furthest);
        own / (own + of_others.max(0.0))
    }

    /// Deals the time since the last report of a receiver to causes.
    fn deal(&mut self, node: u32, receiving: &Waits, bytes: u64, compares: bool, now: Instant) {
        let Some(moving_at) = self.clock.moving_at else {
            return;
        };
        let absence = self.absence(now);
        let reported = self.bottleneck.nodes.entry(node).or_default();
        let of_late = since(receiving, &reported.receiving);
        let passed = now.since((reported.at.unwrap_or(moving_at) + absence).min(now));
        let had = std::mem::replace(&mut reported.bytes, bytes);
        reported.receiving = *receiving;
        reported.received_of_late = of_late;
        let before = reported.at.replace(now);
        if bytes > 0 && reported.began_at.is_none() {
            reported.began_at = before.or(Some(moving_at));
        }
        self.look_at_all(now);
        let weight = self.weight(node, (had, bytes), now);
        let shares = match self.is_at_the_limit(node) {
            _ if compares => vec![(Cause::Comparing(node), 1.0)],
            true => vec![(Cause::Limit, 1.0)],
            false => shares_of_receiver(&of_late, node, || self.shares_of_senders(node)),
        };
        let shares = match (self.before_its_first_byte(node, bytes), shares.is_empty()) {
            (Some(cause), true) => vec![(cause, 1.0)],
            _ => shares,
        };
        for (cause, share) in shares {
            let time = share * weight * passed.0 as f64;
            if time > 0.0 {
                self.bottleneck.count(cause, time);
            }
        }
    }

    /// Looks at all nodes, unless that was done a moment ago. Cost O(nodes + runs + links x pairs).
    fn look_at_all(&mut self, now: Instant) {
        let looked_at = self.bottleneck.together.at;
        if looked_at.is_some_and(|at| now.since(at) < LOOK_TIME) {
            return;
        }
        let receivers = || {
            (0..)
                .zip(&self.nodes)
                .filter(|(_, node)| node.is_receiver())
        };
        // One that is done, or lost, decides nothing any more.
        let works = |node: &Node| node.alive() && node.done.is_none();
        let distances = || {
            let working = receivers().filter(|(_, node)| works(node));
            working.map(|(number, node)| self.distance(number, node.checked, now))
        };
        let furthest = distances().fold(0.0, f64::max);
        let weights = match furthest > 0.0 {
            true => distances().map(|one| decides(one / furthest)).sum(),
            false => 0.0,
        };
        let unfinished = distances().filter(|one| *one > 0.0).count();
        let rates = receivers().map(|(_, node)| self.receiving_rate(node));
        let limit = self.setup.limit.map(|limit| limit.0);
        let is_at_the_limit = limit.is_some_and(|limit| is_near(rates.sum(), limit));
        self.bottleneck.together = Together {
            at: Some(now),
            furthest,
            weights,
            unfinished: unfinished.max(1) as f64 / receivers().count().max(1) as f64,
            is_at_the_limit,
            full: self
                .setup
                .links
                .iter()
                .map(|link| self.is_full(link))
                .collect(),
        };
    }

    fn receiving_rate(&self, node: &Node) -> f64 {
        let is_done = node.done.is_some() || !node.alive();
        node.received.rate(WINDOW_TIME, is_done, self.clock.now)
    }

    /// Whether a receiver gets what the limit allows it; before it was dealt, whether all do together.
    fn is_at_the_limit(&self, node: u32) -> bool {
        if self.setup.limit.is_none() {
            return false;
        }
        match self.lease.share(node) {
            Some(share) => is_near(self.receiving_rate(&self.nodes[node as usize]), share),
            None => self.bottleneck.together.is_at_the_limit,
        }
    }

    /// What a receiver that has nothing yet is held back by, where its threads have not begun.
    fn before_its_first_byte(&self, node: u32, bytes: u64) -> Option<Cause> {
        let state = &self.nodes[node as usize];
        match state.busy {
            Some(Busy::AwaitingEnd { .. }) => Some(Cause::EarlierTransfer(node)),
            _ => (bytes == 0 && state.assigned_bytes() > 0).then_some(Cause::Opening(node)),
        }
    }

    /// What holds back the senders that a receiver waits for: by the bytes that it still has to get from each.
    fn shares_of_senders(&self, receiver: u32) -> Vec<(Cause, f64)> {
        self.shares_of_those(receiver, true)
    }

    /// * `with_relays`: of fellow receivers that hand on, too.
    fn shares_of_those(&self, receiver: u32, with_relays: bool) -> Vec<(Cause, f64)> {
        let reported = self.bottleneck.nodes.get(&receiver);
        let left = reported.map(|reported| &reported.left);
        let by = match left.filter(|left| !left.is_empty()) {
            Some(left) => left,
            None => &self.nodes[receiver as usize].sent_by_pair,
        };
        // What a receiver says that it had from whom may name nodes that there are not.
        let is_known = |sender: &u32| {
            (*sender as usize) < self.nodes.len() && (with_relays || !self.relays.contains(sender))
        };
        let known = by.iter().filter(|(sender, _)| is_known(sender));
        let all = known.clone().map(|(_, bytes)| *bytes as f64).sum::<f64>();
        let all = all.max(1.0);
        let mut shares = Vec::new();
        for (&sender, &bytes) in known.filter(|(_, bytes)| **bytes > 0) {
            let unknown = Reported::default();
            let reported = self.bottleneck.nodes.get(&sender).unwrap_or(&unknown);
            if self.is_silent(sender, self.clock.now) {
                shares.push((Cause::Silence(sender), bytes as f64 / all));
                continue;
            }
            let pair = (sender, receiver);
            let path = self.path(pair, reported);
            let unfinished = self.bottleneck.together.unfinished;
            let mut of_it = shares_of_sender(reported, pair, path, unfinished);
            // One that hands on and has nothing to do waits for bytes itself.
            let lacks = |node: &Node| node.assigned_bytes() > node.checked;
            let is_idle = matches!(of_it[..], [(Cause::Requests(..), _)]);
            if is_idle && self.relays.contains(&sender) && lacks(&self.nodes[sender as usize]) {
                let of_late = &reported.received_of_late;
                let own = || self.shares_of_those(sender, false);
                let own = shares_of_receiver(of_late, sender, own);
                if !own.is_empty() {
                    of_it = own;
                }
            }
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
            |rate: f64, speed: Option<u64>| speed.is_some_and(|speed| is_near(rate, speed));
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
        if let Some(losses) = reported.losses((sender, receiver)) {
            return losses;
        }
        if reported.is_windowed {
            return Cause::Window(sender, receiver);
        }
        Cause::Path(sender, receiver)
    }

    /// A declared trunk, or cap of the pair, that lies between two nodes and carries what it can.
    fn full_trunk(&self, from: &str, to: &str) -> Option<Cause> {
        let links = self.setup.links.iter().zip(&self.bottleneck.together.full);
        let mut full = links.filter(|(_, is_full)| **is_full).map(|(link, _)| link);
        let full = full.find(|link| link.limits(from, to))?;
        let name = full.trunk.clone();
        Some(Cause::Trunk(
            name.unwrap_or_else(|| format!("{from} to {to}")),
        ))
    }

    /// Whether a link carries what it can: of what a receiver gets, the part that it has had over the link.
    fn is_full(&self, link: &Link) -> bool {
        let rate = |node: &Node| {
            let crosses = |sender: &u32| {
                let sender = self.nodes.get(*sender as usize);
                sender.is_some_and(|sender| link.limits(&sender.setup.name, &node.setup.name))
            };
            let pairs = || {
                node.sent_by_pair
                    .iter()
                    .map(|(sender, bytes)| (sender, *bytes as f64))
            };
            let over = pairs()
                .filter(|(sender, _)| crosses(sender))
                .map(|(_, bytes)| bytes)
                .sum::<f64>();
            match over > 0.0 {
                true => {
                    let all = pairs().map(|(_, bytes)| bytes).sum::<f64>();
                    node.received.rate(WINDOW_TIME, false, self.clock.now) * over / all
                }
                false => 0.0,
            }
        };
        let receivers = self.nodes.iter().filter(|node| node.is_receiver());
        is_near(receivers.map(rate).sum(), link.rate.0)
    }

    /// What held the bytes back while they moved, in shares of that time, the largest first. They add up to 1 at most; empty where nothing
    /// was seen, as in the shortest transfers.
    pub fn causes(&self) -> Vec<(Cause, f64)> {
        let all = self.bottleneck.causes.values().sum::<f64>();
        let causes = self.bottleneck.causes.iter();
        let mut causes: Vec<(Cause, f64)> = causes
            .map(|(cause, time)| (cause.clone(), time / all.max(f64::MIN_POSITIVE)))
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
                self.observe_sending(node as u32, Some(sending), None, &[]);
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
mod tests;
