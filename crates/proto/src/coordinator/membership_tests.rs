//! Nodes that come, go and fail at bad moments: what is said to be done is done, and it always ends.

use super::tests::{
    actions, answer, done, done_after, finish, from, node, opened, outcome, released, sent, started,
};
use super::*;
use crate::control::{Need, Stretch};

/// Answers whatever plans are asked for.
fn settle(c: &mut Coordinator) -> Vec<Action> {
    let mut told = actions(c);
    while told.iter().any(|action| matches!(action, Action::Plan(..))) {
        told = answer(c, told);
    }
    told
}

fn heard(c: &mut Coordinator, node: u32, now_ns: u64) {
    let status = control::SenderStatus::default();
    c.handle_message(node, from(from_agent::Body::SenderStatus(status)), now_ns);
}

const SECOND: u64 = 1_000_000_000;

/// Receivers of one host fall silent together: the last one that works does all, and without any it ends.
#[test]
fn receivers_fall_silent_together() {
    for others in [0, 1] {
        let mut nodes = vec![
            node("s", &[(0, 100)], &[], None),
            node("a", &[], &[(0, 100)], Some("d")),
            node("b", &[], &[(0, 100)], Some("d")),
        ];
        nodes.extend((0..others).map(|_| node("e", &[], &[(0, 100)], Some("d"))));
        let (mut c, _) = started(nodes);
        for node in [0, 3].into_iter().take(1 + others) {
            heard(&mut c, node, 15 * SECOND);
        }
        c.handle_timer(16 * SECOND);
        settle(&mut c);
        if others == 1 {
            assert_eq!(c.nodes[3].assigned_bytes(), 100, "all is the third one's");
            let revision = c.nodes[3].revision;
            c.handle_message(3, done_after(revision, 100, &[]), 17 * SECOND);
            settle(&mut c);
            assert_eq!(outcome(&finish(&mut c, 4)), Some(Outcome::Done));
        } else {
            assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Failed));
        }
    }
}

