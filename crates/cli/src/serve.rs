//! `serve`: a standing master with a queue that outlives it. Decisions are [`ropewalk_proto::queue`]'s; this is its loop.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_model::ByteRate;
use ropewalk_proto::queue::{Action, Entry, Queue, Settings, State, Summary};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::options::{rate, remembering_file};
use crate::progress::rate as shown_rate;
use crate::{agent, escape, service, sys};

mod door;
mod far;
mod handover;
mod keep;
mod places;
pub(crate) mod queue;
mod run;
mod said;
mod submit;
mod task;

use self::door::{Answer, Door, Question, Visitor};
use self::far::{Call, Far, Reply};
use self::keep::{Keep, Limit};
use self::run::{Happened, Runner};
use self::said::Said;
use self::task::Task;

pub(crate) use self::handover::hand_over;
pub(crate) use self::submit::submit;

/// How often shares are dealt and pauses looked at.
const TICK: Duration = Duration::from_secs(1);

/// Visitors that wait for jobs to end; each takes a descriptor.
const WAITING_MAX: usize = 256;

/// Ended jobs that are remembered.
const HISTORY: usize = 10_000;

/// Jobs of other hosts that wait or run; more are refused.
const HANDED_MAX: usize = 10_000;

/// Bytes of their specifications, which are in memory.
const HANDED_BYTES_MAX: usize = 64 << 20;

/// Arguments of `ropewalk serve`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Transfers that run at one time
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1000))]
    at_once: u16,

    /// Limit for all transfers together: 500Mbit or 60MB/s; each gets a share, by what it uses
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit: Option<ByteRate>,

    /// Tries of one transfer that do not get on, with pauses of 5 s to 10 min
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,

    /// Folder of the queue [default: ~/.local/state/ropewalk/queue]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Take specification files of other hosts, too, whose `master` row names this address; may be repeated
    ///
    /// Without it no port is opened. Port 0 lets the system choose
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,

    /// With --listen: the token that these hosts must hold, and with which their transfers reach agents [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Transfers of this user are handed over with --detach and run one after another, or a few at a time. The queue is in a \
database: after a crash or a reboot the next `ropewalk serve` goes on, and what had arrived is not sent again.

Examples:
  ropewalk serve --at-once 2 --limit 8Gbit
  ropewalk copy --detach /data/set host:/data/
      prints the number of the job and returns
  ropewalk queue
      what waits, runs and has ended; `ropewalk queue --wait 17` waits for a job
  ropewalk serve --listen 10.0.0.1:55555 --token-file ~/.config/ropewalk/token
      carries out specification files with a row `master 10.0.0.1:55555`, too, from every host with this token

Transfers run with the folder and the environment (PATH, HOME, SSH_AUTH_SOCK, XDG_*, ROPEWALK_*, LANG) of the command that \
handed them over, and without a terminal: ssh must not ask for a password. \
One that fails is tried again; one whose command or specification is wrong is not. \
Other hosts hand over specifications between running agents and options of a list, no command lines. What they can have done \
at agents they could do themselves with the token; they see and cancel the jobs of the port, and no others.

Exit status: 0 ended by a signal (what runs is stopped, and goes on next time), 1 failed.";

/// What reaches the loop.
enum Input {
    /// A visitor's question.
    Asked(Box<Question>, Visitor),
    /// A question of another host.
    Called(Call, oneshot::Sender<Reply>),
    /// What happens to a run.
    Happened(Happened),
    /// A signal to end.
    Stop,
}

/// The folder of the queue.
fn folder(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        // Runs have the folders of their commands.
        Some(given) => std::path::absolute(given)
            .with_context(|| format!("cannot find the folder of {}", given.display())),
        None => remembering_file("auto".as_ref(), "queue")
            .context("there is no home folder for the queue; name one with --state"),
    }
}

