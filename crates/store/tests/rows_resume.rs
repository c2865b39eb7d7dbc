//! Rows go on where an earlier transfer to the same file ended.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ropewalk_model::{Layout, Piece, Range, RangeSet};
use ropewalk_store::{
    Adopt, FileSink, Identity, KEPT_MIN_FAILED, Origin, RemainState, Sink as _, SinkFile,
    StoreError, Unit, remains,
};

mod support;
use support::*;

/// Bytes of a source.
const LEN: u64 = 6000;

/// Bytes of the data space, where they go in the file, and where they come from: name, time and offset of the source.
#[derive(Clone, Copy, Debug)]
struct Row {
    range: Range,
    at: u64,
    name: &'static str,
    time: i64,
    from: u64,
}

fn row(start: u64, len: u64, at: u64, (name, time, from): (&'static str, i64, u64)) -> Row {
    Row {
        range: Range::new(start, start + len),
        at,
        name,
        time,
        from,
    }
}

impl Row {
    /// What its source has; a source that changed has other bytes.
    fn contents(&self) -> Vec<u8> {
        let seed = self.name.bytes().map(u64::from).sum::<u64>() * 1000 + self.time as u64;
        let all = bytes(seed, (self.from + self.range.len()) as usize);
        all[self.from as usize..].to_vec()
    }

    fn piece(&self) -> Piece {
        Piece {
            range: self.range,
            object: 0,
            object_offset: self.at,
        }
    }

    fn origin(&self) -> Origin {
        Origin {
            range: self.range,
            offset: self.from,
            name: self.name.into(),
            identity: Identity {
                len: LEN.max(self.from + self.range.len()),
                mtime_seconds: self.time,
                mtime_nanoseconds: 5,
            },
        }
    }
}

/// What one transfer writes.
struct Spec {
    rows: Vec<Row>,
    keeps_rest: bool,
    adopt: Adopt,
}

impl Spec {
    fn of(rows: &[Row]) -> Self {
        Self {
            rows: rows.to_vec(),
            keeps_rest: false,
            adopt: Adopt::All,
        }
    }

    fn into_what_is_there(rows: &[Row]) -> Self {
        Self {
            keeps_rest: true,
            ..Self::of(rows)
        }
    }

    fn open(&self, path: &Path, number: u32) -> FileSink {
        let (layout, files, origins) = self.parts(path);
        FileSink::update(layout, files, &id(number), &origins, self.adopt, &|| false).unwrap()
    }

    /// As the node that takes over for all.
    fn lead(&self, path: &Path, number: u32, node: u32) -> FileSink {
        let (layout, files, origins) = self.parts(path);
        FileSink::lead(layout, files, &id(number), node, &origins, self.adopt).unwrap()
    }

    /// As another node.
    fn share(&self, path: &Path, number: u32, node: u32) -> Result<FileSink, StoreError> {
        let (layout, files, origins) = self.parts(path);
        FileSink::share(layout, files, &id(number), node, &origins)
    }

    fn parts(&self, path: &Path) -> (Layout, Vec<SinkFile>, Vec<Origin>) {
        let layout = Layout::new(self.rows.iter().map(Row::piece).collect()).unwrap();
        let file = SinkFile {
            path: path.to_owned(),
            renames: true,
            mode: None,
            keeps_rest: self.keeps_rest,
        };
        let mut origins: Vec<Origin> = self.rows.iter().map(Row::origin).collect();
        origins.sort_by_key(|origin| origin.range.start);
        (layout, vec![file], origins)
    }

    fn all(&self) -> RangeSet {
        RangeSet::from_ranges(self.rows.iter().map(|row| row.range))
    }

    fn write(&self, sink: &FileSink, ranges: &RangeSet) {
        for row in &self.rows {
            for range in ranges.clipped(row.range).iter() {
                let (start, end) = (range.start - row.range.start, range.end - row.range.start);
                let contents = row.contents();
                sink.write_at(range.start, &contents[start as usize..end as usize])
                    .unwrap();
            }
        }
    }

    /// Writes, syncs and records, with the hash of each range.
    fn make_safe(&self, sink: &FileSink, ranges: &[Range]) {
        let safe = RangeSet::from_ranges(ranges.iter().copied());
        self.write(sink, &safe);
        sink.sync().unwrap();
        let units = ranges.iter().map(|range| Unit {
            range: *range,
            digest: [7; 32],
        });
        sink.record(&safe, &units.collect::<Vec<_>>());
    }

    /// Writes what is lacking and gives the name. How many bytes were lacking.
    fn finish(&self, sink: &FileSink) -> u64 {
        let rest = self.all().difference(&sink.present().adopted);
        self.write(sink, &rest);
        sink.commit().unwrap();
        rest.len_bytes()
    }

    /// What a file has where nothing was there before, or this.
    fn expected(&self, before: &[u8]) -> Vec<u8> {
        let mut all = before.to_vec();
        for row in &self.rows {
            let end = (row.at + row.range.len()) as usize;
            all.resize(all.len().max(end), 0);
            all[row.at as usize..end].copy_from_slice(&row.contents());
        }
        all
    }
}

const HALF1: (&str, i64, u64) = ("half1", 1, 0);
const HALF2: (&str, i64, u64) = ("half2", 2, 0);

fn halves() -> [Row; 2] {
    [row(0, 3000, 0, HALF1), row(3000, 3000, 3000, HALF2)]
}

fn ranges(ranges: &[(u64, u64)]) -> Vec<Range> {
    ranges.iter().map(|&(s, e)| Range::new(s, e)).collect()
}

fn assert_only(folder: &Path, names_left: &[&str]) {
    assert_eq!(names(folder), names_left);
}

/// Of a writer that was killed everything that it had recorded is taken over, and nothing that it had not: also where the rows lie
/// elsewhere in the data space, are cut elsewhere, and others were added.
#[test]
fn a_changed_specification_shifts_nothing() {
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let first = Spec::of(&halves());
    let sink = first.open(&path, 1);
    first.make_safe(&sink, &ranges(&[(0, 1000), (2500, 3000), (3000, 3500)]));
    first.write(&sink, &RangeSet::from(Range::new(5000, 6000)));
    assert_eq!(names(&folder).len(), 2, "file and journal");
    drop(sink);

    // The second half comes first, the first one in two rows, and there is a third source.
    let second = Spec::of(&[
        row(100, 3000, 3000, HALF2),
        row(5000, 600, 0, HALF1),
        row(8000, 2400, 600, ("half1", 1, 600)),
        row(20_000, 500, 6000, ("more", 3, 7)),
    ]);
    let sink = second.open(&path, 2);
    let adopted = [(100, 600), (5000, 5600), (8000, 8400), (9900, 10_400)];
    let adopted = RangeSet::from_ranges(ranges(&adopted));
    assert_eq!(sink.present().adopted, adopted);
    drop(sink);
    // And again by the next one.
    let sink = second.open(&path, 3);
    assert_eq!(sink.present().adopted, adopted);
    assert_eq!(second.finish(&sink), 6500 - 2000);
    assert!(std::fs::read(&path).unwrap() == second.expected(b""));
    assert_only(&folder, &["copy"]);
}

/// Bytes of a source that changed, of another place in it, or of another file are sent again; the rest of the file is not.
#[test]
fn other_bytes_are_sent_again() {
    for other in [("half1", 9, 0), ("half1", 1, 1), ("other", 1, 0)] {
        let (_keep, folder) = folder();
        let path = folder.join("copy");
        let first = Spec::of(&halves());
        let sink = first.open(&path, 1);
        first.make_safe(&sink, &ranges(&[(0, 2000), (3000, 5000)]));
        drop(sink);
        let second = Spec::of(&[row(0, 3000, 0, other), halves()[1]]);
        let sink = second.open(&path, 2);
        let adopted = RangeSet::from(Range::new(3000, 5000));
        assert_eq!(sink.present().adopted, adopted, "{other:?}");
        assert_eq!(second.finish(&sink), 4000);
        assert!(std::fs::read(&path).unwrap() == second.expected(b""));
        assert_only(&folder, &["copy"]);
    }
}

/// Bytes of the file that no row writes any more are zeros, as in a file that was never anything else; and what was recorded of them is
/// not believed later.
#[test]
fn what_no_row_writes_is_zeros() {
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let first = Spec::of(&halves());
    let sink = first.open(&path, 1);
    first.make_safe(&sink, &ranges(&[(0, 3000), (3000, 6000)]));
    drop(sink);
    let fewer = Spec::of(&[
        row(0, 1000, 0, HALF1),
        row(4000, 500, 4000, ("half2", 2, 1000)),
    ]);
    let sink = fewer.open(&path, 2);
    assert_eq!(sink.present().adopted, fewer.all());
    drop(sink);
    // All rows again: of the others nothing is left.
    let sink = first.open(&path, 3);
    let there = RangeSet::from_ranges(ranges(&[(0, 1000), (4000, 4500)]));
    assert_eq!(sink.present().adopted, there);
    drop(sink);
    let sink = fewer.open(&path, 4);
    assert_eq!(fewer.finish(&sink), 0);
    let contents = std::fs::read(&path).unwrap();
    assert_eq!(contents.len(), 4500);
    assert!(contents == fewer.expected(b""));
    assert_only(&folder, &["copy"]);
}

/// A range that is written into a file goes on, whatever became of the file meanwhile: its other bytes are those that it has now.
#[test]
fn a_range_goes_on_in_a_file_that_changed() {
    let rows = [row(0, 3000, 1000, HALF1)];
    for (before, now) in [
        (bytes(1, 9000), bytes(1, 9000)),
        (bytes(1, 9000), bytes(2, 9000)),
        (bytes(1, 9000), bytes(2, 500)),
        (bytes(1, 500), bytes(2, 9000)),
        (Vec::new(), bytes(2, 2000)),
    ] {
        let (_keep, folder) = folder();
        let path = folder.join("image");
        std::fs::write(&path, &before).unwrap();
        let spec = Spec::into_what_is_there(&rows);
        let sink = spec.open(&path, 1);
        spec.make_safe(&sink, &ranges(&[(500, 2000)]));
        drop(sink);
        std::fs::write(&path, &now).unwrap();
        let sink = spec.open(&path, 2);
        assert_eq!(sink.present().adopted.len_bytes(), 1500);
        assert_eq!(spec.finish(&sink), 1500);
        assert!(
            std::fs::read(&path).unwrap() == spec.expected(&now),
            "{} bytes, then {}",
            before.len(),
            now.len()
        );
        assert_only(&folder, &["image"]);
    }
}

/// A file that changes while its range is written is not replaced, as without an earlier transfer.
#[test]
fn a_file_that_changes_meanwhile_stays() {
    let (_keep, folder) = folder();
    let path = folder.join("image");
    std::fs::write(&path, bytes(1, 9000)).unwrap();
    let spec = Spec::into_what_is_there(&[row(0, 3000, 1000, HALF1)]);
    let sink = spec.open(&path, 1);
    spec.make_safe(&sink, &ranges(&[(500, 2000)]));
    drop(sink);
    let sink = spec.open(&path, 2);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"changed", 8000).unwrap();
    set_times(&path, 77, 0);
    spec.write(&sink, &spec.all());
    assert!(sink.commit().is_err());
    let mut expected = bytes(1, 9000);
    expected[8000..8007].copy_from_slice(b"changed");
    assert!(std::fs::read(&path).unwrap() == expected);
}

