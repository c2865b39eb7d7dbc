#![allow(clippy::disallowed_methods, reason = "an example measures itself")]
//! How the master scales: a whole transfer with many nodes, half senders and half receivers, in virtual time.
//!
//! `cargo run --release -p ropewalk-measure --example large -- NODES [LAYOUT] [UNITS] [SECONDS] [STEP_MS]`
//!
//! LAYOUT is `blocks` (a block for each receiver, held by three senders), `windows` (the same, and receivers of one
//! destination that list two blocks each) or `all` (all hold all; for few nodes). Each node has UNITS units of 64 KiB
//! to move in about SECONDS seconds of virtual time; half the nodes are twice as fast as the others and all speeds
//! are declared.

use std::time::Instant;

use layouts::{memory, processor_seconds, scenario};
use ropewalk_sim::{MS, Second, changed_bound};

mod layouts;

/// 100 Mbit/s in bytes per second, the link of CEP section 4.2.
const LINK: f64 = 12.5e6;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize, default: &str| arguments.get(at).map_or(default, |a| a).to_owned();
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text.parse().expect("a whole number"),
        None => default,
    };
    let (nodes, layout) = (number(0, 1000), text(1, "blocks"));
    let (units, seconds) = (number(2, 256), number(3, 20));
    let mut scenario = scenario(nodes, &layout, units, seconds as f64).declared();
    scenario.step_time = number(4, 20) * MS;
    let bound = (nodes <= 20_000)
        .then(|| changed_bound(&scenario))
        .flatten();
    let before = memory("VmRSS:");
    let (began, worked) = (Instant::now(), processor_seconds());
    let ended = scenario.run();
    let wall = began.elapsed().as_secs_f64();
    let processor = processor_seconds() - worked;
    let sum = ended.traffic_sum();
    let per_node = |value: u64| value as f64 / nodes as f64;
    println!(
        "{nodes} nodes, {layout}, {units} units a node: {:?} {}",
        ended.outcome,
        ended.error.as_deref().unwrap_or_default()
    );
    println!(
        "  {:.2} s of virtual time (bound {}), waste {:.2} %, {} re-plans, {} notes",
        ended.seconds,
        bound.map_or("not computed".into(), |b| format!("{b:.2} s")),
        ended.waste() * 100.0,
        ended.replans,
        ended.notes.len(),
    );
    println!(
        "  {wall:.1} s of wall time ({processor:.1} s of a processor), memory {} MB at most, {} MB before it ran",
        memory("VmHWM:") / 1000,
        before / 1000
    );
    println!(
        "  per node: plan {:.1} messages, {:.0} bytes out, {:.0} bytes in; status {:.1} messages, {:.0} bytes",
        per_node(sum.sent.plan_messages + sum.received.plan_messages),
        per_node(sum.sent.plan_bytes),
        per_node(sum.received.plan_bytes),
        per_node(sum.sent.status_messages + sum.received.status_messages),
        per_node(sum.sent.status_bytes + sum.received.status_bytes),
    );
    print_seconds(&ended.timeline);
}

/// What passes the master's link in the first, the middle and the busiest second.
fn print_seconds(timeline: &[Second]) {
    let line = |name: &str, second: Second| {
        let share = |bytes: u64| bytes as f64 / LINK * 100.0;
        println!(
            "  {name}: master sends {} bytes ({:.2} % of 100 Mbit/s), receives {} ({:.2} %)",
            second.sent_bytes,
            share(second.sent_bytes),
            second.received_bytes,
            share(second.received_bytes)
        );
    };
    line("first second", timeline[0]);
    line("middle second", timeline[timeline.len() / 2]);
    let busiest = timeline
        .iter()
        .max_by_key(|s| s.sent_bytes + s.received_bytes);
    line("busiest second", *busiest.unwrap_or(&timeline[0]));
}
