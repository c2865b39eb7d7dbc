//! Figure 9: datagrams take 60 % of one of two rails of 100 Mbit/s; how the rest is shared.

use std::time::Duration;

use anyhow::{Result, bail};
use ropewalk_lab::Lab;
use serde::{Deserialize, Serialize};

use super::competitor::Competitor;
use super::hosts::{self, MIB};
use super::{Scale, multipath};
use crate::bench::{Bench, Site};
use crate::iperf::{self, Load, Pair};
use crate::network::tcp_rate;
use crate::ropewalk::Place;
use crate::stats::summary;
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

const RATE: u64 = 100_000_000;
/// Of frames on rail 1.
const NOISE: u64 = 60_000_000;
/// Datagrams flow before anything is measured.
const SETTLE: Duration = Duration::from_millis(500);

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    /// In the paper, Mbit/s. Its average of one rail is 64.21.
    paper: Option<f64>,
    noise: bool,
    /// Megabits per second that are expected, for the number of bytes.
    expected: f64,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// The measuring command in a mode, over these rails.
    Ours(&'static str, &'static [usize]),
    Iperf,
    Multipath,
}

const fn variant(
    name: &'static str,
    paper: Option<f64>,
    noise: bool,
    expected: f64,
    how: How,
) -> Variant {
    Variant {
        name,
        paper,
        noise,
        expected,
        how,
    }
}

const VARIANTS: [Variant; 8] = [
    variant("TCP, one rail", None, false, 95.0, How::Ours("tcp", &[0])),
    variant(
        "TCP, one rail, noise",
        None,
        true,
        40.0,
        How::Ours("tcp", &[1]),
    ),
    variant(
        "iperf3, one stream a rail, noise",
        Some(128.4),
        true,
        130.0,
        How::Iperf,
    ),
    variant(
        "basic, noise",
        None,
        true,
        75.0,
        How::Ours("basic", &[0, 1]),
    ),
    variant(
        "enhanced, noise",
        Some(118.95),
        true,
        130.0,
        How::Ours("enhanced", &[0, 1]),
    ),
    variant(
        "equal parts over two TCP, noise",
        None,
        true,
        75.0,
        How::Ours("tcp-split", &[0, 1]),
    ),
    variant("Multipath TCP, noise", None, true, 130.0, How::Multipath),
    variant(
        "enhanced, no noise",
        None,
        false,
        190.0,
        How::Ours("enhanced", &[0, 1]),
    ),
];

/// The yardstick's place among them.
const YARDSTICK: usize = 2;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    megabits: f64,
    by_rail: Vec<f64>,
    /// Datagrams lost, percent, and megabits of them sent.
    noise_lost_percent: Option<f64>,
    noise_megabits: Option<f64>,
    faults: u64,
}

fn seconds(scale: Scale) -> f64 {
    if scale.is_quick { 4.0 } else { 12.0 }
}

