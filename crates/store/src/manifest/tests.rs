use proptest::prelude::*;

use super::*;

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry {
        path: path.into(),
        kind,
        mode: 0o644,
        mtime_seconds: -5,
        mtime_nanoseconds: 999_999_999,
        kept: Kept::default(),
    }
}

const NAMES: [&str; 2] = ["one", "two"];

fn file(path: &str, len: u64) -> Entry {
    entry(path, EntryKind::File { len })
}

fn directory(path: &str) -> Entry {
    entry(path, EntryKind::Directory)
}

fn link(path: &str, target: &str) -> Entry {
    entry(
        path,
        EntryKind::Symlink {
            target: target.into(),
        },
    )
}

fn manifest(entries: Vec<Entry>) -> Manifest {
    Manifest { entries }
}

/// Trees that keep the invariant: any names, some of them below a folder of the same tree.
fn trees() -> impl Strategy<Value = Manifest> {
    let name = proptest::collection::vec(prop_oneof![1u8..=b'.' - 1, b'0'..=255], 1..6);
    let kind = prop_oneof![
        (0u64..1 << 40).prop_map(|len| EntryKind::File { len }),
        proptest::collection::vec(1u8..=255, 1..9).prop_map(|target| EntryKind::Symlink { target }),
    ];
    let one = (
        any::<bool>(),
        name,
        kind,
        0u32..=0o7777,
        any::<i64>(),
        0u32..1_000_000_000,
    );
    proptest::collection::vec(one, 0..12).prop_map(|entries| {
        let mut tree = std::collections::BTreeMap::from([(Vec::new(), directory(""))]);
        for (below, name, kind, mode, mtime_seconds, mtime_nanoseconds) in entries {
            let folder: &[u8] = if below { b"folder/" } else { b"" };
            if below {
                tree.insert(b"folder".to_vec(), directory("folder"));
            }
            let path = [folder, name.as_slice()].concat();
            tree.entry(path.clone()).or_insert(Entry {
                path,
                kind,
                mode,
                mtime_seconds,
                mtime_nanoseconds,
                kept: Kept::default(),
            });
        }
        manifest(tree.into_values().collect())
    })
}

proptest! {
    /// A tree and its bytes are the same thing, in both directions.
    #[test]
    fn encoding_round_trips(tree in trees()) {
        prop_assert_eq!(tree.check(), Ok(()));
        prop_assert_eq!(Manifest::decode(&tree.encode()), Ok(tree));
    }

    /// Bytes from a peer never panic, and what is accepted is canonical and harmless.
    #[test]
    fn damaged_bytes_are_refused_or_canonical(tree in trees(), edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(), cuts in any::<bool>()) {
        let mut bytes = tree.encode();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(decoded) = Manifest::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
            for entry in &decoded.entries {
                let names: Vec<&[u8]> = entry.path.split(|byte| *byte == b'/').collect();
                prop_assert!(entry.path.is_empty() || names.iter().all(|name| ![&b""[..], b".", b".."].contains(name)));
            }
        }
    }

    /// Any bytes at all are read safely.
    #[test]
    fn any_bytes_are_read_safely(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Manifest::decode(&body);
        let _ = Manifest::decode(&[&manifest(vec![]).encode()[..8], &body].concat());
    }
}

/// Each rule that protects the receiver's disk has a tree that breaks it and nothing else.
#[test]
fn broken_trees_are_refused() {
    let long = "x".repeat(COMPONENT_LEN_MAX + 1);
    let cases = [
        (vec![], ManifestError::Count(0)),
        (
            vec![directory(""), file("../a", 1)],
            ManifestError::Path("../a".into()),
        ),
        (
            vec![directory(""), file("..", 1)],
            ManifestError::Path("..".into()),
        ),
        (
            vec![directory(""), file("/a", 1)],
            ManifestError::Path("/a".into()),
        ),
        (
            vec![directory(""), directory("a"), file("a//b", 1)],
            ManifestError::Path("a//b".into()),
        ),
        (
            vec![directory(""), directory("a/")],
            ManifestError::Path("a/".into()),
        ),
        (
            vec![directory(""), file("a\0b", 1)],
            ManifestError::Path("a\\x00b".into()),
        ),
        (
            vec![directory(""), file(&long, 1)],
            ManifestError::Path(long.clone()),
        ),
        (
            vec![directory(""), file("b", 1), file("a", 1)],
            ManifestError::Order("a".into()),
        ),
        (
            vec![directory(""), file("a", 1), file("a", 1)],
            ManifestError::Order("a".into()),
        ),
        (
            vec![directory(""), link("a", "/etc"), file("a/b", 1)],
            ManifestError::Orphan("a/b".into()),
        ),
        (
            vec![directory(""), file("a/b", 1)],
            ManifestError::Orphan("a/b".into()),
        ),
        (
            vec![file("", 1), file("a", 1)],
            ManifestError::Orphan("a".into()),
        ),
        (vec![file("a", 1)], ManifestError::Orphan("a".into())),
        (vec![link("", "x")], ManifestError::Orphan(String::new())),
        (
            vec![directory(""), link("a", "")],
            ManifestError::Value("a".into()),
        ),
        (
            vec![
                directory(""),
                Entry {
                    mode: 0o10000,
                    ..file("a", 1)
                },
            ],
            ManifestError::Value("a".into()),
        ),
        (
            vec![
                directory(""),
                Entry {
                    mtime_nanoseconds: 1_000_000_000,
                    ..file("a", 1)
                },
            ],
            ManifestError::Value("a".into()),
        ),
        (
            vec![directory(""), file("a", u64::MAX), file("b", 1)],
            ManifestError::TooLong("b".into()),
        ),
    ];
    for (entries, error) in cases {
        let tree = manifest(entries);
        assert_eq!(tree.check(), Err(error.clone()), "{tree:?}");
        assert_eq!(
            Manifest::decode(&tree.encode()),
            Err(error),
            "decoded {tree:?}"
        );
    }
}

