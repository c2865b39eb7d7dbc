//! What can go wrong between a data space and a disk, with the path, what was being done, and what to do next.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ropewalk_model::{LayoutError, Range, format_bytes};
use rustix::io::Errno;

use crate::buffer::BufferError;
use crate::manifest::ManifestError;
use crate::sys;
use crate::version::Change;
use crate::wildcard::MATCHES_MAX;

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
/// escaped, so that a name with a line break or with bytes that are not UTF-8 is on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No space, or the user's quota is used up.
    #[error(
        "cannot {operation} {shown}: the disk is full, at least {} more are needed; \
         free space there or choose another destination", format_bytes(*missing), shown = shown(path))]
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
        "cannot {operation} {shown}: {}; check the owner and mode of the file and of its folder, \
         or run Ropewalk on that host as a user with permission", errno_text(*errno), shown = shown(path))]
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
        "cannot {operation} {shown}: the file system is read-only; choose another destination or mount it for writing", shown = shown(path))]
    ReadOnly {
        /// What could not be changed.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// Something that should exist does not.
    #[error(
        "cannot {operation} {shown}: no such file or directory; check the name, or whether it was removed meanwhile", shown = shown(path))]
    Vanished {
        /// What is not there.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A source file is shorter than it was.
    #[error(
        "{shown} is shorter than when it was scanned: it was truncated or rewritten; copy again when nothing writes to it", shown = shown(path))]
    Shrank {
        /// The source file.
        path: PathBuf,
    },
    /// A source file is another one, or another version, than the one scanned or opened first.
    #[error(
        "{shown} {}, so its bytes may not fit the others; copy again when nothing changes it",
        how.in_words(), shown = shown(path)
    )]
    Changed {
        /// The source file.
        path: PathBuf,
        /// What is not as it was.
        how: Change,
    },
    /// A source file ends before the bytes asked from it, and did so from the start.
    #[error(
        "{shown} has {len} bytes, but its bytes up to {wanted} are asked for; end the range within the file", shown = shown(path)
    )]
    TooShort {
        /// The source file.
        path: PathBuf,
        /// Bytes it should at least hold.
        wanted: u64,
        /// Bytes it holds.
        len: u64,
    },
    /// Parts are asked of something that is no file.
    #[error(
        "{shown} is a {kind}, and only a file has ranges of bytes; name a file, or copy it as a whole", shown = shown(path)
    )]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it is, in words.
        kind: &'static str,
    },
    /// A file whose contents the system makes when they are read.
    #[error(
        "{shown} has no size before it is read (the system makes its contents), so it cannot be copied as a file; \
         use cat, as in: cat FILE > COPY", shown = shown(path)
    )]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// A source may not be read.
    #[error(
        "{shown}: permission denied: make it readable, leave it out, or run Ropewalk on that host as a user with \
         permission to read it", shown = shown(path)
    )]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
    },
    /// The file system has space, but takes no more files.
    #[error(
        "cannot {operation} {shown}: the file system has no inode left for one more file; \
         remove files there or choose another destination", shown = shown(path)
    )]
    NoInodes {
        /// The file that could not be made.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// The destination takes two names for one.
    #[error(
        "{shown} and {} are one file on this file system, which ignores case or changes names; rename one, or choose \
         another destination", shown(other), shown = shown(path)
    )]
    SameFile {
        /// The temporary path made second.
        path: PathBuf,
        /// The one it leads to.
        other: PathBuf,
    },
    /// A file would be replaced by a part that is shorter than it.
    #[error(
        "{shown} exists and has {len} bytes, more than the {wanted} that would replace it; remove it, name another \
         place, or write the range into it with --into OFFSET", shown = shown(path)
    )]
    Longer {
        /// The final name.
        path: PathBuf,
        /// Bytes it has.
        len: u64,
        /// Bytes it would have.
        wanted: u64,
    },
    /// Something was put under the final name while the copy was written.
    #[error("{shown} was made by another program meanwhile, and was not there at the start; run the command again to merge into it", shown = shown(path))]
    TakenMeanwhile {
        /// The final name.
        path: PathBuf,
    },
    /// A file of the destination that was the same as the source's at the start is another one at the end.
    #[error("{shown} was the same file as in the source at the start and has changed since; run the command again", shown = shown(path))]
    ChangedAtDestination {
        /// The final name.
        path: PathBuf,
    },
    /// The name of a folder that has to be a new one is taken.
    #[error("{shown} exists, and a new folder is to be written; remove it or choose another name", shown = shown(path))]
    NotNew {
        /// The final name.
        path: PathBuf,
    },
    /// The file into which a range was written was changed by another program meanwhile.
    #[error(
        "{shown} was changed while a range was written into a copy of it; it is left as it is, do it again", shown = shown(path)
    )]
    Overtaken {
        /// The final name.
        path: PathBuf,
    },
    /// Something else was put under the final name while the file was written.
    #[error(
        "{shown} was made, replaced or changed meanwhile, by another program or another node that writes there; it is left as it is, \
         do it again and give each writer a name of its own", shown = shown(path)
    )]
    ReplacedMeanwhile {
        /// The final name.
        path: PathBuf,
    },
    /// Nothing has a name that a pattern means.
    #[error(
        "no file matches {shown}; check the pattern (match a leading dot explicitly; write \\* for a literal star)", shown = shown(pattern)
    )]
    NoMatch {
        /// The pattern as asked.
        pattern: PathBuf,
    },
    /// A pattern means more paths than fit into one request.
    #[error("more than {MATCHES_MAX} files match {shown}; copy their folder instead", shown = shown(pattern))]
    TooManyMatches {
        /// The pattern as asked.
        pattern: PathBuf,
    },
    /// `~user` of a user that this host does not know.
    #[error(
        "~{user}: this host has no user {user:?}, or no home folder of that user; write the path instead"
    )]
    NoUser {
        /// What follows the tilde.
        user: String,
    },
    /// A path leads to a place the agent was not given.
    #[error(
        "{shown} is outside the folders this agent may use ({}); start the agent with a --root that holds it",
        list(roots), shown = shown(path))]
    OutsideRoot {
        /// The path as asked.
        path: PathBuf,
        /// The folders given, resolved.
        roots: Vec<PathBuf>,
    },
    /// A path lies under a root, but only under one given for reading.
    #[error(
        "{shown} may only be read ({}); start the agent with --root DIR:rw to write there",
        list(roots), shown = shown(path))]
    RootReadOnly {
        /// The path as asked.
        path: PathBuf,
        /// The folders given, resolved.
        roots: Vec<PathBuf>,
    },
    /// A source has nothing in it, and all that the destination has there would be removed.
    #[error(
        "the source of {shown} has nothing in it, or nothing that the filters leave, which is also what a disk that is not mounted looks like: --delete would remove all that \
         the destination has there; leave out --delete, or remove it yourself", shown = shown(path)
    )]
    EmptySource {
        /// The folder of the destination.
        path: PathBuf,
    },
    /// A copy that is to be whole or not at all has a file that its destination cannot hold.
    #[error("{shown} cannot be copied: {reason}; exclude it, or leave out --atomic to copy the rest", shown = shown(path))]
    CannotHold {
        /// Where it belongs.
        path: PathBuf,
        /// Why, in words.
        reason: String,
    },
    /// The destination has nothing that the source has, and all of it would be removed.
    #[error(
        "{shown} has nothing that the source has: --delete would remove {} and all else in it; write {shown}/ to copy the source into it \
         under its own name, or a slash behind the source to make it a mirror of the source", shown(first), shown = path.display()
    )]
    NothingInCommon {
        /// The folder of the destination.
        path: PathBuf,
        /// The first name that would be removed.
        first: PathBuf,
    },
    /// Contents were to be compared with those of the source, and cannot be.
    #[error("cannot compare contents with those of the source: {reason}")]
    NotCompared {
        /// What stands in the way, in words.
        reason: String,
    },
    /// Another program holds a lease on the file and kept it longer than an open waits.
    #[error(
        "cannot {operation} {shown}: another program holds a lease on it and did not give it up within {} s; \
         close the file there, or try again later",
        sys::LEASE_WAIT.as_secs(), shown = shown(path))]
    Leased {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A part of the path is not a directory.
    #[error("cannot {operation} {shown}: a part of the path is not a directory; check the path", shown = shown(path))]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A symbolic link stands where only a plain name is followed.
    #[error(
        "cannot {operation} {shown}: a symbolic link is part of the path, and links below a root or \
         a temporary name are never followed; give the resolved path or remove the link", shown = shown(path))]
    SymbolicLink {
        /// The path.
        path: PathBuf,
        /// What was being done.
        operation: Operation,
    },
    /// A symbolic link whose target is missing.
    #[error(
        "{shown} is a symbolic link to {target}, which does not exist; remove the link, or name its target", shown = shown(path), target = shown(target))]
    LinkWithoutTarget {
        /// The link.
        path: PathBuf,
        /// What it leads to, as it stands in the link.
        target: PathBuf,
    },
    /// A device, pipe or socket.
    #[error(
        "{shown} is a {kind}, which has no contents to copy; name a file or folder, or copy the {kind} itself with -a", shown = shown(path))]
    SpecialFile {
        /// The path.
        path: PathBuf,
        /// What it is, in words.
        kind: &'static str,
    },
    /// The final name is taken by something that would not be replaced.
    #[error(
        "{shown} exists and is a {found} where a {wanted} is to be written; remove it{into}", shown = shown(path), into = into(found))]
    Exists {
        /// The final name.
        path: PathBuf,
        /// What is there, in words.
        found: &'static str,
        /// What was to be written, in words.
        wanted: &'static str,
    },
    /// What is to be compared is of two kinds.
    #[error("{shown} is a {found}, and the source is a {wanted}: these cannot be compared", shown = shown(path))]
    Unlike {
        /// The destination.
        path: PathBuf,
        /// What it is, in words.
        found: &'static str,
        /// What the source is, in words.
        wanted: &'static str,
    },
    /// Something of another kind has the name of an entry of a tree, and is not removed for it.
    #[error(
        "{shown} is a {found} where a {wanted} is to be written{rest}", shown = shown(path), rest = way(found, kept.as_ref()))]
    InTheWay {
        /// The final name.
        path: PathBuf,
        /// What is there, in words.
        found: &'static str,
        /// What was to be written, in words.
        wanted: &'static str,
        /// Where it would be removed: what of it stays, itself or something below it, and why.
        kept: Option<(PathBuf, String)>,
    },
    /// The folder that should hold the destination is missing.
    #[error("cannot write {shown}: its folder {folder} does not exist; create it first", shown = shown(path), folder = shown(parent))]
    ParentMissing {
        /// The destination.
        path: PathBuf,
        /// The missing folder.
        parent: PathBuf,
    },
    /// A temporary file is shorter than the data written to it, so it was not renamed into place.
    #[error(
        "{shown} holds only {len} of {wanted} bytes: it was removed or cut while it was written; run the command again", shown = shown(path))]
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
    /// Another transfer to the same place has not ended.
    #[error(
        "an earlier transfer to {shown} is still ending, after {seconds} s: it syncs what it has received and gives files their \
         names, so nothing was begun; run the command again when `ropewalk status PATH` does not show it any more, or with a longer \
         --wait", shown = shown(path))]
    StillEnding {
        /// Where both write.
        path: PathBuf,
        /// How long this one has waited.
        seconds: u64,
    },
    /// The sink was committed or discarded before.
    #[error("this sink has ended, it was committed or discarded; make a new one")]
    Ended,
    /// Two parts of a set hold the same path.
    #[error(
        "parts {first} and {second} both hold {shown}; rename one, or copy replicas with --sources replicas", shown = shown(path))]
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
    #[error("{shown} does not name a file or folder; end the path with a name", shown = shown(path))]
    NoName {
        /// The path as given.
        path: PathBuf,
    },
    /// A tree cannot be described.
    #[error("{shown}: {reason}", shown = shown(path))]
    Manifest {
        /// The tree's root.
        path: PathBuf,
        /// What is wrong.
        reason: ManifestError,
    },
    /// A buffer of a program cannot be used.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The pieces do not fit the data space.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Anything else the operating system reports.
    #[error("cannot {operation} {shown}: {}", errno_text(*errno), shown = shown(path))]
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

    /// As [`StoreError::from_errno`] where something new could not be made in `folder`: without inodes no file can be
    /// made though bytes are free.
    pub(crate) fn from_create(path: impl Into<PathBuf>, folder: impl AsFd, errno: Errno) -> Self {
        let operation = Operation::Create;
        if errno == Errno::NOSPC && sys::lacks_inodes(folder) {
            let path = path.into();
            return Self::NoInodes { path, operation };
        }
        Self::from_errno(operation, path, errno)
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

    /// Whether there was no space for new bytes; not where a sync found that, as older bytes may be lost then.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::DiskFull { operation, .. } if *operation != Operation::Sync)
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
            | Self::TooShort { path, .. }
            | Self::NoFile { path, .. }
            | Self::NoSize { path }
            | Self::EmptySource { path }
            | Self::NothingInCommon { path, .. }
            | Self::NoInodes { path, .. }
            | Self::SameFile { path, .. }
            | Self::CannotHold { path, .. }
            | Self::Longer { path, .. }
            | Self::Overtaken { path }
            | Self::ReplacedMeanwhile { path }
            | Self::TakenMeanwhile { path }
            | Self::ChangedAtDestination { path }
            | Self::NotNew { path }
            | Self::Changed { path, .. }
            | Self::OutsideRoot { path, .. }
            | Self::RootReadOnly { path, .. }
            | Self::Leased { path, .. }
            | Self::NotADirectory { path, .. }
            | Self::SymbolicLink { path, .. }
            | Self::LinkWithoutTarget { path, .. }
            | Self::SpecialFile { path, .. }
            | Self::Exists { path, .. }
            | Self::InTheWay { path, .. }
            | Self::Unlike { path, .. }
            | Self::ParentMissing { path, .. }
            | Self::StillEnding { path, .. }
            | Self::Incomplete { path, .. }
            | Self::Conflict { path, .. }
            | Self::NoName { path }
            | Self::Unreadable { path }
            | Self::Manifest { path, .. }
            | Self::Io { path, .. } => Some(path),
            Self::NotHeld { .. }
            | Self::NotKept { .. }
            | Self::NotCompared { .. }
            | Self::Ended
            | Self::BadId { .. }
            | Self::NoMatch { .. }
            | Self::TooManyMatches { .. }
            | Self::NoUser { .. }
            | Self::Buffer(_)
            | Self::Layout(_) => None,
        }
    }

    /// Whether the same request may succeed later, though the request itself stays as it is: space is made, a file system answers
    /// again. What only another request, or another mode of a file, changes does not pass.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::DiskFull { .. }
                | Self::NoInodes { .. }
                | Self::Leased { .. }
                | Self::StillEnding { .. }
                | Self::Io { .. }
                | Self::NotCompared { .. }
        )
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

