//! When an original holder sends what fellow receivers were planned to hand on.
//!
//! Its uplink is shared by all receivers, and mostly bounds the transfer. What no fellow receiver has yet has to leave it once more
//! anyway: an idle lane to it takes such units where the fellow receiver that is to have them first lags behind what this node
//! fetches otherwise, and that one has them from here then. Units that a fellow receiver has are left to those that have them
//! as long as others are to leave the holder for the first time, unless they are silent.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use super::relay::{Fellow, units_of_part};
use super::stretches::Kept;
use super::{LaneId, Ledger, ReadyRun, Unit, unit_of};
use crate::mix::mix;

/// A fellow receiver that needs this many times the time for its part that this node needs for all it lacks lags behind.
const LAG: f64 = 1.5;

/// A holder is asked when it brings a unit in less than a part of the time that it would take otherwise ...
const ADVANTAGE: f64 = 2.0;

/// ... and that is longer by a part of the time that the transfer has taken so far: announcements are a 32nd of it apart ...
const SLACK_PART: f64 = 8.0;

/// ... and at least, and at most, by so much (seconds) ...
const SLACK_SECONDS: (f64, f64) = (0.03, 2.0);

/// ... at most this much for what no fellow receiver has: it has to leave the holder once anyway, and what is asked for late is handed on
/// after the end of all else (seconds) ...
const SLACK_NEW_SECONDS_MAX: f64 = 0.5;

/// ... or by this part of it where all has left the holder once: its uplink is free then. About two announcements.
const SLACK_FREE: f64 = 0.25;

/// Of the mean rate so far, what is about as much.
const FULL: f64 = 0.75;

/// A lane that should bring something and does not for this long, or for a part of the time so far, is silent.
const SILENT: Nanos = Nanos::from_secs(1);

/// Turns after which any may take a unit: those before it may be stopped, or not want it.
const TURNS_MAX: usize = 4;

/// Units that are looked at for one that no other fellow receiver has.
const LOOKED_AT_MAX: usize = 64;

impl Ledger {
    /// The number of this node: it and its fellow receivers take turns by these.
    pub fn set_number(&mut self, node: u32) {
        self.turn = mix(node.into());
    }

