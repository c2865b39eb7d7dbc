//! Connects to the processes of the next group, through the agents of their nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use ropewalk_lane::edge::{ANSWER_LEN, Edge, EdgeSecret, RETRANSMIT_PAUSE_MAX};
use ropewalk_lane::seal::{Records, StreamKeys};
use ropewalk_lane::tcp::limit_retransmit_pause;
use ropewalk_lane::unix;
use ropewalk_proto::control::{LaneKind, Peer};
use socket2::{SockRef, TcpKeepalive};

use crate::error::StageError;
use crate::inbound::Sealed;

/// One address that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent answers at once; one that is starting many connections within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection without traffic is probed this often, so that no firewall forgets it. A bound on what is not acknowledged would end the
/// connection of a process that does not read for a while, too, as it counts the time of a closed window: a path that is lost with bytes on
/// their way is found by the stream's limit for standing still.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// So many probes without an answer end it.
const PROBES: u32 = 4;

/// Connections that are made at the same time.
const AT_ONCE: usize = 64;

/// Before a connection that failed is tried again.
const PAUSES_MS: [u64; 5] = [100, 300, 1000, 2000, 4000];

/// Nothing is tried again after this time.
const TRY_FOR: Duration = Duration::from_secs(20);

/// Bytes asked for in the buffer of a Unix socket; the default of 208 KiB holds less than a block of 256 KiB.
const UNIX_BUFFER_LEN: usize = 1 << 20;

/// Bytes asked for in the send buffer of a TCP connection within a host. What waits there is copied twice; the default, several MiB, does
/// not stay in a processor's cache.
const LOCAL_TCP_BUFFER_LEN: usize = 512 << 10;

/// A connection that was not made.
struct Failed {
    reason: String,
    /// It would fail again.
    is_final: bool,
}

/// A connection that was made.
pub(crate) struct Connected {
    pub socket: OwnedFd,
    /// `None` where it is not sealed.
    pub keys: Option<StreamKeys>,
}

