//! Trees and single files, from disk to disk.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{
    Change, EntryKind, Extent, FileSource, Manifest, Part, Scan, Sink, Source, StoreError,
    TreeSink, remove_temporary,
};

mod support;
use support::*;

/// Names, contents, modes, times and links of an odd tree all arrive, and no temporary name stays.
#[test]
fn odd_tree_arrives_whole() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    copy(&from, &to);
    assert_eq!(snapshot(&from), snapshot(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// The encoded manifest, not the scan, is what a receiver builds from; both are the same.
#[test]
fn scanned_tree_survives_encoding() {
    let (_keep, folder) = folder();
    odd_tree(&folder);
    let manifest = Manifest::scan(&folder).unwrap();
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
    assert!(manifest.entry(b"not \xff\xfe utf-8/\x80").is_some());
    assert_eq!(
        manifest.entry(b"to outside").unwrap().kind,
        EntryKind::Symlink {
            target: b"/etc".to_vec()
        }
    );
}

/// A copy of one file keeps its mode and time, and replaces a file or link of that name, not what the link names.
#[test]
fn single_file_replaces_file_and_link() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, bytes(5, 2_500_000)).unwrap();
    set_times(&from, -3, 500);
    set_mode(&from, 0o440);
    copy(&from, &to);
    assert_eq!(snapshot(&from), snapshot(&to));
    std::fs::remove_file(&to).unwrap();
    std::fs::write(folder.join("precious"), "keep").unwrap();
    std::os::unix::fs::symlink("precious", &to).unwrap();
    copy(&from, &to);
    assert_eq!(snapshot(&from), snapshot(&to));
    assert_eq!(std::fs::read(folder.join("precious")).unwrap(), b"keep");
    assert_eq!(names(&folder), ["from", "precious", "to"]);
}

/// An empty file and an empty folder are copies too.
#[test]
fn empty_things_are_copied() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("file"), "").unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    for (from, to) in [("file", "file copy"), ("folder", "folder copy")] {
        set_times(&folder.join(from), 12345, 678);
        copy(&folder.join(from), &folder.join(to));
        assert_eq!(snapshot(&folder.join(from)), snapshot(&folder.join(to)));
    }
}

/// Merging into a folder replaces files and links, keeps strangers and what the folders were, and leaves no temporary name.
#[test]
fn merge_replaces_files_and_keeps_the_rest() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    std::fs::create_dir_all(to.join("plain/deep")).unwrap();
    std::fs::write(to.join("plain/small"), "old and longer than the new one").unwrap();
    std::fs::write(to.join("plain/deep/stranger"), "stays").unwrap();
    std::fs::write(to.join("to file"), "a file where a link comes").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", to.join("empty")).unwrap();
    let stood = ["", "plain", "plain/deep"];
    for folder in stood {
        set_times(&to.join(folder), 77, 7);
    }
    let was = stood.map(|folder| to.join(folder).metadata().unwrap());
    copy(&from, &to);
    assert_eq!(
        std::fs::read(to.join("plain/deep/stranger")).unwrap(),
        b"stays"
    );
    for (folder, was) in stood.into_iter().zip(was) {
        let now = to.join(folder).metadata().unwrap();
        assert_eq!(
            (now.mode(), now.mtime(), now.mtime_nsec()),
            (was.mode(), was.mtime(), was.mtime_nsec()),
            "{folder}"
        );
    }
    std::fs::remove_file(to.join("plain/deep/stranger")).unwrap();
    for folder in stood {
        let like = from.join(folder).metadata().unwrap();
        set_mode(&to.join(folder), like.mode() & 0o7777);
        set_times(&to.join(folder), like.mtime(), like.mtime_nsec() as u32);
    }
    assert_eq!(snapshot(&from), snapshot(&to));
}

/// A second copy over the first works, read-only folders included, and changes nothing but what changed.
#[test]
fn a_copy_is_repeated() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    copy(&from, &to);
    std::fs::write(from.join("plain/small"), "changed").unwrap();
    copy(&from, &to);
    assert_eq!(snapshot(&from), snapshot(&to));
}

