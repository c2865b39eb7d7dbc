//! When received bytes are synced, and what a sync vouches for.

use ropewalk_model::{Instant, Nanos};

/// When received bytes are synced.
#[derive(Clone, Copy, Debug)]
pub struct Syncs {
    /// Longest time for which received bytes wait for a sync.
    pub every: Nanos,
    /// As many bytes are not left to wait.
    pub bytes: u64,
}

impl Default for Syncs {
    /// A second, or 256 MiB.
    fn default() -> Self {
        Self {
            every: Nanos::from_secs(1),
            bytes: 256 << 20,
        }
    }
}

/// What a sync that begins now vouches for when it ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    bytes: u64,
}

/// Which bytes are safe.
#[derive(Debug)]
pub(super) struct Durable {
    syncs: Syncs,
    safe_bytes: u64,
    synced_at: Instant,
}

impl Durable {
    pub fn new(syncs: Syncs, now: Instant) -> Self {
        Self {
            syncs,
            safe_bytes: 0,
            synced_at: now,
        }
    }

    pub fn safe_bytes(&self) -> u64 {
        self.safe_bytes
    }

    /// When a sync is due; `None` while all that was received is safe.
    pub fn due_at(&self, received_bytes: u64) -> Option<Instant> {
        match received_bytes.saturating_sub(self.safe_bytes) {
            0 => None,
            bytes if bytes >= self.syncs.bytes => Some(Instant::ZERO),
            _ => Some(self.synced_at + self.syncs.every),
        }
    }

    pub fn promise(&self, received_bytes: u64) -> Promise {
        Promise {
            bytes: received_bytes,
        }
    }

    pub fn keep(&mut self, promise: Promise, now: Instant) {
        debug_assert!(promise.bytes >= self.safe_bytes, "safe bytes stay safe");
        self.safe_bytes = promise.bytes;
        self.synced_at = now;
    }
}
