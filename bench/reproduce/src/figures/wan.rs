//! Coordinated striping in the lab: real TCP over a trunk between two clusters, every fixed number of streams beside the
//! tuner's policies, which start cold, and beside what the packet simulator says of the same set-up.
//!
//! Times are from the first grant to the last safe byte: starting is the same for all. A run that takes three times as
//! long as the trunk needs is stopped and shown as that.

mod beside;
mod cells;
mod cep;
mod changes;
mod equal;
mod lan;
mod plots;
mod rig;
mod tables;

use anyhow::Result;

use crate::bench::{Bench, Settings, Site};
use cells::{Cell, cells};
use rig::{ACCESS, Ran, Rig, Streams, specification};

/// Who is compared with the best of them.
const TUNED: [&str; 3] = ["model", "simulate", "database"];
/// What the trunk needs for the bytes.
const SECONDS: f64 = 30.0;
/// The same while every setting is tried, and in a hurry for all runs.
const SECONDS_SHORT: f64 = 7.0;
/// What a trunk needs for a point of CEP's figures in a hurry.
const SECONDS_QUICK: f64 = 5.0;
/// So many of the settings that were fastest then are run again with all bytes.
const AGAIN: usize = 3;
/// Streams of each of all nodes that are, whatever they brought.
const BESIDE: [u32; 2] = [1, 32];
/// Runs take at most so many times what the trunk needs.
const LIMIT: f64 = 3.0;
/// How often each tuned run is made ...
const ROUNDS: usize = 2;
/// ... and once more where these were further apart than by this factor: a machine that lends processors to others may
/// hold a trunk up for milliseconds, which a short queue does not forgive.
const APART_MAX: f64 = 1.15;

/// A fixed setting of a cell, as it went here.
#[derive(Clone, Debug)]
struct Fixed {
    nodes: usize,
    streams: u32,
    ran: Ran,
}

/// A setting for a short time, here and in the simulator.
#[derive(Clone, Debug)]
struct Tried {
    fixed: Fixed,
    // Seconds, of which as many as the limit are not the end.
    simulated: Option<f64>,
}

impl Tried {
    /// The simulator's seconds over the lab's; `None` unless both ended in time.
    fn apart(&self) -> Option<f64> {
        let ran = &self.fixed.ran;
        let simulated = self.simulated.filter(|s| *s < LIMIT * SECONDS_SHORT)?;
        ran.is_complete.then_some(simulated / ran.seconds)
    }
}

/// All runs of a cell.
#[derive(Clone, Debug)]
struct Measured {
    cell: Cell,
    /// Every setting.
    tried: Vec<Tried>,
    /// Those that were fastest, and those of [`BESIDE`].
    fixed: Vec<Fixed>,
    /// By policy, then by round.
    tuned: Vec<(&'static str, Vec<Ran>)>,
}

impl Measured {
    /// The fastest fixed setting, whether its run is valid or not: to pass over those that are not could make a slow one the
    /// best, and every policy look better beside it.
    fn best(&self) -> Option<&Fixed> {
        let complete = self.fixed.iter().filter(|one| one.ran.is_complete);
        complete.min_by(|a, b| a.ran.seconds.total_cmp(&b.ran.seconds))
    }

    /// What was tried with so many streams of each of so many nodes.
    fn tried(&self, nodes: usize, streams: u32) -> Option<&Tried> {
        let is_it = |tried: &&Tried| (tried.fixed.nodes, tried.fixed.streams) == (nodes, streams);
        self.tried.iter().find(is_it)
    }

    /// Settings to be run with all bytes.
    fn again(&self) -> Vec<(usize, u32)> {
        let mut by_time: Vec<&Fixed> = self.tried.iter().map(|tried| &tried.fixed).collect();
        by_time.retain(|one| one.ran.is_complete);
        by_time.sort_by(|a, b| a.ran.seconds.total_cmp(&b.ran.seconds));
        let fastest = by_time.into_iter().take(AGAIN);
        let mut all: Vec<_> = fastest.map(|one| (one.nodes, one.streams)).collect();
        for streams in BESIDE {
            if !all.contains(&(self.cell.nodes, streams)) {
                all.push((self.cell.nodes, streams));
            }
        }
        all
    }
}

/// The clusters of a cell, made when the first run needs them.
struct Lazy<'s> {
    site: &'s Site,
    cell: Cell,
    rig: Option<Rig>,
}

