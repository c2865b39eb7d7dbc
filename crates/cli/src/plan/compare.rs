//! Every scheduler on the same transfer, with times: what a plan by another rule would take.
//!
//! A scheduler cannot be interrupted, so each runs in a thread of its own and is left behind when it takes
//! too long; the end of the process ends it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ropewalk_model::{Problem, Schedule, format_seconds, verify};
use ropewalk_sched::PlanError;
use serde::Serialize;

/// Schedulers to compare, best first: `auto` only chooses among them.
fn names() -> impl DoubleEndedIterator<Item = &'static str> {
    ropewalk_sched::NAMES
        .into_iter()
        .filter(|name| *name != "auto")
}

/// A plan that is only made for comparison is waited for this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// Rules that split every byte over all its holders; a plan of theirs can outgrow memory where others do not.
const SPLITTERS: [&str; 2] = ["greedy", "uniform"];

/// Runs that a splitter may be expected to make for comparison: about a second and 100 MB.
const RUNS_MAX: u128 = 2_000_000;

/// One scheduler's line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    /// Its name.
    pub scheduler: String,
    /// Time of its plan; `None` when it was not waited for.
    pub predicted_seconds: Option<f64>,
    /// Time to make the plan; `None` as before.
    pub planning_seconds: Option<f64>,
    /// Runs of bytes in the plan; `None` as before.
    pub runs: Option<usize>,
    /// Why there is no plan; empty when there is one.
    #[serde(skip)]
    why_not: String,
}

/// A schedule and the time it took to make.
pub(crate) struct Timed {
    /// It passed [`verify`].
    pub schedule: Schedule,
    /// The scheduler that made it; not `auto`, which leaves that to others.
    pub scheduler: &'static str,
    /// Time to make it, without the check.
    pub planning: Duration,
}

/// Why there is no schedule.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TimedError {
    /// The transfer has none.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No such scheduler.
    #[error(transparent)]
    Scheduler(#[from] ropewalk_sched::UnknownScheduler),
    /// The schedule does not do what was asked.
    #[error("the schedule of {0} is wrong, which is a bug of the scheduler: {1}")]
    Wrong(String, ropewalk_model::VerifyError),
}

/// Plans, checks, and takes the time.
pub(crate) fn timed(problem: &Problem, name: &str) -> Result<Timed, TimedError> {
    let scheduler = ropewalk_sched::by_name(name)?;
    let start = Instant::now();
    let (schedule, scheduler) = scheduler.plan_named(problem)?;
    let planning = start.elapsed();
    verify(problem, &schedule).map_err(|error| TimedError::Wrong(name.to_owned(), error))?;
    Ok(Timed {
        schedule,
        scheduler,
        planning,
    })
}

impl Line {
    /// The line of a schedule that is there.
    pub(crate) fn of(scheduler: &str, timed: &Timed, predicted_seconds: f64) -> Self {
        Self {
            scheduler: scheduler.to_owned(),
            predicted_seconds: Some(predicted_seconds),
            planning_seconds: Some(timed.planning.as_secs_f64()),
            runs: Some(timed.schedule.assignments.len()),
            why_not: String::new(),
        }
    }

    fn left(scheduler: &str, why_not: String) -> Self {
        Self {
            scheduler: scheduler.to_owned(),
            predicted_seconds: None,
            planning_seconds: None,
            runs: None,
            why_not,
        }
    }

    fn slow(scheduler: &str) -> Self {
        let patience = format_seconds(PATIENCE.as_secs_f64());
        Self::left(scheduler, format!("not ready within {patience}"))
    }
}

/// Lines of all schedulers; `chosen` has been made already and is not made again.
pub(crate) fn lines(problem: &Arc<Problem>, chosen: Line) -> Result<Vec<Line>, TimedError> {
    let mut lines = Vec::new();
    let split_runs = split_runs(problem);
    // The cheap ones are made before one that is left behind can slow them down.
    for name in names().rev() {
        lines.push(if name == chosen.scheduler {
            chosen.clone()
        } else if SPLITTERS.contains(&name) && split_runs > RUNS_MAX {
            let millions = split_runs / 1_000_000;
            Line::left(name, format!("about {millions} million runs, not made"))
        } else {
            patiently(problem, name)?
        });
    }
    if lines.iter().all(|line| line.scheduler != chosen.scheduler) {
        lines.push(chosen);
    }
    lines.reverse();
    Ok(lines)
}

/// Runs of a plan that splits every stretch over all who hold it, for all who want it. Cost O(rows × log).
fn split_runs(problem: &Problem) -> u128 {
    let mut events: Vec<(u64, i64, i64)> = Vec::new();
    for range in problem.senders.iter().flat_map(|s| s.ranges.iter()) {
        events.extend([(range.start, 1, 0), (range.end, -1, 0)]);
    }
    for range in problem.receivers.iter().flat_map(|r| r.ranges.iter()) {
        events.extend([(range.start, 0, 1), (range.end, 0, -1)]);
    }
    events.sort_unstable();
    let (mut holders, mut wanters, mut at, mut runs) = (0_i64, 0_i64, 0, 0_u128);
    for (offset, holder, wanter) in events {
        if offset > at {
            runs += u128::from(holders.unsigned_abs()) * u128::from(wanters.unsigned_abs());
        }
        (holders, wanters, at) = (holders + holder, wanters + wanter, offset);
    }
    runs
}

