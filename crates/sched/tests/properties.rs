//! Random small problems against brute force, and the extremes of the numbers.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ropewalk_model::class::{DemandTable, uncovered};
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::range::{Range, RangeSet};
use ropewalk_model::schedule::{VerifyError, receiver_runs, verify};
use ropewalk_sched::{Greedy, Optimal, PlanError, Scheduler, Uniform, bound};

mod problems;

use problems::{SPACE, coverable, linked, nodes, stretched};

/// What each byte of each destination lacks, byte by byte.
fn naive_missing(problem: &Problem) -> Vec<(String, u64)> {
    let closed = |s: usize, r: usize| {
        let pair = problem
            .pair_caps
            .iter()
            .any(|p| p.sender == s && p.receiver == r && p.cap == 0);
        let trunk = problem
            .trunks
            .iter()
            .any(|t| t.cap == 0 && t.senders.contains(&s) && t.receivers.contains(&r));
        pair || trunk || problem.senders[s].up == 0 || problem.receivers[r].down == 0
    };
    let mut missing = Vec::new();
    for destination in problem.destinations() {
        for offset in destination.wanted.iter().flat_map(|run| run.start..run.end) {
            let served = destination.receivers.iter().any(|&r| {
                let holders = (0..problem.senders.len())
                    .filter(|&s| problem.senders[s].ranges.contains(offset));
                problem.receivers[r].ranges.contains(offset)
                    && holders.into_iter().any(|s| !closed(s, r))
            });
            if !served {
                missing.push((destination.name.clone(), offset));
            }
        }
    }
    missing
}

/// Largest bytes(A) / speed(nodes that can carry any of A) over all sets A of the items, as a fraction.
fn naive_side(items: &[(u64, Vec<usize>)], speeds: &[u64]) -> (u64, u64) {
    let mut best = (0, 1);
    for chosen in 1_u32..1 << items.len() {
        let picked = items
            .iter()
            .enumerate()
            .filter(|(i, _)| chosen & (1 << i) != 0);
        let picked: Vec<&(u64, Vec<usize>)> = picked.map(|(_, item)| item).collect();
        let bytes: u64 = picked.iter().map(|item| item.0).sum();
        let can_carry = |node: &usize| picked.iter().any(|item| item.1.contains(node));
        let speed: u64 = (0..speeds.len())
            .filter(can_carry)
            .map(|node| speeds[node])
            .sum();
        if bytes * best.1 > best.0 * speed {
            best = (bytes, speed);
        }
    }
    best
}

/// The bound byte by byte: every wanted byte is an item of its own.
fn naive_bound(problem: &Problem) -> (u64, u64) {
    let ups: Vec<u64> = problem.senders.iter().map(|s| s.up).collect();
    let downs: Vec<u64> = problem.receivers.iter().map(|r| r.down).collect();
    let destinations = problem.destinations();
    let copies = |offset: u64| {
        destinations
            .iter()
            .filter(|d| d.wanted.contains(offset))
            .count() as u64
    };
    let holders = |offset: u64| {
        (0..ups.len())
            .filter(|&s| problem.senders[s].ranges.contains(offset))
            .collect()
    };
    let wanted = (0..SPACE).filter(|&offset| copies(offset) > 0);
    let items: Vec<(u64, Vec<usize>)> = wanted
        .map(|offset| (copies(offset), holders(offset)))
        .collect();
    let mut best = naive_side(&items, &ups);
    for destination in &destinations {
        let takers = |offset: u64| {
            let all = destination.receivers.iter().copied();
            all.filter(|&r| problem.receivers[r].ranges.contains(offset))
                .collect()
        };
        let wanted = destination.wanted.iter().flat_map(|run| run.start..run.end);
        let items: Vec<(u64, Vec<usize>)> = wanted.map(|offset| (1, takers(offset))).collect();
        let side = naive_side(&items, &downs);
        if side.0 * best.1 > best.0 * side.1 {
            best = side;
        }
    }
    best
}

