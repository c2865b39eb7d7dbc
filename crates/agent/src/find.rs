//! Finds a way to a peer, as [`ropewalk_proto::route`] says, and goes on looking while data goes through the command's host.
//!
//! ```text
//!  find ── dialled, reversed ─────────────▶ the pair's way
//!    └──── through ──▶ the pair's way ──▶ a thread looks on ── dialled, reversed ──▶ the pair's way from now on
//!                                                └── nothing ──▶ the master hears why
//! ```
//!
//! A way that is found later has the keys of the first handshake: the peer proves that it knows them, as on a further rail.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_lane::unix;
use ropewalk_proto::control::{self, LaneKind, Peer, from_agent};
use ropewalk_proto::route::{Facts, Failure, Lanes, Route, Step};

use crate::AgentError;
use crate::bridge::bridges;
use crate::connect::{Address, Connected, shake};
use crate::dial::{self, Target};
use crate::member::Member;
use crate::streams::{DataSocket, POLL, STACK_LEN};

/// What is done when a better way to a peer works: what is open moves from the first to the second.
pub(crate) type Better = Box<dyn Fn(&Arc<Connected>, Arc<Connected>) + Send + Sync>;

/// The peers that a node is connected to: how, for all that follows.
pub(crate) struct Ways {
    known: Mutex<HashMap<u32, Arc<Connected>>>,
    // One thread at a time connects a peer: a second handshake would end the first one's right to open streams.
    connecting: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
    // Peers whose data goes through the command's host, and what is being tried meanwhile; those that the master heard of
    // have no entry.
    carried: Mutex<HashMap<u32, Arc<Mutex<Route>>>>,
    better: Better,
}

impl Ways {
    /// None is known yet.
    pub fn new(better: Better) -> Self {
        Self {
            known: Mutex::default(),
            connecting: Mutex::default(),
            carried: Mutex::default(),
            better,
        }
    }

    /// Connects to a peer and does the pair's handshake, unless it is done.
    pub fn connect(
        self: &Arc<Self>,
        member: &Arc<Member>,
        peer: &Peer,
    ) -> Result<Arc<Connected>, AgentError> {
        let slot = self.connecting.lock().entry(peer.node).or_default().clone();
        let _one_at_a_time = slot.lock();
        match self.newest(peer.node) {
            Some(known) => Ok(known),
            None => find(self, member, peer),
        }
    }

    /// The way to a peer that is opened from now on.
    pub fn newest(&self, node: u32) -> Option<Arc<Connected>> {
        self.known.lock().get(&node).cloned()
    }

    /// Keeps a way.
    pub fn keep(&self, connected: Arc<Connected>) {
        self.known.lock().insert(connected.peer.node, connected);
    }

    /// The way does not work any more, so that another one is looked for; unless that has happened already.
    pub fn forget(&self, gone: &Arc<Connected>) {
        let mut known = self.known.lock();
        let way = known.get(&gone.peer.node);
        if way.is_some_and(|way| Arc::ptr_eq(way, gone)) {
            known.remove(&gone.peer.node);
        }
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        self.known.lock().clear();
    }

    /// A better way to a peer works: what is opened from now on goes there, and what is open moves.
    fn replace(&self, from: &Arc<Connected>, to: Arc<Connected>) {
        {
            let mut known = self.known.lock();
            let way = known.get(&to.peer.node);
            // It was given up meanwhile.
            if !way.is_some_and(|way| Arc::ptr_eq(way, from)) {
                return;
            }
            known.insert(to.peer.node, to.clone());
        }
        (self.better)(from, to);
    }

    /// The master hears that a peer's data goes through its host, and why: once.
    fn tell_carried(&self, member: &Member, node: u32) {
        let Some(route) = self.carried.lock().remove(&node) else {
            return;
        };
        let why = route.lock().why_not_direct();
        member.send(from_agent::Body::Route(control::Route {
            node,
            step: Some(control::route::Step::Through(why)),
        }));
    }

    /// As [`Ways::tell_carried`], of all peers of which it has not heard.
    pub fn tell_all_carried(&self, member: &Member) {
        let nodes: Vec<u32> = self.carried.lock().keys().copied().collect();
        for node in nodes {
            self.tell_carried(member, node);
        }
    }
}

/// Whether an agent of that name runs in this network namespace, without connecting to it.
fn is_on_this_host(instance: &str) -> bool {
    let name = unix::agent_name(instance);
    let wanted = format!("@{}", String::from_utf8_lossy(&name));
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.ends_with(&wanted))
}

/// Does something that blocks on a thread of its own; in words when there is none.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let builder = std::thread::Builder::new().name(name.into());
    match builder.stack_size(STACK_LEN).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no thread can be started: {error}")),
    }
}

