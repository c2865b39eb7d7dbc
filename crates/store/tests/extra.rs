//! What no source has is removed as rsync removes it, and nothing else.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_model::Range;
use ropewalk_store::{
    Adopt, Filter, Permit, Removed, Sink as _, Source as _, StoreError, TreeSink,
};

mod support;
use support::mirror::{clone, contents, filter, mirror, rsync, scan};
use support::*;

fn copy(from: &[&Path], to: &Path, rules: &[&str]) -> (Removed, Vec<PathBuf>) {
    mirror(from, to, rules).unwrap()
}

/// Of each name it is known whether it is a folder, a link or a file, so that trees differ in what they have only.
fn grow(root: &Path, dice: &mut Dice, depth: u32) {
    std::fs::create_dir_all(root).unwrap();
    for name in ["a", "b.o", "c", "x", "l"] {
        let path = root.join(name);
        match dice.below(3) {
            0 => {}
            _ if name == "l" => std::os::unix::fs::symlink("../c", path).unwrap(),
            _ => {
                std::fs::write(&path, vec![b'0' + dice.below(3) as u8; 3]).unwrap();
                set_times(&path, 1000 + dice.below(1000) as i64, 0);
            }
        }
    }
    for name in ["d", "e.d", "sub", "d-"] {
        if depth > 0 && dice.below(2) == 0 {
            grow(&root.join(name), dice, depth - 1);
        }
    }
}

/// Random trees, with and without filters: the destination is what rsync makes of it, and what a preview has foreseen.
#[test]
fn removals_are_those_of_rsync() {
    let rules: &[&[&str]] = &[
        &[],
        &["-*.o"],
        &["-/d/"],
        &["-sub/"],
        &["+*/", "+*.o", "-*"],
        &["-/sub/d/a", "-x"],
        &["+/d/***", "-/*"],
        &["-d/"],
        &["+/d/a", "-a"],
    ];
    let mut dice = Dice(7);
    for (at, rules) in (0..90).zip(rules.iter().cycle()) {
        let (_keep, folder) = folder();
        let [from, ours, theirs] = ["from", "ours", "theirs"].map(|name| folder.join(name));
        grow(&from, &mut dice, 3);
        // One that has nothing is refused.
        std::fs::write(from.join("c"), "one at least").unwrap();
        grow(&ours, &mut dice, 3);
        clone(&ours, &theirs);
        copy(&[&from], &ours, rules);
        rsync(&[&from], &theirs, rules);
        assert_eq!(contents(&ours), contents(&theirs), "{at} {rules:?}");
    }
}

/// Of several things side by side the folders are looked into, not the one that holds them.
#[test]
fn several_sources_lose_what_is_extra_in_each() {
    let mut dice = Dice(11);
    for rules in [&[][..], &["-*.o"], &["-/one/a"], &["-/sub"]] {
        for _ in 0..6 {
            let (_keep, folder) = folder();
            let sources = ["one", "two", "file"].map(|name| folder.join(name));
            for source in &sources[..2] {
                grow(source, &mut dice, 2);
                std::fs::write(source.join("c"), "one at least").unwrap();
            }
            std::fs::write(&sources[2], "a file").unwrap();
            let [ours, theirs] = ["ours", "theirs"].map(|name| folder.join(name));
            for name in ["one", "two", "three"] {
                grow(&ours.join(name), &mut dice, 2);
            }
            std::fs::write(ours.join("other"), "stays").unwrap();
            clone(&ours, &theirs);
            let from: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
            copy(&from, &ours, rules);
            rsync(&from, &theirs, rules);
            let made = contents(&ours);
            assert_eq!(made, contents(&theirs), "{rules:?}");
            assert!(made.contains_key(Path::new("other")));
        }
    }
}

/// `from` with a file, and `to` with the same one and more.
fn pair(folder: &Path) -> (PathBuf, PathBuf) {
    let (from, to) = (folder.join("from"), folder.join("to"));
    for root in [&from, &to] {
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::write(root.join("d/f"), "f").unwrap();
    }
    (from, to)
}

