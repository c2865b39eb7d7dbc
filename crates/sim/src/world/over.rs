//! The end of a simulated transfer: nodes end, and what there is is counted.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Nanos, RangeSet};
use ropewalk_proto::node::GRACE_TIME;

use super::World;
use crate::agent::Agent;
use crate::ended::{Ended, Mended};

/// Nodes have ended so long after the transfer.
const CLOSE_TIME: Nanos = Nanos::from_secs(60);

impl World<'_> {
    /// The master is gone: nodes go on with what they were granted, and each ends when its grace is over.
    fn outlast_master(&mut self) {
        let now = self.now;
        let agents = self.agents.iter_mut();
        agents.for_each(|agent| agent.handle_master_gone(now));
        let until = now + GRACE_TIME + self.scenario.step_time;
        loop {
            let nodes = 0..self.agents.len() as u32;
            let living = nodes.filter(|node| !self.dead[*node as usize]);
            let is_over = |node: &u32| {
                let at = self.agents[*node as usize].grace_over_at();
                at.is_none_or(|at| at <= self.now)
            };
            let (over, left): (Vec<u32>, Vec<u32>) = living.partition(is_over);
            over.into_iter().for_each(|node| self.lose_master(node));
            if left.is_empty() {
                return;
            }
            assert!(self.now < until, "nodes go on without a master: {left:?}");
            self.step();
        }
    }

    fn lose_master(&mut self, node: u32) {
        let (agents, mut around) = self.split(node);
        agents[node as usize].lose_master(&mut around);
        self.wake_no_later(node, self.now);
    }

    /// The transfer has ended, or its master is gone: agents carry out what they were asked for, or end by themselves.
    pub(super) fn close(&mut self) {
        if self.is_master_dead {
            self.outlast_master();
        }
        let nodes = 0..self.agents.len() as u32;
        for is_gone in [self.is_master_dead, true] {
            for node in nodes.clone() {
                if !is_gone || self.dead[node as usize] {
                    continue;
                }
                self.lose_master(node);
            }
            let until = self.now + CLOSE_TIME;
            let is_busy = |world: &Self| {
                let mut living = world.agents.iter().zip(&world.dead);
                world.mail.has_for_agents()
                    || living.any(|(agent, dead)| !dead && agent.is_closing())
            };
            while self.now < until && is_busy(self) {
                self.step();
            }
            assert!(!is_busy(self), "a node does not end");
        }
        for node in nodes {
            let disk = self.disk_of(node);
            self.disks.entry(disk).or_default().release(node);
        }
    }

    pub(super) fn ended(self) -> Ended {
        let mut delivered_by_node: Vec<RangeSet> = self
            .agents
            .iter()
            .zip(&self.dead)
            .map(|(agent, dead)| match dead {
                true => RangeSet::new(),
                false => agent.delivered(),
            })
            .collect();
        for (node, delivered) in self.left_behind {
            delivered_by_node[node as usize] = delivered;
        }
        let mut destinations: BTreeMap<String, Vec<&RangeSet>> = BTreeMap::new();
        for (setup, delivered) in self.scenario.nodes.iter().zip(&delivered_by_node) {
            let shared = setup
                .sinks
                .first()
                .and_then(|sink| sink.destination.clone());
            // Names of nodes and of destinations must not meet.
            let name = shared.map_or_else(|| format!("node {}", setup.name), |s| format!("to {s}"));
            destinations.entry(name).or_default().push(delivered);
        }
        let union =
            |sets: &[&RangeSet]| RangeSet::from_ranges(sets.iter().flat_map(|set| set.iter()));
        let delivered_bytes = destinations.values().map(|sets| union(sets).len_bytes());
        let delivered_bytes = delivered_bytes.sum();
        let moving = match (
            self.coordinator.moving_at(),
            self.coordinator.last_done_at(),
        ) {
            (Some(from), Some(to)) => Some(to.since(from).as_seconds()),
            _ => None,
        };
        let (outcome, error) = self.end.unzip();
        let carried = || self.agents.iter().map(Agent::carried);
        Ended {
            outcome,
            error: error.flatten(),
            seconds: self.now.since(Instant::ZERO).as_seconds(),
            moving_seconds: moving,
            wanted_bytes: self.coordinator.wanted_bytes(),
            delivered_bytes,
            handed_on_bytes: carried().map(|carried| carried.handed_on_bytes).sum(),
            duplicate_bytes: carried().map(|carried| carried.duplicate_bytes).sum(),
            carried_bytes: carried()
                .flat_map(|carried| carried.bytes.into_values())
                .sum(),
            carried_between: (0..)
                .zip(carried())
                .flat_map(|(to, carried)| {
                    let from = carried.bytes.into_iter();
                    from.map(move |(from, bytes)| ((from, to), bytes))
                })
                .collect(),
            delivered: union(&delivered_by_node.iter().collect::<Vec<_>>()),
            delivered_by_node,
            done_at: self.agents.iter().map(|agent| agent.done_at).collect(),
            replans: u64::from(self.coordinator.replans()),
            traffic: self.mail.traffic,
            timeline: self.mail.timeline,
            mended: {
                let all = self.agents.iter().map(Agent::mended);
                all.fold(Mended::default(), Mended::and)
            },
            received: self.agents.iter().map(Agent::received).collect(),
            is_master_dead: self.is_master_dead,
            notes: self.notes,
            ignored: self.ignored,
        }
    }
}
