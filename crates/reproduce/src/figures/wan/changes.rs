//! The trunk is halved, or another transfer begins on it, half way: how long until all of it is used again, goodput
//! before and after, and who gets what.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_lab::trunk::Direction;
use ropewalk_proto::report::{Event, Outcome};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Site};
use crate::figures::trunk::Queue;
use crate::process::Process;
use crate::ropewalk::{Place, parse_event, words};
use crate::table::{Cell as Entry, Table, number};

use super::cells::{Cell, PAYLOAD_SHARE, RATE, cell};
use super::rig::{ACCESS, Rig, specification};

/// Where it happens: in the middle of everything.
const CELLS: [Cell; 2] = [
    cell("changed-eight", 8, 80, Queue::Product, 0.0, "cubic"),
    cell("changed-lossy", 8, 80, Queue::Fifty, 0.001, "cubic"),
];

/// What is compared.
const WAYS: [&str; 3] = ["--streams-policy model", "--streams 4", "--streams 32"];

/// A transfer has reacted when a second brings this part of what it should.
const REACTED: f64 = 0.9;

/// What is left out at the end of a transfer: bytes are counted when their unit is whole, and hundreds of streams end
/// theirs then.
const TAIL_SECONDS: f64 = 3.0;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Halved,
    Competitor,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Halved => "halved",
            Self::Competitor => "competitor",
        }
    }
}

/// Delivered bytes of one transfer over time, on a clock that both share.
type Delivered = Vec<(f64, u64)>;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Changed {
    /// When it happened.
    at_seconds: f64,
    first: Delivered,
    /// Of the competitor.
    second: Delivered,
    /// When the number of streams was changed, and to how many of a receiver.
    steps: Vec<(f64, u32)>,
    invalid: Vec<String>,
}

/// Bytes a second between two moments, by what had been delivered then.
fn rate(of: &Delivered, from: f64, to: f64) -> Option<f64> {
    let at = |moment: f64| {
        let after = of.iter().position(|(seconds, _)| *seconds >= moment)?;
        let (t1, b1) = of[after];
        let (t0, b0) = match after {
            0 => return (t1 <= moment).then_some(b1 as f64),
            _ => of[after - 1],
        };
        Some(b0 as f64 + (b1 - b0) as f64 * (moment - t0) / (t1 - t0).max(1e-9))
    };
    Some((at(to)? - at(from)?) / (to - from))
}

/// First moment from which a second brings at least so much.
fn reached(of: &Delivered, from: f64, least: f64) -> Option<f64> {
    let later = of.iter().map(|(seconds, _)| *seconds);
    let mut later = later.filter(|seconds| *seconds >= from);
    later.find(|&seconds| rate(of, seconds, seconds + 1.0).is_some_and(|rate| rate >= least))
}

/// Follows events of a transfer.
#[derive(Debug, Default)]
struct Followed {
    delivered: Delivered,
    steps: Vec<(f64, u32)>,
    is_done: bool,
}

impl Followed {
    /// Says which part is delivered.
    fn see(&mut self, event: &Event, now: f64) -> f64 {
        match event {
            Event::Planned { .. } => self.delivered.push((now, 0)),
            Event::Progress {
                delivered_bytes,
                total_bytes,
                ..
            } => {
                self.delivered.push((now, *delivered_bytes));
                return *delivered_bytes as f64 / (*total_bytes).max(1) as f64;
            }
            Event::Note { message, .. } => {
                self.steps
                    .extend(super::rig::step(message).map(|count| (now, count)));
            }
            Event::Ended { report } => {
                self.delivered.push((now, report.delivered_bytes));
                self.is_done = report.outcome == Outcome::Done;
            }
            Event::Reached { .. } => {}
        }
        0.0
    }
}

fn follow(process: &Process, clock: Instant, limit: Duration) -> Result<Followed> {
    let mut followed = Followed::default();
    let until = Instant::now() + limit;
    let left = || until.saturating_duration_since(Instant::now());
    while let Some(line) = process.line(left()).context("the competitor is stuck")? {
        followed.see(&parse_event(&line)?, clock.elapsed().as_secs_f64());
    }
    if !followed.is_done {
        bail!("the competitor failed");
    }
    Ok(followed)
}

