//! A process that runs a job of `serve`: its lock, its specification, its share of the limit, and the end of its master.

use std::fs::File;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_master::{Cancel, Members};
use ropewalk_model::ByteRate;
use ropewalk_proto::codes::{EXIT_INTERRUPTED, EXIT_STOPPED};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::inputs::Inputs;

/// The variable by which a process learns that it runs a job.
pub(crate) const JOB: &str = "ROPEWALK_JOB";

/// How long a run waits for the one before to end: a commit of many files takes this long at most.
const LOCK_PATIENCE: Duration = Duration::from_secs(300);

/// Between looks at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What a run is given.
#[derive(Serialize, Deserialize)]
pub(crate) struct Given {
    /// The job's file: the lock, and what the command had read.
    pub file: PathBuf,
    /// Its share of the common limit, in bytes per second.
    pub limit: Option<u64>,
}

/// What a process that runs a job knows of it.
pub(crate) struct Job {
    given: Given,
    // Holds the lock while the process lives.
    _file: File,
}

/// The job that this process runs, if any; waits until an earlier run has ended.
///
/// # Errors
/// When the variable is not a job's, or the earlier run goes on for minutes.
pub(crate) fn as_job() -> Result<Option<&'static Job>> {
    static OWN: OnceLock<Result<Option<Job>, String>> = OnceLock::new();
    let take = || match std::env::var(JOB) {
        Ok(text) => Job::take(&text)
            .map(Some)
            .map_err(|error| format!("{error:#}")),
        Err(_) => Ok(None),
    };
    match OWN.get_or_init(take) {
        Ok(job) => Ok(job.as_ref()),
        Err(error) => bail!("{error}"),
    }
}

static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// A signal or the end of its master stops this process.
pub(crate) fn stop() {
    IS_STOPPED.store(true, Ordering::Relaxed);
}

/// Ends a transfer in order, as a signal asks for: that of a job will be asked for again.
pub(crate) fn end(cancel: &Cancel) {
    match as_job() {
        Ok(Some(_)) => cancel.put_off(),
        Ok(None) | Err(_) => cancel.cancel(),
    }
}

/// The exit status of an interrupted command: of a job that was stopped, [`EXIT_STOPPED`].
pub(crate) fn interrupted() -> u8 {
    match IS_STOPPED.load(Ordering::Relaxed) && matches!(as_job(), Ok(Some(_))) {
        true => EXIT_STOPPED,
        false => EXIT_INTERRUPTED,
    }
}

impl Job {
    fn take(text: &str) -> Result<Self> {
        let given: Given = serde_json::from_str(text)
            .with_context(|| format!("{JOB} is for `ropewalk serve`; unset it"))?;
        let shown = given.file.display();
        let file = File::open(&given.file).with_context(|| format!("cannot open {shown}"))?;
        let began = Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK && error != rustix::io::Errno::INTR {
                return Err(error).with_context(|| format!("cannot lock {shown}"));
            }
            if began.elapsed() > LOCK_PATIENCE {
                bail!(
                    "an earlier run of this job has not ended within {} s",
                    LOCK_PATIENCE.as_secs()
                );
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(Self { given, _file: file })
    }

    /// What the command had read when it was handed over.
    ///
    /// # Errors
    /// When the job's file cannot be read.
    pub(crate) fn inputs(&self) -> Result<Inputs> {
        let shown = self.given.file.display();
        let bytes = std::fs::read(&self.given.file);
        let bytes = bytes.with_context(|| format!("cannot read {shown}"))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{shown} is not a job's"))
    }

    /// The lower of a limit and this job's share.
    pub(crate) fn limit(&self, own: Option<u64>) -> Option<u64> {
        own.into_iter().chain(self.given.limit).min()
    }

    /// Listens to the master: changes of the limit, the end of the job, and its own end, which ends the run.
    pub(crate) fn listen(&self, own: Option<u64>, cancel: Cancel, members: Members) {
        let listen = move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if line == "cancel" {
                    cancel.cancel();
                }
                let Some(limit) = parse(&line) else {
                    continue;
                };
                let least = own.into_iter().chain(limit).min();
                // It may have ended.
                let _ = members.limit(least.map(ByteRate));
            }
            stop();
            cancel.put_off();
        };
        let _ = std::thread::Builder::new().name("job".into()).spawn(listen);
    }
}

/// A line of the master: the limit.
fn parse(line: &str) -> Option<Option<u64>> {
    match line.strip_prefix("limit ")? {
        "none" => Some(None),
        rate => rate.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that say something else are passed over.
    #[test]
    fn lines_are_parsed() {
        assert_eq!(parse("limit 12"), Some(Some(12)));
        assert_eq!(parse("limit none"), Some(None));
        assert_eq!(parse("limit fast"), None);
        assert_eq!(parse("stop"), None);
    }
}
