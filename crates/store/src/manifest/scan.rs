//! Reading a tree from disk without following links.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::codec::oddity;
use super::left_out::{LeftOut, bounded, reason};
use super::names::Names;
use super::{Entry, EntryKind, Keep, Kept, Manifest, PATH_LEN_MAX, Reader, Scanning, Special};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::filter::Filter;
use crate::staging::is_temporary;
use crate::sys;
use crate::version::Version;

/// Names that are counted together.
const COUNTED: usize = 16;

/// Of a file below the root whose contents the system makes.
const NO_SIZE: &str = "it has no size before it is read: the system makes its contents";

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
    /// Files and folders below the root that cannot be read, or vanished during the scan, by path. Such a file is an entry
    /// of the manifest if its size is known, so that a replica can supply its bytes; a folder is one if something below it is.
    pub left_out: Vec<LeftOut>,
    /// Further ones, which are not named and are no entries.
    pub left_out_more: u64,
    /// Extended attributes that could not be read and are not recorded.
    pub attributes_unread: u64,
    /// Files with several names, where these were asked for.
    pub(super) names: Names,
}

impl Scan {
    /// Describes the file or tree at `root`.
    ///
    /// The path must be resolved (as [`crate::Roots`] returns it) and is not resolved again: a link on it
    /// was put there since, and would lead to an unchecked place.
    ///
    /// Below the root links are recorded, never followed, also when a directory is swapped for a
    /// link meanwhile. Several threads read a large tree. Cost: an `lstat` an entry, a question for the right to read
    /// a file of another user, and an attempt to read each empty file.
    ///
    /// # Errors
    /// [`StoreError::SymbolicLink`] for a link on the way to the root, [`StoreError::Unreadable`] for a root that may not be
    /// read, [`StoreError::NoSize`] for a root that is a file whose contents the system makes, and [`StoreError::SpecialFile`]
    /// for a root that is a device, pipe or socket, unless these are recorded.
    pub fn read(root: &Path) -> Result<Self, StoreError> {
        Self::read_keeping(root, Keep::default())
    }

    /// As [`Scan::read`], and records owners, extended attributes and hard links as asked. Cost: a call more an entry for the
    /// attributes, and one for each of them; memory for each file with several names.
    ///
    /// # Errors
    /// As [`Scan::read`].
    pub fn read_keeping(root: &Path, keep: Keep) -> Result<Self, StoreError> {
        Self::read_filtered(root, keep, &Filter::default(), b"", &Scanning::default())
    }

