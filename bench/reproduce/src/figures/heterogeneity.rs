//! CEP Figure 6: slow and fast nodes in one transfer, beside uniform striping.
//!
//! Ten slow hosts (20 Mbit/s) and six fast ones (200 Mbit/s), half senders, half receivers, are added as pairs: 1+0 ...
//! 5+0, 5+1 ... 5+3. All senders hold everything and the receivers share one destination, so that the scheduler
//! may choose which node moves what. The paper moved 1 GB; here bytes are scaled to the rates, so that each point takes
//! about equally long, and for uniform striping to its own rate.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use crate::bench::{Bench, Settings, Site};
use crate::network::{MASTER, capped, hint, lab, tcp_rate};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::stats::span;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

const SLOW: u64 = 20_000_000;
const FAST: u64 = 200_000_000;

/// Pairs at each point: slow, fast.
const POINTS: [(usize, usize); 8] = [
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 0),
    (5, 1),
    (5, 2),
    (5, 3),
];

struct Variant {
    name: &'static str,
    has_hints: bool,
    is_uniform: bool,
    options: &'static str,
}

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "hints",
        has_hints: true,
        is_uniform: false,
        options: "",
    },
    Variant {
        name: "no hints",
        has_hints: false,
        is_uniform: false,
        options: "",
    },
    Variant {
        name: "uniform",
        has_hints: true,
        is_uniform: true,
        options: "--scheduler uniform --replan off",
    },
];

const COLUMNS: [(&str, &str); 11] = [
    ("slow_plus_fast_pairs", "pairs"),
    ("variant", "variant"),
    ("bytes", "bytes"),
    ("megabits_per_second", "Mbit/s"),
    ("bound_megabits_per_second", "bound"),
    ("percent_of_bound", "% of bound"),
    ("percent_of_bound_moving", "moving %"),
    ("uniform_bound_megabits_per_second", "uniform's bound"),
    ("start_seconds", "start s"),
    ("duplicate_percent", "twice %"),
    ("processor_seconds", "cpu s"),
];

/// The nodes' caps, slow ones first.
fn caps((slow, fast): (usize, usize)) -> Vec<u64> {
    let mut caps = vec![SLOW; slow];
    caps.resize(slow + fast, FAST);
    caps
}

/// What TCP can carry through all pairs together.
fn bound(point: (usize, usize)) -> f64 {
    caps(point).into_iter().map(tcp_rate).sum()
}

/// What equal shares can reach: the slowest node's rate, once a pair.
fn uniform_bound(point: (usize, usize)) -> f64 {
    let caps = caps(point);
    caps.iter().copied().min().map_or(0.0, tcp_rate) * caps.len() as f64
}

