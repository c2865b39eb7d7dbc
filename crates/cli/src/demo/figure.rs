//! Figure 2 of the paper: its rows, its specification with other addresses, and the check of its copies.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use ropewalk_model::{ByteRate, PlannedTransfer, TransferSpec, format_bytes};

use super::content;

/// One row of Figure 2, in quarters of the data file.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) writes: bool,
    pub(super) file: &'static str,
    /// Quarters before the row's bytes in its file.
    file_quarter: u64,
    /// First and last but one quarter of the data.
    pub(super) quarters: (u64, u64),
}

const fn row(
    name: &'static str,
    writes: bool,
    file: &'static str,
    file_quarter: u64,
    quarters: (u64, u64),
) -> Node {
    Node {
        name,
        writes,
        file,
        file_quarter,
        quarters,
    }
}

/// CEP Figure 2, in its order; node7's part of `copy1` starts in the middle of the file.
pub(super) const FIGURE_2: [Node; 7] = [
    row("node1", true, "half1", 0, (0, 1)),
    row("node2", true, "half1", 1, (1, 2)),
    row("n3", true, "half2", 0, (2, 3)),
    row("n4", true, "half2", 1, (3, 4)),
    row("node5", false, "copy1", 0, (0, 2)),
    row("node7", false, "copy1", 2, (2, 4)),
    row("node6", false, "copy2", 0, (0, 4)),
];

/// Figure 2 with the agents' addresses and the demonstration's sizes.
pub(super) fn specification(folder: &Path, addresses: &[String], size: u64) -> String {
    let quarter = size / 4;
    let mut text = String::from(
        "id \"My Data File\"\nmaster localhost:55555  # nothing listens there: this command is the master\n",
    );
    for (node, address) in FIGURE_2.iter().zip(addresses) {
        let kind = if node.writes { "writer" } else { "reader" };
        let uri = format!("\"{}\"", file_uri(&folder.join(node.name).join(node.file)));
        let (first, last) = (node.quarters.0 * quarter, node.quarters.1 * quarter - 1);
        let offset = node.file_quarter * quarter;
        text.push_str(&format!(
            "{kind}  {address:<16}  {uri}  {offset:<9}  {first}-{last}  # {}\n",
            node.name
        ));
    }
    text
}

fn file_uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    // Canonical paths are absolute and hold no zero byte; as they stand they would only lack quoting.
    ropewalk_model::spec::FilePath::new(path.as_os_str().as_bytes()).map_or_else(
        |_| path.display().to_string(),
        |path| ropewalk_model::Uri::File(path).to_string(),
    )
}

/// The plan with the figure's names. Every byte has one holder there, so this is also what happens.
pub(super) fn who_sends(spec: &TransferSpec, addresses: &[String]) -> Result<String> {
    // Any equal speed gives the same plan.
    let problem = spec.to_problem(ByteRate(1));
    let plan = ropewalk_sched::plan_output(&problem, ropewalk_sched::by_name("auto")?.as_ref())?;
    let name = |address: &str| {
        addresses
            .iter()
            .position(|a| a == address)
            .map_or("?", |at| FIGURE_2[at].name)
    };
    let line = |run: &PlannedTransfer| {
        let bytes = format_bytes(run.end - run.start);
        format!(
            "{:<5} -> {:<5}  {}-{}  {bytes}\n",
            name(&run.writer),
            name(&run.reader),
            run.start,
            run.end.saturating_sub(1)
        )
    };
    Ok(plan.transfers.iter().map(line).collect())
}

/// Compares each reader's own range with the writers' files, byte for byte.
pub(super) fn compare(folder: &Path, size: u64) -> Result<bool> {
    let quarter = size / 4;
    let mut equal = true;
    let mut out = std::io::stdout().lock();
    for reader in FIGURE_2.iter().filter(|node| !node.writes) {
        let copy = folder.join(reader.name).join(reader.file);
        let mut difference = None;
        for writer in FIGURE_2.iter().filter(|node| node.writes) {
            let (first, end) = (
                writer.quarters.0.max(reader.quarters.0),
                writer.quarters.1.min(reader.quarters.1),
            );
            if first >= end {
                continue;
            }
            let source = folder.join(writer.name).join(writer.file);
            let source_at = (writer.file_quarter + first - writer.quarters.0) * quarter;
            let copy_at = (reader.file_quarter + first - reader.quarters.0) * quarter;
            let found = content::first_difference(
                (&source, source_at),
                (&copy, copy_at),
                (end - first) * quarter,
            )?;
            difference = difference.or(found.map(|at| first * quarter + at));
        }
        let (first, last) = (reader.quarters.0 * quarter, reader.quarters.1 * quarter - 1);
        let verdict = match difference {
            None => "equal".to_owned(),
            Some(at) => format!("DIFFERENT at byte {at}"),
        };
        equal &= difference.is_none();
        let _ = writeln!(
            out,
            "  {}  {}  {first}-{last}  {verdict}",
            reader.name, reader.file
        );
    }
    Ok(equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the paper's size, the rows have the paper's offsets and ranges.
    #[test]
    fn the_specification_is_figure_2() {
        let addresses: Vec<String> = (1..=7).map(|port| format!("127.0.0.1:{port}")).collect();
        let text = specification(Path::new("/demo dir"), &addresses, 4096);
        let spec = TransferSpec::parse(&text).unwrap();
        let rows: Vec<(u64, u64, u64)> = spec
            .rows
            .iter()
            .map(|r| (r.file_offset, r.range.start, r.range.end - 1))
            .collect();
        let paper = [
            (0, 0, 1023),
            (1024, 1024, 2047),
            (0, 2048, 3071),
            (1024, 3072, 4095),
            (0, 0, 2047),
            (2048, 2048, 4095),
            (0, 0, 4095),
        ];
        assert_eq!(rows, paper);
        assert!(text.contains("file:///demo%20dir/node7/copy1"), "{text}");
        assert!(
            who_sends(&spec, &addresses)
                .unwrap()
                .contains("n4    -> node7  3072-4095  1.02 kB")
        );
    }

    /// A copy that differs in one byte of the reader's range is found, at the right place; bytes
    /// before node7's part do not count.
    #[test]
    fn differences_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for node in &FIGURE_2 {
            std::fs::create_dir(dir.path().join(node.name)).unwrap();
        }
        let mut data = Vec::new();
        for (half, holders) in [["node1", "node2"], ["n3", "n4"]].into_iter().enumerate() {
            for holder in holders {
                let file = dir.path().join(holder).join(format!("half{}", half + 1));
                content::make_half(&file, half as u64, 2048).unwrap();
                if holder.ends_with(['1', '3']) {
                    data.extend(std::fs::read(file).unwrap());
                }
            }
        }
        std::fs::write(dir.path().join("node5/copy1"), &data[..2048]).unwrap();
        std::fs::write(dir.path().join("node6/copy2"), &data).unwrap();
        let mut with_hole = data.clone();
        with_hole[..2048].fill(0);
        std::fs::write(dir.path().join("node7/copy1"), &with_hole).unwrap();
        assert!(compare(dir.path(), 4096).unwrap());
        with_hole[3000] ^= 1;
        std::fs::write(dir.path().join("node7/copy1"), &with_hole).unwrap();
        assert!(!compare(dir.path(), 4096).unwrap());
        std::fs::write(dir.path().join("node7/copy1"), &data[..4000]).unwrap();
        assert!(!compare(dir.path(), 4096).unwrap(), "a short copy passed");
    }
}
