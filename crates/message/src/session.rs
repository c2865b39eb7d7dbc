//! What the two ends of one message socket share among their threads.
//!
//! ```text
//!   caller: send ──▶ best rail, by itself (below the cut-off)
//!               └──▶ status vector ──▶ sending thread of each rail ──▶ link ═══▶ peer
//!   caller: receive ◀── link, by itself ◀═══ peer
//!               └────── receiving thread of each other rail
//! ```
//!
//! One lock guards the state and is held for no system call but the bell's, which does not wait, nor while tasks are woken
//! (`session/locked.rs`). Lock order: reader or writer of a link, then state. A caller that waits reads the link on which
//! small messages arrive; its own thread stays away meanwhile and for [`LEASE`] after, so that a ping-pong wakes no other thread. What
//! that costs: an acknowledgement that no answer carries may be [`LEASE`] late.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_model::{Nanos, time};
use ropewalk_proto::message::cutoff;
use ropewalk_proto::message::{Front, RailId, Receiver, Sender, Spread};
use ropewalk_proto::node::RailHealth;
use rustix::event::{EventfdFlags, eventfd};

use crate::asynchronous::Wakers;
use crate::dial::DialError;
use crate::link::{Link, LinkError, SLICE, Step};
use crate::memory::{Kept, Place, Source};
use crate::process::Maker;
use crate::{MessageError, Mode};

pub(crate) use locked::Locked;

/// How long a caller's claim on the link he reads outlasts his last wait.
pub(crate) const LEASE: Duration = Duration::from_millis(2);

/// How long threads of rails rest at a time while nothing happens; whatever does wakes them.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

/// Frames of a broken link that are still read: acknowledgements and a farewell.
const FRAMES_UNREAD: usize = 64;

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
    /// Memory of the caller that receives, until the next message begins to arrive.
    pub offer: Option<Arc<Place>>,
    /// The message that is received into a caller's memory.
    pub claimed: Option<(u64, Arc<Place>)>,
    /// A caller leaves, and what was received into its memory is not in `kept` yet: no caller may receive.
    pub leaving: bool,
    /// The message whose caller has left: it goes on in memory that stays, so that it becomes whole however short the calls are.
    pub left: Option<u64>,
    /// Bytes received of messages that no caller receives yet, by message and offset.
    pub kept: BTreeMap<(u64, u64), Kept>,
    /// Messages begun so far, and of those longer than a caller sends by himself.
    pub started: u64,
    long_started: u64,
    pub mode: Mode,
    pub cut_off: cutoff::Standing,
    /// The rail on which small messages arrive.
    pub favourite: RailId,
    /// Callers in `poll`: the bell wakes them, and stays rung until the last of them has left. Callers in `changed`.
    polling: usize,
    rung: bool,
    waiting: usize,
    /// Counts news for each sending thread.
    work: Vec<u64>,
    pub closed: bool,
    pub peer_closed: bool,
    /// Since when no rail works, and why the last one failed.
    pub down: Option<(time::Instant, String)>,
    pub lost: bool,
    /// Tasks that wait, and how much memory one that waits for a message has.
    pub wakers: Wakers,
    pub wanted: Option<u64>,
    /// Why each rail that is down is.
    pub causes: Vec<Option<String>>,
    /// Bytes of messages that each rail received, and sent.
    pub brought: Vec<u64>,
    pub carried: Vec<u64>,
}

impl State {
    /// Whether any rail works.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }

    /// Other rails work than before.
    fn rails_changed(&mut self) {
        let ends = self.links.iter().flatten().map(|link| cutoff::RailEnds {
            rail: link.rail,
            local: link.ends.0,
            peer: link.ends.1,
        });
        self.cut_off.rails_changed(ends.collect(), CUT_OFF_UNKNOWN);
    }
}

