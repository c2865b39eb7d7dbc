//! Accepting byte streams of any number of sockets.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::preface::PREFACE_LEN;
use ropewalk_proto::byte_stream::Side;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::arrivals::Arrivals;
use super::shared::{Hold, Shared};
use super::{ByteStream, socket_options};
use crate::bell::Bell;
use crate::connect::starting;
use crate::process::Maker;
use crate::{Listener, MessageError, Options, RailReport, threads};

/// Sockets that a listener keeps at once; peers beyond wait. Each has two threads, and two more for each rail.
const SOCKETS_MAX: usize = 256;

/// Waits for byte streams on several addresses, from any number of peers.
pub struct ByteStreamListener {
    maker: Maker,
    desk: Arc<Desk>,
    listener: Arc<Listener>,
}

/// How long opening a stream waits for a peer: the connecting end may know of the connection before the listening one does.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a listener that has as many looks whether one has ended.
const FULL_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

struct Desk {
    arrivals: Arc<Arrivals>,
    /// Those of peers that may open further streams.
    sockets: Mutex<Vec<Arc<Hold>>>,
    /// Another peer has connected, or the listener is closed.
    connected: Condvar,
    /// Wakes the thread when the listener is dropped.
    closing: Bell,
    is_closed: AtomicBool,
    /// The sockets are closed with it.
    is_over: AtomicBool,
    options: Options,
}

impl ByteStreamListener {
    /// Listens on all addresses; port 0 lets the system choose one for each.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
        Self::over(
            Listener::bind(addresses, &socket_options(options))?,
            options,
        )
    }

    /// As [`Listener::without_addresses`].
    ///
    /// # Errors
    /// As there.
    pub fn without_addresses(options: &Options) -> Result<Self, MessageError> {
        let listener = Listener::without_addresses(&socket_options(options))?;
        Self::over(listener, options)
    }

    fn over(listener: Listener, options: &Options) -> Result<Self, MessageError> {
        let listener = Arc::new(listener);
        let desk = Arc::new(Desk {
            arrivals: Arc::new(Arrivals::new()?),
            sockets: Mutex::default(),
            connected: Condvar::new(),
            closing: Bell::new()?,
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            options: options.clone(),
        });
        let (own, accepting) = (desk.clone(), listener.clone());
        threads::spawn("bytes-accept", move || own.accept_all(&accepting)).map_err(starting)?;
        let maker = Maker::this();
        Ok(Self {
            maker,
            desk,
            listener,
        })
    }

    /// The addresses listened on, in the order given.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listener.addresses()
    }

    /// Waits for a stream, at most as long as [`Options::deadline`] says.
    ///
    /// # Errors
    /// [`MessageError::Deadline`].
    pub fn accept(&self) -> Result<ByteStream, MessageError> {
        let most = self.desk.options.deadline;
        self.accept_until(most.and_then(|most| Instant::now().checked_add(most)))
    }

    /// As [`accept`](Self::accept), at most until then; `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`].
    pub fn accept_until(&self, deadline: Option<Instant>) -> Result<ByteStream, MessageError> {
        self.maker.check()?;
        let is_closed = || self.desk.is_closed.load(Ordering::Acquire);
        let failure = || is_closed().then_some(MessageError::Closed);
        let arrival = self.desk.arrivals.take(deadline, failure)?;
        Ok(arrival.stream)
    }

    /// Opens a stream to the peer that connected last and is still there, as [`ByteStreams::open`](super::ByteStreams::open) does: for listeners of one
    /// peer. Where none is there, one that is connecting is waited for, 5 s.
    ///
    /// # Errors
    /// As there; [`MessageError::PeerClosed`] where no peer is connected.
    pub fn open(&self, greeting: &[u8]) -> Result<ByteStream, MessageError> {
        self.maker.check()?;
        let until = Instant::now() + PEER_TIMEOUT;
        let mut sockets = self.desk.sockets.lock();
        let hold = loop {
            let works = |hold: &&Arc<Hold>| hold.shared().failure().is_none();
            if let Some(hold) = sockets.iter().rev().find(works) {
                break hold.clone();
            }
            let is_closed = self.desk.is_closed.load(Ordering::Acquire);
            if is_closed
                || self
                    .desk
                    .connected
                    .wait_until(&mut sockets, until)
                    .timed_out()
            {
                return Err(MessageError::PeerClosed);
            }
        };
        drop(sockets);
        super::open(&hold, greeting)
    }

    /// Peers that are connected and may open further streams.
    #[must_use]
    pub fn peers(&self) -> usize {
        if !self.maker.is_this() {
            return 0;
        }
        let sockets = self.desk.sockets.lock();
        let works = |hold: &&Arc<Hold>| hold.shared().failure().is_none();
        sockets.iter().filter(works).count()
    }

    /// Takes a connection that the program accepted, as [`Listener::give`] does.
    pub fn give(&self, connection: TcpStream, preface: [u8; PREFACE_LEN]) {
        self.listener.give(connection, preface);
    }

    /// Closes the sockets of all peers at once, and listens no more: all streams fail, and accepting does.
    pub fn close(&self) {
        if !self.maker.is_this() {
            return;
        }
        self.desk.is_closed.store(true, Ordering::Release);
        self.desk.is_over.store(true, Ordering::Release);
        self.desk.closing.ring();
        self.desk.connected.notify_all();
        self.desk.arrivals.news();
    }

    /// What the rails of each connected peer did, of those that may open further streams.
    #[must_use]
    pub fn rails(&self) -> Vec<Vec<RailReport>> {
        if !self.maker.is_this() {
            return Vec::new();
        }
        let sockets = self.desk.sockets.lock();
        sockets
            .iter()
            .map(|hold| hold.shared().socket.rails())
            .collect()
    }
}

impl Desk {
    fn accept_all(&self, listener: &Listener) {
        while !self.is_closed.load(Ordering::Acquire) {
            let mut ready = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::new(&self.closing, PollFlags::IN),
            ];
            // What goes wrong here shows when the descriptors are used.
            let _ = poll(&mut ready, None);
            let mut sockets = self.sockets.lock();
            sockets.retain(|hold| hold.shared().failure().is_none());
            let is_full = sockets.len() >= SOCKETS_MAX;
            drop(sockets);
            if is_full {
                // Those that come wait: what they have sent is theirs until it is received.
                let mut closing = [PollFd::new(&self.closing, PollFlags::IN)];
                let _ = poll(&mut closing, Some(&FULL_PAUSE));
                continue;
            }
            let now = Some(Instant::now());
            let Ok(socket) = listener.accept_until(now) else {
                continue;
            };
            let side = Side::Listening;
            // Where there are no threads for it the peer finds it closed.
            if let Ok(hold) = Shared::start(socket, side, &self.options, &self.arrivals) {
                self.sockets.lock().push(hold);
                self.connected.notify_all();
            }
        }
        // Streams that were accepted go on; nothing new comes.
        let is_over = self.is_over.load(Ordering::Acquire);
        for hold in self.sockets.lock().drain(..) {
            hold.shared().take_no_more();
            if is_over {
                hold.shared().socket.close();
            }
        }
        self.arrivals.drain();
    }
}

/// Readable while streams wait to be accepted, as far as accepting has not found that none does.
impl AsFd for ByteStreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.desk.arrivals.as_fd()
    }
}

impl Drop for ByteStreamListener {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        self.desk.is_closed.store(true, Ordering::Release);
        self.desk.closing.ring();
    }
}

impl std::fmt::Debug for ByteStreamListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ByteStreamListener")
            .field(&self.addresses())
            .finish()
    }
}
