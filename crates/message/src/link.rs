//! One connection of a rail: whole frames out, whole frames in, never waiting but in `poll`.
//!
//! Whoever holds [`Link::writer`] may send, whoever holds [`Link::reader`] may receive: a rail's own threads, or
//! callers, who save the hand-over between threads. Neither lock is waited for by a thread that holds the
//! session's state.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, Digest};
use parking_lot::Mutex;
use ropewalk_lane::TcpInfo;
use ropewalk_lane::seal::Records;
use ropewalk_model::Range;
use ropewalk_proto::message::frame::{
    ENTRIES_MAX, ENTRY_LEN, HEAD_LEN, HEADER_LEN, Header, HeaderError, Kind, TAKEN_BACK,
    TRAILER_LEN,
};
use ropewalk_proto::message::{Broken, RailId, Seen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, sendmsg,
};
use socket2::SockRef;

use crate::handshake::LinkKeys;
use crate::memory::{Kept, Place, Source};
use crate::records::{Incoming, RECORD_LEN, seal};

/// Bytes read ahead. Small messages come whole in one call; of a long fragment no more than this is copied twice.
const AHEAD_LEN: usize = 16 << 10;
/// Bytes taken beyond the end of a fragment: its trailer and the next header, so that the next fragment's
/// bytes go straight to their place.
const BEYOND: usize = TRAILER_LEN + HEAD_LEN;
/// Bytes summed and given to the kernel at once: they are still in the cache when it copies them.
const CHUNK: usize = 256 << 10;
/// Bytes the kernel may hold unsent. They are lost to other rails when this one slows down.
const NOTSENT_MAX: u32 = 256 << 10;
/// The kernel's own limit for unacknowledged bytes; the health of the rail is judged sooner.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);
/// Acknowledgements that wait because the peer reads nothing; beyond this they stay in the status vector.
const UNSENT_MAX: usize = 64 << 10;
/// Longest wait in one piece, so that a thread sees what is asked of it.
pub(crate) const SLICE: Duration = Duration::from_millis(50);
/// Sent in place of bytes that were taken back.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a link carries nothing more. Its rail is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("a frame was damaged on the way")]
    Damaged,
    #[error("a sealed record was forged, or damaged on the way")]
    Forged,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("nothing has moved for a while, though the peer owes acknowledgements")]
    Silent,
    #[error("this host has lost the address {0}, or its interface the link")]
    Interface(IpAddr),
    #[error("a thread of the connection panicked")]
    Panicked,
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// What a link gives the session: called by whoever reads.
pub(crate) trait Frames {
    /// A fragment begins.
    fn begin(&self, link: &Link, header: &Header) -> Result<Landing, LinkError>;
    /// A fragment has come; `good` unless the sender took it back.
    fn end(
        &self,
        link: &Link,
        header: &Header,
        landing: Landing,
        good: bool,
    ) -> Result<(), LinkError>;
    /// Any other frame.
    fn control(&self, link: &Link, header: &Header, payload: &[u8]) -> Result<(), LinkError>;
}

/// Where the bytes of a fragment go.
pub(crate) enum Landing {
    /// The memory of a waiting caller.
    Place(Arc<Place>),
    /// Kept until somebody asks for the message.
    Kept(Kept),
    /// There is no room: it has to come again.
    Refused,
    /// Thrown away.
    Nowhere,
}

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

/// The sending half: what a caller could not wait for, or an acknowledgement that found the kernel full.
pub(crate) struct Writer {
    unsent: Vec<u8>,
    /// Bytes of `unsent` that are sent.
    flushed: usize,
    /// Where records are sealed: frames go through `unsent` as records.
    sealed: Option<Records>,
}

impl Writer {
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

/// What one step of reading did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame was handled; more may be there.
    Frame,
    /// Nothing is there.
    Empty,
}

pub(crate) struct Link {
    pub(crate) rail: RailId,
    /// Never used again within the session; the same at both ends.
    pub(crate) number: u64,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) reader: Mutex<Reader>,
    /// Addresses of both ends.
    pub(crate) ends: (IpAddr, IpAddr),
    socket: TcpStream,
    check: bool,
    dead: AtomicBool,
    /// The sending thread has to flush, or to acknowledge.
    nudged: AtomicBool,
    /// When something was last sent, on the session's clock.
    sent_ns: AtomicU64,
}

