//! A token bucket that paces grants: the node's share of the transfer's `--limit`.

use ropewalk_model::{ByteRate, Instant, Nanos};

/// Unused share that may be saved up, as time at the rate. Short, so that the sum over all
/// nodes stays at the limit within a fraction of a second.
const SAVED_TIME_MAX: Nanos = Nanos::from_millis(100);

/// Paces bytes. Spending may overdraw by one unit; the next one waits until the debt is paid.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    // `None`: no limit.
    rate: Option<ByteRate>,
    // Bytes that may be spent now; negative while in debt.
    tokens: f64,
    filled_at: Instant,
}

impl Pace {
    /// No limit.
    pub fn unlimited() -> Self {
        Self {
            rate: None,
            tokens: 0.0,
            filled_at: Instant::ZERO,
        }
    }

    /// Changes the rate (`None`: no limit); a debt stays owed.
    pub fn set(&mut self, rate: Option<ByteRate>, now: Instant) {
        self.refill(now);
        self.rate = rate;
        self.filled_at = now;
    }

    /// Bytes can be asked for from now on: of the time before nothing is saved up.
    pub fn begin(&mut self, now: Instant) {
        self.refill(now);
        self.tokens = self.tokens.min(0.0);
    }

    fn bytes_per_nanosecond(&self) -> f64 {
        self.rate.map_or(0.0, |rate| rate.0 as f64 / 1e9)
    }

    fn refill(&mut self, now: Instant) {
        let rate = self.bytes_per_nanosecond();
        let passed = now.since(self.filled_at).0 as f64;
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + rate * passed).min(rate * SAVED_TIME_MAX.0 as f64);
    }

    /// The rate; `None`: no limit.
    pub fn rate(&self) -> Option<ByteRate> {
        self.rate
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// When the next unit may be granted, if not now.
    pub fn wait_until(&mut self, now: Instant) -> Option<Instant> {
        if !self.is_limited() {
            return None;
        }
        self.refill(now);
        let debt = -self.tokens / self.bytes_per_nanosecond();
        (self.tokens < 0.0).then(|| now + Nanos(debt as u64) + Nanos(1))
    }

    /// Records granted bytes.
    pub fn spend(&mut self, bytes: u64) {
        if self.is_limited() {
            self.tokens -= bytes as f64;
        }
    }

    /// Gives granted bytes back that the peer refused to send.
    pub fn refund(&mut self, bytes: u64) {
        if self.is_limited() {
            self.tokens += bytes as f64;
        }
    }
}