/// How an attempt ended.
enum Event {
    Dialled(usize, std::io::Result<(TcpStream, Duration)>),
    Reversed(Result<DataSocket, String>),
    Through(Result<(Address, DataSocket), String>),
}

/// A pair that is being connected.
struct Finder {
    ways: Arc<Ways>,
    member: Arc<Member>,
    peer: Peer,
    targets: Vec<Target>,
    // Shared with those that say how data goes.
    route: Arc<Mutex<Route>>,
    told: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
}

/// Connects to a peer, does the pair's handshake and keeps the way.
fn find(ways: &Arc<Ways>, member: &Arc<Member>, peer: &Peer) -> Result<Arc<Connected>, AgentError> {
    let targets = dial::targets(member, peer);
    let route = Route::new(Facts {
        receiver: member.name.clone(),
        sender: peer.name.clone(),
        addresses: targets.iter().map(Target::address).collect(),
        lanes: match member.options.lane() {
            LaneKind::Auto => Lanes::Any,
            LaneKind::Tcp => Lanes::Tcp,
            LaneKind::Unix | LaneKind::Shm | LaneKind::Mpi => Lanes::Local,
            LaneKind::Rbudp | LaneKind::Rapid => Lanes::Datagrams,
        },
        is_restricted: member.is_restricted,
        is_fixed: member.options.equal,
    });
    let (told, events) = mpsc::channel();
    let finder = Finder {
        ways: ways.clone(),
        member: member.clone(),
        peer: peer.clone(),
        targets,
        route: Arc::new(Mutex::new(route)),
        told,
        events,
    };
    finder.find()
}

impl Finder {
    fn find(self) -> Result<Arc<Connected>, AgentError> {
        let keep = |finder: &Self, connected: Connected| {
            let connected = Arc::new(connected);
            finder.ways.keep(connected.clone());
            connected
        };
        loop {
            if let Some(connected) = self.begin() {
                return Ok(keep(&self, connected));
            }
            let Some(event) = self.next()? else { continue };
            let connected = match event {
                Event::Dialled(place, Ok((stream, took))) => {
                    let shaken =
                        self.shake(self.address(place), DataSocket::Tcp(stream), Some(took));
                    shaken.map_err(|why| self.dial_failed(place, why))
                }
                Event::Reversed(Ok(stream)) => {
                    let address = Address::Reversed(self.peer.node, 0);
                    let shaken = self.shake(address, stream, None);
                    shaken.map_err(|why| self.reverse_failed(&why))
                }
                Event::Through(Ok((address, socket))) => match self.shake(address, socket, None) {
                    Ok(connected) => {
                        let connected = keep(&self, connected);
                        self.look_on(connected.clone());
                        return Ok(connected);
                    }
                    Err(why) => {
                        self.route.lock().handle_through_failed(why);
                        continue;
                    }
                },
                failed => {
                    self.fail(failed);
                    continue;
                }
            };
            if let Ok(connected) = connected {
                return Ok(keep(&self, connected));
            }
        }
    }

    /// Begins what is due; the way to a peer on this host, which is there at once.
    fn begin(&self) -> Option<Connected> {
        loop {
            let step = self.route.lock().poll(self.member.now())?;
            let told = self.told.clone();
            match step {
                Step::Local => {
                    let may_be_local = self.route.lock().may_be_local();
                    let is_local = match may_be_local {
                        false => is_on_this_host(&self.peer.instance),
                        true => {
                            let address = Address::Unix(unix::agent_name(&self.peer.instance));
                            let socket = address.connect(&self.member);
                            let is_local = socket.is_ok();
                            let made = socket
                                .and_then(|s| shake(&self.member, &self.peer, address, s, None));
                            if let Ok(connected) = made {
                                return Some(connected);
                            }
                            is_local
                        }
                    };
                    let now = self.member.now();
                    self.route.lock().handle_local(is_local, now);
                }
                Step::Dial(place) => dial::begin(
                    self.targets[place].clone(),
                    |_| Ok(()),
                    move |result| {
                        let _ = told.send(Event::Dialled(place, result));
                    },
                ),
                Step::Reverse => {
                    let (member, sender) = (self.member.clone(), self.peer.node);
                    let work = move || {
                        let taken = member.ask(sender);
                        let _ = told.send(Event::Reversed(taken));
                    };
                    if let Err(error) = spawn("reversed", work) {
                        self.route.lock().handle_reverse_failed(error);
                    }
                }
                Step::Through => self.begin_through(told),
            }
        }
    }

