//! Holdings that mislead a proportional rule, moved for real: what a first plan costs, and what feedback saves.
//!
//! The paper's greedy gives each holder a share in proportion to its speed over what it holds. The cases are those for
//! which that is known to be far from the least time, scaled to rates that the lab can cap.

use anyhow::Result;

use crate::bench::{Bench, Settings};
use crate::ropewalk::Moved;
use crate::scenario::{AUTO, GREEDY, Node, Run, Scenario};
use crate::stats::summary;
use crate::table::{Table, number};
use ropewalk_model::{Range, RangeSet};

/// One sender: Mbit/s, and the part of the data that it holds, `from` to `to` in units of the trap.
type Holder = (u64, u64, u64);

struct Trap {
    name: &'static str,
    about: &'static str,
    /// Units of the data space; ends of holdings are multiples.
    units: u64,
    senders: &'static [Holder],
    receiver_megabits: u64,
}

const TRAPS: [Trap; 3] = [
    Trap {
        name: "slow replica",
        about: "1 Mbit/s holds the 1/20 that only one of 20 Mbit/s holds besides, and that one holds the rest with one of 400 Mbit/s",
        units: 20,
        senders: &[(1, 0, 1), (20, 0, 20), (400, 1, 20)],
        receiver_megabits: 800,
    },
    Trap {
        name: "two replicas of each",
        about: "speeds 1, 16, 4; the first and third hold A = 4, the second and third B = 16",
        units: 20,
        senders: &[(20, 0, 4), (320, 4, 20), (80, 0, 20)],
        receiver_megabits: 800,
    },
    Trap {
        name: "two equal senders",
        about: "one holds A and B, the other B only",
        units: 2,
        senders: &[(200, 0, 2), (200, 1, 2)],
        receiver_megabits: 800,
    },
];

const RUNS: [Run; 4] = [
    Run {
        name: "greedy alone",
        has_hints: true,
        scheduler: GREEDY,
        has_feedback: false,
    },
    Run {
        name: "greedy",
        has_hints: true,
        scheduler: GREEDY,
        has_feedback: true,
    },
    Run {
        name: "auto alone",
        has_hints: true,
        scheduler: AUTO,
        has_feedback: false,
    },
    Run {
        name: "auto",
        has_hints: true,
        scheduler: AUTO,
        has_feedback: true,
    },
];

const COLUMNS: [(&str, &str); 10] = [
    ("trap", "trap"),
    ("variant", "variant"),
    ("bytes", "bytes"),
    ("runs", "runs"),
    ("bound_seconds", "bound s"),
    ("seconds", "s"),
    ("over_bound", "over bound"),
    ("over_bound_min_max", "from - to"),
    ("plan_over_bound", "first plan"),
    ("duplicate_percent", "twice %"),
];

impl Trap {
    /// Sizes are multiples of this: a whole number of chunks a unit.
    fn step(&self) -> u64 {
        self.units << 20
    }

    fn scenario(&self, bytes: u64) -> Scenario {
        let at = |unit: u64| bytes / self.units * unit;
        let senders = self.senders.iter().enumerate();
        let sender = |(index, &(megabits, from, to)): (usize, &Holder)| Node {
            name: format!("s{index}"),
            bits_per_second: megabits * 1_000_000,
            ranges: RangeSet::from(Range::new(at(from), at(to))),
        };
        Scenario {
            bytes,
            senders: senders.map(sender).collect(),
            receivers: vec![Node {
                name: "r0".into(),
                bits_per_second: self.receiver_megabits * 1_000_000,
                ranges: RangeSet::from(Range::new(0, bytes)),
            }],
            is_shared: false,
            changes: Vec::new(),
        }
    }
}

/// Makes the table of traps.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "traps")?;
    let site = bench.site();
    let (seconds, rounds) = if settings.quick { (3.0, 1) } else { (10.0, 3) };
    let key = |trap: &Trap, run: &Run, bytes: u64, round: usize| {
        format!("{}, {}, {bytes} bytes, run {round}", trap.name, run.name)
    };
    let size =
        |trap: &Trap, run: &Run| run.size(seconds, trap.step(), |bytes| trap.scenario(bytes));
    for trap in &TRAPS {
        for run in &RUNS {
            let bytes = size(trap, run)?;
            let expected = run.best_seconds(&trap.scenario(bytes))? + 1.0;
            bench.expect((1..=rounds).map(|round| (key(trap, run, bytes, round), expected)));
        }
    }
    bench.announce();

    let mut table = Table::new(
        "Holdings that mislead proportional shares: time over the least possible, speeds declared",
        &COLUMNS,
    );
    // Round by round, so that a disturbance of the machine does not hit all runs of one variant.
    let mut moved: Vec<Vec<Moved>> = vec![Vec::new(); TRAPS.len() * RUNS.len()];
    for round in 1..=rounds {
        for (trap, runs) in TRAPS.iter().zip(moved.chunks_mut(RUNS.len())) {
            for (run, moved) in RUNS.iter().zip(runs) {
                let bytes = size(trap, run)?;
                let scenario = trap.scenario(bytes);
                let expected = run.best_seconds(&scenario)?;
                moved.extend(bench.point(&key(trap, run, bytes, round), || {
                    scenario.measure(&site, run, expected)
                }));
            }
        }
    }
    for (trap, runs) in TRAPS.iter().zip(moved.chunks(RUNS.len())) {
        for (run, moved) in RUNS.iter().zip(runs) {
            let bytes = size(trap, run)?;
            let scenario = trap.scenario(bytes);
            let bound = scenario.bound_seconds()?;
            let times = moved.iter().map(|moved| moved.report.seconds);
            let twice = moved.iter().map(|moved| moved.report.duplicate_bytes);
            let Some(times) = summary(times) else {
                continue;
            };
            let twice = summary(twice.map(|bytes| bytes as f64));
            table.row(vec![
                trap.name.into(),
                run.name.into(),
                number(bytes as f64, 0),
                number(times.count as f64, 0),
                number(bound, 2),
                number(times.median, 2),
                number(times.median / bound, 2),
                format!("{:.2} - {:.2}", times.min / bound, times.max / bound).into(),
                number(scenario.static_seconds(run.scheduler)? / bound, 2),
                number(twice.map(|t| t.median / bytes as f64 * 100.0), 2),
            ]);
        }
    }
    for trap in &TRAPS {
        table.note(format!("{}: {}.", trap.name, trap.about));
    }
    table.note("alone: the first plan is kept (--replan off). over bound: the whole time, start and end included; median.");
    table.note(
        "first plan: what its shares take over the bound when nothing corrects them, computed.",
    );
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What proportional shares cost in each case, as computed by hand.
    #[test]
    fn greedy_falls_for_them() {
        let ratio = |trap: &Trap| {
            let scenario = trap.scenario(trap.step() << 10);
            let greedy = scenario.static_seconds(GREEDY).unwrap();
            (greedy / scenario.bound_seconds().unwrap() * 100.0).round() / 100.0
        };
        // Half of 1/20 at 1 Mbit/s, against all of it at 420 (the set bound by 21 is the narrow one, by a hair).
        assert_eq!(ratio(&TRAPS[0]), 10.5);
        assert_eq!(ratio(&TRAPS[1]), 2.33);
        assert_eq!(ratio(&TRAPS[2]), 1.33);
    }
}
