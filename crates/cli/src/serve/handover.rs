//! `transfer` with a `master` row: hands over to the `serve` that answers there, and shows how its job gets on.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use ropewalk_master::{Standing, StandingError, job_key};
use ropewalk_model::{HostPort, format_seconds};
use ropewalk_proto::codes::EXIT_INTERRUPTED;
use ropewalk_proto::control::{
    ServeCancel, ServeFollow, ServeList, ServeOption, ServeState, ServeSubmit, from_serve, to_serve,
};
use ropewalk_proto::handover::{self, KEY_LEN, SPECIFICATION_MAX, Takes};
use ropewalk_proto::queue::{End, State};
use ropewalk_proto::report::{Event, Outcome, Report};
use tokio::signal::unix::{SignalKind, signal};

use super::door::Entry;
use crate::options::OutputArgs;
use crate::progress::Progress;
use crate::run::{Printer, runtime};
use crate::sys::{self, say};
use crate::transfer::TransferArgs;
use crate::{Unusable, escape, report};

/// How long a `serve` is waited for that was there and is away: time for a reboot, as for hosts of a transfer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two attempts to reach it again.
const PAUSE: Duration = Duration::from_millis(500);

/// A `serve` with a port, and the token to it.
#[derive(Clone)]
pub(super) struct Master {
    pub at: HostPort,
    pub token: [u8; 32],
}

impl Master {
    async fn ask(&self, question: to_serve::Body) -> Result<Standing, StandingError> {
        Standing::ask(&self.at.host, self.at.port, &self.token, question).await
    }

    /// Asks what has one answer.
    async fn answer(&self, question: to_serve::Body) -> Result<from_serve::Body, StandingError> {
        self.ask(question).await?.answer().await
    }

    fn error(&self, error: &StandingError) -> anyhow::Error {
        match error {
            StandingError::Refused(error) => anyhow::anyhow!("{}: {error}", self.at),
            error => anyhow::anyhow!("no `ropewalk serve` answers at {}: {error}", self.at),
        }
    }

    /// Its jobs that were handed over, and the limit of all together.
    pub fn list(&self) -> Result<(Option<u64>, Vec<Entry>)> {
        let asked = runtime()?.block_on(self.answer(to_serve::Body::List(ServeList {})));
        match asked.map_err(|error| self.error(&error))? {
            from_serve::Body::Jobs(jobs) => {
                let limit = Some(jobs.limit).filter(|limit| *limit > 0);
                let jobs = jobs.jobs.iter().map(|job| entry(job));
                Ok((limit, jobs.collect::<Result<_>>()?))
            }
            _ => bail!("{}: it gave another answer", self.at),
        }
    }

