//! What the destination of a tree has and no source has: found, and removed after a copy.
//!
//! Only names in folders that the sources have are looked at, and only below the destination's descriptor: no link is followed.
//! These stay:
//!
//! * what the filter excludes, and folders with such things in them, as with rsync;
//! * temporary names of transfers, journals among them;
//! * sockets, pipes and devices, where the sources were scanned without them;
//! * what another file system is mounted on, with all below it. A mount point that the sources have as a folder is a folder;
//! * what is a source on this host, whatever path leads to it, and folders that may be what another node sends, with all below them, also where
//!   the copy has such a folder, too;
//! * the file of an entry under another form of its name, where the file system takes both for one.
//!
//! Each folder keeps its time and mode. An interrupted removal leaves names for the next one. All is counted before the first name is
//! removed; only folders with something to remove are looked at again for that.

mod permit;
mod spared;
mod way;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub use self::permit::Permit;
pub(super) use self::spared::Elsewhere;
use self::spared::{IS_SOURCE, Spared, stat_folder};
pub(super) use self::way::Way;
use super::standing::Standing;
use super::{Part, Tree, TreeSink, join};
use crate::error::StoreError;
use crate::filter::Filter;
use crate::manifest::{Entry, EntryKind, is_special, last_name, parent_of};
use crate::sink::Removed;
use crate::staging::{is_temporary, open_parent};
use crate::sys;

/// Names that are told of those that cannot be removed.
const FAILED_MAX: usize = 100;

/// Folders in each other that are removed; the files of deeper ones are not. Each takes a descriptor.
const DEPTH_MAX: usize = 512;

const IS_EXCLUDED: &str = "it is excluded";
const IS_SPECIAL: &str = "pipes, sockets and devices are no part of a copy without -a";
const IS_TEMPORARY: &str =
    "a transfer may be writing it; ropewalk clean removes what ended ones left";

/// Something that no source has.
pub(super) struct Extra {
    pub path: Vec<u8>,
    pub is_folder: bool,
    /// Length of a file.
    pub len: u64,
}

/// How far a removal is, for reports.
#[derive(Debug, Default)]
pub(super) struct Removing {
    gone: AtomicU64,
    // 0: nothing is being removed.
    all: AtomicU64,
}

impl Removing {
    /// * `all`: names that are to be removed.
    fn begin(&self, all: u64) {
        self.all.store(all, Ordering::Relaxed);
    }

    fn end(&self) {
        self.all.store(0, Ordering::Relaxed);
        self.gone.store(0, Ordering::Relaxed);
    }

    /// Names that are gone, and all; nothing before and after.
    pub fn so_far(&self) -> Option<(u64, u64)> {
        let (gone, all) = (
            self.gone.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        );
        // What was put there since they were counted is removed, too.
        (all > 0).then_some((gone, all.max(gone)))
    }
}

impl TreeSink {
    /// A commit of all entries then removes what DEST has in folders of the tree and the tree has not; see [`Sink::landed`](crate::Sink::landed).
    ///
    /// * `filter`: of the scans of the sources; what it excludes stays.
    pub fn remove_extra(&self, filter: Filter) {
        // The first one stays; there is one of a transfer.
        let _ = self.staging.target.removes.set(filter);
    }

    /// The permit is asked before each name is removed: of a shared copy, which another node may end in this one's place.
    pub fn ask_before_removing(&self, permit: Permit) {
        let _ = self.staging.target.permit.set(permit);
    }

