//! The ledger against a naive model, byte by byte, and its policies one by one.

use proptest::prelude::*;
use ropewalk_model::Range;

use super::*;

const UNIT: u64 = 10;

fn unit_at(offset: u64) -> Range {
    let start = offset / UNIT * UNIT;
    Range {
        start,
        end: start + UNIT,
    }
}

fn run(start: u64, end: u64, holders: &[LaneId]) -> ReadyRun {
    ReadyRun {
        choices: 0,
        range: Range { start, end },
        holders: holders.to_vec(),
    }
}

fn ledger(lanes: usize, runs: &[ReadyRun]) -> Ledger {
    let mut ledger = Ledger::new(lanes);
    for run in runs {
        ledger.want(run.clone());
    }
    ledger
}

/// Units come in order, cut at unit borders, and each byte is handed out once.
#[test]
fn own_runs_go_front_to_back() {
    let mut ledger = ledger(1, &[run(5, 33, &[LaneId(0)])]);
    let mut taken = Vec::new();
    while let Some(unit) = ledger.take(LaneId(0), true, Instant(0), &unit_at) {
        taken.push((unit.range.start, unit.range.end));
    }
    assert_eq!(taken, [(5, 10), (10, 20), (20, 30), (30, 33)]);
    assert_eq!(ledger.in_transit_bytes(LaneId(0)), 28);
    assert!(!ledger.is_complete());
}

/// What others could least carry later comes first, whenever it was learnt of.
#[test]
fn what_can_least_move_is_fetched_first() {
    let with = |start: u64, choices: u32| ReadyRun {
        choices,
        ..run(start, start + UNIT, &[LaneId(0)])
    };
    let mut ledger = ledger(1, &[with(0, 3), with(10, 9)]);
    ledger.inherit(with(20, 3));
    ledger.reassign([with(10, 5)]);
    ledger.inherit(with(30, 1));
    let take = |_| {
        ledger
            .take(LaneId(0), true, Instant(0), &unit_at)
            .map(|unit| unit.range.start)
    };
    let taken: Vec<u64> = (0..4).filter_map(take).collect();
    assert_eq!(taken, [30, 0, 20, 10]);
}

/// A lane without work takes from the end of another's run, never from one whose bytes it lacks.
#[test]
fn an_idle_lane_steals_what_it_holds() {
    let mut ledger = ledger(3, &[run(0, 100, &[LaneId(0), LaneId(1)])]);
    let unit = ledger.take(LaneId(1), true, Instant(0), &unit_at).unwrap();
    assert_eq!(unit.range.start, 50, "equal speeds: half of the run");
    assert_eq!(
        ledger.take(LaneId(2), true, Instant(0), &unit_at),
        None,
        "lane 2 holds nothing"
    );
}

/// Of short runs a rail takes many at once, in their order: half of the work of the other one, and the rest stays there.
#[test]
fn short_runs_are_stolen_together() {
    const RUNS: u64 = 10_000;
    let runs: Vec<ReadyRun> = (0..RUNS)
        .map(|at| run(at * 200, at * 200 + 100, &[LaneId(0)]))
        .collect();
    let mut ledger = ledger(1, &runs);
    let rail = ledger.add_rail(LaneId(0));
    let unit = ledger.take(rail, true, Instant(0), &unit_at).unwrap();
    assert_eq!(
        unit.range.start,
        RUNS / 2 * 200,
        "the first of the later half"
    );
    let bytes = [LaneId(0), rail].map(|lane| ledger.ready_bytes(lane));
    assert_eq!(bytes[0], RUNS / 2 * 100);
    assert_eq!(bytes[1], RUNS / 2 * 100 - unit.range.len());
    ledger.check();
}

/// A lane ten times as fast takes about ten elevenths.
#[test]
fn theft_follows_speed() {
    let mut ledger = ledger(
        2,
        &[
            run(0, 10, &[LaneId(0)]),
            run(10, 20, &[LaneId(1)]),
            run(1000, 2100, &[LaneId(0), LaneId(1)]),
        ],
    );
    let slow = ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
    let fast = ledger.take(LaneId(1), true, Instant(0), &unit_at).unwrap();
    ledger.delivered(LaneId(1), fast.range, Instant(100_000_000));
    ledger.delivered(LaneId(0), slow.range, Instant(1_000_000_000));
    let stolen = ledger
        .take(LaneId(1), true, Instant(1_000_000_000), &unit_at)
        .unwrap();
    assert_eq!(stolen.range.start, 1100);
}

