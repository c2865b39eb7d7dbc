//! What DEST has already: nothing of it is written, and a commit leaves it where it is.
//!
//! A file is the same when its size and its modification time are the source's, which is rsync's rule; its contents are not
//! read. A file that was last changed when it was last written was written there, and is not taken for a copy: the kernel's
//! clock of files is so coarse that two files of one size often have the same time. Where a file system has one time for both, this does not
//! count. A link is the same when its target is.
//!
//! Where contents decide ([`Check::Contents`]) times do not: files of one size are compared with those of the source (`contents`), and
//! one that is the same gets the source's time. What was compared is known again by inode, size and times.
//!
//! A further name of a file is the same when it is one of the file that stays as it is.
//!
//! A file of another mode is the same where the mode can be set and is that of no other name: else it is replaced, as any other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use ropewalk_model::journal::Adopt;
use ropewalk_model::{Layout, RangeSet};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::commit::is_name_of_file;
use super::contents::{Contents, Found, Identity, Known};
use super::extra::{Way, words};
use super::links::Named;
use super::objects::Objects;
use super::standing::{is_time, mode_of};
use super::{Tree, replaceable};
use crate::error::{Operation, StoreError};
use crate::file_systems::FileSystem;
use crate::filter::Filter;
use crate::folders::{Folders, is_closed};
use crate::manifest::{Entry, EntryKind, Kept, parent_of};
use crate::open_files::lock;
use crate::{parallel, sys};

/// Which files and links of DEST stay though they are not those of the source: rsync's `--update` and `--ignore-existing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stays {
    /// None.
    #[default]
    Same,
    /// Files whose modification time is a later second than that of the source's file.
    Newer,
    /// All that have the name of a file or link.
    Existing,
}

/// When a file of DEST is the same as that of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Size and modification time are, and it is a copy.
    #[default]
    Time,
    /// Size and contents are.
    Contents,
}

/// What is done with what is there.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// What of an earlier transfer's files is taken over.
    pub adopt: Adopt,
    /// What is taken over is read before, and compared with the hashes that were recorded: what has none is not taken over.
    pub verifies: bool,
    /// Which files stay though they are not the same.
    pub stays: Stays,
    /// Files get their names as they are safe, where one node writes the copy and DEST is there.
    pub names_early: bool,
    /// When a file is the same.
    pub check: Check,
    /// Of files that are not the same, the chunks that are.
    pub delta: bool,
    /// Of the source; needed where contents are compared.
    pub contents: Option<&'a dyn Contents>,
}

impl From<Adopt> for Wish<'_> {
    fn from(adopt: Adopt) -> Self {
        Self {
            adopt,
            verifies: false,
            stays: Stays::Same,
            names_early: false,
            check: Check::Time,
            delta: false,
            contents: None,
        }
    }
}

impl Wish<'_> {
    /// What is compared of contents.
    pub(super) fn compares(&self) -> Compares {
        Compares {
            check: self.check,
            delta: self.delta,
        }
    }
}

/// What is compared of contents.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compares {
    pub check: Check,
    pub delta: bool,
}

/// Entries that stand in DEST as they are in the source, by number: folders, whatever is in them, and files and links that are
/// the same.
#[derive(Debug, Default)]
pub(super) struct Same {
    entries: Objects,
    /// Files among them that may have another mode, owner or other attributes.
    pub differing: Objects,
    /// Where other nodes may be surer of a file, and where files got their names early: those of the size and time of the source.
    alike: Objects,
    /// Files and links that stay whatever they are.
    passed: Objects,
    /// Bytes that are free when a file is replaced.
    freed: HashMap<u32, u64>,
    /// Where contents are compared: files that have the names of files.
    pub(super) found: BTreeMap<u32, Found>,
    /// Chunks of those of them that are not the same.
    pub(super) known: Known,
    /// Entries whose names something of another kind has, which makes way for them.
    pub(super) in_the_way: Vec<u32>,
    /// In order.
    pub(super) closed: Vec<Closed>,
}

impl Same {
    pub fn has(&self, object: u32) -> bool {
        self.entries.contains(object)
    }

    pub fn is_alike(&self, object: u32) -> bool {
        self.alike.contains(object)
    }

    pub fn take_freed(&mut self) -> HashMap<u32, u64> {
        std::mem::take(&mut self.freed)
    }

