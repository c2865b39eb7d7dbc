//! What of a shared copy is there is decided once, before any receiver may make a file.

use super::membership_tests::{opened_trees, opening_with, settle, with_tree};
use super::tests::{SECOND, actions, done, done_after, finish, from, outcome, pass, sent};
use super::*;
use crate::control::{Look, Present, Same, Stretch, There};

fn options(same: Same) -> control::Options {
    let mut options = control::Options::default();
    options.set_same(same);
    options
}

/// `s` holds a tree of 100 bytes, which `a`, `b` and `c` write together; all have opened what they have.
fn opened_by(same: Same) -> Coordinator {
    opened_with(options(same))
}

fn opened_with(options: control::Options) -> Coordinator {
    let receivers = ["a", "b", "c"].map(|name| with_tree(name, false));
    let mut nodes = vec![with_tree("s", true)];
    nodes.extend(receivers);
    let mut c = opening_with(nodes, Destinations::Shared, options);
    actions(&mut c);
    c.handle_message(0, opened_trees(1, 1), Instant(1));
    for node in 1..4 {
        c.handle_message(node, opened_trees(0, 1), Instant(1));
    }
    c
}

/// The nodes that are asked to look, as far as these actions go.
fn asked(actions: &[Action]) -> Vec<u32> {
    let asks = |node: &u32| {
        let decides = |body: &&to_agent::Body| {
            matches!(body, to_agent::Body::Look(Look { decides: true, .. }))
        };
        sent(actions, *node).iter().any(decides)
    };
    (0..4).filter(asks).collect()
}

/// Whether any node was sent a plan.
fn has_plan(actions: &[Action]) -> bool {
    let is_plan = |body: &&to_agent::Body| matches!(body, to_agent::Body::Plan(_));
    let is_asked = actions.iter().any(|a| matches!(a, Action::Plan(..)));
    is_asked || (0..5).any(|node| sent(actions, node).iter().any(is_plan))
}

fn look(c: &mut Coordinator, node: u32, present: Present, now_ns: u64) -> Vec<Action> {
    c.handle_message(
        node,
        from(from_agent::Body::Present(present)),
        Instant(now_ns),
    );
    actions(c)
}

fn found(start: u64, length: u64) -> Present {
    Present {
        ranges: vec![Stretch { start, length }],
        files: 2,
        last: true,
        ..Present::default()
    }
}

fn failed() -> Present {
    Present {
        failed: "no such folder".into(),
        last: true,
        ..Present::default()
    }
}

/// Lets all nodes finish, those that wait for another one included.
fn ended(c: &mut Coordinator) -> Option<Outcome> {
    let told: Vec<Action> = (0..2).flat_map(|_| finish(c, 4)).collect();
    outcome(&told)
}

/// Answers the plans that these actions ask for.
fn go_on(c: &mut Coordinator, told: Vec<Action>) -> Vec<Action> {
    let mut all = super::tests::answer(c, told);
    all.extend(settle(c));
    all
}

/// What each receiver is asked for together, by the plans among these actions.
fn planned(actions: &[Action]) -> RangeSet {
    let bodies = (0..5).flat_map(|node| sent(actions, node));
    let runs = bodies.filter_map(|body| match body {
        to_agent::Body::Plan(plan) => Some(&plan.runs),
        _ => None,
    });
    let ranges = runs
        .flatten()
        .map(|run| control::range(run.start, run.length));
    RangeSet::from_ranges(ranges)
}