/// Temporary names of transfers and their journals, what is neither file, link nor folder, and folders with such things stay. Links are
/// removed, not what they lead to.
#[test]
fn what_is_no_part_of_a_copy_stays() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let outside = folder.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "stays").unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let temporary = format!(".to.ropewalk-{id}-2");
    let journal = format!(".x.ropewalk-{id}.journal");
    for place in [&to, &to.join("d"), &to.join("old/deep")] {
        std::fs::create_dir_all(place).unwrap();
        std::fs::create_dir(place.join(&temporary)).unwrap();
        std::fs::write(place.join(&temporary).join("part"), "of a file").unwrap();
        std::fs::write(place.join(&journal), "journal").unwrap();
        std::fs::write(place.join("gone"), "gone").unwrap();
        std::os::unix::fs::symlink(&outside, place.join("link")).unwrap();
    }
    let pipe = to.join("d/pipe");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir_all(to.join("new/deeper")).unwrap();
    let (removed, _) = copy(&[&from], &to, &[]);
    assert_eq!((removed.files, removed.folders), (6, 2));
    assert_eq!(removed.failed, []);
    for place in ["", "d", "old/deep"] {
        let place = to.join(place);
        assert!(place.join(&temporary).join("part").exists());
        assert!(place.join(&journal).exists());
        assert!(!place.join("gone").exists());
        assert!(place.join("link").symlink_metadata().is_err());
    }
    assert!(pipe.symlink_metadata().is_ok());
    assert!(!to.join("new").exists());
    assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"stays");
}

/// A folder keeps its mode and time, also a read-only one; one that is removed may be closed.
#[test]
fn folders_keep_mode_and_time() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    std::fs::write(to.join("d/gone"), "gone").unwrap();
    std::fs::create_dir(to.join("d/closed")).unwrap();
    std::fs::write(to.join("d/closed/gone"), "gone").unwrap();
    set_mode(&to.join("d/closed"), 0o000);
    set_mode(&to.join("d"), 0o555);
    set_times(&to.join("d"), 1000, 7);
    set_times(&to, 2000, 8);
    let is_root = rustix::process::geteuid().is_root();
    let all = [
        "",
        "to",
        "to/d",
        "to/d/f",
        "to/d/gone",
        "to/d/closed",
        "to/d/closed/gone",
    ];
    for path in all.iter().filter(|_| is_root) {
        std::os::unix::fs::lchown(folder.join(path), Some(65534), Some(65534)).unwrap();
    }
    support::sys::as_nobody(|| {
        let (source, part) = scan(&[&from], &Filter::default());
        let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
        sink.remove_extra(Filter::default());
        for range in sink
            .layout()
            .ranges()
            .difference(&sink.present().all())
            .iter()
        {
            write(&source, &sink, range);
        }
        sink.commit().unwrap();
        let removed = sink.landed().removed;
        assert_eq!(
            (removed.files, removed.folders),
            (2, 1),
            "{:?}",
            removed.failed
        );
    });
    let seen = |path: &Path| {
        let data = path.metadata().unwrap();
        (data.mode() & 0o777, data.mtime(), data.mtime_nsec())
    };
    assert_eq!(seen(&to.join("d")), (0o555, 1000, 7));
    assert_eq!((seen(&to).1, seen(&to).2), (2000, 8));
    set_mode(&to.join("d"), 0o755);
}

/// What is mounted below the destination is looked into where the sources have the folder, and left alone where they have not.
#[test]
fn mounted_folders_are_not_emptied() {
    support::sys::alone(|| {
        let (_keep, folder) = folder();
        let (from, to) = pair(&folder);
        std::fs::create_dir_all(to.join("old/mounted")).unwrap();
        for path in ["old/mounted", "d"] {
            support::sys::mount_small(&to.join(path), 1 << 20);
            std::fs::write(to.join(path).join("in it"), "mounted").unwrap();
        }
        std::fs::write(to.join("old/gone"), "gone").unwrap();
        let removed = remove_only(&from, &to);
        assert_eq!((removed.files, removed.folders), (2, 0));
        assert_eq!(removed.failed.len(), 1);
        let (path, reason) = &removed.failed[0];
        assert_eq!(path, b"old/mounted");
        assert!(reason.contains("mounted"), "{reason}");
        assert!(to.join("old/mounted/in it").exists());
        assert!(!to.join("d/in it").exists());
        for path in ["old/mounted", "d"] {
            support::sys::unmount_small(&to.join(path));
        }
    });
}

