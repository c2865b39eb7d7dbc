//! One node's sink: what is written where, and what is recorded of it.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::journal::{
    Adopt, Header, Locks, Records, Safe, Takeover, Unit, decode, ending, is_worth_keeping, parts_of,
};
use ropewalk_model::{Layout, Range, RangeSet, WholeFiles};
use ropewalk_proto::control;
use ropewalk_proto::coordinator::Destinations;
use ropewalk_proto::node::Settled;

use super::{Found, TreeFile, Trees, digest};
use crate::disk::{Disk, Mark};

mod look;

const HOST: [u8; 16] = *b"simulated-host-1";

/// What an earlier transfer left and this one goes on with.
#[derive(Debug)]
struct Leftover {
    journals: Vec<String>,
    places: Vec<String>,
    files: Vec<Left>,
    takeover: Takeover,
}

#[derive(Debug)]
struct Left {
    object: u32,
    // Its present name.
    name: String,
    inode: u64,
    safe: RangeSet,
    units: Vec<Unit>,
}

/// A file, its inode, bytes of it, and their hash.
type Place = (u32, u64, Range, Option<[u8; 32]>);

/// One node's sink. See the module documentation.
#[derive(Debug)]
pub(crate) struct Sink {
    node: u32,
    is_shared: bool,
    files: Vec<TreeFile>,
    pub layout: Layout,
    temporary: String,
    journal_name: String,
    journal: Option<(u64, Records)>,
    is_recording: bool,
    recorded: RangeSet,
    unchanged: RangeSet,
    adopted: RangeSet,
    units: Vec<Unit>,
    leftovers: Vec<Leftover>,
    has_failed: bool,
    refused: RangeSet,
    // Something stands at the destination: files get their names as they are safe.
    merges: bool,
    whole: WholeFiles,
    named: BTreeSet<u32>,
}

fn id_of(name: &str) -> Option<&str> {
    name.strip_prefix(".to.")
}

impl Sink {
    /// A sink that finds out what is there; then [`Sink::prepare`] until it is done.
    ///
    /// * `leads`: of a shared copy, the node that looks. The others get what it found.
    pub fn new(
        node: u32,
        trees: &Trees,
        parts: &[control::Part],
        leads: Option<Adopt>,
        disk: &mut Disk,
    ) -> Self {
        let (files, layout) = trees.laid_out(parts);
        let is_shared = trees.destinations == Destinations::Shared;
        let temporary = format!(".to.{:06}", trees.transfer);
        let journal_name = match is_shared {
            true => format!("{temporary}.{node:06}.journal"),
            false => format!("{temporary}.journal"),
        };
        let mut sink = Self {
            node,
            is_shared,
            files,
            layout,
            temporary,
            journal_name,
            journal: None,
            is_recording: true,
            recorded: RangeSet::new(),
            unchanged: RangeSet::new(),
            adopted: RangeSet::new(),
            units: Vec::new(),
            leftovers: Vec::new(),
            has_failed: false,
            refused: RangeSet::new(),
            merges: disk.names().any(|name| name.starts_with("to/")),
            whole: WholeFiles::default(),
            named: BTreeSet::new(),
        };
        if let Some(adopt) = leads {
            sink.look(disk, adopt);
        }
        let inode = disk.open(&sink.journal_name);
        disk.lock(inode, node);
        let header = Header {
            host: HOST,
            locks: Locks::OfAllHosts,
        };
        disk.append(inode, &header.encode());
        if is_shared {
            disk.sync_log(inode);
        }
        sink.journal = Some((inode, Records::default()));
        sink
    }

    fn final_name(&self, object: u32) -> String {
        format!("to/{}", self.files[object as usize].path)
    }

    fn staged_name(&self, object: u32) -> String {
        format!("{}/{}", self.temporary, self.files[object as usize].path)
    }

    fn object(&self, path: &[u8]) -> Option<u32> {
        let at = self
            .files
            .binary_search_by(|file| file.path.as_bytes().cmp(path));
        at.ok().map(|at| at as u32)
    }

    fn space(&self, object: u32) -> Range {
        let piece = self
            .layout
            .pieces()
            .iter()
            .find(|piece| piece.object == object);
        piece.map_or(Range::new(0, 0), |piece| piece.range)
    }

    fn in_space(&self, object: u32, range: Range) -> Range {
        let start = self.space(object).start;
        Range::new(start + range.start, start + range.end)
    }

    fn write_safe(&mut self, disk: &mut Disk, records: &[Place]) {
        let files = &self.files;
        let safe = records.iter().map(|(object, inode, range, digest)| {
            let file = &files[*object as usize];
            Safe {
                number: *object,
                path: file.path.as_bytes(),
                version: file.version(),
                shift: None,
                inode: *inode,
                range: *range,
                digest: *digest,
            }
        });
        if let Some((inode, records)) = &mut self.journal {
            disk.append(*inode, &records.safe(safe));
        }
    }

    fn write_records(&mut self, disk: &mut Disk, make: impl FnOnce(&mut Records) -> Vec<u8>) {
        if let Some((inode, records)) = &mut self.journal {
            let bytes = make(records);
            disk.append(*inode, &bytes);
        }
    }

