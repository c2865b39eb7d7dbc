//! A disk that loses its power at any moment of a copy, and of those that go on with it: nothing is called safe that is not there.

use std::path::Path;

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{Adopt, Entry, EntryKind, FileSource, Part, Scan, Sink as _, TreeSink};

mod support;
use support::power::Trace;
use support::*;

/// Moments at which the power is lost; `ROPEWALK_POWER_CUTS` sets another number.
const POINTS: u64 = 1000;

const WRITER: &str = "ROPEWALK_POWER_WRITER";

const TOGETHER: &str = "ROPEWALK_POWER_TOGETHER";

/// Large enough that a part of it is kept where a transfer fails.
const MIBS: u64 = 3;

/// Two versions of the sources. Times are in the past, as those of files that are copied are.
fn make_sources(folder: &Path) {
    for (version, seed) in [("v1", 1), ("v2", 100)] {
        let from = folder.join(version);
        std::fs::create_dir_all(from.join("sub")).unwrap();
        let files = [
            ("a", 5000),
            ("sub/big", MIBS as usize * MIB as usize),
            ("sub/z", 5000),
        ];
        for (at, (file, len)) in files.into_iter().enumerate() {
            let path = from.join(file);
            std::fs::write(&path, bytes(seed + at as u64, len)).unwrap();
            set_times(&path, 1_000_000_000 + seed as i64, at as u32 * 1000 + 7);
        }
    }
}

/// All files of a tree; folders that stood there keep their times.
fn files(root: &Path) -> Vec<(Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| matches!(entry.kind, EntryKind::File { .. }));
    all
}

/// What is traced: a copy that is killed, one that goes on, and the same of a newer version that fails between, whose files get their
/// names as they are safe.
#[test]
fn writer() {
    let Some(folder) = std::env::var_os(WRITER) else {
        return;
    };
    let folder = Path::new(&folder);
    let to = folder.join("disk/to");
    let big = 5000;
    let mark = || assert!(std::fs::remove_file(folder.join("disk/mark")).is_err());
    let (source, sink) = update_pair(&folder.join("v1"), &to, &id(1));
    make_safe(&source, &sink, Range::new(0, big + MIB));
    write(&source, &sink, Range::new(big + MIB, big + 2 * MIB));
    drop((source, sink));
    let (source, sink) = update_pair(&folder.join("v1"), &to, &id(2));
    make_safe(&source, &sink, Range::new(big + MIB, big + 2 * MIB));
    drop((source, sink));
    let (source, sink) = update_pair(&folder.join("v1"), &to, &id(3));
    finish(&source, &sink);
    drop((source, sink));
    mark();
    let (source, sink) = early_pair(&folder.join("v2"), &to, &id(4));
    let there = Range::new(0, big + 2 * MIB);
    assert_eq!(give_names(&source, &sink, there), 1);
    sink.keep_more();
    let missing = sink.layout().ranges().difference(&RangeSet::from(there));
    assert!(sink.commit_whole_files(&missing).unwrap());
    drop((source, sink));
    let (source, sink) = early_pair(&folder.join("v2"), &to, &id(5));
    let last = Range::new(big + 2 * MIB, big + MIBS * MIB);
    assert_eq!(give_names(&source, &sink, last), 1);
    drop((source, sink));
    let (source, sink) = early_pair(&folder.join("v2"), &to, &id(6));
    finish(&source, &sink);
}

