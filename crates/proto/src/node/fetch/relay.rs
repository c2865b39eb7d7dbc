//! Fellow receivers that hand on what they have: what they said that is, and what it must be.
//!
//! ```text
//!  planned ──▶ an original holder is asked for the unit's hash ──▶ vouched ─┐
//!     └──────▶ the fellow receiver says that it has it ────────▶ announced ─┴▶ its lane is opened for the unit
//! ```
//!
//! Hashes are asked for a few units ahead of each fellow receiver, those that it announced first, so that they are mostly there
//! when the announcement is. The holder that sent the unit has read it, and is asked: announcements say which one of several that is,
//! so that holders mostly read each unit once. Before they do, only what one holder has is asked about, and the last units. A unit is taken from it only when both are there, and counts only where it has that hash. One that
//! sends other bytes is left out for the rest of the transfer. Nothing else depends on it: original holders are holders of the same
//! runs, and serve what is not announced, or not in time.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Range, RangeMap, RangeSet};

use super::{Difference, Event, Receiving};
use crate::control::Peer;
use crate::ledger::{LaneId, ReadyRun, whole_units};
use crate::mix::mix;
use crate::wire::HeldRange;

/// Bytes of each fellow receiver's work whose hashes are asked for before they are taken: a lane of 1.3 Gbit/s brings as many in
/// 50 ms, in which an answer arrives ...
const AHEAD_BYTES: u64 = 8 << 20;

/// ... in at least so many units, which is more than a lane has in transit ...
pub(super) const AHEAD_UNITS_MIN: usize = 32;

/// ... and at most so many: hundreds of lanes take little memory.
const AHEAD_UNITS_MAX: usize = 128;

/// Pieces of what fellow receivers said of the origin of their bytes that are remembered.
const ORIGINS_MAX: usize = 1 << 16;

/// A lane with fewer units to bring than that is to bring what others would bring later.
const UNITS_ELSEWHERE: usize = 4;

/// A unit that is to be taken from a fellow receiver.
#[derive(Clone, Debug)]
struct Unit {
    range: Range,
    relay: u32,
    // The holder that was asked for its hash last, or gave it; all that were asked; those that have not answered; the answer.
    origin: u32,
    asked: BTreeSet<u32>,
    owing: BTreeSet<u32>,
    digest: Option<[u8; 32]>,
}

/// What is known of a fellow receiver.
#[derive(Clone, Debug, Default)]
struct Relay {
    // Units of its work that were asked about and are not delivered.
    units: usize,
    // Of these, where those begin that it has not announced.
    early: BTreeSet<u64>,
}

/// See the module documentation. What is asked is bounded by [`AHEAD_UNITS_MAX`] for each fellow receiver; what this node has takes a few
/// words for each unit.
#[derive(Debug, Default)]
pub(super) struct Relays {
    all: BTreeMap<u32, Relay>,
    // By the unit's start.
    units: BTreeMap<u64, Unit>,
    // Those that the first plan did not name.
    joined: BTreeSet<u32>,
    // Where this node hands on: by the start of each unit that was received, its end and hash.
    own: Option<BTreeMap<u64, (u64, [u8; 32])>>,
    // Of what it has: the original holders that this is from.
    origins: RangeMap<u32>,
    // Of what it lacks: the same, as fellow receivers said. At most [`ORIGINS_MAX`] pieces.
    pub(super) said_origins: RangeMap<u32>,
}

/// Units whose hashes are to be asked for.
struct Asked<'a> {
    // Those that were.
    units: &'a BTreeMap<u64, Unit>,
    seen: BTreeSet<u64>,
    wanted: Vec<(Range, Vec<LaneId>)>,
    space: usize,
}

impl Asked<'_> {
    /// Adds up to so many units of some runs.
    ///
    /// * `within`: only those that are whole in it.
    fn ask<'r>(
        &mut self,
        runs: impl Iterator<Item = &'r ReadyRun>,
        within: Option<&RangeSet>,
        most: usize,
        unit_at: &dyn Fn(u64) -> Range,
    ) {
        let mut left = most.min(self.space);
        for run in runs {
            if left == 0 {
                return;
            }
            let all = RangeSet::from(run.range);
            for unit in whole_units(within.unwrap_or(&all), run.range, unit_at) {
                if left == 0 {
                    return;
                }
                if !self.units.contains_key(&unit.start) && self.seen.insert(unit.start) {
                    self.wanted.push((unit, run.holders.clone()));
                    (left, self.space) = (left - 1, self.space - 1);
                }
            }
        }
    }
}

