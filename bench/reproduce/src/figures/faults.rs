//! Senders killed (`kill -9`) when half of the bytes have arrived: one of two replicas, and a sole holder.
//!
//! With a replica left the transfer completes, and what the user pays is a stall and the lost rate. Without, the
//! rest completes, the exit status is 3, and the report says exactly what is missing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::Lab;
use ropewalk_proto::report::Event;
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Settings, Site};
use crate::network::{MASTER, TCP_SHARE, capped, lab};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::table::{Table, number};

const SENDER_CAP: u64 = 100_000_000;
const RECEIVER_CAP: u64 = 200_000_000;

const COLUMNS: [(&str, &str); 9] = [
    ("case", "case"),
    ("outcome", "outcome"),
    ("exit_status", "exit"),
    ("seconds", "s"),
    ("least_seconds", "least s"),
    ("killed_at_percent", "killed at %"),
    ("longest_stall_seconds", "longest stall s"),
    ("missing", "missing"),
    ("contents", "contents"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Survived {
    moved: Moved,
    killed_at_bytes: u64,
    missing: Vec<(u64, u64)>,
    contents: String,
}

/// Bytes that repeat nowhere near: a xorshift generator's.
pub(crate) fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let mut file =
        fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let part = left.min(block.len() as u64);
        file.write_all(&block[..part as usize])?;
        left -= part;
    }
    // Replicas agree in time as well as in size.
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))?;
    Ok(())
}

fn build(site: &Site) -> Result<Lab> {
    let hosts = [("a1", SENDER_CAP), ("a2", SENDER_CAP), ("b1", RECEIVER_CAP)];
    lab(hosts.map(|(name, cap)| capped(name, cap)), site)
}

/// Moves with two senders and kills one of them at half way.
fn measure(site: &Site, bytes: u64, is_replica: bool) -> Result<Survived> {
    let lab = build(site)?;
    let expected = site.scratch.join("expected");
    write_noise(&expected, bytes)?;
    let mut agents = Agents::new(site)?;
    for host in ["a1", "a2"] {
        let path = lab.path_in(host, "/data/file");
        write_noise(&path, bytes)?;
        agents.start_in(&lab, host, &["/data".into()])?;
    }
    agents.start_in(&lab, "b1", &["/data:rw".into()])?;
    let arguments = match is_replica {
        true => words(&format!(
            "copy a1:{PORT}:/data/file a2:{PORT}:/data/file b1:{PORT}:/data/copy"
        )),
        false => {
            let half = bytes / 2;
            let spec = agents.spec(&format!(
                "writer a1:{PORT} /data/file 0 0+{half}\nwriter a2:{PORT} /data/file {half} {half}+{half}\n\
                 reader b1:{PORT} /data/copy 0 0+{bytes}\n"
            ))?;
            words(&format!("transfer --keep-partial {spec}"))
        }
    };
    let mut killed_at = None;
    let moved = agents.run(
        Place::Host(&lab, MASTER),
        &arguments,
        Duration::from_secs(180),
        |agents, event| {
            if let Event::Progress {
                delivered_bytes,
                total_bytes,
                ..
            } = event
                && killed_at.is_none()
                && *delivered_bytes * 2 >= *total_bytes
            {
                agents.kill("a2")?;
                killed_at = Some(*delivered_bytes);
            }
            Ok(())
        },
    )?;
    let killed_at_bytes = killed_at.context("the transfer ended before half of it was seen")?;
    let missing: Vec<(u64, u64)> = moved.report.missing.values().flatten().copied().collect();
    let result = find_result(&lab.path_in("b1", "/data"))?;
    let contents = check(&result, &expected, bytes, &missing)?;
    let missing_bytes: u64 = missing.iter().map(|range| range.1 - range.0).sum();
    ensure!(
        moved.report.delivered_bytes + missing_bytes == moved.report.wanted_bytes,
        "{} delivered and {missing_bytes} missing are not {}",
        moved.report.delivered_bytes,
        moved.report.wanted_bytes
    );
    let name = result
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let contents = format!("{contents} in {name}");
    let agents = agents.stop()?;
    Ok(Survived {
        moved: Moved { agents, ..moved },
        killed_at_bytes,
        missing,
        contents,
    })
}

/// The copy, or what stands in its place when it is not complete.
fn find_result(folder: &Path) -> Result<PathBuf> {
    let copy = folder.join("copy");
    if copy.exists() {
        return Ok(copy);
    }
    let entry = fs::read_dir(folder)?
        .next()
        .context("nothing is left in the receiver's folder")?;
    Ok(entry?.path())
}

