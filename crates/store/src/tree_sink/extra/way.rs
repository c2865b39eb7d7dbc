//! What has the name of an entry and is of another kind: a folder where a file is wanted, or the other way round. Where a copy removes what no
//! source has, it makes way for the entry, when every byte of the copy is safe and right before the entry gets its name.
//!
//! It is removed by the same walk as what no source has, with what that leaves alone; where something stays, the copy is refused before the
//! first byte. Only in folders that the sources have, as there: DEST itself never makes way, nor does what lies beside sources.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Extra, Walk, list};
use crate::error::{Operation, StoreError};
use crate::filter::Filter;
use crate::manifest::{Entry, parent_of};
use crate::open_files::lock;
use crate::sink::Removed;
use crate::sys;
use crate::tree_sink::{Tree, join};

/// Makes way for entries that follow each other.
pub(in crate::tree_sink) struct Way<'a> {
    tree: &'a Tree,
    dest: BorrowedFd<'a>,
    walk: Walk<'a>,
    /// Of the last folder, its path and what it lists.
    listed: Option<(&'a [u8], HashSet<Vec<u8>>)>,
}

impl<'a> Way<'a> {
    /// * `dest`: DEST itself.
    /// * `filter`: what it excludes stays.
    /// * `specials`: special files are part of the copy.
    pub fn new(tree: &'a Tree, dest: BorrowedFd<'a>, filter: &'a Filter, specials: bool) -> Self {
        let mut walk = Walk::new(&[], filter, false);
        walk.spared = tree.spared();
        walk.specials = specials;
        walk.keeps = false;
        Self {
            tree,
            dest,
            walk,
            listed: None,
        }
    }

    /// Looks whether something would make way.
    ///
    /// * `folder`, `name`: where it is.
    /// * `stat`: what it is.
    ///
    /// # Errors
    /// [`StoreError::InTheWay`], and why.
    pub fn look(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &'a Entry,
        stat: &Stat,
    ) -> Result<(), StoreError> {
        if let Some(why) = self.why_not(folder, name, entry) {
            let kind = FileType::from_raw_mode(stat.st_mode);
            let kept = Some((&entry.path[..], why));
            return Err(self.tree.in_the_way(entry, kind, kept));
        }
        self.take(folder, name, entry, stat)
    }

    /// What would be removed for an entry, sorted by path.
    pub fn list(&mut self, folder: BorrowedFd<'_>, name: &[u8], entry: &'a Entry) -> Vec<Extra> {
        self.walk.keeps = true;
        if let Ok(stat) = sys::stat_entry(folder, name) {
            // That it can be removed was seen.
            let _ = self.take(folder, name, entry, &stat);
        }
        std::mem::take(&mut self.walk.found)
    }

    /// Removes what is in the way of an entry.
    ///
    /// # Errors
    /// As [`Way::look`]; what could not be removed stays.
    pub fn clear(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &'a Entry,
    ) -> Result<(), StoreError> {
        let stat = match sys::stat_entry(folder, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                let path = self.tree.final_path(entry);
                return Err(StoreError::from_errno(Operation::Inspect, path, errno));
            }
        };
        let (began, before) = (Instant::now(), self.walk.count);
        self.look(folder, name, entry, &stat)?;
        self.walk.removes = true;
        let removing = &self.tree.removing;
        self.walk.gone = Some(&removing.gone);
        removing.begin(self.walk.count - before);
        let cleared = self.take(folder, name, entry, &stat);
        removing.end();
        self.walk.removes = false;
        let removed = std::mem::take(&mut self.walk.removed);
        let mut made_way = lock(&self.tree.made_way);
        made_way.files += removed.files;
        made_way.folders += removed.folders;
        made_way.time += began.elapsed();
        cleared
    }

    fn take(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        stat: &Stat,
    ) -> Result<(), StoreError> {
        let goes = self.walk.one(folder, name, entry.path.clone(), stat, None);
        let kind = FileType::from_raw_mode(stat.st_mode);
        match goes {
            true => Ok(()),
            false => Err(self.tree.in_the_way(entry, kind, self.walk.why_kept())),
        }
    }

    /// Why nothing makes way for this entry.
    fn why_not(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        entry: &'a Entry,
    ) -> Option<&'static str> {
        let parent = parent_of(&entry.path)?;
        if self.tree.leaves_existing() {
            return Some("names that exist are left alone");
        }
        let is_bundle = self.tree.entries.first().is_some_and(Entry::is_of_none);
        if is_bundle && parent.is_empty() {
            return Some("it is in no folder of the sources; remove it yourself");
        }
        if let Some(why) = self.walk.spared.above(self.dest, &entry.path) {
            return Some(why);
        }
        if self
            .listed
            .as_ref()
            .is_none_or(|(known, _)| *known != parent)
        {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = sys::open_beneath(folder, b".", flags, Mode::empty());
            let names = opened.and_then(|folder| list(&folder));
            // A folder that cannot be read lists nothing.
            let names = names.unwrap_or_default().into_iter().collect();
            self.listed = Some((parent, names));
        }
        let is_listed = |(_, names): &(&[u8], HashSet<Vec<u8>>)| names.contains(name);
        let is_other = !self.listed.as_ref().is_some_and(is_listed);
        is_other.then_some("its folder lists it under another name, or cannot be read")
    }
}

impl Tree {
    /// The error of something in the way.
    pub(in crate::tree_sink) fn in_the_way(
        &self,
        entry: &Entry,
        found: FileType,
        kept: Option<(&[u8], &str)>,
    ) -> StoreError {
        StoreError::InTheWay {
            path: self.final_path(entry),
            found: sys::kind_in_words(found),
            wanted: entry.kind.in_words(),
            kept: kept.map(|(path, why)| (join(&self.dest, path), why.to_owned())),
        }
    }

    /// What the commit has removed for entries of another kind.
    pub(in crate::tree_sink) fn made_way(&self) -> Removed {
        lock(&self.made_way).clone()
    }
}
