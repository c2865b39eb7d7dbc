//! Memory that a program lends. All `unsafe` code about it is here.
//!
//! Lent memory is touched only under a read lock, for one copy of at most a chunk; taking it back takes the write lock, and so waits for
//! microseconds, never for the network or for a disk. Each chunk that can be written has a lock of its own besides: two streams may
//! write the same bytes, and none waits for a stream that writes others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use ropewalk_model::CHUNK_LEN;

use crate::open_files::lock;

/// Bytes that no longer are there, or never were.
#[derive(Debug)]
pub(super) struct Gone;

/// Memory of a program.
pub(super) enum Memory {
    /// Owned, and never written: read where it lies.
    Shared(Shared),
    /// Copied under locks.
    Lent(Lent),
}

/// Bytes that nothing changes.
pub(super) struct Shared {
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    is_closed: AtomicBool,
}

/// Bytes at an address.
pub(super) struct Lent {
    raw: RwLock<Raw>,
    // Of each chunk; none where nothing writes.
    chunks: Box<[Mutex<()>]>,
    len: usize,
}

struct Raw {
    start: *mut u8,
    /// The capacity of the vector that the memory was.
    capacity: Option<usize>,
    is_open: bool,
}

// SAFETY: the pointer is used only under the lock, while `is_open`: by the promise of `Lent::new` the memory is there until then, and may be
// used by any thread.
unsafe impl Send for Raw {}
// SAFETY: as above; writes of several threads exclude each other by the locks of the chunks.
unsafe impl Sync for Raw {}

impl Memory {
    pub(super) fn shared(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::Shared(Shared {
            bytes: Box::new(bytes),
            is_closed: AtomicBool::new(false),
        })
    }

    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let (start, len, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        // SAFETY: the vector is not dropped, so that the memory is there until `close` makes a vector of it again.
        Self::Lent(unsafe { Lent::new(start, len, true, Some(capacity)) })
    }

    /// # Safety
    /// `len` bytes from `start` on can be read, and with `is_writable` written, until [`Memory::close`] has returned, or this is dropped.
    /// Until then nothing else writes them, nor reads them with `is_writable`.
    pub(super) unsafe fn lent(start: *mut u8, len: usize, is_writable: bool) -> Self {
        // SAFETY: as this function demands.
        Self::Lent(unsafe { Lent::new(start, len, is_writable, None) })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Shared(shared) => (*shared.bytes).as_ref().len(),
            Self::Lent(lent) => lent.len,
        }
    }

    /// Copies bytes from `at` on out of it.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Gone> {
        match self {
            Self::Shared(_) => {
                out.copy_from_slice(self.in_place(at, out.len() as u64)?);
                Ok(())
            }
            Self::Lent(lent) => lent.read(at, out),
        }
    }

    /// Appends `len` bytes from `at` on to a vector; after an error some may be there.
    pub(super) fn append_to(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), Gone> {
        match self {
            Self::Shared(_) => {
                out.extend_from_slice(self.in_place(at, len)?);
                Ok(())
            }
            Self::Lent(lent) => lent.append_to(at, len, out),
        }
    }

    /// Copies bytes to `at`. Shared memory is never written.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Gone> {
        match self {
            Self::Shared(_) => Err(Gone),
            Self::Lent(lent) => lent.write(at, bytes),
        }
    }

    /// The bytes where they lie; none where they have to be copied.
    pub(super) fn in_place(&self, at: u64, len: u64) -> Result<&[u8], Gone> {
        let Self::Shared(shared) = self else {
            return Ok(&[]);
        };
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(Gone);
        }
        // What gave the bytes before may give others now.
        let bytes = (*shared.bytes).as_ref();
        let (start, end) = span(at, len).ok_or(Gone)?;
        bytes.get(start..end).ok_or(Gone)
    }

    /// No thread touches lent memory after this. The vector that it was.
    pub(super) fn close(&self) -> Vec<u8> {
        match self {
            Self::Shared(shared) => {
                shared.is_closed.store(true, Ordering::Release);
                Vec::new()
            }
            Self::Lent(lent) => lent.close(),
        }
    }
}

/// As positions in memory.
fn span(at: u64, len: u64) -> Option<(usize, usize)> {
    let end = at.checked_add(len)?;
    Some((usize::try_from(at).ok()?, usize::try_from(end).ok()?))
}

impl Lent {
    /// # Safety
    /// As [`Memory::lent`]; with `capacity` the memory is a vector's, which is given up.
    unsafe fn new(start: *mut u8, len: usize, is_writable: bool, capacity: Option<usize>) -> Self {
        let chunks = match is_writable {
            true => len.div_ceil(CHUNK_LEN as usize),
            false => 0,
        };
        Self {
            raw: RwLock::new(Raw {
                start,
                capacity,
                is_open: true,
            }),
            chunks: (0..chunks).map(|_| Mutex::default()).collect(),
            len,
        }
    }

