//! How fast a rail is and how long it takes, from when fragments were given to it and acknowledged.
//!
//! Fragments that follow each other without a pause are a **train**. What arrived after the first acknowledgement of a
//! train, over the time since, is the rail's speed, whatever the path and the threads at both ends add to every
//! round trip; that shows in the first fragment alone. Messages too short for a train say nothing about speed.

use ropewalk_model::{Instant, Nanos};

/// Shortest stretch of a train that makes a sample by itself.
const SAMPLE_TIME_MIN: Nanos = Nanos(10_000_000);
/// And the least that a whole train has to bring: less is acknowledged in too few pieces.
const TRAIN_BYTES_MIN: u64 = 8 << 10;
/// The middle one of so many samples counts: threads that run late make a rail look slow when they spread
/// acknowledgements out, and fast when they bring them together.
const SAMPLES: usize = 8;
/// With fewer than these the speed is unknown.
const SAMPLES_MIN: usize = 3;
/// Part of the delay that a new one replaces.
const SHARE: f64 = 0.2;
/// A fragment that takes longer than this by itself says nothing of the delay: an error of the speed, times its bytes, would
/// be taken for it.
const SHORT_SECONDS: f64 = 2e-3;
/// An estimate older than this is not worth declining work for.
const STALE_TIME: Nanos = Nanos(200_000_000);

/// Speed and delay of one rail.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// When the running sample began, by an acknowledgement; `None` before the first of a train.
    since: Option<Instant>,
    bytes: u64,
    /// The newest samples, bytes per second, in a ring; and how many there ever were.
    samples: [f64; SAMPLES],
    count: usize,
    /// Time beside that of its bytes that a fragment takes until it is acknowledged.
    delay_seconds: f64,
    sampled_at: Instant,
}

impl Pace {
    /// The rail has delivered `bytes` that were given to it at `taken_at`; `busy` says whether the train goes on.
    pub fn delivered(&mut self, bytes: u64, taken_at: Instant, now: Instant, busy: bool) {
        match self.since {
            None => {
                self.since = Some(now);
                if let Some(rate) = self.bytes_per_second() {
                    let own = bytes as f64 / rate;
                    let took = now.since(taken_at).as_seconds();
                    if own <= SHORT_SECONDS {
                        let delay = (took - own).max(0.0);
                        self.delay_seconds += (delay - self.delay_seconds) * SHARE;
                    }
                }
            }
            // What one acknowledgement brings with the first took no time of its own.
            Some(since) if now > since => self.bytes += bytes,
            Some(_) => {}
        }
        self.sample(now, busy);
        if !busy {
            self.since = None;
            self.bytes = 0;
        }
    }

    fn sample(&mut self, now: Instant, busy: bool) {
        let Some(since) = self.since else { return };
        let took = now.since(since);
        let enough = took >= SAMPLE_TIME_MIN || (!busy && self.bytes >= TRAIN_BYTES_MIN);
        if self.bytes == 0 || took == Nanos::ZERO || !enough {
            return;
        }
        let seconds = took.as_seconds();
        self.samples[self.count % SAMPLES] = (self.bytes as f64 / seconds).max(1.0);
        self.count += 1;
        (self.since, self.bytes, self.sampled_at) = (Some(now), 0, now);
    }

    /// Bytes per second; `None` before a few trains.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let mut samples = self.samples;
        let known = &mut samples[..self.count.min(SAMPLES)];
        known.sort_unstable_by(f64::total_cmp);
        (known.len() >= SAMPLES_MIN).then(|| known[known.len() / 2])
    }

    /// Whether the estimate is recent enough to leave the rail idle for it.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.sampled_at) < STALE_TIME
    }

    /// Seconds until the last of `bytes` is acknowledged, the first being given to the rail now.
    pub fn seconds(&self, bytes: u64) -> Option<f64> {
        Some(self.delay_seconds + bytes as f64 / self.bytes_per_second()?)
    }

    /// Bytes that fill the time until an acknowledgement can have returned, twice over: threads are late at times.
    pub fn bytes_to_fill(&self) -> u64 {
        let rate = self.bytes_per_second().unwrap_or(0.0);
        (2.0 * rate * self.delay_seconds) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// A rail of 100 MB/s that takes 200 us beside the bytes, in trains of so many fragments of 10 kB.
    fn trains(fragments: u64, count: u64) -> Pace {
        let mut pace = Pace::default();
        for train in 0..count {
            let begun = train * 50_000 * US;
            for fragment in 1..=fragments {
                let now = begun + (200 + fragment * 100) * US;
                pace.delivered(10_000, Instant(begun), Instant(now), fragment < fragments);
            }
        }
        pace
    }

    /// What every round trip costs is no part of the speed.
    #[test]
    fn speed_is_apart_from_delay() {
        for fragments in [3, 8, 500] {
            let pace = trains(fragments, 40);
            let rate = pace.bytes_per_second().unwrap();
            assert!((rate / 100e6 - 1.0).abs() < 0.01, "{fragments}: {rate}");
            let seconds = pace.seconds(1_000_000).unwrap();
            assert!((seconds - 0.0102).abs() < 1e-4, "{fragments}: {seconds}");
            assert!((pace.bytes_to_fill() as f64 / 40_000.0 - 1.0).abs() < 0.05);
        }
    }

    /// Single small fragments show a delay and nothing of the speed.
    #[test]
    fn small_messages_say_nothing() {
        assert_eq!(trains(1, 100).bytes_per_second(), None);
        let mut pace = trains(8, 40);
        let before = pace.bytes_per_second();
        for turn in 0..1000 {
            pace.delivered(
                64,
                Instant(turn * 100 * US),
                Instant((turn * 100 + 90) * US),
                false,
            );
        }
        assert_eq!(pace.bytes_per_second(), before);
    }

    /// Where one fragment is a whole part of a message, a speed that is known a little wrong is no delay.
    #[test]
    fn long_fragments_say_nothing_of_the_delay() {
        let mut pace = trains(8, 40);
        let before = pace.bytes_to_fill();
        for turn in 0..100 {
            // 1 MiB at a twentieth less than the known speed.
            let taken = (1000 + turn) * 50_000 * US;
            pace.delivered(1 << 20, Instant(taken), Instant(taken + 11_200 * US), false);
        }
        assert_eq!(pace.bytes_to_fill(), before);
    }

    /// A rail that becomes slower is known to be so after a few trains, and an old estimate is not trusted.
    #[test]
    fn changes_show() {
        let mut pace = trains(8, 40);
        let begun = 40 * 50_000 * US;
        for fragment in 1..=100 {
            pace.delivered(
                10_000,
                Instant(begun),
                Instant(begun + fragment * 10_000 * US),
                fragment < 100,
            );
        }
        let rate = pace.bytes_per_second().unwrap();
        assert!((0.9e6..1.5e6).contains(&rate), "{rate}");
        let end = Instant(begun + 1_000_000 * US);
        assert!(pace.is_fresh(end));
        assert!(!pace.is_fresh(end + STALE_TIME));
    }
}
