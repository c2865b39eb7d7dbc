//! A token bucket that paces grants: the node's share of the transfer's `--limit`.

/// Unused share that may be saved up, in nanoseconds of the rate. Short, so that the sum over all
/// nodes stays at the limit within a fraction of a second.
const SAVED_NS_MAX: u64 = 100_000_000;

/// Paces bytes. Spending may overdraw by one unit; the next one waits until the debt is paid.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    // Bytes per second; 0 = no limit.
    rate: u64,
    // Bytes that may be spent now; negative while in debt.
    tokens: f64,
    at_ns: u64,
}

impl Pace {
    /// No limit.
    pub fn unlimited() -> Self {
        Self {
            rate: 0,
            tokens: 0.0,
            at_ns: 0,
        }
    }

    /// Changes the rate (bytes per second, 0 = no limit); a debt stays owed.
    pub fn set(&mut self, rate: u64, now_ns: u64) {
        self.refill(now_ns);
        self.rate = rate;
        self.at_ns = now_ns;
    }

    fn refill(&mut self, now_ns: u64) {
        let rate = self.rate as f64 / 1e9;
        let passed = now_ns.saturating_sub(self.at_ns) as f64;
        self.at_ns = self.at_ns.max(now_ns);
        self.tokens = (self.tokens + rate * passed).min(rate * SAVED_NS_MAX as f64);
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.rate > 0
    }

    /// When the next unit may be granted, if not now.
    pub fn wait_until(&mut self, now_ns: u64) -> Option<u64> {
        if self.rate == 0 {
            return None;
        }
        self.refill(now_ns);
        (self.tokens < 0.0).then(|| now_ns + (-self.tokens / (self.rate as f64 / 1e9)) as u64 + 1)
    }

    /// Records granted bytes.
    pub fn spend(&mut self, bytes: u64) {
        if self.rate != 0 {
            self.tokens -= bytes as f64;
        }
    }
}
