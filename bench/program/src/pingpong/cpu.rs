//! How busy the processors of this host are.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Times of all processors together, as `/proc/stat` counts them.
fn times() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest times are within user.
    let all = fields.iter().take(8).sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((all, idle))
}

/// Processor time of this process, user and system, seconds.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measures from when it was started.
pub(super) struct Clock {
    host: Option<(u64, u64)>,
    own: f64,
    begun: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            host: times(),
            own: own_seconds(),
            begun: Instant::now(),
        }
    }

    /// Percent of the time of all processors that this process used.
    pub(super) fn own_percent(&self) -> f64 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let passed = self.begun.elapsed().as_secs_f64().max(1e-9);
        (own_seconds() - self.own) / passed / processors * 100.0
    }

    /// Percent of the time of all processors that was not idle; 0 where nothing tells, or too little time passed.
    pub(super) fn busy_percent(&self) -> f64 {
        let (Some((all_before, idle_before)), Some((all, idle))) = (self.host, times()) else {
            return 0.0;
        };
        let passed = all.saturating_sub(all_before);
        let rested = idle.saturating_sub(idle_before).min(passed);
        if passed == 0 {
            return 0.0;
        }
        (passed - rested) as f64 / passed as f64 * 100.0
    }
}
