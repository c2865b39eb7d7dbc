//! One rail: what it carries, and how long that takes.

use std::collections::VecDeque;

use ropewalk_model::Instant;

use crate::message::pace::Pace;

/// A fragment under way.
#[derive(Debug)]
pub(super) struct Transit {
    /// Frames sent on the link before this one, modulo 2^32.
    pub frame: u32,
    pub message: u64,
    pub fragment: u32,
    pub bytes: u64,
    pub taken_at: Instant,
    pub duplicate: bool,
    /// Another rail carries it, too.
    pub has_twin: bool,
}

/// What a rail carries.
#[derive(Debug, Default)]
pub(super) struct Rail {
    pub up: bool,
    /// In the order sent; the link keeps it.
    pub transit: VecDeque<Transit>,
    pub in_transit_bytes: u64,
    pub frames: u32,
    pub pace: Pace,
}

impl Rail {
    /// Its oldest fragment is through.
    pub fn pop(&mut self, now: Instant) -> Option<Transit> {
        let transit = self.transit.pop_front()?;
        self.in_transit_bytes -= transit.bytes;
        let busy = !self.transit.is_empty();
        self.pace
            .delivered(transit.bytes, transit.taken_at, now, busy);
        Some(transit)
    }

    /// Seconds until `more` bytes behind all that is in transit have arrived; `None` while the speed is unknown.
    /// What is overdue is expected to take as long again as it is late.
    pub fn seconds(&self, more: u64, now: Instant) -> Option<f64> {
        let expected = self.pace.seconds(self.in_transit_bytes + more)?;
        let late = self.transit.front().map_or(0.0, |front| {
            let waited = now.since(front.taken_at).as_seconds();
            let due = self.pace.seconds(self.in_transit_bytes).unwrap_or(0.0);
            (waited - due).max(0.0)
        });
        Some(expected + late)
    }
}
