//! Moves the cuts of a plan to unit borders.

use ropewalk_model::Range;

use crate::control::Run;

/// The runs, sorted by start. A unit that a cut goes through becomes a run of its own when one of the
/// two senders is known to hold all of it. No byte is lost or taken twice.
///
/// It comes over the relay of its first byte, if that has one: so all receivers that want all of it have it from the same node in the
/// end, and none waits for another that waits for it.
pub(super) fn align(runs: &[Run], unit_at: &dyn Fn(u64) -> Range) -> Vec<Run> {
    let mut sorted: Vec<Run> = runs.to_vec();
    sorted.sort_by_key(|run| run.start);
    let mut out: Vec<Run> = Vec::with_capacity(sorted.len());
    for mut run in sorted {
        let cut = run.start;
        let unit = unit_at(cut);
        let inside = unit.start < cut && cut < unit.end;
        if let Some(mut last) = out.pop_if(|last| inside && last.start + last.length == cut) {
            let sender = [last.sender, run.sender]
                .into_iter()
                .find(|&s| holds(&last, s) && holds(&run, s));
            let whole = Range {
                start: unit.start.max(last.start),
                end: unit.end.min(cut + run.length),
            };
            if let Some(sender) = sender {
                let relay = last.relay;
                let both = |spare: &u32| *spare != sender && holds(&run, *spare);
                let spares = std::iter::once(&last.sender)
                    .chain(&last.spares)
                    .copied()
                    .filter(|s| both(s))
                    .collect();
                run.length = cut + run.length - whole.end;
                run.start = whole.end;
                last.length = whole.start - last.start;
                if last.length > 0 {
                    out.push(last);
                }
                out.push(Run {
                    start: whole.start,
                    length: whole.len(),
                    sender,
                    spares,
                    choices: run.choices,
                    relay,
                });
            } else {
                out.push(last);
            }
        }
        if run.length > 0 {
            out.push(run);
        }
    }
    out
}

fn holds(run: &Run, node: u32) -> bool {
    run.sender == node || run.spares.contains(&node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ropewalk_model::RangeSet;

    use super::*;
    use crate::control::range;

    fn unit_at(offset: u64) -> Range {
        Range {
            start: offset / 10 * 10,
            end: offset / 10 * 10 + 10,
        }
    }

    proptest! {
        /// Every byte stays wanted exactly once, from somebody who was said to hold it.
        #[test]
        fn bytes_and_holders_are_kept(pieces in proptest::collection::vec((1u64..40, 0u32..4, proptest::collection::vec(0u32..4, 0..3), any::<bool>()), 1..12)) {
            let mut start = 0;
            let mut runs = Vec::new();
            for (length, sender, spares, gap) in pieces {
                start += u64::from(gap) * 7;
                runs.push(Run { start, length, sender, spares, choices: 0, relay: None });
                start += length;
            }
            let aligned = align(&runs, &unit_at);
            let set = |runs: &[Run]| RangeSet::from_ranges(runs.iter().map(|r| range(r.start, r.length)));
            prop_assert_eq!(set(&runs), set(&aligned));
            prop_assert_eq!(runs.iter().map(|r| r.length).sum::<u64>(), aligned.iter().map(|r| r.length).sum::<u64>());
            for run in &aligned {
                for old in runs.iter().filter(|o| range(o.start, o.length).overlaps(range(run.start, run.length))) {
                    prop_assert!(holds(old, run.sender));
                    prop_assert!(run.spares.iter().all(|&s| holds(old, s)));
                }
            }
        }
    }

    /// Replicas of everything: no unit is cut.
    #[test]
    fn full_replicas_are_cut_between_units() {
        let runs = [
            Run {
                start: 0,
                length: 13,
                sender: 0,
                spares: vec![1],
                choices: 0,
                relay: None,
            },
            Run {
                start: 13,
                length: 17,
                sender: 1,
                spares: vec![0],
                choices: 0,
                relay: None,
            },
        ];
        let aligned = align(&runs, &unit_at);
        assert_eq!(
            aligned
                .iter()
                .map(|r| (r.start, r.length))
                .collect::<Vec<_>>(),
            [(0, 10), (10, 10), (20, 10)]
        );
    }

    /// A unit between two parts that receivers hand on comes from where its first byte does, for each receiver.
    #[test]
    fn cut_units_follow_their_first_byte() {
        let run = |start, length, relay| Run {
            start,
            length,
            relay,
            ..Run::default()
        };
        // Parts of three receivers, as each of them and a fourth one fetch them.
        let plans = [
            [None, Some(2), Some(3)],
            [Some(1), None, Some(3)],
            [Some(1), Some(2), None],
            [Some(1), Some(2), Some(3)],
        ];
        for relays in plans {
            let runs = [
                run(0, 13, relays[0]),
                run(13, 14, relays[1]),
                run(27, 13, relays[2]),
            ];
            let aligned = align(&runs, &unit_at);
            let relay_of = |offset: u64| {
                let has = |run: &&Run| range(run.start, run.length).contains(offset);
                aligned.iter().find(has).map(|run| run.relay)
            };
            let firsts = [relays[0], relays[0], relays[1], relays[2]];
            for (unit, first) in (0..).zip(firsts) {
                assert_eq!(relay_of(unit * 10), Some(first), "{aligned:?}");
                assert_eq!(relay_of(unit * 10 + 9), Some(first), "{aligned:?}");
            }
        }
    }
}
