//! What stood at the destination before, and what is inherited from it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::fs::{
    Access, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use super::Tree;
use crate::error::{Operation, StoreError};
use crate::folders::{Folders, is_closed};
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::sys;

/// The permission bits that are set without the source's owner. Not the set-user and set-group bits, which would give the
/// rights of another one.
pub(super) const MODE_MASK: u32 = 0o1777;
const SET_GROUP: u32 = 0o2000;
/// What the owner of a folder needs to change what is in it.
const OWNER: u32 = 0o700;
pub(super) const SET_BITS: u32 = 0o6000;

/// Folders of DEST, by path.
#[derive(Debug, Default)]
pub(super) struct Stood {
    /// Those that stood there, as they were before anything was put into them.
    before: HashMap<Vec<u8>, Standing>,
    /// Those that a commit put there, which may have been interrupted after that; empty files and links, too.
    ours: HashSet<Vec<u8>>,
    /// Of a shared destination, those that stood there at the start. Used when another node's work is taken over only: until
    /// then others may change what stands there.
    first: HashMap<Vec<u8>, Standing>,
    /// New ones, by number, that were given all before they were moved there with all that is in them.
    finished: HashMap<u32, Finished>,
    /// `before` has all of them: what stands there and is not in it was put there by another node of the destination.
    is_taken_over: bool,
}

/// A new folder that was given all that it is to have.
#[derive(Debug, Clone, Copy)]
struct Finished {
    /// How many set-user and set-group bits it has not.
    lost: u64,
    /// The mode that it gets when all is moved, where that takes rights from its owner.
    mode: Option<u32>,
}

/// Folders of the stage that were given all that they are to have.
#[derive(Debug, Default)]
pub(super) struct FinishedFolders {
    all: Vec<u32>,
    /// Of these, the ones that their owner has not all rights to in the end, the deepest first.
    closed: Vec<u32>,
    /// That of all the others.
    first: Option<OwnedFd>,
}

/// Mode and time of a folder before anything was put into it.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    mode: u32,
    modified: Timespec,
}

/// What new entries of a folder get from it: its group, with the set-group bit of folders; `None` when they get the
/// group of the process.
pub(super) type Heritage = Option<u32>;

pub(super) fn heritage(folder: BorrowedFd<'_>) -> Result<Heritage, Errno> {
    Ok(heritage_of(&rustix::fs::fstat(folder)?))
}

pub(super) fn heritage_of(folder: &Stat) -> Heritage {
    (folder.st_mode & SET_GROUP != 0).then_some(folder.st_gid)
}

impl Tree {
    /// Keeps what a folder was before the first change, or notes that it is one that an earlier commit put there.
    pub(super) fn note_standing(
        &self,
        path: &[u8],
        folder: BorrowedFd<'_>,
    ) -> Result<(), StoreError> {
        let mut stood = lock(&self.stood);
        let parent = parent_of(path);
        if stood.ours.contains(path) || stood.before.contains_key(path) {
            return Ok(());
        }
        let is_moved = stood.is_taken_over && parent.is_some();
        if is_moved || parent.is_some_and(|parent| stood.ours.contains(parent)) {
            stood.ours.insert(path.to_vec());
            return Ok(());
        }
        let stat =
            rustix::fs::fstat(folder).map_err(|errno| self.failed(Operation::Inspect, errno))?;
        stood.before.insert(path.to_vec(), Standing::of(&stat));
        Ok(())
    }

    /// Notes all folders of DEST that the tree has, too, before any node of a shared destination moves one there: so that
    /// a node that takes over tells them from those that another one has moved.
    pub(super) fn note_all_standing(&self) -> Result<(), StoreError> {
        if Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?.is_some() {
            let dest = self.open_dest()?;
            let mut folders = Folders::new(dest.as_fd());
            for (object, entry) in (0..).zip(self.entries.iter()) {
                let failed = |errno| {
                    StoreError::from_errno(Operation::Inspect, self.final_path(entry), errno)
                };
                if entry.kind != EntryKind::Directory || self.refused.early().contains(object) {
                    continue;
                }
                if parent_of(&entry.path).is_none() {
                    self.note_first(&[], dest.as_fd())?;
                    continue;
                }
                let found = match folders.kind(&entry.path) {
                    // It makes way for a folder, or is below such a thing.
                    Ok(Some(kind)) if kind != FileType::Directory => None,
                    Err(Errno::NOTDIR | Errno::LOOP) if self.mirrors.is_some() => None,
                    // The commit finds that out, too.
                    Err(errno) if is_closed(errno) => None,
                    found => found.map_err(failed)?,
                };
                if found.is_some() {
                    let flags = OFlags::PATH | OFlags::DIRECTORY;
                    let folder = sys::open_beneath(dest.as_fd(), &entry.path, flags, Mode::empty());
                    self.note_first(&entry.path, folder.map_err(failed)?.as_fd())?;
                }
            }
        }
        Ok(())
    }

