//! What an earlier transfer left is taken over in whatever state it is, and nothing that only looks like it.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{
    Adopt, Check, KEPT_MIN, OPEN_FILES_MAX, Part, Scan, Sink as _, TreeSink, Unit,
};
use rustix::fs::XattrFlags;

mod support;
use support::*;

/// Names that begin with a dot.
fn hidden(folder: &Path) -> Vec<OsString> {
    let mut all = names(folder);
    all.retain(|name| name.as_encoded_bytes()[0] == b'.');
    all
}

/// The only one that ends in `.journal`, and the only one that does not.
fn left(folder: &Path) -> (PathBuf, PathBuf) {
    let (journals, stages): (Vec<_>, Vec<_>) = hidden(folder)
        .into_iter()
        .partition(|name| name.as_encoded_bytes().ends_with(b".journal"));
    assert_eq!((journals.len(), stages.len()), (1, 1));
    (folder.join(&journals[0]), folder.join(&stages[0]))
}

fn big(mib: u64) -> Range {
    Range::new(5000, 5000 + mib * MIB)
}

/// A writer of a tree that was killed when all of `a` and `mib` of `sub/big` were safe.
fn killed(from: &Path, to: &Path, number: u32, mib: u64) {
    let (source, sink) = update_pair(from, to, &id(number));
    make_safe(&source, &sink, Range::new(0, big(mib).end));
}

/// The next transfer takes over so much, ends well, and leaves nothing.
#[track_caller]
fn assert_adopted(from: &Path, to: &Path, number: u32, adopted: u64) {
    let (source, sink) = update_pair(from, to, &id(number));
    assert_eq!(sink.present().adopted.len_bytes(), adopted);
    finish(&source, &sink);
    assert!(snapshot(from) == snapshot(to));
    assert_eq!(hidden(to.parent().unwrap()), [""; 0]);
    if to.is_dir() {
        assert_eq!(hidden(to), [""; 0]);
    }
}

/// A writer that is killed before anything is safe, and before anything is written, leaves what the next one removes.
#[test]
fn what_has_nothing_safe_is_removed() {
    for is_written in [false, true] {
        for file in ["", "sub/big"] {
            let (_keep, folder) = folder();
            let (from, to) = (tree(&folder, 2).join(file), folder.join("to"));
            let (source, sink) = update_pair(&from, &to, &id(1));
            if is_written {
                write(&source, &sink, Range::new(0, MIB));
            }
            drop((source, sink));
            let (_, _) = left(&folder);
            let (source, sink) = update_pair(&from, &to, &id(2));
            assert!(sink.present().adopted.is_empty());
            finish(&source, &sink);
            assert_eq!(names(&folder), ["from", "to"]);
        }
    }
}

/// What ended records nothing any more: a sync may end after a sink has.
#[test]
fn an_ended_sink_makes_no_journal() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    let part = RangeSet::from(Range::new(0, MIB));
    let (source, sink) = update_pair(&from, &to, &id(1));
    write(&source, &sink, Range::new(0, MIB));
    sink.discard();
    sink.record(&part, &[]);
    assert_eq!(hidden(&folder), [""; 0]);
    let (source, sink) = {
        drop(source);
        update_pair(&from, &to, &id(2))
    };
    finish(&source, &sink);
    sink.record(&part, &[]);
    assert_eq!(hidden(&folder), [""; 0]);
    assert_eq!(hidden(&to), [""; 0]);
}

/// What is set aside is the next transfer's at once, though the sink that left it is still there.
#[test]
fn what_is_set_aside_is_not_locked() {
    let mib = KEPT_MIN / MIB + 2;
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, mib as usize), folder.join("to"));
    let (source, first) = update_pair(&from, &to, &id(1));
    make_safe(&source, &first, Range::new(0, 5000 + KEPT_MIN));
    first.set_aside();
    let (path, bytes) = first.kept_partial().pop().unwrap();
    assert!(path.exists() && bytes == 5000 + KEPT_MIN && !to.exists());
    // Nothing of it is removed by a second end.
    first.discard();
    drop(source);
    assert_adopted(&from, &to, 2, 5000 + KEPT_MIN);
    // In a folder that was there, which keeps its time.
    std::fs::remove_dir_all(&to).unwrap();
    std::fs::create_dir(&to).unwrap();
    set_times(&to, 1000, 5);
    let (source, sink) = update_pair(&from, &to, &id(3));
    make_safe(&source, &sink, Range::new(0, 5000 + KEPT_MIN));
    sink.set_aside();
    let found = std::fs::metadata(&to).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (1000, 5));
    assert_eq!(hidden(&to).len(), 2);
}

