//! Receivers that hand on over a network that is as uneven as real ones: connections get unequal parts of a link and what is announced
//! takes a while. What a holder sends twice shows here.

use ropewalk_model::{Problem, Range, RangeSet, problem};
use ropewalk_proto::coordinator::NodeSetup;
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Ended, Scenario, Speed, node};

/// 100 Mbit/s.
const LINK: f64 = 12.5e6;

const MIB: u64 = 1 << 20;

/// Senders with what they hold, then receivers with what they want.
fn network(senders: &[(Speed, Range)], receivers: &[(Speed, Range)]) -> Scenario {
    let senders_here = (0..).zip(senders);
    let senders_here =
        senders_here.map(|(at, (_, held))| node(format!("s{at}"), &[*held], &[], None));
    let receivers_here = (0..).zip(receivers);
    let receivers_here =
        receivers_here.map(|(at, (_, wanted))| node(format!("r{at}"), &[], &[*wanted], None));
    let nodes: Vec<NodeSetup> = senders_here.chain(receivers_here).collect();
    let speeds = senders.iter().chain(receivers).map(|(speed, _)| *speed);
    Scenario::new(nodes, speeds.collect()).relayed()
}

/// Least time with relays.
fn bound(senders: &[(Speed, Range)], receivers: &[(Speed, Range)]) -> f64 {
    let sender = |(speed, held): &(Speed, Range)| problem::Sender {
        name: String::new(),
        up: speed.up as u64,
        ranges: RangeSet::from(*held),
    };
    let receiver = |(speed, wanted): &(Speed, Range)| problem::Receiver {
        name: String::new(),
        down: speed.down as u64,
        ranges: RangeSet::from(*wanted),
        relay_up: Some(speed.up as u64),
        destination: None,
    };
    let all = Problem {
        senders: senders.iter().map(sender).collect(),
        receivers: receivers.iter().map(receiver).collect(),
        ..Problem::default()
    };
    ropewalk_sched::relay_bound(&all).unwrap().seconds
}

fn moving(ended: &Ended) -> f64 {
    assert_eq!(ended.outcome, Some(Outcome::Done), "{:#?}", ended.notes);
    ended.moving_seconds.unwrap()
}

/// One sender to several receivers of one speed.
#[test]
fn a_sender_sends_little_more_than_once() {
    const LEN: u64 = 30 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(LINK);
    for (spread, receivers) in [(1.0, 16), (2.0, 4), (4.0, 8), (4.0, 16)] {
        for (seed, declared) in [(0, true), (1, false), (2, false)] {
            let senders = [(fast, all)];
            let receivers = vec![(fast, all); receivers];
            let mut scenario = network(&senders, &receivers).uneven(spread, seed);
            if declared {
                scenario = scenario.declared();
            }
            let ended = scenario.run();
            let share = moving(&ended) / bound(&senders, &receivers);
            let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
            println!(
                "spread {spread}, 1 to {}, declared {declared}, seed {seed}: {share:.3} of the bound, sent {sent:.3} times",
                receivers.len(),
            );
            assert!(sent < 1.2, "sent {sent} times");
            assert!(share < 1.4, "{share} of the bound");
        }
    }
}

/// Receivers behind a trunk that is not declared.
#[test]
fn bytes_cross_a_trunk_once() {
    const LEN: u64 = 30 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(4.0 * LINK);
    for spread in [1.0, 2.0] {
        for receivers in [2, 4, 8] {
            let scenario = network(&[(fast, all)], &vec![(fast, all); receivers]);
            let mut scenario = scenario.uneven(spread, 0);
            scenario.trunk = Some((1, 2.0 * LINK));
            let ended = scenario.run();
            let share = moving(&ended) / (LEN as f64 / (2.0 * LINK));
            let crossed = ended.carried_where(|from, _| from == 0) / LEN as f64;
            println!(
                "spread {spread}, {receivers} behind a trunk: {share:.3} of the bound, crossed {crossed:.3} times"
            );
            assert!(crossed < if spread > 1.0 { 1.2 } else { 1.02 }, "{crossed}");
            assert!(share < 1.3, "{share} of the bound");
        }
    }
}

