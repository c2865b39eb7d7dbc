//! The two system calls that the standard library does not offer: a child's resource use, and dying with the parent.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

/// What a child that has ended used, with all descendants it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// User and system time.
    pub processor_seconds: f64,
}

/// Takes note of the end of a child; `None` while it runs and `block` is false.
pub(crate) fn wait(pid: u32, block: bool) -> io::Result<Option<(ExitStatus, Used)>> {
    let mut status = 0;
    let options = if block { 0 } else { libc::WNOHANG };
    // SAFETY: an all-zero `rusage` is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers refer to live local variables of the types that the call fills.
        let result = unsafe { libc::wait4(pid.cast_signed(), &mut status, options, &mut usage) };
        match result {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => break,
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let processor_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok(Some((
        ExitStatus::from_raw(status),
        Used { processor_seconds },
    )))
}

/// Sends a signal to a child that has not been waited for.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: the call touches no memory; the caller's child keeps the number from being given to another process.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Makes the command's process end when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure makes one system call and allocates nothing, as is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}
