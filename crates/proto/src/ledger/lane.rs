//! One lane as the ledger sees it: what it is to carry, what it carries, and how it did so far.

use std::cell::Cell;
use std::collections::VecDeque;

use ropewalk_model::{Instant, Nanos};

use super::relay::Fellow;
use super::{LaneId, RateMeter, ReadyRun};

/// The mean time that units take is that of about so many of the newest.
const TOOK_UNITS: f64 = 32.0;

/// A lane to a peer.
#[derive(Debug, Default)]
pub(super) struct Lane {
    // The first lane to the same peer; lanes to one peer are rails, and do each other's work.
    pub peer: LaneId,
    // Of the first lane to a fellow receiver.
    pub fellow: Option<Fellow>,
    // Of the first lane to a peer at another site.
    pub is_far: bool,
    pub lost: bool,
    pub ready: VecDeque<ReadyRun>,
    pub ready_bytes: u64,
    // Of these, what no fellow receiver has, where it was counted and is known since: only of lanes to fellow receivers.
    pub new_bytes: Cell<Option<u64>>,
    pub in_transit_bytes: u64,
    pub rate: RateMeter,
    // A plan gave it a good part of the work, or the loss of another lane did; not only stealing.
    pub planned: bool,
    // When it last brought a unit, or began to after a pause.
    pub moved_at: Option<Instant>,
    // When it last brought a unit.
    pub brought_at: Option<Instant>,
    // Time with something in transit: up to the last pause, and since then.
    pub busy_time: Nanos,
    pub busy_since: Instant,
    // Since when nothing was in transit on it, where nothing is.
    pub idle_since: Instant,
    // Since when it could do the work of fellow receivers that lag.
    pub spare_since: Option<Instant>,
    // Shortest time from taking a unit to its delivery: a round trip and the unit's own time.
    pub latency: Option<Nanos>,
    // Mean of these times, the newest counting most.
    pub took_ns: f64,
}

impl Lane {
    /// One that has carried nothing.
    pub fn to(peer: LaneId) -> Self {
        Self {
            peer,
            ..Self::default()
        }
    }

    /// So many bytes are in transit on it from now on.
    pub fn carry(&mut self, bytes: u64, now: Instant) {
        if self.in_transit_bytes == 0 {
            self.busy_since = now;
        }
        self.in_transit_bytes += bytes;
        self.rate.busy(now);
    }

    /// A unit was received so long after it was taken.
    pub fn took(&mut self, time: Nanos) {
        self.latency = Some(self.latency.map_or(time, |old| old.min(time)));
        let took = time.0 as f64;
        self.took_ns = match self.took_ns > 0.0 {
            true => self.took_ns + (took - self.took_ns) / TOOK_UNITS,
            false => took,
        };
    }

    /// So many bytes are in transit on it no more.
    pub fn put_down(&mut self, bytes: u64, now: Instant) {
        let before = self.in_transit_bytes;
        self.in_transit_bytes = before.saturating_sub(bytes);
        if before > 0 && self.in_transit_bytes == 0 {
            self.busy_time += now.since(self.busy_since);
            self.idle_since = now;
        }
    }
}
