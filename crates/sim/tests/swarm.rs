//! Copies of trees to disks, each from a seed: nodes, rates, files, and faults; then the same copy again, until it is complete.
//!
//! Nothing is lost and nothing invented, what counts as safe is on stable storage whenever a host loses its power, what is safe is not
//! sent again, and each copy is complete in the end. `ROPEWALK_SEEDS=n` runs so many seeds, `ROPEWALK_SEED=n` one of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Disk, TreeFile};

mod drawn;
use drawn::Job;

/// Seeds of a run of the tests.
const SEEDS: u64 = 5000;

/// What happened in a swarm: a test that tests nothing passes as well.
#[derive(Debug, Default)]
struct Seen {
    transfers: u64,
    done: u64,
    masters_lost: u64,
    // Copies that were completed without one.
    outlasted: u64,
    adopted_bytes: u64,
    temporary: u64,
    handed_on_bytes: u64,
    // Transfers in which receivers handed on, and had something of an earlier one.
    handed_on_again: u64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds a test runs is no part of what it simulates"
)]
fn seeds() -> (std::ops::Range<u64>, bool) {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    match (number("ROPEWALK_SEED"), number("ROPEWALK_SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, true),
        (None, count) => (0..count.unwrap_or(SEEDS), false),
    }
}

/// Whether what can be adopted was sent again.
fn is_sent_again(
    vouched: &[ropewalk_model::RangeSet],
    received: &ropewalk_model::RangeSet,
) -> bool {
    // Of several leftovers of a file the one of which most is safe is adopted.
    let most = vouched
        .iter()
        .map(|safe| safe.len_bytes())
        .max()
        .unwrap_or(0);
    let mut largest = vouched.iter().filter(|safe| safe.len_bytes() == most);
    !largest.any(|safe| safe.intersection(received).is_empty())
}

fn run(seed: u64, seen: &mut Seen) {
    let mut job = Job::new(seed);
    let mut disks: BTreeMap<u32, Disk> = BTreeMap::new();
    // All versions that files had.
    let mut known: Vec<TreeFile> = Vec::new();
    for at in 0..job.transfers {
        let is_last = at + 1 == job.transfers;
        let scenario = job.next(is_last);
        let files = job.files();
        known.extend(files.iter().cloned());
        let before = disks.clone();
        let ended = scenario.run_on(&mut disks);
        let what = format!(
            "transfer {at}: {:?} {:?} after {} s, {:?}",
            ended.outcome, ended.error, ended.seconds, scenario.script
        );
        seen.transfers += 1;
        seen.handed_on_bytes += ended.handed_on_bytes;
        let has_left = |disk: &Disk| disk.temporary().next().is_some();
        let goes_on = before.values().any(has_left) && ended.handed_on_bytes > 0;
        seen.handed_on_again += u64::from(goes_on);
        seen.masters_lost += u64::from(ended.is_master_dead);
        assert!(
            ended.outcome.is_some() || ended.is_master_dead,
            "{what}: it hangs: {:#?}",
            ended.notes
        );
        for (number, disk) in &disks {
            disk.check_journals(&known);
            seen.temporary += u64::from(disk.temporary().next().is_some());
            let Some(before) = before.get(number) else {
                continue;
            };
            let vouched = before.vouched(&files, job.is_read_back());
            for (path, vouched) in vouched {
                seen.adopted_bytes += vouched.iter().map(|safe| safe.len_bytes()).sum::<u64>();
                for received in job
                    .receivers_of(*number)
                    .map(|node| &ended.received[node as usize])
                {
                    let received = received.get(&path).cloned().unwrap_or_default();
                    assert!(
                        !is_sent_again(&vouched, &received),
                        "{what}: {path} on disk {number}: {vouched:?} was safe, {received} was sent"
                    );
                }
            }
        }
        let is_whole = |number: u32| {
            let disk = disks.get(&number);
            disk.is_some_and(|disk| files.iter().all(|file| disk.has(file)))
        };
        seen.outlasted += u64::from(ended.is_master_dead && job.disks().all(is_whole));
        if ended.outcome == Some(Outcome::Done) {
            seen.done += 1;
            for (number, disk) in job.disks().map(|number| (number, &disks[&number])) {
                for file in &files {
                    assert!(disk.has(file), "{what}: disk {number} lacks {}", file.path);
                }
            }
        }
        if is_last {
            assert_eq!(
                ended.outcome,
                Some(Outcome::Done),
                "{what}: {:#?}",
                ended.notes
            );
        }
    }
}

/// See the head of this file.
#[test]
fn copies_are_complete_in_the_end_whatever_fails() {
    let (seeds, is_one) = seeds();
    let mut seen = Seen::default();
    for seed in seeds {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed, &mut seen)));
        if let Err(panic) = ran {
            eprintln!("replay: ROPEWALK_SEED={seed} cargo test -p ropewalk-sim --test swarm");
            resume_unwind(panic);
        }
    }
    println!("{seen:?}");
    let is_enough = seen.done * 3 > seen.transfers
        && [
            seen.masters_lost,
            seen.outlasted,
            seen.adopted_bytes,
            seen.temporary,
            seen.handed_on_bytes,
            seen.handed_on_again * 20,
        ]
        .iter()
        .all(|n| *n > 100);
    assert!(is_enough || is_one, "{seen:?}");
}
