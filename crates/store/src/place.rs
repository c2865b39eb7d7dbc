//! Where a copy or a row will be, in a form that two hosts can compare, and the proof that both see one place.
//!
//! ```text
//!  /mnt/lustre/set/x   nothing there from `set` on:  the folder /mnt/lustre, by its inode, and `set/x`
//!  /mnt/lustre         a tree, into what is there:   the folder /mnt/lustre itself
//! ```
//!
//! An inode's number alone proves nothing: file systems of one make have many in common. So where two hosts name the
//! same number and the same rest, each leaves a **mark** in the folder, under one name: a host that finds it made sees
//! what the other sees. A mark is a symbolic link that leads nowhere, since a link is made with its text.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::StoreError;
use crate::file_systems::FileSystem;
use crate::staging::temporary_name;
use crate::sys;

/// Hexadecimal digits of a place's BLAKE3 in the name of its mark: enough to tell those of one folder apart.
const HASH_LEN: usize = 16;

/// A final path: the nearest folder that is there, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
    /// The folder's number on its file system.
    pub inode: u64,
    /// Its file system gives it no other number later.
    pub keeps_inode: bool,
    /// The path below the folder; empty for a tree that goes into the folder itself.
    pub rest: Vec<u8>,
    /// Folders above it, the nearest first, of a tree.
    pub above: Vec<Above>,
    /// `rest` begins with something that is there and is no folder.
    pub stands: bool,
}

/// Where a file or folder is that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    /// Its own inode; `None` for what is no folder.
    pub folder: Option<u64>,
    /// Of its file system, on this host.
    pub device: u64,
    /// Its status last changed then, in seconds since 1970.
    pub changed: i64,
    /// Folders above it on its file system, the nearest first.
    pub above: Vec<Above>,
}

/// A folder above another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Above {
    /// Its inode.
    pub inode: u64,
    /// The name that leads from it to the one before.
    pub name: Vec<u8>,
}

/// Folders above a place, or above what is copied, that are looked at.
const ABOVE_MAX: usize = 64;

impl Stand {
    /// Of a resolved path; `None` for what cannot be looked at. Cost: one `lstat` a folder above.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let stat = rustix::fs::lstat(path).ok()?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Some(Self {
            folder: is_folder.then_some(stat.st_ino),
            device: stat.st_dev,
            changed: stat.st_ctime,
            above: above(path, Some(stat.st_dev)),
        })
    }
}

/// Folders above a path; with `device`, those of this file system.
fn above(path: &Path, device: Option<u64>) -> Vec<Above> {
    let steps = path.ancestors().zip(path.ancestors().skip(1));
    let steps = steps.map_while(|(below, above)| {
        let stat = rustix::fs::lstat(above).ok()?;
        let is_wanted = device.is_none_or(|device| device == stat.st_dev);
        is_wanted.then_some(Above {
            inode: stat.st_ino,
            name: below.file_name()?.as_bytes().to_vec(),
        })
    });
    steps.take(ABOVE_MAX).collect()
}

impl Place {
    /// The place of a final path.
    ///
    /// * `path`: resolved (as [`crate::Roots`] returns it).
    /// * `is_tree`: it may be a folder that is merged into.
    ///
    /// `None` when not even the root can be looked at. Cost: one `lstat` a folder that is missing, and of a tree one a folder above.
    #[must_use]
    pub fn of(path: &Path, is_tree: bool) -> Option<Self> {
        let mut folder = if is_tree { path } else { path.parent()? };
        let mut stands = false;
        loop {
            let found = rustix::fs::lstat(folder);
            let is_there = found.is_ok();
            if let Ok(stat) = found
                && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            {
                let rest = path.strip_prefix(folder).ok()?;
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let opened = sys::open_resolved_path(folder, flags, Mode::empty());
                let system = opened.ok().and_then(FileSystem::of);
                return Some(Self {
                    keeps_inode: system.is_some_and(FileSystem::keeps_inodes),
                    folder: folder.to_owned(),
                    inode: stat.st_ino,
                    rest: rest.as_os_str().as_bytes().to_vec(),
                    above: match is_tree {
                        true => above(folder, None),
                        false => Vec::new(),
                    },
                    stands,
                });
            }
            stands = is_there;
            folder = folder.parent()?;
        }
    }

    /// Leaves the mark of a transfer here, or gives the text of the one that another node has left.
    ///
    /// * `id`: of the transfer (letters, digits, `-`, `_`), the same on every node.
    /// * `text`: of the node that leaves it; not empty.
    ///
    /// `None` also where none can be left (no right to write there, a file system without links): nothing is proved then.
    ///
    /// # Errors
    /// [`StoreError::BadId`].
    pub fn mark(&self, id: &str, text: &str) -> Result<Option<String>, StoreError> {
        let name = mark_name(&self.rest, id)?;
        let Ok(folder) = self.open() else {
            return Ok(None);
        };
        match rustix::fs::symlinkat(text, &folder, &*name) {
            Err(Errno::EXIST) => {
                let found = rustix::fs::readlinkat(&folder, &*name, Vec::new());
                let found = found.ok().map(|text| text.to_string_lossy().into_owned());
                // A network file system may answer so to the repetition of a request that it has served.
                Ok(found.filter(|found| found != text))
            }
            Ok(()) | Err(_) => Ok(None),
        }
    }

