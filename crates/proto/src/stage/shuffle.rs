//! A shuffle: the records of files, each by the hash of its key into one of the partitions.
//!
//! The first process of a node cuts files into records and collects them by partition; a block is the number of a partition
//! ([`PREFIX_LEN`] bytes, little endian) and whole records of it. Partition p is written by the last process of node p mod nodes.
//!
//! The partition of a key is part of the format of what is written: the same on every machine and in every version.

use std::ops::Range;

use super::{BLOCK_MAX, BLOCK_MIN};
use crate::control::StreamShuffle;

/// Partitions at most: their files are open at the same time.
pub const PARTITIONS_MAX: u32 = 4096;

/// Bytes in front of the records of a block: the number of their partition.
pub const PREFIX_LEN: usize = 4;

/// A first process collects at most so many bytes: one block for each partition.
pub const COLLECTED_MAX: u64 = 1 << 30;

/// How files are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// Lines, each with its end.
    Lines,
    /// So many bytes each.
    Fixed(u32),
}

/// The part of a record that its partition depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// All of it, without the end of the line.
    Whole,
    /// A field of a line; empty where the line has fewer.
    Field {
        /// From 1.
        number: u32,
        /// Between two fields.
        separator: u8,
    },
    /// Bytes of the record; those of them that it has.
    Part {
        /// From the begin of the record.
        offset: u32,
        /// How many.
        length: u32,
    },
}

/// What is shuffled, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// 1 to [`PARTITIONS_MAX`].
    pub partitions: u32,
    /// How files are cut.
    pub records: Records,
    /// What decides.
    pub key: Key,
    /// Partitions are sorted by key, then by the whole record.
    pub sort: bool,
}

/// Why a shuffle cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShuffleError {
    /// None, or too many.
    #[error("there are 1 to {PARTITIONS_MAX} partitions, not {partitions}")]
    Partitions {
        /// How many were wanted.
        partitions: u32,
    },
    /// More would be collected than [`COLLECTED_MAX`].
    #[error(
        "{partitions} partitions with a block of {block} bytes each are more than 1 GiB on each node; give fewer partitions or a smaller --block"
    )]
    Collected {
        /// How many.
        partitions: u32,
        /// Bytes.
        block: u64,
    },
    /// Records of no bytes, or longer than a block.
    #[error(
        "a record of {record} bytes fits no block: it may have 1 to {longest} bytes; give --block a larger size"
    )]
    Record {
        /// Bytes.
        record: u64,
        /// Bytes of the longest that fits.
        longest: usize,
    },
}

/// The longest record that a block holds, with the end of its line.
#[must_use]
pub fn longest_record(block: u64) -> usize {
    debug_assert!((BLOCK_MIN..=BLOCK_MAX).contains(&block));
    block as usize - PREFIX_LEN
}

impl Records {
    /// Bytes of the first record, its end among them; all where it is cut short.
    #[must_use]
    pub fn first(self, bytes: &[u8]) -> usize {
        match self {
            Self::Lines => bytes
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(bytes.len(), |at| at + 1),
            Self::Fixed(length) => bytes.len().min(length as usize),
        }
    }

    /// Calls `each` for each record, in order.
    pub fn each(self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let (record, rest) = bytes.split_at(self.first(bytes).max(1));
            each(record);
            bytes = rest;
        }
    }

    /// A record without the end of its line.
    #[must_use]
    pub fn content(self, record: &[u8]) -> &[u8] {
        match self {
            Self::Lines => record.strip_suffix(b"\n").unwrap_or(record),
            Self::Fixed(_) => record,
        }
    }
}

impl Key {
    /// Where the key of a record is in its content.
    #[must_use]
    pub fn range(self, content: &[u8]) -> Range<usize> {
        let len = content.len();
        match self {
            Self::Whole => 0..len,
            Self::Part { offset, length } => {
                let begin = len.min(offset as usize);
                begin..len.min(begin.saturating_add(length as usize))
            }
            Self::Field { number, separator } => {
                let mut begin = 0;
                for field in content
                    .split(|&byte| byte == separator)
                    .take(number as usize)
                    .enumerate()
                {
                    if field.0 + 1 == number as usize {
                        return begin..begin + field.1.len();
                    }
                    begin += field.1.len() + 1;
                }
                len..len
            }
        }
    }
}

