//! Table 2 and Figures 5 to 7: transfer times under loads, packet lengths and round trips, and the fixed rates that are best.

use anyhow::Result;
use ropewalk_model::ByteRate;
use ropewalk_plot::{self as plot, Bar, Titles};
use ropewalk_proto::rapid::monitor::receive_buffer;
use serde::{Deserialize, Serialize};

use super::Scale;
use super::load::Load;
use super::scene::{Lane, Run, Scene, Way};
use super::search::golden_section;
use crate::bench::{Bench, Site};
use crate::stats::{Summary, summary};
use crate::table::{Cell, Table, number};

const MIB: u64 = 1 << 20;
/// Rates between which the best one is looked for, bits per second: beyond what one processor can take, and what the slowest
/// receiver here surely can.
const RATES: (f64, f64) = (200e6, 8e9);
/// Trunks carry this much; what lies between the packets is theirs, too.
const TRUNK: u64 = 400_000_000;
/// What the receiver alone takes of a long path's trunk: with two loops two thirds of it.
const CAPACITY_OVER_TRUNK: f64 = 2.0;
/// Times of hashing with which the cost of one is measured.
const PROBE_WORK: u32 = 20;
/// Most work there can be.
const WORK_MAX: f64 = 1000.0;

/// What the paper found best, bits per second (Table 2).
fn paper_rate(load: Load) -> Option<f64> {
    match load {
        Load::Loops(loops) => [1.6e9, 800e6, 650e6, 550e6].get(loops as usize).copied(),
        Load::Isosurface => Some(800e6),
        Load::Changing(_) => None,
    }
}

/// A row of ways that are compared: the same but for the load.
#[derive(Clone, Copy, Debug)]
struct Series {
    figure: &'static str,
    scene: Scene,
}

impl Series {
    fn alone(self) -> Scene {
        Scene {
            load: Load::Loops(0),
            ..self.scene
        }
    }
}

/// The columns of the comparison.
const WAYS: [&str; 9] = [
    "rbudp, best without load",
    "rbudp, best",
    "rbudp, best, large buffer",
    "rapid native",
    "rapid native, no rate given",
    "rapid linux26",
    "rapid ule",
    "TCP cubic",
    "TCP bbr",
];
const NO_LOAD: usize = 0;
const BEST: usize = 1;
const BEST_LARGE: usize = 2;
const NATIVE: usize = 3;
const UNTOLD: usize = 4;

fn scenes(scale: Scale, work: u32) -> Vec<Series> {
    let loops = Load::Loops;
    let (mtus, loads): (&[u32], &[Load]) = match scale.is_quick {
        true => (&[1500], &[loops(0), loops(2), Load::Isosurface]),
        false => (
            &[1500, 9000],
            &[loops(0), loops(1), loops(2), loops(3), Load::Isosurface],
        ),
    };
    let mut all = Vec::new();
    for &mtu in mtus {
        for &load in loads {
            let figure = match load {
                Load::Isosurface => "6",
                _ => "5, 7",
            };
            let scene = Scene::new(mtu, load, 256 * MIB);
            all.push(Series { figure, scene });
        }
        let load = Load::Changing(3);
        let bytes = if scale.is_quick { 512 } else { 2048 } * MIB;
        let scene = Scene::new(mtu, load, bytes);
        all.push(Series {
            figure: "changing",
            scene,
        });
    }
    let both = [loops(0), loops(2)];
    for &load in if scale.is_quick { &[][..] } else { &both } {
        let scene = Scene {
            files: true,
            ..Scene::new(1500, load, 256 * MIB)
        };
        all.push(Series {
            figure: "5, 7, files",
            scene,
        });
    }
    let (round_trips, loads, bytes): (&[u64], &[Load], u64) = match scale.is_quick {
        true => (&[50], &both[1..], 64 * MIB),
        false => (&[50, 120, 200], &both, 256 * MIB),
    };
    for &round_trip_ms in round_trips {
        for &load in loads {
            let way = Way::Trunk {
                bits_per_second: TRUNK,
                round_trip_ms,
                loss: 0.0,
            };
            let scene = Scene {
                way,
                work,
                ..Scene::new(9000, load, bytes)
            };
            all.push(Series {
                figure: "5, 7",
                scene,
            });
        }
    }
    all
}

fn measurements(scale: Scale) -> usize {
    if scale.is_quick { 5 } else { 8 }
}

