//! Rows of a specification: parts of files at their offsets, written by several nodes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ropewalk_model::{Layout, Piece, Range};
use ropewalk_store::{
    FileSink, FileSource, Identity, Sink, SinkFile, Source, StoreError, identity, remove_temporary,
};

mod support;
use support::*;

fn layout(pieces: &[(u64, u64, u32, u64)]) -> Layout {
    let piece = |&(start, end, object, object_offset): &(u64, u64, u32, u64)| Piece {
        range: Range { start, end },
        object,
        object_offset,
    };
    Layout::new(pieces.iter().map(piece).collect()).unwrap()
}

fn file(path: &Path, renames: bool) -> SinkFile {
    SinkFile {
        path: path.to_owned(),
        renames,
        ..SinkFile::default()
    }
}

fn create(pieces: &[(u64, u64, u32, u64)], path: &Path) -> FileSink {
    FileSink::create(layout(pieces), vec![file(path, true)], ID, false).unwrap()
}

/// Figure 2's node7: a part at file offset 2048 keeps a hole of zeros before it.
#[test]
fn a_part_keeps_the_hole_before_it() {
    let (_keep, folder) = folder();
    let path = folder.join("copy1");
    let part = bytes(1, 4096);
    let sink = create(&[(10_240, 14_336, 0, 1 << 20)], &path);
    sink.write_at(10_240, &part).unwrap();
    sink.sync().unwrap();
    assert!(!path.exists());
    sink.commit().unwrap();
    let contents = std::fs::read(&path).unwrap();
    assert_eq!(contents.len(), (1 << 20) + 4096);
    assert!(contents[..1 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(contents[1 << 20..], part);
    assert!(
        path.metadata().unwrap().blocks() * 512 < 1 << 19,
        "the hole takes space"
    );
}

/// Space is taken before the first byte, so that a full disk shows at the start.
#[test]
fn space_is_reserved_at_the_start() {
    let (_keep, folder) = folder();
    let sink = create(&[(0, 1 << 20, 0, 0)], &folder.join("file"));
    let made = folder.join(".file.ropewalk-0198-test").metadata().unwrap();
    assert_eq!(made.len(), 1 << 20);
    sink.discard();
    assert!(names(&folder).is_empty());
}

/// Two nodes on one file system write one temporary file from many threads; one renames it.
#[test]
fn two_sinks_share_one_file() {
    let (_keep, folder) = folder();
    let path = folder.join("shared");
    let data = bytes(4, 3_000_000);
    let half = 1_600_000u64;
    let make = |start, end, renames| {
        FileSink::create(
            layout(&[(start, end, 0, start)]),
            vec![file(&path, renames)],
            ID,
            true,
        )
        .unwrap()
    };
    let first = make(0, half, false);
    let second = make(half, data.len() as u64, true);
    std::thread::scope(|scope| {
        for (sink, range) in [(&first, 0..half), (&second, half..data.len() as u64)] {
            for thread in 0..3u64 {
                let (data, range) = (&data, range.clone());
                scope.spawn(move || {
                    for start in (range.start..range.end)
                        .step_by(10_000)
                        .skip(thread as usize)
                        .step_by(3)
                    {
                        let end = range.end.min(start + 10_000);
                        sink.write_at(start, &data[start as usize..end as usize])
                            .unwrap();
                    }
                });
            }
        }
    });
    first.commit().unwrap();
    assert!(!path.exists());
    second.commit().unwrap();
    assert!(std::fs::read(&path).unwrap() == data);
    assert_eq!(names(&folder), ["shared"]);
}

/// One write spans several objects, and reading back gives it again.
#[test]
fn a_write_spans_objects() {
    let (_keep, folder) = folder();
    let files = vec![file(&folder.join("a"), true), file(&folder.join("b"), true)];
    let sink = FileSink::create(
        layout(&[(0, 100, 1, 0), (100, 300, 0, 50)]),
        files,
        ID,
        false,
    )
    .unwrap();
    let data = bytes(6, 300);
    sink.write_at(0, &data).unwrap();
    sink.sync().unwrap();
    let mut back = vec![0; 300];
    sink.read_back(0, &mut back).unwrap();
    assert_eq!(back, data);
    assert!(matches!(
        sink.write_at(250, &data),
        Err(StoreError::NotHeld { .. })
    ));
    sink.commit().unwrap();
    assert_eq!(std::fs::read(folder.join("b")).unwrap(), data[..100]);
    assert_eq!(std::fs::read(folder.join("a")).unwrap()[50..], data[100..]);
}

/// A transfer that is started again finds what it wrote; nothing is cut.
#[test]
fn a_second_attempt_finds_the_first() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    let pieces = [(0, 1000, 0, 0)];
    create(&pieces, &path).write_at(0, &[7; 500]).unwrap();
    let sink = create(&pieces, &path);
    sink.write_at(500, &[8; 500]).unwrap();
    sink.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), [[7; 500], [8; 500]].concat());
}

/// A file in the way is replaced on commit and untouched before; a folder is refused at the start.
#[test]
fn existing_destinations() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    std::fs::write(&path, "old").unwrap();
    let sink = create(&[(0, 3, 0, 0)], &path);
    sink.write_at(0, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    sink.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    std::fs::create_dir(folder.join("folder")).unwrap();
    let refuse = |path: &Path, id: &str| {
        FileSink::create(layout(&[(0, 3, 0, 0)]), vec![file(path, true)], id, false).unwrap_err()
    };
    assert!(matches!(
        refuse(&folder.join("folder"), ID),
        StoreError::Exists {
            found: "directory",
            ..
        }
    ));
    assert!(matches!(
        refuse(&folder.join("no/such"), ID),
        StoreError::ParentMissing { .. }
    ));
    assert!(matches!(refuse(&path, "../../x"), StoreError::BadId { .. }));
    assert!(matches!(
        refuse(Path::new("/"), ID),
        StoreError::NoName { .. }
    ));
    assert_eq!(names(&folder), ["file", "folder"]);
}

