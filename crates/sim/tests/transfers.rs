//! Whole transfers: nodes that die, fall silent or run full. Whatever happens, it ends, and says the truth.

use ropewalk_model::{ByteRate, Range, RangeSet};
use ropewalk_proto::control;
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{
    Chance, Change, Ended, Event, MS, SECOND, Scenario, Speed, changed_bound, node,
};

fn senders_and_receivers(speeds: &[f64], bytes: u64, destination: Option<&str>) -> Scenario {
    let all = Range::new(0, bytes);
    let count = speeds.len();
    let senders = (0..count).map(|at| node(format!("s{at}"), &[all], &[], None));
    let receivers = (0..count).map(|at| node(format!("r{at}"), &[], &[all], destination));
    let both = speeds.iter().chain(speeds);
    let mut scenario = Scenario::new(
        senders.chain(receivers).collect(),
        both.map(|&speed| Speed::both(speed)).collect(),
    );
    scenario.scheduler = "greedy".into();
    scenario
}

/// CEP Figure 6 without hints: slow and fast pairs, nobody told the speeds. Work follows what is seen.
#[test]
fn unequal_pairs_without_hints_come_close_to_the_bound() {
    for (slow, fast) in [(5, 0), (5, 1), (5, 2), (5, 3), (1, 1), (2, 2)] {
        let mut speeds = vec![2.39e6; slow];
        speeds.resize(slow + fast, 23.9e6);
        let bound = 20.0;
        let bytes = (speeds.iter().sum::<f64>() * bound) as u64;
        let ended = senders_and_receivers(&speeds, bytes, Some("out")).run();
        assert_eq!(ended.outcome, Some(Outcome::Done));
        assert_eq!(ended.delivered, RangeSet::from(Range::new(0, bytes)));
        assert!(
            bound > ended.seconds * 0.95,
            "{slow}+{fast}: {} s",
            ended.seconds
        );
    }
}

/// CEP Figure 7 without hints, slow and fast nodes in two blocks: what slow nodes alone hold and want takes them all the
/// time there is, and nobody knows at first which bytes these are. What it costs to find out is a second or two.
#[test]
fn windows_without_hints_come_close_to_the_bound() {
    for halves in [4, 6, 8, 9, 12] {
        let bytes = 1 << 30;
        let window = |at: u64| {
            let (start, end) = (bytes * at / 8, bytes * (2 * at + halves) / 16);
            let wrapped = Range::new(0, end.saturating_sub(bytes));
            [Range::new(start, end.min(bytes)), wrapped]
        };
        let holds = (0..8).map(|at| node(format!("s{at}"), &window(at), &[], None));
        let wants = (0..8).map(|at| node(format!("r{at}"), &[], &window(at), Some("out")));
        let speed = |at: u64, factor: f64| match at % 8 {
            0..4 => Speed::both((1e6 * factor).round()),
            _ => Speed::both((1e7 * factor).round()),
        };
        let scenario = |factor: f64| {
            let speeds = (0..16).map(|at| speed(at, factor));
            Scenario::new(
                holds.clone().chain(wants.clone()).collect(),
                speeds.collect(),
            )
        };
        let factor = changed_bound(&scenario(1.0)).unwrap() / 20.0;
        let ended = scenario(factor).run();
        assert_eq!(ended.outcome, Some(Outcome::Done));
        assert!(ended.seconds < 20.0 + 2.5, "{halves}: {} s", ended.seconds);
    }
}

/// A transfer drawn from a seed: speeds, layout, hints, delays, and up to three deaths, silences and full disks.
#[derive(Debug)]
struct Drawn {
    scenario: Scenario,
    all: Range,
    is_shared: bool,
    unharmed: bool,
}

