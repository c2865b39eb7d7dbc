//! Which small files a sender reads before their turn. Pure: the driver has the threads.
//!
//! ```text
//!  granted units ──▶ [turn] [read ahead, in order, up to the depth] [not begun]
//!                      │                  │
//!                      ▼                  ▼
//!                   the stream         a few threads
//! ```
//!
//! A stream reads each unit at its turn: one call after another, straight into the frame. From memory nothing is faster. From a
//! network file system, or a disk that gives few operations a second, each file takes some answers one after the other, and the stream
//! carries a file in that time whatever the server could do side by side. There the units that the receiver has asked for already are
//! read by other threads while the stream waits.
//!
//! * **When**: once a quarter of the last [`SAMPLE`] small files were slow; until at most one of them was. A quarter, and not the mean:
//!   on a busy host a few reads of a tree in memory take long because their thread lost its processor in the middle.
//! * **How many**: two at first; twice as many each time the stream finds its unit begun but not read, as more at once would have had it
//!   ready, up to [`DEPTH_MAX`]. A stream that never waits for a unit needs no more.
//! * **Which**: units that are whole small files. Of long files the kernel reads ahead by itself, in the order in which disks are fast.
//!
//! What all streams of a process read early at the same time is bounded by the [`ReadQueue`].
//!
//! Not here on purpose: files that were not asked for. What a receiver is granted is at most its prefetch, and so is then what lies in
//! memory here.

use std::collections::VecDeque;

use ropewalk_model::{Nanos, Range};

mod queue;

pub use queue::{BYTES_MAX, Disk, Group, READING_MAX, Read, ReadQueue, Taken, UNITS_MAX};

/// Small files whose times decide.
pub const SAMPLE: u32 = 16;

/// So many slow ones of them begin it.
const SLOW_MIN: u32 = SAMPLE / 4;

/// So few, and fewer, end it.
const SLOW_FEW: u32 = 1;

/// Opening, reading and closing a small file takes 20 to 60 microseconds where it is in memory, a disk without moving parts needs 100 for
/// each operation, and servers need more.
const FAST_TIME: Nanos = Nanos::from_micros(200);

/// Time of a byte beside that: at 1 GB/s nothing waits for answers.
const FAST_TIME_PER_BYTE: Nanos = Nanos(1);

/// Units that are read at the same time at first.
const DEPTH_MIN: usize = 2;

/// Units of a stream that are begun and not sent, at most: disks and servers are busy with that many. More would wait there.
pub const DEPTH_MAX: usize = 32;

/// And their bytes: the usual prefetch of a lane, for peers that grant more than they say.
pub const STREAM_BYTES_MAX: u64 = 4 << 20;

/// What to do with units that wait for their turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be read now, in this order.
    pub begin: Vec<Range>,
    /// Begun, and no longer wanted.
    pub forget: Vec<Range>,
}

/// The small files of one stream.
#[derive(Clone, Debug, Default)]
pub struct ReadAhead {
    // A bit for each of the last ones, set where it was slow; the newest is the lowest.
    slow: u16,
    is_on: bool,
    depth: usize,
    // In the order of their turns; each once.
    begun: VecDeque<Range>,
}

const _: () = assert!(SAMPLE == u16::BITS);

