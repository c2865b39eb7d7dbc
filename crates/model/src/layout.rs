//! Where the bytes of the data space lie: which object, at which offset, in which unit of integrity.
//!
//! An object is a file, or memory, known here by its number alone. A range of the data space may
//! lie in many objects (a tree) and an object may begin anywhere in it, so nothing that uses a
//! layout may assume that neighbours in the data space are neighbours on disk.
//!
//! Left out on purpose: paths, open files, which node holds what.

use std::cell::Cell;

use crate::{Range, RangeSet};

/// Alignment, inside its object, of the largest unit of integrity and of stealing (1 MiB).
pub const CHUNK_LEN: u64 = 1 << 20;

/// The smallest unit (64 KiB): below it, the cost of each unit shows.
pub const UNIT_LEN_MIN: u64 = 64 << 10;

/// Units a node should have at least, so that the last one is a small part of its time (0.1 %).
pub const UNITS_PER_NODE: u64 = 1024;

/// How long units of a transfer are when each receiving node fetches about `bytes_per_node`: a chunk,
/// halved while a node would have few.
///
/// A unit has one sender per attempt. On a lane of 20 Mbit/s a whole chunk takes 0.4 s, which is
/// nothing for a transfer of hours and too much for one of seconds.
#[must_use]
pub fn unit_len(bytes_per_node: u64) -> u64 {
    let mut length = CHUNK_LEN;
    while length > UNIT_LEN_MIN && bytes_per_node / length < UNITS_PER_NODE {
        length /= 2;
    }
    length
}

/// A run of the data space that is one run of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The bytes, as offsets of the data space.
    pub range: Range,
    /// Number of the object; what it means is up to the store.
    pub object: u32,
    /// Offset inside the object of the first byte of `range`.
    pub object_offset: u64,
}

/// Why pieces do not make a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A piece ends beyond the largest offset an object can have.
    #[error(
        "{range} starts at offset {object_offset} of object {object} and ends beyond what 64 bits can address; \
         correct the offset of that row"
    )]
    ObjectOverflow {
        /// The piece, as offsets of the data space.
        range: Range,
        /// The object it was to lie in.
        object: u32,
        /// Where in the object it was to start.
        object_offset: u64,
    },
    /// The objects together are longer than the data space can be.
    #[error(
        "{len} bytes from offset {base} end beyond what 64 bits can address; split the transfer"
    )]
    SpaceOverflow {
        /// Offset of the first byte.
        base: u64,
        /// Bytes from there.
        len: u64,
    },
}

/// The pieces of one node's, or one copy's, part of the data space.
///
/// Invariant: pieces are not empty, ordered, disjoint, and no two neighbours could be one piece.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    pieces: Vec<Piece>,
}

