//! Whether replicas hold the same contents. Sizes and times are compared before the start; contents are compared here, by the
//! hashes of units that senders compute in any case: another holder hashes its own bytes and sends 32 of them.
//!
//! **Sample** (the rule): the first and the last unit of what has several holders, and some at random, are compared with a
//! second holder each. **Whole**: every unit is compared with every other holder. Either way a holder that cannot be asked does
//! not fail the transfer; the report says what was compared.
//!
//! ```text
//!  taken ---> asked ---> answered --+--> equal: counted
//!    |                              |
//!    +------> delivered ------------+--> different: a third holder is asked, then the part has failed
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::{Event, Receiving};
use crate::control::{self, Run};
use crate::ledger::LaneId;
use crate::mix::mix;

mod difference;
mod late;
mod sample;

pub use difference::Difference;

/// Holders that a sample is asked of: each costs a stream and a thread at both ends.
const SECONDS_MAX: usize = 4;

/// A receiver that asks so many holders, those of samples among them, asks another one only about units that none of these has.
pub(super) const SECONDS_MANY: usize = 16;

/// Bytes and units asked for and not answered, for each holder: enough to keep a disk busy, and what fellow receivers of 10 Gbit/s
/// together bring in 50 ms, in which an answer arrives. A holder keeps 40 bytes of each unit that it is asked for.
const OUTSTANDING_BYTES_MAX: u64 = 64 << 20;
const OUTSTANDING_UNITS_MAX: usize = 1024;

/// Answers for a sample are awaited for so long after the last byte, and for a part of the time that the transfer took ...
const GRACE_TIME: Nanos = Nanos::from_secs(1);
const GRACE_PART: u64 = 4;

/// ... but not longer than this.
const GRACE_TIME_MAX: Nanos = Nanos::from_secs(10);

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: there are no hashes.
    #[default]
    Nothing,
    /// A few units.
    Sample,
    /// All, with every other holder.
    Whole,
}

/// What was found equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Units.
    pub units: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Answer to [`Receiving::next_digests`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Ask for the hashes of these units.
    Units(Vec<Range>),
    /// Nothing now.
    Wait,
    /// Nothing any more.
    Closed,
}

/// A unit that is being compared.
#[derive(Clone, Debug)]
struct Open {
    range: Range,
    // Its bytes have come; the hash of them is among the opinions.
    is_delivered: bool,
    opinions: Vec<(u32, [u8; 32])>,
    // Who was asked and has not answered.
    asked: Vec<u32>,
    // Who may still be asked.
    holders: Vec<u32>,
    // Two holders have the same; what a late one answers still counts.
    is_equal: bool,
}

impl Open {
    /// Its bytes are there, and nothing is known of them yet.
    fn waits(&self) -> bool {
        self.is_delivered && !self.is_equal
    }

    /// Those who said the same, in the order in which they spoke.
    fn groups(&self) -> Vec<Vec<u32>> {
        let mut groups: Vec<([u8; 32], Vec<u32>)> = Vec::new();
        for &(node, digest) in &self.opinions {
            match groups.iter_mut().find(|(known, _)| *known == digest) {
                Some((_, nodes)) if nodes.contains(&node) => {}
                Some((_, nodes)) => nodes.push(node),
                None => groups.push((digest, vec![node])),
            }
        }
        groups.into_iter().map(|(_, nodes)| nodes).collect()
    }
}

/// A holder that is asked for hashes.
#[derive(Debug, Default)]
struct Second {
    // With what was delivered by whom where the whole is compared.
    queue: VecDeque<Asked>,
    // Not answered yet.
    outstanding: Vec<Asked>,
    // Whole: of the delivered units, the first that was not looked at.
    next: usize,
    // The driver has a stream to it, or opens one.
    is_running: bool,
    // The driver was told that there is nothing to ask for now.
    is_idle: bool,
    is_down: bool,
    // It was asked for a sample first.
    is_of_sample: bool,
}

/// A unit that a holder is asked about.
#[derive(Clone, Copy, Debug)]
struct Asked {
    range: Range,
    // Since when.
    at: Instant,
    // What was delivered by whom: known where the whole is compared, else the unit is open.
    delivered: Option<(u32, [u8; 32])>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    mode: Compare,
    seed: u64,
    // Sampled are the units in which these offsets lie.
    targets: BTreeSet<u64>,
    sampled_bytes: u64,
    open: BTreeMap<u64, Open>,
    seconds: BTreeMap<u32, Second>,
    // Whole: who holds what, and who delivered each unit, in the order of delivery.
    holdings: BTreeMap<u32, RangeSet>,
    deliverers: Vec<u32>,
    equal: RangeSet,
    compared: Compared,
    // Some bytes have several holders.
    has_several: bool,
    // When the last byte came.
    complete_at: Option<Instant>,
    // When late holders were looked for.
    looked_at: Instant,
}

