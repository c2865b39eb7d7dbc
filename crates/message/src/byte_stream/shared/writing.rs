//! Writing: credit, then a message; the end of what is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::MutexGuard;
use ropewalk_proto::byte_stream::Sendable;
use ropewalk_proto::byte_stream::frame::{DATA_MAX, HEADER_LEN, Header, Kind};

use super::{Fault, SPARE, Shared, Slot, State, add};
use crate::MessageError;
use crate::memory::Source;

impl Shared {
    /// How many bytes may be sent now, or why none ever.
    fn allowed(&self, state: &State, slot: &Slot) -> Result<usize, Fault> {
        if let Some(fault) = &state.over {
            return Err(fault.clone());
        }
        match state.streams.sendable(slot.number) {
            Sendable::Bytes(most) => Ok(usize::try_from(most).unwrap_or(usize::MAX)),
            Sendable::Ended | Sendable::Reset => Err(Fault::GivenUp),
            Sendable::Stopped => Err(Fault::Stopped),
        }
    }

    /// Whether nothing more can be written.
    pub fn is_over(&self, slot: &Slot) -> bool {
        !self.is_of_this_process() || self.allowed(&self.state.lock(), slot).is_err()
    }

    /// The same for people: a reset that was received says why.
    fn write_error(&self, slot: &Slot, fault: Fault) -> MessageError {
        let known = slot.inbox.lock().reset.clone();
        self.error(known.unwrap_or(fault))
    }

    fn lock_writing<'s>(
        &self,
        slot: &'s Slot,
        until: Option<Instant>,
    ) -> Result<Writing<'s>, MessageError> {
        self.here()?;
        let held = match until {
            Some(until) => slot.writing.try_lock_until(until),
            None => Some(slot.writing.lock()),
        };
        let held = held.ok_or(MessageError::Deadline)?;
        Ok(Writing::new(slot, held))
    }

    pub fn write(
        &self,
        slot: &Slot,
        bytes: &[u8],
        until: Option<Instant>,
    ) -> Result<usize, MessageError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let _one = self.lock_writing(slot, until)?;
        let mut state = self.state.lock();
        let count = loop {
            match self.allowed(&state, slot) {
                Ok(most @ 1..) => break bytes.len().min(most).min(DATA_MAX),
                Ok(0) => {}
                Err(fault) => {
                    drop(state);
                    return Err(self.write_error(slot, fault));
                }
            }
            match until {
                Some(until) if slot.writable.wait_until(&mut state, until).timed_out() => {
                    return Err(MessageError::Deadline);
                }
                Some(_) => {}
                None => slot.writable.wait(&mut state),
            }
        };
        drop(state);
        let mut frame = frame_of(&bytes[..count]);
        loop {
            match self.send(slot, frame, count)? {
                Sent::Done => return Ok(count),
                Sent::Full(kept) => frame = kept,
            }
            let session = &self.socket.session;
            drop(session.wait(session.state(), until)?);
        }
    }

    /// As [`write`](Self::write), without waiting.
    pub fn poll_write(
        &self,
        slot: &Slot,
        bytes: &[u8],
        context: &Context<'_>,
    ) -> Poll<Result<usize, MessageError>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.here()?;
        // Another thread may hold it while it waits for credit.
        let Some(_one) = Writing::poll(slot, context) else {
            return Poll::Pending;
        };
        let state = self.state.lock();
        let count = match self.allowed(&state, slot) {
            Ok(most @ 1..) => bytes.len().min(most).min(DATA_MAX),
            Ok(0) => {
                add(&mut slot.writers.lock(), context.waker());
                return Poll::Pending;
            }
            Err(fault) => {
                drop(state);
                return Poll::Ready(Err(self.write_error(slot, fault)));
            }
        };
        drop(state);
        match self.send(slot, frame_of(&bytes[..count]), count) {
            Ok(Sent::Done) => Poll::Ready(Ok(count)),
            Ok(Sent::Full(_)) => self
                .wait_for_space(context)
                .map(|looked| looked.map(|()| 0)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Has the task woken when messages may begin again; ready for what ended the socket, or when they may already, and then it is woken at once.
    fn wait_for_space(&self, context: &Context<'_>) -> Poll<Result<(), MessageError>> {
        let session = &self.socket.session;
        let mut state = session.state();
        if let Some(error) = session.verdict(&state) {
            return Poll::Ready(Err(error));
        }
        match state.sender.takes(SPARE) {
            true => context.waker().wake_by_ref(),
            false => state.wakers.add(context.waker()),
        }
        Poll::Pending
    }

    /// Sends a frame of `count` bytes, whose header is still to be filled in, if a message can begin now.
    fn send(&self, slot: &Slot, mut frame: Vec<u8>, count: usize) -> Result<Sent, MessageError> {
        let session = &self.socket.session;
        let mut state = self.state.lock();
        // It may have been given up meanwhile; credit only grows.
        if let Err(fault) = self.allowed(&state, slot) {
            drop(state);
            return Err(self.write_error(slot, fault));
        }
        let mut below = session.state();
        if let Some(error) = session.verdict(&below) {
            return Err(error);
        }
        if !below.sender.takes(SPARE) {
            return Ok(Sent::Full(frame));
        }
        let header = state.streams.send(slot.number, count as u64);
        frame[..HEADER_LEN].copy_from_slice(&header.encode());
        let length = frame.len() as u64;
        let way = self.way(&mut below, length);
        // In the order of offsets: nobody else sends on the stream, and the message has its number once this returns.
        drop(state);
        let source = Arc::new(Source::owned(frame));
        let message = session.start_taken(below, way, length, &source)?;
        let message = message.ok_or(MessageError::Closed)?;
        slot.sent.fetch_max(message + 1, Ordering::Relaxed);
        Ok(Sent::Done)
    }

    /// Ends the sending way.
    pub fn end(&self, slot: &Slot, until: Option<Instant>) -> Result<(), MessageError> {
        let _one = self.lock_writing(slot, until)?;
        let session = &self.socket.session;
        loop {
            let mut state = self.state.lock();
            let sendable = state.streams.sendable(slot.number);
            if sendable == Sendable::Ended {
                return Ok(());
            }
            // What was on its way is thrown away.
            let reset = (sendable == Sendable::Reset).then_some(Fault::GivenUp);
            if let Some(fault) = state.over.clone().or(reset) {
                drop(state);
                return Err(self.write_error(slot, fault));
            }
            let mut below = session.state();
            if let Some(error) = session.verdict(&below) {
                return Err(error);
            }
            if !below.sender.takes(1) {
                drop(state);
                drop(session.wait(below, until)?);
                continue;
            }
            // One that the peer stopped has nothing to say.
            let Some(header) = state.streams.end(slot.number) else {
                return Ok(());
            };
            let frame = header.frame(&[]);
            let length = frame.len() as u64;
            let way = self.way(&mut below, length);
            drop(state);
            let source = Arc::new(Source::owned(frame));
            let message = session.start_taken(below, way, length, &source)?;
            let message = message.ok_or(MessageError::Closed)?;
            slot.sent.fetch_max(message + 1, Ordering::Relaxed);
            return Ok(());
        }
    }

    /// Waits until the peer's socket has all that was sent for a stream. One that was reset has thrown it away.
    pub fn wait_delivered(&self, slot: &Slot, until: Option<Instant>) -> Result<(), MessageError> {
        self.here()?;
        let session = &self.socket.session;
        let below = slot.sent.load(Ordering::Relaxed);
        let mut state = session.state();
        loop {
            if state.sender.finished_below() >= below {
                drop(state);
                let sendable = self.state.lock().streams.sendable(slot.number);
                return match sendable {
                    Sendable::Reset => Err(self.write_error(slot, Fault::GivenUp)),
                    _ => Ok(()),
                };
            }
            if let Some(error) = session.verdict(&state) {
                return Err(error);
            }
            state = session.wait(state, until)?;
        }
    }
}

/// The writing lock of a stream. Tasks that were refused it are woken when it is given back.
struct Writing<'s> {
    slot: &'s Slot,
    held: Option<MutexGuard<'s, ()>>,
}

