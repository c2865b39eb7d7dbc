//! Which bytes of files are compared with those of another host by their hashes, in which order, and what follows from the answers. Pure.
//!
//! A file is compared in chunks of [`CHUNK_LEN`], which begin at multiples of that in the file. Several threads take chunks, in order:
//!
//! ```text
//!  files --> next: chunks that follow each other --> handle: the same, or not --> the same files, and the same chunks
//!                    ^                                     |
//!                    +--- the rest of a file that differs, where only whole files count, is passed over
//! ```

use crate::{CHUNK_LEN, Range, RangeSet};

/// A file that two hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file's number.
    pub object: u32,
    /// Where its bytes begin in the data space.
    pub start: u64,
    /// Its length at the source.
    pub len: u64,
    /// Its length here.
    pub len_here: u64,
    /// What is wanted to be known of it.
    pub aim: Aim,
}

/// What is wanted to be known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Whether it is the same: the first chunk that differs decides.
    Whole,
    /// Which of its chunks are.
    Chunks,
}

/// Bytes that are hashed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The file's number.
    pub object: u32,
    /// Bytes of the file.
    pub range: Range,
    /// The same bytes in the data space.
    pub space: Range,
    // Position of the file among the candidates.
    at: usize,
}

/// What is known of a candidate.
#[derive(Clone, Copy, Debug)]
struct File {
    candidate: Candidate,
    // Bytes that both have at the same place, and how many of them are known to be the same.
    common: u64,
    same: u64,
    differs: bool,
}

/// Files that are being compared. Memory is O(files); the same chunks are for the caller to keep.
#[derive(Clone, Debug)]
pub struct Comparison {
    files: Vec<File>,
    passed_over: RangeSet,
    // The next chunk that is handed out: position of its file, and where in that it begins.
    at: usize,
    offset: u64,
    total: u64,
    done: u64,
}

impl Comparison {
    /// Files in the order in which they are compared.
    #[must_use]
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        Self::without(candidates, RangeSet::new())
    }

    /// As [`Comparison::new`], but for chunks with some of these bytes of the data space. Their files do not count as the same.
    #[must_use]
    pub fn without(candidates: impl IntoIterator<Item = Candidate>, passed_over: RangeSet) -> Self {
        let files: Vec<File> = candidates.into_iter().map(File::new).collect();
        let total = files.iter().map(File::looked_at);
        Self {
            passed_over,
            at: 0,
            offset: 0,
            total: total.fold(0, u64::saturating_add),
            done: 0,
            files,
        }
    }

    /// The next chunks, which follow each other: at least one while there is one, and no more than these bounds allow.
    pub fn next(&mut self, chunks_max: usize, bytes_max: u64) -> Vec<Chunk> {
        let (mut next, mut bytes) = (Vec::new(), 0);
        while let Some(file) = self.files.get(self.at) {
            let left = match file.is_decided() {
                true => 0,
                false => file.looked_at() - self.offset,
            };
            if left == 0 {
                // What is passed over needs no looking at.
                self.done += file.looked_at() - self.offset;
                (self.at, self.offset) = (self.at + 1, 0);
                continue;
            }
            let len = left.min(CHUNK_LEN);
            if !next.is_empty() && (next.len() >= chunks_max || bytes + len > bytes_max) {
                break;
            }
            let range = Range::new(self.offset, self.offset + len);
            let start = file.candidate.start + range.start;
            let space = Range::new(start, start + len);
            self.offset += len;
            if !self.passed_over.clipped(space).is_empty() {
                self.done += len;
                continue;
            }
            next.push(Chunk {
                object: file.candidate.object,
                range,
                space,
                at: self.at,
            });
            bytes += len;
        }
        next
    }

    /// Whether what is known of a chunk's file by now leaves nothing to be found out of the chunk.
    #[must_use]
    pub fn is_decided(&self, chunk: &Chunk) -> bool {
        self.files.get(chunk.at).is_none_or(File::is_decided)
    }

    /// A chunk that was handed out is the same at both, or differs or cannot be read.
    pub fn handle(&mut self, chunk: &Chunk, is_same: bool) {
        let len = chunk.range.len();
        self.done += len;
        if let Some(file) = self.files.get_mut(chunk.at) {
            match is_same {
                true => file.same += len,
                false => file.differs = true,
            }
        }
    }

    /// How many files there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Bytes that are compared, or need not be any more.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done
    }

    /// Bytes to compare.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// The files that are the same at both.
    pub fn same_files(&self) -> impl Iterator<Item = u32> + '_ {
        let files = self.files.iter().filter(|file| file.is_same());
        files.map(|file| file.candidate.object)
    }
}

impl File {
    fn new(candidate: Candidate) -> Self {
        Self {
            common: candidate.len.min(candidate.len_here),
            candidate,
            same: 0,
            differs: false,
        }
    }

    /// Bytes of whole chunks of the source's file that this host may have, too. A file of another length is not the same: where only
    /// that counts none of it is looked at.
    fn looked_at(&self) -> u64 {
        match (self.candidate.aim, self.common == self.candidate.len) {
            (Aim::Whole, _) if self.candidate.len != self.candidate.len_here => 0,
            (_, true) => self.common,
            (_, false) => self.common / CHUNK_LEN * CHUNK_LEN,
        }
    }

