//! Reports and actions when bytes are missing: reasons, files, leftovers, the node that renames.

use super::membership_tests::{opened_trees, opening_with, settle, with_tree};
use super::tests::{
    actions, answer, begun, done, finish, from, node, opened, outcome, pass, sent, started,
};
use super::*;
use crate::control::{Done, Finished, MissingFile, Need, Stretch};
use crate::report::ErrorKind;
use ropewalk_model::Nanos;

fn refusal(start: u64, length: u64, reason: &str) -> FromAgent {
    from(from_agent::Body::Need(Need {
        ranges: vec![Stretch { start, length }],
        lost: vec![0],
        reason: reason.into(),
    }))
}

fn lacking(start: u64, length: u64, file: &str) -> FromAgent {
    from(from_agent::Body::Done(Done {
        delivered: start,
        missing: vec![Stretch { start, length }],
        files: vec![MissingFile {
            file: file.into(),
            bytes: length,
            reason: "it changed".into(),
        }],
        files_more: 2,
        ..Done::default()
    }))
}

fn pair() -> Vec<NodeSetup> {
    vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]
}

/// One note for a file whatever number of pieces it has; nobody is called out of reach who answered; the error names the
/// file; what came is removed.
#[test]
fn a_refused_file_is_told_once_with_its_reason() {
    let (mut c, _) = started(pair());
    for start in [50, 60, 70] {
        c.handle_message(1, refusal(start, 10, "\"/f\" changed"), Instant(11));
        let asked = actions(&mut c);
        answer(&mut c, asked);
    }
    c.handle_message(1, lacking(50, 50, "f"), Instant(12));
    let last = actions(&mut c);
    assert!(matches!(sent(&last, 1)[..], [to_agent::Body::Finish(f)] if f.discard && !f.commit));
    assert!(matches!(sent(&last, 0)[..], [to_agent::Body::Finish(f)] if !f.discard));
    let end = finish(&mut c, 2);
    let Some(Action::End(Outcome::Partial, Some(error))) = end.last() else {
        panic!("{end:?}")
    };
    assert_eq!(error, "f was not copied: it changed; nor were 2 more files");
    assert_eq!(
        c.notes(),
        ["b was refused by a, and no other node holds it: \"/f\" changed"]
    );
    assert_eq!(c.failure_kind(), Some(ErrorKind::Missing));
    let (files, more) = c.missing_files();
    assert_eq!((files[0].file.as_str(), files.len(), more), ("f", 1, 2));
}

/// However many files are refused, and whatever for: a node that refuses is never said to be out of reach.
#[test]
fn many_refusals_are_no_broken_connection() {
    for shared in [None, Some("d")] {
        let mut nodes = vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], shared),
        ];
        if shared.is_some() {
            nodes.push(node("c", &[], &[(0, 100)], shared));
        }
        let (mut c, _) = started(nodes);
        for start in 0..70 {
            let reason = format!("\"/f{start}\" changed");
            c.handle_message(1, refusal(start, 1, &reason), Instant(11));
            let asked = actions(&mut c);
            answer(&mut c, asked);
        }
        let refused = c.notes().iter().filter(|n| n.contains("was refused by a"));
        assert_eq!(refused.count(), 65, "{:?}", c.notes());
        let others = |note: &String| note.contains("other reasons");
        assert!(c.notes().iter().any(others), "{:?}", c.notes());
        let unreached = |note: &String| note.contains("cannot reach");
        assert!(!c.notes().iter().any(unreached), "{:?}", c.notes());
        assert_eq!(c.losses(), [""; 0]);
    }
}

/// Receivers that write one copy together lack a file together: it is named once. Several copies lack each their own, which the error
/// counts once.
#[test]
fn a_file_of_a_shared_copy_is_missing_once() {
    for (shared, named, bytes) in [(Some("d"), 1, 50), (None, 2, 50)] {
        let (mut c, _) = started(vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], shared),
            node("c", &[], &[(0, 100)], shared),
        ]);
        for node in [1, 2] {
            for start in [50, 60, 70, 80, 90] {
                c.handle_message(node, refusal(start, 10, "\"/f\" changed"), Instant(11));
                settle(&mut c);
            }
        }
        for node in [1, 2] {
            let Some(from_agent::Body::Done(mut done)) = lacking(50, 50, "f").body else {
                panic!("no end of a part")
            };
            done.revision = c.nodes[node as usize].revision;
            c.handle_message(node, from(from_agent::Body::Done(done)), Instant(12));
            settle(&mut c);
        }
        let end = finish(&mut c, 3);
        let Some(Action::End(Outcome::Partial, Some(error))) = end.last() else {
            panic!("{end:?}")
        };
        assert_eq!(error, "f was not copied: it changed; nor were 2 more files");
        let (files, more) = c.missing_files();
        assert_eq!(files.len(), named, "{files:?}");
        assert!(files.iter().all(|file| file.bytes == bytes), "{files:?}");
        assert_eq!(more, 2 * named as u64);
    }
}

