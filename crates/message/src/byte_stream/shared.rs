//! What the streams of one message socket share: its two threads, and what is on its way to programs.
//!
//! Locks, in this order: the writing lock of a stream, the owed frames, the state, the session's state of the message socket. The
//! inbox of a stream is locked alone.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_proto::byte_stream::frame::{FRAME_MAX, HEADER_LEN, Header, cut};
use ropewalk_proto::byte_stream::{
    CODE_GIVEN_UP, CODE_TOO_MANY, Event, STREAMS_MAX, Side, Streams,
};
use ropewalk_proto::message::Spread;

use super::arrivals::{Arrival, Arrivals};
use super::inbox::{End, Inbox};
use super::{ByteStream, WINDOW_PART};
use crate::connect::starting;
use crate::memory::Source;
use crate::session::{State as SessionState, Way};
use crate::{MessageError, MessageSocket, Mode, Options, threads};

mod writing;

/// What was written when the last stream of a socket was dropped is delivered within this time, or never.
const LINGER: Duration = Duration::from_secs(10);

/// Messages that data leaves for frames that say something else.
const SPARE: usize = 64;

/// Frames that may wait because the peer acknowledges nothing, data apart: some for each stream.
const OWED_MAX: usize = 8 * STREAMS_MAX;

/// Why streams fail.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The peer gave this one up.
    Reset { code: u64, text: String },
    /// This end did, or has ended it.
    GivenUp,
    /// The peer reads nothing more.
    Stopped,
    /// The peer breaks the rules.
    Broken(String),
    /// The message socket is over.
    Socket,
}

/// One stream, to its program and the threads.
pub(crate) struct Slot {
    pub(super) number: u32,
    inbox: Mutex<Inbox>,
    readable: Condvar,
    /// One call at a time sends: held without waiting for credit by calls that do not wait.
    writing: Mutex<()>,
    /// Tasks that found it held.
    queued: Mutex<Vec<Waker>>,
    /// With the state.
    writable: Condvar,
    writers: Mutex<Vec<Waker>>,
    /// One above the number of the last message that was sent for it.
    sent: AtomicU64,
}

impl Slot {
    fn new(number: u32) -> Arc<Self> {
        Arc::new(Self {
            number,
            inbox: Mutex::default(),
            readable: Condvar::new(),
            writing: Mutex::new(()),
            queued: Mutex::default(),
            writable: Condvar::new(),
            writers: Mutex::default(),
            sent: AtomicU64::new(0),
        })
    }

    /// Changes the inbox and wakes those that read.
    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        change(&mut inbox);
        let due = std::mem::take(&mut inbox.wakers);
        self.readable.notify_all();
        drop(inbox);
        due.into_iter().for_each(Waker::wake);
    }

    fn fail(&self, fault: Fault) {
        self.change(|inbox| {
            let is_reset = matches!(fault, Fault::Reset { .. });
            if is_reset {
                inbox.reset = Some(fault.clone());
            }
            // What is whole stays, as with TCP: a peer may answer, end, and refuse what is sent after that.
            let is_whole = matches!(inbox.end, Some(End::Whole));
            if (is_reset && !is_whole) || matches!(fault, Fault::GivenUp) {
                inbox.clear();
                inbox.end = Some(End::Failed(fault));
            } else {
                inbox.end.get_or_insert(End::Failed(fault));
            }
        });
    }

    /// Wakes those that write. With the state locked, so that none of them is about to sleep.
    fn wake_writers(&self) -> Vec<Waker> {
        self.writable.notify_all();
        std::mem::take(&mut self.writers.lock())
    }
}

struct State {
    streams: Streams,
    slots: HashMap<u32, Arc<Slot>>,
    over: Option<Fault>,
}

/// Frames that have to be sent and could not at once, and what else concerns the thread that sends them.
#[derive(Default)]
struct Owed {
    frames: VecDeque<Vec<u8>>,
    /// No program holds a stream or the socket any more.
    leaving: bool,
    over: bool,
}

pub(super) struct Shared {
    pub socket: MessageSocket,
    state: Mutex<State>,
    /// Numbers of streams leave in their order.
    opening: Mutex<()>,
    /// Longest time that opening a stream may take.
    deadline: Option<Duration>,
    owed: Mutex<Owed>,
    owes: Condvar,
    arrivals: Mutex<Weak<Arrivals>>,
    /// Streams of the peer's that wait to be accepted, those that it has given up among them.
    waiting: Arc<AtomicUsize>,
    hold: Mutex<Weak<Hold>>,
}

/// One stream among those that wait to be accepted.
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held by programs: the socket is closed, in its own time, when the last one is dropped.
pub(super) struct Hold(Arc<Shared>);

