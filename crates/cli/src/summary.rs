//! The final report for people: one screen.

use std::fmt::Write as _;

use ropewalk::model::{Bytes, format_seconds};
use ropewalk::report::{Outcome, PairReport, Report};

use crate::progress::rate;

/// Nodes and pairs shown; the JSON report has all.
const LINES_MAX: usize = 16;

/// Ranges shown for each receiver that misses some.
const RANGES_MAX: usize = 3;

/// Notes shown.
const NOTES_MAX: usize = 8;

/// The report as text, ending in a newline.
pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    let outcome = match report.outcome {
        Outcome::Done => "done",
        Outcome::Partial => "PARTIAL",
        Outcome::Failed => "FAILED",
        Outcome::Refused => "REFUSED",
        Outcome::Cancelled => "CANCELLED",
    };
    write!(out, "{outcome}: ")?;
    if report.delivered_bytes == report.wanted_bytes {
        write!(out, "{}", Bytes(report.delivered_bytes))?;
    } else {
        write!(
            out,
            "{} of {}",
            Bytes(report.delivered_bytes),
            Bytes(report.wanted_bytes)
        )?;
    }
    if report.files > 0 {
        write!(
            out,
            " in {} file{}",
            report.files,
            if report.files == 1 { "" } else { "s" }
        )?;
    }
    write!(
        out,
        " in {}, goodput {}",
        format_seconds(report.seconds),
        rate(report.bits_per_second)
    )?;
    match &report.label {
        Some(label) => writeln!(out, " ({label})")?,
        None => writeln!(out)?,
    }
    writeln!(out, "transfer   {}", report.transfer)?;
    writeln!(
        out,
        "time       {} to open and plan, then {} while moving, {} syncing at the end",
        format_seconds(report.start_seconds),
        rate(report.moving_bits_per_second),
        format_seconds(report.finish_seconds)
    )?;
    write_bound(out, report)?;
    let checked = match report.verify.as_str() {
        "none" => "nothing beyond delivery",
        "fragment" => "each frame",
        "sink" => "each frame, every chunk end to end, and read back from the sink",
        _ => "each frame, and every chunk end to end",
    };
    let sealed = if report.encrypted {
        "encrypted (TLS 1.3 keys)"
    } else {
        "PLAIN (not encrypted)"
    };
    writeln!(out, "checked    {checked}; {sealed}")?;
    if let Some(streams) = &report.streams {
        let others = match streams.others {
            0 => String::new(),
            others => format!(", shared with {others} other transfers"),
        };
        writeln!(
            out,
            "streams    {} x {} at the end, changed {} times ({}){others}",
            streams.receivers, streams.streams, streams.changes, streams.policy
        )?;
    }
    let odd = [
        (report.duplicate_bytes > 0)
            .then(|| format!("{} came twice", Bytes(report.duplicate_bytes))),
        (report.replans > 0).then(|| format!("planned anew {} times", report.replans)),
        (report.corrupt_units > 0)
            .then(|| format!("{} damaged pieces fetched again", report.corrupt_units)),
        (report.longest_stall_seconds >= 0.5).then(|| {
            format!(
                "longest stall {}",
                format_seconds(report.longest_stall_seconds)
            )
        }),
    ];
    let odd: Vec<String> = odd.into_iter().flatten().collect();
    if !odd.is_empty() {
        writeln!(out, "on the way {}", odd.join(", "))?;
    }
    let control = &report.control;
    let nodes = control.nodes.max(1) as f64;
    writeln!(
        out,
        "control    {:.1} messages and {:.0} B for each of {} nodes, besides {} of handshakes and {} of status",
        control.plan_messages as f64 / nodes,
        control.plan_bytes as f64 / nodes,
        control.nodes,
        Bytes(control.handshake_bytes),
        Bytes(control.status_bytes)
    )?;
    write_nodes(out, report)?;
    write_pairs(out, report)?;
    for (receiver, ranges) in &report.missing {
        let shown: Vec<String> = ranges
            .iter()
            .take(RANGES_MAX)
            .map(|(start, end)| format!("{start}-{}", end.saturating_sub(1)))
            .collect();
        let more = ranges.len().saturating_sub(RANGES_MAX);
        let more = if more > 0 {
            format!(" and {more} more ranges")
        } else {
            String::new()
        };
        let bytes: u64 = ranges
            .iter()
            .map(|(start, end)| end.saturating_sub(*start))
            .sum();
        writeln!(
            out,
            "missing    {receiver}: {} ({}{more})",
            Bytes(bytes),
            shown.join(", ")
        )?;
    }
    for note in report.notes.iter().take(NOTES_MAX) {
        writeln!(out, "note       {note}")?;
    }
    if report.notes.len() > NOTES_MAX {
        writeln!(
            out,
            "           and {} more notes (--json has all)",
            report.notes.len() - NOTES_MAX
        )?;
    }
    Ok(())
}

