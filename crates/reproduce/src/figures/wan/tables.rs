//! What the runs say, in two tables.

use crate::stats::summary;
use crate::table::{Cell as Entry, Table, number, number_or_more};

use super::cells::STREAMS;
use super::{Fixed, LIMIT, Measured, Ran, SECONDS_SHORT, TUNED, Tried};
use crate::figures::trunk::Queue;

const COLUMNS: [(&str, &str); 15] = [
    ("cell", "cell"),
    ("nodes", "nodes"),
    ("round_trip_milliseconds", "RTT ms"),
    ("queue_packets", "queue"),
    ("loss_percent", "loss %"),
    ("control", "control"),
    ("best_setting", "best"),
    ("best_seconds", "best s"),
    ("model_over_best", "model"),
    ("simulate_over_best", "simulate"),
    ("database_over_best", "database"),
    ("one_stream_over_best", "1"),
    ("streams_32_over_best", "32"),
    ("simulated_over_lab", "sim/lab"),
    ("invalid_runs", "invalid"),
];

/// Time of every policy and of 1 and 32 streams on all nodes over the best fixed setting's.
pub(super) fn against_best(measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Streams over the trunk (100 Mbit/s): time over the best fixed setting's",
        &COLUMNS,
    );
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); TUNED.len()];
    for one in measured {
        let Some(best) = one.best() else { continue };
        let cell = &one.cell;
        let over = |seconds: f64| seconds / best.ran.seconds;
        let fixed = |streams: u32| {
            let mut found = one.fixed.iter();
            let found = found.find(|f| f.nodes == cell.nodes && f.streams == streams);
            let stopped = found.is_some_and(|found| !found.ran.is_complete);
            let ratio = found.map(|found| over(found.ran.seconds));
            number_or_more(ratio, 2, stopped)
        };
        let mut row: Vec<Entry> = vec![
            cell.name.into(),
            number(cell.nodes as f64, 0),
            number(cell.round_trip_ms as f64, 0),
            match cell.queue {
                Queue::Fifty => "50".into(),
                Queue::Product => format!("{} (BDP)", cell.queue_packets()).into(),
            },
            number(cell.loss * 100.0, 1),
            cell.control.into(),
            format!("{}x{}", best.nodes, best.streams).into(),
            number(best.ran.seconds, 2),
        ];
        for (at, (_, runs)) in one.tuned.iter().enumerate() {
            let seconds = summary(runs.iter().map(|ran| ran.seconds));
            let ratio = seconds.map(|seconds| over(seconds.median));
            all[at].extend(ratio);
            row.push(number_or_more(ratio, 2, are_stopped(runs)));
        }
        row.extend([1, 32].map(fixed));
        let apart = one.tried.iter().filter_map(Tried::apart);
        row.push(number(summary(apart).map(|apart| apart.median), 2));
        let runs = one.tuned.iter().flat_map(|(_, runs)| runs);
        let runs = runs.chain(one.fixed.iter().map(|fixed| &fixed.ran));
        let invalid = runs.filter(|ran| !ran.invalid.is_empty()).count();
        row.push(number(invalid as f64, 0));
        table.row(row);
    }
    for (name, take) in [
        ("median", (|s| s.median) as fn(crate::stats::Summary) -> f64),
        ("worst", |s| s.max),
    ] {
        let mut row: Vec<Entry> = vec![name.into()];
        row.extend(vec![Entry::Empty; 7]);
        for ratios in &all {
            row.push(number(summary(ratios.iter().copied()).map(take), 2));
        }
        row.extend(vec![Entry::Empty; 4]);
        table.row(row);
    }
    table.note("best: nodes x streams a node of the fastest fixed setting; sim/lab: median over all settings that were tried, where the packet simulator has the congestion control.");
    table.note("1, 32: streams of each of all nodes. >: stopped there. model is the default; medians of two runs, or of three where two were more than 15 % apart.");
    table.note(
        "invalid: runs during which the trunk's relay did not keep up; they are in the table.",
    );
    table
}

/// Whether the middle of these runs, or one of its two, was stopped.
fn are_stopped(runs: &[Ran]) -> bool {
    let ended = runs.iter().filter(|ran| ran.is_complete).count();
    !runs.is_empty() && ended <= runs.len() / 2
}

/// Seconds of a fixed setting; of one that was stopped, the limit as that.
pub(super) fn lab_seconds(fixed: Option<&Fixed>) -> Entry {
    let stopped = fixed.is_some_and(|fixed| !fixed.ran.is_complete);
    number_or_more(fixed.map(|fixed| fixed.ran.seconds), 2, stopped)
}

