//! Trees on a disk of which nothing is in memory, limited in its rate or its operations, to memory.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Rig, files_in, write_tree};
use crate::bench::Bench;
use crate::device::{Device, Speeds};
use crate::ropewalk::Place;
use crate::stats::{spread, summary};
use crate::table::{Table, number};

/// What the limit lets pass in this time is as much as the tree has.
const SECONDS: u64 = 8;

const COLUMNS: [(&str, &str); 7] = [
    ("limit", "limit"),
    ("case", "case"),
    ("seconds_median", "s"),
    ("seconds_min", "min"),
    ("seconds_max", "max"),
    ("share_of_limit_median", "of the limit"),
    ("reads_per_file_median", "reads a file"),
];

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ran {
    seconds: f64,
    // What was read over what the limit would have let pass in that time.
    share: f64,
    reads: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Rate,
    Reads,
}

const LIMITS: [(&str, Limit); 2] = [("rate", Limit::Rate), ("operations", Limit::Reads)];

const CASES: [&str; 2] = ["cp -r", "ropewalk on one host"];

/// A disk with the tree on it.
struct Disk {
    device: Device,
    files: u64,
    bytes: u64,
}

impl Disk {
    fn new(rig: &Rig<'_>, files: u64) -> Result<Self> {
        let space = files * super::SIZES.1 + (1 << 30);
        let mut device = Device::new(&rig.root, &rig.site.scratch.join("disk"), space)?;
        let bytes = write_tree(&device.folder().join("tree"), files)?;
        device.forget()?;
        let disk = Self {
            device,
            files,
            bytes,
        };
        disk.copy_once(rig)?;
        Ok(disk)
    }

    /// A copy that is not measured: memory that a virtual machine uses for the first time is slow, and each copy uses as much.
    fn copy_once(&self, rig: &Rig<'_>) -> Result<()> {
        let to = rig.clear()?.join("copy");
        let mut cp = Command::new("cp");
        cp.arg("-r").arg(self.device.folder().join("tree")).arg(&to);
        rig.command(cp)?;
        Ok(())
    }

    fn copy(&mut self, rig: &Rig<'_>, limit: Limit, case: &str) -> Result<Ran> {
        let to = rig.clear()?.join("copy");
        let (read, reads) = match limit {
            Limit::Rate => (Some(self.bytes / SECONDS), None),
            Limit::Reads => (None, Some(self.files / SECONDS)),
        };
        self.device.limit(Speeds::default())?;
        self.device.forget()?;
        self.device.limit(Speeds {
            read,
            reads,
            ..Speeds::default()
        })?;
        let before = self.device.reads()?;
        let from = self.device.folder().join("tree");
        let took = match case == CASES[0] {
            true => {
                let mut cp = Command::new("cp");
                cp.arg("-r").arg(&from).arg(&to);
                rig.command(cp)?
            }
            false => {
                let words = ["copy", path(&from), path(&to)];
                rig.command(rig.own(Place::Machine, &words))?
            }
        };
        let after = self.device.reads()?;
        let there = files_in(&to)?;
        ensure!(there == self.files, "{there} of {} files", self.files);
        let count = after.count - before.count;
        let passed = match (read, reads) {
            (Some(rate), _) => (after.bytes - before.bytes) as f64 / rate as f64,
            (_, reads) => count as f64 / reads.unwrap_or(1) as f64,
        };
        Ok(Ran {
            seconds: took.seconds,
            share: passed / took.seconds,
            reads: count,
        })
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Makes the table.
pub(super) fn table(bench: &mut Bench, rig: &Rig<'_>, quick: bool) -> Result<Table> {
    let (rounds, files) = if quick { (1, 20_000) } else { (3, 100_000) };
    let key = |round: usize, limit: &str, case: &str| {
        format!("cold, round {round}, {files} files, limited {limit}, {case}")
    };
    let mut points = Vec::new();
    for round in 1..=rounds {
        for (name, limit) in LIMITS {
            points.extend(CASES.map(|case| (round, name, limit, case)));
        }
    }
    let all_points = points.iter();
    bench.expect(all_points.map(|(round, name, _, case)| (key(*round, name, case), 12.0)));
    bench.announce();
    let mut disk = None;
    let mut ran = Vec::new();
    for (round, name, limit, case) in points {
        let data = bench.point(&key(round, name, case), || {
            let disk = match &mut disk {
                Some(disk) => disk,
                none => none.insert(Disk::new(rig, files)?),
            };
            disk.copy(rig, limit, case)
        });
        ran.extend(data.map(|data: Ran| (name, case, data)));
    }
    let mut table = Table::new(
        format!("{files} files from a disk of which nothing is in memory"),
        &COLUMNS,
    );
    for (name, _) in LIMITS {
        for case in CASES {
            let of_it = || {
                let of_it = ran.iter().filter(|ran| (ran.0, ran.1) == (name, case));
                of_it.map(|ran| ran.2)
            };
            let seconds = summary(of_it().map(|ran| ran.seconds));
            let shares = || of_it().map(|ran| ran.share);
            let reads = summary(of_it().map(|ran| ran.reads as f64 / files as f64));
            table.row(vec![
                name.into(),
                case.into(),
                number(seconds.map(|all| all.median), 2),
                number(seconds.map(|all| all.min), 2),
                number(seconds.map(|all| all.max), 2),
                number(summary(shares()).map(|all| all.median), 2),
                number(reads.map(|all| all.median), 2),
            ]);
            if case != CASES[0] {
                bench.headline(
                    format!("{files} files from a cold disk, limited {name}"),
                    format!("{} of the limit", spread(shares(), 2)),
                );
            }
        }
    }
    table.note(format!(
        "limit: what passes in {SECONDS} s is the tree's bytes, or an operation a file. of the limit: bytes, or operations, that were read over what the limit lets pass in that time. One copy before them is not measured, as memory that a virtual machine uses for the first time is slow."
    ));
    Ok(table)
}
