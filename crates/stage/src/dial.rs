//! Connects to the processes of the next group, through the agents of their nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ropewalk_lane::edge::{ANSWER_LEN, Edge, EdgeSecret};
use ropewalk_lane::seal::{Records, StreamKeys};
use ropewalk_lane::unix;
use ropewalk_proto::control::{LaneKind, Peer};
use socket2::SockRef;

use crate::error::StageError;
use crate::inbound::Sealed;

/// One address that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent answers at once; one that is starting many connections within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A host that acknowledges nothing for this long is gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Bytes asked for in the buffer of a Unix socket; the default of 208 KiB holds less than a block of 256 KiB.
const UNIX_BUFFER_LEN: usize = 1 << 20;

/// What all edges of a process have in common.
pub(crate) struct Dial<'s> {
    pub secret: &'s EdgeSecret,
    pub stream: [u8; 16],
    /// Node of this process.
    pub node: u32,
    /// The group after that of this process.
    pub group: u32,
    pub lane: LaneKind,
    pub plain: bool,
}

impl Dial<'_> {
    /// Connects to the process of the next group on this node.
    pub fn connect(
        &self,
        peer: &Peer,
        name: &str,
    ) -> Result<(OwnedFd, Option<Sealed>), StageError> {
        let failed = |reason: String| StageError::Connect {
            peer: name.to_owned(),
            reason,
        };
        let mut reasons = Vec::new();
        if self.lane != LaneKind::Tcp {
            match unix::connect(&unix::agent_name(&peer.instance)) {
                Ok(socket) => {
                    // What both users could read anyway need not be sealed.
                    let is_sealed = !self.plain && !is_own(&socket);
                    let keys = self.shake_hands(&socket, is_sealed);
                    let keys = keys.map_err(|reason| failed(format!("Unix socket: {reason}")))?;
                    let _ = SockRef::from(&socket).set_send_buffer_size(UNIX_BUFFER_LEN);
                    return finish(socket, keys, is_sealed).map_err(failed);
                }
                Err(error) if self.lane == LaneKind::Unix => {
                    return Err(failed(format!(
                        "Unix socket: {error}; --lane unix is for nodes of one host"
                    )));
                }
                Err(_) => {}
            }
        }
        for text in &peer.addresses {
            let connected = text
                .parse::<SocketAddr>()
                .map_err(|error| error.to_string());
            let connected = connected.and_then(|address| {
                let connected = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
                connected.map_err(|error| error.to_string())
            });
            let shaken = connected.and_then(|socket| {
                // Control frames are small and wanted at once; blocks are written whole.
                let _ = socket.set_nodelay(true);
                let _ = SockRef::from(&socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
                let keys = self.shake_hands(&socket, !self.plain)?;
                finish(socket, keys, !self.plain)
            });
            match shaken {
                Ok(connected) => return Ok(connected),
                Err(reason) => reasons.push(format!("{text}: {reason}")),
            }
        }
        if reasons.is_empty() {
            reasons.push("its agent has no address".into());
        }
        Err(failed(reasons.join("; ")))
    }

    /// Asks for the edge, and proves the stream's secret.
    fn shake_hands<'a, S>(&self, socket: &'a S, is_sealed: bool) -> Result<StreamKeys, String>
    where
        &'a S: Read + Write,
        S: Timeout,
    {
        let edge = Edge {
            from: self.node,
            group: self.group,
            is_sealed,
        };
        let (asked, preface) = self.secret.ask(self.stream, edge);
        let mut answer = [0; ANSWER_LEN];
        let mut stream = socket;
        let exchange = socket
            .limit(Some(ANSWER_TIMEOUT))
            .and_then(|()| stream.write_all(&preface))
            .and_then(|()| stream.read_exact(&mut answer));
        exchange.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                "closed without an answer: its agent does not serve this stream".to_owned()
            }
            _ => error.to_string(),
        })?;
        let Some((proof, keys)) = asked.verify(&answer) else {
            return Err("what answers does not know this stream".into());
        };
        stream
            .write_all(&proof)
            .map_err(|error| error.to_string())?;
        Ok(keys)
    }
}

/// Whether the socket's other end listens under the user of this process.
fn is_own(socket: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// As the sender of an edge uses the keys.
fn finish(
    socket: impl Into<OwnedFd>,
    keys: StreamKeys,
    is_sealed: bool,
) -> Result<(OwnedFd, Option<Sealed>), String> {
    let socket = socket.into();
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| error.to_string())?;
    let sealed = is_sealed.then(|| Sealed {
        incoming: Records::new(&keys.toward_sender),
        outgoing: Records::new(&keys.toward_receiver),
    });
    Ok((socket, sealed))
}

/// Sockets whose reads end in time.
trait Timeout {
    fn limit(&self, time: Option<Duration>) -> std::io::Result<()>;
}

impl Timeout for TcpStream {
    fn limit(&self, time: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(time)?;
        self.set_write_timeout(time)
    }
}

impl Timeout for UnixStream {
    fn limit(&self, time: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(time)?;
        self.set_write_timeout(time)
    }
}
