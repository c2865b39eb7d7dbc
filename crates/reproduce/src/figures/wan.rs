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
mod rig;
mod tables;

use anyhow::Result;

use crate::bench::{Bench, Settings, Site};
use cells::{CELLS, Cell};
use rig::{ACCESS, Ran, Rig, Streams, specification};

/// Who is compared with the best of them.
const TUNED: [&str; 4] = ["model", "simulate", "database", "off"];
/// What the trunk needs for the bytes.
const SECONDS: f64 = 30.0;
const SECONDS_QUICK: f64 = 7.0;
/// Runs take at most so many times that.
const LIMIT: f64 = 3.0;
/// How often each tuned run is made.
const ROUNDS: usize = 2;

/// A fixed setting of a cell, as it went here and in the simulator.
#[derive(Clone, Debug)]
struct Fixed {
    nodes: usize,
    streams: u32,
    ran: Ran,
    // Seconds, of which as many as the limit are not the end.
    simulated: Option<f64>,
}

/// All runs of a cell.
#[derive(Clone, Debug)]
struct Measured {
    cell: Cell,
    fixed: Vec<Fixed>,
    /// By policy, then by round.
    tuned: Vec<(String, Vec<Ran>)>,
}

impl Measured {
    /// The fastest fixed setting.
    fn best(&self) -> Option<&Fixed> {
        let complete = self.fixed.iter().filter(|one| one.ran.is_complete);
        complete.min_by(|a, b| a.ran.seconds.total_cmp(&b.ran.seconds))
    }
}

/// The clusters of a cell, made when the first run needs them.
struct Lazy<'s> {
    site: &'s Site,
    cell: Cell,
    rig: Option<Rig>,
}

impl Lazy<'_> {
    fn run(&mut self, nodes: usize, bytes: u64, options: &str, limit: f64) -> Result<Ran> {
        let rig = match &mut self.rig {
            Some(rig) => rig,
            none => {
                let caps = vec![ACCESS; self.cell.nodes];
                let (trunk, control) = (self.cell.trunk(), self.cell.control);
                none.insert(Rig::new(self.site, [&caps, &caps], trunk, control)?)
            }
        };
        rig.run(&specification(nodes, bytes), options, limit)
    }
}

/// A run of a cell.
type Point = (usize, Streams, usize);

fn points(cell: &Cell, is_quick: bool) -> (Vec<Point>, Vec<Point>) {
    let settings = cell.settings(is_quick).into_iter();
    let fixed = settings.map(|(nodes, streams)| (nodes, Streams::Fixed(streams), 1));
    let fixed = fixed.collect();
    let mut tuned = Vec::new();
    for round in 1..=if is_quick { 1 } else { ROUNDS } {
        tuned.extend(TUNED.map(|policy| (cell.nodes, Streams::Tuned(policy), round)));
    }
    (fixed, tuned)
}

/// The key of a fixed setting in the simulator.
fn simulated(key: &str) -> String {
    format!("simulated: {key}")
}

/// Makes the tables.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "wan")?;
    let site = bench.site();
    let is_quick = settings.quick;
    let seconds = if is_quick { SECONDS_QUICK } else { SECONDS };
    let limit = LIMIT * seconds;
    let key = |cell: &Cell, (nodes, streams, round): &Point| {
        format!(
            "{}, {nodes} nodes, {}, {} bytes, round {round}",
            cell.name,
            streams.name(),
            cell.bytes(seconds)
        )
    };
    for cell in CELLS {
        let (fixed, tuned) = points(&cell, is_quick);
        let all = fixed.iter().chain(&tuned);
        bench.expect(all.map(|point| (key(&cell, point), 1.3 * seconds + 1.0)));
        bench.expect(
            fixed
                .iter()
                .map(|point| (simulated(&key(&cell, point)), 0.1 * seconds)),
        );
    }
    bench.announce();
    let mut measured = Vec::new();
    for cell in CELLS {
        let bytes = cell.bytes(seconds);
        let (fixed, tuned) = points(&cell, is_quick);
        let mut lazy = Lazy {
            site: &site,
            cell,
            rig: None,
        };
        let mut of_cell = Measured {
            cell,
            fixed: Vec::new(),
            tuned: Vec::new(),
        };
        for point in &fixed {
            let (nodes, streams, _) = point;
            let Some(ran) = bench.point(&key(&cell, point), || {
                lazy.run(*nodes, bytes, &streams.option(), limit)
            }) else {
                continue;
            };
            let Streams::Fixed(count) = *streams else {
                continue;
            };
            let simulated = bench.point(&simulated(&key(&cell, point)), || {
                beside::simulate(&cell, *nodes, count, bytes, limit)
            });
            of_cell.fixed.push(Fixed {
                nodes: *nodes,
                streams: count,
                ran,
                simulated: simulated.flatten(),
            });
        }
        for point in &tuned {
            let (nodes, streams, _) = point;
            let ran = bench.point(&key(&cell, point), || {
                lazy.run(*nodes, bytes, &streams.option(), limit)
            });
            let name = streams.name();
            let known = of_cell.tuned.iter().position(|(known, _)| *known == name);
            let at = known.unwrap_or_else(|| {
                of_cell.tuned.push((name, Vec::new()));
                of_cell.tuned.len() - 1
            });
            of_cell.tuned[at].1.extend(ran);
        }
        measured.push(of_cell);
    }
    let equal = equal::table(&mut bench, &measured, seconds, limit)?;
    let lan = lan::table(&mut bench, seconds)?;
    let changes = changes::table(&mut bench, 2.0 * seconds)?;
    let cep = cep::table(&mut bench, seconds)?;
    bench.finish(&[
        tables::against_best(&measured),
        tables::settings(&measured, limit),
        tables::products(&measured),
        equal,
        cep,
        changes,
        lan,
    ])
}
