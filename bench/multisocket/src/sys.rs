//! System calls that no safe crate offers. All `unsafe` of the crate is here.

use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::report::Usage;

/// Set by the signal handler; a handler has no other way to reach the threads.
static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// Gives the flag that Ctrl-C or SIGTERM sets. A second signal ends the process at once.
///
/// A signal that the process was started to ignore, as shells do for what they run in the background, stays ignored.
pub(crate) fn stop_on_signals() -> &'static AtomicBool {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero `sigaction` is a valid value of that plain structure.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live structures, and the handler only stores to an atomic.
        unsafe {
            libc::sigaction(signal, &raw const action, &raw mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &raw const before, std::ptr::null_mut());
            }
        }
    }
    &STOP
}

/// What this process has used so far, all its threads together.
pub(crate) fn usage() -> Usage {
    // SAFETY: an all-zero `rusage` is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of the type that the call fills; it cannot fail for this process.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage {
        user_seconds: seconds(usage.ru_utime),
        system_seconds: seconds(usage.ru_stime),
        resident_kibibytes_max: usage.ru_maxrss.cast_unsigned(),
        swaps: usage.ru_nswap.cast_unsigned(),
        voluntary_context_switches: usage.ru_nvcsw.cast_unsigned(),
        involuntary_context_switches: usage.ru_nivcsw.cast_unsigned(),
    }
}

/// Bytes that the kernel holds for a socket: those that came and were not read, and those given to it that the other
/// side has not acknowledged. None where it does not say.
pub(crate) fn held_bytes(socket: impl AsFd) -> u64 {
    let ask = |request| {
        let mut bytes: libc::c_int = 0;
        // SAFETY: both requests write one number, to a live one.
        let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut bytes) };
        if result == 0 {
            bytes.max(0).cast_unsigned().into()
        } else {
            0
        }
    };
    ask(libc::FIONREAD) + ask(libc::TIOCOUTQ)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Bytes that nobody has read are held, on one end or the other, and none are after that.
    #[test]
    fn what_the_kernel_holds_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let held = |near: &TcpStream, far: &TcpStream| held_bytes(near) + held_bytes(far);
        assert_eq!(held(&near, &far), 0);
        near.write_all(b"five.").unwrap();
        assert!(held(&near, &far) >= 5);
        far.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(held_bytes(&far), 0);
    }
}
