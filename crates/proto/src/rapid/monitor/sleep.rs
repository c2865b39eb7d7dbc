//! The sleep average of Linux 2.6 and the dynamic bonus made of it (section 3.1), kept from running and sleeping times.
//!
//! Reading, with the kernel's own names where the paper is short. The average lies between 0 and 1 s and grows while the
//! task sleeps, falls while it runs. The bonus is proportional to it, -5 to +5. Time slept counts as many times as levels are
//! missing from the highest: that is how 2.6 lets a task rise again, and it is what makes the paper's formula for the suspend
//! interval give back the starting priority. Time run counts once: then a level takes 100 ms of running, as section
//! 3.4 measured. Waiting for the processor is neither.
//!
//! Lower numbers are better priorities in section 3.1, and the algorithm of Figure 4 uses higher is better: here the bonus has the
//! sign of Figure 8, +5 for the most interactive task.

use ropewalk_model::Nanos;

/// `MAX_SLEEP_AVG`: 1 s.
pub const SLEEP_TIME_MAX: Nanos = Nanos::from_secs(1);

/// Levels from the worst bonus to the best.
pub const LEVELS: u64 = 10;

/// The best bonus; the worst is its negative.
pub const BONUS_MAX: i32 = 5;

/// The sleep average of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepAverage(Nanos);

impl SleepAverage {
    /// A task with an average so far.
    #[must_use]
    pub fn new(average: Nanos) -> Self {
        Self(average.min(SLEEP_TIME_MAX))
    }

    /// The average.
    #[must_use]
    pub fn time(self) -> Nanos {
        self.0
    }

    /// Levels above the worst, 0 to 10.
    #[must_use]
    pub fn level(self) -> u64 {
        self.0.0 * LEVELS / SLEEP_TIME_MAX.0
    }

    /// The dynamic bonus, higher is better.
    #[must_use]
    pub fn bonus(self) -> i32 {
        self.level() as i32 - BONUS_MAX
    }

    /// The task ran.
    pub fn run(&mut self, time: Nanos) {
        self.0 = self.0 - time;
    }

    /// The task slept of its own will.
    pub fn sleep(&mut self, time: Nanos) {
        let mut left = time;
        // The factor changes with the level.
        while left > Nanos::ZERO && self.0 < SLEEP_TIME_MAX {
            let level = self.level();
            let factor = (LEVELS - level).max(1);
            let to_next = SLEEP_TIME_MAX * (level + 1) / LEVELS - self.0;
            let to_next = Nanos(to_next.0.div_ceil(factor).max(1));
            let part = left.min(to_next);
            self.0 = (self.0 + part * factor).min(SLEEP_TIME_MAX);
            left = left - part;
        }
    }
}
