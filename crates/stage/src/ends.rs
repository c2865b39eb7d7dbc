//! Where blocks begin and end: zeros, a file or records; nowhere, a file or partitions.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ropewalk_proto::stage::account::Account;

use crate::error::StageError;
use crate::parts::Parts;
use crate::records::Dealing;
use crate::setup::Ends;
use crate::version::Version;

/// Bytes that are written before they are synced, while more are written: what is left for the end is less than twice as much.
const SYNC_EVERY: u64 = 256 << 20;

/// What the first process deals.
pub(crate) enum Source {
    /// Zeros, so many bytes.
    Zeros(u64),
    /// The rest of a file, so many bytes, and what it was when it was opened.
    File(File, u64, Version),
    /// Whole lines of a file, and what it was.
    Lines(Lines<File>, Version),
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

fn shortened(missing: u64) -> StageError {
    StageError::Shortened {
        file: String::new(),
        missing,
    }
}

fn changed() -> StageError {
    StageError::Changed {
        file: String::new(),
    }
}

impl Source {
    /// A file that had so many bytes when the agent opened it.
    pub fn file(file: File, length: u64) -> Result<Self, StageError> {
        let version = Version::of(&file).map_err(reading)?;
        match version.length >= length {
            true => Ok(Self::File(file, length, version)),
            false => Err(changed()),
        }
    }

    /// The same of a file of lines, with the end of the last line: one byte more than it had where that line had none.
    pub fn lines(file: File, length: u64) -> Result<Self, StageError> {
        let version = Version::of(&file).map_err(reading)?;
        let mut last = [b'\n'];
        if (1..=version.length).contains(&length) {
            file.read_exact_at(&mut last, length - 1).map_err(reading)?;
        }
        let is_ended = last == *b"\n";
        let is_cut = match version.length.cmp(&length) {
            // It has gone on where its last line had no end.
            Ordering::Greater => !is_ended,
            Ordering::Equal if is_ended => false,
            Ordering::Less if length == version.length + 1 => true,
            Ordering::Equal | Ordering::Less => return Err(changed()),
        };
        let lines = Lines::new(file, length - u64::from(is_cut), is_cut);
        Ok(Self::Lines(lines, version))
    }

