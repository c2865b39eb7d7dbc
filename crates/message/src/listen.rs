//! Accepting sockets, and the connections that failed rails come back with.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::preface::PREFACE_LEN;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::dial::{Introduction, Proof};
use crate::link::Link;
use crate::session::Session;
use crate::socket::MessageSocket;
use crate::{MessageError, Options, threads};

/// A connection that has not sent its preface by then is closed.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that may be in their preface at once; more wait in the kernel's queue.
const UNPROVEN_MAX: usize = 64;
/// Sockets that may wait to be accepted; more are turned away.
const BACKLOG_MAX: usize = 64;
/// Sessions remembered, live ones apart, so that a replayed preface begins nothing.
const REMEMBERED_MAX: usize = 4096;

/// Waits for message sockets on several addresses.
pub struct Listener {
    door: Arc<Door>,
}

/// Keeps the listening thread alive: the listener and every socket accepted hold it, since failed rails come back
/// through it.
pub(crate) struct Door {
    desk: Arc<Desk>,
    addresses: Vec<SocketAddr>,
}

struct Desk {
    proof: Proof,
    options: Options,
    sessions: Mutex<HashMap<[u8; 16], Entry>>,
    waiting: Mutex<VecDeque<Arc<Session>>>,
    arrived: Condvar,
    /// The listener itself is still there.
    open: AtomicBool,
    /// Nobody needs the thread any more.
    over: AtomicBool,
    bell: OwnedFd,
}

struct Entry {
    session: Weak<Session>,
    /// Highest link number of each rail.
    numbers: Vec<u32>,
}

/// A connection in its preface.
struct Unproven {
    stream: TcpStream,
    bytes: [u8; PREFACE_LEN],
    have: usize,
    until: Instant,
}

impl Listener {
    /// Listens on all addresses; port 0 lets the system choose one for each.
    ///
    /// # Errors
    /// [`MessageError::Listen`] names the address, [`MessageError::NotSealed`] one that is not on this host,
    /// [`MessageError::Misuse`] what cannot be meant.
    pub fn bind(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
        options.verify(addresses)?;
        let system = |doing| move |source| MessageError::System { doing, source };
        let mut listeners = Vec::new();
        for &address in addresses {
            let listener =
                listen(address).map_err(|source| MessageError::Listen { address, source })?;
            listeners.push(listener);
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("making an event descriptor")(error.into()))?;
        let desk = Arc::new(Desk {
            proof: Proof::new(options.token.as_ref()),
            options: options.clone(),
            sessions: Mutex::default(),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            open: AtomicBool::new(true),
            over: AtomicBool::new(false),
            bell,
        });
        let door = Door {
            desk: desk.clone(),
            addresses: listeners
                .iter()
                .filter_map(|l| l.local_addr().ok())
                .collect(),
        };
        threads::spawn("rail-listen", move || desk.serve(&listeners))
            .map_err(system("starting a thread"))?;
        Ok(Self {
            door: Arc::new(door),
        })
    }

