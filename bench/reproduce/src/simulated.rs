//! A scenario in the simulator: the shipping state machines in virtual time, on links that carry what caps leave for TCP.

use std::panic::catch_unwind;

use ropewalk_model::{Nanos, Range};
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{self as sim, Speed, node};

use crate::changed::Happened;
use crate::scenario::{Node, Run, Scenario, What, speed};

/// What a run of the scenario takes in the simulator, with its changes at the moments when they came about.
///
/// `None` when it does not end well there, when the program has no answer to a change, or when the simulator finds a fault: that must not cost what was measured.
pub(crate) fn simulated_seconds(
    scenario: &Scenario,
    run: &Run,
    happened: &[Happened],
) -> Option<f64> {
    let scenario = translated(scenario, run, happened);
    let ended = catch_unwind(|| scenario.run()).ok()?;
    let is_done = ended.outcome == Some(Outcome::Done) && ended.ignored == 0;
    is_done.then_some(ended.seconds)
}

fn translated(scenario: &Scenario, run: &Run, happened: &[Happened]) -> sim::Scenario {
    let destination = scenario.destination();
    let sends = |node: &Node| {
        let is_sender = |nodes: &[Node]| nodes.iter().any(|other| other.name == node.name);
        let joins = scenario
            .changes
            .iter()
            .any(|change| matches!(&change.what, What::Join { senders, .. } if is_sender(senders)));
        is_sender(&scenario.senders) || joins
    };
    // Numbers of nodes: those that join come last.
    let joins = |node: &&Node| {
        let mut present = scenario.senders.iter().chain(&scenario.receivers);
        !present.any(|other| other.name == node.name)
    };
    let mut nodes = scenario.nodes();
    nodes.sort_by_key(joins);
    let number = |name: &str| {
        let position = nodes.iter().position(|node| node.name == name);
        u32::try_from(position.unwrap_or_default()).unwrap_or_default()
    };
    let setups = nodes.iter().map(|at| {
        let ranges: Vec<Range> = at.ranges.iter().collect();
        match sends(at) {
            true => node(at.name.clone(), &ranges, &[], None),
            false => node(at.name.clone(), &[], &ranges, destination),
        }
    });
    let rate = |bits_per_second: u64| Speed::both(speed(bits_per_second) as f64);
    let speeds = nodes.iter().map(|node| rate(node.bits_per_second));
    let mut simulated = sim::Scenario::new(setups.collect(), speeds.collect());
    if run.has_hints {
        simulated = simulated.declared();
    }
    simulated.scheduler = run.scheduler.to_owned();
    simulated.options.fixed = !run.has_feedback;
    for (change, happened) in scenario.changes.iter().zip(happened) {
        let at = Nanos::from_seconds(happened.seconds);
        match &change.what {
            What::Rate {
                node,
                bits_per_second,
            } => {
                let change = sim::Change::Speed(rate(*bits_per_second));
                simulated = simulated.then(at, number(node), change);
            }
            What::Pause { node, seconds } => {
                let until = happened.until_seconds.unwrap_or(happened.seconds + seconds);
                let change = sim::Change::PausedUntil(Nanos::from_seconds(until));
                simulated = simulated.then(at, number(node), change);
            }
            What::Die { nodes } => {
                for node in nodes {
                    simulated = simulated.then(at, number(node), sim::Change::Dies);
                }
            }
            What::Join { senders, receivers } => {
                for node in senders.iter().chain(receivers) {
                    simulated = simulated.then(at, number(&node.name), sim::Change::Joins);
                }
            }
        }
    }
    simulated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{AUTO, Change, all};

    fn scenario(what: What) -> Scenario {
        let node = |name: &str| Node {
            name: name.into(),
            bits_per_second: 100_000_000,
            ranges: all(64 << 20),
        };
        Scenario {
            bytes: 64 << 20,
            senders: vec![node("s0"), node("s1")],
            receivers: vec![node("r0"), node("r1")],
            is_shared: true,
            changes: vec![Change {
                at_share: 0.5,
                what,
            }],
        }
    }

    const RUN: Run = Run {
        name: "hints",
        has_hints: true,
        scheduler: AUTO,
        has_feedback: true,
    };

    /// The simulator takes a scenario with its change, and comes out near the bound and not below it.
    #[test]
    fn a_change_is_simulated() {
        let slow = What::Rate {
            node: "s1".into(),
            bits_per_second: 50_000_000,
        };
        let scenario = scenario(slow);
        let happened = [Happened {
            seconds: 1.5,
            ..Happened::default()
        }];
        let seconds = simulated_seconds(&scenario, &RUN, &happened).unwrap();
        let bound = crate::changed::least_seconds(&scenario, &happened).unwrap();
        assert!(
            (0.999..1.2).contains(&(seconds / bound)),
            "{seconds} s against {bound} s"
        );
    }

    /// Nodes that join come last, as senders or receivers that are not there at first.
    #[test]
    fn joining_nodes_come_last() {
        let more = |name: &str| {
            vec![Node {
                name: name.into(),
                bits_per_second: 100_000_000,
                ranges: all(64 << 20),
            }]
        };
        let join = What::Join {
            senders: more("s2"),
            receivers: more("r2"),
        };
        let happened = [Happened {
            seconds: 1.0,
            ..Happened::default()
        }];
        let simulated = translated(&scenario(join), &RUN, &happened);
        let names: Vec<&str> = simulated.nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["s0", "s1", "r0", "r1", "s2", "r2"]);
        let sources: Vec<usize> = simulated.nodes.iter().map(|n| n.sources.len()).collect();
        assert_eq!(sources, [1, 1, 0, 0, 1, 0]);
        let script: Vec<(u32, sim::Change)> = simulated
            .script
            .iter()
            .map(|e| (e.node, e.change))
            .collect();
        assert_eq!(script, [(4, sim::Change::Joins), (5, sim::Change::Joins)]);
    }
}
