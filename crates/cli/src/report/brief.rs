//! The first line: what moved, how long it took; how many copies are complete where not all are.

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::report::{DestinationReport, DryRunReport, Outcome, Report};

use super::full::listed;
use crate::escape;
use crate::numbers::{count, thousands};
use crate::progress::rate;

/// So many files, of so few bytes each, are a transfer of files rather than of bytes.
const MANY_FILES: u64 = 1_000;
const SMALL_FILE: u64 = 64 << 10;

/// The outcome in one line, without a newline.
pub(super) fn headline(report: &Report) -> String {
    match report.outcome {
        Outcome::Done | Outcome::Partial if report.dry_run.is_some() => dry_run(report),
        Outcome::Done | Outcome::Partial if report.check.is_some() => check(report),
        Outcome::Done => done(report),
        Outcome::Cancelled => cancelled(report),
        Outcome::Partial => format!("PARTIAL: {}", incomplete(report)),
        Outcome::Failed => format!("FAILED: {}", incomplete(report)),
        Outcome::Refused => "REFUSED: nothing moved".to_owned(),
    }
}

/// `1 file or folder`, `1,200 files or folders`.
pub(super) fn files_or_folders(number: u64) -> String {
    format!(
        "{} or folder{}",
        count(number, "file"),
        if number == 1 { "" } else { "s" }
    )
}

fn size(report: &Report) -> String {
    let mut out = format_bytes(report.delivered_bytes);
    if report.delivered_bytes != report.wanted_bytes {
        out += &format!(" of {}", format_bytes(report.wanted_bytes));
    }
    if let Some(files) = sent_files(report) {
        out += &format!(" in {}", count(files, "file"));
    }
    out
}

/// How many files are sent, which is not known where some were there.
fn sent_files(report: &Report) -> Option<u64> {
    let there = report.landing.unchanged_files + report.landing.kept_files;
    (report.files > 0 && there == 0).then_some(report.files)
}

/// How fast it was, with files per second where each takes longer than its bytes: `2.2 Mbit/s, 40,800 files/s`.
fn speed(report: &Report) -> String {
    let mut out = rate(report.bits_per_second);
    // Those that an earlier run has sent are not known one by one.
    let is_all = report.delivered_bytes.saturating_add(report.zero_bytes) == report.wanted_bytes
        && report.landing.resumed_bytes + report.landing.taken_bytes == 0;
    let files = sent_files(report).filter(|files| {
        is_all
            && *files >= MANY_FILES
            && report.delivered_bytes / files < SMALL_FILE
            && report.seconds > 0.0
    });
    if let Some(files) = files {
        let per_second = (files as f64 / report.seconds) as u64;
        out += &format!(", {} files/s", thousands(per_second));
    }
    out
}

/// What the destinations had already: `199 files (39.8 MB) unchanged`.
fn unchanged(report: &Report) -> Option<String> {
    let (files, bytes) = (
        report.landing.unchanged_files,
        report.landing.unchanged_bytes,
    );
    let size = format_bytes(bytes);
    (files > 0).then(|| format!("{} ({size}) unchanged", count(files, "file")))
}

/// What the destinations had otherwise, and keep: `2 files (8 kB) left alone`.
fn kept(report: &Report) -> Option<String> {
    let (files, bytes) = (report.landing.kept_files, report.landing.kept_bytes);
    let size = format_bytes(bytes);
    (files > 0).then(|| format!("{} ({size}) left alone", count(files, "file")))
}

/// What no source has and is gone, as a line of its own: `removed    2 files and 1 folder in 51.8 s`.
pub(super) fn removed(report: &Report) -> Option<String> {
    let (files, folders) = (report.landing.removed_files, report.landing.removed_folders);
    let is_any = files + folders > 0;
    is_any.then(|| {
        let time = format_seconds(report.removing_seconds);
        format!("removed    {} in {time}", names(files, folders))
    })
}

/// How long nodes were waited for in all: `waited 34 s for b`.
fn waited(report: &Report) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for name in report.interruptions.iter().flat_map(|one| &one.awaited) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let seconds = report.interruptions.iter().map(|one| one.seconds).sum();
    let is_any = !names.is_empty();
    is_any.then(|| format!("waited {} for {}", format_seconds(seconds), listed(&names)))
}

