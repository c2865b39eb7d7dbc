//! Round trips as the paper made them (section 4): nothing is far, only what the monitor says is held back.

use anyhow::Result;
use ropewalk_plot::{self as plot, Series, Style, Titles};

use super::Scale;
use super::load::Load;
use super::scene::{Lane, Run, Scene};
use crate::bench::Bench;
use crate::stats::summary;
use crate::table::{Cell, Table, number};

/// No more than the paper's best rate without load, so that the three monitors start alike.
const RATE: u64 = 1_600_000_000;
const BYTES: u64 = 256 << 20;
const DELAYS_MS: [u32; 6] = [0, 50, 80, 100, 120, 200];
const MONITORS: [&str; 3] = ["native", "linux26", "ule"];
const LOOPS: u32 = 3;

fn delays(scale: Scale) -> &'static [u32] {
    if scale.is_quick {
        &DELAYS_MS[4..5]
    } else {
        &DELAYS_MS
    }
}

fn monitors(scale: Scale) -> &'static [&'static str] {
    if scale.is_quick {
        &MONITORS[..1]
    } else {
        &MONITORS
    }
}

fn scene(feedback_delay_ms: u32) -> Scene {
    Scene {
        feedback_delay_ms,
        ..Scene::new(1500, Load::Loops(LOOPS), BYTES)
    }
}

fn key(delay: u32, monitor: &str, round: usize) -> String {
    format!(
        "{}, 1600 Mbit/s, {monitor}, round {round}",
        scene(delay).name()
    )
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let mut points = Vec::new();
    for round in 1..=scale.rounds {
        for &delay in delays(scale) {
            for monitor in monitors(scale) {
                points.push((
                    key(delay, monitor, round),
                    scene(delay).expected_seconds() + 1.0,
                ));
            }
        }
    }
    points
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut table = Table::new(
        format!(
            "Feedback delayed, as in the paper: 256 MiB at 1.6 Gbit/s at most, {LOOPS} loops, MTU 1500 (Figures 5, 7)"
        ),
        &[
            ("monitor", "monitor"),
            ("feedback_delay_ms", "delay ms"),
            ("seconds", "seconds"),
            ("least_to_most", "min-max"),
            ("lost", "lost"),
            ("again", "sent again"),
            ("suspensions", "pauses"),
        ],
    );
    let mut lines = Vec::new();
    for monitor in monitors(scale) {
        let mut points = Vec::new();
        for &delay in delays(scale) {
            let mut runs: Vec<Run> = Vec::new();
            for round in 1..=scale.rounds {
                let lane = Lane::rapid(monitor, RATE);
                let run = bench.point(&key(delay, monitor, round), || {
                    scene(delay).run(&site, lane)
                });
                runs.extend(run);
            }
            let Some(all) = summary(runs.iter().map(|run| run.seconds)) else {
                continue;
            };
            let middle = |of: &dyn Fn(&Run) -> f64| {
                summary(runs.iter().map(of)).map_or(Cell::Empty, |all| number(all.median, 0))
            };
            let blast = |of: fn(&ropewalk_proto::report::BlastReport) -> f64| {
                middle(&|run| run.blast.as_ref().map_or(0.0, of))
            };
            table.row(vec![
                (*monitor).into(),
                number(f64::from(delay), 0),
                number(all.median, 2),
                format!("{:.2}-{:.2}", all.min, all.max).into(),
                blast(|blast| blast.lost_datagrams as f64),
                middle(&|run| run.again as f64),
                blast(|blast| f64::from(blast.suspensions)),
            ]);
            points.push((f64::from(delay), all.median));
        }
        lines.push(Series::with(*monitor, Style::Marks, points));
    }
    if lines.iter().all(|line| line.points.is_empty()) {
        return Ok(Vec::new());
    }
    let titles = Titles {
        title: "Transfer time when feedback is delayed (as the paper made round trips)",
        x: "milliseconds",
        y: "seconds",
    };
    plot::lines(&bench.plot_path("feedback-delay"), titles, &[], &lines)?;
    Ok(vec![table])
}
