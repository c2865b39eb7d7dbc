//! Receivers that hand on what they have, in virtual time: what that gains, and what becomes of it when nodes fail, fall silent or lie.
//!
//! `ROPEWALK_SEEDS=n` runs so many seeds of the swarm, `ROPEWALK_SEED=n` one of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ropewalk_model::{Nanos, Problem, Range, RangeSet, problem};
use ropewalk_proto::coordinator::{NodeSetup, Relay};
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Chance, Change, Ended, MS, SECOND, Scenario, Speed, node};

/// Seeds of a run of the tests.
const SEEDS: u64 = 400;

/// 100 Mbit/s.
const LINK: f64 = 12.5e6;

const MIB: u64 = 1 << 20;

/// Full copies of so many bytes from senders to receivers.
fn copies(senders: u32, receivers: u32, bytes: u64, speeds: Vec<Speed>) -> Scenario {
    let all = [Range::new(0, bytes)];
    let senders = (0..senders).map(|at| node(format!("s{at}"), &all, &[], None));
    let receivers = (0..receivers).map(|at| node(format!("r{at}"), &[], &all, None));
    let nodes: Vec<NodeSetup> = senders.chain(receivers).collect();
    Scenario::new(nodes, speeds)
}

/// Least time with relays of copies of so many bytes.
fn bound(scenario: &Scenario, bytes: u64) -> f64 {
    bound_of(scenario, &vec![Range::new(0, bytes); scenario.nodes.len()])
}

/// Least time with relays.
///
/// * `ranges`: what each node holds or wants.
fn bound_of(scenario: &Scenario, ranges: &[Range]) -> f64 {
    let mut all = Problem::default();
    let nodes = scenario.nodes.iter().zip(&scenario.speeds);
    for ((setup, speed), range) in nodes.zip(ranges) {
        let ranges = RangeSet::from(*range);
        if setup.sources.is_empty() {
            all.receivers.push(problem::Receiver {
                name: setup.name.clone(),
                down: speed.down as u64,
                ranges,
                relay_up: Some(speed.up as u64),
                destination: None,
            });
        } else {
            all.senders.push(problem::Sender {
                name: setup.name.clone(),
                up: speed.up as u64,
                ranges,
            });
        }
    }
    ropewalk_sched::relay_bound(&all).unwrap().seconds
}

fn moving(ended: &Ended) -> f64 {
    assert_eq!(ended.outcome, Some(Outcome::Done), "{:#?}", ended.notes);
    ended.moving_seconds.unwrap()
}

/// One sender to 1, 2, 4, 8 and 16 receivers, all of one speed: the number of copies costs little, whether speeds are declared or
/// not; one receiver, and one sender for each, are as without relays.
#[test]
fn copies_cost_little() {
    const LEN: u64 = 128 * MIB;
    for declared in [true, false] {
        let scenario = |receivers: u32| {
            let speeds = vec![Speed::both(LINK); 1 + receivers as usize];
            let scenario = copies(1, receivers, LEN, speeds);
            match declared {
                true => scenario.declared(),
                false => scenario,
            }
        };
        let one = scenario(1);
        assert_eq!(one.clone().relayed().run().seconds, one.run().seconds);
        for receivers in [2, 4, 8, 16] {
            let scenario = scenario(receivers);
            let bound = bound(&scenario, LEN);
            let (with, without) = (scenario.clone().relayed().run(), scenario.run());
            let share = moving(&with) / bound;
            println!(
                "declared {declared}, 1 to {receivers}: {share:.3} of the bound, {:.2} without, waste {:.3}",
                moving(&without) / bound,
                with.waste()
            );
            assert!(share < 1.25, "1 to {receivers}: {share}");
            assert!(moving(&with) < moving(&without) * 0.7);
        }
    }
}

/// As many senders as receivers, and no speeds declared: senders that are slower than receivers, which no one knows, do not hold them;
/// where all are equally fast, receivers that hand on cost little.
#[test]
fn senders_may_be_slower_than_they_were_guessed() {
    const LEN: u64 = 128 * MIB;
    for (senders, gains) in [([0.2, 0.2, 0.8, 0.8], true), ([1.0; 4], false)] {
        let ups = senders.map(|part| Speed::both(LINK * part));
        let speeds = ups.into_iter().chain([Speed::both(LINK); 4]).collect();
        let scenario = copies(4, 4, LEN, speeds);
        let (with, without) = (
            moving(&scenario.clone().relayed().run()),
            moving(&scenario.run()),
        );
        let share = with / bound(&scenario, LEN);
        println!(
            "{senders:?}: {share:.3} of the bound, {:.3} of without",
            with / without
        );
        match gains {
            true => assert!(with < without * 0.7, "{with} s, without {without} s"),
            false => assert!(with < without * 1.1, "{with} s, without {without} s"),
        }
    }
}

