//! Moves the cuts of a plan to unit borders.

use ropewalk_model::Range;

use crate::control::Run;

/// The runs, sorted by start. A unit that a cut goes through becomes a run of its own when one of the
/// two senders is known to hold all of it. No byte is lost or taken twice.
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
                runs.push(Run { start, length, sender, spares, choices: 0 });
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
            },
            Run {
                start: 13,
                length: 17,
                sender: 1,
                spares: vec![0],
                choices: 0,
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
}
