//! The table of states and inputs, and what a report vouches for.

use ropewalk_model::{CHUNK_LEN, Instant, Nanos, Range};

use super::fetch::Take;
use super::*;
use crate::control::{Peer, Run, to_agent};
use crate::wire::HeldRange;

const START: Instant = Instant::ZERO;
const SECOND: Nanos = Nanos::from_secs(1);

/// The unit around an offset.
pub(super) fn unit_at(offset: u64) -> Range {
    let start = offset / CHUNK_LEN * CHUNK_LEN;
    Range::new(start, start + CHUNK_LEN)
}

/// As announced by one that does not say where it has them from.
pub(super) fn held(ranges: &[Range]) -> Vec<HeldRange> {
    let held = |range: &Range| HeldRange {
        range: *range,
        origin: None,
    };
    ranges.iter().map(held).collect()
}

fn run(unit: u64) -> Run {
    Run {
        start: unit * CHUNK_LEN,
        length: CHUNK_LEN,
        sender: 1,
        ..Run::default()
    }
}

fn plan() -> Plan {
    Plan {
        peers: vec![Peer {
            node: 1,
            name: "a".into(),
            ..Peer::default()
        }],
        runs: vec![run(0)],
        commit: true,
        ..Plan::default()
    }
}

fn revision(number: u32, runs: Vec<Run>) -> Revision {
    Revision {
        number,
        runs,
        ..Revision::default()
    }
}

const DUTIES: Duties = Duties {
    renames: true,
    names_early: false,
    reads_back: true,
    syncs: Syncs {
        every: SECOND,
        bytes: 10 * CHUNK_LEN,
    },
};

/// What can happen to a node.
#[derive(Clone, Copy, Debug)]
enum Input {
    Prepared,
    Received,
    Asked,
    Synced,
    NotSynced,
    ReadBack,
    Renamed,
    Failed,
    Reported,
    MoreWork,
    OtherRevision,
    Ended,
}

use Input::*;

const INPUTS: [Input; 12] = [
    Prepared,
    Received,
    Asked,
    Synced,
    NotSynced,
    ReadBack,
    Renamed,
    Failed,
    Reported,
    MoreWork,
    OtherRevision,
    Ended,
];

struct Bench {
    node: Node,
    now: Instant,
    promise: Promise,
    units: u64,
}

impl Bench {
    fn new() -> Self {
        let fetch = Receiving::new(4 << 20, 1, START);
        let first = Plan {
            revision: 1,
            ..plan()
        };
        let streams = Streams::new(&Wish::default());
        let node = Node::new(fetch, streams, &first, DUTIES, START);
        let promise = Durable::new(DUTIES.syncs, START).promise(0);
        Self {
            node,
            now: START,
            promise,
            units: 1,
        }
    }

    /// All wanted units.
    fn receive(&mut self) {
        while let Take::Units(units) = self.node.fetch_mut().take(LaneId(0), 0, self.now, &unit_at)
        {
            for unit in units {
                let fetch = self.node.fetch_mut();
                fetch.handle_unit(LaneId(0), unit.range, None, self.now);
            }
        }
        while self.node.poll_event(self.now).is_some() {}
    }

    fn apply(&mut self, input: Input) -> Life {
        let node = &mut self.node;
        match input {
            Prepared => node.handle_prepared(&plan(), self.now, &unit_at),
            Received if node.life() == Life::Preparing => {}
            Received => self.receive(),
            Asked => {
                if let Task::Sync(promise) = node.next_task(self.now) {
                    self.promise = promise;
                }
            }
            Synced => node.handle_synced(self.promise, Ok(()), self.now),
            NotSynced => node.handle_synced(self.promise, Err("disk".into()), self.now),
            ReadBack => node.handle_read_back(Ok(())),
            Renamed => node.handle_renamed(Ok(())),
            Failed => node.handle_failed(Failure::Other("memory".into())),
            Reported => drop(node.take_done(self.now)),
            MoreWork => {
                self.units += 1;
                node.handle_revision(&revision(2, vec![run(self.units - 1)]), self.now);
            }
            OtherRevision => node.handle_revision(&revision(3, Vec::new()), self.now),
            Ended => node.handle_end(End::default()),
        }
        self.node.life()
    }

