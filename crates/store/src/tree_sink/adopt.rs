//! Taking over what an earlier transfer to the same place has left: its journal and the files that it is of.
//!
//! Any journal that no process has locked is taken over by the next transfer to DEST, whatever its sources are: files whose path,
//! size and time are those of the journal get the new temporary name. What is left then is removed where this transfer writes all
//! files that the journal is of.
//!
//! Which files these are, and the order of the steps, is decided by [`ropewalk_model::journal`].
//!
//! Of a copy that several nodes write the one that looks what is there makes the temporary name and takes over what was left. Each
//! node makes its journal before it opens what is under that name, and none of the others makes the name. A later transfer takes it
//! over only when all journals are without a writer; it renames it first (`-taken`), and gives it back if there is a new journal by
//! then. So either it sees the journal of a node that is late, or that node finds no temporary name.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use ropewalk_model::journal::{
    Adopt, Recorded, Safe, Seen, Step, Takeover, Unit, joined, keep_largest, pieces,
};
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::resume::{Inodes, KEPT};
use super::standing::heritage;
use crate::folders::Folders;
use crate::journal::{self, Left};
use crate::manifest::{Entry, EntryKind, parent_of};
use crate::open_files::lock;
use crate::staging::{Target as _, begins_as_id, remove_entry, temporary_begin};
use crate::sys;

/// Of what several nodes wrote, when it is taken over.
pub(crate) const TAKEN: &[u8] = b"-taken";

/// What an earlier transfer left.
pub(super) struct Leftover {
    folder: OwnedFd,
    /// The names of its journals.
    journals: Vec<Vec<u8>>,
    /// It is what this transfer writes: another node of it began to take over what was left, and is gone.
    is_in_place: bool,
    places: Vec<Place>,
    /// Files that this transfer wants.
    files: Vec<Found>,
    /// All files that it is of are this transfer's, too.
    is_superseded: bool,
    _left: Vec<Left>,
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
    pub(super) fn find_leftovers(&self, adopt: Adopt) -> Vec<Leftover> {
        let mut found = Vec::new();
        if lock(&self.progress).is_off {
            return found;
        }
        self.find_leftovers_in(&self.parent, adopt, &mut found);
        if self.stage_parent_path == self.dest {
            // Not from one file system to another: what is beside a mount point stays there.
            let device = |folder: &OwnedFd| rustix::fs::fstat(folder).map(|stat| stat.st_dev);
            if device(&self.parent) != device(&self.stage_parent) {
                found.clear();
            }
            self.find_leftovers_in(&self.stage_parent, adopt, &mut found);
        }
        keep_largest(
            found.iter_mut().map(|leftover| &mut leftover.files),
            |file| (file.object, file.safe.len_bytes()),
        );
        found
    }

    fn find_leftovers_in(&self, folder: &OwnedFd, adopt: Adopt, found: &mut Vec<Leftover>) {
        let mut all: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for name in journals(folder, &self.name) {
            if let Some(temporary) = journal::temporary_of(&name) {
                all.entry(temporary.to_vec()).or_default().push(name);
            }
        }
        let is_shared = lock(&self.progress).node.is_some();
        for (temporary, journals) in all {
            let is_in_place = temporary == self.temporary;
            if is_in_place && !is_shared {
                continue;
            }
            let base = temporary.strip_suffix(KEPT).unwrap_or(&temporary);
            let of_nodes = journals.iter().any(|name| journal::is_of_node(name));
            let names = match (is_in_place, of_nodes) {
                (true, _) => vec![temporary.clone()],
                (false, true) => vec![[base, TAKEN].concat(), base.to_vec()],
                (false, false) => vec![base.to_vec(), [base, KEPT].concat()],
            };
            let is_others = |name: &Vec<u8>| is_ours(folder, name) == Some(false);
            let is_no_own = |name: &Vec<u8>| is_ours(folder, name) != Some(true);
            // Of some only the journals are left.
            if journals.iter().any(is_no_own) || names.iter().any(is_others) {
                continue;
            }
            let (left, recorded) = if is_in_place {
                // What other nodes of this transfer have recorded is true whether they live or not.
                let recorded = journals.iter();
                let recorded = recorded.flat_map(|name| journal::read_unlocked(folder, name));
                (Vec::new(), recorded.collect())
            } else {
                let left = journals.iter().map(|name| journal::claim(folder, name));
                let Some(left) = left.collect::<Option<Vec<Left>>>() else {
                    continue;
                };
                let recorded: Vec<Recorded> =
                    left.iter().flat_map(|left| left.files.clone()).collect();
                (left, recorded)
            };
            if of_nodes && !is_in_place && !take_from_late(folder, base, &journals) {
                continue;
            }
            let Ok(folder) = folder.try_clone() else {
                continue;
            };
            let places = names.into_iter().map(|name| Place::open(&folder, name));
            let mut leftover = Leftover {
                places: places.collect(),
                folder,
                journals,
                is_in_place,
                files: Vec::new(),
                is_superseded: !is_in_place,
                _left: left,
            };
            self.look(&mut leftover, &joined(recorded), adopt);
            found.push(leftover);
        }
    }

