//! How many streams send at once what a receiver hands on.
//!
//! A receiver sends to all others. Where its uplink is far slower than theirs, each of its streams has a small part of that: a unit takes many seconds,
//! and even the least windows of so many streams are more than the link and its queue hold, so that requests and acknowledgements of the receiver's own
//! download are lost with the packets. So a few streams begin. All send as soon as units leave at once; where streams have less than
//! [`RATE_MIN`] each, and more of them do not send more, few send at a time.
//!
//! ```text
//!  Starting ── two streams send, then four ...: not more in all ───────▶ Limited
//!     │ 16 send more than eight, or units leave fast                        ▲
//!     ▼                                                                     │
//!   Free ── streams are slow ──▶ Trying ── as much as before ───────────────┘
//!                                  └────── less: the streams are slow, not the link ──▶ Over: all send
//! ```
//!
//! The sending thread of a stream asks before each unit. Times are of the transfer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_model::{Instant, Nanos};

/// Bytes a second that a stream should have: a unit takes two seconds then.
const RATE_MIN: u64 = 512 << 10;

/// Rates are those of so long.
const PERIOD: Nanos = Nanos::from_millis(500);

/// Streams that begin.
const FIRST: usize = 2;

/// A unit that leaves in less is fast: one stream more may send.
const FAST: Nanos = Nanos::from_millis(250);

/// Instead of so many, all send.
const FIRST_MAX: usize = 16;

/// Others do not wait for longer: the stream's peer may have stopped.
const TURN_MAX: Nanos = Nanos::from_secs(4);

/// A stream that waits asks again within that, many times.
const ASK_MAX: Nanos = Nanos::from_millis(500);

/// Periods with slow streams before fewer send: in the first one buffers fill.
const SLOW_PERIODS: u32 = 3;

/// A trial's rate is that of the periods after the first one, so many.
const TRIAL_PERIODS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Few send; the rate of fewer of them, in bytes a second.
    Starting(Option<u64>),
    /// All send. Periods in which they were slow.
    Free(u32),
    /// Fewer send. The rate before, in bytes a second; periods and bytes of the trial.
    Trying {
        before: u64,
        periods: u32,
        bytes: u64,
    },
    /// So many send.
    Limited,
    /// All send, and that stays.
    Over,
}

/// Which streams send.
#[derive(Debug)]
pub struct Turns {
    state: State,
    most: usize,
    // Those that write a unit, or whose last one has not left, and since when.
    sending: BTreeMap<u64, Instant>,
    written: BTreeSet<u64>,
    // Since when they wait is their order; and when they asked last.
    waiting: VecDeque<(u64, Instant)>,
    // The period: its beginning, what was acknowledged before, streams that were busy then, and whether others waited all the time.
    since: Instant,
    acknowledged: u64,
    busy: usize,
    is_wanted: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            state: State::Starting(None),
            most: FIRST,
            sending: BTreeMap::new(),
            written: BTreeSet::new(),
            waiting: VecDeque::new(),
            since: Instant::ZERO,
            acknowledged: 0,
            busy: 0,
            is_wanted: false,
        }
    }
}

impl Turns {
    /// Whether a stream may send a unit now; if not, it asks again. Those that have waited longest are first.
    pub fn ask(&mut self, stream: u64, now: Instant) -> bool {
        if self.sending.contains_key(&stream) && !self.written.contains(&stream) {
            return true;
        }
        let place = self.waiting.iter().position(|(one, _)| *one == stream);
        // A thread that does not ask any more may be held up by its peer: others pass it.
        let asks = |asked: Instant| now.since(asked) < ASK_MAX;
        let before = self.waiting.iter().take(place.unwrap_or(usize::MAX));
        let before = before.filter(|(_, asked)| asks(*asked)).count();
        let is_counted = |since: &&Instant| now.since(**since) < TURN_MAX;
        let counted = self.sending.values().filter(is_counted).count();
        let free = self.most.saturating_sub(counted);
        if before >= free {
            match place.and_then(|place| self.waiting.get_mut(place)) {
                Some((_, asked)) => *asked = now,
                None => self.waiting.push_back((stream, now)),
            }
            return false;
        }
        if let Some(place) = place {
            self.waiting.remove(place);
        }
        self.written.remove(&stream);
        self.sending.insert(stream, now);
        true
    }

    /// A stream has written a unit, or has none to send. Whether its bytes are to leave before another one sends: [`Turns::left`].
    pub fn written(&mut self, stream: u64) -> bool {
        self.stop_waiting(stream);
        if self.most == usize::MAX {
            self.sending.remove(&stream);
        } else if self.sending.contains_key(&stream) {
            self.written.insert(stream);
            return true;
        }
        false
    }

