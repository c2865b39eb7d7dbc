//! Walking many paths below one folder without opening each one's parent again.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::manifest::parent_of;
use crate::sys;

/// Finds the parent folder of paths below a base, and keeps the last one open: entries of a
/// manifest come sorted, so the next one mostly lies in the same folder.
pub(crate) struct Folders<'a> {
    base: BorrowedFd<'a>,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> Folders<'a> {
    pub(crate) fn new(base: BorrowedFd<'a>) -> Self {
        Self { base, last: None }
    }

    /// The folder of a path and its name there. Not for the base itself, whose path is empty.
    pub(crate) fn parent<'p>(
        &mut self,
        path: &'p [u8],
    ) -> Result<(BorrowedFd<'_>, &'p [u8]), Errno> {
        let parent = parent_of(path).ok_or(Errno::INVAL)?;
        let name = if parent.is_empty() {
            path
        } else {
            &path[parent.len() + 1..]
        };
        let opened = match self.last.take().filter(|(known, _)| known == parent) {
            Some(known) => known,
            None => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                (
                    parent.to_vec(),
                    sys::open_beneath(self.base, parent, flags, Mode::empty())?,
                )
            }
        };
        Ok((self.last.insert(opened).1.as_fd(), name))
    }

    /// What stands at a path, links not followed; `None` when nothing does.
    pub(crate) fn kind(&mut self, path: &[u8]) -> Result<Option<FileType>, Errno> {
        let stat = self
            .parent(path)
            .and_then(|(folder, name)| sys::stat_entry(folder, name));
        match stat {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Whether a folder is closed to this process: its rights are another's, or what is mounted there has no server.
pub(crate) fn is_closed(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ACCESS
            | Errno::PERM
            | Errno::NOTCONN
            | Errno::NODEV
            | Errno::STALE
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
    )
}