/// A folder that somebody closes while it is copied to stays closed, whether the copy is complete or not.
#[test]
fn a_folder_that_is_closed_meanwhile_stays_closed() {
    for is_complete in [true, false] {
        let (_keep, folder) = folder();
        let from = tree(&folder, 1);
        let to = folder.join("to");
        std::fs::create_dir_all(to.join("sub")).unwrap();
        set_mode(&to.join("sub"), 0o500);
        let (source, sink) = early_pair(&from, &to, &id(1));
        let whole = source.layout().ranges().last().unwrap().end;
        give_names(&source, &sink, Range::new(0, whole));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&to.join("sub")), 0o500);
        set_mode(&to, 0o700);
        match is_complete {
            true => sink.commit().unwrap(),
            false => sink.discard(),
        }
        assert_eq!(mode(&to), 0o700);
        assert_eq!(mode(&to.join("sub")), 0o500);
    }
}

/// What stands under the temporary name of a link is that link, or the copy fails: no name leads to something else.
#[test]
fn a_link_is_made_or_the_copy_fails() {
    for (planted, is_made) in [("target", true), ("other", false)] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        std::os::unix::fs::symlink("target", from.join("link")).unwrap();
        std::fs::write(from.join("file"), "bytes").unwrap();
        let (source, sink) = tree_pair(&from, &to, 0);
        pump(source.layout(), &source, &sink);
        let stage = folder.join(format!(".to.ropewalk-{ID}"));
        std::os::unix::fs::symlink(planted, stage.join("link")).unwrap();
        assert_eq!(sink.commit().is_ok(), is_made, "{planted}");
        assert_eq!(to.exists(), is_made);
    }
}

/// A folder, or a link, whose name leads to the folder of another name is refused: the file system takes both names for one.
#[test]
fn folders_and_links_of_one_name_are_refused() {
    type Place = fn(&Path);
    let twins: [Place; 2] = [
        |path| std::fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink("x", path).unwrap(),
    ];
    for make_twin in twins {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir_all(from.join("name")).unwrap();
        make_twin(&from.join("twin"));
        sys::alone(|| {
            let (_, sink) = tree_pair(&from, &to, 0);
            let stage = folder.join(format!(".to.ropewalk-{ID}"));
            for name in ["name", "twin"] {
                std::fs::create_dir(stage.join(name)).unwrap();
            }
            sys::bind(&stage.join("name"), &stage.join("twin"));
            let error = sink.commit().unwrap_err();
            assert!(matches!(error, StoreError::SameFile { .. }), "{error}");
            assert!(!to.exists());
        });
    }
}

/// What a tree cannot replace is named before a byte moves, and DEST stays as it was.
#[test]
fn merge_conflicts_are_found_before_the_start() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("a/b")).unwrap();
    std::fs::write(from.join("a/c"), "c").unwrap();
    let manifest = Arc::new(Manifest::scan(&from).unwrap());
    type Place = fn(&Path);
    let obstacles: [(&str, Place); 4] = [
        ("a", |to| std::fs::write(to.join("a"), "file").unwrap()),
        ("a", |to| {
            std::os::unix::fs::symlink("/tmp", to.join("a")).unwrap()
        }),
        ("a/b", |to| {
            std::fs::create_dir(to.join("a")).unwrap();
            std::fs::write(to.join("a/b"), "file").unwrap();
        }),
        ("a/c", |to| std::fs::create_dir_all(to.join("a/c")).unwrap()),
    ];
    for (index, (obstacle, place)) in obstacles.into_iter().enumerate() {
        let to = folder.join(format!("to{index}"));
        std::fs::create_dir(&to).unwrap();
        place(&to);
        let before = snapshot(&to);
        let error =
            TreeSink::create(&to, &[Part::whole(0, Arc::clone(&manifest))], ID, false).unwrap_err();
        assert!(
            matches!(&error, StoreError::InTheWay { path, .. } if *path == to.join(obstacle)),
            "{error}"
        );
        assert_eq!(snapshot(&to), before);
    }
}

