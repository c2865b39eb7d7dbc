//! How fast a receiver sends what it hands on: its uplink also carries the requests and acknowledgements of its own download.
//!
//! Each stream of TCP keeps a least window (four segments with BBR). The least windows of many streams are more than the queue of a slow
//! uplink holds: a fifth of all segments is sent again, the queue stays full, and the receiver's own download gets half of what its link
//! has. The streams are paced then, so that less is sent than the uplink carries: the limit falls where more than 3 % of the segments are
//! sent again, and rises else, slowly up to where it fell last.
//!
//! Only that case is touched: many segments are sent again while each stream is slow. Where that goes on while streams are paced, the path
//! loses segments, not the uplink, and nothing is paced for a while.

use ropewalk_model::{Instant, Nanos};

/// Between two looks at least: what slow streams do in less says little.
const LOOK_TIME: Nanos = Nanos::from_millis(500);

/// Segments between two looks from which a share is known ...
const SEGMENTS_MIN: u64 = 60;

/// ... and the longest wait for these: after that, streams are idle.
const LOOK_TIME_MAX: Nanos = Nanos::from_millis(4_000);

/// Segments sent again, of 1,000, that are too many: without a limit ...
const REPEATED_MAX: u64 = 50;

/// ... and with one. Links of peers lose 10 to 20.
const REPEATED_MAX_PACED: u64 = 30;

/// Looks in a row with too many before anything is paced: streams that begin lose more for a moment.
const LOOKS_LOSSY: u32 = 2;

/// Looks in a row with too many after which pacing does not help.
const LOOKS_LOSSY_PACED: u32 = 6;

/// Bytes a second of a stream from which its least window does not matter: that is sent in 30 ms.
const SLOW_MAX: f64 = 192e3;

/// The first limit, of the bytes that were acknowledged.
const FIRST: f64 = 0.7;

/// The next limit after a look with too many, of the last one or of the bytes that were acknowledged ...
const LOWER: f64 = 0.8;

/// ... but no less than that of the rate without a limit.
const LEAST: f64 = 0.25;

/// The next limit, of the last one, after a look with few ...
const RAISE: f64 = 1.03;

/// ... and where it is [`BEYOND`] what was too much last: the uplink carries more than it did.
const RAISE_BEYOND: f64 = 1.25;
const BEYOND: f64 = 1.25;

/// A limit of so many times what is sent is none.
const NOT_REACHED: f64 = 4.0;

/// For so long nothing is paced after that did not help, twice as long after each further time.
const PAUSE: Nanos = Nanos::from_millis(30_000);
const PAUSES_DOUBLED_MAX: u32 = 6;

/// Least limit of a stream, in bytes a second.
const STREAM_MIN: u64 = 4 << 10;

/// Sums of all streams that are served since the transfer began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Bytes that the peers have acknowledged.
    pub acknowledged: u64,
    /// Data segments sent, those sent again included.
    pub segments: u64,
    /// Segments sent again.
    pub repeated: u64,
    /// Streams that have something to send now.
    pub busy: u32,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Uplink {
    last: Option<(Instant, Served)>,
    // Looks in a row with too many segments sent again.
    lossy: u32,
    paced: Option<Paced>,
    // How often pacing did not help, and until when nothing is paced.
    failed: u32,
    not_before: Option<Instant>,
}

/// All in bytes a second.
#[derive(Clone, Copy, Debug)]
struct Paced {
    // Of all streams together, and of each.
    limit: f64,
    each: u64,
    least: f64,
    // Limit, or rate if that was less, at the last look with too many segments sent again.
    too_much: f64,
}

