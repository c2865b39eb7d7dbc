//! What the destination's file system cannot hold is left out and named; all else is copied.
//!
//! Names that it does not have and files that are too long for it are known before the first byte (`limits`), and so is what lies below folders
//! that cannot be looked into: nothing of them is sent, and they are among what stays as it is, which nothing is written to. Symbolic links are
//! made on commit, and are refused there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use ropewalk_model::{Layout, RangeSet};
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
        if same.closed.is_empty() {
            return;
        }
        let mut found: BTreeMap<u32, Option<String>> = BTreeMap::new();
        // How many entries of each folder are closed, and why.
        let mut folders: BTreeMap<&[u8], (u64, &str)> = BTreeMap::new();
        for one in &same.closed {
            found.insert(one.object, Some(one.reason.clone()));
            if one.is_folder {
                let parent = parent_of(&self.entries[one.object as usize].path);
                let of_folder = folders.entry(parent.unwrap_or_default());
                of_folder.or_insert((0, &one.reason)).0 += 1;
            }
        }
        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        for entry in self.entries.iter() {
            if let Some(parent) = parent_of(&entry.path).filter(|one| folders.contains_key(one)) {
                *counts.entry(parent).or_default() += 1;
            }
        }
        let number = |path: &[u8]| self.entries.binary_search_by(|one| one.path[..].cmp(path));
        let mut closed: HashSet<&[u8]> = HashSet::new();
        for (path, (count, why)) in &folders {
            // All that belongs into a folder: it is named, and nothing below it.
            if counts.get(path) == Some(count)
                && let Some(folder) = number(path).ok().filter(|_| !path.is_empty())
            {
                closed.insert(path);
                found
                    .entry(folder as u32)
                    .or_insert_with(|| Some((*why).to_owned()));
            }
        }
        for (object, why) in &mut found {
            let parent = parent_of(&self.entries[*object as usize].path);
            if parent.is_some_and(|parent| closed.contains(parent)) {
                *why = None;
            }
        }
        self.leave_out(found);
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
        self.passed
            .retain(|object| !self.refused.early.contains(object));
    }

    /// Whether something below a folder was left out before the first byte.
    pub(super) fn is_refused_below(&self, folder: &Entry) -> bool {
        let below = [&folder.path[..], b"/"].concat();
        let mut early = self.refused.early.iter();
        early.any(|object| self.entries[object as usize].path.starts_with(&below))
    }

    /// Bytes of the data space of files that were left out before the first one.
    pub(super) fn refused_ranges(&self, layout: &Layout) -> RangeSet {
        let pieces = layout.pieces().iter();
        let refused = pieces.filter(|piece| self.refused.early.contains(piece.object));
        RangeSet::from_ranges(refused.map(|piece| piece.range))
    }

    /// Of a shared copy: leaves out the files that its first node cannot hold, and no others that have bytes, which are sent.
    ///
    /// * `refused`: bytes of the data space, of whole files.
    pub(super) fn leave_out_as_first(&mut self, layout: &Layout, refused: &RangeSet) {
        if refused.is_empty() && self.refused.early.is_empty() {
            return;
        }
        let mut told = BTreeMap::new();
        // Folders and files that were left out here, and have bytes that are sent.
        let mut wanted: HashSet<&[u8]> = HashSet::new();
        let mut wanted_files: HashSet<u32> = HashSet::new();
        for piece in layout.pieces() {
            let object = piece.object;
            if refused.contains_range(piece.range) {
                let reason = "the first node that writes this copy cannot hold it";
                told.insert(object, Some(reason.to_owned()));
            } else if self.refused.early.contains(object) {
                wanted_files.insert(object);
                let mut path = Some(&self.entries[object as usize].path[..]);
                while let Some(above) = path.and_then(parent_of) {
                    wanted.insert(above);
                    path = Some(above);
                }
            }
        }
        // What is not possible after all shows at the end.
        let is_wanted = |object: u32| {
            let entry = &self.entries[object as usize];
            let first = self.first_of(object).unwrap_or(object);
            let parent = parent_of(&entry.path).unwrap_or_default();
            wanted_files.contains(&first)
                || wanted.contains(&entry.path[..])
                || !parent.is_empty() && wanted.contains(parent)
        };
        let early = self.refused.early.iter();
        let dropped: Vec<u32> = early.filter(|object| is_wanted(*object)).collect();
        let mut all = lock(&self.refused.all);
        for object in &dropped {
            all.remove(object);
        }
        drop(all);
        for object in dropped {
            self.refused.early.remove(object);
        }
        let is_any = !self.refused.all().is_empty();
        self.refused.is_any.store(is_any, Ordering::Release);
        self.leave_out(told);
    }

    /// # Errors
    /// [`StoreError::CannotHold`] for the first entry that is left out.
    pub(super) fn check_all_held(&self) -> Result<(), StoreError> {
        let all = self.refused.all();
        let mut named = all
            .iter()
            .filter_map(|(object, why)| Some((*object, why.clone()?)));
        match named.next() {
            None => Ok(()),
            Some((object, reason)) => Err(StoreError::CannotHold {
                path: self.final_path(self.entry(object)),
                reason,
            }),
        }
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
