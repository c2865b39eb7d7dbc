//! The first process of a shuffle: reads the files of a folder, cuts records, and collects them by partition.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::OwnedFd;

use ropewalk_proto::stage::account::Account;
use ropewalk_proto::stage::shuffle::{PREFIX_LEN, Records, Shuffle};
use rustix::fs::{Advice, Dir, FileType, Mode, OFlags, fadvise, fstat, openat};

use crate::ends::Filled;
use crate::error::StageError;
use crate::version::Version;

/// Bytes that are read before other things have their turn.
const STEP: usize = 1 << 20;

/// Bytes that are read from a file at once.
const READ_LEN: usize = 256 << 10;

/// What a record adds to accounts: a keyed hash.
pub(crate) fn fingerprint(key: &[u8; 32], record: &[u8]) -> u128 {
    let hash = blake3::keyed_hash(key, record);
    let (half, _) = hash.as_bytes().split_at(16);
    half.try_into().map_or(0, u128::from_le_bytes)
}

/// Adds a record.
pub(crate) fn count(account: &mut Account, key: &[u8; 32], record: &[u8]) {
    // Shorter than a block.
    account.add(record.len() as u32, fingerprint(key, record));
}

/// The next record of a file, with the end of its line, into `record`; an empty one at the end of the file, and one longer than
/// `longest` (a part of it) where it is longer.
pub(crate) fn read_record(
    from: &mut impl BufRead,
    records: Records,
    longest: usize,
    record: &mut Vec<u8>,
) -> io::Result<()> {
    record.clear();
    match records {
        Records::Lines => {
            let limit = longest as u64 + 1;
            from.by_ref().take(limit).read_until(b'\n', record)?;
            if !record.is_empty() && record.last() != Some(&b'\n') {
                record.push(b'\n');
            }
        }
        Records::Fixed(length) => {
            from.by_ref().take(length.into()).read_to_end(record)?;
        }
    }
    Ok(())
}

/// A file that is being read.
struct Reading {
    name: String,
    from: BufReader<File>,
    // Where the next record begins, and the length when it was opened.
    offset: u64,
    length: u64,
    version: Version,
}

/// Records of all files of a folder.
pub(crate) struct Dealing {
    folder: OwnedFd,
    // The next one is the last.
    names: Vec<Vec<u8>>,
    reading: Option<Reading>,
    shuffle: Shuffle,
    block: usize,
    key: [u8; 32],
    // By partition: the front of a block and records.
    collected: Vec<Vec<u8>>,
    record: Vec<u8>,
    // The record waits for a partition whose block is full.
    waits: bool,
    // Nothing more is read; the first partition that may have something left.
    left: usize,
    account: Account,
    has_read: bool,
}

