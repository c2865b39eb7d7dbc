//! Rough bounds by doubling, then a binary search.

use super::{NEVER, Sample, Step};

/// Where doubling begins.
const FIRST: u64 = 64;
/// Where it ends: a socket whose rails gain nothing here has no use for them.
const LAST: u64 = 1 << 20;
/// Samples of each kind at a size; the middle one counts.
const ROUNDS: usize = 5;
/// The search ends when its bounds are an eighth apart.
const PRECISION: u64 = 8;

/// The search by halving. `low` is the largest size at which one rail was faster, `high` the smallest at which
/// several were.
#[derive(Clone, Debug)]
pub(super) struct Search {
    size: u64,
    low: u64,
    high: Option<u64>,
    /// Several were faster at half of this size; they have to be here, too.
    confirms: bool,
    one: Vec<u64>,
    all: Vec<u64>,
    done: Option<u64>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            size: FIRST,
            low: 0,
            high: None,
            confirms: false,
            one: Vec::new(),
            all: Vec::new(),
            done: None,
        }
    }
}

impl Search {
    pub(super) fn step(&self) -> Step {
        match self.done {
            Some(value) => Step::Done(value),
            None => Step::Measure {
                size: self.size,
                several: self.one.len() > self.all.len(),
            },
        }
    }

    pub(super) fn observe(&mut self, sample: Sample) {
        if sample.several {
            self.all.push(sample.round_trip.0);
        } else {
            self.one.push(sample.round_trip.0);
        }
        if self.all.len() >= ROUNDS && self.one.len() >= ROUNDS {
            let gains = middle(&mut self.all) < middle(&mut self.one);
            self.compared(gains);
        }
    }

    fn compared(&mut self, several_gain: bool) {
        self.one.clear();
        self.all.clear();
        if self.high.is_none() {
            // Doubling: once may be chance, twice is not.
            if several_gain && !self.confirms && self.size < LAST {
                self.confirms = true;
                self.size *= 2;
                return;
            }
            if several_gain && self.confirms {
                self.size /= 2;
            }
            self.confirms = false;
        }
        if several_gain {
            self.high = Some(self.size);
        } else {
            self.low = self.size;
        }
        match self.high {
            None if self.size >= LAST => self.done = Some(NEVER),
            None => self.size *= 2,
            Some(high) if self.low == 0 || high - self.low <= self.low / PRECISION => {
                self.done = Some(high);
            }
            Some(high) => self.size = self.low.midpoint(high),
        }
    }
}

fn middle(seen: &mut [u64]) -> u64 {
    seen.sort_unstable();
    seen[seen.len() / 2]
}
