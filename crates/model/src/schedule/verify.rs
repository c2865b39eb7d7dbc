//! The check every plan passes before a byte moves.

use crate::problem::{Destination, Problem};
use crate::range::{Range, RangeSet};

use super::{Assignment, PairIndex, Schedule, TrunkIndex};

/// What is wrong with a schedule; the first fault found.
///
/// A plan that fails is a bug of the scheduler, or was made for another problem: make a new plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// An assignment names a node that the problem does not have.
    #[error(
        "plan gives {range} to receiver #{receiver} from sender #{sender}, but the problem has no such node; plan again"
    )]
    UnknownNode {
        /// Position of the sender named.
        sender: usize,
        /// Position of the receiver named.
        receiver: usize,
        /// The bytes assigned.
        range: Range,
    },
    /// The sender does not have all of the bytes.
    #[error("plan lets {sender} send {range}, which it does not hold; plan again")]
    NotHeld {
        /// Name of the sender.
        sender: String,
        /// The bytes assigned.
        range: Range,
    },
    /// The receiver did not ask for all of the bytes.
    #[error("plan sends {range} to {receiver}, which does not want it; plan again")]
    NotWanted {
        /// Name of the receiver.
        receiver: String,
        /// The bytes assigned.
        range: Range,
    },
    /// A node, pair or trunk on the way has speed 0.
    #[error(
        "plan sends {range} from {sender} to {receiver}, but nothing can pass between them; plan again"
    )]
    Closed {
        /// Name of the sender.
        sender: String,
        /// Name of the receiver.
        receiver: String,
        /// The bytes assigned.
        range: Range,
    },
    /// Bytes reach one destination more than once.
    #[error("plan sends {range} to {destination} twice; plan again")]
    Twice {
        /// Name of the destination.
        destination: String,
        /// The first such bytes.
        range: Range,
    },
    /// Bytes that a destination wants are not in the plan.
    #[error("plan leaves out {missing} for {destination}; plan again")]
    Missing {
        /// Name of the destination.
        destination: String,
        /// All bytes left out.
        missing: RangeSet,
    },
    /// A relay names a receiver that the problem does not have.
    #[error(
        "plan lets receiver #{from} hand {range} on to receiver #{to}, but the problem has no such node; plan again"
    )]
    UnknownRelay {
        /// Position of the receiver that has the bytes.
        from: usize,
        /// Position of the receiver that gets them.
        to: usize,
        /// The bytes handed on.
        range: Range,
    },
    /// A receiver is to hand on bytes that it never gets itself.
    #[error(
        "plan lets {from} hand {range} on to {to}, but {from} never gets it from a holder; plan again"
    )]
    NeverHad {
        /// Name of the receiver that does not have the bytes.
        from: String,
        /// Name of the receiver that was to get them.
        to: String,
        /// The bytes to be handed on.
        range: Range,
    },
}

/// Checks that every wanted byte of every destination is assigned exactly once, from a sender that
/// holds it, to a receiver that lists it, over a pair through which something can pass.
///
/// Empty assignments and the order of the list do not matter. Cost O(assignments × log).
///
/// # Errors
/// The first fault found, see [`VerifyError`].
pub fn verify(problem: &Problem, schedule: &Schedule) -> Result<(), VerifyError> {
    let mut given = Given::new(problem);
    for assignment in &schedule.assignments {
        given.direct(assignment)?;
    }
    given.each_byte_once()
}

/// What a plan gives each destination, gathered run by run.
pub(super) struct Given<'p> {
    problem: &'p Problem,
    destinations: Vec<Destination>,
    /// For each receiver, its destination.
    destination_of: Vec<usize>,
    links: (PairIndex, TrunkIndex),
    /// One entry a destination.
    runs: Vec<Vec<Range>>,
}

impl<'p> Given<'p> {
    pub(super) fn new(problem: &'p Problem) -> Self {
        let destinations = problem.destinations();
        let mut destination_of = vec![0; problem.receivers.len()];
        for (index, destination) in destinations.iter().enumerate() {
            for &receiver in &destination.receivers {
                destination_of[receiver] = index;
            }
        }
        Self {
            problem,
            runs: vec![Vec::new(); destinations.len()],
            destinations,
            destination_of,
            links: (PairIndex::new(problem), TrunkIndex::new(problem)),
        }
    }

    /// Adds a run from a sender, or says why it cannot be sent.
    pub(super) fn direct(&mut self, run: &Assignment) -> Result<(), VerifyError> {
        if run.range.is_empty() {
            return Ok(());
        }
        check_nodes(
            self.problem,
            &self.links,
            run.sender,
            run.receiver,
            run.range,
        )?;
        self.add(run.receiver, run.range);
        Ok(())
    }

    /// Adds bytes of a receiver that the problem has.
    pub(super) fn add(&mut self, receiver: usize, range: Range) {
        self.runs[self.destination_of[receiver]].push(range);
    }

