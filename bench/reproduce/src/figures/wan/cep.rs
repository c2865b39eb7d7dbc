//! CEP Figures 4 and 7 over the trunk: that paper's section 5 says that the pattern over a wide area is the same.

use anyhow::Result;
use ropewalk_lab::trunk::TrunkSpec;
use ropewalk_plot::{self as plot, Series, Style, Titles};

use crate::bench::{Bench, Site};
use crate::figures::trunk::{Queue, trunk};
use crate::network::tcp_rate;
use crate::scenario::{AUTO, Node, Run, Scenario, UNIFORM, window};
use crate::table::{Table, number};

use super::cells::PAYLOAD_SHARE;
use super::rig::{Ran, Rig, invalid, invalid_note};
use super::{SECONDS, SECONDS_QUICK};

/// The trunk: as fast as ten of the figure's nodes, or all of Figure 7's.
const RATE: u64 = 200_000_000;
const ROUND_TRIP_MS: u64 = 80;
const MTU: u32 = 1500;

/// Nodes of Figure 4, and pairs at each point.
const NODE: u64 = 20_000_000;
const PAIRS: [usize; 5] = [1, 2, 4, 8, 16];

/// Slow and fast nodes of Figure 7, in turn, four a side; windows in halves of a fourth.
const MIXED: [u64; 4] = [5_000_000, 50_000_000, 5_000_000, 50_000_000];
const WINDOWS: [usize; 4] = [2, 4, 6, 8];

/// In a hurry these only.
const QUICK_PAIRS: [usize; 3] = [1, 4, 16];
const QUICK_WINDOWS: [usize; 2] = [2, 8];

/// Sizes are multiples of this: ends of windows are ends of chunks.
const STEP: u64 = 4 << 20;

const AUTO_RUN: Run = Run {
    name: "auto",
    has_hints: false,
    scheduler: AUTO,
    has_feedback: true,
};

const UNIFORM_RUN: Run = Run {
    name: "uniform",
    has_hints: true,
    scheduler: UNIFORM,
    has_feedback: false,
};

fn the_trunk() -> TrunkSpec {
    let queue = Queue::Product.packets(RATE, MTU, ROUND_TRIP_MS);
    trunk(Some(RATE), MTU, ROUND_TRIP_MS, queue)
}

/// Nodes as the lab's clusters name them.
fn scenario(caps: &[u64], halves: usize, is_shared: bool, bytes: u64) -> Scenario {
    let side = |letter: char| {
        let node = |(at, &cap): (usize, &u64)| Node {
            name: format!("{letter}{}", at + 1),
            bits_per_second: cap,
            ranges: window(bytes, at, caps.len(), halves),
        };
        caps.iter().enumerate().map(node).collect()
    };
    Scenario {
        bytes,
        senders: side('a'),
        receivers: side('b'),
        is_shared,
        changes: Vec::new(),
    }
}

/// Seconds that nodes and trunk need at least.
fn bound(scenario: &Scenario, run: &Run) -> Result<f64> {
    let over_trunk = scenario.wanted_bytes() * 8.0 / (RATE as f64 * PAYLOAD_SHARE);
    Ok(run.best_seconds(scenario)?.max(over_trunk))
}

/// A point of a figure.
struct Point {
    figure: &'static str,
    /// Pairs, or the share of the data that a node may access.
    x: f64,
    name: String,
    caps: Vec<u64>,
    run: Run,
    scenario: Scenario,
    bound: f64,
}

impl Point {
    fn key(&self) -> String {
        format!("{}, {} bytes", self.name, self.scenario.bytes)
    }

    /// Mbit/s when it takes so long.
    fn megabits(&self, seconds: f64) -> f64 {
        self.scenario.wanted_bytes() * 8.0 / 1e6 / seconds
    }
}

const FIGURE_4: &str = "4";
const FIGURE_7: &str = "7";

