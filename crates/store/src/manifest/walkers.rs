//! Reading a large tree with several threads: folders that wait, and parts of the names of large ones, are a common stack.
//!
//! A network file system answers each call after a round trip. Where the first names of a folder are slow, others help at once, they are more than
//! hosts have cores, and pieces are small. What they find is sorted afterwards.

use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::EntryKind;
use super::scan::Walk;
use crate::error::StoreError;

/// Threads that read a large tree, and one that is slow.
const WALKERS: usize = 8;
const WALKERS_SLOW: usize = 32;

/// Entries that one thread reads before others help it.
const ALONE_MAX: usize = 2048;

/// Names of one folder that are one piece of work, and where they are slow.
const NAMES_MAX: usize = 512;
const NAMES_MAX_SLOW: usize = 16;

/// Names of each folder whose time decides, and of all folders at least.
const SAMPLE: usize = 16;

/// A name takes 1 to 10 microseconds where it is in memory.
const SLOW_TIME: Duration = Duration::from_micros(100);

/// What a thread does at a time.
enum Work {
    /// Lists a folder.
    Folder(Vec<u8>),
    /// Looks at names in a folder that is listed.
    Names {
        opened: Arc<OwnedFd>,
        path: Vec<u8>,
        names: Vec<Vec<u8>>,
    },
}

/// What is left to do, by all threads.
struct Left {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Vec<Work>,
    // Threads that may find more.
    busy: usize,
    has_failed: bool,
}

impl Left {
    fn new(waiting: Vec<Work>) -> Self {
        Self {
            state: Mutex::new(State {
                waiting,
                busy: 0,
                has_failed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The next piece, and what says that it is being done. Waits for one; `None` at the end.
    fn next(&self) -> Option<(Work, Busy<'_>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.has_failed {
                return None;
            }
            if let Some(work) = state.waiting.pop() {
                state.busy += 1;
                return Some((work, Busy(self)));
            }
            if state.busy == 0 {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// A thread does something; others wait for what it finds.
struct Busy<'a>(&'a Left);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.busy -= 1;
            state.has_failed |= thread::panicking();
        });
    }
}

impl Walk<'_> {
    /// Adds all below a folder.
    pub(super) fn below(&mut self, folder: Vec<u8>) -> Result<(), StoreError> {
        let mut waiting = vec![Work::Folder(folder)];
        let mut read = 0;
        while let Some(work) = waiting.pop() {
            let before = self.found.len();
            waiting.extend(self.work(work)?);
            read += self.found.len() - before;
            let is_large = matches!(waiting.last(), Some(Work::Names { .. }));
            if waiting.len() > 1 && (is_large || self.is_slow() || read > ALONE_MAX) {
                return self.below_together(waiting);
            }
        }
        Ok(())
    }

