//! How far the scan of trees is, for another thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

/// Counts what a scan finds, and can stop it.
///
/// A scan takes minutes where a tree has many millions of entries, or its server answers slowly.
#[derive(Debug, Default)]
pub struct Scanning {
    entries: AtomicU64,
    is_stopped: AtomicBool,
}

impl Scanning {
    /// Names of files, folders and others that were looked at so far, by all scans that were given this, those among them that are no
    /// part of the copy.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Scans that were given this fail with [`StoreError::Io`](crate::StoreError::Io), after the name that their threads look at now.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn add(&self, names: usize) {
        self.entries.fetch_add(names as u64, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<(), Errno> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(Errno::CANCELED),
            false => Ok(()),
        }
    }
}