/// What is there beside the bytes that were sent, each after a semicolon.
fn there(report: &Report) -> String {
    let resumed = report.landing.resumed_bytes;
    let resumed = (resumed > 0).then(|| format!("{} from an earlier run", format_bytes(resumed)));
    let taken = report.landing.taken_bytes;
    let taken = (taken > 0).then(|| format!("{} from the files replaced", format_bytes(taken)));
    let zeros = report.zero_bytes;
    let zeros = (zeros > 0).then(|| format!("{} of zeros not sent", format_bytes(zeros)));
    let there = [
        unchanged(report),
        kept(report),
        resumed,
        taken,
        zeros,
        waited(report),
    ];
    let there = there.into_iter().flatten();
    there.map(|text| format!("; {text}")).collect()
}

fn label(report: &Report) -> String {
    let label = report.label.as_deref().map(escape::line);
    label.map_or_else(String::new, |label| format!(" ({label})"))
}

/// How several sources of a copy relate, which was found out and not said, and how many copies they became.
fn sources(report: &Report) -> String {
    let copies = match report.destinations.len() as u64 {
        0 | 1 => None,
        copies => Some(format!("{copies} copies")),
    };
    // What was not compared may differ; a reader of this line only should know.
    let sampled = match &report.replicas {
        Some(found) if found.compared == "sample" && found.compared_units < found.units => {
            " (compared by a sample)"
        }
        _ => "",
    };
    match (&report.sources, copies) {
        (None, None) => String::new(),
        (None, Some(copies)) => format!(", {copies}"),
        (Some(found), None) => format!(", sources: {found}{sampled}"),
        (Some(found), Some(copies)) => format!(", sources: {found}{sampled} -> {copies}"),
    }
}

fn done(report: &Report) -> String {
    let time = format_seconds(report.seconds);
    let stays: Vec<String> = [unchanged(report), kept(report)]
        .into_iter()
        .flatten()
        .collect();
    if !stays.is_empty()
        && report.wanted_bytes + report.landing.resumed_bytes + report.landing.taken_bytes == 0
        && report
            .landing
            .merged
            .iter()
            .all(|merged| merged.added_files + merged.replaced_files == 0)
    {
        let (sources, label) = (sources(report), label(report));
        return format!(
            "done: nothing to send, {}{sources}, {time}{label}",
            stays.join("; ")
        );
    }
    format!(
        "done: {}{}, {time}, {}{}{}",
        size(report),
        sources(report),
        speed(report),
        there(report),
        label(report)
    )
}

/// What would be done: `send 5.2 MB in 3 files, make 1 folder`.
fn totals(found: &DryRunReport) -> String {
    let mut out = format!(
        "send {} in {}",
        format_bytes(found.send_bytes),
        count(found.send_files, "file")
    );
    if found.make_folders > 0 {
        out += &format!(", make {}", count(found.make_folders, "folder"));
    }
    match (found.remove_files, found.remove_folders) {
        (0, 0) => {}
        (files, folders) => {
            let size = format_bytes(found.remove_bytes);
            out += &format!(", remove {} ({size})", names(files, folders));
        }
    }
    if found.set_metadata > 0 {
        let names = count(found.set_metadata, "name");
        out += &format!(", set mode, time or owner of {names}");
    }
    out
}

/// `2 files and 1 folder`, or one of these.
fn names(files: u64, folders: u64) -> String {
    let (of_files, of_folders) = (count(files, "file"), count(folders, "folder"));
    match (files, folders) {
        (_, 0) => of_files,
        (0, _) => of_folders,
        (_, _) => format!("{of_files} and {of_folders}"),
    }
}

/// The outcome of a dry run.
fn dry_run(report: &Report) -> String {
    let found = report.dry_run.unwrap_or_default();
    format!(
        "dry run: would {}{}{}{}",
        totals(&found),
        sources(report),
        there(report),
        label(report)
    )
}

/// The outcome of a comparison: `equal: 12 files (4 MB), 2 s`, `differ: 1 missing, 2 contents; 9 files (3 MB) equal, 2 s`.
fn check(report: &Report) -> String {
    let found = report.check.unwrap_or_default();
    let (files, bytes) = (
        report.landing.unchanged_files,
        report.landing.unchanged_bytes,
    );
    let equal = format!("{} ({})", count(files, "file"), format_bytes(bytes));
    let (time, label) = (format_seconds(report.seconds), label(report));
    if found.differing() == 0 {
        return format!("equal: {equal}, {time}{label}");
    }
    let kinds = [
        (found.missing, "missing"),
        (found.extra, "extra"),
        (found.kind, "kind"),
        (found.size, "size"),
        (found.contents, "contents"),
        (found.metadata, "metadata"),
        (found.unreadable, "unreadable"),
    ];
    let kinds = kinds.iter().filter(|(names, _)| *names > 0);
    let kinds: Vec<String> = kinds.map(|(names, how)| format!("{names} {how}")).collect();
    format!("differ: {}; {equal} equal, {time}{label}", kinds.join(", "))
}

