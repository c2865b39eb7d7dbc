//! One lane as the ledger sees it: what it is to carry, what it carries, and how it did so far.

use std::collections::VecDeque;

use super::{LaneId, RateMeter, ReadyRun};

/// The mean time that units take is that of about so many of the newest.
const TOOK_UNITS: f64 = 32.0;

/// A lane to a peer.
#[derive(Debug, Default)]
pub(super) struct Lane {
    // The first lane to the same peer; lanes to one peer are rails, and do each other's work.
    pub peer: LaneId,
    pub lost: bool,
    pub ready: VecDeque<ReadyRun>,
    pub ready_bytes: u64,
    pub in_transit_bytes: u64,
    pub rate: RateMeter,
    // A plan gave it a good part of the work, or the loss of another lane did; not only stealing.
    pub planned: bool,
    // When it last brought a unit, or began to after a pause.
    pub moved_ns: Option<u64>,
    // When it last brought a unit.
    pub brought_ns: Option<u64>,
    // Time with something in transit: up to the last pause, and since then.
    pub busy_ns: u64,
    pub busy_since_ns: u64,
    // Shortest time from taking a unit to its delivery: a round trip and the unit's own time.
    pub latency_ns: Option<u64>,
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
    pub fn carry(&mut self, bytes: u64, now_ns: u64) {
        if self.in_transit_bytes == 0 {
            self.busy_since_ns = now_ns;
        }
        self.in_transit_bytes += bytes;
        self.rate.busy(now_ns);
    }

    /// A unit was received so long after it was taken.
    pub fn took(&mut self, ns: u64) {
        self.latency_ns = Some(self.latency_ns.map_or(ns, |old| old.min(ns)));
        self.took_ns = match self.took_ns > 0.0 {
            true => self.took_ns + (ns as f64 - self.took_ns) / TOOK_UNITS,
            false => ns as f64,
        };
    }

    /// So many bytes are in transit on it no more.
    pub fn put_down(&mut self, bytes: u64, now_ns: u64) {
        let before = self.in_transit_bytes;
        self.in_transit_bytes = before.saturating_sub(bytes);
        if before > 0 && self.in_transit_bytes == 0 {
            self.busy_ns += now_ns.saturating_sub(self.busy_since_ns);
        }
    }
}
