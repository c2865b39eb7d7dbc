//! What of a copy is on stable storage while it is written, so that a later transfer can continue from there.
//!
//! A journal is a file beside the temporary name of a copy, `TEMPORARY.journal`; where several nodes write the copy, each has one,
//! `TEMPORARY.NODE.journal`. The format, and what is adopted, are in [`ropewalk_model::journal`]; here are files, locks and syncs. Four rules make a journal safe:
//!
//! * A record is written after the bytes that it is about have reached stable storage. A lost record costs that these are sent again.
//! * It is read up to the first record that is cut or damaged.
//! * Its writer holds a lock (`flock`) as long as it lives, and only a journal that is not locked is read. On a network file system
//!   the lock may be known to its own host alone, so another host's is read only where reader and writer see a file system whose
//!   locks are known to all hosts.
//! * It is made before the first file that it may be about: nothing temporary is without one.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ropewalk_model::journal::{HOST_MARK_LEN, Header, HeaderError, Locks, Records, decode, ending};
pub(crate) use ropewalk_model::journal::{Recorded, Safe};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::file_systems::{FileSystem, has_common_locks};
use crate::leftovers::host_mark;
use crate::sys;

/// What a journal's name ends in.
pub(crate) const SUFFIX: &[u8] = b".journal";

/// The journal's name beside a temporary one.
pub(crate) fn name_of(temporary: &[u8]) -> Vec<u8> {
    [temporary, SUFFIX].concat()
}

/// The temporary name that a journal is of.
pub(crate) fn temporary_of(name: &[u8]) -> Option<&[u8]> {
    let name = name.strip_suffix(SUFFIX)?;
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let digits = digits.count();
    let shared = name[..name.len() - digits].strip_suffix(b".");
    Some(shared.filter(|_| digits >= NODE_DIGITS).unwrap_or(name))
}

/// Digits of a node's number in the name of its journal, at least.
const NODE_DIGITS: usize = 6;

/// As [`name_of`], of one of the nodes that write the copy together.
pub(crate) fn name_of_node(temporary: &[u8], node: u32) -> Vec<u8> {
    let number = format!(".{node:0NODE_DIGITS$}");
    name_of(&[temporary, number.as_bytes()].concat())
}

/// Whether a journal is that of one of several nodes.
pub(crate) fn is_of_node(name: &[u8]) -> bool {
    temporary_of(name).is_some_and(|temporary| name_of(temporary) != name)
}

/// A journal that is written.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    records: Records,
}

impl Journal {
    /// Makes a journal that is empty, and locks it.
    pub fn create(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        let file = sys::open_beneath(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
        // A reader that has it open sees no header, and lets it go.
        let locked =
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive));
        // Of one that has no lock no reader knows whether it is written.
        if let Err(errno) = locked {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
            return Err(errno);
        }
        let mut journal = Self {
            file: File::from(file),
            records: Records::default(),
        };
        let header = Header {
            host: host(),
            locks: locks_of(&journal.file),
        };
        journal.write(&header.encode())?;
        Ok(journal)
    }

    /// Reserves space for so many bytes of records, as far as the file system can: what is safe can be recorded on a full disk then.
    pub fn reserve(&self, len: u64) {
        let _ = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len);
    }

    /// Whether it has a record of a file.
    pub fn knows(&self, number: u32) -> bool {
        self.records.knows(number)
    }

    /// Records bytes that are on stable storage. A file's are in one call, or in several.
    pub fn append<'a>(&mut self, safe: impl IntoIterator<Item = Safe<'a>>) -> Result<(), Errno> {
        let records = self.records.safe(safe);
        self.write(&records)
    }

    /// Records that nothing of these files is safe.
    pub fn forget(&mut self, numbers: impl IntoIterator<Item = u32>) -> Result<(), Errno> {
        let records = self.records.gone(numbers);
        self.write(&records)
    }

    /// Records that the lock will be free soon.
    pub fn note_ending(&mut self) -> Result<(), Errno> {
        self.write(&ending())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Waits until all records are on stable storage.
    pub fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.file)
    }
}

/// The mark of this host.
fn host() -> [u8; HOST_MARK_LEN] {
    let mut mark = [0; HOST_MARK_LEN];
    mark.copy_from_slice(host_mark().as_bytes());
    mark
}

