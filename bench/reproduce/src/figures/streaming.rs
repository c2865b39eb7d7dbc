//! Continuous streaming through groups of processes (`ropewalk stream`), beside bare chains of as many processes that only read
//! and write blocks over the same kind of socket, in rounds: the chain, the stream, sealed where that differs; then all again.
//!
//! Processes a node are the groups of the stream. With several nodes each is a host of the lab (a namespace of this machine), without
//! caps. Over MPI there are three points, beside a chain of the same MPI. A stream deals every block at random over all nodes; each edge of a bare chain leads to the next node, with one
//! node to the same.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::{HostSpec, Lab};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Bench, Settings, Site};
use crate::network::{self, MASTER};
use crate::process::Process;
use crate::ropewalk::{Agents, Place, words};
use crate::stats::{Summary, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

mod link;
mod mpi;

pub(crate) use self::link::{LinkArgs, run as run_link};
use self::mpi::Mpi;

/// Block sizes of the memo.
const BLOCKS: [u64; 6] = [4 << 10, 8 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Block sizes with neighbouring groups on one node.
const LOCAL_BLOCKS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Nodes of the memo.
const NODES: [usize; 5] = [1, 2, 4, 8, 12];

/// Processes a node of the memo.
const PROCESSES: [usize; 5] = [2, 4, 8, 16, 32];

/// Rounds; the grid is large, so that three take about an hour.
const ROUNDS: usize = 3;

/// Longest time of one run.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Rate of each process of rbudp: more than it reaches, so that credit is what bounds it.
const RBUDP_RATE: &str = "40Gbit";

/// First port of the links of chains.
const PORT: u16 = 21_000;

/// Bytes of the file on each node.
const FILE_BYTES: u64 = 200_000_000;

/// What a case is called whose neighbouring groups are on one node, every second pair.
const LOCAL: &str = ", A-B and C-D local";

const MIB: f64 = 1_048_576.0;

const COLUMNS: [(&str, &str); 13] = [
    ("kind", "over"),
    ("data", "data"),
    ("nodes", "nodes"),
    ("processes_a_node", "processes"),
    ("block_bytes", "block B"),
    ("chain_gigabits_per_second_median", "chain Gbit/s"),
    ("gigabits_per_second_median", "stream"),
    ("gigabits_per_second_min", "min"),
    ("gigabits_per_second_max", "max"),
    ("share_of_chain_median", "of chain"),
    ("share_of_chain_min", "min"),
    ("imbalance_median", "most/mean"),
    ("resident_mebibytes_max", "MiB"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
    /// Within one node only.
    Shm,
    /// The same, beside a bare chain over the same MPI.
    Mpi,
    /// Beside chains over TCP: a bare chain of datagrams would lose blocks.
    Rbudp,
    /// As [`Kind::Rbudp`].
    Rapid,
}

const KINDS: [Kind; 6] = [
    Kind::Tcp,
    Kind::Unix,
    Kind::Shm,
    Kind::Mpi,
    Kind::Rbudp,
    Kind::Rapid,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Shm => "shm",
            Self::Mpi => "mpi",
            Self::Rbudp => "rbudp",
            Self::Rapid => "rapid",
        }
    }

    /// Whether contents go as datagrams.
    fn is_of_datagrams(self) -> bool {
        matches!(self, Self::Rbudp | Self::Rapid)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// Made and dropped.
    Zeros,
    /// Read from and written to files.
    Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    kind: Kind,
    data: Data,
    nodes: usize,
    processes: usize,
    block: u64,
    is_sealed: bool,
    /// Every second edge stays on its node: A to B, C to D.
    is_local: bool,
}

/// One run of a stream or chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    bytes: u64,
    gigabits_per_second: f64,
    imbalance: f64,
    resident_bytes_max: u64,
    report: Value,
}

impl Case {
    fn bytes_a_node(self, is_quick: bool) -> u64 {
        if self.data == Data::Files {
            return FILE_BYTES;
        }
        // Every block crosses as many sockets as there are edges; short blocks cost more.
        let all: u64 = if is_quick { 4 << 30 } else { 6 << 30 };
        let all = if self.block < 32 << 10 { all / 4 } else { all };
        // Datagrams cost more, too.
        let all = match self.kind.is_of_datagrams() {
            true => all / 4,
            false => all,
        };
        let each = all / (self.nodes as u64 * (self.processes as u64 - 1));
        each.max(16 * self.block) / self.block * self.block
    }

    fn key(self, tool: &str, round: usize, bytes: u64) -> String {
        format!(
            "round {round}, {tool}, {}{}{}, {} nodes of {} processes, blocks of {}, {bytes} bytes a node, {}",
            self.kind.name(),
            if self.is_sealed { " sealed" } else { "" },
            if self.is_local { LOCAL } else { "" },
            self.nodes,
            self.processes,
            self.block,
            match self.data {
                Data::Zeros => "zeros",
                Data::Files => "files",
            }
        )
    }
}

fn host(node: usize) -> String {
    format!("n{}", node + 1)
}

/// A lab of so many nodes.
fn lab(nodes: usize, site: &Site) -> Result<Lab> {
    network::lab((0..nodes).map(|node| HostSpec::new(host(node))), site)
}

/// Runs the chain of a case over MPI.
fn chain_over(mpi: &Mpi, case: Case, bytes: u64) -> Result<Sample> {
    let command = mpi.chain(case.processes, case.block, bytes / case.block);
    let output = Process::start(command)?.finish(RUN_MAX)?;
    arrived(&[output.success("a chain over MPI")?.output])
}

/// What the last processes of chains printed.
fn arrived(outputs: &[Vec<String>]) -> Result<Sample> {
    let (mut began, mut ended, mut moved) = (u64::MAX, 0, 0);
    for output in outputs {
        let line = output.last().context("a chain printed nothing")?;
        let line: Value = serde_json::from_str(line)?;
        let field = |name: &str| {
            line[name]
                .as_u64()
                .with_context(|| format!("no {name} in {line}"))
        };
        began = began.min(field("began")?);
        ended = ended.max(field("ended")?);
        moved += field("bytes")?;
    }
    Ok(Sample {
        bytes: moved,
        gigabits_per_second: moved as f64 * 8.0 / (ended - began).max(1) as f64,
        imbalance: 1.0,
        resident_bytes_max: 0,
        report: Value::Null,
    })
}

/// Runs the chains of a case: one begins at each node.
fn chain(case: Case, bytes: u64, site: &Site, lab: Option<&Lab>) -> Result<Sample> {
    let blocks = bytes / case.block;
    let mut last = Vec::new();
    let mut others = Vec::new();
    // The last processes of chains begin, so that the others find them.
    for group in (0..case.processes).rev() {
        for chain in 0..case.nodes {
            let node = |group: usize| (chain + group) % case.nodes;
            let port = |group: usize| PORT + (group * case.nodes + chain) as u16;
            let name =
                |group: usize| format!("ropewalk-chain-{}-{chain}-{group}", std::process::id());
            // Between nodes there is TCP only.
            let kind = match case.kind {
                Kind::Unix if case.nodes > 1 => Kind::Tcp,
                kind if kind.is_of_datagrams() => Kind::Tcp,
                kind => kind,
            };
            let mut command = match lab {
                Some(lab) => lab.command(&host(node(group)), &site.bench),
                None => Command::new(&site.bench),
            };
            command.args(["reproduce", "chain-link"]);
            command.args([
                "--block",
                &case.block.to_string(),
                "--blocks",
                &blocks.to_string(),
            ]);
            if group > 0 {
                let input = match kind {
                    Kind::Tcp => format!("tcp:{}", port(group)),
                    kind => format!("{}:{}", kind.name(), name(group)),
                };
                command.args(["--input", &input]);
            }
            if group + 1 < case.processes {
                let next = lab.map_or_else(|| "127.0.0.1".to_owned(), |_| host(node(group + 1)));
                let output = match kind {
                    Kind::Tcp => format!("tcp:{next}:{}", port(group + 1)),
                    kind => format!("{}:{}", kind.name(), name(group + 1)),
                };
                command.args(["--output", &output]);
            }
            let process = Process::start(command)?;
            if group + 1 == case.processes {
                last.push(process)
            } else {
                others.push(process)
            }
        }
    }
    let mut outputs = Vec::new();
    for process in last {
        outputs.push(process.finish(RUN_MAX)?.success("a chain")?.output);
    }
    for process in others {
        process.finish(RUN_MAX)?.success("a chain")?;
    }
    arrived(&outputs)
}

/// Runs the stream of a case.
fn stream(case: Case, bytes: u64, site: &Site, lab: Option<&Lab>) -> Result<Sample> {
    let mut agents = Agents::new(site)?;
    let scratch = site.scratch.display().to_string();
    let mut arguments = words(&format!(
        "stream --groups {} --block {}B --seed 1",
        case.processes, case.block
    ));
    let place = match lab {
        Some(lab) => {
            for node in 0..case.nodes {
                agents.start_in(lab, &host(node), &[format!("{scratch}:rw")])?;
                arguments.push(agents.address(&host(node)).to_owned());
            }
            Place::Host(lab, MASTER)
        }
        None => {
            arguments.push("localhost".into());
            Place::Machine
        }
    };
    match case.data {
        Data::Zeros => arguments.extend(["--size".into(), format!("{bytes}B")]),
        Data::Files => {
            for node in 1..=case.nodes {
                let path = site.scratch.join(format!("in{node}"));
                if !path.exists() {
                    std::fs::write(&path, vec![node as u8; bytes as usize])?;
                }
            }
            let paths = [("--from", "in"), ("--to", "out")];
            arguments.extend(paths.into_iter().flat_map(|(option, name)| {
                [option.to_owned(), format!("{scratch}/{name}{{node}}")]
            }));
        }
    }
    // Unix sockets are what connects processes of one host by default.
    if case.kind != Kind::Unix {
        arguments.extend(["--lane".to_owned(), case.kind.name().to_owned()]);
    }
    if case.kind == Kind::Rbudp {
        arguments.extend(["--rate".to_owned(), RBUDP_RATE.to_owned()]);
    }
    if !case.is_sealed {
        arguments.push("--plain".into());
    }
    if case.is_local {
        arguments.extend(words("--local A-B --local C-D"));
    }
    let (_, master) = agents.start_command(place, &arguments)?;
    let ended = master.finish(RUN_MAX)?.success("the stream")?;
    drop(agents.stop()?);
    let line = ended.output.last().context("no report")?;
    let report: Value = serde_json::from_str(line)?;
    let report = &report["report"];
    ensure!(report["accounted"] == true, "blocks are missing: {report}");
    ensure!(
        report["bytes"] == bytes * case.nodes as u64,
        "not of {bytes} bytes: {report}"
    );
    let stages = report["stages"].as_array().context("no stages")?;
    let most = |name: &str| {
        stages
            .iter()
            .filter_map(|stage| stage[name].as_f64())
            .fold(0.0, f64::max)
    };
    let gigabits = report["bits_per_second"].as_f64().context("no rate")? / 1e9;
    if gigabits <= 0.0 {
        bail!("no rate: {report}");
    }
    Ok(Sample {
        bytes: bytes * case.nodes as u64,
        gigabits_per_second: gigabits,
        imbalance: most("imbalance"),
        resident_bytes_max: most("resident_max_bytes") as u64,
        report: without_lists(report),
    })
}

/// A report without its lists of stages and processes, which are megabytes for all runs together.
fn without_lists(report: &Value) -> Value {
    let mut report = report.clone();
    if let Some(fields) = report.as_object_mut() {
        fields.retain(|_, value| !value.is_array());
    }
    report
}

/// Everything that is measured, for so many nodes.
fn cases(nodes: usize, is_quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let blocks: &[u64] = if is_quick {
        &[4 << 10, 64 << 10, 1 << 20]
    } else {
        &BLOCKS
    };
    let processes: &[usize] = if is_quick { &[4] } else { &PROCESSES };
    let kinds: &[Kind] = match nodes {
        1 => &[Kind::Tcp, Kind::Unix, Kind::Shm],
        _ => &[Kind::Tcp, Kind::Unix],
    };
    for &kind in kinds {
        for &processes in processes {
            for &block in blocks {
                let case = Case {
                    kind,
                    data: Data::Zeros,
                    nodes,
                    processes,
                    block,
                    is_sealed: false,
                    is_local: false,
                };
                cases.push(case);
                if processes == 4 && nodes > 1 && LOCAL_BLOCKS.contains(&block) {
                    cases.push(Case {
                        is_local: true,
                        ..case
                    });
                }
                // Within a node only blocks on TCP are ever sealed.
                if block == 64 << 10 && (kind == Kind::Tcp || nodes > 1) {
                    cases.push(Case {
                        is_sealed: true,
                        ..case
                    });
                }
                if processes == 4 && block >= 64 << 10 {
                    cases.push(Case {
                        data: Data::Files,
                        ..case
                    });
                }
            }
        }
    }
    // A thin grid.
    let mut sparse = Vec::new();
    if nodes == 1 {
        sparse.push(Kind::Mpi);
    }
    if nodes <= 2 {
        sparse.extend([Kind::Rbudp, Kind::Rapid]);
    }
    for kind in sparse {
        for block in [4 << 10, 64 << 10, 1 << 20] {
            cases.push(Case {
                kind,
                data: Data::Zeros,
                nodes,
                processes: 4,
                block,
                is_sealed: false,
                is_local: false,
            });
        }
    }
    cases
}

struct Measured {
    case: Case,
    chains: Vec<Option<Sample>>,
    streams: Vec<Option<Sample>>,
}

/// Makes the figure.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "streaming")?;
    let site = bench.site();
    let has_lab = ropewalk_lab::available();
    let nodes: &[usize] = match (settings.quick, &has_lab) {
        (_, Err(_)) => &[1],
        (true, Ok(())) => &[1, 2],
        (false, Ok(())) => &NODES,
    };
    let mpi = Mpi::new(&site);
    let all: Vec<Case> = nodes
        .iter()
        .flat_map(|&nodes| cases(nodes, settings.quick))
        .filter(|case| mpi.is_ok() || case.kind != Kind::Mpi)
        .collect();
    for case in &all {
        let bytes = case.bytes_a_node(settings.quick);
        for round in 1..=ROUNDS {
            bench.expect(["chain", "stream"].map(|tool| (case.key(tool, round, bytes), 4.0)));
        }
    }
    bench.announce();
    let mut measured = Vec::new();
    for &nodes in nodes {
        let lab = if nodes > 1 {
            Some(lab(nodes, &site)?)
        } else {
            None
        };
        for case in all.iter().copied().filter(|case| case.nodes == nodes) {
            let bytes = case.bytes_a_node(settings.quick);
            let (mut chains, mut streams) = (Vec::new(), Vec::new());
            for round in 1..=ROUNDS {
                // A chain neither seals nor writes files.
                let plain = Case {
                    is_sealed: false,
                    is_local: false,
                    data: Data::Zeros,
                    ..case
                };
                let key = plain.key("chain", round, bytes);
                chains.push(bench.point(&key, || match &mpi {
                    Ok(mpi) if case.kind == Kind::Mpi => chain_over(mpi, plain, bytes),
                    _ => chain(plain, bytes, &site, lab.as_ref()),
                }));
                let key = case.key("stream", round, bytes);
                streams.push(bench.point(&key, || stream(case, bytes, &site, lab.as_ref())));
            }
            measured.push(Measured {
                case,
                chains,
                streams,
            });
        }
    }
    measured.retain(|one| one.chains.iter().chain(&one.streams).any(Option::is_some));
    // What the aim is for: long blocks within one node, zeros.
    let is_aimed = |case: &Case| {
        case.nodes == 1 && case.block >= 64 << 10 && case.data == Data::Zeros && !case.is_sealed
    };
    compare_streams(&mut bench, &measured);
    for kind in KINDS {
        let of_kind = measured
            .iter()
            .filter(|one| one.case.kind == kind && is_aimed(&one.case));
        let medians = of_kind.filter_map(|one| Some(shares(one)?.median));
        if let Some(all) = summary(medians) {
            bench.headline(
                format!("blocks of 64 KiB and more within one node over {}, of bare chains in the same round", kind.name()),
                format!("{:.2} ({:.2} to {:.2})", all.median, all.min, all.max),
            );
        }
    }
    let mut table = table(&measured);
    if measured.len() < all.len() {
        table.note(format!(
            "{} of {} points of the grid are measured; `--only TEXT` measures those whose names contain TEXT.",
            measured.len(),
            all.len()
        ));
    }
    if let Err(reason) = has_lab {
        table.note(format!("one node only: {reason}"));
    }
    table.note(match &mpi {
        Ok(mpi) => format!("mpi: {}.", mpi.name()),
        Err(reason) => format!("mpi is missing: {reason}"),
    });
    draw(&bench, &measured)?;
    bench.finish(&[table])
}

