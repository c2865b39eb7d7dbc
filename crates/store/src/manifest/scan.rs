//! Reading a tree from disk without following links.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};

use super::{Entry, EntryKind, Manifest};
use crate::error::{Operation, StoreError};
use crate::sys;

impl Manifest {
    /// Describes the file or tree at `root`.
    ///
    /// The path must be resolved (as [`crate::Roots`] returns it) and is not resolved again: a link on it
    /// was put there since, and would lead to where nobody has checked.
    ///
    /// Below the root links are recorded, never followed, also when a directory is swapped for a
    /// link meanwhile. One directory is open at a time. Cost: one `lstat` an entry.
    ///
    /// # Errors
    /// [`StoreError::SymbolicLink`] for a link on the way to the root, else [`StoreError`] with the path of
    /// the first thing that vanished, may not be read, is a device, pipe or socket, or has a path too
    /// long to be sent.
    pub fn scan(root: &Path) -> Result<Self, StoreError> {
        let opened = sys::open_resolved_path(root, OFlags::PATH, Mode::empty());
        let opened =
            opened.map_err(|errno| StoreError::from_errno(Operation::Open, root, errno))?;
        let stat = rustix::fs::fstat(&opened)
            .map_err(|errno| StoreError::from_errno(Operation::Inspect, root, errno))?;
        let scan = Scan {
            root,
            dir: opened.as_fd(),
        };
        let mut entries = vec![scan.entry(Vec::new(), &stat)?];
        let mut pending: Vec<Vec<u8>> = Vec::new();
        if entries[0].kind == EntryKind::Directory {
            pending.push(Vec::new());
        }
        while let Some(path) = pending.pop() {
            let first = entries.len();
            scan.list(&path, &mut entries)?;
            let directories = entries[first..]
                .iter()
                .filter(|entry| entry.kind == EntryKind::Directory);
            pending.extend(directories.map(|entry| entry.path.clone()));
        }
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let manifest = Self { entries };
        manifest.check().map_err(|reason| StoreError::Manifest {
            path: root.to_owned(),
            reason,
        })?;
        Ok(manifest)
    }
}

struct Scan<'a> {
    root: &'a Path,
    dir: BorrowedFd<'a>,
}

impl Scan<'_> {
    fn full_path(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            self.root.to_owned()
        } else {
            self.root.join(OsStr::from_bytes(path))
        }
    }

    fn list(&self, path: &[u8], entries: &mut Vec<Entry>) -> Result<(), StoreError> {
        let failed = |errno| StoreError::from_errno(Operation::List, self.full_path(path), errno);
        let opened = sys::open_beneath(
            self.dir,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        );
        let opened = opened.map_err(failed)?;
        for item in Dir::read_from(&opened).map_err(failed)? {
            let item = item.map_err(failed)?;
            let name = item.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let mut full = Vec::with_capacity(path.len() + 1 + name.len());
            full.extend_from_slice(path);
            if !path.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(name);
            let stat = sys::stat_entry(opened.as_fd(), name);
            let stat = stat.map_err(|errno| {
                StoreError::from_errno(Operation::Inspect, self.full_path(&full), errno)
            })?;
            let mut entry = self.entry(full, &stat)?;
            if let EntryKind::Symlink { target } = &mut entry.kind {
                let read = rustix::fs::readlinkat(&opened, name, Vec::new());
                let read = read.map_err(|errno| {
                    StoreError::from_errno(Operation::Read, self.full_path(&entry.path), errno)
                })?;
                *target = read.into_bytes();
            }
            entries.push(entry);
        }
        Ok(())
    }

    /// The entry for what `stat` shows; a link's target is still to be read.
    fn entry(&self, path: Vec<u8>, stat: &Stat) -> Result<Entry, StoreError> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File {
                len: stat.st_size as u64,
            },
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink { target: Vec::new() },
            other => {
                return Err(StoreError::SpecialFile {
                    path: self.full_path(&path),
                    kind: sys::kind_in_words(other),
                });
            }
        };
        Ok(Entry {
            path,
            kind,
            mode: stat.st_mode & 0o7777,
            mtime_seconds: stat.st_mtime,
            mtime_nanoseconds: stat.st_mtime_nsec as u32,
        })
    }
}
