//! Hashes of units that a holder has read in a transfer.
//!
//! A receiver that has a unit from another receiver asks a holder for its hash, as all do that have it from there: the holder reads the
//! unit for one of them. What it sends is hashed as well.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::doing::{Doing, during};
use ropewalk_model::Range;

/// Units whose hashes are kept: 64 GiB in units of 1 MiB, 256 MiB of files of 4 KiB, and 10 MB of memory. Of more the oldest is dropped.
const UNITS_MAX: usize = 1 << 16;

/// A hash (BLAKE3).
type Hash = [u8; 32];

/// The hashes of one transfer.
#[derive(Default)]
pub(crate) struct Hashed {
    // A receiver has asked for a hash: before, none is kept.
    is_asked: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    units: HashMap<Range, Hash>,
    // The same, in the order in which they were first kept.
    order: VecDeque<Range>,
    // Units that a stream reads for their hash, and what wakes others that wait for that.
    being_read: HashMap<Range, Arc<Condvar>>,
    is_stopped: bool,
}

impl Kept {
    fn keep(&mut self, unit: Range, hash: Hash) {
        if self.units.insert(unit, hash).is_some() {
            return;
        }
        self.order.push_back(unit);
        if self.order.len() > UNITS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.units.remove(&oldest);
        }
    }
}

/// A unit that is being read; ends when dropped.
struct Reading<'h>(&'h Hashed, Range);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let read = self.0.kept.lock().being_read.remove(&self.1);
        if let Some(read) = read {
            read.notify_all();
        }
    }
}

impl Hashed {
    /// A unit was read to be sent, and has this hash.
    pub fn keep(&self, unit: Range, hash: &Hash) {
        if self.is_asked.load(Ordering::Relaxed) {
            self.kept.lock().keep(unit, *hash);
        }
    }

    /// The hash of a unit as it was read last, where it is kept.
    pub fn get(&self, unit: Range) -> Option<Hash> {
        self.kept.lock().units.get(&unit).copied()
    }

    /// The same, else what reading the unit gives. Where another stream reads it, that is waited for; if that fails, all that waited read at
    /// once. `None`: the transfer is stopped.
    pub fn get_or_read<E>(
        &self,
        unit: Range,
        read: impl FnOnce() -> Result<Hash, E>,
    ) -> Option<Result<Hash, E>> {
        // An empty one costs nothing, and may be anywhere.
        if unit.is_empty() {
            return Some(read());
        }
        self.is_asked.store(true, Ordering::Relaxed);
        let mut kept = self.kept.lock();
        if let Some(hash) = kept.units.get(&unit) {
            return Some(Ok(*hash));
        }
        let reading = match kept.being_read.get(&unit).cloned() {
            None => {
                kept.being_read.insert(unit, Arc::default());
                drop(kept);
                Some(Reading(self, unit))
            }
            Some(other) => {
                let is_it = |known: &Arc<Condvar>| Arc::ptr_eq(known, &other);
                while !kept.is_stopped && kept.being_read.get(&unit).is_some_and(is_it) {
                    // The stream that reads says what that waits for.
                    during(Doing::Idle, || other.wait(&mut kept));
                }
                if let Some(hash) = kept.units.get(&unit) {
                    return Some(Ok(*hash));
                }
                if kept.is_stopped {
                    return None;
                }
                drop(kept);
                None
            }
        };
        let hash = read();
        if let Ok(hash) = &hash {
            self.kept.lock().keep(unit, *hash);
        }
        drop(reading);
        Some(hash)
    }

