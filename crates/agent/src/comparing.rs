//! How far a node is that compares contents, for reports.

use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_proto::control;

use crate::hung::CALL_TIME_MAX;

/// How far comparing is, for reports.
#[derive(Debug, Default)]
pub(crate) struct Comparing(Mutex<Option<Compared>>);

#[derive(Clone, Copy, Debug)]
struct Compared {
    done: u64,
    total: u64,
    at: Instant,
}

impl Comparing {
    /// So many bytes of so many are compared.
    pub fn note(&self, done: u64, total: u64) {
        let at = Instant::now();
        *self.0.lock() = Some(Compared { done, total, at });
    }

    /// Nothing is being compared any more.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// What to report now; nothing where nothing is being compared.
    pub fn report(&self, now: Instant) -> Option<control::Comparing> {
        let compared = (*self.0.lock())?;
        let is_hung = now.saturating_duration_since(compared.at) >= CALL_TIME_MAX;
        let hung = is_hung.then(|| {
            format!(
                "no contents were compared for {} s: the disk of the destination or of a source, or the server of its file system, does \
                 not answer; the comparison goes on when it does",
                CALL_TIME_MAX.as_secs()
            )
        });
        Some(control::Comparing {
            done: compared.done,
            total: compared.total,
            hung: hung.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is reported before and after; a comparison that stands still is said to, after the time of a call to a disk.
    #[test]
    fn comparisons_are_reported() {
        let comparing = Comparing::default();
        assert_eq!(comparing.report(Instant::now()), None);
        comparing.note(5, 9);
        let found = comparing.report(Instant::now()).unwrap();
        assert_eq!((found.done, found.total, found.hung.as_str()), (5, 9, ""));
        let later = comparing.report(Instant::now() + CALL_TIME_MAX).unwrap();
        assert!(
            later.hung.starts_with("no contents were compared for 60 s"),
            "{later:?}"
        );
        comparing.end();
        assert_eq!(comparing.report(Instant::now()), None);
    }
}
