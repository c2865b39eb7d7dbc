//! Times between deliveries, as counts by length: what jitter a lane has, in little memory.

use ropewalk_model::Nanos;

/// Buckets of an octave.
const PER_OCTAVE: u32 = 4;
/// Lengths below this share the first bucket: 1 microsecond.
const FIRST_NS: u64 = 1 << 10;
/// Octaves from there: up to 18 minutes.
const OCTAVES: u32 = 30;
const BUCKETS: usize = (PER_OCTAVE * OCTAVES) as usize + 1;

/// Counts of gaps by their length. A quantile is at most a fifth too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    counts: [u32; BUCKETS],
    longest: Nanos,
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            longest: Nanos::ZERO,
        }
    }
}

fn bucket(gap: Nanos) -> usize {
    let ns = gap.0;
    if ns < FIRST_NS {
        return 0;
    }
    let octave = (ns / FIRST_NS).ilog2();
    // The next two bits say where in the octave.
    let part = (ns >> (octave + FIRST_NS.ilog2() - PER_OCTAVE.ilog2())) & u64::from(PER_OCTAVE - 1);
    (1 + octave as usize * PER_OCTAVE as usize + part as usize).min(BUCKETS - 1)
}

/// The end of a bucket.
fn end_of(bucket: usize) -> Nanos {
    let (octave, part) = (
        bucket as u32 / PER_OCTAVE,
        u64::from(bucket as u32 % PER_OCTAVE),
    );
    Nanos((FIRST_NS << octave) + (FIRST_NS << octave) / u64::from(PER_OCTAVE) * part)
}

impl Gaps {
    /// Counts one.
    pub fn add(&mut self, gap: Nanos) {
        let count = &mut self.counts[bucket(gap)];
        *count = count.saturating_add(1);
        self.longest = self.longest.max(gap);
    }

    /// Counts those of another stream, too.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.longest = self.longest.max(other.longest);
    }

    /// The longest, exactly.
    #[must_use]
    pub fn longest(&self) -> Nanos {
        self.longest
    }

    /// A length that the given part of all gaps does not exceed; none without any.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Nanos {
        let all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let rank = (all as f64 * part).ceil().max(1.0) as u64;
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below >= rank {
                return end_of(bucket).min(self.longest);
            }
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every length lies below the end of its bucket and, but for the first and the last, within a fifth of it.
        #[test]
        fn buckets_are_narrow(ns in 0u64..900_000_000_000) {
            let own = bucket(Nanos(ns));
            let end = end_of(own).0;
            prop_assert!(ns < end || own == BUCKETS - 1);
            if ns >= FIRST_NS {
                prop_assert!(end as f64 <= ns as f64 * 1.25 + 1.0, "{} in a bucket that ends at {}", ns, end);
            }
        }
    }

    /// Quantiles are those of the sorted list, within a bucket; two lists together are one.
    #[test]
    fn quantiles() {
        let mut gaps = Gaps::default();
        assert_eq!(
            (gaps.quantile(0.5), gaps.longest()),
            (Nanos::ZERO, Nanos::ZERO)
        );
        let mut tail = Gaps::default();
        for milliseconds in 1..=99_u64 {
            gaps.add(Nanos::from_millis(milliseconds));
        }
        tail.add(Nanos::from_secs(5));
        gaps.merge(&tail);
        let about = |part: f64, wanted: f64| {
            let got = gaps.quantile(part).0 as f64;
            assert!((wanted..wanted * 1.26).contains(&got), "{part}: {got}");
        };
        about(0.5, 50e6);
        about(0.99, 99e6);
        assert_eq!(gaps.quantile(1.0), Nanos::from_secs(5));
        assert_eq!(gaps.longest(), Nanos::from_secs(5));
    }
}
