//! What a destination has already is not written again.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ropewalk_model::RangeSet;
use ropewalk_store::{EntryKind, FileSource, Landed, Sink as _, Source as _, StoreError, TreeSink};

mod support;
use support::*;

/// Writes what is not present, as a transfer does. Returns how many bytes that were.
fn fill(source: &FileSource, sink: &TreeSink) -> u64 {
    let all = sink.layout().ranges();
    let absent = all.difference(&sink.present().all());
    for range in absent.iter() {
        let mut buffer = vec![0; range.len() as usize];
        source.read_at(range.start, &mut buffer).unwrap();
        sink.write_at(range.start, &buffer).unwrap();
    }
    absent.len_bytes()
}

fn copy_changes(from: &Path, to: &Path) -> (u64, Landed) {
    let (source, sink) = update_pair(from, to, ID);
    let written = fill(&source, &sink);
    sink.commit().unwrap();
    (written, sink.landed())
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// All but folders, which keep their times where they stood.
fn files(root: &Path) -> Vec<(ropewalk_store::Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
    all
}

/// A second copy of an odd tree writes nothing, changes no file and leaves nothing; changed, new and removed ones are made good
/// alone, and a mode that differs is set without a byte.
#[test]
fn only_what_changed_is_written() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    let (first, landed) = copy_changes(&from, &to);
    assert!(first > 3 << 20);
    assert_eq!((landed.unchanged_files, landed.replaced_files), (0, 0));
    let count = landed.added_files;

    let before = inode(&to.join("plain/deep/large"));
    let (again, landed) = copy_changes(&from, &to);
    assert_eq!(again, 0);
    assert_eq!((landed.unchanged_files, landed.added_files), (count, 0));
    assert!(files(&from) == files(&to));
    assert_eq!(inode(&to.join("plain/deep/large")), before);
    assert_eq!(names(&folder), ["from", "to"]);

    // Another time, another size, another target, gone, new, and another mode only.
    set_times(&from.join("plain/small"), 5, 5);
    std::fs::write(from.join("-rf/--help"), "dashes").unwrap();
    std::fs::remove_file(from.join("to file")).unwrap();
    std::os::unix::fs::symlink("plain", from.join("to file")).unwrap();
    std::fs::remove_file(to.join("plain/empty too")).unwrap();
    std::fs::write(from.join("plain/deep/new"), "new").unwrap();
    set_times(&from.join("plain/deep"), 946_684_800, 5);
    set_mode(&from.join("line\nbreak/tab\tand space "), 0o600);
    let (third, landed) = copy_changes(&from, &to);
    assert_eq!(third, 11 + 6 + 3);
    assert_eq!(landed.unchanged_files, count - 4);
    assert_eq!((landed.replaced_files, landed.added_files), (3, 2));
    assert!(files(&from) == files(&to));
    assert_eq!(inode(&to.join("plain/deep/large")), before);
    assert_eq!(names(&folder), ["from", "to"]);
}

/// What has no bytes arrives in a folder that the destination has and where nothing else changes, however deep.
#[test]
fn what_has_no_bytes_arrives_alone() {
    type Filling = (&'static str, fn(&Path));
    let fillings: [Filling; 5] = [
        ("nothing", |_| {}),
        ("folders", |new| {
            std::fs::create_dir_all(new.join("x/y")).unwrap();
        }),
        ("an empty file", |new| {
            std::fs::write(new.join("empty"), "").unwrap();
        }),
        ("a link", |new| {
            std::os::unix::fs::symlink("gone", new.join("link")).unwrap();
        }),
        ("a file", |new| {
            std::fs::write(new.join("file"), "x").unwrap();
        }),
    ];
    let paths = |root: &Path| -> Vec<_> {
        let found = snapshot(root).into_iter();
        found
            .map(|(entry, contents)| (entry.path, contents))
            .collect()
    };
    for (what, fill) in fillings {
        for at in ["new", "a/new", "a/b/new", "a/b/new/newer"] {
            let (_keep, folder) = folder();
            let (from, to) = (folder.join("from"), folder.join("to"));
            std::fs::create_dir_all(from.join("a/b")).unwrap();
            std::fs::write(from.join("a/b/keep"), "kept").unwrap();
            set_times(&from.join("a/b/keep"), 5, 0);
            copy_changes(&from, &to);
            std::fs::create_dir_all(from.join(at)).unwrap();
            fill(&from.join(at));
            copy_changes(&from, &to);
            assert_eq!(paths(&to), paths(&from), "{what} in {at}");
            assert_eq!(names(&folder), ["from", "to"]);
        }
    }
}

/// A single file that is there is not staged.
#[test]
fn a_single_file_that_is_there_stays() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, "contents").unwrap();
    assert_eq!(copy_changes(&from, &to).0, 8);
    set_mode(&from, 0o604);
    let before = inode(&to);
    let (written, landed) = copy_changes(&from, &to);
    assert_eq!((written, landed.unchanged_files), (0, 1));
    assert_eq!(inode(&to), before);
    assert!(files(&from) == files(&to));
    set_times(&from, 7, 0);
    assert_eq!(copy_changes(&from, &to).0, 8);
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A file has the time that a coarser file system keeps of it; one of another time has not.
#[test]
fn times_without_nanoseconds_are_the_same() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, "contents").unwrap();
    set_times(&from, 1_000, 123_456_789);
    std::fs::write(&to, "contents").unwrap();
    for (seconds, nanoseconds, written) in [
        (1_000, 0, 0),
        (1_000, 123_456_000, 0),
        (1_000, 123_456_700, 0),
        (1_000, 123_456_788, 8),
        (999, 0, 8),
    ] {
        set_times(&to, seconds, nanoseconds);
        let (source, sink) = update_pair(&from, &to, ID);
        assert_eq!(fill(&source, &sink), written, "{seconds} {nanoseconds}");
        sink.discard();
    }
}

