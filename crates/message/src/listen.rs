//! Accepting sockets, and the connections that failed rails reconnect with.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::preface::PREFACE_LEN;
use ropewalk_model::time;
use ropewalk_proto::admission::{Admission, Ticket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::bell::Bell;
use crate::handshake::{Answer, Answered, Introduction, PROOF_LEN, Proof};
use crate::link::Link;
use crate::process::Maker;
use crate::session::Session;
use crate::socket::MessageSocket;
use crate::{MessageError, Options, threads};

/// A connection that has not proved itself by then is closed: as long as a connecting end waits for the answer.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that may be in their preface at once, a quarter of them from one address. Which one gives way is decided
/// in [`ropewalk_proto::admission`].
const UNPROVEN_MAX: usize = 256;
/// How long nothing is accepted after that failed: descriptors are likely to be used up.
const REST: Duration = Duration::from_millis(50);
/// Sockets that may wait to be accepted; more are turned away.
const BACKLOG_MAX: usize = 64;
/// Sessions remembered, live ones apart, so that a rail that comes late does not begin its session anew.
const REMEMBERED_MAX: usize = 4096;

/// Waits for message sockets on several addresses.
pub struct Listener {
    door: Arc<Door>,
}

/// Keeps the listening thread alive: the listener and every socket accepted hold it, since failed rails come back
/// through it.
pub(crate) struct Door {
    maker: Maker,
    desk: Arc<Desk>,
    addresses: Vec<SocketAddr>,
}

struct Desk {
    proof: Proof,
    options: Options,
    sessions: Mutex<HashMap<[u8; 16], Entry>>,
    waiting: Mutex<VecDeque<Arc<Session>>>,
    arrived: Condvar,
    /// Rung while sockets wait.
    announced: Bell,
    /// Connections that others accepted, with their prefaces; taken at the next turn.
    given: Mutex<Vec<(TcpStream, [u8; PREFACE_LEN])>>,
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

/// A connection that has not proved itself yet.
struct Unproven {
    ticket: Ticket,
    stream: TcpStream,
    bytes: [u8; PREFACE_LEN],
    have: usize,
    /// What it said, once it was answered: the proof comes now.
    answered: Option<(Introduction, Answered)>,
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
        Self::start(addresses, options)
    }

    /// Listens nowhere: takes the connections that [`give`](Self::give) hands over, of a program that accepts connections of several
    /// kinds at one port. Needs a token.
    ///
    /// # Errors
    /// [`MessageError::Misuse`] without a token, [`MessageError::System`] where there are no threads or descriptors.
    pub fn without_addresses(options: &Options) -> Result<Self, MessageError> {
        if options.token.is_none() {
            let text = "a listener of connections that others accept needs a token";
            return Err(MessageError::Misuse(text.to_owned()));
        }
        Self::start(&[], options)
    }

    fn start(addresses: &[SocketAddr], options: &Options) -> Result<Self, MessageError> {
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
            announced: Bell::new()?,
            given: Mutex::default(),
            open: AtomicBool::new(true),
            over: AtomicBool::new(false),
            bell,
        });
        let door = Door {
            maker: Maker::this(),
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

    /// Takes a connection that the program accepted, and whose first bytes, the preface of a link, it has read. Whether it is one of
    /// a peer with the token is found out as of any other. One too many is closed.
    pub fn give(&self, connection: TcpStream, preface: [u8; PREFACE_LEN]) {
        if !self.door.maker.is_this() {
            return;
        }
        let mut given = self.door.desk.given.lock();
        if given.len() < UNPROVEN_MAX {
            given.push((connection, preface));
            self.door.desk.ring();
        }
    }

    /// Waits for a peer, at most as long as [`Options::deadline`] says.
    ///
    /// # Errors
    /// [`MessageError::Deadline`].
    pub fn accept(&self) -> Result<MessageSocket, MessageError> {
        let deadline = self.door.desk.options.deadline;
        self.accept_until(deadline.and_then(|most| Instant::now().checked_add(most)))
    }

    /// As [`accept`](Self::accept), at most until then; `None` for no limit.
    ///
    /// # Errors
    /// [`MessageError::Deadline`].
    pub fn accept_until(&self, deadline: Option<Instant>) -> Result<MessageSocket, MessageError> {
        self.door.maker.check()?;
        let desk = &self.door.desk;
        let mut waiting = desk.waiting.lock();
        loop {
            if let Some(session) = waiting.pop_front() {
                // What a peer has sent before it closed is received as on a socket that was accepted before.
                if session.is_over() && !session.holds_any() {
                    // The peer may keep the connections of what it has closed.
                    session.close();
                    continue;
                }
                let door = self.door.clone();
                return Ok(MessageSocket::accepted(session, door, &desk.options));
            }
            desk.announced.quiet();
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

/// Readable while sockets wait to be accepted, as far as [`Listener::accept`] has not found that none does.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.desk.announced.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.door.maker.is_this() {
            return;
        }
        self.door.desk.open.store(false, Ordering::Release);
        // Whoever connected and was not accepted finds the socket closed.
        for session in self.door.desk.waiting.lock().drain(..) {
            session.close();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        self.desk.over.store(true, Ordering::Release);
        self.desk.ring();
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
    /// Wakes the thread.
    fn ring(&self) {
        // A full counter has rung already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Connections that were given since the last turn.
    fn take_given(&self, admission: &mut Admission, now: time::Instant) -> Vec<Unproven> {
        // It may not have rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let given = std::mem::take(&mut *self.given.lock()).into_iter();
        let taken = given.filter_map(|(stream, preface)| {
            let from = stream.peer_addr().ok()?;
            stream.set_nonblocking(true).ok()?;
            stream.set_nodelay(true).ok()?;
            Some(Unproven {
                ticket: admission.enter(from.ip().into(), now),
                stream,
                bytes: preface,
                have: PREFACE_LEN,
                answered: None,
                until: Instant::now() + PREFACE_TIMEOUT,
            })
        });
        taken.collect()
    }

    fn serve(self: &Arc<Self>, listeners: &[TcpListener]) {
        let mut unproven: Vec<Unproven> = Vec::new();
        let mut admission = Admission::new(UNPROVEN_MAX);
        let began = Instant::now();
        let mut rest = None;
        while !self.over.load(Ordering::Acquire) {
            let resting = rest.filter(|&until| Instant::now() < until);
            self.wait(listeners, &unproven, resting);
            rest = resting;
            let now = time::Instant::after(began.elapsed());
            unproven.extend(self.take_given(&mut admission, now));
            if rest.is_none() {
                for listener in listeners {
                    let now = time::Instant::after(began.elapsed());
                    match welcome(listener, &mut admission, now) {
                        Ok(one) => unproven.extend(one),
                        Err(_) => rest = Some(Instant::now() + REST),
                    }
                }
            }
            let now = Instant::now();
            let mut still = Vec::with_capacity(unproven.len());
            for mut one in unproven {
                let heard = self.hear(&mut one);
                if matches!(heard, Ok(Heard::Part)) && now < one.until {
                    still.push(one);
                    continue;
                }
                admission.leave(one.ticket);
                if matches!(heard, Ok(Heard::All)) {
                    self.admit(one);
                }
            }
            unproven = still;
            let now = time::Instant::after(now.duration_since(began));
            // What they have sent was heard: only silent ones give way.
            while let Some(ticket) = admission.gives_way(now) {
                admission.leave(ticket);
                unproven.retain(|one| one.ticket != ticket);
            }
        }
    }

    fn wait(&self, listeners: &[TcpListener], unproven: &[Unproven], resting: Option<Instant>) {
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        if resting.is_none() {
            fds.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        }
        fds.extend(
            unproven
                .iter()
                .map(|one| PollFd::new(&one.stream, PollFlags::IN)),
        );
        let first = unproven.iter().map(|one| one.until).chain(resting).min();
        let timeout = first.and_then(|until| {
            Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()
        });
        // What goes wrong here shows when the descriptors are used.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Reads what a connection has to say: its preface, which is answered, then its proof. Strangers are dropped without
    /// an answer.
    fn hear(&self, one: &mut Unproven) -> io::Result<Heard> {
        if one.answered.is_none() {
            if !one.read(PREFACE_LEN)? {
                return Ok(Heard::Part);
            }
            let Some(said) = Introduction::read(&one.bytes, &self.proof) else {
                return Ok(Heard::Refused);
            };
            let Some(answer) = self.answer(&said) else {
                return Ok(Heard::Refused);
            };
            let Some(answered) = said.answer(&one.bytes, answer, &self.proof) else {
                return Ok(Heard::Refused);
            };
            // The buffer of a fresh connection takes the answer whole.
            one.stream.write_all(&answered.bytes)?;
            if !matches!(answer, Answer::Welcome(_)) {
                return Ok(Heard::Refused);
            }
            (one.have, one.answered) = (0, Some((said, answered)));
        }
        let all = one.read(PROOF_LEN)?;
        Ok(if all { Heard::All } else { Heard::Part })
    }

    /// What a connection is told; `None` where there is no room for another session.
    fn answer(&self, said: &Introduction) -> Option<Answer> {
        if self.options.is_sealed() && !said.sealed {
            return Some(Answer::MustSeal);
        }
        let welcome = Answer::Welcome(self.options.window);
        match self.sessions.lock().get(&said.session) {
            Some(entry) if entry.is_over() => Some(Answer::Gone),
            Some(_) => Some(welcome),
            None if !said.hello => Some(Answer::Gone),
            None => self.has_room().then_some(welcome),
        }
    }

    /// Whether another session may wait for the application. Those whose peer has gone give way, unless they hold what it has sent.
    fn has_room(&self) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= BACKLOG_MAX {
            waiting.retain(|session| {
                let stays = session.holds_any() || (session.is_linked() && !session.is_over());
                if !stays {
                    session.close();
                }
                stays
            });
        }
        waiting.len() < BACKLOG_MAX && self.open.load(Ordering::Acquire)
    }

    /// Gives a connection that has proved itself to its session, or begins one.
    fn admit(self: &Arc<Self>, one: Unproven) {
        let Some((said, answered)) = one.answered else {
            return;
        };
        let proof = std::array::from_fn(|at| one.bytes[at]);
        let Some(keys) = answered.verify(&proof) else {
            return;
        };
        let mut sessions = self.sessions.lock();
        if sessions.len() > REMEMBERED_MAX {
            sessions.retain(|_, entry| entry.session.strong_count() > 0);
        }
        let known = match sessions.get_mut(&said.session) {
            Some(entry) => {
                // A higher number belongs to a newer attempt.
                match entry.numbers.get_mut(said.rail) {
                    Some(highest) if said.number > *highest => *highest = said.number,
                    _ => return,
                }
                let Some(session) = entry.session.upgrade() else {
                    return;
                };
                Some(session)
            }
            None => None,
        };
        let (session, is_new) = match known {
            Some(session) => (session, false),
            None if said.hello && self.has_room() => {
                let check = said.check && !said.sealed;
                let made = Session::new(said.rails, &self.options, check, said.window);
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
                (session, true)
            }
            None => return,
        };
        drop(sessions);
        // The peer chooses its numbers, and they rise on each rail: no two links have the same.
        let number = u64::from(said.number) << 8 | said.rail as u64;
        let link = Link::new(one.stream, said.rail, number, session.check, keys);
        // A connection that breaks here is made again by the peer.
        let joined = link.and_then(|link| session.add_link(link));
        if !is_new {
            return;
        }
        let kept = session.clone();
        let keeper = threads::spawn("rail-keep", move || threads::keep(&kept, None));
        if joined.and(keeper).is_err() {
            session.close();
            return;
        }
        self.waiting.lock().push_back(session);
        self.announced.ring();
        self.arrived.notify_one();
    }
}

/// How far a connection has come.
enum Heard {
    /// It is waited for.
    Part,
    /// Preface and proof are there.
    All,
    /// It is not wanted.
    Refused,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.session
            .upgrade()
            .is_none_or(|session| session.is_over())
    }
}

/// Accepts a connection, if there is one.
fn welcome(
    listener: &TcpListener,
    admission: &mut Admission,
    now: time::Instant,
) -> io::Result<Option<Unproven>> {
    let (stream, from) = match listener.accept() {
        Ok(accepted) => accepted,
        Err(error) => {
            use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
            return match error.kind() {
                WouldBlock | Interrupted | ConnectionAborted => Ok(None),
                _ => Err(error),
            };
        }
    };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(Some(Unproven {
        ticket: admission.enter(from.ip().into(), now),
        stream,
        bytes: [0; PREFACE_LEN],
        have: 0,
        answered: None,
        until: Instant::now() + PREFACE_TIMEOUT,
    }))
}

impl Unproven {
    /// Reads what is there; `true` when so many bytes are. Never reads more: what follows is the link's.
    fn read(&mut self, count: usize) -> io::Result<bool> {
        while self.have < count {
            match self.stream.read(&mut self.bytes[self.have..count]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.have += got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a peer has sent, and was acknowledged, is received though it had closed before it was accepted; one that has sent nothing is not
    /// accepted.
    #[test]
    fn what_was_sent_before_the_end_is_accepted() {
        let options = Options {
            deadline: Some(Duration::from_secs(60)),
            ..Options::default()
        };
        let listener = Listener::bind(&["127.0.0.1:0".parse().unwrap()], &options).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        for messages in [0, 1, 3] {
            let near = MessageSocket::connect(&listener.addresses(), &options).unwrap();
            for _ in 0..messages {
                near.send(b"acknowledged").unwrap();
            }
            drop(near);
            let is_over = || {
                let waiting = listener.door.desk.waiting.lock();
                waiting.iter().all(|session| session.is_over()) && !waiting.is_empty()
            };
            while !is_over() {
                assert!(Instant::now() < until, "the end takes too long");
                std::thread::yield_now();
            }
            let now = Some(Instant::now());
            let accepted = listener.accept_until(now);
            if messages == 0 {
                assert!(matches!(accepted, Err(MessageError::Deadline)));
                continue;
            }
            let far = accepted.unwrap();
            for _ in 0..messages {
                let received = far.receive_vec(100).unwrap().unwrap();
                assert_eq!(received, b"acknowledged");
            }
            assert!(matches!(
                far.receive_vec(100),
                Err(MessageError::PeerClosed)
            ));
        }
    }

    /// Links of two rails are told apart, whatever numbers a peer that knows the token gives them.
    #[test]
    fn links_have_numbers_of_their_own() {
        let options = Options {
            deadline: Some(Duration::from_secs(60)),
            ..Options::default()
        };
        let addresses = ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap());
        let listener = Listener::bind(&addresses, &options).unwrap();
        let proof = Proof::new(None);
        let mut streams = Vec::new();
        let mut far = None;
        for (rail, address) in listener.addresses().into_iter().enumerate() {
            let said = Introduction {
                session: [5; 16],
                hello: rail == 0,
                check: true,
                sealed: false,
                rail,
                rails: 2,
                number: 7,
                window: 1 << 20,
            };
            let asked = said.ask(&proof);
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&asked.bytes).unwrap();
            let mut answer = [0; PREFACE_LEN];
            stream.read_exact(&mut answer).unwrap();
            let Ok(welcomed) = asked.hear(&answer, &proof) else {
                panic!("not welcome");
            };
            stream.write_all(&welcomed.proof).unwrap();
            streams.push(stream);
            far.get_or_insert_with(|| listener.accept().unwrap());
        }
        let far = far.unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let numbers = loop {
            let state = far.session.state();
            let numbers: Vec<u64> = state.links.iter().flatten().map(|one| one.number).collect();
            if numbers.len() == 2 {
                break numbers;
            }
            drop(state);
            assert!(Instant::now() < until, "the second rail takes too long");
            std::thread::yield_now();
        };
        assert_ne!(numbers[0], numbers[1]);
    }
}
