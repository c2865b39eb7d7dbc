//! How good plans with relays are, how large, and how long they take to make.
//!
//! `cargo run --release -p ropewalk-measure --example relays -- [NODES]`
//!
//! Families are full copies from four senders, windows that overlap, and blocks with three replicas of which each
//! receiver wants some; NODES receivers (10,000). Then 300 random small networks: median and worst distance of the plan
//! from the bound. Times are of one thread.

use std::time::Instant;

use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::{Range, RangeSet};
use ropewalk_sched::{bound, plan_relays, relay_bound, verify_relays};
use ropewalk_sim::Chance;

const BLOCK: u64 = 10_000_000;
const RANDOM: u64 = 300;

fn sender(at: u64, up: u64, runs: Vec<Range>) -> Sender {
    let ranges = RangeSet::from_ranges(runs);
    let name = format!("w{at}");
    Sender { name, up, ranges }
}

fn receiver(at: u64, (down, up): (u64, u64), runs: Vec<Range>) -> Receiver {
    Receiver {
        name: format!("r{at}"),
        down,
        ranges: RangeSet::from_ranges(runs),
        destination: None,
        relay_up: Some(up),
    }
}

fn block(at: u64) -> Range {
    Range::new(at * BLOCK, (at + 1) * BLOCK)
}

/// Uplinks of 12.5, 25 or 125 MB/s.
fn speed(at: u64) -> u64 {
    [12_500_000, 25_000_000, 125_000_000][(at % 3) as usize]
}

fn full(nodes: u64) -> Problem {
    let all = vec![Range::new(0, 1_000_000_000)];
    let receivers = (0..nodes).map(|at| receiver(at, (125_000_000, speed(at)), all.clone()));
    Problem {
        senders: (0..4)
            .map(|at| sender(at, 125_000_000, all.clone()))
            .collect(),
        receivers: receivers.collect(),
        ..Problem::default()
    }
}

/// Each of as many senders holds `held` blocks in a row, each receiver wants `wanted`.
fn windows(nodes: u64, held: u64, wanted: u64) -> Problem {
    let window = |at: u64, blocks: u64| vec![Range::new(at * BLOCK, (at + blocks) * BLOCK)];
    let space = nodes + held.max(wanted);
    let senders =
        (0..space).map(|at| sender(at, speed(at), window(at.saturating_sub(held - 1), held)));
    let receivers =
        (0..nodes).map(|at| receiver(at, (speed(at + 1) * 8, speed(at)), window(at, wanted)));
    Problem {
        senders: senders.collect(),
        receivers: receivers.collect(),
        ..Problem::default()
    }
}

/// Blocks with three holders; each receiver wants `wanted` of them at random.
fn blocks(nodes: u64, senders: u64, wanted: usize, seed: u64) -> Problem {
    let mut chance = Chance::new(seed);
    let count = nodes.max(8);
    let mut held = vec![Vec::new(); senders as usize];
    for at in 0..count {
        for _ in 0..3 {
            held[chance.below(senders) as usize].push(block(at));
        }
    }
    let senders = held.into_iter().zip(0..);
    let senders = senders.map(|(runs, at)| sender(at, speed(chance_at(seed, at)), runs));
    let senders: Vec<Sender> = senders.collect();
    let receivers = (0..nodes).map(|at| {
        let runs = (0..wanted).map(|_| block(chance.below(count)));
        receiver(at, (speed(at + 2) * 2, speed(at)), runs.collect())
    });
    Problem {
        receivers: receivers.collect(),
        senders,
        ..Problem::default()
    }
}

fn chance_at(seed: u64, at: u64) -> u64 {
    seed.wrapping_mul(31).wrapping_add(at)
}

fn show(name: &str, problem: &Problem) {
    let start = Instant::now();
    let least = relay_bound(problem).expect("all is held");
    let bounded = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let plan = plan_relays(problem).expect("all is held");
    let planned = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let hops = verify_relays(problem, &plan.schedule).expect("the plan is right");
    let checked = start.elapsed().as_secs_f64();
    println!(
        "{name:28} {:>6} to {:>6}: without {:9.1} s, bound {:8.1} s ({bounded:.2} s to make), plan {:8.1} s ({:+.2} %, {planned:.2} s \
         to make, {checked:.2} s to check), {hops} hops, {} peers, {} runs",
        problem.senders.len(),
        problem.receivers.len(),
        bound(problem).expect("all is held").seconds,
        least.seconds,
        plan.seconds,
        plan.gap() * 100.0,
        plan.schedule.peers_max(),
        plan.schedule.direct.assignments.len() + plan.schedule.relayed.len(),
    );
}

fn main() {
    let nodes = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(10_000);
    for count in [1, 4, 16, 64, 65, 1_000, nodes] {
        show("full copies", &full(count));
    }
    show("windows, 3 wanters a block", &windows(nodes, 2, 3));
    show("windows, 30 wanters a block", &windows(nodes, 2, 30));
    show("windows, 100 wanters a block", &windows(nodes, 2, 100));
    show("blocks, 3 wanters each", &blocks(nodes, nodes, 3, 1));
    show("blocks, 10 wanters each", &blocks(nodes, nodes, 10, 2));
    let mut gaps: Vec<f64> = (0..RANDOM)
        .map(|seed| {
            let problem = blocks(2 + seed % 40, 2 + seed % 9, 1 + (seed % 12) as usize, seed);
            let plan = plan_relays(&problem).expect("all is held");
            verify_relays(&problem, &plan.schedule).expect("the plan is right");
            plan.gap()
        })
        .collect();
    gaps.sort_by(f64::total_cmp);
    println!(
        "{RANDOM} random networks of up to 41 receivers: plans over the bound by {:.4} % in the median, {:.4} % at worst",
        gaps[gaps.len() / 2] * 100.0,
        gaps[gaps.len() - 1] * 100.0
    );
}
