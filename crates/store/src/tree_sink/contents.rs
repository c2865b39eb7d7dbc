//! Files of DEST compared with those of the source by the hashes of their chunks, which the source computes where it is. Bytes that are
//! the same are not sent.
//!
//! ```text
//!  survey: files of one size ---- compare ----> the same: they stay, and get the source's time and mode
//!                                        |
//!                                        +----> not: their chunks that are the same --+
//!  --delta: files of any size ------------- compare ---- chunks that are the same ----+--> copied into the temporary file, safe, recorded
//! ```
//!
//! Several threads compare, each with a line of its own to the source. While this host hashes a chunk the source hashes the next ones.
//! Small files that follow each other have one hash: a question for each would cost more than reading them.
//! What is done with chunks that are the same is in `take`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ropewalk_model::contents::{Aim, Candidate, Chunk, Comparison};
use ropewalk_model::{CHUNK_LEN, Layout, Range, digest};
use rustix::fs::{Advice, FileType, Mode, OFlags, Stat};

use super::Tree;
use super::same::{Check, Same};
use crate::error::StoreError;
use crate::manifest::Entry;
use crate::open_files::{ADVISED_MIN, lock};
use crate::sys;

/// Threads that compare at the same time, at most: each has a connection, and a chunk in memory at both ends.
const THREADS_MAX: usize = 8;

/// Files, and bytes, that a thread has asked for and not compared yet: small files over a long path, and work for a disk. Chunks of one
/// file count one by one.
const AHEAD_FILES: usize = 2048;
const AHEAD_BYTES: u64 = 16 << 20;

/// Files that a thread takes at once, but at least one chunk: more would leave the others without, of few files.
const TAKEN_MAX: usize = 32;

/// Of smaller files no chunks are taken over: they are sent in less time than two hosts need to look at them.
const DELTA_LEN_MIN: u64 = CHUNK_LEN;

/// The hashes of the source's bytes.
pub trait Contents: fmt::Debug + Sync {
    /// A line to the source, for one thread.
    ///
    /// # Errors
    /// In words, where there is none, or no further one.
    fn open(&self) -> Result<Box<dyn Hashes + '_>, String>;

    /// Whether one source has all these bytes of the data space, so that they can have one hash.
    fn is_of_one(&self, _range: Range) -> bool {
        true
    }

    /// So many bytes of so many are compared.
    fn note(&self, _done: u64, _total: u64) {}
}

/// One line to the source.
pub trait Hashes {
    /// Asks for the BLAKE3 of each of these ranges of the data space, of at most [`CHUNK_LEN`] bytes each; does not wait. A range may
    /// have the bytes of several files.
    ///
    /// # Errors
    /// In words, where the source does not answer any more.
    fn ask(&mut self, ranges: &[Range]) -> Result<(), String>;

    /// The next answer, in the order of the questions; `None` where the source cannot read the bytes.
    ///
    /// # Errors
    /// As [`Hashes::ask`].
    fn answer(&mut self) -> Result<Option<[u8; 32]>, String>;
}

/// What tells a file of DEST from another one of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    pub len: u64,
    modified: (i64, i64),
    // Of the inode: a file that was written to may have been given its old time again.
    changed: (i64, i64),
}

impl Identity {
    pub fn of(stat: &Stat) -> Self {
        // Their types are not the same on all systems.
        #[allow(clippy::useless_conversion)]
        Self {
            device: stat.st_dev.into(),
            inode: stat.st_ino.into(),
            len: stat.st_size as u64,
            modified: (stat.st_mtime.into(), stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime.into(), stat.st_ctime_nsec as i64),
        }
    }

    /// Whether a file is this one.
    ///
    /// * `is_given`: it may have been given the entry's time, and what else the entry has, since.
    pub fn is(&self, stat: &Stat, entry: &Entry, is_given: bool) -> bool {
        let found = Self::of(stat);
        if !is_given {
            return found == *self;
        }
        let given = Self {
            changed: self.changed,
            ..found
        };
        let timed = Self {
            modified: self.modified,
            ..given
        };
        given == *self || timed == *self && super::same::is_file(stat, entry)
    }
}

