//! Segments: the longest ranges over which a set of members does not change (CEP section 3.2).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::range::{Range, RangeSet};

/// A range over which the same members are present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The bytes; never empty.
    pub range: Range,
    /// Names the member set: segments with equal `set` have equal `members`.
    pub set: usize,
    /// The members present, ascending. Shared between segments with equal sets.
    pub members: Arc<[usize]>,
}

/// Cuts the space wherever a member begins or ends; stretches without any member are left out.
///
/// * `members`: each member's identity and its ranges; identities need not be dense but must differ.
///
/// Ordered by offset; neighbours that touch differ in their set. A sweep over the boundaries recognises
/// equal sets by a running 128-bit hash, so a set is listed only once however often it occurs: cost
/// O(boundaries × log + members of the distinct sets).
pub fn segments<'a>(members: impl IntoIterator<Item = (usize, &'a RangeSet)>) -> Vec<Segment> {
    // (offset, member, begins)
    let mut events: Vec<(u64, usize, bool)> = Vec::new();
    for (member, ranges) in members {
        for run in ranges {
            events.push((run.start, member, true));
            events.push((run.end, member, false));
        }
    }
    events.sort_unstable();
    let mut sets: HashMap<u128, (usize, Arc<[usize]>)> = HashMap::new();
    let mut present: BTreeSet<usize> = BTreeSet::new();
    let mut key = 0_u128;
    let mut segments: Vec<Segment> = Vec::new();
    let mut rest = events.as_slice();
    while let Some(&(offset, _, _)) = rest.first() {
        let here = rest.partition_point(|event| event.0 == offset);
        for &(_, member, begins) in &rest[..here] {
            key ^= member_key(member);
            if begins {
                present.insert(member);
            } else {
                present.remove(&member);
            }
        }
        rest = &rest[here..];
        let Some(&(end, _, _)) = rest.first() else {
            break;
        };
        if present.is_empty() {
            continue;
        }
        let next_id = sets.len();
        let (set, members) = sets
            .entry(key)
            .or_insert_with(|| (next_id, present.iter().copied().collect()));
        segments.push(Segment {
            range: Range::new(offset, end),
            set: *set,
            members: Arc::clone(members),
        });
    }
    segments
}

/// A fixed random-looking 128-bit number for a member; a set's hash is their exclusive or.
///
/// With n sets the chance of two sharing a hash is about n² / 2^129. `schedule::verify` would catch it.
pub(crate) fn member_key(member: usize) -> u128 {
    let high = split_mix((member as u64).wrapping_mul(2));
    let low = split_mix((member as u64).wrapping_mul(2).wrapping_add(1));
    (u128::from(high) << 64) | u128::from(low)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<RangeSet>> {
        let run = (0..48u64, 0..16u64).prop_map(|(s, l)| Range::new(s, s + l));
        let set = proptest::collection::vec(run, 0..4).prop_map(RangeSet::from_ranges);
        proptest::collection::vec(set, 0..6)
    }

    proptest! {
        /// At every offset the segment there lists exactly the members that hold it, and segments
        /// are as long as they can be.
        #[test]
        fn agrees_with_single_bytes(sets in sets()) {
            let segments = segments(sets.iter().enumerate());
            for offset in 0..80 {
                let expected: Vec<usize> = (0..sets.len()).filter(|&m| sets[m].contains(offset)).collect();
                let found = segments.iter().find(|s| s.range.contains(offset));
                let members = found.map_or(Vec::new(), |s| s.members.to_vec());
                prop_assert_eq!(members, expected);
            }
            for pair in segments.windows(2) {
                prop_assert!(pair[0].range.end <= pair[1].range.start);
                if pair[0].range.end == pair[1].range.start {
                    prop_assert_ne!(pair[0].set, pair[1].set);
                }
                prop_assert_eq!(pair[0].set == pair[1].set, pair[0].members == pair[1].members);
            }
        }
    }
}
