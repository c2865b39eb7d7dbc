//! Deals the work of a receiver that joins among those that hand on.
//!
//! Each run is cut where what one of them wants begins or ends, so that all that want a byte of a piece want all of it. A piece is dealt
//! among these by their uplinks; those count less that have had a part of other pieces, and pieces that few want are dealt first. What none
//! of them wants stays with the original holder.

use std::collections::BTreeMap;

use ropewalk_model::{Range, RangeSet};

use crate::control::{Run, range};

/// Receivers that one that joins fetches from: as many as one of the first plan has lanes to at most.
pub(super) const SOURCES_MAX: usize = 64;

/// Parts of what one that joins wants, of which each such receiver fetches another one first.
const STRIPES: u64 = 16;

/// A receiver that hands on.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub node: u32,
    /// Its uplink, bytes per second.
    pub up: u64,
    pub wants: RangeSet,
}

/// A part of a run that the same receivers want.
#[derive(Clone, Copy, Debug)]
struct Piece {
    // Position of the run.
    run: usize,
    range: Range,
    // One bit for each source.
    sources: u64,
}

/// The same runs, of which those name a receiver that is to send them that one wants.
///
/// * `sources`: [`SOURCES_MAX`] at most.
/// * `unit_len`: cuts are at its multiples where a piece has one.
/// * `cuts_units`: what receivers want may begin or end within a unit. None is to have one that it wants only a part of: it never could
///   hand it on.
/// * `node`: the one that joins. Others begin with other sources, and with other bytes: `choices` of its runs.
///
/// The runs are in the order of their offsets. Cost O(runs × sources × ranges wanted × log).
pub(super) fn deal(
    runs: &[Run],
    sources: &[Source],
    (unit_len, cuts_units): (u64, bool),
    node: u32,
) -> Vec<Run> {
    debug_assert!(sources.len() <= SOURCES_MAX);
    let unit_len = unit_len.max(1);
    let asked = RangeSet::from_ranges(runs.iter().map(|run| range(run.start, run.length)));
    let offered = |source: &Source| match cuts_units {
        true => without_last_units(&source.wants, &asked, unit_len),
        false => source.wants.clone(),
    };
    let offered: Vec<RangeSet> = sources.iter().map(offered).collect();
    let mut pieces = pieces(runs, &offered);
    pieces.sort_by_key(|piece| (piece.sources.count_ones(), piece.range.start));
    let count = sources.len().max(1);
    let first = node as usize % count;
    let mut dealt = vec![0_u64; sources.len()];
    let mut parts: Vec<(Range, usize, Option<u32>)> = Vec::new();
    for piece in pieces {
        let order = (0..count).map(|at| (first + at) % count);
        let able: Vec<usize> = order.filter(|at| piece.sources & (1 << at) != 0).collect();
        if able.is_empty() {
            parts.push((piece.range, piece.run, None));
        }
        for (part, source) in cut(piece.range, &able, sources, &dealt, unit_len) {
            dealt[source] += part.len();
            parts.push((part, piece.run, Some(sources[source].node)));
        }
    }
    parts.sort_unstable();
    let stripes = Stripes::over(&asked, unit_len, node);
    let mut out: Vec<Run> = Vec::with_capacity(parts.len());
    let mut last: Option<(usize, Option<u32>)> = None;
    for (whole, run, relay) in parts {
        for (part, rank) in stripes.cut(whole, relay.is_some()) {
            let goes_on = |out: &Run| {
                last == Some((run, relay))
                    && out.choices == rank
                    && out.start + out.length == part.start
            };
            match out.last_mut() {
                Some(out) if goes_on(out) => out.length += part.len(),
                _ => out.push(Run {
                    start: part.start,
                    length: part.len(),
                    relay,
                    choices: rank,
                    ..runs[run].clone()
                }),
            }
            last = Some((run, relay));
        }
    }
    out
}

/// The order in which one that joins fetches: each begins at another place, so that they have something for each other.
struct Stripes {
    start: u64,
    length: u64,
    first: u64,
}

