//! What the two ends of one message socket share among their threads.
//!
//! ```text
//!   caller: send ──▶ best rail, by itself (below the cut-off)
//!               └──▶ status vector ──▶ sending thread of each rail ──▶ link ═══▶ peer
//!   caller: receive ◀── link, by itself ◀═══ peer
//!               └────── receiving thread of each other rail
//! ```
//!
//! One lock guards the state and is held for no system call. Lock order: reader or writer of a link, then state.
//! A caller who waits reads the link that small messages come on; its own thread stays away meanwhile and for
//! [`LEASE`] after, so that a ping-pong wakes nobody else. What that costs: an acknowledgement that no answer
//! carries may be [`LEASE`] late.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::message::cutoff;
use ropewalk_proto::message::frame::{DISCARD, Entry, FRAGMENT_MAX, Header, Kind, PROMPT};
use ropewalk_proto::message::{
    Arrival, Body, Fragment, Front, Landing as Where, RailHealth, RailId, Receiver, Sender, Spread,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::asynchronous::Wakers;
use crate::dial::DialError;
use crate::link::{Frames, Landing, Link, LinkError, SLICE, Writer};
use crate::memory::{Kept, Place, Source};
use crate::{MessageError, Mode};

/// How long a caller's claim on the link he reads outlasts his last wait.
pub(crate) const LEASE: Duration = Duration::from_millis(2);
/// How long a caller waits for another thread that is reading before he tries to read himself.
const TAKE_OVER: Duration = Duration::from_millis(5);
/// Entries of acknowledgements that may wait on one rail: more frames than a peer has credit for.
const ENTRIES_WAITING_MAX: usize = 1 << 16;
/// Acknowledgements are sent at the latest after so many fragments: a rail of the sender has two in transit.
const ENTRIES_PROMPT: usize = 1;

/// Bytes that a caller sends by himself without being asked to wait: what a socket takes at once.
const INLINE_MAX: u64 = 64 << 10;
/// Bytes that are copied under the session's lock at most.
const COPY_MAX: usize = 64 << 10;

/// How long threads of rails rest at a time while nothing happens; whatever does wakes them.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

/// How a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub spread: Spread,
    pub flags: u8,
}

pub(crate) struct State {
    pub sender: Sender,
    pub receiver: Receiver,
    pub health: Vec<RailHealth>,
    pub links: Vec<Option<Arc<Link>>>,
    /// Bytes of messages on their way.
    pub sources: BTreeMap<u64, Arc<Source>>,
    /// Memory of the caller who receives, until the next message begins to come.
    pub offer: Option<Arc<Place>>,
    /// The message that comes into a caller's memory.
    pub claimed: Option<(u64, Arc<Place>)>,
    /// Bytes that came of messages nobody receives yet, by message and offset.
    pub kept: BTreeMap<(u64, u64), Kept>,
    /// Messages begun so far, and of those longer than a caller sends by himself.
    pub started: u64,
    long_started: u64,
    pub mode: Mode,
    pub cut_off: cutoff::CutOff,
    /// Whether the cut-off follows measurements and the peer's word.
    pub follows: bool,
    /// The rail that small messages come on.
    pub favourite: RailId,
    /// Callers in `poll`: the bell wakes them, and stays rung until the last of them has left. Callers in `changed`.
    polling: usize,
    rung: bool,
    waiting: usize,
    /// Counts news for sending threads.
    pub work: u64,
    pub closed: bool,
    pub peer_closed: bool,
    /// Since when no rail works, and why the last one failed.
    pub down: Option<(u64, String)>,
    pub lost: bool,
    /// Tasks that wait, and what one that waits for a message has room for.
    pub wakers: Wakers,
    pub wanted: Option<u64>,
    /// Why each rail that is down is.
    pub causes: Vec<Option<String>>,
    /// Bytes of messages that each rail brought, and carried.
    pub brought: Vec<u64>,
    pub carried: Vec<u64>,
}

