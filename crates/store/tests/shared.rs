//! Several nodes write one copy: what one of them finds there is written by none.

use std::path::Path;

use ropewalk_model::{Range, RangeSet};
use std::sync::Arc;

use ropewalk_store::{
    Adopt, EntryKind, FileSource, Manifest, Part, Present, Scan, Sink as _, Source as _,
    StoreError, TreeSink,
};

mod support;
use support::*;

/// A source, its parts, and the sink of the node that looks what is there.
fn looked(from: &Path, to: &Path) -> (FileSource, [Part; 1], TreeSink) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let lead = TreeSink::lead(to, &parts, ID, 0, Adopt::All).unwrap();
    (source, parts, lead)
}

fn shared(to: &Path, parts: &[Part], lead: TreeSink) -> [TreeSink; 2] {
    let found = lead.present().unchanged;
    [
        lead,
        TreeSink::share(
            to,
            parts,
            ID,
            1,
            (&found, &RangeSet::new()),
            ropewalk_store::Stays::Same,
            ropewalk_store::Check::Time,
        )
        .unwrap(),
    ]
}

/// The two write what is not there in turn. Returns how many bytes that were.
fn fill(source: &FileSource, sinks: &[TreeSink; 2]) -> u64 {
    let absent = sinks.each_ref().map(|sink| {
        let all = sink.layout().ranges();
        all.difference(&sink.present().all())
    });
    assert_eq!(absent[0], absent[1]);
    for (at, range) in absent[0].iter().enumerate() {
        let mut buffer = vec![0; range.len() as usize];
        source.read_at(range.start, &mut buffer).unwrap();
        sinks[at % 2].write_at(range.start, &buffer).unwrap();
    }
    sinks[1].sync().unwrap();
    absent[0].len_bytes()
}

/// All but folders, which keep their times where they stood.
fn files(root: &Path) -> Vec<(ropewalk_store::Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
    all
}

/// Neither node writes what was found, either can commit, and mode, links and empty files are made good
/// without a byte.
#[test]
fn what_one_finds_nobody_writes() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    let (.., lead) = looked(&from, &to);
    assert_eq!(lead.present(), Present::default());
    lead.discard();
    assert_eq!(names(&folder), ["from"]);
    copy(&from, &to);
    for committer in [0, 1] {
        set_times(&from.join("plain/small"), 5 + committer as i64, 5);
        set_mode(
            &from.join("line\nbreak/tab\tand space "),
            0o600 + committer as u32,
        );
        for gone in ["plain/empty too", "to file"] {
            std::fs::remove_file(to.join(gone)).unwrap();
        }
        let (source, parts, lead) = looked(&from, &to);
        let found = lead.present();
        let sinks = shared(&to, &parts, lead);
        let small = std::fs::metadata(from.join("plain/small")).unwrap().len();
        assert_eq!(fill(&source, &sinks), small);
        sinks[committer].commit().unwrap();
        assert!(files(&from) == files(&to));
        let landed = sinks[committer].landed();
        assert_eq!((landed.replaced_files, landed.added_files), (1, 2));
        assert_eq!(landed.unchanged_files, found.files);
        assert_eq!(names(&folder), ["from", "to"]);
    }
}

/// What was decided holds for a node that sees other attributes: it neither writes such a file nor finds that it has changed. Bytes
/// that were not found are written by it, even where it finds the file to be there.
#[test]
fn a_node_that_sees_other_attributes_does_as_was_decided() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    copy(&from, &to);
    let (source, parts, lead) = looked(&from, &to);
    let found = lead.present();
    assert_eq!((found.unchanged.len_bytes(), found.files), (2, 2));
    // To this node `a` is a file that was written there, as a second name makes it; and nothing was said of `b`.
    std::fs::hard_link(to.join("a"), folder.join("name")).unwrap();
    set_mode(&to.join("a"), 0o600);
    let told = Present {
        unchanged: found.unchanged.clipped(Range::new(0, 1)),
        ..Present::default()
    };
    let sinks = [1, 2].map(|node| {
        TreeSink::share(
            &to,
            &parts,
            ID,
            node,
            (&told.unchanged, &told.refused),
            ropewalk_store::Stays::Same,
            ropewalk_store::Check::Time,
        )
        .unwrap()
    });
    assert_eq!(sinks[0].present().unchanged, told.unchanged);
    assert_eq!(fill(&source, &sinks), 1);
    sinks[0].commit().unwrap();
    let landed = sinks[0].landed();
    assert_eq!((landed.unchanged_files, landed.replaced_files), (1, 1));
    assert_eq!(std::fs::read(to.join("b")).unwrap(), b"b");
}

