//! `queue`: what a running `serve` has, waiting for jobs, cancelling them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_master::{JobError, StandingMaster};
use ropewalk_model::{ByteRate, HostPort, format_bytes, format_seconds};
use ropewalk_proto::codes::EXIT_FAILED;
use ropewalk_proto::queue::{End, Entry, State};
use serde::Serialize;

use super::door::{self, Answer, Question};
use crate::escape;
use crate::members::{Limit, limit_rate};
use crate::progress::{now_words, rate as shown_rate};
use crate::report::listed;
use crate::runtime::runtime;
use crate::sys::{self, say};
use crate::token;

/// Ended jobs that are listed without --all.
const ENDED_SHOWN: usize = 10;

/// Arguments of `ropewalk queue`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct QueueArgs {
    /// Only these jobs, by number
    #[arg(value_name = "JOB")]
    jobs: Vec<u64>,

    /// All ended jobs that are remembered, not only the last ones
    #[arg(long)]
    all: bool,

    /// Wait until the named jobs have ended; without names, all that have not ended yet
    #[arg(long)]
    wait: bool,

    /// Take the named jobs out of the queue, or stop them
    #[arg(long, conflicts_with = "wait", requires = "jobs")]
    cancel: bool,

    /// Change the limit of all transfers together; none removes it
    #[arg(long, value_name = "RATE", value_parser = limit_rate, conflicts_with_all = ["jobs", "all", "wait", "cancel"])]
    limit: Option<Limit>,

    /// Ask a `ropewalk serve` that listens at this address, for jobs that were handed over to it there
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "limit")]
    at: Option<HostPort>,

    /// With --at: its token [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE", requires = "at")]
    token_file: Option<PathBuf>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk queue
      what `ropewalk serve` does, has to do, and has done lately
  ropewalk queue --wait 17
      returns when job 17 has ended; status 0 if all of it was moved
  ropewalk queue --cancel 17 18
  ropewalk queue --limit 2Gbit
  ropewalk queue --at node0:55555 --wait 3
      of the `ropewalk serve` that a specification's `master` row names; it shows and cancels the jobs of its port only

Exit status: 0, 1 failed (with --wait: a job did not move all; with --cancel: one had ended, or there is none of that \
number; the others are cancelled), 2 usage.";

/// What `--json` prints.
#[derive(Serialize)]
struct Listed<'a> {
    limit_bits_per_second: Option<f64>,
    jobs: &'a [Entry],
}

/// A reason that may have several lines, as ssh's has.
fn one_line(reason: &str) -> String {
    let mut all = String::new();
    for line in reason
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if !all.is_empty() {
            all += match all.ends_with(['.', ':', ',', ';', '!', '?']) {
                true => " ",
                false => "; ",
            };
        }
        all += line;
    }
    escape::line(&all)
}

/// How long another `serve` is waited for where the one that was asked has ended: it goes on with the jobs.
const NEXT_TIME_MAX: Duration = Duration::from_secs(300);

/// Waits for the end of a job of this host's queue, whatever becomes of `serve` meanwhile.
fn wait_here(job: u64) -> Result<Answer> {
    let question = Question::Wait { job };
    let mut until = None;
    loop {
        match door::ask(&question) {
            Err(error) if error.is::<door::Away>() => {
                if until.is_none() {
                    eprintln!(
                        "waiting for the next `ropewalk serve`, {} s at most: {error}",
                        NEXT_TIME_MAX.as_secs()
                    );
                }
                let until = *until.get_or_insert_with(|| Instant::now() + NEXT_TIME_MAX);
                if Instant::now() >= until {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_secs(1));
            }
            answer => return answer,
        }
    }
}

