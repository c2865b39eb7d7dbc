//! Operations under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::RegionError;
use crate::memory::Memory;
use crate::origin::{Inner, Late, State};

/// How long a test looks for answers.
const TEST_LOOK: Duration = Duration::from_micros(20);

/// A get under way. Dropping it gives it up.
#[must_use = "dropping it gives the get up"]
pub struct Get {
    pub(crate) inner: Arc<Inner>,
    /// `None` when it was taken.
    pub(crate) number: Option<u64>,
}

/// A put under way. Dropping it does not end the put: [`Region::flush`](crate::Region::flush) waits for it, and has its error.
#[must_use = "`wait` has its error; drop it where `flush` is to have that"]
pub struct Put {
    pub(crate) inner: Arc<Inner>,
    /// `None` when it was taken.
    pub(crate) number: Option<u64>,
}

impl std::fmt::Debug for Get {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Get")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Put {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Put")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Get {
    /// Waits for the bytes, and returns those of all ranges, one after the other.
    ///
    /// # Errors
    /// [`RegionError::Lost`] where no holder is left, [`RegionError::Deadline`].
    pub fn wait(mut self) -> Result<Vec<u8>, RegionError> {
        let until = self.inner.until();
        self.end(until)?.ok_or_else(|| self.inner.late())
    }

    /// The bytes, if all are here within `most`; `None`: the get goes on. Makes progress.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`RegionError::Misuse`] when they were taken.
    pub fn wait_for(&mut self, most: Duration) -> Result<Option<Vec<u8>>, RegionError> {
        self.end(crate::origin::end_of(most))
    }

    /// Whether all bytes are here, or it has failed: then [`wait`](Self::wait) returns at once. Makes progress.
    #[must_use]
    pub fn test(&self) -> bool {
        test(&self.inner, self.number)
    }

    fn end(&mut self, until: Instant) -> Result<Option<Vec<u8>>, RegionError> {
        let number = self.number.ok_or_else(taken)?;
        let Ok(result) = self.inner.finish(number, until) else {
            return Ok(None);
        };
        self.number = None;
        let (_, memory) = result?;
        Ok(Some(memory.map(Memory::into_bytes).unwrap_or_default()))
    }
}

impl Drop for Get {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.inner.forget(number);
        }
    }
}

impl Put {
    /// Waits until the put is complete.
    ///
    /// # Errors
    /// [`RegionError::Lost`] where no holder that has the bytes is left, [`RegionError::Refused`], [`RegionError::Deadline`]: the put goes on then,
    /// and a flush waits for it.
    pub fn wait(mut self) -> Result<(), RegionError> {
        let until = self.inner.until();
        match self.end(until)? {
            true => Ok(()),
            false => Err(self.inner.late()),
        }
    }

    /// Whether it is complete within `most`. Makes progress.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`RegionError::Misuse`] when that was reported.
    pub fn wait_for(&mut self, most: Duration) -> Result<bool, RegionError> {
        self.end(crate::origin::end_of(most))
    }

    /// Whether it is complete, or has failed: then [`wait`](Self::wait) returns at once. Makes progress.
    #[must_use]
    pub fn test(&self) -> bool {
        test(&self.inner, self.number)
    }

    fn end(&mut self, until: Instant) -> Result<bool, RegionError> {
        let number = self.number.ok_or_else(taken)?;
        let Ok(result) = self.inner.finish(number, until) else {
            return Ok(false);
        };
        self.number = None;
        result?;
        Ok(true)
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && self.inner.is_here()
        {
            let mut state = self.inner.state.lock();
            state.origin.detach(number);
            if !state.origin.is_known(number) {
                state.memories.remove(&number);
            }
        }
    }
}

fn taken() -> RegionError {
    RegionError::Misuse("the result of this operation was taken already".into())
}

fn test(inner: &Inner, number: Option<u64>) -> bool {
    let Some(number) = number.filter(|_| inner.is_here()) else {
        return true;
    };
    let until = Instant::now() + TEST_LOOK;
    let done = |state: &mut State| (!state.origin.is_open(number)).then_some(());
    !matches!(inner.until_done(Some(number), until, done), Err(Late))
}
