//! What a tunnel reports while it runs and when it has ended. Units are in the keys, as of a transfer's report.

use serde::{Deserialize, Serialize};

use crate::report::{ErrorKind, Outcome};

/// How a tunnel ended, and what it carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelReport {
    /// The node whose agent connects to the targets.
    pub node: String,
    /// A tunnel has no end of its own: interrupted, failed or refused.
    pub outcome: Outcome,
    /// Why it ended.
    pub error: Option<String>,
    /// Of which kind that is.
    pub error_kind: Option<ErrorKind>,
    /// From the start of the command.
    pub seconds: f64,
    /// Whether bytes were sealed between the hosts.
    pub encrypted: bool,
    /// What it forwards.
    pub forwards: Vec<TunnelForward>,
    /// What it carried.
    #[serde(flatten)]
    pub carried: TunnelCarried,
    /// What each rail did.
    pub rails: Vec<TunnelRail>,
    /// Rails lost and found again, targets that refused; the last ones.
    pub notes: Vec<String>,
}

/// One forward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelForward {
    /// Whether the node listens and this host connects; else the other way round.
    pub remote: bool,
    /// Addresses that are listened on.
    pub listen: Vec<String>,
    /// Host and port that connections go on to.
    pub target: String,
}

/// Connections and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelCarried {
    /// Connections accepted.
    pub connections: u64,
    /// Of these, open now.
    pub open_connections: u64,
    /// Of these, ended by a reset: the target refused, one end reset it, or the tunnel ended.
    pub reset_connections: u64,
    /// Bytes of connections that this host sent to the node: of a remote forward from its target.
    pub sent_bytes: u64,
    /// Bytes of connections that the node sent.
    pub received_bytes: u64,
}

/// One rail: an address of each host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelRail {
    /// The interfaces, in words.
    pub rail: String,
    /// Whether it works.
    pub up: bool,
    /// Why it does not.
    pub cause: Option<String>,
    /// Bytes given to it.
    pub sent_bytes: u64,
    /// Bytes that arrived over it.
    pub received_bytes: u64,
}

impl TunnelReport {
    /// A tunnel that ended before it carried anything.
    #[must_use]
    pub fn refused(node: &str, kind: ErrorKind, error: &str) -> Self {
        Self {
            node: node.to_owned(),
            outcome: Outcome::Refused,
            error: Some(error.to_owned()),
            error_kind: Some(kind),
            seconds: 0.0,
            encrypted: false,
            forwards: Vec::new(),
            carried: TunnelCarried::default(),
            rails: Vec::new(),
            notes: Vec::new(),
        }
    }
}
