//! `mem:SIZE`: bytes that cost nothing to make and that anybody can check.

use std::sync::{Arc, OnceLock};

use ropewalk_model::{Range, RangeSet};

use crate::error::{Operation, StoreError};
use crate::source::{Extent, Source};
use crate::sys::SealedMemory;

/// After how many bytes the pattern repeats: the largest prime below 1 MiB, so that bytes put at a
/// wrong multiple of any block size do not look right.
pub const PATTERN_PERIOD: u64 = 1_048_573;

/// Longest extent that is certain at every offset (1 MiB); the memory holds that much beyond the period.
const EXTENT_LEN_MIN: u64 = 1 << 20;

/// The byte that every pattern source holds at this offset of the data space.
#[must_use]
pub fn pattern_byte(offset: u64) -> u8 {
    table_byte(offset % PATTERN_PERIOD)
}

/// SplitMix64 of the word's number, one byte of it.
fn table_byte(index: u64) -> u8 {
    let mut word = (index / 8)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    word.to_le_bytes()[(index % 8) as usize]
}

/// A source of made-up bytes: the same at the same data-space offset on every host.
///
/// 2 MiB of sealed memory, shared by all pattern sources of the process.
#[derive(Debug)]
pub struct PatternSource {
    ranges: RangeSet,
    memory: Arc<SealedMemory>,
}

impl PatternSource {
    /// A source that holds these ranges of the data space.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system gives no anonymous memory file.
    pub fn new(ranges: RangeSet) -> Result<Self, StoreError> {
        static MEMORY: OnceLock<Arc<SealedMemory>> = OnceLock::new();
        if let Some(memory) = MEMORY.get() {
            return Ok(Self {
                ranges,
                memory: Arc::clone(memory),
            });
        }
        let bytes: Vec<u8> = (0..PATTERN_PERIOD + EXTENT_LEN_MIN)
            .map(pattern_byte)
            .collect();
        let made = SealedMemory::new("ropewalk-pattern", &bytes);
        let made = made.map_err(|error| StoreError::from_io(Operation::Create, "mem:", &error))?;
        // When two threads come first at once, one of the two memories is dropped again.
        let memory = Arc::clone(MEMORY.get_or_init(|| Arc::new(made)));
        Ok(Self { ranges, memory })
    }

    /// The ranges held.
    #[must_use]
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Where in the memory `offset` lies and how many of `len` bytes follow in one piece.
    fn place(&self, offset: u64, len: u64) -> Result<(usize, usize), StoreError> {
        let wanted = Range {
            start: offset,
            end: offset.saturating_add(len),
        };
        let held = self
            .ranges
            .clipped(wanted)
            .first()
            .filter(|held| held.start == offset);
        let held = held.ok_or(StoreError::NotHeld { range: wanted })?;
        let at = (offset % PATTERN_PERIOD) as usize;
        let rest = self.memory.bytes().len() - at;
        Ok((at, (held.len().min(rest as u64)) as usize))
    }
}

impl Source for PatternSource {
    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), StoreError> {
        while !buf.is_empty() {
            let (at, len) = self.place(offset, buf.len() as u64)?;
            let (head, rest) = buf.split_at_mut(len);
            head.copy_from_slice(&self.memory.bytes()[at..at + len]);
            offset += len as u64;
            buf = rest;
        }
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent<'_>, StoreError> {
        let (at, len) = self.place(offset, len)?;
        let file = self.memory.shared_file();
        Ok(Extent::File {
            file,
            offset: at as u64,
            len: len as u64,
        })
    }

    fn mapped(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let (at, held) = self.place(offset, len).ok()?;
        (held as u64 == len).then(|| &self.memory.bytes()[at..at + held])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ranges: impl IntoIterator<Item = Range>) -> PatternSource {
        PatternSource::new(RangeSet::from_ranges(ranges)).unwrap()
    }

    /// Reads, extents and views agree with the published byte function, also far out and across periods.
    #[test]
    fn every_way_to_read_gives_the_pattern() {
        use std::os::unix::fs::FileExt as _;
        let source = source([Range {
            start: 0,
            end: u64::MAX,
        }]);
        let offsets = [
            0,
            1,
            PATTERN_PERIOD - 1,
            PATTERN_PERIOD,
            3 * PATTERN_PERIOD - 5,
            1 << 40,
            (1 << 60) + 12345,
        ];
        for offset in offsets {
            let len = 1 << 20;
            let expected: Vec<u8> = (offset..offset + len as u64).map(pattern_byte).collect();
            let mut read = vec![0; len];
            source.read_at(offset, &mut read).unwrap();
            assert!(read == expected, "read_at {offset}");
            assert!(
                source.mapped(offset, len as u64) == Some(&expected),
                "mapped {offset}"
            );
            let Extent::File {
                file,
                offset: at,
                len: held,
            } = source.extent(offset, len as u64).unwrap()
            else {
                panic!("a memory file was expected");
            };
            assert_eq!(held, len as u64);
            file.read_exact_at(&mut read, at).unwrap();
            assert!(read == expected, "extent {offset}");
        }
    }

    /// A read longer than the memory goes round, and the pattern has its period and no shorter one.
    #[test]
    fn long_reads_go_round() {
        let source = source([Range {
            start: 0,
            end: 1 << 60,
        }]);
        let mut read = vec![0; 5 << 20];
        source.read_at(77, &mut read).unwrap();
        assert!(
            read.iter()
                .zip(77..)
                .all(|(byte, offset)| *byte == pattern_byte(offset))
        );
        let period = PATTERN_PERIOD as usize;
        assert_eq!(read[..period], read[period..2 * period]);
        assert_ne!(read[..1 << 19], read[1 << 19..1 << 20]);
    }

    /// Bytes outside the ranges held are refused, whichever way they are asked for.
    #[test]
    fn other_ranges_are_refused() {
        let source = source([Range {
            start: 100,
            end: 200,
        }]);
        let mut buf = [0; 50];
        assert!(matches!(
            source.read_at(90, &mut buf),
            Err(StoreError::NotHeld { .. })
        ));
        assert!(matches!(
            source.read_at(180, &mut buf),
            Err(StoreError::NotHeld { .. })
        ));
        assert!(source.mapped(180, 50).is_none());
        assert!(matches!(
            source.extent(180, 50),
            Ok(Extent::File { len: 20, .. })
        ));
        assert!(matches!(
            source.extent(200, 1),
            Err(StoreError::NotHeld { .. })
        ));
    }
}
