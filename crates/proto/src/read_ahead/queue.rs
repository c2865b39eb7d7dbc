//! Which of the units that streams want early are read next, and how many of them there may be. Of all streams of a process; pure.
//!
//! ```text
//!          add            begin            end              leave
//!  stream ─────▶ queued ─────────▶ read ─────────▶ held ─────────────▶ (gone)
//!                  │ leave, take     │ leave, end of the group
//!                  ▼                 ▼
//!                (gone)           forsaken ─ end ─▶ (gone)
//! ```
//!
//! * **A file system that does not answer holds what it got for ever**: threads, and the memory that they read into. Each gets a quarter at
//!   most, and not more than all leave free, so that eight that do not answer leave something for one more, where
//!   files have at most 512 KiB.
//! * **What no stream waits for is not read**: a unit that is left, or whose transfer has ended, is queued no more. One that is being read is
//!   forsaken, and counts until the read returns.
//! * **Fair**: file systems take turns, units of one are read in the order in which they were wanted.
//!
//! A unit that is not accepted, or whose read was not begun at its turn or failed, is read by its stream: nothing ever waits for space here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Bytes that are queued, read or held for all streams of a process. The quarter of it that one file system gets is what four streams use.
pub const BYTES_MAX: u64 = 64 << 20;

/// Units of that, for small ones: memory for what is known of each. 128 streams with as many as a stream may have begun.
pub const UNITS_MAX: usize = 128 * super::DEPTH_MAX;

/// Reads at the same time, each with a thread. They wait for disks and servers, and need a processor for microseconds.
pub const READING_MAX: usize = 128;

/// One file system gets one of so many parts of all that there is.
const PARTS: u64 = 4;

/// A unit that was accepted. Numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Read(u64);

/// Streams that end together: those of one node in one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u64);

/// Where files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// On the file system of that number.
    Numbered(u64),
    /// That is not known: on one of its own for each group.
    Of(Group),
}

/// What a stream gets at the turn of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was not begun: the stream reads it.
    Queued,
    /// It could not be read: the stream tries again.
    Failed,
    /// It is being read: ask again when that ends.
    Reading,
    /// Its bytes.
    Held,
    /// The group has ended, and nothing of it is read.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Reading,
    // Being read, and no stream wants it.
    Forsaken,
    Held,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    group: Group,
    disk: Disk,
    len: u64,
    state: State,
}

impl Unit {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Queued | State::Reading)
    }
}

#[derive(Clone, Debug, Default)]
struct Shares {
    // The lowest was wanted first.
    queued: BTreeSet<Read>,
    units: usize,
    reading: usize,
    bytes: u64,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct ReadQueue {
    next: u64,
    groups: BTreeSet<Group>,
    units: BTreeMap<Read, Unit>,
    // Of those that have units.
    disks: BTreeMap<Disk, Shares>,
    // Whose turn was last.
    last: Option<Disk>,
    reading: usize,
    bytes: u64,
}

/// Whether what has `own` may have `more`, where all together have `taken` of `most`.
fn may_have(own: u64, more: u64, taken: u64, most: u64) -> bool {
    let free = most.saturating_sub(taken);
    own + more <= free.min(most / PARTS)
}

impl ReadQueue {
    /// Nothing is read.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Streams begin that will end together.
    pub fn open(&mut self) -> Group {
        let group = Group(self.number());
        self.groups.insert(group);
        group
    }

    /// The streams of a group end: what is queued is not read, and nothing is waited for.
    ///
    /// Returns the units that were queued or being read, which their streams may be waiting for.
    pub fn close(&mut self, group: Group) -> Vec<Read> {
        self.groups.remove(&group);
        let units = self.units.iter();
        let units = units.filter(|(_, unit)| unit.group == group && unit.is_open());
        let ended: Vec<Read> = units.map(|(read, _)| *read).collect();
        ended.iter().for_each(|read| self.leave(*read));
        ended
    }