/// Wherever its journal is cut, a file is what it should be in the end, and nothing is taken over that was not recorded.
#[test]
fn a_torn_journal_costs_bytes_and_nothing_else() {
    let spec = Spec::of(&halves());
    let recorded = [(0, 1000), (2500, 3000), (3000, 3500)];
    let run = |cut: Option<u64>| {
        let (_keep, folder) = folder();
        let path = folder.join("copy");
        let sink = spec.open(&path, 1);
        for range in recorded {
            spec.make_safe(&sink, &ranges(&[range]));
        }
        drop(sink);
        let journal = names(&folder);
        let journal = journal
            .iter()
            .find(|name| name.to_string_lossy().ends_with("journal"));
        let journal = folder.join(journal.unwrap());
        let len = journal.metadata().unwrap().len();
        if let Some(cut) = cut {
            let file = std::fs::File::options().write(true).open(&journal).unwrap();
            file.set_len(cut).unwrap();
        }
        let sink = spec.open(&path, 2);
        let adopted = sink.present().adopted;
        let safe = RangeSet::from_ranges(ranges(&recorded));
        assert!(adopted.difference(&safe).is_empty(), "{cut:?}: {adopted}");
        assert_eq!(spec.finish(&sink), 6000 - adopted.len_bytes());
        assert!(
            std::fs::read(&path).unwrap() == spec.expected(b""),
            "{cut:?}"
        );
        (len, adopted.len_bytes())
    };
    let (len, whole) = run(None);
    assert_eq!(whole, 2000);
    let found: Vec<u64> = (0..len).map(|cut| run(Some(cut)).1).collect();
    assert!(found.is_sorted(), "a longer journal says more: {found:?}");
    assert!([0, 1000, 1500].iter().all(|bytes| found.contains(bytes)));
}