fn measure(site: &Site, cell: &Cell, what: What, way: &str, bytes: u64) -> Result<Changed> {
    let caps = vec![ACCESS; cell.nodes];
    let Rig {
        lab,
        mut agents,
        master,
    } = Rig::new(site, [&caps, &caps], cell.trunk(), cell.control)?;
    let spec = agents.spec(&specification(cell.nodes, bytes))?;
    let other = agents.spec_named("other.cep", &specification(cell.nodes, bytes / 2))?;
    let arguments = words(&format!("transfer {spec} {way}"));
    let others = words(&format!("transfer {other} {way}"));
    let place = Place::Host(&lab, &master);
    let limit = Duration::from_secs_f64(60.0 + 10.0 * bytes as f64 * 8.0 / RATE as f64);
    let clock = Instant::now();
    let mut first = Followed::default();
    let mut happened = None;
    let (moved, second) = std::thread::scope(|scope| {
        let mut competitor = None;
        let moved = agents.run(place, &arguments, limit, |agents, event| {
            let now = clock.elapsed().as_secs_f64();
            if first.see(event, now) < 0.5 || happened.is_some() {
                return Ok(());
            }
            happened = Some(now);
            match what {
                What::Halved => {
                    let words = format!("rate={}Mbit", RATE / 2_000_000);
                    lab.trunk(0).change(&[Direction::AToB], &words)?;
                }
                What::Competitor => {
                    let (_, process) = agents.start_master(place, &others)?;
                    competitor = Some(scope.spawn(move || follow(&process, clock, limit)));
                }
            }
            Ok(())
        });
        let second = competitor.map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (moved, second)
    });
    moved?.complete()?;
    Ok(Changed {
        at_seconds: happened.context("the transfer ended before half of it was seen")?,
        first: first.delivered,
        second: second.transpose()?.unwrap_or_default().delivered,
        steps: first.steps,
        invalid: lab.trunk(0).validity()?.reasons,
    })
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Effect {
    /// Bytes a second of the two seconds before, and from the reaction to the end of the first transfer, both together.
    before: f64,
    after: Option<f64>,
    /// Until a second brought nine tenths of what it should: of the halved trunk, or of half of it to the competitor.
    reaction_seconds: Option<f64>,
    /// Part of the trunk that the first transfer kept, once the competitor had its part.
    share: Option<f64>,
}

impl Changed {
    fn effect(&self, what: What) -> Effect {
        let whole = RATE as f64 / 8.0 * PAYLOAD_SHARE;
        let at = self.at_seconds;
        let before = rate(&self.first, at - 2.0, at).unwrap_or(0.0);
        let end = |of: &Delivered| of.last().map_or(0.0, |last| last.0);
        let half = REACTED * whole / 2.0;
        let (reacted, since) = match what {
            What::Halved => (reached(&self.first, at, half), at),
            What::Competitor => {
                let began = self.second.first().map_or(at, |first| first.0);
                (reached(&self.second, began, half), began)
            }
        };
        // At the end units come whole that were begun long before, and no new ones are.
        let both = match what {
            What::Halved => end(&self.first),
            What::Competitor => end(&self.first).min(end(&self.second)),
        } - TAIL_SECONDS;
        let from = reacted.unwrap_or(since);
        let first = rate(&self.first, from, both).filter(|_| both > from);
        let second = rate(&self.second, from, both).filter(|_| both > from);
        Effect {
            before,
            after: first.map(|first| first + second.unwrap_or(0.0)),
            reaction_seconds: reacted.map(|reacted| reacted - since),
            share: first
                .zip(second)
                .map(|(first, second)| first / (first + second)),
        }
    }
}

/// Runs them all.
pub(super) fn table(bench: &mut Bench, seconds: f64) -> Result<Table> {
    let site = bench.site();
    let mut points = Vec::new();
    for cell in CELLS {
        for what in [What::Halved, What::Competitor] {
            for way in WAYS {
                let bytes = cell.bytes(seconds);
                let key = format!("{}, {}, {way}, {bytes} bytes", cell.name, what.name());
                points.push((cell, what, way, bytes, key));
            }
        }
    }
    bench.expect(points.iter().map(|point| (point.4.clone(), 1.6 * seconds)));
    let mut table = Table::new(
        "Half way the trunk is halved, or a second transfer of half the size begins (8 nodes, 80 ms, cubic)",
        &[
            ("cell", "cell"),
            ("change", "change"),
            ("streams", "streams"),
            ("before_megabits_per_second", "before Mbit/s"),
            ("after_megabits_per_second", "after"),
            ("could_megabits_per_second", "trunk"),
            ("reaction_seconds", "reaction s"),
            ("share_percent", "first's share %"),
            ("steps", "steps"),
        ],
    );
    for (cell, what, way, bytes, key) in &points {
        let Some(changed) = bench.point(key, || measure(&site, cell, *what, way, *bytes)) else {
            continue;
        };
        let effect = changed.effect(*what);
        let megabits = |rate: f64| rate * 8.0 / 1e6;
        let whole = RATE as f64 / 1e6 * PAYLOAD_SHARE;
        let steps = changed.steps.iter();
        let steps: Vec<String> = steps
            .map(|(at, count)| format!("{count} at {at:.1}"))
            .collect();
        table.row(vec![
            cell.name.into(),
            what.name().into(),
            way.trim_start_matches("--streams")
                .trim_start_matches("-policy")
                .trim()
                .into(),
            number(megabits(effect.before), 1),
            number(effect.after.map(megabits), 1),
            number(
                if *what == What::Halved {
                    whole / 2.0
                } else {
                    whole
                },
                1,
            ),
            number(effect.reaction_seconds, 1),
            number(effect.share.map(|share| share * 100.0), 0),
            match steps.is_empty() {
                true => Entry::Empty,
                false => steps.join(", ").into(),
            },
        ]);
    }
    table.note("before: the two seconds before it; after: from the reaction to the end of the first transfer, both transfers together.");
    table.note("reaction: until a second brought 90 % of the halved trunk, or of half the trunk to the second transfer; from its first grant.");
    table.note("trunk: payload that it can carry. Both transfers have masters of their own and the same option.");
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer at 10 bytes a second that stands still for a second from 5 s on, then goes on at 5.
    fn changed() -> Changed {
        let bytes = |t: u64| match t {
            0..=10 => t * 5,
            11..=12 => 50,
            _ => 50 + (t - 12) * 5 / 2,
        };
        let scale = RATE as f64 / 80.0 * PAYLOAD_SHARE;
        let first = (0..=30).map(|t| (t as f64 / 2.0, (bytes(t) as f64 * scale) as u64));
        Changed {
            at_seconds: 5.0,
            first: first.collect(),
            second: Vec::new(),
            steps: Vec::new(),
            invalid: Vec::new(),
        }
    }

    /// Reaction is counted to the first full second at the new rate.
    #[test]
    fn halved() {
        let effect = changed().effect(What::Halved);
        let whole = RATE as f64 / 8.0 * PAYLOAD_SHARE;
        assert!((effect.before / whole - 1.0).abs() < 0.01, "{effect:?}");
        assert_eq!(effect.reaction_seconds, Some(1.0));
        let after = effect.after.unwrap();
        assert!((after / whole - 0.5).abs() < 0.03, "{effect:?}");
        assert_eq!(effect.share, None);
    }

    /// A competitor that never gets its part has no reaction; shares add up to one.
    #[test]
    fn competitor() {
        let mut run = changed();
        run.second = (12..=28)
            .map(|t| (t as f64 / 2.0, (t - 12) * 1000))
            .collect();
        let effect = run.effect(What::Competitor);
        assert_eq!(effect.reaction_seconds, None);
        assert!(effect.share.unwrap() > 0.9, "{effect:?}");
        run.second = run
            .first
            .iter()
            .skip(12)
            .map(|&(t, b)| (t, b - run.first[12].1))
            .collect();
        let share = run.effect(What::Competitor).share.unwrap();
        assert!((share - 0.5).abs() < 0.01, "{share}");
    }
}
