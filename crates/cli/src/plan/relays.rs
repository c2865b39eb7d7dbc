//! What a transfer would gain if receivers handed on what they have.

use std::collections::HashMap;

use anyhow::Result;
use ropewalk_model::{Problem, format_seconds, verify_relays};
use ropewalk_sched::{Bound, plan_to_bound, relay_bound};
use serde::Serialize;

use super::compare::TimedError;
use crate::numbers::count;
use crate::report::listed;

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

/// The same problem, where readers on the address of a writer hand on at its speed, too; `None` without such readers.
///
/// Plans leave these uplinks to the writers, which may not need all of them: only with them it is true that no plan takes less.
fn with_all_uplinks(problem: &Problem) -> Option<Problem> {
    let senders = problem.senders.iter();
    let ups: HashMap<&str, u64> = senders.map(|s| (s.name.as_str(), s.up)).collect();
    let mut all = problem.clone();
    let mut is_changed = false;
    let silent = all.receivers.iter_mut().filter(|r| r.relay_up.is_none());
    for receiver in silent {
        if let Some(&up) = ups.get(receiver.name.as_str()) {
            receiver.relay_up = Some(up);
            is_changed = true;
        }
    }
    is_changed.then_some(all)
}

impl Relays {
    /// `None` where no two receivers want the same bytes, or none could hand them on.
    pub(crate) fn of(problem: &Problem) -> Result<Option<Self>> {
        if !ropewalk_sched::relays(problem) {
            return Ok(None);
        }
        let bound = match with_all_uplinks(problem) {
            Some(all) => Bound {
                exact: None,
                is_exact: false,
                ..relay_bound(&all)?
            },
            None => relay_bound(problem)?,
        };
        let plan = plan_to_bound(problem, &bound)?;
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
            "{predicted} in {hops}, bound {bound}{set_by}: {gain:.2} times as fast where receivers hand on what they have"
        )
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::{ByteRate, TransferSpec};

    use super::*;

    /// A reader on the address of a writer that has little to send could hand on to both others at once: 1,000 s, where
    /// plans take 3,000 s. The bound is no more than that.
    #[test]
    fn uplinks_of_writers_are_in_the_bound() {
        let text = "writer c:1 /f 0 0-999999 up=1000B/s\n\
                    writer a:1 /g 0 1000000-1000009 up=1000000B/s\n\
                    reader a:1 /x 0 0-999999 down=1000000B/s\n\
                    reader e:1 /x 0 0-999999 down=1000000B/s up=1B/s\n\
                    reader h:1 /x 0 0-999999 down=1000000B/s up=1B/s\n\
                    reader k:1 /x 0 1000000-1000009 down=1000000B/s";
        let problem = TransferSpec::parse(text).unwrap().to_problem(ByteRate(1));
        let relays = Relays::of(&problem).unwrap().unwrap();
        assert!((relays.bound_seconds - 1_000.0).abs() < 1e-6, "{relays:?}");
        assert!(!relays.bound_is_exact);
    }
}
