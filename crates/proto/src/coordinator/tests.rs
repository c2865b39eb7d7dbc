//! The master's state machine, message by message, without a network.

use super::*;
use crate::control::{
    Done, Finished, Need, Opened, OpenedSource, PairDone, Row, Sink, Source, Stretch, range,
};
use ropewalk_model::{ByteRate, Link};
use std::collections::BTreeMap;

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) fn node(
    name: &str,
    holds: &[(u64, u64)],
    wants: &[(u64, u64)],
    shared: Option<&str>,
) -> NodeSetup {
    let rows = |list: &[(u64, u64)]| {
        list.iter()
            .map(|&(start, length)| Row {
                object: b"/f".to_vec(),
                object_offset: start,
                start,
                length,
            })
            .collect::<Vec<_>>()
    };
    let source = SourceSetup {
        source: Source {
            kind: None,
            rows: rows(holds),
        },
        base: 0,
    };
    let sink = SinkSetup {
        sink: Sink {
            kind: None,
            rows: rows(wants),
            shared: shared.is_some(),
            ..Sink::default()
        },
        destination: shared.map(str::to_owned),
    };
    NodeSetup {
        name: name.into(),
        sources: if holds.is_empty() {
            vec![]
        } else {
            vec![source]
        },
        sinks: if wants.is_empty() { vec![] } else { vec![sink] },
        up: None,
        down: None,
        remembered_up: None,
        remembered_down: None,
        interfaces: Vec::new(),
        is_here: false,
        reached_at: None,
    }
}

pub(super) fn opened(node: &NodeSetup, modified: i64) -> FromAgent {
    let identities = |s: &SourceSetup| {
        s.source
            .rows
            .iter()
            .map(|_| control::Identity {
                length: 1000,
                modified_seconds: modified,
                modified_nanoseconds: 0,
                mode: None,
                ..control::Identity::default()
            })
            .collect()
    };
    let sources = node
        .sources
        .iter()
        .map(|s| OpenedSource {
            identities: identities(s),
            ..OpenedSource::default()
        })
        .collect();
    from(from_agent::Body::Opened(Opened {
        sources,
        ..Opened::default()
    }))
}

pub(super) fn from(body: from_agent::Body) -> FromAgent {
    FromAgent { body: Some(body) }
}

pub(super) fn actions(coordinator: &mut Coordinator) -> Vec<Action> {
    std::iter::from_fn(|| coordinator.poll_action()).collect()
}

/// Answers a plan with everything from the first sender that holds it.
pub(super) fn answer(coordinator: &mut Coordinator, actions: Vec<Action>) -> Vec<Action> {
    let mut out = Vec::new();
    for action in actions {
        let Action::Plan(purpose, problem) = action else {
            out.push(action);
            continue;
        };
        let mut all_taken: BTreeMap<&str, RangeSet> = BTreeMap::new();
        let mut runs = Vec::new();
        for receiver in &problem.receivers {
            let mut mine = Vec::new();
            let mut own = RangeSet::new();
            let taken = match &receiver.destination {
                Some(name) => all_taken.entry(name).or_default(),
                None => &mut own,
            };
            let mut open = receiver.ranges.difference(taken);
            for (at, sender) in problem.senders.iter().enumerate() {
                for part in sender.ranges.intersection(&open).iter() {
                    mine.push(PlannedRun {
                        range: part,
                        sender: at,
                        spares: vec![],
                        relay: None,
                    });
                    open.remove(part);
                    taken.insert(part);
                }
            }
            runs.push(mine);
        }
        coordinator.handle_planned(
            &purpose,
            Ok(Planned {
                runs,
                ..Planned::default()
            }),
            Instant(10),
        );
        out.extend(self::actions(coordinator));
    }
    out
}

/// A transfer that has asked its nodes to open what they have.
pub(super) fn begun(nodes: Vec<NodeSetup>, limit: Option<u64>) -> Coordinator {
    begun_over(nodes, limit, Vec::new())
}

