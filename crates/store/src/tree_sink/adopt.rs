//! Taking over what an earlier transfer to the same place has left: its journal and the files that it is of.
//!
//! Files whose path, size and time are those of a journal that was claimed ([`crate::claims`]) get the new temporary name. What is left
//! then is removed where this transfer writes all files that the journal is of.
//!
//! Which files these are, and the order of the steps, is decided by [`ropewalk_model::journal`].

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ropewalk_model::journal::{Adopt, Safe, Unit, keep_largest, pieces};
use ropewalk_model::{CHUNK_LEN, Layout, Piece, Range, RangeSet, digest};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::contents::{Contents, Hashes};
use super::resume::Inodes;
use super::same::{Check, Wish};
use super::standing::heritage;
use super::{INODE_UNKNOWN, Tree};
use crate::claims::{Claim, Successor, give_name, seen};
use crate::file_systems::FileSystem;
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::staging::Target as _;
use crate::{parallel, sys};

/// What an earlier transfer left.
pub(super) struct Leftover {
    claim: Claim,
    places: Vec<Place>,
    /// Files that this transfer wants.
    files: Vec<Found>,
    /// Of these, how many bytes have not the hash that was recorded.
    wrong: BTreeMap<u32, u64>,
    /// All files that it is of are this transfer's, too.
    is_superseded: bool,
}

/// A name that an earlier transfer may have files under.
struct Place {
    name: Vec<u8>,
    /// `None` where it is no folder, or one that others may have changed.
    root: Option<OwnedFd>,
}

/// A file that an earlier transfer left.
struct Found {
    /// The entry that it is of.
    object: u32,
    place: usize,
    inode: u64,
    /// Space that it has, at least what is safe of it.
    held: u64,
    /// Bytes of the file.
    safe: RangeSet,
    units: Vec<Unit>,
}

impl Tree {
    /// What earlier transfers to DEST have left and no process writes any more.
    ///
    /// * `layout`: of this transfer.
    pub(super) fn find_leftovers(&self, wish: &Wish<'_>, layout: &Layout) -> Vec<Leftover> {
        let mut found = Vec::new();
        if lock(&self.progress).is_off {
            return found;
        }
        self.find_leftovers_in(&self.parent, wish, &mut found);
        if self.stage_parent_path == self.dest {
            // Not from one file system to another: what is beside a mount point stays there.
            let device = |folder: &OwnedFd| rustix::fs::fstat(folder).map(|stat| stat.st_dev);
            if device(&self.parent) != device(&self.stage_parent) {
                found.clear();
            }
            self.find_leftovers_in(&self.stage_parent, wish, &mut found);
        }
        keep_largest(
            found.iter_mut().map(|leftover| &mut leftover.files),
            |file| (file.object, file.safe.len_bytes()),
        );
        if wish.verifies {
            found.iter_mut().for_each(|leftover| self.verify(leftover));
        }
        if wish.check == Check::Contents {
            let files = found.iter_mut().flat_map(|leftover| &mut leftover.files);
            confirm(files.collect(), layout, wish.contents);
            for leftover in &mut found {
                leftover.files.retain(|file| !file.safe.is_empty());
            }
        }
        found
    }

    fn find_leftovers_in(&self, folder: &OwnedFd, wish: &Wish<'_>, found: &mut Vec<Leftover>) {
        let is_shared = lock(&self.progress).node.is_some();
        for claim in Claim::all(folder, &self.name, &self.temporary, is_shared) {
            let names = claim.names.iter();
            let places = names.map(|name| Place::open(&claim.folder, name.clone()));
            let mut leftover = Leftover {
                places: places.collect(),
                files: Vec::new(),
                wrong: BTreeMap::new(),
                is_superseded: !claim.is_in_place,
                claim,
            };
            // Times do not say which version of a file that is: hashes do.
            let adopt = match wish.check {
                Check::Contents => Adopt::Hashed,
                Check::Time => wish.adopt,
            };
            self.look_at_leftover(&mut leftover, adopt);
            found.push(leftover);
        }
    }

