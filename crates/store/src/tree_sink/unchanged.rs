//! Modes, times, owners and attributes of what stays at the destination: they are those of the source in the end.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::same::{LOOKED_AT, Same, is_file};
use super::standing::{is_time, mode_of, times};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, Kept};
use crate::staging::SYNC_EACH_MAX;
use crate::{parallel, sys};

impl Tree {
    /// Gives files that stay as they are mode, owner and attributes of the source, where they have others. One that is not the same
    /// any more keeps its own.
    ///
    /// * `same`: what was the same shortly before.
    pub(super) fn set_modes_of_unchanged(&self, same: &Same) -> Result<(), StoreError> {
        let differing = self.unchanged.intersection(&same.differing);
        // Sorted by path, as the entries are.
        let unchanged: Vec<u32> = differing.iter().collect();
        let Some(first) = unchanged.first() else {
            return Ok(());
        };
        if self.root.is_none() {
            let set = self.set_where_different(self.parent.as_fd(), &self.name, *first, true);
            return set.map(|_| ());
        }
        let dest = self.open_dest()?;
        let whole = FileSystem::of(&dest).is_some_and(FileSystem::syncs_whole);
        let syncs_each = unchanged.len() <= SYNC_EACH_MAX || !whole;
        let is_any_set = AtomicBool::new(false);
        let chunks: Vec<&[u32]> = unchanged.chunks(LOOKED_AT).collect();
        parallel::for_each(&chunks, |chunk| {
            let mut folders = Folders::new(dest.as_fd());
            for object in *chunk {
                if let Ok((folder, name)) = folders.parent(&self.entry(*object).path)
                    && self.set_where_different(folder, name, *object, syncs_each)?
                {
                    is_any_set.store(true, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        if !syncs_each && is_any_set.into_inner() {
            let _ = rustix::fs::syncfs(&dest);
        }
        Ok(())
    }

    /// Whether something was set.
    ///
    /// * `syncs`: it is made safe at once.
    fn set_where_different(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        object: u32,
        syncs: bool,
    ) -> Result<bool, StoreError> {
        let entry = self.entry(object);
        if let EntryKind::Symlink { .. } = entry.kind {
            return Ok(self.set_link_where_different(folder, name, object));
        }
        let is_due = |stat: &Stat| {
            let is_kept = is_file(stat, entry) && self.is_kept(stat, object, folder, name);
            self.is_same(stat, object, folder, name) && !is_kept
        };
        // Of most files with owners and attributes nothing is to be set; of the others it was seen that something is.
        let is_plain = entry.kept == Kept::default();
        if !is_plain && !sys::stat_entry(folder, name).is_ok_and(|stat| is_due(&stat)) {
            return Ok(false);
        }
        let failed =
            |errno| StoreError::from_errno(Operation::SetMetadata, self.final_path(entry), errno);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = sys::open_beneath(folder, name, flags, Mode::empty());
        let is_readable = opened.is_ok();
        let opened = match opened {
            // Not ours to read.
            Err(errno) if errno != Errno::NOENT => {
                sys::open_beneath(folder, name, OFlags::PATH, Mode::empty())
            }
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            // Another program has put something else there, or nothing.
            Err(Errno::NOENT | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if !is_due(&stat) {
            return Ok(false);
        }
        match is_plain {
            true if is_readable => set_plain(&file, &stat, entry).map_err(failed)?,
            true if is_file(&stat, entry) => {
                sys::set_mode(file.as_fd(), mode_of(entry)).map_err(failed)?;
            }
            _ => {
                self.remove_others(file.as_fd(), object, entry);
                self.set_metadata(folder, name, entry, object)?;
            }
        }
        if syncs {
            let _ = rustix::fs::fsync(&file);
        }
        Ok(true)
    }

    /// The same of a link, as far as this process and the file system can: what a link leads to is as it is.
    fn set_link_where_different(&self, folder: BorrowedFd<'_>, name: &[u8], object: u32) -> bool {
        let entry = self.entry(object);
        let Ok(stat) = sys::stat_entry(folder, name) else {
            return false;
        };
        let is_set = is_time(&stat, entry) && self.is_kept(&stat, object, folder, name);
        !is_set
            && self.is_same(&stat, object, folder, name)
            && self.can_be_set(&stat, object)
            && self.set_metadata(folder, name, entry, object).is_ok()
    }
}

/// Gives a file mode and time of its entry, as far as it has others.
fn set_plain(file: &OwnedFd, stat: &Stat, entry: &Entry) -> Result<(), Errno> {
    if stat.st_mode & 0o7777 != mode_of(entry) {
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode_of(entry)))?;
    }
    match is_time(stat, entry) {
        true => Ok(()),
        false => rustix::fs::futimens(file, &times(entry)),
    }
}
