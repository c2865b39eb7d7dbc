//! The trunk is halved, or another transfer begins on it, half way: how long until its queue drops no more than before,
//! goodput before and after, how it is shared and how soon.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_lab::Lab;
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
use super::seconds;

/// Where it happens: in the middle of everything.
const CELLS: [Cell; 2] = [
    cell("changed-eight", 8, 80, Queue::Product, 0.0, "cubic"),
    cell("changed-lossy", 8, 80, Queue::Fifty, 0.001, "cubic"),
];

/// What is compared.
const WAYS: [&str; 3] = ["--streams-policy model", "--streams 4", "--streams 32"];

/// How often the trunk's counters are read.
const SAMPLED: Duration = Duration::from_millis(200);

/// What drops and shares are averaged over: many round trips, also with a full queue.
const WINDOW_SECONDS: f64 = 2.0;

/// Windows begin so long after each other.
const STEP_SECONDS: f64 = 0.1;

/// Drops are back when a second has so many times those of before, or so few that the queue hardly overflows.
const DROPS_FACTOR: f64 = 2.0;
const DROPS_LEAST: f64 = 1.0;

/// A share is there when it is so near to the final one, as a part of it.
const SHARE_NEAR: f64 = 0.2;

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

/// What had been counted at which time, on one clock for all: bytes that a transfer delivered, or dropped packets.
type Counted = Vec<(f64, u64)>;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Changed {
    /// When it happened.
    at_seconds: f64,
    first: Counted,
    /// Of the competitor.
    second: Counted,
    /// Packets that found the trunk's queue full.
    drops: Counted,
    /// When the number of streams was changed, and to how many of a receiver.
    steps: Vec<(f64, u32)>,
    invalid: Vec<String>,
}

/// What came in a second between two moments, by what had been counted then.
fn rate(of: &Counted, from: f64, to: f64) -> Option<f64> {
    if to <= from {
        return None;
    }
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

/// Seconds until the first window of which something holds, of all between two moments.
fn first_window(from: f64, to: f64, holds: impl Fn(f64, f64) -> bool) -> Option<f64> {
    let starts = (0..).map(|step| f64::from(step) * STEP_SECONDS);
    let mut starts = starts.take_while(|start| from + start + WINDOW_SECONDS <= to);
    starts.find(|start| holds(from + start, from + start + WINDOW_SECONDS))
}

/// Counts dropped packets until told to stop.
fn drops(lab: &Lab, clock: Instant, stop: &Receiver<()>) -> Result<Counted> {
    let mut drops = Vec::new();
    loop {
        let link = lab.trunk(0).counters()?.a_to_b.link;
        drops.push((clock.elapsed().as_secs_f64(), link.dropped_queue.packets));
        match stop.recv_timeout(SAMPLED) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(drops),
        }
    }
}

/// Follows events of a transfer.
#[derive(Debug, Default)]
struct Followed {
    delivered: Counted,
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
            Event::HandedOver { .. }
            | Event::Reached { .. }
            | Event::Awaiting { .. }
            | Event::Waiting { .. }
            | Event::Returned { .. }
            | Event::Repeating { .. }
            | Event::Asking { .. }
            | Event::Uploaded { .. }
            | Event::Comparing { .. }
            | Event::Scanning { .. }
            | Event::AwaitingEnd { .. }
            | Event::Removing { .. }
            | Event::Listed { .. } => {}
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

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    let joined = thread.join();
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
    let (moved, second, drops) = std::thread::scope(|scope| {
        let (stop, stopped) = channel();
        let lab = &lab;
        let sampler = scope.spawn(move || drops(lab, clock, &stopped));
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
        drop(stop);
        (moved, competitor.map(joined), joined(sampler))
    });
    moved?.complete()?;
    Ok(Changed {
        at_seconds: happened.context("the transfer ended before half of it was seen")?,
        first: first.delivered,
        second: second.transpose()?.unwrap_or_default().delivered,
        drops: drops?,
        steps: first.steps,
        invalid: lab.trunk(0).validity()?.reasons,
    })
}

/// What came of a run. Rates are of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Effect {
    /// Bytes of the second quarter of the first transfer.
    before: Option<f64>,
    /// Bytes of both transfers from the change on.
    after: Option<f64>,
    /// Drops of the same times.
    drops_before: Option<f64>,
    drops_after: Option<f64>,
    /// Until drops were back; 0 when they never rose, `None` when they never came back.
    drops_back_seconds: Option<f64>,
    /// Until the tuner's last step.
    last_step_seconds: Option<f64>,
    /// The second transfer's part in the second half of the time that both had.
    share: Option<f64>,
    /// Until its part was near that.
    share_seconds: Option<f64>,
}