/// Units of 10 MB, so that times are those of real lanes.
fn large_unit_at(offset: u64) -> Range {
    let start = offset / 10_000_000 * 10_000_000;
    Range {
        start,
        end: start + 10_000_000,
    }
}

const MB: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Near the end a unit on a slow lane is carried again by a fast one; the first copy counts.
#[test]
fn the_last_unit_of_a_slow_lane_is_duplicated() {
    let mut ledger = ledger(
        2,
        &[
            run(0, 10 * MB, &[LaneId(0), LaneId(1)]),
            run(10 * MB, 20 * MB, &[LaneId(1)]),
        ],
    );
    let slow = ledger
        .take(LaneId(0), true, Instant(0), &large_unit_at)
        .unwrap();
    let fast = ledger
        .take(LaneId(1), true, Instant(0), &large_unit_at)
        .unwrap();
    assert_eq!(
        ledger.take(LaneId(1), true, Instant(0), &large_unit_at),
        None,
        "speeds are unknown: no copy yet"
    );
    ledger.delivered(LaneId(1), fast.range, Instant(SECOND / 10));
    let copy = ledger
        .take(LaneId(1), true, Instant(SECOND / 10), &large_unit_at)
        .unwrap();
    assert_eq!((copy.range, copy.duplicate), (slow.range, true));
    assert_eq!(
        ledger.delivered(LaneId(1), copy.range, Instant(SECOND / 5)),
        Delivery::Fresh {
            cancel: vec![LaneId(0)]
        }
    );
    assert_eq!(
        ledger.delivered(LaneId(0), slow.range, Instant(SECOND)),
        Delivery::Duplicate
    );
    assert!(ledger.is_complete());
    assert_eq!(
        (ledger.delivered_bytes(), ledger.duplicate_bytes()),
        (20 * MB, 10 * MB)
    );
}

/// A copy that would save next to nothing is not made.
#[test]
fn nothing_is_duplicated_for_milliseconds() {
    let mut ledger = ledger(
        2,
        &[
            run(0, 10, &[LaneId(0), LaneId(1)]),
            run(10, 20, &[LaneId(1)]),
        ],
    );
    ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
    let fast = ledger.take(LaneId(1), true, Instant(0), &unit_at).unwrap();
    ledger.delivered(LaneId(1), fast.range, Instant(100));
    assert_eq!(ledger.take(LaneId(1), true, Instant(100), &unit_at), None);
}

/// A lane that stalls loses its unit to an equally fast one, though its measured speed is high.
#[test]
fn an_overdue_unit_is_duplicated() {
    let mut ledger = ledger(
        2,
        &[
            run(0, 20 * MB, &[LaneId(0), LaneId(1)]),
            run(20 * MB, 30 * MB, &[LaneId(1)]),
        ],
    );
    let first = ledger
        .take(LaneId(0), true, Instant(0), &large_unit_at)
        .unwrap();
    let other = ledger
        .take(LaneId(1), true, Instant(0), &large_unit_at)
        .unwrap();
    ledger.delivered(LaneId(0), first.range, Instant(SECOND / 10));
    ledger.delivered(LaneId(1), other.range, Instant(SECOND / 10));
    let stalled = ledger
        .take(LaneId(0), true, Instant(SECOND / 10), &large_unit_at)
        .unwrap();
    assert_eq!(
        ledger.take(LaneId(1), true, Instant(SECOND / 4), &large_unit_at),
        None,
        "not late yet"
    );
    assert_eq!(
        ledger
            .take(LaneId(1), true, Instant(SECOND), &large_unit_at)
            .map(|u| u.range),
        Some(stalled.range)
    );
}

