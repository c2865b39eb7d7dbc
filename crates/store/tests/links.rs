//! Names of one file arrive as names of one file.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{
    Adopt, Entry, EntryKind, FileSource, Keep, Kept, Landed, Manifest, ManifestError, Part, Scan,
    Sink, Source as _, StoreError, TreeSink,
};

mod support;
use support::*;

const LINKS: Keep = Keep {
    owners: false,
    attributes: false,
    links: true,
    specials: false,
};

fn scan(from: &Path) -> Scan {
    let scan = Scan::read_keeping(from, LINKS).unwrap();
    assert_eq!(
        Manifest::decode(&scan.manifest.encode()).as_ref(),
        Ok(&*scan.manifest)
    );
    scan
}

/// A sink that leaves what is there, and the source.
fn pair(from: &Path, to: &Path, number: u32) -> (FileSource, TreeSink) {
    let scan = scan(from);
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = TreeSink::update(to, &parts, &id(number), Adopt::All).unwrap();
    (source, sink)
}

/// Copies a tree with its hard links; how many bytes were sent, and what the commit found.
fn copy_links(from: &Path, to: &Path, number: u32) -> (u64, Landed) {
    let (source, sink) = pair(from, to, number);
    let sent = finish(&source, &sink);
    (sent, sink.landed())
}

fn inode(path: impl AsRef<Path>) -> u64 {
    path.as_ref().symlink_metadata().unwrap().ino()
}

/// Two files of three and of two names, one with its second name elsewhere, and an empty one of two names.
fn linked_tree(folder: &Path) -> std::path::PathBuf {
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("sub/deep")).unwrap();
    std::fs::create_dir(from.join("later")).unwrap();
    for (seed, (file, names)) in [
        ("b", &["sub/a", "sub/deep/x"][..]),
        ("sub/m", &["later/n"]),
        ("empty", &["sub/empty"]),
        ("alone", &["../elsewhere"]),
    ]
    .iter()
    .enumerate()
    {
        std::fs::write(
            from.join(file),
            bytes(seed as u64, 5000 * (2 - seed.min(2))),
        )
        .unwrap();
        for name in *names {
            std::fs::hard_link(from.join(file), from.join(name)).unwrap();
        }
        set_times(&from.join(file), 1_000_000_000 + seed as i64, 123_456_789);
    }
    std::fs::write(from.join("alone"), "alone").unwrap();
    from
}

const GROUPS: [&[&str]; 3] = [
    &["b", "sub/a", "sub/deep/x"],
    &["sub/m", "later/n"],
    &["empty", "sub/empty"],
];

/// All but folders: those that stand at the destination keep their times.
fn files(root: &Path) -> Vec<(Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
    all
}

#[track_caller]
fn assert_linked(from: &Path, to: &Path) {
    assert!(files(from) == files(to));
    for group in GROUPS {
        for name in group {
            let there = to.join(name).symlink_metadata().unwrap();
            assert_eq!(there.ino(), inode(to.join(group[0])), "{name}");
            assert_eq!(there.nlink(), group.len() as u64, "{name}");
        }
    }
    assert_eq!(to.join("alone").symlink_metadata().unwrap().nlink(), 1);
}

/// A file's bytes are sent once, whatever number of names it has; a second run sends and changes nothing.
#[test]
fn names_of_one_file_arrive_as_such() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    let (sent, landed) = copy_links(&from, &to, 1);
    assert_eq!(sent, 10_000 + 5000 + 5);
    assert_eq!((landed.added_files, landed.links_not_kept), (8, 0));
    assert_linked(&from, &to);
    let inodes = |names: &[&str]| {
        names
            .iter()
            .map(|name| inode(to.join(name)))
            .collect::<Vec<_>>()
    };
    let before = GROUPS.map(inodes);
    let (sent, landed) = copy_links(&from, &to, 2);
    assert_eq!((sent, landed.unchanged_files), (0, 8));
    assert_eq!(GROUPS.map(inodes), before);
    assert_linked(&from, &to);
    // Another mode is set where all names are the copy's.
    set_mode(&from.join("b"), 0o640);
    assert_eq!(copy_links(&from, &to, 3).0, 0);
    assert_eq!(GROUPS.map(inodes), before);
    assert_linked(&from, &to);
    assert_eq!(names(&folder), ["elsewhere", "from", "to"]);
}

