//! What is taken from fellow receivers, and what becomes of it when they are slow, silent or wrong.

use ropewalk_model::{CHUNK_LEN, Instant, Nanos, Range, RangeSet};

use super::relay::AHEAD_UNITS_MIN;
use super::replicas::SECONDS_MANY;
use super::*;
use crate::control::{Plan, Revision, Run};
use crate::node::tests::{held, unit_at};
use crate::wire::HeldRange;

const START: Instant = Instant::ZERO;
const SECOND: Nanos = Nanos::from_secs(1);

/// An original holder, and the lane to it.
const ORIGIN: u32 = 0;
const TO_ORIGIN: LaneId = LaneId(0);

/// A fellow receiver.
const RELAY: u32 = 1;
const TO_RELAY: LaneId = LaneId(1);

fn chunk(number: u64) -> Range {
    Range::new(number * CHUNK_LEN, (number + 1) * CHUNK_LEN)
}

fn hash(range: Range) -> [u8; 32] {
    [(range.start / CHUNK_LEN) as u8; 32]
}

/// A node is to fetch chunks `direct` from the holder and `relayed` from the fellow receiver.
fn plan(direct: std::ops::Range<u64>, relayed: std::ops::Range<u64>) -> Plan {
    let peer = |node, relays| Peer {
        node,
        name: format!("n{node}"),
        relays,
        ..Peer::default()
    };
    let run = |chunks: std::ops::Range<u64>, relay| Run {
        start: chunks.start * CHUNK_LEN,
        length: (chunks.end - chunks.start) * CHUNK_LEN,
        sender: ORIGIN,
        relay,
        choices: 1,
        ..Run::default()
    };
    let runs = [run(direct, None), run(relayed, Some(RELAY))];
    Plan {
        peers: vec![peer(ORIGIN, false), peer(RELAY, true)],
        runs: runs.into_iter().filter(|run| run.length > 0).collect(),
        ..Plan::default()
    }
}

fn begin(plan: &Plan) -> Receiving {
    let mut receiving = Receiving::new(64 << 20, 1, START);
    receiving.compare(Compare::Sample, 7);
    receiving.handle_plan(plan, START, &unit_at);
    receiving
}

/// A node that is to fetch chunks `direct` from the holder and `relayed` from the fellow receiver.
fn receiving(direct: std::ops::Range<u64>, relayed: std::ops::Range<u64>) -> Receiving {
    begin(&plan(direct, relayed))
}

fn take(receiving: &mut Receiving, lane: LaneId, now: Instant) -> Vec<Range> {
    match receiving.take(lane, 0, now, &unit_at) {
        Take::Units(units) => units.into_iter().map(|unit| unit.range).collect(),
        Take::Wait(_) | Take::Closed => Vec::new(),
    }
}

/// The holder answers all that it is asked.
fn answer(receiving: &mut Receiving, now: Instant) -> Vec<Range> {
    let mut answered = Vec::new();
    while let Ask::Units(units) = receiving.next_digests(ORIGIN) {
        for unit in units {
            receiving.handle_digest(ORIGIN, unit, hash(unit), now);
            answered.push(unit);
        }
    }
    answered
}

fn events(receiving: &mut Receiving) -> Vec<Event> {
    std::iter::from_fn(|| receiving.poll_event()).collect()
}

/// Takes over both lanes what there is and delivers it, a second at most; whether all is there.
fn carry_on(receiving: &mut Receiving, now: &mut Instant) -> bool {
    let until = *now + SECOND;
    while *now < until && !receiving.is_finished() {
        *now += Nanos::from_millis(50);
        receiving.handle_timer(*now);
        answer(receiving, *now);
        for lane in [TO_RELAY, TO_ORIGIN] {
            for unit in take(receiving, lane, *now) {
                receiving.handle_unit(lane, unit, Some(hash(unit)), *now);
            }
        }
        events(receiving);
    }
    receiving.is_finished()
}

