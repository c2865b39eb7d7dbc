//! `plan`: who would send what to whom, and how long it would take. Nothing moves.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk::model::plan_output::PlanRefusal;
use ropewalk::model::problem::case::Case;
use ropewalk::model::{
    ByteRate, Bytes, Loads, PlanOutput, PlannedTransfer, Problem, Role, TransferSpec,
    format_seconds, verify,
};
use ropewalk::sched::{self, PlanError};

use crate::options;
use crate::summary::listed;
use crate::transfer::{self, BadSpec};

/// Runs shown to people; `--json` prints all.
const RUNS_MAX: usize = 24;

/// Nodes shown for each side.
const NODES_MAX: usize = 32;

/// Ranges shown for each destination that nobody can serve.
const MISSING_MAX: usize = 8;

/// Exit status of a plan that cannot be made.
const REFUSED: u8 = 4;

/// Arguments of `ropewalk plan`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// A specification file or a JSON case; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Who sends what: auto, greedy (in proportion to speeds) or uniform (equal shares)
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = options::scheduler)]
    scheduler: String,

    /// Speed of nodes whose rows declare none
    #[arg(long, value_name = "RATE", default_value = "1Gbit", value_parser = options::rate)]
    assume_rate: ByteRate,

    /// Print one JSON object: scheduler, transfers, predicted_seconds, bound_seconds, binding
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk plan figure2.spec
  ropewalk plan --scheduler uniform figure2.spec
      the time that equal shares would take, for comparison
  ropewalk plan --json case.json | jq .bound_seconds

The bound is the least time any plan can take at these speeds; the binding nodes are the ones that
must become faster before it can fall. JSON ranges are half open, ranges for people include their
last byte.

Exit status: 0 planned, 1 failed, 2 usage, 4 no plan is possible (some bytes have no holder), or
the file cannot be read as a transfer.";

/// What to plan, and whose speeds are guesses.
struct Input {
    problem: Problem,
    label: Option<String>,
    assumed: Option<(usize, ByteRate)>,
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
            return Ok(ExitCode::from(REFUSED));
        }
        Err(error) => return Err(error),
    };
    let scheduler = sched::by_name(&args.scheduler)?;
    let (schedule, scheduler) = match scheduler.plan_named(&input.problem) {
        Ok(planned) => planned,
        Err(error) => return refuse(&error, args.json),
    };
    verify(&input.problem, &schedule)
        .context("the schedule is wrong; this is a bug of the scheduler")?;
    let bound = match sched::bound(&input.problem) {
        Ok(bound) => bound,
        Err(error) => return refuse(&error, args.json),
    };
    let loads = schedule.loads(&input.problem);
    let output = PlanOutput {
        scheduler: scheduler.to_owned(),
        transfers: PlannedTransfer::list(&input.problem, &schedule),
        predicted_seconds: loads.seconds(&input.problem),
        bound_seconds: bound.seconds,
        bound_is_exact: bound.is_exact,
        binding: bound.binding,
    };
    if args.json {
        print_json(&output)?;
    } else {
        write_out(&people(&input, &output, &loads)?)?;
    }
    Ok(ExitCode::SUCCESS)
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
        });
    }
    let spec = transfer::parse(&text, &args.file)?;
    let silent = silent_nodes(&spec);
    let assumed = (silent > 0).then_some((silent, args.assume_rate));
    Ok(Input {
        problem: spec.to_problem(args.assume_rate),
        label: spec.id,
        assumed,
    })
}

/// Nodes whose rows do not say how fast they are.
fn silent_nodes(spec: &TransferSpec) -> usize {
    let writers = spec
        .nodes(Role::Writer)
        .iter()
        .filter(|node| node.hints.up.is_none())
        .count();
    writers
        + spec
            .nodes(Role::Reader)
            .iter()
            .filter(|node| node.hints.down.is_none())
            .count()
}

fn refuse(error: &PlanError, json: bool) -> Result<ExitCode> {
    let refusal = error.refusal();
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
                Bytes(ranges.len_bytes()),
                shown.join(", ")
            );
        }
    }
    Ok(ExitCode::from(REFUSED))
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

