//! What a node does for fellow receivers, and with what it has from them.

use ropewalk_model::{Instant, Range};

use super::{Failure, Held, Life, Node, StreamId};
use crate::wire::HeldRange;

impl Node {
    /// Bytes that others may have from this node: checked ones, safe or not yet. None where contents are known to be wrong.
    #[must_use]
    pub fn held(&self) -> Held {
        if self.is_wrong || self.life == Life::Preparing {
            return Held::default();
        }
        let ledger = self.fetch.ledger();
        Held {
            ranges: self.fetch.held(),
            received_bytes: ledger.delivered_bytes(),
            left_bytes: ledger.left_bytes(),
        }
    }

    /// Whether others may have all of a range from this node.
    #[must_use]
    pub fn holds(&self, range: Range) -> bool {
        !self.is_wrong && self.life != Life::Preparing && self.fetch.holds(range)
    }

    /// The peer of a stream, a fellow receiver, said that it has more.
    ///
    /// * `unit_at`: the unit of the sinks' layout around an offset.
    pub fn handle_announced(
        &mut self,
        id: StreamId,
        ranges: &[HeldRange],
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) {
        let is_flood = self
            .lanes
            .stream(id)
            .is_some_and(|stream| !stream.heard.count(now));
        match is_flood {
            true => self.fetch.handle_flood(id.lane, now),
            false => self.fetch.handle_announced(id.lane, ranges, now, unit_at),
        }
    }

    /// What was read of the sink to be handed on is not what was received: this node's own copy is not as it should be.
    ///
    /// * `place`: the bytes as users know them, of a file.
    pub fn handle_rotten(&mut self, place: &str) {
        self.is_wrong = true;
        self.handle_failed(Failure::Sink(format!(
            "{place} is not what was received and checked any more: something else wrote to it, or the disk or memory of this host \
             fails; check them, and run the command again"
        )));
    }

    /// A unit was received whole from a fellow receiver, and is not what an original holder has, or that is not known any more.
    pub fn handle_untrue(&mut self, id: StreamId, grant: u32, now: Instant) {
        if let Some(range) = self.lanes.stream(id).and_then(|s| s.ended(grant)) {
            self.fetch.handle_untrue(id.lane, range, now);
        }
    }
}