/// Nobody has a plan before the first receiver has said all that it found; all receivers hear it before their plans, which are
/// of the rest, as are wants, bound and progress. The node that looked gives the copy its name.
#[test]
fn the_plan_waits_for_what_is_there() {
    let mut c = opened_by(Same::Kept);
    let told = actions(&mut c);
    assert_eq!(asked(&told), [1]);
    assert!(!has_plan(&told), "{told:?}");
    assert!(
        matches!(sent(&told, 0)[..], [to_agent::Body::Look(look)] if look.source_bases == [0] && look.parts.len() == 1)
    );
    assert!(
        matches!(sent(&told, 1)[..], [to_agent::Body::Look(look)] if look.peers.len() == 1 && look.peers[0].node == 0)
    );
    // What others say they see does not count, nor does the first part of what the one that looks says.
    assert!(look(&mut c, 2, found(0, 100), 2).is_empty());
    let part = Present {
        last: false,
        ..found(0, 30)
    };
    assert!(look(&mut c, 1, part, 3).is_empty());
    let adopted = Present {
        adopted: vec![Stretch {
            start: 65,
            length: 10,
        }],
        files: 0,
        ..found(30, 40)
    };
    let told = look(&mut c, 1, adopted, 4);
    for node in 1..4 {
        let there: Vec<There> = sent(&told, node)
            .into_iter()
            .map(|body| match body {
                to_agent::Body::There(there) => there.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        let (unchanged, adopted) = (
            Stretch {
                start: 0,
                length: 70,
            },
            Stretch {
                start: 70,
                length: 5,
            },
        );
        assert_eq!(there.len(), 2);
        assert_eq!(
            (&there[0].ranges[..], &there[1].adopted[..]),
            (&[unchanged][..], &[adopted][..])
        );
    }
    let told = go_on(&mut c, told);
    assert_eq!(planned(&told), RangeSet::from(control::range(75, 25)));
    let receivers = c.declared_problem().receivers;
    assert!(receivers.iter().all(|one| one.ranges.len_bytes() == 25));
    let summary = c.summary();
    assert_eq!((c.wanted_bytes(), summary[0].planned), (25, 25));
    let there: Vec<_> = summary
        .iter()
        .map(|n| (n.present, n.adopted, n.present_files))
        .collect();
    assert_eq!(there, [(0, 0, 0), (70, 5, 2), (0, 0, 0), (0, 0, 0)]);
    assert!(c.is_update());
    // It counts once, whatever is said later.
    look(&mut c, 1, found(80, 20), 5);
    assert_eq!(c.wanted_bytes(), 25);
    for node in [3, 2, 1] {
        let delivered = c.summary()[node as usize].wanted;
        c.handle_message(node, done(delivered, &[]), Instant(6));
    }
    let told = settle(&mut c);
    let names = |node| {
        sent(&told, node)
            .iter()
            .any(|body| matches!(body, to_agent::Body::Finish(f) if f.commit))
    };
    assert_eq!([1, 2, 3].map(names), [true, false, false]);
    assert_eq!(ended(&mut c), Some(Outcome::Done));
    assert_eq!((c.delivered_bytes(), c.missing().len()), (25, 0));
}

/// The receiver that looks dies, falls silent, or cannot look: the next one does, and what the first had begun to say is forgotten.
#[test]
fn another_one_looks() {
    type Gone = fn(&mut Coordinator);
    let gone: [Gone; 3] = [
        |c| c.handle_lost(1, "killed", Instant(SECOND)),
        |c| {
            let now_ns = SILENCE_TIME_MAX.0 + SECOND;
            for node in [0, 2, 3] {
                let status = control::SenderStatus::default();
                c.handle_message(
                    node,
                    from(from_agent::Body::SenderStatus(status)),
                    Instant(now_ns),
                );
            }
            for second in 1..=now_ns / SECOND {
                c.handle_timer(Instant(second * SECOND));
            }
        },
        |c| {
            c.handle_message(
                1,
                from(from_agent::Body::Present(failed())),
                Instant(SECOND),
            )
        },
    ];
    for (at, go) in gone.into_iter().enumerate() {
        let mut c = opened_by(Same::Kept);
        let part = Present {
            last: false,
            ..found(0, 60)
        };
        look(&mut c, 1, part, 2);
        go(&mut c);
        let told = actions(&mut c);
        assert_eq!(asked(&told), [2], "{at}");
        assert!(!has_plan(&told), "{at}");
        // Too late.
        assert!(look(&mut c, 1, found(0, 100), 40 * SECOND).is_empty());
        let told = look(&mut c, 2, found(50, 20), 40 * SECOND);
        let told = go_on(&mut c, told);
        let rest = RangeSet::from_ranges([control::range(0, 50), control::range(70, 30)]);
        assert_eq!(planned(&told), rest, "{at}");
        assert_eq!(c.summary()[2].present, 20);
        for node in [1, 2, 3].into_iter().filter(|node| *node != 1 || at == 2) {
            let delivered = c.summary()[node as usize].wanted;
            c.handle_message(node, done(delivered, &[]), Instant(41 * SECOND));
        }
        settle(&mut c);
        assert_eq!(ended(&mut c), Some(Outcome::Done), "{at}: {:?}", c.notes());
    }
}

/// Where no receiver can look, all is sent; without a receiver, or without the only holder, nothing is.
#[test]
fn nobody_can_look() {
    let mut c = opened_by(Same::Kept);
    actions(&mut c);
    for node in 1..3 {
        assert_eq!(asked(&look(&mut c, node, failed(), 2)), [node + 1]);
    }
    let told = look(&mut c, 3, failed(), 3);
    let told = go_on(&mut c, told);
    assert_eq!(planned(&told).len_bytes(), 100);
    assert!(!c.is_update());

    let mut c = opened_by(Same::Kept);
    for node in 1..4 {
        c.handle_lost(node, "killed", Instant(2));
    }
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
    let mut c = opened_by(Same::Kept);
    c.handle_lost(0, "killed", Instant(2));
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
    let mut c = opened_by(Same::Kept);
    c.handle_cancel();
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Cancelled));
}

