//! Every row of the report: `-v`.

use std::fmt::Write as _;

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::report::{ControlReport, NodeReport, PairReport, ReplicasReport, Report};

use super::bottleneck;
use super::bound;
use crate::escape;
use crate::numbers::count;
use crate::progress::{by_number, rate};

/// Nodes and pairs shown; the JSON report has all.
const LINES_MAX: usize = 16;

/// The rows as text, ending in a newline.
pub(super) fn rows(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

/// How long each part took, and the rate.
pub(super) fn times(report: &Report) -> String {
    let waited = match report.awaited_end_seconds > 0.0 {
        true => format!(
            "{} waiting for an earlier transfer to end, ",
            format_seconds(report.awaited_end_seconds)
        ),
        false => String::new(),
    };
    // Removing is the last part of the end.
    let syncing = (report.finish_seconds - report.removing_seconds).max(0.0);
    let removing = match report.removing_seconds > 0.0 {
        true => format!(", {} removing", format_seconds(report.removing_seconds)),
        false => String::new(),
    };
    format!(
        "time       {} to reach the nodes, {} to open and plan, {waited}then {} while moving, {} syncing at the end{removing}",
        format_seconds(report.reach_seconds),
        format_seconds(report.start_seconds),
        rate(report.moving_bits_per_second),
        format_seconds(syncing)
    )
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "transfer   {}", report.transfer)?;
    if let Some(sources) = &report.sources {
        writeln!(out, "sources    {sources} (by paths, sizes and times)")?;
    }
    writeln!(out, "{}", times(report))?;
    if let Some(line) = bound::known(report) {
        writeln!(out, "{line}")?;
    }
    for line in bottleneck::lines(report) {
        writeln!(out, "{line}")?;
    }
    if let Some(seconds) = report.predicted_seconds {
        let seconds = format_seconds(seconds);
        writeln!(out, "predicted  {seconds} by {}", report.scheduler)?;
    }
    let checked = match report.verify.as_str() {
        "none" => "nothing beyond delivery",
        "fragment" => "each frame",
        "sink" => "each frame, every chunk end to end, and read back from the sink",
        _ => "each frame, and every chunk end to end",
    };
    let sealed = match report.encrypted {
        true => "encrypted (TLS 1.3 keys)",
        false if report.is_within_a_process() => "within one process",
        false => "PLAIN (not encrypted)",
    };
    writeln!(out, "checked    {checked}; {sealed}")?;
    if let Some(replicas) = &report.replicas {
        writeln!(out, "replicas   {}", compared(replicas))?;
    }
    if let Some(streams) = &report.streams {
        let others = match streams.others {
            0 => String::new(),
            others => format!(", shared with {}", count(others.into(), "other transfer")),
        };
        writeln!(
            out,
            "streams    {} x {} at the end, {} ({}){others}",
            streams.receivers,
            streams.streams,
            count(streams.changes.into(), "change"),
            streams.policy
        )?;
    }
    if report.handed_on_bytes > 0 {
        let (part, all) = (report.handed_on_bytes, report.delivered_bytes);
        writeln!(
            out,
            "handed on  {} of {}, by receivers to one another",
            format_bytes(part),
            format_bytes(all)
        )?;
    }
    let odd = [
        (report.duplicate_bytes > 0)
            .then(|| format!("{} received twice", format_bytes(report.duplicate_bytes))),
        (report.replans > 0).then(|| count(report.replans, "further plan")),
        (report.corrupt_units > 0).then(|| {
            format!(
                "{} fetched again",
                count(report.corrupt_units, "damaged piece")
            )
        }),
        (report.longest_stall_seconds >= 0.5).then(|| {
            format!(
                "longest stall {}",
                format_seconds(report.longest_stall_seconds)
            )
        }),
    ];
    let odd: Vec<String> = odd.into_iter().flatten().collect();
    if !odd.is_empty() {
        writeln!(out, "also       {}", odd.join(", "))?;
    }
    writeln!(out, "control    {}", carried(&report.control))?;
    write_nodes(out, report)?;
    write_pairs(out, report)
}

