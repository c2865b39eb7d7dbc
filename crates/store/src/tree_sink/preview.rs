//! What a copy would do at its destination, found out without making anything.

use std::os::fd::AsFd as _;
use std::path::Path;

use super::extra::{Extra, Way};
use super::parts::merge;
use super::same::{Same, Wish};
use super::standing::is_time;
use super::{Dest, Part, Tree, TreeSink};
use crate::error::StoreError;
use crate::filter::Filter;
use crate::folders::Folders;
use crate::manifest::{Entry, EntryKind, MODE_OF_NONE};
use crate::sink::Present;
use crate::sys;

/// The identification of a transfer that makes no temporary name.
const NO_ID: &str = "00000000000000000000000000000000";

/// What a copy would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preview {
    /// Sorted by path.
    pub changes: Vec<Previewed>,
    /// What the destination has already. What an earlier transfer began to write is not looked for.
    pub present: Present,
}

/// One name of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previewed {
    /// Below the destination; empty for a copy of one file.
    pub path: Vec<u8>,
    /// Length of a file, 0 of others.
    pub len: u64,
    /// What becomes of it.
    pub act: Act,
}

/// What becomes of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A file or link is written.
    Send,
    /// A folder is made.
    Make,
    /// A file or link that no source has is removed.
    Remove,
    /// The same of a folder, after what was in it.
    RemoveFolder,
    /// Of a comparison: it is not there.
    Missing,
    /// No source has it.
    Extra,
    /// It is a file, a folder or a link, and something else in the source.
    Kind,
    /// It has another length.
    Size,
    /// It has other contents, or another target.
    Contents,
    /// It has the same contents and another time, mode, owner or other attributes; a copy sets these.
    Metadata,
    /// It cannot be read.
    Unreadable,
}

impl TreeSink {
    /// What [`TreeSink::update`], or [`TreeSink::create`], and a commit would do. Nothing is made. Cost as of the survey of these: a
    /// system call an entry.
    ///
    /// * `wish`: as [`TreeSink::update`] is given it; `None` where what is there, the same, is replaced.
    /// * `removes`: as [`TreeSink::remove_extra`] was given it.
    /// * `makes_parent`: the folder that is to hold DEST is made where only it is missing.
    ///
    /// # Errors
    /// As [`TreeSink::create`]; free space is not looked at.
    pub fn preview(
        dest: &Path,
        parts: &[Part],
        wish: Option<&Wish<'_>>,
        removes: Option<&Filter>,
        makes_parent: bool,
    ) -> Result<Preview, StoreError> {
        let dest = Dest {
            path: dest,
            mirrors: removes,
            is_whole: false,
        };
        let (mut tree, layout) = match Tree::open(dest, parts, NO_ID) {
            Ok((tree, layout, _)) => (tree, layout),
            Err(StoreError::ParentMissing { parent, .. })
                if makes_parent && parent.parent().is_some_and(Path::is_dir) =>
            {
                return Self::preview_of_all(parts);
            }
            Err(error) => return Err(error),
        };
        if let Some(wish) = wish {
            tree.stays = wish.stays;
            // What would be sent of a file is not looked for.
            tree.compares.check = wish.check;
        }
        let mut same = tree.survey_contents(&layout, wish.and_then(|wish| wish.contents))?;
        if wish.is_none() {
            same.forget_files(&tree.entries);
        }
        tree.keep(&same);
        let (passed_bytes, passed_files) = tree.passed(&layout);
        let present = Present {
            unchanged: tree.unchanged_bytes(&layout),
            files: tree.unchanged.len() as u64 - passed_files,
            passed_files,
            passed_bytes,
            ..Present::default()
        };
        let mut extra = removes.map_or_else(Vec::new, |filter| tree.find_extra(filter));
        extra.extend(tree.list_in_the_way(&same));
        let removed = extra.into_iter().map(|extra| Previewed {
            act: match extra.is_folder {
                true => Act::RemoveFolder,
                false => Act::Remove,
            },
            path: extra.path,
            len: extra.len,
        });
        let mut changes: Vec<Previewed> = removed.collect();
        changes.extend(tree.changes(&same));
        changes.extend(tree.changed_metadata(&same));
        // What makes way for an entry of its name is before it.
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Preview { changes, present })
    }

    /// The same where nothing is there.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when parts hold the same path.
    pub fn preview_of_all(parts: &[Part]) -> Result<Preview, StoreError> {
        let (entries, _) = merge(parts)?;
        let all = entries.iter().filter(|entry| entry.mode != MODE_OF_NONE);
        let changes = all.map(|entry| previewed(entry.path.clone(), &entry.kind));
        Ok(Preview {
            changes: changes.collect(),
            present: Present::default(),
        })
    }
}

