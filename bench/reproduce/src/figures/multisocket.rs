//! The multisocket test on loopback: connections and block sizes beside iperf3, in rounds: every case, then all again.
//!
//! iperf3 runs with as many streams, up to its limit of 128, and writes of the block's size. Both clocks begin when all
//! connections are there; ours ends when the receiver has confirmed the last byte. A ratio is taken within a round.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Bench, Settings, Site};
use crate::iperf::{self, Load, Pair};
use crate::machine;
use crate::movers::free_port;
use crate::process::{self, Process};
use crate::ropewalk::Place;
use crate::stats::{Summary, span, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Series, Style, Titles};

/// Connections: the paper's least, its example, iperf3's most, the paper's most.
const CONNECTIONS: [u32; 4] = [1, 32, IPERF_STREAMS_MAX, 1000];

/// Block sizes.
const BLOCKS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];

/// iperf3 refuses more.
const IPERF_STREAMS_MAX: u32 = 128;

/// Longest time of one run.
const RUN_MAX: Duration = Duration::from_secs(180);

const MIB: f64 = 1_048_576.0;

const COLUMNS: [(&str, &str); 12] = [
    ("family", "over"),
    ("connections", "conns"),
    ("block_bytes", "block B"),
    ("gigabits_per_second_median", "Gbit/s"),
    ("gigabits_per_second_min", "min"),
    ("gigabits_per_second_max", "max"),
    ("iperf3_streams", "iperf3 -P"),
    ("iperf3_gigabits_per_second_median", "Gbit/s"),
    ("ratio_to_iperf3_median", "of iperf3"),
    ("processor_seconds_per_gigabyte_median", "cpu s/GB"),
    ("iperf3_processor_seconds_per_gigabyte_median", "iperf3"),
    ("sides_resident_mebibytes_max", "MiB"),
];

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    bytes: u64,
    seconds: f64,
    processor_seconds: f64,
    /// Ours only: what sender and receiver reported.
    reports: Vec<Value>,
}

impl Sample {
    fn gigabits(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }

    fn processor_seconds_per_gigabyte(&self) -> f64 {
        self.processor_seconds / self.bytes as f64 * 1e9
    }

    /// Of the larger side.
    fn resident_mebibytes(&self) -> Option<f64> {
        let sizes = self.reports.iter();
        let sizes = sizes.filter_map(|report| report["resident_kibibytes_max"].as_f64());
        summary(sizes).map(|sizes| sizes.max * 1024.0 / MIB)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    Unix,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
            Self::Unix => "Unix",
        }
    }

    fn host(self) -> String {
        match self {
            Self::V4 => "127.0.0.1".into(),
            Self::V6 => "::1".into(),
            Self::Unix => format!("unix:@ropewalk-reproduce-{}", std::process::id()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Ours,
    Iperf,
}

/// One row's half: what one program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    tool: Tool,
    family: Family,
    connections: u32,
    block_len: u64,
}

impl Case {
    /// The run of iperf3 that ours is compared with; it knows no Unix sockets.
    fn rival(self) -> Self {
        let family = match self.family {
            Family::Unix => Family::V4,
            family => family,
        };
        Self {
            tool: Tool::Iperf,
            family,
            connections: self.connections.min(IPERF_STREAMS_MAX),
            ..self
        }
    }

    fn key(self, round: usize, bytes: u64) -> String {
        let tool = match self.tool {
            Tool::Ours => "multisocket",
            Tool::Iperf => "iperf3",
        };
        format!(
            "round {round}, {tool}, {}, {} connections, blocks of {}, about {bytes} bytes",
            self.family.name(),
            self.connections,
            self.block_len
        )
    }

    fn run(self, site: &Site, bytes: u64) -> Result<Sample> {
        match self.tool {
            Tool::Ours => self.run_ours(site, bytes),
            Tool::Iperf => self.run_iperf(bytes),
        }
    }

    fn run_iperf(self, bytes: u64) -> Result<Sample> {
        let pair = Pair {
            from: Place::Machine,
            to: Place::Machine,
            address: &self.family.host(),
            port: free_port()?,
        };
        let load = Load {
            block_len: Some(self.block_len),
            ..Load::plain(bytes, self.connections)
        };
        let carried = iperf::run(&[pair], load, RUN_MAX)?;
        Ok(Sample {
            bytes: carried.bytes,
            seconds: carried.seconds,
            processor_seconds: carried.processor_seconds,
            reports: Vec::new(),
        })
    }

    fn run_ours(self, site: &Site, bytes: u64) -> Result<Sample> {
        let host = self.family.host();
        let port = free_port()?.to_string();
        let each = self.block_len * u64::from(self.connections);
        let blocks = (bytes / each).max(1);
        let side = |role: &str| {
            let mut command = Command::new(&site.bench);
            command.args(["multisocket", role, "--json", "-p", &port]);
            command.args(["-c", &self.connections.to_string()]);
            command.args(["-b", &self.block_len.to_string()]);
            command.args(["-B", &blocks.to_string()]);
            command
        };
        let mut receiver = side("-r");
        receiver.args(["--listen", &host]);
        let receiver = Process::start(receiver)?;
        let mut sender = side("-t");
        sender.arg(&host);
        let sent = process::run(sender, RUN_MAX)?;
        let received = receiver.finish(RUN_MAX)?.success("the receiver")?;
        let report = |output: &[String]| -> Result<Value> {
            let line = output.last().context("no report")?;
            serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))
        };
        let reports = vec![report(&sent.output)?, report(&received.output)?];
        let moved = blocks * each;
        for report in &reports {
            ensure!(report["bytes"] == moved, "{report} is not of {moved} bytes");
        }
        Ok(Sample {
            bytes: moved,
            seconds: reports[0]["seconds"].as_f64().context("no time")?,
            processor_seconds: sent.processor_seconds + received.processor_seconds,
            reports,
        })
    }
}

