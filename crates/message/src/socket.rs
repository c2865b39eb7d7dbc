//! The socket that users hold.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use ropewalk_lane::preface;
use ropewalk_proto::message::cutoff::Sample;
use ropewalk_proto::message::frame::PROMPT;
use ropewalk_proto::message::{CANCELLED_MAX, Fate, RAILS_MAX, Spread};

use crate::connect::{self, starting};
use crate::dial::Dialer;
use crate::handshake::Proof;
use crate::link::SLICE;
use crate::listen::Door;
use crate::memory::Source;
use crate::remember::Remembrance;
use crate::session::{Session, State, Way};
use crate::{CutOff, MessageError, Mode, Options, routing, threads};

mod cut_off;
mod guest;
mod patience;

pub use cut_off::RecalledCutOff;
pub(crate) use guest::Guest;
pub(crate) use patience::Patience;
pub use patience::SplitTimes;

/// A connection for messages over all rails between two hosts; see the crate's documentation.
///
/// May be used from several threads at once: any number send, one at a time receives. In a child of the process that made it (`fork`) its calls fail
/// with [`MessageError::OtherProcess`], and dropping it ends nothing.
pub struct MessageSocket {
    pub(crate) session: Arc<Session>,
    deadline: RwLock<Option<Duration>>,
    receiving: Mutex<()>,
    /// Where what is learnt is kept; `None` for nowhere, or when it is done.
    remembrance: Mutex<Option<Remembrance>>,
    /// What this socket began with, and why it could not.
    recalled: Mutex<Result<Option<RecalledCutOff>, String>>,
    /// Keeps the way back open for failed rails.
    _door: Option<Arc<Door>>,
}

/// What a rail did.
#[derive(Clone, Debug, PartialEq)]
pub struct RailReport {
    /// Whether it has a working connection.
    pub is_up: bool,
    /// Why it has none: what ended the last one, or the last attempt to make one. `None` while it works, or before
    /// anything was tried.
    pub cause: Option<String>,
    /// Bytes of messages given to it, second copies included.
    pub bytes_sent: u64,
    /// Bytes of messages that arrived on it first.
    pub bytes_received: u64,
    /// Bytes per second while it had work to send; `None` before it did.
    pub bytes_per_second: Option<f64>,
}

/// How often a wait asks whether it goes on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits until a time, or as long as it goes on.
fn in_steps(
    until: Option<Instant>,
    goes_on: &mut dyn FnMut() -> bool,
    mut wait: impl FnMut(Option<Instant>) -> Result<(), MessageError>,
) -> Result<(), MessageError> {
    loop {
        let step = Instant::now() + LOOK_EVERY;
        let is_last = until.is_some_and(|until| until <= step);
        match wait(if is_last { until } else { Some(step) }) {
            Err(MessageError::Deadline) if !is_last => match goes_on() {
                true => {}
                false => return Err(MessageError::Cancelled),
            },
            ended => return ended,
        }
    }
}

