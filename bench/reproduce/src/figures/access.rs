//! CEP Figure 7: slow and fast nodes of which each may access a window of the data, from disjoint parts to all of it.
//!
//! The paper says "a fixed set of 8 heterogeneous nodes, four nodes each from the first and second pool" and leaves open
//! how they divide into senders and receivers, whose access varies, and in which order they hold the data. So:
//!
//! * `8+8`: 8 senders and 8 receivers, 4 slow and 4 fast on each side, windows on both sides;
//! * `4+4`: 8 nodes in all, 4 senders and 4 receivers, 2 slow and 2 fast on each side, windows on both sides;
//! * `8 senders`: 8 senders with windows; 8 fast receivers take anything and are never the narrow side.
//!
//! Receivers share one destination. Node i of n may access k/n of the data from i/n on, wrapping, and slow and fast
//! nodes alternate or are in two blocks. Which node moves what is the scheduler's choice, wherever windows
//! overlap; the more they do, the more of it fast nodes can take.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::bench::{Bench, Settings};
use crate::ropewalk::Moved;
use crate::scenario::{GREEDY, HINTS, NO_HINTS, Node, Run, Scenario, UNIFORM, all, window};
use crate::stats::span;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

const SLOW: u64 = 20_000_000;
const FAST: u64 = 200_000_000;

/// Sizes are multiples of this: ends of all windows are ends of chunks.
const STEP: u64 = 16 << 20;

/// What the paper's plot shows at most, over uniform striping.
const PAPER_RATIO: f64 = 7.0;

/// Who the eight nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Both8,
    Both4,
    Senders,
}

/// How slow and fast nodes stand along the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Interleaved,
    Blocked,
}

const READINGS: [Reading; 3] = [Reading::Both8, Reading::Both4, Reading::Senders];
const ORDERS: [Order; 2] = [Order::Interleaved, Order::Blocked];

/// The first is the one that is run where only one is.
const RUNS: [Run; 4] = [
    HINTS,
    NO_HINTS,
    Run {
        name: "greedy alone",
        has_hints: true,
        scheduler: GREEDY,
        has_feedback: false,
    },
    Run {
        name: "uniform",
        has_hints: true,
        scheduler: UNIFORM,
        has_feedback: false,
    },
];

const COLUMNS: [(&str, &str); 16] = [
    ("nodes", "nodes"),
    ("order", "order"),
    ("window_parts", "window"),
    ("variant", "variant"),
    ("bytes", "bytes"),
    ("megabits_per_second", "Mbit/s"),
    ("bound_megabits_per_second", "bound"),
    ("percent_of_bound", "% of bound"),
    ("percent_of_bound_moving", "moving %"),
    ("variants_bound_megabits_per_second", "its own bound"),
    ("percent_of_variants_bound", "% of it"),
    ("over_uniforms_bound", "x uniform"),
    ("bound_over_uniforms_bound", "possible x"),
    ("duplicate_percent", "twice %"),
    ("plan_messages_per_node", "plan msg/node"),
    ("processor_seconds", "cpu s"),
];

