//! Which names of a tree are names of one file.

use std::collections::HashMap;

use rustix::fs::Stat;

use super::{Entry, EntryKind, Kept};

/// Files of several names, by path: device and inode.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    is_asked: bool,
    files: HashMap<Vec<u8>, (u64, u64)>,
}

impl Names {
    /// * `is_asked`: whether anything is to be noted.
    pub fn new(is_asked: bool) -> Self {
        Self {
            is_asked,
            files: HashMap::new(),
        }
    }

    /// Notes a regular or special file, if it has further names.
    pub fn note(&mut self, path: &[u8], stat: &Stat) {
        if self.is_asked && stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            self.files.insert(path.to_vec(), file);
        }
    }

    /// Adds those that another look at the same tree has found.
    pub fn add(&mut self, other: Self) {
        self.files.extend(other.files);
    }

    /// Adds those of a tree that lies under a name.
    pub fn add_below(&mut self, name: &[u8], other: &Self) {
        self.files.extend(other.files.iter().map(|(path, file)| {
            let path = match path.is_empty() {
                true => name.to_vec(),
                false => [name, b"/", path].concat(),
            };
            (path, *file)
        }));
    }

    /// Makes all names of a file but the first hard links. Files that differ in anything are apart: one was written to between
    /// two looks, or the file system gives one inode number to several.
    ///
    /// * `entries`: sorted by path.
    pub fn join(&self, entries: &mut [Entry]) {
        if self.files.is_empty() {
            return;
        }
        let mut first: HashMap<(u64, u64), usize> = HashMap::new();
        for at in 0..entries.len() {
            let Some(file) = self.files.get(&entries[at].path) else {
                continue;
            };
            let known = *first.entry(*file).or_insert(at);
            if known == at || !is_alike(&entries[known], &entries[at]) {
                continue;
            }
            let to = entries[known].path.clone();
            entries[at].kind = EntryKind::HardLink { to };
            entries[at].kept = Kept::default();
        }
    }

    /// Undoes [`Names::join`].
    pub fn split(&self, entries: &mut [Entry]) {
        for at in 0..entries.len() {
            if let EntryKind::HardLink { to } = &entries[at].kind
                && let Ok(file) = entries.binary_search_by(|entry| entry.path.cmp(to))
            {
                entries[at].kind = entries[file].kind.clone();
                entries[at].kept = entries[file].kept.clone();
            }
        }
    }
}

fn is_alike(one: &Entry, other: &Entry) -> bool {
    let all = |entry: &Entry| {
        let time = (entry.mtime_seconds, entry.mtime_nanoseconds);
        (entry.kind.clone(), entry.mode, time)
    };
    all(one) == all(other) && one.kept == other.kept
}
