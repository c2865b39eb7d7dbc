//! What a receiver notices about its own progress: the best second (for the observed bound) and the
//! longest stall.

const SECOND_NS: u64 = 1_000_000_000;

/// Watches arriving bytes.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    start_ns: u64,
    last_ns: u64,
    second: u64,
    second_bytes: u64,
    best_second: u64,
    longest_stall_ns: u64,
}

impl Watch {
    /// Starts watching.
    pub fn new(now_ns: u64) -> Self {
        Self {
            start_ns: now_ns,
            last_ns: now_ns,
            second: 0,
            second_bytes: 0,
            best_second: 0,
            longest_stall_ns: 0,
        }
    }

    /// `bytes` arrived.
    pub fn arrived(&mut self, bytes: u64, now_ns: u64) {
        self.longest_stall_ns = self
            .longest_stall_ns
            .max(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
        let second = now_ns.saturating_sub(self.start_ns) / SECOND_NS;
        if second != self.second {
            self.best_second = self.best_second.max(self.second_bytes);
            self.second = second;
            self.second_bytes = 0;
        }
        self.second_bytes += bytes;
    }

    /// Most bytes in one whole second; for a transfer shorter than that, its mean rate.
    pub fn best_second(&self) -> u64 {
        if self.best_second > 0 {
            return self.best_second;
        }
        let passed = self.last_ns.saturating_sub(self.start_ns).max(1);
        (u128::from(self.second_bytes) * u128::from(SECOND_NS) / u128::from(passed)) as u64
    }

    /// Longest time without an arrival, nanoseconds.
    pub fn longest_stall_ns(&self) -> u64 {
        self.longest_stall_ns
    }

    /// When the watch began.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Last arrival.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }
}
