//! The payload of a data frame on its way to the landing: unchecked, checked, or sealed.

use std::io::IoSliceMut;
use std::time::Instant;

use ropewalk_proto::wire::{CHECKSUM_LEN, FrameHeader, HASH_LEN, TAG_LEN, flags};

use super::{Frame, PIECE_LEN, Receiver, Unit};
use crate::LaneError;
use crate::frame_io::{Ahead, FRAGMENT_LEN, Guard, body_len};
use crate::half::{Landing, place, write};
use crate::wire::{Link, Wire};

impl<W: Wire> Receiver<W> {
    /// Receives the rest of a frame without checksum, each piece straight to where it belongs.
    /// `false` when the deadline came first.
    pub(super) fn unchecked(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<bool, LaneError> {
        let Some(mut frame) = self.frame.take() else {
            return Ok(true);
        };
        let length = frame.header.length as usize;
        let ends_unit = frame.header.flags & flags::LAST != 0;
        let tail = body_len(&frame.header) - length + CHECKSUM_LEN;
        let space = frame.header.space;
        while frame.landed < length {
            let piece = PIECE_LEN.min(self.fragment_max).min(length - frame.landed);
            let offset = frame.header.offset + frame.landed as u64;
            let whole = frame.filled == 0 && self.ahead.held().len() >= piece;
            let ends_frame = frame.landed + piece == length;
            let is_last = ends_unit && ends_frame;
            let beyond = if ends_frame {
                tail + self.appetite(ends_unit)
            } else {
                0
            };
            let mut place = place(landing, space, offset, piece);
            if whole && place.is_none() {
                let bytes: &[u8] = self.ahead.take(piece);
                hash(self.unit.as_mut(), bytes, is_last);
                write(landing, space, offset, bytes)?;
            } else {
                let into = match &mut place {
                    Some(place) => &mut **place,
                    None => &mut scratch(&mut self.scratch)[..piece],
                };
                if !fill(
                    &mut self.link,
                    &mut self.ahead,
                    into,
                    &mut frame.filled,
                    beyond,
                )? {
                    let certain = length - frame.landed - frame.filled + tail;
                    self.frame = Some(frame);
                    if !self.wait(deadline, certain)? {
                        return Ok(false);
                    }
                    let Some(again) = self.frame.take() else {
                        return Ok(true);
                    };
                    frame = again;
                    continue;
                }
                frame.filled = 0;
                hash(self.unit.as_mut(), into, is_last);
                if place.is_none() {
                    write(landing, space, offset, &self.scratch[..piece])?;
                }
            }
            frame.landed += piece;
        }
        if !self.follow(tail, ends_unit, deadline)? {
            self.frame = Some(frame);
            return Ok(false);
        }
        let (hash_bytes, trailer) = self.ahead.take(tail).split_at(tail - CHECKSUM_LEN);
        let unit = self
            .unit
            .as_mut()
            .expect("a frame is taken only for a unit");
        if *trailer != frame.sum.trailer().to_le_bytes() {
            unit.damage.get_or_insert_with(|| damage(&frame.header));
        }
        compare_hash(unit, hash_bytes);
        self.frame = Some(frame);
        Ok(true)
    }

    /// Receives the rest of a frame with a checksum. Bytes that fail it are never handed to
    /// [`Landing::write`], where a good copy from another stream may lie already; only memory that
    /// the landing offers sees bytes before they are checked. `false` when the deadline came first.
    pub(super) fn checked(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<bool, LaneError> {
        let Some(mut frame) = self.frame.take() else {
            return Ok(true);
        };
        let length = frame.header.length as usize;
        let ends_unit = frame.header.flags & flags::LAST != 0;
        let tail = body_len(&frame.header) - length + CHECKSUM_LEN;
        let (space, offset) = (frame.header.space, frame.header.offset);
        // A small frame that has come in one piece with others is checked where it lies.
        let whole = frame.filled == 0 && self.ahead.held().len() >= length + tail;
        while !whole && frame.filled < length {
            let beyond = tail + self.appetite(ends_unit);
            let into = match place(landing, space, offset, length) {
                Some(place) => place,
                None => &mut scratch(&mut self.scratch)[..length],
            };
            if !fill(
                &mut self.link,
                &mut self.ahead,
                into,
                &mut frame.filled,
                beyond,
            )? {
                let certain = length - frame.filled + tail;
                self.frame = Some(frame);
                if !self.wait(deadline, certain)? {
                    return Ok(false);
                }
                let Some(again) = self.frame.take() else {
                    return Ok(true);
                };
                frame = again;
            }
        }
        if !whole && !self.follow(tail, ends_unit, deadline)? {
            self.frame = Some(frame);
            return Ok(false);
        }
        let taken = self.ahead.take(if whole { length + tail } else { tail });
        let (front, trailer) = taken.split_at(taken.len() - CHECKSUM_LEN);
        let (inside, hash_bytes) = front.split_at(if whole { length } else { 0 });
        let unit = self
            .unit
            .as_mut()
            .expect("a frame is taken only for a unit");
        let Frame { header, sum, .. } = &mut frame;
        let mut passes = |bytes: &[u8]| {
            sum.update(bytes);
            sum.update(hash_bytes);
            if *trailer != sum.trailer().to_le_bytes() {
                unit.damage.get_or_insert_with(|| damage(header));
                return false;
            }
            hash(Some(unit), bytes, ends_unit);
            compare_hash(unit, hash_bytes);
            true
        };
        match place(landing, space, offset, length) {
            Some(place) if whole => {
                if passes(inside) {
                    place.copy_from_slice(inside);
                }
            }
            Some(place) => {
                passes(place);
            }
            None => {
                let bytes: &[u8] = if whole {
                    inside
                } else {
                    &scratch(&mut self.scratch)[..length]
                };
                if passes(bytes) && length > 0 {
                    write(landing, space, offset, bytes)?;
                }
            }
        }
        self.frame = Some(frame);
        Ok(true)
    }

    /// Waits until what follows a payload is held. `false` when the deadline came first.
    fn follow(
        &mut self,
        tail: usize,
        ends_unit: bool,
        deadline: Instant,
    ) -> Result<bool, LaneError> {
        while self.ahead.held().len() < tail {
            let missing = tail - self.ahead.held().len();
            let appetite = self.appetite(ends_unit);
            if self
                .ahead
                .pull(&mut self.link, missing, missing + appetite)?
                .is_none()
                && !self.wait(deadline, missing)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives the rest of a sealed record and opens it. `false` when the deadline came first.
    pub(super) fn sealed(
        &mut self,
        landing: &mut dyn Landing,
        deadline: Instant,
    ) -> Result<bool, LaneError> {
        let Some(mut frame) = self.frame.take() else {
            return Ok(true);
        };
        let length = frame.header.length as usize;
        let body = body_len(&frame.header);
        let record = body + TAG_LEN;
        let ends_unit = frame.header.flags & flags::LAST != 0;
        let whole = frame.filled == 0 && self.ahead.held().len() >= record;
        let beyond = self.appetite(ends_unit);
        while !(whole || self.pull_record(&mut frame, record, beyond)?) {
            if !self.wait(deadline, record - frame.filled)? {
                self.frame = Some(frame);
                return Ok(false);
            }
        }
        let record = if whole {
            self.ahead.take(record)
        } else {
            &mut self.scratch[..record]
        };
        let (space, offset) = (frame.header.space, frame.header.offset);
        let Guard::Sealed { open, .. } = &mut self.guard else {
            return Ok(true);
        };
        let unit = self
            .unit
            .as_mut()
            .expect("a frame is taken only for a unit");
        let mut place = place(landing, space, offset, length);
        if let (Some(place), true) = (&mut place, body == length) {
            let (sealed, tag) = record.split_at(length);
            open.open_into(&frame.raw, sealed, tag, place)?;
            hash(Some(unit), place, ends_unit);
        } else {
            open.open(&frame.raw, record)?;
            let payload = &record[..length];
            hash(Some(unit), payload, ends_unit);
            match place {
                Some(place) => place.copy_from_slice(payload),
                None if length == 0 => {}
                None => write(landing, space, offset, payload)?,
            }
            compare_hash(unit, &record[length..body]);
        }
        self.frame = Some(frame);
        Ok(true)
    }

    /// Receives more of a record into the scratch buffer. `true` when it is whole.
    fn pull_record(
        &mut self,
        frame: &mut Frame,
        record: usize,
        beyond: usize,
    ) -> Result<bool, LaneError> {
        let into = &mut scratch(&mut self.scratch)[..record];
        fill(
            &mut self.link,
            &mut self.ahead,
            into,
            &mut frame.filled,
            beyond,
        )
    }
}

/// The scratch buffer, made when first needed: a landing with buffers never needs it.
fn scratch(scratch: &mut Box<[u8]>) -> &mut [u8] {
    if scratch.is_empty() {
        *scratch = vec![0; FRAGMENT_LEN + HASH_LEN + TAG_LEN].into();
    }
    scratch
}

/// Fills `into` from where `filled` says, taking up to `beyond` further bytes along. `false` when
/// nothing more is there.
fn fill<W: Wire>(
    link: &mut Link<W>,
    ahead: &mut Ahead,
    into: &mut [u8],
    filled: &mut usize,
    beyond: usize,
) -> Result<bool, LaneError> {
    *filled += ahead.drain_into(&mut into[*filled..]);
    while *filled < into.len() {
        let wanted = into.len() - *filled;
        let rest = &mut into[*filled..];
        let got = if beyond == 0 {
            link.receive(&mut [IoSliceMut::new(rest)])?
        } else {
            // Nothing is held here, or it would have been drained first.
            link.receive(&mut [
                IoSliceMut::new(rest),
                IoSliceMut::new(ahead.room(0, beyond)),
            ])?
        };
        let Some(got) = got else { return Ok(false) };
        *filled += got.min(wanted);
        ahead.filled(got.saturating_sub(wanted));
    }
    Ok(true)
}

fn hash(unit: Option<&mut Unit>, bytes: &[u8], is_last: bool) {
    if let Some(hasher) = unit.and_then(|unit| unit.hasher.as_mut()) {
        hasher.part(bytes, is_last);
    }
}

fn damage(header: &FrameHeader) -> String {
    format!(
        "the checksum of {} bytes at {} is wrong",
        header.length, header.offset
    )
}

pub(super) fn compare_hash(unit: &mut Unit, theirs: &[u8]) {
    if let (Some(hasher), false) = (&mut unit.hasher, theirs.is_empty())
        && hasher.get() != theirs
    {
        unit.damage
            .get_or_insert_with(|| "the unit's hash differs from the sender's".into());
    }
}
