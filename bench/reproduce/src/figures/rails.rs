//! Two hosts with several interfaces each: what Ropewalk makes of all of them, beside plain TCP on one after the other.
//!
//! The paper's claim for MuniSocket (section 2.2) is 99.4 % of twice one interface at 2 MB; here whole transfers are
//! measured, over equal and unequal rails. Every rail is an Ethernet segment of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use ropewalk_lab::{HostSpec, Lab, NicSpec};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::iperf::{self, Load, Pair};
use crate::network::{MASTER, lab, tcp_rate};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::stats::{spread, summary};
use crate::table::{Table, number};

/// Interfaces of each host, bits per second.
const CASES: [&[u64]; 4] = [
    &[100_000_000],
    &[100_000_000, 100_000_000],
    &[1_000_000_000, 1_000_000_000],
    &[1_000_000_000, 500_000_000, 100_000_000],
];

const COLUMNS: [(&str, &str); 8] = [
    ("rails", "rails, Mbit/s"),
    ("variant", "variant"),
    ("megabits_per_second", "Mbit/s"),
    ("least_to_most", "min-max"),
    ("percent_of_caps", "% of caps"),
    ("percent_of_iperf3", "% of iperf3"),
    ("by_rail", "by rail"),
    ("processor_seconds_per_gigabyte", "cpu s/GB"),
];

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    megabits: f64,
    processor_seconds: f64,
    bytes: u64,
    rails: Vec<f64>,
}

fn name(rails: &[u64]) -> String {
    let rails: Vec<String> = rails
        .iter()
        .map(|rate| (rate / 1_000_000).to_string())
        .collect();
    rails.join(" + ")
}

fn hosts(rails: &[u64], site: &Site) -> Result<Lab> {
    let host = |name: &str| {
        let nics = rails.iter().map(|rate| NicSpec::rate_bits(*rate));
        nics.fold(HostSpec::new(name), HostSpec::nic)
    };
    lab([host("a"), host("b")], site)
}

fn size(rails: &[u64], seconds: f64) -> u64 {
    let rate: f64 = rails.iter().map(|rate| tcp_rate(*rate) / 8.0).sum();
    ((rate * seconds) as u64) >> 20 << 20
}

fn ours(site: &Site, rails: &[u64], option: &str, bytes: u64, seconds: f64) -> Result<Run> {
    let lab = hosts(rails, site)?;
    let mut agents = Agents::new(site)?;
    for host in ["a", "b"] {
        agents.start_in(&lab, host, &[])?;
    }
    let spec = agents.spec(&format!(
        "writer a:{PORT} \"mem:{bytes}\" 0 0+{bytes}\nreader b:{PORT} \"null:\" 0 0+{bytes}\n"
    ))?;
    let arguments = words(&format!("transfer {spec} --rails {option}"));
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let moved: Moved = agents.run_once(Place::Host(&lab, MASTER), &arguments, deadline)?;
    let report = &moved.report;
    ensure!(
        report.delivered_bytes == bytes,
        "{} delivered",
        report.delivered_bytes
    );
    let rate = |carried: u64| carried as f64 * 8.0 / 1e6 / report.seconds.max(1e-9);
    Ok(Run {
        megabits: moved.megabits(),
        processor_seconds: moved.processor_seconds(),
        bytes,
        rails: report.pairs.iter().map(|pair| rate(pair.bytes)).collect(),
    })
}

/// One stream on each rail, one rail after the other.
fn plain(site: &Site, rails: &[u64], seconds: f64) -> Result<Run> {
    let lab = hosts(rails, site)?;
    let addresses = lab.addresses("b");
    let own = addresses.iter().filter(|address| address.is_ipv4());
    let mut run = Run {
        megabits: 0.0,
        processor_seconds: 0.0,
        bytes: 0,
        rails: Vec::new(),
    };
    for (address, rate) in own.zip(rails) {
        let address = address.to_string();
        let pair = Pair {
            from: Place::Host(&lab, "a"),
            to: Place::Host(&lab, "b"),
            address: &address,
            port: iperf::PORT,
        };
        let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
        let carried = iperf::run(&[pair], Load::plain(size(&[*rate], seconds), 1), deadline)?;
        run.megabits += carried.megabits();
        run.rails.push(carried.megabits());
        run.processor_seconds += carried.processor_seconds;
        run.bytes += carried.bytes;
    }
    Ok(run)
}

/// Makes the table of rails.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "rails")?;
    let site = bench.site();
    bench.program_version("iperf3", "--version");
    let (rounds, seconds) = if settings.quick { (1, 4.0) } else { (5, 10.0) };
    let variants = ["iperf3", "auto", "one"];
    let key = |rails: &[u64], variant: &str, round: usize| {
        format!("{}, {variant}, {seconds} s, round {round}", name(rails))
    };
    for (rails, round) in CASES
        .iter()
        .flat_map(|rails| (1..=rounds).map(move |r| (rails, r)))
    {
        bench.expect(variants.map(|variant| (key(rails, variant, round), seconds + 2.0)));
    }
    bench.announce();
    let mut table = Table::new("Transfers over several interfaces of two hosts", &COLUMNS);
    for rails in CASES {
        let mut runs: [Vec<Run>; 3] = Default::default();
        for round in 1..=rounds {
            for (variant, runs) in variants.iter().zip(&mut runs) {
                runs.extend(bench.point(&key(rails, variant, round), || match *variant {
                    "iperf3" => plain(&site, rails, seconds),
                    "one" => ours(&site, rails, "one", size(&rails[..1], seconds), seconds),
                    _ => ours(&site, rails, "auto", size(rails, seconds), seconds),
                }));
            }
        }
        let caps: f64 = rails.iter().map(|rate| tcp_rate(*rate) / 1e6).sum();
        let rates = |runs: &[Run]| summary(runs.iter().map(|run| run.megabits));
        let beside = rates(&runs[0]).map(|iperf| iperf.median);
        for (variant, runs) in variants.iter().zip(&runs) {
            let (Some(rate), Some(last)) = (rates(runs), runs.last()) else {
                continue;
            };
            let cpu = summary(
                runs.iter()
                    .map(|run| run.processor_seconds / run.bytes as f64 * 1e9),
            );
            let by_rail: Vec<String> = last.rails.iter().map(|rate| format!("{rate:.0}")).collect();
            if *variant != "iperf3" {
                bench.headline(
                    format!("interfaces of {} Mbit/s, `--rails {variant}`, of what TCP can carry over all", name(rails)),
                    format!("{} %", spread(runs.iter().map(|run| run.megabits / caps * 100.0), 1)),
                );
            }
            table.row(vec![
                name(rails).into(),
                (*variant).into(),
                number(rate.median, 1),
                format!("{:.1}-{:.1}", rate.min, rate.max).into(),
                number(rate.median / caps * 100.0, 2),
                beside.map_or_else(
                    || "-".into(),
                    |plain| number(rate.median / plain * 100.0, 2),
                ),
                by_rail.join(" ").into(),
                number(cpu.map_or(0.0, |cpu| cpu.median), 2),
            ]);
        }
    }
    table.note("iperf3: one stream on each rail, one rail after the other, summed. auto: all rails. one: --rails one.");
    table.note("caps: of Ethernet frames; TCP carries 0.956 of them. By rail: the last round.");
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let sizes = CASES.map(|rails| size(rails, 10.0) >> 20);
        assert_eq!(sizes, [114, 228, 2280, 1824]);
        assert_eq!(name(CASES[3]), "1000 + 500 + 100");
    }
}
