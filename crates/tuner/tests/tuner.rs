//! Policies one by one, and the tuner against a path that is a formula.

use ropewalk_tuner::policy::{Database, Lesson, Model, Simulate};
use ropewalk_tuner::{
    Answer, Limits, NodeCounters, Others, Policy, PolicyName, Question, Setting, Situation, Tuner,
    far_streams,
};

/// 100 Mbit/s, 80 ms, no loss, a queue as long as the path.
fn situation() -> Situation {
    Situation {
        nodes: 1,
        rate: 12.5e6,
        access: None,
        rtt_seconds: 0.08,
        queue: 690.0,
        loss: 0.0,
        window: 2048.0,
        segment_bytes: 1448.0,
    }
}

fn limits(nodes: u32) -> Limits {
    Limits {
        nodes,
        streams: 64,
        trunk: None,
        access: None,
    }
}

/// All nodes alike; fewer nodes only where each has one stream, and never fewer than the trunk takes.
#[test]
fn totals_are_split_over_nodes() {
    let split = |total: f64, limits: Limits| {
        let setting = limits.split(total);
        (setting.nodes, setting.streams)
    };
    assert_eq!(split(32.0, limits(8)), (8, 4));
    assert_eq!(split(31.0, limits(8)), (8, 4));
    assert_eq!(split(3.0, limits(8)), (3, 1));
    assert_eq!(split(0.0, limits(8)), (1, 1));
    assert_eq!(split(1e9, limits(8)), (8, 64));
    let access = Limits {
        trunk: Some(5e6),
        access: Some(1e6),
        ..limits(8)
    };
    assert_eq!(split(1.0, access), (5, 1));
}

/// The formula, and its corrections one by one.
#[test]
fn the_model_corrects_the_formula() {
    let best = |situation: Situation| Model.best(&situation).unwrap();
    // One stream's window would do; a few average out.
    assert_eq!(best(situation()), 8.0);
    // A window of 64 packets: 690 / 64.
    let paper = Situation {
        window: 64.0,
        ..situation()
    };
    assert!((best(paper) - 690.6 / 64.0).abs() < 0.1, "{}", best(paper));
    // 0.1 % loss: windows of about 36 packets.
    let lossy = Situation {
        loss: 0.001,
        ..situation()
    };
    assert!((17.0..25.0).contains(&best(lossy)), "{}", best(lossy));
    // A short queue: halved windows leave the path idle until they have grown.
    let short = Situation {
        queue: 50.0,
        ..situation()
    };
    assert!((45.0..60.0).contains(&best(short)), "{}", best(short));
    // A small path: windows must not become timeouts.
    let small = Situation {
        rate: 1.25e6,
        rtt_seconds: 0.02,
        queue: 17.0,
        loss: 0.05,
        ..situation()
    };
    assert!(best(small) < 6.0, "{}", best(small));
}

/// One question a situation; answers to others do not count; the fewest of those that are as good.
#[test]
fn simulations_are_asked_for_once() {
    let mut policy = Simulate::default();
    assert_eq!(policy.best(&situation()), None);
    let question = policy.poll_question().unwrap();
    assert_eq!(question.settings[0].total(), 1);
    let nearly = Situation {
        rate: 13e6,
        ..situation()
    };
    assert_eq!(policy.best(&nearly), None);
    assert_eq!(policy.poll_question(), None);
    let shares = question.settings.iter().map(|one| match one.total() {
        0..=4 => 0.5,
        8 => 0.985,
        16 => 1.0,
        _ => 0.9,
    });
    let answer = Answer {
        shares: shares.collect(),
        question,
    };
    policy.handle_answer(&answer);
    assert_eq!(policy.best(&nearly), Some(8.0));
    let other = Situation {
        rate: 50e6,
        ..situation()
    };
    assert_eq!(policy.best(&other), None);
    assert!(policy.poll_question().is_some());
}

/// Between two situations the answer lies between theirs, in logarithms.
#[test]
fn the_database_interpolates() {
    let mut database = Database::default();
    assert_eq!(database.best(&situation()), None);
    let at = |loss: f64| Situation {
        loss,
        ..situation()
    };
    database.add(Lesson::new(&at(0.001), &[(8, 1.0), (32, 1.0)]));
    database.add(Lesson::new(&at(0.016), &[(8, 0.2), (32, 1.0)]));
    let middle = database.best(&at(0.004)).unwrap();
    assert!((middle - 16.0).abs() < 0.1, "{middle}");
    assert!(database.best(&at(0.001)).unwrap() < 9.0);
}