    fn after(inputs: &[Input]) -> Self {
        let mut bench = Self::new();
        for input in inputs {
            bench.apply(*input);
        }
        bench
    }
}

/// The shortest way to each state.
const WAYS: [(Life, &[Input]); 9] = [
    (Life::Preparing, &[]),
    (Life::Fetching, &[Prepared]),
    (Life::Settling, &[Prepared, Received, Asked]),
    (Life::Checking, &[Prepared, Received, Asked, Synced]),
    (
        Life::Renaming,
        &[Prepared, Received, Asked, Synced, ReadBack],
    ),
    (
        Life::Concluded,
        &[Prepared, Received, Asked, Synced, ReadBack, Renamed],
    ),
    (
        Life::Done,
        &[
            Prepared, Received, Asked, Synced, ReadBack, Renamed, Reported,
        ],
    ),
    (Life::Failed, &[Failed, Reported]),
    (Life::Ended, &[Ended]),
];

/// Every input in every state, the ones that change nothing included.
#[test]
fn table_of_states_and_inputs() {
    let mut table = String::new();
    for (life, way) in WAYS {
        assert_eq!(Bench::after(way).node.life(), life);
        for input in INPUTS {
            let next = Bench::after(way).apply(input);
            if next != life {
                table += &format!("{life:?} {input:?} -> {next:?}\n");
            }
        }
    }
    let expected = "\
Preparing Prepared -> Fetching
Preparing Ended -> Ended
Fetching Ended -> Ended
Settling Synced -> Checking
Settling MoreWork -> Fetching
Settling Ended -> Ended
Checking ReadBack -> Renaming
Checking MoreWork -> Fetching
Checking Ended -> Ended
Renaming Renamed -> Concluded
Renaming MoreWork -> Fetching
Renaming Ended -> Ended
Concluded Reported -> Done
Concluded MoreWork -> Fetching
Concluded Ended -> Ended
Done MoreWork -> Fetching
Done Ended -> Ended
Failed Ended -> Ended
";
    assert_eq!(table, expected, "\n{table}");
}

/// A failure is reported once, from every state in which nothing was; a complete node stays complete.
#[test]
fn failures_are_reported_once() {
    for (life, way) in WAYS {
        let mut bench = Bench::after(way);
        bench.apply(Failed);
        let is_past = matches!(life, Life::Done | Life::Failed | Life::Ended);
        let is_asked = matches!(life, Life::Preparing);
        if !is_past && !is_asked {
            assert_eq!(bench.node.next_task(START), Task::Report, "{life:?}");
        }
        let done = bench.node.take_done(START);
        assert_eq!(done.is_some(), !is_past, "{life:?}");
        assert!(done.is_none_or(|done| done.error == "memory"));
        assert_eq!(bench.node.take_done(START), None);
        if life != Life::Ended {
            assert_eq!(bench.node.next_task(START), Task::Wait(None), "{life:?}");
        }
    }
}

/// A sync vouches for what was there when it began; work that a revision brings meanwhile is synced before the report.
#[test]
fn reports_vouch_for_what_was_synced() {
    let mut bench = Bench::after(&[Prepared, Received, Asked]);
    bench.apply(MoreWork);
    bench.receive();
    assert_eq!(bench.apply(Synced), Life::Fetching);
    assert_eq!(bench.node.safe_bytes(), CHUNK_LEN);
    assert_eq!(bench.node.take_done(START), None);
    for input in [Asked, Synced, ReadBack, Renamed] {
        bench.apply(input);
    }
    let done = bench.node.take_done(START).unwrap();
    assert_eq!(
        (done.delivered, done.revision, done.committed),
        (2 * CHUNK_LEN, 2, true)
    );
    // Not renamed again.
    bench.apply(MoreWork);
    bench.receive();
    for input in [Asked, Synced, ReadBack] {
        bench.apply(input);
    }
    assert_eq!(bench.node.life(), Life::Concluded);
}

