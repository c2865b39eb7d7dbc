//! Runs of jobs: processes of this program that end with their standard input (`job` is their side of it).
//!
//! A process holds a lock on the job's file while it lives, so a run that a killed master has left behind ends before the next one
//! begins. The file holds what the command had read. Standard input has lines `limit BYTES`, `limit none` and `cancel`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ropewalk_proto::queue::{Ran, Summary};
use ropewalk_proto::report::Event;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::task::Task;
use crate::inputs::{Inputs, Text};
use crate::job::{Given, JOB};
use crate::{escape, sys};

/// Bytes of a run's standard error that are kept: its end.
const ERROR_LEN: usize = 2048;

/// A run that is to end in order may sync files first. What had arrived is found by the next one, however it ends.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// A run that is cancelled is asked for that in a line, and gets a signal if it has not ended by then: it may not read yet.
const CANCEL_TIME: Duration = Duration::from_secs(2);

/// The process of a run, as the loop reaches it.
#[derive(Default)]
struct Live {
    process: Option<(u32, std::os::fd::OwnedFd)>,
    input: Option<ChildStdin>,
    // What it said last of what it does.
    now: Option<Event>,
    // Its share of the limit, and what it was last given.
    share: Option<u64>,
    given: Option<u64>,
    is_stopped: bool,
    // It ends for good: what it leaves is not for another run.
    is_cancelled: bool,
    // When it was to end in order.
    stopped_at: Option<Instant>,
    is_killed: bool,
}

impl Live {
    /// Writes the share, if it is another than the process has; a process that does not read holds up no other.
    fn send_share(&mut self) {
        let Some(input) = self.input.as_mut().filter(|_| self.given != self.share) else {
            return;
        };
        let line = match self.share {
            Some(share) => format!("limit {share}\n"),
            None => "limit none\n".to_owned(),
        };
        // Short writes to a pipe are whole or none.
        if input.write_all(line.as_bytes()).is_ok() {
            self.given = self.share;
        }
    }

    /// Asks the process to end, by a line where it is cancelled.
    fn ask(&mut self) {
        let line = self
            .input
            .as_mut()
            .filter(|_| self.is_cancelled && !self.is_killed);
        // Short writes to a pipe are whole or none.
        if line.is_none_or(|input| input.write_all(b"cancel\n").is_err()) {
            self.is_cancelled = false;
            self.signal();
        }
    }

