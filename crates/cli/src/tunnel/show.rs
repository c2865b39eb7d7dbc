//! What a tunnel shows while it runs and at its end.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_master::TunnelEvent;
use ropewalk_model::{ByteRate, format_bytes, format_seconds};
use ropewalk_proto::report::{ErrorKind, Event, Outcome};
use ropewalk_proto::tunnel::report::{TunnelCarried, TunnelForward, TunnelRail, TunnelReport};
use serde::Serialize;

use crate::escape;
use crate::options::{OutputArgs, ProgressArg};
use crate::print::{Printer, Taken};
use crate::run;
use crate::screen::{self, Keeping};

/// Time between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// What is printed beside the events of reaching the node.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Printed<'a> {
    Started {
        forwards: &'a [TunnelForward],
        rails: &'a [TunnelRail],
    },
    Progress {
        seconds: f64,
        #[serde(flatten)]
        carried: &'a TunnelCarried,
        rails: &'a [TunnelRail],
    },
    Note {
        seconds: f64,
        message: &'a str,
    },
    Ended {
        report: &'a TunnelReport,
    },
}

/// A tunnel while it runs.
pub(super) struct Show {
    node: String,
    output: OutputArgs,
    // What cannot be written stops no tunnel.
    printer: Printer,
    place: Place,
    // Seconds, and bytes both ways, at the last event.
    before: (f64, u64, u64),
}

enum Place {
    Silent,
    Lines(Instant),
    Bar(ProgressBar),
}

