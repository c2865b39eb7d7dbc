//! When received bytes are synced, and what a sync vouches for.

/// When received bytes are synced.
#[derive(Clone, Copy, Debug)]
pub struct Syncs {
    /// Longest time for which received bytes wait for a sync, nanoseconds.
    pub every_ns: u64,
    /// As many bytes are not left to wait.
    pub bytes: u64,
}

impl Default for Syncs {
    /// A second, or 256 MiB.
    fn default() -> Self {
        Self {
            every_ns: 1_000_000_000,
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
    synced_ns: u64,
}

impl Durable {
    pub fn new(syncs: Syncs, now_ns: u64) -> Self {
        Self {
            syncs,
            safe_bytes: 0,
            synced_ns: now_ns,
        }
    }

    pub fn safe_bytes(&self) -> u64 {
        self.safe_bytes
    }

    /// When a sync is due; `None` while all that was received is safe.
    pub fn due_ns(&self, received_bytes: u64) -> Option<u64> {
        match received_bytes.saturating_sub(self.safe_bytes) {
            0 => None,
            bytes if bytes >= self.syncs.bytes => Some(0),
            _ => Some(self.synced_ns.saturating_add(self.syncs.every_ns)),
        }
    }

    pub fn promise(&self, received_bytes: u64) -> Promise {
        Promise {
            bytes: received_bytes,
        }
    }

    pub fn keep(&mut self, promise: Promise, now_ns: u64) {
        debug_assert!(promise.bytes >= self.safe_bytes, "safe bytes stay safe");
        self.safe_bytes = promise.bytes;
        self.synced_ns = now_ns;
    }
}
