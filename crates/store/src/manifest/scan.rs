//! Reading a tree from disk without following links.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Entry, EntryKind, Manifest};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::staging::is_temporary;
use crate::sys;
use crate::version::Version;

/// Files that may not be read and are named in the refusal.
const UNREADABLE_NAMED: usize = 3;

/// A tree as its own host sees it.
#[derive(Debug, Clone)]
pub struct Scan {
    /// What every host may know of it.
    pub manifest: Arc<Manifest>,
    /// Of each entry, in the manifest's order: what only this host knows.
    pub versions: Arc<[Version]>,
    /// Temporary names of transfers (`.NAME.ropewalk-ID`) that were found and left out, with all below them.
    pub skipped: u64,
    /// Sockets, pipes and devices below the root, which have no bytes that could be copied: left out.
    pub special: u64,
}

impl Scan {
    /// Describes the file or tree at `root`.
    ///
    /// The path must be resolved (as [`crate::Roots`] returns it) and is not resolved again: a link on it
    /// was put there since, and would lead to an unchecked place.
    ///
    /// Below the root links are recorded, never followed, also when a directory is swapped for a
    /// link meanwhile. One directory is open at a time. Cost: an `lstat` and a question for the right to read an entry,
    /// and an attempt to read each empty file.
    ///
    /// # Errors
    /// [`StoreError::SymbolicLink`] for a link on the way to the root, [`StoreError::Unreadable`] with all files and
    /// folders that may not be read, [`StoreError::NoSize`] for the first file whose contents the system makes, else
    /// [`StoreError`] with the path of the first thing that vanished or has a path too long to be sent, and
    /// [`StoreError::SpecialFile`] for a root that is a device, pipe or socket.
    pub fn read(root: &Path) -> Result<Self, StoreError> {
        let opened = sys::open_resolved_path(root, OFlags::PATH, Mode::empty());
        let opened =
            opened.map_err(|errno| StoreError::from_errno(Operation::Open, root, errno))?;
        let stat = rustix::fs::fstat(&opened)
            .map_err(|errno| StoreError::from_errno(Operation::Inspect, root, errno))?;
        let mut walk = Walk {
            root,
            dir: opened.as_fd(),
            system: None,
            found: Vec::new(),
            skipped: 0,
            special: 0,
            unreadable: Vec::new(),
            unreadable_count: 0,
        };
        walk.root(&stat)?;
        let mut pending: Vec<Vec<u8>> = Vec::new();
        if walk
            .found
            .first()
            .is_some_and(|(root, _)| root.kind == EntryKind::Directory)
        {
            pending.push(Vec::new());
        }
        while let Some(path) = pending.pop() {
            let first = walk.found.len();
            walk.list(&path)?;
            let directories = walk.found[first..]
                .iter()
                .filter(|(entry, _)| entry.kind == EntryKind::Directory);
            pending.extend(directories.map(|(entry, _)| entry.path.clone()));
        }
        if walk.unreadable_count > 0 {
            walk.unreadable.sort();
            return Err(StoreError::Unreadable {
                paths: walk.unreadable,
                count: walk.unreadable_count,
            });
        }
        let (mut found, skipped, special) = (walk.found, walk.skipped, walk.special);
        found.sort_unstable_by(|a, b| a.0.path.cmp(&b.0.path));
        let (entries, versions): (Vec<Entry>, Vec<Version>) = found.into_iter().unzip();
        let manifest = Manifest { entries };
        manifest.check().map_err(|reason| StoreError::Manifest {
            path: root.to_owned(),
            reason,
        })?;
        Ok(Self {
            manifest: Arc::new(manifest),
            versions: versions.into(),
            skipped,
            special,
        })
    }
}

impl Manifest {
    /// What [`Scan::read`] finds, without what only this host knows.
    ///
    /// # Errors
    /// As [`Scan::read`].
    pub fn scan(root: &Path) -> Result<Self, StoreError> {
        Scan::read(root).map(|scan| Arc::unwrap_or_clone(scan.manifest))
    }
}

struct Walk<'a> {
    root: &'a Path,
    dir: BorrowedFd<'a>,
    /// The file system met last, by its device.
    system: Option<(u64, FileSystem)>,
    found: Vec<(Entry, Version)>,
    skipped: u64,
    special: u64,
    unreadable: Vec<PathBuf>,
    unreadable_count: u64,
}

/// A file as the system's calls name it.
#[derive(Clone, Copy)]
struct Named<'a> {
    folder: BorrowedFd<'a>,
    name: &'a [u8],
    /// What keeps a link from being followed; nothing for the root's own descriptor, which `/proc` shows as a link.
    no_follow: OFlags,
}

