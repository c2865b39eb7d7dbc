//! What stood at a destination, and what new files and folders there may be read by.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ropewalk_model::{Layout, Piece, Range};
use ropewalk_store::{
    FileSink, FileSource, Landed, Part, Scan, Sink, SinkFile, Standing, StoreError, TreeSink,
    check_replaceable,
};

mod support;
use support::*;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// A tree of one file, and one in a folder.
fn small_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(root.join("a"), "a").unwrap();
    std::fs::write(root.join("sub/b"), "b").unwrap();
    set_mode(root, 0o750);
    set_mode(&root.join("sub"), 0o755);
}

fn commit(from: &Path, to: &Path) -> Landed {
    let (source, sink) = tree_pair(from, to, 0);
    pump(source.layout(), &source, &sink);
    sink.commit().unwrap();
    sink.landed()
}

/// A private folder stays private, one for all keeps its sticky bit, one of a group its set-group bit, and each its time.
#[test]
fn folders_that_stood_there_keep_mode_and_time() {
    let (_keep, folder) = folder();
    let from = folder.join("set");
    small_tree(&from);
    for bits in [0o700, 0o1777, 0o2775] {
        let to = folder.join(format!("{bits:o}"));
        std::fs::create_dir_all(to.join("sub")).unwrap();
        for path in [to.join("sub"), to.clone()] {
            set_mode(&path, bits);
            set_times(&path, 1_000_000_000, 5);
        }
        let landed = commit(&from, &to);
        for path in [to.clone(), to.join("sub")] {
            let stat = path.metadata().unwrap();
            assert_eq!(mode(&path), bits, "{path:?}");
            assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 5));
        }
        assert_eq!(landed.merged.as_deref(), Some(to.as_path()));
        assert_eq!((landed.added_files, landed.replaced_files), (2, 0));
        let again = commit(&from, &to);
        assert_eq!((again.added_files, again.replaced_files), (0, 2));
    }
    let fresh = commit(&from, &folder.join("new"));
    assert_eq!((fresh.merged, fresh.added_files), (None, 2));
    assert_eq!(mode(&folder.join("new")), 0o750);
}

/// A shared destination keeps its time whichever node commits: each makes the temporary folder in it, or finds it there.
#[test]
fn a_shared_destination_keeps_its_time() {
    let (_keep, folder) = folder();
    let from = folder.join("set");
    small_tree(&from);
    let scan = Scan::read(&from).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let manifest = scan.manifest;
    let parts = [Part::whole(0, manifest)];
    for (at, takes_over) in [(0, false), (1, false), (1, true)] {
        let to = folder.join(format!("to{at}{takes_over}"));
        std::fs::create_dir(&to).unwrap();
        set_mode(&to, 0o710);
        set_times(&to, 1_000_000_000, 5);
        let stood = [0, 1].map(|_| Standing::at(&to).unwrap());
        let sinks = stood.map(|stood| {
            let sink = TreeSink::create(&to, &parts, ID, true).unwrap();
            sink.dest_was(stood);
            sink
        });
        pump(source.layout(), &source, &sinks[0]);
        if takes_over {
            sinks[at].take_over();
        }
        sinks[at].commit().unwrap();
        let stat = to.metadata().unwrap();
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 5));
        assert_eq!(mode(&to), 0o710);
    }
}

/// A merge that is given up leaves DEST as it was, its time included.
#[test]
fn a_merge_given_up_changes_nothing() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("set"), folder.join("to"));
    small_tree(&from);
    std::fs::create_dir(&to).unwrap();
    set_times(&to, 1_000_000_000, 5);
    let (source, sink) = tree_pair(&from, &to, 0);
    pump(source.layout(), &source, &sink);
    sink.discard();
    assert!(names(&to).is_empty());
    assert_eq!(to.metadata().unwrap().mtime(), 1_000_000_000);
}

