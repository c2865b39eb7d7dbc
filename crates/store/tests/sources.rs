//! Sources that change while they are read, that have no size, that may not be read, or that hold what copies left.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use ropewalk_model::{Layout, Piece, Range};
use ropewalk_store::{
    Change, Entry, EntryKind, Extent, FileSource, Growth, Manifest, OPEN_FILES_MAX, SMALL_FILE_MAX,
    Scan, Source, StoreError, identity,
};

mod support;
use support::*;

/// Writes to a file and sets its time back, as `touch -r` and `rsync -t --inplace` do.
fn rewrite(path: &Path, byte: u8) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[byte], 0).unwrap();
    set_times(path, 1_000_000, 1);
}

fn place(path: &Path) {
    std::fs::write(path, bytes(1, 1000)).unwrap();
    set_times(path, 1_000_000, 1);
}

/// A file that was written to and has its old size and time is refused, in a tree, alone and as rows; so is another file
/// that took its name.
#[test]
fn a_time_set_back_hides_nothing() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    place(&path);
    let piece = Piece {
        range: Range {
            start: 0,
            end: 1000,
        },
        object: 0,
        object_offset: 0,
    };
    let open = || {
        let layout = Layout::new(vec![piece]).unwrap();
        let tree = FileSource::open_tree(&folder, &Scan::read(&folder).unwrap(), 0).unwrap();
        let alone = FileSource::open_tree(&path, &Scan::read(&path).unwrap(), 0).unwrap();
        let rows = FileSource::open(layout, vec![path.clone()]).unwrap();
        [tree, alone, rows]
    };
    let changed = |how| StoreError::Changed {
        path: path.clone(),
        how,
    };
    let mut buf = [0; 10];
    for read_before in [false, true] {
        let sources = open();
        for source in sources.iter().filter(|_| read_before) {
            source.read_at(0, &mut buf).unwrap();
        }
        rewrite(&path, 99);
        for source in &sources {
            assert_eq!(source.read_at(0, &mut buf), Err(changed(Change::Inode)));
            assert!(source.extent(0, 10).is_err());
        }
    }
    // Of one that is open, its inode changed, too: it has a name less.
    let removed = open();
    for source in &removed {
        source.read_at(0, &mut buf).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    for source in &removed {
        assert_eq!(source.read_at(0, &mut buf), Err(changed(Change::Removed)));
    }
    place(&path);
    let tree = FileSource::open_tree(&folder, &Scan::read(&folder).unwrap(), 0).unwrap();
    place(&folder.join("other"));
    std::fs::rename(folder.join("other"), &path).unwrap();
    assert_eq!(tree.read_at(0, &mut buf), Err(changed(Change::Replaced)));
    let words = changed(Change::Inode).to_string();
    assert!(
        words.contains("time set back") && words.contains("mode, owner or links"),
        "{words}"
    );
}

/// A file that has grown is refused, or read as far as it was scanned, and named; not one that is shorter, that only has another time, or
/// that took the name.
#[test]
fn files_that_grow_are_read_as_they_were() {
    use std::io::Write as _;

    let (_keep, folder) = folder();
    let path = folder.join("file");
    let append = || {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path);
        file.as_mut().unwrap().write_all(b"more").unwrap();
    };
    let open = |growth| {
        place(&path);
        let scan = Scan::read(&folder).unwrap();
        let alone = Scan::read(&path).unwrap();
        let things = [(b"t".to_vec(), folder.clone())];
        let bundle = Scan::bundle(vec![(b"t".to_vec(), scan.clone())]).unwrap();
        [
            FileSource::open_tree_with(&folder, &scan, 0, growth).unwrap(),
            FileSource::open_tree_with(&path, &alone, 0, growth).unwrap(),
            FileSource::open_bundle_with(&things, &bundle, 0, growth).unwrap(),
        ]
    };
    let mut buf = [0; 1000];
    for source in open(Growth::Refused) {
        append();
        assert!(source.read_at(0, &mut buf).is_err());
        assert_eq!(source.grown(9), (Vec::new(), 0));
    }
    let names: [&[u8]; 3] = [b"file", b"", b"t/file"];
    for (source, name) in open(Growth::LeftOut).iter().zip(names) {
        append();
        source.read_at(0, &mut buf).unwrap();
        assert!(buf[..] == bytes(1, 1000)[..]);
        assert!(matches!(
            source.extent(0, 1000),
            Ok(Extent::File { len: 1000, .. })
        ));
        assert_eq!(source.grown(9), (vec![name.to_vec()], 0));
        assert_eq!(source.grown(0), (Vec::new(), 1));
    }
    // One that is cut off after it has grown is not what it was.
    for source in open(Growth::LeftOut) {
        append();
        source.read_at(0, &mut buf).unwrap();
        std::fs::write(&path, [1; 999]).unwrap();
        assert!(source.read_at(0, &mut buf).is_err());
        assert_eq!(source.grown(9), (Vec::new(), 0));
        std::fs::write(&path, bytes(1, 1000)).unwrap();
    }
    let changes: [&dyn Fn(); 3] = [
        &|| std::fs::write(&path, [1; 999]).unwrap(),
        &|| rewrite(&path, 99),
        &|| {
            std::fs::write(folder.join("other"), [1; 2000]).unwrap();
            std::fs::rename(folder.join("other"), &path).unwrap();
        },
    ];
    for change in changes {
        let sources = open(Growth::LeftOut);
        // No other file gets its inode.
        let _held = std::fs::File::open(&path).unwrap();
        for source in sources {
            change();
            assert!(source.read_at(0, &mut buf).is_err());
            assert_eq!(source.grown(9), (Vec::new(), 0));
        }
    }
}

