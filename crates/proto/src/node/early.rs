//! When files of an own copy get their names before the transfer ends, and how long a write waits for the space that this frees.
//!
//! ```text
//!  sync begins --> metadata of whole files --> sync --> record --> names --> the round has ended
//!                                                                             |
//!  a write finds no space: it waits for a round that begins after it --------->+--> it is tried again
//! ```
//!
//! A file gets its name after the sync that makes the last of its bytes safe. Where names are given is the sink's: only in folders that
//! the destination has. No file gets its name early where
//!
//! * several holders have some bytes and these are compared: a difference that is found at the end is one of the copy, of which no file
//!   is to have its name,
//! * the sink is read back at the end,
//! * the copy is to appear at once (`--atomic`), or not at all (`--keep-partial`), or is shared: then another node may name it.

use ropewalk_model::{Instant, Nanos, Range};

use super::fetch::{Compare, Writer, has_several_holders};
use super::{Life, Node};
use crate::control::Plan;

#[cfg(test)]
mod tests;

/// Pause between two syncs that are made for space alone: each names what was received since the last one.
const SPACE_PAUSE: Nanos = Nanos::from_millis(50);

/// Rounds, and writes that wait for them.
#[derive(Debug, Default)]
pub(super) struct Space {
    begun: u64,
    ended: u64,
    ended_at: Option<Instant>,
    // A write waits for the end of this round.
    asked: u64,
    // Files that got their names.
    named: u64,
    waiting: Vec<Writer>,
}

/// What a write that found no space waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    round: u64,
    // Bytes and files that had come, or had their names, when it began to wait.
    progress: u64,
}

impl Space {
    /// When a sync is due for a write that waits.
    pub fn due_at(&self) -> Option<Instant> {
        let is_due = self.asked > self.ended;
        is_due.then(|| self.ended_at.map_or(Instant::ZERO, |at| at + SPACE_PAUSE))
    }

    pub fn begin(&mut self) {
        self.begun = self.ended + 1;
    }

    pub fn end(&mut self, now: Instant) {
        self.ended = self.begun;
        self.ended_at = Some(now);
    }
}

/// Whether a node that has this plan gives files their names before the end, as far as is known then.
///
/// * `reads_back`: the sink is read back at the end.
#[must_use]
pub fn gives_names_early(plan: &Plan, compare: Compare, reads_back: bool) -> bool {
    let has_several = || has_several_holders(&plan.runs, &plan.holdings);
    let is_open = compare != Compare::Nothing && has_several();
    plan.commit && plan.whole_files && !reads_back && !is_open
}

impl Node {
    /// The sink gives no names before the end: the destination is new.
    pub fn keep_names_for_the_end(&mut self) {
        self.duties.names_early = false;
    }

    /// Whether files that lack no byte of what a sync makes safe that begins now get their names after it.
    #[must_use]
    pub fn names_whole_files(&self) -> bool {
        self.life == Life::Fetching
            && self.duties.names_early
            && !self.duties.reads_back
            && self.failure.is_none()
            && !self.is_wrong
            && !self.fetch.compares_holders()
    }

    /// So many files got their names after a sync.
    pub fn handle_named(&mut self, files: u64) {
        self.space.named += files;
    }

    /// A write found no space. What it is to wait for before it is tried again; `None` where waiting is of no use: the disk is full.
    ///
    /// * `range`: what was to be written.
    /// * `before`: what the same write has waited for already.
    pub fn handle_full(
        &mut self,
        writer: Writer,
        range: Range,
        before: Option<Waiting>,
    ) -> Option<Waiting> {
        let round = match (self.fetch.is_delivered(range), self.names_whole_files()) {
            // It need not be written any more: that shows when it is tried again.
            (true, _) => self.space.ended,
            (false, true) => self.space.begun + 1,
            (false, false) => return None,
        };
        if !self.space.waiting.contains(&writer) {
            self.space.waiting.push(writer);
        }
        let progress = self.fetch.ledger().delivered_bytes() + self.space.named;
        let has_gained = before.is_none_or(|before| before.progress != progress);
        // Where another stream has space, what it receives may be the rest of a file.
        if !has_gained && self.lanes.wait_all(&self.space.waiting) {
            self.space.waiting.retain(|waiting| *waiting != writer);
            return None;
        }
        self.space.asked = self.space.asked.max(round);
        Some(Waiting { round, progress })
    }

    /// Whether a write is to be tried again now; it does not wait any more then.
    pub fn is_space_seen(&mut self, writer: Writer, waiting: &Waiting) -> bool {
        let is_over = self.space.ended >= waiting.round || !self.names_whole_files();
        if is_over {
            self.space.waiting.retain(|other| *other != writer);
        }
        is_over
    }
}