fn specification(point: (usize, usize), bytes: u64, has_hints: bool) -> String {
    let mut text = String::from("id \"slow and fast\"\n");
    for (pair, cap) in caps(point).into_iter().enumerate() {
        let (up, down) = match has_hints {
            true => (format!(" up={}", hint(cap)), format!(" down={}", hint(cap))),
            false => Default::default(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "writer s{pair}:{PORT} \"mem:{bytes}\" 0 0+{bytes}{up}"
        );
        let _ = writeln!(
            text,
            "reader r{pair}:{PORT} \"null:\" 0 0+{bytes}{down} dest=out"
        );
    }
    text
}

fn measure(
    site: &Site,
    point: (usize, usize),
    bytes: u64,
    variant: &Variant,
    seconds: f64,
) -> Result<Moved> {
    let caps = caps(point);
    let names = |pair: usize| [format!("s{pair}"), format!("r{pair}")];
    let hosts = caps
        .iter()
        .enumerate()
        .flat_map(|(pair, cap)| names(pair).map(|name| capped(name, *cap)));
    let lab = lab(hosts, site)?;
    let mut agents = Agents::new(site)?;
    for host in (0..caps.len()).flat_map(names) {
        agents.start_in(&lab, &host, &[])?;
    }
    let spec = agents.spec(&specification(point, bytes, variant.has_hints))?;
    let arguments = words(&format!("transfer {spec} {}", variant.options));
    agents.run_once(
        Place::Host(&lab, MASTER),
        &arguments,
        Duration::from_secs_f64(60.0 + 10.0 * seconds),
    )
}

/// Makes Figure 6.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "cep-6")?;
    let site = bench.site();
    let seconds = if settings.quick { 6.0 } else { 20.0 };
    let size = |point, variant: &Variant| {
        let rate = if variant.is_uniform {
            uniform_bound(point)
        } else {
            bound(point)
        };
        (rate / 8.0 * seconds / 1e6).round() as u64 * 1_000_000
    };
    let key = |point: (usize, usize), variant: &Variant| {
        format!(
            "{}+{} pairs, {} bytes, {}",
            point.0,
            point.1,
            size(point, variant),
            variant.name
        )
    };
    for point in POINTS {
        bench.expect(
            VARIANTS
                .iter()
                .map(|variant| (key(point, variant), seconds + 1.0)),
        );
    }

    let mut table = Table::new(
        "CEP Figure 6: pairs of 20 and 200 Mbit/s, all senders hold all, receivers share one destination",
        &COLUMNS,
    );
    let mut series: Vec<Series> = VARIANTS
        .iter()
        .map(|variant| Series::new(variant.name, Style::Marks))
        .collect();
    for (x, point) in POINTS.into_iter().enumerate() {
        let (bound, uniform) = (bound(point) / 1e6, uniform_bound(point) / 1e6);
        for (index, variant) in VARIANTS.iter().enumerate() {
            let bytes = size(point, variant);
            let Some(moved) = bench.point(&key(point, variant), || {
                measure(&site, point, bytes, variant, seconds)
            }) else {
                continue;
            };
            let report = &moved.report;
            series[index].points.push((x as f64, moved.megabits()));
            table.row(vec![
                format!("{}+{}", point.0, point.1).into(),
                variant.name.into(),
                number(bytes as f64, 0),
                number(moved.megabits(), 1),
                number(bound, 1),
                number(moved.megabits() / bound * 100.0, 2),
                number(report.moving_bits_per_second / 1e6 / bound * 100.0, 2),
                number(uniform, 1),
                number(report.start_seconds, 3),
                number(report.duplicate_bytes as f64 / bytes as f64 * 100.0, 2),
                number(moved.processor_seconds(), 2),
            ]);
        }
    }
    for (variant, series) in VARIANTS.iter().zip(&series) {
        let of_bound = series.points.iter();
        let of_bound = of_bound.map(|(x, rate)| rate * 1e6 / bound(POINTS[*x as usize]) * 100.0);
        bench.headline(
            format!(
                "1 to 5 slow and 0 to 3 fast pairs, {}, of the bound (CEP Figure 6)",
                variant.name
            ),
            format!("{} %", span(of_bound, 1)),
        );
    }
    table.note("hints and no hints: declared speeds or none; uniform: equal shares, no work moves (--replan off).");
    table.note("bound: what TCP can carry through all caps together; target 95 %. uniform's bound: the slowest node's rate a pair.");
    table.note("the paper gives a plot only: both alike up to 5+0, then uniform striping stays at the slowest node's rate.");
    series.push(Series::with("bound", Style::Dashed, along(bound)));
    series.push(Series::with(
        "uniform's bound",
        Style::Dashed,
        along(uniform_bound),
    ));
    let places: Vec<String> = POINTS
        .iter()
        .map(|(slow, fast)| format!("{slow}+{fast}"))
        .collect();
    let titles = Titles {
        title: "CEP Figure 6: slow and fast nodes",
        x: "slow + fast pairs",
        y: "Mbit/s",
    };
    plot::lines(&bench.plot_path("figure6"), titles, &places, &series)?;
    bench.finish(&[table])
}

fn along(rate: fn((usize, usize)) -> f64) -> Vec<(f64, f64)> {
    let points = POINTS.into_iter().enumerate();
    points
        .map(|(x, point)| (x as f64, rate(point) / 1e6))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds of the figure's corners are those of the caps: equal nodes gain nothing over uniform striping.
    #[test]
    fn bounds() {
        assert_eq!(bound((5, 0)), uniform_bound((5, 0)));
        let rate = |point| (bound(point) / 1e5).round() / 10.0;
        assert_eq!(rate((5, 3)), 669.5);
        assert_eq!((uniform_bound((5, 3)) / 1e5).round() / 10.0, 153.0);
        let text = specification((1, 1), 10, true);
        assert!(
            text.contains("reader r1:7420 \"null:\" 0 0+10 down=23910172B/s dest=out"),
            "{text}"
        );
    }
}