/// The same, with caps and trunks.
pub(super) fn begun_over(
    nodes: Vec<NodeSetup>,
    limit: Option<u64>,
    links: Vec<Link>,
) -> Coordinator {
    let setup = Setup {
        transfer: vec![1; 16],
        nodes,
        mapping: Mapping::Rows,
        limit: limit.map(ByteRate),
        options: control::Options {
            // Nothing of an earlier transfer is looked for.
            same: control::Same::Sent.into(),
            ..control::Options::default()
        },
        rails: Rails::default(),
        tune: None,
        lessons: Vec::new(),
        incomplete: Incomplete::Removed,
        filter: Vec::new(),
        files: None,
        links,
        source_name: String::new(),
        relay: Relay::Off,
    };
    let mut coordinator = Coordinator::new(setup, Instant(0));
    coordinator.start(Instant(0));
    actions(&mut coordinator);
    coordinator
}

pub(super) fn started(nodes: Vec<NodeSetup>) -> (Coordinator, Vec<Action>) {
    started_with(nodes, None)
}

pub(super) fn started_with(
    nodes: Vec<NodeSetup>,
    limit: Option<u64>,
) -> (Coordinator, Vec<Action>) {
    let mut coordinator = begun(nodes.clone(), limit);
    for (at, node) in nodes.iter().enumerate() {
        coordinator.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let first = actions(&mut coordinator);
    let rest = answer(&mut coordinator, first);
    (coordinator, rest)
}

pub(super) fn sent(actions: &[Action], to: u32) -> Vec<&to_agent::Body> {
    actions
        .iter()
        .filter_map(|a| match a {
            Action::Send(node, message) if *node == to => message.body.as_ref(),
            _ => None,
        })
        .collect()
}

pub(super) fn done(delivered: u64, missing: &[(u64, u64)]) -> FromAgent {
    done_after(0, delivered, missing)
}

/// The word of a node that has seen so many revisions.
pub(super) fn done_after(revision: u32, delivered: u64, missing: &[(u64, u64)]) -> FromAgent {
    from(from_agent::Body::Done(Done {
        delivered,
        missing: missing
            .iter()
            .map(|&(start, length)| Stretch { start, length })
            .collect(),
        pairs: vec![PairDone {
            sender: 0,
            delivered,
            ..PairDone::default()
        }],
        revision,
        ..Done::default()
    }))
}

/// What came over several lanes from one sender is all its.
#[test]
fn lanes_of_one_sender_add_up() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(nodes);
    let pair = |delivered| PairDone {
        sender: 0,
        delivered,
        ..PairDone::default()
    };
    let done = Done {
        delivered: 100,
        pairs: vec![pair(70), pair(30)],
        ..Done::default()
    };
    c.handle_message(1, from(from_agent::Body::Done(done)), Instant(20));
    assert_eq!(c.summary()[0].sent, 100);
}

pub(super) fn finish(coordinator: &mut Coordinator, nodes: u32) -> Vec<Action> {
    for node in 0..nodes {
        let finished = Finished {
            committed: coordinator.nodes[node as usize].life().commits(),
            ..Finished::default()
        };
        coordinator.handle_message(
            node,
            from(from_agent::Body::Finished(finished)),
            Instant(20),
        );
    }
    actions(coordinator)
}

pub(super) fn outcome(actions: &[Action]) -> Option<Outcome> {
    actions.iter().find_map(|a| {
        if let Action::End(outcome, _) = a {
            Some(*outcome)
        } else {
            None
        }
    })
}

pub(super) fn released(start: u64, length: u64) -> FromAgent {
    from(from_agent::Body::Released(control::Released {
        ranges: vec![Stretch { start, length }],
    }))
}

/// The plain life of a transfer takes open, opened, plan, done (plus the farewell) per node.
#[test]
fn a_plain_transfer_ends_done() {
    let (mut c, planned) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    assert!(
        matches!(sent(&planned, 1)[..], [to_agent::Body::Plan(plan)] if plan.runs.len() == 1 && plan.commit)
    );
    c.handle_message(1, done(100, &[]), Instant(15));
    assert!(matches!(sent(&actions(&mut c), 0)[..], [to_agent::Body::Finish(f)] if !f.discard));
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Done));
}

