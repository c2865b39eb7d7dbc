//! Files that get their names before the end of the copy: when, as what, and what is left to the end.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{
    Adopt, EntryKind, FileSource, Part, Scan, Sink as _, Source as _, Stays, StoreError, TreeSink,
    Wish,
};

mod support;
use support::*;

/// A tree of files of 3000 bytes each in two folders, a link, an empty file and one that is read-only.
fn make_sources(folder: &Path) -> PathBuf {
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("old")).unwrap();
    std::fs::create_dir_all(from.join("new")).unwrap();
    for (seed, file) in ["a", "b", "new/c", "old/d", "old/e"].iter().enumerate() {
        std::fs::write(from.join(file), bytes(seed as u64, 3000)).unwrap();
        set_times(&from.join(file), 1_000_000_000, 7);
    }
    std::fs::write(from.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("a", from.join("link")).unwrap();
    set_mode(&from.join("old/d"), 0o444);
    from
}

/// What stands there: older files under some of the names, and a file that no source has.
fn make_older(folder: &Path) -> PathBuf {
    let to = folder.join("to");
    std::fs::create_dir_all(to.join("old")).unwrap();
    for file in ["a", "old/d", "other"] {
        std::fs::write(to.join(file), "older").unwrap();
    }
    set_mode(&to.join("old"), 0o750);
    for folder in ["", "old"] {
        set_times(&to.join(folder), 900_000_000, 5);
    }
    to
}

/// A program that has its name is open for writing nowhere, so that it can be run while the copy goes on.
#[test]
fn programs_can_be_run_once_they_are_named() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for root in [&from, &to] {
        std::fs::create_dir(root).unwrap();
        std::fs::copy("/bin/true", root.join("program")).unwrap();
    }
    std::fs::write(from.join("z"), bytes(1, 3 << 20)).unwrap();
    set_times(&from.join("program"), 1_000_000_000, 0);
    let (source, sink) = early_pair(&from, &to, &id(1));
    let len = std::fs::metadata(from.join("program")).unwrap().len();
    assert_eq!(give_names(&source, &sink, Range::new(0, len)), 1);
    let ran = std::process::Command::new(to.join("program")).status();
    assert!(ran.unwrap().success());
    write(&source, &sink, Range::new(len, len + (3 << 20)));
    sink.commit().unwrap();
}

fn time(path: &Path) -> (i64, i64) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

/// A file has its name, with mode and time, when its last byte is safe; folders that stand keep their times; the rest follows at the
/// end, files in new folders among it.
#[test]
fn whole_files_are_named_before_the_end() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    let (source, sink) = early_pair(&from, &to, &id(1));
    assert!(sink.names_early());
    let is_there = |file: &str| {
        std::fs::read(to.join(file))
            .is_ok_and(|found| found == std::fs::read(from.join(file)).unwrap())
    };
    // All of `a`, some of `b`.
    assert_eq!(give_names(&source, &sink, Range::new(0, 4000)), 1);
    assert!(is_there("a") && !to.join("b").exists());
    assert_eq!(time(&to.join("a")), (1_000_000_000, 7));
    assert_eq!(time(&to), (900_000_000, 5));
    let end = source.layout().ranges().last().unwrap().end;
    assert_eq!(give_names(&source, &sink, Range::new(4000, end)), 3);
    assert!(is_there("b") && is_there("old/d") && is_there("old/e"));
    let mode = |file: &str| {
        std::fs::metadata(to.join(file))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!((mode("old/d"), mode("old")), (0o444, 0o750));
    assert_eq!(time(&to.join("old")), (900_000_000, 5));
    assert!(!to.join("new").exists() && !to.join("empty").exists() && !to.join("link").exists());
    sink.commit().unwrap();
    let landed = sink.landed();
    assert_eq!((landed.replaced_files, landed.added_files), (2, 5));
    assert!(is_there("new/c") && is_there("empty") && to.join("link").is_symlink());
    assert_eq!(
        names(&to),
        ["a", "b", "empty", "link", "new", "old", "other"]
    );
    for folder in ["", "old"] {
        assert_eq!(time(&to.join(folder)), (900_000_000, 5), "{folder}");
    }
    // They are copies by the rule of the next run.
    let (_, next) = early_pair(&from, &to, &id(2));
    assert_eq!(next.present().files, 7);
    next.discard();
}

