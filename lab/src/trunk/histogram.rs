//! How late packets were delivered: counts by logarithmic buckets, 12 % wide.

use std::time::Duration;

/// Buckets of one doubling.
const STEPS: usize = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Every 64-bit number of nanoseconds has a bucket.
const BUCKETS: usize = STEPS * (64 - STEP_BITS as usize + 1);

/// A distribution of durations: recording is one addition, and memory does not grow.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    max_ns: u64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("max_ns", &self.max_ns)
            .finish_non_exhaustive()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            max_ns: 0,
        }
    }
}

/// Small numbers have a bucket each; above, the leading bit and the next three choose it.
fn bucket(ns: u64) -> usize {
    let doublings = (64 - STEP_BITS).saturating_sub(ns.leading_zeros() + 1);
    doublings as usize * STEPS + (ns >> doublings) as usize
}

/// The least number that is past the bucket.
fn end(bucket: usize) -> u64 {
    // Buckets of doubling d >= 1 hold `8 << d` to `16 << d`: their index runs from 8 d + 8.
    let doublings = (bucket / STEPS).saturating_sub(1);
    let within = (bucket - doublings * STEPS) as u64 + 1;
    if within.leading_zeros() < doublings as u32 {
        u64::MAX
    } else {
        within << doublings
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// A duration that at least this share of the recorded ones did not exceed: too large by 12 % at most.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return Duration::from_nanos((end(bucket) - 1).min(self.max_ns));
            }
        }
        self.max()
    }

    pub(crate) fn clear(&mut self) {
        self.counts.fill(0);
        self.max_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number lies below its bucket's end and not below the end of the one before; no bucket is wider than an
    /// eighth of its numbers.
    #[test]
    fn buckets() {
        let mut numbers: Vec<u64> = (0..2000).collect();
        numbers.extend(
            (11..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + (1 << (bit - 1))]),
        );
        numbers.push(u64::MAX);
        for number in numbers {
            let bucket = bucket(number);
            assert!(bucket < BUCKETS, "{number}");
            assert!(number < end(bucket) || end(bucket) == u64::MAX, "{number}");
            let start = if bucket == 0 { 0 } else { end(bucket - 1) };
            assert!(number >= start, "{number} is below {start}");
            assert!(end(bucket) - start <= (number / 8).max(1), "{number}");
        }
    }

    /// Quantiles of 1 to 1000 are right to an eighth, and never beyond the largest.
    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        (1..=1000).for_each(|ns| histogram.record(ns));
        assert_eq!(histogram.count(), 1000);
        for (share, exact) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = histogram.quantile(share).as_nanos();
            assert!((exact..=exact * 9 / 8).contains(&found), "{share}: {found}");
        }
        assert_eq!(histogram.quantile(1.0), histogram.max());
        histogram.clear();
        assert_eq!((histogram.count(), histogram.max()), (0, Duration::ZERO));
    }
}
