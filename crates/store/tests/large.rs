//! Trees that several threads read: everything is found once, in order, and errors are the first in that order.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use ropewalk_store::{Adopt, Keep, PATH_LEN_MAX, Part, Scan, Sink as _, StoreError, TreeSink};

use rustix::fs::{Mode, OFlags};

mod support;
use support::*;

/// Files in one large folder.
const FLAT: usize = 1500;

/// Folders that hold a few files and one more folder each.
const DEEP: usize = 300;

const LINKS: Keep = Keep {
    owners: false,
    attributes: false,
    links: true,
    specials: false,
};

/// A large folder, a long row of small ones, each in the one before or beside it, links and second names.
fn large_tree(root: &Path) {
    let flat = root.join("flat");
    std::fs::create_dir_all(&flat).unwrap();
    for at in 0..FLAT {
        std::fs::write(flat.join(format!("f{at}")), bytes(at as u64, at % 50)).unwrap();
    }
    std::fs::write(
        flat.join(".f1.ropewalk-0123456789abcdef0123456789abcdef"),
        b"temporary",
    )
    .unwrap();
    let mut folder = root.join("deep");
    for at in 0..DEEP {
        if at % 40 == 0 {
            folder = root.join(format!("deep{at}"));
        }
        folder.push(format!("d{at}"));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..3 {
            std::fs::write(folder.join(format!("f{file}")), bytes(at as u64, file)).unwrap();
        }
        std::os::unix::fs::symlink("f1", folder.join("link")).unwrap();
    }
    for at in 0..20 {
        std::fs::hard_link(
            flat.join(format!("f{at}")),
            folder.join(format!("same{at}")),
        )
        .unwrap();
    }
}

/// The paths that `find` has, sorted by their bytes.
fn found(root: &Path) -> Vec<Vec<u8>> {
    let output = Command::new("find")
        .arg(root)
        .args(["-name", "*.ropewalk-*", "-prune", "-o", "-printf", "%P\\0"])
        .output()
        .unwrap();
    let names = output.stdout.strip_suffix(b"\0").unwrap();
    let all: BTreeSet<Vec<u8>> = names.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    all.into_iter().collect()
}

/// Each entry is there once, in order, whichever thread has found it; second names are known across threads.
#[test]
fn all_is_found_once() {
    let (_folder, root) = folder();
    large_tree(&root);
    let scan = Scan::read_keeping(&root, LINKS).unwrap();
    let entries = &scan.manifest.entries;
    let paths: Vec<Vec<u8>> = entries.iter().map(|entry| entry.path.clone()).collect();
    assert!(
        paths == found(&root),
        "{} of {}",
        paths.len(),
        found(&root).len()
    );
    assert_eq!((scan.skipped, scan.versions.len()), (1, entries.len()));
    let links = entries.iter().filter(|entry| {
        let path = root.join(name(&entry.path));
        let is_link = matches!(entry.kind, ropewalk_store::EntryKind::HardLink { .. });
        assert!(!is_link || path.metadata().unwrap().nlink() == 2);
        is_link
    });
    assert_eq!(links.count(), 20);
    for _ in 0..5 {
        assert!(Scan::read_keeping(&root, LINKS).unwrap().manifest == scan.manifest);
    }
}

/// What cannot be copied is named whichever thread meets it, and the walk ends.
#[test]
fn an_error_of_one_thread_ends_the_walk() {
    let (_folder, root) = folder();
    large_tree(&root);
    let mut path = root.join("deep0");
    while let Some(next) = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
    {
        path = next;
    }
    // Longer than one system call takes, so each folder is made in the one before.
    let name = "n".repeat(250);
    let mut folder = rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(&folder, &*name, Mode::RWXU).unwrap();
        folder = rustix::fs::openat(&folder, &*name, OFlags::RDONLY, Mode::empty()).unwrap();
    }
    let scan = Scan::read(&root).unwrap();
    let [left_out] = scan.left_out.as_slice() else {
        panic!("{:?}", scan.left_out)
    };
    assert!(left_out.path.len() > PATH_LEN_MAX && left_out.path.starts_with(b"deep0/"));
    assert_eq!(left_out.reason, "its path is too long");
    let longest = scan
        .manifest
        .entries
        .iter()
        .map(|entry| entry.path.len())
        .max();
    assert!(longest.is_some_and(|len| len <= PATH_LEN_MAX));
    let (_other, other) = support::folder();
    let to = other.join("to");
    copy(&root, &to);
    let copied = Scan::read(&to).unwrap().manifest;
    let mut pairs = copied.entries.iter().zip(&scan.manifest.entries);
    assert_eq!(pairs.find(|(copy, entry)| copy != entry), None);
    assert_eq!(copied.entries.len(), scan.manifest.entries.len());
}

/// All files of a second copy are found to be the same; of some that differ just these are not.
#[test]
fn what_is_the_same_is_found() {
    let (_folder, root) = folder();
    let (from, to) = (root.join("from"), root.join("to"));
    large_tree(&from);
    let status = Command::new("cp").arg("-a").args([&from, &to]).status();
    assert!(status.unwrap().success());
    // Otherwise the copy's time of change may be its time of writing.
    set_times(&from, 1, 0);
    set_times(&to, 1, 0);
    let scan = Scan::read_keeping(&from, LINKS).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let look = || {
        let sink = TreeSink::update(&to, &parts, ID, Adopt::All).unwrap();
        let there = sink.present().all().len_bytes();
        sink.discard();
        there
    };
    let all = parts[0].manifest.data_len();
    assert_eq!(look(), all);
    let mut less = 0;
    for at in [300, 1277, 1499] {
        let path = to.join(format!("flat/f{at}"));
        less += path.metadata().unwrap().len();
        set_times(&path, 5, 5);
    }
    std::fs::remove_dir_all(to.join("deep80")).unwrap();
    let gone = parts[0].manifest.entries.iter();
    let gone = gone.filter(|entry| entry.path.starts_with(b"deep80/"));
    less += gone.map(ropewalk_store::Entry::len).sum::<u64>();
    assert_eq!(look(), all - less);
}

/// Of several things that a copy cannot replace the first in order is named, each time.
#[test]
fn the_first_obstacle_is_named() {
    let (_folder, root) = folder();
    let (from, to) = (root.join("from"), root.join("to"));
    large_tree(&from);
    for obstacle in ["flat/f1499", "flat/f1277", "flat/f5", "flat/f300"] {
        std::fs::create_dir_all(to.join(obstacle)).unwrap();
    }
    let scan = Scan::read(&from).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    for _ in 0..5 {
        match TreeSink::update(&to, &parts, ID, Adopt::All) {
            Err(StoreError::InTheWay { path, .. }) => assert_eq!(path, to.join("flat/f1277")),
            other => panic!("{other:?}"),
        }
    }
}
