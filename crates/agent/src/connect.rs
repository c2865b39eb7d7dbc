//! A peer that is connected: the pair's handshake, the joins. [`crate::find`] says how it is found.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{ReceiveHalf, TcpInfo, tls, unix};
use ropewalk_proto::control::{LaneKind, Peer};
use ropewalk_proto::report::LANE_LOCAL;
use ropewalk_proto::route::Way;

use crate::AgentError;
use crate::beside;
use crate::bridge::Bridge;
use crate::dial::Target;
use crate::member::Member;
use crate::rails::{Rail, Search};
use crate::streams::{self, DataSocket, ends_of};

/// The handshake, once connected, takes at most this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that takes a stream over a rail proves itself within this time.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Which rail a stream to a peer takes.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// As the pair was connected.
    Pair,
    /// This one.
    Rail(Rail),
    /// One that the peer connects over, by its number, and what reports call it.
    Ready(u32, String),
}

/// What streams to a peer connect to.
#[derive(Clone)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Rail(Rail),
    Unix(Vec<u8>),
    /// To the node of this number, through the master.
    Through(Bridge, u32),
    /// The peer connects, over the rail of this number.
    Reversed(u32, u32),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Rail(rail) => write!(f, "{rail}"),
            Self::Unix(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
            Self::Through(..) => write!(f, "through the master"),
            Self::Reversed(..) => write!(f, "a connection that it makes"),
        }
    }
}

impl Address {
    pub fn connect(&self, member: &Member) -> std::io::Result<DataSocket> {
        match self {
            Self::Tcp(address) => Ok(DataSocket::Tcp(Target::Tcp(*address).connect()?)),
            Self::Rail(rail) => Ok(DataSocket::Tcp(Target::Rail(rail.clone()).connect()?)),
            Self::Unix(name) => Ok(DataSocket::Unix(unix::connect(name)?)),
            Self::Through(bridge, node) => bridge.connect(member, *node),
            Self::Reversed(sender, rail) => {
                let taken = member.pool.take(&member.stopped, (*sender, *rail));
                taken.map_err(std::io::Error::other)
            }
        }
    }
}

/// Does the pair's handshake over a connection.
pub(crate) fn shake(
    member: &Member,
    peer: &Peer,
    address: Address,
    socket: DataSocket,
    took: Option<Duration>,
) -> std::io::Result<Connected> {
    let ends = match &socket {
        DataSocket::Tcp(stream) => ends_of(stream),
        DataSocket::Unix(_) => None,
    };
    let (secret, trip) = handshake(member, peer, socket, took)?;
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
    member: &Member,
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
        transfer_id: member.id,
        nonce: preface::random_bytes(),
        extra: extra(member.node, 0, false),
    };
    wire.write_all(&head.encode(&member.preface_key))?;
    let other = std::io::Error::other;
    let mut tls =
        rustls::ClientConnection::new(member.pair_client.clone(), tls::server_name(peer.node))
            .map_err(other)?;
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    let mut secret = PairSecret([0; 32]);
    tls.export_keying_material(&mut secret.0, tls::PAIR_LABEL, None)
        .map_err(other)?;
    let trip = match &tcp {
        Some(_) => least_trip(tcp.as_ref(), took),
        None => Duration::ZERO,
    };
    Ok((secret, trip))
}

/// The least round trip of a connection's first packets, as far as it is known.
pub(crate) fn least_trip(stream: Option<&TcpStream>, took: Option<Duration>) -> Duration {
    // The kernel's clock stops when a packet comes, this thread's when it is its turn.
    let known = |info: TcpInfo| {
        let trips = [info.rtt_microseconds_min, info.rtt_microseconds];
        let least = trips.into_iter().filter(|trip| *trip > 0).min()?;
        Some(Duration::from_micros(least.into()))
    };
    let seen = stream.and_then(TcpInfo::of).and_then(known);
    [seen, took].into_iter().flatten().min().unwrap_or_default()
}

impl Connected {
    /// The search for further rails, where there can be any.
    pub fn search(&self, member: &Member) -> Option<Search> {
        let remote = match &self.address {
            Address::Tcp(remote) => *remote,
            Address::Rail(rail) => rail.remote(),
            Address::Unix(_) | Address::Reversed(..) | Address::Through(..) => return None,
        };
        let local = self.local.filter(|_| !member.one_rail)?;
        let here = member.interfaces.clone();
        Some(Search::new(here, &self.peer, local, remote))
    }

