//! Nodes without which a transfer ended before it was complete: when they are back, another round of it goes on. And what holders
//! refused that are there: another round reads their sources again.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::RangeSet;

use super::Coordinator;
use super::node::Node;
use crate::control::{Opened, Place};
use crate::report::ErrorKind;

/// A node that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its name.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// A receiver whose copy is complete: its own, or one that it shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// Its name.
    pub node: String,
    /// Bytes that were received or found there.
    pub bytes: u64,
    /// It was lost after that.
    pub is_lost: bool,
}

/// What is known of nodes, by their names, where a round goes on with what an earlier one began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// Of each of its sources, how many files it had.
    pub files: BTreeMap<String, Vec<u64>>,
    /// Where its final paths were to be.
    pub places: BTreeMap<String, Vec<Place>>,
    /// Those that were waited for.
    pub returned: BTreeSet<String>,
}

impl Earlier {
    /// Adds what a further round knew: the most files that sources had, and the newest places.
    pub fn add(&mut self, round: Self) {
        for (name, files) in round.files {
            let known = self.files.entry(name).or_default();
            known.resize(known.len().max(files.len()), 0);
            for (known, files) in known.iter_mut().zip(files) {
                *known = files.max(*known);
            }
        }
        self.places.extend(round.places);
        self.returned.extend(round.returned);
    }
}

/// Whether a final path is now below another folder. One that was made since is not.
fn is_elsewhere(was: &Place, now: &Place) -> bool {
    match was.rest == now.rest {
        true => was.keeps && was.folder != now.folder,
        false => now.rest.ends_with(&was.rest),
    }
}

impl Coordinator {
    /// Whether what a receiver writes, by itself or with others, is complete.
    pub(super) fn has_whole_copy(&self, node: &Node) -> bool {
        match node.group {
            Some(group) => self.is_named(group),
            None => node.is_complete(),
        }
    }

    /// This round goes on with what an earlier one began; before [`Coordinator::start`].
    pub fn go_on(&mut self, earlier: Earlier) {
        self.earlier = earlier;
    }

    /// What the nodes of this round have, for the next one.
    #[must_use]
    pub fn for_next(&self) -> Earlier {
        let mut next = Earlier::default();
        for node in &self.nodes {
            let Some(opened) = &node.opened else { continue };
            let name = &node.setup.name;
            let files = opened.sources.iter().map(|source| source.file_count);
            next.files.insert(name.clone(), files.collect());
            next.places.insert(name.clone(), opened.places.clone());
        }
        next
    }

    /// Whether a node was waited for.
    pub(super) fn has_returned(&self, node: u32) -> bool {
        self.earlier.returned.contains(self.name(node))
    }

    /// Why a node that has opened what it has is not what it was in an earlier round: so looks one whose file systems are not
    /// mounted yet.
    pub(super) fn is_not_ready(&self, node: u32, opened: &Opened) -> Option<String> {
        let name = self.name(node);
        let before = self.earlier.files.get(name).into_iter().flatten();
        // Some files go while a host starts again.
        let least = match self.has_returned(node) {
            true => |before: u64| before.div_ceil(2),
            false => |before: u64| before.min(1),
        };
        let mut sources = before.zip(&opened.sources);
        if let Some((before, now)) = sources.find(|(before, now)| now.file_count < least(**before))
        {
            return Some(format!(
                "its source has {} files, and had {before} before; is its file system mounted?",
                now.file_count
            ));
        }
        let before = self.earlier.places.get(name)?;
        let is_moved = |now: &Place| {
            let mut known = before.iter();
            let was = known.find(|was| (was.sink, was.row) == (now.sink, now.row));
            was.is_some_and(|was| is_elsewhere(was, now))
        };
        let is_moved = self.has_returned(node) && opened.places.iter().any(is_moved);
        is_moved.then(|| {
            "its destination is in another folder than before; is its file system mounted?".into()
        })
    }

