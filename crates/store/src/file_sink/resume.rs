//! Continuing a file of rows where an earlier transfer ended.
//!
//! A file has bytes of several sources. Its journal describes each of them by name, size, modification time and shift (offset in the file
//! less offset in the source), and records which bytes of the file were received from it. So it does not matter where these lie in the
//! data space, what else a specification has, or which node sends them; bytes that are now to be those of another file, another version of
//! it, or another place in it, are sent again.
//!
//! What was left is one file, and is taken over as a whole. Bytes that no row writes are made what they would be in a new one: zeros, or
//! those of the file that has the final name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use ropewalk_model::journal::{
    Adopt, Recorded, Safe, Shift, Unit, Version, keep_largest, parts_of, pieces,
};
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::Row;
use super::copy::{self, CopyError};
use crate::claims::{Claim, Successor, give_name, seen};
use crate::error::StoreError;
use crate::file_systems::FileSystem;
use crate::identity::Identity;
use crate::open_files::lock;
use crate::progress::Stage;
use crate::{holes, sys};

/// Most bytes of zeros that are written at once where a file system has no holes.
const ZEROS_LEN: u64 = 1 << 20;

/// Which bytes of which file bytes of the data space are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Of the data space.
    pub range: Range,
    /// Of the first of them in the file.
    pub offset: u64,
    /// The last component of the file's path.
    pub name: Vec<u8>,
    /// Of the file.
    pub identity: Identity,
}

/// The sources of one file, numbered as in its journal, and where bytes of each lie in it.
#[derive(Debug, Default)]
pub(super) struct Sources {
    all: Vec<Source>,
    numbers: BTreeMap<(Vec<u8>, Version, u64), u32>,
    /// Objects are the sources' numbers, offsets are those of the file.
    layout: Layout,
}

#[derive(Debug)]
struct Source {
    name: Vec<u8>,
    version: Version,
    shift: Shift,
}

impl From<Identity> for Version {
    fn from(identity: Identity) -> Self {
        Self {
            len: identity.len,
            mtime_seconds: identity.mtime_seconds,
            mtime_nanoseconds: identity.mtime_nanoseconds,
        }
    }
}

impl Sources {
    /// Of one object of a layout.
    ///
    /// * `origins`: in the order of their bytes, each of which is in one.
    ///
    /// None where two bytes of the data space are one of the file: nothing says which of them it is.
    pub fn of(layout: &Layout, object: u32, origins: &[Origin]) -> Self {
        let own = layout.pieces().iter();
        let own: Vec<&Piece> = own.filter(|piece| piece.object == object).collect();
        let covered = covered(layout, object);
        if covered.len_bytes() != own.iter().map(|piece| piece.range.len()).sum::<u64>() {
            return Self::default();
        }
        let (mut sources, mut parts) = (Self::default(), Vec::new());
        for piece in own {
            let first = origins.partition_point(|origin| origin.range.end <= piece.range.start);
            for origin in &origins[first..] {
                let Some(range) = piece.range.intersect(origin.range) else {
                    break;
                };
                let offset = piece.object_offset + (range.start - piece.range.start);
                let in_source = origin.offset.wrapping_add(range.start - origin.range.start);
                let by = offset.wrapping_sub(in_source);
                parts.push(Piece {
                    range,
                    object: sources.add(origin, by, range.len()),
                    object_offset: offset,
                });
            }
        }
        match Layout::new(parts) {
            Ok(layout) => Self { layout, ..sources },
            Err(_) => Self::default(),
        }
    }