/// What a node that leaves gave up and nobody else can take is missing: no file with a hole gets its name.
#[test]
fn what_nobody_can_take_is_missing() {
    let (mut c, _) = started(vec![
        node("s", &[(0, 200)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
        node("b", &[], &[(0, 100)], Some("d")),
        node("c", &[], &[(100, 100)], Some("d")),
    ]);
    c.handle_message(2, done(0, &[]), 20);
    settle(&mut c);
    c.handle_leave("a", 30).unwrap();
    settle(&mut c);
    c.handle_lost(2, "gone", 31);
    settle(&mut c);
    c.handle_message(1, released(50, 50), 32);
    settle(&mut c);
    c.handle_message(1, released(0, 0), 32);
    let revision = c.nodes[1].revision;
    c.handle_message(1, done_after(revision, 50, &[]), 33);
    settle(&mut c);
    c.handle_message(3, done(100, &[]), 34);
    let end = settle(&mut c);
    let commits = |body: &&to_agent::Body| matches!(body, to_agent::Body::Finish(f) if f.commit);
    assert!(!sent(&end, 3).iter().any(commits), "{end:?}");
    assert_eq!(outcome(&finish(&mut c, 4)), Some(Outcome::Partial));
    assert_eq!(c.missing()["d"].as_slice(), [control::range(50, 50)]);
}

/// A node that dies while it joins, and one that wants what nobody holds, leave the transfer as it was.
#[test]
fn who_cannot_join_does_no_harm() {
    let (mut c, _) = started(vec![
        node("s", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
    ]);
    let dies = c
        .handle_join(node("x", &[], &[(0, 100)], None), 20)
        .unwrap();
    c.handle_lost(dies, "connection reset", 21);
    let greedy = node("y", &[], &[(0, 200)], Some("d"));
    let turned_away = c.handle_join(greedy.clone(), 22).unwrap();
    c.handle_message(turned_away, opened(&greedy, 7), 23);
    settle(&mut c);
    assert!(c.join_outcome(turned_away).unwrap().is_err());
    c.handle_message(1, done(100, &[]), 34);
    settle(&mut c);
    assert_eq!(
        outcome(&finish(&mut c, 2)),
        Some(Outcome::Done),
        "{:?}",
        c.notes
    );
}

/// A copy of its own that joins hears of its plan with its first runs: without any it would be complete.
#[test]
fn a_copy_that_joins_gets_runs_with_its_plan() {
    let (mut c, _) = started(vec![
        node("s", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], None),
    ]);
    let copy = node("x", &[], &[(0, 60)], None);
    let new = c.handle_join(copy.clone(), 20).unwrap();
    actions(&mut c);
    c.handle_message(new, opened(&copy, 7), 21);
    let told = settle(&mut c);
    let [to_agent::Body::Plan(plan)] = sent(&told, new)[..] else {
        panic!("{told:?}")
    };
    assert!(plan.commit && plan.revision == 1);
    assert_eq!(plan.runs.iter().map(|run| run.length).sum::<u64>(), 60);
    c.handle_message(1, done(100, &[]), 34);
    c.handle_message(new, done_after(1, 60, &[]), 35);
    settle(&mut c);
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
}

/// Bytes that a receiver asks for again are counted once.
#[test]
fn what_is_asked_for_again_counts_once() {
    let (mut c, _) = started(vec![
        node("s1", &[(0, 100)], &[], None),
        node("s2", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], None),
    ]);
    let need = Need {
        ranges: vec![Stretch {
            start: 50,
            length: 50,
        }],
        lost: vec![0],
        reason: String::new(),
    };
    c.handle_message(2, from(from_agent::Body::Need(need)), 20);
    settle(&mut c);
    assert_eq!(
        (c.nodes[2].assigned_bytes(), c.summary()[2].wanted),
        (100, 100)
    );
}

/// Nobody may leave whose bytes are wanted, also while they are being planned anew; nor all receivers.
#[test]
fn the_last_one_may_not_leave() {
    let (mut c, _) = started(vec![
        node("s1", &[(0, 50)], &[], None),
        node("s2", &[(50, 50)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
        node("b", &[], &[(0, 100)], Some("d")),
        node("e", &[], &[(0, 100)], Some("d")),
    ]);
    c.handle_leave("a", 20).unwrap();
    c.handle_leave("b", 21).unwrap();
    settle(&mut c);
    c.handle_message(2, released(50, 50), 22);
    settle(&mut c);
    let refused = c.handle_leave("s2", 23).unwrap_err();
    assert!(refused.starts_with("only s2 holds bytes"), "{refused}");
    let (mut c, _) = started(vec![
        node("s1", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
        node("b", &[], &[(0, 100)], Some("d")),
    ]);
    c.handle_leave("a", 20).unwrap();
    assert!(c.handle_leave("b", 21).is_err());
}

/// A limit is why nobody is faster: no work is planned anew for that.
#[test]
fn a_limit_is_no_reason_to_plan_anew() {
    const GB: u64 = 1_000_000_000;
    let rated = |mut node: NodeSetup| {
        (node.up, node.down) = (Some(125_000_000), Some(125_000_000));
        node
    };
    let nodes = vec![
        rated(node("s1", &[(0, GB)], &[], None)),
        rated(node("s2", &[(0, GB)], &[], None)),
        rated(node("a", &[], &[(0, GB / 2)], Some("d"))),
        rated(node("b", &[], &[(GB / 2, GB / 2)], Some("d"))),
    ];
    let (mut c, _) = super::tests::started_with(nodes, Some(2_000_000));
    for half in 1..=60_u64 {
        let now = half * SECOND / 2;
        for receiver in [2, 3] {
            let pair = control::PairStatus {
                sender: receiver - 2,
                come: half * 500_000,
                delivered: half * 500_000,
                busy: now,
                left: GB / 2 - half * 500_000,
            };
            let status = control::Status {
                delivered: half * 500_000,
                checked: half * 500_000,
                pairs: vec![pair],
                ..Default::default()
            };
            c.handle_message(receiver, from(from_agent::Body::Status(status)), now);
            heard(&mut c, receiver - 2, now);
        }
        c.handle_timer(now);
        let told = settle(&mut c);
        let recalls = |body: &&to_agent::Body| matches!(body, to_agent::Body::Release(_));
        for receiver in [2, 3] {
            assert!(!sent(&told, receiver).iter().any(recalls), "after {now} ns");
        }
    }
}