    /// Whether a source of a node that was waited for has fewer files than in an earlier round: a file system below it may not be mounted. Files of
    /// others go while they are copied.
    pub(super) fn has_shrunk(&self) -> bool {
        let nodes = (0..).zip(&self.nodes);
        let mut returned = nodes.filter(|(number, _)| self.has_returned(*number));
        returned.any(|(_, node)| {
            let before = self.earlier.files.get(&node.setup.name);
            let now = node.opened.iter().flat_map(|opened| &opened.sources);
            let mut sources = before.into_iter().flatten().zip(now);
            sources.any(|(before, now)| now.file_count < *before)
        })
    }

    /// Once the transfer has ended: the nodes that are gone and were needed.
    ///
    /// None where it is complete, was stopped or failed for another reason, and where a node that was needed was cancelled at its
    /// agent: its user does not want it to go on.
    #[must_use]
    pub fn gone(&self) -> Vec<Gone> {
        let missing = RangeSet::from_ranges(self.missing().values().flat_map(RangeSet::iter));
        // Replicas that are there need no other one, unless they have refused what is missing.
        let there = self.nodes.iter().filter(|node| node.alive());
        let held = RangeSet::from_ranges(there.flat_map(|node| node.holds.iter()));
        let unheld = missing.difference(&held);
        let kind = self.failure_kind();
        let is_needed = |node: &Node| match kind {
            // Refused: every node was needed.
            None => self.moving_at().is_none(),
            // A copy that is complete needs no further round.
            Some(ErrorKind::Lost) if node.is_receiver() && !self.has_whole_copy(node) => true,
            Some(ErrorKind::Lost) => !node.holds.intersection(&unheld).is_empty(),
            Some(ErrorKind::Missing) => !node.holds.intersection(&missing).is_empty(),
            Some(_) => false,
        };
        let takes_part = |node: &&Node| node.is_sender() || node.is_receiver();
        let nodes = self.nodes.iter().filter(takes_part);
        let lost = nodes.filter_map(|node| Some((node, node.lost.as_ref()?)));
        let needed: Vec<_> = lost.filter(|&(node, _)| is_needed(node)).collect();
        if self.ending.is_cancelled || needed.iter().any(|(node, _)| node.is_cancelled) {
            return Vec::new();
        }
        let gone = |(node, reason): (&Node, &String)| Gone {
            node: node.setup.name.clone(),
            reason: reason.clone(),
        };
        needed.into_iter().map(gone).collect()
    }

    /// Once the transfer has ended: whether something is missing that holders refused, since their sources changed or could not be read,
    /// and every node is there for another round, which looks at the sources again. What was left out at the start is not missing.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        let takes_part = |node: &&Node| node.is_sender() || node.is_receiver();
        let mut nodes = self.nodes.iter().filter(takes_part);
        if nodes.any(|node| node.lost.is_some()) {
            return false;
        }
        let missing = self.missing();
        (0..).zip(&self.nodes).any(|(number, node)| {
            let name = self.destination(number).unwrap_or(&node.setup.name);
            let refused = |missing: &RangeSet| {
                let mut refusals = node.refusals.iter();
                refusals.any(|(ranges, _)| !ranges.intersection(missing).is_empty())
            };
            missing.get(name).is_some_and(refused)
        })
    }

    /// Once the transfer has ended: receivers whose copies are complete, their own ones or those that they share.
    #[must_use]
    pub fn complete(&self) -> Vec<Complete> {
        let receivers = self.nodes.iter().filter(|node| node.is_receiver());
        let complete = receivers.filter(|node| self.has_whole_copy(node));
        let bytes = |node: &Node| {
            let received = node.done.as_ref().map_or(0, |done| done.delivered);
            let parts = [received, node.present_bytes, node.adopted_bytes];
            parts.into_iter().fold(0, u64::saturating_add)
        };
        complete
            .map(|node| Complete {
                node: node.setup.name.clone(),
                bytes: bytes(node),
                is_lost: node.lost.is_some(),
            })
            .collect()
    }
}
