//! Why an agent could not start, or a node's part of a transfer could not.

use std::net::SocketAddr;

use ropewalk_proto::report::ErrorKind;

/// Errors of the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// An address cannot be listened on.
    // The system's words follow, as the cause.
    #[error("cannot listen on {address} ({})", advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A served folder is not usable.
    #[error(transparent)]
    Store(#[from] ropewalk_store::StoreError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] ropewalk_lane::tls::TlsError),
    /// A stream or handshake with a peer failed.
    #[error("{node} at {address}: {reason}")]
    Peer {
        /// Name of the peer.
        node: String,
        /// Where it was tried.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The pipe to the master cannot be used.
    #[error("standard input and output cannot be used as a pipe to the master: {0}")]
    Pipe(std::io::Error),
    /// No master for this agent, which was started for one transfer.
    #[error("no master has asked for anything for {seconds} s")]
    NoMaster {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The master of this agent, which was started for one transfer, has sent nothing for too long.
    #[error("no message from the master for {seconds} s; its host or the network counts as lost")]
    SilentMaster {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The thread that writes the log cannot be started.
    #[error("cannot start a thread for the log: {0}; raise the limit of processes (ulimit -u)")]
    Log(std::io::Error),
    /// A peer cannot be connected in any way.
    #[error("{0}")]
    Unconnected(String),
    /// A message asked for something that cannot be done.
    #[error("{0}")]
    Refused(String),
}

impl AgentError {
    /// What kind of error it is for the command: one that only another request avoids, or one of this host that may pass.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) if error.may_pass() => ErrorKind::Node,
            _ => ErrorKind::Refused,
        }
    }
}

fn advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program listens there; choose another address or port with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address; `ip address` lists those it has"
        }
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 are for root; choose a higher one"
        }
        _ => "choose another address or port with --listen",
    }
}
