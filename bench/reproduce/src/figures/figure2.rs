//! CEP Figure 2: the paper's specification file, byte for byte, run between hosts of those names and addresses.
//!
//! Each reader's own range is compared; `copy1` on node7 has a hole before byte 2048.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::{HostSpec, Lab, LabBuilder};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::network::with_program;
use crate::process;
use crate::ropewalk::{Agents, Moved, Place, words};
use crate::table::{Table, number};

/// The file as printed in the paper.
const SPECIFICATION: &str = include_str!("../../data/figure2.cep");

/// The writers' hosts and ports.
const WRITERS: [(&str, u16); 4] = [
    ("node1", 55553),
    ("node2", 55554),
    ("192.168.3.4", 55555),
    ("192.168.3.5", 55555),
];

/// A reader, its port, its file, and its range in file and data space (they are equal in Figure 2).
const READERS: [(&str, u16, &str, u64, u64); 3] = [
    ("node5", 55557, "/tmp/copy1", 0, 2048),
    ("node7", 55559, "/tmp/copy1", 2048, 4096),
    ("node6", 55558, "/tmp/copy2", 0, 4096),
];

const COLUMNS: [(&str, &str); 5] = [
    ("node", "node"),
    ("file", "file"),
    ("compared_range", "compared"),
    ("comparison", "cmp"),
    ("file_bytes", "file bytes"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Checked {
    node: String,
    file: String,
    range: String,
    comparison: String,
    file_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ran {
    moved: Moved,
    checked: Vec<Checked>,
    temporary_files_left: usize,
}

/// A byte that tells its own place, so that a swapped range shows.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn data() -> Vec<u8> {
    (0..4096).map(byte).collect()
}

fn build(site: &Site) -> Result<Lab> {
    let names = WRITERS
        .iter()
        .map(|writer| writer.0)
        .chain(READERS.iter().map(|reader| reader.0));
    let builder = with_program(LabBuilder::new().hosts(names.map(HostSpec::new)), site);
    builder.build().context("cannot build the lab")
}

fn measure(site: &Site) -> Result<Ran> {
    let lab = build(site)?;
    let data = data();
    let mut agents = Agents::new(site)?;
    for (host, port) in WRITERS {
        let (name, half) = match host {
            "node1" | "node2" => ("half1", &data[..2048]),
            _ => ("half2", &data[2048..]),
        };
        let path = lab.path_in(host, format!("/data/{name}"));
        fs::write(&path, half).with_context(|| format!("cannot write {}", path.display()))?;
        agents.start(
            Place::Host(&lab, host),
            host,
            &format!("0.0.0.0:{port}"),
            &["/data".into()],
        )?;
    }
    for (host, port, ..) in READERS {
        agents.start(
            Place::Host(&lab, host),
            host,
            &format!("0.0.0.0:{port}"),
            &["/tmp:rw".into()],
        )?;
    }
    let spec = agents.spec(SPECIFICATION)?;
    let moved = agents.run_once(
        Place::Host(&lab, "node1"),
        &words(&format!("transfer {spec}")),
        Duration::from_secs(60),
    )?;

    let expected = site.scratch.join("expected");
    fs::write(&expected, &data)?;
    let mut checked = Vec::new();
    let mut left = 0;
    for (host, _, file, start, end) in READERS {
        let path = lab.path_in(host, file);
        let bytes = fs::metadata(&path)
            .with_context(|| format!("{host} has no {file}"))?
            .len();
        compare(&path, &expected, start, end)?;
        let hole = fs::read(&path)?.into_iter().take(start as usize);
        ensure!(
            hole.into_iter().all(|byte| byte == 0),
            "{file} on {host} has bytes before {start}"
        );
        left += fs::read_dir(lab.path_in(host, "/tmp"))?.count() - 1;
        checked.push(Checked {
            node: host.into(),
            file: file.into(),
            range: format!("{start}-{}", end - 1),
            comparison: "equal".into(),
            file_bytes: bytes,
        });
    }
    Ok(Ran {
        moved,
        checked,
        temporary_files_left: left,
    })
}

/// `cmp` over one range; an error names the first byte that differs.
fn compare(path: &Path, expected: &Path, start: u64, end: u64) -> Result<()> {
    let mut command = Command::new("cmp");
    command.args(["-i", &start.to_string(), "-n", &(end - start).to_string()]);
    command.arg(path).arg(expected);
    process::run(command, Duration::from_secs(20)).map(drop)
}

/// Runs Figure 2's file.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "figure2")?;
    let site = bench.site();
    let key = "figure 2";
    bench.expect([(key.into(), 2.0)]);
    let mut table = Table::new(
        "CEP Figure 2: the paper's file between hosts of its names, compared with cmp",
        &COLUMNS,
    );
    if let Some(ran) = bench.point(key, || measure(&site)) {
        for file in ran.checked {
            table.row(vec![
                file.node.into(),
                file.file.into(),
                file.range.into(),
                file.comparison.into(),
                number(file.file_bytes as f64, 0),
            ]);
        }
        let report = &ran.moved.report;
        table.note(format!(
            "outcome {:?}, {} of {} bytes in {:.3} s; other files left in the readers' folders: {}",
            report.outcome,
            report.delivered_bytes,
            report.wanted_bytes,
            report.seconds,
            ran.temporary_files_left
        ));
    }
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The embedded file is the paper's: its rows, comments and columns, and nothing after.
    #[test]
    fn the_paper_s_file() {
        let lines: Vec<&str> = SPECIFICATION.lines().collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[0], "id \"My Data File\"");
        assert_eq!(
            lines[2],
            "master       localhost:55555     #(Local namespace)   (Global namespace)"
        );
        assert_eq!(
            lines[8],
            "reader      node7:55559        \"file:///tmp/copy1\"  2048                   2048-4095"
        );
    }

    /// A wrong byte inside the range is found, one outside is not looked at.
    #[test]
    fn comparison() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, data()).unwrap();
        let mut other = data();
        other[100] ^= 1;
        fs::write(&b, other).unwrap();
        assert!(compare(&a, &b, 0, 100).is_ok());
        assert!(compare(&a, &b, 101, 4096).is_ok());
        assert!(compare(&a, &b, 0, 4096).is_err());
    }
}