/// A unit is taken from a fellow receiver when that has said that it has it, and a holder what it must be; in either order.
#[test]
fn units_are_announced_and_vouched_for() {
    let mut receiving = receiving(0..1, 1..9);
    let called = events(&mut receiving);
    let is_call = |event: &Event| matches!(event, Event::Connect(lane, _) if *lane == TO_RELAY);
    assert!(called.iter().any(is_call), "{called:?}");
    assert!(receiving.listens(TO_RELAY) && !receiving.listens(TO_ORIGIN));
    // The holder is asked before anything is announced.
    let vouched = answer(&mut receiving, START);
    assert!((1..9).all(|at| vouched.contains(&chunk(at))), "{vouched:?}");
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    receiving.handle_announced(TO_RELAY, &held(&[chunk(3)]), START, &unit_at);
    assert_eq!(take(&mut receiving, TO_RELAY, START), [chunk(3)]);
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    assert!(receiving.is_true(TO_RELAY, chunk(3), Some(hash(chunk(3)))));
    assert!(!receiving.is_true(TO_RELAY, chunk(3), Some([9; 32])));
    assert!(!receiving.is_true(TO_RELAY, chunk(3), None));
    assert!(receiving.is_true(TO_ORIGIN, chunk(0), None));
    receiving.handle_unit(TO_RELAY, chunk(3), Some(hash(chunk(3))), START + SECOND);
    assert!(receiving.is_delivered(chunk(3)) && receiving.holds(chunk(3)));
    // A part of a unit is none.
    let part = Range::new(chunk(5).start, chunk(5).end - 1);
    receiving.handle_announced(TO_RELAY, &held(&[part]), START, &unit_at);
    assert_eq!(take(&mut receiving, TO_RELAY, START + SECOND), []);
    let rest = Range::new(part.end, chunk(7).end);
    receiving.handle_announced(TO_RELAY, &held(&[rest]), START, &unit_at);
    let taken = take(&mut receiving, TO_RELAY, START + SECOND);
    assert_eq!(taken[..2], [chunk(5), chunk(6)]);
}

/// Each stream to a fellow receiver says the same: what is not new is no reason to look for units.
#[test]
fn what_is_said_again_is_not_looked_at() {
    let mut receiving = receiving(0..1, 1..200);
    let said = [Range::new(0, chunk(200).start)];
    receiving.handle_announced(TO_RELAY, &held(&said), START, &unit_at);
    answer(&mut receiving, START);
    let mut delivered = 0;
    while delivered < AHEAD_UNITS_MIN / 2 {
        let taken = take(&mut receiving, TO_RELAY, START);
        assert_ne!(taken, []);
        for unit in taken {
            receiving.handle_unit(TO_RELAY, unit, Some(hash(unit)), START);
            delivered += 1;
        }
    }
    assert_eq!(answer(&mut receiving, START), []);
    // More are asked for when the lane takes some.
    receiving.handle_announced(TO_RELAY, &held(&said), START, &unit_at);
    assert_eq!(answer(&mut receiving, START), []);
    take(&mut receiving, TO_RELAY, START);
    assert_ne!(answer(&mut receiving, START), []);
}

/// A fellow receiver that wants nothing is not one of which it is not known what it wants.
#[test]
fn one_may_want_nothing() {
    let anything = Range::new(0, u64::MAX);
    let cases = [
        ((0, None), anything),
        ((0, Some(0)), Range::new(0, 0)),
        ((0, Some(9)), Range::new(0, 9)),
        ((4, Some(9)), Range::new(4, 9)),
        ((9, Some(4)), anything),
    ];
    for ((wants_start, wants_end), wants) in cases {
        let mut receiving = receiving(0..9, 0..0);
        receiving.add_peer(&Peer {
            node: RELAY + 1,
            relays: true,
            wants_start,
            wants_end,
            ..Peer::default()
        });
        let lane = receiving.lane_of[&(RELAY + 1)];
        assert_eq!(receiving.ledger.wants(lane), Some(wants));
    }
}

