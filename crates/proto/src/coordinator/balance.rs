//! Moves work between receivers that write one destination together.
//!
//! The first plan shares by the speeds known then, which may be guesses. While bytes flow, receivers
//! show how fast they are. When some would finish well after the others, they are asked to give up
//! what they have not asked for yet, and the others get it, from the senders that have speed left
//! (CEP section 3.2: weights are soft). What is not worth its messages stays where it is, and the
//! time between two rounds is a part of the time left, so that rounds are few and grow denser
//! towards the end, where they matter.

use std::collections::{BTreeMap, BTreeSet};

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

/// Other holders that a run names (as in first plans).
const SPARES: usize = 2;

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
        if self.setup.options.fixed || self.phase != Phase::Moving {
            return;
        }
        let names: BTreeSet<String> = self
            .receivers()
            .filter_map(|node| self.destination(node))
            .collect();
        for name in names {
            if self
                .next_balance_ns
                .get(&name)
                .is_some_and(|next| now_ns < *next)
            {
                continue;
            }
            self.next_balance_ns
                .insert(name.clone(), now_ns + ROUND_NS_MIN);
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
            // Of those who are done it does not matter how well they are known.
            let error = members
                .iter()
                .filter(|member| member.left >= 1.0)
                .map(|member| member.error)
                .fold(0.0, f64::max);
            let gain = last - seconds;
            // Not a number when nothing is left and nobody moves.
            if gain.is_nan() || gain < GAIN_SECONDS_MIN.max(seconds * error) {
                continue;
            }
            let pause = (seconds.min(60.0) * ROUND_PART * 1e9) as u64;
            self.next_balance_ns
                .insert(name, now_ns + ROUND_NS_MIN.max(pause));
            for member in members {
                let bytes = (member.left - member.speed() * seconds) as u64;
                let noise = (member.left * error / 2.0) as u64;
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
            self.is_able(*node) && self.destination(*node).as_deref() == Some(destination)
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
        } else if self.is_able(node) {
            self.forget(node, released);
            self.released.push((node, released.clone()));
        }
        self.share_released(now_ns);
        self.check_done();
    }

    /// Shares out what a round released, once every giver has answered or is gone: in one plan, so that
    /// the senders' spare speed is given away once.
    pub(super) fn share_released(&mut self, now_ns: u64) {
        let open = |node: &super::Node| node.releasing && node.alive();
        if self.released.is_empty() || self.nodes.iter().any(open) {
            return;
        }
        let mut rounds: BTreeMap<String, Vec<(u32, RangeSet)>> = BTreeMap::new();
        for (giver, ranges) in std::mem::take(&mut self.released) {
            let name = self.destination(giver).unwrap_or_default();
            rounds.entry(name).or_default().push((giver, ranges));
        }
        for (destination, givers) in rounds {
            let (heirs, observed) = self.heirs(&destination, &givers, now_ns);
            for (heir, ranges) in &heirs {
                // What nobody else could take is not asked for again.
                let gave = givers.iter().find(|(giver, _)| giver == heir);
                let back = gave.is_some_and(|(_, gave)| ranges.len_bytes() * 2 > gave.len_bytes());
                self.nodes[*heir as usize].has_nothing_to_give = back;
            }
            let expected = (observed.seconds * 1e9) as u64;
            for (giver, _) in &givers {
                if self.is_able(*giver) && heirs.iter().all(|(heir, _)| heir != giver) {
                    let revision = control::Revision {
                        expected,
                        ..Default::default()
                    };
                    self.send(*giver, to_agent::Body::Revision(revision));
                }
            }
            self.ask_plan(false, heirs, &BTreeSet::new(), Some(observed));
        }
    }

    /// Who takes what of released ranges, and what to expect of it.
    fn heirs(
        &self,
        destination: &str,
        givers: &[(u32, RangeSet)],
        now_ns: u64,
    ) -> (Vec<(u32, RangeSet)>, Forecast) {
        let members = self.members(destination, now_ns);
        let released = givers
            .iter()
            .fold(RangeSet::new(), |all, (_, ranges)| all.union(ranges));
        let bytes = released.len_bytes() as f64;
        let seconds = even_seconds(&members, bytes).min(1e6);
        let left = members.iter().map(|member| (member.node, member.left));
        let spare = self.spare_sending(&left.collect(), seconds, &released);
        let mut room: Vec<(u32, f64)> = members
            .iter()
            .filter(|member| givers.iter().all(|(giver, _)| *giver != member.node))
            .map(|member| (member.node, member.speed() * seconds - member.left))
            .filter(|(_, room)| *room >= self.unit_len as f64)
            .collect();
        // Those with most room first, each as much as it can take: few get much, not many crumbs.
        room.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let total: f64 = room.iter().map(|(_, room)| room).sum();
        let stretch = (bytes / total.max(1.0)).max(1.0);
        let mut open = released.clone();
        let mut heirs: BTreeMap<u32, RangeSet> = BTreeMap::new();
        for (node, room_bytes) in room {
            let able = open.intersection(&self.nodes[node as usize].wants);
            let most = (room_bytes * stretch) as u64 + self.unit_len;
            let mine = self.first_bytes(&able, most);
            open = open.difference(&mine);
            heirs.insert(node, mine);
        }
        // What nobody else wants goes back; if who gave it is gone, to anybody who wants it.
        for (giver, ranges) in givers {
            let is_giver = |member: &&Member| member.node == *giver;
            let (own, others) = (members.iter().filter(is_giver), members.iter());
            for node in own.chain(others).map(|member| member.node) {
                let mine = ranges
                    .intersection(&open)
                    .intersection(&self.nodes[node as usize].wants);
                open = open.difference(&mine);
                let all = heirs.entry(node).or_default();
                *all = all.union(&mine);
            }
        }
        heirs.retain(|_, ranges| !ranges.is_empty());
        let heirs = heirs.into_iter().collect();
        (heirs, Forecast { up: spare, seconds })
    }

    /// Names other holders for runs that were planned over the senders with speed to spare only: those
    /// that the receiver already uses first, so that its open lanes can help each other at the end.
    pub(super) fn add_spares(&self, receiver: u32, runs: &mut [Run]) {
        let uses = |node: u32| self.nodes[receiver as usize].observed.pair_rate(node);
        let mut others: Vec<u32> = self
            .senders()
            .filter(|node| self.nodes[*node as usize].alive())
            .collect();
        others.sort_by(|&a, &b| uses(b).total_cmp(&uses(a)).then(a.cmp(&b)));
        for run in runs {
            let range = control::range(run.start, run.length);
            for &node in &others {
                if run.spares.len() >= SPARES {
                    break;
                }
                let is_new = node != run.sender && !run.spares.contains(&node);
                if is_new && self.nodes[node as usize].holds.contains_range(range) {
                    run.spares.push(node);
                }
            }
        }
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