impl Reading {
    fn name(self) -> &'static str {
        match self {
            Self::Both8 => "8+8",
            Self::Both4 => "4+4",
            Self::Senders => "8 senders",
        }
    }

    /// Nodes of a side that has windows.
    fn nodes(self) -> usize {
        match self {
            Self::Both8 | Self::Senders => 8,
            Self::Both4 => 4,
        }
    }

    /// Windows in halves of an n-th, up to everything; where the bound stops rising is among them.
    fn windows(self, order: Order, is_quick: bool) -> &'static [usize] {
        match (self, order) {
            (Self::Both8, Order::Interleaved) if is_quick => &[2, 4, 16],
            (Self::Both8, Order::Blocked) if is_quick => &[2, 9, 16],
            _ if is_quick => &[],
            (Self::Both8, Order::Interleaved) => &[2, 3, 4, 6, 8, 12, 16],
            (Self::Both8, Order::Blocked) => &[2, 4, 6, 8, 9, 12, 16],
            (Self::Both4, _) => &[2, 4, 6, 8],
            (Self::Senders, Order::Interleaved) => &[2, 4, 16],
            (Self::Senders, Order::Blocked) => &[2, 6, 9, 16],
        }
    }

    /// The ways to run it: the third reading differs from the first by its receivers only, and is run once each.
    fn runs(self) -> &'static [Run] {
        match self {
            Self::Both8 | Self::Both4 => &RUNS,
            Self::Senders => &RUNS[..1],
        }
    }
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::Blocked => "blocked",
        }
    }

    fn cap(self, index: usize, nodes: usize) -> u64 {
        let is_fast = match self {
            Self::Interleaved => index % 2 == 1,
            Self::Blocked => index >= nodes / 2,
        };
        if is_fast { FAST } else { SLOW }
    }
}

/// One place on the axis of a plot.
#[derive(Clone, Copy, Debug)]
struct Point {
    reading: Reading,
    order: Order,
    halves: usize,
}

impl Point {
    fn scenario(self, bytes: u64) -> Scenario {
        let count = self.reading.nodes();
        let side = |letter: char| -> Vec<Node> {
            let node = |index| Node {
                name: format!("{letter}{index}"),
                bits_per_second: self.order.cap(index, count),
                ranges: window(bytes, index, count, self.halves),
            };
            (0..count).map(node).collect()
        };
        let mut receivers = side('r');
        if self.reading == Reading::Senders {
            for node in &mut receivers {
                (node.bits_per_second, node.ranges) = (FAST, all(bytes));
            }
        }
        Scenario {
            bytes,
            senders: side('s'),
            receivers,
            is_shared: true,
            changes: Vec::new(),
        }
    }

    /// The window, as parts of n.
    fn window(self) -> String {
        let parts = self.halves as f64 / 2.0;
        format!("{parts}/{}", self.reading.nodes())
    }

    /// The window as a share of the data.
    fn share(self) -> f64 {
        self.halves as f64 / 2.0 / self.reading.nodes() as f64
    }

    /// Bits per second of the bound, of uniform striping and of greedy shares that nothing corrects.
    fn rates(self) -> Result<[f64; 3]> {
        let scenario = self.scenario(STEP << 10);
        let bits = scenario.wanted_bytes() * 8.0;
        Ok([
            bits / scenario.bound_seconds()?,
            bits / scenario.static_seconds(UNIFORM)?,
            bits / scenario.static_seconds(GREEDY)?,
        ])
    }

    fn size(self, run: &Run, seconds: f64) -> Result<u64> {
        run.size(seconds, STEP, |bytes| self.scenario(bytes))
    }

    fn key(self, run: &Run, bytes: u64) -> String {
        format!(
            "{}, {}, window {}, {}, {bytes} bytes",
            self.reading.name(),
            self.order.name(),
            self.window(),
            run.name
        )
    }
}

/// What one plot and its rows are about.
fn points(reading: Reading, order: Order, is_quick: bool) -> impl Iterator<Item = Point> {
    let windows = reading.windows(order, is_quick).iter();
    windows.map(move |&halves| Point {
        reading,
        order,
        halves,
    })
}

/// What can be reached, along all windows: the bound, uniform striping, greedy shares that nothing corrects.
fn curves(reading: Reading, order: Order) -> Result<[Series; 3]> {
    let names = ["bound", "uniform's bound", "greedy's bound"];
    let mut curves = names.map(|name| Series::new(name, Style::Dashed));
    for halves in 2..=2 * reading.nodes() {
        let point = Point {
            reading,
            order,
            halves,
        };
        for (curve, rate) in curves.iter_mut().zip(point.rates()?) {
            curve.points.push((point.share(), rate / 1e6));
        }
    }
    Ok(curves)
}

