//! Plans with relays, unit by unit in virtual time, against the bound: a table.

#![allow(clippy::disallowed_methods, reason = "tests read golden files")]

use std::fmt::Write as _;
use std::path::PathBuf;

use ropewalk_model::{Problem, Range, RangeSet, Receiver, RelaySchedule, Sender};
use ropewalk_sched::{bound, plan_auto, plan_relays};
use ropewalk_sim::run_relays;

const UPDATE: &str = "ROPEWALK_UPDATE_GOLDEN";

/// 100 Mbit/s.
const SLOW: u64 = 12_500_000;

const UNIT: u64 = 1 << 20;

/// Senders with what they hold, receivers with (down, up) and what they want.
fn network(senders: &[(u64, Range)], receivers: &[((u64, u64), Range)]) -> Problem {
    let sender = |(at, &(up, range)): (usize, &(u64, Range))| Sender {
        name: format!("w{at}"),
        up,
        ranges: RangeSet::from(range),
    };
    let receiver = |(at, &((down, up), range)): (usize, &((u64, u64), Range))| Receiver {
        name: format!("r{at}"),
        down,
        ranges: RangeSet::from(range),
        destination: None,
        relay_up: Some(up),
    };
    Problem {
        senders: senders.iter().enumerate().map(sender).collect(),
        receivers: receivers.iter().enumerate().map(receiver).collect(),
        ..Problem::default()
    }
}

fn networks() -> Vec<(String, Problem)> {
    let all = Range::new(0, 1_200_000_000);
    let mut networks: Vec<(String, Problem)> = [1, 2, 4, 8, 16, 32]
        .map(|count| {
            let name = format!("1 to {count} at 100 Mbit/s");
            (
                name,
                network(&[(SLOW, all)], &vec![((SLOW, SLOW), all); count]),
            )
        })
        .into();
    let four = [1, 1, 4, 4].map(|times| (SLOW * times, all));
    networks.push((
        "100 + 100 + 400 + 400 to 4 at 500".to_owned(),
        network(&four, &[((5 * SLOW, 5 * SLOW), all); 4]),
    ));
    let mut one_slow = vec![((SLOW, SLOW), all); 7];
    one_slow.push(((SLOW, SLOW / 10), all));
    networks.push((
        "1 to 8, one uplink at a tenth".to_owned(),
        network(&[(SLOW, all)], &one_slow),
    ));
    let mut one_late = vec![((SLOW, SLOW), all); 7];
    one_late.push(((SLOW / 10, SLOW), all));
    networks.push((
        "1 to 8, one downlink at a tenth".to_owned(),
        network(&[(SLOW, all)], &one_late),
    ));
    let halves = [
        Range::new(0, 600_000_000),
        Range::new(600_000_000, 1_200_000_000),
    ];
    networks.push((
        "2 with different halves to 6".to_owned(),
        network(&halves.map(|half| (SLOW, half)), &[((SLOW, SLOW), all); 6]),
    ));
    // Windows of two eighths, each range wanted by three.
    let eighth = all.end / 8;
    let window = |at: u64, eighths: u64| Range::new(at * eighth, (at + eighths).min(8) * eighth);
    let senders: Vec<(u64, Range)> = (0..8).map(|at| (SLOW, window(at, 2))).collect();
    let receivers: Vec<((u64, u64), Range)> =
        (0..8).map(|at| ((4 * SLOW, SLOW), window(at, 3))).collect();
    networks.push((
        "8 windows to 8, 3 wanters each".to_owned(),
        network(&senders, &receivers),
    ));
    networks
}

/// Time over the bound where lanes share links equally, and where each keeps to its planned rate.
#[test]
fn plans_run_near_the_bound() {
    let mut text = String::from(
        "network                             without    bound     plan    equal    paced\n",
    );
    for (name, problem) in networks() {
        let plan = plan_relays(&problem).unwrap();
        let over = |seconds: f64| seconds / plan.bound_seconds;
        let without = bound(&problem).unwrap().seconds;
        let [equal, paced] =
            [false, true].map(|is_paced| run_relays(&problem, &plan.schedule, UNIT, is_paced));
        writeln!(
            text,
            "{name:34} {without:7.1} s {:7.1} s {:8.3} {:8.3} {:8.3}",
            plan.bound_seconds,
            over(plan.seconds),
            over(equal),
            over(paced),
        )
        .unwrap();
        assert!(
            over(equal.min(paced)) >= 1.0 - 1e-6,
            "{name}: faster than the bound"
        );
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/relays.txt");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "if the change is meant, run the test with {UPDATE}=1"
    );
}

/// Bytes that a relay never gets do not arrive; a plan without relays takes its own time.
#[test]
fn what_never_arrives_has_no_time() {
    let all = Range::new(0, 10 * UNIT);
    let problem = network(&[(SLOW, all)], &[((SLOW, SLOW), all), ((SLOW, SLOW), all)]);
    let direct = plan_auto(&problem).unwrap().0;
    let mut plan = RelaySchedule {
        direct,
        relayed: Vec::new(),
    };
    let seconds = plan.predicted_seconds(&problem);
    assert!((run_relays(&problem, &plan, UNIT, false) - seconds).abs() < 0.01 * seconds);
    // Two receivers that wait for each other.
    let half = Range::new(0, 5 * UNIT);
    plan.direct.assignments.clear();
    plan.relayed = [(0, 1), (1, 0)]
        .map(|(from, to)| ropewalk_model::Relayed {
            range: half,
            from,
            to,
        })
        .into();
    assert!(run_relays(&problem, &plan, UNIT, false).is_infinite());
    // One that gets nothing hands nothing on.
    plan.relayed.pop();
    assert!(run_relays(&problem, &plan, UNIT, false).is_infinite());
}