/// What is new below a folder that passes on its group has the group, and folders pass it on in turn; beside it nothing is
/// inherited. As root, since only root can make folders of groups that it is not of.
#[test]
fn groups_are_inherited() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only the superuser can give folders to a group; run as root");
        return;
    }
    const GROUP: u32 = 4242;
    let (_keep, folder) = folder();
    let from = folder.join("set");
    for path in [
        "",
        "group",
        "group/new",
        "group/new/deep",
        "plain",
        "plain/new",
    ] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        set_mode(&from.join(path), 0o755);
        std::fs::write(from.join(path).join("file"), "x").unwrap();
    }
    let group = |path: &Path| path.symlink_metadata().unwrap().gid();
    let own = group(&from);
    let give = |path: &Path| {
        std::fs::create_dir_all(path).unwrap();
        std::os::unix::fs::chown(path, None, Some(GROUP)).unwrap();
        set_mode(path, 0o2775);
    };
    // DEST is new in such a folder.
    give(&folder.join("project"));
    let dest = folder.join("project/copy");
    commit(&from, &dest);
    assert_eq!(
        (mode(&dest.join("plain/new")), group(&dest)),
        (0o2755, GROUP)
    );
    assert_eq!(group(&dest.join("plain/new/file")), GROUP);
    // Only one folder of DEST is one, and the stage was made outside it.
    let dest = folder.join("mixed");
    std::fs::create_dir_all(dest.join("plain")).unwrap();
    give(&dest.join("group"));
    commit(&from, &dest);
    for path in [
        "group/file",
        "group/new",
        "group/new/deep",
        "group/new/deep/file",
    ] {
        assert_eq!(group(&dest.join(path)), GROUP, "{path}");
    }
    assert_eq!(mode(&dest.join("group/new/deep")), 0o2755);
    assert_eq!(
        (
            mode(&dest.join("plain/new")),
            group(&dest.join("plain/new"))
        ),
        (0o755, own)
    );
    // DEST is one, a folder of it is not.
    let dest = folder.join("reverse");
    give(&dest);
    std::fs::create_dir(dest.join("plain")).unwrap();
    std::os::unix::fs::chown(dest.join("plain"), None, Some(own)).unwrap();
    set_mode(&dest.join("plain"), 0o755);
    commit(&from, &dest);
    assert_eq!(
        (
            mode(&dest.join("group/new")),
            group(&dest.join("group/new/file"))
        ),
        (0o2755, GROUP)
    );
    assert_eq!(
        (
            mode(&dest.join("plain/new")),
            group(&dest.join("plain/new/file"))
        ),
        (0o755, own)
    );
}

/// Set-user and set-group bits that are not kept are counted, those that a folder has by inheritance are not.
#[test]
fn bits_not_kept_are_counted() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("program"), "#!").unwrap();
    set_mode(&from.join("program"), 0o6755);
    set_mode(&from.join("sub"), 0o2775);
    set_mode(&from, 0o1777);
    assert_eq!(commit(&from, &folder.join("to")).bits_not_kept, 3);
    std::fs::create_dir(folder.join("heir")).unwrap();
    set_mode(&folder.join("heir"), 0o2775);
    assert_eq!(commit(&from, &folder.join("heir/to")).bits_not_kept, 2);
    assert_eq!(
        commit(&from.join("program"), &folder.join("one")).bits_not_kept,
        2
    );
}

fn rows(file: SinkFile, len: u64, offset: u64) -> FileSink {
    let piece = Piece {
        range: Range { start: 0, end: len },
        object: 0,
        object_offset: offset,
    };
    FileSink::create(Layout::new(vec![piece]).unwrap(), vec![file], ID, false).unwrap()
}

fn file(path: &Path, mode: Option<u32>) -> SinkFile {
    SinkFile {
        path: path.to_owned(),
        renames: true,
        mode,
        ..SinkFile::default()
    }
}

fn stage(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    path.with_file_name(format!(".{name}.ropewalk-{ID}"))
}

/// Rows may be read by their owner alone while they grow; then by those who could read what they replace, else the source,
/// else a new file.
#[test]
fn rows_are_never_wider_than_they_should_be() {
    let (_keep, folder) = folder();
    let plain = folder.join("plain");
    std::fs::write(&plain, "").unwrap();
    for (name, replaced, source, expected) in [
        ("from secret", None, Some(0o600), 0o600),
        ("over secret", Some(0o600), Some(0o644), 0o600),
        ("over open", Some(0o664), Some(0o600), 0o664),
        ("program", None, Some(0o4755), 0o755),
        ("memory", None, None, mode(&plain)),
    ] {
        let path = folder.join(name);
        if let Some(bits) = replaced {
            std::fs::write(&path, "old").unwrap();
            set_mode(&path, bits);
        }
        let sink = rows(file(&path, source), 3, 0);
        sink.write_at(0, b"new").unwrap();
        assert_eq!(mode(&stage(&path)), 0o600, "{name}");
        sink.commit().unwrap();
        assert_eq!(mode(&path), expected, "{name}");
        let landed = sink.landed();
        let replaces = u64::from(replaced.is_some());
        assert_eq!(
            (landed.replaced_files, landed.added_files),
            (replaces, 1 - replaces)
        );
    }
}