/// Little is not set aside, and of contents that are wrong nothing is.
#[test]
fn little_and_wrong_contents_are_not_kept() {
    for (mib, is_wrong) in [(1, false), (KEPT_MIN / MIB, true)] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, mib as usize), folder.join("to"));
        let (source, sink) = update_pair(&from, &to, &id(1));
        make_safe(&source, &sink, big(mib));
        match is_wrong {
            true => sink.discard(),
            false => sink.set_aside(),
        }
        assert!(sink.kept_partial().is_empty());
        assert_eq!(names(&folder), ["from"]);
    }
}

/// What fails keeps little, too, and so does what ends after it: a path that fails again and again would begin again each time.
#[test]
fn a_path_that_fails_again_and_again_gets_on() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 8), folder.join("to"));
    for round in 0..4_u32 {
        let (source, sink) = update_pair(&from, &to, &id(round));
        let start = 5000 + u64::from(round) * MIB;
        let there = sink.present().unchanged.union(&sink.present().adopted);
        assert_eq!(there.len_bytes(), if round == 0 { 0 } else { start });
        let first = if round == 0 { 0 } else { start };
        make_safe(&source, &sink, Range::new(first, start + MIB));
        let end = 5000 + u64::from(round + 1) * MIB;
        let all = sink.layout().ranges();
        let missing = all.difference(&RangeSet::from(Range::new(0, end)));
        if round < 3 {
            sink.keep_more();
        }
        sink.commit_whole_files(&missing).unwrap();
        assert_eq!(sink.kept_partial().pop().unwrap().1, end - 5000);
        assert!(to.join("a").exists());
    }
}

/// Of a file that changed nothing is worth keeping; of the others it is.
#[test]
fn what_holders_refuse_is_not_kept() {
    for has_other in [false, true] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 4), folder.join("to"));
        if has_other {
            std::fs::write(from.join("sub/other"), bytes(4, 4 * MIB as usize)).unwrap();
        }
        let (source, sink) = update_pair(&from, &to, &id(1));
        let mut end = big(2).end;
        make_safe(&source, &sink, Range::new(5000, end));
        if has_other {
            end = big(4).end + MIB;
            make_safe(&source, &sink, Range::new(big(4).end, end));
        }
        sink.keep_more();
        sink.give_up(&RangeSet::from(Range::new(big(3).start, big(4).end)));
        sink.set_aside();
        let kept = sink.kept_partial().pop().map(|(_, bytes)| bytes);
        assert_eq!(kept, has_other.then_some(MIB));
        assert_eq!(hidden(&folder).len(), if has_other { 2 } else { 0 });
    }
}

