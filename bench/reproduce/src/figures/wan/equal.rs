//! Equal parts a stream (PSockets, and the paper's simulation) against pulled fragments: the cause of its collapse.

use crate::bench::Bench;
use crate::table::{Table, number, number_or_more};

use super::cells::{Cell, STREAMS, cells};
use super::rig::{Ran, Streams, invalid, invalid_note};
use super::tables::{lab_seconds, simulated_seconds};
use super::{BESIDE, LIMIT, Lazy, Measured, SECONDS_SHORT, beside, simulated};

/// Cells with many nodes and a short queue.
const WHERE: [&str; 3] = ["middle-eight", "near-sixteen", "middle-sixteen-lossy"];

/// A cell, a number of streams, and the key of the run.
fn settings(is_quick: bool) -> Vec<(Cell, u32, String)> {
    let mut all = Vec::new();
    for cell in cells(is_quick) {
        if !WHERE.contains(&cell.name) {
            continue;
        }
        for streams in STREAMS {
            if is_quick && !BESIDE.contains(&streams) {
                continue;
            }
            let (name, bytes) = (cell.name, cell.bytes(SECONDS_SHORT));
            let key = format!("{name}, equal parts, {streams} streams, {bytes} bytes");
            all.push((cell, streams, key));
        }
    }
    all
}

/// Every point and its seconds.
pub(super) fn points(is_quick: bool) -> Vec<(String, f64)> {
    let of = |(_, _, key): (_, _, String)| {
        let simulated = (simulated(&key), 0.1 * SECONDS_SHORT);
        [(key, 2.0 * SECONDS_SHORT), simulated]
    };
    settings(is_quick).into_iter().flat_map(of).collect()
}

/// Runs equal parts; pulled ones have been run.
pub(super) fn table(bench: &mut Bench, measured: &[Measured], is_quick: bool) -> Table {
    let seconds = SECONDS_SHORT;
    let site = bench.site();
    let mut table = Table::new(
        "Equal parts a stream against pulled fragments: seconds",
        &[
            ("cell", "cell"),
            ("nodes", "nodes"),
            ("streams", "streams"),
            ("pulled_seconds", "pulled: lab"),
            ("pulled_simulated_seconds", "sim"),
            ("equal_seconds", "equal: lab"),
            ("equal_simulated_seconds", "sim"),
            ("invalid_runs", "invalid"),
        ],
    );
    let mut runs: Vec<Ran> = Vec::new();
    let settings = settings(is_quick);
    for settings in settings.chunk_by(|a, b| a.0 == b.0) {
        let mut lazy = Lazy {
            site: &site,
            cell: settings[0].0,
            rig: None,
        };
        for &(cell, streams, ref key) in settings {
            let options = format!("{} --striping equal", Streams::Fixed(streams).option());
            let equal = bench.point(key, || lazy.run(cell.nodes, seconds, &options));
            let simulated = bench.point(&simulated(key), || {
                beside::simulate_equal(&cell, streams, seconds)
            });
            let of_cell = measured.iter().find(|one| one.cell == cell);
            let pulled = of_cell.and_then(|one| one.tried(cell.nodes, streams));
            if equal.is_none() && simulated.is_none() {
                continue;
            }
            let stopped = equal.as_ref().is_some_and(|ran| !ran.is_complete);
            let equal_seconds = equal.as_ref().map(|ran| ran.seconds);
            let of_row: Vec<Ran> = pulled
                .map(|one| one.fixed.ran.clone())
                .into_iter()
                .chain(equal)
                .collect();
            table.row(vec![
                cell.name.into(),
                number(cell.nodes as f64, 0),
                number(f64::from(streams), 0),
                lab_seconds(pulled.map(|pulled| &pulled.fixed)),
                simulated_seconds(pulled.and_then(|pulled| pulled.simulated)),
                number_or_more(equal_seconds, 2, stopped),
                simulated_seconds(simulated.flatten()),
                number(invalid(&of_row).0 as f64, 0),
            ]);
            runs.extend(of_row);
        }
    }
    table.note(format!(
        "streams: of each node. >{:.1} s: stopped there. The simulator's streams all begin at once.",
        LIMIT * seconds
    ));
    table.note(invalid_note(invalid(&runs)));
    table
}
