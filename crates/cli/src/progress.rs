//! Progress on standard error: bars on a terminal, plain lines when asked for, else nothing.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use ropewalk::Event;
use ropewalk::model::{ByteRate, Bytes, format_seconds};
use ropewalk::report::NodeProgress;

use crate::options::{OutputArgs, ProgressArg};
use crate::sys;

/// Redraws a second at most.
const REDRAWS_PER_SECOND: u8 = 10;

/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Lines left free for the prompt, the total and the phase.
const LINES_FREE: usize = 4;

/// Lines of a terminal that does not say how high it is.
const LINES_UNKNOWN: usize = 24;

/// Where progress goes.
pub(crate) enum Progress {
    /// Nowhere.
    Silent,
    /// A line a second, where there is no terminal.
    Lines(Option<Instant>),
    /// Bars on a terminal.
    Bars(Bars),
}

/// A total bar, and below it a line for each node as far as the terminal reaches.
pub(crate) struct Bars {
    screen: MultiProgress,
    total: ProgressBar,
    nodes: Vec<ProgressBar>,
    more: Option<ProgressBar>,
}

fn style(template: &str) -> ProgressStyle {
    // The templates are fixed and tested.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

const TOTAL: &str = "{prefix} [{wide_bar}] {percent:>3}% {msg}";
const NODE: &str = "  {prefix:<24!} [{bar:20}] {percent:>3}% {msg}";
const TEXT: &str = "{msg}";

impl Progress {
    /// Progress as the options and the terminal ask for it.
    pub(crate) fn new(output: &OutputArgs) -> Self {
        let terminal = std::io::stderr().is_terminal();
        match output.progress {
            _ if output.quiet => Self::Silent,
            ProgressArg::Never => Self::Silent,
            ProgressArg::Auto if output.json || !terminal => Self::Silent,
            ProgressArg::Always if !terminal => Self::Lines(None),
            ProgressArg::Auto | ProgressArg::Always => Self::Bars(Bars::new()),
        }
    }

    /// Shows what happened.
    pub(crate) fn handle(&mut self, event: &Event) {
        match self {
            Self::Silent => {}
            Self::Lines(last) => {
                if let Some(line) = plain_line(event, last) {
                    let _ = writeln!(std::io::stderr().lock(), "{line}");
                }
            }
            Self::Bars(bars) => bars.handle(event),
        }
    }

    /// A remark of the command itself.
    pub(crate) fn note(&mut self, text: &str) {
        match self {
            Self::Silent => {}
            Self::Lines(_) => {
                let _ = writeln!(std::io::stderr().lock(), "ropewalk: {text}");
            }
            Self::Bars(bars) => {
                let _ = bars.screen.println(format!("ropewalk: {text}"));
            }
        }
    }

    /// Takes the bars off the screen.
    pub(crate) fn finish(&mut self) {
        if let Self::Bars(bars) = self {
            let _ = bars.screen.clear();
        }
    }
}

impl Bars {
    fn new() -> Self {
        let screen =
            MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND));
        let total = screen.add(ProgressBar::new(0).with_style(style(TEXT)));
        total.set_message("reaching the nodes");
        Self {
            screen,
            total,
            nodes: Vec::new(),
            more: None,
        }
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Reached {
                node,
                reached,
                nodes,
            } => {
                self.total
                    .set_message(format!("reached {reached} of {nodes} nodes ({node})"));
            }
            Event::Planned { .. } => {
                self.total.set_message(planned_words(event));
            }
            Event::Progress {
                delivered_bytes,
                total_bytes,
                bits_per_second,
                eta_seconds,
                receivers,
                senders,
                ..
            } => {
                self.total.set_style(style(TOTAL));
                self.total.set_prefix(Bytes(*total_bytes).to_string());
                self.total.set_length((*total_bytes).max(1));
                self.total.set_position(*delivered_bytes);
                self.total
                    .set_message(rate_and_eta(*bits_per_second, *eta_seconds));
                self.show_nodes(senders, receivers);
            }
            Event::Note { message, .. } => {
                let _ = self.screen.println(format!("note: {message}"));
            }
            Event::Ended { .. } => {}
        }
    }

    /// Receivers first: theirs are the bytes that count.
    fn show_nodes(&mut self, senders: &[NodeProgress], receivers: &[NodeProgress]) {
        let all: Vec<(&str, &NodeProgress)> = receivers
            .iter()
            .map(|node| ("to", node))
            .chain(senders.iter().map(|node| ("from", node)))
            .collect();
        let room = sys::terminal_lines()
            .unwrap_or(LINES_UNKNOWN)
            .saturating_sub(LINES_FREE);
        let shown = if all.len() > room {
            room.saturating_sub(1)
        } else {
            all.len()
        };
        while self.nodes.len() > shown {
            if let Some(bar) = self.nodes.pop() {
                self.screen.remove(&bar);
            }
        }
        while self.nodes.len() < shown {
            let bar = ProgressBar::new(1).with_style(style(NODE));
            self.nodes
                .push(self.screen.insert(self.nodes.len() + 1, bar));
        }
        for (bar, (side, node)) in self.nodes.iter().zip(&all) {
            bar.set_prefix(format!("{side:<4} {}", node.node));
            bar.set_length(node.total_bytes.max(1));
            bar.set_position(if node.total_bytes == 0 {
                1
            } else {
                node.bytes.min(node.total_bytes)
            });
            bar.set_message(rate(node.bits_per_second));
        }
        let hidden = all.len() - shown;
        if hidden > 0 {
            let more = self.more.get_or_insert_with(|| {
                self.screen.add(ProgressBar::new(1).with_style(style(TEXT)))
            });
            more.set_message(format!("  and {hidden} more nodes"));
        } else if let Some(more) = self.more.take() {
            self.screen.remove(&more);
        }
    }
}

