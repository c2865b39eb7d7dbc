//! The set of ranges: a sorted list of runs that neither touch nor overlap.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Range;

/// A set of bytes of the data space, kept as runs.
///
/// Runs are not empty, ordered, and separated by at least one byte, so that equal sets compare
/// equal. Operations on whole sets cost O(runs of both); single insertions and removals cost
/// O(log runs) to find the place and O(runs) to shift.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct RangeSet {
    runs: Vec<Range>,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// The union of any ranges: out of order, touching, nested, repeated or empty.
    ///
    /// Cost O(n log n).
    #[must_use]
    pub fn from_ranges(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut ranges: Vec<Range> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        ranges.sort_unstable();
        let mut set = Self::new();
        for range in ranges {
            set.push_coalesced(range);
        }
        set
    }

    /// Appends a range whose start is not below the last run's start.
    fn push_coalesced(&mut self, range: Range) {
        match self.runs.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.runs.push(range),
        }
        debug_assert!(self.is_sound_at(self.runs.len() - 1), "{self}");
    }

    /// Whether every run holds a byte, and they are ordered and apart. Cost O(runs).
    fn is_sound(&self) -> bool {
        let is_apart = |pair: &[Range]| pair[0].end < pair[1].start;
        self.runs.iter().all(|run| !run.is_empty()) && self.runs.windows(2).all(is_apart)
    }

    /// The same of the run at a position and its neighbours.
    fn is_sound_at(&self, at: usize) -> bool {
        let near = self.runs.iter().skip(at.saturating_sub(1)).take(3);
        near.clone().all(|run| !run.is_empty())
            && near.clone().zip(near.skip(1)).all(|(a, b)| a.end < b.start)
    }

    /// Runs that are ordered and apart as they are.
    fn from_runs(runs: Vec<Range>) -> Self {
        let set = Self { runs };
        debug_assert!(set.is_sound(), "{set}");
        set
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        // Runs that touch the range join it, hence <= and >= where an overlap test would have < and >.
        let first = self.runs.partition_point(|run| run.end < range.start);
        let after = self.runs.partition_point(|run| run.start <= range.end);
        if first == after {
            self.runs.insert(first, range);
            debug_assert!(self.is_sound_at(first), "{self}");
            return;
        }
        let joined = Range {
            start: range.start.min(self.runs[first].start),
            end: range.end.max(self.runs[after - 1].end),
        };
        self.runs[first] = joined;
        self.runs.drain(first + 1..after);
        debug_assert!(self.is_sound_at(first), "{self}");
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let after = self.runs.partition_point(|run| run.start < range.end);
        if first >= after {
            return;
        }
        let before = Range::new(self.runs[first].start, range.start);
        let behind = Range::new(range.end, self.runs[after - 1].end);
        let rest = [before, behind].into_iter().filter(|run| !run.is_empty());
        self.runs.splice(first..after, rest);
        debug_assert!(self.is_sound_at(first), "{self}");
    }

    /// The bytes in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut result = Self::new();
        let (mut left, mut right) = (self.runs.as_slice(), other.runs.as_slice());
        loop {
            let take_left = match (left.first(), right.first()) {
                (Some(a), Some(b)) => a.start <= b.start,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return result,
            };
            let side = if take_left { &mut left } else { &mut right };
            let (first, rest) = (side[0], &side[1..]);
            *side = rest;
            result.push_coalesced(first);
        }
    }

    /// The bytes in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut i, mut j) = (0, 0);
        let mut runs = Vec::new();
        while let (Some(a), Some(b)) = (self.runs.get(i), other.runs.get(j)) {
            runs.extend(a.intersect(*b));
            if a.end < b.end {
                i += 1;
            } else {
                j += 1;
            }
        }
        Self::from_runs(runs)
    }

    /// The bytes in this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut runs = Vec::new();
        let mut j = 0;
        for run in &self.runs {
            let mut start = run.start;
            while other.runs.get(j).is_some_and(|cut| cut.end <= start) {
                j += 1;
            }
            // The last cut may reach into the next run, so it is looked at again from there.
            let mut cut = j;
            while let Some(hole) = other.runs.get(cut).filter(|hole| hole.start < run.end) {
                if start < hole.start {
                    runs.push(Range::new(start, hole.start));
                }
                start = hole.end;
                cut += 1;
            }
            if start < run.end {
                runs.push(Range::new(start, run.end));
            }
            j = cut.saturating_sub(1).max(j);
        }
        Self::from_runs(runs)
    }

    /// Whether every byte of the range is in the set; always so for an empty range.
    #[must_use]
    pub fn contains_range(&self, range: Range) -> bool {
        let at = self.runs.partition_point(|run| run.end <= range.start);
        range.is_empty()
            || self
                .runs
                .get(at)
                .is_some_and(|run| run.contains_range(range))
    }

    /// Whether the byte at `offset` is in the set.
    #[must_use]
    pub fn contains(&self, offset: u64) -> bool {
        let at = self.runs.partition_point(|run| run.end <= offset);
        self.runs.get(at).is_some_and(|run| run.contains(offset))
    }

    /// The bytes of the set that lie in the range. Cost O(log runs + runs returned).
    #[must_use]
    pub fn clipped(&self, range: Range) -> Self {
        Self::from_runs(self.within(range).collect())
    }

    /// The same parts, one at a time: nothing is copied.
    pub fn within(&self, range: Range) -> impl DoubleEndedIterator<Item = Range> + Clone + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let after = self.runs.partition_point(|run| run.start < range.end);
        let runs = self.runs.get(first..after).unwrap_or_default().iter();
        runs.filter_map(move |run| run.intersect(range))
    }

    /// The parts of a range that are not in the set, one at a time. Cost O(log runs + runs in the range).
    pub fn gaps(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let mut start = range.start;
        let end = Range::new(range.end, range.end);
        let runs = self.within(range).chain(std::iter::once(end));
        runs.filter_map(move |run| {
            let gap = Range::new(start, run.start.max(start));
            start = run.end;
            (!gap.is_empty()).then_some(gap)
        })
    }

    /// Whether the set holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes in the set. Runs are disjoint, so the sum fits.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len()).sum()
    }

    /// The runs, ordered by offset.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range> + ExactSizeIterator + '_ {
        self.runs.iter().copied()
    }

    /// The first run.
    #[must_use]
    pub fn first(&self) -> Option<Range> {
        self.runs.first().copied()
    }

    /// The last run.
    #[must_use]
    pub fn last(&self) -> Option<Range> {
        self.runs.last().copied()
    }

    /// The runs, ordered by offset.
    #[must_use]
    pub fn as_slice(&self) -> &[Range] {
        &self.runs
    }
}

