//! What a transfer's end prints for people, on standard error: two lines, what was lost, or everything.

use std::io::Write as _;

use ropewalk_proto::report::{LeftOutReport, Outcome, Report};

use crate::escape;
use crate::options::OutputArgs;

mod bottleneck;
mod bound;
mod brief;
mod full;
mod listing;
mod losses;
mod page;
#[cfg(test)]
mod sample;

pub(crate) use bottleneck::{advice, name as cause_name, shares};
pub(crate) use full::listed;
pub(crate) use listing::listed_line;
pub(crate) use page::page;

/// Prints the report as far as it is asked for, and the error.
///
/// * `shown`: notes that stand on the screen already.
pub(crate) fn print(report: &Report, output: &OutputArgs, shown: &[String]) {
    let text = match output.quiet {
        true => error(report),
        false => text(report, output.verbose, shown),
    };
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The report as text, ending in a newline.
///
/// * `full`: every row; else two lines, and what did not come.
pub(crate) fn text(report: &Report, full: bool, shown: &[String]) -> String {
    if report.outcome == Outcome::Refused {
        return notes(report, shown) + &error(report);
    }
    let mut out = brief::headline(report) + "\n";
    if let Some(line) = brief::removed(report) {
        out += &format!("{line}\n");
    }
    let is_cancelled = report.outcome == Outcome::Cancelled;
    if (report.dry_run.is_some() || report.check.is_some()) && !is_cancelled {
        // Nothing moved: there are no rates.
    } else if full && !is_cancelled {
        out += &full::rows(report);
    } else if let Some(line) = bound::line(report).filter(|_| !is_cancelled) {
        out += &format!("{line}\n");
    }
    out += &losses::text(report);
    out += &notes(report, if full { &[] } else { shown });
    // The headline of a cancelled transfer says it all.
    if !is_cancelled {
        out += &error(report);
    }
    out
}

fn notes(report: &Report, shown: &[String]) -> String {
    let new: Vec<&String> = report
        .notes
        .iter()
        .filter(|note| !shown.contains(note) && !is_told(report, note))
        .collect();
    losses::notes(&new)
}

/// Whether the error, or a line of a missing file or one that was left out, says the same.
fn is_told(report: &Report, note: &str) -> bool {
    if !report.left_out.is_empty() && note.starts_with(LeftOutReport::NOTE) {
        return true;
    }
    // Reasons of missing files say "it" for the path that the note has.
    let missing = report.missing_files.iter();
    let mut ends = missing.filter_map(|file| file.reason.split_once("it"));
    if ends.any(|(_, end)| !end.is_empty() && note.ends_with(end)) {
        return true;
    }
    let error = report.error.as_deref().unwrap_or_default();
    let (node, words) = error.split_once(": ").unwrap_or_default();
    !words.is_empty() && note.starts_with(node) && note.ends_with(words)
}

/// The error, if there is one.
fn error(report: &Report) -> String {
    let word = match report.outcome {
        Outcome::Done => return String::new(),
        Outcome::Refused => "refused",
        Outcome::Cancelled => "cancelled",
        Outcome::Partial | Outcome::Failed => "error",
    };
    match &report.error {
        Some(error) => format!("ropewalk: {word}: {}\n", escape::lines(error)),
        None => String::new(),
    }
}