impl<'s> Writing<'s> {
    fn new(slot: &'s Slot, held: MutexGuard<'s, ()>) -> Self {
        Self {
            slot,
            held: Some(held),
        }
    }

    /// The lock, if no other call has it; else the task is woken when that gives it back.
    fn poll(slot: &'s Slot, context: &Context<'_>) -> Option<Self> {
        let held = slot.writing.try_lock().or_else(|| {
            add(&mut slot.queued.lock(), context.waker());
            // It may have been given back before the task was there to be woken.
            slot.writing.try_lock()
        });
        held.map(|held| Self::new(slot, held))
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.held = None;
        let due = std::mem::take(&mut *self.slot.queued.lock());
        due.into_iter().for_each(Waker::wake);
    }
}

enum Sent {
    Done,
    /// Too many messages are on their way.
    Full(Vec<u8>),
}

/// Space for a header, then bytes.
fn frame_of(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Header::new(Kind::Data, 0, 0).frame(bytes);
    frame[..HEADER_LEN].fill(0);
    frame
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::Writing;
    use crate::{ByteStream, ByteStreamListener, Options, PolledByteStream};

    /// A call that does not wait does not wait for another thread's either, which may wait for credit; once that ends there is news.
    #[test]
    fn calls_that_do_not_wait_pass_those_that_do() {
        let options = Options::default();
        let addresses = ["127.0.0.1:0".parse().unwrap()];
        let listener = ByteStreamListener::bind(&addresses, &options).unwrap();
        let near = ByteStream::connect(&listener.addresses(), &options).unwrap();
        let _far = listener.accept().unwrap();
        let near = PolledByteStream::new(near).unwrap();
        let is_writable = || {
            let mut one = [PollFd::new(&near, PollFlags::OUT)];
            poll(&mut one, Some(&Timespec::default())).unwrap() == 1
        };
        let slot = &near.stream().slot;
        let other = Writing::new(slot, slot.writing.lock());
        assert_eq!(near.write_now(b"x").unwrap(), None);
        assert!(!is_writable());
        drop(other);
        assert!(is_writable());
        assert_eq!(near.write_now(b"x").unwrap(), Some(1));
    }
}