#[test]
fn nothing_is_safe_that_a_power_cut_took() {
    let (_keep, folder) = folder();
    make_sources(&folder);
    let disk = folder.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let program = std::env::current_exe().unwrap();
    let command = [program.to_str().unwrap(), "--exact", "writer"];
    let Some(trace) = Trace::of(&command, (WRITER, &folder), &disk) else {
        eprintln!("SKIPPED: there is no strace here");
        return;
    };
    assert!(files(&folder.join("v2")) == files(&disk.join("to")));
    let [mark] = trace.marks[..] else {
        panic!("one mark: {:?}", trace.marks);
    };
    // Syncs cost nothing there.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let memory = memory.unwrap();
    let memory = memory.path().canonicalize().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % end.max(1)
    };
    let points = std::env::var("ROPEWALK_POWER_CUTS").ok();
    let points = points.map_or(POINTS, |number| number.parse().unwrap());
    let (mut adopted, mut unchanged) = (0, 0);
    for point in 0..points {
        let until = random(trace.len() as u64 + 1) as usize;
        let disk = memory.join(point.to_string());
        std::fs::create_dir(&disk).unwrap();
        trace.replay(until, &disk, &mut random);
        let from = folder.join(if until <= mark { "v1" } else { "v2" });
        let to = disk.join("to");
        let (source, sink) = update_pair(&from, &to, &id(99));
        let present = sink.present();
        for range in present.adopted.iter() {
            let len = range.len() as usize;
            let (mut wanted, mut found) = (vec![0; len], vec![0; len]);
            ropewalk_store::Source::read_at(&source, range.start, &mut wanted).unwrap();
            sink.read_back(range.start, &mut found).unwrap();
            assert!(wanted == found, "point {point}, cut at {until}: {range:?}");
        }
        adopted += u64::from(!present.adopted.is_empty());
        unchanged += u64::from(!present.unchanged.is_empty());
        finish(&source, &sink);
        assert!(files(&from) == files(&to), "point {point}, cut at {until}");
        std::fs::remove_dir_all(&disk).unwrap();
    }
    println!(
        "{points} power cuts in {} changes: {adopted} times bytes were taken over, {unchanged} times files were complete",
        trace.len()
    );
    assert!(adopted > points / 10 && unchanged > points / 10);
}

fn lead(from: &Path, to: &Path, number: u32) -> (FileSource, [Part; 1], TreeSink) {
    let scan = Scan::read(from).unwrap();
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let lead = TreeSink::lead(to, &parts, &id(number), 0, Adopt::All).unwrap();
    (source, parts, lead)
}

/// What is traced: two nodes write a copy; the second one has received nothing when the power is lost.
#[test]
fn writers_together() {
    let Some(folder) = std::env::var_os(TOGETHER) else {
        return;
    };
    let folder = Path::new(&folder);
    let (from, to) = (folder.join("v1"), folder.join("disk/to"));
    let (source, parts, first) = lead(&from, &to, 1);
    make_safe(&source, &first, Range::new(0, 5000 + MIB));
    let found = first.present().unchanged;
    let second = TreeSink::share(
        &to,
        &parts,
        &id(1),
        1,
        (&found, &RangeSet::new()),
        ropewalk_store::Stays::Same,
        ropewalk_store::Check::Time,
    )
    .unwrap();
    std::process::exit(i32::from(second.layout().pieces().is_empty()));
}

/// A node that loses its power before it has received anything takes nothing away from the others.
#[test]
fn a_node_that_has_nothing_yet_loses_nothing_of_others() {
    let (_keep, folder) = folder();
    make_sources(&folder);
    let disk = folder.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let program = std::env::current_exe().unwrap();
    let command = [program.to_str().unwrap(), "--exact", "writers_together"];
    let Some(trace) = Trace::of(&command, (TOGETHER, &folder), &disk) else {
        eprintln!("SKIPPED: there is no strace here");
        return;
    };
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let memory = memory.unwrap();
    let memory = memory.path().canonicalize().unwrap();
    for point in 0..50 {
        let disk = memory.join(point.to_string());
        std::fs::create_dir(&disk).unwrap();
        let mut state = point * 2 + 1;
        let mut random = |end: u64| {
            state = u64::wrapping_mul(state, 0x5851_f42d_4c95_7f2d).wrapping_add(99);
            (state >> 33) % end.max(1)
        };
        trace.replay(trace.len(), &disk, &mut random);
        let (.., next) = lead(&folder.join("v1"), &disk.join("to"), 2);
        let adopted = next.present().adopted;
        assert_eq!(
            adopted,
            RangeSet::from(Range::new(0, 5000 + MIB)),
            "point {point}"
        );
    }
}
