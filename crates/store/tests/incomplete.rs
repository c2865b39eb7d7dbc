//! Trees that lack bytes at the end: their whole files get their names, nothing else does.

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{KEPT_MIN_FAILED, Sink, Source as _, StoreError};

mod support;
use support::*;

/// Of a tree that lacks bytes the whole files get their names, in a new folder and in one that is there, whose older files
/// stay where the new ones lack bytes. Nothing temporary is left, and nothing can be written any more.
#[test]
fn whole_files_of_an_incomplete_tree_are_named() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("d/e")).unwrap();
    for (path, text) in [("a", "whole"), ("d/b", "missing"), ("d/e/c", "half")] {
        std::fs::write(from.join(path), text).unwrap();
    }
    std::fs::write(from.join("d/z"), "").unwrap();
    std::os::unix::fs::symlink("b", from.join("d/link")).unwrap();
    std::fs::create_dir_all(folder.join("old/d")).unwrap();
    std::fs::write(folder.join("old/d/b"), "older").unwrap();
    for to in ["new", "old"] {
        let to = folder.join(to);
        let (source, sink) = tree_pair(&from, &to, 0);
        pump(source.layout(), &source, &sink);
        // Of `a` 5 bytes, of `d/b` 7, of `d/e/c` 4.
        let missing =
            RangeSet::from_ranges([Range { start: 5, end: 12 }, Range { start: 14, end: 15 }]);
        assert!(sink.commit_whole_files(&missing).unwrap());
        assert_eq!(std::fs::read(to.join("a")).unwrap(), b"whole");
        assert_eq!(std::fs::read(to.join("d/z")).unwrap(), b"");
        assert!(to.join("d/link").is_symlink());
        assert!(!to.join("d/e/c").exists() && to.join("d/e").is_dir());
        let older = std::fs::read(to.join("d/b")).ok();
        assert_eq!(
            older.as_deref(),
            to.ends_with("old").then_some(&b"older"[..])
        );
        assert_eq!(sink.landed().added_files, 3);
        assert!(sink.write_at(5, b"missing").is_err());
    }
    assert_eq!(names(&folder), ["from", "new", "old"]);
    assert_eq!(names(&folder.join("old")), ["a", "d"]);
}

/// Where no file is whole nothing is named, and one file that lacks bytes has no name.
#[test]
fn without_whole_files_nothing_is_named() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), "missing").unwrap();
    let missing = RangeSet::from(Range { start: 3, end: 4 });
    for from in [from.clone(), from.join("a")] {
        let (source, sink) = tree_pair(&from, &folder.join("to"), 0);
        pump(source.layout(), &source, &sink);
        assert!(!sink.commit_whole_files(&missing).unwrap());
        assert_eq!(names(&folder), ["from"]);
    }
}

/// A commit that cannot remove what lacks bytes names nothing; and after a discard nothing is said to have a name.
#[test]
fn what_cannot_be_left_out_is_an_error() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), "whole").unwrap();
    std::fs::write(from.join("b"), "missing").unwrap();
    let missing = RangeSet::from(Range { start: 6, end: 12 });
    let (source, sink) = tree_pair(&from, &to, 0);
    pump(source.layout(), &source, &sink);
    let staged = sink.temporary(1).remove(0).join("b");
    std::fs::remove_file(&staged).unwrap();
    std::fs::create_dir(&staged).unwrap();
    sink.commit_whole_files(&missing).unwrap_err();
    assert!(!to.exists());
    sink.discard();
    assert!(!sink.commit_whole_files(&missing).unwrap());
    assert_eq!(names(&folder), ["from"]);
}

/// Putting partial files aside fails half way: all places where something is kept are named, and the next copy goes on with all of it;
/// where nothing is kept nothing stays.
#[test]
fn what_is_half_put_aside_is_named() {
    let len = KEPT_MIN_FAILED as usize;
    for is_kept in [true, false] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
            std::fs::write(from.join(name), bytes(seed, len)).unwrap();
        }
        std::fs::write(from.join("whole"), "whole").unwrap();
        let (source, sink) = update_pair(&from, &to, &id(1));
        let len = len as u64;
        let part = len / 4 * 3;
        for at in 0..3 {
            make_safe(&source, &sink, Range::new(at * len, at * len + part));
        }
        make_safe(&source, &sink, Range::new(3 * len, 3 * len + 5));
        sink.keep_more();
        let staged = sink.temporary(1).remove(0);
        std::fs::rename(staged.join("b"), folder.join("away")).unwrap();
        let lacking = (0..3).map(|at| Range::new(at * len + part, (at + 1) * len));
        sink.commit_whole_files(&RangeSet::from_ranges(lacking))
            .unwrap_err();
        let aside = folder.join(format!(".to.ropewalk-{}-kept", id(1)));
        assert_eq!(names(&aside), ["a"]);
        if !is_kept {
            sink.discard();
            assert_eq!(names(&folder), ["away", "from"]);
            continue;
        }
        sink.set_aside();
        let kept = sink.kept_partial();
        assert_eq!(kept, [(staged, 2 * part + 5), (aside, part)]);
        drop(sink);
        let (_, next) = update_pair(&from, &to, &id(2));
        // `b` is gone.
        assert_eq!(next.present().adopted.len_bytes(), 2 * part + 5);
    }
}

/// An older link stays where the new file lacks bytes.
#[test]
fn an_older_link_stays_where_bytes_are_missing() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for folder in [&from, &to] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(from.join("a"), "whole").unwrap();
    std::fs::write(from.join("b"), "missing").unwrap();
    std::os::unix::fs::symlink("a", to.join("b")).unwrap();
    let (source, sink) = tree_pair(&from, &to, 0);
    pump(source.layout(), &source, &sink);
    let missing = RangeSet::from(Range { start: 6, end: 12 });
    assert!(sink.commit_whole_files(&missing).unwrap());
    assert!(to.join("b").is_symlink());
    assert_eq!(names(&to), ["a", "b"]);
}

/// A disk that is full takes back nothing of the files that are whole: they get their names.
#[test]
fn whole_files_on_a_full_disk_are_named() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("a"), bytes(1, 300 << 10)).unwrap();
    std::fs::write(folder.join("b"), bytes(2, 600 << 10)).unwrap();
    sys::on_small_disk(1 << 20, |disk| {
        let to = disk.join("to");
        let (source, sink) = tree_pair(&folder, &to, 0);
        std::fs::write(disk.join("other"), bytes(3, 300 << 10)).unwrap();
        let mut buf = vec![0; 300 << 10];
        source.read_at(0, &mut buf).unwrap();
        sink.write_at(0, &buf).unwrap();
        let rest = 300 << 10;
        let full = [0, 1].map(|half| sink.write_at((1 + half) * rest, &buf));
        let error = full.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
        let missing = RangeSet::from(Range {
            start: rest,
            end: 3 * rest,
        });
        assert!(sink.commit_whole_files(&missing).unwrap());
        assert_eq!(names(&to), ["a"]);
        assert_eq!(std::fs::read(to.join("a")).unwrap(), bytes(1, 300 << 10));
        assert_eq!(names(disk), ["other", "to"]);
    });
}
