//! Reading what a list names of a tree: rsync's meaning of `--files-from`.
//!
//! * A name is below the root, also one that begins with `/`; `..` is taken away with what is before it, and leads nowhere above the root.
//! * The folders above a name are part of the copy, whatever the filter says of them.
//! * A folder is copied without what is in it; one that is named with a `/` behind it, `/.` or `/..`, with what is directly in it. A recursive
//!   list has all below it.
//! * `.` means nothing but at the end: rsync also takes it for a mark before which folders are left out.
//! * What does not exist is left out and named. So is what lies below a symbolic link: links are never followed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::left_out::LeftOut;
use super::scan::{Scan, Walk};
use super::{Entry, EntryKind, Keep, Scanning, last_name, parent_of};
use crate::error::{Operation, StoreError};
use crate::filter::Filter;
use crate::sys;
use crate::version::Version;

/// Names of files and folders below a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileList {
    /// As the user wrote them.
    pub names: Vec<Vec<u8>>,
    /// Folders are copied with all below them.
    pub is_recursive: bool,
}

/// How much of a folder is copied with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    #[default]
    Itself,
    Names,
    All,
}

impl FileList {
    /// The paths, without `.` and `..`, each with what of a folder there is copied.
    fn paths(&self) -> BTreeMap<Vec<u8>, Depth> {
        let mut paths: BTreeMap<Vec<u8>, Depth> = BTreeMap::new();
        for name in &self.names {
            let mut parts: Vec<&[u8]> = Vec::new();
            for part in name.split(|byte| *byte == b'/') {
                match part {
                    b"" | b"." => {}
                    b".." => drop(parts.pop()),
                    part => parts.push(part),
                }
            }
            let last = name.rsplit(|byte| *byte == b'/').next();
            let depth = match (self.is_recursive, last) {
                (true, _) => Depth::All,
                (false, Some(b"" | b"." | b"..")) => Depth::Names,
                (false, _) => Depth::Itself,
            };
            let known = paths.entry(parts.join(&b'/')).or_default();
            *known = depth.max(*known);
        }
        paths
    }

    /// The paths, each folder right before what is below it.
    fn in_order(&self) -> Vec<(Vec<u8>, Depth)> {
        let mut paths: Vec<_> = self.paths().into_iter().collect();
        // No name of a file has a NUL.
        let key = |byte: &u8| match byte {
            b'/' => 0,
            byte => *byte,
        };
        paths.sort_by(|a, b| a.0.iter().map(key).cmp(b.0.iter().map(key)));
        paths
    }
}

/// A folder with all below it that the filter includes.
struct Walked {
    path: Vec<u8>,
    /// Where that is among what was found, sorted by path.
    found: Range<usize>,
}

impl Walked {
    fn is_above(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(&self.path[..]);
        rest.is_some_and(|rest| self.path.is_empty() || rest.starts_with(b"/"))
    }

    fn has(&self, path: &[u8], found: &[(Entry, Version)]) -> bool {
        let found = &found[self.found.clone()];
        found
            .binary_search_by(|(entry, _)| entry.path[..].cmp(path))
            .is_ok()
    }
}

