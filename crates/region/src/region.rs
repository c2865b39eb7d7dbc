//! A region, as an origin sees it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_message::Options;
use ropewalk_proto::region::{Kind, Rule, Slice};

use crate::RegionError;
use crate::handles::{Get, Put};
use crate::memory::Memory;
use crate::origin::{Inner, Late, State, announced, end_of, slices};

/// A region that is read and written from this process. May be used from several threads at once. In a child of the process that connected it (`fork`) its
/// calls fail with [`MessageError::OtherProcess`](ropewalk_message::MessageError::OtherProcess), and those that return no error do nothing.
pub struct Region {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.inner.name)
            .finish_non_exhaustive()
    }
}

/// An operation on a caller's memory, which is given up before the caller has it back, whichever way the call ends.
struct Lent<'a> {
    inner: &'a Inner,
    number: u64,
    is_over: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.forget(self.number);
        }
    }
}

impl Region {
    /// Connects to the nodes of a region, each with the addresses of one or more interfaces, all at once. One node must be reached; those that are not
    /// are in [`lost`](Self::lost), and ranges that none of the others holds cannot be read.
    ///
    /// * `options`: those of the message socket. Its deadline is the longest time of each call of the region, 60 s where it has none.
    ///
    /// # Errors
    /// [`RegionError::Unreached`] with what went wrong at each node, a wrong token among it; [`RegionError::Refused`] where nodes state different sizes or rules, or own the same
    /// bytes.
    pub fn connect(
        name: &str,
        nodes: &[Vec<SocketAddr>],
        options: &Options,
    ) -> Result<Self, RegionError> {
        if nodes.is_empty() || name.len() > ropewalk_proto::region::frame::NAME_MAX {
            let text = "name a region, with at most 255 bytes, and at least one node of it";
            return Err(RegionError::Misuse(text.into()));
        }
        let inner = Arc::new(Inner::connect(name, nodes, options)?);
        Ok(Self { inner })
    }