    fn sync_journal(&self, disk: &mut Disk) {
        if let Some((inode, _)) = &self.journal {
            disk.sync_log(*inode);
        }
    }

    /// Writes bytes of the data space that are marked so.
    pub fn write(&self, disk: &mut Disk, range: Range, mark: Mark) {
        let Some(piece) = self.layout.locate(range.start) else {
            panic!("node {} writes {range}, which is no file's", self.node);
        };
        assert!(range.end <= piece.range.end, "{range} is of two files");
        let inode = disk.open(&self.staged_name(piece.object));
        let start = piece.object_offset;
        disk.write(
            self.node,
            inode,
            Range::new(start, start + range.len()),
            mark,
        );
    }

    /// Whether bytes of the data space are marked so in its file.
    pub fn has_mark(&self, disk: &Disk, range: Range, mark: Mark) -> bool {
        self.layout.locate(range.start).is_some_and(|piece| {
            let start = piece.object_offset;
            let inode = disk.inode(&self.staged_name(piece.object)).unwrap_or(0);
            let own = Range::new(start, start + range.len());
            disk.marked(inode, mark).contains_range(own)
        })
    }

    /// Appends what a sync has made safe; then [`Sink::sync_record`].
    pub fn record(&mut self, disk: &mut Disk, settled: &Settled) {
        let safe = self.layout.ranges().intersection(&settled.bytes);
        let fresh = safe.difference(&self.recorded);
        if fresh.is_empty() || !self.is_recording {
            return;
        }
        let units = settled.units.iter();
        let units: Vec<Unit> = units
            .map(|&(range, digest)| Unit { range, digest })
            .collect();
        let mut records = Vec::new();
        for (object, range, digest) in parts_of(&self.layout, &fresh, &units) {
            let inode = disk.inode(&self.staged_name(object)).unwrap_or(0);
            records.push((object, inode, range, digest));
        }
        self.write_safe(disk, &records);
        self.recorded = self.recorded.union(&fresh);
    }

    pub fn sync_record(&self, disk: &mut Disk) {
        self.sync_journal(disk);
        disk.sync_names();
    }

    pub fn note_ending(&mut self, disk: &mut Disk) {
        if self.is_recording {
            self.write_records(disk, |_| ending());
        }
    }

    pub fn keep_more(&mut self) {
        self.has_failed = true;
    }

    pub fn give_up(&mut self, refused: &RangeSet) {
        self.refused = refused.clone();
    }

    /// Whether all bytes of units that were hashed, adopted ones included, are as they were.
    pub fn reads_back(&self, disk: &Disk, digests: &[(Range, [u8; 32])]) -> Result<(), String> {
        let adopted = self.units.iter().map(|unit| (unit.range, unit.digest));
        for (range, wanted) in digests.iter().copied().chain(adopted) {
            let Some(piece) = self.layout.locate(range.start) else {
                return Err(format!("{range} is no file's"));
            };
            let own = Range::new(piece.object_offset, piece.object_offset + range.len());
            let mark = self.files[piece.object as usize].mark(0);
            let inode = disk.inode(&self.staged_name(piece.object)).unwrap_or(0);
            let is_there = disk.marked(inode, mark).contains_range(own);
            if !is_there || digest(mark, own) != wanted {
                return Err(format!("{range} differs"));
            }
        }
        Ok(())
    }

    /// Bytes of the data space that are there, and right, after a power cut.
    pub fn durable(&self, disk: &Disk) -> RangeSet {
        let mut all = RangeSet::new();
        for object in 0..self.files.len() as u32 {
            let mark = self.files[object as usize].mark(0);
            let names = [self.staged_name(object), self.final_name(object)];
            for inode in names.iter().filter_map(|name| disk.inode(name)) {
                for range in disk.durable(inode, mark).iter() {
                    all.insert(self.in_space(object, range));
                }
            }
        }
        all
    }

    pub fn names_early(&self) -> bool {
        self.merges && !self.is_shared
    }

    /// Gives files their names that lack no byte of these and of what was there; how many.
    pub fn name_whole(&mut self, disk: &mut Disk, safe: &RangeSet) -> u64 {
        let whole = self.whole.take(&self.layout, &safe.union(&self.adopted));
        let mut named = 0;
        for object in whole.into_iter().map(|piece| piece.object) {
            if disk.rename(&self.staged_name(object), &self.final_name(object)) {
                self.named.insert(object);
                named += 1;
            }
        }
        named
    }

    /// Gives all files that are not omitted their names.
    pub fn commit(&mut self, disk: &mut Disk, omitted: &BTreeSet<u32>) {
        disk.end_sync(self.node, disk.begin_sync());
        for object in 0..self.files.len() as u32 {
            let name = self.staged_name(object);
            if !omitted.contains(&object) && disk.inode(&name).is_some() {
                disk.rename(&name, &self.final_name(object));
            }
        }
        disk.sync_names();
        if omitted.is_empty() {
            self.remove(disk);
        }
    }

