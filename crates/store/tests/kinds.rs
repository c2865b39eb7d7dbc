//! What is of another kind than an entry of its name makes way for it where what no source has is removed, and nowhere else.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use ropewalk_model::RangeSet;
use ropewalk_store::{
    Adopt, Dest, FileSource, Filter, Part, Sink as _, Stays, StoreError, TreeSink, Wish,
};

mod support;
use support::mirror::{clone, contents, mirror, rsync, scan};
use support::*;

/// Any name may be a folder, a link or a file.
fn grow(root: &Path, dice: &mut Dice, depth: u32) {
    std::fs::create_dir_all(root).unwrap();
    for name in ["a", "b.o", "c", "d", "e"] {
        let path = root.join(name);
        match dice.below(if depth > 0 { 6 } else { 4 }) {
            0 => {}
            1 => symlink(["../c", "d"][dice.below(2) as usize], path).unwrap(),
            2 => std::fs::write(path, "").unwrap(),
            3 => {
                std::fs::write(&path, vec![b'0' + dice.below(3) as u8; 3]).unwrap();
                set_times(&path, 1000 + dice.below(1000) as i64, 0);
            }
            _ => grow(&path, dice, depth - 1),
        }
    }
}

/// Random trees: the destination is what rsync makes of it, and what a preview has foreseen. Where something excluded is in a folder that
/// is a file in the source, rsync leaves out this file; here nothing is copied.
#[test]
fn mirrors_are_those_of_rsync() {
    let rules: &[&[&str]] = &[&[], &[], &["-*.o"], &["-/d/"], &["-/e"]];
    let (mut dice, mut refused) = (Dice(3), 0);
    for (at, rules) in (0..120).zip(rules.iter().cycle()) {
        let (_keep, folder) = folder();
        let [from, ours, theirs] = ["from", "ours", "theirs"].map(|name| folder.join(name));
        grow(&from, &mut dice, 3);
        std::fs::write(from.join("one"), "one at least").unwrap();
        grow(&ours, &mut dice, 3);
        clone(&ours, &theirs);
        if let Err(error) = mirror(&[&from], &ours, rules) {
            let text = error.to_string();
            assert!(text.ends_with("stays: it is excluded"), "{text}");
            assert!(!rules.is_empty());
            assert_eq!(contents(&ours), contents(&theirs), "{at} {rules:?}");
            refused += 1;
            continue;
        }
        rsync(&[&from], &theirs, rules);
        assert_eq!(contents(&ours), contents(&theirs), "{at} {rules:?}");
    }
    assert!((1..40).contains(&refused), "{refused}");
}

/// `from` with a folder `d`, a file `f` and a link `l`, and `to` with things of other kinds there.
fn pair(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(from.join("d/deep")).unwrap();
    std::fs::write(from.join("d/deep/x"), "new").unwrap();
    std::fs::write(from.join("f"), "new").unwrap();
    symlink("f", from.join("l")).unwrap();
    std::fs::create_dir_all(to.join("f/old/er")).unwrap();
    std::fs::write(to.join("f/old/x"), "old").unwrap();
    std::fs::create_dir_all(to.join("l")).unwrap();
    symlink("/", to.join("d")).unwrap();
    (from, to)
}

/// A copy in whose destination what is of another kind makes way.
fn begin(from: &Path, to: &Path) -> (FileSource, TreeSink, Vec<Part>) {
    let (source, part) = scan(&[from], &Filter::default());
    let (parts, none) = (vec![part], Filter::default());
    let sink = TreeSink::update(Dest::mirror(to, &none), &parts, &id(1), Adopt::All).unwrap();
    (source, sink, parts)
}

/// The bytes of a file, which are not written; all others are.
fn write_all_but(path: &[u8], source: &FileSource, sink: &TreeSink, parts: &[Part]) -> RangeSet {
    let entries = &parts[0].manifest.entries;
    let object = entries.iter().position(|entry| entry.path == path).unwrap();
    let pieces = sink.layout().pieces().iter();
    let pieces = pieces.filter(|piece| piece.object as usize == object);
    let missing = RangeSet::from_ranges(pieces.map(|piece| piece.range));
    for range in sink.layout().ranges().difference(&missing).iter() {
        write(source, sink, range);
    }
    missing
}

/// Without a removal nothing makes way, and the error says how it would.
#[test]
fn nothing_makes_way_without_a_removal() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let before = contents(&to);
    let (_, part) = scan(&[&from], &Filter::default());
    let error = TreeSink::update(&to, &[part], &id(1), Adopt::All).unwrap_err();
    let text = error.to_string();
    let place = to.join("d");
    assert_eq!(
        text,
        format!(
            "\"{}\" is a symbolic link where a directory is to be written; remove it, or copy with --delete, which removes it if all sources are read",
            place.display()
        )
    );
    assert_eq!(contents(&to), before);
}

