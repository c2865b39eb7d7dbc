//! What a lane without work of its own takes from others: ready runs, and at the very end second copies.

use std::cmp::Reverse;

use ropewalk_model::{Instant, Nanos, Range};

use super::{InTransit, LaneId, Ledger, RATE_UNKNOWN, ReadyRun, Unit};

/// A second copy is sent only when the slow lane is expected to need this many times longer; below
/// that the duplicate costs more than it saves.
const END_GAME_ADVANTAGE: f64 = 2.0;

/// A second copy must also save this much time, in seconds: less is not worth the bytes, and the
/// speeds of lanes that have carried little are rough.
const END_GAME_GAIN_MIN: f64 = 0.1;

/// Stolen runs are at most this long, so that a thief that slows down holds little back (64 MiB).
const STEAL_MAX: u64 = 64 << 20;

/// Stolen runs have at least this many bytes. The cut moves them to the begin of a unit, so one byte stands for one unit: an idle
/// lane always gets a unit, however small its share.
const STEAL_MIN: u64 = 1;

/// A lane that only stands by for others steals what it carries in this time at most: it gives the
/// work back, so to speak, as soon as the planned lanes can do without it.
const SPARE_STEAL_SECONDS: f64 = 1.0;

/// And this much while its speed is not known (256 KiB).
const SPARE_STEAL_UNMEASURED: u64 = 256 << 10;

/// Within a lane of many streams: a unit that takes longer than its lane's mean by this factor is on a slow stream. One
/// that is idle brings it in less, since nothing goes before it there.
const SLOW_STREAM: f64 = 2.0;

/// So many units of a lane are carried twice within it at most, or this part of those in transit: each takes room from
/// the others.
const DOUBLED: (usize, usize) = (2, 8);

/// Most lanes a unit may be in transit on at once: its first carrier and one end-game copy.
pub(super) const CARRIERS_MAX: usize = 2;

impl Ledger {
    /// Moves part of the run of the lane that would finish last to `thief`: of another rail of its peer, else of another
    /// peer if it is `free` to.
    pub(super) fn steal(
        &mut self,
        thief: LaneId,
        free: bool,
        now: Instant,
        unit_at: &dyn Fn(u64) -> Range,
    ) {
        let could = |lane: &LaneId| {
            let ready = &self.lanes[*lane].ready;
            *lane != thief
                && !self.is_relay(*lane)
                && ready.iter().any(|run| run.holders.contains(&thief))
        };
        let slowest = |lanes: &mut dyn Iterator<Item = LaneId>| {
            lanes.max_by(|&a, &b| self.backlog_seconds(a).total_cmp(&self.backlog_seconds(b)))
        };
        let all = || self.lanes.numbers().filter(could);
        let rail = slowest(&mut all().filter(|&lane| self.are_rails(lane, thief)));
        let victim = rail.or_else(|| slowest(&mut all()).filter(|_| free));
        let Some(victim) = victim else { return };
        let slow = self.rate_at_most(victim, now).unwrap_or(RATE_UNKNOWN);
        // A thief nobody has measured may be as fast as its victim.
        let fast = self.rate_at_most(thief, now).unwrap_or(slow);
        // Bytes still in transit on the victim delay it: the thief may take that much more.
        let share = fast / (fast + slow);
        let even = (self.lanes[victim].ready_bytes as f64 * share) as u64;
        let thief_lane = &self.lanes[thief];
        let is_at_home = thief_lane.planned || rail.is_some();
        let most = match (is_at_home, thief_lane.rate.bytes_per_second()) {
            (true, _) => STEAL_MAX,
            (false, Some(rate)) => (rate * SPARE_STEAL_SECONDS) as u64,
            (false, None) => SPARE_STEAL_UNMEASURED,
        };
        let take = even.min(most.min(STEAL_MAX)).max(STEAL_MIN);
        let mut stolen: Vec<(usize, Range)> = Vec::new();
        let mut taken = 0;
        for at in self.order_of_theft(thief, victim, take) {
            let range = self.lanes[victim].ready[at].range;
            // Cut on a unit border, so that no unit is split between two senders.
            let cut = unit_at(range.end - (take - taken).min(range.len()));
            let start = cut.start.clamp(range.start, range.end - 1);
            let part = Range { start, ..range };
            taken += part.len();
            stolen.push((at, part));
        }
        if stolen.is_empty() {
            return;
        }
        // A slow lane leaves alone what the other one will have before it.
        let victim_lane = &self.lanes[victim];
        let left = (victim_lane.ready_bytes + victim_lane.in_transit_bytes) as f64 / slow;
        let own = (self.lanes[thief].in_transit_bytes + taken) as f64 / fast;
        if own > left {
            return;
        }
        let victim_lane = &mut self.lanes[victim];
        victim_lane.ready_bytes -= taken;
        stolen.sort_unstable_by_key(|(at, _)| *at);
        let mut runs = Vec::with_capacity(stolen.len());
        for (at, part) in &stolen {
            let run = &mut victim_lane.ready[*at];
            run.range.end = part.start;
            let mut holders = run.holders.clone();
            holders.retain(|&h| h != thief);
            holders.insert(0, thief);
            runs.push(ReadyRun {
                range: *part,
                holders,
                choices: run.choices,
            });
        }
        match stolen.as_slice() {
            [(at, _)] if victim_lane.ready[*at].range.is_empty() => {
                victim_lane.ready.remove(*at);
            }
            [_] => {}
            _ => victim_lane.ready.retain(|run| !run.range.is_empty()),
        }
        for run in runs {
            self.push(thief, run, false);
        }
    }

