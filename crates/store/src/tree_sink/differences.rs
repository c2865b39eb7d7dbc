//! What of DEST differs from the source, found out without making anything: a comparison, not a copy.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use ropewalk_model::{Layout, RangeSet};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::contents::{Contents, Found, Identity};
use super::same::{Check, Compares, is_absent, is_file};
use super::standing::is_time;
use super::{Act, Part, Preview, Previewed, Tree, TreeSink};
use crate::error::StoreError;
use crate::filter::Filter;
use crate::folders::Folders;
use crate::manifest::{EntryKind, Special};
use crate::open_files::lock;
use crate::parallel;
use crate::sink::Present;

/// The identification of a transfer that makes no temporary name.
const NO_ID: &str = "00000000000000000000000000000000";

/// Entries that one thread looks at before it takes others.
const LOOKED_AT: usize = 256;

/// What is compared beside names, kinds, lengths and targets of links.
#[derive(Clone, Copy, Debug)]
pub struct Comparing<'a> {
    /// Of the source; without it files of one length and modification time are the same.
    pub contents: Option<&'a dyn Contents>,
    /// Times and modes count, and owners and attributes as far as the parts have them.
    pub metadata: bool,
}

/// What was found of some entries.
#[derive(Debug, Default)]
struct Looked {
    differ: BTreeMap<u32, Act>,
    /// Files of one length.
    alike: BTreeMap<u32, Found>,
}

impl TreeSink {
    /// What of DEST differs from the parts, in place of what a copy would do: names that it lacks, that only it has, and that are
    /// something else. Nothing is made. Temporary names of transfers do not count, nor do sockets, pipes and devices
    /// where the parts were scanned without them.
    ///
    /// * `filter`: of the scans of the sources: what it excludes is not looked at.
    ///
    /// # Errors
    /// [`StoreError::Unlike`] where one is a folder and the other a file, [`StoreError::NotCompared`], else as [`TreeSink::create`].
    pub fn differences(
        dest: &Path,
        parts: &[Part],
        comparing: Comparing<'_>,
        filter: &Filter,
    ) -> Result<Preview, StoreError> {
        let (mut tree, layout, _) = Tree::open(dest.into(), parts, NO_ID).map_err(unlike)?;
        let contents = comparing.contents;
        tree.compares = Compares {
            check: match contents {
                Some(_) => Check::Contents,
                None => Check::Time,
            },
            delta: false,
        };
        let folder = tree.dest_folder()?;
        let mut looked = tree.look_for_differences(folder.as_ref(), comparing)?;
        if let Some(contents) = contents {
            tree.compare_alike(&layout, folder.as_ref(), &mut looked, contents)?;
        }
        let mut changes = tree.listed(&looked.differ);
        tree.add_extra(parts, filter, &mut changes);
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        let present = tree.same_as_source(&layout, &looked.differ);
        Ok(Preview { changes, present })
    }
}

impl Tree {
    fn look_for_differences(
        &self,
        dest: Option<&OwnedFd>,
        comparing: Comparing<'_>,
    ) -> Result<Looked, StoreError> {
        let all = self.entries.len();
        let starts: Vec<usize> = (0..all).step_by(LOOKED_AT).collect();
        let found = Mutex::new(Looked::default());
        parallel::for_each(&starts, |&start| {
            let looked = self.look_at_some(dest, start..all.min(start + LOOKED_AT), comparing);
            let mut found = lock(&found);
            found.differ.extend(looked.differ);
            found.alike.extend(looked.alike);
            Ok(())
        })?;
        Ok(std::mem::take(&mut lock(&found)))
    }

    fn look_at_some(
        &self,
        dest: Option<&OwnedFd>,
        objects: Range<usize>,
        comparing: Comparing<'_>,
    ) -> Looked {
        let mut looked = Looked::default();
        let mut folders = Folders::new(dest.map_or(self.parent.as_fd(), |dest| dest.as_fd()));
        for at in objects {
            let (object, entry) = (at as u32, &self.entries[at]);
            // The root is there, or it would not have been opened; of a bundle it is nothing.
            let opened = match entry.path.is_empty() {
                true if entry.is_of_none() => continue,
                true => Ok((self.parent.as_fd(), &self.name[..])),
                false => folders.parent(&entry.path),
            };
            let differs = match opened {
                Ok((folder, name)) => match crate::sys::stat_entry(folder, name) {
                    Ok(stat) => self.judge(&stat, object, folder, name, comparing),
                    Err(errno) if is_absent(errno) => Err(Act::Missing),
                    Err(_) => Err(Act::Unreadable),
                },
                // What holds it is missing, or is no folder.
                Err(Errno::NOTDIR | Errno::LOOP) => Err(Act::Missing),
                Err(errno) if is_absent(errno) => Err(Act::Missing),
                Err(_) => Err(Act::Unreadable),
            };
            match differs {
                Ok(Some(found)) => drop(looked.alike.insert(object, found)),
                Ok(None) => {}
                Err(act) => drop(looked.differ.insert(object, act)),
            }
        }
        looked
    }