/// Where the sink is to be read back, only whole units whose hashes are known are taken over, at their place in the data space.
#[test]
fn only_units_with_hashes_are_read_back() {
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let spec = Spec::of(&halves());
    let sink = spec.open(&path, 1);
    spec.make_safe(&sink, &ranges(&[(0, 1000), (1000, 2000)]));
    drop(sink);
    let mut second = Spec::of(&[row(9000, 1500, 0, HALF1)]);
    second.adopt = Adopt::Hashed;
    let sink = second.open(&path, 2);
    let present = sink.present();
    assert_eq!(present.adopted, RangeSet::from(Range::new(9000, 10_000)));
    let unit = Unit {
        range: Range::new(9000, 10_000),
        digest: [7; 32],
    };
    assert_eq!(present.units, [unit]);
    assert_eq!(second.finish(&sink), 500);
    assert!(std::fs::read(&path).unwrap() == second.expected(b""));
}

/// A writer that lives is left alone; so is what a copy of a whole file has left, and a copy leaves alone what rows have left.
#[test]
fn what_is_not_of_rows_stays() {
    let (_keep, folder) = folder();
    let path = folder.join("to");
    let spec = Spec::of(&halves());
    let living = spec.open(&path, 1);
    spec.make_safe(&living, &ranges(&[(0, 1000)]));
    let other = spec.open(&path, 2);
    assert!(other.present().adopted.is_empty());
    other.discard();
    drop(living);
    let from = folder.join("half1");
    std::fs::write(&from, bytes(5, 5000)).unwrap();
    let (source, copy) = update_pair(&from, &path, &id(3));
    assert!(copy.present().adopted.is_empty());
    make_safe(&source, &copy, Range::new(0, 4000));
    drop(copy);
    let sink = spec.open(&path, 4);
    assert_eq!(sink.present().adopted, RangeSet::from(Range::new(0, 1000)));
    assert_eq!(spec.finish(&sink), 5000);
    let (source, copy) = update_pair(&from, &path, &id(5));
    assert_eq!(copy.present().adopted, RangeSet::from(Range::new(0, 4000)));
    finish(&source, &copy);
    assert_only(&folder, &["half1", "to"]);
}