/// A rate for people, from bits per second.
pub(crate) fn rate(bits_per_second: f64) -> String {
    ByteRate((bits_per_second.max(0.0) / 8.0) as u64).to_string()
}

fn rate_and_eta(bits_per_second: f64, eta_seconds: Option<f64>) -> String {
    match eta_seconds {
        Some(eta) => format!("{}, {} left", rate(bits_per_second), format_seconds(eta)),
        None => rate(bits_per_second),
    }
}

fn planned_words(event: &Event) -> String {
    let Event::Planned {
        bytes,
        scheduler,
        predicted_seconds,
        bound_seconds,
        bound_basis,
        ..
    } = event
    else {
        return String::new();
    };
    let mut words = format!("planned {} by {scheduler}", Bytes(*bytes));
    if let Some(seconds) = predicted_seconds {
        words.push_str(&format!(", predicted {}", format_seconds(*seconds)));
    }
    if let Some(seconds) = bound_seconds {
        words.push_str(&format!(
            ", bound {} ({bound_basis})",
            format_seconds(*seconds)
        ));
    }
    words
}

/// The line for an event, if it is due.
fn plain_line(event: &Event, last: &mut Option<Instant>) -> Option<String> {
    match event {
        Event::Reached {
            node,
            reached,
            nodes,
        } => Some(format!("reached {node} ({reached} of {nodes})")),
        Event::Planned { .. } => Some(planned_words(event)),
        Event::Progress {
            delivered_bytes,
            total_bytes,
            bits_per_second,
            eta_seconds,
            ..
        } => {
            if last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
                return None;
            }
            *last = Some(Instant::now());
            Some(format!(
                "{} of {}, {}",
                Bytes(*delivered_bytes),
                Bytes(*total_bytes),
                rate_and_eta(*bits_per_second, *eta_seconds)
            ))
        }
        Event::Note { message, .. } => Some(format!("note: {message}")),
        Event::Ended { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The templates are understood; a slip in one would show as a default bar.
    #[test]
    fn templates_are_valid() {
        for template in [TOTAL, NODE, TEXT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    /// Nodes beyond the terminal's height are counted, and lines go when nodes do.
    #[test]
    fn node_lines_are_bounded() {
        let mut bars = Bars::new();
        let node = |n: usize| NodeProgress {
            node: format!("n{n}"),
            bytes: 1,
            total_bytes: 2,
            bits_per_second: 8.0,
        };
        let many: Vec<NodeProgress> = (0..1000).map(node).collect();
        bars.show_nodes(&many, &many);
        assert!(bars.nodes.len() < 200, "{}", bars.nodes.len());
        assert!(bars.more.as_ref().unwrap().message().contains("more nodes"));
        bars.show_nodes(&many[..1], &many[..1]);
        assert_eq!(bars.nodes.len(), 2);
        assert!(bars.more.is_none());
    }
}
