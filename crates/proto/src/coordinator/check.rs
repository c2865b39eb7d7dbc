//! What must be true of a coordinator between two calls: asserted in debug builds.

use ropewalk_model::{RangeSet, UNIT_LEN_MIN};

use super::life::NodeLife;
use super::phase::Phase;
use super::{Coordinator, Node};

/// Above so many nodes everything is checked at timer calls only, not after each message.
const NODES_EACH_CALL: usize = 16;

impl Coordinator {
    /// Asserts what must be true between two calls. Nothing in release builds. Cost O(nodes + runs × log runs).
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.check_phase();
        self.check_accounts();
        self.balancer.check(self.view());
        self.groups.check(&self.nodes);
        self.probing.check(self.phase);
        self.looking.check(self.phase);
        for node in &self.nodes {
            node.check();
            self.check_node(node);
        }
    }

    /// The same after a call, but for large transfers.
    pub(super) fn check_call(&self) {
        if cfg!(debug_assertions) && self.nodes.len() <= NODES_EACH_CALL {
            self.check();
        }
    }

    fn check_phase(&self) {
        debug_assert_eq!(
            self.phase.is_before_moving(),
            self.clock.moving_at.is_none() && self.phase != Phase::Ended,
            "{:?}: bytes flow from the phase Moving on",
            self.phase
        );
        debug_assert!(
            !self.ending.is_cancelled || matches!(self.phase, Phase::Finishing | Phase::Ended),
            "{:?}: a cancelled transfer ends",
            self.phase
        );
        debug_assert!(
            (self.awaited as usize) < self.nodes.len().max(1),
            "node {} is awaited and does not exist",
            self.awaited
        );
        for node in &self.nodes {
            let life = node.life();
            let fits = match self.phase {
                Phase::Opening | Phase::Comparing | Phase::Probing => {
                    matches!(life, NodeLife::Opening | NodeLife::Ready)
                }
                // A receiver of a shared copy may be lost while another one looks what is there.
                Phase::Looking | Phase::Planning => {
                    matches!(life, NodeLife::Ready | NodeLife::Lost)
                }
                // The others have got their plan with the phase.
                Phase::Moving => node.joined || !node.life().is_before_plan(),
                Phase::Finishing => matches!(
                    life,
                    NodeLife::Done(_) | NodeLife::Closing(_) | NodeLife::Closed(_) | NodeLife::Lost
                ),
                Phase::Ended => life.is_closing() || life == NodeLife::Lost,
            };
            debug_assert!(
                fits,
                "{}: {life:?} in phase {:?}",
                node.setup.name, self.phase
            );
        }
    }

    /// What is laid out, and what receivers of one destination are asked for.
    fn check_accounts(&self) {
        debug_assert!(
            self.unit_len >= UNIT_LEN_MIN,
            "unit of {} bytes",
            self.unit_len
        );
        let mut end = 0;
        for part in &self.space.parts {
            debug_assert!(part.base >= end, "part at {} overlaps another", part.base);
            end = part.base + part.length;
        }
        debug_assert!(
            end <= self.space.length,
            "a part ends at {end} of {} bytes",
            self.space.length
        );
        // A failure, or a node that stops, may leave bytes to two; else one receiver of a destination writes a byte.
        if self.phase != Phase::Moving || self.ending.failure.is_some() {
            return;
        }
        for (group, name) in (0..).zip(self.groups.names()) {
            let members = self.nodes.iter().filter(|node| node.group == Some(group));
            let mut all = RangeSet::new();
            for member in members.filter(|node| node.is_able()) {
                let own = RangeSet::from_ranges(member.asked());
                debug_assert!(
                    all.intersection(&own).is_empty(),
                    "{name}: two receivers are asked for {}",
                    all.intersection(&own)
                );
                all = all.union(&own);
            }
        }
    }

    /// What a node has to do with others.
    fn check_node(&self, node: &Node) {
        let count = self.nodes.len() as u32;
        let name = &node.setup.name;
        let senders = node.runs.iter().map(|run| run.sender);
        let known = senders
            .chain(node.runs.iter().flat_map(|run| run.spares.iter().copied()))
            .chain(node.runs.iter().filter_map(|run| run.relay))
            .chain(node.left_by_pair.keys().copied())
            .chain(node.failed_from.keys().copied());
        let unknown = known.into_iter().find(|&sender| sender >= count);
        debug_assert_eq!(unknown, None, "{name}: a sender that does not exist");
        let last = node.wants.last().map_or(0, |range| range.end);
        let is_laid_out = matches!(self.phase, Phase::Looking | Phase::Planning | Phase::Moving);
        debug_assert!(
            !is_laid_out || node.life().is_opening() || last <= self.space.length,
            "{name} wants bytes up to {last} of {}",
            self.space.length
        );
    }
}