impl Relays {
    fn find(&self, range: Range) -> Option<&Unit> {
        let unit = self.units.get(&range.start);
        unit.filter(|unit| unit.range == range)
    }

    /// A fellow receiver is met that the first plan did not name.
    pub fn join(&mut self, relay: u32) {
        self.joined.insert(relay);
    }

    /// This node hands on what it receives.
    pub fn hand_on(&mut self) {
        self.own.get_or_insert_default();
    }

    /// Bytes are delivered, by whichever lane; their hash.
    ///
    /// * `origin`: the original holder that they are from.
    pub fn delivered(&mut self, range: Range, origin: u32, digest: Option<[u8; 32]>) {
        if let Some((own, digest)) = self.own.as_mut().zip(digest) {
            own.insert(range.start, (range.end, digest));
            self.origins.insert(range, origin);
        }
        self.said_origins.remove(range);
        while let Some((&start, _)) = self.units.range(range.start..range.end).next() {
            self.remove(start);
        }
    }

    /// A fellow receiver has more, and says where it is from: of ranges in their order, as it is to announce them.
    fn note_origins(
        &mut self,
        said: impl Iterator<Item = (Range, u32)>,
        news: &RangeSet,
        delivered: &RangeSet,
    ) {
        let mut end = 0;
        for (range, origin) in said {
            if range.start < end {
                continue;
            }
            end = range.end;
            for part in news.within(range).flat_map(|part| delivered.gaps(part)) {
                if self.said_origins.len() >= ORIGINS_MAX {
                    return;
                }
                self.said_origins.insert(part, origin);
            }
        }
    }

    fn remove(&mut self, start: u64) {
        let unit = self.units.remove(&start);
        if let Some(relay) = unit.and_then(|unit| self.all.get_mut(&unit.relay)) {
            relay.units -= 1;
            relay.early.remove(&start);
        }
    }

    /// Nothing is taken from a fellow receiver any more. What units of its work must be is good for others that have them.
    fn forget(&mut self, relay: u32) {
        self.all.remove(&relay);
    }

    /// Units whose hashes are not known, of which holders were asked that have not answered.
    fn open_where(&self, is_meant: impl Fn(&BTreeSet<u32>) -> bool) -> Vec<Range> {
        let open = self.units.values().filter(|unit| unit.digest.is_none());
        let open = open.filter(|unit| is_meant(&unit.owing));
        open.map(|unit| unit.range).collect()
    }

    /// Whether the hash of a unit is not known, and this holder was asked for it.
    pub fn is_owed(&self, range: Range, node: u32) -> bool {
        let unit = self.find(range).filter(|unit| unit.digest.is_none());
        unit.is_some_and(|unit| unit.owing.contains(&node))
    }
}

impl Receiving {
    /// The number of this node, by which it and fellow receivers take turns; before the plan.
    pub fn set_number(&mut self, node: u32) {
        self.ledger.set_number(node);
    }

    /// A peer of the plan is a fellow receiver.
    pub(super) fn enter_relay(&mut self, peer: &Peer, lane: LaneId) {
        self.ledger.set_relay(lane, peer.node, self.now);
        let ends_at = peer.wants_end.filter(|end| *end >= peer.wants_start);
        if let Some(end) = ends_at {
            self.ledger
                .set_wants(lane, Range::new(peer.wants_start, end));
        }
        self.relays.all.entry(peer.node).or_default();
    }

    /// Whether a lane leads to a fellow receiver that may say any time what more it has. It says that to a node that has all, too, which
    /// may be given more work: what was not read would fill the connection within hours, and block the fellow receiver's thread.
    #[must_use]
    pub fn listens(&self, lane: LaneId) -> bool {
        self.ledger.is_relay(lane) && self.ledger.is_alive(lane)
    }

    /// Lanes to fellow receivers that can be reached and that the first plan did not name: they joined since.
    pub(in crate::node) fn joined(&self) -> impl Iterator<Item = LaneId> {
        let lanes = self.relays.joined.iter();
        let lanes = lanes.filter_map(|node| self.lane_of.get(node).copied());
        lanes.filter(|lane| self.is_reachable(*lane))
    }

    /// Streams that a lane has, where all are there.
    pub(super) fn streams_of(&self, lane: LaneId) -> u32 {
        match self.has_joined(lane) {
            true => self.streams.min(self.streams_to_joined),
            false => self.streams,
        }
    }

    /// Whether a lane leads to one of these.
    pub(in crate::node) fn has_joined(&self, lane: LaneId) -> bool {
        self.relays.joined.contains(&self.node_of(lane))
    }

