//! Figures 1 and 2 on this kernel: how long the load has the processor at a time, and how long the receiver's socket loses nothing, during
//! an RBUDP transfer.
//!
//! The load itself watches the clock; what the socket dropped is read every millisecond from outside.

use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_lab::Lab;
use ropewalk_plot::{self as plot, Series, Style, Titles};
use serde::{Deserialize, Serialize};

use super::Scale;
use super::load::{Load, Phase, Running, Slice};
use super::scene::{Lane, Scene};
use crate::bench::{Bench, Site};
use crate::table::{Table, number};

/// As the paper's: what was best without load there. The socket's buffer is the system's.
const RATE: u64 = 1_600_000_000;
const BYTES: u64 = 500_000_000 >> 20 << 20;
const LOADS: [Load; 4] = [
    Load::Loops(1),
    Load::Loops(2),
    Load::Loops(3),
    Load::Isosurface,
];
/// How often drops are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// No transfer here takes longer.
const LOOK_MAX: Duration = Duration::from_secs(120);

/// What was seen of one transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    seconds: f64,
    slices: Vec<Slice>,
    phases: Vec<Phase>,
    /// Beginning and length of each stretch in which nothing was dropped.
    lossless: Vec<Slice>,
    dropped: u64,
}

/// Datagrams that sockets of a network have dropped and hold, from its `net/udp`.
fn counts(text: &str) -> (u64, u64) {
    let (mut drops, mut queued) = (0, 0);
    for line in text.lines().skip(1) {
        let mut fields = line.split_whitespace();
        let queue = fields.nth(4).and_then(|both| both.split_once(':'));
        let held = queue.and_then(|(_, held)| u64::from_str_radix(held, 16).ok());
        queued += held.unwrap_or(0);
        drops += fields
            .last()
            .and_then(|drops| drops.parse::<u64>().ok())
            .unwrap_or(0);
    }
    (drops, queued)
}

/// Stretches without loss from what had been dropped at each look, while datagrams were coming; times in seconds.
fn lossless(looks: &[(f64, u64)]) -> Vec<Slice> {
    let mut all = Vec::new();
    let mut from = looks.first().map_or(0.0, |look| look.0);
    for two in looks.windows(2) {
        let ((_, before), (at, now)) = (two[0], two[1]);
        if now == before {
            continue;
        }
        // Losses in a row are one.
        if two[0].0 > from {
            all.push(Slice {
                at_seconds: from,
                seconds: two[0].0 - from,
            });
        }
        from = at;
    }
    if let Some((last, _)) = looks.last()
        && *last > from
    {
        all.push(Slice {
            at_seconds: from,
            seconds: last - from,
        });
    }
    all
}

