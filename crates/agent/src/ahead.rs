//! Reading small files before their turn, where reading is slow: threads around [`ReadAhead`], which says which ones and when.
//!
//! A read that fails, or whose unit is not begun at its turn, is done by the stream itself, so that errors are those of its turn. A file that
//! changes or vanishes after it was read early is sent as it was read, which is as it was scanned.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::Provider as _;
use ropewalk_model::Range;
use ropewalk_proto::read_ahead::ReadAhead;
use ropewalk_proto::wire::SPACE_DATA;

use crate::landing::Holdings;

/// Threads of all streams of a node in one transfer. They wait for disks and servers, and need a processor for microseconds.
const THREADS_MAX: usize = 32;

/// A thread without anything to read ends after this.
const IDLE: Duration = Duration::from_secs(2);

/// They call a disk, and nothing that needs much.
const STACK_LEN: usize = 256 << 10;

/// A unit that is read, or will be.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Queued,
    Reading,
    /// `None`: it failed.
    Read(Option<Box<[u8]>>),
    /// The stream reads it itself, or it is no longer wanted.
    Left,
}

impl Slot {
    /// Whether it is read already, and the bytes, once they are; `None` where the stream has to read them itself.
    fn take(&self) -> (bool, Option<Box<[u8]>>) {
        let mut state = self.state.lock();
        let is_ready = matches!(*state, State::Read(_));
        if matches!(*state, State::Reading) {
            self.changed
                .wait_while(&mut state, |state| matches!(state, State::Reading));
        }
        match std::mem::replace(&mut *state, State::Left) {
            State::Read(bytes) => (is_ready, bytes),
            _ => (is_ready, None),
        }
    }

    /// Its bytes are not needed.
    fn leave(&self) {
        *self.state.lock() = State::Left;
    }

    /// Whether this thread is to read it.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let is_queued = matches!(*state, State::Queued);
        if is_queued {
            *state = State::Reading;
        }
        is_queued
    }

    fn end(&self, bytes: Option<Box<[u8]>>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Reading) {
            *state = State::Read(bytes);
        }
        drop(state);
        self.changed.notify_all();
    }
}

struct Job {
    slot: Arc<Slot>,
    holdings: Arc<Holdings>,
    unit: Range,
    machine: Arc<Mutex<ReadAhead>>,
}

impl Job {
    fn carry_out(self) {
        if !self.slot.begin() {
            return;
        }
        let mut bytes = vec![0; self.unit.len() as usize].into_boxed_slice();
        let since = Instant::now();
        let read = self
            .holdings
            .read(SPACE_DATA, self.unit.start, &mut bytes)
            .is_ok();
        if read {
            let took = since.elapsed().into();
            self.machine.lock().observe(self.unit.len(), took);
        }
        self.slot.end(read.then_some(bytes));
    }
}

