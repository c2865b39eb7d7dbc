//! Connections that come and go, and the tuner in a closed loop with the simulator. The whole grid is the example `tuner`.

use ropewalk_tcp_sim::tune::{Bed, EVENTS_MAX, answer, profile};
use ropewalk_tcp_sim::{FlavourName, Live, TwoClusters, idle};
use ropewalk_tuner::policy::TOTALS;
use ropewalk_tuner::{PolicyName, Question, Setting, Situation};

fn net(nodes: u32, megabits: f64, rtt_seconds: f64, queue: usize, loss: f64) -> TwoClusters {
    TwoClusters {
        nodes,
        bits_per_second: megabits * 1e6,
        latency_seconds: rtt_seconds / 2.0 - 0.0002,
        queue,
        loss,
        access_queue: 1000,
        ..TwoClusters::default()
    }
}

/// Streams open and close at once where they should; what was under way is acknowledged, then nothing more is sent.
#[test]
fn streams_open_and_close() {
    let scenario = idle(&net(3, 10.0, 0.02, 50, 0.0), profile(), 1448, 2048);
    let mut live = Live::new(&scenario, 3, FlavourName::NewReno, 1 << 20).unwrap();
    let open = |live: &Live<'_>| [0, 1, 2].map(|node| live.counters(node).streams);
    live.set(2, 4).unwrap();
    live.advance(3.0);
    assert_eq!(open(&live), [4, 4, 0]);
    live.set(3, 1).unwrap();
    assert_eq!(open(&live), [1, 1, 1]);
    // A SYN that a full queue drops is sent again after three seconds.
    live.advance(7.0);
    assert!(live.counters(2).acknowledged > 0);
    let rate = live.acknowledged() as f64 * 1488.0 * 8.0 / live.seconds();
    assert!((9.0e6..=10.0e6).contains(&rate), "{rate}");
    live.set(0, 0).unwrap();
    live.advance(5.0);
    let (sent, acknowledged) = (live.counters(0).sent, live.acknowledged());
    live.advance(5.0);
    assert_eq!(
        (live.counters(0).sent, live.acknowledged()),
        (sent, acknowledged)
    );
    assert_eq!(open(&live), [0, 0, 0]);
}

/// Cells where one stream a node takes more than twice as long as the best: every policy, started cold, at most a quarter
/// longer than the best of these fixed settings.
#[test]
fn policies_come_near_the_best() {
    for (nodes, megabits, rtt, queue, loss) in [
        (1, 10.0, 0.16, 50, 0.001),
        (1, 100.0, 0.08, 690, 0.001),
        (4, 100.0, 0.16, 1380, 0.001),
    ] {
        let bed = Bed {
            net: net(nodes, megabits, rtt, queue, loss),
            flavour: FlavourName::Cubic,
            packet_bytes: 1448,
            window: 2048,
            packets: (megabits * 1e6 * 20.0 / 1488.0 / 8.0) as u64,
        };
        let fixed = [1, 4, 16, 32].map(|streams| {
            let setting = Setting { nodes, streams };
            bed.fixed(setting, 200.0).unwrap().seconds
        });
        let best = fixed.into_iter().fold(f64::INFINITY, f64::min);
        assert!(fixed[0] > 1.9 * best, "{fixed:?}");
        for policy in PolicyName::ALL {
            let went = bed.tuned(policy.make(), 64, 200.0).unwrap();
            let over = went.seconds / best;
            assert!(
                over < 1.25,
                "{policy:?} over {nodes} nodes, {megabits} Mbit/s: {over} {:?}",
                went.steps
            );
        }
    }
}

/// A simulation says that loss takes many streams, and is refused where it would be too long.
#[test]
fn answers() {
    let situation = Situation {
        nodes: 1,
        rate: 12.5e6,
        access: None,
        rtt_seconds: 0.08,
        queue: 690.0,
        loss: 0.001,
        window: 2048.0,
        segment_bytes: 1448.0,
    };
    let question = |situation: Situation| Question {
        settings: TOTALS[..7]
            .iter()
            .map(|&streams| Setting { nodes: 1, streams })
            .collect(),
        situation,
    };
    let shares = answer(&question(situation), EVENTS_MAX).unwrap().shares;
    assert!(shares[0] < 0.35 && shares[5] > 0.9, "{shares:?}");
    let error = answer(&question(situation), 70_000).unwrap_err();
    assert!(error.to_string().contains("100 Mbit/s"), "{error}");
}
