//! This node's end of a tunnel: takes the links of its message socket at the agent's port, connects each byte stream to its
//! target, and listens for remote forwards.
//!
//! ```text
//!  master ── ForwardOpen ──▶ session ──▶ Forward
//!  master ══ link (preface of kind Message) ══▶ welcome ──▶ Forward ══ a thread for each stream ══▶ target
//!  program ── TCP ──▶ Forward ══ a thread for each connection, which opens a stream ══▶ master ──▶ target
//! ```
//!
//! Links do not depend on the control connection: it may run over an interface that has failed while others work. The tunnel ends
//! [`LOST_SECONDS`] after its last link, also where the control connection has not failed yet, and at once where that has ended and there was no
//! link.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::preface::{self, PREFACE_LEN};
use ropewalk_message::{ByteStreamListener, Options};
use ropewalk_proto::control::{
    ForwardListening, ForwardOpen, ForwardOpened, TransferKind, TransferStatus,
};
use ropewalk_proto::tunnel::allowed::Allowed;
use ropewalk_proto::tunnel::listening::{Bind, Listening};
use ropewalk_proto::tunnel::{LOST_SECONDS, Permitted, TARGETS_MAX, Target};
use ropewalk_tunnel::{Bound, Counts, Served, accept_all, serve};
use tokio::task::JoinSet;

use crate::counts::Moved;
use crate::host::Host;
use crate::shared::Shared;
use crate::{AgentError, interfaces, rails};

/// Stack of the thread that takes streams.
const STACK_LEN: usize = 256 << 10;

/// Time between two looks whether a tunnel has links.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Tunnels of one agent at once: each has threads, also without a connection.
pub(crate) const FORWARDS_MAX: usize = 64;

/// See the module documentation.
pub(crate) struct Forward {
    /// Of the secret of its links.
    pub key_id: [u8; 16],
    listener: Arc<ByteStreamListener>,
    served: Arc<Served>,
    /// Where it listens, for the log.
    listening: Vec<String>,
    /// Take connections of programs.
    accepting: Mutex<JoinSet<()>>,
    began: Instant,
    over: AtomicBool,
    end_is_logged: AtomicBool,
    /// Addresses of this host that links came to.
    reached_at: Mutex<BTreeSet<IpAddr>>,
}

impl Forward {
    /// Refuses what the operator has not allowed, and listens; then links may connect. Needs a runtime.
    pub fn open(
        open: &ForwardOpen,
        permitted: &Permitted,
        host: &Host,
        reached_as: Option<IpAddr>,
    ) -> Result<(Arc<Self>, ForwardOpened), AgentError> {
        let refused = |text: String| AgentError::Refused(text);
        if !(1..=TARGETS_MAX).contains(&(open.targets.len() + open.listens.len())) {
            return Err(refused(format!("a tunnel has 1 to {TARGETS_MAX} forwards")));
        }
        let targets = targets(open, &permitted.targets)?;
        let binds = binds(open, &permitted.listening)?;
        let Ok(secret) = <[u8; 32]>::try_from(open.secret.as_slice()) else {
            return Err(refused("the tunnel has no secret of 32 bytes".into()));
        };
        let usable = interfaces::usable(&open.rails);
        if usable.is_empty() && !open.rails.is_empty() {
            return Err(refused(format!(
                "no interface of this host is {}",
                open.rails.join(", ")
            )));
        }
        let options = Options {
            token: Some(secret),
            plain: open.plain,
            peer_timeout: Duration::from_secs(LOST_SECONDS),
            ..Options::default()
        };
        let listener = ByteStreamListener::without_addresses(&options);
        let listener =
            listener.map_err(|error| refused(format!("the tunnel cannot begin: {error}")))?;
        let bound = binds.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        let listening: Vec<Vec<String>> = bound.iter().map(Bound::names).collect();
        let (listener, counts) = (Arc::new(listener), Arc::<Counts>::default());
        let mut accepting = JoinSet::new();
        for (position, bound) in (0..).zip(bound) {
            for one in bound.into_listeners() {
                // What fails is said at the other end.
                let taken = accept_all(one, position, listener.clone(), counts.clone(), drop);
                accepting.spawn(taken);
            }
        }
        let forward = Arc::new(Self {
            key_id: preface::key_id(&secret),
            listener,
            served: Arc::new(Served {
                targets,
                counts,
                say: Box::new(drop),
            }),
            listening: listening.concat(),
            accepting: Mutex::new(accepting),
            began: Instant::now(),
            over: AtomicBool::new(false),
            end_is_logged: AtomicBool::new(false),
            reached_at: Mutex::default(),
        });
        let serving = forward.clone();
        spawn("forward", move || {
            serve(&serving.served, || serving.listener.accept_until(None));
        })
        .map_err(|error| refused(format!("cannot start a thread: {error}")))?;
        let is_restricted = !open.rails.is_empty();
        let found = interfaces::candidates(&usable, is_restricted, reached_as, host.port);
        let opened = ForwardOpened {
            addresses: found.iter().map(|(one, _)| one.to_string()).collect(),
            interfaces: found.iter().map(|(_, number)| *number).collect(),
            listening: listening
                .into_iter()
                .map(|addresses| ForwardListening { addresses })
                .collect(),
        };
        Ok((forward, opened))
    }