/// Files of their own at the destination become names of one file, and are not sent; names that were one file and are not any
/// more part.
#[test]
fn what_is_there_is_linked_and_parted() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    copy(&from, &to);
    let first = inode(to.join("b"));
    assert_ne!(first, inode(to.join("sub/a")));
    let (sent, landed) = copy_links(&from, &to, 1);
    assert_eq!(sent, 0);
    // The first name of each file stays, the others take the place of what was there.
    assert_eq!((landed.unchanged_files, landed.replaced_files), (4, 4));
    assert_eq!(inode(to.join("b")), first);
    assert_linked(&from, &to);
    // One name leaves its file, another one is new.
    std::fs::remove_file(from.join("sub/a")).unwrap();
    std::fs::copy(from.join("b"), from.join("sub/a")).unwrap();
    set_times(&from.join("sub/a"), 1_000_000_000, 123_456_789);
    std::fs::hard_link(from.join("b"), from.join("sub/deep/y")).unwrap();
    let (sent, _) = copy_links(&from, &to, 2);
    assert!(files(&from) == files(&to));
    assert_eq!(sent, 2 * 10_000);
    let all = ["b", "sub/deep/x", "sub/deep/y"].map(|name| inode(to.join(name)));
    assert!(all.iter().all(|one| *one == all[0]) && inode(to.join("sub/a")) != all[0]);
}

/// A file that changed takes all its names along, and names of the destination that the copy does not have keep what they lead to.
#[test]
fn names_elsewhere_keep_their_file() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    copy_links(&from, &to, 1);
    std::fs::hard_link(to.join("b"), folder.join("kept")).unwrap();
    std::fs::hard_link(to.join("sub/m"), folder.join("kept too")).unwrap();
    std::fs::write(from.join("b"), bytes(9, 7000)).unwrap();
    set_mode(&from.join("sub/m"), 0o600);
    let (sent, _) = copy_links(&from, &to, 2);
    // The second one's mode cannot be set without changing what is elsewhere.
    assert_eq!(sent, 7000 + 5000);
    assert_linked(&from, &to);
    assert!(std::fs::read(folder.join("kept")).unwrap() == bytes(0, 10_000));
    assert_ne!(inode(folder.join("kept too")), inode(to.join("sub/m")));
}

/// A commit that was killed when it had made links leaves files with several names: the next transfer takes them over.
#[test]
fn links_of_a_killed_commit_are_taken_over() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    let (source, sink) = pair(&from, &to, 1);
    let all = Range::new(0, sink.layout().ranges().len_bytes());
    make_safe(&source, &sink, all);
    let stage = folder.join(format!(".to.ropewalk-{}", id(1)));
    std::fs::create_dir_all(stage.join("sub/deep")).unwrap();
    for name in ["sub/a", "sub/deep/x"] {
        std::fs::hard_link(stage.join("b"), stage.join(name)).unwrap();
    }
    drop((source, sink));
    let (source, sink) = pair(&from, &to, 2);
    assert_eq!(sink.present().adopted.len_bytes(), all.len());
    assert_eq!(finish(&source, &sink), 0);
    assert_linked(&from, &to);
    assert_eq!(names(&folder), ["elsewhere", "from", "to"]);
}

/// A commit that fails in the middle, when some names are given, can be made again.
#[test]
fn a_commit_with_links_can_be_made_again() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    std::fs::create_dir(&to).unwrap();
    let (source, sink) = pair(&from, &to, 1);
    pump(source.layout(), &source, &sink);
    // Made after the sink: what stands in the way is found when names are given.
    std::fs::create_dir_all(to.join("sub/m")).unwrap();
    sink.commit().unwrap_err();
    std::fs::remove_dir(to.join("sub/m")).unwrap();
    sink.commit().unwrap();
    assert_linked(&from, &to);
    assert!(
        names(&to)
            .iter()
            .all(|name| !name.as_encoded_bytes().starts_with(b"."))
    );
}

