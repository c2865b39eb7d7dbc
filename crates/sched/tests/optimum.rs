//! Optimal plans, bounds and certificates against a linear program over single bytes.

use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, Variable};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::{Schedule, verify};
use ropewalk_sched::{Fast, Optimal, Scheduler, bound};

mod problems;

use problems::{coverable, linked, nodes, stretched};

/// Least time of the problem, written down as it is stated: a variable for every byte, sender and receiver,
/// and a row for every byte, node, cap and trunk.
fn least_seconds(problem: &Problem) -> f64 {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let time = program.add_var(1.0, (0.0, f64::INFINITY));
    let mut moved: Vec<(usize, usize, Variable)> = Vec::new();
    for destination in problem.destinations() {
        for offset in destination.wanted.iter().flat_map(|run| run.start..run.end) {
            let mut byte: Vec<(Variable, f64)> = Vec::new();
            for &receiver in &destination.receivers {
                for sender in 0..problem.senders.len() {
                    let holds = problem.senders[sender].ranges.contains(offset);
                    if holds && problem.receivers[receiver].ranges.contains(offset) {
                        let variable = program.add_var(0.0, (0.0, f64::INFINITY));
                        byte.push((variable, 1.0));
                        moved.push((sender, receiver, variable));
                    }
                }
            }
            program.add_constraint(byte, ComparisonOp::Eq, 1.0);
        }
    }
    let mut limit = |speed: u64, counts: &dyn Fn(usize, usize) -> bool| {
        let crossing = moved.iter().filter(|(s, r, _)| counts(*s, *r));
        let mut row: Vec<(Variable, f64)> = crossing.map(|&(_, _, v)| (v, 1.0)).collect();
        row.push((time, -(speed as f64)));
        program.add_constraint(row, ComparisonOp::Le, 0.0);
    };
    for (index, sender) in problem.senders.iter().enumerate() {
        limit(sender.up, &|s, _| s == index);
    }
    for (index, receiver) in problem.receivers.iter().enumerate() {
        limit(receiver.down, &|_, r| r == index);
    }
    for pair in &problem.pair_caps {
        limit(pair.cap, &|s, r| (s, r) == (pair.sender, pair.receiver));
    }
    for trunk in &problem.trunks {
        limit(trunk.cap, &|s, r| {
            trunk.senders.contains(&s) && trunk.receivers.contains(&r)
        });
    }
    program
        .solve()
        .unwrap()
        .into_solution()
        .unwrap()
        .objective()
}

/// No node, pair or trunk carries more than 4 bytes over what it can in this time.
fn assert_within(problem: &Problem, plan: &Schedule, seconds: f64) -> Result<(), TestCaseError> {
    if let Err(error) = verify(problem, plan) {
        return Err(TestCaseError::fail(error.to_string()));
    }
    let loads = plan.loads(problem);
    let senders = loads
        .senders
        .iter()
        .zip(problem.senders.iter().map(|s| s.up));
    let receivers = loads
        .receivers
        .iter()
        .zip(problem.receivers.iter().map(|r| r.down));
    let pairs = loads
        .pairs
        .iter()
        .zip(problem.pair_caps.iter().map(|p| p.cap));
    let trunks = loads
        .trunks
        .iter()
        .zip(problem.trunks.iter().map(|t| t.cap));
    for (load, speed) in senders.chain(receivers).chain(pairs).chain(trunks) {
        let room = speed as f64 * seconds * (1.0 + 1e-6) + 4.0;
        prop_assert!(
            *load as f64 <= room,
            "{load} bytes at {speed} B/s in {seconds} s: {loads:?}"
        );
    }
    Ok(())
}

fn check(problem: &Problem, factor: u64, shift: u64) -> Result<(), TestCaseError> {
    let least = least_seconds(problem) * factor as f64;
    let far = stretched(problem, factor, shift);
    let found = bound(&far).unwrap();
    prop_assert!(found.is_exact, "{:?}", found);
    prop_assert!(
        (found.seconds - least).abs() <= 1e-6 * least,
        "{found:?}, least {least}"
    );
    prop_assert_eq!(found.binding.is_empty(), least == 0.0, "{:?}", found);
    let plan = Optimal.plan(&far).unwrap();
    assert_within(&far, &plan, least)?;
    prop_assert_eq!(&plan, &Optimal.plan(&far).unwrap(), "not deterministic");
    let certified = Fast.plan_certified(&far).unwrap();
    assert_within(&far, &certified.schedule, certified.seconds)?;
    prop_assert!(
        certified.bound_seconds <= least * (1.0 + 1e-9),
        "{} proves more than {least}",
        certified.bound_seconds
    );
    prop_assert!(
        certified.seconds >= least * (1.0 - 1e-9),
        "{} beats {least}",
        certified.seconds
    );
    prop_assert!(least == 0.0 || certified.bound_seconds > 0.0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Where only node speeds count.
    #[test]
    fn optimum_of_nodes(problem in nodes(), factor in 1..5_000_u64, shift in 0..1_u64 << 60) {
        check(&coverable(problem), factor, shift)?;
    }

    /// With caps and trunks in any mixture.
    #[test]
    fn optimum_with_links(problem in linked(), factor in 1..5_000_u64, shift in 0..1_u64 << 60) {
        check(&coverable(problem), factor, shift)?;
    }

    /// Sizes beyond the digits of a float.
    #[test]
    fn optimum_far_out(problem in linked(), shift in (1_u64 << 60)..(1 << 63)) {
        check(&coverable(problem), 1 << 59, shift)?;
    }
}
