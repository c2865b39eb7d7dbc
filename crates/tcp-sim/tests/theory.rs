//! The packet simulator against reference traces, formulas and a trace made by hand.

use ropewalk_tcp_sim::theory::{
    ALONE_BITS_PER_SECOND, LOSSY_SECONDS, alone, equals, fairness, lossy, mathis, pftk,
};
use ropewalk_tcp_sim::{
    FlavourName, FlowSpec, Link, NO_WINDOW, Outcome, Profile, Scenario, Stripes, Topology,
    TwoClusters,
};

fn profile(name: &str) -> Profile {
    Profile::named(name).expect("a known profile")
}

fn clusters(nodes: u32, stripes: u32, megabits: f64, milliseconds: f64) -> TwoClusters {
    TwoClusters {
        nodes,
        stripes: Stripes(vec![(FlavourName::Reno, stripes)]),
        bits_per_second: megabits * 1e6,
        latency_seconds: milliseconds / 1e3,
        ..TwoClusters::default()
    }
}

fn run(scenario: &Scenario) -> Outcome {
    scenario.run().expect("a scenario that can be run")
}

// The reference prints windows with six digits, of which three decimals are kept.
fn window(window: f64) -> String {
    let six: f64 = format!("{window:.5e}").parse().unwrap();
    format!("{six:.3}")
}

/// Every value of the three reference traces, at every 20 ms, is met exactly.
#[test]
fn reference_traces() {
    let cases = [
        (
            "ns-2.1b8",
            1,
            include_str!("../../../cases/tcp-traces/ns21b8_s1_lat20.csv"),
        ),
        (
            "ns-2.1b8",
            2,
            include_str!("../../../cases/tcp-traces/ns21b8_s2_lat20.csv"),
        ),
        (
            "ns-2.35",
            10,
            include_str!("../../../cases/tcp-traces/ns235_s10_lat20.csv"),
        ),
    ];
    for (of, stripes, text) in cases {
        let mut scenario = clusters(1, stripes, 100.0, 20.0).scenario(profile(of));
        scenario.trace_seconds = Some(0.02);
        let outcome = run(&scenario);
        let expected: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(expected.len(), outcome.trace.len(), "{stripes} stripes");
        for (expected, seen) in expected.iter().zip(&outcome.trace) {
            let ours = format!(
                "{:.3},{},{},{},{},{},{},{}",
                seen.seconds,
                seen.flow,
                window(seen.window),
                seen.ssthresh,
                seen.acknowledged,
                seen.sent_max,
                seen.retransmitted,
                seen.timeouts
            );
            assert_eq!(*expected, ours, "{stripes} stripes");
        }
    }
}

/// Ends and counts of runs with heavy loss, as the reference simulator (2.35, with the profiles' parameters) printed them.
#[test]
fn reference_runs() {
    let cases = [
        (
            "ns-2.1b8",
            1,
            52,
            100.0,
            20.0,
            50,
            [6.814_602, 8519.0, 467.0, 54.0],
        ),
        (
            "ns-2.35",
            8,
            4,
            100.0,
            80.0,
            200,
            [11.820_166, 64795.0, 763.0, 28.0],
        ),
    ];
    for (of, nodes, stripes, megabits, milliseconds, queue, expected) in cases {
        let net = TwoClusters {
            queue,
            access_queue: queue,
            ..clusters(nodes, stripes, megabits, milliseconds)
        };
        let outcome = run(&net.scenario(profile(of)));
        let seen = [
            (outcome.seconds * 1e6).round() / 1e6,
            outcome.sent() as f64,
            outcome.retransmitted() as f64,
            outcome.timeouts() as f64,
        ];
        assert_eq!(seen, expected, "{of} {nodes} x {stripes}");
    }
}

