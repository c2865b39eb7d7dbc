//! What is shown of a transfer: events as JSON or a list on standard output, progress on standard error, the report at the end.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ropewalk_proto::codes::EXIT_INTERRUPTED;
use ropewalk_proto::report::{Event, Report};

use crate::options::OutputArgs;
use crate::print::{Printer, Taken};
use crate::progress::Progress;
use crate::screen::{Keeping, Show};
use crate::{job, report};

/// What a transfer's command has to show.
pub(crate) enum Shown {
    /// What happened.
    Event(Event),
    /// A remark of the command itself.
    Note(String),
    /// There are several destinations: what is listed names them.
    SeveralCopies,
}

/// Shows a transfer as its options say.
pub(crate) struct Transfer {
    output: OutputArgs,
    printer: Printer,
    progress: Progress,
    is_one_copy: bool,
}

impl Transfer {
    pub fn new(output: &OutputArgs) -> Self {
        Self {
            output: output.clone(),
            printer: Printer::default(),
            progress: Progress::new(output),
            is_one_copy: true,
        }
    }

    /// Takes progress off the screen.
    pub fn leave(self) {
        self.progress.finish();
    }

    /// The end: prints the report as it is asked for, and gives the exit status.
    ///
    /// # Errors
    /// For a transfer that is done: that its events could not be written.
    pub fn end(self, report: Report) -> Result<ExitCode> {
        let Self {
            output,
            mut printer,
            progress,
            ..
        } = self;
        let shown = progress.finish();
        let status = match report.outcome.exit_status() {
            EXIT_INTERRUPTED => job::interrupted(),
            status => status,
        };
        let unwritten = unwritten(&report);
        let is_check = report.check.is_some();
        let page = output.page.as_ref();
        let page = page.map_or(Ok(()), |file| file.write(&report::page(&report)));
        match output.json {
            true => printer.event(&Event::Ended {
                report: Box::new(report),
            }),
            false => report::print(&report, &output, &shown),
        }
        let printed = printer.end();
        if status == 0 {
            printed.context(unwritten)?;
            page?;
        } else {
            // What differs is only in the list.
            let printed = printed.context(unwritten).err().filter(|_| is_check);
            for error in [printed, page.err()].into_iter().flatten() {
                let text = crate::with_causes(&error);
                eprintln!("ropewalk: {}", crate::escape::lines(&text));
            }
        }
        Ok(ExitCode::from(status))
    }

    fn event(&mut self, event: &Event) {
        if self.output.json {
            self.printer.event(event);
        } else if !self.output.quiet
            && let Some(line) = report::listed_line(event, self.is_one_copy)
        {
            self.printer.line(line);
        }
        self.progress.handle(event);
    }
}

/// What is done although standard output did not take what was found or happened.
fn unwritten(report: &Report) -> &'static str {
    match (&report.check, &report.dry_run) {
        (Some(_), _) => {
            "the comparison is done, but what it found cannot be written to standard output"
        }
        (None, Some(_)) => {
            "the dry run is done, but what it lists cannot be written to standard output; nothing was moved"
        }
        (None, None) => "the transfer is done, but its events cannot be written to standard output",
    }
}

/// What becomes of a transfer's event while readers take nothing.
pub(crate) fn keeping(event: &Event) -> Keeping {
    match event {
        // Of these one is true at a time.
        Event::Progress { .. }
        | Event::Scanning { .. }
        | Event::AwaitingEnd { .. }
        | Event::Removing { .. } => Keeping::Newest(0),
        Event::Comparing { .. } => Keeping::Newest(1),
        Event::Awaiting { .. } => Keeping::Newest(2),
        Event::Waiting { .. } => Keeping::Newest(3),
        Event::Listed { .. } => Keeping::Awaited,
        // Each says how many are reached.
        Event::Reached { .. } => Keeping::Joined(5),
        Event::HandedOver { .. }
        | Event::Returned { .. }
        | Event::Repeating { .. }
        | Event::Asking { .. }
        | Event::Uploaded { .. }
        | Event::Planned { .. }
        | Event::Note { .. }
        | Event::Ended { .. } => Keeping::Each,
    }
}

impl Show for Transfer {
    type Event = Shown;

    fn keeping(shown: &Shown) -> Keeping {
        match shown {
            Shown::Event(event) => keeping(event),
            Shown::Note(_) => Keeping::Each,
            Shown::SeveralCopies => Keeping::Newest(4),
        }
    }

    fn show(&mut self, shown: Shown) {
        match shown {
            Shown::Event(event) => self.event(&event),
            Shown::Note(text) => self.progress.note(&text),
            Shown::SeveralCopies => self.is_one_copy = false,
        }
    }

    fn omitted(&mut self, events: u64) {
        match self.output.json {
            true => self.printer.omitted(events),
            false => self
                .progress
                .note(&format!("{events} events were not shown")),
        }
    }

    fn taken(&self) -> Taken {
        self.printer.taken()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::report::{CheckReport, DryRunReport, Outcome};

    use super::*;

    /// A list that cannot be written is that of a dry run or a comparison, which moved nothing.
    #[test]
    fn what_was_done_is_named_where_output_fails() {
        let mut report = Report::ended(Outcome::Done);
        assert!(unwritten(&report).starts_with("the transfer is done"));
        report.dry_run = Some(DryRunReport::default());
        assert!(unwritten(&report).starts_with("the dry run is done"));
        report.dry_run = None;
        report.check = Some(CheckReport::default());
        assert!(unwritten(&report).starts_with("the comparison is done"));
    }
}