impl Connected {
    /// As the sender of an edge uses the keys.
    pub fn sealed(&self) -> Option<Sealed> {
        self.keys.as_ref().map(|keys| Sealed {
            incoming: Records::new(&keys.toward_sender),
            outgoing: Records::new(&keys.toward_receiver),
        })
    }
}

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
    /// Connects to the processes of the next group on these nodes, [`AT_ONCE`] at a time; each has a name for errors.
    pub fn connect_all(&self, targets: &[(&Peer, String)]) -> Result<Vec<Connected>, StageError> {
        let mut connected = Vec::new();
        for part in targets.chunks(AT_ONCE) {
            let results = std::thread::scope(|scope| {
                let dials = part.iter().map(|(peer, name)| {
                    let dial = move || self.connect(peer, name);
                    std::thread::Builder::new().spawn_scoped(scope, dial)
                });
                let dials: Vec<_> = dials.collect();
                let join = |dial: std::io::Result<ScopedJoinHandle<'_, _>>| match dial {
                    Ok(dial) => dial.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    Err(source) => Err(StageError::System {
                        doing: "starting a thread",
                        source,
                    }),
                };
                dials.into_iter().map(join).collect::<Vec<_>>()
            });
            for result in results {
                connected.push(result?);
            }
        }
        Ok(connected)
    }

    /// Connects to the process of the next group on this node; several times, since an agent may be busy or a packet lost.
    fn connect(&self, peer: &Peer, name: &str) -> Result<Connected, StageError> {
        let mut pauses = PAUSES_MS.into_iter().map(Duration::from_millis);
        let began = Instant::now();
        loop {
            match (self.try_once(peer), pauses.next()) {
                (Ok(connected), _) => return Ok(connected),
                (
                    Err(Failed {
                        is_final: false, ..
                    }),
                    Some(pause),
                ) if began.elapsed() < TRY_FOR => {
                    std::thread::sleep(pause);
                }
                (Err(Failed { reason, .. }), _) => {
                    return Err(StageError::Connect {
                        peer: name.to_owned(),
                        reason,
                    });
                }
            }
        }
    }

    /// Tries each address once.
    fn try_once(&self, peer: &Peer) -> Result<Connected, Failed> {
        let failed = |is_final: bool| move |reason: String| Failed { reason, is_final };
        if !matches!(self.lane, LaneKind::Tcp | LaneKind::Rbudp | LaneKind::Rapid) {
            match unix::connect(&unix::agent_name(&peer.instance)) {
                Ok(socket) => {
                    // What both users could read anyway need not be sealed.
                    let is_sealed = !self.plain && !is_own(&socket);
                    let keys = self.shake_hands(&socket, peer.node, is_sealed);
                    let keys =
                        keys.map_err(|reason| failed(false)(format!("Unix socket: {reason}")))?;
                    let _ = SockRef::from(&socket).set_send_buffer_size(UNIX_BUFFER_LEN);
                    return finish(socket, keys, is_sealed).map_err(failed(false));
                }
                Err(error) if self.lane != LaneKind::Auto => {
                    return Err(failed(true)(format!(
                        "Unix socket: {error}; --lane {} is for nodes of one host",
                        self.lane.name()
                    )));
                }
                Err(_) => {}
            }
        }
        let mut reasons = Vec::new();
        for text in &peer.addresses {
            match self.try_address(text, peer.node) {
                Ok(connected) => return Ok(connected),
                Err(reason) => reasons.push(format!("{text}: {reason}")),
            }
        }
        if reasons.is_empty() {
            return Err(failed(true)("its agent has no address".into()));
        }
        Err(failed(false)(reasons.join("; ")))
    }

    fn try_address(&self, text: &str, node: u32) -> Result<Connected, String> {
        let address = text
            .parse::<SocketAddr>()
            .map_err(|error| error.to_string())?;
        let socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
            .map_err(|error| error.to_string())?;
        // Control frames are small and wanted at once; blocks are written whole.
        let _ = socket.set_nodelay(true);
        if is_within_host(&socket) {
            let _ = SockRef::from(&socket).set_send_buffer_size(LOCAL_TCP_BUFFER_LEN);
        }
        let probes = TcpKeepalive::new()
            .with_time(PROBE_EVERY)
            .with_interval(PROBE_EVERY)
            .with_retries(PROBES);
        let _ = SockRef::from(&socket).set_tcp_keepalive(&probes);
        limit_retransmit_pause(&socket, RETRANSMIT_PAUSE_MAX);
        let keys = self.shake_hands(&socket, node, !self.plain)?;
        finish(socket, keys, !self.plain)
    }

    /// Asks for the edge, and proves the stream's secret.
    fn shake_hands<'a, S>(
        &self,
        socket: &'a S,
        node: u32,
        is_sealed: bool,
    ) -> Result<StreamKeys, String>
    where
        &'a S: Read + Write,
        S: Timeout,
    {
        let edge = Edge {
            from: self.node,
            to: node,
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

/// Whether one address is at both ends: no network carries what the connection does.
fn is_within_host(socket: &TcpStream) -> bool {
    let ends = [socket.local_addr(), socket.peer_addr()];
    let [own, other] = ends.map(|end| Some(end.ok()?.ip()));
    own.is_some() && own == other
}

fn finish(
    socket: impl Into<OwnedFd>,
    keys: StreamKeys,
    is_sealed: bool,
) -> Result<Connected, String> {
    let socket = socket.into();
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| error.to_string())?;
    Ok(Connected {
        socket,
        keys: is_sealed.then_some(keys),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_lane::edge::PROOF_LEN;
    use ropewalk_lane::preface::PREFACE_LEN;
    use std::net::TcpListener;
    use std::sync::{Arc, Barrier};

    use socket2::{Domain, Socket, Type};

    const STREAM: [u8; 16] = [1; 16];

    /// Answers as the agent of a node does, after the given number of connections that it closes and once all are here.
    fn answer(listener: &TcpListener, node: u32, closed: usize, all: &Barrier) {
        for _ in 0..closed {
            drop(listener.accept().unwrap());
        }
        let (mut socket, _) = listener.accept().unwrap();
        let mut preface = [0; PREFACE_LEN];
        socket.read_exact(&mut preface).unwrap();
        let secret = EdgeSecret::new(&[7; 32]).unwrap();
        let edge = secret.read(&preface).unwrap();
        assert_eq!((edge.from, edge.to, edge.group), (3, node, 1));
        all.wait();
        let answered = secret.answer(&preface).unwrap();
        socket.write_all(&answered.bytes).unwrap();
        let mut proof = [0; PROOF_LEN];
        socket.read_exact(&mut proof).unwrap();
        assert!(answered.verify(&proof).is_some());
    }

    /// Nodes answer here only once all are asked: edges are connected at the same time. A connection that is closed is made again,
    /// and the node that is meant is named in the handshake.
    #[test]
    fn edges_are_connected_together_and_again() {
        const NODES: u32 = 5;
        let listeners: Vec<TcpListener> = (0..NODES)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let peer = |(node, listener): (u32, &TcpListener)| Peer {
            node,
            addresses: vec![listener.local_addr().unwrap().to_string()],
            ..Peer::default()
        };
        let peers: Vec<Peer> = (0..).zip(&listeners).map(peer).collect();
        let targets: Vec<(&Peer, String)> = peers
            .iter()
            .map(|peer| (peer, format!("B on {}", peer.node)))
            .collect();
        let secret = EdgeSecret::new(&[7; 32]).unwrap();
        let dial = Dial {
            secret: &secret,
            stream: STREAM,
            node: 3,
            group: 1,
            lane: LaneKind::Tcp,
            plain: false,
        };
        let all = Arc::new(Barrier::new(NODES as usize));
        // Not waited for before the result is known: they wait for all.
        let answers: Vec<_> = (0..)
            .zip(listeners)
            .map(|(node, listener)| {
                let all = all.clone();
                std::thread::spawn(move || answer(&listener, node, node as usize % 2, &all))
            })
            .collect();
        assert_eq!(dial.connect_all(&targets).unwrap().len(), NODES as usize);
        for answer in answers {
            answer.join().unwrap();
        }
        let nowhere = Peer::default();
        let error = dial.connect_all(&[(&nowhere, "B on x".into())]);
        let error = error.err().unwrap();
        assert!(
            error
                .to_string()
                .contains("B on x: its agent has no address"),
            "{error}"
        );
    }

    #[test]
    fn one_address_at_both_ends_is_one_host() {
        for (from, to, is_one) in [
            ("127.0.0.1:0", "127.0.0.1:0", true),
            ("[::1]:0", "[::1]:0", true),
            ("127.0.0.2:0", "127.0.0.1:0", false),
        ] {
            let listener = TcpListener::bind(to).unwrap();
            let from: SocketAddr = from.parse().unwrap();
            let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
            socket.bind(&from.into()).unwrap();
            socket
                .connect(&listener.local_addr().unwrap().into())
                .unwrap();
            assert_eq!(is_within_host(&socket.into()), is_one, "{from} to {to}");
        }
    }
}
