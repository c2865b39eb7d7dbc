//! Memory of an operation: its own, or a caller's. All `unsafe` code of this crate is here.
//!
//! It is touched only under the lock of the origin's state, and removed from there, under the lock, before the caller has it back.

use ropewalk_proto::region::Slice;

/// Bytes that a get fills or a put sends.
pub(crate) enum Memory {
    /// Of the operation.
    Owned(Vec<u8>),
    /// Of a caller, to be filled.
    Into(*mut u8, usize),
    /// Of a caller, to be sent.
    From(*const u8, usize),
}

// SAFETY: the pointers are used under a lock, while the memory is lent by the promises of `into` and `from`.
unsafe impl Send for Memory {}

impl Memory {
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

    /// Puts the bytes of a slice in their place.
    pub(crate) fn fill(&mut self, slice: &Slice, bytes: &[u8]) {
        let place = match self {
            Self::Owned(own) => {
                let Some((start, end)) = Self::span(slice, own.len()) else {
                    return;
                };
                &mut own[start..end]
            }
            Self::Into(first, len) => {
                let Some((start, end)) = Self::span(slice, *len) else {
                    return;
                };
                // SAFETY: the span is within the memory, which is lent for writing while this is there, and borrowed exclusively here.
                unsafe { std::slice::from_raw_parts_mut(first.add(start), end - start) }
            }
            Self::From(..) => return,
        };
        if place.len() == bytes.len() {
            place.copy_from_slice(bytes);
        }
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
            Self::Into(..) => {}
        }
    }

    /// The bytes that it owns.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Into(..) | Self::From(..) => Vec::new(),
        }
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
        let mut own = Memory::Owned(vec![0; 2]);
        own.fill(&slice(0, 2), &[1, 2]);
        own.fill(&slice(1, 2), &[5, 5]);
        assert_eq!(own.into_bytes(), [1, 2]);
    }
}