    /// The number of a source of which so many more bytes are wanted.
    fn add(&mut self, origin: &Origin, by: u64, wanted: u64) -> u32 {
        let version = origin.identity.into();
        let key = (origin.name.clone(), version, by);
        let number = *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(Source {
                name: origin.name.clone(),
                version,
                shift: Shift { by, wanted: 0 },
            });
            self.all.len() as u32 - 1
        });
        self.all[number as usize].shift.wanted += wanted;
        number
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What a journal says of one of them.
    fn safe(&self, number: u32, inode: u64, range: Range, digest: Option<[u8; 32]>) -> Safe<'_> {
        let source = &self.all[number as usize];
        Safe {
            number,
            path: &source.name,
            version: source.version,
            shift: Some(source.shift),
            inode,
            range,
            digest,
        }
    }

    /// All of them, as files of which nothing is safe.
    fn described(&self, inode: u64) -> impl Iterator<Item = Safe<'_>> {
        let numbers = 0..self.all.len() as u32;
        numbers.map(move |number| self.safe(number, inode, Range::new(0, 0), None))
    }

    /// The one that a record is about.
    fn find(&self, recorded: &Recorded) -> Option<u32> {
        let key = (recorded.path.clone(), recorded.version, recorded.shift?.by);
        self.numbers.get(&key).copied()
    }

    /// What of a record is about bytes that this transfer wants from the source: others it makes zeros.
    fn clipped(&self, number: u32, recorded: &Recorded) -> Recorded {
        let own = self.pieces(number);
        let wanted = RangeSet::from_ranges(own.map(in_file));
        let units = recorded.units.iter();
        let units = units.filter(|unit| wanted.contains_range(unit.range));
        Recorded {
            safe: recorded.safe.intersection(&wanted),
            units: units.copied().collect(),
            ..recorded.clone()
        }
    }

    fn pieces(&self, number: u32) -> impl Iterator<Item = &Piece> {
        let all = self.layout.pieces().iter();
        all.filter(move |piece| piece.object == number)
    }

    /// Bytes of the file, and units of them, as those of the data space; not units of which the data space has parts.
    fn in_space(&self, part: &Part) -> (RangeSet, Vec<Unit>) {
        let (mut safe, mut units) = (RangeSet::new(), Vec::new());
        for piece in self.pieces(part.number) {
            let own = in_file(piece);
            let in_space = |range: Range| {
                let start = piece.range.start + (range.start - own.start);
                Range::new(start, start + range.len())
            };
            let there = part.safe.clipped(own);
            safe = safe.union(&RangeSet::from_ranges(there.iter().map(in_space)));
            let is_whole = |unit: &&Unit| unit.range.intersect(own) == Some(unit.range);
            units.extend(part.units.iter().filter(is_whole).map(|unit| Unit {
                range: in_space(unit.range),
                ..*unit
            }));
        }
        (safe, units)
    }
}

/// Where a piece lies in its file.
fn in_file(piece: &Piece) -> Range {
    Range::new(piece.object_offset, piece.object_offset + piece.range.len())
}

/// Bytes of a file that rows write.
fn covered(layout: &Layout, object: u32) -> RangeSet {
    let own = layout.pieces().iter();
    let own = own.filter(|piece| piece.object == object);
    RangeSet::from_ranges(own.map(in_file))
}

/// What an earlier transfer left of a file.
struct Leftover {
    claim: Claim,
    /// All of its journals is of rows of this file.
    is_superseded: bool,
    /// The file, if it is of use; at most one.
    files: Vec<Found>,
}

struct Found {
    name: Vec<u8>,
    /// As the journal has it.
    inode: u64,
    parts: Vec<Part>,
    /// Bytes that this transfer wants.
    safe: RangeSet,
    units: Vec<Unit>,
}

/// Bytes of a file that are of one source.
struct Part {
    number: u32,
    safe: RangeSet,
    units: Vec<Unit>,
}

