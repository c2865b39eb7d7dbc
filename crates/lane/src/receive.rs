//! The receiving end: grants out, units in.
//!
//! A large fragment is received straight into the place it belongs; the same system call also takes
//! its trailer and the next header, so that framing costs no call of its own. Small units are read
//! many at a time.

mod payload;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use ropewalk_model::{Digester, ZEROS};
use ropewalk_proto::wire::{
    FrameHeader, FrameKind, HASH_LEN, HEADER_LEN, HELD_RANGE_LEN, HELD_RANGES_MAX, HeldRange,
    decode_held, flags,
};

use crate::checksum::Sum;
use crate::frame_io::{Ahead, Behind, FRAGMENT_LEN, FRAGMENT_LEN_MIN, Guard, REASON_MAX, body_len};
use crate::half::{
    Grant, Landing, Observation, ReceiveHalf, Received, Stopper, check_grants, payload_len, place,
    write,
};
use crate::wire::{Interest, Link, Wire};
use crate::{Check, LaneError, Protection};

/// Units below this are read many at a time into one buffer and copied from it; above, the copy
/// costs more than the system call it saves.
const SMALL_MAX: u64 = 32 << 10;
/// Bytes of the read-ahead buffer.
const AHEAD_LEN: usize = 128 << 10;
/// Bytes of an unchecked frame landed at once; they are in the cache when they are hashed or written.
pub(crate) const PIECE_LEN: usize = 256 << 10;
/// Bytes of grants collected before they are pushed to the connection.
const GRANTS_LEN: usize = 16 << 10;
/// Bytes the first wait for a header hopes for, and how long it does. On a path that brings fewer in
/// that time, waking once more per frame costs nothing that counts.
const HOPED_MAX: usize = 64 << 10;
const HOPE: Duration = Duration::from_millis(4);

/// A unit some of whose fragments have come.
struct Unit {
    grant: Grant,
    /// Offset of the next byte.
    at: u64,
    hasher: Option<Digester>,
    damage: Option<String>,
    /// How many of its bytes were zeros that were not sent.
    zeros: u64,
}

/// A data frame some of whose bytes have come.
struct Frame {
    header: FrameHeader,
    raw: [u8; HEADER_LEN],
    /// Payload bytes landed; whole pieces.
    landed: usize,
    /// Bytes of the current piece, or of the sealed record, that have come.
    filled: usize,
    sum: Sum,
}

pub(crate) struct Receiver<W> {
    link: Link<W>,
    guard: Guard,
    outstanding: VecDeque<Grant>,
    highest: Option<u32>,
    unit: Option<Unit>,
    frame: Option<Frame>,
    ahead: Ahead,
    scratch: Box<[u8]>,
    out: Behind,
    /// Of `out`, what the connection has taken.
    out_sent: usize,
    /// When the caller got its last answer.
    left: Instant,
    /// Longest payload of a frame that must wait in `scratch`.
    fragment_max: usize,
    /// Whether the next wait for a header is the first since the last frame.
    hopeful: bool,
}

impl<W: Wire> Receiver<W> {
    pub(crate) fn new(wire: W, protection: Protection) -> Result<Self, LaneError> {
        Ok(Self {
            link: Link::new(wire)?,
            guard: Guard::for_receiver(&protection),
            outstanding: VecDeque::new(),
            highest: None,
            unit: None,
            frame: None,
            ahead: Ahead::new(AHEAD_LEN),
            scratch: Box::default(),
            out: Behind::new(GRANTS_LEN),
            out_sent: 0,
            left: Instant::now(),
            fragment_max: FRAGMENT_LEN,
            hopeful: true,
        })
    }

    /// Pushes pending grants as far as the connection takes them.
    fn flush(&mut self) -> Result<(), LaneError> {
        while self.out_sent < self.out.held().len() {
            let Some(count) = self
                .link
                .send_some(&[IoSlice::new(&self.out.held()[self.out_sent..])], false)?
            else {
                return Ok(());
            };
            self.out_sent += count;
        }
        self.out.clear();
        self.out_sent = 0;
        Ok(())
    }

