//! What lanes to fellow receivers carry, and when those to original holders carry it.

use ropewalk_model::Range;

use super::*;

const MS: u64 = 1_000_000;

fn unit_at(offset: u64) -> Range {
    Range::new(offset / 10 * 10, offset / 10 * 10 + 10)
}

fn run(start: u64, end: u64, holders: &[LaneId]) -> ReadyRun {
    ReadyRun {
        range: Range::new(start, end),
        holders: holders.to_vec(),
        choices: 1,
    }
}

/// A fellow receiver carries units that its lane was opened for, wherever they lie in its runs; holders take from it what it waits for
/// for long, and what no holder is left for is an orphan.
#[test]
fn relays_carry_what_they_were_opened_for() {
    let (relay, holder) = (LaneId(0), LaneId(1));
    let mut ledger = Ledger::new(2);
    ledger.set_relay(relay, 1, Instant(0));
    ledger.want(run(0, 100, &[relay, holder]));
    ledger.want(run(100, 110, &[holder]));
    assert!(ledger.is_relay(relay) && !ledger.is_relay(holder));
    assert_eq!(take(&mut ledger, relay, 0), None);
    ledger.open_to(relay, Range::new(40, 50));
    ledger.open_to(relay, Range::new(60, 65));
    assert_eq!(take(&mut ledger, relay, 0), Some((40, 50)));
    // A part of a unit is none.
    assert_eq!(take(&mut ledger, relay, 0), None);
    ledger.open_to(relay, Range::new(0, 10));
    assert_eq!(take(&mut ledger, relay, 0), Some((0, 10)));
    ledger.check();
    ledger.delivered(relay, Range::new(40, 50), Instant(1));
    ledger.delivered(relay, Range::new(0, 10), Instant(2));
    assert_eq!(take(&mut ledger, holder, 2), Some((100, 110)));
    ledger.delivered(holder, Range::new(100, 110), Instant(3));
    assert_eq!(take(&mut ledger, holder, 3), None, "it has not waited");
    // It came fast, and says nothing now: what it has to do is taken all the same.
    let mut taken = Vec::new();
    while let Some(unit) = take(&mut ledger, holder, 30_000_000_000) {
        taken.push(unit);
    }
    assert_eq!(taken.len(), 8, "{taken:?}");
    ledger.check();
    // The holder is gone: its work is nobody's, though the fellow receiver may have it.
    ledger.lane_failed(holder);
    for (start, end) in taken {
        ledger.failed(holder, Range::new(start, end), Instant(3));
    }
    assert_eq!(ledger.orphans().len_bytes(), 80);
    ledger.open_to(relay, Range::new(10, 20));
    assert_eq!(take(&mut ledger, relay, 4), None);
    ledger.check();
}

/// What a fellow receiver has not begun is an orphan as soon as the last holder is gone.
#[test]
fn relays_keep_nothing_without_a_holder() {
    let (relay, holder) = (LaneId(0), LaneId(1));
    let mut ledger = Ledger::new(2);
    ledger.set_relay(relay, 1, Instant(0));
    ledger.want(run(0, 50, &[relay, holder]));
    ledger.open_to(relay, Range::new(0, 10));
    let unit = ledger.take(relay, true, Instant(0), &unit_at);
    ledger.lane_failed(holder);
    assert_eq!(ledger.orphans(), &RangeSet::from(Range::new(10, 50)));
    // What is under way counts when it is there, and is an orphan when it is not.
    ledger.failed(relay, unit.unwrap().range, Instant(1));
    assert_eq!(ledger.orphans().len_bytes(), 50);
    ledger.check();
}

fn take(ledger: &mut Ledger, lane: LaneId, now: u64) -> Option<(u64, u64)> {
    let unit = ledger.take(lane, true, Instant(now), &unit_at);
    unit.map(|unit| (unit.range.start, unit.range.end))
}

/// Two fellow receivers that are to have 1,000 bytes each, and a holder that has brought what it had to.
fn three() -> (Ledger, LaneId, LaneId, LaneId) {
    let (one, two, holder) = (LaneId(0), LaneId(1), LaneId(2));
    let mut ledger = Ledger::new(3);
    ledger.set_relay(one, 1, Instant(0));
    ledger.set_relay(two, 2, Instant(0));
    ledger.want(run(0, 1000, &[one, holder]));
    ledger.want(run(1000, 2000, &[two, holder]));
    ledger.want(run(2000, 2100, &[holder]));
    for at in 0..10 {
        let (start, end) = take(&mut ledger, holder, at * 10 * MS).unwrap();
        ledger.delivered(holder, Range::new(start, end), Instant((at + 1) * 10 * MS));
    }
    (ledger, one, two, holder)
}

