//! Sources of a copy that lie in its destination, and may look as if no source had them: a removal leaves all that is in them.
//!
//! On this host, device and inode identify them. For other nodes, which may see the same file system, the inode and the time of the last change do:
//! a network file system gives a node times that are up to a minute old.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::open_folder;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::parallel;
use crate::staging::open_parent;
use crate::sys;
use crate::tree_sink::{Part, Tree, TreeSink};

/// Seconds by which a network file system may know late of a change: its attributes are cached for a minute.
const CHANGED_SLACK: i64 = 120;

/// Seconds since a change after which both nodes know of it, and had looked at the folder before it: from when one has opened its sources until
/// the other one has their lists.
const RECENT: i64 = 600;

pub(super) const IS_SOURCE: &str = "it is a source of this copy";
const MAY_BE_SOURCE: &str =
    "by its inode number it may be a source of this copy; if not, remove it yourself";
const IN_SOURCE: &str = "its folder is a source of this copy, or lies in one";
const MAY_BE_IN_SOURCE: &str = "its folder, or one above, has the inode number of a source of this copy; if it is not that source, remove this name yourself";

/// Folders that other nodes send.
#[derive(Debug)]
pub(in crate::tree_sink) struct Elsewhere {
    /// Inode of each, and seconds of its change.
    folders: Vec<(u64, i64)>,
    /// Folders of the copy that may be such ones, from before it began.
    met: HashSet<Vec<u8>>,
}

/// What is spared, while a removal looks at folders.
#[derive(Default)]
pub(super) struct Spared<'a> {
    /// Device and inode of each source on this host.
    sources: HashSet<(u64, u64)>,
    /// Folders that other nodes send: inode, and seconds of its change.
    elsewhere: HashMap<u64, i64>,
    /// Folders of the tree in which nothing is removed, and why.
    kept: HashMap<&'a [u8], &'static str>,
}

impl<'a> Spared<'a> {
    pub(super) fn is_source(&self, stat: &Stat) -> bool {
        self.sources.contains(&(stat.st_dev, stat.st_ino))
    }

    /// Why a folder that no source has is not removed; `None` where it may be.
    pub(super) fn folder(&self, stat: &Stat) -> Option<&'static str> {
        if self.is_source(stat) {
            return Some(IS_SOURCE);
        }
        let sent = self.elsewhere.get(&stat.st_ino)?;
        (stat.st_ctime.saturating_add(CHANGED_SLACK) >= *sent).then_some(MAY_BE_SOURCE)
    }

    /// Why nothing is removed in the folder that holds a path, or in one above it.
    pub(super) fn above(&self, dest: BorrowedFd<'_>, path: &[u8]) -> Option<&'static str> {
        if self.sources.is_empty() && self.kept.is_empty() {
            return None;
        }
        let folders = std::iter::successors(parent_of(path), |folder| parent_of(folder));
        let why = |folder: &[u8]| {
            let is_source = || stat_folder(dest, folder).is_ok_and(|stat| self.is_source(&stat));
            let known = self.kept.get(folder).copied();
            known.or_else(|| is_source().then_some(IN_SOURCE))
        };
        folders.into_iter().find_map(why)
    }

    /// Why nothing is removed in a folder of the tree; those above it were asked for before. `None` where what is extra goes.
    pub(super) fn in_folder(
        &mut self,
        folder: &'a Entry,
        stat: Option<&Stat>,
    ) -> Option<&'static str> {
        let is_source = stat.is_some_and(|stat| self.is_source(stat));
        let above = parent_of(&folder.path).and_then(|parent| self.kept.get(parent));
        let why = match (is_source, self.kept.get(&folder.path[..])) {
            (true, _) => Some(IN_SOURCE),
            (false, Some(why)) => Some(*why),
            (false, None) => above.copied(),
        };
        if let Some(why) = why {
            self.kept.insert(&folder.path, why);
        }
        why
    }
}

impl TreeSink {
    /// Sources on this host, resolved: a removal leaves them alone, whatever path leads to them.
    pub fn keep_sources(&self, sources: Vec<PathBuf>) {
        // The first ones stay; there is one list of a transfer.
        let _ = self.staging.target.sources.set(sources);
    }