    fn stop_waiting(&mut self, stream: u64) {
        self.waiting.retain(|(one, _)| *one != stream);
        self.is_wanted &= !self.waiting.is_empty();
    }

    /// Streams whose last unit is written, and may not have left.
    pub fn leaving(&self) -> impl Iterator<Item = u64> + '_ {
        self.written.iter().copied()
    }

    /// The last unit of a stream has left.
    pub fn left(&mut self, stream: u64, now: Instant) {
        self.written.remove(&stream);
        let since = self.sending.remove(&stream);
        let is_fast = since.is_some_and(|since| now.since(since) < FAST);
        if let State::Starting(_) = self.state
            && is_fast
        {
            self.begin_more(1);
        }
    }

    /// A stream is closed.
    pub fn close(&mut self, stream: u64) {
        self.stop_waiting(stream);
        self.written.remove(&stream);
        self.sending.remove(&stream);
    }

    fn begin_more(&mut self, streams: usize) {
        self.most += streams;
        if self.most >= FIRST_MAX {
            self.free(State::Free(0));
        }
    }

    /// All send.
    fn free(&mut self, state: State) {
        self.state = state;
        self.most = usize::MAX;
        let written = std::mem::take(&mut self.written);
        self.sending.retain(|stream, _| !written.contains(stream));
    }

    /// Whether [`Turns::measure`] is to be called.
    pub fn is_due(&self, now: Instant) -> bool {
        now.since(self.since) >= PERIOD
    }

    /// Decides how many may send.
    ///
    /// * `acknowledged`: bytes of all streams so far.
    /// * `busy`: streams with bytes that have not left.
    pub fn measure(&mut self, acknowledged: u64, busy: usize, now: Instant) {
        let time = now.since(self.since);
        let bytes = acknowledged.saturating_sub(self.acknowledged);
        let rate = (bytes as f64 / time.as_seconds()) as u64;
        // Else nothing was asked for in between, or nothing has arrived yet.
        if time < Nanos(2 * PERIOD.0) && rate > 0 {
            self.decide(rate, self.busy.min(busy));
        }
        self.since = now;
        self.acknowledged = acknowledged;
        self.busy = busy;
        self.is_wanted = !self.waiting.is_empty();
    }

    fn decide(&mut self, rate: u64, busy: usize) {
        match self.state {
            // Too little was asked for to see it.
            State::Starting(_) | State::Trying { .. } if !self.is_wanted => {}
            State::Starting(Some(before))
                if rate <= before / 4 * 5 && rate < RATE_MIN.saturating_mul(self.most as u64) =>
            {
                self.state = State::Limited;
                self.most = most(rate);
            }
            State::Starting(_) => {
                self.state = State::Starting(Some(rate));
                self.begin_more(self.most);
            }
            State::Free(slow) => {
                let is_slow = busy > 1 && rate < RATE_MIN * busy as u64;
                self.state = State::Free(if is_slow { slow + 1 } else { 0 });
                if is_slow && slow + 1 >= SLOW_PERIODS {
                    self.most = most(rate);
                    self.state = State::Trying {
                        before: rate,
                        periods: 0,
                        bytes: 0,
                    };
                }
            }
            State::Trying {
                before,
                periods,
                bytes,
            } => {
                let bytes = if periods > 0 { bytes + rate } else { 0 };
                self.state = State::Trying {
                    before,
                    periods: periods + 1,
                    bytes,
                };
                if periods == TRIAL_PERIODS {
                    let is_as_fast = bytes / u64::from(TRIAL_PERIODS) >= before / 3 * 2;
                    match is_as_fast {
                        true => self.state = State::Limited,
                        false => self.free(State::Over),
                    }
                }
            }
            State::Limited if self.is_wanted => self.most = most(rate),
            State::Limited | State::Over => {}
        }
    }
}

