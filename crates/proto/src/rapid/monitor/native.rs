//! A monitor for the fair schedulers of today (EEVDF and its forerunner), which keep no record of which task slept.
//!
//! What such a kernel reports, and what is made of it:
//! - **Share.** Over a window, `run / (run + wait)` is the part of a processor that the receiver gets, long before it needs all of
//!   it; `bytes / run` is what it could take with a whole one. Their product is what can be sustained: a ceiling for the
//!   rate, sent ahead of the round trip in which it will be needed.
//! - **Headroom.** `1 - (run + wait) / wall`. Once nothing is left, what the receiver takes is all that it can take, and that
//!   is the better measure of the ceiling.
//! - **Occupancy** of the socket's queue, alive to the packet. Full, it brakes, unless the message would arrive too late:
//!   a pause is worth it while the free part of the buffer lasts longer than a round trip. Otherwise it steers: a little
//!   in the queue means that the receiver never waits.
//! - **Drops** confirm what the others said too late.
//!
//! The message takes half a round trip and the bytes another half: the queue that counts is the one of then. What is on its way is known
//! from the ceilings sent during the last round trip, and what will be taken by then from what is taken now.
//!
//! A fair scheduler gives a receiver that paused no credit, so a pause here only lets the queue drain; the ceiling does the work.
//! What is lost without the socket dropping anything was lost on the path: more than [`PATH_LOSS`] of it, and the
//! path's own rate is the ceiling: the most that arrived in a while, since a path that loses is full.

use std::collections::VecDeque;

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::{Advice, Monitor, POLL_TIME, Sample};

/// Run and wait are counted at ticks (4 ms) and switches: shorter windows tell noise.
const WINDOW_TIME: Nanos = Nanos::from_millis(50);

/// Windows over which headroom is averaged: over one alone it touches zero at any high load.
const WINDOWS: usize = 4;

/// Headroom below which the receiver takes all it can.
const HEADROOM_MIN: f64 = 0.05;

/// Part of the sustainable rate to ask for while the queue is empty ...
const CAUTION: f64 = 0.95;

/// ... and how much faster than the receiver now takes, while there is headroom: the prediction errs on the low side at low
/// rates, where each wake-up takes few packets.
const RAISE: f64 = 1.25;

/// The same where the word takes long: what is too much comes for a round trip.
const RAISE_LONG: f64 = 1.1;

/// The most that is asked for over what now comes, however much the receiver could take: it may be too much for the path.
const JUMP: f64 = 8.0;

/// The same where the word takes long.
const JUMP_LONG: f64 = 2.0;

/// A long round trip, in this sense.
const LONG_TIME: Nanos = Nanos::from_millis(20);

/// Time in which the queue is brought to its aim, from a round trip on.
const STEER_TIME: Nanos = Nanos::from_millis(200);

/// Bounds of the ceiling, over what is taken, while the queue is steered.
const STEER_LEAST: f64 = 0.3;
/// See [`STEER_LEAST`].
const STEER_MOST: f64 = 1.15;

/// What a full packet of 1500 bytes takes of the buffer, over its payload.
const OVERHEAD: f64 = 1.57;

/// Occupancy, at most, that the queue is steered not to fall below when the receiver is the limit. The queue rises and falls with every
/// time slice; as long as it is not empty the receiver never sleeps, and gets all of its share.
const OCCUPANCY_AIM: f64 = 0.2;

/// The same as a time of what is taken, beside a part of the round trip.
const AIM_TIME: Nanos = Nanos::from_millis(60);
/// See [`AIM_TIME`].
const AIM_OF_TRIP: f64 = 0.75;

/// Occupancy below which a receiver without headroom is still not the limit.
const OCCUPANCY_LIMITED: f64 = 0.025;

/// Occupancy to which a brake lets it drain.
const OCCUPANCY_DRAINED: f64 = 0.2;

/// Occupancy that brakes.
const OCCUPANCY_BRAKE: f64 = 0.5;

/// Part of what was sent that may be lost on the path before its rate is taken for too high. Links lose less at random.
const PATH_LOSS: f64 = 0.05;

/// Fewer datagrams than this tell nothing of a path.
const COUNTED_MIN: u64 = 50;

