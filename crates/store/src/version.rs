//! What distinguishes two versions of a file on the host that holds it.

use rustix::fs::Stat;

/// Which file a name led to, and when anything of it was last changed. Means nothing on another host, so no manifest
/// has it.
///
/// A file system that changes inode numbers by itself has versions that are not known only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    device: u64,
    /// 0 for none: no file system gives it to a file.
    inode: u64,
    changed_seconds: i64,
    changed_nanoseconds: u32,
}

/// How a file is no longer the one that was scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Its size or modification time.
    Contents,
    /// Another file has its name, with its size and modification time.
    Replaced,
    /// No name leads to it any more; it has the size and time it had.
    Removed,
    /// Its inode: it was written to and its time set back, or only its mode, owner or number of names is another.
    Inode,
}

impl Version {
    /// Equal to every other one.
    pub(crate) const UNKNOWN: Self = Self {
        device: 0,
        inode: 0,
        changed_seconds: 0,
        changed_nanoseconds: 0,
    };

    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed_seconds: stat.st_ctime,
            changed_nanoseconds: stat.st_ctime_nsec as u32,
        }
    }

    /// Whether both are known to be of one file, whatever it holds.
    pub(crate) fn is_same_file(&self, found: &Self) -> bool {
        self.inode != 0 && (self.device, self.inode) == (found.device, found.inode)
    }

    /// How a file that was of this version is now of another; `None` when it is not, or when that is not known.
    ///
    /// * `names`: how many it has now.
    pub(crate) fn change(&self, found: &Self, names: u64) -> Option<Change> {
        if self.inode == 0 || found.inode == 0 || self == found {
            return None;
        }
        Some(match self.is_same_file(found) {
            true if names == 0 => Change::Removed,
            true => Change::Inode,
            false => Change::Replaced,
        })
    }
}

impl Change {
    /// What happened, after the file's name.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Contents => "changed since it was scanned",
            Self::Replaced => {
                "was replaced since it was scanned, by another file of the same size and time"
            }
            Self::Removed => "was removed since it was scanned",
            Self::Inode => {
                "has the size and time it had when it was scanned, but its inode changed: it was written to and its time \
                 set back, or its mode, owner or links were changed"
            }
        }
    }
}
