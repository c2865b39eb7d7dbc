//! What of a copy is on stable storage while it is written, so that a later transfer can continue from there.
//!
//! A journal is a file beside the temporary name of a copy, `TEMPORARY.journal`; where several nodes write the copy, each has one,
//! `TEMPORARY.NODE.journal`:
//!
//! ```text
//!  header   "ropewalk journal 3\n", the mark of the host, "1" where all hosts know of its locks, else "0"
//!  record   length of the payload (4), payload, first 8 bytes of its BLAKE3
//!    file     1, number (4), size (8), modification time (8 + 4), inode (8), path
//!    stretch  2, number of a file (4), offset (8), length (8)
//!    unit     3, as a stretch, BLAKE3 of these bytes (32)
//!    gone     4, number of a file (4): nothing of it is safe any more
//!    ending   5, 0 (4): its transfer is about to end
//! ```
//!
//! Numbers are little endian. Paths, sizes and times are those of the manifest: a record means the same whatever else the tree
//! holds. The inode is that of the file that has the bytes, 0 where the file system gives a file another number later: neither a
//! file that a backup has put there nor one that was made again is taken for it. Four rules make a journal safe:
//!
//! * A record is written after the bytes that it is about have reached stable storage. A lost record costs that these are sent again.
//! * It is read up to the first record that is cut or damaged.
//! * Its writer holds a lock (`flock`) as long as it lives, and only a journal that is not locked is read. On a network file system
//!   the lock may be known to its own host alone, so another host's is read only where reader and writer see a file system whose
//!   locks are known to all hosts.
//! * It is made before the first file that it may be about: nothing temporary is without one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use ropewalk_model::{Range, RangeSet};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::file_systems::has_common_locks;
use crate::leftovers::host_mark;
use crate::manifest::{Entry, PATH_LEN_MAX};
use crate::sink::Unit;
use crate::sys;

const MAGIC: &[u8] = b"ropewalk journal 3\n";

/// Of the rest of the header: the mark of the host and what is known of locks.
const HEADER_LEN: usize = 17;

/// In the header: all hosts know of the writer's lock.
const COMMON: &[u8] = b"1";

/// What a journal's name ends in.
pub(crate) const SUFFIX: &[u8] = b".journal";

const FILE: u8 = 1;
const STRETCH: u8 = 2;
const UNIT: u8 = 3;
const GONE: u8 = 4;
const ENDING: u8 = 5;

const CHECKSUM_LEN: usize = 8;

/// Longest payload: a file with the longest path.
const PAYLOAD_MAX: usize = 64 + PATH_LEN_MAX;

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
    /// Entries that have a record of their own.
    known: BTreeSet<u32>,
}

/// Bytes of a file that are on stable storage.
#[derive(Debug)]
pub(crate) struct Safe<'a> {
    /// The entry's number: a file keeps it in one journal.
    pub number: u32,
    pub entry: &'a Entry,
    pub inode: u64,
    /// Bytes of the file.
    pub range: Range,
    /// Their BLAKE3, where they are a unit that was received with it.
    pub digest: Option<[u8; 32]>,
}

/// What a journal says of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub path: Vec<u8>,
    pub len: u64,
    pub mtime_seconds: i64,
    pub mtime_nanoseconds: u32,
    pub inode: u64,
    /// Bytes of the file that are on stable storage.
    pub safe: RangeSet,
    /// Those of them whose hashes are known.
    pub units: Vec<Unit>,
}

impl Recorded {
    /// Whether another record is about the same file.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let about = |one: &Self| (one.len, one.mtime_seconds, one.mtime_nanoseconds, one.inode);
        about(self) == about(other)
    }

    /// Whether it is about this version of an entry.
    pub fn is_of(&self, entry: &Entry) -> bool {
        let (len, seconds) = (self.len, self.mtime_seconds);
        (len, seconds, self.mtime_nanoseconds)
            == (entry.len(), entry.mtime_seconds, entry.mtime_nanoseconds)
    }
}

impl Journal {
    /// Makes a journal that is empty, and locks it.
    pub fn create(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        let file = sys::open_beneath(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
        // A reader that has it open sees no header, and lets it go.
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
        let mut journal = Self {
            file: File::from(file),
            known: BTreeSet::new(),
        };
        let common: &[u8] = match has_common_locks(&journal.file) {
            true => COMMON,
            false => b"0",
        };
        journal.write(&[MAGIC, host_mark().as_bytes(), common].concat())?;
        Ok(journal)
    }

    /// Whether it has a record of a file.
    pub fn knows(&self, number: u32) -> bool {
        self.known.contains(&number)
    }

    /// Records bytes that are on stable storage. A file's are in one call, or in several.
    pub fn append<'a>(&mut self, safe: impl IntoIterator<Item = Safe<'a>>) -> Result<(), Errno> {
        let mut out = Vec::new();
        for one in safe {
            if self.known.insert(one.number) {
                add(&mut out, &file_payload(&one));
            }
            let mut payload = vec![one.digest.map_or(STRETCH, |_| UNIT)];
            payload.extend(one.number.to_le_bytes());
            payload.extend(one.range.start.to_le_bytes());
            payload.extend(one.range.len().to_le_bytes());
            payload.extend(one.digest.iter().flatten());
            add(&mut out, &payload);
        }
        self.write(&out)
    }