impl Scan {
    /// As [`Scan::read_filtered`] of a folder, of what a list names in it.
    ///
    /// # Errors
    /// As [`Scan::read`]; [`StoreError::NotADirectory`] where the root is no folder.
    pub fn read_listed(
        root: &Path,
        keep: Keep,
        filter: &Filter,
        list: &FileList,
        scanning: &Scanning,
    ) -> Result<Self, StoreError> {
        let opened = sys::open_resolved_path(root, OFlags::PATH, Mode::empty());
        let opened =
            opened.map_err(|errno| StoreError::from_errno(Operation::Open, root, errno))?;
        let mut walk = Walk::new(root, opened.as_fd(), keep, filter, b"", scanning);
        if walk.begin()? != EntryKind::Directory {
            return Err(StoreError::NotADirectory {
                path: root.to_owned(),
                operation: Operation::List,
            });
        }
        let mut seen: HashSet<Vec<u8>> = HashSet::from([Vec::new()]);
        // Each below the one before.
        let mut walked: Vec<Walked> = Vec::new();
        for (path, depth) in list.in_order() {
            walk.go_on()?;
            scanning.add(1);
            while walked.pop_if(|folder| !folder.is_above(&path)).is_some() {}
            // What is not there was left out, or the filter cut it off: then it is part of the copy because it is named.
            let has_it = |folder: &Walked| folder.has(&path, &walk.found);
            if walked.last().is_some_and(has_it) {
                continue;
            }
            let is_folder = walk.name(&path, &mut seen)?;
            if !is_folder || depth == Depth::Itself {
                continue;
            }
            match depth {
                Depth::All => walked.push(walk.all_below(path)?),
                Depth::Itself | Depth::Names => walk.list(&path)?,
            }
        }
        walk.sort();
        walk.end()
    }
}

impl Walk<'_> {
    /// Adds all below a folder, as [`Walk::below`].
    fn all_below(&mut self, path: Vec<u8>) -> Result<Walked, StoreError> {
        let first = self.found.len();
        self.below(path.clone())?;
        self.found[first..].sort_by(|a, b| a.0.path.cmp(&b.0.path));
        Ok(Walked {
            path,
            found: first..self.found.len(),
        })
    }

    /// Adds a named entry, and the folders above it where it is one that the copy has. Whether it is a folder of the copy.
    ///
    /// * `seen`: folders that were added.
    fn name(&mut self, path: &[u8], seen: &mut HashSet<Vec<u8>>) -> Result<bool, StoreError> {
        if path.is_empty() || seen.contains(path) {
            return Ok(true);
        }
        let kind = match self.look(path) {
            Ok((_, kind)) => kind,
            Err(errno) => return self.note_absent(path, errno).map(|()| false),
        };
        let is_folder = kind == FileType::Directory;
        // The filter is asked for the name itself only.
        if self.filter.excludes(path, is_folder) {
            return Ok(false);
        }
        let cuts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for folder in cuts.map(|(at, _)| &path[..at]) {
            if seen.contains(folder) {
                continue;
            }
            if !self.named(folder)? {
                // It is left out, and what is below it has no place.
                return Ok(false);
            }
            seen.insert(folder.to_vec());
        }
        let is_added = self.named(path)?;
        if is_folder && is_added {
            seen.insert(path.to_vec());
        }
        Ok(is_folder && is_added)
    }

    /// The folder that a path is in, and what it leads to.
    fn look(&self, path: &[u8]) -> Result<(OwnedFd, FileType), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = parent_of(path).unwrap_or_default();
        let opened = sys::open_beneath(self.dir, parent, flags, Mode::empty())?;
        let stat = sys::stat_entry(opened.as_fd(), last_name(path))?;
        Ok((opened, FileType::from_raw_mode(stat.st_mode)))
    }

    /// Adds an entry, whatever the filter says; whether it is in the copy.
    fn named(&mut self, path: &[u8]) -> Result<bool, StoreError> {
        let before = self.found.len();
        let added = match self.look(path) {
            Ok((folder, _)) => {
                self.add(folder.as_fd(), last_name(path), path, &Filter::default())?
            }
            Err(errno) => Err((Operation::Inspect, errno)),
        };
        if let Err((operation, errno)) = added {
            self.leave_out(operation, path, errno)?;
        }
        Ok(self.found.len() > before)
    }

    fn note_absent(&mut self, path: &[u8], errno: Errno) -> Result<(), StoreError> {
        let reason = match errno {
            Errno::NOENT | Errno::NOTDIR => "does not exist",
            Errno::LOOP => "is below a symbolic link; name it by the way without the link",
            errno => return self.leave_out(Operation::Inspect, path, errno),
        };
        self.left_out.push(LeftOut {
            path: path.to_vec(),
            reason: reason.to_owned(),
        });
        Ok(())
    }
}
