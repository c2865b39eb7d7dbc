//! Packet events a second of the packet simulator, on one thread: `cargo run --release -p ropewalk-measure --example packet_speed`.

#![allow(clippy::disallowed_methods, reason = "measures its own time")]

use std::time::Instant;

use ropewalk_tcp_sim::{FlavourName, Profile, Stripes, TwoClusters};

fn main() {
    println!("nodes stripes Mbit/s   events  seconds  million/s");
    for (nodes, stripes, megabits) in [
        (1, 4, 100.0),
        (8, 8, 10.0),
        (8, 8, 1000.0),
        (16, 64, 1000.0),
    ] {
        let net = TwoClusters {
            nodes,
            stripes: Stripes(vec![(FlavourName::Reno, stripes)]),
            bits_per_second: megabits * 1e6,
            latency_seconds: 0.08,
            bytes_per_node: 40_000_000,
            ..TwoClusters::default()
        };
        let mut scenario = net.scenario(Profile::default());
        scenario.limit_seconds = 1000.0;
        let began = Instant::now();
        let outcome = scenario.run().expect("a scenario that can be run");
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{nodes:5} {stripes:7} {megabits:6.0} {:8} {seconds:8.3} {:10.2}",
            outcome.events,
            outcome.events as f64 / seconds / 1e6
        );
    }
}
