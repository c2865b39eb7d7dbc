//! A real tree (the Rust toolchain's own directory) and one large file, from three replica hosts to two hosts over
//! ssh, with nothing installed there but the program.
//!
//! Contents and metadata are compared entry by entry. The sources are one read-only view of the machine's files; the
//! copies lie in each receiver's memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::{HostSpec, Lab, LabBuilder};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::figures::faults::write_noise;
use crate::network::{MASTER, with_program};
use crate::process;
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::stats::spread;
use crate::table::{Table, number};

const SOURCES: [&str; 3] = ["a1", "a2", "a3"];
const COPIES: [&str; 2] = ["b1", "b2"];

/// Copies of the large file in turns, over ssh and between standing agents; the table has the first.
const ROUNDS: usize = 3;

const COLUMNS: [(&str, &str); 9] = [
    ("case", "case"),
    ("files", "files"),
    ("bytes", "bytes"),
    ("seconds", "s"),
    ("command_seconds", "with ssh s"),
    ("megabits_per_second", "Mbit/s"),
    ("files_per_second", "files/s"),
    ("processor_seconds_per_gigabyte", "cpu s/GB"),
    ("comparison", "comparison"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Copied {
    moved: Moved,
    comparison: String,
}

fn build(site: &Site, source: &Path) -> Result<Lab> {
    let folder = if source.is_dir() {
        source
    } else {
        source.parent().context("a file lies in a folder")?
    };
    let hosts = SOURCES.into_iter().chain(COPIES).chain([MASTER]);
    let builder = with_program(LabBuilder::new().hosts(hosts.map(HostSpec::new)), site);
    let lab = builder
        .shared_dir(folder, "/data/source", &SOURCES)
        .build()
        .context("cannot build the lab")?;
    for host in SOURCES.into_iter().chain(COPIES) {
        lab.start_sshd(host)?;
    }
    Ok(lab)
}

/// Copies over ssh, or between agents that stand already.
fn measure(site: &Site, source: &Path, is_standing: bool, deadline: Duration) -> Result<Copied> {
    let lab = build(site, source)?;
    let name = if source.is_dir() {
        String::new()
    } else {
        format!(
            "/{}",
            source.file_name().unwrap_or_default().to_string_lossy()
        )
    };
    let mut agents = Agents::new(site)?;
    let arguments = match is_standing {
        true => {
            for host in SOURCES.into_iter().chain(COPIES) {
                agents.start_in(&lab, host, &["/data:rw".into()])?;
            }
            format!("copy a[1-3]:{PORT}:/data/source{name} b[1-2]:{PORT}:/data/copy")
        }
        false => format!(
            "copy --remote-path {} a[1-3]:/data/source{name} b[1-2]:/data/copy",
            site.ropewalk.display()
        ),
    };
    let arguments = words(&arguments);
    let moved = agents
        .run(Place::Host(&lab, MASTER), &arguments, deadline, |_, _| {
            Ok(())
        })?
        .complete()?;
    let mut entries = 0;
    for host in COPIES {
        entries = compare(source, &lab.path_in(host, "/data/copy"))?;
    }
    Ok(Copied {
        moved,
        comparison: format!("{entries} entries equal on both"),
    })
}

/// Compares type, mode, time, link target and contents of everything; says how many entries there are.
fn compare(expected: &Path, copy: &Path) -> Result<usize> {
    let (ours, theirs) = (walk(expected)?, walk(copy)?);
    for path in theirs.keys() {
        ensure!(
            ours.contains_key(path),
            "{} is too much in the copy",
            path.display()
        );
    }
    for (path, entry) in &ours {
        let Some(other) = theirs.get(path) else {
            bail!("{} is not in the copy", path.display())
        };
        ensure!(
            entry == other,
            "{}: {entry:?} became {other:?}",
            path.display()
        );
        if entry.is_file {
            let join = |root: &Path| {
                if path.as_os_str().is_empty() {
                    root.to_owned()
                } else {
                    root.join(path)
                }
            };
            same_bytes(&join(expected), &join(copy), entry.len)?;
        }
    }
    Ok(ours.len())
}

#[derive(Debug, PartialEq)]
struct Entry {
    is_file: bool,
    mode: u32,
    // Length of directories depends on the file system.
    len: u64,
    modified: (i64, i64),
    target: Option<OsString>,
}

fn walk(root: &Path) -> Result<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(path) = ahead.pop() {
        let full = if path.as_os_str().is_empty() {
            root.to_owned()
        } else {
            root.join(&path)
        };
        let metadata = fs::symlink_metadata(&full)
            .with_context(|| format!("cannot look at {}", full.display()))?;
        let is_link = metadata.is_symlink();
        if metadata.is_dir() {
            for entry in fs::read_dir(&full)? {
                ahead.push(path.join(entry?.file_name()));
            }
        }
        let entry = Entry {
            is_file: metadata.is_file(),
            mode: metadata.mode(),
            len: if metadata.is_file() {
                metadata.len()
            } else {
                0
            },
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            target: if is_link {
                Some(fs::read_link(&full)?.into_os_string())
            } else {
                None
            },
        };
        found.insert(path, entry);
    }
    Ok(found)
}

fn same_bytes(a: &Path, b: &Path, len: u64) -> Result<()> {
    let (left, right) = (fs::File::open(a)?, fs::File::open(b)?);
    let size = len.clamp(1, 1 << 20) as usize;
    let (mut x, mut y) = (vec![0; size], vec![0; size]);
    let mut at = 0;
    while at < len {
        let part = (len - at).min(size as u64) as usize;
        left.read_exact_at(&mut x[..part], at)?;
        right.read_exact_at(&mut y[..part], at)?;
        ensure!(
            x[..part] == y[..part],
            "{} differs within bytes {at}-{}",
            b.display(),
            at + part as u64 - 1
        );
        at += part as u64;
    }
    Ok(())
}

/// The directory of the running Rust toolchain.
fn toolchain() -> Result<PathBuf> {
    let mut command = Command::new("rustc");
    command.args(["--print", "sysroot"]);
    let output = process::run(command, Duration::from_secs(20))?.output;
    output
        .first()
        .map(PathBuf::from)
        .context("rustc printed no sysroot")
}

/// Makes the table of trees over ssh.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "trees")?;
    let site = bench.site();
    let bytes: u64 = if settings.quick { 512 << 20 } else { 2 << 30 };
    let tree = toolchain()?;
    let tree_key = format!("toolchain {}", tree.display());
    let file_keys = |round: usize| {
        let ways = ["over ssh", "standing agents"];
        ways.map(|way| format!("round {round}, one file of {bytes} bytes, {way}"))
    };
    bench.expect([(tree_key.clone(), 40.0)]);
    for round in 1..=ROUNDS {
        let seconds = bytes as f64 / 200e6;
        bench.expect(file_keys(round).map(|key| (key, seconds)));
    }
    bench.program_version("ssh", "-V");

    let mut table = Table::new(
        "copy from 3 replica hosts to 2 hosts, sealed, tree hash, uncapped",
        &COLUMNS,
    );
    let tree_copied = bench.point(&tree_key, || {
        measure(&site, &tree, false, Duration::from_secs(600))
    });
    let mut file_copied = |is_standing: bool, key: &str| {
        bench.point(key, || {
            let folder = site.scratch.join("large");
            fs::create_dir_all(&folder)?;
            write_noise(&folder.join("file"), bytes)?;
            let file = folder.join("file");
            let copied = measure(&site, &file, is_standing, Duration::from_secs(600));
            fs::remove_dir_all(&folder)?;
            copied
        })
    };
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        let [over_ssh, standing] = file_keys(round);
        rounds.push((file_copied(false, &over_ssh), file_copied(true, &standing)));
    }
    let ratios = rounds.iter().filter_map(|(over_ssh, standing)| {
        let rate = |copied: &Option<Copied>| Some(copied.as_ref()?.moved.megabits());
        Some(rate(over_ssh)? / rate(standing)?)
    });
    let ratios = spread(ratios, 2);
    let (file_copied, standing_copied) = rounds.into_iter().next().unwrap_or_default();
    bench.headline(
        "one file over ssh, of the same between standing agents",
        format!("{ratios} of the rate"),
    );
    for (case, copied) in [
        ("Rust toolchain over ssh", tree_copied),
        ("one file over ssh", file_copied),
        ("one file, standing agents", standing_copied),
    ] {
        let Some(copied) = copied else { continue };
        let report = &copied.moved.report;
        let agents: f64 = report.nodes.iter().map(|node| node.processor_seconds).sum();
        let processor = agents + copied.moved.master_processor_seconds;
        bench.headline(
            format!(
                "{case}, {} files, from 3 hosts to 2, contents {}",
                report.files, copied.comparison
            ),
            format!("{:.1} s", report.seconds),
        );
        table.row(vec![
            case.into(),
            number(report.files as f64, 0),
            number(report.delivered_bytes as f64, 0),
            number(report.seconds, 2),
            number(copied.moved.command_seconds, 2),
            number(copied.moved.megabits(), 0),
            number(
                report.files as f64 * COPIES.len() as f64 / report.seconds,
                0,
            ),
            number(processor / report.delivered_bytes as f64 * 1e9, 2),
            copied.comparison.into(),
        ]);
        for note in &report.notes {
            table.note(format!("{case}: {note}"));
        }
    }
    table.note("bytes: both copies. s: agents reachable to last safe byte. cpu: as the agents report it, and the master's.");
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn tree(root: &Path) {
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(root.join("d/x"), "contents").unwrap();
        symlink("d/x", root.join("link")).unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000);
        for path in ["d/x", "d", ""] {
            fs::File::open(root.join(path))
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
    }

    /// Every kind of difference is found: bytes, mode, time, target, more and less.
    #[test]
    fn differences() {
        let dir = tempfile::tempdir().unwrap();
        let changes: [fn(&Path); 5] = [
            |root| fs::write(root.join("d/x"), "kontents").unwrap(),
            |root| {
                fs::set_permissions(root.join("d/x"), fs::Permissions::from_mode(0o755)).unwrap()
            },
            |root| {
                fs::File::open(root.join("d"))
                    .unwrap()
                    .set_modified(std::time::UNIX_EPOCH)
                    .unwrap()
            },
            |root| fs::write(root.join("d/y"), "").unwrap(),
            |root| fs::remove_file(root.join("link")).unwrap(),
        ];
        let original = dir.path().join("original");
        tree(&original);
        for (index, change) in changes.into_iter().enumerate() {
            let copy = dir.path().join(format!("copy{index}"));
            tree(&copy);
            // A link's own time is that of its making.
            let link = walk(&copy).unwrap().remove(Path::new("link")).unwrap();
            assert_eq!(link.target.as_deref(), Some("d/x".as_ref()));
            change(&copy);
            assert!(compare(&original, &copy).is_err(), "change {index}");
        }
        assert_eq!(compare(&original, &original).unwrap(), 4);
    }
}
