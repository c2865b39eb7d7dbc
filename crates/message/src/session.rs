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
use ropewalk_model::Range;
use ropewalk_proto::message::cutoff;
use ropewalk_proto::message::frame::{DISCARD, Entry, Header, Kind, PROMPT};
use ropewalk_proto::message::{
    Arrival, Body, Fragment, Front, Landing as Where, RailHealth, RailId, Receiver, Sender, Spread,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::link::{Frames, Landing, Link, LinkError, SLICE, Writer};
use crate::memory::{Place, Source};
use crate::{MessageError, Mode};

/// How long a caller's claim on the link he reads outlasts his last wait.
pub(crate) const LEASE: Duration = Duration::from_millis(2);
/// How long a caller waits for another thread that is reading before he tries to read himself.
const TAKE_OVER: Duration = Duration::from_millis(5);
/// Entries of acknowledgements that may wait on one rail: more frames than a peer has credit for.
const ENTRIES_WAITING_MAX: usize = 1 << 16;
/// Acknowledgements are sent after so many fragments, or when there is nothing more to read.
const ENTRIES_PROMPT: usize = 2;

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
    pub kept: BTreeMap<(u64, u64), Vec<u8>>,
    pub mode: Mode,
    pub cut_off: cutoff::CutOff,
    /// Whether the cut-off follows measurements and the peer's word.
    pub follows: bool,
    /// The rail that small messages come on.
    pub favourite: RailId,
    /// Callers in `poll`: the bell wakes them. Callers in `changed`.
    polling: usize,
    waiting: usize,
    /// Counts news for each sending thread.
    work: Vec<u64>,
    pub closed: bool,
    pub peer_closed: bool,
    /// Since when no rail works, and why the last one failed.
    pub down: Option<(u64, String)>,
    pub lost: bool,
    /// Bytes of messages that each rail brought, and carried.
    pub brought: Vec<u64>,
    pub carried: Vec<u64>,
}

impl State {
    /// Other rails work than before.
    fn rails_changed(&mut self) {
        if self.follows {
            self.cut_off.rails_changed(CUT_OFF_UNKNOWN);
        }
    }
}

