//! Figures 1 and 8, Table 2 and the round trips of Figure 5 on the schedulers that the paper saw, which no kernel of today has: the
//! simulator's receivers with the shipping monitors.

use anyhow::Result;
use ropewalk_model::{ByteRate, Nanos};
use ropewalk_plot::{self as plot, Series, Style, Titles};
use ropewalk_processors::{Fair, Linux26Arrays, Outcome, Processor, Transfer, UleQueues};
use ropewalk_proto::rapid::monitor::{Linux26, Monitor, Native, Score, Ule, receive_buffer};

use super::search::golden_section;
use crate::bench::Bench;
use crate::table::{Cell, Table, number};

/// The paper's first machine: 1.6 Gbit/s at best, no buffer to speak of, 500 MB.
fn paper(rtt_ms: u64) -> Transfer {
    Transfer {
        bytes: 500_000_000,
        rate: 200_000_000,
        path: 1_250_000_000,
        path_queue: 0,
        rtt_ns: rtt_ms * 1_000_000,
        capacity: 200_000_000,
        buffer: 64 << 10,
    }
}

/// Where a transfer's receiver begins: most of its sleep average left.
const STARTING_SLEEP: Nanos = Nanos::from_millis(825);

/// A scheduler, and the monitor that goes with it.
struct Kernel {
    name: &'static str,
    processor: fn(usize) -> Box<dyn Processor>,
    monitor: fn() -> Box<dyn Monitor>,
    /// With what the native monitor asks for, where that is the monitor.
    buffer: Option<u64>,
}

fn kernels() -> [Kernel; 3] {
    [
        Kernel {
            name: "Linux 2.6, linux26",
            processor: |loops| Box::new(Linux26Arrays::new(loops)),
            monitor: || Box::new(Linux26::starting_at(STARTING_SLEEP)),
            buffer: None,
        },
        Kernel {
            name: "ULE, ule",
            processor: |loops| Box::new(UleQueues::new(loops)),
            monitor: || Box::new(Ule::new(Score::Monotone)),
            buffer: None,
        },
        Kernel {
            name: "fair shares, native",
            processor: |loops| Box::new(Fair::new(loops)),
            monitor: || Box::new(Native::new()),
            buffer: Some(receive_buffer(ByteRate(200_000_000), 3)),
        },
    ]
}

impl Kernel {
    fn run(&self, transfer: Transfer, loops: usize, watched: bool) -> Outcome {
        let mut processor = (self.processor)(loops);
        let mut monitor = watched.then(self.monitor);
        let transfer = Transfer {
            buffer: self.buffer.filter(|_| watched).unwrap_or(transfer.buffer),
            ..transfer
        };
        let monitor = monitor
            .as_mut()
            .map(|monitor| &mut **monitor as &mut dyn Monitor);
        transfer.run(&mut *processor, monitor)
    }

    /// The best fixed rate and its outcome.
    fn best(&self, transfer: Transfer, loops: usize) -> Result<(f64, Outcome)> {
        let at = |rate: f64| Transfer {
            rate: rate as u64,
            ..transfer
        };
        let found = golden_section(10e6, 220e6, 16, |rate| {
            Ok(self.run(at(rate), loops, false).ns as f64)
        })?;
        Ok((found.at, self.run(at(found.at), loops, false)))
    }
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.ns as f64 / 1e9
}

fn dropped_percent(outcome: &Outcome, transfer: Transfer) -> f64 {
    outcome.dropped as f64 / transfer.bytes as f64 * 100.0
}

/// Makes the tables and plots; takes a second or two, so that nothing is kept.
pub(super) fn make(bench: &Bench, is_quick: bool) -> Result<Vec<Table>> {
    figure_1(bench)?;
    figure_8(bench)?;
    Ok(vec![loads(is_quick)?, round_trips(is_quick)])
}

fn loads(is_quick: bool) -> Result<Table> {
    let mut table = Table::new(
        "Simulated receivers: 500 MB at 1.6 Gbit/s, by scheduler, monitor and loops (Table 2, Figure 5)",
        &[
            ("scheduler_and_monitor", "scheduler, monitor"),
            ("loops", "loops"),
            ("best_megabits_per_second", "best rate"),
            ("paper_megabits_per_second", "paper"),
            ("rbudp_seconds", "rbudp s"),
            ("rbudp_best_seconds", "rbudp best s"),
            ("rapid_seconds", "rapid s"),
            ("rapid_over_rbudp", "rapid/rbudp"),
            ("rbudp_dropped_percent", "rbudp dropped %"),
            ("rapid_dropped_percent", "rapid dropped %"),
            ("suspensions", "pauses"),
        ],
    );
    let most = if is_quick { 1 } else { 3 };
    for kernel in kernels() {
        for loops in 0..=most {
            let transfer = paper(0);
            let rbudp = kernel.run(transfer, loops, false);
            let rapid = kernel.run(transfer, loops, true);
            let (rate, best) = kernel.best(transfer, loops)?;
            let of_paper = [1600.0, 800.0, 650.0, 550.0].get(loops).copied();
            let of_paper = of_paper.filter(|_| kernel.name.starts_with("Linux 2.6"));
            table.row(vec![
                kernel.name.into(),
                number(loops as f64, 0),
                number(rate * 8e-6, 0),
                number(of_paper, 0),
                number(seconds(&rbudp), 2),
                number(seconds(&best), 2),
                number(seconds(&rapid), 2),
                number(seconds(&rapid) / seconds(&rbudp), 2),
                number(dropped_percent(&rbudp, transfer), 0),
                number(dropped_percent(&rapid, transfer), 1),
                number(f64::from(rapid.suspensions), 0),
            ]);
        }
    }
    table.note("A datagram that the full buffer drops costs these receivers nothing, so that rates above the best are no slower; the paper's machine paid for them, too.");
    Ok(table)
}

