//! Files of the destination compared with those of the source by hashes: what is the same stays, chunks that are the same are not sent,
//! and what an earlier run left is hashed before it is taken over.

use std::collections::VecDeque;
use std::fmt;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ropewalk_model::{Range, RangeSet};
use ropewalk_store::{
    Act, Adopt, Check, Comparing, Contents, Entry, EntryKind, FileSource, Filter, Hashes, Keep,
    Part, Scan, Sink as _, Source as _, Stays, StoreError, TreeSink, Unit, Wish, Wrong,
};

mod support;
use support::*;

/// Longest time that anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A source that is asked for hashes, and what it was asked for.
struct Asked {
    source: FileSource,
    ranges: Mutex<Vec<Range>>,
    // Answers until it fails.
    answers: AtomicU64,
    // Done once, when a question comes after so many bytes were asked for.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    after: u64,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asked")
    }
}

impl Asked {
    fn of(from: &Path, keep: Keep) -> (Self, [Part; 1]) {
        let scan = Scan::read_keeping(from, keep).unwrap();
        let source = FileSource::open_tree(from, &scan, 0).unwrap();
        let asked = Self {
            source,
            ranges: Mutex::default(),
            answers: AtomicU64::new(u64::MAX),
            meanwhile: Mutex::default(),
            after: 0,
        };
        (asked, [Part::whole(0, scan.manifest)])
    }

    /// Of what was asked for, once each.
    fn bytes(&self) -> u64 {
        let ranges = self.ranges.lock().unwrap();
        RangeSet::from_ranges(ranges.iter().copied()).len_bytes()
    }

    fn questions(&self) -> usize {
        self.ranges.lock().unwrap().len()
    }
}

impl Contents for Asked {
    fn open(&self) -> Result<Box<dyn Hashes + '_>, String> {
        Ok(Box::new(Line(self, VecDeque::new())))
    }
}

struct Line<'a>(&'a Asked, VecDeque<Range>);

impl Hashes for Line<'_> {
    fn ask(&mut self, ranges: &[Range]) -> Result<(), String> {
        if self.0.bytes() >= self.0.after {
            let meanwhile = self.0.meanwhile.lock().unwrap().take();
            // Other threads go on.
            meanwhile.into_iter().for_each(|act| act());
        }
        self.0.ranges.lock().unwrap().extend(ranges);
        self.1.extend(ranges);
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<[u8; 32]>, String> {
        let take = |left: u64| left.checked_sub(1);
        let answers = &self.0.answers;
        if answers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_err()
        {
            return Err("gone".into());
        }
        let range = self.1.pop_front().unwrap();
        let mut bytes = vec![0; range.len() as usize];
        let read = self.0.source.read_at(range.start, &mut bytes);
        Ok(read.is_ok().then(|| *blake3::hash(&bytes).as_bytes()))
    }
}

fn wish(asked: &Asked, check: Check, delta: bool) -> Wish<'_> {
    Wish {
        check,
        delta,
        contents: Some(asked),
        ..Wish::from(Adopt::All)
    }
}

/// Copies what a check by content, or a delta, has not found. The bytes that were sent, and those that were asked for.
fn copy_rest(from: &Path, to: &Path, check: Check, delta: bool) -> (u64, u64) {
    let (asked, parts) = Asked::of(from, Keep::default());
    let sink = TreeSink::update(to, &parts, &id(7), wish(&asked, check, delta)).unwrap();
    let sent = finish(&asked.source, &sink);
    (sent, asked.bytes())
}

