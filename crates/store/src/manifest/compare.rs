//! Are several trees replicas of each other, or parts of one set?

use std::collections::HashMap;

use ropewalk_model::format_time;

use super::{Entry, EntryKind, Manifest};

impl Manifest {
    /// The first path, in byte order, that keeps the trees from being parts of one set, and the
    /// indices of two trees that hold it.
    ///
    /// Directories may be in several parts; anything else in one. Cost O(entries of all).
    #[must_use]
    pub fn conflict(parts: &[&Self]) -> Option<(Vec<u8>, usize, usize)> {
        if parts.len() < 2 {
            return None;
        }
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
    ///
    /// * `names`: what to call the two.
    #[must_use]
    pub fn difference(a: &Self, b: &Self, names: [&str; 2]) -> Option<String> {
        let (mut left, mut right) = (a.entries.iter().peekable(), b.entries.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(x), Some(y)) => x.path.cmp(&y.path),
            };
            let only = |entry: Option<&Entry>, which| {
                entry.map(|entry| format!("{} is only in {which}", in_words(entry)))
            };
            match order {
                std::cmp::Ordering::Less => return only(left.next(), names[0]),
                std::cmp::Ordering::Greater => return only(right.next(), names[1]),
                std::cmp::Ordering::Equal => {}
            }
            if let (Some(x), Some(y)) = (left.next(), right.next())
                && let Some(words) = difference_of(x, y, names)
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

fn difference_of(x: &Entry, y: &Entry, [first, second]: [&str; 2]) -> Option<String> {
    match (&x.kind, &y.kind) {
        (EntryKind::Directory, EntryKind::Directory) => None,
        (EntryKind::Special(one), EntryKind::Special(other)) if one == other => None,
        (EntryKind::Special(one), EntryKind::Special(other))
            if one.in_words() == other.in_words() =>
        {
            Some(format!(
                "{} has another number in {first} than in {second}",
                in_words(x)
            ))
        }
        (EntryKind::Symlink { target: to }, EntryKind::Symlink { target: other })
        | (EntryKind::HardLink { to }, EntryKind::HardLink { to: other }) => {
            (to != other).then(|| {
                format!(
                    "{} leads to \"{}\" in {first} and to \"{}\" in {second}",
                    in_words(x),
                    to.escape_ascii(),
                    other.escape_ascii()
                )
            })
        }
        (EntryKind::File { len }, EntryKind::File { len: other }) if len != other => Some(format!(
            "{} has {len} bytes in {first} and {other} in {second}",
            in_words(x)
        )),
        (EntryKind::File { .. }, EntryKind::File { .. }) => {
            let time = |entry: &Entry| (entry.mtime_seconds, entry.mtime_nanoseconds);
            let shown = |entry: &Entry| format_time(entry.mtime_seconds, entry.mtime_nanoseconds);
            (time(x) != time(y)).then(|| {
                format!(
                    "{} was modified {} in {first} and {} in {second}",
                    in_words(x),
                    shown(x),
                    shown(y)
                )
            })
        }
        (kind, other) => Some(format!(
            "{} is a {} in {first} and a {} in {second}",
            match x.path.is_empty() {
                true => "the source itself".to_owned(),
                false => format!("\"{}\"", x.path.escape_ascii()),
            },
            kind.in_words(),
            other.in_words()
        )),
    }
}
