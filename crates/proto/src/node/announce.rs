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