/// Windows of arrivals that are kept: what they brought at most is the path's rate when it loses. Word of a loss comes late, after the
/// queue.
const ARRIVALS: usize = 40;

/// What is asked of a path that lost, over what it brought at most: arrivals come in lumps.
const PATH_MARGIN: f64 = 0.98;

/// A rate that the path did not carry is tried again: so much faster in the first window ...
const PATH_RAISE: f64 = 0.001;
/// ... and more in each later one, by this factor, ...
const PATH_RAISE_GROWTH: f64 = 1.03;
/// ... up to this much: paths that became faster are found within seconds, and others hardly lose.
const PATH_RAISE_MAX: f64 = 0.05;

/// Losses at up to so much of what the path was last found to carry are random.
const RANDOM_MARGIN: f64 = 1.01;

/// Longest queue, in time, whose losses are waited for.
const LATE_TIME_MAX: Nanos = Nanos::from_secs(2);

/// Less running time than this says nothing of the speed.
const RUN_TIME_MIN: Nanos = Nanos::from_millis(2);

/// Lowest ceiling, bytes per second: below it nothing could be measured.
const CEILING_MIN: u64 = 125_000;

/// Longest pause asked for.
const SUSPEND_TIME_MAX: Nanos = Nanos::from_millis(100);

/// The same before anything was measured: two time slices.
const SUSPEND_TIME_UNKNOWN: Nanos = Nanos::from_millis(8);

/// Receive buffer, in the kernel's count, for this rate and `competitors` other tasks that want the processor: what
/// arrives while each of them has a time slice of 4 ms, at least two slices' worth. A datagram of 1500 bytes takes 1.57 times its
/// payload.
#[must_use]
pub fn receive_buffer(rate: ByteRate, competitors: u32) -> u64 {
    const SLICE_TIME: Nanos = Nanos::from_millis(4);
    let slices = u128::from(competitors + 1).max(2);
    let time = u128::from(SLICE_TIME.0) * slices;
    let bytes = u128::from(rate.0) * time / 1_000_000_000 * 157 / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The part that `time` is of `all`, none of no time.
fn part_of(time: Nanos, all: Nanos) -> f64 {
    time.0 as f64 / all.max(Nanos(1)).0 as f64
}

#[derive(Clone, Copy, Debug)]
struct Window {
    wall: Nanos,
    run: Nanos,
    wait: Nanos,
    bytes: u64,
}

/// What the path carries, as far as it has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    limit: Option<f64>,
    // The limit when it was last cut.
    found: f64,
    // Part that is lost at rates it carries: at random.
    random: f64,
    // Until when losses of before the last cut are still seen.
    cut_until: Instant,
    raise: f64,
}

impl Path {
    /// Part `lost` of what was sent, at `sent` bytes per second, in a window; `most` is the most that came lately.
    fn window(&mut self, now: Instant, late: Nanos, lost: f64, sent: f64, most: f64) {
        if lost <= self.random + PATH_LOSS {
            self.random = self.random.min(lost);
            self.raise();
            return;
        }
        let is_cut = now < self.cut_until;
        if self.limit.is_some() && !is_cut && sent <= self.found * RANDOM_MARGIN {
            // It was asked for no more than it carries, and loses all the same.
            self.random = lost;
            return;
        }
        self.found = most * PATH_MARGIN;
        self.limit = Some(self.found);
        self.raise = PATH_RAISE;
        if !is_cut {
            self.cut_until = now + late;
        }
    }

    fn raise(&mut self) {
        if let Some(limit) = &mut self.limit {
            *limit *= 1.0 + self.raise;
            self.raise = (self.raise * PATH_RAISE_GROWTH).min(PATH_RAISE_MAX);
        }
    }
}

/// The monitor.
#[derive(Debug)]
pub struct Native {
    begin: Option<Sample>,
    windows: VecDeque<Window>,
    ceiling: f64,
    // Ceilings told during about the last round trip, and when.
    told: VecDeque<(Instant, f64)>,
    // Bytes per second that arrived in each of the last windows.
    arrivals: VecDeque<f64>,
    path: Path,
    share: f64,
    // In the window under way.
    least_occupancy: f64,
    // In the window under way.
    braked: bool,
    braked_until: Instant,
}

