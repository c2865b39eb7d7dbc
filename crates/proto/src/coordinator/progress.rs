//! What nodes report while bytes move: how far they are, and how their part ended.

use std::collections::BTreeMap;

use ropewalk_model::{Instant, Nanos};

use super::arrivals::WINDOW_TIME;
use super::life::{Event, NodeLife};
use super::phase::Phase;
use super::{Action, Coordinator, Node};
use crate::control::{AwaitedEnd, Comparing, Done, Finished, Removing, SenderStatus, Status};
use crate::report::ErrorKind;

/// Temporary names of a node that are remembered.
const TEMPORARY_MAX: usize = 8;

/// A receiver that is done is given work of others after this time at most.
const IDLE_LOOK_TIME: Nanos = Nanos(50_000_000);

/// Bytes of each sender; there may be several lanes to one, over rails or with parts of their own.
fn by_sender(lanes: impl Iterator<Item = (u32, u64)>) -> BTreeMap<u32, u64> {
    let mut all: BTreeMap<u32, u64> = BTreeMap::new();
    for (sender, bytes) in lanes {
        let sum = all.entry(sender).or_default();
        *sum = sum.saturating_add(bytes);
    }
    all
}

/// How long a node has waited for the end of another transfer when a note says so.
const AWAITED_END_NOTED: Nanos = Nanos::from_secs(2);

/// What keeps a node busy that moves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Busy {
    /// It reads the trees that are its sources.
    Scanning {
        /// Names that it has looked at so far.
        entries: u64,
    },
    /// It waits for an earlier transfer to a destination to end.
    AwaitingEnd {
        /// The destination.
        path: String,
        /// So far.
        waited: Nanos,
    },
    /// It removes what no source has.
    Removing {
        /// Names that are gone.
        done: u64,
        /// All of them.
        total: u64,
    },
}

impl Busy {
    fn of(awaited: Option<&AwaitedEnd>, removing: Option<&Removing>) -> Option<Self> {
        let awaited = awaited.map(|awaited| Self::AwaitingEnd {
            path: awaited.path.clone(),
            waited: Nanos(awaited.waited),
        });
        let removing = removing.map(|removing| Self::Removing {
            done: removing.done,
            total: removing.total,
        });
        awaited.or(removing)
    }
}

impl Coordinator {
    pub(super) fn handle_status(&mut self, node: u32, status: &Status, now: Instant) {
        let state = &mut self.nodes[node as usize];
        state.delivered = status.delivered;
        state.checked = status.checked;
        if state.temporary.is_empty() {
            state
                .temporary
                .extend(status.temporary.iter().take(TEMPORARY_MAX).cloned());
        }
        state.seen_at = now;
        state.received.note(status.checked, now);
        let sent = by_sender(status.pairs.iter().map(|p| (p.sender, p.delivered)));
        let before = std::mem::replace(&mut state.sent_by_pair, sent.clone());
        // On a lossy trunk a sender's own status may be late: its received bytes count as a sign of life.
        for (sender, bytes) in sent {
            let more = bytes.saturating_sub(before.get(&sender).copied().unwrap_or(0));
            if let Some(sender) = self.nodes.get_mut(sender as usize) {
                if more > 0 {
                    sender.heard_at = now;
                }
                sender.sent_bytes = sender.sent_bytes.saturating_add(more);
                sender.sent.note(sender.sent_bytes, now);
            }
        }
        self.out.push(Action::Progress);
        if !status.hung.is_empty() {
            // The same each second, for as long as it lasts.
            let text = format!("{}: {}", self.name(node), status.hung);
            self.note_once(text);
        }
        if let Some(comparing) = &status.comparing {
            self.handle_comparing(node, comparing, now);
        }
        let busy = Busy::of(status.awaited_end.as_ref(), status.removing.as_ref());
        let state = &mut self.nodes[node as usize];
        let removed = status.removing.as_ref().map_or(0, |removing| removing.done);
        let waits_on = match (&state.busy, &busy) {
            (
                Some(Busy::AwaitingEnd { waited: before, .. }),
                Some(Busy::AwaitingEnd { waited, .. }),
            ) => waited > before,
            _ => false,
        };
        if removed > state.removed_most || waits_on {
            // As long as it gets on it is not late; a count that goes up and down is no progress.
            state.removed_most = state.removed_most.max(removed);
            self.ending.since = None;
        }
        state.busy = busy;
        self.note_awaited_end(node);
        self.observe_streams(node, status.tcp.as_ref());
        if self.phase == Phase::Moving {
            self.observe(node, status, now);
            self.observe_waits(node, status, now);
        }
    }

    /// What a node says of itself that only sends, or looks what is there.
    pub(super) fn handle_sender_status(&mut self, node: u32, status: &SenderStatus, now: Instant) {
        if let Some(comparing) = &status.comparing {
            self.handle_comparing(node, comparing, now);
        }
        let scanning = status.scanning.map(|scanning| scanning.entries);
        let scanning = scanning.map(|entries| Busy::Scanning { entries });
        let busy = Busy::of(status.awaited_end.as_ref(), None).or(scanning);
        if busy.is_some() {
            self.looking.handle_busy(node, now);
            self.out.push(Action::Progress);
        }
        let state = &mut self.nodes[node as usize];
        if let Some(Busy::Scanning { entries }) = busy
            && entries > state.scanned
        {
            (state.scanned, state.scanned_at) = (entries, now);
        }
        state.busy = busy;
        self.note_awaited_end(node);
        self.observe_streams(node, status.tcp.as_ref());
        let (sending, tcp) = (status.sending.as_ref(), status.tcp.as_ref());
        self.observe_sending(node, sending, tcp, &status.rails);
    }