/// The same of the simulator.
pub(super) fn simulated_seconds(seconds: Option<f64>) -> Entry {
    let stopped = seconds.is_some_and(|seconds| seconds >= LIMIT * SECONDS_SHORT);
    number_or_more(seconds, 2, stopped)
}

/// Every fixed setting, here and in the simulator.
pub(super) fn settings(measured: &[Measured]) -> Table {
    let mut columns = vec![
        ("cell", "cell"),
        ("nodes", "nodes"),
        ("lab_1_seconds", "1: lab"),
        ("simulated_1_seconds", "sim"),
        ("lab_4_seconds", "4: lab"),
        ("simulated_4_seconds", "sim"),
        ("lab_16_seconds", "16: lab"),
        ("simulated_16_seconds", "sim"),
        ("lab_32_seconds", "32: lab"),
        ("simulated_32_seconds", "sim"),
    ];
    columns.push(("queue_drop_percent_32", "dropped %"));
    let mut table = Table::new(
        format!(
            "Every fixed setting, what the trunk carries in {SECONDS_SHORT} s: seconds in the lab and in the packet simulator"
        ),
        &columns,
    );
    let mut apart = Vec::new();
    for one in measured {
        let mut nodes: Vec<usize> = one.tried.iter().map(|tried| tried.fixed.nodes).collect();
        nodes.dedup();
        for nodes in nodes {
            let mut row: Vec<Entry> = vec![one.cell.name.into(), number(nodes as f64, 0)];
            let mut dropped = None;
            for streams in STREAMS {
                let found = one.tried(nodes, streams);
                row.push(lab_seconds(found.map(|found| &found.fixed)));
                row.push(simulated_seconds(found.and_then(|found| found.simulated)));
                apart.extend(found.and_then(Tried::apart));
                dropped = found.map(|found| {
                    let (delivered, full, lost) = found.fixed.ran.packets;
                    full as f64 / (delivered + full + lost).max(1) as f64 * 100.0
                });
            }
            row.push(number(dropped, 2));
            table.row(row);
        }
    }
    if let Some(apart) = summary(apart) {
        table.note(format!(
            "simulator over lab: median {:.2}, from {:.2} to {:.2}, of {} settings that both ended in time",
            apart.median, apart.min, apart.max, apart.count
        ));
    }
    table.note(format!(
        ">: stopped after {LIMIT} times what the trunk needs."
    ));
    table.note("dropped %: packets that found the trunk's queue full, with 32 streams a node.");
    table
}

/// Equal products of nodes and streams, split differently (coordinated striping, section 3, question b).
pub(super) fn products(measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Equal products nodes x streams, split differently: seconds",
        &[
            ("cell", "cell"),
            ("product", "product"),
            ("splits", "splits"),
            ("lab_seconds", "lab s"),
            ("simulated_seconds", "sim s"),
            ("lab_spread_percent", "lab apart %"),
            ("simulated_spread_percent", "sim apart %"),
        ],
    );
    for one in measured {
        for product in [16, 32, 64, 128] {
            let mut splits = one.tried.clone();
            splits.retain(|one| one.fixed.nodes as u32 * one.fixed.streams == product);
            if splits.len() < 2 {
                continue;
            }
            let lab: Vec<f64> = splits.iter().map(|one| one.fixed.ran.seconds).collect();
            let simulated: Vec<f64> = splits.iter().filter_map(|one| one.simulated).collect();
            let join = |words: Vec<String>| words.join(" ");
            // The limit, in the lab and in the simulator, is no time that anything took.
            let shown = |s: &f64| match *s >= LIMIT * SECONDS_SHORT {
                true => format!(">{s:.1}"),
                false => format!("{s:.1}"),
            };
            let seconds = |all: &[f64]| join(all.iter().map(shown).collect());
            let apart = |all: &[f64]| {
                let all = summary(all.iter().copied())?;
                (all.max < LIMIT * SECONDS_SHORT).then_some((all.max / all.min - 1.0) * 100.0)
            };
            let names = splits
                .iter()
                .map(|one| format!("{}x{}", one.fixed.nodes, one.fixed.streams));
            table.row(vec![
                one.cell.name.into(),
                number(f64::from(product), 0),
                join(names.collect()).into(),
                seconds(&lab).into(),
                seconds(&simulated).into(),
                number(apart(&lab), 0),
                number(apart(&simulated), 0),
            ]);
        }
    }
    table.note("apart: where all ended in time. >: stopped there.");
    table.note("Each run moves the same bytes in all; with fewer nodes each has more. A node's own link (200 Mbit/s) never binds.");
    table
}
