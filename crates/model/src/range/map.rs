//! What is known of parts of a range.

use std::collections::BTreeMap;

use super::Range;

/// Ranges that do not overlap, each with a value; those that touch and have the same value are one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMap<V> {
    // By the start of a piece, its end.
    pieces: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self {
            pieces: BTreeMap::new(),
        }
    }
}

impl<V: Copy + PartialEq> RangeMap<V> {
    /// Pieces in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether nothing has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The value of a byte. Cost O(log pieces).
    #[must_use]
    pub fn get(&self, offset: u64) -> Option<V> {
        let (_, (end, value)) = self.pieces.range(..=offset).next_back()?;
        (offset < *end).then_some(*value)
    }

    /// The pieces of a range, in order, clipped to it.
    pub fn within(&self, range: Range) -> impl Iterator<Item = (Range, V)> {
        let first = self.pieces.range(..range.start).next_back();
        let others = self.pieces.range(range.start..range.end.max(range.start));
        let all = first.into_iter().chain(others);
        let clipped = all.map(move |(start, (end, value))| {
            let part = Range::new((*start).max(range.start), (*end).min(range.end));
            (part, *value)
        });
        clipped.filter(|(part, _)| !part.is_empty())
    }

    /// Gives a range a value, in place of those that it has. Cost O(log pieces) and that of the pieces that it replaces.
    pub fn insert(&mut self, range: Range, value: V) {
        if range.is_empty() {
            return;
        }
        self.remove(range);
        let (mut start, mut end) = (range.start, range.end);
        let before = self.pieces.range(..start).next_back();
        if let Some((&first, &(last, same))) = before
            && last == start
            && same == value
        {
            start = first;
        }
        if let Some(&(last, same)) = self.pieces.get(&end)
            && same == value
        {
            self.pieces.remove(&end);
            end = last;
        }
        self.pieces.insert(start, (end, value));
    }

    /// Takes the values of a range away. Cost as that of [`insert`](Self::insert).
    pub fn remove(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        let before = self.pieces.range_mut(..range.start).next_back();
        if let Some((_, (end, value))) = before
            && *end > range.start
        {
            let (last, value) = (*end, *value);
            *end = range.start;
            self.keep_behind(range, last, value);
        }
        while let Some((&start, &(last, value))) = self.pieces.range(range.start..range.end).next()
        {
            self.pieces.remove(&start);
            self.keep_behind(range, last, value);
        }
    }

    fn keep_behind(&mut self, range: Range, last: u64, value: V) {
        if last > range.end {
            self.pieces.insert(range.end, (last, value));
        }
    }
}
