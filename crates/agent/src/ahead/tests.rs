use std::sync::Barrier;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use parking_lot::Condvar;
use ropewalk_lane::Provider as _;
use ropewalk_model::RangeSet;
use ropewalk_proto::read_ahead::READING_MAX;
use ropewalk_store::{Extent, Source, StoreError};

use super::readers::Readers;
use super::*;

const LEN: u64 = 1000;

/// A test that waits longer fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a read of a file does beside giving its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It waits for so many reads at the same time.
    Together,
    /// It fails so often.
    Fails(usize),
    /// It panics the first time.
    Panics,
    /// It does not return before all are let go.
    Hangs,
}

/// Small files of one length, each full of its number.
#[derive(Default)]
struct Files {
    disk: Option<u64>,
    troubles: Mutex<HashMap<u64, Trouble>>,
    together: Option<Barrier>,
    reads: Mutex<Vec<u64>>,
    has_read: Condvar,
    is_let_go: Mutex<bool>,
    let_go: Condvar,
}

impl Source for Files {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let file = offset / LEN;
        self.reads.lock().push(file);
        self.has_read.notify_all();
        let trouble = self.troubles.lock().get(&file).copied();
        match trouble {
            Some(Trouble::Together) => {
                if let Some(together) = &self.together {
                    together.wait();
                }
            }
            Some(Trouble::Fails(left @ 1..)) => {
                self.troubles.lock().insert(file, Trouble::Fails(left - 1));
                return Err(StoreError::Ended);
            }
            Some(Trouble::Panics) => {
                self.troubles.lock().remove(&file);
                // As a panic, without its message in the output of the tests.
                std::panic::resume_unwind(Box::new("a read panics"));
            }
            Some(Trouble::Hangs) => {
                let mut is_let_go = self.is_let_go.lock();
                self.let_go
                    .wait_while(&mut is_let_go, |is_let_go| !*is_let_go);
            }
            Some(Trouble::Fails(0)) | None => {}
        }
        buf.fill(file as u8);
        Ok(())
    }

    fn extent(&self, _offset: u64, _len: u64) -> Result<Extent<'_>, StoreError> {
        Err(StoreError::Ended)
    }

    fn is_small_file(&self, range: Range) -> bool {
        range.len() == LEN
    }

    fn file_system(&self) -> Option<u64> {
        self.disk
    }
}

impl Files {
    /// Waits until so many reads were begun.
    fn await_reads(&self, count: usize) {
        let mut reads = self.reads.lock();
        while reads.len() < count {
            let waited = self.has_read.wait_for(&mut reads, DEADLINE);
            assert!(!waited.timed_out(), "{} of {count} reads", reads.len());
        }
    }
}

/// Reads that hang are let go when a test ends, also where it fails.
struct LetGo(Arc<Files>);

impl Drop for LetGo {
    fn drop(&mut self) {
        *self.0.is_let_go.lock() = true;
        self.0.let_go.notify_all();
    }
}

fn files(troubles: &[(u64, Trouble)]) -> Arc<Files> {
    on_disk(None, troubles.iter().copied())
}

fn on_disk(disk: Option<u64>, troubles: impl IntoIterator<Item = (u64, Trouble)>) -> Arc<Files> {
    let troubles: HashMap<u64, Trouble> = troubles.into_iter().collect();
    let together = troubles.values();
    let together = together.filter(|trouble| **trouble == Trouble::Together);
    Arc::new(Files {
        disk,
        together: Some(Barrier::new(together.count().max(1))),
        troubles: Mutex::new(troubles),
        ..Files::default()
    })
}

/// A stream of a group that reads these files.
fn stream(group: &Arc<Group>, files: &Arc<Files>) -> Ahead {
    let all = RangeSet::from(Range::new(0, 1000 * LEN));
    let holdings = Holdings {
        sources: vec![(all, files.clone())],
        ..Holdings::default()
    };
    let ahead = Ahead::new(group.clone(), Arc::new(holdings));
    ahead.make_slow();
    ahead
}

/// The only stream of a process.
fn alone(files: &Arc<Files>) -> Ahead {
    stream(&Arc::new(Group::of(Arc::default())), files)
}

fn unit(number: u64) -> Range {
    Range::new(number * LEN, (number + 1) * LEN)
}

fn step(ahead: &Ahead, numbers: std::ops::Range<u64>) {
    ahead.step(&mut numbers.map(|number| (SPACE_DATA, unit(number))));
}

/// Waits until all that was begun is read, or has failed.
fn settle(ahead: &Ahead) {
    let stream = ahead.stream.lock();
    stream.begun.values().for_each(Early::settle);
}

/// As a stream reads: from what was read ahead, else from the file.
fn read(ahead: &Ahead, number: u64) -> Result<Vec<u8>, String> {
    let mut out = vec![0; LEN as usize];
    let is_read = ahead.read(SPACE_DATA, number * LEN, &mut out);
    if !is_read.map_err(|error| format!("{error:?}"))? {
        let read = ahead.holdings.read(SPACE_DATA, number * LEN, &mut out);
        read.map_err(|absent| absent.reason)?;
    }
    Ok(out)
}