/// All but folders, which keep their times where something is put into them.
fn files(root: &Path) -> Vec<(Entry, Vec<u8>)> {
    let mut all = snapshot(root);
    all.retain(|(entry, _)| entry.kind != EntryKind::Directory);
    all
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// What an earlier run left of another version with the same size and time is not taken over where contents decide; what it left of this
/// one is, as far as the source confirms its hashes.
#[test]
fn leftovers_of_other_contents_are_not_taken_over() {
    const LEN: usize = 4 << 20;
    for is_same in [true, false] {
        let (_keep, folder) = folder();
        let (old, new, to) = (folder.join("old"), folder.join("new"), folder.join("to"));
        let (bad, good) = (bytes(1, LEN), bytes(2, LEN));
        std::fs::write(&new, &good).unwrap();
        std::fs::write(&old, if is_same { &good } else { &bad }).unwrap();
        for path in [&old, &new] {
            set_times(path, 1_700_000_000, 0);
        }
        let (source, sink) = update_pair(&old, &to, &id(1));
        let half = Range::new(0, 2 * MIB);
        write(&source, &sink, half);
        sink.sync().unwrap();
        // The second unit has no hash.
        let digest = *blake3::hash(&std::fs::read(&old).unwrap()[..MIB as usize]).as_bytes();
        let range = Range::new(0, MIB);
        sink.record(&RangeSet::from(half), &[Unit { range, digest }]);
        drop(sink);
        let (sent, asked) = copy_rest(&new, &to, Check::Contents, false);
        let there = if is_same { MIB } else { 0 };
        assert_eq!((sent, asked), (LEN as u64 - there, MIB));
        assert!(std::fs::read(&to).unwrap() == good);
        assert_eq!(names(&folder), ["new", "old", "to"]);
    }
}

/// A source that stops answering confirms nothing more.
#[test]
fn leftovers_are_taken_over_as_far_as_the_source_answers() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let all = bytes(1, 4 << 20);
    std::fs::write(&from, &all).unwrap();
    let (source, sink) = update_pair(&from, &to, &id(1));
    write(&source, &sink, Range::new(0, 2 * MIB));
    sink.sync().unwrap();
    let units = [0, MIB].map(|start| {
        let range = Range::new(start, start + MIB);
        let bytes = &all[range.start as usize..range.end as usize];
        let digest = *blake3::hash(bytes).as_bytes();
        Unit { range, digest }
    });
    sink.record(&RangeSet::from(Range::new(0, 2 * MIB)), &units);
    drop(sink);
    let (asked, parts) = Asked::of(&from, Keep::default());
    // The first one is answered.
    asked.answers.store(1, Ordering::Relaxed);
    let sink = TreeSink::update(&to, &parts, &id(2), wish(&asked, Check::Contents, false)).unwrap();
    let first = RangeSet::from(Range::new(0, MIB));
    assert_eq!(sink.present().adopted, first);
    assert_eq!(finish(&asked.source, &sink), 3 * MIB);
    assert!(std::fs::read(&to).unwrap() == all);
}

/// Files of other times and the same contents stay, whatever wrote them, and get time and mode of the source; one of which a byte
/// differs is sent, one of another size is not read.
#[test]
fn contents_decide() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    copy(&from, &to);
    // Written there: by time it would never be the same.
    let same = to.join("plain/deep/large");
    std::fs::write(&same, std::fs::read(&same).unwrap()).unwrap();
    set_times(&to.join("plain/small"), 77, 0);
    set_mode(&to.join("plain/small"), 0o600);
    let differs = "plain-sorts between plain and what is in it";
    let time = from.join(differs).metadata().unwrap();
    overwrite(&to.join(differs), 4999, b"!");
    set_times(&to.join(differs), time.mtime(), time.mtime_nsec() as u32);
    std::fs::write(to.join("-rf/--help"), "longer than it").unwrap();
    let before = (inode(&same), inode(&to.join("plain/small")));
    let equal = snapshot(&from)
        .iter()
        .map(|(entry, _)| entry.len())
        .sum::<u64>();

    let (sent, asked) = copy_rest(&from, &to, Check::Contents, false);
    assert_eq!(sent, 5000 + 4);
    assert_eq!(asked, equal - 4, "a file of another size is not read");
    assert_eq!(before, (inode(&same), inode(&to.join("plain/small"))));
    assert!(snapshot(&from) == snapshot(&to));
    assert_eq!(copy_rest(&from, &to, Check::Contents, false).0, 0);
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A tree of many small files, some of them empty, and a copy of it with other times.
fn many(folder: &Path, count: usize) -> (PathBuf, PathBuf) {
    let (from, to) = (folder.join("from"), folder.join("to"));
    for sub in 0..count.div_ceil(100) {
        std::fs::create_dir_all(from.join(format!("{sub:02}"))).unwrap();
    }
    for at in 0..count {
        let path = from.join(format!("{:02}/{at:04}", at / 100));
        std::fs::write(path, bytes(at as u64, at % 7 * 40)).unwrap();
    }
    copy(&from, &to);
    for at in 0..count {
        set_times(&to.join(format!("{:02}/{at:04}", at / 100)), at as i64, 0);
    }
    (from, to)
}

