//! A schedule seen from the receivers, with spare holders for when a sender fails.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::class::OpenPairs;
use crate::problem::Problem;
use crate::range::Range;
use crate::segment::member_key;

use super::{Assignment, RelaySchedule, Schedule};

/// Bytes a receiver asks one sender for, and which others could send all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverRun {
    /// The bytes; never empty.
    pub range: Range,
    /// Position in [`Problem::senders`] of the sender planned.
    pub sender: usize,
    /// Other senders that hold the whole range and can reach the receiver, best first.
    pub spares: Vec<usize>,
    /// Position in [`Problem::receivers`] of the one that is to hand the bytes on; the senders are those that could, too.
    pub relay: Option<usize>,
}

/// For each receiver, its share of the schedule as runs ordered by offset, with at most `spares_max`
/// other holders each.
///
/// Spares are those with the most sending speed left over by the plan, less what they are spares of
/// already, so that the failure of one sender does not fall on one other alone. A run is cut where its
/// holders change. Deterministic; ties go to the lowest sender. Cost O(rows × log + runs × log²), and for
/// each closed pair a step more.
#[must_use]
pub fn receiver_runs(
    problem: &Problem,
    schedule: &Schedule,
    spares_max: usize,
) -> Vec<Vec<ReceiverRun>> {
    let planned = schedule.assignments.iter().map(|run| (*run, None));
    runs_of(problem, schedule, planned.collect(), spares_max)
}

/// As [`receiver_runs`], where receivers hand on: the sender of what one of them hands on is a holder that the plan leaves speed,
/// chosen as spares are: at least one is, whatever `spares_max` says.
#[must_use]
pub fn relay_runs(
    problem: &Problem,
    schedule: &RelaySchedule,
    spares_max: usize,
) -> Vec<Vec<ReceiverRun>> {
    let direct = schedule.direct.assignments.iter().map(|run| (*run, None));
    let relayed = schedule.relayed.iter().map(|run| {
        let assignment = Assignment {
            range: run.range,
            sender: NO_SENDER,
            receiver: run.to,
        };
        (assignment, Some(run.from))
    });
    let planned = direct.chain(relayed).collect();
    // Without one such a run would have no sender, and its bytes would be nobody's.
    runs_of(problem, &schedule.direct, planned, spares_max.max(1))
}

/// Stands for the sender of what a receiver hands on, before one is chosen.
const NO_SENDER: usize = usize::MAX;

/// * `planned`: what each receiver gets, and which other one hands it on.
fn runs_of(
    problem: &Problem,
    schedule: &Schedule,
    mut planned: Vec<(Assignment, Option<usize>)>,
    spares_max: usize,
) -> Vec<Vec<ReceiverRun>> {
    let holders = Holders::new(problem);
    let mut spares = SpareChoice::new(problem, schedule, spares_max, &holders);
    let mut by_receiver: Vec<Vec<ReceiverRun>> = vec![Vec::new(); problem.receivers.len()];
    planned.sort_unstable_by_key(|(run, _)| (run.receiver, run.range.start));
    for (assignment, relay) in planned {
        let Some(runs) = by_receiver.get_mut(assignment.receiver) else {
            continue;
        };
        for stretch in holders.overlapping(assignment.range) {
            let Some(range) = holders.range(stretch).intersect(assignment.range) else {
                continue;
            };
            let receiver = assignment.receiver;
            let (sender, chosen) = match relay {
                None => {
                    let sender = assignment.sender;
                    (
                        sender,
                        spares.choose(sender, receiver, stretch, range.len()),
                    )
                }
                Some(_) => {
                    let chosen = spares.choose(NO_SENDER, receiver, stretch, range.len());
                    match chosen.split_first() {
                        Some((&first, others)) => (first, others.into()),
                        // All pairs of the receiver are closed: it asks a holder for hashes all the same.
                        None => match spares.any(stretch) {
                            Some(holder) => (holder, chosen),
                            None => continue,
                        },
                    }
                }
            };
            match runs.last_mut() {
                Some(run)
                    if (run.sender, run.relay) == (sender, relay)
                        && run.range.end == range.start
                        && *run.spares == *chosen =>
                {
                    run.range.end = range.end;
                }
                _ => runs.push(ReceiverRun {
                    range,
                    sender,
                    spares: chosen.to_vec(),
                    relay,
                }),
            }
        }
    }
    by_receiver
}

