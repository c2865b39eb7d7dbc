//! Rounding where there are far more classes than bytes in each.

use proptest::prelude::*;
use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::range::{Range, RangeSet};
use ropewalk_model::schedule::verify;
use ropewalk_sched::{Greedy, Scheduler, Uniform};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Nodes stay within 4 bytes of their fluid share though each of many classes rounds anew.
    #[test]
    fn rounding_does_not_add_up(
        holders in proptest::collection::vec((any::<u64>(), 1..6u64), 200..1000),
        ups in proptest::collection::vec(1..50u64, 2..40),
        takers in proptest::collection::vec(1..50u64, 1..6),
        seed in any::<u64>(),
    ) {
        let mut senders: Vec<Sender> = ups.iter().enumerate().map(|(i, &up)| Sender {
            name: format!("w{i}"), up, ranges: RangeSet::new(),
        }).collect();
        let mut receivers: Vec<Receiver> = takers.iter().enumerate().map(|(i, &down)| Receiver {
            name: format!("r{i}"), down, destination: Some("d".to_owned()), ..Receiver::default()
        }).collect();
        let mut start = 0;
        let mut runs = (vec![Vec::new(); senders.len()], vec![Vec::new(); receivers.len()]);
        for (index, (mask, len)) in holders.into_iter().enumerate() {
            let range = Range::new(start, start + len);
            start += len;
            let must = index % senders.len();
            for (i, runs) in runs.0.iter_mut().enumerate() {
                if i == must || mask >> (i % 64) & 1 == 1 { runs.push(range); }
            }
            let other = seed.rotate_left(index as u32) ^ mask.wrapping_mul(0x9e37_79b9);
            let must = index % receivers.len();
            for (i, runs) in runs.1.iter_mut().enumerate() {
                if i == must || other >> i & 1 == 1 { runs.push(range); }
            }
        }
        for (sender, runs) in senders.iter_mut().zip(runs.0) { sender.ranges = runs.into_iter().collect(); }
        for (receiver, runs) in receivers.iter_mut().zip(runs.1) { receiver.ranges = runs.into_iter().collect(); }
        let problem = Problem { senders, receivers, ..Problem::default() };
        for scheduler in [&Greedy as &dyn Scheduler, &Uniform] {
            let plan = scheduler.plan(&problem).unwrap();
            verify(&problem, &plan).unwrap();
            let seconds = scheduler.fluid_seconds(&problem).unwrap();
            let loads = plan.loads(&problem);
            let loads = loads.senders.iter().zip(&ups).chain(loads.receivers.iter().zip(&takers));
            for (load, speed) in loads {
                let over = *load as f64 - seconds * *speed as f64;
                prop_assert!(over <= 4.0, "{}: {over} bytes over", scheduler.name());
            }
        }
    }
}
