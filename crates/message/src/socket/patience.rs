//! How long a caller waits for the next message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::MessageError;

/// How long [`MessageSocket::receive_split`](crate::MessageSocket::receive_split) waits.
#[derive(Clone, Copy, Debug)]
pub struct SplitTimes<'a> {
    /// For a message to begin.
    pub begun: Instant,
    /// For one that has begun to be whole.
    pub whole: Instant,
    /// Another thread sets it when the memory is wanted back.
    pub given_up: &'a AtomicBool,
}

/// The same for all ways of receiving; `None` for no limit.
pub(crate) struct Patience<'a> {
    pub(super) begun: Option<Instant>,
    pub(super) whole: Option<Instant>,
    pub(super) given_up: Option<&'a AtomicBool>,
}

impl Patience<'_> {
    /// One time for a message, whether it has begun or not.
    pub(super) fn until(until: Option<Instant>) -> Self {
        Self {
            begun: until,
            whole: until,
            given_up: None,
        }
    }

    /// When waiting ends. Whoever waits asks again every 50 ms.
    pub(super) fn now(&self, has_begun: bool) -> Result<Option<Instant>, MessageError> {
        match self.given_up {
            Some(given_up) if given_up.load(Ordering::Acquire) => Err(MessageError::Deadline),
            _ => Ok(if has_begun { self.whole } else { self.begun }),
        }
    }
}