/// A tree over a file, a file over a folder, and a missing parent are refused with nothing made.
#[test]
fn impossible_destinations_are_refused() {
    let (_keep, folder) = folder();
    std::fs::create_dir(folder.join("tree")).unwrap();
    std::fs::write(folder.join("file"), "x").unwrap();
    let part = |name: &str| {
        [Part::whole(
            0,
            Arc::new(Manifest::scan(&folder.join(name)).unwrap()),
        )]
    };
    let create = |from: &str, to: &str| {
        TreeSink::create(&folder.join(to), &part(from), ID, false).unwrap_err()
    };
    assert!(matches!(
        create("tree", "file"),
        StoreError::Exists {
            found: "file",
            wanted: "directory",
            ..
        }
    ));
    assert!(matches!(
        create("file", "tree"),
        StoreError::Exists {
            found: "directory",
            wanted: "file",
            ..
        }
    ));
    let missing = create("tree", "no/such");
    assert!(
        matches!(&missing, StoreError::ParentMissing { parent, .. } if *parent == folder.join("no")),
        "{missing}"
    );
    assert!(matches!(
        create("tree", "file/below"),
        StoreError::NotADirectory { .. }
    ));
    assert_eq!(names(&folder), ["file", "tree"]);
}

/// Parts with different bases land in one tree; parts that hold the same file are refused.
#[test]
fn parts_join_into_one_tree() {
    let (_keep, folder) = folder();
    for (part, file) in [("one", "a"), ("two", "b"), ("three", "a")] {
        std::fs::create_dir_all(folder.join(part).join("common")).unwrap();
        std::fs::write(
            folder.join(part).join("common").join(file),
            bytes(9, 1_100_000),
        )
        .unwrap();
    }
    let scan = |name: &str| Arc::new(Manifest::scan(&folder.join(name)).unwrap());
    let part = |name: &str, base| Part::whole(base, scan(name));
    let to = folder.join("to");
    let sink = TreeSink::create(&to, &[part("one", 5_000_000), part("two", 0)], ID, false).unwrap();
    for (name, base) in [("one", 5_000_000), ("two", 0)] {
        let whole = Scan::read(&folder.join(name)).unwrap();
        let source = FileSource::open_tree(&folder.join(name), &whole, base).unwrap();
        pump(source.layout(), &source, &sink);
    }
    sink.commit().unwrap();
    assert_eq!(names(&to.join("common")), ["a", "b"]);
    assert_eq!(
        std::fs::read(to.join("common/b")).unwrap(),
        bytes(9, 1_100_000)
    );
    let error = TreeSink::create(
        &folder.join("x"),
        &[part("one", 0), part("three", 5_000_000)],
        ID,
        false,
    )
    .unwrap_err();
    assert!(
        matches!(&error, StoreError::Conflict { path, first: 0, second: 1 } if path == Path::new("common/a")),
        "{error}"
    );
}

/// A tree with bytes missing is not given its name, and goes on from where it was.
#[test]
fn incomplete_tree_keeps_its_temporary_name() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), "there").unwrap();
    std::fs::write(from.join("b"), "missing").unwrap();
    let (source, sink) = tree_pair(&from, &to, 0);
    sink.write_at(0, b"there").unwrap();
    let error = sink.commit().unwrap_err();
    assert!(
        matches!(
            &error,
            StoreError::Incomplete {
                len: 0,
                wanted: 7,
                ..
            }
        ),
        "{error}"
    );
    assert!(!to.exists());
    drop(sink);
    let (_, sink) = tree_pair(&from, &to, 0);
    let mut kept = [0; 5];
    sink.read_back(0, &mut kept).unwrap();
    assert_eq!(&kept, b"there");
    pump(source.layout(), &source, &sink);
    sink.commit().unwrap();
    sink.commit().unwrap();
    assert_eq!(snapshot(&from), snapshot(&to));
}

/// A discarded transfer leaves nothing behind, and the sink is of no more use.
#[test]
fn discard_removes_everything() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    std::fs::create_dir(folder.join("into")).unwrap();
    for to in ["to", "into"] {
        let (source, sink) = tree_pair(&from, &folder.join(to), 0);
        pump(source.layout(), &source, &sink);
        sink.discard();
        assert!(sink.write_at(0, b"x").is_err());
    }
    assert_eq!(names(&folder), ["from", "into"]);
    assert!(names(&folder.join("into")).is_empty());
}