/// Many small files are a few questions; those that differ are found among them and sent, with nothing else.
#[test]
fn small_files_are_asked_for_together() {
    let (_keep, folder) = folder();
    let (from, to) = many(&folder, 1000);
    let (asked, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Contents, false)).unwrap();
    assert!(asked.questions() <= 8, "{}", asked.questions());
    assert_eq!(sink.present().files, 1000);
    assert_eq!(finish(&asked.source, &sink), 0);
    assert!(files(&from) == files(&to));

    overwrite(&to.join("03/0303"), 79, b"!");
    overwrite(&to.join("09/0999"), 0, b"!");
    let (asked, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(2), wish(&asked, Check::Contents, false)).unwrap();
    assert!(asked.questions() <= 100, "{}", asked.questions());
    assert_eq!(finish(&asked.source, &sink), 303 % 7 * 40 + 999 % 7 * 40);
    assert!(files(&from) == files(&to));
    // Where all differ all are found.
    for at in 0..1000 {
        let path = to.join(format!("{:02}/{at:04}", at / 100));
        std::fs::write(&path, vec![b'!'; at % 7 * 40]).unwrap();
    }
    let all: u64 = (0..1000).map(|at| at % 7 * 40).sum();
    assert_eq!(copy_rest(&from, &to, Check::Contents, false), (all, all));
    assert!(files(&from) == files(&to));
}

/// A long file between small ones is read up to its first difference; of those that are the same beside it all is read.
#[test]
fn a_long_file_between_small_ones_is_asked_for_alone() {
    let (_keep, folder) = folder();
    let (from, to) = many(&folder, 300);
    for root in [&from, &to] {
        let file = std::fs::File::create(root.join("01/0150-long")).unwrap();
        file.set_len(1 << 30).unwrap();
    }
    overwrite(&to.join("01/0150-long"), 3, b"!");
    let (asked, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Contents, false)).unwrap();
    let small: u64 = (0..300).map(|at| at % 7 * 40).sum();
    // What several threads ask for ahead.
    assert!(asked.bytes() <= small + (200 << 20), "{}", asked.bytes());
    let present = sink.present();
    assert_eq!((present.files, present.unchanged.len_bytes()), (300, small));
    sink.discard();
}

/// Files that vanish at either end between the list and the question, or are something else by then, are not the same; those that had
/// one hash with them are.
#[test]
fn files_that_vanish_meanwhile_are_not_the_same() {
    let (_keep, folder) = folder();
    let (from, to) = many(&folder, 200);
    let (asked, parts) = Asked::of(&from, Keep::default());
    let (gone, changed) = (from.join("00/0010"), from.join("00/0020"));
    let (replaced, gone_here) = (from.join("00/0030"), to.join("01/0101"));
    *asked.meanwhile.lock().unwrap() = Some(Box::new(move || {
        std::fs::remove_file(gone).unwrap();
        std::fs::write(changed, bytes(20, 20 % 7 * 40)).unwrap();
        std::fs::remove_file(&replaced).unwrap();
        std::fs::create_dir(&replaced).unwrap();
        std::fs::remove_file(gone_here).unwrap();
    }));
    let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Contents, false)).unwrap();
    assert_eq!(sink.present().files, 196);
    let absent = sink.layout().ranges().difference(&sink.present().all());
    let lens: u64 = [10, 20, 30, 101].iter().map(|at| at % 7 * 40).sum();
    assert_eq!(absent.len_bytes(), lens);
    sink.discard();
}

