//! Waiting for earlier transfers to a destination to end, for reports.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_proto::control;

/// What is waited for, and how long was waited before.
#[derive(Debug, Default)]
pub(crate) struct AwaitedEnds(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    now: Option<(PathBuf, Instant)>,
    before: Duration,
}

/// One wait, if it becomes one; ends when dropped.
#[derive(Debug)]
pub(crate) struct Wait<'w> {
    all: &'w AwaitedEnds,
    path: &'w Path,
    began: Instant,
}

impl AwaitedEnds {
    /// Begins to look whether there is something to wait for.
    pub fn of<'w>(&'w self, path: &'w Path) -> Wait<'w> {
        Wait {
            all: self,
            path,
            began: Instant::now(),
        }
    }

    /// What to report now; nothing where nothing is waited for.
    pub fn report(&self, now: Instant) -> Option<control::AwaitedEnd> {
        let waits = self.0.lock();
        let (path, began) = waits.now.as_ref()?;
        Some(control::AwaitedEnd {
            path: path.to_string_lossy().into_owned(),
            waited: now.saturating_duration_since(*began).as_nanos() as u64,
        })
    }

    /// How long was waited in all.
    pub fn total(&self) -> Duration {
        self.0.lock().before
    }
}

impl Wait<'_> {
    /// There is.
    pub fn note(&self) {
        let mut waits = self.all.0.lock();
        waits
            .now
            .get_or_insert_with(|| (self.path.to_owned(), self.began));
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut waits = self.all.0.lock();
        if let Some((_, began)) = waits.now.take() {
            waits.before += began.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that finds nothing is no wait; a wait is reported with its place until it ends, and counted then.
    #[test]
    fn waits_are_reported_and_counted() {
        let ends = AwaitedEnds::default();
        drop(ends.of(Path::new("/x")));
        assert_eq!(ends.total(), Duration::ZERO);
        let wait = ends.of(Path::new("/y"));
        assert_eq!(ends.report(Instant::now()), None);
        wait.note();
        wait.note();
        let later = ends
            .report(Instant::now() + Duration::from_secs(5))
            .unwrap();
        assert!(
            later.path == "/y" && later.waited >= 5_000_000_000,
            "{later:?}"
        );
        drop(wait);
        assert_eq!(ends.report(Instant::now()), None);
        assert!(ends.total() > Duration::ZERO);
        // Each wait is added to those before.
        for _ in 0..30 {
            let total = ends.total();
            let again = ends.of(Path::new("/y"));
            again.note();
            drop(again);
            assert!(ends.total() >= total, "{:?} after {total:?}", ends.total());
        }
    }
}