/// A fellow receiver announces so much of its part, and brings it.
fn bring(ledger: &mut Ledger, relay: LaneId, range: (u64, u64), now: u64) {
    ledger.announced(relay, &[Range::new(range.0, range.1)], Instant(now));
    ledger.open_to(relay, Range::new(range.0, range.1));
    while let Some((start, end)) = take(ledger, relay, now) {
        ledger.delivered(relay, Range::new(start, end), Instant(now + MS));
    }
}

/// A holder sends nothing of what a fellow receiver gets in time; where one of them gets nothing more, units that none has, and those
/// that one has are left to it until it brings nothing for long.
#[test]
fn holders_send_what_none_has() {
    let (mut ledger, one, two, holder) = three();
    for step in 11..=60 {
        let now = step * 100 * MS;
        for (relay, start) in [(one, 0), (two, 1000)] {
            let before = start + (step - 11) * 10;
            bring(&mut ledger, relay, (before, before + 10), now);
        }
        // Once their speeds are known.
        if step > 30 {
            assert_eq!(take(&mut ledger, holder, now), None, "at {step}");
        }
    }
    // The second one gets nothing more; the first one has more than it brings.
    let mut taken = Vec::new();
    for step in 61..=110 {
        let now = step * 100 * MS;
        let before = (step - 11) * 10;
        ledger.announced(one, &[Range::new(before, before + 10)], Instant(now));
        if let Some((start, end)) = take(&mut ledger, holder, now) {
            taken.push((step, start));
            ledger.delivered(holder, Range::new(start, end), Instant(now + MS));
        }
    }
    assert!(taken.len() > 10, "{taken:?}");
    assert!(taken.iter().all(|(step, _)| *step > 70), "{taken:?}");
    let new = taken.iter().filter(|(_, start)| *start >= 1500).count();
    assert!(new > 10, "{taken:?}");
    // Nothing more is announced: the end does not wait for it.
    for step in 120..2000 {
        let now = step * 100 * MS;
        if let Some((start, end)) = take(&mut ledger, holder, now) {
            ledger.delivered(holder, Range::new(start, end), Instant(now + MS));
        }
    }
    assert!(ledger.is_complete(), "{}", ledger.missing());
}

/// Receivers begin with other units: what one takes others have from it.
#[test]
fn receivers_take_other_units() {
    let first = |seed| {
        let (mut ledger, ..) = three();
        ledger.set_number(seed);
        take(&mut ledger, LaneId(2), 60_000 * MS).unwrap().0
    };
    let firsts: BTreeSet<u64> = (0..20).map(first).collect();
    assert!(firsts.len() > 10, "{firsts:?}");
}

/// A unit that failed, on whichever lane, is open again to all that have it; one that is in transit or delivered is open to none.
#[test]
fn units_that_failed_are_open_again() {
    let (one, two, holder) = (LaneId(0), LaneId(1), LaneId(2));
    let mut ledger = Ledger::new(3);
    ledger.set_relay(one, 1, Instant(0));
    ledger.set_relay(two, 2, Instant(0));
    ledger.want(run(0, 100, &[one, two, holder]));
    ledger.open_to(one, Range::new(40, 50));
    assert_eq!(take(&mut ledger, one, 0), Some((40, 50)));
    // Its hash is known to be that of another one's unit while the first one sends it.
    ledger.open_to(two, Range::new(40, 50));
    assert_eq!(take(&mut ledger, two, 0), None);
    ledger.failed(one, Range::new(40, 50), Instant(1));
    assert_eq!(take(&mut ledger, two, 2), Some((40, 50)));
    ledger.refused(two, Range::new(40, 50), Instant(3));
    assert_eq!(take(&mut ledger, two, 3), None, "it was refused");
    let open = |ledger: &Ledger, lane| ledger.fellow(lane).unwrap().open.clone();
    assert_eq!(open(&ledger, one), RangeSet::from(Range::new(40, 50)));
    // The holder brings it.
    assert_eq!(take(&mut ledger, holder, 4), Some((40, 50)));
    assert!(open(&ledger, one).is_empty());
    ledger.delivered(holder, Range::new(40, 50), Instant(5));
    ledger.open_to(two, Range::new(40, 50));
    assert!(open(&ledger, two).is_empty());
    ledger.check();
}

/// Each stream says what its peer has: what another one said is no news, and counts once.
#[test]
fn repeated_announcements_are_no_news() {
    let (mut ledger, one, ..) = three();
    let said = [Range::new(0, 20), Range::new(40, 60)];
    let news = ledger.announced(one, &said, Instant(100 * MS));
    assert_eq!(news, RangeSet::from_ranges(said));
    assert!(ledger.announced(one, &said, Instant(110 * MS)).is_empty());
    let more = [Range::new(10, 50), Range::new(45, 60)];
    let news = ledger.announced(one, &more, Instant(200 * MS));
    assert_eq!(news, RangeSet::from(Range::new(20, 40)));
    assert_eq!(ledger.has(one), &RangeSet::from(Range::new(0, 60)));
}

