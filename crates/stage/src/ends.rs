//! Where blocks begin and end: zeros or a file, nowhere or a file.

use std::fs::File;
use std::io::{Read as _, Write as _};

use crate::error::StageError;

/// What the first process deals.
pub(crate) enum Source {
    /// Zeros, so many bytes.
    Zeros(u64),
    /// The rest of a file.
    File(File, u64),
}

impl Source {
    /// Fills a buffer, of which all but the last bytes are used up; gives how many bytes it holds, 0 at the end.
    ///
    /// * `is_clean`: the buffer holds zeros where it was never written.
    pub fn fill(&mut self, buffer: &mut [u8], is_clean: bool) -> Result<usize, StageError> {
        let (Self::Zeros(left) | Self::File(_, left)) = self;
        let len = usize::try_from(*left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        *left -= len as u64;
        let missing = *left;
        match self {
            Self::Zeros(_) if is_clean => {}
            Self::Zeros(_) => buffer[..len].fill(0),
            Self::File(file, _) => {
                file.read_exact(&mut buffer[..len])
                    .map_err(|source| match source.kind() {
                        std::io::ErrorKind::UnexpectedEof => StageError::Shortened {
                            missing: missing + len as u64,
                        },
                        _ => StageError::File {
                            doing: "reading",
                            source,
                        },
                    })?;
            }
        }
        Ok(len)
    }
}

/// What the last process does with blocks.
pub(crate) enum Sink {
    /// Drops them.
    Null,
    /// Appends them to a file.
    File(File),
}

impl Sink {
    /// Uses a block.
    pub fn write(&mut self, content: &[u8]) -> Result<(), StageError> {
        let Self::File(file) = self else {
            return Ok(());
        };
        file.write_all(content).map_err(|source| StageError::File {
            doing: "writing",
            source,
        })
    }

    /// Makes all of it durable.
    pub fn sync(&mut self) -> Result<(), StageError> {
        let Self::File(file) = self else {
            return Ok(());
        };
        file.sync_data().map_err(|source| StageError::File {
            doing: "syncing",
            source,
        })
    }
}