/// Serves until a signal.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let folder = folder(args.state.as_deref())?;
    let mut addresses = Vec::new();
    for text in &args.listen {
        addresses.extend(agent::resolve(text, "--listen")?);
    }
    let (keep, kept) = Keep::open(&folder)?;
    let (inputs, incoming) = mpsc::channel();
    let calling = inputs.clone();
    let far = match addresses.as_slice() {
        [] => None,
        addresses => Some(Far::open(
            addresses,
            args.token_file.as_deref(),
            move |call, reply| drop(calling.send(Input::Called(call, reply))),
        )?),
    };
    let asking = inputs.clone();
    let door = Door::open(move |question, visitor| {
        let _ = asking.send(Input::Asked(Box::new(question), visitor));
    })?;
    listen_for_signals(inputs.clone())?;
    let settings = Settings {
        at_once: args.at_once.into(),
        tries: args.tries,
        history: HISTORY,
    };
    let given = args.limit.map(|rate| rate.0);
    // One that was set holds as long as the service is started as it was then.
    let kept_limit = kept.limit.filter(|kept| kept.instead_of == given);
    let limit = kept_limit.map_or(given, |kept| kept.rate);
    let waiting = kept.jobs.iter().filter(|job| !job.state.is_ended()).count();
    let (writing, written) = mpsc::channel();
    let mut server = Server {
        queue: Queue::new(settings, limit, kept.jobs),
        tasks: kept.tasks,
        summaries: kept.summaries,
        said: Said::default(),
        given_limit: given,
        keep,
        actions: VecDeque::new(),
        is_held_up: false,
        runner: Runner::new(
            folder.clone(),
            Arc::new(move |happened| drop(inputs.send(Input::Happened(happened)))),
        ),
        waiters: Vec::new(),
        writing,
    };
    let jobs = match waiting {
        1 => "1 job".to_owned(),
        waiting => format!("{waiting} jobs"),
    };
    sys::say(format_args!(
        "ropewalk serve: {jobs} of {} to do; end with Ctrl-C",
        escape::line(&folder.display().to_string())
    ));
    if limit != given {
        let rate = limit.map_or("none".to_owned(), |rate| shown_rate(rate as f64 * 8.0));
        sys::say(format_args!(
            "limit of all jobs together: {rate}, as `ropewalk queue --limit` has set it"
        ));
    }
    for address in far.iter().flat_map(Far::addresses) {
        sys::say(format_args!("listening on {address}"));
    }
    service::ready(&format!("{jobs} to do"));
    let ended = server.serve(&incoming);
    // Visitors that wait are left.
    drop((door, far, server));
    let _ = written.recv_timeout(door::LAST_TIME);
    ended.map(|()| ExitCode::SUCCESS)
}

fn listen_for_signals(inputs: mpsc::Sender<Input>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot listen for signals")?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        let listening = "cannot listen for signals";
        (
            signal(SignalKind::interrupt()).context(listening)?,
            signal(SignalKind::terminate()).context(listening)?,
        )
    };
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if inputs.send(Input::Stop).is_err() {
                    return;
                }
            }
        });
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .context("cannot start a thread")?;
    Ok(())
}

struct Server {
    queue: Queue,
    // What each job does.
    tasks: BTreeMap<u64, Task>,
    // How its last run ended.
    summaries: BTreeMap<u64, Summary>,
    // What commands of other hosts follow.
    said: Said,
    // All jobs together, as it was started.
    given_limit: Option<u64>,
    keep: Keep,
    // What the queue wants and is not carried out yet: the disk of the database may be full.
    actions: VecDeque<Action>,
    is_held_up: bool,
    runner: Runner,
    // Visitors that wait for a job's end.
    waiters: Vec<(u64, Visitor)>,
    // Held by each answer that is not written yet.
    writing: mpsc::Sender<()>,
}

impl Server {
    fn serve(&mut self, incoming: &mpsc::Receiver<Input>) -> Result<()> {
        let mut due = Instant::now();
        let mut is_closing = false;
        loop {
            let input = incoming.recv_timeout(due.saturating_duration_since(Instant::now()));
            // Also while inputs leave no pause.
            let is_tick = Instant::now() >= due;
            if is_tick {
                due = Instant::now() + TICK;
                self.tick();
            }
            match input {
                Ok(Input::Stop) if is_closing => self.runner.kill(),
                Ok(Input::Stop) => {
                    is_closing = true;
                    service::stopping();
                    self.queue.close();
                    // Whether or not the queue can be written.
                    self.runner.stop_all();
                }
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                // The runner holds a sender.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            // A full disk is tried once a second.
            if is_tick || !self.is_held_up {
                self.go_on();
            }
            if !self.is_held_up {
                self.answer_waiters();
            }
            let is_idle = self.queue.is_idle() || self.is_held_up && self.runner.is_idle();
            if is_closing && is_idle {
                return match self.act() {
                    // What ran runs again, and finds what it has moved.
                    Err(error) => Err(error.context("the ends of the last runs could not be kept")),
                    Ok(()) => Ok(()),
                };
            }
        }
    }

    fn tick(&mut self) {
        self.queue.tick(sys::now_unix());
        self.runner.send_shares();
        self.runner.kill_late();
        self.waiters.retain(|(_, visitor)| !visitor.has_gone());
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Asked(question, visitor) => self.answer(*question, visitor),
            // One that no longer waits for the answer has had its way all the same.
            Input::Called(call, reply) => drop(reply.send(self.call(call))),
            Input::Happened(Happened::Rate(id, rate)) => self.queue.observe(id, rate),
            Input::Happened(Happened::Said(id, line)) => self.said.put(id, line),
            Input::Happened(Happened::Ended(id, ran, summary)) => {
                if let Some(summary) = summary {
                    self.summaries.insert(id, summary);
                }
                self.runner.forget(id);
                self.queue.ended(id, ran, sys::now_unix());
            }
            Input::Stop => {}
        }
    }

