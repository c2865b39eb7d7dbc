//! A processor of a known speed: a group of the processor controller (cgroup version 1) that runs for a share of the time.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

const GROUPS: &str = "/sys/fs/cgroup/cpu";

/// Periods that are shorter than what the report looks at.
const PERIOD_MICROSECONDS: u64 = 10_000;

/// A group with one process; when it goes, the process is in the root group again.
#[derive(Debug)]
pub(super) struct Quota {
    folder: PathBuf,
    process: u32,
}

impl Quota {
    /// Lets a process, with all of its threads, use `percent` of one processor.
    pub fn new(process: u32, percent: u64) -> Result<Self> {
        let folder = PathBuf::from(GROUPS).join(format!("ropewalk-bench-{process}"));
        fs::create_dir(&folder).with_context(|| {
            format!(
                "cannot make {}: slow processors need the cpu controller of cgroup version 1",
                folder.display()
            )
        })?;
        let quota = Self { folder, process };
        let share = PERIOD_MICROSECONDS * percent / 100;
        quota.write("cpu.cfs_period_us", PERIOD_MICROSECONDS)?;
        quota.write("cpu.cfs_quota_us", share)?;
        quota.write("cgroup.procs", u64::from(process))?;
        Ok(quota)
    }

    fn write(&self, file: &str, value: u64) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value.to_string())
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A process that has ended is in no group any more.
        let _ = fs::write(
            PathBuf::from(GROUPS).join("cgroup.procs"),
            self.process.to_string(),
        );
        let _ = fs::remove_dir(&self.folder);
    }
}