/// Longest path, as it is printed, that is shown whole.
const SHOWN_MAX: usize = 512;

/// A path between quotes with everything escaped that a terminal would act on; the middle of a very long one is left out.
fn shown(path: &Path) -> String {
    let whole = format!("{path:?}");
    if whole.len() <= SHOWN_MAX {
        return whole;
    }
    let half = SHOWN_MAX / 2;
    let (mut head, mut tail) = (half, whole.len() - half);
    while !whole.is_char_boundary(head) {
        head -= 1;
    }
    while !whole.is_char_boundary(tail) {
        tail += 1;
    }
    let (head, tail) = (&whole[..head], &whole[tail..]);
    format!("{head}...{tail} ({} bytes)", path.as_os_str().len())
}

/// What else can be done about a final name that is taken.
fn into(found: &str) -> &'static str {
    match found {
        "directory" => {
            ", choose another name, or, with copy, put and get, end the destination with / to copy into it"
        }
        "device" => " or choose another name; null: as a destination discards what it receives",
        _ => " or choose another name",
    }
}

/// What can be done about something that is in the way.
fn way(found: &str, kept: Option<&(PathBuf, String)>) -> String {
    match (kept, found) {
        (Some((path, why)), _) => {
            format!(", and cannot be removed, as {} stays: {why}", shown(path))
        }
        (None, "file" | "directory" | "symbolic link") => {
            "; remove it, or copy with --delete, which removes it if all sources are read".into()
        }
        (None, _) => "; remove it".into(),
    }
}

