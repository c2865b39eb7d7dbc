//! Lanes to fellow receivers, which hand on what they have.
//!
//! Such a peer has only a part of what it is planned to send, and is not to be trusted: its lanes carry what they were opened for, a
//! unit at a time. Original holders are holders of the same runs; what no original holder is left for is an orphan, whatever fellow
//! receivers have of it.
//!
//! What an original holder sends costs all receivers a part of its uplink, so each unit is to leave it once (`spare` says when it
//! serves what fellow receivers were planned to). What they announce beyond their own work is taken from them all the same:
//! first what others wait for that this node is to hand on, and, where a lane has nothing else to do, what another one would
//! deliver later.

use ropewalk_model::{Instant, Range, RangeSet};

use super::stretches::Pulled;
use super::{LaneId, Ledger, RateMeter, ReadyRun, Unit, unit_of};
use crate::mix::mix;

/// Pieces of what one fellow receiver announced that are remembered: what it says beyond them is as if it had not.
const PIECES_MAX: usize = 1 << 14;

/// Pieces of what all announced together from which on they are counted again, without what was delivered meanwhile.
const HANDED_PIECES_MAX: usize = 4 * PIECES_MAX;

/// Units from which a receiver chooses the next one.
const CHOSEN_FROM: usize = 64;

/// What is known of a fellow receiver.
#[derive(Debug)]
pub(super) struct Fellow {
    // What it announced.
    pub has: RangeSet,
    // Of that, units of which it is known what they must be, until they are delivered ...
    pub opened: RangeSet,
    // ... and of these, what is not in transit: mostly little, and often nothing.
    pub open: RangeSet,
    // How fast it announces what it is to send to this node.
    pub gains: RateMeter,
    // When it last did, or was met.
    pub gained_at: Instant,
    // By its number: whose turn it is.
    pub turn: u64,
    // All that it wants is in here.
    pub wants: Range,
}

impl Ledger {
    /// The peer of a lane is a fellow receiver, of this number; before it gets any work.
    pub fn set_relay(&mut self, lane: LaneId, node: u32, now: Instant) {
        self.relays_since.get_or_insert(now);
        if let Some(l) = self.lanes.get_mut(lane) {
            let mut gains = RateMeter::new();
            gains.busy(now);
            l.fellow.get_or_insert(Fellow {
                has: RangeSet::new(),
                opened: RangeSet::new(),
                open: RangeSet::new(),
                gains,
                gained_at: now,
                turn: mix(node.into()),
                wants: Range::new(0, u64::MAX),
            });
        }
    }

    /// The peer of a lane is far: bytes from it take a path that others near this node share, each for the first of them.
    pub fn set_far(&mut self, lane: LaneId) {
        if let Some(l) = self.lanes.get_mut(lane) {
            l.is_far = true;
        }
    }

    /// Whether a lane leads far away and another one to a near fellow receiver: what that one delivers later has crossed the path once.
    pub(super) fn is_detour(&self, lane: LaneId, near: LaneId) -> bool {
        let is_far = |lane: LaneId| {
            let first = self.lanes.get(lane).map(|l| l.peer);
            first.is_some_and(|first| self.lanes[first].is_far)
        };
        self.is_relay(near) && is_far(lane) && !is_far(near)
    }

    /// All that a fellow receiver wants is in a range, which is empty where it wants nothing; anything, where that is not said.
    pub fn set_wants(&mut self, lane: LaneId, range: Range) {
        if let Some(fellow) = self.lanes.get_mut(lane).and_then(|l| l.fellow.as_mut()) {
            fellow.wants = range;
        }
    }

    /// As [`Ledger::set_wants`].
    #[cfg(test)]
    pub fn wants(&self, lane: LaneId) -> Option<Range> {
        self.fellow(lane).map(|fellow| fellow.wants)
    }

    /// Whether the peer of a lane is a fellow receiver.
    pub fn is_relay(&self, lane: LaneId) -> bool {
        self.fellow(lane).is_some()
    }

    pub(super) fn fellow(&self, lane: LaneId) -> Option<&Fellow> {
        let first = self.lanes.get(lane)?.peer;
        self.lanes.get(first)?.fellow.as_ref()
    }

