//! One budget for two receivers, by what one sender says of its streams.

use ropewalk_tuner::PolicyName;

use super::super::tests::{actions, answer, node, opened};
use super::super::*;
use super::{Answer, Others, STREAMS_PER_SENDER_MAX, TcpStatus};
use crate::control::ToAgent;

const SECOND: u64 = 1_000_000_000;

/// One sender, two receivers; tuned or not.
fn moving(tune: Option<PolicyName>) -> Coordinator {
    let (coordinator, _) = moving_to(2, tune);
    coordinator
}

/// One sender of 1 GiB and so many receivers of a part; with what they were told.
fn moving_to(receivers: u64, tune: Option<PolicyName>) -> (Coordinator, Vec<Action>) {
    let part = (1 << 30) / receivers;
    let mut nodes = vec![node("a", &[(0, 1 << 30)], &[], None)];
    nodes.extend((0..receivers).map(|at| {
        let wants = [(at * part, part)];
        node(&format!("b{at}"), &[], &wants, None)
    }));
    let setup = Setup {
        transfer: vec![1; 16],
        nodes: nodes.clone(),
        mapping: Mapping::Rows,
        limit: None,
        options: control::Options::default(),
        rails: Rails::default(),
        tune,
        lessons: Vec::new(),
        incomplete: Incomplete::Removed,
        filter: Vec::new(),
        files: None,
        links: Vec::new(),
        source_name: String::new(),
        relay: Relay::Off,
    };
    let mut coordinator = Coordinator::new(setup, Instant(0));
    coordinator.start(Instant(0));
    actions(&mut coordinator);
    for (at, node) in nodes.iter().enumerate() {
        coordinator.handle_message(at as u32, opened(node, 7), Instant(1));
    }
    let first = actions(&mut coordinator);
    let told = answer(&mut coordinator, first);
    assert_eq!(coordinator.phase, Phase::Moving);
    (coordinator, told)
}

/// Eight streams over 80 ms, 1 MB a second each, for so many seconds; what receivers are told.
fn tell(coordinator: &mut Coordinator, rtt_microseconds: u32, seconds: u64) -> Vec<(u32, u32)> {
    let mut told = Vec::new();
    let mut streams = 8;
    let mut acknowledged = 0;
    for step in 1..=seconds * 10 {
        let now = step * SECOND / 10;
        acknowledged += 100_000 * u64::from(streams);
        let status = control::SenderStatus {
            sent: acknowledged,
            tcp: Some(TcpStatus {
                streams,
                acknowledged,
                segments: acknowledged / 1448,
                repeated: 0,
                rtt_microseconds,
                rtt_microseconds_min: rtt_microseconds,
                segment: 1448,
                window: 0,
                queued: 0,
            }),
            ..control::SenderStatus::default()
        };
        let message = FromAgent {
            body: Some(from_agent::Body::SenderStatus(status)),
        };
        coordinator.handle_message(0, message, Instant(now));
        coordinator.handle_timer(Instant(now));
        for action in actions(coordinator) {
            if let Action::Send(
                node,
                ToAgent {
                    body: Some(to_agent::Body::Streams(one)),
                },
            ) = action
            {
                told.push((node, one.count));
                streams = 2 * one.count;
            }
        }
    }
    told
}

/// Both receivers are told the same, and more while more brings more, up to what the sender can serve.
#[test]
fn all_receivers_share_one_budget() {
    let mut coordinator = moving(Some(PolicyName::Model));
    let told = tell(&mut coordinator, 20_000, 6);
    assert_eq!(told[..2], [(1, 8), (2, 8)], "{told:?}");
    assert_eq!(told.last(), Some(&(2, 64)), "{told:?}");
    assert!(
        told.iter()
            .all(|(_, count)| 2 * count <= STREAMS_PER_SENDER_MAX)
    );
    let tuned = coordinator.tuned().unwrap();
    assert_eq!(
        (tuned.policy, tuned.changes as usize, tuned.others),
        (PolicyName::Model, told.len() / 2, 0)
    );
    assert_eq!(tuned.setting.streams, 64);
}

/// A sender that everybody asks has no more streams than it can serve: lanes are told how many they may have before they
/// open, and what they opened nevertheless is taken back.
#[test]
fn senders_have_a_limit() {
    let (mut coordinator, told) = moving_to(64, Some(PolicyName::Model));
    let plans = told.iter().filter_map(|action| match action {
        Action::Send(
            1..,
            ToAgent {
                body: Some(to_agent::Body::Plan(plan)),
            },
        ) => Some(plan.lane_streams_max),
        _ => None,
    });
    assert_eq!(plans.collect::<Vec<_>>(), [STREAMS_PER_SENDER_MAX / 64; 64]);
    let tcp = TcpStatus {
        streams: 512,
        rtt_microseconds: 80_000,
        rtt_microseconds_min: 80_000,
        segment: 1448,
        ..TcpStatus::default()
    };
    coordinator.observe_streams(0, Some(&tcp));
    coordinator.handle_timer(Instant(2 * SECOND));
    let told = &coordinator.streams.told;
    assert_eq!(told.len(), 64);
    assert!(told.values().sum::<u32>() <= STREAMS_PER_SENDER_MAX);
}

