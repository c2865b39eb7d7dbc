//! Four senders that hold all to four receivers that want a quarter each, beside sixteen iperf3 at once.
//!
//! Senders of 100, 100, 400 and 400 Mbit/s, receivers of 500: all sixteen pairs have to carry, and only the senders limit.
//! iperf3 moves for as long as the transfer takes at the bound, so that no pair ends before another one.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::iperf::{self, Load, Pair};
use crate::ropewalk::{Moved, Place};
use crate::scenario::{HINTS, NO_HINTS, Node, Run, Scenario, all, window};
use crate::stats::{spread, summary};
use crate::table::{Table, number};

const SENDERS: [u64; 4] = [100_000_000, 100_000_000, 400_000_000, 400_000_000];
const RECEIVERS: [u64; 4] = [500_000_000; 4];

const STEP: u64 = 16 << 20;

const RUNS: [Run; 2] = [NO_HINTS, HINTS];

const COLUMNS: [(&str, &str); 6] = [
    ("case", "case"),
    ("megabits_per_second_median", "Mbit/s"),
    ("megabits_per_second_min", "min"),
    ("megabits_per_second_max", "max"),
    ("of_iperf3_median", "of iperf3"),
    ("share_of_bound_median", "of bound"),
];

/// What was carried together.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ran {
    megabits: f64,
    // Ours only.
    moved: Option<Moved>,
}

fn scenario(bytes: u64) -> Scenario {
    let node = |name: String, cap: u64, ranges| Node {
        name,
        bits_per_second: cap,
        ranges,
    };
    let senders = SENDERS.iter().enumerate();
    let receivers = RECEIVERS.iter().enumerate();
    Scenario {
        bytes,
        senders: senders
            .map(|(at, cap)| node(format!("s{at}"), *cap, all(bytes)))
            .collect(),
        receivers: receivers
            .map(|(at, cap)| {
                node(
                    format!("r{at}"),
                    *cap,
                    window(bytes, at, RECEIVERS.len(), 2),
                )
            })
            .collect(),
        is_shared: false,
        changes: Vec::new(),
    }
}

/// Sixteen pairs at once.
fn run_iperf(site: &Site, scenario: &Scenario, seconds: f64) -> Result<Ran> {
    let (lab, agents) = scenario.start(site)?;
    agents.stop()?;
    let addresses: Vec<String> = scenario
        .receivers
        .iter()
        .map(|node| lab.address(&node.name).to_string())
        .collect();
    let mut pairs = Vec::new();
    for (at, from) in scenario.senders.iter().enumerate() {
        for (to, address) in scenario.receivers.iter().zip(&addresses) {
            pairs.push(Pair {
                from: Place::Host(&lab, &from.name),
                to: Place::Host(&lab, &to.name),
                address,
                port: iperf::PORT + at as u16,
            });
        }
    }
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let carried = iperf::run(&pairs, Load::lasting(seconds), deadline)?;
    Ok(Ran {
        megabits: carried.by_pair_megabits().iter().sum(),
        moved: None,
    })
}

/// Makes the comparison.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "own-parts")?;
    let site = bench.site();
    let (rounds, seconds) = if settings.quick { (2, 5.0) } else { (5, 10.0) };
    let bytes = RUNS[0].size(seconds, STEP, scenario)?;
    let scenario = scenario(bytes);
    let bound = scenario.bound_seconds()?;
    let bound_megabits = scenario.wanted_bytes() * 8.0 / bound / 1e6;
    let names = ["sixteen iperf3", RUNS[0].name, RUNS[1].name];
    let key = |round: usize, name: &str| format!("round {round}, {name}, {bytes} bytes");
    for round in 1..=rounds {
        bench.expect(names.map(|name| (key(round, name), bound + 4.0)));
    }
    bench.announce();
    bench.program_version("iperf3", "--version");
    let mut all: [Vec<Option<Ran>>; 3] = Default::default();
    for round in 1..=rounds {
        all[0].push(bench.point(&key(round, names[0]), || run_iperf(&site, &scenario, bound)));
        for (run, all) in RUNS.iter().zip(&mut all[1..]) {
            all.push(bench.point(&key(round, run.name), || {
                let moved = scenario.measure(&site, run, bound)?;
                Ok(Ran {
                    megabits: moved.megabits(),
                    moved: Some(moved),
                })
            }));
        }
    }
    let mut table = Table::new(
        format!("Own quarters of {bytes} bytes, four senders to four receivers"),
        &COLUMNS,
    );
    for (name, ran) in names.iter().zip(&all) {
        let rates = || ran.iter().flatten().map(|ran| ran.megabits);
        let beside = ran.iter().zip(&all[0]);
        let ratios: Vec<f64> = beside
            .filter_map(|(ours, theirs)| Some(ours.as_ref()?.megabits / theirs.as_ref()?.megabits))
            .collect();
        let rate = summary(rates());
        let ratio = summary(ratios.iter().copied());
        table.row(vec![
            (*name).into(),
            number(rate.map(|all| all.median), 1),
            number(rate.map(|all| all.min), 1),
            number(rate.map(|all| all.max), 1),
            number(ratio.map(|all| all.median), 3),
            number(
                summary(rates().map(|rate| rate / bound_megabits)).map(|all| all.median),
                3,
            ),
        ]);
        if *name != names[0] {
            bench.headline(
                format!("own parts, 4 x 4, {name}"),
                format!("{} x sixteen iperf3 at once", spread(ratios, 3)),
            );
        }
    }
    table.note(format!(
        "of bound: of {bound_megabits:.1} Mbit/s, what TCP can carry through the senders' caps. Ours from agents reachable to the last safe byte, iperf3 what its pairs say."
    ));
    bench.finish(&[table])
}
