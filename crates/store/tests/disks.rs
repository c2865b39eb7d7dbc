//! Disks that are full or may not be written.

use std::path::Path;
use std::sync::Arc;

use ropewalk_model::{Layout, Piece, Range};
use ropewalk_store::{FileSink, Manifest, Part, Sink, SinkFile, StoreError, TreeSink};

mod support;
use support::*;

fn rows(path: &Path, len: u64) -> Result<FileSink, StoreError> {
    let piece = Piece {
        range: Range { start: 0, end: len },
        object: 0,
        object_offset: 0,
    };
    let file = SinkFile {
        path: path.to_owned(),
        renames: true,
        ..SinkFile::default()
    };
    FileSink::create(Layout::new(vec![piece]).unwrap(), vec![file], ID, false)
}

/// A file that does not fit is refused before the start with the bytes missing, and leaves nothing.
#[test]
fn full_disk_is_told_before_the_start() {
    sys::on_small_disk(1 << 20, |disk| {
        let error = rows(&disk.join("large"), 3 << 20).unwrap_err();
        let StoreError::DiskFull { path, missing, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((path.parent(), *missing), (Some(disk), 2 << 20));
        assert!(
            error
                .to_string()
                .contains("the disk is full, at least 2.1 MB more are needed"),
            "{error}"
        );
        assert!(names(disk).is_empty());
    });
}

/// A tree that does not fit is refused before the start too.
#[test]
fn full_disk_refuses_a_tree() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("a"), bytes(1, 3 << 20)).unwrap();
    let manifest = Arc::new(Manifest::scan(&folder).unwrap());
    sys::on_small_disk(1 << 20, |disk| {
        for dest in [disk.join("to"), disk.to_owned()] {
            // The second one is the mount point itself: staging beside it would be on the wrong disk.
            let error =
                TreeSink::create(&dest, &[Part::whole(0, Arc::clone(&manifest))], ID, false)
                    .unwrap_err();
            assert!(
                matches!(error, StoreError::DiskFull { missing, .. } if missing >= 2 << 20),
                "{error}"
            );
        }
        assert!(names(disk).is_empty());
    });
}

/// A tree is merged into a mount point, which stays what it is, by renames on that disk.
#[test]
fn a_mount_point_is_a_destination() {
    let (_keep, folder) = folder();
    odd_tree(&folder);
    sys::on_small_disk(16 << 20, |disk| {
        copy(&folder, disk);
        assert_eq!(snapshot(&folder)[1..], snapshot(disk)[1..]);
    });
}

/// A disk that fills up while moving gives the error once and for all: no later write or sync succeeds.
#[test]
fn a_failed_sink_stays_failed() {
    let (_keep, folder) = folder();
    for index in 0..8 {
        std::fs::write(folder.join(format!("{index}")), bytes(index, 100_000)).unwrap();
    }
    sys::on_small_disk(1 << 20, |disk| {
        let (source, sink) = tree_pair(&folder, &disk.join("to"), 0);
        sink.write_at(0, &[1; 100]).unwrap();
        sink.sync().unwrap();
        // Somebody else takes the rest of the disk.
        let filler = std::fs::write(disk.join("filler"), vec![0; 1 << 20]);
        assert_eq!(
            filler.unwrap_err().raw_os_error(),
            Some(rustix::io::Errno::NOSPC.raw_os_error())
        );
        let end = source.layout().ranges().len_bytes();
        let first = sink
            .write_at(end - 100_000, &bytes(7, 100_000))
            .unwrap_err();
        assert!(matches!(first, StoreError::DiskFull { .. }), "{first}");
        std::fs::remove_file(disk.join("filler")).unwrap();
        assert_eq!(sink.write_at(0, &[1; 100]), Err(first.clone()));
        assert_eq!(sink.sync(), Err(first.clone()));
        assert_eq!(sink.commit(), Err(first));
        assert!(!disk.join("to").exists());
        sink.discard();
        assert!(names(disk).is_empty());
    });
}

/// A read-only disk is told as such before the start.
#[test]
fn read_only_disk_is_told() {
    sys::on_small_disk(1 << 20, |disk| {
        sys::make_read_only(disk);
        let error = rows(&disk.join("file"), 10).unwrap_err();
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
    });
}

/// A folder that may not be written is told as such; the superuser may write everywhere, so it cannot see that.
#[test]
fn unwritable_folder_is_told() {
    if rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the superuser may write to any folder; run as another user");
        return;
    }
    let (_keep, folder) = folder();
    set_mode(&folder, 0o555);
    let error = rows(&folder.join("file"), 10).unwrap_err();
    set_mode(&folder, 0o755);
    assert!(matches!(error, StoreError::Permission { .. }), "{error}");
}

/// A disk with space but no inode left says so, with what to do.
#[test]
fn lack_of_inodes_is_told() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("a"), "a").unwrap();
    sys::on_disk("size=1m,nr_inodes=10", |disk| {
        let mut names = 0..;
        while std::fs::write(disk.join(format!("{}", names.next().unwrap())), "").is_ok() {}
        let manifest = Arc::new(Manifest::scan(&folder).unwrap());
        let parts = [Part::whole(0, manifest)];
        let tree = TreeSink::create(&disk.join("to"), &parts, ID, false);
        for error in [
            rows(&disk.join("file"), 10).map(|_| ()).unwrap_err(),
            tree.map(|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::NoInodes { .. }), "{error}");
            assert!(error.to_string().contains("no inode left"), "{error}");
        }
    });
}