/// What a commit removes where the tree has no file.
fn remove_only(from: &Path, to: &Path) -> Removed {
    std::fs::remove_file(from.join("d/f")).unwrap();
    let (_, part) = scan(&[from], &Filter::default());
    let sink = TreeSink::update(to, &[part], &id(1), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    sink.commit().unwrap();
    sink.landed().removed
}

/// A source with nothing in it is refused where something would be removed for it: the whole tree, one of several things, or one of
/// several parts. What is excluded there is no reason.
#[test]
fn an_empty_source_removes_nothing() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let empty = folder.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let check = |from: &[&Path], to: &Path, rules: &[&str]| {
        let filter = filter(rules);
        let parts = [scan(from, &filter).1];
        TreeSink::check_extra(to, &parts, &filter, true)
    };
    let refused = |checked| matches!(checked, Err(StoreError::EmptySource { .. }));
    assert!(refused(check(&[&empty], &to, &[])));
    assert!(refused(check(&[&empty], &to, &["-/x"])));
    assert!(!refused(check(&[&empty], &to, &["-/d"])));
    assert!(!refused(check(&[&empty], &empty, &[])));
    assert!(!refused(check(&[&empty], &folder.join("none"), &[])));
    assert!(!refused(check(&[&from], &to, &[])));
    assert!(!refused(check(&[&from, &empty], &to, &[])));
    std::fs::create_dir(to.join("empty")).unwrap();
    assert!(!refused(check(&[&from, &empty], &to, &[])));
    std::fs::write(to.join("empty/f"), "f").unwrap();
    assert!(refused(check(&[&from, &empty], &to, &[])));
    let parts = [&from, &empty].map(|path| scan(&[path], &Filter::default()).1);
    assert!(refused(TreeSink::check_extra(
        &to,
        &parts,
        &Filter::default(),
        true,
    )));
}

/// A destination that has none of the names that the source has is refused, unless it is known that it is the source's mirror: the copy
/// may have been meant to go into it. What is excluded there is no reason.
#[test]
fn a_destination_of_something_else_is_not_emptied() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let check = |to: &Path, rules: &[&str], all: bool| {
        let filter = filter(rules);
        let parts = [scan(&[&from], &filter).1];
        TreeSink::check_extra(to, &parts, &filter, all)
    };
    let (other, empty) = (folder.join("other"), folder.join("empty"));
    std::fs::create_dir_all(other.join("precious")).unwrap();
    std::fs::create_dir(&empty).unwrap();
    let error = check(&other, &[], false).unwrap_err();
    assert!(error.to_string().contains("precious"), "{error}");
    assert_eq!(check(&other, &[], true), Ok(()));
    assert_eq!(check(&other, &["-/precious"], false), Ok(()));
    for to in [&to, &empty, &folder.join("none")] {
        assert_eq!(check(to, &[], false), Ok(()), "{to:?}");
    }
    // Several things go side by side into a folder.
    let bundle = [scan(&[&from, &empty], &Filter::default()).1];
    let checked = TreeSink::check_extra(&other, &bundle, &Filter::default(), false);
    assert_eq!(checked, Ok(()));
}

/// A copy that lacks files, or is not ended well, removes nothing.
#[test]
fn an_incomplete_copy_removes_nothing() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    std::fs::write(to.join("extra"), "extra").unwrap();
    for name in ["g", "h"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    let (source, part) = scan(&[&from], &Filter::default());
    let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    let all = sink.layout().ranges().difference(&sink.present().all());
    let first = all.first().unwrap();
    let mut buffer = vec![0; 1];
    source.read_at(first.start, &mut buffer).unwrap();
    sink.write_at(first.start, &buffer).unwrap();
    let rest = ropewalk_model::Range::new(first.start + 1, u64::MAX);
    let missing = all.clipped(rest);
    assert!(sink.commit_whole_files(&missing).unwrap());
    assert_eq!(sink.landed().removed, Removed::default());
    assert!(to.join("extra").exists());
}

