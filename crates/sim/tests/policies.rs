//! Policies against networks, as a recorded table: what each scheduler, fixed or re-planning, makes of layouts,
//! speeds, hints and mishaps.
#![allow(
    clippy::disallowed_methods,
    reason = "the table lies in a file beside the test"
)]

use std::fmt::Write as _;
use std::path::PathBuf;

use ropewalk_model::Range;
use ropewalk_proto::coordinator::NodeSetup;
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Change, SECOND, Scenario, Speed, changed_bound, node};

/// Set to rewrite the table after a deliberate change, as for the recorded help texts.
const UPDATE: &str = "ROPEWALK_UPDATE_GOLDEN";

/// Scheduler, and whether its first plan is kept whatever happens.
const POLICIES: [(&str, bool); 5] = [
    ("uniform", true),
    ("greedy", true),
    ("greedy", false),
    ("auto", true),
    ("auto", false),
];

/// Least time of every network before anything happens.
const BOUND_SECONDS: f64 = 20.0;

/// A network by name: who holds and wants what, true speeds, and which sender may die without taking bytes along.
struct Network {
    name: String,
    nodes: Vec<NodeSetup>,
    speeds: Vec<f64>,
    senders: u32,
    mortal: u32,
}

/// What happens half way.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    None,
    SenderSlows,
    ReceiverPauses,
    SenderDies,
    TwoDie,
}

impl Mishap {
    const ALL: [Self; 5] = [
        Self::None,
        Self::SenderSlows,
        Self::ReceiverPauses,
        Self::SenderDies,
        Self::TwoDie,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SenderSlows => "sender to 10 %",
            Self::ReceiverPauses => "receiver rests 5 s",
            Self::SenderDies => "sender dies",
            Self::TwoDie => "one of each dies",
        }
    }
}

/// `count` senders and as many receivers; every other one is slow, by `ratio`. Receivers with copies of their own are
/// all fast: the senders would not matter otherwise.
fn even(
    layout: &str,
    ratio: u32,
    count: u64,
    holds: impl Fn(u64) -> Vec<Range>,
    wants: impl Fn(u64) -> Vec<Range>,
    destination: Option<&str>,
) -> Network {
    let slow = 2e6;
    let speed = |at: u64| {
        if at.is_multiple_of(2) {
            slow
        } else {
            slow * f64::from(ratio)
        }
    };
    let downs = (0..count).map(|at| speed(if destination.is_some() { at } else { 1 }));
    let senders = (0..count).map(|at| node(format!("s{at}"), &holds(at), &[], None));
    let receivers = (0..count).map(|at| node(format!("r{at}"), &[], &wants(at), destination));
    Network {
        name: format!("{layout} 1:{ratio}"),
        nodes: senders.chain(receivers).collect(),
        speeds: (0..count).map(speed).chain(downs).collect(),
        senders: count as u32,
        mortal: 0,
    }
}

/// One fast receiver that wants all of what these senders (speed, ranges) hold.
fn trap(name: &str, mortal: u32, senders: &[(f64, &[Range])]) -> Network {
    let end = senders
        .iter()
        .flat_map(|(_, ranges)| ranges.iter())
        .map(|r| r.end)
        .max();
    let all = Range::new(0, end.unwrap_or(0));
    let fastest: f64 = senders.iter().map(|(speed, _)| speed).sum();
    let number =
        |(at, (_, ranges)): (usize, &(f64, &[Range]))| node(format!("s{at}"), ranges, &[], None);
    let mut nodes: Vec<NodeSetup> = senders.iter().enumerate().map(number).collect();
    nodes.push(node("r0", &[], &[all], Some("out")));
    let mut speeds: Vec<f64> = senders.iter().map(|(speed, _)| *speed).collect();
    speeds.push(fastest * 2.0);
    Network {
        name: name.into(),
        nodes,
        speeds,
        senders: senders.len() as u32,
        mortal,
    }
}

fn networks() -> Vec<Network> {
    const TOTAL: u64 = 240 << 20;
    let all = |_: u64| vec![Range::new(0, TOTAL)];
    // 4.5 of 8 parts each, beginning at even distances; around the end they go on at the start.
    let window = |at: u64| {
        let (start, length) = (at * TOTAL / 4, TOTAL * 9 / 16);
        let end = start + length;
        vec![
            Range::new(start, end.min(TOTAL)),
            Range::new(0, end.saturating_sub(TOTAL)),
        ]
        .into_iter()
        .filter(|range| !range.is_empty())
        .collect()
    };
    let block = |at: u64| Range::new(at % 6 * TOTAL / 6, (at % 6 + 1) * TOTAL / 6);
    let blocks = |at: u64| vec![block(at), block(at + 1), block(at + 2)];
    let mut out = Vec::new();
    for ratio in [1, 10] {
        out.push(even("all hold all", ratio, 4, all, all, Some("out")));
        out.push(even("windows of 9/16", ratio, 4, window, all, Some("out")));
        // Each receiver has a copy of its own.
        let one = |at: u64| vec![block(at)];
        out.push(even("3 replicas", ratio, 6, blocks, one, None));
    }
    // cases/schedule/25: a very slow node also holds some of it.
    let whole = Range::new(0, 10_000_000_000);
    let (few, most) = (
        Range::new(0, 100_000_000),
        Range::new(100_000_000, 10_000_000_000),
    );
    out.push(trap(
        "slow replica",
        0,
        &[(1e6, &[few]), (1e8, &[whole]), (9.9e9, &[most])],
    ));
    // Not optimal though only senders limit: 4/3 as fixed shares.
    let (a, b) = (Range::new(0, 120 << 20), Range::new(120 << 20, 240 << 20));
    out.push(trap("one holds less", 1, &[(6e6, &[a, b]), (6e6, &[b])]));
    // Off by more than the number of replicas: 2.33 as fixed shares.
    let (a, b) = (Range::new(0, 48 << 20), Range::new(48 << 20, 240 << 20));
    out.push(trap(
        "1, 16, 4",
        0,
        &[(1e6, &[a]), (16e6, &[b]), (4e6, &[a, b])],
    ));
    out
}