/// Four packets over one link, by hand: 80 kbit/s, so 40 bytes take 4 ms and 1000 bytes 100 ms; 100 ms one way.
#[test]
fn step_by_step() {
    let mut topology = Topology::default();
    let (from, to) = (topology.node("a"), topology.node("b"));
    topology.duplex(Link {
        from,
        to,
        bits_per_second: 80_000.0,
        latency_seconds: 0.1,
        queue: 50,
        loss: 0.0,
    });
    let mut scenario = TwoClusters::default().scenario(profile("ns-2.1b8"));
    scenario.topology = topology;
    scenario.flows = vec![FlowSpec {
        from,
        to,
        packets: 4,
        flavour: FlavourName::Reno,
        start_seconds: 0.0,
    }];
    scenario.trace_seconds = Some(0.01);
    let outcome = run(&scenario);
    // SYN: 4 + 100 ms there, the same back: 208. Window 2: packets 1 and 2 are sent till 308 and 408, there 100 later,
    // acknowledged 104 after that: 512 and 612. At 512 the window is 3, two packets more may go: 3 is sent till 612, 4
    // till 712, both acknowledged 204 later.
    let steps = [
        (0.208, 0, 2.0),
        (0.512, 1, 3.0),
        (0.612, 2, 4.0),
        (0.816, 3, 5.0),
        (0.916, 4, 6.0),
    ];
    for (at, acknowledged, window) in steps {
        let before = outcome
            .trace
            .iter()
            .rfind(|s| s.seconds < at - 1e-6)
            .unwrap();
        let after = outcome
            .trace
            .iter()
            .find(|s| s.seconds > at + 1e-6)
            .unwrap_or(outcome.trace.last().unwrap());
        assert_eq!(before.acknowledged, acknowledged - 1, "just before {at}");
        assert_eq!(
            (after.acknowledged, after.window),
            (acknowledged, window),
            "just after {at}"
        );
    }
    assert!(
        (outcome.seconds - 0.916).abs() < 1e-9,
        "{}",
        outcome.seconds
    );
    assert_eq!((outcome.sent(), outcome.retransmitted()), (5, 0));
}

/// One stream without loss, window-limited and rate-limited, within 1 % of theory.
#[test]
fn without_loss() {
    // 64 packets a round trip of 2 x 80.2 ms and what sending takes.
    let outcome = run(&clusters(1, 1, 100.0, 80.0).scenario(profile("ns-2.1b8")));
    let round_trip = 0.1604 + 3.0 * (8000.0 + 320.0) / 1e8;
    // SYN; then windows of 2, 4 .. 32 are 62 packets in five round trips.
    let theory = round_trip * (1.0 + 5.0 + (8000.0 - 62.0) / 64.0);
    assert!(
        (outcome.seconds / theory - 1.0).abs() < 0.01,
        "{} {theory}",
        outcome.seconds
    );
    // A trunk whose queue holds more than a window is always busy once two windows have gone.
    let outcome = run(&alone());
    let theory = 8e6 * 8.0 / ALONE_BITS_PER_SECOND;
    assert_eq!(outcome.retransmitted(), 0);
    assert!(
        (outcome.seconds / theory - 1.0).abs() < 0.01,
        "{} {theory}",
        outcome.seconds
    );
    // One that holds less loses packets at the end of slow start, and stands still for at most a second of the timer.
    let outcome = run(&clusters(1, 1, 1.5, 10.0).scenario(profile("ns-2.1b8")));
    assert!(outcome.drops.trunk > 0 && outcome.retransmitted() > 0);
    let over = outcome.seconds / theory;
    assert!((1.01..1.04).contains(&over), "{} {theory}", outcome.seconds);
}

/// Mathis et al. at losses of 0.01 % and 1 %: NewReno within 15 %, the PFTK formula within 25 % beside it.
#[test]
fn mathis_formula() {
    for (loss, packets) in [(0.0001, 1_000_000), (0.01, 50_000)] {
        let seeds = [1, 2, 3];
        let rates = seeds.map(|seed| {
            let outcome = run(&lossy(FlavourName::NewReno, loss, packets, seed));
            assert!(outcome.is_completed && outcome.drops.trunk == 0);
            packets as f64 / outcome.seconds
        });
        let rate = rates.iter().sum::<f64>() / seeds.len() as f64;
        let (round_trip, least_timeout) = LOSSY_SECONDS;
        let (formula, padhye) = (
            mathis(loss, round_trip, 1.0),
            pftk(loss, round_trip, least_timeout, 1.0, f64::from(NO_WINDOW)),
        );
        println!("loss {loss}: {rate:.1} packets/s, Mathis {formula:.1}, PFTK {padhye:.1}");
        assert!(
            (rate / formula - 1.0).abs() < 0.15,
            "loss {loss}: {rate} against {formula}"
        );
        assert!(
            (rate / padhye - 1.0).abs() < 0.25,
            "loss {loss}: {rate} against PFTK {padhye}"
        );
    }
}

