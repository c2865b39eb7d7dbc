//! Work that moves between receivers while bytes flow, message by message.

use super::tests::{
    actions, answer, begun, done, done_after, finish, from, node, opened, outcome, released, sent,
};
use super::*;
use crate::control::{Done, Stretch, range};
use ropewalk_model::ByteRate;

/// All nodes have opened what they have, and a plan is asked for.
fn planning(nodes: &[NodeSetup]) -> (Coordinator, Purpose) {
    let mut c = begun(nodes.to_vec(), None);
    for (at, node) in nodes.iter().enumerate() {
        c.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let Some(Action::Plan(purpose, _)) = actions(&mut c).pop() else {
        panic!("no plan is asked for")
    };
    (c, purpose)
}

/// A receiver that is done takes over what a slower one of the same destination gives up, and the
/// transfer does not end before it has done that, too.
#[test]
fn an_idle_receiver_inherits_from_a_slow_one() {
    const MB: u64 = 1 << 20;
    let nodes = vec![
        node("a", &[(0, 200 * MB)], &[], None),
        node("b", &[], &[(0, 200 * MB)], Some("fs")),
        node("c", &[], &[(0, 100 * MB)], Some("fs")),
    ];
    let (mut c, purpose) = planning(&nodes);
    let half = |start| {
        vec![PlannedRun {
            range: range(start, 100 * MB),
            sender: 0,
            spares: vec![],
            relay: None,
        }]
    };
    c.handle_planned(
        &purpose,
        Ok(Planned {
            runs: vec![half(100 * MB), half(0)],
            ..Planned::default()
        }),
        Instant(10),
    );
    actions(&mut c);
    let second = 1_000_000_000;
    // b has an eighth when c is done: the rest is taken from it.
    c.handle_message(2, done(100 * MB, &[]), Instant(second));
    for half in 1..=5 {
        let status = control::Status {
            checked: half * 5 * MB,
            pairs: vec![control::PairStatus {
                sender: 0,
                come: half * 5 * MB,
                delivered: half * 5 * MB,
                busy: half * second / 2,
                left: 100 * MB - half * 5 * MB,
            }],
            ..Default::default()
        };
        let at = half * second / 2;
        c.handle_message(1, from(from_agent::Body::Status(status)), Instant(at));
        c.handle_message(
            2,
            from(from_agent::Body::SenderStatus(
                control::SenderStatus::default(),
            )),
            Instant(at),
        );
    }
    c.handle_timer(Instant(5 * second / 2));
    let asked = actions(&mut c);
    let [to_agent::Body::Release(release)] = sent(&asked, 1)[..] else {
        panic!("{asked:?}")
    };
    assert!(
        release.bytes > 70 * MB && release.bytes <= 80 * MB,
        "{}",
        release.bytes
    );
    let released = control::Released {
        ranges: vec![Stretch {
            start: 150 * MB,
            length: 50 * MB,
        }],
    };
    c.handle_message(
        1,
        from(from_agent::Body::Released(released)),
        Instant(3 * second),
    );
    // c lists the first half only, so what it cannot take goes back to b.
    let asked = actions(&mut c);
    let answered = answer(&mut c, asked);
    assert!(
        matches!(sent(&answered, 1)[..], [to_agent::Body::Revision(r)] if r.runs[0].start == 150 * MB)
    );
    c.handle_message(1, done_after(1, 100 * MB, &[]), Instant(2 * second));
    assert_eq!(outcome(&finish(&mut c, 3)), Some(Outcome::Done));
}

const MB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Four receivers (4 to 7) of one destination and equal guesses, the last ten times as fast; this has just
/// shown, and all have been asked to give work up. With what was asked of whom.
fn uneven() -> (Coordinator, Vec<Action>) {
    let all = [(0, 400 * MB)];
    let mut nodes = vec![];
    nodes.extend(["a", "b", "c", "d"].map(|name| node(name, &all, &[], None)));
    nodes.extend(["w", "x", "y", "z"].map(|name| node(name, &[], &all, Some("fs"))));
    let (mut c, purpose) = planning(&nodes);
    let quarter = |at: usize| {
        vec![PlannedRun {
            range: range(at as u64 * 100 * MB, 100 * MB),
            sender: at,
            spares: vec![],
            relay: None,
        }]
    };
    let planned = Planned {
        runs: (0..4).map(quarter).collect(),
        ..Planned::default()
    };
    c.handle_planned(&purpose, Ok(planned), Instant(0));
    assert!(c.expected().is_none() && c.unit_len < CHUNK_LEN);
    actions(&mut c);
    let speeds = [MB, MB, MB, 10 * MB];
    let mut asked = Vec::new();
    for half in 1..=4 {
        for (at, speed) in speeds.into_iter().enumerate() {
            let delivered = speed * half / 2;
            let pairs = vec![control::PairStatus {
                busy: half * SECOND / 2,
                sender: at as u32,
                delivered,
                come: delivered,
                left: 100 * MB - delivered,
            }];
            let status = control::Status {
                checked: delivered,
                pairs,
                ..Default::default()
            };
            let body = from_agent::Body::Status(status);
            c.handle_message(4 + at as u32, from(body), Instant(half * SECOND / 2));
        }
        c.handle_timer(Instant(half * SECOND / 2 + SECOND / 4));
        asked.extend(actions(&mut c));
    }
    (c, asked)
}

/// As soon as speeds show, and long before anybody is done, all give up what they have, and it is planned by
/// the speeds that were seen.
#[test]
fn a_plan_without_told_speeds_is_settled_by_what_shows() {
    let (mut c, asked) = uneven();
    for (node, left) in [(4, 99), (5, 99), (6, 99), (7, 85)] {
        let [to_agent::Body::Release(release)] = sent(&asked, node)[..] else {
            panic!("{asked:?}")
        };
        let least = (left - 3) * MB..=left * MB;
        assert!(least.contains(&release.bytes), "{node}: {}", release.bytes);
    }
    let now = 2 * SECOND;
    c.handle_message(4, released(30 * MB, 70 * MB), Instant(now + 1));
    let planned = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::Plan(..)));
    assert!(!planned(&actions(&mut c)));
    // The round is shared out when all have answered, and the transfer does not end meanwhile.
    let nothing = from_agent::Body::Released(control::Released::default());
    for node in [5, 6, 7] {
        c.handle_message(node, from(nothing.clone()), Instant(now + 2));
    }
    let asked = actions(&mut c);
    let plans = asked.iter().find_map(|action| match action {
        Action::Plan(purpose, problem) => Some((purpose, problem)),
        _ => None,
    });
    let (purpose, problem) = plans.expect("a plan for what was released");
    assert_eq!(purpose.receivers, [4, 5, 6, 7]);
    for receiver in &problem.receivers {
        assert_eq!(receiver.ranges.as_slice(), [range(30 * MB, 70 * MB)]);
    }
    let ups: Vec<u64> = problem.senders.iter().map(|s| s.up).collect();
    let downs: Vec<u64> = problem.receivers.iter().map(|r| r.down).collect();
    assert_eq!(
        (ups, downs),
        (vec![MB, MB, MB, 10 * MB], vec![MB, MB, MB, 10 * MB])
    );
    // Everybody hears that the plan is settled, whether he gets more or not.
    let answered = answer(&mut c, asked);
    for node in 4..8 {
        let settles =
            |body: &&to_agent::Body| matches!(body, to_agent::Body::Revision(r) if r.settle);
        assert!(
            sent(&answered, node).iter().any(settles),
            "{node}: {answered:?}"
        );
    }
}