impl Hold {
    pub fn shared(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.0.is_of_this_process() {
            return;
        }
        self.0.owed.lock().leaving = true;
        self.0.owes.notify_all();
    }
}

impl Shared {
    /// Takes a message socket over.
    pub fn start(
        socket: MessageSocket,
        side: Side,
        options: &Options,
        arrivals: &Arc<Arrivals>,
    ) -> Result<Arc<Hold>, MessageError> {
        // Streams have times of their own.
        socket.set_deadline(None);
        let shared = Arc::new(Self {
            socket,
            state: Mutex::new(State {
                streams: Streams::new(side, options.window / WINDOW_PART),
                slots: HashMap::new(),
                over: None,
            }),
            opening: Mutex::new(()),
            deadline: options.deadline,
            owed: Mutex::default(),
            owes: Condvar::new(),
            arrivals: Mutex::new(Arc::downgrade(arrivals)),
            waiting: Arc::default(),
            hold: Mutex::default(),
        });
        let hold = Arc::new(Hold(shared.clone()));
        *shared.hold.lock() = Arc::downgrade(&hold);
        let (receiving, paying) = (shared.clone(), shared);
        threads::spawn("bytes-receive", move || receiving.receive_all())
            .and_then(|()| threads::spawn("bytes-owed", move || paying.pay()))
            .map_err(|error| {
                hold.shared().socket.close();
                starting(error)
            })?;
        Ok(hold)
    }

    /// Streams of peers are refused.
    pub fn take_no_more(&self) {
        *self.arrivals.lock() = Weak::new();
    }

    /// Why the socket is over.
    pub fn failure(&self) -> Option<MessageError> {
        if let Err(error) = self.here() {
            return Some(error);
        }
        let state = self.state.lock();
        let over = state.over.clone();
        drop(state);
        over.map(|fault| self.error(fault))
    }

    fn error(&self, fault: Fault) -> MessageError {
        match fault {
            Fault::Reset { code, text } => MessageError::Reset { code, text },
            Fault::GivenUp => MessageError::Closed,
            Fault::Stopped => MessageError::Stopped,
            Fault::Broken(text) => MessageError::NotByteStreams(text),
            Fault::Socket => {
                let session = &self.socket.session;
                let verdict = session.verdict(&session.state());
                // Announcing that nothing more comes is closing, too.
                verdict.unwrap_or(MessageError::PeerClosed)
            }
        }
    }

    /// How a message of so many bytes goes: over all rails when it, and what is on its way before it, is long.
    fn way(&self, state: &mut SessionState, length: u64) -> Way {
        let several = state.links.iter().flatten().count() > 1;
        if state.mode != Mode::Enhanced || !several {
            return self.socket.way(state, length, None);
        }
        let rails = 0..state.links.len();
        let before: u64 = rails.map(|rail| state.sender.in_transit_bytes(rail)).sum();
        let spread = match length.saturating_add(before) >= state.cut_off.value() {
            true => Spread::Balanced,
            false => Spread::Single,
        };
        Way { spread, flags: 0 }
    }

