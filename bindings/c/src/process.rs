//! Handles in a child of the process that made them. `fork` copies memory and descriptors, but no thread.

use std::process;

use crate::error::Failure;

/// The process that made a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub fn this() -> Self {
        Self(process::id())
    }

    /// For calls that use a handle.
    pub fn check(self) -> Result<(), Failure> {
        match self.0 == process::id() {
            true => Ok(()),
            false => Err(Failure::Misuse(
                "this was made before a fork, and belongs to the process that made it",
            )),
        }
    }

    /// Ends what a handle has, where this is that process. In a child of it nothing is ended: locks may be held for ever by threads that do not exist
    /// there, and what is under way is the parent's.
    pub fn release<T>(self, handle: Box<T>) {
        if self.0 == process::id() {
            drop(handle);
        } else {
            std::mem::forget(handle);
        }
    }
}
