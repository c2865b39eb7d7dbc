//! Sources of bytes: what one is. Files and trees are in [`crate::FileSource`], memory in [`crate::PatternSource`] and [`crate::BufferSource`].

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_model::{CHUNK_LEN, Layout, Piece, Range};

use crate::error::StoreError;

/// Something that holds bytes of the data space and is read by many threads at once.
pub trait Source: Send + Sync {
    /// Fills `buf` with the bytes from the data-space `offset` on; they may lie in several objects.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] when the layout lacks a byte, [`StoreError::Shrank`] when a file
    /// does, else what reading reported. The contents of `buf` are then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// The longest single extent from the data-space `offset` on, at most `len` bytes (at least 1). Empty memory where the bytes are to be read
    /// by [`Source::read_at`].
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] when the layout lacks `offset`, else what opening reported.
    fn extent(&self, offset: u64, len: u64) -> Result<Extent<'_>, StoreError>;

    /// The bytes in memory, when the source has them there in one piece: saves the copy that a
    /// checksum over the bytes would otherwise need. `None` is always a right answer.
    fn mapped(&self, _offset: u64, _len: u64) -> Option<&[u8]> {
        None
    }

    /// Whether bytes have to be read from files: then [`extent`](Self::extent) gives none in memory, and nothing is mapped.
    fn is_of_files(&self) -> bool {
        false
    }

    /// Whether these bytes, at least one, are known to be zero without being read. `false` is always a right answer.
    fn is_hole(&self, _range: Range) -> bool {
        false
    }

    /// Whether these bytes are all of a small file, of [`SMALL_FILE_MAX`] at most: reading many of them at the same time takes less time where
    /// each call waits for a disk or a server.
    fn is_small_file(&self, _range: Range) -> bool {
        false
    }

    /// The file that has a byte, for messages. `None` where none has.
    fn path_at(&self, _offset: u64) -> Option<PathBuf> {
        None
    }

    /// The number of the file system that its files are on: reads of one that does not answer do not return. Folders below on which others are mounted count as
    /// the one above. `None`: it is not known, or there are no files.
    fn file_system(&self) -> Option<u64> {
        None
    }

    /// Files that have grown since they were scanned and were read as far as they were then: the paths of the first `most`, below the root, and how
    /// many more there are.
    fn grown(&self, _most: usize) -> (Vec<Vec<u8>>, u64) {
        (Vec::new(), 0)
    }
}

/// What a source does with a file that has grown since it was scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Growth {
    /// It has changed.
    #[default]
    Refused,
    /// It is read as far as it was then: what programs append to is never at rest.
    LeftOut,
}

/// Longer files are no small ones: the kernel reads them ahead, and the answers that opening takes are little of their time. The largest unit.
pub const SMALL_FILE_MAX: u64 = CHUNK_LEN;

/// Bytes of a source in one piece.
#[derive(Debug)]
pub enum Extent<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// In a file, so that they can leave by `sendfile`. A file that shrank gives fewer.
    File {
        /// The open file; use positioned calls, the offset is shared by all threads.
        file: Arc<File>,
        /// Where in the file the bytes start.
        offset: u64,
        /// How many there are.
        len: u64,
    },
}

/// The piece at `offset` cut to at most `len` bytes, or the error that names the first byte lacking.
pub(crate) fn locate(layout: &Layout, offset: u64, len: u64) -> Result<Piece, StoreError> {
    let lacking = || StoreError::NotHeld {
        range: Range {
            start: offset,
            end: offset.saturating_add(len),
        },
    };
    let mut piece = layout.locate(offset).ok_or_else(lacking)?;
    piece.range.end = piece.range.end.min(offset.saturating_add(len));
    Ok(piece)
}
