//! The sending end: grants in, units out, straight from where they lie when nothing must be
//! computed from them, else through one cache-sized buffer, into which bytes in memory are sealed at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ropewalk_model::{Digester, Range, ZEROS, are_zeros, digest, digest_of_zeros};
use ropewalk_proto::wire::{
    FrameHeader, FrameKind, HASH_LEN, HEADER_LEN, HELD_RANGE_LEN, HELD_RANGES_MAX, SPACE_DATA,
    TAG_LEN, encode_held, flags,
};

use crate::checksum::{POISON, Sum};
use crate::frame_io::{Ahead, Behind, FRAGMENT_LEN, FRAGMENT_LEN_MIN, Guard, REASON_MAX, body_len};
use crate::half::{
    Absent, Extent, Grant, OUTSTANDING_MAX, Observation, Provider, SendHalf, Served, Stopper,
    announce, is_hole, missing,
};
use crate::wire::{Interest, Link, Wire};
use crate::{Check, LaneError, Protection};

/// Bytes of the buffer that grants are read into.
const GRANTS_LEN: usize = 16 << 10;
/// Frames are collected until this many bytes wait, then sent together.
const FLUSH_LEN: usize = 128 << 10;
/// Longest frame around a fragment.
const FRAME_MAX: usize = HEADER_LEN + FRAGMENT_LEN + HASH_LEN + TAG_LEN;
const _: () = assert!(HELD_RANGES_MAX * HELD_RANGE_LEN <= FRAGMENT_LEN);
/// Below this a payload is copied next to its header; above, it leaves from its place.
const DIRECT_MIN: usize = 32 << 10;
/// Fewer zeros are sent as other bytes are: it costs less than to look whether they are any.
const ZEROS_MIN: usize = 4 << 10;
/// Bytes sent between two looks for new grants and cancellations.
const LOOK_EVERY: usize = 512 << 10;
/// Bytes that are read to be hashed before the answers leave: those of small files would cost a call each.
const ANSWERS_EVERY: usize = 64 << 10;

pub(crate) struct Sender<W> {
    link: Link<W>,
    guard: Guard,
    queue: VecDeque<Grant>,
    ahead: Ahead,
    out: Behind,
    /// Bytes sent since grants were last looked for.
    unlooked: usize,
    /// Longest payload of a frame that is not sent unchecked from a file.
    fragment_max: usize,
    /// Where bytes are read of which only the hash is wanted; made when first needed.
    hashed: Box<[u8]>,
    /// Bytes read for answers that have not left.
    unanswered: usize,
    /// When the provider is asked what more it has; `None`: never again.
    news_at: Option<Instant>,
}

