//! Progress on standard error: bars on a terminal, plain lines when asked for, else nothing.

use std::cmp::Ordering;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use ropewalk_model::format_bytes;
use ropewalk_proto::report::Event;
use ropewalk_proto::report::NodeProgress;

use crate::options::{OutputArgs, ProgressArg};
use crate::{escape, sys};

mod words;

use self::words::{awaited_words, moving, planned_words};
pub(crate) use self::words::{busy_words, now_words, rate, waiting_words};

/// Redraws a second at most.
const REDRAWS_PER_SECOND: u8 = 10;

/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Lines left free for the prompt, the total and the phase.
const LINES_FREE: usize = 4;

/// Lines of a terminal that does not say how high it is.
const LINES_UNKNOWN: usize = 24;

/// Columns below which a node's row has no bar: with one it would wrap.
const COLUMNS_MIN: usize = 72;

/// Notes remembered as shown; the report of a transfer with more repeats the rest.
const NOTES_MAX: usize = 1000;

/// What is shown of a transfer that runs, and which notes have been.
pub(crate) struct Progress {
    place: Place,
    notes: Vec<String>,
    // Why nodes are waited for, as it was said last.
    waiting: Option<String>,
}

/// Where progress goes.
enum Place {
    /// Nowhere.
    Silent,
    /// Where there is no terminal: programs that are put on other hosts, and hosts that are awaited.
    Rare { awaiting: bool },
    /// A line a second, where there is no terminal.
    Lines(Option<Instant>),
    /// Bars on a terminal.
    Bars(Bars),
}

/// A total bar, and below it a line for each node as far as the terminal reaches.
struct Bars {
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
const NODE_NARROW: &str = "  {prefix:<16!} {percent:>3}% {msg}";
const TEXT: &str = "{msg}";

impl Progress {
    /// Progress as the options and the terminal ask for it.
    pub(crate) fn new(output: &OutputArgs) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let place = match output.progress {
            _ if output.quiet => Place::Silent,
            ProgressArg::Never => Place::Silent,
            ProgressArg::Auto if output.json => Place::Silent,
            ProgressArg::Auto if !terminal => Place::Rare {
                awaiting: output.verbose,
            },
            ProgressArg::Always if !terminal => Place::Lines(None),
            ProgressArg::Auto | ProgressArg::Always => Place::Bars(Bars::new()),
        };
        Self {
            place,
            notes: Vec::new(),
            waiting: None,
        }
    }

    /// Whether an event of waiting says something new; others do.
    fn is_new(&mut self, event: &Event) -> bool {
        match event {
            Event::Waiting { reason, .. } => {
                self.waiting.replace(reason.clone()).as_ref() != Some(reason)
            }
            Event::Returned { .. } => {
                self.waiting = None;
                true
            }
            _ => true,
        }
    }

    /// Shows what happened.
    pub(crate) fn handle(&mut self, event: &Event) {
        let is_new = self.is_new(event);
        if let Event::Note { message, .. } = event
            && !matches!(self.place, Place::Silent | Place::Rare { .. })
            && self.notes.len() < NOTES_MAX
        {
            self.notes.push(message.clone());
        }
        match &mut self.place {
            Place::Silent => {}
            Place::Rare { awaiting } => {
                let line = match event {
                    Event::Awaiting { .. } if *awaiting => awaited_words(event),
                    Event::Waiting { .. } if is_new => waiting_words(event),
                    Event::Returned { .. } | Event::Repeating { .. } => waiting_words(event),
                    // It stays on that host.
                    Event::Uploaded { message, .. } => format!("note: {}", escape::line(message)),
                    _ => return,
                };
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
            Place::Lines(last) => {
                if is_new && let Some(line) = plain_line(event, last) {
                    let _ = writeln!(std::io::stderr().lock(), "{line}");
                }
            }
            Place::Bars(bars) => bars.handle(event),
        }
    }

    /// A remark of the command itself.
    pub(crate) fn note(&mut self, text: &str) {
        match &mut self.place {
            Place::Silent | Place::Rare { awaiting: false } => {}
            Place::Rare { awaiting: true } | Place::Lines(_) => {
                let _ = writeln!(std::io::stderr().lock(), "ropewalk: {}", escape::line(text));
            }
            Place::Bars(bars) => {
                let _ = bars
                    .screen
                    .println(format!("ropewalk: {}", escape::line(text)));
            }
        }
    }

    /// Takes the bars off the screen; returns the notes that stay on it.
    pub(crate) fn finish(self) -> Vec<String> {
        if let Place::Bars(bars) = &self.place {
            let _ = bars.screen.clear();
        }
        self.notes
    }
}

impl Bars {
    fn new() -> Self {
        Self::on(ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND))
    }

