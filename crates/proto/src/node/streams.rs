//! How many streams each lane has: as the user gave it, as the path's round trip wants it, or as the master says.
//!
//! Lanes of datagrams have one stream each, and so have streams that keep parts of their own: those are lanes.

use ropewalk_model::Nanos;
use ropewalk_tuner::far_streams;

/// Streams of a pair when nobody gave their number: enough to fill a path that one stream does not.
const STREAMS_PER_PAIR: u32 = 4;

/// Where a node has many pairs, the pairs make the streams: about this many in all, one a pair at least.
const STREAMS_PER_NODE: u32 = 16;

/// Files of at most this mean length are short: opening, checking and naming one takes as long as moving its bytes, and streams do that
/// for several at once.
const FILE_SHORT: u64 = 4 << 20;

/// Most streams of a lane whose number was not given: each is a thread here and one at the sender.
pub const STREAMS_PER_LANE_MAX: u32 = 64;

/// What is known of the number of streams when a plan is received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// Streams of a pair, as the user gave them.
    pub given: Option<u32>,
    /// Each stream keeps a part of its own.
    pub is_equal: bool,
    /// Lanes carry datagrams.
    pub of_datagrams: bool,
    /// Senders that the plan names.
    pub senders: usize,
    /// Streams of a lane at most, where their number was not given; `None`: no other limit than the program's.
    pub lane_max: Option<u32>,
    /// Receivers that share a long path; `None`: the number of streams is not tuned.
    pub sharers: Option<u32>,
    /// Other transfers on that path.
    pub other_transfers: u32,
    /// Processors of this host; `None`: not known.
    pub processors: Option<u32>,
    /// Mean length of the files; `None`: there are not several, or it is not known.
    pub file_bytes: Option<u64>,
}

/// How many streams each lane has now.
#[derive(Clone, Debug)]
pub struct Streams {
    each: u32,
    // While round trips are short.
    near: u32,
    // While all peers are on this host; `None` where one is not, or the number is given.
    within_host: Option<u32>,
    // Least of all seen: those of lanes that open while others fill the link have its queue in them.
    trip_min: Option<Nanos>,
    // The master has said how many there should be.
    is_set: bool,
    stripes: u32,
    lane_max: u32,
    // What it was made from.
    wish: Wish,
    joined: usize,
}

impl Wish {
    /// Streams of a lane over a short path, whose number was not given.
    fn near(&self, senders: usize, lane_max: u32) -> u32 {
        (STREAMS_PER_NODE / senders.max(1) as u32)
            .clamp(1, STREAMS_PER_PAIR)
            .min(lane_max)
    }

    /// The same of a lane to a process of this host: both ends of a stream work on the same processors, and of long files more streams than
    /// half of these only wait for one another.
    fn within_host(&self, senders: usize, streams: u32) -> Option<u32> {
        let are_short = self.file_bytes.is_some_and(|bytes| bytes <= FILE_SHORT);
        let ends = if are_short { 1 } else { 2 };
        let processors = self.processors.filter(|_| self.given.is_none())?;
        Some((processors / ends / senders.max(1) as u32).clamp(1, streams))
    }
}

impl Streams {
    /// As many as are wanted before anything is known of paths.
    #[must_use]
    pub fn new(wish: &Wish) -> Self {
        let lane_max = wish.lane_max.unwrap_or(u32::MAX);
        let lane_max = lane_max.min(STREAMS_PER_LANE_MAX);
        let streams = match wish.given {
            // One flow with one rate.
            _ if wish.of_datagrams => 1,
            None => wish.near(wish.senders, lane_max),
            Some(count) => count,
        };
        let within_host = wish.within_host(wish.senders, streams);
        // Streams with parts of their own are lanes of one stream each.
        let (stripes, each) = match wish.is_equal && !wish.of_datagrams {
            true => (streams, 1),
            false => (1, streams),
        };
        Self {
            each,
            near: each,
            within_host: within_host.filter(|_| stripes == 1),
            trip_min: None,
            is_set: false,
            stripes,
            lane_max,
            wish: *wish,
            joined: 0,
        }
    }

    /// Streams that each lane keeps.
    #[must_use]
    pub fn each(&self) -> u32 {
        self.each
    }

    /// Streams of a lane to a receiver that joined: as many at most as over a short path, where their number is not given. The plan's
    /// bound of each sender's streams does not count those.
    #[must_use]
    pub fn each_to_joined(&self) -> u32 {
        match self.wish.given {
            Some(_) => self.each,
            None => self.each.min(STREAMS_PER_PAIR),
        }
    }

