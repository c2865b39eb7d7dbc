//! Names that files get before the commit: those of which every byte is safe, in folders that DEST has.
//!
//! ```text
//!  make_ready: length, mode, time, owner, attributes, ACLs in the stage --> sync --> record --> name_ready: rename, folder's time
//! ```
//!
//! What is synced with the bytes is the file as it is to be, so a name never leads to a file that lacks its time or mode, whenever the
//! power is lost. The next sync makes the names safe. The rest is the commit's: files in new folders, which are moved with their
//! folder and replace nothing, files without bytes, links, files with further names, folders, and what could not be named before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use ropewalk_model::journal::records_len;
use ropewalk_model::{Layout, Piece, Range, RangeSet, SpaceOfFile, WholeFiles, space_needed};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::same::{Same, is_file};
use super::standing::heritage;
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::parallel::{self, FILES_AT_ONCE};
use crate::sys;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Files may have their names before the commit, if DEST is there.
    pub is_wished: bool,
    /// The files that may.
    files: HashSet<u32>,
    /// Bytes that are free when the file in DEST is gone that has the name of an entry.
    freed: HashMap<u32, u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    whole: WholeFiles,
    /// With metadata, and to be synced, then named; with their bytes of the data space.
    ready: BTreeMap<u32, Range>,
    /// Those that have their names, by number; and the other way round, by inode.
    named: HashMap<u32, Given>,
    by_inode: HashMap<u64, u32>,
    /// Of these, the ones whose names no sync has covered, and their folders in DEST.
    unsynced: Vec<u32>,
    changed: HashSet<Vec<u8>>,
}

/// A file as it was when it got its name.
#[derive(Clone, Copy, Debug)]
struct Given {
    inode: u64,
    modified: (i64, i64),
}

impl Given {
    fn of(stat: &Stat) -> Self {
        // Their types are not the same on all systems.
        #[allow(clippy::useless_conversion)]
        Self {
            inode: stat.st_ino.into(),
            modified: (stat.st_mtime.into(), stat.st_mtime_nsec as i64),
        }
    }
}

impl Tree {
    /// Chooses the files that may have their names before the commit.
    ///
    /// * `same`: what of DEST is the same now.
    pub(super) fn choose_early(&mut self, same: &mut Same, layout: &Layout) {
        if !self.early.is_wished {
            return;
        }
        let folders = (0..).zip(self.entries.iter());
        let folders = folders
            .filter(|(object, entry)| entry.kind == EntryKind::Directory && same.has(*object));
        let mut standing: HashSet<&[u8]> =
            folders.map(|(_, entry)| entry.path.as_slice()).collect();
        standing.insert(&[]);
        let may = |piece: &&Piece| {
            let entry = &self.entries[piece.object as usize];
            let is_whole = piece.object_offset == 0 && piece.range.len() == entry.len();
            is_whole
                && !self.unchanged.contains(piece.object)
                && !self.names.contains_key(&piece.object)
                && parent_of(&entry.path).is_some_and(|parent| standing.contains(parent))
        };
        let files = layout.pieces().iter().filter(may);
        let files = files.map(|piece| piece.object).collect();
        (self.early.files, self.early.freed) = (files, same.take_freed());
    }

    /// Whether files may have their names before the commit.
    pub(super) fn is_early(&self) -> bool {
        !self.early.files.is_empty()
    }

    /// Bytes of the journal whose space is reserved.
    pub(super) fn reserved(&self) -> Option<u64> {
        self.is_early().then(|| self.records_len())
    }

    /// Bytes of the journal of this copy, if all is recorded in it.
    pub(super) fn records_len(&self) -> u64 {
        let entries = (0..).zip(self.entries.iter());
        let written = entries
            .filter(|(object, entry)| !entry.is_empty() && !self.unchanged.contains(*object));
        let lens = written.map(|(_, entry)| records_len(entry.path.len(), entry.len()));
        lens.fold(0, u64::saturating_add)
    }

    /// Bytes that are needed at most, beyond those that are in use, where files get their names one after the other.
    pub(super) fn space_needed(&self, layout: &Layout) -> u64 {
        let adopted = lock(&self.progress).adopted.clone();
        let pieces = layout.pieces().iter();
        let pieces = pieces.filter(|piece| !self.unchanged.contains(piece.object));
        space_needed(pieces.map(|piece| {
            let is_early = self.early.files.contains(&piece.object);
            let freed = self.early.freed.get(&piece.object).filter(|_| is_early);
            let there = adopted.clipped(piece.range).len_bytes();
            SpaceOfFile {
                written: piece.range.len() - there,
                freed: freed.copied().unwrap_or(0),
            }
        }))
    }