fn cancelled(report: &Report) -> String {
    let safe = match (report.delivered_bytes, report.wanted_bytes) {
        (0, 0) => return format!("CANCELLED before anything moved{}", label(report)),
        (0, _) => "no data was on stable storage yet".to_owned(),
        _ => format!("{} were on stable storage", size(report)),
    };
    let kept = match complete(report) {
        named if named.is_empty() && !report.left.is_empty() => {
            "what is left is named below".to_owned()
        }
        named if named.is_empty() => match files_with_names(report) {
            0 => "the partial copy was removed".to_owned(),
            files => format!("{} complete, the rest is removed", are(files)),
        },
        named => format!(
            "the copy of {} is complete, the rest is removed",
            listed(&named)
        ),
    };
    format!("CANCELLED: {safe}; {kept}{}", label(report))
}

fn name(destination: &DestinationReport) -> String {
    let name = match destination.nodes.as_slice() {
        [one] => one.clone(),
        several => several.join("+"),
    };
    escape::line(&name)
}

/// Files that have their names in copies that are not complete.
fn files_with_names(report: &Report) -> u64 {
    let incomplete = report.destinations.iter().filter(|one| !one.complete);
    incomplete.map(|one| one.files).sum()
}

/// `1 file is`, `52,073 files are`.
fn are(files: u64) -> String {
    let verb = if files == 1 { "is" } else { "are" };
    format!("{} {verb}", count(files, "file"))
}

fn complete(report: &Report) -> Vec<String> {
    let complete = report.destinations.iter().filter(|one| one.complete);
    complete.map(name).collect()
}

/// Whether a node that writes there is gone, and has removed nothing.
fn is_lost(report: &Report, destination: &DestinationReport) -> bool {
    let mut failed = report.nodes.iter().filter(|node| node.error.is_some());
    !report.losses.is_empty() && failed.any(|node| destination.nodes.contains(&node.node))
}