    fn on(target: ProgressDrawTarget) -> Self {
        let screen = MultiProgress::with_draw_target(target);
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
        // A question stands where the bars were.
        let target = match event {
            Event::Asking { .. } => {
                let _ = self.screen.clear();
                ProgressDrawTarget::hidden()
            }
            _ => ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND),
        };
        if self.screen.is_hidden() || matches!(event, Event::Asking { .. }) {
            self.screen.set_draw_target(target);
        }
        match event {
            Event::Awaiting { .. } => self.total.set_message(awaited_words(event)),
            Event::Waiting { .. } => {
                // What rows show is of nodes that move something.
                self.show_nodes(&[], &[]);
                self.total.set_style(style(TEXT));
                self.total.set_message(waiting_words(event));
            }
            Event::Returned { .. } | Event::Repeating { .. } => {
                let _ = self.screen.println(waiting_words(event));
                self.total.set_message("reaching the nodes");
            }
            Event::Asking { .. } => {}
            Event::Reached {
                node,
                reached,
                nodes,
            } => {
                self.total.set_message(format!(
                    "reached {reached} of {nodes} nodes ({})",
                    escape::line(node)
                ));
            }
            Event::Planned { .. } => {
                self.total.set_message(planned_words(event));
            }
            Event::Progress {
                delivered_bytes,
                received_bytes,
                total_bytes,
                bits_per_second,
                eta_seconds,
                receivers,
                senders,
                bottlenecks,
                ..
            } => {
                // Each call may draw: the bar is shown once it has its length and position.
                self.total.set_length((*total_bytes).max(1));
                self.total.set_position(*received_bytes);
                self.total.set_prefix(format_bytes(*total_bytes));
                self.total.set_style(style(TOTAL));
                self.total.set_message(format!(
                    "{} safe, {}",
                    format_bytes(*delivered_bytes),
                    moving(*bits_per_second, *eta_seconds, bottlenecks)
                ));
                self.show_nodes(senders, receivers);
            }
            Event::Scanning { .. }
            | Event::Comparing { .. }
            | Event::AwaitingEnd { .. }
            | Event::Removing { .. } => {
                self.show_nodes(&[], &[]);
                self.total.set_style(style(TEXT));
                self.total.set_message(busy_words(event));
            }
            Event::Note { message, .. } | Event::Uploaded { message, .. } => {
                let _ = self
                    .screen
                    .println(format!("note: {}", escape::line(message)));
            }
            Event::HandedOver { .. } | Event::Listed { .. } | Event::Ended { .. } => {}
        }
    }

    fn show_nodes(&mut self, senders: &[NodeProgress], receivers: &[NodeProgress]) {
        let (lines, columns) = sys::terminal_size().unwrap_or((LINES_UNKNOWN, usize::MAX));
        let room = lines.saturating_sub(LINES_FREE);
        let count = senders.len() + receivers.len();
        let shown = if count > room {
            room.saturating_sub(1)
        } else {
            count
        };
        let all = rows(senders, receivers, shown);
        let template = match columns < COLUMNS_MIN {
            true => NODE_NARROW,
            false => NODE,
        };
        while self.nodes.len() > shown {
            if let Some(bar) = self.nodes.pop() {
                self.screen.remove(&bar);
            }
        }
        while self.nodes.len() < shown {
            let bar = ProgressBar::new(1);
            self.nodes
                .push(self.screen.insert(self.nodes.len() + 1, bar));
        }
        for (bar, (side, node)) in self.nodes.iter().zip(&all) {
            bar.set_style(style(template));
            bar.set_prefix(format!("{side:<4} {}", escape::line(&node.node)));
            bar.set_length(node.total_bytes.max(1));
            bar.set_position(if node.total_bytes == 0 {
                1
            } else {
                node.bytes.min(node.total_bytes)
            });
            bar.set_message(rate(node.bits_per_second));
        }
        let hidden = count - shown;
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

/// The nodes that have a row: receivers first, since theirs are the bytes that count. Where not all have room, those that are
/// furthest behind; each side in the order of its names.
fn rows<'n>(
    senders: &'n [NodeProgress],
    receivers: &'n [NodeProgress],
    shown: usize,
) -> Vec<(&'static str, &'n NodeProgress)> {
    let part = |node: &NodeProgress| match node.total_bytes {
        0 => 1.0,
        total => node.bytes as f64 / total as f64,
    };
    let mut out = Vec::new();
    for (side, nodes) in [("to", receivers), ("from", senders)] {
        let mut nodes: Vec<&NodeProgress> = nodes.iter().collect();
        let room = shown - out.len();
        if nodes.len() > room {
            nodes.sort_by(|a, b| part(a).total_cmp(&part(b)));
            nodes.truncate(room);
        }
        nodes.sort_by(|a, b| by_number(&a.node, &b.node));
        out.extend(nodes.into_iter().map(|node| (side, node)));
    }
    out
}

/// The order of names in which `r2` comes before `r10`.
pub(crate) fn by_number(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(first), Some(second)) = (left.chars().next(), right.chars().next()) {
        let digits = |text: &str| {
            text.find(|letter: char| !letter.is_ascii_digit())
                .unwrap_or(text.len())
        };
        let (one, other) = (digits(left), digits(right));
        if one > 0 && other > 0 {
            let number = |text: &str| text.trim_start_matches('0').to_owned();
            let (a, b) = (number(&left[..one]), number(&right[..other]));
            let order = a.len().cmp(&b.len()).then(a.cmp(&b));
            if order != Ordering::Equal {
                return order;
            }
            (left, right) = (&left[one..], &right[other..]);
        } else if first != second {
            return first.cmp(&second);
        } else {
            (left, right) = (&left[first.len_utf8()..], &right[second.len_utf8()..]);
        }
    }
    left.len().cmp(&right.len()).then(a.cmp(b))
}