/// The stage of a tree whose sink is gone is removed by its final name, beside that and inside a folder of that name.
#[test]
fn a_stage_is_removed_by_its_final_name() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    std::fs::create_dir(folder.join("into")).unwrap();
    for to in ["to", "into"] {
        let (source, sink) = tree_pair(&from, &folder.join(to), 0);
        pump(source.layout(), &source, &sink);
        drop(sink);
        remove_temporary(&folder.join(to), ID);
    }
    assert_eq!(names(&folder), ["from", "into"]);
    assert!(names(&folder.join("into")).is_empty());
}

/// A link put in the place of a folder of the temporary tree is refused, not followed.
#[test]
fn planted_links_are_not_followed() {
    let (_keep, folder) = folder();
    let (from, outside) = (folder.join("from"), folder.join("outside"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(from.join("sub/file"), "data").unwrap();
    let (_, sink) = tree_pair(&from, &folder.join("to"), 0);
    std::os::unix::fs::symlink(&outside, folder.join(".to.ropewalk-0198-test/sub")).unwrap();
    let error = sink.write_at(0, b"data").unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::SymbolicLink { .. } | StoreError::NotADirectory { .. }
        ),
        "{error}"
    );
    assert!(names(&outside).is_empty());
    assert_eq!(sink.write_at(0, b"data").unwrap_err(), error);
}

/// A folder of the source that was swapped for a link after the scan is refused by the source.
#[test]
fn swapped_source_folder_is_not_followed() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("sub/file"), "data").unwrap();
    std::fs::create_dir(folder.join("secret")).unwrap();
    std::fs::write(folder.join("secret/file"), "SECR").unwrap();
    let source = FileSource::open_tree(&from, &Scan::read(&from).unwrap(), 0).unwrap();
    std::fs::rename(from.join("sub"), from.join("gone")).unwrap();
    std::os::unix::fs::symlink(folder.join("secret"), from.join("sub")).unwrap();
    let error = source.read_at(0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, StoreError::SymbolicLink { .. }), "{error}");
}

/// Pipes and the like below the root are counted and left out; the root itself may be none. Links to them are links.
#[test]
fn special_files_are_left_out() {
    let (_keep, folder) = folder();
    std::fs::create_dir(folder.join("tree")).unwrap();
    let pipe = folder.join("tree/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let scan = Scan::read(&folder).unwrap();
    assert_eq!((scan.manifest.entries.len(), scan.special), (2, 1));
    assert_eq!(
        Scan::read(&pipe).unwrap_err(),
        StoreError::SpecialFile {
            path: pipe.clone(),
            kind: "pipe"
        }
    );
    std::fs::rename(&pipe, folder.join("pipe")).unwrap();
    std::os::unix::fs::symlink("../pipe", &pipe).unwrap();
    assert_eq!(
        Manifest::scan(&folder.join("tree")).unwrap().entries.len(),
        2
    );
}

/// A source file that shrank, vanished or became a pipe is named, and nothing hangs.
#[test]
fn changed_sources_are_named() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("shrinks"), bytes(1, 1000)).unwrap();
    std::fs::write(folder.join("vanishes"), bytes(2, 1000)).unwrap();
    let source = FileSource::open_tree(&folder, &Scan::read(&folder).unwrap(), 0).unwrap();
    std::fs::write(folder.join("shrinks"), bytes(1, 10)).unwrap();
    std::fs::remove_file(folder.join("vanishes")).unwrap();
    let mut buf = [0; 1000];
    let error = source.read_at(0, &mut buf).unwrap_err();
    assert_eq!(
        error,
        StoreError::Shrank {
            path: folder.join("shrinks")
        }
    );
    let error = source.read_at(1000, &mut buf).unwrap_err();
    assert!(
        matches!(&error, StoreError::Vanished { path, .. } if *path == folder.join("vanishes")),
        "{error}"
    );
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("vanishes"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    assert!(matches!(
        source.read_at(1000, &mut buf),
        Err(StoreError::SpecialFile { .. })
    ));
}