/// Where links are refused each name is a file of its own, counted, and a second run leaves those as they are.
#[test]
fn what_cannot_be_linked_is_copied() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    let is_possible = sys::without_links(|| {
        let (sent, landed) = copy_links(&from, &to, 1);
        assert_eq!((sent, landed.links_not_kept), (15_005, 4));
        assert!(snapshot(&from) == snapshot(&to));
        let all: Vec<u64> = GROUPS
            .concat()
            .iter()
            .map(|name| inode(to.join(name)))
            .collect();
        assert_eq!(
            all.iter().collect::<std::collections::HashSet<_>>().len(),
            7
        );
        let (sent, landed) = copy_links(&from, &to, 2);
        assert_eq!(
            (sent, landed.links_not_kept, landed.replaced_files),
            (0, 4, 0)
        );
        let now: Vec<u64> = GROUPS
            .concat()
            .iter()
            .map(|name| inode(to.join(name)))
            .collect();
        assert_eq!(all, now);
    });
    if is_possible {
        let (sent, landed) = copy_links(&from, &to, 3);
        assert_eq!((sent, landed.links_not_kept), (0, 0));
        assert_linked(&from, &to);
    }
}

/// Of a copy that lacks bytes of a file, all names of that file are left out.
#[test]
fn names_of_a_file_that_lacks_bytes_are_left_out() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    let (source, sink) = pair(&from, &to, 1);
    let lacking = Range::new(5, 1000);
    let all = sink.layout().ranges();
    let rest = all.difference(&RangeSet::from(lacking));
    rest.iter().for_each(|range| write(&source, &sink, range));
    assert!(sink.commit_whole_files(&RangeSet::from(lacking)).unwrap());
    for name in GROUPS[0] {
        assert!(to.join(name).symlink_metadata().is_err(), "{name}");
    }
    assert_eq!(inode(to.join("sub/m")), inode(to.join("later/n")));
    // The next run has nothing to leave as it is of them.
    assert_eq!(copy_links(&from, &to, 2).0, 10_000);
    assert_linked(&from, &to);
}

/// Names in several things that are copied side by side are names of one file, too.
#[test]
fn names_in_several_sources_are_joined() {
    let (_keep, folder) = folder();
    let from = linked_tree(&folder);
    let things = || {
        let things = ["sub", "b", "later"].map(|name| (name.as_bytes().to_vec(), from.join(name)));
        let scans = things.iter().map(|(name, path)| (name.clone(), scan(path)));
        (Scan::bundle(scans.collect()).unwrap(), things)
    };
    let (scan, paths) = things();
    let target = |path: &[u8]| match &scan.manifest.entry(path).unwrap().kind {
        EntryKind::HardLink { to } => to.clone(),
        _ => Vec::new(),
    };
    assert_eq!(target(b"sub/a"), b"b");
    assert_eq!(target(b"sub/deep/x"), b"b");
    assert_eq!(target(b"sub/m"), b"later/n");
    assert_eq!(scan.manifest.data_len(), 15_000);
    assert_eq!(scan.manifest.file_count(), 6);
    let to = folder.join("to");
    let source = FileSource::open_bundle(&paths, &scan, 0).unwrap();
    let sink = TreeSink::update(&to, &[Part::whole(0, scan.manifest)], ID, Adopt::All).unwrap();
    finish(&source, &sink);
    assert_eq!(inode(to.join("b")), inode(to.join("sub/deep/x")));
    assert_eq!(inode(to.join("later/n")), inode(to.join("sub/m")));
    assert!(std::fs::read(to.join("sub/m")).unwrap() == bytes(1, 5000));
}

/// A peer cannot name as a link what is no name of an earlier file.
#[test]
fn impossible_links_are_refused() {
    let entry = |path: &str, kind| Entry {
        path: path.into(),
        kind,
        mode: 0o600,
        mtime_seconds: 7,
        mtime_nanoseconds: 0,
        kept: Kept::default(),
    };
    let link = |path: &str, to: &str| entry(path, EntryKind::HardLink { to: to.into() });
    let tree = |links: &[Entry]| {
        let mut entries = vec![
            entry("", EntryKind::Directory),
            entry("d", EntryKind::Directory),
            entry("f", EntryKind::File { len: 3 }),
        ];
        entries.extend(links.to_vec());
        Manifest { entries }
    };
    let good = tree(&[link("g", "f")]);
    assert_eq!(Manifest::decode(&good.encode()), Ok(good));
    let other_mode = Entry {
        mode: 0o640,
        ..link("g", "f")
    };
    let other_time = Entry {
        mtime_seconds: 8,
        ..link("g", "f")
    };
    for links in [
        &[link("g", "d")][..],
        &[link("g", "h"), entry("h", EntryKind::File { len: 1 })],
        &[link("g", "g")],
        &[link("g", "../f")],
        &[link("g", "f"), link("h", "g")],
        &[other_mode],
        &[other_time],
    ] {
        let bytes = tree(links).encode();
        let refused = Manifest::decode(&bytes);
        assert!(
            matches!(refused, Err(ManifestError::Value(_))),
            "{refused:?}"
        );
    }
    assert!(
        Manifest {
            entries: vec![link("", "f")]
        }
        .check()
        .is_err()
    );
}

