//! The interactivity score of FreeBSD's ULE scheduler (section 3.2), higher is worse, and a monitor that keeps it low.
//!
//! Section 3.2 prints, with `m` half of the largest score: `m / (sleep / run)` for a task that sleeps more than it runs, else
//! `m / (run / sleep) + m`. The second line is not monotone: from 2m at equal times it falls back towards m for a task that
//! never sleeps. The scheduler itself counts down from 2m there. Both forms are here. The monitor computes the printed one; the two
//! agree below m, where its threshold lies, and no score at or above m falls below the threshold in either. The simulated
//! scheduler uses the monotone one.
//! Without running time the score is 0; without sleeping time `m` in print, `2m` in the monotone form.

use ropewalk_model::Nanos;

use super::{Advice, Monitor, POLL_TIME, Quiet, Sample};

/// The largest score.
pub const SCORE_MAX: f64 = 100.0;

/// Tasks below it are interactive, and always go to the current queue.
pub const THRESHOLD: f64 = 30.0;

/// History: beyond 5 s in all, run and sleep are scaled down so that the past fades.
const HISTORY_TIME: Nanos = Nanos::from_secs(5);

/// Longest pause asked for.
const SUSPEND_TIME_MAX: Nanos = Nanos::from_millis(500);

/// After a pause the score is to be this far below where it fired.
const RELIEF: f64 = 5.0;

/// Which form of the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// As printed in section 3.2.
    Printed,
    /// As the scheduler has it.
    Monotone,
}

impl Score {
    /// The score of a task with these times.
    #[must_use]
    pub fn of(self, run: Nanos, sleep: Nanos) -> f64 {
        let m = SCORE_MAX / 2.0;
        let is_lazy = sleep > run;
        let (run, sleep) = (run.0 as f64, sleep.0 as f64);
        if run == 0.0 {
            0.0
        } else if is_lazy {
            m / (sleep / run)
        } else {
            match self {
                Self::Printed => m / (run / sleep.max(f64::MIN_POSITIVE)) + m,
                Self::Monotone => SCORE_MAX - m * sleep / run,
            }
        }
    }
}

/// Running and sleeping time with a history that fades.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Time run.
    pub run: Nanos,
    /// Time slept.
    pub sleep: Nanos,
}

impl History {
    /// Adds to both.
    pub fn add(&mut self, run: Nanos, sleep: Nanos) {
        self.run += run;
        self.sleep += sleep;
        let sum = self.run + self.sleep;
        if sum > HISTORY_TIME / 5 * 6 {
            self.run = self.run / 2;
            self.sleep = self.sleep / 2;
        } else if sum > HISTORY_TIME {
            self.run = self.run / 5 * 4;
            self.sleep = self.sleep / 5 * 4;
        }
    }
}

/// The monitor: suspends when the score would reach the threshold, or the score at which packets were not taken, within a round trip.
#[derive(Debug)]
pub struct Ule {
    form: Score,
    history: History,
    last: Option<Sample>,
    // The lowest score at which packets were not taken.
    error_score: Option<f64>,
    score: f64,
    // Points per nanosecond, while it rises.
    slope: f64,
    quiet: Quiet,
}

impl Ule {
    /// A monitor by this form of the score.
    #[must_use]
    pub fn new(form: Score) -> Self {
        Self {
            form,
            // A task that has waited: interactive.
            history: History {
                run: Nanos::ZERO,
                sleep: Nanos::from_millis(500),
            },
            last: None,
            error_score: None,
            score: 0.0,
            slope: 0.0,
            quiet: Quiet::default(),
        }
    }

    /// The score at which packets were not taken, if that happened.
    #[must_use]
    pub fn error_score(&self) -> Option<f64> {
        self.error_score
    }

