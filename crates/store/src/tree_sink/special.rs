//! Special files of a copy: pipes, sockets and devices, made on commit under the temporary name and then moved. Those that this process
//! may not make are counted, and the copy is without them. None is opened.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use super::Tree;
use super::standing::is_time;
use crate::error::StoreError;
use crate::manifest::{Entry, EntryKind, Special};
use crate::open_files::lock;
use crate::sys;

impl Tree {
    /// Whether the sources were scanned with their special files: then those of DEST are part of the copy, too.
    pub(super) fn has_specials(entries: &[Entry]) -> bool {
        // Recorded together with owners.
        entries.iter().any(|entry| entry.kept.owner.is_some())
    }

    /// Whether a special file could not be made: it has no name.
    pub(super) fn is_unmade(&self, object: u32) -> bool {
        lock(&self.unmade).contains(&object)
    }

    pub(super) fn unmade(&self) -> HashSet<u32> {
        lock(&self.unmade).clone()
    }

    /// Makes a special file in the stage; whether it was.
    pub(super) fn make_special(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        object: u32,
        special: Special,
    ) -> Result<bool, StoreError> {
        let (kind, device) = special.file_type();
        let make = || rustix::fs::mknodat(folder, name, kind, Mode::RUSR | Mode::WUSR, device);
        let made = match make() {
            // An earlier attempt to commit made it.
            Err(Errno::EXIST) if self.is_own_special(folder, name, object, special) => {
                rustix::fs::unlinkat(folder, name, AtFlags::empty()).and_then(|()| make())
            }
            other => other,
        };
        let entry = &self.entries[object as usize];
        match made {
            Ok(()) => {
                let stat = sys::stat_entry(folder, name).map_err(|errno| {
                    StoreError::from_create(self.staged_path(entry), &self.stage_parent, errno)
                })?;
                lock(&self.made).insert(stat.st_ino, object);
                lock(&self.unmade).remove(&object);
                Ok(true)
            }
            // No rights, or a file system that has none.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                lock(&self.unmade).insert(object);
                Ok(false)
            }
            Err(errno) => Err(StoreError::from_create(
                self.staged_path(entry),
                &self.stage_parent,
                errno,
            )),
        }
    }

    /// Whether what has its name in the stage is such a file, and no other entry's.
    fn is_own_special(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        object: u32,
        special: Special,
    ) -> bool {
        sys::stat_entry(folder, name).is_ok_and(|stat| {
            let maker = lock(&self.made).get(&stat.st_ino).copied();
            Special::of(&stat) == Some(special) && maker.is_none_or(|maker| maker == object)
        })
    }

    /// Whether what DEST has is a special file of an entry, with the time of the source.
    pub(super) fn is_same_special(stat: &Stat, entry: &Entry, special: Special) -> bool {
        Special::of(stat) == Some(special) && is_time(stat, entry)
    }

    /// Special files, and further names of these, that have no name.
    pub(super) fn specials_not_kept(&self) -> u64 {
        lock(&self.unmade).len() as u64
    }

    /// Whether an entry, or the file that it is a further name of, is a special file.
    pub(super) fn special_of(&self, object: u32) -> Option<Special> {
        match self.file_of(object).kind {
            EntryKind::Special(special) => Some(special),
            _ => None,
        }
    }
}
