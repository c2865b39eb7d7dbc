//! Asks for plans, and turns their answers into what each node is told.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::layout::{UNITS_PER_NODE, unit_len};
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::{Range, RangeSet};

use super::observe::Estimate;
use super::replan;
use super::{
    Action, Basis, Coordinator, MANIFEST_HOLDERS, Node, Phase, Planned, PlannedRun, Purpose,
    SPEED_UNKNOWN,
};
use crate::control::{self, Run, to_agent};
use crate::report::{ErrorKind, Outcome};

/// Which speeds, in order, are taken for the same: neighbours that differ by less than one factor, when all of
/// them differ by less than another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike {
    neighbours: f64,
    together: f64,
}

/// Observed speeds.
const ALIKE: Alike = Alike {
    neighbours: 1.15,
    together: 1.4,
};

/// What is left of them, of which much is noise.
pub(super) const ALIKE_ROOM: Alike = Alike {
    neighbours: 1.5,
    together: 3.0,
};

/// Other holders that a run names.
const SPARES: usize = 2;

/// And where nobody told speeds, so that receivers find out who is fast.
const SPARES_EXPLORING: usize = 7;

/// Until a plan is settled receivers speak this often ...
const BEAT_MILLISECONDS: u32 = 150;

/// ... if there are not more nodes than that: it costs the master up to a kilobyte a word.
const BEAT_NODES_MAX: usize = 100;

/// What nodes can still carry, for work that is planned anew.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Bytes per second that each node can still send.
    pub up: Vec<f64>,
    /// And receive.
    pub down: Vec<f64>,
    /// What work that is kept takes of pairs, bytes per second by sender and receiver: not free on their links.
    pub kept: Vec<(u32, u32, f64)>,
}

impl Coordinator {
    pub(super) fn plan_first(&mut self) {
        self.phase = Phase::Planning;
        let all = |known: &dyn Fn(&Node) -> (bool, bool)| {
            self.nodes.iter().all(|node| {
                let (up, down) = known(node);
                (up || !node.is_sender()) && (down || !node.is_receiver())
            })
        };
        let declared = all(&|node| (node.setup.up.is_some(), node.setup.down.is_some()));
        let told = all(&|node| {
            (
                node.setup.told_up().is_some(),
                node.setup.told_down().is_some(),
            )
        });
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
        for node in &mut self.nodes {
            node.up = Estimate::told(node.setup.told_up());
            node.down = Estimate::told(node.setup.told_down());
        }
        self.exploring = !told && !self.setup.options.fixed;
        self.group_receivers();
        let receivers: Vec<(u32, RangeSet)> = self
            .receivers()
            .map(|n| (n, self.nodes[n as usize].wants.clone()))
            .collect();
        self.ask_plan(true, receivers, &BTreeSet::new(), None);
    }

    /// Bytes per second to plan with, for each node: as observed or told, else the interface's, else as the
    /// others of its side.
    pub(super) fn speeds(&self, known: impl Fn(&Node) -> Option<f64>) -> Vec<f64> {
        let (mut sum, mut count) = (0.0, 0);
        for rate in self.nodes.iter().filter_map(&known) {
            sum += rate;
            count += 1;
        }
        let others = match count {
            0 => SPEED_UNKNOWN as f64,
            _ => sum / f64::from(count),
        };
        let speed = |node: &Node| {
            let interface = node.opened.as_deref().map_or(0, |o| o.interface_rate);
            known(node).unwrap_or(match interface {
                0 => others,
                rate => rate as f64,
            })
        };
        self.nodes.iter().map(speed).collect()
    }

    /// All that nodes can carry, as far as anybody knows.
    pub(super) fn whole_room(&self) -> Room {
        Room {
            up: self.speeds(|node| node.up.rate().filter(|_| node.is_sender())),
            down: self.speeds(|node| node.down.rate().filter(|_| node.is_receiver())),
            kept: Vec::new(),
        }
    }

    /// The same with speeds that are equal but for what cannot be told apart made equal: equal nodes make
    /// pairs, where slightly different ones make chains of lanes over all nodes.
    pub(super) fn even_room(&self) -> Room {
        let mut room = self.whole_room();
        self.make_even(&mut room, ALIKE);
        room
    }

