//! What each thread that moves bytes does now, for an observer beside it.
//!
//! A thread that [`enter`]s has a [`Thread`] that others read. It stores what it is about to do with one relaxed store, which costs about a
//! nanosecond; an observer that wants shares of time looks often enough (the agent's `waits`). Threads that have not entered store nothing.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
    /// Hashes, encrypts, checks or copies bytes.
    Work = 0,
    /// Waits for what the peer sends: bytes at a receiver, requests at a sender.
    Peer = 1,
    /// Waits until the connection takes more bytes.
    Path = 2,
    /// Reads a source.
    Read = 3,
    /// Writes a sink.
    Write = 4,
    /// Waits for space in a sink.
    Space = 5,
    /// Has nothing to fetch, or is not needed.
    Idle = 6,
    /// Finds or opens a connection.
    Connect = 7,
    /// Makes bytes safe, or reads them back.
    Sync = 8,
    /// Gives files their names.
    Name = 9,
}

impl Doing {
    const ALL: [Self; 10] = [
        Self::Work,
        Self::Peer,
        Self::Path,
        Self::Read,
        Self::Write,
        Self::Space,
        Self::Idle,
        Self::Connect,
        Self::Sync,
        Self::Name,
    ];
}

/// Whether a thread gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is on a processor, or ready for one.
    Runs,
    /// It waits in the kernel for a device: a disk, or a page of a file.
    Device,
    /// It sleeps, or the kernel does not say: it waits for a socket, a lock or a time.
    Sleeps,
}

thread_local! {
    static OWN: RefCell<Option<Arc<AtomicU8>>> = const { RefCell::new(None) };
}

/// A thread as an observer sees it.
#[derive(Debug)]
pub struct Thread {
    doing: Arc<AtomicU8>,
    // The kernel's words on it. Not kept open: with many streams that would be as many descriptors more.
    stat: String,
    entered_at: Instant,
}

impl Thread {
    fn own(doing: Arc<AtomicU8>) -> Self {
        let id = rustix::thread::gettid().as_raw_nonzero();
        Self {
            doing,
            stat: format!("/proc/self/task/{id}/stat"),
            entered_at: Instant::now(),
        }
    }

    /// What it does.
    #[must_use]
    pub fn doing(&self) -> Doing {
        let number = usize::from(self.doing.load(Ordering::Relaxed));
        Doing::ALL.get(number).copied().unwrap_or(Doing::Work)
    }

    /// When it entered.
    #[must_use]
    pub fn entered_at(&self) -> Instant {
        self.entered_at
    }

    /// Whether it gets on. Costs three system calls.
    #[must_use]
    pub fn state(&self) -> State {
        let mut text = [0; 64];
        let read = File::open(&self.stat).and_then(|stat| stat.read_at(&mut text, 0));
        let text = &text[..read.unwrap_or(0)];
        // The name, which may have any letters, is short and in parentheses.
        let end = text.iter().rposition(|&letter| letter == b')');
        match end.and_then(|end| text.get(end + 2)) {
            Some(b'R') => State::Runs,
            Some(b'D') => State::Device,
            _ => State::Sleeps,
        }
    }
}

/// This thread is observed until this is dropped.
#[derive(Debug)]
pub struct Entered(());

/// Begins to note what this thread does: [`Doing::Work`] until it says otherwise.
#[must_use]
pub fn enter() -> (Entered, Thread) {
    let doing = Arc::new(AtomicU8::new(Doing::Work as u8));
    OWN.set(Some(doing.clone()));
    (Entered(()), Thread::own(doing))
}

/// This thread for one more observer, where it has entered.
#[must_use]
pub fn entered() -> Option<Thread> {
    OWN.with_borrow(Clone::clone).map(Thread::own)
}

impl Drop for Entered {
    fn drop(&mut self) {
        OWN.set(None);
    }
}

/// Sets what this thread does; what it did before.
fn set(doing: u8) -> u8 {
    OWN.with_borrow(|own| {
        own.as_ref().map_or(doing, |own| {
            let before = own.load(Ordering::Relaxed);
            own.store(doing, Ordering::Relaxed);
            before
        })
    })
}

/// Does the work, noted as this.
pub fn during<T>(doing: Doing, work: impl FnOnce() -> T) -> T {
    let before = set(doing as u8);
    let done = work();
    set(before);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An observer sees what the thread does, nested too, and what it did before afterwards.
    #[test]
    fn what_a_thread_does_is_seen() {
        let (entered, thread) = enter();
        assert_eq!(thread.doing(), Doing::Work);
        assert_eq!(thread.state(), State::Runs, "this very thread");
        let seen = during(Doing::Write, || {
            let inner = during(Doing::Space, || thread.doing());
            (inner, thread.doing())
        });
        assert_eq!(seen, (Doing::Space, Doing::Write));
        assert_eq!(thread.doing(), Doing::Work);
        drop(entered);
        assert_eq!(during(Doing::Read, || thread.doing()), Doing::Work);
    }

    /// One that sleeps does not run.
    #[test]
    fn a_thread_that_sleeps_is_seen() {
        let (say, said) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (_entered, thread) = enter();
                say.send(thread).unwrap();
                during(Doing::Peer, || wait.recv())
            });
            let thread = said.recv().unwrap();
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while (thread.doing() != Doing::Peer || thread.state() != State::Sleeps)
                && std::time::Instant::now() < until
            {
                std::thread::yield_now();
            }
            let seen = (thread.doing(), thread.state());
            drop(go);
            assert_eq!(seen, (Doing::Peer, State::Sleeps));
        });
    }

    /// The numbers are those of the list.
    #[test]
    fn all_have_their_numbers() {
        for (number, doing) in Doing::ALL.into_iter().enumerate() {
            assert_eq!(doing as usize, number);
        }
    }
}