/// A point's figure, place on its axis, name, and what there is to run.
type Wanted = (&'static str, f64, String, Vec<u64>);

fn all_points(is_quick: bool) -> Result<Vec<Point>> {
    let seconds = if is_quick { SECONDS_QUICK } else { SECONDS };
    let mut points = Vec::new();
    let mut add = |(figure, x, name, caps): Wanted, halves, is_shared, run: Run| -> Result<()> {
        let bytes = run.size(seconds, STEP, |bytes| {
            scenario(&caps, halves, is_shared, bytes)
        })?;
        // No more than the trunk carries in that time.
        let most = (RATE as f64 / 8.0 * PAYLOAD_SHARE * seconds) as u64 / STEP * STEP;
        let scenario = scenario(&caps, halves, is_shared, bytes.min(most));
        let bound = bound(&scenario, &run)?;
        points.push(Point {
            figure,
            x,
            name,
            caps,
            run,
            scenario,
            bound,
        });
        Ok(())
    };
    let (pairs, windows) = match is_quick {
        true => (QUICK_PAIRS.as_slice(), QUICK_WINDOWS.as_slice()),
        false => (PAIRS.as_slice(), WINDOWS.as_slice()),
    };
    for &pairs in pairs {
        let name = format!("cep 4: {pairs} pairs");
        let wanted = (FIGURE_4, pairs as f64, name, vec![NODE; pairs]);
        add(wanted, 2, false, AUTO_RUN)?;
    }
    for &halves in windows {
        for run in [AUTO_RUN, UNIFORM_RUN] {
            let parts = halves as f64 / 2.0;
            let name = format!("cep 7: window {parts}/4, {}", run.name);
            let wanted = (FIGURE_7, parts / 4.0, name, MIXED.to_vec());
            add(wanted, halves, true, run)?;
        }
    }
    Ok(points)
}

/// Every point and its seconds.
pub(super) fn points(is_quick: bool) -> Result<Vec<(String, f64)>> {
    let points = all_points(is_quick)?.into_iter();
    Ok(points
        .map(|point| (point.key(), point.bound * 1.2 + 2.0))
        .collect())
}

/// What was reached of a figure, and the bounds, by way.
fn lines(all: &[(Point, Option<Ran>)], figure: &str) -> Vec<Series> {
    let mut lines = Vec::new();
    for run in [AUTO_RUN, UNIFORM_RUN] {
        let mut reached = Series::new(run.name, Style::Marks);
        let mut bound = Series::new(format!("bound of {}", run.name), Style::Dashed);
        for (point, ran) in all {
            if (point.figure, point.run.name) != (figure, run.name) {
                continue;
            }
            bound.points.push((point.x, point.megabits(point.bound)));
            let seconds = ran.iter().map(|ran| ran.seconds);
            reached
                .points
                .extend(seconds.map(|s| (point.x, point.megabits(s))));
        }
        if !reached.points.is_empty() {
            lines.extend([reached, bound]);
        }
    }
    lines
}

fn draw(bench: &Bench, all: &[(Point, Option<Ran>)]) -> Result<()> {
    for (figure, title, x) in [
        (FIGURE_4, "composition of equal pairs", "pairs"),
        (
            FIGURE_7,
            "windows of access",
            "share of the data that a node may access",
        ),
    ] {
        let lines = lines(all, figure);
        if lines.is_empty() {
            continue;
        }
        let title = format!(
            "CEP Figure {figure} over a trunk of {} Mbit/s, {ROUND_TRIP_MS} ms: {title}",
            RATE / 1_000_000
        );
        let titles = Titles {
            title: &title,
            x,
            y: "Mbit/s",
        };
        let path = bench.plot_path(&format!("cep-figure{figure}"));
        plot::lines(&path, titles, &[], &lines)?;
    }
    Ok(())
}

fn measure(site: &Site, point: &Point) -> Result<Ran> {
    let caps = [point.caps.as_slice(), point.caps.as_slice()];
    let mut rig = Rig::new(site, caps, the_trunk(), "cubic")?;
    let run = &point.run;
    let feedback = if run.has_feedback { "on" } else { "off" };
    let options = format!("--scheduler {} --replan {feedback}", run.scheduler);
    let specification = point.scenario.specification(run.has_hints);
    rig.run(&specification, &options, 5.0 * point.bound)
}

/// Runs them all.
pub(super) fn table(bench: &mut Bench, is_quick: bool) -> Result<Table> {
    let site = bench.site();
    let points = all_points(is_quick)?.into_iter();
    let all: Vec<(Point, Option<Ran>)> = points
        .map(|point| {
            let ran = bench.point(&point.key(), || measure(&site, &point));
            (point, ran)
        })
        .collect();
    let mut table = Table::new(
        format!(
            "CEP Figures 4 and 7 over the trunk ({} Mbit/s, {ROUND_TRIP_MS} ms, cubic)",
            RATE / 1_000_000
        ),
        &[
            ("point", "point"),
            ("megabits_per_second", "Mbit/s"),
            ("bound_megabits_per_second", "bound"),
            ("percent_of_bound", "% of bound"),
            ("binding", "binding"),
            ("seconds", "s"),
            ("start_seconds", "start s"),
            ("invalid_runs", "invalid"),
        ],
    );
    for (point, ran) in &all {
        let Some(ran) = ran else { continue };
        let nodes: f64 = point.caps.iter().map(|&cap| tcp_rate(cap)).sum();
        table.row(vec![
            point.name.as_str().into(),
            number(point.megabits(ran.seconds), 1),
            number(point.megabits(point.bound), 1),
            number(point.bound / ran.seconds * 100.0, 1),
            match nodes < RATE as f64 * PAYLOAD_SHARE {
                true => "nodes".into(),
                false => "trunk".into(),
            },
            number(ran.seconds, 2),
            number(ran.start_seconds, 2),
            number(invalid([ran]).0 as f64, 0),
        ]);
    }
    table.note(invalid_note(invalid(
        all.iter().filter_map(|one| one.1.as_ref()),
    )));
    draw(bench, &all)?;
    table.note("cep 4: equal pairs at 20 Mbit/s, each its part, no speeds declared; 16 of them ask more than the trunk has.");
    table.note("cep 7: four nodes a side at 5 and 50 Mbit/s in turn, one destination; the bound of uniform is its own plan's.");
    table.note("rates while moving: start s, five round trips of connecting among it, is apart.");
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trunk bounds sixteen pairs, the nodes fewer; wider windows let fast nodes do more.
    #[test]
    fn bounds() {
        let points = all_points(false).unwrap();
        let rate = |at: usize| points[at].scenario.wanted_bytes() * 8.0 / 1e6 / points[at].bound;
        assert!((rate(0) - 19.1).abs() < 0.1, "{}", rate(0));
        assert!((rate(3) - 153.0).abs() < 0.5, "{}", rate(3));
        assert!((rate(4) - 193.1).abs() < 0.5, "{}", rate(4));
        assert!(rate(11) > 4.0 * rate(5), "{} {}", rate(11), rate(5));
        assert!(
            points[5]
                .scenario
                .specification(false)
                .contains("writer a1:7420")
        );
    }

    /// Lines have a place for each point that ran, and the bound everywhere; ways that did not run are left out.
    #[test]
    fn plotted() {
        let mut all: Vec<(Point, Option<Ran>)> = all_points(true)
            .unwrap()
            .into_iter()
            .map(|point| (point, None))
            .collect();
        assert!(lines(&all, FIGURE_7).is_empty());
        let report = serde_json::json!({
            "seconds": 2.0 * all[3].0.bound, "start_seconds": 0.0, "is_complete": true, "steps": [], "progress": [],
            "packets": [0, 0, 0], "processor_seconds": 0.0, "invalid": [],
        });
        all[3].1 = Some(serde_json::from_value(report).unwrap());
        let drawn = lines(&all, FIGURE_7);
        let names: Vec<&str> = drawn.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["auto", "bound of auto"]);
        let [reached, bound] = [&drawn[0].points, &drawn[1].points];
        assert_eq!((reached.len(), bound.len()), (1, 2));
        assert!((reached[0].1 / bound[0].1 - 0.5).abs() < 1e-9);
        assert_eq!((bound[0].0, bound[1].0), (0.25, 1.0));
    }
}
