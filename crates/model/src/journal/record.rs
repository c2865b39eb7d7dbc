//! Records: encoded, decoded, and folded into what they say of each file.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Layout, Range, RangeSet, UNIT_LEN_MIN};

/// What a journal of any version begins with.
const NAME: &[u8] = b"ropewalk journal ";

/// The version that is written and read.
const VERSION: &[u8] = b"4";

/// Digits of a version at most.
const VERSION_LEN_MAX: usize = 9;

/// Length of a host's mark.
pub const HOST_MARK_LEN: usize = 16;

/// Length of the header.
pub const HEADER_LEN: usize = NAME.len() + VERSION.len() + 1 + HOST_MARK_LEN + 1;

/// In the header: which hosts know of the writer's lock.
const NOT_COMMON: u8 = b'0';
const COMMON: u8 = b'1';
const LOCAL: u8 = b'2';

const FILE: u8 = 1;
const STRETCH: u8 = 2;
const UNIT: u8 = 3;
const GONE: u8 = 4;
const ENDING: u8 = 5;
const ROW: u8 = 6;

/// Bytes of a record's checksum.
pub const CHECKSUM_LEN: usize = 8;

/// Longest path of a file, bytes.
pub const PATH_LEN_MAX: usize = 4095;

/// Longest payload: a file with the longest path.
const PAYLOAD_MAX: usize = 64 + PATH_LEN_MAX;

/// What differs between two versions of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Its length in bytes.
    pub len: u64,
    /// Its modification time: seconds since 1970.
    pub mtime_seconds: i64,
    /// And nanoseconds.
    pub mtime_nanoseconds: u32,
}

/// Bytes that were hashed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Of the data space, or of a file.
    pub range: Range,
    /// Their BLAKE3.
    pub digest: [u8; 32],
}

/// What precedes the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The mark of the writer's host.
    pub host: [u8; HOST_MARK_LEN],
    /// Which hosts know of the writer's lock.
    pub locks: Locks,
}

/// Which hosts know of a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// That of the process, as far as is known.
    OfHost,
    /// All processes that see the file system as a local one, whatever name their host has or had. A server of files need not know those of its
    /// own processes, nor they its.
    Local,
    /// All that see it through a server that keeps locks.
    OfAllHosts,
}

/// Why bytes are no journal that this version reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is another version's.
    #[error(
        "the journal is of version {found}, and this program reads version {reads}; \
         finish or clean the copy with the version of the program that began it"
    )]
    OtherVersion {
        /// The version that wrote it.
        found: String,
        /// The one that is read.
        reads: String,
    },
    /// It is none, or its first bytes are missing.
    #[error("no journal: its first bytes are missing or damaged")]
    None,
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let locks = match self.locks {
            Locks::OfHost => NOT_COMMON,
            Locks::OfAllHosts => COMMON,
            Locks::Local => LOCAL,
        };
        [NAME, VERSION, b"\n", &self.host, &[locks]].concat()
    }

    /// The header and the records that follow it.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let rest = bytes.strip_prefix(NAME).ok_or(HeaderError::None)?;
        let digits = rest.iter().take(VERSION_LEN_MAX + 1);
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
        let (version, rest) = rest.split_at(digits);
        let rest = rest.strip_prefix(b"\n").ok_or(HeaderError::None)?;
        if version.is_empty() || version.len() > VERSION_LEN_MAX {
            return Err(HeaderError::None);
        }
        if version != VERSION {
            let text = |version: &[u8]| String::from_utf8_lossy(version).into_owned();
            return Err(HeaderError::OtherVersion {
                found: text(version),
                reads: text(VERSION),
            });
        }
        let header = rest.split_first_chunk::<HOST_MARK_LEN>();
        let (host, rest) = header.ok_or(HeaderError::None)?;
        let (locks, records) = rest.split_first().ok_or(HeaderError::None)?;
        let header = Self {
            host: *host,
            locks: match *locks {
                COMMON => Locks::OfAllHosts,
                LOCAL => Locks::Local,
                _ => Locks::OfHost,
            },
        };
        Ok((header, records))
    }

    /// Whether the lock of its writer means something to a reader.
    ///
    /// * `host`: the reader's mark.
    /// * `own`: of the file as the reader sees it.
    #[must_use]
    pub fn is_lock_known(&self, host: &[u8], own: impl FnOnce() -> Locks) -> bool {
        self.host == *host || (self.locks != Locks::OfHost && self.locks == own())
    }
}

