//! Pipes, sockets and devices of a copy with owners: made, kept, replaced and removed as files are.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use ropewalk_model::Range;
use ropewalk_store::{
    Act, Adopt, Comparing, Device, Entry, EntryKind, FileSource, Filter, Keep, Kept, Landed,
    Manifest, ManifestError, Owner, Part, Previewed, Scan, Sink as _, Special, StoreError,
    TreeSink, Wish,
};
use rustix::fs::{CWD, FileType};

mod support;
use support::*;

const ALL: Keep = Keep {
    owners: true,
    attributes: true,
    links: true,
    specials: true,
};

fn make(path: &Path, kind: FileType) {
    rustix::fs::mknodat(CWD, path, kind, 0o640.into(), 0).unwrap();
}

fn sink(manifest: Arc<Manifest>, to: &Path, number: u32) -> TreeSink {
    let bytes = manifest.encode();
    assert_eq!(Manifest::decode(&bytes).as_ref(), Ok(&*manifest));
    let parts = [Part::whole(0, manifest)];
    TreeSink::update(to, &parts, &id(number), Adopt::All).unwrap()
}

/// Copies a tree without bytes; how many names were there, and what the commit found.
fn copy_all(from: &Path, to: &Path, number: u32) -> (u64, Landed) {
    let scan = Scan::read_keeping(from, ALL).unwrap();
    assert_eq!(scan.special, 0);
    let sink = sink(scan.manifest, to, number);
    let there = sink.present().files;
    sink.commit().unwrap();
    (there, sink.landed())
}

fn made(from: &Path) {
    std::fs::create_dir_all(from.join("sub")).unwrap();
    make(&from.join("pipe"), FileType::Fifo);
    make(&from.join("sub/socket"), FileType::Socket);
    set_mode(&from.join("sub/socket"), 0o755);
    for file in ["pipe", "sub/socket"] {
        set_times(&from.join(file), 1_000_000_000, 77);
    }
    std::fs::hard_link(from.join("pipe"), from.join("sub/pipe too")).unwrap();
}

