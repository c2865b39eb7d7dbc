//! A connection that was accepted: what kinds there are, its source, and why it may be closed without an answer.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use ropewalk_lane::control::RETRANSMIT_PAUSE_MAX;
use ropewalk_lane::preface::Preface;
use ropewalk_lane::tcp::limit_retransmit_pause;
use ropewalk_proto::admission::Source;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::streams::DataSocket;

/// A connection that has not sent its preface by then is closed: peers send it at once, and retransmit it each second where it is lost.
pub(crate) const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// A master that acknowledges no status for this long is gone; what it started is cleaned up.
const MASTER_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Sockets an agent takes connections on.
pub(crate) trait Incoming: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    fn into_data(self) -> std::io::Result<DataSocket>;
    /// Makes the connection fail when the peer's host is gone and does not close it.
    fn expect_answers(&self) {}
    /// What is written from now on leaves when the connection ends, or when packets are full.
    fn hold_back(&self) {}
    /// Whether what comes is acknowledged at once, or by what is sent next.
    fn acknowledge_at_once(&self, _is_wanted: bool) {}
}

impl Incoming for tokio::net::TcpStream {
    fn into_data(self) -> std::io::Result<DataSocket> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(DataSocket::Tcp(stream))
    }

    fn expect_answers(&self) {
        let socket = socket2::SockRef::from(self);
        // Best effort: without it the system's own patience counts, about a quarter of an hour.
        let _ = socket.set_tcp_user_timeout(Some(MASTER_SILENCE_MAX));
        limit_retransmit_pause(self, RETRANSMIT_PAUSE_MAX);
    }

    fn hold_back(&self) {
        // Best effort: it saves packets.
        let _ = socket2::SockRef::from(self).set_tcp_cork(true);
    }

    fn acknowledge_at_once(&self, is_wanted: bool) {
        // Best effort, too.
        let _ = socket2::SockRef::from(self).set_tcp_quickack(is_wanted);
    }
}

impl Incoming for tokio::net::UnixStream {
    fn into_data(self) -> std::io::Result<DataSocket> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(DataSocket::Unix(stream))
    }
}

/// Connections that this process makes to itself, or that count as such.
pub(crate) fn own_user() -> Source {
    Source::User(rustix::process::geteuid().as_raw())
}

/// At the other end of a connection.
pub(crate) struct Caller {
    pub source: Source,
    /// For the log.
    pub name: String,
    /// The address of this host that it was made to.
    pub reached_as: Option<SocketAddr>,
    /// Its preface is waited for so long.
    pub patience: Duration,
}

/// Why a connection is closed without an answer, for the log.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("closed, no preface within {} s", PREFACE_TIMEOUT.as_secs())]
    Silent,
    #[error("closed its connection before a preface")]
    Left,
    #[error("closed, silent while too many others connect")]
    GaveWay,
    #[error("closed, what it sent is no preface of this version of Ropewalk")]
    NoPreface,
    #[error("closed, its token is wrong")]
    WrongToken,
    #[error("closed, this agent does not serve the transfer that it names")]
    NoTransfer,
    #[error("closed, it has no key of the transfer that it names")]
    WrongKey,
    #[error("closed, its TLS handshake failed or took too long")]
    Handshake,
    #[error(
        "closed, the node has as many streams open as this copy can need; its oldest one was ended"
    )]
    TooMany,
}

/// The node number a preface claims. In a pair handshake the certificate must name the same one.
pub(crate) fn node_of(head: &Preface) -> u32 {
    u32::from_le_bytes([head.extra[0], head.extra[1], head.extra[2], head.extra[3]])
}
