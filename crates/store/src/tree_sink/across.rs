//! Entries that a rename cannot put in their places: those on another file system are copied there, of others it is noted why.
//!
//! The stage is in DEST. A folder of DEST may be on another file system, or be one that this user cannot change; then all other entries
//! get their names, and the copy is incomplete.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ropewalk_model::{Layout, RangeSet};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use super::extra::words;
use super::standing::{MODE_MASK, SET_BITS, times};
use crate::error::{Operation, StoreError};
use crate::holes;
use crate::manifest::{Entry, EntryKind, Special, parent_of};
use crate::open_files::lock;
use crate::staging::temporary_name;
use crate::sys;

/// Names that are told of those without a place.
const UNPLACED_MAX: usize = 100;

/// What a commit could not put in its place.
#[derive(Debug, Default)]
pub(super) struct Across {
    /// Entries, with what is in them; by number, and why, where that is not the folder's reason.
    unplaced: HashMap<u32, Option<String>>,
    /// Of each other file system that something was put on, something to sync it by.
    synced_by: HashMap<u64, OwnedFd>,
}

/// Why an entry does not get its name.
#[derive(Debug)]
pub(super) enum Unplaceable {
    Errno(Errno),
    Store(StoreError),
}

impl Unplaceable {
    pub fn of(error: StoreError) -> Self {
        Self::Store(error)
    }

    /// The reason, if it is one of this name, and not of the whole file system.
    ///
    /// * `is_across`: it is another file system, which is one of many.
    pub fn of_one_name(self, is_across: bool) -> Result<String, Self> {
        let is_of_name = |errno: Errno| {
            matches!(
                errno,
                Errno::ACCESS
                    | Errno::PERM
                    | Errno::BUSY
                    | Errno::NOTDIR
                    | Errno::ISDIR
                    | Errno::NOTEMPTY
                    | Errno::EXIST
                    | Errno::LOOP
                    | Errno::NAMETOOLONG
                    | Errno::TXTBSY
            )
        };
        let is_of_small = |errno: Errno| {
            matches!(
                errno,
                Errno::NOSPC
                    | Errno::DQUOT
                    | Errno::ROFS
                    | Errno::OPNOTSUPP
                    | Errno::INVAL
                    | Errno::FBIG
            )
        };
        match self {
            Self::Errno(errno) if is_of_name(errno) || is_across && is_of_small(errno) => {
                Ok(words(errno))
            }
            Self::Store(error @ StoreError::InTheWay { .. }) => Ok(error.to_string()),
            other => Err(other),
        }
    }
}

impl Tree {
    /// Puts an entry of the stage on another file system: as a copy, under a temporary name first. Of a folder only itself: what is in it
    /// follows by itself.
    ///
    /// * `folder`, `name`: where it is to be.
    /// * `clear`: removes what is in its way there.
    pub(super) fn place_across(
        &self,
        staged: BorrowedFd<'_>,
        dest: BorrowedFd<'_>,
        (folder, name): (BorrowedFd<'_>, &[u8]),
        (object, entry): (u32, &Entry),
        clear: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), Unplaceable> {
        if entry.kind == EntryKind::Directory {
            clear().map_err(Unplaceable::of)?;
            let made = rustix::fs::mkdirat(folder, name, Mode::RWXU).and_then(|()| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let made = sys::open_beneath(folder, name, flags, Mode::empty())?;
                // Should the commit not come to its end; until then something is put into it. It has the set-group bit of its folder.
                let bits = rustix::fs::fstat(&made)?.st_mode & SET_BITS;
                sys::set_mode(made.as_fd(), entry.mode & MODE_MASK | 0o700 | bits)?;
                self.note_across(made)
            });
            return made.map_err(Unplaceable::Errno);
        }
        let temporary = temporary_name(name, &self.id).map_err(Unplaceable::of)?;
        // Of an earlier attempt.
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
        let made = self
            .copy_across(staged, dest, (folder, &temporary), (object, entry))
            .and_then(|()| clear().map_err(Unplaceable::of))
            .and_then(|()| {
                let renamed = match self.leaves_existing() {
                    true => sys::rename_new((folder, &temporary), (folder, name)),
                    // That took its time.
                    false if self.is_newer_there(folder, name, entry) => Err(Errno::EXIST),
                    false => rustix::fs::renameat(folder, &*temporary, folder, name),
                };
                renamed.map_err(Unplaceable::Errno)
            });
        if made.is_err() {
            let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
        }
        made
    }

