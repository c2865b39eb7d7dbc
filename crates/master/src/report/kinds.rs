//! Causes of many nodes or pairs that are small one by one, and not together. Pure.

use std::collections::BTreeMap;

use ropewalk_proto::report::{BottleneckCause, BottleneckReport};

/// A cause of so much of the time is named with its place.
const NAMED_MIN: f64 = 0.1;

/// What is joined: one cause, of pairs at one end of them, or of all nodes.
type Place = (BottleneckCause, Option<String>, Option<String>);

/// Joins causes of one kind that have less than a tenth of the time each: those of all pairs of a sender, then of a receiver, then of all nodes. Of 16
/// receivers that hand on, 240 paths have 0.4 % each.
pub(super) fn join_small(found: &mut Vec<BottleneckReport>) {
    let is_of_pair = |one: &BottleneckReport| one.node.is_some() && one.peer.is_some();
    join(found, |one| {
        is_of_pair(one).then(|| (one.cause, one.node.clone(), None))
    });
    join(found, |one| {
        is_of_pair(one).then(|| (one.cause, None, one.peer.clone()))
    });
    join(found, |one| Some((one.cause, None, None)));
}

/// Joins what is small and has the same place, where all of that together is large.
fn join(found: &mut Vec<BottleneckReport>, place: impl Fn(&BottleneckReport) -> Option<Place>) {
    let place = |one: &BottleneckReport| place(one).filter(|_| one.share < NAMED_MIN);
    let mut places: BTreeMap<Place, (usize, f64)> = BTreeMap::new();
    for one in found.iter() {
        if let Some(place) = place(one) {
            let (count, sum) = places.entry(place).or_default();
            (*count, *sum) = (*count + 1, *sum + one.share);
        }
    }
    places.retain(|_, (count, sum)| *count > 1 && *sum >= NAMED_MIN);
    found.retain(|one| place(one).is_none_or(|place| !places.contains_key(&place)));
    let joined = places
        .into_iter()
        .map(|((cause, node, peer), (_, share))| BottleneckReport {
            cause,
            node,
            peer,
            rail: None,
            share,
        });
    found.extend(joined);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(
        cause: BottleneckCause,
        node: Option<&str>,
        peer: Option<&str>,
        share: f64,
    ) -> BottleneckReport {
        BottleneckReport {
            cause,
            node: node.map(str::to_owned),
            peer: peer.map(str::to_owned),
            rail: None,
            share,
        }
    }

    fn path(from: &str, to: &str, share: f64) -> BottleneckReport {
        one(BottleneckCause::Path, Some(from), Some(to), share)
    }

    fn joined(mut found: Vec<BottleneckReport>) -> Vec<BottleneckReport> {
        join_small(&mut found);
        for one in &mut found {
            one.share = (one.share * 1000.0).round() / 1000.0;
        }
        found
    }

    #[test]
    fn what_is_small_everywhere_is_named_once() {
        let pairs = (0..16).flat_map(|from| (0..15).map(move |to| (from, to)));
        let paths = pairs.map(|(from, to)| path(&format!("b{from}"), &format!("b{to}"), 0.003));
        // A large one stays beside the others of its kind.
        let paths = paths.chain([path("a", "b1", 0.12)]);
        let large = one(BottleneckCause::SinkDisk, Some("b"), None, 0.12);
        let others = [
            large.clone(),
            one(BottleneckCause::SinkDisk, Some("c"), None, 0.05),
            one(BottleneckCause::Loss, Some("a"), Some("b"), 0.03),
            one(BottleneckCause::Loss, Some("b"), Some("c"), 0.02),
        ];
        let mut expected = vec![path("a", "b1", 0.12)];
        expected.extend(others.clone());
        expected.push(one(BottleneckCause::Path, None, None, 0.72));
        assert_eq!(joined(paths.chain(others).collect()), expected);
    }

    /// One end that all have in common is named.
    #[test]
    fn a_common_end_is_named() {
        let names: Vec<String> = (0..16).map(|number| format!("b{number}")).collect();
        let from_one = names.iter().map(|name| path("a", name, 0.05));
        let found = joined(from_one.chain([path("b1", "b2", 0.01)]).collect());
        let of_a = one(BottleneckCause::Path, Some("a"), None, 0.8);
        assert_eq!(found, [path("b1", "b2", 0.01), of_a]);
        let to_one = names.iter().map(|name| path(name, "c", 0.05));
        let to_c = one(BottleneckCause::Path, None, Some("c"), 0.8);
        assert_eq!(joined(to_one.collect()), [to_c]);
    }
}