impl Named<'_> {
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // A pipe, or a lease that another program holds, must not block.
        let flags = flags | self.no_follow | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(self.folder, self.name, flags, Mode::empty())
    }

    /// Whether a file of no size gives bytes all the same, and does not just grow.
    fn gives_bytes(&self) -> bool {
        let Ok(file) = self.open(OFlags::RDONLY) else {
            return false;
        };
        let read = rustix::io::read(&file, &mut [0; 1]);
        read == Ok(1) && rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_size == 0)
    }
}

impl Walk<'_> {
    fn full_path(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            self.root.to_owned()
        } else {
            self.root.join(OsStr::from_bytes(path))
        }
    }

    fn root(&mut self, stat: &Stat) -> Result<(), StoreError> {
        let name = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        let named = Named {
            folder: rustix::fs::CWD,
            name: name.as_bytes(),
            no_follow: OFlags::empty(),
        };
        let entry = self.entry(Vec::new(), stat)?;
        self.take(entry, stat, named)
    }

    fn list(&mut self, path: &[u8]) -> Result<(), StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = match sys::open_beneath(self.dir, path, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                self.refuse(path);
                return Ok(());
            }
            opened => opened.map_err(|errno| self.failed(Operation::List, path, errno))?,
        };
        let failed = |errno| StoreError::from_errno(Operation::List, self.full_path(path), errno);
        for item in Dir::read_from(&opened).map_err(failed)? {
            let item = item.map_err(|errno| self.failed(Operation::List, path, errno))?;
            let name = item.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if is_temporary(name) {
                self.skipped += 1;
                continue;
            }
            let mut full = Vec::with_capacity(path.len() + 1 + name.len());
            full.extend_from_slice(path);
            if !path.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(name);
            let stat = sys::stat_entry(opened.as_fd(), name)
                .map_err(|errno| self.failed(Operation::Inspect, &full, errno))?;
            let mut entry = match self.entry(full, &stat) {
                Err(StoreError::SpecialFile { .. }) => {
                    self.special += 1;
                    continue;
                }
                entry => entry?,
            };
            if let EntryKind::Symlink { target } = &mut entry.kind {
                let read = rustix::fs::readlinkat(&opened, name, Vec::new());
                let read =
                    read.map_err(|errno| self.failed(Operation::Read, &entry.path, errno))?;
                *target = read.into_bytes();
            }
            let named = Named {
                folder: opened.as_fd(),
                name,
                no_follow: OFlags::NOFOLLOW,
            };
            self.take(entry, &stat, named)?;
        }
        Ok(())
    }

    /// Adds an entry; of a file only if its bytes can be had.
    fn take(&mut self, entry: Entry, stat: &Stat, named: Named<'_>) -> Result<(), StoreError> {
        let mut version = Version::UNKNOWN;
        if let EntryKind::File { len } = entry.kind {
            let system = self.system(stat.st_dev, named);
            if system.is_some_and(FileSystem::makes_contents) {
                return Err(self.no_size(&entry));
            }
            let access =
                rustix::fs::accessat(named.folder, named.name, Access::READ_OK, AtFlags::empty());
            if access == Err(Errno::ACCESS) {
                self.refuse(&entry.path);
                return Ok(());
            }
            if len == 0 && named.gives_bytes() {
                return Err(self.no_size(&entry));
            }
            if system.is_some_and(FileSystem::keeps_inodes) {
                version = Version::of(stat);
            }
        }
        self.found.push((entry, version));
        Ok(())
    }

    /// The file system of a device; asked once for files of one device that come after each other.
    fn system(&mut self, device: u64, named: Named<'_>) -> Option<FileSystem> {
        match self.system {
            Some((known, system)) if known == device => Some(system),
            _ => {
                let system = FileSystem::of(named.open(OFlags::PATH).ok()?)?;
                self.system = Some((device, system));
                Some(system)
            }
        }
    }

    fn refuse(&mut self, path: &[u8]) {
        self.unreadable_count += 1;
        if self.unreadable.len() < UNREADABLE_NAMED {
            self.unreadable.push(self.full_path(path));
        }
    }

    fn failed(&self, operation: Operation, path: &[u8], errno: Errno) -> StoreError {
        StoreError::from_errno(operation, self.full_path(path), errno)
    }

    fn no_size(&self, entry: &Entry) -> StoreError {
        StoreError::NoSize {
            path: self.full_path(&entry.path),
        }
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
