//! Moves work between receivers that write one destination together.
//!
//! The first plan shares by the speeds known then, which may be guesses. While bytes flow, receivers
//! show how fast they are. When some would finish well after the others, they are asked to give up
//! what they have not asked for yet, and the others get it, from the senders that have speed left
//! (CEP section 3.2: weights are soft). What is not worth its messages stays where it is, and the
//! time between two rounds is a part of the time left, so that rounds are few and grow denser
//! towards the end, where they matter.

use std::collections::BTreeSet;

use ropewalk_model::{Range, RangeSet};

use super::{Coordinator, Forecast, Phase};
use crate::control::{self, Run, to_agent};

/// A round must bring the end this much nearer, in seconds, and by more than the noise.
const GAIN_SECONDS_MIN: f64 = 0.1;

/// A round waits for this part of the time left after the one before.
const ROUND_PART: f64 = 0.2;

/// And at least this long, so that its effect can be seen.
const ROUND_NS_MIN: u64 = 200_000_000;

/// A node gives at least this many units, or nothing.
const RELEASE_UNITS_MIN: u64 = 2;

/// A receiver of a shared destination that can work.
struct Member {
    node: u32,
    // Bytes per second; `None` while nobody can say.
    rate: Option<f64>,
    // Bytes it has still to fetch, 0 when it is done.
    left: f64,
    // Relative error of the rate: what is within it is noise.
    error: f64,
}

impl Member {
    fn speed(&self) -> f64 {
        self.rate.unwrap_or(0.0)
    }
}

/// Seconds until all are done if the work, and `more` bytes, were shared by speed; endless without any speed.
fn even_seconds(members: &[Member], more: f64) -> f64 {
    let speed: f64 = members.iter().map(Member::speed).sum();
    let left: f64 = members.iter().map(|member| member.left).sum();
    (left + more) / speed
}

impl Coordinator {
    /// Looks at every shared destination; see the module documentation.
    pub(super) fn balance(&mut self, now_ns: u64) {
        let fixed = self.setup.options.fixed;
        if fixed || self.phase != Phase::Moving || now_ns < self.next_balance_ns {
            return;
        }
        self.next_balance_ns = now_ns + ROUND_NS_MIN;
        let names: BTreeSet<String> = self
            .receivers()
            .filter_map(|node| self.destination(node))
            .collect();
        for name in names {
            let members = self.members(&name, now_ns);
            let releasing = |member: &Member| self.nodes[member.node as usize].releasing;
            if members.len() < 2
                || members.iter().any(releasing)
                || members.iter().any(|member| member.rate.is_none())
            {
                continue;
            }
            let seconds = even_seconds(&members, 0.0);
            let last = members
                .iter()
                .filter(|member| member.left >= 1.0)
                .map(|member| member.left / member.speed().max(1.0))
                .fold(0.0, f64::max);
            let error = members
                .iter()
                .map(|member| member.error)
                .fold(0.0, f64::max);
            let gain = last - seconds;
            // Not a number when nothing is left and nobody moves.
            if gain.is_nan() || gain < GAIN_SECONDS_MIN.max(seconds * error) {
                continue;
            }
            let pause = (seconds.min(60.0) * ROUND_PART * 1e9) as u64;
            self.next_balance_ns = now_ns + ROUND_NS_MIN.max(pause);
            for member in members {
                let bytes = (member.left - member.speed() * seconds) as u64;
                let noise = (member.left * error) as u64;
                let state = &mut self.nodes[member.node as usize];
                let worth = bytes >= noise.max(RELEASE_UNITS_MIN * self.unit_len);
                if worth && !state.has_nothing_to_give {
                    state.releasing = true;
                    self.send(
                        member.node,
                        to_agent::Body::Release(control::Release { bytes }),
                    );
                }
            }
        }
    }