/// Another look at sources is of use where holders that are there refused what is missing: not where it is out of reach, where another
/// receiver of the destination got it, or where a node is lost.
#[test]
fn what_holders_refused_may_be_read_again() {
    let unreached = |start, length| {
        from(from_agent::Body::Need(Need {
            ranges: vec![Stretch { start, length }],
            lost: vec![0],
            reason: String::new(),
        }))
    };
    for (need, is_lost, expected) in [
        (refusal(50, 50, "\"/f\" changed"), false, true),
        (refusal(50, 50, "\"/f\" changed"), true, false),
        (unreached(50, 50), false, false),
        // Something else was refused, and another holder had it.
        (refusal(0, 20, "\"/g\" changed"), false, false),
    ] {
        for shared in [None, Some("d")] {
            let mut nodes = vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[], &[(0, 100)], shared),
                node("c", &[(0, 50)], &[], None),
            ];
            nodes[1].sinks[0].destination = shared.map(str::to_owned);
            let (mut c, _) = started(nodes);
            c.handle_message(1, need.clone(), Instant(11));
            let asked = actions(&mut c);
            answer(&mut c, asked);
            if is_lost {
                c.handle_lost(2, "killed", Instant(12));
                settle(&mut c);
            }
            let revision = c.nodes[1].revision;
            let done = match lacking(50, 50, "f").body {
                Some(from_agent::Body::Done(done)) => Done { revision, ..done },
                other => panic!("{other:?}"),
            };
            c.handle_message(1, from(from_agent::Body::Done(done)), Instant(13));
            settle(&mut c);
            finish(&mut c, 3);
            assert_eq!(c.has_refused(), expected, "{need:?}, {is_lost}, {shared:?}");
            let notes = c
                .notes()
                .iter()
                .filter(|n| n.contains("no other node holds it"));
            assert!(notes.eq(c.refusals()), "{:?}", c.refusals());
        }
    }
}

/// With [`Incomplete::Kept`] nothing is removed, and where it lies is told.
#[test]
fn what_is_kept_is_told() {
    let mut c = begun(pair(), None);
    c.setup.incomplete = Incomplete::Kept;
    for (at, node) in pair().iter().enumerate() {
        c.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let first = actions(&mut c);
    answer(&mut c, first);
    c.handle_message(1, refusal(50, 50, "gone"), Instant(11));
    let asked = actions(&mut c);
    answer(&mut c, asked);
    c.handle_message(1, lacking(50, 50, ""), Instant(12));
    let last = actions(&mut c);
    assert!(matches!(sent(&last, 1)[..], [to_agent::Body::Finish(f)] if !f.discard));
    let left = control::Leftover {
        path: "/x/.f.ropewalk-1".into(),
        bytes: 50,
        resumable: false,
    };
    let finished = Finished {
        left: vec![left],
        ..Finished::default()
    };
    c.handle_message(1, from(from_agent::Body::Finished(finished)), Instant(13));
    finish(&mut c, 1);
    let left = c.left();
    assert_eq!((left[0].node.as_str(), left[0].certain), ("b", true));
    assert_eq!(left[0].path, "/x/.f.ropewalk-1");
    // Not its size: the file has it before its bytes.
    assert_eq!((left[0].kept, left[0].valid_bytes), (true, Some(50)));
}

/// Bytes of what is left are known to be valid only where all that its writers have delivered is in it: not where one of them also
/// writes another file or drops what it gets, on the same node or on another one of a shared destination.
#[test]
fn valid_bytes_are_known_where_there_is_one_object() {
    let rows = |parts: &[(&str, u64)]| -> Vec<control::Row> {
        let row = |&(object, start): &(&str, u64)| control::Row {
            object: object.into(),
            object_offset: start,
            start,
            length: 25,
        };
        parts.iter().map(row).collect()
    };
    // Objects and offsets of the sinks of b and of c, whether they share a destination, and what is known of the file that b has left.
    for (b, c, shared, expected) in [
        (
            &[&[("/x", 0)][..]][..],
            &[&[("/x", 25)][..]][..],
            false,
            Some(20),
        ),
        (&[&[("/x", 0), ("/x", 25)]], &[], false, Some(20)),
        (&[&[("/x", 0)], &[("/x", 25)]], &[], false, Some(20)),
        (&[&[("/x", 0)], &[("null:", 25)]], &[], false, None),
        (&[&[("/x", 0)], &[("mem:50", 25)]], &[], false, None),
        (&[&[("/x", 0)], &[("/y", 25)]], &[], false, None),
        (&[&[("/x", 0)]], &[&[("null:", 25)]], false, Some(20)),
        (&[&[("/x", 0)]], &[&[("/x", 25)]], true, Some(30)),
        (&[&[("/x", 0)]], &[&[("null:", 25)]], true, None),
        (&[&[("/x", 0)]], &[&[("/y", 25)]], true, None),
    ] {
        let receiver = |name: &str, sinks: &[&[(&str, u64)]]| {
            let shared = shared.then_some("fs");
            let mut node = node(name, &[], &[(0, 25)], shared);
            let like = node.sinks.remove(0);
            node.sinks.extend(sinks.iter().map(|parts| SinkSetup {
                sink: control::Sink {
                    rows: rows(parts),
                    ..like.sink.clone()
                },
                ..like.clone()
            }));
            node
        };
        let nodes = vec![
            node("a", &[(0, 100)], &[], None),
            receiver("b", b),
            receiver("c", c),
        ];
        let (mut coordinator, _) = started(nodes);
        for (node, delivered) in [(1, 20), (2, 10)] {
            coordinator.nodes[node].delivered = delivered;
        }
        coordinator.nodes[1].finished = Some(Box::new(Finished {
            left: vec![control::Leftover {
                path: "/.x.ropewalk-1".into(),
                bytes: 50,
                resumable: false,
            }],
            ..Finished::default()
        }));
        let left = coordinator.left();
        assert_eq!(left[0].valid_bytes, expected, "{b:?} and {c:?}, {shared}");
    }
}

/// What nodes left that write one place together is named once, with what the last of them has seen there; of copies of their own each
/// has its place.
#[test]
fn a_place_that_is_shared_is_left_once() {
    for (shared, expected) in [(Some("fs"), &[178][..]), (None, &[161, 178])] {
        let receiver = |name| node(name, &[], &[(0, 100)], shared);
        let nodes = vec![
            node("a", &[(0, 100)], &[], None),
            receiver("b"),
            receiver("c"),
        ];
        let (mut c, _) = started(nodes);
        for (node, bytes) in [(1, 161), (2, 178)] {
            c.nodes[node].finished = Some(Box::new(Finished {
                left: vec![control::Leftover {
                    path: "/.x.ropewalk-1".into(),
                    bytes,
                    resumable: true,
                }],
                ..Finished::default()
            }));
        }
        let bytes: Vec<u64> = c.left().iter().map(|left| left.bytes).collect();
        assert_eq!(bytes, expected);
    }
}

/// Of a place with very many names each is there once, found without a look at all others.
#[test]
fn many_names_of_a_shared_place_are_left_once() {
    const NAMES: u64 = 200_000;
    let receiver = |name| node(name, &[], &[(0, 100)], Some("fs"));
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        receiver("b"),
        receiver("c"),
    ];
    let (mut c, _) = started(nodes);
    for node in [1, 2] {
        let left = |name| control::Leftover {
            path: format!("/.{name}.ropewalk-1"),
            bytes: name + node,
            resumable: true,
        };
        c.nodes[node as usize].finished = Some(Box::new(Finished {
            left: (0..NAMES).map(left).collect(),
            ..Finished::default()
        }));
    }
    let left = c.left();
    let bytes: Vec<u64> = left.iter().map(|left| left.bytes).collect();
    assert_eq!(bytes, (2..NAMES + 2).collect::<Vec<u64>>());
}

