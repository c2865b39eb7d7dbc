use super::*;

fn done(received: u64, dealt: u64) -> Progress {
    let account = |blocks: u64| Account {
        blocks,
        bytes: blocks * 10,
        sum: u128::from(blocks) * 7,
    };
    Progress {
        received: account(received),
        dealt: account(dealt),
        has_ended: true,
        ..Progress::default()
    }
}

fn failure(cause: Cause, node: u32) -> Failure {
    Failure {
        cause,
        node: Some(node),
        group: Some(1),
        message: String::new(),
    }
}

const STALL: Nanos = Nanos::from_secs(60);

fn run(nodes: u32, groups: u32) -> Run {
    Run::new(nodes, groups, Vec::new(), STALL, Instant::ZERO)
}

fn moving() -> Run {
    let mut run = run(2, 3);
    run.handle_opened(Instant::ZERO, 0, 40);
    assert_eq!(run.poll(Instant::ZERO), None);
    run.handle_opened(Instant::ZERO, 1, 60);
    assert_eq!(run.poll(Instant::ZERO), Some(Action::Start));
    assert_eq!(run.poll(Instant::ZERO), None);
    run
}

fn ends(run: &mut Run, last: u64) {
    for (node, group, received, dealt) in [
        (0, 0, 0, 4),
        (1, 0, 0, 6),
        (0, 1, 3, 3),
        (1, 1, 7, 7),
        (0, 2, 5, 0),
        (1, 2, last, 0),
    ] {
        run.handle_progress(Instant::ZERO, node, group, done(received, dealt));
    }
}

/// All ended with equal accounts: files get their names, and the stream is over when all nodes have answered.
#[test]
fn equal_accounts_are_committed() {
    let mut run = moving();
    ends(&mut run, 5);
    assert_eq!(
        run.poll(Instant::ZERO),
        Some(Action::Finish { commit: true })
    );
    run.handle_finished(Instant::ZERO, 0, None);
    assert_eq!(run.poll(Instant::ZERO), None);
    run.handle_finished(Instant::ZERO, 1, None);
    run.handle_failure(Instant::ZERO, failure(Cause::Node, 1));
    assert_eq!(run.poll(Instant::ZERO), Some(Action::End));
    assert_eq!(run.failure(), None);
}

/// A block that is missing at the end fails the stream, and nothing gets its name.
#[test]
fn different_accounts_fail() {
    let mut run = moving();
    ends(&mut run, 4);
    assert_eq!(
        run.poll(Instant::ZERO),
        Some(Action::Finish { commit: false })
    );
    let failure = run.failure().unwrap();
    assert_eq!(failure.cause, Cause::Account);
    assert!(
        failure.message.contains("B sent and what C received"),
        "{}",
        failure.message
    );
}

/// A first process that dealt less than it had fails the stream, though all that it dealt arrived.
#[test]
fn short_sources_fail() {
    let mut run = run(1, 2);
    run.handle_opened(Instant::ZERO, 0, 50);
    assert_eq!(run.poll(Instant::ZERO), Some(Action::Start));
    run.handle_progress(Instant::ZERO, 0, 0, done(0, 4));
    run.handle_progress(Instant::ZERO, 0, 1, done(4, 0));
    assert!(run.failure().unwrap().message.contains("40 of 50"));
}

/// A record that was read and not written fails a shuffle, though all blocks arrived; least and most are of partitions.
#[test]
fn records_are_accounted() {
    let ended = |written: u64| {
        let records = |blocks, sum| Account {
            blocks,
            bytes: 30,
            sum,
        };
        let mut run = Run::new(2, 2, vec![0], STALL, Instant::ZERO);
        run.handle_opened(Instant::ZERO, 0, 0);
        run.handle_opened(Instant::ZERO, 1, 0);
        assert_eq!(run.poll(Instant::ZERO), Some(Action::Start));
        for (node, group, received, dealt, records, of_one) in [
            (0, 0, 0, 4, records(3, 9), (0, 0)),
            (1, 0, 0, 6, records(4, 5), (0, 0)),
            (0, 1, 10, 0, records(5, 6), (2, 3)),
            (1, 1, 0, 0, records(2, written.into()), (0, 2)),
        ] {
            let progress = Progress {
                records,
                records_of_one: of_one,
                ..done(received, dealt)
            };
            run.handle_progress(Instant::ZERO, node, group, progress);
        }
        run
    };
    let run = ended(8);
    assert_eq!(run.failure(), None);
    let (records, least, most) = run.records(4);
    assert_eq!((records.blocks, least, most), (7, 0, 3));
    assert_eq!(run.records(1).1, 2, "the second node has no partition");
    let failure = ended(7).failure().cloned().unwrap();
    assert_eq!(failure.cause, Cause::Account);
    assert!(
        failure.message.contains("7 records of 60 bytes"),
        "{}",
        failure.message
    );
}

