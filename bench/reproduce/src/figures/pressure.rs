//! Back-pressure of streams: the last process of one node takes less than it is sent, everything before it could go faster.
//!
//! With blocks dealt at random over all nodes, a last process that takes B gets B / k from each of the k processes before it;
//! so each of these sends B to each of k outputs' shares, B in all, and so on back to the first ones, which read their disks at B.
//! Measured is how near each process settles, and what memory it uses meanwhile.

use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ropewalk_plot::{self as plot, Series, Style, Titles};
use ropewalk_proto::stage::group_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Bench, Settings, Site};
use crate::network::{self, MASTER};
use crate::ropewalk::{Agents, Place, words};
use crate::stats::{Summary, summary};
use crate::table::{Cell, Table, number};

/// What the slow process takes, in bits per second.
const RATE: u64 = 50_000_000;

/// The same where nodes are hosts of the lab with an interface of [`LINK`].
const RATE_BEHIND_LINK: u64 = 10_000_000;

/// Bits per second of an interface.
const LINK: u64 = 100_000_000;

/// What each process sends as datagrams at most, over what the slow process takes.
const DATAGRAMS_OVER_RATE: u64 = 10;

/// Seconds that a run takes at this rate.
const SECONDS: u64 = 8;

/// The part of a run that is looked at: buffers are full, and the first processes have not dealt all.
const LOOKED_AT: (f64, f64) = (0.15, 0.6);

/// Longest time of one run.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Bytes that the slow process reads at once.
const READ_LEN: usize = 16 << 10;

/// What the slow process makes good when it slept too long.
const LATE_MAX: Duration = Duration::from_millis(20);

const MIB: f64 = 1_048_576.0;

const COLUMNS: [(&str, &str); 10] = [
    ("kind", "over"),
    ("link_megabits_per_second", "links"),
    ("nodes", "nodes"),
    ("processes_a_node", "processes"),
    ("rate_median", "of B, median"),
    ("rate_min", "least"),
    ("rate_max", "most"),
    ("resident_mebibytes_max", "MiB"),
    ("waited_min", "A waits, least"),
    ("again_median", "again, of all"),
];

/// Arguments of the hidden command `slow-reader`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReaderArgs {
    /// Bits per second
    #[arg(long)]
    rate: u64,
}

/// Reads standard input to its end, no faster than its rate.
pub(crate) fn run_reader(args: &ReaderArgs) -> Result<()> {
    let mut buffer = vec![0; READ_LEN];
    let mut due = Instant::now();
    let mut input = std::io::stdin().lock();
    loop {
        let count = input.read(&mut buffer).context("cannot read")?;
        if count == 0 {
            return Ok(());
        }
        let now = Instant::now();
        // Time in which nothing was there is lost; that sleeps last longer is not.
        due = due.max(now.checked_sub(LATE_MAX).unwrap_or(now))
            + Duration::from_secs_f64(count as f64 * 8.0 / args.rate as f64);
        std::thread::sleep(due.saturating_duration_since(now));
    }
}

/// Datagrams without flow control: what finds no buffer is dropped and sent again. No product has it.
const UNCONTROLLED: &str = "rbudp, no flow control";

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: &'static str,
    nodes: usize,
    processes: usize,
    // Nodes are hosts of the lab, each with an interface of `LINK`.
    has_links: bool,
}

impl Case {
    fn rate(self) -> u64 {
        match self.has_links {
            true => RATE_BEHIND_LINK,
            false => RATE,
        }
    }

    fn key(self, round: usize) -> String {
        let links = match self.has_links {
            true => format!(", links of {LINK} bit/s"),
            false => String::new(),
        };
        format!(
            "round {round}, {}, {} nodes of {} processes, one takes {} bit/s, {SECONDS} s{links}",
            self.kind,
            self.nodes,
            self.processes,
            self.rate()
        )
    }
}

