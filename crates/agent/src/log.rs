//! The log of an agent that listens: one line for each transfer that begins or ends, each refusal, and
//! unauthenticated connections, of those so many a second.
//!
//! A thread of its own writes, so that a reader of the log that stops holds nothing up: lines that do not fit
//! into the queue are counted, and the count is written later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_proto::admission::{Quota, STRANGER_LINES_PER_SECOND};

/// Lines that wait to be written; more are counted.
const QUEUE_MAX: usize = 1024;

/// Longest line in characters: an error of a peer is cut there.
const LINE_MAX: usize = 1024;

/// How long the end of an agent waits for its last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Gets one line, without its end.
pub type LogSink = Arc<dyn Fn(&Entry) + Send + Sync>;

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A peer without a token or certificate.
    Notice,
    /// A transfer begins or ends.
    Info,
    /// A request of a peer with a token was refused.
    Warning,
}

/// A line of the log; shown with its time in front.
#[derive(Clone, Debug)]
pub struct Entry {
    /// How much it matters.
    pub level: Level,
    /// When, as `2026-11-22T22:42:01Z`.
    pub at: String,
    /// One line without control characters.
    pub text: String,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.at, self.text)
    }
}

/// Where lines go; by default nowhere.
#[derive(Clone, Default)]
pub(crate) struct Log(Option<Queue>);

#[derive(Clone)]
struct Queue {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

enum Line {
    Of {
        at: SystemTime,
        text: String,
        level: Level,
    },
    /// Nothing follows it.
    Last,
}

/// The thread that writes.
pub(crate) struct Writer {
    ended: Receiver<()>,
}

impl Writer {
    /// Waits until what was logged is written, for a while.
    pub fn flush(self) {
        // Closed by the thread's end.
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

impl Log {
    /// A log that writes to `sink`, and its thread, which ends with [`Log::close`] or the last clone of the log.
    pub fn start(sink: LogSink) -> std::io::Result<(Self, Writer)> {
        let (lines, queue) = sync_channel(QUEUE_MAX);
        let (end, ended) = sync_channel::<()>(0);
        let lost = Arc::new(AtomicU64::new(0));
        let seen = lost.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || {
                write(&queue, &seen, &sink);
                drop(end);
            })?;
        Ok((Self(Some(Queue { lines, lost })), Writer { ended }))
    }

    /// Something that only peers with a token or certificate cause.
    pub fn say(&self, text: impl FnOnce() -> String) {
        self.push(text, Level::Info);
    }

    /// The same, where what was asked is not done.
    pub fn warn(&self, text: impl FnOnce() -> String) {
        self.push(text, Level::Warning);
    }

    /// Something that any peer can cause.
    pub fn stranger(&self, text: impl FnOnce() -> String) {
        self.push(text, Level::Notice);
    }

    /// Ends the thread once it has written what there is.
    pub fn close(&self) {
        if let Some(queue) = &self.0 {
            // A full queue belongs to a sink that stands still: nothing is lost by not waiting for it.
            let _ = queue.lines.try_send(Line::Last);
        }
    }

    fn push(&self, text: impl FnOnce() -> String, level: Level) {
        let Some(queue) = &self.0 else {
            return;
        };
        let line = Line::Of {
            at: SystemTime::now(),
            text: text(),
            level,
        };
        if queue.lines.try_send(line).is_err() {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(queue: &Receiver<Line>, lost: &AtomicU64, sink: &LogSink) {
    let mut quota = Quota::new(STRANGER_LINES_PER_SECOND);
    loop {
        // Nothing is counted: nothing needs telling before the next line.
        let next = match quota.holds() || lost.load(Ordering::Relaxed) > 0 {
            true => queue.recv_timeout(Duration::from_secs(1)),
            false => queue.recv().map_err(RecvTimeoutError::from),
        };
        let now = match &next {
            Ok(Line::Of { at, .. }) => *at,
            Ok(Line::Last) | Err(_) => SystemTime::now(),
        };
        let second = seconds(now);
        quota.count(lost.swap(0, Ordering::Relaxed));
        let is_end = matches!(next, Ok(Line::Last) | Err(RecvTimeoutError::Disconnected));
        // The last count is not held back.
        if let Some(more) = quota.take_held(if is_end { u64::MAX } else { second }) {
            sink(&Entry {
                level: Level::Notice,
                at: stamp(second),
                text: format!("and {more} more lines like these"),
            });
        }
        match next {
            Ok(Line::Of { text, level, .. }) => {
                if level != Level::Notice || quota.admit(second) {
                    sink(&Entry {
                        level,
                        at: stamp(second),
                        text: clean(&text),
                    });
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Line::Last) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// One line, whatever a peer has put into it.
fn clean(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars().take(LINE_MAX) {
        match letter.is_control() {
            true => out.extend(letter.escape_default()),
            false => out.push(letter),
        }
    }
    out
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Seconds since 1970 as date and time in UTC.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end; 719,468 days before 1970 one of 400 years begins.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Dates as `date -u -d @SECONDS` prints them.
    #[test]
    fn dates_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_795_387_321, "2026-11-22T22:42:01Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(stamp(seconds), text);
        }
    }

    /// A flood of strangers leaves some lines and a count that together are all of it; what peers with a token do is
    /// always written, on one line, without control characters.
    #[test]
    fn strangers_are_bounded_and_peers_are_not() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let sink: LogSink = Arc::new(move |line: &Entry| kept.lock().push(line.to_string()));
        let (log, writer) = Log::start(sink).unwrap();
        for number in 0..500 {
            log.stranger(|| format!("stranger {number}"));
        }
        for number in 0..20 {
            log.say(|| format!("peer {number}\n\u{1b}[2J"));
        }
        log.close();
        let _ = writer.ended.recv_timeout(Duration::from_secs(60));
        let lines = lines.lock();
        let said = lines
            .iter()
            .filter(|line| line.contains("stranger"))
            .count();
        let more = |line: &String| {
            let (_, rest) = line.split_once(" and ")?;
            rest.split_once(" more lines")?.0.parse::<usize>().ok()
        };
        let counted: usize = lines.iter().filter_map(more).sum();
        assert_eq!(said + counted, 500, "{lines:#?}");
        assert!(counted > 0);
        let peers: Vec<&String> = lines.iter().filter(|line| line.contains("peer")).collect();
        assert_eq!(peers.len(), 20);
        assert!(peers[3].ends_with("Z peer 3\\n\\u{1b}[2J"), "{}", peers[3]);
    }
}