impl ReadAhead {
    /// A stream that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            depth: DEPTH_MIN,
            ..Self::default()
        }
    }

    /// Whether units are to be read before their turn.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A small file was read, or only opened, by the stream or ahead of it.
    ///
    /// * `bytes`: that were read of it.
    /// * `took`: from the first call to the end of the last.
    pub fn observe(&mut self, bytes: u64, took: Nanos) {
        let fast = FAST_TIME + Nanos(FAST_TIME_PER_BYTE.0.saturating_mul(bytes));
        self.slow = self.slow << 1 | u16::from(took > fast);
        match self.slow.count_ones() {
            SLOW_MIN.. => self.is_on = true,
            0..=SLOW_FEW if self.is_on => {
                self.is_on = false;
                self.depth = DEPTH_MIN;
            }
            _ => {}
        }
    }

    /// What to begin and what to forget at the turn of a unit.
    ///
    /// * `turn`: the unit; `None` where it is no small file. Its stream reads it at once, so that it is not begun here.
    /// * `next`: small files among the units that are granted after it, in the order of their turns. Looked at only while it is on, or
    ///   units are begun.
    /// * `accept`: whether there is space for one more. After it says no it is not asked again in this step.
    pub fn step(
        &mut self,
        turn: Option<Range>,
        next: impl IntoIterator<Item = Range>,
        mut accept: impl FnMut(Range) -> bool,
    ) -> Step {
        let mut step = Step::default();
        if !self.is_on && self.begun.is_empty() {
            return step;
        }
        let mut before = std::mem::take(&mut self.begun);
        let mut bytes = 0;
        let mut may_begin = self.is_on;
        let turn = turn.map(|unit| (unit, true));
        let units = turn.into_iter();
        for (unit, is_due) in units.chain(next.into_iter().map(|unit| (unit, false))) {
            let is_full = self.begun.len() >= self.depth || bytes + unit.len() > STREAM_BYTES_MAX;
            // Nearly always the first: turns have one order.
            if let Some(place) = before.iter().position(|begun| *begun == unit) {
                before.remove(place);
            } else if is_due || self.begun.contains(&unit) {
                continue;
            } else if may_begin && !is_full && accept(unit) {
                step.begin.push(unit);
            } else if before.is_empty() {
                break;
            } else {
                may_begin = false;
                continue;
            }
            bytes += unit.len();
            self.begun.push_back(unit);
        }
        step.forget = before.into();
        step
    }

    /// A unit is taken at its turn; whether it was begun before.
    ///
    /// * `is_read`: all of it lies in memory.
    pub fn take(&mut self, unit: Range, is_read: bool) -> bool {
        let place = self.begun.iter().position(|begun| *begun == unit);
        let Some(place) = place else {
            return false;
        };
        self.begun.remove(place);
        if !is_read {
            self.depth = (self.depth * 2).min(DEPTH_MAX);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 10_000;

    fn unit(number: u64) -> Range {
        Range::new(number * LEN, (number + 1) * LEN)
    }

    fn units(numbers: impl IntoIterator<Item = u64>) -> Vec<Range> {
        numbers.into_iter().map(unit).collect()
    }

    /// The first of them has its turn.
    fn turn(ahead: &mut ReadAhead, numbers: impl IntoIterator<Item = u64>) -> Step {
        let mut units = units(numbers).into_iter();
        ahead.step(units.next(), units, |_| true)
    }

    fn slow() -> ReadAhead {
        let mut ahead = ReadAhead::new();
        (0..SLOW_MIN).for_each(|_| ahead.observe(LEN, Nanos::from_millis(5)));
        ahead
    }

    /// A tree in memory is read at the turn of each file, also where a thread now and then loses its processor.
    #[test]
    fn fast_files_are_not_read_ahead() {
        let mut ahead = ReadAhead::new();
        for number in 0..1000 {
            let took = match number % 10 {
                0 => Nanos::from_millis(50),
                _ => Nanos::from_micros(60),
            };
            ahead.observe(LEN, took);
            assert!(!ahead.is_on());
            assert_eq!(turn(&mut ahead, 0..50), Step::default());
        }
        // Many bytes at a good rate are not slow.
        (0..SAMPLE).for_each(|_| ahead.observe(1 << 20, Nanos::from_micros(900)));
        assert!(!ahead.is_on());
    }

    /// Slow files are, from the quarter of a sample on, until there are nearly none.
    #[test]
    fn slow_files_are_read_ahead() {
        let mut ahead = ReadAhead::new();
        for number in 1..=SLOW_MIN {
            ahead.observe(LEN, Nanos::from_micros(300));
            assert_eq!(ahead.is_on(), number == SLOW_MIN);
        }
        for number in 1..=SAMPLE {
            ahead.observe(LEN, Nanos::from_micros(50));
            assert_eq!(ahead.is_on(), number < SAMPLE - SLOW_FEW);
        }
    }

    /// The unit whose turn it is is left to its stream; then as many as the depth says, in order, each once.
    #[test]
    fn units_are_begun_in_order() {
        let mut ahead = slow();
        assert_eq!(turn(&mut ahead, 0..9).begin, units([1, 2]));
        assert_eq!(turn(&mut ahead, 0..9), Step::default());
        assert!(!ahead.take(unit(0), false), "it was not begun");
        assert!(ahead.take(unit(1), true));
        assert_eq!(turn(&mut ahead, 2..9).begin, units([3]));
        // It was not ready: more at once.
        assert!(ahead.take(unit(2), false));
        assert_eq!(turn(&mut ahead, 3..9).begin, units([4, 5, 6]));
        assert_eq!(ahead.begun, units(3..7));
    }

    /// What is not accepted is not begun, nor what follows it; it is asked for again.
    #[test]
    fn units_are_begun_where_there_is_space() {
        let mut ahead = slow();
        ahead.depth = 4;
        let mut asked = Vec::new();
        let step = ahead.step(Some(unit(0)), units(1..9), |unit| {
            asked.push(unit);
            asked.len() < 3
        });
        assert_eq!((step.begin, asked), (units([1, 2]), units([1, 2, 3])));
        assert!(ahead.take(unit(1), true));
        assert_eq!(turn(&mut ahead, 1..9).begin, units([3, 4, 5]));
    }

    /// However often the stream waits, there is an end to how many are begun, and to their bytes.
    #[test]
    fn units_and_bytes_are_bounded() {
        let mut ahead = slow();
        for number in 0..100 {
            turn(&mut ahead, number..number + 500);
            ahead.take(unit(number), false);
        }
        turn(&mut ahead, 100..600);
        assert_eq!(ahead.begun.len(), DEPTH_MAX);
        let mut ahead = slow();
        ahead.depth = DEPTH_MAX;
        let long = (0..100).map(|number| Range::new(number << 20, (number + 1) << 20));
        assert_eq!(ahead.step(None, long, |_| true).begin.len(), 4);
    }

    /// What the receiver took back is forgotten, and others take its place.
    #[test]
    fn cancelled_units_are_forgotten() {
        let mut ahead = slow();
        ahead.depth = 4;
        turn(&mut ahead, 0..9);
        ahead.take(unit(0), false);
        let step = turn(&mut ahead, [1, 3, 5, 6, 7]);
        assert_eq!((step.begin, step.forget), (units([5, 6]), units([2, 4])));
        // Without any granted nothing is left.
        let step = ahead.step(None, [], |_| true);
        assert_eq!(step.forget, units([1, 3, 5, 6]));
        assert!(ahead.begun.is_empty());
    }

    /// Once reading is fast again what was begun is sent still, and nothing is begun.
    #[test]
    fn what_was_begun_is_sent() {
        let mut ahead = slow();
        turn(&mut ahead, 0..9);
        (0..SAMPLE).for_each(|_| ahead.observe(LEN, Nanos::ZERO));
        assert_eq!(turn(&mut ahead, 0..9), Step::default());
        assert!(ahead.take(unit(1), true) && ahead.take(unit(2), true));
        assert!(!ahead.take(unit(3), true));
    }

    proptest! {
        /// Whatever is granted, taken back, accepted and sent: what is begun is granted, is begun once, and is sent or forgotten once.
        #[test]
        fn begun_units_are_granted(steps in proptest::collection::vec((0u64..6, 0usize..8, 0usize..6, any::<bool>(), 0u64..2_000_000), 1..200)) {
            let mut ahead = ReadAhead::new();
            let mut granted: VecDeque<Range> = VecDeque::new();
            let mut alive: Vec<Range> = Vec::new();
            let mut next = 0;
            for (more, cancelled, space, is_read, took) in steps {
                granted.extend(units(next..next + more));
                next += more;
                granted.remove(cancelled);
                let (mut asked, mut accepted) = (0, Vec::new());
                let step = ahead.step(granted.front().copied(), granted.iter().skip(1).copied(), |unit| {
                    asked += 1;
                    accepted.extend((asked <= space).then_some(unit));
                    asked <= space
                });
                prop_assert!(asked <= space + 1, "it was refused");
                prop_assert_eq!(&step.begin, &accepted);
                for unit in &step.forget {
                    let place = alive.iter().position(|begun| begun == unit);
                    prop_assert!(place.is_some(), "{unit:?} was not begun");
                    alive.remove(place.unwrap());
                }
                for unit in &step.begin {
                    prop_assert!(!alive.contains(unit) && granted.contains(unit));
                    alive.push(*unit);
                }
                if let Some(unit) = granted.pop_front() {
                    let place = alive.iter().position(|begun| *begun == unit);
                    prop_assert_eq!(ahead.take(unit, is_read), place.is_some());
                    place.map(|place| alive.remove(place));
                    ahead.observe(LEN, Nanos(took));
                }
                let begun: Vec<Range> = ahead.begun.iter().copied().collect();
                prop_assert_eq!(&begun, &alive);
                prop_assert!(begun.len() <= DEPTH_MAX);
            }
        }
    }
}