    /// Carries actions out. Where the queue cannot be written, what runs goes on, and the rest waits for the next try.
    fn go_on(&mut self) {
        let acted = self.act();
        let was_held_up = std::mem::replace(&mut self.is_held_up, acted.is_err());
        match acted {
            Err(error) if !was_held_up => {
                let error = escape::line(&crate::with_causes(&error));
                eprintln!(
                    "ropewalk: {error}; running transfers go on, nothing else starts, and it is tried again every second"
                );
            }
            Ok(()) if was_held_up => eprintln!("ropewalk: the queue is written again"),
            _ => {}
        }
    }

    /// Carries actions out in order. What is kept in a row shares a transaction.
    ///
    /// # Errors
    /// Where the queue cannot be written: no action that follows is carried out, and the next call goes on there.
    fn act(&mut self) -> Result<()> {
        self.take_actions();
        loop {
            let waits = |action: &&Action| matches!(action, Action::Start(..) | Action::Stop(_));
            let written = self.actions.iter().take_while(|action| !waits(action));
            let count = written.count();
            self.write(count)?;
            for action in self.actions.drain(..count) {
                match action {
                    Action::Keep(id) => {
                        if self.queue.job(id).is_some_and(|job| job.state.is_ended()) {
                            self.runner.remove_file(id);
                            self.said.end(id);
                        }
                    }
                    Action::Forget(id) => {
                        self.tasks.remove(&id);
                        self.summaries.remove(&id);
                    }
                    Action::Limit(id, share) => self.runner.limit(id, share),
                    Action::Start(..) | Action::Stop(_) => {}
                }
            }
            match self.actions.pop_front() {
                Some(Action::Start(id, share)) => {
                    self.said.begin(id);
                    if let Some(task) = self.tasks.get(&id) {
                        self.runner.start(id, task, share);
                    }
                }
                Some(Action::Stop(id)) => {
                    let state = self.queue.job(id).map(|job| &job.state);
                    match state {
                        Some(State::Running {
                            cancelled: true, ..
                        }) => self.runner.cancel(id),
                        _ => self.runner.stop(id),
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Makes the first actions durable.
    fn write(&mut self, count: usize) -> Result<()> {
        let (queue, tasks, summaries) = (&self.queue, &mut self.tasks, &self.summaries);
        let actions = self.actions.iter().take(count);
        self.keep.change(|changes| {
            for action in actions {
                match *action {
                    Action::Keep(id) => {
                        if let (Some(job), Some(task)) = (queue.job(id), tasks.get_mut(&id)) {
                            if job.state.is_ended() {
                                task.end();
                            }
                            changes.put(job, task, summaries.get(&id))?;
                        }
                    }
                    Action::Forget(id) => changes.remove(id)?,
                    Action::Start(..) | Action::Stop(_) | Action::Limit(..) => {}
                }
            }
            Ok(())
        })
    }

    /// Takes a job, once it is on disk: its number is a promise.
    fn submit(&mut self, task: Task, places: Vec<String>, priority: i32) -> Answer {
        let id = self.queue.submit(priority, places, sys::now_unix());
        self.tasks.insert(id, task);
        self.take_actions();
        let waiting = |server: &Self| {
            let actions = server.actions.iter();
            actions
                .filter(|action| **action == Action::Keep(id))
                .count()
        };
        let before = waiting(self);
        match self.act() {
            // What could not be written may be of another job.
            Err(error) if waiting(self) == before => {
                self.queue.withdraw(id);
                self.tasks.remove(&id);
                self.actions.retain(|action| {
                    !matches!(action, Action::Keep(other) | Action::Start(other, _) if *other == id)
                });
                let error = crate::with_causes(&error);
                Answer::Refused {
                    error: format!("the job cannot be kept and is not taken: {error}"),
                }
            }
            _ => Answer::Submitted { job: id },
        }
    }

    fn take_actions(&mut self) {
        let actions = std::iter::from_fn(|| self.queue.poll_action());
        self.actions.extend(actions);
    }

    fn answer(&mut self, question: Question, visitor: Visitor) {
        let answer = match question {
            Question::Submit {
                task,
                places,
                priority,
            } => self.submit(*task, places, priority),
            Question::List => Answer::Jobs {
                limit: self.queue.limit(),
                jobs: self
                    .queue
                    .jobs()
                    .filter_map(|job| self.entry(job.id))
                    .collect(),
            },
            Question::Cancel { job } => match self.queue.cancel(job, sys::now_unix()) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused {
                    error: error.to_string(),
                },
            },
            Question::Limit { rate } => {
                let limit = Limit {
                    rate,
                    instead_of: self.given_limit,
                };
                self.queue.set_limit(rate);
                // It holds all the same, and the user of a full disk may need it.
                if let Err(error) = self.keep.change(|changes| changes.put_limit(limit)) {
                    eprintln!(
                        "ropewalk: the limit holds, and is not kept for the next start: {}",
                        escape::line(&format!("{error:#}"))
                    );
                }
                Answer::Done
            }
            Question::Wait { .. } if self.waiters.len() >= WAITING_MAX => Answer::Refused {
                error: format!("{WAITING_MAX} others wait already"),
            },
            Question::Wait { job } => match self.queue.job(job) {
                Some(_) => {
                    self.waiters.push((job, visitor));
                    return;
                }
                None => Answer::Refused {
                    error: format!("the queue has no job {job}"),
                },
            },
        };
        visitor.answer(answer, &self.writing);
    }

    /// Answers a command of another host. It concerns jobs that came from there.
    fn call(&mut self, call: Call) -> Reply {
        match call {
            Call::Submit {
                task,
                places,
                priority,
            } => {
                let known = self.tasks.iter().find(|(_, known)| known.key == task.key);
                if let Some((&id, _)) = known {
                    return Reply::Taken(id);
                }
                match self.admit(&task) {
                    Ok(()) => match self.submit(*task, places, priority) {
                        Answer::Submitted { job } => Reply::Taken(job),
                        Answer::Refused { error } => Reply::Refused(error),
                        _ => Reply::Refused("the job is not taken".into()),
                    },
                    Err(error) => Reply::Refused(error),
                }
            }
            Call::Look { job, key } => {
                let is_same = |task: &Task| key.is_none() || task.key == key;
                let known = self.handed(job).filter(|task| is_same(task));
                match known.and_then(|_| self.entry(job)) {
                    Some(entry) => Reply::Looked(Box::new(entry), self.said.get(job)),
                    None => Reply::Refused(format!(
                        "the queue has no job {job} that was handed over here; was `ropewalk serve` started with another --state?"
                    )),
                }
            }
            Call::List => {
                let handed = self.tasks.iter().filter(|(_, task)| task.key.is_some());
                let jobs = handed.filter_map(|(&id, _)| self.entry(id)).collect();
                Reply::Jobs(self.queue.limit(), jobs)
            }
            Call::Cancel { job } if self.handed(job).is_none() => Reply::Refused(format!(
                "the queue has no job {job} that was handed over here"
            )),
            Call::Cancel { job } => match self.queue.cancel(job, sys::now_unix()) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Refused(error.to_string()),
            },
        }
    }

    /// What a job does that came from another host.
    fn handed(&self, id: u64) -> Option<&Task> {
        self.tasks.get(&id).filter(|task| task.key.is_some())
    }

    /// Refuses a job of another host where too many wait.
    fn admit(&self, task: &Task) -> Result<(), String> {
        let length = |task: &Task| {
            let specification = task.inputs.specification.as_ref();
            specification.map_or(0, |text| text.0.len())
        };
        let waiting = self.queue.jobs().filter(|job| !job.state.is_ended());
        let waiting: Vec<&Task> = waiting.filter_map(|job| self.handed(job.id)).collect();
        let bytes: usize = waiting.iter().map(|task| length(task)).sum();
        if waiting.len() >= HANDED_MAX || bytes + length(task) > HANDED_BYTES_MAX {
            return Err(format!(
                "{} jobs with {} KiB of specifications wait already, and {HANDED_MAX} with {} KiB are the most; try again when some have \
                 ended",
                waiting.len(),
                bytes >> 10,
                HANDED_BYTES_MAX >> 10
            ));
        }
        Ok(())
    }

    fn entry(&self, id: u64) -> Option<Entry> {
        let job = self.queue.job(id)?;
        let task = self.tasks.get(&id)?;
        Some(Entry {
            job: job.clone(),
            label: task.label.clone(),
            from: task.from.clone(),
            to: task.to.clone(),
            process: self.runner.process(id),
            now: self.runner.now(id),
            last: self.summaries.get(&id).cloned(),
        })
    }

    /// Visitors that wait for jobs that have ended get their answers.
    fn answer_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        for (id, visitor) in waiters {
            if self.queue.job(id).is_some_and(|job| !job.state.is_ended()) {
                self.waiters.push((id, visitor));
                continue;
            }
            let answer = match self.entry(id) {
                Some(entry) => Answer::Jobs {
                    limit: self.queue.limit(),
                    jobs: vec![entry],
                },
                None => Answer::Refused {
                    error: format!("the queue has no job {id}"),
                },
            };
            visitor.answer(answer, &self.writing);
        }
    }
}

#[cfg(test)]
mod tests;
