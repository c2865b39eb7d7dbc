//! What of a destination is on stable storage while it is written, so that a later transfer can continue from there: one journal beside
//! its temporary name, for trees and rows alike.
//!
//! ```text
//!  .DEST.ropewalk-ID               what is written        .DEST.ropewalk-ID.journal        what of it is safe
//!  .DEST.ropewalk-ID-kept/...      partial files, where the transfer ended      .DEST.ropewalk-ID-kept.journal
//!  .DEST.ropewalk-ID               what several nodes write      .DEST.ropewalk-ID.NODE.journal        what of it each one made safe
//! ```
//!
//! What the records are of, trees and rows say.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ropewalk_model::RangeSet;
use ropewalk_model::journal::{Safe, Unit, is_worth_keeping};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::claims::journals_of;
use crate::error::StoreError;
use crate::journal::{self, Journal};
use crate::sys;

/// Where something is written before it has its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage<'a> {
    /// The folder that has the temporary name, and its path.
    pub folder: &'a OwnedFd,
    pub folder_path: &'a Path,
    pub temporary: &'a [u8],
}

impl Stage<'_> {
    pub fn path(&self) -> PathBuf {
        self.folder_path.join(OsStr::from_bytes(self.temporary))
    }
}

/// What is safe, and what was found to be.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Nothing is recorded and nothing taken over.
    pub is_off: bool,
    /// Of several nodes that write the copy, this one.
    pub node: Option<u32>,
    /// Nothing more is recorded: the file system refused it. What the journal has stays true.
    has_failed: bool,
    /// It has said that it is about to end. That is the last record.
    is_ending: bool,
    /// Nothing more is recorded: the sink has ended.
    has_ended: bool,
    journal: Option<Journal>,
    pub recorded: RangeSet,
    /// Bytes of files that have their names already.
    pub named: RangeSet,
    /// Bytes of the data space that were safe before the transfer's first byte: an earlier one wrote them, or files of DEST have them.
    pub adopted: RangeSet,
    /// Of these, those that files of DEST have.
    pub taken: RangeSet,
    /// Hashes of these.
    pub units: Vec<Unit>,
    /// Where files lie that the next transfer can go on with, and how many of their bytes are safe.
    pub kept: Option<(PathBuf, u64)>,
    /// The transfer has failed.
    keeps_more: bool,
}