impl Replicas {
    /// Who delivered each unit, in the order of the units' hashes; `None` where that is not noted.
    pub(super) fn deliverers(&mut self) -> Option<&mut Vec<u32>> {
        Some(&mut self.deliverers).filter(|all| !all.is_empty())
    }
}

/// Whether any bytes of these runs have several holders.
///
/// * `holdings`: of what is wanted, where the whole is compared.
#[must_use]
pub fn has_several_holders(runs: &[Run], holdings: &[control::Holding]) -> bool {
    let is_double = |run: &Run| run.length > 0 && run.spares.iter().any(|node| *node != run.sender);
    let mut held = RangeSet::new();
    let mut overlaps = |holding: &control::Holding| {
        let ranges = control::range_set(&holding.ranges);
        let is_double = !held.intersection(&ranges).is_empty();
        held = held.union(&ranges);
        is_double
    };
    runs.iter().any(is_double) || holdings.iter().any(&mut overlaps)
}

impl Replicas {
    /// A unit was found equal at two holders.
    pub fn count(&mut self, range: Range) {
        if !self.equal.contains_range(range) {
            self.equal.insert(range);
            self.compared.units += 1;
            self.compared.bytes += range.len();
        }
    }

    fn is_settled(&self, delivered: usize) -> bool {
        let is_idle = |second: &Second| {
            let is_through = self.mode != Compare::Whole || second.next >= delivered;
            second.is_down
                || (is_through && second.queue.is_empty() && second.outstanding.is_empty())
        };
        match self.mode {
            Compare::Nothing => true,
            Compare::Sample => !self.open.values().any(Open::waits),
            Compare::Whole => self.open.is_empty() && self.seconds.values().all(is_idle),
        }
    }
}

impl Receiving {
    /// What is to be compared; before the plan is received. The same `seed` chooses the same units.
    pub fn compare(&mut self, mode: Compare, seed: u64) {
        self.replicas.mode = mode;
        self.replicas.seed = mix(seed);
    }

    /// What was found equal so far.
    #[must_use]
    pub fn compared(&self) -> Compared {
        self.replicas.compared
    }

    /// Units delivered so far, where they were hashed.
    #[must_use]
    pub fn hashed_units(&self) -> u64 {
        self.digests.len() as u64
    }

    /// Whether what several holders have is compared, and there are such bytes.
    pub(in crate::node) fn compares_holders(&self) -> bool {
        self.replicas.mode != Compare::Nothing && self.replicas.has_several
    }

    /// Notes whether any bytes have several holders.
    pub(super) fn note_holders(&mut self, runs: &[Run], holdings: &[control::Holding]) {
        self.replicas.has_several |= has_several_holders(runs, holdings);
    }

    /// Chooses units among new runs.
    pub(super) fn aim(&mut self, runs: &[Run], with_ends: bool) {
        self.replicas.aim(runs, self.unit_len, with_ends);
    }

    /// Holders of what this node wants, where the whole is compared.
    pub(super) fn take_holdings(&mut self, holdings: &[control::Holding]) {
        if self.replicas.mode != Compare::Whole {
            return;
        }
        for holding in holdings {
            let ranges = control::range_set(&holding.ranges);
            let known = self.replicas.holdings.entry(holding.node).or_default();
            *known = known.union(&ranges);
            self.replicas.seconds.entry(holding.node).or_default();
        }
        self.call_seconds();
    }

    /// Whether a node may hold a range: it is known what holders have where all are compared.
    pub(super) fn may_hold(&self, node: u32, range: Range) -> bool {
        let known = self.replicas.holdings.get(&node);
        known.is_none_or(|held| held.contains_range(range))
    }

    /// Opens streams to those who are to be asked for something.
    pub(super) fn call_seconds(&mut self) {
        if self.finished {
            return;
        }
        let is_whole = self.replicas.mode == Compare::Whole;
        for (node, second) in &mut self.replicas.seconds {
            let wanted = is_whole || !second.queue.is_empty();
            let lane = self.lane_of.get(node).copied();
            let Some(lane) = lane.filter(|_| wanted && !second.is_running && !second.is_down)
            else {
                continue;
            };
            second.is_running = true;
            second.is_idle = false;
            let peer = self.peers[lane].clone();
            self.events.push_back(Event::Compare(lane, peer));
        }
    }

