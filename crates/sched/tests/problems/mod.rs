//! Random small problems with everything in them, shared by the tests.

use proptest::prelude::*;
use ropewalk_model::class::uncovered;
use ropewalk_model::problem::{PairCap, Problem, Receiver, Sender, Trunk};
use ropewalk_model::range::{Range, RangeSet};

pub const SPACE: u64 = 10;

fn range_set() -> impl Strategy<Value = RangeSet> {
    let run = (0..SPACE, 0..=SPACE).prop_map(|(s, l)| Range::new(s, (s + l).min(SPACE)));
    proptest::collection::vec(run, 0..3).prop_map(RangeSet::from_ranges)
}

pub fn speed() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 9 => 1..40u64]
}

prop_compose! {
    /// Node speeds only; dead nodes, empty ranges and shared destinations among them.
    pub fn nodes()(
        senders in proptest::collection::vec((speed(), range_set()), 1..6),
        receivers in proptest::collection::vec((speed(), range_set(), 0..4u8), 1..6),
        own in any::<bool>(),
    ) -> Problem {
        let senders = senders.into_iter().enumerate().map(|(i, (up, ranges))| Sender {
            name: format!("w{i}"), up, ranges,
        });
        let receivers = receivers.into_iter().enumerate().map(|(i, (down, ranges, group))| Receiver {
            name: format!("r{i}"), down, ranges, relay_up: None,
            destination: (group < 2 && !own).then(|| format!("d{group}")),
        });
        Problem { senders: senders.collect(), receivers: receivers.collect(), ..Problem::default() }
    }
}

prop_compose! {
    /// With caps and trunks, closed ones among them, and trunks that everything crosses.
    pub fn linked()(
        mut problem in nodes(),
        caps in proptest::collection::vec((0..5usize, 0..5usize, speed()), 0..6),
        trunks in proptest::collection::vec((
            proptest::collection::vec(0..5usize, 0..4),
            proptest::collection::vec(0..5usize, 0..4),
            proptest::collection::vec(0..5usize, 0..3),
            speed(),
            0..4u8,
        ), 0..3),
    ) -> Problem {
        let (senders, receivers) = (problem.senders.len(), problem.receivers.len());
        problem.pair_caps = caps.into_iter().map(|(s, r, cap)| PairCap {
            sender: s % senders, receiver: r % receivers, cap,
        }).collect();
        problem.trunks = trunks.into_iter().map(|(from, to, beside, cap, kind)| Trunk {
            name: String::new(),
            senders: if kind == 0 { (0..senders).collect() } else { from.iter().map(|s| s % senders).collect() },
            relays: beside.iter().map(|r| r % receivers).collect(),
            receivers: if kind == 0 { (0..receivers).collect() } else { to.iter().map(|r| r % receivers).collect() },
            cap,
        }).collect();
        problem
    }
}

/// The problem without the wishes that nobody can meet, so that it has a plan.
pub fn coverable(mut problem: Problem) -> Problem {
    let missing = uncovered(&problem);
    for receiver in &mut problem.receivers {
        let name = receiver.destination.as_ref().unwrap_or(&receiver.name);
        if let Some(lacking) = missing.get(name) {
            receiver.ranges = receiver.ranges.difference(lacking);
        }
    }
    assert!(uncovered(&problem).is_empty());
    problem
}

/// The same problem far out and with longer bytes: every offset times `factor` plus `shift`.
pub fn stretched(problem: &Problem, factor: u64, shift: u64) -> Problem {
    let move_set = |set: &RangeSet| -> RangeSet {
        set.iter()
            .map(|r| Range::new(r.start * factor + shift, r.end * factor + shift))
            .collect()
    };
    let mut far = problem.clone();
    for sender in &mut far.senders {
        sender.ranges = move_set(&sender.ranges);
    }
    for receiver in &mut far.receivers {
        receiver.ranges = move_set(&receiver.ranges);
    }
    far
}
