//! What runs of jobs have said last, for commands that follow them: one line of JSON a job, in memory alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of reports that are kept of ended runs: some ten of transfers between thousands of nodes. A command that follows a job fetches
/// its report within a second.
const ENDED_MAX: usize = 32 << 20;

/// The last events of runs.
#[derive(Default)]
pub(super) struct Said {
    last: BTreeMap<u64, Arc<str>>,
    // Jobs that have ended, the one that ended first at the front.
    ended: VecDeque<u64>,
    ended_bytes: usize,
}

impl Said {
    /// A run begins: what an earlier one has said is not of it.
    pub fn begin(&mut self, job: u64) {
        // A job that has ended does not run again.
        if !self.ended.contains(&job) {
            self.last.remove(&job);
        }
    }

    /// A run said this.
    pub fn put(&mut self, job: u64, line: Arc<str>) {
        self.last.insert(job, line);
    }

    /// What a job's run said last.
    pub fn get(&self, job: u64) -> Option<Arc<str>> {
        self.last.get(&job).cloned()
    }

    /// The job runs no more; the oldest give way.
    pub fn end(&mut self, job: u64) {
        let Some(line) = self.last.get(&job).filter(|_| !self.ended.contains(&job)) else {
            return;
        };
        self.ended_bytes += line.len();
        self.ended.push_back(job);
        while self.ended_bytes > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, job: u64) {
        if let Some(line) = self.last.remove(&job) {
            self.ended_bytes -= line.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last line of each counts; those of ended jobs are bounded, and go in their order.
    #[test]
    fn reports_are_bounded() {
        let mut said = Said::default();
        let line = |len: usize| Arc::<str>::from("x".repeat(len));
        said.put(1, line(5));
        said.put(1, line(7));
        assert_eq!(said.get(1).unwrap().len(), 7);
        said.put(2, line(ENDED_MAX));
        said.end(1);
        assert!(said.get(1).is_some());
        said.end(2);
        assert!(said.get(1).is_none() && said.get(2).is_some());
        said.put(3, line(1));
        said.end(3);
        assert!(said.get(2).is_none() && said.get(3).is_some());
        said.put(4, line(1));
        said.begin(4);
        assert!(said.get(4).is_none());
        for job in [3, 4, 9] {
            said.end(job);
        }
        assert_eq!(said.ended_bytes, 1);
    }
}
