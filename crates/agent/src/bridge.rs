//! Connections to another node of a transfer that go through the master, where the two cannot connect.

use std::io;
use std::sync::Arc;

use crate::member::Member;
use crate::streams::DataSocket;
use crate::tunnel::Tunnel;

/// How a connection through the master begins.
#[derive(Clone)]
pub(crate) enum Bridge {
    /// Over the pipe to it.
    Pipe(Arc<Tunnel>),
    /// It connects to this node.
    Carried,
}

impl Bridge {
    /// Connects to a node of the transfer, from a thread that may wait.
    pub fn connect(&self, member: &Member, node: u32) -> io::Result<DataSocket> {
        match self {
            Self::Pipe(tunnel) => Ok(DataSocket::Unix(tunnel.connect(node)?)),
            Self::Carried => member.carry(node).map_err(io::Error::other),
        }
    }

    /// For reports.
    pub fn kind(&self, member: &Member) -> &'static str {
        match (self, &member.tunnel) {
            (Self::Carried, None) => "tcp",
            (Self::Pipe(_), _) | (Self::Carried, Some(_)) => "ssh",
        }
    }
}

/// The ways through the master, the best one first: on its own host a connection costs less than the pipe.
pub(crate) fn bridges(member: &Member) -> Vec<Bridge> {
    let pipe = member.tunnel.clone().map(Bridge::Pipe);
    match (pipe, member.is_near_master) {
        (None, _) => vec![Bridge::Carried],
        (Some(pipe), true) => vec![Bridge::Carried, pipe],
        (Some(pipe), false) => vec![pipe],
    }
}