impl Dealing {
    /// Of the files in a folder, in the order of their names; those that begin with a dot are left out.
    ///
    /// * `key`: of fingerprints.
    pub fn new(
        folder: OwnedFd,
        shuffle: Shuffle,
        block: usize,
        key: [u8; 32],
    ) -> Result<Self, StageError> {
        let mut names = Vec::new();
        let listed = Dir::read_from(&folder).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if !name.starts_with(b".") {
                    names.push(name.to_vec());
                }
            }
            Ok(())
        });
        listed.map_err(|errno| StageError::File {
            doing: "listing",
            file: String::new(),
            source: errno.into(),
        })?;
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Self {
            folder,
            names,
            reading: None,
            collected: vec![Vec::new(); shuffle.partitions as usize],
            shuffle,
            block,
            key,
            record: Vec::new(),
            waits: false,
            left: 0,
            account: Account::default(),
            has_read: false,
        })
    }

    /// Records that were read.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Whether something was read since the last call.
    pub fn take_has_read(&mut self) -> bool {
        std::mem::take(&mut self.has_read)
    }

    /// Makes the next block, or reads on for a while.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<Filled, StageError> {
        let mut read = 0;
        loop {
            if !self.waits {
                if read >= STEP {
                    return Ok(Filled::Nothing);
                }
                if !self.read_next()? {
                    return Ok(self.fill_rest(buffer));
                }
                read += self.record.len();
            }
            let partition = self.shuffle.partition(&self.record);
            let collected = &mut self.collected[partition as usize];
            if collected.is_empty() {
                // Memory is used as far as it is written.
                collected.reserve_exact(self.block);
                collected.extend_from_slice(&partition.to_le_bytes());
            }
            if collected.len() + self.record.len() > self.block {
                let len = take(collected, buffer);
                collected.extend_from_slice(&partition.to_le_bytes());
                self.waits = true;
                return Ok(Filled::Block(len));
            }
            collected.extend_from_slice(&self.record);
            self.waits = false;
        }
    }

    /// At the end: what was collected and fills no block.
    fn fill_rest(&mut self, buffer: &mut [u8]) -> Filled {
        while let Some(collected) = self.collected.get_mut(self.left) {
            self.left += 1;
            if collected.len() > PREFIX_LEN {
                let len = take(collected, buffer);
                *collected = Vec::new();
                return Filled::Block(len);
            }
        }
        Filled::End
    }

    /// The next record; false after the last one.
    fn read_next(&mut self) -> Result<bool, StageError> {
        let longest = self.block - PREFIX_LEN;
        loop {
            let Some(reading) = &mut self.reading else {
                let Some(name) = self.names.pop() else {
                    return Ok(false);
                };
                self.reading = Some(open(&self.folder, &name)?);
                continue;
            };
            let failed = |source| StageError::Named {
                doing: "reading",
                name: reading.name.clone(),
                source,
            };
            read_record(
                &mut reading.from,
                self.shuffle.records,
                longest,
                &mut self.record,
            )
            .map_err(failed)?;
            self.has_read = true;
            let len = self.record.len();
            if len == 0 {
                // An added end of the last line counts.
                let ends = reading.length..=reading.length + 1;
                let version = Version::of(reading.from.get_ref()).map_err(failed)?;
                if !ends.contains(&reading.offset) || !reading.version.is_kept_by(&version) {
                    return Err(StageError::Changed {
                        file: reading.name.clone(),
                    });
                }
                self.reading = None;
                continue;
            }
            if len > longest {
                return Err(StageError::LongRecord {
                    name: reading.name.clone(),
                    offset: reading.offset,
                    longest,
                });
            }
            if let Records::Fixed(length) = self.shuffle.records
                && len < length as usize
            {
                return Err(StageError::ShortRecord {
                    name: reading.name.clone(),
                    offset: reading.offset,
                    length,
                });
            }
            reading.offset += len as u64;
            count(&mut self.account, &self.key, &self.record);
            return Ok(true);
        }
    }
}

/// Moves what was collected to a block.
fn take(collected: &mut Vec<u8>, buffer: &mut [u8]) -> usize {
    let len = collected.len();
    buffer[..len].copy_from_slice(collected);
    collected.clear();
    len
}