/// Pipes and sockets have kind, mode, time and names of the source; a second run leaves them where they are, and replaces one whose
/// time, mode or kind is another.
#[test]
fn special_files_are_copied() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    made(&from);
    let (there, landed) = copy_all(&from, &to, 1);
    assert_eq!(
        (there, landed.added_files, landed.specials_not_kept),
        (0, 3, 0)
    );
    let scan = Scan::read_keeping(&from, ALL).unwrap();
    assert_eq!(scan.manifest.file_count(), 3);
    let stat = |file: &str| std::fs::symlink_metadata(to.join(file)).unwrap();
    assert!(stat("pipe").file_type().is_fifo() && stat("sub/socket").file_type().is_socket());
    assert_eq!(stat("sub/socket").permissions().mode() & 0o7777, 0o755);
    assert_eq!(
        (stat("pipe").mtime(), stat("pipe").mtime_nsec()),
        (1_000_000_000, 77)
    );
    assert_eq!(stat("pipe").ino(), stat("sub/pipe too").ino());
    assert!(snapshot_of(&from) == snapshot_of(&to));
    let before = stat("sub/socket").ino();
    let (there, landed) = copy_all(&from, &to, 2);
    assert_eq!((there, landed.replaced_files + landed.added_files), (3, 0));
    assert_eq!(stat("sub/socket").ino(), before);
    set_mode(&to.join("sub/socket"), 0o700);
    std::fs::remove_file(to.join("pipe")).unwrap();
    std::fs::write(to.join("pipe"), "a file").unwrap();
    let (there, landed) = copy_all(&from, &to, 3);
    assert_eq!((there, landed.replaced_files), (0, 3));
    assert!(snapshot_of(&from) == snapshot_of(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

fn snapshot_of(root: &Path) -> Vec<Entry> {
    let scan = Scan::read_keeping(root, ALL).unwrap();
    let mut entries = scan.manifest.entries.clone();
    entries.retain(|entry| entry.kind != EntryKind::Directory);
    entries
}

/// A file takes the place of a pipe where special files are part of the copy, and not elsewhere; what no source has is removed there.
#[test]
fn special_files_of_the_destination() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::create_dir_all(&to).unwrap();
    std::fs::write(from.join("a"), "").unwrap();
    make(&to.join("a"), FileType::Fifo);
    make(&to.join("other"), FileType::Socket);
    let parts = |keep| parts_of(&from, keep);
    let plain = TreeSink::update(&to, &parts(Keep::default()), &id(1), Adopt::All);
    let error = plain.map(|_| ()).unwrap_err();
    assert!(
        matches!(error, StoreError::InTheWay { found: "pipe", .. }),
        "{error}"
    );
    let sink = TreeSink::update(&to, &parts(ALL), &id(2), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    sink.commit().unwrap();
    assert_eq!(names(&to), ["a"]);
    assert!(to.join("a").metadata().unwrap().is_file());
    assert_eq!(sink.landed().removed.files, 1);
    // Without owners they stay.
    make(&to.join("other"), FileType::Socket);
    let sink = TreeSink::update(&to, &parts(Keep::default()), &id(3), Adopt::All).unwrap();
    sink.remove_extra(Filter::default());
    sink.commit().unwrap();
    assert_eq!(names(&to), ["a", "other"]);
}

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry {
        path: path.into(),
        kind,
        mode: 0o600,
        mtime_seconds: 5,
        mtime_nanoseconds: 0,
        kept: Kept {
            owner: Some(Arc::new(Owner {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                user: Vec::new(),
                group: Vec::new(),
            })),
            attributes: Vec::new(),
        },
    }
}

/// A device that this user may not make, and further names of it, are counted; the rest of the copy is complete. What stands in their
/// place stays.
#[test]
fn what_may_not_be_made_is_counted() {
    let device = EntryKind::Special(Special::Character(Device { major: 1, minor: 3 }));
    let root = Entry {
        mode: 0o755,
        ..entry("", EntryKind::Directory)
    };
    let name = Entry {
        kept: Kept::default(),
        ..entry(
            "null too",
            EntryKind::HardLink {
                to: b"null".to_vec(),
            },
        )
    };
    let pipe = entry("pipe", EntryKind::Special(Special::Pipe));
    let manifest = Manifest {
        entries: vec![root, entry("null", device), name, pipe],
    };
    let manifest = Arc::new(manifest);
    let (_keep, folder) = folder();
    set_mode(&folder, 0o777);
    sys::as_nobody(|| {
        for to in [folder.join("new"), folder.join("old")] {
            if to.ends_with("old") {
                std::fs::create_dir(&to).unwrap();
                std::fs::write(to.join("null"), "older").unwrap();
            }
            let sink = sink(manifest.clone(), &to, 1);
            sink.commit().unwrap();
            let landed = sink.landed();
            assert_eq!((landed.specials_not_kept, landed.added_files), (2, 1));
            assert!(
                to.join("pipe")
                    .symlink_metadata()
                    .unwrap()
                    .file_type()
                    .is_fifo()
            );
            assert!(!to.join("null too").exists());
            let older = std::fs::read(to.join("null")).ok();
            assert_eq!(
                older.as_deref(),
                to.ends_with("old").then_some(&b"older"[..])
            );
        }
    });
}

/// Devices have their numbers.
#[test]
fn devices_have_their_numbers() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    let number = rustix::fs::makedev(7, 99);
    let made = rustix::fs::mknodat(
        CWD,
        from.join("d"),
        FileType::BlockDevice,
        0o600.into(),
        number,
    );
    if made.is_err() {
        eprintln!("SKIPPED: no devices may be made here; run as root");
        return;
    }
    copy_all(&from, &to, 1);
    let stat = std::fs::symlink_metadata(to.join("d")).unwrap();
    assert!(stat.file_type().is_block_device());
    assert_eq!(stat.rdev(), number);
    assert_eq!(copy_all(&from, &to, 2).0, 1);
}

fn parts_of(from: &Path, keep: Keep) -> [Part; 1] {
    let manifest = Scan::read_keeping(from, keep).unwrap().manifest;
    [Part::whole(0, manifest)]
}

