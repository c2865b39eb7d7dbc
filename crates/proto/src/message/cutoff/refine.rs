//! The cut-off in use, corrected by what real messages show.
//!
//! Messages of about the same size make a **class**. Now and then one goes the other way, and both ways of its
//! class are compared by themselves: it works with one size only, and however wrong the cut-off was.

use super::{NEVER, Sample};

/// Classes to a doubling of the size: sizes within one are so close that round trips compare.
const CLASSES_PER_OCTAVE: f64 = 4.0;
/// Classes in all: up to 2^32 bytes, where all rails are worth it or never are.
const CLASSES: usize = 128;
/// Samples of each way that a comparison waits for.
const SAMPLES_MIN: u32 = 8;
/// Part of the old mean that a sample replaces.
const SHARE: f64 = 0.125;
/// What is not faster by this much is not faster.
const GAIN_MIN: f64 = 0.03;
/// Messages up to this factor away from the cut-off are near it.
const NEAR: u64 = 4;
/// Messages of this size may gain from several rails whatever was found.
const LONG: u64 = 1 << 20;
/// One in so many messages near the cut-off is measured, every second of them the other way.
const MEASURE_NEAR: u32 = 16;
/// And one in so many of the others.
const MEASURE_FAR: u32 = 128;

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Over all rails, or over the best one.
    pub several: bool,
    /// Its round trip is to be [observed](CutOff::observe).
    pub measured: bool,
}

/// Means of the logarithm of round trips, one rail and several.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    means: [f64; 2],
    samples: [u32; 2],
}

/// The cut-off in use.
#[derive(Clone, Debug)]
pub struct CutOff {
    value: u64,
    classes: Vec<Class>,
    turn: u32,
}

impl CutOff {
    /// A cut-off as found at the start.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self {
            value,
            classes: vec![Class::default(); CLASSES],
            turn: 0,
        }
    }

    /// Bytes from which on all rails are used.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Other rails work than before: what was seen no longer counts, and that several never gain is not known.
    pub fn rails_changed(&mut self, unknown: u64) {
        self.classes.fill(Class::default());
        if self.value == NEVER {
            self.value = unknown;
        }
    }

    /// How a message of this size goes when it is alone on the rails and its round trip can be observed.
    pub fn choose(&mut self, size: u64) -> Choice {
        let several = size >= self.value;
        let near = size >= self.value.min(LONG) / NEAR && size / NEAR <= self.value;
        let every = if near { MEASURE_NEAR } else { MEASURE_FAR };
        self.turn = self.turn.wrapping_add(1);
        let other = self.turn.is_multiple_of(2 * every);
        Choice {
            several: several != other,
            measured: self.turn.is_multiple_of(every),
        }
    }

    /// Takes the round trip of a message that had the rails for itself; says whether both ways of its class could be
    /// compared.
    pub fn observe(&mut self, sample: Sample) -> bool {
        let at = class_of(sample.size);
        let class = &mut self.classes[at];
        let way = usize::from(sample.several);
        let log = (sample.round_trip.0.max(1) as f64).ln();
        class.samples[way] = class.samples[way].saturating_add(1);
        let share = SHARE.max(1.0 / f64::from(class.samples[way]));
        class.means[way] += (log - class.means[way]) * share;
        if class.samples.iter().any(|&samples| samples < SAMPLES_MIN) {
            return false;
        }
        let gain = class.means[0] - class.means[1];
        let bounds = bounds_of(at);
        if gain > GAIN_MIN && self.value > bounds.0 {
            self.value = bounds.0;
        } else if gain < -GAIN_MIN && self.value < bounds.1 {
            self.value = bounds.1;
        }
        true
    }
}

fn class_of(size: u64) -> usize {
    let class = (size.max(1) as f64).log2() * CLASSES_PER_OCTAVE;
    (class as usize).min(CLASSES - 1)
}

/// Sizes that a class begins with, and the next one.
fn bounds_of(class: usize) -> (u64, u64) {
    let begin = |class: usize| (class as f64 / CLASSES_PER_OCTAVE).exp2().ceil() as u64;
    let low = if class == 0 { 0 } else { begin(class) };
    let high = if class + 1 == CLASSES {
        NEVER
    } else {
        begin(class + 1)
    };
    (low, high)
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Nanos;

    use super::*;

    /// Two equal rails of 12.5 MB/s: several gain from 1500 bytes on.
    fn round_trip(size: u64, several: bool) -> Nanos {
        let (extra, speed) = if several {
            (60_000.0, 25e6)
        } else {
            (0.0, 12.5e6)
        };
        Nanos((100_000.0 + extra + size as f64 / speed * 1e9) as u64)
    }

    fn run(value: u64, sizes: impl Iterator<Item = u64>) -> u64 {
        let mut cutoff = CutOff::new(value);
        for size in sizes {
            let choice = cutoff.choose(size);
            if choice.measured {
                cutoff.observe(Sample {
                    size,
                    several: choice.several,
                    round_trip: round_trip(size, choice.several),
                });
            }
        }
        cutoff.value()
    }

    /// A cut-off that is wrong comes right while messages flow, from above, from below and from both ends.
    #[test]
    fn it_comes_right_while_messages_flow() {
        for value in [20_000, 100, 0, NEVER] {
            let sizes = (0..2_000_000_u64).map(|turn| 200 + turn * 7919 % 8_000);
            let found = run(value, sizes);
            assert!((1200..1900).contains(&found), "{value}: {found}");
        }
    }

    /// One size is enough.
    #[test]
    fn one_size_is_enough() {
        for value in [0, 1000, 1 << 20, NEVER] {
            assert!(
                run(value, std::iter::repeat_n(64 << 10, 5000)) <= 64 << 10,
                "{value}"
            );
            assert!(run(value, std::iter::repeat_n(256, 5000)) > 256, "{value}");
        }
    }

    /// Where both ways take as long nothing moves.
    #[test]
    fn ties_change_nothing() {
        let mut cutoff = CutOff::new(5000);
        for _ in 0..10_000 {
            let choice = cutoff.choose(5000);
            if choice.measured {
                cutoff.observe(Sample {
                    size: 5000,
                    several: choice.several,
                    round_trip: Nanos(1_000_000),
                });
            }
        }
        assert_eq!(cutoff.value(), 5000);
    }

    /// Classes cover all sizes without gaps.
    #[test]
    fn classes_join() {
        for class in 0..CLASSES - 1 {
            assert_eq!(bounds_of(class).1, bounds_of(class + 1).0.max(1));
        }
        for size in [0, 1, 2, 3, 63, 64, 1500, 1 << 20, 1 << 40, u64::MAX] {
            let (low, high) = bounds_of(class_of(size));
            assert!(
                low <= size.max(low) && (size < high || high == NEVER),
                "{size}"
            );
        }
    }
}
