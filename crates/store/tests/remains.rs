//! What ended transfers have left is found, and removed only where no transfer writes it.

use std::path::Path;

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{Remain, RemainState, Sink as _, StoreError, TreeSink, remains};

mod support;
use support::*;

/// A transfer to `to` of a file of 3,000 bytes and one of 5,000, of which 4,000 are safe.
fn begin(folder: &Path, to: &Path, number: u32) -> TreeSink {
    let from = folder.join("from");
    if !from.exists() {
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("a"), bytes(1, 3000)).unwrap();
        std::fs::write(from.join("b"), bytes(2, 5000)).unwrap();
    }
    let (source, sink) = update_pair(&from, to, &id(number));
    let range = Range::new(0, 4000);
    let mut buffer = vec![0; 4000];
    ropewalk_store::Source::read_at(&source, 0, &mut buffer).unwrap();
    sink.write_at(0, &buffer).unwrap();
    sink.sync().unwrap();
    sink.record(&RangeSet::from(range), &[]);
    sink
}

fn one(dest: &Path) -> Remain {
    let mut found = remains(dest).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// A running transfer's files are in use; those of an ended one are counted, by its destination and by the folder that has it, and
/// removed with the journal.
#[test]
fn what_is_left_is_counted_and_removed() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    assert!(remains(&to).unwrap().is_empty());
    let sink = begin(&folder, &to, 1);
    assert_eq!(one(&to).state, RemainState::InUse);
    drop(sink);
    for dest in [&to, &folder] {
        let found = one(dest);
        assert_eq!(found.state, RemainState::Resumable);
        assert_eq!((found.safe, found.total, found.files), (4000, 8000, 2));
        assert!(found.path.starts_with(&folder));
    }
    assert!(remains(&folder.join("other")).unwrap().is_empty());
    one(&to).remove().unwrap();
    assert_eq!(names(&folder), ["from"]);
    // Neither `status` nor `clean` writes: making the folder would be no help.
    let error = remains(&folder.join("missing/to")).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Vanished { .. }), "{text}");
    assert!(
        text.contains("missing\"") && !text.contains("create"),
        "{text}"
    );
}

/// A file that has its name is not counted as left.
#[test]
fn what_has_its_name_is_not_left() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 1), folder.join("to"));
    // Only in folders that are there files get their names early.
    std::fs::create_dir(&to).unwrap();
    let (source, sink) = early_pair(&from, &to, &id(1));
    assert_eq!(give_names(&source, &sink, Range::new(0, 5000)), 1);
    make_safe(&source, &sink, Range::new(5000, 5000 + MIB / 2));
    drop(sink);
    assert!(to.join("a").exists());
    let found = one(&to);
    assert_eq!((found.safe, found.total, found.files), (MIB / 2, MIB, 1));
    // As a copy into the folder that has it leaves it.
    assert!(found.path.starts_with(&to));
    assert_eq!(one(&folder).path, found.path);
}

/// What is being removed is not taken over, and what was taken over is not listed.
#[test]
fn what_is_removed_is_not_taken_over() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    drop(begin(&folder, &to, 1));
    let found = one(&to);
    let (_, next) = update_pair(&folder.join("from"), &to, &id(2));
    assert!(next.present().adopted.is_empty());
    drop(next);
    found.remove().unwrap();
    let left = one(&to);
    assert_eq!((left.state, left.safe), (RemainState::Resumable, 0));
}

/// Of several nodes' journals one that is in use counts, whatever the others are.
#[test]
fn one_journal_in_use_is_enough() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    let sink = begin(&folder, &to, 1);
    let own = one(&to).path;
    let own = own.file_name().unwrap().to_str().unwrap();
    // Journals of another host, which no other knows the locks of.
    let journal = std::fs::read(folder.join(format!("{own}.journal"))).unwrap();
    let mut other = journal.clone();
    let header = other.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    other[header..header + 16].fill(b'0');
    other[header + 16] = b'0';
    for node in ["000000", "000009"] {
        std::fs::write(folder.join(format!("{own}.{node}.journal")), &other).unwrap();
    }
    assert_eq!(one(&to).state, RemainState::InUse);
    drop(sink);
    assert_eq!(one(&to).state, RemainState::OtherHost);
}

/// What an older or newer version of the program has left is neither taken over nor removed, and said to be that.
#[test]
fn journals_of_other_versions_are_left_alone() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    drop(begin(&folder, &to, 1));
    let path = one(&to).path;
    let journal = folder.join(format!("{}.journal", path.file_name().unwrap().display()));
    let written = std::fs::read(&journal).unwrap();
    assert!(written.starts_with(b"ropewalk journal 4\n"));
    for other in [b'3', b'5'] {
        let mut bytes = written.clone();
        bytes[b"ropewalk journal ".len()] = other;
        std::fs::write(&journal, &bytes).unwrap();
        assert_eq!(one(&to).state, RemainState::OtherVersion);
        let (_, next) = update_pair(&folder.join("from"), &to, &id(2));
        assert!(next.present().adopted.is_empty());
        next.discard();
        assert_eq!(std::fs::read(&journal).unwrap(), bytes);
    }
    std::fs::write(&journal, &written).unwrap();
    let (_, next) = update_pair(&folder.join("from"), &to, &id(3));
    assert_eq!(next.present().adopted.len_bytes(), 4000);
}

/// A tree that is merged into a folder lies inside it, and is found there. Without a journal nothing is known of it.
#[test]
fn what_is_inside_the_destination_is_found() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    std::fs::create_dir(&to).unwrap();
    drop(begin(&folder, &to, 1));
    let found = one(&to);
    assert_eq!((found.state, found.safe), (RemainState::Resumable, 4000));
    let temporary = found.path.clone();
    drop(found);
    let parent = temporary.parent().unwrap();
    for name in names(parent) {
        if name.as_encoded_bytes().ends_with(b".journal") {
            std::fs::remove_file(parent.join(name)).unwrap();
        }
    }
    let found = one(&to);
    assert_eq!((found.state, found.safe), (RemainState::Unrecorded, 0));
    // A link at the end of the path leads there, too.
    std::os::unix::fs::symlink(&to, folder.join("link")).unwrap();
    one(&folder.join("link")).remove().unwrap();
    assert!(remains(&to).unwrap().is_empty());
}

/// What a transfer was taking over when it was killed is one leftover with its journal, and is removed with it.
#[test]
fn what_was_being_taken_over_is_removed_with_its_journal() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    drop(begin(&folder, &to, 1));
    let stage = folder.join(format!(".to.ropewalk-{}", id(1)));
    let taken = folder.join(format!(".to.ropewalk-{}-taken", id(1)));
    std::fs::rename(stage, &taken).unwrap();
    let found = one(&to);
    assert_eq!((found.state, found.safe), (RemainState::Resumable, 4000));
    assert_eq!(found.path, taken);
    found.remove().unwrap();
    assert_eq!(names(&folder), ["from"]);
}

/// A local file system has one host, whatever its name was: a container has a new one each time.
#[test]
fn hosts_of_local_file_systems_may_have_other_names() {
    let (_keep, folder) = folder();
    let to = folder.join("to");
    let sink = begin(&folder, &to, 1);
    let own = one(&to).path;
    let journal = folder.join(format!("{}.journal", own.file_name().unwrap().display()));
    let mut bytes = std::fs::read(&journal).unwrap();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    bytes[header..header + 16].fill(b'0');
    std::fs::write(&journal, &bytes).unwrap();
    assert_eq!(one(&to).state, RemainState::InUse);
    drop(sink);
    assert_eq!(one(&to).state, RemainState::Resumable);
}
