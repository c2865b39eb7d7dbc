//! Where blocks begin and end: zeros, a file or records; nowhere, a file or partitions.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ropewalk_proto::stage::account::Account;

use crate::error::StageError;
use crate::parts::Parts;
use crate::records::Dealing;
use crate::setup::Ends;

/// Bytes that are written before they are synced, while more are written: what is left for the end is less than twice as much.
const SYNC_EVERY: u64 = 256 << 20;

/// What the first process deals.
pub(crate) enum Source {
    /// Zeros, so many bytes.
    Zeros(u64),
    /// The rest of a file.
    File(File, u64),
    /// Whole lines of a file.
    Lines(Lines<File>),
    /// Records of the files of a folder.
    Records(Box<Dealing>),
}

/// What became of a buffer.
pub(crate) enum Filled {
    /// It is a block of so many bytes.
    Block(usize),
    /// It is free; more blocks follow.
    Nothing,
    /// It is free; there are no more blocks.
    End,
}

fn reading(source: io::Error) -> StageError {
    StageError::File {
        doing: "reading",
        file: String::new(),
        source,
    }
}

impl Source {
    /// Fills a buffer, of which all but the last bytes (with lines: the last line) are used up.
    ///
    /// * `is_clean`: the buffer holds zeros where it was never written.
    pub fn fill(&mut self, buffer: &mut [u8], is_clean: bool) -> Result<Filled, StageError> {
        if let Self::Records(dealing) = self {
            return dealing.fill(buffer);
        }
        Ok(match self.fill_bytes(buffer, is_clean)? {
            0 => Filled::End,
            len => Filled::Block(len),
        })
    }

    /// Gives how many bytes the buffer holds, 0 at the end.
    fn fill_bytes(&mut self, buffer: &mut [u8], is_clean: bool) -> Result<usize, StageError> {
        let buffer_len = buffer.len();
        let take = |left: &mut u64| {
            let len = buffer_len.min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= len as u64;
            len
        };
        match self {
            Self::Zeros(left) => {
                let len = take(left);
                if !is_clean {
                    buffer[..len].fill(0);
                }
                Ok(len)
            }
            Self::File(file, left) => {
                let missing = *left;
                let len = take(left);
                match file.read_exact(&mut buffer[..len]) {
                    Ok(()) => Ok(len),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Err(StageError::Shortened { missing })
                    }
                    Err(error) => Err(reading(error)),
                }
            }
            Self::Lines(lines) => lines.fill(buffer),
            Self::Records(_) => Ok(0),
        }
    }
}

/// Blocks that end where lines end.
pub(crate) struct Lines<R> {
    from: R,
    // Bytes that are still to be read; one more than the file has where its last line has no end.
    left: u64,
    // Begin of a line whose end was not in the last block.
    rest: Vec<u8>,
    // Bytes in all blocks so far.
    dealt: u64,
}

impl<R: Read> Lines<R> {
    /// Of so many bytes, with the end of the last line.
    pub fn new(from: R, length: u64) -> Self {
        Self {
            from,
            left: length,
            rest: Vec::new(),
            dealt: 0,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, StageError> {
        let mut have = self.rest.len();
        buffer[..have].copy_from_slice(&self.rest);
        self.rest.clear();
        while have < buffer.len() && self.left > 0 {
            let room = (buffer.len() - have).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let count = match self.from.read(&mut buffer[have..have + room]) {
                Ok(0) if self.left == 1 && have > 0 && buffer[have - 1] != b'\n' => {
                    buffer[have] = b'\n';
                    1
                }
                Ok(0) => return Err(StageError::Shortened { missing: self.left }),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(reading(error)),
            };
            have += count;
            self.left -= count as u64;
        }
        // A file that has grown meanwhile goes on where its last line had no end.
        if self.left == 0 && have > 0 {
            buffer[have - 1] = b'\n';
        }
        let mut len = have;
        if self.left > 0 {
            let end = buffer.iter().rposition(|&byte| byte == b'\n');
            len = 1 + end.ok_or(StageError::LongLine {
                offset: self.dealt,
                longest: buffer.len(),
            })?;
            self.rest.extend_from_slice(&buffer[len..have]);
        }
        self.dealt += len as u64;
        Ok(len)
    }
}

/// What the last process does with blocks.
pub(crate) enum Sink {
    /// Drops them.
    Null,
    /// Appends them to a file.
    File(Appending),
    /// Writes their records into partitions.
    Parts(Box<Parts>),
}

/// A file that is written here and synced by a thread at the same time.
pub(crate) struct Appending {
    file: File,
    every: u64,
    // Bytes that no sync covers yet.
    unsynced: u64,
    syncing: Option<Syncing>,
}

struct Syncing {
    result: Receiver<io::Result<()>>,
    // Closed at its end.
    ended: PipeReader,
}

fn syncing(source: io::Error) -> StageError {
    StageError::File {
        doing: "syncing",
        file: String::new(),
        source,
    }
}

impl Appending {
    pub fn new(file: File) -> Self {
        Self {
            file,
            every: SYNC_EVERY,
            unsynced: 0,
            syncing: None,
        }
    }

    /// Begins to sync what is written, unless a sync runs.
    fn sync(&mut self) -> io::Result<()> {
        if self.syncing.is_some() {
            return Ok(());
        }
        let file = self.file.try_clone()?;
        let (ended, end) = io::pipe()?;
        let (sender, result) = channel();
        std::thread::Builder::new()
            .name("sync".into())
            .spawn(move || {
                let _ = sender.send(file.sync_data());
                drop(end);
            })?;
        self.unsynced = 0;
        self.syncing = Some(Syncing { result, ended });
        Ok(())
    }

    /// Takes note of a sync that has ended.
    fn look(&mut self) -> io::Result<()> {
        let Some(syncing) = &self.syncing else {
            return Ok(());
        };
        match syncing.result.try_recv() {
            Ok(result) => {
                self.syncing = None;
                result
            }
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("its thread failed")),
        }
    }
}

impl Sink {
    /// Whether it takes no block because the disk is behind by more than one sync.
    pub fn is_behind(&self) -> bool {
        match self {
            Self::File(file) => file.unsynced >= file.every && file.syncing.is_some(),
            Self::Null | Self::Parts(_) => false,
        }
    }

