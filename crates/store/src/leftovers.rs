//! Temporary files and folders of streams: made so that another writer does not take them for what a killed one has left, and removed
//! when they are that.
//!
//! A writer locks what it makes (`flock`) until it ends, and writers of the same name remove what no process has locked. Two things
//! make that safe:
//!
//! * Names end in a mark of the host, and only names with the mark of this host are removed: on network file systems a lock may be
//!   known to its own host alone.
//! * Between making and locking there is a time in which another writer can lock and remove it. So a writer that has the lock checks
//!   that the name is still that of its file, and begins again where it is not.
//!
//! What another host's writer has left stays until a writer on that host, or the user, removes it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Dir, FlockOperation, Mode, OFlags, fstat};
use rustix::io::{Errno, retry_on_intr};

use crate::claims::is_ours;
use crate::error::StoreError;
use crate::staging::{remove_entry, temporary_name};
use crate::sys;

/// Other writers that begin at the same moment remove a new file at most so often: each does so once.
const ATTEMPTS_MAX: usize = 64;

/// Temporary names of one final name: those of this host's streams.
pub(crate) struct Staged {
    /// For this writer.
    pub name: Vec<u8>,
    // What names of other writers begin and end with.
    begin: usize,
    end: String,
}

impl Staged {
    /// * `id`: makes the name unique; letters, digits and dashes.
    /// * `kind`: what is made, as `stream`: a writer removes nothing of another kind.
    pub fn new(name: &[u8], id: &str, kind: &str) -> Result<Self, StoreError> {
        Self::of_host(name, id, kind, host_mark())
    }

    fn of_host(name: &[u8], id: &str, kind: &str, host: &str) -> Result<Self, StoreError> {
        let end = format!("-{host}-{kind}");
        let name = temporary_name(name, &format!("{id}{end}"))?;
        let begin = name.len() - id.len() - end.len();
        Ok(Self { name, begin, end })
    }

    /// Removes what killed writers of this host have left, as far as possible.
    ///
    /// * `flags`: to open what they made.
    pub fn sweep(&self, parent: &OwnedFd, flags: OFlags) {
        for entry in Dir::read_from(parent).into_iter().flatten().flatten() {
            let found = entry.file_name().to_bytes();
            if !(found.starts_with(&self.name[..self.begin])
                && found.ends_with(self.end.as_bytes()))
            {
                continue;
            }
            // That of another user may be under a lease, which an open waits for.
            if is_ours(parent, found) != Some(true) {
                continue;
            }
            if let Ok(opened) = sys::open_beneath(parent.as_fd(), found, flags, Mode::empty()) {
                remove_left(parent, found, &opened);
            }
        }
    }

    /// Makes what this writer writes, and locks it. Where the file system has no locks it is not locked, and no writer removes it.
    ///
    /// * `make`: makes and opens it under the name; `None` where another writer removed it meanwhile.
    pub fn make(
        &self,
        parent: &OwnedFd,
        make: impl Fn() -> Result<Option<OwnedFd>, Errno>,
    ) -> Result<OwnedFd, Errno> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(made) = make()? else { continue };
            // Waits for a writer that takes it for a leftover: that one removes it at once.
            let _ = retry_on_intr(|| rustix::fs::flock(&made, FlockOperation::LockExclusive));
            match is_named(parent, &self.name, &made) {
                Ok(true) => return Ok(made),
                Ok(false) => {}
                Err(errno) => {
                    remove_entry(parent, &self.name);
                    return Err(errno);
                }
            }
        }
        Err(Errno::AGAIN)
    }
}

/// Removes a leftover that was opened, unless a process has locked it or the name is another file's by now.
fn remove_left(parent: &OwnedFd, name: &[u8], opened: &OwnedFd) {
    let locked = rustix::fs::flock(opened, FlockOperation::NonBlockingLockExclusive);
    if locked.is_ok() && is_named(parent, name, opened) == Ok(true) {
        remove_entry(parent, name);
    }
}

/// Whether an open file has this name.
fn is_named(parent: &OwnedFd, name: &[u8], opened: &OwnedFd) -> Result<bool, Errno> {
    let opened = fstat(opened)?;
    match sys::stat_entry(parent.as_fd(), name) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The mark of this host: a hash of its name and its machine's id, so that neither hosts of one name nor copies of one disk have the
/// same. It stays when the host starts again.
pub(crate) fn host_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(rustix::system::uname().nodename().to_bytes_with_nul());
        hasher.update(&std::fs::read("/etc/machine-id").unwrap_or_default());
        hasher.finalize().to_hex()[..16].to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;
    use std::path::Path;

    const DIGITS: &str = "0123456789abcdef0123456789abcdef";
    const FILE: OFlags = OFlags::WRONLY.union(OFlags::NONBLOCK);

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    fn staged(id: &str) -> Staged {
        Staged::new(b"out", &format!("{DIGITS}-{id}"), "stream").unwrap()
    }

    fn create(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        sys::open_beneath(parent.as_fd(), name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// A file that another writer removes before it is locked is made again, and that one is locked.
    #[test]
    fn a_file_that_is_not_locked_yet_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let parent = open(folder.path());
        let (own, other) = (staged("0"), staged("1"));
        let made = Cell::new(0);
        let file = own.make(&parent, || {
            let file = create(&parent, &own.name)?;
            made.set(made.get() + 1);
            if made.get() < 3 {
                other.sweep(&parent, FILE);
            }
            Ok(Some(file))
        });
        let file = file.unwrap();
        assert_eq!(
            (made.get(), is_named(&parent, &own.name, &file)),
            (3, Ok(true))
        );
        other.sweep(&parent, FILE);
        assert_eq!(is_named(&parent, &own.name, &file), Ok(true));
        drop(file);
        other.sweep(&parent, FILE);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }

    /// A writer that opened a leftover does not remove the file that has the name by then.
    #[test]
    fn a_new_file_of_the_same_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let parent = open(folder.path());
        let own = staged("0");
        let left = create(&parent, &own.name).unwrap();
        remove_entry(&parent, &own.name);
        let file = own.make(&parent, || create(&parent, &own.name).map(Some));
        let file = file.unwrap();
        remove_left(&parent, &own.name, &left);
        assert_eq!(is_named(&parent, &own.name, &file), Ok(true));
    }

    /// Only what a stream of this host has left under this name goes, names that are cut included.
    #[test]
    fn what_others_left_stays() {
        let long = "n".repeat(250);
        let own = |name: &str, id: &str| Staged::new(name.as_bytes(), id, "stream").unwrap().name;
        let id = format!("{DIGITS}-7");
        let other_host = Staged::of_host(b"out", &id, "stream", "0123456789abcdef").unwrap();
        for (name, left, goes) in [
            ("out", own("out", &id), true),
            (&long, own(&long, &id), true),
            ("out", own("other", &id), false),
            ("out", other_host.name, false),
            (
                "out",
                Staged::new(b"out", &id, "folder").unwrap().name,
                false,
            ),
            ("out", temporary_name(b"out", &id).unwrap(), false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let parent = open(folder.path());
            drop(create(&parent, &left).unwrap());
            let writer = Staged::new(name.as_bytes(), &format!("{DIGITS}-8"), "stream").unwrap();
            writer.sweep(&parent, FILE);
            let text = String::from_utf8_lossy(&left);
            assert_eq!(
                std::fs::read_dir(&folder).unwrap().count() == 0,
                goes,
                "{text}"
            );
        }
    }
}