    /// Whether what is received over a lane is to be compared with what an original holder said before it is written.
    #[must_use]
    pub fn is_relayed(&self, lane: LaneId) -> bool {
        self.ledger.is_relay(lane)
    }

    /// A fellow receiver said that it has more. Each stream to it says the same: nothing is looked for where it is not new.
    pub fn handle_announced(
        &mut self,
        lane: LaneId,
        ranges: &[HeldRange],
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) {
        self.now = now;
        let node = self.node_of(lane);
        if !self.listens(lane) {
            return;
        }
        if !self.relays.all.contains_key(&node) {
            return;
        }
        let all: Vec<Range> = ranges.iter().map(|held| held.range).collect();
        let news = self.ledger.announced(lane, &all, now);
        if news.is_empty() {
            return;
        }
        let said = ranges.iter().filter_map(|held| {
            let origin = held.origin.filter(|node| {
                let lane = self.lane_of.get(node);
                lane.is_some_and(|lane| !self.ledger.is_relay(*lane))
            });
            Some((held.range, origin?))
        });
        self.relays
            .note_origins(said, &news, self.ledger.delivered_ranges());
        let Some(relay) = self.relays.all.get_mut(&node) else {
            return;
        };
        let (announced, units) = (self.ledger.has(lane), &self.relays.units);
        // Units that are whole now begin in what is new, or end there.
        let around = |range: Range| {
            let before = units.range(..range.start).next_back();
            before
                .into_iter()
                .chain(units.range(range.start..range.end))
        };
        let news = news.iter().flat_map(around).map(|(_, unit)| unit);
        let whole = news.filter(|unit| announced.contains_range(unit.range));
        let mut known = Vec::new();
        for unit in whole {
            relay.early.remove(&unit.range.start);
            known.extend(unit.digest.map(|_| unit.range));
        }
        for unit in known {
            self.ledger.open_to(lane, unit);
        }
        self.ask_ahead(lane, unit_at);
    }

    /// A fellow receiver announces more often than it may: nothing more is taken from it.
    pub(in crate::node) fn handle_flood(&mut self, lane: LaneId, now: Instant) {
        self.now = now;
        if !self.listens(lane) {
            return;
        }
        let relay = self.peer_name(lane);
        self.note(format!(
            "{relay} announced what it has far more often than fifty times a second: nothing more is taken from {relay}; check which \
             program answers there"
        ));
        self.leave_out(lane, "it announced too often");
        self.call_needed();
        self.check_progress();
    }

    /// Nothing is taken from a fellow receiver any more.
    fn leave_out(&mut self, lane: LaneId, reason: &str) {
        let node = self.node_of(lane);
        for rail in self.ledger.rails(lane).collect::<Vec<_>>() {
            self.lane_ends(rail, reason);
        }
        self.relays.forget(node);
    }

    /// Asks for the hashes of units that a fellow receiver is to bring: of those that others wait for here and that it has announced, of
    /// its own work that it has, and, of what one holder has or where this node lacks little, of the rest of that, which takes at most half of the space, as it may
    /// never have it. Where it has little to do, of what others would bring later.
    pub(super) fn ask_ahead(&mut self, lane: LaneId, unit_at: &dyn Fn(u64) -> Range) {
        let node = self.node_of(lane);
        let Some(relay) = self.relays.all.get(&node).filter(|_| !self.finished) else {
            return;
        };
        let units_max = (AHEAD_BYTES / self.unit_len.max(1)) as usize;
        let units_max = units_max.clamp(AHEAD_UNITS_MIN, AHEAD_UNITS_MAX);
        let (early_max, early) = (units_max / 2, relay.early.len());
        let known = relay.units - early;
        let announced = self.ledger.has(lane);
        let space = units_max.saturating_sub(relay.units);
        if space == 0 {
            return;
        }
        let mut asked = Asked {
            units: &self.relays.units,
            seen: BTreeSet::new(),
            wanted: Vec::new(),
            space,
        };
        asked.ask(self.ledger.awaited(), Some(announced), usize::MAX, unit_at);
        // Not for each unit that is delivered.
        let is_full = known > units_max / 4 && early > early_max / 2;
        if !is_full && known <= units_max / 2 {
            asked.ask(
                self.ledger.ready_of(lane),
                Some(announced),
                usize::MAX,
                unit_at,
            );
            let few = UNITS_ELSEWHERE.saturating_sub(known + asked.wanted.len());
            if few > 0 {
                let others = self.ledger.ready_elsewhere(lane);
                asked.ask(others, Some(announced), few, unit_at);
            }
            let early = early_max.saturating_sub(early);
            if early > 0 {
                let delivered = self.ledger.delivered_bytes();
                let lacks = self.ledger.wanted_bytes().saturating_sub(delivered);
                let is_near_end = lacks <= early_max as u64 * self.unit_len;
                let runs = self.ledger.ready_of(lane).take(units_max);
                let runs = runs.filter(|run| is_near_end || self.has_one_origin(run));
                asked.ask(runs, None, early, unit_at);
            }
        }
        let to_nodes = |(unit, holders): (Range, Vec<LaneId>)| {
            let is_early = !announced.contains_range(unit);
            (unit, self.originals(&holders).collect(), is_early)
        };
        let wanted: Vec<(Range, Vec<u32>, bool)> = asked.wanted.into_iter().map(to_nodes).collect();
        for (range, holders, is_early) in wanted {
            let Some(origin) = self.ask_origin(range, &holders, &BTreeSet::new()) else {
                continue;
            };
            let unit = Unit {
                range,
                relay: node,
                origin,
                asked: BTreeSet::from([origin]),
                owing: BTreeSet::from([origin]),
                digest: None,
            };
            self.relays.units.insert(range.start, unit);
            if let Some(relay) = self.relays.all.get_mut(&node) {
                relay.units += 1;
                if is_early {
                    relay.early.insert(range.start);
                }
            }
        }
        self.call_seconds();
    }