impl Default for Native {
    fn default() -> Self {
        Self::new()
    }
}

impl Native {
    /// A monitor that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            begin: None,
            windows: VecDeque::new(),
            ceiling: 0.0,
            told: VecDeque::new(),
            arrivals: VecDeque::new(),
            path: Path::default(),
            share: 1.0,
            least_occupancy: 1.0,
            braked: false,
            braked_until: Instant::ZERO,
        }
    }

    /// Bytes per second that the receiver took in the windows kept.
    fn taken(&self) -> f64 {
        let wall: Nanos = self.windows.iter().map(|window| window.wall).sum();
        let bytes: u64 = self.windows.iter().map(|window| window.bytes).sum();
        bytes as f64 * 1e9 / wall.max(Nanos(1)).0 as f64
    }

    fn headroom(&self) -> f64 {
        let wall: Nanos = self.windows.iter().map(|window| window.wall).sum();
        let ready: Nanos = self.windows.iter().map(|w| w.run + w.wait).sum();
        1.0 - part_of(ready, wall)
    }

    /// What could be sustained, by share and speed; `None` when too little ran to say.
    fn sustainable(&self) -> Option<f64> {
        let run: Nanos = self.windows.iter().map(|window| window.run).sum();
        let bytes: u64 = self.windows.iter().map(|window| window.bytes).sum();
        // A share that grew counts at once.
        let newest = self
            .windows
            .back()
            .map_or(0.0, |window| part_of(window.run, window.run + window.wait));
        let share = self.share.max(newest);
        (run > RUN_TIME_MIN && bytes > 0).then(|| bytes as f64 * 1e9 / run.0 as f64 * share)
    }

    /// The fast brake.
    fn brake(&mut self, sample: &Sample, occupancy: f64) -> Option<Nanos> {
        if occupancy <= OCCUPANCY_BRAKE || sample.now < self.braked_until {
            return None;
        }
        let sustainable = self.sustainable().unwrap_or(0.0).max(self.taken());
        let free = sample.buffer.saturating_sub(sample.queued) as f64;
        let lasts_ns = free * 1e9 / self.ceiling.max(sustainable).max(1.0);
        if sample.rtt.0 as f64 >= lasts_ns {
            return None;
        }
        // Until what is above the aim has drained.
        let surplus = (occupancy - OCCUPANCY_DRAINED) * sample.buffer as f64;
        let drain_time = Nanos((surplus * 1e9 / sustainable.max(1.0)) as u64);
        let longest = match self.windows.is_empty() {
            // Nobody knows yet how fast it drains.
            true => SUSPEND_TIME_UNKNOWN,
            false => SUSPEND_TIME_MAX,
        };
        let interval = drain_time.clamp(POLL_TIME, longest);
        self.braked = true;
        self.braked_until = sample.now + interval + sample.rtt + POLL_TIME;
        Some(interval)
    }

    /// The most that arrived for two windows in a row.
    fn arrived_most(&self) -> f64 {
        let (all, rest) = (self.arrivals.iter(), self.arrivals.iter().skip(1));
        let pairs = all.zip(rest).map(|(a, b)| (a + b) / 2.0);
        let only = self.arrivals.front().copied().unwrap_or(0.0);
        pairs.reduce(f64::max).unwrap_or(only)
    }

    /// Bytes that will have arrived when a word said now begins to count: those sent under the ceilings told so far.
    fn on_their_way(&self, sample: &Sample) -> f64 {
        // The sender may be slower than it is allowed to be, and the path slower than both.
        let most = self.arrived_most();
        let from = sample.now.before(sample.rtt);
        let mut bytes = 0.0;
        let mut until = sample.now;
        for &(at, ceiling) in self.told.iter().rev() {
            let begin = at.max(from);
            bytes += ceiling.min(most) * until.since(begin).0 as f64 / 1e9;
            until = begin;
        }
        bytes + most * until.since(from).0 as f64 / 1e9
    }

    /// The ceiling while the receiver takes all it can: as much, and the queue of a round trip from now towards its aim.
    fn steered(&self, sample: &Sample, least: f64) -> f64 {
        let buffer = sample.buffer as f64 / OVERHEAD;
        let base = self
            .taken()
            .max(self.sustainable().unwrap_or(0.0) * CAUTION);
        let trip = sample.rtt.as_seconds();
        let aim = (base * (AIM_TIME.as_seconds() + AIM_OF_TRIP * trip)).min(OCCUPANCY_AIM * buffer);
        let then = least * buffer + self.on_their_way(sample) - base * trip;
        let correction = (aim - then) * 1e9 / STEER_TIME.0 as f64;
        (base + correction).clamp(STEER_LEAST * base, STEER_MOST * base)
    }

    /// A window is over.
    fn decide(&mut self, sample: &Sample, begin: &Sample, occupancy: f64) {
        let wall = sample.now.since(begin.now).as_seconds();
        let come = sample.bytes.saturating_sub(begin.bytes) as f64;
        let sent = sample.sent.saturating_sub(begin.sent);
        let datagrams = sample.datagrams.saturating_sub(begin.datagrams);
        let drops = sample.drops.saturating_sub(begin.drops);
        let taken = self.taken();
        let headroom = self.headroom();
        let run: Nanos = self.windows.iter().map(|w| w.run).sum();
        let wait: Nanos = self.windows.iter().map(|w| w.wait).sum();
        self.share = part_of(run, run + wait);
        let queued = |sample: &Sample| sample.queued as f64 / OVERHEAD;
        if self.arrivals.len() == ARRIVALS {
            self.arrivals.pop_front();
        }
        let arrived = come + queued(sample) - queued(begin);
        self.arrivals.push_back(arrived.max(0.0) / wall);
        if drops == 0 && sent > COUNTED_MIN {
            let lost = sent.saturating_sub(datagrams) as f64 / sent as f64;
            // What was lost behind a long queue is seen when the queue has been taken.
            let late = Nanos((queued(sample) * 1e9 / taken.max(1.0)) as u64);
            let late = sample.rtt + late.min(LATE_TIME_MAX) + WINDOW_TIME * 2;
            let most = self.arrived_most();
            let sent = come / (1.0 - lost).max(0.01) / wall;
            self.path.window(sample.now, late, lost, sent, most);
        } else {
            self.path.raise();
        }
        let least = std::mem::replace(&mut self.least_occupancy, 1.0);
        let full = drops > 0 || occupancy > OCCUPANCY_BRAKE;
        // A brake empties the queue, so that headroom shows afterwards though there is none.
        let full = std::mem::take(&mut self.braked) || full;
        let limited = full || headroom < HEADROOM_MIN && least > OCCUPANCY_LIMITED;
        let mut ceiling = if limited {
            self.steered(sample, least)
        } else {
            let sustainable = self.sustainable().unwrap_or(0.0) * CAUTION;
            let (raise, jump) = match sample.rtt < LONG_TIME {
                true => (RAISE, JUMP),
                false => (RAISE_LONG, JUMP_LONG),
            };
            // It copes with what it takes now, whatever is predicted.
            let now = taken.max(come / wall);
            sustainable
                .max(now * raise)
                .max(self.ceiling.min(now * 2.0))
                // Nobody knows yet that the path carries so much more.
                .min(now * jump)
        };
        if let Some(limit) = self.path.limit {
            ceiling = ceiling.min(limit);
        }
        self.ceiling = ceiling.max(CEILING_MIN as f64);
        self.told.push_back((sample.now, self.ceiling));
        // One that was told before the last round trip holds at its beginning.
        let from = sample.now.before(sample.rtt);
        while self.told.get(1).is_some_and(|(at, _)| *at <= from) {
            self.told.pop_front();
        }
    }
}