/// As [`files_that_vanish_meanwhile_are_not_the_same`], of those that may not be read.
#[test]
fn files_that_may_not_be_read_are_not_the_same() {
    let (_keep, folder) = folder();
    let (from, to) = many(&folder, 100);
    set_mode(&folder, 0o755);
    let (asked, parts) = Asked::of(&from, Keep::default());
    set_mode(&to.join("00/0013"), 0o200);
    let present = sys::as_nobody(|| {
        let comparing = Comparing {
            contents: Some(&asked),
            metadata: false,
        };
        TreeSink::differences(&to, &parts, comparing, &Filter::default())
    });
    let changes = present.unwrap().changes;
    let changes: Vec<_> = changes.iter().map(|one| (one.act, &one.path[..])).collect();
    assert_eq!(changes, [(Act::Unreadable, &b"00/0013"[..])]);
}

/// A copy of one file; and what changes while the copy runs is noticed at its end.
#[test]
fn one_file_is_compared() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::write(&from, bytes(1, 3 << 20)).unwrap();
    std::fs::write(&to, bytes(1, 3 << 20)).unwrap();
    let before = inode(&to);
    assert_eq!(copy_rest(&from, &to, Check::Contents, false), (0, 3 << 20));
    assert!(snapshot(&from) == snapshot(&to));
    assert_eq!(inode(&to), before);

    for has_old_time in [false, true] {
        std::fs::write(&to, bytes(1, 3 << 20)).unwrap();
        set_times(&to, 5, 5);
        let (asked, parts) = Asked::of(&from, Keep::default());
        let wish = wish(&asked, Check::Contents, false);
        let sink = TreeSink::update(&to, &parts, &id(1), wish).unwrap();
        assert_eq!(sink.present().unchanged.len_bytes(), 3 << 20);
        overwrite(&to, 9, b"changed");
        if has_old_time {
            set_times(&to, 5, 5);
        }
        let error = sink.commit().unwrap_err();
        assert!(
            matches!(error, StoreError::ChangedAtDestination { .. }),
            "{has_old_time}: {error}"
        );
        sink.discard();
    }
}

/// A source that cannot be asked leaves nothing decided, and nothing made.
#[test]
fn a_source_that_does_not_answer_ends_the_comparison() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 4), folder.join("to"));
    copy(&from, &to);
    let (asked, parts) = Asked::of(&from, Keep::default());
    asked.answers.store(2, Ordering::Relaxed);
    let made = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Contents, false));
    let error = made.unwrap_err();
    // Either thread may notice first; a file of several questions is named.
    assert!(
        error.to_string().contains("source: gone") && error.may_pass(),
        "{error}"
    );
    assert_eq!(names(&to), ["a", "sub"]);
    // Chunks that cannot be compared are sent.
    set_times(&from.join("sub/big"), 1, 1);
    let (asked, parts) = Asked::of(&from, Keep::default());
    asked.answers.store(2, Ordering::Relaxed);
    let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Time, true)).unwrap();
    assert!(sink.present().taken_bytes <= 2 * MIB);
    finish(&asked.source, &sink);
    assert!(snapshot(&from) == snapshot(&to));
}

/// Names of one file stay names of one file, and all have its new time.
#[test]
fn hard_links_are_compared_once() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), bytes(1, 5000)).unwrap();
    std::fs::hard_link(from.join("a"), from.join("b")).unwrap();
    std::fs::hard_link(from.join("a"), from.join("c")).unwrap();
    let keep = Keep {
        links: true,
        ..Keep::default()
    };
    let run = || {
        let (asked, parts) = Asked::of(&from, keep);
        let wish = wish(&asked, Check::Contents, false);
        let sink = TreeSink::update(&to, &parts, &id(1), wish).unwrap();
        (finish(&asked.source, &sink), asked.bytes())
    };
    assert_eq!(run(), (5000, 0));
    set_times(&to.join("a"), 9, 9);
    // This one is made again, beside the file that stays.
    std::fs::remove_file(to.join("c")).unwrap();
    assert_eq!(run(), (0, 5000));
    let of = |name: &str| to.join(name).metadata().unwrap();
    assert_eq!((of("a").ino(), of("a").nlink()), (of("c").ino(), 3));
    assert!(files(&from) == files(&to));
}

