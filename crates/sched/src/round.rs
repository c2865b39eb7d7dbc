//! From fluid bytes of ways to whole bytes, with every limit kept within a few bytes.

use ropewalk_model::class::DemandTable;
use ropewalk_model::schedule::{Assignment, Schedule};

use crate::links::Way;
use crate::whole::Cursor;

/// Rounds down, then gives the bytes left of each class one by one to the way whose limits are over
/// the least.
///
/// * `ways`, `bytes`: class by class; fluid bytes sum to the class's demand as far as floats go.
/// * `speeds`, `seconds`: a limit is over by its load less speed × seconds.
///
/// Cost O(ways × limits of a way × bytes left), and bytes left are fewer than ways.
pub(crate) fn whole_ways(
    table: &DemandTable,
    ways: &[Way],
    bytes: &[f64],
    speeds: &[u64],
    seconds: f64,
) -> Schedule {
    let mut whole: Vec<u64> = bytes.iter().map(|bytes| near_floor(*bytes)).collect();
    let mut over: Vec<f64> = speeds.iter().map(|&s| -(s as f64) * seconds).collect();
    let ranges = class_ranges(table, ways);
    for (class, ways_of) in ranges.iter().enumerate() {
        // Conversion and sums of huge floats may come out above the demand.
        let mut above = 0_u128;
        for at in ways_of.clone() {
            above += u128::from(whole[at]);
        }
        let mut above = above.saturating_sub(u128::from(table.classes[class].bytes));
        for at in ways_of.clone() {
            let less = above.min(u128::from(whole[at])) as u64;
            whole[at] -= less;
            above -= u128::from(less);
        }
    }
    for (way, whole) in ways.iter().zip(&whole) {
        for &limit in &way.limits {
            over[limit as usize] += *whole as f64;
        }
    }
    // Classes with the fewest ways first: they can choose least.
    let used =
        |ways_of: &std::ops::Range<usize>| ways_of.clone().filter(|&at| bytes[at] > 0.0).count();
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&class| used(&ranges[class]));
    for class in order {
        let ways_of = ranges[class].clone();
        let given: u64 = whole[ways_of.clone()].iter().sum();
        let mut left = table.classes[class].bytes - given;
        while left > 0 {
            let worst = |at: usize| {
                let limits = ways[at].limits.iter().map(|&l| over[l as usize]);
                limits.fold(f64::NEG_INFINITY, f64::max)
            };
            let used = ways_of.clone().filter(|&at| bytes[at] > 0.0);
            let best = used.min_by(|&a, &b| worst(a).total_cmp(&worst(b)));
            let Some(best) = best.or(ways_of.clone().next()) else {
                break;
            };
            // More than a byte at a time only where floats ran out of digits.
            let step = (left / 64).max(1);
            whole[best] += step;
            left -= step;
            for &limit in &ways[best].limits {
                over[limit as usize] += step as f64;
            }
        }
    }
    let mut assignments = Vec::new();
    for (class, ways_of) in ranges.into_iter().enumerate() {
        let mut cursor = Cursor::new(&table.classes[class]);
        for at in ways_of {
            let (sender, receiver) = (ways[at].sender, ways[at].receiver);
            cursor.take(whole[at], |range| {
                assignments.push(Assignment {
                    range,
                    sender,
                    receiver,
                });
            });
        }
    }
    Schedule::from_assignments(assignments)
}

/// The ways of each class.
fn class_ranges(table: &DemandTable, ways: &[Way]) -> Vec<std::ops::Range<usize>> {
    let mut at = 0;
    let classes = 0..table.classes.len();
    let range = |class| {
        let from = at;
        while ways.get(at).is_some_and(|way| way.class == class) {
            at += 1;
        }
        from..at
    };
    classes.map(range).collect()
}

/// The floor, but the nearest whole number where the difference is rounding in the solver.
fn near_floor(bytes: f64) -> u64 {
    let near = bytes.round();
    // Conversion saturates.
    match (bytes - near).abs() < 1e-6 * near.clamp(1.0, 1e3) {
        true => near as u64,
        false => bytes.floor() as u64,
    }
}
