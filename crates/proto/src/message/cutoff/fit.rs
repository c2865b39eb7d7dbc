//! Straight lines through round trips, and where two of them meet.

use ropewalk_model::Nanos;

use super::{NEVER, Sample, Step};

/// Sizes that are measured: what a message costs by itself shows in the small ones, what a byte costs in the large.
const SIZES: [u64; 6] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Samples of each size and kind; the middle one counts.
const ROUNDS: usize = 5;

/// A line whose slope is not this much below the other's does not meet it at a size that matters.
const SLOPE_GAIN_MIN: f64 = 0.02;

/// A line through points, least squares of the relative errors: a microsecond counts where messages take few.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    /// Adds a point.
    pub fn add(&mut self, size: u64, round_trip: Nanos) {
        let (x, y) = (size as f64, round_trip.max(Nanos(1)).0 as f64);
        let weight = 1.0 / (y * y);
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += weight * x * x;
        self.xy += weight * x * y;
    }

    /// Nanoseconds of an empty message, and of each byte; `None` unless points of different sizes are there.
    #[must_use]
    pub fn fit(&self) -> Option<(f64, f64)> {
        let spread = self.weight * self.xx - self.x * self.x;
        if spread <= f64::EPSILON * self.weight * self.xx {
            return None;
        }
        let slope = (self.weight * self.xy - self.x * self.y) / spread;
        Some(((self.y - slope * self.x) / self.weight, slope))
    }
}

/// The size from which on `all` is faster than `one`; `None` where the points do not say.
pub(super) fn intersection(one: &Line, all: &Line) -> Option<u64> {
    let ((one_empty, one_byte), (all_empty, all_byte)) = (one.fit()?, all.fit()?);
    if all_byte >= one_byte * (1.0 - SLOPE_GAIN_MIN) {
        return Some(NEVER);
    }
    Some(((all_empty - one_empty) / (one_byte - all_byte)).max(0.0) as u64)
}

/// The search by curves.
#[derive(Clone, Debug, Default)]
pub(super) struct Fit {
    /// Round trips in the order measured: size by size, round by round, one rail first.
    seen: Vec<Nanos>,
}

impl Fit {
    pub(super) fn step(&self) -> Step {
        let at = self.seen.len();
        match SIZES.get(at / (2 * ROUNDS)) {
            Some(&size) => Step::Measure {
                size,
                several: at % 2 == 1,
            },
            None => Step::Done(self.result()),
        }
    }

    pub(super) fn observe(&mut self, sample: Sample) {
        self.seen.push(sample.round_trip);
    }

    fn result(&self) -> u64 {
        let (mut one, mut all) = (Line::default(), Line::default());
        for (size, seen) in SIZES.iter().zip(self.seen.chunks(2 * ROUNDS)) {
            for (line, first) in [(&mut one, 0), (&mut all, 1)] {
                let mut own: Vec<Nanos> = seen.iter().skip(first).step_by(2).copied().collect();
                own.sort_unstable();
                if let Some(&middle) = own.get(own.len() / 2) {
                    line.add(*size, middle);
                }
            }
        }
        intersection(&one, &all).unwrap_or(NEVER)
    }
}