/// How a fragment leaves.
enum Way<'a> {
    /// From memory, as it lies there.
    Memory(&'a [u8]),
    /// From a file, with the bytes to compute the checksum from, if one is wanted.
    File {
        file: std::sync::Arc<std::fs::File>,
        offset: u64,
        length: usize,
        mapped: Option<&'a [u8]>,
    },
    /// From memory, sealed into the buffer.
    Sealed(&'a [u8]),
    /// Through the buffer.
    Built(usize),
    /// Not at all: zeros.
    Zeros(usize),
}

impl<W: Wire> Sender<W> {
    pub(crate) fn new(wire: W, protection: Protection) -> Result<Self, LaneError> {
        Ok(Self {
            link: Link::new(wire)?,
            guard: Guard::for_sender(&protection),
            queue: VecDeque::new(),
            ahead: Ahead::new(GRANTS_LEN),
            out: Behind::new(FLUSH_LEN + FRAME_MAX),
            unlooked: 0,
            fragment_max: FRAGMENT_LEN,
            hashed: Box::default(),
            unanswered: 0,
            news_at: Some(Instant::now()),
        })
    }

    fn drive(&mut self, provider: &dyn Provider, idle: Duration) -> Result<Served, LaneError> {
        loop {
            if self.queue.is_empty() || self.unlooked >= LOOK_EVERY {
                self.look(None)?;
            }
            self.announce(provider)?;
            if let Some(grant) = self.queue.pop_front() {
                announce(provider, &grant, &self.queue);
                self.unit(provider, &grant)?;
                continue;
            }
            // What was got ready for units that were taken back is not needed.
            provider.granted(&mut std::iter::empty());
            self.flush(false)?;
            let until = Instant::now() + idle;
            while self.queue.is_empty() {
                if Instant::now() >= until {
                    return Ok(Served::Idle);
                }
                self.link.wait(
                    Interest {
                        read: 1,
                        write: false,
                    },
                    self.news_at.map_or(until, |at| at.min(until)),
                )?;
                self.look(None)?;
                self.announce(provider)?;
                if self.queue.is_empty() {
                    self.flush(false)?;
                }
            }
        }
    }

    /// Reads the grants and cancellations that are there. `true` when `current` was cancelled.
    fn look(&mut self, current: Option<u32>) -> Result<bool, LaneError> {
        self.unlooked = 0;
        let mut cancelled = false;
        loop {
            let frame_len = HEADER_LEN + self.guard.trailer_len();
            while let Some(raw) = self.ahead.header() {
                let header = FrameHeader::decode(&raw)?;
                if body_len(&header) != 0 {
                    return Err(LaneError::Unexpected(format!(
                        "{:?} frame where grants were due",
                        header.kind
                    )));
                }
                if self.ahead.held().len() < frame_len {
                    break;
                }
                self.guard.open(self.ahead.take(frame_len))?;
                cancelled |= self.take(&header, current)?;
            }
            if self
                .ahead
                .pull(&mut self.link, frame_len, GRANTS_LEN)?
                .is_none()
            {
                return Ok(cancelled);
            }
        }
    }

    /// Acts on a frame of the receiver. `true` when it cancels `current`.
    fn take(&mut self, header: &FrameHeader, current: Option<u32>) -> Result<bool, LaneError> {
        match header.kind {
            FrameKind::Grant => {
                if self.queue.len() >= OUTSTANDING_MAX {
                    return Err(LaneError::Unexpected(format!(
                        "more than {OUTSTANDING_MAX} grants outstanding"
                    )));
                }
                self.queue.push_back(Grant {
                    id: header.grant,
                    space: header.space,
                    range: header.range(),
                    hash: header.flags & flags::HASH != 0,
                    digest: header.flags & flags::DIGEST != 0,
                });
                Ok(false)
            }
            FrameKind::Cancel if current == Some(header.grant) => Ok(true),
            FrameKind::Cancel => {
                let index = self.queue.iter().position(|grant| grant.id == header.grant);
                if let Some(grant) = index.and_then(|index| self.queue.remove(index)) {
                    self.missing(&grant, &cancelled())?;
                }
                Ok(false)
            }
            other => Err(LaneError::Unexpected(format!(
                "{other:?} frame where grants were due"
            ))),
        }
    }

    /// Says what more the provider has, when it is time.
    fn announce(&mut self, provider: &dyn Provider) -> Result<(), LaneError> {
        if self.news_at.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        let Some((ranges, pause)) = provider.news() else {
            self.news_at = None;
            return Ok(());
        };
        self.news_at = Some(Instant::now() + pause);
        if ranges.is_empty() {
            return Ok(());
        }
        let payload = encode_held(&ranges);
        self.make_room(FRAME_MAX)?;
        let header = FrameHeader {
            kind: FrameKind::Held,
            flags: 0,
            space: SPACE_DATA,
            length: payload.len() as u32,
            offset: 0,
            grant: 0,
            code: 0,
        };
        self.out.push_frame(&mut self.guard, &header, &payload);
        Ok(())
    }

    fn flush(&mut self, more: bool) -> Result<(), LaneError> {
        self.link.send_all(self.out.held(), &[], more)?;
        self.out.clear();
        self.unanswered = 0;
        Ok(())
    }

    /// Makes room for a frame of `length` bytes.
    fn make_room(&mut self, length: usize) -> Result<(), LaneError> {
        if self.out.room() < length {
            self.flush(true)
        } else {
            Ok(())
        }
    }

    fn missing(&mut self, grant: &Grant, absent: &Absent) -> Result<(), LaneError> {
        let reason = &absent.reason.as_bytes()[..absent.reason.floor_char_boundary(REASON_MAX)];
        self.make_room(FRAME_MAX)?;
        let header = FrameHeader {
            kind: FrameKind::Missing,
            flags: 0,
            space: grant.space,
            length: reason.len() as u32,
            offset: 0,
            grant: grant.id,
            code: absent.code,
        };
        self.out.push_frame(&mut self.guard, &header, reason);
        Ok(())
    }

    /// Answers a grant with the hash of its bytes.
    fn digest(&mut self, provider: &dyn Provider, grant: &Grant) -> Result<(), LaneError> {
        let length = usize::try_from(grant.range.len()).unwrap_or(usize::MAX);
        self.unanswered = self.unanswered.saturating_add(length);
        // Reading may take its time: what waits leaves before.
        if self.unanswered > ANSWERS_EVERY {
            self.flush(false)?;
            self.unanswered = length;
        }
        self.make_room(FRAME_MAX)?;
        let (buffer, unlooked) = (&mut self.hashed, &mut self.unlooked);
        let mut read = || {
            if is_hole(provider, grant.space, grant.range) {
                return Ok(digest_of_zeros(length));
            }
            if buffer.len() < length {
                *buffer = vec![0; length].into();
            }
            let bytes = &mut buffer[..length];
            if length > 0 {
                provider.look(grant.space, grant.range.start, bytes)?;
            }
            *unlooked += length;
            Ok(digest(bytes))
        };
        let hash = match provider.hash(grant.space, grant.range, &mut read) {
            Ok(hash) => hash,
            Err(absent) => return self.missing(grant, &absent),
        };
        let header = FrameHeader {
            kind: FrameKind::Digest,
            flags: 0,
            space: grant.space,
            length: HASH_LEN as u32,
            offset: grant.range.start,
            grant: grant.id,
            code: 0,
        };
        self.out.push_frame(&mut self.guard, &header, &hash);
        Ok(())
    }

    /// Answers one grant.
    fn unit(&mut self, provider: &dyn Provider, grant: &Grant) -> Result<(), LaneError> {
        if grant.digest {
            return self.digest(provider, grant);
        }
        let mut hasher = grant.hash.then(Digester::default);
        let mut at = grant.range.start;
        loop {
            let left = Range::new(at, grant.range.end);
            let way = match self.way(provider, grant, left) {
                Ok(way) => way,
                Err(absent) => return self.missing(grant, &absent),
            };
            let length = match &way {
                Way::Memory(bytes) | Way::Sealed(bytes) => bytes.len(),
                Way::File { length, .. } | Way::Built(length) | Way::Zeros(length) => *length,
            };
            let last = length as u64 == left.len();
            let header = FrameHeader {
                kind: FrameKind::Data,
                flags: if last {
                    flags::LAST | if grant.hash { flags::HASH } else { 0 }
                } else {
                    0
                },
                space: grant.space,
                length: length as u32,
                offset: at,
                grant: grant.id,
                code: 0,
            };
            let mut has_left = true;
            match way {
                Way::Zeros(_) => {
                    self.zeros(provider, &header, hasher.as_mut())?;
                    has_left = false;
                }
                Way::Sealed(bytes) => self.sealed(&header, bytes, hasher.as_mut())?,
                Way::Built(length) => {
                    match self.built(provider, &header, length, hasher.as_mut())? {
                        Ok(left) => has_left = left,
                        Err(absent) => return self.missing(grant, &absent),
                    }
                }
                direct => self.direct(&header, direct, hasher.as_mut())?,
            }
            at += length as u64;
            self.unlooked += length;
            self.link.seen.frames += 1;
            if has_left {
                self.link.seen.payload += length as u64;
            }
            if last {
                if let Some(mut hasher) = hasher {
                    provider.hashed(grant.space, grant.range, &hasher.get());
                }
                self.link.seen.units += 1;
                return Ok(());
            }
            if self.unlooked >= LOOK_EVERY && self.look(Some(grant.id))? {
                return self.missing(grant, &cancelled());
            }
        }
    }

    /// Chooses how the next fragment of `left` leaves.
    fn way<'a>(
        &self,
        provider: &'a dyn Provider,
        grant: &Grant,
        left: Range,
    ) -> Result<Way<'a>, Absent> {
        let wanted = usize::try_from(left.len()).unwrap_or(usize::MAX);
        if is_hole(provider, grant.space, left) {
            return Ok(Way::Zeros(wanted));
        }
        let built = Way::Built(wanted.min(self.fragment_max));
        if wanted < DIRECT_MIN || provider.is_begun(grant.space, left) {
            return Ok(built);
        }
        let (is_sealed, computed) = match &self.guard {
            Guard::Sealed { .. } => (true, true),
            Guard::Plain(check) => (false, grant.hash || *check != Check::None),
        };
        let extent = match computed {
            true => provider.in_memory(grant.space, left)?,
            false => Some(provider.extent(grant.space, left)?),
        };
        let Some(extent) = extent else {
            return Ok(built);
        };
        let sends_files = !is_sealed && self.link.wire.sends_files();
        let extent = match extent {
            Extent::File {
                mapped: Some(bytes),
                ..
            } if !sends_files => Extent::Memory(bytes),
            extent => extent,
        };
        Ok(match extent {
            Extent::Memory(bytes) if bytes.len() >= DIRECT_MIN => {
                let bytes = &bytes[..bytes.len().min(wanted).min(self.fragment_max)];
                if are_zeros(bytes) {
                    return Ok(Way::Zeros(bytes.len()));
                }
                match is_sealed {
                    true => Way::Sealed(bytes),
                    false => Way::Memory(bytes),
                }
            }
            Extent::File {
                file,
                offset,
                length,
                mapped,
            } if sends_files && (mapped.is_some() || !computed) => {
                let mut length = usize::try_from(length).unwrap_or(usize::MAX).min(wanted);
                if computed {
                    length = length
                        .min(mapped.map_or(0, <[u8]>::len))
                        .min(self.fragment_max);
                }
                let seen = mapped.and_then(|bytes| bytes.get(..length));
                if length > 0 && seen.is_some_and(are_zeros) {
                    Way::Zeros(length)
                } else if length >= DIRECT_MIN {
                    Way::File {
                        file,
                        offset,
                        length,
                        mapped,
                    }
                } else {
                    built
                }
            }
            _ => built,
        })
    }

    /// Sends a fragment of a plain stream from where it lies.
    fn direct(
        &mut self,
        header: &FrameHeader,
        way: Way<'_>,
        hasher: Option<&mut Digester>,
    ) -> Result<(), LaneError> {
        let Guard::Plain(check) = self.guard else {
            return Ok(());
        };
        self.make_room(HEADER_LEN)?;
        let raw = header.encode();
        self.out.push(&raw);
        let mut sum = Sum::new(check);
        sum.update(&raw);
        let mut poison = 0;
        let compute = |bytes: &[u8]| {
            sum.update(bytes);
            let hash = hash_part(hasher, header, bytes);
            if let Some(hash) = &hash {
                sum.update(hash);
            }
            hash
        };
        let mut hash = None;
        match way {
            Way::Memory(bytes) => {
                hash = compute(bytes);
                self.link.send_all(self.out.held(), bytes, true)?;
            }
            Way::File {
                file,
                offset,
                length,
                mapped,
            } => {
                if let Some(mapped) = mapped.filter(|mapped| mapped.len() >= length) {
                    hash = compute(&mapped[..length]);
                }
                self.link.send_all(self.out.held(), &[], true)?;
                let mut sent = self.link.send_file(&file, offset, length)?;
                while sent < length {
                    // The file became shorter. What was announced must still come.
                    poison = POISON;
                    let part = ZEROS.len().min(length - sent);
                    self.link.send_all(&ZEROS[..part], &[], true)?;
                    sent += part;
                }
            }
            Way::Sealed(_) | Way::Built(_) | Way::Zeros(_) => {}
        }
        self.out.clear();
        if let Some(hash) = hash {
            self.out.push(&hash);
        }
        self.out.push(&(sum.trailer() ^ poison).to_le_bytes());
        Ok(())
    }

    /// Seals a fragment of a sealed stream from where it lies: one pass less than [`built`](Self::built).
    fn sealed(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8],
        hasher: Option<&mut Digester>,
    ) -> Result<(), LaneError> {
        let total = HEADER_LEN + body_len(header) + TAG_LEN;
        self.make_room(total)?;
        let Guard::Sealed { seal, .. } = &mut self.guard else {
            return Ok(());
        };
        let hash = hash_part(hasher, header, bytes);
        let frame = self.out.extend(total);
        let (head, record) = frame.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header.encode());
        seal.seal_from(head, bytes, hash.as_ref().map_or(&[], |hash| hash), record);
        if self.out.held().len() >= FLUSH_LEN {
            self.flush(true)?;
        }
        Ok(())
    }

    /// Says that the payload of a frame is zeros.
    fn zeros(
        &mut self,
        provider: &dyn Provider,
        header: &FrameHeader,
        hasher: Option<&mut Digester>,
    ) -> Result<(), LaneError> {
        let header = FrameHeader {
            flags: header.flags | flags::ZEROS,
            ..*header
        };
        let is_last = header.flags & flags::HASH != 0;
        let hash = hasher.and_then(|hasher| {
            hasher.zeros(header.length as usize, is_last);
            is_last.then(|| hasher.get())
        });
        let hash = hash.as_ref().map_or(&[][..], |hash| hash);
        self.make_room(HEADER_LEN + hash.len() + TAG_LEN)?;
        self.out.push_frame(&mut self.guard, &header, hash);
        provider.skipped(header.space, header.range());
        if self.out.held().len() >= FLUSH_LEN {
            self.flush(true)?;
        }
        Ok(())
    }

    /// Sends a fragment through the buffer. Whether its bytes left: zeros do not.
    fn built(
        &mut self,
        provider: &dyn Provider,
        header: &FrameHeader,
        length: usize,
        hasher: Option<&mut Digester>,
    ) -> Result<Result<bool, Absent>, LaneError> {
        let body = body_len(header);
        let total = HEADER_LEN + body + self.guard.trailer_len();
        self.make_room(total)?;
        let frame = self.out.extend(total);
        frame[..HEADER_LEN].copy_from_slice(&header.encode());
        let payload = &mut frame[HEADER_LEN..HEADER_LEN + length];
        if length > 0
            && let Err(absent) = provider.read(header.space, header.offset, payload)
        {
            self.out.retract(total);
            return Ok(Err(absent));
        }
        if length >= ZEROS_MIN && are_zeros(payload) {
            self.out.retract(total);
            self.zeros(provider, header, hasher)?;
            return Ok(Ok(false));
        }
        if let Some(hash) = hash_part(hasher, header, payload) {
            frame[HEADER_LEN + length..HEADER_LEN + body].copy_from_slice(&hash);
        }
        self.guard.close(frame);
        if self.out.held().len() >= FLUSH_LEN {
            self.flush(true)?;
        }
        Ok(Ok(true))
    }

    /// Whether nothing is owed and no frame is half read.
    fn at_rest(&self) -> bool {
        self.queue.is_empty() && self.ahead.held().is_empty() && self.out.held().is_empty()
    }
}