impl Row {
    pub(super) fn stage(&self) -> Stage<'_> {
        Stage {
            folder: &self.parent,
            folder_path: &self.parent_path,
            temporary: &self.temporary,
        }
    }

    /// Makes the journal.
    ///
    /// # Errors
    /// As [`Progress::begin`](crate::progress::Progress::begin): without one an own file is sent as a whole next time, and one that others
    /// write, too, cannot be written.
    pub(super) fn begin(&self) -> Result<(), StoreError> {
        lock(&self.progress).begin(&self.stage(), None)
    }

    /// Makes the journal and takes over what earlier transfers left: before the temporary file is made.
    ///
    /// # Errors
    /// As [`Row::begin`].
    pub(super) fn take_over(&self, adopt: Adopt) -> Result<(), StoreError> {
        if lock(&self.progress).is_off {
            return Ok(());
        }
        let leftovers = self.find_leftovers(adopt);
        self.begin()?;
        for leftover in leftovers {
            let heir = Heir {
                row: self,
                leftover: &leftover,
            };
            for at in heir.take(leftover.files.len(), leftover.is_superseded) {
                let found = &leftover.files[at];
                let units = found.units.iter().copied();
                lock(&self.progress).note_adopted(&found.safe, units);
            }
        }
        Ok(())
    }

    /// Other nodes write the same file.
    fn is_shared(&self) -> bool {
        lock(&self.progress).node.is_some()
    }

    fn find_leftovers(&self, adopt: Adopt) -> Vec<Leftover> {
        let claims = Claim::all(&self.parent, &self.name, &self.temporary, self.is_shared());
        let mut found: Vec<Leftover> = claims
            .into_iter()
            .map(|claim| Leftover {
                // What a copy of a whole file, or of a tree, has left is of use to such a one.
                is_superseded: !claim.is_in_place
                    && claim.recorded.iter().all(|file| file.shift.is_some()),
                files: self.find(&claim, adopt).into_iter().collect(),
                claim,
            })
            .collect();
        let files = found.iter_mut().map(|leftover| &mut leftover.files);
        keep_largest(files, |file| (0, file.safe.len_bytes()));
        found
    }

    /// The file of a leftover, if it is there and this transfer wants some of its bytes.
    fn find(&self, claim: &Claim, adopt: Adopt) -> Option<Found> {
        let (name, stat) = claim.names.iter().find_map(|name| {
            let stat = sys::stat_entry(claim.folder.as_fd(), name).ok()?;
            Some((name, stat))
        })?;
        // One that a commit has let others write is theirs.
        if stat.st_mode & 0o022 != 0 {
            return None;
        }
        let mut found = Found {
            name: name.clone(),
            inode: self.known_inode(stat.st_ino),
            parts: Vec::new(),
            safe: RangeSet::new(),
            units: Vec::new(),
        };
        for file in &claim.recorded {
            let Some(number) = self.sources.find(file) else {
                continue;
            };
            let file = self.sources.clipped(number, file);
            let safe = file.adoptable(file.version, adopt);
            if !file.is_seen(&seen(&stat), &safe) {
                return None;
            }
            let part = Part {
                number,
                safe,
                units: file.units,
            };
            let (safe, units) = self.sources.in_space(&part);
            found.safe = found.safe.union(&safe);
            found.units.extend(units);
            found.parts.push(part);
        }
        Some(found).filter(|found| !found.safe.is_empty())
    }

    fn known_inode(&self, inode: u64) -> u64 {
        let system = FileSystem::of(&self.parent);
        match system.is_some_and(FileSystem::keeps_inodes) {
            true => inode,
            false => 0,
        }
    }

    /// Describes all sources in the journal, so that the whole is known while little of it is safe.
    pub(super) fn describe(&self, inode: u64) {
        let inode = *self.inode.get_or_init(|| self.known_inode(inode));
        lock(&self.progress).describe(self.sources.described(inode));
    }

    /// Records bytes that are on stable storage.
    pub(super) fn record(&self, safe: &RangeSet, units: &[Unit]) {
        let layout = &self.sources.layout;
        let own = layout.ranges().intersection(safe);
        let inode = self.inode.get().copied().unwrap_or_default();
        lock(&self.progress).record(&self.stage(), &own, |journal, fresh| {
            let parts = parts_of(layout, fresh, units).into_iter();
            journal.append(
                parts
                    .map(|(number, range, digest)| self.sources.safe(number, inode, range, digest)),
            )
        });
    }

    /// Does not count bytes as worth keeping that are of a source of some of these.
    pub(super) fn give_up(&self, bytes: &RangeSet) {
        let pieces = self.sources.layout.pieces();
        let is_refused = |piece: &&Piece| !bytes.clipped(piece.range).is_empty();
        let refused: Vec<u32> = pieces.iter().filter(is_refused).map(|p| p.object).collect();
        let mut progress = lock(&self.progress);
        for piece in pieces.iter().filter(|p| refused.contains(&p.object)) {
            progress.recorded.remove(piece.range);
        }
    }

    /// Makes the bytes of a file that was taken over, and that no row writes, those of the file that stands there, else zeros.
    ///
    /// * `standing`: that file, and its length.
    pub(super) fn restore_rest(
        &self,
        file: &File,
        layout: &Layout,
        object: u32,
        standing: Option<(&File, u64)>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), CopyError> {
        let covered = covered(layout, object);
        let end = covered.last().map_or(0, |range| range.end);
        let kept_end = standing.map_or(0, |(_, len)| len);
        let end = end.max(kept_end);
        let len = file.metadata()?.len();
        if len > end {
            file.set_len(end)?;
        }
        let rest = RangeSet::from(Range::new(0, end)).difference(&covered);
        for range in rest.iter() {
            let kept = Range::new(range.start.min(kept_end), range.end.min(kept_end));
            if let Some((old, _)) = standing.filter(|_| !kept.is_empty())
                && copy::in_pieces(old, file, kept, is_over)? < kept.len()
            {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            // Beyond its end a file has none.
            let zeros = Range::new(range.start.max(kept_end), range.end.min(len));
            if zeros.start < zeros.end {
                clear(file, zeros)?;
            }
        }
        Ok(())
    }
}

