//! Networks of any size, and the process's own memory, for the examples.

use ropewalk_model::Range;
use ropewalk_model::layout::UNIT_LEN_MIN;
use ropewalk_sim::{Chance, Scenario, Speed, node};

/// Half senders and half receivers, `units` units of 64 KiB for each to move in about `seconds`; half of them are
/// twice as fast as the others. LAYOUT is `blocks`, `windows` or `all`.
pub fn scenario(nodes: u64, layout: &str, units: u64, seconds: f64) -> Scenario {
    let pairs = (nodes / 2).max(1);
    let block = units * UNIT_LEN_MIN;
    let all = Range::new(0, pairs * block);
    // Blocks around the end go on at the start.
    let blocks = |first: u64, count: u64| -> Vec<Range> {
        let count = count.min(pairs);
        let numbers = (first..first + count).map(|at| at % pairs);
        numbers
            .map(|at| Range::new(at * block, (at + 1) * block))
            .collect()
    };
    let mut chance = Chance::new(nodes);
    // Mean 1: what all have together moves all in `seconds`.
    let mut speed =
        || Speed::both(block as f64 / seconds * [2.0 / 3.0, 4.0 / 3.0][chance.below(2) as usize]);
    let (mut setups, mut speeds) = (Vec::new(), Vec::new());
    for at in 0..pairs {
        let holds = match layout {
            "all" => vec![all],
            _ => blocks(at, 3),
        };
        setups.push(node(format!("s{at}"), &holds, &[], None));
        speeds.push(speed());
    }
    for at in 0..pairs {
        let (wants, destination) = match layout {
            "all" => (vec![all], Some("out")),
            "windows" => (blocks(at, 2), Some("out")),
            _ => (blocks(at, 1), None),
        };
        setups.push(node(format!("r{at}"), &[], &wants, destination));
        speeds.push(speed());
    }
    Scenario::new(setups, speeds)
}

/// A line of the process's own account, kilobytes; 0 where there is none.
pub fn memory(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Seconds that the first thread has been on a processor: other programs on the machine do not count.
pub fn processor_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = line
        .split_whitespace()
        .next()
        .and_then(|value| value.parse().ok());
    nanoseconds.map_or(0.0, |value: u64| value as f64 / 1e9)
}