/// Of a copy that lacks bytes the node names the files that lack none; without any the transfer is partial all the same.
#[test]
fn whole_files_of_an_own_copy_are_named() {
    for (committed, files) in [(true, 3), (false, 0)] {
        let mut c = begun(pair(), None);
        c.setup.incomplete = Incomplete::WholeFiles;
        for (at, node) in pair().iter().enumerate() {
            c.handle_message(at as u32, opened(node, 7), Instant(1));
        }
        let first = actions(&mut c);
        answer(&mut c, first);
        c.handle_message(1, refusal(50, 50, "gone"), Instant(11));
        let asked = actions(&mut c);
        answer(&mut c, asked);
        c.handle_message(1, lacking(50, 50, "f"), Instant(12));
        let last = actions(&mut c);
        assert!(
            matches!(sent(&last, 1)[..], [to_agent::Body::Finish(f)] if f.commit && f.discard && f.whole_files && !f.interrupted),
            "{last:?}"
        );
        let finished = Finished {
            committed,
            landed: committed.then(|| control::Landed {
                added_files: 2,
                replaced_files: 1,
                ..control::Landed::default()
            }),
            ..Finished::default()
        };
        c.handle_message(1, from(from_agent::Body::Finished(finished)), Instant(13));
        assert_eq!(outcome(&finish(&mut c, 1)), Some(Outcome::Partial));
        let copy = &c.destinations()[0];
        assert_eq!((copy.complete, copy.files), (false, files));
    }
}

/// What a node has left that died is named as far as it told; complete copies are complete.
#[test]
fn the_dead_leave_what_they_told_of() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
        node("c", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(nodes);
    let status = control::Status {
        checked: 40,
        temporary: vec!["/y/.f.ropewalk-2".into()],
        ..control::Status::default()
    };
    c.handle_message(1, from(from_agent::Body::Status(status)), Instant(11));
    c.handle_lost(1, "the connection ended", Instant(12));
    c.handle_message(2, done(100, &[]), Instant(13));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Failed));
    assert_eq!(c.failure_kind(), Some(ErrorKind::Lost));
    let left = c.left();
    assert_eq!(left.len(), 1);
    assert_eq!(
        (left[0].path.as_str(), left[0].bytes, left[0].certain),
        ("/y/.f.ropewalk-2", 40, false)
    );
    let copies = c.destinations();
    assert_eq!(
        copies.iter().map(|d| d.complete).collect::<Vec<_>>(),
        [false, true]
    );
    let error = copies[0].error.as_deref().unwrap();
    assert!(error.starts_with("its agent was lost"), "{error}");
}

fn sharers() -> Vec<NodeSetup> {
    vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("fs")),
        node("c", &[], &[(0, 100)], Some("fs")),
    ]
}

