//! Newer files, or all that are there, stay as they stay with rsync.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ropewalk_model::RangeSet;
use ropewalk_store::{
    Adopt, FileSource, Part, Present, Scan, Sink as _, Source as _, Stays, TreeSink, Wish,
};

mod support;
use support::*;

fn wish(stays: Stays) -> Wish<'static> {
    Wish {
        stays,
        ..Wish::from(Adopt::All)
    }
}

fn opened(from: &Path) -> (FileSource, [Part; 1]) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    (source, [Part::whole(0, scan.manifest)])
}

fn fill(source: &FileSource, sink: &TreeSink, there: &RangeSet) {
    for range in sink.layout().ranges().difference(there).iter() {
        let mut buffer = vec![0; range.len() as usize];
        source.read_at(range.start, &mut buffer).unwrap();
        sink.write_at(range.start, &buffer).unwrap();
    }
}

/// What was there, and how many files stayed though they are not the same.
fn copy(from: &Path, to: &Path, stays: Stays) -> (Present, u64) {
    let (source, parts) = opened(from);
    let preview = TreeSink::preview(to, &parts, Some(&wish(stays)), None, false).unwrap();
    let sink = TreeSink::update(to, &parts, ID, wish(stays)).unwrap();
    let present = sink.present();
    assert_eq!(preview.present, present);
    fill(&source, &sink, &present.all());
    sink.commit().unwrap();
    (present, sink.landed().passed_files)
}

/// A copy that two nodes write, of which the second one gives names.
fn copy_shared(from: &Path, to: &Path, stays: Stays) {
    let (source, parts) = opened(from);
    let first = TreeSink::lead(to, &parts, &id(1), 0, wish(stays)).unwrap();
    let there = first.present();
    let second = TreeSink::share(
        to,
        &parts,
        &id(1),
        1,
        (&there.all(), &there.refused),
        stays,
        ropewalk_store::Check::Time,
    )
    .unwrap();
    fill(&source, &second, &there.all());
    second.sync().unwrap();
    second.commit().unwrap();
}

fn rsync(from: &Path, to: &Path, stays: Stays) {
    let option = match stays {
        Stays::Same => "-t",
        Stays::Newer => "-u",
        Stays::Existing => "--ignore-existing",
    };
    let mut command = Command::new("rsync");
    command
        .args(["-a", option])
        .arg(format!("{}/", from.display()));
    assert!(command.arg(to).status().unwrap().success());
}

/// Files and links below a folder: contents or targets, modes and times of files.
fn contents(root: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32, i64)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let data = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if data.is_dir() {
                pending.push(path);
            } else if data.is_symlink() {
                let target = std::fs::read_link(&path).unwrap().into_os_string();
                found.insert(name, (target.into_encoded_bytes(), 0, 0));
            } else {
                let seen = (
                    std::fs::read(&path).unwrap(),
                    data.mode() & 0o777,
                    data.mtime(),
                );
                found.insert(name, seen);
            }
        }
    }
    found
}

fn grow(root: &Path, dice: &mut Dice, depth: u32) {
    std::fs::create_dir_all(root).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        let path = root.join(name);
        match dice.below(5) {
            0 => {}
            1 => {
                let target = ["x", "y"][dice.below(2) as usize];
                std::os::unix::fs::symlink(target, path).unwrap();
            }
            _ => {
                let byte = b'0' + dice.below(10) as u8;
                std::fs::write(&path, vec![byte; dice.below(3) as usize]).unwrap();
                set_mode(&path, [0o600, 0o640, 0o755][dice.below(3) as usize]);
                // rsync compares seconds.
                set_times(&path, 1000 + dice.below(3) as i64, 7);
            }
        }
    }
    for name in ["f", "g"] {
        if depth > 0 && dice.below(3) > 0 {
            grow(&root.join(name), dice, depth - 1);
        }
    }
}

/// Random trees, to a destination of one node and to a shared one.
#[test]
fn what_stays_is_what_stays_with_rsync() {
    let mut dice = Dice(3);
    for at in 0..60 {
        let (_keep, folder) = folder();
        let [from, ours, shared, theirs] =
            ["from", "ours", "shared", "theirs"].map(|name| folder.join(name));
        grow(&from, &mut dice, 2);
        grow(&ours, &mut dice, 2);
        for copy in [&shared, &theirs] {
            let ran = Command::new("cp").arg("-a").args([&ours, copy]).status();
            assert!(ran.unwrap().success());
        }
        let stays = [Stays::Newer, Stays::Existing, Stays::Same][at % 3];
        copy(&from, &ours, stays);
        copy_shared(&from, &shared, stays);
        rsync(&from, &theirs, stays);
        assert_eq!(contents(&ours), contents(&theirs), "{at} {stays:?}");
        assert_eq!(
            contents(&shared),
            contents(&theirs),
            "{at} {stays:?}, shared"
        );
        assert_eq!(names(&folder), ["from", "ours", "shared", "theirs"]);
    }
}