/// A commit that was killed may have given a file mode, owner and attributes of the source: the next transfer can write it, and
/// ends with those of its own source.
#[test]
fn what_a_killed_commit_gave_is_taken_away() {
    let is_root = rustix::process::geteuid().is_root();
    for file in ["", "sub/big"] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 2).join(file), folder.join("to"));
        let start = if file.is_empty() { 5000 } else { 0 };
        let (source, sink) = update_pair(&from, &to, &id(1));
        make_safe(&source, &sink, Range::new(0, start + MIB));
        drop((source, sink));
        let (_, stage) = left(&folder);
        let staged = match file {
            "" => stage.join("sub/big"),
            _ => stage,
        };
        let given = rustix::fs::setxattr(&staged, "user.old", b"1", XattrFlags::empty());
        set_mode(&staged, 0o4444);
        if is_root {
            if file.is_empty() {
                chown(&staged, Some(65_534), Some(65_534)).unwrap();
            } else {
                chown(&staged, None, Some(65_534)).unwrap();
            }
        }
        let (source, sink) = update_pair(&from, &to, &id(2));
        assert_eq!(sink.present().adopted.len_bytes(), start + MIB);
        let (_, stage) = left(&folder);
        let staged = match file {
            "" => stage.join("sub/big"),
            _ => stage,
        };
        let found = std::fs::metadata(&staged).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        assert_eq!(
            (found.mode() & 0o7777, found.uid(), found.gid()),
            (0o600, user, group)
        );
        if given.is_ok() {
            let mut value = [0; 8];
            let attribute = rustix::fs::getxattr(&staged, "user.old", &mut value);
            assert_eq!(attribute, Err(rustix::io::Errno::NODATA));
        }
        finish(&source, &sink);
        assert!(snapshot(&from) == snapshot(&to));
    }
}

/// A file that has a second name is not written into: that name would show what this transfer receives.
#[test]
fn a_file_of_two_names_is_left_alone() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    killed(&from, &to, 1, 1);
    let (_, stage) = left(&folder);
    let other = folder.join("backup");
    std::fs::hard_link(stage.join("sub/big"), &other).unwrap();
    let before = std::fs::read(&other).unwrap();
    assert_adopted(&from, &to, 2, 5000);
    assert!(std::fs::read(&other).unwrap() == before);
}

/// A file that was put there since, as by a backup that is older than the journal, is not the one that was recorded.
#[test]
fn a_restored_file_is_left_alone() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    killed(&from, &to, 1, 2);
    let (_, stage) = left(&folder);
    let staged = stage.join("sub/big");
    let len = std::fs::metadata(&staged).unwrap().len();
    std::fs::write(folder.join("old"), vec![0; len as usize]).unwrap();
    std::fs::rename(folder.join("old"), &staged).unwrap();
    assert_adopted(&from, &to, 2, 5000);
}

/// A folder that others could change vouches for nothing.
#[test]
fn a_folder_that_others_can_change_is_left_alone() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    killed(&from, &to, 1, 1);
    set_mode(&left(&folder).1, 0o777);
    assert_adopted(&from, &to, 2, 0);
    let (from, to) = (from.join("sub/big"), folder.join("to2"));
    let (source, sink) = update_pair(&from, &to, &id(3));
    make_safe(&source, &sink, Range::new(0, MIB));
    drop((source, sink));
    set_mode(&left(&folder).1, 0o666);
    assert_adopted(&from, &to, 4, 0);
}

/// Wherever a transfer is killed that takes over: between its record and the moves, between the moves, and before the old journal is
/// removed, the next one finds all.
#[test]
fn a_killed_take_over_loses_nothing() {
    for moved in 0..4 {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 2), folder.join("to"));
        killed(&from, &to, 1, 1);
        let (old_journal, old) = left(&folder);
        let records = std::fs::read(&old_journal).unwrap();
        drop(update_pair(&from, &to, &id(2)));
        let (_, new) = left(&folder);
        std::fs::create_dir_all(old.join("sub")).unwrap();
        set_mode(&old, 0o700);
        for (at, file) in ["a", "sub/big"].into_iter().enumerate() {
            if moved & (1 << at) == 0 {
                std::fs::rename(new.join(file), old.join(file)).unwrap();
            }
        }
        std::fs::write(&old_journal, &records).unwrap();
        assert_adopted(&from, &to, 3, 5000 + MIB);
    }
}

/// Partial files are moved aside before their journal is: a transfer that is killed between is gone on with, too.
#[test]
fn a_killed_keeping_loses_nothing() {
    let mib = KEPT_MIN / MIB;
    for state in ["journal not renamed", "complete files not moved"] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, mib as usize + 1), folder.join("to"));
        let (source, sink) = update_pair(&from, &to, &id(1));
        make_safe(&source, &sink, Range::new(0, big(mib).end));
        drop((source, sink));
        let (journal, stage) = left(&folder);
        let kept = PathBuf::from(format!("{}-kept", stage.display()));
        std::fs::create_dir_all(kept.join("sub")).unwrap();
        set_mode(&kept, 0o700);
        std::fs::rename(stage.join("sub/big"), kept.join("sub/big")).unwrap();
        if state == "complete files not moved" {
            let moved = format!("{}.journal", kept.display());
            std::fs::rename(&journal, moved).unwrap();
        }
        assert_adopted(&from, &to, 2, 5000 + KEPT_MIN);
    }
}

