//! Carries out a request: events to the screen, signals to the master, the report at the end.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_agent::open_calls;
use ropewalk_master::request::{Reach, Request};
use ropewalk_master::{Agents, Cancel, Members};
use ropewalk_proto::codes::EXIT_INTERRUPTED;
use ropewalk_proto::report::{Event, Report};
use tokio::sync::mpsc;

use crate::desk::Desk;
use crate::options::OutputArgs;
use crate::runtime::runtime;
use crate::screen::{LAST_WORDS, Screen, Show, Signals};
use crate::wildcards::{Asked, Expand};
use crate::{Usage, job};

mod show;

/// Calls to disks return within this time after the end, of disks that answer.
const RETURN_TIME_MAX: Duration = Duration::from_millis(500);

// After a signal the screen does not wait longer than that for what is shown last.
const _: () = assert!(2 * RETURN_TIME_MAX.as_millis() <= LAST_WORDS.as_millis());

/// Time between two looks whether they have.
const RETURN_LOOK: Duration = Duration::from_millis(5);

/// Calls that are named.
const CALLS_MAX: usize = 4;

pub(crate) use self::show::{Shown, Transfer, keeping};

/// Carries something out, shows its events until it has ended, and then its end. The first signal cancels it, the second ends the
/// process.
///
/// * `notice`: sees each event, whether it can be shown or not.
/// * `last`: shows the end, and gives the exit status.
pub(crate) async fn until_ended<S: Show, R: Send + 'static>(
    running: impl Future<Output = R>,
    mut events: mpsc::UnboundedReceiver<S::Event>,
    cancel: &Cancel,
    mut notice: impl FnMut(&S::Event),
    show: S,
    last: impl FnOnce(S, R) -> Result<ExitCode> + Send + 'static,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let screen = Screen::start(show)?;
    tokio::pin!(running);
    let result = loop {
        tokio::select! {
            result = &mut running => break result,
            Some(event) = events.recv() => {
                notice(&event);
                screen.put(event);
            }
            count = signals.next() => {
                if count > 1 {
                    drop(notice);
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
                cancel.cancel();
            }
        }
    };
    drop(notice);
    while let Ok(event) = events.try_recv() {
        screen.put(event);
    }
    let ended = screen.end(&mut signals, |show| last(show, result)).await?;
    ended.unwrap_or(Ok(ExitCode::from(EXIT_INTERRUPTED)))
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
    let last = |show: Transfer, report: Report| {
        let ended = Transfer::end(show, report);
        name_open_calls();
        ended
    };
    let ended = runtime.block_on(carry_out(asked, output, last))?;
    // Whatever a broken disk or name server still holds must not hold the command.
    runtime.shutdown_background();
    ended.unwrap_or_else(|| Ok(ExitCode::from(job::interrupted())))
}

/// Says which calls to disks have not returned, where agents of this process have some: the process does not end before, where the system
/// cannot interrupt them.
fn name_open_calls() {
    let until = Instant::now() + RETURN_TIME_MAX;
    while !open_calls(1).is_empty() && Instant::now() < until {
        std::thread::sleep(RETURN_LOOK);
    }
    let calls = open_calls(CALLS_MAX);
    if !calls.is_empty() {
        let pid = std::process::id();
        let mut error = std::io::stderr().lock();
        let _ = writeln!(
            error,
            "ropewalk: {} have not returned yet: the disk, or the server of its file system, is slow or does not answer; this process, {pid}, ends when \
             it does, if the system does not end it before",
            calls.join(", ")
        );
    }
}

/// The loop around a transfer: what it says, and signals.
struct Loop {
    screen: Screen<Transfer>,
    signals: Signals,
    cancel: Cancel,
    desk: Option<Desk>,
}