    fn copy_across(
        &self,
        staged: BorrowedFd<'_>,
        dest: BorrowedFd<'_>,
        (folder, temporary): (BorrowedFd<'_>, &[u8]),
        (object, entry): (u32, &Entry),
    ) -> Result<(), Unplaceable> {
        // A further name is the file's, which has its place by now, if it has one.
        let first = self.first_of(object).unwrap_or(object);
        let file = &self.entries[first as usize];
        if let EntryKind::HardLink { to } = &entry.kind
            && !self.is_unplaced(first)
            && let Ok(opened) = sys::open_beneath(dest, to, OFlags::PATH, Mode::empty())
            && let Ok(stat) = rustix::fs::fstat(&opened)
            && match file.kind {
                EntryKind::Special(special) => Special::of(&stat) == Some(special),
                _ => self.is_whole(&stat, first),
            }
            && sys::link(opened.as_fd(), folder, temporary).is_ok()
        {
            return Ok(());
        }
        let set = || {
            let set = self.set_metadata(folder, temporary, file, object);
            set.map_err(Unplaceable::of)
        };
        match &file.kind {
            EntryKind::Directory | EntryKind::HardLink { .. } => return Ok(()),
            EntryKind::File { .. } => {
                self.copy_file(staged, (folder, temporary), (object, entry), file)?;
            }
            EntryKind::Symlink { target } => {
                let made = rustix::fs::symlinkat(&**target, folder, temporary);
                made.map_err(Unplaceable::Errno)?;
                set()?;
            }
            EntryKind::Special(special) => {
                let (kind, device) = special.file_type();
                let mode = Mode::RUSR | Mode::WUSR;
                let made = rustix::fs::mknodat(folder, temporary, kind, mode, device);
                made.map_err(Unplaceable::Errno)?;
                set()?;
            }
        }
        if first != object {
            self.note_apart(object);
        }
        Ok(())
    }

    /// A file with all metadata. It has no name before all its bytes are there, where the file system has such files: what ends this process
    /// leaves nothing. By its descriptor, as others may change the folder.
    fn copy_file(
        &self,
        staged: BorrowedFd<'_>,
        (folder, temporary): (BorrowedFd<'_>, &[u8]),
        (object, entry): (u32, &Entry),
        file: &Entry,
    ) -> Result<(), Unplaceable> {
        let (made, is_named) = match sys::nameless(folder) {
            Ok(made) => (made, false),
            Err(_) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let made = sys::open_beneath(folder, temporary, flags, Mode::RUSR | Mode::WUSR);
                (made.map_err(Unplaceable::Errno)?, true)
            }
        };
        let made = File::from(made);
        self.copy_contents(staged, &made, (object, entry), file)?;
        let set = self.set_all(made.as_fd(), object, file, 0, &times(file));
        set.map_err(|errno| {
            let path = self.path_of(object);
            Unplaceable::of(StoreError::from_errno(Operation::SetMetadata, path, errno))
        })?;
        // What has its name is taken for whole by the next transfer, and may have taken the place of an older file.
        let link = || sys::link(made.as_fd(), folder, temporary);
        rustix::fs::fsync(&made)
            .and_then(|()| match is_named {
                true => Ok(()),
                // The file of another owner may not be linked by a process without that right.
                false => link().or_else(|errno| match errno {
                    Errno::PERM => rustix::fs::fchown(&made, Some(self.user), None)
                        .and_then(|()| link())
                        .and_then(|()| self.set_all(made.as_fd(), object, file, 0, &times(file)))
                        .and_then(|_| rustix::fs::fsync(&made)),
                    errno => Err(errno),
                }),
            })
            .and_then(|()| self.note_across(made.into()))
            .map_err(Unplaceable::Errno)
    }

    /// Whether another program has put something there that stays.
    fn is_newer_there(&self, folder: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> bool {
        let there = || sys::stat_entry(folder, name);
        self.may_pass_late() && there().is_ok_and(|stat| self.passes(&stat, entry))
    }

    /// The bytes of a file, as the stage has them; holes stay holes.
    fn copy_contents(
        &self,
        staged: BorrowedFd<'_>,
        made: &File,
        (object, entry): (u32, &Entry),
        file: &Entry,
    ) -> Result<(), Unplaceable> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let open = || sys::open_beneath(staged, &entry.path, flags, Mode::empty());
        let opened = match open() {
            // It has its mode already, which this user may have no right to read by.
            Err(Errno::ACCESS) => {
                sys::open_beneath(staged, &entry.path, OFlags::PATH, Mode::empty())
                    .and_then(|file| sys::set_mode(file.as_fd(), 0o600))
                    .and_then(|()| open())
            }
            opened => opened,
        };
        let from = File::from(opened.map_err(Unplaceable::Errno)?);
        let copied = holes::copy(&from, made);
        let at = copied.map_err(|failed| match Errno::from_io_error(&failed.error) {
            Some(errno) => Unplaceable::Errno(errno),
            None => Unplaceable::of(StoreError::from_io(
                failed.operation,
                self.path_of(object),
                &failed.error,
            )),
        })?;
        match at == file.len() {
            true => Ok(()),
            false => Err(Unplaceable::of(StoreError::Incomplete {
                path: self.path_of(object),
                len: at,
                wanted: file.len(),
            })),
        }
    }

    /// Notes what another file system is synced by.
    fn note_across(&self, made: OwnedFd) -> Result<(), Errno> {
        let device = rustix::fs::fstat(&made)?.st_dev;
        lock(&self.across).synced_by.entry(device).or_insert(made);
        Ok(())
    }

    /// Makes safe what was put on other file systems, with names, modes and times. A link alone is not known here: its folder is not open.
    pub(super) fn sync_across(&self) -> Result<(), StoreError> {
        let synced_by = std::mem::take(&mut lock(&self.across).synced_by);
        let mut all = synced_by.values();
        let synced = all.try_for_each(rustix::fs::syncfs);
        lock(&self.across).synced_by.extend(synced_by);
        synced.map_err(|errno| self.failed(Operation::Sync, errno))
    }

    /// Nothing more is put on other file systems: their files are open no longer.
    pub(super) fn end_across(&self) {
        lock(&self.across).synced_by.clear();
    }

    /// Notes that an entry has no place, with all that is in it.
    pub(super) fn note_unplaced(&self, object: u32, reason: &str) {
        let reason = Some(reason.to_owned());
        lock(&self.across).unplaced.insert(object, reason);
    }

    fn is_unplaced(&self, object: u32) -> bool {
        lock(&self.across).unplaced.contains_key(&object)
    }

    pub(super) fn is_any_unplaced(&self) -> bool {
        !lock(&self.across).unplaced.is_empty()
    }

    /// Another attempt tries them again.
    pub(super) fn forget_unplaced(&self) {
        lock(&self.across).unplaced.clear();
    }

    /// Entries that have no place, what is in such folders among them, and what the file system there cannot hold.
    pub(super) fn all_unplaced(&self) -> HashSet<u32> {
        let mut all: HashSet<u32> = lock(&self.across).unplaced.keys().copied().collect();
        all.extend(self.refused.all().keys());
        all
    }

    /// Whether the folder of an entry has no place; then the entry has none either.
    pub(super) fn is_in_unplaced(&self, object: u32, entry: &Entry) -> bool {
        let mut across = lock(&self.across);
        if across.unplaced.is_empty() {
            return false;
        }
        let number = |path: &[u8]| self.entries.binary_search_by(|one| one.path[..].cmp(path));
        let folder = parent_of(&entry.path).and_then(|parent| number(parent).ok());
        let is_in = folder.is_some_and(|folder| across.unplaced.contains_key(&(folder as u32)));
        if is_in {
            across.unplaced.insert(object, None);
        }
        is_in
    }

    /// Keeps what has no place for a later transfer, which need not fetch it again; whether that is worth it.
    pub(super) fn keep_unplaced(&self, layout: &Layout) -> bool {
        let unplaced: HashSet<u32> = lock(&self.across).unplaced.keys().copied().collect();
        if unplaced.is_empty() {
            return false;
        }
        // One of several nodes does not know what the others would remove.
        if lock(&self.progress).node.is_some() {
            return false;
        }
        let of = |is_placed: bool| {
            let pieces = layout.pieces().iter();
            let pieces = pieces.filter(|piece| unplaced.contains(&piece.object) != is_placed);
            RangeSet::from_ranges(pieces.map(|piece| piece.range))
        };
        // All of it is safe, and a short transfer has recorded nothing.
        self.record(layout, &of(false), &[]);
        let mut progress = lock(&self.progress);
        progress.named = progress.named.union(&of(true));
        progress.keep_more();
        progress.keep_all(&self.stage())
    }

    /// Names that the commit could not give, each with the reason, in order; the first ones, and how many more there are. Of a folder
    /// without a place only the folder is named.
    pub(super) fn unplaced(&self) -> (Vec<(Vec<u8>, String)>, u64) {
        let across = lock(&self.across);
        let all = across.unplaced.iter();
        let mut named: Vec<(u32, String)> = all
            .filter_map(|(object, why)| Some((*object, why.clone()?)))
            .collect();
        let refused = self.refused.all();
        let why = refused.iter();
        named.extend(why.filter_map(|(object, why)| Some((*object, why.clone()?))));
        drop(refused);
        named.sort_unstable();
        let more = named.len().saturating_sub(UNPLACED_MAX) as u64;
        named.truncate(UNPLACED_MAX);
        let path = |object: u32| self.entries[object as usize].path.clone();
        let named = named.into_iter().map(|(object, why)| (path(object), why));
        (named.collect(), more)
    }
}