fn draw(seed: u64) -> Drawn {
    let mut chance = Chance::new(seed);
    let (senders, receivers) = (1 + chance.below(5) as u32, 1 + chance.below(5) as u32);
    let magnitude = 16 + chance.below(14);
    let bytes = 1 + chance.below(1 << magnitude);
    let destination = (chance.below(4) > 0).then_some("out");
    // The first holds, and wants, all; others may hold or want a part.
    let part = |at: u32, chance: &mut Chance| {
        let start = match at {
            0 => 0,
            _ => chance.below(bytes) * chance.below(2),
        };
        [Range::new(start, bytes)]
    };
    let mut nodes = Vec::new();
    for at in 0..senders {
        nodes.push(node(format!("s{at}"), &part(at, &mut chance), &[], None));
    }
    for at in 0..receivers {
        let wants = part(at, &mut chance);
        nodes.push(node(format!("r{at}"), &[], &wants, destination));
    }
    let count = senders + receivers;
    let speeds = (0..count).map(|_| Speed::both((1 + chance.below(40)) as f64 * 1e6));
    let mut scenario = Scenario::new(nodes, speeds.collect());
    let mut unharmed = true;
    for _ in 0..chance.below(4) {
        let after = chance.below(12_000) * MS;
        let node = chance.below(u64::from(count)) as u32;
        let change = match chance.below(3) {
            0 => Change::Dies,
            1 => Change::PausedUntil(after + chance.below(10) * SECOND),
            _ => Change::Stops,
        };
        unharmed &= match change {
            Change::PausedUntil(_) => true,
            Change::Stops => node < senders,
            _ => false,
        };
        scenario.script.push(Event {
            after,
            node,
            change,
        });
    }
    if chance.below(2) > 0 {
        scenario = scenario.declared();
    }
    scenario.latencies = (0..count).map(|_| chance.below(300) * MS).collect();
    scenario.sync_time = chance.below(3) * chance.below(1000) * MS;
    Drawn {
        scenario,
        all: Range::new(0, bytes),
        is_shared: destination.is_some(),
        unharmed,
    }
}

/// Whether every byte is where it is wanted.
fn is_whole(drawn: &Drawn, ended: &Ended) -> bool {
    if drawn.is_shared {
        return ended.delivered == RangeSet::from(drawn.all);
    }
    let nodes = drawn.scenario.nodes.iter().zip(&ended.delivered_by_node);
    nodes.into_iter().all(|(setup, delivered)| {
        let rows = setup.sinks.iter().flat_map(|sink| &sink.sink.rows);
        let wanted = rows.map(|row| control::range(row.start, row.length));
        *delivered == RangeSet::from_ranges(wanted)
    })
}

/// So many seeds; `SEED=n` replays one, `SEEDS=n` runs so many.
#[expect(
    clippy::disallowed_methods,
    reason = "which seeds a test runs is no part of what it simulates"
)]
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count_given) => 0..count_given.unwrap_or(count),
    }
}

/// Four thousand seeds: random speeds, layouts, hints, delays, deaths, silences and full disks. A transfer always
/// ends; one that says it is done has every byte in a receiver that lives, and one without faults is done.
fn assert_ends_and_tells_the_truth(scheduler: &str) {
    for seed in seeds(4000) {
        let mut drawn = draw(seed);
        drawn.scenario.scheduler = scheduler.into();
        let ended = drawn.scenario.run();
        let outcome = ended.outcome;
        assert!(outcome.is_some(), "seed {seed} hangs: {:#?}", ended.notes);
        if outcome == Some(Outcome::Done) {
            assert!(
                is_whole(&drawn, &ended),
                "seed {seed}: done without all bytes: {drawn:#?} {ended:#?}"
            );
            assert_eq!(ended.delivered_bytes, ended.wanted_bytes, "seed {seed}");
        }
        if drawn.unharmed {
            assert_eq!(
                outcome,
                Some(Outcome::Done),
                "seed {seed}: {:#?}",
                ended.notes
            );
        }
    }
}

