use proptest::prelude::*;

use super::*;

const SPACE: u64 = 64;

/// The naive model: one flag a byte.
fn bits(set: &RangeSet) -> Vec<bool> {
    (0..SPACE)
        .map(|offset| set.iter().any(|run| run.contains(offset)))
        .collect()
}

fn range() -> impl Strategy<Value = Range> {
    (0..SPACE, 0..12u64).prop_map(|(start, len)| Range::new(start, (start + len).min(SPACE)))
}

fn ranges() -> impl Strategy<Value = Vec<Range>> {
    proptest::collection::vec(range(), 0..12)
}

fn assert_canonical(set: &RangeSet) {
    assert!(set.iter().all(|run| run.start < run.end), "{set}");
    let gaps = set.as_slice().windows(2).all(|w| w[0].end < w[1].start);
    assert!(gaps, "runs touch: {set}");
}

proptest! {
    /// Values are those given last, taken away or never given, as with one value a byte; pieces are as few as possible.
    #[test]
    fn a_map_agrees_with_a_value_a_byte(steps in proptest::collection::vec((range(), proptest::option::of(0..3u8)), 0..16), probe in range()) {
        let mut map = RangeMap::default();
        let mut bytes = [None; SPACE as usize];
        for (range, value) in steps {
            match value {
                Some(value) => map.insert(range, value),
                None => map.remove(range),
            }
            bytes[range.start as usize..range.end as usize].fill(value);
        }
        let whole: Vec<_> = map.within(Range::new(0, SPACE)).collect();
        prop_assert_eq!(whole.len(), map.len());
        prop_assert_eq!(whole.is_empty(), map.is_empty());
        let touch = |w: &[(Range, u8)]| w[0].0.end == w[1].0.start && w[0].1 == w[1].1;
        prop_assert!(!whole.windows(2).any(touch), "{whole:?}");
        let parts: Vec<_> = map.within(probe).collect();
        for (offset, value) in (0..SPACE).zip(bytes) {
            prop_assert_eq!(map.get(offset), value);
            let here = parts.iter().find(|(part, _)| part.contains(offset));
            let expected = value.filter(|_| probe.contains(offset));
            prop_assert_eq!(here.map(|(_, value)| *value), expected);
        }
    }

    /// Every set operation agrees with the same operation on single bytes.
    #[test]
    fn operations_agree_with_a_bitmap(left in ranges(), right in ranges(), probe in range()) {
        let a = RangeSet::from_ranges(left.iter().copied());
        let b = RangeSet::from_ranges(right.iter().copied());
        for (offset, bit) in bits(&a).into_iter().enumerate() {
            let expected = left.iter().any(|r| r.contains(offset as u64));
            prop_assert_eq!(bit, expected);
            prop_assert_eq!(a.contains(offset as u64), expected);
        }
        type Operation = fn(&RangeSet, &RangeSet) -> RangeSet;
        type BitOperation = fn(bool, bool) -> bool;
        let table: [(Operation, BitOperation); 3] = [
            (RangeSet::union, |x, y| x || y),
            (RangeSet::intersection, |x, y| x && y),
            (RangeSet::difference, |x, y| x && !y),
        ];
        for (operation, bit) in table {
            let result = operation(&a, &b);
            assert_canonical(&result);
            let expected: Vec<bool> = bits(&a).iter().zip(bits(&b)).map(|(x, y)| bit(*x, y)).collect();
            prop_assert_eq!(bits(&result), expected);
        }
        prop_assert_eq!(a.len_bytes(), bits(&a).iter().filter(|bit| **bit).count() as u64);
        prop_assert_eq!(a.contains_range(probe), (probe.start..probe.end).all(|o| a.contains(o)));
        prop_assert_eq!(a.clipped(probe), a.intersection(&RangeSet::from(probe)));
        let back: Vec<Range> = a.within(probe).rev().collect();
        prop_assert!(back.into_iter().rev().eq(a.clipped(probe).iter()));
        let gaps: Vec<Range> = a.gaps(probe).collect();
        prop_assert!(gaps.into_iter().eq(RangeSet::from(probe).difference(&a).iter()));
    }

    /// Inserting and removing one by one ends where the naive model ends, in canonical form.
    #[test]
    fn edits_agree_with_a_bitmap(edits in proptest::collection::vec((any::<bool>(), range()), 0..40)) {
        let mut set = RangeSet::new();
        let mut model = vec![false; SPACE as usize];
        for (insert, range) in edits {
            if insert { set.insert(range) } else { set.remove(range) }
            model[range.start as usize..range.end as usize].fill(insert);
            assert_canonical(&set);
            prop_assert_eq!(bits(&set), model.clone());
        }
    }

    /// JSON keeps a set exactly.
    #[test]
    fn json_round_trip(ranges in ranges(), shift in 0..u64::MAX - SPACE) {
        let set: RangeSet = ranges.iter().map(|r| Range::new(r.start + shift, r.end + shift)).collect();
        let text = serde_json::to_string(&set).unwrap();
        prop_assert_eq!(serde_json::from_str::<RangeSet>(&text).unwrap(), set);
    }
}

/// Inclusive ranges as people type them; what cannot be a range is refused.
#[test]
fn inclusive_ranges() {
    assert_eq!(Range::from_inclusive(0, 1023), Some(Range::new(0, 1024)));
    assert_eq!(Range::from_inclusive(5, 5).map(Range::len), Some(1));
    assert_eq!(Range::from_inclusive(5, 4), None);
    assert_eq!(Range::from_inclusive(0, u64::MAX), None);
    assert_eq!(Range::from_length(u64::MAX, 1), None);
}

/// A JSON range that ends before it starts is an error, not an empty range.
#[test]
fn reversed_json_is_refused() {
    let error = serde_json::from_str::<RangeSet>("[[5, 4]]").unwrap_err();
    assert!(
        error.to_string().contains("ends before it starts"),
        "{error}"
    );
}
