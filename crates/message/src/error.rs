//! Why an operation on a message socket failed.

use std::io;
use std::net::SocketAddr;

/// Why an operation failed. Sorted by the party that must act: the caller, the peer, the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The arguments cannot be meant.
    #[error("{0}")]
    Misuse(String),
    /// Data would cross a network unsealed, and `plain` was not set.
    #[error(
        "{address} is not on this host, and without a token nothing can be sealed; set a token at both ends, or `plain` for a network you trust"
    )]
    NotSealed {
        /// The address that is not on this host.
        address: SocketAddr,
    },
    /// The next message is longer than the memory given. It stays; receive it with more.
    #[error("the next message has {length} bytes, {room} were given; receive it with more")]
    TooLong {
        /// Bytes of the message.
        length: u64,
        /// Bytes given.
        room: u64,
    },
    /// The deadline passed. A message that was being sent is cancelled (it may have arrived); one that was being
    /// received stays.
    #[error("the deadline passed")]
    Deadline,
    /// The message was cancelled before the peer had it.
    #[error("the message was cancelled")]
    Cancelled,
    /// This end has announced that it sends nothing more, or was closed.
    #[error("the socket is closed on this side")]
    Closed,
    /// The peer has closed its socket.
    #[error("the peer has closed its socket")]
    PeerClosed,
    /// No rail has worked for the whole [`peer_timeout`](crate::Options::peer_timeout).
    #[error("no rail to the peer has worked for {seconds} s; last cause: {cause}")]
    PeerLost {
        /// The timeout.
        seconds: u64,
        /// Why the last rail failed.
        cause: String,
    },
    /// No connection could be made, or the peer did not prove the token.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        /// What went wrong there.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The file of remembered cut-offs cannot be used. The socket can do without.
    #[error("{0}")]
    Remembered(String),
    /// The peer has given the byte stream up.
    #[error("the peer has given the byte stream up: {text}")]
    Reset {
        /// Its code; see [`ByteStream::reset`](crate::ByteStream::reset).
        code: u64,
        /// Why, in its words: text of another host.
        text: String,
    },
    /// The peer reads nothing more of the byte stream.
    #[error("the peer reads nothing more of this byte stream")]
    Stopped,
    /// As many byte streams are open over one socket as there may be.
    #[error(
        "{0} byte streams are open over this socket, which is the most; close some, or connect again"
    )]
    TooManyStreams(usize),
    /// What the peer sent is no byte stream.
    #[error("the peer breaks the rules of byte streams: {0}")]
    NotByteStreams(String),
    /// It was made by the process that this one is a child of (`fork`): its threads are there, and its connections are that one's.
    #[error("this was made before a fork, and belongs to the process that made it")]
    OtherProcess,
    /// The operating system refused something else.
    #[error("{doing} failed: {source}")]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl MessageError {
    /// As the standard library's error, for those that know sockets. It holds this one as its inner error.
    #[must_use]
    pub fn into_io(self) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match &self {
            Self::Misuse(_)
            | Self::NotSealed { .. }
            | Self::TooLong { .. }
            | Self::OtherProcess => ErrorKind::InvalidInput,
            Self::Deadline => ErrorKind::TimedOut,
            Self::Closed | Self::Cancelled => ErrorKind::NotConnected,
            Self::Stopped => ErrorKind::BrokenPipe,
            Self::PeerClosed | Self::Reset { .. } => ErrorKind::ConnectionReset,
            Self::PeerLost { .. } => ErrorKind::ConnectionAborted,
            Self::Connect { source, .. }
            | Self::Listen { source, .. }
            | Self::System { source, .. } => source.kind(),
            Self::NotByteStreams(_) => ErrorKind::InvalidData,
            Self::TooManyStreams(_) | Self::Remembered(_) => ErrorKind::Other,
        };
        std::io::Error::new(kind, self)
    }

    /// Whether the same call, or a new socket to the same peer, may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Deadline | Self::PeerClosed | Self::PeerLost { .. } | Self::Connect { .. }
        )
    }
}
