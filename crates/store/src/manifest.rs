//! The description of a tree: what it holds, in an order and an encoding that every host agrees on.
//!
//! A manifest is data like any other (it is fetched from a holder over lanes); the master sees only
//! its hash, its length and its counts. A copy of one file is a manifest with one entry.
//!
//! Owners, groups, extended attributes and hard links are recorded where the scan was asked to; without that each name of a file
//! becomes a file of its own. So are devices, pipes and sockets; without that they are counted.

use ropewalk_model::journal::Version as FileVersion;
use ropewalk_model::{Layout, LayoutError, Piece, Range};

mod bundle;
mod codec;
mod compare;
mod kept;
mod left_out;
mod listed;
mod names;
mod scan;
mod scanning;
mod special;
mod walkers;

pub use codec::{COMPONENT_LEN_MAX, ManifestError, PATH_LEN_MAX};
pub(crate) use kept::Reader;
pub use kept::{Attribute, Keep, Kept, Owner};
pub use left_out::LeftOut;
pub use listed::FileList;
pub use scan::Scan;
pub use scanning::Scanning;
pub(crate) use special::is_special;
pub use special::{Device, Special};

/// The entries of one tree, or the one file.
///
/// Invariant of one from [`Manifest::scan`] or [`Manifest::decode`]: entries are sorted by
/// the bytes of their paths and unique, the first has the empty path and is no link,
/// each other entry's parent is a directory entry, and the lengths add up to less than 2^64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The entries, in canonical order.
    pub entries: Vec<Entry>,
}

/// One file, directory, symbolic link, special file, or further name of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the root, components separated by `/`, any bytes but NUL; the root's is empty.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits, at most `0o7777`; of the made-up root of a bundle [`MODE_OF_NONE`].
    pub mode: u32,
    /// Modification time, whole seconds since 1970; negative before.
    pub mtime_seconds: i64,
    /// Nanoseconds after `mtime_seconds`, below 10^9.
    pub mtime_nanoseconds: u32,
    /// What the scan recorded of it beyond these; the root of a bundle has nothing.
    pub kept: Kept,
}

/// The mode of a root that is no folder: its things go into the destination, which keeps its own mode and time.
pub const MODE_OF_NONE: u32 = 0o100_000;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Bytes in it.
        len: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// What it says, which need not exist; never followed.
        target: Vec<u8>,
    },
    /// A further name of a file. Mode and time are the file's; owner and attributes are recorded of the file alone.
    HardLink {
        /// The path of the file: an earlier entry.
        to: Vec<u8>,
    },
    /// A pipe, socket or device.
    Special(Special),
}

impl EntryKind {
    /// What it is, in words for people.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Directory => "directory",
            Self::Symlink { .. } => "symbolic link",
            Self::HardLink { .. } => "hard link",
            Self::Special(special) => special.in_words(),
        }
    }
}

impl Entry {
    /// Bytes of the data space that the entry takes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self.kind {
            EntryKind::File { len } => len,
            EntryKind::Directory
            | EntryKind::Symlink { .. }
            | EntryKind::HardLink { .. }
            | EntryKind::Special(_) => 0,
        }
    }

    /// What tells it from other versions of the same file.
    pub(crate) fn version(&self) -> FileVersion {
        FileVersion {
            len: self.len(),
            mtime_seconds: self.mtime_seconds,
            mtime_nanoseconds: self.mtime_nanoseconds,
        }
    }

    /// Whether it is the made-up root of a bundle, which has no mode and no time.
    #[must_use]
    pub fn is_of_none(&self) -> bool {
        self.mode == MODE_OF_NONE
    }

    /// Whether the entry takes no bytes of the data space.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Manifest {
    /// BLAKE3 of [`Manifest::encode`]: equal for equal trees, times and modes included.
    #[must_use]
    pub fn root_hash(&self) -> [u8; 32] {
        *blake3::hash(&self.encode()).as_bytes()
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.entries
            .iter()
            .map(Entry::len)
            .fold(0, u64::saturating_add)
    }

    /// How many entries are files or links, as destinations count them: all but folders.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        let is_folder = |entry: &&Entry| entry.kind == EntryKind::Directory;
        (self.entries.len() - self.entries.iter().filter(is_folder).count()) as u64
    }

    /// Whether its things lie side by side in no folder of their own: see [`Manifest::bundle`].
    #[must_use]
    pub fn is_bundle(&self) -> bool {
        self.entries.first().is_some_and(Entry::is_of_none)
    }

    /// The first entry that a scan that keeps this does not record: the list was not made as asked.
    #[must_use]
    pub fn beyond(&self, keep: Keep) -> Option<&Entry> {
        let is_beyond = |entry: &&Entry| {
            let is_kind = match entry.kind {
                EntryKind::HardLink { .. } => !keep.links,
                EntryKind::Special(_) => !keep.specials,
                EntryKind::File { .. } | EntryKind::Directory | EntryKind::Symlink { .. } => false,
            };
            let is_owned = entry.kept.owner.is_some() && !keep.owners;
            is_kind || is_owned || !entry.kept.attributes.is_empty() && !keep.attributes
        };
        self.entries.iter().find(is_beyond)
    }

    /// The names that lie side by side below the root; those of a bundle are what was asked for.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let paths = self.entries.iter().map(|entry| &entry.path[..]);
        paths.filter(|path| !path.is_empty() && !path.contains(&b'/'))
    }

    /// Whether this is one file and no tree.
    #[must_use]
    pub fn is_single_file(&self) -> bool {
        matches!(self.entries.first(), Some(Entry { path, kind: EntryKind::File { .. }, .. }) if path.is_empty())
    }

    /// Whether this is one file, or special file, and no tree.
    #[must_use]
    pub fn is_single(&self) -> bool {
        let root = self.entries.first();
        root.is_some_and(|root| root.kind != EntryKind::Directory)
    }

    /// Where the bytes lie: the files one after another from `base` on, in the order of the
    /// entries; the object's number is the index of its entry. Cost O(entries).
    ///
    /// # Errors
    /// [`LayoutError::SpaceOverflow`] when the data would end beyond 2^64.
    pub fn layout(&self, base: u64) -> Result<Layout, LayoutError> {
        let mut pieces = Vec::new();
        let mut start = base;
        for (index, entry) in self.entries.iter().enumerate() {
            let overflow = || LayoutError::SpaceOverflow {
                base,
                len: self.data_len(),
            };
            let end = start.checked_add(entry.len()).ok_or_else(overflow)?;
            let object = u32::try_from(index).map_err(|_| overflow())?;
            if !entry.is_empty() {
                pieces.push(Piece {
                    range: Range { start, end },
                    object,
                    object_offset: 0,
                });
            }
            start = end;
        }
        Layout::new(pieces)
    }

    /// The entry with this path. Cost O(log entries).
    #[must_use]
    pub fn entry(&self, path: &[u8]) -> Option<&Entry> {
        let at = self
            .entries
            .binary_search_by(|entry| entry.path.as_slice().cmp(path))
            .ok()?;
        self.entries.get(at)
    }
}

/// The path of the folder that holds `path`, `None` for the root.
pub(crate) fn parent_of(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    let cut = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    Some(&path[..cut])
}

/// The name of an entry in its folder.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    let cut = path.iter().rposition(|byte| *byte == b'/');
    cut.map_or(path, |cut| &path[cut + 1..])
}

#[cfg(test)]
mod tests;
