//! What a journal says, byte by byte, and what a later transfer makes of it. Pure: files, locks and syncs are the driver's.
//!
//! A journal is a file beside the temporary name of a copy. It records what of the copy is on stable storage:
//!
//! ```text
//!  header   "ropewalk journal 4\n", the mark of the host (16), "1" where all hosts know of its locks, else "0"
//!  record   length of the payload (4), payload, first 8 bytes of its BLAKE3
//!    file     1, number (4), size (8), modification time (8 + 4), inode (8), path
//!    stretch  2, number of a file (4), offset (8), length (8)
//!    unit     3, as a stretch, BLAKE3 of these bytes (32)
//!    gone     4, number of a file (4): nothing of it is safe any more
//!    ending   5, 0 (4): its transfer is about to end
//!    row      6, as a file; before the path: offset in the file less offset in the source (8), bytes wanted (8)
//! ```
//!
//! Numbers are little endian. Paths, sizes and times are those of the manifest: a record means the same whatever else the tree
//! holds. A file that rows of a specification write has bytes of several sources, each under a number of its own: `row` describes one of
//! them by the last component of its path, and offsets of its stretches and units are those of the file that is written, so whatever else a
//! specification has shifts nothing. The inode is that of the file that has the bytes, 0 where the file system gives a file another number later.
//!
//! * [`Records`] makes records, [`decode`] reads them up to the first that is cut or damaged, [`Header`] is what precedes them.
//! * [`parts_of`]: which records a sync is worth. [`joined`], [`Recorded::adoptable`], [`keep_largest`]: what is adopted.
//! * [`Takeover`]: in which order that is moved, so that a process that is killed at any moment loses nothing.
//! * [`is_worth_keeping`]: whether a transfer that ends leaves it for a later one.

mod adoption;
mod record;

pub use adoption::{
    Adopt, KEPT_MIN, KEPT_MIN_FAILED, Seen, Step, Takeover, is_worth_keeping, joined, keep_largest,
};
pub use record::{
    CHECKSUM_LEN, HEADER_LEN, HOST_MARK_LEN, Header, HeaderError, Locks, PATH_LEN_MAX, Recorded,
    Records, Safe, Shift, Unit, Version, decode, ending, parts_of, pieces, records_len,
};
