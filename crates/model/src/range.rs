//! Half-open ranges of the data space, and sets of them.
//!
//! Everything that is held, wanted, sent or missing is a [`Range`] or a [`RangeSet`]. Ranges are
//! half-open; people type them inclusive, see [`Range::from_inclusive`]. No arithmetic here can
//! overflow: the last byte of a range is at most `u64::MAX - 1`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

mod map;
mod set;

pub use map::RangeMap;
pub use set::RangeSet;

/// A half-open range `[start, end)` of bytes, ordered by start, then by end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Range {
    /// The first byte in the range.
    pub start: u64,
    /// The first byte after the range; not below `start` when built by [`Range::new`].
    pub end: u64,
}

impl Range {
    /// The range `[start, end)`; empty at `start` when `end` lies below it.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        let end = if end < start { start } else { end };
        Self { start, end }
    }

    /// The range of the bytes `first` to `last`, both included, as people type it.
    ///
    /// `None` when `last` lies below `first`, or when it is `u64::MAX` and so has no end.
    #[must_use]
    pub fn from_inclusive(first: u64, last: u64) -> Option<Self> {
        let end = last.checked_add(1)?;
        (first <= last).then_some(Self { start: first, end })
    }

    /// The range of `length` bytes from `start`; `None` when its end does not fit 64 bits.
    #[must_use]
    pub fn from_length(start: u64, length: u64) -> Option<Self> {
        Some(Self {
            start,
            end: start.checked_add(length)?,
        })
    }

    /// Bytes in the range.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether the byte at `offset` lies in the range.
    #[must_use]
    pub const fn contains(self, offset: u64) -> bool {
        self.start <= offset && offset < self.end
    }

    /// Whether every byte of `other` lies in the range; an empty `other` always does.
    #[must_use]
    pub const fn contains_range(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// The bytes in both ranges; `None` when there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let both = Self {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        };
        (!both.is_empty()).then_some(both)
    }

    /// Whether the ranges share a byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.intersect(other).is_some()
    }
}

/// Half-open, as `[start, end)`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// As the two-element list `[start, end]`, still half-open.
impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.start, self.end).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (start, end) = <(u64, u64)>::deserialize(deserializer)?;
        if end < start {
            return Err(D::Error::custom(format_args!(
                "range [{start}, {end}] ends before it starts"
            )));
        }
        Ok(Self { start, end })
    }
}

#[cfg(test)]
mod tests;
