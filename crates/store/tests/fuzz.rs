//! Any bytes are decoded without harm: manifests and the patterns of filters.

use std::sync::Arc;

use ropewalk_store::{
    Attribute, Device, Entry, EntryKind, Filter, FilterRule, Kept, Manifest, Owner, Special,
};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::{fuzz, fuzz_some};

fn entry(path: &[u8], kind: EntryKind, kept: Kept) -> Entry {
    Entry {
        path: path.to_vec(),
        kind,
        mode: 0o644,
        mtime_seconds: 1_700_000_000,
        mtime_nanoseconds: 7,
        kept,
    }
}

fn manifests() -> Vec<Vec<u8>> {
    let kept = Kept {
        owner: Some(Arc::new(Owner {
            uid: 1000,
            gid: 1000,
            user: b"ann".to_vec(),
            group: b"staff".to_vec(),
        })),
        attributes: vec![Attribute {
            name: b"user.x".to_vec(),
            value: b"1".to_vec(),
        }],
    };
    let none = Kept::default;
    let tree = Manifest {
        entries: vec![
            entry(b"", EntryKind::Directory, none()),
            entry(b"a", EntryKind::File { len: 5000 }, kept.clone()),
            entry(
                b"b",
                EntryKind::Symlink {
                    target: b"a".to_vec(),
                },
                none(),
            ),
            entry(
                b"b device",
                EntryKind::Special(Special::Block(Device { major: 7, minor: 1 })),
                kept.clone(),
            ),
            entry(b"b pipe", EntryKind::Special(Special::Pipe), kept),
            entry(b"c", EntryKind::Directory, none()),
            entry(b"c/\xff", EntryKind::File { len: 1 }, none()),
        ],
    };
    let file = Manifest {
        entries: vec![entry(b"", EntryKind::File { len: 77 }, none())],
    };
    vec![tree.encode(), file.encode()]
}

/// What is accepted is what its bytes say, and no more than they have space for.
#[test]
fn manifests_are_decoded() {
    fuzz("manifests", &manifests(), |input| {
        match Manifest::decode(input) {
            Ok(manifest) => {
                assert_eq!(manifest.encode(), input);
                assert!(manifest.entries.capacity() <= input.len());
                assert!(manifest.entries[0].path.is_empty());
                assert!(manifest.entries.is_sorted_by(|a, b| a.path < b.path));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// Whatever a pattern is, it has a meaning or is refused in words.
#[test]
fn patterns() {
    let corpus = [
        "*.o",
        "/build/",
        "a/**/b",
        "[[:digit:]]x",
        "\\*[!a-z]?",
        "dir/***",
        "[[:]",
    ];
    let corpus = corpus.map(|pattern| pattern.as_bytes().to_vec());
    fuzz_some("patterns", &corpus, 3000, |input| {
        let rule = FilterRule {
            is_include: false,
            pattern: input.iter().copied().take(200).collect(),
        };
        match Filter::new([&rule]) {
            Ok(filter) => {
                for path in [&b"a"[..], b"build/x.o", b"a/b/c", b"\xff*"] {
                    let _ = (filter.excludes(path, true), filter.excludes(path, false));
                }
            }
            Err(error) => assert!(!error.reason.is_empty()),
        }
    });
}
