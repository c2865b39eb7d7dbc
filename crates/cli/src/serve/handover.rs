//! `transfer` with a `master` row: hands over to the `serve` that answers there, and shows how its job gets on.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::ArgMatches;
use clap::parser::ValueSource;
use ropewalk_master::{JobError, LastReport, StandingMaster, job_key};
use ropewalk_model::{HostPort, format_seconds};
use ropewalk_proto::codes::EXIT_INTERRUPTED;
use ropewalk_proto::control::{ServeOption, ServeSubmit};
use ropewalk_proto::handover::{self, KEY_LEN, Takes};
use ropewalk_proto::queue::{Entry, State};
use ropewalk_proto::report::Event;

use crate::options::OutputArgs;
use crate::run::{Shown, Transfer};
use crate::runtime::runtime;
use crate::screen::{Screen, Signals};
use crate::sys::{self, say};
use crate::transfer::TransferArgs;
use crate::{Unusable, escape};

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
    let master = StandingMaster {
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
    let job = match runtime.block_on(master.submit(&submission)) {
        Ok(job) => job,
        Err(JobError::Absent { reason, .. }) => {
            if args.output.verbose {
                let reason = escape::line(&reason);
                eprintln!(
                    "note: no `ropewalk serve` at {at} ({reason}): this command is the master"
                );
            }
            return Ok(None);
        }
        Err(error) => return Err(Unusable(refused(&error)).into()),
    };
    let output = &args.output.with_page(&args.page);
    if args.detach.priority > handover::PRIORITY_MAX && !output.quiet {
        let most = handover::PRIORITY_MAX;
        eprintln!("note: the priority of job {job} is {most}, the highest from another host");
    }
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

/// Says that nothing was moved, and what to do.
fn refused(error: &JobError) -> anyhow::Error {
    let advice = match error {
        JobError::Away(_) => return anyhow::anyhow!("{error}"),
        JobError::Refused(_) => "",
        _ => "; compare the token of --token-file with that of `ropewalk serve`",
    };
    anyhow::anyhow!(
        "{error}{advice}. Nothing was moved; without the `master` row this command carries the transfer out itself"
    )
}

/// Shows a job until it has ended, and gives its exit status.
async fn show(
    master: &StandingMaster,
    job: u64,
    key: [u8; KEY_LEN],
    output: &OutputArgs,
) -> Result<ExitCode> {
    let at = &master.at;
    if !output.json && !output.quiet {
        eprintln!(
            "ropewalk: job {job} of `ropewalk serve` at {at}; Ctrl-C ends this command, not the job"
        );
    }
    let mut signals = Signals::listen()?;
    let screen = Screen::start(Transfer::new(output))?;
    screen.put(Shown::Event(Event::HandedOver {
        job,
        at: at.to_string(),
    }));
    let mut last = LastReport::default();
    let mut failures = 0;
    let mut handle = |entry: &Entry, event: Option<Event>| {
        if entry.job.failures > failures {
            screen.put(Shown::Note(failure(entry)));
        }
        failures = entry.job.failures;
        if let Some(event) = last.take(entry, event) {
            screen.put(Shown::Event(event));
        }
    };
    let mut note = |text: &str| screen.put(Shown::Note(text.to_owned()));
    let following = master.follow(job, Some(key), &mut handle, &mut note);
    let entry = tokio::select! {
        entry = following => Some(entry),
        _ = signals.next() => None,
    };
    let Some(entry) = entry else {
        let (text, is_quiet) = (left(at, job), output.quiet);
        let leave = move |show: Transfer| {
            show.leave();
            if !is_quiet {
                eprintln!("{text}");
            }
        };
        screen.end(&mut signals, leave).await?;
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    let entry = match entry {
        Ok(entry) => entry,
        Err(error) => {
            // What was said before is shown, and the bars are gone, before the error is.
            return match screen.end(&mut signals, Transfer::leave).await? {
                Some(()) => Err(error.into()),
                None => Ok(ExitCode::from(EXIT_INTERRUPTED)),
            };
        }
    };
    let report = last.of(&entry);
    let ended = screen.end(&mut signals, |show| show.end(report)).await?;
    ended.unwrap_or(Ok(ExitCode::from(EXIT_INTERRUPTED)))
}

/// The job is followed no more.
fn left(at: &HostPort, job: u64) -> String {
    format!(
        "ropewalk: job {job} goes on at {at}; `ropewalk queue --at {at} --wait {job}` waits for it, `ropewalk queue --at {at} --cancel \
         {job}` ends it"
    )
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
