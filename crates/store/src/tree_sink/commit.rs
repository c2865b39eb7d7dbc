//! The end of a tree: what has no bytes is made, modes and times are set, names are given.
//!
//! ```text
//!  complete -> metadata of files and links -> sync -+-> DEST absent: folders' metadata -> rename -----+-> sync
//!                                                   +-> DEST exists: rename each -> folders' metadata +
//! ```

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::Tree;
use crate::error::{Operation, StoreError};
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::staging::{SYNC_EACH_MAX, remove_entry};
use crate::sys;

/// The permission bits that are set. Not the set-user and set-group bits: the owner is not kept.
const MODE_MASK: u32 = 0o1777;

impl Tree {
    pub(super) fn commit(&self) -> Result<(), StoreError> {
        self.check_replaceable()?;
        let Some(root) = &self.root else {
            return self.commit_single();
        };
        let merge = Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?.is_some();
        let dest = if merge { Some(self.open_dest()?) } else { None };
        let mut folders = Folders::new(root.as_fd());
        let mut moved = dest.as_ref().map(|dest| Folders::new(dest.as_fd()));
        for entry in self.entries.iter().filter(|entry| !entry.path.is_empty()) {
            self.complete(&mut folders, moved.as_mut(), entry)?;
        }
        self.sync_all(root)?;
        match &dest {
            None => {
                self.set_folders(root.as_fd(), &HashSet::new())?;
                self.rename_stage()?;
                self.sync_all(root)?;
            }
            Some(dest) => {
                let old = self.move_entries(root, dest)?;
                self.remove_stage();
                self.set_folders(dest.as_fd(), &old)?;
                self.sync_all(dest)?;
            }
        }
        rustix::fs::fsync(&self.parent).map_err(|errno| self.failed(Operation::Sync, errno))
    }

    fn failed(&self, operation: Operation, errno: Errno) -> StoreError {
        StoreError::from_errno(operation, &self.dest, errno)
    }

    fn commit_single(&self) -> Result<(), StoreError> {
        let Some(entry) = self.entries.first() else {
            return Ok(());
        };
        let folder = self.stage_parent.as_fd();
        self.complete_file(folder, &self.temporary, entry)?;
        let failed = |operation, errno| StoreError::from_errno(operation, self.stage_path(), errno);
        // Nameable without rights to its contents, yet a descriptor to sync is needed: taken before the mode is set.
        let file = sys::open_beneath(
            folder,
            &self.temporary,
            OFlags::RDONLY | OFlags::NONBLOCK,
            Mode::empty(),
        );
        self.set_metadata(folder, &self.temporary, entry)?;
        file.and_then(rustix::fs::fsync)
            .map_err(|errno| failed(Operation::Sync, errno))?;
        self.rename_stage()?;
        rustix::fs::fsync(&self.parent).map_err(|errno| failed(Operation::Sync, errno))
    }

    /// Makes sure that an entry stands in the stage with its bytes, mode and time. `moved` is DEST, where an
    /// earlier, interrupted commit may have put it.
    fn complete(
        &self,
        folders: &mut Folders<'_>,
        moved: Option<&mut Folders<'_>>,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let failed =
            |errno| StoreError::from_errno(Operation::Create, self.staged_path(entry), errno);
        if entry.kind == EntryKind::Directory {
            return self.make_folder(folders, &entry.path);
        }
        if folders.kind(&entry.path).map_err(failed)?.is_none()
            && !entry.is_empty()
            && self.moving.load(Ordering::Acquire)
            && let Some(moved) = moved
            && let Some(true) = self.stands(moved, entry)
        {
            return Ok(());
        }
        let (folder, name) = folders.parent(&entry.path).map_err(failed)?;
        match &entry.kind {
            EntryKind::Symlink { target } => match rustix::fs::symlinkat(&**target, folder, name) {
                Ok(()) => self.set_metadata(folder, name, entry),
                Err(Errno::EXIST) => self.set_metadata(folder, name, entry),
                Err(errno) => Err(failed(errno)),
            },
            EntryKind::File { .. } | EntryKind::Directory => {
                self.complete_file(folder, name, entry)?;
                self.set_metadata(folder, name, entry)
            }
        }
    }

    /// Whether the finished file stands in DEST already.
    fn stands(&self, folders: &mut Folders<'_>, entry: &Entry) -> Option<bool> {
        let (folder, name) = folders.parent(&entry.path).ok()?;
        let stat = sys::stat_entry(folder, name).ok()?;
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let same_time = stat.st_mtime == entry.mtime_seconds
            && stat.st_mtime_nsec as u32 == entry.mtime_nanoseconds;
        Some(file && stat.st_size as u64 == entry.len() && same_time)
    }

    /// Makes an empty file, checks the length of any other.
    fn complete_file(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let path = || self.staged_path(entry);
        let failed = |errno| StoreError::from_errno(Operation::Create, path(), errno);
        let staged = match sys::stat_entry(folder, name) {
            Ok(stat) => stat.st_size as u64,
            Err(Errno::NOENT) if entry.is_empty() => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                sys::open_beneath(folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
                0
            }
            Err(Errno::NOENT) => 0,
            Err(errno) => return Err(failed(errno)),
        };
        if staged < entry.len() {
            return Err(StoreError::Incomplete {
                path: path(),
                len: staged,
                wanted: entry.len(),
            });
        }
        if staged > entry.len() {
            // Left over from an attempt that the name should have told apart; the end is not ours.
            let file = sys::open_beneath(
                folder,
                name,
                OFlags::WRONLY | OFlags::NONBLOCK,
                Mode::empty(),
            )
            .map_err(failed)?;
            rustix::fs::ftruncate(&file, entry.len()).map_err(failed)?;
        }
        Ok(())
    }

