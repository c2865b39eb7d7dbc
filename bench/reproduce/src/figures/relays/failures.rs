//! Receivers that die, pause and join in the middle of a transfer in which receivers hand on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::Burst;
use ropewalk_model::{Problem, Range, RangeSet, problem};
use ropewalk_proto::report::Event;
use ropewalk_sched::changing_bound;

use crate::bench::Bench;
use crate::changed::{Capacity, Happened};
use crate::network::MASTER;
use crate::process;
use crate::ropewalk::{Paused, Place, words};
use crate::scenario::{deadline, speed};
use crate::table::{Cell, Table, number};

use super::{COPY, EQUAL, NAME, PORT, Rig, SOURCE, Sample, equal_seconds, sent_bytes};

/// Receivers at the start.
const RECEIVERS: usize = 4;

/// A pause takes so long.
const PAUSE_SECONDS: f64 = 2.0;

/// Longest time for a node to join.
const JOIN_MAX: Duration = Duration::from_secs(60);

/// What happens when half of the bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The first receiver is killed (SIGKILL).
    Dies,
    /// It is stopped for a while (SIGSTOP).
    Pauses,
    /// A fifth receiver joins.
    Joins,
}

pub(super) const ALL: [Failure; 3] = [Failure::Dies, Failure::Pauses, Failure::Joins];

impl Failure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dies => "a receiver dies",
            Self::Pauses => "a receiver is stopped for 2 s",
            Self::Joins => "a receiver joins",
        }
    }

    /// Least time of the network as it changed: what each link carries until then.
    fn least_seconds(self, bytes: u64, happened: &Happened) -> Option<f64> {
        let rate = speed(EQUAL) as f64;
        let at = happened.seconds;
        let steady = Capacity::constant(rate);
        let mut odd = Capacity::constant(rate);
        match self {
            Self::Dies => odd.set(at, 0.0),
            Self::Pauses => odd.pause(at, happened.until_seconds.unwrap_or(at)),
            Self::Joins => {
                odd = Capacity::constant(0.0);
                odd.set(at, rate);
            }
        }
        let all = RangeSet::from(Range::new(0, bytes));
        let carried = |capacity: &Capacity, seconds: f64| capacity.integral(seconds).ceil() as u64;
        let receiver = |capacity: &Capacity, seconds| problem::Receiver {
            name: "b".to_owned(),
            down: carried(capacity, seconds),
            ranges: all.clone(),
            relay_up: Some(carried(capacity, seconds)),
            destination: None,
        };
        let at_seconds = |seconds: f64| {
            let others = if self == Self::Joins {
                RECEIVERS
            } else {
                RECEIVERS - 1
            };
            let mut problem = Problem::default();
            problem.senders.push(problem::Sender {
                name: "a".to_owned(),
                up: carried(&steady, seconds),
                ranges: all.clone(),
            });
            let steady = (0..others).map(|_| receiver(&steady, seconds));
            problem.receivers.extend(steady);
            match self {
                // Nobody waits for its copy, and what it handed on counts as if it had had all from the start.
                Self::Dies => problem.senders.push(problem::Sender {
                    name: "b".to_owned(),
                    up: carried(&odd, seconds),
                    ranges: all.clone(),
                }),
                Self::Pauses | Self::Joins => problem.receivers.push(receiver(&odd, seconds)),
            }
            problem
        };
        changing_bound(at_seconds).map(|(seconds, _)| seconds)
    }
}

fn row(host: &str, bytes: u64) -> String {
    format!("reader {host}:{PORT} {COPY} 0 0+{bytes}\n")
}