/// As [`draw`], with rails, streams and connections that fail on the way; whether the pairs of nodes that live always have a
/// way that works.
fn draw_with_broken_ways(seed: u64) -> (Drawn, bool) {
    let mut drawn = draw(seed);
    let mut chance = Chance::new(seed ^ 0x7261_696c);
    let nodes = drawn.scenario.nodes.iter();
    let is_sender: Vec<bool> = nodes.map(|node| !node.sources.is_empty()).collect();
    let senders = is_sender.iter().filter(|is| **is).count() as u64;
    let receivers = is_sender.len() as u64 - senders;
    drawn.scenario.rails = 1 + chance.below(3) as u32;
    drawn.scenario.has_tunnel = chance.below(2) > 0;
    drawn.scenario.options.streams = 1 + chance.below(3) as u32;
    let ways = drawn.scenario.rails + u32::from(drawn.scenario.has_tunnel);
    let mut has_ways = ways > 1;
    // Slower, so that most of it happens while bytes move.
    drawn.scenario.time_max = drawn.scenario.time_max * 10;
    for speed in &mut drawn.scenario.speeds {
        *speed = Speed::both(speed.up / 10.0);
    }
    for _ in 0..chance.below(16) {
        let after = chance.below(8_000) * MS;
        let receiver = (senders + chance.below(receivers)) as u32;
        let sender = chance.below(senders) as u32;
        let until = after + chance.below(5000) * MS;
        let change = match chance.below(6) {
            0 | 1 => Change::StreamsBreak { sender },
            2 => {
                has_ways = false;
                Change::ConnectRefused { sender, until }
            }
            // One of them always works.
            _ => Change::RailFails {
                sender,
                rail: chance.below(u64::from(ways.max(2)) - 1) as u32,
                until,
                is_silent: chance.below(2) > 0,
            },
        };
        drawn.scenario = drawn.scenario.then(after, receiver, change);
    }
    (drawn, has_ways)
}

/// Rails fail, with a word of the kernel or without, streams break, connections are refused, beside all that else happens to
/// nodes. Every byte is delivered to a node once (the simulator looks at each), a transfer always ends, one that says that
/// it is done is whole, and one whose nodes live and have a way to each other is done.
#[test]
fn transfers_outlive_broken_ways() {
    let (mut done, mut mended) = (0, [0; 4]);
    let all = seeds(500);
    let count = all.clone().count();
    for seed in all {
        let (drawn, has_ways) = draw_with_broken_ways(seed);
        let ended = drawn.scenario.run();
        let notes = &ended.notes;
        assert!(ended.outcome.is_some(), "seed {seed} hangs: {notes:#?}");
        if ended.outcome == Some(Outcome::Done) {
            assert!(
                is_whole(&drawn, &ended),
                "seed {seed}: done without all bytes: {drawn:#?}"
            );
            assert_eq!(ended.delivered_bytes, ended.wanted_bytes, "seed {seed}");
            done += 1;
        }
        let seen = ended.mended;
        let seen = [seen.refused, seen.replaced, seen.regained, seen.moved];
        (0..4).for_each(|at| mended[at] += seen[at]);
        let is_well = drawn.unharmed && has_ways;
        assert!(
            !is_well || ended.outcome == Some(Outcome::Done),
            "seed {seed}: {notes:#?}"
        );
    }
    let is_enough = done > count / 3 && mended.iter().all(|times| *times > 20);
    assert!(is_enough || count == 1, "{done} of {count}, {mended:?}");
}

/// Speeds that only waver are no reason to plan anew again and again, and cost nothing: no flapping.
#[test]
fn wavering_speeds_do_not_make_plans_flap() {
    for declared in [true, false] {
        let speeds = [4e6, 4e6, 20e6, 20e6];
        let mut scenario = senders_and_receivers(&speeds, 60 * 48_000_000, Some("out"));
        if declared {
            scenario = scenario.declared();
        }
        let mut chance = Chance::new(7);
        for second in 1..60 {
            for node in 0..8_u32 {
                let factor = 0.92 + chance.below(17) as f64 / 100.0;
                let speed = Speed::both(speeds[node as usize % 4] * factor);
                scenario = scenario.then(second * SECOND, node, Change::Speed(speed));
            }
        }
        let bound = changed_bound(&scenario).unwrap();
        let ended = scenario.run();
        assert!(ended.replans <= 20, "{} plans in a minute", ended.replans);
        assert!(
            bound > ended.seconds * 0.93,
            "{} s of {bound}",
            ended.seconds
        );
    }
}

