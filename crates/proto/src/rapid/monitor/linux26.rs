//! The Task Priority Monitoring Process for Linux 2.6: Figure 4, fed by the running and sleeping times that today's kernels report.
//!
//! Readings and departures, each where it happens:
//! - The formula of step (e) is garbled in print. Read as `(MAX_AVG_SLEEP - CURR_AVG_SLEEP) / (MAX_PRIO - CURR_DYN_PRIO)`: time of
//!   average over levels. Time slept counts once for each level that is missing, so sleeping for that long
//!   gives the average back, which is its stated aim. Where no level is missing the divisor is one.
//! - Step (c) learns only while datagrams should be arriving.
//! - An empty queue teaches nothing, and suspends nothing but over round trips that are longer than a step: there the pause has to
//!   begin before the queue shows a need for it, at a level that has cost packets before.
//! - Section 3.4: up to 100 ms of round trip it fires one level early; above, it times the steps and fires a round trip
//!   before the level of errors is expected.

use ropewalk_model::{Instant, Nanos};

use super::sleep::{BONUS_MAX, SleepAverage};
use super::{Advice, Monitor, POLL_TIME, Quiet, STEP_TIME, Sample};

/// Errors at the best level teach nothing that a pause could mend: two levels are always left to run in. The
/// published algorithm would suspend for ever.
const ERROR_BELOW_MAX: i32 = 2;

/// Longest pause asked for.
const SUSPEND_TIME_MAX: Nanos = Nanos::from_millis(500);

/// The monitor.
#[derive(Debug)]
pub struct Linux26 {
    average: SleepAverage,
    last: Option<Sample>,
    // None stands for minus infinity.
    error_prio: Option<i32>,
    max: Option<(i32, Nanos)>,
    // When the priority last fell or rose, once it did, and how long a step takes.
    fell_at: Option<Instant>,
    step: Nanos,
    quiet: Quiet,
}

impl Default for Linux26 {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux26 {
    /// A task that has waited for its first packet: it starts as interactive as can be.
    #[must_use]
    pub fn new() -> Self {
        Self {
            average: SleepAverage::new(Nanos(u64::MAX)),
            last: None,
            error_prio: None,
            max: None,
            fell_at: None,
            step: STEP_TIME,
            quiet: Quiet::default(),
        }
    }

    /// The same, for a task with another average.
    #[must_use]
    pub fn starting_at(average: Nanos) -> Self {
        Self {
            average: SleepAverage::new(average),
            ..Self::new()
        }
    }

    /// The priority at which packets were not taken, if that happened.
    #[must_use]
    pub fn error_prio(&self) -> Option<i32> {
        self.error_prio
    }

    /// Takes the times since the last look into the average.
    fn account(&mut self, sample: &Sample) {
        let before = self.average.bonus();
        if let Some(last) = self.last.replace(*sample) {
            let wall = sample.now.since(last.now);
            let run = sample.run - last.run;
            let wait = sample.wait - last.wait;
            self.average.run(run);
            self.average.sleep(wall - (run + wait));
        }
        let now = self.average.bonus();
        if now < before {
            let took = self.fell_at.map(|at| sample.now.since(at));
            if let Some(took) = took.filter(|took| *took < self.step * 4) {
                let steps = u64::from(now.abs_diff(before));
                self.step = (self.step * 3 + took / steps) / 4;
            }
            self.fell_at = Some(sample.now);
        } else if now > before {
            self.fell_at = Some(sample.now);
        }
    }

    /// Step (e).
    fn interval(&self, prio: i32) -> Nanos {
        let (max_prio, max_average) = self.max.unwrap_or((BONUS_MAX, self.average.time()));
        let levels = u64::try_from(max_prio - prio).unwrap_or(0).max(1);
        let interval = (max_average - self.average.time()) / levels;
        interval.clamp(POLL_TIME, SUSPEND_TIME_MAX)
    }