pub(super) fn measure(rig: &Rig<'_>, failure: Failure) -> Result<Sample> {
    let receivers = RECEIVERS + usize::from(failure == Failure::Joins);
    let lab = rig.flat(&[EQUAL], &vec![EQUAL; receivers], Burst::Auto)?;
    let mut agents = rig.agents(&lab, 1, receivers)?;
    let readers = (1..=RECEIVERS).map(|at| row(&format!("b{at}"), rig.bytes));
    let spec = agents.spec(&format!(
        "writer a1:{PORT} {SOURCE}/{NAME} 0 0+{}\n{}",
        rig.bytes,
        readers.collect::<String>()
    ))?;
    let more = agents.spec_named("more.cep", &row(&format!("b{receivers}"), rig.bytes))?;
    let place = Place::Host(&lab, MASTER);
    let seconds = 2.0 * equal_seconds(rig.bytes, RECEIVERS, true);
    let mut transfer = String::new();
    let mut happened: Option<Happened> = None;
    let mut paused: Option<Paused> = None;
    let arguments = words(&format!("transfer {spec} --wait 0"));
    let moved = agents.run(place, &arguments, deadline(seconds), |agents, event| {
        match event {
            Event::Planned { transfer: id, .. } => transfer.clone_from(id),
            Event::Progress {
                seconds,
                received_bytes,
                total_bytes,
                ..
            } => {
                if let Some(happened) = &mut happened {
                    let is_over = *seconds >= happened.seconds + PAUSE_SECONDS;
                    if is_over && let Some(paused) = paused.take() {
                        paused.go_on();
                        happened.until_seconds = Some(*seconds);
                    }
                } else if *received_bytes * 2 >= *total_bytes {
                    match failure {
                        Failure::Dies => agents.kill("b1")?,
                        Failure::Pauses => paused = Some(agents.pause("b1")?),
                        Failure::Joins => {
                            let mut command = place.command(&rig.site.ropewalk);
                            command.args(["join", &transfer, &more]);
                            process::run(command, JOIN_MAX).context("the receiver cannot join")?;
                        }
                    }
                    happened = Some(Happened {
                        seconds: *seconds,
                        ..Happened::default()
                    });
                }
            }
            _ => {}
        }
        Ok(())
    });
    // An agent that is stopped does not end.
    if let Some(paused) = paused.take() {
        paused.go_on();
    }
    let moved = moved?;
    let mut happened = happened.context("the transfer ended before half of it was seen")?;
    let start = moved.report.start_seconds;
    happened.seconds += start;
    happened.until_seconds = happened.until_seconds.map(|until| until + start);
    ensure!(
        failure != Failure::Pauses || happened.until_seconds.is_some(),
        "the transfer ended while a receiver was stopped"
    );
    let missing: Vec<&String> = moved.report.missing.keys().collect();
    let expected: &[&str] = match failure {
        Failure::Dies => &["b1"],
        Failure::Pauses | Failure::Joins => &[],
    };
    ensure!(missing == expected, "copies are missing on {missing:?}");
    let sent_bytes = sent_bytes(&lab, 1)?;
    let agents = agents.stop()?;
    Ok(Sample {
        seconds: moved.report.seconds,
        sent_bytes,
        trunk_bytes: None,
        read_bytes: None,
        happened: Some(happened),
        moved: Some(crate::ropewalk::Moved { agents, ..moved }),
    })
}

const COLUMNS: [(&str, &str); 7] = [
    ("case", "case"),
    ("at_seconds", "at s"),
    ("seconds", "s"),
    ("bound_seconds", "bound s"),
    ("over_bound", "over bound"),
    ("longest_stall_seconds", "longest stall s"),
    ("sent_over_size", "sent/size"),
];

pub(super) fn table(
    bench: &mut Bench,
    samples: &[(super::Point, Sample)],
    bytes: u64,
) -> Result<Table> {
    let title = format!(
        "Full copies of one file of {} MB, one sender to four receivers, all of 100 Mbit/s; at half way",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &COLUMNS);
    for (point, sample) in samples {
        let super::Point::Failure(failure) = *point else {
            continue;
        };
        let happened = sample.happened.as_ref().context("nothing happened")?;
        let least = failure.least_seconds(bytes, happened);
        let over = least.map(|least| sample.seconds / least);
        let stall = sample
            .moved
            .as_ref()
            .map(|moved| moved.report.longest_stall_seconds);
        table.row(vec![
            failure.name().into(),
            number(happened.seconds, 2),
            number(sample.seconds, 2),
            least.map_or(Cell::Empty, |least| number(least, 2)),
            over.map_or(Cell::Empty, |over| number(over, 3)),
            stall.map_or(Cell::Empty, |stall| number(stall, 2)),
            number(sample.sent_bytes as f64 / bytes as f64, 2),
        ]);
        if let Some(over) = over {
            bench.headline(
                format!(
                    "{} while receivers hand on: time over the changed bound",
                    failure.name()
                ),
                format!("{over:.2}"),
            );
        }
        let notes = sample.moved.iter().flat_map(|moved| &moved.report.notes);
        for note in notes {
            table.note(format!("{}: {note}", failure.name()));
        }
    }
    table.note("bound: of the network as it changed; what a receiver that dies had handed on counts as if it had had everything. The copies of all others are complete.");
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is gone is not waited for; a pause costs what the others cannot make up; who joins needs the time of the data.
    #[test]
    fn changed_bounds() {
        let bytes = 120_000_000;
        let link = bytes as f64 / speed(EQUAL) as f64;
        let least = |failure: Failure, at: f64, until: Option<f64>| {
            let happened = Happened {
                seconds: at * link,
                until_seconds: until.map(|until| until * link),
                ..Happened::default()
            };
            failure.least_seconds(bytes, &happened).unwrap() / link
        };
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-3, "{found}");
        close(least(Failure::Dies, 0.5, None), 1.0);
        close(least(Failure::Pauses, 0.5, Some(0.7)), 1.2);
        close(least(Failure::Joins, 0.5, None), 1.5);
    }
}
