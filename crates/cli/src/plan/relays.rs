//! What a transfer would gain if receivers handed on what they have.

use anyhow::Result;
use ropewalk_model::{Problem, format_seconds, verify_relays};
use serde::Serialize;

use super::compare::TimedError;
use crate::report::{count, listed};

/// A plan with relays, and the least time with them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Relays {
    /// Least possible time.
    bound_seconds: f64,
    /// Whether some plan takes no longer.
    bound_is_exact: bool,
    /// What sets it; "r0's uplink" is what receiver r0 hands on with.
    binding: Vec<String>,
    /// Time of the plan.
    predicted_seconds: f64,
    /// Most nodes that a byte passes, the last one included.
    hops: u32,
    /// Most fellow receivers that one exchanges bytes with.
    peers: usize,
    /// The plan.
    transfers: Vec<Run>,
}

/// A run of bytes, half open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Run {
    /// Name of a writer, or of a reader where `relayed`.
    from: String,
    /// Name of the reader that gets the bytes.
    reader: String,
    start: u64,
    end: u64,
    /// Whether a reader hands the bytes on.
    relayed: bool,
}

impl Relays {
    /// `None` where no two receivers want the same bytes, or none could hand them on.
    pub(crate) fn of(problem: &Problem) -> Result<Option<Self>> {
        if !ropewalk_sched::relays(problem) {
            return Ok(None);
        }
        let bound = ropewalk_sched::relay_bound(problem)?;
        let plan = ropewalk_sched::plan_to_bound(problem, &bound)?;
        let hops = verify_relays(problem, &plan.schedule)
            .map_err(|error| TimedError::Wrong("relay".to_owned(), error))?;
        let reader = |at: usize| problem.receivers[at].name.clone();
        let direct = plan.schedule.direct.assignments.iter().map(|run| Run {
            from: problem.senders[run.sender].name.clone(),
            reader: reader(run.receiver),
            start: run.range.start,
            end: run.range.end,
            relayed: false,
        });
        let relayed = plan.schedule.relayed.iter().map(|run| Run {
            from: reader(run.from),
            reader: reader(run.to),
            start: run.range.start,
            end: run.range.end,
            relayed: true,
        });
        Ok(Some(Self {
            bound_seconds: bound.seconds,
            bound_is_exact: bound.is_exact,
            binding: bound.binding,
            predicted_seconds: plan.seconds,
            hops,
            peers: plan.schedule.peers_max(),
            transfers: direct.chain(relayed).collect(),
        }))
    }

    /// The line for people.
    ///
    /// * `now_seconds`: the time predicted without relays.
    pub(crate) fn text(&self, now_seconds: f64) -> String {
        let bound = format_seconds(self.bound_seconds);
        let set_by = match self.binding.is_empty() {
            true => String::new(),
            false => format!(", set by {}", listed(&self.binding)),
        };
        if self.transfers.iter().all(|run| !run.relayed) {
            return format!("bound {bound}{set_by}; receivers need not hand anything on");
        }
        let predicted = format_seconds(self.predicted_seconds);
        let gain = now_seconds / self.predicted_seconds;
        let hops = count(u64::from(self.hops), "hop");
        format!(
            "{predicted} in {hops}, bound {bound}{set_by}: {gain:.2} times as fast if receivers handed on what they have; transfers do not"
        )
    }
}
