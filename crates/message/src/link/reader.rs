//! The receiving half of a link.

use std::mem::MaybeUninit;

use crc_fast::Digest;
use ropewalk_model::Range;
use ropewalk_proto::message::frame::{
    ENTRIES_MAX, ENTRY_LEN, HEAD_LEN, HEADER_LEN, Header, Kind, TAKEN_BACK, TRAILER_LEN,
};
use rustix::net::{RecvFlags, recv};
use socket2::{MaybeUninitSlice, SockRef};

use super::{CHUNK, Frames, Landing, Link, LinkError, harmless, header_check};
use crate::memory::{Span, fill};
use crate::records::{Incoming, RECORD_LEN};

/// Bytes read ahead. Small messages come whole in one call; of a long fragment no more than this is copied twice.
const AHEAD_LEN: usize = 16 << 10;
/// Bytes taken beyond the end of a fragment: its trailer and the next header, so that the next fragment's
/// bytes go straight to their place.
const BEYOND: usize = TRAILER_LEN + HEAD_LEN;

/// A fragment on its way in.
pub(crate) struct Current {
    header: Header,
    landing: Landing,
    done: usize,
    sum: Option<Digest>,
    /// Bytes for a place that closed meanwhile were thrown away.
    lost: bool,
}

/// The receiving half.
pub(crate) struct Reader {
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    current: Option<Current>,
    /// The kernel had less than there was room for, the last time it was asked.
    short: bool,
    /// Reading has to wait for the peer, as far as is known without asking the kernel again.
    drained: bool,
    /// Where records are sealed.
    sealed: Option<Incoming>,
}

/// What one step of reading did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame was handled; more may be there.
    Frame,
    /// Nothing is there.
    Empty,
}

impl Link {
    /// Reads until one frame was handled or nothing is there. Does not wait.
    pub(crate) fn read(
        &self,
        reader: &mut Reader,
        frames: &impl Frames,
    ) -> Result<Step, LinkError> {
        let step = self.read_step(reader, frames)?;
        // A part of a frame may be held ahead when nothing more is there.
        reader.drained = step == Step::Empty || (reader.short && reader.start == reader.end);
        Ok(step)
    }

    fn read_step(&self, reader: &mut Reader, frames: &impl Frames) -> Result<Step, LinkError> {
        loop {
            if reader.current.is_none() {
                match self.begin(reader, frames)? {
                    Begun::Fragment => {}
                    Begun::Handled => return Ok(Step::Frame),
                    Begun::Missing => {
                        if !self.pull(reader)? {
                            return Ok(Step::Empty);
                        }
                        continue;
                    }
                }
            }
            let Some(current) = &mut reader.current else {
                return Ok(Step::Frame);
            };
            let length = current.header.length as usize;
            if current.done < length {
                let held = &reader.ahead[reader.start..reader.end];
                if held.is_empty() {
                    if !self.pull_into(reader)? {
                        return Ok(Step::Empty);
                    }
                    continue;
                }
                let count = held.len().min(length - current.done);
                current.land(self.number, &held[..count]);
                reader.start += count;
                continue;
            }
            if reader.end - reader.start < TRAILER_LEN {
                if !self.pull(reader)? {
                    return Ok(Step::Empty);
                }
                continue;
            }
            let trailer = reader.take_trailer();
            let Some(current) = reader.current.take() else {
                return Ok(Step::Frame);
            };
            let taken_back = trailer == TAKEN_BACK;
            if !taken_back && current.sum.is_some_and(|sum| sum.finalize() != trailer) {
                return Err(LinkError::Damaged);
            }
            let header = current.header;
            let (landing, arrived) = current.into_parts();
            frames.end(self, &header, landing, arrived && !taken_back)?;
            return Ok(Step::Frame);
        }
    }