    /// Whether the sources can be trusted for what they lack: one with nothing in it looks as one that is not mounted.
    ///
    /// # Errors
    /// [`StoreError::EmptySource`] for the first source that is an empty folder, where something would be removed for it.
    /// [`StoreError::NothingInCommon`] unless `all`, where all that DEST has would be removed: it may be meant as the folder that the copy goes into.
    pub fn check_extra(
        dest: &Path,
        parts: &[Part],
        filter: &Filter,
        all: bool,
    ) -> Result<(), StoreError> {
        let Ok((parent, _, name)) = open_parent(dest) else {
            return Ok(());
        };
        let Ok(dest_folder) = open_folder(parent.as_fd(), &name) else {
            return Ok(());
        };
        for entries in parts.iter().map(|part| &part.manifest.entries) {
            let roots = entries.iter().filter(|entry| is_root(entry, entries));
            for root in roots.filter(|root| is_empty(root, entries)) {
                let mut walk = Walk::new(std::slice::from_ref(root), filter, false);
                walk.folder(dest_folder.as_fd(), root);
                if !walk.found.is_empty() {
                    return Err(StoreError::EmptySource {
                        path: join(dest, &root.path),
                    });
                }
            }
        }
        let entries = parts.iter().flat_map(|part| &part.manifest.entries);
        let is_bundle = parts.iter().any(|part| part.manifest.is_bundle());
        let is_top = |entry: &&Entry| !entry.path.is_empty() && !entry.path.contains(&b'/');
        let is_there = |entry: &Entry| sys::stat_entry(dest_folder.as_fd(), &entry.path).is_ok();
        let root = entries.clone().find(|entry| entry.path.is_empty());
        if let Some(root) = root.filter(|_| !(all || is_bundle))
            && !entries.filter(is_top).any(is_there)
        {
            let mut walk = Walk::new(std::slice::from_ref(root), filter, false);
            walk.folder(dest_folder.as_fd(), root);
            if let Some(first) = walk.found.into_iter().map(|extra| extra.path).min() {
                return Err(StoreError::NothingInCommon {
                    path: dest.to_owned(),
                    first: PathBuf::from(OsStr::from_bytes(&first)),
                });
            }
        }
        Ok(())
    }
}

/// Whether an entry is a folder that the user named.
fn is_root(entry: &Entry, entries: &[Entry]) -> bool {
    let is_bundle = entries.first().is_some_and(Entry::is_of_none);
    let is_named = match is_bundle {
        true => !entry.path.is_empty() && !entry.path.contains(&b'/'),
        false => entry.path.is_empty(),
    };
    is_named && entry.kind == EntryKind::Directory
}

fn is_empty(folder: &Entry, entries: &[Entry]) -> bool {
    let is_in = |entry: &&Entry| parent_of(&entry.path) == Some(&folder.path[..]);
    !entries.iter().any(|entry| is_in(&entry))
}

impl Tree {
    /// Removes what DEST has and the tree has not, where that was asked for. All that was removed, with what was in the way.
    pub(super) fn take_away_extra(&self) -> Removed {
        let made_way = self.made_way();
        let removed = self.take_away_rest();
        Removed {
            files: removed.files + made_way.files,
            folders: removed.folders + made_way.folders,
            time: removed.time + made_way.time,
            ..removed
        }
    }

    fn take_away_rest(&self) -> Removed {
        let Some(filter) = self.removes.get().filter(|_| !self.is_single()) else {
            return Removed::default();
        };
        let began = Instant::now();
        match self.open_dest() {
            Ok(dest) => {
                let mut walk = Walk::new(&self.entries, filter, false);
                walk.spared = self.spared();
                walk.keeps = false;
                walk.permit = self.permit.get();
                walk.all(&dest);
                self.removing.begin(walk.count);
                let removed = walk.remove(&dest, &self.removing.gone);
                self.removing.end();
                Removed {
                    time: began.elapsed(),
                    ..removed
                }
            }
            Err(error) => Removed {
                failed: vec![(Vec::new(), error.to_string())],
                ..Removed::default()
            },
        }
    }

    /// What would be removed, sorted by path.
    pub(super) fn find_extra(&self, filter: &Filter) -> Vec<Extra> {
        self.look_for_extra(filter).0
    }

    /// What DEST has and the tree has not, sorted by path, and the paths of what could not be looked at, the first ones.
    pub(super) fn look_for_extra(&self, filter: &Filter) -> (Vec<Extra>, Vec<Vec<u8>>) {
        let dest = match self.is_single() {
            false => self.open_dest().ok(),
            true => None,
        };
        let Some(dest) = dest else {
            return (Vec::new(), Vec::new());
        };
        let mut walk = Walk::new(&self.entries, filter, false);
        walk.all(&dest);
        walk.found.sort_by(|a, b| a.path.cmp(&b.path));
        let failed = walk.removed.failed.into_iter();
        (walk.found, failed.map(|(path, _)| path).collect())
    }
}