/// One that sends other bytes than the holder has is named and left out; nothing of it counts.
#[test]
fn wrong_bytes_are_not_taken() {
    let mut receiving = receiving(0..1, 1..9);
    answer(&mut receiving, START);
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(0, chunk(9).start)]),
        START,
        &unit_at,
    );
    let taken = take(&mut receiving, TO_RELAY, START);
    assert_eq!(taken.first(), Some(&chunk(1)));
    events(&mut receiving);
    receiving.handle_untrue(TO_RELAY, chunk(1), START);
    let said = events(&mut receiving);
    let names = |event: &Event| {
        matches!(event, Event::Note(text)
            if text.contains("that n1 handed on are not those of n0") && text.contains("nothing more is taken from n1"))
    };
    assert_eq!(
        said.iter().filter(|event| names(event)).count(),
        1,
        "{said:?}"
    );
    assert!(!receiving.is_delivered(chunk(1)) && !receiving.listens(TO_RELAY));
    // What else it was asked for ends with its connection, and what it announces is nothing.
    assert!(!receiving.is_true(TO_RELAY, chunk(2), Some(hash(chunk(2)))));
    receiving.handle_closed(TO_RELAY, &taken[1..], START);
    receiving.handle_announced(TO_RELAY, &held(&[chunk(8)]), START, &unit_at);
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    let mut now = START;
    while !carry_on(&mut receiving, &mut now) {
        assert!(now < START + SECOND * 60, "{:?}", receiving.missing());
    }
    assert_eq!(receiving.pairs()[TO_RELAY].delivered, 0);
    assert_eq!(receiving.corrupt(), 1);
    assert!(receiving.missing_refused().is_empty());
}

/// A fellow receiver that never has anything, or goes silent in the middle, however fast it was, keeps nothing from the end: the
/// holder serves what it does not. So two that wait for each other do not wait for long.
#[test]
fn a_silent_relay_decides_nothing() {
    for brought in [0, 5] {
        for exploring in [true, false] {
            let mut receiving = receiving(0..4, 4..24);
            receiving.spares.explore(exploring);
            let mut now = START;
            answer(&mut receiving, now);
            receiving.handle_announced(
                TO_RELAY,
                &held(&[Range::new(0, chunk(4 + brought).start)]),
                now,
                &unit_at,
            );
            // As fast as memory.
            for unit in take(&mut receiving, TO_RELAY, now) {
                now += Nanos::from_millis(1);
                receiving.handle_unit(TO_RELAY, unit, Some(hash(unit)), now);
            }
            while !carry_on(&mut receiving, &mut now) {
                assert!(now < START + SECOND * 60, "{:?}", receiving.missing());
            }
            let all = Range::new(0, chunk(24).start);
            assert_eq!(receiving.ledger().delivered_ranges(), &RangeSet::from(all));
        }
    }
}

/// What a fellow receiver has to itself when all holders are gone cannot be checked: the master is asked for holders.
#[test]
fn without_holders_nothing_is_taken() {
    let mut receiving = receiving(0..1, 1..9);
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(0, chunk(9).start)]),
        START,
        &unit_at,
    );
    events(&mut receiving);
    receiving.handle_lane_down(TO_ORIGIN, "killed");
    let said = events(&mut receiving);
    let asks = |event: &Event| matches!(event, Event::Need(ranges, ..) if ranges.len_bytes() == 9 * CHUNK_LEN);
    assert!(said.iter().any(asks), "{said:?}");
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    receiving.handle_lane_down(TO_RELAY, "killed, too");
    let why = receiving.why_missing(chunk(1));
    assert_eq!(why, "no node that holds it is left: n0 is lost (killed)");
}

/// A fellow receiver is lost, or has not what it said: the holder serves it, and it is not counted as refused by a holder.
#[test]
fn what_a_relay_has_not_comes_from_the_holder() {
    for is_lost in [true, false] {
        let mut receiving = receiving(0..1, 1..9);
        let mut now = START;
        answer(&mut receiving, now);
        receiving.handle_announced(
            TO_RELAY,
            &held(&[Range::new(0, chunk(9).start)]),
            now,
            &unit_at,
        );
        let taken = take(&mut receiving, TO_RELAY, now);
        assert!(!taken.is_empty());
        match is_lost {
            true => {
                receiving.handle_lane_down(TO_RELAY, "killed");
                receiving.handle_closed(TO_RELAY, &taken, now);
                let said = events(&mut receiving);
                let names = |event: &Event| matches!(event, Event::Note(text) if text == "n1, which handed bytes on, is lost: killed");
                assert!(said.iter().any(names), "{said:?}");
            }
            false => {
                // It refuses each time; each unit is asked of it once.
                let mut asked = taken;
                let mut refused = 0;
                while !asked.is_empty() {
                    for unit in asked {
                        receiving.handle_refused(TO_RELAY, unit, "it is gone", now);
                        refused += 1;
                    }
                    assert!(refused <= 8, "units are asked for again");
                    asked = take(&mut receiving, TO_RELAY, now);
                }
                assert!(receiving.missing_refused().is_empty());
            }
        }
        while !carry_on(&mut receiving, &mut now) {
            assert!(now < START + SECOND * 60, "{:?}", receiving.missing());
        }
    }
}