/// What is left is listed with what is safe of all that rows want, and can be removed.
#[test]
fn what_is_left_of_rows_is_listed() {
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let spec = Spec::of(&halves());
    let sink = spec.open(&path, 1);
    spec.make_safe(&sink, &ranges(&[(0, 1000)]));
    let state = |dest: &Path| remains(dest).unwrap().pop().unwrap().state;
    assert_eq!(state(&path), RemainState::InUse);
    drop(sink);
    let found = remains(&path).unwrap().pop().unwrap();
    assert_eq!(found.state, RemainState::Resumable);
    assert_eq!((found.safe, found.total, found.files), (1000, 6000, 1));
    found.remove().unwrap();
    assert_only(&folder, &[]);
}

/// A transfer that ends before it is complete keeps a file of which much is safe, and says where; little is removed, and so is what was
/// refused.
#[test]
fn much_is_kept() {
    let len = KEPT_MIN_FAILED + 4096;
    for (safe, refused, is_kept) in [
        (len - 1000, 0, true),
        (KEPT_MIN_FAILED - 1, 0, false),
        (len - 1000, 1, false),
    ] {
        let (_keep, folder) = folder();
        let path = folder.join("copy");
        let spec = Spec::of(&[row(0, len, 100, ("large", 1, 0))]);
        let sink = spec.open(&path, 1);
        spec.make_safe(&sink, &[Range::new(0, safe)]);
        sink.keep_more();
        sink.give_up(&RangeSet::from(Range::new(len - refused, len)));
        let missing = RangeSet::from(Range::new(safe, len));
        assert!(!sink.commit_whole_files(&missing).unwrap());
        assert_eq!(
            sink.kept_partial().pop().map(|kept| kept.1),
            is_kept.then_some(safe)
        );
        assert_eq!(names(&folder).len(), if is_kept { 2 } else { 0 });
        drop(sink);
        let sink = spec.open(&path, 2);
        let adopted = if is_kept { safe } else { 0 };
        assert_eq!(sink.present().adopted.len_bytes(), adopted);
        spec.finish(&sink);
        assert!(std::fs::read(&path).unwrap() == spec.expected(b""));
        assert_only(&folder, &["copy"]);
    }
}

