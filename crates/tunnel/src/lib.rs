//! What both ends of a tunnel do: one listens and opens a byte stream for each connection ([`accept_all`]), the other connects each
//! byte stream to its target ([`serve`]). Forwards of the command have its host in the first place, remote forwards the agent's.
//!
//! ```text
//!  program ── TCP ──▶ accept_all ══ byte stream, which begins with the target's position ══▶ serve ── TCP ──▶ target
//! ```

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_message::Passed;

mod accept;
mod listen;
mod target;

pub use accept::{OpenStream, accept_all};
pub use listen::{Bound, addresses, bind};
pub use target::{Served, serve};

/// Stack of a connection's thread: its buffers are on the heap, but modules of the system that resolve names run on it.
const STACK_LEN: usize = 1 << 20;

/// Connections of a tunnel at one end.
#[derive(Debug, Default)]
pub struct Counts {
    /// Of programs, or of streams of the other end.
    pub accepted: AtomicU64,
    /// Now.
    pub open: AtomicU64,
    /// Ended by a reset.
    pub reset: AtomicU64,
    /// Their bytes.
    pub passed: Passed,
}

impl Counts {
    /// One more; gives how many were open before.
    fn begin(&self) -> u64 {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed)
    }

    fn end(&self, is_reset: bool) {
        self.reset.fetch_add(is_reset.into(), Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