/// What was seen outweighs what is shipped, and goes through the file unchanged.
#[test]
fn the_database_learns() {
    let mut database = Database::shipped();
    assert!(database.len() > 100, "{}", database.len());
    let before = database.best(&situation()).unwrap();
    for (total, share) in [(4, 0.3), (64, 0.6), (256, 1.0)] {
        database.learn(&situation(), total, share);
    }
    let after = database.best(&situation()).unwrap();
    assert!(after > before * 1.5, "{before} {after}");
    let lines = database.kept();
    assert_eq!(lines.len(), 1);
    let mut next = Database::shipped();
    assert!(next.recall(&lines[0]));
    assert_eq!(next.kept(), lines);
    for wrong in ["", "a b", "1 2 3", &format!("{} 7", lines[0])] {
        assert!(!next.recall(wrong), "{wrong:?}");
    }
}

/// A path as a formula: each stream brings `each` until the rate is reached; beyond `collapse` streams it falls apart.
struct Toy {
    rate: f64,
    each: f64,
    collapse: u32,
    rtt: f64,
    // Part of the segments that is sent again.
    lost: f64,
    nodes: Vec<NodeCounters>,
    seconds: f64,
}

impl Toy {
    fn run(&mut self, tuner: &mut Tuner, seconds: f64) -> Vec<Setting> {
        let mut steps = Vec::new();
        let until = self.seconds + seconds;
        while self.seconds < until {
            self.seconds += 0.1;
            let setting = tuner.setting();
            let wanted = f64::from(setting.total()) * self.each;
            let mut rate = wanted.min(self.rate);
            if setting.total() > self.collapse {
                rate /= 8.0;
            }
            let queued = if wanted > self.rate { 0.5 } else { 0.0 };
            for (at, node) in self.nodes.iter_mut().enumerate() {
                let part = if (at as u32) < setting.nodes {
                    1.0 / f64::from(setting.nodes)
                } else {
                    0.0
                };
                node.streams = if part > 0.0 { setting.streams } else { 0 };
                node.bytes += (rate * part * 0.1) as u64;
                node.segments = node.bytes / 1448;
                node.repeated += (rate * part * 0.1 / 1448.0 * self.lost) as u64;
                node.rtt_seconds = self.rtt * (1.0 + queued);
                node.rtt_seconds_min = self.rtt;
                node.segment_bytes = 1448.0;
            }
            steps.extend(tuner.observe(&self.nodes, (self.seconds * 1e9) as u64));
        }
        steps
    }
}

fn toy(nodes: usize) -> Toy {
    Toy {
        rate: 12.5e6,
        each: 0.3e6,
        collapse: u32::MAX,
        rtt: 0.08,
        lost: 0.0,
        nodes: vec![NodeCounters::default(); nodes],
        seconds: 0.0,
    }
}

/// From cold, every policy opens enough streams within three seconds, then leaves well alone.
#[test]
fn enough_streams_and_then_rest() {
    for policy in PolicyName::ALL {
        for nodes in [1, 4] {
            let mut tuner = Tuner::new(policy.make(), limits(nodes));
            let mut path = toy(nodes as usize);
            let first = path.run(&mut tuner, 3.0);
            assert!(!first.is_empty());
            assert!(
                f64::from(tuner.setting().total()) * 0.3e6 > 11e6,
                "{policy:?} {:?}",
                tuner.setting()
            );
            path.run(&mut tuner, 20.0);
            let late = path.run(&mut tuner, 40.0);
            assert!(late.len() <= 2, "{policy:?}: {late:?}");
        }
    }
}