    /// Looks which files of a leftover are there and wanted.
    fn look_at_leftover(&self, leftover: &mut Leftover, adopt: Adopt) {
        let Leftover { places, claim, .. } = leftover;
        let (folder, is_in_place) = (&claim.folder, claim.is_in_place);
        let mut roots: Vec<Option<Folders<'_>>> = places
            .iter()
            .map(|place| place.root.as_ref().map(|root| Folders::new(root.as_fd())))
            .collect();
        for file in &claim.recorded {
            let by_path = |entry: &Entry| entry.path.cmp(&file.path);
            let found = self.entries.binary_search_by(by_path);
            let Some(object) = found.ok().filter(|_| file.shift.is_none()) else {
                leftover.is_superseded = false;
                continue;
            };
            // For the day when the destination can hold it.
            if self.refused.early().contains(object as u32) {
                leftover.is_superseded = false;
                continue;
            }
            let entry = &self.entries[object];
            let is_wanted = matches!(entry.kind, EntryKind::File { .. })
                && !self.unchanged.contains(object as u32);
            let safe = file.adoptable(entry.version(), adopt);
            if !is_wanted || safe.is_empty() {
                continue;
            }
            let stats = places.iter().zip(&mut roots).map(|(place, root)| {
                match (entry.path.is_empty(), root) {
                    (true, _) => sys::stat_entry(folder.as_fd(), &place.name),
                    (false, Some(root)) => {
                        let stat = stat_below(root, &entry.path);
                        match self.names.get(&(object as u32)).filter(|_| !is_in_place) {
                            Some(names) => stat.and_then(|stat| {
                                self.remove_names(root, &stat, names);
                                stat_below(root, &entry.path)
                            }),
                            None => stat,
                        }
                    }
                    (false, None) => Err(Errno::NOENT),
                }
            });
            let mut there = (0..).zip(stats);
            let there = there.find_map(|(place, stat)| {
                let stat = stat.ok()?;
                file.is_seen(&seen(&stat), &safe).then_some((place, stat))
            });
            // The folder of a single file is open to others: one that a commit has let others write is theirs.
            let is_others = |stat: &Stat| entry.path.is_empty() && stat.st_mode & 0o022 != 0;
            if let Some((place, stat)) = there.filter(|(_, stat)| !is_others(stat)) {
                let blocks = (stat.st_blocks as u64).saturating_mul(512);
                leftover.files.push(Found {
                    object: object as u32,
                    place,
                    inode: stat.st_ino,
                    held: blocks.min(entry.len()).max(safe.len_bytes()),
                    safe,
                    units: file.units.clone(),
                });
            }
        }
    }

    /// Reads what was left again: bytes that have not the hash that was recorded, or none, are not taken over.
    fn verify(&self, leftover: &mut Leftover) {
        let files = leftover.files.iter().enumerate();
        let units: Vec<(usize, Unit)> = files
            .flat_map(|(at, file)| file.units.iter().map(move |unit| (at, *unit)))
            .collect();
        let numbered: Vec<usize> = (0..units.len()).collect();
        let right: Mutex<Vec<(usize, Unit)>> = Mutex::default();
        let seen = &*leftover;
        let done = parallel::for_each(&numbered, |&number| {
            let (at, unit) = units[number];
            if self.has_unit(seen, &seen.files[at], &unit) {
                lock(&right).push((at, unit));
            }
            Ok(())
        });
        // Each looks at its own unit, whatever others find.
        debug_assert_eq!(done, Ok(()));
        let right = right.into_inner().unwrap_or_else(PoisonError::into_inner);
        for file in &mut leftover.files {
            file.units.clear();
        }
        for (at, unit) in &units {
            let wrong = leftover.wrong.entry(leftover.files[*at].object);
            *wrong.or_default() += unit.range.len();
        }
        for (at, unit) in right {
            let file = &mut leftover.files[at];
            if let Some(wrong) = leftover.wrong.get_mut(&file.object) {
                *wrong -= unit.range.len();
            }
            file.units.push(unit);
        }
        leftover.wrong.retain(|_, bytes| *bytes > 0);
        for file in &mut leftover.files {
            file.units.sort_unstable_by_key(|unit| unit.range.start);
            file.safe = RangeSet::from_ranges(file.units.iter().map(|unit| unit.range));
        }
        leftover.files.retain(|file| !file.safe.is_empty());
    }