    pub(super) fn each_byte_once(self) -> Result<(), VerifyError> {
        for (destination, mut ranges) in self.destinations.into_iter().zip(self.runs) {
            ranges.sort_unstable();
            // Sorted by start, two overlapping ranges imply that two neighbours overlap.
            if let Some(twice) = ranges
                .windows(2)
                .find_map(|pair| pair[0].intersect(pair[1]))
            {
                return Err(VerifyError::Twice {
                    destination: destination.name,
                    range: twice,
                });
            }
            let missing = destination
                .wanted
                .difference(&RangeSet::from_ranges(ranges));
            if !missing.is_empty() {
                return Err(VerifyError::Missing {
                    destination: destination.name,
                    missing,
                });
            }
        }
        Ok(())
    }
}

fn check_nodes(
    problem: &Problem,
    (pairs, trunks): &(PairIndex, TrunkIndex),
    sender: usize,
    receiver: usize,
    range: Range,
) -> Result<(), VerifyError> {
    let (Some(from), Some(to)) = (problem.senders.get(sender), problem.receivers.get(receiver))
    else {
        return Err(VerifyError::UnknownNode {
            sender,
            receiver,
            range,
        });
    };
    if !from.ranges.contains_range(range) {
        return Err(VerifyError::NotHeld {
            sender: from.name.clone(),
            range,
        });
    }
    if !to.ranges.contains_range(range) {
        return Err(VerifyError::NotWanted {
            receiver: to.name.clone(),
            range,
        });
    }
    let pair_closed = pairs
        .of(sender, receiver)
        .iter()
        .any(|&cap| problem.pair_caps[cap].cap == 0);
    let trunk_closed = trunks
        .of(sender, receiver)
        .any(|trunk| problem.trunks[trunk].cap == 0);
    if from.up == 0 || to.down == 0 || pair_closed || trunk_closed {
        return Err(VerifyError::Closed {
            sender: from.name.clone(),
            receiver: to.name.clone(),
            range,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{PairCap, Receiver, Sender, Trunk};

    fn set(start: u64, end: u64) -> RangeSet {
        RangeSet::from(Range::new(start, end))
    }

    fn sender(name: &str, up: u64, ranges: RangeSet) -> Sender {
        let name = name.to_owned();
        Sender { name, up, ranges }
    }

    /// A whole sender, one with the first bytes, a dead one; one receiver of the first half.
    fn problem() -> Problem {
        Problem {
            senders: vec![
                sender("all", 5, set(0, 10)),
                sender("part", 5, set(0, 3)),
                sender("dead", 0, set(0, 10)),
            ],
            receivers: vec![Receiver {
                name: "r".to_owned(),
                down: 5,
                ranges: set(0, 5),
                ..Receiver::default()
            }],
            ..Problem::default()
        }
    }

    fn verdict(problem: &Problem, pieces: &[(u64, u64, usize)]) -> Result<(), VerifyError> {
        let assignment = |&(start, end, sender): &(u64, u64, usize)| Assignment {
            range: Range { start, end },
            sender,
            receiver: 0,
        };
        let assignments = pieces.iter().map(assignment).collect();
        verify(problem, &Schedule { assignments })
    }

    /// Each fault of a plan is found and named; the same bytes in order pass.
    #[test]
    fn faults_are_named() {
        let problem = problem();
        let verdict = |pieces: &[(u64, u64, usize)]| verdict(&problem, pieces);
        verdict(&[(3, 5, 0), (0, 3, 1), (4, 4, 2)]).expect("order and empty pieces do not matter");
        let held = verdict(&[(0, 4, 1), (4, 5, 0)]);
        assert!(matches!(held, Err(VerifyError::NotHeld { sender, .. }) if sender == "part"));
        let wanted = verdict(&[(0, 6, 0)]);
        assert!(matches!(wanted, Err(VerifyError::NotWanted { receiver, .. }) if receiver == "r"));
        let closed = verdict(&[(0, 5, 2)]);
        assert!(matches!(closed, Err(VerifyError::Closed { sender, .. }) if sender == "dead"));
        let twice = verdict(&[(0, 3, 1), (2, 5, 0)]);
        assert!(
            matches!(twice, Err(VerifyError::Twice { range, .. }) if range == Range::new(2, 3))
        );
        let missing = verdict(&[(0, 2, 1), (3, 5, 0)]);
        assert!(
            matches!(missing, Err(VerifyError::Missing { missing, .. }) if missing == set(2, 3))
        );
    }

    /// Caps of 0 close a pair or all pairs of a trunk; caps above 0 do not.
    #[test]
    fn closed_links_are_found() {
        let pieces = [(0, 5, 0)];
        for cap in [0, 1] {
            let mut paired = problem();
            let (sender, receiver) = (0, 0);
            paired.pair_caps = vec![PairCap {
                sender,
                receiver,
                cap,
            }];
            let mut trunked = problem();
            trunked.trunks = vec![Trunk {
                name: String::new(),
                senders: vec![1, 0],
                receivers: vec![0],
                cap,
                ..Trunk::default()
            }];
            for problem in [paired, trunked] {
                let closed = matches!(verdict(&problem, &pieces), Err(VerifyError::Closed { .. }));
                assert_eq!(closed, cap == 0, "{problem:?}");
            }
        }
    }
}
