//! Whole transfers: nodes that die, fall silent or run full. Whatever happens, it ends, and says the truth.

use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::control;
use ropewalk_proto::report::Outcome;
use ropewalk_sim::{Chance, Change, Event, MS, SECOND, Scenario, Speed, node};

fn senders_and_receivers(speeds: &[f64], bytes: u64, destination: Option<&str>) -> Scenario {
    let all = Range::new(0, bytes);
    let count = speeds.len();
    let senders = (0..count).map(|at| node(format!("s{at}"), &[all], &[], None));
    let receivers = (0..count).map(|at| node(format!("r{at}"), &[], &[all], destination));
    let both = speeds.iter().chain(speeds);
    Scenario::new(
        senders.chain(receivers).collect(),
        both.map(|&speed| Speed::both(speed)).collect(),
    )
}

/// CEP Figure 6 without hints: slow and fast pairs, nobody told the speeds. Work follows what is seen.
#[test]
fn unequal_pairs_without_hints_come_close_to_the_bound() {
    for (slow, fast) in [(5, 0), (5, 1), (5, 2), (5, 3), (1, 1), (2, 2)] {
        let mut speeds = vec![2.39e6; slow];
        speeds.resize(slow + fast, 23.9e6);
        let bound = 20.0;
        let bytes = (speeds.iter().sum::<f64>() * bound) as u64;
        let ended = senders_and_receivers(&speeds, bytes, Some("out")).run();
        assert_eq!(ended.outcome, Some(Outcome::Done));
        assert_eq!(ended.delivered, RangeSet::from(Range::new(0, bytes)));
        assert!(
            bound > ended.seconds * 0.95,
            "{slow}+{fast}: {} s",
            ended.seconds
        );
    }
}

/// A transfer drawn from a seed: speeds, layout, hints, delays, and up to three deaths, silences and full disks.
struct Drawn {
    scenario: Scenario,
    all: Range,
    is_shared: bool,
    unharmed: bool,
}

fn draw(seed: u64) -> Drawn {
    let mut chance = Chance::new(seed);
    let (senders, receivers) = (1 + chance.below(5) as u32, 1 + chance.below(5) as u32);
    let magnitude = 16 + chance.below(14);
    let bytes = 1 + chance.below(1 << magnitude);
    let destination = (chance.below(4) > 0).then_some("out");
    // The first holds, and wants, all; others may hold or want a part.
    let part = |at: u32, chance: &mut Chance| {
        let start = match at {
            0 => 0,
            _ => chance.below(bytes) * chance.below(2),
        };
        [Range::new(start, bytes)]
    };
    let mut nodes = Vec::new();
    for at in 0..senders {
        nodes.push(node(format!("s{at}"), &part(at, &mut chance), &[], None));
    }
    for at in 0..receivers {
        let wants = part(at, &mut chance);
        nodes.push(node(format!("r{at}"), &[], &wants, destination));
    }
    let count = senders + receivers;
    let speeds = (0..count).map(|_| Speed::both((1 + chance.below(40)) as f64 * 1e6));
    let mut scenario = Scenario::new(nodes, speeds.collect());
    let mut unharmed = true;
    for _ in 0..chance.below(4) {
        let at_ns = chance.below(12_000) * MS;
        let node = chance.below(u64::from(count)) as u32;
        let change = match chance.below(3) {
            0 => Change::Dies,
            1 => Change::PausedUntil(at_ns + chance.below(10) * SECOND),
            _ => Change::Stops,
        };
        unharmed &= match change {
            Change::PausedUntil(_) => true,
            Change::Stops => node < senders,
            _ => false,
        };
        scenario.script.push(Event {
            at_ns,
            node,
            change,
        });
    }
    if chance.below(2) > 0 {
        scenario = scenario.declared();
    }
    scenario.latency_ns = (0..count).map(|_| chance.below(300) * MS).collect();
    scenario.sync_ns = chance.below(3) * chance.below(1000) * MS;
    Drawn {
        scenario,
        all: Range::new(0, bytes),
        is_shared: destination.is_some(),
        unharmed,
    }
}

/// Four thousand seeds: random speeds, layouts, hints, delays, deaths, silences and full disks. A transfer always
/// ends; one that says it is done has every byte in a receiver that lives, and one without faults is done.
#[test]
fn transfers_end_and_tell_the_truth() {
    for seed in 0..4000 {
        let drawn = draw(seed);
        let ended = drawn.scenario.run();
        let outcome = ended.outcome;
        assert!(outcome.is_some(), "seed {seed} hangs: {:#?}", ended.notes);
        let whole = match drawn.is_shared {
            true => ended.delivered == RangeSet::from(drawn.all),
            false => {
                let nodes = drawn.scenario.nodes.iter().zip(&ended.delivered_by_node);
                nodes.into_iter().all(|(setup, delivered)| {
                    let rows = setup.sinks.iter().flat_map(|sink| &sink.sink.rows);
                    let wanted = rows.map(|row| control::range(row.start, row.length));
                    *delivered == RangeSet::from_ranges(wanted)
                })
            }
        };
        if outcome == Some(Outcome::Done) {
            assert!(whole, "seed {seed}: done without all bytes");
            assert_eq!(ended.delivered_bytes, ended.wanted_bytes, "seed {seed}");
        }
        if drawn.unharmed {
            assert_eq!(
                outcome,
                Some(Outcome::Done),
                "seed {seed}: {:#?}",
                ended.notes
            );
        }
    }
}

/// The same scenario gives the same end, to the last message.
#[test]
fn runs_repeat() {
    for seed in [3, 77, 1234] {
        let scenario = draw(seed).scenario;
        assert_eq!(scenario.run(), scenario.run(), "seed {seed}");
    }
}
