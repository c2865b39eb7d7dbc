//! The process that uses this library. `fork` copies memory, but no threads: the lists of threads that wait, which locks share in a process, name
//! those of the parent, and what a child makes would hang or crash.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;
use crate::error::Fault;

/// The process that was the first to make something here; 0 for none.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Called before anything is made that has threads or connections.
pub(crate) fn enter() -> Result<(), Error> {
    enter_as(process::id(), &FIRST)
}

fn enter_as(process: u32, first: &AtomicU32) -> Result<(), Error> {
    match first.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != process => Err(Error::Input(Fault::new(
            "this process was forked from one that has used ropewalk, and has none of its threads; start it with exec, in Python with the start method \
             `spawn` or `forkserver` of multiprocessing, or fork before ropewalk is first used",
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_a_process_that_made_something_makes_nothing() {
        let first = AtomicU32::new(0);
        for process in [7, 7] {
            assert!(enter_as(process, &first).is_ok());
        }
        let refused = enter_as(8, &first).unwrap_err();
        assert!(matches!(refused, Error::Input(_)) && !refused.is_retryable());
        assert!(refused.to_string().contains("forkserver"), "{refused}");
        assert!(enter_as(7, &first).is_ok());
    }
}