fn ways(scale: Scale, scene: &Scene) -> Vec<usize> {
    let all = 0..WAYS.len();
    let quick = [NO_LOAD, BEST, NATIVE, UNTOLD, 5, 7];
    // A path that is long already shows enough of TCP and the large buffer with one row each.
    all.filter(|way| !scale.is_quick || quick.contains(way))
        .filter(|way| *way != NO_LOAD || scene.load != Load::Loops(0))
        .collect()
}

fn search_key(scene: &Scene, buffer: bool) -> String {
    let buffer = if buffer { ", large buffer" } else { "" };
    format!("{}, rbudp{buffer}, golden section", scene.name())
}

fn work_key() -> String {
    format!("cost of work, {PROBE_WORK} times")
}

fn key(scene: &Scene, way: usize, round: usize) -> String {
    format!("{}, {}, round {round}", scene.name(), WAYS[way])
}

/// Every point's key and seconds.
pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let mut points = vec![(work_key(), 5.0)];
    // How much work is not known yet; any will do for the time.
    for series in scenes(scale, 1) {
        let scene = series.scene;
        for buffer in buffers(scale) {
            let seconds = scene.expected_seconds() * measurements(scale) as f64;
            points.push((search_key(&scene, buffer), seconds));
        }
        for round in 1..=scale.rounds {
            for way in ways(scale, &scene) {
                points.push((key(&scene, way, round), scene.expected_seconds()));
            }
        }
    }
    points
}

fn buffers(scale: Scale) -> Vec<bool> {
    if scale.is_quick {
        vec![false]
    } else {
        vec![false, true]
    }
}

/// A search's course.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Searched {
    best_bits_per_second: f64,
    tried: Vec<(f64, f64)>,
}

/// Buffer that the native monitor would have at this rate.
fn large_buffer(rate: f64) -> u64 {
    receive_buffer(ByteRate((rate / 8.0) as u64), 3)
}

fn search(site: &Site, scene: &Scene, buffer: bool, measurements: usize) -> Result<Searched> {
    let (low, high) = match scene.way {
        Way::Direct => RATES,
        Way::Trunk {
            bits_per_second, ..
        } => (0.2 * bits_per_second as f64, 1.1 * bits_per_second as f64),
    };
    // Rates are told apart by their ratio.
    let found = golden_section(low.ln(), high.ln(), measurements, |at| {
        let rate = at.exp().round() as u64;
        let lane = Lane::Rbudp {
            rate,
            buffer: buffer.then(|| large_buffer(rate as f64)),
        };
        Ok(scene.run(site, lane)?.seconds)
    })?;
    let tried = found.tried.iter().map(|(at, value)| (at.exp(), *value));
    Ok(Searched {
        best_bits_per_second: found.at.exp().round(),
        tried: tried.collect(),
    })
}

/// Times of hashing that make the receiver as slow as long paths want it.
fn work(bench: &mut Bench) -> u32 {
    let site = bench.site();
    let scene = Scene::new(9000, Load::Loops(0), 128 * MIB);
    let seconds_per_byte = bench.point(&work_key(), || {
        let cost = |work| -> Result<f64> {
            let run = Scene { work, ..scene }.run_ends(&site, Lane::rapid("native", TRUNK * 2))?;
            Ok(run.receiver_processor_seconds / run.bytes as f64)
        };
        Ok([cost(0)?, cost(PROBE_WORK)?])
    });
    let Some([without, with]) = seconds_per_byte else {
        return 1;
    };
    let wanted = 8.0 / (TRUNK as f64 * CAPACITY_OVER_TRUNK);
    let one = (with - without) / f64::from(PROBE_WORK);
    ((wanted - without) / one.max(1e-12))
        .clamp(1.0, WORK_MAX)
        .round() as u32
}

/// One series with everything measured.
struct Measured {
    series: Series,
    best: [Option<f64>; 2],
    alone: Option<f64>,
    // By way.
    runs: Vec<Vec<Run>>,
}

impl Measured {
    fn seconds(&self, way: usize) -> Option<Summary> {
        summary(self.runs[way].iter().map(|run| run.seconds))
    }

    /// Seconds that a receiver with a fair share of the processor takes for the processor time that native used; `None`
    /// unless the load always wants the processor.
    fn fair_share(&self) -> Option<f64> {
        let Load::Loops(loops) = self.series.scene.load else {
            return None;
        };
        let runs = self.runs[NATIVE].iter();
        let used = summary(runs.map(|run| run.receiver_processor_seconds))?;
        Some(used.median * f64::from(loops + 1))
    }

