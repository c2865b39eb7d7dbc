//! `plan`: which node would send what to which, and how long it would take. Nothing moves.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_master::request::{NodeRequest, Object, ObjectRequest, Reach, Relay};
use ropewalk_master::{Hints, StateError};
use ropewalk_model::plan_output::PlanRefusal;
use ropewalk_model::problem::case::Case;
use ropewalk_model::spec::SpecNode;
use ropewalk_model::{
    ByteRate, PlanOutput, PlannedTransfer, Problem, Role, Schedule, TransferSpec, format_bytes,
};
use ropewalk_proto::codes::{EXIT_REFUSED, EXIT_USAGE};
use ropewalk_sched::{Bound, PlanError};
use serde::Serialize;

use crate::choices::RelayArg;
use crate::options;
use crate::transfer::{self, BadSpec};
use advice::{Advice, Step, Times, WhatIf};
use change::Change;
use compare::{Line, Timed, TimedError};
use relays::Relays;

mod advice;
mod change;
mod compare;
mod people;
mod relays;
mod what_if;

/// Ranges shown for each destination that no node can serve.
const MISSING_MAX: usize = 8;

/// Arguments of `ropewalk plan`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// A specification file or a JSON case; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// How work is divided: auto, optimal (least time), fast (nearly that, for many nodes), greedy (in proportion to
    /// speeds) or uniform (equal shares)
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = options::scheduler)]
    scheduler: String,

    /// Speed of nodes whose rows declare none and of which nothing is remembered
    #[arg(long, value_name = "RATE", default_value = "1Gbit", value_parser = options::rate)]
    assume_rate: ByteRate,

    /// Speeds that earlier transfers showed, for rows that declare none: auto (as `ropewalk transfer` would use them),
    /// off, or a file
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    speeds: OsString,

    /// Print the least time and a plan with receivers that hand bytes on to others that want them, too, as transfers with
    /// --relay auto do
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    relay: RelayArg,

    /// Plan a changed transfer too: another speed, a node more or less, another limit between nodes; may be
    /// repeated, changes apply in order
    #[arg(long, value_name = "CHANGE", value_parser = change::parse)]
    what_if: Vec<Change>,

    /// Print one JSON object: scheduler, transfers, predicted_seconds, bound_seconds, binding, schedulers, advice, relay
    /// where it counts and, with --what-if, what_if
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk plan figure2.spec
  ropewalk plan --scheduler uniform figure2.spec
      the time that equal shares would take; the table shows all schedulers side by side
  ropewalk plan --json case.json | jq .bound_seconds
  ropewalk plan figure2.spec --what-if 'node1 up=10Gbit'
      the time with a faster node1, and what would limit it then

Speeds that a specification file declares: up=RATE and down=RATE at the end of writer and reader \
rows (up= of a reader, or else its down=, is what it hands bytes on with), and rows for one
direction between nodes (a host alone is every node on it):
  cap a[1-4]:7420 b1:7420 1Gbit             what each of these pairs carries
  trunk wan 10Gbit from a[1-4] to b[1-4]    what all of these pairs carry together
Schedulers greedy and uniform do not follow caps and trunks; their predicted time counts them.

Changes for --what-if (a NAME is a node of the file; its host alone will do where that is unique):
  'w0 up=10Gbit'                         a writer's speed; up=0 stops it
  'r0 down=x2'                           a reader's speed, twice what it is; x0.5 is half
  'all writers up=x2'  'all down=1Gbit'  all of one side
  'remove w1'  'remove reader a'         a node less
  'add writer w9 like w0'                one more with w0's bytes and speed, behind the same links
  'add writer w9 up=1Gbit like w0'       the same with its own speed
  'add reader r5 down=1Gbit 0-999'       one more that wants these; dest=NAME shares a copy
  'pair w0 r0 cap=100Mbit'               a limit between two nodes; cap=0 closes it, cap=none frees
  'trunk wan cap=x2'                     a trunk of the file, by name or counted from 0
  'add trunk w0,w1 r0 cap=1Gbit'         a limit that several pairs share

The bound is the least time any plan can take at these speeds; the binding nodes are the ones that \
must become faster before it can fall. JSON ranges are half open, ranges for people include their \
last byte.

Exit status: 0 planned, 1 failed, 2 usage (also a change that names what is not in the file), 4 no \
plan is possible (some bytes have no holder, before or after the changes), or the file cannot be \
read as a transfer.";

/// What to plan, and whose speeds are guesses.
struct Input {
    problem: Problem,
    label: Option<String>,
    assumed: Option<(usize, ByteRate)>,
    /// How old the speeds are that were remembered.
    remembered: Option<String>,
    /// What keeps speeds from being remembered.
    note: Option<String>,
}

