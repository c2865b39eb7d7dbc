//! When a receiver announces to a peer that fetches from it what it has, and what of it.

use ropewalk_model::{Instant, Nanos, Range, RangeMap, RangeSet};

use crate::wire::{HELD_RANGES_MAX, HeldRange};

/// Two announcements on one stream are at least this part of the time apart that the stream has been open for: what waits to be
/// announced delays a transfer by as much, in proportion; or this part of the time that is left, as what others are to have last they
/// have after that ...
const PART: u64 = 32;

/// ... and never closer than this ...
const PAUSE_MIN: Nanos = Nanos::from_millis(20);

/// ... nor further apart than this, so that but for the first and the last 16 s there are two a second.
const PAUSE_MAX: Nanos = Nanos::from_millis(500);

/// What a receiver has for others.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// All that they may have now.
    pub ranges: RangeSet,
    /// Bytes that it received so far: what it kept of an earlier transfer does not count.
    pub received_bytes: u64,
    /// Bytes that it is to receive: what no peer has does not count.
    pub left_bytes: u64,
}

/// What was announced on one stream; on one that is opened again everything is announced again.
#[derive(Debug)]
pub struct Announcer {
    began_at: Instant,
    next_at: Instant,
    // Bytes that had been received when the stream was opened, and by the last look, when some more had.
    began_with: Option<u64>,
    received: (u64, Instant),
    told: RangeSet,
}

impl Announcer {
    /// A stream begins to be served.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            began_at: now,
            next_at: now,
            began_with: None,
            received: (0, now),
            told: RangeSet::new(),
        }
    }

    /// When to announce next.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// What to say now; nothing before [`Announcer::next_at`], nor where there is nothing new.
    pub fn announce(&mut self, held: &Held, now: Instant) -> Vec<Range> {
        if now < self.next_at {
            return Vec::new();
        }
        let open = now.since(self.began_at);
        let near = open.min(self.time_left(held, open, now));
        self.next_at = now + (near / PART).clamp(PAUSE_MIN, PAUSE_MAX);
        let fresh = held.ranges.difference(&self.told);
        let fresh: Vec<Range> = fresh.iter().take(HELD_RANGES_MAX).collect();
        for range in &fresh {
            self.told.insert(*range);
        }
        fresh
    }

    /// Until all is there, at the mean rate since the stream was opened, or as long again as nothing was received; long where nothing
    /// more follows.
    fn time_left(&mut self, held: &Held, open: Nanos, now: Instant) -> Nanos {
        let bytes = held.received_bytes;
        let gained = bytes.saturating_sub(*self.began_with.get_or_insert(bytes));
        if bytes > self.received.0 {
            self.received = (bytes, now);
        }
        if held.left_bytes == 0 {
            return PAUSE_MAX * PART;
        }
        let left = u128::from(open.0) * u128::from(held.left_bytes) / u128::from(gained.max(1));
        let left = Nanos(u64::try_from(left).unwrap_or(u64::MAX));
        left.max(now.since(self.received.1))
    }
}

/// What [`Announcer::announce`] says, cut where the holders change that it is from, as far as one announcement has space for that.
#[must_use]
pub fn with_origins(ranges: &[Range], origins: &RangeMap<u32>) -> Vec<HeldRange> {
    let mut space = HELD_RANGES_MAX.saturating_sub(ranges.len());
    let mut all = Vec::with_capacity(ranges.len());
    let mut say = |range: Range, origin| all.push(HeldRange { range, origin });
    for &range in ranges {
        let mut at = range.start;
        for (part, origin) in origins.within(range) {
            if at < part.start && space > 0 {
                say(Range::new(at, part.start), None);
                (at, space) = (part.start, space - 1);
            }
            if part.end == range.end && at == part.start {
                say(part, Some(origin));
                at = part.end;
            } else if space > 0 {
                say(part, Some(origin));
                (at, space) = (part.end, space - 1);
            } else {
                break;
            }
        }
        if at < range.end {
            say(Range::new(at, range.end), None);
        }
    }
    all
}