/// Several nodes write one file: what all of them recorded is taken over by the one that leads the next time, whatever their number, or by
/// one that has the file for itself, and the other way round. Bytes that two have recorded count once.
#[test]
fn what_several_nodes_recorded_is_taken_over() {
    let [half1, half2] = halves();
    let all = Spec::of(&halves());
    let parts = [Spec::of(&[half1]), Spec::of(&[half2])];
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let sinks = [
        all.lead(&path, 1, 7),
        parts[0].share(&path, 1, 8).unwrap(),
        parts[1].share(&path, 1, 9).unwrap(),
    ];
    all.make_safe(&sinks[0], &ranges(&[(0, 500), (2500, 3000)]));
    parts[0].make_safe(&sinks[1], &ranges(&[(0, 1000)]));
    parts[1].make_safe(&sinks[2], &ranges(&[(3000, 3500)]));
    assert_eq!(names(&folder).len(), 4, "a file and three journals");
    let [first, second, last] = sinks;
    drop((first, second));
    // As long as one of them lives nothing is taken over.
    let other = all.lead(&path, 2, 0);
    assert!(other.present().adopted.is_empty());
    other.discard();
    drop(last);
    let found = remains(&path).unwrap().pop().unwrap();
    assert_eq!(found.state, RemainState::Resumable);
    assert_eq!((found.safe, found.total), (2000, 6000));
    drop(found);

    let adopted = RangeSet::from_ranges(ranges(&[(0, 1000), (2500, 3500)]));
    let lead = all.lead(&path, 3, 0);
    assert_eq!(lead.present().adopted, adopted);
    // It is killed, and another one of the same transfer leads.
    drop(lead);
    let lead = all.lead(&path, 3, 1);
    assert_eq!(lead.present().adopted, adopted);
    let share = parts[1].share(&path, 3, 0);
    assert!(share.is_err(), "a journal of that number is there already");
    let share = parts[1].share(&path, 3, 2).unwrap();
    parts[1].make_safe(&share, &ranges(&[(5000, 6000)]));
    drop((lead, share));
    let sink = all.open(&path, 4);
    assert_eq!(sink.present().adopted.len_bytes(), 3000);
    drop(sink);
    let lead = all.lead(&path, 5, 0);
    let share = parts[0].share(&path, 5, 1).unwrap();
    parts[0].write(&share, &RangeSet::from(Range::new(1000, 2500)));
    share.sync().unwrap();
    all.write(&lead, &RangeSet::from(Range::new(3500, 5000)));
    share.commit().unwrap();
    assert!(std::fs::read(&path).unwrap() == all.expected(b""));
    assert_only(&folder, &["copy"]);
}