    /// Whether it takes a block now.
    pub fn is_ready(&mut self) -> Result<bool, StageError> {
        if let Self::File(file) = self {
            file.look().map_err(syncing)?;
        }
        Ok(!self.is_behind())
    }

    /// Uses a block.
    pub fn write(&mut self, content: &[u8]) -> Result<(), StageError> {
        let file = match self {
            Self::Null => return Ok(()),
            Self::Parts(parts) => return parts.write(content),
            Self::File(file) => file,
        };
        let written = file.file.write_all(content);
        written.map_err(|source| StageError::File {
            doing: "writing",
            file: String::new(),
            source,
        })?;
        file.unsynced += content.len() as u64;
        match file.unsynced >= file.every {
            true => file.sync().map_err(syncing),
            false => Ok(()),
        }
    }

    /// Goes on making all of it durable; true once it is.
    pub fn finish(&mut self) -> Result<bool, StageError> {
        let file = match self {
            Self::Null => return Ok(true),
            Self::Parts(parts) => return parts.finish(),
            Self::File(file) => file,
        };
        file.look().map_err(syncing)?;
        if file.unsynced > 0 {
            file.sync().map_err(syncing)?;
        }
        Ok(file.unsynced == 0 && file.syncing.is_none())
    }

    /// Readable once what goes on at its files has ended: a sync, or sorting.
    pub fn syncs(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => file.syncing.as_ref().map(|syncing| syncing.ended.as_fd()),
            Self::Parts(parts) => parts.ends(),
            Self::Null => None,
        }
    }
}

/// Of a shuffle: records that a process read or wrote, and the least and most of a partition.
pub(crate) fn records(ends: &Ends) -> (Account, u64, u64) {
    match ends {
        Ends::Source(Source::Records(dealing)) => (dealing.account(), 0, 0),
        Ends::Sink(Sink::Parts(parts)) => parts.records(),
        _ => Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str, length: u64, longest: usize) -> Result<Vec<String>, StageError> {
        let mut lines = Lines::new(text.as_bytes(), length);
        let mut buffer = vec![b'?'; longest];
        let mut blocks = Vec::new();
        loop {
            let len = lines.fill(&mut buffer)?;
            if len == 0 {
                return Ok(blocks);
            }
            blocks.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
        }
    }

    /// Blocks are whole lines, as many as fit; the last line gets an end.
    #[test]
    fn blocks_end_with_lines() {
        let of = |text: &str, longest| blocks(text, text.len() as u64, longest).unwrap();
        assert_eq!(of("a\nbb\nccc\n", 5), ["a\nbb\n", "ccc\n"]);
        assert_eq!(of("a\nbb\nccc\n", 4), ["a\n", "bb\n", "ccc\n"]);
        assert_eq!(of("\n\n\n", 2), ["\n\n", "\n"]);
        assert!(of("", 2).is_empty());
        for longest in [2, 3, 100] {
            let blocks = blocks("a\nb", 4, longest).unwrap();
            assert_eq!(blocks.concat(), "a\nb\n");
        }
        // One byte more is wanted than there was at the start, and another is there now.
        assert_eq!(blocks("a\nbcd\n", 4, 100).unwrap(), ["a\nb\n"]);
    }

    /// A line that fits no block is named by its offset; a file that was cut is an error.
    #[test]
    fn long_lines_are_errors() {
        for (text, length, offset) in [("a\nbbbb\n", 7, 2), ("aaaa", 5, 0), ("a\nbbbbc\n", 8, 2)] {
            let error = blocks(text, length, 4).unwrap_err();
            assert!(
                matches!(error, StageError::LongLine { offset: at, longest: 4 } if at == offset),
                "{error}"
            );
            assert!(error.to_string().contains("--block"));
        }
        let error = blocks("a\n", 9, 4).unwrap_err();
        assert!(
            matches!(error, StageError::Shortened { missing: 7 }),
            "{error}"
        );
    }

    /// What is written is synced on the way, so that little is left for the end.
    #[test]
    fn files_are_synced_as_they_grow() {
        let file = tempfile::tempfile().unwrap();
        let mut sink = Sink::File(Appending {
            every: 1000,
            ..Appending::new(file)
        });
        let mut syncs = 0;
        for _ in 0..20 {
            while !sink.is_ready().unwrap() {
                std::thread::yield_now();
            }
            let before = sink.syncs().is_some();
            sink.write(&[1; 300]).unwrap();
            syncs += u32::from(!before && sink.syncs().is_some());
            let Sink::File(file) = &sink else {
                unreachable!()
            };
            assert!(file.unsynced < 1300);
        }
        assert!(syncs > 1, "{syncs}");
        while !sink.finish().unwrap() {
            std::thread::yield_now();
        }
        let Sink::File(file) = &sink else {
            unreachable!()
        };
        assert_eq!((file.unsynced, file.syncing.is_none()), (0, true));
        assert_eq!(file.file.metadata().unwrap().len(), 6000);
    }
}