/// Whoever decides, what was seen is there for the database of later transfers; a simulation, too.
#[test]
fn every_transfer_teaches() {
    for policy in PolicyName::ALL {
        let mut tuner = Tuner::new(policy.make(), limits(4));
        toy(4).run(&mut tuner, 20.0);
        let lessons = tuner.lessons();
        assert!(!lessons.is_empty(), "{policy:?}");
        let mut later = Database::default();
        assert!(lessons.iter().all(|line| later.recall(line)));
        assert_eq!(later.len(), lessons.len());
    }
    let mut tuner = Tuner::new(PolicyName::Simulate.make(), limits(4));
    let settings = [16, 64].map(|total| limits(4).split(f64::from(total)));
    tuner.handle_answer(&Answer {
        question: Question {
            situation: situation(),
            settings: settings.to_vec(),
        },
        shares: vec![0.5, 1.0],
    });
    let mut later = Database::default();
    assert!(later.recall(&tuner.lessons()[0]));
    assert_eq!(later.best(&situation()), Some(64.0));
}

/// Hosts that allow small windows need more streams, if all of them do.
#[test]
fn small_windows_count() {
    let total = |windows: [f64; 2]| {
        let mut tuner = Tuner::new(PolicyName::Model.make(), limits(2));
        let mut path = toy(2);
        for (node, window) in path.nodes.iter_mut().zip(windows) {
            node.window_max = window;
        }
        path.run(&mut tuner, 20.0);
        tuner.setting().total()
    };
    assert!(total([4.0, 4.0]) > total([0.0, 0.0]));
    assert_eq!(total([4.0, 0.0]), total([0.0, 0.0]));
}

/// A step that makes things worse is taken back, and not tried again at once.
#[test]
fn a_bad_step_is_taken_back() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(1));
    let mut path = Toy {
        each: 0.1e6,
        collapse: 40,
        rtt: 0.02,
        ..toy(1)
    };
    let steps = path.run(&mut tuner, 9.0);
    let over = steps.iter().filter(|step| step.total() > 40).count();
    assert_eq!(over, 1, "{steps:?}");
    assert!(tuner.setting().total() <= 40, "{steps:?}");
}

/// Within a site the number stays what it is.
#[test]
fn the_neighbourhood_is_left_alone() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(2));
    let mut path = Toy {
        rtt: 0.0005,
        ..toy(2)
    };
    assert_eq!(path.run(&mut tuner, 20.0), []);
    assert_eq!(
        tuner.setting(),
        Setting {
            nodes: 2,
            streams: 4
        }
    );
}

/// A trunk that carries ten times as much all at once is filled again.
#[test]
fn a_changed_trunk_is_noticed() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(4));
    let mut path = toy(4);
    path.run(&mut tuner, 20.0);
    let before = tuner.setting().total();
    path.rate *= 4.0;
    path.run(&mut tuner, 20.0);
    assert!(
        tuner.setting().total() > before,
        "{before} {:?}",
        tuner.setting()
    );
}

/// A node without streams, however long its round trips were, does not make the others wait.
#[test]
fn who_sends_nothing_does_not_count() {
    let steps = |rtt_seconds: f64| {
        let mut tuner = Tuner::new(PolicyName::Model.make(), limits(1));
        let gone = NodeCounters {
            rtt_seconds,
            ..NodeCounters::default()
        };
        let step = |step: u64| {
            let node = NodeCounters {
                streams: tuner.setting().streams,
                bytes: step * 1_000_000,
                segments: step * 700,
                rtt_seconds: 0.02,
                rtt_seconds_min: 0.02,
                segment_bytes: 1448.0,
                ..NodeCounters::default()
            };
            tuner.observe(&[node, gone], step * 100_000_000)
        };
        (1..100).map(step).collect::<Vec<_>>()
    };
    assert!(steps(0.0).iter().flatten().count() > 1);
    assert_eq!(steps(0.0), steps(10.0));
}

/// Nodes that end leave their streams to the others.
#[test]
fn the_budget_is_kept_when_nodes_end() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(8));
    let before = tuner.setting().total();
    tuner.set_nodes(4);
    assert_eq!(
        tuner.setting(),
        Setting {
            nodes: 4,
            streams: before / 4
        }
    );
}

/// A queue that makes round trips long is no long path: the least of them counts.
#[test]
fn a_queue_is_no_long_path() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(1));
    let mut node = NodeCounters::default();
    for step in 1..200 {
        node = NodeCounters {
            streams: 4,
            bytes: step * 250_000,
            segments: step * 170,
            // 20 Mbit/s before 250 kB.
            rtt_seconds: 0.1,
            rtt_seconds_min: 0.0004,
            segment_bytes: 1448.0,
            ..node
        };
        assert_eq!(tuner.observe(&[node], step * 100_000_000), None);
    }
    assert_eq!(far_streams(1, 0, 0.0049), None);
}

