//! Memory of an operation: its own, or a caller's. All `unsafe` code of this crate is here.
//!
//! It is touched only under the lock of the origin's state, and removed from there, under the lock, before the caller has it back.

use std::mem::MaybeUninit;

use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::region::Slice;

/// Bytes that a get fills or a put sends.
pub(crate) enum Memory {
    /// Of the operation, to be filled.
    Space(Space),
    /// Of a caller, to be filled.
    Into(*mut u8, usize),
    /// Of the operation, to be sent.
    Owned(Vec<u8>),
    /// Of a caller, to be sent.
    From(*const u8, usize),
}

/// Memory that is not zeroed first. It is used through `start` only, until all of it is filled.
pub(crate) struct Space {
    bytes: Vec<u8>,
    start: *mut u8,
    len: usize,
    filled: RangeSet,
}

// SAFETY: the pointers are used under a lock, or pinned there, while the memory is lent by the promises of `into` and `from`, or owned.
unsafe impl Send for Memory {}

impl Memory {
    /// Space for so many bytes; `None` where the system has not as much.
    pub(crate) fn space(len: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        Some(Self::Space(Space {
            start: bytes.as_mut_ptr(),
            bytes,
            len,
            filled: RangeSet::default(),
        }))
    }

    /// # Safety
    /// `len` bytes from `start` on may be written by any thread, and nothing else touches them, until this is dropped.
    pub(crate) unsafe fn into(start: *mut u8, len: usize) -> Self {
        Self::Into(start, len)
    }

    /// # Safety
    /// `len` bytes from `start` on may be read by any thread, and nothing writes them, until this is dropped.
    pub(crate) unsafe fn from(start: *const u8, len: usize) -> Self {
        Self::From(start, len)
    }

    /// Where a slice is, if it is all within.
    fn span(slice: &Slice, len: usize) -> Option<(usize, usize)> {
        let start = usize::try_from(slice.local).ok()?;
        let end = start.checked_add(usize::try_from(slice.range.len()).ok()?)?;
        (end <= len).then_some((start, end))
    }

    /// Start and length of what is to be filled.
    fn to_fill(&self) -> Option<(*mut u8, usize)> {
        match self {
            Self::Space(space) => Some((space.start, space.len)),
            Self::Into(start, len) => Some((*start, *len)),
            Self::Owned(_) | Self::From(..) => None,
        }
    }

    /// Puts the bytes of a slice in their place.
    pub(crate) fn fill(&mut self, slice: &Slice, bytes: &[u8]) {
        let Some((first, len)) = self.to_fill() else {
            return;
        };
        match Self::span(slice, len) {
            Some((start, end)) if end - start == bytes.len() => {
                // SAFETY: the span is within the memory, which is owned, or lent for writing while this is there. `bytes` are elsewhere: nothing
                // but this module gives access to it.
                unsafe {
                    first
                        .add(start)
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
                };
                self.came(slice);
            }
            _ => {}
        }
    }

    /// The bytes of a slice are in their place.
    fn came(&mut self, slice: &Slice) {
        if let Self::Space(space) = self
            && let Some((start, end)) = Self::span(slice, space.len)
        {
            space.filled.insert(Range::new(start as u64, end as u64));
        }
    }

    /// Where the bytes of these slices go, if they are one after the other in memory that is to be filled.
    pub(crate) fn loan(&self, slices: &[Slice]) -> Option<Loan> {
        let (memory, len) = self.to_fill()?;
        let (first, _) = Self::span(slices.first()?, len)?;
        let mut last = first;
        for slice in slices {
            let (start, end) = Self::span(slice, len)?;
            if start != last {
                return None;
            }
            last = end;
        }
        // SAFETY: the span is within the memory.
        let start = unsafe { memory.add(first) };
        Some(Loan {
            start,
            len: last - first,
        })
    }

    /// The bytes of these slices were written to their [`Loan`].
    ///
    /// # Safety
    /// They all were.
    pub(crate) unsafe fn repaid(&mut self, slices: &[Slice]) {
        slices.iter().for_each(|slice| self.came(slice));
    }

