//! A plan with a proof of how good it is.

use ropewalk_model::problem::Problem;
use ropewalk_model::schedule::Schedule;

/// A plan and what it is proved to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Certified {
    /// The plan in whole bytes.
    pub schedule: Schedule,
    /// Time of the plan's loads, in seconds.
    pub seconds: f64,
    /// No plan takes less, in seconds.
    pub bound_seconds: f64,
}

impl Certified {
    /// Counts the plan's time.
    pub(crate) fn new(problem: &Problem, schedule: Schedule, bound_seconds: f64) -> Self {
        Self {
            seconds: schedule.predicted_seconds(problem),
            schedule,
            bound_seconds,
        }
    }

    /// How much longer than the least time the plan takes at most, relatively; 0 when nothing is wanted.
    #[must_use]
    pub fn gap(&self) -> f64 {
        match self.bound_seconds > 0.0 {
            true => (self.seconds / self.bound_seconds - 1.0).max(0.0),
            false => 0.0,
        }
    }
}