impl Uplink {
    /// Looks at what the streams did; the most that each may send, in bytes a second, from now on. `None`: no limit.
    pub fn look(&mut self, served: Served, now: Instant) -> Option<u64> {
        let (since, last) = *self.last.get_or_insert((now, served));
        let passed = now.since(since);
        let segments = served.segments.saturating_sub(last.segments);
        if passed < LOOK_TIME || (segments < SEGMENTS_MIN && passed < LOOK_TIME_MAX) {
            return self.limit();
        }
        self.last = Some((now, served));
        if segments < SEGMENTS_MIN {
            return self.limit();
        }
        let repeated = served.repeated.saturating_sub(last.repeated);
        let acknowledged = served.acknowledged.saturating_sub(last.acknowledged);
        let rate = acknowledged as f64 / passed.as_seconds();
        let streams = f64::from(served.busy.max(1));
        let most = match self.paced {
            Some(_) => REPEATED_MAX_PACED,
            None => REPEATED_MAX,
        };
        self.lossy = match repeated.saturating_mul(1000) > most * segments {
            true => self.lossy + 1,
            false => 0,
        };
        self.paced = match self.paced {
            None => self.begin(rate, streams, now),
            Some(paced) => self.adapt(paced, rate, now),
        };
        if let Some(paced) = &mut self.paced {
            paced.each = ((paced.limit / streams) as u64).max(STREAM_MIN);
        }
        self.limit()
    }

    fn limit(&self) -> Option<u64> {
        self.paced.map(|paced| paced.each)
    }

    fn begin(&mut self, rate: f64, streams: f64, now: Instant) -> Option<Paced> {
        let is_slow = streams > 1.0 && rate / streams < SLOW_MAX;
        let may = self.not_before.is_none_or(|time| now >= time);
        if self.lossy < LOOKS_LOSSY || !is_slow || !may {
            return None;
        }
        self.lossy = 0;
        Some(Paced {
            limit: rate * FIRST,
            each: 0,
            least: rate * LEAST,
            too_much: rate,
        })
    }