/// What a dead lane carried or owned goes to other holders; bytes without one are orphans.
#[test]
fn a_dead_lane_leaves_its_work_to_others() {
    let mut ledger = ledger(
        2,
        &[
            run(0, 20, &[LaneId(0), LaneId(1)]),
            run(20, 30, &[LaneId(0)]),
        ],
    );
    let lost = ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
    ledger.lane_failed(LaneId(0));
    assert!(ledger.awaits_failed() && !ledger.open().contains_range(lost.range));
    assert_eq!(ledger.take(LaneId(0), true, Instant(0), &unit_at), None);
    ledger.failed(LaneId(0), lost.range, Instant(0));
    assert!(!ledger.awaits_failed() && ledger.open().contains_range(lost.range));
    assert_eq!(ledger.orphans().as_slice(), [Range { start: 20, end: 30 }]);
    let mut taken = RangeSet::new();
    while let Some(unit) = ledger.take(LaneId(1), true, Instant(0), &unit_at) {
        taken.insert(unit.range);
        ledger.delivered(LaneId(1), unit.range, Instant(1));
    }
    assert!(taken.contains_range(lost.range) && taken.len_bytes() == 20);
    assert!(!ledger.is_complete(), "orphans are still wanted");
    ledger.give_up(Range { start: 0, end: 100 });
    assert!(ledger.is_complete());
    assert_eq!(ledger.missing().as_slice(), [Range { start: 20, end: 30 }]);
}

/// A late copy of a unit that was taken back does not count a second time.
#[test]
fn a_unit_taken_back_and_delivered_twice_counts_once() {
    let mut ledger = ledger(2, &[run(0, 10, &[LaneId(0), LaneId(1)])]);
    let unit = ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
    ledger.failed(LaneId(0), unit.range, Instant(0));
    let again = ledger.take(LaneId(1), true, Instant(0), &unit_at).unwrap();
    assert_eq!(again.range, unit.range);
    assert_eq!(
        ledger.delivered(LaneId(0), unit.range, Instant(1)),
        Delivery::Duplicate
    );
    assert!(matches!(
        ledger.delivered(LaneId(1), again.range, Instant(2)),
        Delivery::Fresh { .. }
    ));
    assert_eq!(ledger.delivered_bytes(), 10);
}

/// New owners take over ready and orphaned bytes and leave the rest alone.
#[test]
fn reassigning_moves_only_what_is_open() {
    let mut ledger = ledger(3, &[run(0, 40, &[LaneId(0)])]);
    let first = ledger.take(LaneId(0), true, Instant(0), &unit_at).unwrap();
    ledger.delivered(LaneId(0), first.range, Instant(1));
    let second = ledger.take(LaneId(0), true, Instant(1), &unit_at).unwrap();
    ledger.reassign([run(0, 40, &[LaneId(2)])]);
    assert_eq!(ledger.take(LaneId(0), true, Instant(1), &unit_at), None);
    let moved = ledger.take(LaneId(2), true, Instant(1), &unit_at).unwrap();
    assert_eq!((second.range.start, moved.range.start), (10, 20));
}

#[derive(Clone, Debug)]
enum Step {
    Take(LaneId),
    Deliver(usize),
    Fail(usize),
    Kill(LaneId),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4u32).prop_map(LaneId).prop_map(Step::Take),
        6 => (0..8usize).prop_map(Step::Deliver),
        2 => (0..8usize).prop_map(Step::Fail),
        1 => (0..4u32).prop_map(LaneId).prop_map(Step::Kill),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever happens in whatever order, every wanted byte is delivered exactly once or missing,
    /// and only lanes that hold a byte are asked for it.
    #[test]
    fn every_byte_is_somewhere_exactly_once(steps in steps(), masks in proptest::collection::vec(1u8..16, 1..8)) {
        let mut ledger = Ledger::new(4);
        let mut held = vec![[false; 4]; masks.len() * 25];
        for (at, mask) in masks.iter().enumerate() {
            let holders = (0..4).filter(|lane| mask & (1 << lane) != 0);
            let holders: Vec<LaneId> = holders.map(LaneId).collect();
            for byte in &mut held[at * 25..(at + 1) * 25] {
                for &lane in &holders {
                    byte[lane.position()] = true;
                }
            }
            ledger.want(run(at as u64 * 25, at as u64 * 25 + 25, &holders));
        }
        let wanted = held.len() as u64;
        let mut fresh = vec![0u8; held.len()];
        let mut carried: Vec<(LaneId, Range)> = Vec::new();
        let mut dead = [false; 4];
        for (now, step) in steps.into_iter().enumerate() {
            let now = now as u64 * 1_000_000;
            match step {
                Step::Take(lane) => {
                    if let Some(unit) = ledger.take(lane, true, Instant(now), &unit_at) {
                        prop_assert!(!dead[lane.position()]);
                        prop_assert!((unit.range.start..unit.range.end).all(|b| held[b as usize][lane.position()]));
                        carried.push((lane, unit.range));
                    }
                }
                Step::Deliver(at) if !carried.is_empty() => {
                    let (lane, range) = carried.swap_remove(at % carried.len());
                    if let Delivery::Fresh { .. } = ledger.delivered(lane, range, Instant(now)) {
                        (range.start..range.end).for_each(|b| fresh[b as usize] += 1);
                    }
                }
                Step::Fail(at) if !carried.is_empty() => {
                    let (lane, range) = carried.swap_remove(at % carried.len());
                    ledger.failed(lane, range, Instant(now));
                }
                Step::Kill(lane) => {
                    // What it carries fails, or comes after all, later.
                    dead[lane.position()] = true;
                    ledger.lane_failed(lane);
                }
                _ => {}
            }
            prop_assert!(fresh.iter().all(|&times| times <= 1));
            prop_assert_eq!(ledger.delivered_bytes() + ledger.missing().len_bytes(), wanted);
        }
        // Whoever is left finishes everything that a living lane holds.
        let mut idle = 0;
        while idle < 4 {
            idle = 0;
            while let Some((lane, range)) = carried.pop() {
                if let Delivery::Fresh { .. } = ledger.delivered(lane, range, Instant(u64::MAX / 2)) {
                    (range.start..range.end).for_each(|b| fresh[b as usize] += 1);
                }
            }
            for lane in (0..4).map(LaneId) {
                match ledger.take(lane, true, Instant(u64::MAX / 2), &unit_at) {
                    Some(unit) => carried.push((lane, unit.range)),
                    None => idle += 1,
                }
            }
        }
        for (byte, times) in fresh.iter().enumerate() {
            let reachable = (0..4).any(|lane| held[byte][lane] && !dead[lane]);
            prop_assert!(*times == 1 || !reachable, "byte {} came {} times", byte, times);
        }
    }
}

