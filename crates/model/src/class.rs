//! Classes: the distinct situations a byte can be in, and the demand in each.
//!
//! Bytes of one destination with the same usable senders and the same usable receivers are
//! interchangeable, so a planner decides per class, not per range: its work follows the number of
//! situations, not of rows. Source: the demand table of CEP section 3.2; merging is ours.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::problem::{Destination, Problem};
use crate::range::{Range, RangeSet};
use crate::schedule::{PairIndex, TrunkIndex};
use crate::segment::{Segment, segments};

/// Bytes of one destination that the same nodes can send and the same nodes can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Position in [`DemandTable::destinations`].
    pub destination: usize,
    /// Senders that hold the bytes and can pass them to at least one of the receivers; ascending, not empty.
    pub senders: Arc<[usize]>,
    /// Receivers that list the bytes and can be reached by at least one of the senders; ascending, not empty.
    pub receivers: Arc<[usize]>,
    /// The bytes, ordered by offset; neighbours neither touch nor overlap. Never empty.
    pub ranges: RangeSet,
    /// Length of `ranges`: the demand.
    pub bytes: u64,
}

/// Which pairs can carry anything: both speeds and every cap between them above 0.
#[derive(Debug, Clone)]
pub struct OpenPairs {
    sender_alive: Vec<bool>,
    receiver_alive: Vec<bool>,
    closed: Option<ClosedLinks>,
}

#[derive(Debug, Clone)]
struct ClosedLinks {
    pairs: PairIndex,
    trunks: TrunkIndex,
    pair_zero: Vec<bool>,
    trunk_zero: Vec<bool>,
}

impl OpenPairs {
    /// Reads speeds and caps of the problem.
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        let pair_zero: Vec<bool> = problem.pair_caps.iter().map(|p| p.cap == 0).collect();
        let trunk_zero: Vec<bool> = problem.trunks.iter().map(|t| t.cap == 0).collect();
        let any = pair_zero.contains(&true) || trunk_zero.contains(&true);
        Self {
            sender_alive: problem.senders.iter().map(|s| s.up > 0).collect(),
            receiver_alive: problem.receivers.iter().map(|r| r.down > 0).collect(),
            closed: any.then(|| ClosedLinks {
                pairs: PairIndex::new(problem),
                trunks: TrunkIndex::new(problem),
                pair_zero,
                trunk_zero,
            }),
        }
    }

    /// Whether every pair of living nodes is open, so that no caller needs to ask pair by pair.
    #[must_use]
    pub fn all_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Whether bytes can pass from this sender to this receiver.
    #[must_use]
    pub fn is_open(&self, sender: usize, receiver: usize) -> bool {
        if !self.sender_alive[sender] || !self.receiver_alive[receiver] {
            return false;
        }
        self.closed.as_ref().is_none_or(|links| {
            let pairs = links.pairs.of(sender, receiver);
            let mut trunks = links.trunks.of(sender, receiver);
            !pairs.iter().any(|&p| links.pair_zero[p]) && !trunks.any(|t| links.trunk_zero[t])
        })
    }
}

/// All demand of a problem, by class, with what no sender can deliver.
#[derive(Debug, Clone)]
pub struct DemandTable {
    /// The destinations, in order of their first receiver.
    pub destinations: Vec<Destination>,
    /// The classes, ordered by destination, then by first offset.
    pub classes: Vec<Class>,
    /// For each destination that has any: the bytes no usable sender can get to it.
    pub missing: BTreeMap<String, RangeSet>,
    /// Which pairs can carry anything.
    pub open: OpenPairs,
}

