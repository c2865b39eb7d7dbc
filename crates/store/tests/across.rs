//! Folders of a destination that are on another file system, or that this user cannot change.

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use ropewalk_store::{
    Adopt, Dest, FileSource, Filter, Keep, Landed, Part, Scan, Sink as _, TreeSink,
};

mod support;
use support::mirror::contents;
use support::*;

fn copy_linked(from: &Path, to: &Path) -> Landed {
    let keep = Keep {
        links: true,
        ..Keep::default()
    };
    let scan = Scan::read_keeping(from, keep).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = TreeSink::update(to, &parts, &id(1), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    let present = sink.present().all();
    for range in source.layout().ranges().difference(&present).iter() {
        write(&source, &sink, range);
    }
    sink.commit().unwrap();
    sink.landed()
}

/// `from` has things in a folder that `to` has, too, and beside it.
fn pair(folder: &Path) -> (PathBuf, PathBuf) {
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(from.join("sub/new/deep")).unwrap();
    std::fs::create_dir(from.join("z")).unwrap();
    std::fs::create_dir_all(to.join("sub")).unwrap();
    for path in ["a", "sub/f", "sub/new/f", "sub/new/deep/f", "z/f"] {
        std::fs::write(from.join(path), bytes(path.len() as u64, 100_000)).unwrap();
        set_times(&from.join(path), 1_000_000_000, 5);
    }
    std::fs::write(from.join("sub/empty"), "").unwrap();
    symlink("new/f", from.join("sub/link")).unwrap();
    std::fs::hard_link(from.join("sub/f"), from.join("sub/same")).unwrap();
    set_mode(&from.join("sub/new"), 0o750);
    set_times(&from.join("sub/new"), 1_000_000_000, 5);
    (from, to)
}

/// Runs with such a pair where `sub` of the destination, which is given, is a file system of its own.
fn mounted(len: u64, run: impl FnOnce(&Path, &Path, &Path) + Send) {
    support::sys::alone(|| {
        let (_keep, folder) = folder();
        let (from, to) = pair(&folder);
        let mounted = to.join("sub");
        support::sys::mount_small(&mounted, len);
        run(&from, &to, &mounted);
        support::sys::unmount_small(&mounted);
    });
}

fn unplaced(landed: &Landed) -> Vec<&str> {
    let all = landed.unplaced.iter();
    all.map(|(path, _)| std::str::from_utf8(path).unwrap())
        .collect()
}

/// What is mounted below the destination gets what is its own, with all metadata; the same copy again finds it.
#[test]
fn other_file_systems_are_filled() {
    mounted(8 << 20, |from, to, mounted| {
        std::fs::write(mounted.join("f"), "old").unwrap();
        set_times(mounted, 77, 0);
        let landed = copy_linked(from, to);
        assert_eq!(landed.unplaced, []);
        assert_eq!((landed.added_files, landed.replaced_files), (7, 1));
        assert_eq!(contents(to), contents(from));
        let seen = |path: &str| {
            let stat = to.join(path).metadata().unwrap();
            (stat.mode() & 0o7777, stat.mtime(), stat.dev())
        };
        let device = mounted.metadata().unwrap().dev();
        assert_ne!(device, to.metadata().unwrap().dev());
        assert_eq!(seen("sub/new"), (0o750, 1_000_000_000, device));
        assert_eq!(seen("sub/f").1, 1_000_000_000);
        assert_eq!(mounted.metadata().unwrap().mtime(), 77);
        let inode = |path: &str| to.join(path).metadata().unwrap().ino();
        assert_eq!(inode("sub/f"), inode("sub/same"));
        let again = copy_linked(from, to);
        assert_eq!((again.unchanged_files, again.added_files), (8, 0));
        assert_eq!(names(to), ["a", "sub", "z"]);
    });
}

/// All else gets its name where a folder is one that this user cannot change; what has none is named, and nothing is removed.
#[test]
fn what_cannot_be_placed_is_left_out() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root makes folders of other users; run as root");
        return;
    }
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    std::fs::write(to.join("sub/f"), "old").unwrap();
    std::fs::write(to.join("gone"), "no source has it").unwrap();
    for path in ["", "to"] {
        chown(folder.join(path), Some(65534), Some(65534)).unwrap();
    }
    set_mode(&from.join("sub/new"), 0o755);
    let landed = support::sys::as_nobody(|| copy_linked(&from, &to));
    let expected = ["sub/empty", "sub/f", "sub/link", "sub/new", "sub/same"];
    assert_eq!(unplaced(&landed), expected);
    assert!(
        landed
            .unplaced
            .iter()
            .all(|(_, why)| why == "permission denied")
    );
    assert_eq!((landed.added_files, landed.replaced_files), (2, 0));
    assert_eq!(std::fs::read(to.join("sub/f")).unwrap(), b"old");
    assert_eq!(std::fs::read(to.join("z/f")).unwrap(), bytes(3, 100_000));
    // It may be the older name of something that has no new one.
    assert_eq!(names(&to), ["a", "gone", "sub", "z"]);
    assert_eq!(names(&to.join("sub")), ["f"]);
}