/// A file of a tree that became a folder is called a changed one, and no advice is given on ranges of bytes; of rows it is.
#[test]
fn a_file_that_became_a_folder_has_changed() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    place(&path);
    let scan = Scan::read(&folder).unwrap();
    let things = [(b"t".to_vec(), folder.clone())];
    let bundle = Scan::bundle(vec![(b"t".to_vec(), scan.clone())]).unwrap();
    let sources = [
        FileSource::open_tree(&folder, &scan, 0).unwrap(),
        FileSource::open_bundle(&things, &bundle, 0).unwrap(),
    ];
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    for source in sources {
        let error = source.read_at(0, &mut [0; 10]).unwrap_err();
        let how = Change::Contents;
        let path = path.clone();
        assert_eq!(error, StoreError::Changed { path, how });
        let text = error.to_string();
        assert!(text.contains("changed since it was scanned"), "{text}");
    }
    let rows = FileSource::open(Layout::default(), vec![path]).unwrap_err();
    assert!(matches!(rows, StoreError::NoFile { .. }), "{rows}");
}

/// Of a tree with more files than stay open, those that are opened again by name are the ones that were scanned.
#[test]
fn files_opened_again_are_the_same() {
    let (_keep, folder) = folder();
    let count = OPEN_FILES_MAX + 50;
    let name = |at: usize| folder.join(format!("{at:04}"));
    (0..count).for_each(|at| place(&name(at)));
    let source = FileSource::open_tree(&folder, &Scan::read(&folder).unwrap(), 0).unwrap();
    let mut buf = [0; 1000];
    for at in 0..count as u64 {
        source.read_at(at * 1000, &mut buf).unwrap();
    }
    place(&folder.join("new"));
    std::fs::rename(folder.join("new"), name(0)).unwrap();
    assert_eq!(
        source.read_at(0, &mut buf),
        Err(StoreError::Changed {
            path: name(0),
            how: Change::Replaced
        })
    );
    source.read_at(1000, &mut buf).unwrap();
}

/// Files whose contents the system makes are refused, alone and as rows, with the way to copy them; below a folder they are left out.
#[test]
fn files_without_a_size_are_refused() {
    let version = Path::new("/proc/version");
    let error = Manifest::scan(version).unwrap_err();
    assert!(matches!(error, StoreError::NoSize { .. }), "{error}");
    assert!(error.to_string().contains("use cat"), "{error}");
    let error = identity(version).unwrap_err();
    assert!(matches!(error, StoreError::NoSize { .. }), "{error}");
    for path in ["/proc/self/net", "/sys/kernel/mm"].map(Path::new) {
        if !path.exists() {
            eprintln!("SKIPPED: there is no {path:?} here");
            continue;
        }
        let scan = Scan::read(&path.canonicalize().unwrap()).unwrap();
        let mut entries = scan.manifest.entries.iter();
        let is_file = |entry: &&Entry| matches!(entry.kind, EntryKind::File { .. });
        assert_eq!(entries.find(is_file), None, "{path:?}");
        let first = scan
            .left_out
            .iter()
            .find(|one| one.reason.contains("no size"));
        assert!(first.is_some(), "{path:?}");
    }
}

/// Temporary names of transfers are left out with all below them and counted; one that is asked for by name is copied.
#[test]
fn temporary_names_are_left_out() {
    let (_keep, folder) = folder();
    let id = "0198f2a4c0de4afe9b7d3c2b1a09f8e7";
    let stage = format!(".set.ropewalk-{id}-1");
    std::fs::create_dir_all(folder.join(&stage).join("sub")).unwrap();
    std::fs::write(folder.join(&stage).join("sub/half"), "ha").unwrap();
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::write(folder.join(format!("sub/.f.ropewalk-{id}")), "x").unwrap();
    std::fs::write(folder.join("sub/.f.ropewalk-notes"), "mine").unwrap();
    let scan = Scan::read(&folder).unwrap();
    let paths: Vec<&[u8]> = scan.manifest.entries.iter().map(|e| &*e.path).collect();
    assert_eq!(paths, [&b""[..], b"sub", b"sub/.f.ropewalk-notes"]);
    assert_eq!(scan.skipped, 2);
    assert_eq!(scan.versions.len(), 3);
    let named = Scan::read(&folder.join(&stage)).unwrap();
    assert_eq!((named.manifest.file_count(), named.skipped), (1, 0));
}