/// What control connections carried: as it crossed the wire, and of that the messages themselves.
fn carried(control: &ControlReport) -> String {
    let nodes = control.nodes.max(1) as f64;
    let mut parts = Vec::new();
    let wire = control.wire_sent_bytes + control.wire_received_bytes;
    if wire > 0 {
        let packets = count(control.wire_packets, "packet");
        parts.push(format!("{} on the wire in {packets}", format_bytes(wire)));
    }
    if control.pipe_bytes > 0 {
        let mut text = format!("{} through pipes", format_bytes(control.pipe_bytes));
        if control.bridged_bytes > 0 {
            text += &format!(" ({} of data)", format_bytes(control.bridged_bytes));
        }
        parts.push(text);
    }
    format!(
        "{}; {:.1} messages and {:.0} B for each of {}, {} of credentials, {} of status",
        parts.join(", "),
        control.plan_messages as f64 / nodes,
        control.plan_bytes as f64 / nodes,
        count(control.nodes, "node"),
        format_bytes(control.handshake_bytes),
        format_bytes(control.status_bytes)
    )
    .trim_start_matches("; ")
    .to_owned()
}

/// What was compared of the contents of replicas.
fn compared(replicas: &ReplicasReport) -> String {
    match replicas.compared.as_str() {
        "no" => "compared by size and time only: no hashes of contents were computed".into(),
        _ => format!(
            "{} of {} compared with a second holder ({})",
            replicas.compared_units,
            count(replicas.units, "unit"),
            format_bytes(replicas.compared_bytes)
        ),
    }
}

/// A few names, and how many more.
pub(crate) fn listed(names: &[String]) -> String {
    const NAMES_MAX: usize = 6;
    let mut text = names
        .iter()
        .take(NAMES_MAX)
        .map(|name| escape::line(name))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMES_MAX {
        let _ = write!(text, " and {} more", names.len() - NAMES_MAX);
    }
    text
}

fn write_nodes(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.nodes.is_empty() {
        return Ok(());
    }
    let mut nodes: Vec<&NodeReport> = report.nodes.iter().collect();
    nodes.sort_by(|a, b| by_number(&a.node, &b.node));
    let width = nodes
        .iter()
        .take(LINES_MAX)
        .map(|node| node.node.chars().count())
        .max()
        .unwrap_or(0)
        .clamp(4, 28);
    writeln!(
        out,
        "{:width$}  {:>9}  {:>9}  {:>12}  {:>8}  {:>9}",
        "node", "sent", "received", "best second", "CPU", "memory"
    )?;
    for node in nodes.iter().take(LINES_MAX) {
        let bytes = |bytes: u64| {
            if bytes == 0 {
                "-".to_owned()
            } else {
                format_bytes(bytes)
            }
        };
        let best = if node.best_bits_per_second > 0.0 {
            rate(node.best_bits_per_second)
        } else {
            "-".to_owned()
        };
        write!(
            out,
            "{:width$}  {:>9}  {:>9}  {best:>12}  {:>8}  {:>9}",
            escape::line(&node.node),
            bytes(node.sent_bytes),
            bytes(node.received_bytes),
            format_seconds(node.processor_seconds),
            decimal(node.resident_max_bytes)
        )?;
        match &node.error {
            Some(error) => writeln!(out, "  {}", escape::line(error))?,
            None => writeln!(out)?,
        }
    }
    if report.nodes.len() > LINES_MAX {
        writeln!(
            out,
            "and {} more nodes (--json has all)",
            report.nodes.len() - LINES_MAX
        )?;
    }
    Ok(())
}

/// Memory in MB whatever the exact number, so that a column reads evenly.
fn decimal(bytes: u64) -> String {
    if bytes == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}

/// The rail of a pair that has several, and what it carried.
fn rail(report: &Report, pair: &PairReport) -> String {
    let same =
        |other: &&PairReport| (&other.sender, &other.receiver) == (&pair.sender, &pair.receiver);
    let (Some(rail), true) = (&pair.rail, report.pairs.iter().filter(same).count() > 1) else {
        return String::new();
    };
    let rail = escape::line(rail);
    let share = pair.bytes as f64 / report.delivered_bytes.max(1) as f64;
    format!("  {rail}  {}", rate(report.moving_bits_per_second * share))
}

