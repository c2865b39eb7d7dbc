//! Are several trees replicas of each other, or parts of one set?

use std::collections::HashMap;

use super::{Entry, EntryKind, Manifest};

impl Manifest {
    /// The first path, in byte order, that keeps the trees from being parts of one set, and the
    /// indices of two trees that hold it.
    ///
    /// Directories may be in several parts; anything else in one. Cost O(entries of all).
    #[must_use]
    pub fn conflict(parts: &[&Self]) -> Option<(Vec<u8>, usize, usize)> {
        let mut holders: HashMap<&[u8], (usize, bool)> = HashMap::new();
        let mut found: Option<(&[u8], usize, usize)> = None;
        for (part, manifest) in parts.iter().enumerate() {
            for entry in &manifest.entries {
                let directory = entry.kind == EntryKind::Directory;
                let (first, first_directory) =
                    *holders.entry(&entry.path).or_insert((part, directory));
                let clash = first != part && !(directory && first_directory);
                if clash && found.is_none_or(|(path, _, _)| entry.path.as_slice() < path) {
                    found = Some((&entry.path, first, part));
                }
            }
        }
        found.map(|(path, first, second)| (path.to_vec(), first, second))
    }

    /// The first difference that shows two trees not to be replicas, in words; `None` when there is none.
    ///
    /// Compared are paths, kinds, lengths, link targets, and the times of files. Modes and the
    /// times of directories are not: making a replica changes them, and they say nothing of contents.
    #[must_use]
    pub fn difference(a: &Self, b: &Self) -> Option<String> {
        let (mut left, mut right) = (a.entries.iter().peekable(), b.entries.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(x), Some(y)) => x.path.cmp(&y.path),
            };
            let only = |entry: Option<&Entry>, which| {
                entry.map(|entry| format!("{} is only in the {which}", in_words(entry)))
            };
            match order {
                std::cmp::Ordering::Less => return only(left.next(), "first"),
                std::cmp::Ordering::Greater => return only(right.next(), "second"),
                std::cmp::Ordering::Equal => {}
            }
            if let (Some(x), Some(y)) = (left.next(), right.next())
                && let Some(words) = difference_of(x, y)
            {
                return Some(words);
            }
        }
    }
}

fn in_words(entry: &Entry) -> String {
    if entry.path.is_empty() {
        return format!("the {} itself", entry.kind.in_words());
    }
    format!(
        "{} \"{}\"",
        entry.kind.in_words(),
        entry.path.escape_ascii()
    )
}

fn difference_of(x: &Entry, y: &Entry) -> Option<String> {
    match (&x.kind, &y.kind) {
        (EntryKind::Directory, EntryKind::Directory) => None,
        (EntryKind::Symlink { target: first }, EntryKind::Symlink { target: second }) => {
            (first != second).then(|| {
                format!(
                    "{} leads to \"{}\" in the first and \"{}\" in the second",
                    in_words(x),
                    first.escape_ascii(),
                    second.escape_ascii()
                )
            })
        }
        (EntryKind::File { len: first }, EntryKind::File { len: second }) if first != second => {
            Some(format!(
                "{} has {first} bytes in the first and {second} in the second",
                in_words(x)
            ))
        }
        (EntryKind::File { .. }, EntryKind::File { .. }) => {
            let (first, second) = (
                (x.mtime_seconds, x.mtime_nanoseconds),
                (y.mtime_seconds, y.mtime_nanoseconds),
            );
            (first != second).then(|| {
                format!(
                    "{} was modified at {}.{:09} in the first and {}.{:09} in the second (seconds since 1970)",
                    in_words(x), first.0, first.1, second.0, second.1
                )
            })
        }
        (first, second) => Some(format!(
            "\"{}\" is a {} in the first and a {} in the second",
            x.path.escape_ascii(),
            first.in_words(),
            second.in_words()
        )),
    }
}
