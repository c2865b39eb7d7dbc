//! Holders that do not answer in time. One that is silent, or whose disk is slow, would keep the places of units from fellow receivers: other
//! holders are asked about these as well, and it is asked about new ones only where all are late. Its answers count when they arrive.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, Nanos};

use super::super::Receiving;
use super::{Open, Replicas, Second};
use crate::ledger::LaneId;

/// An answer takes up to 50 ms; from a disk that others read, some hundred. What is not answered for so long is asked of others as well.
pub(super) const ANSWER_TIME: Nanos = Nanos::from_secs(2);

/// Time between two looks for late holders.
const LOOK_TIME: Nanos = Nanos::from_millis(500);

impl Second {
    /// Whether something that it was asked is unanswered for too long. Holders answer in the order of the questions.
    fn is_late(&self, now: Instant) -> bool {
        let oldest = self.outstanding.first().or(self.queue.front());
        let is_old = oldest.is_some_and(|asked| now.since(asked.at) >= ANSWER_TIME);
        is_old && !self.is_down
    }
}

impl Replicas {
    fn late(&self, now: Instant) -> BTreeSet<u32> {
        let late = self.seconds.iter().filter(|(_, s)| s.is_late(now));
        late.map(|(node, _)| *node).collect()
    }
}

impl Receiving {
    /// Whether a holder has not answered for long.
    pub(in super::super) fn is_late(&self, node: u32) -> bool {
        let second = self.replicas.seconds.get(&node);
        second.is_some_and(|second| second.is_late(self.now))
    }

    /// Units that are compared and that a holder was asked about.
    fn compared_with(&self, node: u32) -> Vec<u64> {
        let open = self.replicas.open.values();
        let asked = open.filter(|open| open.asked.contains(&node));
        asked.map(|open| open.range.start).collect()
    }

    /// A holder is lost, or cannot be asked any more: others are.
    pub(in super::super) fn go_on_without(&mut self, node: u32) {
        self.vouch_without(node);
        for start in self.compared_with(node) {
            self.no_answer(node, start);
        }
        self.call_seconds();
    }

    /// Time passes: questions to which the answer is late are asked of other holders as well.
    pub(in super::super) fn ask_elsewhere(&mut self, now: Instant) {
        if now.since(self.replicas.looked_at) < LOOK_TIME {
            return;
        }
        self.replicas.looked_at = now;
        let late = self.replicas.late(now);
        if late.is_empty() || !self.has_other_than(&late) {
            return;
        }
        self.vouch_elsewhere(&late);
        let waits =
            |open: &&Open| open.waits() && open.asked.iter().all(|node| late.contains(node));
        let open = self.replicas.open.values().filter(waits);
        for start in open.map(|open| open.range.start).collect::<Vec<_>>() {
            self.ask_another(start, &late);
        }
        self.call_seconds();
    }

    /// Whether any holder can be asked but these.
    fn has_other_than(&self, late: &BTreeSet<u32>) -> bool {
        let is_other = |(node, lane): (&u32, &LaneId)| {
            !late.contains(node) && !self.is_relayed(*lane) && self.can_be_asked(*node)
        };
        self.lane_of.iter().any(is_other)
    }
}
