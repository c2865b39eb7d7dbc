//! A disk in virtual time: what was written, and what of that is still there after a power cut.
//!
//! Contents are marks: a range of a file has the mark of what was written there. Names change at once and reach stable storage in
//! their order, bytes in any order and in parts. A disk is of one host, or of a server that several nodes write to: there names are
//! safe at once, and only what a node has not synced is lost with it.

use std::collections::BTreeMap;

use ropewalk_model::{Range, RangeSet};

use crate::Chance;

/// Bytes that reach a disk together.
const PAGE_LEN: u64 = 4096;

/// What was written: what it is of, and at which distance from its place.
pub(crate) type Mark = u64;

/// Ranges of a file by their mark.
#[derive(Clone, Debug, Default)]
struct Contents(BTreeMap<Mark, RangeSet>);

impl Contents {
    fn write(&mut self, range: Range, mark: Mark) {
        for (_, ranges) in self.0.iter_mut().filter(|(other, _)| **other != mark) {
            ranges.remove(range);
        }
        self.0.entry(mark).or_default().insert(range);
    }

    fn of(&self, mark: Mark) -> RangeSet {
        self.0.get(&mark).cloned().unwrap_or_default()
    }

    fn len(&self) -> u64 {
        let ends = self.0.values().filter_map(RangeSet::last);
        ends.map(|range| range.end).max().unwrap_or(0)
    }
}

/// A write that no sync has covered.
#[derive(Clone, Debug)]
struct Dirty {
    number: u64,
    node: u32,
    range: Range,
    mark: Mark,
}

#[derive(Clone, Debug, Default)]
struct File {
    now: Contents,
    durable: Contents,
    dirty: Vec<Dirty>,
    // Of a journal: its bytes, and how many are on stable storage.
    log: Vec<u8>,
    log_synced: usize,
    // The node whose process has locked it.
    locked_by: Option<u32>,
}

#[derive(Clone, Debug)]
enum Naming {
    Give(String, u64),
    Move(String, String),
    Remove(String),
}

/// The disk of a host, or of a server. It outlives transfers: hand it to the next one.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    // Changes of names that are not safe, in their order.
    pending: Vec<Naming>,
    files: BTreeMap<u64, File>,
    inodes: u64,
    writes: u64,
}

