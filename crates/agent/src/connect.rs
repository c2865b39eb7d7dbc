//! Reaches a peer: which address, which kind of lane, the pair's handshake, the joins.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{ReceiveHalf, TcpInfo, tls, unix};
use ropewalk_proto::control::{self, Peer, from_agent};
use ropewalk_proto::route::{Facts, Failure, Lanes, Route, Step, Way};

use crate::dial::{self, POLL, Target};
use crate::listen::local_name;
use crate::rails::{Rail, Search};
use crate::streams::{self, DataSocket, STACK_LEN, lane};
use crate::transfer::Transfer;
use crate::tunnel::Tunnel;
use crate::{AgentError, reversed};

/// The handshake, once connected, takes at most this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that takes a stream over a rail proves itself within this time.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of the stream that fetches a manifest: reliable whatever lanes the transfer has, since it is short and comes first.
pub(crate) const MANIFEST_STREAM: u32 = u32::MAX;

/// Number of the stream over which a holder is asked for hashes of units; reliable, too.
pub(crate) const HASH_STREAM: u32 = u32::MAX - 1;

/// Where a join's preface says that the stream is one of several rails, and has to keep to its interfaces.
pub(crate) const RAIL_AT: usize = 8;

/// A peer whose handshake is done: streams can be opened to it.
pub(crate) struct Connected {
    pub peer: Peer,
    address: Address,
    // Where its streams went, in words, where the peer is on another host.
    ends: Option<String>,
    secret: PairSecret,
    join_key: MacKey,
    // This host's address of the connection, where it has any.
    local: Option<IpAddr>,
    /// Least round trip of the connection's first packets; none within a host.
    pub trip: Duration,
}

impl std::fmt::Debug for Connected {
    // Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connected({} at {})", self.peer.name, self.address)
    }
}

#[derive(Clone)]
enum Address {
    Tcp(SocketAddr),
    Rail(Rail),
    Unix(Vec<u8>),
    /// To the node of this number, through the master.
    Through(Arc<Tunnel>, u32),
    /// The peer connects.
    Reversed(u32),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Rail(rail) => write!(f, "{rail}"),
            Self::Unix(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
            Self::Through(..) => write!(f, "through the master"),
            Self::Reversed(_) => write!(f, "a connection that it makes"),
        }
    }
}

impl Address {
    fn connect(&self, transfer: &Transfer) -> std::io::Result<DataSocket> {
        match self {
            Self::Tcp(address) => Ok(DataSocket::Tcp(Target::Tcp(*address).connect()?)),
            Self::Rail(rail) => Ok(DataSocket::Tcp(Target::Rail(rail.clone()).connect()?)),
            Self::Unix(name) => Ok(DataSocket::Unix(unix::connect(name)?)),
            Self::Through(tunnel, node) => Ok(DataSocket::Unix(tunnel.connect(*node)?)),
            Self::Reversed(sender) => {
                let taken = transfer.pool.take(transfer, *sender);
                Ok(DataSocket::Tcp(taken.map_err(std::io::Error::other)?))
            }
        }
    }
}

/// Connects to a peer and does the pair's handshake; once for the whole transfer.
pub(crate) fn pair(transfer: &Arc<Transfer>, peer: &Peer) -> Result<Arc<Connected>, AgentError> {
    if let Some(known) = transfer.ways.lock().get(&peer.node) {
        return Ok(known.clone());
    }
    let connected = Arc::new(find(transfer, peer)?);
    let mut ways = transfer.ways.lock();
    ways.insert(peer.node, connected.clone());
    Ok(connected)
}

/// The way does not work any more, so that another one is looked for; unless that has happened already.
pub(crate) fn forget(transfer: &Transfer, gone: &Arc<Connected>) {
    let mut ways = transfer.ways.lock();
    let known = ways.get(&gone.peer.node);
    if known.is_some_and(|known| Arc::ptr_eq(known, gone)) {
        ways.remove(&gone.peer.node);
    }
}

/// Whether an agent of that name runs in this network namespace, without connecting to it.
fn is_on_this_host(instance: &str) -> bool {
    let name = local_name(instance);
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
    Reversed(Result<TcpStream, String>),
    Through(Result<UnixStream, String>),
}