impl Progress {
    /// Nothing is recorded.
    pub fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// * `node`: of several nodes that write the copy, this one.
    pub fn of(node: Option<u32>) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }

    /// Whether so many safe bytes are worth keeping.
    pub fn is_worth_keeping(&self, safe: u64) -> bool {
        is_worth_keeping(safe, self.keeps_more, !self.adopted.is_empty())
    }

    /// The transfer has failed: less is worth keeping.
    pub fn keep_more(&mut self) {
        self.keeps_more = true;
    }

    /// The journal, unless nothing more is recorded.
    fn open_journal(&mut self) -> Option<&mut Journal> {
        let is_open = !self.has_failed && !self.has_ended;
        self.journal.as_mut().filter(|_| is_open)
    }

    /// Makes the journal, before anything that it may be about. Where it cannot be made there is none: a later transfer sends
    /// everything.
    ///
    /// * `reserved`: bytes of records whose space is reserved: a full disk then keeps them.
    ///
    /// # Errors
    /// What the system reported, for a node that writes together with others: without its journal it would not be seen. Of a name too
    /// long for that none of them has one.
    pub fn begin(&mut self, stage: &Stage<'_>, reserved: Option<u64>) -> Result<(), StoreError> {
        if self.is_off {
            return Ok(());
        }
        let name = self.journal_name(stage);
        let created = Journal::create(stage.folder.as_fd(), &name);
        // What this node makes cannot be told from what it left, if it loses its power, without the header: then no later transfer
        // would take over what the others have written.
        let created = created.and_then(|journal| {
            if self.node.is_some() {
                journal.sync()?;
                sys::sync_folder(stage.folder)?;
            }
            Ok(journal)
        });
        match created {
            Ok(journal) => {
                if let Some(len) = reserved {
                    journal.reserve(len);
                }
                self.journal = Some(journal);
            }
            Err(errno) if self.node.is_some() && !is_without_journals(errno) => {
                let path = stage.folder_path.join(OsStr::from_bytes(&name));
                return Err(StoreError::from_create(path, stage.folder, errno));
            }
            Err(_) => self.has_failed = true,
        }
        Ok(())
    }

    fn journal_name(&self, stage: &Stage<'_>) -> Vec<u8> {
        match self.node {
            Some(node) => journal::name_of_node(stage.temporary, node),
            None => journal::name_of(stage.temporary),
        }
    }

    /// The journals of what this transfer writes.
    fn journal_names(&self, stage: &Stage<'_>) -> Vec<Vec<u8>> {
        match self.node {
            Some(_) => journals_of(stage.folder, stage.temporary),
            None => vec![journal::name_of(stage.temporary)],
        }
    }

    /// Describes files of which nothing need be safe yet.
    pub fn describe<'s>(&mut self, files: impl IntoIterator<Item = Safe<'s>>) {
        let described = self.open_journal().map(|journal| journal.append(files));
        self.has_failed |= described.is_some_and(|described| described.is_err());
    }

    /// Records bytes that are on stable storage, once each, and waits until the record is, too. Where that fails nothing more is
    /// recorded: a later transfer sends more.
    ///
    /// * `append`: writes records of bytes of the data space.
    pub fn record(
        &mut self,
        stage: &Stage<'_>,
        safe: &RangeSet,
        append: impl FnOnce(&mut Journal, &RangeSet) -> Result<(), Errno>,
    ) {
        let fresh = safe.difference(&self.recorded);
        let (is_first, is_ending) = (self.recorded.is_empty(), self.is_ending);
        let Some(journal) = self.open_journal().filter(|_| !fresh.is_empty()) else {
            return;
        };
        let appended = append(journal, &fresh);
        let appended = appended.and_then(|()| end_with(journal, is_ending));
        let appended = appended.and_then(|()| journal.sync());
        let appended = appended.and_then(|()| match is_first {
            true => sys::sync_folder(stage.folder),
            false => Ok(()),
        });
        match appended {
            Ok(()) => self.recorded = self.recorded.union(&fresh),
            Err(_) => self.has_failed = true,
        }
    }

    /// Records what an earlier transfer left before it is moved: a transfer that is killed meanwhile loses nothing. Whether it is safe.
    pub fn record_found<'s>(
        &mut self,
        stage: &Stage<'_>,
        records: impl IntoIterator<Item = Safe<'s>>,
    ) -> bool {
        let is_own = self.node.is_none();
        let Some(journal) = self.open_journal() else {
            return false;
        };
        let written = journal.append(records);
        // Until it records more it may be about to end, without having noticed: the next transfer waits for what this one takes over.
        let written = written.and_then(|()| end_with(journal, is_own));
        let written = written.and_then(|()| journal.sync());
        let written = written.and_then(|()| sys::sync_folder(stage.folder));
        self.has_failed |= written.is_err();
        written.is_ok()
    }

    /// Takes back records of files. Whether no journal vouches for them any more.
    pub fn forget(&mut self, gone: impl IntoIterator<Item = u32>) -> bool {
        let is_ending = self.is_ending;
        let Some(journal) = self.open_journal() else {
            return true;
        };
        let written = journal.forget(gone);
        let written = written.and_then(|()| end_with(journal, is_ending));
        written.and_then(|()| journal.sync()).is_ok()
    }

    /// Takes back records of files that are of no use any more, without waiting for that to be on stable storage.
    pub fn drop_records(&mut self, named: impl IntoIterator<Item = u32>) {
        let is_ending = self.is_ending;
        let written = self.open_journal().map(|journal| {
            let written = journal.forget(named);
            written.and_then(|()| end_with(journal, is_ending))
        });
        self.has_failed |= written.is_some_and(|written| written.is_err());
    }

    /// Notes that an earlier transfer has made bytes of the data space safe, and hashes of some of them.
    pub fn note_adopted(&mut self, safe: &RangeSet, units: impl IntoIterator<Item = Unit>) {
        self.recorded = self.recorded.union(safe);
        self.adopted = self.adopted.union(safe);
        self.units.extend(units);
    }

    /// Keeps all that is under the temporary name for the next transfer, where much of it is safe. Whether it does.
    pub fn keep_all(&mut self, stage: &Stage<'_>) -> bool {
        // No node alone knows what is worth it.
        let together = self.journal_names(stage).into_iter();
        let together = together.filter(|_| self.node.is_some());
        let together = together.flat_map(|name| journal::read_unlocked(stage.folder, &name));
        let together: u64 = together.map(|file| file.safe.len_bytes()).sum();
        let own = self.recorded.difference(&self.named);
        let safe = own.len_bytes().max(together);
        let is_worth_it = self.journal.is_some() && self.is_worth_keeping(safe);
        if is_worth_it {
            self.kept = Some((stage.path(), safe));
            self.end_journal();
        }
        is_worth_it
    }

    /// Removes this node's journal, where nothing was written.
    pub fn remove_own_journal(&mut self, stage: &Stage<'_>) {
        self.end_journal();
        let name = self.journal_name(stage);
        let _ = rustix::fs::unlinkat(stage.folder, &*name, AtFlags::empty());
    }

    /// Removes the journals beside the temporary name, for good.
    pub fn remove_journals(&mut self, stage: &Stage<'_>) {
        self.end_journal();
        for name in self.journal_names(stage) {
            let _ = rustix::fs::unlinkat(stage.folder, &*name, AtFlags::empty());
        }
    }

    /// Notes that the sink is about to end: the next transfer waits for that. Whether it is noted; where it is not, the next one does not
    /// wait.
    pub fn note_ending(&mut self) -> bool {
        self.is_ending = true;
        let noted = self.open_journal().map(Journal::note_ending);
        noted.is_some_and(|noted| noted.is_ok())
    }

    /// Ends recording and releases the journal: what is left is the next transfer's.
    pub fn end_journal(&mut self) {
        self.has_ended = true;
        self.journal = None;
    }
}