fn apply(names: &mut BTreeMap<String, u64>, naming: &Naming) {
    match naming {
        Naming::Give(name, inode) => drop(names.insert(name.clone(), *inode)),
        Naming::Move(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Naming::Remove(name) => drop(names.remove(name)),
    }
}

impl Disk {
    fn change(&mut self, naming: Naming) {
        apply(&mut self.names, &naming);
        self.pending.push(naming);
    }

    /// Names, each once, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub(crate) fn inode(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// Whether a file has a name.
    pub(crate) fn has_inode(&self, inode: u64) -> bool {
        self.names.values().any(|named| *named == inode)
    }

    /// The file of this name, made where it is missing.
    pub(crate) fn open(&mut self, name: &str) -> u64 {
        if let Some(inode) = self.inode(name) {
            return inode;
        }
        self.inodes += 1;
        self.files.insert(self.inodes, File::default());
        self.change(Naming::Give(name.to_owned(), self.inodes));
        self.inodes
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> bool {
        let is_there = self.inode(from).is_some();
        if is_there {
            self.change(Naming::Move(from.to_owned(), to.to_owned()));
        }
        is_there
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.change(Naming::Remove(name.to_owned()));
    }

    pub(crate) fn sync_names(&mut self) {
        for naming in self.pending.drain(..) {
            apply(&mut self.durable_names, &naming);
        }
    }

    fn file(&mut self, inode: u64) -> &mut File {
        self.files.entry(inode).or_default()
    }

    pub(crate) fn write(&mut self, node: u32, inode: u64, range: Range, mark: Mark) {
        self.writes += 1;
        let number = self.writes;
        let file = self.file(inode);
        file.now.write(range, mark);
        file.dirty.push(Dirty {
            number,
            node,
            range,
            mark,
        });
    }

    /// A sync of a node begins: what [`Disk::end_sync`] makes safe.
    pub(crate) fn begin_sync(&self) -> u64 {
        self.writes
    }

    pub(crate) fn end_sync(&mut self, node: u32, until: u64) {
        for file in self.files.values_mut() {
            let is_covered = |dirty: &mut Dirty| dirty.node == node && dirty.number <= until;
            for dirty in file.dirty.extract_if(.., is_covered) {
                file.durable.write(dirty.range, dirty.mark);
            }
        }
        // Files are synced with their names.
        self.sync_names();
    }

    /// Length of a file now.
    pub(crate) fn len(&self, inode: u64) -> u64 {
        self.files.get(&inode).map_or(0, |file| file.now.len())
    }

    /// Where a file has this mark now.
    pub(crate) fn marked(&self, inode: u64, mark: Mark) -> RangeSet {
        let file = self.files.get(&inode);
        file.map_or_else(RangeSet::new, |file| file.now.of(mark))
    }

    /// The same of what a power cut leaves.
    pub(crate) fn durable(&self, inode: u64, mark: Mark) -> RangeSet {
        let file = self.files.get(&inode);
        file.map_or_else(RangeSet::new, |file| file.durable.of(mark))
    }

    pub(crate) fn lock(&mut self, inode: u64, node: u32) {
        self.file(inode).locked_by = Some(node);
    }

    pub(crate) fn is_locked(&self, inode: u64) -> bool {
        let file = self.files.get(&inode);
        file.is_some_and(|file| file.locked_by.is_some())
    }

    pub(crate) fn append(&mut self, inode: u64, bytes: &[u8]) {
        self.file(inode).log.extend(bytes);
    }

    pub(crate) fn sync_log(&mut self, inode: u64) {
        let file = self.file(inode);
        file.log_synced = file.log.len();
    }

    pub(crate) fn log(&self, inode: u64) -> &[u8] {
        self.files.get(&inode).map_or(&[], |file| &file.log)
    }

    /// A node's process has ended: its locks are free.
    pub(crate) fn release(&mut self, node: u32) {
        for file in self.files.values_mut() {
            if file.locked_by == Some(node) {
                file.locked_by = None;
            }
        }
    }

    /// A node's host loses its power: of what the node has not synced any part is there.
    ///
    /// * `is_own`: the disk is the host's. Otherwise names are safe, as what other nodes wrote.
    pub(crate) fn lose_power(&mut self, node: u32, is_own: bool, chance: &mut Chance) {
        if is_own {
            let kept = chance.below(self.pending.len() as u64 + 1) as usize;
            self.pending.truncate(kept);
        }
        self.sync_names();
        self.names = self.durable_names.clone();
        for file in self.files.values_mut() {
            let lost = file
                .dirty
                .extract_if(.., |dirty| dirty.node == node || is_own);
            for dirty in lost {
                if let Some(range) = part_of(dirty.range, chance) {
                    file.durable.write(range, dirty.mark);
                }
            }
            file.now = file.durable.clone();
            for dirty in &file.dirty {
                file.now.write(dirty.range, dirty.mark);
            }
            if (is_own || file.locked_by == Some(node)) && file.log.len() > file.log_synced {
                tear(&mut file.log, file.log_synced, chance);
                file.log_synced = file.log.len();
            }
        }
        self.release(node);
    }
}

/// What of a write that was not synced is there: all, nothing, or some pages.
fn part_of(range: Range, chance: &mut Chance) -> Option<Range> {
    let pages = range.len().div_ceil(PAGE_LEN);
    let (from, to) = match chance.below(4) {
        0 => return None,
        1 => (0, pages),
        _ => {
            let from = chance.below(pages);
            (from, from + chance.below(pages - from + 1))
        }
    };
    let start = range.start + from * PAGE_LEN;
    let end = (range.start + to * PAGE_LEN).min(range.end);
    (start < end).then(|| Range::new(start, end))
}

/// Cuts what was not synced somewhere, and may damage a byte of what is left of it.
fn tear(log: &mut Vec<u8>, synced: usize, chance: &mut Chance) {
    let unsynced = (log.len() - synced) as u64;
    log.truncate(synced + chance.below(unsynced + 1) as usize);
    let left = (log.len() - synced) as u64;
    if left > 0 && chance.below(2) > 0 {
        let at = synced + chance.below(left) as usize;
        log[at] ^= 1 << chance.below(8);
    }
}
