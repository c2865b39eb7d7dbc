//! One pair on loopback beside iperf3 and other movers, in rounds: every case once, then every case again.
//!
//! The cases of a round share the machine's mood, so ratios are taken within a round and their median is shown. Rows
//! of one kind of work do the same work: memory rows check fragments and let bytes land in a buffer; file rows say what
//! they check. Our clock runs from agents reachable to the last safe byte; other movers' from the client's start to its
//! end; iperf3's is its own. All of it once with each TCP congestion control, as that of iperf3 on loopback halves with BBR.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::congestion::Congestion;
use crate::figures::faults::write_noise;
use crate::iperf::{self, Load, Pair};
use crate::machine;
use crate::movers::{Files, MOVERS, Mover, free_port};
use crate::ropewalk::{Agents, Moved, Place, words};
use crate::stats::{Summary, spread, summary};
use crate::table::{Cell, Table, number};
use ropewalk_plot::{self as plot, Bar, Titles};

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    bytes: u64,
    seconds: f64,
    processor_seconds: f64,
    /// Ours only: everything about the run.
    moved: Option<Moved>,
}

/// What is run.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Iperf {
        streams: u32,
        zero_copy: bool,
    },
    /// `mem:` to `mem:` with these options.
    Memory(&'static str),
    /// File to file with these options.
    File(&'static str),
    Other(Mover),
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    work: &'static str,
    tool: Tool,
    /// Streams of the iperf3 run that it is compared with.
    streams: u32,
}

const fn iperf(name: &'static str, streams: u32, zero_copy: bool) -> Case {
    Case {
        name,
        work: "plain",
        tool: Tool::Iperf { streams, zero_copy },
        streams,
    }
}

const fn memory(
    name: &'static str,
    work: &'static str,
    streams: u32,
    options: &'static str,
) -> Case {
    Case {
        name,
        work,
        tool: Tool::Memory(options),
        streams,
    }
}

const fn file(name: &'static str, work: &'static str, options: &'static str) -> Case {
    Case {
        name,
        work,
        tool: Tool::File(options),
        streams: 1,
    }
}

const MEMORY: [Case; 11] = [
    iperf("iperf3, 1 stream", 1, false),
    iperf("iperf3 -P4", 4, false),
    iperf("iperf3 -Z, 1 stream", 1, true),
    iperf("iperf3 -Z -P4", 4, true),
    memory(
        "ropewalk, 1 stream",
        "fragment",
        1,
        "--plain --verify fragment --lane tcp --streams 1",
    ),
    memory(
        "ropewalk, 4 streams",
        "fragment",
        4,
        "--plain --verify fragment --lane tcp --streams 4",
    ),
    memory(
        "ropewalk, 4 streams, unchecked",
        "plain",
        4,
        "--plain --verify none --lane tcp --streams 4",
    ),
    memory(
        "ropewalk, 4 streams, Unix lane",
        "fragment",
        4,
        "--plain --verify fragment --lane unix --streams 4",
    ),
    memory(
        "ropewalk sealed, 1 stream",
        "encrypted",
        1,
        "--verify fragment --lane tcp --streams 1",
    ),
    memory(
        "ropewalk sealed, 4 streams",
        "encrypted",
        4,
        "--verify fragment --lane tcp --streams 4",
    ),
    memory(
        "ropewalk sealed, tree hash, 1 stream",
        "encrypted, checked",
        1,
        "--lane tcp --streams 1",
    ),
];

const FILE: [Case; 5] = [
    file(
        "ropewalk plain, unchecked",
        "plain",
        "--plain --verify none --lane tcp",
    ),
    file(
        "ropewalk plain",
        "fragment",
        "--plain --verify fragment --lane tcp",
    ),
    file("ropewalk plain, tree hash", "checked", "--plain --lane tcp"),
    file(
        "ropewalk sealed, tree hash",
        "encrypted, checked",
        "--lane tcp",
    ),
    file(
        "ropewalk without options (Unix lane)",
        "encrypted, checked",
        "",
    ),
];

const COLUMNS: [(&str, &str); 8] = [
    ("case", "case"),
    ("work", "work"),
    ("gigabits_per_second_median", "Gbit/s"),
    ("gigabits_per_second_min", "min"),
    ("gigabits_per_second_max", "max"),
    ("ratio_to_iperf3_median", "of iperf3"),
    ("processor_seconds_per_gigabyte_median", "cpu s/GB"),
    ("runs", "runs"),
];

/// Most hosts have the first one; in a virtual machine the second one's timers take a large part of what goes over loopback.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];

/// By case and round.
type Samples = Vec<Vec<Option<Sample>>>;

fn cases() -> Vec<Case> {
    let others = MOVERS.map(|mover| Case {
        name: mover.name(),
        work: mover.work(),
        tool: Tool::Other(mover),
        streams: 1,
    });
    MEMORY.into_iter().chain(FILE).chain(others).collect()
}

fn run_iperf(streams: u32, zero_copy: bool, bytes: u64) -> Result<Sample> {
    let pair = Pair {
        from: Place::Machine,
        to: Place::Machine,
        address: "127.0.0.1",
        port: free_port()?,
    };
    let load = Load {
        zero_copy,
        ..Load::plain(bytes, streams)
    };
    let carried = iperf::run(&[pair], load, Duration::from_secs(120))?;
    Ok(Sample {
        bytes: carried.bytes,
        seconds: carried.seconds,
        processor_seconds: carried.processor_seconds,
        moved: None,
    })
}

/// One transfer between two fresh agents; `source` and `copy` are what follows `HOST:PORT:`.
fn run_ropewalk(
    site: &Site,
    source: &str,
    copy: &str,
    roots: &[String],
    options: &str,
) -> Result<Sample> {
    let mut agents = Agents::new(site)?;
    agents.start_local("s", roots)?;
    agents.start_local("r", roots)?;
    let arguments = words(&format!(
        "copy {}:{source} {}:{copy} {options}",
        agents.address("s"),
        agents.address("r")
    ));
    let moved = agents.run_once(Place::Machine, &arguments, Duration::from_secs(180))?;
    Ok(Sample {
        bytes: moved.report.delivered_bytes,
        seconds: moved.report.seconds,
        processor_seconds: moved.processor_seconds(),
        moved: Some(moved),
    })
}

fn run_case(site: &Site, files: &Files, memory_bytes: u64, case: Case) -> Result<Sample> {
    match case.tool {
        Tool::Iperf { streams, zero_copy } => run_iperf(streams, zero_copy, memory_bytes),
        Tool::Memory(options) => {
            run_ropewalk(site, &format!("mem:{memory_bytes}"), "mem:", &[], options)
        }
        Tool::File(options) => {
            files.clear()?;
            let (source, copy) = (files.source().join("file"), files.copy());
            let root = format!("{}:rw", files.root.display());
            let sample = run_ropewalk(
                site,
                &source.display().to_string(),
                &copy.display().to_string(),
                &[root],
                options,
            )?;
            let bytes = fs::metadata(&copy)?.len();
            ensure!(
                bytes == files.bytes,
                "copied {bytes} of {} bytes",
                files.bytes
            );
            Ok(sample)
        }
        Tool::Other(mover) => {
            let took = mover.run(files)?;
            Ok(Sample {
                bytes: files.bytes,
                seconds: took.seconds,
                processor_seconds: took.processor_seconds,
                moved: None,
            })
        }
    }
}

/// Missing programs of a case.
fn missing(case: Case) -> Vec<&'static str> {
    let needs: &[(&str, &str)] = match case.tool {
        Tool::Iperf { .. } => &[("iperf3", "--version")],
        Tool::Memory(_) | Tool::File(_) => &[],
        Tool::Other(mover) => mover.programs(),
    };
    let is_missing = |need: &&(&'static str, &'static str)| {
        machine::version(Path::new(need.0), need.1).is_none()
    };
    needs.iter().filter(is_missing).map(|need| need.0).collect()
}