/// A file that was written there has the source's size and time by chance only.
#[test]
fn a_file_that_was_written_there_is_no_copy() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&to, "one").unwrap();
    let written = to.metadata().unwrap();
    std::fs::write(&from, "two").unwrap();
    set_times(&from, written.mtime(), written.mtime_nsec() as u32);
    assert_eq!(copy_changes(&from, &to).0, 3);
    assert_eq!(std::fs::read(&to).unwrap(), b"two");
    assert_eq!(copy_changes(&from, &to).0, 0);
}

/// A file that was the same at the start and is changed or removed meanwhile makes the commit fail before anything has its name;
/// the whole files can be named all the same.
#[test]
fn a_file_that_changes_meanwhile_is_named() {
    type Change = fn(&Path);
    let changes: [Change; 2] = [
        |path| std::fs::write(path, "another").unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
    ];
    for change in changes {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(from.join(name), "same").unwrap();
        }
        copy_changes(&from, &to);
        std::fs::write(from.join("b"), "newer").unwrap();
        let (source, sink) = update_pair(&from, &to, ID);
        assert_eq!(fill(&source, &sink), 5);
        change(&to.join("a"));
        let error = sink.commit().unwrap_err();
        assert!(
            matches!(&error, StoreError::ChangedAtDestination { path } if *path == to.join("a")),
            "{error}"
        );
        assert_eq!(std::fs::read(to.join("b")).unwrap(), b"same");
        assert!(sink.commit_whole_files(&RangeSet::new()).unwrap());
        assert_eq!(std::fs::read(to.join("b")).unwrap(), b"newer");
        let landed = sink.landed();
        assert_eq!((landed.unchanged_files, landed.replaced_files), (1, 1));
        assert_eq!(copy_changes(&from, &to).0, 4);
        assert!(files(&from) == files(&to));
    }
}

/// A new mode reaches no name elsewhere: a file of another mode that has a second name is replaced. One of the same mode stays.
#[test]
fn hard_links_keep_their_modes() {
    let (_keep, folder) = folder();
    let (from, to, other) = (folder.join("from"), folder.join("to"), folder.join("other"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), "contents").unwrap();
    std::fs::write(from.join("b"), "contents").unwrap();
    copy_changes(&from, &to);
    std::fs::create_dir(&other).unwrap();
    for name in ["a", "b"] {
        std::fs::hard_link(to.join(name), other.join(name)).unwrap();
    }
    let before = other.join("a").metadata().unwrap().mode();
    set_mode(&from.join("a"), 0o600);
    assert_eq!(copy_changes(&from, &to).0, 8);
    assert_eq!(other.join("a").metadata().unwrap().mode(), before);
    assert_eq!(to.join("a").metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(inode(&to.join("b")), inode(&other.join("b")));
}

/// Two names of the source that are one file at the destination are no two copies.
#[test]
fn one_file_is_not_two_copies() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b"] {
        std::fs::write(from.join(name), "contents").unwrap();
        set_times(&from.join(name), 5, 5);
    }
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("a"), "contents").unwrap();
    set_times(&to.join("a"), 5, 5);
    std::fs::hard_link(to.join("a"), to.join("b")).unwrap();
    assert_eq!(copy_changes(&from, &to).0, 16);
    assert_ne!(inode(&to.join("a")), inode(&to.join("b")));
}