/// One holder does not say what the bytes are: another one is asked, and none is a holder more.
#[test]
fn another_holder_is_asked() {
    let mut receiving = receiving(0..1, 1..3);
    receiving.add_peer(&Peer {
        node: 2,
        name: "n2".into(),
        ..Peer::default()
    });
    receiving.ledger.reassign([ReadyRun {
        range: Range::new(chunk(1).start, chunk(3).start),
        holders: vec![TO_RELAY, TO_ORIGIN, LaneId(2)],
        choices: 0,
    }]);
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(chunk(1).start, chunk(3).start)]),
        START,
        &unit_at,
    );
    let mut down = BTreeSet::new();
    let mut asked = |receiving: &mut Receiving| {
        for node in [ORIGIN, 2] {
            if let Ask::Units(units) = receiving.next_digests(node) {
                down.insert(node);
                assert!(units.iter().all(|unit| unit.start > 0), "{units:?}");
                receiving.handle_second_down(node, "it broke", START);
                return;
            }
        }
        panic!("no holder is asked");
    };
    asked(&mut receiving);
    asked(&mut receiving);
    assert_eq!(down.len(), 2);
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
}

/// The holder that a fellow receiver names has read the unit, and is asked for its hash, also where it is none of those of the plan. Before that is
/// said, none of several holders is asked, but at the end.
#[test]
fn the_holder_that_has_read_a_unit_is_asked() {
    const OTHER: u32 = 2;
    const SPARE: u32 = 3;
    let mut plan = plan(0..1, 1..60);
    plan.peers.extend([OTHER, SPARE].map(|node| Peer {
        node,
        name: format!("n{node}"),
        ..Peer::default()
    }));
    plan.runs[1].spares = vec![SPARE];
    let mut receiving = begin(&plan);
    let asked = |receiving: &mut Receiving, node| match receiving.next_digests(node) {
        Ask::Units(units) => Vec::from_iter(units.iter().map(|unit| unit.start / CHUNK_LEN)),
        Ask::Wait | Ask::Closed => Vec::new(),
    };
    let all_asked =
        |receiving: &mut Receiving| [ORIGIN, OTHER, SPARE].map(|node| asked(receiving, node));
    let none = Vec::<u64>::new;
    assert_eq!(all_asked(&mut receiving), [none(), none(), none()]);
    let said = [
        (1..18, Some(OTHER)),
        (18..28, Some(ORIGIN)),
        (28..31, Some(RELAY)),
        (31..33, None),
    ];
    let said = said.map(|(chunks, origin): (std::ops::Range<u64>, _)| HeldRange {
        range: Range::new(chunk(chunks.start).start, chunk(chunks.end).start),
        origin,
    });
    receiving.handle_announced(TO_RELAY, &said, START, &unit_at);
    let [mut by_origin, by_other, by_spare] = all_asked(&mut receiving);
    assert_eq!(by_other, Vec::from_iter(1..18));
    assert_eq!(by_origin[..10], Vec::from_iter(18..28));
    by_origin.extend(by_spare);
    by_origin.sort_unstable();
    assert_eq!(by_origin, Vec::from_iter(18..33));
    // What is delivered is forgotten, and this node says where it has it from.
    receiving.relays.hand_on();
    let unit = chunk(1);
    receiving.handle_digest(OTHER, unit, hash(unit), START);
    assert!(take(&mut receiving, TO_RELAY, START).contains(&unit));
    receiving.handle_unit(TO_RELAY, unit, Some(hash(unit)), START);
    assert!(take(&mut receiving, TO_ORIGIN, START).contains(&chunk(0)));
    receiving.handle_unit(TO_ORIGIN, chunk(0), Some(hash(chunk(0))), START);
    let origin_of = |at| receiving.origins().get(chunk(at).start);
    assert_eq!([0, 1, 2].map(origin_of), [Some(ORIGIN), Some(OTHER), None]);
    let said = |at| receiving.relays.said_origins.get(chunk(at).start);
    assert_eq!([1, 2].map(said), [None, Some(OTHER)]);
}