/// The last unit of a run that is whole in a set is the last of all such, wherever the set and the run end.
#[test]
fn the_last_whole_unit_is_the_last_of_all() {
    let sets: [&[(u64, u64)]; 5] = [
        &[(0, 100)],
        &[(0, 25), (30, 39), (50, 55)],
        &[(5, 9), (95, 100)],
        &[(3, 41)],
        &[],
    ];
    for set in sets {
        let set = RangeSet::from_ranges(set.iter().map(|(start, end)| Range::new(*start, *end)));
        for (start, end) in [(0, 100), (0, 95), (7, 33), (50, 60), (3, 4), (20, 20)] {
            let run = Range::new(start, end);
            let all = relay::whole_units(&set, run, &unit_at);
            let last = relay::last_whole_unit(&set, run, &unit_at);
            assert_eq!(last, all.last(), "{run} of {set}");
        }
    }
}

/// What others wait for is taken from whoever has it, before all else, and from the end, as the holder brings it from the front.
#[test]
fn awaited_units_come_from_whoever_has_them() {
    let (relay, holder) = (LaneId(0), LaneId(1));
    let mut ledger = Ledger::new(2);
    ledger.set_relay(relay, 1, Instant(0));
    let own = ReadyRun {
        choices: 0,
        ..run(0, 100, &[holder])
    };
    ledger.want(own);
    ledger.want(run(100, 200, &[relay, holder]));
    ledger.announced(relay, &[Range::new(0, 200)], Instant(0));
    for (start, end) in [(50, 70), (100, 200)] {
        ledger.open_to(relay, Range::new(start, end));
    }
    assert_eq!(take(&mut ledger, holder, 0), Some((0, 10)));
    assert_eq!(take(&mut ledger, relay, 0), Some((60, 70)));
    assert_eq!(take(&mut ledger, relay, 0), Some((50, 60)));
    let next = take(&mut ledger, relay, 0).unwrap();
    assert!(next.0 >= 100, "{next:?}");
    ledger.check();
    // If it fails, the holder has it again.
    ledger.failed(relay, Range::new(50, 60), Instant(1));
    assert_eq!(take(&mut ledger, holder, 2), Some((50, 60)));
}

/// A lane that has nothing to do brings what another fellow receiver would bring later.
#[test]
fn fellow_receivers_do_the_work_of_others() {
    let (mut ledger, one, two, _) = three();
    ledger.announced(one, &[Range::new(1980, 2000)], Instant(100 * MS));
    ledger.open_to(one, Range::new(1980, 2000));
    assert_eq!(take(&mut ledger, one, 200 * MS), Some((1990, 2000)));
    let unit = ledger.take(one, false, Instant(200 * MS), &unit_at);
    assert_eq!(unit, None, "it is kept back");
    // It is lost: who was to bring it does.
    ledger.failed(one, Range::new(1990, 2000), Instant(300 * MS));
    bring(&mut ledger, two, (1990, 2000), 400 * MS);
    assert!(!ledger.missing().contains_range(Range::new(1990, 2000)));
    ledger.check();
}

/// What a near fellow receiver is to bring does not come from far away, whoever has it there, unless the end would wait for it: it has crossed
/// the path once.
#[test]
fn near_fellow_receivers_are_waited_for() {
    let taken = |far: &dyn Fn(&mut Ledger, LaneId, LaneId), now| {
        let (mut ledger, one, two, _) = three();
        far(&mut ledger, one, two);
        bring(&mut ledger, one, (0, 1000), 180 * MS);
        bring(&mut ledger, two, (1000, 1980), 185 * MS);
        ledger.announced(one, &[Range::new(1980, 2000)], Instant(190 * MS));
        ledger.open_to(one, Range::new(1980, 2000));
        take(&mut ledger, one, now)
    };
    let there = Some((1990, 2000));
    let only_one = |ledger: &mut Ledger, one, _| ledger.set_far(one);
    assert_eq!(taken(&only_one, 200 * MS), None);
    assert_eq!(taken(&only_one, 5_000 * MS), there, "the near one is late");
    let both = |ledger: &mut Ledger, one, two| {
        ledger.set_far(one);
        ledger.set_far(two);
    };
    assert_eq!(taken(&both, 200 * MS), there);
    let other = |ledger: &mut Ledger, _, two| ledger.set_far(two);
    assert_eq!(taken(&other, 200 * MS), there);
}
