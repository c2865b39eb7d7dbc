//! Several lanes to one peer: what one may carry the others may, too.

use super::{Lane, LaneId, Ledger};

impl Ledger {
    /// One more lane to the peer of `lane`, over another rail: it may carry whatever that one may. Cost O(runs + in
    /// transit).
    pub fn add_rail(&mut self, lane: LaneId) -> LaneId {
        let rail = self.lanes.len();
        let peer = self.lanes.get(lane).map_or(rail, |l| l.peer);
        let peers: Vec<LaneId> = self.lanes.iter().map(|l| l.peer).collect();
        let join = |holders: &mut Vec<LaneId>| {
            // Next to the others of its peer: who comes first is asked first.
            if let Some(at) = holders.iter().rposition(|&holder| peers[holder] == peer) {
                holders.insert(at + 1, rail);
            }
        };
        for unit in self.in_transit.values_mut() {
            join(&mut unit.holders);
        }
        for run in self.lanes.iter_mut().flat_map(|l| &mut l.ready) {
            join(&mut run.holders);
        }
        self.lanes.push(Lane::to(peer));
        rail
    }

    /// Whether two lanes lead to one peer.
    pub fn are_rails(&self, a: LaneId, b: LaneId) -> bool {
        match (self.lanes.get(a), self.lanes.get(b)) {
            (Some(a), Some(b)) => a.peer == b.peer,
            _ => false,
        }
    }

    /// Lanes to the peer of `lane` that work, itself among them.
    pub fn rails(&self, lane: LaneId) -> impl Iterator<Item = LaneId> + '_ {
        let works = move |&other: &LaneId| self.are_rails(lane, other) && self.is_alive(other);
        (0..self.lanes.len()).filter(works)
    }
}
