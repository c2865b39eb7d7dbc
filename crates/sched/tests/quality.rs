//! What optimal plans look like, which scheduler is chosen, and middle-sized problems that prove themselves.

use std::collections::HashSet;

use proptest::prelude::*;
use ropewalk_model::problem::{PairCap, Problem, Receiver, Sender};
use ropewalk_model::range::{Range, RangeSet};
use ropewalk_model::schedule::{Schedule, verify};
use ropewalk_sched::{
    Fast, NAMES, Optimal, Quality, Scheduler, UnknownScheduler, bound, by_name, plan_auto,
    plan_output,
};

fn sender(index: usize, up: u64, ranges: RangeSet) -> Sender {
    let name = format!("w{index}");
    Sender { name, up, ranges }
}

fn receiver(index: usize, down: u64, ranges: RangeSet, destination: Option<&str>) -> Receiver {
    Receiver {
        name: format!("r{index}"),
        down,
        ranges,
        destination: destination.map(str::to_owned),
        relay_up: None,
    }
}

fn pairs(plan: &Schedule) -> HashSet<(usize, usize)> {
    let pieces = plan.assignments.iter();
    pieces.map(|piece| (piece.sender, piece.receiver)).collect()
}

/// Equal replicas and equal receivers of one destination come out one to one, in one run each; with odd
/// numbers there are few more pairs than nodes.
#[test]
fn replicas_and_receivers_pair_up() {
    let all = RangeSet::from(Range::new(0, 16_000_000_016));
    for (senders, receivers) in [(16, 16), (16, 7), (5, 16)] {
        let problem = Problem {
            senders: (0..senders)
                .map(|i| sender(i, 1_000, all.clone()))
                .collect(),
            receivers: (0..receivers)
                .map(|i| receiver(i, 1_000, all.clone(), Some("d")))
                .collect(),
            ..Problem::default()
        };
        let plan = Optimal.plan(&problem).unwrap();
        verify(&problem, &plan).unwrap();
        let most = if senders == receivers {
            16
        } else {
            senders + receivers - 1
        };
        assert!(
            pairs(&plan).len() <= most,
            "{senders} to {receivers}: {plan:?}"
        );
        assert!(plan.assignments.len() <= most);
    }
}

/// Copies for receivers with destinations of their own are shared among few senders each.
#[test]
fn copies_use_few_pairs() {
    let all = RangeSet::from(Range::new(0, 1_000_000));
    let problem = Problem {
        senders: (0..16).map(|i| sender(i, 1_000, all.clone())).collect(),
        receivers: (0..16)
            .map(|i| receiver(i, 9_000, all.clone(), None))
            .collect(),
        ..Problem::default()
    };
    let plan = Optimal.plan(&problem).unwrap();
    assert_eq!(pairs(&plan).len(), 16, "{plan:?}");
}

/// The side that does not set the time has room everywhere, and so have nodes outside the tightest set.
#[test]
fn what_does_not_bind_is_spread() {
    let range = |from: u64, to: u64| RangeSet::from(Range::new(from * 1_000, to * 1_000));
    let problem = Problem {
        // Only w0 holds the first part; the rest has three holders.
        senders: vec![
            sender(0, 100, range(0, 100)),
            sender(1, 100, range(50, 100)),
            sender(2, 300, range(50, 100)),
        ],
        receivers: (0..4)
            .map(|i| receiver(i, 1_000, range(0, 100), Some("d")))
            .collect(),
        ..Problem::default()
    };
    let loads = Optimal.plan(&problem).unwrap().loads(&problem);
    assert_eq!(loads.senders, [50_000, 12_500, 37_500]);
    assert_eq!(loads.receivers, [25_000; 4]);
}

/// Names are those listed, and an unknown one is told them.
#[test]
fn names_are_known() {
    for name in NAMES {
        assert_eq!(by_name(name).unwrap().name(), name);
    }
    let error = by_name("best").unwrap_err();
    assert!(matches!(&error, UnknownScheduler::Unknown(name) if name == "best"));
    assert!(error.to_string().contains("optimal"), "{error}");
}

