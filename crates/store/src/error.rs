//! What can go wrong between a data space and a disk, with the path, what was being done, and what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ropewalk_model::{LayoutError, Range};
use rustix::io::Errno;

use crate::manifest::ManifestError;
use crate::sys;

/// What was being done when an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opening what should exist.
    Open,
    /// Making a new file, directory or symbolic link.
    Create,
    /// Reading bytes or a link's target.
    Read,
    /// Writing bytes.
    Write,
    /// Reserving space before the first byte.
    Allocate,
    /// Bringing bytes or names to stable storage.
    Sync,
    /// Giving the final name.
    Rename,
    /// Removing a temporary name.
    Remove,
    /// Reading a directory.
    List,
    /// Reading length, kind and times.
    Inspect,
    /// Setting mode and times.
    SetMetadata,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write to",
            Self::Allocate => "reserve space for",
            Self::Sync => "sync",
            Self::Rename => "rename to",
            Self::Remove => "remove",
            Self::List => "list",
            Self::Inspect => "inspect",
            Self::SetMetadata => "set mode and times of",
        })
    }
}

/// Why a source, sink, manifest or root could not do its work.
///
/// Cloneable, because a store that failed returns its first error again. Paths print quoted and
/// escaped, so that a name with a line break or with bytes that are not UTF-8 stays one word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No space, or the user's quota is used up.
    #[error(
        "cannot {operation} {path:?}: the disk is full, at least {missing} more bytes are needed; \
         free space there or choose another destination"
    )]
    DiskFull {
        /// The file that did not fit.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
        /// Bytes that certainly did not fit; more may be needed after them.
        missing: u64,
    },
    /// The operating system says no.
    #[error(
        "cannot {operation} {path:?}: {}; check the owner and mode of the file and of its folder, \
         or run the agent as a user who may", errno_text(*errno)
    )]
    Permission {
        /// What was refused.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
        /// The operating system's error number.
        errno: i32,
    },
    /// The file system is mounted read-only.
    #[error(
        "cannot {operation} {path:?}: the file system is read-only; choose another destination or mount it for writing"
    )]
    ReadOnly {
        /// What could not be changed.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// Something that should exist does not.
    #[error(
        "cannot {operation} {path:?}: no such file or directory; check the name, or whether it was removed meanwhile"
    )]
    Vanished {
        /// What is not there.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A source file is shorter than the bytes asked from it.
    #[error(
        "{path:?} holds {len} bytes where {wanted} were promised; it shrank, or its row in the specification is too long"
    )]
    Shrank {
        /// The source file.
        path: PathBuf,
        /// Bytes it should at least hold.
        wanted: u64,
        /// Bytes it holds.
        len: u64,
    },
    /// A file of a scanned tree is another one, or another version, than the one scanned.
    #[error(
        "{path:?} changed since the tree was scanned, its bytes would not fit the others; copy again when nothing writes to it"
    )]
    Changed {
        /// The source file.
        path: PathBuf,
    },
    /// A path leads to a place the agent was not given.
    #[error(
        "{path:?} is outside the folders this agent may use ({}); start the agent with a --root that holds it",
        list(roots)
    )]
    OutsideRoot {
        /// The path as asked.
        path: PathBuf,
        /// The folders given, resolved.
        roots: Vec<PathBuf>,
    },
    /// A path lies under a root, but only under one given for reading.
    #[error(
        "{path:?} may only be read ({}); start the agent with --root DIR:rw to write there",
        list(roots)
    )]
    RootReadOnly {
        /// The path as asked.
        path: PathBuf,
        /// The folders given, resolved.
        roots: Vec<PathBuf>,
    },
    /// Another program holds a lease on the file and kept it longer than an open waits.
    #[error(
        "cannot {operation} {path:?}: another program holds a lease on it and did not give it up within {} s; \
         close the file there, or try again later",
        sys::LEASE_WAIT.as_secs()
    )]
    Leased {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A part of the path is not a directory.
    #[error("cannot {operation} {path:?}: a part of the path is not a directory; check the path")]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A symbolic link stands where only a plain name is followed.
    #[error(
        "cannot {operation} {path:?}: a symbolic link stands on the way, and links below a root or \
         a temporary name are never followed; give the resolved path or remove the link"
    )]
    SymbolicLink {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A device, pipe or socket.
    #[error(
        "{path:?} is a {kind}, and only files, directories and symbolic links are copied; move it out of the tree"
    )]
    SpecialFile {
        /// The path.
        path: PathBuf,
        /// What it is, in words.
        kind: &'static str,
    },
    /// The final name is taken by something that would not be replaced.
    #[error(
        "{path:?} exists and is a {found} where a {wanted} is to be written; remove it, choose another name, or end the destination with / to copy into it"
    )]
    Exists {
        /// The final name.
        path: PathBuf,
        /// What is there, in words.
        found: &'static str,
        /// What was to be written, in words.
        wanted: &'static str,
    },
    /// The folder that should hold the destination is missing.
    #[error("cannot write {path:?}: its folder {parent:?} does not exist; create it first")]
    ParentMissing {
        /// The destination.
        path: PathBuf,
        /// The missing folder.
        parent: PathBuf,
    },
    /// A temporary file is shorter than the data promised for it, so it was not given its name.
    #[error(
        "{path:?} holds only {len} of {wanted} bytes, so it keeps its temporary name; fetch the missing ranges again"
    )]
    Incomplete {
        /// The temporary file.
        path: PathBuf,
        /// Bytes it holds.
        len: u64,
        /// Bytes it should hold.
        wanted: u64,
    },
    /// The store does not hold the bytes, by its layout.
    #[error("bytes {range} are not held here; plan the transfer again")]
    NotHeld {
        /// Offsets of the data space.
        range: Range,
    },
    /// The sink keeps nothing, or no longer keeps these bytes, so they cannot be read back.
    #[error(
        "bytes {range} cannot be read back from this sink, it does not keep them; use a file, or leave out --verify sink"
    )]
    NotKept {
        /// Offsets of the data space.
        range: Range,
    },
    /// The sink was committed or discarded before.
    #[error("this sink has ended, it was committed or discarded; make a new one")]
    Ended,
    /// Two parts of a set hold the same path.
    #[error(
        "parts {first} and {second} both hold {path:?}; rename one, or copy replicas with --sources replicas"
    )]
    Conflict {
        /// The path, relative to the parts' roots.
        path: PathBuf,
        /// Index of the part that has it first.
        first: usize,
        /// Index of the other part.
        second: usize,
    },
    /// The identification of a transfer cannot be part of a file name.
    #[error("{id:?} cannot be part of a temporary name; use 1 to 64 letters, digits, - or _")]
    BadId {
        /// The text as given.
        id: String,
    },
    /// A path cannot name a file to be read or written.
    #[error("{path:?} does not name a file or folder; end the path with a name")]
    NoName {
        /// The path as given.
        path: PathBuf,
    },
    /// A tree cannot be described.
    #[error("{path:?}: {reason}")]
    Manifest {
        /// The tree's root.
        path: PathBuf,
        /// What is wrong.
        reason: ManifestError,
    },
    /// The pieces do not fit the data space.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Anything else the operating system reports.
    #[error("cannot {operation} {path:?}: {}", errno_text(*errno))]
    Io {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
        /// The operating system's error number.
        errno: i32,
    },
}

