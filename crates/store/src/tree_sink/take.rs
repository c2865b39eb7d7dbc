//! Chunks of files of DEST that are those of the source, taken over into the temporary files.
//!
//! A chunk is hashed where it is written from: a file that changes meanwhile is no danger. Where the file system shares blocks between
//! files the whole file is cloned first, and the clone is hashed.
//!
//! ```text
//!  threads that compare: chunk --> the same --> written --+
//!  a thread beside them:                                  +--> synced --> recorded, each time that enough are there
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use ropewalk_model::contents::{Aim, Candidate, Chunk, Comparison};
use ropewalk_model::journal::Unit;
use ropewalk_model::{Layout, RangeSet};

use super::contents::{Compare, Contents, Found, Remembered};
use super::same::{Check, Same};
use super::{Tree, TreeSink};
use crate::error::{Operation, StoreError};
use crate::open_files::{OpenFiles, lock};
use crate::staging::Target as _;
use crate::{holes, parallel, sys};

/// Bytes that are made safe together: a disk writes them in less than a second, and a killed run leaves no more of them undone.
const KEPT_EVERY: u64 = 64 << 20;

impl TreeSink {
    /// Takes over the chunks of files of DEST that are those of the source, into the temporary files; they are safe and recorded
    /// afterwards. What cannot be compared is sent.
    ///
    /// # Errors
    /// What kept chunks from being written.
    pub(super) fn take_chunks(
        &self,
        same: &Same,
        contents: &dyn Contents,
    ) -> Result<(), StoreError> {
        let tree = &self.staging.target;
        let mut candidates = tree.candidates(&self.staging.layout, &same.found);
        candidates.retain(|file| !tree.unchanged.contains(file.object));
        candidates.retain(|file| file.aim == Aim::Chunks);
        let adopted = lock(&tree.progress).adopted.clone();
        if tree.is_early() {
            let needed = candidates.iter().map(|file| {
                let there = adopted.clipped(file.space()).len_bytes();
                file.len - there
            });
            candidates.truncate(fitting(needed, sys::available(&tree.stage_parent)));
        }
        if candidates.is_empty() {
            return Ok(());
        }
        let remembered = Remembered(&same.known);
        let contents: &dyn Contents = match tree.compares.check {
            Check::Contents => &remembered,
            Check::Time => contents,
        };
        let writing = Writing {
            tree,
            layout: &self.staging.layout,
            files: OpenFiles::new(),
            dest: tree.dest_folder()?,
            found: &same.found,
            clones: AtomicBool::new(true),
            cloned: Mutex::default(),
        };
        writing.clone_all(&candidates, &adopted)?;
        writing.take(Comparison::without(candidates, adopted), contents)
    }
}

/// How many files, in order, have space as a whole beside the ones that they replace. Chunks of more of them would take the space that is
/// left, and no file could be completed, get its name and free the space of the older one.
fn fitting(needed: impl Iterator<Item = u64>, space: u64) -> usize {
    let mut left = space;
    let fit = needed.take_while(|needed| {
        let rest = left.checked_sub(*needed);
        left = rest.unwrap_or(0);
        rest.is_some()
    });
    fit.count()
}

/// Chunks that are being taken over.
struct Writing<'a> {
    tree: &'a Tree,
    layout: &'a Layout,
    files: OpenFiles,
    dest: Option<OwnedFd>,
    found: &'a BTreeMap<u32, Found>,
    // The file system may share blocks between files; those that are clones.
    clones: AtomicBool,
    cloned: Mutex<HashSet<u32>>,
}

