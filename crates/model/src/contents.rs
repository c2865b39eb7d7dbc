//! Which bytes of files are compared with those of another host by their hashes, in which order, and what follows from the answers. Pure.
//!
//! A file is compared in chunks of [`CHUNK_LEN`], which begin at multiples of that in the file. Small files that follow each other in
//! the data space, and that only count whole, are one chunk together: they have one hash, and are the same if it is. Several threads
//! take chunks, in order:
//!
//! ```text
//!  files --> next: chunks that follow each other --> handle: the same, or not --> the same files, and the same chunks
//!                    ^                                     |
//!                    +--- parts of several files that are not all the same: down to single files
//!                    +--- the rest of a file that differs, where only whole files count, is passed over
//! ```

use std::collections::VecDeque;

use crate::{CHUNK_LEN, Range, RangeSet};

/// Files that have one hash together, at most: a disk that needs 10 ms for each reads them in less than three seconds, which is far
/// below the time that an answer may take.
pub const TOGETHER_MAX: usize = 256;

/// Parts that files are divided into that have one hash and are not all the same: with two levels down to single files each byte is
/// read at most three times, and one file that differs costs two times as many questions.
const PARTS: usize = 16;

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

impl Candidate {
    /// Its bytes in the data space.
    #[must_use]
    pub fn space(&self) -> Range {
        Range::new(self.start, self.start + self.len)
    }
}

/// What is wanted to be known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Whether it is the same: the first chunk that differs decides.
    Whole,
    /// Which of its chunks are.
    Chunks,
}

/// Bytes that are hashed together: of a file, or all bytes of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The number of the file, or of the first.
    pub object: u32,
    /// Bytes of the file; of several files, of the first.
    pub range: Range,
    /// The same bytes in the data space, those of all files.
    pub space: Range,
    // Position of the file among the candidates, and how many there are from it on; those without bytes are none of them.
    at: usize,
    count: usize,
}