/// Where DEST is new, is one file, or is to appear at once, nothing has its name before the end.
#[test]
fn what_is_new_is_named_at_the_end() {
    let (_keep, folder) = folder();
    let from = make_sources(&folder);
    let older = make_older(&folder);
    let (source, new) = early_pair(&from, &folder.join("new"), &id(1));
    assert!(!new.names_early());
    let end = source.layout().ranges().last().unwrap().end;
    assert_eq!(give_names(&source, &new, Range::new(0, end)), 0);
    assert!(!folder.join("new").exists());
    new.discard();
    let (_, single) = early_pair(&from.join("a"), &older.join("a"), &id(2));
    assert!(!single.names_early());
    single.discard();
    let (source, at_once) = update_pair(&from, &older, &id(3));
    assert!(!at_once.names_early());
    assert_eq!(give_names(&source, &at_once, Range::new(0, end)), 0);
    assert_eq!(std::fs::read(older.join("a")).unwrap(), b"older");
    at_once.discard();
}

/// A copy that is killed between names and end leaves whole files with their names: the next run finds them unchanged, takes over the
/// rest, and no record is of a file that was moved.
#[test]
fn a_killed_copy_is_gone_on_with() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    let (source, sink) = early_pair(&from, &to, &id(1));
    assert_eq!(give_names(&source, &sink, Range::new(0, 4000)), 1);
    // After the sync that covers its name nothing is recorded of it.
    assert_eq!(give_names(&source, &sink, Range::new(4000, 5000)), 0);
    drop(sink);
    let remains = ropewalk_store::remains(&to).unwrap();
    assert_eq!(
        (remains.len(), remains[0].files, remains[0].safe),
        (1, 1, 2000)
    );
    drop(remains);
    let (source, next) = early_pair(&from, &to, &id(2));
    let present = next.present();
    assert_eq!(present.unchanged, RangeSet::from(Range::new(0, 3000)));
    assert_eq!(present.adopted, RangeSet::from(Range::new(3000, 5000)));
    // Adopted bytes are safe, too.
    assert_eq!(give_names(&source, &next, Range::new(5000, 6000)), 1);
    let end = source.layout().ranges().last().unwrap().end;
    write(&source, &next, Range::new(6000, end));
    next.commit().unwrap();
    let files = |root: &Path| {
        let mut all = snapshot(root);
        all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
        all
    };
    std::fs::remove_file(to.join("other")).unwrap();
    assert!(files(&from) == files(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A file that was changed or removed at the destination after it had its name is reported at the end, by name.
#[test]
fn what_changes_after_it_was_named_is_told() {
    for change in ["removed", "another length", "written in place"] {
        let (_keep, folder) = folder();
        let (from, to) = (make_sources(&folder), make_older(&folder));
        let (source, sink) = early_pair(&from, &to, &id(1));
        let end = source.layout().ranges().last().unwrap().end;
        assert_eq!(give_names(&source, &sink, Range::new(0, end)), 4);
        match change {
            "removed" => std::fs::remove_file(to.join("b")).unwrap(),
            "another length" => std::fs::write(to.join("b"), "another").unwrap(),
            _ => {
                let file = std::fs::File::options().write(true).open(to.join("b"));
                std::io::Write::write_all(&mut file.unwrap(), b"another").unwrap();
            }
        }
        let error = sink.commit().expect_err(change);
        let StoreError::ChangedAtDestination { path } = &error else {
            panic!("{error}");
        };
        assert_eq!(path, &to.join("b"));
    }
}

/// A folder that takes the place of a file is left alone, and the end says so; a file or link that appears is replaced, as at the end.
#[test]
fn what_appears_meanwhile() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    let (source, sink) = early_pair(&from, &to, &id(1));
    std::fs::create_dir(to.join("b")).unwrap();
    std::os::unix::fs::symlink("a", to.join("old/e")).unwrap();
    let end = source.layout().ranges().last().unwrap().end;
    assert_eq!(give_names(&source, &sink, Range::new(0, end)), 3);
    assert_eq!(sink.landed().replaced_files, 3);
    assert!(!to.join("old/e").is_symlink());
    let error = sink.commit().unwrap_err();
    assert!(
        matches!(&error, StoreError::InTheWay { path, .. } if *path == to.join("b")),
        "{error}"
    );
    std::fs::remove_dir(to.join("b")).unwrap();
    sink.commit().unwrap();
    let landed = sink.landed();
    assert_eq!((landed.replaced_files, landed.added_files), (3, 4));
    assert_eq!(std::fs::read(to.join("b")).unwrap(), bytes(1, 3000));
}

/// All names of a file with several are given together, at the end.
#[test]
fn hard_links_are_named_together() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    std::fs::hard_link(from.join("a"), from.join("z")).unwrap();
    let keep = ropewalk_store::Keep {
        links: true,
        ..ropewalk_store::Keep::default()
    };
    let scan = Scan::read_keeping(&from, keep).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = TreeSink::update(&to, &parts, &id(1), early_wish()).unwrap();
    let end = source.layout().ranges().last().unwrap().end;
    assert_eq!(give_names(&source, &sink, Range::new(0, end)), 3);
    assert_eq!(std::fs::read(to.join("a")).unwrap(), b"older");
    sink.commit().unwrap();
    let inode = |file: &str| std::fs::metadata(to.join(file)).unwrap().ino();
    assert_eq!(inode("a"), inode("z"));
}

