//! Stretches of a fellow receiver's work from which lanes to original holders choose, kept from one choice to the next.
//!
//! They are those at the end of its work, and there may be a thousand of them, while each choice takes one unit: a list follows the units
//! that are taken, and is made from the ready runs only where what fellow receivers have changed, or the runs did in another way.

use std::collections::VecDeque;

use ropewalk_model::{Range, RangeSet};

use super::{LaneId, Ledger, ReadyRun};

/// The end of a fellow receiver's work, which it would have last: so many bytes of a run, and stretches in all, from which others choose.
const CHOSEN_BYTES: u64 = 256 << 20;
const CHOSEN_FROM_MAX: usize = 1024;

/// Lists that are kept, the oldest is dropped first: one or two for each lane that has nothing else to do and fellow receiver that is
/// late, of 48 KiB at most mostly.
const LISTS_MAX: usize = 64;

/// The lists of a ledger.
#[derive(Debug, Default)]
pub(super) struct Kept {
    lists: Vec<Stretches>,
}

/// What one lane chooses from.
#[derive(Clone, Debug)]
pub(super) struct Stretches {
    lane: LaneId,
    relay: LaneId,
    // Only what no fellow receiver has.
    is_new: bool,
    // With the places of their runs among the ready ones, in the order of these.
    parts: VecDeque<(usize, Range)>,
    bytes: u64,
    // Ready runs that were not looked at, as later ones have enough.
    unseen: usize,
    // Of a run there is more that counts once a part of it is taken.
    is_cut: bool,
}

/// A unit that is taken out of a ready run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulled {
    /// The lane that was to carry it.
    pub owner: LaneId,
    /// The place of its run among the ready ones.
    pub at: usize,
    /// The unit.
    pub unit: Range,
    /// Whether something of the run is left before the unit, and after it.
    pub leaves: [bool; 2],
}

impl Kept {
    /// What a lane chooses from of the work of a fellow receiver.
    pub fn list(
        &mut self,
        (lane, relay, is_new): (LaneId, LaneId, bool),
        ready: &VecDeque<ReadyRun>,
        handed: &RangeSet,
    ) -> &Stretches {
        let is_it = |l: &Stretches| (l.lane, l.relay, l.is_new) == (lane, relay, is_new);
        let at = self.lists.iter().position(is_it).unwrap_or_else(|| {
            if self.lists.len() >= LISTS_MAX {
                self.lists.remove(0);
            }
            let list = Stretches::new((lane, relay, is_new), ready.len());
            self.lists.push(list);
            self.lists.len() - 1
        });
        let list = &mut self.lists[at];
        list.fill(ready, handed);
        list
    }

    /// The ready runs of a lane changed.
    pub fn forget(&mut self, relay: LaneId) {
        self.lists.retain(|list| list.relay != relay);
    }

    /// What fellow receivers have changed.
    pub fn forget_new(&mut self) {
        self.lists.retain(|list| !list.is_new);
    }

    /// All ready runs changed, or what may carry them.
    pub fn forget_all(&mut self) {
        self.lists.clear();
    }

    /// A unit is taken.
    pub fn pulled(&mut self, pulled: Pulled) {
        let owner = pulled.owner;
        self.lists
            .retain(|list| list.relay != owner || !list.is_cut);
        let lists = self.lists.iter_mut().filter(|list| list.relay == owner);
        lists.for_each(|list| list.pulled(pulled));
    }

    /// Asserts that each list is as it would be made now.
    pub fn check(&self, ledger: &Ledger) {
        for list in &self.lists {
            let ready = &ledger.lanes[list.relay].ready;
            let mut kept = list.clone();
            kept.fill(ready, &ledger.handed);
            let mut fresh = Stretches::new((list.lane, list.relay, list.is_new), ready.len());
            fresh.fill(ready, &ledger.handed);
            debug_assert_eq!(
                (kept.parts, kept.bytes),
                (fresh.parts, fresh.bytes),
                "lane {} chooses from other stretches of lane {} than are ready",
                list.lane,
                list.relay
            );
        }
    }
}

