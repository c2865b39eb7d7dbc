//! What a scan leaves out because it cannot be read, and where the bytes of such files would lie.

use std::collections::HashSet;

use ropewalk_model::Range;
use rustix::io::Errno;

use super::{Entry, EntryKind, Manifest, Scan};

/// Most files and folders of one scan that are named. Further files that cannot be read are no entries of its manifest, so
/// that replicas that can read them differ from it.
const NAMED_MAX: usize = 1000;

/// Bytes of their paths together: a control message holds them.
const NAMED_BYTES_MAX: usize = 1 << 18;

/// A file or folder below the root that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Relative to the root.
    pub path: Vec<u8>,
    /// Why, in words.
    pub reason: String,
}

/// Why an entry with this error is left out of a scan, in words. `None`: this process lacks something, and the scan fails.
pub(super) fn reason(errno: Errno) -> Option<String> {
    let reason = match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => return None,
        Errno::ACCESS | Errno::PERM => "permission denied",
        Errno::NOENT | Errno::STALE => "vanished during the scan",
        // What was a folder, or a folder above it, is now a file or a link.
        Errno::NOTDIR | Errno::LOOP => "was replaced during the scan",
        Errno::NAMETOOLONG => "its path is too long",
        errno => return Some(in_words(errno)),
    };
    Some(reason.to_owned())
}

/// What the system calls an error, as these reasons are written.
fn in_words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    first.to_lowercase() + rest
}

/// The first of what a walk could not read, in the order of their paths, and how many more there are. Files that are not named are
/// removed from `found`, and so are `dropped` folders; not a folder with something below it that stays.
///
/// * `found`: sorted by path.
pub(super) fn bounded<T>(
    mut all: Vec<LeftOut>,
    dropped: &HashSet<Vec<u8>>,
    found: &mut Vec<(Entry, T)>,
) -> (Vec<LeftOut>, u64) {
    all.sort();
    let mut bytes = 0;
    let fits = |left_out: &&LeftOut| {
        bytes += left_out.path.len();
        bytes <= NAMED_BYTES_MAX
    };
    let named = all.iter().take(NAMED_MAX).take_while(fits).count();
    let more = all.split_off(named);
    if !more.is_empty() || !dropped.is_empty() {
        let unnamed: HashSet<&[u8]> = more.iter().map(|one| one.path.as_slice()).collect();
        let mut stays = vec![true; found.len()];
        // What is below a folder is behind it.
        for at in (0..found.len()).rev() {
            let path = &found[at].0.path;
            let is_removed = unnamed.contains(path.as_slice()) || dropped.contains(path);
            stays[at] = !is_removed || has_below(found, &stays, at);
        }
        let mut stays = stays.into_iter();
        found.retain(|_| stays.next().unwrap_or(true));
    }
    (all, more.len() as u64)
}

/// Whether this is a folder with something below it that stays.
///
/// * `stays`: of each entry behind it, whether it stays.
fn has_below<T>(found: &[(Entry, T)], stays: &[bool], at: usize) -> bool {
    let (folder, _) = &found[at];
    if folder.kind != EntryKind::Directory {
        return false;
    }
    let below = [&folder.path[..], b"/"].concat();
    let first = found.partition_point(|(entry, _)| entry.path < below);
    let mut rest = found.iter().zip(stays).skip(first);
    let is_below = |entry: &Entry| entry.path.starts_with(&below);
    rest.find(|((entry, _), stays)| **stays || !is_below(entry))
        .is_some_and(|((entry, _), _)| is_below(entry))
}

impl Scan {
    /// What was left out, each with its bytes relative to the first byte of the tree: of files that replicas may supply.
    /// Cost O(entries) if anything was left out.
    #[must_use]
    pub fn left_out(&self) -> Vec<(&LeftOut, Option<Range>)> {
        let ranges = match self.left_out.is_empty() {
            true => Vec::new(),
            false => ranges(&self.manifest),
        };
        let range = |path: &[u8]| {
            // What lacks the bytes of a file lacks those of its other names.
            let path = match self.manifest.entry(path).map(|entry| &entry.kind) {
                Some(EntryKind::HardLink { to }) => to,
                _ => path,
            };
            let at = ranges
                .binary_search_by(|(entry, _)| entry.cmp(&path))
                .ok()?;
            Some(ranges[at].1)
        };
        let all = self.left_out.iter();
        all.map(|one| (one, range(&one.path))).collect()
    }
}

/// The bytes of each file that has some, by path.
fn ranges(manifest: &Manifest) -> Vec<(&[u8], Range)> {
    let mut start = 0;
    let mut out = Vec::new();
    for entry in &manifest.entries {
        let end = start + entry.len();
        if matches!(entry.kind, EntryKind::File { .. }) && end > start {
            out.push((entry.path.as_slice(), Range { start, end }));
        }
        start = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Kept;

    fn entry(path: &str, kind: EntryKind) -> (Entry, ()) {
        let entry = Entry {
            path: path.into(),
            kind,
            mode: 0o700,
            mtime_seconds: 0,
            mtime_nanoseconds: 0,
            kept: Kept::default(),
        };
        (entry, ())
    }

    /// Folders that are dropped, or not named, stay where something below them does, not only the folder behind them in the order.
    #[test]
    fn folders_of_what_stays_stay() {
        let file = || EntryKind::File { len: 1 };
        let folders =
            ["", "d", "d/e", "f", "f/g", "n"].map(|path| entry(path, EntryKind::Directory));
        let files = ["d.x", "d/e/x", "dx", "n/x"].map(|path| entry(path, file()));
        let mut found: Vec<(Entry, ())> = folders.into_iter().chain(files).collect();
        found.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        let dropped = ["d", "d/e", "f", "f/g"].map(Vec::from).into();
        let left_out = |path: String| LeftOut {
            path: path.into(),
            reason: "permission denied".into(),
        };
        let first = (0..NAMED_MAX).map(|at| format!("a{at:04}"));
        let last = ["dx", "n"].map(String::from);
        let all = first.chain(last).map(left_out).collect();
        let (named, more) = bounded(all, &dropped, &mut found);
        assert_eq!((named.len(), more), (NAMED_MAX, 2));
        let paths: Vec<&[u8]> = found.iter().map(|(entry, ())| &entry.path[..]).collect();
        let expected = ["", "d", "d.x", "d/e", "d/e/x", "n", "n/x"];
        assert_eq!(paths, expected.map(str::as_bytes));
    }

    /// Each error of an entry has words; one of this process has none.
    #[test]
    fn reasons_are_written_alike() {
        for (errno, expected) in [
            (Errno::IO, Some("input/output error")),
            (Errno::NOTCONN, Some("transport endpoint is not connected")),
            (Errno::LOOP, Some("was replaced during the scan")),
            (Errno::MFILE, None),
            (Errno::NOMEM, None),
        ] {
            assert_eq!(reason(errno).as_deref(), expected, "{errno:?}");
        }
    }
}
