//! Shares out what a round recalled.
//!
//! Work that moves between receivers goes over lanes that the new owners have, as far as their senders hold it and
//! have rate left. A new lane that carries little takes speed from a lane that was planned to have all of it: moving
//! bytes between two pairs that are both busy would cost what it gains. The rest is planned as one problem.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, Range, RangeSet};

use super::room::{ALIKE_ROOM, Room, make_even};
use super::{Balancer, Member, View};
use crate::control::Run;

/// What a round released, as it is to be planned.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Work {
    /// Which receivers may take which ranges.
    pub takers: Vec<(u32, RangeSet)>,
    /// What senders and receivers have left for it.
    pub room: Room,
    /// Of copies of their own that failed: no plan has it any more.
    pub forfeited: Vec<(u32, RangeSet)>,
}

/// A sender with less than this part of the room of another is not asked for what others hold, too.
const POOR: f64 = 0.1;

/// Receivers are asked until their room is this many times what there is to take: room is an estimate.
const ROOM_SPARE: f64 = 1.1;

/// Estimates of room are exceeded by this factor before new lanes are planned.
const STRETCH_MAX: f64 = 1.1;

impl Balancer {
    /// What becomes of released ranges: what goes over kept lanes is noted in the recall, the rest is returned.
    pub(super) fn deal(
        &mut self,
        view: View<'_>,
        released: Vec<(u32, RangeSet)>,
        now: Instant,
    ) -> Work {
        let members = self.members(view, now);
        let least = self.least_seconds(view, &members);
        if let Some(recall) = self.recall.as_mut().filter(|recall| recall.seconds == 0.0) {
            recall.seconds = least;
        }
        let mut work = self.takers(view, released, &members);
        let (settle, seconds) = self
            .recall
            .as_ref()
            .map_or((true, 0.0), |recall| (recall.settle, recall.seconds));
        if !settle && !self.has_newcomer(view, &work) {
            let runs = self.over_kept_lanes(view, &mut work, seconds);
            if let Some(recall) = &mut self.recall {
                recall.kept_lanes.extend(runs);
            }
        }
        work.takers.retain(|(_, ranges)| !ranges.is_empty());
        work
    }

    /// Whether a node with room has no lanes yet, because it joined: kept lanes would leave it what they cannot carry,
    /// and who has most of them would have to wait for it.
    fn has_newcomer(&self, view: View<'_>, work: &Work) -> bool {
        let observed = |node: u32| self.observed(node).pairs();
        let used: BTreeSet<u32> = view
            .receivers()
            .flat_map(observed)
            .map(|pair| pair.0)
            .collect();
        let joined = |node: u32| view.node(node).joined;
        let mut senders = view.senders().filter(|&node| joined(node));
        let mut takers = work.takers.iter().filter(|taker| joined(taker.0));
        senders.any(|node| !used.contains(&node) && work.room.up[node as usize] > 0.0)
            || takers.any(|(node, _)| observed(*node).next().is_none())
    }

