//! Reading a large tree with several threads: folders that wait, and parts of the names of large ones, are a common stack.
//!
//! A network file system answers each call after a round trip, so there are more threads than most hosts have cores. What they find
//! is sorted afterwards.

use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use super::EntryKind;
use super::scan::Walk;
use crate::error::StoreError;

/// Threads that read a large tree.
const WALKERS: usize = 8;

/// Entries that one thread reads before others help it.
const ALONE_MAX: usize = 2048;

/// Names of one folder that are one piece of work.
const NAMES_MAX: usize = 512;

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
            if waiting.len() > 1 && (is_large || read > ALONE_MAX) {
                return self.below_together(waiting);
            }
        }
        Ok(())
    }

    fn below_together(&mut self, waiting: Vec<Work>) -> Result<(), StoreError> {
        let left = Left::new(waiting);
        let parts: Vec<Self> = (1..WALKERS).map(|_| self.part()).collect();
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
        match work {
            Work::Folder(path) => {
                let Some((opened, names)) = self.names_in(&path)? else {
                    return Ok(Vec::new());
                };
                if names.len() > NAMES_MAX {
                    let opened = Arc::new(opened);
                    let mut names = names.into_iter().peekable();
                    let pieces = std::iter::from_fn(|| {
                        names.peek()?;
                        Some(Work::Names {
                            opened: Arc::clone(&opened),
                            path: path.clone(),
                            names: names.by_ref().take(NAMES_MAX).collect(),
                        })
                    });
                    return Ok(pieces.collect());
                }
                self.add_names(opened.as_fd(), &path, &names)?;
            }
            Work::Names {
                opened,
                path,
                names,
            } => self.add_names(opened.as_fd(), &path, &names)?,
        }
        let folders = self.found[before..]
            .iter()
            .filter(|(entry, _)| entry.kind == EntryKind::Directory);
        Ok(folders
            .map(|(entry, _)| Work::Folder(entry.path.clone()))
            .collect())
    }
}