/// A file that was found and is another one at the end makes the commit fail before anything has its name, on whichever node; so
/// does one that the first of two committing nodes had left alone.
#[test]
fn a_file_that_changes_meanwhile_is_named() {
    for (committer, takes_over) in [(0, false), (1, false), (1, true)] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir(&from).unwrap();
        for name in ["a", "b"] {
            std::fs::write(from.join(name), "same").unwrap();
        }
        copy(&from, &to);
        std::fs::write(from.join("b"), "newer").unwrap();
        let (source, parts, lead) = looked(&from, &to);
        let sinks = shared(&to, &parts, lead);
        assert_eq!(fill(&source, &sinks), 5);
        if takes_over {
            sinks[0].commit().unwrap();
            sinks[1].take_over();
            sinks[1].commit().unwrap();
            assert_eq!(sinks[1].landed().unchanged_files, 1);
            assert!(files(&from) == files(&to));
            continue;
        }
        std::fs::write(to.join("a"), "another").unwrap();
        let error = sinks[committer].commit().unwrap_err();
        assert!(
            matches!(&error, StoreError::ChangedAtDestination { path } if *path == to.join("a")),
            "{error}"
        );
        assert_eq!(std::fs::read(to.join("b")).unwrap(), b"same");
        sinks[committer].discard();
        assert_eq!(names(&to), ["a", "b"]);
    }
}