    /// So many receivers that joined hand on to this node, beside the sources of its plan: lanes have no more streams than if all had been
    /// there from the start.
    ///
    /// * `lanes`: lanes at work.
    pub fn set_joined(&mut self, joined: usize, lanes: u32) {
        self.joined = joined;
        if self.wish.given.is_some() || self.wish.of_datagrams || self.wish.is_equal {
            return;
        }
        let senders = self.wish.senders.saturating_add(joined);
        self.near = self.wish.near(senders, self.lane_max);
        if self.within_host.is_some() {
            self.within_host = self.wish.within_host(senders, self.near);
        }
        if !self.is_set {
            self.choose(lanes);
        }
    }

    /// What [`Streams::set_joined`] had last.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Lanes over each rail among which its work is dealt out.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        self.stripes
    }

    /// Whether lanes carry datagrams.
    #[must_use]
    pub fn of_datagrams(&self) -> bool {
        self.wish.of_datagrams
    }

    /// A lane was connected.
    ///
    /// * `trip`: round trip of its path.
    /// * `shares_processors`: the peer is another process of this host.
    /// * `lanes`: lanes at work, that one among them.
    pub fn handle_link(&mut self, trip: Nanos, shares_processors: bool, lanes: u32) {
        if !shares_processors {
            self.within_host = None;
        }
        let least = self.trip_min.map_or(trip, |known| known.min(trip));
        self.trip_min = Some(least);
        if self.is_set || self.wish.of_datagrams {
            return;
        }
        self.choose(lanes);
    }

    fn choose(&mut self, lanes: u32) {
        let far = self.wish.sharers.zip(self.trip_min);
        let far = far.and_then(|(sharers, trip)| {
            far_streams(sharers, self.wish.other_transfers, trip.as_seconds())
        });
        self.each = match far {
            // While it is found out which lanes are worth it, none has fewer than over a short path.
            Some(far) => self.share(far, lanes, self.near),
            None => self.within_host.unwrap_or(self.near),
        };
    }

    /// The master wants so many streams, all lanes at work together, one each at least; `None`: those of a short path.
    pub fn set(&mut self, count: Option<u32>, lanes: u32) {
        if self.wish.of_datagrams {
            return;
        }
        self.is_set = true;
        self.each = match count {
            None => self.within_host.unwrap_or(self.near),
            Some(count) => self.share(count, lanes, 1),
        };
    }

    fn share(&self, count: u32, lanes: u32, least: u32) -> u32 {
        (count / lanes.max(1)).max(least).min(self.lane_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn streams(wish: Wish) -> Streams {
        Streams::new(&wish)
    }

    /// Four streams for a pair, fewer where there are many pairs; what was given stays.
    #[test]
    fn pairs_make_the_streams() {
        for (senders, each) in [(0, 4), (1, 4), (4, 4), (5, 3), (8, 2), (16, 1), (500, 1)] {
            let wish = Wish {
                senders,
                ..Wish::default()
            };
            assert_eq!(streams(wish).each(), each, "{senders}");
            let given = Wish {
                given: Some(100),
                ..wish
            };
            assert_eq!(streams(given).each(), 100);
        }
        let capped = Wish {
            lane_max: Some(2),
            ..Wish::default()
        };
        assert_eq!(streams(capped).each(), 2);
    }

    /// A flow of datagrams is one stream, whatever is wanted; parts of their own make lanes of one stream.
    #[test]
    fn datagrams_and_parts_have_one_stream() {
        let wish = Wish {
            given: Some(7),
            of_datagrams: true,
            is_equal: true,
            sharers: Some(1),
            ..Wish::default()
        };
        let mut datagrams = streams(wish);
        datagrams.set(Some(20), 1);
        datagrams.handle_link(MS * 300, false, 1);
        assert_eq!((datagrams.each(), datagrams.stripes()), (1, 1));
        let parts = streams(Wish {
            of_datagrams: false,
            ..wish
        });
        assert_eq!((parts.each(), parts.stripes()), (1, 7));
    }

    /// A long path takes more streams, shared among the lanes at work; a short one that is seen later takes that back.
    #[test]
    fn long_paths_take_more_streams() {
        let mut tuned = streams(Wish {
            sharers: Some(1),
            ..Wish::default()
        });
        let far = far_streams(1, 0, 0.1).expect("100 ms is far");
        tuned.handle_link(MS * 100, false, 1);
        assert_eq!(tuned.each(), far.clamp(4, 64));
        tuned.handle_link(MS * 100, false, 1000);
        assert_eq!(tuned.each(), 4, "never fewer than over a short path");
        tuned.handle_link(MS / 10, false, 1);
        assert_eq!(tuned.each(), 4);
        tuned.handle_link(MS * 100, false, 1);
        assert_eq!(tuned.each(), 4, "the least round trip counts");
        let mut untuned = streams(Wish::default());
        untuned.handle_link(MS * 100, false, 1);
        assert_eq!(untuned.each(), 4);
    }

    /// Peers on this host share its processors with it: half as many streams as these, as many where files are short, until a peer is
    /// elsewhere; a given number stays.
    #[test]
    fn a_stream_has_a_processor_at_each_end() {
        let long = FILE_SHORT + 1;
        for (processors, senders, file_bytes, each) in [
            (1, 1, None, 1),
            (2, 1, None, 1),
            (2, 1, Some(long), 1),
            (2, 1, Some(FILE_SHORT), 2),
            (4, 1, Some(long), 2),
            (4, 1, Some(1), 4),
            (16, 1, None, 4),
            (16, 3, None, 2),
            (4, 9, Some(1), 1),
        ] {
            let wish = Wish {
                senders,
                processors: Some(processors),
                file_bytes,
                ..Wish::default()
            };
            let mut near = streams(wish);
            let elsewhere = near.each();
            near.handle_link(Nanos::ZERO, true, 1);
            assert_eq!(
                near.each(),
                each,
                "{processors} for {senders}, {file_bytes:?}"
            );
            near.handle_link(MS / 10, false, 2);
            near.handle_link(Nanos::ZERO, true, 3);
            assert_eq!(near.each(), elsewhere, "one peer is elsewhere");
            let given = Wish {
                given: Some(3),
                ..wish
            };
            let mut given = streams(given);
            given.handle_link(Nanos::ZERO, true, 1);
            assert_eq!(given.each(), 3);
        }
    }

    /// Receivers that join and hand on share the streams as those do that were there from the start: with 62 of them, all that 64 receivers
    /// open to one are 64, as these share theirs, and 256 at most over a long path.
    #[test]
    fn those_that_join_share_the_streams() {
        let mut few = streams(Wish {
            senders: 2,
            ..Wish::default()
        });
        for (joined, each) in [(0, 4), (2, 4), (3, 3), (14, 1), (62, 1), (1, 4)] {
            few.set_joined(joined, 3);
            assert_eq!((few.each(), few.each_to_joined()), (each, each), "{joined}");
        }
        let mut far = streams(Wish {
            senders: 2,
            sharers: Some(1),
            ..Wish::default()
        });
        far.handle_link(MS * 300, false, 1);
        assert!(far.each() > 8, "{}", far.each());
        assert_eq!(far.each_to_joined(), 4);
        let mut given = streams(Wish {
            given: Some(9),
            ..Wish::default()
        });
        given.set_joined(62, 3);
        assert_eq!((given.each(), given.each_to_joined()), (9, 9));
        let mut set = few;
        set.set(Some(12), 3);
        set.set_joined(62, 4);
        assert_eq!(set.each(), 4, "the master said so");
        // Peers on this host share its processors with it.
        let mut here = streams(Wish {
            senders: 1,
            processors: Some(8),
            ..Wish::default()
        });
        here.handle_link(Nanos::ZERO, true, 1);
        assert_eq!(here.each(), 4);
        here.set_joined(1, 2);
        assert_eq!(here.each(), 2);
    }

    /// What the master wants is shared among lanes, one stream each at least, and stays whatever round trips are seen.
    #[test]
    fn the_master_sets_the_number() {
        let mut set = streams(Wish {
            sharers: Some(1),
            ..Wish::default()
        });
        let counts = [
            (Some(12), 3, 4),
            (Some(12), 5, 2),
            (Some(2), 5, 1),
            (Some(900), 1, 64),
            (None, 3, 4),
        ];
        for (count, lanes, each) in counts {
            set.set(count, lanes);
            assert_eq!(set.each(), each, "{count:?} over {lanes}");
        }
        set.set(Some(6), 1);
        set.handle_link(MS * 100, false, 1);
        assert_eq!(set.each(), 6);
    }
}