/// How long a journal may be locked by one that only looks at it.
const LOOK_WAIT: Duration = Duration::from_millis(200);

const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// A journal that no process writes any more, with its lock.
#[derive(Debug)]
pub(crate) struct Left {
    pub files: Vec<Recorded>,
    /// No other process takes it for a leftover as long as this is open.
    _lock: File,
}

/// What has a journal's name.
#[derive(Debug)]
pub(crate) enum Found {
    Left(Left),
    /// A process writes it, or reads it.
    Locked,
    /// Locks say nothing about its writer.
    OfOtherHost,
    /// The file system has no locks.
    WithoutLocks,
    /// Another version of this program wrote it.
    OfOtherVersion,
    /// No journal, or gone.
    Unreadable,
}

/// Reads the journal of this name.
pub(crate) fn find(folder: impl AsFd, name: &[u8]) -> Found {
    // NFS has no exclusive lock for a file that is open for reading only.
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let Ok(file) = sys::open_beneath(folder.as_fd(), name, flags, Mode::empty()) else {
        return Found::Unreadable;
    };
    match try_lock(&file) {
        Ok(true) => {}
        Ok(false) => return Found::Locked,
        Err(_) => return Found::WithoutLocks,
    }
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    let is_read = file.read_to_end(&mut bytes).is_ok();
    let (header, records) = match Header::decode(&bytes) {
        Ok(found) if is_read => found,
        Err(HeaderError::OtherVersion { .. }) => return Found::OfOtherVersion,
        Ok(_) | Err(HeaderError::None) => return Found::Unreadable,
    };
    match header.is_lock_known(&host(), || locks_of(&file)) {
        false => Found::OfOtherHost,
        true => Found::Left(Left {
            files: decode(records),
            _lock: file,
        }),
    }
}

/// What a journal says whose writer may live: its records are true all the same.
pub(crate) fn read_unlocked(folder: impl AsFd, name: &[u8]) -> Vec<Recorded> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let mut bytes = Vec::new();
    let opened = sys::open_beneath(folder.as_fd(), name, flags, Mode::empty());
    let is_read = opened.is_ok_and(|file| File::from(file).read_to_end(&mut bytes).is_ok());
    let records = Header::decode(&bytes).ok().filter(|_| is_read);
    records.map_or_else(Vec::new, |(_, records)| decode(records))
}

/// Reads the journal of this name; `None` where it is none, is another host's, or is written. A process that only looks at it, as `status`
/// does, is waited for.
pub(crate) fn claim(folder: impl AsFd, name: &[u8]) -> Option<Left> {
    let until = Instant::now() + LOOK_WAIT;
    loop {
        match find(folder.as_fd(), name) {
            Found::Left(left) => return Some(left),
            Found::Locked if Instant::now() < until => std::thread::sleep(LOOK_PAUSE),
            Found::Locked
            | Found::OfOtherHost
            | Found::WithoutLocks
            | Found::OfOtherVersion
            | Found::Unreadable => return None,
        }
    }
}

/// Which hosts know of the locks of a file. A host that sees a file system as a local one may have had another name: a container has a new one
/// each time.
fn locks_of(file: &File) -> Locks {
    let is_local = FileSystem::of(file).is_some_and(FileSystem::is_local);
    match is_local {
        true => Locks::Local,
        false if has_common_locks(file) => Locks::OfAllHosts,
        false => Locks::OfHost,
    }
}

/// Whether a process has locked a file; if not, it is locked until it is closed. A file system without locks counts as locked.
pub(crate) fn is_locked(file: impl AsFd) -> bool {
    try_lock(file) != Ok(true)
}

/// Locks a file until it is closed, unless a process has locked it; whether it is locked now. The error is that of a file system without locks.
pub(crate) fn try_lock(file: impl AsFd) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a process writes the journal of this name.
pub(crate) fn is_written(folder: impl AsFd, name: &[u8]) -> bool {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    sys::open_beneath(folder.as_fd(), name, flags, Mode::empty()).is_ok_and(is_locked)
}

