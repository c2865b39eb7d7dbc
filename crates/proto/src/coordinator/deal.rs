//! Shares out what a round recalled.
//!
//! Work that moves between receivers goes over lanes that the heirs have, as far as their senders hold it and
//! have room. A new lane that carries little takes speed from a lane that was planned to have all of it: moving
//! bytes between two pairs that are both busy would cost what it gains. The rest is planned as one problem.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Range, RangeSet};

use super::plan::{ALIKE_ROOM, Room};
use super::replan::Member;
use super::{Coordinator, Planned, Purpose};
use crate::control::Run;

/// A sender with less than this part of the room of another is not asked for what others hold, too.
const POOR: f64 = 0.1;

/// Receivers are asked until their room is this many times what there is to take: room is an estimate.
const ROOM_SPARE: f64 = 1.1;

/// Estimates of room are exceeded by this factor before new lanes are planned.
const STRETCH_MAX: f64 = 1.1;

impl Coordinator {
    /// Gives released ranges to those who should have them.
    pub(super) fn deal(&mut self, released: Vec<(u32, RangeSet)>, now_ns: u64) {
        let members = self.members(now_ns);
        let least = self.least_seconds(&members);
        if let Some(round) = self.round.as_mut().filter(|round| round.seconds == 0.0) {
            round.seconds = least;
        }
        let (mut takers, room) = self.takers(released, &members);
        let (settle, seconds) = self
            .round
            .as_ref()
            .map_or((true, 0.0), |round| (round.settle, round.seconds));
        if !settle && !self.has_newcomer(&takers, &room) {
            let runs = self.over_kept_lanes(&mut takers, &room, seconds);
            if let Some(round) = &mut self.round {
                round.kept_lanes.extend(runs);
            }
        }
        takers.retain(|(_, ranges)| !ranges.is_empty());
        if !self.ask_plan(false, takers, &BTreeSet::new(), Some(room)) {
            // Nothing is left to plan, or nobody holds it any more.
            let purpose = Purpose {
                first: false,
                in_round: true,
                spares: 0,
                senders: Vec::new(),
                receivers: Vec::new(),
            };
            self.revise(&purpose, &Planned::default(), Vec::new(), now_ns);
            self.check_done();
        }
    }

    /// Whether a node with room has no lanes yet, because it joined: kept lanes would leave it what they cannot carry,
    /// and who has most of them would have to wait for it.
    fn has_newcomer(&self, takers: &[(u32, RangeSet)], room: &Room) -> bool {
        let observed = |node: u32| self.nodes[node as usize].observed.pairs();
        let used: BTreeSet<u32> = self
            .receivers()
            .flat_map(observed)
            .map(|pair| pair.0)
            .collect();
        let joined = |node: u32| self.nodes[node as usize].joined;
        let mut senders = self.senders().filter(|&node| joined(node));
        let mut takers = takers.iter().filter(|taker| joined(taker.0));
        senders.any(|node| !used.contains(&node) && room.up[node as usize] > 0.0)
            || takers.any(|(node, _)| observed(*node).next().is_none())
    }