fn planned_for(actions: &[Action], node: u32) -> RangeSet {
    let ranges = actions.iter().filter_map(|action| match action {
        Action::Plan(purpose, problem) => {
            let at = purpose.receivers.iter().position(|n| *n == node)?;
            Some(problem.receivers[at].ranges.clone())
        }
        _ => None,
    });
    ranges.fold(RangeSet::new(), |all, set| all.union(&set))
}

/// A giver that dies does not hold up what the others gave.
#[test]
fn a_round_ends_when_a_giver_dies() {
    let (mut c, _) = uneven();
    c.handle_message(4, released(30 * MB, 70 * MB), Instant(2 * SECOND + 1));
    c.handle_message(5, released(130 * MB, 70 * MB), Instant(2 * SECOND + 1));
    assert!(planned_for(&actions(&mut c), 7).is_empty());
    c.handle_lost(6, "killed", Instant(2 * SECOND + 2));
    c.handle_message(7, released(300 * MB, 50 * MB), Instant(2 * SECOND + 2));
    let planned = planned_for(&actions(&mut c), 7);
    assert!(
        planned.contains_range(range(30 * MB, 70 * MB)),
        "{planned:?}"
    );
    assert!(
        planned.contains_range(range(130 * MB, 70 * MB)),
        "{planned:?}"
    );
}