    fn adapt(&mut self, mut paced: Paced, rate: f64, now: Instant) -> Option<Paced> {
        if self.lossy >= LOOKS_LOSSY_PACED {
            let doubled = self.failed.min(PAUSES_DOUBLED_MAX);
            self.failed += 1;
            self.not_before = Some(now + PAUSE * (1 << doubled));
            self.lossy = 0;
            return None;
        }
        if self.lossy > 0 {
            paced.too_much = paced.limit.min(rate);
            paced.limit = (paced.too_much * LOWER).max(paced.least);
            return Some(paced);
        }
        let is_beyond = paced.limit > paced.too_much * BEYOND;
        paced.limit *= if is_beyond { RAISE_BEYOND } else { RAISE };
        (paced.limit < rate * NOT_REACHED).then_some(paced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: f64 = 1448.0;

    /// What streams do that have more to send than they can.
    struct Path {
        // Bytes a second that the uplink carries.
        uplink: f64,
        // Bytes a second of a stream that nothing else limits, and what share of segments is lost on the way.
        each: f64,
        lost: f64,
        streams: u32,
        served: Served,
        now: Instant,
        sum: [f64; 3],
    }

    impl Path {
        fn new(uplink: f64, each: f64, lost: f64, streams: u32) -> Self {
            Self {
                uplink,
                each,
                lost,
                streams,
                served: Served {
                    busy: streams,
                    ..Served::default()
                },
                now: Instant::default(),
                sum: [0.0; 3],
            }
        }

        /// So many looks, 0.6 s apart, from each of which on the streams keep the limit; each look's limit and rate of all streams.
        fn run(&mut self, uplink: &mut Uplink, looks: usize) -> Vec<(Option<f64>, f64)> {
            let mut most = uplink.look(self.served, self.now);
            let mut seen = Vec::new();
            for _ in 0..looks {
                let each = most.map_or(self.each, |most| self.each.min(most as f64));
                let sent = each * f64::from(self.streams);
                // The uplink repeats what it does not carry.
                let carried = sent.min(self.uplink) * (1.0 - self.lost);
                let step = 0.6;
                let repeated = (sent - carried) * step / SEGMENT;
                self.sum[0] += carried * step;
                self.sum[1] += sent * step / SEGMENT;
                self.sum[2] += repeated;
                let [acknowledged, segments, repeated] = self.sum.map(|sum| sum as u64);
                self.served = Served {
                    acknowledged,
                    segments,
                    repeated,
                    ..self.served
                };
                self.now += Nanos::from_millis(600);
                most = uplink.look(self.served, self.now);
                let all = most.map(|most| most as f64 * f64::from(self.streams));
                seen.push((all, carried));
            }
            seen
        }
    }

    /// The least windows of many streams fill the queue: what they send stays below what the uplink carries, most of the time, and is
    /// most of that; on links of 10 and of 1 Mbit/s.
    #[test]
    fn a_slow_uplink_is_not_filled() {
        for link in [1.2e6, 125e3] {
            let mut uplink = Uplink::default();
            let mut path = Path::new(link, link * 1.25 / 14.0, 0.0, 14);
            path.run(&mut uplink, 8);
            let seen = path.run(&mut uplink, 200);
            let below = seen.iter().filter(|(most, _)| most.unwrap() < link).count();
            assert!(below > 150, "{below}");
            let carried = seen.iter().map(|(_, carried)| carried).sum::<f64>() / 200.0;
            assert!(carried > 0.75 * link, "{carried}");
        }
    }

    /// No limit where streams lose little, where one stream is all, where each is quick, and where they begin.
    #[test]
    fn other_paths_are_left_alone() {
        let is_paced = |path: &mut Path, looks| {
            let seen = path.run(&mut Uplink::default(), looks);
            seen.iter().any(|(most, _)| most.is_some())
        };
        assert!(!is_paced(&mut Path::new(1e9, 100e3, 0.04, 14), 100));
        assert!(!is_paced(&mut Path::new(100e3, 120e3, 0.0, 1), 100));
        assert!(!is_paced(&mut Path::new(1e9, 400e3, 0.2, 14), 100));
        assert!(!is_paced(&mut Path::new(1e9, 400e3, 0.2, 5), 100));
        assert!(!is_paced(&mut Path::new(1.2e6, 110e3, 0.0, 14), 1));
        // Half a segment a second of each stream.
        assert!(!is_paced(&mut Path::new(1e9, 700.0, 0.5, 14), 100));
    }

    /// Slow streams of a path that loses a tenth by itself: pacing costs a twentieth of what they carry in ten minutes.
    #[test]
    fn a_path_that_loses_segments_is_not_paced_for_long() {
        let (mut uplink, mut path) = (Uplink::default(), Path::new(1e9, 100e3, 0.1, 14));
        let seen = path.run(&mut uplink, 1000);
        assert!(seen.iter().any(|(most, _)| most.is_some()));
        let carried = seen.iter().map(|(_, carried)| carried).sum::<f64>() / 1000.0;
        assert!(carried > 0.95 * 14.0 * 100e3 * 0.9, "{carried}");
        // The same where the path begins to lose while streams are paced.
        let (mut uplink, mut path) = (Uplink::default(), Path::new(1.2e6, 107e3, 0.0, 14));
        path.run(&mut uplink, 20);
        path.lost = 0.1;
        path.uplink = 1e9;
        let carried = path
            .run(&mut uplink, 1000)
            .iter()
            .map(|(_, c)| c)
            .sum::<f64>()
            / 1000.0;
        assert!(carried > 0.93 * 14.0 * 107e3 * 0.9, "{carried}");
    }

    /// An uplink that carries ten times as much has no limit soon.
    #[test]
    fn an_uplink_that_becomes_quick_is_found() {
        let (mut uplink, mut path) = (Uplink::default(), Path::new(1.2e6, 107e3, 0.0, 14));
        assert!(path.run(&mut uplink, 20).last().unwrap().0.is_some());
        (path.uplink, path.each) = (12e6, 850e3);
        let seen = path.run(&mut uplink, 60);
        let (most, carried) = *seen.last().unwrap();
        assert!(most.is_none_or(|most| most > 12e6), "{most:?}");
        assert!(carried > 11e6, "{carried}");
    }

    /// Counters that go back, as when a stream is not read, and looks in a row change nothing.
    #[test]
    fn odd_counters_change_nothing() {
        let (mut uplink, mut path) = (Uplink::default(), Path::new(1.2e6, 107e3, 0.0, 14));
        path.run(&mut uplink, 20);
        let most = uplink.look(path.served, path.now);
        assert!(most.is_some());
        for later in [0, 1, 600, 5_000] {
            let now = path.now + Nanos::from_millis(later);
            assert_eq!(uplink.look(Served::default(), now), most);
        }
    }
}