/// Whether the next plain line is due.
fn due(last: &mut Option<Instant>) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

/// The line for an event, if it is due.
fn plain_line(event: &Event, last: &mut Option<Instant>) -> Option<String> {
    match event {
        Event::Progress { .. }
        | Event::Scanning { .. }
        | Event::Comparing { .. }
        | Event::AwaitingEnd { .. }
        | Event::Removing { .. } => due(last).then(|| now_words(event))?,
        Event::Planned { .. } => Some(planned_words(event)),
        Event::Note { message, .. } | Event::Uploaded { message, .. } => {
            Some(format!("note: {}", escape::line(message)))
        }
        _ => now_words(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The templates are understood; a slip in one would show as a default bar.
    #[test]
    fn templates_are_valid() {
        for template in [TOTAL, NODE, NODE_NARROW, TEXT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    /// Where there is no terminal a wait is one line, and another one where its reason is another.
    #[test]
    fn a_wait_is_said_once() {
        let waiting = |seconds, reason: &str, most_seconds| Event::Waiting {
            awaited: ["a", "b", "c", "d", "e\u{1b}"].map(str::to_owned).into(),
            reason: reason.into(),
            seconds,
            most_seconds,
        };
        let mut progress = Progress {
            place: Place::Silent,
            notes: Vec::new(),
            waiting: None,
        };
        let returned = Event::Returned {
            returned: vec!["a".into()],
            seconds: 12.0,
        };
        let events = [
            (waiting(0.0, "gone", None), true),
            (waiting(1.0, "gone", None), false),
            (waiting(2.0, "no route", None), true),
            (returned.clone(), true),
            (waiting(0.0, "no route", None), true),
        ];
        for (event, is_new) in &events {
            assert_eq!(progress.is_new(event), *is_new, "{event:?}");
        }
        assert_eq!(
            waiting_words(&waiting(12.9, "gone\u{1b}", Some(300.0))),
            "waiting for a, b, c, d and 1 more, 12 s of 5 min 00 s (gone\\u{1b})"
        );
        assert_eq!(waiting_words(&returned), "reached a again after 12 s");
    }

    /// What is drawn on a terminal, frame by frame.
    #[derive(Clone, Debug, Default)]
    struct Frames(std::sync::Arc<std::sync::Mutex<String>>);

    impl indicatif::TermLike for Frames {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// No frame shows a part that has not been reached.
    #[test]
    fn the_first_frame_is_at_the_beginning() {
        let frames = Frames::default();
        let mut bars = Bars::on(ProgressDrawTarget::term_like(Box::new(frames.clone())));
        bars.handle(&Event::Planned {
            transfer: "id".into(),
            bytes: 200,
            files: 1,
            sources: None,
            scheduler: "optimal".into(),
            predicted_seconds: None,
            bound_seconds: None,
            bound_basis: "none".into(),
        });
        bars.handle(&Event::Progress {
            seconds: 0.0,
            delivered_bytes: 0,
            received_bytes: 0,
            total_bytes: 200,
            bits_per_second: 0.0,
            eta_seconds: None,
            receivers: Vec::new(),
            senders: Vec::new(),
            bottlenecks: Vec::new(),
        });
        let drawn = frames.0.lock().unwrap().clone();
        assert!(drawn.contains("planned 200 B"), "{drawn}");
        assert!(drawn.contains("  0% 0 B safe"), "{drawn}");
        assert!(!drawn.contains("100%"), "{drawn}");
    }

    /// Nodes beyond the terminal's height are counted, and lines go when nodes do.
    #[test]
    fn node_lines_are_bounded() {
        let mut bars = Bars::new();
        let node = |n: usize| NodeProgress {
            node: format!("n{n}"),
            bytes: 1,
            safe_bytes: 0,
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

    /// Numbers in names count as numbers.
    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let mut names = ["r10", "r2", "b", "r1", "r02x", "r2:7", "a10:8", "a9:7", "r"];
        names.sort_by(|a, b| by_number(a, b));
        assert_eq!(
            names,
            ["a9:7", "a10:8", "b", "r", "r1", "r2", "r2:7", "r02x", "r10"]
        );
    }

    /// Where not all nodes have a row, the ones behind have, receivers before senders.
    #[test]
    fn those_behind_are_shown() {
        let node = |name: &str, bytes| NodeProgress {
            node: name.into(),
            bytes,
            safe_bytes: 0,
            total_bytes: 10,
            bits_per_second: 0.0,
        };
        let receivers = [node("r1", 9), node("r10", 2), node("r2", 1)];
        let senders = [node("s1", 0)];
        let shown = |room| {
            let rows = rows(&senders, &receivers, room);
            rows.iter()
                .map(|(_, node)| node.node.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(2), ["r2", "r10"]);
        assert_eq!(shown(4), ["r1", "r2", "r10", "s1"]);
    }
}