/// One receiver at a tenth of the speed, in or out: the others are done as if it were not there.
#[test]
fn a_slow_receiver_holds_nobody() {
    const LEN: u64 = 64 * MIB;
    for (up, down) in [(LINK / 10.0, LINK), (LINK, LINK / 10.0)] {
        for declared in [true, false] {
            let mut speeds = vec![Speed::both(LINK); 5];
            speeds[4] = Speed { up, down };
            let mut scenario = copies(1, 4, LEN, speeds);
            if declared {
                scenario = scenario.declared();
            }
            let ended = scenario.clone().relayed().run();
            let (with, without) = (moving(&ended), moving(&scenario.run()));
            println!(
                "up {up} down {down} declared {declared}: {with:.1} s, without {without:.1} s"
            );
            assert!(with < without * 1.05, "{with} s, without {without} s");
            let last = ended.done_at[1..4].iter().flatten().max().unwrap();
            let others = last.since(ropewalk_model::Instant::ZERO).as_seconds();
            assert!(
                others < without * 0.8,
                "{others} s, all without {without} s"
            );
        }
    }
}

/// One of two senders falls silent: it takes questions and does not answer. The other one answers in its place after a while. The transfer
/// takes longer by this while, the lost uplink, and the wait for its part of the sample.
#[test]
fn a_silent_sender_holds_no_relays() {
    const LEN: u64 = 128 * MIB;
    let speeds = vec![Speed::both(LINK); 6];
    let scenario = copies(2, 4, LEN, speeds).declared().relayed();
    let undisturbed = moving(&scenario.run());
    let rests = Change::PausedUntil(SECOND * 600);
    let disturbed = moving(&scenario.then(SECOND * 2, 0, rests).run());
    println!("{undisturbed:.2} s; one sender silent after 2 s: {disturbed:.2} s");
    assert!(disturbed < undisturbed + 8.0, "{disturbed} s");
}

/// A receiver that lies is named, and only what it has itself may be wrong.
#[test]
fn liars_are_named() {
    const LEN: u64 = 64 * MIB;
    let speeds = vec![Speed::both(LINK); 5];
    let scenario = copies(1, 4, LEN, speeds).declared().relayed();
    let ended = scenario.then(SECOND, 2, Change::Lies).run();
    moving(&ended);
    let names = |note: &&String| {
        note.contains("that r1 handed on are not those of s0")
            && note.contains("nothing more is taken from r1")
    };
    assert_eq!(
        ended.notes.iter().filter(names).count(),
        3,
        "{:#?}",
        ended.notes
    );
    for have in &ended.delivered_by_node[1..] {
        assert_eq!(have.len_bytes(), LEN);
    }
}

/// What happened in a swarm: a test that tests nothing passes as well.
#[derive(Debug, Default)]
struct Seen {
    done: u64,
    named: u64,
    relays_lost: u64,
    faster: u64,
    joined: u64,
}

