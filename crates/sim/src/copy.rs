//! Trees that are copied to simulated disks.
//!
//! What a journal says, what of it is adopted, in which order, and what is kept, is decided by `ropewalk_model::journal`, and when it
//! is recorded by `ropewalk_proto::node`. Here is only what a disk is asked for.

use std::collections::BTreeMap;

use ropewalk_model::journal::Version;
use ropewalk_model::{Layout, Piece, Range, RangeSet};
use ropewalk_proto::control;
use ropewalk_proto::coordinator::Destinations;

use crate::disk::Mark;

mod check;
mod sink;

pub(crate) use sink::Sink;

/// A file of a tree: version `number` of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeFile {
    /// Its path.
    pub path: String,
    /// Its length in bytes.
    pub len: u64,
    /// Contents and modification time are another version's for each number.
    pub number: u32,
}

impl TreeFile {
    fn version(&self) -> Version {
        Version {
            len: self.len,
            mtime_seconds: self.number.into(),
            mtime_nanoseconds: 0,
        }
    }

    /// What bytes of it are marked with that lie so far from their place.
    pub(crate) fn mark(&self, shift: u64) -> Mark {
        let text = format!("{}\0{}\0{shift}", self.path, self.number);
        // FNV-1a.
        let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold)
    }
}

/// The hash of a unit of these contents.
pub(crate) fn digest(mark: Mark, range: Range) -> [u8; 32] {
    let mut digest = [0; 32];
    let parts = [mark, range.start, range.end];
    for (place, part) in digest.chunks_exact_mut(8).zip(parts) {
        place.copy_from_slice(&part.to_le_bytes());
    }
    digest
}

/// A copy of trees, instead of rows.
#[derive(Clone, Debug)]
pub struct Trees {
    /// The trees, which have no path in common: files sorted by path.
    pub trees: Vec<Vec<TreeFile>>,
    /// Number of the tree that each sender has; those with one number are replicas.
    pub held: BTreeMap<u32, usize>,
    /// How the destinations relate.
    pub destinations: Destinations,
    /// Each transfer to one destination has another number.
    pub transfer: u32,
}

impl Trees {
    /// What is reported of a tree.
    pub(crate) fn opened(&self, node: u32) -> Option<control::OpenedSource> {
        let tree = *self.held.get(&node)?;
        let files = &self.trees[tree];
        Some(control::OpenedSource {
            manifest_root: root(tree),
            manifest_length: list(tree).len() as u64,
            data_length: files.iter().map(|file| file.len).sum(),
            file_count: files.len() as u64,
            ..control::OpenedSource::default()
        })
    }

    /// The list of files of a node: the number of its tree.
    pub(crate) fn list_of(&self, node: u32) -> Option<Vec<u8>> {
        let tree = *self.held.get(&node)?;
        Some(list(tree).to_vec())
    }

    /// The number of the disk that a node writes to.
    pub(crate) fn disk_of(&self, node: u32) -> u32 {
        match self.destinations {
            Destinations::Shared => 0,
            Destinations::Copies => node,
        }
    }

    /// All files, sorted by path, as the parts of a plan lay them out.
    fn laid_out(&self, parts: &[control::Part]) -> (Vec<TreeFile>, Layout) {
        let mut files: Vec<(TreeFile, u64)> = Vec::new();
        for part in parts {
            let mut start = part.base;
            let mut trees = (0..).zip(&self.trees);
            let tree = trees.find(|(tree, _)| root(*tree) == part.manifest_root);
            let (_, files_of_part) = tree.expect("a part is a tree");
            for file in files_of_part {
                files.push((file.clone(), start));
                start += file.len;
            }
        }
        files.sort();
        let piece = |(object, (file, start)): (u32, &(TreeFile, u64))| Piece {
            range: Range::new(*start, start + file.len),
            object,
            object_offset: 0,
        };
        let layout = Layout::new((0..).zip(&files).map(piece).collect());
        let layout = layout.unwrap_or_else(|error| panic!("{error}"));
        (files.into_iter().map(|(file, _)| file).collect(), layout)
    }
}

fn list(tree: usize) -> [u8; 1] {
    [tree as u8]
}

/// Hash of the list of files of a tree.
fn root(tree: usize) -> Vec<u8> {
    ropewalk_model::digest(&list(tree)).to_vec()
}

/// What a destination has already, as bytes of the data space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Of files that are the same.
    pub unchanged: RangeSet,
    /// That an earlier transfer made safe.
    pub adopted: RangeSet,
}

/// What a sender sends: bytes of the data space as its own tree, laid out from `base` on, has them; `None` where it has them not.
///
/// * `wanted`: in one file of the receiver.
pub(crate) fn sent_mark(
    trees: &Trees,
    sender: u32,
    base: u64,
    sink: &Sink,
    wanted: Range,
) -> Option<Mark> {
    let files = trees.held.get(&sender).map(|tree| &trees.trees[*tree]);
    let mut start = base;
    for file in files.into_iter().flatten() {
        let end = start + file.len;
        if (start..end).contains(&wanted.start) && wanted.end <= end {
            let own = wanted.start - start;
            let placed = sink
                .layout
                .locate(wanted.start)
                .map_or(0, |p| p.object_offset);
            return Some(file.mark(own.wrapping_sub(placed)));
        }
        start = end;
    }
    None
}