/// The node that names a shared destination dies while it does so: another one that has been waiting takes over.
#[test]
fn another_node_names_what_is_whole() {
    let (mut c, _) = started(sharers());
    c.handle_message(1, done(50, &[]), Instant(11));
    c.handle_message(2, done(50, &[]), Instant(12));
    let last = actions(&mut c);
    assert!(matches!(sent(&last, 1)[..], [to_agent::Body::Finish(f)] if f.commit && !f.again));
    assert!(sent(&last, 2).is_empty(), "it waits");
    c.handle_lost(1, "killed", Instant(13));
    let next = actions(&mut c);
    assert!(matches!(sent(&next, 2)[..], [to_agent::Body::Finish(f)] if f.commit && f.again));
    assert_eq!(outcome(&next), None);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
    assert!(
        c.notes().iter().any(|n| n.contains("c renames them")),
        "{:?}",
        c.notes()
    );
    assert!(c.destinations()[0].complete);
}

/// Nodes of a destination that write different files: each names those that no one before it does, and all are named at the end. One
/// that is lost before leaves a file without its name, and the transfer is not called complete.
#[test]
fn each_file_of_a_destination_is_named() {
    for is_lost in [false, true] {
        let mut nodes = sharers();
        let halves = [(1, 0), (2, 50)];
        for (at, start) in halves {
            let row = &mut nodes[at].sinks[0].sink.rows[0];
            (row.start, row.length) = (start, 50);
            row.object = format!("/f{at}").into_bytes();
        }
        // It writes the first file, too.
        let mut both = node("d", &[], &[(40, 10)], Some("fs"));
        both.sinks[0].sink.rows[0].object = b"/f1".to_vec();
        nodes.push(both);
        let (mut c, _) = started(nodes);
        for node in 1..4 {
            let delivered = c.summary()[node as usize].planned;
            c.handle_message(node, done(delivered, &[]), Instant(11));
        }
        let last = actions(&mut c);
        assert!(matches!(sent(&last, 1)[..], [to_agent::Body::Finish(f)] if f.commit && !f.again));
        assert!(sent(&last, 2).is_empty() && sent(&last, 3).is_empty());
        if is_lost {
            c.handle_lost(2, "killed", Instant(12));
            actions(&mut c);
        }
        let named = || {
            from(from_agent::Body::Finished(Finished {
                committed: true,
                ..Finished::default()
            }))
        };
        c.handle_message(1, named(), Instant(13));
        assert!(!c.destinations()[0].complete);
        let next = actions(&mut c);
        let commits = |node| matches!(sent(&next, node)[..], [to_agent::Body::Finish(f)] if f.commit && f.again);
        assert_eq!([2, 3].map(commits), [!is_lost, false], "{next:?}");
        let end: Vec<Action> = (0..2).flat_map(|_| finish(&mut c, 4)).collect();
        let expected = match is_lost {
            true => Outcome::Failed,
            false => Outcome::Done,
        };
        assert_eq!(outcome(&end), Some(expected), "{:?}", c.notes());
        assert_eq!(c.destinations()[0].complete, !is_lost);
    }
}

/// One that does not rename in time is replaced, and only that one is lost: the next one has the whole time again. When the
/// last one is late, too, the transfer fails.
#[test]
fn a_node_that_renames_too_late_is_replaced() {
    for is_last_late in [false, true] {
        let (mut c, _) = started(sharers());
        c.handle_message(1, done(50, &[]), Instant(11));
        c.handle_message(2, done(50, &[]), Instant(12));
        actions(&mut c);
        let mut now = Instant(20);
        for late in [1, 2] {
            pass(&mut c, now.0, (now + FINISH_TIME_MAX).0);
            assert_eq!(outcome(&actions(&mut c)), None, "not late yet");
            now += FINISH_TIME_MAX + Nanos(1);
            if late == 1 || is_last_late {
                c.handle_timer(now);
            }
            assert!(c.summary()[1].lost.is_some());
            if late == 1 {
                let next = actions(&mut c);
                let commits = matches!(sent(&next, 2)[..], [to_agent::Body::Finish(f)] if f.commit && f.again);
                assert!(commits, "{next:?}");
                assert_eq!((outcome(&next), c.summary()[2].lost), (None, None));
            }
        }
        let expected = match is_last_late {
            true => Outcome::Failed,
            false => Outcome::Done,
        };
        let end = match is_last_late {
            true => actions(&mut c),
            false => finish(&mut c, 3),
        };
        assert_eq!(outcome(&end), Some(expected), "{:?}", c.notes());
        assert_eq!(c.destinations()[0].complete, !is_last_late);
    }
}

/// One that answers that it cannot is replaced, too; when none can, the last reason is the error, and it removes.
#[test]
fn when_none_can_name_it_the_transfer_fails() {
    let (mut c, _) = started(sharers());
    c.handle_message(1, done(50, &[]), Instant(11));
    c.handle_message(2, done(50, &[]), Instant(12));
    actions(&mut c);
    let cannot = || {
        from(from_agent::Body::Finished(Finished {
            error: "read-only".into(),
            ..Finished::default()
        }))
    };
    c.handle_message(1, cannot(), Instant(13));
    let next = actions(&mut c);
    assert!(
        matches!(sent(&next, 2)[..], [to_agent::Body::Finish(f)] if f.commit && f.discard),
        "{next:?}"
    );
    c.handle_message(2, cannot(), Instant(14));
    c.handle_message(
        0,
        from(from_agent::Body::Finished(Finished::default())),
        Instant(15),
    );
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Failed));
    assert_eq!(c.failure_kind(), Some(ErrorKind::Node));
}

