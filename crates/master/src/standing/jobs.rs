//! Jobs of a standing master: handed over, followed to their end, cancelled. One that is away meanwhile is asked again.

use std::time::{Duration, Instant};

use ropewalk_model::{HostPort, format_seconds};
use ropewalk_proto::control::{
    ServeCancel, ServeFollow, ServeList, ServeState, ServeSubmit, from_serve, to_serve,
};
use ropewalk_proto::handover::{HandoverError, KEY_LEN, SPECIFICATION_MAX};
use ropewalk_proto::queue::{End, Entry, State};
use ropewalk_proto::report::{Event, Outcome, Report};

use super::{Standing, StandingError};

/// How long a `serve` is waited for that was there and is away: time for a reboot, as for hosts of a transfer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two attempts to reach it again.
const PAUSE: Duration = Duration::from_millis(500);

/// A `serve` with a port, and the token to it.
#[derive(Clone)]
pub struct StandingMaster {
    /// Where it listens.
    pub at: HostPort,
    /// Its token.
    pub token: [u8; 32],
}

/// Why a standing master does not carry a job out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Nothing listens there.
    #[error("no `ropewalk serve` answers at {at}: {reason}")]
    Absent {
        /// Its address.
        at: HostPort,
        /// What was found instead.
        reason: String,
    },
    /// What listens there is no master of this token. Nothing has moved.
    #[error("no `ropewalk serve` answers at {0}")]
    Stranger(String),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// It was there and is away for long. It may have the job, and goes on with it when it is back.
    #[error("{0}")]
    Away(String),
}

impl StandingMaster {
    async fn ask(&self, question: to_serve::Body) -> Result<Standing, StandingError> {
        Standing::ask(&self.at.host, self.at.port, &self.token, question).await
    }

    /// Asks what has one answer.
    async fn answer(&self, question: to_serve::Body) -> Result<from_serve::Body, JobError> {
        let asked = async { self.ask(question).await?.answer().await };
        asked.await.map_err(|error| self.error(error))
    }

    fn error(&self, error: StandingError) -> JobError {
        let at = &self.at;
        match error {
            StandingError::Refused(error) => JobError::Refused(format!("{at}: {error}")),
            StandingError::Absent(reason) => JobError::Absent {
                at: at.clone(),
                reason,
            },
            error => JobError::Stranger(format!("{at}: {error}")),
        }
    }