/// Files and folders that may not be read are left out and named; of files, it is known where their bytes would be. The root
/// itself must be readable. Root may read everything, so the scan runs as another user where this one is root.
#[test]
fn unreadable_files_are_left_out_of_the_scan() {
    let (_keep, folder) = folder();
    for (name, text) in [("a", "a"), ("f0", "four"), ("fine", "x"), ("none", "")] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    for name in ["closed", "listed"] {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("x"), "x").unwrap();
    }
    for (path, mode) in [("f0", 0), ("none", 0), ("closed", 0o300), ("listed", 0o744)] {
        set_mode(&folder.join(path), mode);
    }
    set_mode(&folder, 0o755);
    let scan = || {
        let one = Scan::read(&folder.join("f0"));
        (Scan::read(&folder), one, Scan::read(&folder.join("closed")))
    };
    let (tree, one, closed) = sys::as_nobody(scan);
    set_mode(&folder.join("closed"), 0o700);
    let tree = tree.unwrap();
    let found: Vec<_> = tree
        .left_out()
        .into_iter()
        .map(|(one, range)| (one.path.as_slice(), one.reason.as_str(), range))
        .collect();
    let denied = "permission denied";
    assert_eq!(
        found,
        [
            (&b"closed"[..], denied, None),
            (b"f0", denied, Some(Range::new(1, 5))),
            (b"listed", denied, None),
        ]
    );
    let paths: Vec<&[u8]> = tree.manifest.entries.iter().map(|e| &*e.path).collect();
    assert_eq!(paths, [&b""[..], b"a", b"f0", b"fine", b"none"]);
    assert_eq!(tree.versions.len(), paths.len());
    assert_eq!(tree.left_out_more, 0);
    for root in [one, closed] {
        assert!(matches!(root.unwrap_err(), StoreError::Unreadable { .. }));
    }
}

/// Of very many unreadable files the first are named; the others are counted and no entries.
#[test]
fn names_of_unreadable_files_are_bounded() {
    let (_keep, folder) = folder();
    for at in 0..1003 {
        let path = folder.join(format!("f{at:04}"));
        std::fs::write(&path, "x").unwrap();
        set_mode(&path, 0);
    }
    set_mode(&folder, 0o755);
    let scan = sys::as_nobody(|| Scan::read(&folder)).unwrap();
    assert_eq!((scan.left_out.len(), scan.left_out_more), (1000, 3));
    assert_eq!(scan.left_out[999].path, b"f0999");
    assert_eq!(scan.manifest.entries.len(), 1001);
    let bundle = vec![(b"one".to_vec(), scan.clone()), (b"two".to_vec(), scan)];
    let bundle = Scan::bundle(bundle).unwrap();
    assert_eq!((bundle.left_out.len(), bundle.left_out_more), (1000, 1006));
    assert_eq!(bundle.left_out[0].path, b"one/f0000");
    assert_eq!(bundle.manifest.file_count(), 1000);
    assert_eq!(bundle.versions.len(), bundle.manifest.entries.len());
}

/// A small file of a tree is one of at most a unit, all of it; and where files lie is known of trees and bundles of folders.
#[test]
fn small_files_are_known() {
    let (_keep, folder) = folder();
    let lens = [10, SMALL_FILE_MAX, SMALL_FILE_MAX + 1];
    let names = ["a", "b", "c"].map(|name| folder.join(name));
    for (name, len) in names.iter().zip(lens) {
        let file = std::fs::File::create(name).unwrap();
        file.set_len(len).unwrap();
    }
    let scan = Scan::read(&folder).unwrap();
    let tree = FileSource::open_tree(&folder, &scan, 100).unwrap();
    let range = |start, len| Range::new(100 + start, 100 + start + len);
    let is_small = |start, len| tree.is_small_file(range(start, len));
    assert!(is_small(0, 10) && is_small(10, SMALL_FILE_MAX));
    assert!(!is_small(10 + SMALL_FILE_MAX, SMALL_FILE_MAX + 1));
    // Parts, the first of one and all of the next, and what no file has.
    assert!(!is_small(0, 9) && !is_small(1, 9) && !is_small(0, 11) && !is_small(1 << 40, 10));
    let device = std::fs::metadata(&folder).unwrap().dev();
    assert_eq!(tree.file_system(), Some(device));
    let alone = FileSource::open_tree(&names[0], &Scan::read(&names[0]).unwrap(), 0).unwrap();
    assert!(!alone.is_small_file(Range::new(0, 10)));
    let things = [(b"t".to_vec(), folder.clone())];
    let scans = vec![(b"t".to_vec(), scan)];
    let bundle = FileSource::open_bundle(&things, &Scan::bundle(scans).unwrap(), 0).unwrap();
    assert_eq!(bundle.file_system(), Some(device));
    assert!(bundle.is_small_file(Range::new(0, 10)));
}