    fn push_frame(&mut self, header: &FrameHeader) -> Result<(), LaneError> {
        let length = HEADER_LEN + self.guard.trailer_len();
        let patience = self.link.patience;
        let begun = Instant::now();
        while self.out.room() < length {
            self.flush()?;
            if self.out.room() >= length {
                break;
            }
            // The sender does not read: it is busy sending, so the grants go out as it drains. The
            // buffer holds 400 of them on top of the socket's own, so this is rare.
            if begun.elapsed() >= patience {
                return Err(self.link.silent("it was to take grants"));
            }
            self.link.wait(
                Interest {
                    read: 0,
                    write: true,
                },
                begun + patience,
            )?;
        }
        self.out.push_frame(&mut self.guard, header, &[]);
        Ok(())
    }

    /// Waits for the next header. The first wait hopes for much of what is owed, so that the
    /// sender's first bytes wake nobody; a short answer, or a sender that pauses, costs it [`HOPE`] once.
    fn wait_for_header(&mut self, deadline: Instant) -> Result<bool, LaneError> {
        if !std::mem::take(&mut self.hopeful) {
            return self.wait(deadline, 1);
        }
        let mut owed = 0;
        for grant in &self.outstanding {
            owed += HEADER_LEN + grant.owed() as usize;
            if owed >= HOPED_MAX {
                break;
            }
        }
        let soon = Instant::now() + HOPE;
        let waited = self.wait(deadline.min(soon), owed.clamp(1, HOPED_MAX))?;
        Ok(waited || soon < deadline)
    }

    /// Waits for bytes, `certain` of which are sure to come, sending grants meanwhile. `false`
    /// when `deadline` has passed.
    fn wait(&mut self, deadline: Instant, certain: usize) -> Result<bool, LaneError> {
        self.flush()?;
        let now = Instant::now();
        if now >= deadline {
            return Ok(false);
        }
        let patient_until = self.link.moved + self.link.patience;
        let mut until = deadline;
        if !self.outstanding.is_empty() {
            if now >= patient_until {
                return Err(self.link.silent("units were owed"));
            }
            until = until.min(patient_until);
        }
        let write = !self.out.held().is_empty();
        self.link.wait(
            Interest {
                read: certain,
                write,
            },
            until,
        )?;
        Ok(true)
    }

    /// How much may be read beyond the end of a fragment that ends or does not end its unit.
    fn appetite(&self, ends_unit: bool) -> usize {
        let next = if ends_unit {
            self.outstanding.get(1)
        } else {
            self.outstanding.front()
        };
        match next {
            Some(grant) if !ends_unit || grant.owed() > SMALL_MAX => HEADER_LEN,
            _ => AHEAD_LEN,
        }
    }

