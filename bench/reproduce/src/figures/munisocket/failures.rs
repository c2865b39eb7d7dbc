//! A rail dies in the middle of a stream of messages, in four ways, at either end, and returns: is everything there
//! once and in order, how long does nothing arrive, how fast is it before, without and after, when does the rail carry again.
//!
//! It is the first rail, which the socket prefers for small messages and acknowledgements.

use std::time::Duration;

use anyhow::{Context as _, Result};
use ropewalk_lab::Lab;
use serde::{Deserialize, Serialize};

use super::Scale;
use super::hosts::{self, MIB, Seen, Stream, unix_seconds};
use crate::bench::{Bench, Site};
use crate::stats::{Summary, spread, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

const RAILS: [u64; 2] = [1_000_000_000; 2];
/// The rail that dies.
const RAIL: usize = 0;
/// Bytes that have crossed the rail when the clock of the failure begins.
const FLOWING: u64 = 4 * MIB;
/// Until then they have, or the rail is not used.
const FLOWING_MAX: Duration = Duration::from_secs(10);
const RUN_MAX: Duration = Duration::from_secs(120);

/// What happens to a rail (the kinds differ in who is told).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Blackhole,
    Carrier,
    Down,
    Address,
}

const KINDS: [Kind; 4] = [Kind::Blackhole, Kind::Carrier, Kind::Down, Kind::Address];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Blackhole => "silent black hole",
            Self::Carrier => "carrier lost",
            Self::Down => "interface down",
            Self::Address => "address deleted",
        }
    }

    fn strike(self, lab: &Lab, host: &str) -> Result<()> {
        match self {
            Self::Blackhole => lab.blackhole(host, RAIL, true)?,
            Self::Carrier => lab.plug(host, RAIL, false)?,
            Self::Down => lab.link_down(host, RAIL)?,
            Self::Address => lab.delete_address(host, RAIL, address(lab, host))?,
        }
        Ok(())
    }

    fn heal(self, lab: &Lab, host: &str) -> Result<()> {
        match self {
            Self::Blackhole => lab.blackhole(host, RAIL, false)?,
            Self::Carrier => lab.plug(host, RAIL, true)?,
            Self::Down => lab.link_up(host, RAIL)?,
            Self::Address => lab.add_address(host, RAIL, address(lab, host))?,
        }
        Ok(())
    }
}

fn address(lab: &Lab, host: &str) -> std::net::IpAddr {
    lab.nics(host)[RAIL].ipv4.into()
}

/// What and when.
#[derive(Clone, Copy, Debug)]
struct Plan {
    bytes: u64,
    /// From bytes flowing to the failure, and on to the repair.
    strike: Duration,
    heal: Duration,
}

fn plan(scale: Scale) -> Plan {
    let millis = Duration::from_millis;
    if scale.is_quick {
        Plan {
            bytes: 256 * MIB,
            strike: millis(200),
            heal: millis(700),
        }
    } else {
        Plan {
            bytes: 1024 * MIB,
            strike: millis(1000),
            heal: millis(2000),
        }
    }
}

/// One run; times are of the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    struck_at: f64,
    healed_at: f64,
    /// How long the repair itself took.
    healing_seconds: f64,
    stream: Stream,
}

impl Run {
    fn seen(&self) -> Option<&Seen> {
        self.stream.seen.as_ref()
    }

    /// The longest pause that was not over when the rail failed.
    fn stall(&self) -> Option<f64> {
        let gaps = self.seen()?.gaps.iter();
        let after = gaps.filter(|gap| gap.at_seconds + gap.seconds > self.struck_at);
        after.map(|gap| gap.seconds).reduce(f64::max)
    }

    /// From the repair to the first bytes over the rail.
    fn carries_again(&self) -> Option<f64> {
        let samples = &self.seen()?.samples;
        let at = samples.partition_point(|sample| sample.at_seconds <= self.healed_at);
        let had = samples.get(at.checked_sub(1)?)?.rail_bytes.get(RAIL)?;
        let after = samples[at..].iter();
        let mut after = after.filter(|sample| sample.rail_bytes.get(RAIL) > Some(had));
        Some(after.next()?.at_seconds - self.healed_at)
    }

