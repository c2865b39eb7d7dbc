//! A plot of each cell: goodput over the number of streams.

use anyhow::Result;
use ropewalk_plot::{self as plot, Series, Style, Titles};

use crate::bench::Bench;
use crate::stats::summary;

use super::cells::STREAMS;
use super::rig::{Ran, counted};
use super::{Measured, SECONDS_SHORT};

/// Fixed settings as a line for each number of nodes; the best of them with all bytes, and each policy, right across.
fn series(one: &Measured, seconds: f64) -> Vec<Series> {
    let cell = &one.cell;
    let mut all: Vec<Series> = Vec::new();
    for tried in one.tried.iter().map(|tried| &tried.fixed) {
        let name = match tried.nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        };
        let at = STREAMS.iter().position(|&streams| streams == tried.streams);
        let rate = tried.ran.megabits(cell.bytes(SECONDS_SHORT));
        let point = at.map(|at| (at as f64, rate));
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.extend(point),
            None => all.push(Series::with(
                name,
                Style::Marks,
                point.into_iter().collect(),
            )),
        }
    }
    let bytes = cell.bytes(seconds);
    let across = |name: String, rate: f64| {
        let ends = [0.0, (STREAMS.len() - 1) as f64];
        let points = ends.map(|x| (x, rate)).to_vec();
        Series::with(name, Style::Dashed, points)
    };
    if let Some(best) = one.best() {
        let name = format!("best: {}x{}, {seconds} s", best.nodes, best.streams);
        all.push(across(name, best.ran.megabits(bytes)));
    }
    for (policy, runs) in &one.tuned {
        let (runs, _) = counted(runs.iter().collect(), |ran: &&Ran| ran.is_valid());
        let rates = summary(runs.into_iter().map(|ran| ran.megabits(bytes)));
        all.extend(rates.map(|rates| across(format!("{policy}, {seconds} s"), rates.median)));
    }
    all
}

/// Draws every cell that has runs. `seconds`: what the trunk needs for the bytes of the best and of the policies.
pub(super) fn draw(bench: &Bench, measured: &[Measured], seconds: f64) -> Result<()> {
    for one in measured {
        let series = series(one, seconds);
        if series.is_empty() {
            continue;
        }
        let cell = &one.cell;
        let title = format!(
            "{}: {} ms, queue {}, loss {} %, {}",
            cell.name,
            cell.round_trip_ms,
            cell.queue_packets(),
            cell.loss * 100.0,
            cell.control
        );
        let x = format!("streams of a node (lines: what the trunk carries in {SECONDS_SHORT} s)");
        let titles = Titles {
            title: &title,
            x: &x,
            y: "Mbit/s",
        };
        let places = STREAMS.map(|streams| streams.to_string());
        plot::lines(&bench.plot_path(cell.name), titles, &places, &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, ran};
    use super::*;

    /// Nodes have a line each, with their streams in place; a policy's median goes right across.
    #[test]
    fn of_a_cell() {
        let mut one = measured(&[(1, 1, 14.0, true), (1, 32, 7.0, true), (4, 4, 7.0, true)]);
        one.fixed = vec![one.tried[2].fixed.clone()];
        one.tuned = vec![("model", vec![ran(28.0, true), ran(28.0, true)])];
        let all = series(&one, 28.0);
        let names: Vec<&str> = all.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            ["1 node", "4 nodes", "best: 4x4, 28 s", "model, 28 s"]
        );
        let carried = one.cell.bytes(7.0) as f64 * 8.0 / 1e6 / 7.0;
        assert_eq!(all[0].points, [(0.0, carried / 2.0), (3.0, carried)]);
        assert_eq!(all[1].points, [(1.0, carried)]);
        let carried = one.cell.bytes(28.0) as f64 * 8.0 / 1e6 / 28.0;
        assert_eq!(all[3].points, [(0.0, carried), (3.0, carried)]);
    }
}