    fn note_first(&self, path: &[u8], folder: BorrowedFd<'_>) -> Result<(), StoreError> {
        let stat =
            rustix::fs::fstat(folder).map_err(|errno| self.failed(Operation::Inspect, errno))?;
        let standing = Standing::of(&stat);
        lock(&self.stood).first.insert(path.to_vec(), standing);
        Ok(())
    }

    /// DEST as it was before any node put something into it, a mark or the temporary folder.
    pub(super) fn note_dest(&self, was: Standing) {
        let mut stood = lock(&self.stood);
        let stood = &mut *stood;
        for known in [&mut stood.before, &mut stood.first] {
            known.entry(Vec::new()).and_modify(|found| *found = was);
        }
    }

    /// Another node has begun to move entries: what did not stand there at the start is its work.
    pub(super) fn take_over_standing(&self) {
        let mut stood = lock(&self.stood);
        for (path, was) in std::mem::take(&mut stood.first) {
            stood.before.entry(path).or_insert(was);
        }
        stood.is_taken_over = true;
    }

    /// Whether an earlier attempt to commit has put an entry into DEST.
    pub(super) fn is_ours(&self, path: &[u8]) -> bool {
        lock(&self.stood).ours.contains(path)
    }

    /// An entry was put into DEST that was not there; whether for the first time.
    pub(super) fn note_ours(&self, path: &[u8]) -> bool {
        lock(&self.stood).ours.insert(path.to_vec())
    }

    /// Modes and times of all folders, the deepest first: making or closing one changes those above it. Those that stood
    /// there get their own back, or those of the source where owners are kept. Returns how many set-user and set-group bits no folder has.
    pub(super) fn set_folders(&self, base: BorrowedFd<'_>) -> Result<u64, StoreError> {
        let mut stood = lock(&self.stood);
        let unplaced = self.all_unplaced();
        let mut lost = 0;
        let folders = (0..self.entries.len() as u32).rev();
        let folders = folders.map(|object| (object, &self.entries[object as usize]));
        let is_there = |(object, entry): &(u32, &Entry)| {
            entry.kind == EntryKind::Directory && !unplaced.contains(object)
        };
        for (object, entry) in folders.filter(is_there) {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let open = || sys::open_beneath(base, &entry.path, flags, Mode::empty());
            let failed = |errno| {
                StoreError::from_errno(Operation::SetMetadata, self.final_path(entry), errno)
            };
            if let Some(known) = stood.finished.get(&object) {
                lost += known.lost;
                if let Some(mode) = known.mode {
                    let set = open().and_then(|folder| sys::set_mode(folder.as_fd(), mode));
                    set.map_err(failed)?;
                }
                continue;
            }
            let opened = open();
            if let Some(before) = stood.before.get_mut(&entry.path) {
                // Somebody else's folder cannot be given its time back, and needs no other mode.
                if let Ok(folder) = opened {
                    let _ = before.restore(folder.as_fd());
                    // DEST itself is another one's folder, unless it is a mirror.
                    let is_due = !entry.path.is_empty() || self.removes.get().is_some();
                    if is_due && entry.kept.owner.is_some() {
                        *before = self.archive_folder(base, folder.as_fd(), object, entry)?;
                    }
                }
                continue;
            }
            lost += self.set_folder(&opened.map_err(failed)?, object, entry)?.0;
        }
        Ok(lost)
    }

