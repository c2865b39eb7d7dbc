//! Zeros take no space in a sink: stretches of blocks without a bit set become holes.
//!
//! So holes of a source stay holes, whatever lane carried their zeros. Where a file system has no holes the zeros are written. Of a source
//! the system says where holes are, so that they need not be read.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use ropewalk_model::are_zeros;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::Operation;
use crate::file_systems::FileSystem;

/// Holes begin and end at multiples of this: the block of most file systems, and a page.
const BLOCK_LEN: u64 = 4096;

/// Shorter stretches of zeros are written: each hole splits what the file system reserved for the file, and costs two calls.
const HOLE_LEN_MIN: u64 = 64 << 10;

/// Bytes that are copied at a time.
const COPY_LEN: usize = 1 << 20;

/// What a copy could not do.
#[derive(Debug)]
pub(crate) struct CopyFailed {
    /// Reading or writing.
    pub operation: Operation,
    /// What the system reported.
    pub error: io::Error,
}

/// Copies what follows in a file to the beginning of another, an empty one; how many bytes. Long stretches of zeros become holes.
pub(crate) fn copy(mut from: &File, to: &File) -> Result<u64, CopyFailed> {
    let failed = |operation| move |error| CopyFailed { operation, error };
    let (mut buffer, mut at) = (vec![0; COPY_LEN], 0);
    loop {
        let read = from.read(&mut buffer).map_err(failed(Operation::Read))?;
        if read == 0 {
            return Ok(at);
        }
        write(to, &buffer[..read], at).map_err(failed(Operation::Write))?;
        at += read as u64;
    }
}

/// Whether so many bytes of a file, from an offset on, are in a hole or were never written: they are zeros, and the file has them.
pub(crate) fn is_one(file: &File, offset: u64, len: u64) -> bool {
    let end = offset.saturating_add(len);
    let Ok(stat) = rustix::fs::fstat(file) else {
        return false;
    };
    // Units of `st_blocks`, whatever the block of the file system.
    let stored = (stat.st_blocks as u64).saturating_mul(512);
    let file_len = stat.st_size as u64;
    if stored >= file_len || end > file_len {
        return false;
    }
    if !FileSystem::of(file).is_some_and(FileSystem::knows_holes) {
        return false;
    }
    // All calls of this program say where they read, so that the offset of the file is nobody's.
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data >= end,
        Err(errno) => errno == Errno::NXIO,
    }
}

/// Writes bytes at an offset of a file, long stretches of zeros as holes. The file is afterwards as long as after a plain write.
pub(crate) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut at = 0;
    for zeros in zeros(bytes, offset) {
        file.write_all_at(&bytes[at..zeros.start], offset + at as u64)?;
        at = zeros.end;
        let (start, end) = (offset + zeros.start as u64, offset + zeros.end as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(file, flags, start, end - start) {
            // A hole does not make a file longer. Setting its length could cut off what another thread writes behind it.
            Ok(()) if file.metadata()?.len() < end => {
                let last = zeros.end - BLOCK_LEN as usize;
                file.write_all_at(&bytes[last..zeros.end], offset + last as u64)?;
            }
            Ok(()) => {}
            Err(_) => file.write_all_at(&bytes[zeros.clone()], start)?,
        }
    }
    file.write_all_at(&bytes[at..], offset + at as u64)
}

/// Stretches of whole blocks of zeros, in order.
fn zeros(bytes: &[u8], offset: u64) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let first = (offset.next_multiple_of(BLOCK_LEN) - offset) as usize;
    let mut at = first.min(bytes.len());
    for block in bytes[at..].chunks_exact(BLOCK_LEN as usize) {
        let end = at + block.len();
        if are_zeros(block) {
            match found.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => found.push(at..end),
            }
        }
        at = end;
    }
    found.retain(|zeros| zeros.len() as u64 >= HOLE_LEN_MIN);
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const BLOCK: usize = BLOCK_LEN as usize;
    const HOLE: usize = HOLE_LEN_MIN as usize;

    /// Only whole aligned blocks are taken, and only long stretches of them.
    #[test]
    fn long_stretches_of_blocks_are_found() {
        let one = |bytes: &[u8], offset| match zeros(bytes, offset).as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        let mut bytes = vec![0; 3 * HOLE];
        assert_eq!(one(&bytes, 0), Some(0..3 * HOLE));
        assert_eq!(one(&bytes, 1), Some(BLOCK - 1..3 * HOLE - 1));
        assert!(zeros(&bytes[..HOLE], 1).is_empty());
        bytes[HOLE + BLOCK] = 1;
        bytes[3 * HOLE - 1] = 1;
        assert_eq!(
            zeros(&bytes, 0),
            [0..HOLE + BLOCK, HOLE + 2 * BLOCK..3 * HOLE - BLOCK]
        );
        assert!(zeros(&bytes[..10], 5).is_empty());
    }

    /// Only what is a hole as a whole is one; not beyond the end of the file, and not in a file without holes.
    #[test]
    fn holes_are_found() {
        let file = tempfile::tempfile().unwrap();
        let (from, to) = (8 * HOLE as u64, 9 * HOLE as u64);
        file.write_all_at(&[7; HOLE], from).unwrap();
        file.set_len(16 * HOLE as u64).unwrap();
        assert!(is_one(&file, 0, from));
        assert!(is_one(&file, to, 7 * HOLE as u64));
        assert!(!is_one(&file, 0, from + 1));
        assert!(!is_one(&file, from, 1));
        assert!(!is_one(&file, to - 1, 2));
        assert!(!is_one(&file, to, 7 * HOLE as u64 + 1));
        assert!(!is_one(&file, u64::MAX, 1));
        // Written to, and not on the disk yet.
        file.write_all_at(&[0; HOLE], 0).unwrap();
        assert!(!is_one(&file, 0, HOLE as u64));
        let full = tempfile::tempfile().unwrap();
        full.write_all_at(&[0; HOLE], 0).unwrap();
        assert!(!is_one(&full, 0, HOLE as u64));
    }

    /// A file reads as after plain writes, whatever was there before, is as long, and has no blocks for long stretches of zeros.
    #[test]
    fn zeros_take_no_space() {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = vec![7; 16 * HOLE];
        write(&file, &bytes, 0).unwrap();
        let full = file.metadata().unwrap().blocks();
        bytes[HOLE..9 * HOLE].fill(0);
        bytes[12 * HOLE + 1..].fill(0);
        write(&file, &bytes, 0).unwrap();
        let mut read = vec![1; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
        let few = file.metadata().unwrap().blocks();
        let plain = tempfile::tempfile().unwrap();
        write(&plain, &bytes, 0).unwrap();
        assert_eq!(plain.metadata().unwrap().len(), bytes.len() as u64);
        plain.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
        // Of 16 parts 12 are zeros; a file system may need a few blocks for its own lists.
        assert!(few < full / 2, "{few} of {full} blocks");
    }
}