/// Rows of the table, ours.
fn rows() -> Vec<Case> {
    let case = |family, connections, block_len| Case {
        tool: Tool::Ours,
        family,
        connections,
        block_len,
    };
    let v4 = CONNECTIONS
        .iter()
        .flat_map(|&connections| BLOCKS.map(|block_len| case(Family::V4, connections, block_len)));
    let others = [Family::V6, Family::Unix]
        .into_iter()
        .flat_map(|family| [1, 32].map(|connections| case(family, connections, 64 << 10)));
    v4.chain(others).collect()
}

/// Everything that a round runs: each rival once, right after the first row that it is compared with.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows() {
        cases.push(row);
        if !cases.contains(&row.rival()) {
            cases.push(row.rival());
        }
    }
    cases
}

/// Samples of a case, round by round.
type Rounds = Vec<(Case, Vec<Option<Sample>>)>;

fn samples_of(all: &Rounds, case: Case) -> &[Option<Sample>] {
    let found = all.iter().find(|(of, _)| *of == case);
    found.map_or(&[], |(_, samples)| samples)
}

fn rates(samples: &[Option<Sample>]) -> Option<Summary> {
    summary(samples.iter().flatten().map(Sample::gigabits))
}

/// Makes the comparison.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "multisocket")?;
    let site = bench.site();
    let (rounds, bytes): (usize, u64) = if settings.quick {
        (3, 1 << 30)
    } else {
        (5, 4 << 30)
    };
    let has_iperf = machine::version(Path::new("iperf3"), "--version").is_some();
    bench.program_version("iperf3", "--version");
    let cases: Vec<Case> = cases()
        .into_iter()
        .filter(|case| has_iperf || case.tool == Tool::Ours)
        .collect();
    for round in 1..=rounds {
        let expected = |case: &Case| (case.key(round, bytes), 0.3 + bytes as f64 / 2e9);
        bench.expect(cases.iter().map(expected));
    }
    bench.announce();
    let mut all: Rounds = cases.iter().map(|case| (*case, Vec::new())).collect();
    for round in 1..=rounds {
        for (case, samples) in &mut all {
            samples.push(bench.point(&case.key(round, bytes), || case.run(&site, bytes)));
        }
    }
    for connections in CONNECTIONS {
        let of_iperf = rows()
            .into_iter()
            .filter(|row| row.connections == connections && row.family == Family::V4);
        let of_iperf = of_iperf.filter_map(|row| {
            let (ours, theirs) = (samples_of(&all, row), samples_of(&all, row.rival()));
            summary(ratios(ours, theirs)).map(|ratio| ratio.median)
        });
        bench.headline(
            format!("{connections} connections over loopback, blocks of 4 KiB to 1 MiB, of iperf3 with as many streams (128 at most)"),
            format!("{} x", span(of_iperf, 2)),
        );
    }
    let mut table = table(&all, bytes);
    if !has_iperf {
        table.note("missing iperf3: run scripts/install-test-tools");
    }
    draw(&bench.plot_path("multisocket"), &all)?;
    bench.finish(&[table])
}

/// Rates over those of the rival in the same rounds.
fn ratios(ours: &[Option<Sample>], theirs: &[Option<Sample>]) -> impl Iterator<Item = f64> {
    let rounds = ours.iter().zip(theirs);
    rounds
        .filter_map(|(ours, theirs)| Some(ours.as_ref()?.gigabits() / theirs.as_ref()?.gigabits()))
}