/// Names of any length are gone on with, and what another destination left is not taken for this one's.
#[test]
fn long_and_alike_names() {
    let (_keep, folder) = folder();
    let from = tree(&folder, 2);
    for (number, len) in [(1, 180), (3, 210), (5, 255)] {
        let to = folder.join("n".repeat(len));
        killed(&from, &to, number, 1);
        assert_adopted(&from, &to, number + 1, 5000 + MIB);
        std::fs::remove_dir_all(&to).unwrap();
    }
    let digits = "0".repeat(32);
    for other in ["to.ropewalk-x".to_owned(), format!("to.ropewalk-{digits}")] {
        killed(&from, &folder.join(&other), 7, 1);
        let (source, sink) = update_pair(&from, &folder.join("to"), &id(8));
        assert!(sink.present().adopted.is_empty(), "{other}");
        finish(&source, &sink);
        assert_adopted(&from, &folder.join(&other), 9, 5000 + MIB);
    }
}

/// Space that an earlier transfer reserved is not wanted a second time.
#[test]
fn reserved_space_is_used() {
    sys::on_small_disk(16 * MIB, |disk| {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 12), disk.join("to"));
        killed(&from, &to, 1, 2);
        let staged = std::fs::File::options()
            .write(true)
            .open(left(disk).1.join("sub/big"))
            .unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&staged, flags, 0, 12 * MIB).unwrap();
        drop(staged);
        assert_adopted(&from, &to, 2, 5000 + 2 * MIB);
    });
}

/// On a full disk nothing can be recorded: what is there stays for a transfer that finds space.
#[test]
fn a_full_disk_keeps_what_is_left() {
    sys::on_small_disk(16 * MIB, |disk| {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 12), disk.join("to"));
        killed(&from, &to, 1, 2);
        let filler = disk.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        while std::io::Write::write(&mut file, &[1; 4096]).is_ok_and(|len| len > 0) {}
        drop(file);
        let scan = Scan::read(&from).unwrap();
        let parts = [Part::whole(0, scan.manifest)];
        assert!(TreeSink::update(&to, &parts, &id(2), Adopt::All).is_err());
        std::fs::remove_file(&filler).unwrap();
        assert_adopted(&from, &to, 3, 5000 + 2 * MIB);
    });
}

/// What is on another file system stays there, and is no obstacle.
#[test]
fn what_is_on_another_file_system_stays() {
    sys::alone(|| {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 2), folder.join("to"));
        killed(&from, &to, 1, 1);
        let before = hidden(&folder);
        std::fs::create_dir(&to).unwrap();
        sys::mount_small(&to, 32 * MIB);
        let (source, sink) = update_pair(&from, &to, &id(2));
        assert!(sink.present().adopted.is_empty());
        make_safe(&source, &sink, Range::new(0, 4096));
        drop((source, sink));
        let (source, sink) = update_pair(&from, &to, &id(3));
        assert_eq!(sink.present().adopted.len_bytes(), 4096);
        finish(&source, &sink);
        assert!(snapshot(&from)[1..] == snapshot(&to)[1..]);
        assert_eq!(hidden(&to), [""; 0]);
        sys::unmount_small(&to);
        assert_eq!(hidden(&folder), before);
        std::fs::remove_dir(&to).unwrap();
        assert_adopted(&from, &to, 4, 5000 + MIB);
    });
}