fn look(_: &Lab, receiver: u32, running: &Running) -> Vec<(f64, u64)> {
    let path = format!("/proc/{receiver}/net/udp");
    let until = Instant::now() + LOOK_MAX;
    let mut looks = Vec::new();
    let mut met = false;
    while Instant::now() < until {
        let Ok(text) = std::fs::read_to_string(&path) else {
            break;
        };
        // The socket is there while the lane is: from the first line to its going.
        let is_open = text.lines().count() > 1;
        if met && !is_open {
            break;
        }
        met |= is_open;
        if is_open {
            let (drops, queued) = counts(&text);
            // What comes before the first datagram is no lossless interval.
            if !looks.is_empty() || queued > 0 {
                looks.push((running.began().elapsed().as_secs_f64(), drops));
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
    looks
}

fn scene(load: Load) -> Scene {
    Scene::new(1500, load, BYTES)
}

fn key(load: Load) -> String {
    format!("traces, {}, 1600 Mbit/s", scene(load).name())
}

fn loads(scale: Scale) -> Vec<Load> {
    let all = LOADS.into_iter();
    let quick = [Load::Loops(1), Load::Isosurface];
    all.filter(|load| !scale.is_quick || quick.contains(load))
        .collect()
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let loads = loads(scale).into_iter();
    loads.map(|load| (key(load), 6.0)).collect()
}

fn run(site: &Site, load: Load) -> Result<Seen> {
    let (run, looks, trace) = scene(load).watch(site, Lane::rbudp(RATE), look)?;
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        anyhow::bail!("the receiver's socket was not seen");
    };
    let during = |slice: &Slice| slice.at_seconds >= first.0 && slice.at_seconds <= last.0;
    Ok(Seen {
        seconds: run.seconds,
        slices: trace.slices.into_iter().filter(during).collect(),
        phases: trace.phases,
        lossless: lossless(&looks),
        dropped: last.1 - first.1,
    })
}

/// Parts of all with lengths below each of these milliseconds, and above the last.
const BOUNDS_MS: [f64; 6] = [1.0, 2.0, 3.0, 5.0, 9.0, 13.0];

fn parts(slices: &[Slice]) -> Vec<f64> {
    let count = slices.len().max(1) as f64;
    let mut low = 0.0;
    let mut parts = Vec::new();
    for high in BOUNDS_MS.into_iter().chain([f64::INFINITY]) {
        let within = |slice: &&Slice| (low..high).contains(&(slice.seconds * 1e3));
        parts.push(slices.iter().filter(within).count() as f64 / count * 100.0);
        low = high;
    }
    parts
}

fn in_order(name: &str, slices: &[Slice]) -> Series {
    let points = slices
        .iter()
        .map(|slice| (slice.at_seconds, slice.seconds * 1e3));
    Series::with(name, Style::Marks, points.take(400).collect())
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut table = Table::new(
        "Time slices of the load and lossless intervals on this kernel, RBUDP at 1.6 Gbit/s, MTU 1500, RTT 0 (Figures 1, 2)",
        &[
            ("load", "load"),
            ("what", "what"),
            ("count", "count"),
            ("first_milliseconds", "first ms"),
            ("longest_milliseconds", "longest ms"),
            ("below_1_percent", "< 1 ms %"),
            ("below_2_percent", "1-2"),
            ("below_3_percent", "2-3"),
            ("below_5_percent", "3-5"),
            ("below_9_percent", "5-9"),
            ("below_13_percent", "9-13"),
            ("above_percent", "> 13"),
        ],
    );
    let mut phases = Table::new(
        "Phases of the isosurface extraction beside that transfer",
        &[
            ("phase", "phase"),
            ("count", "count"),
            ("milliseconds", "ms"),
            ("processor_milliseconds", "cpu ms"),
        ],
    );
    let mut any = false;
    for load in loads(scale) {
        let Some(seen) = bench.point(&key(load), || run(&site, load)) else {
            continue;
        };
        any = true;
        let seen: Seen = seen;
        for (what, slices) in [
            ("slices of the load", &seen.slices),
            ("lossless", &seen.lossless),
        ] {
            let mut row = vec![
                load.name().into(),
                what.into(),
                number(slices.len() as f64, 0),
                number(slices.first().map(|first| first.seconds * 1e3), 1),
                number(
                    slices
                        .iter()
                        .map(|slice| slice.seconds * 1e3)
                        .reduce(f64::max),
                    1,
                ),
            ];
            row.extend(parts(slices).into_iter().map(|part| number(part, 0)));
            table.row(row);
        }
        for name in ["read", "classify", "extract", "write"] {
            let own: Vec<&Phase> = seen
                .phases
                .iter()
                .filter(|phase| phase.name == name)
                .collect();
            let mean = |of: fn(&Phase) -> f64| {
                let sum: f64 = own.iter().map(|phase| of(phase)).sum();
                sum / own.len() as f64 * 1e3
            };
            if !own.is_empty() {
                phases.row(vec![
                    name.into(),
                    number(own.len() as f64, 0),
                    number(mean(|phase| phase.seconds), 0),
                    number(mean(|phase| phase.processor_seconds), 0),
                ]);
            }
        }
        let (name, figure) = match load {
            Load::Loops(1) => ("figure-1", "1 loop (Figure 1)"),
            Load::Isosurface => ("figure-2", "isosurface extraction (Figure 2)"),
            _ => continue,
        };
        let title = format!("Slices of the load and lossless intervals: {figure}");
        let titles = Titles {
            title: &title,
            x: "seconds since the load began",
            y: "milliseconds",
        };
        let series = [
            in_order("time slices of the load", &seen.slices),
            in_order("lossless intervals", &seen.lossless),
        ];
        plot::lines(&bench.plot_path(name), titles, &[], &series)?;
    }
    table.note("Paper, Linux 2.6: the loop mostly 10 ms at a time, lossless 125 ms at first and then 10 ms; visualization below 2 ms or about 10 ms, lossless 280 ms at first and then 10 to 240 ms.");
    table.note("Here the load stops counting a slice when it is off its processor for more than 40 microseconds; drops are looked at every millisecond.");
    Ok(if any { vec![table, phases] } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets' drops and bytes held are added up, in hexadecimal where the kernel writes it so.
    #[test]
    fn the_kernel_s_table() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            1: 0100007F:1F90 0200007F:1F91 01 00000000:000000FF 00:00000000 00000000     0        0 1 2 0000 7\n\
            2: 0100007F:1F92 0200007F:1F93 01 00000000:00000001 00:00000000 00000000     0        0 1 2 0000 5\n";
        assert_eq!(counts(text), (12, 256));
        assert_eq!(counts("header only\n"), (0, 0));
    }

    /// Intervals end where drops were seen; drops in a row are one end; the last one reaches to the end.
    #[test]
    fn intervals() {
        let looks = [(0.0, 0), (0.1, 0), (0.2, 3), (0.3, 9), (0.4, 9), (0.5, 9)];
        let all = lossless(&looks);
        let rounded: Vec<(i32, i32)> = all
            .iter()
            .map(|s| {
                (
                    (s.at_seconds * 10.0).round() as i32,
                    (s.seconds * 10.0).round() as i32,
                )
            })
            .collect();
        assert_eq!(rounded, [(0, 1), (3, 2)]);
        assert!(lossless(&[]).is_empty());
    }

    /// Every slice is in one part.
    #[test]
    fn parts_are_whole() {
        let slices = [0.5, 1.0, 2.5, 4.0, 8.0, 12.0, 99.0].map(|ms: f64| Slice {
            at_seconds: 0.0,
            seconds: ms / 1e3,
        });
        let parts = parts(&slices);
        assert_eq!(parts.len(), BOUNDS_MS.len() + 1);
        assert!((parts.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        assert!(parts.iter().all(|part| (*part - 100.0 / 7.0).abs() < 1e-9));
    }
}