    /// A stream wants a unit of so many bytes before its turn. `None`: there is no space for it, or its group has ended.
    pub fn add(&mut self, group: Group, disk: Disk, len: u64) -> Option<Read> {
        if !self.groups.contains(&group) {
            return None;
        }
        let (units, bytes) = self
            .disks
            .get(&disk)
            .map_or((0, 0), |own| (own.units, own.bytes));
        let all = self.units.len() as u64;
        let has_space = may_have(units as u64, 1, all, UNITS_MAX as u64)
            && may_have(bytes, len, self.bytes, BYTES_MAX);
        if !has_space {
            return None;
        }
        let read = Read(self.number());
        let unit = Unit {
            group,
            disk,
            len,
            state: State::Queued,
        };
        self.units.insert(read, unit);
        self.bytes += len;
        let own = self.disks.entry(disk).or_default();
        own.queued.insert(read);
        own.units += 1;
        own.bytes += len;
        Some(read)
    }

    /// Whether a thread that has nothing to do should [`begin`](Self::begin).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.disks.values().any(|own| self.may_read(own))
    }

    /// What a thread is to read now; it says when that has [ended](Self::end). `None` while there is nothing.
    pub fn begin(&mut self) -> Option<Read> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let until = self.last.map_or(Bound::Unbounded, Bound::Included);
        let first = self.disks.range((after, Bound::Unbounded));
        let mut all = first.chain(self.disks.range((Bound::Unbounded, until)));
        let disk = all
            .find(|(_, own)| self.may_read(own))
            .map(|(disk, _)| *disk)?;
        self.last = Some(disk);
        let own = self.disks.get_mut(&disk)?;
        let read = own.queued.pop_first()?;
        own.reading += 1;
        self.reading += 1;
        if let Some(unit) = self.units.get_mut(&read) {
            unit.state = State::Reading;
        }
        Some(read)
    }

    /// A read that was begun has ended.
    ///
    /// * `is_whole`: all bytes are there.
    ///
    /// Returns whether its stream wants them still.
    pub fn end(&mut self, read: Read, is_whole: bool) -> bool {
        let Some(unit) = self.units.get_mut(&read) else {
            return false;
        };
        let is_wanted = match unit.state {
            State::Reading => true,
            State::Forsaken => false,
            // It was not begun, or has ended.
            State::Queued | State::Held | State::Failed => return false,
        };
        unit.state = if is_whole { State::Held } else { State::Failed };
        self.reading -= 1;
        if let Some(own) = self.disks.get_mut(&unit.disk) {
            own.reading -= 1;
        }
        if !is_wanted {
            self.remove(read);
        }
        is_wanted
    }

    /// It is the turn of a unit, or a read that its stream waited for has ended. What is [held](Taken::Held) counts until it is
    /// [left](Self::leave).
    pub fn take(&mut self, read: Read) -> Taken {
        match self.units.get(&read).map(|unit| unit.state) {
            Some(State::Held) => Taken::Held,
            Some(State::Reading) => Taken::Reading,
            Some(State::Queued) => {
                self.remove(read);
                Taken::Queued
            }
            Some(State::Failed) => {
                self.remove(read);
                Taken::Failed
            }
            Some(State::Forsaken) | None => Taken::Ended,
        }
    }

    /// A unit is not wanted, or its bytes are sent.
    pub fn leave(&mut self, read: Read) {
        match self.units.get_mut(&read) {
            Some(unit) if unit.state == State::Reading => unit.state = State::Forsaken,
            Some(unit) if unit.state == State::Forsaken => {}
            _ => self.remove(read),
        }
    }

    /// Whether a unit is queued or being read for its stream.
    #[must_use]
    pub fn is_open(&self, read: Read) -> bool {
        let unit = self.units.get(&read);
        unit.is_some_and(Unit::is_open)
    }

    /// Bytes that are queued, read or held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn may_read(&self, own: &Shares) -> bool {
        let most = READING_MAX as u64;
        !own.queued.is_empty() && may_have(own.reading as u64, 1, self.reading as u64, most)
    }

    fn remove(&mut self, read: Read) {
        let Some(unit) = self.units.remove(&read) else {
            return;
        };
        self.bytes -= unit.len;
        if let Some(own) = self.disks.get_mut(&unit.disk) {
            own.queued.remove(&read);
            own.units -= 1;
            own.bytes -= unit.len;
            if own.units == 0 {
                self.disks.remove(&unit.disk);
            }
        }
    }
}

#[cfg(test)]
mod tests;