fn rates(samples: &[Option<Sample>]) -> Option<Summary> {
    summary(
        samples
            .iter()
            .flatten()
            .map(|sample| sample.gigabits_per_second),
    )
}

/// Rates of streams over those of chains, within rounds.
fn shares(measured: &Measured) -> Option<Summary> {
    let rounds = measured.streams.iter().zip(&measured.chains);
    summary(rounds.filter_map(|(stream, chain)| {
        Some(stream.as_ref()?.gigabits_per_second / chain.as_ref()?.gigabits_per_second)
    }))
}

/// Lines that compare one stream with another one of the same round.
fn compare_streams(bench: &mut Bench, all: &[Measured]) {
    let is_plain =
        |case: &Case| case.data == Data::Zeros && !case.is_sealed && case.block >= 64 << 10;
    let of = |wanted: Case| all.iter().find(|one| one.case == wanted);
    let mut compare = |what: &str, is_one: &dyn Fn(&Case) -> bool, other: &dyn Fn(Case) -> Case| {
        let ratios = all
            .iter()
            .filter(|one| is_plain(&one.case) && is_one(&one.case))
            .filter_map(|one| {
                let base = of(other(one.case))?;
                let rounds = one.streams.iter().zip(&base.streams);
                let ratios = rounds.filter_map(|(one, base)| {
                    Some(one.as_ref()?.gigabits_per_second / base.as_ref()?.gigabits_per_second)
                });
                Some(summary(ratios)?.median)
            });
        if let Some(all) = summary(ratios) {
            bench.headline(
                what.to_owned(),
                format!("{:.2} ({:.2} to {:.2}) x", all.median, all.min, all.max),
            );
        }
    };
    let over = |kind: Kind| move |case: &Case| case.nodes == 1 && case.kind == kind;
    let in_place_of = |kind: Kind| move |case: Case| Case { kind, ..case };
    compare(
        "blocks of 64 KiB and more within one node, Unix sockets, of TCP in the same round",
        &over(Kind::Unix),
        &in_place_of(Kind::Tcp),
    );
    compare(
        "the same, shared memory, of Unix sockets",
        &over(Kind::Shm),
        &in_place_of(Kind::Unix),
    );
    compare(
        "the same, shared memory, of MPI",
        &|case| case.nodes == 1 && case.kind == Kind::Shm && case.processes == 4,
        &in_place_of(Kind::Mpi),
    );
    for kind in [Kind::Tcp, Kind::Unix] {
        compare(
            &format!(
                "several nodes of 4 processes over {}, A-B and C-D within their nodes, of all to all",
                kind.name()
            ),
            &|case| case.is_local && case.kind == kind,
            &|case| Case {
                is_local: false,
                ..case
            },
        );
    }
}

fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(
        "Streams through groups of processes beside bare chains",
        &COLUMNS,
    );
    for measured in all {
        let Case {
            kind,
            data,
            nodes,
            processes,
            block,
            is_sealed,
            is_local,
        } = measured.case;
        let streams = || measured.streams.iter().flatten();
        let (chain, stream, share) = (
            rates(&measured.chains),
            rates(&measured.streams),
            shares(measured),
        );
        let imbalance = summary(streams().map(|sample| sample.imbalance));
        let resident = summary(streams().map(|sample| sample.resident_bytes_max as f64 / MIB));
        table.row(vec![
            Cell::from(format!(
                "{}{}{}",
                kind.name(),
                if is_sealed { " sealed" } else { "" },
                if is_local { LOCAL } else { "" },
            )),
            match data {
                Data::Zeros => "zeros".into(),
                Data::Files => "files".into(),
            },
            number(nodes as f64, 0),
            number(processes as f64, 0),
            number(block as f64, 0),
            number(chain.map(|all| all.median), 2),
            number(stream.map(|all| all.median), 2),
            number(stream.map(|all| all.min), 2),
            number(stream.map(|all| all.max), 2),
            number(share.map(|all| all.median), 2),
            number(share.map(|all| all.min), 2),
            number(imbalance.map(|all| all.median), 2),
            number(resident.map(|all| all.max), 1),
        ]);
    }
    table.note(
        "chain, stream: bytes that leave all last processes, Gbit/s. of chain: within a round.",
    );
    table.note(format!(
        "rbudp (each process at most {RBUDP_RATE}/s, which none reaches) and rapid are beside chains over TCP."
    ));
    table.note("On several nodes unix is within a node, TCP between; their chains are TCP between nodes. Chains neither seal nor check nor use files.");
    table.note(
        "most/mean: of the group that is dealt least evenly. MiB: most memory of any process.",
    );
    table
}

