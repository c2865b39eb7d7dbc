//! When a receiver announces to a peer that fetches from it what it has, and what of it.

use ropewalk_model::{Instant, Nanos, Range, RangeSet};

use crate::wire::HELD_RANGES_MAX;

/// Two announcements on one stream are at least this part of the time apart that the stream has been open for: what waits to be
/// announced delays a transfer by as much, in proportion ...
const PART: u64 = 32;

/// ... and never closer than this ...
const PAUSE_MIN: Nanos = Nanos::from_millis(20);

/// ... nor further apart than this, so that from 16 s on there are two a second.
const PAUSE_MAX: Nanos = Nanos::from_millis(500);

/// What was announced on one stream; on one that is opened again everything is announced again.
#[derive(Debug)]
pub struct Announcer {
    began_at: Instant,
    next_at: Instant,
    told: RangeSet,
}

impl Announcer {
    /// A stream begins to be served.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            began_at: now,
            next_at: now,
            told: RangeSet::new(),
        }
    }

    /// When to announce next.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// What to say now; nothing before [`Announcer::next_at`], nor where there is nothing new.
    ///
    /// * `held`: all that others may have.
    pub fn announce(&mut self, held: &RangeSet, now: Instant) -> Vec<Range> {
        if now < self.next_at {
            return Vec::new();
        }
        let open = now.since(self.began_at);
        self.next_at = now + (open / PART).clamp(PAUSE_MIN, PAUSE_MAX);
        let fresh = held.difference(&self.told);
        let fresh: Vec<Range> = fresh.iter().take(HELD_RANGES_MAX).collect();
        for range in &fresh {
            self.told.insert(*range);
        }
        fresh
    }
}

/// Announcements beyond one every [`PAUSE_MIN`] that a stream may bring at once: a receiver that stood still for minutes reads all
/// that waited.
const BURST: u64 = 1024;

/// Whether a stream brings announcements no more often than it may; on one that is opened again the count begins again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    // When none of what came would count any more.
    free_at: Instant,
}

impl Heard {
    pub fn new(now: Instant) -> Self {
        Self { free_at: now }
    }

    /// One more was received: whether that is no flood.
    pub fn count(&mut self, now: Instant) -> bool {
        let free_at = self.free_at.max(now) + PAUSE_MIN;
        let is_well = free_at <= now + PAUSE_MIN * BURST;
        if is_well {
            self.free_at = free_at;
        }
        is_well
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    /// Each byte is told once, what is new together, soon at first and twice a second later.
    #[test]
    fn bytes_are_announced_once() {
        let mut announcer = Announcer::new(Instant::ZERO);
        let mut held = RangeSet::new();
        let (mut told, mut times) = (RangeSet::new(), Vec::new());
        let mut now = Instant::ZERO;
        while now < Instant::ZERO + SECOND * 60 {
            let byte = now.0 / 1_000_000;
            held.insert(Range::new(byte, byte + 1));
            for range in announcer.announce(&held, now) {
                assert!(told.clipped(range).is_empty(), "{range} is told again");
                told.insert(range);
                times.push(now);
            }
            now += Nanos::from_millis(1);
        }
        let pauses = || times.windows(2).map(|pair| pair[1].since(pair[0]));
        assert!(pauses().all(|pause| pause >= PAUSE_MIN && pause <= PAUSE_MAX + SECOND / 500));
        let in_last = times
            .iter()
            .filter(|at| **at >= Instant::ZERO + SECOND * 50);
        assert_eq!(in_last.count(), 20);
        assert!(held.difference(&told).len_bytes() <= 500);
        let early = times
            .iter()
            .filter(|at| **at < Instant::ZERO + SECOND)
            .count();
        assert!(early > 20, "{early} in the first second");
    }

    /// What an announcer says is never a flood, nor is what waited for minutes; what never ends is.
    #[test]
    fn floods_are_seen() {
        let mut announcer = Announcer::new(Instant::ZERO);
        let (mut heard, mut late) = (Heard::new(Instant::ZERO), Vec::new());
        let (mut now, mut byte) = (Instant::ZERO, 0);
        while now < Instant::ZERO + SECOND * 300 {
            byte += 1;
            let held = RangeSet::from(Range::new(0, byte));
            if !announcer.announce(&held, now).is_empty() {
                assert!(heard.count(now), "at {now:?}");
                late.push(());
            }
            now = announcer.next_at();
        }
        let mut heard = Heard::new(Instant::ZERO);
        assert!(late.len() > 500 && late.iter().all(|()| heard.count(now)));
        let mut heard = Heard::new(Instant::ZERO);
        let flood = (0..5_000).map(|at| Instant::ZERO + Nanos::from_millis(at));
        assert!(flood.into_iter().any(|at| !heard.count(at)));
    }

    /// A frame has an end: what does not fit goes with the next one.
    #[test]
    fn many_pieces_take_several_announcements() {
        let pieces = (0..2500).map(|at| Range::new(at * 10, at * 10 + 5));
        let held = RangeSet::from_ranges(pieces);
        let mut announcer = Announcer::new(Instant::ZERO);
        let mut told = RangeSet::new();
        for times in 1..=3 {
            let fresh = announcer.announce(&held, announcer.next_at());
            assert!(fresh.len() <= HELD_RANGES_MAX);
            told = told.union(&RangeSet::from_ranges(fresh));
            assert_eq!(told == held, times == 3);
        }
    }
}