fn row(table: &mut Table, point: Point, run: &Run, moved: &Moved, bytes: u64) -> Result<()> {
    let [bound, uniform, _] = point.rates()?.map(|rate| rate / 1e6);
    let scenario = point.scenario(bytes);
    let own = scenario.wanted_bytes() * 8.0 / 1e6 / run.best_seconds(&scenario)?;
    let report = &moved.report;
    let per_node = report.control.plan_messages as f64 / report.control.nodes.max(1) as f64;
    table.row(vec![
        point.reading.name().into(),
        point.order.name().into(),
        point.window().into(),
        run.name.into(),
        number(bytes as f64, 0),
        number(moved.megabits(), 1),
        number(bound, 1),
        number(moved.megabits() / bound * 100.0, 2),
        number(report.moving_bits_per_second / 1e6 / bound * 100.0, 2),
        number(own, 1),
        number(moved.megabits() / own * 100.0, 2),
        number(moved.megabits() / uniform, 2),
        number(bound / uniform, 2),
        number(report.duplicate_bytes as f64 / bytes as f64 * 100.0, 2),
        number(per_node, 1),
        number(moved.processor_seconds(), 2),
    ]);
    Ok(())
}

/// Makes Figure 7.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "cep-7")?;
    let site = bench.site();
    // What a plan without feedback takes is known beforehand; its runs only show that it is so.
    let seconds = |run: &Run| match (run.has_feedback, settings.quick) {
        (true, false) => 20.0,
        (false, false) => 8.0,
        (true, true) => 6.0,
        (false, true) => 3.0,
    };
    let plots = || READINGS.into_iter().flat_map(|r| ORDERS.map(|o| (r, o)));
    for (reading, order) in plots() {
        for point in points(reading, order, settings.quick) {
            for run in reading.runs() {
                let bytes = point.size(run, seconds(run))?;
                bench.expect([(point.key(run, bytes), seconds(run) + 1.0)]);
            }
        }
    }
    bench.announce();

    let mut table = Table::new(
        "CEP Figure 7: half of the nodes at 20, half at 200 Mbit/s; each may access a window of the data",
        &COLUMNS,
    );
    let mut of_bound: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (reading, order) in plots() {
        let named = |run: &Run| Series::new(run.name, Style::Marks);
        let mut series: Vec<Series> = reading.runs().iter().map(named).collect();
        let mut last = None;
        for point in points(reading, order, settings.quick) {
            let rates = point.rates()?;
            for (run, series) in reading.runs().iter().zip(&mut series) {
                let bytes = point.size(run, seconds(run))?;
                let moved = bench.point(&point.key(run, bytes), || {
                    point.scenario(bytes).measure(&site, run, seconds(run))
                });
                let Some(moved) = moved else { continue };
                series.points.push((point.share(), moved.megabits()));
                let name = format!("{}, {}, {}", reading.name(), order.name(), run.name);
                of_bound
                    .entry(name)
                    .or_default()
                    .push(moved.megabits() * 1e8 / rates[0]);
                row(&mut table, point, run, &moved, bytes)?;
                if run == &RUNS[0] {
                    let reached = moved.megabits() * 1e6 / rates[1];
                    last = Some((point, reached, rates[0] / rates[1]));
                }
            }
        }
        if let Some((point, reached, possible)) = last {
            table.note(format!(
                "{}, {}, window {}: {reached:.2} x uniform's bound of {possible:.2} possible.",
                reading.name(),
                order.name(),
                point.window()
            ));
        }
        series.retain(|series| !series.points.is_empty());
        if series.is_empty() {
            continue;
        }
        series.extend(curves(reading, order)?);
        let title = format!(
            "CEP Figure 7: {} nodes, slow and fast {}",
            reading.name(),
            order.name()
        );
        let titles = Titles {
            title: &title,
            x: "share of the data that a node may access",
            y: "Mbit/s",
        };
        let name = format!("figure7 {} {}", reading.name(), order.name()).replace([' ', '+'], "-");
        plot::lines(&bench.plot_path(&name), titles, &[], &series)?;
    }
    for (name, shares) in of_bound {
        bench.headline(
            format!("windows of access, {name}, of the bound (CEP Figure 7)"),
            format!("{} %", span(shares, 1)),
        );
    }
    for note in [
        "8+8 and 4+4: senders + receivers, windows on both sides; 8 senders: eight receivers at 200 Mbit/s take anything.".to_owned(),
        "hints and no hints: declared speeds or none; greedy alone, uniform: first plan only (--replan off), speeds declared.".to_owned(),
        "bound: what any plan can reach, of caps x 0.956; target 95 %. its own bound: what the variant's shares can, when nothing corrects them.".to_owned(),
        "x uniform: over uniform's bound, the slowest node's rate a node, whatever the windows; possible x: the bound over it.".to_owned(),
        format!("the paper's plot ends at about {PAPER_RATIO} x uniform; with 4 + 4 nodes at 1:10, 5.5 x is all there is."),
    ] {
        table.note(note);
    }
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(reading: Reading, order: Order) -> Vec<f64> {
        let points = points(reading, order, false);
        points
            .map(|point| {
                let [bound, uniform, _] = point.rates().unwrap();
                (bound / uniform * 100.0).round() / 100.0
            })
            .collect()
    }

    /// Disjoint parts allow nothing beyond uniform striping, full access 5.5 times it, and each curve stops rising where
    /// theory says: 2/8 when slow and fast alternate, 9/16 in blocks of four, 3/4 in blocks of two.
    #[test]
    fn bounds() {
        use Order::{Blocked, Interleaved};
        use Reading::{Both4, Both8, Senders};
        assert_eq!(
            ratios(Both8, Interleaved),
            [1.0, 2.0, 5.5, 5.5, 5.5, 5.5, 5.5]
        );
        assert_eq!(ratios(Both8, Blocked), [1.0, 1.33, 2.0, 4.0, 5.5, 5.5, 5.5]);
        assert_eq!(ratios(Both4, Interleaved), [1.0, 5.5, 5.5, 5.5]);
        assert_eq!(ratios(Both4, Blocked), [1.0, 2.0, 5.5, 5.5]);
        assert_eq!(ratios(Senders, Blocked), [1.0, 2.0, 5.5, 5.5]);
    }

    /// Uniform striping is flat at the slowest node's rate; greedy falls short, and with more access, too.
    #[test]
    fn baselines() {
        let rates = |halves| {
            Point {
                reading: Reading::Both8,
                order: Order::Interleaved,
                halves,
            }
            .rates()
            .unwrap()
        };
        let flat = crate::network::tcp_rate(SLOW) * 8.0;
        let greedy: Vec<f64> = [2, 4, 6, 8, 12, 16]
            .map(|halves| {
                let [_, uniform, greedy] = rates(halves);
                assert!((uniform / flat - 1.0).abs() < 1e-6, "{uniform} {flat}");
                (greedy / uniform * 100.0).round() / 100.0
            })
            .to_vec();
        assert_eq!((greedy[0], greedy[5]), (1.0, 5.5));
        assert!(greedy[2] < greedy[1], "{greedy:?}");
    }

    /// Sizes follow what a variant can reach, and a key says all that matters.
    #[test]
    fn sizes_and_keys() {
        let point = Point {
            reading: Reading::Both8,
            order: Order::Blocked,
            halves: 9,
        };
        let sizes = RUNS.map(|run| point.size(&run, 20.0).unwrap() / STEP);
        assert_eq!((sizes[0], sizes[1], sizes[3]), (125, 125, 23));
        assert!(sizes[2] > sizes[3] && sizes[2] < sizes[0], "{sizes:?}");
        assert_eq!(
            point.key(&RUNS[1], 5),
            "8+8, blocked, window 4.5/8, no hints, 5 bytes"
        );
    }
}