impl Loop {
    /// Carries something out to its end, and takes in all events of it. While nothing reads a list, it is not driven on, unless a signal ends it.
    async fn until_ended<R>(
        &mut self,
        running: impl Future<Output = R>,
        incoming: &mut mpsc::UnboundedReceiver<Event>,
    ) -> R {
        tokio::pin!(running);
        let mut result = None;
        loop {
            let is_held = self.screen.is_full() && !self.signals.were_any();
            if !is_held && let Some(ended) = result.take() {
                match incoming.try_recv() {
                    Ok(event) => self.handle(event),
                    Err(_) => return ended,
                }
                result = Some(ended);
                continue;
            }
            tokio::select! {
                ended = &mut running, if !is_held && result.is_none() => result = Some(ended),
                Some(event) = incoming.recv(), if !is_held => self.handle(event),
                () = self.screen.space(), if is_held => {}
                count = self.signals.next() => self.stop(count),
            }
        }
    }

    fn handle(&self, event: Event) {
        // A program that reads of a transfer in the output may ask for it at once.
        if let Some(desk) = &self.desk {
            desk.handle(&event);
        }
        self.screen.put(Shown::Event(event));
    }

    /// Ends in order at the first signal and at once at the second: agents that are processes end with their standard input, those within this one with it.
    fn stop(&mut self, count: u32) {
        job::stop();
        if count > 1 {
            drop(self.desk.take());
            std::process::exit(job::interrupted().into());
        }
        let note = "stopping; press Ctrl-C again to quit at once";
        self.screen.put(Shown::Note(note.to_owned()));
        job::end(&self.cancel);
    }

    /// Shows the rest, and the end.
    async fn end<T: Send + 'static>(
        self,
        last: impl FnOnce(Transfer) -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let Self {
            screen,
            mut signals,
            desk,
            ..
        } = self;
        drop(desk);
        screen.end(&mut signals, last).await
    }
}

/// Runs a transfer and shows it as `output` says. Gives what `last` makes of its report; `None` after a signal, where that is not read.
///
/// * `last`: shows the end.
pub(crate) async fn carry_out<T: Send + 'static>(
    asked: Asked<'_>,
    output: &OutputArgs,
    last: impl FnOnce(Transfer, Report) -> T + Send + 'static,
) -> Result<Option<T>> {
    let (cancel, members) = (Cancel::new(), Members::new());
    let (events, mut incoming) = mpsc::unbounded_channel();
    let mut own = Loop {
        signals: Signals::listen()?,
        screen: Screen::start(Transfer::new(output))?,
        cancel: cancel.clone(),
        desk: None,
    };
    let (agents, mut request) = match asked {
        Asked::Transfer(request) => (Agents::default(), *request),
        Asked::Expand(expand) => {
            let Expand {
                nodes,
                options,
                then,
            } = *expand;
            let expanding = ropewalk_master::expand(&nodes, &options, &events, &cancel);
            match own.until_ended(expanding, &mut incoming).await {
                Ok((agents, expansions)) => match then(&expansions) {
                    Ok(request) => (agents, request),
                    Err(error) => {
                        agents.leave().await;
                        // Where its output is stuck, the error would be, too, and no signal ends that.
                        return match own.end(Transfer::leave).await? {
                            Some(()) => Err(Usage(error).into()),
                            None => Ok(None),
                        };
                    }
                },
                Err(report) => return own.end(|show| last(show, *report)).await,
            }
        }
    };
    if request.nodes.iter().all(|node| node.reach == Reach::Local) {
        own.signals.listen_for_hangup()?;
    }
    if has_several_copies(&request) {
        own.screen.put(Shown::SeveralCopies);
    }
    if let Some(job) = job::as_job()? {
        let limit = request.options.limit;
        request.options.limit = job.limit(limit);
        job.listen(limit, cancel.clone(), members.clone());
    }
    match Desk::open(&request, cancel.clone(), members.clone()) {
        Ok(desk) => own.desk = Some(desk),
        Err(error) => own.screen.put(Shown::Note(format!(
            "`ropewalk status` will not see this transfer: {error:#}"
        ))),
    }
    let running = ropewalk_master::run_with(agents, request, events, cancel, members);
    let report = own.until_ended(running, &mut incoming).await;
    own.end(|show| last(show, report)).await
}

/// Nodes need a name where there are several destinations.
fn has_several_copies(request: &Request) -> bool {
    let receivers = request.nodes.iter();
    receivers.filter(|node| !node.sinks.is_empty()).count() > 1
}