fn patiently(problem: &Arc<Problem>, name: &str) -> Result<Line, TimedError> {
    let (sender, receiver) = mpsc::channel();
    let (theirs, scheduler) = (problem.clone(), name.to_owned());
    let started = std::thread::Builder::new()
        .name(scheduler.clone())
        .spawn(move || {
            let line = timed(&theirs, &scheduler).map(|timed| {
                let predicted = timed.schedule.predicted_seconds(&theirs);
                Line::of(&scheduler, &timed, predicted)
            });
            // After its time the receiver is gone.
            let _ = sender.send(line);
        });
    match started {
        Ok(_) => receiver
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| Ok(Line::slow(name))),
        Err(_) => Ok(Line::slow(name)),
    }
}

/// The table for people, with the chosen one marked.
pub(crate) fn table(lines: &[Line], chosen: &str, bound_seconds: f64) -> String {
    let width = lines.iter().map(|line| line.scheduler.len()).max();
    let width = width.unwrap_or(0).max("scheduler".len());
    // Writing to a string cannot fail.
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:width$}  {:>10}  {:>8}  {:>10}  {:>8}",
        "scheduler", "predicted", "of bound", "planned in", "runs"
    );
    for line in lines {
        let mark = if line.scheduler == chosen {
            "  <- used"
        } else {
            ""
        };
        let name = &line.scheduler;
        let Line {
            predicted_seconds: Some(predicted),
            planning_seconds: Some(planning),
            runs: Some(runs),
            ..
        } = line
        else {
            let _ = writeln!(
                out,
                "{name:width$}  {}; --scheduler {name} makes it all the same{mark}",
                line.why_not
            );
            continue;
        };
        let share = match *predicted > 0.0 && predicted.is_finite() {
            true => format!("{:.1} %", bound_seconds / predicted * 100.0),
            false => "-".to_owned(),
        };
        let _ = writeln!(
            out,
            "{name:width$}  {:>10}  {share:>8}  {:>10}  {runs:>8}{mark}",
            format_seconds(*predicted),
            format_seconds(*planning)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use ropewalk_model::problem::case::Case;

    use super::*;

    fn problem() -> Arc<Problem> {
        let text = r#"{"writers": [{"name": "a", "up": 30, "ranges": [[0, 120]]},
                                   {"name": "b", "up": 10, "ranges": [[0, 120]]}],
                       "readers": [{"name": "r", "down": 100, "ranges": [[0, 120]]}]}"#;
        Arc::new(Case::parse(text).unwrap().problem)
    }

    fn chosen(problem: &Problem, name: &str) -> Line {
        let timed = timed(problem, name).unwrap();
        let predicted = timed.schedule.predicted_seconds(problem);
        Line::of(timed.scheduler, &timed, predicted)
    }

    /// Every scheduler has a line with its own time, and the chosen one is marked once.
    #[test]
    fn every_scheduler_has_a_line() {
        let problem = problem();
        let lines = lines(&problem, chosen(&problem, "greedy")).unwrap();
        let names: Vec<&str> = lines.iter().map(|line| line.scheduler.as_str()).collect();
        assert_eq!(names, ["optimal", "fast", "greedy", "uniform"]);
        let of = |name: &str| {
            let line = lines.iter().find(|line| line.scheduler == name).unwrap();
            (line.predicted_seconds, line.runs)
        };
        assert_eq!(of("greedy"), (Some(3.0), Some(2)));
        assert_eq!(of("uniform"), (Some(6.0), Some(2)));
        let table = table(&lines, "greedy", 3.0);
        let marked: Vec<&str> = table
            .lines()
            .filter(|line| line.ends_with("<- used"))
            .collect();
        assert_eq!(marked.len(), 1, "{table}");
        assert!(
            marked[0].starts_with("greedy") && marked[0].contains("3 s   100.0 %"),
            "{table}"
        );
        assert!(table.contains("50.0 %"), "{table}");
    }

    /// One that was not waited for says so, and how to wait.
    #[test]
    fn a_slow_scheduler_is_named() {
        let table = table(&[Line::slow("optimal")], "fast", 1.0);
        let line = "optimal    not ready within 3 s; --scheduler optimal makes it all the same";
        assert!(table.contains(line), "{table}");
    }

    /// Plans that split every byte over many holders are counted before they are made.
    #[test]
    fn plans_that_outgrow_memory_are_not_made() {
        assert_eq!(split_runs(&problem()), 2);
        let node = |side: &str, at: usize| {
            let speed = if side == "w" { "up" } else { "down" };
            let end = 2_000_000 + at;
            format!(r#"{{"name": "{side}{at}", "{speed}": 9, "ranges": [[{at}, {end}]]}}"#)
        };
        let nodes = |side: &str| {
            (0..150)
                .map(|at| node(side, at))
                .collect::<Vec<_>>()
                .join(",")
        };
        let text = format!(
            r#"{{"writers": [{}], "readers": [{}]}}"#,
            nodes("w"),
            nodes("r")
        );
        let problem = Arc::new(Case::parse(&text).unwrap().problem);
        assert!(split_runs(&problem) > RUNS_MAX);
        let chosen = Line::left("none", String::new());
        let lines = lines(&problem, chosen).unwrap();
        let uniform = lines
            .iter()
            .find(|line| line.scheduler == "uniform")
            .unwrap();
        assert!(
            uniform.why_not.starts_with("about 2 million runs"),
            "{uniform:?}"
        );
    }
}
