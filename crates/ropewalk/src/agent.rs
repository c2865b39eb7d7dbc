//! An agent within this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use ropewalk_agent::AgentConfig;
use ropewalk_proto::tunnel::Permitted;
use ropewalk_store::{Buffer, Buffers};
use tokio::sync::oneshot;

use crate::Error;
use crate::error::Fault;

/// A fresh secret for agents and those that use them.
///
/// # Panics
/// When the operating system has no random numbers, in which case nothing can be kept secret.
#[must_use]
pub fn new_token() -> [u8; 32] {
    ropewalk_lane::preface::random_bytes()
}

/// The secret in a file that `ropewalk agent --new-token FILE` made.
///
/// # Errors
/// [`Error::Host`] for a file that cannot be read, that others can read, or that is no token file.
pub fn read_token(file: impl AsRef<Path>) -> Result<[u8; 32], Error> {
    let token = ropewalk_master::token::read(file.as_ref());
    token.map_err(|error| Error::Host(Fault::of(error)))
}

/// What an agent serves, and which masters it serves.
#[derive(Clone)]
pub struct AgentOptions {
    /// Addresses to listen on; port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// What transfers must prove to know.
    pub token: [u8; 32],
    /// Folders served, and whether transfers may write there.
    pub roots: Vec<(PathBuf, bool)>,
}

/// An agent that serves on threads of its own until it is stopped or dropped.
///
/// Data is sealed and both ends prove the token; paths outside the roots cannot be reached.
///
/// It also serves memory of this program: a [`Buffer`] that it is lent takes part in transfers as `buffer:NAME`, where files of other agents are
/// named by their paths.
#[derive(Debug)]
pub struct Agent {
    addresses: Vec<SocketAddr>,
    buffers: Buffers,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Agent {
    /// Starts to serve.
    ///
    /// # Errors
    /// [`Error::Host`] for an address that cannot be listened on, a root that is not a folder, or threads that the system
    /// does not give.
    pub fn start(options: AgentOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        let agent = ropewalk_agent::Agent::bind(AgentConfig {
            listen: options.listen,
            token: options.token,
            roots: options.roots,
            expanded: Vec::new(),
            log: None,
            stages: None,
            forwards: Permitted::nothing(),
        })?;
        let (addresses, buffers) = (agent.addresses(), agent.buffers());
        let runtime = runtime()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let until = async move {
                // A dropped agent stops, too.
                drop(stopped.await);
            };
            let served = runtime.block_on(agent.serve(until));
            // A call on a file system that does not answer does not return.
            runtime.shutdown_timeout(CALLS_TIME_MAX);
            Ok(served?)
        };
        let thread = std::thread::Builder::new().name("ropewalk-agent".into());
        let thread = thread.spawn(serve).map_err(no_thread)?;
        Ok(Self {
            addresses,
            buffers,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves a buffer as `buffer:NAME` in transfers that begin from now on: see [`Row::from_buffer`](crate::Row::from_buffer),
    /// [`Row::to_buffer`](crate::Row::to_buffer) and [`Place::buffer`](crate::Place::buffer).
    ///
    /// # Errors
    /// [`Error::Input`] for a name that a buffer has already, or cannot have: letters, digits, `.`, `-` and `_` are permitted.
    pub fn lend(&self, name: &str, buffer: Buffer) -> Result<(), Error> {
        Ok(self.buffers.lend(name, buffer)?)
    }

    /// Serves a buffer no longer. Transfers that have it go on; [`Buffer::take_back`] ends that, too.
    #[must_use = "the buffer may be in use still"]
    pub fn withdraw(&self, name: &str) -> Option<Buffer> {
        self.buffers.withdraw(name)
    }

    /// Stops all transfers and waits until their files are in order.
    ///
    /// # Errors
    /// [`Error::Host`] when it could not serve; [`Error::Bug`] when its thread panicked.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let panicked = |_| Err(Error::Bug(Fault::new("the agent's thread panicked")));
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An error of an agent that is dropped has nowhere to go; `stop` returns it.
        drop(self.end());
    }
}

/// Transfers have ended before: what is left is at most a call of the system.
const CALLS_TIME_MAX: Duration = Duration::from_secs(10);

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    crate::process::enter()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(no_thread)
}

pub(crate) fn no_thread(error: std::io::Error) -> Error {
    Error::Host(Fault::new(format!(
        "cannot start a thread: {error}; raise the limit of processes (ulimit -u)"
    )))
}
