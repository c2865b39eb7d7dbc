//! Further names of files: made on commit, when their file is complete and has its metadata.
//!
//! ```text
//!  file is sent:      link(stage/file  -> stage/name), then all names are given
//!  file stays:        link(DEST/file   -> stage/name)
//!  no link possible:  a copy of its own, stage/name; where DEST has such a one, that stays
//! ```

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::same::{Same, is_file};
use super::standing::mode_of;
use crate::error::{Operation, StoreError};
use crate::folders::Folders;
use crate::holes;
use crate::manifest::{Entry, EntryKind, Special};
use crate::open_files::lock;
use crate::sys;

/// What became of further names.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Those that are files of their own.
    apart: HashSet<u32>,
    /// Of these, those that DEST has already and that stay.
    left: HashSet<u32>,
}

/// Where a name of a file with several leads in DEST.
#[derive(Debug)]
pub(super) struct Named {
    file: (u64, u64),
    names: u64,
    /// Time, mode, owner and attributes are those of the entry.
    is_kept: bool,
}

/// The further names of each file that has some, by number.
pub(super) fn names(entries: &[Entry]) -> HashMap<u32, Vec<u32>> {
    let mut names: HashMap<u32, Vec<u32>> = HashMap::new();
    for (object, entry) in (0..).zip(entries) {
        if let EntryKind::HardLink { to } = &entry.kind
            && let Some(file) = find(entries, to)
        {
            names.entry(file).or_default().push(object);
        }
    }
    names
}

fn find(entries: &[Entry], path: &[u8]) -> Option<u32> {
    let found = entries.binary_search_by(|entry| entry.path.as_slice().cmp(path));
    found.ok().map(|at| at as u32)
}

/// Whether a file system, or the system's rules for links, has no further name for a file, however often it is asked.
fn is_impossible(errno: Errno) -> bool {
    let known = [
        Errno::PERM,
        Errno::OPNOTSUPP,
        Errno::NOSYS,
        Errno::MLINK,
        Errno::XDEV,
    ];
    known.contains(&errno)
}

impl Tree {
    /// The file that a name of the tree is of, where it has several names.
    pub(super) fn first_of(&self, object: u32) -> Option<u32> {
        match &self.entries[object as usize].kind {
            EntryKind::HardLink { to } => find(&self.entries, to),
            _ => self.names.contains_key(&object).then_some(object),
        }
    }

    /// The entry that has metadata for a name.
    pub(super) fn file_of(&self, object: u32) -> &Entry {
        let file = self.first_of(object).unwrap_or(object);
        &self.entries[file as usize]
    }

    /// Adds the further names of files.
    pub(super) fn add_names(&self, files: &mut HashSet<u32>) {
        let names = self.names.iter();
        let further = names.filter(|(file, _)| files.contains(file));
        let further: Vec<u32> = further.flat_map(|(_, names)| names.clone()).collect();
        files.extend(further);
    }

    /// Whether an entry shares the file of another one.
    pub(super) fn is_linked(&self, object: u32) -> bool {
        let is_name = matches!(
            self.entries[object as usize].kind,
            EntryKind::HardLink { .. }
        );
        is_name && !lock(&self.links).apart.contains(&object)
    }

    /// Whether a name stays in DEST as the file of its own that it is there.
    pub(super) fn is_left(&self, object: u32) -> bool {
        lock(&self.links).left.contains(&object)
    }

    pub(super) fn links_not_kept(&self) -> u64 {
        lock(&self.links).apart.len() as u64
    }

