//! Schedules in which receivers hand on what they have, and their check.
//!
//! A receiver keeps everything that it wants, so it may pass each of these bytes on as soon as they are there. The
//! part from original holders is a plain [`Schedule`]; the rest names two receivers. Left out on purpose: when a
//! byte passes. All rates are steady, so a byte is handed on while its source still gets others.

use std::collections::HashMap;

use crate::problem::Problem;
use crate::range::{Range, RangeSet};

use super::verify::{Given, VerifyError};
use super::{Assignment, Loads, Schedule, TrunkIndex};

/// One run of bytes that one receiver hands on to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Relayed {
    /// The bytes, never empty in a plan that [`verify_relays`] passes.
    pub range: Range,
    /// Position in [`Problem::receivers`] of the one that has the bytes.
    pub from: usize,
    /// Position in [`Problem::receivers`] of the one that wants them.
    pub to: usize,
}

/// Which node sends which bytes to which, fellow receivers among them, in whole bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelaySchedule {
    /// From original holders.
    pub direct: Schedule,
    /// From fellow receivers; ordered by range start, then by the receiver that gets the bytes.
    pub relayed: Vec<Relayed>,
}

/// Bytes that such a schedule puts on each node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayLoads {
    /// Of senders, receivers and links; what fellow receivers hand on counts for the receivers.
    pub nodes: Loads,
    /// Bytes handed on, one entry a receiver.
    pub uplinks: Vec<u128>,
}

impl RelaySchedule {
    /// A schedule of these runs: sorted, empty ones dropped, neighbours of one pair joined.
    #[must_use]
    pub fn from_runs(direct: Vec<Assignment>, relayed: Vec<Relayed>) -> Self {
        // The runs between two receivers are joined as those between a sender and a receiver are.
        let runs = relayed.into_iter().map(|run| Assignment {
            range: run.range,
            sender: run.from,
            receiver: run.to,
        });
        let joined = Schedule::from_assignments(runs.collect());
        let relayed = joined.assignments.into_iter().map(|run| Relayed {
            range: run.range,
            from: run.sender,
            to: run.receiver,
        });
        Self {
            direct: Schedule::from_assignments(direct),
            relayed: relayed.collect(),
        }
    }

    /// Bytes on each node, capped pair and trunk. Cost O(runs × (1 + trunks) + pair caps).
    #[must_use]
    pub fn loads(&self, problem: &Problem) -> RelayLoads {
        let trunks = TrunkIndex::new(problem);
        let mut nodes = self.direct.loads(problem);
        let mut uplinks = vec![0; problem.receivers.len()];
        for run in &self.relayed {
            let bytes = u128::from(run.range.len());
            if let Some(load) = uplinks.get_mut(run.from) {
                *load += bytes;
            }
            if let Some(load) = nodes.receivers.get_mut(run.to) {
                *load += bytes;
            }
            for trunk in trunks.between(run.from, run.to) {
                nodes.trunks[trunk] += bytes;
            }
        }
        RelayLoads { nodes, uplinks }
    }

    /// Seconds until the last byte: the largest load divided by its capacity.
    ///
    /// Infinite when a node, pair or trunk of speed 0, or a receiver that does not hand on, is given bytes.
    #[must_use]
    pub fn predicted_seconds(&self, problem: &Problem) -> f64 {
        self.loads(problem).seconds(problem)
    }

    /// The most fellow receivers that one receiver gets bytes from or hands bytes on to. Cost O(runs × log).
    #[must_use]
    pub fn peers_max(&self) -> usize {
        let both = |run: &Relayed| [(run.from, run.to), (run.to, run.from)];
        let mut pairs: Vec<(usize, usize)> = self.relayed.iter().flat_map(both).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let peers = pairs.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len);
        peers.max().unwrap_or(0)
    }
}

impl RelayLoads {
    /// The largest load divided by its capacity, in seconds; the fluid model has no other cost.
    #[must_use]
    pub fn seconds(&self, problem: &Problem) -> f64 {
        let speeds = problem.receivers.iter().map(|r| r.relay_up.unwrap_or(0));
        let used = self
            .uplinks
            .iter()
            .zip(speeds)
            .filter(|(load, _)| **load > 0);
        let uplinks = used.map(|(load, speed)| *load as f64 / speed as f64);
        uplinks.fold(self.nodes.seconds(problem), f64::max)
    }
}

/// Checks that every wanted byte of every destination is assigned exactly once: from a sender that holds it, or from
/// a fellow receiver that gets it by way of others that do, in the end from a sender.
///
/// Returns the most hops that a byte takes from a sender: 1 without relays, 0 when nothing is wanted. Cost
/// O(runs × log × hops).
///
/// # Errors
/// The first fault found, see [`VerifyError`].
pub fn verify_relays(problem: &Problem, schedule: &RelaySchedule) -> Result<u32, VerifyError> {
    let mut given = Given::new(problem);
    for run in &schedule.direct.assignments {
        given.direct(run)?;
    }
    let trunks = TrunkIndex::new(problem);
    for run in schedule.relayed.iter().filter(|run| !run.range.is_empty()) {
        check_relayed(problem, &trunks, run)?;
        given.add(run.to, run.range);
    }
    given.each_byte_once()?;
    hops(problem, schedule)
}

