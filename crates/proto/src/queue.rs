//! The queue of a standing master (`ropewalk serve`): which job runs when, what the end of a run means, and what each running job gets of
//! a common limit.
//!
//! ```text
//!  submit ─▶ Waiting ──poll──▶ Running ──ended──▶ Ended: Done, Failed, Cancelled
//!               ▲                 │
//!               └──failed, interrupted, or the master was killed
//! ```
//!
//! The driver carries actions out in order; [`Action::Keep`] is durable before the next one begins, so a job is on disk as running
//! before it runs, and as ended before anything says so. A job that was running when the master was killed runs again: what it had
//! moved by then is found at the destination, and is not sent again.
//!
//! Times are seconds of Unix time, since they outlive the host's uptime.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::codes::OUTCOMES;
use crate::coordinator::limit_shares;
use crate::report::{Event, Report};

mod ends;

/// Pause before the second try, in seconds; each further one is twice as long.
const PAUSE_MIN: u64 = 5;

/// Longest pause, in seconds.
const PAUSE_MAX: u64 = 600;

/// What a queue is given.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Jobs that run at one time.
    pub at_once: usize,
    /// Tries of one job that do not get on, one after the other; 1 at least.
    pub tries: u32,
    /// Ended jobs that are remembered.
    pub history: usize,
}

/// One job, without what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number: 1 for the first job of this queue.
    pub id: u64,
    /// Higher ones run first, equal ones in the order of their numbers.
    pub priority: i32,
    /// Jobs that meet in one of these do not run at the same time; one that ends with `/` is all that lies directly in that folder.
    /// None of a job that has ended.
    pub places: Vec<String>,
    /// When it was submitted.
    pub submitted: u64,
    /// What it does now.
    pub state: State,
    /// Runs that failed since one got on.
    pub failures: u32,
    /// Why the last of them did.
    pub reason: Option<String>,
    /// Most bytes that were safe at the end of one of its runs.
    #[serde(default)]
    pub safe_bytes: u64,
}

/// A job, as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Number, priority, state.
    #[serde(flatten)]
    pub job: Job,
    /// As given.
    pub label: Option<String>,
    /// Sources.
    pub from: Vec<String>,
    /// Destinations.
    pub to: Vec<String>,
    /// The process of its run.
    pub process: Option<u32>,
    /// What that said last of what it does now, without its nodes one by one ([`Event::now`]).
    #[serde(default)]
    pub now: Option<Event>,
    /// How its last run ended.
    pub last: Option<Summary>,
}

/// How a run ended, for `ropewalk queue`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Id of the transfer.
    pub transfer: String,
    /// As in the report.
    pub outcome: String,
    /// Bytes that it was to move.
    #[serde(default)]
    pub wanted_bytes: u64,
    /// Bytes that it moved and that are safe at destinations.
    pub delivered_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Summary {
    /// What is kept of a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let row = OUTCOMES.iter().find(|row| row.0 == report.outcome);
        Self {
            transfer: report.transfer.clone(),
            outcome: row.map_or("", |row| row.1).to_owned(),
            wanted_bytes: report.wanted_bytes,
            delivered_bytes: report.delivered_bytes,
            seconds: report.seconds,
        }
    }
}

/// What a job does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It runs when it is its turn, and not before this time.
    Waiting {
        /// 0: at once.
        not_before: u64,
    },
    /// It runs.
    Running {
        /// Since when.
        since: u64,
        /// It was asked to stop for good.
        cancelled: bool,
    },
    /// It does not run again.
    Ended {
        /// Since when.
        at: u64,
        /// How.
        end: End,
    },
}

impl State {
    /// Whether the job does not run again.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All was moved.
    Done,
    /// It failed too often, or in a way that another try does not change.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// All was moved.
    Done,
    /// It was stopped and says nothing about the job.
    Interrupted,
    /// Its user stopped it.
    Cancelled,
    /// It failed.
    Failed {
        /// Why.
        reason: String,
        /// Another run would fail in the same way.
        is_final: bool,
        /// Bytes that are safe at destinations, those of earlier runs included; 0 where that is not known.
        safe_bytes: u64,
    },
}

/// What the driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes this job durably.
    Keep(u64),
    /// Removes what is kept of this job.
    Forget(u64),
    /// Runs it, with this share of the common limit in bytes per second.
    Start(u64, Option<u64>),
    /// Stops its run.
    Stop(u64),
    /// Changes its share of the common limit.
    Limit(u64, Option<u64>),
}

/// Why a job is not cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// There is none of this number.
    #[error("the queue has no job {0}")]
    Unknown(u64),
    /// It has ended.
    #[error("job {0} has ended")]
    Ended(u64),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    // Bytes per second, over the last seconds.
    rate: f64,
    share: Option<u64>,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    settings: Settings,
    limit: Option<u64>,
    jobs: BTreeMap<u64, Job>,
    running: BTreeMap<u64, Run>,
    // Ended jobs, the one that ended first at the front.
    history: VecDeque<u64>,
    next: u64,
    is_closing: bool,
    actions: VecDeque<Action>,
}