    fn account(&mut self, sample: &Sample) {
        let Some(last) = self.last.replace(*sample) else {
            return;
        };
        let wall = sample.now.since(last.now);
        let run = sample.run - last.run;
        let wait = sample.wait - last.wait;
        self.history.add(run, wall - (run + wait));
        let before = std::mem::replace(
            &mut self.score,
            self.form.of(self.history.run, self.history.sleep),
        );
        if wall > Nanos::ZERO {
            // Smoothed over some 50 looks: schedstat moves in ticks.
            let slope = (self.score - before) / wall.0 as f64;
            self.slope += (slope - self.slope) / 50.0;
        }
    }

    /// How long to sleep for a score that is [`RELIEF`] below the limit, or half of the limit where that is less.
    fn interval(&self, limit: f64) -> Nanos {
        let target = (limit - RELIEF).max(limit / 2.0).max(1.0);
        let run = self.history.run.0 as f64;
        let m = SCORE_MAX / 2.0;
        let sleep = if target < m {
            m * run / target
        } else {
            (SCORE_MAX - target) * run / m
        };
        let interval = (sleep - self.history.sleep.0 as f64).max(0.0) as u64;
        Nanos(interval).clamp(POLL_TIME, SUSPEND_TIME_MAX)
    }
}

impl Monitor for Ule {
    fn poll(&mut self, sample: &Sample) -> Advice {
        self.account(sample);
        if self.quiet.holds(sample) || !sample.blasting {
            return Advice::default();
        }
        // Departure from section 3.2: without anything in the queue nothing was missed, and a pause saves nothing, but for one that
        // has to begin before the queue shows it, at a score that has cost packets before.
        let is_early = sample.is_far() && self.error_score.is_some();
        if sample.queue_is_empty() && !is_early {
            return Advice::default();
        }
        let error = !sample.received && !sample.queue_is_empty();
        if error && self.error_score.is_none_or(|error| self.score < error) {
            // As with the priority, the best scores are left to run in.
            self.error_score = Some(self.score.max(THRESHOLD / 2.0));
        }
        let limit = self.error_score.unwrap_or(THRESHOLD).min(THRESHOLD);
        let expected = self.score + self.slope.max(0.0) * (sample.rtt + POLL_TIME).0 as f64;
        if !error && expected < limit {
            return Advice::default();
        }
        let interval = self.interval(limit);
        self.quiet.suspend(sample, interval);
        Advice {
            suspend: Some(interval),
            ceiling: None,
        }
    }