/// A transfer of full copies, parts and overlaps from a seed, and faults in it.
fn run(seed: u64, seen: &mut Seen) {
    let mut chance = Chance::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..4 {
        chance.below(2);
    }
    let len = (1 + chance.below(40)) * MIB + chance.below(MIB);
    let (senders, receivers) = (1 + chance.below(3) as u32, 2 + chance.below(6) as u32);
    let any = |chance: &mut Chance| {
        let start = chance.below(len / 2);
        Range::new(start, start + 1 + chance.below(len - start))
    };
    let (mut nodes, mut ranges) = (Vec::new(), Vec::new());
    for at in 0..senders {
        // The first one has all: no byte is lost for good.
        let holds = match at == 0 || chance.below(2) == 0 {
            true => Range::new(0, len),
            false => any(&mut chance),
        };
        ranges.push(holds);
        nodes.push(node(format!("s{at}"), &[holds], &[], None));
    }
    let mut wants = Vec::new();
    let is_mixed = chance.below(3) == 0;
    for at in 0..receivers {
        let wanted = match is_mixed {
            true => any(&mut chance),
            false => Range::new(0, len),
        };
        wants.push(wanted);
        ranges.push(wanted);
        nodes.push(node(format!("r{at}"), &[], &[wanted], None));
    }
    let count = senders + receivers;
    // In some further receivers join.
    let mut joining = Chance::new(seed.wrapping_mul(0xd134_2543_de82_ef95));
    let joins = match joining.below(4) {
        0 => 1 + joining.below(3) as u32,
        _ => 0,
    };
    for at in receivers..receivers + joins {
        let wanted = match is_mixed {
            true => any(&mut joining),
            false => Range::new(0, len),
        };
        ranges.push(wanted);
        nodes.push(node(format!("r{at}"), &[], &[wanted], None));
    }
    let mut speeds: Vec<Speed> = (0..count)
        .map(|_| Speed {
            up: (1 + chance.below(20)) as f64 * 5e5,
            down: (1 + chance.below(20)) as f64 * 5e5,
        })
        .collect();
    for _ in 0..joins {
        speeds.push(Speed::both((1 + joining.below(20)) as f64 * 5e5));
    }
    let mut scenario = Scenario::new(nodes, speeds).relayed();
    if chance.below(2) == 0 {
        scenario = scenario.declared();
    }
    let span = Nanos::from_seconds(len as f64 * f64::from(receivers) / 2.5e7);
    let mut killed = Vec::new();
    for _ in 0..chance.below(5) {
        let after = MS * 50 + Nanos(chance.below(span.0 + 1));
        // Not the first sender.
        let any = 1 + chance.below(u64::from(count) - 1) as u32;
        let receiver = senders + chance.below(receivers.into()) as u32;
        let until = after + Nanos(chance.below(SECOND.0 * 8));
        let (node, change) = match chance.below(7) {
            0 if killed.len() < 2 => {
                killed.push(any);
                (any, Change::Dies)
            }
            1 => (any, Change::PausedUntil(until)),
            2 => (receiver, Change::SleepsUntil(until)),
            3 => (receiver, Change::StreamsBreak { sender: any }),
            4 => (receiver, Change::ConnectRefused { sender: any, until }),
            5 => (
                any,
                Change::Speed(Speed::both((1 + chance.below(20)) as f64 * 5e5)),
            ),
            _ => (receiver, Change::Lies),
        };
        scenario = scenario.then(after, node, change);
    }
    let mut after = MS * 50 + Nanos(joining.below(span.0 + 1));
    for joiner in count..count + joins {
        scenario = scenario.then(after, joiner, Change::Joins);
        let later = after + Nanos(joining.below(span.0 / 2 + 1));
        match joining.below(6) {
            0 => scenario = scenario.then(later, joiner, Change::Lies),
            // Where it is done; else it may not.
            2 => scenario = scenario.then(later, joiner, Change::Leaves),
            1 if killed.len() < 2 => {
                killed.push(joiner);
                scenario = scenario.then(later, joiner, Change::Dies);
            }
            _ => {}
        }
        // They join in the order of their numbers.
        after += Nanos(joining.below(span.0 / 4 + 1));
    }
    let ended = scenario.run();
    let what = format!(
        "{:?} {:?} after {} s, {:?}, {:#?}",
        ended.outcome, ended.error, ended.seconds, scenario.script, ended.notes
    );
    assert!(ended.outcome.is_some(), "{what}: it hangs");
    seen.done += u64::from(ended.outcome == Some(Outcome::Done));
    let has = |text: &str| ended.notes.iter().any(|note| note.contains(text));
    seen.named += u64::from(has("nothing more is taken from"));
    seen.relays_lost += u64::from(has("which handed bytes on, is lost"));
    for joiner in count..count + joins {
        match has(&format!("r{} joins", joiner - senders)) {
            true => seen.joined += 1,
            false => break,
        }
        wants.push(ranges[joiner as usize]);
    }
    for (at, wanted) in (senders..).zip(&wants) {
        if !killed.contains(&at) {
            let have = &ended.delivered_by_node[at as usize];
            assert!(
                have.contains_range(*wanted),
                "{what}: r{} has {have}",
                at - senders
            );
        }
    }
    let is_calm = scenario.script.is_empty();
    if is_calm {
        let mut off = scenario.clone();
        off.relay = Relay::Off;
        let (with, without) = (moving(&ended), moving(&off.run()));
        seen.faster += u64::from(with < without);
        let least = bound_of(&scenario, &ranges);
        // Where the plan gains little there are no relays. Short transfers of which no speeds are declared may take 0.1 s more.
        assert!(
            with < without * 1.02 + 0.1,
            "{what}: {with} s, without {without} s"
        );
        assert!(with > least * 0.999, "{what}: {with} s of {least} s");
    }
}

