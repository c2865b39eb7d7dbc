//! The end of a tree: what has no bytes is made, modes and times are set, names are given.
//!
//! ```text
//!  complete -> metadata of files and links -> sync -+-> DEST absent: folders' metadata -> rename -----+-> sync
//!                                                   +-> DEST exists: rename each -> folders' metadata +
//! ```

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::across::Unplaceable;
use super::extra::{Way, words};
use super::same::{Same, is_file};
use super::standing::{heritage_of, is_set};
use super::{Tree, replaceable};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::folders::{Folders, is_closed};
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::parallel::{self, FILES_AT_ONCE};
use crate::sink::Landed;
use crate::staging::{SYNC_EACH_MAX, remove_entry};
use crate::sys;

impl Tree {
    /// The journals stay, for [`end_commit`](Self::end_commit).
    ///
    /// * `same`: what of DEST is the same now.
    pub(super) fn commit(&self, same: &Same) -> Result<(), StoreError> {
        self.gives.store(true, Ordering::Release);
        self.forget_lacking();
        self.forget_unplaced();
        self.passed_late.store(0, Ordering::Relaxed);
        let Some(root) = &self.root else {
            return self.commit_single(same);
        };
        if self.is_renamed(root)? {
            lock(&self.landed).bits_not_kept =
                self.set_folders(root.as_fd())? + self.bits_of_files();
            self.count_all_as_added();
            self.sync_all(root, false)?;
            return sys::sync_folder(&self.parent)
                .map_err(|errno| self.failed(Operation::Sync, errno));
        }
        if let Some(dest) = self.moved_to(root)? {
            self.note_standing(&[], dest.as_fd())?;
            // The other node may have ended before it gave these, and folders, their modes and times.
            let is_set = self.set_modes_of_unchanged(same);
            let lost = self.set_folders(dest.as_fd())?;
            is_set?;
            let mut landed = lock(&self.landed);
            landed.bits_not_kept = lost + self.bits_of_files();
            (landed.unchanged_files, landed.passed_files) = self.stayed(same);
            drop(landed);
            self.sync_all(&dest, false)?;
            return sys::sync_folder(&self.parent)
                .map_err(|errno| self.failed(Operation::Sync, errno));
        }
        let merge = Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?.is_some();
        let dest = if merge { Some(self.open_dest()?) } else { None };
        let is_update = !self.unchanged.is_empty();
        let stands = |object: u32, entry: &Entry| {
            is_update && entry.kind == EntryKind::Directory && same.has(object)
        };
        let new: Vec<(u32, &Entry)> = self
            .kept()
            .skip(1)
            .filter(|(object, entry)| !stands(*object, entry))
            .collect();
        let is_any_new = dest.is_none() || !new.is_empty();
        self.complete_all(root, dest.as_ref(), new)?;
        // Where all was there already nothing of this transfer has to be made safe, but modes and times, which are by themselves.
        if is_any_new {
            self.sync_all(root, true)?;
        }
        let lost = match &dest {
            None => {
                let lost = self.set_folders(root.as_fd())?;
                // What is left of it is taken over by the next copy where it is this user's, and no other's to change.
                self.rename_stage().inspect_err(|_| {
                    let _ = rustix::fs::fchown(root, Some(self.user), None);
                    let _ = rustix::fs::fchmod(root, Mode::RWXU);
                })?;
                self.sync_all(root, false)?;
                self.count_all_as_added();
                lost
            }
            Some(dest) => {
                self.move_entries(root, dest)
                    .inspect_err(|_| self.restore_standing(dest.as_fd()))?;
                let mut landed = lock(&self.landed);
                // What is put into a folder side by side was meant for it, unless it takes the place of something.
                let is_bundle = self.entries.first().is_some_and(Entry::is_of_none);
                if !is_bundle || landed.replaced_files > 0 {
                    landed.merged = Some(self.dest.clone());
                }
                drop(landed);
                // The stage has what was copied to other file systems until it is safe there.
                self.sync_across()
                    .inspect_err(|_| self.restore_standing(dest.as_fd()))?;
                // What has no place stays for a later transfer.
                if !self.is_any_unplaced() {
                    self.remove_temporary();
                }
                let is_set = self.set_modes_of_unchanged(same);
                let lost = self.set_folders(dest.as_fd())?;
                if is_any_new {
                    self.sync_all(dest, false)?;
                }
                // Modes and times of folders there.
                self.sync_across()?;
                self.end_across();
                is_set?;
                lost
            }
        };
        let mut landed = lock(&self.landed);
        landed.bits_not_kept = lost + self.bits_of_files();
        (landed.unchanged_files, landed.passed_files) = self.stayed(same);
        drop(landed);
        sys::sync_folder(&self.parent).map_err(|errno| self.failed(Operation::Sync, errno))
    }

