//! Reaches a peer: which address, which kind of lane, the pair's handshake, the joins.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{ReceiveHalf, TcpInfo, tls, unix};
use ropewalk_proto::control::Peer;

use crate::AgentError;
use crate::listen::local_name;
use crate::rails::{self, Rail, Search};
use crate::streams::{self, DataSocket, lane};
use crate::transfer::Transfer;
use crate::tunnel::Tunnel;

/// One address that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Rail(rail) => write!(f, "{rail}"),
            Self::Unix(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
            Self::Through(..) => write!(f, "through the master"),
        }
    }
}

impl Address {
    fn connect(&self) -> std::io::Result<DataSocket> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                Ok(DataSocket::Tcp(stream))
            }
            Self::Rail(rail) => {
                let stream = rail.connect()?;
                stream.set_nodelay(true)?;
                Ok(DataSocket::Tcp(stream))
            }
            Self::Unix(name) => Ok(DataSocket::Unix(unix::connect(name)?)),
            Self::Through(tunnel, node) => Ok(DataSocket::Unix(tunnel.connect(*node)?)),
        }
    }
}

/// Does the pair's handshake over the first address that works.
///
/// Being on one host is found out by trying: an abstract socket connects only within the same
/// network namespace.
pub(crate) fn pair(transfer: &Transfer, peer: &Peer) -> Result<Connected, AgentError> {
    let mut addresses = Vec::new();
    if matches!(transfer.options.lane, lane::AUTO | lane::UNIX) {
        addresses.push(Address::Unix(local_name(&peer.instance)));
    }
    if transfer.options.lane != lane::UNIX {
        let remotes = peer.addresses.iter().filter_map(|text| text.parse().ok());
        match transfer.is_restricted {
            true => {
                let rails = remotes.flat_map(|remote| rails::to(&transfer.interfaces, remote));
                addresses.extend(rails.map(Address::Rail));
            }
            false => addresses.extend(remotes.map(Address::Tcp)),
        }
    }
    if let (lane::AUTO, Some(tunnel)) = (transfer.options.lane, &transfer.tunnel) {
        addresses.push(Address::Through(tunnel.clone(), peer.node));
    }
    let mut tried = Vec::new();
    for address in addresses {
        match handshake(transfer, peer, &address) {
            Ok((secret, local, trip)) => {
                let join_key = MacKey::new(&derive(&secret.0, "join", b""));
                return Ok(Connected {
                    peer: peer.clone(),
                    address,
                    secret,
                    join_key,
                    local,
                    trip,
                });
            }
            Err(error) => tried.push((address.to_string(), error.to_string())),
        }
    }
    let reason = match tried.last() {
        Some((_, reason)) => reason.clone(),
        None => "it told no address that this lane kind can use".into(),
    };
    let address = tried
        .into_iter()
        .map(|(address, _)| address)
        .collect::<Vec<_>>()
        .join(", ");
    Err(AgentError::Peer {
        node: peer.name.clone(),
        address,
        reason,
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

fn extra(node: u32, stream: u32, is_rail: bool) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&node.to_le_bytes());
    out[4..8].copy_from_slice(&stream.to_le_bytes());
    out[RAIL_AT] = u8::from(is_rail);
    out
}

/// Returns the pair's secret, this host's address of the connection, and the least round trip of its first packets.
fn handshake(
    transfer: &Transfer,
    peer: &Peer,
    address: &Address,
) -> std::io::Result<(PairSecret, Option<IpAddr>, Duration)> {
    let began = Instant::now();
    let socket = address.connect()?;
    let connected = began.elapsed();
    let (mut wire, local, tcp): (Box<dyn Wire>, _, _) = match socket {
        DataSocket::Tcp(stream) => {
            let local = stream.local_addr().ok();
            let local = local.map(|local| local.ip().to_canonical());
            let tcp = stream.try_clone().ok();
            (Box::new(stream), local, tcp)
        }
        DataSocket::Unix(stream) => (Box::new(stream), None, None),
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
        Some(_) => seen.unwrap_or(connected).min(connected),
        None => Duration::ZERO,
    };
    Ok((secret, local, trip))
}

impl Connected {
    /// The search for further rails, where there can be any.
    pub fn search(&self, transfer: &Transfer) -> Option<Search> {
        let remote = match &self.address {
            Address::Tcp(remote) => *remote,
            Address::Rail(rail) => rail.remote(),
            Address::Unix(_) | Address::Through(..) => return None,
        };
        let local = self.local.filter(|_| !transfer.one_rail)?;
        let here = transfer.interfaces.clone();
        Some(Search::new(here, &self.peer, local, remote))
    }

    /// What the first rail is called in reports; empty within a host.
    pub fn first_rail(&self) -> String {
        match (&self.address, self.local) {
            (Address::Tcp(remote), Some(local)) => format!("{local} - {}", remote.ip()),
            (Address::Rail(rail), _) => rail.to_string(),
            _ => String::new(),
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
        let mut socket = address.connect().map_err(failed)?;
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
        match proof == rail_proof(&self.secret.0, nonce) {
            true => Ok(()),
            false => Err(std::io::Error::other("another host answers there")),
        }
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
        let kind = socket.kind(&options);
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