/// The last sync is recorded where others have still to write: not where this node's own names follow.
#[test]
fn the_last_sync_is_recorded_where_no_names_follow() {
    for renames in [true, false] {
        let mut bench = Bench::new();
        bench.node.duties.renames = renames;
        bench.apply(Prepared);
        assert_eq!(bench.node.to_record(), Some(Settled::default()));
        bench.receive();
        assert_eq!(bench.apply(Asked), Life::Settling);
        let all = RangeSet::from(Range::new(0, CHUNK_LEN));
        let recorded = bench.node.to_record().map(|settled| settled.bytes);
        assert_eq!(recorded, (!renames).then_some(all));
        bench.apply(Synced);
        assert_eq!(bench.node.to_record(), None);
    }
}

/// Received bytes wait a second for a sync, or until there are many; what is safe waits for nothing.
#[test]
fn syncs_are_due_in_time() {
    let mut bench = Bench::after(&[Prepared]);
    assert_eq!(bench.node.next_task(START), Task::Wait(None));
    bench.apply(MoreWork);
    let Take::Units(units) = bench.node.fetch_mut().take(LaneId(0), 0, START, &unit_at) else {
        panic!("nothing to fetch")
    };
    let fetch = bench.node.fetch_mut();
    fetch.handle_unit(LaneId(0), units[0].range, None, START);
    assert_eq!(
        bench.node.next_task(START),
        Task::Wait(Some(START + SECOND))
    );
    let Task::Sync(promise) = bench.node.next_task(START + SECOND) else {
        panic!("no sync is due")
    };
    bench
        .node
        .handle_synced(promise, Ok(()), START + SECOND * 2);
    assert_eq!(bench.node.next_task(START + SECOND * 2), Task::Wait(None));
    for unit in 3..14 {
        let now = START + SECOND * 2;
        let more = revision(unit as u32, vec![run(unit)]);
        bench.node.handle_revision(&more, now);
    }
    bench.receive();
    let more = revision(20, vec![run(20)]);
    bench.node.handle_revision(&more, START + SECOND * 2);
    assert!(matches!(
        bench.node.next_task(START + SECOND * 2),
        Task::Sync(_)
    ));
}

/// A node whose master is gone goes on as long as bytes come, and then finishes what it has; where there is nothing to go on with, where
/// it has failed, where other nodes write the same copy, and where another transfer would not see it, it ends at once.
#[test]
fn a_node_without_a_master_ends() {
    let gone = START + SECOND * 100;
    for (life, way) in WAYS {
        let mut bench = Bench::after(way);
        assert_eq!(bench.node.grace_over_at(), None, "{life:?}");
        bench.node.handle_master_gone(gone);
        // A second call, as of a second broken connection, gives no more time.
        bench.node.handle_master_gone(gone + SECOND * 20);
        let more = match life {
            Life::Fetching => STILL_TIME,
            Life::Settling | Life::Checking | Life::Renaming => GRACE_TIME,
            _ => Nanos::ZERO,
        };
        assert_eq!(bench.node.grace_over_at(), Some(gone + more), "{life:?}");
        bench.node.handle_failed(Failure::Other("disk".into()));
        assert_eq!(bench.node.grace_over_at(), Some(gone), "{life:?}");
    }
    let mut bench = Bench::after(&[Prepared]);
    bench.apply(MoreWork);
    bench.node.handle_master_gone(gone);
    bench.now = gone + SECOND * 3;
    let Take::Units(units) = bench
        .node
        .fetch_mut()
        .take(LaneId(0), 0, bench.now, &unit_at)
    else {
        panic!("nothing to fetch")
    };
    let (unit, now) = (units[0].range, bench.now);
    bench
        .node
        .fetch_mut()
        .handle_unit(LaneId(0), unit, None, now);
    assert_eq!(bench.node.grace_over_at(), Some(now + STILL_TIME));
    bench.node.duties.renames = false;
    assert_eq!(bench.node.grace_over_at(), Some(gone));
    bench.node.duties.renames = true;
    bench.node.handle_unseen();
    assert_eq!(bench.node.grace_over_at(), Some(gone));
}