    /// Takes out of what may be taken all that heirs can have from the senders they use now.
    fn over_kept_lanes(
        &self,
        view: View<'_>,
        work: &mut Work,
        seconds: f64,
    ) -> Vec<(u32, Vec<Run>)> {
        let (takers, room) = (&mut work.takers, &work.room);
        let mut up: Vec<f64> = room.up.iter().map(|rate| rate * seconds).collect();
        // What each could have of each of its senders, those it has most from first.
        let mut amounts: Vec<(usize, u32, f64)> = Vec::new();
        for (at, (node, _)) in takers.iter().enumerate() {
            if view.node(*node).group.is_none() {
                continue;
            }
            let mut down = room.down[*node as usize] * seconds;
            let pairs = self.observed(*node).pairs();
            let mut pairs: Vec<(u32, f64)> = pairs.filter(|pair| pair.1 > 0.0).collect();
            pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            for (sender, _) in pairs {
                let able = view.node(sender).can_send();
                let bytes = down.min(up[sender as usize]);
                if able && bytes >= view.unit_len as f64 {
                    down -= bytes;
                    up[sender as usize] -= bytes;
                    amounts.push((at, sender, bytes));
                }
            }
        }
        let shared = |(node, _): &&(u32, RangeSet)| view.node(*node).group.is_some();
        let open = takers.iter().filter(shared);
        let open = open.fold(RangeSet::new(), |all, (_, ranges)| all.union(ranges));
        let total: f64 = amounts.iter().map(|(_, _, bytes)| bytes).sum();
        let stretch = (open.len_bytes() as f64 / total.max(1.0)).clamp(1.0, STRETCH_MAX);
        let mut runs: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        let mut given: BTreeMap<Option<u32>, RangeSet> = BTreeMap::new();
        for (at, sender, bytes) in amounts {
            let (node, ranges) = &takers[at];
            let (node, holds) = (*node, &view.node(sender).holds);
            let most = (bytes * stretch) as u64 + view.unit_len;
            let given = given.entry(view.node(node).group).or_default();
            let mut able = ranges.intersection(holds).difference(given);
            if let Some(failed) = view.node(node).failed_from.get(&sender) {
                able = able.difference(failed);
            }
            let mine = first_bytes(&able, most, view.unit_len);
            *given = given.union(&mine);
            let run = |range: Range| Run {
                start: range.start,
                length: range.len(),
                sender,
                spares: Vec::new(),
                choices: 0,
                relay: None,
            };
            runs.entry(node).or_default().extend(mine.iter().map(run));
        }
        for (node, ranges) in takers.iter_mut() {
            if let Some(given) = given.get(&view.node(*node).group) {
                *ranges = ranges.difference(given);
            }
        }
        runs.into_iter()
            .filter(|(_, runs)| !runs.is_empty())
            .collect()
    }

    /// Which receivers may take what of the released ranges. What was for a copy of its own that failed is forfeited.
    fn takers(
        &mut self,
        view: View<'_>,
        released: Vec<(u32, RangeSet)>,
        members: &[Member],
    ) -> Work {
        let mut takers: BTreeMap<u32, RangeSet> = BTreeMap::new();
        let mut pools: BTreeMap<u32, RangeSet> = BTreeMap::new();
        let mut own: Vec<RangeSet> = Vec::new();
        let mut forfeited: Vec<(u32, RangeSet)> = Vec::new();
        let mut gave: Vec<(u32, u32, RangeSet)> = Vec::new();
        for (giver, ranges) in released {
            match view.node(giver).group {
                Some(group) => {
                    gave.push((group, giver, ranges.clone()));
                    let pool = pools.entry(group).or_default();
                    *pool = pool.union(&ranges);
                }
                None if view.is_able(giver) => {
                    own.push(ranges.clone());
                    takers.insert(giver, ranges);
                }
                None => forfeited.push((giver, ranges)),
            }
        }
        own.extend(pools.values().cloned());
        let room = self.room(view, &own, members);
        for (group, pool) in pools {
            let mut open = self.with_room(view, (group, &pool), (members, &room), &mut takers);
            // Where no receiver has room, it stays with those that had it.
            let works = |node: u32| members.iter().any(|m| m.node == node && m.works());
            for (_, giver, ranges) in gave.iter().filter(|gave| gave.0 == group) {
                let mine = ranges.intersection(&open);
                if let Some(recall) = self.recall.as_mut().filter(|_| works(*giver)) {
                    recall.give_back_to(*giver, &mine);
                    open = open.difference(&mine);
                }
            }
            without_room(view, group, open, &mut takers);
        }
        Work {
            takers: takers.into_iter().collect(),
            room,
            forfeited,
        }
    }