    fn members(&self, destination: &str, now_ns: u64) -> Vec<Member> {
        let able = |node: &u32| {
            let state = &self.nodes[*node as usize];
            state.alive()
                && state.done.as_ref().is_none_or(|d| d.error.is_empty())
                && self.destination(*node).as_deref() == Some(destination)
        };
        let member = |node: u32| {
            let state = &self.nodes[node as usize];
            let rate = self.receiving_rate(node, now_ns);
            // The status is some time old.
            let since = now_ns.saturating_sub(state.last_seen.0) as f64 / 1e9;
            let checked = state.checked as f64 + rate.unwrap_or(0.0) * since;
            let left = match state.done {
                Some(_) => 0.0,
                None => (state.assigned().len_bytes() as f64 - checked).max(0.0),
            };
            Member {
                node,
                rate,
                left,
                error: state.observed.error(),
            }
        };
        self.receivers().filter(able).map(member).collect()
    }

    pub(super) fn handle_released(&mut self, node: u32, released: &RangeSet, now_ns: u64) {
        if !std::mem::take(&mut self.nodes[node as usize].releasing) {
            return;
        }
        if released.is_empty() {
            self.nodes[node as usize].has_nothing_to_give = true;
            self.check_done();
            return;
        }
        self.forget(node, released);
        let (heirs, observed) = self.heirs(node, released, now_ns);
        for (heir, _) in &heirs {
            let state = &mut self.nodes[*heir as usize];
            state.done = None;
            // What nobody could take is not asked for again.
            state.has_nothing_to_give = *heir == node;
        }
        self.ask_plan(false, heirs, &BTreeSet::new(), Some(observed));
    }

    /// Who takes what of released ranges, and what to expect of it.
    fn heirs(
        &self,
        giver: u32,
        released: &RangeSet,
        now_ns: u64,
    ) -> (Vec<(u32, RangeSet)>, Forecast) {
        let destination = self.destination(giver).unwrap_or_default();
        let members = self.members(&destination, now_ns);
        let bytes = released.len_bytes() as f64;
        let seconds = even_seconds(&members, bytes).min(1e6);
        let left = members.iter().map(|member| (member.node, member.left));
        let spare = self.spare_sending(&left.collect(), seconds);
        let mut room: Vec<(u32, f64)> = members
            .iter()
            .filter(|member| member.node != giver)
            .map(|member| (member.node, member.speed() * seconds - member.left))
            .filter(|(_, room)| *room >= self.unit_len as f64)
            .collect();
        room.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let total: f64 = room.iter().map(|(_, room)| room).sum();
        let mut open = released.clone();
        let mut heirs = Vec::new();
        for (at, &(node, room_bytes)) in room.iter().enumerate() {
            let share = if at + 1 == room.len() {
                u64::MAX
            } else {
                (bytes * room_bytes / total) as u64
            };
            let able = open.intersection(&self.nodes[node as usize].wants);
            let mine = self.first_bytes(&able, share);
            open = open.difference(&mine);
            heirs.push((node, mine));
        }
        // What nobody else wants goes back.
        heirs.push((giver, open));
        heirs.retain(|(_, ranges)| !ranges.is_empty());
        (heirs, Forecast { up: spare, seconds })
    }

    /// About `bytes` of the set from its start, cut between units where it can be.
    fn first_bytes(&self, set: &RangeSet, bytes: u64) -> RangeSet {
        let mut out = RangeSet::new();
        let mut open = bytes;
        for range in set.iter() {
            if open == 0 {
                break;
            }
            let mut end = range.start.saturating_add(open).min(range.end);
            let cut = end - end % self.unit_len;
            if end < range.end && cut > range.start {
                end = cut;
            }
            out.insert(Range {
                start: range.start,
                end,
            });
            open = open.saturating_sub(range.len());
        }
        out
    }

    /// Takes ranges out of what the plan asks of a node.
    fn forget(&mut self, node: u32, ranges: &RangeSet) {
        let runs = std::mem::take(&mut self.nodes[node as usize].runs);
        for run in runs {
            let kept = RangeSet::from(control::range(run.start, run.length)).difference(ranges);
            for part in kept.iter() {
                self.nodes[node as usize].runs.push(Run {
                    start: part.start,
                    length: part.len(),
                    ..run.clone()
                });
            }
        }
    }
}
