//! Asks for plans, and turns their answers into the messages of each node.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::layout::{UNITS_PER_NODE, unit_len};
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::balancer::{Room, Settled};
use super::life::{Event, NodeLife};
use super::phase::{Phase, Step};
use super::{Action, Basis, Coordinator, Incomplete, Node, Planned, PlannedRun, Purpose};
use crate::control::{self, Run, parts_of, to_agent};
use crate::report::{ErrorKind, Outcome};

/// Holders that a receiver learns of for each manifest: enough to survive two that fail.
const MANIFEST_HOLDERS: usize = 3;

/// Other holders that a run names.
const SPARES: usize = 2;

/// And where nobody told speeds, so that receivers find out who is fast.
const SPARES_EXPLORING: usize = 7;

/// Until a plan is settled receivers speak this often ...
const BEAT_MILLISECONDS: u32 = 150;

/// ... if there are not more nodes than that: it costs the master up to a kilobyte a word.
const BEAT_NODES_MAX: usize = 100;

impl Coordinator {
    pub(super) fn plan_first(&mut self) {
        self.enter(Step::LaidOut);
        let all = |known: &dyn Fn(&Node) -> (bool, bool)| {
            self.nodes.iter().all(|node| {
                let (up, down) = known(node);
                (up || !node.is_sender()) && (down || !node.is_receiver())
            })
        };
        let declared = all(&|node| (node.setup.up.is_some(), node.setup.down.is_some()));
        let remembers = |node: &Node| {
            (node.is_sender() && node.setup.told_up() != node.setup.up)
                || (node.is_receiver() && node.setup.told_down() != node.setup.down)
        };
        // What is remembered makes a better plan, but a bound would have to name it as its base.
        let interface = !self.nodes.iter().any(remembers)
            && self
                .nodes
                .iter()
                .all(|n| n.opened.as_deref().is_some_and(|o| o.interface_rate > 0));
        self.basis = if declared {
            Basis::Declared
        } else if interface {
            Basis::Interface
        } else {
            Basis::None
        };
        self.groups.form(&mut self.nodes);
        let (view, balancer) = self.split();
        balancer.begin(view);
        let receivers: Vec<(u32, RangeSet)> = self
            .receivers()
            .filter(|&n| self.nodes[n as usize].alive())
            .map(|n| (n, self.nodes[n as usize].wants.clone()))
            .collect();
        self.ask_plan(true, receivers, &BTreeSet::new(), None);
    }

    /// Senders in the order of the receivers that have most from them: where a plan has a choice between equal
    /// ones, it keeps the lanes that are there.
    fn by_partner(&self, senders: &mut [u32]) {
        let mut partner = vec![(u32::MAX, 0.0); self.nodes.len()];
        for receiver in self.receivers() {
            for (sender, rate) in self.balancer.pairs(receiver) {
                if let Some(best) = partner
                    .get_mut(sender as usize)
                    .filter(|best| best.1 < rate)
                {
                    *best = (receiver, rate);
                }
            }
        }
        senders.sort_by_key(|&sender| (partner[sender as usize].0, sender));
    }

    /// Asks for a plan that brings each receiver its ranges, over the `room` that a round found, or by
    /// all that nodes can carry. False when nothing is left to plan.
    pub(super) fn ask_plan(
        &mut self,
        first: bool,
        receivers: Vec<(u32, RangeSet)>,
        excluded: &BTreeSet<u32>,
        room: Option<Room>,
    ) -> bool {
        let mut receivers = receivers;
        let mut senders: Vec<u32> = self
            .view()
            .able_senders()
            .filter(|n| !excluded.contains(n))
            .filter(|n| room.as_ref().is_none_or(|room| room.up[*n as usize] > 0.0))
            .collect();
        if !first {
            self.drop_unheld(&mut receivers, &senders);
            if receivers.is_empty() {
                return false;
            }
            self.by_partner(&mut senders);
        }
        let in_round = room.is_some();
        let room = room.unwrap_or_else(|| self.balancer.whole_room(self.view()));
        let whole = |rate: f64| (rate as u64).max(1);
        let mut problem = Problem {
            senders: senders
                .iter()
                .map(|&n| Sender {
                    name: self.name(n).into(),
                    up: whole(room.up[n as usize]),
                    ranges: self.nodes[n as usize].holds.clone(),
                })
                .collect(),
            receivers: receivers
                .iter()
                .map(|(n, wants)| Receiver {
                    name: self.name(*n).into(),
                    down: whole(room.down[*n as usize]),
                    ranges: wants.clone(),
                    destination: self.destination(*n).map(str::to_owned),
                    relay_up: self
                        .relay_up(*n, whole(room.down[*n as usize]))
                        .filter(|_| first),
                })
                .collect(),
            ..Problem::default()
        };
        let numbers: Vec<u32> = receivers.iter().map(|(n, _)| *n).collect();
        room.add_links_left(self.view(), &mut problem, &senders, &numbers);
        let is_guess = first && self.balancer.is_exploring();
        let purpose = Purpose {
            first,
            in_round,
            is_guess,
            spares: match is_guess {
                true => SPARES_EXPLORING,
                false => SPARES,
            },
            sites: match first {
                true => self.sites.positions(&senders, &numbers),
                false => Vec::new(),
            },
            senders,
            receivers: numbers,
        };
        self.balancer.note_asked(self.clock.now);
        self.out.push(Action::Plan(purpose, problem));
        true
    }

