//! What a node exposes of a region: ranges in memory and in files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::region::frame::{Part, RANGES_MAX, Status};
use ropewalk_proto::region::{Rule, Served};
use ropewalk_store::Buffer;

use crate::RegionError;

/// A range of a region that a node holds.
#[derive(Debug)]
pub struct Exposed {
    range: Range,
    what: What,
    is_owned: bool,
}

#[derive(Debug)]
enum What {
    Memory(Buffer),
    Path(PathBuf, u64),
    File(File, u64),
}

impl Exposed {
    /// All of a buffer, from an offset of the region on. The program may read it with [`Buffer::read`], and write it with [`Buffer::write`], while it
    /// is served. One that cannot be written is for [`Rule::ReadOnly`], or for holders that are no owners.
    #[must_use]
    pub fn memory(start: u64, buffer: Buffer) -> Self {
        let range = Range::new(start, start.saturating_add(buffer.len()));
        Self {
            range,
            what: What::Memory(buffer),
            is_owned: false,
        }
    }

    /// A range whose bytes are in a file, from an offset of the file on. The file is there, and long enough.
    #[must_use]
    pub fn file(range: std::ops::Range<u64>, path: impl AsRef<Path>, file_offset: u64) -> Self {
        Self {
            range: Range::new(range.start, range.end),
            what: What::Path(path.as_ref().into(), file_offset),
            is_owned: false,
        }
    }

    /// This node is the owner: under [`Rule::Owner`] puts are sent here, and one node owns each byte.
    #[must_use]
    pub fn owned(mut self) -> Self {
        self.is_owned = true;
        self
    }

    fn open(self, size: u64, rule: Rule) -> Result<Self, RegionError> {
        let range = self.range;
        if range.is_empty() || range.end > size {
            let text = format!("{range} is empty, or ends beyond the {size} bytes of the region");
            return Err(RegionError::Misuse(text));
        }
        let is_written = match rule {
            Rule::ReadOnly => false,
            Rule::All => true,
            Rule::Owner => self.is_owned,
        };
        let what = match self.what {
            What::Memory(buffer) if is_written && !buffer.is_writable() => {
                return Err(RegionError::Misuse(format!(
                    "the buffer for {range} can only be read; lend one that can be written"
                )));
            }
            What::Path(path, offset) => {
                let open = || {
                    let file = File::options().read(true).write(is_written).open(&path)?;
                    let end = offset.checked_add(range.len());
                    let len = file.metadata()?.len();
                    match end.is_some_and(|end| end <= len) {
                        true => Ok(file),
                        false => Err(std::io::Error::other(format!(
                            "it has {len} bytes, and {} from {offset} on are to be exposed",
                            range.len()
                        ))),
                    }
                };
                let file = open().map_err(|source| RegionError::File {
                    path: path.clone(),
                    source,
                });
                What::File(file?, offset)
            }
            what => what,
        };
        Ok(Self { what, ..self })
    }
}

/// Everything that a node exposes of one region.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) served: Served,
    /// In order; none overlap.
    parts: Vec<Exposed>,
}

/// A refusal: its code and its text.
type Refusal = (Status, String);

impl Parts {
    pub(crate) fn open(size: u64, rule: Rule, parts: Vec<Exposed>) -> Result<Self, RegionError> {
        if parts.len() > RANGES_MAX {
            let text = format!("{} ranges are more than {RANGES_MAX}", parts.len());
            return Err(RegionError::Misuse(text));
        }
        let opened = parts.into_iter().map(|part| part.open(size, rule));
        let mut parts: Vec<Exposed> = opened.collect::<Result<_, _>>()?;
        parts.sort_by_key(|part| part.range.start);
        if let Some(pair) = parts
            .windows(2)
            .find(|pair| pair[0].range.overlaps(pair[1].range))
        {
            let (first, second) = (pair[0].range, pair[1].range);
            return Err(RegionError::Misuse(format!(
                "{first} and {second} overlap on one node"
            )));
        }
        let owned = parts.iter().filter(|part| part.is_owned);
        let served = Served {
            size,
            rule,
            held: RangeSet::from_ranges(parts.iter().map(|part| part.range)),
            owned: RangeSet::from_ranges(owned.map(|part| part.range)),
        };
        Ok(Self { served, parts })
    }

    /// Calls `each` with every stretch of a range that is in one buffer or file: what it is, where in it, how many bytes.
    fn stretches(
        &self,
        part: Part,
        mut each: impl FnMut(&What, u64, usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let range = part.range();
        let mut at = range.start;
        let first = self.parts.partition_point(|own| own.range.end <= at);
        for own in &self.parts[first..] {
            let Some(both) = own.range.intersect(Range::new(at, range.end)) else {
                break;
            };
            each(&own.what, both.start - own.range.start, both.len() as usize)?;
            at = both.end;
        }
        match at == range.end {
            true => Ok(()),
            false => Err((Status::Range, format!("{range} is not held here"))),
        }
    }

    /// Appends the bytes of checked parts, one after the other.
    pub(crate) fn append_to(&self, parts: &[Part], out: &mut Vec<u8>) -> Result<(), Refusal> {
        for part in parts {
            self.stretches(*part, |what, at, len| match what {
                What::Memory(buffer) => buffer.append_to(at, len as u64, out).map_err(storage),
                What::File(file, from) => {
                    let start = out.len();
                    out.resize(start + len, 0);
                    file.read_exact_at(&mut out[start..], from.saturating_add(at))
                        .map_err(storage)
                }
                What::Path(path, _) => Err(storage(path.display())),
            })?;
        }
        Ok(())
    }

    /// Writes checked parts, one after the other.
    pub(crate) fn write(&self, parts: &[Part], mut bytes: &[u8]) -> Result<(), Refusal> {
        for part in parts {
            let (mut here, rest) = bytes.split_at(part.len as usize);
            bytes = rest;
            self.stretches(*part, |what, at, len| {
                let (piece, behind) = here.split_at(len);
                here = behind;
                match what {
                    What::Memory(buffer) => buffer.write(at, piece).map_err(storage),
                    What::File(file, from) => file
                        .write_all_at(piece, from.saturating_add(at))
                        .map_err(storage),
                    What::Path(path, _) => Err(storage(path.display())),
                }
            })?;
        }
        Ok(())
    }

    /// Syncs files that may have been written.
    pub(crate) fn sync(&self) -> Result<(), RegionError> {
        if self.served.rule == Rule::ReadOnly {
            return Ok(());
        }
        for part in &self.parts {
            if let What::File(file, _) = &part.what {
                let synced = file.sync_data();
                let doing = "syncing a file of a region";
                synced.map_err(|source| RegionError::System { doing, source })?;
            }
        }
        Ok(())
    }
}

fn storage(error: impl std::fmt::Display) -> Refusal {
    (Status::Storage, error.to_string())
}
