//! Threads that read units before their turn, for all streams of the process. [`ReadQueue`] says which and when.
//!
//! Whatever becomes of a read, also where it panics, its stream goes on; and a stream that waits for a read that does not return ends with its
//! transfer.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::Provider as _;
use ropewalk_model::Range;
use ropewalk_proto::read_ahead::{
    Disk, Group as GroupId, READING_MAX, Read, ReadAhead, ReadQueue, Taken,
};
use ropewalk_proto::wire::SPACE_DATA;

use crate::holdings::Holdings;
use crate::hung::{Calls, Place, READS};

/// A thread without anything to read ends after this.
const IDLE: Duration = Duration::from_secs(2);

/// They call a disk, and nothing that needs much.
const STACK_LEN: usize = 256 << 10;

/// Those of this process: all its nodes and transfers share one bound of memory and threads.
static READERS: LazyLock<Arc<Readers>> = LazyLock::new(Arc::default);

/// Their reads.
static CALLS: LazyLock<Calls> = LazyLock::new(Calls::new);

/// The transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

/// What is read for a stream.
pub(super) struct Wanted {
    pub holdings: Arc<Holdings>,
    pub unit: Range,
    pub machine: Arc<Mutex<ReadAhead>>,
}

struct Job {
    // Until it is begun.
    wanted: Option<Wanted>,
    // Once it is read, until they are taken.
    bytes: Option<Box<[u8]>>,
    ended: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    queue: ReadQueue,
    // Of units that streams want.
    jobs: HashMap<Read, Job>,
    threads: usize,
    idle: usize,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Readers {
    state: Mutex<State>,
    changed: Condvar,
}

impl Readers {
    /// Has a thread begin what is ready. Where none can be started, streams read at their turn.
    fn wake(self: &Arc<Self>, state: &mut State) {
        if !state.queue.is_ready() {
            return;
        }
        if state.idle > 0 {
            self.changed.notify_one();
        } else if state.threads < READING_MAX {
            let readers = self.clone();
            let builder = std::thread::Builder::new()
                .name("ahead".into())
                .stack_size(STACK_LEN);
            let started = builder.spawn(move || {
                let counted = Counted(&readers);
                readers.work();
                // It has said itself that it ends.
                std::mem::forget(counted);
            });
            state.threads += usize::from(started.is_ok());
        }
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some(read) = state.queue.begin() {
                let job = state.jobs.get_mut(&read);
                let wanted = job.and_then(|job| job.wanted.take());
                // There may be more for another one.
                self.wake(&mut state);
                drop(state);
                let underway = Underway {
                    readers: self,
                    read,
                    bytes: None,
                };
                underway.carry_out(wanted);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.changed.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && !state.queue.is_ready() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A thread; dropped where a read has panicked.
struct Counted<'r>(&'r Arc<Readers>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.threads -= 1;
        self.0.wake(&mut state);
    }
}

/// A read that was begun; it has ended, in whatever way, when this is dropped.
struct Underway<'r> {
    readers: &'r Readers,
    read: Read,
    bytes: Option<Box<[u8]>>,
}

impl Underway<'_> {
    fn carry_out(mut self, wanted: Option<Wanted>) {
        let Some(Wanted {
            holdings,
            unit,
            machine,
        }) = wanted
        else {
            return;
        };
        let mut bytes = vec![0; unit.len() as usize].into_boxed_slice();
        let since = Instant::now();
        let place = Place {
            holdings: holdings.clone(),
            offset: unit.start,
        };
        let read = || holdings.read(SPACE_DATA, unit.start, &mut bytes);
        if CALLS.carry_out(READS, Some(place), read).is_ok() {
            let took = since.elapsed().into();
            machine.lock().observe(unit.len(), took);
            self.bytes = Some(bytes);
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes.take();
        let mut state = self.readers.state.lock();
        if state.queue.end(self.read, bytes.is_some())
            && let Some(job) = state.jobs.get_mut(&self.read)
        {
            job.bytes = bytes;
            job.ended.notify_all();
        }
    }
}

/// The streams of one node in one transfer.
pub(crate) struct Group {
    readers: Arc<Readers>,
    id: GroupId,
}

impl Group {
    pub fn new() -> Self {
        Self::of(READERS.clone())
    }

