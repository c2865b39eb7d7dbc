//! The few system calls that the standard library has no safe form of, and a word on standard output.

use std::io::{IsTerminal as _, Write as _};

/// Prints a line on standard output; a reader that has gone, or a full disk, stops nothing.
pub fn say(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Whether a person can be asked something: standard error shows it to a terminal, and that terminal is this process's own.
pub fn has_terminal() -> bool {
    std::io::stderr().is_terminal() && std::fs::File::open("/dev/tty").is_ok()
}

/// The user this process acts as.
pub fn user_id() -> u32 {
    // SAFETY: takes nothing, cannot fail, touches no memory of ours.
    unsafe { libc::geteuid() }
}

/// Lines and columns of the terminal on standard error; `None` when it is no terminal.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request writes one `winsize`, which `size` is, and keeps no pointer to it.
    let answer = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0 && size.ws_row > 0 && size.ws_col > 0)
        .then_some((usize::from(size.ws_row), usize::from(size.ws_col)))
}

/// Makes writing to a closed pipe end the process quietly, as other programs of a pipeline do.
///
/// Only for commands that own no transfer: one that moves data must outlive its reader.
pub fn end_on_closed_pipe() {
    // SAFETY: restores the system's default for one signal; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Undoes [`end_on_closed_pipe`], for a command that still has files to write when its reader has gone.
pub fn survive_closed_pipe() {
    // SAFETY: ignores one signal, as the standard library does from the beginning.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// The end of a terminal or login leaves the process alone.
pub fn ignore_hangup() {
    // SAFETY: ignores one signal; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}