    fn over(&self, way: usize, other: usize) -> Option<f64> {
        Some(self.seconds(way)?.median / self.seconds(other)?.median)
    }
}

fn lane(way: usize, alone: f64, best: f64, best_large: Option<f64>) -> Option<Lane> {
    let rate = |rate: f64| rate as u64;
    Some(match WAYS[way] {
        "rbudp, best without load" => Lane::rbudp(rate(alone)),
        "rbudp, best" => Lane::rbudp(rate(best)),
        "rbudp, best, large buffer" => Lane::Rbudp {
            rate: rate(best_large?),
            buffer: Some(large_buffer(best_large?)),
        },
        "rapid native" => Lane::rapid("native", rate(alone)),
        "rapid native, no rate given" => Lane::Rapid {
            monitor: "native",
            rate: None,
        },
        "rapid linux26" => Lane::rapid("linux26", rate(alone)),
        "rapid ule" => Lane::rapid("ule", rate(alone)),
        "TCP cubic" => Lane::Tcp("cubic"),
        _ => Lane::Tcp("bbr"),
    })
}

fn measure(bench: &mut Bench, scale: Scale, series: Series, alone: Option<f64>) -> Measured {
    let site = bench.site();
    let scene = series.scene;
    let mut best = [None, None];
    for buffer in buffers(scale) {
        let key = search_key(&scene, buffer);
        let found = bench.point(&key, || search(&site, &scene, buffer, measurements(scale)));
        best[usize::from(buffer)] = found.map(|found: Searched| found.best_bits_per_second);
    }
    let mut measured = Measured {
        series,
        best,
        alone: alone.or(best[0]),
        runs: vec![Vec::new(); WAYS.len()],
    };
    let (Some(alone), Some(best)) = (measured.alone, measured.best[0]) else {
        return measured;
    };
    for round in 1..=scale.rounds {
        for way in ways(scale, &scene) {
            let Some(lane) = lane(way, alone, best, measured.best[1]) else {
                continue;
            };
            let run = bench.point(&key(&scene, way, round), || scene.run(&site, lane));
            measured.runs[way].extend(run);
        }
    }
    measured
}

/// Makes the tables and plots.
pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let work = work(bench);
    let mut all: Vec<Measured> = Vec::new();
    for series in scenes(scale, work) {
        // The rate that is best for the same path without a load.
        let wanted = series.alone();
        let alone = all.iter().find(|other| {
            let scene = other.series.scene;
            let same = Scene {
                bytes: wanted.bytes,
                ..scene
            };
            same == wanted
        });
        let alone = alone.and_then(|other| other.best[0]);
        let alone = match (alone, series.scene.way) {
            // Without load the trunk is the limit.
            (None, Way::Trunk { .. }) => Some(TRUNK as f64 * 0.97),
            (alone, _) => alone,
        };
        all.push(measure(bench, scale, series, alone));
    }
    // `--only` may leave nothing of a series.
    all.retain(|measured| measured.runs.iter().any(|runs| !runs.is_empty()));
    if all.is_empty() {
        return Ok(Vec::new());
    }
    plot_times(bench, &all)?;
    Ok(vec![rates(&all), times(&all), losses(&all)])
}

/// The load, and what is moved where that is not memory.
fn place(scene: &Scene) -> String {
    let files = if scene.files { ", files" } else { "" };
    format!("{}{files}", scene.load.name())
}

