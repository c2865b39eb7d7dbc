//! Table 2: a file and a part of one, put and got between two hosts, over one rail and over two of 100 Mbit/s.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Scale;
use super::hosts::{self, MIB};
use crate::bench::{Bench, Site};
use crate::network::tcp_rate;
use crate::ropewalk::{Agents, Place, words};
use crate::stats::summary;
use crate::table::{Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

const RATE: u64 = 100_000_000;
const DEADLINE: Duration = Duration::from_secs(120);
/// Where a part of a file begins: no place that units begin at.
const PART_FROM: u64 = 7 * MIB + 12345;

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    command: &'static str,
    mebibytes: u64,
    is_part: bool,
    rails: &'static str,
    paper_seconds: Option<f64>,
}

const fn case(
    command: &'static str,
    mebibytes: u64,
    is_part: bool,
    rails: &'static str,
    paper_seconds: Option<f64>,
) -> Case {
    Case {
        command,
        mebibytes,
        is_part,
        rails,
        paper_seconds,
    }
}

const CASES: [Case; 12] = [
    case("put", 16, false, "one", Some(1.511)),
    case("put", 16, false, "auto", Some(0.834)),
    case("put", 32, false, "one", Some(2.924)),
    case("put", 32, false, "auto", Some(1.544)),
    case("get", 16, false, "one", Some(1.521)),
    case("get", 16, false, "auto", Some(0.847)),
    case("get", 32, false, "one", Some(2.940)),
    case("get", 32, false, "auto", Some(1.563)),
    case("put", 16, true, "one", None),
    case("put", 16, true, "auto", None),
    case("get", 16, true, "one", None),
    case("get", 16, true, "auto", None),
];

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    /// The whole command.
    command_seconds: f64,
    /// From hosts reachable to the last safe byte.
    seconds: f64,
    rail_bytes: Vec<u64>,
}

impl Case {
    fn rails(self) -> usize {
        if self.rails == "one" { 1 } else { 2 }
    }

    fn name(self) -> String {
        let what = if self.is_part {
            "of a file of 32 MiB"
        } else {
            "file"
        };
        let rails = if self.rails() == 1 {
            "1 rail"
        } else {
            "2 rails"
        };
        format!("{} {} MiB {what}, {rails}", self.command, self.mebibytes)
    }

    fn key(self, round: usize) -> String {
        format!("files, {}, round {round}", self.name())
    }

    /// What no protocol can beat: TCP's share of the rails.
    fn least_seconds(self) -> f64 {
        (self.mebibytes * MIB) as f64 * 8.0 / (tcp_rate(RATE) * self.rails() as f64)
    }

    fn run(self, site: &Site) -> Result<Run> {
        let whole = if self.is_part { 32 } else { self.mebibytes } * MIB;
        let part = if self.is_part { PART_FROM } else { 0 };
        let folder = |host: &str| -> Result<PathBuf> {
            let path = site.scratch.join(format!("files-{host}"));
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
            Ok(path)
        };
        let (here, there) = (folder("a")?, folder("b")?);
        let (from, to) = if self.command == "put" {
            (&here, &there)
        } else {
            (&there, &here)
        };
        let (from, to) = (from.join("source"), to.join("copy"));
        let bytes = content(whole);
        fs::write(&from, &bytes).with_context(|| format!("cannot write {}", from.display()))?;
        let lab = hosts::two(&[RATE; 2], site)?;
        let mut agents = Agents::new(site)?;
        agents.start_in(&lab, "b", &[format!("{}:rw", there.display())])?;
        let remote = agents.address("b");
        let (from_word, to_word) = match self.command {
            "put" => (
                from.display().to_string(),
                format!("{remote}:{}", to.display()),
            ),
            _ => (
                format!("{remote}:{}", from.display()),
                to.display().to_string(),
            ),
        };
        let mut arguments = words(&format!(
            "{} {from_word} {to_word} --rails {}",
            self.command, self.rails
        ));
        if self.is_part {
            arguments.extend(words(&format!("--range {PART_FROM}+{}MiB", self.mebibytes)));
        }
        let moved = agents.run_once(Place::Host(&lab, "a"), &arguments, DEADLINE)?;
        let copy = fs::read(&to).with_context(|| format!("cannot read {}", to.display()))?;
        let part = part as usize;
        let wanted = &bytes[part..part + (self.mebibytes * MIB) as usize];
        ensure!(copy == wanted, "{} is not what was asked for", to.display());
        for path in [&from, &to] {
            fs::remove_file(path)?;
        }
        Ok(Run {
            command_seconds: moved.command_seconds,
            seconds: moved.report.seconds,
            rail_bytes: moved.report.pairs.iter().map(|pair| pair.bytes).collect(),
        })
    }
}