/// A holder takes questions and does not answer: after a while others are asked, about what is new at once, and its answer counts
/// still. Where all are silent none is asked twice. One that is lost is not waited for.
#[test]
fn one_that_does_not_answer_in_time_is_not_waited_for() {
    const SILENT: u32 = 2;
    const UNITS: std::ops::Range<u64> = 1..17;
    let ask = |receiving: &mut Receiving, node: u32| match receiving.next_digests(node) {
        Ask::Units(units) => units,
        Ask::Wait | Ask::Closed => Vec::new(),
    };
    let start = || {
        let mut plan = plan(0..1, UNITS);
        plan.peers.push(Peer {
            node: SILENT,
            name: "n2".into(),
            ..Peer::default()
        });
        plan.runs[1].spares = vec![SILENT];
        let mut receiving = begin(&plan);
        let units = Range::new(chunk(UNITS.start).start, chunk(UNITS.end).start);
        receiving.handle_announced(TO_RELAY, &held(&[units]), START, &unit_at);
        let asked = ask(&mut receiving, SILENT);
        assert!((4..16).contains(&asked.len()), "{asked:?}");
        (receiving, asked)
    };
    let sorted = |units: Vec<Range>| units.iter().map(|unit| unit.start).collect::<BTreeSet<_>>();

    let (mut receiving, silent) = start();
    let others = answer(&mut receiving, START);
    assert_eq!(others.len() + silent.len(), 16);
    let patient = START + SECOND;
    receiving.handle_timer(patient);
    assert_eq!(answer(&mut receiving, patient), []);
    let late = START + SECOND * 3;
    receiving.handle_timer(late);
    let again = ask(&mut receiving, ORIGIN);
    assert_eq!(sorted(again.clone()), sorted(silent.clone()));
    // What is new is asked of the other one.
    let fresh = (100..120).map(chunk);
    let holders = [ORIGIN, SILENT];
    let mut ask_new = |unit| receiving.ask_origin(unit, &holders, &BTreeSet::new());
    assert!(fresh.clone().all(|unit| ask_new(unit) == Some(ORIGIN)));
    // The first answer is the one that counts; another one from a second holder shows that these differ.
    let (first, second) = (silent[0], silent[1]);
    receiving.handle_digest(SILENT, first, hash(first), late);
    events(&mut receiving);
    // No chunk of the plan has this one.
    receiving.handle_digest(ORIGIN, first, [99; 32], late);
    let differ = |event: &Event| matches!(event, Event::Differ(found) if found.range == first);
    assert!(events(&mut receiving).iter().any(differ));
    receiving.handle_digest(ORIGIN, second, hash(second), late);
    for (unit, origin) in [(first, SILENT), (second, ORIGIN)] {
        assert!(receiving.is_true(TO_RELAY, unit, Some(hash(unit))));
        assert_eq!(receiving.origin_of(TO_RELAY, unit), origin);
    }

    // When it has answered all it is one like others. Until then it still owes its answers where the other one is lost.
    let (mut receiving, silent) = start();
    answer(&mut receiving, START);
    receiving.handle_timer(late);
    assert_eq!(ask(&mut receiving, ORIGIN).len(), silent.len());
    receiving.handle_second_down(ORIGIN, "it broke", late);
    for unit in &silent {
        receiving.handle_digest(SILENT, *unit, hash(*unit), late);
        assert!(receiving.is_true(TO_RELAY, *unit, Some(hash(*unit))));
    }
    assert_eq!(
        receiving.ask_origin(chunk(100), &holders, &BTreeSet::new()),
        Some(SILENT)
    );
    assert!(!receiving.is_late(SILENT));

    // What another one answered is not asked again when the stream breaks.
    let (mut receiving, silent) = start();
    answer(&mut receiving, START);
    receiving.handle_timer(late);
    answer(&mut receiving, late);
    receiving.handle_second_broken(SILENT);
    assert_eq!(ask(&mut receiving, SILENT), [], "{silent:?}");

    let (mut receiving, silent) = start();
    ask(&mut receiving, ORIGIN);
    receiving.handle_timer(late);
    assert_eq!(ask(&mut receiving, ORIGIN), []);
    assert_eq!(ask(&mut receiving, SILENT), []);
    receiving.handle_lane_down(LaneId(2), "killed");
    assert_eq!(sorted(ask(&mut receiving, ORIGIN)), sorted(silent));
}

