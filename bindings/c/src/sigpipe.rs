//! Sockets of the library never end the program that uses it: a write to one that its peer has closed is an error there, and SIGPIPE, whose
//! default ends the process, is neither caught nor ignored, since both belong to the program.

use std::mem::MaybeUninit;
use std::ptr;

/// While it lives, SIGPIPE does not reach this thread, nor threads that it starts, as long as these live. One that a write of the library has
/// caused is taken back at the end; one that waited before is left.
pub(crate) struct Shield {
    old: libc::sigset_t,
    waited: bool,
}

fn sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is written by the first call, and the signal exists.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

/// Whether SIGPIPE waits for this thread.
fn waits() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is written where the call returns 0.
    unsafe {
        libc::sigpending(set.as_mut_ptr()) == 0
            && libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1
    }
}

impl Shield {
    pub fn new() -> Self {
        let waited = waits();
        let mut old = MaybeUninit::uninit();
        // SAFETY: both sets are this function's; blocking SIGPIPE cannot fail.
        let old = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe(), old.as_mut_ptr());
            old.assume_init()
        };
        Self { old, waited }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        if !self.waited && waits() {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: the set and the time are this function's; the signal is blocked in this thread.
            unsafe { libc::sigtimedwait(&sigpipe(), ptr::null_mut(), &raw const now) };
        }
        // SAFETY: the set is the one that was replaced.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.old, ptr::null_mut()) };
    }
}
