//! CEP Figures 4 and 7 over the trunk: that paper's section 5 says that the pattern over a wide area is the same.

use anyhow::Result;
use ropewalk_lab::trunk::TrunkSpec;

use crate::bench::{Bench, Site};
use crate::figures::trunk::{Queue, trunk};
use crate::network::tcp_rate;
use crate::scenario::{AUTO, Node, Run, Scenario, UNIFORM, window};
use crate::table::{Table, number};

use super::cells::PAYLOAD_SHARE;
use super::rig::{Ran, Rig};

/// The trunk: as fast as ten of the figure's nodes, or all of Figure 7's.
const RATE: u64 = 200_000_000;
const ROUND_TRIP_MS: u64 = 80;
const MTU: u32 = 1500;

/// Nodes of Figure 4, and pairs at each point.
const NODE: u64 = 20_000_000;
const PAIRS: [usize; 5] = [1, 2, 4, 8, 16];

/// Slow and fast nodes of Figure 7, in turn, four a side; windows in halves of a fourth.
const MIXED: [u64; 4] = [5_000_000, 50_000_000, 5_000_000, 50_000_000];
const WINDOWS: [usize; 3] = [2, 4, 8];

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
    name: String,
    caps: Vec<u64>,
    run: Run,
    scenario: Scenario,
    bound: f64,
}

fn points(seconds: f64) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    let mut add = |name: String, caps: Vec<u64>, halves, is_shared, run: Run| -> Result<()> {
        let bytes = run.size(seconds, STEP, |bytes| {
            scenario(&caps, halves, is_shared, bytes)
        })?;
        // No more than the trunk carries in that time.
        let most = (RATE as f64 / 8.0 * PAYLOAD_SHARE * seconds) as u64 / STEP * STEP;
        let scenario = scenario(&caps, halves, is_shared, bytes.min(most));
        let bound = bound(&scenario, &run)?;
        points.push(Point {
            name,
            caps,
            run,
            scenario,
            bound,
        });
        Ok(())
    };
    for pairs in PAIRS {
        let name = format!("cep 4: {pairs} pairs");
        add(name, vec![NODE; pairs], 2, false, AUTO_RUN)?;
    }
    for halves in WINDOWS {
        for run in [AUTO_RUN, UNIFORM_RUN] {
            let name = format!("cep 7: window {}/4, {}", halves as f64 / 2.0, run.name);
            add(name, MIXED.to_vec(), halves, true, run)?;
        }
    }
    Ok(points)
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
pub(super) fn table(bench: &mut Bench, seconds: f64) -> Result<Table> {
    let site = bench.site();
    let points = points(seconds)?;
    let key = |point: &Point| format!("{}, {} bytes", point.name, point.scenario.bytes);
    bench.expect(
        points
            .iter()
            .map(|point| (key(point), point.bound * 1.2 + 2.0)),
    );
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
        ],
    );
    for point in &points {
        let ran = bench.point(&key(point), || measure(&site, point));
        let Some(ran) = ran else { continue };
        let rate = |seconds: f64| point.scenario.wanted_bytes() * 8.0 / 1e6 / seconds;
        let nodes: f64 = point.caps.iter().map(|&cap| tcp_rate(cap)).sum();
        table.row(vec![
            point.name.as_str().into(),
            number(rate(ran.seconds), 1),
            number(rate(point.bound), 1),
            number(point.bound / ran.seconds * 100.0, 1),
            match nodes < RATE as f64 * PAYLOAD_SHARE {
                true => "nodes".into(),
                false => "trunk".into(),
            },
            number(ran.seconds, 2),
            number(ran.start_seconds, 2),
        ]);
    }
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
        let points = points(8.0).unwrap();
        let rate = |at: usize| points[at].scenario.wanted_bytes() * 8.0 / 1e6 / points[at].bound;
        assert!((rate(0) - 19.1).abs() < 0.1, "{}", rate(0));
        assert!((rate(3) - 153.0).abs() < 0.5, "{}", rate(3));
        assert!((rate(4) - 193.1).abs() < 0.5, "{}", rate(4));
        assert!(rate(9) > 4.0 * rate(5), "{} {}", rate(9), rate(5));
        assert!(
            points[5]
                .scenario
                .specification(false)
                .contains("writer a1:7420")
        );
    }
}