fn gigabits(sample: &Sample) -> f64 {
    sample.bytes as f64 * 8.0 / sample.seconds / 1e9
}

/// Makes the comparison.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "peers")?;
    let site = bench.site();
    let (rounds, memory_bytes, file_bytes): (usize, u64, u64) = if settings.quick {
        (3, 2 << 30, 512 << 20)
    } else {
        (5, 8 << 30, 2 << 30)
    };
    let cases = cases();
    let size = |case: &Case| match case.tool {
        Tool::Iperf { .. } | Tool::Memory(_) => memory_bytes,
        Tool::File(_) | Tool::Other(_) => file_bytes,
    };
    let key = |control: &str, round: usize, case: &Case| {
        format!(
            "{control}, round {round}, {}, {}, {} bytes",
            case.name,
            case.work,
            size(case)
        )
    };
    let absent: Vec<Vec<&str>> = cases.iter().map(|case| missing(*case)).collect();
    for case in &cases {
        if let Tool::Other(mover) = case.tool {
            for (program, argument) in mover.programs() {
                bench.program_version(program, argument);
            }
        }
    }
    bench.program_version("iperf3", "--version");
    let present = || {
        cases
            .iter()
            .zip(&absent)
            .filter(|(_, absent)| absent.is_empty())
            .map(|(case, _)| case)
    };
    let congestion = Congestion::of_machine();
    let controls = congestion.usable(&CONTROLS);
    for control in &controls {
        for round in 1..=rounds {
            let seconds = |case| 0.3 + size(case) as f64 / 1.2e9;
            bench.expect(present().map(|case| (key(control, round, case), seconds(case))));
        }
    }

    // In memory: what is compared are movers, not disks.
    let shm = Path::new("/dev/shm");
    let folder = tempfile::Builder::new()
        .prefix("reproduce-")
        .tempdir_in(if shm.is_dir() { shm } else { &site.scratch })?;
    let files = Files {
        root: folder.path().to_owned(),
        bytes: file_bytes,
    };
    fs::create_dir(files.source())?;
    write_noise(&files.source().join("file"), file_bytes)?;

    let mut tables = Vec::new();
    for control in &controls {
        congestion.set(control)?;
        let mut samples: Samples = vec![Vec::new(); cases.len()];
        for round in 1..=rounds {
            for (index, case) in cases.iter().enumerate() {
                let sample = match absent[index].is_empty() {
                    true => bench.point(&key(control, round, case), || {
                        run_case(&site, &files, memory_bytes, *case)
                    }),
                    false => None,
                };
                samples[index].push(sample);
            }
        }
        files.clear()?;
        headlines(&mut bench, control, &cases, &samples);
        plots(&bench, control, &cases, &samples)?;
        let bytes = [memory_bytes, file_bytes];
        tables.extend(self::tables(control, &cases, &absent, &samples, bytes));
    }
    // The page names the machine's own one.
    drop(congestion);
    bench.finish(&tables)
}