/// One socket, as its threads see it.
pub(crate) struct Session {
    pub check: bool,
    pub peer_timeout: Duration,
    state: Mutex<State>,
    /// Bytes that [`Kept`] holds.
    kept_bytes: Arc<AtomicU64>,
    /// For callers.
    changed: Condvar,
    /// For sending threads.
    work: Condvar,
    /// For the keeper, when the socket closes.
    pub closing: Condvar,
    bell: OwnedFd,
    epoch: Instant,
    inside: AtomicUsize,
    left_ns: AtomicU64,
    favourite: AtomicUsize,
}

impl Session {
    /// A session whose rails are all down.
    pub(crate) fn new(
        rails: usize,
        options: &crate::Options,
        check: bool,
        peer_window: u64,
    ) -> std::io::Result<Self> {
        let (cut_off, follows) = match options.cut_off {
            crate::CutOff::Fixed(value) => (value, false),
            crate::CutOff::Measured(_) => (CUT_OFF_UNKNOWN, true),
        };
        Ok(Self {
            check,
            peer_timeout: options.peer_timeout,
            state: Mutex::new(State {
                sender: Sender::new(rails, peer_window),
                receiver: Receiver::new(rails, options.window),
                health: vec![RailHealth::default(); rails],
                links: vec![None; rails],
                sources: BTreeMap::new(),
                offer: None,
                claimed: None,
                kept: BTreeMap::new(),
                started: 0,
                long_started: 0,
                mode: options.mode,
                cut_off: cutoff::CutOff::new(cut_off),
                follows,
                favourite: 0,
                polling: 0,
                rung: false,
                waiting: 0,
                work: 0,
                closed: false,
                peer_closed: false,
                down: None,
                lost: false,
                wakers: Wakers::default(),
                wanted: None,
                causes: vec![None; rails],
                brought: vec![0; rails],
                carried: vec![0; rails],
            }),
            kept_bytes: Arc::default(),
            changed: Condvar::new(),
            work: Condvar::new(),
            closing: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            epoch: Instant::now(),
            inside: AtomicUsize::new(0),
            left_ns: AtomicU64::new(0),
            favourite: AtomicUsize::new(0),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Wakes callers: something they wait for may have happened.
    fn news(&self, state: &mut State) {
        state.wakers.wake();
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        if state.polling > 0 && !std::mem::replace(&mut state.rung, true) {
            // A full counter has rung already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes sending threads.
    pub(crate) fn more_work(&self, state: &mut State) {
        state.work += 1;
        self.work.notify_all();
    }

    /// Waits for news as a sending thread that has seen `work`.
    pub(crate) fn wait_for_work(&self, seen: u64) {
        let mut state = self.state();
        if state.work == seen {
            self.work.wait_for(&mut state, IDLE);
        }
    }

    /// Whether callers read this link themselves.
    pub(crate) fn callers_read(&self, link: &Link) -> bool {
        if self.favourite.load(Ordering::Relaxed) != link.rail {
            return false;
        }
        let left = self.left_ns.load(Ordering::Relaxed);
        self.inside.load(Ordering::Acquire) > 0
            || self.now_ns().saturating_sub(left) < LEASE.as_nanos() as u64
    }

    /// A thread has stopped reading a link: a caller who waits for it can.
    pub(crate) fn reader_is_free(&self) {
        if self.state().waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes a fresh connection into use.
    pub(crate) fn add_link(self: &Arc<Self>, link: Link) -> std::io::Result<()> {
        let link = Arc::new(link);
        let rail = link.rail;
        let old = self.state().links[rail].take();
        if let Some(old) = old {
            old.kill();
        }
        let now = self.now_ns();
        let mut state = self.state();
        if self.verdict(&state).is_some() {
            link.kill();
            return Ok(());
        }
        link.mark_sent(now);
        state.sender.rail_up(rail);
        state.receiver.link_up(rail, link.number);
        state.health[rail].connected(now);
        state.links[rail] = Some(link.clone());
        state.causes[rail] = None;
        state.down = None;
        self.news(&mut state);
        self.more_work(&mut state);
        drop(state);
        crate::threads::start(self, &link).inspect_err(|_| self.fail(&link, &LinkError::Closed))
    }

    /// A link is over: its rail's fragments become ready for the others.
    pub(crate) fn fail(&self, link: &Arc<Link>, cause: &LinkError) {
        let rail = link.rail;
        let is_own = |state: &State| {
            let own = state.links[rail].as_ref();
            own.is_some_and(|own| Arc::ptr_eq(own, link))
        };
        let mut state = self.state();
        if is_own(&state) && state.causes[rail].is_none() {
            // Before its threads find the link closed, which says nothing.
            state.causes[rail] = Some(cause.to_string());
        }
        drop(state);
        link.kill();
        let now = self.now_ns();
        let mut state = self.state();
        if !is_own(&state) {
            return;
        }
        state.links[rail] = None;
        state.sender.rail_failed(rail);
        let heir = state.links.iter().position(Option::is_some);
        state.receiver.link_failed(rail, heir);
        state.health[rail].failed(now);
        if heir.is_none() {
            let cause = state.causes[rail].clone().unwrap_or_default();
            state.down = Some((now, cause));
        }
        if state.favourite == rail {
            self.set_favourite(&mut state, heir.unwrap_or(0));
        }
        self.news(&mut state);
        self.more_work(&mut state);
    }

    /// An attempt to make a link came to nothing.
    pub(crate) fn dial_failed(&self, rail: RailId, error: &DialError) {
        let mut state = self.state();
        state.health[rail].failed(self.now_ns());
        if state.links[rail].is_none() {
            state.causes[rail] = Some(error.to_string());
        }
        match error {
            DialError::Gone => {
                state.peer_closed = true;
                self.finish(&mut state);
            }
            DialError::Io(error) => {
                if let Some((_, cause)) = &mut state.down {
                    *cause = error.to_string();
                }
            }
        }
    }

    /// Everything ends: callers see why, threads leave.
    pub(crate) fn finish(&self, state: &mut State) {
        self.news(state);
        self.changed.notify_all();
        self.more_work(state);
        self.closing.notify_all();
    }

    fn set_favourite(&self, state: &mut State, rail: RailId) {
        state.favourite = rail;
        self.favourite.store(rail, Ordering::Relaxed);
        // Whoever reads the old one changes over.
        self.news(state);
    }

    /// Whether a link is the one that its rail has now. What a link that was replaced is told is lost with it.
    fn is_current(state: &State, link: &Link) -> bool {
        let own = state.links.get(link.rail).and_then(Option::as_ref);
        !link.is_dead() && own.is_some_and(|own| own.number == link.number)
    }

    /// Ends the socket: the peer is told, callers see it, threads leave.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let links: Vec<Arc<Link>> = state.links.iter().flatten().cloned().collect();
        self.finish(&mut state);
        drop(state);
        for link in links {
            // Acknowledgements that are due ride along. A link that cannot send them tells by its end.
            let _ = self.say(&link, Header::new(Kind::Bye), SLICE);
            link.kill();
        }
        // Threads that rested meanwhile see that their links are over.
        self.more_work(&mut self.state());
    }

    /// Whether it is closed at either end, or lost.
    pub(crate) fn is_over(&self) -> bool {
        self.verdict(&self.state()).is_some()
    }

    /// Whether any rail works.
    pub(crate) fn is_linked(&self) -> bool {
        self.state().links.iter().any(Option::is_some)
    }

    /// Why nothing can be waited for any more.
    pub(crate) fn verdict(&self, state: &State) -> Option<MessageError> {
        if state.closed {
            Some(MessageError::Closed)
        } else if state.peer_closed {
            Some(MessageError::PeerClosed)
        } else if state.lost {
            Some(MessageError::PeerLost {
                seconds: self.peer_timeout.as_secs(),
                cause: state
                    .down
                    .as_ref()
                    .map_or_else(String::new, |(_, cause)| cause.clone()),
            })
        } else {
            None
        }
    }

    /// Waits a little for news, reading the link that small messages come on when nobody else does. The caller looks
    /// at the state again afterwards.
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, State>, MessageError> {
        let left = |most: Duration| match deadline {
            Some(deadline) => most.min(deadline.saturating_duration_since(Instant::now())),
            None => most,
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(MessageError::Deadline);
        }
        let favourite = state.favourite;
        let link = state.links.get(favourite).cloned().flatten();
        let held = link
            .as_ref()
            .and_then(|link| link.reader.try_lock().map(|held| (link, held)));
        let Some((link, mut reader)) = held else {
            let any = link
                .clone()
                .or_else(|| state.links.iter().flatten().next().cloned());
            if let Some(any) = any.filter(|any| state.receiver.owes(any.rail)) {
                // Whoever reads may be waiting for what the peer sends only when it hears this.
                drop(state);
                self.tell(&any);
                return Ok(self.state());
            }
            // The link's own thread makes room after the frame it is at.
            self.left_ns.store(self.now_ns(), Ordering::Relaxed);
            state.waiting += 1;
            self.changed.wait_for(&mut state, left(TAKE_OVER));
            state.waiting -= 1;
            return Ok(state);
        };
        self.inside.fetch_add(1, Ordering::AcqRel);
        if state.polling == 0 && std::mem::take(&mut state.rung) {
            // It rang for callers who have all left.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        state.polling += 1;
        let owes = state.receiver.owes(favourite);
        drop(state);
        let result = (|| {
            if reader.is_drained() {
                if owes {
                    self.acknowledge(link)?;
                }
                link.wait_readable(Some(self.bell.as_fd()), left(SLICE))?;
            }
            link.read(&mut reader, self)
        })();
        drop(reader);
        self.left_ns.store(self.now_ns(), Ordering::Relaxed);
        self.inside.fetch_sub(1, Ordering::AcqRel);
        if let Err(error) = result {
            self.fail(link, &error);
        }
        let mut state = self.state();
        state.polling -= 1;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        Ok(state)
    }

    /// Begins a message; waits while too many are on their way. The caller sends it himself if it is one rail's and
    /// nothing long is before it, until the deadline.
    pub(crate) fn start(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
    ) -> Result<u64, MessageError> {
        self.start_until(way, length, source, deadline, u64::MAX, || deadline)
    }

    /// As [`start`](Self::start); what the kernel does not take at once, or is long, is left to the rail's thread.
    pub(crate) fn start_only(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
    ) -> Result<u64, MessageError> {
        let now = || Some(Instant::now());
        self.start_until(way, length, source, deadline, INLINE_MAX, now)
    }

    /// Begins a message if that is possible now, and leaves it to the threads of the rails.
    pub(crate) fn try_start(
        &self,
        state: &mut State,
        way: Way,
        length: u64,
        source: &Arc<Source>,
    ) -> Result<Option<u64>, MessageError> {
        if let Some(error) = self.verdict(state) {
            return Err(error);
        }
        if state.sender.is_ended() {
            return Err(MessageError::Closed);
        }
        let Some(message) = state.sender.start(length, way.spread, way.flags) else {
            return Ok(None);
        };
        state.started = message + 1;
        if length > INLINE_MAX {
            state.long_started = message + 1;
        }
        state.sources.insert(message, source.clone());
        Ok(Some(message))
    }

    fn start_until(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
        inline_max: u64,
        until: impl FnOnce() -> Option<Instant>,
    ) -> Result<u64, MessageError> {
        let mut state = self.state();
        loop {
            let way = way(&mut state);
            let long_before = state.long_started;
            let Some(message) = self.try_start(&mut state, way, length, source)? else {
                state = self.wait(state, deadline)?;
                continue;
            };
            let spread = way.spread;
            let clear = long_before == 0 || state.sender.is_finished(long_before - 1);
            let single = matches!(spread, Spread::Single | Spread::On(_));
            let rail = match spread {
                Spread::On(rail) => Some(rail),
                Spread::Single | Spread::Equal | Spread::Balanced => state.sender.best(),
            };
            let link = rail
                .and_then(|rail| state.links[rail].clone())
                .filter(|_| single && clear && length <= inline_max);
            // A rail that is busy finishes what it does, then its own thread goes on with this.
            let writer = link
                .as_ref()
                .and_then(|link| Some((link, link.writer.try_lock()?)));
            match writer {
                Some((link, mut writer)) if writer.is_clear() => {
                    drop(state);
                    let result = self.send_up_to(link, &mut writer, until(), message);
                    drop(writer);
                    if let Err(error) = result {
                        self.fail(link, &error);
                    }
                }
                _ => self.more_work(&mut state),
            }
            return Ok(message);
        }
    }

    /// Sends what the rail of a link may take, as its writer.
    pub(crate) fn send_ready(
        &self,
        link: &Link,
        writer: &mut Writer,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        self.send_up_to(link, writer, until, u64::MAX)
    }

    /// Sends what the rail of a link may take, up to the end of message `last`.
    fn send_up_to(
        &self,
        link: &Link,
        writer: &mut Writer,
        until: Option<Instant>,
        last: u64,
    ) -> Result<(), LinkError> {
        loop {
            let now = self.now_ns();
            let mut state = self.state();
            // A newer link may have taken the rail over: its fragments are not this link's.
            if !Self::is_current(&state, link) {
                return Err(LinkError::Closed);
            }
            let Some(fragment) = state.sender.take(link.rail, now) else {
                return Ok(());
            };
            let (done_below, credit) = state.receiver.tell();
            let source = state.sources.get(&fragment.message).cloned();
            state.carried[link.rail] += fragment.range.len();
            drop(state);
            link.mark_sent(now);
            let header = header_of(&fragment, done_below, credit);
            match (fragment.body, source) {
                (Body::Bytes, Some(source)) => {
                    link.send_fragment(writer, &header, &source, until)?
                }
                (Body::Bytes, None) => {
                    // Its caller is gone: the frame keeps its place, the bytes are marked as taken back.
                    let none = Source::owned(Vec::new());
                    none.take_back();
                    link.send_fragment(writer, &header, &none, until)?;
                }
                (Body::Cancelled | Body::End, _) => {
                    link.flush(writer, true)?;
                    link.send_control(writer, &header, &[])?;
                }
            }
            if !writer.is_clear() {
                // The deadline passed in the middle: the sending thread goes on.
                let mut state = self.state();
                self.more_work(&mut state);
                return Ok(());
            }
            if link.is_nudged() && link.take_nudge() {
                // Acknowledgements do not wait until there is nothing more to send.
                self.acknowledge_as(link, writer)?;
                if !writer.is_clear() {
                    return Ok(());
                }
            }
            if fragment.message >= last && fragment.range.end == fragment.message_len {
                return Ok(());
            }
        }
    }

    /// Sends what the peer waits for on a link, now if nobody else is sending on it, else through the thread that is.
    pub(crate) fn acknowledge(&self, link: &Link) -> Result<(), LinkError> {
        let Some(mut writer) = link.writer.try_lock() else {
            link.nudge();
            let mut state = self.state();
            self.more_work(&mut state);
            return Ok(());
        };
        self.acknowledge_as(link, &mut writer)
    }

    /// Acknowledges; a link that cannot is over.
    fn tell(&self, link: &Arc<Link>) {
        if let Err(error) = self.acknowledge(link) {
            self.fail(link, &error);
        }
    }

    /// Tells the peer of credit that came free, when it may be waiting for it.
    pub(crate) fn tell_credit(&self, state: MutexGuard<'_, State>) {
        if !state.receiver.owes_credit() {
            return;
        }
        let own = state.links.get(state.favourite).cloned().flatten();
        let any = own.or_else(|| state.links.iter().flatten().next().cloned());
        drop(state);
        if let Some(any) = any {
            self.tell(&any);
        }
    }

    /// Sends what the peer waits for on a link, as its writer.
    pub(crate) fn acknowledge_as(&self, link: &Link, writer: &mut Writer) -> Result<(), LinkError> {
        loop {
            link.flush(writer, false)?;
            let now = self.now_ns();
            let mut state = self.state();
            if !writer.is_clear() {
                // The kernel is full: the sending thread waits for it.
                self.more_work(&mut state);
                return Ok(());
            }
            if !state.receiver.owes(link.rail) {
                return Ok(());
            }
            // What is told on a link that was replaced would never be told again.
            if !Self::is_current(&state, link) {
                return Err(LinkError::Closed);
            }
            let (done_below, credit) = state.receiver.tell();
            let Some(ack) = state.receiver.ack(link.rail, link.number) else {
                return Ok(());
            };
            drop(state);
            let payload: Vec<u8> = ack.entries.iter().flat_map(Entry::encode).collect();
            let header = Header {
                length: payload.len() as u32,
                fragment_len: ack.frames,
                done_below,
                credit,
                ..Header::new(Kind::Ack)
            };
            link.mark_sent(now);
            link.send_control(writer, &header, &payload)?;
        }
    }

    /// Sends a frame without payload, unless somebody else is sending on the link for longer than `wait`.
    pub(crate) fn say(&self, link: &Link, header: Header, wait: Duration) -> Result<(), LinkError> {
        let Some(mut writer) = link.writer.try_lock_for(wait) else {
            return Ok(());
        };
        // What cannot be sent must not count as told.
        let mut state = self.state();
        if !writer.has_room() || !Self::is_current(&state, link) {
            return Ok(());
        }
        let (done_below, credit) = state.receiver.tell();
        drop(state);
        link.mark_sent(self.now_ns());
        let header = Header {
            done_below,
            credit,
            ..header
        };
        link.send_control(&mut writer, &header, &[])?;
        Ok(())
    }

    /// Takes what every frame carries.
    fn hear(&self, state: &mut State, header: &Header) -> Result<(), LinkError> {
        let before = state.sender.unfinished();
        if !state.sender.done_below(header.done_below, self.now_ns()) {
            return Err(LinkError::Protocol("it acknowledges what was never sent"));
        }
        let more = state.sender.allow(header.credit);
        self.forget_sources(state);
        let left = state.sender.unfinished();
        if left > 0 && (more || left < before) {
            self.more_work(state);
        }
        if left < before {
            self.news(state);
        }
        Ok(())
    }

    /// Refuses more while acknowledgements pile up.
    fn check_entries(&self, state: &State, link: &Link) -> Result<(), LinkError> {
        if state.receiver.waiting_entries(link.rail) > ENTRIES_WAITING_MAX {
            return Err(LinkError::Protocol("it reads no acknowledgements"));
        }
        Ok(())
    }

    fn forget_sources(&self, state: &mut State) {
        while let Some(first) = state.sources.first_entry()
            && state.sender.is_finished(*first.key())
        {
            first.remove();
        }
    }

    /// The place for a fragment of the message that is next, if a caller waits for it.
    fn place(&self, state: &mut State, message: u64) -> Option<Arc<Place>> {
        if let Some((claimed, place)) = &state.claimed {
            return (*claimed == message).then(|| place.clone());
        }
        let Front::Partial {
            message: next,
            length,
        } = state.receiver.front()
        else {
            return None;
        };
        if next != message {
            return None;
        }
        if state.wanted.is_some_and(|most| length <= most) {
            // It comes where all do that nobody receives yet, but somebody waits for it.
            state.receiver.claim();
        }
        let fits = |place: &Arc<Place>| place.is_open() && place.len() as u64 >= length;
        let place = state.offer.take().filter(fits)?;
        for (offset, bytes) in self.claim(state, message, &place) {
            self.put(state, message, &place, offset, bytes);
        }
        Some(place)
    }

    /// The first message comes into this place from now on. Gives what came before, which is to be put there, too.
    pub(crate) fn claim(
        &self,
        state: &mut State,
        message: u64,
        place: &Arc<Place>,
    ) -> Vec<(u64, Kept)> {
        // The memory is this message's now, and no other's.
        state.offer = None;
        if state.claimed.is_none() {
            state.receiver.claim();
            state.claimed = Some((message, place.clone()));
        }
        let mut pieces = Vec::new();
        while let Some(first) = state.kept.first_entry()
            && first.key().0 <= message
        {
            let ((of, offset), bytes) = first.remove_entry();
            if of == message {
                pieces.push((offset, bytes));
            }
        }
        pieces
    }

    /// Bytes of a whole message that came into nobody's memory.
    pub(crate) fn take_kept(&self, state: &mut State, message: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(first) = state.kept.first_entry()
            && first.key().0 <= message
        {
            let ((of, _), piece) = first.remove_entry();
            if of < message {
                continue;
            }
            // Pieces are in order and leave no gap.
            if bytes.is_empty() {
                bytes = piece.into_bytes();
            } else {
                bytes.extend_from_slice(&piece);
            }
        }
        bytes
    }

    /// Puts bytes of the claimed message into its place; they stay with the others when that is closed.
    fn put(&self, state: &mut State, message: u64, place: &Place, offset: u64, bytes: Kept) {
        if !put(place, offset, &bytes) {
            state.kept.insert((message, offset), bytes);
        }
    }

    /// Puts pieces of a claimed message where they belong: without the lock when they are long, while links may
    /// bring others.
    pub(crate) fn put_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        message: u64,
        place: &Place,
        pieces: Vec<(u64, Kept)>,
    ) -> MutexGuard<'a, State> {
        if pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= COPY_MAX {
            for (offset, bytes) in pieces {
                self.put(&mut state, message, place, offset, bytes);
            }
            return state;
        }
        drop(state);
        for (offset, bytes) in &pieces {
            // A place that closed meanwhile was the place of a message that was cancelled.
            let _ = put(place, *offset, bytes);
        }
        self.state()
    }

    /// What has come of a message into a place that closed stays until somebody asks again. Without the lock: nobody
    /// else receives meanwhile, and what comes now goes to `kept` by itself.
    pub(crate) fn keep(&self, message: u64, place: &Place, arrived: &RangeSet) {
        let pieces: Vec<_> = arrived
            .iter()
            .map(|range| {
                let bytes = Kept::of(&self.kept_bytes, place.copy_closed(range));
                ((message, range.start), bytes)
            })
            .collect();
        let mut state = self.state();
        // It may have been cancelled.
        if state.receiver.is_front(message) {
            state.kept.extend(pieces);
        }
    }
}

/// Copies bytes into a claimed place, as no link in particular; `false` when it is closed.
#[must_use]
fn put(place: &Place, offset: u64, bytes: &[u8]) -> bool {
    let range = Range::new(offset, offset + bytes.len() as u64);
    // Whole fragments of the message's own length: they fit, and no link is writing what has arrived.
    let done = place.with(u64::MAX, u32::MAX, range, |room| {
        room.copy_from_slice(bytes)
    });
    done.is_some()
}

/// Cut-off until one is found: where it was on the paper's Gigabit rails.
pub(crate) const CUT_OFF_UNKNOWN: u64 = 32 << 10;

fn header_of(fragment: &Fragment, done_below: u64, credit: u64) -> Header {
    let kind = match fragment.body {
        Body::Bytes => Kind::Data,
        Body::Cancelled => Kind::Cancel,
        Body::End => Kind::End,
    };
    let data = kind == Kind::Data;
    Header {
        flags: if data { fragment.flags } else { 0 },
        length: fragment.range.len() as u32,
        message: fragment.message,
        message_len: fragment.message_len,
        fragment: fragment.fragment,
        fragment_len: fragment.fragment_len,
        done_below,
        credit,
        ..Header::new(kind)
    }
}

impl Frames for Session {
    fn begin(&self, link: &Link, header: &Header) -> Result<Landing, LinkError> {
        let mut state = self.state();
        self.check_entries(&state, link)?;
        let Where::Place { range, taken_over } = state.receiver.begin(link.number, header)? else {
            return Ok(Landing::Nowhere);
        };
        if let Some(place) = self.place(&mut state, header.message) {
            if taken_over {
                place.hand_over(header.fragment, link.number);
            }
            return Ok(Landing::Place(place));
        }
        // Second copies apart, an honest peer stays below; what is refused comes again.
        let most = state
            .receiver
            .room()
            .saturating_add(2 * u64::from(FRAGMENT_MAX));
        drop(state);
        let kept = Kept::new(&self.kept_bytes, range.len(), most);
        Ok(kept.map_or(Landing::Refused, Landing::Kept))
    }

    fn end(
        &self,
        link: &Link,
        header: &Header,
        landing: Landing,
        good: bool,
    ) -> Result<(), LinkError> {
        let mut guard = self.state();
        let state = &mut *guard;
        // Bytes in a place that its caller has left are lost, and the fragment has to come again.
        let good = good
            && match &landing {
                Landing::Place(place) => {
                    let claimed = state.claimed.as_ref();
                    claimed.is_some_and(|(message, own)| {
                        *message == header.message && Arc::ptr_eq(own, place)
                    })
                }
                Landing::Kept(_) | Landing::Nowhere => true,
                Landing::Refused => false,
            };
        let arrival = state.receiver.data(link.rail, link.number, header, good);
        if arrival != Arrival::Nothing {
            state.brought[link.rail] += u64::from(header.length);
            if let Landing::Kept(bytes) = landing {
                let offset = header.range().start;
                let own = state.claimed.as_ref();
                let own = own.filter(|(message, _)| *message == header.message);
                match own.map(|(_, place)| place.clone()) {
                    Some(place) => self.put(state, header.message, &place, offset, bytes),
                    None => drop(state.kept.insert((header.message, offset), bytes)),
                }
            }
        }
        if u64::from(header.fragment_len) >= header.message_len && state.favourite != link.rail {
            self.set_favourite(state, link.rail);
        }
        let heard = self.hear(state, header);
        if arrival == Arrival::Whole {
            self.news(state);
        }
        let prompt = (arrival == Arrival::Whole && header.flags & (PROMPT | DISCARD) != 0)
            || state.receiver.waiting_entries(link.rail) >= ENTRIES_PROMPT;
        drop(guard);
        heard?;
        if prompt {
            self.acknowledge(link)?;
        }
        Ok(())
    }

    fn control(&self, link: &Link, header: &Header, payload: &[u8]) -> Result<(), LinkError> {
        let mut state = self.state();
        self.check_entries(&state, link)?;
        let before = state.sender.unfinished();
        match header.kind {
            Kind::Ack => {
                for entry in Entry::decode_all(payload) {
                    state.sender.arrived(entry);
                }
                let now = self.now_ns();
                if state.links[link.rail]
                    .as_ref()
                    .is_some_and(|own| own.number == link.number)
                {
                    state.sender.processed(link.rail, header.fragment_len, now);
                }
                if state.sender.unfinished() < before {
                    self.news(&mut state);
                }
                if state.sender.unfinished() > 0 {
                    self.more_work(&mut state);
                }
            }
            Kind::Cancel | Kind::End => {
                let arrival = state.receiver.whole(link.rail, link.number, header)?;
                // A message that was whole before stays, bytes and all.
                if header.kind == Kind::Cancel && arrival == Arrival::Whole {
                    state
                        .kept
                        .retain(|&(message, _), _| message != header.message);
                    let own = |claimed: &mut (u64, Arc<Place>)| claimed.0 == header.message;
                    if let Some((_, place)) = state.claimed.take_if(own) {
                        // Links may still be writing to it; the caller lends his memory anew for the next message.
                        place.close();
                    }
                }
                self.news(&mut state);
            }
            Kind::CutOff => {
                if state.follows {
                    state.cut_off = cutoff::CutOff::new(header.message);
                }
                state.sender.set_best(header.fragment as RailId);
            }
            Kind::Bye => {
                state.peer_closed = true;
                self.hear(&mut state, header)?;
                self.finish(&mut state);
                return Ok(());
            }
            Kind::Alive | Kind::Data => {}
        }
        self.hear(&mut state, header)
    }
}

#[cfg(test)]
mod tests;