    /// Takes out of what may be taken all that heirs can have from the senders they use now.
    fn over_kept_lanes(
        &self,
        takers: &mut [(u32, RangeSet)],
        room: &Room,
        seconds: f64,
    ) -> Vec<(u32, Vec<Run>)> {
        let mut up: Vec<f64> = room.up.iter().map(|rate| rate * seconds).collect();
        // What each could have of each of its senders, those it has most from first.
        let mut amounts: Vec<(usize, u32, f64)> = Vec::new();
        for (at, (node, _)) in takers.iter().enumerate() {
            if self.nodes[*node as usize].group.is_none() {
                continue;
            }
            let mut down = room.down[*node as usize] * seconds;
            let pairs = self.nodes[*node as usize].observed.pairs();
            let mut pairs: Vec<(u32, f64)> = pairs.filter(|pair| pair.1 > 0.0).collect();
            pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            for (sender, _) in pairs {
                let able = self.nodes[sender as usize].can_send();
                let bytes = down.min(up[sender as usize]);
                if able && bytes >= self.unit_len as f64 {
                    down -= bytes;
                    up[sender as usize] -= bytes;
                    amounts.push((at, sender, bytes));
                }
            }
        }
        let shared = |(node, _): &&(u32, RangeSet)| self.nodes[*node as usize].group.is_some();
        let open = takers.iter().filter(shared);
        let open = open.fold(RangeSet::new(), |all, (_, ranges)| all.union(ranges));
        let total: f64 = amounts.iter().map(|(_, _, bytes)| bytes).sum();
        let stretch = (open.len_bytes() as f64 / total.max(1.0)).clamp(1.0, STRETCH_MAX);
        let mut runs: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        let mut given: BTreeMap<Option<u32>, RangeSet> = BTreeMap::new();
        for (at, sender, bytes) in amounts {
            let (node, ranges) = &takers[at];
            let (node, holds) = (*node, &self.nodes[sender as usize].holds);
            let most = (bytes * stretch) as u64 + self.unit_len;
            let given = given.entry(self.nodes[node as usize].group).or_default();
            let mut able = ranges.intersection(holds).difference(given);
            if let Some(failed) = self.nodes[node as usize].failed_from.get(&sender) {
                able = able.difference(failed);
            }
            let mine = self.first_bytes(&able, most);
            *given = given.union(&mine);
            let run = |range: Range| Run {
                start: range.start,
                length: range.len(),
                sender,
                spares: Vec::new(),
                choices: 0,
            };
            runs.entry(node).or_default().extend(mine.iter().map(run));
        }
        for (node, ranges) in takers.iter_mut() {
            if let Some(given) = given.get(&self.nodes[*node as usize].group) {
                *ranges = ranges.difference(given);
            }
        }
        runs.into_iter()
            .filter(|(_, runs)| !runs.is_empty())
            .collect()
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

    /// Who may take what of the released ranges. What was for a copy of its own that fails stays with it, for the
    /// report.
    fn takers(
        &mut self,
        released: Vec<(u32, RangeSet)>,
        members: &[Member],
    ) -> (Vec<(u32, RangeSet)>, Room) {
        let mut takers: BTreeMap<u32, RangeSet> = BTreeMap::new();
        let mut pools: BTreeMap<u32, RangeSet> = BTreeMap::new();
        let mut own: Vec<RangeSet> = Vec::new();
        let mut stays: Vec<(u32, RangeSet)> = Vec::new();
        let mut gave: Vec<(u32, u32, RangeSet)> = Vec::new();
        for (giver, ranges) in released {
            match self.nodes[giver as usize].group {
                Some(group) => {
                    gave.push((group, giver, ranges.clone()));
                    let pool = pools.entry(group).or_default();
                    *pool = pool.union(&ranges);
                }
                None if self.is_able(giver) => {
                    own.push(ranges.clone());
                    takers.insert(giver, ranges);
                }
                None => stays.push((giver, ranges)),
            }
        }
        own.extend(pools.values().cloned());
        let room = self.room(&own, members);
        for (group, pool) in pools {
            let in_group = |node: &u32| self.nodes[*node as usize].group == Some(group);
            // Those with most room first, as many as are needed: few get much, not many crumbs. Those without
            // room, or who do not speak, only get what nobody else could take.
            let mut order: Vec<(u32, f64)> = members
                .iter()
                .map(|member| (member.node, room.down[member.node as usize]))
                .filter(|(node, room)| in_group(node) && *room > 0.0)
                .collect();
            order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let (settle, seconds) = self
                .round
                .as_ref()
                .map_or((false, 0.0), |round| (round.settle, round.seconds));
            let mut open = pool.clone();
            let mut room_left = match settle {
                true => f64::MAX,
                false => pool.len_bytes() as f64 * ROOM_SPARE,
            };
            for (node, room) in order {
                if room_left <= 0.0 {
                    break;
                }
                let mine = self.nodes[node as usize].wants.intersection(&pool);
                let mine = mine.difference(&self.barred(node));
                // Room of those who want nothing of it does not count.
                if !mine.is_empty() {
                    room_left -= room * seconds;
                    open = open.difference(&mine);
                    takers.insert(node, mine);
                }
            }
            // Where nobody has room, it stays with those who had it.
            let works = |node: u32| members.iter().any(|m| m.node == node && m.works());
            for (_, giver, ranges) in gave.iter().filter(|gave| gave.0 == group) {
                let mine = ranges.intersection(&open);
                if let Some(round) = self.round.as_mut().filter(|_| works(*giver)) {
                    round.give_back_to(*giver, &mine);
                    open = open.difference(&mine);
                }
            }
            let able = self.receivers().filter(|&node| self.is_able(node));
            let stays_here = |node: &u32| !self.nodes[*node as usize].leaving;
            let able: Vec<u32> = able.filter(in_group).filter(stays_here).collect();
            // Last, it is for those who could not get it: nobody else can, and they say so.
            for tries_again in [false, true] {
                for &node in &able {
                    let mut mine = self.nodes[node as usize].wants.intersection(&open);
                    if !tries_again {
                        mine = mine.difference(&self.barred(node));
                    }
                    open = open.difference(&mine);
                    if !mine.is_empty() {
                        let all = takers.entry(node).or_default();
                        *all = all.union(&mine);
                    }
                }
            }
            // What nobody can take any more stays missing: no receiver vouches for it.
        }
        for (node, ranges) in stays {
            let runs = &mut self.nodes[node as usize].runs;
            runs.extend(ranges.iter().map(|range| Run {
                start: range.start,
                length: range.len(),
                sender: node,
                ..Run::default()
            }));
        }
        (takers.into_iter().collect(), room)
    }

    /// What the work that nodes kept leaves of their speeds, over the time in which all should be done.
    fn room(&self, pools: &[RangeSet], members: &[Member]) -> Room {
        let mut room = self.even_room();
        let kept: f64 = members.iter().map(|member| member.left).sum();
        let bytes: f64 = pools.iter().map(|pool| pool.len_bytes() as f64).sum();
        let senders = self
            .senders()
            .filter(|&n| self.nodes[n as usize].can_send());
        let up: f64 = senders.map(|n| room.up[n as usize]).sum();
        let (least, settle) = self
            .round
            .as_ref()
            .map_or((0.0, false), |r| (r.seconds, r.settle));
        let seconds = least.max((kept + bytes) / up.max(1.0)).max(0.1);
        if settle {
            // All is planned anew; what is on its way is much the same for all.
            return room;
        }
        let mut load = vec![0.0; self.nodes.len()];
        for member in members {
            for (sender, left) in self.left_by_sender(member) {
                load[sender as usize] += left;
                room.kept.push((sender, member.node, left / seconds));
            }
            let down = &mut room.down[member.node as usize];
            *down = (*down - member.left / seconds).max(0.0);
        }
        for (up, load) in room.up.iter_mut().zip(load) {
            *up = (*up - load / seconds).max(0.0);
        }
        self.make_even(&mut room, ALIKE_ROOM);
        // Few do much: each lane that carries little takes speed from one that was planned to have it all.
        let wanted = pools
            .iter()
            .fold(RangeSet::new(), |all, pool| all.union(pool));
        let most = |n: u32, rate: f64| {
            if self.nodes[n as usize].can_send() {
                rate
            } else {
                0.0
            }
        };
        let most = (0u32..)
            .zip(&room.up)
            .map(|(n, rate)| most(n, *rate))
            .fold(0.0, f64::max);
        let mut held = RangeSet::new();
        for (node, rate) in self.nodes.iter().zip(&mut room.up) {
            match *rate >= most * POOR && node.can_send() {
                true => held = held.union(&node.holds),
                false => *rate = 0.0,
            }
        }
        // What only the poor hold they send all the same.
        let least = match wanted.difference(&held).is_empty() {
            true => 0.0,
            false => 1.0,
        };
        for rate in &mut room.up {
            *rate = rate.max(least);
        }
        room
    }
}