/// Replicas whose files differ in time are refused before anything moves, naming both.
#[test]
fn stale_replicas_are_refused() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[(0, 100)], &[], None),
        node("c", &[], &[(0, 100)], None),
    ];
    let mut c = begun(nodes.clone(), None);
    for (at, node) in nodes.iter().enumerate() {
        c.handle_message(at as u32, opened(node, at as i64), Instant(1));
    }
    let end = actions(&mut c);
    assert!(end.iter().any(|a| matches!(a, Action::End(Outcome::Refused, Some(text)) if text.contains("/f on a") && text.contains("/f on b"))));
    assert!(!end.iter().any(|a| matches!(a, Action::Plan(..))));
}

/// A receiver that lost its sender gets the surviving replica; nobody else is disturbed.
#[test]
fn need_is_answered_with_another_holder() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[(0, 100)], &[], None),
        node("c", &[], &[(0, 100)], None),
    ];
    let (mut c, _) = started(nodes);
    let need = Need {
        ranges: vec![Stretch {
            start: 40,
            length: 60,
        }],
        lost: vec![0],
        reason: String::new(),
    };
    c.handle_message(2, from(from_agent::Body::Need(need)), Instant(12));
    let asked = actions(&mut c);
    let answered = answer(&mut c, asked);
    let to_c = sent(&answered, 2);
    assert!(
        matches!(to_c[..], [to_agent::Body::Revision(r)] if r.runs.len() == 1 && r.runs[0].sender == 1 && r.runs[0].start == 40)
    );
    c.handle_message(2, done_after(1, 100, &[]), Instant(15));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
}

/// When no replica is left the rest completes and the report names the ranges.
#[test]
fn nobody_left_means_partial() {
    let (mut c, _) = started(vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ]);
    c.handle_lost(0, "killed", Instant(11));
    assert!(
        matches!(sent(&actions(&mut c), 1)[..], [to_agent::Body::Revision(r)] if r.lost == [0])
    );
    let need = Need {
        ranges: vec![Stretch {
            start: 30,
            length: 70,
        }],
        lost: vec![0],
        reason: String::new(),
    };
    c.handle_message(1, from(from_agent::Body::Need(need)), Instant(12));
    assert!(
        matches!(sent(&actions(&mut c), 1)[..], [to_agent::Body::Revision(r)] if r.unavailable.len() == 1)
    );
    c.handle_message(1, done(30, &[(30, 70)]), Instant(15));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Partial));
    assert_eq!(c.missing()["b"].as_slice(), [range(30, 70)]);
}

/// The share of a dead receiver of a shared destination goes to the other one, which alone renames.
#[test]
fn a_shared_destination_survives_a_receiver() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("fs")),
        node("c", &[], &[(0, 100)], Some("fs")),
    ];
    let (mut c, planned) = started(nodes);
    assert!(
        matches!(sent(&planned, 1)[..], [to_agent::Body::Plan(p)] if p.runs.len() == 1 && !p.commit)
    );
    c.handle_message(2, done(0, &[]), Instant(11));
    assert!(outcome(&actions(&mut c)).is_none());
    c.handle_lost(1, "killed", Instant(12));
    let asked = actions(&mut c);
    let answered = answer(&mut c, asked);
    assert!(matches!(sent(&answered, 2)[..], [to_agent::Body::Revision(r)] if r.runs.len() == 1));
    // The word it gave before the revision reached it does not end anything.
    c.handle_message(2, done(0, &[]), Instant(14));
    assert!(sent(&actions(&mut c), 2).is_empty());
    c.handle_message(2, done_after(1, 100, &[]), Instant(15));
    assert!(matches!(sent(&actions(&mut c), 2)[..], [to_agent::Body::Finish(f)] if f.commit));
    assert_eq!(
        outcome(&finish(&mut c, 3)),
        Some(Outcome::Done),
        "the heir did all of it"
    );
    assert_eq!((c.delivered_bytes(), c.missing().len()), (100, 0));
}