/// What one run showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    /// Rates of all groups over that of the slow process and the number of nodes, in the part that is looked at.
    shares: Vec<f64>,
    resident_bytes_max: u64,
    /// Share of its time that the first group waited for room.
    waited: f64,
    /// Bytes sent again as datagrams over those that processes have received.
    #[serde(default)]
    again: Option<f64>,
    /// From the first block to the end.
    #[serde(default)]
    seconds: Option<f64>,
    /// Seconds, and bit/s of each group since the state before, over the number of nodes.
    states: Vec<(f64, Vec<f64>)>,
}

fn cases(is_quick: bool) -> Vec<Case> {
    let nodes: &[usize] = if is_quick { &[1, 4] } else { &[1, 2, 4, 8, 12] };
    let processes: &[usize] = if is_quick { &[4] } else { &[3, 8] };
    let case = |kind, nodes, processes| Case {
        kind,
        nodes,
        processes,
        has_links: false,
    };
    let mut cases: Vec<Case> = nodes
        .iter()
        .flat_map(|&nodes| {
            processes
                .iter()
                .map(move |&count| case("unix", nodes, count))
        })
        .collect();
    cases.push(case("unix", 1, 32));
    for kind in ["tcp", "shm"] {
        cases.push(case(kind, 4, if is_quick { 4 } else { 8 }));
    }
    for nodes in [2, 4] {
        for kind in ["tcp", "rbudp", "rapid", UNCONTROLLED] {
            let is_new = |one: &Case| (one.kind, one.nodes, one.processes) != (kind, nodes, 4);
            if cases.iter().all(is_new) {
                cases.push(case(kind, nodes, 4));
            }
        }
    }
    if ropewalk_lab::available().is_ok() {
        cases.extend(["tcp", "rbudp", "rapid", UNCONTROLLED].map(|kind| Case {
            has_links: true,
            ..case(kind, 2, 4)
        }));
    }
    cases
}

fn measure(case: Case, site: &Site) -> Result<Sample> {
    let mut agents = Agents::new(site)?.running_programs();
    if case.kind == UNCONTROLLED {
        agents = agents.with_program(&site.bench);
    }
    let rate = case.rate();
    let lane = match case.kind {
        "rbudp" | UNCONTROLLED => format!("rbudp --rate {}bit", rate * DATAGRAMS_OVER_RATE),
        kind => kind.to_owned(),
    };
    let bytes = rate / 8 * SECONDS / 65_536 * 65_536;
    let last = group_name(case.processes as u32 - 1);
    let mut arguments = words(&format!(
        "stream --groups {} --lane {lane} --size {bytes}B --seed 1 --exec",
        case.processes
    ));
    arguments.push(format!(
        "{last}=if [ $ROPEWALK_NODE = 1 ]; then exec '{}' reproduce slow-reader --rate {rate}; else exec cat >/dev/null; fi",
        site.bench.display()
    ));
    let hosts: Vec<String> = (1..=case.nodes).map(|node| format!("n{node}")).collect();
    let lab = match case.has_links {
        true => {
            let hosts = hosts.iter().map(|host| network::capped(host, LINK));
            Some(network::lab(hosts, site)?)
        }
        false => None,
    };
    let place = match &lab {
        Some(lab) => {
            for host in &hosts {
                agents.start_in(lab, host, &[])?;
                arguments.push(agents.address(host).to_owned());
            }
            Place::Host(lab, MASTER)
        }
        None => {
            arguments.extend(vec!["localhost".to_owned(); case.nodes]);
            Place::Machine
        }
    };
    let (_, master) = agents.start_command(place, &arguments)?;
    let ended = master.finish(RUN_MAX)?.success("the stream")?;
    let (mut totals, mut report) = (Vec::new(), Value::Null);
    for line in &ended.output {
        let mut event: Value = serde_json::from_str(line)?;
        match event["event"].as_str() {
            Some("progress") => totals.push(total(&event)?),
            Some("ended") => report = event["report"].take(),
            _ => {}
        }
    }
    ensure!(report["accounted"] == true, "blocks are missing: {report}");
    let nodes = case.nodes as f64;
    let states = totals.windows(2).map(|pair| {
        let [(from, before), (to, after)] = pair else {
            unreachable!("windows of two")
        };
        let rates = before.iter().zip(after);
        let rates = rates.map(|(a, b)| (b - a) * 8.0 / (to - from) / nodes);
        (*to, rates.collect::<Vec<f64>>())
    });
    let states = states.collect();
    let end = totals.last().context("no state was reported")?.0;
    let at = |part: f64| totals.iter().find(|(seconds, _)| *seconds >= part * end);
    let (Some((from, before)), Some((to, after))) = (at(LOOKED_AT.0), at(LOOKED_AT.1)) else {
        unreachable!("the last state is after each part")
    };
    ensure!(to > from, "too few states were reported");
    let shares = before.iter().zip(after);
    let shares = shares.map(|(a, b)| (b - a) * 8.0 / (to - from) / nodes / rate as f64);
    let stages = report["stages"].as_array().context("no stages")?;
    let resident = stages
        .iter()
        .filter_map(|stage| stage["resident_max_bytes"].as_u64());
    Ok(Sample {
        shares: shares.collect(),
        resident_bytes_max: resident.max().unwrap_or(0),
        waited: stages[0]["waiting_for_output"].as_f64().unwrap_or(0.0),
        again: again(&report),
        seconds: Some(end),
        states,
    })
}