    fn level(&self) -> f64 {
        self.score
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ropewalk_model::Instant;

    const MS: Nanos = Nanos::from_millis(1);

    /// Section 3.2's numbers: equal times give 2m in print, and a task that runs far more falls back to m.
    #[test]
    fn the_printed_form_is_not_monotone() {
        let printed = |run, sleep| Score::Printed.of(Nanos(run), Nanos(sleep));
        assert_eq!(printed(100, 100), 100.0);
        assert_eq!(printed(100, 200), 25.0);
        assert!(printed(10_000, 100) < 51.0);
        assert_eq!(printed(100, 0), 50.0);
        assert_eq!(printed(0, 0), 0.0);
        let monotone = |run, sleep| Score::Monotone.of(Nanos(run), Nanos(sleep));
        assert_eq!(monotone(100, 100), 50.0);
        assert_eq!(monotone(100, 200), 25.0);
        assert_eq!(monotone(100, 0), 100.0);
        assert_eq!(monotone(0, 0), 0.0);
    }

    proptest! {
        /// More running is never better and more sleeping never worse, in the monotone form; both stay within the bounds.
        #[test]
        fn the_scheduler_s_form_is_monotone(run in 0u64..10_000, sleep in 0u64..10_000, more in 1u64..1000) {
            let (run, sleep, more) = (Nanos(run), Nanos(sleep), Nanos(more));
            let score = Score::Monotone.of(run, sleep);
            prop_assert!(Score::Monotone.of(run + more, sleep) >= score);
            prop_assert!(Score::Monotone.of(run, sleep + more) <= score);
            for score in [score, Score::Printed.of(run, sleep)] {
                prop_assert!((0.0..=SCORE_MAX).contains(&score));
            }
        }

        /// The history is bounded and keeps the proportion.
        #[test]
        fn history_fades(parts in proptest::collection::vec((0u64..400, 0u64..400), 1..200)) {
            let mut history = History::default();
            for (run, sleep) in parts {
                history.add(run * MS, sleep * MS);
                prop_assert!(history.run + history.sleep <= HISTORY_TIME / 5 * 6);
            }
        }
    }

    /// A receiver that runs half of the time is suspended before the threshold, and stays interactive with it.
    #[test]
    fn the_threshold_is_not_crossed() {
        let mut monitor = Ule::new(Score::Monotone);
        let mut sample = Sample {
            blasting: true,
            rtt: MS * 20,
            ..Sample::default()
        };
        let (mut until, mut worst, mut asked, mut ran) = (Instant::ZERO, 0.0_f64, 0, 0);
        for _ in 0..10_000 {
            sample.now += MS * 2;
            // The pause begins, and ends, a round trip late.
            let paused = sample.now < until && sample.now >= until.before(MS * 500);
            sample.received = !paused;
            if !paused {
                sample.run += MS * 3 / 2;
                ran += 1;
            }
            if let Some(interval) = monitor.poll(&sample).suspend {
                until = sample.now + sample.rtt + interval;
                asked += 1;
            }
            worst = worst.max(monitor.level());
        }
        assert!(asked > 5 && ran > 1000, "{asked} pauses, {ran} runs");
        assert!(worst < THRESHOLD + 3.0, "{worst}");
    }

    /// An empty queue is no reason for a pause, whatever the score; one that holds something is.
    #[test]
    fn an_empty_queue_suspends_nothing() {
        for form in [Score::Printed, Score::Monotone] {
            let mut monitor = Ule::new(form);
            let mut sample = Sample {
                blasting: true,
                buffer: 4 << 20,
                ..Sample::default()
            };
            for look in 0..1000 {
                sample.now += MS * 2;
                sample.run += MS * 2;
                sample.received = look % 3 > 0;
                assert_eq!(monitor.poll(&sample), Advice::default(), "{form:?} {look}");
            }
            assert_eq!(monitor.error_score(), None);
            sample.now += MS * 2;
            sample.queued = 4096;
            assert!(monitor.poll(&sample).suspend.is_some(), "{form:?}");
        }
    }

    /// Both forms fire at the same looks: they differ only where the score is above the threshold in either.
    #[test]
    fn the_printed_form_fires_where_the_monotone_one_does() {
        let mut fired = [Score::Printed, Score::Monotone].map(|form| {
            let mut monitor = Ule::new(form);
            let mut sample = Sample {
                blasting: true,
                received: true,
                ..Sample::default()
            };
            let mut at = Vec::new();
            for look in 0..2000 {
                sample.now += MS * 2;
                if look % 4 > 0 {
                    sample.run += MS * 2;
                }
                if monitor.poll(&sample).suspend.is_some() {
                    at.push(look);
                }
            }
            at
        });
        let first = fired.each_mut().map(|at| at.remove(0));
        assert_eq!(first[0], first[1]);
        assert!(fired.iter().all(|at| !at.is_empty()), "{fired:?}");
    }

    /// Packets that are not taken below the threshold move the limit there.
    #[test]
    fn it_learns_where_errors_happen() {
        let mut monitor = Ule::new(Score::Monotone);
        let mut sample = Sample {
            blasting: true,
            received: true,
            ..Sample::default()
        };
        monitor.poll(&sample);
        for _ in 0..50 {
            sample.now += MS * 2;
            sample.run += MS * 2;
            assert_eq!(monitor.poll(&sample), Advice::default());
        }
        sample.now += MS * 2;
        sample.received = false;
        assert!(monitor.poll(&sample).suspend.is_some());
        let error = monitor.error_score().unwrap();
        assert!(error < THRESHOLD && error > 5.0, "{error}");
    }
}