/// What a failed receiver wrote does not make a destination complete: its ranges have to be covered.
#[test]
fn a_destination_is_complete_by_ranges_not_by_sums() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 50)], Some("fs")),
        node("c", &[], &[(50, 50)], Some("fs")),
    ];
    let (mut c, _) = started(nodes);
    let failed = Done {
        delivered: 40,
        error: "disk full".into(),
        missing: vec![Stretch {
            start: 40,
            length: 10,
        }],
        ..Done::default()
    };
    c.handle_message(1, from(from_agent::Body::Done(failed)), Instant(11));
    c.handle_message(2, done(50, &[]), Instant(12));
    let sent_to_c: Vec<Action> = actions(&mut c);
    assert!(matches!(sent(&sent_to_c, 2)[..], [to_agent::Body::Finish(f)] if !f.commit));
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Failed));
    assert_eq!(c.missing()["fs"].as_slice(), [range(0, 50)]);
}

/// Time passes, and the driver sees it.
pub(super) fn pass(c: &mut Coordinator, from_ns: u64, to_ns: u64) {
    for now in (from_ns..to_ns).step_by(SECOND as usize) {
        c.handle_timer(Instant(now));
    }
    c.handle_timer(Instant(to_ns));
}

/// It has more time for more files, and to read all of a copy whose checksums it lists.
#[test]
fn names_of_many_files_are_waited_for() {
    for (files, lists, seconds) in [
        (0, false, 600),
        (100_000, false, 1600),
        (0, true, 600 + (1 << 40) / (32 << 20)),
    ] {
        let mut nodes = vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], Some("fs")),
        ];
        if lists {
            nodes[1].sinks[0].sink.checksums = b"/sums".to_vec();
        }
        let (mut c, _) = started(nodes);
        (c.space.files, c.space.length) = (files, 1 << 40);
        c.handle_message(1, done(100, &[]), Instant(15));
        pass(&mut c, 20, 20 + seconds * SECOND);
        assert_eq!(outcome(&actions(&mut c)), None, "{files} {lists}");
        c.handle_timer(Instant(21) + ropewalk_model::Nanos::from_secs(seconds));
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Failed));
    }
}

/// A node that removes more has its time again at the end; one whose count only goes up and down has not.
#[test]
fn removing_the_same_again_is_late() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("fs")),
    ];
    let (mut c, _) = started(nodes);
    let status = |removed: Option<u64>| {
        from(from_agent::Body::Status(control::Status {
            delivered: 100,
            checked: 100,
            removing: removed.map(|done| control::Removing { done, total: 9 }),
            ..control::Status::default()
        }))
    };
    c.handle_message(1, done(100, &[]), Instant(15));
    c.handle_timer(Instant(20));
    c.handle_message(1, status(Some(5)), Instant(30));
    c.handle_timer(Instant(40));
    for (removed, at) in [(None, 50), (Some(5), 60), (Some(4), 70), (Some(5), 80)] {
        c.handle_message(1, status(removed), Instant(at));
        c.handle_timer(Instant(at + 1));
    }
    pass(&mut c, 81, 39 + FINISH_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), None);
    c.handle_timer(Instant(41 + FINISH_TIME_MAX.0));
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Failed));
}

/// One that is to give files their names has the time that takes; without its word nobody knows whether they have them.
#[test]
fn names_are_waited_for() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("fs")),
    ];
    let (mut c, _) = started(nodes.clone());
    c.handle_message(1, done(100, &[]), Instant(15));
    pass(&mut c, 20, 21 + FAREWELL_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), None);
    pass(&mut c, 21 + FAREWELL_TIME_MAX.0, 21 + FINISH_TIME_MAX.0);
    assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Failed));
    // It says that it has ended, but not that the files have their names.
    let (mut c, _) = started(nodes);
    c.handle_message(1, done(100, &[]), Instant(15));
    for node in [0, 1] {
        c.handle_message(
            node,
            from(from_agent::Body::Finished(Finished::default())),
            Instant(20),
        );
    }
    let end = actions(&mut c);
    let unnamed = |action: &Action| matches!(action, Action::End(Outcome::Failed, Some(text)) if text.starts_with("b: ") && text.contains("did not rename"));
    assert!(end.iter().any(unnamed), "{end:?}");
}

