//! Symbolic links that the destination's file system refuses for what they are: it has none, or none of that length. They are left out and
//! named; all else is copied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;

use super::Tree;
use crate::open_files::lock;

/// What is left out, by number, and why.
#[derive(Debug, Default)]
pub(super) struct Refused {
    is_any: AtomicBool,
    all: Mutex<BTreeMap<u32, &'static str>>,
}

impl Refused {
    /// What is left out so far.
    pub fn all(&self) -> MutexGuard<'_, BTreeMap<u32, &'static str>> {
        lock(&self.all)
    }

    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    pub fn has(&self, object: u32) -> bool {
        self.is_any() && self.all().contains_key(&object)
    }

    fn take(&self, object: u32, reason: &'static str) {
        self.all().entry(object).or_insert(reason);
        self.is_any.store(true, Ordering::Release);
    }
}

/// Why a link is refused, where other kinds of files are not.
fn reason(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP => {
            Some("the file system there has no symbolic links")
        }
        Errno::NAMETOOLONG => Some("the link, or its name, is too long for the file system there"),
        _ => None,
    }
}

impl Tree {
    /// Leaves a symbolic link out, where the file system refuses it for what it is.
    pub(super) fn refuse_link(&self, object: u32, errno: Errno) -> bool {
        let reason = reason(errno).filter(|_| self.root.is_some());
        if let Some(reason) = reason {
            self.refused.take(object, reason);
        }
        reason.is_some()
    }

    /// Leaves a further name of such a link out, too.
    pub(super) fn refuse_name(&self, object: u32, first: u32) {
        let reason = self.refused.all().get(&first).copied();
        self.refused.take(object, reason.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full or fails is not the link's fault.
    #[test]
    fn only_what_a_link_is_counts() {
        assert!(reason(Errno::PERM).is_some() && reason(Errno::NAMETOOLONG).is_some());
        for errno in [Errno::NOSPC, Errno::IO, Errno::ROFS, Errno::ACCESS] {
            assert_eq!(reason(errno), None);
        }
    }
}
