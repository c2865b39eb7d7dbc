//! When a transfer is over, which node gives files their names, and which one removes what is of no use.
//!
//! ```text
//!  a copy of one node   complete: it has renamed it itself
//!                       else: it renames the files that lack no byte, and removes what it wrote of the others
//!  a shared copy        complete: one node renames it, the others wait for that; when it dies, or cannot, the next one does;
//!                       of rows another one renames the files that the first does not write
//!                       else: all remove what they wrote, since no node knows which files are complete
//! ```
//!
//! With [`Incomplete::Removed`] no file of an incomplete copy is renamed, with [`Incomplete::Kept`] none is removed either;
//! the nodes report where they lie.

use std::collections::BTreeSet;

use ropewalk_model::Instant;

use super::life::{Event, NodeLife, Order};
use super::outcome::Failure;
use super::phase::{Phase, Step};
use super::shared_rows::files_of;
use super::{Coordinator, Incomplete, Node};
use crate::control::{self, to_agent};
use crate::report::{ErrorKind, Outcome};

/// How a transfer comes to its end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Since when files are renamed or removed; `None` before the next look.
    pub since: Option<Instant>,
    /// Since when only reports are awaited.
    pub farewell_since: Option<Instant>,
    pub is_cancelled: bool,
    /// Of one that is cancelled: it will be asked for again.
    pub is_put_off: bool,
    pub failure: Option<Failure>,
    /// Of a transfer that a node refused: what kind of error that was.
    pub refusal: Option<ErrorKind>,
}

impl Coordinator {
    pub(super) fn check_done(&mut self) {
        if self.phase != Phase::Moving || self.balancer.is_in_round() {
            return;
        }
        // One that is only about to join is not waited for.
        let has_ended = |node: &Node| match node.life() {
            NodeLife::Ready | NodeLife::Working(_) => !node.is_receiver(),
            NodeLife::Done(duty) => !duty.recalled || !node.is_receiver(),
            _ => true,
        };
        if self.is_true_for_all(has_ended) && !self.out.has_plan() {
            self.finish();
        }
    }

