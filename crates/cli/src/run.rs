//! Carries out a request: events to the screen, signals to the master, the report at the end.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ropewalk_master::Agents;
use ropewalk_master::{Cancel, Members};
use ropewalk_proto::codes::EXIT_INTERRUPTED;
use ropewalk_proto::report::{ErrorKind, FORMAT_VERSION};
use ropewalk_proto::report::{Event, Outcome, Report};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::desk::Desk;
use crate::options::OutputArgs;
use crate::progress::Progress;
use crate::wildcards::{Asked, Expand};
use crate::{Usage, job, report};

/// The runtime that drives control connections; data has threads of its own in the agents.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.context("cannot start threads; raise the limit of processes (ulimit -u)")
}

/// Carries something out and shows its events until it has ended. The first signal cancels it, the second ends the process.
pub(crate) async fn until_ended<E, R>(
    running: impl Future<Output = R>,
    mut events: mpsc::UnboundedReceiver<E>,
    cancel: &Cancel,
    mut show: impl FnMut(&E),
) -> Result<R> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::pin!(running);
    let mut signals = 0;
    loop {
        tokio::select! {
            report = &mut running => {
                while let Ok(event) = events.try_recv() {
                    show(&event);
                }
                return Ok(report);
            }
            Some(event) = events.recv() => show(&event),
            _ = interrupt.recv() => signals += 1,
            _ = terminate.recv() => signals += 1,
        }
        if signals > 0 {
            cancel.cancel();
        }
        if signals > 1 {
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    }
}

/// Runs a transfer and prints what is asked for.
///
/// # Errors
/// Only what keeps the transfer from being tried; how it went is in the exit status.
pub(crate) fn run(asked: Asked, output: &OutputArgs) -> Result<ExitCode> {
    // `serve` reads what its job prints.
    let has_master = job::as_job()?.is_some();
    let output = &OutputArgs {
        json: output.json || has_master,
        ..output.clone()
    };
    let runtime = runtime()?;
    let mut printer = Printer::default();
    let (report, shown) = runtime.block_on(carry_out(asked, output, &mut printer))?;
    // Whatever a broken disk or name server still holds must not hold the command.
    runtime.shutdown_background();
    let status = match report.outcome.exit_status() {
        EXIT_INTERRUPTED => job::interrupted(),
        status => status,
    };
    match output.json {
        true => printer.print(&Event::Ended {
            report: Box::new(report),
        }),
        false => report::print(&report, output, &shown),
    }
    match printer.failure {
        Some(error) if status == 0 => Err(anyhow::Error::new(error)
            .context("the transfer is done, but its events cannot be written to standard output")),
        _ => Ok(ExitCode::from(status)),
    }
}

/// Events as JSON, or what a dry run lists, on standard output.
#[derive(Debug, Default)]
pub(crate) struct Printer {
    // The first error, save a reader that has gone. It does not stop the transfer.
    failure: Option<std::io::Error>,
}

/// An event as one line of JSON, with the version of the format.
fn line_of<E: Serialize>(event: &E) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Line<'a, E> {
        version: u32,
        #[serde(flatten)]
        event: &'a E,
    }
    let version = FORMAT_VERSION;
    serde_json::to_string(&Line { version, event })
}

/// Prints an event as one line of JSON. A reader that has gone stops nothing.
pub(crate) fn print_event<E: Serialize>(event: &E) -> std::io::Result<()> {
    print_line(&line_of(event).map_err(std::io::Error::other)?)
}

fn print_line(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

impl Printer {
    pub(crate) fn print(&mut self, event: &Event) {
        if let Ok(line) = line_of(event) {
            self.print_line(&line);
        }
    }

    fn print_line(&mut self, line: &str) {
        if let Err(error) = print_line(line) {
            self.failure.get_or_insert(error);
        }
    }
}

/// Runs a transfer and returns its report, and the notes that stand on the screen; shows progress as `output` says.
pub(crate) async fn carry_out(
    asked: Asked<'_>,
    output: &OutputArgs,
    printer: &mut Printer,
) -> Result<(Report, Vec<String>)> {
    let (cancel, members) = (Cancel::new(), Members::new());
    let (events, mut incoming) = mpsc::unbounded_channel();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut progress = Progress::new(output);
    let mut signals = 0;
    let (agents, request) = match asked {
        Asked::Transfer(request) => (Agents::default(), *request),
        Asked::Expand(expand) => {
            let Expand {
                nodes,
                options,
                then,
            } = *expand;
            let asking = Shown {
                output,
                is_one_copy: true,
            };
            let expanding = ropewalk_master::expand(&nodes, &options, &events, &cancel);
            tokio::pin!(expanding);
            let expanded = loop {
                tokio::select! {
                    expanded = &mut expanding => break expanded,
                    Some(event) = incoming.recv() => handle(&event, &asking, printer, &mut progress, None),
                    _ = interrupt.recv() => stop(&mut signals, &mut progress, &cancel),
                    _ = terminate.recv() => stop(&mut signals, &mut progress, &cancel),
                }
            };
            match expanded {
                Ok((agents, expansions)) => match then(&expansions) {
                    Ok(request) => (agents, request),
                    Err(error) => {
                        agents.leave().await;
                        return Err(Usage(error).into());
                    }
                },
                Err(report) => return Ok((*report, progress.finish())),
            }
        }
    };
    let shown = Shown {
        output,
        is_one_copy: request
            .nodes
            .iter()
            .filter(|node| !node.sinks.is_empty())
            .count()
            < 2,
    };
    let mut request = request;
    if let Some(job) = job::as_job()? {
        let own = request.options.limit;
        request.options.limit = job.limit(own);
        job.listen(own, cancel.clone(), members.clone());
    }
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
    let running = ropewalk_master::run_with(agents, request, events, cancel.clone(), members);
    tokio::pin!(running);
    let report = loop {
        let signalled = tokio::select! {
            report = &mut running => break report,
            Some(event) = incoming.recv() => {
                handle(&event, &shown, printer, &mut progress, desk.as_ref());
                false
            }
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
        };
        if signalled {
            if signals > 0 {
                drop(desk);
                std::process::exit(job::interrupted().into());
            }
            stop(&mut signals, &mut progress, &cancel);
        }
    };
    while let Ok(event) = incoming.try_recv() {
        handle(&event, &shown, printer, &mut progress, desk.as_ref());
    }
    Ok((report, progress.finish()))
}

/// Ends in order at the first signal and at once at the second: agents started by this process end with their standard
/// input.
fn stop(signals: &mut u32, progress: &mut Progress, cancel: &Cancel) {
    *signals += 1;
    job::stop();
    if *signals > 1 {
        std::process::exit(job::interrupted().into());
    }
    progress.note("stopping; press Ctrl-C again to quit at once");
    cancel.cancel();
}

/// How events are shown.
struct Shown<'a> {
    output: &'a OutputArgs,
    /// Nodes need no name where there is one destination.
    is_one_copy: bool,
}

fn handle(
    event: &Event,
    shown: &Shown<'_>,
    printer: &mut Printer,
    progress: &mut Progress,
    desk: Option<&Desk>,
) {
    // A program that reads of a transfer in the output may ask for it at once.
    if let Some(desk) = desk {
        desk.handle(event);
    }
    if shown.output.json {
        printer.print(event);
    } else if !shown.output.quiet
        && let Some(line) = report::listed_line(event, shown.is_one_copy)
    {
        printer.print_line(&line);
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