/// Tries one way after the other, as [`ropewalk_proto::route`] says.
fn find(transfer: &Arc<Transfer>, peer: &Peer) -> Result<Connected, AgentError> {
    let targets = dial::targets(transfer, peer);
    let mut route = Route::new(Facts {
        receiver: transfer.name.clone(),
        sender: peer.name.clone(),
        addresses: targets.iter().map(Target::address).collect(),
        lanes: match transfer.options.lane {
            lane::AUTO => Lanes::Any,
            lane::UNIX => Lanes::Local,
            lane::RBUDP | lane::RAPID => Lanes::Datagrams,
            _ => Lanes::Tcp,
        },
        is_restricted: transfer.is_restricted,
    });
    let (told, events) = mpsc::channel();
    loop {
        if transfer.has_ended() {
            return Err(AgentError::Unconnected("the transfer has ended".into()));
        }
        let now = transfer.now_ns();
        while let Some(step) = route.poll(now) {
            let told = told.clone();
            match step {
                Step::Local => {
                    let is_local = match route.may_be_local() {
                        false => is_on_this_host(&peer.instance),
                        true => {
                            let address = Address::Unix(local_name(&peer.instance));
                            let socket = address.connect(transfer);
                            let is_local = socket.is_ok();
                            let made = socket
                                .and_then(|socket| shake(transfer, peer, address, socket, None));
                            if let Ok(connected) = made {
                                return Ok(connected);
                            }
                            is_local
                        }
                    };
                    route.handle_local(is_local, transfer.now_ns());
                }
                Step::Dial(place) => {
                    let target = targets[place].clone();
                    dial::begin(
                        target,
                        |_| Ok(()),
                        move |result| {
                            let _ = told.send(Event::Dialled(place, result));
                        },
                    );
                }
                Step::Reverse => {
                    let (transfer, sender) = (transfer.clone(), peer.node);
                    let work = move || {
                        let taken = reversed::ask(&transfer, sender);
                        let _ = told.send(Event::Reversed(taken));
                    };
                    if let Err(error) = spawn("reversed", work) {
                        route.handle_reverse_failed(error);
                    }
                }
                Step::Through => match &transfer.tunnel {
                    None => route.handle_through_failed(format!(
                        "{} was not started over ssh",
                        transfer.name
                    )),
                    Some(tunnel) => {
                        let (tunnel, sender) = (tunnel.clone(), peer.node);
                        let work = move || {
                            let opened = tunnel.connect(sender);
                            let opened = opened.map_err(|error| error.to_string());
                            let _ = told.send(Event::Through(opened));
                        };
                        if let Err(error) = spawn("through", work) {
                            route.handle_through_failed(error);
                        }
                    }
                },
            }
        }
        if route.is_over() {
            return Err(AgentError::Unconnected(route.describe()));
        }
        let pause = route.next_ns().map_or(POLL, |at| {
            Duration::from_nanos(at.saturating_sub(transfer.now_ns())).min(POLL)
        });
        let Ok(event) = events.recv_timeout(pause) else {
            continue;
        };
        match event {
            Event::Dialled(place, Err(error)) => {
                route.handle_dial_failed(place, dial::failure(&error));
            }
            Event::Dialled(place, Ok((stream, took))) => {
                let address = match &targets[place] {
                    Target::Tcp(address) => Address::Tcp(*address),
                    Target::Rail(rail) => Address::Rail(rail.clone()),
                };
                let socket = DataSocket::Tcp(stream);
                match shake(transfer, peer, address, socket, Some(took)) {
                    Ok(connected) => return Ok(connected),
                    Err(error) => {
                        let why = Failure::Other(format!("the handshake failed: {error}"));
                        route.handle_dial_failed(place, why);
                    }
                }
            }
            Event::Reversed(Ok(stream)) => {
                let address = Address::Reversed(peer.node);
                match shake(transfer, peer, address, DataSocket::Tcp(stream), None) {
                    Ok(connected) => return Ok(connected),
                    Err(error) => route.handle_reverse_failed(format!(
                        "{} connected, and the handshake failed: {error}",
                        peer.name
                    )),
                }
            }
            Event::Reversed(Err(why)) => route.handle_reverse_failed(why),
            Event::Through(Ok(stream)) => {
                let Some(tunnel) = transfer.tunnel.clone() else {
                    continue;
                };
                let address = Address::Through(tunnel, peer.node);
                match shake(transfer, peer, address, DataSocket::Unix(stream), None) {
                    Ok(connected) => {
                        transfer.send(from_agent::Body::Route(control::Route {
                            node: peer.node,
                            step: Some(control::route::Step::Through(route.why_not_direct())),
                        }));
                        return Ok(connected);
                    }
                    Err(error) => {
                        route.handle_through_failed(format!("the handshake failed: {error}"));
                    }
                }
            }
            Event::Through(Err(why)) => route.handle_through_failed(why),
        }
    }
}

