//! Commits that a failing disk ends half way.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::sys::failing;
use crate::{Manifest, Sink as _, StoreError};

#[path = "../../../tests/support/mod.rs"]
mod support;
use support::*;

/// A merge that stops half way is finished by a second commit.
#[test]
fn a_merge_is_committed_again() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["a/new", "b"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::write(from.join(path).join("file"), path).unwrap();
    }
    std::fs::rename(from.join("b/file"), from.join("b/last")).unwrap();
    std::fs::write(from.join("a/file"), "a").unwrap();
    std::fs::write(from.join("a/zero"), "").unwrap();
    std::fs::create_dir_all(to.join("a")).unwrap();
    std::fs::create_dir_all(to.join("b")).unwrap();
    {
        let (source, sink) = tree_pair(&from, &to, 0);
        pump(source.layout(), &source, &sink);
        failing::set(Some(b"last"));
        let error = sink.commit().unwrap_err();
        assert!(
            matches!(&error, StoreError::Io { path, .. } if *path == to.join("b/last")),
            "{error}"
        );
        assert!(to.join("a/new/file").exists());
        failing::set(None);
        sink.commit().unwrap();
        let new: Vec<_> = snapshot(&from.join("a/new"));
        assert_eq!(new, snapshot(&to.join("a/new")));
        for file in ["a/file", "a/zero", "b/last"] {
            assert_eq!(snapshot(&from.join(file)), snapshot(&to.join(file)));
        }
        let landed = sink.landed();
        assert_eq!(
            (landed.added_files, landed.replaced_files),
            (4, 0),
            "counted once though committed twice"
        );
    }
}

/// A merge that fails half way leaves no new folder closed, and no standing one with another time: the next copy takes both as they are.
#[test]
fn what_a_failed_merge_has_moved_is_finished() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["a/new/deep", "b"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::write(from.join(path).join("file"), path).unwrap();
    }
    std::fs::rename(from.join("b/file"), from.join("b/last")).unwrap();
    std::fs::write(from.join("a/new-file"), "a").unwrap();
    std::os::unix::fs::symlink("x", from.join("a/new/link")).unwrap();
    set_mode(&from.join("a/new"), 0o551);
    set_mode(&from.join("a/new/deep"), 0o705);
    set_times(&from.join("a/new"), 1_000_000_000, 5);
    set_times(&from.join("a/new/deep"), 1_100_000_000, 0);
    for path in ["a", "b"] {
        std::fs::create_dir_all(to.join(path)).unwrap();
        set_times(&to.join(path), 900_000_000, 0);
    }
    let of_new = snapshot(&from.join("a/new"));
    let standing = |to: &Path| Manifest::scan(&to.join("a")).unwrap().entries[0].clone();
    let was = standing(&to);
    {
        let (source, sink) = update_pair(&from, &to, &id(1));
        pump(source.layout(), &source, &sink);
        failing::set(Some(b"last"));
        sink.commit().unwrap_err();
        sink.set_aside();
        drop(sink);
        failing::set(None);
        assert_eq!(of_new, snapshot(&to.join("a/new")));
        assert_eq!(standing(&to), was);
        let (source, next) = update_pair(&from, &to, &id(2));
        finish(&source, &next);
    }
    assert_eq!(of_new, snapshot(&to.join("a/new")));
    assert_eq!(standing(&to), was);
    assert_eq!(std::fs::read(to.join("b/last")).unwrap(), b"b");
    assert_eq!(names(&to), ["a", "b"]);
}