fn round_trips(is_quick: bool) -> Table {
    let mut table = Table::new(
        "Simulated receivers with one loop: round trips (section 3.4)",
        &[
            ("scheduler_and_monitor", "scheduler, monitor"),
            ("round_trip_ms", "RTT ms"),
            ("rbudp_seconds", "rbudp s"),
            ("rapid_seconds", "rapid s"),
            ("rbudp_dropped_percent", "rbudp dropped %"),
            ("rapid_dropped_percent", "rapid dropped %"),
            ("suspensions", "pauses"),
        ],
    );
    let trips: &[u64] = if is_quick {
        &[0, 120]
    } else {
        &[0, 50, 80, 100, 120, 200]
    };
    for kernel in kernels() {
        for &rtt_ms in trips {
            let transfer = paper(rtt_ms);
            let rbudp = kernel.run(transfer, 1, false);
            let rapid = kernel.run(transfer, 1, true);
            table.row(vec![
                kernel.name.into(),
                number(rtt_ms as f64, 0),
                number(seconds(&rbudp), 2),
                number(seconds(&rapid), 2),
                number(dropped_percent(&rbudp, transfer), 0),
                number(dropped_percent(&rapid, transfer), 1),
                Cell::Number(f64::from(rapid.suspensions), 0),
            ]);
        }
    }
    table
}

/// Lengths in their order, in milliseconds.
fn in_order(name: &str, lengths_ns: &[u64]) -> Series {
    let points = lengths_ns.iter().enumerate();
    let points = points.map(|(number, ns)| (number as f64, *ns as f64 / 1e6));
    Series::with(name, Style::Marks, points.take(100).collect())
}

fn figure_1(bench: &Bench) -> Result<()> {
    let outcome = kernels()[0].run(paper(0), 1, false);
    let series = [
        in_order("time slices of the loop", &outcome.loop_slices_ns),
        in_order("lossless intervals", &outcome.lossless_ns),
    ];
    let titles = Titles {
        title: "One loop on simulated Linux 2.6, RBUDP at 1.6 Gbit/s (Figure 1)",
        x: "first hundred, in their order",
        y: "milliseconds",
    };
    plot::lines(&bench.plot_path("figure-1-simulated"), titles, &[], &series)
}

fn figure_8(bench: &Bench) -> Result<()> {
    for (kernel, name, y) in [
        (&kernels()[0], "figure-8-simulated", "dynamic bonus"),
        (
            &kernels()[1],
            "figure-8-simulated-ule",
            "interactivity score",
        ),
    ] {
        let level = |name: &str, outcome: &Outcome| {
            let points = outcome.levels.iter();
            let points = points.map(|(ns, level)| (*ns as f64 / 1e9, *level));
            Series::with(name, Style::Marks, points.collect())
        };
        // The plot begins at 0; the bonus at -5.
        let shifted = |mut series: Series| {
            if y == "dynamic bonus" {
                series.points.iter_mut().for_each(|point| point.1 += 5.0);
            }
            series
        };
        let series = [
            shifted(level("rbudp", &kernel.run(paper(0), 1, false))),
            shifted(level("rapid", &kernel.run(paper(0), 1, true))),
        ];
        let title = format!(
            "{}: the scheduler's rating of the receiver (Figure 8)",
            kernel.name
        );
        let titles = Titles {
            title: &title,
            x: "seconds",
            y: if y == "dynamic bonus" {
                "dynamic bonus + 5 (10 is the best)"
            } else {
                "interactivity score (low is good)"
            },
        };
        plot::lines(&bench.plot_path(name), titles, &[], &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the paper's scheduler with one loop: the best fixed rate is near the paper's 800 Mbit/s or above, and the monitor is no slower than the full
    /// rate and loses a fraction.
    #[test]
    fn the_paper_s_case() {
        let kernel = &kernels()[0];
        let transfer = paper(0);
        let rbudp = kernel.run(transfer, 1, false);
        let rapid = kernel.run(transfer, 1, true);
        let (_, best) = kernel.best(transfer, 1).unwrap();
        assert!(best.ns <= rbudp.ns);
        assert!(rapid.ns <= rbudp.ns);
        assert!(rapid.dropped * 4 < rbudp.dropped);
    }
}
