//! Sorts the records of a file in bounded memory: sorted runs, one behind the other in a file without a name, which are then merged.
//!
//! The bound holds for all that is in memory at once: while runs are made, records, their places and the buffers of one reader and
//! one writer; while they are merged, a buffer and a record of each run and the buffer of one writer.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use ropewalk_proto::stage::shuffle::{Key, Records, Shuffle};

use crate::records::read_record;

/// Least and most that are read from a run at once.
const READ_LEN: Range<usize> = 4 << 10..1 << 20;

/// Least and most that are written at once.
const WRITE_LEN: Range<usize> = 4 << 10..256 << 10;

/// How records are sorted: by key, then by the whole record, both byte by byte and without the ends of lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    records: Records,
    key: Key,
    longest: usize,
    // Bytes that all of it takes.
    memory: usize,
}

/// Records in memory: as many as fit, in memory that is reserved once and used as far as it is written.
struct Batch {
    space: usize,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// A record in memory.
#[derive(Clone, Copy)]
struct Entry {
    // The first bytes of its key: most comparisons need no more.
    front: u64,
    begin: u32,
    len: u32,
}

/// The first record of a run.
struct Head {
    record: Vec<u8>,
    order: Order,
    run: usize,
}

impl Order {
    pub fn new(shuffle: &Shuffle, longest: usize, memory: usize) -> Self {
        Self {
            records: shuffle.records,
            key: shuffle.key,
            longest,
            // Places of records are 32 bits.
            memory: memory.min(u32::MAX as usize - longest),
        }
    }

    fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        let (one, other) = (self.records.content(one), self.records.content(other));
        if self.key == Key::Whole {
            return one.cmp(other);
        }
        let keys = one[self.key.range(one)].cmp(&other[self.key.range(other)]);
        keys.then_with(|| one.cmp(other))
    }

    fn front(&self, record: &[u8]) -> u64 {
        let content = self.records.content(record);
        let key = &content[self.key.range(content)];
        let mut front = [0; 8];
        let len = key.len().min(front.len());
        front[..len].copy_from_slice(&key[..len]);
        u64::from_be_bytes(front)
    }

    fn write_len(&self) -> usize {
        (self.memory / 16).clamp(WRITE_LEN.start, WRITE_LEN.end)
    }

    /// A record that is being read, with one byte that would make it too long.
    fn record_len(&self) -> usize {
        self.longest + 1
    }

    /// Runs that are merged at once: each has its longest record and a buffer in memory.
    fn together(&self) -> usize {
        let each = self.record_len() + size_of::<Head>() + READ_LEN.start;
        (self.memory.saturating_sub(self.write_len()) / each).max(2)
    }

    /// Bytes that are read from each of so many runs at once.
    fn read_len(&self, runs: usize) -> usize {
        let each = self.memory.saturating_sub(self.write_len()) / runs;
        each.saturating_sub(self.record_len() + size_of::<Head>())
            .clamp(READ_LEN.start, READ_LEN.end)
    }

    /// Bytes for the records of a run and their places. Half of the memory at least: what is less than buffers take has no bound.
    fn space(&self) -> usize {
        let beside = self.write_len() + self.first_len() + self.record_len();
        self.memory.saturating_sub(beside).max(self.memory / 2)
    }

    /// Bytes of the file that are read at once while runs are made.
    fn first_len(&self) -> usize {
        (self.memory / 16).clamp(READ_LEN.start, READ_LEN.end)
    }