    /// A fellow receiver says that it has more; returns what it had not said before.
    ///
    /// Cost O(announced ranges × log pieces) where nothing is new, as each stream to it says the same.
    pub fn announced(&mut self, lane: LaneId, ranges: &[Range], now: Instant) -> RangeSet {
        let Some(first) = self.lanes.get(lane).map(|l| l.peer) else {
            return RangeSet::new();
        };
        let Some(fellow) = &self.lanes[first].fellow else {
            return RangeSet::new();
        };
        let news = ranges.iter().flat_map(|range| fellow.has.gaps(*range));
        let said = RangeSet::from_ranges(news);
        if said.is_empty() {
            return said;
        }
        // All at once: a peer may send many.
        let mut has = fellow.has.union(&said);
        if has.as_slice().len() > PIECES_MAX {
            // What is delivered is not asked of anybody.
            has = has.difference(&self.delivered);
        }
        if has.as_slice().len() > PIECES_MAX {
            return RangeSet::new();
        }
        let own = self.ready_of(lane).flat_map(|run| said.within(run.range));
        let gained: u64 = own.map(|part| part.len()).sum();
        if let Some(fellow) = &mut self.lanes[first].fellow {
            fellow.has = has;
            if gained > 0 {
                fellow.gains.delivered(gained, now, true);
                fellow.gained_at = now;
            }
        }
        self.hand(&said);
        if self.handed.as_slice().len() > HANDED_PIECES_MAX {
            // As above; what is left of each is bounded.
            self.count_handed();
        }
        said
    }

    /// A fellow receiver refuses what it announced: it is not asked for that before it announces it again.
    pub(super) fn disown(&mut self, lane: LaneId, range: Range) {
        let Some(first) = self.lanes.get(lane).map(|l| l.peer) else {
            return;
        };
        let Some(fellow) = &mut self.lanes[first].fellow else {
            return;
        };
        fellow.has.remove(range);
        fellow.opened.remove(range);
        fellow.open.remove(range);
        let fellows = self.lanes.iter().filter_map(|(_, l)| l.fellow.as_ref());
        if !fellows
            .map(|other| &other.has)
            .any(|has| has.contains_range(range))
        {
            self.handed.remove(range);
            self.handed_changed();
        }
    }

    /// What a fellow receiver announced; nothing of other peers.
    pub fn has(&self, lane: LaneId) -> &RangeSet {
        const NOTHING: &RangeSet = &RangeSet::new();
        self.fellow(lane).map_or(NOTHING, |fellow| &fellow.has)
    }

    /// A fellow receiver is lost, or there again.
    pub(super) fn count_handed(&mut self) {
        let living = self.lanes.iter().filter(|(_, l)| !l.lost);
        let peers = living.filter_map(|(_, l)| self.lanes[l.peer].fellow.as_ref());
        self.handed = peers.fold(RangeSet::new(), |all, fellow| all.union(&fellow.has));
        self.handed_changed();
    }

    /// A fellow receiver has a unit, and what it must be is known: lanes to it may carry it.
    pub fn open_to(&mut self, lane: LaneId, unit: Range) {
        let Some(first) = self.lanes.get(lane).map(|l| l.peer) else {
            return;
        };
        let opened = RangeSet::from_ranges(self.delivered.gaps(unit));
        let open = opened.difference(&self.in_transit_within(unit));
        if let Some(fellow) = &mut self.lanes[first].fellow {
            fellow.opened = fellow.opened.union(&opened);
            fellow.open = fellow.open.union(&open);
        }
    }

    fn in_transit_within(&self, range: Range) -> RangeSet {
        let units = self.in_transit.range(..range.end).rev();
        let units = units.map(|(_, unit)| unit.range);
        RangeSet::from_ranges(units.take_while(|unit| unit.end > range.start))
    }

    fn fellows_mut(&mut self) -> impl Iterator<Item = &mut Fellow> {
        self.lanes.rows_mut().filter_map(|l| l.fellow.as_mut())
    }

    /// A unit is in transit, on whichever lane.
    pub(super) fn close_to_all(&mut self, unit: Range) {
        self.fellows_mut()
            .for_each(|fellow| fellow.open.remove(unit));
    }

    /// A unit is in transit no more, and is not delivered.
    pub(super) fn open_again(&mut self, unit: Range) {
        for fellow in self.fellows_mut() {
            let parts: Vec<Range> = fellow.opened.within(unit).collect();
            for part in parts {
                fellow.open.insert(part);
            }
        }
    }

