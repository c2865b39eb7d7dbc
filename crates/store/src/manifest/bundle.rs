//! Several files and folders of one host as one tree, each under its own last name: `copy a b c dest/`.

use std::collections::HashSet;
use std::sync::Arc;

use super::left_out::bounded;
use super::names::Names;
use super::{Entry, EntryKind, Kept, LeftOut, MODE_OF_NONE, Manifest, ManifestError, Scan};
use crate::version::Version;

impl Manifest {
    /// The tree in whose root the given trees and files lie side by side. The root is no folder: what the copy
    /// goes into keeps its mode and time.
    ///
    /// * `things`: name and manifest of each, in any order.
    ///
    /// Cost O(entries × log entries).
    ///
    /// # Errors
    /// [`ManifestError::Order`] when two have one name, [`ManifestError::Path`] for a name that none can have or a
    /// path that gets too long.
    pub fn bundle(things: Vec<(Vec<u8>, Self)>) -> Result<Self, ManifestError> {
        let mut entries = vec![Entry {
            path: Vec::new(),
            kind: EntryKind::Directory,
            mode: MODE_OF_NONE,
            mtime_seconds: 0,
            mtime_nanoseconds: 0,
            kept: Kept::default(),
        }];
        for (name, thing) in things {
            for mut entry in thing.entries {
                let mut path = name.clone();
                if !entry.path.is_empty() {
                    path.push(b'/');
                    path.append(&mut entry.path);
                }
                entry.path = path;
                if let EntryKind::HardLink { to } = &mut entry.kind {
                    *to = [name.as_slice(), b"/", to].concat();
                }
                entries.push(entry);
            }
        }
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let bundle = Self { entries };
        bundle.check()?;
        Ok(bundle)
    }
}

impl Scan {
    /// [`Manifest::bundle`] of scanned files and folders.
    ///
    /// # Errors
    /// As [`Manifest::bundle`].
    pub fn bundle(things: Vec<(Vec<u8>, Self)>) -> Result<Self, ManifestError> {
        let mut versions = vec![(Vec::new(), Version::UNKNOWN)];
        let mut manifests = Vec::new();
        let (mut skipped, mut special, mut attributes_unread) = (0, 0, 0);
        let (mut left_out, mut left_out_more) = (Vec::new(), 0);
        let mut names = Names::default();
        for (name, thing) in things {
            for (entry, version) in thing.manifest.entries.iter().zip(&*thing.versions) {
                let path = [name.as_slice(), b"/", &entry.path];
                let path = if entry.path.is_empty() {
                    name.clone()
                } else {
                    path.concat()
                };
                versions.push((path, *version));
            }
            names.add_below(&name, &thing.names);
            skipped += thing.skipped;
            special += thing.special;
            attributes_unread += thing.attributes_unread;
            left_out_more += thing.left_out_more;
            left_out.extend(thing.left_out.into_iter().map(|one| LeftOut {
                path: [name.as_slice(), b"/", &one.path].concat(),
                ..one
            }));
            manifests.push((name, Arc::unwrap_or_clone(thing.manifest)));
        }
        let manifest = Manifest::bundle(manifests)?;
        // The order of the entries: no path is there twice.
        versions.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let versions = versions.into_iter().map(|(_, version)| version);
        let mut entries = manifest.entries;
        names.split(&mut entries);
        let mut found: Vec<(Entry, Version)> = entries.into_iter().zip(versions).collect();
        let (left_out, more) = bounded(left_out, &HashSet::new(), &mut found);
        left_out_more += more;
        let (mut entries, versions): (Vec<Entry>, Vec<Version>) = found.into_iter().unzip();
        names.join(&mut entries);
        Ok(Self {
            manifest: Arc::new(Manifest { entries }),
            versions: versions.into(),
            skipped,
            special,
            left_out,
            left_out_more,
            attributes_unread,
            names,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        Entry {
            path: path.into(),
            kind,
            mode: 0o600,
            mtime_seconds: 7,
            mtime_nanoseconds: 0,
            kept: Kept::default(),
        }
    }

    fn file(len: u64) -> Manifest {
        Manifest {
            entries: vec![entry("", EntryKind::File { len })],
        }
    }

    /// Files and folders lie under their names; the root is nobody's folder; the whole survives its encoding.
    #[test]
    fn things_lie_side_by_side() {
        let tree = Manifest {
            entries: vec![
                entry("", EntryKind::Directory),
                entry("x", EntryKind::File { len: 3 }),
            ],
        };
        let things = vec![(b"b".to_vec(), tree), (b"a".to_vec(), file(5))];
        let bundle = Manifest::bundle(things).unwrap();
        let paths: Vec<&[u8]> = bundle.entries.iter().map(|e| e.path.as_slice()).collect();
        assert_eq!(paths, [&b""[..], b"a", b"b", b"b/x"]);
        assert!(bundle.is_bundle() && !bundle.is_single_file());
        assert_eq!((bundle.data_len(), bundle.file_count()), (8, 2));
        assert_eq!(Manifest::decode(&bundle.encode()), Ok(bundle));
    }

    /// Two things of one name, and names that lead elsewhere, are refused; only a root may lack a mode.
    #[test]
    fn what_cannot_lie_side_by_side_is_refused() {
        let twice = vec![(b"a".to_vec(), file(1)), (b"a".to_vec(), file(1))];
        assert!(matches!(
            Manifest::bundle(twice),
            Err(ManifestError::Order(_))
        ));
        for name in [&b".."[..], b"", b"a/../b"] {
            let named = Manifest::bundle(vec![(name.to_vec(), file(1))]);
            assert!(named.is_err(), "{}", name.escape_ascii());
        }
        let mut odd = Manifest::bundle(vec![(b"a".to_vec(), file(1))]).unwrap();
        odd.entries[1].mode = MODE_OF_NONE;
        assert!(matches!(odd.check(), Err(ManifestError::Value(_))));
    }
}