fn present(start: u64, length: u64) -> FromAgent {
    from(from_agent::Body::Present(control::Present {
        ranges: vec![Stretch { start, length }],
        ..control::Present::default()
    }))
}

/// Whatever a receiver says of its copy, and however often: counts stay counts, and what was found wrong is bounded.
#[test]
fn numbers_of_what_is_present_are_believed_within_bounds() {
    let (mut c, _) = started(pair());
    for _ in 0..3 {
        let present = control::Present {
            adopted: vec![Stretch {
                start: 0,
                length: 5,
            }],
            files: u64::MAX,
            passed_files: u64::MAX,
            passed_bytes: u64::MAX,
            refused: vec![Stretch {
                start: 0,
                length: u64::MAX,
            }],
            taken_bytes: u64::MAX,
            wrong: vec![control::Wrong::default(); 90],
            wrong_more: u64::MAX - 1,
            ..control::Present::default()
        };
        c.handle_message(1, from(from_agent::Body::Present(present)), Instant(11));
    }
    let summary = c.summary();
    assert_eq!((summary[1].adopted, summary[1].taken), (5, 5));
    let (wrong, more) = c.wrong();
    assert_eq!((wrong.len(), more), (100, u64::MAX));
}

/// However many files nodes say that they have, lack or leave out: the sums are the largest number, and the transfer ends.
#[test]
fn sums_of_what_nodes_count_do_not_overflow() {
    let nodes = vec![
        with_tree("s", true),
        with_tree("t", true),
        with_tree("a", false),
        with_tree("b", false),
    ];
    let mut c = opening_with(nodes, Destinations::Copies, control::Options::default());
    c.setup.incomplete = Incomplete::WholeFiles;
    c.setup.mapping = Mapping::Trees {
        sources: Sources::Parts,
        destinations: Destinations::Copies,
    };
    let unreadable = || control::LeftOut {
        path: b"f".to_vec(),
        reason: "permission denied".into(),
        start: 0,
        length: 0,
    };
    for node in [0, 1] {
        let tree = control::OpenedSource {
            manifest_root: vec![1 + node; 32],
            manifest_length: 10,
            data_length: u64::MAX / 2,
            file_count: u64::MAX,
            left_out: vec![unreadable(); 2],
            left_out_more: u64::MAX,
            skipped: u64::MAX,
            special: u64::MAX,
            attributes_unread: u64::MAX,
            ..control::OpenedSource::default()
        };
        let opened = control::Opened {
            sources: vec![tree; 1],
            ..control::Opened::default()
        };
        c.handle_message(
            u32::from(node),
            from(from_agent::Body::Opened(opened)),
            Instant(1),
        );
    }
    for node in [2, 3] {
        c.handle_message(node, opened_trees(0, 0), Instant(1));
    }
    c.handle_compared(Ok(vec![0, 1]));
    settle(&mut c);
    assert_eq!((c.files(), c.wanted_bytes()), (u64::MAX, u64::MAX));
    assert_eq!(c.left_out().1, u64::MAX);
    for node in [2, 3] {
        let lacking = Done {
            missing: vec![Stretch {
                start: 0,
                length: 1,
            }],
            files: vec![MissingFile::default(); 2],
            files_more: u64::MAX,
            ..Done::default()
        };
        c.handle_message(node, from(from_agent::Body::Done(lacking)), Instant(12));
    }
    settle(&mut c);
    for node in [2, 3] {
        let name = control::NotPlaced::default();
        let landed = control::Landed {
            not_listed: vec!["no space".into(); 2],
            not_listed_more: u64::MAX,
            not_placed: vec![name; 2],
            not_placed_more: u64::MAX,
            ..control::Landed::default()
        };
        let finished = Finished {
            landed: Some(landed),
            ..Finished::default()
        };
        c.handle_message(
            node,
            from(from_agent::Body::Finished(finished)),
            Instant(13),
        );
    }
    let end = finish(&mut c, 2);
    assert_eq!(outcome(&end), Some(Outcome::Partial), "{end:?}");
    assert_eq!(c.missing_files().1, u64::MAX);
    assert!(c.not_placed_error().is_some() && c.not_listed_error().is_some());
    assert!(c.left_out_error().is_some());
    assert!(c.destinations().iter().all(|copy| !copy.complete));
}

/// What a copy has already is not wanted, not planned and not missing; the bound is that of the rest.
#[test]
fn what_is_present_is_not_wanted() {
    let (mut c, _) = started(pair());
    c.handle_message(1, present(0, 70), Instant(11));
    assert_eq!(c.wanted_bytes(), 30);
    let summary = c.summary();
    assert_eq!(
        (summary[1].present, summary[1].wanted, summary[0].planned),
        (70, 30, 30)
    );
    assert_eq!(c.declared_problem().receivers[0].ranges.len_bytes(), 30);
    // What an earlier transfer wrote is counted apart.
    let adopted = control::Present {
        adopted: vec![Stretch {
            start: 80,
            length: 5,
        }],
        ..control::Present::default()
    };
    c.handle_message(1, from(from_agent::Body::Present(adopted)), Instant(11));
    assert_eq!((c.summary()[1].adopted, c.wanted_bytes()), (5, 25));
    // Said twice, it counts once.
    c.handle_message(1, present(60, 20), Instant(12));
    assert_eq!((c.summary()[1].present, c.wanted_bytes()), (80, 15));
    c.handle_message(1, done(15, &[]), Instant(13));
    assert!(matches!(
        finish(&mut c, 2).last(),
        Some(Action::End(Outcome::Done, None))
    ));
    assert_eq!(c.delivered_bytes(), 15);
}

