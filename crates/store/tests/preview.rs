//! What a copy would do is found out without doing it.

use std::path::Path;

use ropewalk_store::{
    Act, Adopt, FileSource, Keep, Manifest, Part, Preview, Previewed, Scan, Sink as _, StoreError,
    TreeSink,
};

mod support;
use support::*;

fn parts(from: &Path) -> [Part; 1] {
    [Part::whole(0, Manifest::scan(from).unwrap().into())]
}

fn preview(from: &Path, to: &Path) -> Preview {
    TreeSink::preview(to, &parts(from), Some(&Adopt::All.into()), None, false).unwrap()
}

fn lines(preview: &Preview) -> Vec<String> {
    let line = |change: &Previewed| {
        let path = String::from_utf8_lossy(&change.path);
        format!("{:?} {} {path}", change.act, change.len)
    };
    preview.changes.iter().map(line).collect()
}

/// All that is below a folder, folders with their times.
fn state(folder: &Path) -> Vec<(ropewalk_store::Entry, Vec<u8>)> {
    snapshot(folder)
}

/// What is listed is what a copy then does: all of a new tree; nothing of one that is there; then what changed. Nothing changes.
#[test]
fn a_preview_is_what_a_copy_does() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    let before = state(&folder);
    let first = preview(&from, &to);
    assert!(before == state(&folder));
    let entries = Manifest::scan(&from).unwrap().entries;
    assert_eq!(first.changes.len(), entries.len());
    for (change, entry) in first.changes.iter().zip(&entries) {
        assert_eq!((&change.path, change.len), (&entry.path, entry.len()));
        let is_folder = entry.kind == ropewalk_store::EntryKind::Directory;
        assert_eq!(change.act == Act::Make, is_folder);
    }
    let (source, sink) = update_pair(&from, &to, ID);
    pump(sink.layout(), &source, &sink);
    sink.commit().unwrap();

    let again = preview(&from, &to);
    assert_eq!(again.changes, []);
    let files = entries.len() - 8;
    assert_eq!(again.present.files as usize, files);
    assert_eq!(again.present.unchanged, sink.layout().ranges());

    std::fs::remove_file(to.join("-rf/--help")).unwrap();
    std::fs::remove_dir(to.join("empty folder")).unwrap();
    set_times(&from.join("plain/small"), 5, 5);
    let before = state(&folder);
    let third = preview(&from, &to);
    assert!(before == state(&folder));
    assert_eq!(
        lines(&third),
        [
            "Send 4 -rf/--help",
            "Make 0 empty folder",
            "Send 11 plain/small"
        ]
    );
    let all = TreeSink::preview(&to, &parts(&from), None, None, false).unwrap();
    assert_eq!(all.changes.len(), files + 1);
}

/// A copy of one file, one into a folder that would be made, and ones that would be refused.
#[test]
fn a_preview_needs_what_a_copy_needs() {
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::write(&from, "file").unwrap();
    assert_eq!(lines(&preview(&from, &folder.join("to"))), ["Send 4 "]);
    let new = folder.join("new/to");
    let refused = TreeSink::preview(&new, &parts(&from), Some(&Adopt::All.into()), None, false);
    assert!(matches!(refused, Err(StoreError::ParentMissing { .. })));
    let made =
        TreeSink::preview(&new, &parts(&from), Some(&Adopt::All.into()), None, true).unwrap();
    assert_eq!(lines(&made), ["Send 4 "]);
    let refused = TreeSink::preview(
        &folder.join("new/new/to"),
        &parts(&from),
        Some(&Adopt::All.into()),
        None,
        true,
    );
    assert!(matches!(refused, Err(StoreError::ParentMissing { .. })));
    std::fs::create_dir(folder.join("to")).unwrap();
    let refused = TreeSink::preview(
        &folder.join("to"),
        &parts(&from),
        Some(&Adopt::All.into()),
        None,
        false,
    );
    assert!(matches!(refused, Err(StoreError::Exists { .. })));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// What a copy gives another mode, owner or time is listed, folders too; what is right is not.
#[test]
fn changes_of_metadata_are_listed() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(from.join("d")).unwrap();
    std::fs::create_dir(from.join("same")).unwrap();
    for path in ["a", "d/b", "same/c"] {
        std::fs::write(from.join(path), path).unwrap();
        set_times(&from.join(path), 1_000_000_000, 0);
    }
    let keep = Keep {
        owners: true,
        attributes: true,
        ..Keep::default()
    };
    let parts = || {
        let scan = Scan::read_keeping(&from, keep).unwrap();
        let source = FileSource::open_tree(&from, &scan, 0).unwrap();
        (source, [Part::whole(0, scan.manifest)])
    };
    let copied = || {
        let (source, parts) = parts();
        finish(
            &source,
            &TreeSink::update(&to, &parts, &id(1), Adopt::All).unwrap(),
        );
    };
    let listed = || {
        let wish = Adopt::All.into();
        let preview = TreeSink::preview(&to, &parts().1, Some(&wish), None, false).unwrap();
        let changes = preview.changes.into_iter();
        let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
        changes
            .map(|change| (text(change.path), change.act))
            .collect::<Vec<_>>()
    };
    copied();
    assert_eq!(listed(), []);
    set_mode(&from.join("a"), 0o600);
    set_mode(&from.join("d"), 0o700);
    let expected = ["a", "d"].map(|path| (path.to_owned(), Act::Metadata));
    assert_eq!(listed(), expected);
    copied();
    assert_eq!(listed(), []);
}