/// A file of DEST that has the name of one of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub identity: Identity,
    /// It can stay if its contents are the same.
    pub may_stay: bool,
    /// It may have another time, mode, owner or other attributes.
    pub differs: bool,
}

/// Hashes of chunks that DEST has, by the first byte in the data space.
pub(super) type Known = HashMap<u64, [u8; 32]>;

/// Hashes that were asked for before.
#[derive(Debug)]
pub(super) struct Remembered<'a>(pub &'a Known);

impl Contents for Remembered<'_> {
    fn open(&self) -> Result<Box<dyn Hashes + '_>, String> {
        Ok(Box::new((self, VecDeque::new())))
    }
}

impl Hashes for (&Remembered<'_>, VecDeque<u64>) {
    fn ask(&mut self, ranges: &[Range]) -> Result<(), String> {
        self.1.extend(ranges.iter().map(|range| range.start));
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<[u8; 32]>, String> {
        let asked = self.1.pop_front();
        Ok(asked.and_then(|start| self.0.0.get(&start).copied()))
    }
}

/// What is done with a chunk of a file that is the same: its bytes, and their hash.
type Visit<'a> = &'a (dyn Fn(&Chunk, &[u8], [u8; 32]) -> Result<(), StoreError> + Sync);

/// Files that are compared by several threads.
pub(super) struct Compare<'a> {
    contents: &'a dyn Contents,
    // Opens the file that has the bytes here.
    open: &'a (dyn Fn(u32) -> Option<File> + Sync),
    visit: Visit<'a>,
    // Of a file, for messages.
    path: &'a (dyn Fn(u32) -> PathBuf + Sync),
    left: Mutex<Comparison>,
    // Files that no source can read.
    unread: Mutex<HashSet<u32>>,
    has_failed: AtomicBool,
}