/// Of a shared copy the node that looks compares; another one, which did not, ends it.
#[test]
fn nodes_of_a_shared_copy_hear_what_is_the_same() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 2), folder.join("to"));
    copy(&from, &to);
    set_times(&to.join("sub/big"), 3, 3);
    overwrite(&to.join("a"), 0, b"!");
    let (asked, parts) = Asked::of(&from, Keep::default());
    let wish = wish(&asked, Check::Contents, false);
    let first = TreeSink::lead(&to, &parts, &id(1), 0, wish).unwrap();
    let unchanged = first.present().unchanged;
    assert_eq!(unchanged.len_bytes(), 2 * MIB + 5000);
    let stays = (Stays::Same, Check::Contents);
    let second = TreeSink::share(
        &to,
        &parts,
        &id(1),
        1,
        (&unchanged, &RangeSet::new()),
        stays.0,
        stays.1,
    )
    .unwrap();
    let sent = second.layout().ranges().difference(&unchanged);
    sent.iter()
        .for_each(|range| write(&asked.source, &second, range));
    drop(first);
    second.take_over();
    second.commit().unwrap();
    assert!(files(&from) == files(&to));
}

/// A file with some other bytes, and one that grew, shrank or has holes: chunks that the old file has at the same place are not sent,
/// are safe before the first byte, and have their hashes.
#[test]
fn chunks_that_are_there_are_not_sent() {
    const BIG: usize = (9 << 20) + 5;
    for (len, at, sent) in [
        (BIG, vec![3 << 20], MIB),
        (BIG, vec![(4 << 20) - 1, BIG as u64 - 1], MIB + 5),
        (BIG + (2 << 20), vec![], (2 << 20) + 5),
        (BIG - (2 << 20), vec![0], MIB),
        (BIG - 6, vec![], 0),
    ] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        let mut all = bytes(1, BIG + (2 << 20));
        all[5 << 20..7 << 20].fill(0);
        std::fs::write(&to, &all[..BIG]).unwrap();
        set_times(&to, 1, 1);
        std::fs::write(&from, &all[..len]).unwrap();
        for at in &at {
            overwrite(&from, *at, &[!all[*at as usize]]);
        }
        let (asked, parts) = Asked::of(&from, Keep::default());
        let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Time, true)).unwrap();
        let present = sink.present();
        assert_eq!(
            present.adopted.len_bytes(),
            len as u64 - sent,
            "{len} {at:?}"
        );
        assert_eq!(present.taken_bytes, present.adopted.len_bytes());
        for Unit { range, digest } in &present.units {
            let mut found = vec![0; range.len() as usize];
            sink.read_back(range.start, &mut found).unwrap();
            assert_eq!(blake3::hash(&found).as_bytes(), digest);
        }
        // The old file stays as it is until the end.
        assert!(std::fs::read(&to).unwrap() == all[..BIG]);
        assert_eq!(finish(&asked.source, &sink), sent);
        assert!(snapshot(&from) == snapshot(&to));
        assert_eq!(names(&folder), ["from", "to"]);
        let blocks = |path: &PathBuf| path.metadata().unwrap().blocks();
        assert!(blocks(&to) * 512 < len as u64 - MIB, "zeros are holes");
    }
}

/// What has size and time of the source is not read for a delta, and small files are not; with a check by content all that may be the
/// same is read once at the source.
#[test]
fn little_is_read_for_a_delta() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 4), folder.join("to"));
    copy(&from, &to);
    assert_eq!(copy_rest(&from, &to, Check::Time, true), (0, 0));
    set_times(&from.join("a"), 1, 1);
    assert_eq!(copy_rest(&from, &to, Check::Time, true), (5000, 0));
    overwrite(&from.join("sub/big"), 5, b"!");
    set_times(&from.join("sub/z"), 2, 2);
    let all = 4 * MIB + 10_000;
    assert_eq!(copy_rest(&from, &to, Check::Contents, true), (MIB, all));
    assert!(snapshot(&from) == snapshot(&to));
}