/// Bytes without repetition.
fn content(length: u64) -> Vec<u8> {
    let words = (0..length / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.flatten().collect()
}

pub(super) fn points(scale: Scale) -> Vec<(String, f64)> {
    let rounds = 1..=scale.rounds;
    rounds
        .flat_map(|round| CASES.map(|case| (case.key(round), case.least_seconds() + 1.0)))
        .collect()
}

pub(super) fn make(bench: &mut Bench, scale: Scale) -> Result<Vec<Table>> {
    let site = bench.site();
    let mut runs: [Vec<Run>; CASES.len()] = Default::default();
    for round in 1..=scale.rounds {
        for (case, runs) in CASES.iter().zip(&mut runs) {
            runs.extend(bench.point(&case.key(round), || case.run(&site)));
        }
    }
    let mut table = Table::new(
        "Files and parts of files between two hosts, rails of 100 Mbit/s (Table 2)",
        &[
            ("case", "case"),
            ("seconds", "transfer s"),
            ("command_seconds", "command s"),
            ("command_least_to_most", "min-max"),
            ("least_seconds", "least s"),
            ("percent_of_least", "% of least"),
            ("speed_up", "speed-up"),
            ("paper_seconds", "paper s"),
            ("rail_megabytes", "MB by rail"),
        ],
    );
    let mut bars = Vec::new();
    let mut before = None;
    for (case, runs) in CASES.iter().zip(&runs) {
        let all = summary(runs.iter().map(|run| run.command_seconds));
        let own = summary(runs.iter().map(|run| run.seconds));
        let Some((all, own)) = all.zip(own) else {
            before = None;
            continue;
        };
        let speed_up = before
            .filter(|_| case.rails() == 2)
            .map(|one: f64| one / all.median);
        before = Some(all.median);
        let by_rail = runs.last().map(|run| {
            let each = run
                .rail_bytes
                .iter()
                .map(|bytes| format!("{:.1}", *bytes as f64 / 1e6));
            each.collect::<Vec<_>>().join(" ")
        });
        bench.headline(
            format!("{} over rails of 100 Mbit/s", case.name()),
            format!(
                "{:.2} s ({:.2} to {:.2}){}",
                all.median,
                all.min,
                all.max,
                case.paper_seconds
                    .map_or(String::new(), |paper| format!(", paper {paper:.2} s"))
            ),
        );
        table.row(vec![
            case.name().into(),
            number(own.median, 3),
            number(all.median, 3),
            format!("{:.3}-{:.3}", all.min, all.max).into(),
            number(case.least_seconds(), 3),
            number(case.least_seconds() / own.median * 100.0, 1),
            number(speed_up, 2),
            number(case.paper_seconds, 3),
            by_rail.unwrap_or_default().into(),
        ]);
        bars.push(Bar {
            label: case.name(),
            value: all.median,
            range: (all.min, all.max),
            group: case.rails(),
        });
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    table.note("transfer: from hosts reachable to the last byte safe on disk. command: the whole program, its start included. Sealed and checked. Contents are compared.");
    table.note("least: what TCP carries of 100 Mbit/s frames. speed-up: of commands, against the row above. MB by rail: last round.");
    let titles = Titles {
        title: "put and get (Table 2)",
        x: "s",
        y: "",
    };
    plot::bars(&bench.plot_path("files"), titles, &bars)?;
    Ok(vec![table])
}
