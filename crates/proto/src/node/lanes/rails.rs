//! Several ways to one peer: further rails, better ways, and rails that failed and are tried again.

use ropewalk_model::{Instant, Nanos};

use super::{LaneId, Life, Link, Node, Phase, Step, StreamId};

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

    /// The peer of a lane is connected over another rail, too. Returns the number of that rail's lane; `None` when the rail has
    /// one that is in use, or the peer has been given up: then it is the master's to replace.
    pub fn handle_rail(&mut self, lane: LaneId, link: Link, now: Instant) -> Option<LaneId> {
        if !self.fetch.is_reachable(lane) || self.life == Life::Ended {
            return None;
        }
        let rail = match self.lane_of(lane, link) {
            Some(own) if !self.lanes.lane(own).is_free() => return None,
            _ => self.lane_over(lane, link, now),
        };
        self.connected(rail, link, now);
        self.lanes.start(rail, Phase::Opening, now);
        self.add_streams(rail, now);
        Some(rail)
    }

    /// The lane over a rail to the peer of `lane`.
    fn lane_of(&self, lane: LaneId, link: Link) -> Option<LaneId> {
        let is_over = |own: &LaneId| {
            let seen = &self.lanes.list[*own];
            seen.is_connected && (seen.way, seen.rail) == (link.way, link.rail)
        };
        let mut lanes = self.lanes.list.numbers().filter(is_over);
        lanes.find(|own| self.fetch.are_rails(*own, lane))
    }

    /// The lane for what is connected over a rail to the peer of `lane`: the one that the rail had before, or a new one where
    /// there is none, or streams of it are still open.
    pub(super) fn lane_over(&mut self, lane: LaneId, link: Link, now: Instant) -> LaneId {
        let known = self.lane_of(lane, link);
        let Some(own) = known.filter(|own| self.lanes.list[*own].is_free()) else {
            return self.fetch.add_rail(lane, now);
        };
        // Those that waited for it to be tried again.
        self.lanes.lane(own).streams.clear();
        self.fetch.renew_rail(own, now);
        own
    }

    /// A better way to the peer of a lane was found, which takes its place. Returns the number of the new lane; `None`
    /// where the lane has nothing to move.
    pub fn handle_better_way(&mut self, lane: LaneId, link: Link, now: Instant) -> Option<LaneId> {
        if !self.is_at_work(lane) || self.lanes.lane(lane).is_superseded {
            return None;
        }
        self.lanes.lane(lane).is_superseded = true;
        let rail = self.handle_rail(lane, link, now)?;
        self.apply_link(link, now);
        Some(rail)
    }

    pub(super) fn probe(&mut self, id: StreamId, now: Instant) -> Step {
        if !self.fetch.is_reachable(id.lane) {
            return self.end_stream(id);
        }
        let lane = self.lanes.lane(id.lane);
        // Those that bring what they were asked for are closed first.
        if lane.streams.values().any(|stream| stream.phase().is_open()) {
            return Step::Wait(None);
        }
        if !lane.health.begin_probe(now) {
            return Step::Wait(lane.health.due_at());
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
        if !self.fetch.is_reachable(id.lane) || self.life == Life::Ended {
            return drop(self.end_stream(id));
        }
        self.fetch.renew_rail(id.lane, now);
        let lane = self.lanes.lane(id.lane);
        let link = Link {
            way: lane.way,
            rail: lane.rail,
            trip: Nanos::ZERO,
            shares_processors: false,
        };
        // Its pauses grow if it fails again soon.
        self.connected(id.lane, link, now);
        self.lanes.lane(id.lane).is_retaken = true;
        self.enter_phase(id, Phase::Opening);
        if let Some(stream) = self.lanes.stream(id) {
            stream.begin_series();
        }
        self.add_streams(id.lane, now);
    }

    /// Links of this host have changed, and it has no address for the rails of these lanes any more. Returns those of them
    /// whose connections are to be stopped, as another rail to the same peer is there. Where all are gone at once TCP may
    /// outlast that, as it does where there is one.
    pub fn handle_links_changed(&mut self, gone: &[LaneId], now: Instant) -> Vec<LaneId> {
        for (number, lane) in self.lanes.list.iter_mut() {
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
        self.check();
    }
}
