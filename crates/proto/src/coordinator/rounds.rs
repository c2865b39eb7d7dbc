//! Carries out what the balancer decides: limits, recalls, and plans of what was returned.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, RangeSet};

use super::balancer::{Settled, Shared, Work};
use super::life::Event;
use super::phase::Phase;
use super::{Coordinator, Planned, Purpose};
use crate::control::{self, Status, to_agent};

impl Coordinator {
    /// Takes a receiver's status into account.
    pub(super) fn observe(&mut self, node: u32, status: &Status, now: Instant) {
        let (view, balancer) = self.split();
        if balancer.observe(view, node, status, now) {
            let count = self.nodes.len();
            let pairs = status.pairs.iter().map(|pair| (pair.sender, pair.left));
            let left = pairs.filter(|(sender, _)| (*sender as usize) < count);
            self.nodes[node as usize].left_by_pair = left.collect();
        }
    }

    /// Looks whether work should move, and moves it.
    pub(super) fn rebalance(&mut self, now: Instant) {
        if self.phase != Phase::Moving {
            return;
        }
        let (view, balancer) = self.split();
        let Some(round) = balancer.look(view, now) else {
            return;
        };
        for (node, rate) in round.limits {
            let rate = rate.unwrap_or(control::NO_LIMIT);
            self.send(node, to_agent::Body::Limit(control::Limit { rate }));
        }
        for (node, bytes) in round.releases {
            self.ask_release(node, bytes);
        }
        self.plan_shared(round.shared, now);
    }

    /// Asks a node for ranges it has not begun, unless it was asked before. False then.
    fn ask_release(&mut self, node: u32, bytes: u64) -> bool {
        let asks = self.nodes[node as usize].live(Event::Recall);
        if asks {
            self.send(node, to_agent::Body::Release(control::Release { bytes }));
        }
        asks
    }

    /// Asks a receiver for all it has not begun.
    pub(super) fn recall_all(&mut self, node: u32, now: Instant) {
        if self.ask_release(node, u64::MAX) {
            self.balancer.expect_released(now);
        }
    }

    pub(super) fn handle_released(&mut self, node: u32, released: &RangeSet, now: Instant) {
        let state = &mut self.nodes[node as usize];
        if !state.live(Event::Released) {
            return;
        }
        let released = &released.intersection(&state.assigned());
        state.gave_nothing_at = released.is_empty().then_some(now);
        let is_able = state.is_able();
        // It may have been asked for a part only.
        if state.life().is_leaving() && !released.is_empty() && state.done.is_none() {
            self.recall_all(node, now);
        }
        self.let_go(node);
        // What a node had that stopped went to others already.
        if !released.is_empty() && is_able {
            let gave = self.nodes[node as usize].forget(released);
            self.balancer
                .take_released(node, released.clone(), gave, now);
        }
        self.share_released(now);
        self.check_done();
    }

    /// Plans what a round released, once every giver has answered or is gone.
    pub(super) fn share_released(&mut self, now: Instant) {
        let (view, balancer) = self.split();
        let shared = balancer.share(view, now, false);
        self.plan_shared(shared, now);
    }

    fn plan_shared(&mut self, shared: Shared, now: Instant) {
        match shared {
            Shared::Waits => {}
            Shared::Nothing => self.check_done(),
            Shared::Work(work) => self.plan_work(work, now),
        }
    }

    fn plan_work(&mut self, work: Work, now: Instant) {
        for (node, ranges) in &work.forfeited {
            self.nodes[*node as usize].forfeit(ranges);
        }
        if !self.ask_plan(false, work.takers, &BTreeSet::new(), Some(work.room)) {
            // Nothing is left to plan, or no node holds it any more.
            let purpose = Purpose {
                is_guess: false,
                first: false,
                in_round: true,
                spares: 0,
                senders: Vec::new(),
                receivers: Vec::new(),
                sites: Vec::new(),
            };
            self.revise(&purpose, &Planned::default(), Vec::new(), now);
            self.check_done();
        }
    }

    /// Tells the receivers that the plan was not about that lanes without work stand by from now on.
    pub(super) fn settle_others(&mut self, planned: &[u32], round: &Settled) {
        let planned: BTreeSet<u32> = planned.iter().copied().collect();
        let others = self.receivers().filter(|node| {
            let is_unfinished = self.nodes[*node as usize].life().is_unfinished();
            !planned.contains(node) && is_unfinished
        });
        for node in others.collect::<Vec<_>>() {
            let revision = control::Revision {
                expected: control::or_zero(round.expected),
                settle: true,
                ..Default::default()
            };
            self.send(node, to_agent::Body::Revision(revision));
        }
    }
}