    /// Makes speeds of living nodes that cannot be told apart the same, by `alike` factors.
    pub(super) fn make_even(&self, room: &mut Room, alike: Alike) {
        let up = room.up.iter_mut().zip(&self.nodes);
        let down = room.down.iter_mut().zip(&self.nodes);
        let up = up.filter(|(_, node)| node.can_send()).map(|(rate, _)| rate);
        let down = down
            .filter(|(_, node)| node.is_receiver())
            .map(|(rate, _)| rate);
        let mut rates: Vec<&mut f64> = up.chain(down).filter(|rate| **rate > 0.0).collect();
        rates.sort_by(|a, b| a.total_cmp(b));
        let mut rest = &mut rates[..];
        while let [first, ..] = rest {
            let most = **first * alike.together;
            let next =
                |pair: &[&mut f64]| *pair[1] > *pair[0] * alike.neighbours || *pair[1] > most;
            let count = rest
                .windows(2)
                .position(next)
                .map_or(rest.len(), |at| at + 1);
            let (same, others) = rest.split_at_mut(count);
            let mean = same.iter().map(|rate| **rate).sum::<f64>() / count as f64;
            same.iter_mut().for_each(|rate| **rate = mean);
            rest = others;
        }
    }

    /// Senders in the order of the receivers that have most from them: where a plan has a choice between equal
    /// ones, it keeps the lanes that are there.
    fn by_partner(&self, senders: &mut [u32]) {
        let mut partner = vec![(u32::MAX, 0.0); self.nodes.len()];
        for receiver in self.receivers() {
            for (sender, rate) in self.nodes[receiver as usize].observed.pairs() {
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
            .senders()
            .filter(|n| self.nodes[*n as usize].can_send() && !excluded.contains(n))
            .filter(|n| room.as_ref().is_none_or(|room| room.up[*n as usize] > 0.0))
            .collect();
        if !first {
            self.drop_unheld(&mut receivers, &senders);
            if receivers.is_empty() {
                return false;
            }
        }
        if !first {
            self.by_partner(&mut senders);
        }
        let in_round = room.is_some();
        let room = room.unwrap_or_else(|| self.whole_room());
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
                    relay_up: None,
                })
                .collect(),
            ..Problem::default()
        };
        let numbers: Vec<u32> = receivers.iter().map(|(n, _)| *n).collect();
        self.add_links_left(&mut problem, &room, &senders, &numbers);
        let purpose = Purpose {
            first,
            in_round,
            spares: match first && self.exploring {
                true => SPARES_EXPLORING,
                false => SPARES,
            },
            senders,
            receivers: numbers,
        };
        self.plan_asked_ns = self.now_ns;
        self.actions.push_back(Action::Plan(purpose, problem));
        true
    }

    /// Answer to [`Action::Plan`]. An error refuses the transfer when nothing has moved, and ends
    /// it otherwise.
    pub fn handle_planned(
        &mut self,
        purpose: &Purpose,
        result: Result<Planned, String>,
        now_ns: u64,
    ) {
        let planned = match result {
            Ok(planned) => planned,
            Err(text) if self.phase == Phase::Planning => return self.refuse(text),
            Err(text) => return self.end(Outcome::Failed, Some(text)),
        };
        let in_vain = purpose.in_round && self.is_in_vain(&planned);
        let nothing = Planned::default();
        if !in_vain {
            self.count_holders();
        }
        let planned = if in_vain { nothing } else { planned };
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
                    };
                    // Of later plans when other holders are named.
                    if purpose.first {
                        run.choices = self.choices(node, &run);
                    }
                    run
                };
                (node, runs.iter().map(to_run).collect())
            })
            .collect();
        self.planning_ns = now_ns.saturating_sub(self.plan_asked_ns);
        match self.phase {
            Phase::Planning if purpose.first => {
                if !self.exploring {
                    self.note_whole_plan(&planned, now_ns);
                }
                self.planned = planned;
                self.phase = Phase::Moving;
                self.moving_ns = Some(now_ns);
                self.lease_ns = now_ns;
                let share = self
                    .setup
                    .limit
                    .map(|limit| limit / (runs.len() as u64).max(1));
                for (node, runs) in runs {
                    self.nodes[node as usize].give(runs);
                }
                self.unit_len = self.choose_unit_len();
                self.count_lanes();
                for node in 0..self.nodes.len() as u32 {
                    let state = &mut self.nodes[node as usize];
                    state.heard_ns = now_ns;
                    state.received.start(now_ns);
                    state.sent.start(now_ns);
                    let plan = self.plan_message(node, share);
                    self.send(node, to_agent::Body::Plan(plan));
                }
                self.actions.push_back(Action::Moving);
            }
            Phase::Moving if !purpose.first => self.revise(purpose, &planned, runs, now_ns),
            _ => {}
        }
    }

    /// Tells receivers of the work that a new plan gives them.
    pub(super) fn revise(
        &mut self,
        purpose: &Purpose,
        planned: &Planned,
        runs: Vec<(u32, Vec<Run>)>,
        now_ns: u64,
    ) {
        self.replans += 1;
        let round = match purpose.in_round {
            true => self.end_round(planned.predicted_seconds),
            false => replan::Settled::default(),
        };
        if round.settle {
            self.note_whole_plan(planned, now_ns);
        }
        let mut told: BTreeMap<u32, Vec<Run>> = runs.into_iter().collect();
        for (node, kept) in &round.kept_lanes {
            let own = told.entry(*node).or_default();
            own.extend(kept.iter().cloned());
        }
        let lives = |node: &&u32| self.nodes[**node as usize].alive();
        for &giver in round.givers.iter().filter(lives) {
            told.entry(giver).or_default();
        }
        let runs = told;
        for (&node, _) in runs.iter().filter(|(_, runs)| !runs.is_empty()) {
            if self.is_able(node) {
                self.nodes[node as usize].done = None;
            }
        }
        // Who works again has to have its share of a limit taken from the others first.
        self.lease_ns = 0;
        self.deal_limit(now_ns);
        let lost = self.lost_nodes();
        // Who went while this was planned gets nothing; others of its destination do.
        let mut orphaned: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
        for (node, mut runs) in runs {
            if runs.is_empty() && !round.tells(node) {
                continue;
            }
            if !self.is_able(node) {
                let ranges = runs.iter().map(|run| control::range(run.start, run.length));
                match self.nodes[node as usize].group {
                    Some(group) => orphaned.entry(group).or_default().extend(ranges),
                    None => self.nodes[node as usize].runs.extend(runs),
                }
                continue;
            }
            self.add_spares(node, &mut runs);
            for run in &mut runs {
                run.choices = self.choices(node, run);
            }
            let peers = self.peers_of(&runs);
            // Bytes asked for again are still asked for once.
            let again =
                RangeSet::from_ranges(runs.iter().map(|r| control::range(r.start, r.length)));
            self.forget(node, &again);
            let state = &mut self.nodes[node as usize];
            state.give(runs.clone());
            // Who gets nothing does not speak again.
            if !runs.is_empty() {
                state.revision += 1;
                state.gave_nothing_ns = None;
                state.given_ns = now_ns;
            }
            let number = state.revision;
            if std::mem::take(&mut state.awaits_plan) {
                let mut plan = self.plan_message(node, self.setup.limit.map(|_| 1));
                (plan.expected, plan.revision) = (0, number);
                // Its share of a limit is dealt at the next look.
                self.lease_ns = 0;
                self.send(node, to_agent::Body::Plan(plan));
                continue;
            }
            self.send(
                node,
                to_agent::Body::Revision(control::Revision {
                    peers,
                    runs,
                    lost: lost.clone(),
                    unavailable: Vec::new(),
                    number,
                    expected: round.expected_ns,
                    settle: round.settle,
                    holdings: Vec::new(),
                }),
            );
        }
        if round.settle {
            self.settle_others(&purpose.receivers, &round);
        }
        for (group, ranges) in orphaned {
            if !self.give_to_others(group, &RangeSet::from_ranges(ranges)) {
                let name = self.groups[group as usize].0.clone();
                self.fail(
                    ErrorKind::Lost,
                    format!("no receiver is left that could write all of destination {name}"),
                );
            }
        }
        self.share_released(now_ns, false);
        self.check_done();
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
            u128::from(limit) / count * u128::from(UNITS_PER_NODE) / 20
        });
        unit_len(u64::try_from(mean.min(limited)).unwrap_or(u64::MAX))
    }

    /// When receivers should be done if the speeds are as told; 0 while they are being found out.
    pub(super) fn expected_ns(&self) -> u64 {
        if self.exploring {
            return 0;
        }
        let limited = self.setup.limit.map_or(0.0, |limit| {
            self.wanted_bytes() as f64 / limit.max(1) as f64
        });
        (self.planned.predicted_seconds.max(limited) * 1e9) as u64
    }

    pub(super) fn lost_nodes(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32)
            .filter(|&n| !self.nodes[n as usize].alive())
            .collect()
    }

    fn peers_of(&self, runs: &[Run]) -> Vec<control::Peer> {
        let mut wanted = BTreeSet::new();
        for run in runs {
            wanted.insert(run.sender);
            wanted.extend(run.spares.iter().copied());
        }
        wanted.into_iter().map(|node| self.peer(node)).collect()
    }

    pub(super) fn peer(&self, node: u32) -> control::Peer {
        let state = &self.nodes[node as usize];
        let opened = state.opened.as_deref();
        let mut peer = control::Peer {
            node,
            name: self.name(node).into(),
            instance: opened.map(|o| o.instance.clone()).unwrap_or_default(),
            addresses: opened.map(|o| o.addresses.clone()).unwrap_or_default(),
            interfaces: opened.map(|o| o.interfaces.clone()).unwrap_or_default(),
        };
        let is_restricted = !self.setup.rails.only.is_empty() || !state.setup.interfaces.is_empty();
        if let Some(reached_at) = state.setup.reached_at.filter(|_| !is_restricted) {
            add_reached(&mut peer, reached_at);
        }
        peer
    }

    pub(super) fn plan_message(&self, node: u32, limit: Option<u64>) -> control::Plan {
        let state = &self.nodes[node as usize];
        let mut plan = control::Plan {
            source_bases: state.setup.sources.iter().map(|s| s.base).collect(),
            parts: self.parts.clone(),
            ..control::Plan::default()
        };
        if !state.is_receiver() {
            return plan;
        }
        plan.runs.clone_from(&state.runs);
        plan.limit = limit.map_or(0, |l| l.max(1));
        plan.unit = self.unit_len;
        (plan.sharers, plan.other_transfers) = self.sharers();
        plan.lane_streams_max = self.lane_streams_max();
        plan.length = self.data_length;
        plan.sink_modes = self.sink_modes(state);
        plan.expected = self.expected_ns();
        plan.explore = self.exploring;
        let is_open = || {
            let held_twice = self.held_twice();
            let mut receivers = self.receivers();
            receivers.any(|receiver| self.has_choice(receiver, &held_twice))
        };
        if self.exploring && self.nodes.len() <= BEAT_NODES_MAX && is_open() {
            plan.beat_milliseconds = BEAT_MILLISECONDS;
        }
        plan.commit = state.setup.sinks.iter().all(|s| s.destination.is_none());
        let mut wanted: BTreeSet<u32> = state
            .runs
            .iter()
            .flat_map(|r| std::iter::once(r.sender).chain(r.spares.iter().copied()))
            .collect();
        let serves = |node: &u32| self.nodes[*node as usize].can_send();
        wanted.extend(self.parts.iter().flat_map(|part| {
            let holders = part.holders.iter().copied().filter(serves);
            holders.take(MANIFEST_HOLDERS)
        }));
        plan.holdings = self.holdings_for(node);
        wanted.extend(plan.holdings.iter().map(|holding| holding.node));
        plan.peers = wanted.into_iter().map(|n| self.peer(n)).collect();
        plan
    }

    /// Names other holders for runs: those the receiver already uses first, so that its open lanes can help
    /// each other at the end.
    fn add_spares(&self, receiver: u32, runs: &mut [Run]) {
        let mut used: Vec<(u32, f64)> = self.nodes[receiver as usize]
            .observed
            .pairs()
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