    /// The original holders that these lanes lead to.
    fn originals(&self, lanes: &[LaneId]) -> impl Iterator<Item = u32> {
        let lanes = lanes.iter().filter(|lane| !self.ledger.is_relay(**lane));
        lanes.map(|lane| self.node_of(*lane))
    }

    /// Whether one original holder alone can be asked about a run, as far as the plan names them.
    fn has_one_origin(&self, run: &ReadyRun) -> bool {
        let all = self.originals(&run.holders);
        let mut able = all.filter(|node| self.can_be_asked(*node));
        let first = able.next();
        first.is_some() && able.all(|other| Some(other) == first)
    }

    /// Of what this node has: the original holders that it is from.
    pub fn origins(&self) -> &RangeMap<u32> {
        &self.relays.origins
    }

    /// Asks an original holder for the hash of a unit: which; `None` where there is none that can be asked.
    ///
    /// * `but`: those that were asked before.
    pub(super) fn ask_origin(
        &mut self,
        range: Range,
        holders: &[u32],
        but: &BTreeSet<u32>,
    ) -> Option<u32> {
        let may = |node: &&u32| !but.contains(*node) && self.can_be_asked(**node);
        // The one that has read it; else the same one for all receivers, so that the unit is read once, and others for other units, so that
        // holders share the reading.
        let has_many = self.has_many_seconds();
        let said = self.relays.said_origins.get(range.start);
        let said = said.filter(|node| self.may_hold(*node, range));
        let rank = |node: u32| {
            let is_stream_more = has_many && !self.is_second(node);
            let turn = mix(range.start ^ u64::from(node));
            let has_read = said == Some(node);
            (self.is_late(node), is_stream_more, !has_read, turn)
        };
        let able = holders.iter().chain(&said).filter(may).copied();
        let origin = able.min_by_key(|node| rank(*node))?;
        self.ask_second(origin, range);
        Some(origin)
    }

    /// An original holder said what a unit's hash is.
    pub(super) fn vouch(&mut self, origin: u32, range: Range, digest: [u8; 32]) {
        let Some(unit) = self.relays.units.get_mut(&range.start) else {
            return;
        };
        if unit.range != range || !unit.owing.remove(&origin) {
            return;
        }
        if let Some(known) = unit.digest {
            let first = unit.origin;
            if known != digest && self.compares_holders() {
                self.differ(Difference::between(self, range, &[first], &[origin]));
            }
            return;
        }
        // The first of those that were asked.
        unit.origin = origin;
        unit.digest = Some(digest);
        let lanes = self.relays.all.keys();
        let lanes = lanes.filter_map(|node| self.lane_of.get(node).copied());
        let have = lanes.filter(|lane| self.ledger.has(*lane).contains_range(range));
        let have: Vec<LaneId> = have.collect();
        if !have.is_empty() {
            self.events.push_back(Event::Wake);
        }
        for lane in have {
            self.ledger.open_to(lane, range);
        }
    }

