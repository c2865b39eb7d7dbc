//! What of all transfers is put where on a screen of some size. Pure.
//!
//! Each transfer has a line; as far as there is space, those that run for the longest time have two more, with bytes and causes, and then
//! all of them their nodes, one after the other.

use ropewalk_model::{format_bytes, format_seconds};
use ropewalk_proto::top::{NodeRow, PlaceRow, TopReport, TransferRow};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::escape;
use crate::numbers::count;
use crate::progress::rate;
use crate::report::shares;
use crate::status::{percent, short};

/// Paths and hosts of a transfer on its first line.
const NAMES_MAX: usize = 3;

/// Columns of nodes' names, as many as the longest has; of bytes; of rates. With these they fit into 80.
const NAME_WIDTH_MAX: usize = 30;
const BYTES_WIDTH: usize = 28;
const RATE_WIDTH: usize = 12;

/// The end of a text that is cut.
const CUT: char = '\u{2026}';

/// The lines of a screen: at most so many, of at most so many columns each.
pub(super) fn lines(report: &TopReport, width: usize, height: usize) -> Vec<String> {
    let mut out: Vec<String> = headline(report).into_iter().collect();
    let failed: Vec<&PlaceRow> = report
        .places
        .iter()
        .filter(|place| place.error.is_some())
        .collect();
    // Transfers have at least two thirds.
    let most = match failed.len() > height / 3 {
        true => (height / 3).saturating_sub(1),
        false => failed.len(),
    };
    out.extend(failed.iter().take(most).map(|place| unreached(place)));
    if failed.len() > most {
        out.push(format!("and {} more do not answer", failed.len() - most));
    }
    let space = height.saturating_sub(out.len());
    out.extend(transfers(report, space));
    out.truncate(height);
    out.iter().map(|line| cut(line, width)).collect()
}

/// What those that answer say together; `None` where none does.
pub(super) fn headline(report: &TopReport) -> Option<String> {
    let answering = report.places.iter().filter(|place| place.error.is_none());
    let answering: Vec<&str> = answering.map(|place| place.place.as_str()).collect();
    if answering.is_empty() && !report.places.is_empty() {
        return None;
    }
    let many = report.transfers.len() + report.transfers_more;
    let rates = report.transfers.iter().map(|row| row.bits_per_second);
    let transfers = match many {
        0 => "no transfers".to_owned(),
        many => format!(
            "{}, {}",
            count(many as u64, "transfer"),
            rate(rates.sum::<f64>())
        ),
    };
    let places = names(answering.into_iter());
    Some(format!("{places}: {transfers}"))
}

