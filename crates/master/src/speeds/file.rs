//! The file in which speeds are kept: JSON that people can read, private to its owner.
//!
//! It is a convenience, so nothing about it may stop a transfer: a missing file is an empty one, and a damaged one
//! is learnt anew. Masters that end at once take turns by a lock beside it; each reads, merges and renames, so
//! that a reader finds an old file or a new one, never half of one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Memory, Observations, VERSION};

/// Longest file that is read: four times what [`super::ENTRIES_MAX`] nodes and pairs take.
const FILE_LEN_MAX: u64 = 8 << 20;

/// Another master holds the lock for milliseconds; one that hangs must not hold this one.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why what is remembered cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LoadError {
    /// The system does not let us.
    #[error("cannot read {}: {reason}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// It is not what we write.
    #[error("{} is damaged ({reason}); speeds are learnt anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A later version wrote it.
    #[error(
        "{} is of format {version}, which this version cannot read; it is left alone (--speeds PATH uses another file)",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// It cannot be replaced.
    #[error("cannot write {}: {reason}; speeds of this transfer are not remembered", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
}

/// Reads what is remembered; nothing when there is no file.
pub(crate) fn load(path: &Path) -> Result<Memory, LoadError> {
    let read = |reason| LoadError::Read {
        path: path.to_owned(),
        reason,
    };
    let damaged = |reason: String| LoadError::Damaged {
        path: path.to_owned(),
        reason,
    };
    // A pipe of that name would be waited for.
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(read(io::Error::other("not a file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
        _ => {}
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(read)?;
    file.take(FILE_LEN_MAX + 1)
        .read_to_end(&mut text)
        .map_err(read)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(damaged(format!("longer than {FILE_LEN_MAX} bytes")));
    }
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if version > VERSION {
        return Err(LoadError::Newer {
            path: path.to_owned(),
            version,
        });
    }
    serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))
}

/// Adds what a transfer has shown to the file.
///
/// Waits at most [`LOCK_PATIENCE`] for another master; then the last writer wins.
pub(crate) fn record(
    path: &Path,
    observations: &Observations,
    now_unix: u64,
) -> Result<(), LoadError> {
    let write = |reason| LoadError::Write {
        path: path.to_owned(),
        reason,
    };
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(folder);
        made.map_err(write)?;
    }
    // Held until the end of this function.
    let _lock = lock(path).map_err(write)?;
    let mut memory = match load(path) {
        Ok(memory) => memory,
        Err(LoadError::Damaged { .. }) => Memory::default(),
        Err(error) => return Err(error),
    };
    memory.learn(observations, now_unix);
    let mut text = serde_json::to_vec_pretty(&memory).map_err(|e| write(e.into()))?;
    text.push(b'\n');
    replace(path, &text).map_err(write)
}

fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// The lock beside the file; `None` when the file system has none or somebody holds it for too long.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(beside(path, ".lock"))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Puts a new file in the place of the old one at once.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}", uuid::Uuid::now_v7()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    // Not synced: a crash may cost the hints, which is not worth a wait at the end of a transfer.
    let done = file
        .write_all(text)
        .and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}
