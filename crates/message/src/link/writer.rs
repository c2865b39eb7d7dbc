//! The sending half of a link.

use std::io::{self, IoSlice};
use std::time::Instant;

use crc_fast::Digest;
use ropewalk_lane::seal::Records;
use ropewalk_proto::message::frame::{HEAD_LEN, Header, TAKEN_BACK, TRAILER_LEN};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::{CHUNK, Link, LinkError, SLICE, harmless, head_of, poll_for};
use crate::memory::Source;
use crate::records::{RECORD_LEN, seal};

/// Acknowledgements that wait because the peer reads nothing; beyond this they stay in the status vector.
const UNSENT_MAX: usize = 64 << 10;
/// Sent in place of bytes that were taken back.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The sending half: what a caller could not wait for, or an acknowledgement that found the kernel full.
pub(crate) struct Writer {
    unsent: Vec<u8>,
    /// Bytes of `unsent` that are sent.
    flushed: usize,
    /// Where records are sealed: frames go through `unsent` as records.
    sealed: Option<Records>,
}

impl Writer {
    pub(super) fn new(sealed: Option<Records>) -> Self {
        Self {
            unsent: Vec::new(),
            flushed: 0,
            sealed,
        }
    }

    /// Adds bytes to what waits to be sent, sealed where that is asked for.
    fn push(&mut self, parts: &[&[u8]]) {
        match &mut self.sealed {
            Some(records) => seal(&mut self.unsent, records, parts),
            None => parts
                .iter()
                .for_each(|part| self.unsent.extend_from_slice(part)),
        }
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.unsent.is_empty()
    }

    /// All of it is sent. What a long fragment took is given back.
    fn clear(&mut self) {
        self.flushed = 0;
        self.unsent.clear();
        self.unsent.shrink_to(2 * UNSENT_MAX);
    }

    /// Whether another small frame may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.unsent.len() - self.flushed <= UNSENT_MAX
    }
}

impl Link {
    fn send_some(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut none = SendAncillaryBuffer::default();
        match sendmsg(&self.socket, slices, &mut none, SendFlags::NOSIGNAL) {
            Ok(count) => Ok(Some(count)),
            Err(error) => harmless(error.into()),
        }
    }

    fn wait_writable(&self, until: Option<Instant>) -> Result<(), LinkError> {
        let wait = until.map_or(SLICE, |until| {
            SLICE.min(until.saturating_duration_since(Instant::now()))
        });
        poll_for(&mut [PollFd::new(&self.socket, PollFlags::OUT)], wait)?;
        if self.is_dead() {
            return Err(LinkError::Closed);
        }
        Ok(())
    }

