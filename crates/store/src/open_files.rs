//! A bounded set of open files.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::sync::Cache;
use rustix::process::{Resource, getrlimit};

use crate::error::StoreError;

/// Most files that one source or sink keeps open. Less where the process may open few files, or has many sources and sinks: each gets half of
/// what the others have left of half of the limit.
pub const OPEN_FILES_MAX: usize = 256;

/// What any of them keeps open.
const OPEN_FILES_MIN: usize = 8;

/// Files that the sources and sinks of this process may keep open, all together.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Longer files are worth the call that advises the kernel to read ahead: it reads as much of a file by itself. Others that are read or
/// written at once are not kept open.
pub(crate) const ADVISED_MIN: u64 = 128 << 10;

/// Open files by object number; the ones not used for longest are closed first. Any number of threads may use it.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: Cache<u32, Arc<File>>,
    share: usize,
}

/// Locks, also after another thread panicked: what the crate guards is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that one more source or sink may keep open where the others may keep `taken`.
fn share(limit: usize, taken: usize) -> usize {
    let left = (limit / 2).saturating_sub(taken);
    (left / 2).clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
}

impl OpenFiles {
    pub(crate) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |most| most as usize);
        let share = share(limit, TAKEN.load(Ordering::Relaxed));
        TAKEN.fetch_add(share, Ordering::Relaxed);
        Self {
            files: Cache::new(share),
            share,
        }
    }

    /// The open file of an object. A slow disk holds up only those who want that file.
    pub(crate) fn get(
        &self,
        object: u32,
        open: impl FnOnce() -> Result<File, StoreError>,
    ) -> Result<Arc<File>, StoreError> {
        self.files
            .get_or_insert_with(&object, || open().map(Arc::new))
    }

    /// The file of an object, if it is open.
    pub(crate) fn find(&self, object: u32) -> Option<Arc<File>> {
        self.files.get(&object)
    }

    /// Closes the file of an object once it is not in use.
    pub(crate) fn close(&self, object: u32) {
        self.files.remove(&object);
    }

    /// Closes every file that nobody holds at the moment.
    pub(crate) fn clear(&self) {
        self.files.clear();
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.share, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Operation;

    /// However many there are, they leave half of what the process may open to others, but for the least of each.
    #[test]
    fn holders_share_the_limit() {
        assert_eq!(share(usize::MAX, 0), OPEN_FILES_MAX);
        assert_eq!(share(1024, 0), OPEN_FILES_MAX);
        let taken = (0..5).fold(0, |taken, _| taken + share(1024, taken));
        assert!(taken <= 512, "{taken}");
        assert_eq!(share(1024, 5000), OPEN_FILES_MIN);
    }

    /// Of more files than may be open some are closed, and opened again when they are wanted.
    #[test]
    fn few_stay_open() {
        let files = OpenFiles::new();
        let opens = AtomicUsize::new(0);
        let open = |object| {
            let file = files.get(object, || {
                opens.fetch_add(1, Ordering::Relaxed);
                Ok(tempfile::tempfile().unwrap())
            });
            file.unwrap()
        };
        let count = OPEN_FILES_MAX as u32 + 50;
        (0..count).for_each(|object| drop(open(object)));
        let kept = (0..count).filter(|object| files.find(*object).is_some());
        let kept = kept.count();
        assert!((1..=OPEN_FILES_MAX).contains(&kept), "{kept}");
        assert_eq!(opens.load(Ordering::Relaxed), count as usize);
        let last = open(7);
        assert!(
            Arc::ptr_eq(&last, &open(7)),
            "one that was just used is open"
        );
        files.clear();
        assert!(files.find(7).is_none());
    }

    /// A file that cannot be opened is tried again.
    #[test]
    fn errors_are_not_kept() {
        let files = OpenFiles::new();
        let missing = || {
            let path = std::path::Path::new("/nosuch/file");
            File::open(path).map_err(|error| StoreError::from_io(Operation::Open, path, &error))
        };
        assert!(files.get(1, missing).is_err());
        assert!(files.get(1, || Ok(tempfile::tempfile().unwrap())).is_ok());
    }
}
