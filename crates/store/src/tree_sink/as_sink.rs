//! A tree as the transfer sees it: bytes, and the ways to end.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ropewalk_model::{Piece, Range, RangeSet};

use super::{TreeSink, commit};
use crate::error::{Operation, StoreError};
use crate::manifest::Entry;
use crate::open_files::lock;
use crate::sink::{Landed, Present, Sink, SinkExtent, Unit, Wrong};

/// Files with wrong bytes that are named: a disk that rots has some, one that lost everything has all.
const WRONG_MAX: usize = 100;

impl Sink for TreeSink {
    fn object_at(&self, offset: u64) -> Option<(String, Range)> {
        let piece = self.staging.layout.locate(offset)?;
        let entry = self.staging.target.entries.get(piece.object as usize)?;
        Some((
            String::from_utf8_lossy(&entry.path).into_owned(),
            piece.range,
        ))
    }

    fn further_names(&self, offset: u64) -> Vec<String> {
        let tree = &self.staging.target;
        let piece = self.staging.layout.locate(offset);
        let names = piece.and_then(|piece| tree.names.get(&piece.object));
        let paths = names
            .into_iter()
            .flatten()
            .map(|name| &tree.entry(*name).path);
        paths
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.staging.write_at(offset, bytes)
    }

    fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.staging.read_back(offset, buf)
    }

    fn look(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.staging.look(offset, buf)
    }

    fn keep_open(&self) {
        self.staging.keep_open();
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Option<SinkExtent>, StoreError> {
        self.staging.extent(offset, len)
    }

    fn written(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.staging.written(offset, len)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.staging.sync()
    }

    fn present(&self) -> Present {
        let tree = &self.staging.target;
        let progress = lock(&tree.progress);
        let (adopted, units) = (progress.adopted.clone(), progress.units.clone());
        let taken_bytes = progress.taken.len_bytes();
        drop(progress);
        let (passed_bytes, passed_files) = tree.passed(&self.staging.layout);
        let refused = tree.refused.early().len() as u64;
        let wrong = tree.wrong.iter().take(WRONG_MAX);
        let wrong = wrong.map(|(object, bytes)| Wrong {
            path: tree.entries[*object as usize].path.clone(),
            bytes: *bytes,
        });
        Present {
            unchanged: tree.unchanged_bytes(&self.staging.layout),
            adopted,
            units,
            files: tree.unchanged.len() as u64 - passed_files - refused,
            passed_files,
            passed_bytes,
            refused: tree.refused_ranges(&self.staging.layout),
            taken_bytes,
            wrong: wrong.collect(),
            wrong_more: tree.wrong.len().saturating_sub(WRONG_MAX) as u64,
        }
    }

    fn record(&self, safe: &RangeSet, units: &[Unit]) {
        let tree = &self.staging.target;
        // The sync covered the names that were given before it.
        tree.forget_named();
        let own = self.staging.layout.ranges().intersection(safe);
        tree.record(&self.staging.layout, &own, units);
    }

    fn names_early(&self) -> bool {
        self.staging.target.is_early()
    }

    fn make_ready(&self, safe: &RangeSet) {
        // The transfer may end meanwhile: a commit of it begins before this, or after it.
        let ended = lock(&self.staging.ended);
        if !*ended {
            let tree = &self.staging.target;
            self.staging
                .note_changed(tree.make_ready(&self.staging.layout, safe));
        }
    }

    fn name_ready(&self) -> u64 {
        let ended = lock(&self.staging.ended);
        if *ended {
            return 0;
        }
        let named = self.staging.target.name_ready();
        // A program that is open for writing cannot be run.
        named
            .iter()
            .for_each(|object| self.staging.close_file(*object));
        named.len() as u64
    }

    fn kept_partial(&self) -> Vec<(PathBuf, u64)> {
        self.staging.target.kept_partial()
    }

    fn commit(&self) -> Result<(), StoreError> {
        let mut ended = lock(&self.staging.ended);
        if *ended {
            return Ok(());
        }
        lock(&self.staging.target.progress).note_ending();
        self.staging.sync()?;
        self.staging.check()?;
        let same = self.staging.target.survey()?;
        self.staging.target.check_unchanged(&same)?;
        self.staging.target.check_named(&same)?;
        self.staging.target.commit(&same)?;
        // Only when everything has its name, and is safe: what is extra may be what has none, under its old name.
        let tree = &self.staging.target;
        let removed = match tree.is_any_unplaced() || tree.refused.may_be_extra() {
            true => self.staging.target.made_way(),
            false => self.staging.target.take_away_extra(),
        };
        lock(&self.staging.target.landed).removed = removed;
        self.staging.target.named.store(true, Ordering::Release);
        match self.staging.target.keep_unplaced(&self.staging.layout) {
            true => self.staging.target.restore_dest(),
            false => self.staging.target.end_commit(),
        }
        lock(&self.staging.target.progress).end_journal();
        self.staging.close_named();
        *ended = true;
        drop(ended);
        self.staging.target.list_checksums();
        Ok(())
    }

    fn commit_whole_files(&self, missing: &RangeSet) -> Result<bool, StoreError> {
        let mut ended = lock(&self.staging.ended);
        let tree = &self.staging.target;
        if *ended {
            return Ok(tree.named.load(Ordering::Acquire));
        }
        lock(&tree.progress).note_ending();
        let lacks = |piece: &&Piece| !missing.clipped(piece.range).is_empty();
        let pieces = self.staging.layout.pieces();
        let mut omitted: HashSet<u32> = pieces.iter().filter(lacks).map(|p| p.object).collect();
        tree.add_names(&mut omitted);
        let is_whole = |(object, entry): (u32, &Entry)| {
            let is_new = !omitted.contains(&object) && !tree.unchanged.contains(object);
            commit::is_name_of_file(entry) && is_new
        };
        let is_any_whole = (0..).zip(tree.entries.iter()).any(is_whole);
        if tree.root.is_none() || !is_any_whole {
            drop(ended);
            self.set_aside();
            return Ok(false);
        }
        // Syncing opens files, and nothing is opened after this: what is still being written is left out.
        let synced = self.staging.sync_written();
        self.staging.close();
        synced?;
        let kept = tree.keep_partial(&self.staging.layout, &omitted);
        kept.map_err(|errno| tree.failed(Operation::Rename, errno))?;
        tree.omit(omitted)?;
        tree.commit(&tree.survey()?)?;
        lock(&tree.landed).removed = tree.made_way();
        tree.named.store(true, Ordering::Release);
        tree.end_commit();
        lock(&tree.progress).end_journal();
        *ended = true;
        Ok(true)
    }

    fn landed(&self) -> Landed {
        let (owners_not_kept, attributes_not_kept) = self.staging.target.not_kept();
        let (unplaced, unplaced_more) = self.staging.target.unplaced();
        Landed {
            owners_not_kept,
            attributes_not_kept,
            unplaced,
            unplaced_more,
            links_not_kept: self.staging.target.links_not_kept(),
            specials_not_kept: self.staging.target.specials_not_kept(),
            ..lock(&self.staging.target.landed).clone()
        }
    }

    fn removing(&self) -> Option<(u64, u64)> {
        self.staging.target.removing.so_far()
    }

    fn discard(&self) {
        let mut ended = lock(&self.staging.ended);
        if !*ended {
            lock(&self.staging.target.progress).note_ending();
            self.staging.close();
            self.staging.target.remove_stage();
            self.staging.target.remove_aside();
            self.staging.target.restore_dest();
            *ended = true;
        }
    }

    fn keep_more(&self) {
        lock(&self.staging.target.progress).keep_more();
    }

    fn give_up(&self, bytes: &RangeSet) {
        self.staging.target.give_up(&self.staging.layout, bytes);
    }

    fn note_ending(&self) -> bool {
        lock(&self.staging.target.progress).note_ending()
    }

    fn set_aside(&self) {
        let mut ended = lock(&self.staging.ended);
        if !*ended {
            self.staging.close();
            let tree = &self.staging.target;
            tree.open_up_dest();
            *ended = lock(&tree.progress).keep_all(&tree.stage());
            if *ended {
                self.staging.target.restore_dest();
            }
        }
        drop(ended);
        self.discard();
    }

    fn take_over(&self) {
        self.staging.target.moving.store(true, Ordering::Release);
        self.staging.target.take_over_standing();
        // Files are looked for in both places from now on.
        self.staging.forget_files();
    }

    fn temporary(&self, most: usize) -> Vec<PathBuf> {
        let path = self.staging.target.stage_path();
        std::iter::once(path).take(most).collect()
    }
}
