//! The report as one page for a browser, with plots: `--report FILE.html`. It has no script and asks for nothing from elsewhere.

use std::fmt::Write as _;

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::report::Report;

use super::{bottleneck, brief, full};
use crate::html::{ROWS_MAX, STYLE, table, text};
use crate::progress::rate;

mod plot;

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    let label = report.label.as_deref().unwrap_or(&report.transfer);
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>ropewalk: {0}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>",
        text(label)
    )?;
    if let Some(first) = report.bottlenecks.first() {
        writeln!(
            out,
            "<p>Held back by <strong>{}</strong>, {:.0} % of the time.</p>",
            text(&bottleneck::name(first)),
            first.share * 100.0
        )?;
    }
    out.push_str("<pre>");
    for line in summary(report) {
        writeln!(out, "{}", text(&line))?;
    }
    out.push_str("</pre>\n");
    if let Some(error) = &report.error {
        writeln!(out, "<p><strong>Error:</strong> {}</p>", text(error))?;
    }
    plot::rates(out, report)?;
    plot::causes(out, report)?;
    plot::plan(out, report)?;
    nodes(out, report)?;
    pairs(out, report)?;
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in report.notes.iter().take(ROWS_MAX) {
            writeln!(out, "<li>{}</li>", text(note))?;
        }
        out.push_str("</ul>\n");
    }
    let version = ropewalk_proto::version::version();
    writeln!(
        out,
        "<p>Transfer {}, ropewalk {}.</p>\n</body>\n</html>",
        text(&report.transfer),
        text(version)
    )
}

/// What was moved, how fast, what held it back, what would be next, what to do.
fn summary(report: &Report) -> Vec<String> {
    let mut lines = vec![brief::headline(report), full::times(report)];
    lines.extend(bottleneck::lines(report));
    lines
}

fn nodes(out: &mut String, report: &Report) -> std::fmt::Result {
    let row = |node: &ropewalk_proto::report::NodeReport| {
        let network = node.network.as_ref();
        let trip = network.map(|network| format_seconds(network.round_trip_seconds));
        let again = network.map(|network| {
            let share = network.repeated_segments as f64 / (network.segments as f64).max(1.0);
            format!("{:.2} %", share * 100.0)
        });
        vec![
            node.node.clone(),
            format_bytes(node.sent_bytes),
            format_bytes(node.received_bytes),
            rate(node.best_bits_per_second),
            format_seconds(node.processor_seconds),
            format_bytes(node.resident_max_bytes),
            trip.unwrap_or_default(),
            again.unwrap_or_default(),
            node.error.clone().unwrap_or_default(),
        ]
    };
    let columns = [
        "Node",
        "Sent",
        "Received",
        "Best second",
        "Processor",
        "Memory",
        "Round trip",
        "Sent again",
        "Error",
    ];
    table(
        out,
        "Nodes",
        &columns,
        report.nodes.iter().map(row).collect(),
    )
}

fn pairs(out: &mut String, report: &Report) -> std::fmt::Result {
    let row = |pair: &ropewalk_proto::report::PairReport| {
        vec![
            format!("{} to {}", pair.sender, pair.receiver),
            format_bytes(pair.bytes),
            format!("{} x {}", pair.streams, pair.lane),
            pair.way.clone(),
            pair.rail.clone().unwrap_or_default(),
        ]
    };
    let columns = ["Pair", "Bytes", "Streams", "Way", "Interfaces"];
    table(
        out,
        "Pairs",
        &columns,
        report.pairs.iter().map(row).collect(),
    )
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{BottleneckCause, BottleneckReport, PointReport, TimelineReport};

    use super::super::sample;
    use super::*;

    const EVIL: &str = "<script>alert('&\"')</script>\u{1b}";

    fn cause(cause: BottleneckCause, node: &str, peer: Option<&str>) -> BottleneckReport {
        BottleneckReport {
            cause,
            node: Some(node.into()),
            peer: peer.map(str::to_owned),
            rail: None,
            share: 0.5,
        }
    }

    fn report() -> Report {
        let mut report = sample::report();
        report.label = Some(EVIL.into());
        report.notes = vec![EVIL.into()];
        report.nodes[0].node = EVIL.into();
        report.nodes[0].error = Some(EVIL.into());
        let causes = [
            cause(BottleneckCause::Path, EVIL, Some("b")),
            cause(BottleneckCause::SinkDisk, "b", None),
            cause(BottleneckCause::Syncing, "b", None),
        ];
        report.bottlenecks = causes.to_vec();
        let point = |second: u32| PointReport {
            seconds: second.into(),
            length_seconds: 1.0,
            sent_bits_per_second: vec![1e9 / f64::from(second), 0.0],
            received_bits_per_second: vec![0.0, 1e9 / f64::from(second)],
            bottlenecks: causes[second as usize % 3..].to_vec(),
        };
        report.timeline = Some(TimelineReport {
            nodes: vec![EVIL.into(), "b".into()],
            points: (1..=9).map(point).collect(),
        });
        report
    }

    /// Reads a page as XML is read: each element that begins ends, in order, and attributes and entities are whole. What stands between
    /// the elements, joined.
    fn read(page: &str) -> String {
        let mut open: Vec<&str> = Vec::new();
        let mut out = String::new();
        let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
        while let Some(at) = rest.find('<') {
            out.push_str(&rest[..at]);
            let end = rest[at..].find('>').expect("an element that has no end") + at;
            let element = &rest[at + 1..end];
            assert!(!element.contains('<'), "{element}");
            assert_eq!(element.matches('"').count() % 2, 0, "{element}");
            let name = element
                .trim_end_matches('/')
                .split([' ', '\n'])
                .next()
                .unwrap();
            match element.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed)),
                None if element.ends_with('/') => {}
                None => open.push(name),
            }
            rest = &rest[end + 1..];
        }
        assert_eq!((open.len(), rest.trim()), (0, ""));
        for entity in out.split('&').skip(1) {
            let name = entity.split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{name}");
        }
        out
    }

    /// The page can be read, has each node and each cause, and no element that a name brought.
    #[test]
    fn pages_can_be_read() {
        let report = report();
        let page = page(&report);
        let said = read(&page);
        for node in &report.nodes {
            assert!(said.contains(&text(&node.node)), "{}", node.node);
        }
        for one in &report.bottlenecks {
            let name = text(&bottleneck::name(one));
            assert!(said.matches(&name).count() >= 2, "{name}\n{said}");
        }
        for part in [
            "<script", "http:", "https:", "src=", "\u{1b}", "@import", "url(",
        ] {
            assert!(!page.contains(part), "{part}");
        }
    }

    /// The first that a page says, below its title, is the largest cause, alone.
    #[test]
    fn pages_begin_with_the_largest_cause() {
        let said = read(&page(&report()));
        let name = text(&bottleneck::name(&report().bottlenecks[0]));
        let mut lines = said.lines().filter(|line| !line.trim().is_empty());
        let title = text(EVIL);
        assert!(lines.any(|line| line == title));
        let first = lines.find(|line| line.contains("eld back"));
        assert_eq!(
            first,
            Some(&*format!("Held back by {name}, 50 % of the time."))
        );
    }

    /// A transfer that moved nothing has a page, too; nothing held it back.
    #[test]
    fn empty_reports_have_pages() {
        let report = Report::ended(ropewalk_proto::report::Outcome::Refused);
        let said = read(&page(&report));
        assert!(said.contains("REFUSED"));
        assert!(!said.contains("eld back"));
    }
}