    fn set_metadata(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let failed =
            |errno| StoreError::from_errno(Operation::SetMetadata, self.staged_path(entry), errno);
        if let EntryKind::Symlink { .. } = entry.kind {
            return rustix::fs::utimensat(folder, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed);
        }
        let opened =
            sys::open_beneath(folder, name, OFlags::PATH, Mode::empty()).map_err(failed)?;
        sys::set_metadata(opened.as_fd(), entry.mode & MODE_MASK, &times(entry)).map_err(failed)
    }

    /// Modes and times of all folders, the deepest first: making or closing one changes those above it.
    fn set_folders(&self, base: BorrowedFd<'_>, old: &HashSet<&[u8]>) -> Result<(), StoreError> {
        for entry in self
            .entries
            .iter()
            .rev()
            .filter(|entry| entry.kind == EntryKind::Directory)
            // The root of a bundle has no mode and no time to give to a folder that stood there.
            .filter(|entry| !(entry.is_of_none() && old.contains(&[][..])))
        {
            let opened = sys::open_beneath(
                base,
                &entry.path,
                OFlags::PATH | OFlags::DIRECTORY,
                Mode::empty(),
            );
            let set = opened.and_then(|folder| match entry.is_of_none() {
                true => sys::set_mode(folder.as_fd(), 0o777 & !sys::umask()),
                false => sys::set_metadata(folder.as_fd(), entry.mode & MODE_MASK, &times(entry)),
            });
            match set {
                // A folder that was there before and is somebody else's keeps what its owner gave it.
                Err(Errno::PERM) if old.contains(entry.path.as_slice()) => {}
                other => other.map_err(|errno| {
                    StoreError::from_errno(Operation::SetMetadata, self.final_path(entry), errno)
                })?,
            }
        }
        Ok(())
    }

    /// Gives the temporary name the final one.
    fn rename_stage(&self) -> Result<(), StoreError> {
        let (from, to) = (&*self.temporary, &*self.name);
        let plain = || rustix::fs::renameat(&self.stage_parent, from, &self.parent, to);
        let renamed = if self.root.is_some() {
            match rustix::fs::renameat_with(
                &self.stage_parent,
                from,
                &self.parent,
                to,
                RenameFlags::NOREPLACE,
            ) {
                // Some network file systems know no flags.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => plain(),
                other => other,
            }
        } else {
            plain()
        };
        renamed.map_err(|errno| self.failed(Operation::Rename, errno))
    }

    /// Moves each entry to DEST, a whole folder at once where DEST has none of that name. Returns the
    /// folders that were there before.
    fn move_entries(&self, root: &OwnedFd, dest: &OwnedFd) -> Result<HashSet<&[u8]>, StoreError> {
        let (mut from, mut to) = (Folders::new(root.as_fd()), Folders::new(dest.as_fd()));
        let mut old: HashSet<&[u8]> = HashSet::from([&[][..]]);
        let moving = self.moving.swap(true, Ordering::AcqRel);
        for entry in &self.entries {
            let path = entry.path.as_slice();
            let Some(parent) = parent_of(path) else {
                continue;
            };
            // Moved with its folder.
            if !old.contains(parent) {
                continue;
            }
            let failed =
                |errno| StoreError::from_errno(Operation::Rename, self.final_path(entry), errno);
            let is_folder = entry.kind == EntryKind::Directory;
            if is_folder && to.kind(path).map_err(failed)?.is_some() {
                old.insert(path);
                continue;
            }
            let (from, name) = from.parent(path).map_err(failed)?;
            let (to, _) = to.parent(path).map_err(failed)?;
            let mut renamed = rustix::fs::renameat(from, name, to, name);
            // A folder that an earlier copy made read-only: its mode is set again when all is in it.
            if renamed == Err(Errno::ACCESS) && sys::open_up(to).is_ok() {
                renamed = rustix::fs::renameat(from, name, to, name);
            }
            match renamed {
                // An earlier commit that was interrupted moved it; `complete` has seen it there.
                Err(Errno::NOENT)
                    if moving && !entry.is_empty() && sys::stat_entry(to, name).is_ok() => {}
                other => other.map_err(failed)?,
            }
        }
        Ok(old)
    }

    /// Brings everything below a folder to stable storage, names, modes and times included.
    fn sync_all(&self, base: &OwnedFd) -> Result<(), StoreError> {
        if self.entries.len() > SYNC_EACH_MAX {
            return rustix::fs::syncfs(base).map_err(|errno| self.failed(Operation::Sync, errno));
        }
        for entry in self
            .entries
            .iter()
            .filter(|entry| !matches!(entry.kind, EntryKind::Symlink { .. }))
        {
            let opened = sys::open_beneath(
                base.as_fd(),
                &entry.path,
                OFlags::RDONLY | OFlags::NONBLOCK,
                Mode::empty(),
            );
            match opened {
                Ok(file) => rustix::fs::fsync(&file),
                // Not ours to read; nor is an entry here that has moved on. Its folder's sync covers the name.
                Err(Errno::ACCESS | Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            }
            .map_err(|errno| {
                StoreError::from_errno(Operation::Sync, self.final_path(entry), errno)
            })?;
        }
        Ok(())
    }

    /// Removes the temporary name and all below it. What cannot be removed stays, under a name that
    /// says whose it is.
    pub(super) fn remove_stage(&self) {
        // By the descriptor of its folder: the path may lead elsewhere by now.
        remove_entry(&self.stage_parent, &self.temporary);
    }
}

fn times(entry: &Entry) -> Timestamps {
    let last_modification = Timespec {
        tv_sec: entry.mtime_seconds,
        tv_nsec: entry.mtime_nanoseconds.into(),
    };
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification,
    }
}
