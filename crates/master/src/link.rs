//! The authenticated connection to one agent.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::control::RETRANSMIT_PAUSE_MAX;
use ropewalk_lane::control::{ControlError, connect};
use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::tcp::limit_retransmit_pause;
use ropewalk_pipe::{Pipe, PipeError, Purpose};
use ropewalk_proto::control::{self, FromAgent, LENGTH_LEN, ToAgent, from_agent, to_agent};
use ropewalk_proto::report::ControlReport;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::MasterError;
use crate::wire::{Counted, Meter};

/// One address that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The handshake takes at most this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A host that acknowledges nothing for this long is gone. Agents that have nothing to say yet, before they are asked to open anything,
/// are silent; their hosts answer all the same.
const HOST_SILENCE_MAX: Duration = Duration::from_secs(30);

/// A connection that is quiet for this long is probed ...
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// ... with this pause between two probes ...
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// ... this often: as long as [`HOST_SILENCE_MAX`] together.
const PROBES: u32 = 4;

/// What a link runs over: sealed records, or a stream of a pipe that ssh or the system protects.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to an agent that has proved the token, or that this process started.
pub(crate) struct Link {
    pub reader: LinkReader,
    pub writer: LinkWriter,
    /// The agent's address, where this process connected to it.
    pub peer: Option<IpAddr>,
    /// What it has carried; pipes keep an account of their own.
    pub meter: Option<Arc<Meter>>,
}

pub(crate) struct LinkReader(ReadHalf<Box<dyn Stream>>);
pub(crate) struct LinkWriter(WriteHalf<Box<dyn Stream>>);

impl Link {
    fn new(stream: Box<dyn Stream>, meter: Option<Arc<Meter>>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader: LinkReader(reader),
            writer: LinkWriter(writer),
            peer: None,
            meter,
        }
    }

    /// What is read of a stream and written to it, for tests.
    #[cfg(test)]
    pub fn of(stream: tokio::io::DuplexStream) -> Self {
        Self::new(Box::new(stream), None)
    }

    /// The control stream of an agent at the other end of a pipe. The pipe is protected by what it runs through, and
    /// no other process could read or write it: no handshake, no proof.
    pub async fn over(pipe: &Pipe) -> Result<Self, PipeError> {
        let stream = pipe.open(&Purpose::Control.encode()).await?;
        Ok(Self::new(Box::new(stream), None))
    }

    pub async fn connect(
        node: &str,
        host: &str,
        port: u16,
        token: &[u8; 32],
    ) -> Result<Self, MasterError> {
        let address = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let unreachable = |reason: String| MasterError::Unreachable {
            node: node.into(),
            address: address.clone(),
            reason,
        };
        // First of all: the process's first random numbers take a tenth of a second.
        let head = Preface {
            kind: Kind::Control,
            flags: 0,
            key_id: preface::key_id(token),
            transfer_id: [0; 16],
            nonce: preface::random_bytes(),
            extra: [0; 16],
        };
        let head = head.encode(&MacKey::new(token));
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, open(host, port)).await;
        let stream = match connecting {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let advice = match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => {
                        "; start `ropewalk agent` there, or check the port"
                    }
                    // A name that does not resolve has no code of the system.
                    _ if error.raw_os_error().is_none() => "; check the host's name",
                    _ => "",
                };
                return Err(unreachable(format!("{error}{advice}")));
            }
            Err(_) => {
                return Err(unreachable(format!(
                    "no answer within {} s; check host, port and firewall",
                    CONNECT_TIMEOUT.as_secs()
                )));
            }
        };
        let _ = stream.set_nodelay(true);
        expect_answers(&stream);
        let peer = stream.peer_addr().ok().map(|address| address.ip());
        let stream = Counted::tcp(stream);
        let meter = stream.meter();
        let handshake = connect(stream, &head, token);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(Self {
                peer,
                ..Self::new(Box::new(stream), Some(meter))
            }),
            Ok(Err(ControlError::Tls(error))) => Err(error.into()),
            Ok(Err(_)) => Err(MasterError::Token {
                node: node.into(),
                address,
            }),
            Err(_) => Err(unreachable(format!(
                "something listens there but does not finish a handshake within {} s; check the port, and whether its agent is stopped",
                HANDSHAKE_TIMEOUT.as_secs()
            ))),
        }
    }
}