/// The first one died, or was stopped, half way through a merge.
#[test]
fn what_is_half_named_is_finished() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["a/new", "b"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::write(from.join(path).join("file"), path).unwrap();
    }
    std::fs::rename(from.join("b/file"), from.join("b/last")).unwrap();
    std::fs::write(from.join("a/zero"), "").unwrap();
    std::fs::create_dir_all(to.join("a")).unwrap();
    std::fs::create_dir_all(to.join("b")).unwrap();
    {
        let [first, second] = whole(&from, &to);
        failing::set(Some(b"last"));
        first.commit().unwrap_err();
        assert!(to.join("a/new/file").exists());
        failing::set(None);
        second.take_over();
        second.read_back(0, &mut [0; 1]).unwrap();
        second.commit().unwrap();
        for path in ["a/new/file", "b/last", "a/zero"] {
            let read = |root: &Path| std::fs::read(root.join(path)).unwrap();
            assert_eq!(read(&from), read(&to));
        }
        // Moved by the first one, so no folder that stood there before.
        let mode = |root: &Path| {
            let found = std::fs::metadata(root.join("a/new")).unwrap();
            std::os::unix::fs::PermissionsExt::mode(&found.permissions())
        };
        assert_eq!(mode(&from), mode(&to));
    }
}

/// Files on a file system below the destination are made there without a name, or under a temporary one where it has no such files.
#[test]
fn other_file_systems_need_no_nameless_files() {
    support::sys::alone(|| {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        std::fs::create_dir_all(to.join("sub")).unwrap();
        std::fs::write(from.join("sub/f"), bytes(3, 100_000)).unwrap();
        set_mode(&from.join("sub/f"), 0o440);
        set_times(&from.join("sub/f"), 1_000_000_000, 5);
        support::sys::mount_small(&to.join("sub"), 1 << 20);
        for lacks in [false, true] {
            let (source, sink) = tree_pair(&from, &to, 0);
            pump(source.layout(), &source, &sink);
            failing::lack_nameless(lacks);
            sink.commit().unwrap();
            failing::lack_nameless(false);
            assert_eq!(snapshot(&from.join("sub/f")), snapshot(&to.join("sub/f")));
            assert_eq!(names(&to.join("sub")), ["f"]);
            std::fs::remove_file(to.join("sub/f")).unwrap();
        }
        support::sys::unmount_small(&to.join("sub"));
    });
}

/// A new folder, and all below it, has what it is to have before it is moved into DEST: what ends the commit leaves no folder closed, and
/// what others put under its name is not changed. Its owner's rights are kept for the move.
#[test]
fn folders_are_finished_before_they_are_moved() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(from.join("a/new/deep")).unwrap();
    std::fs::create_dir_all(to.join("a")).unwrap();
    std::fs::write(from.join("a/new/deep/file"), "deep").unwrap();
    set_mode(&from.join("a/new"), 0o575);
    set_mode(&from.join("a/new/deep"), 0o705);
    set_times(&from.join("a/new"), 1_000_000_000, 5);
    set_times(&from.join("a/new/deep"), 1_100_000_000, 0);
    let is_root = rustix::process::geteuid().is_root();
    let group = if is_root {
        4321
    } else {
        rustix::process::getegid().as_raw()
    };
    std::os::unix::fs::chown(to.join("a"), None, Some(group)).unwrap();
    set_mode(&to.join("a"), 0o2775);
    let (source, sink) = tree_pair(&from, &to, 0);
    pump(source.layout(), &source, &sink);
    failing::set(Some(b"new"));
    sink.commit().unwrap_err();
    failing::set(None);
    let stage = to.join(format!(".to.ropewalk-{ID}")).join("a/new");
    for (path, mode, seconds) in [
        (stage.clone(), 0o2775, 1_000_000_000),
        (stage.join("deep"), 0o2705, 1_100_000_000),
    ] {
        let found = path.metadata().unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{}", path.display());
        assert_eq!((found.mtime(), found.gid()), (seconds, group));
    }
    assert_eq!(stage.join("deep/file").metadata().unwrap().gid(), group);
    sink.commit().unwrap();
    let found = to.join("a/new").metadata().unwrap();
    assert_eq!(
        (found.mode() & 0o7777, found.mtime()),
        (0o2575, 1_000_000_000)
    );
}