/// A file that became another version after the scan is refused, also when its length is the same: two
/// replicas with a version each would give a mixture.
#[test]
fn another_version_is_refused() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("file"), bytes(1, 1000)).unwrap();
    set_times(&folder.join("file"), 1_000_000, 1);
    let scan = |path: &Path| Scan::read(path).unwrap();
    let tree = FileSource::open_tree(&folder, &scan(&folder), 0).unwrap();
    let one = scan(&folder.join("file"));
    for change in [
        |path: &Path| set_times(path, 1_000_000, 2),
        |path: &Path| std::fs::write(path, bytes(2, 1001)).unwrap(),
    ] {
        change(&folder.join("file"));
        let changed = StoreError::Changed {
            path: folder.join("file"),
            how: Change::Contents,
        };
        assert_eq!(tree.read_at(0, &mut [0; 10]), Err(changed.clone()));
        assert_eq!(
            FileSource::open_tree(&folder.join("file"), &one, 0).unwrap_err(),
            changed
        );
    }
}

/// Set-user and set-group bits do not travel, since the owner does not; the sticky bit does.
#[test]
fn rights_of_the_owner_do_not_travel() {
    let (_keep, folder) = folder();
    std::fs::create_dir(folder.join("from")).unwrap();
    std::fs::write(folder.join("from/program"), "#!").unwrap();
    set_mode(&folder.join("from/program"), 0o6755);
    set_mode(&folder.join("from"), 0o1777);
    copy(&folder.join("from"), &folder.join("to"));
    let mode = |path: &str| std::fs::symlink_metadata(folder.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("to/program"), mode("to")), (0o755, 0o1777));
}

/// Mode and time of a file that one write made whole are what they should be, also where it is written again, or changed, after that.
#[test]
fn files_that_are_written_again_get_their_mode_and_time() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    let modes = [0o644, 0o600, 0o755, 0o444, 0o200, 0o666];
    for (index, mode) in (0_u32..).zip(modes) {
        let path = from.join(format!("{index}"));
        std::fs::write(&path, bytes(index.into(), 5000)).unwrap();
        set_times(&path, 1_000_000 + i64::from(index), index);
        set_mode(&path, mode);
    }
    for again in 0..3 {
        let to = folder.join(format!("to{again}"));
        let (source, sink) = tree_pair(&from, &to, 0);
        let all = source.layout().ranges().first().unwrap();
        let mut buf = vec![0; 5000];
        for start in (all.start..all.end).step_by(5000) {
            source.read_at(start, &mut buf).unwrap();
            sink.write_at(start, &buf).unwrap();
            if again == 1 {
                sink.write_at(start, &buf[..1]).unwrap();
            }
        }
        let stage = sink.temporary(1).pop().unwrap();
        for index in 0..modes.len() {
            let staged = stage.join(format!("{index}"));
            if again == 2 {
                set_times(&staged, 5, 5);
                set_mode(&staged, 0o777);
            }
        }
        sink.commit().unwrap();
        assert_eq!(snapshot(&from), snapshot(&to), "{again}");
    }
}

/// More files than stay open, written in turn, are all complete: closing one loses nothing.
#[test]
fn more_files_than_stay_open() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    for index in 0..600usize {
        let path = from.join(format!("{}/{index}", index % 7));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes(index as u64, index)).unwrap();
    }
    let (source, sink) = tree_pair(&from, &folder.join("to"), 0);
    for half in [0, 1] {
        let ranges: RangeSet = source.layout().ranges();
        let end = ranges.last().unwrap().end;
        // Every second stretch of 100 bytes, so that each file is visited, closed, and visited again.
        for start in (0..end).step_by(100).skip(half).step_by(2) {
            let len = 100.min(end - start) as usize;
            let mut buf = vec![0; len];
            source.read_at(start, &mut buf).unwrap();
            sink.write_at(start, &buf).unwrap();
        }
        sink.sync().unwrap();
    }
    sink.commit().unwrap();
    assert_eq!(snapshot(&from), snapshot(&folder.join("to")));
}

/// Many threads write one tree at once, first writes of the same files and folders included.
#[test]
fn concurrent_writers_build_one_tree() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    for index in 0..40usize {
        let path = from.join(format!("{}/x/{index}", index % 5));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes(index as u64, 30_000)).unwrap();
    }
    let (source, sink) = tree_pair(&from, &folder.join("to"), 7);
    let all = source.layout().ranges().first().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (source, sink) = (&source, &sink);
            scope.spawn(move || {
                let mut buf = vec![0; 1000];
                for start in (all.start + thread * 1000..all.end).step_by(8000) {
                    source.read_at(start, &mut buf).unwrap();
                    sink.write_at(start, &buf).unwrap();
                    if start % 11 == 0 {
                        sink.sync().unwrap();
                    }
                }
            });
        }
    });
    sink.commit().unwrap();
    assert_eq!(snapshot(&from), snapshot(&folder.join("to")));
}

