//! Buffers of a process. The machine's credit bounds how many are in use; the last one freed is used next, while it is in the
//! processor's cache.

use ropewalk_proto::stage::frame::HEADER_LEN;

/// Bytes of a sealed record's tag, behind a block's content.
pub(crate) const TAG_LEN: usize = 16;

/// Bytes behind a block's content: the tag, or where it goes as datagrams its header.
const TAIL_LEN: usize = HEADER_LEN;

/// A buffer.
pub(crate) type Buffer = Box<[u8]>;

/// Free buffers of one length.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<Buffer>,
    block: usize,
}

impl Pool {
    /// Of buffers for blocks of this length.
    pub fn new(block: usize) -> Self {
        Self {
            free: Vec::new(),
            block,
        }
    }

    /// A buffer with what it held before; zeros where it is new.
    pub fn take(&mut self) -> Buffer {
        let new = || vec![0; self.block + TAIL_LEN].into_boxed_slice();
        self.free.pop().unwrap_or_else(new)
    }

    /// Frees the memory of all buffers that are not in use.
    pub fn clear(&mut self) {
        self.free = Vec::new();
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Buffer) {
        debug_assert_eq!(buffer.len(), self.block + TAIL_LEN);
        self.free.push(buffer);
    }
}