/// A run that is killed after it took chunks over leaves them to the next one, which does not ask for them.
#[test]
fn chunks_outlive_a_killed_run() {
    let (_keep, folder) = folder();
    let (from, to) = (tree(&folder, 8), folder.join("to"));
    copy(&from, &to);
    overwrite(&from.join("sub/big"), 2 << 20, b"changed");
    let (asked, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Time, true)).unwrap();
    assert_eq!(sink.present().taken_bytes, 7 * MIB);
    // Its journal is free, as that of a killed process.
    drop(sink);
    let (again, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(2), wish(&again, Check::Time, true)).unwrap();
    let present = sink.present();
    assert_eq!(
        (present.adopted.len_bytes(), present.taken_bytes),
        (7 * MIB, 0)
    );
    assert_eq!(again.bytes(), MIB);
    assert_eq!(finish(&again.source, &sink), MIB);
    assert!(files(&from) == files(&to));
}

/// Chunks are safe, and recorded, while others are still compared: a run that is killed in the middle leaves them to the next one, which does
/// not ask for them.
#[test]
fn chunks_outlive_a_run_that_is_killed_while_it_takes_them() {
    const LEN: u64 = 192 * MIB + 5;
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for path in [&from, &to] {
        // Zeros take no space.
        std::fs::File::create(path).unwrap().set_len(LEN).unwrap();
    }
    set_times(&to, 1, 1);
    overwrite(&from, 2 << 20, b"changed");
    overwrite(&from, LEN - 1, b"!");
    let (mut asked, parts) = Asked::of(&from, Keep::default());
    let (journal, start) = (format!(".to.ropewalk-{}.journal", id(1)), Instant::now());
    // As another process would find it, which the lock of this one keeps out.
    let (own, seen) = (folder.join(&journal), tempfile::tempdir().unwrap());
    asked.after = 160 * MIB;
    *asked.meanwhile.lock().unwrap() = Some(Box::new(move || {
        let safe = || {
            std::fs::copy(&own, seen.path().join(&journal)).unwrap();
            ropewalk_store::remains(&seen.path().join("to")).unwrap()[0].safe
        };
        while safe() == 0 && start.elapsed() < DEADLINE {
            std::thread::yield_now();
        }
        // A thread that panics leaves what a killed process does.
        std::panic::resume_unwind(Box::new("killed"));
    }));
    let make = || TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Time, true)).map(drop);
    let killed = catch_unwind(AssertUnwindSafe(make));
    assert!(killed.is_err(), "it was complete before");

    let (again, parts) = Asked::of(&from, Keep::default());
    let sink = TreeSink::update(&to, &parts, &id(2), wish(&again, Check::Time, true)).unwrap();
    let present = sink.present();
    let found = present.adopted.len_bytes() - present.taken_bytes;
    assert!(found >= 64 * MIB, "{found} bytes were recorded");
    assert_eq!(again.bytes(), LEN - found);
    assert_eq!(finish(&again.source, &sink), MIB + 5);
    assert!(snapshot(&from) == snapshot(&to));
    assert_eq!(names(&folder), ["from", "to"]);
}

/// A file that changes, shrinks or is replaced while its chunks are taken over does no harm: what is taken over is what was compared.
#[test]
fn files_that_change_while_chunks_are_taken_do_no_harm() {
    const BIG: usize = (70 << 20) + 5;
    let changes: [fn(&Path); 3] = [
        |to| overwrite(to, 1 << 20, &bytes(9, 60 << 20)),
        |to| {
            let file = std::fs::File::options().write(true).open(to).unwrap();
            file.set_len(3 << 20).unwrap();
        },
        |to| {
            std::fs::remove_file(to).unwrap();
            std::fs::write(to, "other").unwrap();
        },
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, bytes(1, BIG)).unwrap();
        std::fs::copy(&from, &to).unwrap();
        set_times(&to, 1, 1);
        overwrite(&from, 3 << 20, b"changed");
        let (mut asked, parts) = Asked::of(&from, Keep::default());
        asked.after = 33 * MIB;
        let dest = to.clone();
        *asked.meanwhile.lock().unwrap() = Some(Box::new(move || change(&dest)));
        let sink = TreeSink::update(&to, &parts, &id(1), wish(&asked, Check::Time, true)).unwrap();
        let there = sink.present().adopted.len_bytes();
        let sent = finish(&asked.source, &sink);
        assert_eq!(sent + there, BIG as u64, "{at}");
        assert!(sent > MIB || at == 2, "{at}: {sent}");
        assert!(snapshot(&from) == snapshot(&to), "{at}");
    }
}