    /// Takes a job out of the queue, or stops it; gives why not.
    pub fn cancel(&self, job: u64) -> Result<Result<(), String>> {
        let question = to_serve::Body::Cancel(ServeCancel { job });
        match runtime()?.block_on(self.answer(question)) {
            Ok(_) => Ok(Ok(())),
            Err(StandingError::Refused(error)) => Ok(Err(error)),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Waits until a job has ended.
    pub fn wait(&self, job: u64) -> Result<Entry> {
        let mut handle = |_: &Entry, _: Option<Event>| {};
        let mut note = |_: &str| {};
        runtime()?.block_on(follow(self, job, None, &mut handle, &mut note))
    }
}

fn entry(json: &str) -> Result<Entry> {
    serde_json::from_str(json)
        .context("`ropewalk serve` says what this version does not understand")
}

/// Hands a specification over to the `serve` at its `master` row; `None` where nothing listens there.
///
/// * `given`: the command line, of which the options of [`handover::OPTIONS`] go with it.
///
/// # Errors
/// When something listens there that does not take it: nothing has moved.
pub(crate) fn hand_over(
    args: &TransferArgs,
    given: Option<&ArgMatches>,
    text: &str,
    at: &HostPort,
    token: &[u8; 32],
) -> Result<Option<ExitCode>> {
    let master = Master {
        at: at.clone(),
        token: *token,
    };
    let key = job_key();
    let submission = ServeSubmit {
        key: key.to_vec(),
        specification: text.to_owned(),
        options: given
            .map(options)
            .transpose()
            .map_err(Unusable)?
            .unwrap_or_default(),
        priority: args.detach.priority,
    };
    let runtime = runtime()?;
    let job = match runtime.block_on(submit(&master, submission)) {
        Ok(job) => job,
        Err(Failed::Absent(reason)) => {
            if args.output.report {
                let reason = escape::line(&reason);
                eprintln!(
                    "note: no `ropewalk serve` at {at} ({reason}): this command is the master"
                );
            }
            return Ok(None);
        }
        Err(Failed::Refused(error)) => return Err(Unusable(error).into()),
    };
    let output = &args.output;
    if args.detach.detach {
        match output.json {
            true => say(format_args!("{{\"job\":{job},\"at\":\"{at}\"}}")),
            false => say(format_args!("job {job} at {at}")),
        }
        return Ok(Some(ExitCode::SUCCESS));
    }
    let status = runtime.block_on(show(&master, job, key, output))?;
    runtime.shutdown_background();
    Ok(Some(status))
}

/// The options of the command line that go with a specification.
fn options(given: &ArgMatches) -> Result<Vec<ServeOption>> {
    let mut options = Vec::new();
    for (name, takes) in handover::OPTIONS {
        let id = name.replace('-', "_");
        if given.value_source(&id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let mut put = |value: &str| {
            options.push(ServeOption {
                name: name.to_owned(),
                value: value.to_owned(),
            });
        };
        if takes == Takes::Nothing {
            put("");
            continue;
        }
        for value in given.get_raw(&id).into_iter().flatten() {
            let value = value.to_str();
            put(value.with_context(|| format!("the value of --{name} is no text"))?);
        }
    }
    // What the other side would refuse is refused here.
    handover::words(&options)?;
    Ok(options)
}

enum Failed {
    /// Nothing listens there.
    Absent(String),
    /// What listens there does not take it.
    Refused(anyhow::Error),
}

/// Hands over, and gives the number of the job. Once a master has the question, only an answer of its own says that it has no such job:
/// it is asked again, with the same key.
async fn submit(master: &Master, submission: ServeSubmit) -> Result<u64, Failed> {
    let at = &master.at;
    let refused = |error: &StandingError| {
        let (error, advice) = (
            master.error(error),
            match error {
                StandingError::Refused(_) => "",
                _ => "; compare the token of --token-file with that of `ropewalk serve`",
            },
        );
        Failed::Refused(anyhow::anyhow!(
            "{error}{advice}. Nothing was moved; without the `master` row this command carries the transfer out itself"
        ))
    };
    let len = submission.specification.len();
    if len > SPECIFICATION_MAX {
        let error = handover::HandoverError::Specification(len).to_string();
        return Err(refused(&StandingError::Refused(error)));
    }
    let mut since: Option<Instant> = None;
    loop {
        let question = to_serve::Body::Submit(submission.clone());
        let error = match master.ask(question).await {
            Ok(mut asked) => match asked.answer().await {
                Ok(from_serve::Body::Taken(taken)) => return Ok(taken.job),
                Ok(_) => {
                    return Err(refused(&StandingError::Refused(
                        "it gave another answer".into(),
                    )));
                }
                Err(error @ StandingError::Refused(_)) => return Err(refused(&error)),
                // It may have the job.
                Err(error) => error,
            },
            Err(StandingError::Absent(reason)) if since.is_none() => {
                return Err(Failed::Absent(reason));
            }
            Err(error) if since.is_none() => return Err(refused(&error)),
            Err(error) => error,
        };
        if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(Failed::Refused(anyhow::anyhow!(
                "`ropewalk serve` at {at} ended while it was handed the specification, and is not there again: {error}. It may have the \
                 job; `ropewalk queue --at {at}` shows it"
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Shows a job until it has ended, and gives its exit status.
async fn show(
    master: &Master,
    job: u64,
    key: [u8; KEY_LEN],
    output: &OutputArgs,
) -> Result<ExitCode> {
    let at = &master.at;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut printer = Printer::default();
    if output.json {
        printer.print(&Event::HandedOver {
            job,
            at: at.to_string(),
        });
    } else if !output.quiet {
        eprintln!(
            "ropewalk: job {job} of `ropewalk serve` at {at}; Ctrl-C ends this command, not the job"
        );
    }
    let progress = std::cell::RefCell::new(Progress::new(output));
    let mut last: Option<Event> = None;
    let mut failures = 0;
    let mut handle = |entry: &Entry, event: Option<Event>| {
        let mut progress = progress.borrow_mut();
        if entry.job.failures > failures {
            progress.note(&failure(entry));
        }
        failures = entry.job.failures;
        match event {
            Some(event @ Event::Ended { .. }) => last = Some(event),
            Some(event) => {
                if output.json {
                    printer.print(&event);
                }
                progress.handle(&event);
            }
            None => {}
        }
    };
    let mut note = |text: &str| progress.borrow_mut().note(text);
    let following = follow(master, job, Some(key), &mut handle, &mut note);
    let entry = tokio::select! {
        entry = following => entry,
        _ = interrupt.recv() => return Ok(left(at, job, output)),
        _ = terminate.recv() => return Ok(left(at, job, output)),
    };
    let shown = progress.into_inner().finish();
    let report = match (entry?, last) {
        (entry, Some(Event::Ended { report })) if is_its(&report, &entry) => *report,
        (entry, _) => summary(&entry),
    };
    match output.json {
        true => printer.print(&Event::Ended {
            report: Box::new(report.clone()),
        }),
        false => report::print(&report, output, &shown),
    }
    Ok(ExitCode::from(report.outcome.exit_status()))
}

/// Stops following.
fn left(at: &HostPort, job: u64, output: &OutputArgs) -> ExitCode {
    if !output.quiet {
        eprintln!(
            "ropewalk: job {job} goes on at {at}; `ropewalk queue --at {at} --wait {job}` waits for it, `ropewalk queue --at {at} --cancel \
             {job}` ends it"
        );
    }
    ExitCode::from(EXIT_INTERRUPTED)
}

/// What a failed run of a job that runs again says.
fn failure(entry: &Entry) -> String {
    let reason = entry.job.reason.as_deref().unwrap_or_default();
    match entry.job.state {
        State::Waiting { not_before } => format!(
            "try {} failed: {reason}; the next in {}",
            entry.job.failures,
            format_seconds(not_before.saturating_sub(sys::now_unix()) as f64)
        ),
        _ => format!("try {} failed: {reason}", entry.job.failures),
    }
}

/// Whether a report is of the run with which the job ended.
fn is_its(report: &Report, entry: &Entry) -> bool {
    match entry.job.state {
        State::Ended { end: End::Done, .. } => report.outcome == Outcome::Done,
        State::Ended {
            end: End::Cancelled,
            ..
        } => report.outcome == Outcome::Cancelled,
        _ => report.outcome != Outcome::Done,
    }
}

/// What is known of a job whose report is lost, since `serve` was started again or it never ran.
fn summary(entry: &Entry) -> Report {
    let outcome = match entry.job.state {
        State::Ended { end: End::Done, .. } => Outcome::Done,
        State::Ended {
            end: End::Cancelled,
            ..
        } => Outcome::Cancelled,
        _ => Outcome::Failed,
    };
    let last = entry.last.clone().unwrap_or_default();
    Report {
        label: entry.label.clone(),
        transfer: last.transfer,
        wanted_bytes: last.delivered_bytes,
        delivered_bytes: last.delivered_bytes,
        seconds: last.seconds,
        error: entry
            .job
            .reason
            .clone()
            .filter(|_| outcome == Outcome::Failed),
        ..Report::ended(outcome)
    }
}

/// Follows a job until it has ended; a `serve` that is away is asked again when it is back.
///
/// * `handle`: gets the job each time it changes, with the last event of its run.
/// * `note`: gets what is said beside that.
async fn follow(
    master: &Master,
    job: u64,
    key: Option<[u8; KEY_LEN]>,
    handle: &mut impl FnMut(&Entry, Option<Event>),
    note: &mut impl FnMut(&str),
) -> Result<Entry> {
    let at = &master.at;
    let mut away: Option<Instant> = None;
    loop {
        let question = to_serve::Body::Follow(ServeFollow {
            job,
            key: key.map(Vec::from).unwrap_or_default(),
        });
        let broke = match master.ask(question).await {
            Ok(asked) => match hear(asked, &mut away, handle).await {
                Ok(entry) => return Ok(entry),
                Err(Heard::Strange(error)) => return Err(error),
                Err(Heard::Broke(error @ StandingError::Refused(_))) => {
                    return Err(master.error(&error));
                }
                Err(Heard::Broke(error)) => error,
            },
            // It was there before.
            Err(error) => error,
        };
        let since = *away.get_or_insert_with(|| {
            note(&format!(
                "`ropewalk serve` at {at} is away ({broke}); it is asked again"
            ));
            Instant::now()
        });
        if since.elapsed() > PATIENCE {
            bail!(
                "`ropewalk serve` at {at} is away for {}: {broke}. Job {job} goes on when it is back; `ropewalk queue --at {at} --wait {job}` \
                 waits for it",
                format_seconds(PATIENCE.as_secs_f64())
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

enum Heard {
    Broke(StandingError),
    Strange(anyhow::Error),
}

async fn hear(
    mut asked: Standing,
    away: &mut Option<Instant>,
    handle: &mut impl FnMut(&Entry, Option<Event>),
) -> Result<Entry, Heard> {
    loop {
        let ServeState { job, event } = match asked.answer().await.map_err(Heard::Broke)? {
            from_serve::Body::State(state) => state,
            _ => {
                return Err(Heard::Broke(StandingError::Broken(
                    "it gave another answer".into(),
                )));
            }
        };
        *away = None;
        let entry = entry(&job).map_err(Heard::Strange)?;
        // An event that a later version added is passed over.
        handle(&entry, serde_json::from_str(&event).ok());
        if entry.job.state.is_ended() {
            return Ok(entry);
        }
    }
}