fn clear(file: &File, range: Range) -> std::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(file, flags, range.start, range.len()).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; range.len().min(ZEROS_LEN) as usize];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ZEROS_LEN);
        holes::write(file, &zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// A file of this transfer, which takes over what an earlier one left.
struct Heir<'a> {
    row: &'a Row,
    leftover: &'a Leftover,
}

impl Successor for Heir<'_> {
    fn record(&self) -> bool {
        let sources = &self.row.sources;
        let records = self.leftover.files.iter().flat_map(|found| {
            found.parts.iter().flat_map(move |part| {
                let pieces = pieces(&part.safe, &part.units);
                pieces.map(move |(range, digest)| {
                    sources.safe(part.number, found.inode, range, digest)
                })
            })
        });
        lock(&self.row.progress).record_found(&self.row.stage(), records)
    }

    fn move_here(&self, at: usize) -> bool {
        if self.leftover.claim.is_in_place {
            return true;
        }
        let (from, name) = (&self.leftover.claim.folder, &self.leftover.files[at].name);
        let to = (self.row.parent.as_fd(), &*self.row.temporary);
        // A commit that did not end has given it its mode.
        let plain = sys::open_beneath(from.as_fd(), name, OFlags::PATH, Mode::empty())
            .and_then(|file| sys::set_mode(file.as_fd(), 0o600));
        plain
            .and_then(|()| give_name((from.as_fd(), name), to, self.row.is_shared()))
            .is_ok()
    }

    fn forget(&self, _: &[usize]) -> bool {
        let numbers = 0..self.row.sources.all.len() as u32;
        lock(&self.row.progress).forget(numbers)
    }

    fn remove_own(&self) {
        lock(&self.row.progress).remove_own_journal(&self.row.stage());
    }

    fn sync_names(&self) -> bool {
        sys::sync_folder(&self.row.parent).is_ok()
    }

    fn claim(&self) -> &Claim {
        &self.leftover.claim
    }
}

/// Where bytes of a file lie that the next transfer can go on with, and how many are safe, all files together.
pub(super) fn kept(rows: &[Row]) -> Option<(PathBuf, u64)> {
    let kept = rows
        .iter()
        .filter_map(|row| lock(&row.progress).kept.clone());
    kept.reduce(|(path, sum), (_, safe)| (path, sum + safe))
}
