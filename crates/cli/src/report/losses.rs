//! What is missing, what was wrong and what is left: printed whatever else is asked for.

use std::fmt::Write as _;

use ropewalk_model::format_bytes;
use ropewalk_proto::report::Report;

use super::brief::files_or_folders;
use crate::escape;
use crate::numbers::count;

/// Files and ranges that did not come, and places, that are shown; the JSON report has all.
const LINES_MAX: usize = 8;

/// Ranges shown for each receiver that misses some.
const RANGES_MAX: usize = 3;

/// Notes shown.
const NOTES_MAX: usize = 8;

/// What is missing, what was wrong and what is left, as lines.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_files(&mut out, report);
    let _ = write_ranges(&mut out, report);
    let _ = write_left_out(&mut out, report);
    let _ = write_not_placed(&mut out, report);
    let _ = write_not_removed(&mut out, report);
    let _ = write_wrong(&mut out, report);
    let _ = write_left(&mut out, report);
    out
}

fn write_files(out: &mut String, report: &Report) -> std::fmt::Result {
    let several = report.destinations.len() > 1;
    for missing in report.missing_files.iter().take(LINES_MAX) {
        let node = match several {
            true => format!("{}: ", escape::line(&missing.node)),
            false => String::new(),
        };
        writeln!(
            out,
            "missing    {node}{} ({}): {}",
            escape::name(&missing.file),
            format_bytes(missing.bytes),
            escape::line(&missing.reason)
        )?;
    }
    let more =
        report.missing_files.len().saturating_sub(LINES_MAX) as u64 + report.missing_files_more;
    if more > 0 {
        writeln!(out, "           and {}", count(more, "more file"))?;
    }
    Ok(())
}

/// Ranges of receivers that reported no files.
fn write_ranges(out: &mut String, report: &Report) -> std::fmt::Result {
    let names_files = |node: &str| report.missing_files.iter().any(|file| file.node == node);
    for (receiver, ranges) in report.missing.iter().filter(|(node, _)| !names_files(node)) {
        let shown: Vec<String> = ranges
            .iter()
            .take(RANGES_MAX)
            .map(|(start, end)| format!("{start}-{}", end.saturating_sub(1)))
            .collect();
        let more = ranges.len().saturating_sub(RANGES_MAX) as u64;
        let more = if more > 0 {
            format!(" and {}", count(more, "more range"))
        } else {
            String::new()
        };
        let bytes: u64 = ranges
            .iter()
            .map(|(start, end)| end.saturating_sub(*start))
            .sum();
        writeln!(
            out,
            "missing    {}: {} (bytes {}{more})",
            escape::line(receiver),
            format_bytes(bytes),
            shown.join(", ")
        )?;
    }
    Ok(())
}

fn write_left_out(out: &mut String, report: &Report) -> std::fmt::Result {
    let all = report.left_out.iter();
    let all = all.map(|one| [&*one.node, &one.file, &one.reason]);
    write_reasons(out, "left out   ", all, report.left_out_more)
}

fn write_not_placed(out: &mut String, report: &Report) -> std::fmt::Result {
    let landing = &report.landing;
    let all = landing.not_placed.iter();
    let all = all.map(|one| [&*one.node, &one.file, &one.reason]);
    write_reasons(out, "not placed  ", all, landing.not_placed_more)
}

fn write_not_removed(out: &mut String, report: &Report) -> std::fmt::Result {
    let landing = &report.landing;
    let all = landing.not_removed.iter();
    let all = all.map(|one| [&*one.node, &one.file, &one.reason]);
    write_reasons(out, "not removed  ", all, landing.not_removed_more)
}

/// Nodes, files or folders of theirs, and reasons: the first ones, and how many more there are.
///
/// * `unnamed`: how many the report does not name.
fn write_reasons<'r>(
    out: &mut String,
    label: &str,
    mut all: impl ExactSizeIterator<Item = [&'r str; 3]>,
    unnamed: u64,
) -> std::fmt::Result {
    for [node, file, reason] in all.by_ref().take(LINES_MAX) {
        let (node, file) = (escape::line(node), escape::name(file));
        writeln!(out, "{label}{node}: {file}: {}", escape::line(reason))?;
    }
    let more = all.len() as u64 + unnamed;
    if more > 0 {
        writeln!(out, "           and {} more", files_or_folders(more))?;
    }
    Ok(())
}