    fn below_together(&mut self, waiting: Vec<Work>) -> Result<(), StoreError> {
        let left = Left::new(waiting);
        let walkers = match self.is_slow() {
            true => WALKERS_SLOW,
            false => WALKERS,
        };
        let parts: Vec<Self> = (1..walkers).map(|_| self.part()).collect();
        let ended = thread::scope(|scope| {
            let mut threads = Vec::new();
            for mut part in parts {
                let left = &left;
                let help = move || {
                    part.help(left)?;
                    part.sort();
                    Ok::<_, StoreError>(part)
                };
                let named = thread::Builder::new().name("walk".into());
                match named.spawn_scoped(scope, help) {
                    Ok(thread) => threads.push(thread),
                    // The others do it.
                    Err(_) => break,
                }
            }
            let own = self.help(&left);
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            own.map(|()| ended)
        })?;
        for part in ended {
            self.join(part.unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(())
    }

    /// Does what is left, until nothing is, or a thread has failed.
    fn help(&mut self, left: &Left) -> Result<(), StoreError> {
        while let Some((work, busy)) = left.next() {
            match self.work(work) {
                Ok(more) => left.change(|state| state.waiting.extend(more)),
                Err(error) => {
                    left.change(|state| state.has_failed = true);
                    return Err(error);
                }
            }
            drop(busy);
        }
        Ok(())
    }

    /// Does one piece; what it leads to.
    fn work(&mut self, work: Work) -> Result<Vec<Work>, StoreError> {
        let before = self.found.len();
        let mut more = match work {
            Work::Folder(path) => match self.names_in(&path)? {
                Some((opened, names)) => self.listed(opened, path, names)?,
                None => return Ok(Vec::new()),
            },
            Work::Names {
                opened,
                path,
                names,
            } => {
                self.add_names(opened.as_fd(), &path, &names)?;
                Vec::new()
            }
        };
        let folders = self.found[before..]
            .iter()
            .filter(|(entry, _)| entry.kind == EntryKind::Directory);
        let folders = folders.map(|(entry, _)| Work::Folder(entry.path.clone()));
        more.splice(0..0, folders);
        Ok(more)
    }

    /// Whether the file system answers slowly, as one of a network does.
    fn is_slow(&self) -> bool {
        let (count, took) = self.looked_at;
        count as usize >= SAMPLE && took > SLOW_TIME * count
    }

    /// Looks at the first names of a folder, and at the others unless they are many, or slow: what is left of them.
    fn listed(
        &mut self,
        opened: OwnedFd,
        path: Vec<u8>,
        mut names: Vec<Vec<u8>>,
    ) -> Result<Vec<Work>, StoreError> {
        let rest = names.split_off(names.len().min(SAMPLE));
        let began = Instant::now();
        self.add_names(opened.as_fd(), &path, &names)?;
        self.looked_at.0 = self.looked_at.0.saturating_add(names.len() as u32);
        self.looked_at.1 += began.elapsed();
        let most = match self.is_slow() {
            true => NAMES_MAX_SLOW,
            false => NAMES_MAX,
        };
        if rest.len() <= most {
            self.add_names(opened.as_fd(), &path, &rest)?;
            return Ok(Vec::new());
        }
        let opened = Arc::new(opened);
        let mut rest = rest.into_iter().peekable();
        let pieces = std::iter::from_fn(|| {
            rest.peek()?;
            Some(Work::Names {
                opened: Arc::clone(&opened),
                path: path.clone(),
                names: rest.by_ref().take(most).collect(),
            })
        });
        Ok(pieces.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Filter;
    use crate::manifest::{Keep, Scan, Scanning};

    /// A walk that finds its file system slow has small pieces and many threads, and finds the same.
    #[test]
    fn a_slow_walk_finds_the_same() {
        let place = tempfile::tempdir().unwrap();
        for (folder, files) in [("a", 40), ("a/b", 3), ("a/b/c", 700), ("d", 0), ("e", 17)] {
            fs::create_dir(place.path().join(folder)).unwrap();
            for file in 0..files {
                let path = place.path().join(folder).join(file.to_string());
                fs::write(path, [1; 3]).unwrap();
            }
        }
        let root = fs::File::open(place.path()).unwrap();
        let filter = Filter::default();
        let scanning = Scanning::default();
        let new = || {
            let keep = Keep::default();
            Walk::new(place.path(), root.as_fd(), keep, &filter, b"", &scanning)
        };
        let found = |mut walk: Walk<'_>| {
            walk.below(Vec::new()).unwrap();
            let mut found: Vec<Vec<u8>> = walk.found.into_iter().map(|(e, _)| e.path).collect();
            found.sort_unstable();
            found
        };
        let slow = || {
            let mut walk = new();
            walk.looked_at = (SAMPLE as u32, Duration::from_secs(60));
            walk
        };
        let pieces = slow().work(Work::Folder(b"a/b/c".to_vec())).unwrap();
        assert_eq!(pieces.len(), (700 - SAMPLE).div_ceil(NAMES_MAX_SLOW));
        assert_eq!(found(new()).len(), 5 + 40 + 3 + 700 + 17);
        assert_eq!(found(slow()), found(new()));
    }

    /// What is found is counted, by all threads; a walk that is stopped finds no more, and fails.
    #[test]
    fn a_walk_is_counted_and_can_be_stopped() {
        let place = tempfile::tempdir().unwrap();
        for folder in 0..20 {
            let folder = place.path().join(folder.to_string());
            fs::create_dir(&folder).unwrap();
            (0..200).for_each(|file| fs::write(folder.join(file.to_string()), []).unwrap());
        }
        let scanning = Scanning::default();
        let scan = || {
            let (keep, filter) = (Keep::default(), Filter::default());
            Scan::read_filtered(place.path(), keep, &filter, b"", &scanning)
        };
        assert_eq!(scan().unwrap().manifest.entries.len(), 1 + 20 + 4000);
        assert_eq!(scanning.entries(), 20 + 4000);
        scanning.stop();
        let error = scan().unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
        assert_eq!(scanning.entries(), 20 + 4000);
    }
}
