//! How near the bound transfers come when nobody knows any speed, in virtual time.
//!
//! `cargo run --release -p ropewalk-measure --example unknown -- [TEXT] [hints]`
//!
//! Networks are those of CEP Figures 6 and 7 (slow nodes at 2.39 MB/s, fast ones at ten times that) and 80 random ones,
//! all sized for 20 s; TEXT picks those whose name contains it, `hints` declares the true speeds. Use it to see
//! what a change of the run-time rules does everywhere at once: it takes a second.

use ropewalk_model::Range;
use ropewalk_proto::coordinator::NodeSetup;
use ropewalk_sim::{Chance, Scenario, Speed, changed_bound, node};

const SLOW: f64 = 2.39e6;
const FAST: f64 = 23.9e6;
const SECONDS: f64 = 20.0;
const RANDOM: u64 = 80;

/// Senders and receivers by their speeds and windows, in halves of an n-th.
struct Network {
    name: String,
    sides: [(Vec<f64>, u64); 2],
    is_shared: bool,
}

impl Network {
    fn scenario(&self, bytes: u64) -> Scenario {
        let destination = self.is_shared.then_some("out");
        let [(up, holds), (down, wants)] = &self.sides;
        let senders = windows(bytes, up.len(), *holds).into_iter().enumerate();
        let senders = senders.map(|(at, ranges)| node(format!("s{at}"), &ranges, &[], None));
        let receivers = windows(bytes, down.len(), *wants).into_iter().enumerate();
        let receivers =
            receivers.map(|(at, ranges)| node(format!("r{at}"), &[], &ranges, destination));
        let nodes: Vec<NodeSetup> = senders.chain(receivers).collect();
        let speeds = up.iter().chain(down).map(|&speed| Speed::both(speed));
        Scenario::new(nodes, speeds.collect())
    }

    /// Percent of the bound that the transfer reaches.
    fn run(&self, is_declared: bool) -> f64 {
        const PROBE: u64 = 1 << 30;
        let bound = |bytes| changed_bound(&self.scenario(bytes)).expect("all bytes are held");
        let bytes = (SECONDS / bound(PROBE) * PROBE as f64) as u64 >> 22 << 22;
        let (mut scenario, bound) = (self.scenario(bytes), bound(bytes));
        if is_declared {
            scenario = scenario.declared();
        }
        let ended = scenario.run();
        let percent = bound / ended.seconds * 100.0;
        println!(
            "{:34} bound {bound:6.2} s, took {:6.2} s: {percent:5.1} %, {:.2} % waste, {} re-plans",
            self.name,
            ended.seconds,
            ended.waste() * 100.0,
            ended.replans
        );
        percent
    }
}

/// Node i of n may access `halves`/2n of the data from i/n on, wrapping.
fn windows(bytes: u64, count: usize, halves: u64) -> Vec<Vec<Range>> {
    let count = count as u64;
    let window = |at: u64| {
        let (start, end) = (bytes * at / count, bytes * (2 * at + halves) / (2 * count));
        let mut ranges = vec![Range::new(start, end.min(bytes))];
        ranges.extend((end > bytes).then(|| Range::new(0, end - bytes)));
        ranges
    };
    (0..count).map(window).collect()
}

fn figures() -> Vec<Network> {
    let mut networks = Vec::new();
    for (slow, fast) in [(2, 0), (5, 0), (5, 1), (5, 2), (5, 3)] {
        let speeds = [vec![SLOW; slow], vec![FAST; fast]].concat();
        let all = 2 * speeds.len() as u64;
        networks.push(Network {
            name: format!("Figure 6, {slow}+{fast}"),
            sides: [(speeds.clone(), all), (speeds, all)],
            is_shared: true,
        });
    }
    for (count, order) in [
        (8, "interleaved"),
        (8, "blocked"),
        (4, "interleaved"),
        (4, "blocked"),
    ] {
        let is_fast = |at: usize| match order {
            "blocked" => at >= count / 2,
            _ => at % 2 == 1,
        };
        let speeds: Vec<f64> = (0..count)
            .map(|at| if is_fast(at) { FAST } else { SLOW })
            .collect();
        for halves in [2, 3, 4, 6, 8, 9, 12, 16] {
            if halves <= 2 * count as u64 {
                networks.push(Network {
                    name: format!("Figure 7, {count} {order} {}/{count}", halves as f64 / 2.0),
                    sides: [(speeds.clone(), halves), (speeds.clone(), halves)],
                    is_shared: true,
                });
            }
        }
    }
    // The third reading of Figure 7: receivers are never the narrow side, and take anything.
    for halves in [2, 6, 9, 16] {
        let speeds = [vec![SLOW; 4], vec![FAST; 4]].concat();
        networks.push(Network {
            name: format!("Figure 7, 8 senders {}/8", halves as f64 / 2.0),
            sides: [(speeds, halves), (vec![FAST; 8], 16)],
            is_shared: true,
        });
    }
    networks
}

fn random(seed: u64) -> Network {
    let mut chance = Chance::new(seed);
    let mut side = || {
        let count = 2 + chance.below(7) as usize;
        let spread: f64 = [2.0, 5.0, 20.0][chance.below(3) as usize];
        let speed = |_| 2e6 * spread.powf(chance.below(1000) as f64 / 1000.0);
        let speeds: Vec<f64> = (0..count).map(speed).collect();
        let halves = 2 + chance.below(2 * count as u64 - 1);
        (speeds, halves)
    };
    let sides = [side(), side()];
    Network {
        name: format!("random {seed}, {}+{}", sides[0].0.len(), sides[1].0.len()),
        sides,
        is_shared: !seed.is_multiple_of(3),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_declared = arguments.iter().any(|argument| argument == "hints");
    let text = arguments.iter().find(|argument| *argument != "hints");
    let is_wanted = |network: &Network| text.is_none_or(|text| network.name.contains(text));
    for networks in [figures(), (0..RANDOM).map(random).collect()] {
        let wanted = networks.iter().filter(|network| is_wanted(network));
        let mut percents: Vec<f64> = wanted.map(|network| network.run(is_declared)).collect();
        percents.sort_by(f64::total_cmp);
        if let [least, ..] = percents[..] {
            let mean = percents.iter().sum::<f64>() / percents.len() as f64;
            let (tenth, median) = (percents[percents.len() / 10], percents[percents.len() / 2]);
            println!("least {least:.1} %, a tenth {tenth:.1}, median {median:.1}, mean {mean:.1}");
        }
    }
}