fn people(input: &Input, plan: &PlanOutput, loads: &Loads) -> Result<String> {
    let problem = &input.problem;
    let mut out = String::new();
    let bytes: u128 = problem.wanted_bytes();
    write!(
        out,
        "plan       {} from {} senders to {} receivers by {}",
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)),
        problem.senders.len(),
        problem.receivers.len(),
        plan.scheduler
    )?;
    match &input.label {
        Some(label) => writeln!(out, " ({label})")?,
        None => writeln!(out)?,
    }
    writeln!(out, "predicted  {}", format_seconds(plan.predicted_seconds))?;
    write!(out, "bound      {}", format_seconds(plan.bound_seconds))?;
    if !plan.binding.is_empty() {
        write!(out, ", set by {}", listed(&plan.binding))?;
    }
    if !plan.bound_is_exact {
        write!(out, " (a lower one only: caps and trunks make too large a program)")?;
    }
    writeln!(out)?;
    if plan.predicted_seconds > 0.0 && plan.predicted_seconds.is_finite() {
        writeln!(
            out,
            "share      {:.1} % of the bound",
            plan.bound_seconds / plan.predicted_seconds * 100.0
        )?;
    }
    if let Some((silent, rate)) = input.assumed {
        let all = problem.senders.len() + problem.receivers.len();
        let who = if silent == all {
            "every node".to_owned()
        } else {
            format!("{silent} of {all} nodes")
        };
        writeln!(
            out,
            "speeds     {who} assumed to have {rate} (--assume-rate; or declare up= and down= in the rows)"
        )?;
    }
    let senders = problem
        .senders
        .iter()
        .zip(&loads.senders)
        .map(|(s, load)| (s.name.as_str(), s.up, *load));
    write_loads(&mut out, "sender", &senders.collect::<Vec<_>>())?;
    let receivers = problem
        .receivers
        .iter()
        .zip(&loads.receivers)
        .map(|(r, load)| (r.name.as_str(), r.down, *load));
    write_loads(&mut out, "receiver", &receivers.collect::<Vec<_>>())?;
    writeln!(out, "\nbytes")?;
    let range = |run: &PlannedTransfer| format!("{}-{}", run.start, run.end.saturating_sub(1));
    let width = plan
        .transfers
        .iter()
        .take(RUNS_MAX)
        .map(|run| range(run).len())
        .max()
        .unwrap_or(0);
    for run in plan.transfers.iter().take(RUNS_MAX) {
        let bytes = Bytes(run.end.saturating_sub(run.start));
        writeln!(
            out,
            "  {:width$}  {bytes:>9}  {} -> {}",
            range(run),
            run.writer,
            run.reader
        )?;
    }
    if plan.transfers.len() > RUNS_MAX {
        writeln!(
            out,
            "  and {} more runs (--json prints all)",
            plan.transfers.len() - RUNS_MAX
        )?;
    }
    Ok(out)
}

fn write_loads(out: &mut String, side: &str, nodes: &[(&str, u64, u128)]) -> std::fmt::Result {
    let width = nodes
        .iter()
        .take(NODES_MAX)
        .map(|node| node.0.chars().count())
        .max()
        .unwrap_or(0)
        .max(side.len());
    writeln!(
        out,
        "\n{side:width$}  {:>10}  {:>12}  {:>10}",
        "bytes", "speed", "busy"
    )?;
    for (name, speed, load) in nodes.iter().take(NODES_MAX) {
        let busy = if *load == 0 {
            0.0
        } else {
            *load as f64 / *speed as f64
        };
        writeln!(
            out,
            "{name:width$}  {:>10}  {:>12}  {:>10}",
            Bytes(u64::try_from(*load).unwrap_or(u64::MAX)),
            ByteRate(*speed),
            format_seconds(busy)
        )?;
    }
    if nodes.len() > NODES_MAX {
        writeln!(out, "and {} more {side}s", nodes.len() - NODES_MAX)?;
    }
    Ok(())
}
