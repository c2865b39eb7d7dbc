//! When files are named before the end, and how long writes wait for space.

use ropewalk_model::{CHUNK_LEN, RangeSet};

use super::*;
use crate::control::{Holding, Peer, Revision, Run, Stretch};
use crate::ledger::LaneId;
use crate::node::fetch::Receiving;
use crate::node::tests::unit_at;
use crate::node::{Duties, Event, Failure, Link, Step, StreamId, Streams, Syncs, Task, Wish};

const START: Instant = Instant::ZERO;

fn run(first: u64, units: u64, spares: &[u32]) -> Run {
    Run {
        start: first * CHUNK_LEN,
        length: units * CHUNK_LEN,
        sender: 1,
        spares: spares.to_vec(),
        ..Run::default()
    }
}

fn plan(spares: &[u32]) -> Plan {
    let peer = |node| Peer {
        node,
        ..Peer::default()
    };
    Plan {
        peers: vec![peer(1), peer(2)],
        runs: vec![run(0, 8, spares)],
        commit: true,
        whole_files: true,
        ..Plan::default()
    }
}

fn node(plan: &Plan, compare: Compare, reads_back: bool) -> Node {
    let mut fetch = Receiving::new(4 << 20, 1, START);
    fetch.compare(compare, 1);
    let streams = Streams::new(&Wish {
        given: Some(2),
        ..Wish::default()
    });
    let duties = Duties {
        renames: true,
        names_early: gives_names_early(plan, compare, reads_back),
        reads_back,
        syncs: Syncs::default(),
    };
    let mut node = Node::new(fetch, streams, plan, duties, START);
    assert!(!node.names_whole_files(), "its sinks are not made");
    node.handle_prepared(plan, START, &unit_at);
    node
}

/// Files are named early where nothing that is found later can take them back, and another node has no part in it.
#[test]
fn where_files_are_named_early() {
    use Compare::{Nothing, Sample, Whole};
    let holding = |node, start| Holding {
        node,
        ranges: vec![Stretch { start, length: 10 }],
    };
    let held = |starts: [u64; 2]| Plan {
        holdings: vec![holding(1, starts[0]), holding(2, starts[1])],
        ..plan(&[])
    };
    for (plan, compare, reads_back, expected) in [
        (plan(&[]), Sample, false, true),
        (plan(&[1]), Sample, false, true),
        (plan(&[]), Sample, true, false),
        (plan(&[2]), Sample, false, false),
        (plan(&[2]), Nothing, false, true),
        (held([0, 10]), Whole, false, true),
        (held([0, 9]), Whole, false, false),
        (
            Plan {
                commit: false,
                ..plan(&[])
            },
            Sample,
            false,
            false,
        ),
        (
            Plan {
                whole_files: false,
                ..plan(&[])
            },
            Sample,
            false,
            false,
        ),
    ] {
        assert_eq!(gives_names_early(&plan, compare, reads_back), expected);
        assert_eq!(
            node(&plan, compare, reads_back).names_whole_files(),
            expected
        );
    }
    let mut failed = node(&plan(&[]), Sample, false);
    failed.handle_failed(Failure::Other("disk".into()));
    assert!(!failed.names_whole_files());
    let mut new = node(&plan(&[]), Sample, false);
    new.keep_names_for_the_end();
    assert!(!new.names_whole_files());
    // Another holder joins, and is compared.
    let mut joined = node(&plan(&[]), Sample, false);
    let revision = Revision {
        number: 1,
        runs: vec![run(4, 4, &[2])],
        ..Revision::default()
    };
    joined.handle_revision(&revision, START);
    assert!(!joined.names_whole_files());
}

/// The stream has these units to receive.
fn grant(node: &mut Node, number: u32) -> Vec<(u32, Range)> {
    let lane = LaneId(0);
    let id = StreamId { lane, number };
    loop {
        match node.next_step(id, START, &unit_at) {
            Step::Find => drop(node.handle_found(id, Link::default(), START, &unit_at)),
            Step::Open => node.handle_opened(id, START),
            Step::Grant(units) => return units,
            step => panic!("{step:?}"),
        }
    }
}

fn sync(node: &mut Node, now: Instant, named: u64) {
    let Task::Sync(promise) = node.next_task(now) else {
        panic!("no sync is due")
    };
    node.handle_named(named);
    node.handle_synced(promise, Ok(()), now);
}

/// A write that finds no space waits for the names after a sync that begins later; it is given up when such a round gained nothing and
/// no stream receives anything any more.
#[test]
fn writes_wait_for_names() {
    let mut node = node(&plan(&[]), Compare::Nothing, false);
    let started = std::iter::from_fn(|| node.poll_event(START));
    assert!(
        started
            .into_iter()
            .any(|event| matches!(event, Event::Start(_)))
    );
    let writer = |stream| Writer {
        lane: LaneId(0),
        stream,
    };
    let unit = grant(&mut node, 0)[0].1;
    let first = node.handle_full(writer(0), unit, None).unwrap();
    assert!(!node.is_space_seen(writer(0), &first));
    // At once, though nothing was received.
    let Task::Sync(promise) = node.next_task(START) else {
        panic!("no sync is due")
    };
    // What was received since it began is named in the next round only.
    let late = node.handle_full(writer(1), unit, None).unwrap();
    node.handle_named(2);
    node.handle_synced(promise, Ok(()), START);
    assert!(node.is_space_seen(writer(0), &first) && !node.is_space_seen(writer(1), &late));
    // Others have taken that space: names were given, so there may be more.
    let again = node.handle_full(writer(0), unit, Some(first)).unwrap();
    let due = START + SPACE_PAUSE;
    assert_eq!(node.next_task(START), Task::Wait(Some(due)));
    sync(&mut node, due, 0);
    assert!(node.is_space_seen(writer(0), &again) && node.is_space_seen(writer(1), &late));
    // Another stream has space, and may bring the rest of a file.
    let other = grant(&mut node, 1)[0].1;
    let third = node.handle_full(writer(0), unit, Some(again)).unwrap();
    sync(&mut node, due + SPACE_PAUSE, 0);
    assert!(node.is_space_seen(writer(0), &third));
    // It has none any more.
    let fourth = node.handle_full(writer(1), other, None).unwrap();
    assert_eq!(node.handle_full(writer(0), unit, Some(third)), None);
    assert_ne!(fourth, third);
    // A write that is not needed any more is tried again, which shows that.
    let fetch = node.fetch_mut();
    fetch.handle_unit(LaneId(0), unit, None, START);
    let seen = node.handle_full(writer(0), unit, Some(third)).unwrap();
    assert!(node.is_space_seen(writer(0), &seen));
    // Nothing is named after a failure.
    node.handle_failed(Failure::Other("disk".into()));
    assert_eq!(node.handle_full(writer(1), other, None), None);
    assert!(node.is_space_seen(writer(1), &fourth));
    assert_eq!(
        node.fetch()
            .missing()
            .intersection(&RangeSet::from(unit))
            .len_bytes(),
        0
    );
}
