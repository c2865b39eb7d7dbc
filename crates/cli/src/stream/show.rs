//! What a stream shows while it runs and at its end.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ropewalk_master::{StreamEvent, StreamRequest};
use ropewalk_model::{ByteRate, Bytes, format_bytes, format_seconds};
use ropewalk_proto::report::{ErrorKind, Event, Outcome};
use ropewalk_proto::stage::report::{ShuffleReport, StageReport, StreamReport};
use serde::Serialize;

use crate::escape;
use crate::numbers::count;
use crate::options::{OutputArgs, ProgressArg};
use crate::print::{Printer, Taken};
use crate::run;
use crate::screen::{self, Keeping};

/// Time between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// What is printed beside the events of reaching nodes.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Printed<'a> {
    Started {
        stream: &'a str,
    },
    Progress {
        seconds: f64,
        stages: &'a [StageReport],
    },
    Ended {
        report: &'a StreamReport,
    },
}

/// A stream while it runs.
pub(super) struct Show {
    output: OutputArgs,
    printer: Printer,
    place: Place,
    // Bytes of each stage at the last event.
    before: (f64, Vec<u64>),
}

enum Place {
    Silent,
    Lines(Instant),
    Bars(Vec<ProgressBar>),
}

impl Show {
    pub fn new(request: &StreamRequest, output: &OutputArgs) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let place = match output.progress {
            _ if output.quiet => Place::Silent,
            ProgressArg::Never => Place::Silent,
            ProgressArg::Auto if output.json || !is_terminal => Place::Silent,
            ProgressArg::Always if !is_terminal => Place::Lines(Instant::now()),
            ProgressArg::Auto | ProgressArg::Always => {
                let screen = MultiProgress::new();
                let style = ProgressStyle::with_template("{msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
                let bar = |_| {
                    screen
                        .add(ProgressBar::no_length())
                        .with_style(style.clone())
                };
                Place::Bars((0..request.groups).map(bar).collect())
            }
        };
        Self {
            output: output.clone(),
            printer: Printer::default(),
            place,
            before: (0.0, Vec::new()),
        }
    }

    fn handle(&mut self, event: &StreamEvent) {
        if self.output.json {
            match event {
                StreamEvent::Reaching(event) => self.printer.event(event),
                StreamEvent::Started { stream } => {
                    self.printer.event(&Printed::Started { stream });
                }
                StreamEvent::Progress { seconds, stages } => {
                    self.printer.event(&Printed::Progress {
                        seconds: *seconds,
                        stages,
                    });
                }
            }
        }
        match event {
            StreamEvent::Progress { seconds, stages } => self.progress(*seconds, stages),
            StreamEvent::Reaching(
                Event::Uploaded { message, .. } | Event::Note { message, .. },
            ) => {
                let _ = writeln!(std::io::stderr().lock(), "note: {}", escape::line(message));
            }
            StreamEvent::Reaching(_) | StreamEvent::Started { .. } => {}
        }
    }

    fn progress(&mut self, seconds: f64, stages: &[StageReport]) {
        let bytes: Vec<u64> = stages
            .iter()
            .map(|stage| stage.received_bytes.max(stage.sent_bytes))
            .collect();
        let passed = (seconds - self.before.0).max(1e-3);
        let rate = |at: usize| {
            let before = self.before.1.get(at).copied().unwrap_or(0);
            ByteRate(((bytes[at].saturating_sub(before)) as f64 / passed) as u64)
        };
        match &mut self.place {
            Place::Silent => {}
            Place::Lines(last) => {
                if last.elapsed() < LINE_EVERY {
                    return;
                }
                *last = Instant::now();
                let rates: Vec<String> = (0..stages.len())
                    .map(|at| format!("{} {}", stages[at].stage, rate(at)))
                    .collect();
                let _ = writeln!(
                    std::io::stderr().lock(),
                    "{}: {}",
                    format_seconds(seconds),
                    rates.join(", ")
                );
            }
            Place::Bars(bars) => {
                for (at, (bar, stage)) in bars.iter().zip(stages).enumerate() {
                    bar.set_message(format!(
                        "{:<3} {:>12}  {:>9}  waits {:>3.0} % for blocks, {:>3.0} % for the next",
                        stage.stage,
                        rate(at).to_string(),
                        format_bytes(bytes[at]),
                        stage.waiting_for_input * 100.0,
                        stage.waiting_for_output * 100.0
                    ));
                }
            }
        }
        self.before = (seconds, bytes);
    }

    /// The end: prints the report as it is asked for, and gives the exit status.
    ///
    /// # Errors
    /// For a stream that is done: that its events could not be written.
    pub fn end(mut self, report: &StreamReport) -> Result<ExitCode> {
        if let Place::Bars(bars) = &self.place {
            for bar in bars {
                bar.finish_and_clear();
            }
        }
        let status = ExitCode::from(report.outcome.exit_status());
        if self.output.json {
            self.printer.event(&Printed::Ended { report });
            let printed = self.printer.end();
            if report.outcome == Outcome::Done {
                printed.context(
                    "the stream is done, but its events cannot be written to standard output",
                )?;
            }
            return Ok(status);
        }
        let text = match self.output.quiet {
            true => error(report),
            false => text(report, self.output.verbose),
        };
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
        Ok(status)
    }
}

