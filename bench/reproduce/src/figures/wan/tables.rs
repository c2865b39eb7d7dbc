//! What the runs say, in two tables.

use crate::stats::{Summary, summary};
use crate::table::{Cell as Entry, Table, number, number_or_more};

use super::cells::STREAMS;
use super::rig::{counted, invalid, invalid_note};
use super::{BESIDE, Fixed, LIMIT, Measured, Ran, SECONDS_SHORT, TUNED, Tried};
use crate::figures::trunk::Queue;

const COLUMNS: [(&str, &str); 17] = [
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
    ("runs", "of"),
    ("of_invalid_runs_only", "of invalid runs only"),
];

/// Time of every policy and of 1 and 32 streams on all nodes over the best fixed setting's.
pub(super) fn against_best(measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Streams over the trunk (100 Mbit/s): time over the best fixed setting's",
        &COLUMNS,
    );
    // By policy: all cells, and those where it and the best have valid runs.
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); TUNED.len()];
    let mut valid = all.clone();
    let mut total = (0, 0);
    for one in measured {
        let Some(best) = one.best() else { continue };
        let cell = &one.cell;
        let over = |seconds: f64| seconds / best.ran.seconds;
        let found = |streams: u32| {
            let mut found = one.fixed.iter();
            found.find(|f| f.nodes == cell.nodes && f.streams == streams)
        };
        let fixed = |streams: u32| {
            let found = found(streams);
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
        let mut only_invalid = Vec::new();
        if !best.ran.is_valid() {
            only_invalid.push("best".to_owned());
        }
        for (at, (policy, runs)) in one.tuned.iter().enumerate() {
            let (runs, are_valid) = counted(runs.iter().collect(), |ran: &&Ran| ran.is_valid());
            let seconds = summary(runs.iter().map(|ran| ran.seconds));
            let ratio = seconds.map(|seconds| over(seconds.median));
            all[at].extend(ratio);
            match are_valid {
                true if best.ran.is_valid() => valid[at].extend(ratio),
                true => {}
                false => only_invalid.extend(ratio.map(|_| (*policy).to_owned())),
            }
            row.push(number_or_more(ratio, 2, are_stopped(&runs)));
        }
        row.extend(BESIDE.map(fixed));
        let late = |&streams: &u32| found(streams).is_some_and(|found| !found.ran.is_valid());
        only_invalid.extend(BESIDE.iter().filter(|&s| late(s)).map(u32::to_string));
        let apart: Vec<(f64, bool)> = one.tried.iter().filter_map(apart).collect();
        let (apart, are_valid) = counted(apart, |one| one.1);
        if !are_valid && !apart.is_empty() {
            only_invalid.push("sim/lab".into());
        }
        let apart = summary(apart.into_iter().map(|one| one.0));
        row.push(number(apart.map(|apart| apart.median), 2));
        let runs = one.tuned.iter().flat_map(|(_, runs)| runs);
        let of_cell = invalid(runs.chain(one.fixed.iter().map(|fixed| &fixed.ran)));
        total = (total.0 + of_cell.0, total.1 + of_cell.1);
        row.push(number(of_cell.0 as f64, 0));
        row.push(number(of_cell.1 as f64, 0));
        row.push(match only_invalid.is_empty() {
            true => Entry::Empty,
            false => only_invalid.join(" ").into(),
        });
        table.row(row);
    }
    let median: fn(Summary) -> f64 = |all| all.median;
    let worst: fn(Summary) -> f64 = |all| all.max;
    for (name, ratios, take) in [
        ("median", &all, median),
        ("worst", &all, worst),
        ("median, valid", &valid, median),
        ("worst, valid", &valid, worst),
    ] {
        let mut row: Vec<Entry> = vec![name.into()];
        row.extend(vec![Entry::Empty; 7]);
        for ratios in ratios {
            row.push(number(summary(ratios.iter().copied()).map(take), 2));
        }
        row.extend(vec![Entry::Empty; 6]);
        table.row(row);
    }
    table.note("best: nodes x streams a node of the fastest fixed setting, valid or not; sim/lab: median over the settings that were tried and ended in time.");
    table.note("1, 32: streams of each of all nodes. >: stopped there. model is the default; medians of two runs, or of three where two were more than 15 % apart.");
    table.note(invalid_note(total));
    table.note("Where a policy has valid runs, they alone count; where it has none, all do, and it is named under \"of invalid runs only\", as are other values without a valid run.");
    let valid: Vec<String> = valid.iter().map(|all| all.len().to_string()).collect();
    table.note(format!(
        "median and worst: of all rows; valid: of the rows where best and policy have valid runs ({} of them).",
        valid.join(", ")
    ));
    table.note(no_simulator(measured));
    table
}

/// The simulator's seconds over the lab's, and whether the lab's run is valid.
fn apart(tried: &Tried) -> Option<(f64, bool)> {
    Some((tried.apart()?, tried.fixed.ran.is_valid()))
}