/// A problem with the chosen scheduler's plan.
struct Planned {
    problem: Arc<Problem>,
    schedule: Schedule,
    predicted_seconds: f64,
    bound: Bound,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed {
    #[serde(flatten)]
    plan: PlanOutput,
    schedulers: Vec<Line>,
    advice: Option<Advice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay: Option<Relays>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<WhatIf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Plans and prints.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode> {
    let input = match read(args) {
        Ok(input) => input,
        Err(error) if args.json && error.is::<BadSpec>() => {
            print_json(&PlanRefusal {
                error: error.to_string(),
                missing: Default::default(),
            })?;
            return Ok(ExitCode::from(EXIT_REFUSED));
        }
        Err(error) => return Err(error),
    };
    match plan(args, &input) {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast_ref::<PlanError>() {
            Some(refused) => refuse(refused, error.is::<AfterChanges>(), args.json),
            None => Err(error),
        },
    }
}

fn plan(args: &PlanArgs, input: &Input) -> Result<ExitCode> {
    let (before, timed) = planned(&args.scheduler, input.problem.clone())?;
    // Where `auto` was asked for, the one that it chose.
    let scheduler = timed.scheduler;
    let (what_if, after) = match args.what_if.as_slice() {
        [] => (None, None),
        changes => match changed(&args.scheduler, &before, changes)? {
            Ok((what_if, after)) => (Some(what_if), Some(after)),
            Err(code) => return Ok(code),
        },
    };
    let used = Line::of(scheduler, &timed, before.predicted_seconds);
    let schedulers = compare::lines(&before.problem, used).map_err(plain)?;
    let printed = Printed {
        plan: PlanOutput {
            scheduler: scheduler.to_owned(),
            transfers: PlannedTransfer::list(&before.problem, &before.schedule),
            predicted_seconds: before.predicted_seconds,
            bound_seconds: before.bound.seconds,
            bound_is_exact: before.bound.is_exact,
            binding: before.bound.binding.clone(),
        },
        schedulers,
        advice: advice::advice(&before.problem, &before.bound)?,
        relay: match args.relay {
            RelayArg(Relay::Auto) => Relays::of(&before.problem)?,
            RelayArg(Relay::Off) => None,
        },
        what_if,
        notes: [
            &input.remembered,
            &input.note,
            &ignores_links(scheduler, &before.problem),
        ]
        .into_iter()
        .flatten()
        .cloned()
        .collect(),
    };
    if args.json {
        print_json(&printed)?;
    } else {
        write_out(&people::text(input, &before, after.as_ref(), &printed)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that the scheduler plans without regard to declared caps and trunks.
fn ignores_links(scheduler: &str, problem: &Problem) -> Option<String> {
    let heeds = ropewalk_sched::by_name(scheduler).is_ok_and(|scheduler| scheduler.heeds_links());
    (problem.has_links() && !heeds).then(|| {
        format!("{scheduler} plans without caps and trunks; the predicted time counts them")
    })
}

/// A refusal as [`PlanError`], distinct from other errors.
fn plain(error: TimedError) -> anyhow::Error {
    match error {
        TimedError::Plan(error) => error.into(),
        other => other.into(),
    }
}

fn planned(scheduler: &str, problem: Problem) -> Result<(Planned, Timed)> {
    let timed = compare::timed(&problem, scheduler).map_err(plain)?;
    let bound = ropewalk_sched::bound(&problem)?;
    let planned = Planned {
        predicted_seconds: timed.schedule.predicted_seconds(&problem),
        schedule: timed.schedule.clone(),
        problem: Arc::new(problem),
        bound,
    };
    Ok((planned, timed))
}

impl Planned {
    fn times(&self) -> Times {
        Times {
            predicted_seconds: Some(self.predicted_seconds),
            bound_seconds: Some(self.bound.seconds),
            binding: self.bound.binding.clone(),
        }
    }
}

/// Marks a refusal that the changes brought about.
#[derive(Debug)]
struct AfterChanges;

impl std::fmt::Display for AfterChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("after the changes")
    }
}

/// Plans again after each change, at least one. A change that names what is not there is a slip on the command line, and
/// gives the exit status.
fn changed(
    scheduler: &str,
    before: &Planned,
    changes: &[Change],
) -> Result<Result<(WhatIf, Planned), ExitCode>> {
    let mut problem = Problem::clone(&before.problem);
    let mut steps = Vec::new();
    let mut last = None;
    for change in changes {
        if let Err(error) = what_if::apply(&mut problem, change) {
            eprintln!("ropewalk: --what-if '{}': {error}", change.text);
            return Ok(Err(ExitCode::from(EXIT_USAGE)));
        }
        // A later change may bring back what this one takes away.
        let then = match planned(scheduler, problem.clone()) {
            Ok((planned, _)) => Ok(planned),
            Err(error) => Err(error.downcast::<PlanError>()?),
        };
        steps.push(Step {
            change: change.text.clone(),
            times: then.as_ref().map(Planned::times).unwrap_or_default(),
        });
        last = Some(then);
    }
    let after = last.context("there is no change")?;
    let after = after.map_err(|error| anyhow::Error::new(error).context(AfterChanges))?;
    let what_if = WhatIf {
        changes: steps,
        times: after.times(),
        transfers: PlannedTransfer::list(&after.problem, &after.schedule),
    };
    Ok(Ok((what_if, after)))
}

fn read(args: &PlanArgs) -> Result<Input> {
    let text = transfer::read_text(&args.file)?;
    if text.trim_start().starts_with('{') {
        let case = Case::parse(&text)
            .map_err(|error| BadSpec(format!("{}: {error}", args.file.display())))?;
        let label = if case.name.is_empty() {
            None
        } else {
            Some(case.name)
        };
        return Ok(Input {
            problem: case.problem,
            label,
            assumed: None,
            remembered: None,
            note: None,
        });
    }
    let spec = transfer::parse(&text, &args.file)?;
    let mut problem = spec.to_problem(args.assume_rate);
    let (remembered, note) = match remembered(args, &spec) {
        Ok(hints) => (hints, None),
        Err(error) => (Hints::default(), Some(error.to_string())),
    };
    let writers = problem.senders.len();
    let mut silent = 0;
    let mut hint = |declared: bool, hints: &[Option<u64>], at: usize, speed: &mut u64| match hints
        .get(at)
        .copied()
        .flatten()
        .filter(|_| !declared)
    {
        Some(hint) => *speed = hint,
        None => silent += usize::from(!declared),
    };
    for (at, node) in spec.nodes(Role::Writer).iter().enumerate() {
        let speed = &mut problem.senders[at].up;
        hint(node.hints.up.is_some(), &remembered.up, at, speed);
    }
    for (at, node) in spec.nodes(Role::Reader).iter().enumerate() {
        let receiver = &mut problem.receivers[at];
        let declared = node.hints.down.is_some();
        hint(declared, &remembered.down, writers + at, &mut receiver.down);
        if receiver.relay_up.is_some() && node.hints.up.is_none() {
            let known = remembered.up.get(writers + at).copied().flatten();
            receiver.relay_up = Some(known.unwrap_or(receiver.down));
        }
    }
    Ok(Input {
        problem,
        label: spec.id,
        assumed: (silent > 0).then_some((silent, args.assume_rate)),
        remembered: remembered.describe(),
        note,
    })
}

/// What is remembered of the nodes: writers, then readers, as the problem has them.
fn remembered(args: &PlanArgs, spec: &TransferSpec) -> Result<Hints, StateError> {
    let Some(path) = options::speeds_file(&args.speeds) else {
        return Ok(Hints::default());
    };
    let mut nodes = Vec::new();
    for role in [Role::Writer, Role::Reader] {
        nodes.extend(spec.nodes(role).into_iter().map(bare_node));
    }
    ropewalk_master::remembered_speeds(&path, &nodes)
}

/// As much of a node as is needed to look up its speeds: where it is, what it does, what is declared.
fn bare_node(node: SpecNode) -> NodeRequest {
    let object = ObjectRequest {
        object: Object::Null,
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    };
    let (sources, sinks) = match node.role {
        Role::Writer => (vec![object], Vec::new()),
        Role::Reader => (Vec::new(), vec![object]),
    };
    NodeRequest {
        name: node.host_port.to_string(),
        reach: Reach::Attached {
            host: node.host_port.host,
            port: node.host_port.port,
        },
        sources,
        sinks,
        up: node.hints.up.map(|rate| rate.0),
        down: node.hints.down.map(|rate| rate.0),
        interfaces: node.hints.interfaces,
    }
}

fn refuse(error: &PlanError, changed: bool, json: bool) -> Result<ExitCode> {
    let mut refusal = error.refusal();
    if changed {
        refusal.error = format!("after the changes, {}", refusal.error);
    }
    if json {
        print_json(&refusal)?;
    } else {
        eprintln!("ropewalk: refused: {}", refusal.error);
        for (destination, ranges) in &refusal.missing {
            let shown: Vec<String> = ranges
                .iter()
                .take(MISSING_MAX)
                .map(|range| format!("{}-{}", range.start, range.end - 1))
                .collect();
            let more = ranges.as_slice().len().saturating_sub(MISSING_MAX);
            let more = if more > 0 {
                format!(" and {more} more ranges")
            } else {
                String::new()
            };
            eprintln!(
                "  {destination} misses {}: {}{more}",
                format_bytes(ranges.len_bytes()),
                shown.join(", ")
            );
        }
    }
    Ok(ExitCode::from(EXIT_REFUSED))
}

fn print_json<T: serde::Serialize>(value: &T) -> Result<()> {
    let text = serde_json::to_string(value).context("cannot print the plan as JSON")?;
    write_out(&format!("{text}\n"))
}

fn write_out(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}