    /// Answer to [`Action::Plan`]. An error refuses the transfer when nothing has moved, and ends
    /// it otherwise.
    pub fn handle_planned(
        &mut self,
        purpose: &Purpose,
        result: Result<Planned, String>,
        now: Instant,
    ) {
        self.note_running(now);
        let planned = match result {
            Ok(planned) => planned,
            Err(text) if self.phase == Phase::Planning => return self.refuse(text),
            Err(text) => return self.end(Outcome::Failed, Some(text)),
        };
        let (view, balancer) = self.split();
        let planned = if purpose.in_round && balancer.is_in_vain(view, &planned) {
            Planned::default()
        } else {
            let up = balancer.whole_room(view).up;
            self.groups.count_holders(&self.nodes, up);
            planned
        };
        let runs: Vec<(u32, Vec<Run>)> = purpose
            .receivers
            .iter()
            .zip(&planned.runs)
            .map(|(&node, runs)| {
                let to_run = |run: &PlannedRun| {
                    let mut run = Run {
                        start: run.range.start,
                        length: run.range.len(),
                        sender: purpose.senders[run.sender],
                        spares: run.spares.iter().map(|&s| purpose.senders[s]).collect(),
                        choices: 0,
                        relay: run.relay.map(|relay| purpose.receivers[relay]),
                    };
                    // Of later plans when other holders are named.
                    if purpose.first {
                        let group = self.nodes[node as usize].group;
                        run.choices = self.groups.choices(group, &run);
                    }
                    run
                };
                let runs = runs.iter().map(to_run).collect();
                match purpose.first {
                    true => (node, runs),
                    false => (node, self.deal_to_relays(node, runs)),
                }
            })
            .collect();
        self.balancer.note_planned(now);
        match self.phase {
            Phase::Planning if purpose.first => self.begin_moving(planned, runs, now),
            Phase::Moving if !purpose.first => self.revise(purpose, &planned, runs, now),
            _ => {}
        }
        self.check_call();
    }

    /// The first plan is there: every node learns its part.
    fn begin_moving(&mut self, planned: Planned, mut runs: Vec<(u32, Vec<Run>)>, now: Instant) {
        let (view, balancer) = self.split();
        if !balancer.is_exploring() {
            balancer.note_whole_plan(view, &planned, now);
        }
        self.planned = planned;
        self.enter(Step::Planned);
        self.clock.moving_at = Some(now);
        self.lease.begin(now);
        let receivers = (runs.len() as u64).max(1);
        let share = self.setup.limit.map(|limit| limit.0 / receivers);
        self.note_relays(&mut runs);
        self.note_sites();
        for (node, runs) in runs {
            self.nodes[node as usize].give(runs);
        }
        self.unit_len = self.choose_unit_len();
        self.count_lanes();
        for node in 0..self.nodes.len() as u32 {
            let state = &mut self.nodes[node as usize];
            state.heard_at = now;
            state.received.start(now);
            state.sent.start(now);
            if !state.live(Event::Plan) {
                continue;
            }
            let plan = self.plan_message(node, share);
            self.send(node, to_agent::Body::Plan(plan));
        }
        self.out.push(Action::Moving);
    }

