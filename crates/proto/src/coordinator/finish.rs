//! When a transfer is over, who gives files their names, and who removes what is of no use.
//!
//! ```text
//!  a copy of one node   complete: it has named it itself      else: it removes what it wrote
//!  a shared copy        whole: one node names it, the others wait for that; when it dies, or cannot, the next one does
//!                       else: all remove what they wrote
//! ```
//!
//! With `keep_partial` nothing is removed, and the nodes tell where it lies.

use super::{Action, Coordinator, Node, Phase};
use crate::control::{self, to_agent};
use crate::report::{ErrorKind, Outcome};

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
        let whole: Vec<bool> = self
            .groups
            .iter()
            .map(|(name, _)| self.destination_complete(name))
            .collect();
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            if !state.alive() || state.finish_sent {
                continue;
            }
            let useless = match state.group {
                // Those that could name it wait until one has.
                Some(group) if whole[group as usize] && self.could_name(node) => continue,
                Some(group) => !whole[group as usize],
                None => state.is_receiver() && !state.is_complete(),
            };
            self.tell_finish(node, false, useless && !self.setup.keep_partial);
        }
        for (group, whole) in whole.into_iter().enumerate() {
            if whole {
                self.name_next(group as u32, None);
            }
        }
        self.finish_ns = None;
        self.check_finished();
    }

    /// Whether a node of a shared destination is there to give it its name, and has not been asked.
    fn could_name(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        state.alive()
            && !state.finish_sent
            && state.done.as_deref().is_some_and(|d| d.error.is_empty())
    }

    /// Whether a shared destination has its name.
    pub(super) fn is_named(&self, group: u32) -> bool {
        let mut members = self.nodes.iter().filter(|n| n.group == Some(group));
        members.any(|n| n.told_commit && n.finished.as_deref().is_some_and(|f| f.committed))
    }

    /// Has the next node of a shared destination give it its name, when all of it is safe.
    ///
    /// * `before`: who was asked before, and why it did not.
    fn name_next(&mut self, group: u32, before: Option<(u32, &str)>) {
        let able: Vec<u32> = (0..self.nodes.len() as u32)
            .filter(|&n| self.nodes[n as usize].group == Some(group) && self.could_name(n))
            .collect();
        let Some(&node) = able.first() else {
            let name = self.groups[group as usize].0.clone();
            return self.fail(
                ErrorKind::Lost,
                format!("every byte of destination {name} is safe, but no node is left to give it its name; run the command again"),
            );
        };
        if let Some((before, reason)) = before {
            let (next, before) = (self.name(node).to_owned(), self.name(before).to_owned());
            self.note(format!(
                "{before} did not give the files their names ({reason}); {next} does"
            ));
            self.finish_ns = None;
        }
        self.nodes[node as usize].told_commit = true;
        self.nodes[node as usize].names_again = before.is_some();
        let is_last = able.len() == 1;
        self.tell_finish(node, true, is_last && !self.setup.keep_partial);
    }

    /// The last word to a node.
    fn tell_finish(&mut self, node: u32, commit: bool, discard: bool) {
        let state = &mut self.nodes[node as usize];
        (state.finish_sent, state.told_discard) = (true, discard);
        let again = state.names_again;
        let samples = match commit {
            true => self.samples_for(node),
            false => Vec::new(),
        };
        let finish = control::Finish {
            commit,
            discard,
            samples,
            again,
        };
        self.send(node, to_agent::Body::Finish(finish));
    }

    /// A node that was to name a shared destination has answered, or is gone.
    ///
    /// * `error`: why it did not; empty when it did.
    pub(super) fn handle_named(&mut self, node: u32, error: &str) {
        let Some(group) = self.nodes[node as usize].group else {
            return;
        };
        let waiting: Vec<u32> = (0..self.nodes.len() as u32)
            .filter(|&n| self.nodes[n as usize].group == Some(group) && self.could_name(n))
            .collect();
        if error.is_empty() {
            for other in waiting {
                self.tell_finish(other, false, false);
            }
        } else if waiting.is_empty() {
            let state = &self.nodes[node as usize];
            let kind = match state.lost.is_some() {
                true => ErrorKind::Lost,
                false => ErrorKind::Node,
            };
            let text = format!("{}: {error}", self.name(node));
            self.fail(kind, text);
        } else {
            self.name_next(group, Some((node, error)));
        }
    }

    /// What the others of a node's destination wrote, for it to see that the files are the same.
    fn samples_for(&self, node: u32) -> Vec<control::Sample> {
        let name = self.destination(node);
        let others = self
            .receivers()
            .filter(|&n| n != node && self.destination(n) == name);
        let done = others.filter_map(|n| self.nodes[n as usize].done.as_deref());
        done.filter(|done| done.error.is_empty())
            .filter_map(|done| done.sample.clone())
            .collect()
    }

    /// Whether all receivers have refused what they were to write, so that nothing has moved and nothing changed.
    fn is_refused(&self) -> bool {
        let refused = |node: &Node| node.done.as_deref().is_some_and(|done| done.refused);
        let mut receivers = self.nodes.iter().filter(|node| node.is_receiver());
        self.receivers().next().is_some() && receivers.all(refused)
    }

    /// Ends the work of all nodes, with no file renamed that is not being renamed. Those that were sent their end before
    /// are waited for.
    ///
    /// * `why`: nodes that join and are not ready are rejected with it.
    pub(super) fn finish_all(&mut self, discard: bool, why: &str) {
        self.phase = Phase::Finishing;
        self.finish_ns = None;
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            if !state.alive() || state.finish_sent {
                continue;
            }
            match state.opened {
                None => self.turn_away(node, why),
                Some(_) => self.tell_finish(node, false, discard),
            }
        }
        self.check_finished();
    }

    pub(super) fn check_finished(&mut self) {
        if self.phase != Phase::Finishing
            || !self.is_true_for_all(|n| n.finished.is_some() || !n.alive())
        {
            return;
        }
        if self.is_cancelled {
            return self.end_cancelled();
        }
        let missing = !self.missing().is_empty();
        let (outcome, error) = match (&self.failure, missing) {
            (Some(failure), _) if self.is_refused() => {
                (Outcome::Refused, Some(failure.text.clone()))
            }
            (Some(failure), _) => (Outcome::Failed, Some(failure.text.clone())),
            (None, true) => {
                let text = self.missing_words();
                self.fail(ErrorKind::Missing, text.clone());
                (Outcome::Partial, Some(text))
            }
            (None, false) => (Outcome::Done, None),
        };
        self.end(outcome, error);
    }
}
