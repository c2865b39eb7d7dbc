//! Figures 3 to 7 and Table 1: round trips of messages from 1 B to 16 MiB, beside plain TCP on one rail and plain TCP on
//! each rail with half of the message; where the cut-off is found and where it is.

use std::time::Duration;

use anyhow::Result;

use super::Scale;
use super::hosts::{self, CutOffs, Measured, Point};
use crate::bench::{Bench, Site};
use crate::stats::{Summary, span, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

/// Interfaces of each host, bits per second.
const CASES: [&[u64]; 4] = [
    &[100_000_000],
    &[100_000_000; 2],
    &[1_000_000_000],
    &[1_000_000_000; 2],
];

/// Sizes, and rounds where they are not the command's own.
type Sizes = &'static [(&'static str, Option<u32>)];
const ALL: Sizes = &[("1..16MiB", None)];
const FEW: Sizes = &[("1..1MiB", None), ("4MiB", Some(1)), ("16MiB", Some(1))];

/// Longest time of one run: 16 MiB at 100 Mbit/s takes 3 s around.
const RUN_MAX: Duration = Duration::from_secs(900);

/// Processors in percent at 16 MiB, as the paper's Table 1 has them: TCP on one rail, basic on two.
fn paper_cpu(rails: &[u64], method: &str) -> Option<f64> {
    match (rails[0] / 1_000_000, rails.len(), method) {
        (100, 2, "tcp") => Some(12.5),
        (100, 2, "basic") => Some(20.0),
        (1000, 2, "tcp") => Some(37.8),
        (1000, 2, "basic") => Some(48.4),
        _ => None,
    }
}

fn sizes(scale: Scale) -> Sizes {
    if scale.is_quick { FEW } else { ALL }
}

pub(super) fn key(rails: &[u64], scale: Scale, round: usize) -> String {
    let sizes: Vec<&str> = sizes(scale).iter().map(|(sizes, _)| *sizes).collect();
    format!(
        "round trips, {} Mbit/s, {}, round {round}",
        hosts::name(rails),
        sizes.join(" ")
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let mut points = Vec::new();
    for round in 1..=scale.rounds {
        for rails in CASES {
            let slow = 16.0 * 8.0 / (rails[0] as f64 / 1e6) * 2.2;
            let seconds =
                15.0 * rails.len() as f64 + slow * if scale.is_quick { 9.0 } else { 30.0 };
            points.push((key(rails, scale, round), seconds));
        }
    }
    points
}

fn run(site: &Site, rails: &[u64], sizes: Sizes) -> Result<Measured> {
    let lab = hosts::two_for_round_trips(rails, site)?;
    let all: Vec<usize> = (0..rails.len()).collect();
    let modes: &[&str] = match rails.len() {
        1 => &["--mode", "enhanced"],
        _ => &[
            "--mode",
            "tcp-split",
            "--mode",
            "single",
            "--mode",
            "basic",
            "--mode",
            "enhanced",
        ],
    };
    let mut whole: Option<Measured> = None;
    for (sizes, rounds) in sizes {
        let rounds = rounds.map(|rounds| rounds.to_string());
        let mut arguments = [modes, &["--sizes", sizes]].concat();
        if let Some(rounds) = &rounds {
            arguments.extend(["--rounds", rounds]);
        }
        // The cut-off is looked for once.
        if whole.is_some() {
            arguments.push("--quick");
        }
        let part = hosts::measure(&lab, site, &all, &arguments, RUN_MAX)?;
        match &mut whole {
            Some(whole) => whole.points.extend(part.points),
            None => whole = Some(part),
        }
    }
    whole.ok_or_else(|| anyhow::anyhow!("no sizes"))
}

/// Runs of one case, round by round.
type Rounds = Vec<Measured>;

fn find<'m>(measured: &'m Measured, bytes: u64, method: &str) -> Option<&'m Point> {
    let mut points = measured.points.iter();
    points.find(|point| point.bytes == bytes && point.method == method)
}

/// A value of each round's point.
pub(super) fn over(
    rounds: &Rounds,
    bytes: u64,
    method: &str,
    value: impl Fn(&Measured, &Point) -> Option<f64>,
) -> Option<Summary> {
    let values = rounds.iter().filter_map(|measured| {
        let point = find(measured, bytes, method)?;
        value(measured, point)
    });
    summary(values)
}

fn micros(rounds: &Rounds, bytes: u64, method: &str) -> Option<f64> {
    Some(
        over(rounds, bytes, method, |_, point| {
            Some(point.round_trip_seconds * 1e6)
        })?
        .median,
    )
}

fn megabits(rounds: &Rounds, bytes: u64, method: &str) -> Option<f64> {
    Some(
        over(rounds, bytes, method, |_, point| {
            Some(point.bits_per_second / 1e6)
        })?
        .median,
    )
}