/// A single file that was found is not staged by anyone; one without bytes that was not found is made by whichever node commits.
#[test]
fn a_single_file_that_was_found_stays() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, "").unwrap();
    for committer in [0, 1, 0, 1] {
        if committer == 0 {
            let _ = std::fs::remove_file(&to);
        }
        let (source, parts, lead) = looked(&from, &to);
        let sinks = shared(&to, &parts, lead);
        assert_eq!(fill(&source, &sinks), 0);
        sinks[committer].commit().unwrap();
        assert!(files(&from) == files(&to));
        assert_eq!(names(&folder), ["from", "to"]);
    }
    std::fs::write(&from, "contents").unwrap();
    copy(&from, &to);
    let (source, parts, lead) = looked(&from, &to);
    let sinks = shared(&to, &parts, lead);
    assert!(!folder.join(format!(".to.ropewalk-{ID}")).exists());
    assert_eq!(fill(&source, &sinks), 0);
    sinks[1].commit().unwrap();
    assert_eq!(sinks[1].landed().unchanged_files, 1);
    set_times(&from, 7, 0);
    let (source, parts, lead) = looked(&from, &to);
    assert_eq!(lead.present().unchanged, RangeSet::new());
    let sinks = shared(&to, &parts, lead);
    assert_eq!(fill(&source, &sinks), 8);
    sinks[0].commit().unwrap();
    assert!(files(&from) == files(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

const ID: &str = "0123456789abcdef0123456789abcdef";
const OTHER_ID: &str = "fedcba9876543210fedcba9876543210";

/// What each node of a killed transfer had made safe is taken over by the next one, of any number of nodes; it writes only the rest,
/// and nothing stays.
#[test]
fn what_several_nodes_left_is_taken_over() {
    for (is_tree, is_own) in [(true, false), (false, false), (true, true), (false, true)] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        match is_tree {
            true => {
                std::fs::create_dir_all(from.join("sub")).unwrap();
                std::fs::write(from.join("sub/one"), bytes(1, 100_000)).unwrap();
                std::fs::write(from.join("two"), bytes(2, 1000)).unwrap();
            }
            false => std::fs::write(&from, bytes(1, 101_000)).unwrap(),
        }
        let scan = Scan::read(&from).unwrap();
        let source = FileSource::open_tree(&from, &scan, 0).unwrap();
        let parts = [Part::whole(0, scan.manifest)];
        let all = Range::new(0, 101_000);
        let write = |sink: &TreeSink, range: Range| {
            let mut buffer = vec![0; range.len() as usize];
            source.read_at(range.start, &mut buffer).unwrap();
            sink.write_at(range.start, &buffer).unwrap();
        };
        let lead = TreeSink::lead(&to, &parts, ID, 0, Adopt::All).unwrap();
        let other = TreeSink::share(
            &to,
            &parts,
            ID,
            7,
            (&RangeSet::new(), &RangeSet::new()),
            ropewalk_store::Stays::Same,
            ropewalk_store::Check::Time,
        )
        .unwrap();
        // Bytes that were written and not synced are not recorded.
        for (sink, safe, lost) in [
            (&lead, Range::new(0, 20_000), Range::new(90_000, 90_500)),
            (
                &other,
                Range::new(40_000, 80_000),
                Range::new(100_500, 101_000),
            ),
        ] {
            write(sink, safe);
            sink.sync().unwrap();
            sink.record(&RangeSet::from(safe), &[]);
            write(sink, lost);
        }
        let safe = RangeSet::from_ranges([Range::new(0, 20_000), Range::new(40_000, 80_000)]);
        let next = |node: Option<u32>| match node {
            Some(node) => TreeSink::lead(&to, &parts, OTHER_ID, node, Adopt::All).unwrap(),
            None => TreeSink::update(&to, &parts, &format!("{OTHER_ID}-0"), Adopt::All).unwrap(),
        };
        // While one of the writers lives nothing is taken from it, not even its name.
        drop(lead);
        let during = next(Some(3));
        assert_eq!(during.present().adopted, RangeSet::new());
        during.discard();
        write(&other, Range::new(0, 10));
        drop(other);
        let first = next((!is_own).then_some(3));
        assert_eq!(first.present().adopted, safe, "{is_tree} {is_own}");
        // The node that took it over dies before it has said so, or after: what it took is found in its place.
        let (sinks, last) = match is_own {
            true => (vec![first], 0),
            false => {
                let second = next(Some(4));
                assert_eq!(second.present().adopted, safe);
                let third = TreeSink::share(
                    &to,
                    &parts,
                    OTHER_ID,
                    5,
                    (&RangeSet::new(), &RangeSet::new()),
                    ropewalk_store::Stays::Same,
                    ropewalk_store::Check::Time,
                )
                .unwrap();
                (vec![first, second, third], 2)
            }
        };
        let rest = RangeSet::from(all).difference(&safe);
        for (at, range) in rest.iter().enumerate() {
            write(&sinks[at % sinks.len()], range);
        }
        sinks.iter().for_each(|sink| sink.sync().unwrap());
        sinks[last].commit().unwrap();
        assert!(files(&from) == files(&to), "{is_tree} {is_own}");
        assert_eq!(names(&folder), ["from", "to"]);
    }
}

/// A node that comes when a later transfer has taken over what its own wrote finds that out, and makes nothing.
#[test]
fn one_that_comes_too_late_makes_nothing() {
    for is_tree in [true, false] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        match is_tree {
            true => {
                std::fs::create_dir(&from).unwrap();
                std::fs::write(from.join("one"), bytes(1, 1000)).unwrap();
            }
            false => std::fs::write(&from, bytes(1, 1000)).unwrap(),
        }
        let (source, parts, lead) = looked(&from, &to);
        let mut buffer = [0; 500];
        source.read_at(0, &mut buffer).unwrap();
        lead.write_at(0, &buffer).unwrap();
        lead.sync().unwrap();
        lead.record(&RangeSet::from(Range::new(0, 500)), &[]);
        drop(lead);
        let next = TreeSink::lead(&to, &parts, OTHER_ID, 0, Adopt::All).unwrap();
        assert_eq!(next.present().adopted.len_bytes(), 500);
        let late = TreeSink::share(
            &to,
            &parts,
            ID,
            1,
            (&RangeSet::new(), &RangeSet::new()),
            ropewalk_store::Stays::Same,
            ropewalk_store::Check::Time,
        );
        let error = late.unwrap_err();
        assert!(matches!(error, StoreError::Vanished { .. }), "{error}");
        next.discard();
        assert_eq!(names(&folder), ["from"]);
    }
}

