//! A scheduler's output, and the check that every plan has to pass.

use crate::problem::Problem;
use crate::range::Range;

mod relay;
mod runs;
mod verify;

pub use relay::{RelayLoads, RelaySchedule, Relayed, verify_relays};
pub use runs::{ReceiverRun, receiver_runs, relay_runs};
pub use verify::{VerifyError, verify};

/// One run of bytes that one sender gives one receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assignment {
    /// The bytes, never empty in a plan that [`verify`] passes.
    pub range: Range,
    /// Position in [`Problem::senders`].
    pub sender: usize,
    /// Position in [`Problem::receivers`].
    pub receiver: usize,
}

/// Which node sends which bytes to which, in whole bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// Ordered by range start, then receiver.
    pub assignments: Vec<Assignment>,
}

/// Bytes a schedule puts on each node. Sums of up to 2^64 bytes times nodes, hence 128 bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loads {
    /// Bytes sent, one entry a sender.
    pub senders: Vec<u128>,
    /// Bytes received, one entry a receiver.
    pub receivers: Vec<u128>,
    /// Bytes between the pair, one entry a [`crate::problem::PairCap`].
    pub pairs: Vec<u128>,
    /// Bytes over the trunk, one entry a [`crate::problem::Trunk`].
    pub trunks: Vec<u128>,
}

impl Schedule {
    /// A schedule of these assignments: sorted, empty ones dropped, neighbours of one pair joined.
    #[must_use]
    pub fn from_assignments(mut assignments: Vec<Assignment>) -> Self {
        assignments.retain(|a| !a.range.is_empty());
        assignments.sort_unstable_by_key(|a| (a.receiver, a.range.start, a.sender));
        assignments.dedup_by(|next, run| {
            let joins = next.receiver == run.receiver
                && next.sender == run.sender
                && next.range.start == run.range.end;
            if joins {
                run.range.end = next.range.end;
            }
            joins
        });
        assignments.sort_unstable_by_key(|a| (a.range.start, a.receiver, a.sender, a.range.end));
        Self { assignments }
    }

    /// Bytes on each node, capped pair and trunk.
    ///
    /// Cost O(assignments × (1 + trunks) + pair caps). Assignments that name no such node count nowhere;
    /// [`verify`] refuses them.
    #[must_use]
    pub fn loads(&self, problem: &Problem) -> Loads {
        let caps = PairIndex::new(problem);
        let trunks = TrunkIndex::new(problem);
        let mut loads = Loads {
            senders: vec![0; problem.senders.len()],
            receivers: vec![0; problem.receivers.len()],
            pairs: vec![0; problem.pair_caps.len()],
            trunks: vec![0; problem.trunks.len()],
        };
        for assignment in &self.assignments {
            let bytes = u128::from(assignment.range.len());
            let (sender, receiver) = (assignment.sender, assignment.receiver);
            if let Some(load) = loads.senders.get_mut(sender) {
                *load += bytes;
            }
            if let Some(load) = loads.receivers.get_mut(receiver) {
                *load += bytes;
            }
            for &cap in caps.of(sender, receiver) {
                loads.pairs[cap] += bytes;
            }
            for trunk in trunks.of(sender, receiver) {
                loads.trunks[trunk] += bytes;
            }
        }
        loads
    }

    /// Seconds until the last byte: the largest load divided by its capacity.
    ///
    /// Infinite when a node, pair or trunk of speed 0 is given bytes.
    #[must_use]
    pub fn predicted_seconds(&self, problem: &Problem) -> f64 {
        self.loads(problem).seconds(problem)
    }
}

impl Loads {
    /// The largest load divided by its capacity, in seconds; the fluid model has no other cost.
    #[must_use]
    pub fn seconds(&self, problem: &Problem) -> f64 {
        let senders = self
            .senders
            .iter()
            .zip(problem.senders.iter().map(|s| s.up));
        let receivers = self
            .receivers
            .iter()
            .zip(problem.receivers.iter().map(|r| r.down));
        let pairs = self
            .pairs
            .iter()
            .zip(problem.pair_caps.iter().map(|p| p.cap));
        let trunks = self.trunks.iter().zip(problem.trunks.iter().map(|t| t.cap));
        let all = senders.chain(receivers).chain(pairs).chain(trunks);
        all.filter(|(bytes, _)| **bytes > 0)
            .map(|(bytes, speed)| *bytes as f64 / speed as f64)
            .fold(0.0, f64::max)
    }
}

/// Finds the caps of a pair without a matrix of pairs.
#[derive(Debug, Clone, Default)]
pub struct PairIndex {
    caps: std::collections::HashMap<(usize, usize), Vec<usize>>,
}

impl PairIndex {
    /// Indexes [`Problem::pair_caps`].
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        let mut index = Self::default();
        for (position, cap) in problem.pair_caps.iter().enumerate() {
            let caps = index.caps.entry((cap.sender, cap.receiver)).or_default();
            caps.push(position);
        }
        index
    }

    /// Positions in [`Problem::pair_caps`] that limit this pair.
    #[must_use]
    pub fn of(&self, sender: usize, receiver: usize) -> &[usize] {
        if self.caps.is_empty() {
            return &[];
        }
        self.caps
            .get(&(sender, receiver))
            .map_or(&[], Vec::as_slice)
    }
}

/// Finds the trunks that a pair crosses. There are few trunks, so each is asked in turn.
#[derive(Debug, Clone, Default)]
pub struct TrunkIndex {
    // Of each trunk, whether each sender and each receiver is before it, and whether each receiver is behind it.
    sides: Vec<[Vec<bool>; 3]>,
}

impl TrunkIndex {
    /// Indexes [`Problem::trunks`].
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        let flags = |members: &[usize], count: usize| {
            let mut flags = vec![false; count];
            for &member in members {
                if let Some(flag) = flags.get_mut(member) {
                    *flag = true;
                }
            }
            flags
        };
        let sides = problem.trunks.iter().map(|trunk| {
            let senders = flags(&trunk.senders, problem.senders.len());
            let receivers = |members: &[usize]| flags(members, problem.receivers.len());
            [
                senders,
                receivers(&trunk.relays),
                receivers(&trunk.receivers),
            ]
        });
        Self {
            sides: sides.collect(),
        }
    }

    /// Positions in [`Problem::trunks`] that this pair crosses.
    pub fn of(&self, sender: usize, receiver: usize) -> impl Iterator<Item = usize> + '_ {
        self.crossed(0, sender, receiver)
    }

    /// Positions in [`Problem::trunks`] that what one receiver hands on to another crosses.
    pub fn between(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        self.crossed(1, from, to)
    }

    fn crossed(&self, side: usize, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        let crosses = move |sides: &[Vec<bool>; 3]| {
            sides[side].get(from) == Some(&true) && sides[2].get(to) == Some(&true)
        };
        let sides = self.sides.iter().enumerate();
        sides
            .filter(move |(_, sides)| crosses(sides))
            .map(|(index, _)| index)
    }
}