/// Which bytes of its source a file of rows has: one source of several, and not from its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Offset in the file less offset in the source, modulo 2^64.
    pub by: u64,
    /// Bytes of the file that rows take from this source.
    pub wanted: u64,
}

impl Shift {
    /// Bytes of the source that bytes of the file are.
    #[must_use]
    pub fn in_source(&self, range: Range) -> Option<Range> {
        let start = range.start.wrapping_sub(self.by);
        Some(Range::new(start, start.checked_add(range.len())?))
    }
}

/// Bytes of a file that are on stable storage.
#[derive(Clone, Debug)]
pub struct Safe<'a> {
    /// The file's number: it keeps that in one journal.
    pub number: u32,
    /// Its path below the copy; of rows the last component of the source's path.
    pub path: &'a [u8],
    /// The version that the bytes are of.
    pub version: Version,
    /// Of rows: which bytes of the source they are. Each source of a file has a number of its own.
    pub shift: Option<Shift>,
    /// Of the file that has the bytes; 0 where that changes.
    pub inode: u64,
    /// Bytes of the file. Where they are none it is only described.
    pub range: Range,
    /// Their BLAKE3, where they are a unit that was received with it.
    pub digest: Option<[u8; 32]>,
}

/// Bytes that records of a file take: it is described, each unit of it is recorded with its hash, and all of it is taken back.
///
/// * `path`: bytes of its path.
/// * `len`: its length.
#[must_use]
pub fn records_len(path: usize, len: u64) -> u64 {
    const FRAME: u64 = 4 + CHECKSUM_LEN as u64;
    let file = FRAME + 1 + 4 + 8 + 8 + 4 + 8 + path as u64;
    let unit = FRAME + 1 + 4 + 8 + 8 + 32;
    let gone = FRAME + 1 + 4;
    file + gone + unit.saturating_mul(len.div_ceil(UNIT_LEN_MIN))
}

/// What a journal says of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its path below the copy; of rows the last component of the source's path.
    pub path: Vec<u8>,
    /// The version that the bytes are of.
    pub version: Version,
    /// Of rows: which bytes of the source they are.
    pub shift: Option<Shift>,
    /// Of the file that has the bytes; 0 where that is not known.
    pub inode: u64,
    /// Bytes of the file that are on stable storage.
    pub safe: RangeSet,
    /// Those of them whose hashes are known.
    pub units: Vec<Unit>,
}

/// What records say safe bytes again: each unit with its hash, then the rest.
pub fn pieces<'a>(
    safe: &RangeSet,
    units: &'a [Unit],
) -> impl Iterator<Item = (Range, Option<[u8; 32]>)> + use<'a> {
    let hashed = RangeSet::from_ranges(units.iter().map(|unit| unit.range));
    let plain: Vec<Range> = safe.difference(&hashed).iter().collect();
    let units = units.iter().map(|unit| (unit.range, Some(unit.digest)));
    units.chain(plain.into_iter().map(|range| (range, None)))
}

/// Makes the records of one journal: a file is described before the first of its bytes.
#[derive(Clone, Debug, Default)]
pub struct Records {
    // Files that have a record of their own.
    known: BTreeSet<u32>,
}

impl Records {
    /// Whether it has described a file.
    #[must_use]
    pub fn knows(&self, number: u32) -> bool {
        self.known.contains(&number)
    }