impl Lazy<'_> {
    /// Moves what the trunk carries in so many seconds.
    fn run(&mut self, nodes: usize, seconds: f64, options: &str) -> Result<Ran> {
        let rig = match &mut self.rig {
            Some(rig) => rig,
            none => {
                let caps = vec![ACCESS; self.cell.nodes];
                let (trunk, control) = (self.cell.trunk(), self.cell.control);
                none.insert(Rig::new(self.site, [&caps, &caps], trunk, control)?)
            }
        };
        let specification = specification(nodes, self.cell.bytes(seconds));
        rig.run(&specification, options, LIMIT * seconds)
    }
}

fn key(cell: &Cell, nodes: usize, streams: &Streams, seconds: f64, round: usize) -> String {
    format!(
        "{}, {nodes} nodes, {}, {} bytes, round {round}",
        cell.name,
        streams.name(),
        cell.bytes(seconds)
    )
}

/// The key of a fixed setting in the simulator.
fn simulated(key: &str) -> String {
    format!("simulated: {key}")
}

fn rounds(is_quick: bool) -> usize {
    if is_quick { 1 } else { ROUNDS }
}

/// Whether one run more has to say which of these counts.
fn are_apart(runs: &[Ran]) -> bool {
    let seconds = || runs.iter().map(|ran| ran.seconds);
    seconds().fold(0.0, f64::max) > APART_MAX * seconds().fold(f64::INFINITY, f64::min)
}

/// What the trunk needs for a run that is compared.
fn seconds(is_quick: bool) -> f64 {
    if is_quick { SECONDS_SHORT } else { SECONDS }
}

/// Every point that is known before the first is run, and its seconds.
fn all_points(is_quick: bool) -> Result<Vec<(String, f64)>> {
    let cells = cells(is_quick).into_iter();
    let of_cells = cells.flat_map(|cell| points(&cell, is_quick, seconds(is_quick)));
    let mut all: Vec<_> = of_cells.collect();
    all.extend(equal::points(is_quick));
    all.extend(lan::points(is_quick)?);
    all.extend(changes::points(is_quick));
    all.extend(cep::points(is_quick)?);
    Ok(all)
}

/// Every point of a cell that is known before the first is run, and its seconds.
fn points(cell: &Cell, is_quick: bool, seconds: f64) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for (nodes, streams) in cell.settings(is_quick) {
        let key = key(cell, nodes, &Streams::Fixed(streams), SECONDS_SHORT, 1);
        all.push((simulated(&key), 0.1 * SECONDS_SHORT));
        all.push((key, 1.3 * SECONDS_SHORT + 1.0));
    }
    for round in 1..=rounds(is_quick) {
        for policy in TUNED {
            let key = key(cell, cell.nodes, &Streams::Tuned(policy), seconds, round);
            all.push((key, 1.2 * seconds + 1.0));
        }
    }
    all
}

/// Runs a cell: all settings for a short time, the best of them and every policy for `seconds` of the trunk.
fn measure(bench: &mut Bench, site: &Site, cell: Cell, is_quick: bool, seconds: f64) -> Measured {
    let rig = None;
    let mut lazy = Lazy { site, cell, rig };
    let mut measured = Measured {
        cell,
        tried: Vec::new(),
        fixed: Vec::new(),
        tuned: TUNED.map(|policy| (policy, Vec::new())).into(),
    };
    let mut fixed = |bench: &mut Bench, (nodes, streams): (usize, u32), seconds: f64| {
        let asked = Streams::Fixed(streams);
        let key = key(&cell, nodes, &asked, seconds, 1);
        let ran = bench.point(&key, || lazy.run(nodes, seconds, &asked.option()))?;
        let fixed = Fixed {
            nodes,
            streams,
            ran,
        };
        Some((fixed, key))
    };
    for (nodes, streams) in cell.settings(is_quick) {
        let Some((fixed, key)) = fixed(bench, (nodes, streams), SECONDS_SHORT) else {
            continue;
        };
        let simulated = bench.point(&simulated(&key), || {
            beside::simulate(&cell, nodes, streams, SECONDS_SHORT)
        });
        let simulated = simulated.flatten();
        measured.tried.push(Tried { fixed, simulated });
    }
    if is_quick {
        let tried = measured.tried.iter();
        measured.fixed = tried.map(|tried| tried.fixed.clone()).collect();
    } else {
        let again = measured.again();
        bench.expect(again.iter().map(|&(nodes, streams)| {
            let key = key(&cell, nodes, &Streams::Fixed(streams), seconds, 1);
            (key, 1.3 * seconds + 1.0)
        }));
        let again = again.into_iter();
        let runs = again.filter_map(|setting| Some(fixed(bench, setting, seconds)?.0));
        measured.fixed = runs.collect();
    }
    let rounds = rounds(is_quick);
    for round in 1..=rounds + 1 {
        for (policy, runs) in &mut measured.tuned {
            if round > rounds && !are_apart(runs) {
                continue;
            }
            let asked = Streams::Tuned(policy);
            let key = key(&cell, cell.nodes, &asked, seconds, round);
            runs.extend(bench.point(&key, || lazy.run(cell.nodes, seconds, &asked.option())));
        }
    }
    measured
}