impl Queue {
    /// The queue with the jobs that were kept. Those that ran when the master ended wait again, ahead of later ones.
    #[must_use]
    pub fn new(settings: Settings, limit: Option<u64>, kept: Vec<Job>) -> Self {
        let mut queue = Self {
            settings,
            limit,
            next: kept.iter().map(|job| job.id).max().unwrap_or(0) + 1,
            jobs: BTreeMap::new(),
            running: BTreeMap::new(),
            history: VecDeque::new(),
            is_closing: false,
            actions: VecDeque::new(),
        };
        let mut ended: Vec<(u64, u64)> = Vec::new();
        for mut job in kept {
            match job.state {
                State::Running { since, cancelled } => {
                    job.state = match cancelled {
                        true => State::Ended {
                            at: since,
                            end: End::Cancelled,
                        },
                        false => State::Waiting { not_before: 0 },
                    };
                    queue.actions.push_back(Action::Keep(job.id));
                    if cancelled {
                        ended.push((since, job.id));
                    }
                }
                State::Ended { at, .. } => ended.push((at, job.id)),
                State::Waiting { .. } => {}
            }
            queue.jobs.insert(job.id, job);
        }
        ended.sort_unstable();
        queue.history = ended.into_iter().map(|(_, id)| id).collect();
        queue.forget_old();
        queue
    }

    /// All jobs, by number.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: u64) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// The common limit, in bytes per second.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// What is to be done, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether no job runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Takes a job and gives its number.
    pub fn submit(&mut self, priority: i32, places: Vec<String>, now: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        let job = Job {
            id,
            priority,
            places,
            submitted: now,
            state: State::Waiting { not_before: 0 },
            failures: 0,
            reason: None,
            safe_bytes: 0,
        };
        self.jobs.insert(id, job);
        self.actions.push_back(Action::Keep(id));
        self.start(now);
        id
    }

    /// Takes a job back that was just submitted and could not be kept: it never was in the queue.
    ///
    /// The driver carries out none of its actions.
    pub fn withdraw(&mut self, id: u64) {
        self.jobs.remove(&id);
        if self.running.remove(&id).is_some() {
            self.share();
        }
    }

    /// Takes a job out of the queue, or stops its run.
    ///
    /// # Errors
    /// [`CancelError`].
    pub fn cancel(&mut self, id: u64, now: u64) -> Result<(), CancelError> {
        let job = self.jobs.get_mut(&id).ok_or(CancelError::Unknown(id))?;
        match &mut job.state {
            State::Ended { .. } => return Err(CancelError::Ended(id)),
            State::Running { cancelled, .. } => {
                *cancelled = true;
                self.actions.extend([Action::Keep(id), Action::Stop(id)]);
            }
            State::Waiting { .. } => self.end(id, End::Cancelled, now),
        }
        Ok(())
    }

    /// A run has ended.
    pub fn ended(&mut self, id: u64, ran: Ran, now: u64) {
        if self.running.remove(&id).is_none() {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let is_cancelled = matches!(
            job.state,
            State::Running {
                cancelled: true,
                ..
            }
        );
        match ran {
            Ran::Done => self.end(id, End::Done, now),
            Ran::Cancelled => self.end(id, End::Cancelled, now),
            _ if is_cancelled => self.end(id, End::Cancelled, now),
            Ran::Interrupted => {
                // This master has not stopped it: what has, as a program that ends large processes, may do so again.
                let not_before = match self.is_closing {
                    true => 0,
                    false => now + PAUSE_MIN,
                };
                job.state = State::Waiting { not_before };
                self.actions.push_back(Action::Keep(id));
            }
            Ran::Failed {
                reason,
                is_final,
                safe_bytes,
            } => {
                // What gets on, however slowly, is not given up.
                if safe_bytes > job.safe_bytes {
                    job.safe_bytes = safe_bytes;
                    job.failures = 0;
                }
                job.failures += 1;
                job.reason = Some(reason);
                if is_final || job.failures >= self.settings.tries {
                    self.end(id, End::Failed, now);
                } else {
                    let pause = PAUSE_MIN << (job.failures - 1).min(16);
                    job.state = State::Waiting {
                        not_before: now + pause.min(PAUSE_MAX),
                    };
                    self.actions.push_back(Action::Keep(id));
                }
            }
        }
        self.start(now);
        self.share();
    }

    /// What a running job moves, in bytes per second.
    pub fn observe(&mut self, id: u64, rate: f64) {
        if let Some(run) = self.running.get_mut(&id) {
            run.rate = rate;
        }
    }

    /// Changes the common limit.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
        self.share();
    }

