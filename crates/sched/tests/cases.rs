//! Every worked case of `cases/schedule`: what must be accepted, refused and achieved.

#![allow(clippy::disallowed_methods, reason = "tests read the case files")]

use std::path::PathBuf;

use ropewalk_model::problem::Problem;
use ropewalk_model::problem::case::Case;
use ropewalk_model::schedule::{Schedule, verify};
use ropewalk_sched::{Bound, Greedy, Optimal, PlanError, Scheduler, Uniform, bound, plan_output};

fn cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../cases/schedule");
    let entries = std::fs::read_dir(&folder).expect("cases/schedule is part of the repository");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(
        files.len() >= 25,
        "cases are missing from {}",
        folder.display()
    );
    let read = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
    files
        .iter()
        .map(|file| Case::parse(&read(file)).unwrap_or_else(|e| panic!("{file:?}: {e}")))
        .collect()
}

fn assert_close(name: &str, what: &str, found: f64, expected: f64) {
    let close = (found - expected).abs() <= 1e-6 * expected.abs();
    assert!(close, "{name}: {what} is {found}, expected {expected}");
}

/// Rounding may cost a node 4 bytes, and that much time at its speed.
fn assert_near_fluid(case: &str, problem: &Problem, schedule: &Schedule, fluid: f64) {
    let slowest = problem.senders.iter().map(|s| s.up);
    let slowest = slowest.chain(problem.receivers.iter().map(|r| r.down));
    let slowest = slowest.chain(problem.pair_caps.iter().map(|p| p.cap));
    let slowest = slowest.chain(problem.trunks.iter().map(|t| t.cap));
    let slowest = slowest.filter(|speed| *speed > 0).min().unwrap_or(1);
    let predicted = schedule.predicted_seconds(problem);
    let slack = 1e-6 * fluid + 4.0 / slowest as f64;
    assert!(
        (predicted - fluid).abs() <= slack,
        "{case}: whole bytes {predicted} s, shares {fluid} s"
    );
}

/// Plans, bound and refusals of every case are what the case says.
#[test]
fn every_case_is_met() {
    for case in cases() {
        let (name, problem, expected) = (&case.name, &case.problem, &case.expected);
        if expected.error.is_some() {
            for scheduler in [&Uniform as &dyn Scheduler, &Greedy] {
                let PlanError::Uncovered { missing } = scheduler.plan(problem).unwrap_err() else {
                    panic!("{name}: refused for another reason");
                };
                assert_eq!(missing, expected.missing, "{name}");
            }
            let error = bound(problem).unwrap_err();
            assert_eq!(error.refusal().missing, expected.missing, "{name}: bound");
            continue;
        }
        assert_eq!(Some(problem.wanted_bytes()), expected.bytes, "{name}");
        let pairs: [(&dyn Scheduler, _); 2] =
            [(&Uniform, expected.uniform_T), (&Greedy, expected.greedy_T)];
        for (scheduler, seconds) in pairs {
            let fluid = scheduler.fluid_seconds(problem).unwrap();
            assert_close(
                name,
                scheduler.name(),
                fluid,
                seconds.expect("cases give both times"),
            );
            let schedule = scheduler.plan(problem).unwrap();
            verify(problem, &schedule).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_near_fluid(name, problem, &schedule, fluid);
        }
        check_bound(&case, &bound(problem).unwrap());
        {
            let schedule = Optimal.plan(problem).unwrap();
            verify(problem, &schedule).unwrap_or_else(|e| panic!("{name}: {e}"));
            let optimum = expected.optimal_T.expect("cases give the optimum");
            assert_near_fluid(name, problem, &schedule, optimum);
        }
    }
}

fn check_bound(case: &Case, found: &Bound) {
    let (name, expected) = (&case.name, &case.expected);
    let optimal = expected.optimal_T.expect("cases give the optimum");
    assert!(found.is_exact, "{name}");
    assert_close(name, "bound", found.seconds, optimal);
    let fraction = found.exact.map(|(above, below)| format!("{above}/{below}"));
    assert_eq!(fraction, expected.optimal_T_exact, "{name}");
    let sides = [
        (
            "writer bound",
            found.sender_seconds,
            expected.writer_bound_T,
        ),
        (
            "reader bound",
            found.receiver_seconds,
            expected.reader_bound_T,
        ),
    ];
    for (what, seconds, expected) in sides {
        assert!(expected.is_some() || case.problem.has_links(), "{name}");
        assert_close(name, what, seconds, expected.unwrap_or(seconds));
    }
    assert_eq!(
        found.binding.is_empty(),
        optimal == 0.0,
        "{name}: {:?}",
        found.binding
    );
}

/// The binding nodes are those of the minimum cut.
#[test]
fn binding_nodes_are_named() {
    let cases = cases();
    let binding = |name: &str| {
        let case = cases.iter().find(|case| case.name == name).expect(name);
        bound(&case.problem).unwrap().binding
    };
    assert_eq!(binding("05-paper-figure-2"), ["node6"]);
    assert_eq!(binding("14-shared-destination"), ["r0", "r1"]);
    assert_eq!(binding("21-broadcast-1-4"), ["w0"]);
    assert_eq!(binding("25-slow-replica-trap"), ["slow", "w1", "w2"]);
    assert_eq!(binding("17-pair-cap-and-choice"), ["w0 -> r0"]);
    assert_eq!(binding("18-trunk"), ["near0", "near1", "trunk 0"]);
}

/// The printed object has the keys and the half-open ranges that programs read.
#[test]
fn printed_plan_has_the_agreed_keys() {
    let cases = cases();
    let case = cases
        .iter()
        .find(|case| case.name.starts_with("24-"))
        .unwrap();
    let plan = plan_output(&case.problem, &Greedy).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    for key in [
        "scheduler",
        "transfers",
        "predicted_seconds",
        "bound_seconds",
        "binding",
    ] {
        assert!(json.get(key).is_some(), "{key} is missing: {json}");
    }
    let bytes: u64 = plan.transfers.iter().map(|t| t.end - t.start).sum();
    assert_eq!(bytes, 990);
    assert_eq!(json["transfers"][0]["writer"], "w0");
}