/// An incomplete update names the new files that lack no byte, and what was there stays.
#[test]
fn an_incomplete_update_keeps_what_was_there() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(from.join(name), name.repeat(10)).unwrap();
    }
    copy_changes(&from, &to);
    let old = std::fs::read(to.join("c")).unwrap();
    for name in ["b", "c"] {
        std::fs::write(from.join(name), name.repeat(20)).unwrap();
    }
    let (source, sink) = update_pair(&from, &to, ID);
    let absent = sink.layout().ranges().difference(&sink.present().all());
    assert_eq!(absent.len_bytes(), 40);
    let [first, second]: [_; 2] = [0, 20].map(|at| {
        let start = absent.first().unwrap().start + at;
        ropewalk_model::Range::new(start, start + 20)
    });
    let mut buffer = vec![0; 20];
    source.read_at(first.start, &mut buffer).unwrap();
    sink.write_at(first.start, &buffer).unwrap();
    assert!(sink.commit_whole_files(&RangeSet::from(second)).unwrap());
    assert_eq!(std::fs::read(to.join("a")).unwrap(), b"a".repeat(10));
    assert_eq!(std::fs::read(to.join("b")).unwrap(), b"b".repeat(20));
    assert_eq!(std::fs::read(to.join("c")).unwrap(), old);
    assert_eq!(names(&to), ["a", "b", "c"]);
    let landed = sink.landed();
    assert_eq!((landed.unchanged_files, landed.replaced_files), (1, 1));
}

/// A copy of a folder that its owner may not write to is continued, and refreshed, by that owner, and is as closed afterwards; what ends
/// early leaves it so, too.
#[test]
fn a_read_only_folder_is_copied_again() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_keep, folder) = folder();
    set_mode(&folder, 0o777);
    let from = folder.join("from");
    sys::as_nobody(|| {
        let to = folder.join("to");
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("file"), "first").unwrap();
        set_mode(&from, 0o555);
        let mode = || to.metadata().unwrap().permissions().mode() & 0o7777;
        let (source, sink) = update_pair(&from, &to, &id(1));
        assert_eq!(finish(&source, &sink), 5);
        assert_eq!(mode(), 0o555);
        let (source, sink) = update_pair(&from, &to, &id(2));
        assert_eq!(finish(&source, &sink), 0);
        assert_eq!(mode(), 0o555);
        set_mode(&from, 0o755);
        std::fs::write(from.join("second"), "second").unwrap();
        set_mode(&from, 0o555);
        let (_, sink) = update_pair(&from, &to, &id(3));
        sink.discard();
        assert_eq!((mode(), names(&to).len()), (0o555, 1));
        let (source, sink) = early_pair(&from, &to, &id(4));
        assert_eq!(finish(&source, &sink), 6);
        assert_eq!((mode(), names(&to).len()), (0o555, 2));
        // While it runs, and where it is killed, the folder is as closed as it was; the end of a part of it has its names, too.
        set_mode(&from, 0o755);
        std::fs::create_dir(from.join("new")).unwrap();
        std::fs::write(from.join("new/file"), "in a new folder").unwrap();
        std::fs::write(from.join("third"), "third").unwrap();
        std::fs::write(from.join("fourth"), bytes(1, 2 << 20)).unwrap();
        set_mode(&from, 0o555);
        let (source, sink) = early_pair(&from, &to, &id(5));
        assert_eq!(mode(), 0o555);
        let pieces = source.layout().pieces().iter();
        let mut long = pieces.filter(|piece| piece.range.len() == 2 << 20);
        let fourth = RangeSet::from(long.next().unwrap().range);
        let wanted = source.layout().ranges().difference(&sink.present().all());
        let small = wanted.difference(&fourth);
        small.iter().for_each(|range| write(&source, &sink, range));
        sink.make_ready(&small);
        sink.sync().unwrap();
        sink.record(&small, &[]);
        assert_eq!(sink.name_ready(), 1);
        assert_eq!(mode(), 0o555);
        assert!(sink.commit_whole_files(&fourth).unwrap());
        assert_eq!(mode(), 0o555);
        assert!(to.join("third").exists() && to.join("new/file").exists());
        assert!(!to.join("fourth").exists());
        drop(sink);
        // What goes away with the test.
        set_mode(&from, 0o755);
        set_mode(&to, 0o755);
    });
}