impl From<Range> for RangeSet {
    fn from(range: Range) -> Self {
        Self::from_ranges([range])
    }
}

impl FromIterator<Range> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Self {
        Self::from_ranges(ranges)
    }
}

impl Extend<Range> for RangeSet {
    fn extend<I: IntoIterator<Item = Range>>(&mut self, ranges: I) {
        *self = Self::from_ranges(self.runs.drain(..).chain(ranges));
    }
}

impl<'a> IntoIterator for &'a RangeSet {
    type Item = Range;
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, Range>>;

    fn into_iter(self) -> Self::IntoIter {
        self.runs.iter().copied()
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return f.write_str("nothing");
        }
        for (index, run) in self.runs.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{run}")?;
        }
        Ok(())
    }
}

/// As a list of two-element lists, half-open.
impl Serialize for RangeSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.runs.serialize(serializer)
    }
}

/// Takes ranges in any order, overlapping or empty, as the case format allows.
impl<'de> Deserialize<'de> for RangeSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Range>::deserialize(deserializer).map(Self::from_ranges)
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    /// Runs that overlap, touch, are empty or out of order are no set.
    #[test]
    fn wrong_runs_are_found() {
        let [a, b, c] = [(0, 5), (5, 9), (20, 30)].map(|(start, end)| Range::new(start, end));
        let overlapping = Range::new(3, 9);
        let empty = Range::new(12, 12);
        for wrong in [
            vec![a, b],
            vec![a, overlapping],
            vec![a, empty, c],
            vec![c, a],
        ] {
            let found = std::panic::catch_unwind(|| RangeSet::from_runs(wrong.clone()));
            assert!(found.is_err(), "{wrong:?}");
        }
        assert_eq!(RangeSet::from_runs(vec![a, c]).len_bytes(), 15);
        // A change looks at its neighbours.
        let mut wrong = RangeSet { runs: vec![a, b] };
        let found = std::panic::catch_unwind(move || wrong.insert(Range::new(7, 8)));
        assert!(found.is_err());
    }
}