    pub fn has_passed(&self, object: u32) -> bool {
        self.passed.contains(object)
    }

    /// Takes for different what is no folder.
    pub fn forget_files(&mut self, entries: &[Entry]) {
        self.entries
            .retain(|object| !is_name_of_file(&entries[object as usize]));
        self.differing.clear();
    }

    pub fn insert(&mut self, object: u32) {
        self.entries.insert(object);
    }

    /// Takes a file for the same whose contents were found to be.
    pub fn insert_found(&mut self, object: u32, found: &Found) {
        self.entries.insert(object);
        if found.differs {
            self.differing.insert(object);
        }
    }

    pub fn remove(&mut self, object: u32) {
        self.entries.remove(object);
        self.differing.remove(object);
        if let Some(found) = self.found.get_mut(&object) {
            found.may_stay = false;
        }
    }
}

/// Entries that one thread looks at before it takes others.
pub(super) const LOOKED_AT: usize = 256;

/// What was found of some entries.
#[derive(Default)]
struct Looked {
    same: Vec<u32>,
    differing: Vec<u32>,
    alike: Vec<u32>,
    passed: Vec<u32>,
    freed: Vec<(u32, u64)>,
    found: Vec<(u32, Found)>,
    files: Vec<File>,
    places: Vec<(u32, Named)>,
    in_the_way: Vec<u32>,
    closed: Vec<Closed>,
}

/// An entry whose name cannot be looked at.
#[derive(Debug)]
pub(super) struct Closed {
    pub object: u32,
    pub reason: String,
    /// Its folder is what cannot be looked into.
    pub is_folder: bool,
}

/// A file that has the name of an entry.
struct File {
    object: u32,
    /// Device and inode.
    inode: (u64, u64),
    /// It has no further name.
    is_alone: bool,
}

impl File {
    fn of(stat: &Stat, object: u32) -> Self {
        Self {
            object,
            inode: (stat.st_dev, stat.st_ino),
            is_alone: stat.st_nlink == 1,
        }
    }
}

impl Tree {
    /// Looks at everything in DEST that has the name of an entry, when the copy is to end. Cost: one system call an entry, by several threads.
    ///
    /// # Errors
    /// [`StoreError::InTheWay`] for the first that the entry cannot be merged over, [`StoreError::SameFile`] where the file
    /// system takes the names of two entries for one.
    pub(super) fn survey(&self) -> Result<Same, StoreError> {
        let (mut same, places) = self.look(self.removes.get())?;
        self.judge_links(&places, &mut same);
        Ok(same)
    }

    /// As [`Tree::survey`], before the copy begins, and compares contents where these decide. Files that are the same are known to further surveys.
    ///
    /// # Errors
    /// As [`Tree::survey`], and [`StoreError::NotCompared`].
    pub(super) fn survey_contents(
        &mut self,
        layout: &Layout,
        contents: Option<&dyn Contents>,
    ) -> Result<Same, StoreError> {
        let (mut same, places) = self.look(self.mirrors.as_ref())?;
        if let Some(contents) = contents.filter(|_| self.compares.check == Check::Contents) {
            self.compare_found(layout, &mut same, contents)?;
        }
        self.judge_links(&places, &mut same);
        Ok(same)
    }

    /// * `mirrors`: what is of another kind than an entry of its name makes way for it, but for what this excludes.
    fn look(&self, mirrors: Option<&Filter>) -> Result<(Same, HashMap<u32, Named>), StoreError> {
        let mut same = Same::default();
        if Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?.is_none() {
            if self.is_single()
                && let Ok(stat) = sys::stat_entry(self.parent.as_fd(), &self.name)
            {
                if self.passes(&stat, self.entry(0)) {
                    same.passed.insert(0);
                } else if self.is_same(&stat, 0, self.parent.as_fd(), &self.name) {
                    same.entries.insert(0);
                    if self.may_differ(&stat, self.entry(0)) {
                        same.differing.insert(0);
                    }
                }
                if self.was_told && is_file(&stat, self.entry(0)) {
                    same.alike.insert(0);
                }
                let found = self.find(&stat, 0, self.parent.as_fd(), &self.name);
                same.found.extend(found.map(|found| (0, found)));
            }
            return Ok((same, HashMap::new()));
        }
        let dest = self.open_dest()?;
        let all = self.entries.len();
        let starts: Vec<usize> = (0..all).step_by(LOOKED_AT).collect();
        let looks = Mutex::new(BTreeMap::new());
        // Asked once: it looks at all entries.
        let specials = Self::has_specials(&self.entries);
        parallel::for_each(&starts, |&start| {
            let looked = self.look_at(
                dest.as_fd(),
                start..all.min(start + LOOKED_AT),
                mirrors,
                specials,
            );
            lock(&looks).insert(start, looked);
            Ok(())
        })?;
        let mut files = Vec::with_capacity(all);
        let mut places = HashMap::new();
        for looked in looks
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .into_values()
        {
            let looked = looked?;
            same.entries.extend(looked.same);
            same.differing.extend(looked.differing);
            same.alike.extend(looked.alike);
            same.passed.extend(looked.passed);
            same.freed.extend(looked.freed);
            same.found.extend(looked.found);
            same.in_the_way.extend(looked.in_the_way);
            same.closed.extend(looked.closed);
            files.extend(looked.files);
            places.extend(looked.places);
        }
        self.check_names(files, &mut same)?;
        Ok((same, places))
    }

