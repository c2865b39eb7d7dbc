//! How planning, the master and the simulators scale with the number of nodes: processor seconds and memory.
//!
//! ```text
//!  plans       exact and other schedules of 1,000 to 100,000 nodes      problems
//!  transfers   whole ones in virtual time, on the shipping machines     here
//!  packets     events of the packet simulator a second                  here
//! ```
//!
//! Each run is a process of its own (`scale-point`), so that its peak memory is that of the run.

mod problems;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use ropewalk_model::Range;
use ropewalk_model::layout::UNIT_LEN_MIN;
use ropewalk_sched::{bound, by_name, verify};
use ropewalk_sim::{Chance, MS, Scenario, Speed, node};
use ropewalk_tcp_sim::{FlavourName, Profile, Stripes, TwoClusters};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::stats::{spread, summary};
use crate::table::{Table, number};
use crate::{machine, process};

const SCHEDULERS: [&str; 4] = ["greedy", "fast", "optimal", "auto"];

/// `greedy` needs the whole memory beyond this.
const GREEDY_NODES_MAX: usize = 1_000;

/// Longest run.
const RUN_MAX: Duration = Duration::from_secs(900);

/// Units of each node of a simulated transfer, and about how long they take.
const UNITS: u64 = 256;
const SECONDS: f64 = 20.0;

/// Nodes a side, streams a pair and Mbit/s of a simulated path.
const PATHS: [(u32, u32, f64); 4] = [
    (1, 4, 100.0),
    (8, 8, 10.0),
    (8, 8, 1000.0),
    (16, 64, 1000.0),
];

/// One run of this figure.
#[derive(Args, Clone, Debug)]
pub(crate) struct PointArgs {
    /// `plan`, `transfer` or `packets`
    what: String,
    /// Nodes, or the number of the path
    size: usize,
    /// Of a plan
    #[arg(default_value = "")]
    family: String,
    /// Of a plan
    #[arg(default_value = "")]
    scheduler: String,
}

/// What a run took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ran {
    processor_seconds: f64,
    peak_bytes: u64,
    /// Parts of a plan, control messages of a transfer, or events of packets.
    count: u64,
    /// Bytes of control messages.
    bytes: u64,
    /// Of a plan, the time over the bound; virtual seconds of a transfer.
    value: f64,
}