    /// Gives a folder that stood there all that is kept of the source's folder, as far as permissions allow. What it is then.
    fn archive_folder(
        &self,
        base: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        object: u32,
        entry: &Entry,
    ) -> Result<Standing, StoreError> {
        let failed =
            |errno| StoreError::from_errno(Operation::SetMetadata, self.final_path(entry), errno);
        let stat = rustix::fs::fstat(folder).map_err(failed)?;
        let mut folders = Folders::new(base);
        let is_right = match folders.parent(&entry.path) {
            Ok((parent, name)) => self.is_kept(&stat, object, parent, name),
            // DEST itself.
            Err(_) => self.is_kept(&stat, object, self.parent.as_fd(), &self.name),
        };
        if is_right && is_time(&stat, entry) {
            return Ok(Standing::of(&stat));
        }
        // Who does not own it could change a part of that.
        if stat.st_uid != self.user.as_raw() && !self.user.is_root() {
            self.note_strange(object);
            return Ok(Standing::of(&stat));
        }
        self.remove_others(folder, object, entry);
        let inherited = stat.st_mode & SET_GROUP;
        if self
            .set_all(folder, object, entry, inherited, &times(entry))
            .is_err()
        {
            self.note_strange(object);
        }
        rustix::fs::fstat(folder)
            .map(|stat| Standing::of(&stat))
            .map_err(failed)
    }

    /// Mode and time of a new folder; how many set-user and set-group bits it has not, and the mode.
    fn set_folder(
        &self,
        folder: &OwnedFd,
        object: u32,
        entry: &Entry,
    ) -> Result<(u64, u32), StoreError> {
        let set = rustix::fs::fstat(folder).and_then(|stat| {
            let inherited = stat.st_mode & SET_GROUP;
            // The root of a bundle has no mode and no time to give.
            if entry.is_of_none() {
                let mode = 0o777 & !sys::umask() | inherited;
                return sys::set_mode(folder.as_fd(), mode).map(|()| mode);
            }
            self.set_all(folder.as_fd(), object, entry, inherited, &times(entry))
        });
        let mode = set.map_err(|errno| {
            StoreError::from_errno(Operation::SetMetadata, self.final_path(entry), errno)
        })?;
        let lost = (entry.mode & !mode & SET_BITS).count_ones();
        Ok((lost.into(), mode))
    }

