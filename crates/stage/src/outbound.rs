//! The sending end of an edge: writes blocks from their buffers, reads credit.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut};

use ropewalk_proto::stage::frame::{ANSWER_MAX, Frame, HEADER_LEN};
use ropewalk_proto::stage::process::{Held, Violation};

use crate::error::StageError;
use crate::inbound::Sealed;
use crate::link::Link;
use crate::pool::{Buffer, TAG_LEN};

/// Frames in one system call at most.
const GATHER_MAX: usize = 32;

/// Bytes that are taken from the machine before they are written: one call's worth. What is taken cannot be sealed again.
const TAKEN_MAX: usize = 256 << 10;

/// Bytes of frames that are read in one call.
const AHEAD_LEN: usize = 4 << 10;

/// A frame that is being sent.
struct Piece {
    header: [u8; HEADER_LEN],
    held: Option<Held<Buffer>>,
    // Behind the header: content and tag.
    body_len: usize,
    tag: [u8; TAG_LEN],
}

impl Piece {
    fn body(&self) -> &[u8] {
        match &self.held {
            Some(held) => &held.body[..self.body_len],
            None => &self.tag[..self.body_len],
        }
    }

    fn len(&self) -> usize {
        HEADER_LEN + self.body_len
    }
}

pub(crate) struct Outbound {
    pub link: Link,
    /// Of the process at the other end.
    pub peer: String,
    sealed: Option<Sealed>,
    pieces: VecDeque<Piece>,
    // Bytes of all pieces, and those of the first that are written.
    taken: usize,
    written: usize,
    // Frames of the receiver, of which the last may be there in part.
    ahead: Vec<u8>,
    /// The socket had no space; false again once it may have.
    pub is_full: bool,
    /// All blocks and the end are written, and the receiver has read them and closed the connection.
    pub is_over: bool,
    is_ended: bool,
    is_shut: bool,
}

impl Outbound {
    pub fn new(link: Link, peer: String, sealed: Option<Sealed>) -> Self {
        Self {
            link,
            peer,
            sealed,
            pieces: VecDeque::new(),
            taken: 0,
            written: 0,
            ahead: Vec::new(),
            is_full: false,
            is_over: false,
            is_ended: false,
            is_shut: false,
        }
    }

    pub fn lost(&self, reason: String) -> StageError {
        StageError::Lost {
            peer: self.peer.clone(),
            reason,
        }
    }

    pub fn violation(&self, violation: Violation) -> StageError {
        StageError::Violation {
            peer: self.peer.clone(),
            violation,
        }
    }

    /// Whether sealing changes the buffers.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether more blocks should be taken.
    pub fn has_room(&self) -> bool {
        self.taken < TAKEN_MAX && self.pieces.len() < GATHER_MAX
    }

    /// Whether something waits for the socket.
    pub fn has_unsent(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Takes a block to be sent.
    pub fn push(&mut self, mut held: Held<Buffer>) {
        let header = held.header.encode();
        let len = held.header.length as usize;
        let mut body_len = len;
        if let Some(sealed) = &mut self.sealed {
            let tag = sealed.outgoing.seal(&header, &mut held.body[..len]);
            held.body[len..len + TAG_LEN].copy_from_slice(&tag);
            body_len += TAG_LEN;
        }
        self.add(Piece {
            header,
            held: Some(held),
            body_len,
            tag: [0; TAG_LEN],
        });
    }

    /// Takes a frame without content.
    pub fn push_frame(&mut self, frame: &Frame) {
        let header = frame.encode();
        self.is_ended |= matches!(frame, Frame::End { .. });
        let (tag, body_len) = match &mut self.sealed {
            Some(sealed) => (sealed.outgoing.seal(&header, &mut []), TAG_LEN),
            None => ([0; TAG_LEN], 0),
        };
        self.add(Piece {
            header,
            held: None,
            body_len,
            tag,
        });
    }

    fn add(&mut self, piece: Piece) {
        self.taken += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes what the socket has space for; `sent` gets each block that is written.
    pub fn write(&mut self, mut sent: impl FnMut(Held<Buffer>)) -> Result<bool, StageError> {
        let mut has_written = false;
        while !self.pieces.is_empty() {
            let mut slices = Vec::with_capacity(2 * self.pieces.len());
            let mut skip = self.written;
            for piece in self.pieces.iter().take(GATHER_MAX) {
                for part in [&piece.header[..], piece.body()] {
                    let cut = skip.min(part.len());
                    skip -= cut;
                    if cut < part.len() {
                        slices.push(IoSlice::new(&part[cut..]));
                    }
                }
            }
            match self.link.send(&slices) {
                Ok(count) => {
                    has_written = true;
                    self.written += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_full = self.link.is_socket();
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.lost(error.to_string())),
            }
            while let Some(first) = self.pieces.front()
                && self.written >= first.len()
            {
                self.written -= first.len();
                self.taken -= first.len();
                if let Some(held) = self.pieces.pop_front().and_then(|piece| piece.held) {
                    sent(held);
                }
            }
        }
        if self.is_ended && self.pieces.is_empty() && !self.is_shut {
            self.is_shut = true;
            self.link.shut();
        }
        Ok(has_written)
    }

    /// Reads frames; `handle` gets each with its body.
    pub fn read(
        &mut self,
        mut handle: impl FnMut(Frame, &[u8]) -> Result<(), StageError>,
    ) -> Result<(), StageError> {
        loop {
            let have = self.ahead.len();
            self.ahead.resize(have + AHEAD_LEN, 0);
            let read = self
                .link
                .receive(&mut [IoSliceMut::new(&mut self.ahead[have..])]);
            let count = *read.as_ref().unwrap_or(&0);
            self.ahead.truncate(have + count);
            match read {
                Ok(0) if self.is_ended && self.pieces.is_empty() => {
                    self.is_over = true;
                    return Ok(());
                }
                Ok(0) => return Err(self.lost("it was closed early".into())),
                Ok(_) => self.take(&mut handle)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error.to_string())),
            }
        }
    }

    /// Takes the frames that are whole.
    fn take(
        &mut self,
        handle: &mut impl FnMut(Frame, &[u8]) -> Result<(), StageError>,
    ) -> Result<(), StageError> {
        let tag = if self.sealed.is_some() { TAG_LEN } else { 0 };
        let mut at = 0;
        while let Some((head, rest)) = self.ahead[at..].split_first_chunk_mut::<HEADER_LEN>() {
            let frame = Frame::decode(head).map_err(|source| StageError::Frame {
                peer: self.peer.clone(),
                source,
            })?;
            let len = frame.answer_len().ok_or_else(|| StageError::TooLong {
                peer: self.peer.clone(),
                length: u32::from_le_bytes(std::array::from_fn(|i| head[8 + i])),
                longest: ANSWER_MAX,
            })?;
            if rest.len() < len + tag {
                break;
            }
            let body = &mut rest[..len + tag];
            if let Some(sealed) = &mut self.sealed {
                let opened = sealed.incoming.open(head, body);
                opened.map_err(|_| StageError::Forged {
                    peer: self.peer.clone(),
                })?;
            }
            handle(frame, &body[..len])?;
            at += HEADER_LEN + len + tag;
        }
        drop(self.ahead.drain(..at));
        Ok(())
    }
}
