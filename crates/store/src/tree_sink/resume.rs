//! Continuing where an earlier transfer to the same place ended: what of which files is recorded, and what of them is kept where others
//! get their names. The journal is that of [`Progress`](crate::progress::Progress).
//!
//! A journal is of both folders: a transfer that is killed between two renames leaves files of either.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ropewalk_model::journal::{Safe, Unit, parts_of};
use ropewalk_model::{Layout, Range, RangeSet};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{INODE_UNKNOWN, Tree};
use crate::claims::KEPT;
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::journal::{self, Journal};
use crate::open_files::lock;
use crate::progress::Stage;
use crate::staging::remove_entry;
use crate::sys;

impl Tree {
    /// Where it is written.
    pub(super) fn stage(&self) -> Stage<'_> {
        Stage {
            folder: &self.stage_parent,
            folder_path: &self.stage_parent_path,
            temporary: &self.temporary,
        }
    }

    /// Records bytes that are on stable storage.
    pub(super) fn record(&self, layout: &Layout, safe: &RangeSet, units: &[Unit]) {
        lock(&self.progress).record(&self.stage(), safe, |journal, fresh| {
            self.append(journal, layout, fresh, units)
        });
    }

    fn append(
        &self,
        journal: &mut Journal,
        layout: &Layout,
        fresh: &RangeSet,
        units: &[Unit],
    ) -> Result<(), Errno> {
        let parts = parts_of(layout, fresh, units);
        let mut inodes = Inodes::new(self);
        let mut safe = Vec::with_capacity(parts.len());
        for (number, range, digest) in parts {
            let inode = match journal.knows(number) {
                true => 0,
                false => inodes.of(number)?,
            };
            let entry = &self.entries[number as usize];
            safe.push(Safe {
                number,
                path: &entry.path,
                version: entry.version(),
                shift: None,
                inode,
                range,
                digest,
            });
        }
        journal.append(safe)
    }

    /// Puts partial files aside that the next transfer can go on with, so that neither the commit nor the removal of the others
    /// touches them, unless little of them is recorded.
    ///
    /// * `omitted`: files that lack bytes.
    ///
    /// # Errors
    /// What the system reported; some of the files may be there then.
    pub(super) fn keep_partial(
        &self,
        layout: &Layout,
        omitted: &HashSet<u32>,
    ) -> Result<(), Errno> {
        let recorded = lock(&self.progress).recorded.clone();
        let pieces = layout.pieces().iter();
        let kept: Vec<(u32, u64)> = pieces
            .filter(|piece| omitted.contains(&piece.object))
            .map(|piece| (piece.object, recorded.clipped(piece.range).len_bytes()))
            .filter(|(_, safe)| *safe > 0)
            .collect();
        let is_worth_it =
            lock(&self.progress).is_worth_keeping(kept.iter().map(|(_, safe)| safe).sum());
        let Some(root) = self.root.as_ref().filter(|_| is_worth_it) else {
            return Ok(());
        };
        self.put_aside(root, &kept)?;
        let bytes = kept.iter().map(|(_, safe)| safe).sum();
        lock(&self.progress).kept = Some((self.aside_path(), bytes));
        Ok(())
    }

    /// The name that partial files have where others get theirs.
    fn aside(&self) -> Vec<u8> {
        [&self.temporary[..], KEPT].concat()
    }

    fn aside_path(&self) -> PathBuf {
        self.stage_parent_path
            .join(OsStr::from_bytes(&self.aside()))
    }

    /// Where partial files lie that the next transfer can go on with, and how many of their bytes are safe: in two places where putting
    /// them aside, or the commit after it, has failed.
    pub(super) fn kept_partial(&self) -> Vec<(PathBuf, u64)> {
        let Some((path, bytes)) = lock(&self.progress).kept.clone() else {
            return Vec::new();
        };
        let (aside_path, aside) = (self.aside_path(), self.aside_bytes.load(Ordering::Acquire));
        if path == aside_path || aside == 0 {
            return vec![(path, bytes)];
        }
        vec![(path, bytes.saturating_sub(aside)), (aside_path, aside)]
    }

    /// Removes files that were put aside, where that has failed half way and nothing is kept: no journal would have them.
    pub(super) fn remove_aside(&self) {
        if lock(&self.progress).kept.is_none() && self.aside_begun.load(Ordering::Acquire) {
            remove_entry(&self.stage_parent, &self.aside());
        }
    }

    fn put_aside(&self, root: &OwnedFd, kept: &[(u32, u64)]) -> Result<(), Errno> {
        self.open_up_dest();
        let (parent, aside) = (&self.stage_parent, &*self.aside());
        rustix::fs::mkdirat(parent, aside, Mode::RWXU)?;
        self.aside_begun.store(true, Ordering::Release);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = sys::open_beneath(parent.as_fd(), aside, flags, Mode::empty())?;
        for (object, safe) in kept {
            move_between(root, &folder, &self.entries[*object as usize].path)?;
            self.aside_bytes.fetch_add(*safe, Ordering::AcqRel);
        }
        let (old, new) = (journal::name_of(&self.temporary), journal::name_of(aside));
        rustix::fs::renameat(parent, &*old, parent, &*new)?;
        sys::sync_folder(parent)
    }

    /// Does not count files as worth keeping that have some of these bytes.
    pub(super) fn give_up(&self, layout: &Layout, bytes: &RangeSet) {
        let mut progress = lock(&self.progress);
        for range in bytes.iter() {
            let mut at = range.start;
            while let Some(piece) = layout.locate(at).filter(|_| at < range.end) {
                let before = piece.object_offset.min(at);
                let whole = Range::new(at - before, piece.range.end);
                progress.recorded.remove(whole);
                at = piece.range.end;
            }
        }
    }

    /// Removes the journals beside the temporary name, for good.
    pub(super) fn remove_journals(&self) {
        lock(&self.progress).remove_journals(&self.stage());
    }
}