/// Rails do each other's work, in parts by their speed, and leave that of other peers alone unless they are free.
#[test]
fn rails_share_the_work_of_their_peer() {
    let mut ledger = Ledger::new(2);
    ledger.want(run(0, 64 << 20, &[LaneId(0), LaneId(1)]));
    ledger.want(run(64 << 20, 128 << 20, &[LaneId(1), LaneId(0)]));
    let rail = ledger.add_rail(LaneId(0));
    assert!(ledger.are_rails(LaneId(0), rail) && !ledger.are_rails(LaneId(1), rail));
    let unit = ledger
        .take(rail, false, Instant(0), &large_unit_at)
        .unwrap();
    assert!(unit.range.end <= 64 << 20, "{unit:?}");
    // The rail alone does all of its peer's work, and then nothing.
    let mut done = unit.range.len();
    ledger.delivered(rail, unit.range, Instant(1));
    while let Some(unit) = ledger.take(rail, false, Instant(2), &large_unit_at) {
        assert!(unit.range.end <= 64 << 20 && !unit.duplicate, "{unit:?}");
        done += unit.range.len();
        ledger.delivered(rail, unit.range, Instant(3));
    }
    assert_eq!(done, 64 << 20);
    let free = ledger.take(rail, true, Instant(4), &large_unit_at).unwrap();
    assert!(free.range.start >= 64 << 20, "{free:?}");
}

/// What a rail that fails had to do goes to the others of its peer, not to another holder, and nothing is lost.
#[test]
fn a_failed_rail_loses_nothing() {
    let mut ledger = Ledger::new(2);
    ledger.want(run(0, 8 << 20, &[LaneId(0), LaneId(1)]));
    let rail = ledger.add_rail(LaneId(0));
    let unit = ledger
        .take(LaneId(0), true, Instant(0), &large_unit_at)
        .unwrap();
    ledger.lane_failed(LaneId(0));
    ledger.failed(LaneId(0), unit.range, Instant(0));
    assert_eq!(ledger.ready_bytes(rail), 8 << 20);
    assert_eq!(ledger.rails(LaneId(0)).collect::<Vec<_>>(), [rail]);
    // It comes back.
    ledger.renew_rail(LaneId(0));
    let unit = ledger
        .take(LaneId(0), false, Instant(1), &large_unit_at)
        .unwrap();
    ledger.lane_failed(rail);
    ledger.lane_failed(LaneId(0));
    ledger.failed(LaneId(0), unit.range, Instant(1));
    assert_eq!(ledger.ready_bytes(LaneId(1)), 8 << 20);
}