    /// As [`Scan::read_keeping`], without the entries that a filter excludes. Excluded folders are not listed.
    ///
    /// * `name`: what the root is called in the copy; empty where it is the copy.
    /// * `scanning`: counts what is found, and can stop it.
    ///
    /// # Errors
    /// As [`Scan::read`].
    pub fn read_filtered(
        root: &Path,
        keep: Keep,
        filter: &Filter,
        name: &[u8],
        scanning: &Scanning,
    ) -> Result<Self, StoreError> {
        let opened = sys::open_resolved_path(root, OFlags::PATH, Mode::empty());
        let opened =
            opened.map_err(|errno| StoreError::from_errno(Operation::Open, root, errno))?;
        let mut walk = Walk::new(root, opened.as_fd(), keep, filter, name, scanning);
        if walk.begin()? == EntryKind::Directory {
            walk.below(Vec::new())?;
        }
        walk.sort();
        walk.end()
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

pub(super) struct Walk<'a> {
    root: &'a Path,
    pub(super) dir: BorrowedFd<'a>,
    /// Of this process: it may read what is its own, if the mode says so.
    user: u32,
    /// The file system met last, by its device.
    system: Option<(u64, FileSystem)>,
    pub(super) found: Vec<(Entry, Version)>,
    skipped: u64,
    /// Paths of special files that are not recorded; a name can be met twice.
    special: Vec<Vec<u8>>,
    pub(super) left_out: Vec<LeftOut>,
    /// Folders that were found and cannot be listed. What a list names in them can be found all the same.
    dropped: HashSet<Vec<u8>>,
    reader: Reader,
    names: Names,
    pub(super) filter: &'a Filter,
    /// What the root is called in the copy.
    name: &'a [u8],
    /// Of some names: how many, and how long they took.
    pub(super) looked_at: (u32, Duration),
    pub(super) scanning: &'a Scanning,
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

/// An open folder and the names in it.
type Listed = (OwnedFd, Vec<Vec<u8>>);

impl<'a> Walk<'a> {
    /// * `dir`: the root, opened.
    /// * `name`: what the root is called in the copy.
    pub(super) fn new(
        root: &'a Path,
        dir: BorrowedFd<'a>,
        keep: Keep,
        filter: &'a Filter,
        name: &'a [u8],
        scanning: &'a Scanning,
    ) -> Self {
        Self {
            root,
            dir,
            user: rustix::process::geteuid().as_raw(),
            system: None,
            found: Vec::new(),
            skipped: 0,
            special: Vec::new(),
            left_out: Vec::new(),
            dropped: HashSet::new(),
            reader: Reader::new(keep),
            names: Names::new(keep.links),
            filter,
            name,
            looked_at: (0, Duration::ZERO),
            scanning,
        }
    }

    /// Adds the root; what it is.
    pub(super) fn begin(&mut self) -> Result<EntryKind, StoreError> {
        let stat = rustix::fs::fstat(self.dir)
            .map_err(|errno| StoreError::from_errno(Operation::Inspect, self.root, errno))?;
        self.root(&stat)?;
        let root = self.found.first();
        Ok(root.map_or(EntryKind::Directory, |(root, _)| root.kind.clone()))
    }

    /// Brings what was found into the order of a manifest. Parts of the walk that are in order are merged.
    pub(super) fn sort(&mut self) {
        self.found.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    }

    /// The scan, of entries in their order.
    pub(super) fn end(mut self) -> Result<Scan, StoreError> {
        self.keep_one_of_each();
        let (mut found, skipped, special) = (self.found, self.skipped, self.special);
        let attributes_unread = self.reader.unread;
        let (left_out, left_out_more) = bounded(self.left_out, &self.dropped, &mut found);
        let (mut entries, versions): (Vec<Entry>, Vec<Version>) = found.into_iter().unzip();
        let names = self.names;
        names.join(&mut entries);
        let manifest = Manifest { entries };
        manifest.check().map_err(|reason| StoreError::Manifest {
            path: self.root.to_owned(),
            reason,
        })?;
        Ok(Scan {
            manifest: Arc::new(manifest),
            versions: versions.into(),
            skipped,
            special: special.len() as u64,
            left_out,
            left_out_more,
            attributes_unread,
            names,
        })
    }

    /// Folders that change while they are read can give a name twice, and so can a list. Of what was found twice a folder stays, as
    /// something below it was found, too.
    fn keep_one_of_each(&mut self) {
        self.found.dedup_by(|next, kept| {
            let is_same = next.0.path == kept.0.path;
            if is_same && next.0.kind == EntryKind::Directory {
                std::mem::swap(next, kept);
            }
            is_same
        });
        self.left_out.sort();
        self.left_out.dedup_by(|next, kept| next.path == kept.path);
        self.special.sort_unstable();
        self.special.dedup();
    }

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
        let mut entry = self.entry(Vec::new(), stat)?;
        entry.kept = self.reader.read_opened(self.dir, stat);
        self.take(entry, stat, named)
    }

    /// Adds what is directly in a folder.
    pub(super) fn list(&mut self, path: &[u8]) -> Result<(), StoreError> {
        match self.names_in(path)? {
            Some((opened, names)) => self.add_names(opened.as_fd(), path, &names),
            None => Ok(()),
        }
    }

    /// Opens a folder and lists it; `None` for one that is left out.
    pub(super) fn names_in(&mut self, path: &[u8]) -> Result<Option<Listed>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = sys::open_beneath(self.dir, path, flags, Mode::empty());
        let listed = opened.and_then(|opened| Ok((Dir::read_from(&opened)?, opened)));
        let (items, opened) = match listed {
            Ok(listed) => listed,
            Err(errno) => {
                self.leave_out(Operation::List, path, errno)?;
                self.dropped.insert(path.to_vec());
                return Ok(None);
            }
        };
        let mut names = Vec::new();
        for item in items {
            self.go_on()?;
            let item = match item {
                Ok(item) => item,
                Err(errno) => {
                    // The rest of its entries is not known.
                    let reason = self.reason(Operation::List, path, errno)?;
                    self.note(path, format!("it was listed in part: {reason}"));
                    break;
                }
            };
            let name = item.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            match is_temporary(name) {
                true => self.skipped += 1,
                false => names.push(name.to_vec()),
            }
        }
        Ok(Some((opened, names)))
    }