    pub(super) fn failed(&self, operation: Operation, errno: Errno) -> StoreError {
        StoreError::from_errno(operation, &self.dest, errno)
    }

    /// Leaves files out of the commit, and removes what was written of them. The set of the first call stays.
    ///
    /// # Errors
    /// What kept one of them from being removed: it would be renamed with its folder.
    pub(super) fn omit(&self, mut omitted: HashSet<u32>) -> Result<(), StoreError> {
        self.add_names(&mut omitted);
        let omitted = self.omitted.get_or_init(|| omitted);
        let Some(root) = &self.root else {
            return Ok(());
        };
        // New files may get the inodes of those that are removed.
        lock(&self.made).retain(|_, object| !omitted.contains(object));
        let mut folders = Folders::new(root.as_fd());
        for &object in omitted {
            // Nothing of it can be there.
            if self.refused.early().contains(object) {
                continue;
            }
            let entry = &self.entries[object as usize];
            let removed = folders
                .parent(&entry.path)
                .and_then(|(folder, name)| rustix::fs::unlinkat(folder, name, AtFlags::empty()));
            match removed {
                // Nothing of it was written.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    let path = self.staged_path(entry);
                    return Err(StoreError::from_errno(Operation::Remove, path, errno));
                }
            }
        }
        Ok(())
    }

    /// The entries that have their names after the commit, with their numbers; the first is the tree's folder.
    pub(super) fn named(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let omitted = self.omitted.get();
        let unplaced = self.all_unplaced();
        let is_named = move |object: &u32| {
            omitted.is_none_or(|all| !all.contains(object)) && !unplaced.contains(object)
        };
        (0..)
            .zip(self.entries.iter())
            .filter(move |(object, _)| is_named(object))
    }

    /// Entries below a folder that the commit puts there; those that are left out or already there are none of them.
    ///
    /// * `is_elsewhere`: whether an entry is not in the stage.
    fn below(&self, folder: u32, is_elsewhere: impl Fn(u32) -> bool) -> Vec<(u32, &Entry)> {
        let path = &self.entries[folder as usize].path;
        let edge = |byte: u8| {
            let edge = [path.as_slice(), &[byte]].concat();
            self.entries.partition_point(|entry| entry.path < edge)
        };
        let range = edge(b'/')..edge(b'/' + 1);
        let omitted = self.omitted.get();
        let is_moved = |object: u32| {
            let is_omitted = omitted.is_some_and(|all| all.contains(&object));
            !(is_omitted || self.unchanged.contains(object) || is_elsewhere(object))
        };
        let below = (range.start as u32..).zip(&self.entries[range]);
        below.filter(|(object, _)| is_moved(*object)).collect()
    }

    /// Whether files below a folder are left out of the commit.
    fn lacks_files_below(&self, folder: &Entry) -> bool {
        let below = [&folder.path[..], b"/"].concat();
        let is_below = |object: &u32| self.entries[*object as usize].path.starts_with(&below);
        self.omitted
            .get()
            .is_some_and(|all| all.iter().any(is_below))
    }

    /// Of these, the ones that the commit puts there.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.named()
            .filter(|(object, _)| !self.unchanged.contains(*object))
    }

    fn count_all_as_added(&self) {
        let is_there = |object: u32| !self.is_unmade(object);
        let files = self
            .kept()
            .filter(|(object, entry)| is_name_of_file(entry) && is_there(*object));
        lock(&self.landed).added_files = files.count() as u64;
    }

    /// Whether a commit that another node began has given the temporary folder the final name.
    fn is_renamed(&self, root: &OwnedFd) -> Result<bool, StoreError> {
        if !self.moving.load(Ordering::Acquire) {
            return Ok(false);
        }
        let failed = |errno| self.failed(Operation::Inspect, errno);
        let staged = rustix::fs::fstat(root).map_err(failed)?;
        match sys::stat_entry(self.parent.as_fd(), &self.name) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (staged.st_dev, staged.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// DEST, where a commit that another node began has moved everything: the temporary folder is gone, and every file
    /// stands there.
    fn moved_to(&self, root: &OwnedFd) -> Result<Option<OwnedFd>, StoreError> {
        let failed = |errno| self.failed(Operation::Inspect, errno);
        if !self.moving.load(Ordering::Acquire)
            || rustix::fs::fstat(root).map_err(failed)?.st_nlink > 0
        {
            return Ok(None);
        }
        let dest = self.open_dest()?;
        let mut folders = Folders::new(dest.as_fd());
        for (_, entry) in self.kept() {
            if matches!(entry.kind, EntryKind::File { .. })
                && self.stands(&mut folders, entry) != Some(true)
            {
                return Err(self.failed(Operation::Rename, Errno::NOENT));
            }
        }
        Ok(Some(dest))
    }

    fn commit_single(&self, same: &Same) -> Result<(), StoreError> {
        let Some(entry) = self.entries.first() else {
            return Ok(());
        };
        if !self.unchanged.is_empty() {
            self.set_modes_of_unchanged(same)?;
            let mut landed = lock(&self.landed);
            (landed.unchanged_files, landed.passed_files) = self.stayed(same);
            landed.bits_not_kept = self.bits_of_files();
            return Ok(());
        }
        let folder = self.stage_parent.as_fd();
        if self.moving.load(Ordering::Acquire)
            && matches!(sys::stat_entry(folder, &self.temporary), Err(Errno::NOENT))
        {
            // Another node has renamed it.
            let stat = sys::stat_entry(self.parent.as_fd(), &self.name)
                .map_err(|errno| self.failed(Operation::Rename, errno))?;
            let is_there = match self.special_of(0) {
                Some(special) => Self::is_same_special(&stat, entry, special),
                None => is_file(&stat, entry) || self.passes(&stat, entry),
            };
            return match is_there {
                true => sys::sync_folder(&self.parent)
                    .map_err(|errno| self.failed(Operation::Sync, errno)),
                false => Err(self.failed(Operation::Rename, Errno::NOENT)),
            };
        }
        if let Some(special) = self.special_of(0) {
            let is_made = self.make_special(folder, &self.temporary, 0, special)?;
            if is_made {
                self.set_metadata(folder, &self.temporary, entry, 0)?;
                return self.name_single();
            }
            return Ok(());
        }
        self.check_file(folder, &self.temporary, entry, 0)?;
        let failed = |operation, errno| StoreError::from_errno(operation, self.stage_path(), errno);
        // Nameable without rights to its contents, yet a descriptor to sync is needed: taken before the mode is set.
        let file = sys::open_beneath(
            folder,
            &self.temporary,
            OFlags::RDONLY | OFlags::NONBLOCK,
            Mode::empty(),
        );
        let file = file.map_err(|errno| failed(Operation::Sync, errno))?;
        // Long before it has an owner and a mode by which the next copy would not take it over, if this one ends.
        let sync = || rustix::fs::fsync(&file).map_err(|errno| failed(Operation::Sync, errno));
        sync()?;
        self.set_metadata(folder, &self.temporary, entry, 0)?;
        sync()?;
        self.name_single()
    }

    /// Gives what is complete its final name, where it is no tree.
    fn name_single(&self) -> Result<(), StoreError> {
        let standing = sys::stat_entry(self.parent.as_fd(), &self.name);
        let replaces = standing.is_ok();
        let stays = |standing| {
            let stays = self.passes_late(standing, self.entry(0));
            if stays {
                self.remove_temporary();
                lock(&self.landed).passed_files = 1;
            }
            stays
        };
        if stays(standing) {
            return Ok(());
        }
        match self.rename_stage() {
            Err(StoreError::TakenMeanwhile { .. })
                if stays(sys::stat_entry(self.parent.as_fd(), &self.name)) =>
            {
                return Ok(());
            }
            renamed => renamed?,
        }
        *lock(&self.landed) = Landed {
            merged: None,
            added_files: u64::from(!replaces),
            replaced_files: u64::from(replaces),
            bits_not_kept: self.bits_of_files(),
            unchanged_files: 0,
            ..Landed::default()
        };
        sys::sync_folder(&self.parent).map_err(|errno| self.failed(Operation::Sync, errno))
    }

    /// Makes sure that entries stand in the stage, as [`complete`](Self::complete) does: folders, then what is in them, files side by
    /// side, then what may lead to one of these.
    fn complete_all(
        &self,
        root: &OwnedFd,
        dest: Option<&OwnedFd>,
        mut entries: Vec<(u32, &Entry)>,
    ) -> Result<(), StoreError> {
        let named = self.named_early();
        entries.retain(|(object, _)| !named.contains(object));
        let complete = |entries: &[(u32, &Entry)]| {
            let mut folders = Folders::new(root.as_fd());
            let mut moved = dest.map(|dest| Folders::new(dest.as_fd()));
            let mut each = entries.iter();
            each.try_for_each(|(object, entry)| {
                self.complete(&mut folders, moved.as_mut(), entry, *object)
            })
        };
        let is_folder = |(_, entry): &(u32, &Entry)| entry.kind == EntryKind::Directory;
        let is_regular = |(_, entry): &(u32, &Entry)| matches!(entry.kind, EntryKind::File { .. });
        let (own_folders, rest): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_folder);
        let (files, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_regular);
        complete(&own_folders)?;
        let chunks: Vec<_> = files.chunks(FILES_AT_ONCE).collect();
        parallel::for_each(&chunks, |files| complete(files))?;
        complete(&rest)
    }

    /// Makes sure that an entry stands in the stage with its bytes, mode and time. `moved` is DEST, where an
    /// earlier, interrupted commit may have put it.
    fn complete(
        &self,
        folders: &mut Folders<'_>,
        mut moved: Option<&mut Folders<'_>>,
        entry: &Entry,
        object: u32,
    ) -> Result<(), StoreError> {
        let failed =
            |errno| StoreError::from_create(self.staged_path(entry), &self.stage_parent, errno);
        if entry.kind == EntryKind::Directory {
            self.make_way_to(folders, entry)?;
            self.make_folder(folders, &entry.path)?;
            let (folder, name) = folders.parent(&entry.path).map_err(failed)?;
            return self.claim_name(folder, name, entry, object);
        }
        if self.moving.load(Ordering::Acquire)
            && !entry.is_empty()
            && folders.kind(&entry.path).map_err(failed)?.is_none()
            && let Some(moved) = moved.as_deref_mut()
            && let Some(true) = self.stands(moved, entry)
        {
            return Ok(());
        }
        self.make_way_to(folders, entry)?;
        let (folder, name) = folders.parent(&entry.path).map_err(failed)?;
        match &entry.kind {
            EntryKind::Symlink { target } => match rustix::fs::symlinkat(&**target, folder, name) {
                Ok(()) => {
                    self.claim_name(folder, name, entry, object)?;
                    self.set_metadata(folder, name, entry, object)
                }
                Err(Errno::EXIST) => {
                    self.claim_name(folder, name, entry, object)?;
                    // One that another node, or an earlier attempt, has made leads to the same.
                    let found = rustix::fs::readlinkat(folder, name, Vec::new());
                    match found.is_ok_and(|found| found.as_bytes() == target.as_slice()) {
                        true => self.set_metadata(folder, name, entry, object),
                        false => Err(failed(Errno::EXIST)),
                    }
                }
                Err(errno) if self.refuse_link(object, errno) => Ok(()),
                Err(errno) => Err(failed(errno)),
            },
            EntryKind::HardLink { .. } => self.make_link(folder, name, object, moved),
            EntryKind::Special(special) => {
                match self.make_special(folder, name, object, *special)? {
                    true => self.set_metadata(folder, name, entry, object),
                    false => Ok(()),
                }
            }
            EntryKind::File { .. } | EntryKind::Directory => {
                self.complete_file(folder, name, entry, object)
            }
        }
    }

    /// Makes the folders above an entry in the stage: those that stand in DEST are made there only for what is to be moved.
    fn make_way_to(&self, folders: &mut Folders<'_>, entry: &Entry) -> Result<(), StoreError> {
        match folders.parent(&entry.path) {
            Err(Errno::NOENT) => self.make_parents(&entry.path),
            _ => Ok(()),
        }
    }

    /// Refuses a folder or link whose name another entry has, which the file system takes for the same.
    fn claim_name(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        object: u32,
    ) -> Result<(), StoreError> {
        let stat = sys::stat_entry(folder, name).map_err(|errno| {
            StoreError::from_errno(Operation::Inspect, self.staged_path(entry), errno)
        })?;
        self.claim_inode(stat.st_ino, object)
    }

    /// Whether the finished file stands in DEST already.
    fn stands(&self, folders: &mut Folders<'_>, entry: &Entry) -> Option<bool> {
        let (folder, name) = folders.parent(&entry.path).ok()?;
        let stat = sys::stat_entry(folder, name).ok()?;
        Some(is_file(&stat, entry) || self.passes(&stat, entry))
    }

    /// Makes sure that a file stands there with its bytes, mode and time.
    pub(super) fn complete_file(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        object: u32,
    ) -> Result<(), StoreError> {
        match self.check_file(folder, name, entry, object)? {
            Some(stat) if is_set(&stat, entry) => Ok(()),
            _ => self.set_metadata(folder, name, entry, object),
        }
    }

    /// Makes an empty file, checks the length of any other; what is known of it where it was not changed.
    fn check_file(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        object: u32,
    ) -> Result<Option<Stat>, StoreError> {
        let path = || self.staged_path(entry);
        let failed = |errno| StoreError::from_create(path(), &self.stage_parent, errno);
        let mut found = None;
        let staged = match sys::stat_entry(folder, name) {
            Ok(stat) => {
                self.claim_inode(stat.st_ino, object)?;
                found = Some(stat);
                stat.st_size as u64
            }
            Err(Errno::NOENT) if entry.is_empty() => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let made = sys::open_beneath(folder, name, flags, Mode::RUSR | Mode::WUSR);
                self.claim(made.map_err(failed)?, object)?;
                0
            }
            Err(Errno::NOENT) => 0,
            Err(errno) => return Err(failed(errno)),
        };
        if staged < entry.len() {
            return Err(StoreError::Incomplete {
                path: path(),
                len: staged,
                wanted: entry.len(),
            });
        }
        if staged > entry.len() {
            // Left over from an attempt that the name should have told apart; the end is not ours.
            let file = sys::open_beneath(
                folder,
                name,
                OFlags::WRONLY | OFlags::NONBLOCK,
                Mode::empty(),
            )
            .map_err(failed)?;
            rustix::fs::ftruncate(&file, entry.len()).map_err(failed)?;
            found = None;
        }
        Ok(found)
    }

    /// Gives the temporary name the final one.
    fn rename_stage(&self) -> Result<(), StoreError> {
        let (from, to) = (&*self.temporary, &*self.name);
        let (stage, parent) = (self.stage_parent.as_fd(), self.parent.as_fd());
        let is_new = self.root.is_some() || self.leaves_existing();
        let renamed = match is_new {
            true => sys::rename_new((stage, from), (parent, to)),
            false => rustix::fs::renameat(stage, from, parent, to),
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => StoreError::TakenMeanwhile {
                path: self.dest.clone(),
            },
            errno => self.failed(Operation::Rename, errno),
        })
    }

    /// Moves each entry to DEST, a whole folder at once where DEST has none of that name. Counts what is new and what took
    /// the place of something.
    fn move_entries(&self, root: &OwnedFd, dest: &OwnedFd) -> Result<(), StoreError> {
        let (mut from, mut to) = (Folders::new(root.as_fd()), Folders::new(dest.as_fd()));
        let inspected = |errno| self.failed(Operation::Inspect, errno);
        let staged = rustix::fs::fstat(root).map_err(inspected)?;
        let (of_stage, device) = (heritage_of(&staged), staged.st_dev);
        let mut old: HashSet<&[u8]> = HashSet::from([&[][..]]);
        self.note_standing(&[], dest.as_fd())?;
        let moving = self.moving.swap(true, Ordering::AcqRel);
        let (mut way, specials) = (None, Self::has_specials(&self.entries));
        let (named, unmade) = (self.named_early(), self.unmade());
        let is_done = |object: u32| {
            self.is_left(object)
                || named.contains(&object)
                || unmade.contains(&object)
                || self.refused.has(object)
        };
        for (object, entry) in self.kept() {
            let path = entry.path.as_slice();
            let Some(parent) = parent_of(path).filter(|_| !is_done(object)) else {
                continue;
            };
            let is_folder = entry.kind == EntryKind::Directory;
            if self.is_in_unplaced(object, entry) {
                continue;
            }
            // Moved with its folder.
            if !old.contains(parent) {
                lock(&self.landed).added_files += u64::from(!is_folder);
                continue;
            }
            let failed =
                |errno| StoreError::from_errno(Operation::Rename, self.final_path(entry), errno);
            // Most are: it is asked where another node, or an earlier attempt, may have moved it.
            let is_staged = !(moving || is_folder) || from.kind(path).map_err(failed)?.is_some();
            if self.may_pass_late() && is_staged && !is_folder && !self.is_ours(path) {
                let there = to.parent(path);
                let there = there.and_then(|(folder, name)| sys::stat_entry(folder, name));
                if self.passes_late(there, entry) {
                    continue;
                }
            }
            let standing = match to.kind(path) {
                Err(errno) if is_closed(errno) => {
                    self.note_unplaced(object, &words(errno));
                    continue;
                }
                standing => standing.map_err(failed)?,
            };
            let (mut standing, mut in_the_way) = (standing, None);
            if let Some(kind) = standing
                && !replaceable(&entry.kind, kind, specials)
            {
                let Some(filter) = self.removes.get() else {
                    return Err(self.in_the_way(entry, kind, None));
                };
                if is_folder && (self.lacks_files_below(entry) || self.is_refused_below(entry)) {
                    self.note_unplaced(object, "files in it are missing");
                    continue;
                }
                standing = None;
                in_the_way =
                    Some(way.get_or_insert_with(|| Way::new(self, dest.as_fd(), filter, specials)));
            }
            if is_folder && standing.is_some() {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let folder = sys::open_beneath(dest.as_fd(), path, flags, Mode::empty());
                self.note_standing(path, folder.map_err(failed)?.as_fd())?;
                self.reopen(object);
                old.insert(path);
                continue;
            }
            let (folder, name) = to.parent(path).map_err(failed)?;
            let stat = rustix::fs::fstat(folder).map_err(inspected)?;
            let given = heritage_of(&stat);
            let given = (given != of_stage).then_some(given);
            let mut clear = || match in_the_way.take() {
                Some(way) => way.clear(folder, name, entry),
                None => Ok(()),
            };
            let mut is_across = stat.st_dev != device;
            let mut placed = Ok(());
            let mut finished = None;
            if !is_across {
                // Others may change what is in DEST, and none of them the stage: all is given there. It is not in the stage where another
                // node, or an earlier attempt, has moved it.
                if is_staged {
                    if let Some(given) = given {
                        self.inherit(&mut from, entry, object, given)?;
                    }
                    if is_folder {
                        let below = self.below(object, is_done);
                        let below = self.finish_staged(root, &mut from, object, &below, given)?;
                        finished = Some(below);
                    }
                }
                let (staged, _) = from.parent(path).map_err(failed)?;
                placed = clear().map_err(Unplaceable::of).and_then(|()| {
                    let rename = || match is_folder {
                        true => sys::rename_to(staged, folder, name),
                        false => self.rename_file(staged, folder, name),
                    };
                    let mut renamed = rename();
                    // A folder that an earlier copy made read-only: it gets its mode back when all is in it.
                    if renamed == Err(Errno::ACCESS) && sys::open_up(folder).is_ok() {
                        renamed = rename();
                    }
                    renamed.map_err(Unplaceable::Errno)
                });
                // Two mounts of one file system, or two volumes in it.
                is_across = matches!(placed, Err(Unplaceable::Errno(Errno::XDEV)));
            }
            if let (true, Some(finished)) = (is_across || placed.is_err(), &finished) {
                self.reopen_all(finished);
            }
            if is_across {
                let (root, dest) = (root.as_fd(), dest.as_fd());
                placed = self.place_across(root, dest, (folder, name), (object, entry), clear);
            }
            match placed {
                Ok(()) => {}
                // An earlier commit that was interrupted moved it; `complete` has seen it there.
                Err(Unplaceable::Errno(Errno::NOENT))
                    if moving && !entry.is_empty() && sys::stat_entry(folder, name).is_ok() =>
                {
                    continue;
                }
                Err(Unplaceable::Errno(Errno::EXIST))
                    if !is_folder && self.passes_late(sys::stat_entry(folder, name), entry) =>
                {
                    continue;
                }
                Err(why) => {
                    let reason = why.of_one_name(is_across).map_err(|error| match error {
                        Unplaceable::Errno(errno) => failed(errno),
                        Unplaceable::Store(error) => error,
                    })?;
                    self.note_unplaced(object, &reason);
                    continue;
                }
            }
            if is_across && is_folder {
                // What is in it is put there one by one.
                self.note_ours(path);
                old.insert(path);
                continue;
            }
            if is_across && !entry.is_empty() {
                self.note_ours(path);
            }
            // What has no bytes is made again by a second commit, and takes its own place.
            let is_first = !entry.is_empty() || self.note_ours(path);
            if !is_folder && is_first {
                let mut landed = lock(&self.landed);
                landed.replaced_files += u64::from(standing.is_some());
                landed.added_files += u64::from(standing.is_none());
            }
            if let Some(finished) = finished {
                self.close_moved(&finished, entry)?;
            }
        }
        Ok(())
    }

    /// Brings everything below a folder to stable storage, names, modes and times included.
    ///
    /// * `staged`: the folder is the temporary one still.
    fn sync_all(&self, base: &OwnedFd, staged: bool) -> Result<(), StoreError> {
        let whole = FileSystem::of(base).is_some_and(FileSystem::syncs_whole);
        let kept: Vec<(u32, &Entry)> = self.kept().collect();
        if kept.len() > SYNC_EACH_MAX && whole {
            let path = if staged {
                self.stage_path()
            } else {
                self.dest.clone()
            };
            return rustix::fs::syncfs(base)
                .map_err(|errno| StoreError::from_errno(Operation::Sync, path, errno));
        }
        let is_any_closed = AtomicBool::new(false);
        parallel::for_each(&kept, |(object, entry)| {
            // A special file is never opened; its folder's sync covers it.
            let is_link = matches!(entry.kind, EntryKind::Symlink { .. });
            if is_link || self.special_of(*object).is_some() {
                return Ok(());
            }
            let opened = sys::open_beneath(
                base.as_fd(),
                &entry.path,
                OFlags::RDONLY | OFlags::NONBLOCK,
                Mode::empty(),
            );
            match opened {
                Ok(file) if entry.kind == EntryKind::Directory => sys::sync_folder(&file),
                Ok(file) => rustix::fs::fsync(&file),
                // Not for this user to read any more.
                Err(Errno::ACCESS) => {
                    is_any_closed.store(true, Ordering::Relaxed);
                    Ok(())
                }
                // An entry that has moved on: its folder's sync covers the name.
                Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            }
            .map_err(|errno| {
                let path = if staged {
                    self.staged_path(entry)
                } else {
                    self.final_path(entry)
                };
                StoreError::from_errno(Operation::Sync, path, errno)
            })
        })?;
        match is_any_closed.into_inner() {
            true => rustix::fs::syncfs(base).map_err(|errno| self.failed(Operation::Sync, errno)),
            false => Ok(()),
        }
    }

    /// Removes the temporary name and all below it. What cannot be removed stays, under a name that
    /// says whose it is.
    fn remove_temporary(&self) {
        self.open_up_dest();
        // By the descriptor of its folder: the path may lead elsewhere by now.
        remove_entry(&self.stage_parent, &self.temporary);
    }

    /// As [`remove_temporary`](Self::remove_temporary), and the journals with it.
    pub(super) fn remove_stage(&self) {
        self.remove_temporary();
        self.remove_journals();
    }

    /// Removes the journals after the last change to the copy: until then no other transfer begins to write it.
    pub(super) fn end_commit(&self) {
        self.open_up_dest();
        if self.is_any_unplaced() {
            self.remove_temporary();
        }
        self.remove_journals();
        // They were in it.
        self.restore_dest();
    }
}

/// Whether an entry is a file or a link.
pub(super) fn is_name_of_file(entry: &Entry) -> bool {
    entry.kind != EntryKind::Directory
}
