//! The same work for many files by several threads at once: a disk or a network file system answers them side by side.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::StoreError;
use crate::open_files::lock;

/// Threads that wait for the disk at the same time: enough that it can merge their writes, few beside the lanes' own.
const THREADS_MAX: usize = 8;

/// Files of one folder that are one item: the folder is opened once for them.
pub(crate) const FILES_AT_ONCE: usize = 32;

/// Items that are worth a further thread.
const ITEMS_PER_THREAD: usize = 8;

/// Does `work` for each item, several at a time; the first error ends it.
///
/// Where no thread can be started this one does all.
///
/// # Errors
/// The first that came; items that no thread had begun by then are left out.
pub(crate) fn for_each<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<(), StoreError> + Sync,
) -> Result<(), StoreError> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<StoreError>> = Mutex::new(None);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(item) {
                lock(&failure).get_or_insert(error);
                next.store(items.len(), Ordering::Relaxed);
            }
        }
    };
    let threads = (items.len() / ITEMS_PER_THREAD).min(THREADS_MAX - 1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let thread = std::thread::Builder::new().name("files".into());
            if thread.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let failure = lock(&failure).take();
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Every item is worked on once, and by several threads at the same time.
    #[test]
    fn all_items_are_done_by_several_threads() {
        let items: Vec<usize> = (0..200).collect();
        let seen: Vec<AtomicUsize> = items.iter().map(|_| AtomicUsize::new(0)).collect();
        // The first ones wait for each other, which a single thread could not outlive.
        let together = Barrier::new(THREADS_MAX);
        let done = for_each(&items, |item| {
            if *item < THREADS_MAX {
                together.wait();
            }
            seen[*item].fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(done, Ok(()));
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        assert_eq!(
            for_each(&[] as &[usize], |_| Err(StoreError::Ended)),
            Ok(())
        );
    }

    /// An error of any item is the error of all.
    #[test]
    fn an_error_is_told() {
        for failing in [0, 150, 199] {
            let items: Vec<usize> = (0..200).collect();
            let done = for_each(&items, |item| match *item == failing {
                true => Err(StoreError::Ended),
                false => Ok(()),
            });
            assert_eq!(done, Err(StoreError::Ended));
        }
    }
}
