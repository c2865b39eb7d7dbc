//! Lanes to fellow receivers, which hand on what they have.
//!
//! Such a peer has only a part of what it is planned to send, and is not to be trusted: its lanes carry what they were opened for, a
//! unit at a time, and take nothing from others. Original holders are holders of the same runs, and take from it as from any slow
//! lane; what no original holder is left for is an orphan, whatever fellow receivers have of it.

use ropewalk_model::{Instant, Range, RangeSet};

use super::{LaneId, Ledger, ReadyRun, Unit, unit_of};

impl Ledger {
    /// The peer of a lane is a fellow receiver; before it gets any work.
    pub fn set_relay(&mut self, lane: LaneId) {
        if let Some(l) = self.lanes.get_mut(lane) {
            l.opened.get_or_insert_with(RangeSet::new);
        }
    }

    /// Whether the peer of a lane is a fellow receiver.
    pub fn is_relay(&self, lane: LaneId) -> bool {
        self.opened(lane).is_some()
    }

    fn opened(&self, lane: LaneId) -> Option<&RangeSet> {
        let first = self.lanes.get(lane)?.peer;
        self.lanes.get(first)?.opened.as_ref()
    }

    /// A fellow receiver has a unit, and what it must be is known: lanes to it may carry it.
    pub fn open_to(&mut self, lane: LaneId, unit: Range) {
        let Some(first) = self.lanes.get(lane).map(|l| l.peer) else {
            return;
        };
        if let Some(opened) = &mut self.lanes[first].opened {
            opened.insert(unit);
        }
    }

    /// Ready bytes of all lanes to the peer of a lane, in the order in which they are fetched, with their holders.
    pub fn ready_of(&self, lane: LaneId) -> impl Iterator<Item = &ReadyRun> {
        self.rails(lane).flat_map(|rail| &self.lanes[rail].ready)
    }

    /// Whether an original holder is among these.
    pub(super) fn has_origin(&self, holders: &[LaneId]) -> bool {
        let is_origin = |lane: &LaneId| self.is_alive(*lane) && !self.is_relay(*lane);
        holders.iter().any(is_origin)
    }

    /// The first unit of its peer's work that the lane was opened for.
    pub(super) fn take_opened(
        &mut self,
        lane: LaneId,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) -> Option<Unit> {
        let opened = self.opened(lane)?;
        let in_run = |run: Range| {
            let parts = opened.clipped(run);
            parts.iter().find_map(|part| {
                let mut at = part.start;
                while at < part.end {
                    let unit = unit_of(at, run, unit_at);
                    // What was opened begins where a unit of the run does.
                    if part.contains_range(unit) {
                        return Some(unit);
                    }
                    at = unit.end;
                }
                None
            })
        };
        let found = self.rails(lane).find_map(|rail| {
            let mut runs = self.lanes[rail].ready.iter().enumerate();
            runs.find_map(|(at, run)| Some((rail, at, in_run(run.range)?)))
        });
        let (rail, at, unit) = found?;
        let ready = &mut self.lanes[rail].ready;
        let run = ready.remove(at)?;
        let before = Range::new(run.range.start, unit.start);
        let after = Range::new(unit.end, run.range.end);
        for rest in [after, before] {
            if !rest.is_empty() {
                let rest = ReadyRun {
                    range: rest,
                    ..run.clone()
                };
                ready.insert(at, rest);
            }
        }
        self.lanes[rail].ready_bytes -= unit.len();
        Some(self.grant(lane, (unit, run.holders, run.choices), now))
    }

    /// Takes from fellow receivers what no original holder is left for.
    pub(super) fn leave_relays(&mut self) {
        for lane in self.lanes.numbers() {
            if !self.is_relay(lane) || self.lanes[lane].ready.is_empty() {
                continue;
            }
            for run in std::mem::take(&mut self.lanes[lane].ready) {
                match self.has_origin(&run.holders) {
                    true => self.lanes[lane].ready.push_back(run),
                    false => {
                        self.lanes[lane].ready_bytes -= run.range.len();
                        self.orphans.insert(run.range);
                    }
                }
            }
        }
    }
}
