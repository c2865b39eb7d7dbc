//! Which process made something. `fork` copies its memory and descriptors, but none of its threads.

use pyo3::prelude::*;

use crate::error::misuse;

/// Something that threads of the process that made it work for. In a child of that process it is neither used nor ended: locks may be held for ever by
/// threads that do not exist there, and what is under way is the parent's.
pub(crate) struct Own<T> {
    // Always there, until it is dropped.
    held: Option<T>,
    process: u32,
}

impl<T> Own<T> {
    pub fn new(held: T) -> Self {
        Self {
            held: Some(held),
            process: std::process::id(),
        }
    }

    /// None in a child of the process.
    pub fn get(&self) -> Option<&T> {
        let is_here = self.process == std::process::id();
        self.held.as_ref().filter(|_| is_here)
    }

    /// As [`get`](Self::get), for what cannot be done without it.
    pub fn used(&self) -> PyResult<&T> {
        self.get().ok_or_else(|| {
            misuse("this was made before a fork, and belongs to the process that made it")
        })
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.held.take());
        }
    }
}