    /// Gives a new folder of the stage, and all below it, what they are to have before it is moved to DEST: others may change what is there,
    /// and a commit that is killed leaves nothing that the next copy takes for a folder that another user has closed. The owner's rights stay
    /// until all is moved.
    ///
    /// * `below`: entries that are moved with it.
    /// * `given`: what the folder that it gets into passes on, where the stage passed on something else.
    pub(super) fn finish_staged(
        &self,
        root: &OwnedFd,
        folders: &mut Folders<'_>,
        object: u32,
        below: &[(u32, &Entry)],
        given: Option<Heritage>,
    ) -> Result<FinishedFolders, StoreError> {
        if let Some(given) = given {
            for (object, entry) in below {
                self.inherit(folders, entry, *object, given)?;
            }
        }
        let first = (object, &self.entries[object as usize]);
        let all = std::iter::once(&first).chain(below);
        let all: Vec<_> = all
            .filter(|(_, entry)| entry.kind == EntryKind::Directory)
            .collect();
        let mut finished = FinishedFolders::default();
        for (object, entry) in all.into_iter().rev() {
            let failed = |errno| {
                StoreError::from_errno(Operation::SetMetadata, self.staged_path(entry), errno)
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let opened = sys::open_beneath(root.as_fd(), &entry.path, flags, Mode::empty());
            let opened = opened.map_err(failed)?;
            let (lost, mode) = self.set_folder(&opened, *object, entry)?;
            let is_closed = mode & OWNER != OWNER;
            if is_closed {
                sys::set_mode(opened.as_fd(), mode | OWNER).map_err(failed)?;
            }
            let mode = is_closed.then_some(mode);
            lock(&self.stood)
                .finished
                .insert(*object, Finished { lost, mode });
            finished.all.push(*object);
            finished.closed.extend(is_closed.then_some(*object));
            finished.first = Some(opened);
        }
        Ok(finished)
    }

    /// Takes from the owner, once folders are moved, what is not to be its right.
    pub(super) fn close_moved(
        &self,
        finished: &FinishedFolders,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let Some(first) = &finished.first else {
            return Ok(());
        };
        // A node that takes over looks into folders: one that may not be searched is closed when all are moved.
        let may_search = |mode: u32| mode & 0o100 != 0 || self.user.is_root();
        for object in &finished.closed {
            let known = lock(&self.stood).finished.get(object).copied();
            let Some(mode) = known
                .and_then(|known| known.mode)
                .filter(|m| may_search(*m))
            else {
                continue;
            };
            let folder = &self.entries[*object as usize];
            let below = &folder.path[entry.path.len()..];
            let below = below.strip_prefix(b"/").unwrap_or(below);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let opened = match below.is_empty() {
                true => sys::set_mode(first.as_fd(), mode),
                false => sys::open_beneath(first.as_fd(), below, flags, Mode::empty())
                    .and_then(|opened| sys::set_mode(opened.as_fd(), mode)),
            };
            opened.map_err(|errno| {
                StoreError::from_errno(Operation::SetMetadata, self.final_path(folder), errno)
            })?;
            lock(&self.stood)
                .finished
                .entry(*object)
                .and_modify(|known| known.mode = None);
        }
        // The move may have given it another time.
        if !entry.is_of_none() {
            let _ = sys::set_times(first.as_fd(), &times(entry));
        }
        Ok(())
    }

    /// Folders that are not moved get all again.
    pub(super) fn reopen_all(&self, finished: &FinishedFolders) {
        finished.all.iter().for_each(|object| self.reopen(*object));
    }

    /// A new folder gets something more, and its mode and time after that.
    pub(super) fn reopen(&self, object: u32) {
        lock(&self.stood).finished.remove(&object);
    }

    /// Gives the folders that stood there their times back, after a commit that has put something into them has failed.
    pub(super) fn restore_standing(&self, base: BorrowedFd<'_>) {
        for (path, before) in &lock(&self.stood).before {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            if let Ok(folder) = sys::open_beneath(base, path, flags, Mode::empty()) {
                let _ = before.restore(folder.as_fd());
            }
        }
    }

    /// Set-user and set-group bits that files of the source have.
    pub(super) fn bits_of_files(&self) -> u64 {
        let is_file = |entry: &Entry| matches!(entry.kind, EntryKind::File { .. });
        self.named()
            .filter(|(_, entry)| is_file(entry) && entry.mode & SET_BITS != 0)
            .filter(|(object, _)| !self.has_set_id(*object))
            .map(|(_, entry)| u64::from((entry.mode & SET_BITS).count_ones()))
            .sum()
    }

    /// Where the temporary names are in DEST, and an earlier copy has made it read-only for its owner, it is opened up: it gets its mode
    /// back at the end.
    pub(super) fn open_up_dest(&self) {
        if self.stage_parent_path != self.dest {
            return;
        }
        let dest = self.stage_parent.as_fd();
        let asked = Access::WRITE_OK | Access::EXEC_OK;
        if rustix::fs::accessat(dest, c".", asked, AtFlags::empty()) == Err(Errno::ACCESS) {
            // Who does not own it finds out when something is made in it.
            let _ = sys::open_up(dest);
        }
    }

    /// Gives DEST its time back where only the stage was made in it and removed.
    pub(super) fn restore_dest(&self) {
        if self.stage_parent_path == self.dest
            && let Some(before) = lock(&self.stood).before.get(&[][..])
        {
            let _ = before.restore(self.stage_parent.as_fd());
        }
    }

    /// Gives a folder of DEST its mode and time back, after files in it got their names.
    pub(super) fn restore_folder(&self, path: &[u8]) {
        let before = lock(&self.stood).before.get(path).copied();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let opened = sys::open_beneath(self.stage_parent.as_fd(), path, flags, Mode::empty());
        if let (Some(before), Ok(folder)) = (before, opened) {
            // The commit tries it again.
            let _ = before.restore(folder.as_fd());
        }
    }

    /// Mode and time of a file or link, and what else is kept of it.
    pub(super) fn set_metadata(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        object: u32,
    ) -> Result<(), StoreError> {
        let failed =
            |errno| StoreError::from_errno(Operation::SetMetadata, self.staged_path(entry), errno);
        if let EntryKind::Symlink { .. } = entry.kind {
            self.set_link(folder, name, object, entry);
            return rustix::fs::utimensat(folder, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed);
        }
        let opened =
            sys::open_beneath(folder, name, OFlags::PATH, Mode::empty()).map_err(failed)?;
        self.set_all(opened.as_fd(), object, entry, 0, &times(entry))
            .map(|_| ())
            .map_err(failed)
    }

    /// Mode and time of a file that one write made whole, while it is open for that: without them it costs four calls at the end. Only
    /// where nothing else is kept of it, and where its owner can write to it still.
    pub(super) fn set_while_open(&self, object: u32, file: &File) {
        const USED: u32 = 0o600;
        let entry = &self.entries[object as usize];
        let may = self.root.is_some() && entry.mode & USED == USED && is_plain(entry);
        if may && !self.moving.load(Ordering::Acquire) {
            let mode = Mode::from_raw_mode(entry.mode & MODE_MASK);
            // The commit looks whether they are there.
            let set = rustix::fs::fchmod(file, mode);
            let _ = set.and_then(|()| rustix::fs::futimens(file, &times(entry)));
        }
    }

    /// Gives an entry of the stage, which no other user can change, what the folder of DEST passes on that it is to be in, instead of what
    /// the stage did.
    pub(super) fn inherit(
        &self,
        folders: &mut Folders<'_>,
        entry: &Entry,
        object: u32,
        heritage: Heritage,
    ) -> Result<(), StoreError> {
        // The file gets it under its first name.
        if self.is_linked(object) {
            return Ok(());
        }
        let file = self.file_of(object);
        if entry.kind != EntryKind::Directory && self.has_own_group(object, file) {
            return Ok(());
        }
        let (folder, name) = folders
            .parent(&entry.path)
            .map_err(|errno| self.failed(Operation::Inspect, errno))?;
        let group = heritage.map_or_else(rustix::process::getegid, Gid::from_raw);
        let given = rustix::fs::chownat(folder, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| match entry.kind {
                EntryKind::Directory => {
                    let stat = sys::stat_entry(folder, name)?;
                    let bit = if heritage.is_some() { SET_GROUP } else { 0 };
                    let mode = Mode::from_raw_mode(stat.st_mode & 0o1777 | bit);
                    rustix::fs::chmodat(folder, name, mode, AtFlags::empty())
                }
                EntryKind::File { .. }
                | EntryKind::Symlink { .. }
                | EntryKind::HardLink { .. }
                | EntryKind::Special(_) => Ok(()),
            });
        match given {
            // A user who is not of the group cannot give it away: it stays that of the user, who has no rights less.
            Err(Errno::PERM) => Ok(()),
            other => other.map_err(|errno| {
                StoreError::from_errno(Operation::SetMetadata, self.staged_path(entry), errno)
            }),
        }
    }
}

impl Standing {
    /// Of the folder at a path; `None` where there is none.
    ///
    /// * `path`: resolved (as [`crate::Roots`] returns it).
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let stat = rustix::fs::lstat(path).ok()?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        is_folder.then(|| Self::of(&stat))
    }

    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode & 0o7777,
            modified: Timespec {
                tv_sec: stat.st_mtime,
                tv_nsec: stat.st_mtime_nsec as _,
            },
        }
    }

    pub(super) fn restore(&self, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        let now = rustix::fs::fstat(folder)?;
        // One that had to be opened up for its owner, who may have lost the set-group bit by that. Any other mode was given to it meanwhile.
        let (mode, bits) = (now.st_mode & 0o7777, !SET_GROUP);
        if mode != self.mode && mode & bits == sys::opened_up(self.mode) & bits {
            return sys::set_metadata(folder, self.mode, &modified(self.modified));
        }
        sys::set_times(folder, &modified(self.modified))
    }
}