    /// Files of leftovers that were read again, and how many bytes of each were not what was recorded.
    pub(super) fn found_wrong(leftovers: &[Leftover]) -> BTreeMap<u32, u64> {
        let wrong = leftovers.iter().flat_map(|leftover| &leftover.wrong);
        wrong.map(|(object, bytes)| (*object, *bytes)).collect()
    }

    fn has_unit(&self, leftover: &Leftover, file: &Found, unit: &Unit) -> bool {
        let (entry, place) = (
            &self.entries[file.object as usize],
            &leftover.places[file.place],
        );
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = match (&place.root, entry.path.is_empty()) {
            (_, true) => sys::open_beneath(
                leftover.claim.folder.as_fd(),
                &place.name,
                flags,
                Mode::empty(),
            ),
            (Some(root), false) => {
                sys::open_beneath(root.as_fd(), &entry.path, flags, Mode::empty())
            }
            (None, false) => return false,
        };
        // No journal has a longer unit that this program wrote.
        let len = usize::try_from(unit.range.len().min(CHUNK_LEN)).unwrap_or(0);
        let mut bytes = vec![0; len];
        let read = opened.map(|opened| {
            let file = fs::File::from(opened);
            file.read_exact_at(&mut bytes, unit.range.start)
        });
        matches!(read, Ok(Ok(()))) && digest(&bytes) == unit.digest
    }

    /// Takes the further names away that a commit that did not end has given to a file under its temporary name.
    fn remove_names(&self, root: &mut Folders<'_>, stat: &Stat, names: &[u32]) {
        if stat.st_nlink == 1 {
            return;
        }
        for name in names {
            let path = &self.entries[*name as usize].path;
            if stat_below(root, path).is_ok_and(|found| found.st_ino == stat.st_ino)
                && let Ok((folder, name)) = root.parent(path)
            {
                // A file with a second name is sent again.
                let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
            }
        }
    }

    /// Moves the files of earlier transfers under the temporary name of this one, records what of them is safe, and removes the
    /// rest. What cannot be moved is written again. Returns how much space the moved files have.
    pub(super) fn adopt(&self, layout: &Layout, leftovers: &[Leftover]) -> u64 {
        if leftovers.is_empty() {
            return 0;
        }
        let pieces = layout.pieces().iter();
        let pieces: HashMap<u32, &Piece> = pieces.map(|piece| (piece.object, piece)).collect();
        leftovers
            .iter()
            .map(|leftover| self.take(&pieces, leftover))
            .sum()
    }

    /// As [`Tree::adopt`], of one leftover.
    fn take(&self, pieces: &HashMap<u32, &Piece>, leftover: &Leftover) -> u64 {
        let heir = Heir {
            tree: self,
            leftover,
        };
        let moved = heir.take(leftover.files.len(), leftover.is_superseded);
        let moved = || moved.iter().map(|at| &leftover.files[*at]);
        self.note_adopted(pieces, moved());
        moved().map(|found| found.held).sum()
    }