impl Changed {
    fn effect(&self, what: What) -> Effect {
        let first = |of: &Counted| of.first().map(|first| first.0);
        let end = |of: &Counted| of.last().map_or(0.0, |last| last.0);
        let at = self.at_seconds;
        let began = first(&self.first).unwrap_or(0.0);
        let (since, end) = match what {
            What::Halved => (at, end(&self.first)),
            What::Competitor => (
                first(&self.second).unwrap_or(at),
                end(&self.first).min(end(&self.second)),
            ),
        };
        // At the end units come whole that were begun long before, and no new ones are.
        let until = end - TAIL_SECONDS;
        let quarter = began + (at - began) / 2.0;
        let both = |from, to| {
            let first = rate(&self.first, from, to)?;
            Some((first, rate(&self.second, from, to).unwrap_or(0.0)))
        };
        let share = |from, to| {
            let (first, second) = both(from, to)?;
            (first + second > 0.0).then_some(second / (first + second))
        };
        let drops_before = rate(&self.drops, quarter, at);
        let few = drops_before.map(|drops| (drops * DROPS_FACTOR).max(DROPS_LEAST));
        let are_few = |from, to| {
            rate(&self.drops, from, to)
                .zip(few)
                .is_some_and(|(now, few)| now <= few)
        };
        let final_share = match what {
            What::Halved => None,
            What::Competitor => share(since + (until - since) / 2.0, until),
        };
        let is_near = |from, to| {
            let both = share(from, to).zip(final_share);
            both.is_some_and(|(now, last)| (now - last).abs() <= SHARE_NEAR * last)
        };
        let last_step = self.steps.last().map(|step| step.0 - since);
        Effect {
            before: rate(&self.first, quarter, at),
            after: both(since, until).map(|(first, second)| first + second),
            drops_before,
            drops_after: rate(&self.drops, since, until),
            drops_back_seconds: first_window(since, until, are_few),
            last_step_seconds: last_step.filter(|seconds| *seconds >= 0.0),
            share: final_share,
            share_seconds: first_window(since, until, is_near),
        }
    }
}

