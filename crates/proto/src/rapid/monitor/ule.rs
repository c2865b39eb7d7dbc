//! The interactivity score of FreeBSD's ULE scheduler (section 3.2), higher is worse, and a monitor that keeps it low.
//!
//! Section 3.2 prints, with `m` half of the largest score: `m / (sleep / run)` for a task that sleeps more than it runs, else
//! `m / (run / sleep) + m`. The second line is not monotone: from 2m at equal times it falls back towards m for a task that
//! never sleeps. The scheduler itself counts down from 2m there. Both forms are here. The monitor computes the printed one; the two
//! agree below m, where its threshold lies, and no score at or above m falls below the threshold in either. The simulated
//! scheduler uses the monotone one.
//! Without running time the score is 0; without sleeping time `m` in print, `2m` in the monotone form.

use super::{Advice, Monitor, POLL_NS, Quiet, Sample};

/// The largest score.
pub const SCORE_MAX: f64 = 100.0;

/// Tasks below it are interactive, and always go to the current queue.
pub const THRESHOLD: f64 = 30.0;

/// History: beyond 5 s in all, run and sleep are scaled down so that the past fades.
const HISTORY_NS: u64 = 5_000_000_000;

/// Longest pause asked for.
const SUSPEND_MAX_NS: u64 = 500_000_000;

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
    pub fn of(self, run_ns: u64, sleep_ns: u64) -> f64 {
        let m = SCORE_MAX / 2.0;
        let (run, sleep) = (run_ns as f64, sleep_ns as f64);
        if run_ns == 0 {
            0.0
        } else if sleep_ns > run_ns {
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
    /// Nanoseconds run.
    pub run_ns: u64,
    /// Nanoseconds slept.
    pub sleep_ns: u64,
}

impl History {
    /// Adds to both.
    pub fn add(&mut self, run_ns: u64, sleep_ns: u64) {
        self.run_ns += run_ns;
        self.sleep_ns += sleep_ns;
        let sum = self.run_ns + self.sleep_ns;
        if sum > HISTORY_NS / 5 * 6 {
            self.run_ns /= 2;
            self.sleep_ns /= 2;
        } else if sum > HISTORY_NS {
            self.run_ns = self.run_ns / 5 * 4;
            self.sleep_ns = self.sleep_ns / 5 * 4;
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
                run_ns: 0,
                sleep_ns: 500_000_000,
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
        let wall = sample.now_ns.saturating_sub(last.now_ns);
        let run = sample.run_ns.saturating_sub(last.run_ns);
        let wait = sample.wait_ns.saturating_sub(last.wait_ns);
        self.history.add(run, wall.saturating_sub(run + wait));
        let before = std::mem::replace(
            &mut self.score,
            self.form.of(self.history.run_ns, self.history.sleep_ns),
        );
        if wall > 0 {
            // Smoothed over some 50 looks: schedstat moves in ticks.
            let slope = (self.score - before) / wall as f64;
            self.slope += (slope - self.slope) / 50.0;
        }
    }

    /// How long to sleep for a score that is [`RELIEF`] below the limit, or half of the limit where that is less.
    fn interval_ns(&self, limit: f64) -> u64 {
        let target = (limit - RELIEF).max(limit / 2.0).max(1.0);
        let run = self.history.run_ns as f64;
        let m = SCORE_MAX / 2.0;
        let sleep = if target < m {
            m * run / target
        } else {
            (SCORE_MAX - target) * run / m
        };
        let interval = (sleep - self.history.sleep_ns as f64).max(0.0) as u64;
        interval.clamp(POLL_NS, SUSPEND_MAX_NS)
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
        let expected = self.score + self.slope.max(0.0) * (sample.rtt_ns + POLL_NS) as f64;
        if !error && expected < limit {
            return Advice::default();
        }
        let interval = self.interval_ns(limit);
        self.quiet.suspend(sample, interval);
        Advice {
            suspend_ns: Some(interval),
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

    const MS: u64 = 1_000_000;

    /// Section 3.2's numbers: equal times give 2m in print, and a task that runs far more falls back to m.
    #[test]
    fn the_printed_form_is_not_monotone() {
        let printed = |run, sleep| Score::Printed.of(run, sleep);
        assert_eq!(printed(100, 100), 100.0);
        assert_eq!(printed(100, 200), 25.0);
        assert!(printed(10_000, 100) < 51.0);
        assert_eq!(printed(100, 0), 50.0);
        assert_eq!(printed(0, 0), 0.0);
        let monotone = |run, sleep| Score::Monotone.of(run, sleep);
        assert_eq!(monotone(100, 100), 50.0);
        assert_eq!(monotone(100, 200), 25.0);
        assert_eq!(monotone(100, 0), 100.0);
        assert_eq!(monotone(0, 0), 0.0);
    }

    proptest! {
        /// More running is never better and more sleeping never worse, in the monotone form; both stay within the bounds.
        #[test]
        fn the_scheduler_s_form_is_monotone(run in 0u64..10_000, sleep in 0u64..10_000, more in 1u64..1000) {
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
                prop_assert!(history.run_ns + history.sleep_ns <= HISTORY_NS / 5 * 6);
            }
        }
    }

    /// A receiver that runs half of the time is suspended before the threshold, and stays interactive with it.
    #[test]
    fn the_threshold_is_not_crossed() {
        let mut monitor = Ule::new(Score::Monotone);
        let mut sample = Sample {
            blasting: true,
            rtt_ns: 20 * MS,
            ..Sample::default()
        };
        let (mut until, mut worst, mut asked, mut ran) = (0, 0.0_f64, 0, 0);
        for _ in 0..10_000 {
            sample.now_ns += 2 * MS;
            // The pause begins, and ends, a round trip late.
            let paused = sample.now_ns < until && sample.now_ns >= until - 500 * MS;
            sample.received = !paused;
            if !paused {
                sample.run_ns += 3 * MS / 2;
                ran += 1;
            }
            if let Some(interval) = monitor.poll(&sample).suspend_ns {
                until = sample.now_ns + sample.rtt_ns + interval;
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
                sample.now_ns += 2 * MS;
                sample.run_ns += 2 * MS;
                sample.received = look % 3 > 0;
                assert_eq!(monitor.poll(&sample), Advice::default(), "{form:?} {look}");
            }
            assert_eq!(monitor.error_score(), None);
            sample.now_ns += 2 * MS;
            sample.queued = 4096;
            assert!(monitor.poll(&sample).suspend_ns.is_some(), "{form:?}");
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
                sample.now_ns += 2 * MS;
                if look % 4 > 0 {
                    sample.run_ns += 2 * MS;
                }
                if monitor.poll(&sample).suspend_ns.is_some() {
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
            sample.now_ns += 2 * MS;
            sample.run_ns += 2 * MS;
            assert_eq!(monitor.poll(&sample), Advice::default());
        }
        sample.now_ns += 2 * MS;
        sample.received = false;
        assert!(monitor.poll(&sample).suspend_ns.is_some());
        let error = monitor.error_score().unwrap();
        assert!(error < THRESHOLD && error > 5.0, "{error}");
    }
}