/// The same trunk where it is declared, and one with receivers on both sides, which bytes cross less than half as often as there are
/// receivers behind it.
#[test]
fn bytes_cross_a_declared_trunk_once() {
    const LEN: u64 = 30 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(4.0 * LINK);
    for (near, far, trunk) in [(0, 4, 2.0), (0, 8, 2.0), (3, 4, 2.0), (4, 4, 4.0)] {
        for (spread, declared) in [(1.0, true), (1.0, false), (2.0, true), (2.0, false)] {
            let receivers = vec![(fast, all); near + far];
            let mut scenario = network(&[(fast, all)], &receivers).uneven(spread, 0);
            if declared {
                scenario = scenario.declared();
            }
            scenario.trunk = Some((1 + near as u32, trunk * LINK));
            scenario.declares_trunk = true;
            let ended = scenario.run();
            let bound = f64::max(
                LEN as f64 / (trunk * LINK),
                bound(&[(fast, all)], &receivers),
            );
            let (share, behind) = (moving(&ended) / bound, 1 + near as u32);
            let crossed = ended.carried_where(|from, to| from < behind && to >= behind);
            let crossed = crossed / LEN as f64;
            println!(
                "{near} before and {far} behind a trunk of {trunk}, spread {spread}, declared {declared}: {share:.3} of the bound, crossed {crossed:.3} times"
            );
            if near == 0 {
                assert!(crossed < if spread > 1.0 { 1.2 } else { 1.02 }, "{crossed}");
                assert!(share < 1.3, "{share} of the bound");
            }
            // Each copy from the sender: so long it takes where receivers hand nothing on.
            let copies = (near + far) as f64 / 4.0;
            let alone = f64::max(copies, far as f64 / trunk) * LEN as f64 / LINK;
            assert!(moving(&ended) < alone / 1.9, "{share} of the bound");
            assert!(crossed < far as f64 / 2.0, "{crossed}");
        }
    }
}

/// A trunk with receivers on both sides that is not declared: round trips show where it is, and what is wanted behind it crosses it about once.
#[test]
fn bytes_cross_a_trunk_that_round_trips_show_once() {
    const LEN: u64 = 120 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(4.0 * LINK);
    for (near, far, trunk) in [(1, 4, 2.0), (3, 4, 2.0), (4, 4, 4.0)] {
        for declared in [true, false] {
            let receivers = vec![(fast, all); near + far];
            let behind = 1 + near as u32;
            let run = |trip| {
                let mut scenario = network(&[(fast, all)], &receivers).uneven(1.0, 0);
                if declared {
                    scenario = scenario.declared();
                }
                scenario.trunk = Some((behind, trunk * LINK));
                scenario.trunk_trip_microseconds = trip;
                let ended = scenario.run();
                let crossed = ended.carried_where(|from, to| from < behind && to >= behind);
                (moving(&ended), crossed / LEN as f64)
            };
            let bound = f64::max(
                LEN as f64 / (trunk * LINK),
                bound(&[(fast, all)], &receivers),
            );
            let ((blind, often), (seconds, crossed)) = (run(0), run(10_000));
            println!(
                "{near} before and {far} behind a trunk of {trunk}, declared {declared}: {:.3} of the bound, crossed {crossed:.3} times; \
                 without round trips {:.3}, {often:.3}",
                seconds / bound,
                blind / bound
            );
            assert!(crossed < 1.1, "{crossed}, {often}");
            assert!(seconds < 0.87 * blind, "{seconds}, {blind}");
        }
    }
}