fn assert_is(bytes: Result<Vec<u8>, String>, number: u64) {
    let bytes = bytes.unwrap();
    assert!(bytes.len() as u64 == LEN && bytes.iter().all(|byte| *byte == number as u8));
}

/// What something that may never return gives.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (gives, given) = channel();
    std::thread::spawn(move || gives.send(work()));
    given
}

/// Units that follow are read at the same time as the one whose turn it is, and all arrive in their order.
#[test]
fn slow_files_are_read_at_the_same_time() {
    let files = files(&[0, 1, 2].map(|file| (file, Trouble::Together)));
    let ahead = alone(&files);
    for number in 0..100 {
        step(&ahead, number..100);
        assert_eq!(ahead.is_begun(SPACE_DATA, unit(number)), number > 0);
        // In parts, as fragments are.
        let mut part = [0; 10];
        let is_ahead = ahead.read(SPACE_DATA, number * LEN + 500, &mut part);
        assert_eq!(part[0], number as u8 * u8::from(is_ahead.unwrap()));
        assert_is(read(&ahead, number), number);
        // Whatever the tests' machine is like.
        ahead.make_slow();
    }
    let mut reads = files.reads.lock().clone();
    reads.sort_unstable();
    assert_eq!(reads, (0..100).collect::<Vec<u64>>(), "each once");
}

/// Nothing is read ahead where files are in memory, and what is no small file never is.
#[test]
fn fast_files_are_read_at_their_turn() {
    let files = files(&[]);
    let ahead = alone(&files);
    *ahead.machine.lock() = ReadAhead::new();
    for number in 0..100 {
        step(&ahead, number..100);
        assert!(!ahead.is_begun(SPACE_DATA, unit(number)));
        assert_is(read(&ahead, number), number);
        ahead.observe(SPACE_DATA, number * LEN, LEN, Duration::ZERO);
    }
    ahead.make_slow();
    let long = |number: u64| (SPACE_DATA, Range::new(number * LEN, (number + 2) * LEN));
    ahead.step(&mut (0..10).map(long));
    ahead.step(&mut (1..10).map(long));
    assert!(!ahead.is_begun(SPACE_DATA, long(1).1));
    assert_eq!(files.reads.lock().len(), 100);
}

/// What the stream itself reads or opens slowly has the next ones read ahead; the rest of a file that is read in parts does not count.
#[test]
fn slow_reads_of_the_stream_begin_it() {
    let ahead = alone(&files(&[]));
    *ahead.machine.lock() = ReadAhead::new();
    step(&ahead, 0..1);
    let slow = Duration::from_secs(1);
    (0..20).for_each(|_| ahead.observe(SPACE_DATA, LEN / 2, LEN / 2, slow));
    (0..20).for_each(|_| ahead.observe(SPACE_DATA, 7 * LEN, LEN, slow));
    assert!(!ahead.machine.lock().is_on());
    (0..20).for_each(|_| ahead.observe(SPACE_DATA, 0, LEN / 2, slow));
    assert!(ahead.machine.lock().is_on());
}

/// A file that cannot be read ahead is read again at its turn, which gives the error, or the bytes after all.
#[test]
fn errors_are_those_of_the_turn() {
    let ahead = alone(&files(&[(1, Trouble::Fails(1)), (2, Trouble::Fails(2))]));
    step(&ahead, 0..3);
    settle(&ahead);
    assert_is(read(&ahead, 0), 0);
    step(&ahead, 1..3);
    assert_is(read(&ahead, 1), 1);
    assert!(!ahead.is_begun(SPACE_DATA, unit(1)));
    step(&ahead, 2..3);
    assert_eq!(read(&ahead, 2).err(), Some(StoreError::Ended.to_string()));
}

/// What the receiver takes back is not kept, nor what was sent, nor what is left when the stream ends.
#[test]
fn what_is_not_wanted_is_left() {
    let readers = Arc::<Readers>::default();
    let ahead = stream(&Arc::new(Group::of(readers.clone())), &files(&[]));
    step(&ahead, 0..3);
    settle(&ahead);
    assert_eq!(readers.counts(), (2, 2 * LEN));
    step(&ahead, 1..3);
    assert_is(read(&ahead, 1), 1);
    step(&ahead, 7..8);
    assert_eq!(readers.counts(), (0, 0));
    step(&ahead, 7..10);
    settle(&ahead);
    assert_eq!(readers.counts(), (2, 2 * LEN));
    drop(ahead);
    assert_eq!(readers.counts(), (0, 0));
}