/// Has the last record say that the sink is about to end, where it is.
fn end_with(journal: &mut Journal, is_ending: bool) -> Result<(), Errno> {
    match is_ending {
        true => journal.note_ending(),
        false => Ok(()),
    }
}

/// Whether there can be no journal: its name is too long, or the file system has no locks (Lustre without `flock`). Then
/// no node of a shared copy has one, and no later transfer goes on with it.
fn is_without_journals(errno: Errno) -> bool {
    let known = [Errno::NAMETOOLONG, Errno::NOSYS, Errno::OPNOTSUPP];
    known.contains(&errno)
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Range;
    use ropewalk_model::journal::Version;

    use super::*;

    /// A sink that has said that it is about to end is seen to be that after each further record, until it has ended.
    #[test]
    fn an_ending_stays_the_last_record() {
        let path = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(path.path()).unwrap().into();
        let stage = Stage {
            folder: &folder,
            folder_path: path.path(),
            temporary: b".to.ropewalk-1",
        };
        let mut progress = Progress::of(None);
        progress.begin(&stage, None).unwrap();
        let is_ending = || journal::is_ending(&folder, b".to.ropewalk-1.journal");
        let safe = |start: u64| Safe {
            number: 0,
            path: b"file",
            version: Version {
                len: 100,
                ..Version::default()
            },
            shift: None,
            inode: 0,
            range: Range::new(start, start + 10),
            digest: None,
        };
        let record = |progress: &mut Progress, start: u64| {
            let range = RangeSet::from(Range::new(start, start + 10));
            progress.record(&stage, &range, |journal, _| journal.append([safe(start)]));
        };
        // What takes over may end before it has noticed that.
        assert!(progress.record_found(&stage, [safe(50)]));
        assert!(is_ending());
        record(&mut progress, 0);
        assert!(!is_ending());
        assert!(progress.note_ending());
        assert!(is_ending());
        record(&mut progress, 10);
        assert!(is_ending());
        progress.drop_records([3]);
        assert!(is_ending());
        progress.forget([4]);
        assert!(is_ending());
        assert_eq!(progress.recorded.len_bytes(), 20);
        let recorded = journal::read_unlocked(&folder, b".to.ropewalk-1.journal");
        assert_eq!(recorded[0].safe.len_bytes(), 30);
        progress.end_journal();
        assert!(!is_ending());
        assert!(!progress.note_ending(), "no other transfer would see it");
        assert!(!Progress::off().note_ending());
    }
}