    /// Bytes of the region.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Which nodes puts are sent to.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.inner.rule
    }

    /// Nodes that take part, by their addresses, and the ranges that each holds.
    #[must_use]
    pub fn holders(&self) -> Vec<(Vec<SocketAddr>, Vec<Range<u64>>)> {
        self.inner.holders()
    }

    /// Nodes that take no part, by their addresses, and why: not reached, lost, or unable to read or write.
    #[must_use]
    pub fn lost(&self) -> Vec<(Vec<SocketAddr>, String)> {
        self.inner.lost()
    }

    /// Reads a range. Each piece of it is served by any node that holds it, the one with the least bytes outstanding.
    ///
    /// # Errors
    /// [`RegionError::Misuse`] for a range that is not in the region, or held by no node that was reached; [`RegionError::Lost`] where all its holders
    /// are lost; [`RegionError::Deadline`].
    pub fn get(&self, range: Range<u64>) -> Result<Vec<u8>, RegionError> {
        self.get_start(&[range])?.wait()
    }

    /// Reads as many bytes as `into` has, from an offset on. After an error its contents are not defined.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_into(&self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        let end = offset.checked_add(into.len() as u64);
        let end = end.ok_or_else(|| beyond(offset, into.len()))?;
        self.get_all_into(std::slice::from_ref(&(offset..end)), into)
    }

    /// Reads several ranges into memory, one after the other.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`RegionError::Misuse`] where `into` has not as many bytes as the ranges have together.
    pub fn get_all_into(&self, ranges: &[Range<u64>], into: &mut [u8]) -> Result<(), RegionError> {
        let (slices, len) = slices(ranges)?;
        if len != into.len() {
            let text = format!("the ranges have {len} bytes, the memory {}", into.len());
            return Err(RegionError::Misuse(text));
        }
        // SAFETY: `run` drops it before this function returns, and `into` is borrowed until then.
        let memory = unsafe { Memory::into(into.as_mut_ptr(), into.len()) };
        self.run(Kind::Get, slices, Some(memory)).map(drop)
    }

    /// Begins to read ranges; [`Get::wait`] returns their bytes, one range after the other. Any number may be under way; beyond 4096 this waits.
    ///
    /// # Errors
    /// As [`get`](Self::get) for what can be seen at once.
    pub fn get_start(&self, ranges: &[Range<u64>]) -> Result<Get, RegionError> {
        let (slices, len) = slices(ranges)?;
        let Some(memory) = Memory::space(len) else {
            let text = format!("{len} bytes are more memory than this host has; get them in parts");
            return Err(RegionError::Misuse(text));
        };
        let number = self
            .inner
            .begin(Kind::Get, slices, Some(memory), self.inner.until())?;
        self.inner.send_all();
        Ok(Get {
            inner: self.inner.clone(),
            number: Some(number),
        })
    }

    /// Writes bytes from an offset on, and returns when the nodes that the region's rule names have them.
    ///
    /// # Errors
    /// [`RegionError::Misuse`] for a range that is not in the region, held or owned by no node that was reached, or of a region that is read-only;
    /// [`RegionError::Lost`] where no node is left that has all the bytes; [`RegionError::Deadline`], [`RegionError::Refused`].
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        self.put_all(&[(offset, bytes)])
    }

    /// Writes several ranges. Where they overlap, any of the bytes given may stay.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_all(&self, parts: &[(u64, &[u8])]) -> Result<(), RegionError> {
        if let [(offset, bytes)] = parts {
            let slices = put_slices(&[(*offset, bytes.len())])?;
            // SAFETY: `run` drops it before this function returns, and `bytes` is borrowed until then.
            let memory = unsafe { Memory::from(bytes.as_ptr(), bytes.len()) };
            return self.run(Kind::Put, slices, Some(memory)).map(drop);
        }
        self.put_all_start(parts)?.wait()
    }

    /// Begins to write bytes, which it takes.
    ///
    /// # Errors
    /// As [`put`](Self::put) for what can be seen at once.
    pub fn put_start(&self, offset: u64, bytes: Vec<u8>) -> Result<Put, RegionError> {
        let slices = put_slices(&[(offset, bytes.len())])?;
        self.begin_put(slices, bytes)
    }

    /// Begins to write several ranges, which it copies.
    ///
    /// # Errors
    /// As [`put`](Self::put) for what can be seen at once.
    pub fn put_all_start(&self, parts: &[(u64, &[u8])]) -> Result<Put, RegionError> {
        let lengths: Vec<(u64, usize)> = parts
            .iter()
            .map(|(offset, bytes)| (*offset, bytes.len()))
            .collect();
        let slices = put_slices(&lengths)?;
        let mut all = Vec::with_capacity(lengths.iter().map(|(_, len)| len).sum());
        parts
            .iter()
            .for_each(|(_, bytes)| all.extend_from_slice(bytes));
        self.begin_put(slices, all)
    }

    fn begin_put(&self, slices: Vec<Slice>, bytes: Vec<u8>) -> Result<Put, RegionError> {
        let memory = Some(Memory::Owned(bytes));
        let number = self
            .inner
            .begin(Kind::Put, slices, memory, self.inner.until())?;
        self.inner.send_all();
        Ok(Put {
            inner: self.inner.clone(),
            number: Some(number),
        })
    }

    /// What this origin begins after it leaves when all puts and notifications that it began before are complete. Does not wait.
    pub fn fence(&self) {
        if !self.inner.is_here() {
            return;
        }
        self.inner.state.lock().origin.fence();
    }

    /// Waits until all puts and notifications that this origin has begun are complete (OpenSHMEM: quiet).
    ///
    /// # Errors
    /// [`RegionError::Deadline`], and the error of a put whose handle was dropped, once.
    pub fn flush(&self) -> Result<(), RegionError> {
        self.inner.here()?;
        let mark = self.inner.state.lock().origin.mark();
        let done = |state: &mut State| {
            let is_flushed = state.origin.is_flushed(mark);
            is_flushed.then(|| state.origin.take_failed())
        };
        let flushed = self.inner.until_done(None, self.inner.until(), done);
        match flushed.map_err(|Late| self.inner.late())? {
            Some(failure) => Err(self.inner.error(failure)),
            None => Ok(()),
        }
    }

    /// Gives each byte of a range a value, unless it has a greater one, after all puts that this origin began before. Values are 0 at first; the nodes that puts of the range are
    /// sent to keep them. All bytes of a region have at most 4096 stretches of different values on a node.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`RegionError::Refused`] where the node keeps as many values as it can.
    pub fn notify(&self, range: Range<u64>, value: u64) -> Result<(), RegionError> {
        self.run(Kind::Notify(value), announced(&range)?, None)
            .map(drop)
    }

    /// Waits until some byte of a range has at least this value, at most so long, and returns the value; `None` when the time is over. What was put before the notification is
    /// then seen by gets.
    ///
    /// # Errors
    /// [`RegionError::Misuse`] for a range that no node has whole, [`RegionError::Lost`], [`RegionError::Refused`] where the node keeps as many waits of this
    /// origin as it can (256).
    pub fn wait(
        &self,
        range: Range<u64>,
        at_least: u64,
        most: Duration,
    ) -> Result<Option<u64>, RegionError> {
        let slices = announced(&range)?;
        let until = end_of(most);
        let number = self
            .inner
            .begin(Kind::Wait(at_least), slices, None, self.inner.until())?;
        let mut waiting = Lent {
            inner: &self.inner,
            number,
            is_over: false,
        };
        match self.inner.finish(number, until) {
            Ok(result) => {
                waiting.is_over = true;
                Ok(Some(result?.0))
            }
            Err(Late) => Ok(None),
        }
    }

    /// Runs an operation to its end, on memory that is the caller's again when this returns.
    fn run(
        &self,
        kind: Kind,
        slices: Vec<Slice>,
        memory: Option<Memory>,
    ) -> Result<u64, RegionError> {
        let until: Instant = self.inner.until();
        let number = self.inner.begin(kind, slices, memory, until)?;
        let mut lent = Lent {
            inner: &self.inner,
            number,
            is_over: false,
        };
        let ended = self.inner.finish(number, until);
        let result = ended.map_err(|Late| self.inner.late())?;
        lent.is_over = true;
        result.map(|(value, _)| value)
    }

    /// Closes the connections of a node, by its place in the list, as if the network had; they are made again.
    pub fn break_node(&self, node: usize) {
        self.inner.break_node(node);
    }
}

fn beyond(offset: u64, len: usize) -> RegionError {
    RegionError::Misuse(format!("{len} bytes from {offset} on end beyond 2^64"))
}

/// Slices of bytes that are one after the other in memory.
fn put_slices(parts: &[(u64, usize)]) -> Result<Vec<Slice>, RegionError> {
    let range = |(offset, len): &(u64, usize)| {
        let end = offset.checked_add(*len as u64);
        Ok(*offset..end.ok_or_else(|| beyond(*offset, *len))?)
    };
    let ranges: Vec<Range<u64>> = parts
        .iter()
        .map(range)
        .collect::<Result<_, RegionError>>()?;
    Ok(slices(&ranges)?.0)
}