/// A node that looks because another one could not has the whole time for it, and no more.
#[test]
fn the_next_one_has_the_whole_time() {
    let mut c = opened_by(Same::Kept);
    actions(&mut c);
    let asked_at = OPEN_TIME_MAX.0 - SECOND;
    assert_eq!(asked(&look(&mut c, 1, failed(), asked_at)), [2]);
    pass(&mut c, asked_at, OPEN_TIME_MAX.0 + SECOND);
    assert_eq!(outcome(&actions(&mut c)), None, "{:?}", c.notes());
    pass(
        &mut c,
        OPEN_TIME_MAX.0 + SECOND,
        asked_at + OPEN_TIME_MAX.0 + 1,
    );
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
}

/// The decision stands when the node that made it dies: the others write the rest, and one of them gives the copy its name.
#[test]
fn the_decision_outlives_its_node() {
    let mut c = opened_by(Same::Kept);
    actions(&mut c);
    let told = look(&mut c, 1, found(0, 90), 2);
    go_on(&mut c, told);
    c.handle_lost(1, "killed", Instant(3));
    let told = settle(&mut c);
    assert!(asked(&told).is_empty());
    assert_eq!((c.wanted_bytes(), c.nodes[2].wants.len_bytes()), (10, 10));
    for node in [2, 3] {
        let (revision, delivered) = (
            c.nodes[node as usize].revision,
            c.nodes[node as usize].assigned_bytes(),
        );
        c.handle_message(node, done_after(revision, delivered, &[]), Instant(4));
    }
    let told = settle(&mut c);
    let names = |node| {
        sent(&told, node)
            .iter()
            .any(|body| matches!(body, to_agent::Body::Finish(f) if f.commit))
    };
    assert_eq!([2, 3].map(names), [true, false], "{told:?}");
    assert_eq!(ended(&mut c), Some(Outcome::Done), "{:?}", c.notes());
}

/// What an earlier transfer left is read back by the node that took it over, and by no other one: where that node is lost before, or
/// finds other bytes, the copy is not complete.
#[test]
fn what_was_taken_over_is_read_back() {
    type End = fn(&mut Coordinator);
    let ends: [(End, Outcome); 3] = [
        (
            |c| {
                let (revision, delivered) = (c.nodes[1].revision, c.nodes[1].assigned_bytes());
                c.handle_message(1, done_after(revision, delivered, &[]), Instant(3));
            },
            Outcome::Done,
        ),
        (|c| c.handle_lost(1, "killed", Instant(3)), Outcome::Failed),
        (
            |c| {
                let differs = control::Done {
                    error: "bytes 0-9 read back from the sink differ".into(),
                    ..control::Done::default()
                };
                c.handle_message(1, from(from_agent::Body::Done(differs)), Instant(3));
            },
            Outcome::Failed,
        ),
    ];
    for (at, (end, expected)) in ends.into_iter().enumerate() {
        let mut options = options(Same::Kept);
        options.set_verify(control::Verify::Sink);
        let mut c = opened_with(options);
        actions(&mut c);
        let adopted = Present {
            adopted: vec![Stretch {
                start: 0,
                length: 40,
            }],
            last: true,
            ..Present::default()
        };
        let told = look(&mut c, 1, adopted, 2);
        go_on(&mut c, told);
        end(&mut c);
        settle(&mut c);
        for node in [2, 3] {
            let state = &c.nodes[node as usize];
            let (revision, delivered) = (state.revision, state.assigned_bytes());
            c.handle_message(node, done_after(revision, delivered, &[]), Instant(4));
        }
        settle(&mut c);
        assert_eq!(ended(&mut c), Some(expected), "{at}: {:?}", c.notes());
        let is_named = c.destinations()[0].complete;
        assert_eq!(is_named, expected == Outcome::Done, "{at}");
    }
}

/// A receiver that joins hears what was decided before it gets its plan, and wants only the rest.
#[test]
fn one_that_joins_hears_what_is_there() {
    let mut c = opened_by(Same::Kept);
    actions(&mut c);
    assert_eq!(
        c.handle_join(with_tree("d", false), Instant(2)),
        Err(JoinError::NotMoving)
    );
    let told = look(&mut c, 1, found(0, 90), 2);
    go_on(&mut c, told);
    let new = c.handle_join(with_tree("d", false), Instant(3)).unwrap();
    actions(&mut c);
    c.handle_message(new, opened_trees(0, 1), Instant(4));
    let told = settle(&mut c);
    let bodies = sent(&told, new);
    assert!(
        matches!(bodies[..], [to_agent::Body::There(there), to_agent::Body::Plan(_)] if there.ranges.len() == 1),
        "{bodies:?}"
    );
    assert_eq!((c.nodes[4].wants.len_bytes(), c.wanted_bytes()), (10, 10));
}