/// Two thousand seeds in which, beside the mishaps, up to three nodes join and up to two are asked to leave. It
/// always ends; one that says it is done has every byte of a shared destination, wherever its writers went.
#[test]
fn nodes_come_and_go() {
    let (mut joined, mut left) = (0, 0);
    for seed in seeds(2000) {
        let mut drawn = draw(seed);
        let mut chance = Chance::new(seed ^ 0x6a6f_696e);
        let old = drawn.scenario.nodes.len() as u32;
        let destination = drawn.is_shared.then_some("out");
        for at in 0..chance.below(4) as u32 {
            let is_sender = chance.below(2) > 0 || !drawn.is_shared;
            let (holds, wants) = match is_sender {
                true => (vec![drawn.all], vec![]),
                false => (vec![], vec![drawn.all]),
            };
            let new = node(format!("n{at}"), &holds, &wants, destination);
            drawn.scenario.nodes.push(new);
            let speed = Speed::both((1 + chance.below(40)) as f64 * 1e6);
            drawn.scenario.speeds.push(speed);
            drawn.scenario.latencies.push(chance.below(300) * MS);
            let after = (1 + u64::from(at)) * SECOND + chance.below(900) * MS;
            drawn.scenario = drawn.scenario.then(after, old + at, Change::Joins);
        }
        for _ in 0..chance.below(3) {
            let node = chance.below(u64::from(old)) as u32;
            let after = chance.below(12_000) * MS;
            drawn.scenario = drawn.scenario.then(after, node, Change::Leaves);
        }
        let ended = drawn.scenario.run();
        assert!(
            ended.outcome.is_some(),
            "seed {seed} hangs: {:#?}",
            ended.notes
        );
        let says = |word: &str| {
            ended
                .notes
                .iter()
                .filter(|note| note.ends_with(word))
                .count()
        };
        (joined, left) = (joined + says(" joins"), left + says(" leaves"));
        let done = ended.outcome == Some(Outcome::Done);
        if done && drawn.is_shared {
            let whole = RangeSet::from(drawn.all);
            assert_eq!(
                ended.delivered, whole,
                "seed {seed}: done without all bytes"
            );
        }
        // Nobody is let go whom the others need.
        assert!(
            done || !drawn.unharmed,
            "seed {seed}: {:?} {:?} {:#?}",
            ended.outcome,
            ended.error,
            ended.notes
        );
    }
    assert!(joined > 500 && left > 200, "{joined} joined, {left} left");
}

/// With the paper's greedy plans.
#[test]
fn transfers_end_and_tell_the_truth() {
    assert_ends_and_tells_the_truth("greedy");
}

/// With the plans that are made when nobody chooses.
#[test]
fn transfers_by_default_plans_end_and_tell_the_truth() {
    assert_ends_and_tells_the_truth("auto");
}

/// The same scenario gives the same end, to the last message.
#[test]
fn runs_repeat() {
    for seed in [3, 77, 1234] {
        let scenario = draw(seed).scenario;
        assert_eq!(scenario.run(), scenario.run(), "seed {seed}");
    }
}