impl screen::Show for Show {
    type Event = StreamEvent;

    fn keeping(event: &StreamEvent) -> Keeping {
        match event {
            StreamEvent::Reaching(event) => run::keeping(event),
            StreamEvent::Progress { .. } => Keeping::Newest(0),
            StreamEvent::Started { .. } => Keeping::Each,
        }
    }

    fn show(&mut self, event: StreamEvent) {
        self.handle(&event);
    }

    fn omitted(&mut self, events: u64) {
        if self.output.json {
            self.printer.omitted(events);
        }
    }

    fn taken(&self) -> Taken {
        self.printer.taken()
    }
}

/// The last event of a stream that never became a request.
pub(crate) fn print_refusal(block_bytes: u64, kind: ErrorKind, error: &str) {
    let report = StreamReport::refused(block_bytes, kind, error.lines().next().unwrap_or_default());
    Printer::default().event(&Printed::Ended { report: &report });
}

fn error(report: &StreamReport) -> String {
    let word = match report.outcome {
        Outcome::Done => return String::new(),
        Outcome::Refused => "refused",
        Outcome::Cancelled => "cancelled",
        Outcome::Partial | Outcome::Failed => "error",
    };
    let text = report.error.as_deref().unwrap_or("unknown");
    format!("ropewalk: {word}: {}\n", escape::lines(text))
}

fn text(report: &StreamReport, is_full: bool) -> String {
    if report.outcome != Outcome::Done {
        return error(report);
    }
    let moved = report.seconds - report.start_seconds;
    if let Some(shuffle) = &report.shuffle {
        let mut out = shuffled(shuffle, moved);
        if is_full {
            out += &stages(report, true);
        }
        return out;
    }
    let last = report
        .stages
        .last()
        .map_or("", |stage| stage.stage.as_str());
    let mut out = format!(
        "{} in {} blocks of {} through A to {last} in {} ({}); every block once\n",
        format_bytes(report.bytes),
        report.blocks,
        Bytes(report.block_bytes),
        format_seconds(moved),
        rate(report.bits_per_second)
    );
    out += &stages(report, is_full);
    out
}

/// What a shuffle has written.
fn shuffled(report: &ShuffleReport, seconds: f64) -> String {
    format!(
        "{} records ({}) into {} in {} ({}); every record once\n  {} to {} records a partition, most {:.2} of the mean\n",
        report.records,
        format_bytes(report.bytes),
        count(report.partitions.into(), "partition"),
        format_seconds(seconds),
        rate(report.bytes as f64 * 8.0 / seconds.max(1e-9)),
        report.least_records,
        report.most_records,
        report.imbalance
    )
}

/// Groups, and their processes where all is asked for.
fn stages(report: &StreamReport, is_full: bool) -> String {
    let mut out: String = report.stages.iter().map(row).collect();
    if let Some(name) = &report.bound_by
        && let Some(stage) = report.stages.iter().find(|stage| stage.stage == *name)
    {
        let working = stage.working() * 100.0;
        out += &format!(
            "  {name} bound the others: {working:.0} % of its time it waited for no other group\n"
        );
    }
    if is_full {
        for one in &report.processes {
            let again = match one.retransmitted_bytes {
                0 => String::new(),
                bytes => format!("; {} sent again", format_bytes(bytes)),
            };
            out += &format!(
                "    {} on {}: {} received, {} sent in {}; processor {}, memory {}{again}\n",
                one.stage,
                escape::line(&one.node),
                format_bytes(one.received_bytes),
                format_bytes(one.sent_bytes),
                format_seconds(one.seconds),
                format_seconds(one.processor_seconds),
                format_bytes(one.resident_max_bytes)
            );
        }
    }
    out
}

fn rate(bits_per_second: f64) -> String {
    ByteRate((bits_per_second / 8.0) as u64).to_string()
}

fn row(stage: &StageReport) -> String {
    format!(
        "  {:<3} {:>12}  most {:.2} of the mean  waits {:>3.0} % for blocks, {:>3.0} % for the next  processor {}  memory {}\n",
        stage.stage,
        rate(stage.bits_per_second),
        stage.imbalance,
        stage.waiting_for_input * 100.0,
        stage.waiting_for_output * 100.0,
        format_seconds(stage.processor_seconds),
        format_bytes(stage.resident_max_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One partition is no several.
    #[test]
    fn partitions_are_counted() {
        let said = |partitions| {
            let report = ShuffleReport {
                records: 2,
                bytes: 4,
                partitions,
                least_records: 1,
                most_records: 1,
                imbalance: 1.0,
            };
            shuffled(&report, 1.0)
        };
        assert!(said(1).contains(" into 1 partition in "));
        assert!(said(4).contains(" into 4 partitions in "));
    }
}
