//! Continuing where an earlier transfer to the same place ended: its journal and what it wrote are taken over, and what this
//! transfer leaves is kept for the next one.
//!
//! ```text
//!  .DEST.ropewalk-ID/...         what is written        .DEST.ropewalk-ID.journal        what of it is safe
//!  .DEST.ropewalk-ID-kept/...    partial files, where the transfer ended      .DEST.ropewalk-ID-kept.journal
//! ```
//!
//! Any of them that no process has locked is taken over by the next transfer to DEST, whatever its sources are: files whose path,
//! size and time are those of a journal are moved to the new temporary name. What is left then is removed where this transfer
//! writes all files that it is of.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use ropewalk_model::{Layout, Piece, Range, RangeSet};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use crate::folders::Folders;
use crate::journal::{self, Journal, Left};
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::staging::{is_temporary, remove_entry, temporary_begin};
use crate::sys;

/// Partial files are kept where at least so many of their bytes are safe; fewer are sent again in little time.
pub const KEPT_MIN: u64 = 64 << 20;

const KEPT: &[u8] = b"-kept";

/// What is safe, and what was found to be.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Nothing is recorded and nothing taken over: others write the same files.
    is_off: bool,
    /// Nothing more is recorded: the file system refused it. What the journal has stays true.
    has_failed: bool,
    journal: Option<Journal>,
    recorded: RangeSet,
    /// Bytes of the data space that an earlier transfer made safe.
    adopted: RangeSet,
    /// Where partial files lie that the next transfer can go on with, and how many of their bytes are safe.
    kept: Option<(PathBuf, u64)>,
}

impl Progress {
    /// * `is_own`: one node writes the copy, and may leave files for a later one.
    pub fn new(is_own: bool) -> Self {
        Self {
            is_off: !is_own,
            ..Self::default()
        }
    }
}

/// What an earlier transfer left.
pub(super) struct Leftover {
    folder: OwnedFd,
    /// Its journal's name, and the temporary name.
    journal: Vec<u8>,
    temporary: Vec<u8>,
    /// Files that this transfer wants, by number, with what of them is safe.
    files: Vec<(u32, RangeSet)>,
    /// All files that it is of are this transfer's, too.
    is_superseded: bool,
    _left: Left,
}

impl Leftover {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, safe)| safe.len_bytes()).sum()
    }
}

/// Bytes that what was left has of the files of this transfer.
pub(super) fn bytes_of(leftovers: &[Leftover]) -> u64 {
    leftovers.iter().map(Leftover::bytes).sum()
}

impl Tree {
    /// What earlier transfers to DEST have left and no process writes any more.
    pub(super) fn find_leftovers(&self) -> Vec<Leftover> {
        let mut found = Vec::new();
        if lock(&self.progress).is_off {
            return found;
        }
        self.find_leftovers_in(&self.parent, &mut found);
        if self.stage_parent_path == self.dest {
            self.find_leftovers_in(&self.stage_parent, &mut found);
        }
        keep_largest(&mut found);
        found
    }

    fn find_leftovers_in(&self, folder: &OwnedFd, found: &mut Vec<Leftover>) {
        let begin = temporary_begin(&self.name);
        for entry in Dir::read_from(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_bytes();
            let Some(temporary) = journal::temporary_of(name) else {
                continue;
            };
            if !name.starts_with(&begin) || !is_temporary(temporary) {
                continue;
            }
            // Of some only the journal is left.
            if is_ours(folder, name) != Some(true) || is_ours(folder, temporary) == Some(false) {
                continue;
            }
            let (Some(left), Ok(folder)) = (journal::claim(folder, name), folder.try_clone())
            else {
                continue;
            };
            let (mut files, mut is_superseded) = (Vec::new(), true);
            for file in &left.files {
                let by_path = |entry: &Entry| entry.path.cmp(&file.path);
                let Ok(object) = self.entries.binary_search_by(by_path) else {
                    is_superseded = false;
                    continue;
                };
                let entry = &self.entries[object];
                let is_wanted = matches!(entry.kind, EntryKind::File { .. })
                    && !self.unchanged.contains(&(object as u32));
                if is_wanted && file.is_of(entry) && !file.safe.is_empty() {
                    files.push((object as u32, file.safe.clone()));
                }
            }
            found.push(Leftover {
                folder,
                journal: name.to_vec(),
                temporary: temporary.to_vec(),
                files,
                is_superseded,
                _left: left,
            });
        }
    }

