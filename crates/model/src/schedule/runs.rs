//! A schedule seen from the receivers, with spare holders for when a sender fails.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
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
/// holders change. Deterministic; ties go to the lowest sender. Cost O(runs × log + holders of the
/// distinct sets), and for each closed pair a step more.
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
    /// Bytes each sender stands by for, and one run of mean length more, so that speed counts from the
    /// first choice on.
    promised: Vec<f64>,
    /// For each holder set, its members with the shortest wait on top. Waits only grow, so an entry may
    /// be too small but never too large.
    queues: HashMap<usize, BinaryHeap<Reverse<(Wait, usize)>>>,
    chosen: HashMap<(usize, usize, usize), Arc<[usize]>>,
}

/// Seconds that a sender would need for all it stands by for; ordered, never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wait(f64);

impl Eq for Wait {}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Wait {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
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
        let runs = schedule.assignments.len().max(1) as f64;
        let bytes: f64 = loads.senders.iter().map(|load| *load as f64).sum();
        Self {
            open: OpenPairs::new(problem),
            spares_max,
            left_over: problem
                .senders
                .iter()
                .zip(&loads.senders)
                .map(left_over)
                .collect(),
            promised: vec![(bytes / runs).max(1.0); problem.senders.len()],
            queues: HashMap::new(),
            chosen: HashMap::new(),
        }
    }

    fn wait(&self, sender: usize) -> Wait {
        Wait(self.promised[sender] / self.left_over[sender])
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
                let chosen: Arc<[usize]> = self.shortest(sender, receiver, set, holders).into();
                self.chosen.insert(key, Arc::clone(&chosen));
                chosen
            }
        };
        for &spare in chosen.iter() {
            self.promised[spare] += bytes as f64;
        }
        chosen.to_vec()
    }

    /// The holders with the shortest waits, other than the sender, that can reach the receiver.
    fn shortest(
        &mut self,
        sender: usize,
        receiver: usize,
        set: usize,
        holders: &[usize],
    ) -> Vec<usize> {
        let mut queue = self.queues.remove(&set).unwrap_or_else(|| {
            let waits = holders
                .iter()
                .map(|&holder| Reverse((self.wait(holder), holder)));
            waits.collect()
        });
        let (mut found, mut taken_out) = (Vec::new(), Vec::new());
        while found.len() < self.spares_max {
            let Some(Reverse((wait, holder))) = queue.pop() else {
                break;
            };
            let now = self.wait(holder);
            if wait < now {
                queue.push(Reverse((now, holder)));
                continue;
            }
            if holder != sender && self.open.is_open(holder, receiver) {
                found.push(holder);
            }
            taken_out.push(Reverse((wait, holder)));
        }
        queue.extend(taken_out);
        self.queues.insert(set, queue);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Receiver, Sender};
    use crate::range::RangeSet;

    /// The load of a sender that fails falls on several others, the faster ones first.
    #[test]
    fn spares_are_spread() {
        let all = RangeSet::from(Range::new(0, 1000));
        let sender = |i: u64| Sender {
            name: format!("w{i}"),
            up: if i == 3 { 200 } else { 100 },
            ranges: all.clone(),
        };
        let receiver = |i: u64| Receiver {
            name: format!("r{i}"),
            down: 1000,
            ranges: all.clone(),
            ..Receiver::default()
        };
        let problem = Problem {
            senders: (0..5).map(sender).collect(),
            receivers: (0..8).map(receiver).collect(),
            ..Problem::default()
        };
        let assignment = |receiver| Assignment {
            range: Range::new(0, 1000),
            sender: 0,
            receiver,
        };
        let schedule = Schedule::from_assignments((0..8).map(assignment).collect());
        let runs = receiver_runs(&problem, &schedule, 1);
        let spares = runs.iter().flatten().map(|run| run.spares[0]);
        let mut counts = [0; 5];
        spares.for_each(|spare| counts[spare] += 1);
        assert_eq!(runs[0][0].spares, [3]);
        assert_eq!(
            counts,
            [0, 2, 2, 3, 1],
            "in proportion to speed, as far as whole runs allow"
        );
    }
}
