//! Several lanes to one peer: what one may carry the others may, too.

use ropewalk_model::{Range, Table};

use super::{Lane, LaneId, Ledger, ReadyRun};

impl Ledger {
    /// One more lane to the peer of `lane`, over another rail: it may carry whatever that one may. Cost O(runs + in
    /// transit).
    pub fn add_rail(&mut self, lane: LaneId) -> LaneId {
        let rail = self.lanes.next_number();
        let peer = self.lanes.get(lane).map_or(rail, |l| l.peer);
        self.lanes.push(Lane::to(peer));
        self.join(rail);
        self.check_call();
        rail
    }

    /// The rail of a lane that has no stream is connected again: it may carry whatever others to its peer may, and nothing is
    /// known of its speed. Cost O(runs + in transit).
    pub fn renew_rail(&mut self, lane: LaneId) {
        let Some(l) = self.lanes.get_mut(lane) else {
            return;
        };
        debug_assert_eq!(
            l.in_transit_bytes, 0,
            "lane {lane} is connected again and carries units"
        );
        let (was_lost, old) = (l.lost, std::mem::take(l));
        *l = Lane {
            fellow: old.fellow,
            is_far: old.is_far,
            ready: old.ready,
            ready_bytes: old.ready_bytes,
            planned: old.planned && !was_lost,
            busy_time: old.busy_time,
            ..Lane::to(old.peer)
        };
        if was_lost {
            self.join(lane);
            self.count_handed();
        }
        self.check_call();
    }

    /// Makes a lane a holder of all that another one to its peer holds.
    fn join(&mut self, lane: LaneId) {
        let peers: Vec<LaneId> = self.lanes.rows().map(|l| l.peer).collect();
        let peers = Table::from(peers);
        let join = |holders: &mut Vec<LaneId>| {
            // Next to the others of its peer: who comes first is asked first.
            let is_known = |&holder: &LaneId| peers[holder] == peers[lane];
            if let Some(at) = holders.iter().rposition(is_known) {
                holders.insert(at + 1, lane);
                // It may be named from before.
                if let Some(old) = holders[..=at].iter().position(|&holder| holder == lane) {
                    holders.remove(old);
                }
            }
        };
        self.all_ready_changed();
        for unit in self.in_transit.values_mut() {
            join(&mut unit.holders);
        }
        for run in self.lanes.rows_mut().flat_map(|l| &mut l.ready) {
            join(&mut run.holders);
        }
    }

    /// Deals what `lane` has to do out to all lanes to its peer, in equal parts one after the other, cut at unit borders. From
    /// now on no lane of the ledger takes what another owns: the slowest is the end (PSockets).
    pub fn deal(&mut self, lane: LaneId, unit_at: &dyn Fn(u64) -> Range) {
        self.is_dealt = true;
        let rails: Vec<LaneId> = self.rails(lane).collect();
        let Some(owner) = self.lanes.get_mut(lane).filter(|_| !rails.is_empty()) else {
            return;
        };
        let total = u128::from(std::mem::take(&mut owner.ready_bytes));
        let runs: Vec<ReadyRun> = owner.ready.drain(..).collect();
        self.ready_changed(lane);
        let end_of_part = |part: usize| (total * (part as u128 + 1) / rails.len() as u128) as u64;
        let (mut part, mut dealt) = (0, 0_u64);
        for mut run in runs {
            while !run.range.is_empty() {
                while part + 1 < rails.len() && dealt >= end_of_part(part) {
                    part += 1;
                }
                let left = match part + 1 == rails.len() {
                    true => run.range.len(),
                    false => (end_of_part(part) - dealt).min(run.range.len()),
                };
                // The unit in which a part ends belongs to it.
                let last = unit_at(run.range.start + left - 1);
                let end = last.end.clamp(run.range.start + left, run.range.end);
                let range = Range {
                    start: run.range.start,
                    end,
                };
                let mut holders = run.holders.clone();
                holders.retain(|&holder| holder != rails[part]);
                holders.insert(0, rails[part]);
                self.lanes[rails[part]].planned = true;
                let choices = run.choices;
                let dealt_run = ReadyRun {
                    range,
                    holders,
                    choices,
                };
                self.push(rails[part], dealt_run, false);
                dealt += range.len();
                run.range.start = end;
            }
        }
        self.check_call();
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
        self.lanes.numbers().filter(works)
    }
}