    /// Tells receivers of the work that a new plan gives them.
    pub(super) fn revise(
        &mut self,
        purpose: &Purpose,
        planned: &Planned,
        runs: Vec<(u32, Vec<Run>)>,
        now: Instant,
    ) {
        self.replans += 1;
        let round = match purpose.in_round {
            true => self.balancer.end_round(planned.predicted_seconds),
            false => Settled::default(),
        };
        if round.settle {
            let (view, balancer) = self.split();
            balancer.note_whole_plan(view, planned, now);
        }
        let runs = self.runs_by_node(&round, runs);
        self.put_to_work(&runs);
        // A node that works again has to have its share of a limit taken from the others first.
        self.lease.expire();
        self.deal_limit(now);
        let lost = self.lost_nodes();
        // Who went while this was planned gets nothing; others of its destination do.
        let mut orphaned: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
        for (node, runs) in runs {
            if runs.is_empty() && !round.tells(node) {
                continue;
            }
            if self.is_able(node) {
                self.send_runs(node, runs, &round, &lost, now);
                continue;
            }
            // One that gave something up, and left or stopped meanwhile, has nothing to pass on.
            if runs.is_empty() {
                continue;
            }
            let ranges = runs.iter().map(|run| control::range(run.start, run.length));
            match self.nodes[node as usize].group {
                Some(group) => orphaned.entry(group).or_default().extend(ranges),
                None => self.nodes[node as usize].forfeit(&RangeSet::from_ranges(ranges)),
            }
        }
        if round.settle {
            self.settle_others(&purpose.receivers, &round);
        }
        self.give_orphaned(orphaned);
        self.share_released(now);
        self.check_done();
    }

    /// What each node gets: the runs of the plan and those that it keeps. Those that gave something up get an answer, too.
    fn runs_by_node(
        &self,
        round: &Settled,
        planned: Vec<(u32, Vec<Run>)>,
    ) -> BTreeMap<u32, Vec<Run>> {
        let mut runs: BTreeMap<u32, Vec<Run>> = planned.into_iter().collect();
        for (node, kept) in &round.kept_lanes {
            let own = runs.entry(*node).or_default();
            own.extend(kept.iter().cloned());
        }
        // Planned before the node said what it has already.
        for (node, own) in &mut runs {
            let state = &self.nodes[*node as usize];
            if state.present_bytes.max(state.adopted_bytes) > 0 {
                let wanted = |run: Run| {
                    let range = control::range(run.start, run.length);
                    parts_of(&run, &state.wants.clipped(range))
                };
                *own = std::mem::take(own).into_iter().flat_map(wanted).collect();
            }
        }
        let lives = |node: &&u32| self.nodes[**node as usize].alive();
        for &giver in round.givers.iter().filter(lives) {
            runs.entry(giver).or_default();
        }
        runs
    }

    /// Nodes that get runs are not done any more.
    fn put_to_work(&mut self, runs: &BTreeMap<u32, Vec<Run>>) {
        for (&node, _) in runs.iter().filter(|(_, runs)| !runs.is_empty()) {
            let state = &mut self.nodes[node as usize];
            if state.is_able() {
                state.live(Event::Work);
                state.done = None;
            }
        }
    }

    /// Sends a node its runs: as its plan where it has none yet, else as a revision.
    fn send_runs(
        &mut self,
        node: u32,
        mut runs: Vec<Run>,
        round: &Settled,
        lost: &[u32],
        now: Instant,
    ) {
        self.add_spares(node, &mut runs);
        for run in &mut runs {
            let group = self.nodes[node as usize].group;
            run.choices = match run.relay {
                // As it was dealt: no other one waits for what a node that joined fetches.
                Some(_) => run.choices.max(1),
                None => self.groups.choices(group, run),
            };
        }
        let peers = self.peers_of(node, &runs);
        // Bytes asked for again are still asked for once.
        let again = RangeSet::from_ranges(runs.iter().map(|r| control::range(r.start, r.length)));
        let state = &mut self.nodes[node as usize];
        state.forget(&again);
        state.give(runs.clone());
        // A node that gets nothing does not report again.
        if !runs.is_empty() {
            state.revision += 1;
            state.gave_nothing_at = None;
            state.given_at = now;
        }
        let number = state.revision;
        if state.life() == NodeLife::Ready && state.live(Event::Plan) {
            let mut plan = self.plan_message(node, self.setup.limit.map(|_| 1));
            (plan.expected, plan.revision) = (0, number);
            // Its share of a limit is dealt at the next look.
            self.lease.expire();
            return self.send(node, to_agent::Body::Plan(plan));
        }
        let revision = control::Revision {
            peers,
            runs,
            lost: lost.to_vec(),
            unavailable: Vec::new(),
            number,
            expected: control::or_zero(round.expected),
            settle: round.settle,
            holdings: Vec::new(),
        };
        self.send(node, to_agent::Body::Revision(revision));
    }

