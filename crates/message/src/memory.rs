//! Memory of callers that the threads of rails read and write while the caller waits.
//!
//! A caller lends a slice and takes it back before it returns. Threads touch it only under a read lock, for one
//! system call that does not wait or one copy; taking it back takes the write lock, and so waits for
//! microseconds, never for the network.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use ropewalk_model::Range;

/// Memory that bytes are written to, in two pieces: what lies in the first and in the second part of a place.
pub(crate) type Span<'a> = [&'a mut [MaybeUninit<u8>]; 2];

/// Fills a span with as many bytes as it has.
pub(crate) fn fill(span: Span<'_>, bytes: &[u8]) {
    let [first, second] = span;
    let (own, rest) = bytes.split_at(first.len());
    first.write_copy_of_slice(own);
    second.write_copy_of_slice(rest);
}

/// Bytes that nobody receives yet, as many as came so far. Their sum is known as long as they live, wherever they are.
pub(crate) struct Kept {
    bytes: Vec<u8>,
    length: usize,
    sum: Arc<AtomicU64>,
}

impl Kept {
    /// Space for so many bytes, unless more than `most` would be kept with them. It is not zeroed.
    pub(crate) fn new(sum: &Arc<AtomicU64>, length: u64, most: u64) -> Option<Self> {
        let before = sum.fetch_add(length, Ordering::Relaxed);
        if before.saturating_add(length) > most {
            sum.fetch_sub(length, Ordering::Relaxed);
            return None;
        }
        let length = length as usize;
        Some(Self {
            bytes: Vec::with_capacity(length),
            length,
            sum: sum.clone(),
        })
    }

    /// Takes bytes that are there already.
    pub(crate) fn of(sum: &Arc<AtomicU64>, bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        sum.fetch_add(length as u64, Ordering::Relaxed);
        let sum = sum.clone();
        Self { bytes, length, sum }
    }

    /// Adds bytes. More than there is space for is a mistake of the caller.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.length - self.bytes.len(),
            "more bytes than a fragment has"
        );
        self.bytes.extend_from_slice(bytes);
    }

    /// Space for the next bytes, at most so many.
    pub(crate) fn space(&mut self, most: usize) -> &mut [MaybeUninit<u8>] {
        let most = most.min(self.length - self.bytes.len());
        &mut self.bytes.spare_capacity_mut()[..most]
    }

    /// The next bytes are there.
    ///
    /// # Safety
    /// So many bytes of [`space`](Self::space) have been written.
    pub(crate) unsafe fn filled(&mut self, count: usize) {
        // SAFETY: the bytes behind those that are there are written, as the caller promises.
        unsafe { self.bytes.set_len(self.bytes.len() + count) };
    }

    /// The bytes themselves; they do not count any more.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.length as u64, Ordering::Relaxed);
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
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

/// Memory that a message is received into: its first bytes into one part, those that follow into another. It need not be initialised.
pub(crate) struct Place(RwLock<Room>);

/// Start and length of each part.
pub(crate) type Parts = [(*mut u8, usize); 2];

struct Room {
    parts: Parts,
    open: bool,
    /// Fragments that two links were bringing at once, and the one that may write them.
    owners: Vec<(u32, u64)>,
}

// SAFETY: the pointers are only used under the lock, while the slices they were made of are lent.
unsafe impl Send for Room {}
// SAFETY: as above; threads that write at once write different fragments: the receiver's status vector
// gives each to one link, and `owners` settles the change from one to another under the write lock.
unsafe impl Sync for Room {}

impl Room {
    fn length(&self) -> usize {
        self.parts[0].1 + self.parts[1].1
    }

    /// Where a range lies in each part; it ends within both together.
    fn spans(&self, range: Range) -> [(*mut u8, usize); 2] {
        let (start, end) = (range.start as usize, range.end as usize);
        let mut before = 0;
        self.parts.map(|(first, length)| {
            let own = |at: usize| at.clamp(before, before + length) - before;
            let (own_start, own_end) = (own(start), own(end));
            before += length;
            (first.wrapping_add(own_start), own_end - own_start)
        })
    }
}

