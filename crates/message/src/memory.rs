//! Memory of callers that the threads of rails read and write while the caller waits.
//!
//! A caller lends a slice and takes it back before it returns. Threads touch it only under a read lock, for one
//! system call that does not wait or one copy; taking it back takes the write lock, and so waits for
//! microseconds, never for the network.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use ropewalk_model::Range;

/// Bytes that nobody receives yet. Their sum is known as long as they live, wherever they are.
pub(crate) struct Kept {
    bytes: Vec<u8>,
    sum: Arc<AtomicU64>,
}

impl Kept {
    /// Zeros, unless more than `most` bytes would be kept with them.
    pub(crate) fn new(sum: &Arc<AtomicU64>, length: u64, most: u64) -> Option<Self> {
        let before = sum.fetch_add(length, Ordering::Relaxed);
        if before.saturating_add(length) > most {
            sum.fetch_sub(length, Ordering::Relaxed);
            return None;
        }
        Some(Self {
            bytes: vec![0; length as usize],
            sum: sum.clone(),
        })
    }

    /// Takes bytes that are there already.
    pub(crate) fn of(sum: &Arc<AtomicU64>, bytes: Vec<u8>) -> Self {
        sum.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let sum = sum.clone();
        Self { bytes, sum }
    }
}

impl Kept {
    /// The bytes themselves; they do not count any more.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.bytes);
        self.sum.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        bytes
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.sum
            .fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Bytes of a message that is being sent.
pub(crate) struct Source(RwLock<Bytes>);

enum Bytes {
    Owned(Vec<u8>),
    Lent(*const u8, usize),
    TakenBack,
}

// SAFETY: the pointer is only read, under the lock, while the slice it was made of is borrowed by a caller who
// takes it back first.
unsafe impl Send for Bytes {}
// SAFETY: as above; reading from several threads at once is what a shared slice allows.
unsafe impl Sync for Bytes {}

impl Source {
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        Self(RwLock::new(Bytes::Owned(bytes)))
    }

    /// # Safety
    /// [`take_back`](Self::take_back) must be called before `bytes` ends.
    pub(crate) unsafe fn lent(bytes: &[u8]) -> Self {
        Self(RwLock::new(Bytes::Lent(bytes.as_ptr(), bytes.len())))
    }

    /// No thread reads the bytes after this.
    pub(crate) fn take_back(&self) {
        *self.0.write() = Bytes::TakenBack;
    }

    /// Lets `read` have the bytes of a range; `None` when they were taken back. `read` must not wait.
    pub(crate) fn with<R>(&self, range: Range, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let bytes = self.0.read();
        let all = match &*bytes {
            Bytes::Owned(bytes) => bytes.as_slice(),
            // SAFETY: whoever lent the slice takes it back first, for which it needs the lock held here.
            Bytes::Lent(start, length) => unsafe { std::slice::from_raw_parts(*start, *length) },
            Bytes::TakenBack => return None,
        };
        all.get(range.start as usize..range.end as usize).map(read)
    }
}

/// Memory that a message is received into.
pub(crate) struct Place(RwLock<Room>);

struct Room {
    start: *mut u8,
    length: usize,
    open: bool,
    /// Fragments that two links were bringing at once, and the one that may write them.
    owners: Vec<(u32, u64)>,
}

// SAFETY: the pointer is only used under the lock, while the slice it was made of is lent.
unsafe impl Send for Room {}
// SAFETY: as above; threads that write at once write different fragments: the receiver's status vector
// gives each to one link, and `owners` settles the change from one to another under the write lock.
unsafe impl Sync for Room {}

impl Place {
    /// # Safety
    /// `start` must be that of `length` bytes which nobody else uses until [`close`](Self::close) was called.
    pub(crate) unsafe fn lent(start: *mut u8, length: usize) -> Self {
        Self(RwLock::new(Room {
            start,
            length,
            open: true,
            owners: Vec::new(),
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.read().length
    }

    /// No thread writes the bytes after this.
    pub(crate) fn close(&self) {
        self.0.write().open = false;
    }

    /// Whether threads may still write.
    pub(crate) fn is_open(&self) -> bool {
        self.0.read().open
    }

    /// From now on this link alone may write the fragment.
    pub(crate) fn hand_over(&self, fragment: u32, link: u64) {
        let mut room = self.0.write();
        room.owners.retain(|&(other, _)| other != fragment);
        room.owners.push((fragment, link));
    }

    /// Lets `write` have the bytes of a range, which lies in `fragment`; `None` when the place is closed, or the
    /// fragment another link's. `write` must not wait.
    pub(crate) fn with<R>(
        &self,
        link: u64,
        fragment: u32,
        range: Range,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let room = self.0.read();
        let other = room
            .owners
            .iter()
            .any(|&(f, owner)| f == fragment && owner != link);
        let fits = range.start <= range.end && range.end <= room.length as u64;
        if !room.open || other || !fits {
            return None;
        }
        // SAFETY: the range lies in the slice, which is lent while the place is open; closing it needs the
        // lock held here. No other thread has the same bytes: see `Room`.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                room.start.add(range.start as usize),
                (range.end - range.start) as usize,
            )
        };
        Some(write(bytes))
    }

    /// Copies a range out, for a caller who leaves before the message is whole. Only after [`close`](Self::close).
    pub(crate) fn copy_closed(&self, range: Range) -> Vec<u8> {
        let room = self.0.write();
        assert!(
            !room.open && range.end <= room.length as u64,
            "copied from an open place"
        );
        // SAFETY: the range lies in the slice, which is still lent, and no thread writes to a closed place.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                room.start.add(range.start as usize),
                (range.end - range.start) as usize,
            )
        };
        bytes.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was taken back is not read, what is closed not written.
    #[test]
    fn lent_memory_comes_back() {
        let bytes = [1, 2, 3];
        // SAFETY: taken back below.
        let source = unsafe { Source::lent(&bytes) };
        assert_eq!(
            source.with(Range::new(1, 3), <[u8]>::to_vec),
            Some(vec![2, 3])
        );
        assert_eq!(
            source.with(Range::new(1, 4), <[u8]>::len),
            None,
            "beyond the end"
        );
        source.take_back();
        assert_eq!(source.with(Range::new(0, 1), <[u8]>::len), None);

        let mut room = [0; 4];
        // SAFETY: closed below.
        let place = unsafe { Place::lent(room.as_mut_ptr(), room.len()) };
        assert!(
            place
                .with(1, 0, Range::new(0, 2), |bytes| bytes.fill(7))
                .is_some()
        );
        place.hand_over(0, 2);
        assert!(
            place.with(1, 0, Range::new(0, 2), |_| ()).is_none(),
            "another link's"
        );
        assert!(
            place.with(2, 0, Range::new(2, 5), |_| ()).is_none(),
            "beyond the end"
        );
        place.close();
        assert!(place.with(2, 0, Range::new(0, 2), |_| ()).is_none());
        assert_eq!(place.copy_closed(Range::new(0, 4)), [7, 7, 0, 0]);
        assert_eq!(room, [7, 7, 0, 0]);
    }
}