    /// Calls `copy` with the address of each part that lies in one chunk and where that part begins in the whole, under its locks.
    fn each(
        &self,
        at: u64,
        len: usize,
        mut copy: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), Gone> {
        let (start, end) = span(at, len as u64).ok_or(Gone)?;
        if end > self.len {
            return Err(Gone);
        }
        let chunk_len = CHUNK_LEN as usize;
        let mut at = start;
        while at < end {
            let next = ((at / chunk_len + 1) * chunk_len).min(end);
            let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
            if !raw.is_open {
                return Err(Gone);
            }
            let _chunk = self.chunks.get(at / chunk_len).map(lock);
            // SAFETY: `at` is below `len`, so that the address is one of the memory, which is there while `is_open` and the lock is held.
            copy(unsafe { raw.start.add(at) }, at - start, next - at);
            at = next;
        }
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Gone> {
        let len = out.len();
        self.each(at, len, |from, done, count| {
            let to = &mut out[done..done + count];
            // SAFETY: `each` gives `count` bytes, which nothing writes meanwhile: the chunk's lock is held, or there is none as nothing
            // does. `to` has as many, and is borrowed, so that it is none of them.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), count) };
        })
    }

    fn append_to(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), Gone> {
        let len = usize::try_from(len).map_err(|_| Gone)?;
        self.each(at, len, |from, _, count| {
            // SAFETY: `each` gives `count` bytes, which nothing writes meanwhile, as for `read`.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Gone> {
        if self.chunks.is_empty() && !bytes.is_empty() {
            return Err(Gone);
        }
        self.each(at, bytes.len(), |to, done, count| {
            let from = &bytes[done..done + count];
            // SAFETY: `each` gives `count` bytes under the chunk's lock, and memory with such locks can be written. `from` is borrowed, so that it is
            // none of them.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
        })
    }

    fn close(&self) -> Vec<u8> {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        let was_open = std::mem::replace(&mut raw.is_open, false);
        match raw.capacity.filter(|_| was_open) {
            // SAFETY: `start`, `len` and `capacity` are those of a vector that was not dropped; it is made once, as it is not open any more.
            Some(capacity) => unsafe { Vec::from_raw_parts(raw.start, self.len, capacity) },
            None => Vec::new(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.close());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const CHUNK: usize = CHUNK_LEN as usize;

    /// Bytes that are written are read, also across the seam of two chunks; beyond the end nothing is touched.
    #[test]
    fn bytes_land_where_they_are_read() {
        let memory = Memory::owned(vec![0; CHUNK + 100]);
        memory.write(CHUNK_LEN - 2, &[1, 2, 3, 4]).unwrap();
        let mut out = [9; 6];
        memory.read(CHUNK_LEN - 3, &mut out).unwrap();
        assert_eq!(out, [0, 1, 2, 3, 4, 0]);
        let mut appended = vec![9];
        memory.append_to(CHUNK_LEN - 3, 6, &mut appended).unwrap();
        assert_eq!(appended, [9, 0, 1, 2, 3, 4, 0]);
        for at in [CHUNK_LEN + 99, u64::MAX] {
            assert!(memory.write(at, &[1, 1]).is_err());
            assert!(memory.read(at, &mut out[..2]).is_err());
            assert!(memory.append_to(at, 2, &mut appended).is_err());
        }
        assert!(memory.append_to(0, u64::MAX, &mut appended).is_err());
        assert_eq!(appended.len(), 7);
        assert!(memory.in_place(0, 5).unwrap().is_empty());
        let bytes = memory.close();
        assert_eq!(bytes[CHUNK - 2..CHUNK + 2], [1, 2, 3, 4]);
        assert!(memory.read(0, &mut out).is_err() && memory.write(0, &[1]).is_err());
        assert!(memory.close().is_empty(), "it is given once");
    }

    /// What is lent for reading is not written; what is taken back is not touched.
    #[test]
    fn lent_memory_is_given_back() {
        let mut bytes = [1, 2, 3];
        // SAFETY: closed below, before `bytes` is used again.
        let memory = unsafe { Memory::lent(bytes.as_mut_ptr(), bytes.len(), false) };
        let mut out = [0; 2];
        memory.read(1, &mut out).unwrap();
        assert_eq!(out, [2, 3]);
        assert!(memory.write(0, &[7]).is_err());
        memory.close();
        assert!(memory.read(1, &mut out).is_err());
        bytes[0] = 5;
        // SAFETY: dropped below, before `bytes` is used again.
        let memory = unsafe { Memory::lent(bytes.as_mut_ptr(), bytes.len(), true) };
        memory.write(1, &[7]).unwrap();
        drop(memory);
        assert_eq!(bytes, [5, 7, 3]);
    }

    /// Shared bytes are read where they lie, until they are closed.
    #[test]
    fn shared_bytes_are_in_place() {
        let bytes: Arc<[u8]> = Arc::from([1, 2, 3]);
        let memory = Memory::shared(bytes.clone());
        assert!(std::ptr::eq(memory.in_place(0, 3).unwrap(), &*bytes));
        assert!(memory.in_place(2, 2).is_err() && memory.write(0, &[1]).is_err());
        let mut out = Vec::new();
        memory.append_to(1, 2, &mut out).unwrap();
        assert_eq!(out, [2, 3]);
        assert!(memory.append_to(2, 2, &mut out).is_err());
        memory.close();
        assert!(memory.append_to(0, 1, &mut out).is_err());
        assert!(memory.in_place(0, 1).is_err() && memory.read(0, &mut [0]).is_err());
    }

    /// Threads that write and read the same bytes at once, while another one takes the memory back.
    #[test]
    fn threads_meet_in_one_place() {
        let mut bytes = vec![0_u8; 64];
        // SAFETY: closed by one of the threads, all of which end before `bytes` is used again.
        let memory = unsafe { Memory::lent(bytes.as_mut_ptr(), bytes.len(), true) };
        std::thread::scope(|scope| {
            for byte in 1..=2 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut out = [0; 64];
                    while memory.write(0, &[byte; 64]).is_ok() && memory.read(0, &mut out).is_ok() {
                        assert!(
                            out.iter().all(|other| *other == out[0]),
                            "a mixture: {out:?}"
                        );
                    }
                });
            }
            scope.spawn(|| {
                std::thread::yield_now();
                memory.close();
            });
        });
        bytes.fill(3);
    }
}