    /// Adds what names in an open folder lead to.
    pub(super) fn add_names(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &[u8],
        names: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        // All threads share the count.
        for (at, name) in names.iter().enumerate() {
            self.go_on()?;
            if (at + 1).is_multiple_of(COUNTED) {
                self.scanning.add(COUNTED);
            }
            let mut full = Vec::with_capacity(path.len() + 1 + name.len());
            full.extend_from_slice(path);
            if !path.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(name);
            let added = self.add(folder, name, &full, self.filter)?;
            if let Err((operation, errno)) = added {
                self.leave_out(operation, &full, errno)?;
            }
        }
        self.scanning.add(names.len() % COUNTED);
        Ok(())
    }

    /// An error where the scan is to stop.
    pub(super) fn go_on(&self) -> Result<(), StoreError> {
        let checked = self.scanning.check();
        checked.map_err(|errno| StoreError::from_errno(Operation::List, self.root, errno))
    }

    /// A walk of the same tree that has found nothing.
    pub(super) fn part(&self) -> Self {
        let keep = self.reader.keep();
        let mut part = Self::new(
            self.root,
            self.dir,
            keep,
            self.filter,
            self.name,
            self.scanning,
        );
        part.looked_at = self.looked_at;
        part
    }

    /// Adds what a part of the walk has found.
    pub(super) fn join(&mut self, part: Self) {
        self.found.extend(part.found);
        self.skipped += part.skipped;
        self.special.extend(part.special);
        self.left_out.extend(part.left_out);
        self.dropped.extend(part.dropped);
        self.reader.unread += part.reader.unread;
        self.names.add(part.names);
    }

    /// * `path`: below the root.
    fn is_excluded(&self, filter: &Filter, path: &[u8], is_folder: bool) -> bool {
        match self.name {
            // Names are not joined for nothing.
            _ if filter.is_empty() => false,
            b"" => filter.excludes(path, is_folder),
            name => {
                let path = [name, b"/", path].concat();
                filter.excludes(&path, is_folder)
            }
        }
    }