    /// Begins the next fragment, or handles the next small frame.
    fn begin(&self, reader: &mut Reader, frames: &impl Frames) -> Result<Begun, LinkError> {
        let held = &reader.ahead[reader.start..reader.end];
        let Some(both) = held.first_chunk::<HEAD_LEN>() else {
            return Ok(Begun::Missing);
        };
        let (head, check) = both.split_at(HEADER_LEN);
        let mut sum = self.digest();
        if let Some(sum) = &mut sum {
            sum.update(head);
            if header_check(sum) != *check {
                return Err(LinkError::Damaged);
            }
        }
        let header = Header::decode(&std::array::from_fn(|at| head[at]))?;
        if header.kind == Kind::Data {
            let landing = frames.begin(self, &header)?;
            reader.start += HEAD_LEN;
            reader.current = Some(Current::new(header, landing, sum));
            return Ok(Begun::Fragment);
        }
        let end = HEAD_LEN + header.length as usize;
        let Some(frame) = held.get(..end + TRAILER_LEN) else {
            return Ok(Begun::Missing);
        };
        let payload = &frame[HEAD_LEN..end];
        let trailer = u64::from_le_bytes(std::array::from_fn(|at| frame[end + at]));
        if sum.is_some_and(|mut sum| {
            sum.update(payload);
            sum.finalize() != trailer
        }) {
            return Err(LinkError::Damaged);
        }
        frames.control(self, &header, payload)?;
        reader.start += end + TRAILER_LEN;
        Ok(Begun::Handled)
    }

    /// Reads ahead; `false` when nothing is there.
    fn pull(&self, reader: &mut Reader) -> Result<bool, LinkError> {
        const { assert!(AHEAD_LEN >= HEAD_LEN + ENTRIES_MAX * ENTRY_LEN + TRAILER_LEN) };
        reader.make_room();
        if let Some(incoming) = &mut reader.sealed {
            let room = &mut reader.ahead[reader.end..];
            let receive = |room: &mut [u8]| match recv(&self.socket, room, RecvFlags::empty()) {
                Ok((_, 0)) => Err(LinkError::Closed),
                Ok((_, count)) => Ok(Some(count)),
                Err(error) => Ok(harmless(error.into())?),
            };
            let got = incoming.open_next(room, receive)?;
            reader.end += got.unwrap_or(0);
            reader.short = incoming.is_drained();
            return Ok(got.is_some());
        }
        let room = &mut reader.ahead[reader.end..];
        let room_len = room.len();
        let count = match recv(&self.socket, room, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(LinkError::Closed),
            Ok((_, count)) => Some(count),
            Err(error) => harmless(error.into())?,
        };
        let got = count.unwrap_or(0);
        reader.short = got < room_len;
        reader.end += got;
        Ok(count.is_some())
    }

    /// Reads bytes of a fragment straight to their place; nothing is held ahead then.
    fn pull_into(&self, reader: &mut Reader) -> Result<bool, LinkError> {
        if reader.sealed.is_some() {
            // Opening a record copies it anyway, and nothing lands that is not proved.
            return self.pull(reader);
        }
        (reader.start, reader.end) = (0, 0);
        let Some(current) = &mut reader.current else {
            return Ok(true);
        };
        let left = current.header.length as usize - current.done;
        let ahead = &mut reader.ahead;
        let step = left.min(CHUNK);
        let beyond = if step == left { BEYOND } else { 0 };
        let receive = |[first, second]: &mut Span<'_>| {
            self.receive([&mut **first, &mut **second], &mut ahead[..beyond])
        };
        let Some(got) = current.fill(self.number, step, receive) else {
            let most = left.min(AHEAD_LEN);
            let count = self.receive([&mut [], &mut []], &mut reader.ahead[..most])?;
            if let Some(count) = count {
                current.throw_away(&reader.ahead[..count]);
            }
            return Ok(count.is_some());
        };
        let got = got?;
        let count = got.unwrap_or(0);
        reader.short = count < step + beyond;
        reader.end = count.saturating_sub(step);
        if got.is_none() {
            return Ok(false);
        }
        Ok(true)
    }

    /// Asks the kernel once for bytes of a span, then of `beyond`, and gives their number: all of these are written then.
    fn receive(&self, span: Span<'_>, beyond: &mut [u8]) -> Result<Option<usize>, LinkError> {
        let [first, second] = span;
        let beyond: *mut [u8] = beyond;
        // SAFETY: the memory is borrowed exclusively, and the kernel writes nothing but bytes that are initialised.
        let beyond = unsafe { &mut *(beyond as *mut [MaybeUninit<u8>]) };
        let mut slices = [first, second, beyond].map(MaybeUninitSlice::new);
        match SockRef::from(&self.socket).recv_vectored(&mut slices) {
            Ok((0, _)) => Err(LinkError::Closed),
            Ok((count, _)) => Ok(Some(count)),
            Err(error) => Ok(harmless(error)?),
        }
    }
}