/// Equal flows share a trunk that loses 0.5 % of all packets fairly, whatever their flavour.
#[test]
fn fair_to_equals() {
    for flavour in FlavourName::ALL {
        let outcome = run(&equals(flavour));
        let shares: Vec<f64> = outcome
            .flows
            .iter()
            .map(|f| f.acknowledged as f64)
            .collect();
        let index = fairness(&shares);
        println!("{}: fairness {index:.4}", flavour.name());
        assert!(index > 0.97, "{}: {index} of {shares:?}", flavour.name());
    }
}

/// What a timeout sends again: everything under way where it goes back N, though it had arrived; else the lost packets
/// alone.
#[test]
fn after_a_timeout() {
    for flavour in FlavourName::ALL {
        let sent_again = |go_back_n| {
            let mut scenario = lossy(flavour, 0.02, 3000, 1);
            // Never a fast retransmit: each loss ends in a timeout.
            scenario.profile.duplicate_acks = 1_000_000;
            scenario.profile.go_back_n = go_back_n;
            let outcome = run(&scenario);
            assert!(outcome.is_completed && outcome.acknowledged() == 3000);
            (outcome.retransmitted(), outcome.lost)
        };
        let (all, lost) = sent_again(true);
        assert!(all > lost, "{}: {all} for {lost} lost", flavour.name());
        let (missing, lost) = sent_again(false);
        assert_eq!(missing, lost, "{}", flavour.name());
    }
}

/// A loss in a window of four packets has three duplicates behind it, never four.
#[test]
fn duplicates_that_stand_for_a_loss() {
    let timeouts = |duplicate_acks| {
        let mut scenario = lossy(FlavourName::NewReno, 0.01, 5000, 1);
        scenario.window = 4;
        scenario.profile.duplicate_acks = duplicate_acks;
        let outcome = run(&scenario);
        (outcome.timeouts(), outcome.lost)
    };
    let (three, lost) = timeouts(3);
    assert!(three < lost / 2, "{three} timeouts, {lost} lost");
    let (four, lost) = timeouts(4);
    assert!(four > lost * 9 / 10, "{four} timeouts, {lost} lost");
}

/// The same seed gives the same run to the last bit; another seed another one.
#[test]
fn seeds() {
    let mut scenario = clusters(4, 4, 10.0, 20.0).scenario(profile("ns-2.35"));
    (scenario.jitter_seconds, scenario.trace_seconds) = (0.5, Some(0.1));
    let first = run(&scenario);
    assert_eq!(first, run(&scenario));
    scenario.seed = 2;
    assert_ne!(first.seconds, run(&scenario).seconds);
}

/// Vegas beside Reno gets less than its share; beside itself it loses next to nothing.
#[test]
fn vegas_beside_reno() {
    let both = Stripes(vec![(FlavourName::Reno, 4), (FlavourName::Vegas, 4)]);
    let net = TwoClusters {
        stripes: both,
        bits_per_second: 10e6,
        bytes_per_node: 100_000_000,
        ..TwoClusters::default()
    };
    let mut scenario = net.scenario(profile("ns-2.35"));
    scenario.limit_seconds = 40.0;
    let outcome = run(&scenario);
    let sum = |flows: &[_]| -> u64 {
        flows
            .iter()
            .map(|f: &ropewalk_tcp_sim::FlowOutcome| f.acknowledged)
            .sum()
    };
    let (reno, vegas) = (sum(&outcome.flows[..4]), sum(&outcome.flows[4..]));
    println!("reno {reno}, vegas {vegas} packets");
    assert!(reno > vegas * 3 / 2, "{reno} {vegas}");
}

/// With delayed acknowledgements about half as many come back, and the window grows more slowly.
#[test]
fn delayed_acknowledgements() {
    let net = clusters(1, 1, 100.0, 80.0);
    let prompt = run(&net.scenario(profile("ns-2.1b8")));
    let delayed = run(&net.scenario(Profile {
        delayed_ack_seconds: Some(0.1),
        ..profile("ns-2.1b8")
    }));
    assert!(delayed.seconds > prompt.seconds);
    // Packets cross three links each way.
    let saved = prompt.events - delayed.events;
    assert!((9000..12_100).contains(&saved), "{saved} events fewer");
}