impl Shuffle {
    /// The key of a record.
    #[must_use]
    pub fn key<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        let content = self.records.content(record);
        &content[self.key.range(content)]
    }

    /// The partition of a record.
    #[must_use]
    pub fn partition(&self, record: &[u8]) -> u32 {
        partition_of(self.key(record), self.partitions)
    }

    /// Whether it can be done with blocks of this length.
    ///
    /// # Errors
    /// [`ShuffleError`].
    pub fn check(&self, block: u64) -> Result<(), ShuffleError> {
        let partitions = self.partitions;
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(ShuffleError::Partitions { partitions });
        }
        if u64::from(partitions) * block > COLLECTED_MAX {
            return Err(ShuffleError::Collected { partitions, block });
        }
        let longest = longest_record(block);
        match self.records {
            Records::Fixed(record) if record == 0 || record as usize > longest => {
                Err(ShuffleError::Record {
                    record: record.into(),
                    longest,
                })
            }
            _ => Ok(()),
        }
    }

    /// As nodes are sent it.
    #[must_use]
    pub fn message(&self) -> StreamShuffle {
        let mut message = StreamShuffle {
            partitions: self.partitions,
            record: match self.records {
                Records::Lines => 0,
                Records::Fixed(record) => record,
            },
            sort: self.sort,
            ..StreamShuffle::default()
        };
        match self.key {
            Key::Whole => {}
            Key::Field { number, separator } => {
                (message.field, message.separator) = (number, separator.into());
            }
            Key::Part { offset, length } => (message.offset, message.length) = (offset, length),
        }
        message
    }
}

impl From<&StreamShuffle> for Shuffle {
    fn from(message: &StreamShuffle) -> Self {
        Self {
            partitions: message.partitions,
            records: match message.record {
                0 => Records::Lines,
                record => Records::Fixed(record),
            },
            key: match (message.field, message.length) {
                (0, 0) => Key::Whole,
                (0, length) => Key::Part {
                    offset: message.offset,
                    length,
                },
                (number, _) => Key::Field {
                    number,
                    // A byte; the rest was never set.
                    separator: message.separator as u8,
                },
            },
            sort: message.sort,
        }
    }
}

/// The partition of a key, from 0: the first 8 bytes of its BLAKE3, little endian, times the partitions, over 2^64.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    let hash = blake3::hash(key);
    let (first, _) = hash.as_bytes().split_at(8);
    let number = first.try_into().map_or(0, u64::from_le_bytes);
    // Below `partitions`.
    ((u128::from(number) * u128::from(partitions)) >> 64) as u32
}

/// The file of a partition.
#[must_use]
pub fn part_name(partition: u32) -> String {
    format!("part-{partition:05}")
}