/// Where files that are there are to be sent, nobody looks; nor where each receiver has a copy of its own.
#[test]
fn nobody_looks_in_vain() {
    let mut c = opened_by(Same::Sent);
    let told = actions(&mut c);
    assert!(asked(&told).is_empty());
    let told = go_on(&mut c, told);
    assert_eq!(planned(&told).len_bytes(), 100);
    let nodes = vec![with_tree("s", true), with_tree("a", false)];
    let mut c = opening_with(nodes, Destinations::Copies, options(Same::Kept));
    actions(&mut c);
    c.handle_message(0, opened_trees(1, 1), Instant(1));
    c.handle_message(1, opened_trees(0, 1), Instant(1));
    let told = actions(&mut c);
    assert!(asked(&told).is_empty() && has_plan(&told));
}

/// A transfer that is refused while a node looks awaits no answer; one that is under way changes nothing.
#[test]
fn a_transfer_that_ends_awaits_no_answer() {
    let mut c = opened_by(Same::Kept);
    assert_eq!(asked(&actions(&mut c)), [1]);
    c.handle_lost(0, "gone", Instant(2));
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
    c.check();
    assert!(look(&mut c, 1, found(0, 50), 3).is_empty());
    c.check();
}

/// A receiver that compares contents is given time as long as it gets on, forwards or again from the start; one that does not is late.
#[test]
fn a_node_that_compares_is_not_late() {
    for gets_on in [true, false] {
        let mut c = opened_by(Same::Contents);
        let most = 3 * OPEN_TIME_MAX.0 / SECOND;
        let mut told = Vec::new();
        for second in 2..most {
            for node in 0..4 {
                let comparing = control::Comparing {
                    done: if gets_on { second % 400 } else { 5 },
                    total: 1000,
                    ..control::Comparing::default()
                };
                let status = control::SenderStatus {
                    comparing: Some(comparing).filter(|_| node == 1),
                    ..control::SenderStatus::default()
                };
                let body = from_agent::Body::SenderStatus(status);
                c.handle_message(node, from(body), Instant(second * SECOND));
            }
            c.handle_timer(Instant(second * SECOND));
            told.extend(actions(&mut c));
        }
        let refused = outcome(&told) == Some(Outcome::Refused);
        assert_eq!(refused, !gets_on);
        let is_shown = |action: &Action| matches!(action, Action::Comparing(1, 5, 1000));
        assert!(told.iter().any(is_shown));
    }
}

/// A receiver that waits for an earlier transfer to end is not late, however long it waits, and what it waits for is known.
#[test]
fn a_node_that_waits_for_an_end_is_not_late() {
    let mut c = opened_by(Same::Kept);
    let mut told = Vec::new();
    for second in 2..3 * OPEN_TIME_MAX.0 / SECOND {
        for node in 0..4 {
            let awaited = control::AwaitedEnd {
                path: "/copy".into(),
                waited: second * SECOND,
            };
            let status = control::SenderStatus {
                awaited_end: Some(awaited).filter(|_| node == 1),
                ..control::SenderStatus::default()
            };
            let body = from_agent::Body::SenderStatus(status);
            c.handle_message(node, from(body), Instant(second * SECOND));
        }
        c.handle_timer(Instant(second * SECOND));
        let is_known =
            matches!(c.busy(), Some((1, Busy::AwaitingEnd { path, .. })) if path == "/copy");
        assert!(is_known, "{:?}", c.busy());
        told.extend(actions(&mut c));
    }
    assert_eq!(outcome(&told), None);
    assert!(told.iter().any(|told| matches!(told, Action::Progress)));
    let notes = told.iter().filter_map(|told| match told {
        Action::Note(text) => Some(text),
        _ => None,
    });
    let notes: Vec<_> = notes.collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].ends_with("waits for an earlier transfer to /copy to end"));
    let status = from_agent::Body::SenderStatus(control::SenderStatus::default());
    c.handle_message(1, from(status), c.clock.now);
    assert_eq!(c.busy(), None);
}

/// Chunks that files of a copy have are adopted bytes that no earlier run wrote.
#[test]
fn chunks_count_apart() {
    let mut c = opened_by(Same::Contents);
    let present = Present {
        adopted: vec![Stretch {
            start: 10,
            length: 50,
        }],
        taken_bytes: 30,
        ..found(70, 20)
    };
    look(&mut c, 1, present, 2);
    let node = &c.summary()[1];
    assert_eq!((node.present, node.adopted, node.taken), (20, 50, 30));
    assert_eq!(c.wanted_bytes(), 30);
}
