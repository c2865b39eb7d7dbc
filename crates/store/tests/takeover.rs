//! A node that shares a destination takes over from one that died while it gave the files their names, wherever that was.

use std::path::Path;

use ropewalk_model::{Layout, Piece, Range};
use ropewalk_store::{FileSink, Sink, SinkFile, TreeSink};

mod support;
use support::*;

/// What the second one is asked before it commits: bytes that the first one wrote.
fn reads_back(sink: &TreeSink) {
    let mut buf = [0; 1];
    sink.read_back(0, &mut buf).unwrap();
}

/// The first one had named everything, and died before it could say so.
#[test]
fn what_is_named_is_found() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    for (at, exists) in [false, true].into_iter().enumerate() {
        let to = folder.join(format!("to{at}"));
        if exists {
            std::fs::create_dir(&to).unwrap();
            std::fs::create_dir(to.join("plain")).unwrap();
        }
        let [first, second] = whole(&from, &to);
        first.commit().unwrap();
        second.take_over();
        reads_back(&second);
        second.commit().unwrap();
        if !exists {
            // The whole tree was renamed: nothing is merged.
            let landed = second.landed();
            assert_eq!((&landed.merged, landed.replaced_files), (&None, 0));
            assert!(landed.added_files > 0, "{landed:?}");
        }
        let files = |root: &Path| -> Vec<_> {
            let all = snapshot(root).into_iter();
            all.map(|(entry, bytes)| (entry.path, entry.kind, bytes))
                .collect()
        };
        assert_eq!(files(&from), files(&to));
        assert!(!to.join(format!(".to{at}.ropewalk-{ID}")).exists());
    }
    // One file.
    let file = folder.join("file");
    std::fs::write(&file, bytes(1, 100_000)).unwrap();
    let [first, second] = whole(&file, &folder.join("copy"));
    first.commit().unwrap();
    second.take_over();
    reads_back(&second);
    second.commit().unwrap();
    assert_eq!(
        std::fs::read(folder.join("copy")).unwrap(),
        bytes(1, 100_000)
    );
}

/// The first one had moved a folder and died before it gave it its mode: the second one does, and leaves those alone that
/// stood there before.
#[test]
fn folders_that_were_moved_get_their_modes() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["new/deep", "old"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::write(from.join(path).join("file"), path).unwrap();
        set_mode(&from.join(path), 0o755);
    }
    set_mode(&from.join("new"), 0o750);
    std::fs::create_dir_all(to.join("old")).unwrap();
    set_mode(&to.join("old"), 0o711);
    let [first, second] = whole(&from, &to);
    first.commit().unwrap();
    // As it is in the temporary folder.
    set_mode(&to.join("new/deep"), 0o700);
    set_mode(&to.join("new"), 0o700);
    second.take_over();
    reads_back(&second);
    second.commit().unwrap();
    let mode = |path: &str| {
        let found = std::fs::metadata(to.join(path)).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o7777
    };
    assert_eq!(
        ["new", "new/deep", "old"].map(mode),
        [0o750, 0o755, 0o711],
        "{:o}",
        mode("new")
    );
}

/// Without a word that somebody began, what is not there is an error, as before; so is a file of the name that is another.
#[test]
fn what_is_another_file_is_not_taken() {
    let (_keep, folder) = folder();
    let file = folder.join("file");
    std::fs::write(&file, bytes(1, 100_000)).unwrap();
    let to = folder.join("copy");
    let [first, second] = whole(&file, &to);
    first.commit().unwrap();
    assert!(second.commit().is_err());
    std::fs::write(&to, "another").unwrap();
    second.take_over();
    assert!(second.commit().is_err());
}

/// Rows: the file has its name already.
#[test]
fn rows_are_taken_over() {
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let piece = Piece {
        range: Range { start: 0, end: 100 },
        object: 0,
        object_offset: 0,
    };
    let sinks = [0, 1].map(|_| {
        let file = SinkFile {
            path: path.clone(),
            renames: true,
            mode: None,
            keeps_rest: false,
        };
        FileSink::create(Layout::new(vec![piece]).unwrap(), vec![file], ID, true).unwrap()
    });
    sinks[0].write_at(0, &bytes(1, 100)).unwrap();
    sinks[0].commit().unwrap();
    sinks[1].take_over();
    let mut buf = [0; 100];
    sinks[1].read_back(0, &mut buf).unwrap();
    assert_eq!(buf[..], bytes(1, 100));
    sinks[1].commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes(1, 100));
    assert_eq!(names(&folder), ["copy"]);
}
