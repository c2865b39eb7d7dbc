//! Entries that a rename cannot put in their places: those on another file system are copied there, of others it is noted why.
//!
//! The stage is in DEST. A folder of DEST may be on another file system, or be one that this user cannot change; then all other entries
//! get their names, and the copy is incomplete.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use super::extra::words;
use crate::error::StoreError;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::staging::temporary_name;
use crate::sys;

/// Names that are told of those without a place.
const UNPLACED_MAX: usize = 100;

/// Entries that a commit could not put in their places, with what is in them; by number, and why, where that is not the folder's reason.
pub(super) type Unplaced = HashMap<u32, Option<String>>;

impl Tree {
    /// Puts an entry of the stage on another file system: as a copy, under a temporary name first. Of a folder only itself: what is in it
    /// follows by itself.
    ///
    /// * `folder`, `name`: where it is to be.
    pub(super) fn place_across(
        &self,
        staged: BorrowedFd<'_>,
        dest: BorrowedFd<'_>,
        (folder, name): (BorrowedFd<'_>, &[u8]),
        (object, entry): (u32, &Entry),
    ) -> Result<(), Errno> {
        if entry.kind == EntryKind::Directory {
            return rustix::fs::mkdirat(folder, name, Mode::RWXU);
        }
        let temporary = temporary_name(name, &self.id).map_err(|_| Errno::NAMETOOLONG)?;
        // Of an earlier attempt.
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
        let made = self
            .copy_across(staged, dest, (folder, &temporary), (object, entry))
            .and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name));
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
    ) -> Result<(), Errno> {
        let of_store = |error: StoreError| match error {
            StoreError::DiskFull { .. } => Errno::NOSPC,
            StoreError::Permission { .. } => Errno::PERM,
            _ => Errno::IO,
        };
        match &entry.kind {
            EntryKind::Directory => return Ok(()),
            EntryKind::Symlink { target } => {
                rustix::fs::symlinkat(&**target, folder, temporary)?;
            }
            EntryKind::Special(special) => {
                let (kind, device) = special.file_type();
                rustix::fs::mknodat(folder, temporary, kind, Mode::RUSR | Mode::WUSR, device)?;
            }
            EntryKind::HardLink { to } => {
                // The file has its place by now, as it is before its further names.
                let first = sys::open_beneath(dest, to, OFlags::PATH, Mode::empty());
                let linked = first
                    .and_then(|file| sys::link(std::os::fd::AsFd::as_fd(&file), folder, temporary));
                if linked.is_ok() {
                    return Ok(());
                }
                return self.copy_contents(staged, (folder, temporary), (object, entry));
            }
            EntryKind::File { .. } => {
                return self.copy_contents(staged, (folder, temporary), (object, entry));
            }
        }
        self.set_metadata(folder, temporary, entry, object)
            .map_err(of_store)
    }

    fn copy_contents(
        &self,
        staged: BorrowedFd<'_>,
        (folder, temporary): (BorrowedFd<'_>, &[u8]),
        (object, entry): (u32, &Entry),
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let from = sys::open_beneath(staged, &entry.path, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let to = sys::open_beneath(folder, temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let (mut from, mut to) = (File::from(from), File::from(to));
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        std::io::copy(&mut from, &mut to).map_err(errno)?;
        let file = self.file_of(object);
        self.set_metadata(
            folder,
            temporary,
            file,
            self.first_of(object).unwrap_or(object),
        )
        .map_err(|_| Errno::PERM)?;
        rustix::fs::fsync(&to)
    }

    /// Notes that an entry has no place, with all that is in it.
    pub(super) fn note_unplaced(&self, object: u32, errno: Errno) {
        lock(&self.unplaced).insert(object, Some(words(errno)));
    }

    /// Whether the folder of an entry has no place; then the entry has none either.
    pub(super) fn is_in_unplaced(&self, object: u32, entry: &Entry) -> bool {
        let mut unplaced = lock(&self.unplaced);
        if unplaced.is_empty() {
            return false;
        }
        let folder = parent_of(&entry.path).and_then(|parent| {
            self.entries
                .binary_search_by(|one| one.path[..].cmp(parent))
                .ok()
        });
        let is_in = folder.is_some_and(|folder| unplaced.contains_key(&(folder as u32)));
        if is_in {
            unplaced.insert(object, None);
        }
        is_in
    }

    /// Names that the commit could not give, each with the reason, in order; the first ones, and how many more there are. Of a folder
    /// without a place only the folder is named.
    pub(super) fn unplaced(&self) -> (Vec<(Vec<u8>, String)>, u64) {
        let unplaced = lock(&self.unplaced);
        let mut named: Vec<(u32, String)> = unplaced
            .iter()
            .filter_map(|(object, why)| Some((*object, why.clone()?)))
            .collect();
        named.sort_unstable();
        let more = named.len().saturating_sub(UNPLACED_MAX) as u64;
        named.truncate(UNPLACED_MAX);
        let named = named.into_iter();
        let path = |object: u32| self.entries[object as usize].path.clone();
        (
            named.map(|(object, why)| (path(object), why)).collect(),
            more,
        )
    }
}

/// Whether an error is of the name that it was met at, and not of the file system.
pub(super) fn is_of_one_name(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOENT
            | Errno::IO
            | Errno::NOSPC
            | Errno::DQUOT
            | Errno::STALE
            | Errno::NOMEM
            | Errno::MFILE
            | Errno::NFILE
    )
}