    /// The next unit that a lane to an original holder brings of the work of fellow receivers.
    pub(super) fn take_spare(
        &mut self,
        lane: LaneId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<Unit> {
        let late = self.find_late(lane, now, unit_at);
        if late.is_empty() {
            self.lanes[lane].spare_since = None;
            return None;
        }
        let since = *self.lanes[lane].spare_since.get_or_insert(now);
        let idle = now
            .since(since.max(self.lanes[lane].idle_since))
            .as_seconds();
        // So long another one whose turn it is takes to announce what it took.
        let announced = self.slack(now)?.1 * SLACK_FREE;
        let mut kept = std::mem::take(&mut self.kept);
        let chosen = late.into_iter().find_map(|(relay, is_new)| {
            let turn = self.unit_seconds(lane, relay, now, unit_at) * ADVANTAGE + announced;
            let turns = (idle / turn) as usize;
            let (at, unit) = self.choose(lane, relay, (is_new, turns), &mut kept, unit_at)?;
            Some((relay, at, unit))
        });
        self.kept = kept;
        let (relay, at, unit) = chosen?;
        let run = self.pull(relay, at, unit);
        Some(self.grant(lane, (unit, run.holders, run.choices), now))
    }

    /// Puts what lanes to original holders have from fellow receivers that are lost in this node's own order: each receiver begins
    /// elsewhere, and has from the others what they began with.
    pub(super) fn turn_inherited(&mut self, unit_at: &dyn Fn(u64) -> Range) {
        let mut inherited: BTreeMap<LaneId, RangeSet> = BTreeMap::new();
        for (lane, range) in std::mem::take(&mut self.inherited) {
            inherited.entry(lane).or_default().insert(range);
        }
        for (lane, ranges) in inherited {
            self.turn_ready(lane, &ranges, unit_at);
        }
    }

    fn turn_ready(&mut self, lane: LaneId, inherited: &RangeSet, unit_at: &dyn Fn(u64) -> Range) {
        let mut ready: Vec<ReadyRun> = self.lanes[lane].ready.drain(..).collect();
        let is_other = |run: &mut ReadyRun| !inherited.contains_range(run.range);
        let mut kept: Vec<ReadyRun> = ready.extract_if(.., is_other).collect();
        let parts = ready.iter().enumerate();
        let parts: VecDeque<(usize, Range)> = parts.map(|(at, run)| (at, run.range)).collect();
        let bytes: u64 = parts.iter().map(|(_, part)| part.len()).sum();
        let runs = turned(&parts, self.turn % bytes.max(1), unit_at);
        kept.extend(runs.map(|(at, range)| ReadyRun {
            range,
            ..ready[at].clone()
        }));
        // Stable: those of one kind keep this order.
        kept.sort_by_key(|run| run.choices);
        self.lanes[lane].ready = kept.into();
    }

    /// Seconds until a lane has brought a unit of what another one is to carry.
    fn unit_seconds(
        &self,
        lane: LaneId,
        other: LaneId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> f64 {
        let first = self.lanes[other].ready.front();
        let unit = first.map_or(0, |run| unit_of(run.range.start, run.range, unit_at).len());
        self.seconds_for(lane, unit, other, now)
    }

    /// Fellow receivers whose work a lane could do and that are late, the latest first; whether it is for what none has. All of them: of
    /// each a receiver may take only the units whose turn it is.
    fn find_late(
        &self,
        lane: LaneId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Vec<(LaneId, bool)> {
        let Some((passed, slack)) = self.slack(now) else {
            return Vec::new();
        };
        let relays = self.lanes.numbers().filter(|other| {
            let ready = &self.lanes[*other].ready;
            self.is_relay(*other) && ready.iter().any(|run| run.holders.contains(&lane))
        });
        let relays: Vec<(LaneId, u64)> =
            relays.map(|relay| (relay, self.new_bytes(relay))).collect();
        let has_new = relays.iter().any(|(_, new)| *new > 0);
        let own = |relay| self.unit_seconds(lane, relay, now, unit_at) * ADVANTAGE;
        let own_left = self.own_left(passed);
        let lags = |(relay, new): &(LaneId, u64)| {
            let gained_at = self.fellow(*relay)?.gained_at;
            let theirs = self.gain_seconds(*relay, *new, now);
            let is_silent = Self::is_silent_since(gained_at, passed, now);
            let is_late = theirs > own(*relay) + slack.min(SLACK_NEW_SECONDS_MAX)
                && (is_silent || theirs > own_left);
            (*new > 0 && is_late).then_some((*relay, theirs))
        };
        let waits = |(relay, _): &(LaneId, u64)| {
            let theirs = self.seconds_left(*relay, now);
            let slack = match has_new {
                // It has crossed the path once; not where the end would wait for it.
                false if self.is_detour(lane, *relay) => self.detour_slack(now),
                true if self.is_silent(*relay, passed, now) => slack,
                true => f64::INFINITY,
                false => slack * SLACK_FREE,
            };
            (theirs > own(*relay) + slack).then_some((*relay, theirs))
        };
        let mut late: Vec<(LaneId, f64)> = relays.iter().filter_map(lags).collect();
        let is_new = !late.is_empty();
        if !is_new {
            late.extend(relays.iter().filter_map(waits));
        }
        late.sort_by(|a, b| b.1.total_cmp(&a.1));
        late.into_iter().map(|(relay, _)| (relay, is_new)).collect()
    }

    /// Ready bytes of a lane that no fellow receiver has: kept from the last time where it is known what became of them.
    fn new_bytes(&self, lane: LaneId) -> u64 {
        let kept = &self.lanes[lane].new_bytes;
        let new = kept.get().unwrap_or_else(|| self.count_new(lane));
        kept.set(Some(new));
        new
    }

    /// The same, counted. Cost O(runs × log pieces).
    pub(super) fn count_new(&self, lane: LaneId) -> u64 {
        let runs = self.lanes[lane].ready.iter();
        runs.map(|run| self.new_within(run.range)).sum()
    }

    /// Bytes of a range that no fellow receiver has.
    pub(super) fn new_within(&self, range: Range) -> u64 {
        let handed = self.handed.within(range).map(|part| part.len());
        range.len() - handed.sum::<u64>()
    }

    /// The ready runs of a lane changed in another way than by a unit that is taken.
    pub(super) fn ready_changed(&mut self, lane: LaneId) {
        self.lanes[lane].new_bytes.set(None);
        self.kept.forget(lane);
    }

    /// The same of all lanes, or others hold the runs.
    pub(super) fn all_ready_changed(&mut self) {
        for lane in self.lanes.rows() {
            lane.new_bytes.set(None);
        }
        self.kept.forget_all();
    }

    /// Fellow receivers have more: so much of it was new.
    pub(super) fn hand(&mut self, said: &RangeSet) {
        let fresh = said.difference(&self.handed);
        if fresh.is_empty() {
            return;
        }
        for lane in self.lanes.rows() {
            let Some(new) = lane.new_bytes.get() else {
                continue;
            };
            let runs = lane.ready.iter();
            let had = runs.flat_map(|run| fresh.within(run.range));
            let had: u64 = had.map(|part| part.len()).sum();
            lane.new_bytes.set(Some(new - had));
        }
        self.handed = self.handed.union(&fresh);
        self.kept.forget_new();
    }

    /// What fellow receivers have is not what it was.
    pub(super) fn handed_changed(&mut self) {
        for lane in self.lanes.rows() {
            lane.new_bytes.set(None);
        }
        self.kept.forget_new();
    }

    /// Seconds until a fellow receiver has so many bytes more of what it is to send.
    fn gain_seconds(&self, lane: LaneId, bytes: u64, now: Instant) -> f64 {
        let Some(fellow) = self.fellow(lane) else {
            return 0.0;
        };
        // As long again as it has said nothing.
        let silent = now.since(fellow.gained_at).as_seconds();
        let rate = fellow.gains.bytes_per_second();
        rate.map_or(silent, |rate| (bytes as f64 / rate).max(silent))
    }

    /// Time since fellow receivers were met, and how much longer than an original holder they may take (seconds).
    fn slack(&self, now: Instant) -> Option<(f64, f64)> {
        let passed = now.since(self.relays_since?).as_seconds();
        let slack = (passed / SLACK_PART).clamp(SLACK_SECONDS.0, SLACK_SECONDS.1);
        Some((passed, slack))
    }

    /// What a second copy of a unit must save that a fellow receiver has begun to send, by its lane (seconds). Only those are sent twice
    /// that are silent as long as others are to leave the holder for the first time, and while bytes come about as fast as they did so
    /// far: a second copy takes the place of others then.
    pub(super) fn relayed_gain(&self, now: Instant) -> impl Fn(LaneId) -> f64 {
        let (passed, slack) = self.slack(now).unwrap_or_default();
        let mut relays = self.lanes.numbers().filter(|lane| self.is_relay(*lane));
        let has_new = relays.any(|relay| self.new_bytes(relay) > 0);
        let busy = self.lanes.iter().filter(|(_, l)| l.in_transit_bytes > 0);
        let rates = busy.filter_map(|(lane, _)| self.rate_at_most(lane, now));
        let is_full = rates.sum::<f64>() * passed > self.delivered_bytes as f64 * FULL;
        move |lane| match (has_new, is_full) {
            (false, false) => slack * SLACK_FREE,
            _ if self.is_silent(lane, passed, now) => slack,
            _ => f64::INFINITY,
        }
    }

    /// How much longer a near fellow receiver may take for what a far one has (seconds): as long as this node needs for all it lacks.
    pub(super) fn detour_slack(&self, now: Instant) -> f64 {
        let (passed, slack) = self.slack(now).unwrap_or_default();
        slack.max(self.own_left(passed))
    }

    /// How long this node needs for what it lacks, if bytes come as they did, and some more (seconds).
    fn own_left(&self, passed: f64) -> f64 {
        let left = self.wanted_bytes.saturating_sub(self.delivered_bytes) as f64;
        left * passed / (self.delivered_bytes as f64).max(1.0) * LAG
    }

    /// Whether a lane to a fellow receiver brings nothing for long.
    fn is_silent(&self, lane: LaneId, passed: f64, now: Instant) -> bool {
        let gained_at = self.fellow(lane).map_or(now, |fellow| fellow.gained_at);
        let moved_at = self.lanes[lane].brought_at.max(self.lanes[lane].moved_at);
        Self::is_silent_since(moved_at.unwrap_or(gained_at), passed, now)
    }

    fn is_silent_since(at: Instant, passed: f64, now: Instant) -> bool {
        now.since(at).as_seconds() > SILENT.as_seconds().max(passed / SLACK_PART)
    }

    /// Seconds until a lane has brought all it has to; where it waits for something itself, as long again as it has waited.
    pub(super) fn seconds_left(&self, lane: LaneId, now: Instant) -> f64 {
        let l = &self.lanes[lane];
        let rate = self.rate_at_most(lane, now).unwrap_or(super::RATE_UNKNOWN);
        let left = (l.ready_bytes + l.in_transit_bytes) as f64 / rate.max(1.0);
        match self.fellow(lane).filter(|_| l.in_transit_bytes == 0) {
            Some(fellow) => {
                let since = l.moved_at.unwrap_or(fellow.gained_at);
                left.max(now.since(since).as_seconds())
            }
            None => left,
        }
    }

    /// Seconds until a lane has brought so many bytes more; one that has brought nothing may be as fast as another one.
    pub(super) fn seconds_for(&self, lane: LaneId, bytes: u64, other: LaneId, now: Instant) -> f64 {
        let unknown = || self.rate_at_most(other, now);
        let rate = self.rate_at_most(lane, now).or_else(unknown);
        let bytes = self.lanes[lane].in_transit_bytes + bytes;
        bytes as f64 / rate.unwrap_or(super::RATE_UNKNOWN).max(1.0)
    }

    /// A unit of a fellow receiver's work: one that none has, or that no other one has. Each receiver has its own ones, which it may take
    /// at once, and those of others when it has been idle for longer: what it takes they have from it.
    ///
    /// * `kept`: the stretches that it chooses from.
    fn choose(
        &self,
        lane: LaneId,
        relay: LaneId,
        (is_new, turns): (bool, usize),
        kept: &mut Kept,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<(usize, Range)> {
        let ready = &self.lanes[relay].ready;
        let stretches = kept.list((lane, relay, is_new), ready, &self.handed);
        // The fellow receiver fetches from the front.
        let bytes = stretches.bytes();
        let place = bytes / 2 + self.turn % (bytes - bytes / 2).max(1);
        let order = turned(stretches.parts(), place, unit_at);
        let units = order.flat_map(|(at, part)| {
            units_of_part(part, ready[at].range, unit_at).map(move |unit| (at, unit))
        });
        let mut units = units.take(LOOKED_AT_MAX).peekable();
        if units.peek().is_none() {
            drop(units);
            // Some have parts of these.
            return is_new.then(|| self.choose(lane, relay, (false, turns), kept, unit_at))?;
        }
        let peer = self.lanes[relay].peer;
        let others = self.lanes.iter().filter(|(other, l)| {
            l.peer == *other && *other != peer && l.fellow.is_some() && self.is_alive(*other)
        });
        let others: Vec<&Fellow> = others.filter_map(|(_, l)| l.fellow.as_ref()).collect();
        let before = |unit: Range| {
            let own = mix(self.turn ^ unit.start);
            others
                .iter()
                .filter(|other| other.wants.overlaps(unit) && mix(other.turn ^ unit.start) < own)
                .take(TURNS_MAX)
                .count()
        };
        let is_with_other = |unit: Range| others.iter().any(|other| other.has.contains_range(unit));
        let able = units.map(|(at, unit)| {
            let is_common = !is_new && is_with_other(unit);
            ((is_common, before(unit)), (at, unit))
        });
        let able = able.filter(|((_, before), _)| *before <= turns);
        // Of equal ones the first.
        able.min_by_key(|(rank, _)| *rank).map(|(_, found)| found)
    }
}

/// Parts from the unit on that holds a place among their bytes, then those before it.
fn turned<T: Copy>(
    parts: &VecDeque<(T, Range)>,
    mut place: u64,
    unit_at: &dyn Fn(u64) -> Range,
) -> impl Iterator<Item = (T, Range)> {
    let holds = |(_, part): &(T, Range)| match place.checked_sub(part.len()) {
        Some(rest) => {
            place = rest;
            false
        }
        None => true,
    };
    let middle = parts.iter().position(holds).unwrap_or(parts.len());
    let halves = parts.get(middle).map(|(at, part)| {
        let inside = part.start + place;
        let unit = unit_at(inside);
        let border = match unit.contains(inside) {
            true => unit.start.max(part.start),
            false => inside,
        };
        let halves = [(border, part.end), (part.start, border)];
        halves.map(|(start, end)| (*at, Range::new(start, end)))
    });
    let behind = parts.range((middle + 1).min(parts.len())..);
    let whole = behind.chain(parts.range(..middle));
    let [first, last] = halves.map_or([None; 2], |halves| halves.map(Some));
    let all = first.into_iter().chain(whole.copied()).chain(last);
    all.filter(|(_, part)| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts keep their bytes, and begin with the unit that holds the place.
    #[test]
    fn parts_are_turned() {
        let unit_at = |offset: u64| Range::new(offset / 10 * 10, offset / 10 * 10 + 10);
        let parts = [(3, 40), (50, 60), (75, 100)].map(|(start, end)| ((), Range::new(start, end)));
        let offsets: Vec<u64> = parts
            .iter()
            .flat_map(|(_, part)| part.start..part.end)
            .collect();
        for (place, offset) in (0..).zip(&offsets) {
            let all: Vec<Range> = turned(&parts.into(), place, &unit_at)
                .map(|(_, part)| part)
                .collect();
            let mut found: Vec<u64> = all.iter().flat_map(|part| part.start..part.end).collect();
            let unit = unit_at(*offset);
            assert!(unit.contains(found[0]) && found[0] <= *offset, "{all:?}");
            found.sort_unstable();
            assert_eq!(found, offsets);
        }
        assert_eq!(turned::<()>(&VecDeque::new(), 0, &unit_at).count(), 0);
    }
}