impl Place {
    /// # Safety
    /// The parts must be memory which nobody else uses until [`close`](Self::close) was called. They do not overlap.
    pub(crate) unsafe fn lent(parts: Parts) -> Self {
        Self(RwLock::new(Room {
            parts,
            open: true,
            owners: Vec::new(),
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.read().length()
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

    /// Lets `write` have the memory of a range, which lies in `fragment`; `None` when the place is closed, or the
    /// fragment another link's. `write` must not wait.
    pub(crate) fn with<R>(
        &self,
        link: u64,
        fragment: u32,
        range: Range,
        write: impl FnOnce(Span<'_>) -> R,
    ) -> Option<R> {
        let room = self.0.read();
        let other = room
            .owners
            .iter()
            .any(|&(f, owner)| f == fragment && owner != link);
        let fits = range.start <= range.end && range.end <= room.length() as u64;
        if !room.open || other || !fits {
            return None;
        }
        let span = room.spans(range).map(|(start, length)| {
            // SAFETY: the range lies in the parts, which are lent while the place is open; closing it needs the
            // lock held here. No other thread has the same bytes: see `Room`.
            unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), length) }
        });
        Some(write(span))
    }

    /// Copies a range out, for a caller who leaves before the message is whole. Only after [`close`](Self::close).
    ///
    /// # Safety
    /// All bytes of the range have been written, and the parts are still lent.
    pub(crate) unsafe fn copy_closed(&self, range: Range) -> Vec<u8> {
        let room = self.0.write();
        assert!(
            !room.open && range.end <= room.length() as u64,
            "copied from an open place"
        );
        let [first, second] = room.spans(range).map(|(start, length)| {
            // SAFETY: the range lies in the parts, which are still lent and written there, as the caller promises; no
            // thread writes to a closed place.
            unsafe { std::slice::from_raw_parts(start, length) }
        });
        [first, second].concat()
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
        let (head, body) = room.split_at_mut(1);
        let parts = [head, body].map(|part| (part.as_mut_ptr(), part.len()));
        // SAFETY: closed below.
        let place = unsafe { Place::lent(parts) };
        let put = |link, start, bytes: &[u8]| {
            let range = Range::new(start, start + bytes.len() as u64);
            place.with(link, 0, range, |span| fill(span, bytes))
        };
        assert!(put(1, 0, &[6, 7]).is_some(), "in both parts");
        place.hand_over(0, 2);
        assert!(put(1, 0, &[9, 9]).is_none(), "another link's");
        assert!(put(2, 2, &[9, 9, 9]).is_none(), "beyond the end");
        assert!(put(2, 3, &[8]).is_some(), "in the second part");
        place.close();
        assert!(put(2, 0, &[9, 9]).is_none());
        // SAFETY: written above; the whole room was initialised, and is not used before.
        let copied = unsafe { place.copy_closed(Range::new(0, 4)) };
        assert_eq!(copied, [6, 7, 0, 8]);
        assert_eq!(room, [6, 7, 0, 8]);
    }

    /// Memory that was never written is filled in both parts, and read where it was.
    #[test]
    fn memory_need_not_be_initialised() {
        let (mut head, mut body) = (Vec::<u8>::with_capacity(3), Vec::<u8>::with_capacity(5));
        let parts = [(head.as_mut_ptr(), 3), (body.as_mut_ptr(), 5)];
        // SAFETY: closed below.
        let place = unsafe { Place::lent(parts) };
        let done = place.with(1, 0, Range::new(2, 6), |span| fill(span, &[1, 2, 3, 4]));
        assert!(done.is_some());
        place.close();
        // SAFETY: written above.
        let copied = unsafe { place.copy_closed(Range::new(2, 6)) };
        assert_eq!(copied, [1, 2, 3, 4]);
        // SAFETY: as above: the last byte of the first part, the first three of the other.
        let (last, first) = unsafe {
            (
                head.as_ptr().add(2).read(),
                body.as_ptr().cast::<[u8; 3]>().read(),
            )
        };
        assert_eq!((last, first), (1, [2, 3, 4]));
    }

    /// What is kept counts with its whole length from the start on, and no more comes than there is space for.
    #[test]
    fn kept_bytes_grow_to_their_length() {
        let sum = Arc::default();
        assert!(Kept::new(&sum, 5, 4).is_none());
        let mut kept = Kept::new(&sum, 4, 4).unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 4);
        kept.extend(&[1]);
        let space = kept.space(9);
        assert_eq!(space.len(), 3);
        space[..2].write_copy_of_slice(&[2, 3]);
        // SAFETY: written above.
        unsafe { kept.filled(2) };
        assert_eq!(*kept, [1, 2, 3]);
        assert_eq!(kept.space(9).len(), 1);
        assert_eq!(kept.into_bytes(), [1, 2, 3]);
        assert_eq!(sum.load(Ordering::Relaxed), 0);
    }
}
