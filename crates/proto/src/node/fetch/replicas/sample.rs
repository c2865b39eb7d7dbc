//! Which units of replicas are compared, and how many: the size of the sample.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::{Compare, Replicas};
use crate::control::{self, Run};
use crate::mix::mix;

/// Most bytes that other holders hash for a sample.
const SAMPLE_BYTES_MAX: u64 = 8 << 20;

/// And at most one byte in so many.
const SAMPLE_PART: u64 = 16;

/// Sampled units at most: small ones cost a read each, whatever their length.
const SAMPLE_UNITS_MAX: u64 = 256;

/// Sets of holders of which the first and the last unit are compared.
const CLASSES_MAX: usize = 16;

impl Replicas {
    /// Chooses units of what has several holders.
    pub(super) fn aim(&mut self, runs: &[Run], unit_len: u64, with_ends: bool) {
        if self.mode != Compare::Sample {
            return;
        }
        let mut classes: BTreeMap<BTreeSet<u32>, RangeSet> = BTreeMap::new();
        for run in runs {
            let holders: BTreeSet<u32> = std::iter::once(run.sender)
                .chain(run.spares.iter().copied())
                .collect();
            if holders.len() > 1 && run.length > 0 {
                let class = classes.entry(holders).or_default();
                class.insert(control::range(run.start, run.length));
            }
        }
        let mut ends = 0;
        for class in classes.values().take(CLASSES_MAX).filter(|_| with_ends) {
            let first = class.iter().next().map(|range| range.start);
            let last = class.last().map(|range| range.end - 1);
            for offset in first.into_iter().chain(last) {
                ends += u64::from(self.targets.insert(offset));
            }
        }
        let ranges: RangeSet = RangeSet::from_ranges(classes.values().flat_map(RangeSet::iter));
        let total = ranges.len_bytes();
        let left = SAMPLE_BYTES_MAX.saturating_sub(self.sampled_bytes);
        let units = (total / SAMPLE_PART).min(left) / unit_len.max(1);
        let units = units.min(SAMPLE_UNITS_MAX);
        self.sampled_bytes += units * unit_len;
        // Where there is anything between the ends, one of it.
        let random = units.saturating_sub(ends).max(u64::from(with_ends));
        let mut places: Vec<u64> = (0..random.min(total))
            .map(|number| mix(self.seed ^ mix(number.wrapping_add(self.sampled_bytes))) % total)
            .collect();
        places.sort_unstable();
        let mut places = places.into_iter().peekable();
        let mut before = 0;
        for range in ranges.iter() {
            while let Some(place) = places.next_if(|place| *place < before + range.len()) {
                self.targets.insert(range.start + (place - before));
            }
            before += range.len();
        }
    }

    /// Whether the unit is one of the sample; from now on it is none of those to come.
    pub(super) fn is_sampled(&mut self, range: Range) -> bool {
        let mut found = false;
        while let Some(&offset) = self.targets.range(range.start..range.end).next() {
            found = self.targets.remove(&offset);
        }
        found
    }
}