    /// Before the failure, without the rail once the stall is over, and with it again.
    fn megabits(&self) -> [Option<f64>; 3] {
        let Some(seen) = self.seen() else {
            return [None; 3];
        };
        let resumed = self.struck_at + self.stall().unwrap_or(0.0);
        let again = self.carries_again().map(|seconds| self.healed_at + seconds);
        [
            seen.megabits(0.05, self.struck_at),
            seen.megabits(resumed + 0.05, self.healed_at),
            again.and_then(|again| seen.megabits(again + 0.1, seen.seconds - 0.02)),
        ]
    }

    /// The whole time from the failure to the repair, stall included.
    fn during(&self) -> Option<f64> {
        self.seen()?.megabits(self.struck_at, self.healed_at)
    }
}

fn key(kind: Kind, host: &str, scale: Scale, round: usize) -> String {
    let mebibytes = plan(scale).bytes / MIB;
    format!(
        "rail failure, {} at {}, {mebibytes} MiB, round {round}",
        kind.name(),
        end(host)
    )
}

fn end(host: &str) -> &'static str {
    if host == "a" { "sender" } else { "receiver" }
}

fn cases() -> Vec<(Kind, &'static str)> {
    KINDS
        .iter()
        .flat_map(|kind| [(*kind, "a"), (*kind, "b")])
        .collect()
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let seconds = if scale.is_quick { 3.0 } else { 8.0 };
    let rounds = 1..=scale.rounds;
    let all = rounds.flat_map(|round| {
        cases()
            .into_iter()
            .map(move |(kind, host)| (key(kind, host, scale, round), seconds))
    });
    all.collect()
}