/// How long an address has to answer before the next one of the host is tried beside it (RFC 8305).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Connects to an address of the host that answers: a name may have some that do not. The acknowledgement that completes a connection leaves with the first data.
pub(crate) async fn open(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut failed = std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        "the host's name has no address",
    );
    let mut dials = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        dials.spawn(dial(address));
        if let Ok(Some(Ok(dialled))) = tokio::time::timeout(NEXT_AFTER, dials.join_next()).await {
            match dialled {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
    }
    while let Some(dialled) = dials.join_next().await {
        match dialled {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

async fn dial(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = match address.is_ipv4() {
        true => TcpSocket::new_v4()?,
        false => TcpSocket::new_v6()?,
    };
    acknowledge_late(&socket);
    limit_retransmit_pause(&socket, RETRANSMIT_PAUSE_MAX);
    socket.connect(address).await
}

/// Most messages are answered at once, and the answer acknowledges them.
fn acknowledge_late(socket: &impl AsFd) {
    // Best effort: it saves packets.
    let _ = SockRef::from(socket).set_tcp_quickack(false);
}

/// Makes the connection fail when the agent's host is gone without a word.
pub(crate) fn expect_answers(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    // Best effort: without it the coordinator's clocks count.
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(HOST_SILENCE_MAX));
    acknowledge_late(stream);
}

impl LinkReader {
    /// Next message and its size on the wire before encryption.
    pub async fn read(&mut self) -> Result<(Box<FromAgent>, usize), LinkError> {
        let mut length = [0; LENGTH_LEN];
        self.0.read_exact(&mut length).await?;
        let length = control::decode_length(length)?;
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await?;
        Ok((Box::new(control::decode(&bytes)?), LENGTH_LEN + length))
    }
}

/// Why a control connection does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the connection closed")]
    Closed,
    #[error(transparent)]
    Socket(std::io::Error),
    /// What the agent sent is no message.
    #[error(transparent)]
    Message(#[from] control::ControlError),
}

impl From<std::io::Error> for LinkError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Socket(error),
        }
    }
}

impl LinkWriter {
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.0.write_all(bytes).await?;
        Ok(self.0.flush().await?)
    }

    /// Sends what is written and not sent; with nothing to say, what makes the agent sure of this master.
    pub async fn flush(&mut self) {
        // A broken connection shows where it is read.
        let _ = self.0.flush().await;
    }

    /// Ends this side.
    pub async fn close(&mut self) {
        let _ = self.0.shutdown().await;
    }
}

/// Adds a sent message to the account.
pub(crate) fn count_sent(report: &mut ControlReport, message: &ToAgent, bytes: usize) {
    match message.body {
        Some(to_agent::Body::Credentials(_)) => report.handshake_bytes += bytes as u64,
        Some(to_agent::Body::Limit(_) | to_agent::Body::Streams(_) | to_agent::Body::Permit(_)) => {
            report.status_messages += 1;
            report.status_bytes += bytes as u64;
        }
        _ => {
            report.plan_messages += 1;
            report.plan_bytes += bytes as u64;
        }
    }
}

/// Adds a received message to the account.
pub(crate) fn count_received(report: &mut ControlReport, message: &FromAgent, bytes: usize) {
    match message.body {
        Some(from_agent::Body::Status(_) | from_agent::Body::SenderStatus(_)) => {
            report.status_messages += 1;
            report.status_bytes += bytes as u64;
        }
        _ => {
            report.plan_messages += 1;
            report.plan_bytes += bytes as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quiet connection is probed, and one that nobody answers on ends within the stated time.
    #[tokio::test]
    async fn hosts_that_are_gone_show() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        expect_answers(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(HOST_SILENCE_MAX));
        assert_eq!(PROBE_AFTER + PROBE_EVERY * PROBES, HOST_SILENCE_MAX);
    }
}