    /// Says what a node waits for once that takes longer than a transfer's end mostly does.
    fn note_awaited_end(&mut self, node: u32) {
        if let Some(Busy::AwaitingEnd { path, waited }) = &self.nodes[node as usize].busy
            && *waited >= AWAITED_END_NOTED
        {
            let name = self.name(node);
            let text = format!("{name}: waits for an earlier transfer to {path} to end");
            self.note_once(text);
        }
    }

    /// The first node that is busy with something else while nothing moves, and with what.
    pub fn busy(&self) -> Option<(u32, &Busy)> {
        let is_moving = |node: &Node| node.received.rate(WINDOW_TIME, false, self.clock.now) > 0.0;
        if self.received_bytes() < self.wanted_bytes() && self.nodes.iter().any(is_moving) {
            return None;
        }
        let nodes = (0..).zip(&self.nodes).filter(|(_, node)| node.alive());
        let mut busy = nodes.filter_map(|(number, node)| Some((number, node.busy.as_ref()?)));
        busy.next()
    }

    /// A node compares contents, before its first request.
    pub(super) fn handle_comparing(&mut self, node: u32, comparing: &Comparing, now: Instant) {
        self.looking.handle_comparing(node, comparing, now);
        if !comparing.hung.is_empty() {
            let text = format!("{}: {}", self.name(node), comparing.hung);
            self.note_once(text);
        }
        let (done, total) = (comparing.done, comparing.total);
        self.out.push(Action::Comparing(node, done, total));
    }

    pub(super) fn handle_done(&mut self, node: u32, done: Done, now: Instant) {
        let state = &mut self.nodes[node as usize];
        // It crossed a revision on the way: the node goes on and will report again.
        let is_old = done.error.is_empty() && done.revision < state.revision;
        if is_old || !state.live(Event::Done) {
            return;
        }
        self.clock.note_done(node, Nanos(done.syncing), now);
        let moving_for = now.since(self.clock.moving_at.unwrap_or(now));
        state.busy = None;
        state.delivered = done.delivered;
        state.checked = done.delivered;
        state.seen_at = now;
        state.received.note(done.delivered, now);
        state.sent_by_pair = by_sender(done.pairs.iter().map(|p| (p.sender, p.delivered)));
        let is_shared = state.group.is_some();
        self.balancer.finished(node, done.delivered, moving_for);
        let name = self.name(node).to_owned();
        for text in &done.notes {
            self.note(format!("{name}: {text}"));
        }
        let error = done.error.clone();
        let differs = done.differs;
        self.nodes[node as usize].done = Some(Box::new(done));
        if differs {
            return self.end_differing(&error);
        }
        if !error.is_empty() {
            self.note(format!("{name} stopped: {error}"));
            if !self.hand_over(node) {
                self.fail(ErrorKind::Node, format!("{name}: {error}"));
            }
        }
        self.out.push(Action::Progress);
        self.let_go(node);
        // An idle receiver does not wait for its turn.
        if is_shared {
            self.balancer.look_by(now + IDLE_LOOK_TIME);
        }
        self.check_done();
    }

    /// A report that crossed the transfer's end on its way: a copy of its own may be complete, and have its name, all the same.
    pub(super) fn handle_late_done(&mut self, node: u32, done: Done) {
        let state = &mut self.nodes[node as usize];
        let is_closing = matches!(state.life(), NodeLife::Closing(_));
        let is_whole = done.error.is_empty() && done.missing.is_empty();
        let is_old = done.revision < state.revision;
        if !is_closing || state.group.is_some() || !is_whole || is_old {
            return;
        }
        state.delivered = done.delivered;
        state.checked = done.delivered;
        state.sent_by_pair = by_sender(done.pairs.iter().map(|p| (p.sender, p.delivered)));
        let name = self.name(node).to_owned();
        for text in &done.notes {
            self.note(format!("{name}: {text}"));
        }
        self.nodes[node as usize].done = Some(Box::new(done));
    }

    /// A node's final report.
    pub(super) fn handle_finished(&mut self, node: u32, finished: Finished) {
        let state = &mut self.nodes[node as usize];
        if !state.live(Event::Finished) {
            return;
        }
        let commits = state.life().commits();
        let is_own = state.group.is_none();
        let lacks = is_own && !state.is_complete();
        let error = match finished.error.is_empty() {
            // Where bytes are missing there may be no file that lacks none.
            true if commits && !finished.committed && !lacks => {
                "it did not rename the files into place; run the command again"
            }
            _ => finished.error.as_str(),
        };
        let error = error.to_owned();
        // It has synced more since its last report; what it says is no more than it was to get.
        let safe = finished.safe.min(state.assigned_bytes());
        state.delivered = state.delivered.max(safe);
        self.nodes[node as usize].finished = Some(Box::new(finished));
        if commits && !is_own {
            self.handle_named(node, &error);
        } else if !error.is_empty() {
            let text = format!("{}: {error}", self.name(node));
            self.fail(ErrorKind::Node, text);
        }
        // Of a large cluster the reports come one after the other.
        self.ending.farewell_since = None;
        self.check_finished();
    }
}