/// Of a copy that is not complete the files that had their names keep them, and count.
#[test]
fn an_incomplete_copy_counts_what_has_its_name() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    let (source, sink) = early_pair(&from, &to, &id(1));
    assert_eq!(give_names(&source, &sink, Range::new(0, 4000)), 1);
    let missing = source
        .layout()
        .ranges()
        .difference(&RangeSet::from(Range::new(0, 4000)));
    assert!(sink.commit_whole_files(&missing).unwrap());
    let landed = sink.landed();
    assert_eq!((landed.replaced_files, landed.added_files), (1, 2));
    assert_eq!(std::fs::read(to.join("a")).unwrap(), bytes(0, 3000));
    assert_eq!(std::fs::read(to.join("old/d")).unwrap(), b"older");
}

/// A copy that ends while its files get their names loses none of them, whichever comes first.
#[test]
fn the_end_of_a_copy_meets_names_that_are_given() {
    const FILES: usize = 60;
    for round in 0..30 {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        for file in 0..FILES {
            std::fs::write(from.join(format!("{file:03}")), bytes(file as u64, 100)).unwrap();
        }
        let (source, sink) = early_pair(&from, &to, &id(round));
        let all = source.layout().ranges().len_bytes();
        let most = Range::new(0, all - 100);
        write(&source, &sink, most);
        sink.make_ready(&RangeSet::from(most));
        sink.sync().unwrap();
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                sink.name_ready()
            });
            begin.wait();
            let missing = RangeSet::from(Range::new(all - 100, all));
            assert!(sink.commit_whole_files(&missing).unwrap(), "{round}");
        });
        assert_eq!(names(&to).len(), FILES - 1, "{round}");
        assert_eq!(sink.landed().added_files, FILES as u64 - 1);
    }
}

/// Other nodes read files while these get their names: what they ask for is there or not, makes no file, and fails no copy.
#[test]
fn files_are_read_while_they_get_their_names() {
    const FILES: u64 = 300;
    for round in 0..5 {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        // More than stay open.
        for file in 0..FILES {
            std::fs::write(from.join(format!("{file:03}")), bytes(file, 100)).unwrap();
        }
        let (source, sink) = early_pair(&from, &to, &id(round));
        let all = Range::new(0, source.layout().ranges().len_bytes());
        write(&source, &sink, all);
        sink.make_ready(&RangeSet::from(all));
        sink.sync().unwrap();
        let named = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let look = || {
                let is_last = named.load(std::sync::atomic::Ordering::Acquire);
                for file in 0..FILES {
                    let (mut found, mut right) = ([0; 100], [0; 100]);
                    if sink.look(file * 100, &mut found).is_ok() {
                        source.read_at(file * 100, &mut right).unwrap();
                        assert!(found == right, "{file}");
                    } else {
                        assert!(!is_last, "{file} is not there when all have their names");
                    }
                }
                is_last
            };
            scope.spawn(move || while !look() {});
            let given = sink.name_ready();
            named.store(true, std::sync::atomic::Ordering::Release);
            assert_eq!(given, FILES);
        });
        sink.commit().unwrap();
        assert_eq!(names(&to).len() as u64, FILES);
    }
}