impl Writing<'_> {
    fn old(&self, object: u32) -> Option<File> {
        let found = self.found.get(&object)?;
        self.tree.open_found(self.dest.as_ref(), object, found)
    }

    /// The file that a chunk is read from.
    fn open_old(&self, object: u32) -> Option<File> {
        match lock(&self.cloned).contains(&object) {
            true => self.tree.open_object(object).ok(),
            false => self.old(object),
        }
    }

    /// Makes the temporary files clones of those of DEST, as far as the file system has clones. Not those that an earlier transfer
    /// began to write.
    fn clone_all(&self, files: &[Candidate], adopted: &RangeSet) -> Result<(), StoreError> {
        for file in files {
            if !self.clones.load(Ordering::Relaxed) {
                break;
            }
            if !adopted.clipped(file.space()).is_empty() {
                continue;
            }
            let Some(old) = self.old(file.object) else {
                continue;
            };
            let new = self
                .files
                .get(file.object, || self.tree.open_object(file.object))?;
            match rustix::fs::ioctl_ficlone(&*new, &old) {
                Ok(()) => {
                    let path = || self.tree.path(file.object);
                    rustix::fs::ftruncate(&*new, file.len)
                        .map_err(|errno| StoreError::from_errno(Operation::Write, path(), errno))?;
                    lock(&self.cloned).insert(file.object);
                }
                Err(_) => self.clones.store(false, Ordering::Relaxed),
            }
        }
        Ok(())
    }

    fn write(&self, chunk: &Chunk, bytes: &[u8]) -> Result<(), StoreError> {
        let object = chunk.object;
        if lock(&self.cloned).contains(&object) {
            return Ok(());
        }
        let file = self.files.get(object, || self.tree.open_object(object))?;
        holes::write(&file, bytes, chunk.range.start).map_err(|error| {
            StoreError::from_io(Operation::Write, self.tree.path(object), &error)
                .with_missing(bytes.len() as u64)
        })
    }

    /// Compares chunks and takes those over that are the same. They are made safe while others are compared: the disk works meanwhile, and
    /// what a killed run had taken over the next one has.
    fn take(&self, left: Comparison, contents: &dyn Contents) -> Result<(), StoreError> {
        let taken = Taken::default();
        let open = |object| self.open_old(object);
        let visit = |chunk: &Chunk, bytes: &[u8], digest| {
            self.write(chunk, bytes)?;
            let range = chunk.space;
            taken.add(chunk.object, Unit { range, digest })
        };
        let compared = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("keep".into());
            // Where none can be started all is made safe below.
            let _ = thread.spawn_scoped(scope, || taken.keep_with(|taken| self.keep(taken)));
            // Ends that thread, also where this one panics.
            let _ending = Ending(&taken);
            let path = |object| self.tree.name_of(object);
            Compare::new(left, contents, &open, &visit, &path).run()
        });
        match compared {
            // What was taken over by then is as good.
            Ok(_) | Err(StoreError::NotCompared { .. }) => {}
            Err(error) => return Err(error),
        }
        self.keep(taken.rest()?)
    }

    /// Data first, then the record.
    fn keep(&self, taken: Vec<(u32, Unit)>) -> Result<(), StoreError> {
        self.sync(&taken)?;
        self.tree.note_taken(self.layout, taken);
        Ok(())
    }

    fn sync(&self, taken: &[(u32, Unit)]) -> Result<(), StoreError> {
        let mut objects: Vec<u32> = taken.iter().map(|(object, _)| *object).collect();
        objects.sort_unstable();
        objects.dedup();
        if objects.is_empty() {
            return Ok(());
        }
        parallel::for_each(&objects, |&object| {
            let file = self.files.get(object, || self.tree.open_object(object))?;
            rustix::fs::fdatasync(&*file).map_err(|errno| {
                StoreError::from_errno(Operation::Sync, self.tree.path(object), errno)
            })
        })?;
        self.tree.sync_names()
    }
}