    fn advance(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError> {
        loop {
            if self.frame.is_none() {
                let Some(raw) = self.ahead.header() else {
                    let large = self
                        .outstanding
                        .front()
                        .is_some_and(|grant| grant.owed() > SMALL_MAX);
                    let at_most = if large {
                        HEADER_LEN - self.ahead.held().len()
                    } else {
                        AHEAD_LEN
                    };
                    if self
                        .ahead
                        .pull(&mut self.link, HEADER_LEN, at_most)?
                        .is_none()
                        && !self.wait_for_header(deadline)?
                    {
                        return Ok(Received::Idle);
                    }
                    continue;
                };
                let header = FrameHeader::decode(&raw)?;
                match header.kind {
                    FrameKind::Data if header.flags & flags::ZEROS != 0 => {
                        if !self.zeros(&header, raw, landing, deadline)? {
                            return Ok(Received::Idle);
                        }
                        match self.end_of_frame() {
                            Some(received) => return Ok(received),
                            None => continue,
                        }
                    }
                    FrameKind::Data => self.begin(header, raw)?,
                    FrameKind::Missing => match self.missing(&header, deadline)? {
                        Some(received) => return Ok(received),
                        None => return Ok(Received::Idle),
                    },
                    FrameKind::Digest => match self.digest(&header, deadline)? {
                        Some(received) => return Ok(received),
                        None => return Ok(Received::Idle),
                    },
                    FrameKind::Held => match self.held(&header, deadline)? {
                        Some(ranges) => return Ok(Received::Held(ranges)),
                        None => return Ok(Received::Idle),
                    },
                    other => {
                        return Err(LaneError::Unexpected(format!(
                            "{other:?} frame where data was due"
                        )));
                    }
                }
            }
            let done = match self.guard {
                Guard::Plain(Check::None) => self.unchecked(landing, deadline)?,
                Guard::Plain(Check::Fragment) => self.checked(landing, deadline)?,
                Guard::Sealed { .. } => self.sealed(landing, deadline)?,
            };
            if !done {
                return Ok(Received::Idle);
            }
            if let Some(received) = self.end_of_frame() {
                return Ok(received);
            }
        }
    }

    /// Takes a data header that fits the grant it names.
    fn begin(&mut self, header: FrameHeader, raw: [u8; HEADER_LEN]) -> Result<(), LaneError> {
        self.admit(&header)?;
        // What is checked before it is landed must fit the buffer it waits in.
        let frame_fits = matches!(self.guard, Guard::Plain(Check::None))
            || header.length as usize <= self.fragment_max;
        if !frame_fits {
            return Err(LaneError::Unexpected(format!(
                "frame {header:?} is longer than {} bytes",
                self.fragment_max
            )));
        }
        self.ahead.take(HEADER_LEN);
        self.hopeful = true;
        let mut sum = Sum::new(match self.guard {
            Guard::Plain(check) => check,
            Guard::Sealed { .. } => Check::None,
        });
        sum.update(&raw);
        self.frame = Some(Frame {
            header,
            raw,
            landed: 0,
            filled: 0,
            sum,
        });
        Ok(())
    }

    /// Checks that a data header fits the grant it names, whose unit is under way from now on.
    fn admit(&mut self, header: &FrameHeader) -> Result<(), LaneError> {
        if self
            .unit
            .as_ref()
            .is_none_or(|unit| unit.grant.id != header.grant)
        {
            if let Some(unit) = &self.unit {
                let text = format!(
                    "data of grant {} inside the unit of grant {}",
                    header.grant, unit.grant.id
                );
                return Err(LaneError::Unexpected(text));
            }
            let grant = self.bring_to_front(header.grant)?;
            let hasher = grant.hash.then(Digester::default);
            self.unit = Some(Unit {
                grant,
                at: grant.range.start,
                hasher,
                damage: None,
                zeros: 0,
            });
        }
        let unit = self.unit.as_ref().expect("set above when it was not");
        if unit.grant.digest {
            return Err(LaneError::Unexpected(format!(
                "bytes in answer to grant {}, which asked for their hash",
                header.grant
            )));
        }
        let range = header.range();
        let last = header.flags & flags::LAST != 0;
        let hashed = header.flags & flags::HASH != 0;
        let fits = header.space == unit.grant.space
            && range.start == unit.at
            && range.end <= unit.grant.range.end
            && last == (range.end == unit.grant.range.end)
            && hashed == (last && unit.grant.hash)
            && (last || !range.is_empty());
        if !fits {
            return Err(LaneError::Unexpected(format!(
                "frame {header:?} does not answer {:?} from byte {}",
                unit.grant, unit.at
            )));
        }
        Ok(())
    }

    /// Takes a data frame whose payload is zeros. `false` when the deadline came first.
    fn zeros(
        &mut self,
        header: &FrameHeader,
        raw: [u8; HEADER_LEN],
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<bool, LaneError> {
        self.admit(header)?;
        let Some(frame_len) = self.short_frame(header, deadline)? else {
            return Ok(false);
        };
        let theirs = self.guard.open(self.ahead.take(frame_len))?;
        let unit = self.unit.as_mut().expect("admitted above");
        let (offset, len) = (header.offset, header.length as usize);
        if let Some(hasher) = &mut unit.hasher {
            hasher.zeros(len, header.flags & flags::LAST != 0);
        }
        payload::compare_hash(unit, theirs);
        unit.zeros += len as u64;
        match place(landing, header.space, offset, len) {
            Some(place) => place.fill(0),
            None if len == 0 => {}
            None => write(landing, header.space, offset, &ZEROS[..len])?,
        }
        self.hopeful = true;
        self.frame = Some(Frame {
            header: *header,
            raw,
            landed: len,
            filled: 0,
            sum: Sum::new(Check::None),
        });
        Ok(true)
    }

    /// Finds an outstanding grant and moves it to the front, where the unit under way stands.
    fn bring_to_front(&mut self, id: u32) -> Result<Grant, LaneError> {
        let index = self
            .outstanding
            .iter()
            .position(|grant| grant.id == id)
            .ok_or_else(|| {
                LaneError::Unexpected(format!("an answer to grant {id}, which is not outstanding"))
            })?;
        let grant = self.outstanding[index];
        if index != 0 {
            self.outstanding.remove(index);
            self.outstanding.push_front(grant);
        }
        Ok(grant)
    }

    /// Counts a finished frame; gives the unit's end when this was its last frame.
    fn end_of_frame(&mut self) -> Option<Received> {
        let header = self.frame.take()?.header;
        let unit = self.unit.as_mut()?;
        unit.at += u64::from(header.length);
        self.link.seen.frames += 1;
        if header.flags & flags::ZEROS == 0 {
            self.link.seen.payload += u64::from(header.length);
        }
        if header.flags & flags::LAST == 0 {
            return None;
        }
        let unit = self.unit.take()?;
        self.outstanding.pop_front();
        self.link.seen.units += 1;
        if let Some(reason) = unit.damage {
            self.link.seen.corrupt += 1;
            return Some(Received::Corrupt {
                grant: unit.grant,
                reason,
            });
        }
        let digest = unit.hasher.map(|mut hasher| hasher.get());
        Some(Received::Unit {
            grant: unit.grant,
            digest,
            zeros: unit.zeros,
        })
    }

    /// Waits until a short frame is held whole; its length. `None` when the deadline came first.
    fn short_frame(
        &mut self,
        header: &FrameHeader,
        deadline: Instant,
    ) -> Result<Option<usize>, LaneError> {
        let length = HEADER_LEN + body_len(header) + self.guard.trailer_len();
        while self.ahead.held().len() < length {
            let missing = length - self.ahead.held().len();
            if self.ahead.pull(&mut self.link, missing, missing)?.is_none()
                && !self.wait(deadline, missing)?
            {
                return Ok(None);
            }
        }
        Ok(Some(length))
    }

    /// Takes a DIGEST frame. `None` when the deadline came first.
    fn digest(
        &mut self,
        header: &FrameHeader,
        deadline: Instant,
    ) -> Result<Option<Received>, LaneError> {
        if header.length as usize != HASH_LEN {
            return Err(LaneError::Unexpected(format!(
                "a hash of {} bytes, {HASH_LEN} were due",
                header.length
            )));
        }
        let Some(length) = self.short_frame(header, deadline)? else {
            return Ok(None);
        };
        let mut digest = [0; HASH_LEN];
        digest.copy_from_slice(self.guard.open(self.ahead.take(length))?);
        let asked = |grant: &Grant| {
            grant.id == header.grant && grant.digest && grant.range.start == header.offset
        };
        let index = self.outstanding.iter().position(asked);
        match index.and_then(|index| self.outstanding.remove(index)) {
            Some(grant) => Ok(Some(Received::Digest { grant, digest })),
            None => Err(LaneError::Unexpected(format!(
                "a hash in answer to grant {}, which did not ask for one",
                header.grant
            ))),
        }
    }

    /// Takes a HELD frame. `None` when the deadline came first.
    fn held(
        &mut self,
        header: &FrameHeader,
        deadline: Instant,
    ) -> Result<Option<Vec<HeldRange>>, LaneError> {
        if header.length as usize > HELD_RANGES_MAX * HELD_RANGE_LEN {
            return Err(LaneError::Unexpected(format!(
                "{} bytes of ranges, more than {HELD_RANGES_MAX} ranges have",
                header.length
            )));
        }
        let Some(length) = self.short_frame(header, deadline)? else {
            return Ok(None);
        };
        let ranges = decode_held(self.guard.open(self.ahead.take(length))?);
        let wrong = || LaneError::Unexpected("ranges that are none".into());
        ranges.map(Some).ok_or_else(wrong)
    }

    /// Takes a MISSING frame. `None` when the deadline came first.
    fn missing(
        &mut self,
        header: &FrameHeader,
        deadline: Instant,
    ) -> Result<Option<Received>, LaneError> {
        if header.length as usize > REASON_MAX {
            return Err(LaneError::Unexpected(format!(
                "a reason of {} bytes, more than {REASON_MAX}",
                header.length
            )));
        }
        let Some(length) = self.short_frame(header, deadline)? else {
            return Ok(None);
        };
        let reason =
            String::from_utf8_lossy(self.guard.open(self.ahead.take(length))?).into_owned();
        if let Some(unit) = self.unit.take_if(|unit| unit.grant.id == header.grant) {
            self.outstanding.pop_front();
            return Ok(Some(Received::Missing {
                grant: unit.grant,
                code: header.code,
                reason,
            }));
        }
        // A unit under way keeps the front of the queue.
        let index = self
            .outstanding
            .iter()
            .position(|grant| grant.id == header.grant);
        match index.and_then(|index| self.outstanding.remove(index)) {
            Some(grant) => Ok(Some(Received::Missing {
                grant,
                code: header.code,
                reason,
            })),
            None => Err(LaneError::Unexpected(format!(
                "grant {} is reported missing but not outstanding",
                header.grant
            ))),
        }
    }

    fn frame_for(kind: FrameKind, grant: &Grant) -> Result<FrameHeader, LaneError> {
        let length = payload_len(grant)?;
        Ok(FrameHeader {
            kind,
            flags: if grant.hash { flags::HASH } else { 0 }
                | if grant.digest { flags::DIGEST } else { 0 },
            space: grant.space,
            length,
            offset: grant.range.start,
            grant: grant.id,
            code: 0,
        })
    }
}

impl<W: Wire> ReceiveHalf for Receiver<W> {
    fn grant(&mut self, grants: &[Grant]) -> Result<(), LaneError> {
        check_grants(&self.outstanding, self.highest, grants)?;
        if self.outstanding.is_empty() {
            self.link.moved = Instant::now();
        }
        for grant in grants {
            let header = Self::frame_for(FrameKind::Grant, grant)?;
            self.push_frame(&header)?;
            self.outstanding.push_back(*grant);
            self.highest = self.highest.max(Some(grant.id));
        }
        self.flush()
    }

    fn cancel(&mut self, ids: &[u32]) -> Result<(), LaneError> {
        for id in ids {
            if let Some(grant) = self.outstanding.iter().find(|grant| grant.id == *id) {
                let header = Self::frame_for(FrameKind::Cancel, grant)?;
                self.push_frame(&header)?;
            }
        }
        self.flush()
    }

    fn receive(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<Received, LaneError> {
        // Time the caller spent elsewhere is not the peer's silence.
        self.link.moved = (self.link.moved + self.left.elapsed()).min(Instant::now());
        let result = self.advance(landing, deadline);
        self.left = Instant::now();
        result.map_err(|error| error.owing(self.outstanding.len()))
    }

    fn outstanding(&self) -> Vec<Grant> {
        self.outstanding.iter().copied().collect()
    }

    fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
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
