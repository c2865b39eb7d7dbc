//! Rails of different speed: a stream of 16 MiB messages beside what plain TCP carries on each rail.

use std::time::Duration;

use anyhow::Result;
use ropewalk_lab::Lab;
use serde::{Deserialize, Serialize};

use super::Scale;
use super::hosts::{self, MIB};
use crate::bench::{Bench, Site};
use crate::iperf::{self, Load, Pair};
use crate::network::tcp_rate;
use crate::ropewalk::Place;
use crate::stats::{spread, summary};
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

const RAILS: [u64; 3] = [1_000_000_000, 500_000_000, 100_000_000];
const VARIANTS: [&str; 4] = [
    "TCP, one rail after the other",
    "TCP, all rails at once",
    "basic",
    "enhanced",
];

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    megabits: f64,
    by_rail: Vec<f64>,
    faults: u64,
    cpu_percent: Option<f64>,
}

fn seconds(scale: Scale) -> f64 {
    if scale.is_quick { 4.0 } else { 10.0 }
}

fn key(variant: &str, scale: Scale, round: usize) -> String {
    format!(
        "unequal rails, {variant}, {} s, round {round}",
        seconds(scale)
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let rounds = 1..=scale.rounds;
    let all = rounds.flat_map(|round| {
        VARIANTS.map(|variant| (key(variant, scale, round), seconds(scale) + 2.0))
    });
    all.collect()
}

fn bytes(rates: &[u64], seconds: f64) -> u64 {
    let sum: f64 = rates.iter().map(|rate| tcp_rate(*rate) / 8.0).sum();
    let step = 16 * MIB;
    ((sum * seconds) as u64 / step).max(1) * step
}

/// One iperf3 stream on each rail, all at once or one after the other.
fn plain(lab: &Lab, at_once: bool, seconds: f64) -> Result<Run> {
    let addresses = hosts::addresses(lab, "b");
    let pairs: Vec<(Pair<'_>, u64)> = addresses
        .iter()
        .zip(RAILS)
        .zip(iperf::PORT..)
        .map(|((address, rate), port)| {
            let pair = Pair {
                from: Place::Host(lab, "a"),
                to: Place::Host(lab, "b"),
                address,
                port,
            };
            (pair, rate)
        })
        .collect();
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let by_rail = if at_once {
        let pairs: Vec<Pair<'_>> = pairs.iter().map(|(pair, _)| *pair).collect();
        iperf::run(&pairs, Load::lasting(seconds), deadline)?.by_pair_megabits()
    } else {
        let mut by_rail = Vec::new();
        for (pair, rate) in &pairs {
            let third = Load::plain(bytes(&[*rate], seconds / 3.0), 1);
            by_rail.push(iperf::run(&[*pair], third, deadline)?.megabits());
        }
        by_rail
    };
    Ok(Run {
        megabits: by_rail.iter().sum(),
        by_rail,
        faults: 0,
        cpu_percent: None,
    })
}

fn ours(site: &Site, lab: &Lab, mode: &str, seconds: f64) -> Result<Run> {
    let total = match mode {
        // Three equal parts are as fast as the slowest rail three times.
        "basic" => bytes(&[RAILS[2]; 3], seconds),
        _ => bytes(&RAILS, seconds),
    };
    let total = total.to_string();
    let arguments = ["--stream", &total, "--sizes", "16MiB", "--mode", mode];
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let stream = hosts::measure(lab, site, &[0, 1, 2], &arguments, deadline)?.stream()?;
    let seen = stream.seen.unwrap_or_default();
    let last = seen.samples.last().cloned().unwrap_or_default();
    let rate = |bytes: &u64| *bytes as f64 * 8e-6 / stream.seconds;
    Ok(Run {
        megabits: stream.bits_per_second / 1e6,
        by_rail: last.rail_bytes.iter().map(rate).collect(),
        faults: seen.faults(),
        cpu_percent: Some(stream.cpu_percent),
    })
}

fn run(site: &Site, variant: &str, seconds: f64) -> Result<Run> {
    let lab = hosts::two(&RAILS, site)?;
    match variant {
        "basic" | "enhanced" => ours(site, &lab, variant, seconds),
        _ => plain(&lab, variant == VARIANTS[1], seconds),
    }
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut runs: [Vec<Run>; 4] = Default::default();
    for round in 1..=scale.rounds {
        for (variant, runs) in VARIANTS.iter().zip(&mut runs) {
            runs.extend(bench.point(&key(variant, scale, round), || {
                run(&site, variant, seconds(scale))
            }));
        }
    }
    let mut table = Table::new(
        format!(
            "A stream of 16 MiB messages over unequal rails, {} Mbit/s",
            hosts::name(&RAILS)
        ),
        &[
            ("variant", "variant"),
            ("megabits_per_second", "Mbit/s"),
            ("least_to_most", "min-max"),
            ("percent_of_sum", "% of the sum"),
            ("by_rail", "by rail, last round"),
            ("faults", "faults"),
            ("cpu_percent", "machine cpu %"),
        ],
    );
    let sum = summary(runs[0].iter().map(|run| run.megabits));
    let mut bars = Vec::new();
    for (group, (variant, runs)) in VARIANTS.iter().zip(&runs).enumerate() {
        let Some((all, last)) = summary(runs.iter().map(|run| run.megabits)).zip(runs.last())
        else {
            continue;
        };
        let by_rail: Vec<String> = last
            .by_rail
            .iter()
            .map(|rate| format!("{rate:.0}"))
            .collect();
        let cpu = summary(runs.iter().filter_map(|run| run.cpu_percent));
        if let Some(sum) = sum.filter(|_| group > 0) {
            bench.headline(
                format!(
                    "messages of 16 MiB over {} Mbit/s, {variant}, of the sum that TCP carries",
                    hosts::name(&RAILS)
                ),
                format!(
                    "{} %",
                    spread(runs.iter().map(|run| run.megabits / sum.median * 100.0), 1)
                ),
            );
        }
        table.row(vec![
            (*variant).into(),
            number(all.median, 1),
            format!("{:.1}-{:.1}", all.min, all.max).into(),
            number(sum.map(|sum| all.median / sum.median * 100.0), 2),
            by_rail.join(" ").into(),
            number(runs.iter().map(|run| run.faults).sum::<u64>() as f64, 0),
            number(cpu.map(|cpu| cpu.median), 1),
        ]);
        bars.push(Bar {
            label: (*variant).into(),
            value: all.median,
            range: (all.min, all.max),
            group,
        });
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    table.note("the sum: of what one iperf3 stream carries on each rail, one rail after the other. Faults: messages lost, doubled, out of order, damaged.");
    let titles = Titles {
        title: "Unequal rails",
        x: "Mbit/s",
        y: "",
    };
    plot::bars(&bench.plot_path("unequal"), titles, &bars)?;
    Ok(vec![table])
}
