//! The pipe to the master that started this agent: control messages and, where two nodes cannot connect, their bytes.
//!
//! ```text
//!  agent A ══ stream ══▶ master ══ stream ══▶ agent B        B started by the master, too
//!                               ── TCP ─────▶ agent B        B running already: the master connects to its port
//!  agent C ◀── TCP ────── master                             C running already: it asks, over its control connection
//! ```
//!
//! A connection that the master makes begins with a preface of kind `Reversed`, as one that a sender makes.
//! [`Tunnel::connect`] gives a socket that is connected to another node as if to the port where its agent listens: preface,
//! handshake, joins and frames stay what they are, and the master cannot read what is sealed.
//!
//! A one-shot agent serves its pipe for as long as it lasts, and ends when no master opens the control stream in time, or when
//! that falls silent.

use std::future::Future;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_model::time;
use ropewalk_pipe::{Pipe, Purpose, Requests, Side};
use ropewalk_proto::node::GRACE_TIME;
use ropewalk_proto::silence::{SILENCE_TIME, Silence};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::listen::take_local;
use crate::shared::Shared;
use crate::tunnel::Tunnel;
use crate::{Agent, AgentError, session};

/// A master that started an agent opens the control stream at once. One that does not by then is gone.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);

/// A process that was stopped, alone or with its master, reads within this time what lies in the pipe or is about to.
const WAKE_TIME: Duration = Duration::from_secs(2);

/// Time between two looks whether transfers without a master have ended.
const ENDED_LOOK: Duration = Duration::from_millis(50);

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
        let _ = shared.host.tunnel.set(Arc::new(tunnel));
        let (controlled, mut is_controlled) = watch::channel(false);
        let (heard, hears) = watch::channel(());
        tokio::spawn(take_all(
            shared.clone(),
            requests,
            reached_as,
            controlled,
            heard,
        ));
        let (mut is_forgotten, mut is_silent) = (false, false);
        let until = async {
            let forgotten = async {
                let seen = is_controlled.wait_for(|seen| *seen);
                if let Ok(Ok(_)) = tokio::time::timeout(CONTROL_TIMEOUT, seen).await {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = shutdown => {}
                () = outlasted(&pipe, shared.clone()) => {}
                () = forgotten => is_forgotten = true,
                () = silent(hears, shared.clone()) => is_silent = true,
            }
        };
        self.serve(until).await?;
        if is_silent {
            return Err(AgentError::SilentMaster {
                seconds: SILENCE_TIME.whole_seconds(),
            });
        }
        match is_forgotten && !pipe.is_closed() {
            true => Err(AgentError::NoMaster {
                seconds: CONTROL_TIMEOUT.as_secs(),
            }),
            false => Ok(()),
        }
    }
}

/// Returns when the pipe is closed, and the transfers and tunnels that go on without it have ended.
async fn outlasted(pipe: &Pipe, shared: Arc<Shared>) {
    pipe.closed().await;
    transfers_ended(&shared).await;
    forwards_ended(&shared).await;
}

/// Returns when no tunnel has a link. The pipe may run over an interface that has failed while the tunnel's others work.
async fn forwards_ended(shared: &Shared) {
    while shared
        .forwards
        .lock()
        .values()
        .any(|forward| forward.is_linked())
    {
        tokio::time::sleep(ENDED_LOOK).await;
    }
}

/// Returns when transfers that go on without their master have ended, or have had their time.
pub(crate) async fn transfers_ended(shared: &Shared) {
    let ended = async {
        while !shared.transfers.lock().is_empty() {
            tokio::time::sleep(ENDED_LOOK).await;
        }
    };
    // What is still there then is stopped.
    let _ = tokio::time::timeout(GRACE_TIME.into(), ended).await;
}

/// Returns when the master is taken for gone, as [`ropewalk_proto::silence`] says, and no tunnel is left.
async fn silent(mut hears: watch::Receiver<()>, shared: Arc<Shared>) {
    let began = Instant::now();
    let now = || time::Instant::after(began.elapsed());
    let mut silence = Silence::default();
    loop {
        let left = silence.over_at().map(|at| at.since(now()));
        let heard = match left {
            None => hears.changed().await,
            Some(left) => match tokio::time::timeout(left.into(), hears.changed()).await {
                Ok(heard) => heard,
                Err(_) => match tokio::time::timeout(WAKE_TIME, hears.changed()).await {
                    Ok(heard) => heard,
                    Err(_) => return forwards_ended(&shared).await,
                },
            },
        };
        match heard {
            Ok(()) => silence.handle_heard(now()),
            // The pipe is closed, which ends the agent by itself.
            Err(_) => return std::future::pending().await,
        }
    }
}

/// Takes what the master opens.
async fn take_all(
    shared: Arc<Shared>,
    mut requests: Requests,
    reached_as: Option<IpAddr>,
    controlled: watch::Sender<bool>,
    heard: watch::Sender<()>,
) {
    while let Some(request) = requests.next().await {
        let shared = shared.clone();
        match Purpose::decode(&request.header) {
            Some(Purpose::Control) => {
                controlled.send_replace(true);
                let heard = heard.clone();
                tokio::spawn(async move {
                    // The pipe is the master's: no other process could write to it.
                    if let Ok(stream) = request.accept().await {
                        let caller = "the master that started it".to_owned();
                        session::converse(stream, reached_as, caller, shared, heard).await;
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