/// Two sinks on a shared file system build one tree; one gives the name.
#[test]
fn shared_tree_is_named_once() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    let scan = Scan::read(&from).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sinks = [0, 1].map(|_| TreeSink::create(&to, &parts, ID, true).unwrap());
    let units = source.layout().units(Range {
        start: 0,
        end: u64::MAX,
    });
    for (index, unit) in units.enumerate() {
        let mut buf = vec![0; unit.len() as usize];
        source.read_at(unit.start, &mut buf).unwrap();
        sinks[index % 2].write_at(unit.start, &buf).unwrap();
    }
    sinks[1].sync().unwrap();
    sinks[0].commit().unwrap();
    assert_eq!(snapshot(&from), snapshot(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// Extents lead to the same bytes as reads and writes do, and never cross a file.
#[test]
fn extents_stay_in_one_file() {
    use std::os::unix::fs::FileExt as _;
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), bytes(1, 100)).unwrap();
    std::fs::write(from.join("b"), bytes(2, 50)).unwrap();
    let (source, sink) = tree_pair(&from, &to, 0);
    let mut offset = 0;
    while offset < 150 {
        let Extent::File {
            file,
            offset: at,
            len,
        } = source.extent(offset, 70).unwrap()
        else {
            panic!("not a file")
        };
        let target = sink.extent(offset, len).unwrap().unwrap();
        let mut buf = vec![0; target.len as usize];
        file.read_exact_at(&mut buf, at).unwrap();
        target.file.write_all_at(&buf, target.offset).unwrap();
        sink.written(offset, target.len).unwrap();
        offset += target.len;
    }
    assert!(matches!(
        source.extent(90, 70),
        Ok(Extent::File { len: 10, .. })
    ));
    assert!(matches!(
        sink.extent(150, 1),
        Err(StoreError::NotHeld { .. })
    ));
    sink.commit().unwrap();
    assert_eq!(snapshot(&from), snapshot(&to));
}

/// Files whose bytes no holder can read are no part of the copy: what is at the destination in their place stays, and the
/// others are where they were in the data space.
#[test]
fn left_out_files_are_not_touched() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for (at, text) in [(&from, "new"), (&to, "old")] {
        std::fs::create_dir(at).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(at.join(name), text).unwrap();
        }
    }
    let scan = Scan::read(&from).unwrap();
    let source = FileSource::open_tree(&from, &scan, 10).unwrap();
    let part = Part {
        left_out: RangeSet::from(Range::new(13, 16)),
        ..Part::whole(10, scan.manifest)
    };
    let sink = TreeSink::create(&to, &[part], ID, false).unwrap();
    assert_eq!(
        sink.layout().ranges().as_slice(),
        [Range::new(10, 13), Range::new(16, 19)]
    );
    for start in [10, 16] {
        let mut bytes = [0; 3];
        source.read_at(start, &mut bytes).unwrap();
        sink.write_at(start, &bytes).unwrap();
    }
    sink.commit().unwrap();
    let text = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
    assert_eq!(["a", "b", "c"].map(text), ["new", "old", "new"]);
    assert_eq!(sink.landed().replaced_files, 2);
}

/// A folder of a group keeps the bit that passes the group on, also where its owner is not of that group: nothing is set that is as it is.
#[test]
fn folders_of_a_group_keep_their_bit() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_keep, folder) = folder();
    set_mode(&folder, 0o777);
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in [&from, &to] {
        std::fs::create_dir_all(path.join("sub")).unwrap();
    }
    std::fs::write(from.join("sub/file"), "bytes").unwrap();
    set_mode(&from, 0o755);
    for path in [to.clone(), to.join("sub")] {
        std::os::unix::fs::chown(&path, Some(65534), Some(12345)).unwrap();
        set_mode(&path, 0o2775);
    }
    sys::as_nobody(|| copy(&from, &to));
    for path in [to.clone(), to.join("sub")] {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o2775, "{}", path.display());
    }
}