    pub(super) fn finish(&mut self) {
        let late = (0..)
            .zip(&self.nodes)
            .filter(|(_, n)| n.life().is_opening());
        let late: Vec<u32> = late.map(|(node, _)| node).collect();
        for node in late {
            self.reject(node, "the transfer ended before it was ready");
        }
        self.enter(Step::Finish);
        let names = self.groups.names();
        let whole: Vec<bool> = names.map(|name| self.destination_complete(name)).collect();
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            if !state.life().takes_part() {
                continue;
            }
            let useless = match state.group {
                // Those that could name it wait until one has.
                Some(group) if whole[group as usize] && self.could_name(node) => continue,
                Some(group) => !whole[group as usize],
                None => state.is_receiver() && !state.is_complete(),
            };
            match useless {
                true => self.end_incomplete(node, self.setup.incomplete),
                false => self.tell_finish(node, false),
            }
        }
        for (group, whole) in whole.into_iter().enumerate() {
            if whole {
                self.name_next(group as u32, None);
            }
        }
        self.ending.since = None;
        self.check_finished();
    }

    /// Whether a node of a shared destination is there to give it its name, and has not been asked.
    fn could_name(&self, node: u32) -> bool {
        let state = &self.nodes[node as usize];
        state.is_able() && state.done.is_some()
    }

    /// Whether all of a shared destination has its name.
    pub(super) fn is_named(&self, group: u32) -> bool {
        self.is_begun(group) && self.unnamed(group).is_empty()
    }

    /// Whether a node has given a shared destination its name; of rows, the files that it writes.
    fn is_begun(&self, group: u32) -> bool {
        let mut members = self.nodes.iter().filter(|n| n.group == Some(group));
        members.any(Node::has_named)
    }

    /// Files of rows of a shared destination that no node has given their names.
    fn unnamed(&self, group: u32) -> BTreeSet<&[u8]> {
        let members = || self.nodes.iter().filter(|n| n.group == Some(group));
        let named: BTreeSet<&[u8]> = members()
            .filter(|node| node.has_named())
            .flat_map(files_of)
            .collect();
        let all = members().flat_map(files_of);
        all.filter(|file| !named.contains(file)).collect()
    }

    /// The nodes of a shared destination that wait for others to give it its name.
    fn waiting(&self, group: u32) -> Vec<u32> {
        let all = 0..self.nodes.len() as u32;
        let is_of = |node: u32| self.nodes[node as usize].group == Some(group);
        all.filter(|&node| is_of(node) && self.could_name(node))
            .collect()
    }

    /// Has the next node of a shared destination give it its name, when all of it is safe.
    ///
    /// * `before`: who was asked before, and why it did not.
    fn name_next(&mut self, group: u32, before: Option<(u32, &str)>) {
        let mut able = self.waiting(group);
        let is_begun = self.is_begun(group);
        if is_begun {
            let unnamed = self.unnamed(group);
            able.retain(|node| files_of(&self.nodes[*node as usize]).any(|f| unnamed.contains(f)));
        }
        // The node that has decided what is there knows best whether that has changed.
        let decided = self.looking.decided_by(self.groups.name(group));
        let decided = decided.filter(|by| able.contains(by));
        let Some(node) = decided.or(able.first().copied()) else {
            for other in self.waiting(group) {
                self.tell_finish(other, self.setup.incomplete != Incomplete::Kept);
            }
            let name = self.groups.name(group).to_owned();
            return self.fail(
                ErrorKind::Lost,
                format!("every byte of destination {name} is safe, but no node is left to give it its name; run the command again"),
            );
        };
        if let Some((before, reason)) = before {
            let (next, before) = (self.name(node).to_owned(), self.name(before).to_owned());
            self.note(format!(
                "{before} did not rename the files into place ({reason}); {next} renames them"
            ));
        }
        self.ending.since = None;
        let is_last = able.len() == 1;
        let order = Order {
            commit: true,
            discard: is_last && self.setup.incomplete != Incomplete::Kept,
        };
        let finish = control::Finish {
            samples: self.samples_for(node),
            again: before.is_some() || is_begun,
            ..control::Finish::default()
        };
        self.close(node, order, finish);
    }

    /// Sends a node its end where bytes are missing, or may be: a receiver of an own copy knows which of its files lack none.
    fn end_incomplete(&mut self, node: u32, incomplete: Incomplete) {
        let state = &self.nodes[node as usize];
        let is_own = state.is_receiver() && state.group.is_none();
        if incomplete != Incomplete::WholeFiles || !is_own {
            return self.tell_finish(node, incomplete != Incomplete::Kept);
        }
        let order = Order {
            commit: true,
            discard: true,
        };
        let finish = control::Finish {
            whole_files: true,
            ..control::Finish::default()
        };
        self.close(node, order, finish);
    }

    /// Sends a node its end, without a rename.
    pub(super) fn tell_finish(&mut self, node: u32, discard: bool) {
        let order = Order {
            commit: false,
            discard,
        };
        self.close(node, order, control::Finish::default());
    }

    fn close(&mut self, node: u32, order: Order, finish: control::Finish) {
        if self.nodes[node as usize].live(Event::Finish(order)) {
            let finish = control::Finish {
                commit: order.commit,
                discard: order.discard,
                interrupted: self.ending.is_cancelled && !self.ending.is_put_off,
                ..finish
            };
            self.send(node, to_agent::Body::Finish(finish));
        }
    }

    /// A node that was to name a shared destination has answered, or is gone.
    ///
    /// * `error`: why it did not; empty when it did.
    pub(super) fn handle_named(&mut self, node: u32, error: &str) {
        let Some(group) = self.nodes[node as usize].group else {
            return;
        };
        let waiting = self.waiting(group);
        if error.is_empty() && !self.is_named(group) {
            self.name_next(group, None);
        } else if error.is_empty() {
            for other in waiting {
                self.tell_finish(other, false);
            }
        } else if waiting.is_empty() {
            let state = &self.nodes[node as usize];
            let kind = match state.alive() {
                true => ErrorKind::Node,
                false => ErrorKind::Lost,
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
    pub(super) fn finish_all(&mut self, incomplete: Incomplete, why: &str) {
        self.enter(Step::Finish);
        self.ending.since = None;
        for node in 0..self.nodes.len() as u32 {
            let life = self.nodes[node as usize].life();
            if life.is_opening() {
                self.reject(node, why);
            } else if life.takes_part() {
                self.end_incomplete(node, incomplete);
            }
        }
        self.check_finished();
    }

    /// Whether all copies are whole and have their names, and nothing failed: the user's word came too late to stop anything.
    fn is_complete(&self) -> bool {
        let mut receivers = self.nodes.iter().filter(|node| node.is_receiver());
        let has_failed = self.ending.failure.is_some();
        let is_any = self.receivers().next().is_some();
        !has_failed && is_any && receivers.all(|node| self.has_whole_copy(node))
    }

    pub(super) fn check_finished(&mut self) {
        if self.phase != Phase::Finishing
            || !self.is_true_for_all(|n| matches!(n.life(), NodeLife::Closed(_) | NodeLife::Lost))
        {
            return;
        }
        if self.ending.is_cancelled && !self.is_complete() {
            return self.end_cancelled();
        }
        self.note_not_listed();
        self.note_not_placed();
        self.note_grown();
        self.observe_last_waits();
        if let Some(ended_at) = self.clock.last_done_at {
            self.note_second(ended_at, true);
        }
        let missing = !self.missing().is_empty();
        let (outcome, error) = match (&self.ending.failure, missing) {
            (Some(failure), _) if self.is_refused() => {
                (Outcome::Refused, Some(failure.text.clone()))
            }
            (Some(failure), _) => (Outcome::Failed, Some(failure.text.clone())),
            (None, true) => {
                let text = self.missing_words();
                self.fail(ErrorKind::Missing, text.clone());
                (Outcome::Partial, Some(text))
            }
            (None, false) => {
                let left_out = self.left_out_error().map(|text| (ErrorKind::Missing, text));
                let not_removed = || Some((ErrorKind::Node, self.not_removed_error()?));
                let not_listed = || Some((ErrorKind::Node, self.not_listed_error()?));
                let unseen = || Some((ErrorKind::Unreachable, self.unseen_error()?));
                let not_placed = || Some((ErrorKind::Node, self.not_placed_error()?));
                let rest = || not_placed().or_else(not_removed).or_else(not_listed);
                // What may be there another time goes first.
                match unseen().or(left_out).or_else(rest) {
                    Some((kind, text)) => {
                        self.fail(kind, text.clone());
                        (Outcome::Partial, Some(text))
                    }
                    None => (Outcome::Done, None),
                }
            }
        };
        self.end(outcome, error);
    }
}
