//! The one planner of a transfer: reaches agents, drives the coordinator, writes the report.
//!
//! All decisions are in [`ropewalk_proto::coordinator`]; this crate gives it sockets, processes and a
//! clock. Data never passes through here, and nothing per fragment does either.
//!
//! ```text
//!  Request ─▶ reach (attach, ssh, local) ─▶ link per node ─▶ drive ─▶ Report
//!                                             TLS + token     │
//!                                                             ├─ sched (plans)
//!                                                             ├─ speeds (what earlier transfers showed)
//!                                                             └─ store (compares manifests)
//! ```

#![forbid(unsafe_code)]

mod absent;
mod adviser;
mod compare;
mod connections;
mod doctor;
mod drive;
mod expand;
mod here;
mod kept;
mod landing;
mod lessons;
mod link;
mod members;
mod query;
mod reach;
mod report;
pub mod request;
mod rounds;
pub mod rows;
mod setup;
mod sharing;
mod speeds;
mod standing;
mod streaming;
pub mod token;
mod tunneling;
mod tunnels;
mod watching;
mod wire;

pub use doctor::{DoctorHost, doctor};
pub use drive::Cancel;
pub use expand::{Agents, Expansion, expand};
pub use here::{AgentHere, NotStarted};
pub use members::{Joined, Joining, Members, MembersError};
pub use query::{query_agent, query_cancel, query_status};
pub use reach::flush_hosts_errors;
pub use request::Request;
pub use ropewalk_statefile::StateError;
pub use ropewalk_tunnel::addresses as listening_addresses;
pub use rounds::{run, run_with};
pub use sharing::clear_paths;
pub use speeds::{Hints, remembered_speeds};
pub use standing::{JobError, LastReport, StandingMaster, job_key};
pub use streaming::{StageProgram, StreamEvent, StreamRequest, stream};
pub use tunneling::{ForwardRequest, RemoteRequest, TunnelEvent, TunnelRequest, tunnel};
pub use watching::{Watched, WatchedHost};

/// Why an agent cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasterError {
    /// Nothing answers there.
    #[error("cannot reach {}: {reason}", node_at(node, address))]
    Unreachable {
        /// Name of the node.
        node: String,
        /// Where it was tried.
        address: String,
        /// What the system said and what to do.
        reason: String,
    },
    /// Something answers that does not know the token.
    #[error(
        "{} closed the connection before it proved its token: the agent ended, its token differs, or another program or version listens there; see whether the agent runs, then compare the token files of both sides",
        node_at(node, address)
    )]
    Token {
        /// Name of the node.
        node: String,
        /// Where it answered.
        address: String,
    },
    /// The connection broke.
    #[error("{node}: the connection broke: {reason}")]
    Broken {
        /// Name of the node.
        node: String,
        /// What the system said.
        reason: String,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] ropewalk_lane::tls::TlsError),
}

/// A node with its address, once where it is named by that.
fn node_at(node: &str, address: &str) -> String {
    match node == address {
        true => node.to_owned(),
        false => format!("{node} at {address}"),
    }
}