fn list(roots: &[PathBuf]) -> String {
    if roots.is_empty() {
        return "none was given".to_owned();
    }
    let quoted: Vec<String> = roots.iter().map(|root| shown(root)).collect();
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

    /// Space is made and a server returns; a name, a mode and a kind stay as they are.
    #[test]
    fn some_reasons_pass() {
        for (errno, passes) in [
            (Errno::NOSPC, true),
            (Errno::DQUOT, true),
            (Errno::IO, true),
            (Errno::STALE, true),
            (Errno::ACCESS, false),
            (Errno::NOENT, false),
            (Errno::ROFS, false),
        ] {
            let error = StoreError::from_errno(Operation::Create, "file", errno);
            assert_eq!(error.may_pass(), passes, "{error}");
        }
    }

    /// What is no folder cannot be copied into.
    #[test]
    fn only_folders_are_copied_into() {
        let words = |found, wanted| {
            let path = "/x".into();
            StoreError::Exists {
                path,
                found,
                wanted,
            }
            .to_string()
        };
        assert!(words("directory", "file").ends_with("end the destination with / to copy into it"));
        assert!(words("file", "directory").ends_with("; remove it or choose another name"));
    }

    /// A path is printed escaped, and a very long one not whole.
    #[test]
    fn paths_are_shown_within_bounds() {
        assert_eq!(shown(Path::new("a\u{1b}[31mb\n")), r#""a\u{1b}[31mb\n""#);
        let long = "é".repeat(3000);
        let words = StoreError::NoSize {
            path: long.clone().into(),
        }
        .to_string();
        assert!(words.len() < 1000, "{}", words.len());
        assert!(
            words.contains("...") && words.contains("(6000 bytes)"),
            "{words}"
        );
    }
}