    /// Notes that bytes of these files are safe.
    fn note_adopted<'a>(
        &self,
        pieces: &HashMap<u32, &Piece>,
        found: impl Iterator<Item = &'a Found>,
    ) {
        let (mut safe, mut units) = (Vec::new(), Vec::new());
        for found in found {
            let Some(piece) = pieces.get(&found.object) else {
                continue;
            };
            self.note_begun(found.object, INODE_UNKNOWN);
            safe.extend(found.safe.iter().map(|range| in_space(piece, range)));
            units.extend(found.units.iter().map(|unit| Unit {
                range: in_space(piece, unit.range),
                ..*unit
            }));
        }
        let safe = RangeSet::from_ranges(safe);
        lock(&self.progress).note_adopted(&safe, units);
    }

    /// Records what was found before it is moved: a transfer that is killed meanwhile loses nothing.
    fn record_found(&self, leftover: &Leftover) -> bool {
        let inodes = Inodes::new(self);
        let mut records = Vec::new();
        for found in &leftover.files {
            let pieces = pieces(&found.safe, &found.units);
            let entry = &self.entries[found.object as usize];
            records.extend(pieces.map(|(range, digest)| Safe {
                number: found.object,
                path: &entry.path,
                version: entry.version(),
                shift: None,
                inode: inodes.known(found.inode),
                range,
                digest,
            }));
        }
        lock(&self.progress).record_found(&self.stage(), records)
    }

    fn move_here(&self, leftover: &Leftover, found: &Found) -> Result<(), Errno> {
        if leftover.claim.is_in_place {
            return Ok(());
        }
        let entry = &self.entries[found.object as usize];
        let place = &leftover.places[found.place];
        let Some(root) = &self.root else {
            let (from, to) = (leftover.claim.folder.as_fd(), self.stage_parent.as_fd());
            self.make_plain(from, &place.name, to)?;
            return self.rename_here(from, &place.name, to, &self.temporary);
        };
        let old = place.root.as_ref().ok_or(Errno::NOENT)?;
        let (mut from, mut to) = (Folders::new(old.as_fd()), Folders::new(root.as_fd()));
        let (from, name) = from.parent(&entry.path)?;
        self.make_parents(&entry.path).map_err(|_| Errno::IO)?;
        let (to, _) = to.parent(&entry.path)?;
        self.make_plain(from, name, to)?;
        let mut renamed = self.rename_here(from, name, to, name);
        // A commit that did not end has made it read-only.
        if renamed == Err(Errno::ACCESS) && sys::open_up(from).is_ok() {
            renamed = self.rename_here(from, name, to, name);
        }
        renamed?;
        let parent = parent_of(&entry.path).unwrap_or_default();
        lock(&self.new_names).insert(parent.to_vec());
        Ok(())
    }

    fn rename_here(
        &self,
        from: BorrowedFd<'_>,
        name: &[u8],
        to: BorrowedFd<'_>,
        new: &[u8],
    ) -> Result<(), Errno> {
        let is_shared = lock(&self.progress).node.is_some();
        give_name((from, name), (to, new), is_shared)
    }

    /// Takes away what a commit that did not end has given to a file: it is as one that is made in `to`, and can be written.
    fn make_plain(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let opened = sys::open_beneath(folder, name, OFlags::PATH, Mode::empty())?;
        let stat = rustix::fs::fstat(&opened)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let user = rustix::process::geteuid();
        let group = heritage(to)?.map_or_else(rustix::process::getegid, Gid::from_raw);
        let is_own = stat.st_uid == user.as_raw();
        if !is_own || stat.st_gid != group.as_raw() {
            let own = Some(user).filter(|_| !is_own);
            let given =
                rustix::fs::chownat(rustix::fs::CWD, &path, own, Some(group), AtFlags::empty());
            // Only a member of the group can give it away.
            given.or_else(|errno| if is_own { Ok(()) } else { Err(errno) })?;
        }
        self.remove_attributes(&path)?;
        if stat.st_mode & 0o7777 != 0o600 {
            sys::set_mode(opened.as_fd(), 0o600)?;
        }
        Ok(())
    }
}

/// This transfer, as it takes over what an earlier one left.
struct Heir<'a> {
    tree: &'a Tree,
    leftover: &'a Leftover,
}

impl Successor for Heir<'_> {
    fn record(&self) -> bool {
        self.tree.record_found(self.leftover)
    }

    fn move_here(&self, at: usize) -> bool {
        let found = &self.leftover.files[at];
        self.tree.move_here(self.leftover, found).is_ok()
    }

    fn forget(&self, at: &[usize]) -> bool {
        let numbers = at.iter().map(|at| self.leftover.files[*at].object);
        lock(&self.tree.progress).forget(numbers)
    }

    fn remove_own(&self) {
        let tree = self.tree;
        lock(&tree.progress).remove_own_journal(&tree.stage());
    }

    fn sync_names(&self) -> bool {
        let tree = self.tree;
        tree.sync_names().is_ok() && sys::sync_folder(&tree.stage_parent).is_ok()
    }

    fn claim(&self) -> &Claim {
        &self.leftover.claim
    }
}