/// Compares all but the missing ranges.
fn check(result: &Path, expected: &Path, bytes: u64, missing: &[(u64, u64)]) -> Result<String> {
    let (result, expected) = (fs::File::open(result)?, fs::File::open(expected)?);
    let mut missing = missing.to_vec();
    missing.sort_unstable();
    missing.push((bytes, bytes));
    let (mut at, mut compared) = (0, 0);
    let mut blocks = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for (start, end) in missing {
        while at < start {
            let part = (start - at).min(1 << 20) as usize;
            result
                .read_exact_at(&mut blocks.0[..part], at)
                .context("the copy is too short")?;
            expected.read_exact_at(&mut blocks.1[..part], at)?;
            ensure!(
                blocks.0[..part] == blocks.1[..part],
                "bytes {at}-{} differ",
                at + part as u64 - 1
            );
            at += part as u64;
            compared += part as u64;
        }
        at = at.max(end);
    }
    Ok(format!("{compared} bytes equal"))
}

/// Makes the table of faults.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "faults")?;
    let site = bench.site();
    let bytes: u64 = if settings.quick { 64 << 20 } else { 256 << 20 };
    let cases = [
        ("one of two replicas", true),
        ("sole holder of a half", false),
    ];
    let key = |case: &str| format!("{case} killed, {bytes} bytes");
    bench.expect(cases.map(|(case, _)| (key(case), bytes as f64 * 8.0 / 150e6 + 2.0)));

    let mut table = Table::new(
        "kill -9 of a sender at half way: two senders at 100 Mbit/s, a receiver at 200",
        &COLUMNS,
    );
    for (case, is_replica) in cases {
        let Some(ran) = bench.point(&key(case), || measure(&site, bytes, is_replica)) else {
            continue;
        };
        let report = &ran.moved.report;
        let rate = SENDER_CAP as f64 * TCP_SHARE / 8.0;
        let before = ran.killed_at_bytes as f64 / rate / 2.0;
        // A replica must send the rest alone; without one, the survivor's part has as much left as it has.
        let left = if is_replica {
            bytes
        } else {
            bytes / 2 + ran.killed_at_bytes / 2
        };
        let after = left.saturating_sub(ran.killed_at_bytes) as f64 / rate;
        let ranges: Vec<String> = ran
            .missing
            .iter()
            .map(|(start, end)| format!("{start}-{}", end - 1))
            .collect();
        bench.headline(
            format!("{case} killed at half way"),
            format!(
                "{:?}, longest pause {:.2} s",
                report.outcome, report.longest_stall_seconds
            ),
        );
        table.row(vec![
            case.into(),
            format!("{:?}", report.outcome).into(),
            number(f64::from(ran.moved.exit), 0),
            number(report.seconds, 2),
            number(before + after, 2),
            number(ran.killed_at_bytes as f64 / bytes as f64 * 100.0, 1),
            number(report.longest_stall_seconds, 3),
            if ranges.is_empty() {
                "none".into()
            } else {
                format!("{} ranges", ranges.len()).into()
            },
            ran.contents.into(),
        ]);
        if !ranges.is_empty() {
            table.note(format!("{case}: missing (inclusive) {}", ranges.join(", ")));
        }
        if let Some(error) = &report.error {
            table.note(format!("{case}: {error}"));
        }
        for note in &report.notes {
            table.note(format!("{case}: {note}"));
        }
    }
    table.note("least s: what the caps allow, with the rest from the survivor alone.");
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong byte is found wherever it is told to be present, and not looked at where it is missing.
    #[test]
    fn contents() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let bytes = 3_000_000;
        write_noise(&a, bytes).unwrap();
        write_noise(&b, bytes).unwrap();
        assert_eq!(check(&a, &b, bytes, &[]).unwrap(), "3000000 bytes equal");
        fs::OpenOptions::new()
            .write(true)
            .open(&a)
            .unwrap()
            .write_all_at(b"????", 2_000_000)
            .unwrap();
        assert!(check(&a, &b, bytes, &[]).is_err());
        assert!(check(&a, &b, bytes, &[(0, 2_000_000)]).is_err());
        assert!(
            check(
                &a,
                &b,
                bytes,
                &[(2_000_004, 2_100_000), (1_999_999, 2_000_004)]
            )
            .is_ok()
        );
    }
}