/// Does the pair's handshake over a connection.
fn shake(
    transfer: &Transfer,
    peer: &Peer,
    address: Address,
    socket: DataSocket,
    took: Option<Duration>,
) -> std::io::Result<Connected> {
    let ends = match &socket {
        DataSocket::Tcp(stream) => stream.local_addr().ok().zip(stream.peer_addr().ok()),
        DataSocket::Unix(_) => None,
    };
    let ends = ends.map(|(near, far)| (near.ip().to_canonical(), far.ip().to_canonical()));
    let (secret, trip) = handshake(transfer, peer, socket, took)?;
    let join_key = MacKey::new(&derive(&secret.0, "join", b""));
    Ok(Connected {
        peer: peer.clone(),
        ends: ends.map(|(near, far)| format!("{near} - {far}")),
        local: ends.map(|(near, _)| near),
        address,
        secret,
        join_key,
        trip,
    })
}

trait Wire: Read + Write {
    fn set_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()>;
}

impl Wire for TcpStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

impl Wire for UnixStream {
    fn set_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

/// What a peer answers to a stream over a rail, by the nonce of its preface: only the two of the pair know the secret.
pub(crate) fn rail_proof(secret: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    derive(secret, "rail", nonce)
}

pub(crate) fn extra(node: u32, stream: u32, is_rail: bool) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&node.to_le_bytes());
    out[4..8].copy_from_slice(&stream.to_le_bytes());
    out[RAIL_AT] = u8::from(is_rail);
    out
}

/// Returns the pair's secret, and the least round trip of the connection's first packets. `took` is how long it took to
/// be made, where this host did.
fn handshake(
    transfer: &Transfer,
    peer: &Peer,
    socket: DataSocket,
    took: Option<Duration>,
) -> std::io::Result<(PairSecret, Duration)> {
    let (mut wire, tcp): (Box<dyn Wire>, _) = match socket {
        DataSocket::Tcp(stream) => {
            let tcp = stream.try_clone().ok();
            (Box::new(stream), tcp)
        }
        DataSocket::Unix(stream) => (Box::new(stream), None),
    };
    wire.set_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let head = Preface {
        kind: Kind::Pair,
        flags: 0,
        key_id: [0; 16],
        transfer_id: transfer.id,
        nonce: preface::random_bytes(),
        extra: extra(transfer.node, 0, false),
    };
    wire.write_all(&head.encode(&transfer.preface_key))?;
    let other = std::io::Error::other;
    let mut tls =
        rustls::ClientConnection::new(transfer.pair_client.clone(), tls::server_name(peer.node))
            .map_err(other)?;
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    let mut secret = PairSecret([0; 32]);
    tls.export_keying_material(&mut secret.0, tls::PAIR_LABEL, None)
        .map_err(other)?;
    // The kernel's clock stops when a packet comes, this thread's when it is its turn.
    let seen = tcp.as_ref().and_then(TcpInfo::of);
    let known = |info: TcpInfo| {
        let trips = [info.rtt_microseconds_min, info.rtt_microseconds];
        let least = trips.into_iter().filter(|trip| *trip > 0).min()?;
        Some(Duration::from_micros(least.into()))
    };
    let seen = seen.and_then(known);
    let trip = match tcp {
        Some(_) => [seen, took].into_iter().flatten().min(),
        None => None,
    };
    Ok((secret, trip.unwrap_or_default()))
}