impl<'a> Compare<'a> {
    /// * `open`: opens the file that has the bytes here.
    /// * `visit`: what is done with a chunk of one file that is the same.
    /// * `path`: of a file, for messages.
    pub fn new(
        left: Comparison,
        contents: &'a dyn Contents,
        open: &'a (dyn Fn(u32) -> Option<File> + Sync),
        visit: Visit<'a>,
        path: &'a (dyn Fn(u32) -> PathBuf + Sync),
    ) -> Self {
        Self {
            contents,
            open,
            visit,
            path,
            left: Mutex::new(left),
            unread: Mutex::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Compares all. Where the source cannot be asked by several threads fewer do it. Gives the files, too, that no source can read.
    pub fn run(self) -> Result<(Comparison, HashSet<u32>), StoreError> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (bytes, files) = {
            let left = lock(&self.left);
            (left.total_bytes(), left.count())
        };
        if bytes == 0 {
            return Ok(self.end());
        }
        // Of little a thread does all before another one has a line to the source.
        let useful = bytes / AHEAD_BYTES + (files / TAKEN_MAX) as u64 + 1;
        let threads = threads.clamp(2, THREADS_MAX);
        let threads = threads.min(usize::try_from(useful).unwrap_or(usize::MAX));
        let ended = std::thread::scope(|scope| {
            let more = (1..threads).map_while(|_| {
                let thread = std::thread::Builder::new().name("compare".into());
                thread.spawn_scoped(scope, || self.help(false)).ok()
            });
            let more: Vec<_> = more.collect();
            let own = self.help(true);
            let ended = more.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            own.and(ended.collect::<Result<Vec<()>, _>>())
        });
        ended?;
        Ok(self.end())
    }

    fn end(self) -> (Comparison, HashSet<u32>) {
        let left = self.left.into_inner();
        let unread = self.unread.into_inner();
        (
            left.unwrap_or_else(PoisonError::into_inner),
            unread.unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// * `is_needed`: no other thread does it where this one cannot ask the source.
    fn help(&self, is_needed: bool) -> Result<(), StoreError> {
        let done = match self.contents.open() {
            Ok(mut hashes) => self.compare(hashes.as_mut()),
            Err(reason) if is_needed => Err(StoreError::NotCompared { reason }),
            Err(_) => Ok(()),
        };
        if done.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        done
    }

    fn compare(&self, hashes: &mut dyn Hashes) -> Result<(), StoreError> {
        let failed = |reason| StoreError::NotCompared { reason };
        let mut here = Here {
            open: self.open,
            file: None,
            buffer: vec![0; CHUNK_LEN as usize],
        };
        let mut asked: VecDeque<Chunk> = VecDeque::new();
        let (mut files, mut bytes) = (0, 0);
        let is_of_one = |range| self.contents.is_of_one(range);
        while !self.has_failed.load(Ordering::Relaxed) {
            if files < AHEAD_FILES && bytes < AHEAD_BYTES {
                let next = lock(&self.left).next(TAKEN_MAX, AHEAD_BYTES - bytes, is_of_one);
                let ranges: Vec<Range> = next.iter().map(|chunk| chunk.space).collect();
                bytes += ranges.iter().map(|range| range.len()).sum::<u64>();
                files += next.iter().map(Chunk::files).sum::<usize>();
                if !ranges.is_empty() {
                    hashes.ask(&ranges).map_err(failed)?;
                }
                asked.extend(next);
            }
            let Some(chunk) = asked.pop_front() else {
                break;
            };
            (files, bytes) = (files - chunk.files(), bytes - chunk.space.len());
            let pieces = lock(&self.left).pieces(&chunk);
            let own = here.read(&pieces);
            let theirs = hashes.answer().map_err(|reason| {
                let path = (self.path)(chunk.object);
                failed(format!("{reason}; asked for the hash of {path:?}"))
            })?;
            if theirs.is_none() && chunk.files() == 1 {
                lock(&self.unread).insert(chunk.object);
            }
            let same = own.zip(theirs).filter(|((_, own), theirs)| own == theirs);
            if let Some(((read, hash), _)) = same
                && chunk.files() == 1
            {
                (self.visit)(&chunk, read, hash)?;
            }
            let is_same = same.is_some();
            let mut left = lock(&self.left);
            left.handle(&chunk, is_same);
            let (done, total) = (left.done_bytes(), left.total_bytes());
            drop(left);
            self.contents.note(done, total);
        }
        Ok(())
    }
}

/// The file that a thread reads.
struct Here<'a> {
    open: &'a (dyn Fn(u32) -> Option<File> + Sync),
    file: Option<(u32, Option<File>)>,
    buffer: Vec<u8>,
}

impl Here<'_> {
    /// The bytes of a chunk, and their hash; `None` where they cannot be read, or there are none.
    ///
    /// * `pieces`: of files.
    fn read(&mut self, pieces: &[(u32, Range)]) -> Option<(&[u8], [u8; 32])> {
        let mut len = 0;
        for (object, range) in pieces {
            if self.file.as_ref().is_none_or(|(known, _)| known != object) {
                self.file = Some((*object, (self.open)(*object)));
            }
            let (_, file) = self.file.as_ref()?;
            let end = len + range.len() as usize;
            let bytes = self.buffer.get_mut(len..end)?;
            file.as_ref()?.read_exact_at(bytes, range.start).ok()?;
            len = end;
        }
        let bytes = self.buffer.get(..len).filter(|bytes| !bytes.is_empty())?;
        let hash = digest(bytes);
        Some((bytes, hash))
    }
}

impl Tree {
    /// Compares files with those of the source: those that are the same stay, and are known again. Of others the chunks that are the
    /// same are remembered, where they are wanted.
    pub(super) fn compare_found(
        &mut self,
        layout: &Layout,
        same: &mut Same,
        contents: &dyn Contents,
    ) -> Result<(), StoreError> {
        let candidates = self.candidates(layout, &same.found);
        let known: Mutex<Vec<(Chunk, [u8; 32])>> = Mutex::default();
        let delta = self.compares.delta;
        let dest = self.dest_folder()?;
        let open = |object| self.open_found(dest.as_ref(), object, same.found.get(&object)?);
        let visit = |chunk: &Chunk, _: &[u8], hash| {
            if delta {
                lock(&known).push((*chunk, hash));
            }
            Ok(())
        };
        let path = |object| self.name_of(object);
        let left = Comparison::new(candidates);
        let (left, _) = Compare::new(left, contents, &open, &visit, &path).run()?;
        let whole: Vec<u32> = left.same_files().collect();
        for object in whole {
            let found = same.found.get(&object).copied();
            if let Some(found) = found.filter(|found| found.may_stay) {
                same.insert_found(object, &found);
                self.compared.insert(object, found.identity);
            }
        }
        let known = known.into_inner().unwrap_or_else(PoisonError::into_inner);
        let known = known.into_iter();
        let of_changed = known.filter(|(chunk, _)| !self.compared.contains_key(&chunk.object));
        same.known = of_changed
            .map(|(chunk, hash)| (chunk.space.start, hash))
            .collect();
        Ok(())
    }

