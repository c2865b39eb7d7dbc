//! Contents of replicas: which nodes compare them, and what becomes of the transfer where they differ.

use ropewalk_model::RangeSet;

use super::outcome::Failure;
use super::{Coordinator, Incomplete};
use crate::control::{self, Verify, to_agent};
use crate::node::fetch::Compare;
use crate::report::{ErrorKind, ReplicasReport};

/// What is compared at a level of verification.
#[must_use]
pub fn compare(verify: Verify) -> Compare {
    match verify {
        // There are no hashes of units.
        Verify::None | Verify::Fragment => Compare::Nothing,
        Verify::Replicas => Compare::Whole,
        Verify::Tree | Verify::Sink => Compare::Sample,
    }
}

impl Coordinator {
    fn is_compared_whole(&self) -> bool {
        compare(self.setup.options.verify()) == Compare::Whole
    }

    /// Who holds what of all that a receiver wants, where every holder is to be asked.
    pub(super) fn holdings_for(&self, receiver: u32) -> Vec<control::Holding> {
        if !self.is_compared_whole() {
            return Vec::new();
        }
        let wants = &self.nodes[receiver as usize].wants;
        let able = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        able.filter_map(|node| self.holding(node, wants)).collect()
    }

    fn holding(&self, node: u32, wants: &RangeSet) -> Option<control::Holding> {
        let ranges = self.nodes[node as usize].holds.intersection(wants);
        (!ranges.is_empty()).then(|| control::Holding {
            node,
            ranges: control::stretches(&ranges),
        })
    }

    /// A holder joined: receivers that are at work compare it, too.
    pub(super) fn tell_holding(&mut self, node: u32) {
        if !self.is_compared_whole() || !self.nodes[node as usize].is_sender() {
            return;
        }
        for receiver in self.receivers().collect::<Vec<_>>() {
            let state = &self.nodes[receiver as usize];
            let at_work = receiver != node && state.life().is_unfinished();
            let Some(holding) = self.holding(node, &state.wants).filter(|_| at_work) else {
                continue;
            };
            let revision = control::Revision {
                peers: vec![self.peer(node)],
                holdings: vec![holding],
                ..control::Revision::default()
            };
            self.send(receiver, to_agent::Body::Revision(revision));
        }
    }

    /// A receiver found that replicas differ: nobody knows which bytes are right, so the whole transfer ends, and what has no
    /// name yet gets none.
    pub(super) fn end_differing(&mut self, error: &str) {
        let has_names = |node: u32| {
            let done = self.nodes[node as usize].done.as_deref();
            done.is_some_and(|done| done.committed)
        };
        let named: Vec<&str> = self
            .receivers()
            .filter(|&node| has_names(node))
            .map(|node| self.name(node))
            .collect();
        let text = match named.is_empty() {
            true => error.to_owned(),
            false => format!(
                "{error}. The copies of {} were complete before and have their names: check them, too",
                named.join(", ")
            ),
        };
        self.fail_whole(text);
    }

    /// Ends the transfer as failed once all nodes have removed what is temporary.
    fn fail_whole(&mut self, text: String) {
        self.ending.failure = Some(Failure {
            kind: ErrorKind::Differing,
            text,
        });
        self.finish_all(
            Incomplete::Removed,
            "the transfer failed before it was ready",
        );
    }