    /// Records that nothing of these files is safe.
    pub fn forget(&mut self, numbers: impl IntoIterator<Item = u32>) -> Result<(), Errno> {
        let mut out = Vec::new();
        for number in numbers {
            self.known.remove(&number);
            let mut payload = vec![GONE];
            payload.extend(number.to_le_bytes());
            add(&mut out, &payload);
        }
        self.write(&out)
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

fn ending() -> Vec<u8> {
    let mut out = Vec::new();
    add(&mut out, &[ENDING, 0, 0, 0, 0]);
    out
}

fn file_payload(safe: &Safe<'_>) -> Vec<u8> {
    let entry = safe.entry;
    let mut payload = vec![FILE];
    payload.extend(safe.number.to_le_bytes());
    payload.extend(entry.len().to_le_bytes());
    payload.extend(entry.mtime_seconds.to_le_bytes());
    payload.extend(entry.mtime_nanoseconds.to_le_bytes());
    payload.extend(safe.inode.to_le_bytes());
    payload.extend(&entry.path);
    payload
}

fn add(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(payload);
    out.extend(checksum(payload));
}

fn checksum(payload: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut sum = [0; CHECKSUM_LEN];
    sum.copy_from_slice(&blake3::hash(payload).as_bytes()[..CHECKSUM_LEN]);
    sum
}

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
    /// No journal that this version reads, or gone.
    Unreadable,
}

/// Reads the journal of this name.
pub(crate) fn find(folder: impl AsFd, name: &[u8]) -> Found {
    // NFS has no exclusive lock for a file that is open for reading only.
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let Ok(file) = sys::open_beneath(folder.as_fd(), name, flags, Mode::empty()) else {
        return Found::Unreadable;
    };
    if is_locked(&file) {
        return Found::Locked;
    }
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    let is_read = file.read_to_end(&mut bytes).is_ok();
    let rest = bytes.strip_prefix(MAGIC).filter(|_| is_read);
    let Some((header, records)) = rest.and_then(|rest| rest.split_at_checked(HEADER_LEN)) else {
        return Found::Unreadable;
    };
    let (mark, common) = header.split_at(HEADER_LEN - COMMON.len());
    let is_own = mark == host_mark().as_bytes();
    match is_own || (common == COMMON && has_common_locks(&file)) {
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
    let rest = bytes.strip_prefix(MAGIC).filter(|_| is_read);
    let records = rest.and_then(|rest| rest.get(HEADER_LEN..));
    decode(records.unwrap_or_default())
}

/// Reads the journal of this name; `None` where it is none, is another host's, or is written.
pub(crate) fn claim(folder: impl AsFd, name: &[u8]) -> Option<Left> {
    match find(folder, name) {
        Found::Left(left) => Some(left),
        Found::Locked | Found::OfOtherHost | Found::Unreadable => None,
    }
}

/// Whether a process has locked a file; if not, it is locked until it is closed. A file system without locks counts as locked.
pub(crate) fn is_locked(file: impl AsFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err()
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

/// The records up to the first that is cut or damaged.
fn decode(mut bytes: &[u8]) -> Vec<Recorded> {
    let mut files: BTreeMap<u32, Recorded> = BTreeMap::new();
    while let Some((payload, rest)) = split(bytes) {
        if read(&mut files, payload).is_none() {
            break;
        }
        bytes = rest;
    }
    files.into_values().collect()
}

/// The first record's payload and what follows it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (payload, rest) = rest.split_at_checked(len.min(PAYLOAD_MAX))?;
    let (sum, rest) = rest.split_first_chunk::<CHECKSUM_LEN>()?;
    (payload.len() == len && checksum(payload) == *sum).then_some((payload, rest))
}

/// Takes the number at the front of a payload off it.
fn take<const LEN: usize>(bytes: &mut &[u8]) -> Option<[u8; LEN]> {
    let (number, rest) = bytes.split_first_chunk::<LEN>()?;
    *bytes = rest;
    Some(*number)
}

fn read(files: &mut BTreeMap<u32, Recorded>, payload: &[u8]) -> Option<()> {
    let (&kind, mut rest) = payload.split_first()?;
    let number = u32::from_le_bytes(take(&mut rest)?);
    match kind {
        STRETCH | UNIT => {
            let file = files.get_mut(&number)?;
            let start = u64::from_le_bytes(take(&mut rest)?);
            let end = start.checked_add(u64::from_le_bytes(take(&mut rest)?))?;
            if end > file.len {
                return None;
            }
            let range = Range::new(start, end);
            if kind == UNIT {
                let digest = take(&mut rest)?;
                file.units.push(Unit { range, digest });
            }
            file.safe.insert(range);
        }
        FILE => {
            let file = Recorded {
                len: u64::from_le_bytes(take(&mut rest)?),
                mtime_seconds: i64::from_le_bytes(take(&mut rest)?),
                mtime_nanoseconds: u32::from_le_bytes(take(&mut rest)?),
                inode: u64::from_le_bytes(take(&mut rest)?),
                path: rest.to_vec(),
                safe: RangeSet::new(),
                units: Vec::new(),
            };
            files.insert(number, file);
        }
        GONE => {
            files.remove(&number);
        }
        ENDING => {}
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;

    use super::*;
    use crate::manifest::EntryKind;

    fn entry(path: &[u8], len: u64) -> Entry {
        Entry {
            path: path.to_vec(),
            kind: EntryKind::File { len },
            mode: 0o644,
            mtime_seconds: -5,
            mtime_nanoseconds: 7,
            kept: crate::manifest::Kept::default(),
        }
    }

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap().into();
        (folder, opened)
    }

    fn safe(number: u32, entry: &Entry, range: Range) -> Safe<'_> {
        Safe {
            number,
            entry,
            inode: 77,
            range,
            digest: None,
        }
    }

    /// What was recorded is read when the writer is gone, and not before; another host's journal is left alone.
    #[test]
    fn a_journal_is_read_when_its_writer_is_gone() {
        let (path, folder) = folder();
        let entries = [entry(b"a", 100), entry(b"b/\xff", 10), entry(b"c", 10)];
        let mut journal = Journal::create(folder.as_fd(), b"j").unwrap();
        let range = Range::new;
        let unit = Unit {
            range: range(0, 10),
            digest: [7; 32],
        };
        journal
            .append([
                safe(3, &entries[0], range(0, 20)),
                Safe {
                    digest: Some(unit.digest),
                    ..safe(5, &entries[1], unit.range)
                },
                safe(6, &entries[2], unit.range),
            ])
            .unwrap();
        journal
            .append([safe(3, &entries[0], range(50, 100))])
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
        assert!(left.files[0].is_of(&entries[0]) && left.files[1].is_of(&entries[1]));
        assert!(!left.files[0].is_of(&entries[1]));
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
        bytes[MAGIC.len()] ^= 1;
        std::fs::write(path.path().join("j"), &bytes).unwrap();
        assert!(claim(&folder, b"j").is_none());
    }

    /// Wherever a journal is cut, or whichever bit of it is wrong, what is read was recorded.
    #[test]
    fn a_torn_journal_never_has_more() {
        let (path, folder) = folder();
        let entries = [entry(b"a", 100), entry(b"b", 40)];
        let mut journal = Journal::create(folder.as_fd(), b"j").unwrap();
        let unit = Safe {
            digest: Some([5; 32]),
            ..safe(1, &entries[1], Range::new(0, 40))
        };
        journal.append([unit]).unwrap();
        for start in [10_u64, 30] {
            let range = Range::new(start, start + 15);
            journal.append([safe(0, &entries[0], range)]).unwrap();
        }
        let bytes = std::fs::read(path.path().join("j")).unwrap();
        let bytes = &bytes[MAGIC.len() + HEADER_LEN..];
        let all = decode(bytes);
        assert_eq!(all[0].safe.len_bytes(), 30);
        let holds = |part: &[Recorded], what: String| {
            for file in part {
                let full = all.iter().find(|full| full.path == file.path).expect(&what);
                assert!(file.safe.difference(&full.safe).is_empty(), "{what}");
                assert!(file.units.iter().all(|unit| full.units.contains(unit)));
                assert_eq!(
                    (full.len, full.mtime_seconds, full.inode),
                    (file.len, file.mtime_seconds, file.inode)
                );
            }
        };
        for cut in 0..bytes.len() {
            let part = decode(&bytes[..cut]);
            holds(&part, format!("cut at {cut}"));
            assert_ne!(part, all);
        }
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[at / 8] ^= 1 << (at % 8);
            holds(&decode(&damaged), format!("bit {at}"));
        }
    }

    proptest! {
        /// Any bytes are read without harm.
        #[test]
        fn anything_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
