//! A schedule seen from the receivers, with spare holders for when a sender fails.

use std::collections::HashMap;
use std::sync::Arc;

use crate::class::OpenPairs;
use crate::problem::Problem;
use crate::range::Range;
use crate::segment::segments;

use super::{Assignment, Schedule};

/// Bytes a receiver asks one sender for, and who else could send all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverRun {
    /// The bytes; never empty.
    pub range: Range,
    /// Position in [`Problem::senders`] of the sender planned.
    pub sender: usize,
    /// Other senders that hold the whole range and can reach the receiver, best first.
    pub spares: Vec<usize>,
}

/// For each receiver, its share of the schedule as runs ordered by offset, with at most `spares_max`
/// other holders each.
///
/// Spares are those with the most sending speed left over by the plan, less what they already stand
/// by for, so that the failure of one sender does not fall on one other alone. A run is cut where its
/// holders change. Deterministic; ties go to the lowest sender. Cost O(runs × log) plus the holders of
/// each distinct (sender, holder set, receiver).
#[must_use]
pub fn receiver_runs(
    problem: &Problem,
    schedule: &Schedule,
    spares_max: usize,
) -> Vec<Vec<ReceiverRun>> {
    let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
    let held = segments(alive.map(|(index, sender)| (index, &sender.ranges)));
    let mut spares = SpareChoice::new(problem, schedule, spares_max);
    let mut by_receiver: Vec<Vec<ReceiverRun>> = vec![Vec::new(); problem.receivers.len()];
    let mut ordered: Vec<&Assignment> = schedule.assignments.iter().collect();
    ordered.sort_unstable_by_key(|a| (a.receiver, a.range.start));
    for assignment in ordered {
        let Some(runs) = by_receiver.get_mut(assignment.receiver) else {
            continue;
        };
        let first = held.partition_point(|hold| hold.range.end <= assignment.range.start);
        for hold in &held[first..] {
            let Some(range) = hold.range.intersect(assignment.range) else {
                break;
            };
            let (sender, receiver) = (assignment.sender, assignment.receiver);
            let chosen = spares.choose(sender, receiver, hold.set, &hold.members, range.len());
            match runs.last_mut() {
                Some(run)
                    if run.sender == sender
                        && run.range.end == range.start
                        && run.spares == chosen =>
                {
                    run.range.end = range.end;
                }
                _ => runs.push(ReceiverRun {
                    range,
                    sender,
                    spares: chosen,
                }),
            }
        }
    }
    by_receiver
}

/// Chooses spares and remembers who stands by for how much.
struct SpareChoice {
    open: OpenPairs,
    spares_max: usize,
    /// Bytes per second that the plan leaves each sender, at least a little for any that lives.
    left_over: Vec<f64>,
    /// Bytes each sender already stands by for.
    promised: Vec<f64>,
    chosen: HashMap<(usize, usize, usize), Arc<[usize]>>,
}

impl SpareChoice {
    fn new(problem: &Problem, schedule: &Schedule, spares_max: usize) -> Self {
        let loads = schedule.loads(problem);
        let seconds = loads.seconds(problem);
        let left_over = |(sender, load): (&crate::problem::Sender, &u128)| {
            let up = sender.up as f64;
            let used = if seconds > 0.0 {
                *load as f64 / seconds
            } else {
                0.0
            };
            // A sender that the plan uses fully still makes a spare, in proportion to its speed.
            (up - used).max(up / 100.0)
        };
        Self {
            open: OpenPairs::new(problem),
            spares_max,
            left_over: problem
                .senders
                .iter()
                .zip(&loads.senders)
                .map(left_over)
                .collect(),
            promised: vec![0.0; problem.senders.len()],
            chosen: HashMap::new(),
        }
    }

    fn choose(
        &mut self,
        sender: usize,
        receiver: usize,
        set: usize,
        holders: &[usize],
        bytes: u64,
    ) -> Vec<usize> {
        let key = (sender, receiver, set);
        let chosen = match self.chosen.get(&key) {
            Some(chosen) => Arc::clone(chosen),
            None => {
                let usable = holders
                    .iter()
                    .copied()
                    .filter(|&holder| holder != sender && self.open.is_open(holder, receiver));
                let mut usable: Vec<usize> = usable.collect();
                // Seconds each would need for all it stands by for, this run included.
                let wait = |s: usize| (self.promised[s] + bytes as f64) / self.left_over[s];
                usable.sort_by(|&a, &b| wait(a).total_cmp(&wait(b)));
                usable.truncate(self.spares_max);
                let chosen: Arc<[usize]> = usable.into();
                self.chosen.insert(key, Arc::clone(&chosen));
                chosen
            }
        };
        for &spare in chosen.iter() {
            self.promised[spare] += bytes as f64;
        }
        chosen.to_vec()
    }
}
