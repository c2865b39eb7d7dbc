//! Which unit goes next on which lane, and what is already safe.
//!
//! The ledger keeps, for every byte of the data space that its owner answers for, one of three
//! states: **ready** (owned by the lane that should carry it), **in transit**, **delivered**
//! (MuniSocket section 4; its status vector kept as runs, so memory is O(runs + in transit), never
//! O(bytes)). Transfers use it, at the receiver: taking a unit means granting it. Messages are pushed by their sender,
//! which has a machine of its own ([`message::Sender`](crate::message::Sender)): a message is small, there is no
//! holder to choose and no work to steal, and acknowledgements are its credit.
//!
//! ```text
//!            take                delivered
//!   ready ---------> in transit ----------> delivered
//!     ^                  |
//!     +------------------+  lane failed, unit corrupt or refused
//! ```
//!
//! Policies, in the order they are tried by [`Ledger::take`]:
//! 1. the lane's own ready runs, front to back (contiguous reads for the disks behind it);
//! 2. stealing: part of the run of the lane that would finish last, in proportion to both speeds; from the other
//!    rails of its peer first, from other peers if it is free to;
//! 3. end game: a unit in transit on a lane that is much slower is carried a second time; the first
//!    copy wins.
//!
//! A lane to a fellow receiver takes only units that it was opened for (`relay`); what it was planned to carry is taken by one to an
//! original holder only where it lags (`spare`).
//!
//! Left out on purpose: sockets, hashes, credit windows in bytes (the caller passes what it allows).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use ropewalk_model::{Instant, Nanos, Number, Range, RangeSet, Table, UNIT_LEN_MIN};

mod check;
mod lane;
mod queries;
mod rails;
mod rate;
mod relay;
#[cfg(test)]
mod relay_tests;
mod spare;
mod steal;
mod stretches;
#[cfg(test)]
mod tests;

use lane::Lane;
pub use rate::RateMeter;
pub(crate) use relay::whole_units;
use stretches::Kept;

/// A lane inside one ledger, counted from 0 in the order in which they were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

impl Number for LaneId {
    fn of(position: usize) -> Self {
        Self(position as u32)
    }

    fn position(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes given later make a lane a planned one when they are at least one in so many of all.
const INHERITED_PART: u64 = 16;

/// Speed assumed for a lane nobody has measured yet, in bytes per second. Only ratios matter.
const RATE_UNKNOWN: f64 = 12.5e6;

/// A stretch of ready bytes and the peers that can supply it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRun {
    /// Bytes not yet asked for.
    pub range: Range,
    /// Lanes whose peer holds the range; the first is the planned one.
    pub holders: Vec<LaneId>,
    /// How freely others could carry it later: the least is first.
    pub choices: u32,
}

/// A unit that was granted to a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The bytes.
    pub range: Range,
    /// Whether this is an end-game copy of a unit that another lane also carries.
    pub duplicate: bool,
}

/// What [`Ledger::delivered`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The bytes count now. Copies still in transit on these lanes are useless and may be cancelled.
    Fresh {
        /// Lanes that still carry a copy.
        cancel: Vec<LaneId>,
    },
    /// Another lane was first: the bytes count once.
    Duplicate,
}

#[derive(Clone, Debug)]
struct InTransit {
    range: Range,
    holders: Vec<LaneId>,
    choices: u32,
    carriers: Vec<LaneId>,
    taken_at: Instant,
    // When its first carrier should have brought it, at the speed known when it was taken. A lane
    // that stalls shows here: its measured speed cannot fall while nothing arrives.
    due_at: Instant,
}

/// The unit at an offset of a run, as far as the run goes; bytes that no layout knows go in pieces, too.
pub(crate) fn unit_of(offset: u64, run: Range, unit_at: &dyn Fn(u64) -> Range) -> Range {
    let unit = unit_at(offset);
    let end = match unit.contains(offset) {
        true => unit.end,
        false => offset.saturating_add(UNIT_LEN_MIN),
    };
    Range {
        start: offset,
        end: end.min(run.end),
    }
}