/// `2 of 3 copies complete (h3, h5); h4: its agent was lost`.
fn incomplete(report: &Report) -> String {
    let size = size(report);
    let left_out = report.left_out.len() as u64 + report.left_out_more;
    if report.outcome == Outcome::Partial && report.missing.is_empty() && left_out > 0 {
        return format!(
            "{size}{}, {}, {}; {} left out{}{}",
            sources(report),
            format_seconds(report.seconds),
            rate(report.bits_per_second),
            files_or_folders(left_out),
            there(report),
            label(report)
        );
    }
    let all = report.destinations.len();
    if all < 2 {
        let landing = &report.landing;
        let unplaced = landing.not_placed.len() as u64 + landing.not_placed_more;
        if report.outcome == Outcome::Partial && report.missing.is_empty() && unplaced > 0 {
            return format!(
                "{} moved in {}; {} left out{}{}",
                format_bytes(report.delivered_bytes),
                format_seconds(report.seconds),
                files_or_folders(unplaced),
                there(report),
                label(report)
            );
        }
        let is_removed = all == 1 && !report.destinations[0].complete && report.left.is_empty();
        let removed = match (is_removed, files_with_names(report)) {
            (true, _) if is_lost(report, &report.destinations[0]) => {
                "; the copy is not complete: `ropewalk status` there shows what its lost node has left"
                    .to_owned()
            }
            (true, 0) => {
                "; the copy is not complete and is removed (--keep-partial keeps it)".to_owned()
            }
            (true, files) => format!("; {} complete, the rest is removed", are(files)),
            (false, _) => String::new(),
        };
        return format!(
            "{size} moved in {}{removed}{}{}",
            format_seconds(report.seconds),
            there(report),
            label(report)
        );
    }
    let complete = complete(report);
    let mut out = format!("{} of {all} copies complete", complete.len());
    if !complete.is_empty() {
        out += &format!(" ({})", listed(&complete));
    }
    let errors: Vec<String> = report
        .destinations
        .iter()
        .filter(|one| !one.complete)
        .filter_map(|one| {
            let error = escape::line(one.error.as_deref()?);
            Some(format!("{}: {error}", name(one)))
        })
        .collect();
    if !errors.is_empty() {
        out += &format!("; {}", listed(&errors));
    }
    format!(
        "{out}; {size}, {}{}",
        format_seconds(report.seconds),
        label(report)
    )
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{InterruptionReport, ReplicasReport};

    use super::super::sample::report;
    use super::*;

    /// One line says what moved and how fast.
    #[test]
    fn a_headline_for_each_outcome() {
        let mut report = report();
        assert_eq!(
            headline(&report),
            "PARTIAL: 4.1 kB of 8.19 kB in 2 files moved in 2 s (My Data File)"
        );
        report.outcome = Outcome::Cancelled;
        assert_eq!(
            headline(&report),
            "CANCELLED: 4.1 kB of 8.19 kB in 2 files were on stable storage; the partial copy was removed (My Data File)"
        );
        report.destinations = vec![DestinationReport {
            nodes: vec!["b".into()],
            complete: false,
            files: 1,
            error: None,
        }];
        report.left.clear();
        assert!(headline(&report).contains("; 1 file is complete, the rest is removed"));
        report.outcome = Outcome::Partial;
        report.destinations[0].files = 2;
        assert!(headline(&report).contains("; 2 files are complete, the rest is removed"));
        // A killed agent removes nothing.
        let b = report.nodes.iter_mut().find(|node| node.node == "b");
        b.unwrap().error = Some("its connection closed".into());
        report.losses = vec!["b: its connection closed".into()];
        let text = headline(&report);
        assert!(
            !text.contains("removed") && text.contains("its lost node has left"),
            "{text}"
        );
        report.losses.clear();
        report.outcome = Outcome::Cancelled;
        report.destinations.clear();
        report.delivered_bytes = 0;
        report.label = None;
        assert_eq!(
            headline(&report),
            "CANCELLED: no data was on stable storage yet; the partial copy was removed"
        );
        report.outcome = Outcome::Done;
        (report.delivered_bytes, report.wanted_bytes) = (20_000_000_000, 20_000_000_000);
        report.files = 52_073;
        assert_eq!(
            headline(&report),
            "done: 20 GB in 52,073 files, sources: 3 replicas, 2 s, 16.4 kbit/s"
        );
        (report.delivered_bytes, report.wanted_bytes) = (2_000_000_000, 2_000_000_000);
        assert_eq!(
            headline(&report),
            "done: 2 GB in 52,073 files, sources: 3 replicas, 2 s, 16.4 kbit/s, 26,036 files/s"
        );
        report.landing.resumed_bytes = 1;
        assert!(!headline(&report).contains("files/s"));
        report.landing.resumed_bytes = 0;
        (report.delivered_bytes, report.wanted_bytes) = (20_000_000_000, 20_000_000_000);
        report.replicas = Some(ReplicasReport {
            compared: "sample".into(),
            units: 20,
            compared_units: 3,
            compared_bytes: 3_000_000,
        });
        assert!(headline(&report).contains("sources: 3 replicas (compared by a sample), 2 s"));
        report.sources = None;
        assert_eq!(
            headline(&report),
            "done: 20 GB in 52,073 files, 2 s, 16.4 kbit/s"
        );
    }

    /// Where one copy of several failed, the complete ones are named.
    #[test]
    fn complete_copies_are_named() {
        let mut report = report();
        report.outcome = Outcome::Failed;
        report.label = None;
        let copy = |node: &str, error: Option<&str>| DestinationReport {
            nodes: vec![node.into()],
            complete: error.is_none(),
            files: 0,
            error: error.map(Into::into),
        };
        report.destinations = vec![
            copy("h3", None),
            copy("h4", Some("its agent was lost")),
            copy("h5", None),
        ];
        assert_eq!(
            headline(&report),
            "FAILED: 2 of 3 copies complete (h3, h5); h4: its agent was lost; 4.1 kB of 8.19 kB in 2 files, 2 s"
        );
    }

    /// What did not have to be sent is said beside the rate that it explains.
    #[test]
    fn zeros_are_said() {
        let mut report = report();
        report.outcome = Outcome::Done;
        report.zero_bytes = 4_000_000;
        assert!(headline(&report).contains("; 4 MB of zeros not sent"));
    }

    /// Times of waiting are summed up, each node is named once.
    #[test]
    fn waiting_is_said() {
        let interruption = |node: &str, seconds| InterruptionReport {
            awaited: vec![node.into()],
            reason: "gone".into(),
            seconds,
            returned: true,
        };
        let mut report = report();
        report.outcome = Outcome::Done;
        report.interruptions = vec![
            interruption("b", 10.0),
            interruption("a", 2.0),
            interruption("b", 3.0),
        ];
        assert!(headline(&report).contains("; waited 15 s for b, a"));
    }
}