struct Walk<'a> {
    entries: &'a [Entry],
    /// Of each folder, the names of its entries.
    names: HashMap<&'a [u8], HashSet<&'a [u8]>>,
    filter: &'a Filter,
    removes: bool,
    /// What is found is kept, not only counted.
    keeps: bool,
    /// Special files are part of the copy.
    specials: bool,
    spared: Spared<'a>,
    removed: Removed,
    /// The first name that stays as it is no part of a removal, and why.
    stayed: Option<(Vec<u8>, &'static str)>,
    /// Where nothing is removed: how much there is, what it is, and the folders of the tree that have it or cannot be looked at.
    count: u64,
    found: Vec<Extra>,
    folders: Vec<&'a Entry>,
    /// Counts names that are gone.
    gone: Option<&'a AtomicU64>,
    permit: Option<&'a Permit>,
}

/// A folder that no source has, while what is in it is removed.
struct Level {
    folder: OwnedFd,
    path: Vec<u8>,
    left: Vec<Vec<u8>>,
    /// What it was before.
    stood: Option<Standing>,
    /// Something in it stays.
    stays: bool,
}

/// A folder that no source has, when it is to be taken away.
enum Below {
    Open(Level),
    /// Its owner cannot read it, but a removal could.
    Closed,
    Kept,
}

impl<'a> Walk<'a> {
    fn new(entries: &'a [Entry], filter: &'a Filter, removes: bool) -> Self {
        let mut names: HashMap<&[u8], HashSet<&[u8]>> = HashMap::new();
        for entry in entries {
            if let Some(parent) = parent_of(&entry.path) {
                let name = last_name(&entry.path);
                names.entry(parent).or_default().insert(name);
            }
        }
        Self {
            entries,
            names,
            filter,
            removes,
            keeps: true,
            specials: Tree::has_specials(entries),
            spared: Spared::default(),
            removed: Removed::default(),
            stayed: None,
            count: 0,
            found: Vec::new(),
            folders: Vec::new(),
            gone: None,
            permit: None,
        }
    }

    /// Removes what was found.
    fn remove(mut self, dest: &OwnedFd, gone: &'a AtomicU64) -> Removed {
        let folders = std::mem::take(&mut self.folders);
        self.removed = Removed::default();
        self.removes = true;
        self.gone = Some(gone);
        for folder in folders {
            self.folder(dest.as_fd(), folder);
        }
        self.removed
    }

    /// Notes something that is not removed now.
    fn note(&mut self, extra: Extra) {
        self.count += 1;
        if self.keeps {
            self.found.push(extra);
        }
    }

    fn all(&mut self, dest: &OwnedFd) {
        let folders = self.entries.iter().filter(|entry| {
            // A root that is no folder has no names of its own.
            entry.kind == EntryKind::Directory && !entry.is_of_none()
        });
        for folder in folders {
            self.folder(dest.as_fd(), folder);
        }
    }

    /// Looks at what is in a folder of the tree.
    fn folder(&mut self, dest: BorrowedFd<'_>, folder: &'a Entry) {
        let before = self.count + self.removed.told();
        self.look_into(dest, folder);
        if !self.removes && self.count + self.removed.told() > before {
            self.folders.push(folder);
        }
    }

