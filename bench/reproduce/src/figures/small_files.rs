//! Trees of small files, and one small file, beside cp, rsync and scp.
//!
//! Files of 4 to 64 KiB in folders of 200, in memory. On one host: between folders, and between two agents over loopback. In the
//! lab, whose interfaces have no cap: three replicas to two copies, and one file of 4 KiB over ssh. From a disk of which nothing is
//! in memory, and whose rate or operations the kernel limits. From a file system that answers each call after a while. Everything is timed from the command's start to its end, in rounds:
//! every case once, then every case again.

mod cold;
mod distant;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::{HostSpec, Lab, LabBuilder};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::figures::faults::write_noise;
use crate::network::{MASTER, with_program};
use crate::process;
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::stats::{spread, summary};
use crate::table::{Cell, Table, number};

/// Files of the trees.
const TREES: [u64; 2] = [20_000, 100_000];

/// Files of one folder.
const FOLDER: u64 = 200;

/// Sizes go from the first to the second, evenly.
const SIZES: (u64, u64) = (4 << 10, 64 << 10);

/// The small file.
const SMALL: u64 = 4 << 10;

/// Longest time of one copy.
const COPY_MAX: Duration = Duration::from_secs(120);

const SOURCES: [&str; 3] = ["a1", "a2", "a3"];
const COPIES: [&str; 2] = ["b1", "b2"];

/// How a tree is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `cp -r`, so often one after another.
    Cp(u32),
    Rsync,
    /// By one command on one host, with these options.
    Local(&'static str),
    /// Between two agents on one host, over TCP, with these options.
    Agents(&'static str),
    /// Between three agents with the same tree and two without, in the lab.
    ThreeToTwo(&'static str),
}

/// One row: its name, what it checks and hides, and the `cp` that it is compared with.
type Case = (&'static str, &'static str, Way, Way);

const ONE: Way = Way::Cp(1);
const TWO: Way = Way::Cp(2);

const CASES: [Case; 11] = [
    ("cp -r", "plain", ONE, ONE),
    ("rsync -a", "plain", Way::Rsync, ONE),
    ("ropewalk on one host", "checked", Way::Local(""), ONE),
    (
        "ropewalk on one host, unchecked",
        "plain",
        Way::Local("--verify none"),
        ONE,
    ),
    (
        "two agents, unchecked",
        "plain",
        Way::Agents("--plain --verify none"),
        ONE,
    ),
    ("two agents, plain", "checked", Way::Agents("--plain"), ONE),
    ("two agents", "encrypted, checked", Way::Agents(""), ONE),
    ("cp -r, twice", "plain", TWO, TWO),
    (
        "three agents to two, unchecked",
        "plain",
        Way::ThreeToTwo("--plain --verify none"),
        TWO,
    ),
    (
        "three agents to two, plain",
        "checked",
        Way::ThreeToTwo("--plain"),
        TWO,
    ),
    (
        "three agents to two",
        "encrypted, checked",
        Way::ThreeToTwo(""),
        TWO,
    ),
];

/// How the small file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Small {
    Cp,
    Local,
    /// Nothing is copied: what a command there costs.
    Command,
    Scp,
    Ssh,
}

const SMALLS: [(&str, Small); 5] = [
    ("cp, one host", Small::Cp),
    ("ropewalk, one host", Small::Local),
    ("ssh, a command that does nothing", Small::Command),
    ("scp from another host", Small::Scp),
    ("ropewalk over ssh", Small::Ssh),
];

/// One copy.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Took {
    seconds: f64,
    // Of all processes; of copies over ssh the command's alone.
    processor_seconds: f64,
}

const COLUMNS: [(&str, &str); 8] = [
    ("case", "case"),
    ("work", "work"),
    ("seconds_median", "s"),
    ("seconds_min", "min"),
    ("seconds_max", "max"),
    ("cp_over_seconds_median", "of cp"),
    ("processor_seconds_median", "cpu s"),
    ("runs", "runs"),
];

const SMALL_COLUMNS: [(&str, &str); 5] = [
    ("case", "case"),
    ("milliseconds_median", "ms"),
    ("milliseconds_min", "min"),
    ("milliseconds_max", "max"),
    ("runs", "runs"),
];

/// A folder in memory with the trees, and where copies go.
struct Rig<'s> {
    site: &'s Site,
    root: PathBuf,
}