fn write_bound(out: &mut String, report: &Report) -> std::fmt::Result {
    let Some(bound) = &report.bound else {
        return writeln!(
            out,
            "bound      unknown: no speeds are declared or observed (--rate HOST=RATE declares them)"
        );
    };
    let basis = match bound.basis.as_str() {
        "declared" => "declared speeds",
        "interface" => "speeds of the interfaces",
        "limit" => "as it was told",
        "observed" => "an estimate from the best second of each node",
        other => other,
    };
    write!(
        out,
        "bound      {} = {} ({basis}{}); reached {:.1} %",
        format_seconds(bound.seconds),
        rate(bound.bits_per_second),
        if bound.is_exact {
            ""
        } else {
            ", a lower one only"
        },
        bound.share * 100.0
    )?;
    if !bound.binding.is_empty() {
        write!(out, "; set by {}", listed(&bound.binding))?;
    }
    writeln!(out)?;
    match report.predicted_seconds {
        Some(seconds) => writeln!(
            out,
            "predicted  {} by {}",
            format_seconds(seconds),
            report.scheduler
        ),
        None => Ok(()),
    }
}

/// A few names, and how many more.
pub(crate) fn listed(names: &[String]) -> String {
    const NAMES_MAX: usize = 6;
    let mut text = names
        .iter()
        .take(NAMES_MAX)
        .map(String::as_str)
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
    let width = report
        .nodes
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
    for node in report.nodes.iter().take(LINES_MAX) {
        let bytes = |bytes: u64| {
            if bytes == 0 {
                "-".to_owned()
            } else {
                Bytes(bytes).to_string()
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
            node.node,
            bytes(node.sent_bytes),
            bytes(node.received_bytes),
            format_seconds(node.processor_seconds),
            decimal(node.resident_max_bytes)
        )?;
        match &node.error {
            Some(error) => writeln!(out, "  {error}")?,
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
    let share = pair.bytes as f64 / report.delivered_bytes.max(1) as f64;
    format!("  {rail}  {}", rate(report.moving_bits_per_second * share))
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
            "{} -> {}  {}  {} x{}{}{}",
            pair.sender,
            pair.receiver,
            Bytes(pair.bytes),
            pair.lane,
            pair.streams,
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
    use ropewalk::report::{BoundReport, ControlReport, NodeReport, StreamsReport};

    use super::*;

    fn report() -> Report {
        Report {
            transfer: "0190-id".into(),
            label: Some("My Data File".into()),
            outcome: Outcome::Partial,
            error: None,
            wanted_bytes: 8192,
            delivered_bytes: 4096,
            files: 2,
            seconds: 2.0,
            start_seconds: 0.25,
            finish_seconds: 0.125,
            bits_per_second: 16384.0,
            moving_bits_per_second: 18000.0,
            scheduler: "greedy".into(),
            predicted_seconds: Some(1.5),
            bound: Some(BoundReport {
                basis: "declared".into(),
                seconds: 1.0,
                bits_per_second: 65536.0,
                share: 0.571,
                binding: vec!["b".into()],
                is_exact: true,
            }),
            verify: "tree".into(),
            encrypted: true,
            roots: Default::default(),
            nodes: vec![
                NodeReport {
                    node: "a".into(),
                    sent_bytes: 4096,
                    ..NodeReport::default()
                },
                NodeReport {
                    node: "b".into(),
                    received_bytes: 4096,
                    error: Some("killed".into()),
                    ..NodeReport::default()
                },
            ],
            pairs: vec![PairReport {
                sender: "a".into(),
                receiver: "b".into(),
                lane: "tcp".into(),
                rail: None,
                streams: 4,
                bytes: 4096,
                corrupt_units: 0,
                waiting_seconds: 0.0,
                datagrams: 0,
                datagrams_again: 0,
                blast: None,
            }],
            missing: [("b".to_owned(), vec![(0, 1024), (2048, 2049)])].into(),
            duplicate_bytes: 0,
            replans: 0,
            streams: Some(StreamsReport {
                policy: "model".into(),
                changes: 3,
                receivers: 2,
                streams: 16,
                others: 1,
            }),
            corrupt_units: 3,
            longest_stall_seconds: 0.0,
            control: ControlReport {
                nodes: 2,
                plan_messages: 8,
                plan_bytes: 2000,
                ..ControlReport::default()
            },
            notes: vec!["a was lost".into()],
        }
    }

    /// Everything a person must know is said, ranges as people type them.
    #[test]
    fn the_report_says_it_all() {
        let text = text(&report());
        for part in [
            "PARTIAL: 4 KiB of 8 KiB in 2 files in 2 s, goodput 16.4 kbit/s (My Data File)",
            "bound      1 s = 65.5 kbit/s (declared speeds); reached 57.1 %; set by b",
            "predicted  1.5 s by greedy",
            "encrypted",
            "4.0 messages and 1000 B for each of 2 nodes",
            "3 damaged pieces fetched again",
            "2 x 16 at the end, changed 3 times (model), shared with 1 other transfers",
            "killed",
            "a -> b  4 KiB  tcp x4",
            "missing    b: 1.02 kB (0-1023, 2048-2048)",
            "note       a was lost",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    /// Plain lanes are printed as such, unknown bounds too, and long lists are cut to a screen.
    #[test]
    fn the_report_fits_a_screen() {
        let mut report = report();
        report.bound = None;
        report.encrypted = false;
        report.nodes = vec![report.nodes[0].clone(); 100];
        report.pairs = vec![report.pairs[0].clone(); 1000];
        report.notes = vec!["note".into(); 50];
        let text = text(&report);
        assert!(text.contains("PLAIN (not encrypted)"));
        assert!(text.contains("bound      unknown"));
        assert!(text.contains("and 84 more nodes"));
        assert!(text.lines().count() < 60, "{text}");
    }
}