/// A source of the copy that lies in a folder that is to go stays with all in it, also where a bind mount or another name would hide it
/// from a comparison of paths, and is named; what is beside it goes.
#[test]
fn sources_are_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::create_dir_all(to.join("old/source/sub")).unwrap();
    std::fs::write(from.join("f"), "f").unwrap();
    std::fs::write(to.join("old/source/sub/precious"), "p").unwrap();
    std::fs::write(to.join("old/gone"), "g").unwrap();
    std::fs::write(to.join("list"), "l").unwrap();
    let other_name = dir.path().join("other");
    std::os::unix::fs::symlink(to.join("old/source"), &other_name).unwrap();
    let filter = Filter::default();
    let (source, part) = scan(&[&from], &filter);
    let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
    sink.keep_sources(vec![other_name, to.join("list")]);
    sink.remove_extra(filter);
    pump(sink.layout(), &source, &sink);
    sink.commit().unwrap();
    let removed = sink.landed().removed;
    let failed: Vec<&[u8]> = removed.failed.iter().map(|(path, _)| &path[..]).collect();
    assert!(
        failed.contains(&&b"old/source"[..]) && failed.contains(&&b"list"[..]),
        "{failed:?}"
    );
    assert_eq!((removed.files, removed.folders), (1, 0));
    assert!(to.join("old/source/sub/precious").exists() && to.join("list").exists());
    assert!(!to.join("old/gone").exists());
}

/// A folder that has the number of one that another node sends, and did not change two minutes or more before, stays: two nodes may see one file system. One that
/// changed before that goes.
#[test]
fn what_other_nodes_send_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::write(from.join("f"), "f").unwrap();
    for name in ["old/sent", "older", "other"] {
        std::fs::create_dir_all(to.join(name)).unwrap();
        std::fs::write(to.join(name).join("precious"), "p").unwrap();
    }
    let elsewhere = |name: &str, later| {
        let of = std::fs::metadata(to.join(name)).unwrap();
        (of.ino(), of.ctime() + later)
    };
    let filter = Filter::default();
    let (source, part) = scan(&[&from], &filter);
    let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
    // Two nodes send folders of one number.
    sink.keep_elsewhere(
        vec![
            elsewhere("old/sent", 60),
            elsewhere("old/sent", 600),
            elsewhere("older", 600),
        ],
        None,
    );
    sink.remove_extra(filter);
    pump(sink.layout(), &source, &sink);
    sink.commit().unwrap();
    let removed = sink.landed().removed;
    let failed: Vec<&[u8]> = removed.failed.iter().map(|(path, _)| &path[..]).collect();
    assert_eq!(failed, [&b"old/sent"[..]]);
    assert!(to.join("old/sent/precious").exists());
    assert!(!to.join("older").exists() && !to.join("other").exists());
}

/// What is extra in a folder of the copy that is a source, or below one, stays and is named; beside it, it goes. What a filter excludes is not
/// named, nor is a folder with nothing else in it.
#[test]
fn a_source_that_the_copy_has_as_a_folder_is_not_emptied() {
    for (elsewhere, stays) in [(None, true), (Some(true), true), (Some(false), false)] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for folder in ["proj/sub", "next"] {
            std::fs::create_dir_all(from.join(folder)).unwrap();
            std::fs::create_dir_all(to.join(folder)).unwrap();
            std::fs::write(to.join(folder).join("only here"), "p").unwrap();
        }
        std::fs::write(from.join("f"), "f").unwrap();
        for folder in ["proj/only/deep", "proj/logs"] {
            std::fs::create_dir_all(to.join(folder)).unwrap();
        }
        std::fs::write(to.join("proj/only/deep/precious"), "p").unwrap();
        std::fs::write(to.join("proj/logs/excluded"), "p").unwrap();
        std::fs::write(to.join("proj/excluded"), "p").unwrap();
        let of = std::fs::metadata(to.join("proj")).unwrap();
        let filter = filter(&["-excluded"]);
        let (source, part) = scan(&[&from], &filter);
        let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
        match elsewhere {
            Some(is_met) => {
                let met = is_met.then(|| b"proj".to_vec()).into_iter().collect();
                sink.keep_elsewhere(vec![(of.ino(), of.ctime())], Some(met));
            }
            None => sink.keep_sources(vec![to.join("proj")]),
        }
        sink.remove_extra(filter);
        pump(sink.layout(), &source, &sink);
        sink.commit().unwrap();
        let removed = sink.landed().removed;
        let failed: Vec<&[u8]> = removed.failed.iter().map(|(path, _)| &path[..]).collect();
        let (named, gone): (&[&[u8]], _) = match stays {
            true => (&[b"proj/only", b"proj/sub/only here"], (1, 0)),
            false => (&[], (3, 2)),
        };
        assert_eq!(failed, named, "{elsewhere:?}");
        assert_eq!((removed.files, removed.folders), gone);
        for kept in ["proj/only/deep/precious", "proj/sub/only here"] {
            assert_eq!(to.join(kept).exists(), stays, "{kept}");
        }
        assert!(to.join("proj/excluded").exists() && !to.join("next/only here").exists());
    }
}