    /// What was compared; `None` where no byte that anybody wants has two holders.
    #[must_use]
    pub fn replicas(&self) -> Option<ReplicasReport> {
        let wants = self.receivers().map(|n| &self.nodes[n as usize].wants);
        let wants = RangeSet::from_ranges(wants.flat_map(RangeSet::iter));
        let mut all = RangeSet::new();
        let mut is_held_twice = false;
        for node in self.senders() {
            let held = self.nodes[node as usize].holds.intersection(&wants);
            is_held_twice |= !held.intersection(&all).is_empty();
            all = all.union(&held);
            if is_held_twice {
                break;
            }
        }
        if !is_held_twice {
            return None;
        }
        let mut report = ReplicasReport {
            compared: match compare(self.setup.options.verify()) {
                Compare::Nothing => "no",
                Compare::Sample => "sample",
                Compare::Whole => "whole",
            }
            .into(),
            ..ReplicasReport::default()
        };
        for done in self.nodes.iter().filter_map(|node| node.done.as_deref()) {
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut report.units, done.units);
            add(&mut report.compared_units, done.compared_units);
            add(&mut report.compared_bytes, done.compared_bytes);
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Instant;

    use super::super::tests::{
        actions, answer, begun, done, finish, from, node, opened, outcome, sent, started,
    };
    use super::*;
    use crate::control::{Done, from_agent};
    use crate::report::Outcome;

    /// A difference ends the whole transfer: nobody else takes the work over, everybody removes what is temporary, and the
    /// end is told after that.
    #[test]
    fn a_difference_ends_the_transfer() {
        let all = &[(0, 100)];
        for shared in [None, Some("d")] {
            let (mut c, _) = started(vec![
                node("a", all, &[], None),
                node("b", all, &[], None),
                node("c", &[], all, shared),
                node("d", &[], all, shared),
                node("e", &[], all, shared),
            ]);
            if shared.is_none() {
                let from_agent::Body::Done(mut whole) = done(100, &[]).body.unwrap() else {
                    unreachable!()
                };
                whole.committed = true;
                c.handle_message(3, from(from_agent::Body::Done(whole)), Instant(5));
            }
            actions(&mut c);
            let differs = Done {
                differs: true,
                error: "replicas differ".into(),
                ..Done::default()
            };
            c.handle_message(2, from(from_agent::Body::Done(differs)), Instant(10));
            let told = actions(&mut c);
            for node in 0..5 {
                assert!(
                    matches!(sent(&told, node)[..], [to_agent::Body::Finish(f)] if f.discard && !f.commit),
                    "{node}: {told:?}"
                );
            }
            assert_eq!(outcome(&told), None);
            let ended = finish(&mut c, 5);
            assert_eq!(outcome(&ended), Some(Outcome::Failed));
            let error = c.ending.failure.unwrap().text;
            assert!(error.starts_with("replicas differ"), "{error}");
            assert_eq!(error.contains("copies of d "), shared.is_none(), "{error}");
        }
    }

    /// Receivers are told of all holders where the whole is compared; the report knows whether there are replicas.
    #[test]
    fn holders_are_named_where_all_are_compared() {
        let nodes = || {
            vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[(50, 50)], &[], None),
                node("c", &[], &[(0, 80)], None),
            ]
        };
        for (verify, compared) in [
            (Verify::Replicas, "whole"),
            (Verify::Tree, "sample"),
            (Verify::Fragment, "no"),
        ] {
            let mut c = begun(nodes(), None);
            c.setup.options.verify = verify.into();
            for (at, node) in nodes().iter().enumerate() {
                c.handle_message(at as u32, opened(node, 7), Instant(1));
            }
            let first = actions(&mut c);
            let told = answer(&mut c, first);
            let [to_agent::Body::Plan(plan)] = sent(&told, 2)[..] else {
                panic!("{told:?}");
            };
            let holdings: Vec<(u32, u64, u64)> = plan
                .holdings
                .iter()
                .map(|h| (h.node, h.ranges[0].start, h.ranges[0].length))
                .collect();
            match verify {
                Verify::Replicas => assert_eq!(holdings, [(0, 0, 80), (1, 50, 30)]),
                _ => assert!(holdings.is_empty()),
            }
            assert_eq!(c.replicas().unwrap().compared, compared);
        }
        let (c, _) = started(vec![
            node("a", &[(0, 50)], &[], None),
            node("b", &[(50, 50)], &[], None),
            node("c", &[], &[(0, 100)], None),
        ]);
        assert_eq!(c.replicas(), None, "parts are no replicas");
    }
}
