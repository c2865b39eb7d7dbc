//! What a stream has received and its program has not read.

use std::collections::VecDeque;
use std::task::Waker;

use ropewalk_proto::byte_stream::frame::HEADER_LEN;

use super::shared::Fault;

/// Shorter frames are joined up to this: a peer that sends single bytes costs no allocation for each.
const JOINED_MAX: usize = 8 << 10;

/// How the receiving way of a stream ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// All bytes are there.
    Whole,
    /// Nothing more arrives.
    Failed(Fault),
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that were read.
    read: usize,
    pub end: Option<End>,
    /// Why the peer gave the stream up, also where all bytes of it had arrived before: writing fails with it.
    pub reset: Option<Fault>,
    pub wakers: Vec<Waker>,
}

impl Inbox {
    /// Adds the payload of a DATA frame.
    pub fn add(&mut self, mut frame: Vec<u8>) {
        let length = frame.len() - HEADER_LEN;
        if let Some(last) = self.chunks.back_mut()
            && last.len() + length <= JOINED_MAX
        {
            last.extend_from_slice(&frame[HEADER_LEN..]);
            return;
        }
        match length <= JOINED_MAX {
            true => self.chunks.push_back(frame[HEADER_LEN..].to_vec()),
            false => {
                // Its header is skipped where it is read: no copy.
                if self.chunks.is_empty() {
                    self.read = HEADER_LEN;
                } else {
                    frame.drain(..HEADER_LEN);
                }
                self.chunks.push_back(frame);
            }
        }
    }

    /// Takes what fits, and says how much that was.
    pub fn take(&mut self, space: &mut [u8]) -> usize {
        let mut count = 0;
        while let Some(first) = self.chunks.front()
            && count < space.len()
        {
            let rest = &first[self.read..];
            let step = rest.len().min(space.len() - count);
            space[count..count + step].copy_from_slice(&rest[..step]);
            count += step;
            self.read += step;
            if self.read == first.len() {
                self.chunks.pop_front();
                self.read = 0;
            }
        }
        count
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Nothing of it will be read.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.read = 0;
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::byte_stream::frame::{Header, Kind};

    use super::*;

    /// Frames of any lengths are read as one row of bytes, whatever is read at once.
    #[test]
    fn frames_are_read_as_one() {
        for step in [1, 7, 5000, 100_000] {
            let mut inbox = Inbox::default();
            let (mut sent, mut got): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
            for (number, length) in [1, 3, 9000, 10, 70_000, 8192, 8193, 1]
                .into_iter()
                .enumerate()
            {
                let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
                inbox.add(Header::new(Kind::Data, 0, 0).frame(&bytes));
                sent.extend(bytes);
                if number == 4 {
                    let mut space = vec![0; step];
                    let count = inbox.take(&mut space);
                    got.extend(&space[..count]);
                }
            }
            while !inbox.is_empty() {
                let mut space = vec![0; step];
                let count = inbox.take(&mut space);
                assert!(count > 0);
                got.extend(&space[..count]);
            }
            assert!(got == sent, "{step}");
        }
    }

    /// Single bytes are joined.
    #[test]
    fn single_bytes_are_joined() {
        let mut inbox = Inbox::default();
        for _ in 0..64 << 10 {
            inbox.add(Header::new(Kind::Data, 0, 0).frame(b"x"));
        }
        assert_eq!(inbox.chunks.len(), 8);
    }
}