/// Revisions that arrive while sinks are being made count once the plan does.
#[test]
fn early_revisions_wait_for_the_plan() {
    let mut bench = Bench::after(&[MoreWork, Prepared]);
    assert_eq!(bench.node.fetch().ledger().wanted_bytes(), 2 * CHUNK_LEN);
    bench.receive();
    for input in [Asked, Synced, ReadBack, Renamed] {
        bench.apply(input);
    }
    assert_eq!(bench.node.take_done(START).unwrap().revision, 2);
}

/// What vouches for nothing lets no file be renamed when the transfer ends early; what is missing, or being written, is left
/// out.
#[test]
fn files_are_renamed_where_the_rest_is_sound() {
    let missing = |inputs: &[Input]| Bench::after(inputs).node.missing_of_rename();
    let whole: &[Input] = &[Prepared, Received, Asked, Synced, ReadBack];
    let done: &[Input] = &[
        Prepared, Received, Asked, Synced, ReadBack, Renamed, Reported,
    ];
    assert_eq!(missing(&[]), None, "its sinks are not made");
    assert_eq!(missing(&[Prepared, Received]), None, "not read back");
    assert_eq!(missing(whole), None, "being renamed");
    assert_eq!(missing(done), Some(RangeSet::new()));
    let reason = || "disk".to_owned();
    for failure in [
        Failure::Refused,
        Failure::Hindered,
        Failure::Differs,
        Failure::Sink,
    ] {
        let failure = failure(reason());
        let mut bench = Bench::after(&[Prepared]);
        bench.node.duties.reads_back = false;
        bench.node.handle_failed(failure);
        assert_eq!(bench.node.missing_of_rename(), None);
    }
    let mut bench = Bench::after(&[Prepared]);
    bench.node.duties.reads_back = false;
    bench.node.handle_failed(Failure::Other(reason()));
    let all = RangeSet::from(Range::new(0, CHUNK_LEN));
    assert_eq!(bench.node.missing_of_rename(), Some(all.clone()));
    bench.receive();
    assert_eq!(bench.node.missing_of_rename(), Some(RangeSet::new()));
    // A late copy that is being written when the first one is counted.
    let mut bench = Bench::after(&[Prepared]);
    bench.node.duties.reads_back = false;
    let writer = super::fetch::Writer {
        lane: LaneId(0),
        stream: 1,
    };
    let unit = Range::new(0, CHUNK_LEN);
    assert!(bench.node.fetch_mut().begin_write(writer, unit));
    bench.receive();
    assert_eq!(bench.node.missing_of_rename(), Some(all));
    bench.node.fetch_mut().end_write(writer, unit);
    assert_eq!(bench.node.missing_of_rename(), Some(RangeSet::new()));
}

/// What a node that has failed lacks is all that is not safe, whether it was received or not.
#[test]
fn what_is_not_safe_is_missing() {
    let missing = |inputs: &[Input]| {
        let mut bench = Bench::after(inputs);
        let done = bench.node.take_done(START).unwrap();
        let missing = control::range_set(&done.missing).len_bytes();
        (missing, done.delivered)
    };
    let of = |inputs: &[Input]| missing(&[&[Prepared], inputs].concat());
    assert_eq!(of(&[Failed]), (CHUNK_LEN, 0));
    assert_eq!(of(&[Received, Failed]), (CHUNK_LEN, 0));
    assert_eq!(of(&[Received, Asked, NotSynced]), (CHUNK_LEN, 0));
    assert_eq!(of(&[Received, Asked, Synced, Failed]), (0, CHUNK_LEN));
}