    fn is_decided(&self) -> bool {
        self.candidate.aim == Aim::Whole && self.differs
    }

    fn is_same(&self) -> bool {
        self.candidate.len == self.candidate.len_here && !self.differs && self.same == self.common
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = CHUNK_LEN;

    fn candidate(object: u32, len: u64, len_here: u64, aim: Aim) -> Candidate {
        Candidate {
            object,
            start: 1000 * u64::from(object) * CHUNK,
            len,
            len_here,
            aim,
        }
    }

    /// Compares all, chunk by chunk; those at these positions differ. The same files, and the bytes looked at.
    fn compare(candidates: &[Candidate], differing: &[usize]) -> (Vec<u32>, Vec<(u32, Range)>) {
        let mut all = Comparison::new(candidates.iter().copied());
        let mut seen = Vec::new();
        loop {
            let next = all.next(1, 0);
            let [chunk] = next.as_slice() else { break };
            assert_eq!(chunk.space.len(), chunk.range.len());
            all.handle(chunk, !differing.contains(&seen.len()));
            seen.push((chunk.object, chunk.range));
        }
        assert_eq!(all.done_bytes(), all.total_bytes());
        (all.same_files().collect(), seen)
    }

    /// A file is the same if each of its bytes is; the first chunk that differs is the last one looked at. Of another length it is not
    /// looked at, and an empty one is the same as another.
    #[test]
    fn whole_files_are_compared() {
        let files = [
            candidate(1, CHUNK + 5, CHUNK + 5, Aim::Whole),
            candidate(2, 3 * CHUNK, 3 * CHUNK, Aim::Whole),
            candidate(3, 7, 8, Aim::Whole),
            candidate(4, 0, 0, Aim::Whole),
            candidate(5, 9, 9, Aim::Whole),
        ];
        let (same, seen) = compare(&files, &[2]);
        assert_eq!(same, [1, 4, 5]);
        let chunk = |object, start, end| (object, Range::new(start, end));
        let expected = [
            chunk(1, 0, CHUNK),
            chunk(1, CHUNK, CHUNK + 5),
            chunk(2, 0, CHUNK),
            chunk(5, 0, 9),
        ];
        assert_eq!(seen, expected);
    }

    /// Where chunks count all are looked at that both have whole: the last, shorter one only if the file here reaches its end.
    #[test]
    fn chunks_are_compared() {
        for (len, len_here, ends) in [
            (
                2 * CHUNK + 5,
                2 * CHUNK + 5,
                vec![CHUNK, 2 * CHUNK, 2 * CHUNK + 5],
            ),
            (2 * CHUNK + 5, 2 * CHUNK + 4, vec![CHUNK, 2 * CHUNK]),
            (
                2 * CHUNK + 5,
                9 * CHUNK,
                vec![CHUNK, 2 * CHUNK, 2 * CHUNK + 5],
            ),
            (9 * CHUNK, CHUNK - 1, vec![]),
            (CHUNK, CHUNK, vec![CHUNK]),
        ] {
            let (same, seen) = compare(&[candidate(1, len, len_here, Aim::Chunks)], &[]);
            let found: Vec<u64> = seen.iter().map(|(_, range)| range.end).collect();
            assert_eq!(found, ends, "{len} {len_here}");
            assert_eq!(same.len(), usize::from(len == len_here));
        }
        let (same, seen) = compare(&[candidate(1, 3 * CHUNK, 3 * CHUNK, Aim::Chunks)], &[0]);
        assert_eq!((same.len(), seen.len()), (0, 3));
    }

    /// Several are handed out at once, within the bounds, and across files; what was handed out and not handled makes no file the same.
    #[test]
    fn chunks_are_handed_out_together() {
        let files = [
            candidate(1, CHUNK + 1, CHUNK + 1, Aim::Whole),
            candidate(2, CHUNK, CHUNK, Aim::Whole),
        ];
        let mut all = Comparison::new(files);
        let first = all.next(9, CHUNK + 1);
        assert_eq!(first.len(), 2);
        let second = all.next(1, 9 * CHUNK);
        assert_eq!((second.len(), second[0].object), (1, 2));
        assert!(all.next(9, 9).is_empty());
        all.handle(&first[0], true);
        all.handle(&second[0], true);
        assert_eq!(all.same_files().collect::<Vec<_>>(), [2]);
        assert!(!all.is_decided(&first[1]));
        all.handle(&first[1], false);
        assert!(all.is_decided(&first[0]));
        assert_eq!(all.same_files().collect::<Vec<_>>(), [2]);
    }

    /// Chunks with bytes that are there otherwise are passed over, whole.
    #[test]
    fn chunks_are_passed_over() {
        let file = Candidate {
            start: 0,
            ..candidate(1, 4 * CHUNK, 4 * CHUNK, Aim::Chunks)
        };
        let there = RangeSet::from(Range::new(CHUNK - 1, 2 * CHUNK));
        let mut all = Comparison::without([file], there);
        let next = all.next(9, 9 * CHUNK);
        let starts: Vec<u64> = next.iter().map(|chunk| chunk.range.start).collect();
        assert_eq!(starts, [2 * CHUNK, 3 * CHUNK]);
        next.iter().for_each(|chunk| all.handle(chunk, true));
        assert_eq!(all.done_bytes(), all.total_bytes());
        assert_eq!(all.same_files().count(), 0);
    }
}