fn assert_plans(problem: &Problem) -> Result<(), TestCaseError> {
    let least = bound(problem).unwrap();
    for scheduler in [&Uniform as &dyn Scheduler, &Greedy, &Optimal] {
        let schedule = scheduler.plan(problem).unwrap();
        if let Err(error) = verify(problem, &schedule) {
            return Err(TestCaseError::fail(format!(
                "{}: {error}",
                scheduler.name()
            )));
        }
        let (predicted, fluid) = (
            schedule.predicted_seconds(problem),
            scheduler.fluid_seconds(problem).unwrap(),
        );
        prop_assert!(
            predicted >= least.seconds * (1.0 - 1e-9),
            "{predicted} beats {least:?}"
        );
        prop_assert!(
            fluid >= least.seconds * (1.0 - 1e-9),
            "{fluid} beats {least:?}"
        );
        // Speeds and caps are at least 1 byte a second here, so bytes over are seconds over.
        prop_assert!(
            (predicted - fluid).abs() <= 4.0 + 1e-6 * fluid,
            "{predicted} against {fluid}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// The exact bound is the brute-force maximum over all sets of bytes, wherever the bytes lie.
    #[test]
    fn bound_is_the_largest_quotient(problem in nodes(), far in any::<bool>()) {
        let problem = coverable(problem);
        let (bytes, speed) = naive_bound(&problem);
        let (factor, shift) = if far { (1 << 58, 12_345) } else { (1, 0) };
        let found = bound(&stretched(&problem, factor, shift)).unwrap().exact.unwrap();
        let expected = (u128::from(bytes) * u128::from(factor), u128::from(speed));
        prop_assert_eq!(found.0 * expected.1, expected.0 * found.1, "{:?} against {:?}", found, expected);
    }

    /// Refusals list exactly the bytes that nobody can deliver.
    #[test]
    fn refusals_are_exact(problem in linked()) {
        let naive = naive_missing(&problem);
        let listed = |missing: &std::collections::BTreeMap<String, RangeSet>| {
            let all = missing.iter().flat_map(|(name, set)| set.iter().map(move |run| (name.clone(), run)));
            let mut all: Vec<(String, u64)> =
                all.flat_map(|(name, run)| (run.start..run.end).map(move |o| (name.clone(), o))).collect();
            all.sort();
            all
        };
        let mut sorted = naive;
        sorted.sort();
        prop_assert_eq!(&listed(&uncovered(&problem)), &sorted);
        prop_assert_eq!(&listed(&DemandTable::new(&problem).missing), &sorted);
        match Greedy.plan(&problem) {
            Ok(_) => prop_assert!(sorted.is_empty()),
            Err(PlanError::Uncovered { missing }) => prop_assert_eq!(listed(&missing), sorted),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    /// Plans are right, not below the bound, and within a few bytes of their shares.
    #[test]
    fn plans_are_right(problem in linked()) {
        let problem = coverable(problem);
        assert_plans(&problem)?;
    }

    /// Ranges at the far end of the data space are planned to the byte.
    #[test]
    fn plans_far_out_are_right(problem in linked(), shift in (1_u64 << 60)..(1 << 63)) {
        let problem = coverable(problem);
        assert_plans(&stretched(&problem, 1 << 59, shift))?;
    }

    /// Pieces of many chunks, whose cuts may move to whole chunks, are still right and as fast as their shares.
    #[test]
    fn long_plans_are_right(problem in nodes(), factor in 20_u64 << 20..50 << 20, shift in 0..1_u64 << 60) {
        assert_plans(&stretched(&coverable(problem), factor, shift))?;
    }

    /// Runs of receivers are the plan again, and each spare could send the whole run.
    #[test]
    fn runs_cover_the_plan(problem in linked()) {
        let problem = coverable(problem);
        let schedule = Greedy.plan(&problem).unwrap();
        let runs = receiver_runs(&problem, &schedule, 2);
        let open = DemandTable::new(&problem).open;
        for (receiver, runs) in runs.iter().enumerate() {
            let planned = schedule.assignments.iter().filter(|a| a.receiver == receiver);
            let planned: RangeSet = planned.map(|a| a.range).collect();
            prop_assert_eq!(runs.iter().map(|run| run.range).collect::<RangeSet>(), planned);
            for run in runs {
                prop_assert!(run.spares.len() <= 2 && !run.spares.contains(&run.sender));
                let others = (0..problem.senders.len()).filter(|&s| {
                    s != run.sender && open.is_open(s, receiver) && problem.senders[s].ranges.contains_range(run.range)
                });
                let others: Vec<usize> = others.collect();
                prop_assert!(run.spares.iter().all(|spare| others.contains(spare)));
                prop_assert_eq!(run.spares.len(), others.len().min(2));
            }
        }
    }

    /// A plan with one assignment dropped, doubled or given to another node does not pass unless it is still right.
    #[test]
    fn broken_plans_are_refused(problem in nodes(), pick in any::<prop::sample::Index>()) {
        let problem = coverable(problem);
        let schedule = Uniform.plan(&problem).unwrap();
        prop_assume!(!schedule.assignments.is_empty());
        let at = pick.index(schedule.assignments.len());
        let mut dropped = schedule.clone();
        dropped.assignments.remove(at);
        let missing = matches!(verify(&problem, &dropped), Err(VerifyError::Missing { .. }));
        prop_assert!(missing);
        let mut doubled = schedule.clone();
        doubled.assignments.push(schedule.assignments[at]);
        let twice = matches!(verify(&problem, &doubled), Err(VerifyError::Twice { .. }));
        prop_assert!(twice);
        let mut stray = schedule;
        stray.assignments[at].sender = problem.senders.len();
        let unknown = matches!(verify(&problem, &stray), Err(VerifyError::UnknownNode { .. }));
        prop_assert!(unknown);
    }
}

/// Full-size speeds and sizes go beyond 128 bits inside and still give the exact fraction.
#[test]
fn bound_at_the_extremes() {
    let all = RangeSet::from(Range::new(0, u64::MAX));
    let half = RangeSet::from(Range::new(0, u64::MAX / 2));
    let sender = |name: &str, up: u64, ranges: &RangeSet| Sender {
        name: name.to_owned(),
        up,
        ranges: ranges.clone(),
    };
    let speed = (1_u64 << 63) - 25;
    let receivers = (0..64).map(|i| Receiver {
        name: format!("r{i}"),
        down: u64::MAX,
        ranges: all.clone(),
        ..Receiver::default()
    });
    let problem = Problem {
        senders: vec![sender("a", speed, &all), sender("b", u64::MAX, &half)],
        receivers: receivers.collect(),
        ..Problem::default()
    };
    let found = bound(&problem).unwrap();
    // Only a holds the upper half, so that half binds: 64 copies of 2^63 bytes over a's speed.
    assert_eq!(found.exact, Some((1 << 69, u128::from(speed))));
    assert_eq!(found.binding, ["a"]);
}

/// Nested ranges, where every sender reaches further than the one before, need no edge for every pair.
#[test]
fn nested_ranges_of_many_nodes() {
    const NODES: u64 = 2000;
    let node = |i: u64| RangeSet::from(Range::new(0, (i + 1) * 1000));
    let senders = (0..NODES).map(|i| Sender {
        name: format!("w{i}"),
        up: 1 + i % 7,
        ranges: node(i),
    });
    let receivers = (0..NODES).map(|i| Receiver {
        name: format!("r{i}"),
        down: u64::MAX,
        ranges: node(i),
        ..Receiver::default()
    });
    let problem = Problem {
        senders: senders.collect(),
        receivers: receivers.collect(),
        ..Problem::default()
    };
    let found = bound(&problem).unwrap();
    // The tightest sets are those beyond some sender: what lies past offset k x 1000 has only senders k and up.
    let best = (0..NODES).map(|k| {
        let bytes: u64 = (k..NODES).map(|i| (i + 1 - k) * 1000).sum();
        let speed: u64 = (k..NODES).map(|i| 1 + i % 7).sum();
        bytes as f64 / speed as f64
    });
    let best = best.fold(0.0, f64::max);
    assert!(
        (found.seconds - best).abs() < 1e-9 * best,
        "{} against {best}",
        found.seconds
    );
}