/// Five hundred more, where speeds change on the way, pairs have limits of their own, nodes rest, and any policy
/// plans: the end comes, all is there, and it is never faster than the changing network can be.
#[test]
fn nothing_beats_the_bound_of_a_changing_network() {
    for seed in seeds(500) {
        let mut scenario = draw(seed).scenario;
        let mut chance = Chance::new(seed + 1_000_000);
        let count = scenario.nodes.len() as u64;
        scenario.script.clear();
        for _ in 0..chance.below(6) {
            let after = chance.below(12_000) * MS;
            let change = match chance.below(3) {
                0 => Change::PausedUntil(after + chance.below(5) * SECOND),
                _ => Change::Speed(Speed {
                    up: (1 + chance.below(40)) as f64 * 1e6,
                    down: (1 + chance.below(40)) as f64 * 1e6,
                }),
            };
            scenario = scenario.then(after, chance.below(count) as u32, change);
        }
        for _ in 0..chance.below(4) {
            let pair = (chance.below(count) as u32, chance.below(count) as u32);
            let cap = (1 + chance.below(20)) as f64 * 1e6;
            scenario.pair_caps.insert(pair, cap);
        }
        scenario.scheduler = ["auto", "greedy", "uniform"][chance.below(3) as usize].into();
        scenario.options.fixed = chance.below(3) == 0;
        let ended = scenario.run();
        let notes = &ended.notes;
        assert_eq!(
            ended.outcome,
            Some(Outcome::Done),
            "seed {seed}: {notes:#?}"
        );
        assert_eq!(ended.delivered_bytes, ended.wanted_bytes, "seed {seed}");
        let bound = changed_bound(&scenario).expect("nobody dies");
        assert!(
            ended.seconds >= bound * 0.999,
            "seed {seed}: {} s, though {bound} s is the least",
            ended.seconds
        );
        assert!(
            ended.carried_bytes >= ended.wanted_bytes as f64,
            "seed {seed}"
        );
    }
}

/// A limit over all receivers is kept, and nearly used up.
#[test]
fn a_limit_is_kept_and_used() {
    let speeds = [20e6, 20e6, 2e6];
    let mut scenario = senders_and_receivers(&speeds, 200_000_000, Some("out"));
    scenario.limit = Some(ByteRate(10_000_000));
    let ended = scenario.run();
    assert_eq!(ended.outcome, Some(Outcome::Done));
    assert!(ended.seconds > 19.5, "{} s", ended.seconds);
    assert!(ended.seconds < 23.0, "{} s", ended.seconds);
}

/// Silence of the data, not of the node: a paused receiver gets nothing until it goes on.
#[test]
fn a_paused_receiver_gets_nothing() {
    let scenario = senders_and_receivers(&[10e6], 100_000_000, None);
    let plain = scenario.run().seconds;
    let paused = scenario
        .then(2 * SECOND, 1, Change::PausedUntil(9 * SECOND))
        .run();
    assert!(
        (paused.seconds - plain - 7.0).abs() < 0.1,
        "{plain} s, then {} s",
        paused.seconds
    );
    assert_eq!(paused.duplicate_bytes, 0);
}

/// The account holds what the messages are: as many of each as there are nodes, and no status counted as plan.
#[test]
fn control_messages_are_counted() {
    let scenario = senders_and_receivers(&[10e6, 10e6], 100_000_000, None);
    let ended = scenario.declared().run();
    // Open, plan, finish; opened, done (of receivers), finished.
    for (node, traffic) in ended.traffic.iter().enumerate() {
        let is_receiver = node >= 2;
        assert_eq!(traffic.sent.plan_messages, 3, "node {node}");
        assert_eq!(
            traffic.received.plan_messages,
            2 + u64::from(is_receiver),
            "node {node}"
        );
        assert!(
            traffic.received.status_messages >= 19,
            "node {node}: {traffic:?}"
        );
    }
    let sum = ended.traffic_sum();
    let all = |tally: ropewalk_sim::Tally| tally.plan_bytes + tally.status_bytes;
    let (sent, received): (u64, u64) = ended.timeline.iter().fold((0, 0), |sum, second| {
        (sum.0 + second.sent_bytes, sum.1 + second.received_bytes)
    });
    assert_eq!((all(sum.sent), all(sum.received)), (sent, received));
}
