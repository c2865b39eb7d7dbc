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

use crate::coordinator::limit_shares;

/// Pause before the second try, in seconds; each further one is twice as long.
const PAUSE_MIN: u64 = 5;

/// Longest pause, in seconds.
const PAUSE_MAX: u64 = 600;

/// What a queue is given.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Jobs that run at one time.
    pub at_once: usize,
    /// Tries of one job, the first included; 1 at least.
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
    /// Jobs that share one of these do not run at the same time.
    pub places: Vec<String>,
    /// When it was submitted.
    pub submitted: u64,
    /// What it does now.
    pub state: State,
    /// Runs that failed.
    pub failures: u32,
    /// Why the last of them did.
    pub reason: Option<String>,
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
        };
        self.jobs.insert(id, job);
        self.actions.push_back(Action::Keep(id));
        self.start(now);
        id
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
                job.state = State::Waiting { not_before: 0 };
                self.actions.push_back(Action::Keep(id));
            }
            Ran::Failed { reason, is_final } => {
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
                self.running
                    .keys()
                    .filter_map(|id| self.jobs.get(id))
                    .any(|other| other.places.contains(place))
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

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        at_once: 2,
        tries: 3,
        history: 4,
    };

    fn queue() -> Queue {
        Queue::new(SETTINGS, None, Vec::new())
    }

    fn actions(queue: &mut Queue) -> Vec<Action> {
        std::iter::from_fn(|| queue.poll_action()).collect()
    }

    fn started(queue: &mut Queue) -> Vec<u64> {
        let all = actions(queue).into_iter();
        all.filter_map(|action| match action {
            Action::Start(id, _) => Some(id),
            _ => None,
        })
        .collect()
    }

    fn failed(reason: &str) -> Ran {
        Ran::Failed {
            reason: reason.into(),
            is_final: false,
        }
    }

    fn end_of(queue: &Queue, id: u64) -> Option<End> {
        match queue.job(id)?.state {
            State::Ended { end, .. } => Some(end),
            _ => None,
        }
    }

    /// A job is kept before it starts, and as ended before the next starts; higher priorities go first.
    #[test]
    fn jobs_run_by_priority() {
        let mut queue = queue();
        let submit = |queue: &mut Queue, priority| queue.submit(priority, Vec::new(), 100);
        let first = submit(&mut queue, 0);
        assert_eq!(
            actions(&mut queue),
            [
                Action::Keep(first),
                Action::Keep(first),
                Action::Start(first, None)
            ]
        );
        let second = submit(&mut queue, 0);
        let (late, urgent) = (submit(&mut queue, 0), submit(&mut queue, 5));
        assert_eq!(started(&mut queue), [second]);
        queue.ended(first, Ran::Done, 110);
        assert_eq!(
            actions(&mut queue),
            [
                Action::Keep(first),
                Action::Keep(urgent),
                Action::Start(urgent, None)
            ]
        );
        queue.ended(urgent, Ran::Done, 110);
        assert_eq!(started(&mut queue), [late]);
        assert_eq!(end_of(&queue, first), Some(End::Done));
    }

    /// Jobs to one place do not run together; one behind them does.
    #[test]
    fn a_place_has_one_job() {
        let mut queue = queue();
        let place = || vec!["host:/set".to_owned()];
        let first = queue.submit(0, place(), 0);
        let second = queue.submit(0, place(), 0);
        let third = queue.submit(0, Vec::new(), 0);
        assert_eq!(started(&mut queue), [first, third]);
        queue.ended(first, Ran::Done, 1);
        assert_eq!(started(&mut queue), [second]);
    }

    /// A failed job waits longer each time, others run meanwhile; after the last try, or where another would not help, it has failed.
    #[test]
    fn failed_jobs_are_tried_again() {
        let mut queue = queue();
        let id = queue.submit(0, Vec::new(), 0);
        assert_eq!(started(&mut queue), [id]);
        queue.ended(id, failed("no route"), 10);
        assert!(started(&mut queue).is_empty());
        queue.tick(14);
        assert!(started(&mut queue).is_empty());
        queue.tick(15);
        assert_eq!(started(&mut queue), [id]);
        queue.ended(id, failed("no route"), 20);
        queue.tick(29);
        assert!(started(&mut queue).is_empty());
        // The clock was set back by a day.
        queue.tick(0);
        assert!(started(&mut queue).is_empty());
        let mut early = Queue::new(SETTINGS, None, queue.jobs().cloned().collect());
        early.jobs.get_mut(&id).unwrap().state = State::Waiting {
            not_before: 100_000,
        };
        early.tick(10);
        assert_eq!(started(&mut early), [id]);
        queue.tick(30);
        assert_eq!(started(&mut queue), [id]);
        queue.ended(id, failed("still no route"), 31);
        assert_eq!(end_of(&queue, id), Some(End::Failed));
        let job = queue.job(id).unwrap();
        assert_eq!(
            (job.failures, job.reason.as_deref()),
            (3, Some("still no route"))
        );
        let id = queue.submit(0, Vec::new(), 40);
        let ran = Ran::Failed {
            reason: "bad name".into(),
            is_final: true,
        };
        queue.ended(id, ran, 41);
        assert_eq!(end_of(&queue, id), Some(End::Failed));
    }

    /// What ran when the master was killed runs again before later ones, and counts as no failure; what it was to cancel does not.
    #[test]
    fn a_killed_master_goes_on() {
        let mut queue = queue();
        for _ in 0..4 {
            queue.submit(0, Vec::new(), 0);
        }
        assert_eq!(started(&mut queue), [1, 2]);
        queue.cancel(2, 5).unwrap();
        let mut queue = Queue::new(SETTINGS, None, queue.jobs().cloned().collect());
        assert_eq!(actions(&mut queue), [Action::Keep(1), Action::Keep(2)]);
        queue.tick(9);
        assert_eq!(started(&mut queue), [1, 3]);
        assert_eq!(end_of(&queue, 2), Some(End::Cancelled));
        assert_eq!(queue.job(1).unwrap().failures, 0);
        assert_eq!(queue.submit(0, Vec::new(), 9), 5);
    }

    /// Waiting jobs are cancelled at once, running ones when they have stopped; one that is done by then is done.
    #[test]
    fn jobs_are_cancelled() {
        let mut queue = queue();
        for _ in 0..3 {
            queue.submit(0, Vec::new(), 0);
        }
        actions(&mut queue);
        queue.cancel(3, 1).unwrap();
        assert_eq!(actions(&mut queue), [Action::Keep(3)]);
        queue.cancel(1, 1).unwrap();
        queue.cancel(2, 1).unwrap();
        assert!(actions(&mut queue).contains(&Action::Stop(1)));
        queue.ended(1, failed("stopped"), 2);
        queue.ended(2, Ran::Done, 2);
        let ends = [1, 2, 3].map(|id| end_of(&queue, id).unwrap());
        assert_eq!(ends, [End::Cancelled, End::Done, End::Cancelled]);
        assert_eq!(queue.cancel(3, 3), Err(CancelError::Ended(3)));
        assert_eq!(queue.cancel(9, 3), Err(CancelError::Unknown(9)));
    }

    /// The oldest ended jobs are forgotten.
    #[test]
    fn history_is_bounded() {
        let mut queue = queue();
        for id in 1..=6 {
            queue.submit(0, Vec::new(), id);
            queue.ended(id, Ran::Done, id);
        }
        let left: Vec<u64> = queue.jobs().map(|job| job.id).collect();
        assert_eq!(left, [3, 4, 5, 6]);
        let forgotten = actions(&mut queue)
            .into_iter()
            .filter(|action| matches!(action, Action::Forget(_)));
        assert_eq!(forgotten.count(), 2);
    }

    /// The shares of a limit never sum to more, at any moment, and follow use.
    #[test]
    fn the_limit_is_shared() {
        let mut queue = Queue::new(SETTINGS, Some(1000), Vec::new());
        queue.submit(0, Vec::new(), 0);
        assert!(actions(&mut queue).contains(&Action::Start(1, Some(1000))));
        queue.submit(0, Vec::new(), 0);
        let told = actions(&mut queue);
        let cut = told
            .iter()
            .position(|action| *action == Action::Limit(1, Some(500)));
        let start = told
            .iter()
            .position(|action| *action == Action::Start(2, Some(500)));
        assert!(cut.unwrap() < start.unwrap(), "{told:?}");
        queue.observe(1, 400.0);
        queue.observe(2, 0.0);
        queue.tick(1);
        assert_eq!(
            actions(&mut queue),
            [Action::Limit(2, Some(250)), Action::Limit(1, Some(750))]
        );
        queue.ended(2, Ran::Done, 2);
        assert!(actions(&mut queue).contains(&Action::Limit(1, Some(1000))));
        queue.set_limit(None);
        assert_eq!(actions(&mut queue), [Action::Limit(1, None)]);
    }

    /// A master that ends stops what runs and starts nothing; the next one goes on.
    #[test]
    fn closing_stops_runs() {
        let mut queue = queue();
        for _ in 0..3 {
            queue.submit(0, Vec::new(), 0);
        }
        actions(&mut queue);
        queue.close();
        assert_eq!(actions(&mut queue), [Action::Stop(1), Action::Stop(2)]);
        queue.ended(1, Ran::Interrupted, 1);
        queue.ended(2, Ran::Interrupted, 1);
        assert!(started(&mut queue).is_empty());
        assert!(queue.is_idle());
    }
}