/// Chooses spares and remembers who stands by for how much.
struct SpareChoice<'h> {
    holders: &'h Holders,
    open: OpenPairs,
    spares_max: usize,
    /// Bytes per second that the plan leaves each sender, at least a little for any that lives.
    left_over: Vec<f64>,
    /// Bytes each sender stands by for, and one run of mean length more, so that speed counts from the
    /// first choice on.
    promised: Vec<f64>,
    /// For each tree node of the holders, its members with the shortest wait on top. Waits only grow, so
    /// an entry may be too small but never too large.
    queues: Vec<BinaryHeap<Reverse<(Wait, usize)>>>,
    /// By sender, receiver and holder set.
    chosen: HashMap<(usize, usize, u128), Arc<[usize]>>,
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

impl<'h> SpareChoice<'h> {
    fn new(
        problem: &Problem,
        schedule: &Schedule,
        spares_max: usize,
        holders: &'h Holders,
    ) -> Self {
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
        let mut choice = Self {
            holders,
            open: OpenPairs::new(problem),
            spares_max,
            left_over: problem
                .senders
                .iter()
                .zip(&loads.senders)
                .map(left_over)
                .collect(),
            promised: vec![(bytes / runs).max(1.0); problem.senders.len()],
            queues: vec![BinaryHeap::new(); holders.tree_len()],
            chosen: HashMap::new(),
        };
        for &(node, sender) in &holders.covers {
            let wait = choice.wait(sender as usize);
            choice.queues[node as usize].push(Reverse((wait, sender as usize)));
        }
        choice
    }

    fn wait(&self, sender: usize) -> Wait {
        Wait(self.promised[sender] / self.left_over[sender])
    }

    fn choose(
        &mut self,
        sender: usize,
        receiver: usize,
        stretch: usize,
        bytes: u64,
    ) -> Arc<[usize]> {
        let key = (sender, receiver, self.holders.sets[stretch]);
        let chosen = match self.chosen.get(&key) {
            Some(chosen) => Arc::clone(chosen),
            None => {
                let chosen: Arc<[usize]> = self.shortest(sender, receiver, stretch).into();
                self.chosen.insert(key, Arc::clone(&chosen));
                chosen
            }
        };
        for &spare in chosen.iter() {
            self.promised[spare] += bytes as f64;
        }
        chosen
    }

    /// A holder of a stretch, whether or not it reaches a receiver.
    fn any(&mut self, stretch: usize) -> Option<usize> {
        let leaf = self.holders.leaf(stretch);
        let mut path = std::iter::successors(Some(leaf), |node| Some(node / 2).filter(|n| *n > 0));
        path.find_map(|node| self.top(node))
            .map(|(_, holder)| holder)
    }

    /// The holders with the shortest waits, other than the sender, that can reach the receiver.
    fn shortest(&mut self, sender: usize, receiver: usize, stretch: usize) -> Vec<usize> {
        let (mut found, mut taken_out) = (Vec::new(), Vec::new());
        while found.len() < self.spares_max {
            // The holders of a stretch are those of its tree node and of all above.
            let mut best: Option<(Wait, usize, usize)> = None;
            let mut node = self.holders.leaf(stretch);
            while node > 0 {
                if let Some((wait, holder)) = self.top(node) {
                    let shorter = |&(w, h, _): &(Wait, usize, usize)| (wait, holder) < (w, h);
                    if best.as_ref().is_none_or(shorter) {
                        best = Some((wait, holder, node));
                    }
                }
                node /= 2;
            }
            let Some((wait, holder, node)) = best else {
                break;
            };
            self.queues[node].pop();
            if holder != sender && self.open.is_open(holder, receiver) {
                found.push(holder);
            }
            taken_out.push((node, Reverse((wait, holder))));
        }
        for (node, entry) in taken_out {
            self.queues[node].push(entry);
        }
        found
    }

    /// The member of a tree node with the shortest wait as it is now.
    fn top(&mut self, node: usize) -> Option<(Wait, usize)> {
        loop {
            let &Reverse((wait, holder)) = self.queues[node].peek()?;
            let now = self.wait(holder);
            if wait == now {
                return Some((wait, holder));
            }
            self.queues[node].pop();
            self.queues[node].push(Reverse((now, holder)));
        }
    }
}

/// The stretches over which the holders do not change, without a list of holders for each: nested ranges
/// would need a list as long as the number of senders for every one of them.
struct Holders {
    /// Where stretches begin and end.
    cuts: Vec<u64>,
    /// Names the holder set of each stretch.
    sets: Vec<u128>,
    /// Leaves of a binary tree over the stretches are `leaves..`, node 1 is its root.
    leaves: usize,
    /// Senders at the tree nodes that make up their ranges.
    covers: Vec<(u32, u32)>,
}