    /// Adds what a name in an open folder leads to; the inner error is one of this entry alone.
    ///
    /// * `filter`: it is left out where this excludes it.
    pub(super) fn add(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        filter: &Filter,
    ) -> Result<Result<(), (Operation, Errno)>, StoreError> {
        let stat = match sys::stat_entry(folder, name) {
            Ok(stat) => stat,
            Err(errno) => {
                // Its kind is not known.
                let excludes = |is_folder| self.is_excluded(filter, path, is_folder);
                return match excludes(false) || excludes(true) {
                    true => Ok(Ok(())),
                    false => Ok(Err((Operation::Inspect, errno))),
                };
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.is_excluded(filter, path, kind == FileType::Directory) {
            return Ok(Ok(()));
        }
        // No call of the system takes it, here and at receivers, where it is below its root's name.
        let above = match self.name {
            b"" => 0,
            name => name.len() + 1,
        };
        if above + path.len() > PATH_LEN_MAX {
            return Ok(Err((Operation::Inspect, Errno::NAMETOOLONG)));
        }
        let mut entry = match self.entry(path.to_vec(), &stat) {
            Err(StoreError::SpecialFile { .. }) => {
                self.special.push(path.to_vec());
                return Ok(Ok(()));
            }
            entry => entry?,
        };
        if let EntryKind::Symlink { target } = &mut entry.kind {
            match rustix::fs::readlinkat(folder, name, Vec::new()) {
                Ok(read) => *target = read.into_bytes(),
                Err(errno) => return Ok(Err((Operation::Read, errno))),
            }
        }
        entry.kept = self.reader.read(folder, name, &stat);
        if let Some(reason) = oddity(&entry, name) {
            self.note(path, reason);
            return Ok(Ok(()));
        }
        let named = Named {
            folder,
            name,
            no_follow: OFlags::NOFOLLOW,
        };
        self.take(entry, &stat, named).map(Ok)
    }

    /// Adds an entry, unless the system makes its contents; of a file also whether its bytes can be had.
    fn take(&mut self, entry: Entry, stat: &Stat, named: Named<'_>) -> Result<(), StoreError> {
        let mut version = Version::UNKNOWN;
        if let EntryKind::File { len } = entry.kind {
            let system = self.system(stat.st_dev, named);
            if system.is_some_and(FileSystem::makes_contents) {
                return self.no_size(&entry.path);
            }
            // An empty file needs no reading.
            let is_read = len > 0 || entry.path.is_empty();
            let is_own = stat.st_uid == self.user && stat.st_mode & 0o400 != 0;
            let may_read = || {
                let asked = Access::READ_OK;
                rustix::fs::accessat(named.folder, named.name, asked, AtFlags::empty())
            };
            if is_read
                && !(is_own && system.is_some_and(FileSystem::is_local))
                && may_read() == Err(Errno::ACCESS)
            {
                self.leave_out(Operation::Read, &entry.path, Errno::ACCESS)?;
            }
            if len == 0 && named.gives_bytes() {
                return self.no_size(&entry.path);
            }
            if system.is_some_and(FileSystem::keeps_inodes) {
                version = Version::of(stat);
            }
        }
        if matches!(entry.kind, EntryKind::File { .. } | EntryKind::Special(_)) {
            self.names.note(&entry.path, stat);
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

    /// Notes an entry that cannot be read; an error for the root, and for one that concerns more than the entry.
    pub(super) fn leave_out(
        &mut self,
        operation: Operation,
        path: &[u8],
        errno: Errno,
    ) -> Result<(), StoreError> {
        let reason = self.reason(operation, path, errno)?;
        self.note(path, reason);
        Ok(())
    }

    fn note(&mut self, path: &[u8], reason: impl Into<String>) {
        self.left_out.push(LeftOut {
            path: path.to_vec(),
            reason: reason.into(),
        });
    }

    /// Why an entry is left out; an error as [`Walk::leave_out`] gives it.
    fn reason(
        &self,
        operation: Operation,
        path: &[u8],
        errno: Errno,
    ) -> Result<String, StoreError> {
        match reason(errno) {
            Some(reason) if !path.is_empty() => Ok(reason),
            _ if errno == Errno::ACCESS => Err(StoreError::Unreadable {
                path: self.full_path(path),
            }),
            _ => Err(StoreError::from_errno(
                operation,
                self.full_path(path),
                errno,
            )),
        }
    }

    /// Notes a file whose contents the system makes; an error for the root.
    fn no_size(&mut self, path: &[u8]) -> Result<(), StoreError> {
        if path.is_empty() {
            return Err(StoreError::NoSize {
                path: self.full_path(path),
            });
        }
        self.note(path, NO_SIZE);
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
            other => match Special::of(stat).filter(|_| self.reader.keep().specials) {
                Some(special) => EntryKind::Special(special),
                None => {
                    return Err(StoreError::SpecialFile {
                        path: self.full_path(&path),
                        kind: sys::kind_in_words(other),
                    });
                }
            },
        };
        Ok(Entry {
            path,
            kind,
            mode: stat.st_mode & 0o7777,
            mtime_seconds: stat.st_mtime,
            mtime_nanoseconds: stat.st_mtime_nsec as u32,
            kept: Kept::default(),
        })
    }
}