/// On a disk without space for the files replaced and the new ones together chunks of as many files are taken over as have it; the others
/// are sent, one after the other, and each frees the space of the older one.
#[test]
fn chunks_are_taken_as_far_as_there_is_space() {
    const FILES: u64 = 6;
    let (_keep, folder) = folder();
    let from = folder.join("from");
    std::fs::create_dir(&from).unwrap();
    let contents = |file: u64| bytes(file, 2 << 20);
    for file in 0..FILES {
        std::fs::write(from.join(format!("{file}")), contents(file)).unwrap();
    }
    sys::on_small_disk(16 << 20, |disk| {
        let to = disk.join("to");
        std::fs::create_dir(&to).unwrap();
        for file in 0..FILES {
            let mut older = contents(file);
            older[(MIB as usize)..].fill(file as u8 + 1);
            std::fs::write(to.join(format!("{file}")), older).unwrap();
        }
        let (asked, parts) = Asked::of(&from, Keep::default());
        let wish = Wish {
            names_early: true,
            ..wish(&asked, Check::Time, true)
        };
        let sink = TreeSink::update(&to, &parts, &id(1), wish).unwrap();
        let taken = sink.present().adopted;
        assert!((MIB..FILES * MIB).contains(&taken.len_bytes()), "{taken:?}");
        let all = asked.source.layout().ranges();
        for range in all.difference(&taken).iter() {
            for unit in asked.source.layout().units(range) {
                let mut buffer = vec![0; unit.len() as usize];
                asked.source.read_at(unit.start, &mut buffer).unwrap();
                while let Err(error) = sink.write_at(unit.start, &buffer) {
                    assert!(error.is_full_disk(), "{error}");
                    sink.make_ready(&RangeSet::from(Range::new(0, unit.start)));
                    sink.sync().unwrap();
                    assert!(sink.name_ready() > 0);
                }
            }
        }
        sink.commit().unwrap();
        assert!(files(&from) == files(&to));
        assert_eq!(names(disk), ["to"]);
    });
}

/// Bytes that an earlier run left and that are not what it recorded any more are sent again, where they are hashed first; without that
/// they are believed.
#[test]
fn what_is_left_is_verified() {
    for verifies in [false, true] {
        let (_keep, folder) = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, bytes(1, 8 << 20)).unwrap();
        let (asked, parts) = Asked::of(&from, Keep::default());
        let sink = TreeSink::update(&to, &parts, &id(1), Adopt::All).unwrap();
        write(&asked.source, &sink, Range::new(0, 6 * MIB));
        sink.sync().unwrap();
        let unit = |at: u64| {
            let range = Range::new(at * MIB, (at + 1) * MIB);
            let mut bytes = vec![0; MIB as usize];
            asked.source.read_at(range.start, &mut bytes).unwrap();
            let digest = *blake3::hash(&bytes).as_bytes();
            Unit { range, digest }
        };
        let units: Vec<Unit> = (0..5).map(unit).collect();
        sink.record(&RangeSet::from(Range::new(0, 6 * MIB)), &units);
        let staged = sink.temporary(1).pop().unwrap();
        drop(sink);
        overwrite(&staged, (2 << 20) + 7, b"rot");

        let wish = Wish {
            verifies,
            adopt: match verifies {
                true => Adopt::Hashed,
                false => Adopt::All,
            },
            ..Wish::from(Adopt::All)
        };
        let sink = TreeSink::update(&to, &parts, &id(2), wish).unwrap();
        // The sixth has no hash.
        let sent = if verifies { 4 } else { 2 } * MIB;
        let wrong = sink.present().wrong;
        let expected = Wrong {
            path: Vec::new(),
            bytes: MIB,
        };
        assert_eq!(wrong, [expected][..usize::from(verifies)]);
        assert_eq!(finish(&asked.source, &sink), sent);
        assert_eq!(std::fs::read(&to).unwrap() == bytes(1, 8 << 20), verifies);
    }
}