fn stat_below(root: &mut Folders<'_>, path: &[u8]) -> Result<Stat, Errno> {
    let (folder, name) = root.parent(path)?;
    sys::stat_entry(folder, name)
}

impl Place {
    fn open(folder: &OwnedFd, name: Vec<u8>) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = sys::open_beneath(folder.as_fd(), &name, flags, Mode::empty()).ok();
        // A commit that did not end may have given it the source's mode, and others the right to change what is in it. Some file systems have one
        // mode for all.
        let is_fixed = |stat: &Stat| {
            let all = rustix::fs::fstat(folder).map_or(0, |stat| stat.st_mode & 0o777);
            let may_fix = FileSystem::of(folder).is_some_and(FileSystem::may_fix_modes);
            may_fix && stat.st_mode & 0o777 == all
        };
        let is_private = |root: &OwnedFd| {
            let stat = rustix::fs::fstat(root);
            stat.is_ok_and(|stat| stat.st_mode & 0o077 == 0 || is_fixed(&stat))
        };
        Self {
            name,
            root: root.filter(is_private),
        }
    }
}

/// Units whose hashes are asked for at once; as many again are on their way.
const QUESTIONS: usize = 64;

/// A unit of a file that was left: the position of the file, the unit in it, and in the data space.
type Asked = (usize, Unit, Range);

/// Keeps of what was left the units that the source has with the same hash.
///
/// * `contents`: of the source; nothing more is kept where it does not answer.
fn confirm(mut files: Vec<&mut Found>, layout: &Layout, contents: Option<&dyn Contents>) {
    let pieces = layout.pieces().iter();
    let pieces: HashMap<u32, &Piece> = pieces.map(|piece| (piece.object, piece)).collect();
    let mut left: Vec<Asked> = Vec::new();
    for (at, file) in files.iter_mut().enumerate() {
        let units = std::mem::take(&mut file.units);
        file.safe = RangeSet::new();
        if let Some(piece) = pieces.get(&file.object) {
            let asked = units.into_iter();
            left.extend(asked.map(|unit| (at, unit, in_space(piece, unit.range))));
        }
    }
    let Some(contents) = contents else {
        return;
    };
    // No journal has a longer unit that this program wrote.
    let may_ask =
        |(_, unit, range): &Asked| unit.range.len() <= CHUNK_LEN && contents.is_of_one(*range);
    left.retain(may_ask);
    for (at, unit) in right_units(contents, &left) {
        files[at].units.push(unit);
    }
    for file in files {
        file.safe = RangeSet::from_ranges(file.units.iter().map(|unit| unit.range));
    }
}

/// Those of some units that the source has with the same hash, as far as it answers.
fn right_units(contents: &dyn Contents, asked: &[Asked]) -> Vec<(usize, Unit)> {
    let mut right = Vec::new();
    let bytes = |some: &[Asked]| -> u64 { some.iter().map(|(_, _, range)| range.len()).sum() };
    let (mut done, total) = (0, bytes(asked));
    let Some(mut line) = contents.open().ok().filter(|_| total > 0) else {
        return right;
    };
    let ask = |line: &mut dyn Hashes, some: &[Asked]| {
        let ranges: Vec<Range> = some.iter().map(|(_, _, range)| *range).collect();
        line.ask(&ranges)
    };
    let mut batches = asked.chunks(QUESTIONS).peekable();
    let first = batches.peek().copied().unwrap_or_default();
    let mut answers = ask(line.as_mut(), first).is_ok();
    while let Some(batch) = batches.next().filter(|_| answers) {
        contents.note(done, total);
        // The source reads these while the others are answered.
        if let Some(next) = batches.peek() {
            answers = ask(line.as_mut(), next).is_ok();
        }
        for (at, unit, _) in batch {
            if !answers {
                break;
            }
            match line.answer() {
                Ok(digest) => right.extend((digest == Some(unit.digest)).then_some((*at, *unit))),
                Err(_) => answers = false,
            }
        }
        done += bytes(batch);
    }
    contents.note(total, total);
    right
}

/// Bytes of a file as bytes of the data space.
fn in_space(piece: &Piece, range: Range) -> Range {
    let start = piece.range.start + (range.start - piece.object_offset);
    Range::new(start, start + range.len())
}
