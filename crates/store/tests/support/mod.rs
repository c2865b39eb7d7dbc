//! What the tests of whole stores share: odd trees, moving one, comparing two, and small disks.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ropewalk_model::{Layout, Range, RangeSet};
use ropewalk_store::{
    Adopt, EntryKind, FileSource, Manifest, Part, Scan, Sink, Source, TreeSink, Wish,
};

pub mod mirror;
pub mod power;
pub mod sys;

pub const ID: &str = "0198-test";

/// Numbers that look random.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Bytes that differ from offset to offset and from seed to seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            (at.wrapping_mul(0x9e37_79b9)
                .wrapping_add(seed.wrapping_mul(77))
                >> 7) as u8
        })
        .collect()
}

/// A folder for one test, resolved, because stores refuse links on the way.
pub fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

pub fn set_times(path: &Path, seconds: i64, nanoseconds: u32) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    utimensat(
        CWD,
        path,
        &Timestamps {
            last_access: time,
            last_modification: time,
        },
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A tree with everything that copies get wrong.
pub fn odd_tree(root: &Path) {
    let create =
        |path: &[u8], contents: &[u8]| std::fs::write(root.join(name(path)), contents).unwrap();
    for path in [
        &b"plain"[..],
        b"empty folder",
        b"-rf",
        b"line\nbreak",
        b"not \xff\xfe utf-8",
        b"plain/deep",
        b"closed",
    ] {
        std::fs::create_dir_all(root.join(name(path))).unwrap();
    }
    create(b"plain/small", b"a few bytes");
    create(b"plain/deep/large", &bytes(1, (3 << 20) + 17));
    create(
        b"plain-sorts between plain and what is in it",
        &bytes(2, 5000),
    );
    create(b"-rf/--help", b"dash");
    create(b"line\nbreak/tab\tand space ", b"names");
    create(b"not \xff\xfe utf-8/\x80", b"bytes");
    create(b"empty", b"");
    create(b"plain/empty too", b"");
    create(b"closed/read only", &bytes(3, 100));
    for (link, target) in [
        ("to file", "plain/small"),
        ("dangling", "no such\nthing"),
        ("to outside", "/etc"),
        ("plain/up", ".."),
    ] {
        std::os::unix::fs::symlink(target, root.join(link)).unwrap();
    }
    set_mode(&root.join("closed/read only"), 0o444);
    set_mode(&root.join("plain/small"), 0o751);
    set_times(&root.join("plain/small"), -86_400 * 365 * 5, 123_456_789);
    set_times(&root.join("empty"), 1, 1);
    set_times(&root.join("dangling"), 1_000_000_000, 999_999_999);
    set_times(&root.join("plain/deep"), 946_684_800, 5);
    set_times(&root.join("closed"), 1_500_000_000, 7);
    set_mode(&root.join("closed"), 0o555);
    set_times(root, 1_234_567_890, 42);
}

/// All that a copy must keep, contents included.
pub fn snapshot(root: &Path) -> Vec<(ropewalk_store::Entry, Vec<u8>)> {
    let manifest = Manifest::scan(root).unwrap();
    let contents = |entry: &ropewalk_store::Entry| match entry.kind {
        EntryKind::File { .. } if entry.path.is_empty() => std::fs::read(root).unwrap(),
        EntryKind::File { .. } => std::fs::read(root.join(name(&entry.path))).unwrap(),
        EntryKind::Directory
        | EntryKind::Symlink { .. }
        | EntryKind::HardLink { .. }
        | EntryKind::Special(_) => Vec::new(),
    };
    manifest
        .entries
        .iter()
        .map(|entry| (entry.clone(), contents(entry)))
        .collect()
}

/// Moves every unit of a layout from a source to a sink.
pub fn pump(layout: &Layout, source: &dyn Source, sink: &dyn Sink) {
    for unit in layout.units(Range {
        start: 0,
        end: u64::MAX,
    }) {
        let mut buf = vec![0; unit.len() as usize];
        source.read_at(unit.start, &mut buf).unwrap();
        sink.write_at(unit.start, &buf).unwrap();
    }
}

/// A sink for one tree, and the source of it.
pub fn tree_pair(from: &Path, to: &Path, base: u64) -> (FileSource, TreeSink) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, base).unwrap();
    let manifest = scan.manifest;
    let sink = TreeSink::create(to, &[Part::whole(base, manifest)], ID, false).unwrap();
    (source, sink)
}

/// Two sinks that have written all of a tree together.
pub fn whole(from: &Path, to: &Path) -> [TreeSink; 2] {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sinks = [0, 1].map(|_| TreeSink::create(to, &parts, ID, true).unwrap());
    pump(source.layout(), &source, &sinks[0]);
    sinks
}

/// The same for an update: a sink that leaves what is there already.
pub fn update_pair(from: &Path, to: &Path, id: &str) -> (FileSource, TreeSink) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    (
        source,
        TreeSink::update(to, &parts, id, Adopt::All).unwrap(),
    )
}

/// Copies a tree or file as a transfer does.
pub fn copy(from: &Path, to: &Path) {
    let (source, sink) = tree_pair(from, to, 1000);
    pump(source.layout(), &source, &sink);
    sink.commit().unwrap();
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

pub const MIB: u64 = 1 << 20;

/// Of transfers, and not of rounds of one: these wait for each other.
pub fn id(number: u32) -> String {
    format!("{number:08x}{:024x}-0", 0)
}

pub fn write(source: &FileSource, sink: &TreeSink, range: Range) {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(MIB);
        let mut buffer = vec![0; len as usize];
        source.read_at(at, &mut buffer).unwrap();
        sink.write_at(at, &buffer).unwrap();
        at += len;
    }
}

/// Writes a range and makes it safe, as a receiver does.
pub fn make_safe(source: &FileSource, sink: &TreeSink, range: Range) {
    write(source, sink, range);
    sink.sync().unwrap();
    sink.record(&RangeSet::from(range), &[]);
}

/// The wish for files that get their names as they are safe.
pub fn early_wish() -> Wish<'static> {
    Wish {
        names_early: true,
        ..Wish::from(Adopt::All)
    }
}

/// As [`update_pair`], with [`early_wish`].
pub fn early_pair(from: &Path, to: &Path, id: &str) -> (FileSource, TreeSink) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = TreeSink::update(to, &parts, id, early_wish()).unwrap();
    (source, sink)
}

/// Writes a range, and gives names as a receiver does; how many.
pub fn give_names(source: &FileSource, sink: &TreeSink, range: Range) -> u64 {
    write(source, sink, range);
    sink.make_ready(&RangeSet::from(Range::new(0, range.end)));
    sink.sync().unwrap();
    sink.record(&RangeSet::from(range), &[]);
    sink.name_ready()
}

/// Writes what is missing and ends the transfer. Returns how many bytes that were.
pub fn finish(source: &FileSource, sink: &TreeSink) -> u64 {
    let absent = sink.layout().ranges().difference(&sink.present().all());
    absent.iter().for_each(|range| write(source, sink, range));
    sink.commit().unwrap();
    absent.len_bytes()
}

/// A tree of `big`, of so many MiB, and of small files.
pub fn tree(folder: &Path, big: usize) -> PathBuf {
    let from = folder.join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("sub/big"), bytes(1, big * MIB as usize)).unwrap();
    std::fs::write(from.join("a"), bytes(2, 5000)).unwrap();
    std::fs::write(from.join("sub/z"), bytes(3, 5000)).unwrap();
    from
}