/// Lost connections wait for the report of the process that died, which is the one that is named.
#[test]
fn the_cause_is_named() {
    let at = |milliseconds| Instant::ZERO + Nanos::from_millis(milliseconds);
    let mut run = moving();
    run.handle_failure(at(10), failure(Cause::Peer, 0));
    assert_eq!(run.poll(at(11)), None);
    run.handle_failure(at(20), failure(Cause::Process, 1));
    assert_eq!(run.poll(at(20)), Some(Action::Finish { commit: false }));
    run.handle_failure(at(30), failure(Cause::Node, 0));
    assert_eq!(run.failure(), Some(&failure(Cause::Process, 1)));
    run.handle_finished(at(30), 1, None);
    assert_eq!(run.poll(at(31)), Some(Action::End));
    // Without one the lost connection is what is known, and nodes that do not answer are not waited for.
    let mut run = moving();
    run.handle_failure(at(10), failure(Cause::Peer, 0));
    let due = run.deadline().unwrap();
    assert_eq!(run.poll(due), Some(Action::Finish { commit: false }));
    assert_eq!(run.failure(), Some(&failure(Cause::Peer, 0)));
    let due = run.deadline().unwrap();
    assert_eq!(run.poll(due), Some(Action::End));
}

/// A node that refuses ends the stream before it starts.
#[test]
fn refusals_end_it() {
    let mut run = run(2, 2);
    run.handle_failure(Instant::ZERO, failure(Cause::Refused, 1));
    run.handle_opened(Instant::ZERO, 0, 1);
    assert_eq!(
        run.poll(Instant::ZERO),
        Some(Action::Finish { commit: false })
    );
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Nanos::from_secs(seconds)
}

/// A node that does not open its part ends the stream, and is named.
#[test]
fn opening_has_an_end() {
    let mut run = run(2, 2);
    run.handle_opened(at(10), 0, 1);
    assert_eq!((run.deadline(), run.poll(at(69))), (Some(at(70)), None));
    assert_eq!(run.poll(at(70)), Some(Action::Finish { commit: false }));
    let failure = run.failure().unwrap();
    assert_eq!((failure.cause, failure.node), (Cause::Node, Some(1)));
    assert!(
        failure.message.contains("has not opened"),
        "{}",
        failure.message
    );
    // It is not waited for either.
    assert_eq!(run.deadline(), Some(at(72)));
    assert_eq!(run.poll(at(72)), Some(Action::End));
}

/// Blocks that stand still are a stall; a file that is synced meanwhile is none.
#[test]
fn syncing_is_no_stall() {
    let mut run = moving();
    let status = |second: u64, is_syncing| Progress {
        is_syncing,
        has_ended: false,
        elapsed: Nanos::from_millis(1000 * second),
        ..done(1, 0)
    };
    run.handle_progress(at(1), 0, 2, status(1, false));
    let mut notes = Vec::new();
    for second in (2..200).step_by(50) {
        run.handle_progress(at(second), 0, 2, status(second, true));
        notes.push(run.poll(at(second + 49)));
    }
    // Once in a time without blocks.
    let note = Action::Note { group: 2, node: 0 };
    assert_eq!(notes, [None, Some(note), None, None]);
    // That of a process that was stopped while it synced says nothing new.
    run.handle_progress(at(199), 0, 2, status(152, true));
    run.handle_progress(at(200), 0, 2, status(200, false));
    assert_eq!(run.deadline(), Some(at(152 + 60)));
    assert_eq!(run.poll(at(212)), Some(Action::Finish { commit: false }));
    let failure = run.failure().unwrap();
    assert!(
        failure.message.contains("no block has moved for 60 s"),
        "{}",
        failure.message
    );
}

/// So far; times in seconds.
fn status(bytes: u64, elapsed: u64, input: u64, output: u64) -> Progress {
    Progress {
        has_ended: false,
        elapsed: Nanos::from_secs(elapsed),
        waited_input: Nanos::from_secs(input),
        waited_output: Nanos::from_secs(output),
        ..done(bytes, bytes)
    }
}