    /// Moves the files of earlier transfers under the temporary name of this one, records what of them is safe, and removes the
    /// rest. What cannot be moved is written again.
    pub(super) fn adopt(&self, layout: &Layout, leftovers: &[Leftover]) {
        if leftovers.is_empty() {
            return;
        }
        let pieces = layout.pieces().iter();
        let pieces: HashMap<u32, &Piece> = pieces.map(|piece| (piece.object, piece)).collect();
        for leftover in leftovers {
            let mut safe = Vec::new();
            for (object, ranges) in &leftover.files {
                if let Some(piece) = pieces.get(object)
                    && self.move_here(leftover, *object, ranges).is_ok()
                {
                    safe.extend(ranges.iter().map(|range| in_space(piece, range)));
                }
            }
            let safe = RangeSet::from_ranges(safe);
            self.record(layout, &safe);
            let mut progress = lock(&self.progress);
            progress.adopted = progress.adopted.union(&safe);
            // Before the journal that it was in is gone.
            let is_safe = |journal: &Journal| journal.sync().is_ok();
            let is_recorded = safe.is_empty() || progress.journal.as_ref().is_some_and(is_safe);
            if leftover.is_superseded && is_recorded {
                remove_entry(&leftover.folder, &leftover.temporary);
                remove_entry(&leftover.folder, &leftover.journal);
            }
        }
    }

