//! What the monitor costs, with and without soft real time, and how evenly data arrives with and without it.

use anyhow::Result;

use super::Scale;
use super::load::Load;
use super::scene::{Lane, Run, Scene};
use crate::bench::Bench;
use crate::stats::summary;
use crate::table::{Table, number};

/// All lanes at one rate, below what the receiver alone takes: the paper's best rate.
const RATE: u64 = 1_600_000_000;

const LANES: [(&str, Lane); 4] = [
    (
        "rbudp",
        Lane::Rbudp {
            rate: RATE,
            buffer: None,
        },
    ),
    (
        "rapid native",
        Lane::Rapid {
            monitor: "native",
            rate: Some(RATE),
        },
    ),
    (
        "rapid linux26",
        Lane::Rapid {
            monitor: "linux26",
            rate: Some(RATE),
        },
    ),
    (
        "rapid ule",
        Lane::Rapid {
            monitor: "ule",
            rate: Some(RATE),
        },
    ),
];

/// Every row: lane, scene.
fn rows(scale: Scale) -> Vec<(usize, Scene)> {
    let loops: &[u32] = if scale.is_quick { &[2] } else { &[0, 1, 2, 3] };
    let lanes = if scale.is_quick { 2 } else { LANES.len() };
    let mut rows = Vec::new();
    for &loops in loops {
        for lane in 0..lanes {
            for soft_real_time in [true, false] {
                // Without a monitor nothing asks for it.
                if lane > 0 || soft_real_time {
                    let scene = Scene {
                        soft_real_time,
                        ..Scene::new(1500, Load::Loops(loops), 256 << 20)
                    };
                    rows.push((lane, scene));
                }
            }
        }
    }
    rows
}

fn key((lane, scene): (usize, Scene), round: usize) -> String {
    format!(
        "cost and jitter, {}, {}, 1600 Mbit/s, round {round}",
        scene.name(),
        LANES[lane].0
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let rounds = 1..=scale.rounds;
    let all = rounds.flat_map(|round| {
        let rows = rows(scale).into_iter();
        rows.map(move |row| (key(row, round), row.1.expected_seconds() + 1.0))
    });
    all.collect()
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let rows = rows(scale);
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); rows.len()];
    for round in 1..=scale.rounds {
        for (row, runs) in rows.iter().zip(&mut runs) {
            let (lane, scene) = *row;
            runs.extend(bench.point(&key(*row, round), || scene.run(&site, LANES[lane].1)));
        }
    }
    if runs.iter().all(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let mut table = Table::new(
        "Cost of the monitor and jitter of delivery: 256 MiB at 1.6 Gbit/s at most, MTU 1500, RTT 0",
        &[
            ("load", "load"),
            ("lane", "lane"),
            ("soft_real_time", "soft real time"),
            ("seconds", "seconds"),
            ("monitor_percent", "monitor %"),
            ("receiver_processor_seconds", "receiver cpu s"),
            ("lost", "lost"),
            ("gap_median_milliseconds", "gap ms"),
            ("gap_p99_milliseconds", "99 %"),
            ("gap_max_milliseconds", "max"),
            ("arrival_p99_milliseconds", "datagrams 99 %"),
            ("arrival_max_milliseconds", "max"),
        ],
    );
    for ((lane, scene), own) in rows.iter().zip(&runs) {
        if own.is_empty() {
            continue;
        }
        let of = |value: &dyn Fn(&Run) -> Option<f64>| {
            summary(own.iter().filter_map(value)).map(|all| all.median)
        };
        let blast = |value: fn(&ropewalk_proto::report::BlastReport) -> f64| {
            of(&|run| run.blast.as_ref().map(value))
        };
        let watched = *lane > 0;
        table.row(vec![
            scene.load.name().into(),
            LANES[*lane].0.into(),
            match (watched, scene.soft_real_time) {
                (false, _) => "-",
                (true, true) => "yes",
                (true, false) => "no",
            }
            .into(),
            number(of(&|run| Some(run.seconds)), 2),
            number(of(&Run::monitor_percent).filter(|_| watched), 2),
            number(of(&|run| Some(run.receiver_processor_seconds)), 2),
            number(blast(|blast| blast.lost_datagrams as f64), 0),
            number(blast(|blast| blast.delivery_gaps.median_seconds * 1e3), 1),
            number(blast(|blast| blast.delivery_gaps.p99_seconds * 1e3), 1),
            number(blast(|blast| blast.delivery_gaps.longest_seconds * 1e3), 1),
            number(blast(|blast| blast.arrival_gaps.p99_seconds * 1e3), 1),
            number(blast(|blast| blast.arrival_gaps.longest_seconds * 1e3), 1),
        ]);
    }
    table.note("monitor %: of one processor, while the bytes moved. Gaps between units that became whole, and between datagrams taken from the socket; medians over runs.");
    Ok(vec![table])
}