impl Layout {
    /// Orders the pieces and joins neighbours that continue each other in the same object.
    ///
    /// Empty pieces are dropped. Where two pieces hold the same bytes of the data space (one node
    /// with two replicas) the one that starts first keeps them and the other is trimmed; with equal
    /// starts, the one listed first. Cost O(n log n).
    ///
    /// # Errors
    /// [`LayoutError::ObjectOverflow`] names a piece that ends beyond 2^64 in its object.
    pub fn new(mut pieces: Vec<Piece>) -> Result<Self, LayoutError> {
        pieces.retain(|piece| !piece.range.is_empty());
        for piece in &pieces {
            if piece.object_offset.checked_add(piece.range.len()).is_none() {
                return Err(LayoutError::ObjectOverflow {
                    range: piece.range,
                    object: piece.object,
                    object_offset: piece.object_offset,
                });
            }
        }
        // A stable sort: equal starts stay in the order listed.
        pieces.sort_by_key(|piece| piece.range.start);
        let mut kept: Vec<Piece> = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            let Some(last) = kept.last_mut() else {
                kept.push(piece);
                continue;
            };
            if piece.range.end <= last.range.end {
                continue;
            }
            let held = last.range.end.saturating_sub(piece.range.start);
            piece.range.start += held;
            piece.object_offset += held;
            let continues = piece.object == last.object
                && piece.range.start == last.range.end
                && piece.object_offset == last.object_offset + last.range.len();
            if continues {
                last.range.end = piece.range.end;
            } else {
                kept.push(piece);
            }
        }
        Ok(Self { pieces: kept })
    }

    /// One object, number 0, that holds the whole range from its own offset 0 on (memory).
    #[must_use]
    pub fn single(range: Range) -> Self {
        let piece = Piece {
            range,
            object: 0,
            object_offset: 0,
        };
        let pieces = if range.is_empty() {
            Vec::new()
        } else {
            vec![piece]
        };
        Self { pieces }
    }

    /// Whole objects back to back from `base`, given as (object, length) in the order they lie;
    /// empty ones take no place. Cost O(n).
    ///
    /// # Errors
    /// [`LayoutError::SpaceOverflow`] when they do not fit between `base` and the end of 64 bits.
    pub fn back_to_back(
        base: u64,
        objects: impl IntoIterator<Item = (u32, u64)>,
    ) -> Result<Self, LayoutError> {
        let mut pieces = Vec::new();
        let mut start = base;
        for (object, len) in objects.into_iter().filter(|&(_, len)| len > 0) {
            let range = Range::from_length(start, len).ok_or(LayoutError::SpaceOverflow {
                base,
                len: (start - base).saturating_add(len),
            })?;
            start = range.end;
            pieces.push(Piece {
                range,
                object,
                object_offset: 0,
            });
        }
        Ok(Self { pieces })
    }

    /// The piece that holds `offset`, cut so that it starts there. Cost O(log n).
    #[must_use]
    pub fn locate(&self, offset: u64) -> Option<Piece> {
        let mut piece = self.piece_at(offset)?;
        let skipped = offset - piece.range.start;
        piece.range.start = offset;
        piece.object_offset += skipped;
        Some(piece)
    }

    /// The unit of integrity that holds `offset`: the longest range around it that lies in one
    /// piece and in one stretch of the object aligned to `unit_len`. Empty, at `offset`, when no
    /// piece holds it. Cost O(log n).
    #[must_use]
    pub fn unit_at(&self, offset: u64, unit_len: u64) -> Range {
        self.unit_near(offset, unit_len, &Cell::new(0))
    }

    /// As [`unit_at`](Self::unit_at), for callers that ask for one unit after another.
    ///
    /// * `place`: where the last one was found, at first any. Cost O(1) for a unit there or in the piece after it.
    #[must_use]
    pub fn unit_near(&self, offset: u64, unit_len: u64, place: &Cell<usize>) -> Range {
        let near = self.pieces.iter().enumerate().skip(place.get()).take(2);
        let mut near = near.map(|(at, piece)| (at, *piece));
        let near = near.find(|(_, piece)| piece.range.contains(offset));
        let Some((at, piece)) = near.or_else(|| self.place_of(offset)) else {
            return Range::new(offset, offset);
        };
        place.set(at);
        let into_piece = offset - piece.range.start;
        let into_unit = (piece.object_offset + into_piece) % unit_len;
        Range {
            start: offset - into_unit.min(into_piece),
            end: unit_end(&piece, offset, unit_len),
        }
    }

    /// The units of [`CHUNK_LEN`] that cover `range`, in order, the first and last cut to it; holes are skipped.
    ///
    /// Cost O(log n) to start and O(1) a unit or piece.
    pub fn units(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let first = self
            .pieces
            .partition_point(|piece| piece.range.end <= range.start);
        let mut pieces = self.pieces[first..].iter();
        let mut current = pieces.next();
        let mut offset = range.start;
        std::iter::from_fn(move || {
            let mut piece = current?;
            if offset >= piece.range.end {
                current = pieces.next();
                piece = current?;
            }
            let start = offset.max(piece.range.start);
            if start >= range.end {
                return None;
            }
            let end = unit_end(piece, start, CHUNK_LEN).min(range.end);
            offset = end;
            Some(Range { start, end })
        })
    }

    /// The bytes of the data space that the pieces hold. Cost O(n).
    #[must_use]
    pub fn ranges(&self) -> RangeSet {
        self.pieces.iter().map(|piece| piece.range).collect()
    }

    /// The pieces, ordered by data-space offset.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn piece_at(&self, offset: u64) -> Option<Piece> {
        self.place_of(offset).map(|(_, piece)| piece)
    }

    fn place_of(&self, offset: u64) -> Option<(usize, Piece)> {
        let at = self
            .pieces
            .partition_point(|piece| piece.range.end <= offset);
        let piece = self.pieces.get(at);
        let piece = piece.filter(|piece| piece.range.contains(offset));
        piece.map(|piece| (at, *piece))
    }
}