    /// The addresses listened on, in the order given.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.door.addresses.clone()
    }

    /// Waits for a peer, at most as long as [`Options::deadline`] says.
    ///
    /// # Errors
    /// [`MessageError::Deadline`].
    pub fn accept(&self) -> Result<MessageSocket, MessageError> {
        let desk = &self.door.desk;
        let deadline = desk.options.deadline;
        let deadline = deadline.and_then(|most| Instant::now().checked_add(most));
        let mut waiting = desk.waiting.lock();
        loop {
            if let Some(session) = waiting.pop_front() {
                drop(waiting);
                return MessageSocket::accepted(session, self.door.clone(), &desk.options);
            }
            match deadline {
                Some(deadline) if desk.arrived.wait_until(&mut waiting, deadline).timed_out() => {
                    return Err(MessageError::Deadline);
                }
                Some(_) => {}
                None => desk.arrived.wait(&mut waiting),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.door.desk.open.store(false, Ordering::Release);
        // Whoever connected and was not accepted finds the socket closed.
        for session in self.door.desk.waiting.lock().drain(..) {
            session.close();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.desk.over.store(true, Ordering::Release);
        // A full counter has rung already.
        let _ = rustix::io::write(&self.desk.bell, &1_u64.to_ne_bytes());
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // Two rails may have the same port, one of each family.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(UNPROVEN_MAX as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Desk {
    fn serve(&self, listeners: &[TcpListener]) {
        let mut unproven: Vec<Unproven> = Vec::new();
        while !self.over.load(Ordering::Acquire) {
            self.wait(listeners, &unproven);
            if unproven.len() < UNPROVEN_MAX {
                unproven.extend(listeners.iter().filter_map(welcome));
            }
            let now = Instant::now();
            let mut still = Vec::with_capacity(unproven.len());
            for mut one in unproven {
                match one.read() {
                    Ok(true) => self.introduce(one),
                    Ok(false) if now < one.until => still.push(one),
                    Ok(false) | Err(_) => {}
                }
            }
            unproven = still;
        }
    }

    fn wait(&self, listeners: &[TcpListener], unproven: &[Unproven]) {
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        if unproven.len() < UNPROVEN_MAX {
            fds.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        }
        fds.extend(
            unproven
                .iter()
                .map(|one| PollFd::new(&one.stream, PollFlags::IN)),
        );
        let first = unproven.iter().map(|one| one.until).min();
        let timeout = first.and_then(|until| {
            Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()
        });
        // What goes wrong here shows when the descriptors are used.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Gives a connection whose preface is complete to its session. Strangers are dropped without an answer.
    fn introduce(&self, one: Unproven) {
        let Some(said) = Introduction::read(&one.bytes, &self.proof) else {
            return;
        };
        let mut sessions = self.sessions.lock();
        if sessions.len() > REMEMBERED_MAX {
            sessions.retain(|_, entry| entry.session.strong_count() > 0);
        }
        if said.hello {
            let room = self.waiting.lock().len() < BACKLOG_MAX && self.open.load(Ordering::Acquire);
            if !room || sessions.contains_key(&said.session) {
                return;
            }
            let made = Session::new(said.rails, &self.options, said.check, said.window);
            let Ok(session) = made.map(Arc::new) else {
                return;
            };
            let mut numbers = vec![0; said.rails];
            numbers[said.rail] = said.number;
            let entry = Entry {
                session: Arc::downgrade(&session),
                numbers,
            };
            sessions.insert(said.session, entry);
            drop(sessions);
            if self.join(&session, one.stream, &said).is_ok() {
                self.waiting.lock().push_back(session);
                self.arrived.notify_one();
            }
            return;
        }
        let Some(entry) = sessions.get_mut(&said.session) else {
            self.refuse(one.stream, &said);
            return;
        };
        let Some(session) = entry.session.upgrade().filter(|session| !session.is_over()) else {
            self.refuse(one.stream, &said);
            return;
        };
        match entry.numbers.get_mut(said.rail) {
            Some(highest) if said.number > *highest => *highest = said.number,
            _ => return,
        }
        drop(sessions);
        // A connection that breaks here is made again by the peer.
        let _ = self.join(&session, one.stream, &said);
    }

    fn join(
        &self,
        session: &Arc<Session>,
        mut stream: TcpStream,
        said: &Introduction,
    ) -> io::Result<()> {
        // The buffer of a fresh connection takes the answer whole.
        stream.write_all(&said.answer(Some(self.options.window), &self.proof))?;
        session.add_link(Link::new(
            stream,
            said.rail,
            u64::from(said.number),
            session.check,
        )?)
    }

    fn refuse(&self, mut stream: TcpStream, said: &Introduction) {
        // Whether it gets there or not: the connection ends.
        let _ = stream.write_all(&said.answer(None, &self.proof));
    }
}

fn welcome(listener: &TcpListener) -> Option<Unproven> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(Unproven {
        stream,
        bytes: [0; PREFACE_LEN],
        have: 0,
        until: Instant::now() + PREFACE_TIMEOUT,
    })
}

impl Unproven {
    /// Reads what is there; `true` when the preface is complete.
    fn read(&mut self) -> io::Result<bool> {
        while self.have < PREFACE_LEN {
            match self.stream.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
