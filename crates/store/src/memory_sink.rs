//! A sink of bounded memory: bytes really land in a buffer, and later ones replace earlier ones.
//!
//! For measurements in which a row without disk must still do the work of a copy.

use std::sync::Mutex;

use ropewalk_model::{CHUNK_LEN, Range};

use crate::error::StoreError;
use crate::open_files::lock;
use crate::sink::Sink;

/// A ring of chunks: the chunk of a data-space offset lies at its number modulo the ring's length.
///
/// Each chunk has its own lock, so threads that write different chunks do not wait for each other.
#[derive(Debug)]
pub struct MemorySink {
    chunks: Vec<Mutex<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    /// Which chunk of the data space the bytes belong to; `None` until the first write.
    number: Option<u64>,
    bytes: Box<[u8]>,
}

impl MemorySink {
    /// A ring of at least `len` bytes, rounded up to whole chunks and at least one, allocated here.
    #[must_use]
    pub fn new(len: u64) -> Self {
        let count = len.div_ceil(CHUNK_LEN).max(1);
        let chunk = |_| {
            Mutex::new(Chunk {
                number: None,
                bytes: vec![0; CHUNK_LEN as usize].into(),
            })
        };
        Self {
            chunks: (0..count).map(chunk).collect(),
        }
    }

    fn chunk(&self, number: u64) -> &Mutex<Chunk> {
        &self.chunks[(number % self.chunks.len() as u64) as usize]
    }
}

impl Sink for MemorySink {
    fn write_at(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let (number, at) = (offset / CHUNK_LEN, (offset % CHUNK_LEN) as usize);
            let (head, rest) = bytes.split_at(bytes.len().min(CHUNK_LEN as usize - at));
            let mut chunk = lock(self.chunk(number));
            chunk.number = Some(number);
            chunk.bytes[at..at + head.len()].copy_from_slice(head);
            drop(chunk);
            offset = offset.saturating_add(head.len() as u64);
            bytes = rest;
        }
        Ok(())
    }

    fn read_back(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), StoreError> {
        while !buf.is_empty() {
            let (number, at) = (offset / CHUNK_LEN, (offset % CHUNK_LEN) as usize);
            let len = buf.len().min(CHUNK_LEN as usize - at);
            let (head, rest) = buf.split_at_mut(len);
            let chunk = lock(self.chunk(number));
            if chunk.number != Some(number) {
                return Err(StoreError::NotKept {
                    range: Range {
                        start: offset,
                        end: offset.saturating_add(len as u64),
                    },
                });
            }
            head.copy_from_slice(&chunk.bytes[at..at + len]);
            drop(chunk);
            offset = offset.saturating_add(len as u64);
            buf = rest;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn discard(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes land where they are read back, also across the seam of two chunks and the end of the ring.
    #[test]
    fn bytes_land_and_older_ones_are_known_to_be_gone() {
        let sink = MemorySink::new(2 * CHUNK_LEN);
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        let mut read = vec![0; bytes.len()];
        for offset in [0, CHUNK_LEN - 10, 5 * CHUNK_LEN - 500, 1 << 60] {
            sink.write_at(offset, &bytes).unwrap();
            sink.read_back(offset, &mut read).unwrap();
            assert!(read == bytes, "at {offset}");
        }
        assert!(matches!(
            sink.read_back(0, &mut read),
            Err(StoreError::NotKept { .. })
        ));
    }
}
