//! What a program says to the service manager that started it, and to the journal.

use std::io::Write as _;

use ropewalk_agent::{Entry, Level};
use sd_notify::NotifyState;

use crate::sys;

/// Says that the program serves now, and how. Without a service manager (`NOTIFY_SOCKET`) it does nothing.
pub(crate) fn ready(status: &str) {
    // One that has gone does not matter.
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says that the program ends, and may take a while.
pub(crate) fn stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

/// One line on standard error; a reader that has gone stops nothing. The journal has times of its own, and takes a level in front.
pub(crate) fn log(entry: &Entry) {
    let mut err = std::io::stderr().lock();
    let _ = match sys::is_journal(std::io::stderr()) {
        true => writeln!(err, "<{}>{}", priority(entry.level), entry.text),
        false => writeln!(err, "{entry}"),
    };
}

/// As in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::Warning => 4,
        Level::Notice => 5,
        Level::Info => 6,
    }
}
