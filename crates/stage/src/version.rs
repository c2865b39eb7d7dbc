//! What shows that a file has changed without reading it.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstat;

/// An open file's length, and when its contents were last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub length: u64,
    modified: (i64, u64),
}

impl Version {
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        Ok(Self {
            length: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u64),
        })
    }

    /// Whether the bytes of this version may be there still in a later one: what programs append to a log is beyond what is read. That some was
    /// written over as well is not noticed then.
    pub fn is_kept_by(&self, later: &Self) -> bool {
        later == self || later.length > self.length
    }
}