impl MessageSocket {
    /// Connects to a [`Listener`](crate::Listener): rail i goes from the i-th local address of the options to the
    /// i-th address, all at once. One rail must work, within 2 s and [`Options::deadline`]; the others are waited for
    /// half a second longer, then tried again until they do. In enhanced mode with a [measured](CutOff::Measured) cut-off
    /// this takes up to 3 s more, 0.2 s at 100 Mbit/s, unless it is [remembered](Options::cut_offs).
    ///
    /// # Errors
    /// [`MessageError::Connect`] with what went wrong at the last address, [`MessageError::Deadline`],
    /// [`MessageError::NotSealed`] for an address that is not on this host where there is no token,
    /// [`MessageError::Misuse`] for what cannot be meant.
    pub fn connect(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
        options.verify(addresses)?;
        let count = addresses.len().max(options.local.len());
        if count > RAILS_MAX {
            return Err(MessageError::Misuse(format!(
                "{count} rails are more than {RAILS_MAX}"
            )));
        }
        let rails: Vec<_> = (0..count)
            .map(|rail| {
                let local = options
                    .local
                    .get(rail % options.local.len().max(1))
                    .copied();
                (local, addresses[rail % addresses.len()])
            })
            .collect();
        for (local, peer) in &rails {
            if local.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
                return Err(MessageError::Misuse(format!(
                    "a rail cannot go from {} to {peer}: one is IPv4, the other IPv6",
                    local.map_or_else(String::new, |local| local.to_string())
                )));
            }
        }
        let dialer = Arc::new(Dialer {
            session: preface::random_bytes(),
            rails,
            proof: Proof::new(options.token.as_ref()),
            check: options.check && !options.is_sealed(),
            sealed: options.is_sealed(),
            window: options.window,
            dialled: AtomicU32::new(0),
        });
        let until = options.deadline;
        let until = until.and_then(|most| Instant::now().checked_add(most));
        let session = connect::connect(&dialer, options, until)?;
        let remembrance = options.cut_offs.clone();
        let remembrance = remembrance.map(|file| Remembrance::new(file, &dialer));
        let socket = Self::new(session, None, options, remembrance);
        let kept = (socket.session.clone(), dialer);
        threads::spawn("rail-keep", move || threads::keep(&kept.0, Some(&kept.1)))
            .map_err(starting)?;
        if let (Mode::Enhanced, CutOff::Measured(method)) = (options.mode, options.cut_off)
            && count > 1
        {
            // Whatever is wrong with the file only means that nothing is remembered.
            if !matches!(socket.recall_cut_off(), Ok(Some(_))) {
                socket.find_cut_off(method)?;
            }
        }
        Ok(socket)
    }

    pub(crate) fn new(
        session: Arc<Session>,
        door: Option<Arc<Door>>,
        options: &Options,
        remembrance: Option<Remembrance>,
    ) -> Self {
        Self {
            session,
            deadline: RwLock::new(options.deadline),
            receiving: Mutex::new(()),
            remembrance: Mutex::new(remembrance),
            recalled: Mutex::new(Ok(None)),
            _door: door,
        }
    }

    pub(crate) fn accepted(session: Arc<Session>, door: Arc<Door>, options: &Options) -> Self {
        Self::new(session, Some(door), options, None)
    }

    /// Sets how long each later call may take; `None` for no limit but [`Options::peer_timeout`].
    pub fn set_deadline(&self, most: Option<Duration>) {
        if self.session.is_of_this_process() {
            *self.deadline.write() = most;
        }
    }

    fn until(&self) -> Option<Instant> {
        // A time that the clock cannot count to is no limit.
        self.deadline
            .read()
            .and_then(|most| Instant::now().checked_add(most))
    }

    /// Sends a message from where it lies and returns when the peer has all of it. Below the cut-off the calling
    /// thread does everything.
    ///
    /// # Errors
    /// [`MessageError::Deadline`]: the message is cancelled, the peer may have it all the same.
    /// [`MessageError::Closed`], [`MessageError::PeerClosed`], [`MessageError::PeerLost`].
    pub fn send(&self, bytes: &[u8]) -> Result<(), MessageError> {
        self.send_while(bytes, &mut || true)
    }

    /// As [`send`](Self::send); the message is cancelled when `goes_on`, which is asked ten times a second, says so.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`MessageError::Cancelled`].
    pub fn send_while(
        &self,
        bytes: &[u8],
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), MessageError> {
        self.session.here()?;
        let until = self.until();
        // SAFETY: `Lent` takes it back when this function returns, whichever way.
        let source = Arc::new(unsafe { Source::lent(bytes) });
        let _lent = Lent(&source);
        let measured = Cell::new(None);
        let begun = Instant::now();
        let length = bytes.len() as u64;
        let way = |state: &mut State| self.way(state, length, Some(&measured));
        let mut begun_as = None;
        in_steps(until, goes_on, |until| {
            begun_as = Some(self.session.start(way, length, &source, until)?);
            Ok(())
        })?;
        let message = begun_as.expect("it was begun");
        let result = in_steps(until, goes_on, |until| self.wait_until(message, until));
        match (&result, measured.get()) {
            (Err(MessageError::Deadline | MessageError::Cancelled), _) => self.cancel(message),
            (Ok(()), Some(several)) => {
                let sample = Sample {
                    size: length,
                    several,
                    round_trip: begun.elapsed().into(),
                };
                let now = self.session.now();
                self.session.state().cut_off.observe(sample, now);
            }
            _ => {}
        }
        result
    }

    /// Begins to send a message and gives its number for [`wait_sent`](Self::wait_sent) or [`cancel`](Self::cancel).
    /// Several may be on their way; they arrive in the order begun. Waits only while 1024 are.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_start(&self, bytes: Vec<u8>) -> Result<u64, MessageError> {
        self.session.here()?;
        let length = bytes.len() as u64;
        let source = Arc::new(Source::owned(bytes));
        let way = |state: &mut State| self.way(state, length, None);
        self.session.start_only(way, length, &source, self.until())
    }

    /// As [`send_start`](Self::send_start), and waits no longer when `goes_on`, which is asked ten times a second, says so.
    ///
    /// # Errors
    /// As [`send_while`](Self::send_while): then it was not begun.
    pub fn send_start_while(
        &self,
        bytes: Vec<u8>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, MessageError> {
        self.session.here()?;
        let length = bytes.len() as u64;
        let source = Arc::new(Source::owned(bytes));
        let way = |state: &mut State| self.way(state, length, None);
        let mut begun = None;
        in_steps(self.until(), goes_on, |until| {
            begun = Some(self.session.start_only(way, length, &source, until)?);
            Ok(())
        })?;
        Ok(begun.expect("it was begun"))
    }

    /// Waits until the peer has the whole message.
    ///
    /// # Errors
    /// [`MessageError::Deadline`]: the message goes on; wait again or cancel it. [`MessageError::Cancelled`],
    /// [`MessageError::Misuse`] for a message that was never begun, or that was over before the last 4096 that were
    /// cancelled, and as [`send`](Self::send).
    pub fn wait_sent(&self, message: u64) -> Result<(), MessageError> {
        self.session.here()?;
        if message >= self.session.state().started {
            return Err(MessageError::Misuse(format!(
                "message {message} was never begun on this socket"
            )));
        }
        self.wait_until(message, self.until())
    }

    /// Whether the peer has the whole message; `false`, too, when that is not remembered, as for
    /// [`wait_sent`](Self::wait_sent). Does not wait.
    #[must_use]
    pub fn is_sent(&self, message: u64) -> bool {
        if !self.session.is_of_this_process() {
            return false;
        }
        let state = self.session.state();
        state.sender.fate(message) == Fate::Arrived
    }

    /// Gives a message up unless it is known to have arrived; those behind it go on. Does not wait.
    pub fn cancel(&self, message: u64) {
        if !self.session.is_of_this_process() {
            return;
        }
        let mut state = self.session.state();
        state.sender.cancel(message);
        if let Some(source) = state.sources.remove(&message) {
            source.take_back();
        }
        self.session.more_work(&mut state);
    }

    pub(crate) fn wait_until(
        &self,
        message: u64,
        until: Option<Instant>,
    ) -> Result<(), MessageError> {
        let mut state = self.session.state();
        loop {
            if let Some(done) = done(state.sender.fate(message), message) {
                return done;
            }
            if let Some(error) = self.session.verdict(&state) {
                return Err(error);
            }
            state = self.session.wait(state, until)?;
        }
    }

    /// How a message of this length goes; `measured` is set when its round trip shall correct the cut-off.
    pub(crate) fn way(
        &self,
        state: &mut State,
        length: u64,
        measured: Option<&Cell<Option<bool>>>,
    ) -> Way {
        let plain = |spread| Way { spread, flags: 0 };
        match state.mode {
            Mode::Single => plain(Spread::Single),
            Mode::Basic => plain(Spread::Equal),
            Mode::Enhanced if state.links.iter().flatten().count() < 2 => plain(Spread::Single),
            Mode::Enhanced => {
                let spread = |several| {
                    if several {
                        Spread::Balanced
                    } else {
                        Spread::Single
                    }
                };
                // Others on the way would be measured, too.
                let alone = state.cut_off.follows() && state.sender.unfinished() == 0;
                let Some(measured) = measured.filter(|_| alone) else {
                    return plain(spread(length >= state.cut_off.value()));
                };
                let choice = state.cut_off.choose(length);
                if !choice.measured {
                    return plain(spread(choice.several));
                }
                measured.set(Some(choice.several));
                Way {
                    spread: spread(choice.several),
                    flags: PROMPT,
                }
            }
        }
    }

    /// Receives the next message into `room` and gives its length; `None` when the peer has announced the end.
    /// Fragments are received straight into `room`, whose bytes beyond the message may be overwritten when messages are cancelled.
    ///
    /// # Errors
    /// [`MessageError::TooLong`] and [`MessageError::Deadline`]: the message stays, nothing is lost.
    /// [`MessageError::Closed`], [`MessageError::PeerClosed`], [`MessageError::PeerLost`].
    pub fn receive(&self, room: &mut [u8]) -> Result<Option<usize>, MessageError> {
        let until = self.until();
        let _one = self.turn(until)?;
        self.receive_next(room, &mut [], &Patience::until(until))
    }

    /// As [`receive`](Self::receive), at most until a time that is this call's alone.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_until(
        &self,
        room: &mut [u8],
        until: Instant,
    ) -> Result<Option<usize>, MessageError> {
        let until = Some(until);
        let _one = self.turn(until)?;
        self.receive_next(room, &mut [], &Patience::until(until))
    }

    /// Receives the next message, its first bytes into `head` and those that follow into `body`, which need not be initialised: what is before a
    /// program's data, and the data. Gives the length of both together; so many bytes are written. Else as [`receive`](Self::receive).
    ///
    /// What is on its way of a message that a caller leaves has to be sent again; so
    /// this waits for its end as long as a rail works.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`MessageError::Deadline`] when one of the times is over, or `given_up` is set: within 50 ms.
    pub fn receive_split(
        &self,
        head: &mut [u8],
        body: &mut [MaybeUninit<u8>],
        times: &SplitTimes<'_>,
    ) -> Result<Option<usize>, MessageError> {
        let _one = self.turn(Some(times.begun))?;
        let patience = Patience {
            begun: Some(times.begun),
            whole: Some(times.whole),
            given_up: Some(times.given_up),
        };
        self.receive_next(head, body, &patience)
    }

    /// Receives the next message into memory of its own, of at most `most` bytes; else as
    /// [`receive`](Self::receive). Its first fragment is not copied; where it has several, the others are, once.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_vec(&self, most: usize) -> Result<Option<Vec<u8>>, MessageError> {
        self.receive_vec_by(most, self.until())
    }

    /// As [`receive_vec`](Self::receive_vec), at most until a time that is this call's alone.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_vec_until(
        &self,
        most: usize,
        until: Instant,
    ) -> Result<Option<Vec<u8>>, MessageError> {
        self.receive_vec_by(most, Some(until))
    }

    fn receive_vec_by(
        &self,
        most: usize,
        until: Option<Instant>,
    ) -> Result<Option<Vec<u8>>, MessageError> {
        let _one = self.turn(until)?;
        let session = &*self.session;
        let mut state = session.state();
        loop {
            if let Some(result) = session.take_next(&mut state, most as u64) {
                state.wanted = None;
                session.tell_credit(state);
                return result;
            }
            let ended = session.verdict(&state);
            let waited = match ended {
                Some(error) => Err((state, error)),
                None => (session.wait(state, until)).map_err(|error| (session.state(), error)),
            };
            match waited {
                Ok(news) => state = news,
                Err((mut state, error)) => {
                    state.wanted = None;
                    // Tasks that wait say again what they have room for.
                    state.wakers.wake();
                    return Err(error);
                }
            }
        }
    }

    fn turn(&self, until: Option<Instant>) -> Result<MutexGuard<'_, ()>, MessageError> {
        self.session.here()?;
        match until {
            Some(until) => self
                .receiving
                .try_lock_until(until)
                .ok_or(MessageError::Deadline),
            None => Ok(self.receiving.lock()),
        }
    }

    fn receive_next(
        &self,
        head: &mut [u8],
        body: &mut [MaybeUninit<u8>],
        patience: &Patience<'_>,
    ) -> Result<Option<usize>, MessageError> {
        let session = &*self.session;
        let mut guest = Guest::new(session, head, body);
        let mut state = session.state();
        loop {
            let (now, done) = guest.look(state);
            state = now;
            if let Some(result) = done {
                if matches!(result, Ok(Some(_))) {
                    session.tell_credit(state);
                }
                return result;
            }
            if let Some(error) = session.verdict(&state) {
                return Err(error);
            }
            let until = patience.now(guest.has_begun(&state) && state.is_linked())?;
            state = session.wait(state, until)?;
        }
    }

    /// Announces that nothing more will be sent, and waits until the peer has everything. Receiving goes on.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn finish_sending(&self) -> Result<(), MessageError> {
        self.finish_sending_while(&mut || true)
    }

    /// As [`finish_sending`](Self::finish_sending), and waits no longer when `goes_on`, which is asked ten times a second, says so; it may be called again.
    ///
    /// # Errors
    /// As [`send_while`](Self::send_while).
    pub fn finish_sending_while(
        &self,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), MessageError> {
        self.session.here()?;
        let mut state = self.session.state();
        if !state.sender.is_ended() {
            state.sender.end();
            self.session.more_work(&mut state);
        }
        drop(state);
        in_steps(self.until(), goes_on, |until| {
            let mut state = self.session.state();
            loop {
                if state.sender.unfinished() == 0 {
                    return Ok(());
                }
                if let Some(error) = self.session.verdict(&state) {
                    return Err(error);
                }
                state = self.session.wait(state, until)?;
            }
        })
    }

    /// Ends the socket from any thread: every call that waits returns [`MessageError::Closed`], the peer learns of it.
    /// Messages that the peer does not have are lost. Dropping the socket does the same. Where cut-offs are
    /// [remembered](Options::cut_offs), what this socket has shown is written then, which takes some milliseconds, 2 s at
    /// most on a disk that hangs.
    pub fn close(&self) {
        self.close_within(SLICE);
    }

    /// As [`close`](Self::close), and waits so long for the peer to have heard of it.
    pub(crate) fn close_within(&self, patience: Duration) {
        if !self.session.is_of_this_process() {
            return;
        }
        let remembrance = self.remembrance.lock().take();
        self.session.close_within(patience);
        if let Some(remembrance) = remembrance {
            // Nobody is there to be told; `remember_cut_off` says it.
            let _ = self.write_cut_offs(&remembrance);
        }
    }

    /// What each rail did, in the order of the addresses. Nothing is known in a child of the process.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        if !self.session.is_of_this_process() {
            return Vec::new();
        }
        let state = self.session.state();
        (0..state.links.len())
            .map(|rail| RailReport {
                is_up: (state.links[rail].as_ref()).is_some_and(|link| !link.is_dead()),
                cause: state.causes[rail].clone(),
                bytes_sent: state.carried[rail],
                bytes_received: state.brought[rail],
                bytes_per_second: state.sender.bytes_per_second(rail),
            })
            .collect()
    }

    /// Rails that the host's routing sends out of one interface, and how to keep them apart, and what is wrong with the file
    /// of [cut-offs](Options::cut_offs): text for people, empty when all is well or the kernel does not say. Asks the
    /// kernel each time.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        if !self.session.is_of_this_process() {
            return Vec::new();
        }
        let state = self.session.state();
        let links: Vec<_> = state.links.iter().flatten().cloned().collect();
        drop(state);
        let ends = links
            .iter()
            .map(|link| (link.rail, link.ends.0, link.ends.1));
        let mut all = routing::warnings(&ends.collect::<Vec<_>>());
        all.extend(self.recalled.lock().as_ref().err().cloned());
        all
    }

    /// Closes the connection of a rail, as if the network had. The connecting end makes another one.
    pub fn break_rail(&self, rail: usize) {
        if !self.session.is_of_this_process() {
            return;
        }
        let link = self.session.state().links.get(rail).cloned().flatten();
        if let Some(link) = link {
            link.kill();
        }
    }

    /// Changes how messages use the rails from the next one on, at this end.
    pub fn set_mode(&self, mode: Mode) {
        if self.session.is_of_this_process() {
            self.session.state().mode = mode;
        }
    }
}

impl Drop for MessageSocket {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for MessageSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageSocket")
            .field("rails", &self.rails())
            .finish_non_exhaustive()
    }
}

/// What a caller who waits for a message is told; `None` when it is still on its way.
pub(crate) fn done(fate: Fate, message: u64) -> Option<Result<(), MessageError>> {
    match fate {
        Fate::OnItsWay => None,
        Fate::Arrived => Some(Ok(())),
        Fate::Cancelled => Some(Err(MessageError::Cancelled)),
        Fate::Forgotten => Some(Err(MessageError::Misuse(format!(
            "what became of message {message} is not remembered: {CANCELLED_MAX} were cancelled since; wait sooner"
        )))),
    }
}

/// Bytes on loan to the threads of rails.
struct Lent<'a>(&'a Source);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.take_back();
    }
}