    fn move_here(&self, leftover: &Leftover, object: u32, safe: &RangeSet) -> Result<(), Errno> {
        let entry = &self.entries[object as usize];
        let end = safe.last().map_or(0, |range| range.end);
        let is_whole = |stat: &rustix::fs::Stat| {
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            is_file && stat.st_size as u64 >= end
        };
        let Some(root) = &self.root else {
            let stat = sys::stat_entry(leftover.folder.as_fd(), &leftover.temporary)?;
            // Renaming replaces what is there.
            return match is_whole(&stat) {
                true => rustix::fs::renameat(
                    &leftover.folder,
                    &*leftover.temporary,
                    &self.stage_parent,
                    &*self.temporary,
                ),
                false => Err(Errno::INVAL),
            };
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let old = leftover.folder.as_fd();
        let old = sys::open_beneath(old, &leftover.temporary, flags, Mode::empty())?;
        let (mut from, mut to) = (Folders::new(old.as_fd()), Folders::new(root.as_fd()));
        let (from, name) = from.parent(&entry.path)?;
        if !is_whole(&sys::stat_entry(from, name)?) {
            return Err(Errno::INVAL);
        }
        self.make_parents(&entry.path).map_err(|_| Errno::IO)?;
        let (to, _) = to.parent(&entry.path)?;
        rustix::fs::renameat(from, name, to, name)?;
        let parent = parent_of(&entry.path).unwrap_or_default();
        lock(&self.new_names).insert(parent.to_vec());
        Ok(())
    }

    /// Bytes that an earlier transfer made safe.
    pub(super) fn adopted(&self) -> RangeSet {
        lock(&self.progress).adopted.clone()
    }

    /// Records bytes that are on stable storage, once each. Where the journal cannot be written there is none: a later transfer
    /// sends more.
    pub(super) fn record(&self, layout: &Layout, safe: &RangeSet) {
        let mut progress = lock(&self.progress);
        let fresh = safe.difference(&progress.recorded);
        if progress.is_off || progress.has_failed || fresh.is_empty() {
            return;
        }
        match self.append(&mut progress, layout, &fresh) {
            Ok(()) => progress.recorded = progress.recorded.union(&fresh),
            Err(_) => progress.has_failed = true,
        }
    }

    fn append(
        &self,
        progress: &mut Progress,
        layout: &Layout,
        fresh: &RangeSet,
    ) -> Result<(), Errno> {
        let journal = match &mut progress.journal {
            Some(journal) => journal,
            none => {
                let name = journal::name_of(&self.temporary).ok_or(Errno::NAMETOOLONG)?;
                none.insert(Journal::create(self.stage_parent.as_fd(), &name)?)
            }
        };
        let stretches = fresh.iter().flat_map(|range| pieces_of(layout, range));
        journal.append(stretches.map(|(object, range)| {
            let entry = &self.entries[object as usize];
            (object, entry, range)
        }))
    }

    /// Puts partial files aside that the next transfer can go on with, so that neither the commit nor the removal of the others
    /// touches them. Those of which little is recorded are not.
    ///
    /// * `omitted`: files that lack bytes.
    pub(super) fn keep_partial(&self, layout: &Layout, omitted: &HashSet<u32>) {
        let recorded = lock(&self.progress).recorded.clone();
        let pieces = layout.pieces().iter();
        let kept: Vec<(u32, u64)> = pieces
            .filter(|piece| omitted.contains(&piece.object))
            .map(|piece| (piece.object, recorded.clipped(piece.range).len_bytes()))
            .filter(|(_, safe)| *safe >= KEPT_MIN)
            .collect();
        if kept.is_empty() {
            return;
        }
        let aside = [&self.temporary[..], KEPT].concat();
        match self.put_aside(&kept, &aside) {
            Ok(()) => {
                let bytes = kept.iter().map(|(_, safe)| safe).sum();
                let path = self.stage_parent_path.join(OsStr::from_bytes(&aside));
                lock(&self.progress).kept = Some((path, bytes));
            }
            // The disk may be full: what has been moved is sent again.
            Err(_) => remove_entry(&self.stage_parent, &aside),
        }
    }

    fn put_aside(&self, kept: &[(u32, u64)], aside: &[u8]) -> Result<(), Errno> {
        let old = journal::name_of(&self.temporary).ok_or(Errno::NAMETOOLONG)?;
        let new = journal::name_of(aside).ok_or(Errno::NAMETOOLONG)?;
        let parent = &self.stage_parent;
        match &self.root {
            None => rustix::fs::renameat(parent, &*self.temporary, parent, aside)?,
            Some(root) => {
                rustix::fs::mkdirat(parent, aside, Mode::RWXU)?;
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let folder = sys::open_beneath(parent.as_fd(), aside, flags, Mode::empty())?;
                for (object, _) in kept {
                    move_between(root, &folder, &self.entries[*object as usize].path)?;
                }
            }
        }
        rustix::fs::renameat(parent, &*old, parent, &*new)?;
        if let Some(journal) = &lock(&self.progress).journal {
            journal.sync()?;
        }
        rustix::fs::fsync(parent)
    }

    /// Where the next transfer can go on, and how many bytes are safe there.
    pub(super) fn kept_partial(&self) -> Option<(PathBuf, u64)> {
        lock(&self.progress).kept.clone()
    }

    /// Removes the journal beside the temporary name.
    pub(super) fn remove_journal(&self) {
        if let Some(name) = journal::name_of(&self.temporary) {
            let _ = rustix::fs::unlinkat(&self.stage_parent, &*name, AtFlags::empty());
        }
    }
}

/// Whether this user made what has a name; `None` where nothing has. In a folder that others can write to, any user could make a
/// journal, and files of any contents beside it.
fn is_ours(folder: &OwnedFd, name: &[u8]) -> Option<bool> {
    let user = rustix::process::geteuid().as_raw();
    let stat = sys::stat_entry(folder.as_fd(), name).ok()?;
    Some(stat.st_uid == user)
}

/// Where several have the same file, each has its own version of it: only the one of which most is safe is of use.
fn keep_largest(leftovers: &mut [Leftover]) {
    let mut best: HashMap<u32, (u64, usize)> = HashMap::new();
    for (at, leftover) in leftovers.iter().enumerate() {
        for (object, safe) in &leftover.files {
            let this = (safe.len_bytes(), at);
            let known = best.entry(*object).or_insert(this);
            *known = this.max(*known);
        }
    }
    for (at, leftover) in leftovers.iter_mut().enumerate() {
        leftover.files.retain(|(object, _)| best[object].1 == at);
    }
}

/// Bytes of a file as bytes of the data space.
fn in_space(piece: &Piece, range: Range) -> Range {
    let start = piece.range.start + (range.start - piece.object_offset);
    Range::new(start, start + range.len())
}

/// The files that a range of the data space is of, each with its bytes.
fn pieces_of(layout: &Layout, range: Range) -> Vec<(u32, Range)> {
    let mut out = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(piece) = layout.locate(at) else {
            break;
        };
        let end = piece.range.end.min(range.end);
        let start = piece.object_offset;
        out.push((piece.object, Range::new(start, start + (end - at))));
        at = end;
    }
    out
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
