//! How others talk to a relay thread: it looks at one atomic flag a round, and takes the lock only when that is set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::counters::RelayCounters;
use super::spec::LinkSpec;

/// A relay that keeps its real-time processor for itself may be stopped by the kernel for most of a second.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// What a relay thread can be asked.
#[derive(Debug)]
pub(crate) enum Request {
    Counters(Sender<RelayCounters>),
    /// Counts from zero.
    Reset(Sender<RelayCounters>),
    /// Changes the link; the answer is sent when it is in force.
    Set(Box<LinkSpec>, Sender<RelayCounters>),
    Stop,
}

/// Requests on their way to one relay thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    requests: Mutex<Vec<Request>>,
    has_mail: AtomicBool,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox {
            requests: Mutex::default(),
            has_mail: AtomicBool::new(false),
            bell,
        })
    }

    /// Becomes readable with each request.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn send(&self, request: Request) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(request);
        self.has_mail.store(true, Ordering::Release);
        // Fails only when 2^64 rings were not heard: it is ringing, then.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Sends a request that is answered with the counters, and waits for them.
    pub(crate) fn ask(
        &self,
        request: impl FnOnce(Sender<RelayCounters>) -> Request,
    ) -> io::Result<RelayCounters> {
        let (answer, answers) = channel();
        self.send(request(answer));
        answers.recv_timeout(ANSWER_WAIT_MAX).map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, "the relay thread does not answer")
        })
    }

    /// What has arrived; nearly free when nothing has.
    pub(crate) fn collect(&self) -> Vec<Request> {
        if !self.has_mail.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_mail.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        std::mem::take(&mut requests)
    }
}