/// A block's partition and records; `None` of a block that is too short.
#[must_use]
pub fn split(block: &[u8]) -> Option<(u32, &[u8])> {
    let (number, records) = block.split_first_chunk::<PREFIX_LEN>()?;
    Some((u32::from_le_bytes(*number), records))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys keep their partitions: what was written by another version is found again.
    #[test]
    fn partitions_of_keys_stay() {
        let of = |key: &str| partition_of(key.as_bytes(), 1000);
        // The hash begins with af1349b9f5f9a1a6: 0.6509 of 2^64.
        assert_eq!(of(""), 650);
        assert_eq!(partition_of(b"", 1), 0);
        let mut counts = [0_u32; 5];
        for number in 0..50_000 {
            counts[partition_of(number.to_string().as_bytes(), 5) as usize] += 1;
        }
        // Four standard deviations of a binomial count.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 358),
            "{counts:?}"
        );
    }

    /// Fields and parts are those that were named; what a record lacks is empty.
    #[test]
    fn keys_are_parts_of_records() {
        let of = |records, key, record: &'static str| {
            let shuffle = Shuffle {
                partitions: 1,
                records,
                key,
                sort: false,
            };
            std::str::from_utf8(shuffle.key(record.as_bytes())).unwrap()
        };
        let field = |number| Key::Field {
            number,
            separator: b',',
        };
        for (number, record, key) in [
            (1, "a,bb,c\n", "a"),
            (2, "a,bb,c\n", "bb"),
            (3, "a,bb,c\n", "c"),
            (4, "a,bb,c\n", ""),
            (2, "a,,c\n", ""),
            (1, "\n", ""),
            (1, "a", "a"),
        ] {
            assert_eq!(of(Records::Lines, field(number), record), key, "{record:?}");
        }
        let part = |offset, length| Key::Part { offset, length };
        for (key, record, expected) in [
            (part(1, 2), "abcd\n", "bc"),
            (part(3, 9), "abcd\n", "d"),
            (part(9, 1), "abcd\n", ""),
            (part(0, u32::MAX), "abcd\n", "abcd"),
            (Key::Whole, "abcd\n", "abcd"),
        ] {
            assert_eq!(of(Records::Lines, key, record), expected);
        }
        assert_eq!(of(Records::Fixed(3), Key::Whole, "ab\n"), "ab\n");
    }

    /// What cannot be done is named.
    #[test]
    fn bounds_are_kept() {
        let shuffle = |partitions, records| Shuffle {
            partitions,
            records,
            key: Key::Whole,
            sort: false,
        };
        let block = 1 << 16;
        assert_eq!(shuffle(4096, Records::Lines).check(block), Ok(()));
        assert_eq!(
            shuffle(1, Records::Fixed((1 << 16) - 4)).check(block),
            Ok(())
        );
        for (wrong, text) in [
            (shuffle(0, Records::Lines), "1 to 4096"),
            (shuffle(4097, Records::Lines), "1 to 4096"),
            (shuffle(1, Records::Fixed((1 << 16) - 3)), "65532"),
        ] {
            let error = wrong.check(block).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let error = shuffle(4096, Records::Lines).check(1 << 20).unwrap_err();
        assert!(error.to_string().contains("--block"), "{error}");
    }

    fn shuffles() -> impl Strategy<Value = Shuffle> {
        let records = prop_oneof![Just(Records::Lines), (1..9_u32).prop_map(Records::Fixed)];
        let key = prop_oneof![
            Just(Key::Whole),
            (1..4_u32).prop_map(|number| Key::Field {
                number,
                separator: b','
            }),
            (0..4_u32, 1..4_u32).prop_map(|(offset, length)| Key::Part { offset, length }),
        ];
        (1..9_u32, records, key, any::<bool>()).prop_map(|(partitions, records, key, sort)| {
            Shuffle {
                partitions,
                records,
                key,
                sort,
            }
        })
    }

    proptest! {
        /// Records together are the bytes; each has one partition, which depends on its key alone; messages carry all of it.
        #[test]
        fn records_have_one_partition(
            shuffle in shuffles(),
            bytes in prop::collection::vec(prop::sample::select(b"ab,\n".to_vec()), 0..60),
        ) {
            prop_assert_eq!(Shuffle::from(&shuffle.message()), shuffle);
            let mut together = Vec::new();
            shuffle.records.each(&bytes, |record| {
                together.extend_from_slice(record);
                let partition = shuffle.partition(record);
                assert!(partition < shuffle.partitions);
                assert_eq!(partition, partition_of(shuffle.key(record), shuffle.partitions));
                if shuffle.records == Records::Lines {
                    let content = shuffle.records.content(record);
                    assert!(!content.contains(&b'\n'));
                    assert_eq!(shuffle.partition(content), partition, "with and without the end");
                }
            });
            prop_assert_eq!(together, bytes);
        }
    }
}