/// Where nothing says which holder reads a unit, all receivers ask one about it, which reads it for the first of them, and all holders in turn. Where there are many, a
/// receiver asks some of them.
#[test]
fn receivers_ask_the_same_holder() {
    const UNITS: u64 = 200;
    let asked = |seed: u64, count: u32| {
        let mut receiving = receiving(0..1, 1..1);
        receiving.compare(Compare::Sample, seed);
        let mut holders: Vec<u32> = (10..10 + count).collect();
        for &node in &holders {
            receiving.add_peer(&Peer {
                node,
                name: format!("n{node}"),
                ..Peer::default()
            });
        }
        let at_first = seed as usize % holders.len();
        holders.rotate_left(at_first);
        let ask = |at: u64| receiving.ask_origin(chunk(at), &holders, &BTreeSet::new());
        (0..UNITS).map(ask).collect::<Option<Vec<u32>>>().unwrap()
    };
    let share = |nodes: &[u32]| {
        let mut times = BTreeMap::<u32, u64>::new();
        for node in nodes {
            *times.entry(*node).or_default() += 1;
        }
        times
    };
    let [one, other] = [1, 6].map(|seed| asked(seed, 8));
    assert_eq!(one, other);
    let times = share(&one);
    let even = UNITS / 16..=UNITS / 4;
    assert!(
        times.len() == 8 && times.values().all(|times| even.contains(times)),
        "{times:?}"
    );
    assert_eq!(share(&asked(1, 100)).len(), SECONDS_MANY);
}

/// A fellow receiver may say more pieces than are remembered: when those of before are delivered, what it says counts again.
#[test]
fn many_announced_pieces_are_forgotten_when_they_are_delivered() {
    let mut receiving = receiving(0..1, 1..9);
    answer(&mut receiving, START);
    // Every second byte of the first chunk, as many as are remembered.
    let pieces: Vec<Range> = (0..1 << 14)
        .map(|at| Range::new(at * 2, at * 2 + 1))
        .collect();
    for some in pieces.chunks(1024) {
        receiving.handle_announced(TO_RELAY, &held(some), START, &unit_at);
    }
    receiving.handle_announced(TO_RELAY, &held(&[chunk(3)]), START, &unit_at);
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    assert_eq!(take(&mut receiving, TO_ORIGIN, START)[0], chunk(0));
    receiving.handle_unit(TO_ORIGIN, chunk(0), Some(hash(chunk(0))), START + SECOND);
    receiving.handle_announced(TO_RELAY, &held(&[chunk(3)]), START + SECOND, &unit_at);
    assert_eq!(take(&mut receiving, TO_RELAY, START + SECOND), [chunk(3)]);
}

/// Hashes of units that a fellow receiver may never have do not take the place of those that it has: it is asked for these at once.
#[test]
fn units_that_are_not_announced_leave_room() {
    let mut receiving = receiving(0..1, 1..200);
    let early = answer(&mut receiving, START);
    assert!((1..=16).contains(&early.len()), "{early:?}");
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(chunk(100).start, chunk(140).start)]),
        START,
        &unit_at,
    );
    let vouched = answer(&mut receiving, START);
    assert!(
        vouched.contains(&chunk(100)) && vouched.len() >= 16,
        "{vouched:?}"
    );
    assert_eq!(take(&mut receiving, TO_RELAY, START)[0], chunk(100));
    // What it has at last is no guess any more: others are asked for.
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(0, chunk(9).start)]),
        START,
        &unit_at,
    );
    let mut now = START;
    while !carry_on(&mut receiving, &mut now) {
        assert!(now < START + SECOND * 60, "{:?}", receiving.missing());
    }
}