fn previewed(path: Vec<u8>, kind: &EntryKind) -> Previewed {
    let (act, len) = match kind {
        EntryKind::File { len } => (Act::Send, *len),
        EntryKind::Symlink { .. } | EntryKind::HardLink { .. } | EntryKind::Special(_) => {
            (Act::Send, 0)
        }
        EntryKind::Directory => (Act::Make, 0),
    };
    Previewed { path, len, act }
}

impl Tree {
    /// What would be removed for entries of another kind.
    fn list_in_the_way(&self, same: &Same) -> Vec<Extra> {
        let dest = match same.in_the_way.is_empty() {
            true => None,
            false => self.open_dest().ok(),
        };
        let (Some(dest), Some(filter)) = (dest, self.mirrors.as_ref()) else {
            return Vec::new();
        };
        let specials = Self::has_specials(&self.entries);
        let mut way = Way::new(self, dest.as_fd(), filter, specials);
        let mut folders = Folders::new(dest.as_fd());
        let mut found = Vec::new();
        for object in &same.in_the_way {
            let entry = self.entry(*object);
            if let Ok((folder, name)) = folders.parent(&entry.path) {
                found.extend(way.list(folder, name, entry));
            }
        }
        found
    }

    /// Files, links and folders that stay, and get another mode, time, owner or other attributes.
    fn changed_metadata(&self, same: &Same) -> Vec<Previewed> {
        let Some(dest) = self.open_dest().ok().filter(|_| !self.is_single()) else {
            return Vec::new();
        };
        let mut folders = Folders::new(dest.as_fd());
        let mut differs = |object: u32, entry: &Entry| {
            let place = match entry.path.is_empty() {
                // DEST itself keeps what it has, unless it is a mirror.
                true if self.mirrors.is_none() => return false,
                true => Ok((self.parent.as_fd(), &self.name[..])),
                false => folders.parent(&entry.path),
            };
            place.is_ok_and(|(folder, name)| {
                let found = sys::stat_entry(folder, name);
                found.is_ok_and(|stat| {
                    !(is_time(&stat, entry) && self.is_kept(&stat, object, folder, name))
                })
            })
        };
        let files = self.unchanged.intersection(&same.differing);
        let entries = (0..).zip(self.entries.iter());
        let is_due = |(object, entry): &(u32, &Entry)| match entry.kind {
            EntryKind::Directory => {
                let is_there = entry.path.is_empty() || same.has(*object);
                is_there && entry.kept.owner.is_some()
            }
            _ => files.contains(*object),
        };
        entries
            .filter(is_due)
            .filter(|(object, entry)| differs(*object, entry))
            .map(|(_, entry)| Previewed {
                path: entry.path.clone(),
                len: 0,
                act: Act::Metadata,
            })
            .collect()
    }

    /// What is not there.
    fn changes(&self, same: &Same) -> Vec<Previewed> {
        let is_root_there = self.stage_parent_path == self.dest;
        let is_due = |object: u32, path: &[u8]| {
            let is_folder_there = is_root_there && path.is_empty() && !self.is_single();
            !(is_folder_there || same.has(object) || same.has_passed(object))
        };
        let entries = (0..).zip(self.entries.iter());
        let due =
            entries.filter(|(object, entry)| !entry.is_of_none() && is_due(*object, &entry.path));
        due.map(|(_, entry)| previewed(entry.path.clone(), &entry.kind))
            .collect()
    }
}