/// Whether something has the modification time of its entry, as far as file systems keep it.
pub(super) fn is_time(stat: &Stat, entry: &Entry) -> bool {
    let (found, wanted) = (stat.st_mtime_nsec as u32, entry.mtime_nanoseconds);
    // Tenths of microseconds, microseconds, milliseconds, hundredths of seconds (exFAT), seconds.
    let kept = [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000];
    let kept = kept.map(|step| wanted / step * step);
    stat.st_mtime == entry.mtime_seconds && kept.contains(&found)
}

/// The permission bits that a file is given.
pub(super) fn mode_of(entry: &Entry) -> u32 {
    entry.mode & MODE_MASK
}

/// Whether mode and time are all that is kept of a file.
fn is_plain(entry: &Entry) -> bool {
    entry.kept.owner.is_none() && entry.kept.attributes.is_empty()
}

/// Whether a staged file has its mode and time, and nothing else is kept of it.
pub(super) fn is_set(stat: &Stat, entry: &Entry) -> bool {
    let modified = (stat.st_mtime, stat.st_mtime_nsec as u32);
    is_plain(entry)
        && stat.st_mode & 0o7777 == mode_of(entry)
        && modified == (entry.mtime_seconds, entry.mtime_nanoseconds)
}

pub(super) fn times(entry: &Entry) -> Timestamps {
    modified(Timespec {
        tv_sec: entry.mtime_seconds,
        tv_nsec: entry.mtime_nanoseconds.into(),
    })
}

fn modified(last_modification: Timespec) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification,
    }
}