/// Streams that send at once at a rate.
fn most(rate: u64) -> usize {
    usize::try_from(rate / RATE_MIN)
        .unwrap_or(usize::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Nanos = Nanos::from_millis(10);
    const UNIT: u64 = 1 << 20;

    /// Streams that always have units to send over one link.
    struct Link {
        turns: Turns,
        now: Instant,
        // Bytes a second of all, and of one stream at most.
        rate: u64,
        stream_rate: u64,
        left: Vec<u64>,
        acknowledged: u64,
        units: Vec<u32>,
    }

    impl Link {
        fn new(streams: usize, rate: u64, stream_rate: u64) -> Self {
            Self {
                turns: Turns::default(),
                now: Instant::ZERO,
                rate,
                stream_rate,
                left: vec![0; streams],
                acknowledged: 0,
                units: vec![0; streams],
            }
        }

        fn sending(&self) -> usize {
            self.left.iter().filter(|left| **left > 0).count()
        }

        fn step(&mut self) {
            self.now += STEP;
            if self.turns.is_due(self.now) {
                let busy = self.sending();
                self.turns.measure(self.acknowledged, busy, self.now);
            }
            for stream in 0..self.left.len() {
                if self.left[stream] == 0 && self.turns.ask(stream as u64, self.now) {
                    self.left[stream] = UNIT;
                }
            }
            let share = self.rate / self.sending().max(1) as u64;
            let bytes = share.min(self.stream_rate) / (Nanos::from_secs(1).0 / STEP.0);
            for stream in 0..self.left.len() {
                let sent = bytes.min(self.left[stream]);
                self.acknowledged += sent;
                self.left[stream] -= sent;
                if sent > 0 && self.left[stream] == 0 {
                    self.units[stream] += 1;
                    if self.turns.written(stream as u64) {
                        self.turns.left(stream as u64, self.now);
                    }
                }
            }
        }

        fn run(&mut self, seconds: u64) {
            let end = self.now + Nanos::from_secs(seconds);
            while self.now < end {
                self.step();
            }
        }
    }

    /// Over a slow link two streams send soon, in turn, and each has its units.
    #[test]
    fn few_send_over_a_slow_link() {
        let mut link = Link::new(14, 1_250_000, u64::MAX);
        link.run(4);
        assert_eq!(link.turns.state, State::Limited);
        // Those that had begun end before.
        link.run(10);
        for _ in 0..1000 {
            link.step();
            assert!(link.sending() <= 2, "{}", link.sending());
        }
        link.run(60);
        let (least, most) = (link.units.iter().min(), link.units.iter().max());
        assert!(least > Some(&3), "{:?}", link.units);
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 2),
            "{:?}",
            link.units
        );
        // The link gets faster: more of them.
        link.rate = 10_000_000;
        link.run(10);
        assert!(link.sending() > 10, "{}", link.sending());
    }

    /// Over a fast link all send after a moment.
    #[test]
    fn all_send_over_a_fast_link() {
        for rate in [12_500_000, 1 << 30] {
            let mut link = Link::new(14, rate, u64::MAX);
            link.run(3);
            assert_eq!(link.turns.state, State::Free(0), "{rate}");
            assert_eq!(link.turns.most, usize::MAX);
        }
    }

    /// Streams that are slow by themselves, as over long paths, all send.
    #[test]
    fn slow_streams_all_send() {
        let mut link = Link::new(14, 1 << 30, 200_000);
        link.run(12);
        assert_eq!(link.turns.state, State::Over);
        assert_eq!(link.sending(), 14);
    }

    /// A link that gets slow: fewer send.
    #[test]
    fn a_link_may_get_slow() {
        let mut link = Link::new(14, 12_500_000, u64::MAX);
        link.run(3);
        link.rate = 1_250_000;
        link.run(30);
        assert_eq!((link.turns.state, link.turns.most), (State::Limited, 2));
    }

    /// A peer that has stopped does not hold the others up, and its turn is over with its stream.
    #[test]
    fn a_peer_that_stops_is_not_awaited() {
        let mut turns = Turns::default();
        let at = |seconds| Instant::ZERO + Nanos::from_secs(seconds);
        assert!(turns.ask(1, at(0)) && turns.ask(2, at(0)) && turns.ask(1, at(0)));
        assert!(!turns.ask(3, at(1)) && !turns.ask(4, at(1)));
        assert!(turns.written(2));
        assert_eq!(turns.leaving().collect::<Vec<_>>(), [2]);
        assert!(!turns.ask(4, at(1)), "its bytes have not left");
        turns.left(2, at(1));
        assert!(!turns.ask(4, at(1)), "another one has waited longer");
        assert!(turns.ask(3, at(1)));
        assert!(!turns.ask(4, at(3)));
        assert!(turns.ask(4, at(4)));
        assert!(!turns.ask(5, at(4)));
        turns.close(3);
        assert!(turns.ask(5, at(4)));
    }

    /// A stream whose thread does not ask any more is passed by those behind it.
    #[test]
    fn a_thread_that_is_held_up_is_passed() {
        let mut turns = Turns::default();
        let at = |millis| Instant::ZERO + Nanos::from_millis(millis);
        assert!(turns.ask(1, at(0)) && turns.ask(2, at(0)));
        assert!(!turns.ask(3, at(0)) && !turns.ask(4, at(0)));
        turns.close(1);
        assert!(!turns.ask(4, at(400)));
        assert!(turns.ask(4, at(600)));
        assert!(!turns.ask(3, at(700)));
        turns.close(4);
        assert!(turns.ask(3, at(800)));
    }
}
