//! Equal parts a stream (PSockets, and the paper's simulation) against pulled fragments: where its collapse comes from.

use anyhow::Result;

use crate::bench::Bench;
use crate::table::{Table, number, number_or_more};

use super::cells::{CELLS, Cell, STREAMS};
use super::rig::Streams;
use super::tables::{lab_seconds, simulated_seconds};
use super::{LIMIT, Lazy, Measured, SECONDS_SHORT, beside, simulated};

/// Cells with many nodes and a short queue.
const WHERE: [&str; 3] = ["middle-eight", "near-sixteen", "middle-sixteen-lossy"];

/// Runs equal parts; pulled ones have been run.
pub(super) fn table(bench: &mut Bench, measured: &[Measured]) -> Result<Table> {
    let seconds = SECONDS_SHORT;
    let site = bench.site();
    let cells = || CELLS.into_iter().filter(|cell| WHERE.contains(&cell.name));
    let key = |cell: &Cell, streams: u32| {
        let bytes = cell.bytes(seconds);
        format!(
            "{}, equal parts, {streams} streams, {bytes} bytes",
            cell.name
        )
    };
    for cell in cells() {
        bench.expect(STREAMS.map(|streams| (key(&cell, streams), 2.0 * seconds)));
        bench.expect(STREAMS.map(|streams| (simulated(&key(&cell, streams)), 0.1 * seconds)));
    }
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
        ],
    );
    for cell in cells() {
        let mut lazy = Lazy {
            site: &site,
            cell,
            rig: None,
        };
        for streams in STREAMS {
            let key = key(&cell, streams);
            let options = format!("{} --striping equal", Streams::Fixed(streams).option());
            let equal = bench.point(&key, || lazy.run(cell.nodes, seconds, &options));
            let simulated = bench.point(&simulated(&key), || {
                beside::simulate_equal(&cell, streams, seconds)
            });
            let of_cell = measured.iter().find(|one| one.cell == cell);
            let pulled = of_cell.and_then(|one| one.tried(cell.nodes, streams));
            if equal.is_none() && simulated.is_none() {
                continue;
            }
            let stopped = equal.as_ref().is_some_and(|ran| !ran.is_complete);
            let equal_seconds = equal.map(|ran| ran.seconds);
            table.row(vec![
                cell.name.into(),
                number(cell.nodes as f64, 0),
                number(f64::from(streams), 0),
                lab_seconds(pulled.map(|pulled| &pulled.fixed)),
                simulated_seconds(pulled.and_then(|pulled| pulled.simulated)),
                number_or_more(equal_seconds, 2, stopped),
                simulated_seconds(simulated.flatten()),
            ]);
        }
    }
    table.note(format!(
        "streams: of each node. >{:.1} s: stopped there. The simulator's streams all begin at once.",
        LIMIT * seconds
    ));
    Ok(table)
}