impl Monitor for Native {
    fn poll(&mut self, sample: &Sample) -> Advice {
        let occupancy = sample.queued as f64 / sample.buffer.max(1) as f64;
        let mut advice = Advice::default();
        if !sample.blasting {
            self.begin = None;
            self.least_occupancy = 1.0;
            return advice;
        }
        let begin = *self.begin.get_or_insert(*sample);
        self.least_occupancy = self.least_occupancy.min(occupancy);
        advice.suspend = self.brake(sample, occupancy);
        let wall = sample.now.since(begin.now);
        if wall < WINDOW_TIME {
            return advice;
        }
        let bytes = sample.bytes.saturating_sub(begin.bytes);
        if bytes > 0 {
            if self.windows.len() == WINDOWS {
                self.windows.pop_front();
            }
            self.windows.push_back(Window {
                wall,
                run: sample.run - begin.run,
                wait: sample.wait - begin.wait,
                bytes,
            });
            self.decide(sample, &begin, occupancy);
            advice.ceiling = Some(ByteRate(self.ceiling as u64));
        }
        self.begin = Some(*sample);
        advice
    }

    fn level(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    /// LAB figures: 4 ms slices, 1 Gbit/s with three loops needs 3.1 MB.
    #[test]
    fn the_buffer_rule() {
        let rate = ByteRate(125_000_000);
        assert_eq!(receive_buffer(rate, 3), 3_140_000);
        assert_eq!(receive_buffer(rate, 0), receive_buffer(rate, 1));
    }

    /// A window of a receiver that could take `capacity` bytes per second with a whole processor and gets `share` of it, at
    /// `rate`, with a given occupancy.
    fn window(
        monitor: &mut Native,
        sample: &mut Sample,
        rate: u64,
        capacity: u64,
        share: f64,
        queued: u64,
    ) -> Option<u64> {
        let mut ceiling = None;
        for _ in 0..25 {
            let taken = (rate as f64).min(capacity as f64 * share) / 500.0;
            let run = taken * 1e9 / capacity as f64;
            sample.now += MS * 2;
            sample.bytes += taken as u64;
            sample.datagrams += taken as u64 / 1000;
            sample.sent += taken as u64 / 1000;
            sample.run += Nanos(run as u64);
            let wait = (run / share - run).min(2e6 - run).max(0.0);
            sample.wait += Nanos(wait as u64);
            sample.queued = queued;
            sample.received = true;
            let advice = monitor.poll(sample);
            ceiling = advice.ceiling.map(|ceiling| ceiling.0).or(ceiling);
        }
        ceiling
    }

    fn begun() -> (Native, Sample) {
        let sample = Sample {
            now: Instant(1),
            buffer: 4_000_000,
            blasting: true,
            ..Sample::default()
        };
        let mut monitor = Native::new();
        assert_eq!(monitor.poll(&sample), Advice::default());
        (monitor, sample)
    }

    /// At an eighth of the limit the first window already tells what can be sustained, for 1 to 3 loops.
    #[test]
    fn the_share_is_known_before_it_is_needed() {
        for loops in [1u32, 2, 3] {
            let (mut monitor, mut sample) = begun();
            let share = 1.0 / f64::from(loops + 1);
            let capacity = 400_000_000;
            let limit = f64::from(capacity) * share;
            let ceiling = window(
                &mut monitor,
                &mut sample,
                (limit / 8.0) as u64,
                capacity as u64,
                share,
                0,
            );
            let told = ceiling.expect("a window tells") as f64;
            // The share is told one window later.
            let told = window(
                &mut monitor,
                &mut sample,
                (limit / 8.0) as u64,
                capacity as u64,
                share,
                0,
            )
            .map_or(told, |c| c as f64);
            assert!(
                (0.9..=1.0).contains(&(told / limit)),
                "{loops} loops: {told} of {limit}"
            );
        }
    }

    /// In overload the ceiling falls to what is taken, within one window, and below it until the queue has drained.
    #[test]
    fn overload_is_taken_back() {
        let (mut monitor, mut sample) = begun();
        window(&mut monitor, &mut sample, 150_000_000, 400_000_000, 0.5, 0);
        let ceiling = window(
            &mut monitor,
            &mut sample,
            300_000_000,
            400_000_000,
            0.5,
            3_000_000,
        )
        .unwrap();
        assert!(ceiling < 200_000_000, "{ceiling}");
    }

    /// Half a buffer brakes when the word comes in time, and does not when a round trip is longer than the rest lasts.
    #[test]
    fn the_brake_knows_the_round_trip() {
        for (rtt_ms, brakes) in [(1, true), (50, false)] {
            let (mut monitor, mut sample) = begun();
            sample.rtt = MS * rtt_ms;
            window(&mut monitor, &mut sample, 150_000_000, 400_000_000, 0.5, 0);
            sample.now += MS * 2;
            sample.queued = 2_200_000;
            let advice = monitor.poll(&sample);
            assert_eq!(advice.suspend.is_some(), brakes);
            // Once is enough while the pause is under way.
            sample.now += MS * 2;
            assert_eq!(monitor.poll(&sample).suspend, None);
        }
    }

    /// Without a limit in sight the ceiling rises by a tenth each window at least; one per cent lost on the path is borne.
    #[test]
    fn it_rises_while_there_is_headroom() {
        let (mut monitor, mut sample) = begun();
        let mut rate = 20_000_000;
        for _ in 0..40 {
            sample.sent += rate / 20_000 / 100;
            rate = window(&mut monitor, &mut sample, rate, 400_000_000, 1.0, 0).unwrap_or(rate);
        }
        assert!(rate > 350_000_000, "{rate}");
    }

    /// A sender that follows at once, over a path that carries `path` bytes per second and loses a part at random, for some windows; the
    /// rate after each.
    fn follow(
        monitor: &mut Native,
        sample: &mut Sample,
        mut rate: u64,
        (path, random): (u64, f64),
        windows: usize,
    ) -> Vec<u64> {
        let mut rates = Vec::new();
        for _ in 0..windows {
            let arrives = (rate.min(path) as f64 * (1.0 - random)) as u64;
            // 50 ms of datagrams of 1000 bytes; the helper counts those that come.
            sample.sent += (rate - arrives) / 20_000;
            rate = window(monitor, sample, arrives, 400_000_000, 1.0, 0).unwrap_or(rate);
            rates.push(rate);
        }
        rates
    }

    /// A tenth that is lost at random costs a few windows, not the rate: the path is found to lose that much at any rate.
    #[test]
    fn random_loss_is_no_limit() {
        let (mut monitor, mut sample) = begun();
        let rates = follow(&mut monitor, &mut sample, 50_000_000, (u64::MAX, 0.1), 200);
        assert!(*rates.last().unwrap() > 250_000_000, "{rates:?}");
    }

    /// The rate stays within a few per cent of what the path carries, and follows it within seconds when it carries more.
    #[test]
    fn the_path_is_followed() {
        let (mut monitor, mut sample) = begun();
        let rates = follow(
            &mut monitor,
            &mut sample,
            125_000_000,
            (50_000_000, 0.01),
            200,
        );
        let settled = &rates[10..];
        let of_path = |rate: &u64| *rate as f64 / 50e6;
        assert!(
            settled
                .iter()
                .all(|rate| (0.9..1.1).contains(&of_path(rate))),
            "{settled:?}"
        );
        let last = *rates.last().unwrap();
        let rates = follow(&mut monitor, &mut sample, last, (200_000_000, 0.01), 100);
        assert!(*rates.last().unwrap() > 180_000_000, "{rates:?}");
    }

    /// A queue that is on its way already is steered against once: the ceilings told since count.
    #[test]
    fn what_is_on_its_way_counts() {
        let base = 50_000_000;
        let steered = |told: Option<f64>| {
            let (mut monitor, mut sample) = begun();
            sample.rtt = MS * 200;
            // Four windows in which the receiver takes all it can.
            for _ in 0..4 {
                window(&mut monitor, &mut sample, base, base, 1.0, 1_000_000);
            }
            if let Some(told) = told {
                monitor.told = [(Instant::ZERO, told)].into();
            }
            monitor.steered(&sample, 0.25)
        };
        let (as_usual, braked) = (steered(Some(base as f64)), steered(Some(base as f64 * 0.5)));
        assert!(as_usual < base as f64, "{as_usual}");
        assert!(braked > as_usual * 1.1, "{braked} after {as_usual}");
    }

    /// A path that carries less than is sent sets the ceiling.
    #[test]
    fn the_path_s_rate_is_found() {
        let (mut monitor, mut sample) = begun();
        // 50 MB/s arrive of 120 sent.
        sample.sent += 3500;
        let ceiling = window(&mut monitor, &mut sample, 50_000_000, 400_000_000, 1.0, 0).unwrap();
        assert!((45_000_000..=53_000_000).contains(&ceiling), "{ceiling}");
    }
}
