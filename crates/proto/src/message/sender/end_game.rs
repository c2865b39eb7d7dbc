//! Second copies of what a slow rail still carries when another has nothing to do.

use ropewalk_model::Instant;

use super::{Body, Fragment, Sender, Spread};
use crate::message::RailId;

/// A second copy is sent when the first should need so many times longer.
const END_GAME_ADVANTAGE: f64 = 2.0;

/// And when it saves this much, in seconds; less is below what speeds are known to.
const END_GAME_GAIN_MIN: f64 = 0.005;

impl Sender {
    /// A fragment in transit on a rail that is much slower than this idle one.
    pub(super) fn end_game(&mut self, rail: RailId, now: Instant) -> Option<Fragment> {
        let mut chosen: Option<(f64, usize, u32)> = None;
        for (other, r) in self.rails.iter().enumerate() {
            if other == rail || !r.up {
                continue;
            }
            let mut backlog = 0;
            for transit in &r.transit {
                backlog += transit.bytes;
                let Some(at) = self.index(transit.message) else {
                    continue;
                };
                let m = &self.messages[at];
                let open = !m.finished
                    && m.body == Body::Bytes
                    && m.spread == Spread::Balanced
                    && !m.acknowledged.contains(u64::from(transit.fragment))
                    && !m.ready.contains(u64::from(transit.fragment));
                if transit.duplicate
                    || !open
                    || self.carriers(transit.message, transit.fragment) > 1
                {
                    continue;
                }
                let own = self.rails[rail].seconds(transit.bytes, now)?;
                let waited = now.since(transit.taken_at).as_seconds();
                let due = r.pace.seconds(backlog).unwrap_or(0.0);
                // What is overdue is expected to take as long again as it is late.
                let left = due.max(waited - due);
                let gain = left - own;
                if left > own * END_GAME_ADVANTAGE
                    && gain > END_GAME_GAIN_MIN
                    && chosen.is_none_or(|(most, ..)| gain > most)
                {
                    chosen = Some((gain, at, transit.fragment));
                }
            }
        }
        let (_, at, fragment) = chosen?;
        let message = self.first + at as u64;
        let transits = self.rails.iter_mut().flat_map(|r| &mut r.transit);
        for transit in transits.filter(|t| t.message == message && t.fragment == fragment) {
            transit.has_twin = true;
        }
        Some(self.put_in_transit(rail, at, u64::from(fragment), true, now))
    }
}