fn headlines(bench: &mut Bench, control: &str, cases: &[Case], samples: &Samples) {
    for (case, all) in cases.iter().zip(samples) {
        let work = match case.tool {
            Tool::Iperf { .. } | Tool::Memory(_) => "memory to memory",
            Tool::File(_) | Tool::Other(_) => "one file between folders in memory",
        };
        let beside = reference(cases, case.streams).map(|reference| &samples[reference]);
        if all.iter().any(Option::is_some) {
            bench.headline(
                format!("{work}, {control}: {}, {}", case.name, case.work),
                format!(
                    "{} x iperf3 with as many streams",
                    spread(ratios(all, beside), 2)
                ),
            );
        }
    }
}

fn plots(bench: &Bench, control: &str, cases: &[Case], samples: &Samples) -> Result<()> {
    let memory = format!("Memory to memory, one pair on loopback, TCP {control}");
    let file = format!("One file between folders in memory, one pair on loopback, TCP {control}");
    for (name, title, range) in [
        ("memory", memory, 0..MEMORY.len()),
        ("file", file, MEMORY.len()..cases.len()),
    ] {
        let bars: Vec<Bar> = range
            .filter_map(|index| bar(cases[index], &samples[index]))
            .collect();
        let titles = Titles {
            title: &title,
            x: "Gbit/s, median with least and greatest",
            y: "",
        };
        plot::bars(
            &bench.plot_path(&format!("{name}-{control}")),
            titles,
            &bars,
        )?;
    }
    Ok(())
}

fn rates(samples: &[Option<Sample>]) -> Option<Summary> {
    summary(samples.iter().flatten().map(gigabits))
}

fn bar(case: Case, samples: &[Option<Sample>]) -> Option<Bar> {
    let rates = rates(samples)?;
    let group = usize::from(matches!(case.tool, Tool::Memory(_) | Tool::File(_)));
    Some(Bar {
        label: case.name.into(),
        value: rates.median,
        range: (rates.min, rates.max),
        group,
    })
}

