//! The memory that both processes map, and the rings in it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use ropewalk_proto::node::UNITS_OUTSTANDING_MAX;
use ropewalk_proto::node::fetch::UNITS_PER_TAKE_MAX;
use ropewalk_proto::wire::{HEADER_LEN, TAG_LEN};

/// Bytes of the ring that data crosses: a unit of the largest size, and small enough to stay in a processor's cache.
pub(super) const DATA_LEN: usize = 1 << 20;
/// Longest ring of data that a receiver makes.
pub(super) const DATA_MAX: usize = 4 << 20;
/// Bytes of the ring of requests: all grants that may be outstanding, and the cancellation of each.
pub(super) const REQUESTS_LEN: usize = 192 << 10;
/// Bytes in front of the rings: one page, with a line of 128 bytes for each of six counters.
pub(super) const HEADS_LEN: usize = 4096;
pub(super) const LINE: usize = 128;
/// Bytes of the memory beside the ring of data.
pub(super) const BESIDE_LEN: usize = HEADS_LEN + REQUESTS_LEN;
// Neither end reads while it waits for room to write.
const _: () = assert!(
    2 * (UNITS_OUTSTANDING_MAX + UNITS_PER_TAKE_MAX) * (HEADER_LEN + TAG_LEN) <= REQUESTS_LEN
);

/// Mapped memory that both processes see.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) start: NonNull<u8>,
    // Of the ring of data: a power of two, so that counters may wrap.
    pub(super) data_len: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped; all access is through atomics and the copies of `Ring`.
unsafe impl Send for Memory {}

impl Memory {
    pub(super) fn map(file: &OwnedFd, data_len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at a place that the kernel chooses aliases nothing of this process.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                BESIDE_LEN + data_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(start.cast())
            .map(|start| Self { start, data_len })
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))
    }

    /// A ring whose counters begin at `line` and whose bytes at `start`.
    pub(super) fn ring(&self, line: usize, start: usize, len: usize) -> Ring {
        debug_assert!(start + len <= BESIDE_LEN + self.data_len && (line + 3) * LINE <= HEADS_LEN);
        // SAFETY: both lie within the mapping, as asserted.
        let at = |offset: usize| unsafe { self.start.add(offset) };
        Ring {
            head: at(line * LINE).cast(),
            tail: at((line + 1) * LINE).cast(),
            wants: at((line + 2) * LINE).cast(),
            bytes: at(start),
            len,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and rings that point into it live in the same `Mapped`. An error would
        // mean that it is gone already.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), BESIDE_LEN + self.data_len) };
    }
}

/// One direction: a ring of bytes with one writing and one reading process.
///
/// `head` counts the bytes written, `tail` those read; both only grow. `wants` has what a waiting side waits for: the bytes to
/// be read in its lower half, the bytes of space in its upper.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) head: NonNull<AtomicU64>,
    pub(super) tail: NonNull<AtomicU64>,
    pub(super) wants: NonNull<Wants>,
    pub(super) bytes: NonNull<u8>,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct Wants {
    /// Bytes that the reader waits for; 0 while it does not wait.
    pub(super) bytes: AtomicU32,
    /// Bytes of space that the writer waits for; 0 while it does not wait.
    pub(super) room: AtomicU32,
}

// SAFETY: pointers into a `Memory` that moves with the ring; shared parts are atomics.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn head(&self) -> &AtomicU64 {
        // SAFETY: it points into the mapping, aligned to a line; every bit pattern is a number.
        unsafe { self.head.as_ref() }
    }

    pub(super) fn tail(&self) -> &AtomicU64 {
        // SAFETY: as in `head`.
        unsafe { self.tail.as_ref() }
    }

    pub(super) fn wants(&self) -> &Wants {
        // SAFETY: as in `head`.
        unsafe { self.wants.as_ref() }
    }

    /// Bytes in the ring.
    pub(super) fn filled(&self) -> io::Result<usize> {
        let (tail, head) = (
            self.tail().load(Ordering::Acquire),
            self.head().load(Ordering::Acquire),
        );
        let filled = head.wrapping_sub(tail);
        match usize::try_from(filled) {
            Ok(filled) if filled <= self.len => Ok(filled),
            _ => Err(io::Error::other(
                "the peer wrote positions into the shared memory that do not fit; end its process",
            )),
        }
    }

    pub(super) fn room(&self) -> io::Result<usize> {
        Ok(self.len - self.filled()?)
    }

    /// The least that is worth waking for: a quarter of the ring at most, so that both sides work at the same time.
    pub(super) fn worth(&self, bytes: usize) -> u32 {
        bytes.clamp(1, self.len / 4) as u32
    }

    /// Copies bytes in, as far as there is space.
    pub(super) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let room = self.room()?;
        let head = self.head().load(Ordering::Relaxed);
        let mut written = 0;
        for slice in slices {
            let part = slice.len().min(room - written);
            let at = (head.wrapping_add(written as u64) % self.len as u64) as usize;
            let first = part.min(self.len - at);
            // SAFETY: `at + first` and `part - first` are at most the ring's length. The reader keeps off what is not
            // between tail and head; a peer that does not can damage bytes only, which checksums show.
            unsafe {
                self.bytes
                    .add(at)
                    .copy_from_nonoverlapping(start(slice), first);
                self.bytes
                    .copy_from_nonoverlapping(start(&slice[first..]), part - first);
            }
            written += part;
        }
        self.head()
            .store(head.wrapping_add(written as u64), Ordering::Release);
        Ok(written)
    }

    /// Copies bytes out, as far as there are any.
    pub(super) fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let filled = self.filled()?;
        let tail = self.tail().load(Ordering::Relaxed);
        let mut taken = 0;
        for slice in slices {
            let part = slice.len().min(filled - taken);
            let at = (tail.wrapping_add(taken as u64) % self.len as u64) as usize;
            let first = part.min(self.len - at);
            let to = NonNull::from(&mut **slice).cast::<u8>();
            // SAFETY: as in `write`; `part` is at most the slice's length.
            unsafe {
                to.copy_from_nonoverlapping(self.bytes.add(at), first);
                to.add(first)
                    .copy_from_nonoverlapping(self.bytes, part - first);
            }
            taken += part;
        }
        self.tail()
            .store(tail.wrapping_add(taken as u64), Ordering::Release);
        Ok(taken)
    }
}

/// Where a slice begins, for copies out of it.
pub(super) fn start(slice: &[u8]) -> NonNull<u8> {
    NonNull::from(slice).cast()
}

/// The memory, and the rings as one side sees them. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) inbound: Ring,
    pub(super) outbound: Ring,
    _memory: Memory,
}

impl Mapped {
    pub(super) fn new(memory: Memory, is_receiver: bool) -> Self {
        let data = memory.ring(0, BESIDE_LEN, memory.data_len);
        let requests = memory.ring(3, HEADS_LEN, REQUESTS_LEN);
        let (inbound, outbound) = if is_receiver {
            (data, requests)
        } else {
            (requests, data)
        };
        Self {
            inbound,
            outbound,
            _memory: memory,
        }
    }
}
