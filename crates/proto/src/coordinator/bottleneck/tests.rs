//! Causes of what nodes report, one by one.

use ropewalk_model::ByteRate;

use super::super::tests::{actions, begun_over, from, node, opened, started, started_with};
use super::rails::{RAIL_NAME_MAX, RAILS_MAX};
use super::*;
use crate::control::{self, PairStatus, RailStatus, SenderStatus, from_agent};

const SECOND: u64 = 1_000_000_000;

/// One of the sums.
type Sum = fn(&mut Waits) -> &mut u64;

fn waits(of: impl Fn(&mut Waits) -> &mut u64) -> Waits {
    let mut waits = Waits::default();
    *of(&mut waits) = SECOND;
    waits
}

/// A sender says what it did, and a receiver that it waits for bytes of it.
fn waiting(c: &mut Coordinator, sending: Waits, tcp: TcpStatus, at: u64, checked: u64) {
    let status = SenderStatus {
        sending: Some(sending),
        tcp: Some(tcp),
        ..SenderStatus::default()
    };
    let moving_at = c.clock.moving_at.unwrap_or_default();
    let now = Instant(moving_at.0 + at * SECOND);
    c.handle_message(0, from(from_agent::Body::SenderStatus(status)), now);
    let status = Status {
        checked,
        receiving: Some(waits(|waits| &mut waits.peer)),
        pairs: vec![PairStatus {
            delivered: checked,
            left: 1000,
            ..PairStatus::default()
        }],
        ..Status::default()
    };
    c.handle_message(1, from(from_agent::Body::Status(status)), now);
    actions(c);
}