fn rates(all: &[Measured]) -> Table {
    let mut table = Table::new(
        "Rates that are best for RBUDP, by golden section (Table 2)",
        &[
            ("mtu_bytes", "MTU"),
            ("round_trip_ms", "RTT ms"),
            ("load", "load"),
            ("best_megabits_per_second", "best Mbit/s"),
            ("best_large_buffer_megabits_per_second", "large buffer"),
            ("goodput_megabits_per_second", "goodput at best"),
            ("native_megabits_per_second", "goodput of rapid native"),
            ("paper_megabits_per_second", "paper, MTU 1500"),
        ],
    );
    for measured in all {
        let scene = measured.series.scene;
        let goodput = |way: usize| summary(measured.runs[way].iter().map(Run::megabits));
        let at_home = scene.way == Way::Direct && scene.mtu == 1500 && !scene.files;
        table.row(vec![
            number(f64::from(scene.mtu), 0),
            number(scene.way.round_trip_ms() as f64, 0),
            place(&scene).into(),
            number(measured.best[0].map(|rate| rate / 1e6), 0),
            number(measured.best[1].map(|rate| rate / 1e6), 0),
            number(goodput(BEST).or(goodput(NATIVE)).map(|all| all.median), 0),
            number(goodput(NATIVE).map(|all| all.median), 0),
            number(
                paper_rate(scene.load)
                    .filter(|_| at_home)
                    .map(|rate| rate / 1e6),
                0,
            ),
        ]);
    }
    table.note("best: of all rates tried the one with the shortest transfer; where several are as fast, chance decides. Large buffer: the one that the native monitor would ask for.");
    table
}

fn times(all: &[Measured]) -> Table {
    let mut columns = vec![
        ("figure", "figure"),
        ("mtu_bytes", "MTU"),
        ("round_trip_ms", "RTT ms"),
        ("load", "load"),
    ];
    columns.extend([
        ("rbudp_at_no_load_rate_seconds", "rbudp, no-load rate"),
        ("rbudp_best_seconds", "rbudp, best"),
        ("rbudp_best_large_buffer_seconds", "best, large buffer"),
        ("rapid_native_seconds", "rapid native"),
        ("rapid_native_untold_seconds", "no rate given"),
        ("rapid_linux26_seconds", "linux26"),
        ("rapid_ule_seconds", "ule"),
        ("tcp_cubic_seconds", "TCP cubic"),
        ("tcp_bbr_seconds", "TCP bbr"),
        ("native_over_best", "native/best"),
        ("native_over_best_large_buffer", "native/large"),
        ("native_over_no_load_rate", "native/no-load"),
        ("native_untold_over_best", "untold/best"),
        ("fair_share_seconds", "fair share"),
    ]);
    let mut table = Table::new("Transfer times in seconds (Figures 5, 6, 7)", &columns);
    for measured in all {
        let scene = measured.series.scene;
        let mut row = vec![
            measured.series.figure.into(),
            number(f64::from(scene.mtu), 0),
            number(scene.way.round_trip_ms() as f64, 0),
            place(&scene).into(),
        ];
        for way in 0..WAYS.len() {
            let seconds = measured.seconds(way);
            row.push(seconds.map_or(Cell::Empty, |all| match all.count {
                1 => number(all.median, 2),
                _ => format!("{:.2} ({:.2}-{:.2})", all.median, all.min, all.max).into(),
            }));
        }
        for other in [BEST, BEST_LARGE, NO_LOAD] {
            row.push(number(measured.over(NATIVE, other), 2));
        }
        row.push(number(measured.over(UNTOLD, BEST), 2));
        row.push(number(measured.fair_share(), 2));
        table.row(row);
    }
    table.note("From the first request to the last byte checked and in place; medians, least and greatest. The monitors stay below rbudp's best rate without load, as in the paper; in one column native gets no rate.");
    table.note("Targets: native/best at most 1.05 everywhere, native/no-load at most 0.75 under every load, native/best at most 1.02 without load.");
    table.note("Fair share: what the receiver's processor time under native takes at one part of all that want the processor; starting and the path are added. Packets that arrive are handled at the cost of any process, so that a fast path can be ahead of it.");
    let invalid: usize = all
        .iter()
        .flat_map(|measured| measured.runs.iter().flatten())
        .filter(|run| !run.invalid.is_empty())
        .count();
    if invalid > 0 {
        table.note(format!(
            "In {invalid} runs the trunk's relay was late or busy; the reasons are in runs.jsonl."
        ));
    }
    table
}