/// The first streams go with the round trip, for all nodes together, and four or eight a node at least.
#[test]
fn first_streams() {
    let first =
        |nodes| [0.005, 0.02, 0.08, 0.16, 0.6].map(|rtt| far_streams(nodes, 0, rtt).unwrap());
    assert_eq!(first(1), [16, 16, 64, 64, 64]);
    assert_eq!(first(8), [4, 4, 8, 8, 8]);
    assert_eq!(first(16), [4, 4, 8, 8, 8]);
    // Beside another transfer half of that, as much as the other one keeps.
    assert_eq!(far_streams(8, 1, 0.08), Some(4));
}

/// A queue that drops more than a tenth gets no more streams, and fewer when it drops a quarter.
#[test]
fn lossy_queues_get_no_more() {
    for (part, expected) in [(0.0, 17..=64), (0.15, 16..=16), (0.3, 1..=8)] {
        let mut tuner = Tuner::new(PolicyName::Model.make(), limits(4));
        let mut node = NodeCounters::default();
        let mut total = 0;
        for step in 1..40_u64 {
            total += 400 * step.min(10);
            node = NodeCounters {
                streams: tuner.setting().streams,
                bytes: total * 1448,
                segments: total,
                repeated: (total as f64 * part) as u64,
                rtt_seconds: 0.085,
                rtt_seconds_min: 0.08,
                segment_bytes: 1448.0,
                ..node
            };
            tuner.observe(&[node; 4], step * 100_000_000);
        }
        let streams = tuner.setting().streams;
        assert!(expected.contains(&streams), "{part}: {streams}");
    }
}

/// What streams lose when they begin says nothing: one interval of many losses closes none of them, two do.
#[test]
fn a_burst_of_losses_passes() {
    for (burst_until, expected) in [(11, 16), (40, 8)] {
        let mut tuner = Tuner::new(PolicyName::Model.make(), limits(4));
        let mut node = NodeCounters::default();
        let mut least = u32::MAX;
        for step in 1..20_u64 {
            let lost = if step < burst_until { 1200 } else { 200 };
            node = NodeCounters {
                streams: tuner.setting().streams,
                bytes: node.bytes + 3000 * 1448,
                segments: node.segments + 3000,
                repeated: node.repeated + lost,
                rtt_seconds: 0.085,
                rtt_seconds_min: 0.08,
                segment_bytes: 1448.0,
                ..node
            };
            if tuner.observe(&[node; 4], step * 100_000_000).is_some() {
                least = least.min(tuner.setting().streams);
            }
        }
        assert_eq!(least, expected, "burst until {burst_until}");
    }
}

/// Transfers that share a path share its streams: each gives up its part, and gets it back.
#[test]
fn transfers_share_a_path() {
    let mut tuner = Tuner::new(PolicyName::Model.make(), limits(8));
    let mut path = toy(8);
    path.run(&mut tuner, 20.0);
    let alone = tuner.setting().total();
    let others = |streams| Others {
        transfers: 1,
        streams,
    };
    tuner.set_others(others(0));
    // The other one takes half of the rate.
    path.rate /= 2.0;
    let told = path.run(&mut tuner, 0.2);
    assert_eq!(told.len(), 1, "it is told at once");
    let shared = tuner.setting().total();
    assert!(shared.abs_diff(alone / 2) <= 4, "{alone} {shared}");
    // A policy that wants fewer or more does not change it, as long as nobody says more.
    path.lost = 0.05;
    path.run(&mut tuner, 10.0);
    assert_eq!(tuner.setting().total(), shared);
    // Who has more gives up some, and the other way round.
    tuner.set_others(others(shared / 4));
    path.run(&mut tuner, 4.0);
    let fewer = tuner.setting().total();
    assert!(fewer < shared, "{shared} {fewer}");
    tuner.set_others(others(2 * shared));
    path.run(&mut tuner, 20.0);
    let later = tuner.setting().total();
    assert!(later.abs_diff(2 * shared) <= shared / 2, "{shared} {later}");
    tuner.set_others(Others::default());
    assert!(
        tuner.setting().total() >= later,
        "{later} {:?}",
        tuner.setting()
    );
}