/// The file system of one source does not answer: of what was to be read there nothing stays queued when its streams have left, and files
/// of others are read ahead all the same.
#[test]
fn a_file_system_that_does_not_answer_does_not_hold_up_others() {
    let readers = Arc::<Readers>::default();
    let hangs = on_disk(Some(1), (0..1000).map(|file| (file, Trouble::Hangs)));
    let _let_go = LetGo(hangs.clone());
    let streams = 200;
    let left: Vec<(Arc<Group>, Ahead)> = (0..streams)
        .map(|number| {
            let group = Arc::new(Group::of(readers.clone()));
            let ahead = stream(&group, &hangs);
            step(&ahead, number * 3..number * 3 + 3);
            (group, ahead)
        })
        .collect();
    let share = READING_MAX / 4;
    hangs.await_reads(share);
    assert_eq!(readers.counts().0 as u64, 2 * streams);
    drop(left);
    // Threads read into it still.
    assert_eq!(readers.counts(), (0, share as u64 * LEN));
    let answers = stream(&Arc::new(Group::of(readers.clone())), &on_disk(Some(2), []));
    let answered = in_time(move || {
        for number in 0..20 {
            step(&answers, number..20);
            settle(&answers);
            assert_eq!(answers.is_begun(SPACE_DATA, unit(number)), number > 0);
            assert_is(read(&answers, number), number);
            answers.make_slow();
        }
    });
    assert_eq!(answered.recv_timeout(DEADLINE), Ok(()));
    assert_eq!(hangs.reads.lock().len(), share, "nothing else was begun");
}

/// A unit that no thread has begun at its turn has more begun, earlier; one whose read has failed has not.
#[test]
fn units_that_were_not_begun_have_more_begun() {
    let begun_after = |ahead: &Ahead| {
        step(ahead, 1..9);
        assert_is(read(ahead, 1), 1);
        step(ahead, 2..9);
        ahead.stream.lock().begun.len()
    };
    let readers = Arc::<Readers>::default();
    let hangs = (100..1000).map(|file| (file, Trouble::Hangs));
    let files = on_disk(Some(1), hangs);
    let _let_go = LetGo(files.clone());
    let group = Arc::new(Group::of(readers));
    // All threads that a file system gets, two for each stream.
    let share = READING_MAX / 4;
    let _waiting: Vec<Ahead> = (0..share as u64 / 2)
        .map(|number| {
            let ahead = stream(&group, &files);
            step(&ahead, 100 + number * 3..103 + number * 3);
            ahead
        })
        .collect();
    files.await_reads(share);
    let ahead = stream(&group, &files);
    step(&ahead, 0..9);
    assert_eq!(begun_after(&ahead), 3);
    let ahead = alone(&self::files(&[(1, Trouble::Fails(1))]));
    step(&ahead, 0..9);
    settle(&ahead);
    assert_eq!(begun_after(&ahead), 1);
}

/// A stream that waits for a read that does not return ends with its transfer.
#[test]
fn a_stream_that_waits_ends_with_its_transfer() {
    let files = files(&[(1, Trouble::Hangs)]);
    let _let_go = LetGo(files.clone());
    let readers = Arc::<Readers>::default();
    let group = Arc::new(Group::of(readers.clone()));
    let ahead = stream(&group, &files);
    step(&ahead, 0..2);
    files.await_reads(1);
    step(&ahead, 1..2);
    let waits = in_time(move || ahead.read(SPACE_DATA, LEN, &mut [0; LEN as usize]));
    let until = Instant::now() + DEADLINE;
    while !readers.is_waited_for() {
        assert!(Instant::now() < until, "the stream does not wait");
        std::thread::yield_now();
    }
    group.end();
    assert_eq!(waits.recv_timeout(DEADLINE), Ok(Err(Ended)));
    // A stream of it that goes on reads itself.
    let late = stream(&group, &files);
    step(&late, 5..8);
    assert!(late.stream.lock().begun.is_empty());
    assert_is(read(&late, 5), 5);
}

/// A read that panics fails as any other: its stream reads again, and a thread takes the place of the one that has ended.
#[test]
fn a_read_that_panics_fails() {
    let count = READING_MAX as u64 + 20;
    let ahead = alone(&on_disk(
        None,
        (0..count).map(|file| (file, Trouble::Panics)),
    ));
    let all_read = in_time(move || {
        for number in 1..count {
            step(&ahead, number - 1..number + 1);
            settle(&ahead);
            step(&ahead, number..number + 1);
            assert!(ahead.is_begun(SPACE_DATA, unit(number)), "{number}");
            assert_is(read(&ahead, number), number);
            ahead.make_slow();
        }
        // It was read ahead, and not again.
        step(&ahead, count..count + 2);
        settle(&ahead);
        step(&ahead, count + 1..count + 2);
        assert_eq!(
            ahead.read(SPACE_DATA, (count + 1) * LEN, &mut [0; 10]),
            Ok(true)
        );
    });
    assert_eq!(all_read.recv_timeout(DEADLINE), Ok(()));
}