/// A node that is late makes nothing: where a later transfer has taken the file over it finds no temporary name, and leaves nothing. One
/// whose journal was there before keeps what it writes.
#[test]
fn a_late_node_of_rows_makes_nothing() {
    let spec = Spec::of(&halves());
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let lead = spec.lead(&path, 1, 0);
    spec.make_safe(&lead, &ranges(&[(0, 1000)]));
    drop(lead);
    let next = spec.lead(&path, 2, 0);
    assert_eq!(next.present().adopted.len_bytes(), 1000);
    let late = spec.share(&path, 1, 1);
    assert!(matches!(late, Err(StoreError::Vanished { .. })), "{late:?}");
    assert_eq!(names(&folder).len(), 2, "the next one's file and journal");
    drop(next);
    let (lead, living) = (spec.lead(&path, 3, 0), spec.share(&path, 3, 1).unwrap());
    drop(lead);
    let other = spec.open(&path, 4);
    assert!(other.present().adopted.is_empty());
    other.discard();
    spec.write(&living, &spec.all());
    living.commit().unwrap();
    assert!(std::fs::read(&path).unwrap() == spec.expected(b""));
    assert_only(&folder, &["copy"]);
}

/// What was taken over and is gone is not made again, with zeros where its bytes were: neither when the file is opened first, nor later.
#[test]
fn a_file_that_vanishes_is_not_made_again() {
    let spec = Spec::of(&halves());
    let (_keep, folder) = folder();
    let path = folder.join("copy");
    let lead = spec.lead(&path, 1, 0);
    let share = spec.share(&path, 1, 1).unwrap();
    spec.make_safe(&lead, &ranges(&[(0, 1000)]));
    let temporary = names(&folder);
    let temporary = temporary
        .iter()
        .find(|name| !name.to_string_lossy().ends_with("journal"));
    std::fs::remove_file(folder.join(temporary.unwrap())).unwrap();
    assert!(share.write_at(2000, &[7; 100]).is_err());
    assert!(lead.commit().is_err());
    assert!(!path.exists());
}

/// All nodes judge alike what is worth keeping: what all of them recorded counts.
#[test]
fn nodes_keep_together() {
    let half = KEPT_MIN_FAILED / 2 + 4096;
    for (safe, is_kept) in [(half, true), (half / 2, false)] {
        let (_keep, folder) = folder();
        let path = folder.join("copy");
        let spec = Spec::of(&[row(0, 4 * half, 0, ("large", 1, 0))]);
        let sinks = [spec.lead(&path, 1, 0), spec.share(&path, 1, 1).unwrap()];
        for (at, sink) in sinks.iter().enumerate() {
            let start = 2 * half * at as u64;
            spec.make_safe(sink, &[Range::new(start, start + safe)]);
            sink.keep_more();
        }
        for sink in &sinks {
            sink.set_aside();
            let kept = sink.kept_partial().pop().map(|kept| kept.1);
            assert_eq!(kept, is_kept.then_some(2 * safe));
        }
        assert_eq!(names(&folder).len(), if is_kept { 3 } else { 0 });
    }
}