/// The iperf3 case with as many streams.
fn reference(cases: &[Case], streams: u32) -> Option<usize> {
    cases.iter().position(
        |case| matches!(case.tool, Tool::Iperf { streams: s, zero_copy: false } if s == streams),
    )
}

/// Rates over those of iperf3 in the same rounds.
fn ratios(
    samples: &[Option<Sample>],
    beside: Option<&Vec<Option<Sample>>>,
) -> impl Iterator<Item = f64> {
    let rounds = samples.iter().zip(beside.into_iter().flatten());
    rounds.filter_map(|(ours, theirs)| Some(gigabits(ours.as_ref()?) / gigabits(theirs.as_ref()?)))
}

fn tables(
    control: &str,
    cases: &[Case],
    absent: &[Vec<&str>],
    samples: &Samples,
    [memory_bytes, file_bytes]: [u64; 2],
) -> [Table; 2] {
    let mut memory = Table::new(
        format!("Memory to memory, one pair on loopback, {memory_bytes} bytes, TCP {control}"),
        &COLUMNS,
    );
    let mut file = Table::new(
        format!(
            "One file of {file_bytes} bytes between folders in memory, one pair on loopback, TCP {control}"
        ),
        &COLUMNS,
    );
    for (index, case) in cases.iter().enumerate() {
        let table = match case.tool {
            Tool::Iperf { .. } | Tool::Memory(_) => &mut memory,
            Tool::File(_) | Tool::Other(_) => &mut file,
        };
        let Some(rates) = rates(&samples[index]) else {
            let mut row = vec![case.name.into(), case.work.into()];
            row.extend(vec![Cell::Empty; COLUMNS.len() - 2]);
            table.row(row);
            let why = if absent[index].is_empty() {
                "failed".into()
            } else {
                format!("missing {}", absent[index].join(", "))
            };
            table.note(format!("{}: {why}", case.name));
            continue;
        };
        let beside = reference(cases, case.streams).map(|reference| &samples[reference]);
        let ratios = ratios(&samples[index], beside);
        let processor = samples[index]
            .iter()
            .flatten()
            .map(|sample| sample.processor_seconds / sample.bytes as f64 * 1e9);
        table.row(vec![
            case.name.into(),
            case.work.into(),
            number(rates.median, 2),
            number(rates.min, 2),
            number(rates.max, 2),
            number(summary(ratios).map(|ratio| ratio.median), 2),
            number(summary(processor).map(|processor| processor.median), 2),
            number(rates.count as f64, 0),
        ]);
    }
    memory.note("of iperf3: of iperf3 with the same streams in the same round. cpu: both sides and the master, 10^9 bytes.");
    file.note("of iperf3: of one iperf3 stream in the same round. cpu: client and server with all they forked.");
    file.note("wdt is not in package registries; measured elsewhere, idle: 0.41 plain, 0.37 CRC32C, 0.285 AES-128-GCM of iperf3.");
    [memory, file]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(gigabits: f64) -> Option<Sample> {
        Some(Sample {
            bytes: 1_000_000_000,
            seconds: 8.0 / gigabits,
            processor_seconds: 0.5,
            moved: None,
        })
    }

    /// Ratios are taken within rounds, so that a slow round does not count against anybody; gaps name their reason.
    #[test]
    fn ratios_within_rounds() {
        let all = cases();
        let mut samples: Samples = vec![vec![None; 3]; all.len()];
        let ours = all
            .iter()
            .position(|case| case.name == "ropewalk, 1 stream")
            .unwrap();
        samples[0] = vec![sample(10.0), sample(20.0), sample(40.0)];
        samples[ours] = vec![sample(5.0), sample(10.0), sample(20.0)];
        let mut absent = vec![Vec::new(); all.len()];
        let last = absent.len() - 1;
        absent[last] = vec!["nginx"];
        let [memory, file] = tables("cubic", &all, &absent, &samples, [1, 1]);
        let json = memory.json();
        let rows = json["rows"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["case"] == "ropewalk, 1 stream")
            .unwrap();
        let close = |key: &str, value: f64| {
            assert!((row[key].as_f64().unwrap() - value).abs() < 1e-9, "{row}")
        };
        close("ratio_to_iperf3_median", 0.5);
        close("gigabits_per_second_median", 10.0);
        close("processor_seconds_per_gigabyte_median", 0.5);
        assert!(file.text().contains("missing nginx"), "{}", file.text());
    }
}