/// A run, and its key.
type Point = (Cell, What, &'static str, u64, String);

fn all_points(is_quick: bool) -> Vec<Point> {
    let (cells, ways) = match is_quick {
        true => (&CELLS[..1], &WAYS[..2]),
        false => (CELLS.as_slice(), WAYS.as_slice()),
    };
    let mut points = Vec::new();
    for &cell in cells {
        for what in [What::Halved, What::Competitor] {
            for &way in ways {
                let bytes = cell.bytes(trunk_seconds(is_quick));
                let key = format!("{}, {}, {way}, {bytes} bytes", cell.name, what.name());
                points.push((cell, what, way, bytes, key));
            }
        }
    }
    points
}

/// What the whole trunk needs for the first transfer.
fn trunk_seconds(is_quick: bool) -> f64 {
    2.0 * seconds(is_quick)
}

/// Every point and its seconds.
pub(super) fn points(is_quick: bool) -> Vec<(String, f64)> {
    let points = all_points(is_quick).into_iter();
    points
        .map(|point| (point.4, 1.5 * trunk_seconds(is_quick) + 4.0))
        .collect()
}

/// Runs them all.
pub(super) fn table(bench: &mut Bench, is_quick: bool) -> Result<Table> {
    let site = bench.site();
    let mut table = Table::new(
        "Half way the trunk is halved, or a second transfer of half the size begins (8 nodes, 80 ms, cubic)",
        &[
            ("cell", "cell"),
            ("change", "change"),
            ("streams", "streams"),
            ("before_megabits_per_second", "before Mbit/s"),
            ("after_megabits_per_second", "after"),
            ("could_megabits_per_second", "trunk"),
            ("drops_before_per_second", "drops/s before"),
            ("drops_after_per_second", "after"),
            ("drops_back_seconds", "back after s"),
            ("last_step_seconds", "last step s"),
            ("share_percent", "second's share %"),
            ("share_seconds", "there after s"),
            ("steps", "steps"),
            ("invalid_runs", "invalid"),
        ],
    );
    for (cell, what, way, bytes, key) in &all_points(is_quick) {
        let Some(changed) = bench.point(key, || measure(&site, cell, *what, way, *bytes)) else {
            continue;
        };
        let effect = changed.effect(*what);
        let megabits = |rate: f64| rate * 8.0 / 1e6;
        let whole = RATE as f64 / 1e6 * PAYLOAD_SHARE;
        let steps = changed.steps.iter();
        let steps: Vec<String> = steps
            .map(|(at, count)| format!("{count} at {:.1}", at - changed.at_seconds))
            .collect();
        let could = match what {
            What::Halved => whole / 2.0,
            What::Competitor => whole,
        };
        table.row(vec![
            cell.name.into(),
            what.name().into(),
            way.trim_start_matches("--streams")
                .trim_start_matches("-policy")
                .trim()
                .into(),
            number(effect.before.map(megabits), 1),
            number(effect.after.map(megabits), 1),
            number(could, 1),
            number(effect.drops_before, 1),
            number(effect.drops_after, 1),
            number(effect.drops_back_seconds, 1),
            number(effect.last_step_seconds, 1),
            number(effect.share.map(|share| share * 100.0), 0),
            number(effect.share_seconds, 1),
            match steps.is_empty() {
                true => Entry::Empty,
                false => steps.join(", ").into(),
            },
            number(f64::from(u8::from(!changed.invalid.is_empty())), 0),
        ]);
    }
    table.note("before: the second quarter of the first transfer; after: from the change (the second transfer's first grant) to 3 s before the first of them ends, both together. trunk: payload that it can carry.");
    table.note(format!(
        "back after: until {WINDOW_SECONDS} s had at most {DROPS_FACTOR} times the drops of before at the trunk's queue, or at most {DROPS_LEAST} a second; 0: they never rose so far; -: they never fell. Packets lost at random are no drops."
    ));
    table.note(format!(
        "second's share: in the second half of the time that both had; there after: until {WINDOW_SECONDS} s were within {:.0} % of it. Bytes count when their unit is whole.",
        SHARE_NEAR * 100.0
    ));
    table.note("last step: of the first transfer's tuner after the change, -: none. steps: streams of a receiver, and seconds after the change. Both transfers have masters of their own and the same option.");
    table.note("invalid: 1 where the trunk's relay did not keep up.");
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments a tenth of a second apart, and what had been counted at each.
    fn counted(from: f64, to: f64, of: impl Fn(f64) -> f64) -> Counted {
        let steps = ((to - from) * 10.0).round() as u32;
        let times = (0..=steps).map(|step| from + f64::from(step) / 10.0);
        times.map(|t| (t, of(t).round() as u64)).collect()
    }

    /// 1000 bytes a second from 2 s to 22 s, then 500; 10 drops a second, 200 for 3 s from 22 s on, then so many.
    fn changed(drops_at_last: f64) -> Changed {
        let drops = move |t: f64| {
            let burst = (t - 22.0).clamp(0.0, 3.0) * 200.0;
            t.min(22.0) * 10.0 + burst + (t - 25.0).max(0.0) * drops_at_last
        };
        let first = |t: f64| (t.min(22.0) - 2.0) * 1000.0 + (t - 22.0).max(0.0) * 500.0;
        Changed {
            at_seconds: 22.0,
            first: counted(2.0, 62.0, first),
            second: Vec::new(),
            drops: counted(0.0, 62.0, drops),
            steps: vec![(4.0, 8), (23.5, 4)],
            invalid: Vec::new(),
        }
    }

    fn is_near(value: Option<f64>, wanted: f64) -> bool {
        value.is_some_and(|value| (value - wanted).abs() < 0.11)
    }

    /// Drops are back when a window of two seconds has no more than twice those of before: here 40, of which the burst
    /// may have 25 when 15 come after it.
    #[test]
    fn halved() {
        let effect = changed(10.0).effect(What::Halved);
        assert!(is_near(effect.before, 1000.0), "{effect:?}");
        assert!(is_near(effect.after, 500.0), "{effect:?}");
        assert!(is_near(effect.drops_before, 10.0), "{effect:?}");
        // 200 x + 10 (2 - x) = 40 for x = 0.105 s of the burst.
        assert!(is_near(effect.drops_back_seconds, 2.9), "{effect:?}");
        assert!(is_near(effect.last_step_seconds, 1.5), "{effect:?}");
        assert_eq!((effect.share, effect.share_seconds), (None, None));

        let never = changed(21.0).effect(What::Halved);
        assert_eq!(never.drops_back_seconds, None);
        let mut quiet = changed(0.0);
        quiet.drops = counted(0.0, 62.0, |t| t * 10.0);
        quiet.steps.pop();
        let quiet = quiet.effect(What::Halved);
        assert_eq!(quiet.drops_back_seconds, Some(0.0));
        assert_eq!(quiet.last_step_seconds, None);
    }

    /// A queue that dropped nothing before is back when it hardly drops.
    #[test]
    fn first_drops() {
        let mut run = changed(0.0);
        run.drops = counted(0.0, 62.0, |t| {
            (t - 22.0).clamp(0.0, 4.0) * 50.0 + (t - 26.0).max(0.0) * 0.5
        });
        let back = run.effect(What::Halved).drops_back_seconds;
        assert!(is_near(back, 4.0), "{back:?}");
    }

    /// The second transfer begins late, has a tenth for five seconds and two fifths from then on.
    #[test]
    fn competitor() {
        let mut run = changed(10.0);
        let second = |t: f64| (t - 23.0).min(5.0) * 100.0 + (t - 28.0).max(0.0) * 400.0;
        let first = |t: f64| {
            let slow = (t - 23.0).clamp(0.0, 5.0) * 900.0 + (t - 28.0).max(0.0) * 600.0;
            (t.min(23.0) - 2.0) * 1000.0 + slow
        };
        run.first = counted(2.0, 62.0, first);
        run.second = counted(23.0, 70.0, second);
        let effect = run.effect(What::Competitor);
        assert!(is_near(effect.after, 1000.0), "{effect:?}");
        assert!((effect.share.unwrap() - 0.4).abs() < 0.001, "{effect:?}");
        // 0.1 x + 0.4 (2 - x) = 2 x 0.32 for x = 0.53 s of the slow part.
        assert!(is_near(effect.share_seconds, 4.5), "{effect:?}");
        assert!(is_near(effect.last_step_seconds, 0.5), "{effect:?}");

        run.second.clear();
        assert_eq!(run.effect(What::Competitor).share, None);
    }
}