    /// Gives files of which all bytes are there their metadata, in the stage; what cannot be made ready is the commit's.
    ///
    /// * `safe`: bytes of the data space that a sync is to make safe now, or that are safe.
    pub(super) fn make_ready(&self, layout: &Layout, safe: &RangeSet) -> Vec<u32> {
        let Some(root) = self.root.as_ref().filter(|_| self.is_early()) else {
            return Vec::new();
        };
        let adopted = lock(&self.progress).adopted.clone();
        let all = match adopted.is_empty() {
            true => safe.clone(),
            false => safe.union(&adopted),
        };
        let whole = lock(&self.early.state).whole.take(layout, &all);
        let may = |piece: &Piece| self.early.files.contains(&piece.object);
        let mut files: Vec<(u32, Range)> = whole
            .into_iter()
            .filter(may)
            .map(|piece| (piece.object, piece.range))
            .collect();
        // Sorted by path, as the entries are.
        files.sort_unstable_by_key(|(object, _)| *object);
        let Ok(of_stage) = heritage(root.as_fd()) else {
            return Vec::new();
        };
        let ready = Mutex::new(Vec::with_capacity(files.len()));
        let chunks: Vec<&[(u32, Range)]> = files.chunks(FILES_AT_ONCE).collect();
        let made = parallel::for_each(&chunks, |chunk| {
            let mut staged = Folders::new(root.as_fd());
            let mut dest = Folders::new(self.stage_parent.as_fd());
            for (object, range) in *chunk {
                let entry = &self.entries[*object as usize];
                let made = self.make_file_ready(&mut staged, *object, entry);
                let made = made.and_then(|()| {
                    let folder = dest.parent(&entry.path);
                    let given = folder.and_then(|(folder, _)| heritage(folder));
                    let given = given.map_err(|errno| self.failed(Operation::Inspect, errno))?;
                    match given == of_stage {
                        true => Ok(()),
                        false => self.inherit(&mut staged, entry, *object, given),
                    }
                });
                if made.is_ok() {
                    lock(&ready).push((*object, *range));
                }
            }
            Ok(())
        });
        let ready = std::mem::take(&mut *lock(&ready));
        if made.is_err() {
            return Vec::new();
        }
        let objects = ready.iter().map(|(object, _)| *object).collect();
        lock(&self.early.state).ready.extend(ready);
        objects
    }

    fn make_file_ready(
        &self,
        staged: &mut Folders<'_>,
        object: u32,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        // Such a file cannot be opened any more for the sync.
        if entry.mode & 0o400 == 0 && !rustix::process::geteuid().is_root() {
            return Err(self.failed(Operation::SetMetadata, Errno::ACCESS));
        }
        let found = staged.parent(&entry.path);
        let (folder, name) = found.map_err(|errno| self.failed(Operation::Inspect, errno))?;
        self.complete_file(folder, name, entry, object)
    }

    /// Syncs a file that is to have its name, with its metadata; `None` where the file is another one.
    pub(super) fn sync_if_ready(&self, object: u32) -> Option<Result<(), StoreError>> {
        if !self.is_early() || !lock(&self.early.state).ready.contains_key(&object) {
            return None;
        }
        let entry = &self.entries[object as usize];
        let (folder, path) = self.place(entry);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = sys::open_beneath(folder, path, flags, Mode::empty());
        let synced = opened.and_then(rustix::fs::fsync);
        Some(synced.map_err(|errno| {
            StoreError::from_errno(Operation::Sync, self.staged_path(entry), errno)
        }))
    }

    /// Names, by path of their folder, that a sync has to cover.
    pub(super) fn changed_folders(&self) -> Vec<Vec<u8>> {
        let state = lock(&self.early.state);
        state.changed.iter().cloned().collect()
    }