/// What a node gives up after it stopped is not given out again: all it had went to others already.
#[test]
fn a_stopped_node_gives_nothing() {
    let (mut c, _) = uneven();
    let stopped = Done {
        error: "no space is left".into(),
        ..Done::default()
    };
    c.handle_message(
        5,
        from(from_agent::Body::Done(stopped)),
        Instant(2 * SECOND + 1),
    );
    let inherited = planned_for(&actions(&mut c), 7);
    assert!(inherited.contains_range(range(100 * MB, 100 * MB)));
    c.handle_message(5, released(130 * MB, 70 * MB), Instant(2 * SECOND + 2));
    for node in [4, 6, 7] {
        let nothing = from_agent::Body::Released(control::Released::default());
        c.handle_message(node, from(nothing), Instant(2 * SECOND + 3));
    }
    let again = actions(&mut c);
    assert!(
        (4..8).all(|node| planned_for(&again, node).is_empty()),
        "{again:?}"
    );
}

/// Two receivers that share a sender of 20 MB/s and have as much to fetch, after each got that many MB/s for as
/// many seconds as are named; with all limits that the first was told.
fn shared_sender(stretches: &[(u64, [u64; 2])]) -> Vec<u64> {
    let own = |name, start: u64| node(name, &[], &[(start, 200 * MB)], None);
    let mut sender = node("a", &[(0, 400 * MB)], &[], None);
    sender.up = Some(ByteRate(20 * MB));
    let mut nodes = vec![sender, own("x", 0), own("y", 200 * MB)];
    for receiver in &mut nodes[1..] {
        receiver.down = Some(ByteRate(20 * MB));
    }
    let (mut c, purpose) = planning(&nodes);
    let half = |start| {
        vec![PlannedRun {
            range: range(start, 200 * MB),
            sender: 0,
            spares: vec![],
            relay: None,
        }]
    };
    let planned = Planned {
        runs: vec![half(0), half(200 * MB)],
        predicted_seconds: 20.0,
        is_near_bound: true,
        ..Planned::default()
    };
    c.handle_planned(&purpose, Ok(planned), Instant(0));
    actions(&mut c);
    let (mut limits, mut now, mut come) = (Vec::new(), 0, [0, 0]);
    for &(seconds, speeds) in stretches {
        for _ in 0..seconds * 4 {
            now += SECOND / 4;
            for (at, speed) in speeds.into_iter().enumerate() {
                come[at] += speed * MB / 4;
                let pair = control::PairStatus {
                    busy: now,
                    sender: 0,
                    delivered: come[at],
                    come: come[at],
                    left: 200 * MB - come[at],
                };
                let status = control::Status {
                    checked: come[at],
                    pairs: vec![pair],
                    ..Default::default()
                };
                c.handle_message(
                    1 + at as u32,
                    from(from_agent::Body::Status(status)),
                    Instant(now),
                );
            }
            c.handle_timer(Instant(now));
            let told = actions(&mut c);
            assert!(
                !sent(&told, 2)
                    .iter()
                    .any(|body| matches!(body, to_agent::Body::Limit(_)))
            );
            limits.extend(sent(&told, 1).iter().filter_map(|body| match body {
                to_agent::Body::Limit(limit) => Some(limit.rate / MB),
                _ => None,
            }));
        }
    }
    limits
}

/// Who has most of a busy sender is held to what it needs while the other lags, and no longer.
#[test]
fn who_is_far_ahead_waits_for_who_is_behind() {
    let limits = shared_sender(&[(4, [18, 2]), (4, [8, 12])]);
    let [first, .., last] = limits[..] else {
        panic!("{limits:?}")
    };
    assert!((8..11).contains(&first) && last == 0, "{limits:?}");
}

/// A receiver that is held up by itself leaves its sender idle: the others are not to wait for it.
#[test]
fn nobody_waits_for_a_receiver_that_is_slow_by_itself() {
    let limits = shared_sender(&[(4, [18, 2]), (6, [10, 2])]);
    assert_eq!(limits.last(), Some(&0), "{limits:?}");
    assert_eq!(shared_sender(&[(8, [10, 10])]), [0; 0]);
}
