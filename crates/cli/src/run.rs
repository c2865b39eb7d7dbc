//! Carries out a request: events to the screen, signals to the master, the report at the end.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ropewalk::report::ControlReport;
use ropewalk::{Cancel, Event, Members, Outcome, Report, Request, master};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::desk::Desk;
use crate::options::OutputArgs;
use crate::progress::Progress;
use crate::summary;

/// Exit status of a second Ctrl-C, as of the first.
const INTERRUPTED: i32 = 130;

/// The runtime that drives control connections; data has threads of its own in the agents.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.context("cannot start threads; raise the limit of processes (ulimit -u)")
}

/// Runs a transfer and prints what is asked for.
///
/// # Errors
/// Only what keeps the transfer from being tried; how it went is in the exit status.
pub(crate) fn run(request: Request, output: &OutputArgs) -> Result<ExitCode> {
    let runtime = runtime()?;
    let report = runtime.block_on(carry_out(request, output))?;
    // Whatever a broken disk or name server still holds must not hold the command.
    runtime.shutdown_background();
    if output.json {
        print_json(&Event::Ended {
            report: Box::new(report.clone()),
        });
    } else {
        print_report(&report, output.quiet);
    }
    Ok(ExitCode::from(report.outcome.exit_status()))
}

/// Runs a transfer and returns its report; shows progress as `output` says.
pub(crate) async fn carry_out(request: Request, output: &OutputArgs) -> Result<Report> {
    let (cancel, members) = (Cancel::new(), Members::new());
    let (events, mut incoming) = mpsc::unbounded_channel();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut progress = Progress::new(output);
    let desk = Desk::open(request.label.clone(), cancel.clone(), members.clone());
    let desk = match desk {
        Ok(desk) => Some(desk),
        Err(error) => {
            progress.note(&format!(
                "`ropewalk status` will not see this transfer: {error:#}"
            ));
            None
        }
    };
    let running = master::run(request, events, cancel.clone(), members);
    tokio::pin!(running);
    let mut signals = 0;
    let report = loop {
        let signalled = tokio::select! {
            report = &mut running => break report,
            Some(event) = incoming.recv() => {
                handle(&event, output, &mut progress, desk.as_ref());
                false
            }
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
        };
        if signalled {
            signals += 1;
            if signals > 1 {
                // Agents started by this process end with their standard input.
                drop(desk);
                std::process::exit(INTERRUPTED);
            }
            progress.note("stopping; once more to leave at once");
            cancel.cancel();
        }
    };
    while let Ok(event) = incoming.try_recv() {
        handle(&event, output, &mut progress, desk.as_ref());
    }
    progress.finish();
    Ok(report)
}

fn handle(event: &Event, output: &OutputArgs, progress: &mut Progress, desk: Option<&Desk>) {
    // Whoever reads of a transfer in the output may ask for it at once.
    if let Some(desk) = desk {
        desk.handle(event);
    }
    if output.json {
        print_json(event);
    }
    progress.handle(event);
}

/// One line; a reader that has gone does not stop the transfer.
fn print_json(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

/// The last event of a transfer that never became a request.
pub(crate) fn print_refusal(error: &str) {
    let report = Report {
        transfer: String::new(),
        label: None,
        outcome: Outcome::Refused,
        error: Some(error.to_owned()),
        wanted_bytes: 0,
        delivered_bytes: 0,
        files: 0,
        seconds: 0.0,
        start_seconds: 0.0,
        finish_seconds: 0.0,
        bits_per_second: 0.0,
        moving_bits_per_second: 0.0,
        scheduler: String::new(),
        predicted_seconds: None,
        bound: None,
        verify: String::new(),
        encrypted: true,
        roots: BTreeMap::new(),
        nodes: Vec::new(),
        pairs: Vec::new(),
        missing: BTreeMap::new(),
        duplicate_bytes: 0,
        replans: 0,
        streams: None,
        corrupt_units: 0,
        longest_stall_seconds: 0.0,
        control: ControlReport::default(),
        notes: Vec::new(),
    };
    print_json(&Event::Ended {
        report: Box::new(report),
    });
}

/// The report on standard output, the error on standard error.
pub(crate) fn print_report(report: &Report, quiet: bool) {
    if !quiet && report.outcome != Outcome::Refused {
        let _ = std::io::stdout()
            .lock()
            .write_all(summary::text(report).as_bytes());
    }
    if let Some(error) = report
        .error
        .as_ref()
        .filter(|_| report.outcome != Outcome::Done)
    {
        let word = match report.outcome {
            Outcome::Refused => "refused",
            Outcome::Cancelled => "cancelled",
            Outcome::Done | Outcome::Partial | Outcome::Failed => "error",
        };
        eprintln!("ropewalk: {word}: {error}");
    }
}
