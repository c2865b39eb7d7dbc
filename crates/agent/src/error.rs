//! Why an agent could not start, or a node's part of a transfer could not.

use std::net::SocketAddr;

/// Errors of the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; is another agent running there? choose another with --listen"
    )]
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
    /// The thread that writes the log cannot be started.
    #[error("cannot start a thread for the log: {0}; raise the limit of processes (ulimit -u)")]
    Log(std::io::Error),
    /// A message asked for something that cannot be done.
    #[error("{0}")]
    Refused(String),
}
