//! Nodes that say nothing: when they are lost, and when that is not their doing.

use super::tests::{SECOND, actions, begun, done, from, node, opened, outcome, pass, started};
use super::*;
use crate::control::Finished;

/// Silence has an end: a node that says nothing is lost after the stated time and not before.
#[test]
fn a_silent_node_is_lost() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    pass(&mut c, 10, 10 + SILENCE_TIME_MAX.0);
    assert!(c.summary()[1].lost.is_none());
    c.handle_timer(Instant(11 + SILENCE_TIME_MAX.0));
    assert!(c.summary()[1].lost.is_some());
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Failed));
}

/// Before that it is named, once, and not where it answers.
#[test]
fn a_silent_node_is_named() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    let status = || from(from_agent::Body::Status(control::Status::default()));
    let named = |c: &Coordinator| {
        let notes = c.notes().iter();
        let notes = notes.filter(|note| note.contains("has not answered"));
        notes.map(|note| note[..1].to_owned()).collect::<Vec<_>>()
    };
    for second in 1..=9 {
        c.handle_message(0, status(), Instant(second * SECOND));
        pass(&mut c, second * SECOND, (second + 1) * SECOND);
        let wanted: &[&str] = if second < 5 { &[] } else { &["b"] };
        assert_eq!(named(&c), wanted, "{second}");
    }
    // It was stopped for a while.
    c.handle_message(1, status(), Instant(10 * SECOND));
    pass(&mut c, 10 * SECOND, 14 * SECOND);
    assert!(c.summary()[1].lost.is_none());
}

/// Nodes that write a shared copy are sent how long they count among its writers, as long as they are heard of.
#[test]
fn writers_of_a_shared_copy_have_permits() {
    let (mut c, told) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("set")),
        node("c", &[], &[(0, 100)], Some("set")),
        node("d", &[], &[(0, 100)], None),
    ]);
    let permit = |action: &Action| match action {
        Action::Send(node, message) => match &message.body {
            Some(to_agent::Body::Plan(plan)) => plan.permit.map(|permit| (*node, permit)),
            Some(to_agent::Body::Permit(permit)) => Some((*node, *permit)),
            _ => None,
        },
        _ => None,
    };
    let planned: Vec<u32> = told
        .iter()
        .filter_map(permit)
        .map(|(node, _)| node)
        .collect();
    assert_eq!(planned, [1, 2]);
    let status = || from(from_agent::Body::Status(control::Status::default()));
    let mut last = [0; 4];
    for second in 1..=14 {
        for heard in [0, 1, 3] {
            c.handle_message(heard, status(), Instant(second * SECOND));
        }
        c.handle_timer(Instant(second * SECOND));
        for (node, permit) in actions(&mut c).iter().filter_map(permit) {
            assert_eq!(permit.at, second * SECOND);
            last[node as usize] = permit.at + permit.left;
        }
    }
    assert!(last[1] > 20 * SECOND, "{last:?}");
    assert!(last[2] <= 11 * SECOND, "{last:?}");
    assert_eq!((last[0], last[3]), (0, 0));
    // It ends before others write its part.
    assert!(c.summary()[2].lost.is_none());
}

/// What lies in the connections of a driver that was stopped while files get their names is not late.
#[test]
fn a_stopped_driver_refuses_nothing() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(nodes);
    c.handle_message(1, done(100, &[]), Instant(SECOND));
    c.handle_timer(Instant(2 * SECOND));
    // Files get their names: the answer lies there when the driver goes on.
    let back = 2 * SECOND + 10 * FINISH_TIME_MAX.0;
    c.handle_timer(Instant(back));
    assert_eq!(outcome(&actions(&mut c)), None);
    for node in [0, 1] {
        let finished = from(from_agent::Body::Finished(Finished::default()));
        c.handle_message(node, finished, Instant(back));
    }
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Done));
    assert!(c.summary().iter().all(|node| node.lost.is_none()));
}

/// Ctrl-C does not wait long for a node that is stopped, and names it.
#[test]
fn cancelling_waits_little_for_silent_nodes() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    c.handle_cancel();
    let finished = from(from_agent::Body::Finished(Finished::default()));
    c.handle_message(0, finished, Instant(SECOND));
    pass(&mut c, SECOND, SILENCE_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), None);
    assert!(
        c.notes()
            .iter()
            .any(|note| note.starts_with("b has not answered"))
    );
    pass(&mut c, SILENCE_TIME_MAX.0, 4 * SECOND + SILENCE_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Cancelled));
}