/// The state of every wanted byte. See the module documentation.
#[derive(Debug)]
pub struct Ledger {
    lanes: Table<LaneId, Lane>,
    // Keyed by start; units never overlap, since a unit leaves `ready` when it enters here.
    in_transit: BTreeMap<u64, InTransit>,
    delivered: RangeSet,
    // Ranges without a living holder, waiting for the planner's word.
    orphans: RangeSet,
    // Ranges given up: nobody holds them any more.
    unavailable: RangeSet,
    wanted_bytes: u64,
    delivered_bytes: u64,
    duplicate_bytes: u64,
    // The stream that asks is an idle one of several of its lane: units that take longer than this may be on a slow one.
    slow_after: Option<Nanos>,
    // Each lane has its part, and nobody takes another's.
    is_dealt: bool,
    // When the first fellow receiver was met, and what those that are left announced.
    relays_since: Option<Instant>,
    handed: RangeSet,
    // By its number: whose turn it is.
    turn: u64,
    // What lanes to original holders have from fellow receivers that are lost, until it is in this node's order.
    inherited: Vec<(LaneId, Range)>,
    // Stretches of fellow receivers' work from which lanes choose.
    kept: Kept,
    // Calls so far, where they are counted.
    calls: Cell<u64>,
}

impl Ledger {
    /// A ledger over `lanes` peers with nothing to do yet.
    pub fn new(lanes: usize) -> Self {
        Self {
            lanes: Vec::from_iter((0..lanes).map(LaneId::of).map(Lane::to)).into(),
            in_transit: BTreeMap::new(),
            delivered: RangeSet::new(),
            orphans: RangeSet::new(),
            unavailable: RangeSet::new(),
            wanted_bytes: 0,
            delivered_bytes: 0,
            duplicate_bytes: 0,
            slow_after: None,
            is_dealt: false,
            relays_since: None,
            handed: RangeSet::new(),
            turn: 0,
            inherited: Vec::new(),
            kept: Kept::default(),
            calls: Cell::new(0),
        }
    }

    /// Whether the end game is played within the lane that takes next, too, of units that have taken longer than this: where a lane is made
    /// of several streams, its last unit may be on a slow one, or on one that is dead, while the one that asks has nothing to do.
    pub fn set_slow_streams(&mut self, after: Option<Nanos>) {
        self.slow_after = after;
    }

    /// Adds a peer and returns its number.
    pub fn add_lane(&mut self) -> LaneId {
        let lane = self.lanes.push(Lane::to(self.lanes.next_number()));
        self.check_call();
        lane
    }

    /// Adds wanted bytes. Runs must not overlap bytes already in the ledger; `holders` must name
    /// at least one lane, the planned one first.
    pub fn want(&mut self, run: ReadyRun) {
        if run.range.is_empty() {
            return;
        }
        self.wanted_bytes += run.range.len();
        self.place(run, true);
        self.check_call();
    }

    /// As [`Ledger::want`], for bytes that this node was given later: a lane counts as planned when they
    /// are a good part of all the node wants.
    pub fn inherit(&mut self, run: ReadyRun) {
        if run.range.is_empty() {
            return;
        }
        self.wanted_bytes += run.range.len();
        let planned = run.range.len() >= self.wanted_bytes / INHERITED_PART;
        self.place(run, planned);
        self.check_call();
    }

    fn place(&mut self, mut run: ReadyRun, planned: bool) {
        run.holders
            .retain(|&lane| self.lanes.get(lane).is_some_and(|l| !l.lost));
        match run.holders.first() {
            Some(&owner) if self.has_origin(&run.holders) => {
                self.lanes[owner].planned |= planned;
                self.push(owner, run, false);
            }
            _ => self.orphans.insert(run.range),
        }
    }

    fn push(&mut self, owner: LaneId, run: ReadyRun, front: bool) {
        self.ready_changed(owner);
        let lane = &mut self.lanes[owner];
        lane.ready_bytes += run.range.len();
        if front {
            return lane.ready.push_front(run);
        }
        // Mostly at the end, or near it: plans come in this order.
        let freer = |other: &&ReadyRun| other.choices > run.choices;
        let at = lane.ready.len() - lane.ready.iter().rev().take_while(freer).count();
        lane.ready.insert(at, run);
    }

