//! `buffer:NAME`: memory of a program, named for transfers and lent to the agent within it.
//!
//! What is read is never copied as a whole, nor is what is written: frames are made from it, or copied to it, one after the other.

mod error;
mod memory;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use ropewalk_model::spec::is_buffer_name;
use ropewalk_model::{Layout, Piece, Range, RangeSet};

pub use self::error::BufferError;
use self::memory::{Gone, Memory};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::open_files::lock;
use crate::sink::Sink;
use crate::source::{Extent, Source, locate};

/// Memory of a program that transfers read, or write. Clones are the same memory.
///
/// One that can be written is the program's to read when no transfer writes it any more ([`Buffer::is_busy`]); [`Buffer::written`] has the ranges
/// that transfers have delivered.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    memory: Memory,
    is_writable: bool,
    /// Since 1970. Names the contents, which do not change while transfers read it.
    made_at: Duration,
    state: Mutex<State>,
}

/// Offsets in the buffer.
#[derive(Default)]
struct State {
    /// Transfers write them.
    busy: RangeSet,
    /// Delivered, and not written since.
    written: RangeSet,
}

impl fmt::Debug for Buffer {
    // Without the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("is_writable", &self.0.is_writable)
            .finish_non_exhaustive()
    }
}

impl Buffer {
    /// Bytes that transfers read: a `Vec<u8>`, an `Arc<[u8]>`, a mapping of a file. They must not change.
    #[must_use]
    pub fn readable(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::new(Memory::shared(bytes), false)
    }

    /// Bytes that transfers write, and read; [`Buffer::take_back`] returns them.
    #[must_use]
    pub fn writable(bytes: Vec<u8>) -> Self {
        Self::new(Memory::owned(bytes), true)
    }

    /// Memory of another owner that transfers read.
    ///
    /// # Safety
    /// `len` bytes from `start` on can be read by any thread, and nothing writes them, until [`Buffer::take_back`] has returned or all clones are
    /// dropped.
    #[must_use]
    pub unsafe fn lent(start: *const u8, len: usize) -> Self {
        // SAFETY: as this function demands.
        Self::new(unsafe { Memory::lent(start.cast_mut(), len, false) }, false)
    }

    /// Memory of another owner that transfers write, and read.
    ///
    /// # Safety
    /// `len` bytes from `start` on can be read and written by any thread until [`Buffer::take_back`] has returned or all clones are dropped. While a
    /// transfer writes them ([`Buffer::is_busy`]), nothing else touches them; while one reads them, nothing else writes them.
    #[must_use]
    pub unsafe fn lent_writable(start: *mut u8, len: usize) -> Self {
        // SAFETY: as this function demands.
        Self::new(unsafe { Memory::lent(start, len, true) }, true)
    }

    fn new(memory: Memory, is_writable: bool) -> Self {
        let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(Arc::new(Inner {
            memory,
            is_writable,
            made_at: made_at.unwrap_or_default(),
            state: Mutex::default(),
        }))
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.memory.len() as u64
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a transfer writes it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !lock(&self.0.state).busy.is_empty()
    }

    /// The ranges that transfers have delivered, checked. Of one that failed, those that it had until then.
    #[must_use]
    pub fn written(&self) -> Vec<std::ops::Range<u64>> {
        let state = lock(&self.0.state);
        let ranges = state.written.iter();
        ranges.map(|range| range.start..range.end).collect()
    }