/// What a copy would make, replace and remove is listed, and nothing is done.
#[test]
fn special_files_are_listed() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    made(&from);
    let listed = || {
        let wish = Wish::from(Adopt::All);
        let removes = Filter::default();
        let parts = parts_of(&from, ALL);
        let preview = TreeSink::preview(&to, &parts, Some(&wish), Some(&removes), false).unwrap();
        named(preview.changes)
    };
    let all = [
        (Act::Make, ""),
        (Act::Send, "pipe"),
        (Act::Make, "sub"),
        (Act::Send, "sub/pipe too"),
        (Act::Send, "sub/socket"),
    ];
    assert_eq!(listed(), all.map(|(act, path)| (act, path.to_owned())));
    assert!(!to.exists());
    copy_all(&from, &to, 1);
    assert_eq!(listed(), []);
    set_times(&to.join("sub/socket"), 5, 5);
    make(&to.join("other"), FileType::Fifo);
    // A mirror has the time of its source, too.
    let some = [
        (Act::Metadata, ""),
        (Act::Remove, "other"),
        (Act::Send, "sub/socket"),
    ];
    assert_eq!(listed(), some.map(|(act, path)| (act, path.to_owned())));
    assert_eq!(names(&to), ["other", "pipe", "sub"]);
}

fn named(changes: Vec<Previewed>) -> Vec<(Act, String)> {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let changes = changes.iter();
    changes
        .map(|change| (change.act, text(&change.path)))
        .collect()
}

/// A comparison names special files that differ where the source was scanned with them, and none elsewhere.
#[test]
fn special_files_are_compared() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    made(&from);
    for pipe in ["gone", "other kind"] {
        make(&from.join(pipe), FileType::Fifo);
    }
    copy_all(&from, &to, 1);
    let differences = |parts: &[Part; 1], metadata| {
        let comparing = Comparing {
            contents: None,
            metadata,
        };
        let found = TreeSink::differences(&to, parts, comparing, &Filter::default()).unwrap();
        let mut found = named(found.changes);
        // Folders that something was put into have other times.
        found.retain(|(_, path)| !["", "sub"].contains(&path.as_str()));
        found
    };
    let parts = parts_of(&from, ALL);
    assert_eq!(differences(&parts, true), []);
    std::fs::remove_file(to.join("gone")).unwrap();
    std::fs::remove_file(to.join("other kind")).unwrap();
    std::fs::write(to.join("other kind"), "").unwrap();
    set_mode(&to.join("sub/socket"), 0o600);
    make(&to.join("sub/more"), FileType::Socket);
    let all = [
        (Act::Missing, "gone"),
        (Act::Kind, "other kind"),
        (Act::Extra, "sub/more"),
        (Act::Metadata, "sub/socket"),
    ];
    let all = all.map(|(act, path)| (act, path.to_owned()));
    assert_eq!(differences(&parts, true), all);
    assert_eq!(differences(&parts, false), all[..3]);
    let plain = parts_of(&from, Keep::default());
    std::fs::remove_file(to.join("other kind")).unwrap();
    assert_eq!(differences(&plain, true), []);
}

/// What a killed run had made in the temporary folder is made again, whatever kind it was; a run that was killed while it gave names is
/// completed.
#[test]
fn a_killed_commit_is_done_again() {
    for kind in [FileType::Fifo, FileType::Socket] {
        let (_keep, folder) = folder();
        let (from, to) = (tree(&folder, 1), folder.join("to"));
        made(&from);
        std::fs::create_dir(&to).unwrap();
        let begin = |number| {
            let scan = Scan::read_keeping(&from, ALL).unwrap();
            let source = FileSource::open_tree(&from, &scan, 0).unwrap();
            (source, sink(scan.manifest, &to, number))
        };
        let (source, sink) = begin(1);
        make_safe(&source, &sink, Range::new(0, 5000));
        let staged = names(&to);
        let staged = staged
            .iter()
            .filter(|name| name.as_encoded_bytes().starts_with(b"."))
            .map(|name| to.join(name))
            .find(|path| path.is_dir())
            .unwrap();
        make(&staged.join("pipe"), kind);
        make(&to.join("pipe"), FileType::Fifo);
        drop((source, sink));
        let (source, sink) = begin(2);
        assert_eq!(sink.present().adopted.len_bytes(), 5000);
        finish(&source, &sink);
        assert_eq!(sink.landed().specials_not_kept, 0);
        assert!(snapshot_of(&from) == snapshot_of(&to));
        assert_eq!(names(&to), ["a", "pipe", "sub"]);
    }
}

