//! What a receiver notices about its own progress: the best second (for the observed bound) and the
//! longest stall.

use ropewalk_model::{Instant, Nanos};

const SECOND: Nanos = Nanos::from_secs(1);

/// Watches arriving bytes.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    start_at: Instant,
    last_at: Instant,
    second: u64,
    second_bytes: u64,
    best_second: u64,
    longest_stall: Nanos,
}

impl Watch {
    /// Starts watching.
    pub fn new(now: Instant) -> Self {
        Self {
            start_at: now,
            last_at: now,
            second: 0,
            second_bytes: 0,
            best_second: 0,
            longest_stall: Nanos::ZERO,
        }
    }

    /// `bytes` arrived.
    pub fn arrived(&mut self, bytes: u64, now: Instant) {
        self.longest_stall = self.longest_stall.max(now.since(self.last_at));
        self.last_at = self.last_at.max(now);
        let second = now.since(self.start_at).whole_seconds();
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
        let passed = self.last_at.since(self.start_at).max(Nanos(1));
        (u128::from(self.second_bytes) * u128::from(SECOND.0) / u128::from(passed.0)) as u64
    }

    /// Longest time without an arrival.
    pub fn longest_stall(&self) -> Nanos {
        self.longest_stall
    }

    /// When the watch began.
    pub fn start_at(&self) -> Instant {
        self.start_at
    }

    /// Last arrival.
    pub fn last_at(&self) -> Instant {
        self.last_at
    }
}