/// Bytes sent again over those that processes have received.
fn again(report: &Value) -> Option<f64> {
    let stages = report["stages"].as_array()?;
    let received = stages
        .iter()
        .filter_map(|stage| stage["received_bytes"].as_f64());
    Some(report["retransmitted_bytes"].as_f64()? / received.sum::<f64>())
}

/// Seconds, and what each group has dealt or, as the last, received by then.
fn total(event: &Value) -> Result<(f64, Vec<f64>)> {
    let seconds = event["seconds"].as_f64().context("no seconds")?;
    let stages = event["stages"].as_array().context("no stages")?;
    let bytes = stages.iter().enumerate().map(|(group, stage)| {
        let field = match group + 1 == stages.len() {
            true => "received_bytes",
            false => "sent_bytes",
        };
        stage[field].as_f64().context("no bytes")
    });
    Ok((seconds, bytes.collect::<Result<_>>()?))
}

/// Makes the figure.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "pressure")?;
    let site = bench.site();
    let rounds = if settings.quick { 1 } else { 3 };
    let all = cases(settings.quick);
    for case in &all {
        bench.expect((1..=rounds).map(|round| (case.key(round), SECONDS as f64 + 1.0)));
    }
    bench.announce();
    let mut measured: Vec<(Case, Vec<Sample>)> =
        all.iter().map(|&case| (case, Vec::new())).collect();
    for round in 1..=rounds {
        for (case, samples) in &mut measured {
            samples.extend(bench.point(&case.key(round), || measure(*case, &site)));
        }
    }
    draw(&bench, &measured)?;
    let (lost, kept): (Vec<_>, Vec<_>) = measured
        .iter()
        .partition(|(case, _)| case.kind == UNCONTROLLED);
    let without_links = kept.iter().filter(|(case, _)| !case.has_links);
    if let Some(all) = shares(without_links.flat_map(|(_, samples)| samples)) {
        bench.headline(
            "a last process of one node takes 50 Mbit/s: what each group of each stream carries a node, of that",
            format!("{:.3} ({:.3} to {:.3})", all.median, all.min, all.max),
        );
    }
    let again = |cases: &[&(Case, Vec<Sample>)]| {
        let samples = cases.iter().flat_map(|(_, samples)| samples);
        let all = summary(samples.filter_map(|one| one.again));
        all.map(|all| format!("{:.3} ({:.3} to {:.3})", all.median, all.min, all.max))
    };
    for (name, cases) in [("with", kept), ("without", lost)] {
        let cases: Vec<_> = cases
            .into_iter()
            .filter(|(case, _)| ["rbudp", "rapid", UNCONTROLLED].contains(&case.kind))
            .collect();
        if let Some(text) = again(&cases) {
            bench.headline(
                format!("the same over datagrams {name} flow control: bytes sent again, of those received"),
                text,
            );
        }
    }
    bench.finish(&[table(&measured)])
}