/// Nested ranges of so many senders, each receiver its own part.
fn nested(nodes: usize, runs: u64) -> Problem {
    let space = 1_000 * nodes as u64;
    let held = |i: u64| {
        let run = |k: u64| Range::new(k * space / runs, k * space / runs + (i + 1) * 1_000 / runs);
        RangeSet::from_ranges((0..runs).map(run))
    };
    let part = |i: u64| RangeSet::from(Range::new(i * 1_000, (i + 1) * 1_000));
    Problem {
        senders: (0..nodes)
            .map(|i| sender(i, 1 + i as u64 % 7, held(i as u64)))
            .collect(),
        receivers: (0..nodes)
            .map(|i| receiver(i, 1_000, part(i as u64), None))
            .collect(),
        ..Problem::default()
    }
}

/// Small problems are planned exactly, large ones fast, and the quality is that of the plan.
#[test]
fn auto_chooses_by_size() {
    for (runs, expected) in [(10, "optimal"), (1_000, "fast")] {
        let problem = nested(400, runs);
        let (plan, quality) = plan_auto(&problem).unwrap();
        verify(&problem, &plan).unwrap();
        let Quality {
            scheduler,
            predicted_seconds,
            bound_seconds,
            gap,
        } = quality;
        assert_eq!(scheduler, expected);
        assert_eq!(predicted_seconds, plan.predicted_seconds(&problem));
        assert!((gap - (predicted_seconds / bound_seconds - 1.0)).abs() < 1e-12);
        assert!(gap <= 0.01, "{quality:?}");
        assert!(bound_seconds <= bound(&problem).unwrap().seconds * (1.0 + 1e-9));
        let auto = by_name("auto").unwrap();
        assert_eq!(auto.plan_named(&problem).unwrap(), (plan, expected));
        let printed = plan_output(&problem, auto.as_ref()).unwrap();
        assert_eq!(printed.scheduler, expected);
    }
}

/// On a chain of overlapping holders the weights converge slowly; the certificate says so and auto goes on
/// to the exact plan where it can.
#[test]
fn auto_does_not_stop_at_a_bad_plan() {
    let chain = Problem {
        senders: (0..40)
            .map(|i| {
                sender(
                    i,
                    1_000,
                    Range::new(i as u64 * 1_000, i as u64 * 1_000 + 2_000).into(),
                )
            })
            .collect(),
        receivers: vec![receiver(
            0,
            u64::MAX >> 1,
            Range::new(0, 41_000).into(),
            None,
        )],
        ..Problem::default()
    };
    let fast = Fast.plan_certified(&chain).unwrap();
    let least = bound(&chain).unwrap().seconds;
    assert!(fast.bound_seconds <= least * (1.0 + 1e-9) && fast.seconds >= least * (1.0 - 1e-9));
    assert!(fast.gap() < 0.2, "{}", fast.gap());
    let (_, quality) = plan_auto(&chain).unwrap();
    assert!(
        quality.scheduler == "optimal" && quality.gap < 1e-3,
        "{quality:?}"
    );
}

/// Too many ways for the linear program: the plan is right, the bound is called a lower one, and both are
/// within sight of each other.
#[test]
fn too_large_a_program_is_owned_up_to() {
    let all = RangeSet::from(Range::new(0, 1_000_000_000));
    let nodes = 160;
    let problem = Problem {
        senders: (0..nodes)
            .map(|i| sender(i, 1_000 + i as u64, all.clone()))
            .collect(),
        receivers: (0..nodes)
            .map(|i| receiver(i, 900 + 3 * i as u64, all.clone(), Some("d")))
            .collect(),
        pair_caps: (0..nodes)
            .map(|i| PairCap {
                sender: i,
                receiver: (i * 7) % nodes,
                cap: i as u64 % 3,
            })
            .collect(),
        ..Problem::default()
    };
    let found = bound(&problem).unwrap();
    let plan = Optimal.plan_certified(&problem).unwrap();
    verify(&problem, &plan.schedule).unwrap();
    assert!(!found.is_exact && found.exact.is_none());
    assert!(plan.gap() <= 0.011, "{}", plan.gap());
    assert!(found.seconds <= plan.seconds && plan.bound_seconds > 0.0);
}

