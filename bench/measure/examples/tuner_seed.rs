//! Simulates the situations that the tuner's database is shipped with, and prints them:
//! `cargo run --release -p ropewalk-measure --example tuner_seed > crates/tuner/src/seed.txt`.

use ropewalk_tcp_sim::tune;
use ropewalk_tuner::policy::{Lesson, TOTALS};
use ropewalk_tuner::{Limits, Question, Situation};

/// Of each situation: the fastest are cut short by it.
const EVENTS_MAX: u64 = 60_000_000;

fn main() {
    println!(
        "# What so many streams bring, simulated (cubic, segments of 1448 bytes). Made by the example tuner_seed."
    );
    println!(
        "# log2 of nodes, segments in the path, in its queue, round trip s, loss, window; then shares in thousandths"
    );
    for nodes in [1, 4, 16] {
        for megabits in [10.0, 100.0, 1000.0] {
            for rtt_seconds in [0.02, 0.08, 0.16] {
                for loss in [0.0, 0.001, 0.01] {
                    for queue in [50.0, 0.0] {
                        let rate = megabits * 1e6 / 8.0 * 1448.0 / 1488.0;
                        let mut situation = Situation {
                            nodes,
                            rate,
                            // Wider than the trunk, so that the queue is the trunk's for one node, too.
                            access: None,
                            rtt_seconds,
                            queue,
                            loss,
                            window: 2048.0,
                            segment_bytes: 1448.0,
                        };
                        if queue == 0.0 {
                            situation.queue = situation.pipe().max(4.0);
                        }
                        let limits = Limits {
                            nodes,
                            streams: u32::MAX,
                            trunk: None,
                            access: None,
                        };
                        let mut totals = TOTALS.to_vec();
                        totals.retain(|total| *total <= 512);
                        let settings = totals.iter().map(|total| limits.split(f64::from(*total)));
                        let question = Question {
                            situation,
                            settings: settings.collect(),
                        };
                        let answer = tune::answer(&question, EVENTS_MAX).expect("a situation");
                        let curve: Vec<(u32, f64)> =
                            totals.into_iter().zip(answer.shares).collect();
                        println!("{}", Lesson::new(&situation, &curve).format());
                    }
                }
            }
        }
    }
}
