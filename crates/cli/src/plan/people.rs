//! A plan as people read it: times, every scheduler, what each node does, the runs.

use std::fmt::Write as _;

use anyhow::Result;
use ropewalk_model::{ByteRate, PlannedTransfer, format_bytes, format_seconds};

use super::advice::{advice_text, what_if_text};
use super::{Input, Planned, Printed, compare};
use crate::escape;
use crate::numbers::count;
use crate::report::listed;

/// Runs shown to people; `--json` prints all.
const RUNS_MAX: usize = 24;

/// Nodes shown for each side.
const NODES_MAX: usize = 32;

/// The whole text, ending in a newline. Loads and runs are those of `after`, when there is one.
pub(super) fn text(
    input: &Input,
    before: &Planned,
    after: Option<&Planned>,
    printed: &Printed,
) -> Result<String> {
    let (plan, problem) = (&printed.plan, &before.problem);
    let mut out = String::new();
    let bytes: u128 = problem.wanted_bytes();
    write!(
        out,
        "plan       {} from {} to {} by {}",
        format_bytes(u64::try_from(bytes).unwrap_or(u64::MAX)),
        count(problem.senders.len() as u64, "sender"),
        count(problem.receivers.len() as u64, "receiver"),
        plan.scheduler
    )?;
    match &input.label {
        Some(label) => writeln!(out, " ({})", escape::line(label))?,
        None => writeln!(out)?,
    }
    writeln!(out, "predicted  {}", format_seconds(plan.predicted_seconds))?;
    write!(out, "bound      {}", format_seconds(plan.bound_seconds))?;
    if !plan.binding.is_empty() {
        write!(out, ", set by {}", listed(&plan.binding))?;
    }
    if !plan.bound_is_exact {
        write!(
            out,
            " (a lower one only: caps and trunks make too large a program)"
        )?;
    }
    writeln!(out)?;
    if plan.predicted_seconds > 0.0 && plan.predicted_seconds.is_finite() {
        writeln!(
            out,
            "share      {:.1} % of the bound",
            plan.bound_seconds / plan.predicted_seconds * 100.0
        )?;
    }
    if let Some(relay) = &printed.relay {
        writeln!(out, "relay      {}", relay.text(plan.predicted_seconds))?;
    }
    if let Some(remembered) = &input.remembered {
        let remembered = remembered.strip_prefix("speeds ").unwrap_or(remembered);
        writeln!(
            out,
            "speeds     {remembered} (--speeds off plans without; up= and down= in the rows declare them)"
        )?;
    }
    let ignores = super::ignores_links(&plan.scheduler, problem);
    for note in input.note.iter().chain(&ignores) {
        writeln!(out, "note       {note}")?;
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
    if let (Some(advice), None) = (&printed.advice, after) {
        writeln!(
            out,
            "next       {}",
            advice_text(advice, plan.bound_seconds)
        )?;
    }
    let chosen = &plan.scheduler;
    let table = compare::table(&printed.schedulers, chosen, plan.bound_seconds);
    write!(out, "\n{table}")?;
    if let Some(what_if) = &printed.what_if {
        write!(out, "\n{}", what_if_text(&before.times(), what_if))?;
        writeln!(out, "\nafter the changes:")?;
    }
    let transfers = match &printed.what_if {
        Some(what_if) => &what_if.transfers,
        None => &plan.transfers,
    };
    write_plan(&mut out, after.unwrap_or(before), transfers)?;
    Ok(out)
}

/// What each node does, and the runs.
fn write_plan(
    out: &mut String,
    planned: &Planned,
    transfers: &[PlannedTransfer],
) -> std::fmt::Result {
    let problem = &planned.problem;
    let loads = planned.schedule.loads(problem);
    let senders = problem
        .senders
        .iter()
        .zip(&loads.senders)
        .map(|(s, load)| (s.name.as_str(), s.up, *load));
    write_loads(out, "sender", &senders.collect::<Vec<_>>())?;
    let receivers = problem
        .receivers
        .iter()
        .zip(&loads.receivers)
        .map(|(r, load)| (r.name.as_str(), r.down, *load));
    write_loads(out, "receiver", &receivers.collect::<Vec<_>>())?;
    writeln!(out, "\nbytes")?;
    let range = |run: &PlannedTransfer| format!("{}-{}", run.start, run.end.saturating_sub(1));
    let width = transfers
        .iter()
        .take(RUNS_MAX)
        .map(|run| range(run).len())
        .max()
        .unwrap_or(0);
    for run in transfers.iter().take(RUNS_MAX) {
        let bytes = format_bytes(run.end.saturating_sub(run.start));
        writeln!(
            out,
            "  {:width$}  {bytes:>9}  {} -> {}",
            range(run),
            run.writer,
            run.reader
        )?;
    }
    if transfers.len() > RUNS_MAX {
        writeln!(
            out,
            "  and {} more runs (--json prints all)",
            transfers.len() - RUNS_MAX
        )?;
    }
    Ok(())
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
            format_bytes(u64::try_from(*load).unwrap_or(u64::MAX)),
            ByteRate(*speed),
            format_seconds(busy)
        )?;
    }
    if nodes.len() > NODES_MAX {
        writeln!(out, "and {} more {side}s", nodes.len() - NODES_MAX)?;
    }
    Ok(())
}
