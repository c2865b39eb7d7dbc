//! How planning scales: CPU seconds, peak memory and distance from the bound, by family, size and scheduler.
//!
//! `cargo run --release -p ropewalk-measure --example scale [-- FAMILY [NODES_MAX [SCHEDULER]]]`
//!
//! Half of the nodes send, half receive; senders have 1 to 10 Gbit/s, receivers 32 to 80. Families: what senders hold.
//! `windows`: an eighth of the senders holds each byte; `nested`: from the start to some point; `blocks`: 10 blocks a
//! sender, each with 3 random holders. Receivers want their own part each, or share one destination
//! (`-shared`). Each point runs in a process of its own, three times; the median counts. Planning includes
//! everything from the problem to the schedule in whole bytes.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark reads clocks and its own process"
)]

use std::process::Command;

use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::range::{Range, RangeSet};
use ropewalk_sched::{bound, by_name, receiver_runs, verify};

const FAMILIES: [&str; 6] = [
    "windows",
    "nested",
    "blocks",
    "windows-shared",
    "nested-shared",
    "blocks-shared",
];
const SCHEDULERS: [&str; 4] = ["greedy", "fast", "optimal", "auto"];
const RUNS: usize = 3;

/// Greedy and the like would need the whole memory beyond this.
const GREEDY_NODES_MAX: usize = 3_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, family, nodes, scheduler] = args.as_slice()
        && flag == "--point"
    {
        point(family, nodes.parse().unwrap(), scheduler);
        return;
    }
    let wanted = |at: usize, name: &str| args.get(at).is_none_or(|a| a == "all" || a == name);
    let nodes_max: usize = args.get(1).map_or(100_000, |n| n.parse().unwrap());
    println!(
        "{:<15} {:>7} {:<8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>12}",
        "family",
        "nodes",
        "",
        "plan s",
        "bound s",
        "verify s",
        "runs s",
        "pieces",
        "MB",
        "over bound"
    );
    for family in FAMILIES.iter().filter(|family| wanted(0, family)) {
        for nodes in [100, 1_000, 10_000, 100_000] {
            for scheduler in SCHEDULERS.iter().filter(|name| wanted(2, name)) {
                let too_large = *scheduler == "greedy" && nodes > GREEDY_NODES_MAX;
                if nodes <= nodes_max && !too_large && by_name(scheduler).is_ok() {
                    row(family, nodes, scheduler);
                }
            }
        }
    }
}

/// Runs one point in processes of its own and prints the run with the median planning time.
fn row(family: &str, nodes: usize, scheduler: &str) {
    let program = std::env::current_exe().unwrap();
    let run = |_| {
        let mut command = Command::new(&program);
        let out = command.args(["--point", family, &nodes.to_string(), scheduler]);
        let out = out.output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let text = String::from_utf8(out.stdout).unwrap();
        let numbers = text.split_whitespace().map(|n| n.parse::<f64>().unwrap());
        numbers.collect::<Vec<f64>>()
    };
    let mut runs: Vec<Vec<f64>> = (0..RUNS).map(run).collect();
    runs.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [plan, bound, verify, runs_of, pieces, memory, over] = runs[RUNS / 2][..] else {
        panic!("a point prints seven numbers");
    };
    println!(
        "{family:<15} {nodes:>7} {scheduler:<8} {plan:>9.3} {bound:>9.3} {verify:>9.3} {runs_of:>9.3} {pieces:>9} {memory:>8.0} {:>11.4}%",
        (over - 1.0) * 100.0
    );
}

fn point(family: &str, nodes: usize, scheduler: &str) {
    let problem = family_of(family, nodes);
    let scheduler = by_name(scheduler).unwrap();
    let before = cpu_seconds();
    let schedule = scheduler.plan(&problem).unwrap();
    let planned = cpu_seconds();
    let memory = peak_megabytes();
    let least = bound(&problem).unwrap();
    let bounded = cpu_seconds();
    verify(&problem, &schedule).unwrap();
    let verified = cpu_seconds();
    let runs = receiver_runs(&problem, &schedule, 2);
    let seen = cpu_seconds();
    assert_eq!(runs.len(), problem.receivers.len());
    println!(
        "{} {} {} {} {} {} {}",
        planned - before,
        bounded - planned,
        verified - bounded,
        seen - verified,
        schedule.assignments.len(),
        memory,
        schedule.predicted_seconds(&problem) / least.seconds
    );
}

fn family_of(family: &str, nodes: usize) -> Problem {
    let half = (nodes / 2) as u64;
    let mut random = Random(nodes as u64);
    let (holds, space) = match family.trim_end_matches("-shared") {
        "windows" => windows(half, &mut random),
        "nested" => nested(half, &mut random),
        "blocks" => blocks(half, &mut random),
        other => panic!("no family {other}"),
    };
    let speed = |random: &mut Random| (1 + random.below(10)) * 125_000_000;
    let senders = holds.into_iter().enumerate().map(|(i, ranges)| Sender {
        name: format!("w{i}"),
        up: speed(&mut random),
        ranges,
    });
    let senders = senders.collect();
    let shared = family.ends_with("-shared");
    let part = |i: u64| (u128::from(space) * u128::from(i) / u128::from(half)) as u64;
    let receivers = (0..half).map(|i| Receiver {
        name: format!("r{i}"),
        // Fast enough that the senders, whose side is the harder one, set the time.
        down: 8 * speed(&mut random).max(500_000_000),
        // Of a shared destination each takes what is near: sixteen parts around its own.
        ranges: match shared {
            true => Range::new(part(i.saturating_sub(8)), part((i + 8).min(half))).into(),
            false => Range::new(part(i), part(i + 1)).into(),
        },
        destination: shared.then(|| "shared".to_owned()),
        relay_up: None,
    });
    Problem {
        senders,
        receivers: receivers.collect(),
        ..Problem::default()
    }
}

const PART: u64 = 1 << 30;

fn windows(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let space = half * PART;
    let width = (half / 8).max(2) * PART;
    let window = |i: u64| {
        let start = (i * PART).saturating_sub(width / 2 + random.below(PART));
        Range::new(start, (start + width).min(space)).into()
    };
    let mut holds: Vec<RangeSet> = (0..half).map(window).collect();
    // The rounding of the last windows must not leave the end to nobody.
    holds[half as usize - 1] = Range::new(space - width, space).into();
    (holds, space)
}

fn nested(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let space = half * PART;
    let holds = (0..half).map(|i| match i {
        0 => Range::new(0, space).into(),
        _ => Range::new(0, 1 + random.below(space)).into(),
    });
    (holds.collect(), space)
}

fn blocks(half: u64, random: &mut Random) -> (Vec<RangeSet>, u64) {
    let mut runs: Vec<Vec<Range>> = vec![Vec::new(); half as usize];
    let mut start = 0;
    for _ in 0..half * 10 {
        let range = Range::new(start, start + PART / 16 + random.below(PART / 8));
        start = range.end;
        for _ in 0..3 {
            runs[random.below(half) as usize].push(range);
        }
    }
    (runs.into_iter().map(RangeSet::from_ranges).collect(), start)
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same problems on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn peak_megabytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<f64>().unwrap() / 1024.0
}