/// A copy of one file; a folder where the source has a file; and what is counted.
#[test]
fn single_files_and_folders_stay() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, "source").unwrap();
    std::fs::write(&to, "there").unwrap();
    set_times(&from, 1000, 0);
    set_times(&to, 1001, 0);
    for stays in [Stays::Newer, Stays::Existing] {
        let (present, passed) = copy(&from, &to, stays);
        assert_eq!((present.files, present.passed_files, passed), (0, 1, 1));
        assert_eq!(present.passed_bytes, 6);
        assert_eq!(std::fs::read(&to).unwrap(), b"there");
    }
    set_times(&to, 1000, 999);
    copy(&from, &to, Stays::Newer);
    assert_eq!(std::fs::read(&to).unwrap(), b"source");

    let (from, to) = (folder.join("tree"), folder.join("copy"));
    std::fs::create_dir_all(to.join("f")).unwrap();
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("f"), "a file").unwrap();
    std::fs::write(from.join("g"), "new").unwrap();
    assert_eq!(copy(&from, &to, Stays::Existing).1, 1);
    assert!(to.join("f").is_dir() && to.join("g").exists());
}

/// A file that stays and vanishes meanwhile makes the copy fail: it would lack it.
#[test]
fn a_file_that_stays_is_there_at_the_end() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for root in [&from, &to] {
        std::fs::create_dir(root).unwrap();
        std::fs::write(root.join("f"), "f").unwrap();
    }
    let (_, parts) = opened(&from);
    let sink = TreeSink::update(&to, &parts, ID, wish(Stays::Existing)).unwrap();
    std::fs::remove_file(to.join("f")).unwrap();
    let error = sink.commit().unwrap_err();
    assert!(error.to_string().contains("\"f\"") || error.path() == Some(&to.join("f")));
    sink.discard();
}

/// What another program writes while the copy runs stays as well, whether its file would get its name before the commit or with it.
#[test]
fn what_is_written_meanwhile_stays() {
    for (stays, is_early) in [
        (Stays::Newer, false),
        (Stays::Newer, true),
        (Stays::Existing, false),
        (Stays::Existing, true),
    ] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        for root in [&from, &to] {
            std::fs::create_dir(root).unwrap();
        }
        for name in ["appears", "is newer"] {
            std::fs::write(from.join(name), "source").unwrap();
            set_times(&from.join(name), 1000, 0);
        }
        let there = to.join("is newer");
        if stays == Stays::Newer {
            std::fs::write(&there, "old").unwrap();
            set_times(&there, 900, 0);
        }
        let (source, parts) = opened(&from);
        let wish = Wish {
            names_early: is_early,
            ..wish(stays)
        };
        let sink = TreeSink::update(&to, &parts, ID, wish).unwrap();
        assert_eq!(sink.names_early(), is_early);
        fill(&source, &sink, &RangeSet::new());
        let names: &[&str] = match stays {
            Stays::Existing => &["appears", "is newer"],
            _ => &["is newer"],
        };
        for name in names {
            std::fs::write(to.join(name), "written meanwhile").unwrap();
        }
        let all = sink.layout().ranges();
        sink.make_ready(&all);
        sink.sync().unwrap();
        sink.record(&all, &[]);
        sink.name_ready();
        sink.commit().unwrap();
        for name in names {
            let found = std::fs::read(to.join(name)).unwrap();
            assert_eq!(found, b"written meanwhile", "{stays:?} {is_early} {name}");
        }
        let landed = sink.landed();
        assert_eq!(landed.passed_files, names.len() as u64);
        assert_eq!(
            landed.added_files + landed.replaced_files,
            2 - names.len() as u64
        );
        assert_eq!(support::names(&to), ["appears", "is newer"]);
    }
}

/// The same of a copy of one file.
#[test]
fn a_file_that_is_written_meanwhile_stays() {
    for stays in [Stays::Newer, Stays::Existing] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, "source").unwrap();
        set_times(&from, 1000, 0);
        let (source, parts) = opened(&from);
        let sink = TreeSink::update(&to, &parts, ID, wish(stays)).unwrap();
        fill(&source, &sink, &RangeSet::new());
        std::fs::write(&to, "written meanwhile").unwrap();
        sink.commit().unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"written meanwhile");
        assert_eq!(sink.landed().passed_files, 1);
        assert_eq!(support::names(&folder), ["from", "to"]);
    }
}
