//! System calls that the standard library does not offer: a child's resource use, dying with the parent, processors and
//! precedence of children and threads.

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

/// Lets the command's process run on one processor only.
pub(crate) fn pin(command: &mut Command, core: usize) {
    // SAFETY: the closure makes one system call on a local variable, as is allowed between fork and exec.
    unsafe { command.pre_exec(move || pin_thread(core)) };
}

/// Lets the calling thread, and what it starts from now on, run on one processor only.
pub(crate) fn pin_thread(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is below the set's size, as was just checked.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the pointer is to a live set of the size given; 0 names the calling thread.
    let result =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread on one processor, and what it starts meanwhile, until this goes.
pub(crate) struct Pinned(libc::cpu_set_t);

impl Pinned {
    /// Pins the calling thread.
    pub fn to(core: usize) -> io::Result<Self> {
        // SAFETY: an all-zero `cpu_set_t` is the empty set.
        let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: the pointer is to a live set of the size given, which the call fills.
        if unsafe { libc::sched_getaffinity(0, size, &raw mut before) } == -1 {
            return Err(io::Error::last_os_error());
        }
        pin_thread(core)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a live set of the size given. What was permitted before is permitted again.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

/// Takes from the command's process the privilege to precede others: no real time, no less niceness, also as root.
pub(crate) fn renounce_precedence(command: &mut Command) {
    /// `CAP_SYS_NICE` of linux/capability.h.
    const SYS_NICE: libc::c_ulong = 23;
    // SAFETY: the closure makes system calls on plain numbers, as is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            let no_limit = libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const none);
            if no_limit == -1 || libc::prctl(libc::PR_CAPBSET_DROP, SYS_NICE, 0, 0, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Processor time of the calling thread in seconds.
pub(crate) fn thread_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live structure that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Nanoseconds of the clock that all processes of the machine share.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`, which `time` is.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Has the system forget what it keeps of a file, so that reading it waits for the disk. Best effort.
pub(crate) fn forget_pages(file: &std::fs::File) {
    use std::os::fd::AsRawFd as _;
    // SAFETY: plain numbers, and a descriptor that is open for the call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> String {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list:"));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    }

    /// A thread is on its processor while it is pinned, and where it was afterwards.
    #[test]
    fn a_pin_ends() {
        let before = allowed();
        let pinned = Pinned::to(0).unwrap();
        assert_eq!(allowed(), "0");
        drop(pinned);
        assert_eq!(allowed(), before);
        assert!(Pinned::to(100_000).is_err());
    }

    /// A process that renounced precedence cannot have it back, root or not.
    #[test]
    fn precedence_is_given_up() {
        let mut command = Command::new("nice");
        command.args(["-n", "-5", "nice"]);
        renounce_precedence(&mut command);
        let output = command.output().unwrap();
        let own = Command::new("nice").output().unwrap();
        // Unless something else gave this process another niceness, that is 0.
        assert_eq!(output.stdout, own.stdout);
    }
}