    pub(super) fn of(readers: Arc<Readers>) -> Self {
        let id = readers.state.lock().queue.open();
        Self { readers, id }
    }

    /// The transfer ends: nothing more is read for its streams, and none of them waits.
    pub fn end(&self) {
        let mut state = self.readers.state.lock();
        let ended = state.queue.close(self.id);
        let jobs: Vec<Job> = ended
            .iter()
            .filter_map(|read| state.jobs.remove(read))
            .collect();
        drop(state);
        // The last of them may close files, of a disk that does not answer.
        for job in jobs {
            job.ended.notify_all();
        }
    }

    /// Has a unit read, where there is space for it.
    pub(super) fn begin(self: &Arc<Self>, wanted: Wanted) -> Option<Early> {
        let disk = match wanted.holdings.file_system(wanted.unit.start) {
            Some(number) => Disk::Numbered(number),
            None => Disk::Of(self.id),
        };
        let mut state = self.readers.state.lock();
        let read = state.queue.add(self.id, disk, wanted.unit.len())?;
        let job = Job {
            wanted: Some(wanted),
            bytes: None,
            ended: Arc::default(),
        };
        state.jobs.insert(read, job);
        self.readers.wake(&mut state);
        drop(state);
        Some(Early {
            group: self.clone(),
            read,
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a stream gets at the turn of its unit.
pub(super) struct Due {
    /// `None`: it has to read them itself.
    pub bytes: Option<Box<[u8]>>,
    /// Whether its read had ended by then: more at the same time would not have it earlier.
    pub is_ready: bool,
}

/// A unit that was begun before its turn. It counts, with its bytes, until this is dropped.
pub(super) struct Early {
    group: Arc<Group>,
    read: Read,
}

impl Early {
    /// Waits for its bytes where they are being read.
    pub fn take(&self) -> Result<Due, Ended> {
        let mut state = self.group.readers.state.lock();
        let mut is_ready = true;
        loop {
            let taken = state.queue.take(self.read);
            let job = state.jobs.get_mut(&self.read);
            match (taken, job) {
                (Taken::Queued, _) => {
                    let (bytes, is_ready) = (None, false);
                    return Ok(Due { bytes, is_ready });
                }
                (Taken::Failed, _) => {
                    let bytes = None;
                    return Ok(Due { bytes, is_ready });
                }
                (Taken::Held, Some(job)) => {
                    let bytes = job.bytes.take();
                    return Ok(Due { bytes, is_ready });
                }
                (Taken::Reading, Some(job)) => {
                    let ended = job.ended.clone();
                    is_ready = false;
                    ended.wait(&mut state);
                }
                (Taken::Ended, _) | (Taken::Held | Taken::Reading, None) => return Err(Ended),
            }
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        let mut state = self.group.readers.state.lock();
        state.queue.leave(self.read);
        let job = state.jobs.remove(&self.read);
        drop(state);
        // It may close files, of a disk that does not answer.
        drop(job);
    }
}

#[cfg(test)]
impl Group {
    /// Streams that share nothing with others of the process.
    pub fn alone() -> Self {
        Self::of(Arc::default())
    }

    /// As those of all its readers, where these have no other group.
    pub fn counts(&self) -> (usize, u64) {
        self.readers.counts()
    }

    /// Whether a stream waits for a read, where the readers have no other group.
    pub fn is_waited_for(&self) -> bool {
        self.readers.is_waited_for()
    }
}

#[cfg(test)]
impl Early {
    /// Waits until its read has ended.
    pub fn settle(&self) {
        let mut state = self.group.readers.state.lock();
        while state.queue.is_open(self.read) {
            let ended = state.jobs[&self.read].ended.clone();
            ended.wait(&mut state);
        }
    }
}

#[cfg(test)]
impl Readers {
    /// Units that streams want, and bytes that are queued, read or held.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.jobs.len(), state.queue.bytes())
    }

    /// Whether a stream waits for a read.
    pub fn is_waited_for(&self) -> bool {
        let state = self.state.lock();
        state
            .jobs
            .values()
            .any(|job| Arc::strong_count(&job.ended) > 1)
    }
}
