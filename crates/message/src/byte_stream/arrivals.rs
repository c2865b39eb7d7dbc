//! Streams that peers have opened and the program has not accepted.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::shared::Waiting;
use super::{ByteStream, MessageError};
use crate::bell::Bell;

/// A stream that was opened. Where it is dropped its peer hears that nothing reads it.
pub(super) struct Arrival {
    pub stream: ByteStream,
    /// It counts among those of its socket until it is accepted.
    pub _waiting: Waiting,
}

/// The queue: of each of the sockets that fill it a bounded number.
pub(super) struct Arrivals {
    queue: Mutex<VecDeque<Arrival>>,
    arrived: Condvar,
    bell: Bell,
}

impl Arrivals {
    pub fn new() -> Result<Self, MessageError> {
        Ok(Self {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            bell: Bell::new()?,
        })
    }

    pub fn add(&self, arrival: Arrival) {
        self.queue.lock().push_back(arrival);
        self.bell.ring();
        self.arrived.notify_one();
    }

    /// Those that wait look again: a socket is over.
    pub fn news(&self) {
        let _queue = self.queue.lock();
        self.bell.ring();
        self.arrived.notify_all();
    }

    /// The first one, until then at the latest; or what `failure` says when none is there.
    pub fn take(
        &self,
        deadline: Option<Instant>,
        failure: impl Fn() -> Option<MessageError>,
    ) -> Result<Arrival, MessageError> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(arrival) = queue.pop_front() {
                return Ok(arrival);
            }
            if let Some(failure) = failure() {
                return Err(failure);
            }
            self.bell.quiet();
            match deadline {
                Some(deadline) if self.arrived.wait_until(&mut queue, deadline).timed_out() => {
                    if queue.is_empty() {
                        return Err(MessageError::Deadline);
                    }
                }
                Some(_) => {}
                None => self.arrived.wait(&mut queue),
            }
        }
    }

    /// Takes all that wait, for no program.
    pub fn drain(&self) {
        let left: Vec<Arrival> = self.queue.lock().drain(..).collect();
        // Without the lock: each sends a frame.
        drop(left);
    }
}

/// Readable while streams wait, as far as accepting has not found that none does.
impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
