//! Which files of a copy get their names before its end, and how much space such a copy needs.
//!
//! A file gets its name as soon as every byte of it is safe; the one whose place it takes is gone then, and its space is free. So a
//! tree that takes the place of an older one needs space for what is under way, and not for all of it twice.

use crate::{Layout, Piece, RangeSet};

/// The files of a layout that have all their bytes: each is given out once.
#[derive(Clone, Debug, Default)]
pub struct WholeFiles {
    // Bytes of those that were given out.
    given: RangeSet,
}

impl WholeFiles {
    /// Files of which all bytes are safe and that were not given out before, by their pieces, ordered by data-space offset. A file
    /// of several pieces is not among them.
    ///
    /// * `safe`: bytes of the data space. Those of one call may lack bytes that an earlier one had.
    ///
    /// Cost O(ranges + pieces that have new bytes × log pieces).
    pub fn take(&mut self, layout: &Layout, safe: &RangeSet) -> Vec<Piece> {
        let fresh = safe.difference(&self.given);
        let pieces = layout.pieces();
        let mut whole: Vec<Piece> = Vec::new();
        for range in fresh.iter() {
            let first = pieces.partition_point(|piece| piece.range.end <= range.start);
            let touched = pieces[first..].iter();
            for piece in touched.take_while(|piece| piece.range.start < range.end) {
                let is_known = whole.last().is_some_and(|last| last.range == piece.range);
                if !is_known && safe.contains_range(piece.range) {
                    whole.push(*piece);
                }
            }
        }
        let ranges = whole.iter().map(|piece| piece.range);
        self.given = self.given.union(&RangeSet::from_ranges(ranges));
        whole
    }
}

/// What one file of a copy does to the space of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceOfFile {
    /// Bytes that are to be written.
    pub written: u64,
    /// Bytes that are free again when it has its name.
    pub freed: u64,
}

/// Bytes that are in use at the same time at most, beyond those that are now, where files are written one after the other and each
/// gets its name before the next one begins. Several that are under way need the space of each.
#[must_use]
pub fn space_needed(files: impl IntoIterator<Item = SpaceOfFile>) -> u64 {
    let (mut used, mut most) = (0_i128, 0_i128);
    for file in files {
        used += i128::from(file.written);
        most = most.max(used);
        used -= i128::from(file.freed);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Range;

    fn layout(lens: &[u64]) -> Layout {
        Layout::back_to_back(0, (0..).zip(lens.iter().copied())).unwrap()
    }

    fn take(whole: &mut WholeFiles, layout: &Layout, safe: &[(u64, u64)]) -> Vec<u32> {
        let safe = RangeSet::from_ranges(safe.iter().map(|&(from, to)| Range::new(from, to)));
        let pieces = whole.take(layout, &safe);
        pieces.iter().map(|piece| piece.object).collect()
    }

    /// A file is given out when its last byte is safe, and once; one whose bytes were in doubt for a while is not forgotten.
    #[test]
    fn whole_files_are_given_out_once() {
        let layout = layout(&[10, 5, 20]);
        let mut whole = WholeFiles::default();
        assert_eq!(take(&mut whole, &layout, &[(0, 9)]), [0; 0]);
        assert_eq!(take(&mut whole, &layout, &[(0, 12), (13, 20)]), [0]);
        assert_eq!(take(&mut whole, &layout, &[(0, 30)]), [1]);
        // Some bytes of the last file are written again while the others come.
        assert_eq!(take(&mut whole, &layout, &[(0, 16), (18, 35)]), [0; 0]);
        assert_eq!(take(&mut whole, &layout, &[(0, 35)]), [2]);
        assert_eq!(take(&mut whole, &layout, &[(0, 35)]), [0; 0]);
    }

    /// The space of a refresh is that of its largest step, not that of the whole tree.
    #[test]
    fn space_of_a_refresh() {
        let file = |written, freed| SpaceOfFile { written, freed };
        for (files, needed) in [
            (vec![], 0),
            (vec![file(10, 10), file(30, 30), file(20, 20)], 30),
            // It grows.
            (vec![file(10, 5), file(30, 10), file(20, 20)], 45),
            // It shrinks first, or last.
            (vec![file(10, 40), file(30, 30)], 10),
            (vec![file(30, 10), file(30, 60)], 50),
            // Nothing is freed: all is needed.
            (vec![file(30, 0), file(30, 0)], 60),
        ] {
            assert_eq!(space_needed(files.clone()), needed, "{files:?}");
        }
    }

    proptest! {
        /// In whichever steps bytes become safe, each file is given out once, when it is whole.
        #[test]
        fn steps_do_not_matter(
            lens in proptest::collection::vec(1..20_u64, 1..8),
            steps in proptest::collection::vec((0..120_u64, 1..40_u64), 0..12),
        ) {
            let layout = layout(&lens);
            let (mut whole, mut safe) = (WholeFiles::default(), RangeSet::new());
            let mut given: Vec<u32> = Vec::new();
            let end: u64 = lens.iter().sum();
            for (start, len) in steps {
                let range = Range::new(start.min(end), (start + len).min(end));
                if !range.is_empty() {
                    safe.insert(range);
                }
                let more = whole.take(&layout, &safe);
                for piece in &more {
                    prop_assert!(!given.contains(&piece.object));
                }
                given.extend(more.iter().map(|piece| piece.object));
                for piece in layout.pieces() {
                    let is_whole = safe.contains_range(piece.range);
                    prop_assert_eq!(is_whole, given.contains(&piece.object));
                }
            }
        }
    }
}