/// Folders of the copy with the number of one that another node sends count as met where both changed at the same time, or one of them not
/// long ago; DEST itself never does.
#[test]
fn folders_met_are_told_by_number_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for root in [&from, &to] {
        std::fs::create_dir_all(root.join("proj/sub")).unwrap();
        std::fs::create_dir_all(root.join("next")).unwrap();
    }
    let (_, part) = scan(&[&from], &Filter::default());
    let of = |name: &str| {
        let of = std::fs::metadata(to.join(name)).unwrap();
        (of.ino(), of.ctime())
    };
    let met = |folders: &[(u64, i64)]| {
        let met = TreeSink::folders_met(&to, std::slice::from_ref(&part), folders);
        let mut met: Vec<Vec<u8>> = met.into_iter().collect();
        met.sort();
        met
    };
    let (proj, now) = of("proj");
    assert_eq!(met(&[(proj, now)]), [b"proj"]);
    // It has just changed here, whatever another node knows yet.
    assert_eq!(met(&[(proj, 1)]), [b"proj"]);
    let (sub, next) = (of("proj/sub"), of("next"));
    assert_eq!(
        met(&[sub, (next.0, 5), (next.0, next.1)]),
        [&b"next"[..], b"proj/sub"]
    );
    assert_eq!(met(&[of("")]), Vec::<Vec<u8>>::new());
    assert_eq!(met(&[]), Vec::<Vec<u8>>::new());
    let gone = TreeSink::folders_met(&dir.path().join("none"), &[part], &[sub]);
    assert!(gone.is_empty());
}

/// While a copy removes what is extra no other transfer begins to write there: it would lose what it puts into these folders.
#[test]
fn the_next_copy_waits_until_all_is_removed() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("file"), "bytes").unwrap();
    std::fs::create_dir_all(to.join("old")).unwrap();
    for number in 0..20_000 {
        std::fs::write(to.join("old").join(number.to_string()), "").unwrap();
    }
    let (source, part) = scan(&[&from], &Filter::default());
    let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    write(&source, &sink, Range::new(0, 5));
    let mut seen = 0;
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| sink.commit().unwrap());
        while !ending.is_finished() {
            let before = sink.removing();
            let free = ropewalk_store::await_endings(&to, &id(2), Duration::ZERO, &|| false);
            if before.is_some() && sink.removing().is_some() {
                assert!(
                    matches!(free, Err(StoreError::StillEnding { .. })),
                    "{free:?}"
                );
                seen += 1;
            }
        }
    });
    assert!(seen > 0, "the removal was too fast to be seen");
    assert_eq!(names(&to), ["file"]);
    ropewalk_store::await_endings(&to, &id(2), Duration::ZERO, &|| false).unwrap();
}

/// A removal whose node may change nothing any more stops where it is, and names what stays.
#[test]
fn a_removal_stops_without_a_permit() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in [&from, &to] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("both"), "x").unwrap();
    }
    for name in ["a", "b", "c", "d"] {
        std::fs::write(to.join(name), "extra").unwrap();
    }
    let (source, part) = scan(&[&from], &Filter::default());
    let sink = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    let asked = std::sync::atomic::AtomicU32::new(0);
    sink.ask_before_removing(Permit::of(move || {
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2
    }));
    let absent = sink.layout().ranges();
    for range in absent.difference(&sink.present().all()).iter() {
        write(&source, &sink, range);
    }
    sink.commit().unwrap();
    let removed = sink.landed().removed;
    assert_eq!((removed.files, removed.failed.len()), (2, 2));
    assert!(removed.failed[0].1.contains("another node"));
    assert_eq!(names(&to).len(), 3);
}
