//! Rows of writers that say of different files that both hold some bytes of the data space, at different offsets.
//!
//! That is right where files are windows of one set of data (CEP section 3.2: any writer that holds a byte may send it), and
//! a slip of the pen in a column otherwise: then the speeds of nodes determine which file's bytes arrive. Where the offsets are
//! the same, sizes and times of the files are compared, as those of replicas. Here they show nothing, so some of the bytes
//! that both are said to hold are read at both ends before the start: the first, the middle and the last of an overlap.
//! Bytes that differ elsewhere are found, or not, when both copies of a unit happen to arrive.

use std::collections::BTreeMap;

use ropewalk_model::Range;

use super::{Coordinator, Mapping};

/// Bytes of a sample (64 KiB): a read that costs about as much as a seek.
const SAMPLE_LEN: u64 = 64 << 10;

/// Overlaps that are looked at, spread over all (64): with three samples each, 12 MiB for a node that is in all of them.
const OVERLAPS_MAX: usize = 64;

/// Shifts that are followed at one place (8): each row is compared with that many of those before it that reach furthest, so
/// that a thousand windows cost no million of pairs.
const SHIFTS_MAX: usize = 8;

/// Two rows that overlap, and what is read of each.
#[derive(Clone, Debug)]
pub(super) struct Overlap {
    pub sides: [Side; 2],
    pub samples: Vec<Range>,
}

/// One of the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub node: u32,
    pub source: u32,
    row: u32,
    // Position of its first sample in what its node is asked for.
    pub sample: u32,
}

impl Overlap {
    /// The first sample in which they differ.
    pub fn difference(&self, hashes: &BTreeMap<(u32, u32), Vec<u8>>) -> Option<Range> {
        let hash = |side: &Side, at: usize| {
            let hash = hashes.get(&(side.node, side.sample + at as u32));
            // What could not be read is for the transfer to trip over.
            hash.filter(|hash| !hash.is_empty())
        };
        let [one, other] = &self.sides;
        let mut samples = self.samples.iter().enumerate();
        let differs = |(at, _): &(usize, &Range)| match (hash(one, *at), hash(other, *at)) {
            (Some(first), Some(second)) => first != second,
            _ => false,
        };
        samples.find(differs).map(|(_, range)| *range)
    }
}

/// A row as it is compared: its bytes, how far its object is shifted against the data space, and whose it is.
struct Placed {
    range: Range,
    shift: i128,
    side: Side,
}

/// The first, middle and last bytes of a range.
fn samples(range: Range) -> Vec<Range> {
    if range.len() <= 3 * SAMPLE_LEN {
        return vec![range];
    }
    let middle = range.start + range.len() / 2;
    let starts = [range.start, middle, range.end - SAMPLE_LEN];
    let sample = |start: u64| Range {
        start,
        end: start + SAMPLE_LEN,
    };
    starts.map(sample).into()
}

impl Coordinator {
    /// Overlaps of rows of files with different shifts, a bounded number of them.
    pub(super) fn overlaps(&self) -> Vec<Overlap> {
        if self.setup.mapping != Mapping::Rows {
            return Vec::new();
        }
        let mut rows = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            for (source, setup) in state.setup.sources.iter().enumerate() {
                for (row, placed) in setup.source.rows.iter().enumerate() {
                    // Made in memory: the same bytes everywhere.
                    if placed.object.starts_with(b"mem:") || placed.length == 0 {
                        continue;
                    }
                    rows.push(Placed {
                        range: crate::control::range(placed.start, placed.length),
                        shift: i128::from(placed.object_offset) - i128::from(placed.start),
                        side: Side {
                            node: node as u32,
                            source: source as u32,
                            row: row as u32,
                            sample: 0,
                        },
                    });
                }
            }
        }
        rows.sort_by_key(|row| (row.range.start, row.range.end));
        let mut found: Vec<Overlap> = Vec::new();
        // Of the rows of each shift seen so far, the one that reaches furthest.
        let mut furthest: BTreeMap<i128, usize> = BTreeMap::new();
        for (at, row) in rows.iter().enumerate() {
            furthest.retain(|_, &mut other| rows[other].range.end > row.range.start);
            for (_, &other) in furthest.iter().filter(|(shift, _)| **shift != row.shift) {
                let Some(both) = rows[other].range.intersect(row.range) else {
                    continue;
                };
                found.push(Overlap {
                    sides: [rows[other].side, row.side],
                    samples: samples(both),
                });
            }
            let known = furthest.entry(row.shift).or_insert(at);
            if rows[*known].range.end < row.range.end {
                *known = at;
            }
            if furthest.len() > SHIFTS_MAX
                && let Some((&shift, _)) = furthest
                    .iter()
                    .min_by_key(|&(_, &other)| rows[other].range.end)
            {
                furthest.remove(&shift);
            }
        }
        let step = found.len().div_ceil(OVERLAPS_MAX).max(1);
        found.into_iter().step_by(step).collect()
    }

    pub(super) fn overlap_refusal(&self, overlap: &Overlap, range: Range) -> String {
        let [one, other] = overlap.sides.map(|side| self.row_in_words(side));
        format!(
            "the rows `{one}` and `{other}` say that both files hold bytes {}-{} of the data, and they differ there; check \
             offset and range of both, or give the bytes to one of them",
            range.start,
            range.end - 1
        )
    }

    /// As it is written in a specification file, but for the port.
    fn row_in_words(&self, side: Side) -> String {
        let node = &self.nodes[side.node as usize].setup;
        let row = &node.sources[side.source as usize].source.rows[side.row as usize];
        format!(
            "writer {} {} {} {}-{}",
            node.name,
            row.object.escape_ascii(),
            row.object_offset,
            row.start,
            (row.start + row.length).saturating_sub(1)
        )
    }
}
