//! How much of a balanced message each rail carries: how long fragments are, how many of them a rail holds, and when it
//! leaves the rest to others.

use ropewalk_model::Instant;

use super::rail::Rail;
use super::{Outgoing, Sender};
use crate::message::{FRAGMENT_MIN, RailId};

/// Fragments that each rail finds in a long balanced message: the last one of a rail is then at most
/// an eighth of its part.
const PIECES_PER_RAIL: u64 = 8;

/// Shortest balanced fragment, unless there is one for each rail: a header and a system call cost about as much as the bytes of a page.
const BALANCED_MIN: u64 = FRAGMENT_MIN as u64;

/// Longest balanced fragment: 21 ms on a rail of 100 Mbit/s, and long enough for one call to the kernel
/// to cost nothing beside its copy.
const BALANCED_MAX: u64 = 256 << 10;

/// Fragments of a balanced message that may be in transit on a rail in any case: the kernel would take a whole short
/// message for whichever rail asks first, and what it holds is lost to the others.
const PIPELINE: u64 = 2;

/// Time of a rail that a fragment should fill: many times what both ends need to handle it.
const FRAGMENT_SECONDS: f64 = 200e-6;

/// Bytes that a rail may have to show what it can, when that was last seen too long ago.
const TRIAL_BYTES: f64 = 16384.0;

/// Time of a rail that no fragment should exceed where speeds are known: the last one of a message makes others wait.
const LAST_SECONDS: f64 = 1.5e-3;

/// Speeds that are no further apart are taken for equal.
const ABOUT_EQUAL: f64 = 1.5;

/// What is left is dealt out when it takes less time than this.
const SOON_SECONDS: f64 = 0.001;

/// Most that a rail takes ahead for being fast: what it holds when it fails has to be sent again.
const AHEAD_MAX: u64 = 1 << 20;

/// Speeds of all rails that are up, bytes per second.
struct Speeds {
    sum: f64,
    count: f64,
    least: f64,
    most: f64,
}

impl Speeds {
    fn are_equal(&self) -> bool {
        self.most <= self.least * ABOUT_EQUAL
    }
}

impl Sender {
    /// Length of fragments of a balanced message over so many rails.
    pub(super) fn balanced_len(&self, length: u64, ways: u64) -> u64 {
        let part = length.div_ceil(ways);
        let pieces = part / self.worth_a_fragment().max(1);
        let most = self.most_of_a_fragment();
        let longest = part
            .div_ceil(pieces.clamp(1, PIECES_PER_RAIL))
            .min(most)
            .clamp(BALANCED_MIN, BALANCED_MAX);
        // As many for each rail, so that equal rails end together.
        let equal = part.div_ceil(part.div_ceil(longest).max(1));
        equal.max(BALANCED_MIN.min(part))
    }

    /// The speeds of rails that are up; `None` while one is unknown.
    fn speeds(&self) -> Option<Speeds> {
        let mut speeds = Speeds {
            sum: 0.0,
            count: 0.0,
            least: f64::MAX,
            most: 0.0,
        };
        for rail in self.rails.iter().filter(|r| r.up) {
            let speed = rail.pace.bytes_per_second()?;
            speeds.sum += speed;
            speeds.count += 1.0;
            speeds.least = f64::min(speeds.least, speed);
            speeds.most = f64::max(speeds.most, speed);
        }
        Some(speeds)
    }

    /// Bytes below which a fragment is not worth what both ends spend on it; where speeds differ, fewer, as parts are
    /// not equal then. 0 while a speed is unknown, or was last seen too long ago: only several fragments in a row show it.
    fn worth_a_fragment(&self) -> u64 {
        let is_old = |r: &Rail| r.up && !r.pace.is_fresh(self.now);
        let Some(speeds) = self.speeds().filter(|_| !self.rails.iter().any(is_old)) else {
            return 0;
        };
        let seconds = if speeds.are_equal() {
            FRAGMENT_SECONDS
        } else {
            FRAGMENT_SECONDS / 4.0
        };
        (speeds.sum / f64::max(speeds.count, 1.0) * seconds) as u64
    }

    /// Bytes that a rail of usual speed carries in the time that rails may end apart.
    fn most_of_a_fragment(&self) -> u64 {
        let mean = |speeds: Speeds| speeds.sum / f64::max(speeds.count, 1.0);
        self.speeds()
            .map_or(u64::MAX, |speeds| (mean(speeds) * LAST_SECONDS) as u64)
    }

    /// Bytes of balanced messages that a rail may have in transit, `carried` now: half of its part of all that is left,
    /// so that no rail waits for acknowledgements until the end is near; and all of its part when that takes no longer
    /// than acknowledgements and threads do at times.
    pub(super) fn room(&self, rail: RailId, m: &Outgoing, carried: u64) -> u64 {
        let pace = &self.rails[rail].pace;
        let speeds = self.speeds();
        let part = match (&speeds, pace.bytes_per_second()) {
            (Some(speeds), Some(own)) if !speeds.are_equal() => own / speeds.sum,
            _ => 1.0 / self.rails.iter().filter(|r| r.up).count().max(1) as f64,
        };
        let in_transit = self.rails.iter().map(|r| r.in_transit_bytes).sum::<u64>();
        let left = (self.ready_bytes + in_transit) as f64;
        let soon = speeds.is_some_and(|speeds| left < speeds.sum * SOON_SECONDS);
        let share = part * (self.ready_bytes + carried) as f64;
        let share = if pace.is_fresh(self.now) {
            share
        } else {
            share.max(TRIAL_BYTES)
        };
        if soon {
            // In whole fragments, or one would wait for an acknowledgement.
            let fragment = u64::from(m.fragment_len);
            return (share as u64 + fragment / 2) / fragment * fragment;
        }
        let least = (PIPELINE * u64::from(m.fragment_len)).min(share as u64);
        let half = (share / 2.0) as u64;
        half.min(AHEAD_MAX).max(least).max(pace.bytes_to_fill())
    }

    /// Whether other rails would have all that is ready delivered before this one has one fragment. The rail that
    /// would be first never declines, nor does one whose speed was last seen too long ago.
    pub(super) fn declines(&self, rail: RailId, bytes: u64, now: Instant) -> bool {
        let own = &self.rails[rail];
        let Some(own) = own.seconds(bytes, now).filter(|_| own.pace.is_fresh(now)) else {
            return false;
        };
        let (mut rate, mut backlog, mut soonest) = (0.0, self.ready_bytes as f64, f64::MAX);
        for (other, r) in self.rails.iter().enumerate() {
            if other == rail || !r.up {
                continue;
            }
            let speed = r.pace.bytes_per_second();
            let (Some(speed), Some(seconds)) = (speed, r.seconds(bytes, now)) else {
                continue;
            };
            rate += speed;
            backlog += r.in_transit_bytes as f64;
            soonest = soonest.min(seconds);
        }
        rate > 0.0 && own > (backlog / rate).max(soonest)
    }
}
