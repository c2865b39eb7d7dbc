//! A transfer goes on where an earlier one ended.

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{KEPT_MIN, Sink as _};

mod support;
use support::*;

/// Of a writer that was killed everything that it had recorded is taken over, by a transfer of another number, and nothing that it
/// had not; nothing of it stays.
#[test]
fn what_a_killed_writer_left_is_taken_over() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 8), folder.join("to"));
    let (source, sink) = update_pair(&from, &to, &id(1));
    let big = Range::new(5000, 5000 + 8 * MIB);
    make_safe(&source, &sink, Range::new(0, 5000 + 2 * MIB));
    make_safe(
        &source,
        &sink,
        Range::new(big.start + 4 * MIB, big.start + 5 * MIB),
    );
    write(&source, &sink, Range::new(big.start + 6 * MIB, big.end));
    assert_eq!(names(&folder).len(), 3, "{:?}", names(&folder));
    drop(sink);

    let (source, sink) = update_pair(&from, &to, &id(2));
    assert_eq!(sink.present().unchanged.len_bytes(), 0);
    let adopted = RangeSet::from_ranges([
        Range::new(0, 5000 + 2 * MIB),
        Range::new(big.start + 4 * MIB, big.start + 5 * MIB),
    ]);
    assert_eq!(sink.present().adopted, adopted);
    drop(sink);
    // And again by the next one.
    let (source, sink) = {
        drop(source);
        update_pair(&from, &to, &id(3))
    };
    assert_eq!(sink.present().adopted, adopted);
    assert_eq!(finish(&source, &sink), 5 * MIB + 5000);
    assert!(snapshot(&from) == snapshot(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// Of two writers that were killed at the same time each wrote its own file: one of these is taken over, not what both had of it.
#[test]
fn of_two_killed_writers_one_is_taken_over() {
    for (first, second) in [(2, 1), (1, 2)] {
        let (_keep, folder) = folder();
        let from = tree(&folder, 4).join("sub/big");
        let to = folder.join("to");
        let (source, one) = update_pair(&from, &to, &id(1));
        let (_, other) = update_pair(&from, &to, &id(2));
        make_safe(&source, &one, Range::new(0, first * MIB));
        make_safe(&source, &other, Range::new((4 - second) * MIB, 4 * MIB));
        drop((one, other));
        let (source, sink) = update_pair(&from, &to, &id(3));
        let adopted = match first {
            2 => Range::new(0, 2 * MIB),
            _ => Range::new(2 * MIB, 4 * MIB),
        };
        assert_eq!(sink.present().adopted, RangeSet::from(adopted));
        assert_eq!(finish(&source, &sink), 2 * MIB);
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
        assert_eq!(names(&folder), ["from", "to"]);
    }
}

/// A writer that lives is left alone.
#[test]
fn what_is_being_written_is_not_taken_over() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 1), folder.join("to"));
    let (source, sink) = update_pair(&from, &to, &id(1));
    make_safe(&source, &sink, Range::new(0, 5000));
    let (other_source, other) = update_pair(&from, &to, &id(2));
    assert!(other.present().adopted.is_empty());
    assert_eq!(finish(&source, &sink), MIB + 10_000);
    assert_eq!(names(&folder).len(), 4, "its folder and journal");
    other.discard();
    drop(other_source);
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A file that changed since is written whole; one that another tree holds stays for that tree.
#[test]
fn only_the_same_version_is_taken_over() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    let (source, sink) = update_pair(&from, &to, &id(1));
    make_safe(&source, &sink, Range::new(0, 5000 + MIB));
    drop(sink);
    set_times(&from.join("sub/big"), 77, 0);
    let (source, sink) = {
        drop(source);
        update_pair(&from, &to, &id(2))
    };
    assert_eq!(sink.present().adopted, RangeSet::from(Range::new(0, 5000)));
    assert_eq!(finish(&source, &sink), 2 * MIB + 5000);
    assert!(snapshot(&from) == snapshot(&to));
    assert_eq!(names(&folder), ["from", "to"]);

    let (source, sink) = update_pair(&from, &folder.join("new"), &id(3));
    make_safe(&source, &sink, Range::new(0, 5000 + MIB));
    drop(sink);
    let other = folder.join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("x"), "x").unwrap();
    let (other_source, sink) = update_pair(&other, &folder.join("new"), &id(4));
    finish(&other_source, &sink);
    let (source, sink) = {
        drop(source);
        update_pair(&from, &folder.join("new"), &id(5))
    };
    // Beside the destination, where it was not there, and in it, where it is.
    assert_eq!(sink.present().adopted.len_bytes(), 5000 + MIB);
    finish(&source, &sink);
    let mut left = names(&folder);
    left.retain(|name| name.as_encoded_bytes().starts_with(b"."));
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(names(&folder.join("new")), ["a", "sub", "x"]);
}

