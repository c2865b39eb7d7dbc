//! Independent pieces of work on all processors: sweeps of simulations.

#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `work` to each item, `jobs` at a time (default: processors); results in the items' order. `done` is called
/// after each.
///
/// A panic in `work` is passed on once the other threads are done.
pub fn map<I: Sync, O: Send>(
    items: &[I],
    jobs: Option<usize>,
    work: impl Fn(&I) -> O + Sync,
    done: impl Fn() + Sync,
) -> Vec<O> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or(processors).min(items.len()).max(1);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<O>>> = Mutex::new(items.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else {
                        break;
                    };
                    let result = work(item);
                    // Nothing panics while the lock is held.
                    if let Ok(mut results) = results.lock() {
                        results[number] = Some(result);
                    }
                    done();
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every item once, in order, whatever the number of threads; each is told.
    #[test]
    fn in_order() {
        let items: Vec<u32> = (0..100).collect();
        for jobs in [None, Some(1), Some(3), Some(200)] {
            let told = AtomicUsize::new(0);
            let done = || {
                told.fetch_add(1, Ordering::Relaxed);
            };
            assert_eq!(
                map(&items, jobs, |n| n * 2, done),
                items.iter().map(|n| n * 2).collect::<Vec<_>>()
            );
            assert_eq!(told.into_inner(), items.len());
        }
        assert!(map(&[], None, |n: &u32| *n, || ()).is_empty());
    }
}
