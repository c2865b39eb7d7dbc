//! Where bytes go, and the sink that keeps none.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_model::{Range, RangeSet};

use crate::error::StoreError;

/// Something that takes bytes of the data space from many threads at once.
///
/// Bytes may be written in any order and again. A sink that failed to write stays failed: every later
/// call gives the first error again, because what it reported safe before may be all there is.
pub trait Sink: Send + Sync {
    /// Writes bytes from the data-space `offset` on; they may span several objects. Not yet on
    /// stable storage when it returns, see [`Sink::sync`].
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] when the layout lacks a byte (nothing is written then, and the sink is
    /// not failed), [`StoreError::DiskFull`], or what writing reported.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Reads what was written, from the disk where the sink can. Meant for after [`Sink::sync`].
    ///
    /// # Errors
    /// [`StoreError::NotKept`] when the sink keeps nothing, else what reading reported.
    fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Reads what was written, from memory where it is there: for other nodes that want the same bytes.
    ///
    /// # Errors
    /// As [`Sink::read_back`].
    fn look(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.read_back(offset, buf)
    }

    /// [`Sink::look`] is called after the commit, too: files that are open then stay so.
    fn keep_open(&self) {}

    /// The longest single extent of a file from the data-space `offset` on, at most `len` bytes (at
    /// least 1), for lanes that move bytes into it themselves. `None` when there is no file.
    ///
    /// Whoever writes there calls [`Sink::written`] afterwards, or [`Sink::sync`] does not know of it.
    ///
    /// # Errors
    /// As [`Sink::write_at`].
    fn extent(&self, _offset: u64, _len: u64) -> Result<Option<SinkExtent>, StoreError> {
        Ok(None)
    }

    /// Tells that bytes were written through [`Sink::extent`].
    ///
    /// # Errors
    /// As [`Sink::write_at`].
    fn written(&self, _offset: u64, _len: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// Brings everything written before the call to stable storage, whoever wrote it. Blocks for
    /// as long as the disk takes; writers are not held up. Nothing to do for memory.
    ///
    /// # Errors
    /// What the disk reported; nothing written since the last success may then be called safe.
    fn sync(&self) -> Result<(), StoreError>;

    /// The object that the byte at a data-space offset belongs to, as people name it (below the tree's folder; empty when the
    /// tree is that file), and the stretch of it around the offset. `None` where nothing has a name.
    fn object_at(&self, _offset: u64) -> Option<(String, Range)> {
        None
    }

    /// Further names of the object that the byte at a data-space offset belongs to (hard links), as [`Sink::object_at`] gives the first.
    fn further_names(&self, _offset: u64) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that are not to be written. They are part of the layout.
    fn present(&self) -> Present {
        Present::default()
    }

    /// Takes down that bytes are on stable storage: from a call of [`Sink::sync`] that began after they were written. What is
    /// taken down a later transfer need not write again. Nothing is taken down once the sink has ended.
    ///
    /// * `units`: the hashes of some of them.
    fn record(&self, _safe: &RangeSet, _units: &[Unit]) {}

    /// Whether files get their names before [`Sink::commit`]: those for which [`Sink::make_ready`] and [`Sink::name_ready`] are called. A
    /// write that finds no space fails nothing else then: it may be made again.
    fn names_early(&self) -> bool {
        false
    }

    /// Gives files that lack no byte the mode, time and all else that they are to have. [`Sink::sync`] follows, then [`Sink::record`],
    /// then [`Sink::name_ready`].
    ///
    /// * `safe`: bytes of the data space that were written, and that nothing writes again.
    fn make_ready(&self, _safe: &RangeSet) {}

    /// Gives the files that were made ready before the last sync their names; how many. What cannot be named then is left to
    /// [`Sink::commit`], which reports the reason.
    fn name_ready(&self) -> u64 {
        0
    }

    /// Where files lie that a later transfer can go on with, and how many of their bytes are safe; known when the transfer has
    /// ended.
    fn kept_partial(&self) -> Vec<(PathBuf, u64)> {
        Vec::new()
    }

    /// Ends a complete transfer: bytes synced, modes and times set, final names given and made
    /// durable. Only when every wanted byte is written; on one node a path. A second call does nothing.
    ///
    /// # Errors
    /// [`StoreError::ChangedAtDestination`], and nothing has its name; else what stood in the way. Temporary files that have no
    /// final name yet are kept.
    fn commit(&self) -> Result<(), StoreError>;

    /// Ends a transfer that lacks bytes of this sink: as [`Sink::commit`] for the files that lack none; temporary files of the
    /// others are removed. Whether any file has its name. Nothing more is written after the call.
    ///
    /// * `missing`: bytes of the data space that were not written, or that nothing vouches for.
    ///
    /// # Errors
    /// As [`Sink::commit`].
    fn commit_whole_files(&self, missing: &RangeSet) -> Result<bool, StoreError> {
        if missing.is_empty() {
            return self.commit().map(|()| true);
        }
        self.discard();
        Ok(false)
    }

    /// What [`Sink::commit`], and [`Sink::name_ready`] before it, found at the destination and did there.
    fn landed(&self) -> Landed {
        Landed::default()
    }

    /// While [`Sink::commit`] removes what no source has: how many names are gone, and how many there were.
    fn removing(&self) -> Option<(u64, u64)> {
        None
    }

    /// Removes temporary files, as far as possible; nothing to do after [`Sink::commit`].
    fn discard(&self);

    /// The transfer has failed, and is not ended because its user asked for that: less than usual is worth keeping for a later one.
    fn keep_more(&self) {}

    /// Bytes that holders refused: their files changed, or cannot be read. These are not worth keeping.
    fn give_up(&self, _bytes: &RangeSet) {}

    /// The sink is about to end: a transfer that begins now waits for that. Whether such a one can know of it; what gives no names to
    /// files need not be known.
    fn note_ending(&self) -> bool {
        true
    }

    /// Ends a transfer of which no file is to have its name. Where much is safe, it stays under its temporary name for a later
    /// transfer; else as [`Sink::discard`], which is for contents that are wrong.
    fn set_aside(&self) {
        self.discard();
    }

    /// Another node began to commit the same files, and is gone: some may have their final names already. Nothing more is
    /// written.
    fn take_over(&self) {}

    /// Temporary names that there may be something under, at most `most`.
    fn temporary(&self, _most: usize) -> Vec<PathBuf> {
        Vec::new()
    }
}

pub use ropewalk_model::journal::Unit;

/// Bytes that are there before anything is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Of files that the destination has, the same.
    pub unchanged: RangeSet,
    /// Of files that are to be written, under their temporary names, and safe.
    pub adopted: RangeSet,
    /// Hashes of these, as far as they are known.
    pub units: Vec<Unit>,
    /// How many files and links the destination has, the same; some have no bytes.
    pub files: u64,
    /// How many it has that are not the same and stay; `unchanged` has their bytes, too.
    pub passed_files: u64,
    /// How many bytes these have in the source.
    pub passed_bytes: u64,
    /// Of files that the destination cannot hold; `unchanged` has these, too, and [`Landed::unplaced`] the names.
    pub refused: RangeSet,
    /// How many of the adopted bytes are chunks that files of the destination have, not ones that an earlier transfer wrote.
    pub taken_bytes: u64,
    /// Files that an earlier transfer left and that have not the bytes any more that it recorded: in order, the first ones, and how many
    /// more there are.
    pub wrong: Vec<Wrong>,
    /// See `wrong`.
    pub wrong_more: u64,
}

