//! A Slurm job's broadcast to the disks of its nodes: ropewalk started in the job, beside `sbcast`.
//!
//! The file is in a folder that all nodes see, and the job's first node reads it, as `sbcast` does. Times are those of the command in the job:
//! with ropewalk that is with the start of its agents through `srun`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::slurm::{SHARED, Slurm};
use ropewalk_lab::{HostSpec, LabBuilder};

use crate::bench::Bench;
use crate::network::{capped, tcp_rate, with_program};
use crate::process::Process;
use crate::scenario::deadline;
use crate::table::{Table, number};

use super::{EQUAL, NAME, Rig, Sample};

const HEAD: &str = "head";

/// Nodes of the job, the one that reads among them.
const NODES: [&str; 8] = [
    "node1", "node2", "node3", "node4", "node5", "node6", "node7", "node8",
];

/// What the job runs after it has noted the time; then it notes how long that took.
const SCRIPT: &str = "#!/bin/bash\nbegan=$(date +%s%N)\n\"$@\"\nstatus=$?\n\
                      echo $status $(($(date +%s%N) - began)) > /cluster/took\n";

/// What broadcasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Ropewalk,
    Sbcast,
    /// In a tree: each node sends to two.
    SbcastTree,
}

pub(super) const ALL: [Tool; 3] = [Tool::Ropewalk, Tool::Sbcast, Tool::SbcastTree];

impl Tool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ropewalk => "ropewalk copy --launch slurm",
            Self::Sbcast => "sbcast",
            Self::SbcastTree => "sbcast --fanout=2",
        }
    }

    /// Whether Slurm is installed.
    pub(super) fn is_present() -> bool {
        Slurm::missing().is_none()
    }

    /// The first node's link carries the bytes once, or what the tool sends from it.
    pub(super) fn seconds(self, bytes: u64) -> f64 {
        let copies = match self {
            Self::Ropewalk => 1,
            Self::Sbcast => NODES.len() - 1,
            Self::SbcastTree => 3,
        };
        copies as f64 * least_seconds(bytes)
    }

    fn words(self, rig: &Rig<'_>) -> Vec<String> {
        let file = format!("{SHARED}/{NAME}");
        let copy = format!("/data/{NAME}");
        match self {
            Self::Ropewalk => {
                let program = rig.site.ropewalk.display().to_string();
                let nodes = format!("node[1-{}]:{copy}", NODES.len());
                let words = ["copy", "--launch", "slurm", &file, &nodes];
                let words = words.into_iter().map(str::to_owned);
                std::iter::once(program).chain(words).collect()
            }
            Self::Sbcast => vec!["sbcast".into(), file, copy],
            Self::SbcastTree => vec!["sbcast".into(), "--fanout=2".into(), file, copy],
        }
    }
}

fn least_seconds(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / tcp_rate(EQUAL)
}

pub(super) fn measure(rig: &Rig<'_>, tool: Tool) -> Result<Sample> {
    // The daemons write beside the file.
    let shared = tempfile::tempdir_in(&rig.folder)?;
    let file = shared.path().join(NAME);
    fs::hard_link(rig.folder.join(NAME), &file)?;
    let hosts = NODES.iter().map(|node| capped(*node, EQUAL));
    let builder = LabBuilder::new().hosts(
        hosts.chain([HostSpec::new(HEAD).nic(ropewalk_lab::NicSpec::rate_bits(10 * EQUAL))]),
    );
    let builder = with_program(builder, rig.site).shared_dir(shared.path(), SHARED, &[]);
    let lab = builder.build().context("cannot build the lab")?;
    let slurm = Slurm::start(&lab, shared.path(), HEAD, &NODES, 0)?;
    fs::write(shared.path().join("job"), SCRIPT)?;
    let sent = lab.counters(NODES[0], 0)?.tx_bytes;
    let mut command = Slurm::command(&lab, HEAD, "sbatch");
    let nodes = format!("--nodes={}", NODES.len());
    let output = format!("--output={SHARED}/said");
    command
        .args(["--wait", "--ntasks-per-node=1", &nodes, &output])
        .arg(format!("{SHARED}/job"))
        .args(tool.words(rig))
        .env("HOME", "/data");
    for other in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
        command.env_remove(other);
    }
    let limit = deadline(2.0 * tool.seconds(rig.bytes) + 60.0);
    let ended = Process::start(command)?.finish(limit)?;
    let read = |name: &str| fs::read_to_string(shared.path().join(name)).unwrap_or_default();
    let (said, took) = (read("said"), read("took"));
    ended.success("sbatch").with_context(|| said.clone())?;
    let (status, nanoseconds) = took.trim().split_once(' ').context("the job has no time")?;
    ensure!(status == "0", "{} ended with {status}: {said}", tool.name());
    for node in NODES {
        let copy = lab.path_in(node, format!("/data/{NAME}"));
        ensure!(is_same(&file, &copy)?, "the copy of {node} differs");
    }
    let sent_bytes = lab.counters(NODES[0], 0)?.tx_bytes - sent;
    drop(slurm);
    Ok(Sample {
        seconds: nanoseconds.parse::<u64>()? as f64 / 1e9,
        sent_bytes,
        trunk_bytes: None,
        read_bytes: None,
        happened: None,
        moved: None,
    })
}

fn is_same(one: &Path, other: &Path) -> Result<bool> {
    let hash = |path: &Path| -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(fs::File::open(path)?)?;
        Ok(hasher.finalize())
    };
    Ok(hash(one)? == hash(other)?)
}

const COLUMNS: [(&str, &str); 4] = [
    ("tool", "tool"),
    ("seconds", "s"),
    ("over_bound", "over bound"),
    ("sent_over_size", "first node sent/size"),
];

pub(super) fn table(bench: &mut Bench, samples: &[(super::Point, Sample)], bytes: u64) -> Table {
    let title = format!(
        "A file of {} MB to the own disk of each of 8 nodes of a Slurm job, all of 100 Mbit/s",
        bytes / 1_000_000
    );
    let mut table = Table::new(title, &COLUMNS);
    let least = least_seconds(bytes);
    for (point, sample) in samples {
        let super::Point::Broadcast(tool) = *point else {
            continue;
        };
        table.row(vec![
            tool.name().into(),
            number(sample.seconds, 2),
            number(sample.seconds / least, 2),
            number(sample.sent_bytes as f64 / bytes as f64, 2),
        ]);
        bench.headline(
            format!(
                "a Slurm job's broadcast to 8 nodes of 100 Mbit/s: {}",
                tool.name()
            ),
            format!(
                "{:.1} s, {:.2} of the bound",
                sample.seconds,
                sample.seconds / least
            ),
        );
    }
    if !Tool::is_present() {
        table.note("missing Slurm");
    }
    table.note("bound: the first node, which reads the file, sends each byte once. Times are those of the command in the job, the start of ropewalk's agents included.");
    table
}
