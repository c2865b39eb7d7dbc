//! What earlier transfers to a destination have left, and this one may take over: found by the name of the destination, and kept
//! from any other transfer by the locks of its journals.
//!
//! Any journal that no process has locked is claimed by the next transfer to the destination, whatever its sources are. What of it is
//! of use, trees and rows look for themselves; the order of the steps is that of [`ropewalk_model::journal::Takeover`].
//!
//! Of a copy that several nodes write the one that looks what is there makes the temporary name and takes over what was left. Each
//! node makes its journal before it opens what is under that name, and none of the others makes the name. A later transfer takes it
//! over only when all journals are without a writer; it renames it first (`-taken`), and gives it back if there is a new journal by
//! then. So either it sees the journal of a node that is late, or that node finds no temporary name.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ropewalk_model::journal::{Recorded, Seen, Step, Takeover, joined};
use rustix::fs::{AtFlags, Dir, FileType, RenameFlags, Stat};
use rustix::io::Errno;

use crate::file_systems::FileSystem;
use crate::journal::{self, Left};
use crate::staging::{begins_as_id, remove_entry, temporary_begin};
use crate::sys;

/// What a transfer keeps that has given complete files their names.
pub(crate) const KEPT: &[u8] = b"-kept";

/// Of what several nodes wrote, when it is taken over.
pub(crate) const TAKEN: &[u8] = b"-taken";

/// What an earlier transfer left, with the locks of its journals.
#[derive(Debug)]
pub(crate) struct Claim {
    pub folder: OwnedFd,
    /// The names of its journals.
    pub journals: Vec<Vec<u8>>,
    /// It is what this transfer writes: another node of it began to take over what was left, and is gone.
    pub is_in_place: bool,
    /// Names that it may have files under.
    pub names: Vec<Vec<u8>>,
    /// What its journals say together.
    pub recorded: Vec<Recorded>,
    _left: Vec<Left>,
}

impl Claim {
    /// All that can be claimed in a folder.
    ///
    /// * `name`: of the destination.
    /// * `own`: the temporary name of this transfer.
    /// * `is_shared`: other nodes of this transfer write under it.
    pub fn all(folder: &OwnedFd, name: &[u8], own: &[u8], is_shared: bool) -> Vec<Self> {
        let mut all: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for name in journals(folder, name) {
            if let Some(temporary) = journal::temporary_of(&name) {
                all.entry(temporary.to_vec()).or_default().push(name);
            }
        }
        let others = all.into_iter();
        let others = others.filter(|(temporary, _)| is_shared || temporary != own);
        let claims = others.map(|(temporary, journals)| {
            let is_in_place = temporary == own;
            Self::of(folder, &temporary, journals, is_in_place)
        });
        claims.flatten().collect()
    }

    /// What is under one temporary name, unless it is another user's, or a writer of it may live.
    fn of(
        folder: &OwnedFd,
        temporary: &[u8],
        journals: Vec<Vec<u8>>,
        is_in_place: bool,
    ) -> Option<Self> {
        let base = temporary.strip_suffix(KEPT).unwrap_or(temporary);
        let of_nodes = journals.iter().any(|name| journal::is_of_node(name));
        let names = match (is_in_place, of_nodes) {
            (true, _) => vec![temporary.to_vec()],
            (false, true) => vec![[base, TAKEN].concat(), base.to_vec()],
            (false, false) => vec![base.to_vec(), [base, KEPT].concat()],
        };
        let is_others = |name: &Vec<u8>| is_ours(folder, name) == Some(false);
        let is_no_own = |name: &Vec<u8>| is_ours(folder, name) != Some(true);
        // Of some only the journals are left.
        if journals.iter().any(is_no_own) || names.iter().any(is_others) {
            return None;
        }
        let (left, recorded) = if is_in_place {
            // What other nodes of this transfer have recorded is true whether they live or not.
            let recorded = journals.iter();
            let recorded = recorded.flat_map(|name| journal::read_unlocked(folder, name));
            (Vec::new(), recorded.collect())
        } else {
            let left = journals.iter().map(|name| journal::claim(folder, name));
            let left = left.collect::<Option<Vec<Left>>>()?;
            let recorded: Vec<Recorded> = left.iter().flat_map(|left| left.files.clone()).collect();
            (left, recorded)
        };
        if of_nodes && !is_in_place && !take_from_late(folder, base, &journals) {
            return None;
        }
        Some(Self {
            folder: folder.try_clone().ok()?,
            journals,
            is_in_place,
            names,
            recorded: joined(recorded),
            _left: left,
        })
    }

    /// Removes all that was left, as far as possible.
    pub fn remove(&self) {
        for name in self.names.iter().chain(&self.journals) {
            remove_entry(&self.folder, name);
        }
    }
}

/// What takes over what an earlier transfer left. Each step says whether it is done.
pub(crate) trait Successor {
    /// As [`Step::Record`].
    fn record(&self) -> bool;
    /// As [`Step::Move`].
    fn move_here(&self, at: usize) -> bool;
    /// As [`Step::Forget`].
    fn forget(&self, at: &[usize]) -> bool;
    /// As [`Step::RemoveOwn`].
    fn remove_own(&self);
    /// As [`Step::SyncNames`].
    fn sync_names(&self) -> bool;
    /// What was left.
    fn claim(&self) -> &Claim;

    /// Takes over so many files, and gives the positions of those that were moved.
    ///
    /// * `is_superseded`: all that was left is of files that this transfer writes.
    fn take(&self, count: usize, is_superseded: bool) -> Vec<usize> {
        let mut takeover = Takeover::new(count, is_superseded);
        loop {
            let is_done = match takeover.step() {
                Step::Record => self.record(),
                Step::Move(at) => self.move_here(at),
                Step::Forget(failed) => self.forget(&failed),
                Step::RemoveOwn => {
                    self.remove_own();
                    true
                }
                Step::SyncNames => self.sync_names(),
                Step::Remove => {
                    self.claim().remove();
                    true
                }
                Step::End => break,
            };
            takeover.handle(is_done);
        }
        takeover.moved().collect()
    }
}

/// Gives what was left a name of this transfer.
///
/// * `is_shared`: other nodes may write there, if this one is taken for lost: what they have made stays.
pub(crate) fn give_name(
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, new): (BorrowedFd<'_>, &[u8]),
    is_shared: bool,
) -> Result<(), Errno> {
    if !is_shared {
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
pub(crate) fn journals_of(folder: &OwnedFd, temporary: &[u8]) -> Vec<Vec<u8>> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_bytes().to_vec());
    names
        .filter(|name| journal::temporary_of(name) == Some(temporary))
        .collect()
}

/// Names of journals of transfers to DEST.
pub(crate) fn journals(folder: &OwnedFd, name: &[u8]) -> Vec<Vec<u8>> {
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
pub(crate) fn is_ours(folder: &OwnedFd, name: &[u8]) -> Option<bool> {
    let user = rustix::process::geteuid().as_raw();
    let stat = sys::stat_entry(folder.as_fd(), name).ok()?;
    let has_one_owner = || FileSystem::of(folder).is_some_and(FileSystem::has_one_owner);
    Some(stat.st_uid == user || has_one_owner())
}

/// What the pure part has to know of a file.
pub(crate) fn seen(stat: &Stat) -> Seen {
    Seen {
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        has_one_name: stat.st_nlink == 1,
        len: stat.st_size as u64,
        inode: stat.st_ino,
    }
}