/// Makes the tables.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "wan")?;
    let site = bench.site();
    let is_quick = settings.quick;
    let seconds = seconds(is_quick);
    bench.expect(all_points(is_quick)?);
    bench.announce();
    let cells = cells(is_quick).into_iter();
    let measured: Vec<Measured> = cells
        .map(|cell| measure(&mut bench, &site, cell, is_quick, seconds))
        .collect();
    plots::draw(&bench, &measured, seconds)?;
    let equal = equal::table(&mut bench, &measured, is_quick);
    let lan = lan::table(&mut bench, is_quick)?;
    let changes = changes::table(&mut bench, is_quick)?;
    let cep = cep::table(&mut bench, is_quick)?;
    bench.finish(&[
        tables::against_best(&measured),
        tables::settings(&measured),
        tables::products(&measured),
        equal,
        cep,
        changes,
        lan,
    ])
}

#[cfg(test)]
mod tests {
    use super::cells::CELLS;
    use super::*;

    /// In a hurry everything has its ten minutes, and no two points share a key.
    #[test]
    fn hurry() {
        for is_quick in [true, false] {
            let points = all_points(is_quick).unwrap();
            let seconds: f64 = points.iter().map(|point| point.1).sum();
            assert!(!is_quick || seconds <= 600.0, "{seconds}");
            let keys: std::collections::BTreeSet<&String> =
                points.iter().map(|point| &point.0).collect();
            assert_eq!(keys.len(), points.len());
        }
    }

    pub(super) fn ran(seconds: f64, is_complete: bool) -> Ran {
        let report = serde_json::json!({
            "seconds": seconds, "start_seconds": 0.0, "is_complete": is_complete, "steps": [], "progress": [],
            "packets": [0, 0, 0], "processor_seconds": 0.0, "invalid": [],
        });
        serde_json::from_value(report).unwrap()
    }

    pub(super) fn measured(seconds: &[(usize, u32, f64, bool)]) -> Measured {
        let one = |&(nodes, streams, seconds, is_complete): &(usize, u32, f64, bool)| {
            let ran = ran(seconds, is_complete);
            let fixed = Fixed {
                nodes,
                streams,
                ran,
            };
            let simulated = Some(2.0 * seconds);
            Tried { fixed, simulated }
        };
        Measured {
            cell: CELLS[3],
            tried: seconds.iter().map(one).collect(),
            fixed: Vec::new(),
            tuned: Vec::new(),
        }
    }

    /// The fastest that ended are run again, and 1 and 32 streams of all nodes once.
    #[test]
    fn who_is_run_again() {
        let all = measured(&[
            (1, 4, 9.0, true),
            (4, 4, 8.0, true),
            (2, 16, 7.0, false),
            (4, 32, 8.5, true),
            (4, 1, 20.0, true),
        ]);
        assert_eq!(all.again(), [(4, 4), (4, 32), (1, 4), (4, 1)]);
        assert_eq!(measured(&[]).again(), [(4, 1), (4, 32)]);
    }

    /// A round more where rounds were apart; none where there was one, or none.
    #[test]
    fn who_is_run_once_more() {
        let runs = |all: &[f64]| -> Vec<Ran> { all.iter().map(|s| ran(*s, true)).collect() };
        assert!(are_apart(&runs(&[40.0, 46.1])) && are_apart(&runs(&[46.1, 40.0])));
        assert!(!are_apart(&runs(&[40.0, 45.9])));
        assert!(!are_apart(&runs(&[40.0])) && !are_apart(&[]));
    }

    /// The simulator is compared where both ended.
    #[test]
    fn who_is_compared() {
        let all = measured(&[(1, 4, 9.0, true), (2, 4, 11.0, true), (4, 4, 8.0, false)]);
        let apart = |nodes| all.tried(nodes, 4).unwrap().apart();
        assert_eq!((apart(1), apart(2), apart(4)), (Some(2.0), None, None));
    }
}