    /// Looks which files of a leftover are there and wanted.
    fn look(&self, leftover: &mut Leftover, recorded: &[Recorded], adopt: Adopt) {
        let is_in_place = leftover.is_in_place;
        let Leftover { places, folder, .. } = leftover;
        let mut roots: Vec<Option<Folders<'_>>> = places
            .iter()
            .map(|place| place.root.as_ref().map(|root| Folders::new(root.as_fd())))
            .collect();
        for file in recorded {
            let by_path = |entry: &Entry| entry.path.cmp(&file.path);
            let Ok(object) = self.entries.binary_search_by(by_path) else {
                leftover.is_superseded = false;
                continue;
            };
            let entry = &self.entries[object];
            let is_wanted = matches!(entry.kind, EntryKind::File { .. })
                && !self.unchanged.contains(&(object as u32));
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
        let mut takeover = Takeover::new(leftover.files.len(), leftover.is_superseded);
        loop {
            let is_done = match takeover.step() {
                Step::Record => self.record_found(leftover),
                Step::Move(at) => self.move_here(leftover, &leftover.files[at]).is_ok(),
                Step::Forget(failed) => {
                    self.forget(failed.iter().map(|at| leftover.files[*at].object))
                }
                Step::RemoveOwn => {
                    self.remove_own_journal();
                    true
                }
                Step::SyncNames => {
                    self.sync_names().is_ok() && rustix::fs::fsync(&self.stage_parent).is_ok()
                }
                Step::Remove => {
                    let places = leftover.places.iter().map(|place| &place.name);
                    for name in places.chain(&leftover.journals) {
                        remove_entry(&leftover.folder, name);
                    }
                    true
                }
                Step::End => break,
            };
            takeover.handle(is_done);
        }
        let moved = || takeover.moved().map(|at| &leftover.files[at]);
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
            self.note_begun(found.object);
            safe.extend(found.safe.iter().map(|range| in_space(piece, range)));
            units.extend(found.units.iter().map(|unit| Unit {
                range: in_space(piece, unit.range),
                ..*unit
            }));
        }
        let safe = RangeSet::from_ranges(safe);
        let mut progress = lock(&self.progress);
        progress.recorded = progress.recorded.union(&safe);
        progress.adopted = progress.adopted.union(&safe);
        progress.units.extend(units);
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
                inode: inodes.known(found.inode),
                range,
                digest,
            }));
        }
        let mut progress = lock(&self.progress);
        let Some(journal) = progress.open_journal() else {
            return false;
        };
        let written = journal.append(records).and_then(|()| journal.sync());
        let written = written.and_then(|()| rustix::fs::fsync(&self.stage_parent));
        progress.has_failed |= written.is_err();
        written.is_ok()
    }

    /// Takes back records of files. Whether no journal vouches for them any more.
    fn forget(&self, gone: impl Iterator<Item = u32>) -> bool {
        let mut progress = lock(&self.progress);
        let Some(journal) = progress.open_journal() else {
            return true;
        };
        journal.forget(gone).and_then(|()| journal.sync()).is_ok()
    }

    fn move_here(&self, leftover: &Leftover, found: &Found) -> Result<(), Errno> {
        if leftover.is_in_place {
            return Ok(());
        }
        let entry = &self.entries[found.object as usize];
        let place = &leftover.places[found.place];
        let Some(root) = &self.root else {
            let (from, to) = (leftover.folder.as_fd(), self.stage_parent.as_fd());
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

    /// Gives a file a name of this transfer. Other nodes may write there, if this one is taken for lost: what they have made stays.
    fn rename_here(
        &self,
        from: BorrowedFd<'_>,
        name: &[u8],
        to: BorrowedFd<'_>,
        new: &[u8],
    ) -> Result<(), Errno> {
        if lock(&self.progress).node.is_none() {
            return rustix::fs::renameat(from, name, to, new);
        }
        match rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
            // Some network file systems know no flags: a second name replaces nothing either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(from, name, to, new, AtFlags::empty())?;
                rustix::fs::unlinkat(from, name, AtFlags::empty())
            }
            other => other,
        }
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

fn stat_below(root: &mut Folders<'_>, path: &[u8]) -> Result<Stat, Errno> {
    let (folder, name) = root.parent(path)?;
    sys::stat_entry(folder, name)
}

impl Place {
    fn open(folder: &OwnedFd, name: Vec<u8>) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = sys::open_beneath(folder.as_fd(), &name, flags, Mode::empty()).ok();
        // A commit that did not end may have given it the source's mode, and others the right to change what is in it.
        let is_private =
            |root: &OwnedFd| rustix::fs::fstat(root).is_ok_and(|stat| stat.st_mode & 0o077 == 0);
        Self {
            name,
            root: root.filter(is_private),
        }
    }
}

