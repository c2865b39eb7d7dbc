//! The few system calls that the standard library has no safe form of, and notes on standard output.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

/// Makes a program that was started through a descriptor, as uploaded ones are, appear as `ropewalk` in lists of processes.
///
/// It is executed once more under this name; where that fails, it goes on under the other one.
pub fn take_name() {
    use std::os::unix::process::CommandExt as _;
    const NAME: &str = "ropewalk";
    let mut arguments = std::env::args_os();
    let called = arguments.next().unwrap_or_default();
    if called.as_encoded_bytes().starts_with(b"/proc/self/fd/") {
        let mut again = std::process::Command::new("/proc/self/exe");
        let _ = again.arg0(NAME).args(arguments).exec();
    }
    // The system takes the name of a process from the path: `9` or `exe`.
    let is_path = |name: &std::ffi::CStr| matches!(name.to_bytes(), b"exe" | b"9");
    if rustix::thread::name().is_ok_and(|name| is_path(&name)) {
        let _ = rustix::thread::set_name(c"ropewalk");
    }
}

/// Prints a line on standard output; a reader that has gone, or a full disk, stops nothing.
pub fn say(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// A path that runs this very program, also after another file has taken its place: then by this process, so that the same version
/// runs while this process lives.
pub fn own_program() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let path = std::env::current_exe()?;
    let own = std::fs::metadata("/proc/self/exe")?;
    match std::fs::metadata(&path) {
        Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => Ok(path),
        _ => Ok(PathBuf::from(format!("/proc/{}/exe", std::process::id()))),
    }
}

/// Whether a person can be asked something: standard error shows it to a terminal, and that terminal is this process's own.
pub fn has_terminal() -> bool {
    std::io::stderr().is_terminal() && std::fs::File::open("/dev/tty").is_ok()
}

/// Where programs of this user keep what they can make again.
pub fn cache_folder() -> Option<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = given("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| given("HOME").map(|home| Path::new(&home).join(".cache")));
    folder.map(|folder| folder.join("ropewalk"))
}

/// Whether what is written there goes to systemd's journal: `JOURNAL_STREAM` names the device and inode of that very pipe or socket.
pub(crate) fn is_journal(output: impl std::os::fd::AsFd) -> bool {
    let Some(named) = std::env::var_os("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(output).is_ok_and(|found| {
        named.to_str() == Some(format!("{}:{}", found.st_dev, found.st_ino).as_str())
    })
}

/// Seconds of Unix time; 0 for a clock before that.
pub(crate) fn now_unix() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
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

/// Whether the end of a terminal or login leaves the process alone, as with `nohup`.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    // Signal 1 is the first bit.
    ignored.is_some_and(|ignored| ignored & 1 == 1)
}

/// SIGUSR1, by which MPICH notifies what it has started that a rank has ended, leaves the process alone.
pub fn ignore_notice() {
    // SAFETY: ignores one signal; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
}

/// A file that would grow beyond the limit of this process (`ulimit -f`) is an error of the write (EFBIG), and not its end.
pub fn survive_file_limit() {
    // SAFETY: ignores one signal; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// What is written to standard output from now on goes to standard error.
pub fn output_to_error() -> std::io::Result<()> {
    // SAFETY: both numbers are standard streams, which nothing of ours closes; no memory is involved.
    match unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Ends this process without what libraries do at the end of one.
pub fn end_at_once(is_success: bool) -> ! {
    // SAFETY: ends the process; nothing of it is used any more.
    unsafe { libc::_exit(i32::from(!is_success)) }
}
