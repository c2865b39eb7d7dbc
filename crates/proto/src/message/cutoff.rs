//! From which size on several rails are faster than one (MuniSocket section 3).
//!
//! The cut-off is the size M at which RTT_1(M) = RTT_n(M), the second including what it costs to
//! wake several threads. The paper names two ways to find it at the start, and both are here:
//!
//! * [`Method::Fit`]: round trips at a few sizes, a curve through each, their intersection;
//! * [`Method::Search`]: rough bounds by doubling, then a binary search between them.
//!
//! Both only say what to measure next; the caller measures. Later [`CutOff`] follows what real messages show, and
//! [`Standing`] knows over which rails. [`Memory`] keeps it for the next socket between the same hosts.
//! Nothing here counts rails: "several" is all of them, two or more, of whatever speeds.

use ropewalk_model::Nanos;

mod fit;
mod memory;
mod refine;
mod search;
mod standing;

pub use memory::{
    AGE_SECONDS_MAX, FoundBy, Guard, Lesson, Memory, Pair, Recalled, VERSION as MEMORY_VERSION,
};
pub use refine::{Choice, CutOff};
pub use standing::{Known, RailEnds, Standing};

/// Cut-off of a socket for which several rails never were faster.
pub const NEVER: u64 = u64::MAX;

/// How the cut-off is found at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Curves through measured round trips, and where they meet.
    Fit,
    /// Binary search.
    Search,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of the message.
    pub size: u64,
    /// Whether it went over all rails; otherwise over the best one.
    pub several: bool,
    /// Time until its whole arrival was known, nanoseconds.
    pub round_trip: Nanos,
}

/// What [`Finder::step`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send a message of this size and [`observe`](Finder::observe) it.
    Measure {
        /// Bytes.
        size: u64,
        /// Over all rails, or over the best one.
        several: bool,
    },
    /// The cut-off; messages of this size and above take all rails.
    Done(u64),
}

/// A search for the cut-off. Ends after a bounded number of samples.
#[derive(Clone, Debug)]
pub struct Finder(Way);

#[derive(Clone, Debug)]
enum Way {
    Fit(fit::Fit),
    Search(search::Search),
}

impl Finder {
    /// Begins.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self(match method {
            Method::Fit => Way::Fit(fit::Fit::default()),
            Method::Search => Way::Search(search::Search::default()),
        })
    }

    /// What to measure now, or the result. The same until a sample is observed.
    #[must_use]
    pub fn step(&self) -> Step {
        match &self.0 {
            Way::Fit(fit) => fit.step(),
            Way::Search(search) => search.step(),
        }
    }

    /// Takes the measurement that was asked for.
    pub fn observe(&mut self, sample: Sample) {
        match &mut self.0 {
            Way::Fit(fit) => fit.observe(sample),
            Way::Search(search) => search.observe(sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of rails with these speeds (bytes per second) and a cost of `several_ns` for waking threads.
    struct Path {
        speeds: &'static [f64],
        latency_ns: f64,
        several_ns: f64,
    }

    impl Path {
        fn round_trip(&self, size: u64, several: bool) -> Nanos {
            let best = self.speeds.iter().copied().fold(0.0, f64::max);
            let sum: f64 = self.speeds.iter().sum();
            let (speed, extra) = if several {
                (sum, self.several_ns)
            } else {
                (best, 0.0)
            };
            Nanos((self.latency_ns + extra + size as f64 / speed * 1e9) as u64)
        }

        fn sample(&self, size: u64, several: bool) -> Sample {
            Sample {
                size,
                several,
                round_trip: self.round_trip(size, several),
            }
        }

        fn find(&self, method: Method) -> (u64, usize) {
            let mut finder = Finder::new(method);
            for count in 0..1000 {
                match finder.step() {
                    Step::Done(value) => return (value, count),
                    Step::Measure { size, several } => finder.observe(self.sample(size, several)),
                }
            }
            panic!("{method:?} does not end");
        }
    }

    const EQUAL: Path = Path {
        speeds: &[12.5e6, 12.5e6],
        latency_ns: 100_000.0,
        several_ns: 60_000.0,
    };
    const UNEQUAL: Path = Path {
        speeds: &[125e6, 62.5e6, 12.5e6],
        latency_ns: 60_000.0,
        several_ns: 80_000.0,
    };

    /// Both ways find the intersection to an eighth, with rails of one speed and of three.
    #[test]
    fn both_ways_agree() {
        // 60 us = M / 25 MB/s; 80 us = M x (1/125 - 1/200) us.
        for (path, truth) in [(EQUAL, 1500.0), (UNEQUAL, 26_667.0)] {
            for method in [Method::Fit, Method::Search] {
                let (found, samples) = path.find(method);
                let off = found as f64 / truth;
                assert!((0.85..1.15).contains(&off), "{method:?} {found} {truth}");
                assert!(samples <= 200, "{method:?} took {samples}");
            }
        }
    }

    /// Where several rails are never faster, or always, both say so.
    #[test]
    fn extremes_have_names() {
        let never = Path {
            speeds: &[1e9],
            latency_ns: 20_000.0,
            several_ns: 30_000.0,
        };
        let always = Path {
            several_ns: 0.0,
            ..EQUAL
        };
        for method in [Method::Fit, Method::Search] {
            assert_eq!(never.find(method).0, NEVER, "{method:?}");
            assert!(always.find(method).0 <= 64, "{method:?}");
        }
    }
}