    fn reader<'f>(&self, file: &'f File, run: &Range<u64>, len: usize) -> BufReader<Section<'f>> {
        let section = Section {
            file,
            left: run.clone(),
        };
        BufReader::with_capacity(len, section)
    }

    /// Writes the records of one file to another, sorted.
    ///
    /// * `scratch`: makes a file without a name.
    /// * `each`: gets each record in its order.
    pub fn sort(
        &self,
        from: &File,
        to: &File,
        scratch: impl Fn() -> io::Result<File>,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let length = from.metadata()?.len();
        let mut reader = self.reader(from, &(0..length), self.first_len());
        let mut batch = Batch::new(self.space(), length)?;
        let mut record = Vec::with_capacity(self.record_len());
        let mut runs = Runs::default();
        loop {
            read_record(&mut reader, self.records, self.longest, &mut record)?;
            let is_last = record.is_empty();
            if is_last && runs.file.is_none() {
                // All of it is in memory.
                let mut out = BufWriter::with_capacity(self.write_len(), to);
                self.write(&mut batch, |record| {
                    each(record);
                    out.write_all(record)
                })?;
                return out.flush();
            }
            if !batch.entries.is_empty() && (is_last || !batch.holds(&record)) {
                let mut out = runs.begin(&scratch, self.write_len())?;
                let len = batch.bytes.len() as u64;
                self.write(&mut batch, |record| out.write_all(record))?;
                out.flush()?;
                drop(out);
                runs.end(len);
            }
            if is_last {
                break;
            }
            batch.push(&record, self.front(&record));
        }
        drop((reader, batch, record));
        while runs.bounds.len() > self.together() {
            let mut fewer = Runs::default();
            for group in runs.bounds.chunks(self.together()) {
                let mut out = fewer.begin(&scratch, self.write_len())?;
                self.merge(&runs, group, |record| out.write_all(record))?;
                out.flush()?;
                drop(out);
                fewer.end(group.iter().map(|run| run.end - run.start).sum());
            }
            runs = fewer;
        }
        let mut out = BufWriter::with_capacity(self.write_len(), to);
        self.merge(&runs, &runs.bounds, |record| {
            each(record);
            out.write_all(record)
        })?;
        out.flush()
    }

    /// Gives the records in memory in their order, and forgets them.
    fn write(
        &self,
        batch: &mut Batch,
        mut give: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Batch { bytes, entries, .. } = batch;
        let of = |entry: &Entry| &bytes[entry.begin as usize..][..entry.len as usize];
        entries.sort_unstable_by(|one, other| {
            let fronts = one.front.cmp(&other.front);
            fronts.then_with(|| self.compare(of(one), of(other)))
        });
        for entry in &*entries {
            give(of(entry))?;
        }
        entries.clear();
        bytes.clear();
        Ok(())
    }

    /// Gives the records of sorted runs in their order.
    fn merge(
        &self,
        runs: &Runs,
        bounds: &[Range<u64>],
        mut give: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(file) = &runs.file else {
            return Ok(());
        };
        let len = self.read_len(bounds.len().max(1));
        let readers = bounds.iter().map(|run| self.reader(file, run, len));
        let mut readers: Vec<_> = readers.collect();
        let mut heads = BinaryHeap::new();
        for (run, reader) in readers.iter_mut().enumerate() {
            let mut head = Head {
                record: Vec::with_capacity(self.record_len()),
                order: *self,
                run,
            };
            read_record(reader, self.records, self.longest, &mut head.record)?;
            if !head.record.is_empty() {
                heads.push(Reverse(head));
            }
        }
        while let Some(mut first) = heads.peek_mut() {
            let head = &mut first.0;
            give(&head.record)?;
            let reader = &mut readers[head.run];
            read_record(reader, self.records, self.longest, &mut head.record)?;
            if head.record.is_empty() {
                std::collections::binary_heap::PeekMut::pop(first);
            }
        }
        Ok(())
    }
}

impl Batch {
    /// With so much space, for a file of so many bytes.
    fn new(space: usize, length: u64) -> io::Result<Self> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        // A record has a byte at least, and one more may have to be added: the end of the last line.
        bytes.try_reserve_exact(space.min(length.saturating_add(1)))?;
        entries.try_reserve_exact((space / (size_of::<Entry>() + 1) + 1).min(length))?;
        Ok(Self {
            space,
            bytes,
            entries,
        })
    }

    /// Bytes that records and their places take.
    fn taken(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    /// Whether one more record fits.
    fn holds(&self, record: &[u8]) -> bool {
        self.taken() + record.len() + size_of::<Entry>() <= self.space
    }

    /// Adds a record; the first one even where it does not fit.
    fn push(&mut self, record: &[u8], front: u64) {
        self.entries.push(Entry {
            front,
            // `memory` fits.
            begin: self.bytes.len() as u32,
            len: record.len() as u32,
        });
        self.bytes.extend_from_slice(record);
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.compare(&self.record, &other.record)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Sorted runs, one behind the other.
#[derive(Default)]
struct Runs {
    file: Option<File>,
    bounds: Vec<Range<u64>>,
}

impl Runs {
    /// Where the next run is written.
    fn begin(
        &mut self,
        scratch: impl Fn() -> io::Result<File>,
        write_len: usize,
    ) -> io::Result<BufWriter<&mut File>> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => scratch()?,
        };
        file.seek(SeekFrom::End(0))?;
        Ok(BufWriter::with_capacity(write_len, self.file.insert(file)))
    }

    fn end(&mut self, len: u64) {
        let begin = self.bounds.last().map_or(0, |run| run.end);
        self.bounds.push(begin..begin + len);
    }
}

