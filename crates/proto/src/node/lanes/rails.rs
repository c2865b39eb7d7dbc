//! Several ways to one peer: further rails, better ways, and rails that failed and are tried again.

use ropewalk_model::Instant;

use super::{Event, LaneId, Life, Link, Node, Phase, RailHealth, Step, StreamId, Way};

impl Node {
    /// Whether streams of the lane bring what they were asked for and end: they go through the command's host, and others
    /// to the same peer bring units that do not. A way that connects and carries nothing is none.
    pub(super) fn is_left(&self, lane: LaneId, now: Instant) -> bool {
        self.lanes.is_carried(lane)
            && self.is_done_directly(lane)
            && self.fetch.other_rail_moves(lane, now)
    }

    fn is_done_directly(&self, lane: LaneId) -> bool {
        let is_direct = |other| self.lanes.has_open(other) && !self.lanes.is_carried(other);
        self.fetch.other_rails(lane).any(is_direct)
    }

    /// A stream that goes nowhere any more has ended, with all it was asked for.
    pub(super) fn leave(&mut self, id: StreamId) -> Step {
        if self.lanes.lane(id.lane).live() > 1 {
            return self.end_stream(id);
        }
        if self.is_done_directly(id.lane) {
            self.end_stream(id);
            self.fetch.handle_lane_left(id.lane);
            return Step::End;
        }
        // What was to take its place has failed meanwhile.
        self.enter_phase(id, Phase::Opening);
        Step::Wait(Some(Instant::ZERO))
    }

    /// The peer of a lane is connected over another rail, too. Returns the number of that lane; `None` when the peer has
    /// been given up: then it is the master's to replace.
    pub fn handle_rail(&mut self, lane: LaneId, link: Link, now: Instant) -> Option<LaneId> {
        self.add_lane(lane, link.way, None, now)
    }

    /// `again`: over the same rail as `lane`, with the health that it had.
    fn add_lane(
        &mut self,
        lane: LaneId,
        way: Way,
        again: Option<RailHealth>,
        now: Instant,
    ) -> Option<LaneId> {
        if !self.fetch.is_reachable(lane) || self.life == Life::Ended {
            return None;
        }
        let rail = self.fetch.add_rail(lane, now);
        if let Some(health) = again {
            self.lanes.lane(rail).health = health;
            self.lanes.events.push_back(Event::SameWay(rail, lane));
        }
        self.connected(rail, way, now);
        self.lanes.start(rail, Phase::Opening, now);
        self.add_streams(rail, now);
        Some(rail)
    }

    /// A better way to the peer of a lane was found, which takes its place. Returns the number of the new lane; `None`
    /// where the lane has nothing to move.
    pub fn handle_better_way(&mut self, lane: LaneId, link: Link, now: Instant) -> Option<LaneId> {
        if !self.is_at_work(lane) || self.lanes.lane(lane).is_superseded {
            return None;
        }
        self.lanes.lane(lane).is_superseded = true;
        let rail = self.handle_rail(lane, link, now)?;
        self.apply_trip(link.trip, now);
        Some(rail)
    }

    pub(super) fn probe(&mut self, id: StreamId, now: Instant) -> Step {
        if !self.fetch.is_reachable(id.lane) {
            return self.end_stream(id);
        }
        let health = &mut self.lanes.lane(id.lane).health;
        if !health.begin_probe(now) {
            return Step::Wait(health.due_at());
        }
        self.enter_phase(id, Phase::Probing);
        Step::Probe
    }

    /// Whether the rail of a lane answers.
    pub fn handle_probed(&mut self, id: StreamId, answers: bool, now: Instant) {
        if self.phase(id) != Phase::Probing {
            return;
        }
        if !answers {
            self.lanes.lane(id.lane).health.failed(now);
            return self.enter_phase(id, Phase::Down);
        }
        self.end_stream(id);
        let lane = self.lanes.lane(id.lane);
        // Its pauses grow if it fails again soon.
        let (way, health) = (lane.way, lane.health.clone());
        self.add_lane(id.lane, way, Some(health), now);
    }

    /// Links of this host have changed, and it has no address for the rails of these lanes any more. Returns those of them
    /// whose connections are to be stopped, as another rail to the same peer is there. Where all are gone at once TCP may
    /// outlast that, as it does where there is one.
    pub fn handle_links_changed(&mut self, gone: &[LaneId], now: Instant) -> Vec<LaneId> {
        for (number, lane) in self.lanes.list.iter_mut().enumerate() {
            if !gone.contains(&number) {
                lane.health.path_changed(now);
            }
        }
        let does_work = |other: LaneId| self.lanes.has_open(other) && !gone.contains(&other);
        let is_done_by_another = |lane: &LaneId| self.fetch.other_rails(*lane).any(does_work);
        gone.iter().copied().filter(is_done_by_another).collect()
    }

    /// A peer is gone for good, and no lane to it works: the driver knows.
    pub fn handle_peer_gone(&mut self, lane: LaneId, reason: &str) {
        let rails: Vec<LaneId> = self.fetch.ledger().rails(lane).collect();
        for rail in rails {
            self.fetch.handle_lane_down(rail, reason);
        }
    }
}