/// A file that has not the bytes any more that an earlier transfer recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Below the destination; empty for a copy of one file.
    pub path: Vec<u8>,
    /// How many bytes of it: they are to be written again.
    pub bytes: u64,
}

impl Present {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> RangeSet {
        self.unchanged.union(&self.adopted)
    }
}

/// What a commit found at the destination, and what it could not keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landed {
    /// The folder that stood there, when a tree was merged into it.
    pub merged: Option<PathBuf>,
    /// Files and links with names that were not there before.
    pub added_files: u64,
    /// Files and links that took the place of others.
    pub replaced_files: u64,
    /// Set-user and set-group bits of the source that nothing at the destination has.
    pub bits_not_kept: u64,
    /// Entries whose owner or group was to be kept and is another one.
    pub owners_not_kept: u64,
    /// Extended attributes that could not be set.
    pub attributes_not_kept: u64,
    /// Further names of files that are files of their own: the file system cannot link.
    pub links_not_kept: u64,
    /// Pipes, sockets and devices that could not be made.
    pub specials_not_kept: u64,
    /// Files and links that were there before, the same, and stay as they were.
    pub unchanged_files: u64,
    /// Files and links that were there before, others than in the source, and stay as they were.
    pub passed_files: u64,
    /// What no source has and was removed.
    pub removed: Removed,
    /// Names that could not be given, each below the destination, with the reason; the first ones. Of a folder all that is in it has no name either.
    pub unplaced: Vec<(Vec<u8>, String)>,
    /// How many more there are.
    pub unplaced_more: u64,
    /// Why a list of checksums lacks a file or could not be written, each with the path; the first ones.
    pub not_listed: Vec<String>,
    /// How many more there are.
    pub not_listed_more: u64,
}

/// What no source has, and was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files and links.
    pub files: u64,
    /// Folders.
    pub folders: u64,
    /// How long that took.
    pub time: Duration,
    /// Names that could not be removed, each below the destination, with the reason; the first ones.
    pub failed: Vec<(Vec<u8>, String)>,
    /// How many more there are.
    pub failed_more: u64,
}

impl Removed {
    /// Names that could not be removed.
    pub(crate) fn told(&self) -> u64 {
        self.failed.len() as u64 + self.failed_more
    }
}

/// Space for bytes in a file of a sink.
#[derive(Debug, Clone)]
pub struct SinkExtent {
    /// The open file; use positioned calls, the offset is shared by all threads.
    pub file: Arc<File>,
    /// Where in the file the bytes go.
    pub offset: u64,
    /// How many go there.
    pub len: u64,
}

/// `null:`: takes everything and keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullSink;

impl Sink for NullSink {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        Err(StoreError::NotKept {
            range: Range {
                start: offset,
                end: offset.saturating_add(buf.len() as u64),
            },
        })
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn discard(&self) {}
}
