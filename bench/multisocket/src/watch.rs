//! Waiting for sockets, in slices short enough to notice that the test is to end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::MultisocketError;

/// Longest wait between two looks at whether the test is to end: a blink for people, nothing for the processor.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Sockets handed out by one wait; more are found by the next.
const EVENTS_MAX: usize = 64;

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Whether the test goes on.
///
/// # Errors
/// [`MultisocketError::Interrupted`] when it does not.
pub(crate) fn go_on(stop: &AtomicBool) -> Result<(), MultisocketError> {
    if stop.load(Ordering::Relaxed) {
        Err(MultisocketError::Interrupted)
    } else {
        Ok(())
    }
}

/// Some sockets, each with a number of the caller's choice.
pub(crate) struct Watch {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    pub(crate) fn add(&self, socket: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            socket,
            EventData::new_u64(token),
            flags,
        )?)
    }

    pub(crate) fn change(
        &self,
        socket: impl AsFd,
        token: u64,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            socket,
            EventData::new_u64(token),
            flags,
        )?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// The numbers of sockets that are ready; none after a slice or a signal.
    pub(crate) fn wait(&mut self) -> io::Result<impl Iterator<Item = u64>> {
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timespec(SLICE)),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64()))
    }
}

/// Waits until one of the sockets is ready; says which, or that none was in time.
///
/// # Errors
/// [`MultisocketError::Interrupted`], or the wait itself fails.
pub(crate) fn wait_for_any(
    sockets: &[impl AsFd],
    flags: PollFlags,
    until: Instant,
    stop: &AtomicBool,
) -> Result<Option<usize>, MultisocketError> {
    loop {
        go_on(stop)?;
        let left = until.saturating_duration_since(Instant::now());
        let time = timespec(left.min(SLICE));
        let wanted = sockets.iter().map(|socket| PollFd::new(socket, flags));
        let mut wanted: Vec<PollFd<'_>> = wanted.collect();
        match poll(&mut wanted, Some(&time)) {
            Ok(0) if left.is_zero() => return Ok(None),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(wanted.iter().position(|fd| !fd.revents().is_empty())),
            Err(error) => {
                return Err(MultisocketError::System {
                    doing: "waiting for a connection",
                    source: error.into(),
                });
            }
        }
    }
}

/// Waits until one socket is ready; says whether it was in time.
///
/// # Errors
/// As [`wait_for_any`].
pub(crate) fn wait_for(
    socket: impl AsFd,
    flags: PollFlags,
    until: Instant,
    stop: &AtomicBool,
) -> Result<bool, MultisocketError> {
    wait_for_any(&[socket], flags, until, stop).map(|which| which.is_some())
}