/// A name as long as the file system allows still gets a temporary one.
#[test]
fn longest_names_fit() {
    let (_keep, folder) = folder();
    let path = folder.join("n".repeat(255));
    let sink = create(&[(0, 3, 0, 0)], &path);
    sink.write_at(0, b"yes").unwrap();
    sink.commit().unwrap();
    assert_eq!(names(&folder), [path.file_name().unwrap()]);
}

/// Two names so long that their temporary ones are cut, and that differ only at their ends, keep their bytes apart.
#[test]
fn long_names_that_begin_alike_are_two_files() {
    let (_keep, folder) = folder();
    let paths = ["1", "2"].map(|end| folder.join("n".repeat(254) + end));
    let files = paths.iter().map(|path| file(path, true)).collect();
    let sink = FileSink::create(
        layout(&[(0, 100, 0, 0), (100, 200, 1, 0)]),
        files,
        ID,
        false,
    )
    .unwrap();
    let data = bytes(3, 200);
    sink.write_at(0, &data).unwrap();
    sink.commit().unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), data[..100]);
    assert_eq!(std::fs::read(&paths[1]).unwrap(), data[100..]);
    assert_eq!(names(&folder).len(), 2);
}

/// What a shared sink that could not be made has left, since others may write it, is removed on demand.
#[test]
fn temporary_files_of_a_sink_that_failed_are_removed() {
    let (_keep, folder) = folder();
    let paths = ["one", "two"].map(|name| folder.join(name));
    let planted = folder.join(".two.ropewalk-0198-test");
    std::os::unix::fs::symlink("nowhere", &planted).unwrap();
    let files = paths.iter().map(|path| file(path, true)).collect();
    let pieces = layout(&[(0, 100, 0, 0), (100, 200, 1, 0)]);
    assert!(FileSink::create(pieces, files, ID, true).is_err());
    assert!(folder.join(".one.ropewalk-0198-test").exists());
    for path in &paths {
        remove_temporary(path, "another-id");
    }
    assert_eq!(names(&folder).len(), 2);
    for path in &paths {
        remove_temporary(path, ID);
    }
    assert!(names(&folder).is_empty());
}

/// A temporary name that is a planted link is refused, and what it leads to stays as it was.
#[test]
fn planted_temporary_name_is_refused() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("precious"), "keep").unwrap();
    std::os::unix::fs::symlink("precious", folder.join(".file.ropewalk-0198-test")).unwrap();
    let error = FileSink::create(
        layout(&[(0, 3, 0, 0)]),
        vec![file(&folder.join("file"), true)],
        ID,
        false,
    )
    .unwrap_err();
    assert!(matches!(error, StoreError::SymbolicLink { .. }), "{error}");
    assert_eq!(std::fs::read(folder.join("precious")).unwrap(), b"keep");
}

/// A source file shorter than its row is refused before the start, with both lengths.
#[test]
fn short_source_is_refused_at_the_start() {
    let (_keep, folder) = folder();
    let path = folder.join("part");
    std::fs::write(&path, bytes(1, 999)).unwrap();
    let open = |end| FileSource::open(layout(&[(5000, end, 0, 10)]), vec![path.clone()]);
    assert_eq!(
        open(5990).unwrap_err(),
        StoreError::TooShort {
            path: path.clone(),
            wanted: 1000,
            len: 999
        }
    );
    let source = open(5989).unwrap();
    let mut buf = vec![0; 989];
    source.read_at(5000, &mut buf).unwrap();
    assert_eq!(buf, bytes(1, 999)[10..]);
    assert!(matches!(
        source.read_at(5001, &mut buf),
        Err(StoreError::NotHeld { .. })
    ));
}

/// Length and time to the nanosecond tell versions of a file apart.
#[test]
fn identity_sees_length_and_time() {
    let (_keep, folder) = folder();
    let path = folder.join("file");
    std::fs::write(&path, "12345").unwrap();
    set_times(&path, -7, 123);
    assert_eq!(
        identity(&path).map(|(identity, _)| identity),
        Ok(Identity {
            len: 5,
            mtime_seconds: -7,
            mtime_nanoseconds: 123
        })
    );
    assert!(matches!(identity(&folder), Err(StoreError::NoFile { .. })));
    assert!(matches!(
        identity(&folder.join("none")),
        Err(StoreError::Vanished { .. })
    ));
}

/// A file that takes the place of another one has its owner, group, mode and attributes. As root, which can give files away.
#[test]
fn a_replaced_file_keeps_its_owner() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give a file to another user");
        return;
    }
    let (_keep, folder) = folder();
    let path = folder.join("file");
    std::fs::write(&path, "old").unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    set_mode(&path, 0o640);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.origin", b"kept", flags).unwrap();
    let sink = create(&[(0, 3, 0, 0)], &path);
    sink.write_at(0, b"new").unwrap();
    sink.commit().unwrap();
    let found = path.metadata().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!((found.uid(), found.gid()), (1234, 4321));
    assert_eq!(found.mode() & 0o7777, 0o640);
    let mut value = [0; 10];
    let len = rustix::fs::getxattr(&path, "user.origin", &mut value).unwrap();
    assert_eq!(&value[..len], b"kept");
}
