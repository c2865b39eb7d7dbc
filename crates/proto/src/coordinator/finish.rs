//! When a transfer is over, and who gives files their names.

use std::collections::BTreeSet;

use super::{Action, Coordinator, Node, Phase};
use crate::control::{self, to_agent};
use crate::report::Outcome;

impl Coordinator {
    pub(super) fn check_done(&mut self) {
        if self.phase != Phase::Moving || self.round.is_some() {
            return;
        }
        // One that is only about to join is not waited for.
        let ended = |n: &Node| {
            (n.done.is_some() && !n.releasing)
                || !n.alive()
                || !n.is_receiver()
                || n.opened.is_none()
        };
        let pending_plan = |a: &Action| matches!(a, Action::Plan(..));
        if self.is_true_for_all(ended) && !self.actions.iter().any(pending_plan) {
            self.finish();
        }
    }

    pub(super) fn finish(&mut self) {
        let late = (0..self.nodes.len() as u32).filter(|&n| {
            let state = &self.nodes[n as usize];
            state.alive() && state.opened.is_none()
        });
        for node in late.collect::<Vec<_>>() {
            self.turn_away(node, "the transfer ended before it was ready");
        }
        self.phase = Phase::Finishing;
        // Of each shared destination one node renames, and only when every byte is safe.
        let mut open: BTreeSet<String> = self.groups.iter().map(|(name, _)| name.clone()).collect();
        let whole: BTreeSet<String> = open
            .iter()
            .filter(|name| self.destination_complete(name))
            .cloned()
            .collect();
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            if !state.alive() || state.finish_sent {
                continue;
            }
            let usable = state.done.as_ref().is_some_and(|d| d.error.is_empty());
            let commit = match self.destination(node) {
                Some(name) if usable && whole.contains(name) => open.remove(name),
                _ => false,
            };
            let state = &mut self.nodes[node as usize];
            (state.finish_sent, state.told_commit) = (true, commit);
            let samples = match commit {
                true => self.samples_for(node),
                false => Vec::new(),
            };
            self.send(
                node,
                to_agent::Body::Finish(control::Finish {
                    commit,
                    discard: false,
                    samples,
                }),
            );
        }
        for name in open.intersection(&whole) {
            self.failure.get_or_insert_with(|| {
                format!("every byte of destination {name} is safe, but no node is left to give it its name; run the command again")
            });
        }
        self.finish_ns = None;
        self.check_finished();
    }

    /// What the others of a node's destination wrote, for it to see that the files are the same.
    fn samples_for(&self, node: u32) -> Vec<control::Sample> {
        let name = self.destination(node);
        let others = self
            .receivers()
            .filter(|&n| n != node && self.destination(n) == name);
        let done = others.filter_map(|n| self.nodes[n as usize].done.as_ref());
        done.filter(|done| done.error.is_empty())
            .filter_map(|done| done.sample.clone())
            .collect()
    }

    pub(super) fn check_finished(&mut self) {
        if self.phase != Phase::Finishing
            || !self.is_true_for_all(|n| n.finished.is_some() || !n.alive())
        {
            return;
        }
        let missing = !self.missing().is_empty();
        let outcome = match (&self.failure, missing) {
            (Some(_), _) => Outcome::Failed,
            (None, true) => Outcome::Partial,
            (None, false) => Outcome::Done,
        };
        let error = match outcome {
            Outcome::Partial => {
                Some("some ranges have no holder left; see the missing ranges".into())
            }
            _ => self.failure.clone(),
        };
        self.end(outcome, error);
    }
}