    fn look_into(&mut self, dest: BorrowedFd<'_>, folder: &'a Entry) {
        let opened = open_folder(dest, &folder.path);
        let stat = match &opened {
            Ok(opened) => rustix::fs::fstat(opened),
            // What is below it may be open all the same.
            Err(_) => stat_folder(dest, &folder.path),
        };
        let kept = self.spared.in_folder(folder, stat.as_ref().ok());
        let (opened, stat) = match opened.and_then(|opened| Ok((opened, stat?))) {
            Ok(opened) => opened,
            // It is not there, or another program has put something else there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return,
            Err(errno) => return self.fail(&folder.path, errno),
        };
        let stood = Standing::of(&stat);
        let listed = match list(&opened) {
            Ok(listed) => listed,
            Err(errno) => return self.fail(&folder.path, errno),
        };
        let none = HashSet::new();
        let known = self.names.get(&folder.path[..]).unwrap_or(&none);
        let extra: Vec<&Vec<u8>> = listed
            .iter()
            .filter(|name| !known.contains(&name[..]) && !is_temporary(name))
            .collect();
        if extra.is_empty() {
            return;
        }
        let own = own_inodes(&opened, known, &listed);
        let mut is_changed = false;
        for name in extra {
            let path = joined(&folder.path, name);
            let stat = match sys::stat_entry(opened.as_fd(), name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    self.fail(&path, errno);
                    continue;
                }
            };
            if !own.contains(&(stat.st_dev, stat.st_ino)) {
                is_changed |= self.one(opened.as_fd(), name, path, &stat, kept);
            }
        }
        if is_changed && self.removes {
            let _ = stood.restore(opened.as_fd());
        }
    }

    /// Takes away something that no source has; whether its folder is without it then, or would be.
    ///
    /// * `kept`: why it stays, unless it would in any case.
    fn one(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: Vec<u8>,
        stat: &Stat,
        kept: Option<&'static str>,
    ) -> bool {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.filter.excludes(&path, kind == FileType::Directory) {
            self.stay(&path, IS_EXCLUDED);
            return false;
        }
        if self.spared.is_source(stat) {
            self.fail_as(&path, IS_SOURCE);
            return false;
        }
        let goes = match kind {
            FileType::RegularFile | FileType::Symlink | FileType::Directory => true,
            kind => self.specials && is_special(kind),
        };
        if let (true, Some(why)) = (goes, kept) {
            if kind != FileType::Directory || self.would_go(folder, name, &path) {
                self.fail_as(&path, why);
            }
            return false;
        }
        match kind {
            FileType::RegularFile | FileType::Symlink => {
                let len = match kind {
                    FileType::RegularFile => stat.st_size as u64,
                    _ => 0,
                };
                self.name(folder, name, path, Some(len))
            }
            FileType::Directory => self.tree(folder, name, path),
            kind if self.specials && is_special(kind) => self.name(folder, name, path, Some(0)),
            _ => {
                self.stay(&path, IS_SPECIAL);
                false
            }
        }
    }

    fn stay(&mut self, path: &[u8], why: &'static str) {
        self.stayed.get_or_insert_with(|| (path.to_vec(), why));
    }

    /// The first name that stays, and why.
    fn why_kept(&self) -> Option<(&[u8], &str)> {
        let failed = self.removed.failed.first();
        let failed = failed.map(|(path, why)| (&path[..], &why[..]));
        failed.or_else(|| self.stayed.as_ref().map(|(path, why)| (&path[..], *why)))
    }

    /// Whether a folder, or something in it, would be removed.
    fn would_go(&mut self, folder: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> bool {
        let before = (self.removes, self.keeps, self.count);
        (self.removes, self.keeps) = (false, false);
        self.tree(folder, name, path.to_vec());
        let would_go = self.count > before.2;
        (self.removes, self.keeps, self.count) = before;
        would_go
    }

    /// Takes away a file or link, or an empty folder.
    ///
    /// * `len`: of a file or link.
    fn name(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: Vec<u8>,
        len: Option<u64>,
    ) -> bool {
        if !self.removes {
            self.note(Extra {
                path,
                is_folder: len.is_none(),
                len: len.unwrap_or(0),
            });
            return true;
        }
        if self.permit.is_some_and(|permit| !permit.holds()) {
            self.fail_as(&path, "another node may have ended the copy by now");
            return false;
        }
        let flags = match len {
            Some(_) => AtFlags::empty(),
            None => AtFlags::REMOVEDIR,
        };
        let mut removed = rustix::fs::unlinkat(folder, name, flags);
        // A folder that was made read-only: it gets its mode back, or is removed itself.
        if removed == Err(Errno::ACCESS) && sys::open_up(folder).is_ok() {
            removed = rustix::fs::unlinkat(folder, name, flags);
        }
        match removed {
            Ok(()) => {
                match len {
                    Some(_) => self.removed.files += 1,
                    None => self.removed.folders += 1,
                }
                if let Some(gone) = self.gone {
                    gone.fetch_add(1, Ordering::Relaxed);
                }
                true
            }
            Err(Errno::NOENT) => true,
            Err(errno) => {
                self.fail(&path, errno);
                false
            }
        }
    }

    /// Takes away a folder with all below it but what stays.
    fn tree(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: Vec<u8>) -> bool {
        let first = match self.level(parent, name, path) {
            Below::Open(first) => first,
            Below::Closed => return true,
            Below::Kept => return false,
        };
        let (mut levels, mut is_gone) = (vec![first], false);
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else {
                break;
            };
            let Some(name) = level.left.pop() else {
                let Some(level) = levels.pop() else {
                    break;
                };
                if let (true, true, Some(stood)) = (level.stays, self.removes, level.stood) {
                    let _ = stood.restore(level.folder.as_fd());
                }
                let above = levels.last();
                let folder = above.map_or(parent, |above| above.folder.as_fd());
                is_gone = !level.stays && {
                    let name = last_name(&level.path).to_vec();
                    self.name(folder, &name, level.path, None)
                };
                if let Some(above) = levels.last_mut() {
                    above.stays |= !is_gone;
                }
                continue;
            };
            let path = joined(&level.path, &name);
            let stat = sys::stat_entry(level.folder.as_fd(), &name);
            let stays = match stat {
                Err(Errno::NOENT) => false,
                Err(errno) => {
                    self.fail(&path, errno);
                    true
                }
                Ok(_) if is_temporary(&name) => {
                    self.stay(&path, IS_TEMPORARY);
                    true
                }
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    if self.filter.excludes(&path, true) {
                        self.stay(&path, IS_EXCLUDED);
                        true
                    } else if depth < DEPTH_MAX {
                        match self.level(level.folder.as_fd(), &name, path) {
                            Below::Open(deeper) => {
                                levels.push(deeper);
                                continue;
                            }
                            Below::Closed => false,
                            Below::Kept => true,
                        }
                    } else {
                        self.fail(&path, Errno::NAMETOOLONG);
                        true
                    }
                }
                Ok(stat) => !self.one(level.folder.as_fd(), &name, path, &stat, None),
            };
            if let Some(level) = levels.last_mut() {
                level.stays |= stays;
            }
        }
        is_gone
    }

    /// Opens a folder that is to be taken away. Where it cannot be it is told.
    fn level(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: Vec<u8>) -> Below {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let stat = sys::stat_entry(parent, name).ok();
        if let Some(why) = stat.and_then(|stat| self.spared.folder(&stat)) {
            self.fail_as(&path, why);
            return Below::Kept;
        }
        let mut opened = sys::open_on_mount(parent, name, flags);
        if !self.removes && matches!(opened, Err(Errno::ACCESS)) {
            // A removal would open it up; what is in it does not show.
            self.note(Extra {
                path,
                is_folder: true,
                len: 0,
            });
            return Below::Closed;
        }
        // One that its owner made unreadable.
        if self.removes
            && matches!(opened, Err(Errno::ACCESS))
            && let Ok(named) = sys::open_on_mount(parent, name, OFlags::PATH | OFlags::DIRECTORY)
            && sys::open_up(named.as_fd()).is_ok()
        {
            opened = sys::open_on_mount(parent, name, flags);
        }
        let listed = opened.and_then(|folder| Ok((list(&folder)?, folder)));
        match listed {
            Ok((left, folder)) => Below::Open(Level {
                folder,
                path,
                left,
                stood: stat.map(|stat| Standing::of(&stat)),
                stays: false,
            }),
            Err(errno) => {
                self.fail(&path, errno);
                Below::Kept
            }
        }
    }

    fn fail(&mut self, path: &[u8], errno: Errno) {
        self.fail_as(path, &words(errno));
    }

    fn fail_as(&mut self, path: &[u8], reason: &str) {
        if self.removed.failed.len() < FAILED_MAX {
            let failed = (path.to_vec(), reason.to_owned());
            self.removed.failed.push(failed);
        } else {
            self.removed.failed_more += 1;
        }
    }
}