    /// Takes a link that connected at the agent's port. The listener finds out whether it has the secret.
    pub fn give(&self, link: TcpStream, preface: [u8; PREFACE_LEN]) {
        let local = link.local_addr().map(|local| local.ip().to_canonical());
        let mut reached_at = self.reached_at.lock();
        reached_at.extend(local);
        let is_one_of_several = reached_at.len() > 1;
        drop(reached_at);
        rails::bind_accepted(&link, is_one_of_several);
        self.listener.give(link, preface);
    }

    /// Whether its master has a link, or had one in the last seconds.
    pub fn is_linked(&self) -> bool {
        self.listener.peers() > 0
    }

    /// Bytes of all its connections: to its master's host, and from there.
    pub fn moved(&self) -> Moved {
        Moved {
            sent: self.served.counts.passed.to_stream.load(Ordering::Relaxed),
            received: self
                .served
                .counts
                .passed
                .from_stream
                .load(Ordering::Relaxed),
            delivered: 0,
        }
    }

    /// Connections at present.
    pub fn open_connections(&self) -> u64 {
        self.served.counts.open.load(Ordering::Relaxed)
    }

    /// One line for `status`.
    pub fn status_line(&self) -> TransferStatus {
        let moved = self.moved();
        TransferStatus {
            transfer: self.key_id.to_vec(),
            kind: TransferKind::Tunnel.into(),
            sent: moved.sent,
            checked: moved.received,
            age: self.began.elapsed().as_nanos() as u64,
            connections: self.served.counts.accepted.load(Ordering::Relaxed),
            open_connections: self.open_connections(),
            targets: self.targets(),
            ..TransferStatus::default()
        }
    }

    /// Ends all connections, and listens no more. It is listed no more, and its bytes are among those of the agent.
    pub fn end(&self, shared: &Shared) {
        self.over.store(true, Ordering::Release);
        self.accepting.lock().abort_all();
        self.listener.close();
        shared.host.counts.change(|totals| {
            if shared.forwards.lock().remove(&self.key_id).is_some() {
                totals.moved.add(self.moved());
            }
        });
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// For the log.
    pub fn targets(&self) -> String {
        let targets = self.served.targets.iter().map(Target::to_string);
        let listening = self.listening.iter();
        let listening = listening.map(|address| format!("its master from {address} of this host"));
        targets.chain(listening).collect::<Vec<_>>().join(", ")
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK_LEN).spawn(body).map(drop)
}

/// The targets that are asked for, all of which have to be allowed.
fn targets(open: &ForwardOpen, allowed: &Allowed) -> Result<Vec<Target>, AgentError> {
    let refused = |text: String| Err(AgentError::Refused(text));
    let mut targets = Vec::new();
    for asked in &open.targets {
        let Some(target) = Target::new(&asked.host, asked.port) else {
            return refused("a target of the tunnel is no host and port".into());
        };
        if !allowed.permits(&target) {
            return refused(format!(
                "this agent does not forward to {target}; its operator allows that with `ropewalk agent --forward \
                 {target}`, or reach the host over ssh"
            ));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Where the tunnel is to listen here, all of which has to be allowed.
fn binds(open: &ForwardOpen, allowed: &Listening) -> Result<Vec<Bind>, AgentError> {
    let bind = |asked: &ropewalk_proto::control::ForwardListen| {
        let Some(bind) = Bind::new(&asked.host, asked.port) else {
            let text = "the tunnel is to listen on what is no address and port";
            return Err(AgentError::Refused(text.into()));
        };
        if allowed.permits(&bind) {
            return Ok(bind);
        }
        let rule = match bind.port {
            // A rule of its own for a port that the system chooses would be one for all.
            0 => format!("{}*", bind.to_string().trim_end_matches('0')),
            _ => bind.to_string(),
        };
        Err(AgentError::Refused(format!(
            "this agent does not listen on {bind} for tunnels; its operator allows that with `ropewalk agent \
             --forward-listen '{rule}'`, or reach the host over ssh"
        )))
    };
    open.listens.iter().map(bind).collect()
}

fn listen(bind: &Bind) -> Result<Bound, AgentError> {
    let addresses = ropewalk_tunnel::addresses(&bind.host, bind.port);
    let bound = addresses.and_then(|addresses| ropewalk_tunnel::bind(&addresses));
    bound.map_err(AgentError::Refused)
}

/// Ends a tunnel whose control connection has ended as soon as it has no link.
pub(crate) async fn outlast(forward: Arc<Forward>, shared: Arc<Shared>, caller: String) {
    while forward.is_linked() {
        tokio::time::sleep(LOOK).await;
    }
    end(&forward, &shared, &caller);
}

/// Ends a tunnel that had a link and has lost its peer, whatever the control connection does: that takes longer to fail, and until then its
/// ports are taken.
pub(crate) async fn watch(forward: Arc<Forward>, shared: Arc<Shared>, caller: String) {
    let mut was_linked = false;
    while !forward.is_over() {
        let is_linked = forward.is_linked();
        if was_linked && !is_linked {
            return end(&forward, &shared, &caller);
        }
        was_linked = is_linked;
        tokio::time::sleep(LOOK).await;
    }
}

fn end(forward: &Forward, shared: &Shared, caller: &str) {
    forward.end(shared);
    if !forward.end_is_logged.swap(true, Ordering::AcqRel) {
        shared.host.log.say(|| format!("{caller}: tunnel ends"));
    }
}