    /// Opens a stream; waits while too many messages are on their way.
    pub fn open(&self, greeting: &[u8]) -> Result<Arc<Slot>, MessageError> {
        self.here()?;
        let until = self.deadline;
        let until = until.and_then(|most| Instant::now().checked_add(most));
        let _in_order = match until {
            Some(until) => (self.opening.try_lock_until(until)).ok_or(MessageError::Deadline)?,
            None => self.opening.lock(),
        };
        let session = &self.socket.session;
        loop {
            let mut state = self.state.lock();
            if let Some(fault) = state.over.clone() {
                drop(state);
                return Err(self.error(fault));
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
            let Some(header) = state.streams.open() else {
                return Err(MessageError::TooManyStreams(state.streams.count()));
            };
            let slot = Slot::new(header.stream);
            state.slots.insert(header.stream, slot.clone());
            drop(state);
            let frame = header.frame(greeting);
            let length = frame.len() as u64;
            let way = self.way(&mut below, length);
            let source = Arc::new(Source::owned(frame));
            return match session.start_taken(below, way, length, &source) {
                Ok(Some(_)) => Ok(slot),
                Ok(None) => {
                    self.forget(header.stream);
                    Err(MessageError::Closed)
                }
                Err(error) => {
                    self.forget(header.stream);
                    Err(error)
                }
            };
        }
    }

    /// Begins a message; waits while too many are on their way.
    fn begin(&self, frame: Vec<u8>) -> Result<u64, MessageError> {
        let length = frame.len() as u64;
        let source = Arc::new(Source::owned(frame));
        let way = |state: &mut SessionState| self.way(state, length);
        self.socket.session.start_only(way, length, &source, None)
    }

    /// Sends a frame that is no data, without waiting.
    fn tell(&self, header: Header, payload: &[u8]) {
        let frame = header.frame(payload);
        let mut owed = self.owed.lock();
        if owed.over {
            return;
        }
        if owed.frames.is_empty() {
            let session = &self.socket.session;
            let length = frame.len() as u64;
            let source = Arc::new(Source::owned(frame.clone()));
            let mut state = session.state();
            let way = self.way(&mut state, length);
            match session.start_taken(state, way, length, &source) {
                Ok(None) => {}
                // A socket that is over tells nothing.
                Ok(Some(_)) | Err(_) => return,
            }
        }
        owed.frames.push_back(frame);
        let too_many = owed.frames.len() > OWED_MAX;
        self.owes.notify_all();
        drop(owed);
        if too_many {
            self.socket.close();
        }
    }

    /// Sends what is owed until no program needs the socket; then waits until the peer has everything, and closes it.
    fn pay(&self) {
        loop {
            let mut owed = self.owed.lock();
            while owed.frames.is_empty() && !owed.leaving && !owed.over {
                self.owes.wait(&mut owed);
            }
            if owed.over {
                return;
            }
            let Some(frame) = owed.frames.pop_front() else {
                break;
            };
            drop(owed);
            if self.begin(frame).is_err() {
                return;
            }
        }
        self.socket.set_deadline(Some(LINGER));
        // What the peer does not have by then is lost, as the documentation of dropping says.
        let _ = self.socket.finish_sending();
        self.socket.close();
    }

    /// Receives until the socket is over.
    fn receive_all(&self) {
        let fault = loop {
            match self.socket.receive_vec(FRAME_MAX) {
                Ok(Some(message)) => {
                    if let Err(text) = self.take(message) {
                        self.socket.close();
                        break Fault::Broken(text);
                    }
                }
                Err(error @ MessageError::TooLong { .. }) => {
                    self.socket.close();
                    break Fault::Broken(error.to_string());
                }
                Ok(None) | Err(_) => break Fault::Socket,
            }
        };
        let mut state = self.state.lock();
        state.over = Some(fault.clone());
        let slots: Vec<Arc<Slot>> = state.slots.values().cloned().collect();
        let due: Vec<Waker> = slots.iter().flat_map(|slot| slot.wake_writers()).collect();
        drop(state);
        due.into_iter().for_each(Waker::wake);
        for slot in slots {
            slot.fail(fault.clone());
        }
        let mut owed = self.owed.lock();
        // One that has left waits for its last bytes by itself.
        owed.over = !owed.leaving;
        drop(owed);
        self.owes.notify_all();
        let arrivals = self.arrivals.lock().upgrade();
        if let Some(arrivals) = arrivals {
            arrivals.news();
        }
    }

    /// Takes one message of the peer.
    fn take(&self, message: Vec<u8>) -> Result<(), String> {
        let header = Header::decode(&message).map_err(|error| error.to_string())?;
        let length = (message.len() - HEADER_LEN) as u64;
        let mut state = self.state.lock();
        let event = state.streams.handle(header, length);
        let event = event.map_err(|error| error.to_string())?;
        let known = |state: &State, stream: u32| state.slots.get(&stream).cloned();
        match event {
            Event::Opened(stream) => {
                let slot = Slot::new(stream);
                state.slots.insert(stream, slot.clone());
                drop(state);
                self.arrive(slot, message[HEADER_LEN..].to_vec());
            }
            Event::Refused(refusal) => {
                drop(state);
                let text = format!("{STREAMS_MAX} streams are open already");
                self.tell(refusal, text.as_bytes());
            }
            Event::Data(stream) => {
                let slot = known(&state, stream);
                drop(state);
                if let Some(slot) = slot {
                    slot.change(|inbox| inbox.add(message));
                }
            }
            Event::Ended(stream) => {
                let slot = known(&state, stream);
                drop(state);
                if let Some(slot) = slot {
                    slot.change(|inbox| {
                        inbox.end.get_or_insert(End::Whole);
                    });
                }
            }
            Event::Credit(stream) | Event::Stopped(stream) => {
                let slot = known(&state, stream);
                let due = slot.map(|slot| slot.wake_writers()).unwrap_or_default();
                drop(state);
                due.into_iter().for_each(Waker::wake);
            }
            Event::Reset(stream) => {
                let slot = state.slots.remove(&stream);
                let due = slot
                    .as_ref()
                    .map(|slot| slot.wake_writers())
                    .unwrap_or_default();
                drop(state);
                due.into_iter().for_each(Waker::wake);
                if let Some(slot) = slot {
                    let text = String::from_utf8_lossy(&message[HEADER_LEN..]).into_owned();
                    slot.fail(Fault::Reset {
                        code: header.value,
                        text,
                    });
                }
            }
            Event::Nothing => {}
        }
        Ok(())
    }

    /// A stream of the peer's, for whoever accepts it.
    fn arrive(&self, slot: Arc<Slot>, greeting: Vec<u8>) {
        let hold = self.hold.lock().upgrade();
        let arrivals = self.arrivals.lock().upgrade();
        let Some((hold, arrivals)) = hold.zip(arrivals) else {
            return self.reset(&slot, CODE_TOO_MANY, "streams are not accepted here");
        };
        // Only the thread that calls this adds to them.
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= STREAMS_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let text = format!("{STREAMS_MAX} streams wait to be accepted");
            return self.reset(&slot, CODE_TOO_MANY, &text);
        }
        arrivals.add(Arrival {
            _waiting: Waiting(self.waiting.clone()),
            stream: ByteStream::new(hold, slot, greeting),
        });
    }