/// Hashes the payload of a frame; gives the unit's hash where the frame carries it, which is the unit's last one.
fn hash_part(
    hasher: Option<&mut Digester>,
    header: &FrameHeader,
    payload: &[u8],
) -> Option<[u8; HASH_LEN]> {
    let hasher = hasher?;
    let is_last = header.flags & flags::HASH != 0;
    hasher.part(payload, is_last);
    is_last.then(|| hasher.get())
}

fn cancelled() -> Absent {
    Absent {
        code: missing::CANCELLED,
        reason: "cancelled by the receiver".into(),
    }
}

impl<W: Wire> SendHalf for Sender<W> {
    fn serve(&mut self, provider: &dyn Provider, idle: Duration) -> Result<Served, LaneError> {
        let end = self.drive(provider, idle);
        Served::at_the_end(end, self.at_rest(), self.queue.len())
    }

    fn observe(&self) -> Observation {
        self.link.seen
    }

    fn stopper(&self) -> Stopper {
        self.link.stopper()
    }

    fn set_patience(&mut self, patience: Duration) {
        self.link.patience = patience;
    }

    fn set_fragment_max(&mut self, bytes: usize) {
        self.fragment_max = bytes.clamp(FRAGMENT_LEN_MIN, FRAGMENT_LEN);
    }
}