/// Nodes that differ, of which no speeds are declared or all, where connections are equal and where they are not.
#[test]
fn uneven_nodes_take_little_longer() {
    const LEN: u64 = 64 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(LINK);
    let half = [Range::new(0, LEN / 2), Range::new(LEN / 2, LEN)];
    let eighth = LEN / 8;
    let window = |at: u64, eighths: u64| Range::new(at * eighth, (at + eighths).min(8) * eighth);
    let slow_up = Speed {
        up: LINK / 10.0,
        ..fast
    };
    let slow_down = Speed {
        down: LINK / 10.0,
        ..fast
    };
    let with = |odd: Speed| {
        let mut receivers = vec![(fast, all); 7];
        receivers.push((odd, all));
        receivers
    };
    // A sender has two eighths, and each eighth is wanted by three.
    let quick = Speed {
        down: LINK * 4.0,
        ..fast
    };
    let windows = |eighths: u64| (0..8).map(move |at| window(at, eighths));
    let cases = [
        (
            "an uplink of a tenth",
            vec![(fast, all)],
            with(slow_up),
            1.35,
        ),
        (
            "a downlink of a tenth",
            vec![(fast, all)],
            with(slow_down),
            1.07,
        ),
        (
            "two different halves",
            half.map(|half| (fast, half)).into(),
            vec![(fast, all); 6],
            1.12,
        ),
        (
            "windows, 3 wanters",
            windows(2).map(|range| (fast, range)).collect(),
            windows(3).map(|range| (quick, range)).collect(),
            1.35,
        ),
    ];
    for (name, senders, receivers, most) in cases {
        for (spread, declared) in [(1.0, true), (1.0, false), (2.0, true), (2.0, false)] {
            // What lanes get differs from seed to seed.
            const SEEDS: u64 = 3;
            let ended = (0..SEEDS).map(|seed| {
                let mut scenario = network(&senders, &receivers).uneven(spread, seed);
                if declared {
                    scenario = scenario.declared();
                }
                scenario.run()
            });
            let ended: Vec<_> = ended.collect();
            let share = ended.iter().map(moving).sum::<f64>() / bound(&senders, &receivers);
            let share = share / SEEDS as f64;
            let count = senders.len() as u32;
            let sent = ended
                .iter()
                .map(|ended| ended.carried_where(|from, _| from < count));
            println!(
                "{name}, spread {spread}, declared {declared}: {share:.3} of the bound, sent {:.3} times",
                sent.sum::<f64>() / SEEDS as f64 / LEN as f64,
            );
            assert!(share < most, "{name}: {share} of the bound");
        }
    }
}

/// At the end all uplinks have something to send: what a receiver is late with others fetch first, and they hear of it soon.
#[test]
fn the_end_is_short() {
    const LEN: u64 = 120 * MIB;
    let all = Range::new(0, LEN);
    let fast = Speed::both(LINK);
    for spread in [2.0, 4.0] {
        for seed in 1..=2 {
            let (senders, receivers) = ([(fast, all)], vec![(fast, all); 16]);
            let ended = network(&senders, &receivers).uneven(spread, seed).run();
            let share = moving(&ended) / bound(&senders, &receivers);
            let sent = ended.carried_where(|from, _| from == 0) / LEN as f64;
            println!("spread {spread}, seed {seed}: {share:.3} of the bound, sent {sent:.3} times");
            assert!(share < 1.09, "{share} of the bound");
            assert!(sent < 1.05, "sent {sent} times");
        }
    }
}

/// Where each byte is wanted by three of eight receivers, none leaves bytes that it lacks at the end to others that do not want them.
#[test]
fn the_end_of_windows_is_short() {
    const LEN: u64 = 456 * MIB;
    let window = |at: u64, parts: u64| Range::new(at * LEN / 8, (at + parts).min(8) * LEN / 8);
    let fast = Speed::both(LINK);
    let quick = Speed {
        down: LINK * 4.0,
        ..fast
    };
    let senders: Vec<(Speed, Range)> = (0..8).map(|at| (fast, window(at, 2))).collect();
    let receivers: Vec<(Speed, Range)> = (0..8).map(|at| (quick, window(at, 3))).collect();
    for spread in [1.0, 2.0] {
        let ended = network(&senders, &receivers).uneven(spread, 1).run();
        let share = moving(&ended) / bound(&senders, &receivers);
        println!("windows, spread {spread}: {share:.3} of the bound");
        assert!(share < 1.13, "{share} of the bound");
    }
}