/// One socket, as its threads see it.
pub(crate) struct Session {
    pub check: bool,
    pub peer_timeout: Duration,
    maker: Maker,
    state: Mutex<State>,
    /// Bytes that [`Kept`] holds.
    kept_bytes: Arc<AtomicU64>,
    /// For callers.
    changed: Condvar,
    /// For the sending thread of each rail.
    work: Vec<Condvar>,
    /// For the keeper, when the socket closes.
    pub closing: Condvar,
    bell: OwnedFd,
    epoch: Instant,
    inside: AtomicUsize,
    /// Waits in a row in which nothing came at once.
    looks_in_vain: AtomicU32,
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
            maker: Maker::this(),
            state: Mutex::new(State {
                sender: Sender::new(rails, peer_window),
                receiver: Receiver::new(rails, options.window),
                health: vec![RailHealth::default(); rails],
                links: vec![None; rails],
                sources: BTreeMap::new(),
                offer: None,
                claimed: None,
                leaving: false,
                left: None,
                kept: BTreeMap::new(),
                started: 0,
                long_started: 0,
                mode: options.mode,
                cut_off: cutoff::Standing::new(cut_off, follows),
                favourite: 0,
                polling: 0,
                rung: false,
                waiting: 0,
                work: vec![0; rails],
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
            work: (0..rails).map(|_| Condvar::new()).collect(),
            closing: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            epoch: Instant::now(),
            inside: AtomicUsize::new(0),
            looks_in_vain: AtomicU32::new(0),
            left_ns: AtomicU64::new(0),
            favourite: AtomicUsize::new(0),
        })
    }

    /// On the clock of this session.
    pub(crate) fn now(&self) -> time::Instant {
        time::Instant::after(self.epoch.elapsed())
    }

    pub(crate) fn peer_timeout(&self) -> Nanos {
        self.peer_timeout.into()
    }

    pub(crate) fn state(&self) -> Locked<'_> {
        Locked(self.state.lock())
    }

    /// Wakes callers, and tasks as soon as the state is unlocked: something they wait for may have happened.
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
        if state.work[rail] == seen {
            state.wait_for(&self.work[rail], IDLE);
        }
    }

    /// Whether callers read this link themselves.
    pub(crate) fn callers_read(&self, link: &Link) -> bool {
        if self.favourite.load(Ordering::Relaxed) != link.rail {
            return false;
        }
        let left = time::Instant(self.left_ns.load(Ordering::Relaxed));
        self.inside.load(Ordering::Acquire) > 0 || self.now().since(left) < LEASE.into()
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
        let now = self.now();
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
        state.rails_changed();
        state.causes[rail] = None;
        state.down = None;
        self.news(&mut state);
        self.more_work(&mut state);
        drop(state);
        crate::threads::start(self, &link).inspect_err(|_| self.fail(&link, &LinkError::Closed))
    }

    /// A link is over: its rail's fragments become ready for the others.
    pub(crate) fn fail(&self, link: &Arc<Link>, cause: &LinkError) {
        if matches!(cause, LinkError::Socket(_)) {
            // Whoever closes while we send resets the connection; his farewell may lie here unread.
            if let Some(mut reader) = link.reader.try_lock() {
                for _ in 0..FRAMES_UNREAD {
                    if !matches!(link.read(&mut reader, self), Ok(Step::Frame)) {
                        break;
                    }
                }
            }
        }
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
        let now = self.now();
        let mut state = self.state();
        if !is_own(&state) {
            return;
        }
        state.links[rail] = None;
        state.rails_changed();
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
        state.health[rail].failed(self.now());
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

    /// Whether this process made it: a child of that one has none of its threads.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.maker.is_this()
    }

    /// For calls that lock, send or receive.
    pub(crate) fn here(&self) -> Result<(), MessageError> {
        self.maker.check()
    }

    /// Ends the socket: the peer is told, callers see it, threads leave. In a child of the process nothing happens.
    pub(crate) fn close(&self) {
        self.close_within(SLICE);
    }

    /// As [`close`](Self::close), and waits so long for the peer to have heard of it: a busy path takes what was sent before first.
    pub(crate) fn close_within(&self, patience: Duration) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let links: Vec<Arc<Link>> = state.links.iter().flatten().cloned().collect();
        self.finish(&mut state);
        drop(state);
        let until = Instant::now() + patience;
        let said = self.bid_farewell(&links, until);
        if patience > SLICE {
            // What a peer sends to a connection that was shut down resets it, and the farewell is lost. One that heard it closes.
            let is_unheard = || !said.is_empty() && said.iter().all(|link| link.has_unheard());
            while is_unheard() && Instant::now() < until {
                std::thread::sleep(LEASE);
            }
        }
        for link in links {
            link.kill();
        }
        // Threads that rested meanwhile see that their links are over.
        self.more_work(&mut self.state());
    }

    /// Whether it is closed at either end, or lost.
    pub(crate) fn is_over(&self) -> bool {
        self.verdict(&self.state()).is_some()
    }

    /// Whether it holds a message, or the end of the peer's messages, for its program.
    pub(crate) fn holds_any(&self) -> bool {
        let state = self.state();
        !state.closed && matches!(state.receiver.front(), Front::Whole { .. } | Front::End)
    }

    /// Whether any rail works.
    pub(crate) fn is_linked(&self) -> bool {
        self.state().is_linked()
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
}

/// Cut-off until one is found: where it was on the paper's Gigabit rails.
pub(crate) const CUT_OFF_UNKNOWN: u64 = 32 << 10;

mod frames;
mod locked;
mod sending;
#[cfg(test)]
mod tests;
mod waiting;
