//! What a process uses, and what it waits for.

use std::time::{Duration, Instant};

use ropewalk_proto::stage::process::Wait;

/// Time since the first block, and the parts of it spent waiting.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    began: Option<Instant>,
    ended: Option<Instant>,
    input: Duration,
    output: Duration,
}

impl Meter {
    /// The first block is here, or is to be made.
    pub fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// All is done.
    pub fn end(&mut self) {
        self.ended.get_or_insert_with(Instant::now);
    }

    /// Nothing could be done for so long.
    pub fn waited(&mut self, wait: Wait, time: Duration) {
        if self.began.is_none() || self.ended.is_some() {
            return;
        }
        match wait {
            Wait::Input => self.input += time,
            Wait::Output => self.output += time,
            Wait::Work => {}
        }
    }

    /// In nanoseconds: since the first block, waiting for blocks, waiting for the next group.
    pub fn times(&self) -> [u64; 3] {
        let end = self.ended.unwrap_or_else(Instant::now);
        let elapsed = self.began.map_or(Duration::ZERO, |began| end - began);
        [elapsed, self.input, self.output].map(|time| time.as_nanos() as u64)
    }
}

/// Processor time of this process, in nanoseconds.
pub(crate) fn processor() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Most memory of this process so far, in bytes.
pub(crate) fn resident_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|number| number.trim().parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}