/// Carries out one run and prints it.
pub(crate) fn run_point(args: &PointArgs) -> Result<()> {
    let before = processor_seconds();
    let (count, bytes, value, seconds) = match args.what.as_str() {
        "plan" => {
            let problem = problems::problem(&args.family, args.size)?;
            let scheduler = by_name(&args.scheduler)?;
            let before = processor_seconds();
            let schedule = scheduler.plan(&problem)?;
            let seconds = processor_seconds() - before;
            verify(&problem, &schedule)?;
            let over = schedule.predicted_seconds(&problem) / bound(&problem)?.seconds;
            (schedule.assignments.len() as u64, 0, over, seconds)
        }
        "transfer" => {
            let scenario = network(args.size as u64);
            let ended = scenario.run();
            anyhow::ensure!(ended.error.is_none(), "{:?}", ended.error);
            let sum = ended.traffic_sum();
            let messages = sum.sent.plan_messages + sum.received.plan_messages;
            let bytes = sum.sent.plan_bytes + sum.received.plan_bytes;
            (messages, bytes, ended.seconds, processor_seconds() - before)
        }
        "packets" => {
            let scenario = path(args.size)?;
            let outcome = scenario.run()?;
            let seconds = processor_seconds() - before;
            (outcome.events, 0, outcome.events as f64 / seconds, seconds)
        }
        other => anyhow::bail!("no run `{other}`"),
    };
    let ran = Ran {
        processor_seconds: seconds,
        peak_bytes: machine::kilobytes("/proc/self/status", "VmHWM").unwrap_or(0),
        count,
        bytes,
        value,
    };
    println!("{}", serde_json::to_string(&ran)?);
    Ok(())
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Half senders and half receivers: a block for each receiver, held by three senders; half of the nodes are twice as fast as the
/// others, and all speeds are declared.
fn network(nodes: u64) -> Scenario {
    let pairs = (nodes / 2).max(1);
    let block = UNITS * UNIT_LEN_MIN;
    let at = |number: u64| {
        let start = number % pairs * block;
        Range::new(start, start + block)
    };
    let mut chance = Chance::new(nodes);
    let mut speed =
        || Speed::both(block as f64 / SECONDS * [2.0 / 3.0, 4.0 / 3.0][chance.below(2) as usize]);
    let holds = |first: u64| [at(first), at(first + 1), at(first + 2)];
    let senders = (0..pairs).map(|n| node(format!("s{n}"), &holds(n), &[], None));
    let receivers = (0..pairs).map(|n| node(format!("r{n}"), &[], &[at(n)], None));
    let setups: Vec<_> = senders.chain(receivers).collect();
    let speeds = setups.iter().map(|_| speed()).collect();
    let mut scenario = Scenario::new(setups, speeds).declared();
    scenario.step_time = 20 * MS;
    scenario
}

fn path(number: usize) -> Result<ropewalk_tcp_sim::Scenario> {
    let (nodes, streams, megabits) = *PATHS.get(number).context("no such path")?;
    let net = TwoClusters {
        nodes,
        stripes: Stripes(vec![(FlavourName::Reno, streams)]),
        bits_per_second: megabits * 1e6,
        latency_seconds: 0.08,
        bytes_per_node: 40_000_000,
        ..TwoClusters::default()
    };
    let mut scenario = net.scenario(Profile::default());
    scenario.limit_seconds = 1000.0;
    Ok(scenario)
}

/// A run in a process of its own.
fn measure(site: &Site, words: &[&str]) -> Result<Ran> {
    let mut command = Command::new(&site.bench);
    command.args(["reproduce", "scale-point"]).args(words);
    let ended = process::run(command, RUN_MAX)?.success("a run")?;
    let line = ended.output.last().context("a run prints nothing")?;
    serde_json::from_str(line).context("a run prints something else")
}

/// The same run so many times; those that failed are left out.
fn runs(bench: &mut Bench, site: &Site, words: &[&str], rounds: usize) -> Vec<Ran> {
    let rounds = 1..=rounds;
    let run = |round| {
        bench.point(&format!("{}, round {round}", words.join(" ")), || {
            measure(site, words)
        })
    };
    rounds.filter_map(run).collect()
}

const MEGA: f64 = 1e6;

fn seconds_of(runs: &[Ran]) -> String {
    spread(runs.iter().map(|ran| ran.processor_seconds), 3)
}

fn peak_megabytes(runs: &[Ran]) -> Option<f64> {
    let peaks = summary(runs.iter().map(|ran| ran.peak_bytes as f64))?;
    Some(peaks.max / MEGA)
}

fn plans(bench: &mut Bench, site: &Site, nodes: &[usize], rounds: usize) -> Table {
    let mut table = Table::new(
        "Plans, one thread",
        &[
            ("holdings", "senders hold"),
            ("nodes", "nodes"),
            ("scheduler", "scheduler"),
            ("processor_seconds", "cpu s"),
            ("peak_megabytes", "peak MB"),
            ("parts", "parts"),
            ("over_bound", "over bound"),
        ],
    );
    for family in problems::FAMILIES {
        for &nodes in nodes {
            for scheduler in SCHEDULERS {
                if scheduler == "greedy" && nodes > GREEDY_NODES_MAX {
                    continue;
                }
                let words = ["plan", &nodes.to_string(), family, scheduler];
                let runs = runs(bench, site, &words, rounds);
                let Some(first) = runs.first() else { continue };
                if scheduler == "auto" && !family.ends_with("-shared") {
                    bench.headline(
                        format!("{nodes} nodes, {family}: processor seconds of the default plan; its time over the bound"),
                        format!("{}; {:.4}", seconds_of(&runs), first.value),
                    );
                }
                table.row(vec![
                    family.into(),
                    number(nodes as f64, 0),
                    scheduler.into(),
                    seconds_of(&runs).into(),
                    number(peak_megabytes(&runs), 0),
                    number(first.count as f64, 0),
                    number(first.value, 4),
                ]);
            }
        }
    }
    table.note("from the problem to the schedule in whole bytes; peak MB includes the problem and, beside the plan, the bound and the check of the plan.");
    table
}

fn transfers(bench: &mut Bench, site: &Site, nodes: &[usize]) -> Table {
    let mut table = Table::new(
        "Whole transfers in virtual time, all machines in one process, one run each",
        &[
            ("nodes", "nodes"),
            ("virtual_seconds", "virtual s"),
            ("processor_seconds", "cpu s"),
            ("peak_megabytes", "peak MB"),
            ("messages_per_node", "plan msg/node"),
            ("bytes_per_node", "plan bytes/node"),
        ],
    );
    for &nodes in nodes {
        let runs = runs(bench, site, &["transfer", &nodes.to_string()], 1);
        let Some(ran) = runs.first() else { continue };
        bench.headline(
            format!("a simulated transfer between {nodes} nodes: processor seconds, peak MB"),
            format!(
                "{:.1}, {:.0}",
                ran.processor_seconds,
                ran.peak_bytes as f64 / MEGA
            ),
        );
        let per_node = |count: u64| count as f64 / nodes as f64;
        table.row(vec![
            number(nodes as f64, 0),
            number(ran.value, 1),
            number(ran.processor_seconds, 1),
            number(peak_megabytes(&runs), 0),
            number(per_node(ran.count), 1),
            number(per_node(ran.bytes), 0),
        ]);
    }
    table.note("a block of 16 MiB for each receiver, held by three senders; half of the nodes are twice as fast as the others.");
    table
}

fn packets(bench: &mut Bench, site: &Site, rounds: usize) -> Table {
    let mut table = Table::new(
        "Packet simulator, one thread",
        &[
            ("nodes", "nodes a side"),
            ("streams", "streams a pair"),
            ("megabits_per_second", "Mbit/s"),
            ("events", "events"),
            ("million_events_per_second", "million/s"),
        ],
    );
    for (at, (nodes, streams, megabits)) in PATHS.into_iter().enumerate() {
        let runs = runs(bench, site, &["packets", &at.to_string()], rounds);
        let Some(first) = runs.first() else { continue };
        table.row(vec![
            number(f64::from(nodes), 0),
            number(f64::from(streams), 0),
            number(megabits, 0),
            number(first.count as f64, 0),
            spread(runs.iter().map(|ran| ran.value / MEGA), 1).into(),
        ]);
    }
    table
}

/// Makes the tables.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "scale")?;
    let site = bench.site();
    let (nodes, rounds): (&[usize], _) = match settings.quick {
        true => (&[1_000, 10_000], 1),
        false => (&[1_000, 10_000, 100_000], 3),
    };
    let tables = [
        plans(&mut bench, &site, nodes, rounds),
        transfers(&mut bench, &site, nodes),
        packets(&mut bench, &site, rounds),
    ];
    bench.finish(&tables)
}
