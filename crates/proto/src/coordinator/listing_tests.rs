//! A dry run asks receivers what they would do, and ends without a plan.

use super::membership_tests::{opened_trees, opening_with, with_tree};
use super::tests::{actions, from, outcome, sent};
use super::*;
use crate::control::{Change, Listed, Listing, Look, Present, Stretch};
use crate::report::{DryRunReport, ErrorKind};

/// `s` holds a tree of 100 bytes, `a` and `b` want it; all have opened what they have.
fn opened(destinations: Destinations) -> Coordinator {
    let options = control::Options {
        dry_run: true,
        ..control::Options::default()
    };
    opened_by(destinations, options)
}

fn opened_by(destinations: Destinations, options: control::Options) -> Coordinator {
    let nodes = vec![
        with_tree("s", true),
        with_tree("a", false),
        with_tree("b", false),
    ];
    let mut c = opening_with(nodes, destinations, options);
    actions(&mut c);
    c.handle_message(0, opened_trees(1, 1), Instant(1));
    for node in 1..3 {
        c.handle_message(node, opened_trees(0, 1), Instant(1));
    }
    c
}

fn is_asked(actions: &[Action], node: u32) -> bool {
    let decides =
        |body: &&to_agent::Body| matches!(body, to_agent::Body::Look(Look { decides: true, .. }));
    sent(actions, node).iter().any(decides)
}

fn say(c: &mut Coordinator, node: u32, body: from_agent::Body) -> Vec<Action> {
    c.handle_message(node, from(body), Instant(2));
    let told = actions(c);
    let is_plan = |body: &&to_agent::Body| matches!(body, to_agent::Body::Plan(_));
    assert!((0..3).all(|node| !sent(&told, node).iter().any(is_plan)));
    assert!(!told.iter().any(|a| matches!(a, Action::Plan(..))));
    told
}

fn listing() -> from_agent::Body {
    let mut made = Listed {
        path: b"d".to_vec(),
        ..Listed::default()
    };
    made.set_change(Change::Make);
    let file = Listed {
        path: b"d/f".to_vec(),
        length: 60,
        ..Listed::default()
    };
    from_agent::Body::Listing(Listing {
        entries: vec![made, file],
    })
}

fn present(last: bool) -> from_agent::Body {
    from_agent::Body::Present(Present {
        ranges: vec![Stretch {
            start: 0,
            length: 40,
        }],
        files: 1,
        last,
        ..Present::default()
    })
}

fn failed() -> from_agent::Body {
    from_agent::Body::Present(Present {
        failed: "no such folder".into(),
        last: true,
        ..Present::default()
    })
}

/// Each receiver of an own copy lists, one after the other; what they list is shown and counted, then all ends.
#[test]
fn each_copy_is_listed() {
    let mut c = opened(Destinations::Copies);
    let told = actions(&mut c);
    assert!(is_asked(&told, 1) && !is_asked(&told, 2));
    assert!(matches!(sent(&told, 0)[..], [to_agent::Body::Look(_)]));
    // It is not asked yet.
    assert!(say(&mut c, 2, listing()).is_empty());
    for node in [1, 2] {
        let told = say(&mut c, node, listing());
        assert!(
            matches!(&told[..], [Action::Listed(at, entries)] if *at == node && entries.len() == 2)
        );
        let told = say(&mut c, node, present(true));
        assert_eq!(is_asked(&told, 2), node == 1);
        assert_eq!(outcome(&told), (node == 2).then_some(Outcome::Done));
    }
    let found = DryRunReport {
        send_files: 2,
        send_bytes: 120,
        make_folders: 2,
        ..DryRunReport::default()
    };
    assert_eq!(c.dry_run(), Some(found));
    assert_eq!(c.wanted_bytes(), 120);
}

/// What only a destination has is named by its path there, other files below the name of the source.
#[test]
fn what_a_destination_has_is_named_there() {
    let mut c = opened(Destinations::Copies);
    c.setup.source_name = "set".into();
    assert_eq!(c.file_name("d/f"), "set/d/f");
    assert_eq!(c.name_at_destination(1, "d/f"), "/tree/d/f");
    assert_eq!(c.name_at_destination(1, ""), "/tree");
    // It has no destination.
    assert_eq!(c.name_at_destination(0, "d/f"), "set/d/f");
}