    /// A holder does not say what the hash of a unit is: another one is asked, where it was asked for a fellow receiver's sake.
    pub(super) fn vouch_again(&mut self, origin: u32, range: Range) {
        if !self.relays.is_owed(range, origin) {
            return;
        }
        let Some(unit) = self.relays.units.get_mut(&range.start) else {
            return;
        };
        unit.owing.remove(&origin);
        let owing = unit.owing.clone();
        if let Some(other) = owing.into_iter().find(|node| self.can_be_asked(*node)) {
            if let Some(unit) = self.relays.units.get_mut(&range.start) {
                unit.origin = other;
            }
        } else if !self.ask_next(range, &BTreeSet::new()) {
            // The fellow receiver is not asked for it then.
            self.relays.remove(range.start);
        }
    }

    /// Asks a holder about a unit that was not asked, and is none of these. False where there is none.
    fn ask_next(&mut self, range: Range, but: &BTreeSet<u32>) -> bool {
        let Some(unit) = self.relays.find(range) else {
            return false;
        };
        let but = unit.asked.union(but).copied().collect();
        let run = self.ledger.ready_around(range);
        let holders: Vec<u32> =
            run.map_or(Vec::new(), |run| self.originals(&run.holders).collect());
        let next = self.ask_origin(range, &holders, &but);
        let unit = self.relays.units.get_mut(&range.start);
        if let Some((unit, next)) = unit.zip(next) {
            unit.origin = next;
            unit.asked.insert(next);
            unit.owing.insert(next);
        }
        next.is_some()
    }

    /// A holder cannot be asked any more.
    pub(super) fn vouch_without(&mut self, origin: u32) {
        for range in self.relays.open_where(|owing| owing.contains(&origin)) {
            self.vouch_again(origin, range);
        }
    }

    /// Of these holders none answers in time: others are asked as well about what only they were asked.
    pub(super) fn vouch_elsewhere(&mut self, late: &BTreeSet<u32>) {
        for range in self.relays.open_where(|owing| owing.is_subset(late)) {
            self.ask_next(range, late);
        }
    }

    /// Whether nothing is taken from the fellow receiver that a lane leads to.
    fn is_left_out(&self, lane: LaneId) -> bool {
        !self.relays.all.contains_key(&self.node_of(lane))
    }

    /// Whether a unit that was received over a lane has the hash that an original holder gave; others need not show that.
    #[must_use]
    pub fn is_true(&self, lane: LaneId, range: Range, digest: Option<[u8; 32]>) -> bool {
        if !self.is_relayed(lane) {
            return true;
        }
        let told = self.relays.find(range).and_then(|unit| unit.digest);
        !self.is_left_out(lane) && told.is_some() && told == digest
    }

    /// A unit from a fellow receiver is not what an original holder has: nothing more is taken from it.
    pub fn handle_untrue(&mut self, lane: LaneId, range: Range, now: Instant) {
        self.now = now;
        self.no_copy(range);
        // What was asked about it may have been forgotten: another lane has delivered it. It proves nothing then.
        let unit = self.relays.find(range).filter(|_| !self.is_left_out(lane));
        if let Some(origin) = unit.filter(|unit| unit.digest.is_some()).map(|u| u.origin) {
            self.corrupt += 1;
            self.pairs[lane].corrupt += 1;
            let (relay, origin) = (self.peer_name(lane), self.name_of(origin));
            let check = match self.compares_holders() {
                true => "its disk and memory, and whether all sources hold the same",
                false => "its disk and memory",
            };
            self.note(format!(
                "bytes {}-{} that {relay} handed on are not those of {origin}, and were not written: nothing more is taken from \
                 {relay}; check {check}",
                range.start,
                range.end - 1
            ));
            self.leave_out(lane, "it handed on wrong bytes");
        }
        self.ledger.failed(lane, range, now);
        self.call_needed();
        self.check_progress();
    }

    /// Whether what was read of the sink, to be handed on, is what was received; where that is known.
    #[must_use]
    pub fn is_as_received(&self, range: Range, digest: &[u8; 32]) -> bool {
        let own = self.relays.own.as_ref();
        let known = own.and_then(|own| own.get(&range.start));
        known.is_none_or(|(end, received)| *end != range.end || received == digest)
    }

    /// The node whose bytes those of a lane are: the peer, or the holder that told their hash.
    pub(super) fn origin_of(&self, lane: LaneId, range: Range) -> u32 {
        let unit = self.relays.find(range).filter(|_| self.is_relayed(lane));
        unit.map_or(self.node_of(lane), |unit| unit.origin)
    }
}