    /// Step (d), and section 3.4 for long round trips.
    fn is_close(&self, prio: i32, sample: &Sample) -> bool {
        let Some(error) = self.error_prio else {
            return false;
        };
        if !sample.is_far() {
            return prio - 1 <= error;
        }
        let steps = u64::try_from(prio - error).unwrap_or(0);
        let into_step = sample.now.since(self.fell_at.unwrap_or_default());
        let left = self.step * steps - into_step.min(self.step);
        left <= sample.rtt
    }
}

impl Monitor for Linux26 {
    fn poll(&mut self, sample: &Sample) -> Advice {
        self.account(sample);
        let prio = self.average.bonus();
        if self.max.is_none_or(|(max, _)| prio > max) {
            self.max = Some((prio, self.average.time()));
        }
        if self.quiet.holds(sample) || !sample.blasting {
            return Advice::default();
        }
        if sample.queue_is_empty() && !sample.is_far() {
            return Advice::default();
        }
        let max = self.max.map_or(prio, |(max, _)| max);
        let error = !sample.received && !sample.queue_is_empty();
        if error {
            self.error_prio = Some(prio.min(max - ERROR_BELOW_MAX));
        }
        if !error && !self.is_close(prio, sample) {
            return Advice::default();
        }
        let interval = self.interval(prio);
        self.quiet.suspend(sample, interval);
        Advice {
            suspend: Some(interval),
            ceiling: None,
        }
    }

