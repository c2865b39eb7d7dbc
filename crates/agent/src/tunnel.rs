//! The pipe to the master that started this agent: control messages and, where two nodes cannot connect, their bytes.
//!
//! ```text
//!  agent A ══ stream ══▶ master ══ stream ══▶ agent B        B started by the master, too
//!                               ── TCP ─────▶ agent B        B running already: the master connects to its port
//! ```
//!
//! [`Tunnel::connect`] gives a socket that is connected to another node as if to the port where its agent listens: preface,
//! handshake, joins and frames stay what they are, and the master cannot read what is sealed. A node that was not started
//! over a pipe has no tunnel, but can be connected to by those that have one.
//!
//! A one-shot agent serves its pipe for as long as it lasts, and ends when no master opens the control stream in time.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_pipe::{Pipe, Purpose, Requests, Side, blocking};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::listen::{Shared, take_local};
use crate::{Agent, AgentError, session};

/// A master that started an agent opens the control stream at once. One that does not by then is gone.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to other nodes through the master.
pub(crate) struct Tunnel {
    pipe: Pipe,
    handle: Handle,
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

impl Agent {
    /// Serves the master at the other end of a pair of pipes, and the peers of its transfer, until the pipe closes or
    /// `shutdown` completes.
    ///
    /// * `reached_as`: this host's address by which the master reached it, where that is known.
    ///
    /// # Errors
    /// [`AgentError::NoMaster`] when no master opens the control stream; otherwise as [`Agent::serve`].
    pub async fn serve_pipe(
        self,
        (input, output): (OwnedFd, OwnedFd),
        reached_as: Option<IpAddr>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), AgentError> {
        let (pipe, requests) =
            Pipe::over(input, output, Side::Started).map_err(AgentError::Pipe)?;
        let handle = Handle::current();
        let shared = self.shared().clone();
        let tunnel = Tunnel {
            pipe: pipe.clone(),
            handle,
        };
        let _ = shared.tunnel.set(Arc::new(tunnel));
        let (controlled, mut is_controlled) = watch::channel(false);
        tokio::spawn(take_all(shared, requests, reached_as, controlled));
        let mut is_forgotten = false;
        let until = async {
            let forgotten = async {
                let seen = is_controlled.wait_for(|seen| *seen);
                if let Ok(Ok(_)) = tokio::time::timeout(CONTROL_TIMEOUT, seen).await {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = shutdown => {}
                () = pipe.closed() => {}
                () = forgotten => is_forgotten = true,
            }
        };
        self.serve(until).await?;
        match is_forgotten && !pipe.is_closed() {
            true => Err(AgentError::NoMaster {
                seconds: CONTROL_TIMEOUT.as_secs(),
            }),
            false => Ok(()),
        }
    }
}

/// Takes what the master opens.
async fn take_all(
    shared: Arc<Shared>,
    mut requests: Requests,
    reached_as: Option<IpAddr>,
    controlled: watch::Sender<bool>,
) {
    while let Some(request) = requests.next().await {
        let shared = shared.clone();
        match Purpose::decode(&request.header) {
            Some(Purpose::Control) => {
                controlled.send_replace(true);
                tokio::spawn(async move {
                    // The pipe is the master's: nobody else could write to it.
                    if let Ok(stream) = request.accept().await {
                        let caller = "the master that started it".to_owned();
                        session::converse(stream, reached_as, caller, shared).await;
                    }
                });
            }
            Some(Purpose::FromNode(_)) => {
                tokio::spawn(async move {
                    if let Ok(stream) = request.accept().await {
                        take_local(stream, shared).await;
                    }
                });
            }
            _ => request.refuse("an agent takes no such stream"),
        }
    }
}
