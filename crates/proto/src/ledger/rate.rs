//! Goodput of a lane while it has work, smoothed.

use ropewalk_model::{Instant, Nanos};

/// Time constant of the smoothing: long enough to average a few 1 MiB units on a 20 Mbit/s lane,
/// short enough to notice within a second that a lane slowed down.
const SMOOTHING_SECONDS: f64 = 0.5;

/// Shortest stretch that makes a sample; shorter ones are joined (a burst that was already in the
/// socket buffer says nothing about the path).
const SAMPLE_TIME_MIN: Nanos = Nanos(20_000_000);

/// Measures delivered bytes per second over the time in which something was in transit.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    // Start of the running sample; `None` while nothing is in transit.
    since: Option<Instant>,
    bytes: u64,
    estimate: Option<f64>,
}

impl RateMeter {
    /// A meter that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something is in transit from now on (no effect if it already was).
    pub fn busy(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Nothing is in transit any more: the clock stops.
    pub fn idle(&mut self, now: Instant) {
        self.sample(now);
        self.since = None;
        self.bytes = 0;
    }

    /// `bytes` arrived; `busy` says whether more is in transit.
    pub fn delivered(&mut self, bytes: u64, now: Instant, busy: bool) {
        self.bytes += bytes;
        let due = self
            .since
            .is_some_and(|since| now.since(since) >= SAMPLE_TIME_MIN);
        if due || (!busy && self.estimate.is_none()) {
            self.sample(now);
            self.since = Some(now);
            self.bytes = 0;
        }
        if !busy {
            self.since = None;
            self.bytes = 0;
        }
    }

    fn sample(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let seconds = now.since(since).max(Nanos(1)).as_seconds();
        if self.bytes == 0 {
            return;
        }
        let rate = self.bytes as f64 / seconds;
        self.estimate = Some(match self.estimate {
            None => rate,
            Some(old) => {
                let keep = (-seconds / SMOOTHING_SECONDS).exp();
                old * keep + rate * (1.0 - keep)
            }
        });
    }

    /// Bytes per second; `None` before the first sample.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.estimate
    }
}