/// The group that works while nothing moves is named, not the one that worked longest before.
#[test]
fn slow_starts_explain_no_stall() {
    let mut run = moving();
    run.handle_progress(at(20), 0, 2, status(4, 18, 18, 0));
    run.handle_progress(at(20), 0, 0, status(5, 20, 0, 0));
    // The first group has worked for 20 s and waits; the last one has worked for 10 s since, and for 10 s at all.
    run.handle_progress(at(30), 0, 0, status(5, 30, 0, 10));
    run.handle_progress(at(30), 0, 2, status(4, 28, 18, 0));
    assert_eq!(run.poll(at(80)), Some(Action::Finish { commit: false }));
    let failure = run.failure().unwrap();
    assert_eq!((failure.group, failure.node), (Some(2), Some(0)));
}

/// A process that says nothing any more, as one whose disk does not answer, is what the others wait for: they say each second that they wait,
/// and work a little for that.
#[test]
fn silence_explains_a_stall() {
    let mut run = moving();
    let silent = status(4, 20, 10, 0);
    run.handle_progress(at(20), 0, 1, silent);
    run.handle_progress(at(20), 0, 0, status(5, 20, 0, 0));
    run.handle_progress(at(20), 0, 2, status(6, 20, 20, 0));
    for second in 22..80 {
        run.handle_progress(at(second), 0, 0, status(5, second, 0, second - 22));
        run.handle_progress(at(second), 0, 1, silent);
        run.handle_progress(at(second), 0, 2, status(6, second, second - 2, 0));
        assert_eq!(run.poll(at(second)), None);
    }
    assert_eq!(run.poll(at(80)), Some(Action::Finish { commit: false }));
    let failure = run.failure().unwrap();
    assert_eq!((failure.group, failure.node), (Some(1), Some(0)));
}

/// The last state of a process that has ended is repeated, and the others stand still: a stall.
#[test]
fn ended_processes_keep_no_stream_alive() {
    let mut run = moving();
    run.handle_progress(at(1), 0, 0, done(0, 1));
    for second in 2..=60 {
        assert_eq!(run.poll(at(second)), None);
        run.handle_progress(at(second), 0, 0, done(0, 1));
    }
    assert_eq!(run.poll(at(61)), Some(Action::Finish { commit: false }));
}

/// Once files get their names an interruption comes too late, and processes may end; a node that does not answer is named.
#[test]
fn committing_is_not_interrupted() {
    let mut run = moving();
    ends(&mut run, 5);
    assert_eq!(run.poll(at(0)), Some(Action::Finish { commit: true }));
    for cause in [Cause::Interrupted, Cause::Process, Cause::Peer] {
        run.handle_failure(at(1), failure(cause, 0));
    }
    run.handle_finished(at(1), 0, None);
    assert_eq!(run.poll(at(60)), None);
    assert_eq!(run.failure(), None);
    let mut lost = run.clone();
    lost.handle_failure(at(2), failure(Cause::Node, 1));
    assert_eq!(lost.poll(at(2)), Some(Action::End));
    assert_eq!(lost.failure().unwrap().cause, Cause::Node);
    let mut done = run.clone();
    done.handle_finished(at(60), 1, None);
    assert_eq!(done.poll(at(60)), Some(Action::End));
    assert_eq!(done.failure(), None);
    assert_eq!(run.poll(at(61)), Some(Action::End));
    let failure = run.failure().unwrap();
    assert_eq!((failure.cause, failure.node), (Cause::Node, Some(1)));
    assert!(
        failure.message.contains("has not confirmed"),
        "{}",
        failure.message
    );
}

/// Where a node cannot give its file its name, those whose files have theirs are known; of a stream that was ended before there are none.
#[test]
fn names_that_were_given_are_known() {
    let mut run = moving();
    ends(&mut run, 5);
    assert_eq!(run.poll(at(0)), Some(Action::Finish { commit: true }));
    run.handle_finished(at(1), 1, None);
    assert!(run.committed().is_empty(), "nothing has failed");
    run.handle_finished(at(1), 0, Some("in the way".into()));
    assert_eq!(run.poll(at(1)), Some(Action::End));
    assert_eq!(
        (run.failure().unwrap().node, run.committed()),
        (Some(0), vec![1])
    );
    let mut run = moving();
    ends(&mut run, 4);
    assert_eq!(run.poll(at(0)), Some(Action::Finish { commit: false }));
    for node in [0, 1] {
        run.handle_finished(at(1), node, None);
    }
    assert!(run.failure().is_some() && run.committed().is_empty());
}

/// Nodes that do not answer are not waited for where accounts differ.
#[test]
fn differing_accounts_have_an_end() {
    let mut run = moving();
    ends(&mut run, 4);
    assert_eq!(run.poll(at(0)), Some(Action::Finish { commit: false }));
    assert_eq!(run.deadline(), Some(at(2)));
    assert_eq!(run.poll(at(2)), Some(Action::End));
}
