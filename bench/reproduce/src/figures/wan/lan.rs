//! Short paths, where tuning must do no harm: links whose queues are long in time must not pass for long paths.

use std::fmt;

use anyhow::Result;

use crate::bench::{Bench, Site};
use crate::network::MASTER;
use crate::ropewalk::{Place, words};
use crate::scenario::{Node, Run, Scenario, all, deadline, window};
use crate::stats::summary;
use crate::table::{Table, number};

use super::rig::Ran;

/// Rates of the hosts' links.
const SLOW: u64 = 20_000_000;
const FAST: u64 = 200_000_000;

/// Ways that are compared: the tuner is off, and each policy on.
const WAYS: [&str; 4] = ["off", "model", "simulate", "database"];

/// What the links need.
const SECONDS: f64 = super::SECONDS_SHORT;

/// How often.
const ROUNDS: usize = 3;

/// A network without a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lan {
    /// One pair of slow hosts.
    SlowPair,
    /// Four slow senders of everything, four slow receivers with one destination: sixteen lanes.
    SlowMesh,
    /// Slow and fast hosts, as in CEP Figure 6.
    Mixed,
    /// Eight pairs of fast hosts, each with its part.
    FastPairs,
}

const ALL: [Lan; 4] = [Lan::SlowPair, Lan::SlowMesh, Lan::Mixed, Lan::FastPairs];

impl fmt::Display for Lan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlowPair => "lan: 1 pair at 20 Mbit/s",
            Self::SlowMesh => "lan: 4 to 4 at 20 Mbit/s, all hold all",
            Self::Mixed => "lan: 5 pairs at 20, 3 at 200 Mbit/s, all hold all",
            Self::FastPairs => "lan: 8 pairs at 200 Mbit/s",
        })
    }
}

impl Lan {
    fn caps(self) -> Vec<u64> {
        match self {
            Self::SlowPair => vec![SLOW],
            Self::SlowMesh => vec![SLOW; 4],
            Self::Mixed => [[SLOW; 5].as_slice(), &[FAST; 3]].concat(),
            Self::FastPairs => vec![FAST; 8],
        }
    }

    fn scenario(self, bytes: u64) -> Scenario {
        let caps = self.caps();
        let is_shared = matches!(self, Self::SlowMesh | Self::Mixed);
        let side = |letter: char| {
            let node = |(at, &cap): (usize, &u64)| Node {
                name: format!("{letter}{at}"),
                bits_per_second: cap,
                ranges: match is_shared {
                    true => all(bytes),
                    false => window(bytes, at, caps.len(), 2),
                },
            };
            caps.iter().enumerate().map(node).collect()
        };
        Scenario {
            bytes,
            senders: side('s'),
            receivers: side('r'),
            is_shared,
            changes: Vec::new(),
        }
    }

    fn bytes(self, seconds: f64) -> Result<u64> {
        let run = Run {
            name: "",
            has_hints: false,
            scheduler: "auto",
            has_feedback: true,
        };
        run.size(seconds, 8 << 20, |bytes| self.scenario(bytes))
    }

    fn run(self, site: &Site, bytes: u64, way: &str, seconds: f64) -> Result<Ran> {
        let scenario = self.scenario(bytes);
        let (lab, mut agents) = scenario.start(site)?;
        let spec = agents.spec(&scenario.specification(false))?;
        let arguments = words(&format!("transfer {spec} --streams-policy {way}"));
        let mut watched = super::rig::Watched::default();
        let place = Place::Host(&lab, MASTER);
        let moved = agents.run(place, &arguments, deadline(seconds), |_, event| {
            watched.see(event, f64::INFINITY)
        })?;
        Ok(Ran::of(moved.complete()?.report, watched))
    }
}

/// A network, a way, and the key of the run.
type Row = (Lan, &'static str, String);

/// By network, then by round; in a hurry one round, of the networks where tuning has something to spoil.
fn rows(is_quick: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for lan in ALL {
        if is_quick && ![Lan::SlowMesh, Lan::Mixed].contains(&lan) {
            continue;
        }
        let bytes = lan.bytes(SECONDS)?;
        let rounds = if is_quick { 1 } else { ROUNDS };
        for round in 1..=rounds {
            for way in WAYS {
                let key = format!("{lan}, {way}, {bytes} bytes, round {round}");
                rows.push((lan, way, key));
            }
        }
    }
    Ok(rows)
}

/// Every point and its seconds.
pub(super) fn points(is_quick: bool) -> Result<Vec<(String, f64)>> {
    let rows = rows(is_quick)?.into_iter();
    Ok(rows.map(|row| (row.2, SECONDS + 2.0)).collect())
}

/// Runs them all; a table of times over those without tuning.
pub(super) fn table(bench: &mut Bench, is_quick: bool) -> Result<Table> {
    let site = bench.site();
    let seconds = SECONDS;
    let mut table = Table::new(
        "Short paths: seconds without tuning, and with each policy (median of three; one in a hurry; times over off)",
        &[
            ("network", "network"),
            ("off_seconds", "off s"),
            ("off_spread_seconds", "from-to"),
            ("model_over_off", "model"),
            ("simulate_over_off", "simulate"),
            ("database_over_off", "database"),
            ("steps", "steps"),
        ],
    );
    let rows = rows(is_quick)?;
    for rows in rows.chunk_by(|a, b| a.0 == b.0) {
        let lan = rows[0].0;
        let bytes = lan.bytes(seconds)?;
        let mut steps = 0;
        let mut times = WAYS.map(|way| (way, Vec::new()));
        for (_, way, key) in rows {
            let ran = bench.point(key, || lan.run(&site, bytes, way, seconds));
            let Some(ran) = ran else { continue };
            steps += ran.steps.len();
            let at = times.iter_mut().find(|(known, _)| known == way);
            if let Some((_, times)) = at {
                times.push(ran.seconds);
            }
        }
        let medians = times.map(|(_, times)| summary(times));
        let off = medians[0];
        let over = |at: usize| Some(medians[at]?.median / off?.median);
        table.row(vec![
            lan.to_string().into(),
            number(off.map(|all| all.median), 2),
            off.map_or(crate::table::Cell::Empty, |all| {
                format!("{:.2}-{:.2}", all.min, all.max).into()
            }),
            number(over(1), 3),
            number(over(2), 3),
            number(over(3), 3),
            number(steps as f64, 0),
        ]);
    }
    table.note(
        "steps: changes of the number of streams in all tuned runs together; none are expected.",
    );
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are sized to what the links carry: 20 Mbit/s for one pair, ten times that for two fast pairs' worth.
    #[test]
    fn sizes() {
        let slow = Lan::SlowPair.bytes(8.0).unwrap();
        assert!((16 << 20..=24 << 20).contains(&slow), "{slow}");
        let mixed = Lan::Mixed.scenario(1 << 20);
        assert_eq!((mixed.senders.len(), mixed.receivers.len()), (8, 8));
        assert!(mixed.is_shared && !Lan::FastPairs.scenario(8).is_shared);
    }
}
