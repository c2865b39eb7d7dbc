//! A bounded set of open files.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;

/// Most files that one source or sink keeps open. A quarter of the usual limit of 1024 a process, so
/// that two sources, two sinks and their lanes fit.
pub const OPEN_FILES_MAX: usize = 256;

/// Longer files are worth the call that advises the kernel to read ahead: it reads as much of a file by itself. Others that are read or
/// written at once are not kept open.
pub(crate) const ADVISED_MIN: u64 = 128 << 10;

/// Open files by object number; the one not used for longest is closed first.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    files: HashMap<u32, (Arc<File>, u64)>,
    /// Counts uses; the larger one is the later one.
    uses: u64,
}

/// Locks, also after another thread panicked: what the crate guards is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFiles {
    pub(crate) fn new() -> Self {
        Self {
            slots: Mutex::new(Slots::default()),
        }
    }

    /// The open file of an object. `open` runs outside the lock, so a slow disk holds up only those
    /// who want that file; when two threads open one object, one of the two files is dropped again.
    pub(crate) fn get(
        &self,
        object: u32,
        open: impl FnOnce() -> Result<File, StoreError>,
    ) -> Result<Arc<File>, StoreError> {
        if let Some(file) = lock(&self.slots).find(object) {
            return Ok(file);
        }
        let opened = Arc::new(open()?);
        let mut slots = lock(&self.slots);
        if let Some(file) = slots.find(object) {
            return Ok(file);
        }
        if slots.files.len() >= OPEN_FILES_MAX {
            slots.evict();
        }
        let uses = slots.uses;
        slots.files.insert(object, (Arc::clone(&opened), uses));
        Ok(opened)
    }

    /// The file of an object, if it is open.
    pub(crate) fn find(&self, object: u32) -> Option<Arc<File>> {
        lock(&self.slots).find(object)
    }

    /// Closes every file that nobody holds at the moment.
    pub(crate) fn clear(&self) {
        lock(&self.slots).files.clear();
    }
}

impl Slots {
    fn find(&mut self, object: u32) -> Option<Arc<File>> {
        self.uses += 1;
        let (file, used) = self.files.get_mut(&object)?;
        *used = self.uses;
        Some(Arc::clone(file))
    }

    fn evict(&mut self) {
        let oldest = self
            .files
            .iter()
            .min_by_key(|(_, (_, used))| *used)
            .map(|(object, _)| *object);
        if let Some(object) = oldest {
            self.files.remove(&object);
        }
    }
}