    /// Other nodes of a destination take over what was planned for one that has gone meanwhile.
    fn give_orphaned(&mut self, orphaned: BTreeMap<u32, Vec<Range>>) {
        for (group, ranges) in orphaned {
            if !self.give_to_others(group, &RangeSet::from_ranges(ranges)) {
                let name = self.groups.name(group).to_owned();
                self.fail(
                    ErrorKind::Lost,
                    format!("no receiver is left that could write all of destination {name}"),
                );
            }
        }
    }

    /// The same for all nodes: replicas of a unit are compared by its hash.
    fn choose_unit_len(&self) -> u64 {
        let bytes = |node: &Node| {
            node.runs
                .iter()
                .map(|run| u128::from(run.length))
                .sum::<u128>()
        };
        let busy: Vec<u128> = self.nodes.iter().map(bytes).filter(|b| *b > 0).collect();
        let count = busy.len().max(1) as u128;
        let mean = busy.iter().sum::<u128>() / count;
        // A limit is kept to within a unit: no more than 50 ms of a node's share.
        let limited = self.setup.limit.map_or(u128::MAX, |limit| {
            u128::from(limit.0) / count * u128::from(UNITS_PER_NODE) / 20
        });
        unit_len(u64::try_from(mean.min(limited)).unwrap_or(u64::MAX))
    }

    /// In what time receivers should be done if the speeds are as told; `None` while they are being found out.
    pub(super) fn expected(&self) -> Option<Nanos> {
        if self.balancer.is_exploring() {
            return None;
        }
        let limited = self.setup.limit.map_or(0.0, |limit| {
            self.wanted_bytes() as f64 / limit.0.max(1) as f64
        });
        Some(Nanos::from_seconds(
            self.planned.predicted_seconds.max(limited),
        ))
    }

    pub(super) fn lost_nodes(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32)
            .filter(|&n| !self.nodes[n as usize].alive())
            .collect()
    }

    fn peers_of(&self, receiver: u32, runs: &[Run]) -> Vec<control::Peer> {
        let mut wanted = BTreeSet::new();
        for run in runs {
            wanted.insert(run.sender);
            wanted.extend(run.spares.iter().copied().chain(run.relay));
        }
        let peers = wanted.into_iter().map(|node| self.peer_of(receiver, node));
        peers.collect()
    }

    /// As [`Self::peer`], for a receiver that knows then whether it is far.
    pub(super) fn peer_of(&self, receiver: u32, node: u32) -> control::Peer {
        control::Peer {
            far: self.are_far(receiver, node),
            ..self.peer(node)
        }
    }

    pub(super) fn peer(&self, node: u32) -> control::Peer {
        let state = &self.nodes[node as usize];
        let opened = state.opened.as_deref();
        let hands_on = self.relays.contains(&node);
        // Empty where it has had all.
        let first = state.wants.first().unwrap_or_default();
        let last = state.wants.last().unwrap_or_default();
        let mut peer = control::Peer {
            node,
            name: self.name(node).into(),
            instance: opened.map(|o| o.instance.clone()).unwrap_or_default(),
            addresses: opened.map(|o| o.addresses.clone()).unwrap_or_default(),
            interfaces: opened.map(|o| o.interfaces.clone()).unwrap_or_default(),
            relays: hands_on,
            wants_start: if hands_on { first.start } else { 0 },
            wants_end: hands_on.then_some(last.end),
            far: false,
        };
        let is_restricted =
            !self.setup.rails.only().is_empty() || !state.setup.interfaces.is_empty();
        if let Some(reached_at) = state.setup.reached_at.filter(|_| !is_restricted) {
            add_reached(&mut peer, reached_at);
        }
        peer
    }

    pub(super) fn plan_message(&self, node: u32, limit: Option<u64>) -> control::Plan {
        let state = &self.nodes[node as usize];
        let mut plan = control::Plan {
            source_bases: state.setup.sources.iter().map(|s| s.base).collect(),
            parts: self.parts_for(state.is_receiver()),
            ..control::Plan::default()
        };
        if !state.is_receiver() {
            return plan;
        }
        plan.runs.clone_from(&state.runs);
        plan.permit = self.permit_of(node);
        plan.limit = limit.map_or(0, |l| l.max(1));
        plan.unit = self.unit_len;
        (plan.sharers, plan.other_transfers) = self.sharers();
        plan.lane_streams_max = self.lane_streams_max();
        plan.length = self.space.length;
        plan.sink_modes = self.sink_modes(state);
        plan.origins = self.origins_of(state);
        plan.expected = control::or_zero(self.expected());
        plan.explore = self.balancer.is_exploring();
        let is_open = || {
            let view = self.view();
            let held_twice = view.held_twice();
            let mut receivers = view.receivers();
            receivers.any(|receiver| view.has_choice(receiver, &held_twice))
        };
        plan.hands_on = self.relays.contains(&node);
        let is_settled_later = plan.explore && self.relays.is_empty();
        if is_settled_later && self.nodes.len() <= BEAT_NODES_MAX && is_open() {
            plan.beat_milliseconds = BEAT_MILLISECONDS;
        }
        plan.delete = self.deletes();
        if plan.delete {
            plan.elsewhere = self.sources_elsewhere(node);
        }
        plan.whole_files = self.setup.incomplete == Incomplete::WholeFiles;
        plan.commit = state.setup.sinks.iter().all(|s| s.destination.is_none());
        let mut wanted: BTreeSet<u32> = state
            .runs
            .iter()
            .flat_map(|r| std::iter::once(r.sender).chain(r.spares.iter().copied()))
            .chain(state.runs.iter().filter_map(|run| run.relay))
            .collect();
        wanted.extend(self.manifest_holders());
        wanted.extend(self.relays_for(node));
        plan.holdings = self.holdings_for(node);
        wanted.extend(plan.holdings.iter().map(|holding| holding.node));
        plan.peers = wanted.into_iter().map(|n| self.peer_of(node, n)).collect();
        plan
    }

    /// Nodes that serve lists of files, some of them for each list.
    pub(super) fn manifest_holders(&self) -> impl Iterator<Item = u32> + '_ {
        let serves = |node: &u32| self.nodes[*node as usize].can_send();
        self.space.parts.iter().flat_map(move |part| {
            let holders = part.holders.iter().copied().filter(serves);
            holders.take(MANIFEST_HOLDERS)
        })
    }

    /// Names other holders for runs: those the receiver already uses first, so that its open lanes can help
    /// each other at the end.
    fn add_spares(&self, receiver: u32, runs: &mut [Run]) {
        let mut used: Vec<(u32, f64)> = self
            .balancer
            .pairs(receiver)
            .filter(|&(node, _)| self.nodes[node as usize].can_send())
            .collect();
        used.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        for run in runs {
            let range = control::range(run.start, run.length);
            let named = std::mem::take(&mut run.spares);
            let first = used.iter().map(|(node, _)| *node);
            for node in first.chain(named).filter(|node| *node != run.sender) {
                if run.spares.len() < SPARES
                    && !run.spares.contains(&node)
                    && self.nodes[node as usize].holds.contains_range(range)
                {
                    run.spares.push(node);
                }
            }
        }
    }
}