/// A number that was given is left alone; so are streams within a site.
#[test]
fn given_numbers_stay() {
    assert_eq!(tell(&mut moving(None), 80_000, 6), []);
    assert_eq!(tell(&mut moving(Some(PolicyName::Model)), 300, 6), []);
}

/// What a queue made look long is short after all: streams go back to those of a short path, once, and nothing is tuned
/// any more.
#[test]
fn queues_are_no_distance() {
    let mut coordinator = moving(Some(PolicyName::Model));
    let told = tell(&mut coordinator, 20_000, 3);
    assert!(told.len() >= 2 && told.iter().all(|(_, count)| *count > 0));
    assert_eq!(tell(&mut coordinator, 3_000, 9), [(1, 0), (2, 0)]);
    assert_eq!(tell(&mut coordinator, 20_000, 20), []);
}

/// The simulation that a policy wants is the driver's to run, and its answer counts.
#[test]
fn simulations_are_the_drivers() {
    let mut coordinator = moving(Some(PolicyName::Simulate));
    let mut asked = None;
    for step in 1..=20 {
        let now = step * SECOND / 10;
        let tcp = TcpStatus {
            streams: 32,
            acknowledged: step * 1_000_000,
            segments: step * 700,
            rtt_microseconds: 80_000,
            rtt_microseconds_min: 80_000,
            segment: 1448,
            ..TcpStatus::default()
        };
        coordinator.observe_streams(0, Some(&tcp));
        coordinator.handle_timer(Instant(now));
        for action in actions(&mut coordinator) {
            if let Action::Simulate(question) = action {
                asked = Some(question);
            }
        }
    }
    let question = asked.expect("a question");
    assert_eq!(question.situation.nodes, 2);
    let shares = question.settings.iter().map(|_| 1.0).collect();
    coordinator.handle_simulated(&Answer { question, shares });
}

/// Who has more left than others gets more of the streams; the number in all stays about the same.
#[test]
fn streams_follow_what_is_left() {
    let mut coordinator = moving(Some(PolicyName::Model));
    tell(&mut coordinator, 20_000, 1);
    let before = coordinator.streams.told.clone();
    assert_eq!(before.get(&1), before.get(&2), "{before:?}");
    // All but a tenth has come to one of them, half to the other one.
    for (node, percent) in [(1, 90), (2, 50)] {
        let checked = (1_u64 << 29) / 100 * percent;
        let status = control::Status {
            delivered: checked,
            checked,
            ..control::Status::default()
        };
        let body = Some(from_agent::Body::Status(status));
        coordinator.handle_message(node, FromAgent { body }, Instant(SECOND));
    }
    let setting = coordinator.tuned().unwrap().setting;
    coordinator.tell_streams(setting, false, &[1, 2]);
    let after = &coordinator.streams.told;
    assert!(after[&2] >= 3 * after[&1], "{after:?}");
    let total = after[&1] + after[&2];
    assert!(
        total.abs_diff(setting.total()) <= 1,
        "{after:?} {setting:?}"
    );
}

/// Another transfer over the same path halves the streams of all receivers at once; its end gives them back.
#[test]
fn transfers_share_the_budget() {
    let mut coordinator = moving(Some(PolicyName::Model));
    assert_eq!(coordinator.sharers(), (2, 0));
    tell(&mut coordinator, 20_000, 2);
    let alone = coordinator.tuned().unwrap().setting;
    let mut with = |transfers: u32| {
        coordinator.handle_others(Others {
            transfers,
            streams: 0,
        });
        coordinator.streams.looked_at = Instant::ZERO;
        coordinator.tune(Instant(100 * SECOND));
        let notes = actions(&mut coordinator);
        let is_noted = notes
            .iter()
            .any(|action| matches!(action, Action::Note(text) if text.contains("share")));
        assert!(is_noted, "{notes:?}");
        coordinator.streams.told.clone()
    };
    let told = with(1);
    assert_eq!(told[&1], alone.streams.div_ceil(2), "{told:?}");
    assert_eq!(told[&1], told[&2]);
    let told = with(0);
    assert!(told[&2] >= alone.streams - 1, "{told:?}");
    assert_eq!(coordinator.sharers(), (2, 0));
}

/// What a sender told last does not count once it is lost or let go, nor what it says after that.
#[test]
fn who_is_gone_sends_nothing() {
    for leaves in [false, true] {
        let mut coordinator = moving(Some(PolicyName::Model));
        let other = node("t", &[(0, 1 << 30)], &[], None);
        let new = coordinator.handle_join(other.clone(), Instant(1)).unwrap();
        coordinator.handle_message(new, opened(&other, 7), Instant(2));
        tell(&mut coordinator, 20_000, 1);
        assert!(coordinator.streams.counters[0].streams > 0);
        match leaves {
            true => coordinator.handle_leave("a", Instant(2 * SECOND)).unwrap(),
            false => coordinator.handle_lost(0, "killed", Instant(2 * SECOND)),
        }
        let late = TcpStatus {
            streams: 8,
            ..TcpStatus::default()
        };
        coordinator.observe_streams(0, Some(&late));
        assert_eq!(coordinator.streams.counters[0], Default::default());
    }
}