/// All is there until every byte is safe; the folder that holds it keeps its time, and what a link leads to is not touched.
#[test]
fn what_is_in_the_way_is_removed_last() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    set_times(&to, 1000, 7);
    let before = contents(&to);
    let (source, sink, _) = begin(&from, &to);
    sink.remove_extra(Filter::default());
    for range in sink.layout().ranges().iter() {
        write(&source, &sink, range);
    }
    let there = |contents: std::collections::BTreeMap<_, _>| {
        before.keys().all(|path| contents.contains_key(path))
    };
    assert!(there(contents(&to)));
    sink.commit().unwrap();
    assert_eq!(contents(&to), contents(&from));
    let landed = sink.landed();
    assert_eq!((landed.removed.files, landed.removed.folders), (2, 4));
    assert_eq!(landed.removed.failed, []);
    let data = to.metadata().unwrap();
    assert_eq!((data.mtime(), data.mtime_nsec()), (1000, 7));
}

/// What a removal leaves alone makes no way: the copy is refused, and nothing is changed.
#[test]
fn what_stays_is_in_the_way() {
    let (_keep, folder) = folder();
    let refused = |make: &dyn Fn(&Path), rules: &[&str], why: &str| {
        let at = folder.join(why.len().to_string());
        let (from, to) = pair(&at);
        make(&to);
        let before = contents(&to);
        let error = mirror(&[&from], &to, rules).unwrap_err();
        assert!(matches!(error, StoreError::InTheWay { .. }), "{error}");
        assert!(error.to_string().ends_with(why), "{error}");
        assert_eq!(contents(&to), before);
    };
    refused(&|_| {}, &["-er"], "f/old/er\" stays: it is excluded");
    // The folder itself, not the file of this name.
    refused(&|_| {}, &["-f/"], "/f\" stays: it is excluded");
    let temporary = "l/.x.ropewalk-0123456789abcdef0123456789abcdef.journal";
    let why = format!(
        "{temporary}\" stays: a transfer may be writing it; ropewalk clean removes what ended ones left"
    );
    refused(
        &|to| std::fs::write(to.join(temporary), "").unwrap(),
        &[],
        &why,
    );
    let pipe = |to: &Path| {
        let mode = rustix::fs::Mode::RWXU;
        let at = to.join("f/old/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    let why = "f/old/pipe\" stays: pipes, sockets and devices are no part of a copy without -a";
    refused(&pipe, &[], why);
}

/// The destination itself never makes way, nor does what lies beside the sources.
#[test]
fn only_in_folders_of_the_sources() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let file = folder.join("file");
    std::fs::write(&file, "stays").unwrap();
    let error = mirror(&[&from], &file, &[]).unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error}");
    let side = folder.join("side");
    std::fs::create_dir(&side).unwrap();
    std::fs::write(side.join("from"), "stays").unwrap();
    let error = mirror(&[&from, &file], &side, &[]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("it is in no folder of the sources; remove it yourself"),
        "{text}"
    );
    assert_eq!(std::fs::read(side.join("from")).unwrap(), b"stays");
    drop(to);
}

/// With `--ignore-existing` what is there stays.
#[test]
fn existing_names_make_no_way() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let (_, part) = scan(&[&from], &Filter::default());
    let none = Filter::default();
    let wish = Wish {
        stays: Stays::Existing,
        ..Adopt::All.into()
    };
    let error = TreeSink::update(Dest::mirror(&to, &none), &[part], &id(1), wish).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("/d\" stays: names that exist are left alone"),
        "{error}"
    );
}

/// Sources that turn out to be incomplete after the start remove nothing, so nothing makes way.
#[test]
fn no_removal_at_the_end_no_way() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    let before = contents(&to);
    let (source, sink, _) = begin(&from, &to);
    for range in sink.layout().ranges().iter() {
        write(&source, &sink, range);
    }
    let error = sink.commit().unwrap_err();
    assert!(
        matches!(error, StoreError::InTheWay { kept: None, .. }),
        "{error}"
    );
    sink.discard();
    assert_eq!(contents(&to), before);
}

/// Of an incomplete copy the whole files take their places, and nothing else is removed.
#[test]
fn whole_files_of_an_incomplete_copy_are_given_way() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    std::fs::write(from.join("lost"), "lost").unwrap();
    std::fs::write(to.join("extra"), "stays").unwrap();
    let (source, sink, parts) = begin(&from, &to);
    sink.remove_extra(Filter::default());
    let missing = write_all_but(b"lost", &source, &sink, &parts);
    assert!(sink.commit_whole_files(&missing).unwrap());
    let removed = sink.landed().removed;
    assert_eq!((removed.files, removed.folders), (2, 4));
    let mut wanted = contents(&from);
    wanted.remove(Path::new("lost"));
    wanted.insert("extra".into(), b"stays".to_vec());
    assert_eq!(contents(&to), wanted);
}

/// An incomplete folder takes the place of nothing.
#[test]
fn incomplete_folders_are_given_no_way() {
    let (_keep, folder) = folder();
    let (from, to) = pair(&folder);
    std::fs::remove_file(to.join("d")).unwrap();
    std::fs::write(to.join("d"), "stays").unwrap();
    let (source, sink, parts) = begin(&from, &to);
    sink.remove_extra(Filter::default());
    let missing = write_all_but(b"d/deep/x", &source, &sink, &parts);
    assert!(sink.commit_whole_files(&missing).unwrap());
    let landed = sink.landed();
    assert_eq!(
        landed.unplaced,
        [(b"d".to_vec(), "files in it are missing".to_owned())]
    );
    assert_eq!(std::fs::read(to.join("d")).unwrap(), b"stays");
    assert_eq!(std::fs::read(to.join("f")).unwrap(), b"new");
}