/// What an earlier run left and this one has not taken over.
fn write_wrong(out: &mut String, report: &Report) -> std::fmt::Result {
    let landing = &report.landing;
    for one in landing.wrong.iter().take(LINES_MAX) {
        let (node, file) = (escape::line(&one.node), escape::name(&one.file));
        writeln!(
            out,
            "wrong      {node}: {file}: {} that an earlier run left are not what it recorded, and were not taken over",
            format_bytes(one.bytes)
        )?;
    }
    let shown = landing.wrong.len().saturating_sub(LINES_MAX) as u64;
    let more = shown + landing.wrong_more;
    if more > 0 {
        writeln!(out, "           and {}", count(more, "more file"))?;
    }
    Ok(())
}

fn write_left(out: &mut String, report: &Report) -> std::fmt::Result {
    for left in report.left.iter().take(LINES_MAX) {
        let (node, path) = (escape::line(&left.node), escape::line(&left.path));
        let size = format_bytes(left.bytes);
        let size = match left.certain {
            true => size,
            false => format!("about {size}, if its agent was killed"),
        };
        let what = match (left.kept, left.valid_bytes) {
            _ if left.resumable => "safe: the same command goes on from there".to_owned(),
            (false, _) => "nothing uses it, remove it".to_owned(),
            (true, None) => "kept, as --keep-partial asks".to_owned(),
            (true, Some(valid)) => {
                let valid = format_bytes(valid);
                format!("kept, as --keep-partial asks; {valid} of it are valid")
            }
        };
        writeln!(out, "left       {node}: {path}, {size}; {what}")?;
    }
    let more = report.left.len().saturating_sub(LINES_MAX);
    if more > 0 {
        writeln!(out, "           and {more} more (--json has all)")?;
    }
    Ok(())
}

/// The first notes, and how many more there are.
pub(super) fn notes(notes: &[&String]) -> String {
    let mut out = String::new();
    for note in notes.iter().take(NOTES_MAX) {
        let _ = writeln!(out, "note       {}", escape::line(note));
    }
    let more = notes.len().saturating_sub(NOTES_MAX) as u64;
    if more > 0 {
        let _ = writeln!(
            out,
            "           and {} (--json has all)",
            count(more, "more note")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{LeftReport, MissingFile, WrongReport};

    use super::super::sample::report;
    use super::*;

    /// Files that did not come are named with the reason, places with what to do; names stay on their lines.
    #[test]
    fn what_is_lost_is_named() {
        let mut report = report();
        assert_eq!(
            text(&report).lines().next(),
            Some("missing    b: 1.02 kB (bytes 0-1023, 2048-2048)")
        );
        report.missing_files = vec![MissingFile {
            node: "b".into(),
            file: "big/f\x1b5".into(),
            bytes: 30_000_000,
            reason: "it vanished while it was copied".into(),
        }];
        report.missing_files_more = 1;
        report.landing.wrong = vec![WrongReport {
            node: "b".into(),
            file: "big/f6".into(),
            bytes: 2_000_000,
        }];
        report.landing.wrong_more = 2;
        report.left = vec![
            LeftReport {
                node: "b".into(),
                path: "/x/.set.ropewalk-1".into(),
                bytes: 5000,
                certain: true,
                kept: false,
                resumable: false,
                valid_bytes: None,
            },
            LeftReport {
                node: "b".into(),
                path: "/x/.kept.ropewalk-1".into(),
                bytes: 5000,
                certain: true,
                kept: true,
                resumable: false,
                valid_bytes: Some(1000),
            },
            LeftReport {
                node: "c".into(),
                path: "/x/.set.ropewalk-2".into(),
                bytes: 5000,
                certain: false,
                kept: false,
                resumable: false,
                valid_bytes: None,
            },
        ];
        assert_eq!(
            text(&report),
            "missing    big/f\\u{1b}5 (30 MB): it vanished while it was copied\n           \
             and 1 more file\n\
             wrong      b: big/f6: 2 MB that an earlier run left are not what it recorded, and were not taken over\n           \
             and 2 more files\n\
             left       b: /x/.set.ropewalk-1, 5 kB; nothing uses it, remove it\n\
             left       b: /x/.kept.ropewalk-1, 5 kB; kept, as --keep-partial asks; 1 kB of it are valid\n\
             left       c: /x/.set.ropewalk-2, about 5 kB, if its agent was killed; nothing uses it, remove it\n"
        );
    }
}