/// Inodes of files under the temporary name.
pub(super) struct Inodes<'a> {
    tree: &'a Tree,
    folders: Option<Folders<'a>>,
    are_kept: bool,
}

impl<'a> Inodes<'a> {
    pub fn new(tree: &'a Tree) -> Self {
        let system = FileSystem::of(&tree.stage_parent);
        Self {
            tree,
            folders: tree.root.as_ref().map(|root| Folders::new(root.as_fd())),
            are_kept: system.is_some_and(FileSystem::keeps_inodes),
        }
    }

    /// As the journal has it: 0 where the file system gives others later.
    pub fn known(&self, inode: u64) -> u64 {
        if self.are_kept { inode } else { 0 }
    }

    fn of(&mut self, object: u32) -> Result<u64, Errno> {
        match self.tree.begun[object as usize].load(Ordering::Acquire) {
            0 | INODE_UNKNOWN => {}
            inode => return Ok(self.known(inode)),
        }
        let (folder, name) = match &mut self.folders {
            Some(folders) => folders.parent(&self.tree.entries[object as usize].path)?,
            None => (self.tree.stage_parent.as_fd(), &*self.tree.temporary),
        };
        let inode = sys::stat_entry(folder, name)?.st_ino;
        Ok(self.known(inode))
    }
}

/// Moves a file to the same path below another folder.
fn move_between(from: &OwnedFd, to: &OwnedFd, path: &[u8]) -> Result<(), Errno> {
    let cuts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let (mut from, mut to) = (Folders::new(from.as_fd()), Folders::new(to.as_fd()));
    for (cut, _) in cuts {
        let (folder, name) = to.parent(&path[..cut])?;
        match rustix::fs::mkdirat(folder, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let (from, name) = from.parent(path)?;
    let (to, _) = to.parent(path)?;
    rustix::fs::renameat(from, name, to, name)
}