/// How the pair is connected, where that is not as usual.
fn way(pair: &PairReport) -> String {
    match pair.way.as_str() {
        "" | "direct" => String::new(),
        way => format!("  {}", escape::line(way)),
    }
}

/// What a lane of datagrams lost.
fn datagrams(pair: &PairReport) -> String {
    match (pair.datagrams, pair.datagrams_again) {
        (0, _) => String::new(),
        (all, again) => format!("  {all} datagrams, {again} asked for again"),
    }
}

fn write_pairs(out: &mut String, report: &Report) -> std::fmt::Result {
    for pair in report.pairs.iter().take(LINES_MAX) {
        writeln!(
            out,
            "{} -> {}  {}  {} x{}{}{}{}",
            escape::line(&pair.sender),
            escape::line(&pair.receiver),
            format_bytes(pair.bytes),
            pair.lane,
            pair.streams,
            way(pair),
            rail(report, pair),
            datagrams(pair)
        )?;
    }
    if report.pairs.len() > LINES_MAX {
        writeln!(
            out,
            "and {} more pairs (--json has all)",
            report.pairs.len() - LINES_MAX
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sample::report;
    use super::super::text;

    /// Everything a person must know is said, ranges as people type them.
    #[test]
    fn the_report_says_it_all() {
        let text = text(&report(), true, &[]);
        for part in [
            "PARTIAL: 4.1 kB of 8.19 kB in 2 files",
            "bound      1 s = 65.5 kbit/s (declared speeds); reached 57.1 % while data moved; set by b",
            "predicted  1.5 s by greedy",
            "sources    3 replicas (by paths, sizes and times)",
            "encrypted",
            "4.0 messages and 1000 B for each of 2 nodes",
            "3 damaged pieces fetched again",
            "2 x 16 at the end, 3 changes (model), shared with 1 other transfer",
            "killed",
            "a -> b  4.1 kB  tcp x4  reversed",
            "missing    b: 1.02 kB (bytes 0-1023, 2048-2048)",
            "note       a was lost",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    /// Plain lanes are printed as such, and long lists are cut to a screen.
    #[test]
    fn the_report_fits_a_screen() {
        let mut report = report();
        report.bound = None;
        report.encrypted = false;
        report.nodes = vec![report.nodes[0].clone(); 100];
        report.pairs = vec![report.pairs[0].clone(); 1000];
        report.notes = vec!["note".into(); 50];
        let text = text(&report, true, &[]);
        assert!(text.contains("PLAIN (not encrypted)"));
        for pair in &mut report.pairs {
            pair.lane = "local".into();
        }
        assert!(self::text(&report, true, &[]).contains("; within one process"));
        assert!(text.contains("and 84 more nodes"));
        assert!(text.lines().count() < 60, "{text}");
    }

    /// Two lines where nothing went wrong; notes that were shown are not repeated.
    #[test]
    fn two_lines_where_all_is_well() {
        let mut report = report();
        report.outcome = ropewalk_proto::report::Outcome::Done;
        report.delivered_bytes = report.wanted_bytes;
        report.missing.clear();
        assert_eq!(
            text(&report, false, &["a was lost".to_owned()]),
            "done: 8.19 kB in 2 files, sources: 3 replicas, 2 s, 16.4 kbit/s (My Data File)\n\
             bound      1 s = 65.5 kbit/s (declared speeds); reached 57.1 % while data moved; set by b\n"
        );
    }

    /// What a line says of a missing file no note repeats.
    #[test]
    fn a_reason_is_printed_once() {
        let mut report = report();
        report.missing_files = vec![ropewalk_proto::report::MissingFile {
            node: "b".into(),
            file: "f".into(),
            bytes: 1,
            reason: "it changed since it was scanned".into(),
        }];
        report.notes = vec![
            "b was refused by a: \"/x/f\" changed since it was scanned".into(),
            "another".into(),
        ];
        let text = text(&report, false, &[]);
        assert_eq!(text.matches("changed since").count(), 1, "{text}");
        assert!(text.contains("note       another"), "{text}");
    }
}