fn differences(from: &Path, to: &Path, quick: bool, metadata: bool) -> Vec<(Act, String)> {
    let (asked, parts) = Asked::of(from, Keep::default());
    let comparing = Comparing {
        contents: Some(&asked as &dyn Contents).filter(|_| !quick),
        metadata,
    };
    let found = TreeSink::differences(to, &parts, comparing, &Filter::default()).unwrap();
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    found
        .changes
        .iter()
        .map(|change| (change.act, text(&change.path)))
        .collect()
}

/// Everything that differs is named, with how; nothing is changed. By size and time contents are not read.
#[test]
fn differences_are_named() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    odd_tree(&from);
    copy(&from, &to);
    for (quick, metadata) in [(false, false), (true, false), (false, true)] {
        assert_eq!(differences(&from, &to, quick, metadata), []);
    }
    let large = to.join("plain/deep/large");
    let time = large.metadata().unwrap();
    overwrite(&large, 2 << 20, b"rot");
    set_times(&large, time.mtime(), time.mtime_nsec() as u32);
    std::fs::write(to.join("-rf/--help"), "longer").unwrap();
    std::fs::remove_file(to.join("to file")).unwrap();
    std::os::unix::fs::symlink("elsewhere", to.join("to file")).unwrap();
    std::fs::remove_file(to.join("empty")).unwrap();
    std::fs::create_dir(to.join("empty")).unwrap();
    std::fs::remove_file(to.join("plain/empty too")).unwrap();
    std::fs::create_dir(to.join("more")).unwrap();
    std::fs::write(to.join("more/file"), "more").unwrap();
    set_mode(&to.join("plain/small"), 0o600);
    let before = snapshot(&to);
    let found = |quick, metadata| {
        let mut found = differences(&from, &to, quick, metadata);
        // Folders that something was put into have other times.
        found.retain(|(act, path)| *act != Act::Metadata || path.ends_with("small"));
        found
    };
    let mut all = vec![
        (Act::Size, "-rf/--help"),
        (Act::Kind, "empty"),
        (Act::Extra, "more"),
        (Act::Extra, "more/file"),
        (Act::Contents, "plain/deep/large"),
        (Act::Missing, "plain/empty too"),
        (Act::Metadata, "plain/small"),
        (Act::Contents, "to file"),
    ];
    let named = |all: &[(Act, &str)]| -> Vec<(Act, String)> {
        all.iter()
            .map(|(act, path)| (*act, (*path).to_owned()))
            .collect()
    };
    assert_eq!(found(false, true), named(&all));
    all.remove(6);
    assert_eq!(found(false, false), named(&all));
    all.remove(4);
    assert_eq!(found(true, false), named(&all));
    assert!(before == snapshot(&to));
    // Another time is one where contents do not count.
    set_times(&to.join("plain/small"), 5, 5);
    let small = (Act::Metadata, "plain/small".to_owned());
    assert!(differences(&from, &to, true, false).contains(&small));
    assert!(!differences(&from, &to, false, false).contains(&small));
}

/// A file that no source can read is no file of other contents, however it is asked for.
#[test]
fn what_the_source_cannot_read_is_named_so() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    for (name, len) in [("a", 10), ("b", 10), ("c", 3 << 20), ("d", 10)] {
        std::fs::write(from.join(name), bytes(1, len)).unwrap();
    }
    copy(&from, &to);
    overwrite(&to.join("d"), 0, b"rot");
    let (asked, parts) = Asked::of(&from, Keep::default());
    for name in ["b", "c"] {
        std::fs::remove_file(from.join(name)).unwrap();
    }
    let comparing = Comparing {
        contents: Some(&asked),
        metadata: false,
    };
    let found = TreeSink::differences(&to, &parts, comparing, &Filter::default()).unwrap();
    let found = found.changes.into_iter();
    let found: Vec<_> = found.map(|change| (change.act, change.path)).collect();
    let named = [
        (Act::Unreadable, b"b".to_vec()),
        (Act::Unreadable, b"c".to_vec()),
        (Act::Contents, b"d".to_vec()),
    ];
    assert_eq!(found, named);
}