/// Bandwidth in percent of another method's in the same round.
pub(super) fn percent_of(
    rounds: &Rounds,
    bytes: u64,
    method: &str,
    other: &str,
) -> Option<Summary> {
    over(rounds, bytes, method, |measured, point| {
        let other = find(measured, bytes, other)?;
        Some(point.bits_per_second / other.bits_per_second * 100.0)
    })
}

fn all_sizes(rounds: &Rounds) -> Vec<u64> {
    let points = rounds.iter().flat_map(|measured| &measured.points);
    let mut sizes: Vec<u64> = points.map(|point| point.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Runs that are there, of a case.
pub(super) fn recorded(bench: &Bench, rails: &[u64], scale: Scale) -> Rounds {
    let keys = (1..=scale.rounds).map(|round| key(rails, scale, round));
    keys.filter_map(|key| bench.recorded(&key)).collect()
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    for round in 1..=scale.rounds {
        for rails in CASES {
            bench.point(&key(rails, scale, round), || {
                run(&site, rails, sizes(scale))
            });
        }
    }
    let mut tables = Vec::new();
    let mut cpu = cpu_table();
    let mut cut_offs = cut_off_table();
    let mut curves = Vec::new();
    for rails in CASES {
        let rounds = recorded(bench, rails, scale);
        if rounds.is_empty() {
            continue;
        }
        tables.push(if rails.len() == 1 {
            one_rail(rails, &rounds)
        } else {
            two_rails(rails, &rounds)
        });
        add_cpu(&mut cpu, rails, &rounds);
        add_cut_offs(&mut cut_offs, rails, &rounds);
        if rails.len() > 1 {
            let sizes = all_sizes(&rounds)
                .into_iter()
                .filter(|bytes| *bytes >= 32 << 10);
            let shares =
                sizes.filter_map(|bytes| percent_of(&rounds, bytes, "enhanced", "tcp-split"));
            bench.headline(
                format!("messages of 32 KiB and more over rails of {} Mbit/s, bandwidth of round trips, of two TCP connections that carry half each", hosts::name(rails)),
                format!("{} %", span(shares.map(|share| share.median), 1)),
            );
            draw_bandwidth(bench, rails, &rounds)?;
            curves.push((rails, rounds));
        }
    }
    if !curves.is_empty() {
        draw_round_trips(bench, &curves)?;
        tables.extend([cut_offs, cpu]);
    }
    Ok(tables)
}

fn one_rail(rails: &[u64], rounds: &Rounds) -> Table {
    let mut table = Table::new(
        format!("Round trips on one rail, {} Mbit/s", hosts::name(rails)),
        &[
            ("bytes", "size B"),
            ("tcp_microseconds", "TCP us"),
            ("message_microseconds", "message us"),
            ("difference_microseconds", "more, us"),
            ("percent_of_tcp", "% of TCP"),
            ("least_to_most", "min-max"),
        ],
    );
    for bytes in all_sizes(rounds) {
        let (plain, ours) = (
            micros(rounds, bytes, "tcp"),
            micros(rounds, bytes, "enhanced"),
        );
        let share = percent_of(rounds, bytes, "enhanced", "tcp");
        table.row(vec![
            number(bytes as f64, 0),
            number(plain, 1),
            number(ours, 1),
            number(ours.zip(plain).map(|(ours, plain)| ours - plain), 1),
            number(share.map(|share| share.median), 1),
            range(share),
        ]);
    }
    table.note("% of TCP: bandwidth, within a round; medians of rounds.");
    table
}

fn range(all: Option<Summary>) -> Cell {
    all.map_or(Cell::Empty, |all| {
        format!("{:.1}-{:.1}", all.min, all.max).into()
    })
}

fn two_rails(rails: &[u64], rounds: &Rounds) -> Table {
    let mut table = Table::new(
        format!(
            "Round trips on {} Mbit/s (Figures 3 to 7)",
            hosts::name(rails)
        ),
        &[
            ("bytes", "size B"),
            ("tcp_microseconds", "TCP us"),
            ("tcp_split_microseconds", "2 TCP us"),
            ("single_microseconds", "single us"),
            ("basic_microseconds", "basic us"),
            ("enhanced_microseconds", "enh. us"),
            ("tcp_megabits_per_second", "TCP Mb/s"),
            ("tcp_split_megabits_per_second", "2 TCP"),
            ("basic_megabits_per_second", "basic"),
            ("enhanced_megabits_per_second", "enhanced"),
            ("basic_efficiency_percent", "basic eff.%"),
            ("efficiency_percent", "enh. eff.%"),
            ("basic_percent_of_split", "basic % of 2 TCP"),
            ("percent_of_split", "enh. % of 2 TCP"),
            ("least_to_most", "min-max"),
            ("enhanced_minus_tcp_microseconds", "enh.-TCP us"),
        ],
    );
    for bytes in all_sizes(rounds) {
        let time = |method: &str| number(micros(rounds, bytes, method), 1);
        let rate = |method: &str| number(megabits(rounds, bytes, method), 1);
        let efficiency = |method: &str| {
            let all = over(rounds, bytes, method, |_, point| point.efficiency_percent);
            number(all.map(|all| all.median), 1)
        };
        let share = |method: &str| percent_of(rounds, bytes, method, "tcp-split");
        let median = |all: Option<Summary>| number(all.map(|all| all.median), 1);
        let more = over(rounds, bytes, "enhanced", |measured, point| {
            let plain = find(measured, bytes, "tcp")?;
            Some((point.round_trip_seconds - plain.round_trip_seconds) * 1e6)
        });
        table.row(vec![
            number(bytes as f64, 0),
            time("tcp"),
            time("tcp-split"),
            time("single"),
            time("basic"),
            time("enhanced"),
            rate("tcp"),
            rate("tcp-split"),
            rate("basic"),
            rate("enhanced"),
            efficiency("basic"),
            efficiency("enhanced"),
            median(share("basic")),
            median(share("enhanced")),
            range(share("enhanced")),
            median(more),
        ]);
    }
    table.note("2 TCP: two plain connections, one a rail, each carries half; over when both halves are back.");
    table.note("Efficiency: of TCP on one rail times rails (paper: 90 % from 32 KB, 99.4 % at 2 MB on 2 x 100).");
    table.note("Shares and differences are taken within a round; medians of rounds.");
    table.note("Caps save up while the other direction is busy: messages below 3 KB on 100 Mbit/s, 250 KB on 1 Gbit/s, can see up to twice the rate, on every row alike.");
    table
}

fn cut_off_table() -> Table {
    let mut table = Table::new(
        "Cut-off: one rail below, all rails from there on (bytes, round by round)",
        &[
            ("rails", "rails, Mbit/s"),
            ("fit_bytes", "by curves"),
            ("search_bytes", "by search"),
            ("sweep_bytes", "by sweep"),
            ("basic_crossover_bytes", "basic beats TCP from"),
        ],
    );
    table.note("sweep: the least power of two from which all rails stay faster. Paper, basic beside TCP: 1 KB at 100, 32 KB at 1000 Mbit/s.");
    table
}

/// The least size from which a method stays faster than another.
fn crossover(measured: &Measured, method: &str, other: &str) -> Option<u64> {
    let mut found = None;
    for bytes in all_sizes(&vec![measured.clone()]) {
        let (Some(one), Some(other)) =
            (find(measured, bytes, method), find(measured, bytes, other))
        else {
            continue;
        };
        if one.round_trip_seconds >= other.round_trip_seconds {
            found = None;
        } else {
            found = found.or(Some(bytes));
        }
    }
    found
}

fn add_cut_offs(table: &mut Table, rails: &[u64], rounds: &Rounds) {
    if rails.len() < 2 {
        return;
    }
    let list = |all: Vec<Option<u64>>| {
        let words: Vec<String> = all
            .iter()
            .map(|bytes| bytes.map_or_else(|| "never".into(), |bytes| bytes.to_string()))
            .collect();
        Cell::from(words.join(" "))
    };
    let found = |value: fn(&CutOffs) -> Option<u64>| {
        list(
            rounds
                .iter()
                .filter_map(|measured| measured.cut_off.as_ref())
                .map(value)
                .collect(),
        )
    };
    table.row(vec![
        hosts::name(rails).into(),
        found(|all| all.fit_bytes),
        found(|all| all.search_bytes),
        found(|all| all.sweep_bytes),
        list(
            rounds
                .iter()
                .map(|measured| crossover(measured, "basic", "tcp"))
                .collect(),
        ),
    ]);
}

fn cpu_table() -> Table {
    let mut table = Table::new(
        "Processors at 16 MiB (Table 1)",
        &[
            ("rails", "rails, Mbit/s"),
            ("method", "method"),
            ("cpu_percent", "machine %"),
            ("least_to_most", "min-max"),
            ("own_cpu_percent", "one end %"),
            ("paper_cpu_percent", "paper %"),
        ],
    );
    table.note("machine: all processors of this machine, which carry both hosts and the switch. one end: the measuring process, user and system.");
    table.note("The paper has one host's processors, each: TCP on one rail, basic on two.");
    table
}

fn add_cpu(table: &mut Table, rails: &[u64], rounds: &Rounds) {
    if rails.len() < 2 {
        return;
    }
    for method in ["tcp", "tcp-split", "single", "basic", "enhanced"] {
        let machine = over(rounds, 16 << 20, method, |_, point| Some(point.cpu_percent));
        let own = over(rounds, 16 << 20, method, |_, point| {
            Some(point.own_cpu_percent)
        });
        table.row(vec![
            hosts::name(rails).into(),
            method.into(),
            number(machine.map(|all| all.median), 1),
            range(machine),
            number(own.map(|all| all.median), 1),
            number(paper_cpu(rails, method), 1),
        ]);
    }
}

fn places(sizes: &[u64]) -> Vec<String> {
    let short = |bytes: u64| match bytes {
        0..1024 => format!("{bytes}"),
        0x400..0x10_0000 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    };
    // Every other name, or they would run into each other.
    let name = |(at, bytes): (usize, &u64)| {
        if at % 2 == 0 {
            short(*bytes)
        } else {
            String::new()
        }
    };
    sizes.iter().enumerate().map(name).collect()
}

fn curve(name: String, style: Style, sizes: &[u64], value: impl Fn(u64) -> Option<f64>) -> Series {
    let points = sizes.iter().enumerate();
    let points = points.filter_map(|(at, bytes)| Some((at as f64, value(*bytes)?)));
    Series::with(name, style, points.collect())
}

fn draw_bandwidth(bench: &Bench, rails: &[u64], rounds: &Rounds) -> Result<()> {
    let sizes = all_sizes(rounds);
    let one = |name: &str, method: &str, style| {
        curve(name.into(), style, &sizes, |bytes| {
            megabits(rounds, bytes, method)
        })
    };
    let series = [
        one("enhanced", "enhanced", Style::Marks),
        one("basic", "basic", Style::Marks),
        one("TCP, one rail", "tcp", Style::Dashed),
        one("two plain TCP", "tcp-split", Style::Dashed),
    ];
    let rate = rails[0] / 1_000_000;
    let title = format!("Bandwidth of round trips, {} Mbit/s", hosts::name(rails));
    let titles = Titles {
        title: &title,
        x: "message",
        y: "Mbit/s",
    };
    plot::lines(
        &bench.plot_path(&format!("bandwidth-{rate}")),
        titles,
        &places(&sizes),
        &series,
    )
}

fn draw_round_trips(bench: &Bench, curves: &[(&[u64], Rounds)]) -> Result<()> {
    let sizes = all_sizes(&curves[0].1);
    let mut series = Vec::new();
    for (rails, rounds) in curves {
        for (method, style) in [
            ("tcp", Style::Dashed),
            ("basic", Style::Marks),
            ("enhanced", Style::Marks),
        ] {
            let name = match method {
                "tcp" => format!("TCP {}", rails[0] / 1_000_000),
                _ => format!("{method} {}", hosts::name(rails)),
            };
            let value = |bytes| micros(rounds, bytes, method).map(f64::log10);
            series.push(curve(name, style, &sizes, value));
        }
    }
    let titles = Titles {
        title: "Round trips (Figure 3)",
        x: "message",
        y: "log10 of microseconds",
    };
    plot::lines(
        &bench.plot_path("round-trips"),
        titles,
        &places(&sizes),
        &series,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(times: &[(u64, f64, f64)]) -> Measured {
        let point = |bytes, method: &str, micros: f64| Point {
            bytes,
            method: method.into(),
            rounds: 1,
            round_trip_seconds: micros / 1e6,
            bits_per_second: 16.0 * bytes as f64 / micros * 1e6,
            efficiency_percent: None,
            cpu_percent: 1.0,
            own_cpu_percent: 1.0,
        };
        let points = times.iter();
        Measured {
            rails: 2,
            points: points
                .flat_map(|(bytes, tcp, basic)| {
                    [point(*bytes, "tcp", *tcp), point(*bytes, "basic", *basic)]
                })
                .collect(),
            cut_off: None,
            streams: Vec::new(),
        }
    }

    /// A method that is faster only for a while has not crossed over; shares are of the same round.
    #[test]
    fn crossovers_and_shares() {
        let one = measured(&[
            (1, 10.0, 20.0),
            (2, 10.0, 9.0),
            (4, 10.0, 11.0),
            (8, 10.0, 5.0),
            (16, 20.0, 10.0),
        ]);
        assert_eq!(crossover(&one, "basic", "tcp"), Some(8));
        assert_eq!(crossover(&one, "tcp", "basic"), None);
        let other = measured(&[(8, 30.0, 10.0)]);
        let share = percent_of(&vec![one, other], 8, "basic", "tcp").unwrap();
        assert!(
            (share.min - 200.0).abs() < 1e-6 && (share.max - 300.0).abs() < 1e-6,
            "{share:?}"
        );
        assert_eq!(places(&[512, 1024, 2048]), ["512", "", "2K"]);
    }
}