/// Lists jobs, waits for them, or cancels them.
pub(crate) fn run(args: &QueueArgs) -> Result<ExitCode> {
    if let Some(Limit(rate)) = args.limit {
        let rate = rate.map(|ByteRate(rate)| rate);
        door::ask(&Question::Limit { rate })?;
        return Ok(ExitCode::SUCCESS);
    }
    let master = master(args)?;
    let desk = master.as_ref();
    if args.cancel {
        return cancel(desk, &args.jobs);
    }
    let (limit, mut jobs) = list(desk)?;
    if let Some(unknown) = args
        .jobs
        .iter()
        .find(|id| jobs.iter().all(|entry| entry.job.id != **id))
    {
        let at = args.at.as_ref().map(|at| format!(" --at {at}"));
        let at = at.unwrap_or_default();
        bail!("the queue has no job {unknown}; `ropewalk queue{at} --all` lists them");
    }
    if args.wait {
        let awaited = match args.jobs.as_slice() {
            [] => jobs
                .iter()
                .filter(|entry| !entry.job.state.is_ended())
                .map(|entry| entry.job.id)
                .collect(),
            named => named.to_vec(),
        };
        jobs.clear();
        for job in awaited {
            if let Some(master) = desk {
                let (mut handle, mut note) = (|_: &Entry, _| {}, |_: &str| {});
                jobs.push(runtime()?.block_on(master.follow(job, None, &mut handle, &mut note))?);
            } else if let Answer::Jobs { jobs: ended, .. } = wait_here(job)? {
                jobs.extend(ended);
            }
        }
    } else if !args.jobs.is_empty() {
        jobs.retain(|entry| args.jobs.contains(&entry.job.id));
    } else if !args.all {
        let ended = jobs
            .iter()
            .filter(|entry| entry.job.state.is_ended())
            .count();
        let mut skipped = ended.saturating_sub(ENDED_SHOWN);
        jobs.retain(|entry| {
            let is_old = entry.job.state.is_ended() && skipped > 0;
            skipped -= usize::from(is_old);
            !is_old
        });
    }
    let text = match args.json {
        true => {
            let listed = Listed {
                limit_bits_per_second: limit.map(|limit| limit as f64 * 8.0),
                jobs: &jobs,
            };
            serde_json::to_string(&listed).context("cannot print the queue as JSON")? + "\n"
        }
        false => text(limit, &jobs, sys::now_unix()),
    };
    sys::end_on_closed_pipe();
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    let is_done = |entry: &Entry| matches!(entry.job.state, State::Ended { end: End::Done, .. });
    Ok(match args.wait && !jobs.iter().all(is_done) {
        true => ExitCode::from(EXIT_FAILED),
        false => ExitCode::SUCCESS,
    })
}

/// Cancels each job, and says of each what became of it.
fn cancel(master: Option<&StandingMaster>, jobs: &[u64]) -> Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    for &job in jobs {
        let refused = match master {
            Some(master) => match runtime()?.block_on(master.cancel(job)) {
                Ok(()) => None,
                Err(JobError::Refused(error)) => Some(error),
                Err(error) => return Err(error.into()),
            },
            None => match door::ask_for(&Question::Cancel { job })? {
                Answer::Refused { error } => Some(error),
                _ => None,
            },
        };
        match refused {
            Some(error) => {
                eprintln!("ropewalk: {}", escape::line(&error));
                status = ExitCode::from(EXIT_FAILED);
            }
            None => say(format_args!("job {job} cancelled")),
        }
    }
    Ok(status)
}

/// The `serve` at an address, or none for this user's own on this host.
fn master(args: &QueueArgs) -> Result<Option<StandingMaster>> {
    let Some(at) = &args.at else {
        return Ok(None);
    };
    Ok(Some(StandingMaster {
        at: at.clone(),
        token: token::load(args.token_file.as_deref())?,
    }))
}

fn list(master: Option<&StandingMaster>) -> Result<(Option<u64>, Vec<Entry>)> {
    if let Some(master) = master {
        return Ok(runtime()?.block_on(master.list())?);
    }
    match door::ask(&Question::List)? {
        Answer::Jobs { limit, jobs } => Ok((limit, jobs)),
        _ => bail!("`ropewalk serve` gave another answer; is it another version?"),
    }
}