fn table(all: &Rounds, bytes: u64) -> Table {
    let title = format!("The multisocket test on loopback, about {bytes} bytes in all");
    let mut table = Table::new(title, &COLUMNS);
    for row in rows() {
        let (ours, theirs) = (samples_of(all, row), samples_of(all, row.rival()));
        let ratios = ratios(ours, theirs);
        let median = |all: Option<Summary>| number(all.map(|all| all.median), 2);
        let processor = |samples: &[Option<Sample>]| {
            let each = samples.iter().flatten();
            median(summary(each.map(Sample::processor_seconds_per_gigabyte)))
        };
        let rates_of_ours = rates(ours);
        let resident = ours.iter().flatten().filter_map(Sample::resident_mebibytes);
        let streams = match theirs {
            [] => Cell::Empty,
            _ => number(f64::from(row.rival().connections), 0),
        };
        table.row(vec![
            row.family.name().into(),
            number(f64::from(row.connections), 0),
            number(row.block_len as f64, 0),
            median(rates_of_ours),
            number(rates_of_ours.map(|rates| rates.min), 2),
            number(rates_of_ours.map(|rates| rates.max), 2),
            streams,
            median(rates(theirs)),
            median(summary(ratios)),
            processor(ours),
            processor(theirs),
            number(summary(resident).map(|resident| resident.max), 1),
        ]);
    }
    table.note("of iperf3: of iperf3 with as many streams (128 at most) and writes of the block's size, in the same round.");
    table.note("Unix rows are beside iperf3 over IPv4. cpu: both sides, 10^9 bytes. MiB: most memory of the larger side.");
    table
}

fn draw(path: &Path, all: &Rounds) -> Result<()> {
    let places = BLOCKS.map(|block_len| format!("{} KiB", block_len >> 10));
    let curve = |tool: Tool, connections: u32| {
        let (name, style) = match tool {
            Tool::Ours => (format!("multisocket -c {connections}"), Style::Marks),
            Tool::Iperf => (format!("iperf3 -P {connections}"), Style::Dashed),
        };
        let points = BLOCKS.iter().enumerate().filter_map(|(at, &block_len)| {
            let case = Case {
                tool,
                family: Family::V4,
                connections,
                block_len,
            };
            Some((at as f64, rates(samples_of(all, case))?.median))
        });
        Series::with(name, style, points.collect())
    };
    let ours = CONNECTIONS.map(|connections| curve(Tool::Ours, connections));
    let rivals = CONNECTIONS
        .into_iter()
        .filter(|&connections| connections <= IPERF_STREAMS_MAX);
    let rivals = rivals.map(|connections| curve(Tool::Iperf, connections));
    let series: Vec<Series> = ours.into_iter().chain(rivals).collect();
    let titles = Titles {
        title: "The multisocket test on loopback, IPv4",
        x: "block",
        y: "Gbit/s, median",
    };
    plot::lines(path, titles, &places, &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(gigabits: f64) -> Option<Sample> {
        Some(Sample {
            bytes: 1_000_000_000,
            seconds: 8.0 / gigabits,
            processor_seconds: 0.5,
            reports: vec![serde_json::json!({"resident_kibibytes_max": 2048})],
        })
    }

    /// Every row has a rival of as many streams as iperf3 allows; no rival runs twice in a round.
    #[test]
    fn rivals() {
        let cases = cases();
        for row in rows() {
            let rival = row.rival();
            assert_eq!(cases.iter().filter(|case| **case == rival).count(), 1);
            assert_eq!(rival.connections, row.connections.min(128));
            assert_eq!(rival.block_len, row.block_len);
        }
    }

    /// Ratios are taken within rounds; a row without measurements shows gaps.
    #[test]
    fn ratios_within_rounds() {
        let row = rows()[0];
        let all: Rounds = vec![
            (row, vec![sample(20.0), sample(5.0), None]),
            (row.rival(), vec![sample(10.0), sample(5.0), sample(1.0)]),
        ];
        let json = table(&all, 1).json();
        let first = &json["rows"][0];
        assert_eq!(first["ratio_to_iperf3_median"], 1.5);
        assert_eq!(first["gigabits_per_second_median"], 12.5);
        assert_eq!(first["processor_seconds_per_gigabyte_median"], 0.5);
        assert_eq!(first["sides_resident_mebibytes_max"], 2.0);
        assert!(json["rows"][1]["ratio_to_iperf3_median"].is_null());
    }
}