/// A full file system below the destination keeps what fits.
#[test]
fn a_full_file_system_below_is_one_of_many() {
    mounted(128 << 10, |from, to, mounted| {
        let landed = copy_linked(from, to);
        assert!(!landed.unplaced.is_empty());
        for (path, why) in &landed.unplaced {
            assert!(
                path.starts_with(b"sub/") && why.contains("No space"),
                "{why}"
            );
        }
        assert_eq!(std::fs::read(to.join("z/f")).unwrap(), bytes(3, 100_000));
        let left = names(mounted);
        assert!(
            left.iter()
                .all(|name| !name.to_string_lossy().contains("ropewalk")),
            "{left:?}"
        );
    });
}

/// A further name of a file that found no space is not one of the older file.
#[test]
fn further_names_are_those_of_the_new_file() {
    mounted(120 << 10, |from, to, mounted| {
        std::fs::write(mounted.join("f"), bytes(9, 60_000)).unwrap();
        std::fs::remove_dir_all(from.join("sub/new")).unwrap();
        let landed = copy_linked(from, to);
        assert_eq!(unplaced(&landed), ["sub/f", "sub/same"]);
        assert_eq!(names(mounted), ["empty", "f", "link"]);
        assert_eq!(std::fs::read(mounted.join("f")).unwrap(), bytes(9, 60_000));
    });
}

/// What is in the way on another file system stays until its replacement is there.
#[test]
fn what_is_in_the_way_goes_last_there_too() {
    mounted(120 << 10, |from, to, mounted| {
        std::fs::create_dir(mounted.join("f")).unwrap();
        std::fs::write(mounted.join("f/old"), bytes(9, 60_000)).unwrap();
        std::fs::remove_dir_all(from.join("sub/new")).unwrap();
        let scan = Scan::read(from).unwrap();
        let source = FileSource::open_tree(from, &scan, 0).unwrap();
        let none = Filter::default();
        let parts = [Part::whole(0, scan.manifest)];
        let sink = TreeSink::update(Dest::mirror(to, &none), &parts, &id(1), Adopt::All).unwrap();
        sink.remove_extra(Filter::default());
        finish(&source, &sink);
        let landed = sink.landed();
        assert_eq!((landed.unplaced.len(), landed.removed.files), (2, 0));
        assert_eq!(
            std::fs::read(mounted.join("f/old")).unwrap(),
            bytes(9, 60_000)
        );
    });
}

/// What has no place is not fetched again: the next copy goes on with it, and with nothing else.
#[test]
fn what_has_no_place_is_kept() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root makes folders of other users; run as root");
        return;
    }
    let (_keep, folder) = folder();
    let from = tree(&folder, 3);
    let to = folder.join("to");
    std::fs::create_dir_all(to.join("sub")).unwrap();
    for path in ["", "to"] {
        chown(folder.join(path), Some(65534), Some(65534)).unwrap();
    }
    let copy = |number: u32| {
        let (source, sink) = update_pair(&from, &to, &id(number));
        let absent = sink.layout().ranges().difference(&sink.present().all());
        absent
            .iter()
            .for_each(|range| make_safe(&source, &sink, range));
        sink.commit().unwrap();
        (
            absent.len_bytes(),
            sink.landed().unplaced.len(),
            sink.kept_partial(),
        )
    };
    let (sent, unplaced, kept) = support::sys::as_nobody(|| copy(1));
    assert_eq!((sent, unplaced), (3 * MIB + 10_000, 2));
    assert_eq!(
        kept.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        3 * MIB + 5000
    );
    assert!(to.join("a").exists() && !to.join("sub/big").exists());
    chown(to.join("sub"), Some(65534), Some(65534)).unwrap();
    let (sent, unplaced, kept) = support::sys::as_nobody(|| copy(2));
    assert_eq!((sent, unplaced, kept.len()), (0, 0, 0));
    assert_eq!(contents(&to), contents(&from));
}

/// A folder of the destination that this user cannot look into keeps what is below it out of the copy, and nothing else; none of that is sent.
#[test]
fn closed_folders_are_left_out() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["closed/deep", "open"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::create_dir_all(to.join(path)).unwrap();
    }
    for path in ["closed/a", "closed/deep/b", "closed/deep/none", "open/c"] {
        let contents = if path.ends_with("none") { "" } else { path };
        std::fs::write(from.join(path), contents).unwrap();
    }
    set_mode(&to.join("closed"), 0o700);
    if !rustix::process::geteuid().is_root() {
        set_mode(&to.join("closed"), 0o000);
    }
    for path in ["", "to", "to/open"] {
        chown(folder.join(path), Some(65534), Some(65534)).unwrap();
    }
    let landed = support::sys::as_nobody(|| {
        let (source, sink) = update_pair(&from, &to, &id(1));
        assert_eq!(finish(&source, &sink), "open/c".len() as u64);
        sink.landed()
    });
    let closed = (b"closed".to_vec(), "permission denied".to_owned());
    assert_eq!(landed.unplaced, [closed]);
    assert_eq!(std::fs::read(to.join("open/c")).unwrap(), b"open/c");
    set_mode(&to.join("closed"), 0o700);
    assert_eq!(names(&to.join("closed")), ["deep"]);
}
