//! Continuing where an earlier transfer to the same place ended: what is safe is recorded while it is written, and what this
//! transfer leaves is kept for the next one, which takes it over (`adopt`).
//!
//! ```text
//!  .DEST.ropewalk-ID/...         what is written        .DEST.ropewalk-ID.journal        what of it is safe
//!  .DEST.ropewalk-ID-kept/...    partial files, where the transfer ended      .DEST.ropewalk-ID-kept.journal
//!  .DEST.ropewalk-ID/...         what several nodes write      .DEST.ropewalk-ID.NODE.journal        what of it each one made safe
//! ```
//!
//! A journal is of both folders: a transfer that is killed between two renames leaves files of either.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use ropewalk_model::journal::{Safe, Unit, is_worth_keeping, parts_of};
use ropewalk_model::{Layout, Range, RangeSet};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use super::adopt::journals_of;
use crate::error::StoreError;
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::journal::{self, Journal};
use crate::open_files::lock;
use crate::sys;

pub(super) const KEPT: &[u8] = b"-kept";

/// What is safe, and what was found to be.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Nothing is recorded and nothing taken over.
    pub is_off: bool,
    /// Of several nodes that write the copy, this one.
    pub node: Option<u32>,
    /// Nothing more is recorded: the file system refused it. What the journal has stays true.
    pub has_failed: bool,
    /// Nothing more is recorded: the sink has ended.
    has_ended: bool,
    pub journal: Option<Journal>,
    pub recorded: RangeSet,
    /// Bytes of files that have their names already.
    pub named: RangeSet,
    /// Bytes of the data space that an earlier transfer made safe.
    pub adopted: RangeSet,
    /// Hashes of these.
    pub units: Vec<Unit>,
    /// Where files lie that the next transfer can go on with, and how many of their bytes are safe.
    kept: Option<(PathBuf, u64)>,
    /// The transfer has failed.
    keeps_more: bool,
}

impl Progress {
    /// Nothing is recorded.
    pub fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// * `node`: of several nodes that write the copy, this one.
    pub fn of(node: Option<u32>) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }

    /// Whether so many safe bytes are worth keeping.
    fn is_worth_keeping(&self, safe: u64) -> bool {
        is_worth_keeping(safe, self.keeps_more, !self.adopted.is_empty())
    }

    /// The journal, unless nothing more is recorded.
    pub fn open_journal(&mut self) -> Option<&mut Journal> {
        let is_open = !self.has_failed && !self.has_ended;
        self.journal.as_mut().filter(|_| is_open)
    }
}

impl Tree {
    /// Makes the journal, before anything that it may be about. Where it cannot be made there is none: a later transfer sends
    /// everything.
    ///
    /// # Errors
    /// What the system reported, for a node that writes together with others: without its journal it would not be seen. Of a name too
    /// long for that none of them has one.
    pub(super) fn begin_journal(&self) -> Result<(), StoreError> {
        let name = self.journal_name();
        let mut progress = lock(&self.progress);
        if progress.is_off {
            return Ok(());
        }
        let created = Journal::create(self.stage_parent.as_fd(), &name);
        // What this node makes cannot be told from what it left, if it loses its power, without the header: then no later transfer
        // would take over what the others have written.
        let created = created.and_then(|journal| {
            if progress.node.is_some() {
                journal.sync()?;
                rustix::fs::fsync(&self.stage_parent)?;
            }
            Ok(journal)
        });
        match created {
            Ok(journal) => {
                if self.is_early() {
                    journal.reserve(self.records_len());
                }
                progress.journal = Some(journal);
            }
            Err(errno) if progress.node.is_some() && errno != Errno::NAMETOOLONG => {
                let path = self.stage_parent_path.join(OsStr::from_bytes(&name));
                return Err(StoreError::from_create(path, &self.stage_parent, errno));
            }
            Err(_) => progress.has_failed = true,
        }
        Ok(())
    }

    fn journal_name(&self) -> Vec<u8> {
        match lock(&self.progress).node {
            Some(node) => journal::name_of_node(&self.temporary, node),
            None => journal::name_of(&self.temporary),
        }
    }

    /// The journals of what this transfer writes.
    fn journal_names(&self) -> Vec<Vec<u8>> {
        match lock(&self.progress).node {
            Some(_) => journals_of(&self.stage_parent, &self.temporary),
            None => vec![journal::name_of(&self.temporary)],
        }
    }

