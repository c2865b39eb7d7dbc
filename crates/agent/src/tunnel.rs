//! The pipe to the master that started this agent, as a way to other nodes. [`crate::piped`] serves it.

use std::io;
use std::os::unix::net::UnixStream;

use ropewalk_pipe::{Pipe, Purpose, blocking};
use tokio::runtime::Handle;

/// The pipe to the master, as a way to other nodes.
pub(crate) struct Tunnel {
    pub pipe: Pipe,
    pub handle: Handle,
}

impl Tunnel {
    /// Connects to a node of the transfer, from a thread that may wait. Bounded by [`ropewalk_pipe::OPEN_TIMEOUT`].
    ///
    /// # Errors
    /// What the master says, or that it is gone.
    pub fn connect(&self, node: u32) -> io::Result<UnixStream> {
        let opened = self
            .handle
            .block_on(self.pipe.open(&Purpose::ToNode(node).encode()));
        blocking(opened.map_err(io::Error::other)?)
    }
}