    /// Copies bytes out of it. Not while a transfer writes them.
    ///
    /// # Errors
    /// [`BufferError::Busy`], [`BufferError::TooShort`], and [`BufferError::TakenBack`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), BufferError> {
        let range = Range::new(offset, offset.saturating_add(out.len() as u64));
        let name = String::new;
        self.check_free(range)?;
        let read = self.0.memory.read(offset, out);
        read.map_err(|Gone| BufferError::TakenBack { name: name() })
    }

    /// Appends bytes of it to a vector, which need not be zeroed before. Not while a transfer writes them.
    ///
    /// # Errors
    /// As [`Buffer::read`]; some of the bytes may have been appended.
    pub fn append_to(&self, offset: u64, len: u64, out: &mut Vec<u8>) -> Result<(), BufferError> {
        let name = String::new;
        self.check_free(Range::new(offset, offset.saturating_add(len)))?;
        let read = self.0.memory.append_to(offset, len, out);
        read.map_err(|Gone| BufferError::TakenBack { name: name() })
    }

    /// Whether it can be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.is_writable
    }

    /// Copies bytes into it. Not while a transfer writes them.
    ///
    /// # Errors
    /// [`BufferError::ReadOnly`], and as [`Buffer::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), BufferError> {
        let name = String::new;
        if !self.0.is_writable {
            return Err(BufferError::ReadOnly { name: name() });
        }
        let range = Range::new(offset, offset.saturating_add(bytes.len() as u64));
        self.check_free(range)?;
        let written = self.0.memory.write(offset, bytes);
        written.map_err(|Gone| BufferError::TakenBack { name: name() })
    }

    /// Refuses a range that ends beyond it, or that a transfer writes.
    fn check_free(&self, range: Range) -> Result<(), BufferError> {
        if range.end > self.len() {
            return Err(BufferError::TooShort {
                name: String::new(),
                len: self.len(),
                range,
            });
        }
        match lock(&self.0.state).busy.clipped(range).is_empty() {
            true => Ok(()),
            false => Err(BufferError::Busy {
                name: String::new(),
                range,
            }),
        }
    }

    /// Ends its use: no thread touches lent memory after this, and a transfer that needs it fails. Returns the bytes of
    /// [`Buffer::writable`], once; else none.
    pub fn take_back(&self) -> Vec<u8> {
        self.0.memory.close()
    }

    /// Whether bytes can be read, or written, for rows.
    ///
    /// # Errors
    /// [`BufferError::TooShort`] and [`BufferError::ReadOnly`].
    pub fn check(&self, name: &str, layout: &Layout, writes: bool) -> Result<(), BufferError> {
        if writes && !self.0.is_writable {
            return Err(BufferError::ReadOnly { name: name.into() });
        }
        let len = self.len();
        let beyond = layout.pieces().iter().map(in_object);
        match beyond.max_by_key(|range| range.end) {
            Some(range) if range.end > len => Err(BufferError::TooShort {
                name: name.into(),
                len,
                range,
            }),
            _ => Ok(()),
        }
    }

    /// What it is to those that compare sources: its length, and when it was made.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let at = self.0.made_at;
        Identity {
            len: self.len(),
            mtime_seconds: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            mtime_nanoseconds: at.subsec_nanos(),
        }
    }
}

/// Offsets of a piece in its object.
fn in_object(piece: &Piece) -> Range {
    let end = piece.object_offset.saturating_add(piece.range.len());
    Range::new(piece.object_offset, end)
}

/// The buffers of one agent by name. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<BTreeMap<String, Buffer>>>);

impl Buffers {
    /// Adds a buffer.
    ///
    /// # Errors
    /// [`BufferError::BadName`] and [`BufferError::Exists`].
    pub fn lend(&self, name: &str, buffer: Buffer) -> Result<(), BufferError> {
        if !is_buffer_name(name) {
            return Err(BufferError::BadName { name: name.into() });
        }
        let mut buffers = lock(&self.0);
        if buffers.contains_key(name) {
            return Err(BufferError::Exists { name: name.into() });
        }
        buffers.insert(name.into(), buffer);
        Ok(())
    }

    /// Removes a buffer: no further transfer finds it, those that have it go on.
    #[must_use]
    pub fn withdraw(&self, name: &str) -> Option<Buffer> {
        lock(&self.0).remove(name)
    }

    /// The buffer of this name.
    ///
    /// # Errors
    /// [`BufferError::Unknown`].
    pub fn get(&self, name: &str) -> Result<Buffer, BufferError> {
        let buffers = lock(&self.0);
        let found = buffers.get(name).cloned();
        found.ok_or_else(|| BufferError::Unknown { name: name.into() })
    }
}

/// A buffer as a source.
#[derive(Debug)]
pub struct BufferSource {
    name: String,
    buffer: Buffer,
    layout: Layout,
}

impl BufferSource {
    /// * `layout`: of one object.
    ///
    /// # Errors
    /// As [`Buffer::check`].
    pub fn new(name: &str, buffer: Buffer, layout: Layout) -> Result<Self, BufferError> {
        buffer.check(name, &layout, false)?;
        Ok(Self {
            name: name.into(),
            buffer,
            layout,
        })
    }
}

fn taken_back(name: &str) -> StoreError {
    BufferError::TakenBack { name: name.into() }.into()
}

/// The pieces that hold the bytes, in their order: all of them are there, or it is an error.
fn pieces(layout: &Layout, mut offset: u64, len: u64) -> Result<Vec<Piece>, StoreError> {
    let end = offset.saturating_add(len);
    let mut found = Vec::new();
    while offset < end {
        let piece = locate(layout, offset, end - offset)?;
        offset = piece.range.end;
        found.push(piece);
    }
    Ok(found)
}

