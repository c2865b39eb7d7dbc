//! What the destination's file system cannot hold is left out and named; all else is copied.
//!
//! Names that it does not have and files that are too long for it are known before the first byte (`limits`), and so is what lies below folders
//! that cannot be looked into: nothing of them is sent, and they are among what stays as it is, which nothing is written to. Symbolic links are
//! made on commit, and are refused there.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use ropewalk_model::Layout;
use rustix::io::Errno;

use super::Tree;
use super::limits::{self, Limits};
use super::objects::Objects;
use super::same::Same;
use crate::error::StoreError;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::staging::temporary_name;

/// What is left out, by number, and why.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// What was known at the start.
    early: Objects,
    is_any: AtomicBool,
    /// The reason, unless it is that of its folder.
    all: Mutex<BTreeMap<u32, Option<String>>>,
}

impl Refused {
    /// What is left out so far.
    pub fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Option<String>>> {
        lock(&self.all)
    }

    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    pub fn has(&self, object: u32) -> bool {
        self.is_any() && self.all().contains_key(&object)
    }

    /// What was left out before the first byte.
    pub fn early(&self) -> &Objects {
        &self.early
    }

    /// Whether more than links is left out: what no source has may be that, under its old name.
    pub fn may_be_extra(&self) -> bool {
        !self.early.is_empty()
    }

    fn take(&self, object: u32, reason: Option<String>) {
        self.all().entry(object).or_insert(reason);
        self.is_any.store(true, Ordering::Release);
    }
}

/// Why a link is refused, where other kinds of files are not.
fn reason(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP => {
            Some("the file system there has no symbolic links")
        }
        Errno::NAMETOOLONG => Some("the link, or its name, is too long for the file system there"),
        _ => None,
    }
}

impl Tree {
    /// Leaves out what the file system of the stage cannot hold.
    ///
    /// # Errors
    /// [`StoreError::BadId`].
    pub(super) fn leave_out_impossible(&mut self) -> Result<(), StoreError> {
        // Of a copy of one thing nothing would be left.
        if self.is_single() {
            return Ok(());
        }
        let once = format!("-{:016x}", RandomState::new().hash_one(()));
        let begin = [temporary_name(b"names", &self.id)?, once.into_bytes()].concat();
        let limits = Limits::of(&self.stage_parent, &self.entries, &begin);
        if !limits.is_none() {
            let found = self.find_impossible(&limits);
            self.leave_out(found);
        }
        Ok(())
    }

    /// Leaves out what is below folders of DEST that cannot be looked into: it could not be put there.
    pub(super) fn leave_out_closed(&mut self, same: &Same) {
        let closed = same.closed.iter();
        self.leave_out(
            closed
                .map(|(object, why)| (*object, Some(why.clone())))
                .collect(),
        );
    }

    /// Leaves entries out before the first byte, with the further names of files among them.
    fn leave_out(&mut self, mut found: BTreeMap<u32, Option<String>>) {
        let further: Vec<(u32, String)> = self
            .names
            .iter()
            .filter(|(first, _)| found.contains_key(first))
            .flat_map(|(first, names)| names.iter().map(|name| (*name, self.first_lacks(*first))))
            .collect();
        for (name, reason) in further {
            found.entry(name).or_insert(Some(reason));
        }
        for (object, reason) in found {
            self.refused.early.insert(object);
            self.refused.take(object, reason);
        }
    }

    /// The entries that are not possible, with the reason unless it is that of their folder.
    fn find_impossible(&self, limits: &Limits) -> BTreeMap<u32, Option<String>> {
        let mut found = BTreeMap::new();
        let mut folders: HashSet<&[u8]> = HashSet::new();
        let alike = match limits.ignores_case {
            true => limits::alike(&self.entries),
            false => Vec::new(),
        };
        let mut alike = alike.into_iter().peekable();
        for (object, entry) in (0..).zip(self.entries.iter()) {
            let twin = alike.next_if(|(one, _)| *one == object);
            let Some(parent) = parent_of(&entry.path) else {
                continue;
            };
            let reason = match folders.contains(parent) {
                true => None,
                false => {
                    let twin = || twin.map(|(_, first)| same_name(&self.entries[first as usize]));
                    match limits.refuse(entry).or_else(twin) {
                        Some(reason) => Some(reason),
                        None => continue,
                    }
                }
            };
            found.insert(object, reason);
            if entry.kind == EntryKind::Directory {
                folders.insert(&entry.path);
            }
        }
        found
    }

    fn first_lacks(&self, first: u32) -> String {
        let first = limits::shown(&self.entries[first as usize]);
        format!("it is a further name of {first}, which is left out")
    }

    /// Adds what was left out before the first byte to what stays as it is: nothing of it is written, or looked for.
    pub(super) fn keep_refused(&mut self) {
        self.unchanged.extend(self.refused.early.iter());
    }

    /// Whether something below a folder was left out before the first byte.
    pub(super) fn is_refused_below(&self, folder: &Entry) -> bool {
        let below = [&folder.path[..], b"/"].concat();
        let mut early = self.refused.early.iter();
        early.any(|object| self.entries[object as usize].path.starts_with(&below))
    }

    /// Bytes of files that were left out before the first one.
    pub(super) fn refused_bytes(&self, layout: &Layout) -> u64 {
        let pieces = layout.pieces().iter();
        let refused = pieces.filter(|piece| self.refused.early.contains(piece.object));
        refused.map(|piece| piece.range.len()).sum()
    }

    /// Leaves a symbolic link out, where the file system refuses it for what it is.
    pub(super) fn refuse_link(&self, object: u32, errno: Errno) -> bool {
        let reason = reason(errno).filter(|_| self.root.is_some());
        if let Some(reason) = reason {
            self.refused.take(object, Some(reason.into()));
        }
        reason.is_some()
    }

    /// Leaves a further name of such a link out, too.
    pub(super) fn refuse_name(&self, object: u32, first: u32) {
        let reason = self.refused.all().get(&first).cloned();
        self.refused.take(object, reason.unwrap_or_default());
    }
}

fn same_name(first: &Entry) -> String {
    let first = limits::shown(first);
    format!("the file system there takes its name for that of {first}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full or fails is not the link's fault.
    #[test]
    fn only_what_a_link_is_counts() {
        assert!(reason(Errno::PERM).is_some() && reason(Errno::NAMETOOLONG).is_some());
        for errno in [Errno::NOSPC, Errno::IO, Errno::ROFS, Errno::ACCESS] {
            assert_eq!(reason(errno), None);
        }
    }
}
