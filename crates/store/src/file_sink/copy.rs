//! Copying between files of one host in pieces, so that it ends soon after the transfer that needs it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use ropewalk_model::Range;

/// Bytes that are copied before the next look whether they are still wanted: a quarter of a second on a disk of 64 MiB/s, as a transfer that
/// ends waits one second for what it makes. A multiple of all block sizes, so that file systems that copy by reference do so with each piece.
const PIECE_LEN: u64 = 16 << 20;

/// Why a copy did not reach its end.
#[derive(Debug)]
pub(super) enum CopyError {
    /// It is no longer wanted.
    Over,
    Io(io::Error),
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Copies a range of one file to the same place of another: in the kernel, by reference where the file system can.
///
/// * `is_over`: asked before each piece.
///
/// Returns how many bytes were copied: fewer where the file ends before the range does.
pub(super) fn in_pieces(
    mut from: &File,
    mut to: &File,
    range: Range,
    is_over: &dyn Fn() -> bool,
) -> Result<u64, CopyError> {
    from.seek(SeekFrom::Start(range.start))?;
    to.seek(SeekFrom::Start(range.start))?;
    let mut copied = 0;
    while copied < range.len() {
        if is_over() {
            return Err(CopyError::Over);
        }
        // Pieces end where a piece of the file does.
        let at = range.start + copied;
        let len = (PIECE_LEN - at % PIECE_LEN).min(range.len() - copied);
        let piece = io::copy(&mut from.take(len), &mut to)?;
        copied += piece;
        if piece < len {
            break;
        }
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ropewalk_model::{Layout, Piece};

    use crate::{FileSink, SinkFile, StoreError};

    use super::*;

    /// A transfer that ends while a long file is copied leaves nothing of the copy, and the file as it was.
    #[test]
    fn a_copy_ends_with_its_transfer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let file = File::create(&path).unwrap();
        file.set_len(2 * PIECE_LEN + 1).unwrap();
        let piece = Piece {
            range: Range::new(0, 1),
            object: 0,
            object_offset: 0,
        };
        let make = |is_over: &dyn Fn() -> bool| {
            let layout = Layout::new(vec![piece]).unwrap();
            let files = vec![SinkFile {
                path: path.clone(),
                renames: true,
                mode: None,
                keeps_rest: true,
            }];
            FileSink::create_unless(layout, files, "1", false, is_over)
        };
        let looks = Cell::new(0);
        let error = make(&|| looks.replace(looks.get() + 1) == 1).unwrap_err();
        assert_eq!(error, StoreError::Ended);
        assert_eq!(looks.get(), 2);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(
            (left, file.metadata().unwrap().len()),
            (1, 2 * PIECE_LEN + 1)
        );
    }

    /// Pieces follow each other, from any place on; what ends early is not an endless copy.
    #[test]
    fn pieces_are_a_whole() {
        let [from, to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let start = PIECE_LEN - 7;
        crate::holes::write(&from, &bytes, start).unwrap();
        let range = Range::new(start, start + bytes.len() as u64 + 5);
        let copied = in_pieces(&from, &to, range, &|| false).unwrap();
        assert_eq!(copied, bytes.len() as u64);
        let mut read = Vec::new();
        (&to).seek(SeekFrom::Start(start)).unwrap();
        (&to).read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }
}