/// Files that stay though they are older or newer are not touched, and the copy is complete.
#[test]
fn files_that_stay_are_left_alone() {
    let (_keep, folder) = folder();
    let (from, to) = (make_sources(&folder), make_older(&folder));
    let scan = Scan::read(&from).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let wish = Wish {
        stays: Stays::Existing,
        ..early_wish()
    };
    let sink = TreeSink::update(&to, &parts, &id(1), wish).unwrap();
    let wanted = source
        .layout()
        .ranges()
        .difference(&sink.present().unchanged);
    wanted.iter().for_each(|range| write(&source, &sink, range));
    sink.make_ready(&wanted);
    sink.sync().unwrap();
    assert_eq!(sink.name_ready(), 2);
    sink.commit().unwrap();
    assert_eq!(std::fs::read(to.join("a")).unwrap(), b"older");
    assert_eq!(
        (sink.landed().passed_files, sink.landed().added_files),
        (2, 5)
    );
}

/// Without the superuser's rights: files that are read-only, or that their owner may not read, and folders that are closed.
#[test]
fn closed_files_and_folders() {
    let (_keep, folder) = folder();
    set_mode(&folder, 0o777);
    sys::as_nobody(|| {
        let (from, to) = (make_sources(&folder), make_older(&folder));
        set_mode(&from.join("b"), 0o200);
        set_mode(&to.join("old"), 0o555);
        let scan = {
            // What is not readable cannot be sent: the mode is that of the list.
            set_mode(&from.join("b"), 0o600);
            let mut scan = Scan::read(&from).unwrap();
            let manifest = std::sync::Arc::make_mut(&mut scan.manifest);
            let b = manifest.entries.iter_mut().find(|entry| entry.path == b"b");
            b.unwrap().mode = 0o200;
            scan
        };
        let source = FileSource::open_tree(&from, &scan, 0).unwrap();
        let parts = [Part::whole(0, scan.manifest)];
        let sink = TreeSink::update(&to, &parts, &id(1), early_wish()).unwrap();
        let end = source.layout().ranges().last().unwrap().end;
        assert_eq!(give_names(&source, &sink, Range::new(0, end)), 3);
        let mode = |file: &str| {
            let metadata = std::fs::metadata(to.join(file)).unwrap();
            metadata.permissions().mode() & 0o7777
        };
        assert_eq!((mode("old"), mode("old/d")), (0o555, 0o444));
        sink.commit().unwrap();
        assert_eq!((mode("old"), mode("b")), (0o555, 0o200));
    });
}

/// A tree of 60 % of its disk is refreshed in place where files get their names one after the other, and is refused before the start
/// where all are named at the end. A write that finds no space may be made again when names have freed some.
#[test]
fn a_refresh_needs_space_for_what_is_under_way() {
    const FILES: u64 = 6;
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    for file in 0..FILES {
        std::fs::write(from.join(format!("{file}")), bytes(file, 2 << 20)).unwrap();
    }
    sys::on_small_disk(20 << 20, |disk| {
        let to = disk.join("to");
        std::fs::create_dir(&to).unwrap();
        for file in 0..FILES {
            std::fs::write(to.join(format!("{file}")), bytes(100 + file, 2 << 20)).unwrap();
        }
        let scan = Scan::read(&from).unwrap();
        let source = FileSource::open_tree(&from, &scan, 0).unwrap();
        let parts = [Part::whole(0, scan.manifest)];
        let error = TreeSink::update(&to, &parts, &id(1), Adopt::All).unwrap_err();
        let StoreError::DiskFull { missing, .. } = &error else {
            panic!("{error}");
        };
        assert!((4 << 20..5 << 20).contains(missing), "{error}");
        for sink in [
            TreeSink::update(&to, &parts, &id(2), early_wish()).unwrap(),
            TreeSink::replace(&to, &parts, &id(3)).unwrap(),
        ] {
            let mut waits = 0;
            for unit in source.layout().units(Range::new(0, (FILES * 2) << 20)) {
                let mut buffer = vec![0; unit.len() as usize];
                source.read_at(unit.start, &mut buffer).unwrap();
                while let Err(error) = sink.write_at(unit.start, &buffer) {
                    assert!(error.is_full_disk(), "{error}");
                    sink.make_ready(&RangeSet::from(Range::new(0, unit.start)));
                    sink.sync().unwrap();
                    assert!(sink.name_ready() > 0);
                    waits += 1;
                }
            }
            assert!(waits > 0);
            sink.commit().unwrap();
            assert_eq!(snapshot(&from)[1..], snapshot(&to)[1..]);
            assert_eq!(sink.landed().replaced_files, FILES);
        }
        assert_eq!(names(disk), ["to"]);
    });
}