/// Announcements beyond one every [`PAUSE_MIN`] since the stream was opened that it may bring.
const BURST: u64 = 1024;

/// As many as a receiver that does not read for long finds at once, and no more.
const SAVED_MAX: u64 = 1 << 16;

/// Whether a stream brings announcements no more often than it may; on one that is opened again the count begins again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    opened_at: Instant,
    // What was received, or lapsed as it could have been and was not.
    count: u64,
}

impl Heard {
    pub fn new(now: Instant) -> Self {
        Self {
            opened_at: now,
            count: 0,
        }
    }

    /// One more was received: whether that is no flood.
    pub fn count(&mut self, now: Instant) -> bool {
        let due = now.since(self.opened_at).0 / PAUSE_MIN.0;
        self.count = self.count.max(due.saturating_sub(SAVED_MAX)) + 1;
        self.count <= due + BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    /// Each byte is told once, what is new together: soon at first and at last, and twice a second between.
    #[test]
    fn bytes_are_announced_once() {
        const TOTAL: u64 = 60_000;
        let mut announcer = Announcer::new(Instant::ZERO);
        let mut held = Held::default();
        let (mut told, mut times) = (RangeSet::new(), Vec::new());
        for byte in 0..TOTAL {
            let now = Instant::ZERO + Nanos::from_millis(byte);
            held.ranges.insert(Range::new(byte, byte + 1));
            (held.received_bytes, held.left_bytes) = (byte + 1, TOTAL - 1 - byte);
            for range in announcer.announce(&held, now) {
                assert!(told.clipped(range).is_empty(), "{range} is told again");
                told.insert(range);
                times.push(now);
            }
        }
        let pauses = || times.windows(2).map(|pair| pair[1].since(pair[0]));
        assert!(pauses().all(|pause| pause >= PAUSE_MIN && pause <= PAUSE_MAX + SECOND / 500));
        let between = |start: u64, end: u64| {
            let within = Instant::ZERO + SECOND * start..Instant::ZERO + SECOND * end;
            times.iter().filter(|at| within.contains(at)).count()
        };
        assert_eq!(between(20, 40), 40);
        let (early, late) = (between(0, 1), between(59, 60));
        assert!(
            early > 20 && late > 20,
            "{early} in the first second, {late} in the last"
        );
        assert!(held.ranges.difference(&told).len_bytes() <= 20);
    }

    /// Time between two announcements a minute after a receiver has what is held.
    fn pause_after(announcer: &mut Announcer, held: &Held) -> Nanos {
        let start = announcer.next_at();
        let mut now = start;
        while now < start + SECOND * 60 {
            announcer.announce(held, now);
            now = announcer.next_at();
        }
        announcer.announce(held, now);
        announcer.next_at().since(now)
    }

    /// One that has all already, or that receives nothing for long, however little it lacks, does not announce more often for that.
    #[test]
    fn what_does_not_move_is_not_announced_often() {
        for (received_bytes, left_bytes) in [(0, 0), (0, 1), (0, 1 << 30), (1 << 30, 1)] {
            let mut announcer = Announcer::new(Instant::ZERO);
            let mut held = Held::default();
            announcer.announce(&held, Instant::ZERO);
            held = Held {
                ranges: RangeSet::from(Range::new(0, received_bytes)),
                received_bytes,
                left_bytes,
            };
            let pause = pause_after(&mut announcer, &held);
            assert_eq!(pause, PAUSE_MAX, "{received_bytes} {left_bytes}");
        }
    }

    /// What was kept of an earlier transfer, which is known later than the stream is opened, is not taken for received.
    #[test]
    fn what_was_kept_does_not_bring_the_end_nearer() {
        let mut announcer = Announcer::new(Instant::ZERO);
        announcer.announce(&Held::default(), Instant::ZERO);
        // At a byte a millisecond it takes ten minutes more.
        let mut held = Held::default();
        let mut now = announcer.next_at();
        while now < Instant::ZERO + SECOND * 60 {
            let received_bytes = now.0 / 1_000_000;
            held = Held {
                ranges: RangeSet::from(Range::new(0, (1 << 40) + received_bytes)),
                received_bytes,
                left_bytes: 660_000 - received_bytes,
            };
            announcer.announce(&held, now);
            now = announcer.next_at();
        }
        announcer.announce(&held, now);
        assert_eq!(announcer.next_at().since(now), PAUSE_MAX);
    }

    /// What an announcer says is never a flood, at once or read after minutes, in the middle and near the end; what never ends is.
    #[test]
    fn floods_are_seen() {
        for left_bytes in [1 << 40, 1] {
            let mut announcer = Announcer::new(Instant::ZERO);
            let (mut heard, mut late) = (Heard::new(Instant::ZERO), Vec::new());
            let (mut now, mut byte) = (Instant::ZERO, 0);
            while now < Instant::ZERO + SECOND * 300 {
                byte += 1;
                let held = Held {
                    ranges: RangeSet::from(Range::new(0, byte)),
                    received_bytes: byte,
                    left_bytes,
                };
                if !announcer.announce(&held, now).is_empty() {
                    assert!(heard.count(now), "at {now:?}");
                    late.push(());
                }
                now = announcer.next_at();
            }
            let mut heard = Heard::new(Instant::ZERO);
            assert!(late.len() > if left_bytes == 1 { 10_000 } else { 500 });
            assert!(late.iter().all(|()| heard.count(now)));
        }
        let mut heard = Heard::new(Instant::ZERO);
        let flood = (0..5_000).map(|at| Instant::ZERO + Nanos::from_millis(at));
        assert!(flood.into_iter().any(|at| !heard.count(at)));
        // After a day as well.
        let day = Instant::ZERO + SECOND * 86_400;
        let mut heard = Heard::new(Instant::ZERO);
        let most = SAVED_MAX + BURST;
        assert!((0..most).all(|_| heard.count(day)));
        assert!(!heard.count(day));
    }

    /// Ranges are cut where their holders change, and gaps have none. All of them are announced, also where some cuts do not fit.
    #[test]
    fn announced_ranges_have_their_origins() {
        let held = |start, end, origin| HeldRange {
            range: Range::new(start, end),
            origin,
        };
        let mut origins = RangeMap::default();
        origins.insert(Range::new(0, 10), 4);
        origins.insert(Range::new(15, 20), 5);
        origins.insert(Range::new(20, 40), 6);
        let ranges = [Range::new(5, 25), Range::new(30, 35), Range::new(50, 51)];
        let expected = [
            held(5, 10, Some(4)),
            held(10, 15, None),
            held(15, 20, Some(5)),
            held(20, 25, Some(6)),
            held(30, 35, Some(6)),
            held(50, 51, None),
        ];
        assert_eq!(with_origins(&ranges, &origins), expected);

        let mut many = RangeMap::default();
        (0..2000).for_each(|at| many.insert(Range::new(at, at + 1), at as u32));
        let ranges = [
            Range::new(0, 1000),
            Range::new(1000, 1100),
            Range::new(1200, 1210),
        ];
        let all = with_origins(&ranges, &many);
        assert_eq!(all.len(), HELD_RANGES_MAX);
        assert_eq!(all[999], held(999, 1000, Some(999)));
        assert_eq!(all[1000], held(1000, 1001, Some(1000)));
        // Of the last cuts there are none.
        assert_eq!(
            all[1022..],
            [held(1022, 1100, None), held(1200, 1210, None)]
        );
    }

    /// A frame has an end: what does not fit goes with the next one.
    #[test]
    fn many_pieces_take_several_announcements() {
        let pieces = (0..2500).map(|at| Range::new(at * 10, at * 10 + 5));
        let held = Held {
            ranges: RangeSet::from_ranges(pieces),
            ..Held::default()
        };
        let mut announcer = Announcer::new(Instant::ZERO);
        let mut told = RangeSet::new();
        for times in 1..=3 {
            let fresh = announcer.announce(&held, announcer.next_at());
            assert!(fresh.len() <= HELD_RANGES_MAX);
            told = told.union(&RangeSet::from_ranges(fresh));
            assert_eq!(told == held.ranges, times == 3);
        }
    }
}