fn pair() -> Coordinator {
    let nodes = vec![
        node("a", &[(0, 1_000_000)], &[], None),
        node("b", &[], &[(0, 1_000_000)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    c
}

/// What a receiver does itself is its own cause; where it waits for bytes, it is what their sender does.
#[test]
fn each_cause_is_found() {
    let own: [(Sum, Cause); 4] = [
        (|waits| &mut waits.processor, Cause::ReceiverProcessor(1)),
        (|waits| &mut waits.disk, Cause::SinkDisk(1)),
        (|waits| &mut waits.space, Cause::Space(1)),
        (|waits| &mut waits.connect, Cause::Opening(1)),
    ];
    for (of, cause) in own {
        let mut c = pair();
        let status = Status {
            receiving: Some(waits(of)),
            ..Status::default()
        };
        c.handle_message(1, from(from_agent::Body::Status(status)), Instant(SECOND));
        assert_eq!(c.causes(), [(cause, 1.0)]);
    }
    let of_sender: [(Sum, Cause); 4] = [
        (|waits| &mut waits.processor, Cause::SenderProcessor(0)),
        (|waits| &mut waits.disk, Cause::SourceDisk(0)),
        (|waits| &mut waits.path, Cause::Path(0, 1)),
        (|waits| &mut waits.peer, Cause::Requests(0, 1)),
    ];
    for (of, cause) in of_sender {
        let mut c = pair();
        waiting(&mut c, waits(of), TcpStatus::default(), 1, 1000);
        assert_eq!(c.causes(), [(cause, 1.0)]);
    }
}

/// Whatever a node says, the master goes on: senders that there are not, and times without end.
#[test]
fn wrong_reports_are_endured() {
    let endless = Waits {
        processor: u64::MAX,
        disk: u64::MAX,
        peer: u64::MAX,
        path: u64::MAX,
        space: u64::MAX,
        ..Waits::default()
    };
    for trunk in [true, false] {
        let mut c = pair();
        if trunk {
            let of = |name: &str| ropewalk_model::NodeSet {
                nodes: [name.to_owned()].into(),
                ..Default::default()
            };
            c.setup.links.push(Link {
                trunk: Some("wide".into()),
                rate: ByteRate(1000),
                from: of("a"),
                to: of("b"),
            });
        }
        let pair = |sender, delivered| PairStatus {
            sender,
            delivered,
            ..PairStatus::default()
        };
        let status = Status {
            checked: 1000,
            receiving: Some(endless),
            sending: Some(endless),
            pairs: vec![pair(0, 1000), pair(2, 1000), pair(u32::MAX, u64::MAX)],
            ..Status::default()
        };
        c.handle_message(1, from(from_agent::Body::Status(status)), Instant(SECOND));
        actions(&mut c);
        let all: f64 = c.causes().iter().map(|(_, share)| share).sum();
        assert!(all <= 1.0 + 1e-9, "{:?}", c.causes());
    }
}

/// A full connection is one of small windows, or losses, where the kernel says so.
#[test]
fn a_full_connection_has_a_reason() {
    let path = || waits(|waits| &mut waits.path);
    let windowed = TcpStatus {
        window: 65536,
        segments: 1000,
        ..TcpStatus::default()
    };
    let mut c = pair();
    waiting(&mut c, path(), windowed, 1, 1000);
    assert_eq!(c.causes(), [(Cause::Window(0, 1), 1.0)]);
    let lossy = TcpStatus {
        segments: 1000,
        repeated: 10,
        rtt_microseconds: 1100,
        rtt_microseconds_min: 1000,
        ..TcpStatus::default()
    };
    let mut c = pair();
    waiting(&mut c, path(), lossy, 1, 1000);
    assert_eq!(c.causes(), [(Cause::Loss(0, 1, None), 1.0)]);
    let full = TcpStatus {
        rtt_microseconds: 4000,
        ..lossy
    };
    let mut c = pair();
    waiting(&mut c, path(), full, 1, 1000);
    assert_eq!(c.causes(), [(Cause::Path(0, 1), 1.0)]);
}

/// Of two rails that are full, the one that loses packets is named, whatever all streams together look like; a rail with a queue, and
/// those of another receiver, are not.
#[test]
fn the_rail_that_loses_packets_is_named() {
    let rail = |receiver, rail: &str, repeated, rtt_microseconds| RailStatus {
        receiver,
        rail: rail.to_owned(),
        segments: 1000,
        repeated,
        rtt_microseconds,
        rtt_microseconds_min: 1000,
        number: 0,
    };
    let lossy = || rail(1, "eth1 10.1.0.1 - 10.1.0.2", 20, 1100);
    let named = Some("eth1 10.1.0.1 - 10.1.0.2".to_owned());
    // The mean of a long queue on one rail and none on the other.
    let tcp = TcpStatus {
        segments: 100_000,
        repeated: 30,
        rtt_microseconds: 20_000,
        rtt_microseconds_min: 1000,
        ..TcpStatus::default()
    };
    for (rails, cause) in [
        (vec![], Cause::Path(0, 1)),
        (vec![lossy()], Cause::Loss(0, 1, named.clone())),
        (
            vec![
                rail(1, "eth0", 300, 40_000),
                rail(1, "eth2", 4, 1100),
                lossy(),
            ],
            Cause::Loss(0, 1, named),
        ),
        (vec![rail(1, "eth0", 300, 40_000)], Cause::Path(0, 1)),
        (vec![rail(2, "eth1", 300, 1100)], Cause::Path(0, 1)),
        // What round trips are is not known: there may be a queue.
        (vec![rail(1, "eth1", 300, 0)], Cause::Path(0, 1)),
    ] {
        let mut c = pair();
        let status = SenderStatus {
            rails,
            tcp: Some(tcp),
            ..SenderStatus::default()
        };
        let body = from_agent::Body::SenderStatus(status);
        c.handle_message(0, from(body), Instant(SECOND));
        let status = SenderStatus {
            sending: Some(waits(|waits| &mut waits.path)),
            ..SenderStatus::default()
        };
        c.handle_message(
            0,
            from(from_agent::Body::SenderStatus(status)),
            Instant(SECOND),
        );
        let status = Status {
            checked: 1000,
            receiving: Some(waits(|waits| &mut waits.peer)),
            pairs: vec![PairStatus {
                delivered: 1000,
                left: 1000,
                ..PairStatus::default()
            }],
            ..Status::default()
        };
        c.handle_message(1, from(from_agent::Body::Status(status)), Instant(SECOND));
        assert_eq!(c.causes(), [(cause, 1.0)]);
    }
}

/// A rail that is not reported any more has stopped losing packets; more rails than can be are not kept.
#[test]
fn rails_are_those_of_the_last_report() {
    let mut reported = Reported::default();
    let rail = |number: u64, repeated: u64| RailStatus {
        rail: format!("{number}{}", "x".repeat(1000)),
        ..rail(0, repeated)
    };
    reported.rails.note(&[rail(1, 1)]);
    assert!(reported.losses((0, 1)).is_some());
    reported.rails.note(&[]);
    assert_eq!(reported.losses((0, 1)), None);
    reported.rails.note(&[rail(1, 2)]);
    assert!(
        matches!(reported.losses((0, 1)), Some(Cause::Loss(0, 1, Some(name))) if name.len() <= RAIL_NAME_MAX)
    );
    let many: Vec<RailStatus> = (0..1000).map(|number| rail(number, 3)).collect();
    reported.rails.note(&many);
    assert_eq!(reported.rails.count(), RAILS_MAX);
}

/// A rail to node 1 without a queue that loses 2 %.
fn rail(number: u32, repeated: u64) -> RailStatus {
    RailStatus {
        receiver: 1,
        rail: format!("eth{number}"),
        segments: 1000 * repeated,
        repeated: 20 * repeated,
        rtt_microseconds: 1100,
        rtt_microseconds_min: 1000,
        number,
    }
}

/// After many others a rail counts as the first ones did: those that were reported longest ago are forgotten.
#[test]
fn late_rails_are_seen() {
    let mut reported = Reported::default();
    for number in 1..=200 {
        reported.rails.note(&[rail(number, 1)]);
        let named = Cause::Loss(0, 1, Some(format!("eth{number}")));
        assert_eq!(reported.losses((0, 1)), Some(named));
        assert!(reported.rails.count() <= RAILS_MAX);
    }
}

/// Counts of two rails of one name are kept apart, and those of one that has another name now go on.
#[test]
fn rails_are_told_apart_by_their_numbers() {
    let mut reported = Reported::default();
    let named = |name: &str, rail: RailStatus| RailStatus {
        rail: name.to_owned(),
        ..rail
    };
    let clean = RailStatus {
        repeated: 20,
        segments: 100_000,
        ..rail(2, 1)
    };
    let both = |second| [named("eth0", rail(1, 1)), named("eth0", second)];
    reported.rails.note(&both(clean.clone()));
    let loss = Cause::Loss(0, 1, Some("eth0".into()));
    assert_eq!(reported.losses((0, 1)), Some(loss));
    let more = RailStatus {
        segments: 101_000,
        ..clean
    };
    // The first one has sent nothing more, and the second one lost nothing more.
    reported.rails.note(&both(more));
    assert_eq!(reported.losses((0, 1)), None);
    reported.rails.note(&[named("eth9", rail(1, 1))]);
    assert_eq!(reported.losses((0, 1)), None);
}

/// A sender whose threads have nothing to do, as all that was asked for waits in its sockets, is held back by the path.
#[test]
fn what_waits_in_sockets_waits_for_the_path() {
    let queued = TcpStatus {
        queued: 1,
        ..TcpStatus::default()
    };
    let mut c = pair();
    waiting(&mut c, waits(|waits| &mut waits.peer), queued, 1, 1000);
    assert_eq!(c.causes(), [(Cause::Path(0, 1), 1.0)]);
}

/// What nodes said last does not hold for the time in which they do not answer.
#[test]
fn silence_is_a_cause() {
    let path = waits(|waits| &mut waits.path);
    let timers = |c: &mut Coordinator, seconds: std::ops::Range<u64>| {
        for half in seconds.start * 2..seconds.end * 2 {
            c.handle_timer(Instant(half * SECOND / 2));
            actions(c);
        }
    };
    // The receiver, which then reports again.
    let mut c = pair();
    waiting(&mut c, path, TcpStatus::default(), 1, 100);
    timers(&mut c, 1..10);
    let shares = c.causes();
    assert_eq!(shares[0].0, Cause::Silence(1), "{shares:?}");
    assert!(shares[0].1 > 0.85, "{shares:?}");
    waiting(&mut c, path, TcpStatus::default(), 10, 200);
    assert!(c.causes()[0].1 > 0.85, "{:?}", c.causes());
    // The sender.
    let mut c = pair();
    waiting(&mut c, path, TcpStatus::default(), 1, 100);
    timers(&mut c, 1..2);
    for second in 2..10 {
        timers(&mut c, second..second + 1);
        let status = Status {
            checked: 100,
            receiving: Some(Waits {
                peer: second * SECOND,
                ..Waits::default()
            }),
            pairs: vec![PairStatus {
                delivered: 100,
                left: 1000,
                ..PairStatus::default()
            }],
            ..Status::default()
        };
        let now = Instant(second * SECOND);
        c.handle_message(1, from(from_agent::Body::Status(status)), now);
    }
    let shares = c.causes();
    assert_eq!(shares[0].0, Cause::Silence(0), "{shares:?}");
    // The master itself.
    for is_timer_late in [false, true] {
        let mut c = pair();
        waiting(&mut c, path, TcpStatus::default(), 1, 100);
        timers(&mut c, 1..2);
        if !is_timer_late {
            c.handle_timer(Instant(30 * SECOND));
        }
        // What arrived meanwhile may be handled before the timer.
        waiting(&mut c, path, TcpStatus::default(), 30, 100);
        c.handle_timer(Instant(31 * SECOND));
        let shares = c.causes();
        assert_eq!(shares[0].0, Cause::Absence, "{shares:?}");
        assert!(shares.len() == 2 && shares[0].1 > 0.9, "{shares:?}");
    }
}

/// A limit that all reach is the cause, whatever threads wait for.
#[test]
fn a_limit_is_found() {
    let nodes = vec![
        node("a", &[(0, 1_000_000)], &[], None),
        node("b", &[], &[(0, 1_000_000)], None),
    ];
    let (mut c, _) = started_with(nodes, Some(1000));
    actions(&mut c);
    for second in 1..4 {
        let status = TcpStatus::default();
        waiting(
            &mut c,
            waits(|waits| &mut waits.peer),
            status,
            second,
            1000 * second,
        );
    }
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::Limit);
    assert!(causes[0].1 > 0.6, "{causes:?}");
}

/// Speeds that are known name the node, or the trunk, that carries what it can.
#[test]
fn known_speeds_are_reached() {
    let path = waits(|waits| &mut waits.path);
    let nodes = |up: Option<u64>, down: Option<u64>| {
        let mut a = node("a", &[(0, 1_000_000)], &[], None);
        let mut b = node("b", &[], &[(0, 1_000_000)], None);
        (a.up, b.down) = (up.map(ByteRate), down.map(ByteRate));
        vec![a, b]
    };
    for (up, down, cause) in [
        (Some(1000), None, Cause::SenderRate(0)),
        (None, Some(1000), Cause::ReceiverRate(1)),
        (Some(5000), Some(5000), Cause::Path(0, 1)),
    ] {
        let (mut c, _) = started(nodes(up, down));
        actions(&mut c);
        let mut sum = Waits::default();
        for second in 1..5 {
            sum.path += path.path;
            waiting(&mut c, sum, TcpStatus::default(), second, 1000 * second);
        }
        assert_eq!(c.causes()[0].0, cause, "{:?}", c.causes());
    }
    let of = |name: &str| ropewalk_model::NodeSet {
        nodes: [name.to_owned()].into(),
        ..Default::default()
    };
    let link = Link {
        trunk: Some("wide".into()),
        rate: ByteRate(1000),
        from: of("a"),
        to: of("b"),
    };
    let nodes = nodes(None, None);
    let mut c = begun_over(nodes.clone(), None, vec![link]);
    for (at, node) in nodes.iter().enumerate() {
        c.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let first = actions(&mut c);
    super::super::tests::answer(&mut c, first);
    let mut sum = Waits::default();
    for second in 1..5 {
        sum.path += path.path;
        waiting(&mut c, sum, TcpStatus::default(), second, 1000 * second);
    }
    assert_eq!(c.causes()[0].0, Cause::Trunk("wide".into()));
}

/// Streams of receivers that are done wait at the sender for requests until the end: that is no round trip of the last receiver.
#[test]
fn receivers_that_are_done_do_not_count() {
    const LEN: u64 = 1_000_000;
    let nodes = vec![
        node("a", &[(0, LEN)], &[], None),
        node("b", &[], &[(0, LEN)], None),
        node("c", &[], &[(0, LEN)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    let sending = Waits {
        path: SECOND,
        peer: SECOND * 11,
        ..Waits::default()
    };
    let status = SenderStatus {
        sending: Some(sending),
        ..SenderStatus::default()
    };
    c.handle_message(
        0,
        from(from_agent::Body::SenderStatus(status)),
        Instant(SECOND),
    );
    for (node, checked, at) in [(1, LEN, 1), (2, 1000, 2)] {
        let status = Status {
            checked,
            receiving: Some(waits(|waits| &mut waits.peer)),
            pairs: vec![PairStatus {
                delivered: checked,
                left: LEN - checked,
                ..PairStatus::default()
            }],
            ..Status::default()
        };
        let body = from_agent::Body::Status(status);
        c.handle_message(node, from(body), Instant(at * SECOND));
    }
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::Path(0, 2), "{causes:?}");
}

/// Of several receivers, the one that lacks most counts most; threads without work say nothing.
#[test]
fn the_straggler_counts() {
    let nodes = vec![
        node("a", &[(0, 1_000_000)], &[], None),
        node("b", &[], &[(0, 1_000_000)], None),
        node("c", &[], &[(0, 1_000_000)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    let status = |checked, receiving| Status {
        checked,
        receiving: Some(receiving),
        ..Status::default()
    };
    let mut tell = |node, checked, receiving: Waits, at: u64| {
        let body = from_agent::Body::Status(status(checked, receiving));
        c.note_running(Instant(at * SECOND));
        c.handle_message(node, from(body), Instant(at * SECOND));
    };
    let fast = Waits {
        processor: SECOND,
        ..Waits::default()
    };
    tell(1, 900_000, fast, 1);
    let slow = |seconds: u64| Waits {
        disk: SECOND * seconds,
        idle: 9 * SECOND * seconds,
        ..Waits::default()
    };
    for second in 1..10 {
        tell(2, 10_000 * second, slow(second), second);
        let fast = Waits {
            processor: SECOND * (second + 1),
            ..Waits::default()
        };
        tell(1, 900_000 + second, fast, second + 1);
    }
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::SinkDisk(2));
    assert!(causes[0].1 > 0.8, "{causes:?}");
}

/// A receiver's status: what it has checked, of which sender, and what its threads do.
fn receiving(checked: u64, sender: u32, receiving: Waits) -> Status {
    Status {
        checked,
        receiving: Some(receiving),
        pairs: vec![PairStatus {
            sender,
            delivered: checked,
            left: 1000,
            ..PairStatus::default()
        }],
        ..Status::default()
    }
}

/// Messages of nodes in order: when (tenths of a second), the node, and its status.
fn say(c: &mut Coordinator, said: impl IntoIterator<Item = (u64, u32, Status)>) {
    for (tenths, node, status) in said {
        let now = Instant(tenths * SECOND / 10);
        c.note_running(now);
        c.handle_message(node, from(from_agent::Body::Status(status)), now);
        actions(c);
    }
}

fn growing(of: impl Fn(&mut Waits) -> &mut u64, tenths: u64) -> Waits {
    let mut waits = Waits::default();
    *of(&mut waits) = tenths * SECOND / 10;
    waits
}

/// Of unequal amounts the one decides that will be the last, and not the one that lacks most bytes.
#[test]
fn the_last_one_decides() {
    const LARGE: u64 = 10_000_000;
    const SMALL: u64 = 1_000_000;
    let nodes = vec![
        node("a", &[(0, LARGE + SMALL)], &[], None),
        node("b", &[], &[(0, LARGE)], None),
        node("c", &[], &[(LARGE, LARGE + SMALL)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    // Done after 8 and after 10 s.
    let said = (1..80).flat_map(|tenths| {
        let fast = growing(|waits| &mut waits.processor, tenths);
        let slow = growing(|waits| &mut waits.disk, tenths);
        [
            (tenths, 1, receiving(LARGE / 80 * tenths, 0, fast)),
            (tenths, 2, receiving(SMALL / 100 * tenths, 0, slow)),
        ]
    });
    say(&mut c, said);
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::SinkDisk(2), "{causes:?}");
    assert!(causes[0].1 > 0.8, "{causes:?}");
}

/// One that is lost, or done, decides nothing any more, however far it was from its end.
#[test]
fn those_that_are_gone_do_not_decide() {
    let nodes = vec![
        node("a", &[(0, 1_000_000)], &[], None),
        node("b", &[], &[(0, 1_000_000)], None),
        node("c", &[], &[(0, 1_000_000)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    let path = || growing(|waits| &mut waits.connect, 1);
    say(&mut c, [(1, 1, receiving(0, 0, path()))]);
    c.handle_lost(1, "the connection closed", Instant(SECOND / 5));
    actions(&mut c);
    let said = (1..100).map(|tenths| {
        let disk = growing(|waits| &mut waits.disk, tenths);
        (tenths + 5, 2, receiving(1000 * tenths, 0, disk))
    });
    say(&mut c, said);
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::SinkDisk(2), "{causes:?}");
    assert!(causes[0].1 > 0.9, "{causes:?}");
}

/// What has no space among the causes is still one of its kind.
#[test]
fn many_causes_are_not_lost() {
    let mut found = Bottleneck::default();
    for node in 0..3 * CAUSES_MAX as u32 {
        found.count(Cause::Path(0, node), 1.0);
        found.count(Cause::Limit, 1.0);
    }
    let rest = found.times()[&Cause::Path(ANY, ANY)];
    assert!(rest >= 2.0 * CAUSES_MAX as f64, "{rest}");
    let all: f64 = found.times().values().sum();
    assert_eq!(all, 6.0 * CAUSES_MAX as f64);
}

/// One slow receiver leaves its share of a limit unused: its disk is the cause, though the others use theirs.
#[test]
fn a_limit_is_that_of_those_that_reach_it() {
    let nodes = vec![
        node("a", &[(0, 10_000_000)], &[], None),
        node("b", &[], &[(0, 10_000_000)], None),
        node("c", &[], &[(0, 10_000_000)], None),
    ];
    let (mut c, _) = started_with(nodes, Some(100_000));
    actions(&mut c);
    let mut checked = 0;
    for tenths in 1..200 {
        c.handle_timer(Instant(tenths * SECOND / 10));
        // It takes what it may, and its threads do little.
        checked += c.lease.share(1).unwrap_or(50_000) / 10;
        let slow = growing(|waits| &mut waits.disk, tenths);
        say(
            &mut c,
            [
                (
                    tenths,
                    1,
                    receiving(checked, 0, growing(|waits| &mut waits.processor, tenths)),
                ),
                (tenths, 2, receiving(500 * tenths, 0, slow)),
            ],
        );
    }
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::SinkDisk(2), "{causes:?}");
    assert!(causes[0].1 > 0.9, "{causes:?}");
    assert!(c.lease.share(2).unwrap() < 40_000);
    // The other one is held back by the limit alone, whatever its threads do.
    assert!(
        causes.iter().any(|(cause, _)| *cause == Cause::Limit),
        "{causes:?}"
    );
    assert!(
        causes
            .iter()
            .all(|(cause, share)| *cause != Cause::ReceiverProcessor(1) || *share < 0.01),
        "{causes:?}"
    );
}

/// A receiver whose threads have not begun waits for an earlier transfer where it says so, else for what comes before its first byte.
#[test]
fn what_is_before_the_first_byte_is_a_cause() {
    let mut c = pair();
    let awaited = control::AwaitedEnd {
        path: "/d".into(),
        waited: 0,
    };
    let waiting = |tenths: u64| Status {
        awaited_end: Some(control::AwaitedEnd {
            waited: tenths * SECOND / 10,
            ..awaited.clone()
        }),
        receiving: Some(Waits::default()),
        ..Status::default()
    };
    say(&mut c, (1..=300).map(|tenths| (tenths, 1, waiting(tenths))));
    let nothing = Status {
        receiving: Some(Waits::default()),
        ..Status::default()
    };
    say(&mut c, [(310, 1, nothing)]);
    let moving = (311..330).map(|tenths| {
        let disk = growing(|waits| &mut waits.disk, tenths - 310);
        (tenths, 1, receiving((tenths - 310) * 1000, 0, disk))
    });
    say(&mut c, moving);
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::EarlierTransfer(1), "{causes:?}");
    assert!(causes[0].1 > 0.85, "{causes:?}");
    let opening = causes.iter().find(|(cause, _)| *cause == Cause::Opening(1));
    assert!(
        opening.is_some_and(|(_, share)| (0.01..0.06).contains(share)),
        "{causes:?}"
    );
}

/// A receiver that waits for another one, which has nothing to hand on yet, is held back by what that one waits for.
#[test]
fn relays_pass_on_what_they_wait_for() {
    let nodes = vec![
        node("a", &[(0, 1_000_000)], &[], None),
        node("b", &[], &[(0, 1_000_000)], None),
        node("c", &[], &[(0, 1_000_000)], None),
    ];
    let (mut c, _) = started(nodes);
    actions(&mut c);
    c.relays = [1, 2].into();
    for second in 1..10 {
        let status = SenderStatus {
            sending: Some(growing(|waits| &mut waits.path, 10 * second)),
            ..SenderStatus::default()
        };
        let now = Instant(second * SECOND);
        c.handle_message(0, from(from_agent::Body::SenderStatus(status)), now);
        let status = |sender| Status {
            // Its threads that send wait for requests.
            sending: Some(growing(|waits| &mut waits.peer, 10 * second)),
            ..receiving(
                1000 * second,
                sender,
                growing(|waits| &mut waits.peer, 10 * second),
            )
        };
        let mut last = status(1);
        last.checked = 500 * second;
        say(
            &mut c,
            [(10 * second, 1, status(0)), (10 * second, 2, last)],
        );
    }
    let causes = c.causes();
    assert_eq!(causes[0].0, Cause::Path(0, 1), "{causes:?}");
    assert!(
        causes
            .iter()
            .all(|(cause, _)| !matches!(cause, Cause::Requests(..))),
        "{causes:?}"
    );
}

/// A trunk is full by what crosses it: what a receiver has from beside it does not.
#[test]
fn a_trunk_carries_what_crosses_it() {
    let of = |name: &str| ropewalk_model::NodeSet {
        nodes: [name.to_owned()].into(),
        ..Default::default()
    };
    for (over, cause) in [
        (100, Cause::Path(0, 2)),
        (1000, Cause::Trunk("wide".into())),
    ] {
        let nodes = vec![
            node("a", &[(0, 1_000_000)], &[], None),
            node("beside", &[(1_000_000, 2_000_000)], &[], None),
            node("c", &[], &[(0, 2_000_000)], None),
        ];
        let (mut c, _) = started(nodes);
        actions(&mut c);
        c.setup.links.push(Link {
            trunk: Some("wide".into()),
            rate: ByteRate(1000),
            from: of("a"),
            to: of("c"),
        });
        for second in 1..10 {
            let status = SenderStatus {
                sending: Some(growing(|waits| &mut waits.path, 10 * second)),
                ..SenderStatus::default()
            };
            let now = Instant(second * SECOND);
            c.handle_message(0, from(from_agent::Body::SenderStatus(status)), now);
            let pair = |sender, delivered, left| PairStatus {
                sender,
                delivered,
                left,
                ..PairStatus::default()
            };
            let status = Status {
                checked: (over + 900) * second,
                receiving: Some(growing(|waits| &mut waits.peer, 10 * second)),
                pairs: vec![pair(0, over * second, 1000), pair(1, 900 * second, 0)],
                ..Status::default()
            };
            say(&mut c, [(10 * second, 2, status)]);
        }
        assert_eq!(c.causes()[0].0, cause, "{:?}", c.causes());
    }
}

/// Whatever an agent says of round trips, nothing overflows.
#[test]
fn round_trips_may_be_any() {
    for trip in [
        (1, u32::MAX),
        (u32::MAX, u32::MAX),
        (u32::MAX, 1),
        (0, u32::MAX),
    ] {
        let mut segments = Segments::default();
        segments.note(100, 10, trip);
        let has_queue = trip.0 == 0 || trip.1 == 1;
        assert_eq!(segments.loss, if has_queue { 0.0 } else { 0.1 }, "{trip:?}");
    }
}