/// A plan that was asked for before a node said what it has brings it only the rest.
#[test]
fn a_plan_under_way_leaves_out_what_is_present() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[(0, 100)], &[], None),
        node("c", &[], &[(0, 100)], None),
    ]);
    let need = from_agent::Body::Need(Need {
        ranges: vec![Stretch {
            start: 0,
            length: 100,
        }],
        lost: vec![0],
        reason: "gone".into(),
    });
    c.handle_message(2, from(need), Instant(11));
    let asked = actions(&mut c);
    c.handle_message(2, present(10, 60), Instant(12));
    let revised = answer(&mut c, asked);
    let runs: Vec<&control::Run> = sent(&revised, 2)
        .into_iter()
        .filter_map(|body| match body {
            to_agent::Body::Revision(revision) => Some(&revision.runs),
            _ => None,
        })
        .flatten()
        .collect();
    let ranges = runs.iter().map(|run| control::range(run.start, run.length));
    let ranges = RangeSet::from_ranges(ranges);
    assert!(!ranges.is_empty());
    assert_eq!(ranges.clipped(control::range(10, 60)).len_bytes(), 0);
    assert_eq!(c.summary()[2].wanted, 40);
}

/// Of a shared copy no node can say for the others what is there.
#[test]
fn present_bytes_of_a_shared_copy_stay_wanted() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("d")),
        node("c", &[], &[(0, 100)], Some("d")),
    ]);
    c.handle_message(1, present(0, 70), Instant(11));
    assert_eq!(c.wanted_bytes(), 100);
}

/// Where no sink could be made, for reasons that may pass, the node is in trouble; one that stays makes it a refusal.
#[test]
fn refusals_that_may_pass_are_trouble_of_nodes() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
        node("c", &[], &[(0, 100)], None),
    ];
    for (passes, kind) in [
        ([true, true], ErrorKind::Node),
        ([true, false], ErrorKind::Refused),
        ([false, false], ErrorKind::Refused),
    ] {
        let (mut c, _) = started(nodes.clone());
        for (node, may_pass) in (1..).zip(passes) {
            let refused = Done {
                error: "no".into(),
                refused: true,
                may_pass,
                ..Done::default()
            };
            c.handle_message(node, from(from_agent::Body::Done(refused)), Instant(11));
        }
        actions(&mut c);
        assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Refused));
        assert_eq!(c.refusal_kind(), kind);
    }
}

/// The names of the nodes that would have to be back.
fn gone(c: &Coordinator) -> Vec<String> {
    c.gone().into_iter().map(|gone| gone.node).collect()
}

/// A node that is gone is named where it was needed: the only receiver, the only holder of what is missing; not a replica that others
/// replaced, nor one that its user has cancelled.
#[test]
fn nodes_that_are_gone_and_were_needed_are_named() {
    let replicas = vec![
        node("a", &[(0, 100)], &[], None),
        node("a2", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let broken = "the connection closed";
    // The only receiver.
    let (mut c, _) = started(pair());
    c.handle_lost(1, broken, Instant(12));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Failed));
    assert_eq!(gone(&c), ["b"]);
    assert_eq!(c.gone()[0].reason, broken);
    // The only holder.
    let (mut c, _) = started(pair());
    c.handle_lost(0, broken, Instant(12));
    c.handle_message(1, done(30, &[(30, 70)]), Instant(13));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Partial));
    assert_eq!(gone(&c), ["a"]);
    // One of two replicas, and then both.
    for (lost, missing, outcome_then, names) in [
        (1, &[][..], Outcome::Done, &[][..]),
        (2, &[(50, 50)][..], Outcome::Partial, &["a", "a2"][..]),
    ] {
        let (mut c, _) = started(replicas.clone());
        for node in 0..lost {
            c.handle_lost(node, broken, Instant(12));
            let asked = actions(&mut c);
            answer(&mut c, asked);
        }
        let delivered = 100 - missing.iter().map(|(_, length)| length).sum::<u64>();
        let revision = c.nodes[2].revision;
        let last = super::tests::done_after(revision, delivered, missing);
        c.handle_message(2, last, Instant(13));
        actions(&mut c);
        assert_eq!(outcome(&finish(&mut c, 3)), Some(outcome_then));
        assert_eq!(gone(&c), names);
    }
    // A replica and the only receiver: the other replica is there.
    let (mut c, _) = started(replicas);
    c.handle_lost(0, broken, Instant(12));
    let asked = actions(&mut c);
    answer(&mut c, asked);
    c.handle_lost(2, broken, Instant(13));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Failed));
    assert_eq!(gone(&c), ["b"]);
    // A receiver whose copy is complete needs no further round, whether it is there or not.
    let copies = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
        node("c", &[], &[(0, 100)], None),
        node("d", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(copies);
    for receiver in [1, 3] {
        c.handle_message(receiver, done(100, &[]), Instant(12));
    }
    c.handle_lost(1, broken, Instant(13));
    c.handle_lost(2, broken, Instant(14));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 4)), Some(Outcome::Failed));
    assert_eq!(gone(&c), ["c"]);
    let complete = c.complete();
    let complete = complete.iter().map(|one| (one.node.as_str(), one.is_lost));
    assert_eq!(complete.collect::<Vec<_>>(), [("b", true), ("d", false)]);
    // One that is gone holds nothing of what another one refused.
    let parts = vec![
        node("a", &[(0, 50)], &[], None),
        node("a2", &[(50, 50)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(parts);
    c.handle_lost(1, broken, Instant(12));
    let asked = actions(&mut c);
    answer(&mut c, asked);
    let revision = c.nodes[2].revision;
    let last = super::tests::done_after(revision, 90, &[(10, 10)]);
    c.handle_message(2, last, Instant(13));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Partial));
    assert_eq!(gone(&c), [""; 0]);
    // Cancelled at its agent, and by the user of the transfer.
    let (mut c, _) = started(pair());
    let refused = control::Refused {
        code: ErrorKind::Interrupted.wire(),
        message: "cancelled".into(),
    };
    c.handle_message(1, from(from_agent::Body::Refused(refused)), Instant(12));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Failed));
    assert_eq!(gone(&c), [""; 0]);
    let (mut c, _) = started(pair());
    c.handle_lost(1, broken, Instant(12));
    c.handle_cancel();
    actions(&mut c);
    finish(&mut c, 2);
    assert_eq!(gone(&c), [""; 0]);
    // Before anything has moved.
    let mut c = begun(pair(), None);
    c.handle_lost(0, broken, Instant(1));
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
    assert_eq!(gone(&c), ["a"]);
}