fn run(site: &Site, kind: Kind, host: &str, plan: Plan) -> Result<Run> {
    let lab = hosts::two(&RAILS, site)?;
    let serving = hosts::serve(&lab, site, &[0, 1])?;
    let total = plan.bytes.to_string();
    let arguments = ["--stream", &total, "--sizes", "1MiB", "--mode", "enhanced"];
    let measuring = hosts::begin(&lab, site, &[0, 1], &arguments)?;
    hosts::wait_sent(&lab, RAIL, FLOWING, FLOWING_MAX)
        .context("the rail to fail carries nothing")?;
    std::thread::sleep(plan.strike);
    let struck = unix_seconds();
    kind.strike(&lab, host)?;
    std::thread::sleep(plan.heal);
    let healing = unix_seconds();
    kind.heal(&lab, host)?;
    let healed = unix_seconds();
    let stream = hosts::finish(measuring, RUN_MAX)?.stream()?;
    serving.stop()?;
    let began = stream
        .seen
        .as_ref()
        .context("no account of the stream")?
        .began_unix_seconds;
    Ok(Run {
        struck_at: struck - began,
        healed_at: healed - began,
        healing_seconds: healed - healing,
        stream,
    })
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let plan = plan(scale);
    let mut runs: Vec<Vec<Run>> = cases().iter().map(|_| Vec::new()).collect();
    for round in 1..=scale.rounds {
        for ((kind, host), runs) in cases().into_iter().zip(&mut runs) {
            let key = key(kind, host, scale, round);
            runs.extend(bench.point(&key, || run(&site, kind, host, plan)));
        }
    }
    if runs.iter().all(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let mut table = Table::new(
        format!(
            "One of two rails of 1 Gbit/s fails during a stream of {} MiB in messages of 1 MiB and returns after {:.1} s",
            plan.bytes / MIB,
            plan.heal.as_secs_f64()
        ),
        &[
            ("failure", "failure"),
            ("end", "at"),
            (
                "messages_lost_or_doubled",
                "lost, doubled, swapped, damaged",
            ),
            ("stall_milliseconds", "stall ms"),
            ("stall_least_to_most", "min-max"),
            ("before_megabits_per_second", "Mb/s before"),
            ("during_megabits_per_second", "failed"),
            ("without_megabits_per_second", "after stall"),
            ("after_megabits_per_second", "restored"),
            ("carries_again_milliseconds", "again ms"),
            ("again_least_to_most", "min-max"),
            ("runs", "runs"),
        ],
    );
    let mut series = Vec::new();
    for ((kind, host), runs) in cases().into_iter().zip(&runs) {
        let over = |value: &dyn Fn(&Run) -> Option<f64>| summary(runs.iter().filter_map(value));
        let median = |all: Option<Summary>, decimals| number(all.map(|all| all.median), decimals);
        let range = |all: Option<Summary>| {
            all.map_or(Cell::Empty, |all| {
                format!("{:.0}-{:.0}", all.min, all.max).into()
            })
        };
        let stall = over(&|run| Some(run.stall()? * 1e3));
        let again = over(&|run| Some(run.carries_again()? * 1e3));
        let faults: u64 = runs.iter().filter_map(Run::seen).map(Seen::faults).sum();
        table.row(vec![
            kind.name().into(),
            end(host).into(),
            number(faults as f64, 0),
            median(stall, 0),
            range(stall),
            median(over(&|run| run.megabits()[0]), 0),
            median(over(&Run::during), 0),
            median(over(&|run| run.megabits()[1]), 0),
            median(over(&|run| run.megabits()[2]), 0),
            median(again, 0),
            range(again),
            number(runs.len() as f64, 0),
        ]);
        if let Some(run) = runs.first().filter(|_| host == "b") {
            series.push(curve(kind.name(), run));
        }
    }
    let all = || runs.iter().flatten();
    let faults: u64 = all().filter_map(Run::seen).map(Seen::faults).sum();
    bench.headline(
        format!("one of two rails fails and returns during a stream of messages, {} runs: messages lost, doubled, out of order or damaged; stall", all().count()),
        format!("{faults}; {} ms", spread(all().filter_map(|run| Some(run.stall()? * 1e3)), 0)),
    );
    table.note("stall: longest pause between two deliveries that lasted into the failure or followed it. failed: from failure to repair, stall and what was delivered at once after it included.");
    table.note("after stall: from its end to the repair. again: from the repair to the first bytes over the rail, in steps of 20 ms; - when the stream ended before.");
    let titles = Titles {
        title: "A rail fails at the receiver and returns, first round",
        x: "s",
        y: "Mbit/s over 100 ms",
    };
    plot::lines(&bench.plot_path("failures"), titles, &[], &series)?;
    Ok(vec![table])
}

/// Goodput of every 100 ms.
fn curve(name: &str, run: &Run) -> Series {
    let mut points = Vec::new();
    if let Some(seen) = run.seen() {
        let steps = (seen.seconds * 10.0) as u32;
        for step in 0..steps {
            let from = f64::from(step) / 10.0;
            points.extend(
                seen.megabits(from, from + 0.1)
                    .map(|rate| (from + 0.05, rate)),
            );
        }
    }
    Series::with(name, Style::Marks, points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::munisocket::hosts::{Gap, Sample};

    fn run(gaps: Vec<Gap>, rail: &[(f64, u64)]) -> Run {
        let samples = rail.iter().map(|(at_seconds, bytes)| Sample {
            at_seconds: *at_seconds,
            delivered_bytes: (*at_seconds * 1e6) as u64,
            rail_bytes: vec![*bytes, 0],
        });
        Run {
            struck_at: 1.0,
            healed_at: 2.0,
            healing_seconds: 0.0,
            stream: Stream {
                bytes: 1,
                method: "enhanced".into(),
                messages: 1,
                seconds: 4.0,
                bits_per_second: 1.0,
                cpu_percent: 0.0,
                own_cpu_percent: 0.0,
                seen: Some(Seen {
                    seconds: 4.0,
                    gaps,
                    samples: samples.collect(),
                    ..Seen::default()
                }),
            },
        }
    }

    /// Pauses that ended before the failure are none of it; the rail carries again with its first byte after the repair.
    #[test]
    fn stalls_and_returns() {
        let gap = |at_seconds, seconds| Gap {
            at_seconds,
            seconds,
        };
        let one = run(
            vec![gap(0.1, 0.8), gap(0.95, 0.3), gap(3.0, 0.1)],
            &[
                (0.5, 10),
                (1.5, 20),
                (1.9, 20),
                (2.2, 20),
                (2.4, 21),
                (3.9, 50),
            ],
        );
        assert_eq!(one.stall(), Some(0.3));
        assert!((one.carries_again().unwrap() - 0.4).abs() < 1e-9);
        let never = run(vec![gap(0.1, 0.8)], &[(1.5, 20), (2.5, 20)]);
        assert_eq!((never.stall(), never.carries_again()), (None, None));
        assert_eq!(never.megabits()[2], None);
    }
}