impl Show {
    pub fn new(node: &str, output: &OutputArgs) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let place = match output.progress {
            _ if output.quiet => Place::Silent,
            ProgressArg::Never => Place::Silent,
            ProgressArg::Auto if output.json || !is_terminal => Place::Silent,
            ProgressArg::Always if !is_terminal => Place::Lines(Instant::now()),
            ProgressArg::Auto | ProgressArg::Always => {
                let style = ProgressStyle::with_template("{msg}");
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                Place::Bar(ProgressBar::no_length().with_style(style))
            }
        };
        Self {
            node: node.to_owned(),
            output: output.clone(),
            printer: Printer::default(),
            place,
            before: (0.0, 0, 0),
        }
    }

    fn print(&mut self, event: &TunnelEvent) {
        match event {
            TunnelEvent::Reaching(event) => self.printer.event(event),
            TunnelEvent::Started { forwards, rails } => {
                self.printer.event(&Printed::Started { forwards, rails });
            }
            TunnelEvent::Progress {
                seconds,
                carried,
                rails,
            } => self.printer.event(&Printed::Progress {
                seconds: *seconds,
                carried,
                rails,
            }),
            TunnelEvent::Note { seconds, message } => self.printer.event(&Printed::Note {
                seconds: *seconds,
                message,
            }),
        }
    }

    fn handle(&mut self, event: &TunnelEvent) {
        if self.output.json {
            self.print(event);
        }
        match event {
            TunnelEvent::Started { forwards, .. } if !self.output.json && !self.output.quiet => {
                for forward in forwards {
                    let (listen, target) = (forward.listen.join(" and "), &forward.target);
                    let node = escape::line(&self.node);
                    let line = match forward.remote {
                        true => format!(
                            "{node} listens on {}, to {target} from here",
                            escape::line(&listen)
                        ),
                        false => format!("listening on {listen}, to {target} from {node}"),
                    };
                    self.printer.line(line);
                }
            }
            TunnelEvent::Progress {
                seconds,
                carried,
                rails,
            } => self.progress(*seconds, carried, rails),
            TunnelEvent::Note { message, .. }
            | TunnelEvent::Reaching(Event::Uploaded { message, .. }) => self.note(message),
            TunnelEvent::Reaching(_) | TunnelEvent::Started { .. } => {}
        }
    }

    fn note(&self, message: &str) {
        if self.output.quiet || self.output.json {
            return;
        }
        let line = format!("note: {}", escape::line(message));
        match &self.place {
            Place::Bar(bar) => bar.println(line),
            Place::Silent | Place::Lines(_) => {
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
        }
    }

    fn progress(&mut self, seconds: f64, carried: &TunnelCarried, rails: &[TunnelRail]) {
        let passed = (seconds - self.before.0).max(1e-3);
        let rate = |now: u64, before: u64| {
            ByteRate((now.saturating_sub(before) as f64 / passed) as u64).to_string()
        };
        let line = || {
            let up = rails.iter().filter(|rail| rail.up).count();
            format!(
                "{} connections open, {} in all; out {}, in {}; {up} of {} rails",
                carried.open_connections,
                carried.connections,
                rate(carried.sent_bytes, self.before.1),
                rate(carried.received_bytes, self.before.2),
                rails.len()
            )
        };
        match &mut self.place {
            Place::Silent => {}
            Place::Lines(last) if last.elapsed() < LINE_EVERY => return,
            Place::Lines(last) => {
                *last = Instant::now();
                let line = format!("{}: {}", format_seconds(seconds), line());
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
            Place::Bar(bar) => bar.set_message(line()),
        }
        self.before = (seconds, carried.sent_bytes, carried.received_bytes);
    }

    /// The end: prints the report as it is asked for, and gives the exit status.
    pub fn end(mut self, report: &TunnelReport) -> ExitCode {
        if let Place::Bar(bar) = &self.place {
            bar.finish_and_clear();
        }
        let status = ExitCode::from(report.outcome.exit_status());
        if self.output.json {
            self.printer.event(&Printed::Ended { report });
            return status;
        }
        let text = match report.outcome {
            Outcome::Cancelled if self.output.quiet => String::new(),
            Outcome::Cancelled => summary(report, self.output.verbose),
            _ => {
                let error = report.error.as_deref().unwrap_or("unknown");
                let word = match report.outcome {
                    Outcome::Refused => "refused",
                    _ => "error",
                };
                format!("ropewalk: {word}: {}\n", escape::lines(error))
            }
        };
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
        status
    }
}

impl screen::Show for Show {
    type Event = TunnelEvent;

    fn keeping(event: &TunnelEvent) -> Keeping {
        match event {
            TunnelEvent::Reaching(event) => run::keeping(event),
            TunnelEvent::Progress { .. } => Keeping::Newest(0),
            TunnelEvent::Started { .. } | TunnelEvent::Note { .. } => Keeping::Each,
        }
    }

    fn show(&mut self, event: TunnelEvent) {
        self.handle(&event);
    }

    fn omitted(&mut self, events: u64) {
        match self.output.json {
            true => self.printer.omitted(events),
            false => self.note(&format!("{events} events were not shown")),
        }
    }

    fn taken(&self) -> Taken {
        self.printer.taken()
    }
}

/// The last event of a tunnel that never became a request.
pub(crate) fn print_refusal(node: &str, kind: ErrorKind, error: &str) {
    let first = error.lines().next().unwrap_or_default();
    let report = TunnelReport::refused(node, kind, first);
    Printer::default().event(&Printed::Ended { report: &report });
}

/// What a tunnel carried, and each of its rails where all is asked for.
fn summary(report: &TunnelReport, is_full: bool) -> String {
    let carried = &report.carried;
    let resets = match carried.reset_connections {
        0 => String::new(),
        resets => format!(", {resets} of them reset"),
    };
    let mut out = format!(
        "ended after {}: {} connections{resets}; {} sent, {} received\n",
        format_seconds(report.seconds),
        carried.connections,
        format_bytes(carried.sent_bytes),
        format_bytes(carried.received_bytes)
    );
    for rail in report.rails.iter().filter(|_| is_full) {
        out += &format!(
            "  {}: {} sent, {} received\n",
            escape::line(&rail.rail),
            format_bytes(rail.sent_bytes),
            format_bytes(rail.received_bytes)
        );
    }
    out
}
