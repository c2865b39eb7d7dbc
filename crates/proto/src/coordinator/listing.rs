//! Receivers list what a copy does, before the plan; a dry run ends with that, and nothing is made, no byte of a file moves.
//!
//! ```text
//!  Look: serve lists of files --> all senders
//!  Look: and list ------------> one receiver after the other; of a shared copy the first that can
//!  End <----- Listing, Present: what it would do, and what is there
//! ```
//!
//! What is listed goes to the user at once: memory does not grow with it.

use super::phase::Phase;
use super::{Coordinator, Destinations, Mapping};
use crate::control::{self, Listing, Present};
use crate::report::{Change, CheckReport, DryRunReport, ErrorKind, Outcome};

use super::Action;

impl Coordinator {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.setup.options.dry_run
    }

    /// Whether receivers list now, or are about to, what the copy does.
    pub(super) fn is_listing(&self) -> bool {
        self.is_dry_run() || self.setup.options.lists && !self.has_listed
    }

    /// Whether all receivers have listed what the copy does, in a transfer that then carries it out.
    #[must_use]
    pub fn has_listed(&self) -> bool {
        self.has_listed
    }

    /// The name of a node.
    #[must_use]
    pub fn node_name(&self, node: u32) -> &str {
        self.name(node)
    }

    /// What a dry run has found; `None` of any other transfer.
    #[must_use]
    pub fn dry_run(&self) -> Option<DryRunReport> {
        let is_shown = self.is_dry_run() && !self.setup.options.compares;
        is_shown.then_some(self.listed)
    }

    /// What a comparison has found; `None` of anything else.
    #[must_use]
    pub fn check_report(&self) -> Option<CheckReport> {
        self.setup.options.compares.then_some(self.differing)
    }

    /// Everything is laid out: receivers list what they would do. Next states: Looking, Ended.
    pub(super) fn list(&mut self) {
        if !self.begin_listing() {
            self.refuse("no receiver is left that could look at its destination".into());
        }
    }

    fn is_shared_copy(&self) -> bool {
        let destinations = Destinations::Shared;
        matches!(self.setup.mapping, Mapping::Trees { destinations: is, .. } if is == destinations)
    }

    /// Some of what the awaited receiver would do.
    pub(super) fn handle_listing(&mut self, node: u32, listing: Listing) {
        let is_awaited = self.looking.awaits(node);
        if self.phase != Phase::Looking || !self.is_listing() || !is_awaited {
            return;
        }
        for entry in &listing.entries {
            let (totals, differing) = (&mut self.listed, &mut self.differing);
            match change(entry.change()) {
                Change::Send => {
                    totals.send_files += 1;
                    totals.send_bytes = totals.send_bytes.saturating_add(entry.length);
                }
                Change::Make => totals.make_folders += 1,
                Change::Remove => {
                    totals.remove_files += 1;
                    totals.remove_bytes = totals.remove_bytes.saturating_add(entry.length);
                }
                Change::RemoveFolder => totals.remove_folders += 1,
                Change::Missing => differing.missing += 1,
                Change::Extra => differing.extra += 1,
                Change::Kind => differing.kind += 1,
                Change::Size => differing.size += 1,
                Change::Contents => differing.contents += 1,
                Change::Metadata if self.setup.options.compares => differing.metadata += 1,
                Change::Metadata => totals.set_metadata += 1,
                Change::Unreadable => differing.unreadable += 1,
            }
        }
        self.out.push(Action::Listed(node, listing.entries));
    }

    /// What a receiver has already, and whether that is all that it says.
    pub(super) fn handle_list_end(&mut self, node: u32, present: &Present) {
        if !present.failed.is_empty() {
            return self.list_on(node, &present.failed);
        }
        // A copy that is carried out counts it then.
        if self.is_dry_run() {
            self.count_listed(node, present);
        }
        if !present.last {
            return;
        }
        if !self.is_shared_copy() && self.ask_next(node) {
            return;
        }
        if !self.is_dry_run() {
            return self.end_list();
        }
        self.looking.end();
        match self.left_out_error() {
            Some(text) => {
                self.fail(ErrorKind::Missing, text.clone());
                self.end(Outcome::Partial, Some(text));
            }
            None => match self.differing.differing() {
                0 => self.end(Outcome::Done, None),
                names => {
                    let names = if names == 1 {
                        "1 name differs".into()
                    } else {
                        format!("{names} names differ")
                    };
                    self.fail(ErrorKind::Differing, names.clone());
                    self.end(Outcome::Partial, Some(names));
                }
            },
        }
    }

    /// The copy is carried out now.
    fn end_list(&mut self) {
        self.looking.end();
        self.has_listed = true;
        self.look();
    }

    fn count_listed(&mut self, node: u32, present: &Present) {
        let there = control::range_set(&present.ranges);
        for receiver in self.receivers().collect::<Vec<_>>() {
            if receiver == node || self.is_shared_copy() {
                self.nodes[receiver as usize].have(&there);
            }
        }
        let state = &mut self.nodes[node as usize];
        state.present_bytes = state.present_bytes.saturating_add(there.len_bytes());
        state.count_present(present);
    }

    /// A receiver cannot look. Others of a shared copy may; a copy that is carried out is so without its list.
    fn list_on(&mut self, node: u32, reason: &str) {
        if !self.is_dry_run() {
            let name = self.name(node).to_owned();
            self.note(format!("{name} cannot list what it does: {reason}"));
            if !self.ask_next(node) {
                self.end_list();
            }
            return;
        }
        if self.is_shared_copy() && self.ask_next(node) {
            self.listed = DryRunReport::default();
            self.differing = CheckReport::default();
            return;
        }
        self.looking.end();
        let text = format!("{}: {reason}", self.name(node));
        self.refuse(text);
    }

    /// A receiver is lost. Whether the others go on.
    pub(super) fn lists_without(&mut self, node: u32) -> bool {
        if !self.is_shared_copy() {
            self.looking.end();
            return false;
        }
        if self.looking.awaits(node) {
            self.list_on(node, "its connection ended");
        }
        true
    }
}

/// As reports have it.
#[must_use]
pub fn change(change: control::Change) -> Change {
    match change {
        control::Change::Send => Change::Send,
        control::Change::Make => Change::Make,
        control::Change::Remove => Change::Remove,
        control::Change::RemoveFolder => Change::RemoveFolder,
        control::Change::Missing => Change::Missing,
        control::Change::Extra => Change::Extra,
        control::Change::Kind => Change::Kind,
        control::Change::Size => Change::Size,
        control::Change::Contents => Change::Contents,
        control::Change::Metadata => Change::Metadata,
        control::Change::Unreadable => Change::Unreadable,
    }
}