prop_compose! {
    /// Replicated blocks and windows of many nodes: flows that need augmenting paths.
    fn many()(
        ups in proptest::collection::vec(1..1_000_000_u64, 20..60),
        blocks in proptest::collection::vec((1..1_000_000_u64, proptest::collection::vec(any::<prop::sample::Index>(), 1..4)), 20..150),
        takers in proptest::collection::vec((1..1_000_000_u64, any::<prop::sample::Index>(), 1..30usize, 0..4u8), 1..20),
    ) -> Problem {
        let mut held: Vec<Vec<Range>> = vec![Vec::new(); ups.len()];
        let mut ranges: Vec<Range> = Vec::new();
        let mut start = 1 << 40;
        for (len, holders) in blocks {
            let range = Range::new(start, start + len);
            start = range.end;
            ranges.push(range);
            for holder in holders { held[holder.index(ups.len())].push(range); }
        }
        let senders = held.into_iter().zip(&ups).enumerate();
        let receivers = takers.into_iter().enumerate().map(|(i, (down, at, count, group))| {
            let from = at.index(ranges.len());
            let wanted = ranges[from..ranges.len().min(from + count)].iter().copied().collect();
            receiver(i, down, wanted, (group < 2).then_some(["d0", "d1", "", ""][usize::from(group)]))
        });
        Problem {
            senders: senders.map(|(i, (runs, &up))| sender(i, up, RangeSet::from_ranges(runs))).collect(),
            receivers: receivers.collect(),
            ..Problem::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The bound is the quotient of a set, so nothing beats it; the plan meets it, so it is the optimum.
    #[test]
    fn plans_meet_their_bounds(problem in many(), cap in proptest::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..10_000_u64))) {
        let mut problem = problem;
        if let Some((from, to, cap)) = cap {
            let (sender, receiver) = (from.index(problem.senders.len()), to.index(problem.receivers.len()));
            problem.pair_caps = vec![PairCap { sender, receiver, cap }];
        }
        let found = bound(&problem).unwrap();
        prop_assert!(found.is_exact);
        let plan = Optimal.plan_certified(&problem).unwrap();
        verify(&problem, &plan.schedule).unwrap();
        let loads = plan.schedule.loads(&problem);
        let senders = loads.senders.iter().zip(problem.senders.iter().map(|s| s.up));
        let receivers = loads.receivers.iter().zip(problem.receivers.iter().map(|r| r.down));
        let pairs = loads.pairs.iter().zip(problem.pair_caps.iter().map(|p| p.cap));
        for (load, speed) in senders.chain(receivers).chain(pairs) {
            let room = speed as f64 * found.seconds * (1.0 + 1e-6) + 4.0;
            prop_assert!(*load as f64 <= room, "{load} at {speed} in {}", found.seconds);
        }
        prop_assert!(plan.bound_seconds <= plan.seconds * (1.0 + 1e-9));
        let fast = Fast.plan_certified(&problem).unwrap();
        verify(&problem, &fast.schedule).unwrap();
        prop_assert!(fast.bound_seconds <= found.seconds * (1.0 + 1e-9));
        prop_assert!(fast.seconds >= found.seconds * (1.0 - 1e-9));
        // Speeds from 1 to a million converge slowly, with links more so, and a byte weighs much at 1 byte a
        // second.
        let slowest = problem.senders.iter().map(|s| s.up).chain(problem.receivers.iter().map(|r| r.down)).min();
        let slack = 4.0 / slowest.unwrap() as f64;
        prop_assert!(problem.has_links() || fast.seconds <= 2.0 * found.seconds + slack, "{} s, least {found:?}", fast.seconds);
    }
}