impl Connected {
    /// The search for further rails, where there can be any.
    pub fn search(&self, transfer: &Transfer) -> Option<Search> {
        let remote = match &self.address {
            Address::Tcp(remote) => *remote,
            Address::Rail(rail) => rail.remote(),
            Address::Unix(_) | Address::Reversed(_) | Address::Through(..) => return None,
        };
        let local = self.local.filter(|_| !transfer.one_rail)?;
        let here = transfer.interfaces.clone();
        Some(Search::new(here, &self.peer, local, remote))
    }

    /// What the first rail is called in reports; empty within a host.
    pub fn first_rail(&self) -> String {
        match &self.address {
            Address::Rail(rail) => rail.to_string(),
            _ => self.ends.clone().unwrap_or_default(),
        }
    }

    /// How the two are connected.
    pub fn way(&self) -> Way {
        match &self.address {
            Address::Reversed(_) => Way::Reversed,
            Address::Through(..) => Way::Through,
            Address::Tcp(_) | Address::Rail(_) | Address::Unix(_) => Way::Direct,
        }
    }

    /// Connects and says who it is, over a rail or as the pair was connected.
    fn greet(
        &self,
        transfer: &Transfer,
        rail: Option<&Rail>,
        index: u32,
    ) -> Result<(DataSocket, [u8; 32]), AgentError> {
        let address = match rail {
            Some(rail) => Address::Rail(rail.clone()),
            None => self.address.clone(),
        };
        let failed = |error: std::io::Error| AgentError::Peer {
            node: self.peer.name.clone(),
            address: address.to_string(),
            reason: error.to_string(),
        };
        let mut socket = address.connect(transfer).map_err(failed)?;
        let head = Preface {
            kind: Kind::Join,
            flags: 0,
            key_id: [0; 16],
            transfer_id: transfer.id,
            nonce: preface::random_bytes(),
            extra: extra(transfer.node, index, matches!(address, Address::Rail(_))),
        };
        let bytes = head.encode(&self.join_key);
        match &mut socket {
            DataSocket::Tcp(stream) => stream.write_all(&bytes),
            DataSocket::Unix(stream) => stream.write_all(&bytes),
        }
        .map_err(failed)?;
        if let (Address::Rail(_), DataSocket::Tcp(stream)) = (&address, &mut socket) {
            self.expect_proof(stream, &head.nonce).map_err(failed)?;
        }
        Ok((socket, head.nonce))
    }

    /// A rail leads to an address where the pair's handshake was not done: who is there shows that he is the peer.
    fn expect_proof(&self, stream: &mut TcpStream, nonce: &[u8; 32]) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PROOF_TIMEOUT))?;
        let mut proof = [0; 32];
        stream.read_exact(&mut proof)?;
        stream.set_read_timeout(None)?;
        let expected = rail_proof(&self.secret.0, nonce);
        aws_lc_rs::constant_time::verify_slices_are_equal(&proof, &expected)
            .map_err(|_| std::io::Error::other("another host answers there"))
    }

    /// Whether the peer takes streams there. Strangers, and the peer's namesakes on networks of the same addresses, have
    /// no proof of it.
    pub fn is_answered(&self, transfer: &Transfer, rail: Option<&Rail>) -> bool {
        self.greet(transfer, rail, 0).is_ok()
    }

    /// Opens one more stream, over a rail or as the pair was connected.
    pub fn join(
        &self,
        transfer: &Transfer,
        rail: Option<&Rail>,
        index: u32,
    ) -> Result<(Box<dyn ReceiveHalf>, &'static str), AgentError> {
        let (socket, nonce) = self.greet(transfer, rail, index)?;
        let options = streams::of_stream(&transfer.options, index);
        let kind = match self.address {
            Address::Through(..) => "ssh",
            _ => socket.kind(&options),
        };
        let half = socket
            .receive_half(&options, &self.secret, nonce)
            .map_err(|error| AgentError::Peer {
                node: self.peer.name.clone(),
                address: self.first_rail(),
                reason: error.to_string(),
            })?;
        Ok((half, kind))
    }
}