    /// Its jobs that were handed over, and the limit of all together in bytes per second.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn list(&self) -> Result<(Option<u64>, Vec<Entry>), JobError> {
        match self.answer(to_serve::Body::List(ServeList {})).await? {
            from_serve::Body::Jobs(jobs) => {
                let limit = Some(jobs.limit).filter(|limit| *limit > 0);
                let entries = jobs.jobs.iter().map(|job| self.entry(job));
                Ok((limit, entries.collect::<Result<_, _>>()?))
            }
            _ => Err(self.another_answer()),
        }
    }

    /// Takes a job out of the queue, or stops it.
    ///
    /// # Errors
    /// [`JobError::Refused`] where there is no such job, or it has ended.
    pub async fn cancel(&self, job: u64) -> Result<(), JobError> {
        let question = to_serve::Body::Cancel(ServeCancel { job });
        self.answer(question).await.map(drop)
    }

    /// Hands over, and gives the number of the job. Once a master has the question, only an answer of its own says that it has no such job:
    /// it is asked again, with the same key.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn submit(&self, submission: &ServeSubmit) -> Result<u64, JobError> {
        let at = &self.at;
        let len = submission.specification.len();
        if len > SPECIFICATION_MAX {
            let error = HandoverError::Specification(len);
            return Err(JobError::Refused(format!("{at}: {error}")));
        }
        let mut since: Option<Instant> = None;
        loop {
            let question = to_serve::Body::Submit(submission.clone());
            let error = match self.ask(question).await {
                Ok(mut asked) => match asked.answer().await {
                    Ok(from_serve::Body::Taken(taken)) => return Ok(taken.job),
                    Ok(_) => return Err(self.another_answer()),
                    Err(error @ StandingError::Refused(_)) => return Err(self.error(error)),
                    // It may have the job.
                    Err(error) => error,
                },
                Err(error) if since.is_none() => return Err(self.error(error)),
                Err(error) => error,
            };
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(JobError::Away(format!(
                    "`ropewalk serve` at {at} ended while it was handed the specification, and is not there again: {error}. It may have \
                     the job; `ropewalk queue --at {at}` shows it"
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Follows a job until it has ended; a `serve` that is away is asked again when it is back.
    ///
    /// * `key`: as the job was handed over; `None`: whichever has this number.
    /// * `handle`: gets the job each time it changes, with the last event of its run.
    /// * `note`: gets what is said beside that.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn follow(
        &self,
        job: u64,
        key: Option<[u8; KEY_LEN]>,
        handle: &mut impl FnMut(&Entry, Option<Event>),
        note: &mut impl FnMut(&str),
    ) -> Result<Entry, JobError> {
        let at = &self.at;
        let mut away: Option<Instant> = None;
        loop {
            let question = to_serve::Body::Follow(ServeFollow {
                job,
                key: key.map(Vec::from).unwrap_or_default(),
            });
            let broke = match self.ask(question).await {
                Ok(asked) => match self.hear(asked, &mut away, handle).await {
                    Ok(entry) => return Ok(entry),
                    Err(Heard::Strange(error)) => return Err(error),
                    Err(Heard::Broke(error @ StandingError::Refused(_))) => {
                        return Err(self.error(error));
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
                return Err(JobError::Away(format!(
                    "`ropewalk serve` at {at} is away for {}: {broke}. Job {job} goes on when it is back; `ropewalk queue --at {at} --wait \
                     {job}` waits for it",
                    format_seconds(PATIENCE.as_secs_f64())
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn hear(
        &self,
        mut asked: Standing,
        away: &mut Option<Instant>,
        handle: &mut impl FnMut(&Entry, Option<Event>),
    ) -> Result<Entry, Heard> {
        loop {
            let ServeState { job, event } = match asked.answer().await.map_err(Heard::Broke)? {
                from_serve::Body::State(state) => state,
                _ => return Err(Heard::Strange(self.another_answer())),
            };
            *away = None;
            let entry = self.entry(&job).map_err(Heard::Strange)?;
            // An event that a later version added is passed over.
            handle(&entry, serde_json::from_str(&event).ok());
            if entry.job.state.is_ended() {
                return Ok(entry);
            }
        }
    }

    fn another_answer(&self) -> JobError {
        JobError::Refused(format!("{}: it gave another answer", self.at))
    }

    fn entry(&self, json: &str) -> Result<Entry, JobError> {
        serde_json::from_str(json).map_err(|error| {
            let at = &self.at;
            JobError::Refused(format!(
                "{at}: `ropewalk serve` says what this version does not understand: {error}"
            ))
        })
    }
}

enum Heard {
    Broke(StandingError),
    Strange(JobError),
}

/// The report of a job that is followed: that of its last run.
#[derive(Debug, Default)]
pub struct LastReport {
    // When the run began that it is of.
    since: Option<u64>,
    report: Option<Box<Report>>,
}

impl LastReport {
    /// Takes what [`StandingMaster::follow`] says; gives the event where it is no report.
    pub fn take(&mut self, entry: &Entry, event: Option<Event>) -> Option<Event> {
        let since = match entry.job.state {
            State::Waiting { .. } => None,
            State::Running { since, .. } => Some(since),
            State::Ended { .. } => self.since,
        };
        if since != self.since {
            (self.since, self.report) = (since, None);
        }
        match event? {
            Event::Ended { report } => {
                // That of a try that has failed is not the job's.
                if !matches!(entry.job.state, State::Waiting { .. }) {
                    self.report = Some(report);
                }
                None
            }
            event => Some(event),
        }
    }

    /// The report of the job, which has ended.
    #[must_use]
    pub fn of(self, entry: &Entry) -> Report {
        match self.report {
            Some(report) if is_its(&report, entry) => *report,
            _ => summary(entry),
        }
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
        // A later run that made no report failed for a reason of its own.
        _ => {
            let is_same = report.error.is_none() || report.error == entry.job.reason;
            report.outcome != Outcome::Done && is_same
        }
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
        wanted_bytes: last.wanted_bytes.max(last.delivered_bytes),
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

#[cfg(test)]
mod tests {
    use ropewalk_proto::queue::Job;

    use super::*;

    fn entry(state: State) -> Entry {
        Entry {
            job: Job {
                id: 1,
                priority: 0,
                places: Vec::new(),
                submitted: 0,
                state,
                failures: 1,
                reason: Some("killed".into()),
                safe_bytes: 0,
            },
            label: None,
            from: Vec::new(),
            to: Vec::new(),
            process: None,
            now: None,
            last: None,
        }
    }

    fn running(since: u64) -> Entry {
        let cancelled = false;
        entry(State::Running { since, cancelled })
    }

    fn ended(error: &str) -> Option<Event> {
        let report = Report {
            transfer: "its own".into(),
            error: Some(error.into()),
            ..Report::ended(Outcome::Failed)
        };
        Some(Event::Ended {
            report: Box::new(report),
        })
    }

    /// The report of an earlier try is not that of the job, however much of what happened between was seen.
    #[test]
    fn reports_are_of_the_last_run() {
        let waiting = || entry(State::Waiting { not_before: 9 });
        let end = |reason: &str| {
            let mut end = entry(State::Ended {
                at: 30,
                end: End::Failed,
            });
            end.job.reason = Some(reason.into());
            end
        };
        let report = |seen: Vec<(Entry, Option<Event>)>, reason: &str, event| {
            let mut last = LastReport::default();
            for (entry, event) in seen {
                assert_eq!(last.take(&entry, event), None);
            }
            assert_eq!(last.take(&end(reason), event), None);
            last.of(&end(reason))
        };
        let first = || (running(1), ended("no route"));
        // The report arrives before, or with, the end of the job.
        for (seen, event) in [
            (vec![first()], None),
            (vec![], ended("no route")),
            (vec![first(), (running(1), None)], None),
            (vec![first(), (running(20), ended("no route"))], None),
        ] {
            assert_eq!(report(seen, "no route", event).transfer, "its own");
        }
        // The last run has made none.
        for between in [
            vec![(waiting(), None)],
            vec![(running(20), None)],
            vec![(waiting(), ended("no route")), (running(20), None)],
        ] {
            let seen = [vec![first()], between].concat();
            assert_eq!(report(seen, "no route", None).transfer, "");
        }
        // Nor was it seen.
        let report = report(vec![first()], "killed", None);
        assert_eq!(
            (&*report.transfer, report.error.as_deref()),
            ("", Some("killed"))
        );
        let event = Event::Note {
            seconds: 0.0,
            message: "a note".into(),
        };
        let mut last = LastReport::default();
        assert_eq!(last.take(&running(1), Some(event.clone())), Some(event));
    }
}