/// The threads that read for the streams of one node in one transfer.
#[derive(Default)]
pub(crate) struct Readers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Readers {
    /// Queues a unit. Where no thread can be started its stream will read it.
    fn read(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.changed.notify_one();
        } else if queue.threads < THREADS_MAX {
            let readers = self.clone();
            let builder = std::thread::Builder::new()
                .name("ahead".into())
                .stack_size(STACK_LEN);
            queue.threads += usize::from(builder.spawn(move || readers.work()).is_ok());
            if queue.threads == 0 {
                queue.jobs.clear();
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.carry_out();
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let waited = self.changed.wait_for(&mut queue, IDLE);
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

/// The small files of one stream.
pub(crate) struct Ahead {
    readers: Arc<Readers>,
    holdings: Arc<Holdings>,
    machine: Arc<Mutex<ReadAhead>>,
    stream: Mutex<Stream>,
}

/// What its thread alone uses.
#[derive(Default)]
struct Stream {
    begun: HashMap<Range, Arc<Slot>>,
    turn: Option<Turn>,
}

/// The small file whose turn it is.
struct Turn {
    unit: Range,
    begun: Option<Arc<Slot>>,
    // All of it, once it was taken from there.
    bytes: Option<Box<[u8]>>,
}

impl Turn {
    fn holds(&self, space: u16, offset: u64, len: u64) -> bool {
        space == SPACE_DATA && self.unit.start <= offset && offset + len <= self.unit.end
    }
}

impl Ahead {
    pub fn new(readers: Arc<Readers>, holdings: Arc<Holdings>) -> Self {
        Self {
            readers,
            holdings,
            machine: Arc::new(Mutex::new(ReadAhead::new())),
            stream: Mutex::default(),
        }
    }

    /// The turn of the first of these units begins, the others follow.
    pub fn step(&self, granted: &mut dyn Iterator<Item = (u16, Range)>) {
        let small = |(space, unit): (u16, Range)| {
            (space == SPACE_DATA && self.holdings.is_small_file(unit)).then_some(unit)
        };
        let turn = granted.next().and_then(small);
        let step = self.machine.lock().step(turn, granted.filter_map(small));
        let mut stream = self.stream.lock();
        for unit in step.forget {
            if let Some(slot) = stream.begun.remove(&unit) {
                slot.leave();
            }
        }
        for unit in step.begin {
            let slot = Arc::<Slot>::default();
            stream.begun.insert(unit, slot.clone());
            self.readers.read(Job {
                slot,
                holdings: self.holdings.clone(),
                unit,
                machine: self.machine.clone(),
            });
        }
        stream.turn = turn.map(|unit| Turn {
            unit,
            begun: stream.begun.remove(&unit),
            bytes: None,
        });
    }

    /// Whether bytes were begun before their turn.
    pub fn has(&self, space: u16, range: Range) -> bool {
        let stream = self.stream.lock();
        stream.turn.as_ref().is_some_and(|turn| {
            turn.holds(space, range.start, range.len())
                && (turn.begun.is_some() || turn.bytes.is_some())
        })
    }

    /// Gives bytes of the unit whose turn it is, where they were read before; waits for them where they are being read.
    pub fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> bool {
        let mut stream = self.stream.lock();
        let turn = stream.turn.as_mut();
        let Some(turn) = turn.filter(|turn| turn.holds(space, offset, out.len() as u64)) else {
            return false;
        };
        if let Some(slot) = turn.begun.take() {
            let (is_ready, bytes) = slot.take();
            self.machine.lock().take(turn.unit, is_ready);
            turn.bytes = bytes;
        }
        let Some(bytes) = &turn.bytes else {
            return false;
        };
        let start = (offset - turn.unit.start) as usize;
        out.copy_from_slice(&bytes[start..start + out.len()]);
        true
    }

    /// The stream itself read so many bytes from there, or opened the file.
    pub fn observe(&self, space: u16, offset: u64, bytes: u64, took: Duration) {
        let stream = self.stream.lock();
        let turn = stream.turn.as_ref();
        // The rest of a file that is read in parts is no file.
        if turn.is_some_and(|turn| turn.holds(space, offset, bytes) && turn.unit.start == offset) {
            self.machine.lock().observe(bytes, took.into());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        for slot in self.stream.get_mut().begun.values() {
            slot.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use ropewalk_model::RangeSet;
    use ropewalk_store::{Extent, Source, StoreError};

    use super::*;

    const LEN: u64 = 1000;

    /// Small files of one length, each full of its number.
    struct Files {
        // Those that are read by that many threads at the same time, or not at all.
        together: HashSet<u64>,
        barrier: Barrier,
        // Those that fail so often.
        failing: Mutex<HashMap<u64, usize>>,
        reads: Mutex<Vec<u64>>,
    }

    impl Source for Files {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
            let file = offset / LEN;
            self.reads.lock().push(file);
            if self.together.contains(&file) {
                self.barrier.wait();
            }
            if let Some(left @ 1..) = self.failing.lock().get_mut(&file) {
                *left -= 1;
                return Err(StoreError::Ended);
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
    }

    fn files(together: &[u64], failing: &[(u64, usize)]) -> Arc<Files> {
        Arc::new(Files {
            together: together.iter().copied().collect(),
            barrier: Barrier::new(together.len().max(1)),
            failing: Mutex::new(failing.iter().copied().collect()),
            reads: Mutex::default(),
        })
    }

    fn ahead(files: &Arc<Files>) -> Ahead {
        let all = RangeSet::from(Range::new(0, 1000 * LEN));
        let holdings = Holdings {
            sources: vec![(all, files.clone())],
            ..Holdings::default()
        };
        Ahead::new(Arc::default(), Arc::new(holdings))
    }

    fn make_slow(ahead: &Ahead) {
        let slow = Duration::from_secs(1).into();
        (0..20).for_each(|_| ahead.machine.lock().observe(0, slow));
    }

    fn unit(number: u64) -> Range {
        Range::new(number * LEN, (number + 1) * LEN)
    }

    fn step(ahead: &Ahead, numbers: std::ops::Range<u64>) {
        ahead.step(&mut numbers.map(|number| (SPACE_DATA, unit(number))));
    }

    /// As a stream reads: from what was read ahead, else from the file.
    fn read(ahead: &Ahead, number: u64) -> Result<Vec<u8>, String> {
        let mut out = vec![0; LEN as usize];
        if !ahead.read(SPACE_DATA, number * LEN, &mut out) {
            let read = ahead.holdings.read(SPACE_DATA, number * LEN, &mut out);
            read.map_err(|absent| absent.reason)?;
        }
        Ok(out)
    }

    /// Units that follow are read at the same time as the one whose turn it is, and all arrive in their order.
    #[test]
    fn slow_files_are_read_at_the_same_time() {
        let files = files(&[0, 1, 2], &[]);
        let ahead = ahead(&files);
        make_slow(&ahead);
        for number in 0..100 {
            step(&ahead, number..100);
            assert_eq!(ahead.has(SPACE_DATA, unit(number)), number > 0);
            // In parts, as fragments are.
            let mut part = [0; 10];
            let is_ahead = ahead.read(SPACE_DATA, number * LEN + 500, &mut part);
            assert_eq!(part[0], number as u8 * u8::from(is_ahead));
            let bytes = read(&ahead, number).unwrap_or_default();
            assert!(bytes.len() as u64 == LEN && bytes.iter().all(|byte| *byte == number as u8));
            // Whatever the tests' machine is like.
            make_slow(&ahead);
        }
        let mut reads = files.reads.lock().clone();
        reads.sort_unstable();
        assert_eq!(reads, (0..100).collect::<Vec<u64>>(), "each once");
    }

    /// Nothing is read ahead where files are in memory, and what is no small file never is.
    #[test]
    fn fast_files_are_read_at_their_turn() {
        let files = files(&[], &[]);
        let ahead = ahead(&files);
        for number in 0..100 {
            step(&ahead, number..100);
            assert!(!ahead.has(SPACE_DATA, unit(number)));
            assert!(read(&ahead, number).is_ok());
            ahead.observe(SPACE_DATA, number * LEN, LEN, Duration::ZERO);
        }
        make_slow(&ahead);
        let long = |number: u64| (SPACE_DATA, Range::new(number * LEN, (number + 2) * LEN));
        ahead.step(&mut (0..10).map(long));
        ahead.step(&mut (1..10).map(long));
        assert!(!ahead.has(SPACE_DATA, long(1).1));
        assert_eq!(files.reads.lock().len(), 100);
    }

    /// Waits until all that was begun is read, or has failed.
    fn settle(ahead: &Ahead) {
        for slot in ahead.stream.lock().begun.values() {
            let mut state = slot.state.lock();
            let is_open = |state: &mut State| matches!(state, State::Queued | State::Reading);
            slot.changed.wait_while(&mut state, is_open);
        }
    }

    /// A file that cannot be read ahead is read again at its turn, which gives the error, or the bytes after all.
    #[test]
    fn errors_are_those_of_the_turn() {
        let ahead = ahead(&files(&[], &[(1, 1), (2, 2)]));
        make_slow(&ahead);
        step(&ahead, 0..3);
        settle(&ahead);
        assert!(read(&ahead, 0).is_ok());
        step(&ahead, 1..3);
        let bytes = read(&ahead, 1).unwrap_or_default();
        assert!(bytes.len() as u64 == LEN && bytes.iter().all(|byte| *byte == 1));
        step(&ahead, 2..3);
        assert_eq!(read(&ahead, 2).err(), Some(StoreError::Ended.to_string()));
    }

    /// What the receiver takes back is not kept, nor what is left when the stream ends.
    #[test]
    fn what_is_not_wanted_is_left() {
        let ahead = ahead(&files(&[], &[]));
        make_slow(&ahead);
        step(&ahead, 0..3);
        let slots: Vec<Arc<Slot>> = ahead.stream.lock().begun.values().cloned().collect();
        assert_eq!(slots.len(), 2);
        step(&ahead, 7..8);
        assert!(ahead.stream.lock().begun.is_empty());
        step(&ahead, 7..10);
        let more: Vec<Arc<Slot>> = ahead.stream.lock().begun.values().cloned().collect();
        assert_eq!(more.len(), 2);
        drop(ahead);
        for slot in slots.iter().chain(&more) {
            assert!(matches!(*slot.state.lock(), State::Left));
        }
    }
}