/// Whether a process writes the journal of this name that is about to end: it says so, or was killed and ends with the last of its
/// threads, which may wait for a disk.
pub(crate) fn is_ending(folder: impl AsFd, name: &[u8]) -> bool {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let Ok(file) = sys::open_beneath(folder.as_fd(), name, flags, Mode::empty()) else {
        return false;
    };
    if !is_locked(&file) {
        return false;
    }
    let mut file = File::from(file);
    let last = ending();
    let mut found = Vec::new();
    let is_read = file
        .seek(SeekFrom::End(-(last.len() as i64)))
        .and_then(|_| file.read_to_end(&mut found));
    is_read.is_ok() && found == last || sys::is_lock_of_dying(&file)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use ropewalk_model::journal::{HEADER_LEN, Unit, Version};
    use ropewalk_model::{Range, RangeSet};

    use super::*;

    fn version(len: u64) -> Version {
        Version {
            len,
            mtime_seconds: -5,
            mtime_nanoseconds: 7,
        }
    }

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap().into();
        (folder, opened)
    }

    fn safe(number: u32, path: &[u8], len: u64, range: Range) -> Safe<'_> {
        Safe {
            number,
            path,
            version: version(len),
            shift: None,
            inode: 77,
            range,
            digest: None,
        }
    }

    /// One that looks at a journal for a moment does not keep it from being taken over.
    #[test]
    fn lookers_are_waited_for() {
        let (_path, folder) = folder();
        drop(Journal::create(folder.as_fd(), b"j").unwrap());
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let looker = sys::open_beneath(folder.as_fd(), b"j", flags, Mode::empty()).unwrap();
        assert!(!is_locked(&looker));
        let claimed = std::thread::scope(|scope| {
            let claiming = scope.spawn(|| claim(&folder, b"j"));
            std::thread::sleep(LOOK_PAUSE);
            drop(looker);
            claiming.join().unwrap()
        });
        assert!(claimed.is_some());
    }

    /// What was recorded is read when the writer is gone, and not before; another host's journal is left alone.
    #[test]
    fn a_journal_is_read_when_its_writer_is_gone() {
        let (path, folder) = folder();
        let mut journal = Journal::create(folder.as_fd(), b"j").unwrap();
        let range = Range::new;
        let unit = Unit {
            range: range(0, 10),
            digest: [7; 32],
        };
        journal
            .append([
                safe(3, b"a", 100, range(0, 20)),
                Safe {
                    digest: Some(unit.digest),
                    ..safe(5, b"b/\xff", 10, unit.range)
                },
                safe(6, b"c", 10, unit.range),
            ])
            .unwrap();
        journal
            .append([safe(3, b"a", 100, range(50, 100))])
            .unwrap();
        journal.forget([6]).unwrap();
        assert!(claim(&folder, b"j").is_none());
        assert!(!is_ending(&folder, b"j"));
        journal.note_ending().unwrap();
        assert!(is_ending(&folder, b"j"));
        drop(journal);
        assert!(!is_ending(&folder, b"j"), "it has ended");
        let left = claim(&folder, b"j").unwrap();
        assert!(claim(&folder, b"j").is_none(), "one reader at a time");
        // NFS locks only what is open for writing.
        let flags = rustix::fs::fcntl_getfl(&left._lock).unwrap();
        assert!(flags.contains(OFlags::RDWR));
        assert_eq!(left.files.len(), 2);
        let versions = [left.files[0].version, left.files[1].version];
        assert_eq!(versions, [version(100), version(10)]);
        let parts = RangeSet::from_ranges([range(0, 20), range(50, 100)]);
        assert_eq!(
            (&left.files[0].safe, &left.files[1].path[..]),
            (&parts, &b"b/\xff"[..])
        );
        assert_eq!((left.files[0].inode, left.files[0].units.len()), (77, 0));
        assert_eq!(left.files[1].safe, RangeSet::from(range(0, 10)));
        assert_eq!(left.files[1].units, [unit]);
        drop(left);
        let mut bytes = std::fs::read(path.path().join("j")).unwrap();
        // The host's mark, and that no other host knows the lock.
        bytes[HEADER_LEN - 2] ^= 1;
        bytes[HEADER_LEN - 1] = b'0';
        std::fs::write(path.path().join("j"), &bytes).unwrap();
        assert!(claim(&folder, b"j").is_none());
    }
}
