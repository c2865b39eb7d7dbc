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
/// removed from `found`, and so are `dropped` folders.
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
        found.retain(|(entry, _)| {
            !unnamed.contains(entry.path.as_slice()) && !dropped.contains(&entry.path)
        });
    }
    (all, more.len() as u64)
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
