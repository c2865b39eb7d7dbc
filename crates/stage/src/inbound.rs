//! The receiving end of an edge: reads frames into buffers of the pool, sends credit.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use ropewalk_lane::Crc64;
use ropewalk_lane::seal::Records;
use ropewalk_proto::stage::frame::{CHECKED_LEN, Frame, HEADER_LEN, Header};
use ropewalk_proto::stage::process::Violation;

use crate::error::StageError;
use crate::link::Link;
use crate::pool::{Buffer, Pool, TAG_LEN};

/// Bytes that are read from one edge before they are passed on and others have their turn: what a processor's cache keeps.
const TURN_LEN: usize = 256 << 10;

/// Bytes of a block that are read in one call, so that their checksum is computed while they are in the cache.
const PART_LEN: usize = 256 << 10;

/// Keys of one edge, as the receiver uses them.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Of what is received.
    pub incoming: Records,
    /// Of what is sent.
    pub outgoing: Records,
}

/// What a read gave.
pub(crate) enum Arrival {
    /// A block, verified unless the edge is made [`Inbound::without_verifying`].
    Block(Header, Buffer),
    /// Anything else.
    Frame(Frame),
}

/// What a block adds to accounts: a keyed hash of its identity, length and checksum.
pub(crate) fn fingerprint(key: &[u8; 32], header: &Header) -> u128 {
    let hash = blake3::keyed_hash(key, &header.encode());
    let (half, _) = hash.as_bytes().split_at(16);
    half.try_into().map_or(0, u128::from_le_bytes)
}

pub(crate) struct Inbound {
    pub link: Link,
    /// Of the process at the other end.
    pub peer: String,
    sealed: Option<Sealed>,
    longest: usize,
    header: [u8; HEADER_LEN],
    header_have: usize,
    // Known once the header is whole.
    frame: Option<Frame>,
    body: Body,
    body_have: usize,
    // Whether blocks are compared with their checksums.
    verifies: bool,
    // Of the header and what is read of the content; not used where the edge is sealed or nothing is compared.
    sum: Crc64,
    is_drained: bool,
    /// The connection has failed or ended: what is left there is read at once.
    pub is_broken: bool,
    // Frames that the socket had no room for.
    unsent: Vec<u8>,
}

enum Body {
    None,
    Tag([u8; TAG_LEN]),
    Block(Buffer, usize),
}

impl Body {
    fn rest(&mut self, have: usize) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Tag(tag) => &mut tag[have..],
            Self::Block(buffer, len) => &mut buffer[have..*len],
        }
    }
}

impl Inbound {
    pub fn new(link: Link, peer: String, sealed: Option<Sealed>, longest: usize) -> Self {
        Self {
            link,
            peer,
            sealed,
            longest,
            header: [0; HEADER_LEN],
            header_have: 0,
            frame: None,
            body: Body::None,
            body_have: 0,
            verifies: true,
            sum: Crc64::default(),
            is_drained: false,
            is_broken: false,
            unsent: Vec::new(),
        }
    }

    /// Leaves checksums of blocks to the processes behind: for one that passes blocks on unseen, on an edge within its host.
    pub fn without_verifying(mut self) -> Self {
        self.verifies = false;
        self
    }

