//! Processor time and memory of this process.

use ropewalk_proto::control::Usage;

/// Processor time so far in nanoseconds and the largest resident memory in bytes.
pub fn now() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident_max = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024);
    let processor = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Usage {
        processor: processor.tv_sec as u64 * 1_000_000_000 + processor.tv_nsec as u64,
        resident_max,
    }
}