    /// Records bytes that are on stable storage, once each, and waits until the record is, too. Where that fails nothing more is
    /// recorded: a later transfer sends more.
    pub(super) fn record(&self, layout: &Layout, safe: &RangeSet, units: &[Unit]) {
        let mut progress = lock(&self.progress);
        let fresh = safe.difference(&progress.recorded);
        let is_first = progress.recorded.is_empty();
        let Some(journal) = progress.open_journal().filter(|_| !fresh.is_empty()) else {
            return;
        };
        let appended = self.append(journal, layout, &fresh, units);
        let appended = appended.and_then(|()| match is_first {
            true => rustix::fs::fsync(&self.stage_parent),
            false => Ok(()),
        });
        match appended {
            Ok(()) => progress.recorded = progress.recorded.union(&fresh),
            Err(_) => progress.has_failed = true,
        }
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
                inode,
                range,
                digest,
            });
        }
        journal.append(safe)?;
        journal.sync()
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
        let aside = [&self.temporary[..], KEPT].concat();
        self.put_aside(root, &kept, &aside)?;
        let bytes = kept.iter().map(|(_, safe)| safe).sum();
        let path = self.stage_parent_path.join(OsStr::from_bytes(&aside));
        lock(&self.progress).kept = Some((path, bytes));
        Ok(())
    }

    fn put_aside(&self, root: &OwnedFd, kept: &[(u32, u64)], aside: &[u8]) -> Result<(), Errno> {
        let parent = &self.stage_parent;
        rustix::fs::mkdirat(parent, aside, Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = sys::open_beneath(parent.as_fd(), aside, flags, Mode::empty())?;
        for (object, _) in kept {
            move_between(root, &folder, &self.entries[*object as usize].path)?;
        }
        let (old, new) = (journal::name_of(&self.temporary), journal::name_of(aside));
        rustix::fs::renameat(parent, &*old, parent, &*new)?;
        rustix::fs::fsync(parent)
    }

    /// The transfer has failed: less is worth keeping.
    pub(super) fn keep_more(&self) {
        lock(&self.progress).keeps_more = true;
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

    /// Keeps all that is under the temporary name for the next transfer, where much of it is safe. Whether it does.
    pub(super) fn keep_all(&self) -> bool {
        let is_shared = lock(&self.progress).node.is_some();
        // No node alone knows what is worth it.
        let together = self.journal_names().into_iter().filter(|_| is_shared);
        let together = together.flat_map(|name| journal::read_unlocked(&self.stage_parent, &name));
        let together: u64 = together.map(|file| file.safe.len_bytes()).sum();
        let mut progress = lock(&self.progress);
        let own = progress.recorded.difference(&progress.named);
        let safe = own.len_bytes().max(together);
        let is_worth_it = progress.journal.is_some() && progress.is_worth_keeping(safe);
        if is_worth_it {
            progress.kept = Some((self.stage_path(), safe));
        }
        drop(progress);
        if is_worth_it {
            self.end_journal();
        }
        is_worth_it
    }

    /// Where the next transfer can go on, and how many bytes are safe there.
    pub(super) fn kept_partial(&self) -> Option<(PathBuf, u64)> {
        lock(&self.progress).kept.clone()
    }

    /// Removes this node's journal, where nothing was written.
    pub(super) fn remove_own_journal(&self) {
        self.end_journal();
        let name = self.journal_name();
        let _ = rustix::fs::unlinkat(&self.stage_parent, &*name, AtFlags::empty());
    }

    /// Removes the journals beside the temporary name, for good.
    pub(super) fn remove_journals(&self) {
        self.end_journal();
        for name in self.journal_names() {
            let _ = rustix::fs::unlinkat(&self.stage_parent, &*name, AtFlags::empty());
        }
    }

    /// Notes that the sink is about to end: the next transfer waits for that.
    pub(super) fn note_ending(&self) {
        if let Some(journal) = lock(&self.progress).open_journal() {
            // Without it the next transfer does not wait.
            let _ = journal.note_ending();
        }
    }

    /// Ends recording and releases the journal: what is left is the next transfer's.
    pub(super) fn end_journal(&self) {
        let mut progress = lock(&self.progress);
        progress.has_ended = true;
        progress.journal = None;
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