    /// Whether its file is what it was; called when all of it has been read.
    fn verify(&self) -> Result<(), StageError> {
        let (file, version) = match self {
            Self::File(file, _, version) => (file, version),
            Self::Lines(lines, version) => (&lines.from, version),
            // Each of its files is checked at its end.
            Self::Zeros(_) | Self::Records(_) => return Ok(()),
        };
        match version.is_kept_by(&Version::of(file).map_err(reading)?) {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Fills a buffer, of which all but the last bytes (with lines: the last line) are used up.
    ///
    /// * `is_clean`: the buffer holds zeros where it was never written.
    pub fn fill(&mut self, buffer: &mut [u8], is_clean: bool) -> Result<Filled, StageError> {
        if let Self::Records(dealing) = self {
            return dealing.fill(buffer);
        }
        Ok(match self.fill_bytes(buffer, is_clean)? {
            0 => {
                self.verify()?;
                Filled::End
            }
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
            Self::File(file, left, _) => {
                let missing = *left;
                let len = take(left);
                match file.read_exact(&mut buffer[..len]) {
                    Ok(()) => Ok(len),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Err(shortened(missing))
                    }
                    Err(error) => Err(reading(error)),
                }
            }
            Self::Lines(lines, _) => lines.fill(buffer),
            Self::Records(_) => Ok(0),
        }
    }
}

/// Blocks that end where lines end.
pub(crate) struct Lines<R> {
    from: R,
    // Bytes that are still to be read, and whether the last line lacks its end.
    left: u64,
    is_cut: bool,
    // Begin of a line whose end was not in the last block.
    rest: Vec<u8>,
    // Bytes in all blocks so far.
    dealt: u64,
}

impl<R: Read> Lines<R> {
    /// Of so many bytes.
    ///
    /// * `is_cut`: the last line has no end, and gets one.
    pub fn new(from: R, length: u64, is_cut: bool) -> Self {
        Self {
            from,
            left: length,
            is_cut,
            rest: Vec::new(),
            dealt: 0,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, StageError> {
        let mut have = self.rest.len();
        buffer[..have].copy_from_slice(&self.rest);
        self.rest.clear();
        while have < buffer.len() && (self.left > 0 || self.is_cut) {
            if self.left == 0 {
                self.is_cut = false;
                buffer[have] = b'\n';
                have += 1;
                break;
            }
            let room = (buffer.len() - have).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let count = match self.from.read(&mut buffer[have..have + room]) {
                Ok(0) => return Err(shortened(self.left)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(reading(error)),
            };
            have += count;
            self.left -= count as u64;
        }
        let is_all = self.left == 0 && !self.is_cut;
        // Its last byte was an end, and is none now.
        if is_all && have > 0 && buffer[have - 1] != b'\n' {
            return Err(changed());
        }
        let mut len = have;
        if !is_all {
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
    // Bytes in all, and those that no sync covers yet.
    written: u64,
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
    /// To an empty file.
    pub fn new(file: File) -> Self {
        Self {
            file,
            every: SYNC_EVERY,
            written: 0,
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

    /// Whether it holds what was written here and nothing else.
    fn verify(&self) -> Result<(), StageError> {
        let metadata = self.file.metadata();
        let length = metadata.map_err(|source| StageError::File {
            doing: "inspecting",
            file: String::new(),
            source,
        })?;
        let (length, written) = (length.len(), self.written);
        match length == written {
            true => Ok(()),
            false => Err(StageError::NotAlone {
                file: String::new(),
                length,
                written,
            }),
        }
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
        file.written += content.len() as u64;
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
        let is_durable = file.unsynced == 0 && file.syncing.is_none();
        if is_durable {
            file.verify()?;
        }
        Ok(is_durable)
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
    use std::io::Seek as _;
    use std::os::unix::fs::FileExt as _;
    use std::time::Duration;

    use super::*;

    fn blocks(text: &str, length: u64, longest: usize) -> Result<Vec<String>, StageError> {
        let last = (length as usize).checked_sub(1);
        let is_cut = match last.map(|at| text.as_bytes().get(at)) {
            Some(Some(last)) => *last != b'\n',
            Some(None) => text.len() as u64 + 1 == length,
            None => false,
        };
        let mut lines = Lines::new(text.as_bytes(), length - u64::from(is_cut), is_cut);
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
        // One byte more is wanted than there was at the start, and others are there now.
        for longest in [2, 3, 100] {
            assert_eq!(blocks("a\nbcd\n", 4, longest).unwrap().concat(), "a\nb\n");
        }
        // The last byte was an end of a line.
        let error = Lines::new(&b"a\nb"[..], 3, false)
            .fill(&mut [0; 100])
            .unwrap_err();
        assert!(matches!(error, StageError::Changed { .. }), "{error}");
    }

    /// A file that is written to while it is read is an error, though its length is the same at the end; one that is only read is none.
    #[test]
    fn changes_are_noticed() {
        type Make = fn(File, u64) -> Result<Source, StageError>;
        let write_over = |file: &File| {
            file.write_all_at(b"x", 60).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            file.set_modified(modified + Duration::from_secs(1))
                .unwrap();
        };
        // What is appended changes nothing that is read.
        let append = |file: &File| file.write_all_at(b"more\n", 64).unwrap();
        type Change<'a> = &'a dyn Fn(&File);
        let changes: [(Change<'_>, bool); 4] = [
            (&|_| {}, false),
            (&append, false),
            (&write_over, true),
            (&|file| file.set_len(60).unwrap(), true),
        ];
        for make in [Source::file as Make, Source::lines] {
            for (change, is_noticed) in changes {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&b"0123456\n".repeat(8)).unwrap();
                file.rewind().unwrap();
                let mut source = make(file.try_clone().unwrap(), 64).unwrap();
                let mut buffer = [0; 16];
                let first = source.fill(&mut buffer, false).unwrap();
                assert!(matches!(first, Filled::Block(16)));
                change(&file);
                let mut read = 16;
                let end = loop {
                    match source.fill(&mut buffer, false) {
                        Ok(Filled::Block(len)) => read += len,
                        other => break other,
                    }
                };
                match is_noticed {
                    true => assert!(end.is_err()),
                    false => assert!(matches!(end, Ok(Filled::End)) && read == 64, "{read}"),
                }
            }
            // It has less than when it was opened.
            let file = tempfile::tempfile().unwrap();
            file.set_len(62).unwrap();
            assert!(make(file, 64).is_err());
        }
        // A line that had no end has gone on.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbcd\n").unwrap();
        file.rewind().unwrap();
        let mut source = Source::lines(file, 4).unwrap();
        let mut buffer = [0; 16];
        let first = source.fill(&mut buffer, false).unwrap();
        assert!(matches!(first, Filled::Block(4)));
        assert_eq!(&buffer[..4], b"a\nb\n");
    }

    /// What something else has written into the file of the last process, as a library to standard output, is found.
    #[test]
    fn foreign_bytes_are_found() {
        for foreign in [&b""[..], b"warning\n"] {
            let file = tempfile::tempfile().unwrap();
            let mut other = file.try_clone().unwrap();
            let mut sink = Sink::File(Appending::new(file));
            sink.write(b"block").unwrap();
            other.write_all(foreign).unwrap();
            sink.write(b"block").unwrap();
            let ended = loop {
                match sink.finish() {
                    Ok(false) => std::thread::yield_now(),
                    ended => break ended,
                }
            };
            match (foreign, ended) {
                (b"", Ok(true)) => {}
                (
                    _,
                    Err(StageError::NotAlone {
                        length, written, ..
                    }),
                ) => {
                    assert_eq!((length, written), (18, 10));
                }
                (_, other) => panic!("{other:?}"),
            }
        }
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
            matches!(error, StageError::Shortened { missing: 7, .. }),
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