/// A part of a file.
struct Section<'f> {
    file: &'f File,
    left: Range<u64>,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let count = self.file.read_at(&mut buffer[..room], self.left.start)?;
        if count == 0 && room > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left.start += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ropewalk_proto::stage::deal::Chance;

    use super::*;

    /// Sorts a text; also gives how many files without names were made.
    fn sorted(text: &[u8], shuffle: &Shuffle, memory: usize) -> (Vec<u8>, u32) {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        (&from).write_all(text).unwrap();
        let made = Cell::new(0);
        let scratch = || {
            made.set(made.get() + 1);
            tempfile::tempfile()
        };
        let mut seen = Vec::new();
        let order = Order::new(shuffle, 60, memory);
        order
            .sort(&from, &to, scratch, |record| seen.extend_from_slice(record))
            .unwrap();
        let mut out = Vec::new();
        Section {
            file: &to,
            left: 0..to.metadata().unwrap().len(),
        }
        .read_to_end(&mut out)
        .unwrap();
        assert_eq!(out, seen);
        (out, made.get())
    }

    fn shuffle(records: Records, key: Key) -> Shuffle {
        Shuffle {
            partitions: 1,
            records,
            key,
            sort: true,
        }
    }

    /// In memory, in one merge and in several, by key and then by record; equal records stay as many.
    #[test]
    fn records_are_sorted() {
        let mut chance = Chance::new(1, 0, 0);
        let lines: Vec<String> = (0..3000)
            .map(|_| {
                let (key, rest) = (chance.below(40), chance.below(1000));
                format!("{}\t{key}\t{}", "x".repeat(chance.below(9)), rest)
            })
            .collect();
        let text = lines.join("\n") + "\n";
        let field = Key::Field {
            number: 2,
            separator: b'\t',
        };
        for key in [
            Key::Whole,
            field,
            Key::Part {
                offset: 3,
                length: 4,
            },
        ] {
            let of = |line: &String| line.as_bytes()[key.range(line.as_bytes())].to_vec();
            let mut expected = lines.clone();
            expected.sort_by(|one, other| of(one).cmp(&of(other)).then_with(|| one.cmp(other)));
            let expected = expected.join("\n") + "\n";
            let shuffle = shuffle(Records::Lines, key);
            // With the last, each merge takes two of hundreds of runs.
            for (memory, files) in [(1 << 20, 0..1), (64 << 10, 1..2), (1000, 5..20)] {
                let (out, made) = sorted(text.as_bytes(), &shuffle, memory);
                assert!(out == expected.as_bytes(), "{key:?} in {memory} bytes");
                assert!(files.contains(&made), "{made} files in {memory} bytes");
            }
        }
    }

    /// All that is in memory at once is within the bound, and what records take is reserved once.
    #[test]
    fn memory_is_bounded() {
        let shuffle = shuffle(Records::Lines, Key::Whole);
        for memory in [1 << 20, 64 << 20, 1 << 30] {
            for longest in [60, 64 << 10, memory / 8] {
                let order = Order::new(&shuffle, longest, memory);
                let beside = order.first_len() + order.write_len() + order.record_len();
                assert!(order.space() + beside <= memory, "{longest} in {memory}");
                for runs in [2, order.together() / 2, order.together()] {
                    let each = order.read_len(runs) + order.record_len() + size_of::<Head>();
                    let all = runs * each + order.write_len();
                    assert!(all <= memory, "{runs} runs of {longest} in {memory}: {all}");
                }
            }
        }
        for len in [1, 7, 100] {
            let mut batch = Batch::new(10_000, 1 << 20).unwrap();
            let places = |batch: &Batch| (batch.bytes.as_ptr(), batch.entries.as_ptr());
            let reserved = places(&batch);
            while batch.holds(&vec![1; len]) {
                batch.push(&vec![1; len], 0);
            }
            assert!(batch.taken() <= 10_000 && batch.taken() + len + 24 > 10_000);
            assert_eq!(places(&batch), reserved);
        }
    }

    /// Bytes are compared, not characters; records may hold any.
    #[test]
    fn fixed_records_are_sorted() {
        let shuffle = shuffle(
            Records::Fixed(2),
            Key::Part {
                offset: 1,
                length: 1,
            },
        );
        for memory in [10, 1000] {
            let (out, _) = sorted(b"\xff\x01\0\xffa\nb\0a\0", &shuffle, memory);
            assert_eq!(out, b"a\0b\0\xff\x01a\n\0\xff");
        }
        assert_eq!(sorted(b"", &shuffle, 100), (Vec::new(), 0));
    }
}