/// The network with all speeds multiplied so that its least time is [`BOUND_SECONDS`], and the mishap half way.
/// `None` when the network has no use for the mishap.
fn scenario(network: &Network, declared: bool, mishap: Mishap) -> Option<Scenario> {
    let speeds = |factor: f64| {
        network
            .speeds
            .iter()
            .map(move |s| Speed::both((s * factor).round()))
            .collect()
    };
    let plain = Scenario::new(network.nodes.clone(), speeds(1.0));
    let factor = changed_bound(&plain)? / BOUND_SECONDS;
    let mut scenario = Scenario::new(network.nodes.clone(), speeds(factor));
    if declared {
        scenario = scenario.declared();
    }
    let half = (BOUND_SECONDS / 2.0) as u64 * SECOND;
    let last_sender = network.senders - 1;
    let last = network.nodes.len() as u32 - 1;
    Some(match mishap {
        Mishap::None => scenario,
        Mishap::SenderSlows => {
            let speed = Speed::both(scenario.speeds[last_sender as usize].up / 10.0);
            scenario.then(half, last_sender, Change::Speed(speed))
        }
        Mishap::ReceiverPauses => scenario.then(half, last, Change::PausedUntil(half + 5 * SECOND)),
        Mishap::SenderDies => scenario.then(half, network.mortal, Change::Dies),
        Mishap::TwoDie if last > network.senders => scenario
            .then(half, network.mortal, Change::Dies)
            .then(half + SECOND, last, Change::Dies),
        Mishap::TwoDie => return None,
    })
}

/// Time over the least time of the network as it changed, waste, plans after the first, plan bytes per node.
fn cell(scenario: &Scenario, bound: f64) -> String {
    let ended = scenario.run();
    let (time, mark) = (
        ended.seconds / bound,
        match ended.outcome {
            Some(Outcome::Done) => ' ',
            Some(Outcome::Failed) => 'F',
            Some(Outcome::Partial) => 'P',
            _ => '?',
        },
    );
    assert!(time > 0.999, "faster than anything can be: {time}");
    assert!(mark != '?', "{:?}: {:#?}", ended.outcome, ended.notes);
    format!(
        "{time:7.2}{mark}{:5.1}{:4}{:6.0}",
        ended.waste() * 100.0,
        ended.replans,
        ended.control_bytes_per_node(false)
    )
}

/// The table is as recorded.
#[test]
fn policies_are_as_recorded() {
    let mut text = String::from(
        "Time over the least time of the network as it changes, waste in percent of the wanted bytes, plans after the\n\
         first, and bytes of plan messages per node. F: failed, as it must when a receiver dies with its own copy.\n\n",
    );
    let _ = write!(text, "{:20} {:5} {:18}", "network", "hints", "half way");
    for (scheduler, fixed) in POLICIES {
        let name = format!("{scheduler}{}", if fixed { ", fixed" } else { "" });
        let _ = write!(text, " |{name:^23}");
    }
    text.push('\n');
    for network in networks() {
        for declared in [true, false] {
            for mishap in Mishap::ALL {
                let Some(scenario) = scenario(&network, declared, mishap) else {
                    continue;
                };
                let bound = changed_bound(&scenario).expect("every byte has a holder that lives");
                let hints = if declared { "yes" } else { "no" };
                let _ = write!(text, "{:20} {hints:5} {:18}", network.name, mishap.name());
                for (scheduler, fixed) in POLICIES {
                    let mut scenario = scenario.clone();
                    scenario.scheduler = scheduler.into();
                    scenario.options.fixed = fixed;
                    let _ = write!(text, " |{}", cell(&scenario, bound));
                }
                text.push('\n');
            }
        }
    }
    assert_golden("policies.txt", &text);
}

#[track_caller]
fn assert_golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let changed = text
        .lines()
        .zip(expected.lines())
        .find(|(new, old)| new != old);
    assert!(
        text == expected,
        "{name} changed; if it is meant, run the tests with {UPDATE}=1\nfirst change: {changed:#?}"
    );
}