impl Stripes {
    fn over(asked: &RangeSet, unit_len: u64, node: u32) -> Self {
        let start = asked.first().map_or(0, |range| range.start) / unit_len * unit_len;
        let end = asked.last().map_or(0, |range| range.end);
        let length = (end - start).div_ceil(STRIPES).max(1);
        Self {
            start,
            length: length.next_multiple_of(unit_len),
            // Of any numbers in a row these are far apart.
            first: u64::from((node as u8).reverse_bits()) * STRIPES / 256,
        }
    }

    /// Parts of a range, and when each is fetched, from 1 on; all of it at once where it is not `relayed`.
    fn cut(&self, whole: Range, relayed: bool) -> Vec<(Range, u32)> {
        if !relayed {
            return vec![(whole, 0)];
        }
        let mut parts = Vec::new();
        let mut start = whole.start;
        while start < whole.end {
            let stripe = (start - self.start) / self.length;
            let border = self
                .start
                .saturating_add((stripe + 1).saturating_mul(self.length));
            let end = border.min(whole.end);
            let rank = 1 + (stripe + STRIPES - self.first) % STRIPES;
            parts.push((Range::new(start, end), rank as u32));
            start = end;
        }
        parts
    }
}

/// Whether two lists ask for the same bytes of the same original holders, each as often.
pub(super) fn are_alike(one: &[Run], other: &[Run]) -> bool {
    let merged = |runs: &[Run]| {
        let mut by_holders: BTreeMap<(u32, Vec<u32>), (Vec<Range>, u64)> = BTreeMap::new();
        for run in runs {
            let key = (run.sender, run.spares.clone());
            let (ranges, bytes) = by_holders.entry(key).or_default();
            ranges.push(range(run.start, run.length));
            *bytes += run.length;
        }
        let all = by_holders.into_iter();
        all.map(|(key, (ranges, bytes))| (key, RangeSet::from_ranges(ranges), bytes))
            .collect::<Vec<_>>()
    };
    merged(one) == merged(other)
}

/// What a receiver wants, without the last unit of what ends where others go on: a unit has one source, that of its first byte.
fn without_last_units(wants: &RangeSet, asked: &RangeSet, unit_len: u64) -> RangeSet {
    let shorter = |range: Range| match asked.contains(range.end) {
        true => Range::new(
            range.start,
            range.end.saturating_sub(unit_len).max(range.start),
        ),
        false => range,
    };
    RangeSet::from_ranges(wants.iter().map(shorter))
}

/// Cuts runs where what receivers offer begins or ends.
fn pieces(runs: &[Run], offered: &[RangeSet]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (run, whole) in runs
        .iter()
        .map(|run| range(run.start, run.length))
        .enumerate()
    {
        // Offsets, and whose part begins or ends there.
        let mut borders = vec![(whole.end, 0_u64)];
        for (source, offered) in offered.iter().enumerate() {
            let bit = 1 << source;
            let parts = offered.within(whole);
            borders.extend(parts.flat_map(|part| [(part.start, bit), (part.end, bit)]));
        }
        borders.sort_unstable();
        let (mut start, mut sources) = (whole.start, 0);
        for (offset, bit) in borders {
            if offset > start {
                let range = Range::new(start, offset);
                pieces.push(Piece {
                    run,
                    range,
                    sources,
                });
                start = offset;
            }
            sources ^= bit;
        }
    }
    pieces
}

