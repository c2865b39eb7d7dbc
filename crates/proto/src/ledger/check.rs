//! What must be true of a ledger between two calls: asserted in debug builds.

use ropewalk_model::RangeSet;

use super::{InTransit, Lane, LaneId, Ledger};

/// Up to so many runs and units in transit everything is checked after each call ...
const PIECES_EACH_CALL: usize = 64;

/// ... and above, once in so many calls.
const CALLS_BETWEEN: u64 = 64;

impl Ledger {
    /// Asserts that every wanted byte is in one state, and that sums are those of what they sum up. Nothing in release
    /// builds. Cost O(lanes + pieces × log pieces), where pieces are runs, units in transit and delivered ranges.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut all = vec![&self.delivered, &self.orphans, &self.unavailable];
        let mut open = RangeSet::new();
        let mut open_bytes = 0;
        for (id, lane) in self.lanes.iter() {
            self.check_lane(id, lane);
            open.extend(lane.ready.iter().map(|run| run.range));
            open_bytes += lane.ready_bytes;
        }
        self.kept.check(self);
        let mut end = 0;
        for (start, unit) in &self.in_transit {
            debug_assert!(*start >= end, "units in transit overlap at {start}");
            end = unit.range.end;
            self.check_unit(*start, unit);
            open_bytes += unit.range.len();
        }
        let in_transit: RangeSet = self.in_transit.values().map(|unit| unit.range).collect();
        open.extend(in_transit.iter());
        debug_assert_eq!(
            open.len_bytes(),
            open_bytes,
            "a byte is ready or in transit twice"
        );
        all.push(&open);
        for (id, lane) in self.lanes.iter() {
            let Some(fellow) = &lane.fellow else { continue };
            debug_assert_eq!(
                fellow.open,
                fellow.opened.difference(&in_transit),
                "what lane {id} is open for is what is not in transit"
            );
            let done = fellow.opened.intersection(&self.delivered);
            debug_assert!(done.is_empty(), "lane {id} is open for delivered bytes");
        }
        let mut bytes = 0;
        let mut union = RangeSet::new();
        for set in all {
            bytes += set.len_bytes();
            union = union.union(set);
        }
        debug_assert_eq!(union.len_bytes(), bytes, "a byte is in two states");
        debug_assert_eq!(
            bytes, self.wanted_bytes,
            "the states together are what is wanted"
        );
        debug_assert_eq!(
            self.delivered.len_bytes(),
            self.delivered_bytes,
            "delivered bytes are those of delivered ranges"
        );
    }

    /// The same after a call: of a large ledger now and then.
    pub(super) fn check_call(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let runs: usize = self.lanes.rows().map(|lane| lane.ready.len()).sum();
        let pieces = runs + self.in_transit.len() + self.delivered.as_slice().len();
        self.calls.set(self.calls.get() + 1);
        let is_turn = self.calls.get().is_multiple_of(CALLS_BETWEEN);
        if pieces <= PIECES_EACH_CALL || is_turn {
            self.check();
        }
    }

    fn check_lane(&self, id: LaneId, lane: &Lane) {
        let sum: u64 = lane.ready.iter().map(|run| run.range.len()).sum();
        debug_assert_eq!(lane.ready_bytes, sum, "lane {id}: ready bytes");
        debug_assert!(
            lane.ready.iter().all(|run| !run.range.is_empty()),
            "lane {id}: an empty run"
        );
        debug_assert!(
            lane.ready
                .iter()
                .all(|run| run.holders.first() == Some(&id)),
            "lane {id} owns a run that another lane is to carry"
        );
        debug_assert!(
            !lane.lost || lane.in_transit_bytes > 0 || lane.ready.is_empty(),
            "lane {id} is lost and has work"
        );
        if let Some(new) = lane.new_bytes.get() {
            debug_assert_eq!(new, self.count_new(id), "lane {id}: new bytes");
        }
        let peer = self.lanes.get(lane.peer).map(|first| first.peer);
        debug_assert_eq!(
            peer,
            Some(lane.peer),
            "lane {id}: the first lane of its peer is one of another"
        );
        debug_assert!(
            lane.peer <= id,
            "lane {id}: a later lane is its peer's first"
        );
        let carried = |unit: &InTransit| {
            let times = unit.carriers.iter().filter(|&&carrier| carrier == id);
            unit.range.len() * times.count() as u64
        };
        let carried: u64 = self.in_transit.values().map(carried).sum();
        // Cancelled copies count until the lane has dropped them.
        debug_assert!(
            lane.in_transit_bytes >= carried,
            "lane {id}: {} bytes in transit, of {carried} carried",
            lane.in_transit_bytes
        );
        debug_assert!(
            lane.took_ns >= 0.0 && lane.took_ns.is_finite(),
            "lane {id}: units take {} ns",
            lane.took_ns
        );
        debug_assert!(
            lane.moved_at.is_some() || lane.brought_at.is_none(),
            "lane {id} delivered a unit and never moved"
        );
    }

    fn check_unit(&self, start: u64, unit: &InTransit) {
        debug_assert_eq!(start, unit.range.start, "a unit under another's offset");
        debug_assert!(!unit.range.is_empty(), "an empty unit at {start}");
        debug_assert!(
            (1..=super::steal::CARRIERS_MAX).contains(&unit.carriers.len()),
            "the unit at {start} is carried by {:?}",
            unit.carriers
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ropewalk_model::{Instant, Range};

    use super::super::ReadyRun;
    use super::*;

    const UNIT: u64 = 1 << 20;

    /// One unit delivered, one in transit, the rest ready on two lanes.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(2);
        for lane in [0, 1] {
            let start = 8 * UNIT * u64::from(lane);
            ledger.want(ReadyRun {
                range: Range::new(start, start + 8 * UNIT),
                holders: vec![LaneId(lane), LaneId(1 - lane)],
                choices: 0,
            });
        }
        let unit_at = |offset: u64| {
            let start = offset / UNIT * UNIT;
            Range::new(start, start + UNIT)
        };
        let unit = ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
        ledger.delivered(LaneId(0), unit.range, Instant(1_000_000));
        ledger
            .take(LaneId(0), true, Instant(1_000_000), &unit_at)
            .unwrap();
        ledger
    }

    /// Each kind of wrong state is found by its own assertion.
    #[test]
    fn wrong_states_are_found() {
        type Break = fn(&mut Ledger);
        let breaks: [(&str, Break); 14] = [
            ("ready bytes", |l| l.lanes[LaneId(0)].ready_bytes += 1),
            ("an empty run", |l| {
                let first = l.lanes[LaneId(0)].ready[0].range.start;
                l.lanes[LaneId(0)].ready_bytes -= l.lanes[LaneId(0)].ready[0].range.len();
                l.lanes[LaneId(0)].ready[0].range.end = first;
            }),
            ("another lane is to carry", |l| {
                l.lanes[LaneId(0)].ready[0].holders.reverse();
            }),
            ("is lost and has work", |l| l.lanes[LaneId(1)].lost = true),
            ("first lane of its peer", |l| {
                l.lanes[LaneId(1)].peer = LaneId(7)
            }),
            ("bytes in transit, of", |l| {
                l.lanes[LaneId(0)].in_transit_bytes = 0
            }),
            ("under another's offset", |l| {
                let (_, unit) = l.in_transit.pop_first().unwrap();
                l.in_transit.insert(unit.range.start + 1, unit);
            }),
            ("is carried by []", |l| {
                l.in_transit
                    .first_entry()
                    .unwrap()
                    .get_mut()
                    .carriers
                    .clear();
            }),
            ("ready or in transit twice", |l| {
                let run = l.lanes[LaneId(0)].ready[0].clone();
                let run = ReadyRun {
                    holders: vec![LaneId(1)],
                    ..run
                };
                l.lanes[LaneId(1)].ready_bytes += run.range.len();
                l.lanes[LaneId(1)].ready.push_back(run);
            }),
            ("in two states", |l| {
                l.delivered.insert(l.lanes[LaneId(1)].ready[0].range);
            }),
            ("what is wanted", |l| l.wanted_bytes += 1),
            ("those of delivered ranges", |l| l.delivered_bytes += 1),
            ("is open for is what is not in transit", |l| {
                let unit = l.in_transit.first_key_value().unwrap().1.range;
                l.set_relay(LaneId(1), 1, Instant(0));
                l.open_to(LaneId(1), unit);
                let fellow = l.lanes[LaneId(1)].fellow.as_mut().unwrap();
                fellow.open.insert(unit);
            }),
            ("open for delivered bytes", |l| {
                l.set_relay(LaneId(1), 1, Instant(0));
                let fellow = l.lanes[LaneId(1)].fellow.as_mut().unwrap();
                (fellow.open, fellow.opened) = (l.delivered.clone(), l.delivered.clone());
            }),
        ];
        ledger().check();
        for (what, wrong) in breaks {
            let mut ledger = ledger();
            wrong(&mut ledger);
            let found = catch_unwind(AssertUnwindSafe(|| ledger.check()));
            let text = *found.expect_err(what).downcast::<String>().unwrap();
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}