/// Units of 1 MiB.
fn mebibyte_at(offset: u64) -> Range {
    let start = offset >> 20 << 20;
    Range {
        start,
        end: start + (1 << 20),
    }
}

/// Equal parts, cut at unit borders, and nobody takes another's: the slowest is the end.
#[test]
fn dealt_work_stays() {
    let mut ledger = Ledger::new(1);
    ledger.want(run(0, 10 << 20, &[LaneId(0)]));
    let rails = [
        LaneId(0),
        ledger.add_rail(LaneId(0)),
        ledger.add_rail(LaneId(0)),
    ];
    ledger.deal(LaneId(0), &mebibyte_at);
    let parts = rails.map(|rail| ledger.ready_bytes(rail) >> 20);
    assert_eq!(parts, [4, 3, 3]);
    for at in 0..4 {
        let unit = ledger
            .take(LaneId(0), true, Instant(at), &mebibyte_at)
            .unwrap();
        assert_eq!(unit.range.start, at << 20);
        ledger.delivered(LaneId(0), unit.range, Instant(at));
    }
    assert_eq!(ledger.take(LaneId(0), true, Instant(9), &mebibyte_at), None);
    // A stripe that breaks leaves its part to the others.
    ledger.lane_failed(rails[1]);
    let left: u64 = rails
        .iter()
        .map(|&rail| ledger.ready_bytes(rail) + ledger.in_transit_bytes(rail))
        .sum();
    assert_eq!(left, 6 << 20);
}

/// Within a lane of many streams an idle one doubles units that take long, few at a time, and the first copy counts.
#[test]
fn slow_streams_are_doubled() {
    const MS: u64 = 1_000_000;
    let mut ledger = Ledger::new(1);
    ledger.want(run(0, 6 << 20, &[LaneId(0)]));
    let take = |ledger: &mut Ledger, now| ledger.take(LaneId(0), true, Instant(now), &mebibyte_at);
    let first = take(&mut ledger, 0).unwrap();
    let slow: Vec<_> = (0..5).map(|_| take(&mut ledger, 0).unwrap()).collect();
    ledger.delivered(LaneId(0), first.range, Instant(100 * MS));
    assert_eq!(take(&mut ledger, 900 * MS), None, "not asked for");
    ledger.set_slow_streams(Some(Nanos(300 * MS)));
    assert_eq!(take(&mut ledger, 300 * MS), None, "not late for few");
    ledger.set_slow_streams(Some(Nanos(0)));
    assert_eq!(take(&mut ledger, 199 * MS), None, "not late yet");
    let double = take(&mut ledger, 300 * MS).unwrap();
    assert!(double.duplicate);
    let second = take(&mut ledger, 300 * MS).unwrap();
    assert_ne!(second.range, double.range);
    assert_eq!(take(&mut ledger, 300 * MS), None, "two at a time");
    // The copy that is late is cancelled once, on the same lane.
    let Delivery::Fresh { cancel } = ledger.delivered(LaneId(0), double.range, Instant(301 * MS))
    else {
        panic!("the first copy counts");
    };
    assert_eq!(cancel, [LaneId(0)]);
    assert_eq!(
        ledger.delivered(LaneId(0), double.range, Instant(302 * MS)),
        Delivery::Duplicate
    );
    // One copy fails: the other one may still come. Both do: the unit is ready again.
    ledger.failed(LaneId(0), second.range, Instant(303 * MS));
    assert_eq!(ledger.ready_bytes(LaneId(0)), 0);
    ledger.failed(LaneId(0), second.range, Instant(304 * MS));
    assert_eq!(ledger.ready_bytes(LaneId(0)), 1 << 20);
    // A lane that is gone has its copies until each of its streams is closed.
    assert!(!take(&mut ledger, 305 * MS).unwrap().duplicate);
    let copy = take(&mut ledger, 305 * MS).unwrap();
    assert!(copy.duplicate);
    ledger.lane_failed(LaneId(0));
    assert!(ledger.orphans().is_empty());
    for unit in slow.iter().filter(|unit| unit.range != double.range) {
        ledger.failed(LaneId(0), unit.range, Instant(306 * MS));
    }
    assert_eq!(ledger.orphans().len_bytes(), 3 << 20);
    ledger.failed(LaneId(0), copy.range, Instant(306 * MS));
    assert_eq!(ledger.orphans().len_bytes(), 4 << 20);
}