/// One that joins at half time is fed by the others: their sender's uplink, which limits them, carries hardly more than without it.
#[test]
fn a_receiver_that_joins_is_fed_by_the_others() {
    const LEN: u64 = 128 * MIB;
    let seconds = LEN as f64 / LINK;
    let half = (seconds / 2.0 * 1e3) as u64;
    for receivers in [2, 4] {
        for declared in [true, false] {
            let all = copies(
                1,
                receivers + 1,
                LEN,
                vec![Speed::both(LINK); 2 + receivers as usize],
            );
            let scenario = all.relayed().then(half * MS, receivers + 1, Change::Joins);
            let scenario = match declared {
                true => scenario.declared(),
                false => scenario,
            };
            let with = moving(&scenario.run());
            let mut off = scenario.clone();
            off.relay = Relay::Off;
            let without = moving(&off.run());
            // It needs the time of the data once it is there.
            let least = seconds * 1.5;
            let what = format!(
                "{receivers} receivers, declared {declared}: {with:.2} s of {least:.2} s, {without:.2} s without relays"
            );
            println!("{what}");
            assert!(with < least * 1.15 && with < without * 0.9, "{what}");
        }
    }
}

/// What a receiver that dies was to hand on leaves the sender once more, not once for each of the others.
#[test]
fn a_receiver_that_dies_costs_little() {
    const LEN: u64 = 128 * MIB;
    let seconds = LEN as f64 / LINK;
    let mut worst = 0.0_f64;
    for receivers in [3, 4, 8] {
        for declared in [true, false] {
            let speeds = vec![Speed::both(LINK); 1 + receivers as usize];
            let scenario = copies(1, receivers, LEN, speeds).relayed();
            let half = Nanos::from_seconds(seconds / 2.0);
            let scenario = scenario.then(half, 1, Change::Dies);
            let scenario = match declared {
                true => scenario.declared(),
                false => scenario,
            };
            let ended = scenario.run();
            let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
            // Its own copy is missing.
            assert_eq!(ended.outcome, Some(Outcome::Failed), "{:#?}", ended.notes);
            let share = ended.moving_seconds.unwrap() / seconds;
            let what = format!(
                "{receivers} receivers, declared {declared}: {share:.3} of the least time, sent {sent:.2} times"
            );
            println!("{what}");
            worst = worst.max(share.max(sent));
        }
    }
    assert!(worst < 1.2, "{worst}");
}

/// Two receivers want different parts, which overlap, and one that joins at half time wants all: it fetches each byte from those that want
/// it, and from the sender hardly any.
#[test]
fn a_receiver_that_joins_is_fed_by_those_that_want_a_part() {
    const LEN: u64 = 128 * MIB;
    let seconds = LEN as f64 / LINK;
    // In eighths, and where these are no whole units.
    for (eighths, odd) in [(5, 0), (5, 4321), (6, 4321)] {
        for declared in [true, false] {
            let part = LEN / 8 * eighths + odd;
            let all = Range::new(0, LEN);
            let nodes = vec![
                node("s", &[all], &[], None),
                node("a", &[], &[Range::new(0, part)], None),
                node("b", &[], &[Range::new(LEN - part, LEN)], None),
                node("c", &[], &[all], None),
            ];
            let scenario = Scenario::new(nodes, vec![Speed::both(LINK); 4]).relayed();
            let half = Nanos::from_seconds(seconds / 2.0);
            let scenario = scenario.then(half, 3, Change::Joins);
            let scenario = match declared {
                true => scenario.declared(),
                false => scenario,
            };
            let ended = scenario.run();
            let with = moving(&ended);
            let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
            // It needs the time of the data once it is there.
            let share = with / (seconds * 1.5);
            let what = format!(
                "{eighths} eighths and {odd}, declared {declared}: {share:.3} of the least time, sent {sent:.3} times"
            );
            println!("{what}");
            assert!(share < 1.015 && sent < 1.2, "{what}");
        }
    }
}

