//! Several nodes write one copy: what one of them finds there is written by none.

use std::path::Path;

use ropewalk_model::RangeSet;
use ropewalk_store::{
    EntryKind, FileSource, Part, Present, Scan, Sink as _, Source as _, StoreError, TreeSink,
};

mod support;
use support::*;

/// A source, its parts, and what a node finds at the destination.
fn looked(from: &Path, to: &Path) -> (FileSource, [Part; 1], Present) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let found = TreeSink::look(to, &parts, ID).unwrap();
    (source, parts, found)
}

fn shared(to: &Path, parts: &[Part], found: &Present) -> [TreeSink; 2] {
    [0, 1].map(|_| TreeSink::share(to, parts, ID, &found.unchanged).unwrap())
}

/// The two write what is not there in turn. Returns how many bytes that were.
fn fill(source: &FileSource, sinks: &[TreeSink; 2]) -> u64 {
    let absent = sinks.each_ref().map(|sink| {
        let all = sink.layout().ranges();
        all.difference(&sink.present().all())
    });
    assert_eq!(absent[0], absent[1]);
    for (at, range) in absent[0].iter().enumerate() {
        let mut buffer = vec![0; range.len() as usize];
        source.read_at(range.start, &mut buffer).unwrap();
        sinks[at % 2].write_at(range.start, &buffer).unwrap();
    }
    sinks[1].sync().unwrap();
    absent[0].len_bytes()
}

/// All but folders, which keep their times where they stood.
fn files(root: &Path) -> Vec<(ropewalk_store::Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
    all
}

/// Looking changes nothing. Neither node writes what was found, either can commit, and mode, links and empty files are made good
/// without a byte.
#[test]
fn what_one_finds_nobody_writes() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    let (.., found) = looked(&from, &to);
    assert_eq!(found, Present::default());
    assert_eq!(names(&folder), ["from"]);
    copy(&from, &to);
    for committer in [0, 1] {
        set_times(&from.join("plain/small"), 5 + committer as i64, 5);
        set_mode(
            &from.join("line\nbreak/tab\tand space "),
            0o600 + committer as u32,
        );
        for gone in ["plain/empty too", "to file"] {
            std::fs::remove_file(to.join(gone)).unwrap();
        }
        let before = snapshot(&to);
        let (source, parts, found) = looked(&from, &to);
        assert!(before == snapshot(&to));
        let sinks = shared(&to, &parts, &found);
        let small = std::fs::metadata(from.join("plain/small")).unwrap().len();
        assert_eq!(fill(&source, &sinks), small);
        sinks[committer].commit().unwrap();
        assert!(files(&from) == files(&to));
        let landed = sinks[committer].landed();
        assert_eq!((landed.replaced_files, landed.added_files), (1, 2));
        assert_eq!(landed.unchanged_files, found.files);
        assert_eq!(names(&folder), ["from", "to"]);
    }
}

/// What was decided holds for a node that sees other attributes: it neither writes such a file nor finds that it has changed. Bytes
/// that were not found are written by it, even where it finds the file to be there.
#[test]
fn a_node_that_sees_other_attributes_does_as_was_decided() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    copy(&from, &to);
    let (source, parts, found) = looked(&from, &to);
    assert_eq!((found.unchanged.len_bytes(), found.files), (2, 2));
    // To this node `a` is a file that was written there, as a second name makes it; and nothing was said of `b`.
    std::fs::hard_link(to.join("a"), folder.join("name")).unwrap();
    set_mode(&to.join("a"), 0o600);
    let told = Present {
        unchanged: found.unchanged.clipped(ropewalk_model::Range::new(0, 1)),
        ..Present::default()
    };
    assert_eq!(TreeSink::look(&to, &parts, ID).unwrap().files, 1);
    let sinks = shared(&to, &parts, &told);
    assert_eq!(sinks[0].present().unchanged, told.unchanged);
    assert_eq!(fill(&source, &sinks), 1);
    sinks[0].commit().unwrap();
    let landed = sinks[0].landed();
    assert_eq!((landed.unchanged_files, landed.replaced_files), (1, 1));
    assert_eq!(std::fs::read(to.join("b")).unwrap(), b"b");
}

/// A file that was found and is another one at the end makes the commit fail before anything has its name, on whichever node; so
/// does one that the first of two committing nodes had left alone.
#[test]
fn a_file_that_changes_meanwhile_is_named() {
    for (committer, takes_over) in [(0, false), (1, false), (1, true)] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        for name in ["a", "b"] {
            std::fs::write(from.join(name), "same").unwrap();
        }
        copy(&from, &to);
        std::fs::write(from.join("b"), "newer").unwrap();
        let (source, parts, found) = looked(&from, &to);
        let sinks = shared(&to, &parts, &found);
        assert_eq!(fill(&source, &sinks), 5);
        if takes_over {
            sinks[0].commit().unwrap();
            sinks[1].take_over();
            sinks[1].commit().unwrap();
            assert_eq!(sinks[1].landed().unchanged_files, 1);
            assert!(files(&from) == files(&to));
            continue;
        }
        std::fs::write(to.join("a"), "another").unwrap();
        let error = sinks[committer].commit().unwrap_err();
        assert!(
            matches!(&error, StoreError::ChangedAtDestination { path } if *path == to.join("a")),
            "{error}"
        );
        assert_eq!(std::fs::read(to.join("b")).unwrap(), b"same");
        sinks[committer].discard();
        assert_eq!(names(&to), ["a", "b"]);
    }
}

/// A single file that was found is not staged by anyone.
#[test]
fn a_single_file_that_was_found_stays() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, "contents").unwrap();
    copy(&from, &to);
    let (source, parts, found) = looked(&from, &to);
    let sinks = shared(&to, &parts, &found);
    assert_eq!(names(&folder), ["from", "to"]);
    assert_eq!(fill(&source, &sinks), 0);
    sinks[1].commit().unwrap();
    assert_eq!(sinks[1].landed().unchanged_files, 1);
    set_times(&from, 7, 0);
    let (source, parts, found) = looked(&from, &to);
    assert_eq!(found.unchanged, RangeSet::new());
    let sinks = shared(&to, &parts, &found);
    assert_eq!(fill(&source, &sinks), 8);
    sinks[0].commit().unwrap();
    assert!(files(&from) == files(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}