/// One socket, as its threads see it.
pub(crate) struct Session {
    pub check: bool,
    pub peer_timeout: Duration,
    state: Mutex<State>,
    /// For callers.
    changed: Condvar,
    /// For the sending thread of each rail.
    work: Vec<Condvar>,
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
                mode: options.mode,
                cut_off: cutoff::CutOff::new(cut_off),
                follows,
                favourite: 0,
                polling: 0,
                waiting: 0,
                work: vec![0; rails],
                closed: false,
                peer_closed: false,
                down: None,
                lost: false,
                brought: vec![0; rails],
                carried: vec![0; rails],
            }),
            changed: Condvar::new(),
            work: (0..rails).map(|_| Condvar::new()).collect(),
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
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        if state.polling > 0 {
            // A full counter has rung already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes all sending threads.
    pub(crate) fn more_work(&self, state: &mut State) {
        (0..self.work.len()).for_each(|rail| self.wake(state, rail));
    }

    /// Wakes the sending threads of one rail: a new link's, and an old one's that is leaving.
    pub(crate) fn wake(&self, state: &mut State, rail: RailId) {
        state.work[rail] += 1;
        self.work[rail].notify_all();
    }

    /// What [`wait_for_work`](Self::wait_for_work) has to be told.
    pub(crate) fn work_seen(&self, rail: RailId) -> u64 {
        self.state().work[rail]
    }

    /// Waits for news as a sending thread that has seen so much of it.
    pub(crate) fn wait_for_work(&self, rail: RailId, seen: u64) {
        let mut state = self.state();
        if state.work[rail] == seen && !state.closed {
            self.work[rail].wait_for(&mut state, IDLE);
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
        if state.closed {
            link.kill();
            return Ok(());
        }
        link.mark_sent(now);
        state.sender.rail_up(rail);
        state.receiver.link_up(rail, link.number);
        state.health[rail].connected(now);
        state.links[rail] = Some(link.clone());
        state.rails_changed();
        state.down = None;
        self.news(&mut state);
        self.more_work(&mut state);
        drop(state);
        crate::threads::start(self, &link).inspect_err(|_| self.fail(&link, &LinkError::Closed))
    }

    /// A link is over: its rail's fragments become ready for the others.
    pub(crate) fn fail(&self, link: &Arc<Link>, cause: &LinkError) {
        link.kill();
        let now = self.now_ns();
        let mut state = self.state();
        let rail = link.rail;
        if !state.links[rail]
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, link))
        {
            return;
        }
        state.links[rail] = None;
        state.rails_changed();
        state.sender.rail_failed(rail);
        let heir = state.links.iter().position(Option::is_some);
        state.receiver.link_failed(rail, heir);
        state.health[rail].failed(now);
        if heir.is_none() {
            state.down = Some((now, cause.to_string()));
        }
        if state.favourite == rail {
            self.set_favourite(&mut state, heir.unwrap_or(0));
        }
        self.news(&mut state);
        self.more_work(&mut state);
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
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
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
        state.polling += 1;
        let owes = state.receiver.owes(favourite);
        drop(state);
        let result = (|| {
            if reader.is_drained() {
                if owes {
                    self.acknowledge(link)?;
                }
                if link.wait_readable(Some(self.bell.as_fd()), left(SLICE))? {
                    // Another caller may have been faster.
                    let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                }
            }
            link.read(&mut reader, self)?;
            self.send_on(link, deadline)
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

    /// Begins a message; waits while too many are on their way.
    pub(crate) fn start(
        &self,
        way: impl Fn(&mut State) -> Way,
        length: u64,
        source: &Arc<Source>,
        deadline: Option<Instant>,
    ) -> Result<u64, MessageError> {
        let mut state = self.state();
        loop {
            if let Some(error) = self.verdict(&state) {
                return Err(error);
            }
            if state.sender.is_ended() {
                return Err(MessageError::Closed);
            }
            let Way { spread, flags } = way(&mut state);
            let Some(message) = state.sender.start(length, spread, flags) else {
                state = self.wait(state, deadline)?;
                continue;
            };
            state.sources.insert(message, source.clone());
            let rail = match spread {
                Spread::On(rail) => Some(rail),
                Spread::Single | Spread::Equal | Spread::Balanced => state.sender.best(),
            };
            if matches!(spread, Spread::Equal | Spread::Balanced) {
                self.more_work(&mut state);
            }
            let link = rail.and_then(|rail| state.links[rail].clone());
            // A rail that is busy finishes what it does, then its own thread goes on with this.
            let writer = link
                .as_ref()
                .and_then(|link| Some((link, link.writer.try_lock()?)));
            match writer {
                Some((link, mut writer)) if writer.is_clear() => {
                    drop(state);
                    let result = self.send_ready(link, &mut writer, deadline);
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

    /// Sends what acknowledgements have made room for, without a change of threads. Whatever is left when `until` has
    /// passed is for the sending thread.
    pub(crate) fn send_on(&self, link: &Link, until: Option<Instant>) -> Result<(), LinkError> {
        if !link.take_room() {
            return Ok(());
        }
        match link.writer.try_lock() {
            Some(mut writer) if writer.is_clear() => self.send_ready(link, &mut writer, until),
            _ => {
                self.wake(&mut self.state(), link.rail);
                Ok(())
            }
        }
    }

    /// Sends what the rail of a link may take, as its writer.
    pub(crate) fn send_ready(
        &self,
        link: &Link,
        writer: &mut Writer,
        until: Option<Instant>,
    ) -> Result<(), LinkError> {
        loop {
            let now = self.now_ns();
            let mut state = self.state();
            if link.is_dead() {
                return Err(LinkError::Closed);
            }
            // A newer link may have taken the rail over: its fragments are not this link's.
            let own = state.links[link.rail].as_ref();
            if own.is_none_or(|own| own.number != link.number) {
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
                self.wake(&mut self.state(), link.rail);
                return Ok(());
            }
        }
    }

    /// Sends what the peer waits for on a link, now if nobody else is sending on it, else through the thread that is.
    pub(crate) fn acknowledge(&self, link: &Link) -> Result<(), LinkError> {
        let Some(mut writer) = link.writer.try_lock() else {
            link.nudge();
            self.wake(&mut self.state(), link.rail);
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
                self.wake(&mut state, link.rail);
                return Ok(());
            }
            if !state.receiver.owes(link.rail) {
                return Ok(());
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
        let (done_below, credit) = self.state().receiver.tell();
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
        if next != message
            || state
                .offer
                .as_ref()
                .is_none_or(|place| (place.len() as u64) < length)
        {
            return None;
        }
        let place = state.offer.take()?;
        self.claim(state, message, &place);
        Some(place)
    }

    /// The first message comes into this place from now on; what came before is copied there.
    pub(crate) fn claim(&self, state: &mut State, message: u64, place: &Arc<Place>) {
        state.receiver.claim();
        state.claimed = Some((message, place.clone()));
        while let Some(first) = state.kept.first_entry()
            && first.key().0 <= message
        {
            let ((of, offset), bytes) = first.remove_entry();
            if of == message {
                put(place, offset, &bytes);
            }
        }
    }
}

/// Copies bytes into a claimed place, as no link in particular.
fn put(place: &Place, offset: u64, bytes: &[u8]) {
    let range = Range::new(offset, offset + bytes.len() as u64);
    // Whole fragments of the message's own length: they fit, and no link is writing what has arrived.
    let _ = place.with(u64::MAX, u32::MAX, range, |room| {
        room.copy_from_slice(bytes)
    });
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
        if state.receiver.waiting_entries(link.rail) > ENTRIES_WAITING_MAX {
            return Err(LinkError::Protocol("it reads no acknowledgements"));
        }
        let Where::Place { range, taken_over } = state.receiver.begin(link.number, header)? else {
            return Ok(Landing::Nowhere);
        };
        if let Some(place) = self.place(&mut state, header.message) {
            if taken_over {
                place.hand_over(header.fragment, link.number);
            }
            return Ok(Landing::Place(place));
        }
        drop(state);
        Ok(Landing::Kept(vec![0; range.len() as usize]))
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
            };
        let arrival = state.receiver.data(link.rail, link.number, header, good);
        if arrival != Arrival::Nothing {
            state.brought[link.rail] += u64::from(header.length);
            if let Landing::Kept(bytes) = landing {
                let offset = header.range().start;
                match &state.claimed {
                    Some((message, place)) if *message == header.message => {
                        put(place, offset, &bytes)
                    }
                    _ => drop(state.kept.insert((header.message, offset), bytes)),
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
                    link.found_room();
                }
            }
            Kind::Cancel | Kind::End => {
                state.receiver.whole(link.rail, link.number, header)?;
                if header.kind == Kind::Cancel {
                    state
                        .kept
                        .retain(|&(message, _), _| message != header.message);
                    if state
                        .claimed
                        .as_ref()
                        .is_some_and(|(message, _)| *message == header.message)
                    {
                        // Links may still be writing to it; the caller lends his memory anew for the next message.
                        if let Some((_, place)) = state.claimed.take() {
                            place.close();
                        }
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