/// What no holder can read is left out with all its names.
#[test]
fn names_of_what_is_left_out_are_left_out() {
    let (_keep, folder) = folder();
    let (from, to) = (linked_tree(&folder), folder.join("to"));
    let scan = scan(&from);
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let part = Part {
        left_out: RangeSet::from(Range::new(100, 200)),
        ..Part::whole(0, Arc::clone(&scan.manifest))
    };
    let sink = TreeSink::update(&to, &[part], ID, Adopt::All).unwrap();
    finish(&source, &sink);
    assert!(!to.join("b").exists() && !to.join("sub/a").exists());
    assert_eq!(sink.landed().added_files, 5);
    assert_eq!(inode(to.join("sub/m")), inode(to.join("later/n")));
}

/// A file whose first name leads nowhere any more is read by another one, if that leads to the very file that was scanned.
#[test]
fn a_further_name_is_read() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    for name in ["a", "b", "c"] {
        std::fs::create_dir_all(from.join(name)).unwrap();
    }
    let data = bytes(1, 1000);
    std::fs::write(from.join("a/x"), &data).unwrap();
    std::fs::hard_link(from.join("a/x"), from.join("b/x")).unwrap();
    std::fs::hard_link(from.join("a/x"), from.join("c/x")).unwrap();
    set_times(&from.join("a/x"), 1_000_000_000, 1);
    let scan = scan(&from);
    let names = vec![(b"thing".to_vec(), scan.clone())];
    let things = [(b"thing".to_vec(), from.clone())];
    let open = || {
        let bundle = Scan::bundle(names.clone()).unwrap();
        [
            FileSource::open_tree(&from, &scan, 0).unwrap(),
            FileSource::open_bundle(&things, &bundle, 0).unwrap(),
        ]
    };
    let read = |source: &FileSource| {
        let mut buffer = vec![0; 1000];
        source.read_at(0, &mut buffer).map(|()| buffer)
    };
    let vanished = |source: &FileSource| {
        let error = read(source).unwrap_err();
        let is_first =
            matches!(&error, StoreError::Vanished { path, .. } if *path == from.join("a/x"));
        assert!(is_first, "{error}");
    };
    let other = |name: &str| {
        std::fs::create_dir(from.join(name)).unwrap();
        let path = from.join(name).join("x");
        std::fs::write(&path, bytes(2, 1000)).unwrap();
        set_times(&path, 1_000_000_000, 1);
    };
    // An inode does not change with the name of its folder.
    let take_away = |name: &str| std::fs::rename(from.join(name), folder.join(name)).unwrap();
    take_away("a");
    take_away("b");
    other("b");
    for source in open() {
        assert_eq!(read(&source), Ok(data.clone()));
    }
    take_away("c");
    open().iter().for_each(vanished);
    other("c");
    open().iter().for_each(vanished);
    std::fs::rename(folder.join("a"), from.join("a")).unwrap();
    for source in open() {
        assert_eq!(read(&source), Ok(data.clone()));
    }
}

/// A file that is missing is missing under each of its names.
#[test]
fn all_names_of_a_file_are_known() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("a"), "one name").unwrap();
    std::fs::write(from.join("b"), "three names").unwrap();
    for name in ["c", "sub/d"] {
        std::fs::hard_link(from.join("b"), from.join(name)).unwrap();
    }
    let (_, sink) = pair(&from, &folder.join("to"), 1);
    assert_eq!(sink.further_names(0), [""; 0]);
    assert_eq!(sink.object_at(8).unwrap().0, "b");
    assert_eq!(sink.further_names(8), ["c", "sub/d"]);
}
