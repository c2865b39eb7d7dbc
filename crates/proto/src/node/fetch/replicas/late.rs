//! Holders that do not answer in time. One that is silent, or whose disk is slow, would keep the places of what fellow receivers bring: other
//! holders are asked in its place, and it is asked about what is new only where all are late.

use std::collections::BTreeSet;

use ropewalk_model::{Instant, Nanos};

use super::super::Receiving;
use super::{Open, Replicas, Second};

/// An answer arrives within 50 ms, and within a second from a disk that many readers share.
pub(super) const ANSWER_TIME: Nanos = Nanos::from_secs(2);

/// How often it is looked for those that are late.
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

    /// Time passes: what a holder is late to say the hash of is asked of another one, too.
    pub(in super::super) fn ask_elsewhere(&mut self, now: Instant) {
        if now.since(self.replicas.looked_at) < LOOK_TIME {
            return;
        }
        self.replicas.looked_at = now;
        let late = self.replicas.late(now);
        for &node in &late {
            self.vouch_elsewhere(node, &late);
            for start in self.compared_with(node) {
                self.compare_elsewhere(start, &late);
            }
        }
        if !late.is_empty() {
            self.call_seconds();
        }
    }

    /// Asks one more holder about a unit that was received, unless one was asked that is in time.
    fn compare_elsewhere(&mut self, start: u64, late: &BTreeSet<u32>) {
        let open = self.replicas.open.get(&start);
        let waits =
            |open: &Open| open.is_delivered && open.asked.iter().all(|node| late.contains(node));
        if open.is_some_and(waits) {
            self.ask_another(start, late);
        }
    }
}
