//! What transfers have left on a disk, for tests.

use std::collections::BTreeMap;

use ropewalk_model::journal::{Adopt, Header, decode};
use ropewalk_model::{Range, RangeSet};

use super::TreeFile;
use crate::disk::Disk;

/// Checks what transfers have left on a disk, against the files as they are now.
impl Disk {
    /// Asserts that each record of each journal is true of the file that it is about, for those of these files: what it calls safe is
    /// on stable storage, and right.
    ///
    /// # Panics
    /// When a record is not true.
    pub fn check_journals(&self, files: &[TreeFile]) {
        for name in self.names().filter(|name| name.ends_with(".journal")) {
            let Some(inode) = self.inode(name) else {
                continue;
            };
            let Ok((_, records)) = Header::decode(self.log(inode)) else {
                continue;
            };
            for recorded in decode(records) {
                let place = recorded.path.clone();
                let versions = files.iter();
                let is_it = |file: &&TreeFile| {
                    file.path.as_bytes() == place && file.version() == recorded.version
                };
                let Some(file) = versions.clone().find(is_it) else {
                    continue;
                };
                let durable = self.durable(recorded.inode, file.mark(0));
                let wrong = recorded.safe.difference(&durable);
                let is_there = self.has_inode(recorded.inode);
                assert!(
                    wrong.is_empty() || !is_there,
                    "{name} calls {wrong} of {} safe, which is not there",
                    file.path
                );
            }
        }
    }

    /// What a next transfer of these files can go on with, by path: each file that is there with its bytes that records vouch for.
    ///
    /// * `hashed`: only bytes whose hashes are recorded.
    #[must_use]
    pub fn vouched(&self, files: &[TreeFile], hashed: bool) -> BTreeMap<String, Vec<RangeSet>> {
        let adopt = match hashed {
            true => Adopt::Hashed,
            false => Adopt::All,
        };
        let mut all: BTreeMap<(String, u64), RangeSet> = BTreeMap::new();
        for name in self.names().filter(|name| name.ends_with(".journal")) {
            let Some(inode) = self.inode(name) else {
                continue;
            };
            let Ok((_, records)) = Header::decode(self.log(inode)) else {
                continue;
            };
            for recorded in decode(records) {
                let is_it = |file: &&TreeFile| file.path.as_bytes() == recorded.path;
                if let Some(file) = files
                    .iter()
                    .find(is_it)
                    .filter(|_| self.has_inode(recorded.inode))
                {
                    let safe = recorded.adoptable(file.version(), adopt);
                    let known = all.entry((file.path.clone(), recorded.inode)).or_default();
                    *known = known.union(&safe);
                }
            }
        }
        let mut by_path: BTreeMap<String, Vec<RangeSet>> = BTreeMap::new();
        for ((path, _), safe) in all {
            by_path.entry(path).or_default().push(safe);
        }
        by_path
    }

    /// Whether a file has its name, all its bytes, and they are right and safe.
    #[must_use]
    pub fn has(&self, file: &TreeFile) -> bool {
        let inode = self.inode(&format!("to/{}", file.path));
        let whole = Range::new(0, file.len);
        inode.is_some_and(|inode| self.durable(inode, file.mark(0)).contains_range(whole))
    }

    /// Temporary names that are there.
    pub fn temporary(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| name.starts_with(".to."))
    }
}