/// Of a shared copy one receiver lists; where it cannot, or is lost, the next one does, and what it listed counts for nothing.
#[test]
fn one_receiver_lists_a_shared_copy() {
    let mut c = opened(Destinations::Shared);
    actions(&mut c);
    say(&mut c, 1, listing());
    let told = say(&mut c, 1, present(true));
    assert_eq!(outcome(&told), Some(Outcome::Done));
    assert!(!is_asked(&told, 2));
    assert_eq!(c.wanted_bytes(), 60);
    for is_lost in [false, true] {
        let mut c = opened(Destinations::Shared);
        assert!(is_asked(&actions(&mut c), 1));
        say(&mut c, 1, listing());
        let told = match is_lost {
            false => say(&mut c, 1, failed()),
            true => {
                c.handle_lost(1, "gone", Instant(3));
                actions(&mut c)
            }
        };
        assert!(is_asked(&told, 2));
        say(&mut c, 2, listing());
        let told = say(&mut c, 2, present(true));
        assert_eq!(outcome(&told), Some(Outcome::Done));
        assert_eq!(c.dry_run().unwrap().send_bytes, 60);
        assert_eq!(c.wanted_bytes(), 60);
    }
}

/// What the copy would be refused for refuses the dry run.
#[test]
fn what_cannot_be_done_is_refused() {
    let mut c = opened(Destinations::Copies);
    actions(&mut c);
    assert_eq!(outcome(&say(&mut c, 1, failed())), Some(Outcome::Refused));
    for lost in [0, 1, 2] {
        let mut c = opened(Destinations::Copies);
        actions(&mut c);
        c.handle_lost(lost, "gone", Instant(3));
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused), "{lost}");
    }
}

/// What differs is counted by how, over all copies, and makes a comparison partial; it is no dry run to its user.
#[test]
fn what_differs_is_counted() {
    for differs in [false, true] {
        let mut c = opened(Destinations::Copies);
        c.setup.options.compares = true;
        actions(&mut c);
        let mut told = Vec::new();
        for node in [1, 2] {
            let entries = [Change::Missing, Change::Contents].into_iter();
            let entries = entries.filter(|_| differs).map(|change| {
                let mut listed = Listed::default();
                listed.set_change(change);
                listed
            });
            let entries = entries.collect();
            say(&mut c, node, from_agent::Body::Listing(Listing { entries }));
            told = say(&mut c, node, present(true));
        }
        let found = c.check_report().unwrap();
        let each = if differs { 2 } else { 0 };
        assert_eq!(
            (found.missing, found.contents, found.differing()),
            (each, each, 2 * each)
        );
        let (expected, kind) = match differs {
            false => (Outcome::Done, None),
            true => (Outcome::Partial, Some(ErrorKind::Differing)),
        };
        assert_eq!((outcome(&told), c.failure_kind()), (Some(expected), kind));
        assert_eq!(c.dry_run(), None);
    }
}

/// A copy that lists what it does goes on as any other when all receivers have: what they have is counted once, with the plan.
#[test]
fn a_copy_is_listed_and_carried_out() {
    for destinations in [Destinations::Copies, Destinations::Shared] {
        let is_shared = destinations == Destinations::Shared;
        let mut c = opened_by(
            destinations,
            control::Options {
                lists: true,
                ..control::Options::default()
            },
        );
        let told = actions(&mut c);
        assert!(is_asked(&told, 1) && !is_asked(&told, 2));
        let listers: &[u32] = if is_shared { &[1] } else { &[1, 2] };
        let mut told = Vec::new();
        for node in listers {
            say(&mut c, *node, listing());
            c.handle_message(*node, from(present(true)), Instant(2));
            told = actions(&mut c);
        }
        assert_eq!(c.dry_run(), None);
        assert_eq!(c.wanted_bytes(), if is_shared { 100 } else { 200 });
        assert!(c.has_listed());
        if is_shared {
            // It decides what is there, as without a list.
            let is_look = |body: &&to_agent::Body| {
                matches!(
                    body,
                    to_agent::Body::Look(Look {
                        decides: true,
                        lists: false,
                        ..
                    })
                )
            };
            assert!(sent(&told, 1).iter().any(is_look));
            c.handle_message(1, from(present(true)), Instant(3));
            told = actions(&mut c);
        }
        assert!(told.iter().any(|told| matches!(told, Action::Plan(..))));
    }
}