fn read(
    name: &str,
    buffer: &Buffer,
    layout: &Layout,
    offset: u64,
    mut buf: &mut [u8],
) -> Result<(), StoreError> {
    for piece in pieces(layout, offset, buf.len() as u64)? {
        let (head, rest) = buf.split_at_mut(piece.range.len() as usize);
        let read = buffer.0.memory.read(piece.object_offset, head);
        read.map_err(|Gone| taken_back(name))?;
        buf = rest;
    }
    Ok(())
}

impl Source for BufferSource {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        read(&self.name, &self.buffer, &self.layout, offset, buf)
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent<'_>, StoreError> {
        let piece = locate(&self.layout, offset, len)?;
        let memory = &self.buffer.0.memory;
        let bytes = memory.in_place(piece.object_offset, piece.range.len());
        bytes
            .map(Extent::Memory)
            .map_err(|Gone| taken_back(&self.name))
    }
}

/// A buffer as a sink. While it is there, and has not ended, the bytes of its layout are this transfer's.
pub struct BufferSink {
    name: String,
    buffer: Buffer,
    layout: Layout,
    claimed: RangeSet,
    // Held for reading while bytes are written: after the end none are.
    has_ended: RwLock<bool>,
}

impl BufferSink {
    /// * `layout`: of one object.
    ///
    /// # Errors
    /// As [`Buffer::check`]; [`BufferError::Busy`] where another transfer writes some of the bytes.
    pub fn new(name: &str, buffer: Buffer, layout: Layout) -> Result<Self, BufferError> {
        buffer.check(name, &layout, true)?;
        let claimed = RangeSet::from_ranges(layout.pieces().iter().map(in_object));
        let mut state = lock(&buffer.0.state);
        if let Some(range) = state.busy.intersection(&claimed).first() {
            return Err(BufferError::Busy {
                name: name.into(),
                range,
            });
        }
        state.busy = state.busy.union(&claimed);
        state.written = state.written.difference(&claimed);
        drop(state);
        Ok(Self {
            name: name.into(),
            buffer,
            layout,
            claimed,
            has_ended: RwLock::new(false),
        })
    }

    /// Offsets of the data space as offsets in the buffer.
    fn in_buffer(&self, ranges: &RangeSet) -> RangeSet {
        let mut found = RangeSet::new();
        for piece in self.layout.pieces() {
            for range in ranges.clipped(piece.range).iter() {
                let start = piece.object_offset + (range.start - piece.range.start);
                found.insert(Range::new(start, start + range.len()));
            }
        }
        found
    }

    /// Nothing is written after this.
    ///
    /// * `delivered`: in the buffer, beside what was recorded; `None` where nothing of it is of use.
    fn end(&self, delivered: Option<RangeSet>) {
        let mut has_ended = self
            .has_ended
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *has_ended, true) {
            return;
        }
        let mut state = lock(&self.buffer.0.state);
        state.busy = state.busy.difference(&self.claimed);
        state.written = match delivered {
            Some(delivered) => state.written.union(&delivered),
            None => state.written.difference(&self.claimed),
        };
    }
}

impl Sink for BufferSink {
    fn write_at(&self, offset: u64, mut bytes: &[u8]) -> Result<(), StoreError> {
        let has_ended = self
            .has_ended
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if *has_ended {
            return Err(StoreError::Ended);
        }
        for piece in pieces(&self.layout, offset, bytes.len() as u64)? {
            let (head, rest) = bytes.split_at(piece.range.len() as usize);
            let written = self.buffer.0.memory.write(piece.object_offset, head);
            written.map_err(|Gone| taken_back(&self.name))?;
            bytes = rest;
        }
        Ok(())
    }

    fn read_back(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        read(&self.name, &self.buffer, &self.layout, offset, buf)
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn object_at(&self, offset: u64) -> Option<(String, Range)> {
        let piece = self.layout.locate(offset)?;
        Some((format!("buffer:{}", self.name), piece.range))
    }

    fn record(&self, safe: &RangeSet, _units: &[crate::Unit]) {
        let has_ended = self
            .has_ended
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !*has_ended {
            let safe = self.in_buffer(safe);
            let mut state = lock(&self.buffer.0.state);
            state.written = state.written.union(&safe);
        }
    }

    fn commit(&self) -> Result<(), StoreError> {
        self.end(Some(self.claimed.clone()));
        Ok(())
    }

    fn commit_whole_files(&self, missing: &RangeSet) -> Result<bool, StoreError> {
        let there = self.layout.ranges().difference(missing);
        self.end(Some(self.in_buffer(&there)));
        Ok(missing.is_empty())
    }

    fn discard(&self) {
        self.end(None);
    }

    fn set_aside(&self) {
        self.end(Some(RangeSet::new()));
    }
}

impl Drop for BufferSink {
    fn drop(&mut self) {
        self.set_aside();
    }
}

#[cfg(test)]
mod tests;