    fn signal(&self) {
        if let Some((_, handle)) = &self.process {
            let signal = match (self.is_killed, self.is_stopped) {
                (true, _) => Signal::KILL,
                (_, true) => Signal::TERM,
                _ => return,
            };
            // It may have ended.
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// What happens to runs.
pub(super) enum Happened {
    /// A job moves so many bytes per second.
    Rate(u64, f64),
    /// A run has said this, a line of JSON: how far it is, or its report. Only where a command of another host may follow.
    Said(u64, Arc<str>),
    /// A run has ended.
    Ended(u64, Ran, Option<Summary>),
}

/// Gets what happens, from threads of runs.
type Listener = Arc<dyn Fn(Happened) + Send + Sync>;

/// Starts and stops runs.
pub(super) struct Runner {
    folder: PathBuf,
    happened: Listener,
    running: BTreeMap<u64, Arc<Mutex<Live>>>,
}

impl Runner {
    pub fn new(folder: PathBuf, happened: Listener) -> Self {
        Self {
            folder,
            happened,
            running: BTreeMap::new(),
        }
    }

    /// The process of a job that runs.
    pub fn process(&self, id: u64) -> Option<u32> {
        let live = lock(self.running.get(&id)?);
        live.process.as_ref().map(|(process, _)| *process)
    }

    /// What it does, as it said last.
    pub fn now(&self, id: u64) -> Option<Event> {
        lock(self.running.get(&id)?).now.clone()
    }

    /// Begins a run; its end is an input.
    pub fn start(&mut self, id: u64, task: &Task, share: Option<u64>) {
        let live = Arc::new(Mutex::new(Live {
            share,
            given: share,
            ..Live::default()
        }));
        self.running.insert(id, live.clone());
        let given = Given {
            file: self.file(id),
            limit: share,
        };
        let (task, happened) = (task.clone(), self.happened.clone());
        let run = move || {
            ending(id, &happened, || run(id, &task, &given, &live, &happened));
        };
        if let Err(error) = std::thread::Builder::new().spawn(run) {
            let ran = passing(format!("cannot start a thread: {error}"));
            (self.happened)(Happened::Ended(id, ran, None));
        }
    }

    /// Has a run end in order.
    pub fn stop(&self, id: u64) {
        if let Some(live) = self.running.get(&id) {
            let mut live = lock(live);
            live.is_stopped = true;
            live.stopped_at.get_or_insert_with(Instant::now);
            live.signal();
        }
    }

    /// Has a run end in order, and leave nothing for another one.
    pub fn cancel(&self, id: u64) {
        if let Some(live) = self.running.get(&id) {
            let mut live = lock(live);
            // A further signal would end it in the middle of that.
            if live.is_stopped {
                return;
            }
            (live.is_stopped, live.is_cancelled) = (true, true);
            live.stopped_at.get_or_insert_with(Instant::now);
            live.ask();
        }
    }

    /// Whether nothing runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Has all runs end in order.
    pub fn stop_all(&self) {
        for &id in self.running.keys() {
            self.stop(id);
        }
    }

    /// Ends all runs at once.
    pub fn kill(&self) {
        for live in self.running.values() {
            let mut live = lock(live);
            live.is_killed = true;
            live.signal();
        }
    }

    /// Changes a run's share of the limit.
    pub fn limit(&self, id: u64, share: Option<u64>) {
        if let Some(live) = self.running.get(&id) {
            let mut live = lock(live);
            live.share = share;
            live.send_share();
        }
    }

    /// Ends runs that were to end in order and have not: one that does not react holds a place of the queue.
    pub fn kill_late(&self) {
        for live in self.running.values() {
            let mut live = lock(live);
            let is_late = live
                .stopped_at
                .is_some_and(|at| at.elapsed() > STOP_TIME_MAX);
            if is_late && !live.is_killed {
                live.is_killed = true;
                live.signal();
            }
            let is_unread = live.stopped_at.is_some_and(|at| at.elapsed() > CANCEL_TIME);
            if is_unread && live.is_cancelled {
                live.is_cancelled = false;
                live.signal();
            }
        }
    }

    /// Sends what a full pipe, or a process that had not begun, did not take.
    pub fn send_shares(&self) {
        for live in self.running.values() {
            lock(live).send_share();
        }
    }

    /// A run has ended.
    pub fn forget(&mut self, id: u64) {
        self.running.remove(&id);
    }

    /// A job has ended: no other run of it needs its file. Until then the file stays, and with it the lock of a run that hangs.
    pub fn remove_file(&self, id: u64) {
        let _ = fs::remove_file(self.file(id));
    }

    fn file(&self, id: u64) -> PathBuf {
        self.folder.join(format!("job-{id}"))
    }
}

fn lock(live: &Mutex<Live>) -> std::sync::MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A failure that another run may not have.
fn passing(reason: String) -> Ran {
    Ran::Failed {
        reason,
        is_final: false,
        safe_bytes: 0,
    }
}

/// What is said of a run when this is dropped, however it ends: without that its job would never end.
struct Ending<'a> {
    id: u64,
    happened: &'a Listener,
    ended: Option<(Ran, Option<Summary>)>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let panicked = || (passing("`ropewalk serve` failed to follow it".into()), None);
        let (ran, summary) = self.ended.take().unwrap_or_else(panicked);
        (self.happened)(Happened::Ended(self.id, ran, summary));
    }
}

/// Carries out what a run does, and says how it has ended, also where that panics.
fn ending(id: u64, happened: &Listener, body: impl FnOnce() -> Result<(Ran, Option<Summary>)>) {
    let mut ending = Ending {
        id,
        happened,
        ended: None,
    };
    ending.ended = Some(match body() {
        Ok(ended) => ended,
        Err(error) => (passing(format!("{error:#}")), None),
    });
}

/// The process of a run. None is left when this is dropped, not even its entry in the table of processes.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // Neither does anything where it has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Carries one run out.
fn run(
    id: u64,
    task: &Task,
    given: &Given,
    live: &Mutex<Live>,
    happened: &Listener,
) -> Result<(Ran, Option<Summary>)> {
    let shown = given.file.display();
    write_file(&given.file, &task.inputs).with_context(|| format!("cannot write {shown}"))?;
    let child = Owned(start(task, given)?);
    follow(id, child, task.key.is_some(), live, happened)
}

/// Follows a process to its end.
///
/// * `is_handed`: whether a command of another host may hear what it says.
fn follow(
    id: u64,
    mut child: Owned,
    is_handed: bool,
    live: &Mutex<Live>,
    happened: &Listener,
) -> Result<(Ran, Option<Summary>)> {
    let child = &mut child.0;
    {
        let mut live = lock(live);
        live.process = handle(child);
        if let Some(input) = &child.stdin {
            rustix::io::ioctl_fionbio(input, true).context("cannot prepare a pipe")?;
        }
        live.input = child.stdin.take();
        live.send_share();
        if live.is_stopped || live.is_killed {
            live.ask();
        }
    }
    let errors = child.stderr.take().context("no standard error")?;
    let errors = std::thread::Builder::new()
        .spawn(move || end_of(errors))
        .context("cannot start a thread")?;
    let mut report = None;
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let Ok(line) = line else {
            continue;
        };
        let event = serde_json::from_str(&line).ok();
        let is_of_now = matches!(
            event,
            Some(
                Event::Planned { .. }
                    | Event::Progress { .. }
                    | Event::Waiting { .. }
                    | Event::Scanning { .. }
                    | Event::AwaitingEnd { .. }
                    | Event::Removing { .. }
                    | Event::Returned { .. }
                    | Event::Repeating { .. }
                    | Event::Ended { .. }
            )
        );
        if is_of_now && is_handed {
            happened(Happened::Said(id, line.into()));
        }
        match &event {
            Some(Event::Progress {
                bits_per_second, ..
            }) => happened(Happened::Rate(id, bits_per_second / 8.0)),
            Some(Event::Scanning { .. } | Event::AwaitingEnd { .. } | Event::Removing { .. }) => {
                happened(Happened::Rate(id, 0.0));
            }
            _ => {}
        }
        match event {
            Some(Event::Ended { report: ended }) => report = Some(ended),
            Some(event) => {
                if let Some(now) = event.now() {
                    lock(live).now = Some(now);
                }
            }
            None => {}
        }
    }
    let status = child.wait().context("cannot wait for the transfer")?;
    let errors = errors.join().ok();
    let is_stopped = {
        let mut live = lock(live);
        (live.process, live.input, live.now) = (None, None, None);
        live.is_stopped || live.is_killed
    };
    let summary = report.as_deref().map(Summary::of);
    Ok((
        Ran::of(status, report.as_deref(), errors, is_stopped),
        summary,
    ))
}

