//! Bytes that are used where they lie in the ring: looked at, summed up, copied on into another ring, and only then given back.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::memory::{DATA_MAX, Mapped, Ring, start};
use super::{Rings, ring_bell};
use crate::Crc64;

/// Bytes that are summed up and copied at a time: both find them in the processor's first cache.
const STEP: usize = 16 << 10;

impl Ring {
    /// Where the bytes at these positions lie, as far as they are in one piece and no more than a step.
    fn piece(&self, positions: Range<u64>) -> (NonNull<u8>, usize) {
        let at = (positions.start % self.len as u64) as usize;
        let len = positions.end.wrapping_sub(positions.start) as usize;
        // SAFETY: `at` is less than the ring's length.
        (
            unsafe { self.bytes.add(at) },
            len.min(self.len - at).min(STEP),
        )
    }

    /// Copies bytes to a position that the reader does not see yet.
    fn put(&self, mut position: u64, mut from: NonNull<u8>, mut len: usize) {
        while len > 0 {
            let (to, part) = self.piece(position..position.wrapping_add(len as u64));
            // SAFETY: `part` bytes are within the ring, as `piece` says, and within `len`. The caller has seen to it that the
            // peer keeps off both; one that does not can damage bytes only, which checksums show.
            unsafe {
                to.copy_from_nonoverlapping(from, part);
                from = from.add(part);
            }
            (position, len) = (position.wrapping_add(part as u64), len - part);
        }
    }
}

impl Rings {
    /// Bytes that are there to be read.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there are none, [`io::ErrorKind::UnexpectedEof`] where there are fewer than
    /// `least` and the peer has closed; others where the peer's memory does not fit.
    pub fn filled(&mut self, least: usize) -> io::Result<usize> {
        if self.has_ended && self.mapped.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.parts()?;
        self.hear_sometimes()?;
        let has_ended = self.has_ended;
        let filled = self.parts()?.1.inbound.filled()?;
        match filled {
            _ if filled < least && has_ended => Err(io::ErrorKind::UnexpectedEof.into()),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            filled => Ok(filled),
        }
    }

    /// Whether the ring of a receiver that [offers](Self::offer_for) it for pieces of so many bytes holds one whole, and more.
    #[must_use]
    pub fn holds(piece: usize) -> bool {
        piece + piece / 3 <= DATA_MAX
    }

    /// Copies the first bytes out and leaves them there; false where there are fewer.
    ///
    /// # Errors
    /// As [`filled`](Self::filled).
    pub fn look(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        if self.filled(bytes.len())? < bytes.len() {
            return Ok(false);
        }
        let ring = &self.parts()?.1.inbound;
        let mut position = ring.tail().load(Ordering::Relaxed);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (from, part) = ring.piece(position..position.wrapping_add(rest.len() as u64));
            let (now, later) = rest.split_at_mut(part);
            // SAFETY: `part` bytes are within the ring and the slice.
            unsafe {
                NonNull::from(now)
                    .cast()
                    .copy_from_nonoverlapping(from, part)
            };
            (rest, position) = (later, position.wrapping_add(part as u64));
        }
        Ok(true)
    }

    /// Adds bytes to a checksum where they lie: so many behind the first `skip`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where they are not there.
    pub fn sum(&mut self, skip: usize, len: usize, sum: &mut Crc64) -> io::Result<()> {
        self.each_piece(skip, len, sum, |_, _| {})
    }

    /// Copies `head`, and so many bytes behind the first `skip` while it adds them to a checksum, into the space of another ring.
    /// There they are not seen before [`publish`](Self::publish), here they stay until [`consume`](Self::consume). False where
    /// there is not enough space.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where the bytes are not there, [`io::ErrorKind::BrokenPipe`] where the other peer has closed,
    /// [`io::ErrorKind::WouldBlock`] before its memory has arrived; others where a peer's memory does not fit.
    pub fn copy_to(
        &mut self,
        skip: usize,
        len: usize,
        sum: &mut Crc64,
        to: &mut Self,
        head: &[u8],
    ) -> io::Result<bool> {
        to.parts()?;
        to.hear_sometimes()?;
        if to.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let ring = &to.parts()?.1.outbound;
        if ring.room()? < head.len() + len {
            return Ok(false);
        }
        let mut position = ring.head().load(Ordering::Relaxed);
        ring.put(position, start(head), head.len());
        position = position.wrapping_add(head.len() as u64);
        self.each_piece(skip, len, sum, |from, part| {
            ring.put(position, from, part);
            position = position.wrapping_add(part as u64);
        })?;
        Ok(true)
    }

    /// Goes through bytes in pieces of a step at most.
    fn each_piece(
        &mut self,
        skip: usize,
        len: usize,
        sum: &mut Crc64,
        mut each: impl FnMut(NonNull<u8>, usize),
    ) -> io::Result<()> {
        let ring = &self.parts()?.1.inbound;
        if ring.filled()? < skip + len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let tail = ring.tail().load(Ordering::Relaxed);
        let mut position = tail.wrapping_add(skip as u64);
        let end = position.wrapping_add(len as u64);
        while position != end {
            let (from, part) = ring.piece(position..end);
            // SAFETY: the bytes are within the ring and were written. The peer keeps off what is not given back; one that
            // does not changes the checksum of its own bytes.
            sum.update(unsafe { NonNull::slice_from_raw_parts(from, part).as_ref() });
            each(from, part);
            position = position.wrapping_add(part as u64);
        }
        Ok(())
    }

    /// The first bytes are used up: the peer may write there.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where there are fewer.
    pub fn consume(&mut self, len: usize) -> io::Result<()> {
        let (bell, Mapped { inbound, .. }) = self.parts()?;
        if inbound.filled()? < len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let tail = inbound.tail().load(Ordering::Relaxed);
        let tail = tail.wrapping_add(len as u64);
        inbound.tail().store(tail, Ordering::Release);
        // A peer that has ended needs no bell.
        let _ = ring_bell(bell, &inbound.wants().room, inbound.room()?);
        Ok(())
    }

    /// The peer may read so many bytes that were copied behind those that it sees.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where there is less space.
    pub fn publish(&mut self, len: usize) -> io::Result<()> {
        let (bell, Mapped { outbound, .. }) = self.parts()?;
        if outbound.room()? < len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let head = outbound.head().load(Ordering::Relaxed);
        let head = head.wrapping_add(len as u64);
        outbound.head().store(head, Ordering::Release);
        let _ = ring_bell(bell, &outbound.wants().bytes, outbound.filled()?);
        Ok(())
    }
}