impl DemandTable {
    /// Cuts the data space into segments and gathers them into classes.
    ///
    /// Cost O((rows + segments wanted, once for each destination) × log) plus the distinct holder
    /// sets. The bound does not go through this table; see `ropewalk_sched::bound`.
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        let open = OpenPairs::new(problem);
        let alive = problem.senders.iter().enumerate().filter(|(_, s)| s.up > 0);
        let held = segments(alive.map(|(index, sender)| (index, &sender.ranges)));
        let mut table = Self {
            destinations: problem.destinations(),
            classes: Vec::new(),
            missing: BTreeMap::new(),
            open,
        };
        for index in 0..table.destinations.len() {
            table.add_destination(problem, index, &held);
        }
        table
    }

    /// Bytes that the classes hold: all that is wanted, less what is missing.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        self.classes
            .iter()
            .map(|class| u128::from(class.bytes))
            .sum()
    }

    fn add_destination(&mut self, problem: &Problem, destination: usize, held: &[Segment]) {
        let receivers = self.destinations[destination].receivers.iter();
        let alive = receivers.filter(|&&r| problem.receivers[r].down > 0);
        let wanted = segments(alive.map(|&r| (r, &problem.receivers[r].ranges)));
        let mut found: HashMap<(usize, usize), Situation> = HashMap::new();
        let mut order: Vec<(usize, usize)> = Vec::new();
        for want in &wanted {
            let first = held.partition_point(|hold| hold.range.end <= want.range.start);
            for hold in &held[first..] {
                let Some(both) = hold.range.intersect(want.range) else {
                    break;
                };
                let key = (hold.set, want.set);
                let situation = found.entry(key).or_insert_with(|| {
                    order.push(key);
                    Situation {
                        senders: Arc::clone(&hold.members),
                        receivers: Arc::clone(&want.members),
                        ranges: Vec::new(),
                    }
                });
                situation.ranges.push(both);
            }
        }
        let mut covered = RangeSet::new();
        let mut all: Vec<Range> = Vec::new();
        for key in order {
            let Some(situation) = found.remove(&key) else {
                continue;
            };
            let Some(class) = situation.into_class(destination, &self.open) else {
                continue;
            };
            all.extend(&class.ranges);
            self.classes.push(class);
        }
        covered.extend(all);
        let missing = self.destinations[destination].wanted.difference(&covered);
        if !missing.is_empty() {
            let name = self.destinations[destination].name.clone();
            let entry = self.missing.entry(name).or_default();
            *entry = entry.union(&missing);
        }
    }
}

/// For each destination that has any: the bytes that no usable sender can get to it.
///
/// The same answer as [`DemandTable::missing`], without building the classes where no cap is 0. Cost O(rows × log
/// + destinations × runs held) then.
#[must_use]
pub fn uncovered(problem: &Problem) -> BTreeMap<String, RangeSet> {
    if !OpenPairs::new(problem).all_open() {
        return DemandTable::new(problem).missing;
    }
    let alive = problem.senders.iter().filter(|sender| sender.up > 0);
    let held: RangeSet = alive.flat_map(|sender| &sender.ranges).collect();
    let mut missing: BTreeMap<String, RangeSet> = BTreeMap::new();
    for destination in problem.destinations() {
        let alive = destination.receivers.iter().map(|&r| &problem.receivers[r]);
        let alive = alive.filter(|receiver| receiver.down > 0);
        let taken: RangeSet = alive.flat_map(|receiver| &receiver.ranges).collect();
        let lacking = destination.wanted.difference(&held.intersection(&taken));
        if !lacking.is_empty() {
            let entry = missing.entry(destination.name).or_default();
            *entry = entry.union(&lacking);
        }
    }
    missing
}

/// A class before closed pairs are looked at.
struct Situation {
    senders: Arc<[usize]>,
    receivers: Arc<[usize]>,
    ranges: Vec<Range>,
}

impl Situation {
    /// `None` when no pair of the two sides is open.
    fn into_class(self, destination: usize, open: &OpenPairs) -> Option<Class> {
        let (mut senders, mut receivers) = (self.senders, self.receivers);
        if !open.all_open() {
            let reaches = |s: usize| receivers.iter().any(|&r| open.is_open(s, r));
            let kept: Arc<[usize]> = senders.iter().copied().filter(|&s| reaches(s)).collect();
            let reached = |r: usize| kept.iter().any(|&s| open.is_open(s, r));
            receivers = receivers.iter().copied().filter(|&r| reached(r)).collect();
            senders = kept;
        }
        if senders.is_empty() || receivers.is_empty() {
            return None;
        }
        let ranges = RangeSet::from_ranges(self.ranges);
        let bytes = ranges.len_bytes();
        Some(Class {
            destination,
            senders,
            receivers,
            ranges,
            bytes,
        })
    }
}