fn key(variant: &Variant, scale: Scale, round: usize) -> String {
    format!(
        "competing traffic, {}, {} s, round {round}",
        variant.name,
        seconds(scale)
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let rounds = 1..=scale.rounds;
    let all = rounds.flat_map(|round| {
        VARIANTS.map(|variant| (key(&variant, scale, round), seconds(scale) + 2.0))
    });
    all.collect()
}

fn carry(site: &Site, lab: &Lab, variant: &Variant, seconds: f64) -> Result<Run> {
    let bytes = ((variant.expected * seconds / 8.0 * 1e6) as u64 / (16 * MIB)).max(1) * 16 * MIB;
    let deadline = Duration::from_secs_f64(60.0 + 10.0 * seconds);
    let mut run = Run {
        megabits: 0.0,
        by_rail: Vec::new(),
        noise_lost_percent: None,
        noise_megabits: None,
        faults: 0,
    };
    match variant.how {
        How::Ours(mode, rails) => {
            let total = bytes.to_string();
            let arguments = ["--stream", &total, "--sizes", "16MiB", "--mode", mode];
            let stream = hosts::measure(lab, site, rails, &arguments, deadline)?.stream()?;
            run.megabits = stream.bits_per_second / 1e6;
            let seen = stream.seen.unwrap_or_default();
            run.faults = seen.faults();
            let last = seen.samples.last().cloned().unwrap_or_default();
            let rate = |bytes: &u64| *bytes as f64 * 8e-6 / stream.seconds;
            run.by_rail = last.rail_bytes.iter().map(rate).collect();
        }
        How::Iperf => {
            let addresses = hosts::addresses(lab, "b");
            let pairs: Vec<Pair<'_>> = addresses
                .iter()
                .zip(iperf::PORT..)
                .map(|(address, port)| Pair {
                    from: Place::Host(lab, "a"),
                    to: Place::Host(lab, "b"),
                    address,
                    port,
                })
                .collect();
            run.by_rail = iperf::run(&pairs, Load::lasting(seconds), deadline)?.by_pair_megabits();
            run.megabits = run.by_rail.iter().sum();
        }
        How::Multipath => {
            if let Some(why) = multipath::missing() {
                bail!("{why}");
            }
            let (megabits, by_rail) = multipath::run(lab, bytes)?;
            run.megabits = megabits;
            let sum = by_rail.iter().sum::<u64>().max(1) as f64;
            // Frames and, on rail 1, the datagrams: shares of what the interfaces sent.
            run.by_rail = by_rail
                .iter()
                .map(|bytes| *bytes as f64 / sum * 100.0)
                .collect();
        }
    }
    Ok(run)
}

fn run(site: &Site, variant: &Variant, seconds: f64) -> Result<Run> {
    let lab = hosts::two(&[RATE; 2], site)?;
    if !variant.noise {
        return carry(site, &lab, variant, seconds);
    }
    let competitor = Competitor::start(&lab, 1, NOISE)?;
    std::thread::sleep(SETTLE);
    let before = competitor.read();
    let run = carry(site, &lab, variant, seconds)?;
    let (lost, megabits) = competitor.read().since(before);
    Ok(Run {
        noise_lost_percent: Some(lost),
        noise_megabits: Some(megabits),
        ..run
    })
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let missing = multipath::missing();
    let is_possible =
        |variant: &Variant| missing.is_none() || !matches!(variant.how, How::Multipath);
    let mut runs: [Vec<Option<Run>>; VARIANTS.len()] = Default::default();
    for round in 1..=scale.rounds {
        for (variant, runs) in VARIANTS.iter().zip(&mut runs) {
            if is_possible(variant) {
                let key = key(variant, scale, round);
                runs.push(bench.point(&key, || run(&site, variant, seconds(scale))));
            }
        }
    }
    let mut table = Table::new(
        "Competing datagrams take 60 % of one of two rails, 100 Mbit/s each (Figure 9)",
        &[
            ("variant", "variant"),
            ("megabits_per_second", "Mbit/s"),
            ("least_to_most", "min-max"),
            ("percent_of_iperf3", "% of iperf3"),
            ("percent_of_ideal", "% of ideal"),
            ("by_rail", "by rail, last"),
            ("noise_lost_percent", "noise lost %"),
            ("noise_megabits_per_second", "noise sent"),
            ("faults", "faults"),
            ("paper_megabits_per_second", "paper"),
        ],
    );
    let ideal = tcp_rate(RATE) / 1e6 + tcp_rate(RATE - NOISE) / 1e6;
    let mut bars = Vec::new();
    for (variant, own) in VARIANTS.iter().zip(&runs) {
        let each = || own.iter().flatten();
        let Some((all, last)) = summary(each().map(|run| run.megabits)).zip(each().last()) else {
            continue;
        };
        // Within a round, and only beside the same competitor.
        let shares = own.iter().zip(&runs[YARDSTICK]).filter_map(|(own, other)| {
            Some(own.as_ref()?.megabits / other.as_ref()?.megabits * 100.0)
        });
        let share = summary(shares).filter(|_| variant.noise);
        let lost = summary(each().filter_map(|run| run.noise_lost_percent));
        let noise = summary(each().filter_map(|run| run.noise_megabits));
        let by_rail: Vec<String> = last
            .by_rail
            .iter()
            .map(|rate| format!("{rate:.0}"))
            .collect();
        let unit = if matches!(variant.how, How::Multipath) {
            " % of frames"
        } else {
            ""
        };
        if let Some(share) = share {
            bench.headline(
                format!("datagrams take 60 % of one of two rails, {}, of one iperf3 stream on each rail", variant.name),
                format!("{:.1} % ({:.1} to {:.1})", share.median, share.min, share.max),
            );
        }
        table.row(vec![
            variant.name.into(),
            number(all.median, 2),
            format!("{:.1}-{:.1}", all.min, all.max).into(),
            share.map_or(Cell::Empty, |share| {
                format!("{:.1} ({:.1}-{:.1})", share.median, share.min, share.max).into()
            }),
            number(variant.noise.then_some(all.median / ideal * 100.0), 1),
            format!("{}{unit}", by_rail.join(" ")).into(),
            number(lost.map(|lost| lost.median), 2),
            number(noise.map(|noise| noise.median), 1),
            number(each().map(|run| run.faults).sum::<u64>() as f64, 0),
            number(variant.paper, 2),
        ]);
        bars.push(Bar {
            label: variant.name.into(),
            value: all.median,
            range: (all.min, all.max),
            group: usize::from(variant.noise),
        });
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    table.note(format!("ideal: TCP on the free rail and on the 40 Mbit/s that the datagrams leave, {ideal:.1} Mbit/s."));
    table.note("One-way streams of 16 MiB messages. Paper: 118.95 of 128.4 Mbit/s (92.6 %), which is twice its average of one rail.");
    match missing {
        Some(why) => table.note(format!("No Multipath TCP row: {why}.")),
        None => table.note("Multipath TCP: the kernel's, one connection, a path on each rail; shares of rails include the datagrams."),
    }
    let titles = Titles {
        title: "60 % of one of two rails taken by datagrams (Figure 9)",
        x: "Mbit/s",
        y: "",
    };
    plot::bars(&bench.plot_path("competing-traffic"), titles, &bars)?;
    Ok(vec![table])
}