fn refused() -> FromAgent {
    from(from_agent::Body::Refused(control::Refused {
        code: ErrorKind::Interrupted.wire(),
        message: "cancelled at the agent".into(),
    }))
}

/// The kind of a refusal is what the node that refused gave, by its code.
#[test]
fn refusals_keep_their_kind() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let codes = [
        (ErrorKind::Interrupted.wire(), ErrorKind::Interrupted),
        (ErrorKind::Node.wire(), ErrorKind::Node),
        (0, ErrorKind::Refused),
        (12345, ErrorKind::Refused),
    ];
    for (code, kind) in codes {
        let mut c = begun(nodes.clone(), None);
        let refused = control::Refused {
            code,
            message: "no".into(),
        };
        c.handle_message(0, from(from_agent::Body::Refused(refused)), Instant(5));
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Refused));
        assert_eq!(c.refusal_kind(), kind, "{code}");
    }
}

/// A node that was done and is cancelled at its agent is neither told to rename nor given work: nobody would do it.
#[test]
fn who_is_cancelled_when_done_does_nothing_more() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], Some("fs")),
        node("c", &[], &[(0, 100)], Some("fs")),
    ];
    let (mut c, _) = started(nodes);
    c.handle_message(1, done(100, &[]), Instant(11));
    c.handle_message(1, refused(), Instant(12));
    assert!(c.summary()[1].lost.is_some());
    c.handle_message(2, done(0, &[]), Instant(13));
    let end = actions(&mut c);
    assert!(sent(&end, 1).is_empty(), "{end:?}");
    assert!(matches!(sent(&end, 2)[..], [to_agent::Body::Finish(f)] if f.commit));
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
}

/// A node that is cancelled at its agent while the first plan is made, or while bytes move, is lost: nobody waits for it.
#[test]
fn who_is_cancelled_is_lost() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    // The word was on its way when the plan was ready.
    let (mut c, _) = started(nodes.clone());
    c.handle_message(1, refused(), Instant(11));
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Failed));
    let (mut c, _) = started(nodes);
    c.handle_message(0, refused(), Instant(11));
    assert!(!c.nodes[0].can_send());
    assert!(
        matches!(sent(&actions(&mut c), 1)[..], [to_agent::Body::Revision(r)] if r.lost == [0])
    );
    // What it still says of itself changes nothing.
    let status = control::Status {
        delivered: 7,
        ..control::Status::default()
    };
    c.handle_message(0, from(from_agent::Body::Status(status)), Instant(12));
    assert_eq!(c.nodes[0].delivered, 0);
}

fn need(start: u64, length: u64, lost: Vec<u32>) -> FromAgent {
    from(from_agent::Body::Need(Need {
        ranges: vec![Stretch { start, length }],
        lost,
        reason: String::new(),
    }))
}

