//! How an agent that writes to a disk ends: what is safe is recorded, what is complete gets its name, what is worth it stays.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, RangeSet};
use ropewalk_proto::control::{self, from_agent};
use ropewalk_proto::coordinator::Destinations;
use ropewalk_proto::node::{Close, End, Unfinished};

use super::{Agent, Around, usage};

/// How its part ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub commits: bool,
    pub whole_files: bool,
    pub keeps_more: bool,
    pub end: End,
    /// The master waits for the answer.
    pub answers: bool,
}

/// The last sync is under way.
pub(super) struct Closing {
    pub order: Order,
    pub until: Instant,
    pub writes: u64,
    pub unfinished: Unfinished,
    // Of whole files that are to be named: what is missing.
    pub missing: Option<RangeSet>,
}

impl Agent {
    /// The master is gone: it goes on with what it was granted.
    pub fn handle_master_gone(&mut self, now: Instant) {
        if let Some(receiver) = self.receiver.as_deref_mut() {
            receiver.machine.handle_master_gone(now);
        }
    }

    /// When that is over; `None` where it receives nothing.
    pub fn grace_over_at(&self) -> Option<Instant> {
        self.receiver.as_deref()?.machine.grace_over_at()
    }

    /// The time of grace after the loss of the master is over: what is complete gets its name, what is safe stays.
    pub fn lose_master(&mut self, around: &mut Around<'_>) {
        let order = Order {
            commits: self.names_whole_files,
            whole_files: true,
            keeps_more: true,
            end: End {
                discards: true,
                discards_shared: false,
            },
            answers: false,
        };
        if !self.over {
            self.close(order, around);
        }
    }

    /// Whether it has something to do before its process can end.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// The end begins: what is not safe yet is synced and recorded.
    pub(super) fn close(&mut self, order: Order, around: &mut Around<'_>) {
        self.over = true;
        self.hang_up(around.network);
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return self.close_looked(order, around);
        };
        // The agents end this first, too.
        while receiver.is_preparing() {
            let there = self.there.clone().unwrap_or_default();
            receiver.prepare(&there, around);
        }
        let Some(sink) = receiver.sink.as_mut() else {
            return;
        };
        if order.keeps_more {
            sink.keep_more();
        }
        let is_own = around
            .scenario
            .trees
            .as_ref()
            .is_some_and(|t| t.destinations == Destinations::Copies);
        let mut closing = Closing {
            order,
            until: around.now + around.scenario.sync_time,
            writes: around.disk().begin_sync(),
            unfinished: Unfinished::default(),
            missing: None,
        };
        if order.commits && order.whole_files && is_own {
            (closing.missing, closing.unfinished) = receiver.machine.close_whole_files();
        } else if !order.commits
            && let Close::SetAside(unfinished) = receiver.machine.close(order.end)
        {
            closing.unfinished = unfinished;
        }
        if let Some(sink) = receiver.sink.as_mut() {
            sink.note_ending(around.disk());
        }
        self.closing = Some(closing);
    }

    /// There is no plan: what this node made goes, unless another one may go on with it.
    fn close_looked(&mut self, order: Order, around: &mut Around<'_>) {
        if let Some((mut sink, _)) = self.looked.take() {
            let is_unused = sink.found_there().adopted.is_empty();
            match order.end.discards && order.end.discards_shared && is_unused {
                true => sink.remove(around.disk()),
                false => sink.end(around.disk()),
            }
        }
        self.answer(order, false, around);
    }

    pub(super) fn end_closing(&mut self, around: &mut Around<'_>) {
        let Some(closing) = self.closing.take() else {
            return;
        };
        let (order, disk) = (
            closing.order,
            around.disks.entry(around.disk_of).or_default(),
        );
        let Some(receiver) = self.receiver.as_deref_mut() else {
            return;
        };
        let Some(sink) = receiver.sink.as_mut() else {
            return;
        };
        if let Some(settled) = &closing.unfinished.settled {
            disk.end_sync(self.node, closing.writes);
            sink.record(disk, settled);
            sink.sync_record(disk);
            sink.note_ending(disk);
        }
        sink.give_up(&closing.unfinished.refused);
        let mut is_named = false;
        if order.commits {
            is_named = match (&closing.missing, order.whole_files) {
                (Some(missing), true) => sink.commit_whole_files(disk, missing),
                (None, true) => false,
                (_, false) => {
                    sink.commit(disk, &BTreeSet::new());
                    true
                }
            };
            if is_named {
                receiver.machine.handle_renamed(Ok(()));
            }
        }
        let is_shared = around
            .scenario
            .trees
            .as_ref()
            .is_some_and(|t| t.destinations == Destinations::Shared);
        let is_mine = order.end.discards_shared || !is_shared;
        match receiver.machine.close(order.end) {
            Close::Discard if is_mine => sink.remove(disk),
            Close::SetAside(_) if is_mine => sink.set_aside(disk),
            _ => sink.end(disk),
        }
        self.answer(order, is_named, around);
    }

    fn answer(&mut self, order: Order, is_named: bool, around: &mut Around<'_>) {
        if order.answers {
            let finished = control::Finished {
                committed: is_named,
                usage: Some(usage()),
                ..control::Finished::default()
            };
            self.tell(from_agent::Body::Finished(finished), around);
        }
    }
}