/// Chunks that were written and are not safe yet.
#[derive(Debug, Default)]
struct Taken {
    state: Mutex<Unsafe>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Unsafe {
    units: Vec<(u32, Unit)>,
    bytes: u64,
    has_ended: bool,
    failure: Option<StoreError>,
}

impl Taken {
    fn add(&self, object: u32, unit: Unit) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.bytes += unit.range.len();
        state.units.push((object, unit));
        if state.bytes >= KEPT_EVERY {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Makes chunks safe whenever there are enough, until all are compared.
    fn keep_with(&self, keep: impl Fn(Vec<(u32, Unit)>) -> Result<(), StoreError>) {
        let mut state = lock(&self.state);
        loop {
            let waits = |state: &mut Unsafe| !state.has_ended && state.bytes < KEPT_EVERY;
            let waited = self.changed.wait_while(state, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return;
            }
            state.bytes = 0;
            let units = std::mem::take(&mut state.units);
            drop(state);
            let kept = keep(units);
            state = lock(&self.state);
            if kept.is_err() {
                state.failure = kept.err();
                return;
            }
        }
    }

    /// Those that are left at the end.
    fn rest(self) -> Result<Vec<(u32, Unit)>, StoreError> {
        let state = self.state.into_inner();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(state.units), Err)
    }
}

/// No further chunk is compared when this is dropped.
struct Ending<'a>(&'a Taken);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).has_ended = true;
        self.0.changed.notify_one();
    }
}

impl Tree {
    /// Notes and records chunks that are safe.
    fn note_taken(&self, layout: &Layout, taken: Vec<(u32, Unit)>) {
        let units: Vec<Unit> = taken.into_iter().map(|(_, unit)| unit).collect();
        let safe = RangeSet::from_ranges(units.iter().map(|unit| unit.range));
        self.record(layout, &safe, &units);
        let mut progress = lock(&self.progress);
        progress.adopted = progress.adopted.union(&safe);
        progress.taken = progress.taken.union(&safe);
        progress.units.extend(units);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ropewalk_model::Range;
    use ropewalk_model::journal::Unit;

    use super::{KEPT_EVERY, Taken};
    use crate::error::StoreError;

    fn unit(number: u64) -> (u32, Unit) {
        let range = Range::new(number * KEPT_EVERY, (number + 1) * KEPT_EVERY);
        let digest = [0; 32];
        (0, Unit { range, digest })
    }

    /// A disk that fails while chunks are compared ends the comparison: no further chunk counts as taken over, and the error is that of
    /// the disk.
    #[test]
    fn a_failed_sync_ends_the_comparison() {
        let taken = Taken::default();
        let (object, first) = unit(0);
        taken.add(object, first).unwrap();
        let full = StoreError::NotCompared {
            reason: "the disk failed".into(),
        };
        taken.keep_with(|units| {
            assert_eq!(units, [unit(0)]);
            // One that goes on has nothing more to wait for.
            super::lock(&taken.state).has_ended = true;
            Err(full.clone())
        });
        let (object, second) = unit(1);
        assert_eq!(taken.add(object, second), Err(full.clone()));
        assert_eq!(taken.rest(), Err(full));
    }

    /// What was added while others were made safe is left for the next time, or for the end.
    #[test]
    fn chunks_are_kept_once() {
        let taken = Taken::default();
        let kept = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                taken.keep_with(|units| {
                    super::lock(&kept).extend(units);
                    Ok(())
                });
            });
            let ending = super::Ending(&taken);
            for number in 0..3 {
                let (object, unit) = unit(number);
                taken.add(object, unit).unwrap();
            }
            let until = Instant::now() + Duration::from_secs(60);
            while !super::lock(&taken.state).units.is_empty() && Instant::now() < until {
                std::thread::yield_now();
            }
            let (object, mut short) = unit(3);
            short.range.end -= 1;
            taken.add(object, short).unwrap();
            drop(ending);
        });
        let kept = kept.into_inner().unwrap();
        let rest = taken.rest().unwrap();
        assert_eq!(kept, [unit(0), unit(1), unit(2)]);
        assert_eq!(rest.len(), 1);
    }
}