    /// A unit is asked for on a lane: where it is one of the sample, another holder is asked for its hash at once.
    pub(super) fn sample(&mut self, lane: LaneId, range: Range) {
        if !self.replicas.is_sampled(range) {
            return;
        }
        let holders = self.ledger.holders_in_transit(range.start);
        // What a fellow receiver has is no other opinion.
        let holders = holders.iter().filter(|lane| !self.is_relayed(**lane));
        let mut nodes: Vec<u32> = holders.map(|&lane| self.node_of(lane)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() < 2 {
            return;
        }
        let open = Open {
            range,
            is_delivered: false,
            opinions: Vec::new(),
            asked: Vec::new(),
            holders: nodes,
            is_equal: false,
        };
        self.replicas.open.insert(range.start, open);
        let sender = self.origin_of(lane, range);
        self.ask_another(range.start, &BTreeSet::from([sender]));
        self.call_seconds();
    }

    /// Asks one more holder about an open unit, none of these. False when there is none.
    fn ask_another(&mut self, start: u64, but: &BTreeSet<u32>) -> bool {
        let Some(open) = self.replicas.open.get(&start) else {
            return false;
        };
        let seconds = &self.replicas.seconds;
        let spoke = |node: u32| open.opinions.iter().any(|(other, _)| *other == node);
        let of_sample = seconds.iter().filter(|(_, second)| second.is_of_sample);
        let able = of_sample.filter(|(node, _)| self.can_be_asked(**node));
        let has_room = able.count() < SECONDS_MAX;
        let may = |node: &&u32| {
            let known = seconds.get(node);
            (known.is_some() || has_room)
                && self.can_be_asked(**node)
                && !but.contains(*node)
                && !spoke(**node)
                && !open.asked.contains(node)
        };
        // Who is asked already costs no stream; who is connected no handshake.
        let rank = |node: u32| {
            let is_called = || {
                let lane = self.lane_of.get(&node);
                lane.is_some_and(|&lane| self.spares.has_called(lane))
            };
            match seconds.contains_key(&node) {
                true if self.is_late(node) => 3,
                true => 0,
                false if is_called() => 1,
                false => 2,
            }
        };
        let able = open.holders.iter().filter(may).copied();
        let Some(node) = able.min_by_key(|&node| (rank(node), self.turn(node, start))) else {
            return false;
        };
        let range = open.range;
        let is_new = !self.is_second(node);
        self.ask_second(node, range);
        if let Some(second) = self.replicas.seconds.get_mut(&node).filter(|_| is_new) {
            second.is_of_sample = true;
        }
        if let Some(open) = self.replicas.open.get_mut(&start) {
            open.asked.push(node);
        }
        true
    }

    /// Orders holders at random for a unit, at each receiver in another way.
    pub(super) fn turn(&self, node: u32, start: u64) -> u64 {
        mix(self.replicas.seed ^ start ^ u64::from(node))
    }

    /// Whether a holder is asked for hashes, or was.
    pub(super) fn is_second(&self, node: u32) -> bool {
        self.replicas.seconds.contains_key(&node)
    }

    /// Whether so many holders are asked for hashes that each more is a stream too many.
    pub(super) fn has_many_seconds(&self) -> bool {
        let mut able = self.replicas.seconds.values().filter(|s| !s.is_down);
        able.nth(SECONDS_MANY - 1).is_some()
    }

    /// Whether a holder can be asked for hashes.
    pub(super) fn can_be_asked(&self, node: u32) -> bool {
        let second = self.replicas.seconds.get(&node);
        let lane = self.lane_of.get(&node);
        !second.is_some_and(|second| second.is_down)
            && lane.is_some_and(|lane| self.is_reachable(*lane))
    }

    /// Asks a holder for the hash of a unit.
    pub(super) fn ask_second(&mut self, node: u32, range: Range) {
        let asked = Asked {
            range,
            at: self.now,
            delivered: None,
        };
        let second = self.replicas.seconds.entry(node).or_default();
        second.queue.push_back(asked);
        if std::mem::take(&mut second.is_idle) {
            self.events.push_back(Event::Wake);
        }
    }

    /// The first copy of a unit came from a node.
    pub(super) fn compare_unit(&mut self, node: u32, range: Range, digest: [u8; 32]) {
        match self.replicas.mode {
            Compare::Nothing => {}
            Compare::Whole => {
                self.replicas.deliverers.push(node);
                let mut wakes = false;
                for second in self.replicas.seconds.values_mut() {
                    wakes |= std::mem::take(&mut second.is_idle);
                }
                if wakes {
                    self.events.push_back(Event::Wake);
                }
            }
            Compare::Sample => {
                let Some(open) = self.replicas.open.get_mut(&range.start) else {
                    return;
                };
                if open.range != range {
                    // It was cut anew: what was asked for is another range.
                    open.range = range;
                    open.asked.clear();
                    open.opinions.clear();
                }
                open.is_delivered = true;
                open.opinions.push((node, digest));
                self.settle(range.start);
            }
        }
    }

    /// Draws conclusions about an open unit once all who were asked have answered.
    fn settle(&mut self, start: u64) {
        let Some(open) = self.replicas.open.get(&start) else {
            return;
        };
        if !open.is_delivered {
            return;
        }
        let groups = open.groups();
        let range = open.range;
        if let [one] = &groups[..]
            && one.len() > 1
        {
            match self.replicas.open.get_mut(&start) {
                Some(open) if !open.asked.is_empty() => open.is_equal = true,
                _ => drop(self.replicas.open.remove(&start)),
            }
            return self.replicas.count(range);
        }
        // One more answer is needed, or a third opinion wanted. At most three are heard.
        let speakers = open.opinions.len();
        let mut waits = speakers < 3;
        if waits && open.asked.is_empty() {
            waits = self.ask_another(start, &BTreeSet::new());
        }
        if waits {
            return self.call_seconds();
        }
        self.replicas.open.remove(&start);
        if groups.len() > 1 {
            let names = |nodes: &Vec<u32>| nodes.iter().map(|n| self.name_of(*n)).collect();
            let groups = groups.iter().map(names).collect();
            self.differ(Difference { range, groups });
        }
    }

    /// What to ask a holder for. After [`Ask::Closed`] the driver closes the stream.
    pub fn next_digests(&mut self, node: u32) -> Ask {
        let Some(second) = self.replicas.seconds.get_mut(&node) else {
            return Ask::Closed;
        };
        if self.finished {
            second.is_running = false;
            return Ask::Closed;
        }
        let mut units = Vec::new();
        let mut bytes: u64 = second
            .outstanding
            .iter()
            .map(|asked| asked.range.len())
            .sum();
        let held = self.replicas.holdings.get(&node);
        let is_held = |range| held.is_some_and(|held: &RangeSet| held.contains_range(range));
        let is_whole = self.replicas.mode == Compare::Whole;
        while second.outstanding.len() < OUTSTANDING_UNITS_MAX && bytes < OUTSTANDING_BYTES_MAX {
            let ask = if let Some(asked) = second.queue.pop_front() {
                // Another holder may have answered, or the unit may be there.
                let open = self.replicas.open.get(&asked.range.start);
                let is_compared = open.is_some_and(|open| open.asked.contains(&node));
                if !is_compared && !self.relays.is_owed(asked.range, node) {
                    continue;
                }
                asked
            } else if let Some(&(range, digest)) =
                self.digests.get(second.next).filter(|_| is_whole)
            {
                let from = self.replicas.deliverers.get(second.next).copied();
                second.next += 1;
                // Who brought a unit is not asked about it.
                let Some(from) = from.filter(|from| *from != node && is_held(range)) else {
                    continue;
                };
                Asked {
                    range,
                    at: self.now,
                    delivered: Some((from, digest)),
                }
            } else {
                break;
            };
            bytes += ask.range.len();
            units.push(ask.range);
            second.outstanding.push(ask);
        }
        second.is_idle = second.outstanding.is_empty();
        if units.is_empty() {
            // What it holds of the rest may just have been passed over.
            self.check_progress();
            return Ask::Wait;
        }
        Ask::Units(units)
    }

    /// A holder reported the hash of its bytes.
    pub fn handle_digest(&mut self, node: u32, range: Range, digest: [u8; 32], now: Instant) {
        self.now = now;
        let Some(asked) = self.answered(node, range) else {
            return;
        };
        match asked {
            Some((_, delivered)) if delivered == digest => self.replicas.count(range),
            Some((from, delivered)) => {
                let all = self.replicas.holdings.iter();
                let holders = all.filter(|(_, held)| held.contains_range(range));
                let open = Open {
                    range,
                    is_delivered: true,
                    opinions: vec![(from, delivered), (node, digest)],
                    asked: Vec::new(),
                    holders: holders.map(|(node, _)| *node).collect(),
                    is_equal: false,
                };
                self.replicas.open.insert(range.start, open);
                self.settle(range.start);
            }
            None => {
                self.vouch(node, range, digest);
                let open = self.replicas.open.get_mut(&range.start);
                let Some(open) = open.filter(|open| open.range == range) else {
                    return;
                };
                if let Some(at) = open.asked.iter().position(|asked| *asked == node) {
                    open.asked.remove(at);
                    open.opinions.push((node, digest));
                    self.settle(range.start);
                }
            }
        }
        self.check_progress();
    }

    /// A holder cannot say what the hash of its bytes is.
    pub fn handle_no_digest(&mut self, node: u32, range: Range, reason: &str, now: Instant) {
        self.now = now;
        if self.answered(node, range).is_none() {
            return;
        }
        let is_compared =
            self.replicas.open.contains_key(&range.start) || self.replicas.mode == Compare::Whole;
        self.vouch_again(node, range);
        if !is_compared {
            return self.call_seconds();
        }
        let name = self.name_of(node);
        self.note(format!(
            "{name} was not compared with other replicas for bytes {}-{}: {reason}",
            range.start, range.end
        ));
        self.no_answer(node, range.start);
        self.check_progress();
    }

    /// The stream to a holder broke; what it was asked for is asked for again over the next one.
    pub fn handle_second_broken(&mut self, node: u32) {
        if let Some(second) = self.replicas.seconds.get_mut(&node) {
            for asked in std::mem::take(&mut second.outstanding).into_iter().rev() {
                second.queue.push_front(asked);
            }
        }
    }

    /// A holder cannot be asked any more.
    pub fn handle_second_down(&mut self, node: u32, reason: &str, now: Instant) {
        self.now = now;
        let Some(second) = self.replicas.seconds.get_mut(&node) else {
            return;
        };
        second.is_running = false;
        if self.finished || std::mem::replace(&mut second.is_down, true) {
            return;
        }
        second.queue.clear();
        second.outstanding.clear();
        self.go_on_without(node);
        // Its loss has a note of its own.
        if !self.lost.contains(&node) && self.replicas.has_several {
            let name = self.name_of(node);
            self.note(format!(
                "{name} was not compared with other replicas any more: {reason}"
            ));
        }
        self.check_progress();
    }

    fn answered(&mut self, node: u32, range: Range) -> Option<Option<(u32, [u8; 32])>> {
        let second = self.replicas.seconds.get_mut(&node)?;
        let asked = &mut second.outstanding;
        let at = asked.iter().position(|asked| asked.range == range)?;
        Some(asked.remove(at).delivered)
    }

    /// Another holder is asked in the place of one that does not answer.
    fn no_answer(&mut self, node: u32, start: u64) {
        let Some(open) = self.replicas.open.get_mut(&start) else {
            return;
        };
        open.asked.retain(|asked| *asked != node);
        open.holders.retain(|holder| *holder != node);
        if open.is_delivered {
            self.settle(start);
        } else if open.asked.is_empty() {
            self.ask_another(start, &BTreeSet::new());
            self.call_seconds();
        }
    }

    /// Whether nothing that is to be compared is open.
    pub(in crate::node) fn is_compared(&self) -> bool {
        self.replicas.is_settled(self.digests.len())
    }

    /// Time passes: answers for a sample are not awaited for ever.
    pub(super) fn end_patience(&mut self, now: Instant) {
        if self.replicas.mode != Compare::Sample || !self.ledger.is_complete() {
            self.replicas.complete_at = None;
            return;
        }
        let since = *self.replicas.complete_at.get_or_insert(now);
        let took = since.since(self.watch.start_at());
        let grace = (GRACE_TIME + took / GRACE_PART).min(GRACE_TIME_MAX);
        if now.since(since) <= grace || self.is_compared() {
            return;
        }
        let open = std::mem::take(&mut self.replicas.open);
        let late: BTreeSet<u32> = open
            .values()
            .flat_map(|o| o.asked.iter().copied())
            .collect();
        let differing = open.into_values().find(|open| open.groups().len() > 1);
        let late: Vec<String> = late.into_iter().map(|node| self.name_of(node)).collect();
        self.note(format!(
            "contents of replicas: no answer from {} within {:.0} s of the last byte",
            late.join(", "),
            grace.as_seconds()
        ));
        // A difference is one without a third opinion, too.
        if let Some(open) = differing {
            let names = |nodes: &Vec<u32>| nodes.iter().map(|n| self.name_of(*n)).collect();
            let groups = open.groups().iter().map(names).collect();
            self.differ(Difference {
                range: open.range,
                groups,
            });
        }
        self.check_progress();
    }

    pub(super) fn name_of(&self, node: u32) -> String {
        match self.lane_of.get(&node) {
            Some(&lane) => self.peer_name(lane),
            None => format!("node {node}"),
        }
    }
}