    /// As [`Session::is_of_this_process`](crate::session::Session::is_of_this_process).
    pub fn is_of_this_process(&self) -> bool {
        self.socket.session.is_of_this_process()
    }

    /// As [`Session::here`](crate::session::Session::here).
    pub fn here(&self) -> Result<(), MessageError> {
        self.socket.session.here()
    }

    fn forget(&self, stream: u32) {
        let mut state = self.state.lock();
        let _ = state.streams.reset(stream, CODE_GIVEN_UP);
        state.slots.remove(&stream);
    }

    pub fn reset(&self, slot: &Arc<Slot>, code: u64, text: &str) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.state.lock();
        let header = state.streams.reset(slot.number, code);
        state.slots.remove(&slot.number);
        let due = slot.wake_writers();
        drop(state);
        due.into_iter().for_each(Waker::wake);
        if let Some(header) = header {
            self.tell(header, cut(text).as_bytes());
            slot.fail(Fault::GivenUp);
        }
    }

    /// The program has dropped the stream.
    pub fn release(&self, slot: &Slot) {
        let mut state = self.state.lock();
        let frames = state.streams.release(slot.number);
        state.slots.remove(&slot.number);
        drop(state);
        for header in frames.into_iter().flatten() {
            self.tell(header, &[]);
        }
    }
}

/// Reading.
impl Shared {
    pub fn read(
        &self,
        slot: &Slot,
        space: &mut [u8],
        until: Option<Instant>,
    ) -> Result<usize, MessageError> {
        self.here()?;
        let mut inbox = slot.inbox.lock();
        loop {
            inbox = match self.look(slot, inbox, space) {
                Looked::Done(result) => return result,
                Looked::Nothing(inbox) => inbox,
            };
            match until {
                Some(until) if slot.readable.wait_until(&mut inbox, until).timed_out() => {
                    return match self.look(slot, inbox, space) {
                        Looked::Done(result) => result,
                        Looked::Nothing(_) => Err(MessageError::Deadline),
                    };
                }
                Some(_) => {}
                None => slot.readable.wait(&mut inbox),
            }
        }
    }

    pub fn poll_read(
        &self,
        slot: &Slot,
        space: &mut [u8],
        context: &Context<'_>,
    ) -> Poll<Result<usize, MessageError>> {
        self.here()?;
        match self.look(slot, slot.inbox.lock(), space) {
            Looked::Done(result) => Poll::Ready(result),
            Looked::Nothing(mut inbox) => {
                add(&mut inbox.wakers, context.waker());
                Poll::Pending
            }
        }
    }

    fn look<'a>(
        &self,
        slot: &Slot,
        mut inbox: MutexGuard<'a, Inbox>,
        space: &mut [u8],
    ) -> Looked<'a> {
        if space.is_empty() {
            return Looked::Done(Ok(0));
        }
        if !inbox.is_empty() {
            let count = inbox.take(space);
            let drained = inbox.is_empty();
            drop(inbox);
            let consumed = self
                .state
                .lock()
                .streams
                .consume(slot.number, count as u64, drained);
            if let Some(credit) = consumed {
                self.tell(credit, &[]);
            }
            return Looked::Done(Ok(count));
        }
        match inbox.end.clone() {
            Some(End::Whole) => Looked::Done(Ok(0)),
            Some(End::Failed(fault)) => {
                drop(inbox);
                Looked::Done(Err(self.error(fault)))
            }
            None => Looked::Nothing(inbox),
        }
    }
}

enum Looked<'a> {
    Done(Result<usize, MessageError>),
    Nothing(MutexGuard<'a, Inbox>),
}

fn add(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|other| other.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}