fn draw(bench: &Bench, all: &[Measured]) -> Result<()> {
    let mut blocks: Vec<u64> = all.iter().map(|one| one.case.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let places: Vec<String> = blocks
        .iter()
        .map(|block| format!("{} KiB", block >> 10))
        .collect();
    for kind in KINDS {
        let mut series: Vec<Series> = Vec::new();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        let is_shown = |case: &Case| {
            case.kind == kind && case.data == Data::Zeros && !case.is_sealed && !case.is_local
        };
        for Measured { case, .. } in all.iter().filter(|one| is_shown(&one.case)) {
            if seen.contains(&(case.nodes, case.processes)) {
                continue;
            }
            seen.push((case.nodes, case.processes));
            let of = |one: &&Measured| {
                is_shown(&one.case)
                    && (one.case.nodes, one.case.processes) == (case.nodes, case.processes)
            };
            let points = all.iter().filter(of).filter_map(|one| {
                let at = blocks.iter().position(|&block| block == one.case.block)?;
                Some((at as f64, shares(one)?.median))
            });
            let name = format!("{} nodes of {} processes", case.nodes, case.processes);
            series.push(Series::with(name, Style::Marks, points.collect()));
        }
        let title = format!("Streams over {} as a share of a bare chain", kind.name());
        let titles = Titles {
            title: &title,
            x: "block",
            y: "share, median",
        };
        plot::lines(&bench.plot_path(kind.name()), titles, &places, &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(gigabits_per_second: f64) -> Option<Sample> {
        Some(Sample {
            bytes: 1,
            gigabits_per_second,
            imbalance: 1.5,
            resident_bytes_max: 3 << 20,
            report: Value::Null,
        })
    }

    /// Shares are taken within rounds; a point that failed leaves a gap.
    #[test]
    fn shares_are_of_one_round() {
        let measured = Measured {
            case: cases(1, true)[0],
            chains: vec![sample(16.0), sample(32.0), None],
            streams: vec![sample(8.0), sample(8.0), sample(8.0)],
        };
        let json = table(&[measured]).json();
        let row = &json["rows"][0];
        assert_eq!(row["share_of_chain_median"].as_f64(), Some(0.375));
        assert_eq!(row["resident_mebibytes_max"].as_f64(), Some(3.0));
    }

    /// The whole grid of the memo is there, once, in blocks that fill what is moved.
    #[test]
    fn the_grid_is_whole() {
        let all: Vec<Case> = NODES
            .into_iter()
            .flat_map(|nodes| cases(nodes, false))
            .collect();
        let zeros = all
            .iter()
            .filter(|case| case.data == Data::Zeros && !case.is_sealed && !case.is_local);
        let zeros: Vec<&Case> = zeros.collect();
        let is_sparse = |case: &&&Case| case.kind.is_of_datagrams() || case.kind == Kind::Mpi;
        let sparse = zeros.iter().filter(is_sparse).count();
        assert_eq!(sparse, (2 * 2 + 1) * 3);
        // Shared memory is within a node.
        assert_eq!(zeros.len() - sparse, (2 * 5 + 1) * 5 * 6);
        for case in all.iter().filter(|case| case.data == Data::Zeros) {
            let bytes = case.bytes_a_node(true);
            assert!(bytes.is_multiple_of(case.block) && bytes >= 16 * case.block);
        }
    }
}