/// * `now`: seconds of Unix time.
fn text(limit: Option<u64>, jobs: &[Entry], now: u64) -> String {
    let mut text = String::new();
    if let Some(limit) = limit {
        let _ = writeln!(
            text,
            "all together at most {}",
            shown_rate(limit as f64 * 8.0)
        );
    }
    if jobs.is_empty() {
        text += "no jobs\n";
    }
    for entry in jobs {
        let ago = |at: u64| format_seconds(now.saturating_sub(at) as f64);
        let job = &entry.job;
        let reason = job.reason.as_deref().map(one_line).unwrap_or_default();
        let tries = match job.failures {
            0 => String::new(),
            1 => format!(" (failed once: {reason})"),
            count => format!(" (failed {count} times: {reason})"),
        };
        let state = match job.state {
            State::Waiting { not_before } if not_before > now => {
                format!(
                    "waits, next try in {}{tries}",
                    format_seconds((not_before - now) as f64)
                )
            }
            State::Waiting { .. } => format!("waits{tries}"),
            State::Running {
                cancelled: true, ..
            } => "stopping".to_owned(),
            State::Running { since, .. } => match entry.process {
                Some(process) => {
                    let now = entry.now.as_ref().and_then(now_words);
                    let now = now.map_or_else(String::new, |now| format!(": {now}"));
                    format!("runs for {}, process {process}{tries}{now}", ago(since))
                }
                None => format!("starts{tries}"),
            },
            State::Ended { at, end: End::Done } => match &entry.last {
                Some(last) => format!(
                    "done {} ago, {} in {}",
                    ago(at),
                    format_bytes(last.delivered_bytes),
                    format_seconds(last.seconds)
                ),
                None => format!("done {} ago", ago(at)),
            },
            State::Ended {
                at,
                end: End::Failed,
            } => format!("failed {} ago{tries}", ago(at)),
            State::Ended {
                at,
                end: End::Cancelled,
            } => format!("cancelled {} ago", ago(at)),
        };
        let priority = match job.priority {
            0 => String::new(),
            priority => format!(", priority {priority}"),
        };
        let ends = match (entry.from.is_empty(), entry.to.is_empty()) {
            (false, false) => format!("  {} -> {}", listed(&entry.from), listed(&entry.to)),
            _ => String::new(),
        };
        let label = entry.label.as_deref().map(escape::line);
        let label = label.map_or_else(String::new, |label| format!("  ({label})"));
        let _ = writeln!(text, "{}  {state}{priority}{ends}{label}", job.id);
    }
    text
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::queue::Job;
    use ropewalk_proto::report::Event;

    use super::*;

    fn entry(id: u64, state: State) -> Entry {
        Entry {
            job: Job {
                id,
                priority: 0,
                places: Vec::new(),
                submitted: 0,
                state,
                failures: 0,
                reason: None,
                safe_bytes: 0,
            },
            label: None,
            from: vec!["/a".into()],
            to: vec!["h:/b".into()],
            process: None,
            now: None,
            last: None,
        }
    }

    #[test]
    fn reasons_are_one_line() {
        let ssh = "Host key verification failed.\r\nssh ended\n\n";
        assert_eq!(one_line(ssh), "Host key verification failed. ssh ended");
        assert_eq!(one_line("a: refused\nb: refused"), "a: refused; b: refused");
    }

    /// A line says what a job does, and why it failed; what others wrote cannot change the terminal.
    #[test]
    fn lines_say_where_jobs_stand() {
        let mut waiting = entry(1, State::Waiting { not_before: 130 });
        waiting.job.failures = 2;
        waiting.job.reason = Some("no \u{1b}route".into());
        waiting.job.priority = -3;
        let mut running = entry(
            2,
            State::Running {
                since: 90,
                cancelled: false,
            },
        );
        running.process = Some(77);
        let mut waits = running.clone();
        waits.job.id = 4;
        waits.now = Some(Event::Waiting {
            awaited: vec!["h".into()],
            reason: "it is silent".into(),
            seconds: 7.0,
            most_seconds: None,
        });
        let mut done = entry(
            3,
            State::Ended {
                at: 40,
                end: End::Done,
            },
        );
        done.label = Some("nightly".into());
        assert_eq!(
            text(Some(1_000_000), &[waiting, running, done, waits], 100),
            "all together at most 8 Mbit/s\n\
             1  waits, next try in 30 s (failed 2 times: no \\u{1b}route), priority -3  /a -> h:/b\n\
             2  runs for 10 s, process 77  /a -> h:/b\n\
             3  done 1 min 00 s ago  /a -> h:/b  (nightly)\n\
             4  runs for 10 s, process 77: waiting for h, 7 s (it is silent)  /a -> h:/b\n"
        );
        assert_eq!(text(None, &[], 0), "no jobs\n");
    }
}