/// A transfer that ends keeps partial files of which much is safe, also a single one, and says where; complete files get their
/// names beside; the next transfer goes on.
#[test]
fn large_partial_files_are_kept() {
    let big = (KEPT_MIN / MIB) as usize + 8;
    for has_folder in [true, false] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, big), folder.join("to"));
        let (source, start) = match has_folder {
            true => (from.clone(), 5000),
            false => (from.join("sub/big"), 0),
        };
        let (opened, sink) = update_pair(&source, &to, &id(1));
        let safe = Range::new(0, start + KEPT_MIN + MIB);
        make_safe(&opened, &sink, safe);
        let missing = sink.layout().ranges().difference(&RangeSet::from(safe));
        assert_eq!(sink.commit_whole_files(&missing).unwrap(), has_folder);
        let (path, bytes) = sink.kept_partial().pop().unwrap();
        assert_eq!(bytes, KEPT_MIN + MIB);
        assert!(path.exists(), "{path:?}");
        assert_eq!(to.join("a").exists(), has_folder);
        sink.discard();
        drop(sink);
        drop(opened);
        let (opened, sink) = update_pair(&source, &to, &id(2));
        assert_eq!(sink.present().adopted.len_bytes(), KEPT_MIN + MIB);
        assert_eq!(sink.present().unchanged.len_bytes(), start);
        let rest = if has_folder { 5000 } else { 0 };
        assert_eq!(finish(&opened, &sink), 7 * MIB + rest);
        let copy = if has_folder {
            to.join("sub/big")
        } else {
            to.clone()
        };
        assert!(std::fs::read(from.join("sub/big")).unwrap() == std::fs::read(copy).unwrap());
        assert_eq!(names(&folder), ["from", "to"]);
        if has_folder {
            assert_eq!(names(&to), ["a", "sub"]);
        }
    }
}

/// Where the journal is cut, the transfer goes on with less and ends with the same bytes.
#[test]
fn a_cut_journal_costs_bytes_only() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 3), folder.join("to"));
    let mut last = u64::MAX;
    for cut in [0, 7, 30, 60] {
        let (source, sink) = update_pair(&from, &to, &id(1));
        for at in 0..3 {
            let start = 5000 + at * MIB;
            make_safe(&source, &sink, Range::new(start, start + MIB));
        }
        drop(sink);
        let journal = names(&folder);
        let journal = journal
            .iter()
            .find(|name| name.as_encoded_bytes().ends_with(b".journal"))
            .unwrap();
        let journal = folder.join(journal);
        let bytes = std::fs::read(&journal).unwrap();
        std::fs::write(&journal, &bytes[..bytes.len() - cut]).unwrap();
        let (source, sink) = {
            drop(source);
            update_pair(&from, &to, &id(2))
        };
        let adopted = sink.present().adopted.len_bytes();
        assert!(adopted <= last && adopted % MIB == 0);
        last = adopted;
        assert_eq!(finish(&source, &sink), 3 * MIB + 10_000 - adopted);
        assert!(snapshot(&from) == snapshot(&to));
        assert_eq!(names(&folder), ["from", "to"]);
        std::fs::remove_dir_all(&to).unwrap();
    }
    assert_eq!(last, MIB);
}

/// What another user made is not taken over: its contents may be anything. Needs root.
#[test]
fn files_of_other_users_are_not_taken_over() {
    use std::os::unix::fs::chown;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    for what in ["journal", "stage"] {
        let (_keep, folder) = folder();
        let from = tree(&folder, 2).join("sub/big");
        let to = folder.join("to");
        let (source, sink) = update_pair(&from, &to, &id(1));
        make_safe(&source, &sink, Range::new(0, MIB));
        drop(sink);
        let left = names(&folder);
        let left = left
            .iter()
            .filter(|name| name.as_encoded_bytes()[0] == b'.');
        let is_journal = |name: &std::ffi::OsStr| name.as_encoded_bytes().ends_with(b".journal");
        let given: Vec<_> = left
            .filter(|name| is_journal(name) == (what == "journal"))
            .collect();
        assert_eq!(given.len(), 1);
        chown(folder.join(given[0]), Some(65_534), None).unwrap();
        let (source, sink) = update_pair(&from, &to, &id(2));
        assert!(sink.present().adopted.is_empty(), "{what}");
        assert_eq!(finish(&source, &sink), 2 * MIB);
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    }
}
