//! What DEST has already: nothing of it is written, and a commit leaves it where it is.
//!
//! A file is the same when its size and its modification time are the source's, which is rsync's rule; its contents are not
//! read. A file that was last changed when it was last written was written there, and is not taken for a copy: the kernel's
//! clock of files is so coarse that two files of one size often have the same time. A link is the same when its target is.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use ropewalk_model::{Layout, RangeSet};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::commit::is_name_of_file;
use super::standing::mode_of;
use super::{Tree, replaceable};
use crate::error::{Operation, StoreError};
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, Kept, parent_of};
use crate::sys;

/// Entries that stand in DEST as they are in the source, by number, with their modes there: folders, whatever is in them, and
/// files and links that are the same.
pub(super) type Same = HashMap<u32, u32>;

impl Tree {
    /// Looks at everything in DEST that has the name of an entry. Cost: one system call an entry.
    ///
    /// # Errors
    /// [`StoreError::Exists`] for the first that the entry cannot be merged over.
    pub(super) fn survey(&self) -> Result<Same, StoreError> {
        let mut same = Same::new();
        if Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?.is_none() {
            if let Some(root) = self.entries.first().filter(|_| self.is_single())
                && let Ok(stat) = sys::stat_entry(self.parent.as_fd(), &self.name)
                && is_same(&stat, root, self.parent.as_fd(), &self.name)
            {
                same.insert(0, stat.st_mode & 0o7777);
            }
            return Ok(same);
        }
        let dest = self.open_dest()?;
        let mut folders = Folders::new(dest.as_fd());
        let mut absent: HashSet<&[u8]> = HashSet::new();
        for (object, entry) in (0..).zip(&self.entries) {
            let Some(parent) = parent_of(&entry.path) else {
                continue;
            };
            if absent.contains(parent) {
                if entry.kind == EntryKind::Directory {
                    absent.insert(&entry.path);
                }
                continue;
            }
            let failed =
                |errno| StoreError::from_errno(Operation::Inspect, self.final_path(entry), errno);
            let (folder, name) = folders.parent(&entry.path).map_err(failed)?;
            let stat = match sys::stat_entry(folder, name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => {
                    if entry.kind == EntryKind::Directory {
                        absent.insert(&entry.path);
                    }
                    continue;
                }
                Err(errno) => return Err(failed(errno)),
            };
            let found = FileType::from_raw_mode(stat.st_mode);
            if !replaceable(&entry.kind, found) {
                return Err(StoreError::Exists {
                    path: self.final_path(entry),
                    found: sys::kind_in_words(found),
                    wanted: entry.kind.in_words(),
                });
            }
            if is_same(&stat, entry, folder, name) {
                same.insert(object, stat.st_mode & 0o7777);
            }
        }
        Ok(same)
    }

    fn is_single(&self) -> bool {
        let root = self.entries.first();
        root.is_some_and(|root| matches!(root.kind, EntryKind::File { .. }))
    }

    /// Leaves what was found the same as it is.
    pub(super) fn keep(&mut self, same: &Same) {
        let numbers = same.keys().copied();
        let entries = &self.entries;
        self.unchanged = numbers
            .filter(|object| is_name_of_file(&entries[*object as usize]))
            .collect();
    }

    /// The bytes of the files that stay as they are.
    pub(super) fn present(&self, layout: &Layout) -> RangeSet {
        let pieces = layout.pieces().iter();
        let present = pieces.filter(|piece| self.unchanged.contains(&piece.object));
        RangeSet::from_ranges(present.map(|piece| piece.range))
    }

    /// Gives files that stay as they are the source's mode, where it is another one, and what is kept beyond it.
    ///
    /// * `same`: what is the same now.
    pub(super) fn set_modes_of_unchanged(&self, same: &Same) -> Result<(), StoreError> {
        let is_file = |entry: &Entry| matches!(entry.kind, EntryKind::File { .. });
        let mut files = self.unchanged.iter().filter_map(|object| {
            let entry = &self.entries[*object as usize];
            let mode = same.get(object).filter(|_| is_file(entry))?;
            (*mode != mode_of(entry) || entry.kept != Kept::default()).then_some((*object, entry))
        });
        let Some(first) = files.next() else {
            return Ok(());
        };
        let files = std::iter::once(first).chain(files);
        if self.root.is_none() {
            return self.set_where_different(self.parent.as_fd(), &self.name, first);
        }
        let dest = self.open_dest()?;
        let mut folders = Folders::new(dest.as_fd());
        for (object, entry) in files {
            let failed =
                |errno| StoreError::from_errno(Operation::Inspect, self.final_path(entry), errno);
            let (folder, name) = folders.parent(&entry.path).map_err(failed)?;
            self.set_where_different(folder, name, (object, entry))?;
        }
        Ok(())
    }

    /// As [`Tree::set_metadata`], unless all of it is so.
    fn set_where_different(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        (object, entry): (u32, &Entry),
    ) -> Result<(), StoreError> {
        match self.is_kept(folder, name, object, entry) {
            true => Ok(()),
            false => self.set_metadata(folder, name, entry, object),
        }
    }

    /// The first of the files that were to stay as they are and have changed since, as an error.
    ///
    /// * `same`: what is the same now.
    pub(super) fn check_unchanged(&self, same: &Same) -> Result<(), StoreError> {
        let changed = self
            .unchanged
            .iter()
            .filter(|object| !same.contains_key(object));
        match changed.min() {
            None => Ok(()),
            Some(object) => Err(StoreError::ChangedAtDestination {
                path: self.final_path(&self.entries[*object as usize]),
            }),
        }
    }
}

/// Whether what stands under a name is what the entry makes of it.
fn is_same(stat: &Stat, entry: &Entry, folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    let found = FileType::from_raw_mode(stat.st_mode);
    match &entry.kind {
        EntryKind::Directory => found == FileType::Directory,
        EntryKind::File { .. } => {
            let written_at = (stat.st_mtime, stat.st_mtime_nsec);
            is_file(stat, entry) && written_at != (stat.st_ctime, stat.st_ctime_nsec)
        }
        EntryKind::Symlink { target } => {
            found == FileType::Symlink
                && rustix::fs::readlinkat(folder, name, Vec::new())
                    .is_ok_and(|found| found.as_bytes() == target)
        }
    }
}

/// Whether a file is the finished one of an entry, by kind, size and time. A file system that keeps whole seconds only has
/// no other time to give.
pub(super) fn is_file(stat: &Stat, entry: &Entry) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let nanoseconds = stat.st_mtime_nsec as u32;
    let is_same_time = stat.st_mtime == entry.mtime_seconds
        && (nanoseconds == entry.mtime_nanoseconds || nanoseconds == 0);
    is_file && stat.st_size as u64 == entry.len() && is_same_time
}