/// Bytes whose only holder one receiver cannot reach are fetched by another one of its destination that can; only when
/// none can they are given up.
#[test]
fn who_cannot_reach_the_only_holder_leaves_it_to_others() {
    let nodes = vec![
        node("s", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], Some("fs")),
        node("b", &[], &[(0, 100)], Some("fs")),
    ];
    let setup = || {
        let (mut c, _) = started(nodes.clone());
        c.handle_message(2, done(0, &[]), Instant(11));
        c.handle_message(1, need(0, 100, vec![0]), Instant(12));
        let asked = actions(&mut c);
        let told = answer(&mut c, asked);
        assert!(
            matches!(sent(&told, 2)[..], [to_agent::Body::Revision(r)] if r.runs.len() == 1 && r.runs[0].length == 100),
            "{told:?}"
        );
        assert!(
            matches!(sent(&told, 1)[..], [to_agent::Body::Revision(r)] if r.runs.is_empty() && r.unavailable.len() == 1),
            "{told:?}"
        );
        // Nor is it given the like of it in a round.
        assert_eq!(c.view().barred(1).as_slice(), [range(0, 100)]);
        assert!(c.view().barred(2).is_empty());
        c.handle_message(1, done(0, &[(0, 100)]), Instant(13));
        c
    };
    let mut c = setup();
    c.handle_message(2, done_after(1, 100, &[]), Instant(14));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
    // The other one cannot either.
    let mut c = setup();
    c.handle_message(2, need(0, 100, vec![0]), Instant(14));
    let asked = actions(&mut c);
    assert!(!asked.iter().any(|a| matches!(a, Action::Plan(..))));
    assert!(
        matches!(sent(&asked, 2)[..], [to_agent::Body::Revision(r)] if r.unavailable.len() == 1)
    );
    assert!(
        c.notes()
            .iter()
            .any(|note| note.starts_with("b cannot reach s, and no other node")),
        "{:?}",
        c.notes()
    );
    c.handle_message(2, done_after(1, 0, &[(0, 100)]), Instant(15));
    actions(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Partial));
}

/// An agent that opened another number of sources than it was asked to is refused by name.
#[test]
fn sources_are_counted() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let mut c = begun(nodes, None);
    let more = Opened {
        sources: vec![OpenedSource::default(); 2],
        ..Opened::default()
    };
    c.handle_message(0, from(from_agent::Body::Opened(more)), Instant(1));
    let end = actions(&mut c);
    let named = |action: &Action| matches!(action, Action::End(Outcome::Refused, Some(text)) if text.starts_with("a: it opened 2 sources"));
    assert!(end.iter().any(named), "{end:?}");
}

/// Before anything is made there is nothing to wait for, and no node is said to join.
#[test]
fn a_transfer_that_is_cancelled_early_ends_at_once() {
    let nodes = vec![
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    ];
    let mut c = begun(nodes, None);
    c.handle_cancel();
    let end = actions(&mut c);
    assert_eq!(outcome(&end), Some(Outcome::Cancelled));
    assert!(c.notes().is_empty(), "{:?}", c.notes());
}

/// Nodes keep more of a transfer that will be asked for again, unless it was cancelled before that.
#[test]
fn a_transfer_that_is_put_off_is_not_interrupted() {
    for is_cancelled_first in [false, true] {
        let (mut c, _) = started(vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
        ]);
        if is_cancelled_first {
            c.handle_cancel();
        }
        c.handle_put_off();
        let asked = actions(&mut c);
        let [to_agent::Body::Finish(finish)] = &sent(&asked, 1)[..] else {
            panic!("{asked:?}")
        };
        assert_eq!(finish.interrupted, is_cancelled_first);
    }
}

/// A cancelled transfer ends once all nodes have removed what is temporary, or are gone; where it is to be kept they remove
/// nothing, and only where whole files are to have their names they rename those.
#[test]
fn a_cancelled_transfer_ends_when_nothing_is_left() {
    for (incomplete, discard, commit) in [
        (Incomplete::WholeFiles, true, true),
        (Incomplete::Removed, true, false),
        (Incomplete::Kept, false, false),
    ] {
        let (mut c, _) = started(vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
        ]);
        c.setup.incomplete = incomplete;
        c.handle_cancel();
        c.handle_cancel();
        let asked = actions(&mut c);
        let [to_agent::Body::Finish(finish)] = &sent(&asked, 1)[..] else {
            panic!("{asked:?}")
        };
        let asked_for = (finish.discard, finish.commit, finish.whole_files);
        assert_eq!(asked_for, (discard, commit, commit));
        assert!(finish.interrupted);
        assert_eq!(outcome(&asked), None);
        c.handle_lost(0, "gone", Instant(0));
        assert_eq!(outcome(&actions(&mut c)), None);
        // Its last sync made more safe than it had reported; never more than it was to get.
        let safe = if discard { 60 } else { 600 };
        let finished = control::Finished {
            safe,
            ..control::Finished::default()
        };
        let finished = FromAgent {
            body: Some(from_agent::Body::Finished(finished)),
        };
        c.handle_message(1, finished, Instant(0));
        assert_eq!(outcome(&actions(&mut c)), Some(Outcome::Cancelled));
        assert_eq!(c.delivered_bytes(), safe.min(100));
    }
}