    /// Looks at what has the names of some entries that follow each other.
    ///
    /// * `mirrors`: as of [`Tree::look`].
    /// * `specials`: special files of DEST are part of the copy.
    fn look_at<'a>(
        &'a self,
        dest: BorrowedFd<'a>,
        objects: Range<usize>,
        mirrors: Option<&'a Filter>,
        specials: bool,
    ) -> Result<Looked, StoreError> {
        let mut looked = Looked::default();
        let mut folders = Folders::new(dest);
        let mut absent: HashSet<&[u8]> = HashSet::new();
        let is_early = self.early.is_wished;
        let makes_way = mirrors.is_some();
        let is_no_folder = |errno: Errno| {
            let is_other = matches!(errno, Errno::NOTDIR | Errno::LOOP);
            is_absent(errno) || makes_way && is_other
        };
        let mut way = None;
        for at in objects {
            let (object, entry) = (at as u32, &self.entries[at]);
            let Some(parent) = parent_of(&entry.path) else {
                continue;
            };
            if self.refused.early().contains(object) {
                continue;
            }
            if !absent.is_empty() && absent.contains(parent) {
                if entry.kind == EntryKind::Directory {
                    absent.insert(&entry.path);
                }
                continue;
            }
            let failed =
                |errno| StoreError::from_errno(Operation::Inspect, self.final_path(entry), errno);
            let closed = |errno, is_folder: bool| match is_closed(errno) {
                true => Ok(Closed {
                    object,
                    reason: words(errno),
                    // Rights to look at a name are those of its folder.
                    is_folder: is_folder || matches!(errno, Errno::ACCESS | Errno::PERM),
                }),
                false => Err(failed(errno)),
            };
            let (folder, name) = match folders.parent(&entry.path) {
                Ok(found) => found,
                // Looked at with entries before these: it is not there, or makes way.
                Err(errno) if is_no_folder(errno) => {
                    absent.insert(parent);
                    if entry.kind == EntryKind::Directory {
                        absent.insert(&entry.path);
                    }
                    continue;
                }
                Err(errno) => {
                    looked.closed.push(closed(errno, true)?);
                    continue;
                }
            };
            let stat = match sys::stat_entry(folder, name) {
                Ok(stat) => stat,
                Err(errno) if is_absent(errno) => {
                    if entry.kind == EntryKind::Directory {
                        absent.insert(&entry.path);
                    }
                    continue;
                }
                Err(errno) => {
                    looked.closed.push(closed(errno, false)?);
                    continue;
                }
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let passes = self.passes(&stat, entry);
            if passes {
                looked.passed.push(object);
                if kind == FileType::Directory {
                    continue;
                }
            } else if !replaceable(&entry.kind, kind, specials) {
                let Some(filter) = mirrors else {
                    return Err(self.in_the_way(entry, kind, None));
                };
                let way = way.get_or_insert_with(|| Way::new(self, dest, filter, specials));
                way.look(folder, name, entry, &stat)?;
                looked.in_the_way.push(object);
                // What is below it is absent, too.
                if entry.kind == EntryKind::Directory {
                    absent.insert(&entry.path);
                }
                continue;
            }
            let is_same = !passes && self.is_same(&stat, object, folder, name);
            if is_same {
                looked.same.push(object);
                if self.may_differ(&stat, entry) {
                    looked.differing.push(object);
                }
            }
            let is_alike = match self.was_told {
                true => is_file(&stat, entry),
                false => is_early && self.is_still_named(&stat, object),
            };
            if is_alike {
                looked.alike.push(object);
            }
            // One that stays frees nothing.
            if is_early && !is_same && kind == FileType::RegularFile && stat.st_nlink == 1 {
                let bytes = (stat.st_blocks as u64).saturating_mul(512);
                looked.freed.push((object, bytes));
            }
            if kind != FileType::Directory {
                looked.files.push(File::of(&stat, object));
            }
            if !passes {
                let found = self.find(&stat, object, folder, name);
                looked.found.extend(found.map(|found| (object, found)));
            }
            looked
                .places
                .extend(self.place_of_name(&stat, object, folder, name));
        }
        Ok(looked)
    }

    /// Two entries that find one file are names that the file system takes for the same, or hard links: neither stays as it is then.
    fn check_names(&self, mut files: Vec<File>, same: &mut Same) -> Result<(), StoreError> {
        files.sort_unstable_by_key(|file| (file.inode, file.object));
        let mut twice: Vec<(&File, u32)> = files
            .windows(2)
            .filter(|pair| pair[0].inode == pair[1].inode)
            .map(|pair| (&pair[1], pair[0].object))
            .collect();
        // The first is named.
        twice.sort_unstable_by_key(|(found, _)| found.object);
        for (found, other) in twice {
            let object = found.object;
            let file = self.first_of(object);
            if !found.is_alone && file.is_some() && file == self.first_of(other) {
                continue;
            }
            if found.is_alone {
                let path = |object: u32| self.final_path(&self.entries[object as usize]);
                return Err(StoreError::SameFile {
                    path: path(object),
                    other: path(other),
                });
            }
            same.remove(object);
            same.remove(other);
        }
        Ok(())
    }

    /// Whether a file or link that is the same may have another time, mode, owner or other attributes.
    fn may_differ(&self, stat: &Stat, entry: &Entry) -> bool {
        let is_archive = entry.kept != Kept::default();
        match entry.kind {
            EntryKind::File { .. } => {
                let differs = stat.st_mode & 0o7777 != mode_of(entry) || !is_file(stat, entry);
                is_archive || differs
            }
            EntryKind::Symlink { .. } => is_archive || !is_time(stat, entry),
            EntryKind::Directory | EntryKind::HardLink { .. } | EntryKind::Special(_) => false,
        }
    }

    /// What is to be known of a file that has the name of one, where contents are compared.
    fn find(&self, stat: &Stat, object: u32, folder: BorrowedFd<'_>, name: &[u8]) -> Option<Found> {
        let entry = self.entry(object);
        let Compares { check, delta } = self.compares;
        let is_file_of = matches!(entry.kind, EntryKind::File { .. })
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file_of || (check == Check::Time && !delta) {
            return None;
        }
        let identity = Identity::of(stat);
        let may_stay = identity.len == entry.len()
            && (self.can_be_set(stat, object)
                || is_file(stat, entry) && self.is_kept(stat, object, folder, name));
        Some(Found {
            identity,
            may_stay,
            differs: self.may_differ(stat, entry),
        })
    }

    /// Whether a file was compared with that of the source and is the same, or what one of another node of a shared copy has found to
    /// be.
    pub(super) fn is_compared(&self, stat: &Stat, object: u32) -> bool {
        let Some(known) = self.compared.get(&object) else {
            return false;
        };
        // Until a commit begins nothing of a file that stays is touched. Some file systems change inodes by themselves.
        let is_given = self.gives.load(Ordering::Acquire)
            || self.moving.load(Ordering::Acquire)
            || !FileSystem::of(&self.parent).is_some_and(FileSystem::keeps_inodes);
        known.is(stat, self.entry(object), is_given)
    }

    /// Whether the file system has a time of a file's last change that is not that of its last writing. FAT and many servers have not.
    fn keeps_change_times(&self) -> bool {
        let known = || FileSystem::of(&self.stage_parent).is_none_or(FileSystem::keeps_inodes);
        *self.keeps_change_times.get_or_init(known)
    }

    /// Whether a file that stays is whole.
    pub(super) fn is_whole(&self, stat: &Stat, object: u32) -> bool {
        is_file(stat, self.entry(object)) || self.is_compared(stat, object)
    }

    /// Whether it is one file, or special file, and no tree.
    pub(super) fn is_single(&self) -> bool {
        let root = self.entries.first();
        root.is_some_and(|root| root.kind != EntryKind::Directory)
    }

    /// Leaves what was found the same as it is.
    pub(super) fn keep(&mut self, same: &Same) {
        let entries = &self.entries;
        let numbers = same.entries.iter();
        self.unchanged = numbers
            .filter(|object| is_name_of_file(&entries[*object as usize]))
            .collect();
        self.unchanged.extend(same.passed.iter());
        self.passed.clone_from(&same.passed);
    }

    /// Leaves files as they are that a node of a shared copy has found to be the same. What has no bytes is made by the node that
    /// commits, which goes by what it finds itself.
    ///
    /// * `same`: what this node finds.
    /// * `unchanged`: bytes of the data space.
    pub(super) fn keep_known(&mut self, same: &Same, layout: &Layout, unchanged: &RangeSet) {
        self.was_told = true;
        if !self.is_single() {
            self.keep(same);
            let entries = &self.entries;
            self.unchanged
                .retain(|object| entries[object as usize].is_empty());
        }
        let pieces = layout.pieces().iter();
        let known = pieces.filter(|piece| unchanged.contains_range(piece.range));
        self.unchanged.extend(known.map(|piece| piece.object));
        // That node has compared them; this one looks at the end whether they are what it sees now.
        let told = same.found.iter().filter(|(_, found)| found.may_stay);
        let told = told.filter(|(object, _)| self.unchanged.contains(**object));
        self.compared = told
            .map(|(object, found)| (*object, found.identity))
            .collect();
        // A file that is replaced leaves its other names behind.
        let lost: Vec<u32> = self
            .names
            .iter()
            .filter(|(file, _)| !self.unchanged.contains(**file))
            .flat_map(|(_, names)| names.clone())
            .collect();
        for object in lost {
            self.unchanged.remove(object);
        }
        self.passed = same.passed.intersection(&self.unchanged);
    }

    /// Whether a file that was to stay as it is still is the same. Another node may have been surer of it than this one.
    fn stays(&self, object: u32, same: &Same) -> bool {
        same.has(object)
            || same.has_passed(object)
            || (self.was_told && same.alike.contains(object))
    }

    /// Files and links that stay as they are, without what the file system cannot hold.
    fn kept_as_they_are(&self) -> impl Iterator<Item = u32> {
        let refused = self.refused.early();
        self.unchanged
            .iter()
            .filter(|object| !refused.contains(*object))
    }

    /// The bytes of the files that stay as they are, and of those that the file system cannot hold.
    pub(super) fn unchanged_bytes(&self, layout: &Layout) -> RangeSet {
        let pieces = layout.pieces().iter();
        let present = pieces.filter(|piece| self.unchanged.contains(piece.object));
        RangeSet::from_ranges(present.map(|piece| piece.range))
    }

    /// How many files and links have stayed: those that still are the same, and others.
    pub(super) fn stayed(&self, same: &Same) -> (u64, u64) {
        let stayed = self.kept_as_they_are();
        let stayed = stayed.filter(|object| self.stays(*object, same));
        let (passed, unchanged): (Vec<u32>, Vec<u32>) =
            stayed.partition(|object| same.has_passed(*object));
        let late = self.passed_late.load(Ordering::Relaxed);
        (unchanged.len() as u64, passed.len() as u64 + late)
    }

    /// The bytes in the source of files that stay though they are not the same, and how many files and links these are.
    pub(super) fn passed(&self, layout: &Layout) -> (u64, u64) {
        let pieces = layout.pieces().iter();
        let passed = pieces.filter(|piece| self.passed.contains(piece.object));
        let bytes = passed.map(|piece| piece.range.len()).sum();
        (bytes, self.passed.len() as u64)
    }

    /// Whether something may stay that did not when the copy began.
    pub(super) fn may_pass_late(&self) -> bool {
        self.stays != Stays::Same
    }

    /// Whether what has the name of an entry now stays, though it did not when the copy began: another program has written it since.
    /// Then the entry is counted, and gets no name.
    pub(super) fn passes_late(&self, stat: Result<Stat, Errno>, entry: &Entry) -> bool {
        let passes = self.stays != Stays::Same && stat.is_ok_and(|stat| self.passes(&stat, entry));
        if passes {
            self.passed_late.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }

    /// Gives a file or link its name in another folder. Where all stays that has the name of one nothing is replaced: EEXIST.
    pub(super) fn rename_file(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), Errno> {
        match self.leaves_existing() {
            true => sys::rename_new((from, name), (to, name)),
            false => sys::rename_to(from, to, name),
        }
    }

    /// Whether all stays that has the name of a file or link.
    pub(super) fn leaves_existing(&self) -> bool {
        self.stays == Stays::Existing
    }

    /// Whether what stands under the name of an entry stays, whatever it is.
    pub(super) fn passes(&self, stat: &Stat, entry: &Entry) -> bool {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        match (self.stays, &entry.kind) {
            (Stays::Same, _) | (_, EntryKind::Directory) => false,
            // As rsync: not within a second, and files only.
            (Stays::Newer, EntryKind::File { .. } | EntryKind::HardLink { .. }) => {
                is_file && stat.st_mtime > entry.mtime_seconds
            }
            (Stays::Newer, EntryKind::Symlink { .. } | EntryKind::Special(_)) => false,
            (Stays::Existing, _) => true,
        }
    }

    /// # Errors
    /// [`StoreError::ChangedAtDestination`] for the first of the files that were to stay as they are and have changed since.
    ///
    /// * `same`: what is the same now.
    pub(super) fn check_unchanged(&self, same: &Same) -> Result<(), StoreError> {
        let mut unchanged = self.kept_as_they_are();
        match unchanged.find(|object| !self.stays(*object, same)) {
            None => Ok(()),
            Some(object) => Err(StoreError::ChangedAtDestination {
                path: self.final_path(&self.entries[object as usize]),
            }),
        }
    }

    pub(super) fn entry(&self, object: u32) -> &Entry {
        &self.entries[object as usize]
    }

    /// Whether this process may give a file another mode, and no name elsewhere gets it, too; of a file with further names in the
    /// tree [`Tree::judge_links`] looks at these.
    pub(super) fn can_be_set(&self, stat: &Stat, object: u32) -> bool {
        let user = self.user;
        let is_alone = stat.st_nlink == 1 || self.names.contains_key(&object);
        is_alone && (user.is_root() || user.as_raw() == stat.st_uid)
    }

    /// Whether what stands under a name is what the entry makes of it, but for mode, owner and attributes that can be set.
    pub(super) fn is_same(
        &self,
        stat: &Stat,
        object: u32,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> bool {
        let entry = self.entry(object);
        let found = FileType::from_raw_mode(stat.st_mode);
        match &entry.kind {
            EntryKind::Directory => found == FileType::Directory,
            // Known when all names of its file were looked at.
            EntryKind::HardLink { .. } => false,
            EntryKind::File { .. }
                if !self.is_trusted(stat, object) && !self.is_kept(stat, object, folder, name) =>
            {
                false
            }
            EntryKind::File { .. } if self.compares.check == Check::Contents => {
                self.is_compared(stat, object)
            }
            EntryKind::File { .. } => {
                let written_at = (stat.st_mtime, stat.st_mtime_nsec);
                let is_copy =
                    !self.keeps_change_times() || written_at != (stat.st_ctime, stat.st_ctime_nsec);
                is_file(stat, entry)
                    && is_copy
                    && (self.can_be_set(stat, object) || self.is_kept(stat, object, folder, name))
            }
            EntryKind::Special(special) => {
                // Only root can give it another owner.
                let is_right = || {
                    let is_root = rustix::process::geteuid().is_root();
                    self.is_kept(stat, object, folder, name)
                        || !is_root && stat.st_mode & 0o7777 == mode_of(entry)
                };
                Self::is_same_special(stat, entry, *special) && is_right()
            }
            EntryKind::Symlink { target } => {
                found == FileType::Symlink
                    && rustix::fs::readlinkat(folder, name, Vec::new())
                        .is_ok_and(|found| found.as_bytes() == target)
            }
        }
    }
}

/// Whether nothing has a name: nothing can have one that the file system does not have.
pub(super) fn is_absent(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ
    )
}

/// Whether a file is the finished one of an entry, by kind, size and time. A file system may keep whole seconds, microseconds or
/// tenths of them only.
pub(super) fn is_file(stat: &Stat, entry: &Entry) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && stat.st_size as u64 == entry.len() && is_time(stat, entry)
}