    /// Where a name leads, if its file has several in the tree.
    pub(super) fn place_of_name(
        &self,
        stat: &Stat,
        object: u32,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> Option<(u32, Named)> {
        self.first_of(object)?;
        let is_file = self.names.contains_key(&object);
        let place = Named {
            file: (stat.st_dev, stat.st_ino),
            // Its type is not the same on all systems.
            #[allow(clippy::useless_conversion)]
            names: u64::from(stat.st_nlink),
            is_kept: is_file
                && super::same::is_file(stat, &self.entries[object as usize])
                && self.is_kept(stat, object, folder, name),
        };
        Some((object, place))
    }

    /// Finds which further names are the same: those of a file that is. A file whose mode would have to be set, and that has names
    /// elsewhere, is not.
    pub(super) fn judge_links(&self, places: &HashMap<u32, Named>, same: &mut Same) {
        for (file, names) in &self.names {
            let Some(place) = places.get(file).filter(|_| same.has(*file)) else {
                continue;
            };
            let leads = |name: &&u32| places.get(name).is_some_and(|at| at.file == place.file);
            let here: Vec<u32> = names.iter().filter(leads).copied().collect();
            if place.names != here.len() as u64 + 1 && !place.is_kept {
                same.remove(*file);
                continue;
            }
            here.into_iter().for_each(|name| same.insert(name));
        }
    }

    /// Makes a further name in the stage; a file of its own where that is not possible.
    ///
    /// * `dest`: DEST, if it is there.
    pub(super) fn make_link(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        object: u32,
        dest: Option<&mut Folders<'_>>,
    ) -> Result<(), StoreError> {
        let Some(first) = self.first_of(object) else {
            return Ok(());
        };
        if self.refused.has(first) {
            self.refuse_name(object, first);
            return Ok(());
        }
        if self.is_unmade(first) {
            lock(&self.unmade).insert(object);
            return Ok(());
        }
        let failed =
            |errno| StoreError::from_create(self.path_of(object), &self.stage_parent, errno);
        let (file, stat) = self.open_first(first, OFlags::PATH)?;
        match sys::link(file.as_fd(), folder, name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let found = sys::stat_entry(folder, name).map_err(failed)?;
                if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
                    self.claim_inode(found.st_ino, object)?;
                    // An earlier attempt to commit made it.
                    rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(failed)?;
                    lock(&self.made).remove(&found.st_ino);
                    return self.copy_apart(folder, name, object, first, dest);
                }
                match found.st_nlink {
                    // The file system takes one name for the other.
                    1 => Err(StoreError::SameFile {
                        path: self.path_of(object),
                        other: self.path_of(first),
                    }),
                    _ => Ok(()),
                }
            }
            Err(errno) if is_impossible(errno) => {
                self.copy_apart(folder, name, object, first, dest)
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// A further name is a file of its own.
    pub(super) fn note_apart(&self, object: u32) {
        lock(&self.links).apart.insert(object);
    }

    pub(super) fn path_of(&self, object: u32) -> std::path::PathBuf {
        self.staged_path(&self.entries[object as usize])
    }

    /// Opens a file that has further names, where it is: in the stage, or in DEST.
    fn open_first(&self, first: u32, flags: OFlags) -> Result<(OwnedFd, Stat), StoreError> {
        let entry = &self.entries[first as usize];
        let (folder, path) = self.place(entry);
        let staged = match self.unchanged.contains(first) {
            true => Err(Errno::NOENT),
            false => sys::open_beneath(folder, path, flags, Mode::empty()),
        };
        let changed = || StoreError::ChangedAtDestination {
            path: self.final_path(entry),
        };
        let (opened, is_staged) = match staged {
            // It stays there, or an interrupted commit has moved it.
            Err(Errno::NOENT) => {
                let path = [&self.name[..], b"/", &entry.path].concat();
                let opened = sys::open_beneath(self.parent.as_fd(), &path, flags, Mode::empty());
                (opened.map_err(|_| changed())?, false)
            }
            other => {
                let failed =
                    |errno| StoreError::from_errno(Operation::Open, self.staged_path(entry), errno);
                (other.map_err(failed)?, true)
            }
        };
        let stat =
            rustix::fs::fstat(&opened).map_err(|errno| self.failed(Operation::Inspect, errno))?;
        let is_it = match entry.kind {
            EntryKind::Special(special) => Special::of(&stat) == Some(special),
            _ => {
                let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                is_regular && (is_staged || self.is_whole(&stat, first))
            }
        };
        match is_it {
            true => Ok((opened, stat)),
            false => Err(changed()),
        }
    }

    /// Makes a name a file of its own, unless DEST has such a one.
    fn copy_apart(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        object: u32,
        first: u32,
        dest: Option<&mut Folders<'_>>,
    ) -> Result<(), StoreError> {
        lock(&self.links).apart.insert(object);
        let entry = &self.entries[first as usize];
        if let EntryKind::Special(special) = entry.kind {
            return match self.make_special(folder, name, object, special)? {
                true => self.set_metadata(folder, name, entry, object),
                false => Ok(()),
            };
        }
        let path = &self.entries[object as usize].path;
        let there = dest.and_then(|dest| {
            let (folder, name) = dest.parent(path).ok()?;
            sys::stat_entry(folder, name).ok()
        });
        let is_there =
            |stat: Stat| is_file(&stat, entry) && stat.st_mode & 0o7777 == mode_of(entry);
        if there.is_some_and(is_there) {
            lock(&self.links).left.insert(object);
            return Ok(());
        }
        let staged = self.path_of(object);
        let failed = |errno| StoreError::from_create(&staged, &self.stage_parent, errno);
        let (from, _) = self.open_first(first, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let made = sys::open_beneath(folder, name, flags, Mode::RUSR | Mode::WUSR);
        let made = File::from(made.map_err(failed)?);
        self.claim(&made, object)?;
        let at = holes::copy(&File::from(from), &made).map_err(|failed| {
            let path = match failed.operation {
                Operation::Read => self.path_of(first),
                _ => staged.clone(),
            };
            StoreError::from_io(failed.operation, path, &failed.error)
        })?;
        if at != entry.len() {
            return Err(StoreError::Incomplete {
                path: staged,
                len: at,
                wanted: entry.len(),
            });
        }
        drop(made);
        self.set_metadata(folder, name, entry, object)
    }
}
