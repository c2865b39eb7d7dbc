//! What no known peer holds any more: the master is asked for other holders.

use std::collections::BTreeSet;

use ropewalk_model::RangeSet;

use super::{Event, Receiving};

impl Receiving {
    /// Asks for holders of what is left to nobody.
    pub(super) fn ask_for_holders(&mut self, open: &RangeSet) {
        // Who could not serve a part of it may well serve the rest.
        let refused = RangeSet::from_ranges(self.refused.values().flat_map(RangeSet::iter));
        for part in [open.difference(&refused), open.intersection(&refused)] {
            if part.is_empty() {
                continue;
            }
            let concerns = |refused: &RangeSet| !refused.intersection(&part).is_empty();
            let refusers = self.refused.iter().filter(|(_, ranges)| concerns(ranges));
            let lost: BTreeSet<u32> = refusers
                .map(|(&peer, _)| peer)
                .chain(self.lost.iter().copied())
                .collect();
            let lost = lost.into_iter().collect();
            self.events
                .push_back(Event::Need(part, lost, "no known holder is left".into()));
        }
    }
}