    /// The files that are the same, of these, and those that no source can read.
    pub(super) fn same_of(
        &self,
        layout: &Layout,
        dest: Option<&OwnedFd>,
        found: &BTreeMap<u32, Found>,
        contents: &dyn Contents,
    ) -> Result<(HashSet<u32>, HashSet<u32>), StoreError> {
        let open = |object| self.open_found(dest, object, found.get(&object)?);
        let all = Comparison::new(self.candidates(layout, found));
        let path = |object| self.name_of(object);
        let visit = |_: &Chunk, _: &[u8], _| Ok(());
        let (left, unread) = Compare::new(all, contents, &open, &visit, &path).run()?;
        Ok((left.same_files().collect(), unread))
    }

    /// A file as its source names it, for messages.
    pub(super) fn name_of(&self, object: u32) -> PathBuf {
        match self.entries.get(object as usize) {
            Some(entry) if !entry.path.is_empty() => OsStr::from_bytes(&entry.path).into(),
            _ => self.dest.clone(),
        }
    }

    /// DEST, where it is a folder.
    pub(super) fn dest_folder(&self) -> Result<Option<OwnedFd>, StoreError> {
        let there = Self::existing(&self.parent, &self.name, &self.entries, &self.dest)?;
        there.map(|_| self.open_dest()).transpose()
    }

    /// What is compared of files that were found.
    pub(super) fn candidates(
        &self,
        layout: &Layout,
        found: &BTreeMap<u32, Found>,
    ) -> Vec<Candidate> {
        let pieces = layout.pieces().iter();
        let starts: HashMap<u32, u64> = pieces
            .map(|piece| (piece.object, piece.range.start))
            .collect();
        let candidates = found.iter().filter_map(|(object, found)| {
            let entry = &self.entries[*object as usize];
            let has_chunks = self.compares.delta && entry.len() >= DELTA_LEN_MIN;
            let is_wanted = found.may_stay && self.compares.check == Check::Contents;
            let aim = match (has_chunks, is_wanted) {
                (true, _) => Aim::Chunks,
                (false, true) => Aim::Whole,
                (false, false) => return None,
            };
            Some(Candidate {
                object: *object,
                // An empty file has no place.
                start: starts.get(object).copied().unwrap_or(0),
                len: entry.len(),
                len_here: found.identity.len,
                aim,
            })
        });
        candidates.collect()
    }

    /// A file of DEST, if it is the one that was found.
    pub(super) fn open_found(
        &self,
        dest: Option<&OwnedFd>,
        object: u32,
        found: &Found,
    ) -> Option<File> {
        let entry = &self.entries[object as usize];
        let (folder, path) = match dest {
            Some(dest) => (dest.as_fd(), &entry.path),
            None => (self.parent.as_fd(), &self.name),
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = sys::open_beneath(folder, path, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&opened).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || Identity::of(&stat) != found.identity {
            return None;
        }
        if entry.len() > ADVISED_MIN {
            // Only advice.
            let _ = rustix::fs::fadvise(&opened, 0, None, Advice::Sequential);
        }
        Some(File::from(opened))
    }
}