    /// Gives the files that lack no byte their names, and keeps the others if that is worth it. Whether any has its name.
    pub fn commit_whole_files(&mut self, disk: &mut Disk, missing: &RangeSet) -> bool {
        self.note_ending(disk);
        let objects = 0..self.files.len() as u32;
        let lacks = |object: &u32| !missing.clipped(self.space(*object)).is_empty();
        let omitted: BTreeSet<u32> = objects.clone().filter(lacks).collect();
        let is_new = |object: u32| {
            self.named.contains(&object) || disk.inode(&self.staged_name(object)).is_some()
        };
        if !objects
            .into_iter()
            .any(|object| !omitted.contains(&object) && is_new(object))
        {
            self.set_aside(disk);
            return false;
        }
        disk.end_sync(self.node, disk.begin_sync());
        let kept = self.worth_keeping(&omitted);
        if !kept.is_empty() {
            let aside = format!("{}-kept", self.temporary);
            for object in kept {
                let to = format!("{aside}/{}", self.files[object as usize].path);
                disk.rename(&self.staged_name(object), &to);
            }
            let journal = format!("{aside}.journal");
            disk.rename(&self.journal_name, &journal);
            disk.sync_names();
            self.journal_name = journal;
            self.commit(disk, &omitted);
            self.remove_staged(disk);
        } else {
            self.commit(disk, &omitted);
            self.remove(disk);
        }
        self.end(disk);
        true
    }

    /// Files that a later transfer can go on with; none where little of them is safe.
    fn worth_keeping(&self, omitted: &BTreeSet<u32>) -> Vec<u32> {
        let safe = |object: u32| match self.refused.clipped(self.space(object)).is_empty() {
            true => self.recorded.clipped(self.space(object)).len_bytes(),
            false => 0,
        };
        let kept: Vec<u32> = omitted.iter().copied().filter(|&o| safe(o) > 0).collect();
        let sum = kept.iter().map(|object| safe(*object)).sum();
        match is_worth_keeping(sum, self.has_failed, !self.adopted.is_empty()) {
            true => kept,
            false => Vec::new(),
        }
    }

    /// Ends without names: what is worth it stays.
    pub fn set_aside(&mut self, disk: &mut Disk) {
        let all: BTreeSet<u32> = (0..self.files.len() as u32).collect();
        let together = self.recorded_together(disk);
        let is_worth_it = match self.is_shared {
            true => is_worth_keeping(together, self.has_failed, !self.adopted.is_empty()),
            false => !self.worth_keeping(&all).is_empty(),
        };
        if !is_worth_it {
            self.remove(disk);
        }
        self.end(disk);
    }

    /// Bytes that all journals of a copy record.
    fn recorded_together(&self, disk: &Disk) -> u64 {
        let own = |name: &&str| name.starts_with(&self.temporary) && name.ends_with(".journal");
        let logs = disk.names().filter(own).filter_map(|name| disk.inode(name));
        let logs = logs.filter_map(|inode| Header::decode(disk.log(inode)).ok());
        let files = logs.flat_map(|(_, records)| decode(records));
        files.map(|file| file.safe.len_bytes()).sum()
    }

    fn remove_staged(&self, disk: &mut Disk) {
        let begin = format!("{}/", self.temporary);
        let below = disk.names().filter(|name| name.starts_with(&begin));
        for name in below.map(str::to_owned).collect::<Vec<_>>() {
            disk.remove(&name);
        }
    }

    /// Removes all that is temporary.
    pub fn remove(&mut self, disk: &mut Disk) {
        self.remove_staged(disk);
        let own = |name: &&str| match self.is_shared {
            true => name.starts_with(&self.temporary) && name.ends_with(".journal"),
            false => *name == self.journal_name,
        };
        let journals: Vec<String> = disk.names().filter(own).map(str::to_owned).collect();
        for name in journals {
            disk.remove(&name);
        }
        self.end(disk);
    }

    /// Nothing more is recorded, and the lock is free.
    pub fn end(&mut self, disk: &mut Disk) {
        self.is_recording = false;
        if self.journal.take().is_some() {
            disk.release(self.node);
        }
    }

    /// Bytes of the data space by the paths of their files.
    pub fn by_path(&self, ranges: &RangeSet) -> BTreeMap<String, RangeSet> {
        let mut all = BTreeMap::new();
        for (object, file) in (0..).zip(&self.files) {
            let space = self.space(object);
            let own = ranges.clipped(space);
            let own = own
                .iter()
                .map(|r| Range::new(r.start - space.start, r.end - space.start));
            all.insert(file.path.clone(), RangeSet::from_ranges(own));
        }
        all
    }

    /// What was there; known when it is prepared.
    pub fn found_there(&self) -> Found {
        Found {
            unchanged: self.unchanged.clone(),
            adopted: self.adopted.clone(),
        }
    }

    /// The hash of bytes that are marked so.
    pub fn digest(&self, range: Range, mark: Mark) -> [u8; 32] {
        let start = self.layout.locate(range.start);
        let start = start.map_or(0, |piece| piece.object_offset);
        digest(mark, Range::new(start, start + range.len()))
    }
}