/// Several join at a third of the time: what one of them has the others have from it.
#[test]
fn receivers_that_join_feed_each_other() {
    const LEN: u64 = 128 * MIB;
    let seconds = LEN as f64 / LINK;
    let third = Nanos::from_seconds(seconds / 3.0);
    for (receivers, joiners) in [(2, 1), (2, 2), (2, 4), (4, 4)] {
        for declared in [true, false] {
            let count = receivers + joiners;
            let speeds = vec![Speed::both(LINK); 1 + count as usize];
            let mut scenario = copies(1, count, LEN, speeds).relayed();
            for joiner in receivers..count {
                scenario = scenario.then(third, 1 + joiner, Change::Joins);
            }
            if declared {
                scenario = scenario.declared();
            }
            let ended = scenario.run();
            let with = moving(&ended);
            let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
            // Each needs the time of the data once it is there.
            let share = with / (seconds * 4.0 / 3.0);
            let what = format!(
                "{receivers} receivers and {joiners} that join, declared {declared}: {share:.3} of the least time, sent {sent:.3} times"
            );
            println!("{what}");
            assert!(share < 1.1 && sent < 1.4, "{what}");
        }
    }
}

/// Some join one after another, and those that were there from the start die, which fed them: each goes on, and has from the others what
/// these have.
#[test]
fn those_that_join_go_on_without_those_that_fed_them() {
    const LEN: u64 = 64 * MIB;
    let seconds = LEN as f64 / LINK;
    let at = |part: f64| Nanos::from_seconds(seconds * part);
    for declared in [true, false] {
        let mut scenario = copies(1, 5, LEN, vec![Speed::both(LINK); 6]).relayed();
        for (joiner, part) in [(3, 0.3), (4, 0.35), (5, 0.4)] {
            scenario = scenario.then(at(part), joiner, Change::Joins);
        }
        for first in [1, 2] {
            scenario = scenario.then(at(0.6), first, Change::Dies);
        }
        if declared {
            scenario = scenario.declared();
        }
        let ended = scenario.run();
        for have in &ended.delivered_by_node[3..] {
            assert_eq!(have.len_bytes(), LEN, "{:#?}", ended.notes);
        }
        let share = ended.moving_seconds.unwrap() / (seconds * 1.4);
        let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
        let what =
            format!("declared {declared}: {share:.3} of the least time, sent {sent:.3} times");
        println!("{what}");
        assert!(share < 1.3 && sent < 1.8, "{what}");
    }
}

/// One that joins and lies is named by the others that join, and only what it has itself may be wrong.
#[test]
fn liars_that_join_are_named() {
    const LEN: u64 = 64 * MIB;
    let mut scenario = copies(1, 5, LEN, vec![Speed::both(LINK); 6]).relayed();
    for joiner in [3, 4, 5] {
        scenario = scenario.then(SECOND, joiner, Change::Joins);
    }
    let ended = scenario.then(SECOND * 3 / 2, 3, Change::Lies).run();
    moving(&ended);
    let names =
        |note: &&String| note.contains("that r2 handed on") && note.contains("are not those of s0");
    assert!(ended.notes.iter().any(|note| names(&note)), "{ended:#?}");
    for have in &ended.delivered_by_node[1..] {
        assert_eq!(have.len_bytes(), LEN);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds a test runs is no part of what it simulates"
)]
fn seeds() -> (std::ops::Range<u64>, bool) {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    match (number("ROPEWALK_SEED"), number("ROPEWALK_SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, true),
        (None, count) => (0..count.unwrap_or(SEEDS), false),
    }
}

/// Whatever fails, each receiver that lives has what it wants, and nothing hangs.
#[test]
fn receivers_have_all_whatever_fails() {
    let (seeds, is_one) = seeds();
    let mut seen = Seen::default();
    for seed in seeds {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed, &mut seen)));
        if let Err(panic) = ran {
            eprintln!("replay: ROPEWALK_SEED={seed} cargo test -p ropewalk-sim --test handing_on");
            resume_unwind(panic);
        }
    }
    println!("{seen:?}");
    let all = [
        seen.done,
        seen.named,
        seen.relays_lost,
        seen.faster,
        seen.joined,
    ];
    assert!(is_one || all.iter().all(|count| *count > 0), "{seen:?}");
}