    /// The transfer is stopped: nothing is waited for.
    pub fn stop(&self) {
        let mut kept = self.kept.lock();
        kept.is_stopped = true;
        for read in kept.being_read.values() {
            read.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn unit(at: u64) -> Range {
        Range::new(at * 10, at * 10 + 10)
    }

    /// What asking gives, and whether the unit was read for it.
    fn ask(hashed: &Hashed, unit: Range, hash: u8) -> (Option<Result<Hash, ()>>, bool) {
        let mut is_read = false;
        let answer = hashed.get_or_read(unit, || {
            is_read = true;
            Ok([hash; 32])
        });
        (answer, is_read)
    }

    /// Kept is what was read last, from the first question on, of the very unit that is asked about.
    #[test]
    fn the_last_hash_of_a_unit_is_kept() {
        let hashed = Hashed::default();
        hashed.keep(unit(1), &[1; 32]);
        assert_eq!(hashed.get(unit(1)), None);
        assert_eq!(ask(&hashed, unit(1), 2), (Some(Ok([2; 32])), true));
        assert_eq!(ask(&hashed, unit(1), 3), (Some(Ok([2; 32])), false));
        hashed.keep(unit(1), &[4; 32]);
        assert_eq!(ask(&hashed, unit(1), 5), (Some(Ok([4; 32])), false));
        let part = Range::new(10, 19);
        assert_eq!(ask(&hashed, part, 6), (Some(Ok([6; 32])), true));
        assert_eq!(hashed.get(unit(1)), Some([4; 32]));
        // What cannot be read is tried again; nothing is kept of what has no bytes.
        assert_eq!(hashed.get_or_read(unit(7), || Err(7)), Some(Err(7)));
        assert_eq!(ask(&hashed, unit(7), 7), (Some(Ok([7; 32])), true));
        let empty = Range::new(5, 5);
        assert!(ask(&hashed, empty, 8).1 && ask(&hashed, empty, 8).1);
    }

    #[test]
    fn the_oldest_hashes_are_dropped() {
        let hashed = Hashed::default();
        ask(&hashed, unit(0), 0);
        let all = UNITS_MAX as u64 + 5;
        (0..all).for_each(|at| hashed.keep(unit(at), &[0; 32]));
        assert_eq!(hashed.get(unit(4)), None);
        assert!((5..all).all(|at| hashed.get(unit(at)).is_some()));
        let kept = hashed.kept.lock();
        assert_eq!((kept.units.len(), kept.order.len()), (UNITS_MAX, UNITS_MAX));
    }

    /// Until so many streams wait for that unit.
    fn until_waited_for(hashed: &Hashed, unit: Range, streams: usize) {
        let is_waited_for = || {
            let kept = hashed.kept.lock();
            let read = kept.being_read.get(&unit);
            // One is the map's.
            read.is_some_and(|read| Arc::strong_count(read) > streams)
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !is_waited_for() {
            assert!(Instant::now() < until, "fewer than {streams} wait");
            thread::yield_now();
        }
    }

    /// Streams that ask while a unit is read wait for that; where it fails, each of them reads, and none waits for another one.
    #[test]
    fn a_unit_is_read_by_one_stream_for_all() {
        for (first, more) in [(Ok([1; 32]), 0), (Err("a fault"), 2)] {
            let hashed = &Hashed::default();
            let reads = &AtomicU32::new(0);
            let both_read = &Barrier::new(2);
            let (begun, begins) = channel();
            thread::scope(|scope| {
                let reading = scope.spawn(move || {
                    hashed.get_or_read(unit(1), || {
                        begun.send(()).unwrap();
                        until_waited_for(hashed, unit(1), 2);
                        first
                    })
                });
                begins.recv().unwrap();
                let waiting = [(); 2].map(|()| {
                    scope.spawn(move || {
                        hashed.get_or_read(unit(1), || {
                            reads.fetch_add(1, Ordering::Relaxed);
                            both_read.wait();
                            Ok::<_, &str>([1; 32])
                        })
                    })
                });
                for thread in waiting {
                    assert_eq!(thread.join().unwrap(), Some(Ok([1; 32])));
                }
                assert_eq!(reading.join().unwrap(), Some(first));
            });
            assert_eq!(reads.load(Ordering::Relaxed), more, "{first:?}");
            assert!(hashed.kept.lock().being_read.is_empty());
        }
    }

    /// A stream does not wait for another one's disk when the transfer is stopped.
    #[test]
    fn nothing_is_waited_for_at_the_end() {
        let hashed = &Hashed::default();
        let (begun, begins) = channel();
        let (goes_on, to_go_on) = channel::<()>();
        thread::scope(|scope| {
            let reading = scope.spawn(move || {
                hashed.get_or_read(unit(1), || {
                    begun.send(()).unwrap();
                    to_go_on.recv().unwrap();
                    Ok::<_, ()>([1; 32])
                })
            });
            begins.recv().unwrap();
            let waiting = scope.spawn(|| ask(hashed, unit(1), 2));
            until_waited_for(hashed, unit(1), 1);
            hashed.stop();
            assert_eq!(waiting.join().unwrap(), (None, false));
            goes_on.send(()).unwrap();
            assert_eq!(reading.join().unwrap(), Some(Ok([1; 32])));
        });
    }
}
