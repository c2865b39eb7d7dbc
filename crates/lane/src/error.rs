//! Why a stream of a lane ended.

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use ropewalk_model::Range;
use ropewalk_proto::wire::FrameError;

/// Why a stream can carry nothing more. Other streams of the lane are not touched by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The peer closed, or died, with units still owed.
    #[error(
        "the peer closed the stream with {outstanding} units outstanding; open another stream and ask again"
    )]
    Closed {
        /// Units that were granted and not completed.
        outstanding: usize,
    },
    /// No byte moved for the whole patience of the stream.
    #[error(
        "the peer was silent for {seconds} s while {doing}; its units may be asked for elsewhere"
    )]
    Silent {
        /// Patience that ran out, in seconds.
        seconds: u64,
        /// What the stream waited for.
        doing: &'static str,
    },
    /// A [`Stopper`](crate::Stopper) ended the stream from this side.
    #[error("the stream was stopped from this side")]
    Stopped,
    /// The peer sent a header that cannot be read; what follows cannot be delimited.
    #[error("the peer sent an unreadable frame: {0}; it may run another version")]
    Frame(#[from] FrameError),
    /// The peer sent a readable frame that does not belong here.
    #[error("the peer broke the frame order: {0}")]
    Unexpected(String),
    /// A sealed record was changed on the way, or sealed with another key.
    #[error("record {record} failed authentication; the stream is closed")]
    Forged {
        /// Number of the record on its direction of the stream, from 0.
        record: u64,
    },
    /// The place the bytes belong to refused them.
    #[error("bytes {}..{} of space {space} could not be stored: {source}", range.start, range.end)]
    Landing {
        /// Space the bytes belong to.
        space: u16,
        /// Bytes that were refused.
        range: Range,
        /// What the landing said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Datagrams do not come through, though the connection beside them works.
    #[error(
        "no UDP datagram from {from} reached {to} within {seconds} s; let UDP pass between these hosts, or use --lane tcp"
    )]
    Blocked {
        /// Address and port they were sent from.
        from: SocketAddr,
        /// Address and port they were to reach.
        to: SocketAddr,
        /// How long they were waited for.
        seconds: u64,
    },
    /// The path does not carry datagrams of the length that was asked for.
    #[error(
        "packets of {mtu} bytes (--mtu) do not pass from {from} to {to}; leave it out to have it found, or set a smaller one"
    )]
    TooLong {
        /// Packet length asked for.
        mtu: u32,
        /// Address and port they were sent from.
        from: SocketAddr,
        /// Address and port they were to reach.
        to: SocketAddr,
    },
    /// The caller asked for something no stream can do.
    #[error("{0}")]
    Misuse(String),
    /// The operating system refused an operation on the connection.
    #[error("{doing} failed: {source}")]
    Socket {
        /// Operation that failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LaneError {
    /// Whether another stream to the same peer, or the same units from another holder, may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Closed { .. } | Self::Silent { .. } | Self::Forged { .. } | Self::Socket { .. }
        )
    }

    /// With what was owed, where the peer closed.
    pub(crate) fn owing(self, outstanding: usize) -> Self {
        match self {
            Self::Closed { .. } => Self::Closed { outstanding },
            other => other,
        }
    }
}