/// A holder is asked for as many hashes at once as fast relays bring units while an answer is on its way.
#[test]
fn hashes_keep_up_with_long_paths() {
    let mut receiving = receiving(0..1, 1..200);
    answer(&mut receiving, START);
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(chunk(100).start, chunk(140).start)]),
        START,
        &unit_at,
    );
    let Ask::Units(units) = receiving.next_digests(ORIGIN) else {
        panic!("nothing is asked for");
    };
    // 1.3 Gbit/s is 8 MiB in 50 ms.
    assert!(units.len() as u64 * CHUNK_LEN > 8 << 20, "{units:?}");
}

/// One that floods is named and left out, once, and what it announced is nothing.
#[test]
fn one_that_floods_is_left_out() {
    let mut receiving = receiving(0..1, 1..9);
    answer(&mut receiving, START);
    receiving.handle_announced(
        TO_RELAY,
        &held(&[Range::new(0, chunk(9).start)]),
        START,
        &unit_at,
    );
    events(&mut receiving);
    receiving.handle_flood(TO_RELAY, START);
    receiving.handle_flood(TO_RELAY, START);
    let said = events(&mut receiving);
    let names = |event: &&Event| matches!(event, Event::Note(text) if text.contains("nothing more is taken from n1"));
    assert_eq!(said.iter().filter(names).count(), 1, "{said:?}");
    assert_eq!(take(&mut receiving, TO_RELAY, START), []);
    let mut now = START;
    while !carry_on(&mut receiving, &mut now) {
        assert!(now < START + SECOND * 60, "{:?}", receiving.missing());
    }
    assert_eq!(receiving.pairs()[TO_RELAY].delivered, 0);
}

/// What is read to be handed on is compared with what was received, where this node hands on.
#[test]
fn rot_is_seen_where_it_is() {
    for hands_on in [true, false] {
        let mut receiving = receiving(0..3, 3..3);
        if hands_on {
            receiving.handle_kept(RangeSet::new());
        }
        for unit in take(&mut receiving, TO_ORIGIN, START) {
            receiving.handle_unit(TO_ORIGIN, unit, Some(hash(unit)), START + SECOND);
        }
        assert!(receiving.is_as_received(chunk(1), &hash(chunk(1))));
        assert_eq!(receiving.is_as_received(chunk(1), &[9; 32]), !hands_on);
        // Of other bytes nothing is known.
        assert!(receiving.is_as_received(chunk(7), &[9; 32]));
    }
}

fn calls(receiving: &mut Receiving) -> Vec<LaneId> {
    let calls = events(receiving)
        .into_iter()
        .filter_map(|event| match event {
            Event::Connect(lane, _) => Some(lane),
            _ => None,
        });
    calls.collect()
}

/// A fellow receiver that joins, of which no plan has any work, is connected, and what it has is taken that others would bring later.
#[test]
fn one_that_joins_brings_what_it_has() {
    let mut receiving = receiving(0..1, 1..40);
    events(&mut receiving);
    let peer = Peer {
        node: 2,
        name: "n2".into(),
        relays: true,
        ..Peer::default()
    };
    let revision = Revision {
        peers: vec![peer],
        ..Revision::default()
    };
    receiving.handle_revision(&revision, START);
    let to_joined = LaneId(2);
    assert_eq!(calls(&mut receiving), [to_joined]);
    receiving.handle_announced(to_joined, &held(&[chunk(39)]), START, &unit_at);
    answer(&mut receiving, START);
    assert_eq!(take(&mut receiving, to_joined, START), [chunk(39)]);
}

/// Where all work is that of fellow receivers, holders are connected, too, and serve what these are late with.
#[test]
fn holders_help_where_all_is_relayed() {
    let mut receiving = receiving(0..0, 1..9);
    assert_eq!(calls(&mut receiving), [TO_ORIGIN, TO_RELAY]);
    let mut now = START;
    while !carry_on(&mut receiving, &mut now) {
        assert!(now < START + SECOND * 30, "it hangs");
    }
}