    /// The same peer and keys over a connection that was found later. `is_proved`: the peer has shown that it is the one.
    pub fn moved(
        &self,
        member: &Member,
        address: Address,
        stream: &mut TcpStream,
        (took, is_proved): (Option<Duration>, bool),
    ) -> std::io::Result<Self> {
        if !is_proved {
            let head = self.join_head(member, 0, true);
            stream.write_all(&head.encode(&self.join_key))?;
            self.expect_proof(stream, &head.nonce)?;
        }
        let trip = least_trip(Some(stream), took);
        let ends = ends_of(stream);
        Ok(Self {
            peer: self.peer.clone(),
            ends: ends.map(|(near, far)| format!("{near} - {far}")),
            local: ends.map(|(near, _)| near),
            address,
            secret: self.secret.clone(),
            join_key: MacKey::new(&derive(&self.secret.0, "join", b"")),
            trip,
        })
    }

    /// Whether both are of one handshake: a later one ends the right of an earlier one to open streams.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        self.secret.0 == other.secret.0
    }

    fn join_head(&self, member: &Member, index: u32, is_rail: bool) -> Preface {
        Preface {
            kind: Kind::Join,
            flags: 0,
            key_id: [0; 16],
            transfer_id: member.id,
            nonce: preface::random_bytes(),
            extra: extra(member.node, index, is_rail),
        }
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
            Address::Reversed(..) => Way::Reversed,
            Address::Through(..) => Way::Through,
            Address::Tcp(_) | Address::Rail(_) | Address::Unix(_) => Way::Direct,
        }
    }

    /// Whether the peer is another process of this host, and TCP between them.
    pub fn shares_processors(&self) -> bool {
        match &self.address {
            Address::Tcp(far) => {
                let far = far.ip().to_canonical();
                self.local.is_some_and(|near| near.to_canonical() == far)
            }
            // Streams of Unix sockets hold too little for one to keep both ends busy.
            Address::Unix(_) | Address::Rail(_) | Address::Through(..) | Address::Reversed(..) => {
                false
            }
        }
    }

    /// Connects and says who it is, over a rail or as the pair was connected.
    fn greet(
        &self,
        member: &Member,
        via: &Via,
        index: u32,
    ) -> Result<(DataSocket, [u8; 32]), AgentError> {
        let address = match via {
            Via::Rail(rail) => Address::Rail(rail.clone()),
            Via::Ready(number, _) => Address::Reversed(self.peer.node, *number),
            Via::Pair => self.address.clone(),
        };
        let failed = |error: std::io::Error| AgentError::Peer {
            node: self.peer.name.clone(),
            address: address.to_string(),
            reason: error.to_string(),
        };
        let mut socket = address.connect(member).map_err(failed)?;
        let head = self.join_head(member, index, matches!(address, Address::Rail(_)));
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

    /// Whether the peer takes streams there. Other hosts, such as one that has the peer's address in another network,
    /// have no proof of it.
    pub fn is_answered(&self, member: &Member, via: &Via) -> bool {
        self.greet(member, via, 0).is_ok()
    }

    /// A stream without a socket, where the peer is served by this process and no other way was asked for.
    fn beside(&self, member: &Member, index: u32) -> Option<Box<dyn ReceiveHalf>> {
        let is_near = matches!(self.address, Address::Unix(_)) && !self.peer.relays;
        if !is_near || member.options.lane() != LaneKind::Auto {
            return None;
        }
        beside::stream(member, (&self.peer.instance, self.peer.node), index)
    }

    /// Opens one more stream, over a rail or as the pair was connected.
    pub fn join(
        &self,
        member: &Member,
        via: &Via,
        index: u32,
    ) -> Result<(Box<dyn ReceiveHalf>, &'static str), AgentError> {
        if let Some(half) = self.beside(member, index) {
            return Ok((half, LANE_LOCAL));
        }
        let (socket, nonce) = self.greet(member, via, index)?;
        let options = streams::of_stream(&member.options, index);
        let kind = match &self.address {
            Address::Through(bridge, _) => bridge.kind(member),
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

#[cfg(test)]
impl Connected {
    /// A peer there, as if its handshake were done.
    pub fn at(peer: Peer, address: SocketAddr) -> Self {
        Self {
            peer,
            address: Address::Tcp(address),
            ends: None,
            secret: PairSecret([1; 32]),
            join_key: MacKey::new(&[1; 32]),
            local: None,
            trip: Duration::ZERO,
        }
    }
}
