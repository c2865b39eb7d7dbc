//! Transfers that a standing master carries out: handed over, followed, cancelled.

use ropewalk_master::{Cancel, JobError, LastReport, StandingMaster, job_key};
use ropewalk_proto::control::{ServeOption, ServeSubmit};
use ropewalk_proto::report::{ErrorKind, Event, Outcome, Report};

use crate::Error;
use crate::error::Fault;

/// What is handed over, and where.
pub(crate) struct Job {
    pub master: StandingMaster,
    pub specification: String,
    pub options: Vec<ServeOption>,
}

impl Job {
    /// Hands it over, and follows it to its end. It may be dropped at any time: the job goes on.
    ///
    /// * `cancel`: ends the job, too.
    pub async fn follow(
        self,
        cancel: Cancel,
        mut on_event: impl FnMut(Event),
    ) -> Result<Report, Error> {
        let key = job_key();
        let submission = ServeSubmit {
            key: key.to_vec(),
            specification: self.specification,
            options: self.options,
            priority: 0,
        };
        let master = &self.master;
        let job = tokio::select! {
            job = master.submit(&submission) => job?,
            // Nothing takes its answer: should the job be taken all the same, it is ended.
            () = cancel.cancelled() => {
                let text = format!("cancelled while the job was handed over; {} may have it: see `ropewalk queue`", master.at);
                let mut fault = Fault::new(text);
                fault.kind = Some(ErrorKind::Interrupted);
                return Err(Error::Input(fault));
            }
        };
        on_event(Event::HandedOver {
            job,
            at: master.at.to_string(),
        });
        let mut last = LastReport::default();
        let entry = {
            let mut handle = |entry: &_, event: Option<Event>| {
                // The end of a run is not that of the job: it may run again.
                if let Some(event) = last.take(entry, event) {
                    on_event(event);
                }
            };
            // It is asked again; the caller sees no events meanwhile.
            let mut note = |_: &str| {};
            let mut following =
                std::pin::pin!(master.follow(job, Some(key), &mut handle, &mut note));
            tokio::select! {
                entry = &mut following => entry?,
                () = cancel.cancelled() => {
                    match master.cancel(job).await {
                        // It has ended just now.
                        Ok(()) | Err(JobError::Refused(_)) => following.await?,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        };
        let report = last.of(&entry);
        match report.outcome {
            Outcome::Done => Ok(report),
            _ => Err(Error::of_report(report)),
        }
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Self {
        let sort = match &error {
            JobError::Absent { .. } | JobError::Away(_) => Self::Network,
            _ => Self::Input,
        };
        sort(Fault::of(error))
    }
}