impl Stretches {
    fn new((lane, relay, is_new): (LaneId, LaneId, bool), runs: usize) -> Self {
        Self {
            lane,
            relay,
            is_new,
            parts: VecDeque::new(),
            bytes: 0,
            unseen: runs,
            is_cut: false,
        }
    }

    /// The stretches, with the places of their runs.
    pub fn parts(&self) -> &VecDeque<(usize, Range)> {
        &self.parts
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds those of earlier runs until there are enough.
    fn fill(&mut self, ready: &VecDeque<ReadyRun>, handed: &RangeSet) {
        let mut found: Vec<Range> = Vec::new();
        while self.parts.len() < CHOSEN_FROM_MAX && self.unseen > 0 {
            self.unseen -= 1;
            let run = &ready[self.unseen];
            if !run.holders.contains(&self.lane) {
                continue;
            }
            let start = run.range.end.saturating_sub(CHOSEN_BYTES);
            let whole = Range::new(run.range.start.max(start), run.range.end);
            found.clear();
            match self.is_new {
                true => found.extend(handed.gaps(whole).take(CHOSEN_FROM_MAX)),
                false => found.push(whole),
            }
            self.is_cut |= whole != run.range || found.len() == CHOSEN_FROM_MAX;
            self.bytes += found.iter().map(|part| part.len()).sum::<u64>();
            for part in found.iter().rev() {
                self.parts.push_front((self.unseen, *part));
            }
        }
    }

    fn pulled(
        &mut self,
        Pulled {
            at, unit, leaves, ..
        }: Pulled,
    ) {
        let parts = &mut self.parts;
        let [before, after] = leaves.map(usize::from);
        let of_run = parts.partition_point(|(run, _)| *run < at);
        let next_run = parts.partition_point(|(run, _)| *run <= at);
        let of_run = of_run..next_run;
        // Those of the run are in the order of their offsets.
        let is_before =
            |(run, part): &(usize, Range)| *run < at || *run == at && part.end <= unit.start;
        let starts_before =
            |(run, part): &(usize, Range)| *run < at || *run == at && part.start < unit.end;
        let first = parts.partition_point(is_before);
        let end = parts.partition_point(starts_before).max(first);
        // Runs after it, and what is left of it after the unit, are at other places now.
        for (run, _) in parts.range_mut(end..of_run.end) {
            *run = at + before;
        }
        if before + after != 1 {
            for (run, _) in parts.range_mut(of_run.end..) {
                *run = *run + before + after - 1;
            }
        }
        if at < self.unseen {
            self.unseen = self.unseen + before + after - 1;
        }
        let touched: Vec<Range> = parts.drain(first..end).map(|(_, part)| part).collect();
        for part in touched.into_iter().rev() {
            let rests = [
                (at + before, Range::new(unit.end, part.end)),
                (at, Range::new(part.start, unit.start)),
            ];
            self.bytes -= part.len();
            for (run, rest) in rests.into_iter().filter(|(_, rest)| !rest.is_empty()) {
                self.bytes += rest.len();
                parts.insert(first, (run, rest));
            }
        }
        self.leave_first();
    }

    /// Leaves out those of the first runs as long as there are enough without them.
    fn leave_first(&mut self) {
        while let Some((run, _)) = self.parts.front().copied()
            && self.parts.len() > CHOSEN_FROM_MAX
        {
            let of_run = self.parts.iter().take_while(|(other, _)| *other == run);
            let of_run = of_run.count();
            if self.parts.len() - of_run < CHOSEN_FROM_MAX {
                return;
            }
            let left = self.parts.drain(..of_run);
            self.bytes -= left.map(|(_, part)| part.len()).sum::<u64>();
            self.unseen = run + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ropewalk_model::Instant;

    use super::*;

    const UNIT: u64 = 10;

    const RELAYS: [LaneId; 2] = [LaneId(0), LaneId(1)];

    const HOLDERS: [LaneId; 3] = [LaneId(2), LaneId(3), LaneId(4)];

    const MS: u64 = 1_000_000;

    fn unit_at(offset: u64) -> Range {
        let start = offset / UNIT * UNIT;
        Range::new(start, start + UNIT)
    }

    /// Two fellow receivers that have announced nothing, and so many runs of so many units for them; each third run is not held by the last holder.
    fn ledger(runs: u64, units: u64) -> Ledger {
        let mut ledger = Ledger::new(RELAYS.len() + HOLDERS.len());
        ledger.set_number(7);
        for relay in RELAYS {
            ledger.set_relay(relay, relay.0, Instant(0));
        }
        // The last ones are fetched before all others: speeds are known then.
        let mut end = 0;
        for run in 0..runs + 3 {
            let held = HOLDERS.len() - usize::from(run % 3 == 0);
            let mut holders = HOLDERS[..held].to_vec();
            if run < runs {
                holders.insert(0, RELAYS[run as usize % 2]);
            }
            let start = end;
            end += if run < runs { units * UNIT } else { UNIT };
            ledger.want(ReadyRun {
                range: Range::new(start, end),
                holders,
                choices: u32::from(run < runs),
            });
        }
        ledger
    }

    /// Bytes that none has, summed up run by run.
    fn plain_new(ledger: &Ledger, lane: LaneId) -> u64 {
        let runs = ledger.lanes[lane].ready.iter();
        let new = runs.map(|run| RangeSet::from(run.range).difference(&ledger.handed));
        new.map(|new| new.len_bytes()).sum()
    }

    /// What a lane chooses from, listed from the ready runs.
    fn plain(ledger: &Ledger, list: &Stretches) -> Vec<(usize, Range)> {
        let mut parts = Vec::new();
        let runs = ledger.lanes[list.relay].ready.iter().enumerate();
        let runs = runs.filter(|(_, run)| run.holders.contains(&list.lane));
        for (at, run) in runs.rev() {
            let start = run.range.end.saturating_sub(CHOSEN_BYTES);
            let whole = RangeSet::from(Range::new(run.range.start.max(start), run.range.end));
            let found = match list.is_new {
                true => whole.difference(&ledger.handed),
                false => whole,
            };
            let mut found: Vec<(usize, Range)> = found.iter().map(|part| (at, part)).collect();
            found.truncate(CHOSEN_FROM_MAX);
            parts.extend(found.into_iter().rev());
            if parts.len() >= CHOSEN_FROM_MAX {
                break;
            }
        }
        parts.reverse();
        parts
    }

    /// Returns how many lists were kept.
    fn assert_plain(ledger: &Ledger) -> usize {
        for relay in RELAYS {
            assert_eq!(ledger.count_new(relay), plain_new(ledger, relay));
            let kept = ledger.lanes[relay].new_bytes.get();
            assert!(kept.is_none_or(|new| new == plain_new(ledger, relay)));
        }
        for list in &ledger.kept.lists {
            let mut kept = list.clone();
            kept.fill(&ledger.lanes[list.relay].ready, &ledger.handed);
            let bytes: u64 = kept.parts.iter().map(|(_, part)| part.len()).sum();
            assert_eq!(kept.bytes, bytes);
            assert_eq!(Vec::from(kept.parts), plain(ledger, list));
        }
        ledger.kept.lists.len()
    }

    /// One step: which of the kinds, with a number that says what it is done to.
    fn step(
        ledger: &mut Ledger,
        taken: &mut Vec<(LaneId, Range)>,
        (kind, chance): (u8, u64),
        now: Instant,
    ) {
        let bytes = ledger.wanted_bytes();
        let relay = RELAYS[chance as usize % RELAYS.len()];
        let range = Range::new(chance % bytes, (chance % bytes + chance % 97).min(bytes));
        let lane = match kind {
            0..12 => HOLDERS[chance as usize % HOLDERS.len()],
            _ => relay,
        };
        match kind {
            0..14 => {
                let unit = ledger.take(lane, true, now, &unit_at);
                taken.extend(unit.map(|unit| (lane, unit.range)));
            }
            14 | 15 => {
                let news = ledger.announced(relay, &[range, unit_at(range.start)], now);
                news.iter().for_each(|unit| ledger.open_to(relay, unit));
            }
            16..19 if !taken.is_empty() => {
                let (lane, range) = taken.swap_remove(chance as usize % taken.len());
                match (kind, chance % 4) {
                    (16, 0) => ledger.failed(lane, range, now),
                    (16, 1) => ledger.refused(lane, range, now),
                    _ => drop(ledger.delivered(lane, range, now)),
                }
            }
            19 if chance.is_multiple_of(4) => {
                let holders = [&[relay][..], &HOLDERS].concat();
                let choices = 1;
                ledger.reassign([ReadyRun {
                    range,
                    holders,
                    choices,
                }]);
            }
            20 if chance.is_multiple_of(32) => drop(ledger.add_rail(HOLDERS[0])),
            21 if chance.is_multiple_of(64) => ledger.lane_failed(RELAYS[0]),
            22 if chance.is_multiple_of(32) => {
                let released = ledger.release(range.len(), &unit_at);
                released.iter().for_each(|range| ledger.lose(range));
            }
            _ => {}
        }
    }

    proptest! {
        /// Whatever happens to runs and to what fellow receivers have, what is kept is what is counted and listed anew.
        #[test]
        fn what_is_kept_is_what_is_listed(
            runs in 2u64..40,
            units in 1u64..6,
            steps in proptest::collection::vec((0u8..23, any::<u64>()), 1..200),
        ) {
            let mut ledger = ledger(runs, units);
            let mut taken = Vec::new();
            // Late enough that fellow receivers that say little lag.
            for (step_at, now) in steps.into_iter().zip(1..) {
                step(&mut ledger, &mut taken, step_at, Instant(now * 300 * MS));
                assert_plain(&ledger);
            }
            ledger.check();
        }
    }

    /// The same where there are more stretches than are listed: those that are taken are followed by earlier ones, and those of a unit from
    /// the middle of a run take the place of others.
    #[test]
    fn long_lists_are_kept() {
        const MANY: u64 = 2 * CHOSEN_FROM_MAX as u64 + 600;
        for (runs, units, said) in [(MANY, 3, 0), (6, 1200, 3), (2, 6000, 3)] {
            let mut ledger = ledger(runs, units);
            let all = runs * units;
            let some = (0..all).filter(|unit| said > 0 && unit % said == 0);
            let some: Vec<Range> = some.map(|unit| unit_at(unit * UNIT)).collect();
            ledger.announced(RELAYS[0], &some, Instant(0));
            let mut kept = 0;
            let mut taken = 0;
            for at in 0..3_000_u64 {
                let lane = HOLDERS[at as usize % 3];
                let now = Instant(at * 100 * MS);
                let Some(unit) = ledger.take(lane, true, now, &unit_at) else {
                    continue;
                };
                taken += 1;
                ledger.delivered(lane, unit.range, now);
                if at % 16 == 0 {
                    kept += assert_plain(&ledger);
                }
                if at % 500 == 0 {
                    // From the middle of runs, too.
                    let unit = unit_at(at * 7 * UNIT % ledger.wanted_bytes());
                    ledger.announced(RELAYS[1], &[unit], now);
                    ledger.open_to(RELAYS[1], unit);
                    ledger.take(RELAYS[1], true, now, &unit_at);
                }
            }
            assert!(taken > 1_000 && kept > 100, "{taken} taken, {kept} lists");
        }
    }
}
