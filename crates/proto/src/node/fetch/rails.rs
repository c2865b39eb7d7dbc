//! Several lanes to one peer: added, left, and given up.

use ropewalk_model::{Instant, Nanos, Range};

use super::{LaneId, PairTotals, Receiving};
use crate::control::Peer;

/// A rail that brought a unit so recently works.
const RAIL_MOVES_TIME: Nanos = Nanos::from_secs(1);

impl Receiving {
    pub(super) fn enter(&mut self, peer: Peer) {
        self.pairs.push(PairTotals {
            sender: peer.node,
            ..PairTotals::default()
        });
        self.peers.push(peer);
        self.spares.add();
    }

    /// The peer of `lane` is connected over another rail, too. Returns the number of the new lane: it does part of all
    /// that the others to this peer have to do, and their work when they fail.
    pub fn add_rail(&mut self, lane: LaneId, now: Instant) -> LaneId {
        self.now = now;
        let rail = self.ledger.add_rail(lane);
        self.enter(self.peers[lane].clone());
        self.connected(rail, now);
        rail
    }

    /// The rail of a lane that has no connection is connected again, or another way in its place.
    pub fn renew_rail(&mut self, lane: LaneId, now: Instant) {
        self.now = now;
        self.ledger.renew_rail(lane);
        self.connected(lane, now);
    }

    fn connected(&mut self, lane: LaneId, now: Instant) {
        self.spares.is_called(lane, now);
        // Its peer is there after all.
        let sender = self.pairs[lane].sender;
        self.lost.remove(&sender);
        self.troubles.here(sender);
    }

    /// Whether two lanes lead to one peer.
    pub fn are_rails(&self, a: LaneId, b: LaneId) -> bool {
        self.ledger.are_rails(a, b)
    }

    /// As many more lanes to the peer of `lane`, and its work dealt out to all of them in equal parts.
    pub fn deal(
        &mut self,
        lane: LaneId,
        more: u32,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Vec<LaneId> {
        let added = (0..more).map(|_| self.add_rail(lane, now)).collect();
        self.ledger.deal(lane, unit_at);
        added
    }

    /// The peer that a lane leads to.
    #[must_use]
    pub fn peer(&self, lane: LaneId) -> &Peer {
        &self.peers[lane]
    }

    /// The only way to a peer broke for this reason, and another one is looked for.
    pub fn note_search(&mut self, lane: LaneId, reason: &str) {
        if !self.finished {
            let name = self.peer_name(lane);
            self.note(format!(
                "the way to {name} broke ({reason}); looking for one that works"
            ));
        }
    }

    /// A unit was received again over a rail that had failed.
    pub fn note_retaken(&mut self, lane: LaneId) {
        let name = self.peer_name(lane);
        self.note(format!("one rail to {name} works again"));
    }

    /// Whether the peer of `lane` can still be reached over any rail.
    pub fn is_reachable(&self, lane: LaneId) -> bool {
        self.ledger.rails(lane).next().is_some()
    }

    /// The other rails over which the peer of `lane` can be reached.
    pub fn other_rails(&self, lane: LaneId) -> impl Iterator<Item = LaneId> {
        self.ledger.rails(lane).filter(move |&rail| rail != lane)
    }

    /// Whether the peer of `lane` can be reached over another rail.
    pub fn has_other_rail(&self, lane: LaneId) -> bool {
        self.other_rails(lane).next().is_some()
    }

    /// Whether a unit was received over another rail to the same peer within the last second: silence on this one is its own then.
    pub fn other_rail_moves(&self, lane: LaneId, now: Instant) -> bool {
        let moves = |rail: LaneId| {
            let brought = self.ledger.brought_at(rail);
            brought.is_some_and(|brought| now.since(brought) < RAIL_MOVES_TIME)
        };
        self.ledger
            .rails(lane)
            .any(|rail| rail != lane && moves(rail))
    }

    /// The lane is given up. What its streams carry is open again when they are closed.
    pub fn handle_lane_down(&mut self, lane: LaneId, reason: &str) {
        self.lane_down(lane, reason);
        self.call_needed();
        self.check_progress();
    }

    /// The lane carries nothing more, since another one to the same peer does its work. Where that one has failed
    /// meanwhile, the peer is gone.
    pub fn handle_lane_left(&mut self, lane: LaneId) {
        if self.has_other_rail(lane) && self.ledger.is_alive(lane) {
            self.ledger.lane_failed(lane);
        } else {
            self.lane_down(lane, "the way that took its place failed");
        }
        self.call_needed();
        self.check_progress();
    }

    pub(super) fn lane_down(&mut self, lane: LaneId, reason: &str) {
        let was_finished = self.finished;
        let Some(is_gone) = self.lane_ends(lane, reason) else {
            return;
        };
        let name = self.peer_name(lane);
        if !was_finished {
            self.note(match is_gone {
                true if self.is_relayed(lane) => {
                    format!("{name}, which handed bytes on, is lost: {reason}")
                }
                true => format!("sender {name} is lost: {reason}"),
                false => format!("one rail to {name} is lost: {reason}"),
            });
        }
    }

    /// Takes a lane out of work, without a note. Whether it was the last rail to its peer; `None` when it had ended before.
    pub(super) fn lane_ends(&mut self, lane: LaneId, reason: &str) -> Option<bool> {
        if !self.ledger.is_alive(lane) {
            return None;
        }
        self.ledger.lane_failed(lane);
        let is_gone = self.ledger.rails(lane).next().is_none();
        // One that handed on is no holder: for what is missing it is no reason.
        if is_gone && !self.is_relayed(lane) {
            let sender = self.pairs[lane].sender;
            self.lost.insert(sender);
            let text = format!("{} is lost ({reason})", self.peer_name(lane));
            self.troubles.gone(sender, text);
            self.go_on_without(sender);
        }
        Some(is_gone)
    }
}