    /// Whether the mark of a transfer is in a folder.
    ///
    /// * `rest`: [`Place::rest`] of the place that was marked.
    #[must_use]
    pub fn is_marked(folder: &Path, rest: &[u8], id: &str) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let opened = sys::open_resolved_path(folder, flags, Mode::empty());
        opened.is_ok_and(|folder| {
            let name = mark_name(rest, id);
            name.is_ok_and(|name| rustix::fs::readlinkat(&folder, &*name, Vec::new()).is_ok())
        })
    }

    /// Removes the mark that this node has left, as far as possible.
    ///
    /// * `text`: as it was left; marks of others stay.
    pub fn unmark(&self, id: &str, text: &str) {
        let (Ok(name), Ok(folder)) = (mark_name(&self.rest, id), self.open()) else {
            return;
        };
        let found = rustix::fs::readlinkat(&folder, &*name, Vec::new());
        if found.is_ok_and(|found| found.as_bytes() == text.as_bytes()) {
            let _ = rustix::fs::unlinkat(&folder, &*name, AtFlags::empty());
        }
    }

    /// Whether something is under the temporary name of a transfer at this place.
    ///
    /// * `id`: as the sink that may have made it was given it.
    #[must_use]
    pub fn is_staged(&self, id: &str) -> bool {
        let Ok(folder) = self.open() else {
            return false;
        };
        // Of a tree that is merged: in its folder, under the folder's own name.
        let name = match self.rest.is_empty() {
            true => self.folder.file_name().map_or(&[][..], OsStr::as_bytes),
            false => &self.rest,
        };
        temporary_name(name, id).is_ok_and(|name| sys::stat_entry(folder.as_fd(), &name).is_ok())
    }

    fn open(&self) -> Result<std::os::fd::OwnedFd, Errno> {
        sys::open_resolved_path(
            &self.folder,
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
    }
}

fn mark_name(rest: &[u8], id: &str) -> Result<Vec<u8>, StoreError> {
    let hash = blake3::hash(rest).to_hex();
    let name = format!("place-{}", &hash.as_str()[..HASH_LEN]);
    temporary_name(name.as_bytes(), id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn count(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    /// A folder that is there is the place of a tree; of a file, and of what is not there, the folder above is.
    #[test]
    fn places_are_what_is_there_and_the_rest() {
        let (_keep, folder) = folder();
        std::fs::create_dir(folder.join("set")).unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        for (path, is_tree, base, rest) in [
            ("set", true, "set", ""),
            ("set", false, "", "set"),
            ("file", true, "", "file"),
            ("file", false, "", "file"),
            ("new/set", true, "", "new/set"),
            ("set/new", false, "set", "new"),
        ] {
            let place = Place::of(&folder.join(path), is_tree).unwrap();
            assert_eq!(place.rest, rest.as_bytes(), "{path}");
            let expected = Place::of(&folder.join(base), true).unwrap();
            assert_eq!(place.inode, expected.inode, "{path}");
            assert_eq!(place.stands, (path, is_tree) == ("file", true), "{path}");
        }
    }

    /// The second to mark one place learns who was first; other places, and other transfers, are others'. Marks go, and
    /// nobody removes another's.
    #[test]
    fn marks_meet_in_one_place() {
        let (_keep, folder) = folder();
        std::os::unix::fs::symlink(&folder, folder.join("again")).unwrap();
        let place = Place::of(&folder.join("set"), true).unwrap();
        let same = place.clone();
        let other = Place::of(&folder.join("other"), true).unwrap();
        assert_eq!(place.mark("id", "1.0").unwrap(), None);
        assert_eq!(place.mark("id", "1.0").unwrap(), None, "its own");
        assert_eq!(same.mark("id", "2.0").unwrap(), Some("1.0".into()));
        assert_eq!(other.mark("id", "2.1").unwrap(), None);
        assert_eq!(place.mark("id2", "3.0").unwrap(), None);
        same.unmark("id", "2.0");
        assert_eq!(count(&folder), 4);
        place.unmark("id", "1.0");
        other.unmark("id", "2.1");
        place.unmark("id2", "3.0");
        assert_eq!(count(&folder), 1);
    }

    /// What another node of the transfer has staged is seen, beside the name and in the folder.
    #[test]
    fn staged_copies_are_seen() {
        let (_keep, folder) = folder();
        let place = Place::of(&folder.join("set"), true).unwrap();
        assert!(!place.is_staged("id-3"));
        std::fs::write(folder.join(".set.ropewalk-id-3"), "").unwrap();
        assert!(place.is_staged("id-3") && !place.is_staged("id-4"));
        std::fs::create_dir(folder.join("set")).unwrap();
        let place = Place::of(&folder.join("set"), true).unwrap();
        assert!(!place.is_staged("id-3"));
        std::fs::create_dir(folder.join("set/.set.ropewalk-id-3")).unwrap();
        assert!(place.is_staged("id-3"));
    }
}
