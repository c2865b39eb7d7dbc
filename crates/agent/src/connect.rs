//! Reaches a peer: which address, which kind of lane, the pair's handshake, the joins.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{ReceiveHalf, tls, unix};
use ropewalk_proto::control::Peer;

use crate::AgentError;
use crate::listen::local_name;
use crate::streams::DataSocket;
use crate::transfer::Transfer;

/// One address that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The handshake, once connected, takes at most this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Numbers of [`ropewalk_proto::control::Options::lane`].
const LANE_TCP: u32 = 1;
const LANE_UNIX: u32 = 2;

/// A peer whose handshake is done: streams can be opened to it.
pub(crate) struct Connected {
    pub peer: Peer,
    address: Address,
    secret: [u8; 32],
    join_key: MacKey,
}

#[derive(Clone)]
enum Address {
    Tcp(SocketAddr),
    Unix(Vec<u8>),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
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
            Self::Unix(name) => Ok(DataSocket::Unix(unix::connect(name)?)),
        }
    }
}

/// Does the pair's handshake over the first address that works.
///
/// Being on one host is found out by trying: an abstract socket connects only within the same
/// network namespace.
pub(crate) fn pair(transfer: &Transfer, peer: &Peer) -> Result<Connected, AgentError> {
    let mut addresses = Vec::new();
    if transfer.options.lane != LANE_TCP {
        addresses.push(Address::Unix(local_name(&peer.instance)));
    }
    if transfer.options.lane != LANE_UNIX {
        addresses.extend(
            peer.addresses
                .iter()
                .filter_map(|text| text.parse().ok())
                .map(Address::Tcp),
        );
    }
    let mut tried = Vec::new();
    for address in addresses {
        match handshake(transfer, peer, &address) {
            Ok(secret) => {
                let join_key = MacKey::new(&derive(&secret, "join", b""));
                return Ok(Connected {
                    peer: peer.clone(),
                    address,
                    secret,
                    join_key,
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

fn extra(node: u32, stream: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&node.to_le_bytes());
    out[4..8].copy_from_slice(&stream.to_le_bytes());
    out
}

fn handshake(transfer: &Transfer, peer: &Peer, address: &Address) -> std::io::Result<[u8; 32]> {
    let socket = address.connect()?;
    let mut wire: Box<dyn Wire> = match socket {
        DataSocket::Tcp(stream) => Box::new(stream),
        DataSocket::Unix(stream) => Box::new(stream),
    };
    wire.set_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let head = Preface {
        kind: Kind::Pair,
        flags: 0,
        key_id: [0; 16],
        transfer_id: transfer.id,
        nonce: preface::random_bytes(),
        extra: extra(transfer.node, 0),
    };
    wire.write_all(&head.encode(&transfer.preface_key))?;
    let other = std::io::Error::other;
    let mut tls =
        rustls::ClientConnection::new(transfer.pair_client.clone(), tls::server_name(peer.node))
            .map_err(other)?;
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    tls.export_keying_material([0; 32], tls::PAIR_LABEL, None)
        .map_err(other)
}

impl Connected {
    /// Opens one more stream.
    pub fn join(
        &self,
        transfer: &Arc<Transfer>,
        index: u32,
    ) -> Result<(Box<dyn ReceiveHalf>, &'static str), AgentError> {
        let failed = |reason: String| AgentError::Peer {
            node: self.peer.name.clone(),
            address: self.address.to_string(),
            reason,
        };
        let mut socket = self.address.connect().map_err(|e| failed(e.to_string()))?;
        let head = Preface {
            kind: Kind::Join,
            flags: 0,
            key_id: [0; 16],
            transfer_id: transfer.id,
            nonce: preface::random_bytes(),
            extra: extra(transfer.node, index),
        };
        let bytes = head.encode(&self.join_key);
        match &mut socket {
            DataSocket::Tcp(stream) => stream.write_all(&bytes),
            DataSocket::Unix(stream) => stream.write_all(&bytes),
        }
        .map_err(|e| failed(e.to_string()))?;
        let kind = socket.kind();
        let half = socket
            .receive_half(&transfer.options, &PairSecret(self.secret), head.nonce)
            .map_err(|e| failed(e.to_string()))?;
        Ok((half, kind))
    }
}
