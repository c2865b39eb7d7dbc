//! CEP Figures 4 and 5: n equal senders to n equal receivers, each pair its own part, memory to memory.
//!
//! The paper moved 2 GB a node over 1 Gbit/s and reached about 75 % of the sum of the links, whatever n. Here the
//! links are capped at 100 Mbit/s, of which TCP can carry 95.6 %. Writer i holds range i and reader i wants it, so
//! that no scheduler has a choice: what is measured is composition itself.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use ropewalk_lab::Lab;

use crate::bench::{Bench, Settings, Site};
use crate::iperf::{self, Carried, Load, Pair};
use crate::network::{MASTER, TCP_SHARE, capped, hint, lab, tcp_rate};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::stats::{span, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

/// Cap of every node's link.
const CAP: u64 = 100_000_000;

/// Pairs of the figure.
const PAIRS: [usize; 5] = [1, 2, 4, 8, 16];

/// What the paper reached of the sum of the links (section 5.2.2).
const PAPER_SHARE: f64 = 0.75;

/// The name of plain TCP's rows.
const IPERF: &str = "iperf3";

const MIB: f64 = 1_048_576.0;

/// A way to run Ropewalk.
struct Variant {
    name: &'static str,
    has_hints: bool,
    options: &'static str,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "sealed, hints",
        has_hints: true,
        options: "",
    },
    Variant {
        name: "sealed",
        has_hints: false,
        options: "",
    },
    Variant {
        name: "plain, hints",
        has_hints: true,
        options: "--plain",
    },
    Variant {
        name: "plain",
        has_hints: false,
        options: "--plain",
    },
];

const COLUMNS: [(&str, &str); 13] = [
    ("pairs", "pairs"),
    ("variant", "variant"),
    ("megabits_per_second", "Mbit/s"),
    ("bound_megabits_per_second", "bound"),
    ("percent_of_tcp", "% of TCP's"),
    ("percent_of_ideal", "% of ideal"),
    ("paper_percent_of_ideal", "paper %"),
    ("percent_of_tcp_moving", "moving %"),
    ("start_seconds", "start s"),
    ("finish_seconds", "finish s"),
    ("processor_seconds", "cpu s"),
    ("processor_over_iperf3", "cpu/iperf3"),
    ("node_resident_mebibytes", "node MiB"),
];