    /// Ready runs of one lane of which another one takes so many bytes, in that order: all but the last as a whole. Another peer takes a part of one: what fewest hold, as
    /// the loss of it costs most there; of those, what is fetched last. Another rail to the same peer takes from the end, as all that is there
    /// is as rare, and several: to take one short run at a time takes the square of their number.
    fn order_of_theft(&self, thief: LaneId, victim: LaneId, bytes: u64) -> Vec<usize> {
        let ready = &self.lanes[victim].ready;
        let holds = |at: &usize| ready[*at].holders.contains(&thief);
        let len = |at: usize| ready[at].range.len();
        if self.are_rails(victim, thief) {
            let mut before = 0;
            let from_end = (0..ready.len()).rev().filter(holds);
            let enough = from_end.take_while(|at| {
                let is_due = before < bytes;
                before += len(*at);
                is_due
            });
            return enough.collect();
        }
        let own = (0..ready.len()).filter(holds);
        let rarest = own.min_by_key(|at| (self.living(&ready[*at].holders), Reverse(*at)));
        rarest.into_iter().collect()
    }

    fn living(&self, holders: &[LaneId]) -> usize {
        let lives = |lane: &&LaneId| self.is_alive(**lane);
        holders.iter().filter(lives).count()
    }

    pub(super) fn end_game(&mut self, lane: LaneId, free: bool, now: Instant) -> Option<Unit> {
        let start = self.find_overdue(lane, free, now)?;
        let unit = self.in_transit.get_mut(&start)?;
        unit.carriers.push(lane);
        let range = unit.range;
        self.lanes[lane].carry(range.len(), now);
        Some(Unit {
            range,
            duplicate: true,
        })
    }

    /// The unit in transit that is expected last, of those of which a lane would bring a second copy in time.
    fn find_overdue(&self, lane: LaneId, free: bool, now: Instant) -> Option<u64> {
        let slow_after = self.slow_after.filter(|_| self.may_double(lane));
        let relayed = self.relayed_gain(now);
        let own_rate = self.rate(lane);
        let own_backlog = self.lanes[lane].in_transit_bytes as f64;
        let overdue = self
            .in_transit
            .iter()
            .filter(|(_, unit)| {
                unit.carriers.len() < CARRIERS_MAX
                    && unit.holders.contains(&lane)
                    && (free || unit.carriers.iter().any(|&c| self.are_rails(c, lane)))
            })
            .filter(|(_, unit)| {
                if unit.carriers.contains(&lane) {
                    return slow_after.is_some_and(|after| self.is_late(lane, unit, after, now));
                }
                let own = (own_backlog + unit.range.len() as f64) / own_rate;
                let theirs = self.expected_seconds(unit, now);
                let gain_min = match unit.carriers.iter().find(|c| self.is_relay(**c)) {
                    Some(carrier) => relayed(*carrier),
                    None => END_GAME_GAIN_MIN,
                };
                theirs > own * END_GAME_ADVANTAGE && theirs - own > gain_min
            })
            .max_by(|(_, a), (_, b)| {
                let left = |unit| self.expected_seconds(unit, now);
                left(a)
                    .total_cmp(&left(b))
                    .then(a.range.start.cmp(&b.range.start))
            });
        overdue.map(|(&start, _)| start)
    }

    /// Whether a unit takes this long on its lane, and longer than most.
    fn is_late(&self, lane: LaneId, unit: &InTransit, after: Nanos, now: Instant) -> bool {
        let (takes, mean) = (now.since(unit.taken_at), self.lanes[lane].took_ns);
        takes > after && mean > 0.0 && takes.0 as f64 > mean * SLOW_STREAM
    }

    /// Bytes in transit on a lane without those that are late by this much, and without copies that were cancelled: a stream that is dead
    /// keeps both. Cost O(in transit).
    pub fn timely_bytes(&self, lane: LaneId, after: Nanos, now: Instant) -> u64 {
        let units = self.in_transit.values();
        let timely = units.filter(|unit| !self.is_late(lane, unit, after, now));
        timely
            .map(|unit| {
                let times = unit.carriers.iter().filter(|&&carrier| carrier == lane);
                unit.range.len() * times.count() as u64
            })
            .sum()
    }

    // Whether one more unit of the lane may be carried twice within it.
    fn may_double(&self, lane: LaneId) -> bool {
        let times = |unit: &InTransit| unit.carriers.iter().filter(|&&c| c == lane).count();
        let mine = self
            .in_transit
            .values()
            .map(times)
            .filter(|&times| times > 0);
        let (all, doubled) = mine.fold((0, 0), |(all, doubled), times| {
            (all + 1, doubled + usize::from(times > 1))
        });
        doubled < DOUBLED.0.max(all / DOUBLED.1)
    }

    /// Bytes per second that a lane carries, as measured, and no more than a unit that is overdue allows; `None`
    /// while nothing says anything.
    pub(super) fn rate_at_most(&self, lane: LaneId, now: Instant) -> Option<f64> {
        let l = &self.lanes[lane];
        let measured = l.rate.bytes_per_second();
        let waiting = l.moved_at.filter(|_| l.in_transit_bytes > 0);
        let Some(since) = waiting else {
            return measured;
        };
        let seconds = now.since(since).max(Nanos(1)).as_seconds();
        let most = l.in_transit_bytes as f64 / seconds;
        Some(measured.map_or(most, |rate| rate.min(most)).max(1.0))
    }
}