/// A journal gets what is settled, each hash once, and nothing of contents that are wrong.
#[test]
fn only_what_is_settled_is_recorded() {
    let mut bench = Bench::after(&[Prepared]);
    let writer = super::fetch::Writer {
        lane: LaneId(0),
        stream: 1,
    };
    let unit = Range::new(0, CHUNK_LEN);
    let digest = Some([7; 32]);
    let fetch = bench.node.fetch_mut();
    assert!(fetch.begin_write(writer, unit));
    assert!(matches!(
        fetch.take(LaneId(0), 0, START, &unit_at),
        Take::Units(_)
    ));
    assert!(fetch.handle_unit(LaneId(0), unit, digest, START));
    // Another stream writes it still, and may write other bytes.
    assert_eq!(bench.node.to_record(), Some(Settled::default()));
    bench.node.fetch_mut().end_write(writer, unit);
    let mut settled = Settled {
        bytes: RangeSet::from(unit),
        units: vec![(unit, [7; 32])],
    };
    assert_eq!(bench.node.to_record(), Some(settled.clone()));
    settled.units.clear();
    assert_eq!(bench.node.to_record(), Some(settled));
    assert!(!bench.node.is_wrong());
    // The first failure is another one.
    bench.node.handle_failed(Failure::Other("disk".into()));
    let difference = Difference {
        range: unit,
        groups: vec![vec!["a".into()], vec!["b".into()]],
    };
    bench.node.handle_difference(&difference, "f");
    assert_eq!(
        (bench.node.to_record(), bench.node.is_wrong()),
        (None, true)
    );
    let mut bench = Bench::after(&[Prepared, Received, Asked, Synced]);
    bench.node.handle_read_back(Err("differs".into()));
    assert!(bench.node.is_wrong());
}

/// A copy of which something was read that was not received is not complete, also where that shows after it was reported to be.
#[test]
fn a_copy_that_rots_is_not_complete() {
    let mut bench = Bench::after(&[Prepared, Received]);
    bench.node.handle_rotten("f");
    assert_eq!(
        (bench.node.held().ranges, bench.node.late_failure()),
        (RangeSet::new(), None)
    );
    let done = bench.node.take_done(START).expect("a report");
    assert!(
        done.error.starts_with("f is not what was received"),
        "{}",
        done.error
    );
    let mut bench = Bench::after(&[
        Prepared, Received, Asked, Synced, ReadBack, Renamed, Reported,
    ]);
    assert_eq!(bench.node.late_failure(), None);
    bench.node.handle_rotten("f");
    assert!(bench.node.late_failure().is_some());
}

/// A node whose plan has a permit changes nothing shared after it, until a message extends it; one whose plan has none needs none.
#[test]
fn permits_end_and_are_extended() {
    let permit = |at: Instant| control::Permit {
        at: at.0,
        left: PERMIT_TIME.0,
    };
    let after = START + PERMIT_TIME + SECOND;
    for is_shared in [true, false] {
        let plan = Plan {
            permit: is_shared.then(|| permit(START)),
            ..plan()
        };
        let fetch = Receiving::new(1 << 30, 1, START);
        let mut node = Node::new(fetch, Streams::new(&Wish::default()), &plan, DUTIES, START);
        assert!(node.may_change_shared(START + SECOND));
        assert_eq!(node.may_change_shared(after), !is_shared);
        let message = to_agent::Body::Permit(permit(after));
        node.handle_message(&message, after, &unit_at);
        assert!(node.may_change_shared(after));
        assert!(!node.may_change_shared(after + PERMIT_TIME + SECOND));
    }
}

/// A limit that changes, or is removed, while the sinks are made is not replaced by that of the plan, which is older.
#[test]
fn the_latest_limit_counts() {
    // Each unit takes a second.
    for (planned, changed, waits) in [
        (CHUNK_LEN, None, true),
        (CHUNK_LEN, Some(0), false),
        (0, Some(CHUNK_LEN), true),
    ] {
        let plan = Plan {
            limit: planned,
            runs: vec![run(0), run(1), run(2)],
            ..plan()
        };
        let fetch = Receiving::new(1 << 30, 1, START);
        let mut node = Node::new(fetch, Streams::new(&Wish::default()), &plan, DUTIES, START);
        if let Some(rate) = changed {
            let limit = to_agent::Body::Limit(control::Limit { rate });
            assert!(node.handle_message(&limit, START, &unit_at).is_none());
        }
        // What is not used meanwhile is not saved up.
        let now = START + SECOND;
        node.handle_prepared(&plan, now, &unit_at);
        let waited = loop {
            match node.fetch_mut().take(LaneId(0), 0, now, &unit_at) {
                Take::Units(_) => {}
                Take::Wait(until) => break until.is_some(),
                Take::Closed => break false,
            }
        };
        assert_eq!(waited, waits, "{planned} {changed:?}");
    }
}