/// A driver that was stopped for long finds nobody silent before it has read what came meanwhile, and those that stay
/// silent then.
#[test]
fn a_stopped_driver_loses_nobody() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    pass(&mut c, 10, 3 * SECOND);
    let back = 3 * SECOND + 4 * SILENCE_TIME_MAX.0;
    c.handle_timer(Instant(back));
    let lost = |c: &Coordinator| {
        c.summary()
            .iter()
            .map(|n| n.lost.is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(lost(&c), [false, false]);
    c.handle_message(
        0,
        from(from_agent::Body::Status(control::Status::default())),
        Instant(back),
    );
    pass(&mut c, back, back + SILENCE_TIME_MAX.0);
    assert_eq!(lost(&c), [false, true]);
}

/// A sender whose bytes still come is there, whatever has become of its own word.
#[test]
fn a_sender_whose_bytes_come_is_not_silent() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    let delivered = |bytes: u64| {
        from(from_agent::Body::Status(control::Status {
            pairs: vec![control::PairStatus {
                sender: 0,
                delivered: bytes,
                ..control::PairStatus::default()
            }],
            ..control::Status::default()
        }))
    };
    let half = SILENCE_TIME_MAX.0 / 2;
    for (look, bytes) in [(1, 10), (2, 20), (3, 30), (4, 30), (5, 30)] {
        c.handle_message(1, delivered(bytes), Instant(10 + look * half));
        pass(&mut c, 10 + (look - 1) * half, 10 + look * half);
    }
    assert!(c.summary()[0].lost.is_none());
    c.handle_message(1, delivered(30), Instant(11 + 5 * half));
    c.handle_timer(Instant(11 + 5 * half));
    assert!(c.summary()[0].lost.is_some());
}

/// A sender that fell silent after its work was done costs two seconds, not the outcome.
#[test]
fn a_sender_without_a_last_word_costs_little() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    c.handle_message(1, done(100, &[]), Instant(15));
    c.handle_message(
        1,
        from(from_agent::Body::Finished(Finished::default())),
        Instant(16),
    );
    c.handle_timer(Instant(20));
    assert_eq!(outcome(&actions(&mut c)), None);
    pass(&mut c, 20, 21 + FAREWELL_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Done));
}

/// What a receiver without anything to rename has still to say is not waited for long, and its end is no failure.
#[test]
fn a_receiver_without_a_last_word_costs_little() {
    for dies in [false, true] {
        let (mut c, _) = started(vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
        ]);
        c.handle_message(1, done(100, &[]), Instant(15));
        c.handle_message(
            0,
            from(from_agent::Body::Finished(Finished::default())),
            Instant(16),
        );
        if dies {
            c.handle_lost(1, "connection reset", Instant(17));
        }
        pass(&mut c, 20, 21 + FAREWELL_TIME_MAX.0);
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Done));
        assert!(
            c.notes()
                .iter()
                .any(|note| note.starts_with("b disconnected before its final report"))
        );
    }
}

fn scanning(c: &mut Coordinator, entries: u64, second: u64) {
    let status = control::SenderStatus {
        scanning: Some(control::Scanning { entries }),
        ..control::SenderStatus::default()
    };
    let now = Instant(second * SECOND);
    c.handle_message(0, from(from_agent::Body::SenderStatus(status)), now);
    c.handle_timer(now);
}

/// A tree of any size may be read for any time; one of which nothing more is found is reported after a minute, and is late in the end.
#[test]
fn long_scans_are_waited_for() {
    let limit = OPEN_TIME_MAX.whole_seconds();
    for gets_on in [true, false] {
        let nodes = vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
        ];
        let mut c = begun(nodes.clone(), None);
        actions(&mut c);
        c.handle_message(1, opened(&nodes[1], 1), Instant(1));
        let end = 3 * limit;
        (1..=end).for_each(|second| scanning(&mut c, second * 1000, second));
        let told = actions(&mut c);
        assert!(told.iter().any(|action| matches!(action, Action::Progress)));
        assert!(outcome(&told).is_none());
        assert!(!told.iter().any(|action| matches!(action, Action::Note(_))));
        let entries = end * 1000;
        assert_eq!(c.busy(), Some((0, &Busy::Scanning { entries })));
        if gets_on {
            c.handle_message(0, opened(&nodes[0], 1), Instant((end + 1) * SECOND));
            assert_eq!(c.busy(), None);
            assert!(
                actions(&mut c)
                    .iter()
                    .any(|action| matches!(action, Action::Plan(..)))
            );
            continue;
        }
        (end..=end + limit).for_each(|second| scanning(&mut c, entries, second));
        let told = actions(&mut c);
        let notes: Vec<&Action> = told
            .iter()
            .filter(|action| matches!(action, Action::Note(_)))
            .collect();
        let [Action::Note(note)] = notes.as_slice() else {
            panic!("{notes:?}")
        };
        assert!(
            note.starts_with("a: no further file") && note.contains("60 s"),
            "{note}"
        );
        assert!(outcome(&told).is_none());
        scanning(&mut c, entries, end + limit + 1);
        let told = actions(&mut c);
        let [.., Action::End(Outcome::Refused, Some(text))] = told.as_slice() else {
            panic!("{told:?}")
        };
        assert!(text.contains("within 300 s from a"), "{text}");
    }
}
