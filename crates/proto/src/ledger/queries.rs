//! What a ledger answers; nothing here changes it.

use ropewalk_model::{Instant, Nanos, RangeSet};

use super::{LaneId, Ledger};

impl Ledger {
    /// Whether nothing is left to ask for or to wait for.
    pub fn is_complete(&self) -> bool {
        self.orphans.is_empty()
            && self.delivered_bytes + self.unavailable.len_bytes() == self.wanted_bytes
    }

    /// Whether a lane has, or could steal, ready bytes.
    pub fn has_ready(&self) -> bool {
        self.lanes.rows().any(|lane| !lane.ready.is_empty())
    }

    /// Ranges that are to be granted, or wait for a holder.
    pub fn open(&self) -> RangeSet {
        let mut out = self.orphans.clone();
        out.extend(
            self.lanes
                .rows()
                .flat_map(|lane| &lane.ready)
                .map(|run| run.range),
        );
        out
    }

    /// Whether lanes that failed still carry units.
    pub fn awaits_failed(&self) -> bool {
        let mut lanes = self.lanes.rows();
        lanes.any(|lane| lane.lost && lane.in_transit_bytes > 0)
    }

    /// Lanes that could carry the unit in transit that begins there; none when there is no such unit.
    pub fn holders_in_transit(&self, start: u64) -> &[LaneId] {
        self.in_transit
            .get(&start)
            .map_or(&[], |unit| &unit.holders)
    }

    /// Bytes granted to a lane that it has not delivered yet.
    pub fn in_transit_bytes(&self, lane: LaneId) -> u64 {
        self.lanes.get(lane).map_or(0, |l| l.in_transit_bytes)
    }

    /// Bytes a lane owns and was not granted yet.
    pub fn ready_bytes(&self, lane: LaneId) -> u64 {
        self.lanes.get(lane).map_or(0, |l| l.ready_bytes)
    }

    /// When a unit was last received over the lane, or began to be after a pause; `None` before.
    pub fn moved_at(&self, lane: LaneId) -> Option<Instant> {
        self.lanes.get(lane).and_then(|l| l.moved_at)
    }

    /// When a unit was last received over the lane; `None` before the first.
    pub fn brought_at(&self, lane: LaneId) -> Option<Instant> {
        self.lanes.get(lane).and_then(|l| l.brought_at)
    }

    /// Time in which the lane had something in transit.
    pub fn busy_time(&self, lane: LaneId, now: Instant) -> Nanos {
        self.lanes
            .get(lane)
            .map_or(Nanos::ZERO, |l| match l.in_transit_bytes {
                0 => l.busy_time,
                _ => l.busy_time + now.since(l.busy_since),
            })
    }

    /// Whether a lane could carry something that is ready on another one.
    pub fn stands_by(&self, lane: LaneId) -> bool {
        let runs = self.lanes.rows().flat_map(|l| &l.ready);
        runs.into_iter().any(|run| run.holders.contains(&lane))
    }

    /// Whether a plan, or the loss of another lane, ever gave the lane's peer work of its own.
    pub fn is_planned(&self, lane: LaneId) -> bool {
        self.rails(lane).any(|rail| self.lanes[rail].planned)
    }

    /// Whether all work was planned to be that of fellow receivers: what original holders do beside them, no plan says.
    pub fn is_all_relayed(&self) -> bool {
        let mut others = self.lanes.iter().filter(|(lane, _)| !self.is_relay(*lane));
        self.relays_since.is_some() && others.all(|(_, l)| !l.planned)
    }

    /// Shortest time a unit took on the lane: never less than a round trip.
    pub fn latency(&self, lane: LaneId) -> Option<Nanos> {
        self.lanes.get(lane).and_then(|l| l.latency)
    }

    /// Measured speed of a lane while it had work, bytes per second; `None` before the first unit.
    pub fn bytes_per_second(&self, lane: LaneId) -> Option<f64> {
        self.lanes.get(lane).and_then(|l| l.rate.bytes_per_second())
    }

    /// Whether the lane's peer still counts as reachable.
    pub fn is_alive(&self, lane: LaneId) -> bool {
        self.lanes.get(lane).is_some_and(|l| !l.lost)
    }

    /// All bytes asked of this ledger.
    pub fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes
    }

    /// Bytes delivered, each once.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// Bytes that are ready or in transit: without those that no peer has.
    pub fn left_bytes(&self) -> u64 {
        let ready: u64 = self.lanes.rows().map(|lane| lane.ready_bytes).sum();
        let in_transit = self.in_transit.values().map(|unit| unit.range.len());
        ready + in_transit.sum::<u64>()
    }

    /// Bytes received a second time.
    pub fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Delivered ranges.
    pub fn delivered_ranges(&self) -> &RangeSet {
        &self.delivered
    }

    /// Wanted and not delivered: ready, in transit, orphaned or given up.
    pub fn missing(&self) -> RangeSet {
        let mut out = self.orphans.union(&self.unavailable);
        let ready = self
            .lanes
            .rows()
            .flat_map(|lane| lane.ready.iter().map(|run| run.range));
        for range in ready.chain(self.in_transit.values().map(|unit| unit.range)) {
            out.insert(range);
        }
        out
    }
}