    fn level(&self) -> f64 {
        self.average.bonus().into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sleep::SLEEP_TIME_MAX;
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = Nanos::from_millis(1);

    /// A receiver that runs all the time, seen every 2 ms.
    fn run(monitor: &mut Linux26, sample: &mut Sample, ms: u64, received: bool) -> Option<Nanos> {
        let end = sample.now + MS * ms;
        while sample.now < end {
            sample.now += MS * 2;
            sample.run += MS * 2;
            sample.received = received;
            if let Some(interval) = monitor.poll(sample).suspend {
                return Some(interval);
            }
        }
        None
    }

    fn begun(rtt_ms: u64) -> (Linux26, Sample) {
        let mut monitor = Linux26::new();
        let sample = Sample {
            now: Instant(1),
            blasting: true,
            received: true,
            rtt: MS * rtt_ms,
            ..Sample::default()
        };
        assert_eq!(monitor.poll(&sample), Advice::default());
        assert_eq!(monitor.level(), 5.0);
        (monitor, sample)
    }

    /// The stated aim of the suspend interval: slept for that long, the task has its starting average again, whatever it was.
    #[test]
    fn the_interval_gives_the_priority_back() {
        for ran in [60, 150, 320, 480, 700, 990] {
            let (mut monitor, mut sample) = begun(0);
            assert_eq!(run(&mut monitor, &mut sample, ran, true), None);
            let prio = monitor.average.bonus();
            let mut average = monitor.average;
            let interval = monitor.interval(prio);
            // The factor of the starting level holds for the whole sleep in 2.6.
            let factor = (BONUS_MAX - prio) as u64;
            let slept = interval * factor.max(1) + Nanos(factor);
            assert!(slept >= SLEEP_TIME_MAX - average.time());
            average.sleep(interval);
            assert!(average.bonus() > prio, "from {prio} to {}", average.bonus());
        }
    }

    /// A level takes 100 ms of running.
    #[test]
    fn a_step_takes_100_ms() {
        let (mut monitor, mut sample) = begun(0);
        let mut falls = Vec::new();
        let mut level = monitor.level();
        for _ in 0..300 {
            run(&mut monitor, &mut sample, 2, true);
            if monitor.level() < level {
                level = monitor.level();
                falls.push(sample.now.since(Instant::ZERO).0 / MS.0);
            }
        }
        assert!(
            falls.windows(2).all(|two| two[1] - two[0] == 100),
            "{falls:?}"
        );
        assert_eq!(monitor.step.0 / MS.0, 100);
    }

    /// The first silence teaches ERROR_PRIO and suspends; later it fires one level above, before anything is lost.
    #[test]
    fn it_learns_and_then_fires_one_level_early() {
        let (mut monitor, mut sample) = begun(0);
        assert_eq!(run(&mut monitor, &mut sample, 520, true), None);
        assert_eq!(monitor.level(), -1.0);
        let interval = run(&mut monitor, &mut sample, 2, false).expect("an error suspends");
        assert_eq!(monitor.error_prio(), Some(-1));
        // Paused: neither silence nor the level counts, and it sleeps.
        let end = sample.now + interval;
        while sample.now < end {
            sample.now += MS * 2;
            sample.received = false;
            assert_eq!(monitor.poll(&sample), Advice::default());
        }
        assert_eq!(monitor.error_prio(), Some(-1), "a pause teaches nothing");
        assert!(monitor.level() >= 3.0, "{}", monitor.level());
        assert!(run(&mut monitor, &mut sample, 1000, true).is_some());
        assert_eq!(monitor.level(), 0.0, "one above the level of errors");
    }

    /// An empty queue is neither an error nor a reason for a pause; one that holds something is both.
    #[test]
    fn an_empty_queue_suspends_nothing() {
        let (mut monitor, mut sample) = begun(20);
        sample.buffer = 4 << 20;
        assert_eq!(run(&mut monitor, &mut sample, 900, false), None);
        assert_eq!(monitor.error_prio(), None);
        sample.queued = 4096;
        assert!(run(&mut monitor, &mut sample, 2, false).is_some());
        let (mut monitor, mut sample) = begun(200);
        sample.buffer = 4 << 20;
        assert_eq!(run(&mut monitor, &mut sample, 900, false), None);
        assert_eq!(monitor.error_prio(), None);
    }

    /// Silence before the blast and between rounds is no error.
    #[test]
    fn silence_counts_only_during_a_blast() {
        let (mut monitor, mut sample) = begun(0);
        run(&mut monitor, &mut sample, 400, true);
        sample.blasting = false;
        assert_eq!(run(&mut monitor, &mut sample, 40, false), None);
        assert_eq!(monitor.error_prio(), None);
    }

    /// Section 3.4: with 200 ms of round trip it fires that long before the level of errors is reached, two steps early.
    #[test]
    fn long_round_trips_are_led_by_time() {
        let (mut monitor, mut sample) = begun(200);
        run(&mut monitor, &mut sample, 720, true);
        run(&mut monitor, &mut sample, 2, false).expect("an error suspends");
        let error = monitor.error_prio().unwrap();
        assert_eq!(error, -3);
        while sample.now < monitor.quiet.until + MS * 2 {
            sample.now += MS * 2;
            sample.received = false;
            monitor.poll(&sample);
        }
        run(&mut monitor, &mut sample, 2000, true).expect("it fires again");
        let fired = sample.now;
        // How long until the level of errors had it gone on?
        let mut average = monitor.average;
        while average.bonus() > error {
            average.run(MS);
            sample.now += MS;
        }
        let lead = sample.now.since(fired).0 / MS.0;
        assert!((190..=310).contains(&lead), "{lead} ms");
    }

    /// Errors at the best level do not end the transfer.
    #[test]
    fn it_always_lets_the_sender_run() {
        let (mut monitor, mut sample) = begun(0);
        let (mut sent, mut until) = (0, Instant::ZERO);
        for tick in 0..5000u64 {
            sample.now += MS * 2;
            let sends = sample.now >= until;
            // Half of the looks see nothing, whatever the level.
            sample.received = sends && tick % 2 == 0;
            if sends {
                sample.run += MS;
                sent += 1;
            }
            if let Some(interval) = monitor.poll(&sample).suspend {
                until = sample.now + interval;
            }
        }
        assert!(sent > 50, "{sent} of 5000");
    }

    proptest! {
        /// Neither the average nor the pause ever leaves its bounds.
        #[test]
        fn bounds_hold(parts in proptest::collection::vec((0u64..30, 0u64..30, any::<bool>(), any::<bool>()), 1..300), rtt in 0u64..300) {
            let mut monitor = Linux26::new();
            let mut sample = Sample { rtt: MS * rtt, ..Sample::default() };
            for (run, sleep, received, blasting) in parts {
                sample.now += MS * (run + sleep);
                sample.run += MS * run;
                sample.received = received;
                sample.blasting = blasting;
                let advice = monitor.poll(&sample);
                prop_assert!(monitor.level().abs() <= 5.0);
                if let Some(interval) = advice.suspend {
                    prop_assert!(blasting && (POLL_TIME..=SUSPEND_TIME_MAX).contains(&interval));
                }
            }
        }
    }
}