/// A node that takes over from one that died before it gave the names finds special files in the temporary folder.
#[test]
fn special_files_that_another_node_made_are_used() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    made(&from);
    let parts = parts_of(&from, ALL);
    let sink = TreeSink::create(&to, &parts, ID, true).unwrap();
    make(
        &folder.join(format!(".to.ropewalk-{ID}/pipe")),
        FileType::Fifo,
    );
    sink.take_over();
    sink.commit().unwrap();
    assert_eq!(sink.landed().specials_not_kept, 0);
    assert!(snapshot_of(&from) == snapshot_of(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A node that takes over from one that died after it gave the names finds special files, or makes them again.
#[test]
fn special_files_are_taken_over() {
    for is_there in [false, true] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        made(&from);
        if is_there {
            std::fs::create_dir(&to).unwrap();
        }
        let parts = parts_of(&from, ALL);
        let [first, second] = [0, 1].map(|_| TreeSink::create(&to, &parts, ID, true).unwrap());
        first.commit().unwrap();
        second.take_over();
        second.commit().unwrap();
        assert_eq!(second.landed().specials_not_kept, 0);
        assert!(snapshot_of(&from) == snapshot_of(&to));
        assert_eq!(names(&folder), ["from", "to"]);
    }
}

/// The encoding of each kind; one without an owner is refused, as a receiver would not know that special files are part of the copy.
#[test]
fn encoded_special_files() {
    let device = Device {
        major: 0x0102,
        minor: 0x0a0b_0c0d,
    };
    for (special, bytes) in [
        (Special::Pipe, &[4 + 16][..]),
        (Special::Socket, &[5 + 16]),
        (
            Special::Character(device),
            &[6 + 16, 2, 1, 0, 0, 13, 12, 11, 10],
        ),
        (
            Special::Block(device),
            &[7 + 16, 2, 1, 0, 0, 13, 12, 11, 10],
        ),
    ] {
        let mut owner = entry("s", EntryKind::Special(special));
        owner.kept.owner = Some(Arc::new(Owner {
            uid: 1,
            gid: 2,
            user: Vec::new(),
            group: Vec::new(),
        }));
        let tree = |special: Entry| Manifest {
            entries: vec![entry("", EntryKind::Directory), special],
        };
        let encoded = tree(owner.clone()).encode();
        let (kind, rest) = bytes.split_first().unwrap();
        let mut expected = vec![
            *kind, 0x80, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, b's',
        ];
        expected.extend(rest);
        expected.extend([1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert!(encoded.ends_with(&expected), "{encoded:?}");
        assert_eq!(Manifest::decode(&encoded), Ok(tree(owner.clone())));
        assert_eq!(&encoded[..12], b"RWMF\x04\0\0\0\x02\0\0\0");
        for version in [3, 5] {
            let other = [&b"RWMF"[..], &[version], &encoded[5..]].concat();
            assert_eq!(Manifest::decode(&other), Err(ManifestError::Version));
        }
        let cut = Manifest::decode(&encoded[..encoded.len() - 1]);
        assert!(matches!(cut, Err(ManifestError::Length { .. })), "{cut:?}");
        let none = Entry {
            kept: Kept::default(),
            ..owner.clone()
        };
        let error = tree(none).check().unwrap_err();
        assert_eq!(error, ManifestError::Value("s".into()));
        let mut alone = Manifest {
            entries: vec![Entry {
                path: Vec::new(),
                ..owner
            }],
        };
        assert_eq!(Manifest::decode(&alone.encode()).as_ref(), Ok(&alone));
        // Nothing is below it.
        alone.entries.push(entry("s", EntryKind::Directory));
        assert_eq!(alone.check(), Err(ManifestError::Orphan("s".into())));
    }
}