/// A user may stop a transfer when its copies are whole and have their names, or while the report of that is on its way: then it is done,
/// and not said to be cancelled. With one copy that is not whole it is cancelled.
#[test]
fn what_was_complete_when_it_was_cancelled_is_done() {
    let copies = || {
        vec![
            node("a", &[(0, 100)], &[], None),
            node("b", &[], &[(0, 100)], None),
            node("c", &[], &[(0, 100)], None),
        ]
    };
    for (reports, late, expected) in [
        (&[1, 2][..], &[][..], Outcome::Done),
        (&[1], &[2], Outcome::Done),
        (&[], &[2, 1], Outcome::Done),
        (&[1], &[], Outcome::Cancelled),
        (&[], &[2], Outcome::Cancelled),
    ] {
        let (mut c, _) = started(copies());
        for &node in reports {
            c.handle_message(node, done(100, &[]), Instant(11));
        }
        c.handle_cancel();
        actions(&mut c);
        for &node in late {
            c.handle_message(node, done(100, &[]), Instant(12));
        }
        let end = finish(&mut c, 3);
        assert_eq!(outcome(&end), Some(expected), "{reports:?} {late:?}");
        let complete = c.destinations().iter().filter(|one| one.complete).count();
        assert_eq!(complete, reports.len() + late.len());
    }
    // One that lacks bytes, and one that has failed, are not complete, however late they say so.
    let (mut c, _) = started(copies());
    c.handle_message(1, done(100, &[]), Instant(11));
    c.handle_cancel();
    c.handle_message(2, done(50, &[(50, 50)]), Instant(12));
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Cancelled));
    // Nor is one that was given more since it said so.
    let (mut c, _) = started(copies());
    c.handle_message(1, done(100, &[]), Instant(11));
    c.nodes[2].revision = 1;
    c.handle_cancel();
    c.handle_message(2, done(100, &[]), Instant(12));
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Cancelled));
}

/// What is remembered is planned with where nothing is declared; it is neither declared nor the interface's.
#[test]
fn remembered_speeds_are_hints() {
    let problem_of = |a: NodeSetup, b: NodeSetup| {
        let nodes = vec![a, b];
        let mut coordinator = begun(nodes.clone(), None);
        for (at, node) in nodes.iter().enumerate() {
            let mut message = opened(node, 7);
            if let Some(from_agent::Body::Opened(opened)) = &mut message.body {
                opened.interface_rate = 1000;
            }
            coordinator.handle_message(at as u32, message, Instant(1));
        }
        let plan = actions(&mut coordinator).into_iter().find_map(|a| match a {
            Action::Plan(_, problem) => Some(problem),
            _ => None,
        });
        let problem = plan.unwrap();
        let speeds = (problem.senders[0].up, problem.receivers[0].down);
        (speeds, coordinator.basis())
    };
    let (a, b) = (
        node("a", &[(0, 100)], &[], None),
        node("b", &[], &[(0, 100)], None),
    );
    assert_eq!(
        problem_of(a.clone(), b.clone()),
        ((1000, 1000), Basis::Interface)
    );
    let mut known = a;
    known.remembered_up = Some(ByteRate(70));
    // It receives nothing: no hint for anything.
    known.remembered_down = Some(ByteRate(3));
    assert_eq!(
        problem_of(known.clone(), b.clone()),
        ((70, 1000), Basis::None)
    );
    let mut told = b;
    (known.up, told.down, told.remembered_down) =
        (Some(ByteRate(80)), Some(ByteRate(60)), Some(ByteRate(5)));
    assert_eq!(problem_of(known, told), ((80, 60), Basis::Declared));
}