    /// Takes the next unit for a lane, or `None` when it can do nothing useful now. Work of other peers is left alone
    /// unless the lane is `free` to take it.
    ///
    /// * `unit_at`: the longest unit that begins at an offset (chunk and file borders, from the layout).
    /// * `now`: for speed estimates.
    ///
    /// Cost: O(lanes) when stealing from another rail, O(lanes + ready runs) from another peer, otherwise O(log in transit).
    pub fn take(
        &mut self,
        lane: LaneId,
        free: bool,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<Unit> {
        let unit = self.take_unit(lane, free, now, unit_at);
        self.check_call();
        unit
    }

    fn take_unit(
        &mut self,
        lane: LaneId,
        free: bool,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<Unit> {
        if self.lanes.get(lane).is_none_or(|l| l.lost) {
            return None;
        }
        self.turn_inherited(unit_at);
        if self.is_relay(lane) {
            return self.take_opened(lane, free, now, unit_at);
        }
        if self.lanes[lane].ready.is_empty() && !self.is_dealt {
            self.steal(lane, free, now, unit_at);
        }
        if let Some(run) = self.lanes[lane].ready.front_mut() {
            let range = unit_of(run.range.start, run.range, unit_at);
            let (holders, choices) = (run.holders.clone(), run.choices);
            run.range.start = range.end;
            if run.range.is_empty() {
                self.lanes[lane].ready.pop_front();
            }
            self.lanes[lane].ready_bytes -= range.len();
            return Some(self.grant(lane, (range, holders, choices), now));
        }
        if self.is_dealt {
            return None;
        }
        let spare = free.then(|| self.take_spare(lane, now, unit_at)).flatten();
        spare.or_else(|| self.end_game(lane, free, now))
    }

    /// A unit that was ready is in transit on a lane from now on.
    fn grant(
        &mut self,
        lane: LaneId,
        (range, holders, choices): (Range, Vec<LaneId>, u32),
        now: Instant,
    ) -> Unit {
        let l = &mut self.lanes[lane];
        if l.in_transit_bytes == 0 {
            l.moved_at = Some(now);
        }
        l.carry(range.len(), now);
        let due_at = now + Nanos::from_seconds(self.backlog_in_transit(lane));
        let unit = InTransit {
            range,
            holders,
            choices,
            carriers: vec![lane],
            taken_at: now,
            due_at,
        };
        self.in_transit.insert(range.start, unit);
        self.close_to_all(range);
        Unit {
            range,
            duplicate: false,
        }
    }

    fn rate(&self, lane: LaneId) -> f64 {
        self.lanes[lane]
            .rate
            .bytes_per_second()
            .unwrap_or(RATE_UNKNOWN)
            .max(1.0)
    }

    /// Seconds until the lane has carried all it owns, at its present speed.
    fn backlog_seconds(&self, lane: LaneId) -> f64 {
        let l = &self.lanes[lane];
        (l.ready_bytes + l.in_transit_bytes) as f64 / self.rate(lane)
    }

    fn backlog_in_transit(&self, lane: LaneId) -> f64 {
        self.lanes[lane].in_transit_bytes as f64 / self.rate(lane)
    }

    /// Seconds until a unit in transit is expected, by its fastest carrier; an overdue unit is
    /// expected to take as long again as it is late.
    fn expected_seconds(&self, unit: &InTransit, now: Instant) -> f64 {
        let overdue = now.since(unit.due_at).as_seconds();
        let backlog = unit
            .carriers
            .iter()
            .map(|&c| match self.is_relay(c) {
                // What it does not have yet does not delay what it sends.
                true => self.backlog_in_transit(c),
                false => self.backlog_seconds(c),
            })
            .fold(f64::MAX, f64::min);
        backlog.max(overdue)
    }

    /// Records that a unit was received over a lane, whole and checked.
    pub fn delivered(&mut self, lane: LaneId, range: Range, now: Instant) -> Delivery {
        if let Some(l) = self.lanes.get_mut(lane) {
            l.put_down(range.len(), now);
            let busy = l.in_transit_bytes > 0;
            l.moved_at = Some(now);
            l.brought_at = Some(now);
            l.rate.delivered(range.len(), now, busy);
        }
        let delivery = match self.in_transit.get(&range.start) {
            Some(unit) if unit.range == range && unit.carriers.contains(&lane) => {
                if unit.carriers.first() == Some(&lane) {
                    let took = now.since(unit.taken_at);
                    self.lanes[lane].took(took);
                }
                let unit = self.in_transit.remove(&range.start);
                let mut cancel = unit.map(|u| u.carriers).unwrap_or_default();
                // Another stream of the same lane may carry a copy, too.
                if let Some(at) = cancel.iter().position(|&c| c == lane) {
                    cancel.remove(at);
                }
                self.delivered.insert(range);
                self.delivered_bytes += range.len();
                self.close_for_good(range);
                Delivery::Fresh { cancel }
            }
            _ => {
                self.duplicate_bytes += range.len();
                Delivery::Duplicate
            }
        };
        self.leave_ready(lane);
        self.check_call();
        delivery
    }

    fn put_down(&mut self, lane: LaneId, range: Range, now: Instant) {
        if let Some(l) = self.lanes.get_mut(lane) {
            l.put_down(range.len(), now);
            if l.in_transit_bytes == 0 {
                l.rate.idle(now);
            }
        }
    }

    /// A unit was damaged or refused: it becomes ready again, with another holder if there is one.
    pub fn failed(&mut self, lane: LaneId, range: Range, now: Instant) {
        self.put_down(lane, range, now);
        self.back_to_ready(lane, range.start);
        self.leave_ready(lane);
        self.check_call();
    }

    /// The lane's peer does not have the unit after all: it is not asked for these bytes again.
    pub fn refused(&mut self, lane: LaneId, range: Range, now: Instant) {
        if let Some(unit) = self.in_transit.get_mut(&range.start) {
            unit.holders.retain(|&holder| holder != lane);
        }
        self.disown(lane, range);
        self.failed(lane, range, now);
    }

    fn back_to_ready(&mut self, lane: LaneId, start: u64) {
        let Some(unit) = self.in_transit.get_mut(&start) else {
            return;
        };
        let Some(at) = unit.carriers.iter().position(|&c| c == lane) else {
            return;
        };
        unit.carriers.remove(at);
        if !unit.carriers.is_empty() {
            return;
        }
        if let Some(unit) = self.in_transit.remove(&start) {
            self.open_again(unit.range);
            let mut holders = unit.holders;
            holders.retain(|&h| self.lanes.get(h).is_some_and(|l| !l.lost));
            // The lane that failed it comes last, not never: it may be the only one.
            if let Some(at) = holders.iter().position(|&h| h == lane) {
                let last = holders.remove(at);
                holders.push(last);
            }
            match holders.first().copied() {
                Some(owner) if self.has_origin(&holders) => self.push(
                    owner,
                    ReadyRun {
                        range: unit.range,
                        holders,
                        choices: unit.choices,
                    },
                    true,
                ),
                _ => self.orphans.insert(unit.range),
            }
        }
    }

    /// A lane takes nothing any more. What it carries stays in transit until it is [`failed`](Self::failed), stream by stream,
    /// or delivered; then what it owned moves to other holders, or becomes an orphan.
    pub fn lane_failed(&mut self, lane: LaneId) {
        let Some(l) = self.lanes.get_mut(lane) else {
            return;
        };
        if l.lost {
            return;
        }
        l.lost = true;
        if self.is_relay(lane) {
            self.count_handed();
        }
        self.leave_ready(lane);
        self.check_call();
    }

    /// Hands on what a lane that failed owned, once it carries nothing.
    fn leave_ready(&mut self, lane: LaneId) {
        let Some(l) = self.lanes.get_mut(lane) else {
            return;
        };
        if !l.lost || l.in_transit_bytes > 0 {
            return;
        }
        l.ready_bytes = 0;
        let peer = l.peer;
        let runs: Vec<ReadyRun> = l.ready.drain(..).collect();
        // Its heirs', too.
        self.all_ready_changed();
        let mut heirs = BTreeSet::new();
        for mut run in runs {
            run.holders
                .retain(|&h| self.lanes.get(h).is_some_and(|l| !l.lost));
            // Another rail of the peer, else whoever would be done first; stealing evens out the rest.
            let is_other = |lane: LaneId| self.lanes[lane].peer != peer;
            let best = run.holders.iter().copied().min_by(|&a, &b| {
                let seconds = |lane| self.backlog_seconds(lane);
                let rails_first = is_other(a).cmp(&is_other(b));
                rails_first
                    .then(seconds(a).total_cmp(&seconds(b)))
                    .then(a.cmp(&b))
            });
            match best {
                Some(owner) if self.has_origin(&run.holders) => {
                    run.holders.retain(|&h| h != owner);
                    run.holders.insert(0, owner);
                    let is_relays = self.is_relay(lane) && !self.is_relay(owner);
                    let heir = &mut self.lanes[owner];
                    heir.planned = true;
                    heir.ready_bytes += run.range.len();
                    if is_relays {
                        self.inherited.push((owner, run.range));
                    }
                    heir.ready.push_back(run);
                    heirs.insert(owner);
                }
                _ => self.orphans.insert(run.range),
            }
        }
        self.leave_relays();
        // Once for all: they may be many.
        for heir in heirs {
            let ready = self.lanes[heir].ready.make_contiguous();
            ready.sort_by_key(|run| run.choices);
        }
    }

    /// Ranges that no living peer is known to hold, to be shown to the planner.
    pub fn orphans(&self) -> &RangeSet {
        &self.orphans
    }

    /// The planner's new owners for ready and orphaned bytes. Delivered bytes and bytes in transit
    /// stay as they are; a run that names only dead lanes is orphaned.
    pub fn reassign(&mut self, runs: impl IntoIterator<Item = ReadyRun>) {
        for run in runs {
            let mut open: Vec<Range> = self.orphans.clipped(run.range).iter().collect();
            for &range in &open {
                self.orphans.remove(range);
            }
            open.extend(self.withdraw_ready(run.range));
            for range in open {
                let run = ReadyRun {
                    range,
                    ..run.clone()
                };
                self.place(run, false);
            }
        }
        self.check_call();
    }

    /// Takes up to `bytes` ready bytes out of the ledger for good: another node will fetch them. Cut
    /// at unit borders, from the ends of the runs that would be fetched last.
    pub fn release(&mut self, bytes: u64, unit_at: &dyn Fn(u64) -> Range) -> RangeSet {
        self.all_ready_changed();
        let mut out = RangeSet::new();
        while out.len_bytes() < bytes {
            let slowest = self
                .lanes
                .numbers()
                .filter(|&lane| !self.lanes[lane].ready.is_empty())
                .max_by(|&a, &b| self.backlog_seconds(a).total_cmp(&self.backlog_seconds(b)));
            let Some(lane) = slowest.map(|lane| &mut self.lanes[lane]) else {
                break;
            };
            let Some(run) = lane.ready.back_mut() else {
                break;
            };
            let wanted = (bytes - out.len_bytes()).min(run.range.len());
            let cut = unit_at(run.range.end - wanted)
                .start
                .clamp(run.range.start, run.range.end - 1);
            let part = Range {
                start: cut,
                end: run.range.end,
            };
            run.range.end = cut;
            if run.range.is_empty() {
                lane.ready.pop_back();
            }
            lane.ready_bytes -= part.len();
            self.wanted_bytes -= part.len();
            out.insert(part);
        }
        self.check_call();
        out
    }

    /// Takes all ready bytes inside `range` from their owners.
    fn withdraw_ready(&mut self, range: Range) -> Vec<Range> {
        self.all_ready_changed();
        let mut out = Vec::new();
        for lane in self.lanes.rows_mut() {
            if !lane.ready.iter().any(|run| run.range.overlaps(range)) {
                continue;
            }
            let mut kept = VecDeque::with_capacity(lane.ready.len());
            for run in std::mem::take(&mut lane.ready) {
                let Some(part) = run.range.intersect(range).filter(|part| !part.is_empty()) else {
                    kept.push_back(run);
                    continue;
                };
                out.push(part);
                lane.ready_bytes -= part.len();
                for rest in [
                    Range {
                        start: run.range.start,
                        end: part.start,
                    },
                    Range {
                        start: part.end,
                        end: run.range.end,
                    },
                ] {
                    if !rest.is_empty() {
                        kept.push_back(ReadyRun {
                            range: rest,
                            ..run.clone()
                        });
                    }
                }
            }
            lane.ready = kept;
        }
        out
    }

    /// Bytes inside `range` that the ledger answers for, in whatever state.
    pub fn known(&self, range: Range) -> RangeSet {
        let mut out = self
            .delivered
            .clipped(range)
            .union(&self.orphans.clipped(range))
            .union(&self.unavailable.clipped(range));
        let ready = self
            .lanes
            .rows()
            .flat_map(|lane| lane.ready.iter().map(|run| run.range));
        for part in ready
            .chain(self.in_transit.values().map(|unit| unit.range))
            .filter_map(|r| r.intersect(range))
        {
            out.insert(part);
        }
        out
    }

    /// Gives ranges up: the transfer completes without them.
    pub fn give_up(&mut self, range: Range) {
        for part in self.orphans.clipped(range).iter() {
            self.orphans.remove(part);
            self.unavailable.insert(part);
        }
        self.check_call();
    }

    /// What was given up is not the ledger's any more: it may be wanted again.
    pub fn forget_given_up(&mut self, range: Range) {
        for part in self.unavailable.clipped(range).iter() {
            self.unavailable.remove(part);
            self.wanted_bytes -= part.len();
        }
        self.check_call();
    }

    /// Bytes that were released and that no lane holds any more: wanted and given up.
    pub fn lose(&mut self, range: Range) {
        self.wanted_bytes += range.len();
        self.unavailable.insert(range);
        self.check_call();
    }

    /// Lanes without work of their own are in reserve from now on; the others count as planned.
    pub fn settle(&mut self) {
        for lane in self.lanes.rows_mut() {
            lane.planned = !lane.ready.is_empty();
        }
    }
}