    /// Sends what waits. With `wait`, all of it; else what the kernel takes, and the sending thread is nudged.
    pub(crate) fn flush(&self, writer: &mut Writer, wait: bool) -> Result<(), LinkError> {
        while !writer.unsent.is_empty() {
            match self.send_some(&[IoSlice::new(&writer.unsent[writer.flushed..])])? {
                Some(count) if writer.flushed + count == writer.unsent.len() => writer.clear(),
                Some(count) => writer.flushed += count,
                None if wait => self.wait_writable(None)?,
                None => {
                    self.nudge();
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends what waits, until then at the latest; one attempt is made in any case.
    pub(crate) fn flush_until(
        &self,
        writer: &mut Writer,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        loop {
            self.flush(writer, false)?;
            let late = || until.is_some_and(|until| Instant::now() >= until);
            if writer.is_clear() || late() {
                return Ok(());
            }
            self.wait_writable(until)?;
        }
    }

    /// Sends a frame that is small and not data, without waiting. `false` when too much waits already.
    pub(crate) fn send_control(
        &self,
        writer: &mut Writer,
        header: &Header,
        payload: &[u8],
    ) -> Result<bool, LinkError> {
        if !writer.has_room() {
            return Ok(false);
        }
        let (head, sum) = head_of(header, self.digest());
        let trailer = sum.map_or(0, |mut sum| {
            sum.update(payload);
            sum.finalize()
        });
        writer.push(&[&head, payload, &trailer.to_le_bytes()]);
        self.flush(writer, false)?;
        Ok(true)
    }

    /// Sends a fragment from where it lies. At `until` the rest is copied for the sending thread to finish, so that
    /// the caller may go; bytes that were taken back are sent as zeros and marked.
    pub(crate) fn send_fragment(
        &self,
        writer: &mut Writer,
        header: &Header,
        source: &Source,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        self.flush(writer, true)?;
        let mut frame = Outgoing::new(header, self.digest());
        let is_sealed = writer.sealed.is_some();
        while !frame.is_sent() {
            // What the kernel takes at once is sent in any case.
            let late = frame.done > 0 || frame.blocked;
            let late = late && until.is_some_and(|until| Instant::now() >= until);
            let most = match (is_sealed, late) {
                (true, _) => RECORD_LEN - HEAD_LEN - TRAILER_LEN,
                (false, true) => usize::MAX,
                (false, false) => CHUNK,
            };
            let mut attempt = |parts: [&[u8]; 3]| {
                if !late && !is_sealed {
                    return self.send_some(&parts.map(IoSlice::new));
                }
                writer.push(&parts);
                Ok(Some(parts.iter().map(|part| part.len()).sum()))
            };
            let mut trailer = [0; TRAILER_LEN];
            let sent = if frame.needs_bytes() {
                let sent = source.with(header.range(), |bytes| {
                    attempt(frame.parts(bytes, most, &mut trailer))
                });
                let Some(sent) = sent else {
                    frame.taken_back = true;
                    continue;
                };
                sent
            } else {
                attempt(frame.parts(&[], most, &mut trailer))
            };
            match sent? {
                Some(count) => frame.done += count,
                None => {
                    frame.blocked = true;
                    self.wait_writable(until)?;
                }
            }
            if is_sealed && !late && (frame.is_sent() || writer.unsent.len() >= CHUNK) {
                self.flush_until(writer, until)?;
            }
        }
        if !writer.is_clear() {
            self.nudge();
        }
        Ok(())
    }
}

/// A fragment on its way out.
struct Outgoing {
    head: [u8; HEAD_LEN],
    length: usize,
    sum: Option<Digest>,
    /// Bytes of payload in `sum`.
    summed: usize,
    /// Bytes of header, payload and trailer sent.
    done: usize,
    taken_back: bool,
    /// The kernel had no room.
    blocked: bool,
}

impl Outgoing {
    fn new(header: &Header, sum: Option<Digest>) -> Self {
        let (head, sum) = head_of(header, sum);
        Self {
            head,
            length: header.length as usize,
            sum,
            summed: 0,
            done: 0,
            taken_back: false,
            blocked: false,
        }
    }

    fn is_sent(&self) -> bool {
        self.done == HEAD_LEN + self.length + TRAILER_LEN
    }

    fn needs_bytes(&self) -> bool {
        !self.taken_back && self.done < HEAD_LEN + self.length && self.length > 0
    }

    /// What is to be sent next, at most so many bytes of payload. `bytes` is the whole payload while
    /// [`needs_bytes`](Self::needs_bytes), else it is not looked at.
    fn parts<'a>(
        &'a mut self,
        bytes: &'a [u8],
        most: usize,
        trailer: &'a mut [u8; TRAILER_LEN],
    ) -> [&'a [u8]; 3] {
        let from = self.done.saturating_sub(HEAD_LEN).min(self.length);
        let to = from.saturating_add(most).min(self.length);
        let body = if self.needs_bytes() {
            if let Some(sum) = &mut self.sum
                && self.summed < to
            {
                sum.update(&bytes[self.summed..to]);
                self.summed = to;
            }
            &bytes[from..to]
        } else {
            &ZEROS[..(to - from).min(ZEROS.len())]
        };
        let mut tail: &[u8] = &[];
        if from + body.len() == self.length {
            let sum = self.sum.as_ref().map_or(0, Digest::finalize);
            let value = if self.taken_back { TAKEN_BACK } else { sum };
            *trailer = value.to_le_bytes();
            tail = &trailer[self.done.saturating_sub(HEAD_LEN + self.length)..];
        }
        [&self.head[self.done.min(HEAD_LEN)..], body, tail]
    }
}