/// Adds the address at which the command reaches a node, where none of its interfaces has it: a translation of addresses in
/// front of the node gives others the same way. It is dialled last, and no rail is known to lead there.
fn add_reached(peer: &mut control::Peer, (ip, port): (IpAddr, Option<u16>)) {
    let ip = ip.to_canonical();
    let mut own = peer.addresses.iter().filter_map(|text| text.parse().ok());
    let own: Vec<SocketAddr> = own.by_ref().collect();
    let is_known = own.iter().any(|own| own.ip().to_canonical() == ip);
    let port = port.or_else(|| own.first().map(SocketAddr::port));
    if let (false, false, Some(port)) = (is_known, ip.is_loopback(), port) {
        peer.addresses.push(SocketAddr::new(ip, port).to_string());
        peer.interfaces.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command dials is told to others once, last, with the port that is open there.
    #[test]
    fn reached_addresses_are_told() {
        let told = |addresses: &[&str], ip: &str, port| {
            let mut peer = control::Peer {
                addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
                interfaces: vec![1; addresses.len()],
                ..control::Peer::default()
            };
            add_reached(&mut peer, (ip.parse().unwrap(), port));
            assert_eq!(peer.addresses.len(), peer.interfaces.len());
            peer.addresses.split_off(addresses.len())
        };
        let own = ["10.0.0.1:5000", "127.0.0.1:5000"];
        assert_eq!(told(&own, "192.0.2.7", None), ["192.0.2.7:5000"]);
        assert_eq!(told(&own, "192.0.2.7", Some(7420)), ["192.0.2.7:7420"]);
        assert_eq!(told(&own, "2001:db8::7", None), ["[2001:db8::7]:5000"]);
        for known in ["10.0.0.1", "::ffff:10.0.0.1", "127.0.0.1", "::1"] {
            assert!(told(&own, known, Some(7420)).is_empty(), "{known}");
        }
        assert!(told(&[], "192.0.2.7", None).is_empty());
    }
}