/// A copy for which there is no space is refused by each node that looks, which leaves nothing that would hide it, and by one that writes
/// where none could look.
#[test]
fn a_lack_of_space_is_seen_by_all() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("one"), "x").unwrap();
    let mut manifest = Manifest::clone(&Scan::read(&from).unwrap().manifest);
    manifest.entries[1].kind = EntryKind::File { len: 1 << 60 };
    let parts = [Part::whole(0, Arc::new(manifest))];
    let is_full = |sink: Result<TreeSink, StoreError>| {
        let error = sink.map(drop).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    };
    for node in 0..2 {
        is_full(TreeSink::lead(&to, &parts, ID, node, Adopt::All));
        assert_eq!(names(&folder), ["from"]);
    }
    is_full(TreeSink::create(&to, &parts, ID, true));
}

/// What the first node of a shared copy cannot hold the others leave out, too, though they could: one of them may commit. What only they cannot
/// hold is sent all the same.
#[test]
fn the_first_node_decides_what_is_left_out() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "big", "c"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    let scan = Scan::read(&from).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let first = TreeSink::lead(&to, &parts, ID, 0, Adopt::All).unwrap();
    let big = first.layout().pieces()[1].range;
    let refused = RangeSet::from(big);
    let second = TreeSink::share(
        &to,
        &parts,
        ID,
        1,
        (&refused, &refused),
        ropewalk_store::Stays::Same,
        ropewalk_store::Check::Time,
    )
    .unwrap();
    assert_eq!(second.present().refused, refused);
    let rest = second.layout().ranges().difference(&refused);
    rest.iter().for_each(|range| write(&source, &second, range));
    first.sync().unwrap();
    second.take_over();
    second.commit().unwrap();
    assert_eq!(names(&to), ["a", "c"]);
    let unplaced = second.landed().unplaced;
    assert_eq!(unplaced.len(), 1);
    assert_eq!(unplaced[0].0, b"big");
}

/// What is closed to one node alone is sent all the same. Where it commits, that has no place, and is named with its folder.
#[test]
fn what_is_closed_to_one_node_has_no_place() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in ["closed/deep", "open"] {
        std::fs::create_dir_all(from.join(path)).unwrap();
        std::fs::create_dir_all(to.join(path)).unwrap();
        std::fs::write(from.join(path).join("file"), path).unwrap();
    }
    set_mode(&to.join("closed"), 0o700);
    for path in ["", "to", "to/open"] {
        std::os::unix::fs::chown(folder.join(path), Some(65534), Some(65534)).unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        set_mode(&to.join("closed"), 0o000);
    }
    let landed = support::sys::as_nobody(|| {
        let scan = Scan::read(&from).unwrap();
        let source = FileSource::open_tree(&from, &scan, 0).unwrap();
        let parts = [Part::whole(0, scan.manifest)];
        let _first = TreeSink::lead(&to, &parts, ID, 0, Adopt::All).unwrap();
        let none = RangeSet::new();
        let second = TreeSink::share(
            &to,
            &parts,
            ID,
            1,
            (&none, &none),
            ropewalk_store::Stays::Same,
            ropewalk_store::Check::Time,
        )
        .unwrap();
        assert_eq!(second.present().refused, none);
        let all = second.layout().ranges();
        all.iter().for_each(|range| write(&source, &second, range));
        second.commit().unwrap();
        second.landed()
    });
    set_mode(&to.join("closed"), 0o700);
    let named: Vec<&[u8]> = landed.unplaced.iter().map(|(path, _)| &path[..]).collect();
    assert_eq!(named, [b"closed/deep"]);
    assert_eq!(landed.added_files, 1);
    assert_eq!(std::fs::read(to.join("open/file")).unwrap(), b"open");
}