    /// Records of bytes that are on stable storage.
    pub fn safe<'a>(&mut self, safe: impl IntoIterator<Item = Safe<'a>>) -> Vec<u8> {
        let mut out = Vec::new();
        for one in safe {
            if self.known.insert(one.number) {
                add(&mut out, &file_payload(&one));
            }
            if one.range.is_empty() {
                continue;
            }
            let mut payload = vec![one.digest.map_or(STRETCH, |_| UNIT)];
            payload.extend(one.number.to_le_bytes());
            payload.extend(one.range.start.to_le_bytes());
            payload.extend(one.range.len().to_le_bytes());
            payload.extend(one.digest.iter().flatten());
            add(&mut out, &payload);
        }
        out
    }

    /// Records that nothing of these files is safe.
    pub fn gone(&mut self, numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
        let mut out = Vec::new();
        for number in numbers {
            self.known.remove(&number);
            let mut payload = vec![GONE];
            payload.extend(number.to_le_bytes());
            add(&mut out, &payload);
        }
        out
    }
}

/// The record that the lock will be free soon.
#[must_use]
pub fn ending() -> Vec<u8> {
    let mut out = Vec::new();
    add(&mut out, &[ENDING, 0, 0, 0, 0]);
    out
}

fn file_payload(safe: &Safe<'_>) -> Vec<u8> {
    let mut payload = vec![safe.shift.map_or(FILE, |_| ROW)];
    payload.extend(safe.number.to_le_bytes());
    payload.extend(safe.version.len.to_le_bytes());
    payload.extend(safe.version.mtime_seconds.to_le_bytes());
    payload.extend(safe.version.mtime_nanoseconds.to_le_bytes());
    payload.extend(safe.inode.to_le_bytes());
    if let Some(shift) = safe.shift {
        payload.extend(shift.by.to_le_bytes());
        payload.extend(shift.wanted.to_le_bytes());
    }
    payload.extend(safe.path);
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

/// What the records up to the first that is cut or damaged say, by the numbers of files. Cost and memory O(bytes × log files).
#[must_use]
pub fn decode(mut records: &[u8]) -> Vec<Recorded> {
    let mut files: BTreeMap<u32, Recorded> = BTreeMap::new();
    while let Some((payload, rest)) = split(records) {
        if read(&mut files, payload).is_none() {
            break;
        }
        records = rest;
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
            let range = Range::new(start, end);
            let in_source = file.shift.map_or(Some(range), |one| one.in_source(range))?;
            if in_source.end > file.version.len {
                return None;
            }
            if kind == UNIT {
                let digest = take(&mut rest)?;
                file.units.push(Unit { range, digest });
            }
            file.safe.insert(range);
        }
        FILE | ROW => {
            let version = Version {
                len: u64::from_le_bytes(take(&mut rest)?),
                mtime_seconds: i64::from_le_bytes(take(&mut rest)?),
                mtime_nanoseconds: u32::from_le_bytes(take(&mut rest)?),
            };
            let inode = u64::from_le_bytes(take(&mut rest)?);
            let shift = match kind {
                ROW => Some(Shift {
                    by: u64::from_le_bytes(take(&mut rest)?),
                    wanted: u64::from_le_bytes(take(&mut rest)?),
                }),
                _ => None,
            };
            let file = Recorded {
                version,
                shift,
                inode,
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

/// What is recorded of bytes that a sync has made safe, by file, ordered by file and offset: file, its bytes, and their hash where
/// they are one unit.
///
/// * `fresh`: bytes of the data space.
/// * `units`: units of the data space with their hashes, of which only those are used that lie in `fresh`. A unit that spans several
///   files is recorded without its hash: that of a part of it is not known.
#[must_use]
pub fn parts_of(
    layout: &Layout,
    fresh: &RangeSet,
    units: &[Unit],
) -> Vec<(u32, Range, Option<[u8; 32]>)> {
    let units = units.iter().filter(|unit| fresh.contains_range(unit.range));
    let hashed = RangeSet::from_ranges(units.clone().map(|unit| unit.range));
    let hashed_parts = units.flat_map(|unit| {
        let pieces = pieces_of(layout, unit.range);
        let digest = Some(unit.digest).filter(|_| pieces.len() == 1);
        let pieces = pieces.into_iter();
        pieces.map(move |(object, range)| (object, range, digest))
    });
    let plain = fresh.difference(&hashed);
    let plain_parts = plain.iter().flat_map(|range| pieces_of(layout, range));
    let plain_parts = plain_parts.map(|(object, range)| (object, range, None));
    let mut parts: Vec<_> = hashed_parts.chain(plain_parts).collect();
    parts.sort_unstable_by_key(|(object, range, _)| (*object, range.start));
    parts
}

/// The files that a range of the data space is of, each with its bytes.
fn pieces_of(layout: &Layout, range: Range) -> Vec<(u32, Range)> {
    let mut out = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(piece) = layout.locate(at) else {
            break;
        };
        let end = piece.range.end.min(range.end);
        let start = piece.object_offset;
        out.push((piece.object, Range::new(start, start + (end - at))));
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn safe(number: u32, path: &[u8], len: u64, range: Range) -> Safe<'_> {
        Safe {
            number,
            path,
            version: Version {
                len,
                mtime_seconds: -5,
                mtime_nanoseconds: 7,
            },
            shift: None,
            inode: 77,
            range,
            digest: None,
        }
    }

    /// Wherever a journal is cut, or whichever bit of it is wrong, what is read was recorded.
    #[test]
    fn a_torn_journal_never_has_more() {
        let mut records = Records::default();
        let unit = Safe {
            digest: Some([5; 32]),
            ..safe(1, b"b", 40, Range::new(0, 40))
        };
        let mut bytes = records.safe([unit]);
        for start in [10_u64, 30] {
            let range = Range::new(start, start + 15);
            bytes.extend(records.safe([safe(0, b"a", 100, range)]));
        }
        // Bytes 5 to 25 of a source, which lie behind what the file has of another one.
        let shift = Shift {
            by: 995,
            wanted: 20,
        };
        bytes.extend(records.safe([Safe {
            shift: Some(shift),
            ..safe(2, b"half", 30, Range::new(1000, 1020))
        }]));
        let all = decode(&bytes);
        assert_eq!(all[0].safe.len_bytes(), 30);
        assert_eq!((all[2].shift, all[2].safe.len_bytes()), (Some(shift), 20));
        let holds = |part: &[Recorded], what: String| {
            for file in part {
                let full = all.iter().find(|full| full.path == file.path).expect(&what);
                assert!(file.safe.difference(&full.safe).is_empty(), "{what}");
                assert!(file.units.iter().all(|unit| full.units.contains(unit)));
                assert_eq!((full.version, full.inode), (file.version, file.inode));
                assert_eq!(full.shift, file.shift, "{what}");
            }
        };
        for cut in 0..bytes.len() {
            let part = decode(&bytes[..cut]);
            holds(&part, format!("cut at {cut}"));
            assert_ne!(part, all);
        }
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            holds(&decode(&damaged), format!("bit {at}"));
        }
    }

    /// The space of records is known before they are made.
    #[test]
    fn length_of_records() {
        let len = UNIT_LEN_MIN * 2 + 5;
        let unit = |start: u64, end: u64| Safe {
            digest: Some([5; 32]),
            ..safe(1, b"a/path", len, Range::new(start, end))
        };
        let mut records = Records::default();
        let (one, two) = (UNIT_LEN_MIN, UNIT_LEN_MIN * 2);
        let mut bytes = records.safe([unit(0, one), unit(one, two), unit(two, len)]);
        bytes.extend(records.gone([1]));
        assert_eq!(bytes.len() as u64, records_len(b"a/path".len(), len));
    }

    /// Of a source that rows take from no more bytes are safe than it has, wherever they lie in the file; one that is only described
    /// has none.
    #[test]
    fn bytes_of_rows_are_those_of_their_source() {
        let shift = |by| Some(Shift { by, wanted: 10 });
        // 1000 - 5, and 0 - 20: the file has the end of the source first.
        for (by, range, is_of_source) in [
            (995, Range::new(1000, 1025), true),
            (995, Range::new(1000, 1026), false),
            (995, Range::new(994, 1000), false),
            (0_u64.wrapping_sub(20), Range::new(0, 10), true),
            (0_u64.wrapping_sub(20), Range::new(0, 11), false),
        ] {
            let mut records = Records::default();
            let row = Safe {
                shift: shift(by),
                ..safe(0, b"half", 30, range)
            };
            let described = Safe {
                range: Range::new(7, 7),
                ..row.clone()
            };
            let files = decode(&records.safe([described, row]));
            assert_eq!(files.len(), 1);
            let safe = if is_of_source { range.len() } else { 0 };
            assert_eq!(files[0].safe.len_bytes(), safe, "{by} {range}");
        }
    }

    /// What a file had is forgotten when it is gone, and its description is written again.
    #[test]
    fn a_file_that_is_gone_is_described_again() {
        let mut records = Records::default();
        let range = Range::new(0, 10);
        let mut bytes = records.safe([safe(3, b"a", 10, range), safe(4, b"b", 10, range)]);
        bytes.extend(records.gone([3]));
        bytes.extend(ending());
        assert!(!records.knows(3) && records.knows(4));
        assert_eq!(decode(&bytes).len(), 1);
        bytes.extend(records.safe([safe(3, b"a", 10, Range::new(5, 6))]));
        let files = decode(&bytes);
        assert_eq!(files[0].path, b"a");
        assert_eq!(files[0].safe, RangeSet::from(Range::new(5, 6)));
    }

    /// A header is read as it was written; another version, older or newer, is named in words.
    #[test]
    fn headers_of_other_versions_are_named() {
        let header = Header {
            host: *b"0123456789abcdef",
            locks: Locks::OfAllHosts,
        };
        let bytes = header.encode();
        assert_eq!(bytes, b"ropewalk journal 4\n0123456789abcdef1");
        assert_eq!(bytes.len(), HEADER_LEN);
        let with_record = [&bytes[..], b"rest"].concat();
        assert_eq!(Header::decode(&with_record), Ok((header, &b"rest"[..])));
        for other in ["3", "5", "10", "123456789"] {
            let text = format!("ropewalk journal {other}\n0123456789abcdef1");
            let error = Header::decode(text.as_bytes()).unwrap_err();
            let words =
                format!("the journal is of version {other}, and this program reads version 4");
            assert!(error.to_string().starts_with(&words), "{error}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..cut]), Err(HeaderError::None));
        }
        for none in [
            "ropewalk journal \n",
            "ropewalk journal 1234567890\n",
            "rope",
        ] {
            assert_eq!(Header::decode(none.as_bytes()), Err(HeaderError::None));
        }
    }

    /// Another host's lock counts where writer and reader see locks of one kind, and not those of a server and of its clients.
    #[test]
    fn whose_locks_are_known() {
        let host = *b"0123456789abcdef";
        let all = [Locks::OfHost, Locks::Local, Locks::OfAllHosts];
        for (locks, seen) in all.iter().flat_map(|one| all.map(|other| (*one, other))) {
            let header = Header { host, locks };
            let decoded = Header::decode(&header.encode()).unwrap().0;
            assert_eq!(decoded, header);
            assert!(header.is_lock_known(&host, || seen));
            let is_known = locks == seen && seen != Locks::OfHost;
            let other = b"fedcba9876543210";
            assert_eq!(header.is_lock_known(other, || seen), is_known);
        }
    }

    proptest! {
        /// Any bytes are read without harm.
        #[test]
        fn anything_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = Header::decode(&bytes);
        }
    }
}