impl Holders {
    fn new(problem: &Problem) -> Self {
        let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
        let mut events: Vec<(u64, u128)> = Vec::new();
        for (sender, run) in alive
            .clone()
            .flat_map(|(index, sender)| sender.ranges.iter().map(move |run| (index, run)))
        {
            let key = member_key(sender);
            events.extend([(run.start, key), (run.end, key)]);
        }
        events.sort_unstable();
        let mut holders = Self {
            cuts: Vec::new(),
            sets: Vec::new(),
            leaves: 0,
            covers: Vec::new(),
        };
        let mut present = 0;
        for (offset, key) in events {
            present ^= key;
            if holders.cuts.last() == Some(&offset) {
                holders.sets.pop();
            } else {
                holders.cuts.push(offset);
            }
            holders.sets.push(present);
        }
        // Beyond the last cut nobody holds anything.
        holders.sets.pop();
        holders.leaves = holders.sets.len().next_power_of_two();
        for (index, run) in
            alive.flat_map(|(index, sender)| sender.ranges.iter().map(move |run| (index, run)))
        {
            let at = |offset| holders.cuts.partition_point(|&cut| cut < offset) + holders.leaves;
            let (mut low, mut high) = (at(run.start), at(run.end));
            while low < high {
                if low % 2 == 1 {
                    holders.covers.push((low as u32, index as u32));
                    low += 1;
                }
                if high % 2 == 1 {
                    high -= 1;
                    holders.covers.push((high as u32, index as u32));
                }
                low /= 2;
                high /= 2;
            }
        }
        holders
    }

    fn tree_len(&self) -> usize {
        2 * self.leaves
    }

    fn leaf(&self, stretch: usize) -> usize {
        self.leaves + stretch
    }

    fn range(&self, stretch: usize) -> Range {
        Range::new(self.cuts[stretch], self.cuts[stretch + 1])
    }

    /// The stretches that have bytes in the range.
    fn overlapping(&self, range: Range) -> std::ops::Range<usize> {
        let after = self.cuts.partition_point(|&cut| cut < range.end);
        let first = self.cuts.partition_point(|&cut| cut <= range.start);
        first.saturating_sub(1)..after.min(self.sets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Relayed;
    use super::*;
    use crate::problem::{PairCap, Receiver, Sender};
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

    /// What a receiver hands on has a holder, too, also where no spares are wanted, or all pairs are closed: no byte of the plan is lost.
    #[test]
    fn relayed_runs_keep_a_holder() {
        let all = RangeSet::from(Range::new(0, 100));
        let receiver = |name: &str| Receiver {
            name: name.into(),
            down: 10,
            ranges: all.clone(),
            relay_up: Some(10),
            ..Receiver::default()
        };
        let problem = Problem {
            senders: vec![Sender {
                name: "s".into(),
                up: 10,
                ranges: all.clone(),
            }],
            receivers: vec![receiver("a"), receiver("b")],
            ..Problem::default()
        };
        let direct = |range, receiver| Assignment {
            range,
            sender: 0,
            receiver,
        };
        let (first, second) = (Range::new(0, 50), Range::new(50, 100));
        let relayed = |range, from, to| Relayed { range, from, to };
        let schedule = RelaySchedule {
            direct: Schedule::from_assignments(vec![direct(first, 0), direct(second, 1)]),
            relayed: vec![relayed(first, 0, 1), relayed(second, 1, 0)],
        };
        let closed = Problem {
            pair_caps: (0..2)
                .map(|receiver| PairCap {
                    sender: 0,
                    receiver,
                    cap: 0,
                })
                .collect(),
            ..problem.clone()
        };
        for (problem, spares_max) in [(&problem, 0), (&problem, 2), (&closed, 2)] {
            let runs = relay_runs(problem, &schedule, spares_max);
            let found = |runs: &Vec<ReceiverRun>| {
                let of_run = |run: &ReceiverRun| (run.range, run.sender, run.relay);
                runs.iter().map(of_run).collect::<Vec<_>>()
            };
            assert_eq!(found(&runs[0]), [(first, 0, None), (second, 0, Some(1))]);
            assert_eq!(found(&runs[1]), [(first, 0, Some(0)), (second, 0, None)]);
        }
    }
}