impl Link {
    /// Takes over a connection whose preface was exchanged.
    pub(crate) fn new(
        socket: TcpStream,
        rail: RailId,
        number: u64,
        check: bool,
        keys: Option<LinkKeys>,
    ) -> io::Result<Self> {
        let (out, incoming) = match keys {
            Some(keys) => (
                Some(Records::new(keys.out.0)),
                Some(Incoming::new(keys.incoming.0)),
            ),
            None => (None, None),
        };
        // A record has to fit behind what is left of the one before.
        let ahead_len = AHEAD_LEN + if incoming.is_some() { RECORD_LEN } else { 0 };
        let options = SockRef::from(&socket);
        options.set_tcp_nodelay(true)?;
        options.set_tcp_notsent_lowat(NOTSENT_MAX)?;
        options.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            rail,
            number,
            writer: Mutex::new(Writer {
                unsent: Vec::new(),
                flushed: 0,
                sealed: out,
            }),
            reader: Mutex::new(Reader {
                ahead: vec![0; ahead_len].into(),
                start: 0,
                end: 0,
                current: None,
                short: true,
                drained: true,
                sealed: incoming,
            }),
            ends: (socket.local_addr()?.ip(), socket.peer_addr()?.ip()),
            socket,
            check,
            dead: AtomicBool::new(false),
            nudged: AtomicBool::new(false),
            sent_ns: AtomicU64::new(0),
        })
    }

    /// Ends the link; `false` when it was over already.
    pub(crate) fn kill(&self) -> bool {
        let first = !self.dead.swap(true, Ordering::AcqRel);
        if first {
            // A peer that is gone already makes this fail; the link is over either way.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
        first
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn nudge(&self) {
        self.nudged.store(true, Ordering::Release);
    }

    pub(crate) fn is_nudged(&self) -> bool {
        self.nudged.load(Ordering::Relaxed)
    }

    pub(crate) fn take_nudge(&self) -> bool {
        self.nudged.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn seen(&self) -> Option<Seen> {
        let info = TcpInfo::of(&self.socket)?;
        Some(Seen {
            moved: info.bytes_acknowledged.wrapping_add(info.bytes_received),
            unacknowledged: info.unacknowledged > 0,
            retransmits: info.retransmits,
        })
    }

    pub(crate) fn sent_ns(&self) -> u64 {
        self.sent_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_sent(&self, now_ns: u64) {
        self.sent_ns.store(now_ns, Ordering::Relaxed);
    }

    fn digest(&self) -> Option<Digest> {
        self.check.then(|| Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// Waits until bytes can be read, or `other` can, or the time is over.
    pub(crate) fn wait_readable(
        &self,
        other: Option<BorrowedFd<'_>>,
        wait: Duration,
    ) -> io::Result<()> {
        let own = PollFd::new(&self.socket, PollFlags::IN);
        let Some(other) = other else {
            return poll_for(&mut [own], wait);
        };
        let mut both = [own, PollFd::from_borrowed_fd(other, PollFlags::IN)];
        poll_for(&mut both, wait)
    }

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
    fn flush_until(&self, writer: &mut Writer, until: Option<Instant>) -> Result<(), LinkError> {
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
        let receive = |room: &mut [u8], beyond: &mut [u8]| {
            self.receive(&mut [IoSliceMut::new(room), IoSliceMut::new(beyond)])
        };
        let step = left.min(CHUNK);
        let beyond = if step == left { BEYOND } else { 0 };
        let Some(got) = current.fill(self.number, step, |room| {
            receive(room, &mut ahead[..beyond])
        }) else {
            let count = self.receive(&mut [IoSliceMut::new(&mut ahead[..left.min(AHEAD_LEN)])])?;
            if let Some(count) = count {
                current.throw_away(&ahead[..count]);
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

    fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, LinkError> {
        let mut none = RecvAncillaryBuffer::default();
        match recvmsg(&self.socket, slices, &mut none, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => Err(LinkError::Closed),
            Ok(message) => Ok(Some(message.bytes)),
            Err(error) => Ok(harmless(error.into())?),
        }
    }
}

/// What stands at the front of what was read.
enum Begun {
    Fragment,
    Handled,
    Missing,
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

impl Reader {
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
        let (range, done) = (self.range(bytes.len()), self.done);
        match &mut self.landing {
            Landing::Place(place) => {
                let copied = place.with(link, self.header.fragment, range, |room| {
                    room.copy_from_slice(bytes)
                });
                self.lost |= copied.is_none();
            }
            Landing::Kept(kept) => kept[done..done + bytes.len()].copy_from_slice(bytes),
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
    /// place. Gives what was received, bytes beyond included.
    fn fill(
        &mut self,
        link: u64,
        step: usize,
        receive: impl FnOnce(&mut [u8]) -> Result<Option<usize>, LinkError>,
    ) -> Option<Result<Option<usize>, LinkError>> {
        let (range, done) = (self.range(step), self.done);
        let sum = &mut self.sum;
        let into = |room: &mut [u8]| {
            let got = receive(room);
            if let (Ok(Some(count)), Some(sum)) = (&got, sum) {
                sum.update(&room[..(*count).min(step)]);
            }
            got
        };
        let got = match &mut self.landing {
            Landing::Place(place) => place.with(link, self.header.fragment, range, into)?,
            Landing::Kept(kept) => into(&mut kept[done..done + step]),
            Landing::Refused | Landing::Nowhere => return None,
        };
        if let Ok(Some(count)) = got {
            self.done += count.min(step);
        }
        Some(got)
    }
}

/// The low half of the sum of a header alone.
fn header_check(sum: &Digest) -> [u8; HEAD_LEN - HEADER_LEN] {
    (sum.finalize() as u32).to_le_bytes()
}

/// A header as it is sent, and the sum to go on with.
fn head_of(header: &Header, mut sum: Option<Digest>) -> ([u8; HEAD_LEN], Option<Digest>) {
    let mut head = [0; HEAD_LEN];
    let (bytes, check) = head.split_at_mut(HEADER_LEN);
    bytes.copy_from_slice(&header.encode());
    if let Some(sum) = &mut sum {
        sum.update(bytes);
        check.copy_from_slice(&header_check(sum));
    }
    (head, sum)
}

fn harmless(error: io::Error) -> io::Result<Option<usize>> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

fn poll_for(fds: &mut [PollFd<'_>], wait: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(wait).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