/// Nothing is removed where a node was not reached that may have held what it is: two that are alike need not be all that there is,
/// unless the user says so.
#[test]
fn what_nodes_that_are_left_out_may_hold_is_not_removed() {
    for (absent, sources, before, returned, removes) in [
        (&[][..], Sources::Auto, 1, None, true),
        (&["s3"], Sources::Auto, 1, None, false),
        (&["s3"], Sources::Replicas, 1, None, true),
        // It had more files before it was lost.
        (&[], Sources::Auto, 2, Some("s2"), false),
        // A file went while it was copied.
        (&[], Sources::Auto, 2, None, true),
    ] {
        let senders = ["s", "s2"].map(|name| with_tree(name, true));
        let nodes: Vec<NodeSetup> = senders.into_iter().chain([with_tree("r", false)]).collect();
        let options = control::Options {
            delete: true,
            ..control::Options::default()
        };
        let mut c = opening_with(nodes, Destinations::Copies, options);
        c.setup.mapping = Mapping::Trees {
            sources,
            destinations: Destinations::Copies,
        };
        c.leave_out(absent.iter().map(|name| (*name).into()).collect());
        c.go_on(Earlier {
            files: [("s2".to_owned(), vec![before])].into(),
            returned: returned.into_iter().map(str::to_owned).collect(),
            ..Earlier::default()
        });
        actions(&mut c);
        for (node, trees) in [(0, 1), (1, 1), (2, 0)] {
            c.handle_message(node, opened_trees(trees, 1), Instant(1));
        }
        let told = settle(&mut c);
        let plans = sent(&told, 2).into_iter().filter_map(|body| match body {
            to_agent::Body::Plan(plan) => Some(plan.delete),
            _ => None,
        });
        assert_eq!(plans.collect::<Vec<_>>(), [removes], "{absent:?}");
        let is_said = c
            .notes()
            .iter()
            .any(|note| note.starts_with("nothing is removed"));
        assert_eq!(is_said, !removes);
    }
}

/// Two sources that are alike may be replicas of one part: where a third one was not reached the copy is not known to be complete, unless
/// the user says that each holds all.
#[test]
fn what_nodes_that_are_left_out_may_hold_is_not_known_to_be_copied() {
    let many = ["s3", "s4", "s5", "s6", "s7"];
    for (absent, sources, expected) in [
        (&[][..], Sources::Auto, None),
        (&many[..1], Sources::Auto, Some("but s3 was not reached")),
        (
            &many[..2],
            Sources::Auto,
            Some("but s3, s4 were not reached"),
        ),
        (
            &many,
            Sources::Auto,
            Some("but s3 and 4 more were not reached"),
        ),
        (&many[..1], Sources::Replicas, None),
    ] {
        let senders = ["s", "s2"].map(|name| with_tree(name, true));
        let nodes: Vec<NodeSetup> = senders.into_iter().chain([with_tree("r", false)]).collect();
        let mut c = opening_with(nodes, Destinations::Copies, control::Options::default());
        c.setup.mapping = Mapping::Trees {
            sources,
            destinations: Destinations::Copies,
        };
        c.leave_out(absent.iter().map(|name| (*name).into()).collect());
        actions(&mut c);
        for (node, trees) in [(0, 1), (1, 1), (2, 0)] {
            c.handle_message(node, opened_trees(trees, 1), Instant(1));
        }
        settle(&mut c);
        c.handle_message(2, done(100, &[]), Instant(11));
        actions(&mut c);
        let end = finish(&mut c, 3);
        let Some(Action::End(outcome, error)) = end.last() else {
            panic!("{end:?}");
        };
        match expected {
            Some(text) => {
                assert_eq!(*outcome, Outcome::Partial);
                assert_eq!(c.failure_kind(), Some(ErrorKind::Unreachable));
                assert!(error.as_ref().unwrap().contains(text), "{error:?}");
                assert_eq!(c.gone(), []);
            }
            None => assert_eq!((*outcome, error), (Outcome::Done, &None)),
        }
        assert!(c.destinations()[0].complete);
    }
}