impl StoreError {
    /// The error for what the operating system reported about a path.
    pub(crate) fn from_errno(operation: Operation, path: impl Into<PathBuf>, errno: Errno) -> Self {
        let path = path.into();
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::DiskFull {
                path,
                operation,
                missing: 1,
            },
            Errno::ACCESS | Errno::PERM => Self::Permission {
                path,
                operation,
                errno: errno.raw_os_error(),
            },
            Errno::ROFS => Self::ReadOnly { path, operation },
            Errno::NOENT => Self::Vanished { path, operation },
            Errno::NOTDIR => Self::NotADirectory { path, operation },
            Errno::LOOP => Self::SymbolicLink { path, operation },
            Errno::AGAIN if matches!(operation, Operation::Open | Operation::Create) => {
                Self::Leased { path, operation }
            }
            _ => Self::Io {
                path,
                operation,
                errno: errno.raw_os_error(),
            },
        }
    }

    /// As [`StoreError::from_errno`], for the standard library's calls.
    pub(crate) fn from_io(
        operation: Operation,
        path: impl Into<PathBuf>,
        error: &io::Error,
    ) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Self::from_errno(operation, path, errno)
    }

    /// The same error with the bytes that did not fit, when the disk is full.
    pub(crate) fn with_missing(self, bytes: u64) -> Self {
        match self {
            Self::DiskFull {
                path, operation, ..
            } => Self::DiskFull {
                path,
                operation,
                missing: bytes.max(1),
            },
            other => other,
        }
    }

    /// The path the error is about, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::DiskFull { path, .. }
            | Self::Permission { path, .. }
            | Self::ReadOnly { path, .. }
            | Self::Vanished { path, .. }
            | Self::Shrank { path, .. }
            | Self::Changed { path }
            | Self::OutsideRoot { path, .. }
            | Self::RootReadOnly { path, .. }
            | Self::Leased { path, .. }
            | Self::NotADirectory { path, .. }
            | Self::SymbolicLink { path, .. }
            | Self::SpecialFile { path, .. }
            | Self::Exists { path, .. }
            | Self::ParentMissing { path, .. }
            | Self::Incomplete { path, .. }
            | Self::Conflict { path, .. }
            | Self::NoName { path }
            | Self::Manifest { path, .. }
            | Self::Io { path, .. } => Some(path),
            Self::NotHeld { .. }
            | Self::NotKept { .. }
            | Self::Ended
            | Self::BadId { .. }
            | Self::Layout(_) => None,
        }
    }

    /// Whether the same call may succeed later without anybody acting: the machine was short of
    /// open files or memory, a network file system hiccuped, or another program kept a lease.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let errno = match self {
            Self::Leased { .. } => return true,
            Self::Io { errno, .. } => errno,
            _ => return false,
        };
        let passing = [
            Errno::AGAIN,
            Errno::INTR,
            Errno::BUSY,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::STALE,
            Errno::TIMEDOUT,
        ];
        passing.iter().any(|known| known.raw_os_error() == *errno)
    }
}

fn errno_text(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn list(roots: &[PathBuf]) -> String {
    if roots.is_empty() {
        return "none was given".to_owned();
    }
    let quoted: Vec<String> = roots.iter().map(|root| format!("{root:?}")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease is called by its name, and may be gone later.
    #[test]
    fn a_lease_is_named() {
        let error = StoreError::from_errno(Operation::Open, "file", Errno::AGAIN);
        assert!(error.is_retryable());
        let words = error.to_string();
        assert!(
            words.contains("\"file\"") && words.contains("lease"),
            "{words}"
        );
    }
}