/// Why cells have no simulator beside them.
fn no_simulator(measured: &[Measured]) -> String {
    let mut cells: Vec<&str> = Vec::new();
    for one in measured.iter().filter(|one| !one.cell.has_simulator()) {
        cells.push(one.cell.name);
    }
    format!(
        "No simulator beside cells with BBR ({}): the packet simulator has Tahoe, Reno, NewReno, Vegas and CUBIC, which send by a window and acknowledgements; BBR's pacing by a model of the path is not in it.",
        match cells.is_empty() {
            true => "none here".into(),
            false => cells.join(", "),
        }
    )
}

/// Whether the middle of these runs, or one of its two, was stopped.
fn are_stopped(runs: &[&Ran]) -> bool {
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
    columns.push(("invalid_runs", "invalid"));
    let mut table = Table::new(
        format!(
            "Every fixed setting, what the trunk carries in {SECONDS_SHORT} s: seconds in the lab and in the packet simulator"
        ),
        &columns,
    );
    let mut all_apart = Vec::new();
    let runs = |one: &Measured, nodes: Option<usize>| {
        let tried = one.tried.iter().map(|tried| &tried.fixed);
        let tried = tried.filter(|one| nodes.is_none_or(|nodes| one.nodes == nodes));
        invalid(tried.map(|one| &one.ran))
    };
    let mut total = (0, 0);
    for one in measured {
        let of_cell = runs(one, None);
        total = (total.0 + of_cell.0, total.1 + of_cell.1);
        let mut nodes: Vec<usize> = one.tried.iter().map(|tried| tried.fixed.nodes).collect();
        nodes.dedup();
        for nodes in nodes {
            let mut row: Vec<Entry> = vec![one.cell.name.into(), number(nodes as f64, 0)];
            let mut dropped = None;
            for streams in STREAMS {
                let found = one.tried(nodes, streams);
                row.push(lab_seconds(found.map(|found| &found.fixed)));
                row.push(simulated_seconds(found.and_then(|found| found.simulated)));
                all_apart.extend(found.and_then(apart));
                dropped = found.map(|found| {
                    let (delivered, full, lost) = found.fixed.ran.packets;
                    full as f64 / (delivered + full + lost).max(1) as f64 * 100.0
                });
            }
            row.push(number(dropped, 2));
            row.push(number(runs(one, Some(nodes)).0 as f64, 0));
            table.row(row);
        }
    }
    let valid = all_apart.iter().filter(|one| one.1);
    for (which, apart) in [
        ("all settings", summary(all_apart.iter().map(|one| one.0))),
        ("settings with a valid run", summary(valid.map(|one| one.0))),
    ] {
        let Some(apart) = apart else { continue };
        table.note(format!(
            "simulator over lab, {which} that both ended in time ({}): median {:.2}, from {:.2} to {:.2}.",
            apart.count, apart.median, apart.min, apart.max
        ));
    }
    table.note(invalid_note(total));
    table.note(no_simulator(measured));
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
            ("invalid_runs", "invalid"),
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
                number(invalid(splits.iter().map(|one| &one.fixed.ran)).0 as f64, 0),
            ]);
        }
    }
    table.note("apart: where all ended in time. >: stopped there. invalid: runs during which the trunk's relay did not keep up; each is shown.");
    table.note(no_simulator(measured));
    table.note("Each run moves the same bytes in all; with fewer nodes each has more. A node's own link (200 Mbit/s) never binds.");
    table
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, ran};
    use super::*;

    fn late(seconds: f64) -> Ran {
        Ran {
            invalid: vec!["late".into()],
            ..ran(seconds, true)
        }
    }

    /// A policy's valid runs count alone; one that has none is named, as is the best, and stays out of the valid rows.
    #[test]
    fn marked() {
        let mut valid = measured(&[(4, 1, 20.0, true), (4, 32, 10.0, true)]);
        valid.fixed = valid.tried.iter().map(|one| one.fixed.clone()).collect();
        valid.tuned = vec![
            ("model", vec![ran(11.0, true), late(30.0)]),
            ("simulate", vec![late(12.0), late(14.0)]),
            ("database", Vec::new()),
        ];
        let mut rows = vec![valid.clone()];
        let mut other = valid;
        other.fixed[1].ran = late(10.0);
        other.tuned[0].1 = vec![ran(15.0, true)];
        rows.push(other);
        let table = against_best(&rows).json();
        let rows = table["rows"].as_array().unwrap();
        let named = |row: usize| rows[row]["of_invalid_runs_only"].as_str();
        assert_eq!(named(0), Some("simulate"));
        assert_eq!(named(1), Some("best simulate 32"));
        let model = |row: usize| rows[row]["model_over_best"].as_f64();
        let all: Vec<_> = (0..6).map(model).collect();
        let wanted = [1.1, 1.5, 1.3, 1.5, 1.1, 1.1];
        assert_eq!(all, wanted.map(Some));
        assert_eq!(rows[0]["simulate_over_best"], 1.3);
        assert!(rows[4]["simulate_over_best"].is_null());
        let counts = |row: usize| {
            (
                rows[row]["invalid_runs"].as_f64(),
                rows[row]["runs"].as_f64(),
            )
        };
        assert_eq!(counts(0), (Some(3.0), Some(6.0)));
        assert!(
            table["notes"].to_string().contains("6 of 11 here"),
            "{table}"
        );
    }
}
