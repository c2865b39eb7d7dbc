//! The last process of a shuffle: a file for each of its partitions, sorted where that is wanted, and synced at the end.

use std::fs::File;
use std::io::{self, PipeReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ropewalk_lane::open_files;
use ropewalk_proto::stage::account::Account;
use ropewalk_proto::stage::shuffle::{Shuffle, longest_record, part_name, split};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::error::StageError;
use crate::records::count;
use crate::sort::Order;

/// Records that are sorted in memory take so much, or the process's buffers where those are more.
const SORT_MEMORY: usize = 64 << 20;

/// Names of files in the folder while partitions are sorted.
const SORTED: &str = "sorted";
const SCRATCH: &str = "runs";

/// One partition.
struct Part {
    number: u32,
    file: File,
    account: Account,
}

/// All partitions of a node, while they are sorted and synced.
struct Ending {
    result: Receiver<Result<Vec<Account>, StageError>>,
    // Closed at its end.
    ended: PipeReader,
}

/// The partitions of one node.
pub(crate) struct Parts {
    settings: Arc<Settings>,
    parts: Vec<Part>,
    ending: Option<Ending>,
    // When all is done: of each partition.
    accounts: Option<Vec<Account>>,
}

struct Settings {
    folder: OwnedFd,
    shuffle: Shuffle,
    node: u32,
    nodes: u32,
    key: [u8; 32],
    order: Order,
}

fn named<'n>(doing: &'static str, name: &'n str) -> impl Fn(io::Error) -> StageError + 'n {
    move |source| StageError::Named {
        doing,
        name: name.to_owned(),
        source,
    }
}

impl Parts {
    /// Makes the files of all partitions of a node in a folder.
    ///
    /// * `key`: of fingerprints.
    /// * `memory`: bytes of the process's buffers.
    pub fn new(
        folder: OwnedFd,
        shuffle: Shuffle,
        (node, nodes): (u32, u32),
        key: [u8; 32],
        (block, memory): (u64, usize),
    ) -> Result<Self, StageError> {
        // All partitions are open at once.
        open_files::raise_limit();
        let order = Order::new(&shuffle, longest_record(block), memory.max(SORT_MEMORY));
        let settings = Settings {
            folder,
            shuffle,
            node,
            nodes,
            key,
            order,
        };
        let numbers = (node..shuffle.partitions).step_by(nodes as usize);
        let parts = numbers.map(|number| {
            let name = part_name(number);
            let file = settings.create(&name).map_err(named("making", &name))?;
            Ok(Part {
                number,
                file,
                account: Account::default(),
            })
        });
        Ok(Self {
            parts: parts.collect::<Result<_, StageError>>()?,
            settings: Arc::new(settings),
            ending: None,
            accounts: None,
        })
    }

    /// Appends the records of a block to their partition.
    pub fn write(&mut self, block: &[u8]) -> Result<(), StageError> {
        let (node, nodes) = (self.settings.node, self.settings.nodes);
        let (number, records) = split(block).ok_or(StageError::WrongPartition)?;
        if number % nodes != node {
            return Err(StageError::WrongPartition);
        }
        let part = self.parts.get_mut((number / nodes) as usize);
        let part = part.ok_or(StageError::WrongPartition)?;
        let written = part.file.write_all(records);
        written.map_err(named("writing", &part_name(number)))?;
        let Settings { shuffle, key, .. } = &*self.settings;
        // Sorted records are counted when they are written for the last time.
        if !shuffle.sort {
            let account = &mut part.account;
            shuffle
                .records
                .each(records, |record| count(account, key, record));
        }
        Ok(())
    }

    /// Goes on sorting and syncing; true once all is done.
    pub fn finish(&mut self) -> Result<bool, StageError> {
        if self.accounts.is_some() {
            return Ok(true);
        }
        let thread = |source| StageError::System {
            doing: "starting a thread",
            source,
        };
        let Some(ending) = &self.ending else {
            let (settings, parts) = (self.settings.clone(), std::mem::take(&mut self.parts));
            let (ended, end) = io::pipe().map_err(thread)?;
            let (sender, result) = channel();
            let work = move || {
                let accounts = parts.into_iter().map(|part| settings.end(part));
                let _ = sender.send(accounts.collect());
                drop(end);
            };
            let ending = std::thread::Builder::new().name("parts".into());
            ending.spawn(work).map_err(thread)?;
            self.ending = Some(Ending { result, ended });
            return Ok(false);
        };
        match ending.result.try_recv() {
            Ok(result) => {
                self.accounts = Some(result?);
                self.ending = None;
                Ok(true)
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => {
                Err(thread(io::Error::other("the thread of partitions failed")))
            }
        }
    }

    /// Readable once sorting and syncing have ended, while they go on.
    pub fn ends(&self) -> Option<BorrowedFd<'_>> {
        self.ending.as_ref().map(|ending| ending.ended.as_fd())
    }

    /// All records that were written, and the least and most of a partition; known at the end.
    pub fn records(&self) -> (Account, u64, u64) {
        let accounts = self.accounts.as_deref().unwrap_or_default();
        let mut sum = Account::default();
        for account in accounts {
            sum += *account;
        }
        let counts = || accounts.iter().map(|account| account.blocks);
        let (least, most) = (counts().min(), counts().max());
        (sum, least.unwrap_or(0), most.unwrap_or(0))
    }
}

impl Settings {
    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        Ok(openat(&self.folder, name, flags, mode)?.into())
    }

    /// A file without a name.
    fn scratch(&self) -> io::Result<File> {
        let file = self.create(SCRATCH)?;
        unlinkat(&self.folder, SCRATCH, AtFlags::empty())?;
        Ok(file)
    }

    /// Makes a partition what it stays, and durable.
    fn end(&self, part: Part) -> Result<Account, StageError> {
        let name = part_name(part.number);
        let mut account = part.account;
        let mut file = part.file;
        if self.shuffle.sort {
            let mut sort = || {
                let sorted = self.create(SORTED)?;
                self.order.sort(
                    &file,
                    &sorted,
                    || self.scratch(),
                    |record| count(&mut account, &self.key, record),
                )?;
                renameat(&self.folder, SORTED, &self.folder, &*name)?;
                Ok(sorted)
            };
            file = sort().map_err(named("sorting", &name))?;
        }
        file.sync_all().map_err(named("syncing", &name))?;
        Ok(account)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::stage::shuffle::{Key, Records};

    use super::*;

    fn parts(folder: &std::path::Path, sort: bool) -> Parts {
        let shuffle = Shuffle {
            partitions: 5,
            records: Records::Lines,
            key: Key::Whole,
            sort,
        };
        let folder = File::open(folder).unwrap().into();
        Parts::new(folder, shuffle, (1, 2), [3; 32], (64, 1000)).unwrap()
    }

    fn block(number: u32, records: &str) -> Vec<u8> {
        [&number.to_le_bytes()[..], records.as_bytes()].concat()
    }

    /// Each partition of the node has a file, empty ones too; what is written is counted, and nothing else is left.
    #[test]
    fn partitions_are_files() {
        for sort in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut parts = parts(folder.path(), sort);
            for (number, records) in [(3, "b\na\n"), (3, "c\n")] {
                parts.write(&block(number, records)).unwrap();
            }
            // What goes on at the files is reported as syncing.
            assert!(!parts.finish().unwrap() && parts.ends().is_some());
            while !parts.finish().unwrap() {
                std::thread::yield_now();
            }
            assert!(parts.ends().is_none());
            let (account, least, most) = parts.records();
            assert_eq!((account.blocks, account.bytes, least, most), (3, 6, 0, 3));
            let mut expected = Account::default();
            for record in ["a\n", "b\n", "c\n"] {
                count(&mut expected, &[3; 32], record.as_bytes());
            }
            assert_eq!(account, expected);
            let text = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
            let expected = if sort { "a\nb\nc\n" } else { "b\na\nc\n" };
            assert_eq!(text("part-00001"), "");
            assert_eq!(text("part-00003"), expected);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }

    /// Blocks of partitions of other nodes, or of none, are refused.
    #[test]
    fn wrong_partitions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = parts(folder.path(), false);
        for wrong in [block(0, "a\n"), block(5, "a\n"), b"abc".to_vec()] {
            let error = parts.write(&wrong).unwrap_err();
            assert!(matches!(error, StageError::WrongPartition), "{error}");
        }
    }
}