    /// A unit is delivered: nothing more is taken of it.
    pub(super) fn close_for_good(&mut self, unit: Range) {
        for fellow in self.fellows_mut() {
            fellow.opened.remove(unit);
            fellow.open.remove(unit);
        }
    }

    /// Ready bytes of all lanes to the peer of a lane, in the order in which they are fetched, with their holders.
    pub fn ready_of(&self, lane: LaneId) -> impl Iterator<Item = &ReadyRun> {
        self.rails(lane).flat_map(|rail| &self.lanes[rail].ready)
    }

    /// Ready bytes of original holders that this node is to hand on.
    pub fn awaited(&self) -> impl Iterator<Item = &ReadyRun> {
        let own = self.lanes.numbers().filter(|lane| !self.is_relay(*lane));
        let runs = own.flat_map(|lane| &self.lanes[lane].ready);
        runs.filter(|run| run.choices == 0)
    }

    /// Ready bytes of lanes to other peers, those first that have most to do.
    pub fn ready_elsewhere(&self, lane: LaneId) -> impl Iterator<Item = &ReadyRun> {
        self.busiest_others(lane)
            .into_iter()
            .flat_map(|other| &self.lanes[other].ready)
    }

    fn busiest_others(&self, lane: LaneId) -> Vec<LaneId> {
        let others = self
            .lanes
            .numbers()
            .filter(|other| !self.are_rails(lane, *other) && !self.lanes[*other].ready.is_empty());
        let mut others: Vec<(LaneId, f64)> = others
            .map(|other| (other, self.backlog_seconds(other)))
            .collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        others.into_iter().map(|(other, _)| other).collect()
    }

    /// The ready run that a unit is in.
    pub fn ready_around(&self, unit: Range) -> Option<&ReadyRun> {
        let mut runs = self.lanes.rows().flat_map(|l| &l.ready);
        runs.find(|run| run.range.contains_range(unit))
    }

    /// Whether an original holder is among these.
    pub(super) fn has_origin(&self, holders: &[LaneId]) -> bool {
        let is_origin = |lane: &LaneId| self.is_alive(*lane) && !self.is_relay(*lane);
        holders.iter().any(is_origin)
    }

