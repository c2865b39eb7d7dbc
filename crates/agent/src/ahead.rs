//! Reading small files before their turn, where reading is slow: threads around [`ReadAhead`], which says which ones and when, and
//! around the queue of all streams, which says how many.
//!
//! A read that fails, or whose unit is not begun at its turn, is done by the stream itself, so that errors are those of its turn. A file that
//! changes or vanishes after it was read early is sent as it was read, which is as it was scanned.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_model::Range;
use ropewalk_proto::read_ahead::ReadAhead;
use ropewalk_proto::wire::SPACE_DATA;

use crate::holdings::Holdings;

mod readers;

use readers::{Early, Wanted};
pub(crate) use readers::{Ended, Group};

/// The small files of one stream.
pub(crate) struct Ahead {
    group: Arc<Group>,
    holdings: Arc<Holdings>,
    machine: Arc<Mutex<ReadAhead>>,
    stream: Mutex<Stream>,
}

/// What its thread alone uses.
#[derive(Default)]
struct Stream {
    begun: HashMap<Range, Early>,
    turn: Option<Turn>,
}

/// The small file whose turn it is.
struct Turn {
    unit: Range,
    // While it may be there.
    early: Option<Early>,
    // All of it, once it was taken from there.
    bytes: Option<Box<[u8]>>,
}

impl Turn {
    fn holds(&self, space: u16, offset: u64, len: u64) -> bool {
        space == SPACE_DATA && self.unit.start <= offset && offset + len <= self.unit.end
    }
}

impl Ahead {
    pub fn new(group: Arc<Group>, holdings: Arc<Holdings>) -> Self {
        Self {
            group,
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
        let mut stream = self.stream.lock();
        // What the last one has is not needed any more.
        stream.turn = None;
        let mut begun = Vec::new();
        let begin = |unit| {
            let early = self.group.begin(Wanted {
                holdings: self.holdings.clone(),
                unit,
                machine: self.machine.clone(),
            });
            let is_begun = early.is_some();
            begun.extend(early.map(|early| (unit, early)));
            is_begun
        };
        let next = granted.filter_map(small);
        let step = self.machine.lock().step(turn, next, begin);
        for unit in step.forget {
            stream.begun.remove(&unit);
        }
        stream.begun.extend(begun);
        stream.turn = turn.map(|unit| Turn {
            unit,
            early: stream.begun.remove(&unit),
            bytes: None,
        });
    }

    /// Whether bytes of the unit whose turn it is were begun before.
    pub fn is_begun(&self, space: u16, range: Range) -> bool {
        let stream = self.stream.lock();
        stream
            .turn
            .as_ref()
            .is_some_and(|turn| turn.holds(space, range.start, range.len()) && turn.early.is_some())
    }

    /// Gives bytes of the unit whose turn it is, where they were read before; waits for them where they are being read. `false` where
    /// the stream has to read them.
    ///
    /// # Errors
    /// The transfer has ended, and nothing is waited for.
    pub fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<bool, Ended> {
        let mut stream = self.stream.lock();
        let turn = stream.turn.as_mut();
        let Some(turn) = turn.filter(|turn| turn.holds(space, offset, out.len() as u64)) else {
            return Ok(false);
        };
        if let (Some(early), None) = (&turn.early, &turn.bytes) {
            let due = early.take()?;
            self.machine.lock().take(turn.unit, due.is_ready);
            turn.bytes = due.bytes;
        }
        let Some(bytes) = &turn.bytes else {
            turn.early = None;
            return Ok(false);
        };
        let start = (offset - turn.unit.start) as usize;
        out.copy_from_slice(&bytes[start..start + out.len()]);
        Ok(true)
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

#[cfg(test)]
impl Ahead {
    /// As if files had been read slowly.
    pub fn make_slow(&self) {
        let slow = Duration::from_secs(1).into();
        (0..20).for_each(|_| self.machine.lock().observe(0, slow));
    }
}

#[cfg(test)]
mod tests;
