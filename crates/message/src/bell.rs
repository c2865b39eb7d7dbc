//! A descriptor by which programs with an event loop notice news.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

use crate::MessageError;

/// A descriptor that is readable once it was rung, until it is quiet again.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self, MessageError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let descriptor = made.map_err(|error| MessageError::System {
            doing: "making an event descriptor",
            source: error.into(),
        })?;
        Ok(Self(descriptor))
    }

    pub(crate) fn ring(&self) {
        // A full counter has rung already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn quiet(&self) {
        // It may not have rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}