/// The end of what a process writes to its standard error.
fn end_of(mut errors: ChildStderr) -> String {
    let mut end = Vec::new();
    let mut part = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut part) {
        end.extend_from_slice(&part[..read]);
        let excess = end.len().saturating_sub(ERROR_LEN);
        end.drain(..excess);
    }
    String::from_utf8_lossy(&end).trim().to_owned()
}

/// A handle that stays that of this process.
fn handle(child: &Child) -> Option<(u32, std::os::fd::OwnedFd)> {
    let process = child.id();
    let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
    Some((process, pidfd_open(pid, PidfdFlags::empty()).ok()?))
}

fn start(task: &Task, given: &Given) -> Result<Child> {
    let program = sys::own_program().context("this program's own path is not known")?;
    let given = serde_json::to_string(given).context("cannot write a job as JSON")?;
    let text = |text: &Text| OsString::from_vec(text.0.clone());
    let folder = OsStr::from_bytes(&task.folder.0);
    let shown = Path::new(folder).display().to_string();
    Command::new(program)
        .args(task.arguments.iter().map(text))
        .env_clear()
        .envs(
            task.environment
                .iter()
                .map(|(name, value)| (name, text(value))),
        )
        .env(JOB, given)
        .current_dir(folder)
        // Ctrl-C at the terminal of `serve` reaches `serve` alone, which stops its runs in order.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start the transfer in {}", escape::line(&shown)))
}

/// Writes the job's file; a run that is left keeps its lock on the same file.
fn write_file(path: &Path, inputs: &Inputs) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(&serde_json::to_vec(inputs)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::process::test_kill_process;

    use super::*;

    /// A run whose thread panics has ended all the same: its job is tried again, and of its process nothing is left.
    #[test]
    fn a_panic_ends_the_run() {
        let said = serde_json::to_string(&Event::Scanning {
            node: "a".into(),
            entries: 1,
        });
        let child = Command::new("sh")
            .args(["-c", "echo \"$0\"; exec cat", &said.unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = Pid::from_child(&child);
        let (ends, ended) = mpsc::channel();
        let happened: Listener = Arc::new(move |happened| match happened {
            Happened::Ended(id, ran, summary) => ends.send((id, ran, summary)).unwrap(),
            Happened::Rate(..) | Happened::Said(..) => panic!("it fails"),
        });
        let live = Arc::new(Mutex::new(Live::default()));
        // Standard input of the process stays open.
        let held = live.clone();
        let running = std::thread::spawn(move || {
            ending(7, &happened, || {
                follow(7, Owned(child), false, &live, &happened)
            });
        });
        running.join().unwrap_err();
        let (id, ran, summary) = ended.try_recv().unwrap();
        assert_eq!((id, summary), (7, None));
        assert!(
            matches!(
                ran,
                Ran::Failed {
                    is_final: false,
                    ..
                }
            ),
            "{ran:?}"
        );
        assert!(test_kill_process(process).is_err());
        drop(held);
    }
}