    /// Appends the bytes of a slice.
    pub(crate) fn append_to(&self, slice: &Slice, out: &mut Vec<u8>) {
        match self {
            Self::Owned(own) => {
                if let Some((start, end)) = Self::span(slice, own.len()) {
                    out.extend_from_slice(&own[start..end]);
                }
            }
            Self::From(first, len) => {
                if let Some((start, end)) = Self::span(slice, *len) {
                    // SAFETY: the span is within the memory, which is lent for reading while this is there.
                    out.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(first.add(start), end - start)
                    });
                }
            }
            Self::Into(..) | Self::Space(_) => {}
        }
    }

    /// The bytes that it owns: of a get all, which have come.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Space(mut space) => {
                let all = Range::new(0, space.len as u64);
                assert!(
                    all.is_empty() || space.filled.contains_range(all),
                    "a get that is complete has a gap"
                );
                // SAFETY: every byte was filled, as asserted; the memory has space for so many.
                unsafe { space.bytes.set_len(space.len) };
                space.bytes
            }
            Self::Owned(bytes) => bytes,
            Self::Into(..) | Self::From(..) => Vec::new(),
        }
    }
}

/// Memory of a get that one thread fills, without the lock.
pub(crate) struct Loan {
    start: *mut u8,
    len: usize,
}

impl Loan {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// The operation keeps its memory while this is used, and no other thread writes bytes of the same slices.
    pub(crate) unsafe fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: within memory that is there and used by nobody else, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Range;

    use super::*;

    /// Slices land where they belong, and what does not fit changes nothing.
    #[test]
    fn slices_land_in_their_place() {
        let slice = |local, len| Slice {
            range: Range::new(1000, 1000 + len),
            local,
        };
        let mut bytes = [0; 4];
        // SAFETY: dropped before `bytes` is used again.
        let mut memory = unsafe { Memory::into(bytes.as_mut_ptr(), bytes.len()) };
        memory.fill(&slice(1, 2), &[7, 8]);
        for (local, len) in [(3, 2), (u64::MAX, 2), (0, u64::MAX / 2)] {
            memory.fill(&slice(local, len), &[9, 9]);
        }
        drop(memory);
        assert_eq!(bytes, [0, 7, 8, 0]);
        // SAFETY: dropped before `bytes` is used again.
        let memory = unsafe { Memory::from(bytes.as_ptr(), bytes.len()) };
        let mut out = Vec::new();
        memory.append_to(&slice(1, 3), &mut out);
        memory.append_to(&slice(2, 3), &mut out);
        assert_eq!(out, [7, 8, 0]);
        let mut own = Memory::Owned(vec![1, 2]);
        own.fill(&slice(0, 2), &[5, 5]);
        assert_eq!(own.into_bytes(), [1, 2]);
        assert!(Memory::space(0).unwrap().into_bytes().is_empty());
        assert!(Memory::space(usize::MAX).is_none());
    }

    /// Space is filled by copies and by a loan; what is lent is where the slices are, when these are one after the other.
    #[test]
    fn space_is_filled_by_loans_and_copies() {
        let slice = |local, len: u64| Slice {
            range: Range::new(1000, 1000 + len),
            local,
        };
        let mut memory = Memory::space(7).unwrap();
        memory.fill(&slice(5, 2), &[6, 7]);
        memory.fill(&slice(6, 2), &[9, 9]);
        assert!(memory.loan(&[slice(0, 2), slice(3, 1)]).is_none(), "a gap");
        assert!(memory.loan(&[slice(6, 2)]).is_none(), "beyond the end");
        let slices = [slice(1, 3), slice(4, 1)];
        let mut loan = memory.loan(&slices).unwrap();
        assert_eq!(loan.len(), 4);
        memory.fill(&slice(0, 1), &[1]);
        // SAFETY: the memory is there, and these bytes are not used otherwise.
        unsafe { loan.memory() }.write_copy_of_slice(&[2, 3, 4, 5]);
        // SAFETY: written above.
        unsafe { memory.repaid(&slices) };
        assert_eq!(memory.into_bytes(), [1, 2, 3, 4, 5, 6, 7]);
    }

    /// Bytes that never came are never read.
    #[test]
    #[should_panic(expected = "has a gap")]
    fn a_gap_is_not_handed_out() {
        let mut memory = Memory::space(3).unwrap();
        let slice = Slice {
            range: Range::new(1, 3),
            local: 1,
        };
        memory.fill(&slice, &[1, 2]);
        drop(memory.into_bytes());
    }
}
