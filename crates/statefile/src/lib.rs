//! Files in which values are kept from one process to the next: JSON that people can read, private to its
//! owner.
//!
//! They are a convenience, so nothing about them may stop the work they are about: a missing file is an empty one, and
//! a damaged one starts again. A file that does not show that it is one of these is never replaced: its path may be a
//! slip of the user's. Processes that write at once take turns by a lock beside the file; each reads, changes and
//! renames, so that a reader finds an old file or a new one, never half of one. A file of a later format is left alone.

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Another process holds the lock for milliseconds; one that hangs must not hold this one.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// One kind of file.
#[derive(Clone, Copy, Debug)]
pub struct StateFile {
    /// Its format, which is the number called `version` in the file.
    pub version: u32,
    /// The name in it of what is kept, as `nodes`: a file without that is of another kind.
    pub key: &'static str,
    /// Longest file that is read, in bytes.
    pub len_max: u64,
    /// How long the lock is waited for: [`LOCK_PATIENCE`].
    pub lock_patience: Duration,
    /// What becomes of a damaged file, as `rates are measured again`.
    pub anew: &'static str,
    /// How to do without one of a later format, as `--speeds PATH uses another file`.
    pub instead: &'static str,
    /// What it means that nothing could be written, as `speeds of this transfer are not remembered`.
    pub lost: &'static str,
}

/// Why what is kept cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The system does not let us.
    #[error("cannot read {}: {reason}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// It is not one of these files, as far as that can be seen.
    #[error(
        "{} is no file that this program has written ({reason}); it is left alone ({instead})",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What shows that.
        reason: String,
        /// How to do without it.
        instead: &'static str,
    },
    /// It is one of these files, but not whole.
    #[error("{} is damaged ({reason}); {anew}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What becomes of it.
        anew: &'static str,
    },
    /// A later version wrote it.
    #[error(
        "{} is of format {version}, which this version cannot read; it is left alone ({instead})",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
        /// How to do without it.
        instead: &'static str,
    },
    /// It cannot be replaced.
    #[error("cannot write {}: {reason}; {lost}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
        /// What that means.
        lost: &'static str,
    },
}

impl StateFile {
    /// Reads what is kept; nothing when there is no file.
    ///
    /// # Errors
    /// All but [`StateError::Write`].
    pub fn load<T: Default + DeserializeOwned>(&self, path: &Path) -> Result<T, StateError> {
        let read = |reason| StateError::Read {
            path: path.to_owned(),
            reason,
        };
        let damaged = |reason: String| StateError::Damaged {
            path: path.to_owned(),
            reason,
            anew: self.anew,
        };
        // A pipe of that name would be waited for.
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => return Err(read(io::Error::other("not a file"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            _ => {}
        }
        let mut text = Vec::new();
        let file = File::open(path).map_err(read)?;
        file.take(self.len_max + 1)
            .read_to_end(&mut text)
            .map_err(read)?;
        let foreign = |reason: String| StateError::Foreign {
            path: path.to_owned(),
            reason,
            instead: self.instead,
        };
        if text.len() as u64 > self.len_max {
            return Err(foreign(format!("longer than {} bytes", self.len_max)));
        }
        // What a crash leaves of a file that was just written: nobody's contents.
        if text.iter().all(|byte| *byte == 0) {
            return Err(damaged("no contents".to_owned()));
        }
        #[derive(serde::Deserialize)]
        struct Version {
            version: u32,
        }
        let version = serde_json::from_slice(&text).map(|Version { version }| version);
        // Also what is cut off shows what it was.
        if !version
            .as_ref()
            .is_ok_and(|version| *version > self.version)
            && !self.is_shown_by(&text)
        {
            return Err(foreign(format!("it does not hold \"{}\"", self.key)));
        }
        let version = version.map_err(|error| damaged(error.to_string()))?;
        if version > self.version {
            return Err(StateError::Newer {
                path: path.to_owned(),
                version,
                instead: self.instead,
            });
        }
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))
    }

    /// Whether a text shows that it is, or was, a file of this kind.
    fn is_shown_by(&self, text: &[u8]) -> bool {
        let key = format!("\"{}\"", self.key);
        let begins = text.iter().find(|byte| !byte.is_ascii_whitespace());
        begins == Some(&b'{') && text.windows(key.len()).any(|found| found == key.as_bytes())
    }

    /// Changes what is kept. Folders that lack are made, for their owner alone.
    ///
    /// Waits for other writers, at most [`lock_patience`](Self::lock_patience); after that nothing is written, since what
    /// another writes meanwhile would be lost.
    ///
    /// # Errors
    /// All but [`StateError::Damaged`]: a damaged file is replaced. One of another kind or of a later format is not.
    pub fn update<T: Default + Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        change: impl FnOnce(&mut T),
    ) -> Result<(), StateError> {
        let write = |reason| StateError::Write {
            path: path.to_owned(),
            reason,
            lost: self.lost,
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
        let _lock = self.lock(path).map_err(write)?;
        let mut kept = match self.load(path) {
            Ok(kept) => kept,
            Err(StateError::Damaged { .. }) => T::default(),
            Err(error) => return Err(error),
        };
        change(&mut kept);
        let mut text = serde_json::to_vec_pretty(&kept).map_err(|e| write(e.into()))?;
        text.push(b'\n');
        replace(path, &text).map_err(write)
    }

    /// The lock beside the file; `None` when the file system has none.
    fn lock(&self, path: &Path) -> io::Result<Option<File>> {
        let beside = beside(path, ".lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&beside)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if start.elapsed() < self.lock_patience => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("another process holds {}", beside.display()),
                    ));
                }
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
    }
}

/// Seconds of Unix time, for the age of what is kept; 0 for a clock before that.
#[must_use]
pub fn now_unix() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.map_or(0, |passed| passed.as_secs())
}

fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// Puts a new file in the place of the old one at once.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}", uuid::Uuid::now_v7()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    // Not synced: a crash may cost what was learnt, which is not worth a wait at the end of the work.
    let done = file
        .write_all(text)
        .and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

#[cfg(test)]
mod tests;