/// Cuts a piece among sources, at multiples of a unit, so that all have had as much as they can send in one time; those that have had
/// more already get nothing.
///
/// * `able`: positions of the sources, in the order of their parts.
/// * `dealt`: bytes that each source has had.
fn cut(
    piece: Range,
    able: &[usize],
    sources: &[Source],
    dealt: &[u64],
    unit_len: u64,
) -> Vec<(Range, usize)> {
    let up = |source: usize| sources[source].up.max(1) as f64;
    let seconds = |source: usize| dealt[source] as f64 / up(source);
    let mut by_seconds = able.to_vec();
    by_seconds.sort_by(|&a, &b| seconds(a).total_cmp(&seconds(b)));
    // The time in which those that have had least send what they have had and this piece.
    let (mut bytes, mut rate, mut level) = (piece.len() as f64, 0.0, f64::INFINITY);
    for source in by_seconds {
        if seconds(source) >= level {
            break;
        }
        bytes += dealt[source] as f64;
        rate += up(source);
        level = bytes / rate;
    }
    let shares = able.iter().map(|&source| {
        let share = (level - seconds(source)) * up(source);
        (source, share)
    });
    let shares: Vec<(usize, f64)> = shares.filter(|(_, share)| *share > 0.0).collect();
    let mut parts = Vec::with_capacity(shares.len());
    let (mut start, mut sum) = (piece.start, 0.0);
    for (at, &(source, share)) in shares.iter().enumerate() {
        sum += share;
        let exact = piece.start.saturating_add(sum as u64);
        let even = (exact.saturating_add(unit_len / 2) / unit_len).saturating_mul(unit_len);
        let end = match at + 1 == shares.len() {
            true => piece.end,
            false => even.clamp(start, piece.end),
        };
        if end > start {
            parts.push((Range::new(start, end), source));
        }
        start = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = 10;

    fn run(start: u64, end: u64, sender: u32) -> Run {
        Run {
            start,
            length: end - start,
            sender,
            spares: vec![sender + 1],
            ..Run::default()
        }
    }

    fn source(node: u32, up: u64, wants: &[(u64, u64)]) -> Source {
        let wants = wants.iter().map(|&(start, end)| Range::new(start, end));
        Source {
            node,
            up,
            wants: RangeSet::from_ranges(wants),
        }
    }

    /// What each of the first 100 nodes has, and what is left to the original holders.
    fn bytes(runs: &[Run]) -> (Vec<u64>, u64) {
        let of = |relay: Option<u32>| {
            let own = runs.iter().filter(|run| run.relay == relay);
            own.map(|run| run.length).sum::<u64>()
        };
        let mut all: Vec<u64> = (0..100).map(|node| of(Some(node))).collect();
        all.truncate(
            all.iter()
                .rposition(|bytes| *bytes > 0)
                .map_or(0, |at| at + 1),
        );
        (all, of(None))
    }

    proptest! {
        /// Every byte is asked for once, of the holders that it was planned from, and only of receivers that want it.
        #[test]
        fn all_bytes_are_dealt_once(
            lengths in proptest::collection::vec((0u64..70, 1u64..300, 0u32..3), 1..8),
            wants in proptest::collection::vec((1u64..50, proptest::collection::vec((0u64..900, 1u64..400), 1..4)), 0..6),
            cuts_units in any::<bool>(),
            first in 0u32..9,
        ) {
            let mut at = 0;
            let runs: Vec<Run> = lengths.into_iter().map(|(gap, length, sender)| {
                at += gap + length;
                run(at - length, at, sender)
            }).collect();
            let sources: Vec<Source> = (10..).zip(wants).map(|(node, (up, wants))| {
                let ranges: Vec<(u64, u64)> = wants.into_iter().map(|(start, len)| (start, start + len)).collect();
                source(node, up, &ranges)
            }).collect();
            let dealt = deal(&runs, &sources, (UNIT, cuts_units), first);
            prop_assert!(are_alike(&runs, &dealt), "{:?}", dealt);
            prop_assert!(dealt.iter().all(|run| run.length > 0));
            prop_assert!(dealt.is_sorted_by_key(|run| run.start));
            for run in &dealt {
                let own = range(run.start, run.length);
                let wants = |source: &Source| source.wants.contains_range(own);
                match run.relay {
                    Some(relay) => prop_assert!(sources.iter().any(|source| source.node == relay && wants(source))),
                    None => prop_assert!(cuts_units || sources.iter().all(|source| source.wants.clipped(own).is_empty())),
                }
            }
        }
    }

    /// A list that lacks bytes, has some twice, or has them from another holder is not the same.
    #[test]
    fn lists_that_differ_are_not_alike() {
        let runs = [run(0, 40, 0), run(40, 100, 1)];
        let relayed = |mut run: Run| {
            run.relay = Some(9);
            run
        };
        assert!(are_alike(
            &runs,
            &[relayed(run(60, 100, 1)), run(0, 40, 0), run(40, 60, 1)]
        ));
        assert!(!are_alike(&runs, &[run(0, 40, 0), run(40, 99, 1)]));
        assert!(!are_alike(
            &runs,
            &[run(0, 40, 0), run(40, 100, 1), run(50, 60, 1)]
        ));
        assert!(!are_alike(&runs, &[run(0, 50, 0), run(50, 100, 1)]));
    }

    /// Parts are as the uplinks are.
    #[test]
    fn parts_are_proportional() {
        let all = [(0, 4000)];
        let sources = [source(2, 1, &all), source(3, 3, &all), source(4, 4, &all)];
        for first in 0..4 {
            let dealt = deal(&[run(0, 4000, 0)], &sources, (UNIT, false), first);
            assert_eq!(bytes(&dealt), (vec![0, 0, 500, 1500, 2000], 0));
            assert_eq!(dealt[0].relay, Some(2 + first % 3));
            assert!(dealt.iter().all(|run| run.start % UNIT == 0));
        }
    }

    /// Those that join fetch all, and begin at different places.
    #[test]
    fn each_that_joins_begins_elsewhere() {
        let all = [(0, 1600)];
        let sources = [source(2, 1, &all)];
        let begins = |node| {
            let dealt = deal(&[run(0, 1600, 0)], &sources, (UNIT, false), node);
            assert!(dealt.iter().all(|run| run.choices > 0));
            let first = dealt.iter().min_by_key(|run| run.choices);
            first.map(|run| run.start)
        };
        let places: BTreeSet<Option<u64>> = (3..11).map(begins).collect();
        assert_eq!(places.len(), 8);
    }

    /// Each byte is offered to all that want it, and those that others could not do without are spared where they can be.
    #[test]
    fn borders_of_what_is_wanted_cut_runs() {
        let sources = [source(2, 1, &[(0, 600)]), source(3, 1, &[(300, 900)])];
        let dealt = deal(&[run(0, 1000, 0)], &sources, (UNIT, false), 0);
        assert_eq!(bytes(&dealt), (vec![0, 0, 450, 450], 100));
        // One has all that the other one does not.
        let sources = [source(2, 1, &[(0, 1000)]), source(3, 1, &[(800, 1000)])];
        let dealt = deal(&[run(0, 1000, 0)], &sources, (UNIT, false), 0);
        assert_eq!(bytes(&dealt), (vec![0, 0, 800, 200], 0));
    }

    /// A unit that a receiver wants only a part of is left to those that want all of it.
    #[test]
    fn parts_of_units_are_not_offered() {
        let runs = [run(0, 100, 0)];
        for end in 41..50 {
            let sources = [source(2, 1, &[(0, end)])];
            let dealt = deal(&runs, &sources, (UNIT, true), 0);
            let (own, rest) = (bytes(&dealt).0[2], bytes(&dealt).1);
            assert!((30..=40).contains(&own) && own + rest == 100, "{dealt:?}");
        }
        // The receiver that joins wants no more of it either.
        let sources = [source(2, 1, &[(0, 100)])];
        assert_eq!(bytes(&deal(&runs, &sources, (UNIT, true), 0)).1, 0);
    }

    /// Of runs that are shorter than a unit all have some; no run is empty.
    #[test]
    fn short_runs_are_dealt_evenly() {
        let runs: Vec<Run> = (0..90).map(|at| run(at * 30, at * 30 + 3, 0)).collect();
        let all = [(0, 2700)];
        let sources = [source(2, 1, &all), source(3, 1, &all), source(4, 1, &all)];
        for first in 0..3 {
            let dealt = deal(&runs, &sources, (UNIT, false), first);
            let (own, rest) = bytes(&dealt);
            assert_eq!((own.iter().sum::<u64>(), rest), (270, 0));
            assert!(
                own[2..].iter().all(|bytes| (80..=100).contains(bytes)),
                "{own:?}"
            );
            assert!(dealt.len() == 90, "a short run is not cut");
        }
    }

    /// Without any that hand on, all stays as it was.
    #[test]
    fn without_sources_nothing_changes() {
        let runs = [run(0, 40, 0), run(40, 100, 1)];
        assert_eq!(deal(&runs, &[], (UNIT, true), 3), runs);
    }
}