/// What stands at the front of what was read.
enum Begun {
    Fragment,
    Handled,
    Missing,
}

impl Reader {
    pub(super) fn new(sealed: Option<Incoming>) -> Self {
        // A record has to fit behind what is left of the one before.
        let ahead_len = AHEAD_LEN + if sealed.is_some() { RECORD_LEN } else { 0 };
        Self {
            ahead: vec![0; ahead_len].into(),
            start: 0,
            end: 0,
            current: None,
            short: true,
            drained: true,
            sealed,
        }
    }

    /// Whether reading has to wait for the peer.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.ahead.len() || self.sealed.is_some() {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    fn take_trailer(&mut self) -> u64 {
        let at = self.start;
        self.start += TRAILER_LEN;
        u64::from_le_bytes(std::array::from_fn(|byte| self.ahead[at + byte]))
    }
}

impl Current {
    pub(crate) fn new(header: Header, landing: Landing, sum: Option<Digest>) -> Self {
        Self {
            header,
            landing,
            done: 0,
            sum,
            lost: false,
        }
    }

    /// Where the bytes went, and whether all got there.
    pub(crate) fn into_parts(self) -> (Landing, bool) {
        (self.landing, !self.lost)
    }

    fn range(&self, count: usize) -> Range {
        let start = self.header.range().start + self.done as u64;
        Range::new(start, start + count as u64)
    }

    /// Puts bytes that were read ahead where they belong.
    pub(crate) fn land(&mut self, link: u64, bytes: &[u8]) {
        let range = self.range(bytes.len());
        match &mut self.landing {
            Landing::Place(place) => {
                let copied =
                    place.with(link, self.header.fragment, range, |span| fill(span, bytes));
                self.lost |= copied.is_none();
            }
            Landing::Kept(kept) => kept.extend(bytes),
            Landing::Refused => self.lost = true,
            Landing::Nowhere => {}
        }
        self.count(bytes);
    }

    fn throw_away(&mut self, bytes: &[u8]) {
        self.lost |= !matches!(self.landing, Landing::Nowhere);
        self.count(bytes);
    }

    fn count(&mut self, bytes: &[u8]) {
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.done += bytes.len();
    }

    /// Lets `receive` fill the next `step` bytes in their place and whatever lies beyond; `None` when there is no
    /// place. Gives what was received, bytes beyond included: `receive` has written so many.
    fn fill(
        &mut self,
        link: u64,
        step: usize,
        receive: impl FnOnce(&mut Span<'_>) -> Result<Option<usize>, LinkError>,
    ) -> Option<Result<Option<usize>, LinkError>> {
        let range = self.range(step);
        let sum = &mut self.sum;
        let into = |mut span: Span<'_>| {
            let got = receive(&mut span);
            if let (Ok(Some(count)), Some(sum)) = (&got, sum) {
                let mut left = (*count).min(step);
                for part in &span {
                    let written = &part[..left.min(part.len())];
                    left -= written.len();
                    // SAFETY: `receive` has written the first `count` bytes of the span.
                    sum.update(unsafe { written.assume_init_ref() });
                }
            }
            got
        };
        let got = match &mut self.landing {
            Landing::Place(place) => place.with(link, self.header.fragment, range, into)?,
            Landing::Kept(kept) => {
                let got = into([kept.space(step), &mut []]);
                if let Ok(Some(count)) = got {
                    // SAFETY: `receive` has written so many bytes of the space, which has `step`.
                    unsafe { kept.filled(count.min(step)) };
                }
                got
            }
            Landing::Refused | Landing::Nowhere => return None,
        };
        if let Ok(Some(count)) = got {
            self.done += count.min(step);
        }
        Some(got)
    }
}