fn losses(all: &[Measured]) -> Table {
    let mut table = Table::new(
        "Datagrams lost, sent again and useless; gaps between deliveries; the monitor",
        &[
            ("mtu_bytes", "MTU"),
            ("round_trip_ms", "RTT ms"),
            ("load", "load"),
            ("way", "way"),
            ("datagrams", "datagrams"),
            ("lost", "lost"),
            ("dropped", "by the socket"),
            ("again", "sent again"),
            ("strays", "useless"),
            ("suspensions", "pauses"),
            ("gap_p99_milliseconds", "gap 99 % ms"),
            ("gap_max_milliseconds", "gap max ms"),
            ("monitor_percent", "monitor %"),
        ],
    );
    for measured in all {
        let scene = measured.series.scene;
        for (way, runs) in measured.runs.iter().enumerate() {
            let blasts = || runs.iter().filter_map(|run| run.blast.as_ref());
            if blasts().next().is_none() {
                continue;
            }
            let middle = |values: Vec<f64>| summary(values).map(|all| all.median);
            let of = |value: fn(&ropewalk_proto::report::BlastReport) -> f64| {
                middle(blasts().map(value).collect())
            };
            let of_run = |value: fn(&Run) -> f64| middle(runs.iter().map(value).collect());
            table.row(vec![
                number(f64::from(scene.mtu), 0),
                number(scene.way.round_trip_ms() as f64, 0),
                place(&scene).into(),
                WAYS[way].into(),
                number(of_run(|run| run.datagrams as f64), 0),
                number(of(|blast| blast.lost_datagrams as f64), 0),
                number(of(|blast| blast.dropped_datagrams as f64), 0),
                number(of_run(|run| run.again as f64), 0),
                number(of(|blast| blast.stray_datagrams as f64), 0),
                number(of(|blast| f64::from(blast.suspensions)), 0),
                number(of(|blast| blast.delivery_gaps.p99_seconds * 1e3), 1),
                number(of(|blast| blast.delivery_gaps.longest_seconds * 1e3), 1),
                number(of_run(|run| run.monitor_percent().unwrap_or(0.0)), 2),
            ]);
        }
    }
    table.note("Medians. Gaps lie between units of up to 1 MiB that became whole, which is when data can be used: jitter.");
    table
}

/// One plot for each packet length and kind of path.
fn plot_times(bench: &Bench, all: &[Measured]) -> Result<()> {
    let kinds = [
        ("direct-1500", "RTT 0, MTU 1500 (Figures 5a, 6a, 7a)"),
        ("direct-9000", "RTT 0, MTU 9000 (Figures 5b, 6b, 7b)"),
        ("round-trips", "long round trips, MTU 9000 (Figures 5, 7)"),
    ];
    for (name, title) in kinds {
        let is_of = |scene: &Scene| match scene.way {
            Way::Direct => name == format!("direct-{}", scene.mtu),
            Way::Trunk { .. } => name == "round-trips",
        };
        let mut bars = Vec::new();
        for measured in all.iter().filter(|measured| is_of(&measured.series.scene)) {
            let scene = measured.series.scene;
            for (way, named) in WAYS.iter().enumerate() {
                let Some(seconds) = measured.seconds(way) else {
                    continue;
                };
                let place = match scene.way {
                    Way::Direct => place(&scene),
                    Way::Trunk { round_trip_ms, .. } => {
                        format!("{round_trip_ms} ms, {}", place(&scene))
                    }
                };
                bars.push(Bar {
                    label: format!("{place}: {named}"),
                    value: seconds.median,
                    range: (seconds.min, seconds.max),
                    group: way,
                });
            }
        }
        if !bars.is_empty() {
            let titles = Titles {
                title: &format!("Transfer time, {title}"),
                x: "seconds",
                y: "",
            };
            plot::bars(&bench.plot_path(name), titles, &bars)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The full grid has every load at both packet lengths, both loads at every long round trip, and no two points share a key.
    #[test]
    fn the_full_grid() {
        let full = Scale {
            rounds: 3,
            is_quick: false,
        };
        let all = scenes(full, 5);
        assert_eq!(all.len(), 2 * 6 + 2 + 3 * 2);
        let points = points(full);
        let keys: std::collections::BTreeSet<&String> = points.iter().map(|p| &p.0).collect();
        assert_eq!(keys.len(), points.len());
        let quick = Scale {
            rounds: 1,
            is_quick: true,
        };
        assert!(super::points(quick).len() * 4 < points.len());
    }

    /// Without a load the rate that is best without load is the best one: no row of its own.
    #[test]
    fn ways_of_scenes() {
        let full = Scale {
            rounds: 3,
            is_quick: false,
        };
        let scene = Scene::new(1500, Load::Loops(0), MIB);
        assert!(!ways(full, &scene).contains(&NO_LOAD));
        let scene = Scene::new(1500, Load::Loops(1), MIB);
        assert_eq!(ways(full, &scene).len(), WAYS.len());
    }
}