/// The specification: pair i moves part i.
pub(crate) fn specification(pairs: usize, bytes: u64, has_hints: bool) -> String {
    let mut text = format!("id \"{pairs} pairs\"\n");
    for pair in 0..pairs {
        let range = format!("{}+{bytes}", pair as u64 * bytes);
        let (up, down) = match has_hints {
            true => (format!(" up={}", hint(CAP)), format!(" down={}", hint(CAP))),
            false => Default::default(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "writer s{pair}:{PORT} \"mem:{bytes}\" 0 {range}{up}");
        let _ = writeln!(text, "reader r{pair}:{PORT} \"null:\" 0 {range}{down}");
    }
    text
}

fn build(site: &Site, pairs: usize) -> Result<Lab> {
    let names = (0..pairs).flat_map(|pair| [format!("s{pair}"), format!("r{pair}")]);
    lab(names.map(|name| capped(name, CAP)), site)
}

fn deadline(bytes: u64) -> Duration {
    // Generous: how a busy machine slows things is not for a deadline to judge.
    Duration::from_secs_f64(60.0 + 8.0 * seconds(bytes))
}

/// What the bytes take at what TCP can carry.
fn seconds(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / tcp_rate(CAP)
}

/// Moves `bytes` over each of `pairs` pairs, in a lab of their own.
pub(crate) fn measure(
    site: &Site,
    pairs: usize,
    bytes: u64,
    has_hints: bool,
    options: &str,
) -> Result<Moved> {
    let lab = build(site, pairs)?;
    let mut agents = Agents::new(site)?;
    for pair in 0..pairs {
        agents.start_in(&lab, &format!("s{pair}"), &[])?;
        agents.start_in(&lab, &format!("r{pair}"), &[])?;
    }
    let spec = agents.spec(&specification(pairs, bytes, has_hints))?;
    let arguments = words(&format!("transfer {spec} {options}"));
    agents.run_once(Place::Host(&lab, MASTER), &arguments, deadline(bytes))
}

fn plain_tcp(site: &Site, pairs: usize, bytes: u64) -> Result<Carried> {
    let lab = build(site, pairs)?;
    let names: Vec<(String, String)> = (0..pairs)
        .map(|pair| (format!("s{pair}"), format!("r{pair}")))
        .collect();
    let all: Vec<Pair<'_>> = names
        .iter()
        .map(|(from, to)| Pair {
            from: Place::Host(&lab, from),
            to: Place::Host(&lab, to),
            address: to,
            port: iperf::PORT,
        })
        .collect();
    iperf::run(&all, Load::plain(bytes, 1), deadline(bytes))
}

/// Makes Figures 4 and 5.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "cep-4-5")?;
    let site = bench.site();
    bench.program_version("iperf3", "--version");
    let bytes: u64 = if settings.quick {
        25_000_000
    } else {
        125_000_000
    };
    let key = |pairs: usize, name: &str| format!("{pairs} pairs, {bytes} bytes each, {name}");
    let names: Vec<&str> = VARIANTS
        .iter()
        .map(|variant| variant.name)
        .chain([IPERF])
        .collect();
    for pairs in PAIRS {
        bench.expect(
            names
                .iter()
                .map(|name| (key(pairs, name), seconds(bytes) + 1.0)),
        );
    }

    let title = format!(
        "CEP Figures 4 and 5: n pairs at 100 Mbit/s, {} MB a node, memory to memory",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &COLUMNS);
    let mut rates: Vec<Series> = names
        .iter()
        .map(|name| Series::new(*name, Style::Marks))
        .collect();
    let mut shares = rates.clone();
    for pairs in PAIRS {
        let ideal = pairs as f64 * CAP as f64 / 1e6;
        let bound = ideal * TCP_SHARE;
        let tcp = bench.point(&key(pairs, IPERF), || plain_tcp(&site, pairs, bytes));
        for (index, variant) in VARIANTS.iter().enumerate() {
            let moved = bench.point(&key(pairs, variant.name), || {
                measure(&site, pairs, bytes, variant.has_hints, variant.options)
            });
            let Some(moved) = moved else { continue };
            let report = &moved.report;
            rates[index].points.push((pairs as f64, moved.megabits()));
            shares[index]
                .points
                .push((pairs as f64, moved.megabits() / ideal * 100.0));
            let tcp_seconds = tcp.as_ref().map(|tcp| tcp.processor_seconds);
            let resident = summary(
                moved
                    .agents
                    .iter()
                    .map(|agent| agent.resident_bytes_max as f64),
            );
            table.row(vec![
                number(pairs as f64, 0),
                variant.name.into(),
                number(moved.megabits(), 1),
                number(bound, 1),
                number(moved.megabits() / bound * 100.0, 2),
                number(moved.megabits() / ideal * 100.0, 1),
                number(PAPER_SHARE * 100.0, 0),
                number(report.moving_bits_per_second / 1e6 / bound * 100.0, 2),
                number(report.start_seconds, 3),
                number(report.finish_seconds, 3),
                number(moved.processor_seconds(), 2),
                number(
                    tcp_seconds.map(|seconds| moved.processor_seconds() / seconds),
                    2,
                ),
                number(resident.map(|all| all.max / MIB), 1),
            ]);
        }
        let Some(tcp) = tcp else { continue };
        let last = names.len() - 1;
        rates[last].points.push((pairs as f64, tcp.megabits()));
        shares[last]
            .points
            .push((pairs as f64, tcp.megabits() / ideal * 100.0));
        let mut row = vec![
            number(pairs as f64, 0),
            IPERF.into(),
            number(tcp.megabits(), 1),
            number(bound, 1),
            number(tcp.megabits() / bound * 100.0, 2),
            number(tcp.megabits() / ideal * 100.0, 1),
        ];
        row.extend(vec![Cell::Empty; 4]);
        row.extend([
            number(tcp.processor_seconds, 2),
            number(1.0, 2),
            Cell::Empty,
        ]);
        table.row(row);
    }
    table.note("% of TCP's: of 95.6 Mbit/s a pair, from agents reachable to the last safe byte; target 97.");
    table.note("moving %: the same without the start. cpu s: agents and master; iperf3: both ends of all pairs.");
    table.note("sealed is the default: encrypted, tree hash end to end; plain keeps the tree hash. node MiB: largest agent.");

    for (index, name) in names.iter().enumerate() {
        let of_tcp = shares[index].points.iter();
        bench.headline(
            format!("1 to 16 pairs of 100 Mbit/s, {name}, of what TCP can carry (CEP Figures 4, 5; paper: 75 % of the links)"),
            format!("{} %", span(of_tcp.map(|point| point.1 / TCP_SHARE), 1)),
        );
    }

    let over = |share: f64| {
        PAIRS
            .iter()
            .map(move |&pairs| (pairs as f64, pairs as f64 * CAP as f64 / 1e6 * share))
            .collect()
    };
    rates.push(Series::with(
        "what TCP can carry",
        Style::Dashed,
        over(TCP_SHARE),
    ));
    rates.push(Series::with(
        "paper: 75 %",
        Style::Dashed,
        over(PAPER_SHARE),
    ));
    let flat = |share: f64| {
        PAIRS
            .iter()
            .map(move |&pairs| (pairs as f64, share * 100.0))
            .collect()
    };
    shares.push(Series::with(
        "what TCP can carry",
        Style::Dashed,
        flat(TCP_SHARE),
    ));
    shares.push(Series::with(
        "paper: 75 %",
        Style::Dashed,
        flat(PAPER_SHARE),
    ));
    let titles = Titles {
        title: "CEP Figure 4: composition of equal pairs",
        x: "pairs",
        y: "Mbit/s",
    };
    plot::lines(&bench.plot_path("figure4"), titles, &[], &rates)?;
    let titles = Titles {
        title: "CEP Figure 5: share of the links",
        x: "pairs",
        y: "% of the sum of the links",
    };
    plot::lines(&bench.plot_path("figure5"), titles, &[], &shares)?;
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair has its own range, and only the hinted form declares speeds.
    #[test]
    fn specification_of_pairs() {
        let text = specification(2, 1000, true);
        assert!(
            text.contains("writer s1:7420 \"mem:1000\" 0 1000+1000 up=11955086B/s"),
            "{text}"
        );
        assert!(!specification(2, 1000, false).contains("up="));
    }

    /// The whole path once, small: a lab, two agents, a master, a report.
    #[test]
    fn one_pair_moves() {
        let beside = std::env::current_exe()
            .ok()
            .and_then(|exe| Some(exe.parent()?.parent()?.join("ropewalk")));
        let Some(ropewalk) = beside.filter(|path| path.is_file()) else {
            eprintln!("SKIPPED one_pair_moves: ropewalk is not built beside the tests");
            return;
        };
        if ropewalk_lab::skip("one_pair_moves") {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let site = Site {
            scratch: scratch.path().to_owned(),
            bench: std::env::current_exe().unwrap(),
            ropewalk,
        };
        let moved = measure(&site, 1, 2_000_000, true, "").unwrap();
        assert_eq!(moved.report.delivered_bytes, 2_000_000);
        assert_eq!(moved.agents.len(), 2);
    }
}
