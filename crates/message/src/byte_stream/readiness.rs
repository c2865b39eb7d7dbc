//! One descriptor that is readable and writable as its owner says: one end of a pair of Unix sockets.
//!
//! A byte that waits makes it readable, a full buffer not writable. Either changes only where the owner changes its mind, so
//! that a program that finds work at each turn makes no system calls for it.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::Wake;

use parking_lot::Mutex;
use socket2::SockRef;

use crate::MessageError;

/// The least buffer that the kernel gives, so that few bytes fill it.
const BUFFER: usize = 1;

pub(super) struct Readiness {
    own: UnixStream,
    other: UnixStream,
    now: Mutex<Now>,
}

#[derive(Clone, Copy, Debug)]
struct Now {
    readable: bool,
    writable: bool,
}

impl Readiness {
    /// Both, at first.
    pub fn new() -> Result<Arc<Self>, MessageError> {
        Self::make()
            .map(Arc::new)
            .map_err(|source| MessageError::System {
                doing: "making a pair of sockets",
                source,
            })
    }

    fn make() -> io::Result<Self> {
        let (own, other) = UnixStream::pair()?;
        for end in [&own, &other] {
            end.set_nonblocking(true)?;
            SockRef::from(end).set_send_buffer_size(BUFFER)?;
        }
        (&other).write_all(&[0])?;
        Ok(Self {
            own,
            other,
            now: Mutex::new(Now {
                readable: true,
                writable: true,
            }),
        })
    }

    pub fn set_readable(&self, readable: bool) {
        let mut now = self.now.lock();
        if std::mem::replace(&mut now.readable, readable) != readable {
            match readable {
                // A buffer that is full says it already.
                true => drop((&self.other).write(&[0])),
                false => empty(&self.own),
            }
        }
    }

    pub fn set_writable(&self, writable: bool) {
        let mut now = self.now.lock();
        if std::mem::replace(&mut now.writable, writable) != writable {
            match writable {
                true => empty(&self.other),
                false => while (&self.own).write(&[0; 64]).is_ok() {},
            }
        }
    }
}

fn empty(mut end: &UnixStream) {
    let mut bytes = [0; 4096];
    while end.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Makes it readable when woken.
pub(super) struct Reads(pub Arc<Readiness>);

/// Makes it writable when woken.
pub(super) struct Writes(pub Arc<Readiness>);

impl Wake for Reads {
    fn wake(self: Arc<Self>) {
        self.0.set_readable(true);
    }
}

impl Wake for Writes {
    fn wake(self: Arc<Self>) {
        self.0.set_writable(true);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// What `poll` says of it.
    fn polled(readiness: &Readiness) -> (bool, bool) {
        let mut one = [PollFd::new(readiness, PollFlags::IN | PollFlags::OUT)];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut one, Some(&none)).unwrap();
        let events = one[0].revents();
        (
            events.contains(PollFlags::IN),
            events.contains(PollFlags::OUT),
        )
    }

    /// Each is what was said last, whatever the other is.
    #[test]
    fn both_are_told_apart() {
        let readiness = Readiness::new().unwrap();
        assert_eq!(polled(&readiness), (true, true));
        for _ in 0..100 {
            for (readable, writable) in [(false, true), (false, false), (true, false), (true, true)]
            {
                readiness.set_readable(readable);
                readiness.set_writable(writable);
                assert_eq!(polled(&readiness), (readable, writable));
            }
        }
    }
}