/// Length of a file of a tree: all sizes, mixed. Contents begin at another byte for each, so that no two files are alike.
fn len_of(file: u64) -> u64 {
    let (least, most) = SIZES;
    least + file * 37 % 62 * ((most - least) / 61)
}

fn write_tree(root: &Path, files: u64) -> Result<u64> {
    let (_, most) = SIZES;
    let noise = root.with_extension("noise");
    write_noise(&noise, most + files)?;
    let noise_bytes = fs::read(&noise)?;
    fs::remove_file(&noise)?;
    let mut bytes = 0;
    for file in 0..files {
        let folder = root.join((file / FOLDER).to_string());
        if file % FOLDER == 0 {
            fs::create_dir_all(&folder)?;
        }
        let len = len_of(file);
        let from = file as usize;
        fs::write(
            folder.join(file.to_string()),
            &noise_bytes[from..from + len as usize],
        )?;
        bytes += len;
    }
    Ok(bytes)
}

fn files_in(folder: &Path) -> Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))? {
        let entry = entry?;
        files += match entry.file_type()?.is_dir() {
            true => files_in(&entry.path())?,
            false => 1,
        };
    }
    Ok(files)
}

impl Rig<'_> {
    fn tree(&self, files: u64) -> PathBuf {
        self.root.join(format!("tree{files}"))
    }

    fn clear(&self) -> Result<PathBuf> {
        let copies = self.root.join("copies");
        if copies.exists() {
            fs::remove_dir_all(&copies)?;
        }
        fs::create_dir(&copies)?;
        Ok(copies)
    }

    /// A command that keeps what it remembers in the figure's own folder.
    fn own(&self, place: Place<'_>, arguments: &[&str]) -> Command {
        let mut command = place.command(&self.site.ropewalk);
        command.env("HOME", &self.site.scratch);
        command.args(arguments).args(["--speeds", "off"]);
        command
    }

    fn command(&self, command: Command) -> Result<Took> {
        let ended = process::run(command, COPY_MAX)?;
        Ok(Took {
            seconds: ended.seconds,
            processor_seconds: ended.processor_seconds,
        })
    }

    fn moved(&self, agents: Agents, place: Place<'_>, arguments: &str) -> Result<Took> {
        let moved = agents.run_once(place, &words(arguments), COPY_MAX)?;
        Ok(Took {
            seconds: moved.command_seconds,
            processor_seconds: moved.processor_seconds(),
        })
    }

    fn lab(&self, tree: &Path) -> Result<Lab> {
        let names = SOURCES.into_iter().chain(COPIES).chain([MASTER]);
        let builder = LabBuilder::new().hosts(names.map(HostSpec::new));
        with_program(builder, self.site)
            .shared_dir(tree, "/data/source", &SOURCES)
            .build()
            .context("cannot build the lab")
    }

    fn copy(&self, way: Way, files: u64) -> Result<Took> {
        let tree = self.tree(files);
        let copies = self.clear()?;
        let (from, to) = (tree.display(), copies.join("copy"));
        let took = match way {
            Way::Cp(times) => {
                let mut script = String::new();
                for time in 1..times {
                    script += &format!("cp -r '{from}' '{}.{time}' && ", to.display());
                }
                script += &format!("cp -r '{from}' '{}'", to.display());
                let mut shell = Command::new("sh");
                shell.args(["-c", &script]);
                self.command(shell)?
            }
            Way::Rsync => {
                let mut rsync = Command::new("rsync");
                rsync.args(["-a", &format!("{from}/")]).arg(&to);
                self.command(rsync)?
            }
            Way::Local(options) => {
                let (from, to) = (from.to_string(), to.display().to_string());
                let mut arguments = vec!["copy", &from, &to];
                arguments.extend(options.split_whitespace());
                self.command(self.own(Place::Machine, &arguments))?
            }
            Way::Agents(options) => {
                let mut agents = Agents::new(self.site)?;
                let root = [format!("{}:rw", self.root.display())];
                agents.start_local("s", &root)?;
                agents.start_local("r", &root)?;
                let arguments = format!(
                    "copy --lane tcp {options} {}:{from} {}:{}",
                    agents.address("s"),
                    agents.address("r"),
                    to.display()
                );
                self.moved(agents, Place::Machine, &arguments)?
            }
            Way::ThreeToTwo(options) => return self.three_to_two(&tree, files, options),
        };
        let there = files_in(&to)?;
        ensure!(there == files, "{there} of {files} files were copied");
        Ok(took)
    }

    fn three_to_two(&self, tree: &Path, files: u64, options: &str) -> Result<Took> {
        let lab = self.lab(tree)?;
        let mut agents = Agents::new(self.site)?;
        for host in SOURCES.into_iter().chain(COPIES) {
            agents.start_in(&lab, host, &["/data:rw".into()])?;
        }
        let arguments =
            format!("copy {options} a[1-3]:{PORT}:/data/source b[1-2]:{PORT}:/data/copy");
        let took = self.moved(agents, Place::Host(&lab, MASTER), &arguments)?;
        for host in COPIES {
            let there = files_in(&lab.path_in(host, "/data/copy"))?;
            ensure!(there == files, "{there} of {files} files are at {host}");
        }
        Ok(took)
    }

    fn copy_small(&self, way: Small) -> Result<Took> {
        let copies = self.clear()?;
        let to = copies.join("file");
        let from = self.root.join("small");
        match way {
            Small::Cp => {
                let mut cp = Command::new("cp");
                cp.arg(&from).arg(&to);
                self.command(cp)
            }
            Small::Local => {
                let (from, to) = (from.display().to_string(), to.display().to_string());
                self.command(self.own(Place::Machine, &["copy", &from, &to]))
            }
            Small::Command | Small::Scp | Small::Ssh => {
                let lab = self.lab(&self.root.join("of-small"))?;
                lab.start_sshd("a1")?;
                // The first connection makes what later ones find.
                process::run(ssh(&lab, &["a1", "true"]), COPY_MAX)?;
                let host = Place::Host(&lab, MASTER);
                let (from, to) = ("a1:/data/source/small", "/data/file");
                let took = match way {
                    Small::Command => return self.command(ssh(&lab, &["a1", "true"])),
                    Small::Scp => {
                        let mut scp = host.command(Path::new("scp"));
                        scp.args(["-q", from, to]);
                        self.command(scp)
                    }
                    _ => {
                        let program = self.site.ropewalk.display().to_string();
                        self.command(self.own(host, &["copy", "--remote-path", &program, from, to]))
                    }
                };
                let bytes = fs::metadata(lab.path_in(MASTER, to))?.len();
                ensure!(bytes == SMALL, "{bytes} of {SMALL} bytes were copied");
                took
            }
        }
    }
}

