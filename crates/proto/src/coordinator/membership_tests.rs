//! Nodes that come, go and fail at bad moments: what is said to be done is done, and it always ends.

use super::tests::{
    actions, answer, begun_over, done, done_after, finish, from, node, opened, outcome, pass,
    released, sent, started, started_with,
};
use super::*;
use crate::control::{Need, Opened, Sink, Source, Stretch, sink, source};
use ropewalk_model::{ByteRate, Link, NodeSet};

/// Answers whatever plans are asked for.
pub(super) fn settle(c: &mut Coordinator) -> Vec<Action> {
    let mut told = actions(c);
    while told.iter().any(|action| matches!(action, Action::Plan(..))) {
        told = answer(c, told);
    }
    told
}

fn heard(c: &mut Coordinator, node: u32, now_ns: u64) {
    let status = control::SenderStatus::default();
    c.handle_message(
        node,
        from(from_agent::Body::SenderStatus(status)),
        Instant(now_ns),
    );
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
        pass(&mut c, 10, 15 * SECOND);
        for node in [0, 3].into_iter().take(1 + others) {
            heard(&mut c, node, 15 * SECOND);
        }
        c.handle_timer(Instant(16 * SECOND));
        settle(&mut c);
        if others == 1 {
            assert_eq!(c.nodes[3].assigned_bytes(), 100, "all is the third one's");
            let revision = c.nodes[3].revision;
            c.handle_message(3, done_after(revision, 100, &[]), Instant(17 * SECOND));
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
    c.handle_message(2, done(0, &[]), Instant(20));
    settle(&mut c);
    c.handle_leave("a", Instant(30)).unwrap();
    settle(&mut c);
    c.handle_lost(2, "gone", Instant(31));
    settle(&mut c);
    c.handle_message(1, released(50, 50), Instant(32));
    settle(&mut c);
    c.handle_message(1, released(0, 0), Instant(32));
    let revision = c.nodes[1].revision;
    c.handle_message(1, done_after(revision, 50, &[]), Instant(33));
    settle(&mut c);
    c.handle_message(3, done(100, &[]), Instant(34));
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
        .handle_join(node("x", &[], &[(0, 100)], None), Instant(20))
        .unwrap();
    c.handle_lost(dies, "connection reset", Instant(21));
    let greedy = node("y", &[], &[(0, 200)], Some("d"));
    let turned_away = c.handle_join(greedy.clone(), Instant(22)).unwrap();
    c.handle_message(turned_away, opened(&greedy, 7), Instant(23));
    settle(&mut c);
    assert!(c.join_outcome(turned_away).unwrap().is_err());
    c.handle_message(1, done(100, &[]), Instant(34));
    settle(&mut c);
    assert_eq!(
        outcome(&finish(&mut c, 2)),
        Some(Outcome::Done),
        "{:?}",
        c.notes()
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
    let new = c.handle_join(copy.clone(), Instant(20)).unwrap();
    actions(&mut c);
    c.handle_message(new, opened(&copy, 7), Instant(21));
    let told = settle(&mut c);
    let [to_agent::Body::Plan(plan)] = sent(&told, new)[..] else {
        panic!("{told:?}")
    };
    assert!(plan.commit && plan.revision == 1);
    assert_eq!(plan.runs.iter().map(|run| run.length).sum::<u64>(), 60);
    c.handle_message(1, done(100, &[]), Instant(34));
    c.handle_message(new, done_after(1, 60, &[]), Instant(35));
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
    c.handle_message(2, from(from_agent::Body::Need(need)), Instant(20));
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
    c.handle_leave("a", Instant(20)).unwrap();
    c.handle_leave("b", Instant(21)).unwrap();
    settle(&mut c);
    c.handle_message(2, released(50, 50), Instant(22));
    settle(&mut c);
    let unknown = c.handle_leave("x", Instant(23)).unwrap_err().to_string();
    assert!(
        unknown.starts_with("the transfer has no node x; it has "),
        "{unknown}"
    );
    assert!(
        unknown.contains("s2") && !unknown.contains("a,"),
        "{unknown}"
    );
    let refused = c.handle_leave("s2", Instant(23)).unwrap_err();
    assert!(
        matches!(&refused, LeaveError::Holder { node, .. } if node == "s2"),
        "{refused}"
    );
    let (mut c, _) = started(vec![
        node("s1", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
        node("b", &[], &[(0, 100)], Some("d")),
    ]);
    c.handle_leave("a", Instant(20)).unwrap();
    assert!(c.handle_leave("b", Instant(21)).is_err());
}

/// A limit is why nobody is faster: no work is planned anew for that.
#[test]
fn a_limit_is_no_reason_to_plan_anew() {
    const GB: u64 = 1_000_000_000;
    let rated = |mut node: NodeSetup| {
        (node.up, node.down) = (Some(ByteRate(125_000_000)), Some(ByteRate(125_000_000)));
        node
    };
    let nodes = vec![
        rated(node("s1", &[(0, GB)], &[], None)),
        rated(node("s2", &[(0, GB)], &[], None)),
        rated(node("a", &[], &[(0, GB / 2)], Some("d"))),
        rated(node("b", &[], &[(GB / 2, GB / 2)], Some("d"))),
    ];
    let (mut c, _) = started_with(nodes, Some(2_000_000));
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
            c.handle_message(
                receiver,
                from(from_agent::Body::Status(status)),
                Instant(now),
            );
            heard(&mut c, receiver - 2, now);
        }
        c.handle_timer(Instant(now));
        let told = settle(&mut c);
        let recalls = |body: &&to_agent::Body| matches!(body, to_agent::Body::Release(_));
        for receiver in [2, 3] {
            assert!(!sent(&told, receiver).iter().any(recalls), "after {now} ns");
        }
    }
}

/// A node that holds a whole tree, or wants a copy of it.
pub(super) fn with_tree(name: &str, holds: bool) -> NodeSetup {
    let path = b"/tree".to_vec();
    let source = SourceSetup {
        source: Source {
            kind: Some(source::Kind::Tree(path.clone())),
            rows: vec![],
        },
        base: 0,
    };
    let sink = SinkSetup {
        sink: Sink {
            kind: Some(sink::Kind::Tree(path)),
            rows: vec![],
            shared: false,
            ..Sink::default()
        },
        destination: None,
    };
    let mut setup = node(name, &[], &[], None);
    match holds {
        true => setup.sources.push(source),
        false => setup.sinks.push(sink),
    }
    setup
}

/// It opened so many trees, of 100 bytes each, whose list of files is this byte.
pub(super) fn opened_trees(count: usize, root: u8) -> FromAgent {
    let tree = OpenedSource {
        manifest_root: ropewalk_model::digest(&[root]).to_vec(),
        manifest_length: 1,
        data_length: 100,
        file_count: 1,
        ..OpenedSource::default()
    };
    from(from_agent::Body::Opened(Opened {
        sources: vec![tree; count],
        ..Opened::default()
    }))
}

/// A transfer of trees between these nodes that opens what it has.
fn opening(nodes: Vec<NodeSetup>) -> Coordinator {
    opening_with(nodes, Destinations::Copies, control::Options::default())
}

/// The same to such destinations, with options.
pub(super) fn opening_with(
    nodes: Vec<NodeSetup>,
    destinations: Destinations,
    options: control::Options,
) -> Coordinator {
    let setup = Setup {
        transfer: vec![1; 16],
        nodes,
        mapping: Mapping::Trees {
            sources: Sources::Auto,
            destinations,
        },
        limit: None,
        options,
        rails: Rails::default(),
        tune: None,
        lessons: Vec::new(),
        incomplete: Incomplete::Removed,
        filter: Vec::new(),
        files: None,
        links: Vec::new(),
        source_name: String::new(),
        relay: Relay::Off,
    };
    let mut c = Coordinator::new(setup, Instant(0));
    c.start(Instant(0));
    c
}

/// A copy of the tree that `s` holds to `a` has begun.
fn copying() -> Coordinator {
    let mut c = opening(vec![with_tree("s", true), with_tree("a", false)]);
    c.handle_message(0, opened_trees(1, 1), Instant(1));
    c.handle_message(1, opened_trees(0, 1), Instant(1));
    settle(&mut c);
    assert_eq!(c.phase, Phase::Moving);
    c
}

/// Any number of nodes with other files are turned away, one after the other, and what they still say changes nothing.
#[test]
fn misfits_are_turned_away_one_by_one() {
    let mut c = copying();
    for (name, trees, root) in [("x", 1, 2), ("y", 1, 2), ("z", 2, 1)] {
        let new = c.handle_join(with_tree(name, true), Instant(20)).unwrap();
        c.handle_message(new, opened_trees(trees, root), Instant(21));
        assert!(c.join_outcome(new).unwrap().is_err());
        c.handle_message(new, opened_trees(1, 1), Instant(22));
        let told = settle(&mut c);
        let is_plan = |body: &&to_agent::Body| matches!(body, to_agent::Body::Plan(_));
        assert!(!sent(&told, new).iter().any(is_plan), "{told:?}");
    }
    c.handle_message(1, done(100, &[]), Instant(34));
    settle(&mut c);
    assert_eq!(outcome(&finish(&mut c, 2)), Some(Outcome::Done));
}

/// Who takes too long to open what it has is told so, and cannot come in later.
#[test]
fn who_opens_too_late_stays_away() {
    let mut c = copying();
    let new = c.handle_join(with_tree("x", true), Instant(20)).unwrap();
    let late = 21 + OPEN_TIME_MAX.0;
    for now in (20..late).step_by(SECOND as usize).chain([late]) {
        for node in [0, 1] {
            heard(&mut c, node, now);
        }
        c.handle_timer(Instant(now));
    }
    let reason = c.join_outcome(new).unwrap().unwrap_err();
    assert!(reason.to_string().contains("within 300 s"), "{reason}");
    settle(&mut c);
    c.handle_message(new, opened_trees(1, 1), Instant(late + 1));
    assert!(!c.nodes[new as usize].can_send());
    assert!(sent(&settle(&mut c), new).is_empty());
}

/// A node that joins may read a large tree for any time, as long as it finds more; what it finds of it is no sign that it is there when
/// it finds nothing.
#[test]
fn a_node_that_joins_may_have_a_large_tree() {
    let mut c = copying();
    let new = c.handle_join(with_tree("x", true), Instant(20)).unwrap();
    let scans = |c: &mut Coordinator, entries: u64, second: u64| {
        let status = control::SenderStatus {
            scanning: Some(control::Scanning { entries }),
            ..control::SenderStatus::default()
        };
        let now = Instant(second * SECOND);
        c.handle_message(new, from(from_agent::Body::SenderStatus(status)), now);
        (0..2).for_each(|node| heard(c, node, now.0));
        c.handle_timer(now);
    };
    let limit = OPEN_TIME_MAX.whole_seconds();
    (1..=2 * limit).for_each(|second| scans(&mut c, second, second));
    assert!(c.join_outcome(new).is_none());
    (2 * limit..=3 * limit + 1).for_each(|second| scans(&mut c, 2 * limit, second));
    let reason = c.join_outcome(new).unwrap().unwrap_err();
    assert!(reason.to_string().contains("within 300 s"), "{reason}");
}

/// A node that leaves before it is ready has not joined, and its driver learns so at once; one that has opened has joined.
#[test]
fn a_node_that_leaves_before_it_is_ready_has_not_joined() {
    let mut c = copying();
    let new = c.handle_join(with_tree("x", true), Instant(20)).unwrap();
    assert_eq!(c.join_outcome(new), None);
    c.handle_leave("x", Instant(21)).unwrap();
    assert_eq!(c.join_outcome(new), Some(Err(JoinError::Left)));
    c.handle_message(new, opened_trees(1, 1), Instant(22));
    assert!(!c.nodes[new as usize].can_send());
    assert!(c.join_outcome(new).unwrap().is_err(), "too late");
    let ready = c.handle_join(with_tree("y", true), Instant(23)).unwrap();
    c.handle_message(ready, opened_trees(1, 1), Instant(24));
    settle(&mut c);
    c.handle_leave("y", Instant(25)).unwrap();
    assert_eq!(c.join_outcome(ready), Some(Ok(())));
    c.handle_message(1, done(100, &[]), Instant(34));
    settle(&mut c);
    assert_eq!(outcome(&finish(&mut c, 4)), Some(Outcome::Done));
}

/// A copy that joins can have the list of files from any holder that is there, and is not sent to those that are gone.
#[test]
fn lists_of_files_come_from_living_holders() {
    let mut c = copying();
    let replica = c.handle_join(with_tree("t", true), Instant(20)).unwrap();
    c.handle_message(replica, opened_trees(1, 1), Instant(21));
    settle(&mut c);
    c.handle_lost(0, "killed", Instant(22));
    settle(&mut c);
    let copy = c.handle_join(with_tree("b", false), Instant(23)).unwrap();
    actions(&mut c);
    c.handle_message(copy, opened_trees(0, 1), Instant(24));
    let told = settle(&mut c);
    let [to_agent::Body::Plan(plan)] = sent(&told, copy)[..] else {
        panic!("{told:?}")
    };
    let peers: Vec<u32> = plan.peers.iter().map(|peer| peer.node).collect();
    assert_eq!(peers, [replica]);
    assert_eq!(plan.parts[0].holders, [0, replica]);
}

/// A node that leaves while it makes its sinks has nothing to give up yet: it is asked again.
#[test]
fn who_leaves_early_is_asked_again() {
    let (mut c, _) = started(vec![
        node("s", &[(0, 100)], &[], None),
        node("a", &[], &[(0, 100)], Some("d")),
        node("b", &[], &[(0, 100)], Some("d")),
    ]);
    c.handle_leave("a", Instant(20)).unwrap();
    settle(&mut c);
    c.handle_message(1, released(0, 0), Instant(21));
    settle(&mut c);
    let asks = |c: &mut Coordinator, now_ns: u64| {
        c.handle_timer(Instant(now_ns));
        let told = settle(c);
        sent(&told, 1)
            .iter()
            .any(|body| matches!(body, to_agent::Body::Release(_)))
    };
    assert!(!asks(&mut c, SECOND));
    assert!(asks(&mut c, 2 * SECOND + 21));
    assert!(!asks(&mut c, 3 * SECOND), "one question at a time");
    c.handle_message(1, released(0, 100), Instant(3 * SECOND));
    c.handle_message(1, released(0, 0), Instant(3 * SECOND));
    settle(&mut c);
    assert_eq!(c.nodes[2].assigned_bytes(), 100);
}

/// A node that joins has no part of the limit before it has a plan, and its part soon after.
#[test]
fn who_has_no_plan_has_no_share() {
    const LIMIT: u64 = 1_000_000;
    let (mut c, _) = started_with(
        vec![
            node("s", &[(0, 100)], &[], None),
            node("a", &[], &[(0, 100)], None),
        ],
        Some(LIMIT),
    );
    let copy = node("x", &[], &[(0, 60)], None);
    let new = c.handle_join(copy.clone(), Instant(20)).unwrap();
    let shares = |c: &mut Coordinator, now_ns: u64| {
        c.handle_timer(Instant(now_ns));
        let told = settle(c);
        [1, new].map(|node| {
            let mut limits = sent(&told, node).into_iter().filter_map(|body| match body {
                to_agent::Body::Limit(limit) => Some(limit.rate),
                _ => None,
            });
            limits.next()
        })
    };
    assert_eq!(shares(&mut c, 2 * SECOND), [Some(LIMIT), None]);
    c.handle_message(new, opened(&copy, 7), Instant(2 * SECOND + 1));
    settle(&mut c);
    let half = Some(LIMIT / 2);
    assert_eq!(shares(&mut c, 2 * SECOND + 2), [half, half]);
}

/// Who does not send its list of files for comparing is named, by a clock that begins when it is asked.
#[test]
fn late_lists_are_named() {
    let mut c = opening(vec![
        with_tree("s", true),
        with_tree("t", true),
        with_tree("a", false),
    ]);
    let asked = OPEN_TIME_MAX.0 - 1;
    for (node, trees) in [(0, 1), (1, 1), (2, 0)] {
        c.handle_message(node, opened_trees(trees, 1 + node as u8), Instant(asked));
    }
    assert_eq!(c.phase, Phase::Comparing);
    let reply = control::ManifestReply {
        manifest: vec![1],
        source: 0,
    };
    c.handle_message(
        0,
        from(from_agent::Body::ManifestReply(reply)),
        Instant(asked + 1),
    );
    c.handle_timer(Instant(asked + 2));
    assert_eq!(outcome(&actions(&mut c)), None);
    pass(&mut c, asked + 2, asked + OPEN_TIME_MAX.0 + 4);
    let end = actions(&mut c);
    let named = |action: &Action| matches!(action, Action::End(Outcome::Refused, Some(text)) if text.ends_with("from t"));
    assert!(end.iter().any(named), "{end:?}");
}

/// A list of files that is not the one that its node announced is compared with none: receivers would take another one.
#[test]
fn lists_are_those_that_were_announced() {
    // What each of both sources sends, and which node is named.
    for (lists, named) in [
        ([&[1][..], &[2]], None),
        ([&[1], &[1]], Some("t: ")),
        ([&[1, 0], &[2]], Some("s: ")),
        ([&[], &[2]], Some("s: ")),
    ] {
        let mut c = opening(vec![
            with_tree("s", true),
            with_tree("t", true),
            with_tree("a", false),
        ]);
        for (node, trees) in [(0, 1), (1, 1), (2, 0)] {
            c.handle_message(node, opened_trees(trees, 1 + node as u8), Instant(1));
        }
        for (node, list) in (0..).zip(lists) {
            let reply = control::ManifestReply {
                manifest: list.to_vec(),
                source: 0,
            };
            c.handle_message(
                node,
                from(from_agent::Body::ManifestReply(reply)),
                Instant(2),
            );
        }
        let end = actions(&mut c);
        let is_compared = end.iter().any(|a| matches!(a, Action::Compare(_)));
        assert_eq!(is_compared, named.is_none(), "{end:?}");
        let Some(name) = named else { continue };
        let is_named = |action: &Action| matches!(action, Action::End(Outcome::Refused, Some(text)) if text.starts_with(name));
        assert!(end.iter().any(is_named), "{end:?}");
    }
}

/// The bound of a network that nodes join and leave counts each for as long as it is there; a node without a declared speed
/// never sets it.
#[test]
fn the_bound_counts_nodes_while_they_are_there() {
    let fast = |mut node: NodeSetup, rate: u64| {
        (node.up, node.down) = (Some(ByteRate(rate)), Some(ByteRate(rate)));
        node
    };
    let (mut c, _) = started(vec![
        fast(node("s", &[(0, 1000)], &[], None), 100),
        node("r", &[], &[(0, 1000)], None),
    ]);
    let start = c.moving_at().unwrap().0;
    assert!(c.has_declared() && !c.is_changed());
    assert_eq!(c.declared_problem().senders[0].up, 100);
    assert!(c.declared_problem().receivers[0].down > u64::MAX >> 20);
    let new = fast(node("n", &[(0, 1000)], &[], None), 100);
    let at = c
        .handle_join(new.clone(), Instant(start + 2 * SECOND))
        .unwrap();
    c.handle_message(at, opened(&new, 7), Instant(start + 2 * SECOND));
    settle(&mut c);
    c.handle_lost(at, "killed", Instant(start + 5 * SECOND));
    settle(&mut c);
    assert!(c.is_changed());
    let ups = |seconds: f64| -> Vec<u64> {
        let problem = c.carried_problem(seconds);
        problem.senders.iter().map(|sender| sender.up).collect()
    };
    assert_eq!(ups(1.0), [100]);
    assert_eq!(ups(4.0), [400, 200]);
    assert_eq!(ups(9.0), [900, 300]);
    assert_eq!(c.declared_problem().senders.len(), 1);
}

/// Caps and trunks are part of every plan and of the bound, also for nodes that join on a host that is named, and with nodes
/// that are gone: a trunk carries what it carries for the whole time, a pair while both are there.
#[test]
fn plans_and_bounds_count_links() {
    let set = |nodes: &[&str], hosts: &[&str]| NodeSet {
        nodes: nodes.iter().map(|name| name.to_string()).collect(),
        hosts: hosts.iter().map(|name| name.to_string()).collect(),
    };
    let link = |trunk: Option<&str>, rate, from, to| Link {
        trunk: trunk.map(str::to_owned),
        rate: ByteRate(rate),
        from,
        to,
    };
    let links = vec![
        link(Some("wan"), 50, set(&["s"], &["n"]), set(&["r"], &[])),
        link(None, 30, set(&["s"], &["n"]), set(&["r"], &[])),
        link(Some("elsewhere"), 1, set(&["x"], &[]), set(&["r"], &[])),
    ];
    let nodes = vec![
        node("s", &[(0, 1000)], &[], None),
        node("r", &[], &[(0, 1000)], None),
    ];
    let mut c = begun_over(nodes.clone(), None, links);
    for (at, node) in nodes.iter().enumerate() {
        c.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let first = actions(&mut c);
    let planned = first.iter().find_map(|action| match action {
        Action::Plan(_, problem) => Some(problem.clone()),
        _ => None,
    });
    let planned = planned.unwrap();
    assert_eq!((planned.trunks[0].cap, planned.trunks.len()), (50, 1));
    assert_eq!((planned.pair_caps[0].cap, planned.pair_caps.len()), (30, 1));
    answer(&mut c, first);
    let start = c.moving_at().unwrap().0;
    assert!(c.has_declared());
    assert_eq!(c.declared_problem().trunks[0].cap, 50);
    let new = node("n:7", &[(0, 1000)], &[], None);
    let at = c
        .handle_join(new.clone(), Instant(start + 2 * SECOND))
        .unwrap();
    c.handle_message(at, opened(&new, 7), Instant(start + 2 * SECOND));
    settle(&mut c);
    c.handle_lost(at, "killed", Instant(start + 5 * SECOND));
    settle(&mut c);
    let limits = |seconds: f64| -> (u64, Vec<usize>, Vec<u64>) {
        let problem = c.carried_problem(seconds);
        let caps = problem.pair_caps.iter().map(|cap| cap.cap).collect();
        (
            problem.trunks[0].cap,
            problem.trunks[0].senders.clone(),
            caps,
        )
    };
    assert_eq!(limits(1.0), (50, vec![0], vec![30]));
    assert_eq!(limits(4.0), (200, vec![0, 1], vec![120, 60]));
    assert_eq!(limits(9.0), (450, vec![0, 1], vec![270, 90]));
}

/// Rates and received bytes follow what came, not what is safe: right from the first word on, and within the limit.
#[test]
fn rates_follow_received_bytes() {
    for limit in [None, Some(90)] {
        let nodes = vec![
            node("s", &[(0, 1000)], &[], None),
            node("r", &[], &[(0, 1000)], None),
        ];
        let (mut c, _) = started_with(nodes, limit);
        let start = c.moving_at().unwrap().0;
        for half in 1..=6 {
            let pair = control::PairStatus {
                sender: 0,
                delivered: half * 50,
                come: half * 50,
                ..Default::default()
            };
            let status = control::Status {
                checked: half * 50,
                delivered: half / 3 * 150,
                pairs: vec![pair],
                ..Default::default()
            };
            let at_ns = start + half * SECOND / 2;
            c.handle_message(1, from(from_agent::Body::Status(status)), Instant(at_ns));
            let expected = if limit.is_some() { 90.0 } else { 100.0 };
            let summary = c.summary();
            assert_eq!(summary[1].receiving_rate, expected, "after {half} halves");
            assert_eq!(summary[0].sending_rate, expected);
            assert_eq!(c.second_rate(), expected);
            assert_eq!(c.received_bytes(), half * 50);
            assert_eq!(c.delivered_bytes(), half / 3 * 150);
        }
    }
}

/// A receiver that was lost and joins again with the same copy takes its place: the copy is neither missing nor counted twice.
#[test]
fn a_lost_receiver_that_joins_again_replaces_itself() {
    let at = Some((core::net::IpAddr::from([10, 0, 0, 1]), Some(7420)));
    for (range, is_same) in [((0, 100), true), ((0, 50), false)] {
        let lost = NodeSetup {
            reached_at: at,
            ..node("a", &[], &[(0, 100)], None)
        };
        let (mut c, _) = started(vec![
            node("s", &[(0, 100)], &[], None),
            lost,
            node("b", &[], &[(0, 100)], None),
        ]);
        c.handle_lost(1, "gone", Instant(20));
        settle(&mut c);
        assert_eq!(c.failure_kind(), Some(ErrorKind::Lost));
        let again = NodeSetup {
            reached_at: at,
            ..node("a (2)", &[], &[range], None)
        };
        let joined = c.handle_join(again.clone(), Instant(21)).unwrap();
        c.handle_message(joined, opened(&again, 7), Instant(22));
        settle(&mut c);
        assert_eq!(c.failure_kind().is_none(), is_same);
        for node in [2, joined] {
            let revision = c.nodes[node as usize].revision;
            c.handle_message(node, done_after(revision, range.1, &[]), Instant(30));
            settle(&mut c);
        }
        let end = outcome(&finish(&mut c, 4));
        let gone: Vec<String> = c.gone().into_iter().map(|gone| gone.node).collect();
        match is_same {
            true => assert_eq!((end, gone), (Some(Outcome::Done), vec![])),
            false => assert_eq!((end, gone), (Some(Outcome::Failed), vec!["a".to_owned()])),
        }
        assert_eq!(c.destinations().len(), if is_same { 2 } else { 3 });
    }
}

/// What a specification file is refused for is refused when a node joins: bytes of a shared destination that have another place there.
#[test]
fn one_place_for_each_byte_of_a_shared_destination() {
    let moved = |object: &[u8], offset, start, length| {
        let mut setup = node("x", &[], &[(start, length)], Some("d"));
        for row in &mut setup.sinks[0].sink.rows {
            (row.object, row.object_offset) = (object.to_vec(), offset);
        }
        setup
    };
    let first = node("a", &[], &[(0, 100)], Some("d"));
    let object = first.sinks[0].sink.rows[0].object.clone();
    let offset = first.sinks[0].sink.rows[0].object_offset;
    for (setup, is_taken) in [
        (moved(&object, offset, 0, 100), true),
        (moved(&object, offset + 50, 50, 50), true),
        (moved(b"/other", offset, 0, 100), false),
        (moved(&object, offset + 1, 0, 100), false),
        (moved(&object, offset, 50, 10), false),
    ] {
        let (mut c, _) = started(vec![node("s", &[(0, 100)], &[], None), first.clone()]);
        let joined = c.handle_join(setup.clone(), Instant(20)).unwrap();
        c.handle_message(joined, opened(&setup, 7), Instant(21));
        settle(&mut c);
        let outcome = c.join_outcome(joined).unwrap();
        assert_eq!(outcome.is_ok(), is_taken, "{outcome:?}");
    }
}
