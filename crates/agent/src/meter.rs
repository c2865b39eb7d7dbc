//! What an agent has done and does now, read while it serves: for its metrics and for `ropewalk agents`.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use ropewalk_proto::control::{AgentStatus, ServedRoot, StatusReply};
use ropewalk_proto::version::version;
use ropewalk_store::Access;

use crate::counts::Moved;
use crate::running::{self, Running};
use crate::shared::Shared;

/// Reads what an agent does, as long as it runs.
#[derive(Clone)]
pub struct Meter {
    shared: Arc<Shared>,
}

/// What an agent does, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Transfers that it takes part in now.
    pub transfers: u64,
    /// Streams through stages that it takes part in now.
    pub streams: u64,
    /// Tunnels that end here now.
    pub tunnels: u64,
    /// Their open connections.
    pub tunnel_connections: u64,
    /// Transfers since it began.
    pub transfers_begun: u64,
    /// Bytes of all transfers, streams and tunnels since it began.
    pub moved: Moved,
    /// Requests of masters that it has refused.
    pub refused: u64,
    /// Connections that it has closed without an answer, since they did not prove a token or certificate.
    pub unauthenticated: u64,
    /// Age of the agent in seconds.
    pub seconds: u64,
}

impl Meter {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The same for masters, with what it serves.
    pub(crate) fn status(&self) -> AgentStatus {
        let now = self.read();
        let roots = self.shared.host.roots.iter();
        AgentStatus {
            version: version().to_owned(),
            seconds: now.seconds,
            streams: now.streams,
            tunnels: now.tunnels,
            tunnel_connections: now.tunnel_connections,
            forwards: self.shared.permitted.targets.rules(),
            transfers_begun: now.transfers_begun,
            sent: now.moved.sent,
            received: now.moved.received,
            instance: self.shared.host.instance.clone(),
            roots: roots
                .map(|(path, access)| ServedRoot {
                    path: path.as_os_str().as_bytes().to_vec(),
                    writable: access == Access::ReadWrite,
                })
                .collect(),
        }
    }

    /// The agent, and each transfer, stream and tunnel that it takes part in, or the one with this id.
    #[must_use]
    pub fn report(&self, id: &[u8]) -> StatusReply {
        let found = running::select(&self.shared, id);
        StatusReply {
            transfers: found.iter().map(Running::status_line).collect(),
            agent: Some(self.status()),
            around: Vec::new(),
        }
    }

    /// What the agent does now. It holds the locks of the agent for some nanoseconds a running transfer.
    #[must_use]
    pub fn read(&self) -> Reading {
        let host = &self.shared.host;
        let running: Vec<_> = self.shared.transfers.lock().values().cloned().collect();
        let mut now = Reading::default();
        let totals = host.counts.change(|totals| {
            let mut sum = *totals;
            for moved in running.iter().filter_map(|transfer| transfer.counted()) {
                now.transfers += 1;
                sum.moved.add(moved);
            }
            for stream in self.shared.streams.lock().values() {
                now.streams += 1;
                sum.moved.add(stream.moved());
            }
            for forward in self.shared.forwards.lock().values() {
                now.tunnels += 1;
                now.tunnel_connections += forward.open_connections();
                sum.moved.add(forward.moved());
            }
            sum
        });
        Reading {
            transfers_begun: totals.begun,
            moved: totals.moved,
            refused: totals.refused,
            unauthenticated: totals.strangers,
            seconds: host.began.elapsed().as_secs(),
            ..now
        }
    }
}