fn ssh(lab: &Lab, arguments: &[&str]) -> Command {
    let mut ssh = Place::Host(lab, MASTER).command(Path::new("ssh"));
    ssh.args(arguments);
    ssh
}

/// The reference's time over that of each round.
fn ratios(ours: &[Option<Took>], theirs: &[Option<Took>]) -> Vec<f64> {
    let rounds = ours.iter().zip(theirs);
    rounds
        .filter_map(|(ours, theirs)| Some(theirs.as_ref()?.seconds / ours.as_ref()?.seconds))
        .collect()
}

fn row(case: &Case, took: &[Option<Took>], beside: &[Option<Took>]) -> Vec<Cell> {
    let (name, work, ..) = *case;
    let seconds = summary(took.iter().flatten().map(|took| took.seconds));
    let processor = summary(took.iter().flatten().map(|took| took.processor_seconds));
    vec![
        name.into(),
        work.into(),
        number(seconds.map(|all| all.median), 2),
        number(seconds.map(|all| all.min), 2),
        number(seconds.map(|all| all.max), 2),
        number(summary(ratios(took, beside)).map(|all| all.median), 2),
        number(processor.map(|all| all.median), 2),
        number(seconds.map(|all| all.count as f64), 0),
    ]
}

/// Makes the comparison.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "small-files")?;
    let site = bench.site();
    let (rounds, trees) = match settings.quick {
        true => (3, &TREES[..1]),
        false => (5, &TREES[..]),
    };
    let key = |round: usize, files: u64, case: &Case| {
        format!("round {round}, {files} files, {}, {}", case.0, case.1)
    };
    let small_key = |round: usize, name: &str| format!("round {round}, {SMALL} bytes, {name}");
    for round in 1..=rounds {
        for &files in trees {
            let seconds = 1.5 + files as f64 / 15_000.0;
            bench.expect(CASES.iter().map(|case| (key(round, files, case), seconds)));
        }
        bench.expect(SMALLS.map(|(name, _)| (small_key(round, name), 1.0)));
    }
    bench.announce();
    for (program, argument) in [("cp", "--version"), ("rsync", "--version"), ("ssh", "-V")] {
        bench.program_version(program, argument);
    }
    // In memory: what is compared are movers, not disks.
    let shm = Path::new("/dev/shm");
    let folder = tempfile::Builder::new()
        .prefix("reproduce-")
        .tempdir_in(if shm.is_dir() { shm } else { &site.scratch })?;
    let rig = Rig {
        site: &site,
        root: folder.path().to_owned(),
    };
    let mut tables = Vec::new();
    for &files in trees {
        let bytes = write_tree(&rig.tree(files), files)?;
        let mut took: Vec<Vec<Option<Took>>> = vec![Vec::new(); CASES.len()];
        for round in 1..=rounds {
            for (case, took) in CASES.iter().zip(&mut took) {
                took.push(bench.point(&key(round, files, case), || rig.copy(case.2, files)));
            }
        }
        rig.clear()?;
        fs::remove_dir_all(rig.tree(files))?;
        let mut table = Table::new(format!("{files} files, {bytes} bytes"), &COLUMNS);
        for (case, took_of) in CASES.iter().zip(&took) {
            let beside = CASES.iter().position(|other| other.2 == case.3);
            let beside = beside.map_or(&[][..], |beside| &took[beside]);
            table.row(row(case, took_of, beside));
            if !matches!(case.2, Way::Cp(_)) {
                let all = spread(ratios(took_of, beside), 2);
                bench.headline(
                    format!("{files} files: {}, {}", case.0, case.1),
                    format!("{all} x cp"),
                );
            }
        }
        table.note("of cp: time of cp in the same round over this time; cp syncs nothing, ropewalk does, in memory at no cost. cpu: all processes.");
        tables.push(table);
    }
    write_noise(&rig.root.join("small"), SMALL)?;
    fs::create_dir(rig.root.join("of-small"))?;
    fs::copy(rig.root.join("small"), rig.root.join("of-small/small"))?;
    let mut table = Table::new(format!("One file of {SMALL} bytes"), &SMALL_COLUMNS);
    let mut all: Vec<Vec<Option<Took>>> = vec![Vec::new(); SMALLS.len()];
    for round in 1..=rounds {
        for ((name, way), all) in SMALLS.iter().zip(&mut all) {
            all.push(bench.point(&small_key(round, name), || rig.copy_small(*way)));
        }
    }
    for ((name, _), took) in SMALLS.iter().zip(&all) {
        let seconds = summary(took.iter().flatten().map(|took| took.seconds * 1e3));
        table.row(vec![
            (*name).into(),
            number(seconds.map(|all| all.median), 1),
            number(seconds.map(|all| all.min), 1),
            number(seconds.map(|all| all.max), 1),
            number(seconds.map(|all| all.count as f64), 0),
        ]);
    }
    if let [_, _, _, scp, over_ssh] = &all[..] {
        bench.headline(
            format!("{SMALL} bytes over ssh"),
            format!("{} x the time of scp", spread(ratios(scp, over_ssh), 2)),
        );
    }
    tables.push(table);
    tables.push(cold::table(&mut bench, &rig, settings.quick)?);
    tables.push(distant::table(&mut bench, &rig, settings.quick)?);
    bench.finish(&tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree has as many files as were asked for, of all sizes, and `cp` copies it.
    #[test]
    fn trees_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let site = Site {
            scratch: folder.path().to_owned(),
            ropewalk: "ropewalk".into(),
            bench: "ropewalk-bench".into(),
        };
        let rig = Rig {
            site: &site,
            root: folder.path().to_owned(),
        };
        let bytes = write_tree(&rig.tree(401), 401).unwrap();
        assert_eq!(files_in(&rig.tree(401)).unwrap(), 401);
        assert!((401 * SIZES.0..401 * SIZES.1).contains(&bytes), "{bytes}");
        let took = rig.copy(TWO, 401).unwrap();
        assert!(took.seconds > 0.0);
        assert_eq!(files_in(&folder.path().join("copies")).unwrap(), 802);
    }

    /// Ratios are of rounds, and gaps count for nothing.
    #[test]
    fn ratios_are_of_rounds() {
        let took = |seconds: &[f64]| -> Vec<Option<Took>> {
            let some = |seconds: &f64| {
                (*seconds > 0.0).then_some(Took {
                    seconds: *seconds,
                    processor_seconds: 1.0,
                })
            };
            seconds.iter().map(some).collect()
        };
        let all = ratios(&took(&[2.0, 0.0, 4.0]), &took(&[1.0, 5.0, 4.0]));
        assert_eq!(all, [0.5, 1.0]);
    }
}
