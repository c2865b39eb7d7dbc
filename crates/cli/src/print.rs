//! Lines on standard output: events as JSON, and lists.

use std::io::{self, ErrorKind, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_proto::report::{ErrorKind as Kind, Event, FORMAT_VERSION, Outcome, Report};
use serde::Serialize;

/// Bytes written at once, so that a reader that takes some of a long line is seen to take them.
const PIECE: usize = 4 << 10;

/// Counts what readers take. Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken(Arc<AtomicU64>);

impl Taken {
    /// Something was taken.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Prints lines on standard output. A reader that has gone stops nothing.
#[derive(Debug, Default)]
pub(crate) struct Printer {
    taken: Taken,
    // The first error, save a reader that has gone. It stops nothing either.
    failure: Option<io::Error>,
}

/// What is printed between the events of any command.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Aside {
    /// Events were lost here, as they were not read.
    Omitted { events: u64 },
}

/// An event as one line of JSON, with the version of the format.
fn line_of<E: Serialize>(event: &E) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Line<'a, E> {
        version: u32,
        #[serde(flatten)]
        event: &'a E,
    }
    let version = FORMAT_VERSION;
    serde_json::to_string(&Line { version, event })
}

impl Printer {
    /// Prints an event as a line of JSON.
    pub fn event<E: Serialize>(&mut self, event: &E) {
        match line_of(event) {
            Ok(line) => self.line(line),
            Err(error) => self.fail(io::Error::other(error)),
        }
    }

    /// Prints that events were lost here.
    pub fn omitted(&mut self, events: u64) {
        self.event(&Aside::Omitted { events });
    }

    /// Prints a line.
    pub fn line(&mut self, mut line: String) {
        line.push('\n');
        match self.write(&line) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => self.fail(error),
            Ok(()) | Err(_) => {}
        }
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for piece in line.as_bytes().chunks(PIECE) {
            out.write_all(piece)?;
            out.flush()?;
            self.taken.add();
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) {
        self.failure.get_or_insert(error);
    }

    /// Counts what its readers take.
    pub fn taken(&self) -> Taken {
        self.taken.clone()
    }

    /// The first line that could not be written.
    ///
    /// # Errors
    /// Why it could not.
    pub fn end(self) -> io::Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// The last event of a transfer that never became a request.
pub(crate) fn print_refusal(kind: Kind, error: &str) {
    let report = Report {
        error: Some(error.to_owned()),
        error_kind: Some(kind),
        ..Report::ended(Outcome::Refused)
    };
    Printer::default().event(&Event::Ended {
        report: Box::new(report),
    });
}