    fn begin_through(&self, told: mpsc::Sender<Event>) {
        // It was said of the hosts' own networks that they are trusted.
        if self.member.options.plain {
            let why = "--plain keeps data off the command's host; leave --plain out";
            return self.route.lock().handle_through_failed(why.to_owned());
        }
        // The senders' copy is as near.
        if self.peer.relays {
            let why = "what receivers hand on does not go through the command's host";
            return self.route.lock().handle_through_failed(why.to_owned());
        }
        let (member, sender) = (self.member.clone(), self.peer.node);
        let work = move || {
            let mut opened = Err("no way leads there".to_owned());
            for bridge in bridges(&member) {
                let address = Address::Through(bridge, sender);
                opened = match address.connect(&member) {
                    Ok(socket) => Ok((address, socket)),
                    Err(error) => Err(error.to_string()),
                };
                if opened.is_ok() {
                    break;
                }
            }
            let _ = told.send(Event::Through(opened));
        };
        if let Err(error) = spawn("through", work) {
            self.route.lock().handle_through_failed(error);
        }
    }

    /// What has ended, if anything within a moment.
    ///
    /// # Errors
    /// Nothing is left that could, or nobody needs it any more.
    fn next(&self) -> Result<Option<Event>, AgentError> {
        if self.member.has_ended() {
            return Err(AgentError::Unconnected("the transfer has ended".into()));
        }
        let next = {
            let route = self.route.lock();
            if route.is_over() {
                return Err(AgentError::Unconnected(route.describe()));
            }
            route.next_at()
        };
        let pause = next.map_or(POLL, |at| {
            Duration::from(at.since(self.member.now())).min(POLL)
        });
        Ok(self.events.recv_timeout(pause).ok())
    }

    fn address(&self, place: usize) -> Address {
        match &self.targets[place] {
            Target::Tcp(address) => Address::Tcp(*address),
            Target::Rail(rail) => Address::Rail(rail.clone()),
        }
    }

    fn shake(
        &self,
        address: Address,
        socket: DataSocket,
        took: Option<Duration>,
    ) -> Result<Connected, String> {
        let shaken = shake(&self.member, &self.peer, address, socket, took);
        shaken.map_err(|error| format!("the handshake failed: {error}"))
    }

    fn dial_failed(&self, place: usize, why: String) {
        let mut route = self.route.lock();
        route.handle_dial_failed(place, Failure::Other(why));
    }

    fn reverse_failed(&self, why: &str) {
        let why = format!("{} connected, and {why}", self.peer.name);
        self.route.lock().handle_reverse_failed(why);
    }

    fn fail(&self, event: Event) {
        let mut route = self.route.lock();
        match event {
            Event::Dialled(place, Err(error)) => {
                route.handle_dial_failed(place, dial::failure(&error));
            }
            Event::Reversed(Err(why)) => route.handle_reverse_failed(why),
            Event::Through(Err(why)) => route.handle_through_failed(why),
            Event::Dialled(_, Ok(_)) | Event::Reversed(Ok(_)) | Event::Through(Ok(_)) => {}
        }
    }

    /// Data goes through the command's host from now on; other ways are tried until one works or none is left.
    fn look_on(self, carried: Arc<Connected>) {
        self.route.lock().handle_through_works();
        let node = self.peer.node;
        let (ways, member) = (self.ways.clone(), self.member.clone());
        ways.carried.lock().insert(node, self.route.clone());
        if member.options.equal {
            return ways.tell_carried(&member, node);
        }
        let work = move || match self.better(&carried) {
            Some(connected) => {
                self.ways.carried.lock().remove(&node);
                self.ways.replace(&carried, Arc::new(connected));
            }
            None => self.ways.tell_carried(&self.member, node),
        };
        if spawn("ways", work).is_err() {
            ways.tell_carried(&member, node);
        }
    }

    /// The first other way that works.
    fn better(&self, carried: &Connected) -> Option<Connected> {
        loop {
            // On this host it would have been there at once.
            let _ = self.begin();
            match self.next().ok()? {
                None => {}
                Some(Event::Dialled(place, Ok((mut stream, took)))) => {
                    let (address, how) = (self.address(place), (Some(took), false));
                    match carried.moved(&self.member, address, &mut stream, how) {
                        Ok(connected) => return Some(connected),
                        Err(error) => self.dial_failed(place, error.to_string()),
                    }
                }
                // Senders connect over TCP only.
                Some(Event::Reversed(Ok(DataSocket::Unix(_)))) => {}
                Some(Event::Reversed(Ok(DataSocket::Tcp(mut stream)))) => {
                    // Its preface was verified.
                    let (address, how) = (Address::Reversed(self.peer.node, 0), (None, true));
                    match carried.moved(&self.member, address, &mut stream, how) {
                        Ok(connected) => {
                            let stream = DataSocket::Tcp(stream);
                            self.member.pool.give_back((self.peer.node, 0), stream);
                            return Some(connected);
                        }
                        Err(error) => self.reverse_failed(&error.to_string()),
                    }
                }
                Some(failed) => self.fail(failed),
            }
        }
    }
}