    /// How what has a name differs; `Some` of a file whose contents are to be compared.
    fn judge(
        &self,
        stat: &Stat,
        object: u32,
        folder: BorrowedFd<'_>,
        name: &[u8],
        comparing: Comparing<'_>,
    ) -> Result<Option<Found>, Act> {
        let entry = &self.entries[object as usize];
        let wanted = match &self.file_of(object).kind {
            EntryKind::Directory => FileType::Directory,
            EntryKind::Symlink { .. } => FileType::Symlink,
            EntryKind::File { .. } | EntryKind::HardLink { .. } => FileType::RegularFile,
            EntryKind::Special(special) => special.file_type().0,
        };
        if FileType::from_raw_mode(stat.st_mode) != wanted {
            return Err(Act::Kind);
        }
        let differs = comparing.metadata
            && !(is_time(stat, entry) && self.is_kept(stat, object, folder, name));
        let identity = Identity::of(stat);
        match &entry.kind {
            EntryKind::Symlink { target } => {
                let found = rustix::fs::readlinkat(folder, name, Vec::new());
                match found {
                    Ok(found) if found.as_bytes() == target => {}
                    Ok(_) => return Err(Act::Contents),
                    Err(_) => return Err(Act::Unreadable),
                }
            }
            // Devices of other numbers.
            EntryKind::Special(special) if Special::of(stat) != Some(*special) => {
                return Err(Act::Contents);
            }
            EntryKind::File { len } if identity.len != *len => return Err(Act::Size),
            EntryKind::File { .. } if comparing.contents.is_some() => {
                return Ok(Some(Found {
                    identity,
                    may_stay: true,
                    differs,
                }));
            }
            EntryKind::File { .. } if !is_file(stat, entry) => return Err(Act::Metadata),
            EntryKind::File { .. }
            | EntryKind::HardLink { .. }
            | EntryKind::Directory
            | EntryKind::Special(_) => {}
        }
        match differs {
            true => Err(Act::Metadata),
            false => Ok(None),
        }
    }

    /// Compares the contents of files of one length.
    fn compare_alike(
        &mut self,
        layout: &Layout,
        dest: Option<&OwnedFd>,
        looked: &mut Looked,
        contents: &dyn Contents,
    ) -> Result<(), StoreError> {
        let (same, unread) = self.same_of(layout, dest, &looked.alike, contents)?;
        for (object, found) in &looked.alike {
            let act = match (same.contains(object), found.differs) {
                (true, false) => continue,
                (true, true) => Act::Metadata,
                (false, _) if unread.contains(object) => Act::Unreadable,
                (false, _) => match self.open_found(dest, *object, found) {
                    Some(_) => Act::Contents,
                    None => Act::Unreadable,
                },
            };
            looked.differ.insert(*object, act);
        }
        Ok(())
    }

    fn listed(&self, differ: &BTreeMap<u32, Act>) -> Vec<Previewed> {
        let listed = differ.iter().map(|(object, act)| {
            let entry = &self.entries[*object as usize];
            Previewed {
                path: entry.path.clone(),
                len: entry.len(),
                act: *act,
            }
        });
        listed.collect()
    }

    /// Adds names that only DEST has, and what of it cannot be looked at.
    fn add_extra(&self, parts: &[Part], filter: &Filter, changes: &mut Vec<Previewed>) {
        let (extra, failed) = self.look_for_extra(filter);
        let of_kind: HashSet<Vec<u8>> = changes
            .iter()
            .filter(|change| change.act == Act::Kind)
            .map(|change| change.path.clone())
            .collect();
        let left_out = left_out(parts);
        let extra = extra
            .into_iter()
            .filter(|extra| !left_out.contains(&extra.path) && !of_kind.contains(&extra.path));
        changes.extend(extra.map(|extra| Previewed {
            path: extra.path,
            len: extra.len,
            act: Act::Extra,
        }));
        changes.extend(failed.into_iter().map(|path| Previewed {
            path,
            len: 0,
            act: Act::Unreadable,
        }));
    }

    fn same_as_source(&self, layout: &Layout, differ: &BTreeMap<u32, Act>) -> Present {
        let is_same = |object: u32| !differ.contains_key(&object);
        let pieces = layout.pieces().iter();
        let same = pieces.filter(|piece| is_same(piece.object));
        let files = (0..)
            .zip(self.entries.iter())
            .filter(|(object, entry)| super::commit::is_name_of_file(entry) && is_same(*object));
        Present {
            unchanged: RangeSet::from_ranges(same.map(|piece| piece.range)),
            files: files.count() as u64,
            ..Present::default()
        }
    }
}

/// A comparison writes nothing: nothing is in the way of it.
fn unlike(error: StoreError) -> StoreError {
    match error {
        StoreError::Exists {
            path,
            found,
            wanted,
        } => StoreError::Unlike {
            path,
            found,
            wanted,
        },
        error => error,
    }
}

/// Files of the parts that no holder can read.
fn left_out(parts: &[Part]) -> HashSet<Vec<u8>> {
    let mut paths = HashSet::new();
    for part in parts.iter().filter(|part| !part.left_out.is_empty()) {
        let Ok(layout) = part.manifest.layout(part.base) else {
            continue;
        };
        let pieces = layout.pieces().iter();
        let left_out = pieces.filter(|piece| !part.left_out.clipped(piece.range).is_empty());
        let entries = &part.manifest.entries;
        paths.extend(left_out.map(|piece| entries[piece.object as usize].path.clone()));
    }
    paths
}