/// A node that is back is gone still where its source has nothing in it, where its destination is in another folder, or where it
/// refuses, unless its user has cancelled it. What it has gained meanwhile is no harm.
#[test]
fn nodes_that_are_back_have_to_be_what_they_were() {
    let place = |folder, rest: &str| control::Place {
        folder,
        rest: rest.into(),
        keeps: true,
        ..control::Place::default()
    };
    let opened = |files: Option<u64>, place: Option<control::Place>| {
        let tree = |file_count| control::OpenedSource {
            manifest_root: vec![1; 32],
            manifest_length: 10,
            data_length: 100,
            file_count,
            ..control::OpenedSource::default()
        };
        from(from_agent::Body::Opened(control::Opened {
            sources: files.map(tree).into_iter().collect(),
            places: place.into_iter().collect(),
            ..control::Opened::default()
        }))
    };
    let refused = |kind: ErrorKind| {
        from(from_agent::Body::Refused(control::Refused {
            code: kind.wire(),
            message: "no such file".into(),
        }))
    };
    let (sender, receiver) = (
        opened(Some(7), None),
        opened(None, Some(place(5, "d/copy"))),
    );
    let first = |returned: &[&str]| {
        let nodes = vec![with_tree("s", true), with_tree("r", false)];
        let options = control::Options::default();
        let mut c = opening_with(nodes, Destinations::Copies, options);
        let earlier = Earlier {
            returned: returned.iter().map(|name| (*name).into()).collect(),
            ..Earlier::default()
        };
        c.go_on(earlier);
        actions(&mut c);
        c
    };
    let mut c = first(&[]);
    c.handle_message(0, sender.clone(), Instant(1));
    c.handle_message(1, receiver.clone(), Instant(1));
    let mut known = c.for_next();
    known.add(Earlier {
        files: [("s".to_owned(), vec![5])].into(),
        ..Earlier::default()
    });
    let elsewhere = |folder, rest| opened(None, Some(place(folder, rest)));
    for (returned, node, message, names) in [
        (&["s"][..], 0, opened(Some(3), None), &["s"][..]),
        (&[], 0, opened(Some(0), None), &["s"]),
        (&["s"], 0, refused(ErrorKind::Refused), &["s"]),
        (&["r"], 0, refused(ErrorKind::Refused), &[]),
        (&["s"], 0, refused(ErrorKind::Interrupted), &[]),
        (&["r"], 1, elsewhere(6, "d/copy"), &["r"]),
        (&["r"], 1, elsewhere(4, "disk/d/copy"), &["r"]),
    ] {
        let mut c = first(returned);
        c.earlier.files.clone_from(&known.files);
        c.earlier.places.clone_from(&known.places);
        c.handle_message(node, message, Instant(1));
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
        assert_eq!(gone(&c), names, "{returned:?}, {node}");
    }
    for (returned, message) in [
        (&["r"][..], receiver),
        // The folder, and then the copy, were made since.
        (&["r"], elsewhere(8, "copy")),
        (&["r"], elsewhere(9, "")),
        (&["s"], elsewhere(6, "d/copy")),
    ] {
        let mut c = first(returned);
        c.earlier.files.clone_from(&known.files);
        c.earlier.places.clone_from(&known.places);
        c.handle_message(0, opened(Some(4), None), Instant(1));
        c.handle_message(1, message, Instant(1));
        assert_eq!(outcome(&actions(&mut c)), None, "{returned:?}");
    }
}

/// A node that removes what no source has says how far it is, which is shown once nothing moves any more, and until it is done.
#[test]
fn a_removal_is_shown_while_nothing_moves() {
    let (mut c, _) = started(pair());
    let all = c.wanted_bytes();
    let mut status = |checked, removed: Option<u64>, second: u64| {
        let status = control::Status {
            checked,
            removing: removed.map(|done| control::Removing { done, total: 900 }),
            ..control::Status::default()
        };
        let body = from_agent::Body::Status(status);
        c.handle_message(1, from(body), Instant(second * 1_000_000_000));
        c.busy().map(|(node, busy)| (node, busy.clone()))
    };
    let removing = |done| Some((1, Busy::Removing { done, total: 900 }));
    assert_eq!(status(1, None, 10), None);
    assert_eq!(status(all / 2, Some(1), 11), None, "it moves");
    assert_eq!(status(all, Some(2), 12), removing(2));
    assert_eq!(status(all, Some(3), 13), removing(3));
    assert_eq!(status(all, None, 14), None);
}

/// A node whose disk does not answer says so, and the user sees it once.
#[test]
fn a_hung_disk_is_said_once() {
    let (mut c, _) = started(pair());
    for second in 11..14 {
        let status = control::Status {
            hung: "writes to /y have not finished for 60 s".into(),
            ..control::Status::default()
        };
        c.handle_message(1, from(from_agent::Body::Status(status)), Instant(second));
    }
    assert_eq!(c.notes(), ["b: writes to /y have not finished for 60 s"]);
}