    /// The next unit for a lane to a fellow receiver: what others wait for, its own work, and, where it is `free`, that of others.
    pub(super) fn take_opened(
        &mut self,
        lane: LaneId,
        free: bool,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<Unit> {
        if self.fellow(lane)?.open.is_empty() {
            return None;
        }
        let found = self
            .find_awaited(lane, unit_at)
            .or_else(|| {
                let mut rails = self.rails(lane);
                rails.find_map(|rail| self.find_opened(lane, rail, unit_at))
            })
            .or_else(|| free.then(|| self.find_elsewhere(lane, now, unit_at))?);
        let (owner, at, unit) = found?;
        let run = self.pull(owner, at, unit);
        Some(self.grant(lane, (unit, run.holders, run.choices), now))
    }

    /// A unit among a lane's ready runs that lanes to its peer were opened for: the lane, the run, and the unit. Each receiver begins with
    /// another one, so that they have something for each other where the peer is slow.
    fn find_opened(
        &self,
        lane: LaneId,
        owner: LaneId,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<(LaneId, usize, Range)> {
        let open = &self.fellow(lane)?.open;
        let mut runs = self.lanes[owner].ready.iter().enumerate();
        runs.find_map(|(at, run)| {
            let units = whole_units(open, run.range, unit_at);
            let units: Vec<Range> = units.take(CHOSEN_FROM).collect();
            let first = self.turn.checked_rem(units.len() as u64)?;
            Some((owner, at, units[first as usize]))
        })
    }

    fn find_awaited(
        &self,
        lane: LaneId,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<(LaneId, usize, Range)> {
        let open = &self.fellow(lane)?.open;
        let owners = self.lanes.numbers().filter(|other| !self.is_relay(*other));
        owners.into_iter().find_map(|owner| {
            let runs = self.lanes[owner].ready.iter().enumerate();
            let mut runs = runs.filter(|(_, run)| run.choices == 0);
            runs.find_map(|(at, run)| {
                // What the holder would bring last.
                let unit = last_whole_unit(open, run.range, unit_at)?;
                Some((owner, at, unit))
            })
        })
    }

    /// A unit that another peer would bring later.
    fn find_elsewhere(
        &self,
        lane: LaneId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<(LaneId, usize, Range)> {
        let open = &self.fellow(lane)?.open;
        self.busiest_others(lane).into_iter().find_map(|owner| {
            let mut runs = self.lanes[owner].ready.iter().enumerate().rev();
            let (at, unit) = runs.find_map(|(at, run)| {
                let unit = last_whole_unit(open, run.range, unit_at)?;
                Some((at, unit))
            })?;
            let theirs = self.seconds_left(owner, now);
            let own = self.seconds_for(lane, unit.len(), owner, now);
            let slack = match self.is_detour(lane, owner) {
                true => self.detour_slack(now),
                false => 0.0,
            };
            (own + slack < theirs).then_some((owner, at, unit))
        })
    }

    /// Takes a unit out of a ready run.
    pub(super) fn pull(&mut self, owner: LaneId, at: usize, unit: Range) -> ReadyRun {
        let new = self.new_within(unit);
        let lane = &mut self.lanes[owner];
        let kept = lane.new_bytes.get();
        lane.new_bytes.set(kept.map(|bytes| bytes - new));
        let run = &mut lane.ready[at];
        let taken = ReadyRun {
            range: unit,
            ..run.clone()
        };
        let after = Range::new(unit.end, run.range.end);
        run.range.end = unit.start;
        let is_empty = run.range.is_empty();
        if !after.is_empty() {
            let rest = ReadyRun {
                range: after,
                ..run.clone()
            };
            lane.ready.insert(at + 1, rest);
        }
        if is_empty {
            lane.ready.remove(at);
        }
        lane.ready_bytes -= unit.len();
        let leaves = [!is_empty, !after.is_empty()];
        self.kept.pulled(Pulled {
            owner,
            at,
            unit,
            leaves,
        });
        taken
    }

    /// Takes from fellow receivers what no original holder is left for.
    pub(super) fn leave_relays(&mut self) {
        for lane in self.lanes.numbers() {
            if !self.is_relay(lane) || self.lanes[lane].ready.is_empty() {
                continue;
            }
            self.ready_changed(lane);
            for run in std::mem::take(&mut self.lanes[lane].ready) {
                match self.has_origin(&run.holders) {
                    true => self.lanes[lane].ready.push_back(run),
                    false => {
                        self.lanes[lane].ready_bytes -= run.range.len();
                        self.orphans.insert(run.range);
                    }
                }
            }
        }
    }
}

/// Units of a run that are whole in a set, in the order of their offsets.
pub(crate) fn whole_units<'a>(
    set: &'a RangeSet,
    run: Range,
    unit_at: &'a dyn Fn(u64) -> Range,
) -> impl Iterator<Item = Range> + use<'a> {
    let parts = set.within(run);
    parts.flat_map(move |part| units_of_part(part, run, unit_at))
}

/// The last of these: only the last parts of the set are looked at.
pub(super) fn last_whole_unit(
    set: &RangeSet,
    run: Range,
    unit_at: &dyn Fn(u64) -> Range,
) -> Option<Range> {
    let mut parts = set.within(run).rev();
    parts.find_map(|part| {
        // Mostly the unit around the last byte is whole.
        let around = unit_at(part.end - 1);
        let last = around.intersect(run).filter(|unit| unit.end == part.end);
        last.filter(|unit| part.contains_range(*unit))
            .or_else(|| units_of_part(part, run, unit_at).last())
    })
}

/// Those that are whole in one part of a set.
pub(super) fn units_of_part(
    part: Range,
    run: Range,
    unit_at: &dyn Fn(u64) -> Range,
) -> impl Iterator<Item = Range> {
    let mut at = part.start;
    std::iter::from_fn(move || {
        while at < part.end {
            let around = unit_at(at);
            let unit = match around.contains(at) {
                true => Range::new(around.start.max(run.start), around.end.min(run.end)),
                false => unit_of(at, run, unit_at),
            };
            at = unit.end;
            if part.contains_range(unit) {
                return Some(unit);
            }
        }
        None
    })
}