    /// Folders that other nodes send: number on the file system, and when its status last changed, in seconds since 1970.
    ///
    /// A removal leaves folders with such a number that did not change two minutes or more before: both nodes may see one file system.
    ///
    /// * `met`: what [`folders_met`](Self::folders_met) found before the sink was made; without it, it is looked for now.
    pub fn keep_elsewhere(&self, folders: Vec<(u64, i64)>, met: Option<HashSet<Vec<u8>>>) {
        let tree = &self.staging.target;
        let met = met.unwrap_or_else(|| tree.find_met(&folders));
        // As of the sources.
        let _ = tree.elsewhere.set(Elsewhere { folders, met });
    }

    /// Folders of a copy that are there and may be ones that other nodes send, as in [`keep_elsewhere`](Self::keep_elsewhere): those of the
    /// same number where both changed within two minutes, or one of them has just changed. Not DEST itself: the nodes have looked for each
    /// other's marks there, and roots of file systems share numbers. Three system calls for each folder, several at a time.
    #[must_use]
    pub fn folders_met(dest: &Path, parts: &[Part], folders: &[(u64, i64)]) -> HashSet<Vec<u8>> {
        let opened = open_parent(dest).ok();
        let opened = opened.and_then(|(parent, _, name)| open_folder(parent.as_fd(), &name).ok());
        let entries = parts.iter().flat_map(|part| part.manifest.entries.iter());
        opened.map_or_else(HashSet::new, |dest| met(dest.as_fd(), entries, folders))
    }
}

impl Tree {
    pub(super) fn spared(&self) -> Spared<'_> {
        let mut spared = Spared::default();
        let sources = self.sources.get().into_iter().flatten();
        let known = sources.filter_map(|path| rustix::fs::stat(path).ok());
        spared.sources = known.map(|stat| (stat.st_dev, stat.st_ino)).collect();
        if let Some(elsewhere) = self.elsewhere.get() {
            for &(inode, changed) in &elsewhere.folders {
                let least = spared.elsewhere.entry(inode).or_insert(changed);
                *least = changed.min(*least);
            }
            for path in &elsewhere.met {
                spared.kept.insert(path, MAY_BE_IN_SOURCE);
            }
        }
        spared
    }

    fn find_met(&self, folders: &[(u64, i64)]) -> HashSet<Vec<u8>> {
        let dest = match self.is_single() {
            false => self.open_dest().ok(),
            true => None,
        };
        dest.map_or_else(HashSet::new, |dest| {
            met(dest.as_fd(), self.entries.iter(), folders)
        })
    }
}

fn met<'a>(
    dest: BorrowedFd<'_>,
    entries: impl Iterator<Item = &'a Entry>,
    folders: &[(u64, i64)],
) -> HashSet<Vec<u8>> {
    let mut sent: HashMap<u64, Vec<i64>> = HashMap::new();
    for (inode, changed) in folders {
        sent.entry(*inode).or_default().push(*changed);
    }
    if sent.is_empty() {
        return HashSet::new();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let is_met = |path: &[u8]| match stat_folder(dest, path) {
        Ok(stat) => {
            let times = sent.get(&stat.st_ino).into_iter().flatten();
            times.copied().any(|changed| {
                let apart = stat.st_ctime.abs_diff(changed);
                apart <= CHANGED_SLACK.unsigned_abs() || stat.st_ctime.max(changed) >= now - RECENT
            })
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => false,
        // Whatever it is.
        Err(_) => true,
    };
    let is_below = |entry: &&Entry| entry.kind == EntryKind::Directory && !entry.path.is_empty();
    let below: Vec<&[u8]> = entries
        .filter(is_below)
        .map(|entry| &entry.path[..])
        .collect();
    let found = Mutex::new(HashSet::new());
    let all = parallel::for_each(&below, |path| {
        if is_met(path) {
            lock(&found).insert(path.to_vec());
        }
        Ok(())
    });
    debug_assert!(all.is_ok(), "no work failed");
    std::mem::take(&mut *lock(&found))
}

/// A folder below another one, links not followed; also one that cannot be read.
pub(super) fn stat_folder(base: BorrowedFd<'_>, path: &[u8]) -> Result<Stat, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let folder = sys::open_beneath(base, path, flags, Mode::empty())?;
    rustix::fs::fstat(folder)
}
