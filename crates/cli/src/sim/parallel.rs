//! Runs of a sweep on all processors, with a bar on a terminal.

use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "sim [{wide_bar}] {pos}/{len} runs, {eta} left";

/// Applies `work` to each item, `jobs` at a time (default: processors); results in the items' order.
pub(super) fn map<I: Sync, O: Send>(
    items: &[I],
    jobs: Option<usize>,
    work: impl Fn(&I) -> O + Sync,
) -> Vec<O> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or(processors).min(items.len()).max(1);
    let bar = match items.len() > 1 && std::io::stderr().is_terminal() {
        true => ProgressBar::new(items.len() as u64).with_style(
            ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()),
        ),
        false => ProgressBar::hidden(),
    };
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
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let results = results.into_inner().unwrap_or_default();
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    /// Every item once, in order, whatever the number of threads.
    #[test]
    fn in_order() {
        let items: Vec<u32> = (0..100).collect();
        for jobs in [1, 3, 200] {
            assert_eq!(
                super::map(&items, Some(jobs), |n| n * 2),
                items.iter().map(|n| n * 2).collect::<Vec<_>>()
            );
        }
    }
}
