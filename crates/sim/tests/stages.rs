//! Streams in virtual time, with the machines that processes and masters run.

use std::collections::BTreeMap;

use ropewalk_model::Nanos;
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::run::Cause;
use ropewalk_sim::{StageScenario, run_stages};

fn scenario() -> StageScenario {
    StageScenario {
        nodes: 3,
        groups: 4,
        blocks: 2000,
        block: 64 << 10,
        buffers: 24,
        work: Nanos(20_000),
        slow: BTreeMap::new(),
        delay: (Nanos(10_000), Nanos(200_000)),
        kill: None,
        deal: Deal::Random,
        seed: 1,
    }
}

/// Every stream ends with equal accounts and within its buffers, whatever the seed, also with fewer buffers than edges.
#[test]
fn streams_end_under_random_delays() {
    for seed in 0..20 {
        let scenario = StageScenario {
            seed,
            blocks: 300,
            buffers: [2, 3, 5, 24][seed as usize % 4],
            ..scenario()
        };
        let ended = run_stages(&scenario);
        assert_eq!(ended.failure, None, "seed {seed}");
        assert!(
            ended.held_max <= scenario.buffers,
            "seed {seed}: {}",
            ended.held_max
        );
        let blocks = |group: usize| {
            ended.accounts[group * 3..][..3]
                .iter()
                .map(|one| one.blocks)
                .sum::<u64>()
        };
        assert_eq!(
            [blocks(0), blocks(1), blocks(2), blocks(3)],
            [900; 4],
            "seed {seed}"
        );
    }
}

/// The same seed gives the same run.
#[test]
fn seeds_replay() {
    assert_eq!(run_stages(&scenario()), run_stages(&scenario()));
    let other = StageScenario {
        seed: 2,
        ..scenario()
    };
    assert_ne!(run_stages(&scenario()).time, run_stages(&other).time);
}

/// One last process that takes ten times as long slows all, as far as the first: random deals send a third of all blocks there.
/// Its k inputs settle near a k-th of its rate, and memory stays bounded.
#[test]
fn a_slow_last_process_slows_the_first() {
    let slow = StageScenario {
        // 2000 blocks a second; the others 50000.
        slow: BTreeMap::from([((3, 0), Nanos(500_000))]),
        // Much more than all buffers hold.
        blocks: 12_000,
        ..scenario()
    };
    let ended = run_stages(&slow);
    assert_eq!(ended.failure, None);
    let (time, accounts) = ended.halfway.unwrap();
    let rate = |place: usize| accounts[place].blocks as f64 / time.as_seconds();
    // All last processes receive what the slow one takes, and no more is on the way than buffers hold.
    for last in 9..12 {
        assert!((rate(last) / 2000.0 - 1.0).abs() < 0.1, "{}", rate(last));
    }
    let blocks = |group: usize| {
        accounts[group * 3..][..3]
            .iter()
            .map(|one| one.blocks)
            .sum::<u64>()
    };
    assert!(blocks(0) - blocks(3) <= 3 * 3 * slow.buffers as u64);
    assert!(ended.held_max <= slow.buffers);
    let free = StageScenario {
        slow: BTreeMap::new(),
        ..slow
    };
    let free = run_stages(&free).halfway.unwrap().0;
    assert!(time.as_seconds() > 5.0 * free.as_seconds());
}

/// A killed process is the one that the master names, though its peers report first.
#[test]
fn a_killed_process_is_named() {
    for seed in 0..10 {
        for group in 0..4 {
            let scenario = StageScenario {
                kill: Some((Nanos::from_millis(3), group, 1)),
                delay: (Nanos(10), Nanos(2000)),
                seed,
                ..scenario()
            };
            let ended = run_stages(&scenario);
            let failure = ended.failure.unwrap();
            let place = (failure.cause, failure.group, failure.node);
            assert_eq!(place, (Cause::Process, Some(group), Some(1)), "seed {seed}");
            assert!(ended.time < Nanos::from_millis(600));
        }
    }
}

/// Blocks of numbered deals go to the process with the remainder of their number, whatever delays them.
#[test]
fn numbered_blocks_have_one_process() {
    for seed in 0..5 {
        let scenario = StageScenario {
            groups: 2,
            blocks: 301,
            buffers: 7,
            deal: Deal::Numbered,
            seed,
            ..scenario()
        };
        let ended = run_stages(&scenario);
        assert_eq!(ended.failure, None);
        let blocks: Vec<u64> = ended.accounts[3..].iter().map(|one| one.blocks).collect();
        // Of 301 numbers 101 have no remainder.
        assert_eq!(blocks, [303, 300, 300]);
    }
}