/// A range is written into a file as a whole: the rest stays, and until the end all of it.
#[test]
fn a_range_is_written_into_a_file() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    let old = bytes(1, 3_000_000);
    std::fs::write(&path, &old).unwrap();
    set_mode(&path, 0o640);
    let into = || SinkFile {
        keeps_rest: true,
        ..file(&path, Some(0o600))
    };
    let sink = rows(into(), 1000, 1_000_000);
    sink.write_at(0, &[9; 1000]).unwrap();
    assert!(std::fs::read(&path).unwrap() == old);
    sink.commit().unwrap();
    let mut expected = old.clone();
    expected[1_000_000..1_001_000].fill(9);
    assert!(std::fs::read(&path).unwrap() == expected);
    assert_eq!(mode(&path), 0o640);
    // What is changed meanwhile is not lost.
    let sink = rows(into(), 1000, 0);
    sink.write_at(0, &[8; 1000]).unwrap();
    std::fs::write(&path, "by another program").unwrap();
    assert!(matches!(sink.commit(), Err(StoreError::Overtaken { .. })));
    sink.discard();
    assert_eq!(std::fs::read(&path).unwrap(), b"by another program");
    // Nor is what is made, or removed, meanwhile.
    for is_there in [false, true] {
        std::fs::remove_file(&path).unwrap();
        let make = || std::fs::write(&path, "by another program").unwrap();
        if is_there {
            make();
        }
        let sink = rows(into(), 1000, 0);
        sink.write_at(0, &[8; 1000]).unwrap();
        match is_there {
            true => std::fs::remove_file(&path).unwrap(),
            false => make(),
        }
        assert!(matches!(sink.commit(), Err(StoreError::Overtaken { .. })));
        sink.discard();
        if is_there {
            make();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"by another program");
    }
    // A file that is not there begins with a hole.
    std::fs::remove_file(&path).unwrap();
    let sink = rows(into(), 10, 5);
    sink.write_at(0, &[7; 10]).unwrap();
    sink.commit().unwrap();
    assert_eq!(
        std::fs::read(&path).unwrap(),
        [[0; 5].as_slice(), &[7; 10]].concat()
    );
    assert_eq!(names(&folder), ["file"]);
}

/// A file that is longer than what would replace it is refused with both lengths and what to do, where that is asked.
#[test]
fn a_longer_file_is_not_replaced() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    assert_eq!(check_replaceable(&path, Some(10)), Ok(()));
    std::fs::write(&path, "eleven bytes").unwrap();
    assert_eq!(check_replaceable(&path, Some(12)), Ok(()));
    assert_eq!(check_replaceable(&path, None), Ok(()));
    let error = check_replaceable(&path, Some(11)).unwrap_err().to_string();
    assert!(
        error.contains("has 12 bytes, more than the 11") && error.contains("--into"),
        "{error}"
    );
    assert!(matches!(
        check_replaceable(&folder, Some(5)),
        Err(StoreError::Exists { .. })
    ));
}

/// Two names that the file system takes for one are refused, whether their bytes come or only their names; here a hard
/// link stands for a file system that ignores case.
#[test]
fn two_names_of_one_file_are_refused() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("README"), "contents").unwrap();
    for contents in ["contents", ""] {
        std::fs::write(from.join("readme"), contents).unwrap();
        let to = folder.join(format!("to{}", contents.len()));
        let (_, sink) = tree_pair(&from, &to, 0);
        sink.write_at(0, b"contents").unwrap();
        std::fs::hard_link(stage(&to).join("README"), stage(&to).join("readme")).unwrap();
        let error = match contents.len() {
            0 => sink.commit().unwrap_err(),
            _ => sink.write_at(8, b"contents").unwrap_err(),
        };
        assert!(matches!(error, StoreError::SameFile { .. }), "{error}");
        assert_eq!(
            std::fs::read(stage(&to).join("README")).unwrap(),
            b"contents"
        );
    }
}

/// The stage of a merge is removed where it is, not where its path leads by then.
#[test]
fn the_stage_is_removed_where_it_is() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    small_tree(&from);
    let out = folder.join("root/d/out");
    std::fs::create_dir_all(&out).unwrap();
    let (_, sink) = tree_pair(&from, &out, 0);
    let name = format!(".out.ropewalk-{ID}");
    std::fs::rename(&out, folder.join("root/moved")).unwrap();
    let victim = folder.join("victim");
    std::os::unix::fs::symlink(&victim, &out).unwrap();
    std::fs::create_dir_all(victim.join(&name).join("precious")).unwrap();
    sink.discard();
    assert!(victim.join(&name).join("precious").exists());
    assert!(names(&folder.join("root/moved")).is_empty());
}