/// Where the unit that holds `offset`, which lies in the piece, ends.
fn unit_end(piece: &Piece, offset: u64, unit_len: u64) -> u64 {
    let into_unit = (piece.object_offset + (offset - piece.range.start)) % unit_len;
    offset
        .saturating_add(unit_len - into_unit)
        .min(piece.range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(start: u64, end: u64, object: u32, object_offset: u64) -> Piece {
        Piece {
            range: Range { start, end },
            object,
            object_offset,
        }
    }

    /// The second replica of the same bytes gives way to the first, and keeps its own alignment.
    #[test]
    fn overlapping_pieces_are_trimmed() {
        let layout = Layout::new(vec![
            piece(5, 20, 1, 100),
            piece(0, 10, 0, 0),
            piece(2, 8, 2, 0),
        ])
        .unwrap();
        assert_eq!(layout.pieces(), [piece(0, 10, 0, 0), piece(10, 20, 1, 105)]);
    }

    /// Rows that cut one file into neighbours make one piece, so that no unit is cut needlessly.
    #[test]
    fn neighbours_in_one_object_are_joined() {
        let layout = Layout::new(vec![
            piece(10, 20, 0, 10),
            piece(0, 10, 0, 0),
            piece(20, 30, 0, 50),
        ])
        .unwrap();
        assert_eq!(layout.pieces(), [piece(0, 20, 0, 0), piece(20, 30, 0, 50)]);
    }

    /// A piece that would end beyond 2^64 in its object is refused, not wrapped.
    #[test]
    fn object_overflow_is_refused() {
        let error = Layout::new(vec![piece(0, 11, 3, u64::MAX - 10)]).unwrap_err();
        assert!(
            matches!(error, LayoutError::ObjectOverflow { object: 3, .. }),
            "{error}"
        );
    }

    /// Chunks are aligned in the object, wherever the data space puts it.
    #[test]
    fn units_follow_the_object() {
        let layout = Layout::new(vec![piece(7, 7 + 3 * CHUNK_LEN, 0, CHUNK_LEN - 5)]).unwrap();
        assert_eq!(layout.unit_at(7, CHUNK_LEN), Range { start: 7, end: 12 });
        assert_eq!(layout.unit_at(11, CHUNK_LEN), Range { start: 7, end: 12 });
        assert_eq!(
            layout.unit_at(12, CHUNK_LEN),
            Range {
                start: 12,
                end: 12 + CHUNK_LEN
            }
        );
        assert_eq!(layout.unit_at(6, CHUNK_LEN), Range { start: 6, end: 6 });
    }

    /// A node has a thousand units or more where it can; never odd lengths.
    #[test]
    fn units_shrink_with_the_transfer() {
        assert_eq!(unit_len(0), UNIT_LEN_MIN);
        assert_eq!(unit_len(1023 * UNIT_LEN_MIN), UNIT_LEN_MIN);
        assert_eq!(unit_len(209_000_000), 128 << 10);
        assert_eq!(unit_len(1 << 30), CHUNK_LEN);
        assert_eq!(unit_len(u64::MAX), CHUNK_LEN);
    }

    /// Smaller units are aligned in the object as well, and lie within the chunks.
    #[test]
    fn small_units_follow_the_object() {
        let layout = Layout::new(vec![piece(7, 7 + 3 * CHUNK_LEN, 0, CHUNK_LEN - 5)]).unwrap();
        let unit = |offset| layout.unit_at(offset, UNIT_LEN_MIN);
        assert_eq!(unit(11), Range { start: 7, end: 12 });
        assert_eq!(
            unit(13),
            Range {
                start: 12,
                end: 12 + UNIT_LEN_MIN
            }
        );
    }

    /// Files of a tree follow each other; empty ones take no place; 64 bits are the limit.
    #[test]
    fn objects_lie_back_to_back() {
        let layout = Layout::back_to_back(100, [(1, 5), (2, 0), (4, 7)]).unwrap();
        assert_eq!(
            layout.pieces(),
            [piece(100, 105, 1, 0), piece(105, 112, 4, 0)]
        );
        let full = Layout::back_to_back(0, [(0, u64::MAX - 1), (1, 1)]);
        assert_eq!(full.unwrap().pieces().len(), 2);
        let error = Layout::back_to_back(10, [(0, u64::MAX - 11), (1, 2)]).unwrap_err();
        assert!(
            matches!(error, LayoutError::SpaceOverflow { base: 10, .. }),
            "{error}"
        );
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let one = (0u64..6 << 20, 0u64..3 << 20, 0u32..3, 0u64..3 << 20);
        let one = one.prop_map(|(start, len, object, at)| piece(start, start + len, object, at));
        proptest::collection::vec(one, 0..8)
    }

    proptest! {
        /// Wherever the last unit was found, the next one is found, and is the same.
        #[test]
        fn units_are_the_same_from_anywhere(pieces in pieces(), probes in proptest::collection::vec(0u64..10 << 20, 1..40), unit_len in 1u64..1 << 20, first in 0usize..20) {
            let layout = Layout::new(pieces).unwrap();
            let place = Cell::new(first);
            let units = layout.units(Range::new(0, 10 << 20)).map(|unit| unit.start);
            for offset in probes.into_iter().chain(units) {
                let unit = layout.unit_near(offset, unit_len, &place);
                prop_assert_eq!(unit, layout.unit_at(offset, unit_len));
                if let Some(piece) = layout.locate(offset) {
                    prop_assert!(unit.contains(offset) && piece.range.end >= unit.end);
                    prop_assert!(layout.pieces()[place.get()].range.contains(offset));
                }
            }
        }

        /// A layout holds exactly the union of its pieces, and each byte lies where some piece put it.
        #[test]
        fn layout_holds_what_its_pieces_hold(pieces in pieces(), probes in proptest::collection::vec(0u64..10 << 20, 16)) {
            let layout = Layout::new(pieces.clone()).unwrap();
            prop_assert_eq!(layout.ranges(), pieces.iter().map(|p| p.range).collect());
            for offset in probes {
                let place = layout.locate(offset).map(|p| (p.object, p.object_offset));
                let mut listed = pieces.iter().filter(|p| p.range.contains(offset))
                    .map(|p| (p.object, p.object_offset + (offset - p.range.start)));
                prop_assert_eq!(place.is_some(), listed.clone().next().is_some());
                prop_assert!(place.is_none_or(|place| listed.any(|other| other == place)));
            }
        }

        /// Units cover a range once, in order, and each is the unit around its bytes cut to the range.
        #[test]
        fn units_partition_a_range(pieces in pieces(), start in 0u64..9 << 20, len in 0u64..4 << 20) {
            let layout = Layout::new(pieces).unwrap();
            let range = Range { start, end: start + len };
            let units: Vec<Range> = layout.units(range).collect();
            prop_assert!(units.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert_eq!(units.iter().copied().collect::<RangeSet>(), layout.ranges().clipped(range));
            for unit in units {
                prop_assert!(unit.len() <= CHUNK_LEN);
                prop_assert_eq!(layout.unit_at(unit.start, CHUNK_LEN).intersect(range), Some(unit));
                prop_assert_eq!(layout.unit_at(unit.end - 1, CHUNK_LEN), layout.unit_at(unit.start, CHUNK_LEN));
            }
        }
    }
}