/// What cannot be moved stays where it is, and nothing vouches for the file that is made instead. Needs root.
#[test]
fn what_cannot_be_moved_stays() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can take a folder away from a user");
        return;
    }
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    set_mode(&folder, 0o777);
    sys::as_nobody(|| killed(&from, &to, 1, 1));
    let (journal, stage) = left(&folder);
    chown(stage.join("sub"), Some(0), Some(0)).unwrap();
    set_mode(&stage.join("sub"), 0o755);
    sys::as_nobody(|| {
        let (source, sink) = update_pair(&from, &to, &id(2));
        assert_eq!(sink.present().adopted.len_bytes(), 5000);
        // Killed when it has made the file again, and little of it is safe.
        let start = big(2).start;
        make_safe(&source, &sink, Range::new(start + MIB, start + MIB + 4096));
    });
    assert!(journal.exists() && stage.join("sub/big").exists());
    std::fs::remove_dir_all(&stage).unwrap();
    std::fs::remove_file(&journal).unwrap();
    sys::as_nobody(|| assert_adopted(&from, &to, 3, 5000 + 4096));
}

/// A sink that is to be read back takes over what has hashes only, and hands these on.
#[test]
fn hashes_are_kept() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    let (source, sink) = update_pair(&from, &to, &id(1));
    let half = Range::new(big(1).start, big(1).end);
    write(&source, &sink, Range::new(0, big(2).end));
    sink.sync().unwrap();
    let unit = Unit {
        range: half,
        digest: [9; 32],
    };
    sink.record(&RangeSet::from(Range::new(0, half.start)), &[]);
    sink.record(&RangeSet::from(Range::new(0, big(2).end)), &[unit]);
    drop((source, sink));
    let update = |number, adopt| {
        let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
        TreeSink::update(&to, &parts, &id(number), adopt).unwrap()
    };
    let sink = update(2, Adopt::All);
    assert_eq!(sink.present().adopted.len_bytes(), 5000 + 2 * MIB);
    assert_eq!(sink.present().units, [unit]);
    drop(sink);
    let sink = update(3, Adopt::Hashed);
    assert_eq!(sink.present().adopted, RangeSet::from(half));
    assert_eq!(sink.present().units, [unit]);
}

/// A file that vanishes while it is written, or after it was taken over, is not made anew: what it had would be missing in it.
#[test]
fn a_file_that_vanishes_is_not_made_anew() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    // More than are kept open.
    let count = OPEN_FILES_MAX as u64 + 1;
    for number in 0..count {
        std::fs::write(from.join(format!("{number:04}")), [7; 2]).unwrap();
    }
    let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
    let sink = TreeSink::update(&to, &parts, &id(1), Adopt::All).unwrap();
    (0..count).for_each(|number| sink.write_at(2 * number, &[7]).unwrap());
    sink.sync().unwrap();
    let staged = |number: u64| left(&folder).1.join(format!("{number:04}"));
    // Which ones are kept open is the cache's affair; one is not.
    let vanish = |number: u64| {
        std::fs::remove_file(staged(number)).unwrap();
        sink.write_at(2 * number + 1, &[7]).err()
    };
    let error = (2..count).rev().find_map(vanish).unwrap();
    assert!(error.to_string().contains("removed meanwhile"), "{error}");
    sink.record(&RangeSet::from(Range::new(2, 3)), &[]);
    drop(sink);
    for is_told in [false, true] {
        let sink = match is_told {
            false => TreeSink::update(&to, &parts, &id(2), Adopt::All).unwrap(),
            true => {
                let none = RangeSet::new();
                let shared = id(3);
                let _first = TreeSink::lead(&to, &parts, &shared, 0, Adopt::All).unwrap();
                let stays = ropewalk_store::Stays::Same;
                let other =
                    TreeSink::share(&to, &parts, &shared, 1, (&none, &none), stays, Check::Time)
                        .unwrap();
                other.expect(&RangeSet::from(Range::new(2, 3)));
                other
            }
        };
        if !is_told {
            assert_eq!(sink.present().adopted.len_bytes(), 1);
            std::fs::remove_file(staged(1)).unwrap();
        }
        let error = sink.write_at(3, &[7]).unwrap_err();
        assert!(error.to_string().contains("removed meanwhile"), "{error}");
        sink.discard();
        assert_eq!(hidden(&folder), [""; 0]);
    }
}