fn shares<'s>(samples: impl Iterator<Item = &'s Sample>) -> Option<Summary> {
    summary(samples.flat_map(|sample| sample.shares.iter().copied()))
}

fn table(all: &[(Case, Vec<Sample>)]) -> Table {
    let mut table = Table::new(
        "One last process takes B = 50 Mbit/s, behind links 10 Mbit/s",
        &COLUMNS,
    );
    for (case, samples) in all {
        let rates = shares(samples.iter());
        let resident = summary(
            samples
                .iter()
                .map(|one| one.resident_bytes_max as f64 / MIB),
        );
        let waited = summary(samples.iter().map(|one| one.waited));
        let again = summary(samples.iter().filter_map(|one| one.again));
        table.row(vec![
            Cell::from(case.kind.to_owned()),
            number(case.has_links.then_some(LINK as f64 / 1e6), 0),
            number(case.nodes as f64, 0),
            number(case.processes as f64, 0),
            number(rates.map(|all| all.median), 3),
            number(rates.map(|all| all.min), 3),
            number(rates.map(|all| all.max), 3),
            number(resident.map(|all| all.max), 1),
            number(waited.map(|all| all.min), 3),
            number(again.map(|all| all.median), 3),
        ]);
    }
    table.note(
        "of B: what a group carries over its number of processes, from 15 to 60 % of a run; least and most of \
         all groups and rounds.",
    );
    table.note("MiB: most memory of any process. A waits: share of its time that the first group waits for a buffer.");
    table.note(
        "links: nodes are hosts of the lab with an interface of so many Mbit/s; all other nodes are this host without limits. rbudp: each process sends \
         at most 10 B. no flow control: receivers drop datagrams of blocks without a buffer, and senders repeat them. again: bytes sent again as \
         datagrams over the bytes that all processes received.",
    );
    table
}

/// Rates of the groups over time, of the largest case.
fn draw(bench: &Bench, all: &[(Case, Vec<Sample>)]) -> Result<()> {
    let shown = |(case, samples): &&(Case, Vec<Sample>)| {
        case.kind == "unix" && case.nodes > 1 && !samples.is_empty()
    };
    let Some((case, samples)) = all.iter().rfind(shown) else {
        return Ok(());
    };
    let series = (0..case.processes).map(|group| {
        let points = samples[0].states.iter();
        let points = points.map(|(seconds, rates)| (*seconds, rates[group] / 1e6));
        Series::with(group_name(group as u32), Style::Marks, points.collect())
    });
    let title = format!(
        "{} nodes of {} processes, one last process takes 50 Mbit/s",
        case.nodes, case.processes
    );
    let titles = Titles {
        title: &title,
        x: "s",
        y: "Mbit/s a process, mean of the group",
    };
    plot::lines(
        &bench.plot_path("rates"),
        titles,
        &[],
        &series.collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The last group is measured by what it receives, the others by what they deal.
    #[test]
    fn totals_are_of_each_group() {
        let event = json!({"seconds": 2.0, "stages": [
            {"sent_bytes": 5, "received_bytes": 0},
            {"sent_bytes": 4, "received_bytes": 5},
            {"sent_bytes": 0, "received_bytes": 3},
        ]});
        assert_eq!(total(&event).unwrap(), (2.0, vec![5.0, 4.0, 3.0]));
    }
}
