//! What both sides do alike: enough descriptors, connections dealt to threads, the end of silence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{MultisocketError, system};
use crate::watch::go_on;

/// Longest time in which no byte moves on any connection of a thread: longer than TCP takes to find a way again.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Descriptors that a process has anyway: standard streams, epoll, what libraries open.
const DESCRIPTORS_ASIDE: u64 = 32;

/// Raises the soft limit of open files when `connections` and `more` need it.
///
/// # Errors
/// [`MultisocketError::Descriptors`] when the hard limit is below that.
pub(crate) fn allow_descriptors(connections: u32, more: u64) -> Result<(), MultisocketError> {
    let needed = u64::from(connections) + more + DESCRIPTORS_ASIDE;
    let limit = getrlimit(Resource::Nofile);
    // No limit is a limit that is high enough.
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(maximum) = limit.maximum.filter(|maximum| *maximum < needed) {
        return Err(MultisocketError::Descriptors {
            connections,
            needed,
            limit: maximum,
        });
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| system("raising the limit of open files")(error.into()))
}

/// Asked by the loops of threads between two waits.
#[derive(Debug)]
pub(crate) struct Halt<'s> {
    stop: &'s AtomicBool,
    failed: &'s AtomicBool,
    moved_at: Instant,
    /// What kernels held when nothing seemed to have moved for too long.
    held: u64,
}

impl Halt<'_> {
    /// Takes note that bytes moved, and says whether to go on. Threads are not woken for every byte: what `held` gives, the
    /// bytes in the kernel, is asked for when nothing seems to have moved for too long. What `open` gives is named when that
    /// has not changed either: how many connections are not done, and the first of them.
    pub(crate) fn check(
        &mut self,
        has_moved: bool,
        held: impl FnOnce() -> u64,
        open: impl FnOnce() -> (usize, u32),
    ) -> Result<(), MultisocketError> {
        go_on(self.stop)?;
        go_on(self.failed)?;
        if has_moved {
            self.moved_at = Instant::now();
        } else if self.moved_at.elapsed() > SILENCE_MAX {
            let before = std::mem::replace(&mut self.held, held());
            if self.held != before {
                self.moved_at = Instant::now();
                return Ok(());
            }
            let (open, index) = open();
            return Err(MultisocketError::Silent {
                seconds: SILENCE_MAX.as_secs(),
                open,
                index,
            });
        }
        Ok(())
    }
}

/// Deals connections to threads, each of which runs `drive` on its share; gives them back when all are done.
///
/// # Errors
/// The first that a thread ended with; the others are stopped by it.
pub(crate) fn run<C: Send>(
    connections: Vec<C>,
    threads: usize,
    stop: &AtomicBool,
    drive: impl Fn(&mut [C], Halt<'_>) -> Result<(), MultisocketError> + Sync,
) -> Result<Vec<C>, MultisocketError> {
    let mut shares: Vec<Vec<C>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, connection) in connections.into_iter().enumerate() {
        shares[at % threads].push(connection);
    }
    let failed = AtomicBool::new(false);
    let work = |mut share: Vec<C>| {
        let halt = Halt {
            stop,
            failed: &failed,
            moved_at: Instant::now(),
            held: 0,
        };
        let result = drive(&mut share, halt);
        if result.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        result.map(|()| share)
    };
    let results = thread::scope(|scope| {
        let work = &work;
        let start = |share| {
            let thread = thread::Builder::new().name("mover".into());
            let started = thread.spawn_scoped(scope, move || work(share));
            started.map_err(|error| {
                failed.store(true, Ordering::Relaxed);
                system("starting a thread")(error)
            })
        };
        let started: Vec<_> = shares.into_iter().map(start).collect();
        let end = |thread: Result<thread::ScopedJoinHandle<'_, _>, MultisocketError>| {
            let ended = thread?.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        started.into_iter().map(end).collect::<Vec<_>>()
    });
    let mut done = Vec::new();
    let mut interrupted = None;
    for result in results {
        match result {
            Ok(share) => done.extend(share),
            // A thread that another one stopped says the same as one that a signal stopped.
            Err(error @ MultisocketError::Interrupted) => interrupted = Some(error),
            // The other side may have seen one thread go before this one learned of the signal.
            Err(_) if stop.load(Ordering::Relaxed) => {
                interrupted = Some(MultisocketError::Interrupted);
            }
            Err(error) => return Err(error),
        }
    }
    interrupted.map_or(Ok(done), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    /// Every connection is driven once, whatever the number of threads.
    #[test]
    fn all_are_driven() {
        for threads in [1, 3, 10] {
            let drive = |share: &mut [u32], _: Halt<'_>| {
                for connection in share {
                    *connection += 100;
                }
                Ok(())
            };
            let mut done = run((0..10).collect(), threads, &GO, drive).unwrap();
            done.sort_unstable();
            assert_eq!(done, (100..110).collect::<Vec<_>>());
        }
    }

    /// Silence ends a thread only when it has lasted, in the kernel, too, and says who was silent.
    #[test]
    fn silence() {
        let long_ago = Instant::now().checked_sub(2 * SILENCE_MAX).unwrap();
        let mut halt = Halt {
            stop: &GO,
            failed: &GO,
            moved_at: long_ago,
            held: 0,
        };
        halt.check(false, || 5, || (3, 7)).unwrap();
        halt.moved_at = long_ago;
        let error = halt.check(false, || 5, || (3, 7)).unwrap_err();
        let is_named = matches!(
            error,
            MultisocketError::Silent {
                open: 3,
                index: 7,
                ..
            }
        );
        assert!(is_named, "{error}");
        halt.check(true, || 5, || (3, 7)).unwrap();
        halt.check(false, || 5, || (3, 7)).unwrap();
    }

    /// What went wrong in one thread ends the others, and is what is told.
    #[test]
    fn one_failure_ends_all() {
        let drive = |share: &mut [u32], mut halt: Halt<'_>| {
            if share.contains(&1) {
                return Err(MultisocketError::Busy { place: "x".into() });
            }
            loop {
                halt.check(true, || 0, || (0, 0))?;
            }
        };
        let error = run((0..3).collect(), 3, &GO, drive).unwrap_err();
        assert!(matches!(error, MultisocketError::Busy { .. }), "{error}");
        let stop = AtomicBool::new(true);
        let endless = |_: &mut [u32], mut halt: Halt<'_>| loop {
            halt.check(true, || 0, || (0, 0))?;
        };
        let error = run(vec![0], 1, &stop, endless).unwrap_err();
        assert!(matches!(error, MultisocketError::Interrupted), "{error}");
    }
}
