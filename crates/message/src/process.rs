//! Which process made a socket. `fork` copies its memory and descriptors, but none of its threads.

use std::process;

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub(crate) fn this() -> Self {
        Self(process::id())
    }

    /// Whether it is this process. In a child of it locks may be held for ever by threads that do not exist there, and what is sent would
    /// come between the bytes of the parent: there nothing but the descriptors may be closed.
    pub(crate) fn is_this(self) -> bool {
        self.0 == process::id()
    }
}