pub(super) fn unreached(place: &PlaceRow) -> String {
    let error = place.error.as_deref().unwrap_or_default();
    // It says its name itself.
    let name = format!("{}: ", place.place);
    let reason = error.strip_prefix("cannot reach ").unwrap_or(error);
    let error = reason.strip_prefix(&name).unwrap_or(error);
    format!("{name}no answer: {error}")
        .lines()
        .map(escape::line)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The first of some names, and how many more there are.
fn names<'n>(all: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = all.len().saturating_sub(NAMES_MAX);
    let shown: Vec<String> = all.take(NAMES_MAX).map(escape::line).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// How much of a transfer is shown.
#[derive(Clone, Copy)]
struct Shown {
    /// More than its first line.
    is_full: bool,
    /// Its nodes.
    nodes: usize,
}

fn transfers(report: &TopReport, space: usize) -> Vec<String> {
    let rows = &report.transfers;
    let all = rows.len() + report.transfers_more;
    let fits = all <= space;
    let count = match fits {
        true => rows.len(),
        // The last line says how many there are.
        false => rows.len().min(space.saturating_sub(1)),
    };
    let rows = &rows[..count];
    let mut left = space.saturating_sub(count + usize::from(!fits));
    let details: Vec<Vec<String>> = rows.iter().map(details).collect();
    let mut shown = vec![
        Shown {
            is_full: false,
            nodes: 0
        };
        count
    ];
    for (one, details) in shown.iter_mut().zip(&details) {
        if details.len() > left {
            break;
        }
        left -= details.len();
        one.is_full = true;
    }
    share_nodes(rows, &mut shown, &mut left);
    let has_gaps = left + 1 >= count;
    let mut out = Vec::new();
    for ((row, details), shown) in rows.iter().zip(details).zip(shown) {
        if has_gaps && !out.is_empty() {
            out.push(String::new());
        }
        out.push(match shown.is_full {
            true => first(row),
            false => brief(row),
        });
        if shown.is_full {
            out.extend(details);
        }
        out.extend(nodes(row, shown.nodes));
    }
    if !fits && space > 0 {
        out.push(format!("and {} more", all - count));
    }
    out
}

/// One line after the other is given to each in turn. A transfer whose nodes do not fit has the last of its lines for their number.
fn share_nodes(rows: &[TransferRow], shown: &mut [Shown], left: &mut usize) {
    loop {
        let before = *left;
        for (row, shown) in rows.iter().zip(shown.iter_mut()) {
            let all = row.nodes.len() + usize::from(row.nodes_more > 0);
            if *left > 0 && shown.is_full && shown.nodes < all {
                shown.nodes += 1;
                *left -= 1;
            }
        }
        if *left == before {
            return;
        }
    }
}

/// What it is, and for how long.
fn first(row: &TransferRow) -> String {
    format!("{}  for {}", subject(row), format_seconds(row.seconds))
}

pub(super) fn subject(row: &TransferRow) -> String {
    let id = match (&row.transfer, row.process) {
        (Some(id), _) => short(id).to_owned(),
        (None, process) => format!("process {}", process.unwrap_or(0)),
    };
    let (from, to) = (
        names(row.from.iter().map(String::as_str)),
        names(row.to.iter().map(String::as_str)),
    );
    let ends = match (from.is_empty(), to.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!("  to {to}"),
        (false, true) => format!("  from {from}"),
        (false, false) => format!("  {from} -> {to}"),
    };
    let label = row.label.as_deref().map(escape::line);
    let label = label.map(|label| format!("  ({label})"));
    let kind = escape::line(&row.kind);
    format!(
        "{}  {kind}{ends}{}",
        escape::line(&id),
        label.unwrap_or_default()
    )
}

/// A transfer on one line.
fn brief(row: &TransferRow) -> String {
    let part = row.total_bytes.filter(|total| *total > 0);
    let part = part.map(|total| format!("{:.0} % ", percent(row.received_bytes, total)));
    let rate = rate(row.bits_per_second);
    let state = row.state.as_deref().map(|state| escape::line(state) + "  ");
    let moves = format!("{}{rate}  ", part.unwrap_or_default());
    format!("{}{}", state.unwrap_or(moves), subject(row))
}

/// Bytes and rate, or what it does instead; what held it back.
fn details(row: &TransferRow) -> Vec<String> {
    let mut out = vec![format!("  {}", progress(row))];
    out.extend(shares(&row.bottlenecks).map(|words| format!("  {words}")));
    out
}

pub(super) fn progress(row: &TransferRow) -> String {
    if let Some(state) = &row.state {
        return escape::line(state);
    }
    let received = format_bytes(row.received_bytes);
    let mut words = match row.total_bytes {
        Some(total) => {
            let part = percent(row.received_bytes, total);
            let safe = format_bytes(row.delivered_bytes);
            format!(
                "{received} of {} ({part:.0} %), {safe} safe",
                format_bytes(total)
            )
        }
        None => received,
    };
    if let Some(blocks) = row.blocks {
        words += &format!(" in {}", count(blocks, "block"));
    }
    if let (Some(open), Some(all)) = (row.open_connections, row.connections) {
        words += &format!(", {} open, {all} in all", count(open, "connection"));
    }
    words += &format!(", {}", rate(row.bits_per_second));
    if let Some(seconds) = row.eta_seconds {
        words += &format!(", {} left", format_seconds(seconds));
    }
    words
}

/// The first of its nodes, in so many lines.
fn nodes(row: &TransferRow, space: usize) -> Vec<String> {
    let all = row.nodes.len().saturating_add(row.nodes_more);
    let count = match all <= space {
        true => row.nodes.len(),
        false => space.saturating_sub(1),
    };
    let names = row
        .nodes
        .iter()
        .map(|node| escape::line(&node.node).width());
    let width = names.max().unwrap_or(0).min(NAME_WIDTH_MAX);
    let nodes = row.nodes.iter().take(count);
    let mut out: Vec<String> = nodes.map(|one| node(one, width)).collect();
    if space > 0 && all > count {
        out.push(format!("    and {} more", all - count));
    }
    out
}

fn node(node: &NodeRow, width: usize) -> String {
    let side = if node.sends { "from" } else { "to" };
    let name = cut(&escape::line(&node.node), width);
    let bytes = match node.total_bytes {
        Some(total) => format!(
            "{} of {} ({:.0} %)",
            format_bytes(node.bytes),
            format_bytes(total),
            percent(node.bytes, total)
        ),
        None => format_bytes(node.bytes),
    };
    let rate = rate(node.bits_per_second);
    format!(
        "    {side:<4} {} {bytes:>BYTES_WIDTH$} {rate:>RATE_WIDTH$}",
        filled(&name, width)
    )
}

/// With blanks up to a width.
fn filled(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(blanks))
}