    pub(super) fn sync_changed_folder(&self, path: &[u8]) -> Result<(), StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = sys::open_beneath(self.stage_parent.as_fd(), path, flags, Mode::empty());
        match opened.and_then(sys::sync_folder) {
            // Not for this user to read.
            Err(Errno::ACCESS) => rustix::fs::syncfs(&self.stage_parent)
                .map_err(|errno| self.failed(Operation::Sync, errno)),
            // Gone with what is in it.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(Operation::Sync, errno)),
        }
    }

    /// A sync has covered the names that were given before it: what the journal says of these files is of no use any more.
    pub(super) fn forget_named(&self) {
        let named = {
            let mut state = lock(&self.early.state);
            state.changed.clear();
            std::mem::take(&mut state.unsynced)
        };
        // Where it is lost the next transfer finds no file under that name.
        if !named.is_empty() {
            lock(&self.progress).drop_records(named);
        }
    }

    /// Gives the files that are ready their names; which they were. What cannot be named is the commit's, which says why.
    pub(super) fn name_ready(&self) -> Vec<u32> {
        let ready = std::mem::take(&mut lock(&self.early.state).ready);
        let Some(root) = self.root.as_ref().filter(|_| !ready.is_empty()) else {
            return Vec::new();
        };
        let mut folders: BTreeMap<&[u8], Vec<(u32, Range)>> = BTreeMap::new();
        for (object, range) in ready {
            let path = parent_of(&self.entries[object as usize].path);
            let files = folders.entry(path.unwrap_or_default()).or_default();
            files.push((object, range));
        }
        let chunks = folders
            .iter()
            .flat_map(|(path, files)| files.chunks(FILES_AT_ONCE).map(|files| (*path, files)));
        let chunks: Vec<_> = chunks.collect();
        let named = Mutex::new(Vec::new());
        // What fails is left in the stage.
        let _ = parallel::for_each(&chunks, |(path, files)| {
            let done = self.name_in(root, path, files);
            lock(&named).extend(done);
            Ok(())
        });
        let named = std::mem::take(&mut *lock(&named));
        let ranges = RangeSet::from_ranges(named.iter().map(|(_, range)| *range));
        let mut progress = lock(&self.progress);
        progress.named = progress.named.union(&ranges);
        drop(progress);
        let objects: Vec<u32> = named.iter().map(|(object, _)| *object).collect();
        lock(&self.early.state).unsynced.extend(&objects);
        // The folders are as old as they were, also where this process is killed next.
        for path in folders.keys() {
            self.restore_folder(path);
        }
        objects
    }

    /// Names files of one folder; those that were.
    fn name_in(&self, root: &OwnedFd, path: &[u8], files: &[(u32, Range)]) -> Vec<(u32, Range)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open =
            |base: BorrowedFd<'_>, path: &[u8]| sys::open_beneath(base, path, flags, Mode::empty());
        let from = open(root.as_fd(), path);
        let to = open(self.stage_parent.as_fd(), path);
        let (Ok(from), Ok(to)) = (from, to) else {
            return Vec::new();
        };
        if self.note_standing(path, to.as_fd()).is_err() {
            return Vec::new();
        }
        lock(&self.early.state).changed.insert(path.to_vec());
        let name_one = |(object, _): &&(u32, Range)| self.name_one(&from, &to, *object).is_some();
        files.iter().filter(name_one).copied().collect()
    }

    fn name_one(&self, from: &OwnedFd, to: &OwnedFd, object: u32) -> Option<()> {
        let path = &self.entries[object as usize].path;
        let parent = parent_of(path)?;
        let name = &path[parent.len() + usize::from(!parent.is_empty())..];
        let staged = sys::stat_entry(from.as_fd(), name).ok()?;
        let standing = match sys::stat_entry(to.as_fd(), name) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(_) => return None,
        };
        if let Some(stat) = &standing {
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            // The file system takes two names of the tree for one.
            let is_others = lock(&self.early.state).by_inode.contains_key(&stat.st_ino);
            // Another program has written it since the copy began: the commit leaves it as it is.
            if is_folder || is_others || self.passes(stat, &self.entries[object as usize]) {
                return None;
            }
        }
        let rename = || self.rename_file(from.as_fd(), to.as_fd(), name);
        let renamed = match rename() {
            // A folder that an earlier copy made read-only: it gets its mode back when these have their names.
            Err(Errno::ACCESS) if sys::open_up(to.as_fd()).is_ok() => rename(),
            other => other,
        };
        renamed.ok()?;
        lock(&self.made).remove(&staged.st_ino);
        let mut state = lock(&self.early.state);
        state.named.insert(object, Given::of(&staged));
        state.by_inode.insert(staged.st_ino, object);
        drop(state);
        let mut landed = lock(&self.landed);
        landed.replaced_files += u64::from(standing.is_some());
        landed.added_files += u64::from(standing.is_none());
        Some(())
    }

    /// Whether a file has its name already.
    pub(super) fn is_named_early(&self, object: u32) -> bool {
        self.is_early() && lock(&self.early.state).named.contains_key(&object)
    }

    /// Files that have their names already.
    pub(super) fn named_early(&self) -> HashSet<u32> {
        match self.is_early() {
            true => lock(&self.early.state).named.keys().copied().collect(),
            false => HashSet::new(),
        }
    }

    /// Another file has the inode of one that had its name, and was removed since.
    pub(super) fn forget_inode(&self, inode: u64) {
        if self.is_early() {
            lock(&self.early.state).by_inode.remove(&inode);
        }
    }

    /// Whether what stands under the name of an entry is the file that got it before the commit, as it was then. A file system may keep
    /// another time than it was given, and may give a file another inode.
    pub(super) fn is_still_named(&self, stat: &Stat, object: u32) -> bool {
        let entry = &self.entries[object as usize];
        let given = lock(&self.early.state).named.get(&object).copied();
        let Some(given) = given else {
            return false;
        };
        let found = Given::of(stat);
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let are_kept = || FileSystem::of(&self.stage_parent).is_some_and(FileSystem::keeps_inodes);
        let is_it =
            || found.modified == given.modified && (found.inode == given.inode || !are_kept());
        is_file(stat, entry) || is_regular && stat.st_size as u64 == entry.len() && is_it()
    }

    /// # Errors
    /// [`StoreError::ChangedAtDestination`] for the first of the files that got their names before the commit and have changed since.
    ///
    /// * `same`: what of DEST is the same now.
    pub(super) fn check_named(&self, same: &Same) -> Result<(), StoreError> {
        let named = self.named_early().into_iter();
        let changed = named.filter(|object| !same.is_alike(*object)).min();
        changed.map_or(Ok(()), |object| {
            Err(StoreError::ChangedAtDestination {
                path: self.final_path(&self.entries[object as usize]),
            })
        })
    }
}