    /// Time passes; call once a second.
    pub fn tick(&mut self, now: u64) {
        self.start(now);
        if self.limit.is_some() {
            self.share();
        }
    }

    /// Starts nothing more and stops what runs; it waits for the next master.
    pub fn close(&mut self) {
        self.is_closing = true;
        let running = self.running.keys();
        self.actions.extend(running.map(|&id| Action::Stop(id)));
    }

    fn end(&mut self, id: u64, end: End, now: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.state = State::Ended { at: now, end };
            job.places = Vec::new();
            self.actions.push_back(Action::Keep(id));
            self.history.push_back(id);
            self.forget_old();
        }
    }

    fn forget_old(&mut self) {
        while self.history.len() > self.settings.history {
            if let Some(id) = self.history.pop_front() {
                self.jobs.remove(&id);
                self.actions.push_back(Action::Forget(id));
            }
        }
    }

    /// Starts what may run: the highest priority first.
    fn start(&mut self, now: u64) {
        let mut has_started = false;
        while !self.is_closing
            && self.running.len() < self.settings.at_once
            && let Some(id) = self.next_job(now)
        {
            let share = self.limit.map(|limit| {
                // The others are cut in the same step.
                limit / (self.running.len() as u64 + 1)
            });
            let share = share.map(|share| share.max(1));
            if let Some(job) = self.jobs.get_mut(&id) {
                job.state = State::Running {
                    since: now,
                    cancelled: false,
                };
            }
            self.running.insert(id, Run { rate: 0.0, share });
            has_started = true;
            if self.limit.is_some() {
                self.cut(id, share);
            }
            self.actions
                .extend([Action::Keep(id), Action::Start(id, share)]);
        }
        if has_started {
            self.check();
        }
    }

    fn next_job(&self, now: u64) -> Option<u64> {
        let is_due = |job: &&Job| match job.state {
            // A clock that was set back does not hold it up.
            State::Waiting { not_before } => not_before <= now || not_before - now > PAUSE_MAX,
            _ => false,
        };
        let is_free = |job: &&Job| {
            let is_used = |place: &String| {
                let running = self.running.keys().filter_map(|id| self.jobs.get(id));
                let mut used = running.flat_map(|other| &other.places);
                used.any(|other| meet(place, other))
            };
            !job.places.iter().any(is_used)
        };
        let waiting = self.jobs.values().filter(is_due).filter(is_free);
        waiting
            .min_by_key(|job| (std::cmp::Reverse(job.priority), job.id))
            .map(|job| job.id)
    }

    /// Leaves room for a new run: the others share the rest.
    fn cut(&mut self, new: u64, share: Option<u64>) {
        let rest = self.limit.unwrap_or(0).saturating_sub(share.unwrap_or(0));
        let others: Vec<u64> = self
            .running
            .keys()
            .copied()
            .filter(|&id| id != new)
            .collect();
        self.deal(&others, rest);
    }

    /// Deals the limit again, by what each used.
    fn share(&mut self) {
        let all: Vec<u64> = self.running.keys().copied().collect();
        match self.limit {
            Some(limit) => self.deal(&all, limit),
            None => {
                for id in all {
                    self.give(id, None);
                }
            }
        }
        self.check();
    }

    fn deal(&mut self, among: &[u64], limit: u64) {
        let used: Vec<f64> = among.iter().map(|id| self.running[id].rate).collect();
        let shares = limit_shares(limit, &used);
        // What is cut goes first, so that the sum holds at every moment.
        let mut dealt: Vec<(u64, u64)> = among.iter().copied().zip(shares).collect();
        let grows = |&(id, share): &(u64, u64)| {
            self.running[&id].share.is_some_and(|before| share > before)
        };
        dealt.sort_by_key(grows);
        for (id, share) in dealt {
            self.give(id, Some(share));
        }
    }

    fn give(&mut self, id: u64, share: Option<u64>) {
        if let Some(run) = self.running.get_mut(&id)
            && run.share != share
        {
            run.share = share;
            self.actions.push_back(Action::Limit(id, share));
        }
    }

    fn check(&self) {
        if let (true, Some(limit)) = (cfg!(debug_assertions), self.limit) {
            let sum: u64 = self.running.values().filter_map(|run| run.share).sum();
            let most = limit.max(self.running.len() as u64);
            assert!(sum <= most, "{sum} B/s are dealt of {limit}");
        }
    }
}

/// Whether two jobs would write to one place.
fn meet(place: &str, other: &str) -> bool {
    place == other || is_in(place, other) || is_in(other, place)
}

/// Whether a place lies directly in a folder that ends with `/`.
fn is_in(place: &str, folder: &str) -> bool {
    let folder = folder.strip_suffix('/');
    folder.is_some_and(|folder| {
        place
            .rsplit_once('/')
            .is_some_and(|(above, _)| above == folder)
    })
}

#[cfg(test)]
mod tests;