    /// Those with most room first, as many as are needed: few get much, not many crumbs. Returns what they do not want,
    /// or cannot get.
    fn with_room(
        &self,
        view: View<'_>,
        (group, pool): (u32, &RangeSet),
        (members, room): (&[Member], &Room),
        takers: &mut BTreeMap<u32, RangeSet>,
    ) -> RangeSet {
        let in_group = |node: &u32| view.node(*node).group == Some(group);
        let mut order: Vec<(u32, f64)> = members
            .iter()
            .map(|member| (member.node, room.down[member.node as usize]))
            .filter(|(node, room)| in_group(node) && *room > 0.0)
            .collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let (settle, seconds) = self
            .recall
            .as_ref()
            .map_or((false, 0.0), |recall| (recall.settle, recall.seconds));
        let mut open = pool.clone();
        let mut room_left = match settle {
            true => f64::MAX,
            false => pool.len_bytes() as f64 * ROOM_SPARE,
        };
        for (node, room) in order {
            if room_left <= 0.0 {
                break;
            }
            let mine = view.node(node).wants.intersection(pool);
            let mine = mine.difference(&view.barred(node));
            // Room of those that want nothing of it does not count.
            if !mine.is_empty() {
                room_left -= room * seconds;
                open = open.difference(&mine);
                takers.insert(node, mine);
            }
        }
        open
    }

    /// What the work that nodes kept leaves of their speeds, over the time in which all should be done.
    fn room(&self, view: View<'_>, pools: &[RangeSet], members: &[Member]) -> Room {
        let mut room = self.even_room(view);
        let kept: f64 = members.iter().map(|member| member.left).sum();
        let bytes: f64 = pools.iter().map(|pool| pool.len_bytes() as f64).sum();
        let up: f64 = view.able_senders().map(|n| room.up[n as usize]).sum();
        let (least, settle) = self
            .recall
            .as_ref()
            .map_or((0.0, false), |r| (r.seconds, r.settle));
        let seconds = least.max((kept + bytes) / up.max(1.0)).max(0.1);
        if settle {
            // All is planned anew; what is on its way is much the same for all.
            return room;
        }
        let mut load = vec![0.0; view.nodes.len()];
        for member in members {
            for (sender, left) in member.left_by_sender(view) {
                load[sender as usize] += left;
                room.kept.push((sender, member.node, left / seconds));
            }
            let down = &mut room.down[member.node as usize];
            *down = (*down - member.left / seconds).max(0.0);
        }
        for (up, load) in room.up.iter_mut().zip(load) {
            *up = (*up - load / seconds).max(0.0);
        }
        make_even(view, &mut room, ALIKE_ROOM);
        // Few do much: each lane that carries little takes speed from one that was planned to have it all.
        let wanted = pools
            .iter()
            .fold(RangeSet::new(), |all, pool| all.union(pool));
        let most = |n: u32, rate: f64| {
            if view.node(n).can_send() { rate } else { 0.0 }
        };
        let most = (0u32..)
            .zip(&room.up)
            .map(|(n, rate)| most(n, *rate))
            .fold(0.0, f64::max);
        let mut held = RangeSet::new();
        for (node, rate) in view.nodes.iter().zip(&mut room.up) {
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

/// About `bytes` of the set from its start, cut between units where it can be.
fn first_bytes(set: &RangeSet, bytes: u64, unit_len: u64) -> RangeSet {
    let mut out = RangeSet::new();
    let mut open = bytes;
    for range in set.iter() {
        if open == 0 {
            break;
        }
        let mut end = range.start.saturating_add(open).min(range.end);
        let cut = end - end % unit_len;
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

/// Receivers without room, or that are silent, only get what no other could take. What none can take any more stays
/// missing: no receiver vouches for it.
fn without_room(
    view: View<'_>,
    group: u32,
    mut open: RangeSet,
    takers: &mut BTreeMap<u32, RangeSet>,
) {
    let able = view.receivers().filter(|&node| {
        let state = view.node(node);
        state.is_able() && state.group == Some(group) && !state.life().is_leaving()
    });
    let able: Vec<u32> = able.collect();
    // Last, it is for those that could not get it: no other can, and they report so.
    for tries_again in [false, true] {
        for &node in &able {
            let mut mine = view.node(node).wants.intersection(&open);
            if !tries_again {
                mine = mine.difference(&view.barred(node));
            }
            open = open.difference(&mine);
            if !mine.is_empty() {
                let all = takers.entry(node).or_default();
                *all = all.union(&mine);
            }
        }
    }
}