/// A count that promises more than the bytes hold costs no memory and is refused.
#[test]
fn a_lying_count_is_refused() {
    let mut bytes = manifest(vec![directory("")]).encode();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        Manifest::decode(&bytes),
        Err(ManifestError::Length { .. })
    ));
}

/// Any difference in names, kinds, sizes, times, modes or targets changes the hash.
#[test]
fn the_hash_covers_everything() {
    let base = vec![directory(""), file("a", 7), link("b", "t")];
    let mut variants = vec![base.clone(); 7];
    variants[1][1].path = b"A".to_vec();
    variants[2][1].kind = EntryKind::File { len: 8 };
    variants[3][1].mode = 0o600;
    variants[4][1].mtime_seconds = 0;
    variants[5][1].mtime_nanoseconds = 0;
    variants[6][2].kind = EntryKind::Symlink {
        target: b"u".to_vec(),
    };
    let hashes: std::collections::HashSet<_> = variants
        .into_iter()
        .map(|entries| manifest(entries).root_hash())
        .collect();
    assert_eq!(hashes.len(), 7);
}

/// Files follow each other from the base on; empty ones, folders and links take nothing.
#[test]
fn layout_numbers_entries() {
    let tree = manifest(vec![
        directory(""),
        file("a", 10),
        file("b", 0),
        link("c", "a"),
        file("d", 5),
    ]);
    let layout = tree.layout(100).unwrap();
    let pieces: Vec<_> = layout
        .pieces()
        .iter()
        .map(|piece| (piece.range.start, piece.range.end, piece.object))
        .collect();
    assert_eq!(pieces, [(100, 110, 1), (110, 115, 4)]);
    assert_eq!((tree.data_len(), tree.file_count()), (15, 4));
    assert!(tree.layout(u64::MAX - 14).is_err());
    assert!(tree.layout(u64::MAX - 15).is_ok());
}

/// Parts may share folders; the first path in byte order that they share otherwise is named.
#[test]
fn conflicts_name_the_first_path() {
    let a = manifest(vec![
        directory(""),
        directory("d"),
        file("d/x", 1),
        file("z", 1),
    ]);
    let b = manifest(vec![directory(""), directory("d"), file("d/y", 1)]);
    let c = manifest(vec![directory(""), file("d", 1), file("z", 1)]);
    assert_eq!(Manifest::conflict(&[&a, &b]), None);
    assert_eq!(
        Manifest::conflict(&[&b, &a, &c]),
        Some((b"d".to_vec(), 0, 2))
    );
    assert_eq!(
        Manifest::conflict(&[&manifest(vec![file("", 1)]), &b]),
        Some((Vec::new(), 0, 1))
    );
}

/// Replicas may differ in modes and folder times only; otherwise the words name path and values.
#[test]
fn differences_are_told_in_words() {
    let a = manifest(vec![directory(""), file("a", 1), link("l", "t")]);
    let mut b = a.clone();
    b.entries[0].mtime_seconds = 77;
    b.entries[1].mode = 0o400;
    assert_eq!(Manifest::difference(&a, &b, NAMES), None);
    type Change = fn(&mut Manifest);
    let variants: [(Change, &str); 5] = [
        (
            |tree| tree.entries[1].kind = EntryKind::File { len: 2 },
            "1 bytes in one and 2 in two",
        ),
        (
            |tree| tree.entries[1].mtime_nanoseconds = 0,
            "was modified 1969-12-31 23:59:55.999999999 UTC in one and 1969-12-31 23:59:55 UTC in two",
        ),
        (
            |tree| {
                tree.entries[2].kind = EntryKind::Symlink {
                    target: b"u".to_vec(),
                }
            },
            "leads to \"t\"",
        ),
        (
            |tree| tree.entries[2].kind = EntryKind::Directory,
            "is a symbolic link in one and a directory in two",
        ),
        (|tree| drop(tree.entries.pop()), "\"l\" is only in one"),
    ];
    for (change, words) in variants {
        let mut other = b.clone();
        change(&mut other);
        let told = Manifest::difference(&a, &other, NAMES).unwrap();
        assert!(told.contains(words), "{told}");
    }
}
