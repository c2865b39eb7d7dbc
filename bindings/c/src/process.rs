//! Handles in a child of the process that made them. `fork` copies memory and descriptors, but no thread.

use std::process;

/// The process that made a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub fn this() -> Self {
        Self(process::id())
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