/// Takes what several nodes wrote from those that may still come to write there: they find nothing under its name. False where one
/// has come before.
fn take_from_late(folder: &OwnedFd, temporary: &[u8], journals: &[Vec<u8>]) -> bool {
    let taken = [temporary, TAKEN].concat();
    match rustix::fs::renameat(folder, temporary, folder, &*taken) {
        // An earlier one has taken it and was killed; or only journals are left.
        Ok(()) | Err(Errno::NOENT) => {}
        Err(_) => return false,
    }
    let now = journals_of(folder, temporary);
    let is_free = now.iter().all(|name| journals.contains(name));
    if !is_free {
        let _ = rustix::fs::renameat(folder, &*taken, folder, temporary);
    }
    is_free
}

/// The journals of a temporary name.
pub(super) fn journals_of(folder: &OwnedFd, temporary: &[u8]) -> Vec<Vec<u8>> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_bytes().to_vec());
    names
        .filter(|name| journal::temporary_of(name) == Some(temporary))
        .collect()
}

/// Names of journals of transfers to DEST.
pub(super) fn journals(folder: &OwnedFd, name: &[u8]) -> Vec<Vec<u8>> {
    let begin = temporary_begin(name);
    let is_journal = |name: &[u8]| {
        let temporary = journal::temporary_of(name);
        let id = temporary.and_then(|temporary| temporary.strip_prefix(&*begin));
        id.is_some_and(is_id)
    };
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_bytes().to_vec());
    names.filter(|name| is_journal(name)).collect()
}

/// Whether a temporary name ends so: the id of a transfer and its node, and nothing that could be of another name.
fn is_id(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    begins_as_id(id) && id.iter().all(is_plain)
}

/// Whether this user made what has a name; `None` where nothing has. In a folder that others can write to, any user could make a
/// journal, and files of any contents beside it.
pub(super) fn is_ours(folder: &OwnedFd, name: &[u8]) -> Option<bool> {
    let user = rustix::process::geteuid().as_raw();
    let stat = sys::stat_entry(folder.as_fd(), name).ok()?;
    Some(stat.st_uid == user)
}

/// What the pure part has to know of a file.
fn seen(stat: &Stat) -> Seen {
    Seen {
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        has_one_name: stat.st_nlink == 1,
        len: stat.st_size as u64,
        inode: stat.st_ino,
    }
}

/// Bytes of a file as bytes of the data space.
fn in_space(piece: &Piece, range: Range) -> Range {
    let start = piece.range.start + (range.start - piece.object_offset);
    Range::new(start, start + range.len())
}