    /// Whether records are opened in buffers.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    pub fn lost(&self, reason: String) -> StageError {
        StageError::Lost {
            peer: self.peer.clone(),
            reason,
        }
    }

    /// Reads what has arrived, up to a bound; false where nothing was there. `handle` returns false at the end of the edge.
    pub fn read(
        &mut self,
        pool: &mut Pool,
        mut handle: impl FnMut(Arrival) -> Result<bool, Violation>,
    ) -> Result<bool, StageError> {
        let mut all = 0;
        self.is_drained = false;
        while all < TURN_LEN && !self.is_drained {
            let (read, wanted) = match self.receive() {
                Ok((0, _)) => return Err(self.lost("it ended early".into())),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_drained = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.lost(error.to_string())),
            };
            all += read;
            self.is_drained = read < wanted;
            if !self.advance(read, pool, &mut handle)? {
                break;
            }
        }
        Ok(all > 0)
    }

    /// Whether the last read took all that was there.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Reads the next part of a body, or its rest and the header behind it, in one call; gives what was read and wanted.
    fn receive(&mut self) -> io::Result<(usize, usize)> {
        let mut header = &mut self.header[self.header_have..];
        let mut body = self.body.rest(self.body_have);
        if body.len() > PART_LEN {
            (body, header) = (&mut body[..PART_LEN], &mut []);
        }
        let wanted = body.len() + header.len();
        let mut slices = [IoSliceMut::new(body), IoSliceMut::new(header)];
        let slices = if slices[0].is_empty() {
            &mut slices[1..]
        } else {
            &mut slices[..]
        };
        Ok((self.link.receive(slices)?, wanted))
    }

    /// Takes over what was read; false at the end of the edge.
    fn advance(
        &mut self,
        mut read: usize,
        pool: &mut Pool,
        handle: &mut impl FnMut(Arrival) -> Result<bool, Violation>,
    ) -> Result<bool, StageError> {
        if self.frame.is_some() {
            let rest = self.body.rest(self.body_have);
            let part = read.min(rest.len());
            if self.sealed.is_none() && self.verifies {
                self.sum.update(&rest[..part]);
            }
            self.body_have += part;
            read -= part;
            if !self.body.rest(self.body_have).is_empty() {
                return Ok(true);
            }
            if !self.finish(handle)? {
                return Ok(false);
            }
        }
        self.header_have += read;
        if self.header_have < HEADER_LEN {
            return Ok(true);
        }
        self.header_have = 0;
        self.begin(pool)?;
        match self.body.rest(0).is_empty() {
            true => self.finish(handle),
            false => Ok(true),
        }
    }

    /// A header is whole.
    fn begin(&mut self, pool: &mut Pool) -> Result<(), StageError> {
        let frame = Frame::decode(&self.header).map_err(|source| StageError::Frame {
            peer: self.peer.clone(),
            source,
        })?;
        let tag = if self.sealed.is_some() { TAG_LEN } else { 0 };
        self.body_have = 0;
        self.body = match &frame {
            Frame::Block(header) if header.length as usize > self.longest => {
                return Err(StageError::TooLong {
                    peer: self.peer.clone(),
                    length: header.length,
                    longest: self.longest,
                });
            }
            Frame::Block(header) => Body::Block(pool.take(), header.length as usize + tag),
            _ if tag > 0 => Body::Tag([0; TAG_LEN]),
            _ => Body::None,
        };
        self.sum = Crc64::default();
        self.sum.update(&self.header[..CHECKED_LEN]);
        self.frame = Some(frame);
        Ok(())
    }

    /// A frame is whole: verified where that is asked for, then handed on.
    fn finish(
        &mut self,
        handle: &mut impl FnMut(Arrival) -> Result<bool, Violation>,
    ) -> Result<bool, StageError> {
        let (frame, body) = (
            self.frame.take(),
            std::mem::replace(&mut self.body, Body::None),
        );
        let Some(frame) = frame else { return Ok(true) };
        let mut body = body;
        if let Some(sealed) = &mut self.sealed {
            let head = frame.encode();
            let whole: &mut [u8] = match &mut body {
                Body::None => &mut [],
                Body::Tag(tag) => tag,
                Body::Block(buffer, len) => &mut buffer[..*len],
            };
            sealed
                .incoming
                .open(&head, whole)
                .map_err(|_| StageError::Forged {
                    peer: self.peer.clone(),
                })?;
            if let (Frame::Block(header), Body::Block(buffer, _)) = (&frame, &body) {
                self.sum.update(&buffer[..header.length as usize]);
            }
        }
        let arrival = match (frame, body) {
            (Frame::Block(header), Body::Block(buffer, _)) => {
                if self.verifies {
                    self.compare(&header, self.sum)?;
                }
                Arrival::Block(header, buffer)
            }
            (frame, _) => Arrival::Frame(frame),
        };
        handle(arrival).map_err(|violation| self.violation(violation))
    }

    pub fn violation(&self, violation: Violation) -> StageError {
        StageError::Violation {
            peer: self.peer.clone(),
            violation,
        }
    }

    /// Compares a block with its checksum.
    pub fn verify(&self, header: &Header, buffer: &[u8]) -> Result<(), StageError> {
        let mut sum = Crc64::default();
        sum.update(&header.encode()[..CHECKED_LEN]);
        sum.update(&buffer[..header.length as usize]);
        self.compare(header, sum)
    }

    /// Compares the checksum of a block with that of what arrived.
    fn compare(&self, header: &Header, sum: Crc64) -> Result<(), StageError> {
        if sum.value() == header.check {
            return Ok(());
        }
        Err(StageError::Damaged {
            peer: self.peer.clone(),
            identity: header.identity,
        })
    }

    /// Sends credit, as far as the socket has space.
    pub fn send_credit(&mut self, granted: u64, on_demand: bool) -> Result<(), StageError> {
        self.push(&Frame::Credit { granted, on_demand }, &[]);
        self.flush()
    }

    /// Takes a frame that [`Inbound::flush`] sends.
    pub fn push(&mut self, frame: &Frame, body: &[u8]) {
        let head = frame.encode();
        self.unsent.extend_from_slice(&head);
        let at = self.unsent.len();
        self.unsent.extend_from_slice(body);
        if let Some(sealed) = &mut self.sealed {
            let tag = sealed.outgoing.seal(&head, &mut self.unsent[at..]);
            self.unsent.extend_from_slice(&tag);
        }
    }

    /// Whether credit waits for the socket.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what the socket had no space for.
    pub fn flush(&mut self) -> Result<(), StageError> {
        while !self.unsent.is_empty() {
            match self.link.send(&[IoSlice::new(&self.unsent)]) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted => {}
                    // What the sender sent before it closed is still to be read; reading reports the rest.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.unsent.clear(),
                    _ => return Err(self.lost(error.to_string())),
                },
            }
        }
        Ok(())
    }
}