/// Opens one file; links are not followed, since they may lead out of what an agent serves.
fn open(folder: &OwnedFd, name: &[u8]) -> Result<Reading, StageError> {
    let text = String::from_utf8_lossy(name).into_owned();
    let failed = |source: io::Error| StageError::Named {
        doing: "opening",
        name: text.clone(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP) => return Err(StageError::NoRegularFile { name: text }),
        other => other.map_err(|errno| failed(errno.into()))?,
    };
    let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(StageError::NoRegularFile { name: text });
    }
    // More is read ahead; best effort.
    let _ = fadvise(&file, 0, None, Advice::Sequential);
    Ok(Reading {
        version: Version::of(&file).map_err(failed)?,
        from: BufReader::with_capacity(READ_LEN, file.into()),
        name: text,
        offset: 0,
        length: stat.st_size as u64,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::time::Duration;

    use ropewalk_proto::stage::shuffle::{Key, split};

    use super::*;

    const KEY: [u8; 32] = [3; 32];

    fn dealing(folder: &Path, records: Records, partitions: u32, block: usize) -> Dealing {
        let shuffle = Shuffle {
            partitions,
            records,
            key: Key::Whole,
            sort: false,
        };
        let folder = File::open(folder).unwrap();
        Dealing::new(folder.into(), shuffle, block, KEY).unwrap()
    }

    /// All blocks, each with its partition.
    fn blocks(dealing: &mut Dealing) -> Result<Vec<(u32, Vec<u8>)>, StageError> {
        let mut buffer = vec![b'?'; dealing.block];
        let mut blocks = Vec::new();
        loop {
            match dealing.fill(&mut buffer)? {
                Filled::Nothing => {}
                Filled::End => return Ok(blocks),
                Filled::Block(len) => {
                    let (partition, records) = split(&buffer[..len]).unwrap();
                    assert!(!records.is_empty());
                    blocks.push((partition, records.to_vec()));
                }
            }
        }
    }

    /// Files are read in the order of their names without hidden ones; each record is in a block of its partition, and counted.
    #[test]
    fn records_are_collected_by_partition() {
        let folder = tempfile::tempdir().unwrap();
        let lines = |begin: u32| -> String {
            (begin..begin + 500)
                .map(|number| format!("{number}\n"))
                .collect()
        };
        let whole = lines(1000) + &lines(2000) + "last\n";
        for (name, text) in [
            ("b", format!("{}last", lines(2000))),
            ("a", lines(1000)),
            (".hidden", "hidden\n".into()),
            ("c", String::new()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        for (partitions, block) in [(1, 64), (3, 64), (7, 4096)] {
            let mut dealing = dealing(folder.path(), Records::Lines, partitions, block);
            let blocks = blocks(&mut dealing).unwrap();
            let mut account = Account::default();
            let mut found = Vec::new();
            for (partition, records) in &blocks {
                Records::Lines.each(records, |record| {
                    assert_eq!(dealing.shuffle.partition(record), *partition);
                    count(&mut account, &KEY, record);
                    found.push(String::from_utf8(record.to_vec()).unwrap());
                });
            }
            assert_eq!(account, dealing.account());
            assert_eq!((account.blocks, account.bytes), (1001, whole.len() as u64));
            if partitions == 1 {
                assert_eq!(found.concat(), whole);
            }
            assert!(dealing.take_has_read() && !dealing.take_has_read());
        }
    }

    /// A file that is written to while it is read is named, also where its length stays.
    #[test]
    fn changes_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "0123\n".repeat(20)).unwrap();
        let mut dealing = dealing(folder.path(), Records::Lines, 1, 64);
        let mut buffer = [0; 64];
        assert!(matches!(dealing.fill(&mut buffer), Ok(Filled::Block(_))));
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"x", 99).unwrap();
        let later = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(1);
        file.set_modified(later).unwrap();
        let error = blocks(&mut dealing).unwrap_err().to_string();
        assert!(error.contains("f has changed"), "{error}");
    }

    /// Records that fit no block, or are cut, are named by file and offset, and what is no file by its name.
    #[test]
    fn wrong_records_are_named() {
        let error = |records, make: fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("a"), "0123\n").unwrap();
            make(&folder.path().join("f"));
            let mut dealing = dealing(folder.path(), records, 2, 64);
            blocks(&mut dealing).unwrap_err().to_string()
        };
        let line = |len: usize| format!("ab\n{}", "x".repeat(len));
        let long = error(Records::Lines, |path| {
            std::fs::write(path, format!("ab\n{}\n", "x".repeat(60))).unwrap();
        });
        assert!(
            long.contains("f has") && long.contains("byte 3") && long.contains("--block"),
            "{long}"
        );
        // The end that it gets counts.
        let long = error(Records::Lines, |path| {
            std::fs::write(path, "x".repeat(60)).unwrap();
        });
        assert!(long.contains("byte 0"), "{long}");
        let short = error(Records::Fixed(5), |path| {
            std::fs::write(path, "1234567").unwrap()
        });
        assert!(
            short.contains("f ends") && short.contains("byte 5"),
            "{short}"
        );
        let folder = error(Records::Lines, |path| std::fs::create_dir(path).unwrap());
        let link = error(Records::Lines, |path| {
            std::os::unix::fs::symlink("a", path).unwrap();
        });
        for text in [folder, link] {
            assert!(text.contains("f is no regular file"), "{text}");
        }
        // Just fits.
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), line(59)).unwrap();
        let mut dealing = dealing(folder.path(), Records::Lines, 1, 64);
        let blocks = blocks(&mut dealing).unwrap();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[1].1.len(), 60);
    }
}
