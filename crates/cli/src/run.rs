//! Carries out a request: events to the screen, signals to the master, the report at the end.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ropewalk::report::{ErrorKind, FORMAT_VERSION};
use ropewalk::{Cancel, Event, Members, Outcome, Report, Request, master};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::desk::Desk;
use crate::options::OutputArgs;
use crate::progress::Progress;
use crate::report;

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
    let mut printer = Printer::default();
    let (report, shown) = runtime.block_on(carry_out(request, output, &mut printer))?;
    // Whatever a broken disk or name server still holds must not hold the command.
    runtime.shutdown_background();
    let status = report.outcome.exit_status();
    if !output.json {
        report::print(&report, output, &shown);
        return Ok(ExitCode::from(status));
    }
    printer.print(&Event::Ended {
        report: Box::new(report),
    });
    match printer.failure {
        Some(error) if status == 0 => Err(anyhow::Error::new(error)
            .context("the transfer is done, but its events cannot be written to standard output")),
        _ => Ok(ExitCode::from(status)),
    }
}

/// Events as JSON on standard output.
#[derive(Debug, Default)]
pub(crate) struct Printer {
    // The first error, save a reader that has gone. It does not stop the transfer.
    failure: Option<std::io::Error>,
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl Printer {
    fn print(&mut self, event: &Event) {
        let line = Line {
            version: FORMAT_VERSION,
            event,
        };
        let Ok(line) = serde_json::to_string(&line) else {
            return;
        };
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                self.failure.get_or_insert(error);
            }
            _ => {}
        }
    }
}

/// Runs a transfer and returns its report, and the notes that stand on the screen; shows progress as `output` says.
pub(crate) async fn carry_out(
    request: Request,
    output: &OutputArgs,
    printer: &mut Printer,
) -> Result<(Report, Vec<String>)> {
    let (cancel, members) = (Cancel::new(), Members::new());
    let (events, mut incoming) = mpsc::unbounded_channel();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut progress = Progress::new(output);
    let desk = Desk::open(&request, cancel.clone(), members.clone());
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
                handle(&event, output, printer, &mut progress, desk.as_ref());
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
        handle(&event, output, printer, &mut progress, desk.as_ref());
    }
    Ok((report, progress.finish()))
}

fn handle(
    event: &Event,
    output: &OutputArgs,
    printer: &mut Printer,
    progress: &mut Progress,
    desk: Option<&Desk>,
) {
    // Whoever reads of a transfer in the output may ask for it at once.
    if let Some(desk) = desk {
        desk.handle(event);
    }
    if output.json {
        printer.print(event);
    }
    progress.handle(event);
}

/// The last event of a transfer that never became a request.
pub(crate) fn print_refusal(kind: ErrorKind, error: &str) {
    let report = Report {
        error: Some(error.to_owned()),
        error_kind: Some(kind),
        ..Report::ended(Outcome::Refused)
    };
    Printer::default().print(&Event::Ended {
        report: Box::new(report),
    });
}