impl Chunk {
    /// How many files it has bytes of; empty ones between them may count, too.
    #[must_use]
    pub fn files(&self) -> usize {
        self.count
    }
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
    // Parts of chunks of several files that were not all the same; they come before.
    again: VecDeque<Chunk>,
    // Files that the next such chunk has, at most: fewer where some differ, more where none does.
    together: usize,
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
            again: VecDeque::new(),
            together: TOGETHER_MAX,
            total: total.fold(0, u64::saturating_add),
            done: 0,
            files,
        }
    }

    /// The next chunks: at least one while there is one, and no more than these bounds allow.
    ///
    /// * `files_max`: each chunk counts as often as it has files.
    /// * `may_join`: whether files with these bytes of the data space can have one hash, which one host computes.
    pub fn next(
        &mut self,
        files_max: usize,
        bytes_max: u64,
        may_join: impl Fn(Range) -> bool,
    ) -> Vec<Chunk> {
        let (mut next, mut files, mut bytes) = (Vec::new(), 0, 0);
        while let Some(chunk) = self.peek(&may_join) {
            let len = chunk.space.len();
            let fits = files + chunk.count <= files_max && bytes + len <= bytes_max;
            if !next.is_empty() && !fits {
                break;
            }
            if self.again.pop_front().is_none() {
                self.step_over(&chunk);
                if chunk.count == 1 && !self.passed_over.clipped(chunk.space).is_empty() {
                    self.done += len;
                    continue;
                }
            }
            (files, bytes) = (files + chunk.count, bytes + len);
            next.push(chunk);
        }
        next
    }

    /// The next chunk.
    fn peek(&mut self, may_join: impl Fn(Range) -> bool) -> Option<Chunk> {
        if let Some(chunk) = self.again.front() {
            return Some(*chunk);
        }
        loop {
            let file = self.files.get(self.at)?;
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
            let range = Range::new(self.offset, self.offset + left.min(CHUNK_LEN));
            let start = file.candidate.start + range.start;
            let chunk = Chunk {
                object: file.candidate.object,
                range,
                space: Range::new(start, start + range.len()),
                at: self.at,
                count: 1,
            };
            return Some(match self.joins(self.at) {
                true => self.extend(chunk, may_join),
                false => chunk,
            });
        }
    }

    /// Whether a file can be one of several that have one hash.
    fn joins(&self, at: usize) -> bool {
        let file = &self.files[at];
        let space = file.space();
        file.candidate.aim == Aim::Whole
            && file.looked_at() < CHUNK_LEN
            && (self.passed_over.is_empty() || self.passed_over.clipped(space).is_empty())
    }

    /// Adds files behind the one of a chunk that can have one hash with it.
    fn extend(&self, mut chunk: Chunk, may_join: impl Fn(Range) -> bool) -> Chunk {
        let mut end = chunk.at + 1;
        while end - chunk.at < self.together
            && let Some(file) = self.files.get(end)
        {
            let space = file.space();
            let all = Range::new(chunk.space.start, space.end);
            let follows = space.start == chunk.space.end && all.len() <= CHUNK_LEN;
            match space.is_empty() {
                // It has no bytes that could differ, and no place.
                true if file.candidate.len == 0 => {}
                false if follows && self.joins(end) && may_join(all) => {
                    (chunk.space, chunk.count) = (all, end + 1 - chunk.at);
                }
                _ => break,
            }
            end += 1;
        }
        chunk
    }

    /// What follows a chunk that is handed out is next.
    fn step_over(&mut self, chunk: &Chunk) {
        match chunk.count {
            1 => self.offset = chunk.range.end,
            count => (self.at, self.offset) = (chunk.at + count, 0),
        }
    }

    /// Bytes of files that are hashed one after the other for a chunk; none where what is known by now leaves nothing to be found out
    /// of it.
    #[must_use]
    pub fn pieces(&self, chunk: &Chunk) -> Vec<(u32, Range)> {
        if self.files.get(chunk.at).is_none_or(File::is_decided) {
            return Vec::new();
        }
        let of = |file: &File| (file.candidate.object, Range::new(0, file.candidate.len));
        match chunk.count {
            1 => vec![(chunk.object, chunk.range)],
            _ => self.group(chunk).map(|(_, file)| of(file)).collect(),
        }
    }

    /// The files of a chunk that have bytes, by position.
    fn group(&self, chunk: &Chunk) -> impl Iterator<Item = (usize, &File)> {
        let files = self.files.iter().enumerate();
        let files = files.skip(chunk.at).take(chunk.count);
        files.filter(|(_, file)| file.candidate.len > 0)
    }

    /// A chunk that was handed out is the same at both, or differs or cannot be read. One of several files that is not is divided:
    /// [`Comparison::next`] has the parts.
    pub fn handle(&mut self, chunk: &Chunk, is_same: bool) {
        let len = chunk.space.len();
        if chunk.count > 1 {
            if !is_same {
                self.together = (self.together / 2).max(1);
                return self.divide(chunk);
            }
            self.together = (self.together * 2).min(TOGETHER_MAX);
            for file in self.files.iter_mut().skip(chunk.at).take(chunk.count) {
                file.same = file.common;
            }
        } else if let Some(file) = self.files.get_mut(chunk.at) {
            match is_same {
                true => file.same += len,
                false => file.differs = true,
            }
        }
        self.done += len;
    }

    fn divide(&mut self, chunk: &Chunk) {
        let most = chunk.count.div_ceil(PARTS);
        let mut parts: Vec<Chunk> = Vec::new();
        for (at, file) in self.group(chunk) {
            let space = file.space();
            match parts.last_mut().filter(|part| at - part.at < most) {
                Some(part) => {
                    part.space = Range::new(part.space.start, space.end);
                    part.count = at + 1 - part.at;
                }
                None => parts.push(Chunk {
                    object: file.candidate.object,
                    range: Range::new(0, space.len()),
                    space,
                    at,
                    count: 1,
                }),
            }
        }
        self.again.extend(parts);
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

    /// What is looked at of it, in the data space.
    fn space(&self) -> Range {
        let start = self.candidate.start;
        Range::new(start, start + self.looked_at())
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
            let next = all.next(1, 0, |_| false);
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
        let first = all.next(9, CHUNK + 1, |_| true);
        assert_eq!(first.len(), 2);
        let second = all.next(1, 9 * CHUNK, |_| true);
        assert_eq!((second.len(), second[0].object), (1, 2));
        assert!(all.next(9, 9, |_| true).is_empty());
        all.handle(&first[0], true);
        all.handle(&second[0], true);
        assert_eq!(all.same_files().collect::<Vec<_>>(), [2]);
        assert_eq!(all.pieces(&first[1]), [(1, first[1].range)]);
        all.handle(&first[1], false);
        assert!(all.pieces(&first[0]).is_empty());
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
        let next = all.next(9, 9 * CHUNK, |_| true);
        let starts: Vec<u64> = next.iter().map(|chunk| chunk.range.start).collect();
        assert_eq!(starts, [2 * CHUNK, 3 * CHUNK]);
        next.iter().for_each(|chunk| all.handle(chunk, true));
        assert_eq!(all.done_bytes(), all.total_bytes());
        assert_eq!(all.same_files().count(), 0);
    }

    /// Small files one after the other in the data space, of these lengths.
    fn small(lens: &[u64]) -> Vec<Candidate> {
        let mut start = 0;
        let files = lens.iter().enumerate().map(|(at, &len)| {
            let candidate = Candidate {
                // An empty file has no place.
                start: if len > 0 { start } else { 0 },
                ..candidate(at as u32, len, len, Aim::Whole)
            };
            start += len;
            candidate
        });
        files.collect()
    }

    /// Compares all where these differ; the same files, the questions, and bytes that were hashed.
    fn ask(files: &[Candidate], differing: &[u32]) -> (Vec<u32>, usize, u64) {
        let mut all = Comparison::new(files.iter().copied());
        let (mut questions, mut bytes) = (0, 0);
        loop {
            let next = all.next(1000, CHUNK, |_| true);
            if next.is_empty() {
                break;
            }
            for chunk in next {
                let pieces = all.pieces(&chunk);
                if pieces.is_empty() {
                    all.handle(&chunk, false);
                    continue;
                }
                let len: u64 = pieces.iter().map(|(_, range)| range.len()).sum();
                assert_eq!(len, chunk.space.len());
                assert!(len <= CHUNK && chunk.files() <= TOGETHER_MAX, "{chunk:?}");
                (questions, bytes) = (questions + 1, bytes + len);
                let is_same = pieces.iter().all(|(object, _)| !differing.contains(object));
                all.handle(&chunk, is_same);
            }
        }
        assert_eq!(all.done_bytes(), all.total_bytes());
        (all.same_files().collect(), questions, bytes)
    }

    /// Many small files have one hash; those that differ are found in a few questions, and all of them where all differ.
    #[test]
    fn small_files_are_compared_together() {
        let files = small(&[200; 1000]);
        let (same, questions, bytes) = ask(&files, &[]);
        assert_eq!((same.len(), questions, bytes), (1000, 4, 200_000));
        let (same, questions, _) = ask(&files, &[300]);
        assert_eq!(same.len(), 999);
        assert!(!same.contains(&300));
        assert!(questions <= 5 + 2 * PARTS, "{questions}");
        let all: Vec<u32> = (0..1000).collect();
        let (same, questions, bytes) = ask(&files, &all);
        assert_eq!(same.len(), 0);
        assert!(
            questions <= 1500 && bytes <= 3 * 200_000,
            "{questions} {bytes}"
        );
    }

    /// What follows a gap, does not fit, has another length here, is wanted chunk by chunk or lies at another host has a hash of its
    /// own; empty files have none.
    #[test]
    fn only_neighbours_are_compared_together() {
        let together = |files: &[Candidate], may_join: &dyn Fn(Range) -> bool| -> Vec<Vec<u32>> {
            let mut all = Comparison::new(files.iter().copied());
            let chunks = all.next(1000, u64::MAX, may_join);
            let files = |chunk| {
                all.pieces(chunk)
                    .iter()
                    .map(|(object, _)| *object)
                    .collect()
            };
            chunks.iter().map(files).collect()
        };
        let any: &dyn Fn(Range) -> bool = &|_| true;
        let files = small(&[5, 0, 7, 0, 0, 9, 0]);
        assert_eq!(together(&files, any), [[0, 2, 5]]);
        assert_eq!(ask(&files, &[2]).0, [0, 1, 3, 4, 5, 6]);
        assert_eq!(
            together(&files, &|range| range.end <= 12),
            [vec![0, 2], vec![5]]
        );

        let mut apart = small(&[5, 6, 7, 8, 9]);
        apart[3].start += 1;
        apart[4].start += 1;
        assert_eq!(together(&apart, any), [vec![0, 1, 2], vec![3, 4]]);
        let mut other = small(&[5, 6, 7]);
        other[1].len_here = 3;
        assert_eq!(together(&other, any), [[0], [2]]);
        let mut by_chunks = small(&[5, 6, 7, 8]);
        by_chunks[2].aim = Aim::Chunks;
        assert_eq!(together(&by_chunks, any), [vec![0, 1], vec![2], vec![3]]);

        let large = small(&[5, 3 * CHUNK + 1, 6, CHUNK - 6, CHUNK, 1, CHUNK - 1]);
        let found = together(&large, any);
        let of_large = vec![vec![1]; 4];
        let expected = [
            vec![vec![0]],
            of_large,
            vec![vec![2, 3], vec![4], vec![5, 6]],
        ]
        .concat();
        assert_eq!(found, expected);
    }

    /// Bytes that are there otherwise keep a file out of those that have one hash.
    #[test]
    fn what_is_passed_over_is_in_no_hash() {
        let there = RangeSet::from(Range::new(7, 8));
        let mut all = Comparison::without(small(&[5, 6, 7, 8]), there);
        let next = all.next(9, CHUNK, |_| true);
        let found: Vec<_> = next.iter().map(|chunk| chunk.space).collect();
        assert_eq!(found, [Range::new(0, 5), Range::new(11, 26)]);
        next.iter().for_each(|chunk| all.handle(chunk, true));
        assert_eq!(all.done_bytes(), all.total_bytes());
        assert_eq!(all.same_files().collect::<Vec<_>>(), [0, 2, 3]);
    }

    proptest::proptest! {
        /// Whatever the lengths, and whichever differ: the same files are found as one by one, each byte is hashed at least once unless
        /// its file is known to differ, and no more than three times.
        #[test]
        fn together_finds_what_one_by_one_does(
            lens in proptest::collection::vec(proptest::prop_oneof![0..3_u64, 1000..9000_u64, CHUNK - 2..CHUNK + 2], 1..600),
            differing in proptest::collection::vec(0..600_u32, 0..40),
        ) {
            let files = small(&lens);
            let (same, _, bytes) = ask(&files, &differing);
            let expected: Vec<u32> = (0..lens.len() as u32)
                .filter(|at| lens[*at as usize] == 0 || !differing.contains(at))
                .collect();
            proptest::prop_assert_eq!(same, expected);
            proptest::prop_assert!(bytes <= 3 * lens.iter().sum::<u64>());
        }
    }
}
