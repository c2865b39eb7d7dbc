//! A tree as what staging writes to: its files are made below the temporary name at their first write.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ropewalk_model::CHUNK_LEN;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Tree, join};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::manifest::{Entry, parent_of};
use crate::open_files::lock;
use crate::staging::{SYNC_EACH_MAX, Target, reserve};
use crate::{parallel, sys};

impl Tree {
    pub(super) fn open_object(&self, object: u32) -> Result<File, StoreError> {
        // Object numbers come from our own layout, which numbers these entries.
        let entry = &self.entries[object as usize];
        let (folder, path) = self.place(entry);
        let staged = self.staged_path(entry);
        let failed = |errno| StoreError::from_create(&staged, folder, errno);
        let open = |flags| {
            sys::open_beneath(
                folder,
                path,
                OFlags::RDWR | OFlags::NONBLOCK | flags,
                Mode::RUSR | Mode::WUSR,
            )
        };
        if self.moving.load(Ordering::Acquire) || self.is_named_early(object) {
            return self
                .open_moved(entry, open(OFlags::empty()))
                .map_err(failed);
        }
        let new = match self.was_told && self.root.is_none() {
            // One of several nodes has made it.
            true => OFlags::empty(),
            false => OFlags::CREATE | OFlags::EXCL,
        };
        // What another thread writes before the space is reserved would take that space again, zeros too. For a file of one write
        // there is nothing to reserve.
        let is_long = entry.len() > CHUNK_LEN;
        let _reserving = is_long.then(|| lock(&self.reserving));
        let is_begun = self.begun[object as usize].load(Ordering::Acquire) != 0;
        let made = match open(new) {
            // What was written of it is gone.
            Ok(_) if is_begun && new.contains(OFlags::CREATE) => Err(Errno::NOENT),
            Err(Errno::NOENT) if self.root.is_some() && !is_begun => {
                self.make_parents(&entry.path)?;
                open(new)
            }
            other => other,
        };
        match made {
            Ok(file) => {
                let file = File::from(file);
                let inode = self.claim(&file, object)?;
                lock(&self.new_names).insert(parent_of(&entry.path).unwrap_or_default().to_vec());
                if is_long {
                    self.reserve_file(&file, &staged, object)?;
                }
                self.note_begun(object, inode);
                Ok(file)
            }
            Err(Errno::EXIST) => {
                let file = open(OFlags::empty()).map(File::from).map_err(failed)?;
                let inode = self.claim(&file, object)?;
                if lock(&self.unreserved).contains(&object) {
                    self.reserve_file(&file, &staged, object)?;
                }
                self.note_begun(object, inode);
                Ok(file)
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Reserves the space of a file. Where there is too little it is tried again when the file is next opened.
    fn reserve_file(&self, file: &File, staged: &Path, object: u32) -> Result<(), StoreError> {
        let reserved = reserve(file, staged, 0, self.entries[object as usize].len());
        let mut unreserved = lock(&self.unreserved);
        match reserved.is_err() {
            true => unreserved.insert(object),
            false => unreserved.remove(&object),
        };
        reserved
    }

    pub(super) fn note_begun(&self, object: u32, inode: u64) {
        self.begun[object as usize].store(inode, Ordering::Release);
    }

    /// Notes which entry a staged file is of; refuses one that another entry made, under a name that the file system takes
    /// for the same. A file that an earlier attempt or another node made is taken as it is. Its inode.
    pub(super) fn claim(&self, file: impl AsFd, object: u32) -> Result<u64, StoreError> {
        let stat = rustix::fs::fstat(file).map_err(|errno| {
            StoreError::from_errno(Operation::Inspect, self.path(object), errno)
        })?;
        self.claim_inode(stat.st_ino, object)?;
        Ok(stat.st_ino)
    }

    pub(super) fn claim_inode(&self, inode: u64, object: u32) -> Result<(), StoreError> {
        self.forget_inode(inode);
        let first = *lock(&self.made).entry(inode).or_insert(object);
        if first == object {
            return Ok(());
        }
        Err(StoreError::SameFile {
            path: self.path(object),
            other: self.path(first),
        })
    }

    /// A file where a commit that began elsewhere has left it: in the stage, or under its final name.
    fn open_moved(&self, entry: &Entry, staged: Result<OwnedFd, Errno>) -> Result<File, Errno> {
        if !matches!(staged, Err(Errno::NOENT)) {
            return staged.map(File::from);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let (folder, path) = match &self.root {
            None => (self.parent.as_fd(), self.name.clone()),
            Some(_) => {
                let path = [&self.name[..], b"/", &entry.path].concat();
                (self.parent.as_fd(), path)
            }
        };
        sys::open_beneath(folder, &path, flags, Mode::empty()).map(File::from)
    }

    /// Makes the folders above a path of the tree that are missing.
    pub(super) fn make_parents(&self, path: &[u8]) -> Result<(), StoreError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let mut folders = Folders::new(root.as_fd());
        let cuts = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at);
        for cut in cuts {
            self.make_folder(&mut folders, &path[..cut])?;
        }
        Ok(())
    }

    pub(super) fn make_folder(
        &self,
        folders: &mut Folders<'_>,
        path: &[u8],
    ) -> Result<(), StoreError> {
        let made = folders
            .parent(path)
            .and_then(|(folder, name)| rustix::fs::mkdirat(folder, name, Mode::RWXU));
        match made {
            Ok(()) => {
                lock(&self.new_names).insert(parent_of(path).unwrap_or_default().to_vec());
                Ok(())
            }
            Err(Errno::EXIST) => Ok(()),
            Err(errno) => {
                let path = join(&self.stage_path(), path);
                Err(StoreError::from_create(path, &self.stage_parent, errno))
            }
        }
    }

    fn sync_folder(&self, path: &[u8]) -> Result<(), StoreError> {
        let Some(root) = &self.root else {
            return sys::sync_folder(&self.stage_parent).map_err(|errno| {
                StoreError::from_errno(Operation::Sync, &self.stage_parent_path, errno)
            });
        };
        let opened = sys::open_beneath(
            root.as_fd(),
            path,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        );
        let synced = opened.and_then(sys::sync_folder);
        synced.map_err(|errno| {
            StoreError::from_errno(Operation::Sync, join(&self.stage_path(), path), errno)
        })
    }
}

impl Target for Tree {
    fn open(&self, object: u32) -> Result<File, StoreError> {
        self.open_object(object)
    }

    fn open_made(&self, object: u32) -> Result<File, StoreError> {
        let entry = &self.entries[object as usize];
        let (folder, path) = self.place(entry);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let staged = sys::open_beneath(folder, path, flags, Mode::empty());
        // Asked now: it may have got its name since the stage was looked at.
        let opened = match self.moving.load(Ordering::Acquire) || self.is_named_early(object) {
            true => self.open_moved(entry, staged),
            false => staged.map(File::from),
        };
        opened.map_err(|errno| {
            StoreError::from_errno(Operation::Open, self.staged_path(entry), errno)
        })
    }

    fn path(&self, object: u32) -> PathBuf {
        self.entries
            .get(object as usize)
            .map_or_else(|| self.stage_path(), |entry| self.staged_path(entry))
    }

    fn is_whole(&self, object: u32, len: u64) -> bool {
        self.entries[object as usize].len() == len
    }

    fn written_whole(&self, object: u32, file: &File) {
        self.set_while_open(object, file);
    }

    fn sync_names(&self) -> Result<(), StoreError> {
        let new = std::mem::take(&mut *lock(&self.new_names));
        if let Some(root) = self.filesystem().filter(|_| new.len() > SYNC_EACH_MAX) {
            return rustix::fs::syncfs(root).map_err(|errno| {
                StoreError::from_errno(Operation::Sync, self.stage_path(), errno)
            });
        }
        let new: Vec<Vec<u8>> = new.into_iter().collect();
        parallel::for_each(&new, |path| self.sync_folder(path))?;
        parallel::for_each(&self.changed_folders(), |path| {
            self.sync_changed_folder(path)
        })
    }

    fn has_unsynced_names(&self) -> bool {
        self.is_early() && !self.changed_folders().is_empty()
    }

    fn sync_with_metadata(&self, object: u32) -> Option<Result<(), StoreError>> {
        self.sync_if_ready(object)
    }

    fn filesystem(&self) -> Option<&OwnedFd> {
        let root = self.root.as_ref()?;
        let is_whole = || FileSystem::of(root).is_some_and(FileSystem::syncs_whole);
        self.syncs_whole.get_or_init(is_whole).then_some(root)
    }
}