fn check_relayed(problem: &Problem, trunks: &TrunkIndex, run: &Relayed) -> Result<(), VerifyError> {
    let (range, nodes) = (run.range, &problem.receivers);
    let (Some(from), Some(to)) = (nodes.get(run.from), nodes.get(run.to)) else {
        return Err(VerifyError::UnknownRelay {
            from: run.from,
            to: run.to,
            range,
        });
    };
    if !to.ranges.contains_range(range) {
        return Err(VerifyError::NotWanted {
            receiver: to.name.clone(),
            range,
        });
    }
    let mut trunks = trunks.between(run.from, run.to);
    let is_closed = trunks.any(|trunk| problem.trunks[trunk].cap == 0);
    if from.relay_up.unwrap_or(0) == 0 || to.down == 0 || is_closed {
        return Err(VerifyError::Closed {
            sender: from.name.clone(),
            receiver: to.name.clone(),
            range,
        });
    }
    Ok(())
}

/// The most hops of a byte. Bytes are ready when their source got them before; a run may get ready in pieces.
fn hops(problem: &Problem, schedule: &RelaySchedule) -> Result<u32, VerifyError> {
    let mut got: Vec<Vec<Range>> = vec![Vec::new(); problem.receivers.len()];
    for run in &schedule.direct.assignments {
        got[run.receiver].push(run.range);
    }
    let mut had: Vec<RangeSet> = got.into_iter().map(RangeSet::from_ranges).collect();
    let mut hops = u32::from(had.iter().any(|ranges| !ranges.is_empty()));
    let all = schedule.relayed.iter().filter(|run| !run.range.is_empty());
    let mut open: Vec<Relayed> = all.copied().collect();
    while let Some(first) = open.first().copied() {
        let mut got: HashMap<usize, Vec<Range>> = HashMap::new();
        let mut waiting: Vec<Relayed> = Vec::new();
        for run in open {
            let ready = had[run.from].clipped(run.range);
            let rest = RangeSet::from(run.range).difference(&ready);
            if !ready.is_empty() {
                got.entry(run.to).or_default().extend(&ready);
            }
            waiting.extend(rest.iter().map(|range| Relayed { range, ..run }));
        }
        if got.is_empty() {
            return Err(VerifyError::NeverHad {
                from: problem.receivers[first.from].name.clone(),
                to: problem.receivers[first.to].name.clone(),
                range: first.range,
            });
        }
        for (receiver, ranges) in got {
            had[receiver] = had[receiver].union(&RangeSet::from_ranges(ranges));
        }
        hops += 1;
        open = waiting;
    }
    Ok(hops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Receiver, Sender, Trunk};

    /// A sender of bytes 0 to 10 and three receivers that want them; the last hands nothing on.
    fn problem() -> Problem {
        let ranges = RangeSet::from(Range::new(0, 10));
        let receiver = |at: usize| Receiver {
            name: format!("r{at}"),
            down: 5,
            ranges: ranges.clone(),
            relay_up: (at < 2).then_some(2),
            destination: None,
        };
        Problem {
            senders: vec![Sender {
                name: "w".to_owned(),
                up: 10,
                ranges: ranges.clone(),
            }],
            receivers: (0..3).map(receiver).collect(),
            ..Problem::default()
        }
    }

    fn direct(start: u64, end: u64, receiver: usize) -> Assignment {
        Assignment {
            range: Range { start, end },
            sender: 0,
            receiver,
        }
    }

    fn relayed(start: u64, end: u64, from: usize, to: usize) -> Relayed {
        let range = Range { start, end };
        Relayed { range, from, to }
    }

    /// Two halves, each handed on by the receiver that got it, are two hops; a chain has three.
    #[test]
    fn hops_are_counted() {
        let problem = problem();
        let halves = RelaySchedule::from_runs(
            vec![direct(0, 5, 0), direct(5, 10, 1)],
            vec![
                relayed(0, 5, 0, 1),
                relayed(0, 5, 0, 2),
                relayed(5, 10, 1, 0),
                relayed(5, 8, 1, 2),
                relayed(8, 10, 1, 2),
            ],
        );
        assert_eq!(halves.relayed.len(), 4, "neighbours are joined");
        assert_eq!(verify_relays(&problem, &halves), Ok(2));
        assert_eq!(halves.peers_max(), 2);
        let loads = halves.loads(&problem);
        assert_eq!(loads.nodes.senders, [10]);
        assert_eq!(loads.nodes.receivers, [10; 3]);
        assert_eq!(loads.uplinks, [10, 10, 0]);
        assert_eq!(halves.predicted_seconds(&problem), 5.0);
        let chain = RelaySchedule::from_runs(
            vec![direct(0, 10, 0)],
            vec![relayed(0, 10, 0, 1), relayed(0, 10, 1, 2)],
        );
        assert_eq!(verify_relays(&problem, &chain), Ok(3));
        let plain = (0..3).map(|at| direct(0, 10, at)).collect();
        let plain = RelaySchedule::from_runs(plain, Vec::new());
        assert_eq!(verify_relays(&problem, &plain), Ok(1));
        assert_eq!(
            verify_relays(&Problem::default(), &RelaySchedule::default()),
            Ok(0)
        );
    }

    /// Runs that wait for each other as a whole, though no byte goes round: each gets ready in pieces.
    #[test]
    fn runs_get_ready_in_pieces() {
        let ranges = RangeSet::from(Range::new(0, 30));
        let mut problem = problem();
        problem.senders[0].ranges = ranges.clone();
        let receiver = problem.receivers[0].clone();
        problem.receivers = ["a", "b", "c", "d"]
            .map(|name| Receiver {
                name: name.to_owned(),
                ranges: ranges.clone(),
                ..receiver.clone()
            })
            .into();
        let (a, b, c, d) = (0, 1, 2, 3);
        let plan = RelaySchedule::from_runs(
            vec![direct(10, 30, b), direct(0, 20, c)],
            vec![
                relayed(0, 10, a, b),
                relayed(0, 30, c, a),
                relayed(20, 30, d, c),
                relayed(0, 30, b, d),
            ],
        );
        // Bytes 0 to 10 go by c, a and b to d; bytes 20 to 30 by b, d and c to a.
        assert_eq!(verify_relays(&problem, &plan), Ok(4));
    }

    /// What receivers before a trunk hand on to those behind it crosses the trunk; through a closed one nothing passes.
    #[test]
    fn trunks_between_receivers_count() {
        let mut problem = problem();
        problem.trunks = vec![Trunk {
            senders: vec![0],
            relays: vec![0],
            receivers: vec![1, 2],
            cap: 2,
            ..Trunk::default()
        }];
        let plan = RelaySchedule::from_runs(
            vec![direct(0, 10, 0), direct(8, 10, 1)],
            vec![relayed(0, 8, 0, 1), relayed(0, 10, 1, 2)],
        );
        assert_eq!(verify_relays(&problem, &plan), Ok(3));
        assert_eq!(plan.loads(&problem).nodes.trunks, [10]);
        let again = RelaySchedule::from_runs(
            vec![direct(0, 10, 0)],
            vec![relayed(0, 10, 0, 1), relayed(0, 10, 0, 2)],
        );
        assert_eq!(again.loads(&problem).nodes.trunks, [20]);
        assert_eq!(again.predicted_seconds(&problem), 10.0);
        problem.trunks[0].cap = 0;
        let closed = verify_relays(&problem, &again).unwrap_err();
        assert!(matches!(closed, VerifyError::Closed { sender, .. } if sender == "r0"));
    }

    /// Each fault of a relay is found and named.
    #[test]
    fn faults_are_named() {
        let problem = problem();
        let verdict = |direct: Vec<Assignment>, relayed: Vec<Relayed>| {
            let schedule = RelaySchedule::from_runs(direct, relayed);
            verify_relays(&problem, &schedule).unwrap_err()
        };
        let two = || vec![direct(0, 10, 0), direct(0, 10, 2)];
        // Bytes 0 to 5 go round between two receivers and come from nowhere.
        let circle = vec![relayed(0, 5, 1, 0), relayed(0, 5, 0, 1)];
        let circle = verdict(
            vec![direct(5, 10, 0), direct(5, 10, 1), direct(0, 10, 2)],
            circle,
        );
        assert!(matches!(circle, VerifyError::NeverHad { range, .. } if range == Range::new(0, 5)));
        let own = verdict(two(), vec![relayed(0, 10, 1, 1)]);
        assert!(matches!(own, VerifyError::NeverHad { .. }), "{own}");
        let silent = verdict(two(), vec![relayed(0, 10, 2, 1)]);
        assert!(matches!(silent, VerifyError::Closed { sender, .. } if sender == "r2"));
        let twice = verdict(two(), vec![relayed(0, 10, 0, 1), relayed(3, 5, 1, 2)]);
        assert!(matches!(twice, VerifyError::Twice { .. }), "{twice}");
        let missing = verdict(two(), vec![relayed(0, 9, 0, 1)]);
        assert!(matches!(missing, VerifyError::Missing { .. }), "{missing}");
        let beyond = verdict(two(), vec![relayed(0, 11, 0, 1)]);
        assert!(matches!(beyond, VerifyError::NotWanted { .. }), "{beyond}");
        let unknown = verdict(two(), vec![relayed(0, 10, 0, 3)]);
        assert!(matches!(unknown, VerifyError::UnknownRelay { to: 3, .. }));
    }
}
