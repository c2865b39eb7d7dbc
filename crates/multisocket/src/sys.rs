//! System calls that no safe crate offers. All `unsafe` of the crate is here.

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