/// Files of a folder's entries that its listing has under other names: the file system takes both for one.
fn own_inodes(folder: &OwnedFd, known: &HashSet<&[u8]>, listed: &[Vec<u8>]) -> HashSet<(u64, u64)> {
    let listed: HashSet<&[u8]> = listed.iter().map(Vec::as_slice).collect();
    let unlisted = known.iter().filter(|name| !listed.contains(**name));
    let found = unlisted.filter_map(|name| sys::stat_entry(folder.as_fd(), name).ok());
    found.map(|stat| (stat.st_dev, stat.st_ino)).collect()
}

fn open_folder(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    sys::open_beneath(base, path, flags, Mode::empty())
}

fn list(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for item in Dir::read_from(folder)? {
        let item = item?;
        let name = item.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_vec(),
        false => [folder, b"/", name].concat(),
    }
}

pub(super) fn words(errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => "permission denied".into(),
        Errno::XDEV => "another file system is mounted there".into(),
        Errno::BUSY => "it is in use, or another file system is mounted there".into(),
        Errno::NOTEMPTY | Errno::EXIST => "something was put into it meanwhile".into(),
        Errno::NAMETOOLONG => "it is too deep; remove it yourself".into(),
        Errno::MFILE | Errno::NFILE => "too many open files".into(),
        errno => {
            let text = std::io::Error::from(errno).to_string();
            text.split(" (os error")
                .next()
                .unwrap_or_default()
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Kept;

    /// All is counted before the first name is removed, and each that is gone then; only folders with something to remove are looked at
    /// again.
    #[test]
    fn a_removal_counts_what_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["d", "e", "d/old"] {
            std::fs::create_dir(folder.path().join(path)).unwrap();
        }
        for path in ["d/f", "e/f", "d/old/a", "d/old/b", "d/x"] {
            std::fs::write(folder.path().join(path), "x").unwrap();
        }
        let entries = ["", "d", "d/f", "e", "e/f"].map(|path| Entry {
            path: path.into(),
            kind: match path.ends_with('f') {
                true => EntryKind::File { len: 1 },
                false => EntryKind::Directory,
            },
            mode: 0o755,
            mtime_seconds: 0,
            mtime_nanoseconds: 0,
            kept: Kept::default(),
        });
        let dest = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        let filter = Filter::default();
        let removing = Removing::default();
        let mut walk = Walk::new(&entries, &filter, false);
        walk.keeps = false;
        walk.all(&dest);
        let folders: Vec<&[u8]> = walk.folders.iter().map(|entry| &entry.path[..]).collect();
        assert_eq!(
            (walk.count, walk.found.len(), folders),
            (4, 0, vec![&b"d"[..]])
        );
        removing.all.store(walk.count, Ordering::Relaxed);
        assert_eq!(removing.so_far(), Some((0, 4)));
        let removed = walk.remove(&dest, &removing.gone);
        assert_eq!((removed.files, removed.folders), (3, 1));
        assert_eq!(removing.so_far(), Some((4, 4)));
        assert!(!folder.path().join("d/old").exists() && folder.path().join("e/f").exists());
    }

    /// A file that is listed under another form of its entry's name is the entry's; a second name of it, beside that of the entry, is not. Here
    /// a hard link stands for a file system that changes names.
    #[test]
    fn names_that_the_file_system_changes_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("Name"), "x").unwrap();
        std::fs::hard_link(path("Name"), path("name")).unwrap();
        let opened = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        let known = HashSet::from([&b"Name"[..], b"gone"]);
        let own = |listed: &[&[u8]]| {
            let listed: Vec<Vec<u8>> = listed.iter().map(|name| name.to_vec()).collect();
            own_inodes(&opened, &known, &listed)
        };
        assert_eq!(own(&[b"name"]).len(), 1);
        assert_eq!(own(&[b"name", b"Name"]).len(), 0);
    }
}