impl Node {
    /// Asserts that what it reported agrees with where it is. Cost O(runs × log runs).
    pub(super) fn check(&self) {
        let (name, life) = (&self.setup.name, self.life());
        debug_assert_eq!(
            self.lost.is_some(),
            life == NodeLife::Lost,
            "{name}: {life:?}, and why it is lost"
        );
        debug_assert_eq!(
            self.pending.is_some(),
            life == NodeLife::Checking,
            "{name}: {life:?}, and what it has opened to join"
        );
        debug_assert_eq!(
            self.finished.is_some(),
            matches!(life, NodeLife::Closed(_)),
            "{name}: {life:?}, and its final report"
        );
        debug_assert!(
            !life.takes_part() || self.opened.is_some(),
            "{name}: {life:?}, and has opened nothing"
        );
        debug_assert!(
            !life.is_opening() || self.opened.is_none(),
            "{name}: {life:?}, and has opened all"
        );
        debug_assert!(
            !matches!(life, NodeLife::Done(_)) || self.done.is_some(),
            "{name}: {life:?}, and no report of its part"
        );
        debug_assert!(
            !life.is_unfinished() || self.done.is_none(),
            "{name}: {life:?}, and a report of its part"
        );
        debug_assert!(
            self.came_at.is_none() || self.joined,
            "{name} was there from the start and joined"
        );
        debug_assert!(
            self.gone_at.is_none() || life.is_closing() || life == NodeLife::Lost,
            "{name}: {life:?}, and lost"
        );
        debug_assert!(
            self.is_receiver() || self.runs.is_empty(),
            "{name} receives nothing and has runs"
        );
        debug_assert!(
            self.group.is_none() || self.is_receiver(),
            "{name} receives nothing and shares a destination"
        );
        debug_assert!(
            self.runs.iter().all(|run| run.length > 0),
            "{name} has an empty run"
        );
        let asked = RangeSet::from_ranges(self.asked());
        let sum: u64 = self.runs.iter().map(|run| run.length).sum();
        debug_assert_eq!(asked.len_bytes(), sum, "{name}: runs overlap");
        debug_assert!(
            asked.difference(&self.wants).is_empty(),
            "{name} is asked for {} that it does not want",
            asked.difference(&self.wants)
        );
        debug_assert!(
            self.forfeited.intersection(&asked).is_empty(),
            "{name}: forfeited bytes are asked for"
        );
        debug_assert!(
            self.forfeited.is_empty() || self.group.is_none(),
            "{name}: bytes of a shared destination are forfeited"
        );
        debug_assert!(
            self.failed_from.values().all(|ranges| !ranges.is_empty()),
            "{name}: nothing failed and is remembered"
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::life::{Event, Order};
    use super::super::phase::Step;
    use super::super::tests::{node, started};
    use super::*;

    fn moving() -> Coordinator {
        let all = &[(0, 100)];
        let (coordinator, _) = started(vec![
            node("a", all, &[], None),
            node("b", all, &[], None),
            node("c", &[], all, Some("d")),
            node("e", &[], all, Some("d")),
            node("f", &[], all, None),
        ]);
        coordinator
    }

    /// Each kind of wrong state is found by its own assertion.
    #[test]
    fn wrong_states_are_found() {
        type Break = fn(&mut Coordinator);
        let breaks: [(&str, Break); 17] = [
            ("bytes flow from the phase", |c| c.clock.moving_at = None),
            ("in phase Finishing", |c| c.enter(Step::Finish)),
            ("a cancelled transfer ends", |c| {
                c.ending.is_cancelled = true
            }),
            ("is awaited and does not exist", |c| c.awaited = 9),
            ("and why it is lost", |c| {
                c.nodes[2].lost = Some("gone".into())
            }),
            ("and what it has opened to join", |c| {
                c.nodes[2].pending = c.nodes[2].opened.clone();
            }),
            ("and its final report", |c| {
                c.nodes[2].live(Event::Finish(Order::default()));
                c.nodes[2].live(Event::Finished);
            }),
            ("and has opened nothing", |c| c.nodes[0].opened = None),
            ("and no report of its part", |c| {
                c.nodes[2].live(Event::Done);
            }),
            ("and a report of its part", |c| {
                c.nodes[2].done = Some(Box::default());
            }),
            ("runs overlap", |c| {
                let run = c.nodes[2].runs[0].clone();
                c.nodes[2].runs.push(run);
            }),
            ("that it does not want", |c| {
                c.nodes[2].wants = RangeSet::new()
            }),
            ("two receivers are asked", |c| {
                c.nodes[3].runs = c.nodes[2].runs.clone();
            }),
            ("a sender that does not exist", |c| {
                c.nodes[2].runs[0].sender = 77
            }),
            ("one track for each node", |c| {
                c.balancer.add_node(None, None)
            }),
            ("receivers of d", |c| c.nodes[2].group = None),
            ("unit of 0 bytes", |c| c.unit_len = 0),
        ];
        moving().check();
        for (what, wrong) in breaks {
            let mut coordinator = moving();
            wrong(&mut coordinator);
            let found = catch_unwind(AssertUnwindSafe(|| coordinator.check()));
            let text = *found.expect_err(what).downcast::<String>().unwrap();
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}
