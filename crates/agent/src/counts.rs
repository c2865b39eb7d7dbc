//! What a standing agent has done since it began.

use std::sync::Arc;

use parking_lot::Mutex;

/// Sums over transfers that have ended, and over requests that did not become one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub begun: u64,
    pub moved: Moved,
    pub refused: u64,
    pub strangers: u64,
}

/// Bytes of one transfer, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sent to other nodes, headers of frames included.
    pub sent: u64,
    /// Received and checked.
    pub received: u64,
    /// Received, and on stable storage.
    pub delivered: u64,
}

impl Moved {
    pub(crate) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.delivered += other.delivered;
    }
}

/// The sums of one agent. While a transfer ends, its bytes are in exactly one of both: the sums, or those of running transfers.
#[derive(Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<Totals>>);

impl Counts {
    pub fn change<T>(&self, change: impl FnOnce(&mut Totals) -> T) -> T {
        change(&mut self.0.lock())
    }
}