/// The beginning of a text that has no more than so many columns.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut columns = 1;
    for letter in text.chars() {
        columns += letter.width().unwrap_or(0);
        if columns > width {
            break;
        }
        out.push(letter);
    }
    if width > 0 {
        out.push(CUT);
    }
    out
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{BottleneckCause, BottleneckReport};

    use super::*;

    const EVIL: &str = "\u{1b}[2J\u{202e}日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本日本\n";

    fn place(name: &str, error: Option<&str>) -> PlaceRow {
        PlaceRow {
            place: name.into(),
            error: error.map(str::to_owned),
        }
    }

    fn row(id: &str, nodes: usize) -> TransferRow {
        let node = |at: usize| NodeRow {
            node: format!("n{at}"),
            sends: at > 0,
            bytes: 1_000_000_000,
            safe_bytes: 0,
            total_bytes: Some(4_000_000_000),
            bits_per_second: 8e8,
        };
        TransferRow {
            transfer: Some(format!("01234567-0000-7000-8000-0000{id}")),
            kind: "copy".into(),
            from: vec!["a:/data".into()],
            to: vec!["/tmp/set".into()],
            seconds: 65.0,
            received_bytes: 1_000_000_000,
            delivered_bytes: 900_000_000,
            total_bytes: Some(4_000_000_000),
            bits_per_second: 8e8,
            eta_seconds: Some(30.0),
            bottlenecks: vec![BottleneckReport {
                cause: BottleneckCause::SinkDisk,
                node: Some("n0".into()),
                peer: None,
                rail: None,
                share: 0.71,
            }],
            nodes: (0..nodes).map(node).collect(),
            ..TransferRow::default()
        }
    }

    fn report(transfers: Vec<TransferRow>) -> TopReport {
        TopReport {
            places: vec![place("this host", None)],
            transfers,
            ..TopReport::default()
        }
    }

    /// One transfer with all that is known of it.
    #[test]
    fn a_transfer_is_shown_whole() {
        let lines = lines(&report(vec![row("5f3a21c9", 2)]), 80, 24);
        let expected = "\
this host: 1 transfer, 800 Mbit/s
5f3a21c9  copy  a:/data -> /tmp/set  for 1 min 05 s
  1 GB of 4 GB (25 %), 900 MB safe, 800 Mbit/s, 30 s left
  held back by writing at n0 71 %
    to   n0          1 GB of 4 GB (25 %)   800 Mbit/s
    from n1          1 GB of 4 GB (25 %)   800 Mbit/s";
        assert_eq!(lines.join("\n"), expected);
        let none = super::lines(&report(Vec::new()), 80, 24);
        assert_eq!(none, ["this host: no transfers"]);
    }

    /// Whatever there is and however small the screen: no line is too wide, there are not too many, and nothing acts on the terminal.
    #[test]
    fn every_screen_is_kept_to() {
        let mut evil = row(EVIL, 3);
        evil.nodes_more = 7;
        evil.label = Some(EVIL.into());
        evil.kind = EVIL.into();
        evil.from = vec![EVIL.into(); 9];
        evil.nodes[1].node = EVIL.into();
        evil.bottlenecks[0].node = Some(EVIL.into());
        let mut waits = row("b", 0);
        waits.state = Some(EVIL.into());
        let mut many = report(vec![evil, waits, row("c", 40)]);
        many.transfers.extend((0..20).map(|_| row("d", 1)));
        many.transfers_more = 5;
        many.places = vec![place(EVIL, Some(EVIL)); 9];
        for report in [
            many,
            report(vec![row("a", 5), row("b", 50)]),
            TopReport::default(),
        ] {
            for (width, height) in
                (0..90).flat_map(|width| [0, 1, 2, 3, 7, 24, 60, 200].map(|height| (width, height)))
            {
                let lines = lines(&report, width, height);
                assert!(lines.len() <= height, "{width} x {height}");
                for line in lines {
                    assert!(line.width() <= width, "{width} x {height}: {line:?}");
                    assert!(
                        !line
                            .chars()
                            .any(|letter| letter.is_control() || letter == '\u{202e}'),
                        "{line:?}"
                    );
                }
            }
        }
    }

    /// Of many transfers each has a line first; the rest goes to the oldest, and then to nodes.
    #[test]
    fn space_is_dealt() {
        let shown = |transfers: usize, height: usize| {
            let rows = (0..transfers).map(|_| row("a", 4)).collect();
            lines(&report(rows), 80, height)
        };
        assert_eq!(shown(30, 24).last().unwrap(), "and 8 more");
        assert_eq!(shown(30, 24).len(), 24);
        let lines = shown(5, 12);
        let full = lines
            .iter()
            .filter(|line| line.contains("held back"))
            .count();
        assert_eq!((lines.len(), full), (12, 3));
        let lines = shown(2, 13);
        let more = lines
            .iter()
            .filter(|line| line.contains("and 2 more"))
            .count();
        assert_eq!((lines.len(), more), (13, 2), "{lines:#?}");
    }

    /// What does not answer is named with what to do; where much does not, transfers are shown all the same.
    #[test]
    fn silent_places_are_named() {
        let mut one = report(vec![row("a", 0)]);
        let error = "b:7: cannot reach b: connection refused;\nstart `ropewalk agent` there";
        one.places.push(place("b:7", Some(error)));
        let found = lines(&one, 200, 24);
        assert_eq!(
            found[1],
            "b:7: no answer: cannot reach b: connection refused; start `ropewalk agent` there"
        );
        one.places.extend(vec![place("b:7", Some(error)); 29]);
        let found = lines(&one, 80, 12);
        assert_eq!(found[4], "and 27 more do not answer");
        assert!(found[5].contains("copy"), "{found:#?}");
        // Nothing is known of the transfers of those that do not answer.
        let mut silent = report(Vec::new());
        silent.places = vec![place("b:7", Some("cannot reach b:7: connection refused"))];
        assert_eq!(
            lines(&silent, 80, 24),
            ["b:7: no answer: connection refused"]
        );
        silent.places.push(place("c", None));
        assert_eq!(lines(&silent, 80, 24)[0], "c: no transfers");
    }
}
